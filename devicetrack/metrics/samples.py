"""Turns the numbers of hosts into the samples of prometheus_client."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from prometheus_client import Metric

from devicetrack import vocabulary
from devicetrack.claims.metering import HostState
from devicetrack.engine import findings
from devicetrack.metrics import families
from devicetrack.metrics.families import Family
from devicetrack.metrics.tally import Labels
from devicetrack.metrics.tally import Observed
from devicetrack.metrics.tally import Tally

# By family, the values of its labels and its number.
_Measured = dict[Family, list[tuple[Labels, float]]]


class Numbers(NamedTuple):
    """What is known of one host. ``tally`` is None for whom nobody counts, ``state`` while nobody knows it."""

    host: str
    tally: Tally | None
    state: HostState | None


def metrics_of(hosts: Iterable[Numbers]) -> Iterator[Metric]:
    """Make a metric of every family that any of the hosts has a number for."""
    counted = [(one.host, {} if one.tally is None else one.tally.counted(), _gauges(one)) for one in hosts]
    for family in families.FAMILIES:
        metric = Metric(family.name, family.help, family.type)
        for host, tallied, gauges in counted:
            for values, number in (*tallied.get(family, {}).items(), *gauges.get(family, ())):
                labels = {families.HOST: host, **dict(zip(family.labels, values, strict=True))}
                if not isinstance(number, Observed):
                    metric.add_sample(family.shown, labels, number)
                    continue
                for bound, count in number.buckets(family) if family.bounds else ():
                    metric.add_sample(f'{family.name}_bucket', {**labels, 'le': bound}, count)
                metric.add_sample(f'{family.name}_count', labels, sum(number.counts))
                metric.add_sample(f'{family.name}_sum', labels, number.total)
        if metric.samples:
            yield metric


def _gauges(numbers: Numbers) -> _Measured:
    found: _Measured = collections.defaultdict(list)
    if numbers.tally is not None:
        found[families.MANAGER].append(((metadata.version('devicetrack'),), 1))
    state = numbers.state
    if state is None:
        return found
    if state.takes_claims is not None:
        found[families.TAKES_CLAIMS].append(((), int(state.takes_claims)))
    if state.in_doubt is not None:
        found[families.IN_DOUBT].append(((), state.in_doubt))
    _add_devices(found, state)
    _add_audit(found, state)
    if state.wiping is not None:
        found[families.WIPES_RUNNING].append(((), len(state.wiping.progress)))
        found[families.WIPES_WAITING].append(((), state.wiping.waiting))
        # The progress of an operator's program is a percentage.
        found[families.WIPE_RATE].append(((), sum(one.bytes_per_s for one in state.wiping.progress
                                                  if one is not None and one.phase != 'program')))
    return found


def _add_devices(found: _Measured, state: HostState) -> None:
    devices, available = collections.Counter[Labels](), collections.Counter[Labels]()
    for pool in state.pools or ():
        of_pool = pool.kind, pool.resource_class, pool.parent or ''
        available[of_pool] += max(pool.room, 0)
        withheld = pool.total - pool.free - pool.held - pool.releasing
        for name, number in (('free', pool.free), ('held', pool.held), ('releasing', pool.releasing),
                             ('withheld', withheld)):
            devices[*of_pool, name] += number
    found[families.DEVICES] += devices.items()
    found[families.AVAILABLE] += available.items()


def _add_audit(found: _Measured, state: HostState) -> None:
    audited = state.audited
    if audited is None:
        return
    if audited.at is not None:
        found[families.LAST_AUDIT].append(((), audited.at))
    found[families.FINDINGS] += [((kind, severity), audited.findings.get((kind, severity), 0))
                                 for kind in findings.KINDS for severity in vocabulary.SEVERITIES]
    if audited.withheld is not None:
        found[families.WITHHELD] += [((reason,), audited.withheld.get(reason, 0))
                                     for reason in sorted({*vocabulary.WITHHELD_REASONS, *audited.withheld})]
