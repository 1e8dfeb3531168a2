"""Compares the way from a claim to a guest that runs with and without the look for others who use the device.

Before a guest first gets a device, the driver asks libvirt for all definitions, looks at all processes, and compares
what the host shows of writes. The host is that of ``recovery``: a libvirtd of the benchmark's own, with other guests
that are defined, each with 22 KB of XML. The guest itself runs in QEMU, in its firmware. Each round gives it back,
which takes no part of its time.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import time
from typing import Any
from unittest import mock

from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.recovery import Guests
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.testing import databases

MILLISECONDS = 1e3
WITH, WITHOUT = 'with', 'without'
WARM_UP = 1


def run(effort: Effort) -> Table:
    from devicetrack.virt.libvirt.proving import Proving

    with contextlib.ExitStack() as stack:
        database = stack.enter_context(databases.SQLiteStore(durable=True))
        host = stack.enter_context(Guests(database.store, database.conf, effort.booted_beside + 1))
        host.define(effort.booted_beside)
        [(provider, allocation)] = host.allocations.items()
        host.allocations = {provider: {'resources': {**allocation['resources'], host.resource_class: 1}}}
        connection = host.daemon.connect()
        stack.callback(connection.close)
        unasked = mock.patch.object(Proving, 'check_free', lambda *_arguments: None)
        samples = side_by_side({WITH: _boots(host, connection, contextlib.nullcontext()),
                                WITHOUT: _boots(host, connection, unasked)}, effort.boot_rounds, WARM_UP)
    return Table(f'From claim to guest, beside {effort.booted_beside} others', [
        Row('with the look for users of the device, to without', samples.ratio(WITH, WITHOUT), at_most=1.15,
            note=f'{samples.median(WITH) * MILLISECONDS:,.0f} ms to {samples.median(WITHOUT) * MILLISECONDS:,.0f} ms')])


def _boots(host: Guests, connection: Any, state: contextlib.AbstractContextManager[Any]) -> Callable[[], float]:
    from benchmarks.host import Flavor
    from benchmarks.host import Instance
    from benchmarks.host import LABEL
    from devicetrack.testing import libvirt as libvirt_fixtures

    def boot() -> float:
        instance = Instance(Flavor({'hw:pmem': LABEL}))
        with state:
            began = time.perf_counter()
            host.claim(instance)
            host.manager.realize(None, instance)
            config = host.manager.guest_config(instance)
            domain = connection.createXML(libvirt_fixtures.guest(instance.uuid, config, 'qemu'), 0)
            host.manager.started(None, instance)
            took = time.perf_counter() - began
        domain.destroy()
        host.manager.release(None, instance)
        return took

    return boot
