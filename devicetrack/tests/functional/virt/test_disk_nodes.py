"""Disks are opened for nobody while another process has a part of them: real block devices and real processes.

A loop device with a partition stands for a namespace. Its place in sysfs is made.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from typing import Any
from typing import Final

from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.virt import test_privileged
from devicetrack.tests.functional.virt import test_unused
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import root

ADDRESS: Final = '0000:3d:00.0'
MIB: Final = 1 << 20
SIZE: Final = 8 * MIB
# linux/blkpg.h
_BLKPG: Final = 0x1269
_ADD, _DELETE = 1, 2

# A process that has a node open for reading: nothing but its open file shows that it uses the device.
OPENS: Final = 'import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); print("ready", flush=True); sys.stdin.read()'

# How long a disk may be busy that nobody has: udev looks at each one after a writer has closed it.
BUSY_S: Final = 30

# A service that wipes each disk and reads it back. It opens the disk anew each time.
CLEANS: Final = test_privileged.SERVICE + textwrap.dedent("""
    import time
    from devicetrack.virt.libvirt import disk_nodes
    deadline = time.monotonic() + int(sys.argv[2])

    def opened(name, writing):
        while True:
            try:
                return disk_nodes.open_disk(root.SYSFS, '0000:3d:00.0', name, 8 << 20, writing)
            except OSError as error:
                if time.monotonic() > deadline:
                    said[name].append([error.errno, error.strerror])
                    return None
                time.sleep(0.1)

    for name in ('nvme0n1', 'nvme0n2'):
        said[name] = []
        for writing in (True, False):
            fd = opened(name, writing)
            if fd is None:
                continue
            if writing:
                os.pwrite(fd, bytes(8 << 20), 0)
            said[name].append(any(os.pread(fd, 8 << 20, 0)))
            os.close(fd)
    print(json.dumps(said))
