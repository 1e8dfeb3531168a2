"""The MAC address, VLAN and trust of virtual functions of a real driver's card, beside what libvirt does with them.

QEMU emulates such a card since 8.0: with an older one these tests are no part of a run.
"""

from __future__ import annotations

import errno
import glob
import os
import pathlib
import signal
import subprocess
import time
import uuid

from devicetrack import exception
from devicetrack.engine import findings
from devicetrack.objects import DeviceRequest
from devicetrack.objects import NetworkPort
from devicetrack.testing import fixtures
from devicetrack.tests.host.functions import hosts
from devicetrack.tests.host.functions.hosts import driver_of
from devicetrack.tests.host.functions.hosts import put
from devicetrack.virt.libvirt import vf_link
from devicetrack.virt.libvirt import vf_ports
from devicetrack.virt.libvirt.vf_link import Settings

SYSFS = '/sys'
MAC = '52:54:00:aa:bb:01'
NOTHING = vf_link.NO_MAC, 0, False
WAIT_S = 30.0


class CardTestCase(hosts.FunctionsTestCase):
    """A card with two virtual functions."""

    EMULATED = ('igb',)

    def setUp(self) -> None:
        super().setUp()
        [self.card] = [os.path.basename(os.path.dirname(path)) for path in glob.glob('/sys/bus/pci/devices/*/device')
                       if pathlib.Path(path).read_text() == '0x10c9\n']
        put(self.card, 'sriov_drivers_autoprobe', '0')
        put(self.card, 'sriov_numvfs', '2')
        self.addCleanup(put, self.card, 'sriov_numvfs', '0')
        [self.interface] = os.listdir(hosts.SYSFS / self.card / 'net')
        self.turn('up')
        self.first, self.second = (os.path.basename(os.readlink(f'/sys/bus/pci/devices/{self.card}/virtfn{number}'))
                                   for number in range(2))

    def turn(self, state: str) -> None:
        subprocess.run(['ip', 'link', 'set', self.interface, state], check=True)

    def settings(self, address: str) -> Settings:
        return vf_ports.place_of(SYSFS, address).read()

    def shown(self) -> str:
        """What iproute2 says of the first function."""
        said = subprocess.run(['ip', 'link', 'show', self.interface], stdout=subprocess.PIPE, text=True, check=True)
        return next(line.strip() for line in said.stdout.splitlines() if line.strip().startswith('vf 0 '))


class PortsTestCase(CardTestCase):

    def setUp(self) -> None:
        super().setUp()
        # Its libvirt, for guests that no service knows.
        self.host(*self.disks(), cleaning='none')

    def start_guest(self, mac: str, vlan: int) -> str:
        domain, bus, rest = self.first.split(':')
        slot, function = rest.split('.')
        guest = str(uuid.uuid4())
        self.addCleanup(self.machine.delete_guest, guest)
        self.machine.start_guest(guest, [
            f"<interface type='hostdev' managed='yes'><mac address='{mac}'/><source><address type='pci' "
            f"domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source>"
            f"<vlan><tag id='{vlan}'/></vlan><rom bar='off'/></interface>"])
        return guest

    def test_are_set_read_back_and_taken_away(self) -> None:
        self.assertEqual([vf_link.BLANK] * 2, list(map(self.settings, (self.first, self.second))))
        vf_ports.set_port(SYSFS, self.first, MAC, 41, True)
        self.assertEqual([Settings(MAC, 41, True), vf_link.BLANK], list(map(self.settings, (self.first, self.second))))
        shown = self.shown()
        for text in (f'link/ether {MAC}', 'vlan 41', 'trust on'):
            self.assertIn(text, shown)
        vf_ports.set_port(SYSFS, self.first, MAC, 0, False)
        self.assertEqual(Settings(MAC), self.settings(self.first))
        vf_ports.set_port(SYSFS, self.first, *NOTHING)
        self.assertEqual(vf_link.BLANK, self.settings(self.first))
        self.assertIn(f'link/ether {vf_link.NO_MAC}', self.shown())

    def test_what_was_set_before_a_guest_outlives_it(self) -> None:
        vf_ports.set_port(SYSFS, self.first, MAC, 41, True)
        guest = self.start_guest(MAC, 41)
        self.assertEqual('vfio-pci', driver_of(self.first))
        self.assertEqual(Settings(MAC, 41, True), self.settings(self.first))
        # What is so already needs nobody's leave; nothing else is changed under a guest.
        vf_ports.set_port(SYSFS, self.first, MAC, 41, True)
        error = self.assertRaises(OSError, vf_ports.set_port, SYSFS, self.first, *NOTHING)
        self.assertEqual(errno.EBUSY, error.errno)
        self.assertEqual(Settings(MAC, 41, True), self.settings(self.first))
        self.machine.stop_guest(guest)
        self.assertIsNone(driver_of(self.first))
        # libvirt gives back what it found, and knows no trust.
        self.assertEqual(Settings(MAC, 41, True), self.settings(self.first))
        vf_ports.set_port(SYSFS, self.first, *NOTHING)
        self.assertEqual(vf_link.BLANK, self.settings(self.first))

    def test_a_guest_that_was_killed_leaves_what_libvirt_leaves(self) -> None:
        vf_ports.set_port(SYSFS, self.first, MAC, 41, True)
        guest = self.start_guest(MAC, 41)
        name = self.machine.domain(guest).name()
        os.kill(int(pathlib.Path(f'/run/libvirt/qemu/{name}.pid').read_text()), signal.SIGKILL)
        deadline = time.monotonic() + WAIT_S
        while driver_of(self.first) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual(Settings(MAC, 41, True), self.settings(self.first))
        vf_ports.set_port(SYSFS, self.first, *NOTHING)
        self.assertEqual(vf_link.BLANK, self.settings(self.first))

    def test_settings_of_two_functions_are_apart(self) -> None:
        vf_ports.set_port(SYSFS, self.first, MAC, 4094, False)
        vf_ports.set_port(SYSFS, self.second, '52:54:00:aa:bb:02', 1, True)
        self.assertEqual([Settings(MAC, 4094), Settings('52:54:00:aa:bb:02', 1, True)],
                         list(map(self.settings, (self.first, self.second))))

    def test_only_of_virtual_functions(self) -> None:
        error = self.assertRaises(OSError, vf_ports.set_port, SYSFS, self.card, MAC, 0, False)
        self.assertEqual(errno.EINVAL, error.errno)


