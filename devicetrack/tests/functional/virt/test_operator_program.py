"""An operator's program, whose service is killed while it cleans a device."""

from __future__ import annotations

from collections.abc import Callable
import os
import stat
import textwrap
import time

import fixtures

from devicetrack import filelock
from devicetrack.tests import base
from devicetrack.tests import processes

# What a service does: it has the lock of a device, and waits for the program.
SERVICE = textwrap.dedent("""
    import sys
    from devicetrack import filelock
    from devicetrack.virt.libvirt import operator_program

    lock = filelock.FileLock(sys.argv[1])
    lock.acquire(0)
    operator_program.clean(sys.argv[2], '0000:81:00.0', {}, lock.fd, int(sys.argv[3]))
""")


class KilledServiceTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        # A program that root runs is where nobody else can put another one.
        self.directory = self.useFixture(fixtures.TempDir(rootdir='/var/tmp')).path
        self.lock = os.path.join(self.directory, 'lock')

    def service(self, script: str, limit_s: int) -> None:
        """Start a service that runs the program, and kill it when the program runs."""
        path = os.path.join(self.directory, 'clean')
        with open(path, 'w') as file:
            file.write(f'#!/bin/sh\ntouch {self.directory}/began\n{script}\n')
        os.chmod(path, stat.S_IRWXU)
        service = processes.Process('-c', SERVICE, self.lock, path, str(limit_s))
        self.addCleanup(service.communicate)
        self.wait_for(lambda: os.path.exists(os.path.join(self.directory, 'began')))
        service.kill()
        service.wait()

    def wait_for(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + base.HANGS_S
        while not happened():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def is_locked(self) -> bool:
        lock = filelock.FileLock(self.lock)
        try:
            lock.acquire(0)
        except filelock.FileLocked:
            return True
        lock.unlock()
        return False

    def test_the_program_goes_on_with_the_lock(self) -> None:
        self.service(f'while [ ! -e {self.directory}/go ]; do sleep 0.05; done; echo; touch {self.directory}/done', 600)
        self.assertTrue(self.is_locked())
        self.assertFalse(os.path.exists(os.path.join(self.directory, 'done')))
        with open(os.path.join(self.directory, 'go'), 'w'):
            pass
        self.wait_for(lambda: not self.is_locked())
        self.assertTrue(os.path.exists(os.path.join(self.directory, 'done')))

    def test_its_time_is_limited_all_the_same(self) -> None:
        self.service('sleep 1000', 2)
        self.assertTrue(self.is_locked())
        self.wait_for(lambda: not self.is_locked())
