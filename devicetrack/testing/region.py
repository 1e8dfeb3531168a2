"""Two compute hosts and the service that moves instances between them, in one process.

The hosts are :class:`~devicetrack.testing.fixtures.Host`, with real managers and stores and machines in memory, or a
test's own hosts. The service makes the same calls as a Nova-like service, in the same order, and no others::

    region = self.useFixture(region.Region(devices=2, shared_store=False))
    instance = region.spawn('one', pmem=1)
    migration = region.resize(instance, 'two', pmem=1)      # it waits for its confirmation
    region.confirm(instance, migration)

The managers of both hosts get true answers when they ask where an instance is and what state its migration has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fixtures

from devicetrack.objects import LiveMigrationCheck
from devicetrack.store import api as store_api
from devicetrack.testing import compute_service
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing.fixtures import Host
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration


class Region(fixtures.Fixture, compute_service.ServiceData):
    """Hosts ``one`` and ``two``.

    :param devices: how many namespaces ``d0``, ``d1``, … each host has
    :param parents: the mdev parents of each host, as :class:`~devicetrack.testing.fixtures.Host` takes them
    :param shared_store: both hosts share one store. By default each has its own
    :param store: the store to share; a new SQLite file by default
    :param host: makes a host that is not ready, from the arguments of :class:`~devicetrack.testing.fixtures.Host`. Its
        ``machine`` must have the methods of :class:`~devicetrack.testing.fake.FakeHost` that start and end guests
    """

    def __init__(self, devices: int = 2, parents: dict[str, int] | None = None, shared_store: bool = False,
                 store: store_api.Store | None = None, host: Callable[..., Host] = Host) -> None:
        compute_service.ServiceData.__init__(self)
        self._devices, self._parents, self._host = devices, parents, host
        self._shared, self._store = shared_store or store is not None, store

    def _setUp(self) -> None:
        self.hosts: dict[str, Host] = {}
        for name in ('one', 'two'):
            configuration = self.useFixture(our_fixtures.Configuration(machine=name))
            host = self._host(self._devices, self._parents, name=name, configuration=configuration, store=self._store,
                              ready=False)
            host.service = our_fixtures.Service(self, name)
            self.hosts[name] = self.useFixture(host)
            if self._shared and self._store is None:
                self._store = host.store.store
            host.findings = host.manager.init_host(host.context)
            host.wait()

    @property
    def one(self) -> Host:
        return self.hosts['one']

    @property
    def two(self) -> Host:
        return self.hosts['two']

    # -- what the service does ----------------------------------------------------------------------------------------

    def spawn(self, name: str, pmem: int = 0, vgpu: int = 0, request: Any = None) -> Instance:
        """Boot an instance. If amounts say too little, hand in ``request``, here and to the other methods."""
        instance = Instance()
        self.instances.append(instance)
        return self.hosts[name].spawn(instance, request, pmem, vgpu)

    def migration(self, instance: Instance, name: str, kind: str = compute_service.RESIZE) -> Migration:
        """Make a migration of an instance to a host."""
        made: Migration = self.create_migration(instance, name, kind)
        return made

    def _ends(self, migration: Migration) -> tuple[Host, Host]:
        return self.hosts[str(migration.source_compute)], self.hosts[str(migration.dest_compute)]

    def resize(self, instance: Instance, name: str, pmem: int = 0, vgpu: int = 0, request: Any = None) -> Migration:
        """Resize or cold-migrate an instance, also on one host. Afterwards the guest runs on its new devices.

        :returns: the migration, which waits to be confirmed
        """
        migration = self.migration(instance, name)
        self.hosts[name].resize(instance, pmem, vgpu, migration, request)
        self.finish_resize(instance, migration)
        return migration

    def finish_resize(self, instance: Instance, migration: Migration) -> None:
        """After the claim: stop the guest at the source and start it at the destination."""
        source, destination = self._ends(migration)
        source.resize_instance(instance, migration)
        destination.finish_resize(instance, migration)

    def confirm(self, instance: Instance, migration: Migration) -> None:
        """Confirm a resize. Only the source is told, as services do."""
        self._ends(migration)[0].confirm_resize(instance, migration)

    def revert(self, instance: Instance, migration: Migration) -> None:
        """Revert a resize: tell the destination, then start the guest at the source."""
        source, destination = self._ends(migration)
        destination.revert_resize(instance, migration)
        source.finish_revert_resize(instance, migration)

    def live_migrate(self, instance: Instance, name: str, pmem: int = 0, vgpu: int = 0,
                     request: Any = None) -> Migration:
        """Live-migrate an instance. The service tells the source nothing more when the guest has arrived."""
        migration = self.live_migration(instance, name, pmem, vgpu, request)
        self.arrive(instance, migration)
        return migration

    def check(self, instance: Instance, name: str) -> LiveMigrationCheck:
        """Check at both ends whether a guest may go to a host. The ends send each other serialized objects."""
        asked = self.hosts[name].check_destination(instance)
        answered = self.hosts[str(instance.host)].check_source(
            instance, LiveMigrationCheck.obj_from_primitive(asked.obj_to_primitive()))
        check: LiveMigrationCheck = LiveMigrationCheck.obj_from_primitive(answered.obj_to_primitive())
        return check

    def live_migration(self, instance: Instance, name: str, pmem: int = 0, vgpu: int = 0,
                       request: Any = None) -> Migration:
        """Begin a live migration. Afterwards the guest waits at the destination."""
        check = self.check(instance, name)
        migration = self.migration(instance, name, compute_service.LIVE_MIGRATION)
        source, destination = self._ends(migration)
        partners = destination.prepare_live_migration(
            instance, migration, request or our_fixtures.a_request(pmem=pmem, vgpu=vgpu), check)
        definitions = source.begin_live_migration(instance, migration, partners)
        destination.machine.receive_guest(instance.uuid, definitions)
        return migration

    def arrive(self, instance: Instance, migration: Migration) -> None:
        """End a live migration: the guest runs at the destination and is gone at the source."""
        source, destination = self._ends(migration)
        source.machine.delete_guest(instance.uuid)
        destination.machine.arrived(instance.uuid)
        destination.arrived(instance)
        migration.status = 'completed'

    def roll_back(self, instance: Instance, migration: Migration) -> None:
        """Abort a live migration. Only the destination is told."""
        self._ends(migration)[1].roll_back(instance, migration)

    def evacuate(self, instance: Instance, name: str, pmem: int = 0, vgpu: int = 0, request: Any = None) -> Migration:
        """Rebuild an instance on host ``name``, because its own host is down. That host may still have the guest."""
        migration = self.migration(instance, name, compute_service.EVACUATION)
        self.hosts[name].evacuate(instance, migration, request or our_fixtures.a_request(pmem=pmem, vgpu=vgpu))
        return migration

    def delete(self, instance: Instance) -> None:
        """Delete an instance on the host where it is."""
        self.hosts[str(instance.host)].delete(instance)

    # -- questions of tests -------------------------------------------------------------------------------------------

    def audit(self) -> list[Any]:
        """Audit both hosts twice, so that each notices the other's changes.

        :returns: the findings of the second audits
        """
        for _ in range(2):
            found = [finding for host in self.hosts.values() for finding in host.audit()]
        return found

    def rows(self, instance: Instance) -> dict[str, list[tuple[str, str, str]]]:
        """The instance's rows by host, as (identifier, role, state)."""
        return {name: [(record.identifier, record.role, record.state) for record in host.records(instance)]
                for name, host in self.hosts.items()}
