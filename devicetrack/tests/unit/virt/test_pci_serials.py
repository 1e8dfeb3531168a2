"""Which card a PCI function is of, on a host that is made of files."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from typing import Any

import fixtures

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects import identity
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.virt.libvirt import pci_config
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt.kinds import pci_cards

CARD = pci_hosts.CARD
INTEL = {'vendor_id': '8086'}


def resource(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + len(data).to_bytes(2, 'little') + data


def field(keyword: bytes, data: bytes) -> bytes:
    return keyword + bytes((len(data),)) + data


class ProductDataTestCase(base.TestCase):

    scenarios = base.table(
        ('a serial number', resource(0x82, b'card') + resource(0x90, field(b'PN', b'A1') + field(b'SN', b'M75 ')),
         'M75'),
        ('none', resource(0x82, b'card') + resource(0x90, field(b'PN', b'A1')) + b'\x78', ''),
        ('nothing', b'', ''),
        ('no product data', b'\xff' * 64, ''),
        ('zeroes', bytes(64), ''),
        ('the end', b'\x78', ''),
        ('a field that is cut off', resource(0x90, b'SN\x09M7'), 'M7'),
        ('a resource that is cut off', b'\x90\xff\xff' + field(b'SN', b'M75'), 'M75'),
        ('one that says nothing', resource(0x90, field(b'SN', b'00000000')), ''),
        ('one that cannot be shown', resource(0x90, field(b'SN', b'\x01\x02\x03')), ''),
        ('empty resources without an end', resource(0x82, b'') * 20_000, ''),
        names=('data', 'serial'))

    def test_it_says(self) -> None:
        def read(length: int, place: int) -> bytes:
            return self.data[place:place + length]

        self.assertEqual(self.serial, pci_config.serial_of_vpd(read))


class ConfigurationSpaceTestCase(base.TestCase):

    scenarios = base.table(
        ('a serial number', bytes(256) + struct.pack('<III', 3, 0xFF0A0B0C, 0x001B21FF) + bytes(64),
         '00-1b-21-ff-ff-0a-0b-0c'),
        ('a conventional device', bytes(256), ''),
        ('what anybody may see', bytes(64), None),
        ('no capability', bytes(4096), ''),
        ('a device that is gone', b'\xff' * 4096, ''),
        ('a list without an end', bytes(256) + struct.pack('<III', 0x100 << 20 | 1, 0, 0) + bytes(64), ''),
        ('a capability outside', bytes(256) + struct.pack('<III', 0xFFC << 20 | 1, 0, 0) + bytes(64), ''),
        ('one that says nothing', bytes(256) + struct.pack('<III', 3, 0, 0), ''),
        names=('data', 'serial'))

    def test_it_says(self) -> None:
        self.assertEqual(self.serial, pci_config.serial_of_config(self.data))


class SerialsTestCase(pci_hosts.PCIHostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[str] = []
        self.broken: dict[str, Exception] = {}
        read = pci_privileged.read_serial

        def reading(sysfs: str, address: str) -> str | None:
            self.asked.append(address)
            if address in self.broken:
                raise self.broken[address]
            return read(sysfs, address)

        self.useFixture(fixtures.MonkeyPatch(f'{pci_privileged.__name__}.read_serial', reading))

    def details_of(self, kind: Any, address: str = CARD) -> Any:
        return details.from_text(self.devices(kind)[address].details)

    def test_a_card_is_asked_once_in_a_boot(self) -> None:
        self.host.add_igb(CARD)
        self.host.give_serial(CARD, 'M75')
        for _start in range(2):
            kind = self.kind(INTEL)
            for _audit in range(2):
                self.assertEqual('M75', self.details_of(kind).serial)
        self.assertEqual([CARD], self.asked)
        self.boot = 'the next boot'
        self.assertEqual('M75', self.details_of(self.kind(INTEL)).serial)
        self.assertEqual([CARD] * 2, self.asked)

    def test_a_card_without_one_is_asked_once_too(self) -> None:
        self.host.add_igb(CARD)
        self.host.give_serial(CARD, '0000')
        with open(self.host.path(CARD, 'config'), 'wb') as file:
            file.write(bytes(256))
        for _start in range(2):
            self.assertEqual('', self.details_of(self.kind(INTEL)).serial)
        self.assertEqual([CARD], self.asked)

    def test_a_broken_card_has_none_and_is_not_asked_again(self) -> None:
        self.host.add_igb(CARD)
        self.broken[CARD] = OSError(errno.EIO, 'broken')
        kind = self.kind(INTEL)
        for _audit in range(3):
            device = self.devices(kind)[CARD]
            self.assertEqual(('', None), (details.from_text(device.details).serial, device.unhealthy))
        self.assertEqual([CARD], self.asked)

    def test_a_card_that_gives_no_answer_in_time_has_none(self) -> None:
        self.host.add_igb(CARD)
        self.useFixture(fixtures.MonkeyPatch(f'{pci_cards.__name__}.READ_S', 0.01))
        fifo = self.useFixture(fixtures.TempDir()).join('fifo')
        os.mkfifo(fifo)

        def hangs(_sysfs: str, _address: str) -> str:
            with open(fifo) as file:
                return file.read()

        self.useFixture(fixtures.MonkeyPatch(f'{pci_privileged.__name__}.read_serial', hangs))
        self.assertEqual('', self.details_of(self.kind(INTEL)).serial)
        with contextlib.suppress(OSError):
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))

    def test_what_a_guest_has_is_not_asked(self) -> None:
        self.host.add_igb(CARD)
        self.host.give_serial(CARD, 'M75')
        self.give_to_guest(CARD)
        self.assertEqual('', self.details_of(self.kind(INTEL)).serial)
        self.assertEqual([], self.asked)

    def test_a_serial_number_that_can_be_read_later_makes_no_other_card(self) -> None:
        """The card did not answer, or the service got the right to see the number only now."""
        for address in (CARD, '0000:04:00.0'):
            for vfs in (0, 1):
                self.host.add_igb(address)
                self.host.give_serial(address, 'M75')
                name, = self.host.make_vfs(address, 1) if vfs else [address]
                self.broken[address] = OSError(errno.EIO, 'broken')
                assignment = self.realized(self.kind(INTEL, cleaning='none'), name)
                self.assertEqual(('', '', False), (assignment.details.serial, assignment.details.parent_serial,
                                                   assignment.details.no_serial))
                del self.broken[address]
                kind = self.kind(INTEL, cleaning='none')
                kind.stock()
                if address == CARD:
                    made = details.from_text(kind.realize(assignment).details)
                    self.assertEqual('M75', made.parent_serial if vfs else made.serial)
                self.unclaim(kind, assignment)
                self.host.remove(address)

    def test_so_it_is_when_a_guest_had_the_card_before_its_row_was_written(self) -> None:
        self.host.add_igb(CARD)
        self.host.give_serial(CARD, 'M75')
        self.give_to_guest(CARD)
        kind = self.kind(INTEL, cleaning='none')
        device = self.devices(kind)[CARD]
        assignment = contract.assignment(self.instance, 'pci', CARD, device.parent, device.details,
                                         was_realized=True)
        self.host.unbind(CARD)
        self.host.bind(CARD, 'igb')
        self.assertEqual('M75', self.details_of(kind).serial)
        kind.realize(assignment)
        self.unclaim(kind, assignment)

    def test_a_card_with_one_in_the_place_of_a_card_without_one_is_another(self) -> None:
        self.host.add_igb(CARD)
        with open(self.host.path(CARD, 'config'), 'wb') as file:
            file.write(bytes(256))
        assignment = self.realized(self.kind(INTEL, cleaning='none'), CARD)
        self.assertEqual(('', True), (assignment.details.serial, assignment.details.no_serial))
        # While a guest has it, nobody asks, and the row keeps what was found.
        self.give_to_guest(CARD)
        self.boot += ' and the next'
        kept = self.kind(INTEL, cleaning='none').realize(assignment)
        self.assertTrue(details.from_text(kept.details).no_serial)
        self.host.remove(CARD)
        self.host.add_igb(CARD)
        self.host.give_serial(CARD, 'M75')
        kind = self.kind(INTEL, cleaning='none')
        for call, arguments in ((kind.realize, (assignment,)), (self.unclaim, (kind, assignment))):
            self.assertIn('its serial is M75, recorded was none',
                          str(self.assertRaises(exception.DeviceGone, call, *arguments)))

    def test_a_row_of_an_older_release_tells_them_apart_once_realize_has_written_it(self) -> None:
        """Such a row does not say whether its card was asked. Nothing but realize writes that."""
        self.host.add_igb(CARD)
        with open(self.host.path(CARD, 'config'), 'wb') as file:
            file.write(bytes(256))
        kind = self.kind(INTEL, cleaning='none')
        device = self.devices(kind)[CARD]
        text = json.dumps(details.from_text(device.details).obj_to_primitive('1.2'))
        compared = identity.compare(text, device.details)
        assert compared is not None
        self.assertEqual((True, {}), (compared.is_same, compared.others))       # so no repair writes it
        assignment = contract.assignment(self.instance, 'pci', CARD, device.parent, text)
        written = kind.realize(assignment).details
        self.assertEqual([False, True], [details.from_text(one).no_serial for one in (text, written)])
        self.host.remove(CARD)
        self.host.add_igb(CARD)
        self.host.give_serial(CARD, 'M75')
        found = self.devices(self.kind(INTEL, cleaning='none'))[CARD].details
        both = [identity.compare(one, found) for one in (text, written)]
        self.assertEqual([True, False], [one is not None and one.is_same for one in both])

    def test_a_card_that_came_there_and_is_known_by_its_number_is_another(self) -> None:
        other = '0000:04:00.0'
        for address, serial in ((CARD, 'M75'), (other, 'M76')):
            self.host.add_igb(address)
            self.host.give_serial(address, serial)
        self.broken[CARD] = OSError(errno.EIO, 'broken')
        kind = self.kind(INTEL, cleaning='none')
        unknown, known = (self.assigned(kind, address) for address in (CARD, other))
        for address in (CARD, other):
            self.host.remove(address)
        self.boot += ' and the next'
        self.host.add_igb(CARD)
        self.host.give_serial(CARD, 'M76')
        self.broken.clear()
        kind = self.kind(INTEL, cleaning='none')
        kind.prepare({CARD: details.to_text(unknown.details), other: details.to_text(known.details)},
                     lambda _name: contextlib.nullcontext(True))
        kind.realize(known)
        for call, arguments in ((kind.realize, (unknown,)), (self.unclaim, (kind, unknown))):
            self.assertIn(f'it is {other} that is at {CARD} now',
                          str(self.assertRaises(exception.DeviceGone, call, *arguments)))

    def test_of_a_row_with_a_serial_number_that_cannot_be_read_now_nobody_knows(self) -> None:
        self.host.add_igb(CARD)
        self.host.give_serial(CARD, 'M75')
        kind = self.kind(INTEL)
        assignment = self.assigned(kind, CARD)
        self.boot = 'the next boot'
        self.broken[CARD] = OSError(errno.EIO, 'broken')
        kind = self.kind(INTEL)
        for error in (self.assertRaises(exception.RealizeFailed, kind.realize, assignment),
                      self.assertRaises(exception.UnclaimFailed, self.unclaim, kind, assignment)):
            self.assertIn('it may not be the recorded one: its serial number cannot be read', str(error))

    def test_a_virtual_function_is_known_by_its_card_and_its_number(self) -> None:
        self.host.add_igb(CARD)
        self.host.give_serial(CARD, 'M75')
        first, second = self.host.make_vfs(CARD, 2)
        kind = self.kind(INTEL)
        found = self.details_of(kind, second)
        self.assertEqual(('', 'M75', '8086:10c9 1af4:1100 0', CARD, 1, second), (
            found.serial, found.parent_serial, found.parent_card, found.parent_address, found.vf_number,
            found.address))
        self.assertFalse(identity.same_device(*(self.devices(kind)[vf].details for vf in (first, second))))

    def test_a_virtual_function_of_another_card_in_the_slot_is_another_device(self) -> None:
        for change, said in ((lambda: self.host.give_serial(CARD, 'M76'), 'parent serial is M76, recorded was M75'),
                             (lambda: None, 'parent serial is none, recorded was M75')):
            self.host.add_igb(CARD)
            self.host.give_serial(CARD, 'M75')
            vf, = self.host.make_vfs(CARD, 1)
            kind = self.kind(INTEL, cleaning='none')
            assignment = self.assigned(kind, vf)
            kind.realize(assignment)
            self.host.remove(CARD)
            self.host.add_igb(CARD)
            with open(self.host.path(CARD, 'config'), 'wb') as file:
                file.write(bytes(256))
            change()
            self.host.make_vfs(CARD, 1)
            for call, arguments in ((kind.realize, (assignment,)), (self.unclaim, (kind, assignment))):
                self.assertIn(said, str(self.assertRaises(exception.DeviceGone, call, *arguments)))
            self.host.remove(CARD)
            self.boot += ' and the next'

    def test_a_virtual_function_of_another_sort_of_card_is_another_device(self) -> None:
        self.host.add_igb(CARD)
        vf, = self.host.make_vfs(CARD, 1)
        kind = self.kind(INTEL)
        assignment = self.assigned(kind, vf)
        self.host.remove(CARD)
        self.host.add(CARD, pci_models.IGB._replace(product='8086:1520'))
        self.host.make_vfs(CARD, 1)
        error = self.assertRaises(exception.DeviceGone, kind.realize, assignment)
        self.assertIn('parent card is 8086:1520 1af4:1100 0', str(error))
