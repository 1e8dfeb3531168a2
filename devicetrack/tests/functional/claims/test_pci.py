"""PCI functions over the boots of their host: libvirt's test driver, and functions that are made of files."""

from __future__ import annotations

import json
import os
from typing import Any

from devicetrack import exception
from devicetrack.engine import reconcile
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci as made
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.driver import LibvirtDriver
from devicetrack.virt.libvirt.kinds import pci

CARD = '0000:03:00.0'
VFS = {'vendor_id': '8086', 'product_id': '10ca', 'resource_class': 'PART'}
CARDS = {'vendor_id': '8086', 'product_id': '10c9', 'resource_class': 'WHOLE'}
PART, WHOLE = 'CUSTOM_PART', 'CUSTOM_WHOLE'


class BootsTestCase(base.TestCase):

    specs: tuple[dict[str, Any], ...] = (VFS, CARDS)

    def setUp(self) -> None:
        super().setUp()
        self.boot_id = 'boot 1'
        self.patch(LibvirtDriver, 'boot_id', lambda _driver: self.boot_id)
        self.functions = self.useFixture(made.PCIHost())
        self.node = self.useFixture(libvirt_fixtures.TestNode())
        functions = self.functions

        class Functions(pci.PCI):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.host_use = functions.use

        self.kinds = [Functions]
        self.configuration.set('pci', device_spec=list(map(json.dumps, self.specs)))
        self.configuration.set('devicetrack_pci', sysfs_root=self.functions.root, release_wait_s=0, functions=['all'],
                               cleaning=[json.dumps({'vendor_id': '8086', 'policy': 'none'})],
                               vfs=[json.dumps({'vendor_id': '8086', 'product_id': '10c9', 'number': 2})])

    def start(self) -> Any:
        self.host = self.useFixture(libvirt_hosts.LibvirtHost(
            self.node.connect, {}, self.temp_dir(), kinds=self.kinds, configuration=self.configuration))
        return self.host

    def boot(self, *instances: fixtures.Instance) -> list[Any]:
        """Boot the host: its guests are off, and no function has virtual ones. Then the service starts."""
        for instance in instances:
            self.host.machine.stop_guest(instance.uuid)
        for address in pci_sysfs.Tree(self.functions.root).addresses():
            for vf in self.functions.vfs_of(address):
                self.functions.remove(vf)
        self.boot_id = f'boot {int(self.boot_id.split()[1]) + 1}'
        return list(self.host.restart())

    def addresses(self, instance: fixtures.Instance) -> tuple[str, ...]:
        """What the definition of an instance's guest names."""
        found: tuple[str, ...] = self.host.machine.defined(instance.uuid).pci_addresses
        return found


class VirtualFunctionsTestCase(BootsTestCase):

    def test_are_there_when_the_service_has_started(self) -> None:
        self.functions.add_igb(CARD)
        host = self.start()
        self.assertEqual([], host.findings)
        instance = host.spawn(request=DeviceRequest.of((PART, 2)))
        self.assertEqual(sorted(self.functions.vfs_of(CARD)), sorted(self.addresses(instance)))

    def test_an_instance_has_its_own_again_after_a_boot(self) -> None:
        self.functions.add_igb(CARD)
        self.functions.give_serial(CARD, 'M75')
        host = self.start()
        instance = host.spawn(request=DeviceRequest.of((PART, 1)))
        before = self.addresses(instance)
        self.assertEqual([], self.boot(instance))
        self.assertEqual(before, self.addresses(instance))
        self.assertEqual(2, len(self.functions.vfs_of(CARD)))
        self.assertEqual([], host.audit())
        host.machine.domain(instance.uuid).create()
        host.delete(instance)
        self.assertEqual({}, host.owners())

    def test_an_audit_makes_them_when_the_host_lets_go_of_the_card(self) -> None:
        self.functions.add_igb(CARD)
        self.functions.give_address('enp3s0')
        host = self.start()
        fault, unhealthy = sorted(host.findings, key=lambda finding: finding.kind)
        self.assertEqual((reconcile.NOT_AS_CONFIGURED, DeviceKey('pci', CARD)), (fault.kind, fault.device))
        self.assertIn(f'[devicetrack_pci] vfs: its 2 virtual functions cannot be made: the host uses {CARD}',
                      fault.detail)
        self.assertIn('the host uses it', unhealthy.detail)
        self.assertRaises(exception.NoFit, host.spawn, request=DeviceRequest.of((PART, 1)))
        with open(os.path.join(self.functions.proc, 'net/if_inet6'), 'w'):
            pass
        self.assertEqual([], host.audit())
        host.spawn(request=DeviceRequest.of((PART, 2)))

    def test_a_card_that_an_instance_has_is_left_whole(self) -> None:
        self.functions.add_igb(CARD)
        host = self.start()
        # As before somebody wrote the option.
        for vf in self.functions.vfs_of(CARD):
            self.functions.remove(vf)
        instance = host.spawn(request=DeviceRequest.of((WHOLE, 1)))
        self.assertEqual([], host.audit())
        self.assertEqual([], self.boot(instance))
        self.assertEqual([], self.functions.vfs_of(CARD))
        host.delete(instance)
        self.assertEqual([], host.audit())
        self.assertEqual(2, len(self.functions.vfs_of(CARD)))

    def test_of_another_card_in_the_slot_an_instance_has_none(self) -> None:
        self.functions.add_igb(CARD)
        self.functions.give_serial(CARD, 'M75')
        host = self.start()
        instance = host.spawn(request=DeviceRequest.of((PART, 1)))
        [address] = self.addresses(instance)
        host.machine.stop_guest(instance.uuid)
        for vf in self.functions.vfs_of(CARD):
            self.functions.remove(vf)
        self.functions.remove(CARD)
        self.functions.add_igb(CARD)
        self.functions.give_serial(CARD, 'M76')
        [finding] = self.boot()
        self.assertEqual((reconcile.UNHEALTHY, DeviceKey('pci', address)), (finding.kind, finding.device))
        self.assertIn('parent_serial is M76 and was recorded as M75', finding.detail)
        self.assertEqual(2, len(self.functions.vfs_of(CARD)))
