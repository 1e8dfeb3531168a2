"""The settings of virtual functions, set and read back on a host that is made of files."""

from __future__ import annotations

import errno
import os

from devicetrack.testing import pci
from devicetrack.tests import base
from devicetrack.virt.libvirt import vf_link
from devicetrack.virt.libvirt import vf_ports
from devicetrack.virt.libvirt.vf_link import Settings

CARD, NVME = '0000:03:00.0', '0000:01:00.0'
MAC, OTHER_MAC = '52:54:00:aa:bb:01', '52:54:00:aa:bb:02'
NOTHING = vf_link.NO_MAC, 0, False


class PortsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(pci.PCIHost())
        self.host.add_igb(CARD)
        self.first, self.second = self.host.make_vfs(CARD, 2)
        self.links = self.host.links

    def set(self, address: str, mac: str, vlan: int = 0, trusted: bool = False) -> None:
        vf_ports.set_port(self.host.root, address, mac, vlan, trusted)

    def refused(self, number: int, reason: str, address: str, *settings: object) -> None:
        before = list(self.links.written)
        error = self.assertRaises(OSError, self.set, address, *settings)
        self.assertEqual((number, True), (error.errno, reason in str(error)), str(error))
        self.assertEqual(before, self.links.written)

    def test_are_set_of_one_function_alone_and_taken_away(self) -> None:
        self.set(self.second, MAC, 41, True)
        self.assertEqual({self.second: Settings(MAC, 41, True)}, self.links.settings)
        place = vf_ports.place_of(self.host.root, self.second)
        self.assertEqual(('enp3s0', 1, Settings(MAC, 41, True)), (place.interface, place.number, place.read()))
        self.set(self.second, *NOTHING)
        self.assertTrue(place.read().is_blank)

    def test_what_is_so_is_not_written(self) -> None:
        self.set(self.first, *NOTHING)
        self.set(self.first, MAC, 41)
        before = list(self.links.written)
        with self.host.opened(self.first):
            self.set(self.first, MAC, 41)
        self.assertEqual(before, self.links.written)

    def test_not_while_somebody_uses_the_function(self) -> None:
        with self.host.opened(self.first):
            self.refused(errno.EBUSY, f'a guest has {self.first}', self.first, MAC)
        self.host.route(self.host.interface_of(self.first))
        self.refused(errno.EBUSY, 'the host uses', self.first, MAC)

    def test_only_of_virtual_functions(self) -> None:
        self.host.add_nvme(NVME, 'nvme-m0')
        for address in (CARD, NVME):
            self.refused(errno.EINVAL, 'is not a virtual function', address, MAC)
        self.refused(errno.ENOENT, '', '0000:0f:00.0', MAC)
        self.refused(errno.EINVAL, 'not a PCI address', '../03:00.0', MAC)

    def test_only_what_can_be_a_port(self) -> None:
        self.refused(errno.EINVAL, 'MAC address', self.first, 'none')
        self.refused(errno.EINVAL, 'VLAN', self.first, MAC, 4095)

    def test_not_without_the_interface_of_the_physical_function(self) -> None:
        self.host.hide_interface(CARD)
        self.refused(errno.ENODEV, 'has the interfaces none, and one is needed', self.first, MAC)

    def test_a_card_with_a_switch_has_interfaces_for_its_functions_too(self) -> None:
        for name, port in (('eth7', 'pf0vf0'), ('enp3s0np0', 'p0')):
            self.host.add_device(f'{CARD}/net', name, 'net')
            with open(self.host.path(CARD, f'net/{name}/phys_port_name'), 'w') as file:
                file.write(f'{port}\n')
        self.refused(errno.ENODEV, 'has the interfaces enp3s0, enp3s0np0, and one is needed', self.first, MAC)
        os.rename(self.host.path(CARD, 'net/enp3s0np0'), self.host.path(CARD, 'elsewhere'))
        self.set(self.first, MAC)
        self.assertEqual({self.first: Settings(MAC)}, self.links.settings)

    def test_a_driver_that_knows_no_trust(self) -> None:
        self.links.untrusting = {self.first}
        self.set(self.first, MAC, 41)
        error = self.assertRaises(OSError, self.set, self.first, MAC, 41, True)
        self.assertEqual((errno.EOPNOTSUPP, True), (error.errno, 'trust on is refused' in str(error)))
        self.set(self.first, *NOTHING)
        self.assertEqual((vf_link.NO_MAC, 0, None), self.links.of(self.first))

    def test_a_driver_that_does_not_say_what_it_trusts_is_told_each_time(self) -> None:
        self.links.silent = {self.first}
        error = self.assertRaises(OSError, self.set, self.first, MAC, 0, True)
        self.assertEqual((errno.EIO, True), (error.errno, 'does not say whether it is trusted' in str(error)))
        for settings in (NOTHING, (MAC, 41)):
            self.links.settings[self.first] = Settings(MAC, 41, True)
            self.set(self.first, *settings)
            self.assertIs(False, self.links.settings[self.first].trusted)

    def test_a_guest_keeps_its_port_whatever_its_driver_says_of_trust(self) -> None:
        self.links.silent, self.links.untrusting = {self.first}, {self.second}
        for address in (self.first, self.second):
            self.set(address, MAC, 41)
            before = list(self.links.written)
            with self.host.opened(address):
                self.set(address, MAC, 41)
                self.assertEqual(before, self.links.written)
                self.refused(errno.EBUSY, f'a guest has {address}', address, OTHER_MAC, 41)
                self.refused(errno.EBUSY, f'a guest has {address}', address, MAC, 41, True)
            self.links.settings[address] = Settings()
            with self.host.opened(address):
                self.refused(errno.EBUSY, f'a guest has {address}', address, *NOTHING)

    def test_a_driver_that_refuses_to_trust_less_is_an_error(self) -> None:
        self.links.silent = {self.first}
        real = self.links._set_one
        self.patch(self.links, '_set_one', lambda address, kind, value: (
            errno.EPERM if kind == 9 else real(address, kind, value)))
        error = self.assertRaises(OSError, self.set, self.first, *NOTHING)
        self.assertEqual((errno.EPERM, True), (error.errno, 'trust off is refused' in str(error)))

    def test_a_driver_that_lets_nobody_take_the_address_away(self) -> None:
        self.links.clinging = {self.first}
        self.set(self.first, MAC, 41, True)
        for _time in range(2):
            self.set(self.first, *NOTHING)
            self.assertEqual(Settings(vf_link.INSTEAD_OF_NO_MAC), self.links.settings[self.first])

    def test_what_a_driver_did_not_do_shows(self) -> None:
        self.links.deaf = {self.first}
        error = self.assertRaises(OSError, self.set, self.first, MAC)
        self.assertEqual((errno.EIO, True), (error.errno, f'it was set to MAC {MAC}' in str(error)))

    def test_another_interface_has_the_number_now(self) -> None:
        with open(self.host.path(CARD, 'net/enp3s0/ifindex')) as file:
            index = int(file.read())
        place = vf_ports.VFPlace('enp4s0', index, 0)
        error = self.assertRaises(OSError, place.read)
        self.assertEqual((errno.ESTALE, 'enp4s0 is enp3s0 now'), (error.errno, error.strerror))

    def test_settings_go_with_the_function(self) -> None:
        self.set(self.first, MAC, 41)
        self.host.unbind(CARD)
        self.assertEqual({}, self.links.settings)
