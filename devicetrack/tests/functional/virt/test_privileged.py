"""The privileged daemon, forked by root and asked by a process that is not root any more."""

from __future__ import annotations

from collections.abc import Sequence
import importlib
import json
import os
import pathlib
import pkgutil
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from typing import Any
import uuid

import oslo_privsep

from devicetrack.tests import base
from devicetrack.virt import libvirt
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root

# Whoever adds one also adds what a hostile caller may ask it for, below.
OFFERED = {
    'privileged': ('is_dax_locked', 'is_vfio_group_open', 'open_dax', 'open_daxes', 'remove_lost_definitions',
                   'release', 'remove_mdev', 'remove_mdev_definition', 'run_configured_ndctl'),
    'pci_privileged': ('check_host_use', 'probe', 'read_serial', 'reset', 'set_driver_override', 'set_vfs',
                       'set_vgpu_type', 'unbind'),
    'disk_nodes': ('open_disk',),
    'nvme_controllers': ('attach', 'bring_online', 'create_namespace', 'delete_namespace', 'format_in_daemon',
                         'read_controller', 'read_namespaces', 'read_subsystem', 'sanitize_status', 'start_sanitize'),
    'vf_ports': ('set_port',),
}

# As a service that starts as root does: fork the daemon, drop to another user, then ask. The host's directories are
# others, with a device of the kernel's that nobody has open in place of a namespace.
SERVICE = textwrap.dedent("""
    import fcntl, json, os, socket, sys
    from oslo_config import cfg
    from oslo_privsep import comm, priv_context
    from devicetrack.conf import libvirt as options
    from devicetrack.virt.libvirt import daemon, mdevctl, nvme_controllers, pci_privileged, privileged, root

    directory = sys.argv[1]
    root.VFIO = root.SYSFS = root.DEVICES = directory
    mdevctl.DIRECTORY = os.path.join(directory, 'definitions')
    cfg.CONF([], default_config_files=[], default_config_dirs=[])
    options.register(cfg.CONF)
    cfg.CONF.set_override('ndctl_command', os.path.join(directory, 'ndctl'), 'devicetrack_vpmem')
    daemon.context.start(priv_context.Method.FORK)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

    def ask(name, *arguments):
        # As somebody who has the service's rights can: past the checks of its own process.
        return daemon.context.channel.remote_call(name, arguments, {}, None)

    def of_daemon(name, *arguments):
        return ask(f'devicetrack.virt.libvirt.{name if "." in name else "privileged." + name}', *arguments)

    def told(function, *arguments):
        try:
            return function(*arguments)
        except Exception as error:
            return f'{type(error).__name__}: {getattr(error, "strerror", None) or error}'

    def listener(path):
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.bind(path)
        found.listen(1)
        return found

    def device(name):
        return os.path.join(directory, name)

    said = {}
""")

USES = SERVICE + textwrap.dedent("""
    try:
        open(device('dax0.0'), 'rb')
    except PermissionError:
        said['alone'] = 'refused'
    said['listed'] = privileged.run_ndctl('/bin/false')
    fd = privileged.open_dax(device('dax0.0'), 4096)
    said['opened'] = [os.fstat(fd).st_rdev == os.makedev(1, 7), os.get_inheritable(fd), os.pread(fd, 2, 0).hex()]
    said['locked'] = told(privileged.open_dax, device('dax0.0'), 4096), privileged.is_dax_locked(device('dax0.0'))
    fcntl.flock(fd, fcntl.LOCK_UN)
    said['unlocked'] = privileged.is_dax_locked(device('dax0.0'))
    said['busy'] = told(privileged.open_dax, device('dax0.0'), 4096).replace(str(os.getpid()), 'PID')
    os.close(fd)
    said['open'] = privileged.is_vfio_group_open(7)
    said['no group'] = told(privileged.is_vfio_group_open, 8)
    privileged.remove_lost_definitions()
    pci_privileged.set_vgpu_type(root.SYSFS, '0000:3d:00.4', 558)
    said['no function'] = told(pci_privileged.set_vgpu_type, root.SYSFS, '0000:3d:00.5', 558)
    function = '0000:3d:00.4'
    pci_privileged.set_driver_override(root.SYSFS, function, 'vfio-pci')
    # The mounts of this machine, by numbers of which the made sysfs has none.
    pci_privileged.unbind(root.SYSFS, function)
    pci_privileged.probe(root.SYSFS, function)
    pci_privileged.reset(root.SYSFS, function, None)
    pci_privileged.set_vfs(root.SYSFS, function, 2)
    said['serial'] = pci_privileged.read_serial(root.SYSFS, function)
    said['no controller'] = told(nvme_controllers.read_controller, root.SYSFS, function)
    said['no such function'] = told(pci_privileged.probe, root.SYSFS, '0000:3d:00.5')
    said['its own tree'] = told(pci_privileged.set_driver_override, root.SYSFS + '/', function, None)
    said['another tree'] = told(pci_privileged.set_vgpu_type, root.SYSFS + '/', '0000:3d:00.4', 559)
    print(json.dumps(said))
""")

