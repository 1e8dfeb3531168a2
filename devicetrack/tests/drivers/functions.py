"""What every virt driver does with PCI functions, as tests, and the hosts that have them.

They are those of :mod:`.contract` that a device has to pass whose address is its name, that keeps what guests write,
and that excludes others; and what the driver of the host's kernel has to do with it.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import contextlib
import json
import os
from typing import Any
from typing import Final
import urllib.parse
import uuid

import fixtures
import libvirt

from devicetrack import exception
from devicetrack import filelock
from devicetrack import vocabulary
from devicetrack.engine.demand import Demand
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import identity
from devicetrack.objects.network_port import Port
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import InventoryDevice
from devicetrack.testing import fake
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci as made
from devicetrack.testing import pci_guests
from devicetrack.tests import base
from devicetrack.tests.drivers import case
from devicetrack.tests.drivers import contract
from devicetrack.virt import driver as interface
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import pci

DISK, OTHER, CARD = '0000:01:00.0', '0000:02:00.0', '0000:03:00.0'
OF_DISK, OF_CARD, OF_VF, OF_PAIR = 'CUSTOM_DISK', 'CUSTOM_CARD', 'CUSTOM_VF', 'CUSTOM_PAIR'
PAIR: Final = ('0000:07:00.0', '0000:07:00.1')
NETWORK_CARD: Final = '0000:05:00.0'
OF_NETWORK: Final = 'CUSTOM_PCI_NETWORK_PHYSNET1'
PORT: Final = Port('physnet1', '52:54:00:aa:bb:01', 41, True)


class World(fixtures.Fixture, abc.ABC):
    """A host with two disks, a card with two virtual functions, and two functions in one IOMMU group.

    ``vfs`` are the addresses of the virtual ones, and ``network_vf`` is one of another card, which can be a port of
    ``physnet1``. ``libvirt_dies`` leaves functions with the driver for guests.
    """

    vfs: Sequence[str]
    network_vf: str

    @abc.abstractmethod
    def port_of(self, address: str) -> tuple[str, int, bool] | None:
        """The MAC address, the VLAN and the trust that the host has for a virtual function; None without any."""

    @abc.abstractmethod
    def driver(self) -> interface.VirtDriver:
        """Another driver of this same host."""

    @abc.abstractmethod
    def start_guest(self, uuid: str, config: GuestConfig) -> None:
        """Define and run a guest with what ``guest_config`` returned."""

    @abc.abstractmethod
    def stop_guest(self, uuid: str) -> None:
        """Turn it off."""

    @abc.abstractmethod
    def delete_guest(self, uuid: str) -> None:
        """Undefine one that is off."""

    @abc.abstractmethod
    def reboot(self) -> None:
        """Boot the host again: guests are off."""

    @abc.abstractmethod
    def named(self, uuid: str) -> list[str]:
        """The addresses in the inactive definition of a domain, in their order."""

    @abc.abstractmethod
    def has_driver_for_guests(self, address: str) -> bool:
        """Whether a function is with the driver for guests."""

    @abc.abstractmethod
    def replace(self, address: str) -> None:
        """Put another function in the slot."""

    @abc.abstractmethod
    def remove(self, address: str) -> None:
        """Take a function away."""

    @abc.abstractmethod
    def hold(self, key: DeviceKey) -> contextlib.AbstractContextManager[Any]:
        """Work on a device as another process of this host does."""

    @abc.abstractmethod
    def let_libvirt_die(self) -> None:
        """From now on nobody takes functions back from guests that end."""

    @abc.abstractmethod
    def unreachable(self) -> None:
        """Let the hypervisor give no answer any more."""


class FakeWorld(World):

    def _setUp(self) -> None:
        self.machine = fake.FakeHost()
        for address in (DISK, OTHER):
            self.machine.add_function(address, OF_DISK, serial=address, numa_node=1)
        _card, *vfs = self.machine.add_card(CARD, 2, OF_CARD, OF_VF)
        self.vfs = [key.identifier for key in vfs]
        for address in PAIR:
            self.machine.add_function(address, OF_PAIR, group='pair')
        self.network_vf = self.machine.add_function('0000:05:10.0', OF_NETWORK, NETWORK_CARD, vf_number=0,
                                                    physical_network='physnet1').identifier

    def port_of(self, address: str) -> tuple[str, int, bool] | None:
        port = self.machine.ports.get(DeviceKey('pci', address))
        return None if port is None else (port.mac, port.vlan, port.trusted)

    def driver(self) -> interface.VirtDriver:
        return fake.FakeDriver('host', machine=self.machine)

    def start_guest(self, uuid: str, config: GuestConfig) -> None:
        self.machine.start_guest(uuid, config.devices, metadata=config.metadata)

    def stop_guest(self, uuid: str) -> None:
        self.machine.stop_guest(uuid)

    def delete_guest(self, uuid: str) -> None:
        self.machine.delete_guest(uuid)

    def reboot(self) -> None:
        self.machine.reboot()

    def named(self, uuid: str) -> list[str]:
        return list(fake.addresses_in(fake.elements_in(self.machine.definition(uuid))))

    def has_driver_for_guests(self, address: str) -> bool:
        return DeviceKey('pci', address) in self.machine.lent

    def replace(self, address: str) -> None:
        self.machine.change(DeviceKey('pci', address), serial='another')

    def remove(self, address: str) -> None:
        self.machine.remove(DeviceKey('pci', address))

    def hold(self, key: DeviceKey) -> contextlib.AbstractContextManager[Any]:
        return self.machine.working_on(*key)

    def let_libvirt_die(self) -> None:
        """This one never takes functions back."""

    def unreachable(self) -> None:
        self.machine.disconnected = 'gone'


class LibvirtTestWorld(World):
    """The libvirt driver on libvirt's test driver, with functions that are made of files."""

    def _setUp(self) -> None:
        self.host = self.useFixture(made.PCIHost())
        self.functions = pci_guests.GuestFunctions(self.host)
        for address in (DISK, OTHER):
            self.host.add_nvme(address, address, numa_node=1)
        self.host.add_igb(CARD)
        self.vfs = self.host.make_vfs(CARD, 2)
        self.host.add_card(PAIR[0].partition('.')[0], ['a', 'b'])
        self.host.add_igb(NETWORK_CARD)
        [self.network_vf] = self.host.make_vfs(NETWORK_CARD, 1)
        self.node = self.useFixture(libvirt_fixtures.TestNode())
        self.configuration = self.useFixture(our_fixtures.Configuration())
        self.configuration.set('pci', device_spec=list(map(json.dumps, (
            {'address': '*:07:00.*', 'resource_class': OF_PAIR},
            {'address': '*:05:*', 'physical_network': 'physnet1', 'trusted': True},
            {'vendor_id': '1b36', 'product_id': '0010', 'resource_class': OF_DISK},
            {'vendor_id': '8086', 'product_id': '10c9', 'resource_class': OF_CARD},
            {'vendor_id': '8086', 'product_id': '10ca', 'resource_class': OF_VF}))))
        self.configuration.set('devicetrack_pci', sysfs_root=self.host.root, release_wait_s=0, functions=['all'],
                               cleaning=[json.dumps({'policy': 'none'})])
        self._reachable = True
        self._boot = 0

    def port_of(self, address: str) -> tuple[str, int, bool] | None:
        found = self.host.links.of(address)
        return None if found.is_blank else (found.mac, found.vlan, bool(found.trusted))

    def driver(self) -> interface.VirtDriver:
        world = self

        class PCI(pci.PCI):
            def __init__(self, conf: Any, hypervisor: Any) -> None:
                super().__init__(conf, hypervisor)
                self.host_use = world.host.use

        class Driver(libvirt_driver.LibvirtDriver):
            def boot_id(self) -> str:
                return f'boot {world._boot}'

        return Driver('host', self.configuration.conf, self.configuration.state_path, [PCI], self._connect)

    def _connect(self) -> Any:
        return self.node.connect() if self._reachable else libvirt.open('nosuch:///')

    def start_guest(self, uuid: str, config: GuestConfig) -> None:
        self.node.connect().defineXML(libvirt_fixtures.guest(uuid, config)).create()
        self.functions.start(uuid, self.named(uuid))

    def stop_guest(self, uuid: str) -> None:
        self.node.connect().lookupByUUIDString(uuid).destroy()
        self.functions.end(uuid)

    def delete_guest(self, uuid: str) -> None:
        self.node.connect().lookupByUUIDString(uuid).undefine()

    def reboot(self) -> None:
        self._boot += 1
        for domain in self.node.connect().listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            domain.destroy()
        self.functions.boot()

    def named(self, uuid: str) -> list[str]:
        domain = self.node.connect().lookupByUUIDString(uuid)
        return list(domain_xml.parse(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)).pci_addresses)

    def has_driver_for_guests(self, address: str) -> bool:
        return self.host.driver_of(address) == made.VFIO_PCI

    def replace(self, address: str) -> None:
        self.host.remove(address)
        self.host.add_nvme(address, 'another', numa_node=1)

    def remove(self, address: str) -> None:
        self.host.remove(address)

    def hold(self, key: DeviceKey) -> contextlib.AbstractContextManager[Any]:
        locks = os.path.join(self.configuration.state_path, 'locks')
        os.makedirs(locks, exist_ok=True)
        return filelock.FileLock(os.path.join(
            locks, f'{urllib.parse.quote(f"{key.kind}-{key.identifier}", safe="")}.lock'))

    def let_libvirt_die(self) -> None:
        self.functions.dies = True

    def unreachable(self) -> None:
        self._reachable = False


