"""Node-device XML, captured and made up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import testtools

from devicetrack import exception
from devicetrack.tests import base
from devicetrack.tests.unit.virt import data
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt.nodedev_xml import MdevType

UUID = '83b8f4f2-509f-382f-3c1e-e6bfe0fa1001'

PCI = """<device><name>pci_0000_84_1f_7</name><parent>computer</parent><capability type='pci'><domain>0</domain>
<bus>132</bus><slot>31</slot><function>7</function><capability type='virt_functions' maxCount='16'/>
<capability type='mdev_types'><type id='b'><name>B</name><deviceAPI>vfio-pci</deviceAPI>
<availableInstances>16</availableInstances></type><type id='a'><deviceAPI>vfio-ccw</deviceAPI>
<availableInstances>0</availableInstances></type></capability><numa node='1'/></capability></device>"""


class CapturedParentTestCase(base.TestCase):
    scenarios = base.table(
        *((f'libvirt {version}{state}', f'libvirt-{version}-nodedev-parent-virtual{state}.xml', counts)
          for version in data.LIBVIRTS
          for state, counts in (('', (24, 12)), ('-after-one', (22, 11)), ('-full', (0, 0)))),
        names=('document', 'counts'))

    def test_a_virtual_parent_with_its_capability_twice(self) -> None:
        self.assertEqual(
            nodedev_xml.Parent('mtty_mtty', 'mtty', False, None,
                               (MdevType('mtty-1', 'vfio-pci', self.counts[0]),
                                MdevType('mtty-2', 'vfio-pci', self.counts[1]))),
            nodedev_xml.parse_parent(data.read(self.document)))


class CapturedMdevTestCase(base.TestCase):
    scenarios = base.table(*((version, version) for version in data.LIBVIRTS), names=('version',))

    def mdev(self, state: str) -> nodedev_xml.Mdev:
        return nodedev_xml.parse_mdev(data.read(f'libvirt-{self.version}-nodedev-mdev-{state}.xml'))

    def test_an_active_and_an_inactive_one(self) -> None:
        wanted = nodedev_xml.Mdev(f'mdev_{UUID.replace("-", "_")}_mtty', UUID, 'mtty-2', 'mtty_mtty', 'mtty', 0)
        self.assertEqual(wanted, self.mdev('started'))
        self.assertEqual(wanted, self.mdev('defined-not-started'))

    def test_one_whose_parent_libvirt_does_not_know(self) -> None:
        found = self.mdev('unknown-parent')
        self.assertEqual(('mdpy-vga', 'computer', 'mdpy'), (found.type, found.parent, found.parent_address))


class ParentTestCase(base.TestCase):

    def test_a_pci_parent(self) -> None:
        self.assertEqual(
            nodedev_xml.Parent('pci_0000_84_1f_7', '0000:84:1f.7', True, 1,
                               (MdevType('a', 'vfio-ccw', 0), MdevType('b', 'vfio-pci', 16))),
            nodedev_xml.parse_parent(PCI))

    def test_a_pci_parent_of_no_node(self) -> None:
        found = nodedev_xml.parse_parent(PCI.replace("<numa node='1'/>", ''))
        assert found is not None
        self.assertIsNone(found.numa_node)

    def test_a_device_that_makes_none(self) -> None:
        self.assertIsNone(nodedev_xml.parse_parent('<device><name>computer</name><capability type="system"/></device>'))

    def test_a_parent_that_makes_none_at_the_moment(self) -> None:
        found = nodedev_xml.parse_parent('<device><name>x</name><capability type="mdev_types"/></device>')
        assert found is not None
        self.assertEqual((), found.types)

    def test_a_definition_is_what_libvirt_reads(self) -> None:
        found = nodedev_xml.parse_mdev(nodedev_xml.definition(UUID, 'a<b', 'p&q').replace(
            '<device>', '<device><name>n</name>'))
        self.assertEqual(('a<b', 'p&q', UUID), (found.type, found.parent, found.uuid))


class BadDocumentTestCase(base.TestCase):
    scenarios = base.table(
        ('a domain', nodedev_xml.parse_parent, '<domain/>', 'root element'),
        ('truncated', nodedev_xml.parse_parent, PCI[:-9], 'line'),
        ('a count that is none', nodedev_xml.parse_parent, PCI.replace('>16<', '>many<'), 'availableInstances'),
        ('a negative count', nodedev_xml.parse_parent, PCI.replace('>16<', '>-1<'), 'availableInstances'),
        ('a count of other digits', nodedev_xml.parse_parent, PCI.replace('>16<', '>١٦<'), 'availableInstances'),
        ('no API', nodedev_xml.parse_parent, PCI.replace('<deviceAPI>vfio-pci</deviceAPI>', ''), 'deviceAPI'),
        ('a type without an id', nodedev_xml.parse_parent, PCI.replace("id='b'", ''), '@id'),
        ('a bus that is none', nodedev_xml.parse_parent, PCI.replace('>132<', '>x<'), 'bus'),
        ('a node that is none', nodedev_xml.parse_parent, PCI.replace("node='1'", "node='-1'"), 'numa'),
        ('no name', nodedev_xml.parse_parent, PCI.replace('<name>pci_0000_84_1f_7</name>', ''), 'name'),
        ('no mdev', nodedev_xml.parse_mdev, PCI, 'capability'),
        ('an mdev of a type without an id', nodedev_xml.parse_mdev,
         f"<device><name>n</name><parent>p</parent><capability type='mdev'><type/><uuid>{UUID}</uuid></capability>"
         '</device>', '@id'),
        ('an mdev without a UUID', nodedev_xml.parse_mdev,
         "<device><name>n</name><parent>p</parent><capability type='mdev'><type id='t'/></capability></device>",
         'uuid'),
        names=('parse', 'text', 'where'))

    def test_it_is_refused(self) -> None:
        error = self.assertRaises(exception.InvalidDocument, self.parse, self.text, 'node device n')
        self.assertEqual('node device n', error.document)
        self.assertIn(self.where, error.where)


class PropertiesTestCase(testtools.TestCase):

    @settings(max_examples=200)
    @given(st.sampled_from((nodedev_xml.parse_parent, nodedev_xml.parse_mdev)), st.integers(0, 700),
           st.integers(0, 700), st.text(max_size=3))
    def test_a_damaged_document_is_read_or_refused(self, parse, start, length, put) -> None:
        text = PCI if parse is nodedev_xml.parse_parent else data.read('libvirt-9.0.0-nodedev-mdev-started.xml')
        try:
            parse(text[:start] + put + text[start + length:])
        except exception.InvalidDocument:
            pass