class NetworkTestCase(CardTestCase):
    """The service gives guests ports, and takes them away."""

    def setUp(self) -> None:
        super().setUp()
        self.compute = self.host({'vendor_id': '8086', 'product_id': '10ca', 'physical_network': 'physnet1',
                                  'trusted': True}, cleaning='none')

    def spawn(self) -> tuple[fixtures.Instance, str]:
        """An instance that runs with a port, and the function that it is."""
        port = NetworkPort(physical_network='physnet1', mac=MAC, vlan=41, trusted=True)
        instance = self.compute.spawn(request=DeviceRequest.of().with_ports([port]))
        return instance, self.held_by(self.compute, instance)

    def assert_comes_back_blank(self, instance: fixtures.Instance, address: str) -> None:
        self.compute.manager.release(None, instance)
        self.assertEqual(([vf_link.BLANK] * 2, None, []), (
            list(map(self.settings, (self.first, self.second))), driver_of(address), list(self.compute.records())))
        self.assertEqual([], list(self.compute.audit()))

    def test_a_guest_has_its_port_and_leaves_nothing_of_it(self) -> None:
        self.assertEqual([vf_link.BLANK] * 2, list(map(self.settings, (self.first, self.second))))
        instance, address = self.spawn()
        self.assertEqual((Settings(MAC, 41, True), 'vfio-pci'), (self.settings(address), driver_of(address)))
        for look in (self.compute.audit, self.compute.restart):
            self.assertEqual([], list(look()))
        self.machine.stop_guest(instance.uuid)
        # Whatever libvirt left: whoever starts the guest again gives it its port again.
        vf_ports.set_port(SYSFS, address, MAC, 7, False)
        self.compute.run_guest(instance)
        self.assertEqual((Settings(MAC, 41, True), 'vfio-pci'), (self.settings(address), driver_of(address)))
        self.machine.delete_guest(instance.uuid)
        self.assert_comes_back_blank(instance, address)

    def test_no_port_is_offered_while_the_interface_of_its_card_is_down(self) -> None:
        self.turn('down')
        found = self.compute.audit()
        self.assertEqual({self.first, self.second}, {one.device.identifier for one in found})
        self.assertIn(f'ip link set {self.interface} up', str(found))
        self.assertRaises(exception.NoFit, self.spawn)
        self.turn('up')
        self.assertEqual([], list(self.compute.audit()))

    def test_a_port_that_somebody_changes_under_its_guest_is_a_finding(self) -> None:
        instance, address = self.spawn()
        number = vf_ports.place_of(SYSFS, address).number
        subprocess.run(['ip', 'link', 'set', self.interface, 'vf', str(number), 'vlan', '7'], check=True)
        found = [one for one in self.compute.audit() if one.kind == findings.NOT_AS_CONFIGURED]
        self.assertIn('VLAN 41', str(found))
        self.assertIn('VLAN 7', str(found))
        self.machine.delete_guest(instance.uuid)
        self.assert_comes_back_blank(instance, address)
