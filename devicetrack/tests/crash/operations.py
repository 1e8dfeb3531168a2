"""The operations of a compute service, for the crash kit to interrupt."""

from __future__ import annotations

import contextlib
from typing import Any

from devicetrack import exception
from devicetrack.objects import traits
from devicetrack.testing import compute_service
from devicetrack.testing.crash import explore
from devicetrack.testing.crash import invariant
from devicetrack.testing.crash.machines import Machine
from devicetrack.testing.crash.world import World
from devicetrack.tests.crash import service

# After so many audits claims may try again what failed a few times.
AUDITS = 16


def machine() -> Machine:
    """Four namespaces, a parent that makes four vGPUs, a card with four virtual functions, and two that go together."""
    made = Machine()
    for number in range(4):
        made.add_namespace(f'd{number}')
    made.add_parent('p0', units=4)
    made.add_card('0000:81:00.0', 4, service.CARD, service.VF, [traits.PCI_LIVE_MIGRATABLE])
    for number in range(2):
        made.add_function(f'0000:82:00.{number}', service.PAIR, group='pair')
    return made


class ComputeOperation(explore.Operation):
    """An operation of our small service, on host ``a`` alone."""

    hosts: tuple[str, ...] = ('a',)
    process = service.Compute
    # The sizes to try for the instance that a manager boots which takes a host over.
    next_sizes: tuple[int, ...] = (4, 3, 2, 1)

    def machines(self) -> dict[str, Machine]:
        return {name: machine() for name in self.hosts}

    def data(self) -> service.Data:
        return service.Data()

    def finish(self, world: World) -> None:
        for host in world:
            if host.down:
                world.switch_on(host.name)
        for migration in list(world.data.migrations):
            if migration.status not in service.OVER and (
                    world.data.get_instance(migration.instance_uuid).state == compute_service.ACTIVE):
                finish_migration(world, migration)
        for instance in world.data.instances:
            if instance.host is None:           # nobody began, as far as the service knows
                instance.state = compute_service.DELETED
        for host in world:
            host.resume()

    def take_over(self, world: World, host: str) -> None:
        """Boot an instance that gets all that is free, and again by then, and begin to reboot it.

        What it wrote is there and no domain names it: only its rows keep the older manager from it.
        """
        # While somebody has a whole card, nobody gets a virtual function of it.
        for size, vfs in [(size, size) for size in self.next_sizes] + [(size, 0) for size in self.next_sizes]:
            with contextlib.suppress(exception.NoFit):
                instance_uuid = booted(world, host, service.Flavor(name='next', pmem=size, vgpu=size, vfs=vfs), 'next')
                world[host].hypervisor.delete_guest(instance_uuid)
                world.data.get_instance(instance_uuid).state = compute_service.REBOOTING
                return

    def owners(self, world: World) -> invariant.Owners:
        owners: invariant.Owners = world.data.owners()
        return owners


def finish_migration(world: World, migration: compute_service.Migration) -> None:
    """Carry on with a migration, or undo it."""
    def move() -> tuple[compute_service.Instance, compute_service.Migration]:
        return world.data.get_instance(migration.instance_uuid), world.data.get_migration(migration.uuid)

    source, destination = world[str(migration.source_compute)], world[str(migration.dest_compute)]
    if migration.kind == compute_service.EVACUATION:
        destination.roll_back(*move())
    elif migration.kind == compute_service.LIVE_MIGRATION:
        if source.hypervisor.guests().get(str(migration.instance_uuid)):
            destination.roll_back(*move())
        else:
            destination.arrived(move()[0])
            source.left(*move())
    elif migration.status in ('finished', 'confirming'):
        source.confirm_resize(*move())
    else:
        destination.revert_resize(*move())
        source.finish_revert_resize(*move())


def booted(world: World, host: str = 'a', flavor: service.Flavor = service.SMALL, name: str = 'one') -> str:
    """An instance that runs."""
    instance_uuid: str = world.data.create(name, flavor)
    world[host].spawn(world.data.get_instance(instance_uuid), flavor.request)
    return instance_uuid


# -- on one host ------------------------------------------------------------------------------------------------------


class Boot(ComputeOperation):
    name = 'boot'

    def setup(self, world: World) -> None:
        self.instance = world.data.create('one', service.LARGE)

    def run(self, world: World) -> None:
        instance = world.data.get_instance(self.instance)
        world['a'].spawn(instance, instance.flavor.request)


class BootWhole(Boot):
    """With a whole card, which nobody has then a virtual function of, and with all of an IOMMU group."""

    name = 'boot with a card'

    def setup(self, world: World) -> None:
        self.instance = world.data.create('one', service.WHOLE)


class BootPast(Boot):
    """With devices that cannot be made ready: others take their places. Later they can."""

    name = 'boot past devices that fail'

    def setup(self, world: World) -> None:
        super().setup(world)
        world['a'].machine.broken = dict.fromkeys(('d0', 'd1', '0000:81:00.1'), 'it does not answer')

    def finish(self, world: World) -> None:
        world['a'].machine.broken.clear()
        super().finish(world)
        # Audits count the pause after a failure, and a manager may have met one several times.
        for _ in range(AUDITS):
            world['a'].audit()


