"""Domain XML, captured and made up."""

from __future__ import annotations

import pickle
import time
import uuid
from xml.sax import saxutils

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import testtools

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import data
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import document as documents
from devicetrack.virt.libvirt import domain_xml

UUID = 'c7a5fdbd-edaf-9455-926a-d65c16db1809'
MDEV = '83b8f4f2-509f-382f-3c1e-e6bfe0fa1001'


def domain(devices: str = '', rest: str = '', attributes: str = "type='kvm'") -> str:
    return f'<domain {attributes}><uuid>{UUID}</uuid>{rest}<devices>{devices}</devices></domain>'


def nvdimm(path: str, model: str = 'nvdimm') -> str:
    return f"<memory model='{model}'><source><path>{saxutils.escape(path)}</path></source></memory>"


def mdev(address: str) -> str:
    return ("<hostdev mode='subsystem' type='mdev'>"
            f'<source><address uuid={saxutils.quoteattr(address)}/></source></hostdev>')


def pci(address: str = "domain='0x0000' bus='0x3d' slot='0x00' function='0x4'") -> str:
    return f"<hostdev mode='subsystem' type='pci' managed='no'><source><address {address}/></source></hostdev>"


class CapturedTestCase(base.TestCase):
    scenarios = base.table(
        *((f'libvirt {version}, {kind}', f'libvirt-{version}-domain-{kind}-nvdimm-mdev.xml')
          for version in data.LIBVIRTS for kind in ('live', 'inactive')),
        names=('document',))

    def test_a_guest_with_both_kinds(self) -> None:
        self.assertEqual(domain_xml.Domain(UUID, ('/dev/dax0.0',), (MDEV,)),
                         domain_xml.parse(data.read(self.document))._replace(other_paths=()))


class BigGuestTestCase(base.TestCase):

    def test_guests_of_a_compute_service(self) -> None:
        small = domain_xml.parse(data.read('libvirt-domain-live-15k.xml'))
        rich = domain_xml.parse(data.read('libvirt-domain-live-25k.xml'))
        for found, text in ((small, data.read('libvirt-domain-live-15k.xml')),
                            (rich, data.read('libvirt-domain-live-25k.xml'))):
            self.assertEqual(text.count("type='mdev'"), len(found.mdev_uuids))
            self.assertEqual(text.count("type='pci' managed"), len(found.pci_addresses))
            self.assertEqual(text.count("model='nvdimm'") + text.count("model='virtio-pmem'"),
                             len(found.memory_paths))
            self.assertIsNone(found.record)


class MadeUpTestCase(base.TestCase):
    scenarios = base.table(
        ('nothing', domain(), (), ()),
        ('no devices at all', f'<domain><uuid>{UUID}</uuid></domain>', (), ()),
        ('virtio-pmem', domain(nvdimm('/dev/dax1.2', 'virtio-pmem')), ('/dev/dax1.2',), ()),
        ('memory of the host', domain("<memory model='dimm'><source><nodemask>0</nodemask></source></memory>"
                                      "<memory model='virtio-mem'/>"), (), ()),
        ('the order of the definition', domain(nvdimm('/b') + mdev(MDEV) + nvdimm('/a')), ('/b', '/a'), (MDEV,)),
        ('a path with everything', domain(nvdimm('/a b&<>"\'é/ü')), ('/a b&<>"\'é/ü',), ()),
        ('an attribute in references', domain("<memory model='&#110;vdimm'><source><path>/p</path></source></memory>"),
         ('/p',), ()),
        ('a UUID in capitals', domain(mdev(MDEV.upper())), (), (MDEV,)),
        ('other host devices', domain("<hostdev type='usb'><source><vendor id='0x1'/></source></hostdev>"), (), ()),
        ('a definition inside another', domain(rest=f'<metadata><x:copy xmlns:x="x">{domain(mdev(MDEV))}</x:copy>'
                                                    '</metadata>'), (), ()),
        ('comments and instructions', domain('<!-- <memory model="nvdimm"/> --><?x y?>' + mdev(MDEV)), (), (MDEV,)),
        ('an XML declaration', "<?xml version='1.0' encoding='latin-1'?>" + domain(nvdimm('/ü')), ('/ü',), ()),
        names=('text', 'paths', 'mdevs'))

    def test_it_names(self) -> None:
        found = domain_xml.parse(self.text)
        self.assertEqual((UUID, self.paths, self.mdevs),
                         (found.uuid, found.memory_paths, found.mdev_uuids))


