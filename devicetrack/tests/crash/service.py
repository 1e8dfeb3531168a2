"""A small compute service that uses every call of the claim manager, for the crash kit to kill."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import Final
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.manager import ClaimManager
from devicetrack.testing import fixtures
from devicetrack.testing.crash import process

BUILDING: Final = 'building'
ACTIVE: Final = 'active'
REBOOTING: Final = 'rebooting'
DELETING: Final = 'deleting'
DELETED: Final = 'deleted'

RESIZE: Final = 'migration'
LIVE_MIGRATION: Final = 'live-migration'
EVACUATION: Final = 'evacuation'

# Statuses after which nothing is under way.
OVER: Final = ('confirmed', 'reverted', 'completed', 'done', 'failed', 'error')


# What an operator said of a device or a parent, and whether the answer has come.
DRAINING: Final = 'draining'
DRAINED: Final = 'drained'
UNDRAINING: Final = 'undraining'
UNDRAINED: Final = 'undrained'

# Its kind and name, and whether it is a parent.
Place = tuple[str, str, bool]


@dataclasses.dataclass
class Flavor:
    """So many namespaces and vGPUs."""

    name: str
    pmem: int = 0
    vgpu: int = 0
    extra_specs: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def request(self) -> Any:
        return fixtures.a_request(self.pmem, self.vgpu)

    @property
    def devices(self) -> dict[str, int]:
        return {fixtures.PMEM: self.pmem, fixtures.VGPU: self.vgpu}


NONE: Final = Flavor('none')
SMALL: Final = Flavor('small', pmem=1, vgpu=1)
LARGE: Final = Flavor('large', pmem=2, vgpu=2)


@dataclasses.dataclass
class Instance(fixtures.Instance):
    """An instance as the service's database has it."""

    flavor: Any = None
    state: str = BUILDING


@dataclasses.dataclass
class Migration:
    """A migration as the service's database has it."""

    uuid: str
    id: int
    kind: str
    instance_uuid: str
    source_compute: str
    source_node: str
    dest_compute: str
    dest_node: str
    new_flavor: Flavor
    status: str = 'accepted'


class Data:
    """The service's database."""

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.migrations: dict[str, Migration] = {}
        self.said: dict[Place, str] = {}

    def say(self, place: Place, word: str) -> None:
        """Note what an operator says of a device or a parent: that it is drained, or not any more."""
        self.said[place] = word

    def create(self, name: str, flavor: Flavor) -> str:
        """A new instance; its UUID follows from its name."""
        instance = Instance(uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), flavor=flavor)
        self.instances[instance.uuid] = instance
        return instance.uuid

    def migrate(self, kind: str, instance_uuid: str, source: str, destination: str, flavor: Flavor) -> str:
        """A new migration; its UUID follows from its number."""
        number = len(self.migrations) + 1
        made = Migration(str(uuid.uuid5(uuid.NAMESPACE_DNS, f'migration {number}')), number, kind, instance_uuid,
                         source, source, destination, destination, flavor)
        self.migrations[made.uuid] = made
        return made.uuid

    def instance(self, instance_uuid: str) -> Instance:
        return self.instances[instance_uuid]

    def migration(self, migration_uuid: str) -> Migration:
        return self.migrations[migration_uuid]

    def save(self, *changed: Instance | Migration) -> None:
        """Save what was changed, in one transaction."""
        for one in changed:
            if isinstance(one, Instance):
                self.instances[one.uuid] = one
            else:
                self.migrations[one.uuid] = one

    def of_host(self, host: str) -> list[Instance]:
        return [instance for instance in self.instances.values() if instance.host == host]

    # -- what a manager asks ------------------------------------------------------------------------------------------

    def known(self, host: str) -> Mapping[str, str]:
        """What ``ComputeService.instances`` says on a host."""
        known = {}
        for instance in self.instances.values():
            if instance.state == DELETED:
                known[instance.uuid] = 'deleted'
            elif instance.host is not None:
                known[instance.uuid] = 'here' if instance.host == host else 'elsewhere'
        return known

    def moving(self, host: str, uuids: Sequence[str]) -> Mapping[str, Migration]:
        """What ``MovingService.migrations`` says on a host."""
        return {migration.uuid: migration for migration in self.migrations.values()
                if migration.uuid in uuids or migration.source_compute == host}

    def evacuated(self, host: str) -> Collection[str]:
        """What ``MovingService.evacuated_from_here`` says on a host."""
        return [migration.instance_uuid for migration in self.migrations.values()
                if (migration.kind, migration.source_compute, migration.status) == (EVACUATION, host, 'done')
                and self.instances[migration.instance_uuid].host != host]

    def evacuations_seen(self, host: str) -> None:
        """The source of evacuations is up again and has seen to what they left."""
        for migration in self.migrations.values():
            if (migration.kind, migration.source_compute, migration.status) == (EVACUATION, host, 'done'):
                migration.status = 'completed'

    def owners(self) -> dict[str, dict[str, dict[str, int]]]:
        """By host and instance, the devices that it should own at rest."""
        owners: dict[str, dict[str, dict[str, int]]] = {}
        for instance in self.instances.values():
            if instance.state != DELETED and instance.host is not None:
                owners.setdefault(instance.host, {})[instance.uuid] = instance.flavor.devices
        return owners


