"""Whoever shares a device shares its lock, and what a process has open is in use: with real processes and files."""

from __future__ import annotations

import os
import textwrap
from typing import Any
import uuid
import warnings

from devicetrack import exception
from devicetrack import filelock
from devicetrack import vocabulary
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.drivers import case
from devicetrack.tests.drivers import contract
from devicetrack.tests.functional.virt import test_wipe
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import vpmem

# A guest that the hypervisor has lost: it maps the file, closes it, and says so.
GUEST = textwrap.dedent("""
    import mmap, os, sys
    fd = os.open(sys.argv[1], os.O_RDWR)
    mapped = mmap.mmap(fd, 4096)
    if sys.argv[2] == 'maps':
        os.close(fd)
    print('ready', flush=True)
    sys.stdin.read()
""")

# As that guest, but its first thread ends, and another one runs on.
THREAD = textwrap.dedent("""
    import ctypes, mmap, os, sys, threading
    fd = os.open(sys.argv[1], os.O_RDWR)
    mapped = mmap.mmap(fd, 4096)
    if sys.argv[2] == 'maps':
        os.close(fd)

    def run():
        while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z':
            pass
        print('ready', flush=True)
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=run).start()
    ctypes.CDLL(None).pthread_exit(None)
""")


class UnusedTestCase(test_wipe.NamespaceTestCase):

    def guest(self, how: str, program: str = GUEST) -> Any:
        process = processes.Process('-c', program, self.path, how)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual('ready', process.stdout.readline().strip())
        return process


class TestLostGuest(UnusedTestCase):
    """A guest that the hypervisor does not know."""

    def _is_kept(self, how: str, program: str = GUEST) -> None:
        driver = self.driver()
        wanted, before, guest = self.assigned(driver), self.content(), self.guest(how, program)
        error = driver.unclaim([wanted])[self.key]
        self.assertIsInstance(error, exception.DeviceInUse)
        self.assertIn(str(guest.pid), str(error))
        self.assertEqual(before, self.content())
        guest.kill()
        guest.wait()
        self.assertIsNone(driver.unclaim([wanted])[self.key])

    def test_keeps_what_it_has_open(self) -> None:
        self._is_kept('has open')

    def test_keeps_what_it_maps(self) -> None:
        self._is_kept('maps')

    def test_keeps_what_it_has_open_after_its_first_thread_has_ended(self) -> None:
        self._is_kept('has open', THREAD)

    def test_keeps_what_it_maps_after_its_first_thread_has_ended(self) -> None:
        self._is_kept('maps', THREAD)

    def test_keeps_a_hole_from_being_proven(self) -> None:
        for name in ('ns0', 'ns1'):
            with open(os.path.join(self.files, name), 'wb') as file:
                file.truncate(8 * test_wipe.MIB)
        self.configuration.set('libvirt', pmem_namespaces=['4GB:ns0|ns1'])
        driver = self.driver()
        both = [contract.assignment(str(uuid.uuid4()), 'vpmem', device.identifier, None, device.details)
                for device in driver.get_inventory().devices]
        for how in ('has open', 'maps'):
            guest = self.guest(how)
            answers = driver.prove(both, vocabulary.BLANK)
            self.assertIsInstance(answers[self.key], exception.NotProven)
            self.assertEqual({self.key}, set(driver.get_inventory().unproven))
            guest.kill()
            guest.wait()
        driver.prove(both, vocabulary.BLANK)
        self.assertEqual([], list(driver.get_inventory().unproven))


class TestOwnLock(UnusedTestCase):
    """Two managers with a state directory each."""

    def elsewhere(self) -> libvirt_driver.LibvirtDriver:
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.temp_dir(), [vpmem.VPMEM])
        self.addCleanup(driver.close)
        return driver

    def held(self) -> None:
        """Hold the device as a wiper does whose manager has another state directory."""
        fd = os.open(self.path, os.O_RDWR)
        self.addCleanup(os.close, fd)
        self.assertTrue(filelock.flock(fd))

    def test_a_device_that_another_manager_wipes_is_not_wiped(self) -> None:
        driver, before = self.elsewhere(), self.content()
        wanted = self.assigned(driver)
        self.held()
        self.assertIsInstance(driver.unclaim([wanted])[self.key], exception.DeviceBusy)
        self.assertEqual(before, self.content())

    def test_a_device_that_another_manager_wipes_goes_to_no_guest(self) -> None:
        driver = self.elsewhere()
        wanted = self.assigned(driver)
        case.prove_all(driver)
        driver.realize(wanted)
        self.held()
        self.assertRaises(exception.DeviceBusy, driver.realize, wanted)

    def test_the_wiper_of_a_manager_that_was_killed_keeps_the_lock_of_the_device(self) -> None:
        wanted = self.service_killed_in_a_wipe()
        error = self.elsewhere().unclaim([wanted])[self.key]
        self.assertIsInstance(error, exception.DeviceBusy)
        self.assertRaises(exception.DeviceBusy, self.elsewhere().realize, wanted)
        self.go_on()

    def test_a_lock_file_that_was_removed_while_it_was_held_lets_nobody_else_wipe(self) -> None:
        wanted = self.service_killed_in_a_wipe()
        os.unlink(os.path.join(self.state_path, 'locks', 'vpmem-ns0.lock'))
        self.assertIsInstance(self.driver().unclaim([wanted])[self.key], exception.DeviceBusy)
        self.go_on()


