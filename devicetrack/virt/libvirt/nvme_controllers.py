"""Queries and commands for NVMe controllers, which need root. Only :mod:`devicetrack.virt.libvirt.privileged` and its
daemon call this.

A command goes to the controller of one PCI function, whose disks nobody uses. While the controller erases the disks,
nobody else can open them, not even the kernel's file systems (O_EXCL, open(2)). The kernel keeps them open until a
command has ended, even when the process is killed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import errno
import os
import stat
from typing import Any

from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import pci_disks
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import root

_MAX_TIMEOUT_S = 7 * 24 * 3600
# A usable secondary controller has at least these: a queue for administration, one for data, and an interrupt.
_LEAST_QUEUES = 2
_LEAST_INTERRUPTS = 1
_MAX_NSID = 2**32 - 3               # the greatest identifier that names one namespace


def open_controller(sysfs: str, address: str) -> int:
    """Open the character device of a function's controller. The caller closes it.

    :raises OSError: the function has no controller now, or its node is another device's
    """
    function = root.function(sysfs, address)
    try:
        names = [name for name in os.listdir(os.path.join(function, 'nvme')) if pci_sysfs.NVME_NAME.fullmatch(name)]
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
        controller = nvme_admin.identify_controller(fd)
        return tuple(controller._replace(others=_others(fd, controller)))


def _others(fd: int, controller: nvme_admin.Controller) -> tuple[int, ...] | None:
    """Return the controllers of the NVM subsystem besides one and its secondary ones; None if it does not name them."""
    # Only a controller that manages namespaces has to know this command.
    if not (controller.is_one_of_several or controller.manages_namespaces):
        return ()
    try:
        found = set(nvme_admin.controllers(fd)) - {controller.cntlid}
    except nvme_admin.Refused:
        return None if controller.is_one_of_several else ()
    # Do not ask in vain: a controller notes a command that it does not know in its error log.
    if found and controller.manages_secondaries:
        found -= {one.cntlid for one in _secondaries(fd)}
    return tuple(sorted(found))


def _secondaries(fd: int) -> list[nvme_admin.Secondary]:
    try:
        return nvme_admin.secondaries(fd)
    except nvme_admin.Refused:
        return []                               # it is no primary controller


def read_namespaces(sysfs: str, address: str) -> list[tuple[int, bool, tuple[Any, ...]]]:
    """As :func:`devicetrack.virt.libvirt.privileged.read_nvme_namespaces`, each as its fields."""
    with _opened(sysfs, address) as fd:
        active = nvme_admin.namespaces(fd, nvme_admin.ACTIVE)
        found = [(nsid, True, _fields(nvme_admin.identify_namespace(fd, nsid))) for nsid in active]
        if nvme_admin.identify_controller(fd).manages_namespaces:
            for nsid in nvme_admin.namespaces(fd, nvme_admin.ALLOCATED):
                if nsid not in active:
                    namespace = nvme_admin.identify_namespace(fd, nsid, nvme_admin.ALLOCATED_NAMESPACE)
                    found.append((nsid, False, _fields(namespace._replace(
                        attached_to=tuple(nvme_admin.attached_to(fd, nsid))))))
        return found


def _fields(namespace: nvme_admin.Namespace) -> tuple[Any, ...]:
    return tuple(namespace._replace(format=tuple(namespace.format)))    # type: ignore[arg-type]


def read_subsystem(sysfs: str, address: str) -> tuple[list[tuple[Any, ...]], list[tuple[int, bool, list[int]]]]:
    """As :func:`devicetrack.virt.libvirt.privileged.read_nvme_subsystem`, as the fields of its answer."""
    with _opened(sysfs, address) as fd:
        secondaries = [tuple(one) for one in nvme_admin.secondaries(fd)]
        namespaces = [(nsid, nvme_admin.identify_namespace(fd, nsid, nvme_admin.ALLOCATED_NAMESPACE).shared,
                       nvme_admin.attached_to(fd, nsid))
                      for nsid in nvme_admin.namespaces(fd, nvme_admin.ALLOCATED)]
        return secondaries, namespaces


def bring_online(sysfs: str, address: str) -> None:
    """As :func:`devicetrack.virt.libvirt.privileged.bring_nvme_online`."""
    directory = root.function(sysfs, address)
    if not _is_virtual(directory):
        raise OSError(errno.EINVAL, f'{address} is not a virtual function')
    physfn = os.path.basename(root.below(sysfs, os.path.join(directory, 'physfn')))
    vfs = root.numbered_vfs(root.function(sysfs, physfn))
    number = next((number for number, one in vfs.items() if one == address), None)
    if number is None:
        raise OSError(errno.ENODEV, f'{physfn} does not have {address} as a virtual function')
    with _opened(sysfs, physfn) as fd:
        one = _secondary(fd, number + 1)
        if not one.is_online:
            # The controller starts anew, so a guest that has it would lose the commands in progress.
            root.check_no_guest(sysfs, address)
            for resource, least, has in ((nvme_admin.QUEUES, _LEAST_QUEUES, one.queues),
                                         (nvme_admin.INTERRUPTS, _LEAST_INTERRUPTS, one.interrupts)):
                of = nvme_admin.capabilities(fd)[resource]
                if of.is_flexible and has < least:
                    nvme_admin.submit(fd, nvme_admin.virtualization_command(
                        one.cntlid, nvme_admin.ASSIGN, resource, share(of, len(vfs), least)))
            nvme_admin.submit(fd, nvme_admin.virtualization_command(one.cntlid, nvme_admin.ONLINE))
            one = _secondary(fd, number + 1)
        if not one.is_online:
            raise OSError(errno.EIO, f'its secondary controller {one.cntlid} is offline after it was brought online')


def _is_virtual(directory: str) -> bool:
    return os.path.lexists(os.path.join(directory, 'physfn'))


def _secondary(fd: int, vf: int) -> nvme_admin.Secondary:
    found = [one for one in nvme_admin.secondaries(fd) if one.vf == vf]
    if len(found) != 1:
        raise OSError(errno.ENODEV, f'its physical function names {len(found)} secondary controllers for it')
    return found[0]


def share(of: nvme_admin.Resource, vfs: int, least: int) -> int:
    """Return how many flexible resources each of ``vfs`` virtual functions gets: all get the same number.

    :raises OSError: there are not enough for ``least`` each
    """
    each = min((of.total - of.primary) // max(vfs, 1), of.most)
    if of.granularity and each - each % of.granularity >= least:
        each -= each % of.granularity
    if each < least:
        raise OSError(errno.ENOSPC, f'of {of.total} flexible resources the physical function has {of.primary}, and '
                                    f'{vfs} virtual functions need {least} each, of which one can have {of.most}: '
                                    'make fewer, or give the physical function less (nvme virt-mgmt -a 1)')
    return each


@contextlib.contextmanager
def to_erase(sysfs: str, address: str, disks: Sequence[tuple[str, int]]) -> Iterator[tuple[int, list[int]]]:
    """Open a controller and all its disks. Nobody uses them, and nobody else can open them meanwhile.

    :param disks: the name and the bytes of each that the caller knows
    :raises OSError: EBUSY: somebody uses them, or the driver shows other disks; else, they cannot be opened
    """
    root.check_unused(sysfs, address)
    try:
        shown = pci_disks.disks(pci_sysfs.Tree(sysfs), address)
    except (OSError, ValueError):
        shown = None                            # the driver is still setting them up
    # A disk that the caller left out would stay open to others while the controller erases it.
    if shown is None or {(disk.name, disk.size_bytes) for disk in shown} != set(map(tuple, disks)):
        raise OSError(errno.EBUSY, 'its driver shows other disks now')
    with contextlib.ExitStack() as close:
        fds = []
        for name, size_bytes in disks:
            fds.append(disk_nodes.open_disk(sysfs, address, name, size_bytes, True))
            close.callback(os.close, fds[-1])
        yield close.enter_context(_opened(sysfs, address)), fds


@contextlib.contextmanager
def to_format(sysfs: str, address: str, disks: Sequence[tuple[str, int]]) -> Iterator[tuple[int, list[int]]]:
    """As :func:`to_erase`, if a format then erases nothing of others.

    :raises OSError: EINVAL: a format of one namespace reaches all, and others have some or may have some; else as
        :func:`to_erase`
    """
    with to_erase(sysfs, address, disks) as (fd, fds):
        controller = nvme_admin.identify_controller(fd)
        if controller.formats_all_at_once and (
                _is_virtual(root.function(sysfs, address)) or _others(fd, controller) != ()):
            raise OSError(errno.EINVAL, f'a format of one namespace reaches all (FNA), and {address} is a virtual '
                                        'function or its NVM subsystem has other controllers, or may have some')
        yield fd, fds


def check_format(nsid: int, wanted: Sequence[Any], erase: int, timeout_s: int) -> nvme_admin.Format:
    """:raises OSError: an argument of a format cannot be one"""
    check_namespace(nsid)
    if erase not in (nvme_admin.NO_ERASURE, nvme_admin.USER_DATA, nvme_admin.CRYPTOGRAPHIC) \
            or type(timeout_s) is not int or not 1 <= timeout_s <= _MAX_TIMEOUT_S:
        raise OSError(errno.EINVAL, 'not the arguments of a format')
    return _check_form(wanted)


def _check_form(wanted: Sequence[Any]) -> nvme_admin.Format:
    if [type(one) for one in wanted] != [int, bool, int, bool] or not 0 <= wanted[0] < 64 or not 0 <= wanted[2] < 8:
        raise OSError(errno.EINVAL, 'not an LBA format')
    return nvme_admin.Format(*wanted)


def format_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int, wanted: Sequence[Any],
                     erase: int, timeout_s: int) -> None:
    """Format one namespace in this process, which waits for the controller."""
    form = check_format(nsid, wanted, erase, timeout_s)
    with to_format(sysfs, address, disks) as (fd, _disks):
        nvme_admin.format_namespace(fd, nsid, form, erase, timeout_s)


def attach(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int, is_to_be: bool) -> None:
    """As :func:`devicetrack.virt.libvirt.privileged.attach_nvme_namespace`."""
    check_namespace(nsid)
    if type(is_to_be) is not bool:
        raise OSError(errno.EINVAL, 'neither to attach nor to detach')
    with to_erase(sysfs, address, disks) as (fd, _disks):
        nvme_admin.attach(fd, nsid, [nvme_admin.identify_controller(fd).cntlid], is_to_be)
        nvme_admin.rescan(fd)


def delete_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int) -> None:
    """As :func:`devicetrack.virt.libvirt.privileged.delete_nvme_namespace`."""
    check_namespace(nsid)
    with to_erase(sysfs, address, disks) as (fd, _disks):
        # The owner of another controller may have made the namespace, and nothing here shows who did.
        own = {nvme_admin.identify_controller(fd).cntlid}
        others = set(nvme_admin.controllers(fd)) - own - _secondaries_without_owner(sysfs, address, fd)
        if others:
            raise OSError(errno.EBUSY, f'the controllers {", ".join(map(str, sorted(others)))} of its NVM subsystem '
                                       f'may have made namespace {nsid}')
        attached = nvme_admin.attached_to(fd, nsid)
        if attached:
            nvme_admin.attach(fd, nsid, attached, False)
        nvme_admin.delete_namespace(fd, nsid)
        nvme_admin.rescan(fd)


def create_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int, blocks: int,
                     wanted: Sequence[Any], shared: bool) -> None:
    """As :func:`devicetrack.virt.libvirt.privileged.create_nvme_namespace`."""
    check_namespace(nsid)
    form = _check_form(wanted)
    if type(blocks) is not int or not 1 <= blocks < 2**63 or type(shared) is not bool:
        raise OSError(errno.EINVAL, 'not the size of a namespace')
    with to_erase(sysfs, address, disks) as (fd, _disks):
        if nsid in nvme_admin.namespaces(fd, nvme_admin.ALLOCATED):
            raise OSError(errno.EEXIST, f'namespace {nsid} exists already')
        made = nvme_admin.create_namespace(fd, blocks, form, shared)
        if made != nsid:
            nvme_admin.delete_namespace(fd, made)
            raise OSError(errno.EIO, f'the controller gave the new one the identifier {made}, so it was deleted again')


def _secondaries_without_owner(sysfs: str, address: str, fd: int) -> set[int]:
    """Return the numbers of the secondary controllers whose virtual functions do not exist."""
    vfs = root.numbered_vfs(root.function(sysfs, address))
    return {one.cntlid for one in _secondaries(fd) if one.vf - 1 not in vfs}


def check_namespace(nsid: int) -> None:
    """:raises OSError: it is no identifier of one namespace"""
    if type(nsid) is not int or not 1 <= nsid <= _MAX_NSID:
        raise OSError(errno.EINVAL, 'not the identifier of a namespace')


def start_sanitize(sysfs: str, address: str, disks: Sequence[tuple[str, int]], action: int) -> None:
    if action not in (nvme_admin.BLOCK_ERASE, nvme_admin.OVERWRITE, nvme_admin.CRYPTO_ERASE):
        raise OSError(errno.EINVAL, 'not a sanitize action')
    if _is_virtual(root.function(sysfs, address)):
        raise OSError(errno.EINVAL, f'{address} is a virtual function, and a sanitize operation erases all of its disk')
    with to_erase(sysfs, address, disks) as (fd, _disks):
        if _others(fd, nvme_admin.identify_controller(fd)) != ():
            raise OSError(errno.EINVAL, 'its NVM subsystem has other controllers, or may have some, and a sanitize '
                                        'operation erases their data, too')
        nvme_admin.start_sanitize(fd, action)


def sanitize_status(sysfs: str, address: str) -> tuple[int, ...]:
    with _opened(sysfs, address) as fd:
        return tuple(nvme_admin.sanitize_status(fd))
