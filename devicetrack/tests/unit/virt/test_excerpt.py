"""What the excerpt says is what a parser says, whatever else is in the document; else it says nothing."""

from __future__ import annotations

import re
import time
from xml.sax import saxutils

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import testtools

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import data
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import excerpt

UUID = 'c7a5fdbd-edaf-9455-926a-d65c16db1809'
MDEV = '83b8f4f2-509f-382f-3c1e-e6bfe0fa1001'
HINT = '/dev/dax'
DEFINITIONS = (*(f'libvirt-{version}-domain-{kind}-nvdimm-mdev.xml'
                 for version in data.LIBVIRTS for kind in ('live', 'inactive')),
               'libvirt-domain-live-15k.xml', 'libvirt-domain-live-25k.xml')

NOVA = ('    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">\n'
        '      <nova:name>a &amp; b</nova:name>\n    </nova:instance>\n')
DISK = "    <disk type='file' device='disk'>\n      <target dev='vda' bus='virtio'/>\n    </disk>\n"
BACKED = ("    <disk type='file' device='disk'>\n      <source file='/a'/>\n      <backingStore type='nvme'>\n"
          "        <source type='pci' namespace='1'>\n"
          "          <address domain='0x0000' bus='0x3d' slot='0x00' function='0x4'/>\n        </source>\n"
          '      </backingStore>\n    </disk>\n')
DIMM = ("    <memory model='virtio-mem'>\n      <target>\n        <size unit='KiB'>1</size>\n      </target>\n"
        '    </memory>\n')
PCI = ("    <hostdev mode='subsystem' type='pci' managed='yes'>\n      <source>\n"
       "        <address domain='0x0000' bus='0x81' slot='0x00' function='0x0'/>\n      </source>\n    </hostdev>\n")
DRIVEN = PCI.replace('      <source>\n', "      <driver name='vfio'/>\n      <source>\n").replace('0x81', '0x82')
FILE = "    <disk type='file' device='disk'>\n      <source file='/srv/a b>é' index='2'/>\n    </disk>\n"
MIRROR = FILE.replace('    </disk>', "      <backingStore type='file'>\n        <source file='/srv/base'/>\n"
                      "      </backingStore>\n      <mirror type='file' file='/srv/copy' job='copy'/>\n    </disk>")
TERMINAL = "    <serial type='dev'>\n      <source path='/dev/ttyS0'/>\n      <log file='/srv/log'/>\n    </serial>\n"
SOCKET = ("    <channel type='unix'>\n      <source mode='bind' path='/var/lib/libvirt/a'/>\n    </channel>\n"
          "    <interface type='vhostuser'>\n      <source type='unix' path='/run/a' mode='server'/>\n"
          '    </interface>\n')
BLOCK = "    <disk type='block' device='disk'>\n      <source dev='/dev/vg/lv' index='1'/>\n    </disk>\n"
UEFI = ("  <os firmware='efi'>\n    <type arch='x86_64' machine='pc-q35-9.0'>hvm</type>\n    <firmware>\n"
        "      <feature enabled='yes' name='secure-boot'/>\n    </firmware>\n"
        "    <loader readonly='yes' secure='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.ms.fd</loader>\n"
        "    <nvram template='/usr/share/OVMF/OVMF_VARS_4M.ms.fd'>/var/lib/libvirt/qemu/nvram/a_VARS.fd</nvram>\n"
        "    <boot dev='hd'/>\n  </os>\n")
VARIABLES = UEFI.replace('/var/lib/libvirt/qemu/nvram/', '/srv/')
IN_A_FILE = ("  <os>\n    <nvram type='file' format='raw'>\n      <source file='/srv/b'/>\n    </nvram>\n  </os>\n")
ON_A_DISK = IN_A_FILE.replace("'file'", "'block'").replace("file='/srv/b'", "dev='/srv/b'")
KERNEL = '  <os>\n    <kernel>/srv/kernel</kernel>\n    <initrd>/srv/a b</initrd>\n  </os>\n'
INTERFACE = ("    <interface type='hostdev' managed='yes'>\n      <source>\n"
             "        <address type='pci' domain='0x0000' bus='0x83' slot='0x00' function='0x0'/>\n      </source>\n"
             '    </interface>\n')
USB = ("    <hostdev mode='subsystem' type='usb' managed='yes'>\n      <source>\n        <vendor id='0x1'/>\n"
       '      </source>\n    </hostdev>\n')


