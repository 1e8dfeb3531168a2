"""What the tests of a virt driver are made of."""

from __future__ import annotations

import uuid

from devicetrack import vocabulary
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Use
from devicetrack.testing.kinds import base as kinds
from devicetrack.tests import base
from devicetrack.tests.drivers import worlds
from devicetrack.virt import driver as interface
from devicetrack.virt.libvirt import driver as libvirt_driver

HOST, PROVIDER, assignment = kinds.HOST, kinds.PROVIDER, kinds.assignment


def prove_all(driver: interface.VirtDriver) -> None:
    """Record that all devices which store data are clean, as the manager has it done before claims may have them."""
    if isinstance(driver, libvirt_driver.LibvirtDriver):        # those of the fake driver are proven from the beginning
        inventory = driver.get_inventory()
        driver._proofs.record({device.key: device.details for device in inventory.devices
                               if device.key in inventory.unproven}, vocabulary.READ)


class DriverTestCase(base.TestCase):
    """A test of a driver on the world of ``world_class``."""

    world_class: type[worlds.World]

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(self.world_class())
        self.driver = self.world.driver()
        self.addCleanup(self.driver.close)
        self.instance = str(uuid.uuid4())
        prove_all(self.driver)

    def devices(self) -> dict[DeviceKey, InventoryDevice]:
        return {device.key: device for device in self.driver.get_inventory().devices}

    def capacity(self) -> Capacity:
        capacity, = self.driver.get_inventory().capacities
        return capacity

    def assigned(self, kind: str, identifier: str, position: int = 0) -> DeviceAssignment:
        """An existing device, recorded for the instance."""
        device = self.devices()[DeviceKey(kind, identifier)]
        return self.recorded(kind, identifier, device.parent, device.details, position)

    def to_create(self) -> DeviceAssignment:
        """A mediated device that the instance shall get and that does not exist."""
        capacity = self.capacity()
        return self.recorded('mdev', str(uuid.uuid4()), capacity.parent, capacity.details)

    def recorded(self, kind: str, identifier: str, parent: str | None, text: str,
                 position: int = 0) -> DeviceAssignment:
        return assignment(self.instance, kind, identifier, parent, text, position)

    def start(self, *assignments: DeviceAssignment, define: bool = True) -> None:
        self.world.start_guest(self.instance, self.driver.guest_config(assignments), define)

    def uses(self) -> dict[DeviceKey, Use]:
        usage = self.driver.get_usage()
        self.assertEqual((), usage.unknown)
        return {DeviceKey(use.kind, str(use.identifier)): use for use in usage.uses}
