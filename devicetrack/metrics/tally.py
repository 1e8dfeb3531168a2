"""Counts what one host's manager did. No library for metrics is needed for that, and a claim pays a few microseconds.

A claim leaves a note of what it did, which is added up when somebody asks, or when there are many. prometheus_client's
own counters and histograms would add it up at once, with a lock for each of their parts: ten microseconds.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Callable
import itertools
import threading
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack.claims import metering
from devicetrack.claims.host_state import HostState
from devicetrack.claims.metering import Meter
from devicetrack.metrics import families
from devicetrack.metrics.families import Family
from devicetrack.metrics.reasons import reason_of
from devicetrack.metrics.reasons import REASONS

COMMITTED: Final = 'committed'
REFUSED: Final = 'refused'
UNANSWERED: Final = 'unanswered'
HAPPENED: Final = 'happened'
UNDONE: Final = 'undone'

_SECONDS: Final = {metering.REALIZE: families.REALIZE_SECONDS, metering.RELEASE: families.RELEASE_SECONDS}
_FAILURES: Final = {metering.REALIZE: families.REALIZE_FAILURES, metering.RELEASE: families.RELEASE_FAILURES}

# So many notes are added up at once: a fraction of a millisecond.
_AT_ONCE: Final = 256

Labels = tuple[str, ...]


class Observed(NamedTuple):
    """A histogram's or a summary's numbers.

    ``counts`` has for each bucket how many values lie in it and in no smaller one; the last is that above all bounds.
    """

    counts: tuple[int, ...]
    total: float


class Counted(NamedTuple):
    """The numbers at one moment, by family and the values of its labels."""

    counters: dict[tuple[Family, Labels], float]
    observed: dict[tuple[Family, Labels], Observed]


class Tally(Meter):
    """Counts. All that may be counted begins at 0, so that the first event is seen as an increase.

    :param on_audit: called with the state of the host after each audit
    """

    def __init__(self, on_audit: Callable[[HostState], None] = lambda state: None) -> None:
        self._on_audit = on_audit
        # Each step on it is one operation, which threads may share.
        self._told: collections.deque[tuple[Any, ...]] = collections.deque()
        self._lock = threading.Lock()           # of what follows
        self._counters: dict[tuple[str, Labels], float] = {}
        self._observed: dict[tuple[str, Labels], tuple[list[int], list[float]]] = {}
        for call in metering.CLAIMS:
            self._begin(families.CLAIMS, (call,))
            self._begin(families.CLAIM_SECONDS, (call,))
            for reason in REASONS:
                self._begin(families.REFUSALS, (call, reason))
        for family in (families.COMMIT_SECONDS, families.AUDIT_SECONDS, families.AUDIT_FAILURES, *_SECONDS.values()):
            self._begin(family, ())
        for family in _FAILURES.values():
            for reason in REASONS:
                self._begin(family, (reason,))
        for outcome in (COMMITTED, REFUSED, UNANSWERED):
            self._begin(families.COMMITS, (outcome,))
        for outcome in (HAPPENED, UNDONE):
            self._begin(families.SETTLED, (outcome,))

    def _begin(self, family: Family, labels: Labels) -> None:
        if family.type == families.COUNTER:
            self._counters.setdefault((family.name, labels), 0)
        else:
            self._observed.setdefault((family.name, labels), ([0] * (len(family.bounds) + 1), [0.]))

    def _add(self, family: Family, labels: Labels, amount: float = 1) -> None:
        key = family.name, labels
        self._counters[key] = self._counters.get(key, 0) + amount

    def _observe(self, family: Family, labels: Labels, seconds: float) -> None:
        key = family.name, labels
        if key not in self._observed:
            self._begin(family, labels)
        counts, total = self._observed[key]
        counts[bisect.bisect_left(family.bounds, seconds)] += 1
        total[0] += seconds

    # -- what it is told ----------------------------------------------------------------------------------------------

    def _note(self, event: tuple[Any, ...]) -> None:
        """Keep a method and its arguments for later. Who has told enough adds up what there is."""
        self._told.append(event)
        if len(self._told) >= _AT_ONCE:
            self._add_up()

    def called(self, call: str, seconds: float, error: BaseException | None) -> None:
        # The error itself would keep its traceback, and with it all of the caller's variables.
        self._note((self._called, call, seconds, None if error is None else reason_of(error)))

    def committed(self, seconds: float, error: BaseException | None) -> None:
        self._note((self._committed, seconds, COMMITTED if error is None else
                    REFUSED if isinstance(error, exception.NothingWritten) else UNANSWERED))

    def settled(self, happened: bool) -> None:
        self._note((self._add, families.SETTLED, (HAPPENED if happened else UNDONE,)))

    def wiped(self, kind: str, size_bytes: int | None, seconds: float) -> None:
        self._note((self._observe, families.WIPE_SECONDS, (kind,), seconds))
        self._note((self._add, families.WIPED_BYTES, (kind,), size_bytes or 0))

    def wipe_failed(self, kind: str) -> None:
        self._note((self._add, families.WIPE_FAILURES, (kind,)))

    def audited(self, seconds: float, state: HostState | None) -> None:
        self._note((self._observe, families.AUDIT_SECONDS, (), seconds))
        if state is None:
            self._note((self._add, families.AUDIT_FAILURES, ()))
            return
        for kind in {pool.kind for pool in state.pools or ()}:
            for family in (families.WIPED_BYTES, families.WIPE_FAILURES, families.WIPE_SECONDS):
                self._note((self._begin, family, (kind,)))
        self._on_audit(state)

    # -- adding up, with the lock -------------------------------------------------------------------------------------

    def _add_up(self) -> None:
        with self._lock:
            while True:
                try:
                    add, *facts = self._told.popleft()
                except IndexError:
                    return
                add(*facts)

    def _called(self, call: str, seconds: float, reason: str | None) -> None:
        if call in metering.CLAIMS:
            self._observe(families.CLAIM_SECONDS, (call,), seconds)
            if reason is None:
                self._add(families.CLAIMS, (call,))
            else:
                self._add(families.REFUSALS, (call, reason))
        else:
            self._observe(_SECONDS[call], (), seconds)
            if reason is not None:
                self._add(_FAILURES[call], (reason,))

    def _committed(self, seconds: float, outcome: str) -> None:
        self._observe(families.COMMIT_SECONDS, (), seconds)
        self._add(families.COMMITS, (outcome,))

    # -- what it says -------------------------------------------------------------------------------------------------

    def counted(self) -> Counted:
        """The numbers up to now."""
        by_name = {family.name: family for family in families.FAMILIES}
        self._add_up()
        with self._lock:
            counters = list(self._counters.items())
            observed = [(key, tuple(counts), total[0]) for key, (counts, total) in self._observed.items()]
        return Counted({(by_name[name], labels): number for (name, labels), number in counters},
                       {(by_name[name], labels): Observed(counts, total)
                        for (name, labels), counts, total in observed})


def cumulated(family: Family, observed: Observed) -> list[tuple[str, float]]:
    """A histogram's buckets as Prometheus has them: each with its upper bound, and all smaller ones in it."""
    bounds = [*(f'{bound:g}' if bound % 1 else f'{bound:.1f}' for bound in family.bounds), '+Inf']
    return list(zip(bounds, map(float, itertools.accumulate(observed.counts)), strict=True))