class PCITestCase(base.TestCase):
    scenarios = base.table(
        ('as libvirt writes it', pci(), '0000:3d:00.4'),
        ('a large domain', pci("domain='0x10000' bus='0x01' slot='0x1f' function='0x7'"), '10000:01:1f.7'),
        ('numbers in other forms', pci("domain='0' bus='61' slot='0X0A' function='0x04'"), '0000:3d:0a.4'),
        ('what is not said', pci("bus='1'"), '0000:01:00.0'),
        names=('device', 'address'))

    def test_one_form_of_an_address(self) -> None:
        found = domain_xml.parse(domain(mdev(MDEV) + self.device))
        self.assertEqual(((self.address,), (MDEV,)), (found.pci_addresses, found.mdev_uuids))


STORAGE = "type='nvme'><source type='pci' namespace='1'><address bus='0x3d' slot='0' function='4'/></source>"


class NVMeDiskTestCase(base.TestCase):
    scenarios = base.table(
        ('a disk', f'<disk {STORAGE}</disk>'),
        *((name, f"<disk type='file'><source file='/a'/><{name} {STORAGE}</{name}></disk>")
          for name in ('backingStore', 'mirror')),
        ('the backing file of another', f"<disk type='file'><backingStore type='file'><backingStore {STORAGE}"
                                        '</backingStore></backingStore></disk>'),
        ('a file with the data', "<disk type='file'><source file='/a'><dataStore " + STORAGE
         + '</dataStore></source></disk>'),
        names=('disk',))

    def test_its_function_is_found(self) -> None:
        self.assertEqual(('0000:3d:00.4',), domain_xml.parse(domain(self.disk)).other_pci_addresses)


class OutsideTestCase(base.TestCase):
    """Elements beside the devices may name a device too: what a guest boots from, for example."""

    scenarios = base.table(
        ('firmware', "<os><loader readonly='no' type='pflash'>/srv/a</loader></os>", ('/srv/a',)),
        ('variables of the firmware', '<os><nvram>/srv/a</nvram></os>', ('/srv/a',)),
        ('variables on a disk', "<os><nvram type='block'><source dev='/dev/nvme0n1'/></nvram></os>",
         ('/dev/nvme0n1',)),
        ('variables in a file', "<os><nvram type='file' template='/srv/b'><source file='/srv/a'/></nvram></os>",
         ('/srv/b', '/srv/a')),
        ('a kernel', '<os><kernel>/dev/nvme0n1p1</kernel><initrd>/srv/a</initrd><cmdline>root=/dev/vda</cmdline></os>',
         ('/dev/nvme0n1p1', '/srv/a')),
        ('tables for ACPI', "<os><acpi><table type='slic'> /srv/a </table></acpi></os>", ('/srv/a',)),
        ('a file for the guest', "<sysinfo type='fwcfg'><entry name='opt/a' file='/srv/a'/></sysinfo>", ('/srv/a',)),
        ('a boot loader', '<bootloader>/srv/a</bootloader>', ('/srv/a',)),
        names=('element', 'paths'))

    def test_its_paths_are_found(self) -> None:
        found = domain_xml.parse(domain(nvdimm('/p'), self.element))
        self.assertEqual((('/p',), self.paths, self.paths), (found.memory_paths, found.other_paths, found.files))
        # It may come after the devices too.
        text = domain(nvdimm('/p')).replace('</domain>', f'{self.element}</domain>')
        self.assertEqual(found, domain_xml.parse(text))