HOSTILE = SERVICE + textwrap.dedent("""
    shell = ['/bin/sh', '-c', f'id > {directory}/escaped']
    said['no such function'] = [told(ask, name, *arguments) for name, arguments in (
        ('os.system', (' '.join(shell),)), ('subprocess.run', (shell,)),
        ('devicetrack.virt.libvirt.privileged.run_ndctl', ('/bin/sh',)),
        ('devicetrack.virt.libvirt.daemon.root.set_vgpu_type', (directory, '0000:3d:00.4', 1)),
        ('devicetrack.virt.libvirt.daemon._give_up_for_good', ()))]
    said['ndctl'] = [told(of_daemon, 'run_configured_ndctl', *arguments)
                     for arguments in ((shell,), ('/bin/sh',), ([],))]
    said['definitions'] = [told(of_daemon, 'remove_lost_definitions', '/etc')]
    said['group'] = [told(of_daemon, 'is_vfio_group_open', number)
                     for number in ('7', '../secret', -1, True, None, 7.0, 2**31, [7])]
    said['type'] = [told(of_daemon, 'pci_privileged.set_vgpu_type', *arguments) for arguments in (
        ('../0000:3d:00.4', 1), ('0000:3d:00.4/../0000:3d:00.4', 1), ('0000:3d:00.4' + chr(10), 1), (None, 1),
        ('0000:3d:00.4', '1'), ('0000:3d:00.4', -1), ('0000:3d:00.4', 2**40), ('0000:3d:00.4', True),
        ('/tmp', '0000:3d:00.4', 1))]
    nvme = {'read_controller': (), 'read_namespaces': (), 'sanitize_status': (), 'start_sanitize': ([], 2),
            'format_in_daemon': ([], 1, [0, False, 0, False], 1, 60), 'read_subsystem': (), 'bring_online': (),
            'attach': ([], 1, True), 'delete_namespace': ([], 1),
            'create_namespace': ([], 1, 8, [0, False, 0, False], False)}
    pci = {'set_driver_override': ('vfio-pci',), 'unbind': (), 'probe': (), 'reset': (None,),
           'set_vfs': (1, None, 60), 'read_serial': (), 'check_host_use': ()}
    pci = {**{f'pci_privileged.{name}': arguments for name, arguments in pci.items()},
           'vf_ports.set_port': ('52:54:00:aa:bb:01', 41, True),
           **{f'nvme_controllers.{name}': arguments for name, arguments in nvme.items()}}
    said['pci'] = [told(of_daemon, name, address, *arguments) for name, arguments in pci.items() for address in (
        '../0000:3d:00.4', '0000:3d:00.4/../0000:3d:00.4', '0000:3d:00.4' + chr(10), '', None, 7)]
    said['another tree'] = [told(of_daemon, name, '/tmp', '0000:3d:00.4', *arguments)
                            for name, arguments in pci.items()]
    said['driver'] = [told(of_daemon, 'pci_privileged.set_driver_override', '0000:3d:00.4', driver)
                      for driver in ('', '../nvme', 'vfio-pci' + chr(10) + 'x')]
    said['method'] = [told(of_daemon, 'pci_privileged.reset', '0000:3d:00.4', method)
                      for method in ('', 'flr bus', '../x')]
    said['vfs'] = [told(of_daemon, 'pci_privileged.set_vfs', '0000:3d:00.4', *arguments) for arguments in (
        (0, None), (-1, None), (2**16, None), (True, None), ('1', None), (None, None), (1, 'yes'), (1, 1))]
    mac = '52:54:00:aa:bb:01'
    said['port'] = [told(of_daemon, 'vf_ports.set_port', '0000:3d:00.4', *arguments).split(': ')[:2]
                     for arguments in (
        ('', 0, False), (None, 0, False), (mac, 4095, False), (mac, -1, False), (mac, True, False), (mac, '1', False),
        (mac, 0, 1), (mac, 0, False))]
    form = [0, False, 0, False]
    said['format'] = [told(of_daemon, 'nvme_controllers.format_in_daemon', '0000:3d:00.4', [], *arguments)
                     for arguments in (
        (0, form, 1, 60), (-1, form, 1, 60), (True, form, 1, 60), ('1', form, 1, 60), (2**32 - 1, form, 1, 60),
        (1, [64, False, 0, False], 1, 60), (1, [0, 0, 0, 0], 1, 60), (1, [0, False, 8, False], 1, 60), (1, [], 1, 60),
        (1, form, -1, 60), (1, form, 3, 60), (1, form, 1, 0), (1, form, 1, 2**31), (1, form, 1, '60'))]
    said['created'] = [told(of_daemon, 'nvme_controllers.create_namespace', '0000:3d:00.4', [], *arguments)
                     for arguments in (
        (0, 8, form, False), ('1', 8, form, False), (1, 0, form, False), (1, -1, form, False), (1, 2**63, form, False),
        (1, True, form, False), (1, '8', form, False), (1, 8, [64, False, 0, False], False), (1, 8, [], False),
        (1, 8, form, 1), (1, 8, form, None))]
    said['sanitize'] = [told(of_daemon, 'nvme_controllers.start_sanitize', '0000:3d:00.4', [], action)
                        for action in (0, 1, 5, '2', None)]
    said['other disks'] = [told(of_daemon, 'nvme_controllers.start_sanitize', '0000:3d:00.4', disks, 2)
                           for disks in ([], [['nvme0n1', 4096]])]
    said['out of it'] = [told(of_daemon, name, '0000:3d:00.6', *arguments) for name, arguments in pci.items()]
    one = '3f4f6c1e-0000-4000-8000-000000000001'
    said['mdev'] = [told(of_daemon, 'remove_mdev', uuid) for uuid in (
        '../secret', one + chr(10), one.upper().replace('0', 'G'), None, 7, one + '/..', '')]
    said['definition'] = [told(of_daemon, 'remove_mdev_definition', parent, uuid) for parent, uuid in (
        ('..', one), ('a/b', one), ('', one), (None, one), ('mtty', '../../secret'), ('mtty', one), ('mtty', 'whole'))]
    home = os.path.join(directory, 'home')
    mine = os.path.join(home, 'devicetrack-mine')
    os.mkdir(mine, 0o700)
    ours = listener(os.path.join(mine, 'fd'))
    address = ours.getsockname()
    said['device'] = [told(of_daemon, 'open_dax', path, size, address) for path, size in (
        ('/etc/shadow', 4096), ('/dev/mem', 4096), (device('secret'), 7), (device('dax0.0') + chr(10), 4096),
        (device('../') + os.path.basename(directory) + '/dax0.0', 4096), (None, 4096), (b'/dev/mem', 4096),
        (device('dax1.0'), 7), (device('dax2.0'), 7), (device('dax3.0'), 4096), (device('dax4.0'), 4096),
        (device('dax0.0'), 8192), (device('dax0.0'), None))]
    said['disks'] = [told(of_daemon, 'disk_nodes.open_disk', '0000:3d:00.4', name, 4096, True, address)
                     for name in ('../secret', 'secret', 'nvme0n1/../secret', 'nvme0n1')]
    said['lock'] = [told(of_daemon, 'is_dax_locked', path) for path in (
        '/etc/shadow', '/dev/mem', device('secret'), device('dax0.0') + chr(10), device('dax1.0'), device('dax2.0'),
        None)]
    os.mkdir(os.path.join(home, 'devicetrack-open'), 0o700)
    os.chmod(os.path.join(home, 'devicetrack-open'), 0o777)
    opened = listener(os.path.join(home, 'devicetrack-open', 'fd'))
    other = listener(os.path.join(mine, 'other'))
    os.mkdir(os.path.join(home, 'devicetrack-link'), 0o700)
    os.symlink(os.path.join(directory, 'devicetrack-root', 'fd'), os.path.join(home, 'devicetrack-link', 'fd'))
    said['socket'] = [told(of_daemon, 'open_dax', device('dax0.0'), 4096, to) for to in (
        os.path.join(directory, 'devicetrack-root', 'fd'), opened.getsockname(), other.getsockname(),
        os.path.join(home, 'devicetrack-link', 'fd'), os.path.join(mine, '..', 'devicetrack-mine', 'fd'),
        address[1:], '/run/dbus/system_bus_socket', chr(0) + 'abstract', None, 7)]
    for one in (ours, opened, other):
        one.setblocking(False)
    said['came'] = [told(one.accept) for one in (ours, opened, other)]
    print(json.dumps(said))
""")

