"""Counts what one host's manager did. No library for metrics is needed for that.

prometheus_client's own counters and histograms would have a lock for each of their parts, and a mode of several
processes, in which they write files. One lock for all numbers is quicker, and leaves that mode to others.
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
from devicetrack.claims.metering import HostState
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

# The resource classes that the host has no devices of.
OTHER: Final = 'other'
# The errors of claims that lack devices.
_SHORT: Final = (exception.NoFit(()), exception.UnknownProvider('', (), ()))

_SECONDS: Final = {**dict.fromkeys(metering.CLAIMS, families.CLAIM_SECONDS),
                   metering.REALIZE: families.REALIZE_SECONDS, metering.RELEASE: families.RELEASE_SECONDS}
_FAILURES: Final = {**dict.fromkeys(metering.CLAIMS, families.REFUSALS),
                    metering.REALIZE: families.REALIZE_FAILURES, metering.RELEASE: families.RELEASE_FAILURES}

Labels = tuple[str, ...]


class Observed(NamedTuple):
    """A histogram's or a summary's numbers.

    ``counts`` has for each bucket how many values lie in it and in no smaller one; the last is that above all bounds.
    """

    counts: tuple[int, ...]
    total: float

    def with_one(self, place: int, value: float) -> Observed:
        """The numbers with one more value, in this bucket."""
        before, counted, after = self.counts[:place], self.counts[place], self.counts[place + 1:]
        return Observed((*before, counted + 1, *after), self.total + value)

    def buckets(self, family: Family) -> list[tuple[str, float]]:
        """A histogram's buckets as Prometheus has them: each with its upper bound, and all smaller ones in it."""
        bounds = [*(f'{bound:g}' if bound % 1 else f'{bound:.1f}' for bound in family.bounds), '+Inf']
        return list(zip(bounds, map(float, itertools.accumulate(self.counts)), strict=True))


def _short(error: BaseException) -> set[str]:
    """Return the resource classes of which a claim lacked devices."""
    if isinstance(error, exception.UnknownProvider):
        return set(error.resource_classes)
    return {shortage.resource_class for shortage in error.shortages} if isinstance(error, exception.NoFit) else set()


class Tally(Meter):
    """Counts. All that may be counted begins at 0, so that the first event is seen as an increase.

    :param on_audit: called with the state of the host after each audit
    """

    def __init__(self, on_audit: Callable[[HostState], None] = lambda state: None) -> None:
        self._on_audit = on_audit
        # Of what follows. A signal handler may claim in the middle of a call of the same thread: then one of them may
        # not be counted, and neither waits.
        self._lock = threading.RLock()
        self._numbers: dict[Family, dict[Labels, Any]] = collections.defaultdict(dict)
        for call in metering.CALLS:
            of_call = (call,) if call in metering.CLAIMS else ()
            self._observe(_SECONDS[call], of_call, None)
            for reason in REASONS:
                self._add(_FAILURES[call], (*of_call, reason), 0)
            if of_call:
                self._add(families.CLAIMS, of_call, 0)
        for family in (families.COMMIT_SECONDS, families.AUDIT_SECONDS):
            self._observe(family, (), None)
        self._add(families.AUDIT_FAILURES, (), 0)
        for outcome in (COMMITTED, REFUSED, UNANSWERED):
            self._add(families.COMMITS, (outcome,), 0)
        for outcome in (HAPPENED, UNDONE):
            self._add(families.SETTLED, (outcome,), 0)

    def _add(self, family: Family, labels: Labels, amount: float = 1) -> None:
        with self._lock:
            numbers = self._numbers[family]
            numbers[labels] = numbers.get(labels, 0) + amount

    def _observe(self, family: Family, labels: Labels, seconds: float | None) -> None:
        """:param seconds: None begins at 0"""
        with self._lock:
            numbers = self._numbers[family]
            before: Observed = numbers.get(labels) or Observed((0,) * (len(family.bounds) + 1), 0.)
            numbers[labels] = before if seconds is None else before.with_one(
                bisect.bisect_left(family.bounds, seconds), seconds)

    # -- what it is told ----------------------------------------------------------------------------------------------

    def called(self, call: str, seconds: float, error: BaseException | None) -> None:
        of_call = (call,) if call in metering.CLAIMS else ()
        self._observe(_SECONDS[call], of_call, seconds)
        if error is not None:
            self._add(_FAILURES[call], (*of_call, reason_of(error)))
            for resource_class in _short(error) if of_call else ():
                labels = resource_class, reason_of(error)
                # Whatever a request asks for, the host has only so many classes.
                self._add(families.SHORTAGES, labels if labels in self._numbers[families.SHORTAGES]
                          else (OTHER, labels[1]))
        elif of_call:
            self._add(families.CLAIMS, of_call)

    def committed(self, seconds: float, error: BaseException | None) -> None:
        self._observe(families.COMMIT_SECONDS, (), seconds)
        self._add(families.COMMITS, (COMMITTED if error is None else REFUSED if isinstance(
            error, exception.NothingWritten) else UNANSWERED,))

    def settled(self, happened: bool) -> None:
        self._add(families.SETTLED, (HAPPENED if happened else UNDONE,))

    def wiped(self, kind: str, size_bytes: int | None, seconds: float) -> None:
        self._observe(families.WIPE_SECONDS, (kind,), seconds)
        self._add(families.WIPED_BYTES, (kind,), size_bytes or 0)

    def wipe_failed(self, kind: str) -> None:
        self._add(families.WIPE_FAILURES, (kind,))

    def audited(self, seconds: float, state: HostState | None) -> None:
        self._observe(families.AUDIT_SECONDS, (), seconds)
        if state is None:
            self._add(families.AUDIT_FAILURES, ())
            return
        for resource_class in {OTHER, *(pool.resource_class for pool in state.pools or ())}:
            for reason in map(reason_of, _SHORT):
                self._add(families.SHORTAGES, (resource_class, reason), 0)
        for kind in {pool.kind for pool in state.pools or ()}:
            self._observe(families.WIPE_SECONDS, (kind,), None)
            for family in (families.WIPED_BYTES, families.WIPE_FAILURES):
                self._add(family, (kind,), 0)
        self._on_audit(state)

    # -- what it says -------------------------------------------------------------------------------------------------

    def counted(self) -> dict[Family, dict[Labels, Any]]:
        """The numbers up to now by the values of their labels: floats, or an :class:`Observed` for times."""
        with self._lock:
            return {family: dict(numbers) for family, numbers in tuple(self._numbers.items())}
