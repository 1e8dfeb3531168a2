"""Devices that look well and fail: libvirt's test driver, and functions that are made of files."""

from __future__ import annotations

import json
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.objects import DeviceRequest
from devicetrack.objects import NetworkPort
from devicetrack.objects import RequestedDevices
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci as made
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import pci

CARD = 'CUSTOM_CARD'
FIRST, SECOND, THIRD = '0000:81:00.0', '0000:82:00.0', '0000:83:00.0'


class FunctionsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.functions = self.useFixture(made.PCIHost())
        self.node = self.useFixture(libvirt_fixtures.TestNode())

    def start(self, *specs: dict[str, Any]) -> Any:
        functions = self.functions

        class Functions(pci.PCI):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.host_use = functions.use

        self.configuration.set('pci', device_spec=list(map(json.dumps, specs)))
        self.configuration.set('devicetrack_pci', sysfs_root=functions.root, release_wait_s=0, functions=['all'],
                               cleaning=[json.dumps({'policy': 'none'})])
        self.host = self.useFixture(libvirt_hosts.LibvirtHost(
            self.node.connect, {}, self.temp_dir(), kinds=[Functions], configuration=self.configuration))
        return self.host

    def owned(self) -> list[str]:
        return sorted(record.identifier for record in self.host.records())


class CardTestCase(FunctionsTestCase):
    """Three equal cards, of which one falls off its bus."""

    def setUp(self) -> None:
        super().setUp()
        for address in (FIRST, SECOND, THIRD):
            self.functions.add_igb(address)
        self.start({'vendor_id': '8086', 'product_id': '10c9', 'resource_class': 'CARD'})
        self.request = DeviceRequest.of((CARD, 1))

    def test_the_others_serve_before_any_audit_has_seen_it(self) -> None:
        self.functions.fall_silent(FIRST)
        for _ in range(2):
            self.host.spawn(request=self.request)
        self.host.wait()
        self.assertEqual([SECOND, THIRD], self.owned())
        error = self.assertRaises(exception.NoFit, self.host.claim, fixtures.Instance(), self.request)
        self.assertIn(f'{FIRST} does not answer on its bus', str(error))

    def test_an_audit_finds_it_unhealthy_and_later_well(self) -> None:
        self.functions.fall_silent(FIRST)
        found = [(one.kind, one.device.identifier) for one in self.host.audit()]
        self.assertEqual([(findings.UNHEALTHY, FIRST)], found)
        self.host.spawn(request=self.request)
        self.assertEqual([SECOND], self.owned())
        self.functions.answer_again(FIRST)
        self.assertEqual([], self.host.audit())
        self.host.spawn(request=self.request)
        self.assertEqual([FIRST, SECOND], self.owned())


class PortTestCase(FunctionsTestCase):
    """Virtual functions that are to be ports, and the interface of their physical function."""

    def setUp(self) -> None:
        super().setUp()
        self.functions.add_igb('0000:03:00.0')
        self.vfs = self.functions.make_vfs('0000:03:00.0', 2)
        self.start({'vendor_id': '8086', 'product_id': '10ca', 'physical_network': 'physnet1'})
        port = NetworkPort(physical_network='physnet1', mac='52:54:00:aa:bb:01')
        self.request = DeviceRequest(wanted=[RequestedDevices.of_port(port)])

    def test_without_the_interface_none_is_offered(self) -> None:
        self.functions.hide_interface('0000:03:00.0')
        found = {one.device.identifier: one.detail for one in self.host.audit()}
        self.assertEqual(set(self.vfs), set(found))
        self.assertIn('has the interfaces none', found[self.vfs[0]])
        self.assertRaises(exception.NoFit, self.host.claim, fixtures.Instance(), self.request)

    def test_boots_that_fail_leave_none_on_its_way_back(self) -> None:
        self.functions.hide_interface('0000:03:00.0')
        for _ in range(3):
            error = self.assertRaises(exception.NoFit, self.host.spawn, request=self.request)
            self.host.wait()
            self.assertEqual([], self.owned())
        self.assertIn('has the interfaces none', str(error))

    def test_a_release_whose_port_cannot_be_taken_away_ends(self) -> None:
        instance = self.host.spawn(request=self.request)
        self.functions.hide_interface('0000:03:00.0')
        self.host.delete(instance)
        self.host.wait()
        self.assertEqual([], self.owned())


class SilentParentTestCase(base.TestCase):

    def test_it_makes_nothing_and_what_it_has_is_unhealthy(self) -> None:
        functions, node = self.useFixture(made.PCIHost()), self.useFixture(libvirt_fixtures.TestNode())
        there = []
        for address in (FIRST, SECOND):
            functions.add_igb(address)
            there.append(node.add_mdev(node.add_parent(address, {'nvidia-35': 8}), 'nvidia-35'))

        class Mediated(mdev.Mdev):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.devices.kernel.root = functions.root

        self.configuration.set('devicetrack_mdev', release_wait_s=0)
        host: Any = self.useFixture(libvirt_hosts.LibvirtHost(
            node.connect, {}, self.temp_dir(), mdev_types=['nvidia-35'], kinds=[Mediated],
            configuration=self.configuration))
        functions.fall_silent(FIRST)
        found = {(one.kind, one.device.identifier) for one in host.audit()}
        self.assertEqual({(findings.UNHEALTHY, there[0]), (findings.NOT_AS_CONFIGURED, 'pci_0000_81_00_0')}, found)
        instance = host.spawn(request=DeviceRequest.of((VGPU, 1)))
        self.assertEqual({there[1]: instance.uuid}, host.owners())
        inventory = host.machine.driver.get_inventory()
        self.assertEqual([0, 8], [one.available for one in sorted(inventory.capacities)])


class MdevTestCase(base.TestCase):

    scenarios = base.table(*((policy, policy) for policy in vocabulary.SELECTION_POLICIES), names=('policy',))

    def test_parents_that_libvirt_refuses_to_use_are_passed_over(self) -> None:
        """libvirt's test driver makes no devices, whatever room its parents show."""
        node = self.useFixture(libvirt_fixtures.TestNode())
        for address in ('0000:84:00.0', '0000:85:00.0'):
            node.add_parent(address, {'nvidia-35': 8})
        there = node.add_mdev(node.add_parent('0000:86:00.0', {'nvidia-35': 0}), 'nvidia-35')
        self.configuration.set('devicetrack', selection_policy=self.policy)
        self.configuration.set('devicetrack_mdev', release_wait_s=0)
        host: Any = self.useFixture(libvirt_hosts.LibvirtHost(
            node.connect, {}, self.temp_dir(), mdev_types=['nvidia-35'], kinds=[mdev.Mdev],
            configuration=self.configuration, policy=self.policy))
        instance = host.spawn(request=DeviceRequest.of((VGPU, 1)))
        self.assertEqual({there: instance.uuid}, host.owners())
        self.assertLessEqual({one.device.identifier for one in host.audit()}, {'pci_0000_84_00_0', 'pci_0000_85_00_0'})
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), DeviceRequest.of((VGPU, 17)))