""")


class DiskNodeTestCase(base.TestCase):
    """A controller with two namespaces. The first one has a partition.

    ``subsystem`` is where sysfs shows the namespaces; by default that is below the controller.
    """

    subsystem = ''

    def setUp(self) -> None:
        super().setUp()
        # Device nodes do not work in /dev/shm, and a service that is not root must be able to enter.
        self.directory = tempfile.mkdtemp(dir='/tmp')
        self.addCleanup(shutil.rmtree, self.directory)
        os.chmod(self.directory, 0o755)
        self.controller = os.path.join(self.directory, f'devices/pci0000:00/{ADDRESS}/nvme/nvme0')
        self.above = os.path.join(self.directory, self.subsystem) if self.subsystem else self.controller
        for name in (*{self.controller, self.above}, *(os.path.join(self.directory, one) for one in (
                'bus/pci/devices', 'class/block', 'dev/block', 'dev/char'))):
            os.makedirs(name)
        os.symlink(f'../../../devices/pci0000:00/{ADDRESS}', os.path.join(self.directory, 'bus/pci/devices', ADDRESS))
        if self.subsystem:
            os.symlink(self.controller, os.path.join(self.above, 'nvme0'))
        os.mkdir(os.path.join(self.directory, 'home'), 0o755)
        os.chown(os.path.join(self.directory, 'home'), 65534, 65534)
        for name in ('SYSFS', 'DEVICES', 'VFIO'):
            self.patch(root, name, self.directory)
        self.loops = {name: self.add_loop(name) for name in ('nvme0n1', 'nvme0n2')}
        self.add_partition('nvme0n1')
        # Another device of the controller. The kernel's driver of /dev/full neither keeps nor waits for anything.
        self.have_full_device()
        self.add_node(os.path.join(self.above, 'ng0n1'), 'char', 1, 7)

    def add_loop(self, name: str) -> str:
        image = os.path.join(self.directory, f'home/{name}')
        with open(image, 'wb') as file:
            file.truncate(SIZE)
        made = subprocess.run(('losetup', '--find', '--show', image), capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.fail(f'no loop device ("modprobe loop" as root): {made.stderr}')
        loop = made.stdout.strip()
        self.addCleanup(subprocess.run, ('losetup', '--detach', loop), check=True)
        self.add_node(os.path.join(self.above, name), 'block', *self.number(f'/sys/class/block/{loop[5:]}/dev'))
        if self.subsystem:
            path = os.path.join(self.controller, f'nvme0c0{name.removeprefix("nvme0")}')
            os.mkdir(path)
            os.symlink(path, os.path.join(self.directory, 'class/block', os.path.basename(path)))
        return loop

    def add_partition(self, name: str) -> None:
        loop = self.loops[name]
        self.blkpg(loop, _ADD)
        self.addCleanup(self.blkpg, loop, _DELETE)
        [path] = glob.glob(f'/sys/class/block/{loop[5:]}p1/dev')
        self.add_node(os.path.join(self.above, name, f'{name}p1'), 'block', *self.number(path))

    @staticmethod
    def blkpg(loop: str, what: int) -> None:
        partition = struct.pack('=qqi64s64s4x', MIB, 2 * MIB, 1, b'', b'')
        data = ctypes.create_string_buffer(partition)
        fd = os.open(loop, os.O_RDWR)
        try:
            fcntl.ioctl(fd, _BLKPG, struct.pack('=iii4xQ', what, 0, len(partition), ctypes.addressof(data)))
        finally:
            os.close(fd)

    @staticmethod
    def number(path: str) -> tuple[int, int]:
        with open(path, encoding='ascii') as file:
            major, minor = map(int, file.read().split(':'))
        return major, minor

    def add_node(self, directory: str, sort: str, major: int, minor: int) -> None:
        os.mkdir(directory)
        name = os.path.basename(directory)
        os.mknod(os.path.join(self.directory, name), 0o600 | (0o060000 if sort == 'block' else 0o020000),
                 os.makedev(major, minor))
        for link in (f'dev/{sort}/{major}:{minor}', *((f'class/block/{name}',) if sort == 'block' else ())):
            path = os.path.join(self.directory, link)
            os.symlink(os.path.relpath(directory, os.path.dirname(path)), path)

    def node(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def node_of_a_container(self, name: str) -> str:
        """A node of another name outside of the host's directory of nodes."""
        directory = tempfile.mkdtemp(dir='/tmp')
        self.addCleanup(shutil.rmtree, directory)
        path = os.path.join(directory, 'volume')
        status = os.stat(self.node(name))
        os.mknod(path, status.st_mode, status.st_rdev)
        return path

    def opened_elsewhere(self, name: str, program: str = OPENS) -> Any:
        process = processes.Process('-c', program, self.node(name), 'has open')
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual('ready', process.stdout.readline().strip())
        return process

    def opened(self, name: str, writing: bool = True) -> int:
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                return disk_nodes.open_disk(self.directory, ADDRESS, name, SIZE, writing)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def refused(self, name: str) -> str:
        error = self.assertRaises(OSError, disk_nodes.open_disk, self.directory, ADDRESS, name, SIZE)
        self.assertEqual(errno.EBUSY, error.errno)
        return str(error.strerror)

    def content(self) -> bytes:
        with open(self.node('home/nvme0n1'), 'rb') as file:
            return file.read()

    def fill(self) -> None:
        with open(self.node('home/nvme0n1'), 'r+b') as file:
            file.write(b'of the first owner..' * 100)


