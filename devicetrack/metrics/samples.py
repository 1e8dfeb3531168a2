"""Turns the numbers of hosts into the samples of prometheus_client."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from prometheus_client import core
from prometheus_client import Metric

from devicetrack import vocabulary
from devicetrack.claims.metering import HostState
from devicetrack.engine import findings
from devicetrack.metrics import families
from devicetrack.metrics.families import Family
from devicetrack.metrics.tally import Labels
from devicetrack.metrics.tally import Tally

# By family, the values of its labels and its number.
_Gauges = dict[Family, list[tuple[Labels, float]]]


class Numbers(NamedTuple):
    """What is known of one host. ``tally`` is None for whom nobody counts, ``state`` while nobody knows it."""

    host: str
    tally: Tally | None
    state: HostState | None


def metrics_of(hosts: Iterable[Numbers]) -> Iterator[Metric]:
    """Make a metric of every family that any of the hosts has a number for."""
    hosts = list(hosts)
    gauges = [(one.host, _gauges(one)) for one in hosts]
    for family in families.FAMILIES:
        metric = _observed(family, hosts) if family.bounds or family.type == families.SUMMARY else \
            _counted(family, hosts) if family.type == families.COUNTER else _measured(family, gauges)
        if metric.samples:
            yield metric


def _labels(family: Family) -> list[str]:
    return [families.HOST, *family.labels]


def _counted(family: Family, hosts: Iterable[Numbers]) -> Metric:
    metric = core.CounterMetricFamily(family.name, family.help, labels=_labels(family))
    for host, tally, _state in hosts:
        for labels, number in tally.counters(family).items() if tally is not None else ():
            metric.add_metric([host, *labels], number)
    return metric


def _observed(family: Family, hosts: Iterable[Numbers]) -> Metric:
    histogram = core.HistogramMetricFamily(family.name, family.help, labels=_labels(family))
    summary = core.SummaryMetricFamily(family.name, family.help, labels=_labels(family))
    for host, tally, _state in hosts:
        for labels, observed in tally.observed(family).items() if tally is not None else ():
            if family.bounds:
                histogram.add_metric([host, *labels], observed.buckets(family), observed.total)
            else:
                summary.add_metric([host, *labels], sum(observed.counts), observed.total)
    return histogram if family.bounds else summary


def _measured(family: Family, gauges: Iterable[tuple[str, _Gauges]]) -> Metric:
    if family.type == families.INFO:
        info = core.InfoMetricFamily(family.name, family.help, labels=[families.HOST])
        for host, measured in gauges:
            for labels, _number in measured.get(family, ()):
                info.add_metric([host], dict(zip(family.labels, labels, strict=True)))
        return info
    gauge = core.GaugeMetricFamily(family.name, family.help, labels=_labels(family))
    for host, measured in gauges:
        for labels, number in measured.get(family, ()):
            gauge.add_metric([host, *labels], number)
    return gauge


def _gauges(numbers: Numbers) -> _Gauges:
    found: _Gauges = collections.defaultdict(list)
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


def _add_devices(found: _Gauges, state: HostState) -> None:
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


def _add_audit(found: _Gauges, state: HostState) -> None:
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
