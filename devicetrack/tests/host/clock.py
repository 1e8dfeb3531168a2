"""The time that a process could have used: what it ran and what it slept, without what it waited for a processor.

A limit is there for what hangs. On a busy machine an emulated host gets a tenth of a processor, and takes ten times as
long to boot; by this clock it takes as long as ever.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
from typing import Final
from typing import TypeVar

# Long enough to cost nothing.
LOOK_EVERY_S: Final = 1.0
_NANOSECONDS: Final = 1e-9

Item = TypeVar('Item')


class Clock:
    """The clock of one process; as long as it exists.

    :param pid: None for a clock that shows the time that passes
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._waited_s = 0.0

    def now(self) -> float:
        """Seconds since some time in the past."""
        if self._pid is not None:
            self._waited_s = max(self._waited_s, waited_s(self._pid))
        return time.monotonic() - self._waited_s

    def get(self, of: queue.SimpleQueue[Item], timeout_s: float) -> Item:
        """Take the next of a queue.

        :raises queue.Empty: there is none for so long, by this clock
        """
        until = self.now() + timeout_s
        while True:
            with contextlib.suppress(queue.Empty):
                return of.get(timeout=max(0.0, min(LOOK_EVERY_S, until - self.now())))
            if self.now() >= until:
                raise queue.Empty


def waited_s(pid: int) -> float:
    """For how long the thread of a process that waited most was ready to run and had no processor; 0 if it is gone.

    The kernel counts that in nanoseconds (Linux: Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat).
    """
    longest = 0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f'/proc/{pid}/task'):
            with contextlib.suppress(OSError), open(f'/proc/{pid}/task/{thread}/schedstat', encoding='ascii') as file:
                longest = max(longest, int(file.read().split()[1]))
    return longest * _NANOSECONDS
