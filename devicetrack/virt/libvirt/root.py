"""What needs root, done by the process that calls it: callers ask :mod:`devicetrack.virt.libvirt.privileged`."""

from __future__ import annotations

from collections.abc import Sequence
import errno
import os
import re
import stat
import subprocess

from devicetrack import exception
from devicetrack.virt.libvirt import mdevctl

NDCTL_TIMEOUT_S = 60

# The kernel's VFIO groups, by the numbers of their IOMMU groups (Linux: Documentation/driver-api/vfio.rst).
VFIO = '/dev/vfio'

SYSFS = '/sys'

_DAX = re.compile(r'/dev/dax[0-9]+\.[0-9]+')
_PCI_ADDRESS = re.compile(r'[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]')


def run_ndctl(arguments: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=NDCTL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise exception.CommandFailed(arguments[0], f'did not end in {NDCTL_TIMEOUT_S} s') from error
    return done.returncode, done.stdout.decode(errors='replace')


def open_dax(path: str) -> int:
    if not _DAX.fullmatch(path):
        raise OSError(errno.EINVAL, 'not the path of a dax device')
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISCHR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, 'not a character device')
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_vfio_group_open(number: int) -> bool:
    try:
        os.close(os.open(f'{VFIO}/{number:d}', os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    return False


def remove_lost_definitions() -> None:
    for path in mdevctl.lost():
        os.unlink(path)


def set_vgpu_type(sysfs: str, address: str, number: int) -> None:
    if not _PCI_ADDRESS.fullmatch(address):
        raise OSError(errno.EINVAL, 'not a PCI address')
    fd = os.open(os.path.join(sysfs, 'bus/pci/devices', address, 'nvidia/current_vgpu_type'),
                 os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, b'%d\n' % number)
    finally:
        os.close(fd)