def nvdimm(path: str = '/dev/dax0.0', model: str = 'nvdimm', more: str = '') -> str:
    return (f"    <memory model='{model}' access='shared'>\n      <source>\n        <path>{path}</path>\n"
            f"        <alignsize unit='KiB'>2048</alignsize>\n      </source>\n{more}    </memory>\n")


def mdev(uuid: str = MDEV, more: str = '') -> str:
    return (f"    <hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci'>\n      <source>\n"
            f"        <address uuid='{uuid}'/>\n      </source>\n{more}    </hostdev>\n")


def record() -> str:
    """Our element, with the indentation that libvirt gives it."""
    text = details.to_text(details.VPMEMDetails(namespace_uuid=MDEV, label='4GB', devpath='/dev/dax0.0', size_bytes=1,
                                                align_bytes=1))
    one = contract.assignment(UUID, 'vpmem', 'ns', 'region0', text)
    return ''.join(f'    {line}\n' for line in metadata.element([one], 'g1', boot_id='boot').splitlines())


def domain(devices: str = '', inside: str = NOVA, before: str = '', after: str = '', id: str = '') -> str:
    own = f'  <metadata>\n{inside}  </metadata>\n' if inside else ''
    return (f"<domain type='kvm'{id}>\n  <name>a</name>\n  <uuid>{UUID}</uuid>\n{own}{before}"
            f"  <memory unit='KiB'>65536</memory>\n  <devices>\n{devices}  </devices>\n{after}</domain>\n")


def read(text: str) -> domain_xml.Domain | None:
    found = excerpt.read(text, domain_xml.PATH_BACKED_MEMORY, (HINT,), True)
    return None if found is None else domain_xml.Domain(*found)


def facts(found: domain_xml.Domain) -> object:
    """Everything that a definition says: one element can be written in several ways.

    Of other paths, those that may be tracked devices: the excerpt leaves out most of the rest.
    """
    hinted = tuple(path for path in found.other_paths if HINT in path)
    return (*found._replace(record_text='', other_paths=hinted, files=tuple(sorted(found.files))), found.boot_id,
            found.record, found.record_problem)


class CapturedTestCase(base.TestCase):
    scenarios = base.table(*((name, name) for name in DEFINITIONS), names=('document',))

    def test_no_definition_of_a_libvirt_needs_the_parser(self) -> None:
        text = data.read(self.document)
        found = read(text)
        assert found is not None
        self.assertEqual(facts(domain_xml.parse_all(text)), facts(found))

    def test_with_our_record_too(self) -> None:
        text = data.read(self.document)
        inside = f'  <metadata>\n{NOVA}{record()}  </metadata>\n'
        text = (re.sub(r'  <metadata>\n.*?  </metadata>\n', inside, text, flags=re.DOTALL) if '<metadata>' in text
                else text.replace('</uuid>\n', f'</uuid>\n{inside}', 1))
        found = read(text)
        assert found is not None and found.record is not None
        self.assertEqual('boot', found.boot_id)
        self.assertEqual(facts(domain_xml.parse_all(text)), facts(found))


