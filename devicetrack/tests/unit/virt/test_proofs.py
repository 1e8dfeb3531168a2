"""The file of proofs: what it proves, and that nothing which cannot be believed proves anything."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import os
import random
import resource
import shutil
import stat
from unittest import mock

from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.tests import base
from devicetrack.tests import interrupts
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


class GivenTestCase(ProofsTestCase):
    """A device whose proof was taken back for a guest is noted, until it is proven again or somebody else uses it."""

    def given(self) -> list[str]:
        """By name, what is given as another process reads it."""
        reads = proofs.Proofs(self.state_path)
        return [key.identifier for key in keys(*NAMES) if reads.is_given(key)]

    def setUp(self) -> None:
        super().setUp()
        self.record(*NAMES[1:])
        self.proofs.take_back(keys(*NAMES), keys(*NAMES))

    def test_what_had_no_proof_is_not_noted(self) -> None:
        self.assertEqual((list(NAMES[1:]), list(NAMES)), (self.given(), self.unproven()))

    def test_a_proof_ends_it(self) -> None:
        self.record('b')
        self.assertEqual([NAMES[2]], self.given())
        self.proofs.take_back(keys('b'))
        self.assertEqual([NAMES[2]], self.given())

    def test_another_user_ends_it(self) -> None:
        self.proofs.take_back(keys('b'))
        self.assertEqual([NAMES[2]], self.given())

    def test_its_own_guest_keeps_it(self) -> None:
        self.proofs.take_back(keys('b'), keys('b'))
        self.assertEqual(list(NAMES[1:]), self.given())

    def test_a_line_that_cannot_be_read_hides_it(self) -> None:
        self.rewrite([*self.lines(), b'torn\n'])
        self.assertEqual([], self.given())


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

    def test_a_proof_keeps_what_the_host_showed_of_writes(self) -> None:
        key = DeviceKey('vpmem', 'a')
        self.record('b')                        # as an earlier release did
        self.proofs.record({key: DEVICES['a'].details}, vocabulary.WIPED, {key: '7 writes'})
        for reads in (self.proofs, proofs.Proofs(self.state_path)):
            self.assertEqual(({'a': '7 writes', 'b': ''}, {}), (reads.evidence('vpmem'), reads.evidence('pci')))

    def test_evidence_is_renewed_for_the_proof_that_it_was_read_for_alone(self) -> None:
        key = DeviceKey('vpmem', 'a')
        self.proofs.record({key: DEVICES['a'].details}, vocabulary.WIPED, {key: 'boot 1'})
        self.proofs.renew('vpmem', {'a': ('boot 0', 'boot 2'), 'b': ('', 'boot 2')})
        self.assertEqual({'a': 'boot 1'}, self.proofs.evidence('vpmem'))
        self.proofs.renew('vpmem', {'a': ('boot 1', 'boot 2')})
        self.assertEqual({'a': 'boot 2'}, proofs.Proofs(self.state_path).evidence('vpmem'))
        self.proofs.take_back(keys('a'))
        self.proofs.renew('vpmem', {'a': ('boot 2', 'boot 3')})
        self.assertIn('a', self.unproven())

    def test_what_keeps_nothing_shows_no_write(self) -> None:
        key = DeviceKey('vpmem', 'a')
        self.proofs.record({key: DEVICES['a'].details}, vocabulary.NOTHING_KEPT, {key: '7 writes'})
        self.assertEqual({}, self.proofs.evidence('vpmem'))

    def test_of_several_lines_of_a_device_as_earlier_releases_wrote_the_last_one_counts(self) -> None:
        self.record('a')
        line = self.lines()[-1]
        self.record('a', size_bytes=8 << 30)
        self.assertIn('a', self.unproven())
        self.rewrite([*self.lines(), line])
        self.assertNotIn('a', self.unproven())

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

    def test_with_a_torn_line_nothing_counts(self) -> None:
        lines = self.lines()
        for length in range(1, len(lines[-1])):
            self.rewrite([*lines[:-1], lines[-1][:length]])
            self.assertEqual(list(NAMES), self.unproven())

    def test_what_is_recorded_after_that_counts(self) -> None:
        lines = self.lines()
        self.rewrite([*lines[:-1], lines[-1][:-5]])
        self.record(NAMES[2])
        self.assertEqual(['a', 'b'], self.unproven())

    def test_with_a_damaged_line_nothing_counts(self) -> None:
        self.record(NAMES[2])
        lines = self.lines()
        lines[-2] = lines[-2].replace(b'\t+\t', b'\t-\t')
        self.rewrite(lines)
        self.assertEqual(list(NAMES), self.unproven())

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


class UnknownProofsTestCase(ProofsTestCase):
    """The file has proofs that the service does not know, because it does not trust the file or cannot read it."""

    def setUp(self) -> None:
        super().setUp()
        self.record('a')
        self.record('b')
        self.proofs = proofs.Proofs(self.state_path)

    @contextlib.contextmanager
    def no_descriptors(self) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_one_that_was_not_trusted_proves_nothing_after_a_repair(self) -> None:
        for looked in (False, True):
            self.record('a')
            os.chmod(self.path, 0o660)
            self.proofs = proofs.Proofs(self.state_path)
            if looked:
                self.assertIsNone(self.proofs.how(keys('a')[0], pmem().details))
            self.proofs.take_back(keys('a'))
            os.chmod(self.path, 0o600)
            self.assertEqual(list(NAMES), self.unproven(), str(looked))

    def test_nor_does_one_of_a_damaged_head_or_behind_a_link(self) -> None:
        head, *others = self.lines()
        self.rewrite([head.replace(b'1', b'2'), *others])
        self.proofs.take_back(keys('a'))
        self.assertEqual(1, len(self.lines()))
        self.rewrite([head, *others])
        self.assertEqual(list(NAMES), self.unproven())
        os.rename(self.path, self.path + '2')
        os.symlink(self.path + '2', self.path)
        self.proofs.take_back(keys('a'))
        self.assertFalse(os.path.islink(self.path))

    def test_nor_does_one_that_a_damaged_or_a_torn_line_hides(self) -> None:
        for name, damage in (('a', lambda line: line.replace(b'\t+\t', b'\t-\t')), ('b', lambda line: line[:-5])):
            self.record('a')
            self.record('b')
            lines = self.lines()
            self.rewrite([*lines[:-1], damage(lines[-1])])
            self.proofs = proofs.Proofs(self.state_path)
            self.assertIsNone(self.proofs.how(keys(name)[0], pmem().details))
            self.proofs.take_back(keys(name))
            self.rewrite(lines)                 # the disk gives its bytes after all
            self.assertEqual(list(NAMES), self.unproven(), name)
            os.unlink(self.path)

    def test_what_else_counts_of_a_kind_is_certain(self) -> None:
        os.chmod(self.path, 0o660)
        self.assertEqual({}, self.proofs.of_kind('vpmem'))
        os.chmod(self.path, 0o600)
        self.assertEqual(list(NAMES), self.unproven())

    def test_one_that_cannot_be_replaced_either_says_what_to_do(self) -> None:
        os.unlink(self.path)
        os.mkdir(self.path)
        for call in (lambda: self.proofs.take_back(keys('a')), lambda: self.proofs.of_kind('vpmem')):
            self.assertIn('it is not a regular file: move it away', str(self.assertRaises(OSError, call)))

    def test_without_descriptors_nobody_gets_a_device_and_no_proof_is_lost(self) -> None:
        with self.no_descriptors():
            self.assertIsNone(self.proofs.how(keys('a')[0], pmem().details))
            self.assertRaises(OSError, self.proofs.take_back, keys('a'))
            self.assertRaises(OSError, self.proofs.of_kind, 'vpmem')
        self.assertEqual([NAMES[2]], self.unproven())
        self.proofs.take_back(keys('a'))
        self.assertEqual([NAMES[0], NAMES[2]], self.unproven())

    def test_nor_while_the_file_cannot_be_read(self) -> None:
        with mock.patch.object(ownfiles, 'check_file', autospec=True,
                               side_effect=OSError(errno.EIO, os.strerror(errno.EIO))):
            for call in (lambda: self.proofs.take_back(keys('a')), lambda: self.record('a'),
                         lambda: self.proofs.of_kind('vpmem')):
                self.assertIn('cannot be read (Input/output error). If that lasts, delete the file',
                              str(self.assertRaises(OSError, call)))
        self.assertEqual([NAMES[2]], self.unproven())

    def test_nor_while_nobody_can_tell_whether_there_is_one(self) -> None:
        os.rename(self.state_path, self.state_path + '2')
        self.addCleanup(os.rename, self.state_path + '2', self.state_path)
        with open(self.state_path, 'w'):
            self.assertRaises(OSError, self.proofs.take_back, keys('a'))
        os.unlink(self.state_path)

    def test_an_error_is_logged_once(self) -> None:
        os.chmod(self.path, 0o660)
        with self.assertLogs(proofs.__name__, 'ERROR') as logged:
            for _device in range(3):
                self.proofs.how(keys('a')[0], pmem().details)
        self.assertEqual(1, len(logged.output))


class InterruptedTestCase(ProofsTestCase):
    """After an interrupt anywhere, the next call does all that it promises: a power cut brings no proof back."""

    def setUp(self) -> None:
        super().setUp()
        self.disk = self.path + '.disk'         # the file that is there after a power cut
        fsync = os.fsync

        def synced(fd: int) -> None:
            fsync(fd)
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                self.to_disk()

        self.patch(os, 'fsync', synced)

    def to_disk(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.disk)
        with contextlib.suppress(FileNotFoundError):
            os.link(self.path, self.disk)

    def cut_power(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.disk, self.path)

    def start(self, loaded: bool) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.proofs = proofs.Proofs(self.state_path)
        self.record('a')
        self.record('b')
        if not loaded:
            self.proofs = proofs.Proofs(self.state_path)

    def interrupt(self, number: int | None) -> interrupts.Lines:
        lines = interrupts.Lines(number)
        lines.run(lambda: self.proofs.take_back(keys('a')))
        if self.proofs._mutex.locked():         # nothing but a trace function leaves it held
            self.proofs._mutex.release()
        return lines

    def test_at_any_line(self) -> None:
        for loaded in (True, False):
            self.start(loaded)
            count = self.interrupt(None).count
            self.assertLess(20, count)
            for number in range(count):
                for again in (lambda: self.proofs, lambda: proofs.Proofs(self.state_path)):
                    self.start(loaded)
                    where = self.interrupt(number).where
                    again().take_back(keys('a'))
                    self.assertEqual([NAMES[0], NAMES[2]], self.unproven(of=self.proofs), where)
                    self.cut_power()
                    self.assertEqual([NAMES[0], NAMES[2]], self.unproven(), where)

    def test_a_file_that_was_deleted_does_not_come_back(self) -> None:
        self.start(loaded=False)
        os.unlink(self.path)
        self.proofs.take_back(keys('a'))
        self.cut_power()
        self.assertEqual(list(NAMES), self.unproven())
