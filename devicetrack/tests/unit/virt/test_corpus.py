"""The reading of other people's documents: what it finds, and that it tells what the library missed."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

import fixtures

from devicetrack.tests import base
from devicetrack.tests import corpus
from devicetrack.virt.libvirt import domain_xml

MDEV = '3e2cfbf4-6f3e-4ed1-9a7a-2a50a4c31d83'
DOMAIN = f"""<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>n</name>
<os><kernel>/srv/kernel</kernel></os><devices>
<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{MDEV}'/></source></hostdev>
<hostdev mode='subsystem' type='pci'><source><address bus='0x3d' slot='0' function='4'/></source></hostdev>
<hostdev mode='subsystem' type='usb'><source><address bus='1' device='2'/></source></hostdev>
<interface type='hostdev'><source><address type='pci' domain='0' bus='0x41' slot='0' function='1'/></source></interface>
<disk type='nvme'><source type='pci' namespace='1'><address domain='0' bus='5' slot='0' function='0'/></source></disk>
<disk type='block'><source dev='/dev/pmem0'/></disk>
<memory model='nvdimm'><source><path>/dev/dax0.0</path></source></memory></devices>
<qemu:commandline><qemu:arg value='-object'/></qemu:commandline></domain>"""


class CorpusTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.directory = self.temp_dir()
        self.write('below/domain.xml', DOMAIN)
        self.write('network.xml', '<network/>')
        self.write('torn.xml', '<domain>')

    def write(self, name: str, text: str) -> None:
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)

    def run_it(self) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = corpus.main([self.directory])
        return code, out.getvalue()

    def test_every_name_is_found(self) -> None:
        self.assertEqual((0, '1 domains with 8 names, 0 with names that were missed, 0 whose devices are unknown\n'),
                         self.run_it())

    def test_a_name_that_the_library_misses_is_told(self) -> None:
        whole = domain_xml.parse
        for field in ('memory_paths', 'mdev_uuids', 'pci_addresses', 'other_paths', 'other_pci_addresses', 'arguments'):
            def parse(text: str, name: str = field) -> domain_xml.Domain:
                without: dict[str, Any] = {name: ()}
                return whole(text)._replace(**without)

            with fixtures.MonkeyPatch('devicetrack.virt.libvirt.domain_xml.parse', parse):
                code, out = self.run_it()
            self.assertEqual((1, True), (code, out.startswith('MISSED ')), field)

    def test_what_cannot_be_read_is_unknown_and_not_missed(self) -> None:
        self.write('below/domain.xml', DOMAIN.replace(MDEV, 'none'))
        code, out = self.run_it()
        self.assertEqual((0, True), (code, 'not a UUID' in out))

    def test_a_directory_without_domains_proves_nothing(self) -> None:
        os.unlink(os.path.join(self.directory, 'below/domain.xml'))
        self.assertEqual(1, self.run_it()[0])
