"""All work of the library that needs root, here or in modules that this one serves.

- For persistent memory it lists namespaces and opens their devices.
- For mediated devices it opens a VFIO group, removes devices that nobody has open, and removes their definitions and
  those that a power cut destroyed.
- ``pci_privileged`` binds and unbinds drivers of PCI functions, resets functions, makes virtual functions, sets their
  vGPU types, and reads serial numbers; ``vf_ports`` sets the MAC addresses and VLANs of virtual functions.
- ``disk_nodes`` opens disks, and ``nvme_controllers`` asks and commands the controllers of NVMe disks.

A service that runs as root does this work itself. Any other service uses oslo.privsep, whose daemon runs the functions
that ``entry`` marks, and no others. Anybody with the service's rights may call these with any arguments. So none of
them takes a program, the path of a file to write, or a descriptor. The daemon sends what it opens: :mod:`.descriptors`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import errno
import functools
import glob
from importlib import metadata
import os
import pathlib
import re
import stat
import subprocess
import sys
from typing import Any
from typing import cast
from typing import Final
from typing import TypeVar

from oslo_concurrency import processutils
from oslo_config import cfg

from devicetrack import exception
from devicetrack import filelock
from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.conf import libvirt as options
from devicetrack.virt.libvirt import children
from devicetrack.virt.libvirt import descriptors
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import ndctl
from devicetrack.virt.libvirt import root

NDCTL_TIMEOUT_S = 60

_DAX = re.compile(r'dax[0-9]+\.[0-9]+')
_PARENT = re.compile(r'[0-9a-zA-Z][0-9a-zA-Z:._-]{0,63}')
_MAX_NUMBER = 2**31 - 1
# A program that writes its argument to standard output; its exit status reports the kernel's answer.
_WRITER_FAILED = 64
_WRITER = f"""
import os, sys
try:
    os.write(1, sys.argv[1].encode())
except OSError as error:
    sys.exit({_WRITER_FAILED} + error.errno)
"""

_Function = TypeVar('_Function', bound=Callable[..., Any])


def entry(of_sysfs: bool = False, opens: bool = False, made: Callable[[Any], object] = lambda answer: answer
          ) -> Callable[[_Function], _Function]:
    """Let the daemon run a function if this process does not have root's rights.

    The arguments of the function are given by position. They and its answer are simple values, as oslo.privsep passes
    them on. It makes tuples of lists and of named tuples. Of the errors OSError and CommandFailed pass. The function
    raises OSError if there is no privileged daemon, or it failed.

    :param of_sysfs: the first argument is where sysfs is. The daemon knows only the host's, and its callers do not name
        it. A tree elsewhere belongs to the caller, who uses it without the daemon
    :param opens: the function opens something and returns the descriptor, which the caller closes. The daemon gets the
        path of a socket as one more argument, and sends the descriptor there: see :mod:`.descriptors`
    :param made: makes the answer again of the daemon's simple values
    """
    def marked(of: _Function) -> _Function:
        @functools.wraps(of)
        def run(*arguments: Any) -> Any:
            if root.is_daemon:
                place = (root.SYSFS,) if of_sysfs else ()
                if not opens:
                    return of(*place, *arguments)
                *wanted, socket_path = arguments
                return descriptors.send(lambda: of(*place, *wanted), socket_path)
            if root.has_rights(arguments[0] if of_sysfs else None):
                return of(*arguments)
            asked = arguments[1:] if of_sysfs else arguments
            if opens:
                return descriptors.receive(lambda socket_path: _ask_daemon(run, *asked, socket_path))
            return made(_ask_daemon(run, *asked))

        root.ENTRY_POINTS.add(run)
        return cast(_Function, run)

    return marked


function: Final = entry()
in_sysfs: Final = entry(of_sysfs=True)


def _ask_daemon(of: Callable[..., Any], *arguments: object) -> Any:
    # Import it only here: a service that runs as root needs no daemon, and oslo.privsep is a tenth of all imports.
    from devicetrack.virt.libvirt import daemon
    try:
        return daemon.context.entrypoint(of)(*arguments)
    except (OSError, exception.CommandFailed):
        raise
    except Exception as error:
        raise OSError(errno.EINVAL, f'oslo.privsep: {type(error).__name__} in the daemon') from error


@function
def release() -> str:
    """Return the release of devicetrack that does the work.

    :raises OSError: there is no privileged daemon
    """
    return metadata.version('devicetrack')


def check_rights() -> None:
    """Have the daemon work once, if this process needs it.

    :raises OSError: there is no daemon, or its Python has another release of devicetrack
    """
    theirs, ours = release(), metadata.version('devicetrack')
    if theirs != ours:
        raise OSError(errno.EPROTO, f'the privileged daemon is of devicetrack {theirs}, and this is {ours}: its helper '
                                    'runs in another environment')


def run_ndctl(command: str, timeout_s: int = NDCTL_TIMEOUT_S) -> tuple[int, str]:
    """Run ndctl to list namespaces.

    :param command: the program for a service that runs as root. The daemon reads the option in its own configuration,
        since a program that a caller names would run with the daemon's rights
    :param timeout_s: how long it may take; the daemon reads that option too
    :returns: its exit status and what it printed
    :raises OSError: it cannot be run, users other than root can change it, or there is no privileged daemon
    :raises CommandFailed: it does not end in time
    """
    if not root.has_rights():
        status, printed = run_configured_ndctl()
        return status, printed
    ended: list[int | None] = []

    def end(child: subprocess.Popen[bytes]) -> None:
        children.kill(child)                    # the kernel may block it, so do not wait for it without a limit
        ended.append(child.returncode)
        # For a child that did not end in time nobody else closes them while the kernel blocks it.
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()

    try:
        output, _errors = processutils.execute(
            program(command), *ndctl.ARGUMENTS, cwd='/', env_variables={}, check_exit_code=False, timeout=timeout_s,
            preexec_fn=functools.partial(os.umask, 0o077), on_completion=end, binary=True)
    except subprocess.TimeoutExpired as error:
        raise exception.CommandFailed(command, f'did not end in {timeout_s} s') from error
    return ended[0] or 0, output.decode(errors='replace')


@function
def run_configured_ndctl() -> tuple[int, str]:
    """Run the ndctl that this process's own configuration names, as :func:`run_ndctl` does."""
    options.register(cfg.CONF)
    read = cfg.CONF[options.VPMEM_GROUP]
    return run_ndctl(read.ndctl_command, read.ndctl_timeout_s)


