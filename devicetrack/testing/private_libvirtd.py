"""Becomes a libvirtd with its own directories below a given one. Several daemons share its cache.

Run it as root in its own mount namespace.

libvirtd has the paths of its system mode compiled in. So this mounts other directories at these paths.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

_DIRECTORIES = {
    'etc': '/etc/libvirt',
    'run': '/run/libvirt',
    'lib': '/var/lib/libvirt',
    'log.d': '/var/log/libvirt',
}

_LIBVIRTD = """
unix_sock_dir = "{root}/run"
auth_unix_ro = "none"
auth_unix_rw = "none"
"""

# Guests run as root and without the confinement of a production host. A container in which tests run may not allow it,
# and no test depends on it.
_QEMU = """
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
"""


# The account that Debian's libvirt has compiled in for guests. libvirt 9 looks it up even if qemu.conf names another.
# The package that makes this account would also install the system-wide daemon and its units.
_ACCOUNT = 'libvirt-qemu'
_ACCOUNTS = {
    '/etc/passwd': f'{_ACCOUNT}:x:64055:64055::/nonexistent:/usr/sbin/nologin',
    '/etc/group': f'{_ACCOUNT}:x:64055:',
}


def _add_account(root: str) -> None:
    for path, line in _ACCOUNTS.items():
        with open(path, encoding='utf-8') as file:
            known = file.read()
        if not any(other.startswith(f'{_ACCOUNT}:') for other in known.splitlines()):
            copy = os.path.join(root, os.path.basename(path))
            with open(copy, 'w', encoding='utf-8') as file:
                file.write(f'{known}{line}\n')
            subprocess.run(('mount', '--bind', copy, path), check=True)


# The parts of sysfs with the devices of a host. Processors and NUMA nodes stay those of the machine.
_DEVICES = ('bus/pci', 'devices', 'kernel/iommu_groups')
_PROCESSORS = 'devices/system'


def _show(root: str, sysfs: str) -> None:
    """Let libvirtd find the devices in a directory with the layout of sysfs, and none of the machine's."""
    processors = os.path.join(root, 'processors')
    for directory in (processors, os.path.join(sysfs, _PROCESSORS)):
        os.makedirs(directory, exist_ok=True)
    for source, target in ((os.path.join('/sys', _PROCESSORS), processors),
                           *((os.path.join(sysfs, name), os.path.join('/sys', name)) for name in _DEVICES),
                           (processors, os.path.join('/sys', _PROCESSORS))):
        subprocess.run(('mount', '--bind', source, target), check=True)
    # libudev then also accepts a directory that is no sysfs (systemd: docs/ENVIRONMENT.md).
    os.environ['SYSTEMD_DEVICE_VERIFY_SYSFS'] = '0'


def main(root: str, cache: str, sysfs: str = '') -> None:
    directories = {os.path.join(root, name): target for name, target in _DIRECTORIES.items()}
    for source, target in (*directories.items(), (cache, '/var/cache/libvirt')):
        os.makedirs(source, exist_ok=True)
        os.makedirs(target, exist_ok=True)
        subprocess.run(('mount', '--bind', source, target), check=True)
    _add_account(root)
    if sysfs:
        _show(root, sysfs)
    for name, text in (('libvirtd.conf', _LIBVIRTD), ('qemu.conf', _QEMU)):
        with open(os.path.join(root, 'etc', name), 'w', encoding='ascii') as file:
            file.write(text.format(root=root))
    program = shutil.which('libvirtd', path='/usr/sbin:/usr/bin')
    if program is None:
        sys.exit('libvirtd is not installed')
    os.execv(program, (program, '--config', os.path.join(root, 'etc', 'libvirtd.conf'),
                       '--pid-file', os.path.join(root, 'run', 'libvirtd.pid')))


if __name__ == '__main__':
    main(*sys.argv[1:])
