"""The work for which the kind needs root: a file may belong to root, or to the user of the hypervisor.

A service that runs as root calls ``clear_as_root`` itself. For any other service the daemon of oslo.privsep calls it.
"""

from __future__ import annotations

import os
import stat

from oslo_config import cfg
from oslo_privsep import capabilities
from oslo_privsep import priv_context

from devicetrack import conf as registry
from devicetrack.virt.libvirt import device_users
from scratch_kind import handles
from scratch_kind import options

# The daemon has root's rights to files, and sees which files a process has open. It has no other right of root.
context = priv_context.PrivContext(
    'scratch_kind', cfg_section='scratch_privileged', pypath=f'{__name__}.context',
    capabilities=[capabilities.CAP_DAC_OVERRIDE, capabilities.CAP_SYS_PTRACE])


def clear(directory: str, name: str, handle: str, size_bytes: int) -> int:
    """Clear a file of the directory, so that it is one hole. Return how many blocks it still has.

    :raises OSError: there is no such file, a process has it open or mapped (EBUSY), or it cannot be cleared
    :raises ValueError: it is another file, or a file of another size
    """
    if os.geteuid() == 0:
        return clear_as_root(directory, name, handle, size_bytes)
    return int(clear_in_daemon(name, handle, size_bytes))


@context.entrypoint
def clear_in_daemon(name: str, handle: str, size_bytes: int) -> int:
    """Anybody with the service's rights may call this with any arguments, so the directory is no argument."""
    registry.register(cfg.CONF, options.GROUP, options.OPTIONS)
    return clear_as_root(cfg.CONF.scratch.directory, name, handle, size_bytes)


def clear_as_root(directory: str, name: str, handle: str, size_bytes: int) -> int:
    if not name or name != os.path.basename(name):
        raise ValueError(f'{name!r} is no name of a file in the directory')
    fd = os.open(os.path.join(directory, name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size_bytes:
            raise ValueError(f'{name!r} is no file of {size_bytes} bytes')
        if handles.of_open(fd) != handle:               # another file may just have got the name
            raise ValueError(f'{name!r} is another file')
        device_users.check_alone(fd)
        os.ftruncate(fd, 0)
        os.ftruncate(fd, size_bytes)
        os.fsync(fd)
        return os.fstat(fd).st_blocks
    finally:
        os.close(fd)
