"""A compute service for tests: its data, its answers to claim managers, and its work on a host.

:class:`ServiceData` has the instances and the migrations. :class:`View` answers the manager of one host from them.
:class:`Compute` is the service on one host: it calls the manager at the right moments. A subclass says how guests start
and end on the host, and overrides the steps in which its service differs::

    class Compute(compute_service.Compute):
        def __init__(self, data, host, driver, store, conf):
            self.host, self.data = host, data
            self.manager = ClaimManager(host, driver, store, conf, compute_service.View(data, host))

        def save(self, *changed):
            self.data.save(*changed)

        def start_guest(self, instance_uuid, config):
            self.hypervisor.define_and_start(instance_uuid, *config)
        …

A move takes calls on both hosts in turn. :class:`~devicetrack.testing.region.Region` makes these calls.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import dataclasses
import itertools
from typing import Any
from typing import Final
import uuid

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects import DeviceMap
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import MigrationDefinitions

# States of an instance.
BUILDING: Final = 'building'
ACTIVE: Final = 'active'
REBOOTING: Final = 'rebooting'
DELETING: Final = 'deleting'
DELETED: Final = 'deleted'
OFFLOADED: Final = 'offloaded'

# Kinds of a migration.
RESIZE: Final = 'resize'
LIVE_MIGRATION: Final = 'live-migration'
EVACUATION: Final = 'evacuation'


@dataclasses.dataclass
class Flavor:
    extra_specs: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Instance:
    """An instance, as far as a manager reads and sets it. ``state`` is for the service alone."""

    uuid: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
    flavor: Any = None
    host: str | None = None
    node: str | None = None
    old_flavor: Any = None
    new_flavor: Any = None
    resources: Any = None
    migration_context: Any = None
    state: str = BUILDING


@dataclasses.dataclass
class Migration:
    """A migration, as far as a manager reads it. ``kind`` is for the service alone. A node has its host's name."""

    source_compute: str | None = None
    dest_compute: str | None = None
    instance_uuid: str | None = None
    status: str = 'pre-migrating'
    uuid: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))
    id: int = dataclasses.field(default_factory=itertools.count(1).__next__)
    kind: str = RESIZE

    @property
    def source_node(self) -> str | None:
        return self.source_compute

    @property
    def dest_node(self) -> str | None:
        return self.dest_compute


class ServiceData:
    """The instances and migrations of all hosts. It answers the questions of each host's manager about them."""

    def __init__(self) -> None:
        self.instances: list[Any] = []
        self.migrations: list[Any] = []

    def get_instance(self, instance_uuid: str) -> Any:
        return _find(self.instances, instance_uuid)

    def get_migration(self, migration_uuid: str) -> Any:
        return _find(self.migrations, migration_uuid)

    def save(self, *changed: Any) -> None:
        """Save instances and migrations. Each replaces the saved one with its UUID, or is added."""
        for one in changed:
            found = self.instances if isinstance(one, Instance) else self.migrations
            for number, saved in enumerate(found):
                if saved.uuid == one.uuid:
                    found[number] = one
                    break
            else:
                found.append(one)

    # -- what a manager asks ------------------------------------------------------------------------------------------

    def instances_of(self, host: str, uuids: Set[str]) -> Mapping[str, str] | None:
        """Answer ``instances`` of a host. The answer leaves out an instance that has no host yet: it is unknown."""
        return {one.uuid: one.state if one.state in (DELETED, OFFLOADED)
                else 'here' if one.host == host else 'elsewhere'
                for one in self.instances if one.uuid in uuids
                and (one.state in (DELETED, OFFLOADED) or one.host is not None)}

    def migrations_of(self, host: str, uuids: Sequence[str]) -> Mapping[str, Any] | None:
        """Answer ``migrations`` of a host."""
        return {one.uuid: one for one in self.migrations if one.uuid in uuids or one.source_compute == host}

    def evacuated_from(self, host: str) -> Collection[str] | None:
        """Answer ``evacuated_from_here`` of a host, where these instances may have left guests.

        An instance that is back on the host, or deleted, does not count.
        """
        away = {one.uuid for one in self.instances if one.host != host and one.state != DELETED}
        return [one.instance_uuid for one in self.migrations if one.instance_uuid in away
                and (one.kind, one.source_compute, one.status) == (EVACUATION, host, 'done')]

    def create_migration(self, instance: Any, nodename: str, kind: str) -> Any:
        """Make a migration of an instance."""
        created = Migration(instance.host, nodename, instance.uuid, kind=kind)
        self.migrations.append(created)
        return created

    def fail_migration(self, migration_uuid: str) -> None:
        """Set a migration to ``error``."""
        self.get_migration(migration_uuid).status = 'error'


