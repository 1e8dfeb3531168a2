"""Disks that nothing but their addresses tells apart, on a host made of files: none goes to the guest of another."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import json
import os
from typing import Any

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.virt.libvirt.kinds import pci

ONE, TWO, THREE = '0000:01:00.0', '0000:02:00.0', '0000:03:00.0'
NVME, SATA = pci_models.NVME, pci_models.Model('8086:2922', '010601', 'ahci')


class AlikeTestCase(pci_hosts.PCIHostTestCase):

    model = NVME

    def put(self, **serials: str) -> None:
        """Let the host have these disks, by the numbers of their buses, and no others."""
        for address in list(self.host.addresses):
            self.host.remove(address)
        for bus, serial in serials.items():
            self.host.add(f'0000:{bus.removeprefix("b")}:00.0', self.model, serial=serial)

    def name(self, address: str, name: str) -> None:
        """Let the kernel tell the name of a disk's NVM subsystem."""
        with open(self.host.path(address, f'nvme/{self.host.controller_of(address)}/subsysnqn'), 'w') as file:
            file.write(name)

    def start(self, **rows: Any) -> pci.PCI:
        """The kind of a service that starts now, with these rows."""
        vendor, product = self.model.product.split(':')
        kind = self.kind({'vendor_id': vendor, 'product_id': product}, cleaning='none')
        self.audit(kind, rows)
        return kind

    def audit(self, kind: pci.PCI, rows: Mapping[str, Any]) -> set[str]:
        """Compare the rows with the host, and return the names of functions that nobody gets."""
        kind.prepare({one.identifier: details.to_text(one.details) for one in rows.values()},
                     lambda _name: contextlib.nullcontext(True))
        return {name for name, device in self.devices(kind).items() if device.unhealthy is not None}

    def give(self, kind: pci.PCI, *addresses: str) -> dict[str, Any]:
        return {address: self.realized(kind, address) for address in addresses}

    def reboot(self, **serials: str) -> None:
        self.boot += ', and the next'
        self.put(**serials)

    def refused(self, kind: pci.PCI, one: Any) -> None:
        for call in (kind.realize, lambda one: kind.guest_elements([one]), lambda one: self.unclaim(kind, one),
                     kind.is_untouched):
            error = self.assertRaises(exception.CommandFailed, call, one)
            self.assertIn(f'device admit pci/{one.identifier}', str(error))

    def served(self, kind: pci.PCI, *assignments: Any) -> list[str]:
        """The addresses of the functions that rows get."""
        return [details.from_text(kind.realize(one).details).address for one in assignments]


class ShiftTestCase(AlikeTestCase):
    """The host boots, and its disks have moved by one bus."""

    scenarios = base.table(
        ('without serial numbers', NVME, '', {}, {}),
        ('with one serial number', NVME, 'nvme_card', {}, {}),
        ('in one subsystem by name', NVME, 'nvme_card', {ONE: 'nqn.a', TWO: 'nqn.a'}, {TWO: 'nqn.a', THREE: 'nqn.a'}),
        ('with names that rows lack', NVME, 'nvme_card', {}, {TWO: 'nqn.a', THREE: 'nqn.b'}),
        ('behind controllers that have no serial number', SATA, '', {}, {}),
        names=('model', 'serial', 'names', 'later'))

    def setUp(self) -> None:
        super().setUp()
        self.put(b01=self.serial, b02=self.serial)
        for address, name in self.names.items():
            self.name(address, name)
        self.rows = self.give(self.start(), ONE, TWO)
        for address, name in self.names.items():
            self.assertEqual(name, self.rows[address].details.nvm_subsystem)

    def shift(self) -> pci.PCI:
        self.reboot(b02=self.serial, b03=self.serial)
        for address, name in self.later.items():
            self.name(address, name)
        return self.start(**self.rows)

    def test_no_guest_gets_the_disk_of_another(self) -> None:
        kind = self.shift()
        self.assertRaises(exception.DeviceGone, kind.realize, self.rows[ONE])
        self.refused(kind, self.rows[TWO])
        self.assertEqual({TWO, THREE}, self.audit(kind, self.rows))
        # A command sees the same, also before the service has compared anything.
        self.refused(self.kind({'vendor_id': self.model.product.split(':')[0]}), self.rows[TWO])

    def test_they_are_served_again_when_they_are_back(self) -> None:
        self.shift()
        self.reboot(b01=self.serial, b02=self.serial)
        for address, name in self.names.items():
            self.name(address, name)
        kind = self.start(**self.rows)
        self.assertEqual([ONE, TWO], self.served(kind, *self.rows.values()))
        self.assertEqual(set(), self.audit(kind, self.rows))

    def test_the_word_of_an_operator_ends_the_doubt_about_a_disk(self) -> None:
        self.start(**self.rows).row_ended(ONE)
        del self.rows[ONE]
        kind = self.shift()
        self.assertEqual([True, False, False], [kind.call_in_place(name) for name in (TWO, TWO, THREE)])
        self.assertNotIn(TWO, self.audit(kind, self.rows))
        self.assertEqual([TWO], self.served(kind, self.rows[TWO]))

    def test_a_free_disk_is_no_more_proven(self) -> None:
        before = self.start(**self.rows).evidence([TWO])[TWO]
        kind = self.shift()
        self.assertTrue(kind.is_written(before, kind.evidence([TWO])[TWO]))
        self.reboot(b01=self.serial, b02=self.serial)
        for address, name in self.names.items():
            self.name(address, name)
        kind = self.start(**self.rows)
        self.assertFalse(kind.is_written(before, kind.evidence([TWO])[TWO]))


