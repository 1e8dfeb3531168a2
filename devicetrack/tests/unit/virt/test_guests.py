"""What is done to guests where libvirt does what is seldom seen: domains in memory, and kinds of the tests' own."""

from __future__ import annotations

from typing import Any
import uuid

import fixtures
import libvirt

from devicetrack import exception
from devicetrack.objects import DeviceMap
from devicetrack.objects import DevicePair
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import test_driver
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import guest_xml

A, B = test_driver.A, test_driver.B
BEFORE = 'another boot'
LIVE = libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE
INACTIVE = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE


def refused() -> libvirt.libvirtError:
    return test_driver.libvirt_error(libvirt.VIR_ERR_OPERATION_FAILED)


def nvdimm(path: str) -> str:
    return f"<memory model='nvdimm'><source><path>{path}</path></source></memory>"


def xml(*paths: str, record: str = '') -> str:
    return (f"<domain type='kvm'><name>secret-name</name><uuid>{A}</uuid><metadata>{record}</metadata>"
            f"<devices>{''.join(map(nvdimm, paths))}</devices></domain>")


def mdev(uuid: str) -> str:
    return ("<hostdev mode='subsystem' type='mdev' model='vfio-pci'>"
            f"<source><address uuid='{uuid}'/></source></hostdev>")


def card(address: str) -> str:
    _domain, bus, rest = address.split(':')
    slot, function = rest.split('.')
    return ("<hostdev mode='subsystem' type='pci'><source>"
            f"<address bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source></hostdev>")


class Domain:
    """One domain that does as it is told. ``refuses`` are errors by call, raised each time."""

    def __init__(self, raw: Raw, live: str | None = None, defined: str | None = None, saved: str | None = None) -> None:
        self.raw, self.live, self.defined, self.saved = raw, live, defined, saved
        self.refuses: dict[str, Exception] = {}
        self.accepts: set[int] | None = None        # flags of undefine; None is all
        self.undefined_with: list[int] = []
        self.starts_again = 0
        self.goes_off = False                       # just before it is destroyed

    def UUIDString(self) -> str:
        return A

    def _try(self, call: str) -> None:
        if self.raw.domain is not self:
            raise test_driver.libvirt_error(libvirt.VIR_ERR_NO_DOMAIN)
        if call in self.refuses:
            raise self.refuses[call]

    def isActive(self) -> int:
        self._try('isActive')
        return int(self.live is not None)

    def isPersistent(self) -> int:
        self._try('isPersistent')
        return int(self.defined is not None)

    def XMLDesc(self, flags: int) -> str | None:
        self._try('XMLDesc')
        return self.defined if flags & libvirt.VIR_DOMAIN_XML_INACTIVE or self.live is None else self.live

    def hasManagedSaveImage(self, flags: int) -> int:
        self._try('hasManagedSaveImage')
        return int(self.saved is not None)

    def managedSaveGetXMLDesc(self, flags: int) -> str | None:
        return self.saved

    def managedSaveDefineXML(self, text: str, flags: int) -> None:
        self._try('managedSaveDefineXML')
        self.saved = text

    def destroy(self) -> None:
        self.live = None if self.goes_off else self.live
        self._try('destroy')
        self.live = None
        self._go()

    def undefineFlags(self, flags: int) -> None:
        self._try('undefine')
        self.undefined_with.append(flags)
        if self.accepts is not None and flags not in self.accepts:
            raise refused()
        self.defined = None
        self._go()

    def _go(self) -> None:
        if self.live is None and self.defined is None:
            if self.starts_again:
                self.starts_again -= 1
                self.live = xml()
            else:
                self.raw.domain = None


class Raw:
    domain: Domain | None = None

    def lookupByUUIDString(self, name: str) -> Domain:
        if self.domain is None or name != A:
            raise test_driver.libvirt_error(libvirt.VIR_ERR_NO_DOMAIN)
        return self.domain

    def listAllDomains(self, flags: int) -> list[Domain]:
        is_transient = flags == libvirt.VIR_CONNECT_LIST_DOMAINS_TRANSIENT
        return [self.domain] if self.domain and (not flags or is_transient and self.domain.defined is None) else []

    def defineXML(self, text: str) -> None:
        assert self.domain is not None
        self.domain._try('defineXML')
        self.domain.defined = text

    def isAlive(self) -> bool:
        return True


