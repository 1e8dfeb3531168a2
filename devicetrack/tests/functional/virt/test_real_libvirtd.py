"""The libvirt driver on a real libvirtd, with guests under QEMU in software and files for namespaces."""

from __future__ import annotations

import os
import signal
from typing import Any
import uuid

import fixtures

from devicetrack import exception
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.drivers import worlds
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import vpmem


class RealLibvirtdTestCase(base.TestCase):

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
        definition = libvirt_fixtures.guest(self.instance, self.driver.guest_config(assignments), kind='qemu')
        self.connection = self.daemon.connect()
        domain = self.connection.defineXML(definition)
        domain.create()
        return domain

    def test_a_guest_runs_with_what_guest_config_says(self) -> None:
        wanted = [self.assigned(0, 'ns1'), self.assigned(1, 'ns0')]
        domain = self.start(*wanted)
        live = domain_xml.parse(domain.XMLDesc(0))
        self.assertEqual((self.instance, True), (live.uuid, live.live))
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

    def test_a_real_host_without_such_hardware_has_no_mdev(self) -> None:
        inventory = self.driver.get_inventory()
        self.assertEqual({'mdev', 'vpmem'}, inventory.known_kinds)
        self.assertEqual(((), {'vpmem'}), (inventory.capacities, {device.kind for device in inventory.devices}))
