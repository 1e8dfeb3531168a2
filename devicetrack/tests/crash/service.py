"""A small compute service that uses every call of the claim manager, for the crash kit to kill."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from typing import Any
from typing import Final
import uuid

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager
from devicetrack.testing import fixtures
from devicetrack.testing.crash import process

BUILDING: Final = 'building'
ACTIVE: Final = 'active'
REBOOTING: Final = 'rebooting'
DELETING: Final = 'deleting'
DELETED: Final = 'deleted'


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


SMALL: Final = Flavor('small', pmem=1, vgpu=1)
LARGE: Final = Flavor('large', pmem=2, vgpu=2)


@dataclasses.dataclass
class Instance(fixtures.Instance):
    """An instance as the service's database has it."""

    flavor: Any = None
    state: str = BUILDING


class Data:
    """The service's database."""

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}

    def create(self, name: str, flavor: Flavor) -> str:
        """A new instance; its UUID follows from its name."""
        instance = Instance(uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), flavor=flavor)
        self.instances[instance.uuid] = instance
        return instance.uuid

    def instance(self, instance_uuid: str) -> Instance:
        return self.instances[instance_uuid]

    def save(self, instance: Instance) -> None:
        self.instances[instance.uuid] = instance

    def of_host(self, host: str) -> list[Instance]:
        return [instance for instance in self.instances.values() if instance.host == host]

    def known(self, host: str) -> Mapping[str, str]:
        """What ``ComputeService.instances`` says on a host."""
        return {instance.uuid: 'deleted' if instance.state == DELETED else 'here'
                for instance in self.instances.values() if instance.state == DELETED or instance.host == host}

    def owners(self) -> dict[str, dict[str, dict[str, int]]]:
        """By host and instance, the devices that it should own at rest."""
        owners: dict[str, dict[str, dict[str, int]]] = {}
        for instance in self.instances.values():
            if instance.state != DELETED and instance.host is not None:
                owners.setdefault(instance.host, {})[instance.uuid] = instance.flavor.devices
        return owners


class View:
    """What the manager asks."""

    def __init__(self, data: Any, host: str) -> None:
        self._data, self._host = data, host

    def instances(self) -> Mapping[str, str]:
        known: Mapping[str, str] = self._data.known(self._host)
        return known


class BootFailed(exception.DeviceTrackError):
    """Staged."""


class Compute(process.ComputeProcess):
    """The service's process on one host. Every method can be told again after a crash."""

    def __init__(self, place: process.Place) -> None:
        super().__init__(place)
        self.manager = self.make_manager()

    def make_manager(self) -> ClaimManager:
        return ClaimManager(self.host, self.driver, self.store, self.conf, View(self.data, self.host))

    # -- boot and delete ----------------------------------------------------------------------------------------------

    def boot(self, instance_uuid: str, fail: bool = False) -> None:
        """Claim, realize, start; with ``fail``, something else goes wrong before the guest starts."""
        instance = self.data.instance(instance_uuid)
        with self.manager.instance_claim(self.context, instance, self.host, instance.flavor.request):
            instance.host = instance.node = self.host
            self.data.save(instance)
            try:
                self._start(instance)
                if fail:
                    raise BootFailed
                self.manager.started(self.context, instance)
            except Exception:
                self.hypervisor.delete_guest(instance_uuid)
                raise
        instance.state = ACTIVE
        self.data.save(instance)

    def _start(self, instance: Instance) -> None:
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
        self._start(instance)
        self.manager.started(self.context, instance)
        instance.state = ACTIVE
        self.data.save(instance)

    # -- after a crash ------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """After a start: carry on or undo what the process was doing to each instance of this host."""
        for instance in self.data.of_host(self.host):
            if instance.state == BUILDING:
                self.delete(instance.uuid)
            elif instance.state == REBOOTING:
                self.reboot(instance.uuid)
            elif instance.state == DELETING:
                self.delete(instance.uuid)
