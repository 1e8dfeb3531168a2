"""Compares what became of tests of stock Nova with what became of them with the adapter. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from devicetrack.tests.nova import runs
from devicetrack.tests.nova.runs import Outcome


class Difference(NamedTuple):
    """A test that fails with the adapter, as it should.

    :param test: its name
    :param why: what of stock Nova it asserts
    :param says: what its failure has to say
    :param releases: those that have it
    """

    test: str
    why: str
    says: str
    releases: Sequence[int]


def problems(release: int, stock: Mapping[str, Outcome], adapted: Mapping[str, Outcome],
             differences: Sequence[Difference]) -> dict[str, str]:
    """Say what is not as it should be, by test; nothing if every test that stock Nova passes passes with the adapter.

    Tests that fail on stock Nova too prove nothing. They are no problem, and no success either.
    """
    found = dict.fromkeys(sorted(stock.keys() - adapted), 'it ran on stock Nova, and not with the adapter')
    found |= dict.fromkeys(sorted(adapted.keys() - stock), 'it ran with the adapter, and not on stock Nova')
    known = {difference.test: difference for difference in differences if release in difference.releases}
    for name in sorted(stock.keys() & adapted):
        was, now = stock[name], adapted[name]
        if was.outcome == runs.LOST:
            found[name] = f'it was lost on stock Nova: {ending(was.details)}'
        elif name in known:
            if problem := _of_known(known[name], was, now):
                found[name] = problem
        elif was.outcome == runs.SKIPPED != now.outcome or was.outcome == runs.PASSED != now.outcome:
            found[name] = f'{was.outcome} on stock Nova, {now.outcome} with the adapter: {ending(now.details)}'
    return found


def _of_known(difference: Difference, was: Outcome, now: Outcome) -> str:
    if was.outcome != runs.PASSED:
        return f'it is listed, and {was.outcome} on stock Nova too'
    if now.outcome == runs.PASSED:
        return 'it is listed, and passes with the adapter: take it out of the list'
    if now.outcome != runs.FAILED or difference.says not in now.details:
        return f'it is listed, and {now.outcome} for another reason than {difference.says!r}: {ending(now.details)}'
    return ''


def ending(details: str) -> str:
    """The last lines of what a test left."""
    lines = [line for line in details.splitlines() if line.strip()]
    return '\n    '.join(line[:400] for line in lines[-8:])
