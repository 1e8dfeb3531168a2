"""What the functions that need root refuse."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import Any

from devicetrack import exception
from devicetrack.tests import base
from devicetrack.virt.libvirt import children
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root

UUID = '3f4f6c1e-0000-4000-8000-000000000001'


class MdevTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        directory = self.temp_dir()
        self.device = os.path.join(directory, 'bus/mdev/devices', UUID)
        os.makedirs(self.device)
        os.symlink('../../iommu_groups/7', os.path.join(self.device, 'iommu_group'))
        self.remove = os.path.join(self.device, 'remove')
        self.definition = os.path.join(directory, 'definitions', 'mtty', UUID)
        os.makedirs(os.path.dirname(self.definition))
        for path in (self.remove, self.definition, os.path.join(directory, '7')):
            open(path, 'w').close()
        self.patch(root, 'SYSFS', directory)
        self.patch(root, 'VFIO', directory)
        self.patch(mdevctl, 'DIRECTORY', os.path.join(directory, 'definitions'))

    def test_the_kernel_is_told_to_remove_it(self) -> None:
        privileged.remove_mdev(UUID)
        with open(self.remove) as file:
            self.assertEqual('1\n', file.read())

    def test_one_that_is_open_is_not_removed(self) -> None:
        self.patch(privileged, 'is_group_open', lambda _number, _sysfs=None: True)
        error = self.assertRaises(OSError, privileged.remove_mdev, UUID)
        self.assertEqual((errno.EBUSY, 0), (error.errno, os.path.getsize(self.remove)))

    def test_the_definition_of_one_that_is_there_stays(self) -> None:
        error = self.assertRaises(OSError, privileged.remove_mdev_definition, 'mtty', UUID)
        self.assertEqual((errno.EBUSY, True), (error.errno, os.path.exists(self.definition)))
        os.rename(self.device, self.device + '-gone')
        privileged.remove_mdev_definition('mtty', UUID)
        self.assertFalse(os.path.exists(self.definition))

    def test_a_broken_definition_stays_while_nobody_can_tell_who_writes_it(self) -> None:
        self.patch(device_users, '_OF_HOST', 0)         # a container with a PID namespace of its own
        self.assertEqual([self.definition], list(mdevctl.broken()))
        self.assertEqual([], mdevctl.lost())
        privileged.remove_lost_definitions()
        self.assertTrue(os.path.exists(self.definition))

    def test_empty_files_that_are_no_definitions_stay(self) -> None:
        self.patch(device_users, 'sees_host', lambda: True)     # the tests may run in a container
        parent, scripts = os.path.dirname(self.definition), os.path.join(mdevctl.DIRECTORY, 'scripts.d')
        os.makedirs(scripts)
        others = [os.path.join(parent, name) for name in ('README', f'{UUID}.bak', f'{UUID}\n', UUID.replace('-', ''))]
        for path in (*others, os.path.join(scripts, '.gitkeep')):
            open(path, 'w').close()
        self.assertEqual([self.definition], mdevctl.lost())
        privileged.remove_lost_definitions()
        self.assertEqual((sorted(map(os.path.basename, others)), ['.gitkeep']),
                         (sorted(os.listdir(parent)), os.listdir(scripts)))


class ProgramTestCase(base.TestCase):
    """Root runs no program that somebody else can change."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = self.temp_dir()
        self.inner = os.path.join(self.directory, 'inner')
        os.mkdir(self.inner, 0o755)
        self.program = os.path.join(self.inner, 'ndctl')
        with open(self.program, 'w') as file:
            file.write('#!/bin/sh\necho "$0" "$1"\n')
        os.chmod(self.program, 0o755)

    def refused(self, path: str, reason: str) -> None:
        error = self.assertRaises(OSError, privileged.run_ndctl, path)
        self.assertIn(reason, str(error.strerror))

    def test_one_of_root_runs(self) -> None:
        self.assertEqual((0, f'{self.program} list\n'), privileged.run_ndctl(self.program))

    def test_a_link_to_one_of_root_runs_what_it_leads_to(self) -> None:
        link = os.path.join(self.directory, 'link')
        os.symlink(self.program, link)
        self.assertEqual((0, f'{self.program} list\n'), privileged.run_ndctl(link))

    def test_one_that_does_not_die_is_not_waited_for(self) -> None:
        """As one that the kernel blocks: it ends when the call into the kernel has returned."""
        with open(self.program, 'w') as file:
            file.write('#!/bin/sh\nexec sleep 600\n')
        blocked: list[Any] = []
        kill = subprocess.Popen.kill
        self.patch(children, '_KILLED_S', 0.1)
        self.patch(subprocess.Popen, 'kill', lambda child: blocked.append(child))
        error = self.assertRaises(exception.CommandFailed, privileged.run_ndctl, self.program, 1)
        self.assertIn('did not end in 1 s', str(error))
        # A service may ask such a program again and again.
        self.assertEqual([True] * 3, [pipe.closed for pipe in (blocked[0].stdin, blocked[0].stdout, blocked[0].stderr)])
        kill(blocked[0])
        blocked[0].wait()

    def test_one_that_others_can_write_is_refused(self) -> None:
        for path in (self.program, self.inner):
            for mode in (0o775, 0o757):
                os.chmod(path, mode)
                self.refused(self.program, f'users other than root can change {path}')
            os.chmod(path, 0o755)

    def test_one_of_another_owner_is_refused(self) -> None:
        for path in (self.program, self.inner):
            os.chown(path, 65534, -1)
            self.refused(self.program, f'users other than root can change {path}')
            os.chown(path, 0, -1)

    def test_a_name_a_directory_and_nothing_are_refused(self) -> None:
        self.refused('ndctl', 'not an absolute path')
        self.refused(self.inner, 'not a regular file')
        self.refused('/nosuch/ndctl', 'No such file')