WITHOUT_SETPCAP = SERVICE.replace('daemon.context.start', """
cfg.CONF.set_override('capabilities', [1, 19], 'devicetrack_privileged')
daemon.context.start""") + textwrap.dedent("""
    print(json.dumps([told(privileged.run_ndctl, '/bin/true'), told(privileged.is_vfio_group_open, 7)]))
""")

WITHOUT_HELPER = SERVICE.replace('daemon.context.start(priv_context.Method.FORK)', """
cfg.CONF.set_override('helper_command', '/none/sudo privsep-helper', 'devicetrack_privileged')
""") + textwrap.dedent("""
    print(json.dumps(told(privileged.is_vfio_group_open, 7)))
""")


FAILING_HELPER = SERVICE.replace('daemon.context.start(priv_context.Method.FORK)', """
cfg.CONF.set_override('helper_command', sys.argv[2], 'devicetrack_privileged')
""") + textwrap.dedent("""
    print(os.linesep + json.dumps(told(privileged.check_rights)))
""")

OTHER_RELEASE = SERVICE.replace('daemon.context.start', """
from importlib import metadata
ours = metadata.version('devicetrack')
metadata.version = lambda name: '0.0.1'
daemon.context.start""") + textwrap.dedent("""
    metadata.version = lambda name: ours
    print(json.dumps(told(privileged.check_rights)))
""")