class Ours(test_driver.Paths):
    """Devices below /ours."""

    name = 'ours'
    form = guest_xml.MEMORY
    start = '/ours/'

    def identify(self, addresses: Any) -> Any:
        return {address: address.removeprefix(self.start) if address.startswith(self.start) else None
                for address in addresses}

    def guest_elements(self, assignments: Any) -> Any:
        return [nvdimm(f'{self.start}{assignment.identifier}') for assignment in assignments]


class Others(Ours):
    """Another kind whose devices have the same form."""

    name = 'others'
    start = '/others/'


class Mdevs(Ours):
    """Mediated devices. A UUID is the name of its device."""

    name = 'mdevs'
    form = guest_xml.MDEV

    def addresses(self, domain: Any) -> Any:
        return domain.mdev_uuids

    def identify(self, addresses: Any) -> Any:
        return {address: address for address in addresses}

    def guest_elements(self, assignments: Any) -> Any:
        return [mdev(assignment.identifier) for assignment in assignments]


class Cards(Ours):
    """Cards that may come to another address at a boot of the host."""

    name = 'cards'
    form = guest_xml.PCI
    there: dict[str, str] = {}

    def addresses(self, domain: Any) -> Any:
        return domain.pci_addresses

    def identify(self, addresses: Any) -> Any:
        return {address: self.there.get(address) for address in addresses}

    def guest_elements(self, assignments: Any) -> Any:
        at = {name: address for address, name in self.there.items()}
        return [card(at[assignment.identifier]) for assignment in assignments]


class GuestsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.raw = Raw()
        self.driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [Ours, Others, Mdevs, Cards],
                                                   lambda: self.raw)

    def domain(self, **definitions: str) -> Domain:
        self.raw.domain = Domain(self.raw, **definitions)
        return self.raw.domain

    def assigned(self, kind: str, identifier: str, position: int = 0) -> Any:
        return contract.assignment(A, kind, identifier, None, test_driver.DETAILS, position)


class DestroyTestCase(GuestsTestCase):

    def test_what_a_hypervisor_does_not_know_is_left_out(self) -> None:
        for accepted in (0, libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA):
            domain = self.domain(live=xml(), defined=xml())
            domain.accepts = {accepted}
            self.driver.destroy_guest(A)
            self.assertIsNone(self.raw.domain)
            self.assertTrue(domain.undefined_with[0] & libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)

    def test_a_guest_that_somebody_starts_meanwhile_is_stopped_again(self) -> None:
        self.domain(live=xml()).starts_again = 1
        self.driver.destroy_guest(A)
        self.assertIsNone(self.raw.domain)

    def test_one_that_runs_is_left_alone_if_it_is_not_to_be_stopped(self) -> None:
        self.domain(live=xml(), defined=xml())
        self.assertRaises(exception.GuestNotRemoved, self.driver.destroy_guest, A, stop=False)
        self.assertIsNotNone(self.raw.domain)
        self.domain(defined=xml())
        self.driver.destroy_guest(A, stop=False)
        self.assertIsNone(self.raw.domain)

    def test_but_not_for_ever(self) -> None:
        self.domain(live=xml()).starts_again = 2
        error = self.assertRaises(exception.GuestNotRemoved, self.driver.destroy_guest, A)
        self.assertEqual(A, error.domain)

    def test_what_is_refused_is_said_without_the_name(self) -> None:
        for call in ('isActive', 'destroy', 'undefine'):
            self.domain(live=xml(), defined=xml()).refuses[call] = refused()
            error = self.assertRaises(exception.GuestNotRemoved, self.driver.destroy_guest, A)
            self.assertNotIn('secret', str(error))

    def test_a_guest_that_went_off_by_itself_is_off(self) -> None:
        domain = self.domain(live=xml(), defined=xml())
        domain.goes_off = True
        domain.refuses['destroy'] = refused()
        self.driver.destroy_guest(A)
        self.assertIsNone(self.raw.domain)


