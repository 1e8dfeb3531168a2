"""Compares claims with and without metrics: the same claims on the same host, in turn.

One row has the share of counting in a durable claim, as services make it. The other has what counting adds to a claim
whose commit does not wait for the disk: that wait would hide it.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import statistics
import time

import prometheus_client

from benchmarks.host import Host
from benchmarks.measure import Effort
from benchmarks.measure import Samples
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from benchmarks.store import in_threads
from devicetrack import metrics
from devicetrack.claims.metering import Meter
from devicetrack.testing import databases

COUNTED, PLAIN, SCRAPE = 'counted', 'plain', 'scrape'
MICROSECONDS, MILLISECONDS = 1e6, 1e3


def run(effort: Effort) -> Table:
    with contextlib.ExitStack() as stack:
        measured: dict[bool, Samples] = {}
        for durable, rounds in ((effort.durable, effort.commit_rounds), (False, effort.rounds)):
            database = stack.enter_context(databases.SQLiteStore(durable=durable))
            host = stack.enter_context(Host(database.store, database.conf, effort.rows))
            registry = prometheus_client.CollectorRegistry()
            stack.callback(metrics.register(host.manager, registry).unregister)
            meter = host.manager.metering.meter
            measured[durable] = side_by_side({COUNTED: _claims(host, effort.rows, meter),
                                              PLAIN: _claims(host, effort.rows, None)}, rounds)
        # Not in turn with the others: a scrape leaves garbage, which the next round would collect.
        scrapes = side_by_side({SCRAPE: lambda: _scrape(host, registry, meter)}, effort.thread_rounds)
        lasting, quick = measured[effort.durable], measured[False]
        added = statistics.median(one - other for one, other in zip(quick.measured[COUNTED], quick.measured[PLAIN],
                                                                    strict=True))
        counted, plain = (lasting.median(subject) / effort.rows * MICROSECONDS for subject in (COUNTED, PLAIN))
        return Table('Claims on SQLite that are counted for Prometheus', [
            Row('counted, to not counted: time', lasting.ratio(COUNTED, PLAIN), at_most=1.05,
                note=f'{counted:.0f} µs to {plain:.0f} µs'),
            Row('counting adds', added / effort.rows * MICROSECONDS, 'µs',
                note=f'to {quick.median(PLAIN) / effort.rows * MICROSECONDS:.0f} µs without a disk'),
            Row('a scrape', scrapes.median(SCRAPE) * MILLISECONDS, 'ms')])


def _claims(host: Host, count: int, meter: Meter | None) -> Callable[[], float]:
    def measure() -> float:
        instances = [host.instance() for _ in range(count)]
        host.manager.metering.meter = meter
        took = in_threads(host.claim, [instances])
        host.take_back(instances)
        return took

    return measure


def _scrape(host: Host, registry: prometheus_client.CollectorRegistry, meter: Meter | None) -> float:
    host.manager.metering.meter = meter
    began = time.perf_counter()
    prometheus_client.generate_latest(registry)
    return time.perf_counter() - began