class UnderstoodTestCase(base.TestCase):
    """Documents that need no parser, though something in them looks like something else."""

    scenarios = base.table(
        ('nothing', domain(), (), (), ()),
        ('no metadata', domain(mdev(), inside=''), (), (MDEV,), ()),
        ('a running guest', domain(nvdimm() + mdev(), id=" id='12'"), ('/dev/dax0.0',), (MDEV,), ()),
        ('devices of other sorts', domain(DISK + USB + DIMM + nvdimm('/a', 'virtio-pmem')), ('/a',), (), ()),
        ('PCI devices', domain(DRIVEN + mdev() + PCI), (), (MDEV,), ('0000:82:00.0', '0000:81:00.0')),
        ('a PCI device in a large domain', domain(PCI.replace('0x0000', '0x10000')), (), (), ('10000:81:00.0',)),
        ('their order', domain(nvdimm('/b') + mdev() + nvdimm('/a')), ('/b', '/a'), (MDEV,), ()),
        ('a path with everything', domain(nvdimm('/a b>"\'é/ü')), ('/a b>"\'é/ü',), (), ()),
        ('a record', domain(nvdimm(), NOVA + record()), ('/dev/dax0.0',), (), ()),
        ('a record before others', domain(nvdimm(), record() + NOVA), ('/dev/dax0.0',), (), ()),
        ('devices in the metadata of others', domain(
            mdev(), '    <x:y xmlns:x="x">\n      <devices>\n      </devices>\n    </x:y>\n'), (), (MDEV,), ()),
        ('disks', domain(FILE + MIRROR + BLOCK + DISK), (), (), ()),
        ('sockets and terminals', domain(SOCKET + TERMINAL), (), (), ()),
        ('firmware in files', domain(nvdimm(), before=UEFI), ('/dev/dax0.0',), (), ()),
        ('firmware in files of others', domain(before=VARIABLES + IN_A_FILE), (), (), ()),
        ('firmware behind the devices', domain(mdev(), after=UEFI), (), (MDEV,), ()),
        ('a kernel', domain(before=KERNEL), (), (), ()),
        ('exclamations and questions', domain(nvdimm('/what?!')), ('/what?!',), (), ()),
        ('several of a sort, not side by side', domain(nvdimm('/a') + DISK + nvdimm('/b', more='      <x/>\n') + mdev()
                                                       + nvdimm('/c', 'virtio-pmem')), ('/a', '/b', '/c'), (MDEV,), ()),
        names=('text', 'paths', 'mdevs', 'pcis'))

    def test_it_is_what_a_parser_says(self) -> None:
        found = read(self.text)
        assert found is not None
        self.assertEqual((self.paths, self.mdevs, self.pcis),
                         (found.memory_paths, found.mdev_uuids, found.pci_addresses))
        self.assertEqual(facts(domain_xml.parse_all(self.text)), facts(found))


class FilesTestCase(base.TestCase):

    text = domain(MIRROR + BLOCK + TERMINAL + SOCKET)

    def test_they_are_those_that_elements_open(self) -> None:
        self.assertEqual({'/srv/a b>é', '/srv/base', '/srv/copy', '/dev/vg/lv', '/dev/ttyS0', '/srv/log'},
                         set(domain_xml.parse(self.text, files=True).files))

    def test_those_of_the_firmware_and_a_kernel(self) -> None:
        found = domain_xml.parse(domain(FILE, before=VARIABLES + IN_A_FILE + KERNEL), files=True)
        self.assertEqual({'/srv/a b>é', '/usr/share/OVMF/OVMF_CODE_4M.ms.fd', '/usr/share/OVMF/OVMF_VARS_4M.ms.fd',
                          '/srv/a_VARS.fd', '/srv/b', '/srv/kernel', '/srv/a b'}, set(found.files))

    def test_libvirts_own_are_left_out(self) -> None:
        self.assertEqual({'/usr/share/OVMF/OVMF_CODE_4M.ms.fd', '/usr/share/OVMF/OVMF_VARS_4M.ms.fd'},
                         set(domain_xml.parse(domain(before=UEFI), files=True).files))

    def test_without_a_question_they_are_left_out(self) -> None:
        self.assertEqual(((), ('/dev/vg/lv',)), (domain_xml.parse(self.text).files,
                                                 domain_xml.parse(self.text).other_paths))

    def test_those_of_a_container(self) -> None:
        device = ("<hostdev mode='capabilities' type='storage'><source><block>/srv/disk</block></source></hostdev>"
                  "<hostdev mode='capabilities' type='misc'><source><char>/srv/terminal</char></source></hostdev>")
        self.assertEqual(('/srv/disk', '/srv/terminal'), domain_xml.parse(domain(device), files=True).files)


