"""Where tests keep what nobody needs after them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import types

from devicetrack.testing import scratch
from devicetrack.tests import base


class DirectoryTestCase(base.TestCase):

    def test_what_has_to_last_goes_to_the_disk(self) -> None:
        self.assertEqual(scratch.DISK, scratch.directory(durable=True))

    def test_memory_without_room_is_left_alone(self) -> None:
        self.patch(os, 'statvfs', lambda _path: types.SimpleNamespace(f_bavail=64 << 8, f_frsize=4096))
        self.assertEqual(scratch.DISK, scratch.directory())

    def test_what_a_dead_process_left_is_removed_and_nothing_else(self) -> None:
        dead = subprocess.Popen(['true'])
        dead.wait()
        parent = self.temp_dir()
        self.patch(scratch, 'directory', lambda _durable: parent)
        for name in (f'devicetrack-{dead.pid}-SQLite-x', f'devicetrack-{os.getpid()}-SQLite-x', 'devicetrack-y', 'z'):
            os.mkdir(os.path.join(parent, name))
        made = scratch.make('crash')
        self.assertTrue(os.path.basename(made).startswith(f'devicetrack-{os.getpid()}-crash-'))
        self.assertEqual({os.path.basename(made), f'devicetrack-{os.getpid()}-SQLite-x', 'devicetrack-y', 'z'},
                         set(os.listdir(parent)))

    def test_what_a_process_that_cannot_be_seen_has_locked_stays(self) -> None:
        dead = subprocess.Popen(['true'])
        dead.wait()
        parent = self.temp_dir()
        self.patch(scratch, 'directory', lambda _durable: parent)
        of_another = os.path.join(parent, f'devicetrack-{dead.pid}-SQLite-x')
        os.mkdir(of_another)
        locked = os.open(of_another, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, locked)
        fcntl.flock(locked, fcntl.LOCK_EX)
        scratch.make('crash')
        self.assertIn(os.path.basename(of_another), os.listdir(parent))