class View:
    """What the manager asks, of the service's data at the other end of the line."""

    def __init__(self, data: Any, host: str) -> None:
        self._data, self._host = data, host

    def instances(self) -> Mapping[str, str]:
        known: Mapping[str, str] = self._data.known(self._host)
        return known

    def migrations(self, uuids: Sequence[str]) -> Mapping[str, Any]:
        moving: Mapping[str, Any] = self._data.moving(self._host, list(uuids))
        return moving

    def evacuated_from_here(self) -> Collection[str]:
        evacuated: Collection[str] = self._data.evacuated(self._host)
        return evacuated

    def fail_migration(self, migration_uuid: str) -> None:
        migration = self._data.migration(migration_uuid)
        migration.status = 'error'
        self._data.save(migration)


class BootFailed(exception.DeviceTrackError):
    """Staged."""


class Compute(process.ComputeProcess):
    """The service's process on one host. Every method can be told again after a crash."""

    def __init__(self, place: process.Place) -> None:
        super().__init__(place)
        self.manager = self.make_manager()

    def make_manager(self) -> ClaimManager:
        return ClaimManager(self.host, self.driver, self.store, self.conf, View(self.data, self.host))

    def start(self) -> None:
        super().start()
        self.data.evacuations_seen(self.host)

    # -- boot and delete ----------------------------------------------------------------------------------------------

    def boot(self, instance_uuid: str, fail: bool = False) -> None:
        """Claim, realize, start; with ``fail``, something else goes wrong before the guest starts."""
        instance = self.data.instance(instance_uuid)
        with self.manager.instance_claim(self.context, instance, self.host, instance.flavor.request):
            instance.host = instance.node = self.host
            self.data.save(instance)
            try:
                self._start_guest(instance)
                if fail:
                    raise BootFailed
                self.manager.started(self.context, instance)
            except Exception:
                self.hypervisor.delete_guest(instance_uuid)
                raise
        instance.state = ACTIVE
        self.data.save(instance)

    def _start_guest(self, instance: Instance) -> None:
        self.manager.realize(self.context, instance)
        self.hypervisor.start_guest(instance.uuid, self.manager.guest_config(instance))

    def delete(self, instance_uuid: str) -> None:
        instance = self.data.instance(instance_uuid)
        instance.state = DELETING
        self.data.save(instance)
        self.hypervisor.delete_guest(instance_uuid)
        self.manager.release(self.context, instance)
        instance.state = DELETED
        self.data.save(instance)

    def reboot(self, instance_uuid: str) -> None:
        """A hard reboot: everything about the guest is made again."""
        instance = self.data.instance(instance_uuid)
        instance.state = REBOOTING
        self.data.save(instance)
        self.hypervisor.delete_guest(instance_uuid)
        self._start_guest(instance)
        self.manager.started(self.context, instance)
        instance.state = ACTIVE
        self.data.save(instance)

    # -- resize -------------------------------------------------------------------------------------------------------

    def prep_resize(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the destination: claim."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        flavor = migration.new_flavor
        with self.manager.resize_claim(self.context, instance, flavor, self.host, migration, flavor.request):
            instance.old_flavor, instance.new_flavor = instance.flavor, flavor
            migration.status = 'pre-migrating'
            self.data.save(instance, migration)

    def resize_instance(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the source: turn the guest off."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        migration.status = 'migrating'
        self.data.save(migration)
        self.manager.update_usage(self.context, instance, self.host)
        self.hypervisor.delete_guest(instance_uuid)
        instance.host = instance.node = migration.dest_compute
        migration.status = 'post-migrating'
        self.data.save(instance, migration)

    def finish_resize(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the destination: start it there."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        instance.flavor = migration.new_flavor
        self.data.save(instance)
        self._start_guest(instance)
        self.manager.started(self.context, instance)
        migration.status = 'finished'
        self.data.save(instance, migration)

    def confirm_resize(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the source: the instance will not come back."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        migration.status = 'confirmed'
        self.data.save(migration)
        self.manager.drop_move_claim_at_source(self.context, instance, migration)
        instance.old_flavor = instance.new_flavor = None
        self.data.save(instance)

    def revert_resize(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the destination: undo what was done there."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        self.hypervisor.delete_guest(instance_uuid)
        self.manager.drop_move_claim_at_dest(self.context, instance, migration)
        instance.host = instance.node = migration.source_compute
        instance.flavor = instance.old_flavor or instance.flavor
        self.data.save(instance)

    def finish_revert_resize(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the source: start it there again."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        if not self.hypervisor.guests().get(instance_uuid):
            self._start_guest(instance)
        self.manager.started(self.context, instance)
        instance.old_flavor = instance.new_flavor = None
        migration.status = 'reverted'
        self.data.save(instance, migration)

    def drop_claim(self, instance_uuid: str, prefix: str) -> None:
        """End a move by the call that has no migration at hand."""
        instance = self.data.instance(instance_uuid)
        self.manager.drop_move_claim(self.context, instance, self.host, prefix=prefix)
        self.data.save(instance)

    # -- live migration -----------------------------------------------------------------------------------------------

    def check_destination(self, instance_uuid: str) -> Any:
        """At the destination: whether the guest may come."""
        return self.manager.check_can_live_migrate_destination(self.context, self.data.instance(instance_uuid))

    def check_source(self, instance_uuid: str, check: Any) -> Any:
        """At the source: what it declares of the guest's devices."""
        return self.manager.check_can_live_migrate_source(self.context, self.data.instance(instance_uuid), check)

    def claim_live(self, instance_uuid: str, migration_uuid: str, check: Any) -> Any:
        """At the destination: claim, and make the devices ready; which becomes which."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        with self.manager.live_migration_claim(self.context, instance, self.host, migration, None,
                                               instance.flavor.request, check=check):
            migration.status = 'preparing'
            self.data.save(instance, migration)
            self.manager.realize(self.context, instance)
            return self.manager.device_map(instance, migration)

    def live_migrate(self, instance_uuid: str, migration_uuid: str, device_map: Any) -> None:
        """At the source: let the hypervisor do it."""
        self.begin_live_migration(instance_uuid, migration_uuid, device_map)
        self.hypervisor.hand_over(instance_uuid, self.data.migration(migration_uuid).dest_compute)

    def begin_live_migration(self, instance_uuid: str, migration_uuid: str, device_map: Any) -> None:
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        migration.status = 'running'
        self.data.save(migration)
        definitions = self.manager.migration_definitions(self.context, instance, migration, device_map)
        self.hypervisor.send_guest(instance_uuid, migration.dest_compute, definitions)

    def arrived(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the destination: the guest runs here."""
        instance = self.data.instance(instance_uuid)
        self.manager.started(self.context, instance)
        instance.host = instance.node = self.host
        self.data.save(instance)

    def left(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the source: it is over."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        migration.status = 'completed'
        self.data.save(migration)
        self.manager.drop_move_claim_at_source(self.context, instance, migration)
        self.data.save(instance)

    def roll_back(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the destination: the guest stays where it was."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        self.hypervisor.delete_guest(instance_uuid)
        self.manager.drop_move_claim_at_dest(self.context, instance, migration)
        migration.status = 'failed'
        self.data.save(instance, migration)

    # -- rebuild and evacuation ---------------------------------------------------------------------------------------

    def rebuild(self, instance_uuid: str) -> None:
        """Make the guest anew where it is."""
        instance = self.data.instance(instance_uuid)
        instance.state = REBOOTING
        self.data.save(instance)
        with self.manager.rebuild_claim(self.context, instance, self.host, instance.flavor.request):
            self.hypervisor.delete_guest(instance_uuid)
            self._start_guest(instance)
            self.manager.started(self.context, instance)
        instance.state = ACTIVE
        self.data.save(instance)

    def evacuate(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the destination: make the guest of a host that is down."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        with self.manager.rebuild_claim(self.context, instance, self.host, instance.flavor.request,
                                        migration=migration):
            migration.status = 'pre-migrating'
            self.data.save(instance, migration)
            try:
                self._start_guest(instance)
                self.manager.started(self.context, instance)
            except Exception:
                self.hypervisor.delete_guest(instance_uuid)
                raise
        instance.host = instance.node = self.host
        migration.status = 'done'
        self.data.save(instance, migration)
        self.manager.finish_evacuation(instance, self.host, migration)
        self.data.save(instance)

    def give_up_evacuation(self, instance_uuid: str, migration_uuid: str) -> None:
        """At the destination: it did not come off."""
        instance, migration = self.data.instance(instance_uuid), self.data.migration(migration_uuid)
        self.hypervisor.delete_guest(instance_uuid)
        self.manager.drop_move_claim_at_dest(self.context, instance, migration)
        migration.status = 'failed'
        self.data.save(instance, migration)

    # -- what an operator says ----------------------------------------------------------------------------------------

    def drain(self, place: Place) -> None:
        self.data.say(place, DRAINING)
        self.manager.drain(*place)
        self.data.say(place, DRAINED)

    def undrain(self, place: Place) -> None:
        self.data.say(place, UNDRAINING)
        self.manager.undrain(*place)
        self.data.say(place, UNDRAINED)

    def drained(self) -> set[Place]:
        """What is drained, by the manager's word."""
        return {(one.target.kind, one.target.name, one.target.scope == vocabulary.PARENT)
                for one in self.manager.list_withheld() if vocabulary.DRAINED in one.causes}

    # -- after a crash ------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """After a start: carry on or undo what the process was doing to each instance of this host."""
        for instance in self.data.of_host(self.host):
            if instance.state in (BUILDING, DELETING):
                self.delete(instance.uuid)
            elif instance.state == REBOOTING:
                self.reboot(instance.uuid)
            elif instance.state == ACTIVE and self.hypervisor.guests().get(instance.uuid) is False:
                self.manager.realize(self.context, instance)
                self.hypervisor.power_on(instance.uuid)