KEPT = SERVICE.replace('daemon.context.start', """
if sys.argv[2:]:
    cfg.CONF.set_override('capabilities', [1, 8, 12, 13, 19, 21], 'devicetrack_privileged')
daemon.context.start""") + textwrap.dedent("""
    privileged.is_dax_locked(device('dax0.0'))
    [children] = {open(f'/proc/self/task/{task}/children').read() for task in os.listdir('/proc/self/task')} - {''}
    with open(f'/proc/{children.split()[0]}/status') as file:
        print(json.dumps([line.split()[1] for line in file if line.startswith('CapEff')]))
""")


FORMATS = SERVICE.replace('daemon.context.start', """
import threading, time
from devicetrack.virt.libvirt import nvme_admin, nvme_controllers
def format_namespace(sysfs, address, *arguments):
    open(os.path.join(directory, f'begun {address}'), 'w').close()
    while not os.path.exists(os.path.join(directory, 'home', f'ended {address}')):
        time.sleep(0.01)
nvme_controllers.format_here = format_namespace
cfg.CONF.set_override('thread_pool_size', 3, 'devicetrack_privileged')
daemon.context.start""") + textwrap.dedent("""
    def begun():
        return sorted(name[6:] for name in os.listdir(directory) if name.startswith('begun'))

    def wait_for(number):
        while len(begun()) < number:
            time.sleep(0.01)

    formats = {address: threading.Thread(target=nvme_controllers.format_namespace, args=(
        root.SYSFS, address, [], 1, nvme_admin.Format(0), 1, 60, -1)) for address in ('one', 'two', 'three')}
    for number, address in enumerate(('one', 'two'), 1):
        formats[address].start()
        wait_for(number)
    said['while two run'] = told(privileged.is_vfio_group_open, 7), begun()
    said['one more'] = told(nvme_controllers.format_namespace, root.SYSFS, 'four', [], 1, nvme_admin.Format(0), 1, 60,
                            -1)
    for address in formats:
        open(os.path.join(directory, 'home', f'ended {address}'), 'w').close()
    formats['one'].join()
    formats['three'].start()
    for thread in formats.values():
        thread.join()
    said['then'] = begun()
    print(json.dumps(said))
""")

