"""Which function is that of a row: what is found, what is withheld, what is left alone. No host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devicetrack.objects import details
from devicetrack.objects import PCIDetails
from devicetrack.tests import base
from devicetrack.tests.unit.objects import samples
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import pci_places

ONE, TWO, THREE = '0000:01:00.0', '0000:02:00.0', '0000:03:00.0'
NOWHERE = pci_places.Places({})


def disk(address: str, vfs: Sequence[str] = ()) -> pci_sysfs.Function:
    return pci_sysfs.Function(address, '1b36', '0010', '1af4:1100', '010802', 'nvme', vfs=tuple(vfs),
                              total_vfs=4 if vfs else 0)


def vf(address: str, physfn: str, number: int) -> pci_sysfs.Function:
    return pci_sysfs.Function(address, '1b36', '0010', '1af4:1100', '010802', physfn=physfn, vf_number=number,
                              parent=disk(physfn))


def row(address: str, serial: str | None = 'S1', **changes: Any) -> Any:
    found = samples.pci_details()
    found.address, found.serial = address, serial
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def follow(rows: dict[str, Any], functions: Sequence[pci_sysfs.Function], serials: dict[str, str | None],
           places: pci_places.Places = NOWHERE, stays: Sequence[str] = ()) -> pci_places.Followed:
    by_address = {function.address: function for function in functions}
    return pci_places.follow(rows, places, by_address, pci_cards.Cards(serials), stays)


class FollowTestCase(base.TestCase):

    scenarios = base.table(
        ('where it was', {ONE: row(ONE)}, {ONE: 'S1', TWO: 'S2'}, {}, []),
        ('at another address', {ONE: row(ONE)}, {TWO: 'S1'}, {ONE: TWO}, []),
        ('another one where it was', {ONE: row(ONE)}, {ONE: 'S2', TWO: 'S1'}, {ONE: TWO}, []),
        ('places exchanged', {ONE: row(ONE), TWO: row(TWO, 'S2')}, {ONE: 'S2', TWO: 'S1'}, {ONE: TWO, TWO: ONE}, []),
        ('gone', {ONE: row(ONE)}, {TWO: 'S2'}, {}, []),
        ('two like it', {ONE: row(ONE)}, {TWO: 'S1', THREE: 'S1'}, {}, [TWO, THREE]),
        ('one like it, and itself', {ONE: row(ONE)}, {ONE: 'S1', TWO: 'S1'}, {}, []),
        ('two rows of one card', {ONE: row(ONE), TWO: row(TWO)}, {THREE: 'S1'}, {}, [THREE]),
        ('no serial number', {ONE: row(ONE, '')}, {TWO: ''}, {}, []),
        ('one that was never read', {ONE: row(ONE, None)}, {TWO: 'S1', THREE: None}, {}, [TWO, THREE]),
        ('one that was never read, where it was', {ONE: row(ONE, None)}, {ONE: 'S1', TWO: 'S2'}, {}, []),
        ('one that cannot be read now', {ONE: row(ONE)}, {TWO: None}, {}, [TWO]),
        ('unread where it was', {ONE: row(ONE)}, {ONE: None, TWO: 'S2'}, {}, [ONE]),
        ('unread where it was, and elsewhere', {ONE: row(ONE)}, {ONE: None, TWO: 'S1'}, {}, [ONE, TWO]),
        ('unread where it was, of a vendor that gives all one number', {ONE: row(ONE)},
         {ONE: None, TWO: 'S1', THREE: 'S1'}, {}, [ONE]),
        ('gone, of a vendor that gives all one number', {ONE: row(ONE), TWO: row(TWO)}, {TWO: 'S1', THREE: 'S1'}, {},
         [THREE]),
        ('each where it was, of a vendor that gives all one number', {ONE: row(ONE), TWO: row(TWO)},
         {ONE: 'S1', TWO: 'S1', THREE: 'S1'}, {}, []),
        ('another function of a card', {ONE: row(ONE)}, {'0000:02:00.1': 'S1'}, {}, []),
        ('another maker of the card', {ONE: row(ONE, subsystem='144d:0001')}, {TWO: 'S1'}, {}, []),
        ('another product', {ONE: row(ONE, product_id='0011')}, {TWO: 'S1'}, {}, []),
        ('a number of a virtual one', {ONE: row(ONE, 'S1', vf_number=1)}, {ONE: 'S1'}, {}, []),
        names=('rows', 'serials', 'moved', 'withheld'))

    def test_follows(self) -> None:
        functions = [disk(address) for address in self.serials]
        found = follow(self.rows, functions, self.serials)
        self.assertEqual((self.moved, self.withheld), (found.moved, [
            function.address for function in functions if found.problem(function) is not None]))


class MoreTestCase(base.TestCase):

    def test_what_was_given_to_a_guest_in_this_boot_follows_nobody(self) -> None:
        found = follow({ONE: row(ONE)}, [disk(TWO)], {TWO: 'S1'}, stays=[ONE])
        self.assertEqual({}, found.moved)
        self.assertIn(f'put it back to {ONE}, or boot the host', str(found.problem(disk(TWO))))

    def test_what_has_moved_already_is_where_it_was_found(self) -> None:
        found = follow({ONE: row(TWO)}, [disk(TWO), disk(ONE)], {TWO: 'S1', ONE: 'S2'}, pci_places.Places({ONE: TWO}))
        self.assertEqual(({}, {}, set()), (found.moved, found.withheld, found.lost))

    def test_a_virtual_function_is_found_by_its_card_and_its_number(self) -> None:
        card = '1b36:0010 1af4:1100 0'
        of_vf = row('0000:01:00.2', '', parent_address=ONE, parent_card=card, parent_serial='S1', vf_number=1)
        vfs = ['0000:02:00.1', '0000:02:00.2']
        functions = [disk(TWO, vfs), *(vf(address, TWO, number) for number, address in enumerate(vfs))]
        self.assertEqual({'0000:01:00.2': vfs[1]},
                         follow({'0000:01:00.2': of_vf}, functions, {TWO: 'S1'}).moved)
        for serial in ('S2', '', None):
            self.assertEqual({}, follow({'0000:01:00.2': of_vf}, functions, {TWO: serial}).moved)

    def test_with_a_card_its_virtual_functions_are_withheld_and_the_reverse(self) -> None:
        vfs = ['0000:02:00.1']
        card, part = disk(TWO, vfs), vf(vfs[0], TWO, 0)
        found = follow({ONE: row(ONE)}, [card, part, disk(THREE)], {TWO: 'S1', THREE: 'S1'})
        self.assertEqual(found.problem(card), found.problem(part))
        self.assertIsNotNone(found.problem(card))
        of_vf = row('0000:01:00.1', '', parent_address=ONE, parent_card='1b36:0010 1af4:1100 0', parent_serial='S1',
                    vf_number=0)
        found = follow({'0000:01:00.1': of_vf}, [card, part], {TWO: 'S1'}, stays=['0000:01:00.1'])
        self.assertEqual(found.problem(card), found.problem(part))
        self.assertIsNotNone(found.problem(card))

    def test_of_one_serial_number_the_name_of_the_subsystem_tells_which(self) -> None:
        def followed(*rows: Any) -> tuple[dict[str, str], list[str]]:
            functions = {address: disk(address) for address in (ONE, TWO, THREE)}
            names = dict(zip(functions, ('nqn.b', 'nqn.a', 'nqn.c'), strict=True))
            found = pci_places.follow({one.address: one for one in rows}, NOWHERE, functions,
                                      pci_cards.Cards(dict.fromkeys(functions, 'S1'), names), ())
            return found.moved, sorted(found.withheld)

        self.assertEqual(({ONE: TWO, TWO: ONE}, []), followed(row(ONE, nvm_subsystem='nqn.a'),
                                                              row(TWO, nvm_subsystem='nqn.b')))
        self.assertEqual(({}, []), followed(row(ONE, nvm_subsystem='nqn.gone')))
        self.assertEqual(({}, []), followed(row(ONE)))                  # an earlier release recorded no name

    def test_names_and_addresses(self) -> None:
        places = pci_places.Places({ONE: TWO, TWO: THREE})
        self.assertEqual([f'at-{ONE}', ONE, TWO], list(map(places.name, (ONE, TWO, THREE))))
        self.assertEqual([ONE, TWO, THREE], [places.address(places.name(one)) for one in (ONE, TWO, THREE)])
        self.assertEqual([False, True, True], [places.problem(one) is None for one in (ONE, TWO, THREE)])
        self.assertEqual((ONE, ONE, None), (NOWHERE.name(ONE), NOWHERE.address(ONE), NOWHERE.problem(ONE)))

    def test_rows_that_cannot_be_read_are_left_alone(self) -> None:
        text = details.to_text(row(ONE))
        newer = text.replace(PCIDetails.VERSION, '9.0')
        self.assertNotEqual(text, newer)
        self.assertEqual([ONE], list(pci_places.rows({ONE: text, TWO: '{}', THREE: newer})))
