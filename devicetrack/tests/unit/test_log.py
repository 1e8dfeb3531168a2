"""Lines of logs, and text that others wrote."""

from __future__ import annotations

import logging
import pathlib
import re

import fixtures

import devicetrack
from devicetrack import log
from devicetrack.tests import base


class PrintableTestCase(base.TestCase):
    scenarios = base.table(
        ('plain', 'ns0 - größe', 'ns0 - größe'),
        ('a line', 'a\nb\r\u2028c', r'a\nb\r\u2028c'),
        ('a terminal escape', '\x1b]0;title\x07', r'\x1b]0;title\x07'),
        ('one byte of the same', '\x9b2J', r'\x9b2J'),
        ('another direction', 'a\u202eb', r'a\u202eb'),
        ('half a character', '\udc80', r'\udc80'),
        names=('text', 'shown'))

    def test_what_is_not_printable_is_escaped(self) -> None:
        self.assertEqual(self.shown, log.printable(self.text))


class LoggerTestCase(base.TestCase):

    def test_no_word_of_others_makes_a_line_of_a_log(self) -> None:
        logged = self.useFixture(fixtures.FakeLogger(level=logging.DEBUG))
        log.logger('devicetrack.x').warning('Cordoned: %s, %d%%.', 'why\nERROR forged \x1b[2J', 100)
        self.assertEqual('Cordoned: why\\nERROR forged \\x1b[2J, 100%.\n', logged.output)

    def test_every_logger_of_the_library_is_such_a_one(self) -> None:
        root = pathlib.Path(devicetrack.__file__).parent
        others = [str(path) for path in root.rglob('*.py')
                  if path.relative_to(root).parts[0] not in ('tests', 'testing', 'log.py')
                  and re.search(r'getLogger\(\w', path.read_text(encoding='utf-8'))]
        self.assertEqual([], others)