def _find(things: list[Any], thing_uuid: str) -> Any:
    [found] = [one for one in things if one.uuid == thing_uuid]
    return found


class View:
    """Answers the manager of a host: a :class:`~devicetrack.claims.service.MovingService`.

    :param data: the :class:`ServiceData`, or a proxy of one in another process
    """

    def __init__(self, data: Any, host: str) -> None:
        self.data, self.host = data, host

    def instances(self, uuids: Set[str]) -> Mapping[str, str] | None:
        found: Mapping[str, str] | None = self.data.instances_of(self.host, uuids)
        return found

    def migrations(self, uuids: Sequence[str]) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.data.migrations_of(self.host, list(uuids))
        return found

    def evacuated_from_here(self) -> Collection[str] | None:
        found: Collection[str] | None = self.data.evacuated_from(self.host)
        return found

    def create_migration(self, context: Any, instance: Any, nodename: str, move_type: str) -> Any:
        return self.data.create_migration(instance, nodename, move_type)

    def fail_migration(self, migration_uuid: str) -> None:
        self.data.fail_migration(migration_uuid)


class Compute:
    """The compute service on one host.

    Subclasses set ``host``, ``manager`` and ``context``. Each method saves its changes to the instance and the
    migration. Methods that begin or end a move on one side have the names of Nova's methods.
    """

    host: str
    manager: ClaimManager
    context: Any = None

    # -- methods for a subclass ---------------------------------------------------------------------------------------

    def start_guest(self, instance_uuid: str, config: GuestConfig) -> None:
        """Define a guest, in place of an earlier definition, and start it."""
        raise NotImplementedError

    def stop_guest(self, instance_uuid: str) -> None:
        """Turn a guest off. Its definition stays."""
        raise NotImplementedError

    def delete_guest(self, instance_uuid: str) -> None:
        """Turn a guest off and undefine it. It is no error if the guest is gone already."""
        raise NotImplementedError

    def save(self, *changed: Any) -> None:
        """Save instances and migrations in the service's database, in one transaction."""

    # -- the life of a guest ------------------------------------------------------------------------------------------

    def spawn(self, instance: Any, request: Any) -> Any:
        """Boot a new instance with devices, or leave nothing of it behind.

        :returns: the instance
        """
        with self.manager.instance_claim(self.context, instance, self.host, request):
            instance.host = instance.node = self.host
            instance.state = BUILDING
            self.save(instance)
            self.boot_or_clean_up(instance)
        instance.state = ACTIVE
        self.save(instance)
        return instance

    def boot_or_clean_up(self, instance: Any) -> None:
        """Boot a guest in the block of its claim.

        After an error this removes the guest, before the claim takes its devices back.
        """
        try:
            self.boot(instance)
        except exception.HostTakenOver:
            raise                               # the guest belongs to a newer process
        except Exception:
            self.delete_guest(instance.uuid)
            raise

    def boot(self, instance: Any) -> None:
        """Start the guest on the instance's devices and record that it runs."""
        self.run_guest(instance)
        self.manager.started(self.context, instance)

    def run_guest(self, instance: Any) -> None:
        """Make the instance's devices ready and start its guest on them."""
        self.manager.realize(self.context, instance)
        self.start_guest(instance.uuid, self.manager.guest_config(instance))

    def hard_reboot(self, instance: Any) -> None:
        """Remove the guest, and start it anew on the same devices."""
        instance.state = REBOOTING
        self.save(instance)
        self.delete_guest(instance.uuid)
        self.boot(instance)
        instance.state = ACTIVE
        self.save(instance)

    def rebuild(self, instance: Any, request: Any) -> None:
        """Rebuild the guest on its host, in the block of a rebuild claim."""
        instance.state = REBOOTING
        self.save(instance)
        with self.manager.rebuild_claim(self.context, instance, self.host, request):
            self.delete_guest(instance.uuid)
            self.boot(instance)
        instance.state = ACTIVE
        self.save(instance)

    def delete(self, instance: Any) -> None:
        """Remove the guest and give back its devices."""
        instance.state = DELETING
        self.save(instance)
        self.delete_guest(instance.uuid)
        self.manager.release(self.context, instance)
        instance.state = DELETED
        self.save(instance)

    # -- resize and cold migration ------------------------------------------------------------------------------------

    def prep_resize(self, instance: Any, migration: Any, flavor: Any, request: Any) -> None:
        """At the destination: claim the devices."""
        with self.manager.resize_claim(self.context, instance, self.host, request, migration, flavor):
            instance.old_flavor, instance.new_flavor = instance.flavor, flavor
            migration.status = 'pre-migrating'
            self.save(instance, migration)

    def resize_instance(self, instance: Any, migration: Any) -> None:
        """At the source: turn the guest off. The instance is on the destination from now on."""
        migration.status = 'migrating'
        self.save(migration)
        self.leave(instance)
        instance.host = instance.node = migration.dest_compute
        migration.status = 'post-migrating'
        self.save(instance, migration)

    def leave(self, instance: Any) -> None:
        """At the source: end the guest. Its definition may stay until the move is confirmed."""
        self.stop_guest(instance.uuid)

    def finish_resize(self, instance: Any, migration: Any) -> None:
        """At the destination: start the guest there."""
        instance.flavor = instance.new_flavor or instance.flavor
        self.save(instance)
        self.boot(instance)
        migration.status = 'finished'
        self.save(instance, migration)

    def confirm_resize(self, instance: Any, migration: Any) -> None:
        """At the source: give the old devices back, because the instance will not come back."""
        migration.status = 'confirmed'
        self.save(migration)
        if migration.source_compute != migration.dest_compute:
            self.delete_guest(instance.uuid)
        self.manager.drop_move_claim_at_source(self.context, instance, migration)
        instance.old_flavor = instance.new_flavor = None
        self.save(instance)

    def revert_resize(self, instance: Any, migration: Any) -> None:
        """At the destination: delete the guest and give its devices back. The instance goes back to the source."""
        migration.status = 'reverting'
        self.save(migration)
        self.delete_guest(instance.uuid)
        self.manager.drop_move_claim_at_dest(self.context, instance, migration)
        instance.host = instance.node = migration.source_compute
        instance.flavor = instance.old_flavor or instance.flavor
        self.save(instance)

    def finish_revert_resize(self, instance: Any, migration: Any) -> None:
        """At the source: start the guest there again."""
        self.boot(instance)
        instance.old_flavor = instance.new_flavor = None
        migration.status = 'reverted'
        self.save(instance, migration)

    # -- live migration and evacuation --------------------------------------------------------------------------------

    def check_destination(self, instance: Any) -> LiveMigrationCheck:
        """At the destination: check whether the guest may come. The service sends the answer to the source."""
        return self.manager.check_can_live_migrate_destination(instance)

    def check_source(self, instance: Any, check: LiveMigrationCheck | None) -> LiveMigrationCheck:
        """At the source: add the declarations of the guest's devices. The service sends them to the destination."""
        return self.manager.check_can_live_migrate_source(instance, check)

    def prepare_live_migration(self, instance: Any, migration: Any, request: Any,
                               check: LiveMigrationCheck | None) -> DeviceMap:
        """At the destination: claim devices and make them ready. The service sends the map to the source."""
        with self.manager.live_migration_claim(self.context, instance, self.host, request, migration,
                                               check=check):
            migration.status = 'preparing'
            self.save(instance, migration)
            self.manager.realize(self.context, instance)
            return self.manager.device_map(instance, migration)

    def begin_live_migration(self, instance: Any, migration: Any, device_map: DeviceMap) -> MigrationDefinitions:
        """At the source: return the definitions with which the hypervisor copies the guest."""
        migration.status = 'running'
        self.save(migration)
        return self.manager.migration_definitions(self.context, instance, migration, device_map)

    def arrived(self, instance: Any) -> None:
        """At the destination: record that the guest runs here."""
        self.manager.started(self.context, instance)
        instance.host = instance.node = self.host
        self.save(instance)

    def left(self, instance: Any, migration: Any) -> None:
        """At the source: record that the guest is gone."""
        migration.status = 'completed'
        self.save(migration)
        self.manager.drop_move_claim_at_source(self.context, instance, migration)
        self.save(instance)

    def roll_back(self, instance: Any, migration: Any) -> None:
        """At the destination of a live migration or an evacuation: the guest did not arrive. Give its devices back."""
        self.delete_guest(instance.uuid)
        self.manager.drop_move_claim_at_dest(self.context, instance, migration)
        migration.status = 'failed'
        self.save(instance, migration)

    def evacuate(self, instance: Any, migration: Any, request: Any) -> None:
        """At the destination: rebuild the guest of a host that is down."""
        with self.manager.rebuild_claim(self.context, instance, self.host, request, migration=migration):
            migration.status = 'pre-migrating'
            self.save(instance, migration)
            self.boot_or_clean_up(instance)
        instance.host = instance.node = self.host
        migration.status = 'done'
        self.save(instance, migration)
        self.manager.finish_evacuation(self.context, instance, self.host, migration)
        self.save(instance)
