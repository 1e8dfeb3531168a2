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

    hosts = ('a',)
    process = service.Compute

    def machines(self) -> dict[str, Machine]:
        return {name: machine() for name in self.hosts}

    def data(self) -> service.Data:
        return service.Data()

    def finish(self, world: World) -> None:
        for instance in world.data.instances.values():
            if instance.host is None:           # nobody began, as far as the service knows
                instance.state = service.DELETED
        for host in world:
            host.resume()

    def owners(self, world: World) -> invariant.Owners:
        owners: invariant.Owners = world.data.owners()
        return owners

    def booted(self, world: World, name: str = 'one', flavor: service.Flavor = service.SMALL, host: str = 'a') -> str:
        """An instance that runs."""
        instance_uuid: str = world.data.create(name, flavor)
        world[host].boot(instance_uuid)
        return instance_uuid


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
        self.instance = self.booted(world, flavor=service.LARGE)

    def run(self, world: World) -> None:
        world['a'].delete(self.instance)


class Reboot(ComputeOperation):
    name = 'hard reboot'

    def setup(self, world: World) -> None:
        self.instance = self.booted(world)

    def run(self, world: World) -> None:
        world['a'].reboot(self.instance)


class Reap(ComputeOperation):
    name = 'audit gives back'

    def setup(self, world: World) -> None:
        self.instance = self.booted(world)
        world['a'].machine.delete_guest(self.instance)
        world.data.instance(self.instance).state = service.DELETED

    def run(self, world: World) -> None:
        world['a'].audit()


OPERATIONS: list[Any] = [Boot, FailedBoot, Delete, Reboot, Reap]
