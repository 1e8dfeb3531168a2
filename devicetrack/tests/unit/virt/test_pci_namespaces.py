"""Namespaces as a record: its text, and what differs from it."""

from __future__ import annotations

from devicetrack.tests import base
from devicetrack.virt.libvirt import pci_namespaces

BEFORE = '1:1048576:512:0 2:2097152:4096:4xp1f detached:3:1048576:512 capacity:8388608:4194304'


class TextTestCase(base.TestCase):

    def test_is_read_as_it_is_written(self) -> None:
        for text in ('', '1:1048576:512', '1:1048576:512:0', BEFORE, '1:1048576:512:12p3',
                     '1:1048576:512:0:shared 2:512:512:1'):
            self.assertEqual(text, str(pci_namespaces.parse(text)))

    def test_what_is_none(self) -> None:
        for text in ('1', '1:2', 'x:1:2', '1:1:1:y', '1:1:1:0 2:1:1', 'detached:1:2', 'capacity:1'):
            self.assertRaises((ValueError, IndexError), pci_namespaces.parse, text)


class MismatchTestCase(base.TestCase):

    scenarios = base.table(
        ('all', '1:8192:512 2:512:512', '1:8192:512 2:512:512', None, None),
        ('one without a disk', '1:8192:512 2:512:512', '1:8192:512', 'has the namespace 2, and the kernel shows no',
         'has the namespace 2, and the kernel shows no'),
        ('one that went', '1:8192:512', '1:8192:512 2:512:512', 'shows the namespace 2, and its controller does not',
         'shows the namespace 2, and its controller does not'),
        ('one without capacity', '1:8192:512', '1:0:512', 'its namespace 1 with 0 bytes in blocks of 512, and its '
         'controller has 8192', None),
        ('one in other blocks', '1:8192:4096', '1:8192:512', 'in blocks of 512, and its controller has 8192 in blocks '
         'of 4096', None),
        names=('told', 'shown', 'differs', 'formatted'))

    def test_is_named(self) -> None:
        told, shown = (pci_namespaces.parse(text).sizes for text in (self.told, self.shown))
        for formatted, expected in ((False, self.differs), (True, self.formatted)):
            said = pci_namespaces.mismatch(told, shown, formatted)
            if expected is None:
                self.assertIsNone(said)
            else:
                self.assertIn(expected, str(said))


class DifferenceTestCase(base.TestCase):

    scenarios = base.table(
        ('nothing', BEFORE, BEFORE, None, None),
        ('a namespace more', BEFORE, BEFORE + ' 4:512:512:0', 'there are the namespaces 1, 2, 4, and the claim found '
         '1, 2', 'namespaces 1, 2, 4'),
        ('a namespace less', '1:512:512 2:512:512', '1:512:512', 'the namespaces 1, and', 'the namespaces 1, and'),
        ('none any more', '1:512:512', '', 'the namespaces none', 'the namespaces none'),
        ('other blocks', '1:8192:512', '1:8192:4096', 'namespace 1 has 8192 bytes in blocks of 4096', None),
        ('another size', '1:8192:512', '1:4096:512', 'namespace 1 has 4096 bytes', None),
        ('another format', '1:8192:512:0', '1:8192:512:1', 'has the LBA format 1, and the claim found 0', None),
        ('one detached', '1:8192:512:0', '1:8192:512:0 detached:2:512:512', 'the detached namespaces 2, and the claim '
         'found none', 'detached namespaces 2'),
        ('a detached one of another size', '1:8192:512:0 detached:2:512:512', '1:8192:512:0 detached:2:1024:512',
         'detached namespace 2 has another size', 'detached namespace 2 has another size'),
        ('bytes of no namespace', '1:8192:512:0 capacity:9:0', '1:8192:512:0 capacity:9:5', '5 of 9 bytes are in no',
         None),
        ('what was not recorded', '1:8192:512', '1:8192:512:3 detached:2:1:1 capacity:1:1', None, None),
        names=('recorded', 'found', 'differs', 'formatted'))

    def test_is_named(self) -> None:
        for formatted, expected in ((False, self.differs), (True, self.formatted)):
            said = pci_namespaces.difference(pci_namespaces.parse(self.recorded), pci_namespaces.parse(self.found),
                                             formatted)
            if expected is None:
                self.assertIsNone(said)
            else:
                self.assertIn(expected, str(said))
