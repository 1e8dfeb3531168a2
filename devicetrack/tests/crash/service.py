"""A small compute service that uses every call of the claim manager, for the crash kit to kill."""

from __future__ import annotations

import dataclasses
from typing import Any
from typing import Final
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import GuestConfig
from devicetrack.testing import compute_service
from devicetrack.testing import fixtures
from devicetrack.testing.compute_service import Instance
from devicetrack.testing.compute_service import Migration
from devicetrack.testing.crash import process

# Statuses after which nothing is under way.
OVER: Final = ('confirmed', 'reverted', 'completed', 'done', 'failed', 'error')

# What an operator asked for a device or a parent, and whether it was answered.
CORDONING: Final = 'cordoning'
CORDONED: Final = 'cordoned'
UNCORDONING: Final = 'uncordoning'
UNCORDONED: Final = 'uncordoned'

# A device or a parent as ``cordon`` takes it: its kind and name, and whether it is a parent.
Target = tuple[str, str, bool]


@dataclasses.dataclass
class Flavor(compute_service.Flavor):
    """So many namespaces, vGPUs, virtual functions, whole cards, and functions that go together."""

    name: str = ''
    pmem: int = 0
    vgpu: int = 0
    vfs: int = 0
    cards: int = 0
    pairs: int = 0

    @property
    def request(self) -> Any:
        return DeviceRequest.of(*((name, amount) for name, amount in self.devices.items() if amount))

    @property
    def devices(self) -> dict[str, int]:
        return {fixtures.PMEM: self.pmem, fixtures.VGPU: self.vgpu, VF: self.vfs, CARD: self.cards,
                PAIR: 2 * self.pairs}


# Classes of PCI functions: a card's virtual functions, the card as a whole, and the two of one IOMMU group.
VF: Final = 'CUSTOM_VF'
CARD: Final = 'CUSTOM_CARD'
PAIR: Final = 'CUSTOM_PAIR'

NONE: Final = Flavor(name='none')
SMALL: Final = Flavor(name='small', pmem=1, vgpu=1, vfs=1)
LARGE: Final = Flavor(name='large', pmem=2, vgpu=2, vfs=2)
WHOLE: Final = Flavor(name='whole', pmem=1, cards=1, pairs=1)


class Data(compute_service.ServiceData):
    """The service's database, with what operators said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[Target, str] = {}

    def say(self, target: Target, word: str) -> None:
        """Note what an operator says of a device or a parent: that it is cordoned, or not any more."""
        self.said[target] = word

    def create(self, name: str, flavor: Flavor) -> str:
        """A new instance; its UUID follows from its name."""
        instance = Instance(uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), flavor=flavor)
        self.save(instance)
        return instance.uuid

    def migrate(self, kind: str, instance_uuid: str, source: str, destination: str) -> str:
        """A new migration; its UUID follows from its number."""
        number = len(self.migrations) + 1
        made = Migration(source, destination, instance_uuid, 'accepted',
                         str(uuid.uuid5(uuid.NAMESPACE_DNS, f'migration {number}')), number, kind)
        self.save(made)
        return made.uuid

    def of_host(self, host: str) -> list[Instance]:
        return [instance for instance in self.instances if instance.host == host]

    def evacuations_seen(self, host: str) -> None:
        """The source of evacuations is up again and has removed what they left."""
        for migration in self.migrations:
            if (migration.kind, migration.source_compute, migration.status) == (
                    compute_service.EVACUATION, host, 'done'):
                migration.status = 'completed'

    def owners(self) -> dict[str, dict[str, dict[str, int]]]:
        """By host and instance, the devices that it should own at rest."""
        owners: dict[str, dict[str, dict[str, int]]] = {}
        for instance in self.instances:
            if instance.state != compute_service.DELETED and instance.host is not None:
                owners.setdefault(instance.host, {})[instance.uuid] = instance.flavor.devices
        return owners


class Compute(compute_service.Compute, process.ComputeProcess):
    """The service's process on one host. Every method can be told again after a crash."""

    def __init__(self, parts: process.Parts) -> None:
        super().__init__(parts)
        self.manager = self.make_manager()

    def make_manager(self) -> ClaimManager:
        return ClaimManager(self.host, self.driver, self.store, self.conf, compute_service.View(self.data, self.host))

    def start(self) -> None:
        super().start()
        self.data.evacuations_seen(self.host)

    # -- as each service has it ---------------------------------------------------------------------------------------

    def start_guest(self, instance_uuid: str, config: GuestConfig) -> None:
        self.hypervisor.start_guest(instance_uuid, config)

    def delete_guest(self, instance_uuid: str) -> None:
        self.hypervisor.delete_guest(instance_uuid)

    def save(self, *changed: Any) -> None:
        self.data.save(*changed)

    def leave(self, instance: Instance) -> None:
        """The manager hears of it at once, and nothing of the guest stays."""
        self.manager.update_usage(self.context, instance, self.host)
        self.delete_guest(instance.uuid)

    def run_guest(self, instance: Instance) -> None:
        """A guest that was not turned off before its move was interrupted runs on."""
        if not self.hypervisor.guests().get(instance.uuid):
            super().run_guest(instance)

    # -- beyond what each service does --------------------------------------------------------------------------------

    def release(self, instance: Instance) -> None:
        """Give back what an instance has, whatever became of its guest."""
        self.manager.release(self.context, instance)

    def drop_claim(self, instance: Instance, prefix: str) -> None:
        """End a move by the call that has no migration at hand."""
        self.manager.drop_move_claim(self.context, instance, self.host, prefix=prefix)
        self.save(instance)

    def live_migrate(self, instance: Instance, migration: Migration, device_map: Any) -> None:
        """At the source: let the hypervisor do it."""
        self.send(instance, migration, device_map)
        self.hypervisor.hand_over(instance.uuid, migration.dest_compute)

    def send(self, instance: Instance, migration: Migration, device_map: Any) -> None:
        """At the source: let the hypervisor begin."""
        definitions = self.begin_live_migration(instance, migration, device_map)
        self.hypervisor.send_guest(instance.uuid, migration.dest_compute, definitions)

    # -- what an operator says ----------------------------------------------------------------------------------------

    def cordon(self, target: Target) -> None:
        self.data.say(target, CORDONING)
        self.manager.operator.cordon(*target)
        self.data.say(target, CORDONED)

    def uncordon(self, target: Target) -> None:
        self.data.say(target, UNCORDONING)
        self.manager.operator.uncordon(*target)
        self.data.say(target, UNCORDONED)

    def cordoned(self) -> set[Target]:
        """What is cordoned, by the manager's word."""
        return {(one.target.kind, one.target.name, one.target.scope == vocabulary.PARENT)
                for one in self.manager.operator.withheld() if vocabulary.CORDONED in one.causes}

    # -- after a crash ------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """After a start: carry on or undo what the process was doing to each instance of this host."""
        for instance in self.data.of_host(self.host):
            if instance.state in (compute_service.BUILDING, compute_service.DELETING):
                self.delete(instance)
            elif instance.state == compute_service.REBOOTING:
                self.hard_reboot(instance)
            elif instance.state == compute_service.ACTIVE and self.hypervisor.guests().get(instance.uuid) is False:
                self.manager.realize(self.context, instance)
                self.hypervisor.power_on(instance.uuid)


class BootFailed(exception.DeviceTrackError):
    """Staged."""


class FailingCompute(Compute):
    """Something else goes wrong when the guest runs, before anybody recorded it."""

    def run_guest(self, instance: Instance) -> None:
        super().run_guest(instance)
        raise BootFailed
