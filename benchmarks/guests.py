"""From claim to guest XML on a host that has many guests, against one that has none."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import time

from benchmarks.host import Host
from benchmarks.host import Instance
from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.testing import databases

# The calls of a driver that read domains, or everything that the host has.
READING = ('get_usage', 'get_inventory', 'unclaim')
MICROSECONDS = 1e6


def run(effort: Effort) -> Table:
    with contextlib.ExitStack() as stack:
        hosts = {count: _host(stack, count) for count in (0, effort.guests)}
        reads = {count: _reads(host) for count, host in hosts.items()}
        subjects = {str(count): _guest_xml(host) for count, host in hosts.items()}
        samples = side_by_side(subjects, effort.guest_rounds)
    none, many = subjects
    return Table('From claim to guest XML, with other guests on the host', [
        Row(f'other guests read, of {effort.guests:,}', reads[effort.guests], 'calls', at_most=0),
        Row(f'time with {effort.guests:,} guests to with none', samples.ratio(many, none), at_most=1.2,
            note=f'{samples.median(many) * MICROSECONDS:.0f} µs, commit and reads included'),
    ])


def _host(stack: contextlib.ExitStack, guests: int) -> Host:
    database = stack.enter_context(databases.SQLiteStore())
    host = stack.enter_context(Host(database.store, database.conf, guests + 2))
    for _ in range(guests):
        host.boot(Instance())
    return host


def _steps(host: Host, instance: Instance) -> None:
    host.claim(instance)
    host.manager.realize(None, instance)
    host.manager.guest_config(instance)


def _reads(host: Host) -> int:
    """How often one guest's way to its XML asks about others."""
    instance = Instance()
    before = host.machine.calls.copy()
    _steps(host, instance)
    asked = host.machine.calls - before
    host.manager.release(None, instance)
    return sum(asked[call] for call in READING)


def _guest_xml(host: Host) -> Callable[[], float]:
    def measure() -> float:
        instance = Instance()
        began = time.perf_counter()
        _steps(host, instance)
        took = time.perf_counter() - began
        host.manager.release(None, instance)
        return took

    return measure
