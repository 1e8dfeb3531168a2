"""Compares a start and an audit on a host with a million events and on a host without any.

Both hosts have the same guests in memory, and each has its own store on SQLite. The events belong to other devices and
instances of the host, as those of deleted instances do.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import time
import uuid

from benchmarks.guests import FakeGuests
from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.objects.event import Event
from devicetrack.objects.event import EVENTS
from devicetrack.store.sql import queries
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import databases

MILLISECONDS = 1e3
MANY, NONE = 'many', 'none'
# One transaction writes so many events of the history.
_AT_ONCE = 10_000


def run(effort: Effort) -> Table:
    with contextlib.ExitStack() as stack:
        hosts, stores = {}, {}
        for name in (MANY, NONE):
            database = stack.enter_context(databases.SQLiteStore())
            stores[name] = database.store
            host = stack.enter_context(FakeGuests(database.store, database.conf, effort.historic_guests))
            host.boot_others(effort.historic_guests)
            hosts[name] = host
        _make_history(hosts[MANY], stores[MANY], effort.events)
        rows = []
        for what, work in (('init_host', _start), ('an audit', _audit)):
            samples = side_by_side({name: work(host) for name, host in hosts.items()}, effort.historic_rounds)
            many, none = (samples.median(name) * MILLISECONDS for name in (MANY, NONE))
            rows.append(Row(f'{what} with {effort.events:,} events, to none', samples.ratio(MANY, NONE), at_most=1.05,
                            note=f'{many:.1f} ms to {none:.1f} ms'))
    return Table(f'A host with {effort.historic_guests:,} guests and a long history', rows)


def _start(host: FakeGuests) -> Callable[[], float]:
    def measure() -> float:
        host.manager.close()
        began = time.perf_counter()
        host.manager.init_host(None, background=False)
        return time.perf_counter() - began

    return measure


def _audit(host: FakeGuests) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        host.manager.update_available_resource(None, host.manager.nodename)
        return time.perf_counter() - began

    return measure


def _make_history(host: FakeGuests, store: SQLStore, count: int) -> None:
    """Write the events of a year's instances: five for each device that an instance had."""
    now_ms = time.time_ns() // 1_000_000
    host_uuid = host.manager.state().host_uuid
    for first in range(0, count, _AT_ONCE):
        events = []
        for number in range(first, min(first + _AT_ONCE, count)):
            instance = str(uuid.UUID(int=number // 5 + (1 << 126)))
            events.append(Event(host_uuid, 'vpmem', f'ns{number // 5 % 1000}', EVENTS[number % 5],
                                now_ms - (count - number) * 1000, instance, None, f'claim-{number // 5:x}',
                                f'req-{instance}')._asdict())
        store.transact(lambda connection, events=events: connection.execute(queries.ADD_EVENTS, events))
