"""Start the wiper, follow it, and judge its proof."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

from devicetrack import exception
from devicetrack.virt.libvirt import wiper

LOG = logging.getLogger(__name__)


def wipe(name: str, device_fd: int, lock_fd: int, size_bytes: int, align_bytes: int, rate_mib_s: int) -> None:
    """Zero a namespace in a child process and wait for its proof. Blocks as long as the wipe takes.

    The child holds the device and the lock by inheritance: when this process dies it goes on, and the lock lasts
    until its last write. It has a session of its own, so that a signal for this process's group does not reach
    it.

    :raises CommandFailed: it is not proven that the namespace is clean
    """
    command = (sys.executable, '-I', '-S', wiper.__file__,
               '--device-fd', str(device_fd), '--lock-fd', str(lock_fd), '--size', str(size_bytes),
               '--align', str(align_bytes), '--rate', str(rate_mib_s << 20))
    LOG.info('Wiping namespace %s of %d bytes.', name, size_bytes)
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            pass_fds=(device_fd, lock_fd), start_new_session=True)
    except OSError as error:
        raise exception.CommandFailed('the wiper', f'cannot be run: {error.strerror}') from error
    last: dict[str, Any] = {}
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            last = _read(line)
            LOG.info('Wiping namespace %s: %s, %s of %d bytes.',
                     name, last.get('phase'), last.get('done'), size_bytes)
    if child.returncode != 0 or last != {'phase': 'clean', 'done': size_bytes, 'of': size_bytes}:
        raise exception.CommandFailed(
            'the wiper', str(last.get('reason') or f'ended with status {child.returncode} and without proof'))
    LOG.info('Namespace %s is clean: %d bytes were zeroed and read back.', name, size_bytes)


def _read(line: bytes) -> dict[str, Any]:
    try:
        read = json.loads(line)
    except ValueError:
        read = None
    return read if isinstance(read, dict) else {'phase': 'unreadable'}
