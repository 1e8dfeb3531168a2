"""Functions that need root. Only :mod:`devicetrack.virt.libvirt.privileged` and its daemon call them."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import stat
import subprocess

from devicetrack import exception
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import ndctl

NDCTL_TIMEOUT_S = 60

# The kernel's VFIO groups, by the numbers of their IOMMU groups (Linux: Documentation/driver-api/vfio.rst).
VFIO = '/dev/vfio'

SYSFS = '/sys'
DEVICES = '/dev'
PROCESSES = '/proc'

_DAX = re.compile(r'dax[0-9]+\.[0-9]+')
_PCI_ADDRESS = re.compile(r'[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]')
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')
_PARENT = re.compile(r'[0-9a-zA-Z][0-9a-zA-Z:._-]{0,63}')
_MAX_NUMBER = 2**31 - 1


def run_ndctl(command: str, timeout_s: int = NDCTL_TIMEOUT_S) -> tuple[int, str]:
    try:
        done = subprocess.run((_program(command), *ndctl.ARGUMENTS), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=timeout_s, check=False, env={}, cwd='/',
                              umask=0o077)
    except subprocess.TimeoutExpired as error:
        raise exception.CommandFailed(command, f'did not end in {timeout_s} s') from error
    return done.returncode, done.stdout.decode(errors='replace')


def _program(path: str) -> str:
    """Resolve the path of a program that root can run, since nobody else can put another one there.

    :raises OSError: somebody else can, or there is none
    """
    if not os.path.isabs(path):
        raise OSError(errno.EINVAL, 'not an absolute path')
    found = os.path.realpath(path, strict=True)
    if not stat.S_ISREG(os.lstat(found).st_mode):
        raise OSError(errno.EINVAL, 'not a regular file')
    for part in (found, *map(str, pathlib.PurePath(found).parents)):
        status = os.lstat(part)
        # In a sticky directory, like /tmp, only the owner of an entry can replace it.
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or (status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky):
            raise PermissionError(errno.EPERM, f'others than root can change {part}')
    return found


def open_dax(path: str, size_bytes: int) -> int:
    name = os.path.basename(path)
    if path != os.path.join(DEVICES, name) or not _DAX.fullmatch(name):
        raise OSError(errno.EINVAL, 'not the path of a dax device')
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISCHR(status.st_mode):
            raise OSError(errno.EINVAL, 'not a character device')
        _check_dax(name, status.st_rdev, size_bytes)
        users = _users_of(status.st_rdev)
        if users:
            raise OSError(errno.EBUSY, f'open in process {", ".join(map(str, users))}')
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_dax(name: str, number: int, size_bytes: int) -> None:
    """Compare a device number with what the kernel knows: a node can have any name.

    :raises OSError: it is no dax device, another one, or has another size
    """
    device = os.path.join(SYSFS, f'dev/char/{os.major(number)}:{os.minor(number)}')
    try:
        subsystem = os.path.basename(os.readlink(os.path.join(device, 'subsystem')))
        with open(os.path.join(device, 'size'), encoding='ascii') as file:
            size = int(file.read())
    except (OSError, ValueError):
        subsystem, size = '', 0
    if (subsystem, os.path.basename(os.path.realpath(device))) != ('dax', name):
        raise OSError(errno.EINVAL, 'not the dax device of this name')
    if size != size_bytes:
        raise OSError(errno.EINVAL, f'it has {size} bytes, not {size_bytes}')


def _users_of(number: int) -> list[int]:
    """Find the other processes that have a device open. A guest's process keeps what it maps open.

    A process of root that cannot be looked at is not counted: the kernel may protect the first process of a host.

    :raises OSError: a process of another user cannot be looked at, so nobody knows
    """
    found = []
    for pid in filter(str.isdecimal, os.listdir(PROCESSES)):
        process = os.path.join(PROCESSES, pid)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):        # it has ended
            try:
                if int(pid) != os.getpid() and any(
                        _is_device(entry.path, number) for entry in os.scandir(os.path.join(process, 'fd'))):
                    found.append(int(pid))
            except PermissionError:
                if os.stat(process).st_uid != 0:
                    raise
    return sorted(found)


def _is_device(descriptor: str, number: int) -> bool:
    try:
        status = os.stat(descriptor)
    except FileNotFoundError:
        return False                    # it was closed
    except PermissionError:
        os.readlink(descriptor)         # refused too if the process may not be looked at
        return False                    # a user's file system (FUSE) refuses root, and has no device nodes
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == number


def is_vfio_group_open(number: int) -> bool:
    _check_number(number)
    try:
        os.close(os.open(f'{VFIO}/{number}', os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    return False


def remove_lost_definitions() -> None:
    for path in mdevctl.lost():
        os.unlink(path)


def remove_mdev(uuid: str) -> None:
    device = _mdev(uuid)
    group = os.path.basename(os.readlink(os.path.join(device, 'iommu_group')))
    # The kernel would wait for whoever has it open.
    if is_vfio_group_open(int(group)):
        raise OSError(errno.EBUSY, 'a process has it open')
    fd = os.open(os.path.join(device, 'remove'), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, b'1\n')
    finally:
        os.close(fd)


def remove_mdev_definition(parent: str, uuid: str) -> None:
    if os.path.lexists(_mdev(uuid)):
        raise OSError(errno.EBUSY, 'the device is there')
    if not _PARENT.fullmatch(parent):
        raise OSError(errno.EINVAL, 'not the name of a parent')
    path = os.path.join(mdevctl.DIRECTORY, parent, uuid)
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, 'not a definition')
    os.unlink(path)


def _mdev(uuid: str) -> str:
    if not isinstance(uuid, str) or not _UUID.fullmatch(uuid):
        raise OSError(errno.EINVAL, 'not a UUID')
    return os.path.join(SYSFS, 'bus/mdev/devices', uuid)


def set_vgpu_type(sysfs: str, address: str, number: int) -> None:
    if not _PCI_ADDRESS.fullmatch(address):
        raise OSError(errno.EINVAL, 'not a PCI address')
    _check_number(number)
    fd = os.open(os.path.join(sysfs, 'bus/pci/devices', address, 'nvidia/current_vgpu_type'),
                 os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, b'%d\n' % number)
    finally:
        os.close(fd)


def _check_number(number: int) -> None:
    if type(number) is not int or not 0 <= number <= _MAX_NUMBER:
        raise OSError(errno.EINVAL, 'not a number')
