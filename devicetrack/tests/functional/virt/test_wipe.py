"""Wiping, with the real program in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import pathlib
import select
import signal
import sys
import textwrap
import time
import types
from typing import Any
import uuid

import fixtures

from devicetrack import exception
from devicetrack import filelock
from devicetrack.objects.values import DeviceKey
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.drivers import contract
from devicetrack.tests.drivers import worlds
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import progress
from devicetrack.virt.libvirt import zeroes
from devicetrack.virt.libvirt.kinds import vpmem

# What a service does: it gives ns0 back and waits for that. It is killed by the test.
SERVICE = textwrap.dedent("""
    import sys
    from oslo_config import cfg
    from devicetrack.conf import opts
    from devicetrack.tests.drivers import contract
    from devicetrack.virt.libvirt import driver
    from devicetrack.virt.libvirt.kinds import vpmem

    state_path, files, rate, text = sys.argv[1:]
    conf = cfg.ConfigOpts()
    opts.register_options(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override('pmem_namespaces', ['4GB:ns0'], group='libvirt')
    conf.set_override('connection_uri', 'test:///default', group='libvirt')
    conf.set_override('directory', files, group='devicetrack_vpmem')
    conf.set_override('wipe_rate_mib_s', int(rate), group='devicetrack_vpmem')
    driver.LibvirtDriver('host', conf, state_path, [vpmem.VPMEM]).unclaim(
        [contract.assignment('11111111-1b54-4048-85b3-a6a62d165c01', 'vpmem', 'ns0', None, text)])
""")
# A wiper of a release that had a program of its own for that: what it leaves on the host while it works.
EARLIER = textwrap.dedent("""
    import fcntl, json, os, sys
    fd = os.open(sys.argv[1], os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with open('/proc/self/stat') as file:
        started = int(file.read().rpartition(')')[2].split()[19])
    os.pwrite(fd, json.dumps({'pid': os.getpid(), 'started': started, 'phase': 'zero', 'done': 32 << 20, 'of': 64 << 20,
                              'rate': 4 << 20, 'left': 24}).ljust(512).encode(), 0)
    print('locked', flush=True)
    sys.stdin.read()
""")
MIB = 1 << 20
_RATE_MIB_S = 8


# A process that the hypervisor does not know, with a namespace open.
WRITER = textwrap.dedent("""
    import sys
    with open(sys.argv[1], 'r+b', buffering=0) as file:
        file.write(b'dirty')
        print('written', flush=True)
        sys.stdin.read()
""")


class NamespaceTestCase(base.TestCase):
    """A host with one namespace, for which a file stands."""

    def setUp(self) -> None:
        super().setUp()
        self.files = self.temp_dir()
        self.path = os.path.join(self.files, 'ns0')
        self.fill(8 * MIB)
        self.configuration.set('libvirt', pmem_namespaces=['4GB:ns0'], connection_uri='test:///default')
        self.configuration.set('devicetrack_vpmem', directory=self.files, wipe_wait_s=base.HANGS_S)
        self.key = DeviceKey('vpmem', 'ns0')

    def fill(self, size: int) -> None:
        with open(self.path, 'wb') as file:
            file.write(os.urandom(size))

    def driver(self) -> libvirt_driver.LibvirtDriver:
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [vpmem.VPMEM])
        self.addCleanup(driver.close)
        return driver

    def assigned(self, driver: libvirt_driver.LibvirtDriver) -> Any:
        device, = driver.get_inventory().devices
        return contract.assignment(str(uuid.uuid4()), 'vpmem', 'ns0', None, device.details)

    def content(self) -> bytes:
        with open(self.path, 'rb') as file:
            return file.read()

    def lock(self) -> filelock.FileLock:
        return filelock.FileLock(os.path.join(self.state_path, 'locks', 'vpmem-ns0.lock'))

    def service_killed_in_a_wipe(self) -> Any:
        """Start a service that wipes, kill it alone in the middle, and say which device it was.

        The wiper is halted, and stays so until :meth:`go_on`.
        """
        wanted = self.assigned(self.driver())
        service = processes.Process('-c', SERVICE, self.state_path, self.files, str(_RATE_MIB_S),
                                    worlds.text_of(wanted))
        self.addCleanup(service.communicate)
        while not (children := [child for tasks in pathlib.Path(f'/proc/{service.pid}/task').glob('*/children')
                                for child in tasks.read_text().split()]):
            time.sleep(0.01)
        self.wiper = int(children[0])
        self.end_of_wiper = os.pidfd_open(self.wiper)
        self.addCleanup(os.close, self.end_of_wiper)
        self.addCleanup(self.go_on)
        while True:
            os.kill(self.wiper, signal.SIGSTOP)
            if self.content().startswith(bytes(4096)):
                break
            self.go_on()
            time.sleep(0.01)
        service.kill()
        service.wait()
        return wanted

    def go_on(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.wiper, signal.SIGCONT)


class WipeTestCase(NamespaceTestCase):

    def test_a_wiper_that_outlives_its_service_keeps_the_lock_to_its_last_write(self) -> None:
        wanted = self.service_killed_in_a_wipe()
        self.assertTrue(self.content().strip(b'\0'))
        self.assertRaises(filelock.FileLocked, self.lock().acquire)
        self.go_on()
        # The restarted service, which waits for the wiper, repeats what was not proven, and frees the device.
        self.assertEqual({self.key: None}, self.driver().unclaim([wanted]))
        self.assertFalse(self.content().strip(b'\0'))
        # The next owner's bytes.
        with open(self.path, 'r+b') as file:
            file.write(b'next' * (2 * MIB))
        self.assertTrue(select.select([self.end_of_wiper], [], [], base.HANGS_S)[0])
        self.assertEqual(b'next' * (2 * MIB), self.content())

    def progress(self) -> Any:
        """What the wiper that is halted told. It may have been halted after its first write and before its word."""
        driver = self.driver()
        while not (told := driver.wiping([self.key])):
            self.go_on()
            time.sleep(0.01)
            os.kill(self.wiper, signal.SIGSTOP)
        return told[self.key]

    def test_how_far_a_wiper_is_that_outlived_its_service_anybody_can_tell(self) -> None:
        self.service_killed_in_a_wipe()
        progress = self.progress()
        self.assertEqual(('zero', 8 * MIB), (progress.phase, progress.size_bytes))
        self.assertLess(0, progress.done_bytes)
        self.assertLess(0, progress.bytes_per_s)
        self.assertIsNotNone(progress.left_s)
        self.go_on()
        self.assertTrue(select.select([self.end_of_wiper], [], [], base.HANGS_S)[0])
        self.assertEqual({}, self.driver().wiping([self.key]))
        self.assertEqual(0, os.path.getsize(self.lock().path))

    def test_what_a_wiper_that_was_killed_said_is_of_no_account(self) -> None:
        self.service_killed_in_a_wipe()
        self.progress()
        os.kill(self.wiper, signal.SIGKILL)
        self.assertTrue(select.select([self.end_of_wiper], [], [], base.HANGS_S)[0])
        self.assertLess(0, os.path.getsize(self.lock().path))
        self.assertEqual({}, self.driver().wiping([self.key]))

    def test_a_wiper_of_an_earlier_release_is_found_and_waited_for(self) -> None:
        driver = self.driver()
        wanted = self.assigned(driver)
        lock = self.lock()
        os.makedirs(os.path.dirname(lock.path))
        lock.acquire()
        earlier = processes.Process('-c', EARLIER, lock.path)
        self.addCleanup(earlier.communicate)
        self.addCleanup(earlier.kill)
        assert earlier.stdout is not None
        lock.release()
        self.assertEqual('locked\n', earlier.stdout.readline())
        self.assertEqual('32 of 64 MiB written, 4 MiB/s, about 24 s left', str(driver.wiping([self.key])[self.key]))
        self.configuration.set('devicetrack_vpmem', wipe_wait_s=0)
        self.assertIsInstance(self.driver().unclaim([wanted])[self.key], exception.DeviceBusy)
        earlier.kill()
        earlier.wait()
        self.assertEqual({self.key: None}, driver.unclaim([wanted]))
        self.assertFalse(self.content().strip(b'\0'))

    def test_no_content_of_a_lock_file_is_an_error(self) -> None:
        driver = self.driver()
        self.assertEqual({}, driver.wiping([self.key]))
        os.makedirs(os.path.dirname(self.lock().path))
        for content in (b'', b'null', b'[' * 600, b'{"pid": "x"}', b'{"pid": 1}', b'\xff' * 600,
                        b'{"pid": 1e999, "started": 0}'):
            with open(self.lock().path, 'wb') as file:
                file.write(content)
            self.assertEqual({}, driver.wiping([self.key]), str(content))

    def test_the_wiper_gets_nothing_of_the_environment(self) -> None:
        program = os.path.join(self.temp_dir(), 'wiper')
        with open(program, 'w') as file:
            file.write("""import json
print(json.dumps({'phase': 'failed', 'reason': 'told ' + open('/proc/self/environ').read()}))
""")
        self.patch(jobs, 'command', lambda: (sys.executable, program))
        self.useFixture(fixtures.EnvironmentVariable('PMEM_NO_FLUSH', '1'))
        with filelock.FileLock(os.path.join(self.files, 'lock')) as lock:
            error = self.assertRaises(exception.CommandFailed, jobs.wipe, 'ns0', lock.fd, lock.fd, 8 * MIB, MIB, 0)
        self.assertEqual('told ', error.reason)

    def test_nothing_is_touched_while_a_wiper_of_another_process_runs(self) -> None:
        self.configuration.set('devicetrack_vpmem', wipe_wait_s=0)
        wanted = self.service_killed_in_a_wipe()
        self.assertIsInstance(self.driver().unclaim([wanted])[self.key], exception.DeviceBusy)
        self.assertRaises(exception.DeviceBusy, self.driver().realize, wanted)
        self.go_on()
        self.lock().acquire(timeout_s=base.HANGS_S)      # until the wiper has ended

    def test_progress_is_logged_and_the_proof_too(self) -> None:
        driver = self.driver()
        with self.assertLogs('devicetrack.virt.libvirt.jobs', 'INFO') as logged:
            driver.unclaim([self.assigned(driver)])
        self.assertIn('zero, 8388608 of 8388608 bytes', '\n'.join(logged.output))
        self.assertIn('verify, 8388608 of 8388608 bytes', '\n'.join(logged.output))
        self.assertIn('8388608 bytes were zeroed and read back', logged.output[-1])

    def test_the_rate_is_kept(self) -> None:
        self.configuration.set('devicetrack_vpmem', wipe_rate_mib_s=32)
        driver = self.driver()
        wanted = self.assigned(driver)
        started = time.monotonic()
        self.assertEqual({self.key: None}, driver.unclaim([wanted]))
        # A quarter of a second for zeroing it, and one for reading it back.
        self.assertGreater(time.monotonic() - started, 0.475)

    def test_the_log_has_a_bounded_number_of_lines_however_long_it_takes(self) -> None:
        slow = os.path.join(self.temp_dir(), 'slow.py')
        with open(slow, 'w') as file:
            file.write('import json\n'
                       'for phase in ("zero", "verify"):\n'
                       '    for done in range(1, 5001):\n'
                       '        print(json.dumps({"phase": phase, "done": done, "of": 5000}))\n'
                       'print(json.dumps({"phase": "ended", "job": "wipe", "done": 5000, "of": 5000}))\n')
        self.patch(jobs, 'command', lambda: (sys.executable, slow))
        with self.assertLogs('devicetrack.virt.libvirt.jobs', 'INFO') as logged:
            jobs.wipe('ns0', 0, 0, 5000, 2 * MIB, 0)
        self.assertEqual(1 + 2 * 21 + 2, len(logged.output))
        self.assertIn('zero, 1 of 5000', logged.output[1])
        self.assertIn('zero, 5000 of 5000', logged.output[21])
        self.assertIn('verify, 1 of 5000', logged.output[22])

    def test_a_file_keeps_its_size_to_the_byte(self) -> None:
        for size in (4 * MIB, 4 * MIB + 1, 33 * MIB - 1):
            self.fill(size)
            driver = self.driver()
            self.assertEqual({self.key: None}, driver.unclaim([self.assigned(driver)]))
            self.assertEqual(bytes(size), self.content())

    def test_a_symbolic_link_is_no_namespace(self) -> None:
        target = os.path.join(self.temp_dir(), 'target')
        os.rename(self.path, target)
        os.symlink(target, self.path)
        inventory = self.driver().get_inventory()
        self.assertEqual(((), ['ns0']), (inventory.devices, [one.key.identifier for one in inventory.missing]))

    def test_a_wiper_that_dies_proves_nothing(self) -> None:
        driver = self.driver()
        wanted = self.assigned(driver)
        dead = os.path.join(self.temp_dir(), 'dead.py')
        with open(dead, 'w') as file:
            file.write('print(\'{"phase": "ended", "job": "wipe", "done": 8388608, "of": 8388608}\')\n'
                       'raise SystemExit(1)\n')
        self.patch(jobs, 'command', lambda: (sys.executable, dead))
        self.assertIsInstance(driver.unclaim([wanted])[self.key], exception.UnclaimFailed)
        with open(dead, 'w') as file:
            file.write('print("nonsense")\n')
        self.assertIsInstance(driver.unclaim([wanted])[self.key], exception.UnclaimFailed)
        with open(dead, 'w') as file:
            file.write('import os; os.kill(os.getpid(), 7)\n')
        self.assertIn('ended by signal 7', str(driver.unclaim([wanted])[self.key]))

    def test_a_file_that_shrinks_is_not_clean(self) -> None:
        fd = os.open(self.path, os.O_RDWR)
        self.addCleanup(os.close, fd)
        error = self.assertRaises(exception.CommandFailed, jobs.wipe, 'ns0', fd, fd, 9 * MIB, 2 * MIB, 0)
        self.assertIn('size', error.reason)
        self.assertEqual(8 * MIB, os.path.getsize(self.path))


class SeveralTestCase(NamespaceTestCase):

    def test_one_that_a_process_opens_while_the_next_is_wiped_does_not_go_back(self) -> None:
        other = os.path.join(self.files, 'ns1')
        with open(other, 'wb') as file:
            file.write(os.urandom(8 * MIB))
        self.configuration.set('libvirt', pmem_namespaces=['4GB:ns0|ns1'], connection_uri='test:///default')
        driver = self.driver()
        wanted = [contract.assignment(str(uuid.uuid4()), 'vpmem', device.identifier, None, device.details)
                  for device in driver.get_inventory().devices]
        wipe, writers = jobs.wipe, []

        def opened_meanwhile(name: str, *rest: Any, **how: Any) -> None:
            if name == 'ns1':
                writer = processes.Process('-c', WRITER, self.path)
                self.addCleanup(writer.communicate)
                self.addCleanup(writer.kill)
                assert writer.stdout is not None
                writers.append(writer.stdout.readline())
            wipe(name, *rest, **how)

        self.patch(jobs, 'wipe', opened_meanwhile)
        answers = driver.unclaim(wanted)
        self.assertEqual(1, len(writers))
        self.assertIsInstance(answers[self.key], exception.DeviceInUse)
        self.assertIsNone(answers[DeviceKey('vpmem', 'ns1')])
        self.assertEqual({('vpmem', 'ns0')}, set(driver.get_inventory().unproven))


class Discarding(zeroes.File):
    """A block device, whose blocks are those of a file. What it does with blocks that it discards is its own choice."""

    discards, erases, writes = True, True, True

    def __init__(self, fd: int, size: int) -> None:
        super().__init__(fd, size)
        self._fd_of_file = fd

    def discard(self, offset: int, length: int) -> bool:
        if self.discards and self.erases:
            os.pwrite(self._fd_of_file, bytes(length), offset)
        return self.discards

    def zero_out(self, offset: int, length: int) -> None:
        if self.writes:
            os.pwrite(self._fd_of_file, bytes(length), offset)


class DiscardTestCase(base.TestCase):
    """How a block device becomes zero by a discard."""

    def setUp(self) -> None:
        super().setUp()
        path = os.path.join(self.temp_dir(), 'disk')
        with open(path, 'wb') as file:
            file.write(os.urandom(3 * MIB))
        self.fd = os.open(path, os.O_RDWR)
        self.addCleanup(os.close, self.fd)
        self.disk = Discarding(self.fd, 3 * MIB)
        self.patch(zeroes, 'DISCARDED_AT_ONCE', 2 * MIB)
        self.phases: list[str] = []

    def wipe(self, how: str = progress.DISCARD) -> None:
        zeroes.wipe(self.disk, 3 * MIB, 0, lambda phase, done: self.phases.append(f'{phase} {done // MIB}'), how=how)

    def is_zero(self) -> bool:
        return os.pread(self.fd, 3 * MIB, 0) == bytes(3 * MIB)

    def test_is_enough_where_every_byte_reads_as_zero(self) -> None:
        self.wipe()
        self.assertEqual((['discard 2', 'discard 3', 'verify 3'], True), (self.phases, self.is_zero()))

    def test_where_a_byte_does_not_the_device_writes_zeroes(self) -> None:
        self.disk.erases = False
        self.wipe()
        self.assertEqual((['discard 2', 'discard 3', 'zero 2', 'zero 3', 'verify 3'], True),
                         (self.phases, self.is_zero()))

    def test_nor_does_a_device_discard_that_cannot(self) -> None:
        self.disk.discards = False
        self.wipe()
        self.assertEqual((['zero 2', 'zero 3', 'verify 3'], True), (self.phases, self.is_zero()))

    def test_what_is_not_zero_after_that_is_not_clean(self) -> None:
        self.disk.erases = self.disk.writes = False
        self.assertRaises(progress.Failed, self.wipe)

    def test_reading_alone_writes_nothing(self) -> None:
        before = os.pread(self.fd, 3 * MIB, 0)
        self.assertRaises(progress.Failed, self.wipe, progress.READ)
        self.assertEqual(before, os.pread(self.fd, 3 * MIB, 0))
        os.pwrite(self.fd, bytes(3 * MIB), 0)
        self.wipe(progress.READ)
        self.assertEqual(['verify 3'], self.phases)

    def fail_fsync(self, times: int) -> None:
        """As the kernel does after writes that it could not bring to the device: once for each, to who asks next."""
        fsync, errors = os.fsync, [OSError(errno.EIO, os.strerror(errno.EIO))] * times

        def failing(fd: int) -> None:
            if errors:
                raise errors.pop()
            fsync(fd)

        self.patch(os, 'fsync', failing)

    def test_a_write_of_others_that_failed_before_is_no_failure_of_the_wipe(self) -> None:
        self.fail_fsync(1)
        self.disk = Discarding(self.fd, 3 * MIB)
        self.wipe(progress.ZERO)
        self.assertEqual((['zero 3', 'verify 3'], True), (self.phases, self.is_zero()))

    def test_a_write_of_its_own_that_fails_is(self) -> None:
        self.fail_fsync(2)
        self.disk = Discarding(self.fd, 3 * MIB)
        self.assertRaises(OSError, self.wipe, progress.ZERO)
        self.assertEqual(['zero 3'], self.phases)

    def test_what_has_no_bytes_is_not_clean(self) -> None:
        os.ftruncate(self.fd, 0)
        error = self.assertRaises(progress.Failed, zeroes.File, self.fd, 0)
        self.assertIn('no bytes', str(error))

    def test_a_file_discards_nothing(self) -> None:
        self.assertFalse(zeroes.File(self.fd, 3 * MIB).discard(0, MIB))


class DaxTestCase(base.TestCase):
    """How a dax device is zeroed: mapped and flushed. A file can be mapped too."""

    def setUp(self) -> None:
        super().setUp()
        path = os.path.join(self.temp_dir(), 'dax')
        with open(path, 'wb') as file:
            file.write(os.urandom(34 * MIB))
        self.fd = os.open(path, os.O_RDWR)
        self.addCleanup(os.close, self.fd)
        self.reports: list[tuple[str, int]] = []

    def wipe(self, device: zeroes.File | zeroes.Dax) -> None:
        zeroes.wipe(device, 34 * MIB, 0, lambda phase, done: self.reports.append((phase, done)))

    def test_every_byte_is_zero_and_was_looked_at(self) -> None:
        self.wipe(zeroes.Dax(self.fd, 34 * MIB, 2 * MIB))
        self.assertEqual(bytes(34 * MIB), os.pread(self.fd, 34 * MIB, 0))
        self.assertEqual([(phase, done * MIB) for phase in ('zero', 'verify') for done in (16, 32, 34)], self.reports)

    def test_whole_pages_of_the_device_are_mapped_and_a_rate_is_kept_inside_them(self) -> None:
        maps: list[tuple[int, int]] = []

        def noted(fd: int, length: int, **how: Any) -> mmap.mmap:
            maps.append((how['offset'], length))
            return mmap.mmap(fd, length, **how)

        self.patch(zeroes, 'mmap', types.SimpleNamespace(**{**vars(mmap), 'mmap': noted}))
        for align in (4096, 2 * MIB, 17 * MIB):
            del maps[:], self.reports[:]
            os.pwrite(self.fd, b'x' * 34 * MIB, 0)
            waits: list[float] = []
            zeroes.wipe(zeroes.Dax(self.fd, 34 * MIB, align), 34 * MIB, 10 * MIB,
                       lambda phase, done: self.reports.append((phase, done)), lambda: 0.0, waits.append)
            self.assertEqual(bytes(34 * MIB), os.pread(self.fd, 34 * MIB, 0))
            self.assertEqual([(phase, done * MIB) for phase in ('zero', 'verify') for done in range(1, 35)],
                             self.reports)
            self.assertEqual([done / 10 for done in range(1, 35)] * 2, waits)
            for (start, length), (_phase, done) in zip(maps, self.reports, strict=True):
                self.assertEqual((0, 0), (start % align, length % align))
                self.assertTrue(start <= done - MIB and done <= start + length)

    def test_one_byte_that_stays_is_found(self) -> None:
        for device in (zeroes.Dax(self.fd, 34 * MIB, 2 * MIB), zeroes.File(self.fd, 34 * MIB)):
            for at in (0, 16 * MIB - 1, 16 * MIB, 34 * MIB - 1):
                os.pwrite(self.fd, bytes(34 * MIB), 0)
                self.patch(device, 'flush', lambda at=at: os.pwrite(self.fd, b'x', at))
                error = self.assertRaises(progress.Failed, self.wipe, device)
                self.assertIn('not all zero', str(error))

    def test_without_a_flush_nothing_is_proven(self) -> None:
        def missing(_name: str) -> Any:
            raise OSError

        self.patch(ctypes, 'CDLL', missing)
        error = self.assertRaises(progress.Failed, self.wipe, zeroes.Dax(self.fd, 34 * MIB, 2 * MIB))
        self.assertIn('libpmem', str(error))
