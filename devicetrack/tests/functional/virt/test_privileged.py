"""The privileged daemon, forked by root and asked by a process that is not root any more."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

from devicetrack.tests import base

# As a service that starts as root does: fork the daemon, drop to another user, then ask. The device is a file that only
# root may open; what a dax device is, is checked by path and kind, so that check alone is replaced before the fork.
PROGRAM = textwrap.dedent("""
    import os, sys
    from oslo_config import cfg
    from oslo_privsep import priv_context
    from devicetrack.virt.libvirt import daemon, mdevctl, namespaces, privileged, root

    path, ndctl = sys.argv[1:]

    def open_it(asked):
        if asked != path:
            raise PermissionError(13, 'not the device')
        return os.open(asked, os.O_RDWR)

    root.open_dax = open_it
    root.VFIO = root.SYSFS = os.path.dirname(path)
    mdevctl.DIRECTORY = os.path.join(root.VFIO, 'definitions')
    cfg.CONF([], default_config_files=[], default_config_dirs=[])
    daemon.context.start(priv_context.Method.FORK)
    os.setgid(65534)
    os.setuid(65534)
    try:
        open(path, 'rb')
    except PermissionError:
        print('alone: refused')
    print('listed:', privileged.run_ndctl((ndctl, 'list')))
    try:
        privileged.run_ndctl((path + '/nosuch',))
    except OSError as error:
        print('no program:', type(error).__name__)
    try:
        privileged.open_dax('/etc/shadow')
    except OSError as error:
        print('another path:', type(error).__name__)
    fd = privileged.open_dax(path)
    print('inheritable:', os.get_inheritable(fd))
    os.pwrite(fd, b'written', 0)
    # The daemon ends when the service does; a child with the descriptor is not its child.
    print('read:', os.pread(fd, 7, 0))
    print('open:', privileged.is_vfio_group_open(7))
    try:
        privileged.is_vfio_group_open(8)
    except OSError as error:
        print('no group:', type(error).__name__)
    privileged.remove_lost_definitions()
    privileged.set_vgpu_type(root.SYSFS, '0000:3d:00.4', 558)
    for address in ('0000:3d:00.5', '../0000:3d:00.4'):
        try:
            privileged.set_vgpu_type(root.SYSFS, address, 558)
        except OSError as error:
            print('no function:', error.strerror)
    try:
        privileged.set_vgpu_type(root.SYSFS + '/', '0000:3d:00.4', 559)
    except OSError as error:
        print('another tree:', type(error).__name__)
""")


class PrivilegedTestCase(base.TestCase):

    def test_a_service_that_is_not_root_lists_and_opens_through_the_daemon(self) -> None:
        directory = self.temp_dir()
        os.chmod(directory, 0o755)
        path, ndctl = os.path.join(directory, 'secret'), os.path.join(directory, 'ndctl')
        with open(path, 'w') as file:
            file.write('tenants')
        os.chmod(path, 0o600)
        os.link(path, os.path.join(directory, '7'))
        definitions = os.path.join(directory, 'definitions', 'mtty')
        os.makedirs(definitions)
        for name, text, when in (('lost', '', 0), ('being written', '', time.time()), ('whole', '{}', 0)):
            with open(os.path.join(definitions, name), 'w') as file:
                file.write(text)
            os.utime(os.path.join(definitions, name), (when, when))
        function = os.path.join(directory, 'bus/pci/devices/0000:3d:00.4/nvidia')
        os.makedirs(function)
        with open(os.path.join(function, 'current_vgpu_type'), 'w', opener=lambda name, flags: os.open(
                name, flags, 0o600)) as file:
            file.write('0\n')
        with open(ndctl, 'w') as file:
            file.write('#!/bin/sh\nid -u; echo "$*"; exit 3\n')
        os.chmod(ndctl, 0o755)
        done = subprocess.run([sys.executable, '-W', 'ignore', '-c', PROGRAM, path, ndctl], capture_output=True,
                              text=True, timeout=base.HANGS_S, env={**os.environ, 'TMPDIR': '/tmp'}, check=False)
        self.assertEqual(
            ['alone: refused', "listed: (3, '0\\nlist\\n')", 'no program: NotADirectoryError',
             'another path: PermissionError', 'inheritable: False', "read: b'written'", 'open: False',
             'no group: FileNotFoundError', 'no function: No such file or directory', 'no function: not a PCI address',
             'another tree: PermissionError'],
            done.stdout.splitlines(), done.stderr)
        with open(os.path.join(function, 'current_vgpu_type')) as file:
            self.assertEqual('558\n', file.read())
        with open(path) as file:
            self.assertEqual('written', file.read())
        self.assertEqual({'being written', 'whole'}, set(os.listdir(definitions)))