class NoDeviceTestCase(base.TestCase):

    def test_words_for_people_name_no_device(self) -> None:
        for words in ('<name>/a</name>', '<title>/a</title>', '<description>/a</description>',
                      '<metadata><x:y xmlns:x="x" file="/a">/a</x:y></metadata>'):
            found = domain_xml.parse(domain(rest=words))
            self.assertEqual(((), ()), (found.other_paths, found.files), words)

    def test_the_files_that_libvirt_makes_for_itself_are_not_looked_at(self) -> None:
        made, named = '/var/lib/libvirt/qemu/nvram/a_VARS.fd', '/var/lib/libvirt/qemu/nvram/../../../../../dev/nvme0n1'
        found = domain_xml.parse(domain(rest=f'<os><nvram>{made}</nvram><kernel>{named}</kernel></os>'))
        self.assertEqual(((made, named), (named,)), (found.other_paths, found.files))

    def test_nor_is_the_control_group_of_a_guest(self) -> None:
        for group in ('/machine', '/machine/production'):
            found = domain_xml.parse(domain(rest=f'<resource><partition>{group}</partition></resource>'))
            self.assertEqual((), found.files)


BOMB = ('<!DOCTYPE domain [<!ENTITY a "aaaaaaaaaa">'
        + ''.join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9)) + ']>')


class BadDocumentTestCase(base.TestCase):
    scenarios = base.table(
        ('nothing', '', 'line 1'),
        ('no XML', 'libvirt: error', 'line 1'),
        ('truncated', domain(nvdimm('/dev/secret'))[:-20], 'line 1'),
        ('malformed', '<domain>\n<devices></domain>', 'line 2'),
        ('another root', f'<device><uuid>{UUID}</uuid></device>', 'root element'),
        ('two roots', domain() + domain(), 'line 1'),
        ('a bomb of entities', BOMB + domain(nvdimm('&j;').replace('&amp;', '&')), 'document type'),
        ('an external entity', '<!DOCTYPE domain [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
         + domain('<memory model="nvdimm"><source><path>&x;</path></source></memory>'), 'document type'),
        ('a document type from elsewhere', '<!DOCTYPE domain SYSTEM "http://127.0.0.1:1/x.dtd">' + domain(),
         'document type'),
        ('an entity that nobody declared', domain('<memory model="nvdimm"><source><path>&x;</path></source></memory>'),
         'line 1'),
        ('deeper than anybody needs', '<domain>' + '<a>' * 5000 + '</a>' * 5000 + '</domain>', 'line 1'),
        ('half a surrogate pair', domain(nvdimm('/\ud800')), 'character'),
        ('a zero byte', domain('\0'), 'line 1'),
        ('no UUID', '<domain/>', 'uuid'),
        ('a UUID that is none', domain().replace(UUID, 'secret'), 'uuid'),
        ('an NVDIMM without a path', domain("<memory model='nvdimm'><source/></memory>"), 'source/path'),
        ('an NVDIMM with an empty path', domain(nvdimm(' ')), 'source/path'),
        ('an mdev without a source', domain("<hostdev type='mdev'/>"), 'hostdev/source/address/@uuid'),
        ('an mdev that is no UUID', domain(mdev('secret')), 'hostdev/source/address/@uuid'),
        ('a PCI device without a source', domain("<hostdev type='pci'/>"), 'hostdev/source/address'),
        ('a PCI device with words in its address', domain(pci("bus='secret'")), 'hostdev/source/address/@bus'),
        ('a slot that is none', domain(pci("slot='0x20'")), 'hostdev/source/address/@slot'),
        ('a function below zero', domain(pci("function='-1'")), 'hostdev/source/address/@function'),
        names=('text', 'where'))

    def test_it_is_refused_and_not_quoted(self) -> None:
        error = self.assertRaises(exception.InvalidDocument, domain_xml.parse, self.text, f'domain {UUID}')
        self.assertEqual(f'domain {UUID}', error.document)
        self.assertIn(self.where, error.where)
        self.assertNotIn('secret', str(error))
        self.assertIsNone(error.__cause__)
        self.assertEqual(str(error), str(pickle.loads(pickle.dumps(error))))


