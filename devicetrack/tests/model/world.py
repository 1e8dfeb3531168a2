"""Two hosts with the shipped manager, its SQL store and the fake driver, and the service of the model.

A world stops at points: before and after every call of a store or of a driver, and wherever the service did something.
At a point its durable state is what a process that is killed there leaves behind. A world can be written down and taken
up again in a fraction of a millisecond, which is what makes a search possible.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import sqlite3
import threading
from typing import Any
from typing import ClassVar
from typing import Final
from typing import NamedTuple
import weakref

import fixtures
import sqlalchemy as sa

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import workers
from devicetrack.claims.manager import ClaimManager
from devicetrack.engine import selection
from devicetrack.objects import DeviceRequest
from devicetrack.objects import traits
from devicetrack.objects.values import DeviceKey
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import compute_service
from devicetrack.testing import fake
from devicetrack.testing import fixtures as host_fixtures
from devicetrack.testing.staged_store import StagedStore
from devicetrack.tests.model import memory
from devicetrack.tests.model.service import Guest
from devicetrack.tests.model.service import HostDevice
from devicetrack.tests.model.service import ModelService

# The card that makes mediated devices.
PARENT: Final = '0000:84:00.0'

TABLES: Final = ('hosts', 'assignments', 'migration_contexts', 'withheld', 'declarations')

# Calls that change nothing that outlives the process.
_READS: Final = frozenset(('check', 'check_epoch', 'host', 'hosts', 'records', 'records_of_host', 'records_of_instance',
                           'records_everywhere', 'records_of_devices', 'contexts', 'context', 'operator_requests',
                           'operator_requests_of_host', 'withheld', 'declarations', 'declarations_of_host',
                           'get_inventory', 'get_usage', 'guest_config', 'guest_records', 'realize', 'unclaim', 'wipe',
                           'create', 'destroy', 'migration_types', 'live_migration_obstacles', 'count_events',
                           'events_of_device', 'events_of_serial', 'events_of_instance'))


def _at_once(pool: workers.Workers[Any], _pieces: int = 1) -> None:
    pool.run()


class Machine(fake.FakeHost):
    """A fake host that reports each call of a driver, and of which a snapshot can be taken."""

    def __init__(self, at_call: Callable[[str, bool], None]) -> None:
        super().__init__()
        self._at_call = at_call

    def enter(self, call: str) -> None:
        self._at_call(call, call not in _READS)
        super().enter(call)

    def snapshot(self) -> tuple[Any, ...]:
        return (self.boot, dict(self.devices), {name: parent.used for name, parent in self.parents.items()},
                {name: dataclasses.replace(domain) for name, domain in self.domains.items()}, dict(self.contents),
                dict(self._addresses), dict(self._owners_of_addresses), set(self.unproven), set(self.given),
                set(self.lent))

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        boot, devices, used, domains, contents, addresses, owners, unproven, given, lent = snapshot
        self.boot, self.devices, self.contents = boot, dict(devices), dict(contents)
        for name, units in used.items():
            self.parents[name].used = units
        self.domains = {name: dataclasses.replace(domain) for name, domain in domains.items()}
        self._addresses, self._owners_of_addresses = dict(addresses), dict(owners)
        self._devices, self.unproven, self.given, self.lent = None, set(unproven), set(given), set(lent)
        self.busy.clear()

    def key_at(self, address: str) -> DeviceKey | None:
        """The device that has an address in this boot."""
        return self._owners_of_addresses.get(address)


class Driver(fake.FakeDriver):
    """A driver that stays the same in the memory of a manager: some of that names methods of the driver."""

    _made: ClassVar[weakref.WeakValueDictionary[int, Driver]] = weakref.WeakValueDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        self._made[id(self)] = self
        return self.with_id, (id(self),)

    @classmethod
    def with_id(cls, number: int) -> Driver:
        return cls._made[number]


class PointedStore(StagedStore):
    """A store that reports each call, before and after it."""

    def __init__(self, store: SQLStore, at_call: Callable[[str, bool], None]) -> None:
        super().__init__(store)
        self._at_call = at_call

    def _call(self, name: str, *args: Any) -> Any:
        if name in _READS:
            return super()._call(name, *args)
        self._at_call(name, False)
        answer = super()._call(name, *args)
        self.written.clear()
        self._at_call(name, True)
        return answer


class Database:
    """The rows of a store, read and written without the store."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute('PRAGMA synchronous = OFF')
        self._columns = {table: len(self._connection.execute(f'PRAGMA table_info({table})').fetchall())
                         for table in TABLES}

    def rows(self) -> tuple[tuple[Any, ...], ...]:
        return tuple(tuple(self._connection.execute(f'SELECT * FROM {table}').fetchall()) for table in TABLES)

    def assignments(self, host_uuid: str) -> list[Row]:
        return [Row(*row) for row in self._connection.execute(
            'SELECT kind, identifier, instance_uuid, migration_uuid, role, state, generation, claim_id, position'
            ' FROM assignments WHERE host_uuid = ? ORDER BY kind, identifier', (host_uuid,))]

    def migrations(self) -> frozenset[str]:
        """The migrations that any row names."""
        return frozenset(uuid for (uuid,) in self._connection.execute(
            'SELECT migration_uuid FROM assignments UNION SELECT migration_uuid FROM migration_contexts'))

    def contexts(self, host_uuid: str) -> list[tuple[str, str]]:
        """Which instance has the context of which migration."""
        return self._connection.execute('SELECT instance_uuid, migration_uuid FROM migration_contexts'
                                        ' WHERE host_uuid = ?', (host_uuid,)).fetchall()

    def withheld(self, host_uuid: str) -> dict[tuple[str, str, str], list[str]]:
        """The stored reasons, by kind, scope and name. Their dates make no difference."""
        return {(kind, scope, name): sorted(json.loads(reasons)) for kind, scope, name, reasons in
                self._connection.execute('SELECT kind, scope, name, reasons FROM withheld WHERE host_uuid = ?',
                                         (host_uuid,))}

    def boot_id(self, host_uuid: str) -> str | None:
        """The boot that a host's row names."""
        found: tuple[str | None] = self._connection.execute('SELECT boot_id FROM hosts WHERE uuid = ?',
                                                            (host_uuid,)).fetchone()
        return found[0]

    def restore(self, rows: tuple[tuple[Any, ...], ...]) -> None:
        if rows == self.rows():
            return
        self._connection.execute('BEGIN IMMEDIATE')
        for table in reversed(TABLES):
            self._connection.execute(f'DELETE FROM {table}')
        for table, of_table in zip(TABLES, rows, strict=True):
            if of_table:
                marks = ', '.join('?' * self._columns[table])
                self._connection.executemany(f'INSERT INTO {table} VALUES ({marks})', of_table)
        self._connection.execute('COMMIT')

    @contextlib.contextmanager
    def without(self, host_uuid: str, instance_uuid: str) -> Iterator[None]:
        """Show no row of an instance on a host during the block."""
        about = 'FROM assignments WHERE host_uuid = ? AND instance_uuid = ?'
        rows = self._connection.execute(f'SELECT * {about}', (host_uuid, instance_uuid)).fetchall()
        self._connection.execute(f'DELETE {about}', (host_uuid, instance_uuid))
        try:
            yield
        finally:
            self._connection.executemany(
                f'INSERT INTO assignments VALUES ({", ".join("?" * self._columns["assignments"])})', rows)

    def close(self) -> None:
        self._connection.close()


