"""A worker of stestr loads the modules of the tests that it is asked for, and no test is lost by that."""

from __future__ import annotations

import os
import sys
import unittest

from devicetrack import tests
from devicetrack.tests import base

SCENARIO = 'devicetrack.tests.unit.test_loading.ScenarioTestCase.test_it_is_found(with dots.and (brackets))'
HERE = 'devicetrack.tests.unit.test_loading.LoadingTestCase.test_the_modules_of_what_is_asked_for_and_no_other'


class ScenarioTestCase(base.TestCase):
    scenarios = base.table(('with dots.and (brackets)', True), names=('fact',))

    def test_it_is_found(self) -> None:
        self.assertTrue(self.fact)


class Loader(unittest.TestLoader):
    """Notes the folders that it is to look through, and finds nothing in them."""

    folders: list[str]

    def discover(self, start_dir: str, pattern: str = 'test*.py', top_level_dir: str | None = None,
                 ) -> unittest.TestSuite:
        self.folders.append(os.path.basename(start_dir))
        return unittest.TestSuite()


class LoadingTestCase(base.TestCase):

    def found(self, *arguments: str) -> tuple[set[str], list[str]]:
        """The tests that are found when a process has these arguments, and the folders that are looked through."""
        self.patch(sys, 'argv', ['run', 'discover', '-t', './', './devicetrack/tests', *arguments])
        loader = Loader()
        loader.folders = []
        return tests._ids(tests._find(loader, unittest.TestSuite(), None)), loader.folders

    def listed(self, *names: str) -> tuple[str, str]:
        path = os.path.join(self.temp_dir(), 'list')
        with open(path, 'w', encoding='utf-8') as file:
            file.write('\n'.join(names) + '\n')
        return '--load-list', path

    def test_the_modules_of_what_is_asked_for_and_no_other(self) -> None:
        names, folders = self.found(*self.listed(SCENARIO, HERE))
        self.assertLessEqual({SCENARIO, HERE}, names)
        self.assertEqual({__name__}, {name.partition('(')[0].rsplit('.', 2)[0] for name in names})
        self.assertEqual([], folders)

    def test_everything_when_a_test_is_not_where_its_name_says(self) -> None:
        for missing in (HERE + '_too', 'devicetrack.tests.unit.no_such_module.TestCase.test_it'):
            _names, folders = self.found(*self.listed(SCENARIO, missing))
            self.assertLessEqual({'unit', 'functional', 'drivers'}, set(folders))

    def test_everything_when_nobody_asks(self) -> None:
        _names, folders = self.found('--list')
        self.assertLessEqual({'unit', 'functional', 'drivers'}, set(folders))
        self.assertNotIn('integration_nova', folders)