class DoubtTestCase(base.TestCase):
    """Documents that are left to the parser."""

    scenarios = base.table(
        ('a comment', domain('<!-- ' + mdev() + '-->')),
        ('a comment around the end of the metadata', domain(mdev(), '<!-- \n  </metadata>\n -->')),
        ('CDATA', domain(nvdimm('<![CDATA[/a]]>'))),
        ('an instruction', domain('<?x ' + mdev() + '?>')),
        ('an XML declaration', "<?xml version='1.0' encoding='latin-1'?>" + domain(nvdimm('/ü'))),
        ('a document type', '<!DOCTYPE domain>' + domain(mdev())),
        ('a default namespace', domain(mdev()).replace("type='kvm'", "type='kvm' xmlns='urn:x'")),
        ('a device in another namespace', domain(mdev().replace('<hostdev mode', "<hostdev xmlns='urn:x' mode"))),
        ('a path in another namespace', domain(nvdimm().replace('<path>', "<path xmlns='urn:x'>"))),
        ('a prefix', domain(f"<x:hostdev xmlns:x='x'>\n{mdev()}</x:hostdev>")),
        ('references in a path', domain(nvdimm('/&#97;'))),
        ('references in a model', domain(nvdimm(model='&#110;vdimm'))),
        ('references in a type', domain(mdev().replace("'mdev'", "'&#109;dev'"))),
        ('double quotes', domain(mdev().replace("'", '"'))),
        ('blanks', domain(mdev().replace('<hostdev ', '<hostdev  '))),
        ('one line', domain(mdev()).replace('\n', '')),
        ('a UUID in capitals', domain(mdev(MDEV.upper()))),
        ('a UUID that is none', domain(mdev('secret'))),
        ('a type twice', domain(mdev().replace("type='mdev'", "type='mdev' type='pci'"))),
        ('attributes in another order', domain(mdev().replace("mode='subsystem' type='mdev'",
                                                              "type='mdev' mode='subsystem'"))),
        ('a PCI device with another address', domain(PCI.replace("domain='0x0000' ", ''))),
        ('a domain with zeroes before it', domain(PCI.replace('0x0000', '0x00000'))),
        ('a slot that is none', domain(PCI.replace("slot='0x00'", "slot='0x20'"))),
        ('a source with attributes', domain(PCI.replace('<source>', "<source writeFiltering='no'>"))),
        ('a PCI device that says more first', domain(PCI.replace('      <source>', '      <rom/>\n      <source>'))),
        ('an NVMe function behind a disk', domain(DISK + BACKED)),
        ('a file with references', domain(FILE.replace('/srv', '/&#97;'))),
        ('a file that begins with one', domain(FILE.replace('/srv', '&#47;srv'))),
        ('a file in double quotes', domain(FILE.replace("'", '"'))),
        ('firmware on a tracked device', domain(before=UEFI.replace('/var/lib', '/dev/dax1.0'))),
        ('a kernel on a device', domain(before=KERNEL.replace('/srv', '/dev'))),
        ('variables of the firmware on a block device', domain(before=ON_A_DISK)),
        ('a kernel with references', domain(before=KERNEL.replace('/srv', '&#47;srv'))),
        ('a kernel behind a blank', domain(before=KERNEL.replace('/srv', '\n/srv'))),
        ('variables in double quotes', domain(before=IN_A_FILE.replace("'", '"'))),
        ('metadata in the firmware', domain(inside='', before='  <os>\n  <metadata>\n    <kernel>/dev/dax1.0</kernel>\n'
                                                              '  </metadata>\n  </os>\n')),
        ('an empty path', domain(nvdimm(' '))),
        ('a path that is not there', domain(nvdimm().replace('path>', 'file>'))),
        ('a device without anything', domain("    <hostdev type='mdev'/>\n")),
        ('a device in a device', domain(mdev(more=mdev()))),
        ('a device in an element', domain(f'    <thing>\n{mdev()}    </thing>\n')),
        ('a device behind what looks like a tag', domain(f'    <thing>/>\n{mdev()}    </thing>\n')),
        ('a device behind most of an element', domain(f'    <thing>/>\n{DISK * 9}{mdev()}    </thing>\n')),
        ('a device before most of an element', domain(f'    <thing>/>\n{mdev()}{DISK * 9}    </thing>\n')),
        ('devices in two elements', domain(f'    <thing>\n{mdev()}    </thing>\n{DISK * 9}    <thing>\n{nvdimm()}'
                                           '    </thing>\n')),
        ('a device in a device of another sort', domain(mdev(more=nvdimm()))),
        ('a device whose end tag has a blank', domain(nvdimm() + nvdimm().replace('</memory>', '</memory >'))),
        ('a device outside of the devices', domain(mdev(), after=mdev())),
        ('devices twice', domain(mdev(), after=f'  <devices>\n{nvdimm()}  </devices>\n')),
        ('devices in an element', domain(mdev(), before='  <x>\n', after='  </x>\n')),
        ('metadata in an element', domain(mdev()).replace('  <metadata>', '  <x>\n  <metadata>')
         .replace('  </metadata>\n', '  </metadata>\n  </x>\n')),
        ('metadata twice', domain(mdev(), after=f'  <metadata>\n{NOVA}  </metadata>\n')),
        ('metadata in the metadata', domain(mdev(), f'  <metadata>\n{record()}  </metadata>\n')),
        ('a device in the metadata', domain(mdev(), NOVA + mdev())),
        ('a definition in the metadata', domain(
            mdev(), f'    <x:copy xmlns:x="x">\n{domain(nvdimm())}    </x:copy>\n')),
        ('two records', domain(mdev(), record() + record())),
        ('a record in an element', domain(mdev(), f'    <x:y xmlns:x="x">\n{record()}    </x:y>\n')),
        ('a record with another prefix', domain(mdev(), re.sub('(</?|xmlns:)devicetrack', r'\1dt', record()))),
        ('a record without a prefix', domain(mdev(), re.sub('(</?)devicetrack:|:devicetrack(?==)', r'\1', record()))),
        ('a record whose namespace is declared with blanks', domain(mdev(), record().replace('="urn:', ' = "urn:'))),
        ('a record whose namespace is veiled', domain(mdev(), record().replace('urn:', '&#117;rn:'))),
        ('a record whose namespace is veiled, behind what looks like a declaration', domain(
            mdev(), record().replace(' xmlns:', " a='xmlns=\"' xmlns:").replace('urn:', '&#117;rn:'))),
        ('a record in an element behind most of it', domain(mdev(), f'    <x:y xmlns:x="x">\n{NOVA * 9}{record()}'
                                                            '    </x:y>\n')),
        ('a namespace declared around',
         domain(mdev(), record().replace(f' xmlns:devicetrack="{metadata.NAMESPACE}"', ''))
         .replace("type='kvm'", f"type='kvm' xmlns:devicetrack='{metadata.NAMESPACE}'")),
        ('no devices', domain().replace('  <devices>\n  </devices>\n', '')),
        ('no UUID', domain(mdev()).replace(f'  <uuid>{UUID}</uuid>\n', '')),
        ('a UUID after another element', domain(mdev()).replace('  <uuid>', '  <x/>\n  <uuid>')),
        ('a beginning of a document', domain(nvdimm() + mdev()).removesuffix('</domain>\n')),
        ('an end tag that is damaged', domain(nvdimm() + mdev()).replace('</hostdev>', '</hostdov>')),
        ('a start tag that is damaged', domain(nvdimm() + mdev()).replace('<hostdev ', '<hostdov ')),
        ('a tag that is none any more', domain(nvdimm() + mdev()).replace('<hostdev ', 'hostdev ')),
        names=('text',))

    def test_the_parser_is_asked(self) -> None:
        self.assertIsNone(read(self.text))
        # What the parser says then is the answer, an error too.
        try:
            wanted = facts(domain_xml.parse_all(self.text))
        except exception.InvalidDocument as error:
            self.assertEqual(str(error), str(self.assertRaises(exception.InvalidDocument, domain_xml.parse, self.text)))
        else:
            self.assertEqual(wanted, facts(domain_xml.parse(self.text, files=True)))


