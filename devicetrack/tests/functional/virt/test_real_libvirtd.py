"""The libvirt driver on a real libvirtd, with guests under QEMU in software and files for namespaces."""

from __future__ import annotations

import os
import signal
import time
from typing import Any
import uuid

import fixtures
import libvirt

from devicetrack import exception
from devicetrack.objects import DeviceMap
from devicetrack.objects import DevicePair
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.drivers import worlds
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import vpmem


class RealLibvirtdTestCase(base.TestCase):

    own_processes = False

    def setUp(self) -> None:
        super().setUp()
        self.daemon = self.useFixture(libvirt_fixtures.Libvirtd())
        self.files = self.useFixture(fixtures.TempDir()).path
        # One that fits, and one whose size no guest can have to the last byte.
        for name, size in (('ns0', 8 << 20), ('ns1', (6 << 20) + 4096)):
            with open(os.path.join(self.files, name), 'wb') as file:
                file.truncate(size)
        self.configuration.set('libvirt', pmem_namespaces=['4GB:ns0|ns1'], connection_uri=self.daemon.uri)
        self.configuration.set('devicetrack_vpmem', directory=self.files)
        self.configuration.set('devices', enabled_mdev_types=['mtty-1'])
        self.driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [mdev.Mdev, vpmem.VPMEM])
        self.addCleanup(self.driver.close)
        self.instance = str(uuid.uuid4())

    def assigned(self, position: int, name: str) -> Any:
        device, = (device for device in self.driver.get_inventory().devices if device.identifier == name)
        return contract.assignment(self.instance, 'vpmem', name, None, device.details, position)

    def start(self, *assignments: Any) -> Any:
        definition = libvirt_fixtures.guest(self.instance, self.driver.guest_config(assignments, 'g1'), kind='qemu')
        self.connection = self.daemon.connect()
        domain = self.connection.defineXML(definition)
        domain.create()
        return domain

    def test_a_guest_runs_with_what_guest_config_says(self) -> None:
        wanted = [self.assigned(0, 'ns1'), self.assigned(1, 'ns0')]
        domain = self.start(*wanted)
        live = domain_xml.parse(domain.XMLDesc(0))
        self.assertEqual(self.instance, live.uuid)
        self.assertEqual(tuple(os.path.join(self.files, name) for name in ('ns1', 'ns0')), live.memory_paths)
        assert live.record is not None
        self.assertEqual([('vpmem', 'ns1', 0, worlds.text_of(wanted[0])),
                          ('vpmem', 'ns0', 1, worlds.text_of(wanted[1]))],
                         [(device.kind, device.identifier, device.position, device.details)
                          for device in live.record.devices])
        usage = self.driver.get_usage()
        self.assertEqual({('ns0', True, True, True), ('ns1', True, True, True)},
                         {(use.identifier, use.running, use.live, use.defined) for use in usage.uses})
        self.assertEqual((frozenset((self.instance,)), ()), (usage.running, usage.unknown))
        self.assertEqual([(8 << 20), (6 << 20) + 4096],
                         [os.path.getsize(os.path.join(self.files, name)) for name in ('ns0', 'ns1')])

    def test_bytes_stay_until_the_guest_is_gone_and_then_none_does(self) -> None:
        wanted = self.assigned(0, 'ns0')
        domain = self.start(wanted)
        path = os.path.join(self.files, 'ns0')
        with open(path, 'r+b') as file:
            file.write(b'secret')
        key = DeviceKey('vpmem', 'ns0')
        self.assertIsInstance(self.driver.unclaim([wanted])[key], exception.DeviceInUse)
        domain.destroy()
        self.assertIsInstance(self.driver.unclaim([wanted])[key], exception.DeviceInUse)
        domain.undefine()
        self.assertEqual({key: None}, self.driver.unclaim([wanted]))
        with open(path, 'rb') as file:
            self.assertEqual(bytes(8 << 20), file.read())

    def test_a_guest_that_names_a_device_by_another_path_uses_it(self) -> None:
        wanted = self.assigned(0, 'ns0')
        other = os.path.join(self.temp_dir(), 'link')
        os.symlink(os.path.join(self.files, 'ns0'), other)
        definition = libvirt_fixtures.guest(self.instance, self.driver.guest_config([wanted]), 'qemu')
        definition = definition.replace(os.path.join(self.files, 'ns0'), other)
        domain = self.daemon.connect().createXML(definition, 0)
        use, = self.driver.get_usage().uses
        self.assertEqual(('ns0', other, True, False), (use.identifier, use.address, use.live, use.defined))
        domain.destroy()

    def test_a_daemon_that_was_killed_and_started_again_is_asked_again(self) -> None:
        self.start(self.assigned(0, 'ns0'))
        before = self.driver.get_usage()
        self.daemon.stop(signal.SIGKILL)
        self.assertRaises(exception.HypervisorUnreachable, self.driver.get_usage)
        self.assertEqual(['mdev'], [unknown.what for unknown in self.driver.get_inventory().unknown])
        self.daemon.start()
        self.assertEqual(before, self.driver.get_usage())
        # A daemon that comes back between two calls is not even noticed.
        self.daemon.stop(signal.SIGKILL)
        self.daemon.start()
        self.assertEqual(before, self.driver.get_usage())

    def boot_again(self) -> None:
        """Let every namespace have another path, as a boot of the host may."""
        moved = os.path.join(self.temp_dir(), 'files')
        os.rename(self.files, moved)
        self.files = moved
        self.configuration.set('devicetrack_vpmem', directory=moved)
        boot = os.path.join(self.temp_dir(), 'boot_id')
        with open(boot, 'w') as file:
            file.write('another boot')
        self.patch(libvirt_driver, 'BOOT_ID', boot)
        self.driver.close()
        self.driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [mdev.Mdev, vpmem.VPMEM])
        self.addCleanup(self.driver.close)

    def path(self, name: str) -> str:
        return os.path.join(self.files, name)

    def test_a_guest_and_what_it_was_saved_with_are_removed(self) -> None:
        wanted = self.assigned(0, 'ns0')
        domain = self.start(wanted)
        domain.managedSave(0)
        saved = os.path.join(self.daemon.path, 'lib', 'qemu', 'save')
        self.assertEqual(1, len(os.listdir(saved)))
        for _again in range(2):
            self.driver.destroy_guest(self.instance)
            self.assertEqual([], os.listdir(saved))
            self.assertEqual(frozenset(), self.driver.get_usage().domains)
        self.start(wanted)
        self.driver.destroy_guest(self.instance)
        self.assertEqual(frozenset(), self.driver.get_usage().domains)
        self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([wanted]))

    def test_records_are_read_while_a_guest_runs_and_when_it_is_off(self) -> None:
        domain = self.start(self.assigned(0, 'ns1'), self.assigned(1, 'ns0'))
        running, = self.driver.guest_records()
        self.assertEqual((self.instance, 'g1', ['ns1', 'ns0'], self.driver.boot_id()),
                         (running.instance_uuid, running.flavor, [one.identifier for one in running.devices],
                          running.boot_id))
        domain.destroy()
        self.assertEqual([running], list(self.driver.guest_records()))

    def test_a_definition_of_another_boot_gets_the_paths_of_this_one_and_keeps_its_secrets(self) -> None:
        wanted = [self.assigned(0, 'ns1'), self.assigned(1, 'ns0')]
        definition = libvirt_fixtures.guest(self.instance, self.driver.guest_config(wanted, 'g1'), kind='qemu')
        domain = self.daemon.connect().defineXML(definition.replace(
            '</devices>', "<graphics type='vnc' passwd='secret'/></devices>"))
        before = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
        old = self.files
        self.boot_again()
        usage = self.driver.get_usage()
        self.assertEqual([('ns1', os.path.join(old, 'ns1')), ('ns0', os.path.join(old, 'ns0'))],
                         [(use.identifier, use.address) for use in usage.uses])
        self.assertTrue(self.driver.rewrite_guest(wanted))
        after = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
        self.assertEqual((self.path('ns1'), self.path('ns0')), domain_xml.parse(after).memory_paths)
        self.assertIn("passwd='secret'", after)
        # What differs is the paths and our element alone.
        start, end = '<devicetrack:devices', '</devicetrack:devices>'
        self.assertEqual(*(text[:text.index(start)].replace(old, self.files) + text[text.index(end):].replace(
            old, self.files) for text in (before, after)))
        domain.create()
        self.assertEqual({'ns0', 'ns1'}, {use.identifier for use in self.driver.get_usage().uses if use.live})
        self.assertFalse(self.driver.rewrite_guest(wanted))

    def test_a_guest_that_was_saved_in_another_boot_wakes_on_its_own_devices(self) -> None:
        wanted = [self.assigned(0, 'ns1'), self.assigned(1, 'ns0')]
        domain = self.start(*wanted)
        domain.managedSave(0)
        self.boot_again()
        self.assertTrue(self.driver.rewrite_guest(wanted))
        domain.create()
        self.assertEqual((self.path('ns1'), self.path('ns0')), domain_xml.parse(domain.XMLDesc(0)).memory_paths)

    def test_a_guest_goes_on_with_the_definition_that_it_takes_along(self) -> None:
        with open(self.path('ns2'), 'wb') as file:
            file.truncate(8 << 20)
        self.configuration.set('libvirt', pmem_namespaces=['4GB:ns0|ns1|ns2'])
        self.driver.close()
        self.driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [mdev.Mdev, vpmem.VPMEM])
        domain = self.start(self.assigned(0, 'ns0'))
        config = self.driver.guest_config([self.assigned(0, 'ns2')])
        device_map = DeviceMap.of(self.instance, str(uuid.uuid4()), [DevicePair(
            kind='vpmem', resource_class='CUSTOM_PMEM_NAMESPACE_4GB', source='ns0', destination='ns2', type='4GB',
            element=config.devices[0])], config.metadata)
        live, persistent = self.driver.migration_definitions(device_map)
        with open(self.path('ns0'), 'r+b') as ns0:
            ns0.write(b'data')
        # Saved and restored with another definition is what a migration does, on one host: libvirt compares what the
        # guest sees, and its memory goes along.
        saved = os.path.join(self.temp_dir(), 'saved')
        domain.save(saved)
        self.connection.restoreFlags(saved, live, 0)
        self.connection.defineXML(persistent)
        use, = self.driver.get_usage().uses
        self.assertEqual(('ns2', True, True), (use.identifier, use.live, use.defined))
        record, = self.driver.guest_records()
        self.assertEqual(['ns2'], [device.identifier for device in record.devices])
        with open(self.path('ns2'), 'rb') as ns2:
            self.assertEqual(b'data', ns2.read(4))

    def test_a_real_host_without_such_hardware_has_no_mdev(self) -> None:
        inventory = self.driver.get_inventory()
        self.assertEqual({'mdev', 'vpmem'}, inventory.known_kinds)
        self.assertEqual(((), {'vpmem'}), (inventory.capacities, {device.kind for device in inventory.devices}))


class MadeFunctionsTestCase(base.TestCase):
    """PCI functions that are made of files, as a libvirtd finds them: benchmarks measure it beside our own reading."""

    def test_they_are_what_the_daemon_has(self) -> None:
        host = self.useFixture(pci.PCIHost())
        host.add_igb('0000:03:00.0')
        functions = ['0000:03:00.0', *host.make_vfs('0000:03:00.0', 2), host.add_nvme('0000:01:00.0', 'S1')]
        daemon = self.useFixture(libvirt_fixtures.Libvirtd(host.root))
        connection = daemon.connect()
        self.addCleanup(connection.close)
        names = {f'pci_{address.replace(":", "_").replace(".", "_")}' for address in functions}
        deadline = time.monotonic() + 60
        while set(connection.listDevices('pci')) != names and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(names, set(connection.listDevices('pci')))
        found = {address: connection.nodeDeviceLookupByName(name).XMLDesc(0)
                 for address, name in zip(sorted(functions), sorted(names), strict=True)}
        self.assertIn("<capability type='virt_functions' maxCount='7'>", found['0000:03:00.0'])
        self.assertIn("<capability type='phys_function'>", found['0000:03:10.2'])
        self.assertIn('<name>nvme</name>', found['0000:01:00.0'])
