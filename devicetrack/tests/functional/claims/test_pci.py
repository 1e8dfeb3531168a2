"""PCI functions over the boots of their host: libvirt's test driver, and functions that are made of files."""

from __future__ import annotations

import json
import os
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.objects import details
from devicetrack.objects import DeviceRequest
from devicetrack.objects import event as events
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci as made
from devicetrack.tests import base
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.virt.libvirt.driver import LibvirtDriver
from devicetrack.virt.libvirt.kinds import pci

CARD = '0000:03:00.0'
VFS = {'vendor_id': '8086', 'product_id': '10ca', 'resource_class': 'PART'}
CARDS = {'vendor_id': '8086', 'product_id': '10c9', 'resource_class': 'WHOLE'}
DISK, PART, WHOLE = 'CUSTOM_DISK', 'CUSTOM_PART', 'CUSTOM_WHOLE'


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
        for address in self.functions.addresses:
            for vf in self.functions.vfs_of(address):
                self.functions.remove(vf)
        self.boot_id = f'boot {int(self.boot_id.split()[1]) + 1}'
        return list(self.host.restart())

    def addresses(self, instance: fixtures.Instance) -> tuple[str, ...]:
        """What the definition of an instance's guest names."""
        found: tuple[str, ...] = self.host.machine.defined(instance.uuid).pci_addresses
        return found


class MisspeltTestCase(BootsTestCase):

    def test_a_device_that_an_option_no_longer_names_is_not_called_gone(self) -> None:
        self.functions.add_igb(CARD)
        instance = self.start().spawn(request=DeviceRequest.of((PART, 1)))
        [record] = self.host.records(instance)
        self.configuration.set('pci', device_spec=[json.dumps({**VFS, 'product_id': '10cb'}), json.dumps(CARDS)])
        self.host.restart()
        [finding] = [one for one in self.host.findings if one.kind == findings.GONE]
        self.assertIn(findings.NO_OPTION, finding.detail)
        self.assertNotIn('forget', finding.proposal)
        self.host.machine.delete_guest(instance.uuid)
        error = self.assertRaises(exception.RowStays, self.host.running.repairs.forget, record.key, instance.uuid)
        self.assertIn('no option names it', str(error))


