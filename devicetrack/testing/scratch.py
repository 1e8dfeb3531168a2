"""Directories for data that nobody needs after a test."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import tempfile
from typing import Final

# Not /tmp, which may be in memory. Servers that run as another user may enter /var/tmp.
DISK: Final = '/var/tmp'
_MEMORY: Final = '/dev/shm'
# All servers of a run fit into this, with the data of the tests. Containers often have only 64 MiB.
_ROOM_MIB: Final = 2048


def directory(durable: bool = False) -> str:
    """The directory for the data of tests. It is in memory if there is room. A killed process loses nothing there.

    :param durable: the directory must be on the disk: the data must survive a power failure, or the test measures the
        wait for the disk
    """
    if not durable:
        with contextlib.suppress(OSError):
            memory = os.statvfs(_MEMORY)
            if memory.f_bavail * memory.f_frsize >= _ROOM_MIB << 20 and os.access(_MEMORY, os.W_OK | os.X_OK):
                return _MEMORY
    return DISK


def make(kind: str, durable: bool = False) -> str:
    """Make a directory for data of this kind. The caller removes it. ``durable`` is as for :func:`directory`.

    The first call of a process also removes the directories of killed processes, because memory is scarce.
    """
    parent = directory(durable)
    _sweep(parent)
    made = tempfile.mkdtemp(prefix=f'devicetrack-{os.getpid()}-{kind}-', dir=parent)
    _lock(made)                                 # until this process and its forks have ended
    return made


def _lock(path: str) -> bool:
    """Take the lock of a directory, unless a living process has it."""
    locked = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(locked)
        return False
    return True


@functools.cache
def _sweep(parent: str) -> None:
    for name in os.listdir(parent):
        found = re.match(r'devicetrack-(\d+)-', name)
        # A process of another container that shares this memory is not in /proc, but it has the lock.
        if found and not os.path.exists(f'/proc/{found[1]}') and _lock(os.path.join(parent, name)):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)
