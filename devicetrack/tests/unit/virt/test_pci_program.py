"""An operator's program that cleans PCI functions: what its answer proves, and what it leaves."""

from __future__ import annotations

import os
import signal
import stat
import sys

import fixtures

from devicetrack import exception
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.tests.unit.virt.pci_hosts import BRIDGE
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt.kinds import pci

# A process that was killed is given up soon.
SOON = 'supervisor._ENDS_IN_S = 0.1; '


class ProgramTestCase(pci_hosts.PCIHostTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host.add_shared_group(BRIDGE, '0000:07')
        self.address = '0000:07:01.0'
        self.said = os.path.join(self.state_path, 'said')
        self.program = os.path.join(self.useFixture(fixtures.TempDir(rootdir='/var/tmp')).path, 'clean')

    def kind_of(self, script: str, timeout_s: int = 60) -> pci.PCI:
        with open(self.program, 'w') as file:
            file.write(f'#!/bin/sh\n{script}\n')
        os.chmod(self.program, stat.S_IRWXU)
        return self.kind({'address': '*:07:*.*'}, cleaning={
            'policy': 'program', 'program': self.program, 'timeout_s': timeout_s})

    def test_that_proves_it(self) -> None:
        kind = self.kind_of(f'echo "$@" > {self.said}; env | grep DEVICETRACK_ | cut -d= -f1 | sort >> {self.said}\n'
                            'echo progress 50; echo clean $2 $DEVICETRACK_TOKEN')
        self.unclaim(kind, self.realized(kind, self.address))
        with open(self.said) as file:
            self.assertEqual([f'clean {self.address}', *(f'DEVICETRACK_{name}' for name in (
                'DRIVER', 'LOCK_FD', 'NAMESPACES', 'PRODUCT_ID', 'SERIAL', 'TIMEOUT_S', 'TOKEN', 'VENDOR_ID'))],
                file.read().splitlines())

    def test_that_proves_nothing(self) -> None:
        for script, reason in (
                ('echo clean $2', 'its last line is no proof'),
                ('echo clean $2 $DEVICETRACK_TOKEN; echo more', 'its last line is no proof'),
                ('echo clean $2 $DEVICETRACK_TOKEN; exit 3', 'ended with status 3'),
                ('echo clean $2 $DEVICETRACK_TOKEN; kill -9 $$', 'was ended by signal 9'),
                ('printf "a\\033[2Jb\\n\\nc" >&2; exit 1', 'ended with status 1: a [2Jb c')):
            kind = self.kind_of(script)
            error = self.assertRaises(exception.DriverError, self.unclaim, kind, self.realized(kind, self.address))
            self.assertIn(reason, str(error))
            self.assertLess(len(str(error)), 600)

    def test_that_cannot_now(self) -> None:
        kind = self.kind_of('echo its tool is busy; exit 75')
        error = self.assertRaises(exception.DeviceBusy, self.unclaim, kind, self.realized(kind, self.address))
        self.assertIn('its tool is busy', str(error))

    def test_that_does_not_end_is_killed_with_all_that_it_started(self) -> None:
        kind = self.kind_of(f'sleep 1000 & echo $! > {self.said}; wait', timeout_s=1)
        error = self.assertRaises(exception.CommandFailed, self.unclaim, kind, self.realized(kind, self.address))
        self.assertIn('did not end in 1 s, and was killed', str(error))
        with open(self.said) as file:
            child = file.read().strip()
        self.assertFalse(_runs(child))

    def test_what_it_leaves_is_killed(self) -> None:
        kind = self.kind_of(f'sleep 1000 & echo $! > {self.said}; echo clean $2 $DEVICETRACK_TOKEN')
        self.unclaim(kind, self.realized(kind, self.address))
        with open(self.said) as file:
            self.assertFalse(_runs(file.read().strip()))

    def test_what_it_leaves_in_a_session_of_its_own_is_killed(self) -> None:
        leaves = (f'setsid sh -c "echo \\$\\$ > {self.said}; exec sleep 1000" & '
                  f'while [ ! -s {self.said} ]; do sleep 0.05; done; ')
        for rest, limit_s in (('echo clean $2 $DEVICETRACK_TOKEN', 60), ('sleep 1000', 1)):
            kind = self.kind_of(leaves + rest, limit_s)
            assignment = self.realized(kind, self.address)
            if limit_s == 1:
                self.assertRaises(exception.CommandFailed, self.unclaim, kind, assignment)
            else:
                self.unclaim(kind, assignment)
            with open(self.said) as file:
                self.assertFalse(_runs(file.read().strip()))
            os.unlink(self.said)

    def supervise(self, change: str) -> None:
        """Let the supervisor run with another part."""
        start = (f'import sys; sys.path.insert(0, {jobs._PROJECT!r}); '
                 f'from devicetrack.virt.libvirt import supervisor, worker; {change}; '
                 'sys.exit(worker.main(sys.argv[1:]))')
        self.patch(jobs, 'command', lambda: (sys.executable, '-c', start))

    def test_without_the_right_proc_it_is_killed_and_what_it_leaves_is_left(self) -> None:
        none = SOON + 'supervisor.os.listdir = lambda path: 1 / 0; supervisor.os.readlink = '
        for change in (none + 'lambda path: "1"', none + 'lambda path: open("/proc/none")'):
            self.supervise(change)
            kind = self.kind_of(f'echo $$ > {self.said}; exec sleep 1000', timeout_s=1)
            error = self.assertRaises(exception.CommandFailed, self.unclaim, kind, self.realized(kind, self.address))
            self.assertIn('did not end in 1 s, and was killed', str(error))
            with open(self.said) as file:
                self.assertFalse(_runs(file.read().strip()))
            kind = self.kind_of('echo clean $2 $DEVICETRACK_TOKEN')
            self.unclaim(kind, self.realized(kind, self.address))
            kind = self.kind_of(f'sleep 1000 & echo $! > {self.said}; echo clean $2 $DEVICETRACK_TOKEN')
            error = self.assertRaises(exception.CommandFailed, self.unclaim, kind, self.realized(kind, self.address))
            with open(self.said) as file:
                os.kill(int(file.read()), signal.SIGKILL)
            self.assertIn('it left a process that has not ended, and /proc does not show which one', str(error))

    def test_one_that_has_ended_meanwhile_is_no_mistake(self) -> None:
        self.supervise('real = supervisor.os.kill; supervisor.os.kill = lambda *said: real(*said) or real(2**22, 9)')
        kind = self.kind_of('sleep 1000 & echo clean $2 $DEVICETRACK_TOKEN')
        self.unclaim(kind, self.realized(kind, self.address))

    def test_what_it_leaves_and_cannot_be_killed_is_named(self) -> None:
        self.supervise(SOON + 'supervisor.os.kill = lambda *arguments: None')
        kind = self.kind_of(f'sleep 1000 & echo $! > {self.said}; echo clean $2 $DEVICETRACK_TOKEN')
        error = self.assertRaises(exception.CommandFailed, self.unclaim, kind, self.realized(kind, self.address))
        with open(self.said) as file:
            left = file.read().strip()
        os.kill(int(left), signal.SIGKILL)
        self.assertIn(f'its process {left} was killed and has not ended', str(error))

    def test_that_prints_without_end(self) -> None:
        kind = self.kind_of('head -c 5000000 /dev/zero | tr "\\0" x; echo; echo clean $2 $DEVICETRACK_TOKEN')
        self.unclaim(kind, self.realized(kind, self.address))

    def test_that_is_not_there_or_not_safe(self) -> None:
        kind = self.kind_of('exit 0')
        assignment = self.realized(kind, self.address)
        os.chmod(self.program, 0o777)
        self.assertIn('users other than root can change', str(self.assertRaises(
            exception.CommandFailed, self.unclaim, kind, assignment)))
        os.unlink(self.program)
        self.assertIn('No such file', str(self.assertRaises(exception.CommandFailed, self.unclaim, kind, assignment)))


def _runs(pid: str) -> bool:
    try:
        with open(f'/proc/{pid}/stat') as file:
            return file.read().rpartition(')')[2].split()[0] not in 'ZX'
    except FileNotFoundError:
        return False
