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

from collections.abc import Callable
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
from devicetrack.claims.instance_fields import InstanceFields
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
from devicetrack.testing import fake
from devicetrack.testing.compute_service import Flavor
from devicetrack.testing.compute_service import Instance
from devicetrack.testing.compute_service import Migration
from devicetrack.testing.staged_store import StagedStore

__all__ = ['a_request', 'Configuration', 'Flavor', 'FREE', 'HELD', 'Host', 'Instance', 'Migration', 'path_of', 'PMEM',
           'Service', 'SQLiteStore', 'VGPU', 'WITHHELD']

FREE = 'free'
HELD = 'held'                                   # the ledger holds the device, and there is no row
WITHHELD = 'withheld: '                         # the reasons follow

PMEM = 'CUSTOM_PMEM_NAMESPACE_4GB'
VGPU = 'VGPU'


class Service(compute_service.View):
    """The compute service's view. A test can set its answers: a value, None for unknown, or an error to raise.

    ``known`` is the answer to ``instances``. ``moves`` has the migrations. ``evacuated`` has the instances that were
    evacuated from this host.

    :param data: gives the answers that the test has not set. Without it these are unknown
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
        # Like a real service, answer only about these instances. A test may also set an answer that is no mapping.
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
    """The options of this library, at their defaults. Only paths differ, to keep a test in its own directory.

    ``conf`` is a ``ConfigOpts`` with the options, and :meth:`set` overrides them. ``state_path`` is the host's state
    directory, a new one if none is given. It also has the file with the machine id, one for each ``machine``.
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

    ``store`` is open until the test ends. Hand it to a manager, or to a
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
    """One compute host: a machine in memory, a store, and a claim manager that is ready.

    It also makes the calls of a compute service: see :class:`~devicetrack.testing.compute_service.Compute`. At the end
    of the test the rows and the ledger must agree.

    :param devices: how many namespaces the machine has. Their names are ``d0``, ``d1``, …, and their class is ``PMEM``
    :param parents: how many devices of type ``nvidia-35`` and class ``VGPU`` an mdev parent can make, by its name
    :param policy: ``pack`` or ``spread``
    :param name: the host's name
    :param configuration: another host's configuration to share, and with it that host's store
    :param store: another host's store to share
    :param ready: call ``init_host``

    ``machine``
        The :class:`~devicetrack.testing.fake.FakeHost`.
    ``store``
        A :class:`~devicetrack.testing.staged_store.StagedStore` on SQLite.
    ``service``
        A :class:`Service`.
    ``manager``
        The claim manager.
    ``conf``
        The manager's configuration.
    ``findings``
        The findings of the last start or :meth:`audit`.
    ``after_wipe``
        What the manager calls in the background after it has wiped or read a device: nothing, unless a test sets it.
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
        self.instance_fields: InstanceFields | None = None
        self.context = object()
        self.after_wipe: Callable[[], object] = lambda: None
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
        """Make a manager of this host that is not ready. The fixture closes it when the test ends."""
        self.driver = fake.FakeDriver(self.name, self.conf, self.configuration.state_path, self.machine)
        manager = ClaimManager(self.name, self.driver, self.store, self.conf, self.service, self.providers,
                               instance_fields=self.instance_fields, after_wipe=lambda: self.after_wipe())
        self._managers.append(manager)
        return manager

    def wait(self) -> None:
        """Wait until the manager has finished all wipes in the background."""
        self.manager.wait_for_wipes()

    def restart(self, wait: bool = True) -> list[Any]:
        """Replace the manager by a new one, as if its process was killed and started again.

        The manager's memory is lost. The rows and the machine stay, and so do their staged failures.

        :param wait: wait until the new manager has finished the wipes of the old one
        :returns: the findings of ``init_host``
        """
        self.manager.close()
        self.manager = self.another_manager()
        self.findings = self.manager.init_host(self.context)
        if wait:
            self.wait()
        return self.findings

    def audit(self, wait: bool = True) -> list[Any]:
        """Audit the host.

        :param wait: wait until the devices that the audit gives back are wiped
        :returns: the findings
        """
        self.findings = self.manager.update_available_resource(self.context, self.name)
        if wait:
            self.wait()
        return self.findings

    # -- what a compute service does ----------------------------------------------------------------------------------

    def claim(self, instance: Instance, request: Any = None, pmem: int = 0, vgpu: int = 0) -> Claim:
        """Claim devices for an instance: those of ``request`` (allocations or a request), or so many of each class."""
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
        """Claim devices here for a resize of an instance. The instance may be on this host.

        :returns: the pending migration
        """
        if migration is None:
            migration = self.service.create_migration(self.context, instance, self.name, compute_service.RESIZE)
        self.manager.resize_claim(self.context, instance, self.name, request or a_request(pmem=pmem, vgpu=vgpu),
                                  migration, instance.flavor)
        return migration

    # -- questions of tests -------------------------------------------------------------------------------------------

    def states(self) -> dict[str, str]:
        """The state of every device, by identifier.

        It is the state in the device's row. Without a row the ledger says it: ``FREE``, ``HELD``, or ``WITHHELD`` with
        the reasons.
        """
        states = {record.identifier: record.state for record in self.records()}
        for device in self.running.ledger.now.states():
            if device.state != selection.FREE:
                states.setdefault(device.identifier or 'not named yet', HELD)
            elif device.withheld:
                states.setdefault(str(device.identifier), WITHHELD + withholding.text(device.withheld))
            else:
                states.setdefault(str(device.identifier), FREE)
        return states

    def owners(self) -> dict[str, str]:
        """The owner of each device that has a row, by identifier."""
        return {record.identifier: record.instance_uuid for record in self.records()}

    def held(self) -> dict[str, str]:
        """The instance for which the ledger holds a device, by identifier."""
        return {device.identifier or 'not named yet': device.instance_uuid
                for device in self.running.ledger.now.states() if device.instance_uuid is not None}

    def mdevs(self) -> list[str]:
        """The UUIDs of the mediated devices that exist on the machine."""
        return [key.identifier for key in self.machine.devices if key.kind == fake.MDEV]

    def records(self, instance: Instance | None = None) -> list[Any]:
        """The rows of this host, or of one instance on it. Staged failures do not affect this call."""
        host = self.store.store.host(self.name)
        if host is None:
            return []
        return list(self.store.store.records_of_host(host.uuid)) if instance is None else \
            self.store.store.records_of_instance(host.uuid, instance.uuid)

    def free(self) -> int:
        """How many more devices claims can take, by the ledger."""
        return sum(pool.room for pool in self.running.ledger.now.pool_states())

    @property
    def is_ready(self) -> bool:
        """Whether the manager is ready and belongs to this process."""
        try:
            return self.running is not None
        except (exception.NotReady, exception.ForkedManager):
            return False

    @property
    def running(self) -> Running:
        """The parts of the manager, for tests that need more than its public calls."""
        running: Running = self.manager._started()
        return running

    def disagreements(self) -> list[str]:
        """Everything that breaks the invariant for guests that this library placed, as texts.

        A device that such a guest uses must have a row of the guest's instance. The ledger must hold a device with a
        row for the row's instance. The answer also has the devices that the ledger excludes wrongly.
        """
        wrong = [] if not self.is_ready or self.running.ledger.is_discarded else list(
            exclusions.disagreements(exclusions.of_snapshot(self.running.ledger.now)))
        records = {record.key: record for record in self.records()}
        for record in self.running.ledger.now.not_held(list(records.values())) if self.is_ready else ():
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
        """The migration contexts of instances that, by their rows, no longer move here, as texts."""
        host = self.store.store.host(self.name)
        moving = {(record.instance_uuid, record.migration_uuid) for record in self.records()}
        return [f'the context of migration {one.migration_uuid} of {one.instance_uuid} is left'
                for one in ([] if host is None else self.store.store.contexts(host.uuid))
                if (one.instance_uuid, one.migration_uuid) not in moving]

    def _check_at_end(self) -> None:
        if not self.is_ready or not (self.disagreements() or self.forgotten_contexts()):
            return
        # A release in the background may have ended after the rows were read and before the ledger was.
        self.wait()
        if wrong := self.disagreements() + self.forgotten_contexts():
            raise AssertionError('; '.join(wrong))


def path_of(device: InventoryDevice) -> str:
    """The path of a namespace's device node. Domains name the namespace by this path."""
    path: str = details.from_text(device.details).devpath
    return path


def a_request(pmem: int = 0, vgpu: int = 0) -> DeviceRequest:
    """A request for so many namespaces and vGPUs, from any provider of the host."""
    return DeviceRequest.of(*((name, amount) for name, amount in ((PMEM, pmem), (VGPU, vgpu)) if amount))