class HugeDocumentTestCase(base.TestCase):

    def test_a_hundred_megabytes_are_refused_unread(self) -> None:
        text = '<domain>' + ' ' * 100_000_000 + '</domain>'
        started = time.thread_time()
        error = self.assertRaises(exception.InvalidDocument, domain_xml.parse, text)
        self.assertEqual('length', error.where)
        self.assertLess(time.thread_time() - started, 0.1)

    def test_the_longest_message_of_libvirt_is_read(self) -> None:
        # The parser takes ten million characters of one text, and more in a whole document.
        some = '<description>' + 'x' * (4 << 20) + '</description>'
        frame = domain(rest=some * 7 + '<title></title>')
        text = frame.replace('<title>', '<title>' + 'x' * (documents.MAX_LENGTH - len(frame)))
        self.assertEqual(documents.MAX_LENGTH, len(text))
        self.assertEqual(UUID, domain_xml.parse(text).uuid)


class RecordTestCase(base.TestCase):
    """Our element among the metadata: written, read, and damaged."""

    def element(self, **facts: object) -> str:
        text = details.to_text(details.VPMEMDetails(
            namespace_uuid=MDEV, label='4GB', devpath='/dev/dax0.0', size_bytes=1, align_bytes=1))
        one = contract.assignment(UUID, 'vpmem', 'ns <&"\'> 0', 'region0', text, 3)
        for name, value in facts.items():
            setattr(one, name, value)
        self.text = text
        return metadata.element([one], 'g1.small')

    def test_it_says_all_that_a_row_says(self) -> None:
        migration = str(uuid.uuid4())
        text = self.element(migration_uuid=migration, role='incoming', numa_node=1)
        found = domain_xml.parse(domain(rest=f'<metadata>{text}</metadata>'))
        self.assertEqual(values.GuestRecord(UUID, contract.HOST, 'g1.small', (values.RecordedDevice(
            kind='vpmem', identifier='ns <&"\'> 0', resource_class='CLASS', provider_uuid=contract.PROVIDER,
            parent='region0', numa_node=1, position=3, claim_id='claim', role='incoming', migration_uuid=migration,
            details=self.text),)), found.record)
        self.assertIsNone(found.record_problem)

    def test_what_is_absent_is_none(self) -> None:
        found = domain_xml.parse(domain(rest=f'<metadata>{self.element(parent=None)}</metadata>'))
        assert found.record is not None
        device, = found.record.devices
        self.assertEqual((None, None, None), (device.parent, device.numa_node, device.migration_uuid))

    def test_a_damaged_record_leaves_the_devices_readable(self) -> None:
        for name, where in (('position="3"', 'position'), (f'provider="{contract.PROVIDER}"', 'provider'),
                            (f'instance="{UUID}"', 'instance'), ('kind="vpmem"', 'kind')):
            text = self.element().replace(name, '')
            found = domain_xml.parse(domain(nvdimm('/p'), f'<metadata>{text}</metadata>'))
            self.assertEqual((('/p',), None), (found.memory_paths, found.record))
            self.assertIn(where, str(found.record_problem))

    def test_only_an_attribute_of_the_first_tag_is_the_boot(self) -> None:
        one = contract.assignment(UUID, 'vpmem', 'ns boot="device"', 'region0', details.to_text(details.VPMEMDetails(
            namespace_uuid=MDEV, label=' boot="details"', devpath='/dev/dax0.0', size_bytes=1, align_bytes=1)))
        for flavor in ('g1', 'g1 boot="flavor"', "g1 boot='flavor'", '"\' boot="flavor"', '> boot="flavor"', None):
            for boot_id in ('of this boot', '', None):
                text = metadata.element([one], flavor, boot_id=boot_id)
                found = domain_xml.parse(domain(rest=f'<metadata>{text}</metadata>'))
                assert found.record is not None
                self.assertEqual((boot_id, boot_id, flavor), (found.boot_id, found.record.boot_id, found.record.flavor))
        self.assertIsNone(domain_xml.parse(domain()).boot_id)

    def test_an_element_of_somebody_else_is_not_ours(self) -> None:
        text = self.element().replace(metadata.NAMESPACE, 'urn:other')
        self.assertIsNone(domain_xml.parse(domain(rest=f'<metadata>{text}</metadata>')).record)


