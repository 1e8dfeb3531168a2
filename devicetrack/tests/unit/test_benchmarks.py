"""What the benchmarks make of what they measure. No test here looks at a clock."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import io
import json
import os
from unittest import mock

from benchmarks import __main__ as command
from benchmarks import claim
from benchmarks import compatibility
from benchmarks import fsyncs
from benchmarks import measure
from benchmarks import report
from benchmarks import store
from devicetrack.tests import base


def replay(*values: float) -> Callable[[], float]:
    """A subject that measures these, one a round."""
    return iter(values).__next__


class TestSideBySide(base.TestCase):
    def test_warm_up_does_not_count(self) -> None:
        samples = measure.side_by_side({'a': replay(99, 1, 2, 9)}, 3)
        self.assertEqual([1, 2, 9], samples.measured['a'])
        self.assertEqual(2, samples.median('a'))

    def test_order_turns_from_round_to_round(self) -> None:
        order: list[str] = []

        def subject(name: str) -> Callable[[], float]:
            def run() -> float:
                order.append(name)
                return 1.0

            return run

        measure.side_by_side({name: subject(name) for name in 'abc'}, 2)
        self.assertEqual('abcbcacab', ''.join(order))

    def test_ratio_is_of_the_same_round(self) -> None:
        # The machine was ten times slower in the second round and a hundred times in the third.
        samples = measure.side_by_side({'a': replay(2, 20, 200), 'b': replay(1, 10, 100)}, 3, warm_up=0)
        self.assertEqual(2, samples.ratio('a', to='b'))
        self.assertEqual(0.5, samples.ratio('b', to='a'))

    def test_one_bad_round_moves_no_ratio(self) -> None:
        samples = measure.side_by_side({'a': replay(2, 500, 2), 'b': replay(1, 1, 1)}, 3, warm_up=0)
        self.assertEqual(2, samples.ratio('a', to='b'))


class TestBetween(base.TestCase):
    def test_the_reference_comes_before_and_after_each_subject(self) -> None:
        order: list[str] = []

        def subject(name: str) -> Callable[[], float]:
            def run() -> float:
                order.append(name)
                return 1.0

            return run

        measure.between(subject('-'), {name: subject(name) for name in 'abc'}, 1)
        self.assertEqual('-a-b-c-b-c-a-', ''.join(order))

    def test_the_ratio_is_to_the_reference_around_it(self) -> None:
        # The machine slows down while each of them runs. The first round does not count.
        samples = measure.between(replay(9, 9, 9, 2, 4, 6, 20), {'a': replay(99, 6, 10), 'b': replay(99, 5, 5)}, 2)
        self.assertEqual(2, samples.ratio('a'))
        self.assertEqual(8, samples.median('a'))

    def test_one_bad_round_moves_no_ratio(self) -> None:
        samples = measure.between(lambda: 1.0, {'a': replay(9, 2, 500, 2)}, 3)
        self.assertEqual((2, 1), (samples.ratio('a'), samples.reference()))


class TestVerdict(base.TestCase):
    scenarios = base.table(
        ('below', 1.1, {'at_most': 1.2}, report.Verdict.OK),
        ('as printed at the limit', 1.204, {'at_most': 1.2}, report.Verdict.OK),
        ('above', 1.21, {'at_most': 1.2}, report.Verdict.MISSED),
        ('fast enough', 1.0, {'at_least': 1.0}, report.Verdict.OK),
        ('too slow', 0.98, {'at_least': 1.0}, report.Verdict.MISSED),
        ('nothing to reach', 5.0, {}, report.Verdict.NONE),
        ('not measured', None, {'at_most': 1.2}, report.Verdict.FAILED),
        names=('measured', 'limits', 'verdict'))

    def test_verdict(self) -> None:
        self.assertIs(self.verdict, report.Row('what', self.measured, **self.limits).verdict)


class TestTable(base.TestCase):
    TABLE = report.Table('Claims', [report.Row('one', 4.567, 'µs', at_most=8, note='of two'),
                                    report.Row('more', 12_345.0, at_least=1),
                                    report.Row('none', None, note='no server')])

    def test_text_has_what_was_measured_beside_what_is_to_be_reached(self) -> None:
        self.assertEqual([
            'Claims',
            '======',
            '      measured   to reach',
            'one    4.57 µs  ≤ 8.00 µs  ok            of two',
            'more    12,345     ≥ 1.00  ok',
            'none         –             not measured  no server',
        ], self.TABLE.as_text().splitlines())

    def test_json_has_the_same(self) -> None:
        rows = json.loads(json.dumps(self.TABLE.as_json()))['rows']
        self.assertEqual([('one', 4.567, 8, 'ok'), ('more', 12_345.0, None, 'ok'), ('none', None, None, 'failed')],
                         [(row['what'], row['measured'], row['at_most'], row['verdict']) for row in rows])


class TestCommand(base.TestCase):
    OK = report.Row('claim', 1.0, at_most=1)
    MISSED = report.Row('claim', 2.0, at_most=1)

    def run_with(self, *arguments: str, row: report.Row) -> int:
        with (mock.patch.object(claim, 'run', autospec=True, return_value=report.Table('Claims', [row])),
              contextlib.redirect_stdout(io.StringIO())):
            return command.main(['claim', *arguments])

    def test_a_miss_is_no_failure(self) -> None:
        self.assertEqual(0, self.run_with(row=self.MISSED))

    def test_a_miss_is_a_failure_when_strict(self) -> None:
        self.assertEqual(1, self.run_with('--strict', row=self.MISSED))
        self.assertEqual(0, self.run_with('--strict', row=self.OK))

    def test_what_cannot_be_measured_is_a_row_and_a_failure(self) -> None:
        printed = io.StringIO()
        with (mock.patch.object(claim, 'run', autospec=True, side_effect=OSError('no disk')),
              contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO())):
            self.assertEqual(1, command.main(['claim']))
        self.assertIn('OSError: no disk', printed.getvalue())

    def test_json_goes_to_a_file(self) -> None:
        path = os.path.join(self.temp_dir(), 'speeds.json')
        self.run_with('--json', path, row=self.OK)
        with open(path, encoding='utf-8') as file:
            self.assertEqual('ok', json.load(file)[0]['rows'][0]['verdict'])


class TestTiny(base.TestCase):
    """Subjects that take no time run through; the others do so among the functional tests."""

    scenarios = base.table(('claim', claim), ('compatibility', compatibility), names=('subject',))

    def test_runs(self) -> None:
        rows = self.subject.run(measure.TINY).rows
        self.assertEqual([], [row.what for row in rows if row.measured is None])


class TestFsyncs(base.TestCase):
    SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 97.12    0.103212         983       105           fdatasync
  2.88    0.003062        1020         3         1 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.106274         984       108         1 total
"""

    def test_every_call_counts_and_the_total_does_not(self) -> None:
        self.assertEqual(108, fsyncs.count(self.SUMMARY))

    def test_nothing_was_called(self) -> None:
        self.assertEqual(0, fsyncs.count(''))


class TestInThreads(base.TestCase):
    def test_every_item_is_done_once(self) -> None:
        done: list[int] = []
        store.in_threads(done.append, [[1, 2], [3], [4, 5]])
        self.assertEqual([1, 2, 3, 4, 5], sorted(done))

    def test_an_error_of_a_thread_is_not_lost(self) -> None:
        self.assertRaises(ZeroDivisionError, store.in_threads, (1).__truediv__, [[1], [0]])
