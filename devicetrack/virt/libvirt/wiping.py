"""Starts the wiper, follows it, and judges its proof."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

from devicetrack import exception
from devicetrack import log
from devicetrack.virt.libvirt import children
from devicetrack.virt.libvirt import wiper

LOG = log.logger(__name__)


def wipe(name: str, device_fd: int, lock_fd: int, size_bytes: int, align_bytes: int, rate_mib_s: int,
         how: str = wiper.ZERO) -> None:
    """Zero a device in a child process and wait for its proof. Blocks as long as the wipe takes.

    The device is a regular file, a block device or a device-dax character device. The child writes zeroes to all of it,
    flushes them (fsync, or libpmem for device-dax), reads every byte back, and reports that all are zero. So after this
    the caller need not flush or read. Before the call, the caller checks that ``device_fd`` is the intended device.

    The child inherits the device and the lock. If this process dies, the child goes on, and the lock lasts until its
    last write. The child has a session of its own, so a signal for this process's group does not reach it.

    :param name: the device's name in the log
    :param device_fd: open for reading and writing, without ``O_APPEND``. The caller closes it
    :param lock_fd: of the lock, as :meth:`.api.DeviceKind.unclaim` gets it. The child writes its progress there
    :param size_bytes: the recorded size. If a file or block device has another size, nothing is written
    :param align_bytes: the alignment of a device-dax device, which can be mapped only in whole units of it. It has no
        effect on files and block devices: 0 is right for them
    :param rate_mib_s: how many MiB a second the child writes, and then reads, at most; 0 for no limit
    :param how: ``zero``: write zeroes; ``discard``: discard the blocks of a block device; ``read``: only read the
        zeroes that something else made
    :raises CommandFailed: nothing proves that the device is clean
    """
    command = (sys.executable, '-I', '-S', wiper.__file__,
               '--device-fd', str(device_fd), '--lock-fd', str(lock_fd), '--size', str(size_bytes),
               '--align', str(align_bytes), '--rate', str(rate_mib_s << 20), '--how', how)
    LOG.info('Wiping namespace %s of %d bytes.', name, size_bytes)
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            pass_fds=(device_fd, lock_fd), start_new_session=True,
            env={}, cwd='/')        # PMEM_NO_FLUSH would keep libpmem from making the zeroes durable
    except OSError as error:
        raise exception.CommandFailed('the wiper', f'cannot be run: {error.strerror}') from error
    last: dict[str, Any] = {}
    told: dict[str, Any] = {}
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            last = children.read(line)
            news = children.is_news(last, told, size_bytes)
            if last.get('phase') != 'failed':           # the error below has the reason
                LOG.log(logging.INFO if news else logging.DEBUG, 'Wiping namespace %s: %s, %s of %d bytes.',
                        name, last.get('phase'), last.get('done'), size_bytes)
            told = last if news else told
    if child.returncode != 0 or last != {'phase': 'clean', 'done': size_bytes, 'of': size_bytes}:
        raise exception.CommandFailed(
            'the wiper', str(last.get('reason') or f'{children.end(child.returncode)} without proof'))
    LOG.info('Namespace %s is clean: %d bytes were zeroed and read back.', name, size_bytes)
