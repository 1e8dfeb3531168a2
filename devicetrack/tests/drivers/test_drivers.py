"""The suite, on every driver that needs nothing but this process."""

from __future__ import annotations

import uuid

from devicetrack.objects import DeviceMap
from devicetrack.tests.drivers import contract
from devicetrack.tests.drivers import worlds


class FakeDriverTestCase(contract.Contract):
    world_class = worlds.FakeWorld


class LibvirtTestDriverTestCase(contract.Contract):
    """The libvirt driver on libvirt's in-process test driver."""

    world_class = worlds.LibvirtTestWorld

    def test_a_guest_takes_along_what_plain_maps_say(self) -> None:
        self.start(self.assigned('mdev', self.world.mdev))
        other = str(uuid.uuid4())
        definitions = self.driver.migration_definitions(DeviceMap.from_mdevs(
            self.instance, str(uuid.uuid4()), {self.world.mdev: worlds.TYPE}, {self.world.mdev: other}))
        for text in definitions:
            self.assertEqual([other], self.world.named_in(str(text)))
            self.assertNotIn('devicetrack', str(text))
