"""Starts the formatter, follows it, and judges its output."""

from __future__ import annotations

from collections.abc import Sequence
import errno
import subprocess

from devicetrack import log
from devicetrack.virt.libvirt import children
from devicetrack.virt.libvirt import nvme_admin

LOG = log.logger(__name__)


def run(name: str, controller_fd: int, disk_fds: Sequence[int], lock_fd: int, nsid: int, wanted: nvme_admin.Format,
        erase: int, timeout_s: int, size_bytes: int) -> None:
    """Have a child process format a namespace. Blocks until the controller has formatted it.

    The child inherits the descriptors and the lock. If this process dies, the child goes on, and the lock lasts until
    the controller has ended. It has a session of its own, so a signal for this process's group does not reach it.

    :raises OSError: the controller did not format it, or nothing shows whether it did
    """
    command = (*children.command('formatter'), '--controller-fd', str(controller_fd), '--lock-fd', str(lock_fd),
               *(word for fd in disk_fds for word in ('--disk-fd', str(fd))), '--size', str(size_bytes),
               '--nsid', str(nsid), '--lbaf', str(wanted.lbaf), '--extended', str(int(wanted.extended)),
               '--protection', str(wanted.protection), '--protection-first', str(int(wanted.protection_first)),
               '--erase', str(erase), '--timeout', str(timeout_s))
    LOG.info('Formatting namespace %s of %d bytes.', name, size_bytes)
    last: dict[str, object] = {}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          pass_fds=(controller_fd, *disk_fds, lock_fd), start_new_session=True, env={},
                          cwd='/') as child:
        assert child.stdout is not None
        for line in child.stdout:
            last = children.read(line)
            LOG.debug('Formatting namespace %s: %s.', name, last.get('done'))
    if child.returncode != 0 or last != {'phase': 'formatted', 'done': size_bytes, 'of': size_bytes}:
        raise OSError(errno.EIO, str(last.get('reason') or f'the formatter {children.end(child.returncode)}'))
    LOG.info('The controller of namespace %s has formatted it.', name)
