"""All work of the library that needs root.

It lists namespaces, opens their devices or a VFIO group, removes mediated devices that nobody has open, their
definitions and lost ones, and sets the vGPU type of a virtual function. A service that runs as root does it itself. Any
other service uses oslo.privsep, whose daemon runs these functions and no others. The daemon opens a device and sends
the descriptor through a unix socket of the caller (SCM_RIGHTS, unix(7)). So a child of the service can wipe the device:
it outlives the service and the daemon if need be, and its only right is the descriptor.
"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from typing import Any

from devicetrack import exception
from devicetrack.virt.libvirt import root


def run_ndctl(command: str, timeout_s: int = root.NDCTL_TIMEOUT_S) -> tuple[int, str]:
    """Run ndctl to list namespaces.

    :param command: the program for a service that runs as root. The daemon reads the option in its own configuration,
        since a program that a caller names would run with the daemon's rights
    :param timeout_s: how long it may take; the daemon reads that option too
    :returns: its exit status and what it printed
    :raises OSError: it cannot be run, others than root can change it, or there is no privileged daemon
    :raises CommandFailed: it does not end
    """
    status, output = root.run_ndctl(command, timeout_s) if os.geteuid() == 0 else _ask_daemon('run_ndctl')
    return status, output


def open_dax(path: str, size_bytes: int) -> int:
    """Open a device-dax character device for reading and writing. The caller closes the descriptor.

    The descriptor holds the lock on the device's node, and so does every child that inherits it.

    :raises BlockingIOError: somebody else holds that lock
    :raises OSError: it cannot be opened, is no such device or has another size, another process has it open or mapped
        (EBUSY), or there is no privileged daemon
    """
    if os.geteuid() == 0:
        return root.open_dax(path, size_bytes)
    with tempfile.TemporaryDirectory(prefix='devicetrack-') as directory, \
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.path.join(directory, 'fd'))
        listener.listen(1)
        listener.settimeout(root.NDCTL_TIMEOUT_S)
        _ask_daemon('send_dax', path, size_bytes, listener.getsockname())
        connection, _address = listener.accept()
        with connection:
            _message, descriptors, _flags, _peer = socket.recv_fds(connection, 1, 1)
    if len(descriptors) != 1:
        raise OSError(errno.EINVAL, 'the privileged daemon sent no descriptor')
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def is_dax_locked(path: str) -> bool:
    """Whether somebody holds the lock on the node of a device-dax character device: whoever wipes it.

    :raises OSError: it cannot be opened, or there is no privileged daemon
    """
    return bool(_run('is_dax_locked', path))


def is_vfio_group_open(number: int) -> bool:
    """Whether a process has a VFIO group open, or a device of it.

    This opens the group for a moment. Another process that tries to open it in that moment finds it busy.

    :raises OSError: the kernel gave another error, or there is no privileged daemon
    """
    return bool(_run('is_vfio_group_open', number))


def remove_lost_definitions() -> None:
    """Remove what :func:`devicetrack.virt.libvirt.mdevctl.lost` finds.

    :raises OSError: they cannot be removed, or there is no privileged daemon
    """
    _run('remove_lost_definitions')


def remove_mdev(uuid: str) -> None:
    """Have the kernel remove a mediated device, as mdevctl does.

    :raises OSError: a process has it open (EBUSY), it is not there, it cannot be removed, or there is no privileged
        daemon
    """
    _run('remove_mdev', uuid)


def remove_mdev_definition(parent: str, uuid: str) -> None:
    """Remove the file in which mdevctl keeps the definition of a mediated device that does not exist.

    :param parent: the parent's address
    :raises OSError: the device exists (EBUSY), there is no definition, it cannot be removed, or there is no privileged
        daemon
    """
    _run('remove_mdev_definition', parent, uuid)


def set_vgpu_type(sysfs: str, address: str, number: int) -> None:
    """Write the vGPU type of a virtual function; 0 takes it away.

    :param sysfs: where sysfs is. A tree elsewhere belongs to the caller, who writes it without the daemon
    :raises OSError: it cannot be written, the vendor's driver refuses it, or there is no privileged daemon
    """
    if sysfs != root.SYSFS or os.geteuid() == 0:
        root.set_vgpu_type(sysfs, address, number)
    else:
        _ask_daemon('set_vgpu_type', address, number)


def _run(function: str, *arguments: Any) -> Any:
    return getattr(root, function)(*arguments) if os.geteuid() == 0 else _ask_daemon(function, *arguments)


def _ask_daemon(function: str, *arguments: Any) -> Any:
    # A service that runs as root needs no daemon, and oslo.privsep is a tenth of all that would be imported.
    from devicetrack.virt.libvirt import daemon
    try:
        return getattr(daemon, function)(*arguments)
    except (OSError, exception.CommandFailed):
        raise
    except Exception as error:
        raise OSError(errno.EINVAL, f'oslo.privsep: {type(error).__name__} in the daemon') from error
