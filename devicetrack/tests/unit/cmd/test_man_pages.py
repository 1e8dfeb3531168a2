"""The man pages that the package installs say what the programs take."""

from __future__ import annotations

import configparser
import pathlib
import subprocess
import sys

from devicetrack.tests import base

_TREE = pathlib.Path(__file__).parents[4]
_PAGES = _TREE / 'share' / 'man' / 'man1'


class ManPagesTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.setup = configparser.ConfigParser()
        self.setup.read(_TREE / 'setup.cfg')

    def test_they_are_current(self) -> None:
        directory = pathlib.Path(self.temp_dir())
        subprocess.run([sys.executable, '-W', 'ignore', str(_TREE / 'tools' / 'man-pages'), str(directory)], check=True,
                       cwd=_TREE)
        made, there = ({path.name: path.read_text('utf-8') for path in where.iterdir()}
                       for where in (directory, _PAGES))
        self.assertEqual(made.keys(), there.keys())
        for name, text in made.items():
            self.assertEqual(text, there[name], f'python tools/man-pages writes {name} again')

    def test_every_program_has_one_and_all_are_installed(self) -> None:
        programs = {f'{line.split()[0]}.1' for line in
                    self.setup['options.entry_points']['console_scripts'].strip().splitlines()}
        self.assertEqual(programs, {path.name for path in _PAGES.iterdir()})
        files = self.setup['options.data_files']['share/man/man1'].split()
        self.assertEqual({f'share/man/man1/{page}' for page in programs}, set(files))
