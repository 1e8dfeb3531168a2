"""The suite, on every driver that needs nothing but this process."""

from __future__ import annotations

import os
import uuid

from devicetrack import exception
from devicetrack.objects import DeviceMap
from devicetrack.objects.values import GuestConfig
from devicetrack.tests.drivers import contract
from devicetrack.tests.drivers import worlds


class FakeDriverTestCase(contract.Contract):
    world_class = worlds.FakeWorld


class LibvirtTestDriverTestCase(contract.Contract):
    """The libvirt driver on libvirt's in-process test driver."""

    world_class = worlds.LibvirtTestWorld

    def test_what_a_snapshot_names_is_not_touched_until_it_is_deleted(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.start(wanted)
        self.world.stop_guest(self.instance)
        self.world.write('ns0', b'secret')
        assert isinstance(self.world, worlds.LibvirtTestWorld)
        connection = self.world.node.connect()
        connection.lookupByUUIDString(self.instance).snapshotCreateXML('<domainsnapshot><name>s</name></domainsnapshot>')
        connection.defineXML(self.world.as_defined(self.instance, GuestConfig()))
        [error] = self.driver.unclaim([wanted]).values()
        self.assertIsInstance(error, exception.DeviceInUse)
        self.assertFalse(self.world.is_clean('ns0'))
        self.assertEqual({(False, False)}, {(use.live, use.defined) for use in self.uses().values()})
        connection.lookupByUUIDString(self.instance).snapshotLookupByName('s').delete()
        self.assertEqual([None], list(self.driver.unclaim([wanted]).values()))

    def named_by(self, device: str) -> set[str]:
        """The namespaces that a domain with one device uses, which is off."""
        assert isinstance(self.world, worlds.LibvirtTestWorld)
        domain = self.world.node.connect().defineXML(self.world.as_defined(self.instance, GuestConfig((device,))))
        try:
            return {key.identifier for key in self.uses()}
        finally:
            domain.undefine()

    def test_a_disk_by_a_link_is_a_use(self) -> None:
        assert isinstance(self.world, worlds.LibvirtTestWorld)
        links = self.temp_dir()
        os.symlink(os.path.join(self.world.files, 'ns0'), os.path.join(links, 'disk'))
        os.symlink(self.world.files, os.path.join(links, 'directory'))
        for path in (f'{links}/disk', f'{links}/directory/ns0', f'{self.world.files}/./ns0'):
            for source in (f"<disk type='file'><source file='{path}'/><target dev='vda'/></disk>",
                           f"<disk type='block'><source dev='{path}'/><target dev='vda'/></disk>"):
                self.assertEqual({'ns0'}, self.named_by(source))

    def test_a_guest_takes_along_what_plain_maps_say(self) -> None:
        self.start(self.assigned('mdev', self.world.mdev))
        other = str(uuid.uuid4())
        definitions = self.driver.migration_definitions(DeviceMap.from_mdevs(
            self.instance, str(uuid.uuid4()), {self.world.mdev: worlds.TYPE}, {self.world.mdev: other}))
        for text in definitions:
            self.assertEqual([other], self.world.named_in(str(text)))
            self.assertNotIn('devicetrack', str(text))
