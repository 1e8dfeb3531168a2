"""What needs root: listing namespaces, opening one of their devices or a VFIO group, removing definitions of mediated
devices that were lost, and setting the vGPU type of a virtual function. Nothing else here or elsewhere does.

A service that runs as root does all of it itself. Another one does them through oslo.privsep, whose daemon runs the few
functions below with one capability. A device is opened by the daemon and handed over as an open descriptor
through a unix socket of the caller's (SCM_RIGHTS, unix(7)), because it is wiped by a child of the service: that
child then lives as long as its work takes, whatever becomes of the service or of the daemon, and never has more
rights than the descriptor.
"""

from __future__ import annotations

from collections.abc import Sequence
import errno
import os
import re
import socket
import stat
import subprocess
import tempfile

from oslo_privsep import capabilities
from oslo_privsep import priv_context

from devicetrack import exception
from devicetrack.virt.libvirt import mdevctl

NDCTL_TIMEOUT_S = 60

# The kernel's VFIO groups, by the numbers of their IOMMU groups (Linux: Documentation/driver-api/vfio.rst).
VFIO = '/dev/vfio'

SYSFS = '/sys'

# A device node belongs to the hypervisor's user while a guest has it, and to root otherwise: opening any needs
# CAP_DAC_OVERRIDE (capabilities(7)). Reading sysfs, which is what ndctl does for a list, needs no more than
# root's own.
context = priv_context.PrivContext(
    'devicetrack', cfg_section='devicetrack_privileged', pypath=f'{__name__}.context',
    capabilities=[capabilities.CAP_DAC_OVERRIDE])

_DAX = re.compile(r'/dev/dax[0-9]+\.[0-9]+')
_PCI_ADDRESS = re.compile(r'[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]')


def run_ndctl(arguments: Sequence[str]) -> tuple[int, str]:
    """Run ndctl to list namespaces.

    :returns: its exit status and what it printed
    :raises OSError: it cannot be run
    :raises CommandFailed: it does not end, or the privileged daemon cannot be had
    """
    if os.geteuid() == 0:
        return _run_ndctl(arguments)
    try:
        status, output = _run_ndctl_privileged(list(arguments))
    except (OSError, exception.CommandFailed):
        raise
    except Exception as error:
        raise exception.CommandFailed('oslo.privsep', f'{type(error).__name__} in the daemon') from error
    return status, output


def open_dax(path: str) -> int:
    """Open a device-dax character device for reading and writing; the descriptor is the caller's.

    :raises OSError: it cannot be opened or is no such device, or the privileged daemon cannot be had
    """
    if os.geteuid() == 0:
        return _open_dax(path)
    with tempfile.TemporaryDirectory(prefix='devicetrack-') as directory, \
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.path.join(directory, 'fd'))
        listener.listen(1)
        listener.settimeout(NDCTL_TIMEOUT_S)
        try:
            _send_dax(path, listener.getsockname())
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EINVAL, f'oslo.privsep: {type(error).__name__} in the daemon') from error
        connection, _address = listener.accept()
        with connection:
            _message, descriptors, _flags, _peer = socket.recv_fds(connection, 1, 1)
    if len(descriptors) != 1:
        raise OSError(errno.EINVAL, 'the privileged daemon sent no descriptor')
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def is_vfio_group_open(number: int) -> bool:
    """Whether anybody has a VFIO group open, or a device of it.

    It is opened to see that, and closed again; who wants it in that moment is told that it is busy.

    :raises OSError: the kernel does not say, or the privileged daemon cannot be had
    """
    if os.geteuid() == 0:
        return _is_vfio_group_open(number)
    try:
        is_open: bool = _is_vfio_group_open_privileged(number)
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EINVAL, f'oslo.privsep: {type(error).__name__} in the daemon') from error
    return is_open


def remove_lost_definitions() -> None:
    """Remove what :func:`devicetrack.virt.libvirt.mdevctl.lost` finds.

    :raises OSError: they cannot be removed, or the privileged daemon cannot be had
    """
    if os.geteuid() == 0:
        _remove_lost_definitions()
        return
    try:
        _remove_lost_definitions_privileged()
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EINVAL, f'oslo.privsep: {type(error).__name__} in the daemon') from error


def set_vgpu_type(root: str, address: str, number: int) -> None:
    """Write the vGPU type of a virtual function; 0 takes it away.

    :param root: where sysfs is; a tree that stands for it is the caller's own, and is written without the daemon
    :raises OSError: it cannot be written, the vendor's driver refuses it, or the privileged daemon cannot be had
    """
    if root != SYSFS or os.geteuid() == 0:
        _set_vgpu_type(root, address, number)
        return
    try:
        _set_vgpu_type_privileged(address, number)
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EINVAL, f'oslo.privsep: {type(error).__name__} in the daemon') from error


@context.entrypoint
def _run_ndctl_privileged(arguments: list[str]) -> tuple[int, str]:
    return _run_ndctl(arguments)


@context.entrypoint
def _send_dax(path: str, socket_path: str) -> None:
    fd = _open_dax(path)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(socket_path)
            socket.send_fds(connection, [b'.'], [fd])
    finally:
        os.close(fd)


@context.entrypoint
def _is_vfio_group_open_privileged(number: int) -> bool:
    return _is_vfio_group_open(number)


@context.entrypoint
def _remove_lost_definitions_privileged() -> None:
    _remove_lost_definitions()


@context.entrypoint
def _set_vgpu_type_privileged(address: str, number: int) -> None:
    _set_vgpu_type(SYSFS, address, number)


def _run_ndctl(arguments: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=NDCTL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise exception.CommandFailed(arguments[0], f'did not end in {NDCTL_TIMEOUT_S} s') from error
    return done.returncode, done.stdout.decode(errors='replace')


def _open_dax(path: str) -> int:
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


def _is_vfio_group_open(number: int) -> bool:
    try:
        os.close(os.open(f'{VFIO}/{number:d}', os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    return False


def _remove_lost_definitions() -> None:
    for path in mdevctl.lost():
        os.unlink(path)


def _set_vgpu_type(root: str, address: str, number: int) -> None:
    if not _PCI_ADDRESS.fullmatch(address):
        raise OSError(errno.EINVAL, 'not a PCI address')
    fd = os.open(os.path.join(root, 'bus/pci/devices', address, 'nvidia/current_vgpu_type'),
                 os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, b'%d\n' % number)
    finally:
        os.close(fd)
