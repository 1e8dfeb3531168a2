"""Virtual functions as ports of networks, on a host that is made of files."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from typing import Any

from lxml import etree

from devicetrack import exception
from devicetrack import filelock
from devicetrack import vocabulary
from devicetrack.engine.demand import Demand
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import values
from devicetrack.objects.network_port import Port
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import InventoryDevice
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci as made
from devicetrack.testing import pci_guests
from devicetrack.tests import base
from devicetrack.tests.drivers import case
from devicetrack.tests.drivers import contract
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import vf_link
from devicetrack.virt.libvirt.kinds import pci

CARD, WHOLE = '0000:03:00.0', '0000:04:00.0'
NETWORK = 'CUSTOM_PCI_NETWORK_PHYSNET1'
PORT = Port('physnet1', '52:54:00:aa:bb:01', 41, True)
SET = vf_link.Settings(PORT.mac, PORT.vlan, PORT.trusted)
UUID = 'c7a5fdbd-edaf-9455-926a-d65c16db1809'


class PortsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(made.PCIHost())
        self.host.add_igb(CARD)
        self.vf, self.other = self.host.make_vfs(CARD, 2)
        self.guests = pci_guests.GuestFunctions(self.host)
        self.node = self.useFixture(libvirt_fixtures.TestNode())
        self.options = self.useFixture(our_fixtures.Configuration())
        self.configure({'devname': 'enp3s0', 'physical_network': 'physnet1', 'trusted': True})

    def configure(self, *specs: dict[str, Any], wait_s: int = 0) -> None:
        self.options.set('pci', device_spec=list(map(json.dumps, specs)))
        self.options.set('devicetrack_pci', sysfs_root=self.host.root, release_wait_s=wait_s, functions=['all'],
                               cleaning=[json.dumps({'policy': 'none'})])
        host = self.host

        class PCI(pci.PCI):
            def __init__(self, conf: Any, hypervisor: Any) -> None:
                super().__init__(conf, hypervisor)
                self.host_use = host.use

        self.driver = libvirt_driver.LibvirtDriver(
            'host', self.options.conf, self.options.state_path, [PCI], self.node.connect)
        self.addCleanup(self.driver.close)
        case.prove_all(self.driver)

    def devices(self) -> dict[str, InventoryDevice]:
        return {device.identifier: device for device in self.driver.get_inventory().devices}

    def named(self, device: InventoryDevice, *ports: Port) -> str:
        """The details of a device that a claim with these ports took."""
        candidate = Candidate(device.kind, device.identifier, UUID, device.resource_class, device.parent,
                              device.numa_node, device.details)
        [named] = self.driver.claim_for_instance(UUID, Demand((), ports=ports), [candidate])
        return named.details

    def assigned(self, port: Port = PORT, was_realized: bool = False) -> DeviceAssignment:
        device = self.devices()[self.vf]
        return contract.assignment(UUID, 'pci', self.vf, device.parent, self.named(device, port), 0,
                                   vocabulary.CLAIMED, was_realized)

    def unclaim(self, assignment: DeviceAssignment) -> exception.DriverError | None:
        [answer] = self.driver.unclaim([assignment]).values()
        return answer

    def faults(self, assignment: DeviceAssignment) -> list[tuple[str, str]]:
        record = values.Record(UUID, 'pci', assignment.identifier, UUID, None, 'current', 'active', 0, 'c', 3, UUID,
                               NETWORK, None, None, details.to_text(assignment.details), 0)
        self.driver.prepare([record])
        return [(fault.key.identifier, fault.reason) for fault in self.driver.get_inventory().faults]

    # -- stock --------------------------------------------------------------------------------------------------------

    def test_virtual_functions_alone_are_offered_and_counted_by_their_network(self) -> None:
        devices = self.devices()
        self.assertEqual({self.vf: NETWORK, self.other: NETWORK},
                         {name: device.resource_class for name, device in devices.items()})
        self.assertIn(NETWORK, self.driver.resource_classes())
        for device in devices.values():
            self.assertLessEqual({'physical_network=physnet1', 'trusted=yes', 'type-VF'}, set(device.features))
            self.assertIsNone(device.unhealthy)
        self.assertEqual((), self.driver.get_inventory().faults)

    def test_nobody_gets_one_while_the_interface_of_its_card_is_down(self) -> None:
        assignment = self.assigned()
        self.host.turn_down('enp3s0')
        for device in self.devices().values():
            self.assertEqual('the interface enp3s0 of its physical function is down, so no guest can start with a port '
                             'of it: turn it on (ip link set enp3s0 up)', device.unhealthy)
        error = self.assertRaises(exception.RealizeFailed, self.driver.realize, assignment)
        self.assertIn('is down', str(error))
        self.host.turn_up('enp3s0')
        self.assertEqual({None}, {device.unhealthy for device in self.devices().values()})

    def test_a_class_of_the_spec_counts(self) -> None:
        self.configure({'devname': 'enp3s0', 'physical_network': 'physnet1', 'resource_class': 'fast'})
        device = self.devices()[self.vf]
        self.assertEqual(('CUSTOM_FAST', False), (device.resource_class, 'trusted=yes' in device.features))

    def test_of_a_whole_function_it_is_told_why_nobody_gets_it(self) -> None:
        self.host.add_card(WHOLE.partition('.')[0], ['a'])
        self.configure({'address': WHOLE, 'physical_network': 'physnet1'})
        self.assertEqual({}, self.devices())
        [fault] = self.driver.get_inventory().faults
        self.assertEqual((WHOLE, True), (fault.key.identifier, 'only for virtual functions' in fault.reason))

    def test_a_network_that_placement_cannot_count_is_refused_at_the_start(self) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, self.configure,
                                  {'devname': 'enp3s0', 'physical_network': 'x' * 255})
        self.assertIn('physical_network', str(error))

    # -- claims -------------------------------------------------------------------------------------------------------

    def test_a_claim_writes_the_port_and_needs_one(self) -> None:
        device = self.devices()[self.vf]
        self.assertEqual(PORT, details.port_of(self.named(device, PORT)))
        for ports in ((), (Port('physnet2', PORT.mac),)):
            self.assertRaises(exception.BadRequest, self.named, device, *ports)

    def test_a_guest_with_a_port_stays(self) -> None:
        self.configure({'devname': 'enp3s0', 'physical_network': 'physnet1', 'live_migratable': True})
        self.assertIn('live_migratable', self.driver.live_migration_obstacles()['pci'])
        self.assertEqual([], list(self.driver.migration_types()))
        self.assertIn('physical network physnet1', str(self.driver.migration_obstacle_of(self.assigned())))

    # -- its life -----------------------------------------------------------------------------------------------------

    def test_is_set_before_the_guest_and_taken_away_after_it(self) -> None:
        wanted = self.assigned()
        for _again in range(2):
            realized = self.driver.realize(wanted)
            self.assertEqual({self.vf: SET}, self.host.links.settings)
        self.assertEqual(PORT, details.port_of(realized.details))
        started = self.assigned(was_realized=True)
        self.assertIsNone(self.unclaim(started))
        self.assertTrue(self.host.links.of(self.vf).is_blank)
        self.assertIsNone(self.unclaim(started))

    def test_one_that_was_only_claimed_but_set_is_taken_away(self) -> None:
        wanted = self.assigned()
        self.assertIsNone(self.unclaim(wanted))
        self.driver.realize(wanted)
        self.assertIsNone(self.unclaim(wanted))
        self.assertTrue(self.host.links.of(self.vf).is_blank)

    def test_a_function_in_a_reset_is_waited_for_before_and_after_the_guest(self) -> None:
        self.configure({'devname': 'enp3s0', 'physical_network': 'physnet1', 'trusted': True}, wait_s=60)
        waits: list[float] = []
        self.patch(time, 'sleep', waits.append)
        for step, expected in ((self.driver.realize, SET), (self.unclaim, vf_link.BLANK)):
            self.host.links.resetting[self.vf] = [errno.EAGAIN, errno.EBUSY]
            step(self.assigned())
            self.assertEqual(expected, self.host.links.of(self.vf))
        self.assertEqual(4, len(waits))

    def test_a_reset_that_does_not_end_is_an_error_with_its_reason(self) -> None:
        self.host.links.resetting[self.vf] = [errno.EAGAIN]
        error = self.assertRaises(exception.RealizeFailed, self.driver.realize, self.assigned())
        self.assertIn('Resource temporarily unavailable', str(error))

    def test_what_cannot_be_set_is_for_no_guest(self) -> None:
        self.host.links.untrusting = {self.vf}
        error = self.assertRaises(exception.RealizeFailed, self.driver.realize, self.assigned())
        self.assertIn('trust on is refused', str(error))
        self.assertIsNone(self.unclaim(self.assigned()))
        self.assertTrue(self.host.links.of(self.vf).is_blank)

    def test_what_cannot_be_taken_away_stays_its_owners(self) -> None:
        wanted = self.assigned()
        self.driver.realize(wanted)
        self.host.links.deaf = {self.vf}
        error = self.unclaim(self.assigned(was_realized=True))
        self.assertIsInstance(error, exception.UnclaimFailed)
        self.assertIn('cannot be taken away', str(error))
        self.host.links.deaf = set()
        self.assertIsNone(self.unclaim(wanted))

    def test_its_address_is_removed_from_functions_that_nobody_uses(self) -> None:
        """Whoever left it there: a guest before a move on this host, or a libvirt that was killed."""
        links, wanted = self.host.links, self.assigned()
        links.unique = {self.vf}
        links.settings[self.other] = SET
        self.driver.realize(wanted)
        self.assertEqual((SET, True), (links.of(self.vf), links.of(self.other).is_blank))
        # In another VLAN it may be another port's, and nobody knows of one on which somebody works.
        links.unique = set()
        lock = filelock.NodeLock(self.host.path(self.other))
        for settings, held in ((SET._replace(vlan=7), False), (SET, True)):
            links.settings[self.other] = settings
            with lock if held else contextlib.nullcontext():
                self.driver.realize(wanted)
            self.assertEqual((SET, settings), (links.of(self.vf), links.of(self.other)))

    def test_its_address_stays_with_the_guest_that_has_it(self) -> None:
        links, wanted = self.host.links, self.assigned()
        links.settings[self.other] = SET
        self.guests.start(UUID, [self.other])
        self.driver.realize(wanted)
        self.assertEqual((SET, SET), (links.of(self.vf), links.of(self.other)))
        # The function is not the cause if the driver refuses that.
        self.assertIsNone(self.unclaim(wanted))
        links.unique = {self.vf}
        error = self.assertRaises(exception.RealizeUnknown, self.driver.realize, wanted)
        self.assertIn(f'{self.other} of the same card has that address too', str(error))
        self.guests.end(UUID)
        self.driver.realize(wanted)
        self.assertEqual((SET, True), (links.of(self.vf), links.of(self.other).is_blank))

    def test_nothing_but_ports_is_written(self) -> None:
        self.configure({'vendor_id': '8086', 'product_id': '10ca', 'resource_class': 'vf'})
        device = self.devices()[self.vf]
        wanted = contract.assignment(UUID, 'pci', self.vf, device.parent, device.details, 0, vocabulary.CLAIMED)
        self.driver.realize(wanted)
        self.assertIsNone(self.unclaim(wanted))
        self.assertEqual([], self.host.links.written)

    def test_its_guest_gets_an_interface(self) -> None:
        wanted = self.assigned()
        self.driver.realize(wanted)
        [element] = self.driver.guest_config([wanted]).devices
        root = etree.fromstring(element)
        self.assertEqual(('interface', 'hostdev', 'yes'), (root.tag, root.get('type'), root.get('managed')))
        self.assertEqual(([PORT.mac], ['41']), (root.xpath('mac/@address'), root.xpath('vlan/tag/@id')))
        self.assertEqual(['pci', '0x0000', '0x03', '0x10', '0x0'], root.xpath('source/address/@*'))
        [element] = self.driver.guest_config([self.assigned(PORT._replace(vlan=0))]).devices
        self.assertIsNone(etree.fromstring(element).find('vlan'))

    def test_its_guest_uses_it(self) -> None:
        wanted = self.assigned()
        self.driver.realize(wanted)
        self.node.connect().defineXML(libvirt_fixtures.guest(UUID, self.driver.guest_config([wanted]))).create()
        [use] = self.driver.get_usage().uses
        self.assertEqual((self.vf, True, True), (use.identifier, use.live, use.defined))
        self.assertIsInstance(self.unclaim(wanted), exception.DeviceInUse)
        self.assertEqual({self.vf: SET}, self.host.links.settings)

    # -- audits -------------------------------------------------------------------------------------------------------

    def test_an_audit_tells_what_differs_while_a_guest_has_it(self) -> None:
        wanted = self.assigned()
        self.assertEqual([], self.faults(wanted))
        self.driver.realize(wanted)
        self.guests.start(UUID, [self.vf])
        self.assertEqual([], self.faults(wanted))
        self.host.links.settings[self.vf] = SET._replace(vlan=7)
        [(name, reason)] = self.faults(wanted)
        self.assertEqual((self.vf, True), (name, f'{SET}, but enp3s0 reports {SET._replace(vlan=7)}' in reason))
        self.guests.end(UUID)
        self.assertEqual([], self.faults(wanted))