REFUSES = SERVICE.replace('daemon.context.start', """
from devicetrack.virt.libvirt import nvme_admin, nvme_controllers
def to_erase(sysfs, address, disks):
    raise nvme_admin.CommandRefused('Sanitize', 1)
nvme_controllers.to_erase = to_erase
daemon.context.start""") + textwrap.dedent("""
    print(json.dumps(told(nvme_controllers.start_sanitize, root.SYSFS, '0000:3d:00.4', [], 2)))
""")


class PrivilegedTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        # Device nodes do not work in /dev/shm, and the service must be able to enter.
        self.directory = tempfile.mkdtemp(dir='/tmp')
        self.addCleanup(shutil.rmtree, self.directory)
        os.chmod(self.directory, 0o755)
        self.write('secret', 'tenants', 0o600)
        self.write('7', 'a group', 0o600)
        # It is in no namespace, and the kernel's driver of /dev/full neither keeps nor waits for anything.
        self.have_full_device()
        self.device('dax0.0', 7, 'dax')
        os.symlink('secret', self.path('dax1.0'))
        self.write('dax2.0', 'tenants', 0o600)
        self.device('dax3.0', 5, 'mem')
        os.mknod(self.path('dax4.0'), 0o600 | 0o020000, os.makedev(1, 7))       # another node of the first device
        self.write('ndctl', '#!/bin/sh\nid -u; echo "$*"; wc -c < /proc/$$/environ; pwd; umask\n'
                            'grep -E "^(Cap|NoNewPrivs)" /proc/self/status; exit 3\n', 0o755)
        os.mkdir(self.path('devicetrack-root'), 0o700)
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(self.path('devicetrack-root/fd'))
        os.makedirs(self.path('bus/pci/devices/0000:3d:00.4/nvidia'))
        self.write('bus/pci/devices/0000:3d:00.4/nvidia/current_vgpu_type', '0\n', 0o600)
        for name in ('driver_override', 'sriov_numvfs', 'sriov_drivers_autoprobe', 'reset', 'config'):
            self.write(f'bus/pci/devices/0000:3d:00.4/{name}', '', 0o600)
        self.write('bus/pci/devices/0000:3d:00.4/class', '0x020000\n', 0o600)
        self.write('bus/pci/devices/0000:3d:00.4/config', '\x36\x1b', 0o600)
        self.write('bus/pci/devices/0000:3d:00.4/vpd', '\x10\x05\x00SN\x0275\x78', 0o600)
        with open(self.path('bus/pci/devices/0000:3d:00.4/vpd'), 'r+b') as file:
            file.write(b'\x90')
        self.write('bus/pci/drivers/nvme/unbind', '', 0o600)
        self.write('bus/pci/drivers_probe', '', 0o600)
        os.symlink('../../drivers/nvme', self.path('bus/pci/devices/0000:3d:00.4/driver'))
        outside = tempfile.mkdtemp(dir='/tmp')
        self.addCleanup(shutil.rmtree, outside)
        os.symlink(outside, self.path('bus/pci/devices/0000:3d:00.6'))
        os.mkdir(self.path('home'), 0o755)
        os.chown(self.path('home'), 65534, 65534)

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def write(self, name: str, text: str, mode: int) -> None:
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), 'w') as file:
            file.write(text)
        os.chmod(self.path(name), mode)

    def read(self, name: str) -> str:
        with open(self.path(name)) as file:
            return file.read()

    def device(self, name: str, minor: int, subsystem: str) -> None:
        """Make a device node and its directory in sysfs, as the kernel makes them for a namespace of 4096 bytes."""
        os.mknod(self.path(name), 0o600 | 0o020000, os.makedev(1, minor))
        self.write(f'devices/{name}/size', '4096\n', 0o644)
        os.symlink(f'/sys/bus/{subsystem}', self.path(f'devices/{name}/subsystem'))
        os.makedirs(self.path('dev/char'), exist_ok=True)
        os.symlink(f'../../devices/{name}', self.path(f'dev/char/1:{minor}'))

    def run_service(self, program: str, *arguments: str, within: Sequence[str] = ()) -> Any:
        done = subprocess.run(
            [*within, sys.executable, '-W', 'ignore', '-c', program, self.directory, *arguments],
            capture_output=True, text=True, timeout=base.HANGS_S,
            env={**os.environ, 'TMPDIR': '/tmp', 'PMEM_NO_FLUSH': '1'}, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])     # a helper writes there too

    def test_a_service_that_is_not_root_lists_and_opens_through_the_daemon(self) -> None:
        lost, written, whole = (str(uuid.uuid4()) for _definition in range(3))
        for name, text in ((lost, ''), (written, ''), (whole, '{}'), ('no definition', '')):
            self.write(f'definitions/mtty/{name}', text, 0o644)
        self.addCleanup(open(self.path(f'definitions/mtty/{written}'), 'a').close)      # as mdevctl has it
        said = self.run_service(USES)
        status, printed = said.pop('listed')
        self.assertEqual((3, ['0', 'list --namespaces --regions --device-dax --configured --verbose', '0', '/', '0077',
                              *(f'{name}:\t{0:016x}' for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')),
                              'NoNewPrivs:\t1']), (status, printed.splitlines()))
        self.assertEqual(
            {'alone': 'refused', 'opened': [True, False, '0000'], 'busy': 'OSError: open in process PID',
             'locked': ['BlockingIOError: somebody else holds its lock', True], 'unlocked': False,
             'open': False, 'no group': 'FileNotFoundError: No such file or directory',
             'no function': 'FileNotFoundError: No such file or directory',
             'no controller': 'OSError: 0000:3d:00.4 has no NVMe controller now',
             'serial': '75', 'no such function': 'FileNotFoundError: No such file or directory',
             'its own tree': 'PermissionError: Permission denied',
             'another tree': 'PermissionError: Permission denied'}, said)
        self.assertEqual(['vfio-pci\n', '0000:3d:00.4', '0000:3d:00.4', '1\n', '2\n'], [
            self.read(f'bus/pci/{name}') for name in (
                'devices/0000:3d:00.4/driver_override', 'drivers/nvme/unbind', 'drivers_probe',
                'devices/0000:3d:00.4/reset', 'devices/0000:3d:00.4/sriov_numvfs')])
        self.assertEqual('558\n', self.read('bus/pci/devices/0000:3d:00.4/nvidia/current_vgpu_type'))
        # In a container nobody sees who writes an empty definition, so it stays.
        left = {written, whole, 'no definition'} | (set() if device_users.sees_host() else {lost})
        self.assertEqual(left, set(os.listdir(self.path('definitions/mtty'))))

    def test_formats_leave_the_daemon_a_thread_for_everything_else(self) -> None:
        said = self.run_service(FORMATS)
        self.assertEqual([False, ['one', 'two']], said['while two run'])
        self.assertEqual('OSError: 2 formats run already, and other requests need a thread', said['one more'])
        self.assertEqual(['one', 'three', 'two'], said['then'])

    def test_what_a_controller_refuses_is_told_through_the_daemon(self) -> None:
        self.assertEqual('CommandRefused: the controller refused Sanitize with status 0x001 (invalid opcode)',
                         self.run_service(REFUSES))

    def test_the_daemon_offers_these_functions_and_no_others(self) -> None:
        everything = {importlib.import_module(f'devicetrack.virt.libvirt.{one.name}')
                      for one in pkgutil.iter_modules(libvirt.__path__)}
        self.assertIn(privileged, everything)
        offered = [of.__module__.rpartition('.')[2] + '.' + of.__name__ for of in root.ENTRY_POINTS]
        self.assertEqual(sorted(f'{module}.{name}' for module, names in OFFERED.items() for name in names),
                         sorted(offered))

    def test_the_daemon_refuses_whatever_else_a_caller_asks_it_for(self) -> None:
        said = self.run_service(HOSTILE)
        invalid = 'OSError: not a number'
        no_device = 'OSError: not the path of a dax device'
        self.assertEqual([f'NameError: Invalid privsep function: {name} not exported' for name in (
            'os.system', 'subprocess.run', 'devicetrack.virt.libvirt.privileged.run_ndctl')],
            said['no such function'][:3])
        self.assertEqual(['ModuleNotFoundError', 'NameError'],
                         [text.partition(':')[0] for text in said['no such function'][3:]])
        self.assertEqual({'TypeError'}, {text.partition(':')[0] for text in said['ndctl'] + said['definitions']})
        self.assertEqual([invalid] * 8, said['group'])
        self.assertEqual(['OSError: not a PCI address'] * 3, said['type'][:3])
        self.assertEqual([invalid] * 4, said['type'][4:8])
        self.assertEqual(['TypeError'] * 2, [said['type'][number].partition(':')[0] for number in (3, 8)])
        self.assertEqual((['OSError: not a PCI address'] * 4 + ['TypeError: expected string or bytes-like object, got '
                                                                + repr(one) for one in ('NoneType', 'int')]) * 18,
                         said['pci'])
        self.assertEqual({'TypeError'}, {text.partition(':')[0] for text in said['another tree']})
        self.assertEqual((['OSError: not the name of a driver'] * 3, ['OSError: not the name of a reset method'] * 3,
                          ['OSError: not a number of virtual functions'] * 6 + ['OSError: neither yes nor no'] * 2),
                         (said['driver'], said['method'], said['vfs']))
        self.assertEqual([['OSError', text] for text in (
            "'' is not a MAC address", 'None is not a MAC address', '4095 is not a VLAN', '-1 is not a VLAN',
            'True is not a VLAN', "'1' is not a VLAN", 'trusted is 1', '0000:3d:00.4 is not a virtual function')],
                         said['port'])
        self.assertEqual([True] * 18, ['leads out of' in text for text in said['out of it']])
        self.assertEqual((['OSError: not the identifier of a namespace'] * 5 + ['OSError: not an LBA format'] * 4
                          + ['OSError: not the arguments of a format'] * 5, ['OSError: not a sanitize action'] * 5),
                         (said['format'], said['sanitize']))
        identifier, size, form = (f'OSError: not {what}' for what in (
            'the identifier of a namespace', 'the size of a namespace', 'an LBA format'))
        self.assertEqual([identifier] * 2 + [size] * 5 + [form] * 2 + [size] * 2, said['created'])
        self.assertEqual(['OSError: its driver shows other disks now'] * 2, said['other disks'])
        self.assertEqual(['OSError: not a PCI address, or not the name of an NVMe namespace'] * 3
                         + ['FileNotFoundError: No such file or directory'], said['disks'])
        self.assertEqual([''] * 4, [self.read(f'bus/pci/{name}') for name in (
            'devices/0000:3d:00.4/driver_override', 'drivers/nvme/unbind', 'drivers_probe',
            'devices/0000:3d:00.4/reset')])
        self.assertEqual(['OSError: not a UUID'] * 7, said['mdev'])
        self.assertEqual(['OSError: not the name of a parent'] * 3, said['definition'][:3])
        self.assertEqual('TypeError', said['definition'][3].partition(':')[0])
        self.assertEqual(['OSError: not a UUID', 'FileNotFoundError: No such file or directory', 'OSError: not a UUID'],
                         said['definition'][4:])
        self.assertEqual([no_device] * 5, said['device'][:5])
        self.assertEqual(['TypeError'] * 2, [text.partition(':')[0] for text in said['device'][5:7]])
        self.assertEqual(['OSError: Too many levels of symbolic links', 'OSError: not a character device',
                          'OSError: not the dax device of this name', 'OSError: not the dax device of this name',
                          'OSError: it has 4096 bytes, not 8192', 'OSError: it has 4096 bytes, not None'],
                         said['device'][7:])
        self.assertEqual([no_device] * 4 + said['device'][7:9], said['lock'][:6])
        self.assertEqual('TypeError', said['lock'][6].partition(':')[0])
        self.assertEqual(['OSError: not a socket of the caller'] * 8, said['socket'][:8])
        self.assertEqual(['TypeError'] * 2, [text.partition(':')[0] for text in said['socket'][8:]])
        self.assertEqual(['BlockingIOError: Resource temporarily unavailable'] * 3, said['came'])
        self.assertEqual('0\n', self.read('bus/pci/devices/0000:3d:00.4/nvidia/current_vgpu_type'))
        self.assertEqual(('tenants', 'tenants'), (self.read('secret'), self.read('dax2.0')))
        self.assertFalse(os.path.exists(self.path('escaped')))

    def test_the_daemon_keeps_the_right_to_administer_only_where_it_is_given(self) -> None:
        self.assertEqual([f'{1 << 1 | 1 << 19:016x}'], self.run_service(KEPT))
        # CAP_NET_ADMIN and CAP_SYS_ADMIN, and never CAP_SETPCAP or what else somebody names.
        self.assertEqual([f'{1 << 1 | 1 << 12 | 1 << 19 | 1 << 21:016x}'], self.run_service(KEPT, 'more'))

    def test_a_daemon_that_cannot_be_started_has_given_no_answer(self) -> None:
        """An error that there is no helper must not look like the answer that nobody has a VFIO driver."""
        said = self.run_service(WITHOUT_HELPER)
        self.assertEqual("OSError: the privileged daemon cannot be started: [Errno 2] No such file or directory: "
                         "'/none/sudo'", said)

    def test_a_helper_without_devicetrack_is_named(self) -> None:
        # It starts without the files that put a checkout into the environment. Another user need not be able to read
        # the environment, so it is mounted where he can.
        os.mkdir(self.path('installed'))
        within = ['unshare', '--mount', '--propagation', 'private', 'sh', '-c',
                  'mount --bind "$0" "$1" && shift && exec "$@"', str(pathlib.Path(oslo_privsep.__file__).parents[1]),
                  self.path('installed')]
        self.write('privsep-helper', 'from oslo_privsep import daemon\ndaemon.helper_main()\n', 0o644)
        helper = (f'env PYTHONPATH={self.path("installed")} {os.path.realpath(sys.executable)} -S -P '
                  f'{self.path("privsep-helper")}')
        said = self.run_service(FAILING_HELPER, helper, within=within)
        self.assertIn('the Python that runs its helper has no devicetrack: install devicetrack there, or ', said)
        self.assertIn(helper, said)
        # Most of Nova's configurations name a directory for logs, and a helper then writes nothing else.
        os.mkdir(self.path('log'))
        os.chmod(self.path('log'), 0o777)
        self.write('nova.conf', f'[DEFAULT]\nlog_dir = {self.path("log")}\n', 0o644)
        self.assertIn('the Python that runs its helper has no devicetrack: ', self.run_service(
            FAILING_HELPER.replace('options.register', f'cfg.CONF.register_opt(cfg.StrOpt("log_dir", default='
                                   f'{self.path("log")!r})); options.register'),
            f'{helper} --config-file {self.path("nova.conf")}', within=within))
        self.assertEqual(['privsep-helper.log'], os.listdir(self.path('log')))

    def test_a_helper_that_fails_says_why(self) -> None:
        self.write('helper', '#!/bin/sh\necho first >&2; echo "this user may not" >&2; exit 1\n', 0o755)
        said = self.run_service(FAILING_HELPER, self.path('helper'))
        self.assertIn('OSError: the privileged daemon cannot be started: ', said)
        self.assertIn('privsep.sock: this user may not', said)
        self.write('sudo', '#!/bin/sh\necho "asked: $1 $2" >&2; exit 1\n', 0o755)
        self.assertIn(': asked: -n helper', self.run_service(FAILING_HELPER, f'{self.path("sudo")} helper'))

    def test_a_daemon_of_another_release_is_named(self) -> None:
        self.assertIn('the privileged daemon is of devicetrack 0.0.1, and this is ', self.run_service(OTHER_RELEASE))

    def test_a_daemon_that_cannot_give_up_its_rights_does_nothing(self) -> None:
        said = self.run_service(WITHOUT_SETPCAP)
        self.assertEqual(['PermissionError: the privileged daemon cannot give up its rights (Operation not permitted): '
                          '[devicetrack_privileged] capabilities needs CAP_SETPCAP for that'] * 2, said)
