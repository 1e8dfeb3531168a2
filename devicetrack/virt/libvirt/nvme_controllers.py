"""Queries and commands for NVMe controllers, which need privileged.

The kernel accepts nearly all commands only from a process with CAP_SYS_ADMIN. The privileged daemon has it if
``[devicetrack_privileged] capabilities`` names it; if not, the error is EACCES.

A command goes to the controller of one PCI function, whose disks nobody uses. While the controller erases the disks,
nobody else can open them, not even the kernel's file systems (O_EXCL, open(2)). The kernel keeps them open until a
command has ended, even when the process is killed meanwhile.

Each query and command raises OSError if the function has no controller now, if the controller or the kernel refuses it,
or if there is no privileged daemon. A command that changes disks gets the name and the bytes of each disk of the
function, ``disks``: all of them. It raises EBUSY if somebody uses the function or a disk of it, or if the function has
other disks now.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import errno
import functools
import os
import stat
import threading
from typing import Any
from typing import NamedTuple

from devicetrack import ownfiles
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import pci_namespaces
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root

_MAX_TIMEOUT_S = 7 * 24 * 3600
# A usable secondary controller has at least these: a queue for administration, one for data, and an interrupt.
_LEAST_QUEUES = 2
_LEAST_INTERRUPTS = 1
_MAX_NSID = 2**32 - 3               # the greatest identifier that names one namespace


class NVMeSubsystem(NamedTuple):
    """A primary controller's answers about its NVM subsystem.

    ``secondaries`` are its secondary controllers by the numbers of their virtual functions, from 0. ``attached`` has,
    for each namespace, the numbers of the controllers that it is attached to, and ``shared`` those namespaces that may
    be attached to several.
    """

    secondaries: Mapping[int, nvme_admin.Secondary]
    attached: Mapping[int, Sequence[int]]
    shared: Sequence[int]


def open_controller(sysfs: str, address: str) -> int:
    """Open the character device of a function's controller. The caller closes it.

    :raises OSError: the function has no controller now, or its node is another device's
    """
    function = pci_privileged.path_of(sysfs, address)
    try:
        names = [name for name in os.listdir(os.path.join(function, 'nvme')) if pci_sysfs.NVME_NAME.fullmatch(name)]
    except FileNotFoundError:
        names = []
    if len(names) != 1:
        raise OSError(errno.ENODEV, f'{address} has no NVMe controller now')
    fd = os.open(os.path.join(root.DEVICES, names[0]), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with ownfiles.closed_by_error(fd):
        status = os.fstat(fd)
        if not stat.S_ISCHR(status.st_mode):
            raise OSError(errno.EINVAL, 'not a character device')
        device = os.path.realpath(os.path.join(
            sysfs, f'dev/char/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}'))
        if os.path.basename(device) != names[0] or not device.startswith(os.path.join(function, '')):
            raise OSError(errno.EINVAL, f'not the controller of {address}')
    return fd


@contextlib.contextmanager
def _opened(sysfs: str, address: str) -> Iterator[int]:
    fd = open_controller(sysfs, address)
    try:
        yield fd
    finally:
        os.close(fd)


@privileged.entry(of_sysfs=True, made=lambda fields: nvme_admin.Controller(*fields))
def read_controller(sysfs: str, address: str) -> nvme_admin.Controller:
    """Ask the controller of a PCI function what it can do."""
    with _opened(sysfs, address) as fd:
        controller = nvme_admin.identify_controller(fd)
        return controller._replace(others=_others(fd, controller))


def _others(fd: int, controller: nvme_admin.Controller) -> tuple[int, ...] | None:
    """Return the controllers of the NVM subsystem besides one and its secondary ones; None if it does not name them."""
    # Only a controller that manages namespaces has to know this command.
    if not (controller.is_one_of_several or controller.manages_namespaces):
        return ()
    try:
        found = set(nvme_admin.controllers(fd)) - {controller.cntlid}
    except nvme_admin.CommandRefused:
        return None if controller.is_one_of_several else ()
    # Do not ask in vain: a controller notes a command that it does not know in its error log.
    if found and controller.manages_secondaries:
        found -= {one.cntlid for one in _secondaries(fd)}
    return tuple(sorted(found))


def _secondaries(fd: int) -> list[nvme_admin.Secondary]:
    try:
        return nvme_admin.secondaries(fd)
    except nvme_admin.CommandRefused:
        return []                               # it is no primary controller


def _namespaces(found: Mapping[int, Sequence[Any]]) -> Mapping[int, nvme_admin.NVMeNamespace]:
    """Make the namespaces of their fields."""
    return {nsid: nvme_admin.NVMeNamespace(blocks, block_bytes, nvme_admin.Format(*form), *others)
            for nsid, (blocks, block_bytes, form, *others) in found.items()}


@privileged.entry(of_sysfs=True, made=_namespaces)
def read_namespaces(sysfs: str, address: str) -> Mapping[int, nvme_admin.NVMeNamespace]:
    """Ask the controller of a PCI function for its namespaces, by their identifiers.

    The answer has the namespaces that are attached to it and, if it manages namespaces, all others of its subsystem.
    """
    with _opened(sysfs, address) as fd:
        found = {nsid: nvme_admin.identify_namespace(fd, nsid) for nsid in nvme_admin.namespaces(fd, nvme_admin.ACTIVE)}
        if nvme_admin.identify_controller(fd).manages_namespaces:
            for nsid in set(nvme_admin.namespaces(fd, nvme_admin.ALLOCATED)) - found.keys():
                namespace = nvme_admin.identify_namespace(fd, nsid, nvme_admin.ALLOCATED_NAMESPACE)
                found[nsid] = namespace._replace(attached=False, attached_to=tuple(nvme_admin.attached_to(fd, nsid)))
        return found


@privileged.entry(of_sysfs=True, made=lambda fields: NVMeSubsystem(
    {vf: nvme_admin.Secondary(*one) for vf, one in fields[0].items()}, *fields[1:]))
def read_subsystem(sysfs: str, address: str) -> NVMeSubsystem:
    """Ask the controller of a physical function for its secondary controllers, and for all namespaces."""
    with _opened(sysfs, address) as fd:
        everything = nvme_admin.namespaces(fd, nvme_admin.ALLOCATED)
        return NVMeSubsystem(
            {one.vf - 1: one for one in nvme_admin.secondaries(fd)},
            {nsid: tuple(nvme_admin.attached_to(fd, nsid)) for nsid in everything},
            tuple(nsid for nsid in everything
                  if nvme_admin.identify_namespace(fd, nsid, nvme_admin.ALLOCATED_NAMESPACE).shared))


@privileged.in_sysfs
def bring_online(sysfs: str, address: str) -> None:
    """Bring the secondary controller of a virtual function online, with queues and interrupts if it has none.

    The queues and interrupts are shared evenly among all virtual functions. A controller that is online stays as it is.

    :param address: the address of the virtual function
    :raises OSError: EBUSY: a guest has it; ENOSPC: there are not enough queues or interrupts; EIO: the controller is
        still offline afterwards
    """
    physfn, number = pci_privileged.vf_of(sysfs, address)
    with _opened(sysfs, os.path.basename(physfn)) as fd:
        one = _secondary(fd, number + 1)
        if not one.is_online:
            # The controller starts anew, so a guest that has it would lose the commands in progress.
            pci_privileged.check_no_guest(sysfs, address)
            for resource, least, has in ((nvme_admin.QUEUES, _LEAST_QUEUES, one.queues),
                                         (nvme_admin.INTERRUPTS, _LEAST_INTERRUPTS, one.interrupts)):
                of = nvme_admin.capabilities(fd)[resource]
                if of.is_flexible and has < least:
                    nvme_admin.virtualize(fd, one.cntlid, nvme_admin.ASSIGN, resource, share(
                        of, len(pci_privileged.numbered_vfs(physfn)), least))
            nvme_admin.virtualize(fd, one.cntlid, nvme_admin.ONLINE)
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
    pci_privileged.check_unused(sysfs, address)
    shown = pci_namespaces.shown(pci_sysfs.Tree(sysfs), address)
    # A disk that the caller left out would stay open to others while the controller erases it.
    if shown is None or {(disk.name, disk.size_bytes) for disk in shown} != set(map(tuple, disks)):
        raise OSError(errno.EBUSY, 'its driver shows other disks now')
    with contextlib.ExitStack() as close:
        fds = []
        for name, size_bytes in disks:
            fds.append(disk_nodes.open_here(sysfs, address, name, size_bytes, True))
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
                _is_virtual(pci_privileged.path_of(sysfs, address)) or _others(fd, controller) != ()):
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


def format_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int,
                     wanted: nvme_admin.Format, erase: int, timeout_s: int, lock_fd: int) -> None:
    """Have the controller of a PCI function format one namespace. Blocks until it has.

    A service that runs as root has a child do it. The child inherits the lock and outlives the service. Otherwise the
    daemon waits for the controller and keeps the disks open until then, even if the service ends: other processes can
    see that the disks are open. The daemon keeps one of its threads free of formats.

    :param erase: :data:`.nvme_admin.USER_DATA` or :data:`.nvme_admin.CRYPTOGRAPHIC`
    :raises OSError: EINVAL: the format would reach namespaces of others; EUSERS: the daemon has no thread for it before
        another format ends
    """
    if not root.has_rights(sysfs):
        format_in_daemon(sysfs, address, disks, nsid, wanted, erase, timeout_s)
        return
    check_format(nsid, wanted, erase, timeout_s)
    with to_format(sysfs, address, disks) as (fd, fds):
        jobs.format_namespace(f'{address} {nsid}', fd, fds, lock_fd, nsid, wanted, erase, timeout_s,
                              sum(size for _name, size in disks))


@privileged.in_sysfs
def format_in_daemon(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int, wanted: Sequence[Any],
                     erase: int, timeout_s: int) -> None:
    """As :func:`format_namespace`. No child can wait for the controller, because the daemon's have no capability."""
    most, running = _formats()
    if not running.acquire(blocking=False):
        raise OSError(errno.EUSERS, f'{most} formats run already, and other requests need a thread')
    try:
        format_here(sysfs, address, disks, nsid, wanted, erase, timeout_s)
    finally:
        running.release()