class Row(NamedTuple):
    """The columns of a row that the model reads."""

    kind: str
    identifier: str
    instance_uuid: str
    migration_uuid: str | None
    role: str
    state: str
    generation: int
    claim_id: str
    position: int

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.kind, self.identifier)


class ModelHost:
    """One host: its machine, its manager, and whether the machine has power."""

    def __init__(self, name: str, machine: Machine, manager: ClaimManager, store: PointedStore) -> None:
        self.name, self.machine, self.manager, self.store = name, machine, manager, store
        self.powered = True
        self.uuid = ''                      # the host's in the store

    @property
    def is_alive(self) -> bool:
        """Whether the compute service runs on it."""
        return self.powered and memory.is_ready(self.manager)

    def lives(self, guest: Guest) -> bool:
        """Whether a domain of the guest runs on this host, or waits to."""
        domain = self.machine.domains.get(guest.uuid)
        return domain is not None and domain.live is not None


class Snapshot(NamedTuple):
    """A snapshot of a world. ``memories`` has the memory of each manager."""

    rows: tuple[Any, ...]
    machines: tuple[Any, ...]
    powered: tuple[bool, ...]
    memories: tuple[bytes, ...]
    service: tuple[Any, ...]


class Shape(NamedTuple):
    """How a world is made.

    :param devices: persistent-memory namespaces of each host
    :param mdevs: mediated devices that the one parent of each host can make
    :param shared: whether the hosts share one store
    :param sizes: how many devices a resize may lead to
    :param card: the last namespace is the whole of a card, and the others are its parts
    :param group: so many of the last namespaces go together
    :param whole: the parent of mediated devices is a PCI function, which another kind gives to guests as a whole
    :param failing: devices may fail when they are made ready
    """

    devices: int = 2
    mdevs: int = 0
    shared: bool = True
    guests: int = 2
    sizes: tuple[int, ...] = (1,)
    card: bool = False
    group: int = 0
    whole: bool = False
    failing: bool = False

    def exclusions(self, number: int) -> tuple[tuple[str, str], ...]:
        """Those of a namespace of each host."""
        found = []
        if self.card:
            found.append(('card', vocabulary.WHOLE if number == self.devices - 1 else vocabulary.PART))
        if number >= self.devices - self.group:
            found.append(('group', vocabulary.TOGETHER))
        return tuple(found)


