"""Reading namespaces through, with the real program in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.virt.libvirt import children
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import progress
from devicetrack.virt.libvirt import zeroes
from devicetrack.virt.libvirt.kinds import vpmem

MIB = 1 << 20
KEY = DeviceKey('vpmem', 'ns0')


class ReadTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.files = self.temp_dir()
        self.path = os.path.join(self.files, 'ns0')
        self.configuration.set('libvirt', pmem_namespaces=['4GB:ns0'], connection_uri='test:///default')
        self.configuration.set('devicetrack_vpmem', directory=self.files)

    def fill(self, data: bytes, size: int = 0) -> None:
        """A file of so many bytes that ends with these."""
        with open(self.path, 'wb') as file:
            file.truncate(max(size, len(data)))
            file.seek(-len(data), os.SEEK_END)
            file.write(data)

    def driver(self) -> libvirt_driver.LibvirtDriver:
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [vpmem.VPMEM])
        self.addCleanup(driver.close)
        return driver

    def prove(self, how: str = vocabulary.READ) -> exception.DriverError | None:
        driver = self.driver()
        return driver.prove([self.assigned(driver)], how)[KEY]

    def assigned(self, driver: libvirt_driver.LibvirtDriver) -> Any:
        device, = driver.get_inventory().devices
        return contract.assignment(str(uuid.uuid4()), 'vpmem', 'ns0', None, device.details)

    def is_proven(self) -> bool:
        return not self.driver().get_inventory().unproven

    def test_zeros_on_the_disk_are_proven(self) -> None:
        self.fill(bytes(20 * MIB + 5))
        before = os.stat(self.path)
        self.assertIsNone(self.prove())
        after = os.stat(self.path)
        self.assertEqual((True, before.st_mtime_ns, before.st_size),
                         (self.is_proven(), after.st_mtime_ns, after.st_size))

    def test_one_byte_anywhere_is_found_and_left(self) -> None:
        for size, data in ((20 * MIB, b'x'), (20 * MIB, b'x' + bytes(MIB)), (20 * MIB, b'x' + bytes(20 * MIB - 1)),
                           (5, b'x')):
            self.fill(data, size)
            self.assertIn('not all zero between bytes', str(self.prove()))
            with open(self.path, 'rb') as file:
                self.assertEqual((bytes(size - len(data)) + data, False), (file.read(), self.is_proven()))

    def test_what_has_no_bytes_is_not_proven(self) -> None:
        self.fill(b'')
        self.assertIn('it has no bytes that can be read', str(self.prove()))
        self.assertFalse(self.is_proven())

    def test_a_file_of_the_state_directory_that_cannot_be_used_is_named_with_what_to_do(self) -> None:
        for name in ('locks', 'proofs.new'):
            self.fill(bytes(MIB))
            wrong = os.path.join(self.state_path, name)
            driver = self.driver()
            assigned = self.assigned(driver)
            if name == 'locks':
                with open(wrong, 'w'):
                    pass
            else:
                os.mkdir(wrong)
            self.assertIn(f'{wrong}: ', said := str(driver.prove([assigned], vocabulary.READ)[KEY]))
            self.assertTrue(said.endswith(': move away what is in its place'), said)
            os.rename(wrong, f'{wrong}.away')
            self.assertIsNone(driver.prove([assigned], vocabulary.READ)[KEY])

    def test_holes_are_not_read(self) -> None:
        self.fill(b'x', 1 << 40)
        began = time.monotonic()
        self.assertIn('not all zero between bytes', str(self.prove()))
        self.assertLess(time.monotonic() - began, base.HANGS_S)
        self.fill(b'', 1 << 40)
        self.assertIsNone(self.prove(vocabulary.BLANK))
        self.assertTrue(self.is_proven())

    def test_the_proof_is_of_this_file_alone(self) -> None:
        self.fill(bytes(MIB))
        self.assertIsNone(self.prove())
        os.rename(self.path, self.path + '.away')
        self.fill(b'x', MIB)
        self.assertFalse(self.is_proven())
        os.rename(self.path + '.away', self.path)
        self.assertTrue(self.is_proven())

    def test_a_wipe_that_proves_nothing_leaves_no_proof(self) -> None:
        self.fill(bytes(MIB))
        self.assertIsNone(self.prove())
        driver = self.driver()
        wanted = self.assigned(driver)
        self.patch(jobs, 'wipe', lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        self.assertRaises(KeyboardInterrupt, driver.unclaim, [wanted])
        self.assertFalse(self.is_proven())

    def test_a_proof_that_cannot_be_recorded_keeps_the_device_held(self) -> None:
        self.fill(b'x', MIB)
        driver = self.driver()
        wanted = self.assigned(driver)
        os.mkdir(os.path.join(self.state_path, 'proofs'))
        self.assertIsInstance(driver.unclaim([wanted])[KEY], exception.UnclaimFailed)

    def test_without_the_word_of_the_disk_no_guest_gets_a_proven_device(self) -> None:
        self.fill(bytes(8 * MIB))
        self.assertIsNone(self.prove())
        driver = self.driver()
        wanted = self.assigned(driver)
        self.patch(os, 'fsync', lambda fd: (_ for _ in ()).throw(OSError('the disk is gone')))
        self.assertRaises(exception.RealizeFailed, driver.realize, wanted)
        self.assertRaises(exception.CommandFailed, driver.guest_config, [wanted])

    def test_reading_ends_when_it_is_to_stop(self) -> None:
        self.fill(bytes(64 * MIB))
        self.configuration.set('devicetrack_vpmem', wipe_rate_mib_s=1)
        driver = self.driver()
        wanted, answers = self.assigned(driver), []
        thread = threading.Thread(target=lambda: answers.append(driver.prove([wanted], vocabulary.READ)[KEY]))
        thread.start()
        while thread.is_alive():
            driver.stop_proving()
            thread.join(0.1)
        self.assertIn(jobs.STOPPED, str(answers[0]))
        self.assertFalse(self.is_proven())

    def test_one_that_says_nothing_and_does_not_die_is_given_up(self) -> None:
        """As a reader that the kernel blocks: it ends when the call into the kernel has returned."""
        silent = os.path.join(self.temp_dir(), 'silent.py')
        with open(silent, 'w') as file:
            file.write('import time\ntime.sleep(600)\n')
        self.patch(jobs, 'command', lambda: (sys.executable, silent))
        self.patch(children, '_KILLED_S', 0.1)
        self.fill(bytes(MIB))
        driver, kill, answers = self.driver(), subprocess.Popen.kill, []
        blocked: list[Any] = []
        self.patch(subprocess.Popen, 'kill', lambda child: blocked.append(child))
        wanted = self.assigned(driver)
        thread = threading.Thread(target=lambda: answers.append(driver.prove([wanted], vocabulary.READ)[KEY]))
        thread.start()
        while not blocked:
            driver.stop_proving()
            thread.join(0.1)
        thread.join(base.HANGS_S)
        kill(blocked[0])
        blocked[0].wait()
        self.assertIn(jobs.STOPPED, str(answers[0]))

    def test_says_how_far_it_is_while_it_lasts(self) -> None:
        self.fill(bytes(64 * MIB))
        self.configuration.set('devicetrack_vpmem', wipe_rate_mib_s=8)
        driver = self.driver()
        assignment = self.assigned(driver)
        thread = threading.Thread(target=driver.prove, args=([assignment], vocabulary.READ))
        thread.start()
        try:
            while not (found := self.driver().wiping([KEY])):
                self.assertTrue(thread.is_alive())
                time.sleep(0.02)
        finally:
            driver.stop_proving()
            thread.join()
        said = found[KEY]
        self.assertEqual(('read', 64 * MIB, False), (said.phase, said.size_bytes, said.is_wipe))
        self.assertTrue(0 < said.done_bytes <= said.size_bytes)
        self.assertRegex(str(said), r'^\d+ of 64 MiB read, ')
        self.assertEqual({}, self.driver().wiping([KEY]))

    def test_trust_proves_what_it_is_told(self) -> None:
        self.fill(b'x', MIB)
        self.configuration.set('devicetrack', unproven_devices=vocabulary.TRUST)
        inventory = self.driver().get_inventory()
        self.assertEqual((frozenset(), frozenset()), (inventory.keeping, inventory.unproven))


class ReaderTestCase(base.TestCase):
    """The program alone."""

    def run_on(self, data: bytes, **more: Any) -> subprocess.Popen[bytes]:
        path = os.path.join(self.temp_dir(), 'file')
        with open(path, 'wb') as file:
            file.write(data)
        fd = os.open(path, os.O_RDONLY)
        self.addCleanup(os.close, fd)
        child = subprocess.Popen(
            (*jobs.command(), json.dumps({'job': 'read', 'fds': [fd, fd], 'of': more.get('size', len(data)),
                                          'align': 4096, 'rate': more.get('rate', 0)})),
            stdout=subprocess.PIPE, pass_fds=(fd,), env={})
        self.addCleanup(child.wait)
        return child

    def test_it_ends_when_nobody_listens_any_more(self) -> None:
        child = self.run_on(bytes(64 * MIB), rate=MIB)
        assert child.stdout is not None
        self.assertIn(b'"phase": "read"', child.stdout.readline())
        child.stdout.close()                            # as when the service is killed
        self.assertEqual(1, child.wait(base.HANGS_S))

    def test_another_size_proves_nothing(self) -> None:
        child = self.run_on(bytes(MIB), size=2 * MIB)
        said, _errors = child.communicate()
        self.assertIn(b'its size is not the recorded one', said)
        self.assertEqual(1, child.returncode)

    def test_a_mapped_device_is_read_to_its_last_byte_in_whole_pages(self) -> None:
        path = os.path.join(self.temp_dir(), 'file')
        for size, at in ((40 * MIB, None), (40 * MIB, 40 * MIB - 1), (40 * MIB, 0), (34 * MIB, 33 * MIB)):
            with open(path, 'wb') as file:
                file.truncate(size)
                if at is not None:
                    file.seek(at)
                    file.write(b'x')
            fd = os.open(path, os.O_RDONLY)
            try:
                device = zeroes.Dax(fd, size, 2 * MIB)
                if at is None:
                    zeroes.read_through(device, size, 0, lambda phase, done: None)
                else:
                    self.assertRaises(progress.Failed, zeroes.read_through, device, size, 0,
                                      lambda phase, done: None)
            finally:
                os.close(fd)
