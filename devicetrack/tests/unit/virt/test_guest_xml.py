"""Definitions with other devices in them, and definitions of another boot."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
import uuid

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
import testtools

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects.values import DeviceKey
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.objects import samples
from devicetrack.tests.unit.virt import data
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml

UUID = 'c7a5fdbd-edaf-9455-926a-d65c16db1809'
A, B, C = (str(uuid.UUID(int=number)) for number in (10, 11, 12))
NOW, BEFORE = 'this-boot', 'another-boot'
FORMS = {'vpmem': guest_xml.MEMORY, 'mdev': guest_xml.MDEV}
TEXT = details.to_text(details.VPMEMDetails(namespace_uuid=A, label='4GB', devpath='/x', size_bytes=1, align_bytes=1))


def domain(devices: str = '', rest: str = '') -> str:
    return f"<domain type='kvm'><name>n</name><uuid>{UUID}</uuid>{rest}<devices>{devices}</devices></domain>"


def nvdimm(path: str, extra: str = '', model: str = 'nvdimm', size: int = 4096) -> str:
    return (f"<memory model='{model}' access='shared'><source><path>{path}</path>{extra}</source>"
            f"<target><size unit='KiB'>{size}</size><node>0</node></target></memory>")


def mdev(address: str, model: str = 'vfio-pci') -> str:
    return (f"<hostdev mode='subsystem' type='mdev' model='{model}'>"
            f"<source><address uuid='{address}'/></source></hostdev>")


def pci(address: str) -> str:
    bus, slot, function = address.replace('.', ':').split(':')
    return ("<hostdev mode='subsystem' type='pci' managed='no'><source>"
            f"<address domain='0x0000' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source></hostdev>")


def port(address: str, vlan: int = 0, mac: str = '52:54:00:AA:bb:01') -> str:
    bus, slot, function = address.replace('.', ':').split(':')
    tagged = f"<vlan><tag id='{vlan}'/></vlan>" if vlan else ''
    return (f"<interface type='hostdev' managed='no'><mac address='{mac}'/><driver name='vfio'/><source>"
            f"<address type='pci' domain='0x0000' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/></source>"
            f'{tagged}</interface>')


def record(*keys: tuple[str, str], boot: str | None = BEFORE, beside: Sequence[tuple[str, str]] = (),
           instance: str = UUID) -> str:
    def made(pairs: Sequence[tuple[str, str]]) -> list[object]:
        return [contract.assignment(instance, kind, name, None, TEXT, number)
                for number, (kind, name) in enumerate(pairs)]

    return metadata.element(made(keys), 'g1', made(beside), boot)      # type: ignore[arg-type]


def retarget(text: str, memory: Sequence[str] = (), mdevs: Sequence[str] = (), new: str = '',
             pcis: Sequence[str | None] | None = None) -> str:
    partners: dict[guest_xml.Form, Sequence[str | None]] = {guest_xml.MEMORY: memory, guest_xml.MDEV: mdevs}
    if pcis is not None:
        partners[guest_xml.PCI] = pcis
    return guest_xml.retarget(text, 'domain x', partners, new)


def canonical(text: str) -> bytes:
    """The document without what XML does not tell apart, comments included."""
    return etree.tostring(etree.fromstring(text), method='c14n', with_comments=True)


class RetargetCapturedTestCase(base.TestCase):

    scenarios = base.table(
        *((f'libvirt {version}, {kind}', f'libvirt-{version}-domain-{kind}-nvdimm-mdev.xml')
          for version in data.LIBVIRTS for kind in ('live', 'inactive')),
        names=('document',))

    def test_only_what_names_a_device_changes(self) -> None:
        before = data.read(self.document)
        found = domain_xml.parse(before)
        after = retarget(before, [nvdimm('/dev/dax1.2', "<alignsize unit='KiB'>2048</alignsize><pmem/>", size=126976)],
                         [mdev(B)])
        expected = before.replace(found.memory_paths[0], '/dev/dax1.2').replace(found.mdev_uuids[0], B)
        self.assertNotEqual(before, expected)
        self.assertEqual(*(''.join(canonical(text).decode().split()) for text in (expected, after)))

    def test_the_record_is_added(self) -> None:
        after = retarget(data.read(self.document), [nvdimm('/dev/dax1.2', size=1 << 20)], [mdev(B)],
                         record(('vpmem', 'ns1'), boot=NOW))
        found = domain_xml.parse(after)
        assert found.record is not None
        self.assertEqual((NOW, ['ns1']), (found.boot_id, [device.identifier for device in found.record.devices]))


class RetargetTestCase(base.TestCase):

    def test_every_element_gets_its_partner_in_order(self) -> None:
        after = domain_xml.parse(retarget(
            domain(nvdimm('/1') + mdev(A) + '<disk/>' + nvdimm('/2') + mdev(B)),
            [nvdimm('/2'), nvdimm('/1')], [mdev(B), mdev(C)]))
        self.assertEqual((('/2', '/1'), (B, C)), (after.memory_paths, after.mdev_uuids))

    def test_what_is_said_of_the_path_comes_from_the_partner(self) -> None:
        after = retarget(domain(nvdimm('/1', "<alignsize unit='KiB'>4</alignsize><pmem/><nodemask>1</nodemask>")),
                         [nvdimm('/2', "<alignsize unit='KiB'>2048</alignsize>", size=8192)])
        source = etree.fromstring(after).find('devices/memory/source')
        assert source is not None
        self.assertEqual([('path', '/2'), ('alignsize', '2048'), ('nodemask', '1')],
                         [(child.tag, child.text) for child in source])
        self.assertIn('<size unit="KiB">4096</size>', after)        # what the guest has

    def test_other_memory_and_other_devices_stay(self) -> None:
        others = ("<memory model='dimm'><target><size>1</size></target></memory>"
                  "<hostdev mode='subsystem' type='pci'><source><address domain='0'/></source></hostdev>")
        after = retarget(domain(others + mdev(A)), (), [mdev(B)])
        self.assertEqual(canonical(domain(others + mdev(B))), canonical(after))

    def test_of_pci_devices_ours_alone_change(self) -> None:
        before = pci('5e:00.2') + mdev(A) + pci('3d:00.4').replace('<source>', "<driver name='vfio'/><source>")
        after = retarget(domain(before), (), [mdev(B)], pcis=[None, pci('41:01.7')])
        self.assertEqual(canonical(domain(before.replace(A, B).replace(
            "bus='0x3d' slot='0x00' function='0x4'", "bus='0x41' slot='0x01' function='0x7'"))), canonical(after))

    def test_ports_of_networks_are_among_pci_devices_in_the_order_of_the_definition(self) -> None:
        text = domain(port('03:10.0', 41) + pci('3d:00.4') + "<interface type='bridge'/>" + port('03:10.2'))
        self.assertEqual(('0000:03:10.0', '0000:3d:00.4', '0000:03:10.2'), domain_xml.parse(text).pci_addresses)
        made = guest_xml.retarget(text, 'it', {guest_xml.PCI: [port('04:10.0', 41), None, port('04:10.2', 7)]}, '')
        self.assertEqual(domain(port('04:10.0', 41) + pci('3d:00.4') + "<interface type='bridge'/>"
                                + port('04:10.2', 7)), made.replace('"', "'"))
        self.assertEqual(domain(port('04:10.0')), guest_xml.retarget(
            domain(port('03:10.0', 41)), 'it', {guest_xml.PCI: [port('04:10.0')]}, '').replace('"', "'"))

    def test_the_guest_sees_the_address_of_its_port_still(self) -> None:
        text = domain(port('03:10.0'))
        for partner, where in ((port('03:10.0', mac='52:54:00:aa:bb:02'), 'interface/mac'), (pci('03:10.0'), '')):
            error = self.assertRaises(exception.InvalidDocument, guest_xml.retarget, text, 'it',
                                      {guest_xml.PCI: [partner]}, '')
            self.assertIn(where, error.where)
        guest_xml.retarget(text, 'it', {guest_xml.PCI: [port('03:10.0', mac='52:54:00:aa:bb:01')]}, '')

    def test_comments_cdata_and_foreign_names_stay(self) -> None:
        before = ("<!-- head --><domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>"
                  f"<uuid>{UUID}</uuid><metadata><!-- a --><x:y xmlns:x='urn:x'><![CDATA[<hostdev type='mdev'>]]>"
                  f"<?pi x?>{mdev(A)}</x:y> tail </metadata>"
                  f"<devices><!-- <memory model='nvdimm'/> -->{mdev(A)}</devices>"
                  "<qemu:commandline><qemu:arg value='&#10;-x'/></qemu:commandline></domain><!-- foot -->")
        after = retarget(before, (), [mdev(B)])
        self.assertIn("<![CDATA[<hostdev type='mdev'>]]><?pi x?>", after)
        self.assertEqual(canonical(before.replace(f'-->{mdev(A)}', f'-->{mdev(B)}')), canonical(after))

    def test_a_comment_in_a_path_is_no_part_of_it(self) -> None:
        after = retarget(domain(nvdimm('/1<!-- /3 -->')), [nvdimm('/2')])
        self.assertEqual(('/2',), domain_xml.parse(after).memory_paths)


class ReplacedRecordTestCase(base.TestCase):

    def records(self, text: str) -> list[str]:
        root = etree.fromstring(text)
        return [str(found.get('boot')) for found in root.iter(f'{{{metadata.NAMESPACE}}}{metadata.ELEMENT}')]

    def test_ours_is_replaced_where_it_stands(self) -> None:
        foreign = "<x:a xmlns:x='urn:x'/>"
        before = domain(rest=f'<metadata>{foreign}{record(("mdev", A))} tail {foreign}</metadata>')
        new = record(('mdev', B), boot=NOW)
        self.assertEqual(canonical(before.replace(record(('mdev', A)), new)), canonical(retarget(before, new=new)))

    def test_ours_inside_a_foreign_element_is_foreign(self) -> None:
        quoted = f"<x:copy xmlns:x='urn:x'>{record(('mdev', C))}</x:copy>"
        after = retarget(domain(rest=f'<metadata>{quoted}</metadata>'), new=record(('mdev', B), boot=NOW))
        self.assertEqual([BEFORE, NOW], self.records(after))
        self.assertIn('identifier="' + C, after)
        self.assertEqual(NOW, domain_xml.parse(after).boot_id)

    def test_ours_in_a_comment_or_a_cdata_section_is_none(self) -> None:
        ours = record(('mdev', C))
        for quoted in (f'<!--{ours}-->', f"<x:a xmlns:x='urn:x'><![CDATA[{ours}]]></x:a>"):
            after = retarget(domain(rest=f'<metadata>{quoted}</metadata>'), new=record(('mdev', B), boot=NOW))
            self.assertIn(C, after)
            self.assertEqual(NOW, domain_xml.parse(after).boot_id)

    def test_of_several_one_is_left(self) -> None:
        again = record(('mdev', C)) + f"<o:other xmlns:o='{metadata.NAMESPACE}'/>"
        for rest in (f'<metadata>{record(("mdev", A))} x {again}</metadata>',
                     f'<metadata>{record(("mdev", A))}</metadata><metadata>{again}</metadata>'):
            self.assertEqual([NOW], self.records(retarget(domain(rest=rest), new=record(('mdev', B), boot=NOW))))

    def test_nothing_in_its_place_removes_it(self) -> None:
        before = domain(rest=f'<metadata>a{record(("mdev", A))}b</metadata>')
        self.assertEqual(canonical(domain(rest='<metadata>ab</metadata>')), canonical(retarget(before)))

    def test_a_definition_without_metadata_gets_some(self) -> None:
        for text in (domain(), domain(rest='<metadata/>')):
            self.assertEqual([NOW], self.records(retarget(text, new=record(('mdev', B), boot=NOW))))


class RefusedTestCase(base.TestCase):

    scenarios = base.table(
        ('no XML', 'x', [], [], '', 'line 1'),
        ('a document type', '<!DOCTYPE domain>' + domain(), [], [], '', 'document type'),
        ('fewer devices', domain(mdev(A)), [], [mdev(B), mdev(C)], '', 'hostdev'),
        ('more devices', domain(mdev(A) + mdev(B)), [], [mdev(C)], '', 'hostdev'),
        ('a form that was left out', domain(nvdimm('/1')), [], [], '', 'memory'),
        ('no devices at all', f'<domain><uuid>{UUID}</uuid></domain>', [nvdimm('/1')], [], '', 'memory'),
        ('one partner of two', domain(mdev(A) + mdev(B)), [], [mdev(C), mdev(C)], '', 'hostdev'),
        ('another model of memory', domain(nvdimm('/1', model='virtio-pmem')), [nvdimm('/2')], [], '', 'memory/@model'),
        ('another interface', domain(mdev(A)), [], [mdev(B, 'vfio-ccw')], '', 'hostdev/@model'),
        ('less room', domain(nvdimm('/1')), [nvdimm('/2', size=2048)], [], '', 'memory/target/size'),
        ('an mdev without an address', domain("<hostdev type='mdev' model='vfio-pci'/>"), [], [mdev(A)], '', 'hostdev'),
        ('an NVDIMM without a path', domain("<memory model='nvdimm'/>"), [nvdimm('/2')], [], '', 'memory/source'),
        ('a partner that is none', domain(mdev(A)), [], [mdev('secret')], '', 'hostdev'),
        ('a PCI device without an address', domain("<hostdev type='pci'/>"), [], [], '', 'hostdev/source/address'),
        ('a partner of another form', domain(mdev(A)), [], [nvdimm('/2')], '', 'root element'),
        ('a partner with a document type', domain(mdev(A)), [], ['<!DOCTYPE x>' + mdev(B)], '', 'document type'),
        ('a record that is none', domain(), [], [], '<secret/>', 'root element'),
        ('a record that cannot be read', domain(), [], [], record(('mdev', A)).replace('claim', 'secret'), 'metadata'),
        names=('text', 'memory', 'mdevs', 'new', 'where'))

    def test_as_a_whole_and_not_quoted(self) -> None:
        error = self.assertRaises(exception.InvalidDocument, retarget, self.text, self.memory, self.mdevs, self.new)
        self.assertIn(self.where, error.where)
        self.assertIn('domain x', error.document)
        self.assertNotIn('secret', str(error))


class RefusedPCITestCase(base.TestCase):

    scenarios = base.table(
        ('fewer devices', [pci('3d:00.4'), None, None], 'hostdev'),
        ('more devices', [pci('3d:00.4')], 'hostdev'),
        ('the device of another element', [pci('5e:00.2'), None], 'hostdev'),
        ('a partner of another form', [mdev(A), None], 'hostdev'),
        names=('pcis', 'where'))

    def test_as_a_whole(self) -> None:
        error = self.assertRaises(exception.InvalidDocument, retarget, domain(pci('3d:00.5') + pci('5e:00.2')),
                                  pcis=self.pcis)
        self.assertIn(self.where, error.where)


class BarePCITestCase(base.TestCase):

    def test_an_element_without_an_address_is_given_none(self) -> None:
        error = self.assertRaises(exception.InvalidDocument, retarget, domain("<hostdev type='pci'/>"),
                                  pcis=[pci('3d:00.4')])
        self.assertEqual('hostdev/source/address', error.where)


class RecordedTestCase(base.TestCase):

    def recorded(self, devices: str, element: str) -> Mapping[guest_xml.Form, Sequence[DeviceKey | None]]:
        found = domain_xml.parse(domain(devices, f'<metadata>{element}</metadata>'))
        return guest_xml.recorded(found, FORMS, NOW, 'domain x')

    def test_paths_of_another_boot_mean_what_was_recorded(self) -> None:
        element = record(('vpmem', 'b'), ('mdev', A), ('vpmem', 'a'), beside=[('vpmem', 'c')])
        self.assertEqual({guest_xml.MEMORY: (DeviceKey('vpmem', 'b'), DeviceKey('vpmem', 'a'))},
                         self.recorded(nvdimm('/1') + mdev(A) + nvdimm('/2'), element))

    def test_what_is_beside_has_no_element_whatever_its_role(self) -> None:
        old: Any = contract.assignment(UUID, 'vpmem', 'a', None, TEXT)
        old.role = 'old'
        element = metadata.element([old], beside=[contract.assignment(UUID, 'vpmem', 'b', None, TEXT)], boot_id=BEFORE)
        self.assertEqual({guest_xml.MEMORY: (DeviceKey('vpmem', 'a'),)}, self.recorded(nvdimm('/1'), element))

    def test_of_this_boot_or_of_no_boot_addresses_count(self) -> None:
        for element in ('', record(('vpmem', 'a'), boot=NOW), record(('vpmem', 'a'), boot=None)):
            self.assertEqual({}, self.recorded(nvdimm('/1'), element))

    def test_a_uuid_is_valid_in_every_boot(self) -> None:
        for element in (record(('mdev', B)), record(('vpmem', 'a')), record(('mdev', A), ('mdev', B))):
            self.assertEqual({}, self.recorded(mdev(A), element))

    def test_a_record_that_does_not_fit_is_unknown(self) -> None:
        damaged = record(('vpmem', 'a')).replace('claim=', 'secret=')
        for element in (record(('mdev', A)), record(('vpmem', 'a'), ('vpmem', 'b')), record(('other', 'a')), damaged,
                        record(('vpmem', 'a'), instance=A)):
            error = self.assertRaises(exception.InvalidDocument, self.recorded, nvdimm('/1'), element)
            self.assertEqual('metadata', error.where)
            self.assertNotIn('secret', str(error))


class RecordedPCITestCase(base.TestCase):

    def recorded(self, devices: str, element: str) -> Mapping[guest_xml.Form, Sequence[DeviceKey | None]]:
        found = domain_xml.parse(domain(devices, f'<metadata>{element}</metadata>'))
        return guest_xml.recorded(found, {**FORMS, 'pci': guest_xml.PCI, 'vf': guest_xml.PCI}, NOW, 'domain x')

    def record(self, *names: tuple[str, str], boot: str = BEFORE, beside: Sequence[tuple[str, str]] = (),
               instance: str = UUID) -> str:
        """The record of functions, each by its name and by its address when the record was written."""
        def made(pairs: Sequence[tuple[str, str]]) -> list[Any]:
            found = []
            for name, address in pairs:
                known = samples.pci_details()
                known.address = address
                found.append(contract.assignment(instance, 'pci', name, None, details.to_text(known)))
            return found

        return metadata.element(made(names), None, made(beside), boot)

    def test_an_element_means_what_had_its_address_then(self) -> None:
        element = self.record(('0000:01:00.0', '0000:02:00.0'), ('0000:03:00.0', '0000:03:00.0'))
        first, second = DeviceKey('pci', '0000:01:00.0'), DeviceKey('pci', '0000:03:00.0')
        self.assertEqual({guest_xml.PCI: (second, None, first)},
                         self.recorded(pci('03:00.0') + pci('01:00.0') + pci('02:00.0'), element))

    def test_the_address_counts_of_what_the_record_does_not_have(self) -> None:
        one = ('0000:01:00.0', '0000:01:00.0')
        for element in ('', self.record(one, boot=NOW), self.record(one, instance=A), self.record(beside=[one]),
                        self.record(('0000:01:00.0', '0000:02:00.0')), record(('vf', '0000:01:00.0')),
                        self.record(one).replace('claim=', 'secret=')):
            self.assertEqual({}, self.recorded(pci('01:00.0'), element))

    def test_beside_memory(self) -> None:
        of_functions = self.record(('0000:01:00.0', '0000:01:00.0'))
        both = of_functions.replace('</devicetrack:devices>', record(('vpmem', 'a')).partition('>')[2].lstrip())
        self.assertEqual({guest_xml.MEMORY: (DeviceKey('vpmem', 'a'),), guest_xml.PCI: (
            DeviceKey('pci', '0000:01:00.0'),)}, self.recorded(nvdimm('/1') + pci('01:00.0'), both))


_TEXT = st.text(st.characters(exclude_categories=('Cs', 'Cc'), exclude_characters='<>&\ufffe\uffff'), min_size=1,
                max_size=20).map(str.strip).filter(bool)


class PropertiesTestCase(testtools.TestCase):

    @given(st.lists(st.one_of(_TEXT.map(lambda text: ('memory', text)),
                              st.uuids().map(lambda name: ('mdev', str(name)))), unique=True, max_size=8))
    def test_there_and_back_is_the_same_definition(self, named: list[tuple[str, str]]) -> None:
        def elements(sort: str, start: str) -> list[str]:
            return [nvdimm(start + name) if sort == 'memory' else mdev(name if start == '/' else str(uuid.uuid5(
                uuid.NAMESPACE_OID, name))) for kind, name in named if kind == sort]

        before = domain(''.join(nvdimm('/' + name) if sort == 'memory' else mdev(name) for sort, name in named),
                        f'<metadata>{record(("mdev", A))}</metadata>')
        there = retarget(before, elements('memory', '/new/'), elements('mdev', '/new/'), record(('mdev', B)))
        back = retarget(there, elements('memory', '/'), elements('mdev', '/'), record(('mdev', A)))
        self.assertEqual(canonical(before), canonical(back))
