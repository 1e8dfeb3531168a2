"""What needs root: listing namespaces, opening one of their devices or a VFIO group, removing definitions of mediated
devices that were lost, and setting the vGPU type of a virtual function. Nothing else here or elsewhere does.

A service that runs as root does all of it itself. Another one does them through oslo.privsep, whose daemon runs a few
functions with one capability. A device is opened by the daemon and handed over as an open descriptor
through a unix socket of the caller's (SCM_RIGHTS, unix(7)), because it is wiped by a child of the service: that
child then lives as long as its work takes, whatever becomes of the service or of the daemon, and never has more
rights than the descriptor.
"""

from __future__ import annotations

from collections.abc import Sequence
import errno
import os
import socket
import tempfile
from typing import Any

from devicetrack import exception
from devicetrack.virt.libvirt import root


def run_ndctl(arguments: Sequence[str]) -> tuple[int, str]:
    """Run ndctl to list namespaces.

    :returns: its exit status and what it printed
    :raises OSError: it cannot be run, or the privileged daemon cannot be had
    :raises CommandFailed: it does not end
    """
    if os.geteuid() == 0:
        return root.run_ndctl(arguments)
    status, output = _ask_daemon('run_ndctl', list(arguments))
    return status, output


def open_dax(path: str) -> int:
    """Open a device-dax character device for reading and writing; the descriptor is the caller's.

    :raises OSError: it cannot be opened or is no such device, or the privileged daemon cannot be had
    """
    if os.geteuid() == 0:
        return root.open_dax(path)
    with tempfile.TemporaryDirectory(prefix='devicetrack-') as directory, \
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.path.join(directory, 'fd'))
        listener.listen(1)
        listener.settimeout(root.NDCTL_TIMEOUT_S)
        _ask_daemon('send_dax', path, listener.getsockname())
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
    return root.is_vfio_group_open(number) if os.geteuid() == 0 else bool(_ask_daemon('is_vfio_group_open', number))


def remove_lost_definitions() -> None:
    """Remove what :func:`devicetrack.virt.libvirt.mdevctl.lost` finds.

    :raises OSError: they cannot be removed, or the privileged daemon cannot be had
    """
    if os.geteuid() == 0:
        root.remove_lost_definitions()
    else:
        _ask_daemon('remove_lost_definitions')


def set_vgpu_type(sysfs: str, address: str, number: int) -> None:
    """Write the vGPU type of a virtual function; 0 takes it away.

    :param sysfs: where sysfs is; a tree that stands for it is the caller's own, and is written without the daemon
    :raises OSError: it cannot be written, the vendor's driver refuses it, or the privileged daemon cannot be had
    """
    if sysfs != root.SYSFS or os.geteuid() == 0:
        root.set_vgpu_type(sysfs, address, number)
    else:
        _ask_daemon('set_vgpu_type', address, number)


def _ask_daemon(function: str, *arguments: Any) -> Any:
    # A service that runs as root has no daemon, and loading oslo.privsep takes a tenth of all that it loads.
    from devicetrack.virt.libvirt import daemon
    try:
        return getattr(daemon, function)(*arguments)
    except (OSError, exception.CommandFailed):
        raise
    except Exception as error:
        raise OSError(errno.EINVAL, f'oslo.privsep: {type(error).__name__} in the daemon') from error