@functools.cache
def _formats() -> tuple[int, threading.Semaphore]:
    """Return how many formats may run in the daemon, and the room for them: each blocks a thread until it has ended.

    At least one may run, and one thread is left for other requests.
    """
    from devicetrack.virt.libvirt import daemon  # only here: this is the daemon
    most = max(daemon.context.conf.thread_pool_size - 1, 1)
    return most, threading.Semaphore(most)


def format_here(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int, wanted: Sequence[Any],
                erase: int, timeout_s: int) -> None:
    """Format one namespace in this process, which waits for the controller."""
    form = check_format(nsid, wanted, erase, timeout_s)
    with to_format(sysfs, address, disks) as (fd, _disks):
        nvme_admin.format_namespace(fd, nsid, form, erase, timeout_s)


@privileged.in_sysfs
def attach(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int, is_to_be: bool) -> None:
    """Attach a namespace to the controller of a PCI function, or detach it from that controller."""
    check_namespace(nsid)
    if type(is_to_be) is not bool:
        raise OSError(errno.EINVAL, 'neither to attach nor to detach')
    with to_erase(sysfs, address, disks) as (fd, _disks):
        nvme_admin.attach(fd, nsid, [nvme_admin.identify_controller(fd).cntlid], is_to_be)
        nvme_admin.rescan(fd)


