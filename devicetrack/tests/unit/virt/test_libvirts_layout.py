"""Definitions in the layout of libvirtd, with everything that may stand in them, against an independent reader."""

from __future__ import annotations

import contextlib
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
from devicetrack.tests import corpus
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import data
from devicetrack.virt import metadata
from devicetrack.virt.libvirt import domain_xml

UUID = 'c7a5fdbd-edaf-9455-926a-d65c16db1809'
MDEV = '83b8f4f2-509f-382f-3c1e-e6bfe0fa1001'
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


class CapturedTestCase(base.TestCase):
    scenarios = base.table(*((name, name) for name in DEFINITIONS), names=('document',))

    def test_every_name_is_found(self) -> None:
        text = data.read(self.document)
        reader = corpus.independent(text)
        assert reader is not None
        self.assertEqual([], reader.names.missing_in(corpus.of_library(text)))

    def test_with_our_record_too(self) -> None:
        text = data.read(self.document)
        inside = f'  <metadata>\n{NOVA}{record()}  </metadata>\n'
        text = (re.sub(r'  <metadata>\n.*?  </metadata>\n', inside, text, flags=re.DOTALL) if '<metadata>' in text
                else text.replace('</uuid>\n', f'</uuid>\n{inside}', 1))
        found = domain_xml.parse(text)
        assert found.record is not None
        self.assertEqual('boot', found.boot_id)


class UnderstoodTestCase(base.TestCase):
    """Something in these documents looks like something else."""

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

    def test_it_names(self) -> None:
        found = domain_xml.parse(self.text)
        self.assertEqual((self.paths, self.mdevs, self.pcis),
                         (found.memory_paths, found.mdev_uuids, found.pci_addresses))


class FilesTestCase(base.TestCase):

    text = domain(MIRROR + BLOCK + TERMINAL + SOCKET)

    def test_they_are_those_that_elements_open(self) -> None:
        self.assertEqual({'/srv/a b>é', '/srv/base', '/srv/copy', '/dev/vg/lv', '/dev/ttyS0', '/srv/log'},
                         set(domain_xml.parse(self.text).files))

    def test_those_of_the_firmware_and_a_kernel(self) -> None:
        found = domain_xml.parse(domain(FILE, before=VARIABLES + IN_A_FILE + KERNEL))
        self.assertEqual({'/srv/a b>é', '/usr/share/OVMF/OVMF_CODE_4M.ms.fd', '/usr/share/OVMF/OVMF_VARS_4M.ms.fd',
                          '/srv/a_VARS.fd', '/srv/b', '/srv/kernel', '/srv/a b'}, set(found.files))

    def test_libvirts_own_are_left_out(self) -> None:
        self.assertEqual({'/usr/share/OVMF/OVMF_CODE_4M.ms.fd', '/usr/share/OVMF/OVMF_VARS_4M.ms.fd'},
                         set(domain_xml.parse(domain(before=UEFI)).files))

    def test_those_of_a_container(self) -> None:
        device = ("<hostdev mode='capabilities' type='storage'><source><block>/srv/disk</block></source></hostdev>"
                  "<hostdev mode='capabilities' type='misc'><source><char>/srv/terminal</char></source></hostdev>")
        self.assertEqual(('/srv/disk', '/srv/terminal'), domain_xml.parse(domain(device)).files)


class SpeedTestCase(base.TestCase):

    def test_no_document_takes_long(self) -> None:
        for part in ("\n    <memory model='nvdimm'", "<domain type='kvm'" + " xmlns:a='x'", ' a=', "    <hostdev a='b'",
                     '<path>', 'xmlns:a="', 'xmlns', '\n  <metadata>\n', '<', "'", "file='",
                     "file='/'", "<source path='/"):
            for text in (part * (2_000_000 // len(part)), domain(part * (2_000_000 // len(part)))):
                started = time.thread_time()
                with contextlib.suppress(exception.InvalidDocument):
                    domain_xml.parse(text)
                self.assertLess(time.thread_time() - started, 10.0)


_ELEMENTS = st.recursive(
    st.sampled_from((DISK, DIMM, PCI, DRIVEN, USB, BLOCK, FILE, MIRROR, SOCKET, TERMINAL, INTERFACE, nvdimm(), mdev(),
                     '<!-- <hostdev/> -->', '<![CDATA[</devices>]]>',
                     UEFI, VARIABLES, IN_A_FILE, ON_A_DISK, KERNEL, UEFI.replace('/var/lib', '/dev/dax1.0'),
                     '<kernel>/dev/dax2.0</kernel>', '<kernel>\n/srv/a</kernel>', '<kernel file="/srv/b"/>',
                     '<?x <memory ?>', 'a/>b', '&amp;', '<thing/>', record(), '<metadata/>',
                     )),
    lambda inner: st.tuples(st.sampled_from(('thing', 'metadata', 'os')),
                            st.lists(inner, max_size=3).map(''.join)).map(
        lambda made: f'    <{made[0]}>\n{made[1]}    </{made[0]}>\n'), max_leaves=6)
_WELL_FORMED = st.lists(_ELEMENTS, max_size=4).map(''.join)


class PropertiesTestCase(testtools.TestCase):

    @settings(max_examples=400)
    @given(_WELL_FORMED, _WELL_FORMED, _WELL_FORMED, _WELL_FORMED)
    def test_no_name_is_missed(self, devices: str, inside: str, before: str, after: str) -> None:
        text = domain(devices, inside, before, after)
        reader = corpus.independent(text)
        assert reader is not None
        self.assertEqual([], reader.names.missing_in(corpus.of_library(text)))

    @given(st.lists(st.text(st.characters(codec='utf-8', exclude_categories=['Cc', 'Cs']), min_size=1).map(str.strip)
                    .filter(bool)))
    def test_any_text_in_a_path(self, paths: list[str]) -> None:
        found = domain_xml.parse(domain(''.join(nvdimm(saxutils.escape(path)) for path in paths)))
        self.assertEqual(tuple(paths), found.memory_paths)