class Excluded(ComputeOperation):
    """Nobody gets a card while an instance has a virtual function of it; when that is gone, somebody does."""

    name = 'boot beside a function'

    def setup(self, world: World) -> None:
        self.instance = booted(world, flavor=service.Flavor(name='function', vfs=1))
        self.next = world.data.create('two', service.Flavor(name='card', cards=1))

    def run(self, world: World) -> None:
        for _again in range(2):
            instance = world.data.get_instance(self.next)
            with contextlib.suppress(exception.NoFit):
                world['a'].spawn(instance, instance.flavor.request)
            if world.data.get_instance(self.instance).state != compute_service.DELETED:
                world['a'].delete(world.data.get_instance(self.instance))


class FailedBoot(Boot):
    name = 'failed boot'
    process = service.FailingCompute

    def run(self, world: World) -> None:
        try:
            super().run(world)
        except service.BootFailed:
            world.data.get_instance(self.instance).state = compute_service.DELETED


class Delete(ComputeOperation):
    name = 'delete'

    def setup(self, world: World) -> None:
        self.instance = booted(world, flavor=service.LARGE)

    def run(self, world: World) -> None:
        world['a'].delete(world.data.get_instance(self.instance))


class DeleteSaved(ComputeOperation):
    """A guest has a managed-save image when its devices are given back. Then it comes back on them, and goes."""

    name = 'delete while saved'

    def setup(self, world: World) -> None:
        self.instance = booted(world, flavor=service.LARGE)
        world['a'].hypervisor.save_guest(self.instance)

    def run(self, world: World) -> None:
        with contextlib.suppress(exception.DeviceInUse):
            world['a'].release(world.data.get_instance(self.instance))
        world['a'].audit()

    def finish(self, world: World) -> None:
        if self.instance in world['a'].hypervisor.guests():
            world['a'].hypervisor.power_on(self.instance)
            world.trouble |= {wrong: ['the guest is back'] for wrong in invariant.at_a_moment(world, {})}
            world['a'].delete(world.data.get_instance(self.instance))
        super().finish(world)


class Reboot(ComputeOperation):
    name = 'hard reboot'

    def setup(self, world: World) -> None:
        self.instance = booted(world)

    def run(self, world: World) -> None:
        world['a'].hard_reboot(world.data.get_instance(self.instance))


class Rebuild(Reboot):
    name = 'rebuild'

    def run(self, world: World) -> None:
        instance = world.data.get_instance(self.instance)
        world['a'].rebuild(instance, instance.flavor.request)


class Reap(ComputeOperation):
    name = 'audit gives back'

    def setup(self, world: World) -> None:
        self.instance = booted(world)
        world['a'].hypervisor.delete_guest(self.instance)
        world.data.get_instance(self.instance).state = compute_service.DELETED

    def run(self, world: World) -> None:
        world['a'].audit()


class Cordon(ComputeOperation):
    """An operator cordons a device, and a parent whose devices an instance has."""

    name = 'cordon'
    targets = ('vpmem', 'd3', False), ('mdev', 'p0', True), ('pci', '0000:81:00.4', False)

    def setup(self, world: World) -> None:
        self.instance = booted(world)

    def run(self, world: World) -> None:
        for target in self.targets:
            world['a'].cordon(target)
        world['a'].delete(world.data.get_instance(self.instance))

    def finish(self, world: World) -> None:
        super().finish(world)
        for target, said in list(world.data.said.items()):       # the operator asks again, having got no answer
            if said == service.CORDONING:
                world['a'].cordon(target)
            elif said == service.UNCORDONING:
                world['a'].uncordon(target)

    def check(self, world: World) -> list[str]:
        said = {target for target, word in world.data.said.items() if word == service.CORDONED}
        found = world['a'].cordoned()
        return [] if found == said else [f'{found} is cordoned, and should be {said}']


class Uncordon(Cordon):
    name = 'uncordon'

    def setup(self, world: World) -> None:
        super().setup(world)
        for target in self.targets:
            world['a'].cordon(target)

    def run(self, world: World) -> None:
        for target in self.targets:
            world['a'].uncordon(target)


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
            world['a'].hard_reboot(instance)


# -- resize -----------------------------------------------------------------------------------------------------------


class Move(ComputeOperation):
    """From ``a`` to ``b``; subclasses stay on ``a``, or begin later."""

    hosts: tuple[str, ...] = ('a', 'b')
    kind = compute_service.RESIZE
    flavor = service.SMALL

    def setup(self, world: World) -> None:
        self.instance = booted(world, flavor=self.flavor)
        self.migrate(world)

    def migrate(self, world: World) -> None:
        self.migration = world.data.migrate(self.kind, self.instance, self.hosts[0], self.hosts[-1])

    def source(self, world: World) -> Any:
        return world[self.hosts[0]]

    def destination(self, world: World) -> Any:
        return world[self.hosts[-1]]

    def of(self, world: World) -> tuple[compute_service.Instance, compute_service.Migration]:
        """The instance and its migration, as the service has them now."""
        return world.data.get_instance(self.instance), world.data.get_migration(self.migration)

    def become(self, world: World, status: str) -> None:
        world.data.get_migration(self.migration).status = status


