"""The controllers of NVMe disks, asked and told by root. Only :mod:`devicetrack.virt.libvirt.privileged` and its daemon
call this.

A command belongs to the controller of one PCI function, whose disks nobody uses. The disks are open for nobody else
while the controller erases them: not even for the kernel's file systems (O_EXCL, open(2)). The kernel keeps them open
until a command has ended, also when the process is killed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import errno
import os
import re
import stat
from typing import Any

from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import root

_CONTROLLER = re.compile(r'nvme[0-9]+')
_MAX_TIMEOUT_S = 7 * 24 * 3600
_MAX_NSID = 2**32 - 3               # the greatest identifier that names one namespace


def open_controller(sysfs: str, address: str) -> int:
    """Open the character device of a function's controller. The caller closes it.

    :raises OSError: the function has no controller now, or its node is another device's
    """
    function = root.function(sysfs, address)
    try:
        names = [name for name in os.listdir(os.path.join(function, 'nvme')) if _CONTROLLER.fullmatch(name)]
    except FileNotFoundError:
        names = []
    if len(names) != 1:
        raise OSError(errno.ENODEV, f'{address} has no NVMe controller now')
    fd = os.open(os.path.join(root.DEVICES, names[0]), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISCHR(status.st_mode):
            raise OSError(errno.EINVAL, 'not a character device')
        device = os.path.realpath(os.path.join(
            sysfs, f'dev/char/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}'))
        if os.path.basename(device) != names[0] or not device.startswith(os.path.join(function, '')):
            raise OSError(errno.EINVAL, f'not the controller of {address}')
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _opened(sysfs: str, address: str) -> Iterator[int]:
    fd = open_controller(sysfs, address)
    try:
        yield fd
    finally:
        os.close(fd)


def read_controller(sysfs: str, address: str) -> tuple[Any, ...]:
    """As :func:`devicetrack.virt.libvirt.privileged.read_nvme_controller`, as the fields of its answer."""
    with _opened(sysfs, address) as fd:
        return tuple(nvme_admin.identify_controller(fd))


def read_namespaces(sysfs: str, address: str) -> list[tuple[int, bool, tuple[Any, ...]]]:
    """As :func:`devicetrack.virt.libvirt.privileged.read_nvme_namespaces`, each as its fields."""
    with _opened(sysfs, address) as fd:
        active = nvme_admin.namespaces(fd, nvme_admin.ACTIVE)
        found = [(nsid, True, _fields(nvme_admin.identify_namespace(fd, nsid))) for nsid in active]
        if nvme_admin.identify_controller(fd).manages_namespaces:
            found += [(nsid, False, _fields(nvme_admin.identify_namespace(fd, nsid, nvme_admin.ALLOCATED_NAMESPACE)))
                      for nsid in nvme_admin.namespaces(fd, nvme_admin.ALLOCATED) if nsid not in active]
        return found


def _fields(namespace: nvme_admin.Namespace) -> tuple[Any, ...]:
    return tuple(namespace._replace(format=tuple(namespace.format)))    # type: ignore[arg-type]


@contextlib.contextmanager
def to_erase(sysfs: str, address: str, disks: Sequence[tuple[str, int]]) -> Iterator[tuple[int, list[int]]]:
    """Open a controller and all disks of it, which nobody uses and nobody else can open meanwhile.

    :param disks: the name and the bytes of each
    :raises OSError: EBUSY: somebody uses them; else, they cannot be opened
    """
    root.check_unused(sysfs, address)
    with contextlib.ExitStack() as close:
        fds = []
        for name, size_bytes in disks:
            fds.append(root.open_disk(sysfs, address, name, size_bytes, True))
            close.callback(os.close, fds[-1])
        yield close.enter_context(_opened(sysfs, address)), fds


def check_format(nsid: int, wanted: Sequence[Any], erase: int, timeout_s: int) -> nvme_admin.Format:
    """:raises OSError: an argument of a format cannot be one"""
    if type(nsid) is not int or not 1 <= nsid <= _MAX_NSID or erase not in (
            nvme_admin.USER_DATA, nvme_admin.CRYPTOGRAPHIC) or type(timeout_s) is not int \
            or not 1 <= timeout_s <= _MAX_TIMEOUT_S or [type(one) for one in wanted] != [int, bool, int, bool] \
            or not 0 <= wanted[0] < 64 or not 0 <= wanted[2] < 8:
        raise OSError(errno.EINVAL, 'not the arguments of a format')
    return nvme_admin.Format(*wanted)


def format_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int, wanted: Sequence[Any],
                     erase: int, timeout_s: int) -> None:
    """Format one namespace in this process, which waits for the controller."""
    form = check_format(nsid, wanted, erase, timeout_s)
    with to_erase(sysfs, address, disks) as (fd, _disks):
        nvme_admin.format_namespace(fd, nsid, form, erase, timeout_s)


def start_sanitize(sysfs: str, address: str, disks: Sequence[tuple[str, int]], action: int) -> None:
    if action not in (nvme_admin.BLOCK_ERASE, nvme_admin.OVERWRITE, nvme_admin.CRYPTO_ERASE):
        raise OSError(errno.EINVAL, 'not a sanitize action')
    with to_erase(sysfs, address, disks) as (fd, _disks):
        nvme_admin.start_sanitize(fd, action)


def sanitize_status(sysfs: str, address: str) -> tuple[int, ...]:
    with _opened(sysfs, address) as fd:
        return tuple(nvme_admin.sanitize_status(fd))
