"""Two compute hosts and the service that moves instances between them, in one process.

The hosts are :class:`~devicetrack.testing.fixtures.Host`: real managers and stores, machines in memory, or hosts of a
test's own. The service's side is what a Nova-like one does, in its order, with its calls and no others::

    region = self.useFixture(region.Region(devices=2, shared_store=False))
    instance = region.spawn('one', pmem=1)
    migration = region.resize(instance, 'two', pmem=1)      # it waits for its confirmation
    region.confirm(instance, migration)

Where an instance is and how its migration stands is the truth that both hosts' managers are told when they ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fixtures

from devicetrack.objects import LiveMigrationCheck
from devicetrack.store import api as store_api
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing.fixtures import Host
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration


class TruthfulService(our_fixtures.Service):
    """What the service knows, told from one host: ``known`` and ``evacuated`` follow the region unless they are set."""

    def __init__(self, region: Region, name: str) -> None:
        super().__init__()
        self._region, self._name = region, name
        self.moves = region.migrations

    def instances(self) -> Any:
        if self.known is not None:
            return super().instances()
        words = {}
        for instance in self._region.instances:
            if instance.uuid in self._region.deleted:
                words[instance.uuid] = 'deleted'
            elif instance.host is None:
                words[instance.uuid] = 'offloaded'
            else:
                words[instance.uuid] = 'here' if instance.host == self._name else 'elsewhere'
        return words

    def evacuated_from_here(self) -> Any:
        if self.evacuated is not None:
            return super().evacuated_from_here()
        return [move.instance_uuid for move in self._region.evacuations
                if move.source_compute == self._name and move.status == 'done']


class Region(fixtures.Fixture):
    """Hosts ``one`` and ``two``.

    :param devices: so many namespaces ``d0``, ``d1``, … on each
    :param parents: mdev parents of each, as :class:`~devicetrack.testing.fixtures.Host` takes them
    :param shared_store: one store for both; else a store for each
    :param store: the store to share, when it is not a new SQLite file
    :param host: makes a host that is not ready, from the arguments of :class:`~devicetrack.testing.fixtures.Host`; its
        ``machine`` has the methods of :class:`~devicetrack.virt.fake.FakeHost` that start and end guests
    """

    def __init__(self, devices: int = 2, parents: dict[str, int] | None = None, shared_store: bool = False,
                 store: store_api.Store | None = None, host: Callable[..., Host] = Host) -> None:
        self._devices, self._parents, self._host = devices, parents, host
        self._shared, self._store = shared_store or store is not None, store
        self.instances: list[Instance] = []
        self.deleted: set[str] = set()
        self.migrations: list[Migration] = []
        self.evacuations: list[Migration] = []

    def _setUp(self) -> None:
        self.hosts: dict[str, Host] = {}
        for name in ('one', 'two'):
            configuration = self.useFixture(our_fixtures.Configuration(machine=name))
            host = self._host(self._devices, self._parents, name=name, configuration=configuration, store=self._store,
                              ready=False)
            host.service = TruthfulService(self, name)
            self.hosts[name] = self.useFixture(host)
            if self._shared and self._store is None:
                self._store = host.store.store
            host.findings = host.manager.init_host(host.context)

    @property
    def one(self) -> Host:
        return self.hosts['one']

    @property
    def two(self) -> Host:
        return self.hosts['two']

    # -- what the service does ----------------------------------------------------------------------------------------

    def spawn(self, name: str, pmem: int = 0, vgpu: int = 0, request: Any = None) -> Instance:
        """Here as in the others, ``request`` says what is asked for when amounts do not."""
        instance = Instance()
        self.instances.append(instance)
        return self.hosts[name].spawn(instance, request, pmem, vgpu)

    def migration(self, instance: Instance, name: str) -> Migration:
        """A migration of an instance to a host."""
        made = Migration(instance.host, name, instance.uuid)
        self.migrations.append(made)
        return made

    def resize(self, instance: Instance, name: str, pmem: int = 0, vgpu: int = 0, request: Any = None) -> Migration:
        """Resize or cold-migrate, to the same host too. The guest runs on its new devices when this ends.

        :returns: the migration, which waits for its confirmation
        """
        migration = self.migration(instance, name)
        self.hosts[name].resize(instance, pmem, vgpu, migration, request)
        self.finish_resize(instance, migration)
        return migration

    def finish_resize(self, instance: Instance, migration: Migration) -> None:
        """After the claim: stop the guest at the source, start it at the destination."""
        source, destination = self.hosts[str(migration.source_compute)], self.hosts[str(migration.dest_compute)]
        migration.status = 'migrating'
        source.machine.stop_guest(instance.uuid)
        migration.status = 'post-migrating'
        instance.host = instance.node = destination.name
        destination.boot(instance)
        migration.status = 'finished'

    def confirm(self, instance: Instance, migration: Migration) -> None:
        """Tell the source alone, as services do."""
        migration.status = 'confirming'
        source = self.hosts[str(migration.source_compute)]
        if migration.source_compute != migration.dest_compute:
            source.machine.delete_guest(instance.uuid)
        source.manager.drop_move_claim_at_source(source.context, instance, migration)
        migration.status = 'confirmed'

    def revert(self, instance: Instance, migration: Migration) -> None:
        """Tell the destination, then start the guest at the source."""
        source, destination = self.hosts[str(migration.source_compute)], self.hosts[str(migration.dest_compute)]
        migration.status = 'reverting'
        destination.machine.delete_guest(instance.uuid)
        destination.manager.drop_move_claim_at_dest(destination.context, instance, migration)
        instance.host = instance.node = source.name
        source.boot(instance)
        migration.status = 'reverted'

    def live_migrate(self, instance: Instance, name: str, pmem: int = 0, vgpu: int = 0,
                     request: Any = None) -> Migration:
        """Claim at the destination, take the guest over, end at both ends without another word to the source."""
        migration = self.live_migration(instance, name, pmem, vgpu, request)
        self.arrive(instance, migration)
        return migration

    def check(self, instance: Instance, name: str) -> LiveMigrationCheck:
        """Whether an instance's guest may go to a host, as both ends have it sent to one another."""
        source, destination = self.hosts[str(instance.host)].manager, self.hosts[name].manager
        asked = destination.check_can_live_migrate_destination(None, instance)
        answered = source.check_can_live_migrate_source(
            None, instance, LiveMigrationCheck.obj_from_primitive(asked.obj_to_primitive()))
        check: LiveMigrationCheck = LiveMigrationCheck.obj_from_primitive(answered.obj_to_primitive())
        return check

    def live_migration(self, instance: Instance, name: str, pmem: int = 0, vgpu: int = 0,
                       request: Any = None) -> Migration:
        """As far as the guest waits at the destination."""
        check = self.check(instance, name)
        migration = self.migration(instance, name)
        migration.status = 'preparing'
        source, destination = self.hosts[str(migration.source_compute)], self.hosts[name]
        destination.manager.live_migration_claim(
            destination.context, instance, name, migration, None,
            request or our_fixtures.a_request(pmem=pmem, vgpu=vgpu), check=check)
        destination.manager.realize(destination.context, instance)
        partners = destination.manager.device_map(instance, migration)
        migration.status = 'running'
        definitions = source.manager.migration_definitions(source.context, instance, migration, partners)
        destination.machine.receive_guest(instance.uuid, definitions)
        return migration

    def arrive(self, instance: Instance, migration: Migration) -> None:
        """The guest runs at the destination and is gone at the source."""
        source, destination = self.hosts[str(migration.source_compute)], self.hosts[str(migration.dest_compute)]
        source.machine.delete_guest(instance.uuid)
        destination.machine.arrived(instance.uuid)
        instance.host = instance.node = destination.name
        destination.manager.started(destination.context, instance)
        migration.status = 'completed'

    def roll_back(self, instance: Instance, migration: Migration) -> None:
        """A live migration that did not come off: tell the destination alone."""
        destination = self.hosts[str(migration.dest_compute)]
        destination.machine.delete_guest(instance.uuid)
        destination.manager.drop_move_claim_at_dest(destination.context, instance, migration)
        migration.status = 'error'

    def evacuate(self, instance: Instance, name: str, pmem: int = 0, vgpu: int = 0, request: Any = None) -> Migration:
        """Rebuild an instance of a host that is down on another one. The guest of the dead host may still be there."""
        migration = Migration(instance.host, name, instance.uuid, 'accepted')
        self.migrations.append(migration)
        self.evacuations.append(migration)
        destination = self.hosts[name]
        destination.manager.rebuild_claim(
            destination.context, instance, name, request or our_fixtures.a_request(pmem=pmem, vgpu=vgpu),
            migration=migration)
        destination.boot(instance)
        destination.manager.finish_evacuation(instance, name, migration)
        instance.host = instance.node = name
        migration.status = 'done'
        return migration

    def delete(self, instance: Instance) -> None:
        """Delete an instance where it is."""
        host = self.hosts[str(instance.host)]
        host.delete(instance)
        self.deleted.add(instance.uuid)

    # -- what is asked in tests ---------------------------------------------------------------------------------------

    def audit(self) -> list[Any]:
        """Audit both hosts, twice, so that each has heard what the other changed.

        :returns: what the second audits found
        """
        for _ in range(2):
            found = [finding for host in self.hosts.values() for finding in host.audit()]
        return found

    def rows(self, instance: Instance) -> dict[str, list[tuple[str, str, str]]]:
        """By host, (identifier, role, state) of the instance's rows."""
        return {name: [(record.identifier, record.role, record.state) for record in host.records(instance)]
                for name, host in self.hosts.items()}
