"""The compute service of ``examples/two_hosts`` prints what the page about wiring says, and saves what it lists."""

from __future__ import annotations

import pathlib
import re
import textwrap

import devicetrack
from devicetrack.tests import base
from devicetrack.tests import processes

ROOT = pathlib.Path(devicetrack.__file__).parent.parent
PROGRAM = ROOT / 'examples' / 'two_hosts' / 'service.py'
PAGE = ROOT / 'doc' / 'source' / 'user' / 'wiring.rst'


class TestTwoHosts(base.TestCase):

    def test_it_prints_what_the_page_says(self) -> None:
        answer = processes.run(str(PROGRAM), cwd=self.temp_dir())
        self.assertEqual('', answer.stderr if answer.returncode else '')
        self.assertIn('::\n\n' + textwrap.indent(answer.stdout, '    ') + '\n', PAGE.read_text(encoding='utf-8'))

    def test_the_page_lists_every_save_of_the_program(self) -> None:
        numbered = re.findall(r'self\.database\.save\(.*# ([0-9]+): ', PROGRAM.read_text(encoding='utf-8'))
        listed = re.findall(r'^   \* - ([0-9]+)$', PAGE.read_text(encoding='utf-8'), re.M)
        self.assertEqual(numbered, listed)
        self.assertEqual(PROGRAM.read_text(encoding='utf-8').count('self.database.save('), len(numbered))
