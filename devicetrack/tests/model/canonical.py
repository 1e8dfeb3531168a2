"""A form that is the same for worlds that differ in nothing but names.

It ignores random ids, which guest is the first, which host is called a, how often a row was written, and when.
"""

from __future__ import annotations

from collections.abc import Iterator
import hashlib
import itertools
from typing import TypeVar

from devicetrack import vocabulary
from devicetrack.engine.snapshot import Device
from devicetrack.engine.snapshot import Pool
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import compute_service
from devicetrack.tests.model import memory
from devicetrack.tests.model.service import ABSENT
from devicetrack.tests.model.service import Guest
from devicetrack.tests.model.service import HostDevice
from devicetrack.tests.model.service import Move
from devicetrack.tests.model.world import ModelHost
from devicetrack.tests.model.world import World

Thing = TypeVar('Thing')


def form(world: World) -> bytes:
    """The form of a world: the same for worlds that differ in nothing but names."""
    views = {name: _View(world, host) for name, host in world.hosts.items()}
    least = min(repr(_in_order(world, views, guests, hosts))
                for guests in _orders({guest: _look(world, views, guest) for guest in world.service.guests.values()})
                for hosts in _orders({name: view.look() for name, view in views.items()}))
    return hashlib.blake2b(least.encode(), digest_size=16).digest()


def _orders(looks: dict[Thing, tuple]) -> Iterator[tuple[Thing, ...]]:
    """Every order of things by their looks, which have no names: more than one where some look alike."""
    ordered = sorted(looks, key=lambda thing: repr(looks[thing]))
    groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda thing: repr(looks[thing]))]
    for order in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield tuple(thing for group in order for thing in group)


def _look(world: World, views: dict[str, _View], guest: Guest) -> tuple:
    rows = sorted((row.role, row.state, row.migration_uuid is None) for view in views.values()
                  for row in view.rows.values() if row.instance_uuid == guest.uuid)
    moves = [(move.kind, move.phase, move.status) for move in world.service.migrations
             if move.instance_uuid == guest.uuid]
    return guest.state, guest.size, rows, moves


def _in_order(world: World, views: dict[str, _View], guests: tuple[Guest, ...], hosts: tuple[str, ...]) -> tuple:
    naming = _Naming(world, guests, hosts)
    for name in hosts:
        naming.name_devices(name, views[name])
    return (tuple(views[name].form(naming) for name in hosts), tuple(naming.guest(guest) for guest in guests),
            tuple(naming.move(move) for move in world.service.migrations), world.service.mute)


class _Naming:
    """Names for guests, hosts, devices and migrations that follow from an order of guests and hosts."""

    def __init__(self, world: World, guests: tuple[Guest, ...], hosts: tuple[str, ...]) -> None:
        self.guests: dict[str | None, int] = {guest.uuid: number for number, guest in enumerate(guests)}
        self.tokens: dict[bytes, int] = {guest.token: number for number, guest in enumerate(guests)}
        self.hosts: dict[str | None, int] = {name: number for number, name in enumerate(hosts)}
        self.moves: dict[str | None, int] = {move.uuid: number for number, move in enumerate(world.service.migrations)}
        self.devices: dict[HostDevice, int] = {}
        self.boots = {name: host.machine.boot for name, host in world.hosts.items()}

    def name_devices(self, host: str, view: _View) -> None:
        """Number devices by their facts, and by their names only where facts are alike."""
        facts = sorted((view.facts(self, key), key) for key in view.keys)
        for number, (_, key) in enumerate(facts):
            self.devices[host, key] = number

    def host_devices(self, host_devices: frozenset[HostDevice]) -> tuple:
        return tuple(sorted((self.hosts[host], self.devices.get((host, key), -1)) for host, key in host_devices))

    def move_uuid(self, uuid: str | None) -> int | None:
        return None if uuid is None else self.moves.get(uuid, -1)

    def guest(self, guest: Guest) -> tuple:
        if guest.state in (ABSENT, compute_service.DELETED):
            return (guest.state,)
        resources = guest.resources
        return (guest.state, guest.size, self.hosts.get(guest.host), self.host_devices(guest.current),
                self.host_devices(guest.old), self.host_devices(guest.new), self.host_devices(guest.written),
                len(resources) if resources is not None else None,
                None if guest.context is None else self.move_uuid(guest.context.migration_uuid))

    def move(self, move: Move) -> tuple:
        return (self.guests.get(move.instance_uuid), self.hosts.get(move.source_compute),
                self.hosts.get(move.dest_compute), move.kind, move.phase, move.status, move.size, move.source_told,
                move.device_map is not None,
                move.boot == self.boots[move.dest])


