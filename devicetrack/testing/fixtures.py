"""A host with a claim manager, in a temporary directory, for tests of this project and of others.

A test of a compute service gets a real manager, a real store (SQLite) and a host in memory::

    from devicetrack.testing import fixtures

    class TestSpawn(testtools.TestCase):
        def test_error_in_the_block_frees_every_device(self):
            host = self.useFixture(fixtures.Host(devices=2))
            def attach_fails():
                with host.claim(fixtures.Instance(), pmem=2):
                    raise AttachRefused()
            self.assertRaises(AttachRefused, attach_fails)
            self.assertEqual({'d0': 'free', 'd1': 'free'}, host.states())
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import os
from typing import Any
from typing import TypeVar
import uuid

import fixtures
from oslo_config import cfg

from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.claims.manager import ClaimManager
from devicetrack.claims.providers import ProviderResolver
from devicetrack.claims.running import Running
from devicetrack.conf import opts
from devicetrack.engine import selection
from devicetrack.engine import withholding
from devicetrack.objects import details
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import InventoryDevice
from devicetrack.store import api as store_api
from devicetrack.testing import compute_service
from devicetrack.testing import databases
from devicetrack.testing import exclusions
from devicetrack.testing.compute_service import Flavor
from devicetrack.testing.compute_service import Instance
from devicetrack.testing.compute_service import Migration
from devicetrack.testing.staged_store import StagedStore
from devicetrack.virt import fake

__all__ = ['a_request', 'Configuration', 'Flavor', 'FREE', 'HELD', 'Host', 'Instance', 'Migration', 'path_of', 'PMEM',
           'Service', 'SQLiteStore', 'VGPU', 'WITHHELD']

FREE = 'free'
HELD = 'held'                                   # in the ledger, without a row
WITHHELD = 'withheld: '                         # and the reasons

PMEM = 'CUSTOM_PMEM_NAMESPACE_4GB'
VGPU = 'VGPU'


class Service(compute_service.View):
    """The compute service's view. A test can set its answers: a value, None for unknown, or an error to raise.

    ``known`` answers ``instances``, ``moves`` has the migrations, ``evacuated`` the instances that were evacuated from
    here.

    :param data: gives the answers that no test has set; without it these are unknown
    """

    def __init__(self, data: compute_service.ServiceData | None = None, host: str = '') -> None:
        super().__init__(data or compute_service.ServiceData(), host)
        self._tells = data is not None
        self.known: Mapping[str, str] | BaseException | None = None
        self.moves: list[Migration] | BaseException | None = self.data.migrations
        self.evacuated: list[str] | BaseException | None = None

    def instances(self, uuids: Set[str]) -> Mapping[str, str] | None:
        if self._tells and self.known is None:
            return super().instances(uuids)
        said = _said(self.known)
        # A real service answers only about the instances in question. Only a test sets an answer that is no mapping.
        return {uuid: said[uuid] for uuid in uuids if uuid in said} if isinstance(said, Mapping) else said

    def migrations(self, uuids: Sequence[str]) -> Mapping[str, Migration] | None:
        moves = _said(self.moves)
        return None if moves is None else {move.uuid: move for move in moves}

    def evacuated_from_here(self) -> Collection[str] | None:
        return super().evacuated_from_here() if self._tells and self.evacuated is None else _said(self.evacuated)


Answer = TypeVar('Answer')


def _said(answer: Answer | BaseException) -> Answer:
    if isinstance(answer, BaseException):
        raise answer
    return answer


class Configuration(fixtures.Fixture):
    """Every option at its default, except those that keep a test in its own directory; ``set`` changes more.

    ``conf`` is the configuration, a ``ConfigOpts`` with the options of this library. ``state_path`` is the host's state
    directory, a new one if none is given. The machine id is a file in it, with another name for each ``machine``.
    """

    def __init__(self, state_path: str | None = None, machine: str = 'a') -> None:
        self._given, self._machine = state_path, machine

    def _setUp(self) -> None:
        self.state_path = self._given or self.useFixture(fixtures.TempDir()).path
        machine_id = os.path.join(self.state_path, f'machine-id-{self._machine}')
        with open(machine_id, 'w', encoding='ascii') as file:
            file.write(uuid.uuid5(uuid.NAMESPACE_DNS, self._machine).hex + '\n')
        self.conf = cfg.ConfigOpts()
        opts.register_options(self.conf)
        self.conf([], project='devicetrack', default_config_files=[], default_config_dirs=[], use_env=False)
        self.set('devicetrack', state_path=self.state_path, machine_id_path=machine_id)

    def set(self, group: str, **values: Any) -> None:
        """Override options of a group."""
        for name, value in values.items():
            self.conf.set_override(name, value, group=group)


class SQLiteStore(fixtures.Fixture):
    """An empty SQLite store with its schema, in the file that ``conf`` names.

    ``store`` is the store, which is closed when the test ends. Hand it to a manager, or to a
    :class:`~devicetrack.testing.staged_store.StagedStore`.

    :param conf: the ``conf`` of a :class:`Configuration`
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf

    def _setUp(self) -> None:
        self.store = databases.open_store(self.conf)
        self.addCleanup(self.store.close)
        path = str(self.store.path)
        if not os.path.exists(path):
            databases.write_empty_sqlite(path)