class RowNotShownTestCase(AlikeTestCase):
    """Disks have moved by one bus at a boot, and the store does not show the row of one for a while."""

    def setUp(self) -> None:
        super().setUp()
        self.put(b01='nvme_card', b02='nvme_card')
        self.rows = self.give(self.start(), ONE, TWO)

    def shift(self) -> None:
        self.reboot(b02='nvme_card', b03='nvme_card')

    def check_in_doubt(self, kind: pci.PCI) -> None:
        self.refused(kind, self.rows[TWO])
        self.assertEqual({TWO, THREE}, self.audit(kind, {ONE: self.rows[ONE]}))
        self.refused(kind, self.rows[TWO])      # nobody wipes it either, as a device without an owner
        self.assertEqual({TWO, THREE}, self.audit(kind, self.rows))
        self.refused(kind, self.rows[TWO])

    def test_one_audit_does_not_see_it(self) -> None:
        self.shift()
        kind = self.start(**self.rows)
        self.audit(kind, {ONE: self.rows[ONE]})
        self.check_in_doubt(kind)

    def test_the_first_look_after_the_boot_does_not_see_it(self) -> None:
        self.shift()
        self.check_in_doubt(self.start(**{ONE: self.rows[ONE]}))

    def test_no_look_of_a_whole_boot_sees_it(self) -> None:
        self.reboot(b01='nvme_card', b02='nvme_card')
        self.start(**{ONE: self.rows[ONE]})
        self.shift()
        self.check_in_doubt(self.start(**self.rows))

    def test_it_was_not_made_ready_for_its_guest_yet(self) -> None:
        self.put(b01='nvme_card', b02='nvme_card', b03='nvme_card')
        text = self.devices(self.start())[THREE].details
        row = contract.assignment(self.instance, 'pci', THREE, THREE, text)
        self.start(**{THREE: row})
        self.reboot(b02='nvme_card', b03='nvme_card', b04='nvme_card')
        self.start()
        self.refused(self.start(**{THREE: row}), row)

    def test_the_word_of_an_operator_ends_its_doubt_too(self) -> None:
        self.shift()
        kind = self.start(**{ONE: self.rows[ONE]})
        self.assertTrue(kind.call_in_place(TWO))
        self.assertEqual([TWO], self.served(self.start(**self.rows), self.rows[TWO]))

    def test_a_row_that_has_ended_withholds_nothing(self) -> None:
        self.start().row_ended(TWO)
        self.start().row_ended(ONE)
        self.shift()
        kind = self.start()
        self.assertEqual(set(), self.audit(kind, {}))
        self.assertEqual([TWO, THREE], self.served(kind, *self.give(kind, TWO, THREE).values()))


