"""Every subject of the benchmarks can be measured, on real databases. No test here looks at a clock."""

from __future__ import annotations

from benchmarks import __main__ as command
from benchmarks import measure
from devicetrack.tests import base


class TestTiny(base.TestCase):
    scenarios = base.table(*[(subject, subject) for subject in command.SUBJECTS], names=('subject',))

    def test_every_row_is_measured(self) -> None:
        rows = command.measure(self.subject, measure.TINY).rows
        self.assertEqual([], [(row.what, row.note) for row in rows if row.measured is None])
