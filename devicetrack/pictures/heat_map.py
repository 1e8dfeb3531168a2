"""The content of a heat map of live migrations: the types that hosts declare, and the hosts that guests could go to."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from devicetrack.compatibility import matrix
from devicetrack.compatibility.facts import Facts
from devicetrack.compatibility.matrix import Outlook
from devicetrack.pictures import natural

# The answers, in the order of legends.
ANSWERS: Final = (matrix.YES, matrix.NOTED, matrix.NO, matrix.UNKNOWN)


class NumberedReason(NamedTuple):
    """The reason for the answer of some fields. ``number`` counts from 1; ``at`` has the types and hosts of these."""

    number: int
    answer: str
    text: str
    at: tuple[tuple[str, tuple[str, ...]], ...]


class Cell(NamedTuple):
    """One field. ``number`` is the number of its reason, None for a plain yes."""

    host: str
    answer: str
    number: int | None
    text: str


class HeatRow(NamedTuple):
    """Devices with the same facts, wherever they are.

    ``cells`` has one cell for each destination, and None where the destination is the only host with these facts.
    """

    title: str
    sources: tuple[str, ...]
    cells: tuple[tuple[str, Cell | None], ...]


class HeatMap(NamedTuple):
    """The whole map. ``silent`` are hosts that declare nothing: all their fields are unknown."""

    hosts: tuple[str, ...]
    rows: tuple[HeatRow, ...]
    reasons: tuple[NumberedReason, ...]
    silent: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Count the fields by answer, without answers that no field has."""
        cells = [cell for row in self.rows for _host, cell in row.cells if cell is not None]
        counts = {answer: sum(cell.answer == answer for cell in cells) for answer in ANSWERS}
        return {answer: count for answer, count in counts.items() if count}


def of(rows: Iterable[matrix.MatrixRow], hosts: Sequence[str], silent: Iterable[str] = ()) -> HeatMap:
    """Make the map of the decisions of :func:`devicetrack.compatibility.matrix.rows`.

    The answer for a device depends on its facts and not on its host, so hosts that declare the same facts share a row.
    """
    sources: dict[Facts, list[str]] = {}
    outlooks: dict[Facts, dict[str, Outlook]] = {}
    for row in rows:
        sources.setdefault(row.facts, []).extend(row.hosts)
        outlooks.setdefault(row.facts, {}).update(
            (name, outlook) for names, outlook in row.outlooks for name in names)
    order = sorted(hosts, key=natural.key)
    numbers: dict[tuple[str, str], int] = {}
    where: dict[int, dict[str, list[str]]] = {}
    drawn = []
    for facts in sorted(sources, key=lambda facts: (
            facts.sort.kind, natural.key(facts.sort.type), natural.key(facts.version))):
        title = f'{facts.sort}, {facts.version}'
        cells: list[tuple[str, Cell | None]] = []
        for host in order:
            one = outlooks[facts].get(host)
            cells.append((host, None if one is None else _cell(host, one, title, numbers, where)))
        drawn.append(HeatRow(title, tuple(sorted(sources[facts], key=natural.key)), tuple(cells)))
    reasons = tuple(
        NumberedReason(number, answer, text, tuple((title, tuple(there)) for title, there in where[number].items()))
        for (answer, text), number in numbers.items())
    return HeatMap(tuple(order), tuple(drawn), reasons, tuple(sorted(silent, key=natural.key)))


def _cell(host: str, one: Outlook, title: str, numbers: dict[tuple[str, str], int],
          where: dict[int, dict[str, list[str]]]) -> Cell:
    answer, text = one.answer, one.reasons or one.notes
    if not text:
        return Cell(host, answer, None, '')
    number = numbers.setdefault((answer, text), len(numbers) + 1)
    where.setdefault(number, {}).setdefault(title, []).append(host)
    return Cell(host, answer, number, text)
