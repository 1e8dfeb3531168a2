"""What is kept of tests that ran on hosts, as the summary of all tests counts it."""

from __future__ import annotations

import io
import pathlib
import subprocess
import sys
import unittest

import subunit
import testtools
from testtools import content

from devicetrack.tests import base
from devicetrack.tests.host import image as images
from devicetrack.tests.host import results

GOOD, BAD, SCENARIO, NEVER = 'm.C.test_good', 'm.C.test_bad', 'm.C.test_of_many', 'm.C.test_never'


class Sample(unittest.TestCase):

    def succeed(self) -> None:
        pass

    def fail_so(self) -> None:
        self.fail('the reason')


class Measuring(testtools.TestCase):

    def measure(self) -> None:
        self.addDetail(results.TABLE, content.text_content('   * - it takes\n     - 2.0\n'))


def stream(*tests: tuple[str, str]) -> bytes:
    """The subunit of tests that ended so."""
    out = io.BytesIO()
    result = subunit.StreamResultToBytes(out)
    for name, status in tests:
        result.status(name, 'inprogress')
        if status != 'inprogress':
            result.status(name, status)
    return out.getvalue()


class ResultsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.directory = pathlib.Path(self.temp_dir(), 'results')
        self.said: list[str] = []
        self.results = results.Results(self.directory, self.said.append)

    def summary(self) -> str:
        program = images.PROJECT / 'tools' / 'test-summary'
        answer = subprocess.run([sys.executable, program, self.directory], check=True, capture_output=True, text=True)
        self.above, _newline, last = answer.stdout.strip().rpartition('\n')
        return last

    def test_two_releases_and_tests_outside_are_one_run(self) -> None:
        with self.results:
            well = [self.results.add(12, stream((GOOD, 'success')), [GOOD], ''),
                    self.results.add(13, stream((GOOD, 'success'), (BAD, 'fail')), [GOOD, BAD], '')]
            unittest.TestSuite([Sample('succeed'), Sample('fail_so')]).run(self.results.collector(13))
        self.assertEqual([True, False], well)
        self.assertEqual((3, 2, '3 passed, 2 failed'), (self.results.passed, self.results.failed, self.summary()))
        said = '\n'.join(self.said)
        self.assertIn(f'{GOOD}(debian12)', said)
        for place in (said, self.above):
            self.assertIn('fail_so', place)
            self.assertIn('the reason', place)
        self.assertNotIn(GOOD, self.above)

    def test_a_test_that_never_ran_has_failed(self) -> None:
        with self.results:
            well = self.results.add(12, stream((f'{SCENARIO}(one)', 'success'), (f'{SCENARIO}(two)', 'success')),
                                    [SCENARIO, NEVER], 'the host went down')
        self.assertFalse(well)
        self.assertEqual('2 passed, 1 failed', self.summary())
        self.assertIn('the host went down', '\n'.join(self.said))

    def test_a_test_that_never_ended_has_failed(self) -> None:
        with self.results:
            well = self.results.add(12, stream((GOOD, 'success'), (BAD, 'inprogress')), [GOOD, BAD], 'ended early')
        self.assertFalse(well)
        self.assertIn('ended early', '\n'.join(self.said))
        self.assertEqual((1, 1, '1 passed, 1 failed'), (self.results.passed, self.results.failed, self.summary()))

    def test_rows_of_tables_are_printed_and_kept_for_one_run(self) -> None:
        for _run in range(2):
            with results.Results(self.directory, self.said.append) as one:
                unittest.TestSuite([Measuring('measure')]).run(one.collector(13))
            self.assertIn('   * - it takes\n     - 2.0', self.said)
            self.assertEqual('.. devicetrack.tests.unit.host.test_results.Measuring.measure(debian13)\n\n'
                             '   * - it takes\n     - 2.0\n\n', (self.directory / 'tables.rst').read_text())

    def test_the_last_run_is_the_one_that_counts(self) -> None:
        for status in ('fail', 'success'):
            with results.Results(self.directory, self.said.append) as one:
                one.add(12, stream((GOOD, status)), [GOOD], '')
        self.assertEqual('1 passed, 0 failed', self.summary())
