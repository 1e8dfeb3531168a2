"""Every form in which libvirt can name a device of ours is seen: by the kinds that ship with the library."""

from __future__ import annotations

import os

from devicetrack.tests import base
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import vf
from devicetrack.virt.libvirt.kinds import vpmem

UUID = 'c7a5fdbd-edaf-9455-926a-d65c16db1809'
MDEV = '83b8f4f2-509f-382f-3c1e-e6bfe0fa1001'
QEMU = " xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'"
ADDRESS = "<address domain='0x0000' bus='0x3d' slot='0x00' function='0x4'/>"


def domain(devices: str = '', arguments: tuple[str, ...] = (), before: str = '') -> str:
    """A definition in the layout of libvirtd."""
    own = ''.join(f"    <qemu:arg value='{argument}'/>\n" for argument in arguments)
    return (f"<domain type='kvm'{QEMU if arguments else ''}>\n  <name>n</name>\n  <uuid>{UUID}</uuid>\n{before}"
            f'  <devices>\n{devices}  </devices>\n'
            + (f'  <qemu:commandline>\n{own}  </qemu:commandline>\n' if arguments else '') + '</domain>\n')


PCI = base.table(
    ('interface', domain("    <interface type='hostdev' managed='yes'>\n      <source>\n"
                         f"        {ADDRESS.replace('<address', '<address type=' + chr(39) + 'pci' + chr(39))}\n"
                         '      </source>\n    </interface>\n')),
    ('NVMe disk', domain("    <disk type='nvme' device='disk'>\n"
                         "      <source type='pci' managed='no' namespace='1'>\n"
                         f'        {ADDRESS}\n      </source>\n    </disk>\n')),
    ('argument', domain(arguments=('-device', 'vfio-pci,host=3d:00.4'))),
    ('argument in JSON', domain(arguments=('-device', '{"driver":"vfio-pci","host":"0000:3D:00.4"}'))),
    ('argument with a path', domain(arguments=('-device', 'vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:3d:00.4'))),
    names=('text',))


class FormsTestCase(base.TestCase):
    def addresses(self, kind: type[api.DeviceKind], text: str) -> list[str]:
        made = kind(self.conf, connection.Connection())
        found = domain_xml.parse(text)
        return [*made.addresses(found), *made.other_addresses(found)]


class TestFunction(FormsTestCase):
    scenarios = PCI

    def test_is_seen(self) -> None:
        self.assertEqual(['0000:3d:00.4'], self.addresses(vf.VF, self.text))


class TestMdev(FormsTestCase):
    def test_is_seen_in_arguments(self) -> None:
        for argument in (f'vfio-pci,sysfsdev=/sys/bus/mdev/devices/{MDEV},id=x',
                         f'{{"driver":"vfio-pci","sysfsdev":"/sys/bus/mdev/devices/{MDEV.upper()}"}}'):
            self.assertEqual([MDEV], self.addresses(mdev.Mdev, domain(arguments=('-device', argument))))

    def test_is_not_seen_in_every_uuid(self) -> None:
        self.assertEqual([], self.addresses(mdev.Mdev, domain(arguments=(
            '-drive', f'file=/var/lib/instances/{MDEV}/disk', '-smbios', f'type=1,uuid={MDEV}'))))


class TestNamespace(FormsTestCase):
    """A file in a directory, and a link that leads to it from elsewhere."""

    scenarios = base.table(
        ('file system', "    <filesystem type='block' accessmode='passthrough'>\n      <source dev='PATH'/>\n"
                        "      <target dir='x'/>\n    </filesystem>\n", (), True),
        ('file system of a file', "    <filesystem type='file'>\n      <source file='PATH'/>\n"
                                  "      <target dir='x'/>\n    </filesystem>\n", (), True),
        ('block disk', "    <disk type='block' device='disk'>\n      <source dev='PATH' index='1'/>\n    </disk>\n",
         (), True),
        ('file disk', "    <disk type='file' device='disk'>\n      <source file='PATH'/>\n    </disk>\n", (), False),
        ('other memory', "    <memory model='dimm'>\n      <source>\n        <path>PATH</path>\n      </source>\n"
                         '    </memory>\n', (), True),
        ('character device', "    <hostdev mode='capabilities' type='misc'>\n      <source>\n"
                             '        <char>PATH</char>\n      </source>\n    </hostdev>\n', (), True),
        ('serial port', "    <serial type='dev'>\n      <source path='PATH'/>\n      <target port='0'/>\n"
                        '    </serial>\n', (), False),
        ('argument', '', ('-object', 'memory-backend-file,id=m,mem-path=PATH,size=1G'), True),
        ('block device in arguments', '', ('-blockdev', 'driver=host_device,filename=PATH,node-name=n'), True),
        ('block device in JSON', '', ('-blockdev', '{"driver":"host_device","filename":"PATH","node-name":"n"}'), True),
        names=('element', 'arguments', 'linked'))

    def test_is_seen(self) -> None:
        directory = self.temp_dir()
        path, link = os.path.join(directory, 'ns0'), os.path.join(self.temp_dir(), 'link')
        with open(path, 'w'):
            os.symlink(path, link)
        self.configuration.set('devicetrack_vpmem', directory=directory)
        kind = vpmem.VPMEM(self.conf, connection.Connection())
        for name in (path, link) if self.linked else (path,):
            text = domain(self.element.replace('PATH', name),
                          tuple(argument.replace('PATH', name) for argument in self.arguments))
            found = self.addresses(vpmem.VPMEM, text)
            self.assertIn(name, found)
            self.assertEqual('ns0', kind.identify(found)[name])

    def test_what_leads_elsewhere_is_no_use(self) -> None:
        self.configuration.set('devicetrack_vpmem', directory=self.temp_dir())
        kind = vpmem.VPMEM(self.conf, connection.Connection())
        found = self.addresses(vpmem.VPMEM, domain(self.element.replace('PATH', '/dev/null'), self.arguments))
        self.assertEqual(set(), {name for name in kind.identify(found).values() if name is not None})


class TestNamespaceOfFirmware(FormsTestCase):

    def test_is_seen(self) -> None:
        directory = self.temp_dir()
        self.configuration.set('devicetrack_vpmem', directory=directory)
        path = os.path.join(directory, 'ns0')
        for element in ("    <loader readonly='no' type='pflash'>PATH</loader>\n", '    <nvram>PATH</nvram>\n',
                        "    <nvram type='file'>\n      <source file='PATH'/>\n    </nvram>\n",
                        "    <nvram type='block'>\n      <source dev='PATH'/>\n    </nvram>\n",
                        '    <kernel>PATH</kernel>\n', '    <initrd>PATH</initrd>\n'):
            text = domain(before=f"  <os>\n{element.replace('PATH', path)}  </os>\n")
            self.assertIn(path, self.addresses(vpmem.VPMEM, text), element)
