"""Two kinds that offer one thing on the host: neither hands it out."""

from __future__ import annotations

from collections.abc import Mapping
import os

import libvirt

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Overlap
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.virt.test_installed import DETAILS
from devicetrack.tests.unit.virt.test_installed import Tape
from devicetrack.virt.libvirt import containment
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import overlaps
from devicetrack.virt.libvirt.kinds import vpmem

A, B, C = DeviceKey('a', 'x'), DeviceKey('b', 'y'), DeviceKey('b', 'z')
FUNCTION = '0000:3d:00.1'


class FindTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.directory = self.temp_dir()
        self.file = os.path.join(self.directory, 'file')
        with open(self.file, 'w', encoding='ascii'):
            pass
        for name, make in (('hard', os.link), ('soft', os.symlink)):
            make(self.file, os.path.join(self.directory, name))
        self.sysfs = os.path.join(self.directory, 'sys')
        disk = os.path.join(self.sysfs, f'devices/pci0000:3c/{FUNCTION}/nvme/nvme0/null')
        os.makedirs(disk)
        os.makedirs(os.path.join(self.sysfs, 'dev/char'))
        os.symlink(disk, os.path.join(self.sysfs, 'dev/char/1:3'))       # /dev/null, of which every host has one

    def found(self, *nodes: str) -> list[tuple[DeviceKey, DeviceKey]]:
        return [overlap.devices for overlap in overlaps.find(
            dict(zip((A, B, C), nodes, strict=False)), containment.Look(self.sysfs))]

    def test_one_address(self) -> None:
        self.assertEqual([(A, B)], self.found(FUNCTION, '00000000:3D:00.1', '0000:3d:00.2'))

    def test_one_file_by_any_name(self) -> None:
        for other in ('file', './file', 'hard', 'soft'):
            self.assertEqual([(A, B)], self.found(self.file, os.path.join(self.directory, other)))
        self.assertEqual([], self.found(self.file, self.directory))

    def test_one_device_node(self) -> None:
        os.symlink('/dev/null', os.path.join(self.directory, 'by-id'))
        self.assertEqual([(A, B)], self.found('/dev/null', os.path.join(self.directory, 'by-id'), '/dev/zero'))

    def test_a_node_and_the_function_behind_it(self) -> None:
        self.assertEqual([(A, C)], self.found(FUNCTION, '/dev/zero', '/dev/null'))
        self.assertEqual([(B, A)], self.found('/dev/null', FUNCTION))

    def test_two_nodes_behind_one_function_are_two_devices(self) -> None:
        os.symlink(os.readlink(os.path.join(self.sysfs, 'dev/char/1:3')), os.path.join(self.sysfs, 'dev/char/1:5'))
        self.assertEqual([], self.found('/dev/null', '/dev/zero'))

    def test_paths_that_lead_nowhere(self) -> None:
        self.assertEqual([(A, B)], self.found('/nowhere/a', '/nowhere/./a', '/nowhere/b'))


class Other(Tape):
    """It offers the file of a namespace by a link, and a path of its own."""

    name = 'other'
    resource_classes = frozenset(('CUSTOM_OTHER',))
    paths: Mapping[str, str] = {}

    def node(self, device: InventoryDevice) -> str | None:
        return self.paths[device.identifier]


class StartTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.directory = self.temp_dir()
        for name in ('ns0', 'ns1'):
            with open(os.path.join(self.directory, name), 'wb') as file:
                file.truncate(8 << 20)
        self.link = os.path.join(self.temp_dir(), 'disk')
        os.symlink(os.path.join(self.directory, 'ns0'), self.link)
        self.configuration.set('libvirt', pmem_namespaces=['4GB:ns0|ns1'], connection_uri='test:///default')
        self.configuration.set('devicetrack_vpmem', directory=self.directory)
        self.offer(self.link)

    def offer(self, *paths: str) -> None:
        Other.paths = {os.path.basename(path): path for path in paths}
        Other.said = tuple(InventoryDevice('other', name, '', 'CUSTOM_OTHER', None, None, DETAILS)
                           for name in Other.paths)
        self.addCleanup(setattr, Other, 'said', ())

    def manager(self) -> ClaimManager:
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [Other, vpmem.VPMEM],
                                              lambda: libvirt.open('test:///default'))
        self.addCleanup(driver.close)
        store = self.useFixture(fixtures.SQLiteStore(self.conf)).store
        manager = ClaimManager('host', driver, store, self.conf)
        self.addCleanup(manager.close)
        return manager

    def test_the_start_is_refused(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, self.manager().init_host, self.context)
        self.assertIn('other/disk, vpmem/ns0', str(error))

    def test_at_an_audit_nobody_gets_either_of_them(self) -> None:
        self.offer()
        manager = self.manager()
        manager.init_host(self.context)
        self.offer(self.link)
        findings = manager.update_available_resource(self.context, 'host')
        self.assertEqual({('unhealthy', 'ns0'), ('unhealthy', 'disk')},
                         {(one.kind, one.device.identifier) for one in findings})
        self.assertEqual({'ns0', 'disk'}, {one.target.name for one in manager.operator.withheld()})

    def test_other_devices_are_left_alone(self) -> None:
        self.offer(os.path.join(self.temp_dir(), 'another'))
        self.assertEqual([], self.manager().init_host(self.context))

    def test_a_file_of_two_names_is_no_namespace(self) -> None:
        self.offer()
        os.link(os.path.join(self.directory, 'ns0'), os.path.join(self.directory, 'ns2'))
        manager = self.manager()
        manager.init_host(self.context)
        [withheld] = manager.operator.withheld()
        self.assertIn('the file has another name too', str(withheld))


class FakeTestCase(base.TestCase):

    def test_the_fake_host_stages_it(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2, ready=False))
        host.machine.overlaps = (Overlap((DeviceKey('vpmem', 'd0'), DeviceKey('vpmem', 'd1')), '/dev/dax0.0'),)
        self.assertRaises(exception.InvalidConfiguration, host.manager.init_host, self.context)
