"""What stays the same of a configuration space."""

from __future__ import annotations

from devicetrack.testing import pci
from devicetrack.tests import base
from devicetrack.virt.libvirt import pci_config

# Of an NVMe disk that QEMU emulates: 16 KiB of 64-bit memory at register 0.
HEADER = bytes.fromhex('361b1000 07051000 02020801 10000000 040000fe 00000000 00000000 00000000'
                       '00000000 00000000 00000000 f41a0011 00000000 40000000 00000000 0b010000')
RESOURCE = ('0x00000000fe000000 0x00000000fe003fff 0x0000000000140204\n'
            + '0x0000000000000000 0x0000000000000000 0x0000000000000000\n' * 5
            + '0x00000000fd000000 0x00000000fd00ffff 0x000000000004e200\n')


class StableTestCase(base.TestCase):

    def test_what_the_maker_gave_it(self) -> None:
        self.assertEqual('1b36:0010:02:010802:00:1af4:1100 0m16384,rom65536', pci_config.stable(HEADER, RESOURCE))

    def test_what_the_host_changes_is_left_out(self) -> None:
        before = pci_config.stable(HEADER, RESOURCE)
        # Command, status, cache line size, latency, the address of a register, the interrupt line; the other functions
        # of the slot; and all behind the header.
        for offset in (0x04, 0x05, 0x06, 0x07, 0x0C, 0x0D, 0x13, 0x3C):
            self.assertEqual(before, pci_config.stable(_with(HEADER, offset, 0xAA), RESOURCE), hex(offset))
        self.assertEqual(before, pci_config.stable(_with(HEADER, 0x0E, 0x80) + b'more', RESOURCE))
        self.assertEqual(before, pci_config.stable(HEADER, RESOURCE.replace('fe00', 'fc00')))

    def test_what_a_guest_made_of_it_is_seen(self) -> None:
        before = pci_config.stable(HEADER, RESOURCE)
        for offset in (0x00, 0x01, 0x02, 0x03, 0x08, 0x09, 0x0A, 0x0B, 0x0E, 0x2C, 0x2D, 0x2E, 0x2F):
            self.assertNotEqual(before, pci_config.stable(_with(HEADER, offset, 0x55), RESOURCE), hex(offset))
        self.assertNotEqual(before, pci_config.stable(HEADER, RESOURCE.replace('fe003fff', 'fe007fff')))

    def test_a_function_that_does_not_answer(self) -> None:
        error = self.assertRaises(ValueError, pci_config.stable, b'\xff' * 256, RESOURCE)
        self.assertIn('does not answer', str(error))
        self.assertRaises(ValueError, pci_config.stable, HEADER[:-1], RESOURCE)
        # A virtual function has no identifiers of its own, and answers.
        self.assertTrue(pci_config.stable(b'\xff' * 4 + HEADER[4:], RESOURCE).startswith('ffff:ffff:02:'))

    def test_the_made_host_has_one(self) -> None:
        host = self.useFixture(pci.PCIHost())
        address = host.add_nvme('0000:01:00.0', 'S1')
        with open(host.path(address, 'config'), 'rb') as config, open(host.path(address, 'resource')) as resource:
            self.assertEqual('1b36:0010:02:010802:00:1af4:1100 0m16384',
                             pci_config.stable(config.read(), resource.read()))


def _with(header: bytes, offset: int, value: int) -> bytes:
    return header[:offset] + bytes([value]) + header[offset + 1:]
