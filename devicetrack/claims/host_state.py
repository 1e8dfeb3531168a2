"""The state of a host in numbers, for metrics: how many devices are in which state, and what the last audit found."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

from devicetrack.engine.findings import Finding
from devicetrack.engine.states import PoolState
from devicetrack.objects.values import WipeProgress


class Audited(NamedTuple):
    """The result of an audit in numbers.

    ``at`` is the time when it ended, in seconds since 1970 (UTC), or None if nobody knows the time of the manager's
    last audit. ``findings`` counts findings by kind and severity. ``withheld`` counts devices by each of their reasons;
    None if nobody counted them.
    """

    at: float | None
    findings: Mapping[tuple[str, str], int]
    withheld: Mapping[str, int] | None

    @classmethod
    def of(cls, at: float | None, findings: Iterable[Finding], reasons: Iterable[Iterable[str]] | None) -> Audited:
        """Count findings, and the reasons of devices."""
        return cls(at, collections.Counter((finding.kind, finding.severity) for finding in findings),
                   None if reasons is None else
                   collections.Counter(reason for of_device in reasons for reason in of_device))


class Wiping(NamedTuple):
    """The devices that had an owner and are being wiped.

    ``progress`` has an entry for each device that a thread wipes, or None if its progress is unknown. ``waiting``
    counts the devices that wait for a thread.
    """

    progress: Sequence[WipeProgress | None]
    waiting: int


class HostState(NamedTuple):
    """One host at one moment. An unknown value is None, and never 0.

    ``pools`` is None after an interrupt, until the next claim or audit has started the host anew. ``audited`` is None
    until the audit of the start has ended. ``takes_claims``, ``in_doubt`` (commits whose outcome is unknown) and
    ``wiping`` are in the memory of a manager, so a report lacks them.
    """

    host: str
    pools: Sequence[PoolState] | None
    audited: Audited | None
    takes_claims: bool | None = None
    in_doubt: int | None = None
    wiping: Wiping | None = None