class RootTestCase(DiskNodeTestCase):

    def test_one_of_which_another_process_has_a_part_open(self) -> None:
        for name, program in (('nvme0n1p1', OPENS), ('ng0n1', OPENS), ('nvme0n1p1', test_unused.THREAD)):
            process = self.opened_elsewhere(name, program)
            for disk in ('nvme0n1', 'nvme0n2'):
                self.assertIn(f'the host uses {ADDRESS}: process {process.pid} (', self.refused(disk))
                self.assertIn(f') has {name} open', self.refused(disk))
            process.kill()
            process.wait()
        os.close(self.opened('nvme0n1'))

    def test_one_of_which_a_container_has_a_part_open(self) -> None:
        self.patch(device_users, 'FORK_S', 0.1)         # the processes are forks, which get that time
        for name, disks in (('nvme0n1p1', ('nvme0n1',)), ('ng0n1', ('nvme0n1', 'nvme0n2'))):
            process = self.opened_elsewhere(self.node_of_a_container(name))
            for disk in disks:
                self.assertEqual(f'{name} is open in process {process.pid}', self.refused(disk))
            if 'nvme0n2' not in disks:
                os.close(self.opened('nvme0n2'))
            process.kill()
            process.wait()
        os.close(self.opened('nvme0n1'))

    def test_what_this_process_and_a_child_that_has_not_run_its_program_yet_have_of_it_is_no_use(self) -> None:
        """Another thread may fork the child while this process has the device open."""
        parts = [os.open(self.node_of_a_container(name), os.O_RDONLY) for name in ('nvme0n1p1', 'ng0n1')]
        os.close(self.opened('nvme0n1'))
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(ours, 1)
            os._exit(0)
        try:
            for part in parts:
                os.close(part)
            os.close(self.opened('nvme0n1'))
        finally:
            os.write(theirs, b'.')
            os.waitpid(pid, 0)
            os.close(ours)
            os.close(theirs)

    def test_what_this_process_and_its_children_have_open_is_no_use(self) -> None:
        first = self.opened('nvme0n1')
        part = os.open(self.node('nvme0n1p1'), os.O_RDWR)
        child = subprocess.Popen(('sleep', '600'), pass_fds=(first, part))
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        os.close(self.opened('nvme0n2'))
        os.close(first)
        os.close(part)
        # The child still has it, exclusively.
        self.refused('nvme0n1')

    def test_it_is_wiped_and_read_and_opened_anew(self) -> None:
        self.fill()
        with open(self.node('home/lock'), 'w') as lock:
            for writing in (True, False, True):
                for name in ('nvme0n1', 'nvme0n2'):
                    fd = self.opened(name, writing)
                    if writing:
                        jobs.wipe(name, fd, lock.fileno(), SIZE, 0, 0)
                    self.assertIsNone(jobs.read_through(name, fd, lock.fileno(), SIZE, 0, 0, threading.Event()))
                    os.close(fd)
        self.assertEqual(bytes(SIZE), self.content())


class SubsystemTestCase(RootTestCase):
    """The same where an NVM subsystem may have several controllers: the kernel shows its namespaces below it."""

    subsystem = 'devices/virtual/nvme-subsystem/nvme-subsys0'


class DaemonTestCase(DiskNodeTestCase):
    """A service that is not root, and sees no open file of other users."""

    def cleaned(self, wait_s: int) -> Any:
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', CLEANS, self.directory, str(wait_s)], capture_output=True, text=True,
            timeout=base.HANGS_S, env={**os.environ, 'TMPDIR': '/tmp'}, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        return json.loads(done.stdout)

    def test_one_of_which_another_process_has_a_partition_open_is_not_wiped(self) -> None:
        self.fill()
        before = self.content()
        process = self.opened_elsewhere('nvme0n1p1')
        answers = self.cleaned(0)
        self.assertEqual(before, self.content())
        for number, reason in (*answers['nvme0n1'], *answers['nvme0n2']):
            self.assertEqual(errno.EBUSY, number)
            self.assertIn(f'process {process.pid} (', reason)

    def test_it_is_wiped_and_read_and_opened_anew(self) -> None:
        self.fill()
        self.assertEqual(dict.fromkeys(('nvme0n1', 'nvme0n2'), [False] * 2), self.cleaned(BUSY_S))
        self.assertEqual(bytes(SIZE), self.content())
