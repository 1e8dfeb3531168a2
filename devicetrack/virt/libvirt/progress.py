"""Reads what wipers write into the lock files of their devices, for people who want to know how far they are.

A wiper tells it to whoever asks, not only to the process that started it: that one may be gone, and another manager or
a command has no other source. Whether a file has an old line, of a wiper that was killed, is seen from its process.
"""

from __future__ import annotations

import json
import os

from devicetrack.objects.values import WipeProgress
from devicetrack.virt.libvirt import wiper


def read(lock_path: str) -> WipeProgress | None:
    """How far the wipe is of the device with this lock file; None when nobody wipes it, or nobody can say.

    A wiper in another PID namespace (another container) says nothing here.
    """
    try:
        fd = os.open(lock_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            said = json.loads(os.pread(fd, wiper.LINE, 0))
        finally:
            os.close(fd)
        if wiper.started_at(int(said['pid'])) != said['started']:
            return None
        left = said['left']
        return WipeProgress(str(said['phase']), int(said['done']), int(said['of']), int(said['rate']),
                            None if left is None else int(left))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