class _View:
    """One host, read once."""

    def __init__(self, world: World, host: ModelHost) -> None:
        self.host, self.machine, self.name = host, host.machine, host.name
        database = world.database_of(host.name)
        self.rows = {row.key: row for row in database.assignments(host.uuid)}
        self.contexts = database.contexts(host.uuid)
        self.withheld = database.withheld(host.uuid)
        self.stored_boot = database.boot_id(host.uuid)
        self.domains = [(domain, [self.machine.key_at(address) for address in domain.live or ()],
                         [self.machine.key_at(address) for address in domain.defined or ()],
                         [self.machine.key_at(address) for address in domain.will_be_defined or ()])
                        for domain in self.machine.domains.values()]
        self.records = {record.instance_uuid: record for record in self.machine.guest_records()}
        self.ready = memory.is_ready(host.manager)
        self.devices: dict[DeviceKey, Device] = {}
        self.free: list[DeviceKey] = []
        self.pools: list[Pool] = []
        if self.ready:
            now = memory.running(host.manager).ledger.now
            self.devices = {device.key: device for device in now.devices.values() if device.is_named}
            self.pools = list(now.pools.values())
            self.withheld_here = {key: sorted(now.withheld(device)) for key, device in self.devices.items()}
            self.free = [device.key for device in sorted(
                (device for device in self.devices.values() if device.owner is None and not device.reasons),
                key=lambda device: (device.place.order, device.since))]
        self.keys = {*self.rows, *self.machine.devices, *self.devices}

    def look(self) -> tuple:
        return (self.host.powered, self.ready, self.stored_boot == self.machine.boot,
                sorted((row.role, row.state, row.migration_uuid is None) for row in self.rows.values()),
                sorted((domain.live is not None, len(named)) for domain, _, named, _ in self.domains),
                len(self.machine.contents), len(self.free))

    def facts(self, naming: _Naming, key: DeviceKey) -> tuple:
        row = self.rows.get(key)
        of_row = None if row is None else (naming.guests[row.instance_uuid], naming.move_uuid(row.migration_uuid),
                                           row.role, row.state, row.position)
        data = self.machine.contents.get(key)
        device = self.devices.get(key)
        of_device = None
        if device is not None:
            owner = device.owner
            of_device = (device.state, device.is_unborn, device.is_unproven, self.withheld_here[key], owner and (
                naming.guests[owner.instance_uuid], owner.from_rows))
        users = tuple(sorted((naming.guests[domain.uuid], key in live, key in defined)
                             for domain, live, defined, _ in self.domains if key in live or key in defined))
        stored = self.withheld.get((key.kind, vocabulary.DEVICE, key.identifier))
        there = self.machine.devices.get(key)
        return repr((of_row, None if data is None else naming.tokens[data], users, of_device, stored,
                     key in self.machine.unproven, key in self.machine.given, there and there.exclusions)), \
            self.free.index(key) if key in self.free else -1, key in self.machine.devices

    def form(self, naming: _Naming) -> tuple:
        def named(keys: list[DeviceKey | None]) -> tuple:
            return tuple(None if key is None else naming.devices[self.name, key] for key in keys)

        devices = sorted((naming.devices[self.name, key], self.facts(naming, key)) for key in self.keys)
        domains = []
        for domain, live, defined, later in self.domains:
            record = self.records.get(domain.uuid)
            of_record = None if record is None else (record.boot_id == self.machine.boot, tuple(
                (naming.devices.get((self.name, DeviceKey(one.kind, one.identifier)), -1), one.beside)
                for one in record.devices))
            domains.append((naming.guests[domain.uuid], domain.live is not None, named(live),
                            domain.defined is not None, named(defined), named(later), domain.arriving,
                            domain.is_of_boot(self.machine.boot), of_record))
        of_manager: tuple = ()
        if self.ready:
            running = memory.running(self.host.manager)
            of_manager = (running.boot.is_recorded, running.gate.report_only is not None,
                          tuple(sorted((naming.guests[doubt.instance_uuid], doubt.undo)
                                       for doubt in running.rows.doubts)),
                          tuple((pool.available, pool.is_creatable, pool.free, pool.held, pool.releasing)
                                for pool in self.pools))
        return (self.host.powered, self.stored_boot == self.machine.boot, tuple(devices), tuple(sorted(domains)),
                tuple(sorted((naming.guests[instance], naming.move_uuid(move)) for instance, move in self.contexts)),
                sorted(place for place in self.withheld if place[1] == vocabulary.PARENT), of_manager)