def program(path: str) -> str:
    """Resolve the path of a program that root may run: nobody else can replace it.

    :raises OSError: users other than root can replace it, or there is no such program
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
            raise PermissionError(errno.EPERM, f'users other than root can change {part}')
    return found


@entry(opens=True)
def open_dax(path: str, size_bytes: int) -> int:
    """Open a device-dax character device for reading and writing. The caller closes the descriptor.

    The descriptor holds the lock on the device's node, and so does every child that inherits it.

    :raises BlockingIOError: somebody else holds that lock
    :raises OSError: it cannot be opened, is no such device or has another size, another process has it open or mapped
        (EBUSY), or there is no privileged daemon
    """
    name = _dax_name(path)
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with ownfiles.closed_by_error(fd):
        status = os.fstat(fd)
        if not stat.S_ISCHR(status.st_mode):
            raise OSError(errno.EINVAL, 'not a character device')
        _check_dax(name, status.st_rdev, size_bytes)
        device_users.check_alone(fd)
    return fd


@function
def is_dax_locked(path: str) -> bool:
    """Whether a process holds the lock on the node of a device-dax character device, as one that wipes it does.

    :raises OSError: it cannot be opened, or there is no privileged daemon
    """
    _dax_name(path)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISCHR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, 'not a character device')
        return not filelock.flock(fd)
    finally:
        filelock.close(fd)


@function
def open_daxes(paths: Sequence[str]) -> list[str]:
    """Find those of some device-dax character devices that a process has open or mapped.

    :raises OSError: one is not there or is no such device, their users are unknown, or there is no privileged daemon
    """
    there = {path: os.lstat(path) for path in paths if _dax_name(path)}
    return sorted(device_users.opened({path: status for path, status in there.items() if stat.S_ISCHR(status.st_mode)}))


def _dax_name(path: str) -> str:
    name = os.path.basename(path)
    if path != os.path.join(root.DEVICES, name) or not _DAX.fullmatch(name):
        raise OSError(errno.EINVAL, 'not the path of a dax device')
    return name


def _check_dax(name: str, number: int, size_bytes: int) -> None:
    """Check that a device number belongs to the dax device of this name: a node can have any name.

    :raises OSError: it is not a dax device, is another dax device, or has another size
    """
    device = os.path.join(root.SYSFS, f'dev/char/{os.major(number)}:{os.minor(number)}')
    size = kernel_files.number(device, 'size')
    itself = kernel_files.link(device, 'subsystem'), os.path.basename(os.path.realpath(device))
    if size is None or itself != ('dax', name):
        raise OSError(errno.EINVAL, 'not the dax device of this name')
    if size != size_bytes:
        raise OSError(errno.EINVAL, f'it has {size} bytes, not {size_bytes}')


@function
def is_vfio_group_open(number: int) -> bool:
    """Whether a process has a VFIO group open, or a device of it.

    This opens the group for a moment. Another process that tries to open it in that moment finds it busy. If there is
    no node of the group, this looks for processes that have a device of it open: the kernel may have no VFIO groups.

    :param number: of the IOMMU group
    :raises FileNotFoundError: no device of the group has a driver of VFIO's
    :raises OSError: the kernel gave another error, or there is no privileged daemon
    """
    return is_group_open(number)


def is_group_open(number: int, sysfs: str | None = None) -> bool:
    """As :func:`is_vfio_group_open`.

    :param sysfs: where sysfs is; by default :data:`.root.SYSFS`
    """
    check_number(number)
    try:
        os.close(os.open(f'{root.VFIO}/{number}', os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except FileNotFoundError:
        nodes = _vfio_nodes(root.SYSFS if sysfs is None else sysfs, number)
        if nodes is None:
            raise
        return bool(device_users.users_of(nodes))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    return False


def _vfio_nodes(sysfs: str, number: int) -> dict[int, str] | None:
    """Find the character devices by which a process may have a function of an IOMMU group open by VFIO.

    They count if this process sees no node of the VFIO group: the kernel may be built without VFIO groups (Linux:
    Documentation/driver-api/vfio.rst, "VFIO Device cdev"), or this process may not see the host's ``/dev/vfio``.

    :returns: their names by their numbers; None if no function of the group has a driver of VFIO's
    :raises OSError: there are none, although a function has such a driver
    """
    functions = glob.glob(os.path.join(glob.escape(sysfs), f'kernel/iommu_groups/{number}/devices/*'))
    nodes = {}
    for path in (*(os.path.join(sysfs, 'class/vfio', name) for name in (f'{number}', f'noiommu-{number}')),
                 *(path for function in functions for path in glob.glob(f'{glob.escape(function)}/vfio-dev/*'))):
        with contextlib.suppress(FileNotFoundError):
            nodes[os.makedev(*map(int, kernel_files.text(path, 'dev').split(':')))] = os.path.basename(path)
    if nodes:
        return nodes
    if any('vfio' in os.path.basename(os.path.realpath(os.path.join(function, 'driver'))) for function in functions):
        raise OSError(errno.EIO, f'the kernel shows no VFIO device of the IOMMU group {number}')
    return None


@function
def remove_lost_definitions() -> None:
    """Put away what :func:`devicetrack.virt.libvirt.mdevctl.lost` finds.

    :raises OSError: they cannot be removed, or there is no privileged daemon
    """
    for path in mdevctl.lost():
        mdevctl.put_away(path)


@function
def remove_mdev(uuid: str) -> None:
    """Have the kernel remove a mediated device, as mdevctl does.

    :raises OSError: a process has it open (EBUSY), it is not there, it cannot be removed, or there is no privileged
        daemon
    """
    device = _mdev(uuid)
    group = os.path.basename(os.readlink(os.path.join(device, 'iommu_group')))
    # The kernel would wait for a process that has the device open.
    if is_group_open(int(group)):
        raise OSError(errno.EBUSY, 'a process has it open')
    fd = os.open(os.path.join(device, 'remove'), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, b'1\n')
    finally:
        os.close(fd)


@function
def remove_mdev_definition(parent: str, uuid: str) -> None:
    """Remove the file in which mdevctl keeps the definition of a mediated device that does not exist.

    :param parent: the parent's address
    :raises OSError: the device exists (EBUSY), there is no definition, it cannot be removed, or there is no privileged
        daemon
    """
    if os.path.lexists(_mdev(uuid)):
        raise OSError(errno.EBUSY, 'the device is there')
    if not _PARENT.fullmatch(parent):
        raise OSError(errno.EINVAL, 'not the name of a parent')
    path = os.path.join(mdevctl.DIRECTORY, parent, uuid)
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, 'not a definition')
    os.unlink(path)


def _mdev(uuid: str) -> str:
    if not vocabulary.is_uuid(uuid):
        raise OSError(errno.EINVAL, 'not a UUID')
    return os.path.join(root.SYSFS, 'bus/mdev/devices', uuid)


def write_attribute(path: str, data: bytes) -> None:
    """Write an attribute in one call, as the kernel wants it.

    :raises OSError: it cannot be written, or the kernel refuses the value
    """
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def write_apart(path: str, data: bytes, timeout_s: float) -> None:
    """Have a separate process write an attribute, because the kernel may block that write forever.

    A process with such a blocked thread cannot end, and keeps every lock that it has.

    :raises OSError: as :func:`write_attribute`. ETIMEDOUT: no answer in time; the write may still happen
    """
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        child = subprocess.Popen((sys.executable, '-I', '-S', '-c', _WRITER, data.decode()), stdin=subprocess.DEVNULL,
                                 stdout=fd, stderr=subprocess.DEVNULL, start_new_session=True, env={}, cwd='/')
    finally:
        os.close(fd)
    try:
        status = child.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, f'the kernel has not answered within {timeout_s:g} s') from error
    if status > _WRITER_FAILED:
        raise OSError(status - _WRITER_FAILED, os.strerror(status - _WRITER_FAILED))
    if status != 0:
        raise OSError(errno.EIO, f'the process that writes it ended with status {status}')


def below(sysfs: str, path: str) -> str:
    found, top = os.path.realpath(path, strict=True), os.path.realpath(sysfs)
    if os.path.commonpath((found, top)) != top:
        raise OSError(errno.EXDEV, f'{path} leads out of {sysfs}')
    return found


def check_number(number: int) -> None:
    if type(number) is not int or not 0 <= number <= _MAX_NUMBER:
        raise OSError(errno.EINVAL, 'not a number')