class RewriteTestCase(GuestsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.wanted = [self.assigned('ours', 'a', 0), self.assigned('others', 'b', 1), self.assigned('ours', 'c', 2)]
        self.old = xml('/1', '/2', '/3', record=metadata.element(self.wanted, 'g1', boot_id=BEFORE))

    def paths(self, text: str | None) -> tuple[str, ...]:
        return domain_xml.parse(text or '').memory_paths

    def test_kinds_of_one_form_keep_the_order_of_the_definition(self) -> None:
        domain = self.domain(defined=self.old)
        self.assertTrue(self.driver.rewrite_guest(self.wanted[::-1]))
        self.assertEqual(('/ours/a', '/others/b', '/ours/c'), self.paths(domain.defined))
        uses = [(use.kind, use.identifier) for use in self.driver.get_usage().uses if use.identifier]
        self.assertEqual([('others', 'b'), ('ours', 'a'), ('ours', 'c')], sorted(uses))

    def test_before_that_it_is_read_by_its_record(self) -> None:
        self.domain(defined=self.old)
        usage = self.driver.get_usage()
        self.assertEqual([('ours', 'a', '/1', False, True), ('others', 'b', '/2', False, True),
                          ('ours', 'c', '/3', False, True)],
                         [(use.kind, use.identifier, use.address, use.live, use.defined) for use in usage.uses])

    def test_a_network_card_of_the_guest_stays(self) -> None:
        card = "<hostdev mode='subsystem' type='pci'><source><address bus='0x5e' function='0x2'/></source></hostdev>"
        domain = self.domain(defined=self.old.replace('<devices>', f'<devices>{card}'))
        self.assertTrue(self.driver.rewrite_guest(self.wanted))
        self.assertEqual((('/ours/a', '/others/b', '/ours/c'), ('0000:5e:00.2',)),
                         (self.paths(domain.defined), domain_xml.parse(domain.defined or '').pci_addresses))

    def test_a_guest_that_was_saved_gets_both(self) -> None:
        domain = self.domain(defined=self.old, saved=self.old)
        self.assertTrue(self.driver.rewrite_guest(self.wanted))
        self.assertEqual(self.paths(domain.saved), self.paths(domain.defined))
        self.assertFalse(self.driver.rewrite_guest(self.wanted))

    def test_after_a_crash_between_them_the_other_one_is_done(self) -> None:
        domain = self.domain(defined=self.old, saved=self.old)
        domain.refuses['defineXML'] = refused()
        error = self.assertRaises(exception.DriverError, self.driver.rewrite_guest, self.wanted)
        self.assertNotIn('secret', str(error))
        self.assertEqual(('/1', '/2', '/3'), self.paths(domain.defined))
        domain.refuses.clear()
        self.assertTrue(self.driver.rewrite_guest(self.wanted))
        self.assertEqual(self.paths(domain.saved), self.paths(domain.defined))

    def test_what_was_saved_and_cannot_be_told_apart_leaves_both(self) -> None:
        domain = self.domain(defined=self.old, saved=xml('/1'))
        self.assertRaises(exception.InvalidDocument, self.driver.rewrite_guest, self.wanted)
        self.assertEqual(self.old, domain.defined)

    def test_a_saved_guest_may_have_lost_what_the_service_attaches_again_when_it_resumes(self) -> None:
        wanted = [*self.wanted, self.assigned('mdevs', B, 3)]
        saved = xml('/1', '/2', '/3', record=metadata.element(wanted, 'g1', boot_id=BEFORE))
        domain = self.domain(defined=saved.replace('</devices>', f'{mdev(B)}</devices>'), saved=saved)
        self.assertTrue(self.driver.rewrite_guest(wanted))
        defined, saved_now = (domain_xml.parse(text or '') for text in (domain.defined, domain.saved))
        self.assertEqual(((B,), ()), (defined.mdev_uuids, saved_now.mdev_uuids))
        self.assertEqual(defined.memory_paths, saved_now.memory_paths)
        assert saved_now.record is not None
        self.assertEqual(['a', 'b', 'c', B], [device.identifier for device in saved_now.record.devices])
        self.assertEqual(saved_now.record, defined.record)
        self.assertFalse(self.driver.rewrite_guest(wanted))

    def test_but_neither_a_path_nor_anything_that_its_definition_lacks(self) -> None:
        wanted = [*self.wanted, self.assigned('mdevs', B, 3)]
        record = metadata.element(wanted, 'g1', boot_id=BEFORE)
        whole = xml('/1', '/2', '/3', record=record).replace('</devices>', f'{mdev(B)}</devices>')
        for defined, saved in ((whole, xml('/1', '/2', record=record)), (xml('/1', '/2', '/3', record=record), whole)):
            domain = self.domain(defined=defined, saved=saved)
            self.assertRaises(exception.InvalidDocument, self.driver.rewrite_guest, wanted)
            self.assertEqual((defined, saved), (domain.defined, domain.saved))

    def test_without_a_record_the_address_of_a_card_that_moved_is_refused(self) -> None:
        """Another guest's card may have the address now."""
        one, two, three = (f'0000:0{bus}:00.0' for bus in (1, 2, 3))
        wanted, network = [self.assigned('cards', two)], card('0000:5e:00.2')
        for there, refuses in (({two: two}, False), ({two: one, three: two}, True), ({three: two}, True)):
            self.patch(Cards, 'there', there)
            old = xml().replace('<devices>', f'<devices>{network}{card(two)}')
            for definitions in ({'defined': old}, {'defined': old, 'saved': old}):
                domain = self.domain(**definitions)
                if refuses:
                    error = self.assertRaises(exception.InvalidDocument, self.driver.rewrite_guest, wanted)
                    self.assertIn(f'cards/{two} is not at one of its addresses', str(error))
                else:
                    self.assertFalse(self.driver.rewrite_guest(wanted))
                self.assertEqual(old, domain.defined)

    def test_what_was_saved_without_its_card_is_not_refused(self) -> None:
        two = '0000:02:00.0'
        self.patch(Cards, 'there', {two: two})
        network = card('0000:5e:00.2')
        self.domain(defined=xml().replace('<devices>', f'<devices>{network}{card(two)}'),
                    saved=xml().replace('<devices>', f'<devices>{network}'))
        self.assertFalse(self.driver.rewrite_guest([self.assigned('cards', two)]))

    def test_one_that_was_saved_with_another_card_is_refused(self) -> None:
        one, two = '0000:01:00.0', '0000:02:00.0'
        self.patch(Cards, 'there', {one: one, two: two})
        old = xml().replace('<devices>', f'<devices>{card(two)}')
        self.domain(defined=old, saved=old.replace("bus='0x02'", "bus='0x01'"))
        self.assertRaises(exception.InvalidDocument, self.driver.rewrite_guest, [self.assigned('cards', two)])

    def test_a_hypervisor_that_saves_no_guests(self) -> None:
        self.domain(defined=self.old).refuses['hasManagedSaveImage'] = test_driver.libvirt_error(
            libvirt.VIR_ERR_NO_SUPPORT)
        self.assertTrue(self.driver.rewrite_guest(self.wanted))

    def test_a_guest_that_goes_meanwhile_has_no_definition(self) -> None:
        self.domain(defined=self.old).refuses['XMLDesc'] = test_driver.libvirt_error(libvirt.VIR_ERR_NO_DOMAIN)
        self.assertFalse(self.driver.rewrite_guest(self.wanted))


    def test_a_guest_that_is_undefined_meanwhile_does_not_come_back(self) -> None:
        for saved in (None, self.old):
            domain = self.domain(defined=self.old)
            domain.saved = saved
            self.while_elements_are_made(lambda: setattr(self.raw, 'domain', None))
            self.assertFalse(self.driver.rewrite_guest(self.wanted))
            self.assertIsNone(self.raw.domain)

    def test_a_definition_that_somebody_changes_meanwhile_stays(self) -> None:
        domain, changed = self.domain(defined=self.old), self.old.replace('/3', '/4')
        self.while_elements_are_made(lambda: setattr(domain, 'defined', changed))
        error = self.assertRaises(exception.CommandFailed, self.driver.rewrite_guest, self.wanted)
        self.assertNotIn('secret', str(error))
        self.assertEqual(changed, domain.defined)

    def while_elements_are_made(self, happens: Any) -> None:
        made = Others.guest_elements

        def elements(kind: Others, assignments: Any) -> Any:
            happens()
            return made(kind, assignments)

        self.patch(Others, 'guest_elements', elements)


class LiveTestCase(GuestsTestCase):

    def test_what_a_guest_runs_on_is_known_when_its_inactive_definition_is_not(self) -> None:
        record = metadata.element([self.assigned('ours', 'a'), self.assigned('ours', 'b')], boot_id=BEFORE)
        live = xml('/ours/x').replace("type='kvm'", "type='kvm' id='1'")
        self.domain(live=live, defined=xml('/1', record=record))
        usage = self.driver.get_usage()
        self.assertEqual([('x', True, False)],
                         [(use.identifier, use.live, use.defined) for use in usage.uses if use.identifier])
        self.assertEqual([f'domain {A}'], [unknown.what for unknown in usage.unknown])

    def test_a_record_of_another_boot_says_nothing_about_a_live_definition(self) -> None:
        record = metadata.element([self.assigned('ours', 'a')], boot_id=BEFORE)
        self.domain(live=xml('/ours/x', record=record).replace("type='kvm'", "type='kvm' id='1'"))
        self.assertEqual({'x', None}, {use.identifier for use in self.driver.get_usage().uses})


class MigrationDefinitionsTestCase(GuestsTestCase):

    def moved(self, *pairs: tuple[str, str, str]) -> Any:
        self.map = DeviceMap.of(A, str(uuid.uuid4()), [
            DevicePair(kind=kind, resource_class='C', source=source, destination=partner, type='t',
                       element=nvdimm(f'/there/{partner}')) for kind, source, partner in pairs], '')
        return self.driver.migration_definitions(self.map)

    def test_pairs_are_found_by_the_device_and_not_by_their_order(self) -> None:
        self.domain(live=xml('/others/a', '/ours/a'))
        definitions = self.moved(('ours', 'a', 'x'), ('others', 'a', 'y'))
        self.assertEqual((('/there/y', '/there/x'), None),
                         (domain_xml.parse(definitions.live).memory_paths, definitions.persistent))

    def test_an_inactive_definition_of_another_boot_goes_by_its_record(self) -> None:
        record = metadata.element([self.assigned('ours', 'a'), self.assigned('ours', 'b')], boot_id=BEFORE)
        self.domain(live=xml('/ours/a', '/ours/b'), defined=xml('/ours/b', '/ours/a', record=record))
        definitions = self.moved(('ours', 'a', 'x'), ('ours', 'b', 'y'))
        self.assertEqual({('/there/x', '/there/y')},
                         {domain_xml.parse(text).memory_paths for text in definitions})

    def test_two_elements_of_one_device_are_refused(self) -> None:
        self.domain(live=xml('/ours/a', '/ours/a'))
        self.assertRaises(exception.InvalidDocument, self.moved, ('ours', 'a', 'x'))

    def test_a_device_of_nobody_is_refused(self) -> None:
        self.domain(live=xml('/ours/a', '/home/secret'))
        error = self.assertRaises(exception.InvalidDocument, self.moved, ('ours', 'a', 'x'))
        self.assertNotIn('secret', str(error))

    def test_nothing_is_logged_of_a_document(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        self.domain(live=xml('/ours/a'), defined=xml('/ours/a'))
        definitions = self.moved(('ours', 'a', 'x'))
        self.assertNotIn('secret', log.output + repr(definitions) + str(definitions))