class MoreTestCase(AlikeTestCase):

    def test_a_host_that_did_not_change_goes_on(self) -> None:
        for self.model, serial in ((NVME, 'nvme_card'), (SATA, '')):
            self.put(b01=serial, b02=serial, b03=serial)
            rows = self.give(self.start(), ONE, TWO)
            for _boot in range(3):
                self.reboot(b01=serial, b02=serial, b03=serial)
                kind = self.start(**rows)
                self.assertEqual(set(), self.audit(kind, rows))
                self.assertEqual([ONE, TWO], self.served(kind, *rows.values()))
            for one in rows.values():
                self.unclaim(kind, one)

    def test_a_row_that_cannot_be_read_in_between_stays_in_doubt(self) -> None:
        self.put(b01='S1', b02='S1')
        rows = self.give(self.start(), ONE)
        self.reboot(b01='S1', b02='S1', b03='S1')
        self.kind(pci_hosts.NVME).prepare({ONE: '{}'}, lambda _name: contextlib.nullcontext(True))
        self.refused(self.start(**rows), rows[ONE])

    def test_a_disk_of_a_number_that_was_shared_is_not_found_by_it(self) -> None:
        self.put(b01='S1', b02='S1')
        rows = self.give(self.start(), ONE)
        self.reboot(b01='S1')                   # which of them has left?
        kind = self.start(**rows)
        self.refused(kind, rows[ONE])
        self.reboot(b04='S1')
        kind = self.start(**rows)
        self.assertEqual({'0000:04:00.0'}, self.audit(kind, rows))
        self.assertRaises(exception.DeviceGone, kind.realize, rows[ONE])

    def test_a_number_that_another_disk_has_too_now_tells_nothing(self) -> None:
        self.put(b01='S1')
        rows = self.give(self.start(), ONE)
        self.reboot(b01='S1', b02='S1')
        self.refused(self.start(**rows), rows[ONE])

    def test_disks_that_have_names_follow_them_whatever_else_comes(self) -> None:
        self.put(b01='S1', b02='S2')
        rows = self.give(self.start(), ONE, TWO)
        self.reboot(b02='S1', b03='S2', b01='S3')
        self.assertEqual([TWO, THREE], self.served(self.start(**rows), *rows.values()))

    def test_a_disk_that_comes_while_the_host_runs_raises_no_doubt_at_the_next_boot(self) -> None:
        self.put(b01='', b02='')
        rows = self.give(self.start(), ONE)
        self.reboot(b01='', b02='')
        kind = self.start(**rows)
        self.host.add(THREE, NVME)
        self.assertEqual(set(), self.audit(kind, rows))
        self.reboot(b01='', b02='', b03='')
        self.assertEqual([ONE], self.served(self.start(**rows), rows[ONE]))

    def test_a_row_that_gets_its_name_while_the_host_runs_is_known_by_it(self) -> None:
        self.put(b01='S1', b02='S1')
        kind = self.start()
        rows = self.give(kind, ONE)
        self.audit(kind, rows)
        [named] = self.give(kind, ONE).values()
        named.details.nvm_subsystem = 'nqn.a'
        for address, name in ((ONE, 'nqn.a'), (TWO, 'nqn.b')):
            self.name(address, name)
        kind = self.start(**{ONE: named})
        self.reboot(b02='S1', b03='S1')
        for address, name in ((TWO, 'nqn.a'), (THREE, 'nqn.b')):
            self.name(address, name)
        self.assertEqual([TWO], self.served(self.start(**{ONE: named}), named))

    def test_what_an_earlier_release_remembers_raises_no_doubt(self) -> None:
        self.put(b01='', b02='')
        rows = self.give(self.start(), ONE)
        path = os.path.join(self.state_path, 'pci.json')
        with open(path) as file:
            stored = json.load(file)
        del stored['alike']
        with open(path, 'w') as file:
            json.dump(stored, file)
        self.reboot(b01='', b02='')
        self.assertEqual([ONE], self.served(self.start(**rows), rows[ONE]))

    def test_a_disk_that_is_given_back_and_given_again_later_is_in_no_doubt(self) -> None:
        self.put(b01='S1', b02='S1')
        kind = self.start()
        rows = self.give(kind, ONE, TWO)
        self.unclaim(kind, rows[ONE])
        for name in rows:                       # the row of TWO has ended in another way
            kind.row_ended(name)
        self.reboot(b01='S1', b02='S1', b03='S1')
        kind = self.start()
        self.assertEqual([ONE, TWO], self.served(kind, *self.give(kind, ONE, TWO).values()))

    def test_a_released_disk_whose_row_could_not_end_is_in_doubt_after_a_boot(self) -> None:
        self.put(b01='S1', b02='S1')
        kind = self.start()
        rows = self.give(kind, ONE, TWO)
        self.unclaim(kind, rows[TWO])           # and the store cannot be reached
        self.reboot(b02='S1', b03='S1')
        self.refused(self.start(**rows), rows[TWO])

    def test_a_virtual_function_is_in_doubt_with_its_card(self) -> None:
        self.put()
        self.host.add_nvme_with_vfs(ONE, '')
        self.host.add_nvme_with_vfs(TWO, '')
        [first], [second] = (self.host.make_vfs(card, 1) for card in (ONE, TWO))
        row = contract.assignment(self.instance, 'pci', second, TWO, self.devices(self.start())[second].details)
        self.start(**{second: row})
        for moved in (False, True):
            self.boot += ', and the next'
            for card in (*self.host.vfs_of(ONE), *self.host.vfs_of(TWO), ONE, TWO):
                self.host.remove(card)
            for card in (TWO, THREE) if moved else (ONE, TWO):
                self.host.add_nvme_with_vfs(card, '')
                self.host.make_vfs(card, 1)
            kind = self.start(**{second: row})
            if moved:
                error = self.assertRaises(exception.CommandFailed, kind.guest_elements, [row])
                self.assertIn(f'device admit pci/{second}', str(error))
                self.assertEqual(set(self.devices(kind)), self.audit(kind, {second: row}))
            else:
                self.assertEqual(1, len(kind.guest_elements([row])))

    def test_cards_without_disks_are_known_by_their_addresses_as_before(self) -> None:
        self.put()
        for address in (ONE, TWO):
            self.host.add_igb(address)
        self.model = pci_models.IGB
        rows = self.give(self.start(), ONE, TWO)
        self.boot = 'the next boot'
        self.host.remove(ONE)
        self.host.add_igb(THREE)
        kind = self.start(**rows)
        self.assertEqual([TWO], self.served(kind, rows[TWO]))
        self.assertEqual(set(), self.audit(kind, rows))
