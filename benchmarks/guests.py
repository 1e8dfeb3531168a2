"""Compares the way from a claim to the guest XML on a host with many guests and on a host without any.

The guests run, name their devices and have their rows. On libvirt they are domains of its in-process test driver. That
driver has no socket: on a real host a call costs several times as much.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable
import contextlib
import functools
import time
from typing import Any

import fixtures

from benchmarks.host import Flavor
from benchmarks.host import Host
from benchmarks.host import Instance
from benchmarks.measure import Effort
from benchmarks.measure import side_by_side
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.objects.values import GuestConfig
from devicetrack.testing import databases
from devicetrack.virt.driver import VirtDriver

MICROSECONDS = 1e6
WARM_UP = 1


class Guests(Host, abc.ABC):
    """A host on which other guests run."""

    name: str

    @staticmethod
    @abc.abstractmethod
    def reads_at_most(guests: int) -> int:
        """How often the driver may read or list domains for one guest: it looks once for users of the device."""

    @abc.abstractmethod
    def boot_others(self, count: int) -> None:
        """Start so many guests, each on a device claimed for it."""

    @abc.abstractmethod
    def reads(self) -> int:
        """How often the driver has read or listed domains."""


class FakeGuests(Guests):
    """Guests on a machine in memory."""

    name = 'host in memory'
    # The driver's calls that read domains.
    READING = ('get_usage', 'unclaim')

    @staticmethod
    def reads_at_most(guests: int) -> int:
        return 0                                # realize looks by itself

    def boot_others(self, count: int) -> None:
        for _ in range(count):
            instance = self.instance()
            self.claim(instance)
            self.machine.start_guest(instance.uuid, self.manager.guest_config(instance).devices)

    def reads(self) -> int:
        return sum(self.machine.calls[call] for call in self.READING)


class LibvirtGuests(Guests):
    """Guests of libvirt's test driver, each with a mediated device that exists and is adopted."""

    name = 'libvirt'
    TYPE = 'nvidia-35'
    # The calls of libvirt's binding that read domains.
    READING = (('virDomain', 'XMLDesc'), ('virConnect', 'listAllDomains'), ('virConnect', 'listDomainsID'),
               ('virConnect', 'listDefinedDomains'), ('virConnect', 'domainListGetStats'))
    resource_class = 'VGPU'
    flavor = Flavor({'resources:VGPU': '1'})

    def driver(self, state_path: str) -> VirtDriver:
        # Not at the top: the other subjects can be measured without libvirt.
        import libvirt

        from devicetrack.testing import libvirt as libvirt_fixtures
        from devicetrack.virt.libvirt.driver import LibvirtDriver
        from devicetrack.virt.libvirt.kinds.mdev import Mdev
        self._guest = libvirt_fixtures.guest
        self._node = self.useFixture(libvirt_fixtures.TestNode())
        parent = self._node.add_parent('0000:84:00.0', {self.TYPE: 0})
        for _ in range(self.devices):
            self._node.add_mdev(parent, self.TYPE)
        self._calls: collections.Counter[str] = collections.Counter()
        for owner, call in self.READING:
            plain = getattr(getattr(libvirt, owner), call)
            self.useFixture(fixtures.MonkeyPatch(f'libvirt.{owner}.{call}', self._counted(call, plain)))
        self.conf.set_override('enabled_mdev_types', [self.TYPE], 'devices')
        return LibvirtDriver('host', self.conf, state_path, [Mdev], self._node.connect)

    @staticmethod
    def reads_at_most(guests: int) -> int:
        return 2 * guests + 16                  # a guest that runs may have two documents, and there are some lists

    def _counted(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._calls[name] += 1
            return plain(*args, **kwargs)

        return counted

    def boot_others(self, count: int) -> None:
        for _ in range(count):
            instance = self.instance()
            self.claim(instance)
            [record] = self.records_of([instance])
            self._node.connect().createXML(self._guest(instance.uuid, GuestConfig((
                f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>"
                f"<address uuid='{record.identifier}'/></source></hostdev>",))), 0)

    def reads(self) -> int:
        return self._calls.total()


def run(effort: Effort) -> Table:
    rows: list[Row] = []
    kinds: tuple[type[Guests], ...] = (FakeGuests, LibvirtGuests)
    for kind in kinds:
        try:
            rows += _rows_of(kind, effort)
        except Exception as error:
            rows.append(Row(kind.name, None, note=f'{type(error).__name__}: {error}'))
    return Table('From claim to guest XML, with other guests on the host', rows)


def _rows_of(kind: type[Guests], effort: Effort) -> list[Row]:
    with contextlib.ExitStack() as stack:
        none, many = (_host(stack, kind, guests, effort) for guests in (0, effort.guests))
        before = many.reads()
        samples = side_by_side({'none': _guest_xml(none), 'many': _guest_xml(many)}, effort.guest_rounds, WARM_UP)
        reads = many.reads() - before
    return [
        Row(f'{kind.name}: reads of the {effort.guests:,} others, for each guest',
            reads / (effort.guest_rounds + WARM_UP), 'calls', at_most=kind.reads_at_most(effort.guests)),
        Row(f'{kind.name}: time with {effort.guests:,} to with none', samples.ratio('many', 'none'),
            note=f'{samples.median("many") * MICROSECONDS:,.0f} µs to '
                 f'{samples.median("none") * MICROSECONDS:,.0f} µs, with one commit and two reads on SQLite'),
    ]


def _host(stack: contextlib.ExitStack, kind: type[Guests], guests: int, effort: Effort) -> Guests:
    database = stack.enter_context(databases.SQLiteStore(durable=True))
    # No round gives its device back, so there is a device for every round.
    host: Guests = stack.enter_context(kind(database.store, database.conf, guests + effort.guest_rounds + WARM_UP))
    host.boot_others(guests)
    return host


def _guest_xml(host: Host) -> Callable[[], float]:
    def measure() -> float:
        instance: Instance = host.instance()
        began = time.perf_counter()
        host.claim(instance)
        host.manager.realize(None, instance)
        host.manager.guest_config(instance)
        return time.perf_counter() - began

    return measure
