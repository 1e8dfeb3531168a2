"""Compares the start of a host with interrupted wipes and the start of a host without any.

Both hosts have the same guests, which are read through a libvirtd of the benchmark's own. Both have sixteen more
namespaces of 1 GiB each, which are sparse files. On one host a crash interrupted the wipes of these before anything was
wiped. A start ends when a claim has succeeded. Then the benchmark ends the wipes that the start began, so that none
runs beside the next measurement. The wipes are as slow as possible, because their writes fill the sparse files.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import time
from typing import Any

from benchmarks.host import Flavor
from benchmarks.host import Instance
from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.recovery import Guests
from benchmarks.recovery import MILLISECONDS
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack import vocabulary
from devicetrack.store.api import Changes
from devicetrack.store.api import Update
from devicetrack.testing import databases
from devicetrack.virt.driver import VirtDriver

INTERRUPTED = 16
WIPED_BYTES = 1 << 30
WITH, WITHOUT = 'with', 'without'
_BIG = 'big'


class Host(Guests):
    """A host with guests, one more namespace for a claim, and the namespaces with interrupted wipes."""

    def __init__(self, store: Any, conf: Any, guests: int) -> None:
        super().__init__(store, conf, guests)
        self.devices += 1

    def another_driver(self) -> VirtDriver:
        from devicetrack.conf import libvirt as options
        directory = self.conf[options.VPMEM_GROUP].directory
        names = [f'{_BIG}{number:02}' for number in range(INTERRUPTED)]
        if not os.path.exists(os.path.join(directory, names[0])):
            for name in names:
                with open(os.path.join(directory, name), 'wb') as file:
                    file.truncate(WIPED_BYTES)
            [others] = self.conf[options.LIBVIRT_GROUP].pmem_namespaces
            self.conf.set_override('pmem_namespaces', [others, f'{_BIG}:{"|".join(names)}'], options.LIBVIRT_GROUP)
            self.conf.set_override('wipe_rate_mib_s', 1, options.VPMEM_GROUP)
        return super().another_driver()

    def interrupt(self) -> None:
        """Record the namespaces of 1 GiB as being given back, as after a crash."""
        [provider] = self.allocations
        for _ in range(INTERRUPTED):
            instance = Instance(Flavor({}))
            self.manager.instance_claim(None, instance, self.manager.nodename, {
                provider: {'resources': {f'CUSTOM_PMEM_NAMESPACE_{_BIG.upper()}': 1}}})
            self.manager.realize(None, instance)        # a device that was only claimed needs no wipe
        [host] = self.store.hosts()
        rows = [record for record in self.store.records_of_host(host.uuid) if record.identifier.startswith(_BIG)]
        self.store.write(Changes(update=tuple(Update(record, record._replace(
            state=vocabulary.RELEASING, generation=record.generation + 1)) for record in rows)))

    def start(self) -> float:
        """Start the host and claim a device. Returns the seconds."""
        seconds = self.restart()
        began = time.perf_counter()
        instance = Instance(Flavor({}))
        [provider] = self.allocations
        self.manager.instance_claim(None, instance, self.manager.nodename,
                                    {provider: {'resources': {self.resource_class: 1}}})
        seconds += time.perf_counter() - began
        self.take_back([instance])
        self._end_wipes()
        return seconds

    def _end_wipes(self) -> None:
        wipes = self.manager.wipes()
        while wipes and sum(wipe.progress is not None for wipe in self.manager.wipes()) < \
                min(len(wipes), self.conf.devicetrack.wipes_at_once):
            time.sleep(0.01)
        running = self.manager._started()
        self.manager.close()
        for pid in _wipers():
            os.kill(pid, signal.SIGTERM)
        running.wipes.wait()


def _wipers() -> list[int]:
    """The programs that wipe for this process."""
    # Not at the top: the other subjects can be measured without libvirt.
    from devicetrack.virt.libvirt import worker
    found = []
    for tasks in pathlib.Path('/proc/self/task').glob('*/children'):
        for pid in tasks.read_text().split():
            with contextlib.suppress(OSError):
                if worker.__name__.encode() in pathlib.Path(f'/proc/{pid}/cmdline').read_bytes():
                    found.append(int(pid))
    return found


def run(effort: Effort) -> Table:
    guests = max(1, effort.recovered_guests // 10)
    with contextlib.ExitStack() as stack:
        hosts = {}
        for name in (WITH, WITHOUT):
            database = stack.enter_context(databases.SQLiteStore(durable=True))
            hosts[name] = host = stack.enter_context(Host(database.store, database.conf, guests))
            host.define(guests)
        hosts[WITH].interrupt()
        samples = side_by_side({name: host.start for name, host in hosts.items()}, effort.recovery_rounds)
    return Table(f'A host with {guests:,} guests starts with {INTERRUPTED} interrupted wipes of 1 GiB', [
        Row('init_host and a claim without any', samples.median(WITHOUT) * MILLISECONDS, 'ms'),
        Row('the same with interrupted wipes, to without', samples.ratio(WITH, WITHOUT), at_most=1.3,
            note=f'{samples.median(WITH) * MILLISECONDS:,.0f} ms')])