@privileged.in_sysfs
def delete_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int) -> None:
    """Delete a namespace of the controller of a PCI function, and all its data.

    :raises OSError: EBUSY: also if other controllers of its NVM subsystem may have made the namespace
    """
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


@privileged.in_sysfs
def create_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int, blocks: int,
                     wanted: Sequence[Any], shared: bool) -> None:
    """Make a namespace of the controller of a PCI function. The new namespace is attached to no controller.

    :param nsid: the identifier that it must get. The controller chooses the identifier; if it chooses another one, the
        namespace is deleted again
    :param blocks: its size, in blocks of the format ``wanted``
    :param shared: whether it may be attached to several controllers
    :raises OSError: EEXIST: there is such a namespace; EIO: the controller refused, or chose another identifier
    """
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
    vfs = pci_privileged.numbered_vfs(pci_privileged.path_of(sysfs, address))
    return {one.cntlid for one in _secondaries(fd) if one.vf - 1 not in vfs}


def check_namespace(nsid: int) -> None:
    """:raises OSError: it is no identifier of one namespace"""
    if type(nsid) is not int or not 1 <= nsid <= _MAX_NSID:
        raise OSError(errno.EINVAL, 'not the identifier of a namespace')


@privileged.in_sysfs
def start_sanitize(sysfs: str, address: str, disks: Sequence[tuple[str, int]], action: int) -> None:
    """Have the controller of a PCI function begin to sanitize its NVM subsystem. The controller then goes on by itself.

    :param action: :data:`.nvme_admin.BLOCK_ERASE`, :data:`.nvme_admin.OVERWRITE` or :data:`.nvme_admin.CRYPTO_ERASE`
    :raises OSError: EINVAL: the operation would erase data of others
    """
    if action not in (nvme_admin.BLOCK_ERASE, nvme_admin.OVERWRITE, nvme_admin.CRYPTO_ERASE):
        raise OSError(errno.EINVAL, 'not a sanitize action')
    if _is_virtual(pci_privileged.path_of(sysfs, address)):
        raise OSError(errno.EINVAL, f'{address} is a virtual function, and a sanitize operation erases all of its disk')
    with to_erase(sysfs, address, disks) as (fd, _disks):
        if _others(fd, nvme_admin.identify_controller(fd)) != ():
            raise OSError(errno.EINVAL, 'its NVM subsystem has other controllers, or may have some, and a sanitize '
                                        'operation erases their data, too')
        nvme_admin.start_sanitize(fd, action)


@privileged.entry(of_sysfs=True, made=lambda fields: nvme_admin.SanitizeStatus(*fields))
def sanitize_status(sysfs: str, address: str) -> nvme_admin.SanitizeStatus:
    """Ask the controller of a PCI function for the state of its last sanitize operation."""
    with _opened(sysfs, address) as fd:
        return nvme_admin.sanitize_status(fd)