class MovedTestCase(BootsTestCase):
    """Cards that come to other addresses while the host is off."""

    specs = ({'vendor_id': '1b36', 'product_id': '0010', 'resource_class': 'DISK'}, CARDS, VFS)

    def setUp(self) -> None:
        super().setUp()
        self.configuration.set('devicetrack_pci', cleaning=[json.dumps({'policy': 'none'})])

    def put(self, **serials: str) -> None:
        """Let the host have these disks, by the numbers of their buses, and no others."""
        for address in self.functions.addresses:
            self.functions.remove(address)
        for bus, serial in serials.items():
            self.functions.add_nvme(self.at(bus), serial)

    @staticmethod
    def at(bus: str) -> str:
        return f'0000:{bus.removeprefix("b")}:00.0'

    def spawn(self) -> fixtures.Instance:
        instance: fixtures.Instance = self.host.spawn(request=DeviceRequest.of((DISK, 1)))
        return instance

    def off(self, *instances: fixtures.Instance) -> None:
        for instance in instances:
            self.host.machine.stop_guest(instance.uuid)

    def test_a_row_follows_its_card(self) -> None:
        self.put(b01='S1')
        host = self.start()
        instance = self.spawn()
        for bus in ('b02', 'b05', 'b01', 'b02'):
            self.off(instance)
            self.put(**{bus: 'S1'})
            self.assertEqual([], self.boot())
            self.assertEqual((self.at(bus),), self.addresses(instance))
            [record] = host.records(instance)
            self.assertEqual(self.at('b01'), record.identifier)
            self.assertEqual(self.at(bus), details.from_text(record.details).address)
            host.machine.domain(instance.uuid).create()
            self.assertEqual([], host.audit())
            self.assertEqual([], host.restart())
            self.assertRaises(exception.NoFit, self.spawn)
        self.assertRaises(exception.DeviceInUse, host.manager.release, self.context, instance)
        host.delete(instance)
        self.assertEqual({}, host.owners())
        # It keeps its name for this boot.
        self.assertEqual([], host.audit())
        other = self.spawn()
        self.assertEqual(((self.at('b02'),), [self.at('b01')]),
                         (self.addresses(other), [record.identifier for record in host.records(other)]))
        host.delete(other)
        self.boot()
        self.assertEqual([self.at('b02')], list(host.states()))

    def test_two_cards_change_places(self) -> None:
        self.put(b01='S1', b02='S2')
        host = self.start()
        first, second = self.spawn(), self.spawn()
        before = {one.uuid: self.addresses(one) for one in (first, second)}
        self.off(first, second)
        self.put(b01='S2', b02='S1')
        self.assertEqual([], self.boot())
        self.assertEqual((before[second.uuid], before[first.uuid]), (self.addresses(first), self.addresses(second)))
        for instance in (first, second):
            host.machine.domain(instance.uuid).create()
        self.assertEqual([], host.audit())
        host.delete(first)
        self.assertEqual({second.uuid}, set(host.owners().values()))
        host.delete(second)
        self.assertEqual({}, host.owners())

    def test_what_is_in_the_place_of_a_card_that_moved_is_not_handed_out(self) -> None:
        self.put(b01='S1')
        host = self.start()
        instance = self.spawn()
        self.off(instance)
        self.put(b01='S9', b02='S1')
        [finding] = self.boot()
        self.assertEqual((findings.UNHEALTHY, DeviceKey('pci', f'at-{self.at("b01")}')),
                         (finding.kind, finding.device))
        self.assertIn(f'{self.at("b01")} is the name of a card that an instance has, and that is at {self.at("b02")}',
                      finding.detail)
        self.assertEqual((self.at('b02'),), self.addresses(instance))
        self.assertRaises(exception.NoFit, self.spawn)
        host.delete(instance)
        self.boot()
        self.assertEqual({self.at('b01'): fixtures.FREE, self.at('b02'): fixtures.FREE}, host.states())

    def test_of_two_with_one_serial_number_nobody_knows(self) -> None:
        self.put(b01='S1')
        host = self.start()
        instance = self.spawn()
        self.off(instance)
        self.put(b02='S1', b03='S1', b04='S4')
        found = {finding.device.identifier: finding for finding in self.boot()}
        self.assertEqual({self.at(bus) for bus in ('b01', 'b02', 'b03')}, set(found))
        self.assertEqual(findings.GONE, found[self.at('b01')].kind)
        for bus in ('b02', 'b03'):
            self.assertIn(f'it may be {self.at("b01")}, which an instance has: {self.at("b02")}, {self.at("b03")} have '
                          'the serial number S1', found[self.at(bus)].detail)
        other = self.spawn()
        self.assertEqual((self.at('b04'),), self.addresses(other))
        self.assertRaises(exception.NoFit, self.spawn)
        host.delete(other)
        # Somebody takes the wrong one out.
        self.put(b02='S1')
        self.assertEqual([], host.audit())
        self.assertEqual((self.at('b02'),), self.addresses(instance))

    def test_a_card_that_moves_while_the_host_runs_is_withheld(self) -> None:
        self.put(b01='S1')
        host = self.start()
        instance = self.spawn()
        self.off(instance)
        self.put(b02='S1')
        found = {finding.device.identifier: finding for finding in host.audit()}
        self.assertEqual({self.at('b01'), self.at('b02')}, set(found))
        self.assertIn(f'it is {self.at("b01")}, which an instance has, and came to {self.at("b02")} while the host ran',
                      found[self.at('b02')].detail)
        self.assertRaises(exception.NoFit, self.spawn)
        self.assertEqual([], self.boot())
        self.assertEqual((self.at('b02'),), self.addresses(instance))

    def test_a_disk_whose_driver_is_late_is_found_by_an_audit(self) -> None:
        self.put(b01='S1')
        host = self.start()
        instance = self.spawn()
        self.off(instance)
        self.put(b02='S1')
        self.functions.unbind(self.at('b02'))
        self.boot()
        self.assertRaises(exception.NoFit, self.spawn)
        self.functions.bind(self.at('b02'), 'nvme')
        self.assertEqual([], host.audit())
        self.assertEqual((self.at('b02'),), self.addresses(instance))
        self.assertRaises(exception.NoFit, self.spawn)

    def test_a_claim_follows_its_card_too(self) -> None:
        self.put(b01='S1')
        host = self.start()
        instance = fixtures.Instance()
        host.claim(instance, DeviceRequest.of((DISK, 1)))
        self.put(b02='S1')
        self.boot_id = 'boot 2'
        host.service.known = {}
        host.restart()
        self.assertRaises(exception.NoFit, self.spawn)
        self.assertEqual([self.at('b01')], list(host.states()))

    def test_disks_that_nothing_tells_apart_are_served_by_their_places_or_by_the_word_of_an_operator(self) -> None:
        self.put(b01='S1', b02='S1')
        host = self.start()
        instance = self.spawn()
        self.off(instance)
        self.put(b01='S1', b02='S1')
        self.assertEqual([], self.boot())                       # nothing has changed
        self.put(b01='S1', b02='S1', b03='S1')
        self.boot()
        for _audit in range(2):
            found = {finding.device.identifier: finding for finding in host.audit()}
            self.assertEqual({self.at(bus) for bus in ('b01', 'b02', 'b03')}, set(found))
            self.assertIn(f'device admit pci/{self.at("b01")}', found[self.at('b01')].detail)
        error = self.assertRaises(exception.RealizeUnknown, host.manager.realize, self.context, instance)
        self.assertIn(f'device admit pci/{self.at("b01")}', str(error))
        self.assertRaises(exception.NoFit, self.spawn)
        self.assertRaises(exception.BadRequest, host.manager.operator.admit, 'pci', self.at('b02'))
        host.manager.operator.admit('pci', self.at('b01'))
        self.assertEqual([], host.audit())
        told = [one.event for one in host.store.events_of_device(self.at('b01'))]
        self.assertEqual(1, len([one for one in told if one.event == events.ADMITTED
                                 and vocabulary.BY_OPERATOR in one.details]))
        host.manager.realize(self.context, instance)
        self.assertEqual((self.at('b01'),), self.addresses(instance))
        host.delete(instance)
        self.assertEqual({}, host.owners())

    def test_virtual_functions_follow_their_card(self) -> None:
        self.functions.add_igb(CARD)
        self.functions.give_serial(CARD, 'M75')
        host = self.start()
        instance = host.spawn(request=DeviceRequest.of((PART, 2)))
        before = self.addresses(instance)
        self.off(instance)
        for vf in self.functions.vfs_of(CARD):
            self.functions.remove(vf)
        self.functions.remove(CARD)
        self.functions.add_igb('0000:05:00.0')
        self.functions.give_serial('0000:05:00.0', 'M75')
        self.functions.add_igb(CARD)
        self.functions.give_serial(CARD, 'M76')
        found = self.boot()
        self.assertEqual(tuple(address.replace('0000:03', '0000:05') for address in before), self.addresses(instance))
        self.assertEqual({DeviceKey('pci', f'at-{address}') for address in before},
                         {finding.device for finding in found})
        self.assertEqual(set(before), {record.identifier for record in host.records(instance)})
        self.assertRaises(exception.NoFit, host.spawn, request=DeviceRequest.of((PART, 1)))


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
        self.assertEqual((findings.NOT_AS_CONFIGURED, DeviceKey('pci', CARD)), (fault.kind, fault.device))
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
        self.assertEqual((findings.UNHEALTHY, DeviceKey('pci', address)), (finding.kind, finding.device))
        self.assertIn('parent_serial is M76 and was recorded as M75', finding.detail)
        self.assertEqual(2, len(self.functions.vfs_of(CARD)))