class World(fixtures.Fixture):
    """The world of the module. ``at_point`` is called at every point, with the name of the call."""

    def __init__(self, shape: Shape | None = None) -> None:
        self.shape = shape or Shape()

    def _setUp(self) -> None:
        # What is done in the background is done at once, in the one thread that can be stopped and taken up again.
        self.useFixture(fixtures.MonkeyPatch('devicetrack.claims.workers.Workers.start', _at_once))
        self.context = object()
        self._thread = threading.get_ident()
        self.at_point: Callable[[str], None] | None = None
        self.dirty = False                  # whether anything durable may have changed since the last point
        self.failures = False               # whether a test lets calls fail: then not all can be done at once
        self.acting = ''                    # the host on which something is done
        self.starting = False               # whether its manager starts: its ledger is not whole yet
        self.failed: set[DeviceKey] = set()                # what could not be made ready in this step
        self.service = ModelService(self.shape.guests)
        self.hosts: dict[str, ModelHost] = {}
        self.databases: list[Database] = []
        store: SQLStore | None = None
        for name in ('a', 'b'):
            configuration = self.useFixture(host_fixtures.Configuration(machine=name))
            if store is None or not self.shape.shared:
                store = self.useFixture(host_fixtures.SQLiteStore(configuration.conf)).store
                # A process is killed here, never the machine under the store: nothing has to reach a disk.
                sa.event.listen(store.engine, 'connect', _without_waiting)
                database = Database(str(store.path))
                self.addCleanup(database.close)
                self.databases.append(database)
            machine = Machine(self._at_call)
            for number in range(self.shape.devices):
                machine.add_namespace(f'd{number}', exclusions=self.shape.exclusions(number))
            if self.shape.mdevs:
                # Claims take devices in the order of their parents: the whole card comes last.
                machine.add_parent(*('00', None, self.shape.mdevs, host_fixtures.VGPU, 0, PARENT) if self.shape.whole
                                   else ('p0', None, self.shape.mdevs))
            if self.shape.whole:
                machine.add_function(PARENT, host_fixtures.VGPU, traits=[traits.PCI_LIVE_MIGRATABLE])
            pointed = PointedStore(store, self._at_call)
            driver = Driver(name, configuration.conf, configuration.state_path, machine)
            manager = ClaimManager(name, driver, pointed, configuration.conf, compute_service.View(self.service, name))
            self.addCleanup(manager.close)
            self.hosts[name] = ModelHost(name, machine, manager, pointed)
        self._blank = {name: memory.of(host.manager) for name, host in self.hosts.items()}
        for name, host in self.hosts.items():
            self.start(name)
            host.uuid = host.manager.state().host_uuid

    # -- points -------------------------------------------------------------------------------------------------------

    def _at_call(self, call: str, changed: bool) -> None:
        self.dirty = self.dirty or changed
        if threading.get_ident() != self._thread:
            return                          # a manager that starts reads its views side by side, and changes nothing
        if self.at_point is not None:
            self.at_point(call)

    def point(self, what: str = 'the service') -> None:
        """The service did something that lasts."""
        self._at_call(what, True)

    # -- a copy that can be taken up again ----------------------------------------------------------------------------

    def snapshot(self, without: str = '') -> Snapshot:
        """Take a snapshot.

        :param without: a host whose manager's memory is lost
        """
        return Snapshot(
            tuple(database.rows() for database in self.databases),
            tuple(host.machine.snapshot() for host in self.hosts.values()),
            tuple(host.powered for host in self.hosts.values()),
            tuple(self._blank[name] if name == without or not memory.is_ready(host.manager)
                  else memory.of(host.manager) for name, host in self.hosts.items()),
            self.service.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        for database, rows in zip(self.databases, snapshot.rows, strict=True):
            database.restore(rows)
        for host, machine, powered, remembered in zip(self.hosts.values(), snapshot.machines, snapshot.powered,
                                                      snapshot.memories, strict=True):
            host.machine.restore(machine)
            host.powered = powered
            memory.put_back(host.manager, remembered)
        self.service.restore(snapshot.service)

    # -- what happens to hosts ----------------------------------------------------------------------------------------

    def database_of(self, host: str) -> Database:
        return self.databases[0 if self.shape.shared else list(self.hosts).index(host)]

    @contextlib.contextmanager
    def lagging(self, host: str, guest: Guest) -> Iterator[None]:
        """The store of a host shows no row of a guest during the block, in which nobody looks at the world.

        Commits in doubt wait: a store that has not seen everything does not settle them (``Store.settle``).
        """
        at_point, self.at_point = self.at_point, None
        store = self.hosts[host].store
        store.before('settle', exception.StoreUnavailable(store.name, 'it lags'), times=None)
        try:
            with self.database_of(host).without(self.hosts[host].uuid, guest.uuid):
                yield
        finally:
            store.clear()
            self.at_point = at_point

    def rows_of(self, host: str) -> list[Row]:
        return self.database_of(host).assignments(self.hosts[host].uuid)

    def start(self, host: str) -> list[Any]:
        """A new manager: nothing in its memory, and ``init_host``."""
        self.acting = host
        self.starting = True
        try:
            return self.hosts[host].manager.init_host(self.context)
        finally:
            self.starting = False

    def kill(self, host: str) -> None:
        """The manager's process is gone, and what it had in memory."""
        memory.put_back(self.hosts[host].manager, self._blank[host])

    def audit(self, host: str) -> list[Any]:
        self.acting = host
        return self.hosts[host].manager.update_available_resource(self.context, host)

    def failure(self, host: str, error: Callable[[str, str, str], exception.DeviceError]) -> Callable[[], None]:
        """Return what fails for the device that a driver is making ready, and remembers which one that was."""
        machine = self.hosts[host].machine

        def fail() -> None:
            [key] = machine.busy
            self.failed.add(key)
            raise error(*key, 'it does not answer')

        return fail

    @contextlib.contextmanager
    def failing(self, host: str, error: Callable[[str, str, str], exception.DeviceError],
                times: int | None) -> Iterator[None]:
        """Let no device of a host be made ready for the next ``times`` calls (None: all) during the block.

        :raises AssertionError: after that, claims can have a device that failed
        """
        machine = self.hosts[host].machine
        machine.before('realize', self.failure(host, error), times)
        try:
            yield
            now = memory.running(self.hosts[host].manager).ledger.now
            for device in map(now.device, self.failed):
                if device is not None and device.state == selection.FREE and not device.withheld:
                    raise GivenOut(f'claims can have {device.key[1]} of host {host}, which has just failed')
        finally:
            machine.clear()
            self.failed.clear()

    def instead(self, had: frozenset[HostDevice], host: str, resources: Any) -> frozenset[HostDevice]:
        """The devices of a guest for which a host has made devices ready: those that failed are others now."""
        if not self.failed:
            return had
        failed = {(host, key) for key in self.failed}
        has = host_devices(host, resources)
        if has & failed or not had - failed <= has or len(has) != len(had):
            raise WrongDevices(f'the host says {sorted(has)}, instead of {sorted(had)} without {sorted(failed)}')
        return has

    def follow_exchanges(self) -> None:
        """Let the service know the devices that took the place of failed ones in calls that then failed themselves.

        A later call tells it the same, but by then nobody knows any more which devices failed.
        """
        for guest in self.service.guests.values():
            rows = {(host, row.key) for host in self.hosts for row in self.rows_of(host)
                    if row.instance_uuid == guest.uuid}
            others = rows - guest.owned
            for end in ('current', 'new'):
                had = getattr(guest, end)
                gone = {place for place in had - rows if place[1] in self.failed}
                if gone and len(gone) == len(others):
                    setattr(guest, end, had - gone | others)
        self.failed.clear()

    # -- what happens to guests ---------------------------------------------------------------------------------------

    def request(self, size: int) -> DeviceRequest:
        """A request for so many devices of each kind that this world has."""
        return host_fixtures.a_request(pmem=size if self.shape.devices else 0, vgpu=size if self.shape.mdevs else 0)

    def start_guest(self, guest: Guest, host: str, elements: Sequence[str], metadata: str,
                    expected: frozenset[HostDevice]) -> None:
        """The hypervisor starts a guest, and the guest writes.

        :param expected: the devices that the service knows to be its own
        """
        keys = self.keys_at(host, fake.addresses_in(elements))
        if {(host, key) for key in keys} != expected:
            raise WrongDevices(f'{guest.name} is to start on {", ".join(key.identifier for key in keys) or "nothing"} '
                               f'and has {", ".join(sorted(key.identifier for _, key in expected)) or "nothing"}')
        self.hosts[host].machine.start_guest(guest.uuid, elements, metadata=metadata)
        self.write(guest, host, keys)
        self.point('the guest starts')

    def keys_at(self, host: str, addresses: Iterable[str]) -> list[DeviceKey]:
        found = [self.hosts[host].machine.key_at(address) for address in addresses]
        return [key for key in found if key is not None]

    def write(self, guest: Guest, host: str, keys: Iterable[DeviceKey]) -> None:
        """A guest reads what it finds and writes its own."""
        machine = self.hosts[host].machine
        for key in keys:
            found = machine.read(key)
            if found not in (b'', guest.token):
                raise Leak(f'{guest.name} reads on {host} {key.identifier} what {found.decode()} wrote')
            machine.write(key, guest.token)
            guest.written |= {(host, key)}

    def delete_guest(self, guest: Guest, host: str) -> None:
        if guest.uuid in self.hosts[host].machine.domains:
            self.hosts[host].machine.delete_guest(guest.uuid)
            self.point('the guest is gone')

    def stop_guest(self, guest: Guest, host: str) -> None:
        if self.hosts[host].lives(guest):
            self.hosts[host].machine.stop_guest(guest.uuid)
            self.point('the guest is off')


class WrongDevices(AssertionError):
    """A guest was to be started on other devices than those that it owns."""


class GivenOut(AssertionError):
    """A device that fails can be had."""


class Leak(AssertionError):
    """A guest found another guest's bytes."""


def host_devices(host: str, resources: Any) -> frozenset[tuple[str, DeviceKey]]:
    """Where the devices of an ``InstanceResources`` are."""
    return frozenset((host, DeviceKey(one.kind, one.identifier)) for one in resources)


def _without_waiting(connection: Any, _record: Any) -> None:
    connection.execute('PRAGMA synchronous = OFF')


