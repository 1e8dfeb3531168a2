"""What a compute service does, for the crash kit."""

from __future__ import annotations

from typing import Any

from devicetrack.testing.crash import explore
from devicetrack.testing.crash import invariant
from devicetrack.testing.crash.world import Machine
from devicetrack.testing.crash.world import World
from devicetrack.tests.crash import service


def machine() -> Machine:
    """Four namespaces, and a parent that makes four vGPUs."""
    made = Machine()
    for number in range(4):
        made.add_namespace(f'd{number}')
    made.add_parent('p0', units=4)
    return made


class ComputeOperation(explore.Operation):
    """An operation of our small service, on host ``a`` alone."""

    hosts: tuple[str, ...] = ('a',)
    process = service.Compute

    def machines(self) -> dict[str, Machine]:
        return {name: machine() for name in self.hosts}

    def data(self) -> service.Data:
        return service.Data()

    def finish(self, world: World) -> None:
        for host in world:
            if host.down:
                world.switch_on(host.name)
        for migration in list(world.data.migrations.values()):
            if migration.status not in service.OVER and (
                    world.data.instance(migration.instance_uuid).state == service.ACTIVE):
                finish_migration(world, migration)
        for instance in list(world.data.instances.values()):
            if instance.host is None:           # nobody began, as far as the service knows
                instance.state = service.DELETED
        for host in world:
            host.resume()

    def owners(self, world: World) -> invariant.Owners:
        owners: invariant.Owners = world.data.owners()
        return owners


def finish_migration(world: World, migration: service.Migration) -> None:
    """Carry on with a migration, or undo it."""
    of = migration.instance_uuid, migration.uuid
    source, destination = world[migration.source_compute], world[migration.dest_compute]
    if migration.kind == service.EVACUATION:
        destination.give_up_evacuation(*of)
    elif migration.kind == service.LIVE_MIGRATION:
        if source.hypervisor.guests().get(migration.instance_uuid):
            destination.roll_back(*of)
        else:
            destination.arrived(*of)
            source.left(*of)
    elif migration.status in ('finished', 'confirming'):
        source.confirm_resize(*of)
    else:
        destination.revert_resize(*of)
        source.finish_revert_resize(*of)


def booted(world: World, host: str = 'a', flavor: service.Flavor = service.SMALL, name: str = 'one') -> str:
    """An instance that runs."""
    instance_uuid: str = world.data.create(name, flavor)
    world[host].boot(instance_uuid)
    return instance_uuid


# -- on one host ------------------------------------------------------------------------------------------------------


class Boot(ComputeOperation):
    name = 'boot'

    def setup(self, world: World) -> None:
        self.instance = world.data.create('one', service.LARGE)

    def run(self, world: World) -> None:
        world['a'].boot(self.instance)


class FailedBoot(Boot):
    name = 'failed boot'

    def run(self, world: World) -> None:
        try:
            world['a'].boot(self.instance, True)
        except service.BootFailed:
            world.data.instance(self.instance).state = service.DELETED


class Delete(ComputeOperation):
    name = 'delete'

    def setup(self, world: World) -> None:
        self.instance = booted(world, flavor=service.LARGE)

    def run(self, world: World) -> None:
        world['a'].delete(self.instance)


class Reboot(ComputeOperation):
    name = 'hard reboot'

    def setup(self, world: World) -> None:
        self.instance = booted(world)

    def run(self, world: World) -> None:
        world['a'].reboot(self.instance)


class Rebuild(Reboot):
    name = 'rebuild'

    def run(self, world: World) -> None:
        world['a'].rebuild(self.instance)


class Reap(ComputeOperation):
    name = 'audit gives back'

    def setup(self, world: World) -> None:
        self.instance = booted(world)
        world['a'].hypervisor.delete_guest(self.instance)
        world.data.instance(self.instance).state = service.DELETED

    def run(self, world: World) -> None:
        world['a'].audit()


class Drain(ComputeOperation):
    """An operator drains a device, and a parent whose devices an instance has."""

    name = 'drain'
    places = ('vpmem', 'd3', False), ('mdev', 'p0', True)

    def setup(self, world: World) -> None:
        self.instance = booted(world)

    def run(self, world: World) -> None:
        for place in self.places:
            world['a'].drain(place)
        world['a'].delete(self.instance)

    def finish(self, world: World) -> None:
        super().finish(world)
        for place, said in list(world.data.said.items()):       # whoever got no answer says it again
            if said == service.DRAINING:
                world['a'].drain(place)
            elif said == service.UNDRAINING:
                world['a'].undrain(place)

    def check(self, world: World) -> list[str]:
        said = {place for place, word in world.data.said.items() if word == service.DRAINED}
        found = world['a'].drained()
        return [] if found == said else [f'{found} is drained, and should be {said}']


class Undrain(Drain):
    name = 'undrain'

    def setup(self, world: World) -> None:
        super().setup(world)
        for place in self.places:
            world['a'].drain(place)

    def run(self, world: World) -> None:
        for place in self.places:
            world['a'].undrain(place)


class HostReboot(ComputeOperation):
    name = 'start after host reboot'

    def setup(self, world: World) -> None:
        booted(world)
        booted(world, name='two')
        world.switch_off('a')

    def run(self, world: World) -> None:
        world.switch_on('a')
        world['a'].resume()


class HostRebootAnew(HostReboot):
    """Guests are defined anew, and not started by the definitions that are there."""

    name = 'hard reboot after host reboot'

    def run(self, world: World) -> None:
        world.switch_on('a')
        for instance in world.data.of_host('a'):
            world['a'].reboot(instance.uuid)


# -- resize -----------------------------------------------------------------------------------------------------------