class Resize(Move):
    name = 'resize'
    flavors = service.SMALL, service.LARGE

    def setup(self, world: World) -> None:
        self.instance = booted(world, flavor=self.flavors[0])
        self.migrate(world)

    def run(self, world: World) -> None:
        self.claim(world)
        self.move(world)

    def claim(self, world: World) -> None:
        self.destination(world).prep_resize(*self.of(world), self.flavors[1], self.flavors[1].request)

    def move(self, world: World) -> None:
        self.source(world).resize_instance(*self.of(world))
        self.destination(world).finish_resize(*self.of(world))


class ResizeToWhole(Resize):
    """From a virtual function to a whole card."""

    name = 'resize to a card'
    flavors = service.SMALL, service.WHOLE


class Claimed(Resize):
    """Begins when the destination has its claim and the guest still runs at the source."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.claim(world)


class Resized(Claimed):
    """Begins when the resize waits to be confirmed."""

    def setup(self, world: World) -> None:
        super().setup(world)
        self.move(world)


class ConfirmResize(Resized):
    name = 'confirm resize'

    def run(self, world: World) -> None:
        self.become(world, 'confirming')
        self.source(world).confirm_resize(*self.of(world))


class RevertResize(Resized):
    name = 'revert resize'

    def run(self, world: World) -> None:
        self.become(world, 'reverting')
        self.destination(world).revert_resize(*self.of(world))
        self.source(world).finish_revert_resize(*self.of(world))


class RevertFromWhole(RevertResize):
    name = 'revert resize to a card'
    flavors = service.SMALL, service.WHOLE


class DeleteResized(Resized):
    name = 'delete resized'

    def run(self, world: World) -> None:
        self.destination(world).delete(world.data.get_instance(self.instance))
        self.source(world).audit()


class DeleteClaimed(Claimed):
    name = 'delete while claimed'

    def run(self, world: World) -> None:
        self.source(world).delete(world.data.get_instance(self.instance))
        self.destination(world).audit()


class DropNew(Claimed):
    name = 'drop new claim'

    def run(self, world: World) -> None:
        self.destination(world).drop_claim(world.data.get_instance(self.instance), 'new_')
        self.become(world, 'failed')


class DropOld(Resized):
    name = 'drop old claim'

    def run(self, world: World) -> None:
        self.become(world, 'confirmed')
        self.source(world).drop_claim(world.data.get_instance(self.instance), 'old_')


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


class LiveMigration(Move):
    name = 'live migration'
    kind = compute_service.LIVE_MIGRATION

    def claim(self, world: World) -> Any:
        """Ask both ends, and claim at the destination; which device becomes which."""
        source, destination, (instance, migration) = self.source(world), self.destination(world), self.of(world)
        check = source.check_source(instance, destination.check_destination(instance))
        return destination.prepare_live_migration(instance, migration, instance.flavor.request, check)

    def run(self, world: World) -> None:
        device_map = self.claim(world)
        self.source(world).live_migrate(*self.of(world), device_map)
        self.destination(world).arrived(world.data.get_instance(self.instance))
        self.source(world).left(*self.of(world))


class LiveRollback(LiveMigration):
    """The guest waits at the destination and does not get there."""

    name = 'live migration rollback'

    def setup(self, world: World) -> None:
        super().setup(world)
        device_map = self.claim(world)
        self.source(world).send(*self.of(world), device_map)

    def run(self, world: World) -> None:
        self.destination(world).roll_back(*self.of(world))
        self.source(world).audit()


# -- evacuation -------------------------------------------------------------------------------------------------------


class Evacuation(Move):
    name = 'evacuation'
    kind = compute_service.EVACUATION

    def setup(self, world: World) -> None:
        super().setup(world)
        world.switch_off('a')

    def run(self, world: World) -> None:
        self.destination(world).evacuate(*self.of(world), service.SMALL.request)


class SourceBack(Evacuation):
    name = 'source comes back'

    def setup(self, world: World) -> None:
        super().setup(world)
        super().run(world)

    def run(self, world: World) -> None:
        world.switch_on('a')


OPERATIONS: list[Any] = [
    Boot, BootPast, BootWhole, Excluded, FailedBoot, Delete, DeleteSaved, Reboot, Rebuild, Reap, Cordon, Uncordon,
    HostReboot, HostRebootAnew, Resize, ResizeToWhole, RevertFromWhole, ConfirmResize, RevertResize, DeleteResized,
    DeleteClaimed, DropNew, DropOld, SameHostResize, SameHostShrink, SameHostConfirm, SameHostRevert, SameHostDelete,
    SameHostDropNew, LiveMigration, LiveRollback, Evacuation, SourceBack,
]
