"""The file of proofs: what it proves, and that nothing which cannot be believed proves anything."""

from __future__ import annotations

import os
import random
import shutil
from unittest import mock

from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.tests import base
from devicetrack.tests.unit.engine.views import ANOTHER_UUID
from devicetrack.tests.unit.engine.views import pmem
from devicetrack.virt.libvirt import proofs

NAMES = ('a', 'b', 'c/ü %\t\n')
DEVICES = {name: pmem()._replace(identifier=name) for name in NAMES}


def keys(*names: str) -> list[DeviceKey]:
    return [DeviceKey('vpmem', name) for name in names]


class ProofsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.path = os.path.join(self.state_path, 'proofs')
        self.proofs = proofs.Proofs(self.state_path)

    def record(self, *names: str, **changed: object) -> None:
        self.proofs.record({DeviceKey('vpmem', name): pmem(**changed).details for name in names}, vocabulary.WIPED)

    def unproven(self, *devices: InventoryDevice, of: proofs.Proofs | None = None) -> list[str]:
        """By name, what is unproven to another process, which reads the file anew."""
        reads = of or proofs.Proofs(self.state_path)
        return [name for _kind, name in reads.unproven(devices or tuple(DEVICES.values()))]

    def lines(self) -> list[bytes]:
        with open(self.path, 'rb') as file:
            return file.read().splitlines(keepends=True)

    def rewrite(self, lines: list[bytes]) -> None:
        """Change the file in its place, as a disk or an editor does."""
        with open(self.path, 'r+b') as file:
            file.truncate(0)
            file.writelines(lines)


class RecordTestCase(ProofsTestCase):

    def test_without_a_file_nothing_is_proven(self) -> None:
        self.assertEqual(list(NAMES), self.unproven())

    def test_what_was_recorded_is_proven_to_everybody(self) -> None:
        self.record(*NAMES)
        self.assertEqual(([], []), (self.unproven(), self.unproven(of=self.proofs)))

    def test_a_proof_that_was_taken_back_is_gone_for_everybody(self) -> None:
        self.record(*NAMES)
        self.proofs.take_back(keys('b'))
        self.assertEqual((['b'], ['b']), (self.unproven(), self.unproven(of=self.proofs)))

    def test_two_processes_see_what_the_other_wrote(self) -> None:
        other = proofs.Proofs(self.state_path)
        self.record('a')
        other.record({DeviceKey('vpmem', 'b'): pmem().details}, vocabulary.READ)
        self.proofs.take_back(keys('b'))
        self.assertEqual([NAMES[1], NAMES[2]], self.unproven(of=other))

    def test_a_proof_counts_for_the_device_of_its_identity_alone(self) -> None:
        self.record('a')
        moved, another = pmem(devpath='/dev/dax9.0'), pmem(namespace_uuid=ANOTHER_UUID)
        larger = pmem(size_bytes=8 << 30)
        self.assertEqual(([], ['a'], ['a'], []), tuple(
            self.unproven(one, of=self.proofs) for one in (moved, another, larger, moved)))

    def test_the_file_stays_short(self) -> None:
        with mock.patch.object(proofs, '_LINES', 10):
            for _again in range(50):
                self.record('a', 'b')
                self.proofs.take_back(keys('a'))
        self.assertLess(len(self.lines()), 20)
        self.assertEqual([NAMES[0], NAMES[2]], self.unproven())

    def test_the_disk_has_it_before_it_returns(self) -> None:
        for what in (lambda: self.record('a'), lambda: self.record('b'), lambda: self.proofs.take_back(keys('a'))):
            with mock.patch.object(os, 'fsync', autospec=True, side_effect=OSError('no disk')):
                self.assertRaises(OSError, what)
            what()
        self.assertEqual([NAMES[0], NAMES[2]], self.unproven())

    def test_nothing_is_written_when_there_is_no_proof_to_take_back(self) -> None:
        self.proofs.take_back(keys('a'))
        self.assertFalse(os.path.exists(self.path))


class DistrustTestCase(ProofsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.record('a')
        self.record('b')

    def test_a_line_that_a_crash_tore_is_left_out(self) -> None:
        lines = self.lines()
        for length in range(len(lines[-1])):
            self.rewrite([*lines[:-1], lines[-1][:length]])
            self.assertEqual(['b', NAMES[2]], self.unproven())

    def test_after_a_torn_line_the_next_one_is_readable(self) -> None:
        lines = self.lines()
        self.rewrite([*lines[:-1], lines[-1][:-5]])
        self.record(NAMES[2])
        self.assertEqual(['b'], self.unproven())

    def test_before_a_damaged_line_nothing_counts(self) -> None:
        self.record(NAMES[2])
        lines = self.lines()
        lines[-2] = lines[-2].replace(b'\t+\t', b'\t-\t')
        self.rewrite(lines)
        self.assertEqual(['a', 'b'], self.unproven())

    def test_a_copy_proves_nothing(self) -> None:
        shutil.copy2(self.path, self.path + '.backup')
        self.proofs.take_back(keys('a'))
        os.rename(self.path + '.backup', self.path)
        self.assertEqual((list(NAMES), list(NAMES)), (self.unproven(), self.unproven(of=self.proofs)))
        self.record('b')
        self.assertEqual([NAMES[0], NAMES[2]], self.unproven())

    def test_nor_does_one_that_is_written_over_the_file(self) -> None:
        before = self.lines()
        self.proofs.take_back(keys('a'))
        self.rewrite(before)
        self.assertEqual(list(NAMES), self.unproven())

    def test_a_file_that_others_can_write_to_proves_nothing(self) -> None:
        os.chmod(self.path, 0o666)
        self.assertEqual(list(NAMES), self.unproven())

    def test_a_link_proves_nothing(self) -> None:
        os.rename(self.path, self.path + '2')
        os.symlink(self.path + '2', self.path)
        self.assertEqual(list(NAMES), self.unproven())

    def test_nor_does_a_directory_in_its_place(self) -> None:
        os.unlink(self.path)
        os.mkdir(self.path)
        self.assertEqual(list(NAMES), self.unproven())
        self.assertRaises(OSError, self.record, 'a')

    def test_damage_never_proves_what_was_taken_back(self) -> None:
        self.proofs.take_back(keys('a'))
        self.record('b', NAMES[2])
        text = b''.join(self.lines())
        for seed in range(500):
            chance = random.Random(seed)
            damaged = bytearray(text)
            # The last byte is left alone: without its newline a last line counts as torn.
            start = chance.randrange(len(text) - 10)
            damaged[start:start + 9] = chance.choice((b'\0' * 9, chance.randbytes(9), b'\n' * 9))
            with open(self.path, 'r+b') as file:
                file.write(damaged)
            self.assertIn('a', self.unproven(), str(seed))