class Resize(ComputeOperation):
    """From ``a`` to ``b``; subclasses stay on ``a``, or begin later."""

    name = 'resize'
    hosts: tuple[str, ...] = ('a', 'b')
    flavors = service.SMALL, service.LARGE

    def setup(self, world: World) -> None:
        self.instance = booted(world, flavor=self.flavors[0])
        self.migration = world.data.migrate(service.RESIZE, self.instance, self.hosts[0], self.hosts[-1],
                                            self.flavors[1])

    def run(self, world: World) -> None:
        self.claim(world)
        self.move(world)

    def claim(self, world: World) -> None:
        world[self.hosts[-1]].prep_resize(self.instance, self.migration)

    def move(self, world: World) -> None:
        world[self.hosts[0]].resize_instance(self.instance, self.migration)
        world[self.hosts[-1]].finish_resize(self.instance, self.migration)

    def become(self, world: World, status: str) -> None:
        world.data.migration(self.migration).status = status


class Resized(Resize):
    """Begins when the resize waits to be confirmed."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.claim(world)
        self.move(world)


class ConfirmResize(Resized):
    name = 'confirm resize'

    def run(self, world: World) -> None:
        self.become(world, 'confirming')
        world[self.hosts[0]].confirm_resize(self.instance, self.migration)


class RevertResize(Resized):
    name = 'revert resize'

    def run(self, world: World) -> None:
        self.become(world, 'reverting')
        world[self.hosts[-1]].revert_resize(self.instance, self.migration)
        world[self.hosts[0]].finish_revert_resize(self.instance, self.migration)


class DeleteResized(Resized):
    name = 'delete resized'

    def run(self, world: World) -> None:
        world[self.hosts[-1]].delete(self.instance)
        world[self.hosts[0]].audit()


class DeleteClaimed(Resize):
    """Deleted while the destination has its claim and the guest still runs at the source."""

    name = 'delete while claimed'

    def setup(self, world: World) -> None:
        super().setup(world)
        self.claim(world)

    def run(self, world: World) -> None:
        world[self.hosts[0]].delete(self.instance)
        world[self.hosts[-1]].audit()


class DropNew(Resize):
    name = 'drop new claim'

    def setup(self, world: World) -> None:
        super().setup(world)
        self.claim(world)

    def run(self, world: World) -> None:
        world[self.hosts[-1]].drop_claim(self.instance, 'new_')
        self.become(world, 'failed')


class DropOld(Resized):
    name = 'drop old claim'

    def run(self, world: World) -> None:
        self.become(world, 'confirmed')
        world[self.hosts[0]].drop_claim(self.instance, 'old_')


class SameHostResize(Resize):
    name = 'resize, same host'
    hosts = ('a',)


class SameHostShrink(Resize):
    name = 'resize to nothing, same host'
    hosts = ('a',)
    flavors = service.SMALL, service.NONE


class SameHostConfirm(ConfirmResize):
    name = 'confirm, same host'
    hosts = ('a',)


class SameHostRevert(RevertResize):
    name = 'revert, same host'
    hosts = ('a',)


class SameHostDelete(DeleteResized):
    name = 'delete resized, same host'
    hosts = ('a',)


class SameHostDropNew(DropNew):
    name = 'drop new claim, same host'
    hosts = ('a',)


# -- live migration ---------------------------------------------------------------------------------------------------


class LiveMigration(ComputeOperation):
    name = 'live migration'
    hosts = ('a', 'b')

    def setup(self, world: World) -> None:
        self.instance = booted(world)
        self.migration = world.data.migrate(service.LIVE_MIGRATION, self.instance, 'a', 'b', service.SMALL)

    def claim(self, world: World) -> Any:
        """Ask both ends, and claim at the destination; which device becomes which."""
        check = world['a'].check_source(self.instance, world['b'].check_destination(self.instance))
        return world['b'].claim_live(self.instance, self.migration, check)

    def run(self, world: World) -> None:
        of = self.instance, self.migration
        device_map = self.claim(world)
        world['a'].live_migrate(*of, device_map)
        world['b'].arrived(*of)
        world['a'].left(*of)


class LiveRollback(LiveMigration):
    """The guest waits at the destination and does not get there."""

    name = 'live migration rollback'

    def setup(self, world: World) -> None:
        super().setup(world)
        device_map = self.claim(world)
        world['a'].begin_live_migration(self.instance, self.migration, device_map)

    def run(self, world: World) -> None:
        world['b'].roll_back(self.instance, self.migration)
        world['a'].audit()


# -- evacuation -------------------------------------------------------------------------------------------------------


class Evacuation(ComputeOperation):
    name = 'evacuation'
    hosts = ('a', 'b')

    def setup(self, world: World) -> None:
        self.instance = booted(world)
        world.switch_off('a')
        self.migration = world.data.migrate(service.EVACUATION, self.instance, 'a', 'b', service.SMALL)

    def run(self, world: World) -> None:
        world['b'].evacuate(self.instance, self.migration)


class SourceBack(Evacuation):
    name = 'source comes back'

    def setup(self, world: World) -> None:
        super().setup(world)
        world['b'].evacuate(self.instance, self.migration)

    def run(self, world: World) -> None:
        world.switch_on('a')


OPERATIONS: list[Any] = [
    Boot, FailedBoot, Delete, Reboot, Rebuild, Reap, Drain, Undrain, HostReboot, HostRebootAnew,
    Resize, ConfirmResize, RevertResize, DeleteResized, DeleteClaimed, DropNew, DropOld,
    SameHostResize, SameHostShrink, SameHostConfirm, SameHostRevert, SameHostDelete, SameHostDropNew,
    LiveMigration, LiveRollback, Evacuation, SourceBack,
]