# What XML can carry (XML 1.0, section 2.2), without what its readers normalise.
_TEXT = st.text(st.characters(exclude_categories=('Cs', 'Cc'), exclude_characters='\ufffe\uffff'), min_size=1,
                max_size=40).map(str.strip).filter(bool)


class PropertiesTestCase(testtools.TestCase):

    @given(st.lists(st.one_of(_TEXT.map(lambda path: ('path', path)),
                              st.uuids().map(lambda value: ('mdev', str(value))),
                              st.integers(0, 0xff).map(lambda value: ('pci', f'{value:02x}')))))
    def test_whatever_is_named_is_found_in_its_order(self, named: list[tuple[str, str]]) -> None:
        text = domain(''.join(nvdimm(value) if kind == 'path' else mdev(value) if kind == 'mdev'
                              else pci(f"bus='0x{value}'") for kind, value in named))
        found = domain_xml.parse(text)
        self.assertEqual([f'0000:{value}:00.0' for kind, value in named if kind == 'pci'], list(found.pci_addresses))
        self.assertEqual([value for kind, value in named if kind == 'path'], list(found.memory_paths))
        self.assertEqual([value for kind, value in named if kind == 'mdev'], list(found.mdev_uuids))

    @settings(max_examples=300)
    @given(st.integers(0, 3000), st.integers(0, 3000), st.text(max_size=3))
    def test_a_damaged_document_is_read_or_refused(self, start: int, length: int, put: str) -> None:
        text = data.read('libvirt-9.0.0-domain-live-nvdimm-mdev.xml')
        try:
            domain_xml.parse(text[:start] + put + text[start + length:])
        except exception.InvalidDocument:
            pass

    @given(_TEXT, _TEXT, _TEXT)
    def test_a_record_survives_any_text(self, identifier: str, parent: str, claim: str) -> None:
        one = contract.assignment(UUID, 'vpmem', identifier, parent, details.to_text(
            details.VPMEMDetails(namespace_uuid=MDEV, label=claim, devpath=parent, size_bytes=1,
                                          align_bytes=1)))
        found = domain_xml.parse(domain(rest=f'<metadata>{metadata.element([one])}</metadata>'))
        assert found.record is not None, found.record_problem
        device, = found.record.devices
        self.assertEqual((identifier, parent), (device.identifier, device.parent))
        self.assertEqual(claim, details.from_text(device.details).label)


class ArgumentsTestCase(base.TestCase):
    """What QEMU reads in its arguments as an address of a PCI device, however it is written."""

    def test_numbers_need_no_zeroes_in_front(self):
        told = ('vfio-pci,host=0000:3d:00.4', 'vfio-pci,host=3d:0.4', 'vfio-pci,host=0:3d:0.4',
                'vfio-pci,host=3D:00.4,x', '{"host":"3d:0.4"}')
        for text in told:
            domain = domain_xml.Domain(UUID, (), (), arguments=(text,))
            self.assertEqual(['0000:3d:00.4'], list(domain_xml.argument_pci_addresses(domain)), text)

    def test_other_numbers_are_none(self):
        for text in ('10.0.0.1:80', 'rev=1.2', '-drive', 'a3d:0.4b', '12:34:56:78:9a:bc'):
            domain = domain_xml.Domain(UUID, (), (), arguments=(text,))
            self.assertEqual([], list(domain_xml.argument_pci_addresses(domain)), text)
