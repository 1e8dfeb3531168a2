"""Measurements beside their limits, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
import enum
from typing import Any
from typing import NamedTuple


class Verdict(enum.Enum):
    OK = 'ok'
    MISSED = 'MISSED'
    NONE = ''                               # a figure without a limit
    FAILED = 'not measured'


class Row(NamedTuple):
    """One measurement. If it could not be made, ``measured`` is None and ``note`` says why."""

    what: str
    measured: float | None
    unit: str = ''
    at_most: float | None = None
    at_least: float | None = None
    note: str = ''

    @property
    def verdict(self) -> Verdict:
        if self.measured is None:
            return Verdict.FAILED
        if self.at_most is None and self.at_least is None:
            return Verdict.NONE
        # Compare the printed figure: a figure that rounds to the limit has reached it.
        measured = round(self.measured, 2)
        reached = ((self.at_most is None or measured <= self.at_most)
                   and (self.at_least is None or measured >= self.at_least))
        return Verdict.OK if reached else Verdict.MISSED

    @property
    def to_reach(self) -> str:
        if self.at_most is not None:
            return f'≤ {_number(self.at_most, self.unit)}'
        if self.at_least is not None:
            return f'≥ {_number(self.at_least, self.unit)}'
        return ''

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), 'verdict': self.verdict.name.lower()}


class Table(NamedTuple):
    title: str
    rows: Sequence[Row]

    def as_text(self) -> str:
        cells = [('', 'measured', 'to reach', '', '')]
        cells += [(row.what, '–' if row.measured is None else _number(row.measured, row.unit), row.to_reach,
                   row.verdict.value, row.note) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [self.title, '=' * len(self.title)]
        for what, measured, to_reach, verdict, note in cells:
            line = (f'{what:<{widths[0]}}  {measured:>{widths[1]}}  {to_reach:>{widths[2]}}'
                    f'  {verdict:<{widths[3]}}  {note}')
            lines.append(line.rstrip())
        return '\n'.join(lines)

    def as_json(self) -> dict[str, Any]:
        return {'title': self.title, 'rows': [row.as_json() for row in self.rows]}


def _number(number: float, unit: str) -> str:
    digits = f'{number:,.0f}' if abs(number) >= 100 or unit == 'calls' else f'{number:.2f}'
    return f'{digits} {unit}' if unit else digits