class FunctionsContract(base.TestCase):
    """Every promise of a driver that has PCI functions. ``world_class`` says on which host."""

    world_class: type[World]

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(self.world_class())
        self.driver = self.world.driver()
        self.addCleanup(self.driver.close)
        self.instance = str(uuid.uuid4())
        case.prove_all(self.driver)

    def devices(self) -> dict[str, InventoryDevice]:
        return {device.identifier: device for device in self.driver.get_inventory().devices}

    def assigned(self, address: str = DISK, position: int = 0, state: str = vocabulary.CLAIMED,
                 was_realized: bool = False) -> DeviceAssignment:
        device = self.devices()[address]
        return contract.assignment(self.instance, 'pci', address, device.parent, device.details, position, state,
                                   was_realized)

    def start(self, *assignments: DeviceAssignment) -> None:
        for assignment in assignments:
            self.driver.realize(assignment)
        self.world.start_guest(self.instance, self.driver.guest_config(assignments))

    def unclaim(self, assignment: DeviceAssignment) -> exception.DriverError | None:
        return self.driver.unclaim([assignment])[DeviceKey('pci', assignment.identifier)]

    # -- views --------------------------------------------------------------------------------------------------------

    def test_the_inventory_has_every_function_and_how_it_is_counted(self) -> None:
        inventory = self.driver.get_inventory()
        self.assertIn('pci', inventory.known_kinds)
        self.assertIn('pci', inventory.keeping)
        self.assertIn('pci', self.driver.wiped_kinds())
        self.assertEqual((), inventory.unknown)
        first, second = self.world.vfs
        self.assertEqual({
            DISK: (OF_DISK, DISK, None), OTHER: (OF_DISK, OTHER, None), CARD: (OF_CARD, CARD, None),
            first: (OF_VF, CARD, None), second: (OF_VF, CARD, None), PAIR[0]: (OF_PAIR, PAIR[0], None),
            PAIR[1]: (OF_PAIR, PAIR[1], None), self.world.network_vf: (OF_NETWORK, NETWORK_CARD, None)}, {
                address: (device.resource_class, device.provider, device.unhealthy)
                for address, device in self.devices().items()})
        self.assertEqual(1, self.devices()[DISK].numa_node)
        self.assertLessEqual({OF_DISK, OF_CARD, OF_VF, OF_PAIR, OF_NETWORK}, self.driver.resource_classes())

    def test_functions_say_what_they_are(self) -> None:
        found = {address: details.from_text(device.details) for address, device in self.devices().items()}
        self.assertEqual((DISK, 'type-PCI', '', -1), (
            found[DISK].serial, found[DISK].device_type, found[DISK].parent_address, found[DISK].vf_number))
        self.assertEqual(('type-PF', ['type-VF'] * 2, [0, 1], {CARD}), (
            found[CARD].device_type, [found[vf].device_type for vf in self.world.vfs],
            [found[vf].vf_number for vf in self.world.vfs], {found[vf].parent_address for vf in self.world.vfs}))

    def test_functions_say_what_they_exclude(self) -> None:
        devices = self.devices()
        (token, mode), = devices[CARD].exclusions
        self.assertEqual(vocabulary.WHOLE, mode)
        for vf in self.world.vfs:
            self.assertEqual(((token, vocabulary.PART),), devices[vf].exclusions)
        self.assertEqual((), devices[DISK].exclusions)
        first, second = (devices[address].exclusions for address in PAIR)
        self.assertEqual(first, second)
        self.assertEqual([vocabulary.TOGETHER], [mode for _token, mode in first])

    def test_a_guest_uses_what_its_elements_name(self) -> None:
        ordered = [self.assigned(self.world.vfs[1]), self.assigned(DISK, 1)]
        self.start(*ordered)
        self.assertEqual([self.world.vfs[1], DISK], self.world.named(self.instance))
        for live in (True, False):
            usage = self.driver.get_usage()
            self.assertEqual({(DISK, live, True), (self.world.vfs[1], live, True)},
                             {(use.identifier, use.live, use.defined) for use in usage.uses})
            self.assertEqual({'pci'}, {use.kind for use in usage.uses})
            if live:
                self.world.stop_guest(self.instance)
        record, = self.driver.guest_records()
        self.assertEqual([('pci', self.world.vfs[1]), ('pci', DISK)],
                         [(device.kind, device.identifier) for device in record.devices])

    # -- ports --------------------------------------------------------------------------------------------------------

    def claimed(self, *ports: Port | None) -> DeviceAssignment:
        """The function of a network as a claim with these ports has it."""
        device = self.devices()[self.world.network_vf]
        [named] = self.driver.claim_for_instance(self.instance, Demand((), ports=ports), [Candidate(
            'pci', device.identifier, self.instance, OF_NETWORK, device.parent, device.numa_node, device.details)])
        return contract.assignment(self.instance, 'pci', device.identifier, device.parent, named.details, 0,
                                   vocabulary.CLAIMED)

    def test_a_function_of_a_network_is_a_port_and_says_so(self) -> None:
        self.assertIn('physical_network=physnet1', self.devices()[self.world.network_vf].features)
        self.assertEqual(PORT, self.claimed(PORT).details.port)
        for ports in ((), (None,), (PORT._replace(physical_network='physnet2'),)):
            self.assertRaises(exception.BadRequest, self.claimed, *ports)
        self.assertRaises(exception.RealizeFailed, self.driver.realize, self.assigned(self.world.network_vf))
        self.assertIsNotNone(self.claimed(PORT).details.migration_obstacle)

    def test_no_other_function_can_be_a_port(self) -> None:
        device = self.devices()[self.world.vfs[0]]
        self.assertRaises(exception.BadRequest, self.driver.claim_for_instance, self.instance,
                          Demand((), ports=(PORT,)), [Candidate(
                              'pci', device.identifier, self.instance, OF_VF, device.parent, None, device.details)])

    def test_a_port_is_there_before_its_guest_and_nothing_of_it_afterwards(self) -> None:
        wanted, vf = self.claimed(PORT), self.world.network_vf
        self.assertIsNone(self.world.port_of(vf))
        for _again in range(2):
            self.assertEqual(PORT, details.port_of(self.driver.realize(wanted).details))
            self.assertEqual((PORT.mac, PORT.vlan, PORT.trusted), self.world.port_of(vf))
        self.start(wanted)
        self.assertEqual([vf], self.world.named(self.instance))
        self.assertEqual({vf}, {use.identifier for use in self.driver.get_usage().uses})
        self.assertIsInstance(self.unclaim(wanted), exception.DeviceInUse)
        self.assertIsNotNone(self.world.port_of(vf))
        self.world.stop_guest(self.instance)
        self.world.delete_guest(self.instance)
        self.assertIsNone(self.unclaim(wanted))
        self.assertIsNone(self.world.port_of(vf))

    def test_a_guest_that_has_left_leaves_no_port_behind_until_it_comes_back(self) -> None:
        wanted, vf = self.claimed(PORT), self.world.network_vf
        self.driver.realize(wanted)
        self.start(wanted)
        self.driver.vacate(wanted)
        self.assertIsNotNone(self.world.port_of(vf))
        self.world.stop_guest(self.instance)
        for _again in range(2):
            self.driver.vacate(wanted)
            self.assertIsNone(self.world.port_of(vf))
        self.driver.realize(wanted)
        self.assertEqual((PORT.mac, PORT.vlan, PORT.trusted), self.world.port_of(vf))

    def test_a_port_comes_back_after_a_boot_of_the_host(self) -> None:
        wanted, vf = self.claimed(PORT), self.world.network_vf
        self.start(wanted)
        self.world.reboot()
        self.driver.realize(wanted)
        self.assertEqual((PORT.mac, PORT.vlan, PORT.trusted), self.world.port_of(vf))
        self.assertTrue(self.driver.rewrite_guest([wanted]))
        self.assertEqual([vf], self.world.named(self.instance))

    # -- realize ------------------------------------------------------------------------------------------------------

    def test_realizing_finds_it_every_time(self) -> None:
        for address in (DISK, CARD, self.world.vfs[0]):
            wanted = self.assigned(address)
            # With it comes what the claim found there, which the guest may change.
            found, again = (self.driver.realize(wanted)[:2] for _ in range(2))
            self.assertEqual(found, again)
            self.assertEqual(DeviceKey('pci', address), found[0])
            self.assertIs(True, identity.same_device(found[1], details.to_text(wanted.details)))

    def test_one_that_went_away_is_gone(self) -> None:
        wanted = self.assigned()
        self.world.remove(DISK)
        self.assert_gone(wanted)

    def test_another_one_in_the_slot_is_not_the_device(self) -> None:
        wanted = self.assigned()
        self.world.replace(DISK)
        self.assert_gone(wanted)
        self.assertFalse(self.world.has_driver_for_guests(DISK))

    def assert_gone(self, wanted: DeviceAssignment) -> None:
        self.assertRaises(exception.DeviceGone, self.driver.realize, wanted)
        self.assertRaises(exception.DeviceGone, self.driver.guest_config, [wanted])
        self.assertIsInstance(self.unclaim(wanted), exception.DeviceGone)

    def test_realizing_waits_for_nobody(self) -> None:
        wanted = self.assigned()
        with self.world.hold(DeviceKey('pci', DISK)):
            self.assertRaises(exception.DeviceBusy, self.driver.realize, wanted)
        self.driver.realize(wanted)

    # -- unclaim ------------------------------------------------------------------------------------------------------

    def test_what_a_guest_names_stays_with_it(self) -> None:
        wanted = self.assigned()
        self.start(wanted)
        self.assertIsInstance(self.unclaim(wanted), exception.DeviceInUse)
        self.assertTrue(self.world.has_driver_for_guests(DISK))
        self.world.stop_guest(self.instance)
        self.assertIsInstance(self.unclaim(wanted), exception.DeviceInUse)
        self.world.delete_guest(self.instance)
        for _again in range(2):
            self.assertIsNone(self.unclaim(wanted))
            self.assertFalse(self.world.has_driver_for_guests(DISK))

    def test_what_nobody_took_back_from_its_guest_is_brought_back(self) -> None:
        for address in (DISK, self.world.vfs[0]):
            wanted = self.assigned(address)
            self.world.let_libvirt_die()
            self.start(wanted)
            self.world.stop_guest(self.instance)
            self.world.delete_guest(self.instance)
            self.assertTrue(self.world.has_driver_for_guests(address))
            with self.world.hold(DeviceKey('pci', address)):
                self.assertIsInstance(self.unclaim(wanted), exception.DeviceBusy)
            self.assertTrue(self.world.has_driver_for_guests(address))
            self.assertIsNone(self.unclaim(wanted))
            self.assertFalse(self.world.has_driver_for_guests(address))

    def test_no_answer_frees_nothing(self) -> None:
        wanted = self.assigned()
        self.world.let_libvirt_die()
        self.start(wanted)
        self.world.stop_guest(self.instance)
        self.world.unreachable()
        self.assertRaises(exception.HypervisorUnreachable, self.world.driver().unclaim, [wanted])
        self.assertTrue(self.world.has_driver_for_guests(DISK))

    # -- proofs -------------------------------------------------------------------------------------------------------

    def unproven(self) -> set[str]:
        """What is unproven to another driver, which knows what is on the host alone."""
        return {identifier for _kind, identifier in self.world.driver().get_inventory().unproven}

    def test_what_came_back_is_proven_until_a_guest_is_to_have_it(self) -> None:
        for address in (DISK, self.world.vfs[0]):
            wanted = self.assigned(address)
            for _again in range(2):
                self.assertIsNone(self.unclaim(wanted))
                self.assertNotIn(address, self.unproven())
                self.driver.realize(wanted)
                self.assertIn(address, self.unproven())

    def test_what_was_only_claimed_goes_back_as_it_is(self) -> None:
        self.assertIsNone(self.unclaim(self.assigned()))
        released = self.assigned(state=vocabulary.RELEASING, was_realized=False)
        self.assertIsNone(self.unclaim(released))
        self.assertNotIn(DISK, self.unproven())

    def test_another_one_in_the_slot_is_not_proven(self) -> None:
        self.assertIsNone(self.unclaim(self.assigned()))
        self.world.replace(DISK)
        self.assertIn(DISK, self.unproven())

    # -- another boot -------------------------------------------------------------------------------------------------

    def test_a_definition_of_another_boot_names_what_it_named(self) -> None:
        wanted = [self.assigned(OTHER), self.assigned(self.world.vfs[0], 1)]
        self.start(*wanted)
        self.world.reboot()
        for one in wanted:
            self.assertFalse(self.world.has_driver_for_guests(one.identifier))
        self.assertEqual({(OTHER, False, True), (self.world.vfs[0], False, True)}, {
            (use.identifier, use.live, use.defined) for use in self.driver.get_usage().uses})
        self.assertIsInstance(self.unclaim(wanted[0]), exception.DeviceInUse)
        self.assertTrue(self.driver.rewrite_guest(wanted))
        self.assertEqual([OTHER, self.world.vfs[0]], self.world.named(self.instance))
        self.assertFalse(self.driver.rewrite_guest(wanted))
        record, = self.driver.guest_records()
        self.assertEqual(self.driver.boot_id(), record.boot_id)

    def test_a_function_that_is_gone_is_written_into_no_definition(self) -> None:
        wanted = self.assigned()
        self.start(wanted)
        self.world.reboot()
        self.world.replace(DISK)
        self.assertRaises(exception.DeviceGone, self.driver.rewrite_guest, [wanted])
        self.assertEqual([DISK], self.world.named(self.instance))