class Host(fixtures.Fixture, compute_service.Compute):
    """One compute host: its machine in memory, its store, and a claim manager that is ready.

    It also makes the calls of a compute service: see :class:`~devicetrack.testing.compute_service.Compute`.

    :param devices: so many namespaces ``d0``, ``d1``, … of class ``PMEM``
    :param parents: mdev parents by name: how many devices of type ``nvidia-35``, class ``VGPU``, each can make
    :param policy: ``pack`` or ``spread``
    :param name: the host's name
    :param configuration: share another host's configuration, and with it its store
    :param store: share another host's store
    :param ready: call ``init_host``

    ``machine`` is the :class:`~devicetrack.virt.fake.FakeHost`, ``store`` a
    :class:`~devicetrack.testing.staged_store.StagedStore` on SQLite, ``service`` a :class:`Service`, ``manager`` the
    manager, ``conf`` its configuration, ``findings`` what the last start or :meth:`audit` found. When a test ends, rows
    and ledger must agree.
    """

    def __init__(self, devices: int = 0, parents: Mapping[str, int] | None = None, policy: str = 'pack',
                 name: str = 'host', configuration: Configuration | None = None,
                 store: store_api.Store | None = None, ready: bool = True) -> None:
        self.name = self.host = name
        self.machine = fake.FakeHost()
        for number in range(devices):
            self.machine.add_namespace(f'd{number}')
        for parent, units in (parents or {}).items():
            self.machine.add_parent(parent, units=units)
        self.service = Service()
        self.providers: ProviderResolver | None = None
        self.context = object()
        self._policy, self._configuration, self._store, self._ready = policy, configuration, store, ready

    def _setUp(self) -> None:
        self.configuration = self._configuration or self.useFixture(Configuration())
        self.conf = self.configuration.conf
        self.configuration.set('devicetrack', selection_policy=self._policy)
        self.store = StagedStore(self._store or self.useFixture(SQLiteStore(self.conf)).store)
        self.findings: list[Any] = []
        self._managers: list[ClaimManager] = []
        self.addCleanup(self._close)
        self.manager = self.another_manager()
        if self._ready:
            self.findings = self.manager.init_host(self.context)
        self.addCleanup(self._check_at_end)

    # -- managers -----------------------------------------------------------------------------------------------------

    def another_manager(self) -> ClaimManager:
        """A manager of this host that is not ready; it is closed when the test ends."""
        self.driver = fake.FakeDriver(self.name, self.conf, self.configuration.state_path, self.machine)
        manager = ClaimManager(self.name, self.driver, self.store, self.conf, self.service, self.providers)
        self._managers.append(manager)
        return manager

    def wait(self) -> None:
        """Wait until the manager has finished all wipes in the background."""
        self.manager.wait_for_wipes()

    def restart(self, wait: bool = True) -> list[Any]:
        """Replace the manager by a new one, as after a kill of its process.

        The memory is lost; rows and machine stay. Staged failures of the store and the machine stay too.

        :param wait: until the new manager has finished the wipes of the last one
        :returns: what ``init_host`` found
        """
        self.manager.close()
        self.manager = self.another_manager()
        self.findings = self.manager.init_host(self.context)
        if wait:
            self.wait()
        return self.findings

    def audit(self, wait: bool = True) -> list[Any]:
        """Audit the host.

        :param wait: until the devices that the audit gives back are wiped
        :returns: what the audit found
        """
        self.findings = self.manager.update_available_resource(self.context, self.name)
        if wait:
            self.wait()
        return self.findings

    # -- what a compute service does ----------------------------------------------------------------------------------

    def claim(self, instance: Instance, request: Any = None, pmem: int = 0, vgpu: int = 0) -> Claim:
        """Claim devices for an instance: by ``request`` (allocations or a request), or so many namespaces and vGPUs."""
        if request is None:
            request = a_request(pmem=pmem, vgpu=vgpu)
        return self.manager.instance_claim(self.context, instance, self.name, request)

    def spawn(self, instance: Instance | None = None, request: Any = None, pmem: int = 0, vgpu: int = 0) -> Instance:
        """Boot an instance with the devices of ``request``, or with so many namespaces and vGPUs."""
        spawned: Instance = super().spawn(instance or Instance(), request or a_request(pmem=pmem, vgpu=vgpu))
        return spawned

    def start_guest(self, instance_uuid: str, config: GuestConfig) -> None:
        self.machine.start_guest(instance_uuid, config.devices, metadata=config.metadata)

    def stop_guest(self, instance_uuid: str) -> None:
        self.machine.stop_guest(instance_uuid)

    def delete_guest(self, instance_uuid: str) -> None:
        self.machine.delete_guest(instance_uuid)

    def resize(self, instance: Instance, pmem: int = 0, vgpu: int = 0, migration: Migration | None = None,
               request: Any = None) -> Migration:
        """Claim here for a resize of an instance, which may be on this host.

        :returns: the migration, pending
        """
        if migration is None:
            migration = self.service.create_migration(self.context, instance, self.name, compute_service.RESIZE)
        self.manager.resize_claim(self.context, instance, self.name, request or a_request(pmem=pmem, vgpu=vgpu),
                                  migration, instance.flavor)
        return migration

    # -- what is asked in tests ---------------------------------------------------------------------------------------

    def states(self) -> dict[str, str]:
        """The state of every device, by identifier.

        The row says it, or else the ledger: ``FREE``, ``HELD``, or ``WITHHELD`` and the reasons.
        """
        states = {record.identifier: record.state for record in self.records()}
        for device in self.running.ledger.devices():
            if device.state != selection.FREE:
                states.setdefault(device.identifier or 'not named yet', HELD)
            elif device.withheld:
                states.setdefault(str(device.identifier), WITHHELD + withholding.text(device.withheld))
            else:
                states.setdefault(str(device.identifier), FREE)
        return states

    def owners(self) -> dict[str, str]:
        """By identifier, the instance that the store says owns it."""
        return {record.identifier: record.instance_uuid for record in self.records()}

    def held(self) -> dict[str, str]:
        """By identifier, the instance that the ledger holds it for."""
        return {device.identifier or 'not named yet': device.instance_uuid
                for device in self.running.ledger.devices() if device.instance_uuid is not None}

    def mdevs(self) -> list[str]:
        """Mediated devices that exist on the machine."""
        return [key.identifier for key in self.machine.devices if key.kind == fake.MDEV]

    def records(self, instance: Instance | None = None) -> list[Any]:
        """The rows of this host. Staged failures do not affect this reading."""
        host = self.store.store.host(self.name)
        if host is None:
            return []
        return list(self.store.store.records_of_host(host.uuid)) if instance is None else \
            self.store.store.records_of_instance(host.uuid, instance.uuid)

    def free(self) -> int:
        """How many more devices can be had, by the ledger."""
        return sum(pool.room for pool in self.running.ledger.pools_and_devices(())[0])

    @property
    def is_ready(self) -> bool:
        """Whether the manager works, in this process."""
        try:
            return self.running is not None
        except (exception.NotReady, exception.ForkedManager):
            return False

    @property
    def running(self) -> Running:
        """The parts of the manager's host, for tests that stage what no public call does."""
        running: Running = self.manager._started()
        return running

    def disagreements(self) -> list[str]:
        """Rows whose devices the ledger does not hold for their owner, and guests on devices without a row of theirs.

        This is the invariant for guests that this library placed: a device that a guest uses has a row, and is held.
        The answer also has the devices that the ledger excludes wrongly.
        """
        ledger = vars(self.running.ledger)['_ledger'] if self.is_ready else None
        wrong = [] if ledger is None else list(exclusions.disagreements(exclusions.of_ledger(ledger)))
        records = {record.key: record for record in self.records()}
        for record in self.running.ledger.not_held(list(records.values())) if self.is_ready else ():
            wrong.append(f'{record.identifier} has a row for {record.instance_uuid} and is not held for it')
        placed = {record.instance_uuid for record in records.values()}
        for use in self.machine.usage().uses:
            if use.domain_uuid in placed and use.identifier is not None:
                owner = records.get(DeviceKey(use.kind, use.identifier))
                if owner is None or owner.instance_uuid != use.domain_uuid:
                    wrong.append(f'{use.identifier} is used by {use.domain_uuid} without a row of its')
        return wrong

    def _close(self) -> None:
        for manager in self._managers:
            manager.close()

    def forgotten_contexts(self) -> list[str]:
        """Migration contexts of instances that no longer move here, by their rows."""
        host = self.store.store.host(self.name)
        moving = {(record.instance_uuid, record.migration_uuid) for record in self.records()}
        return [f'the context of migration {one.migration_uuid} of {one.instance_uuid} is left'
                for one in ([] if host is None else self.store.store.contexts(host.uuid))
                if (one.instance_uuid, one.migration_uuid) not in moving]

    def _check_at_end(self) -> None:
        if not self.is_ready or not (self.disagreements() or self.forgotten_contexts()):
            return
        # A release in the background may have ended between the look at the rows and that at the ledger.
        self.wait()
        if wrong := self.disagreements() + self.forgotten_contexts():
            raise AssertionError('; '.join(wrong))


def path_of(device: InventoryDevice) -> str:
    """The path of a namespace's device node, by which domains name the namespace."""
    path: str = details.from_text(device.details).devpath
    return path


def a_request(pmem: int = 0, vgpu: int = 0) -> DeviceRequest:
    """A request for so many namespaces and vGPUs from anywhere on the host."""
    return DeviceRequest.of(*((name, amount) for name, amount in ((PMEM, pmem), (VGPU, vgpu)) if amount))
