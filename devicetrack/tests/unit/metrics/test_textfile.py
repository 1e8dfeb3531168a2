"""Files of metrics: replaced in one step, and read with care."""

from __future__ import annotations

import os

from devicetrack import ownfiles
from devicetrack.metrics import textfile
from devicetrack.tests import base

TEXT = '# HELP devicetrack_x_total X.\n# TYPE devicetrack_x_total counter\ndevicetrack_x_total{host="a"} 2.0\n'


class TextfileTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.directory = self.temp_dir()
        self.path = os.path.join(self.directory, 'devicetrack.prom')

    def write(self, text: str) -> None:
        with open(self.path, 'w', encoding='utf-8') as file:
            file.write(text)

    def content(self) -> str:
        with open(self.path, encoding='utf-8') as file:
            return file.read()


class WriteTestCase(TextfileTestCase):

    def test_the_mode_is_as_asked_whatever_the_umask(self) -> None:
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        ownfiles.replace_text(self.path, TEXT, 0o644)
        self.assertEqual((TEXT, 0o644), (self.content(), os.stat(self.path).st_mode & 0o777))

    def test_whoever_reads_the_old_file_goes_on_with_it(self) -> None:
        self.write('old')
        with open(self.path, encoding='utf-8') as reader:
            ownfiles.replace_text(self.path, TEXT, 0o644)
            self.assertEqual('old', reader.read())
        self.assertEqual(TEXT, self.content())

    def test_an_error_leaves_the_old_file_alone_and_no_other(self) -> None:
        self.write('old')

        def fail(*_arguments: object) -> None:
            names.extend(os.listdir(self.directory))
            raise OSError(5, 'Input/output error')

        names: list[str] = []
        self.patch(os, 'replace', fail)
        self.assertRaises(OSError, ownfiles.replace_text, self.path, TEXT, 0o644)
        self.assertEqual(('old', ['devicetrack.prom']), (self.content(), os.listdir(self.directory)))
        self.assertEqual(['devicetrack.prom'], [name for name in names if name.endswith('.prom')])
        self.assertEqual(2, len(names))

    def test_a_name_without_a_directory_is_here(self) -> None:
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.directory)
        ownfiles.replace_text('devicetrack.prom', TEXT, 0o644)
        self.assertEqual(TEXT, self.content())


class ReadTestCase(TextfileTestCase):

    def test_what_was_written(self) -> None:
        self.write(TEXT)
        self.assertEqual(TEXT, textfile.text_of(textfile.read(self.path) or ()))

    def test_no_file(self) -> None:
        self.assertIsNone(textfile.read(self.path))

    def test_a_link_is_not_followed(self) -> None:
        other = os.path.join(self.directory, 'secret')
        with open(other, 'w', encoding='utf-8') as file:
            file.write(TEXT)
        os.symlink(other, self.path)
        self.assertRaises(OSError, textfile.read, self.path)

    def test_a_pipe_does_not_block(self) -> None:
        os.mkfifo(self.path)
        self.assertRaises(OSError, textfile.read, self.path)

    def test_metrics_of_others_are_left_out(self) -> None:
        self.write(TEXT + '# TYPE up gauge\nup 1\n')
        self.assertEqual(TEXT, textfile.text_of(textfile.read(self.path) or ()))

    def test_what_is_no_metrics(self) -> None:
        self.write('root:x:0:0:root:/root:/bin/bash\n')
        self.assertRaises(ValueError, textfile.read, self.path)
