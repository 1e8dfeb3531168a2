"""Reads the progress of wipes from the lock files of their devices, for people who want to know it.

A wiper writes its progress there, and not only to the process that started it: that process may be gone, and another
manager or a command has no other source. A killed wiper leaves an old line. The line names the wiper's process, so a
reader can tell that it is old.
"""

from __future__ import annotations

import json
import os

from devicetrack.objects.values import WipeProgress
from devicetrack.virt.libvirt import wiper


def read(lock_path: str) -> WipeProgress | None:
    """Return the progress of the wipe of the device with this lock file; None if nobody wipes it, or it is unknown.

    The progress of a wiper in another PID namespace (another container) is unknown.
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
