"""Which tests of hosts are part of a run, by what the machines here can be."""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

from devicetrack.tests import base
from devicetrack.tests.host import __main__ as program
from devicetrack.tests.host import machine
from devicetrack.tests.host import suites


class Anywhere:
    """A test as a loader finds it, which nobody runs."""

    def __init__(self, name: str) -> None:
        self._testMethodName = name

    def id(self) -> str:
        return f'{type(self).__name__}.{self._testMethodName}'

    def test_one(self) -> None:
        raise AssertionError

    def test_two(self) -> None:
        raise AssertionError


class WithCard(Anywhere):
    EMULATED = ('igb', 'nvme')


class OfOneRelease(Anywhere):

    def test_two(self) -> None:
        raise AssertionError

    test_two.RELEASES = (13,)           # type: ignore[attr-defined]


class PossibleTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.known = {'nvme'}
        self.patch(machine, 'emulates', lambda device: device in self.known)
        self.patch(machine, 'qemu_version', lambda: 'QEMU emulator version 7.2')
        self.said: list[str] = []

    def possible(self, release: int) -> list[str]:
        tests: Any = [Anywhere('test_one'), WithCard('test_one'), OfOneRelease('test_one'), OfOneRelease('test_two')]
        return [test.id() for test in suites.possible(tests, release, self.said.append)]

    def test_all_that_can_be(self) -> None:
        self.known.add('igb')
        self.assertEqual(['Anywhere.test_one', 'WithCard.test_one', 'OfOneRelease.test_one', 'OfOneRelease.test_two'],
                         self.possible(13))
        self.assertEqual([], self.said)

    def test_those_of_a_device_that_nobody_emulates_are_named_with_the_reason(self) -> None:
        self.assertNotIn('WithCard.test_one', self.possible(13))
        self.assertEqual(['not part of this run, for it needs a QEMU that emulates igb (QEMU emulator version 7.2 does '
                          'not): 1 of the tests', '    WithCard.test_one(debian13)'], self.said)

    def test_those_of_another_release_are_named_with_it(self) -> None:
        self.known.add('igb')
        self.assertEqual(['Anywhere.test_one', 'WithCard.test_one', 'OfOneRelease.test_one'], self.possible(12))
        self.assertEqual(['not part of this run, for it needs hosts of Debian 13: 1 of the tests',
                          '    OfOneRelease.test_two(debian12)'], self.said)


class SelectionTestCase(base.TestCase):

    NOT_CI = pathlib.Path(suites.__file__).parent / 'not_ci.txt'
    PACKAGES = (suites.INSIDE, suites.SCENARIOS, suites.FUNCTIONS)

    def names(self, selection: suites.Selection) -> list[str]:
        return [test.id() for package in self.PACKAGES for test in suites.find(package, selection)]

    def test_all_by_default(self) -> None:
        self.assertIn(f'{suites.SCENARIOS}.test_migration.MigrationTestCase.test_there_and_back',
                      self.names(suites.Selection()))

    def test_a_pattern_is_found_anywhere_and_what_is_excluded_is_left_out(self) -> None:
        self.assertEqual([f'{suites.SCENARIOS}.test_migration.MigrationTestCase.test_there_and_back'],
                         self.names(suites.Selection(r'\.test_migration', ('refuses', 'of_something_else'))))

    def test_every_line_of_the_list_leaves_tests_out_and_none_a_whole_package(self) -> None:
        excluded = program.patterns(str(self.NOT_CI))
        self.assertTrue(excluded)
        names = self.names(suites.Selection())
        for line in excluded:
            self.assertLess(len(self.names(suites.Selection(excluded=(line,)))), len(names), line)
        for package in self.PACKAGES:
            self.assertTrue(suites.find(package, suites.Selection(excluded=excluded)), package)

    def test_a_list_that_cannot_be_used_is_an_error_that_names_it(self) -> None:
        missing = f'{self.temp_dir()}/missing'
        error = self.assertRaises(argparse.ArgumentTypeError, program.patterns, missing)
        self.assertEqual(f'cannot read {missing}: No such file or directory', str(error))
        wrong = pathlib.Path(self.temp_dir(), 'wrong')
        wrong.write_text('# a comment\n\n(\n')
        error = self.assertRaises(argparse.ArgumentTypeError, program.patterns, str(wrong))
        self.assertIn("'(' is no regular expression", str(error))


class EmulatesTestCase(base.TestCase):

    def test_a_device_is_one_that_qemu_lists(self) -> None:
        """The list names it between quotation marks, so that igb is not igbvf."""
        listed = b'name "igbvf", bus PCI\nname "nvme", bus PCI, desc "Non-Volatile Memory Express"\n'
        self.patch(machine, 'listed_devices', lambda: listed)
        self.assertEqual((True, False), (machine.emulates('nvme'), machine.emulates('igb')))
