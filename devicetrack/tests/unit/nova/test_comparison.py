"""How a run of Nova's own tests with the adapter is judged by one without it."""

from __future__ import annotations

import pathlib

import fixtures
from stestr.repository import file as repositories
import testtools

from devicetrack.tests import base
from devicetrack.tests.nova import comparison
from devicetrack.tests.nova import results
from devicetrack.tests.nova import suites
from devicetrack.tests.nova.runs import Outcome

PASSED, SKIPPED = Outcome('passed', 1.0, ''), Outcome('skipped', 0.0, 'not here')
FAILED, LOST = Outcome('failed', 1.0, 'Traceback\nIt wanted stock words'), Outcome('lost', 0.0, 'it hung')
LISTED = (comparison.Difference('t', 'it asserts words', 'stock words', (34,)),)


class ComparisonTestCase(base.TestCase):
    scenarios = base.table(
        ('the same tests pass', {'t': PASSED}, {'t': PASSED}, (), None),
        ('a test that fails on stock proves nothing', {'t': FAILED, 'u': PASSED}, {'t': PASSED, 'u': PASSED}, (), None),
        ('one fails', {'t': PASSED}, {'t': FAILED}, (), 'failed with the adapter: Traceback'),
        ('one hangs', {'t': PASSED}, {'t': LOST}, (), 'lost with the adapter'),
        ('one hangs on stock', {'t': LOST, 'u': PASSED}, {'t': PASSED, 'u': PASSED}, (), 'lost on stock'),
        ('one is skipped', {'t': PASSED}, {'t': SKIPPED}, (), 'skipped with the adapter'),
        ('one is gone', {'t': PASSED, 'u': PASSED}, {'u': PASSED}, (), 'not with the adapter'),
        ('one is new', {'t': PASSED}, {'t': PASSED, 'u': PASSED}, (), 'not on stock'),
        ('a listed one fails as it should', {'t': PASSED}, {'t': FAILED}, LISTED, None),
        ('a listed one passes', {'t': PASSED}, {'t': PASSED}, LISTED, 'take it out of the list'),
        ('a listed one fails otherwise', {'t': PASSED}, {'t': Outcome('failed', 1.0, 'no')}, LISTED, 'another reason'),
        ('a listed one fails on stock', {'t': FAILED, 'u': PASSED}, {'t': FAILED, 'u': PASSED}, LISTED, 'on stock'),
        names=('stock', 'adapted', 'differences', 'problem'))

    def test_problems(self) -> None:
        found = comparison.problems(34, self.stock, self.adapted, self.differences)
        self.assertEqual(self.problem is not None, bool(found), str(found))
        self.assertIn(self.problem or '', str(found))


class ResultsTestCase(base.TestCase):

    def test_a_run_is_kept_where_the_summary_finds_it(self) -> None:
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path, 'kept')
        stock = {'listed': PASSED, 'skipped': SKIPPED, 'of_no_use': FAILED, 'bad': PASSED}
        adapted = stock | {'not run on stock': PASSED, 'listed': FAILED, 'bad': FAILED}
        problems = {'bad': 'it fails', 'gone': 'it did not run'}
        for _ in range(2):
            with results.Results(directory) as kept:
                for name, status in results.statuses(stock, adapted, problems).items():
                    kept.add(name, status, 'why')
        run = repositories.RepositoryFactory().open(str(directory)).get_latest_run()
        found = testtools.StreamSummary()
        found.startTestRun()
        run.get_test().run(found)
        found.stopTestRun()
        self.assertEqual((6, 2, 1, 2), (found.testsRun, len(found.errors), len(found.expectedFailures),
                                        len(found.skipped)))


class SuitesTestCase(base.TestCase):

    def test_each_is_named_once_and_some_are_fast(self) -> None:
        everything, fast = suites.names(34, True), suites.names(34, False)
        self.assertEqual(len(everything), len(set(everything)))
        self.assertEqual(set(), set(fast) - set(everything))
        self.assertNotEqual(fast, everything)
        self.assertIn('nova.tests.functional.libvirt.test_vpmem', fast)
        self.assertEqual(['nova.tests.functional.libvirt.test_evacuate'], suites.names(34, False, ['evacuate']))

    def test_a_release_has_no_suites_of_a_later_one(self) -> None:
        self.assertLess(set(suites.names(31, True)), set(suites.names(34, True)))

    def test_a_difference_of_another_release_is_none(self) -> None:
        self.assertTrue(comparison.problems(33, {'t': PASSED}, {'t': FAILED}, LISTED))