class SpeedTestCase(base.TestCase):

    def test_no_document_takes_long(self) -> None:
        for part in ("\n    <memory model='nvdimm'", "<domain type='kvm'" + " xmlns:a='x'", ' a=', "    <hostdev a='b'",
                     '<path>', 'xmlns:a="', 'xmlns', '\n  <metadata>\n', '<', "'", "file='",
                     "file='/'", "<source path='/"):
            for text in (part * (2_000_000 // len(part)), domain(part * (2_000_000 // len(part)))):
                started = time.thread_time()
                read(text)
                self.assertLess(time.thread_time() - started, 10.0)


_PIECES = st.sampled_from((
    DISK, BACKED, DIMM, PCI, DRIVEN, USB, BLOCK, FILE, MIRROR, SOCKET, TERMINAL, INTERFACE, nvdimm(),
    nvdimm('/b', 'virtio-pmem'), mdev(), NOVA, UEFI, VARIABLES, IN_A_FILE, ON_A_DISK, KERNEL,
    UEFI.replace('/var/lib', '/dev/dax1.0'), '  <os>\n', '  </os>\n', '<kernel>', '</kernel>', '/srv/a', "'/srv/b'",
    '/dev/dax2.0', record(), '    <thing>\n',
    '    </thing>\n', '    <thing/>\n', '/>', '>', '<', '&amp;', '&#60;', '<!-- ', ' -->\n', '<![CDATA[', ']]>', '<?x ',
    '?>', '\n', '  ', '  <metadata>\n', '  </metadata>\n', '  <devices>\n', '  </devices>\n', '<devices>',
    '</devices>', '<x:y xmlns:x="x">', '</x:y>', "<hostdev type='mdev'>", '</hostdev>',
    "<memory model='nvdimm'>", '</memory>', '<memory/>', 'text', 'é',
    domain(mdev(), '')))
_HOSTILE = st.lists(_PIECES, max_size=6).map(''.join)
_ELEMENTS = st.recursive(
    st.sampled_from((DISK, DIMM, PCI, DRIVEN, USB, BLOCK, FILE, MIRROR, SOCKET, TERMINAL, INTERFACE, nvdimm(), mdev(),
                     '<!-- <hostdev/> -->', '<![CDATA[</devices>]]>',
                     UEFI, VARIABLES, IN_A_FILE, ON_A_DISK, KERNEL, UEFI.replace('/var/lib', '/dev/dax1.0'),
                     '<kernel>/dev/dax2.0</kernel>', '<kernel>\n/srv/a</kernel>', '<kernel file="/srv/b"/>',
                     '<?x <memory ?>', 'a/>b', '&amp;', '<thing/>', record(), '<metadata/>',
                     '\n  <devices>\n  </devices>\n')),
    lambda inner: st.tuples(st.sampled_from(('thing', 'metadata', 'devices', 'hostdev', 'memory', 'os')),
                            st.lists(inner, max_size=3).map(''.join)).map(
        lambda made: f'    <{made[0]}>\n{made[1]}    </{made[0]}>\n'), max_leaves=6)
_WELL_FORMED = st.lists(_ELEMENTS, max_size=4).map(''.join)


class PropertiesTestCase(testtools.TestCase):

    def check(self, text: str) -> None:
        found = read(text)
        if found is None:
            return
        try:
            wanted = domain_xml.parse_all(text)
        except exception.InvalidDocument:
            # No device hides where the document is damaged: all that stands in it was found.
            self.assertEqual(len(re.findall(r"<memory [^>]*model='(?:nvdimm|virtio-pmem)'", text)),
                             len(found.memory_paths))
            self.assertEqual(len(re.findall(r"<hostdev [^>]*type='mdev'", text)), len(found.mdev_uuids))
            self.assertEqual(len(re.findall(r"<hostdev [^>]*type='pci'", text)), len(found.pci_addresses))
        else:
            # It may find a file in devices that are none of the domain.
            self.assertEqual(set(), set(wanted.files).difference(found.files))
            self.assertEqual(facts(wanted._replace(files=())), facts(found._replace(files=())))

    @settings(max_examples=400)
    @given(_WELL_FORMED, _WELL_FORMED, _WELL_FORMED, _WELL_FORMED)
    def test_whatever_is_well_formed_is_read_right(self, devices: str, inside: str, before: str, after: str) -> None:
        self.check(domain(devices, inside, before, after))

    @settings(max_examples=400)
    @given(_HOSTILE, _HOSTILE, _HOSTILE, _HOSTILE)
    def test_whatever_stands_there_is_read_right(self, devices: str, inside: str, before: str, after: str) -> None:
        self.check(domain(devices, inside, before, after))

    @settings(max_examples=400)
    @given(st.sampled_from(DEFINITIONS[:3]).map(data.read), st.integers(0, 4000), st.integers(0, 200), _HOSTILE)
    def test_damage_hides_no_device(self, text: str, start: int, length: int, put: str) -> None:
        self.check(text[:start] + put + text[start + length:])

    @given(st.lists(st.one_of(
        st.text(st.characters(exclude_categories=['Cs']), max_size=20).map(
            lambda path: nvdimm(saxutils.escape(path))),
        st.text(st.characters(exclude_categories=['Cs']), max_size=20).map(
            lambda uuid: mdev(saxutils.escape(uuid, {"'": '&apos;'}))),
        st.just(mdev()))).map(''.join))
    def test_any_text_in_a_path_or_address(self, devices: str) -> None:
        self.check(domain(devices))

    @given(st.text(st.characters(exclude_categories=['Cs']), max_size=20),
           st.text(st.characters(exclude_categories=['Cs']), max_size=20))
    def test_any_text_in_a_path_of_the_firmware(self, loader: str, template: str) -> None:
        for path in (loader, f'/{loader}'):
            self.check(domain(before=f"  <os>\n    <loader>{saxutils.escape(path)}</loader>\n    <nvram template='"
                                     f"{saxutils.escape(template, {chr(39): '&apos;'})}'/>\n  </os>\n"))