class TestUsers(base.TestCase):
    own_processes = False

    def setUp(self) -> None:
        super().setUp()
        self.have_full_device()
        self.nodes = [os.path.join(self.temp_dir(), name) for name in ('dax0.0', 'another')]
        for node in self.nodes:
            os.mknod(node, 0o020600, os.makedev(1, 7))

    def check(self) -> str:
        fd = os.open(self.nodes[0], os.O_RDONLY)
        self.addCleanup(os.close, fd)
        return str(self.assertRaises(OSError, device_users.check_alone, fd))

    def test_a_device_is_told_by_its_number_whatever_its_node(self) -> None:
        code = 'import os, sys; os.open(sys.argv[1], os.O_RDONLY); print("ready", flush=True); sys.stdin.read()'
        process = processes.Process('-c', code, self.nodes[1])
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual('ready', process.stdout.readline().strip())
        self.assertIn(str(process.pid), self.check())

    def test_processes_that_have_a_device_open_are_found_without_opening_it(self) -> None:
        code = 'import os, sys; os.open(sys.argv[1], os.O_RDONLY); print("ready", flush=True); sys.stdin.read()'
        process = processes.Process('-c', code, self.nodes[1])
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual('ready', process.stdout.readline().strip())
        self.assertIn(process.pid, device_users.users_of({os.makedev(1, 7): 'dax0.0', os.makedev(1, 8): 'another'}))
        self.assertNotIn(process.pid, device_users.users_of({os.makedev(1, 8): 'another'}))

    def test_a_child_of_ours_that_has_not_run_its_program_yet_is_no_user(self) -> None:
        """Another thread forks it while the device is open here; on a busy machine it waits for a processor then."""
        path = os.path.join(self.temp_dir(), 'file')
        with open(path, 'wb') as file:
            file.write(b'0')
        before = os.open(path, os.O_RDWR)
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(ours, 1)
            os._exit(0)
        os.close(before)
        try:
            fd = os.open(path, os.O_RDWR)
            device_users.check_alone(fd)
            filelock.close(fd)
        finally:
            os.write(theirs, b'.')
            os.waitpid(pid, 0)
            os.close(ours)
            os.close(theirs)

    def test_a_look_that_ends_early_leaves_no_directory_open(self) -> None:
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter('always')
            look: Any = device_users._open_in('/proc/self')
            next(look)
            look.close()
        self.assertEqual([], shown)

    def test_a_lock_ends_for_a_child_that_was_forked_meanwhile(self) -> None:
        path = os.path.join(self.temp_dir(), 'file')
        with open(path, 'wb'):
            pass
        fd = os.open(path, os.O_RDWR)
        self.assertTrue(filelock.flock(fd))
        copy = os.dup(fd)                       # what such a child has
        self.addCleanup(os.close, copy)
        filelock.close(fd)
        another = os.open(path, os.O_RDWR)
        self.addCleanup(os.close, another)
        self.assertTrue(filelock.flock(another))

    def test_a_device_that_is_mapped_is_told_by_its_name(self) -> None:
        """No such device can be mapped here, so the list of mappings is made."""
        self.patch(device_users, 'PROCESSES', self.temp_dir())
        for pid, mapped in (('7', '/usr/lib/libc.so'), ('8', '/dev/dax0.0'), ('9', '/dev/dax0.0 (deleted)')):
            os.makedirs(os.path.join(device_users.PROCESSES, pid, 'fd'))
            with open(os.path.join(device_users.PROCESSES, pid, 'maps'), 'w') as maps:
                maps.write('7f0000000000-7f0000001000 rw-s 00000000 00:05 123                        \n'
                           f'7f0000001000-7f0000002000 rw-s 00000000 00:05 124                        {mapped}\n')
        self.assertIn('open in process 8, 9', self.check())
