"""How far a job on a device is: whoever does it says so, and anybody can read it from the lock file of the device.

The program that does jobs (:mod:`.worker`) imports this module and has the standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time

# The ways to zero a device. The first two are also phases, after which every byte is read back.
ZERO = 'zero'
DISCARD = 'discard'
READ = 'read'

REPORT_EVERY_S = 1.0
LINE = 512


class Failed(Exception):
    """The job did not do what it was to do, or nothing shows that it did. The text says why."""


class Unheard(Exception):
    """Nobody reads the progress any more, so nobody wants the outcome."""


class Reporter:
    """Writes progress, once a second and at the end of a phase.

    It writes into the lock file of the device, for everybody: a command, or a manager that starts while the job of an
    earlier one goes on. The line there has the phase, what is done, the rate, the time left and the number of this
    process. A reader needs that number, because it must not take the lock to see whether anybody has it.

    :param size: what there is to do, for example bytes
    :param lock_fd: of the lock file; None if there is none
    :param out: a descriptor to which each report is written as a line of JSON, too, for the process that started this
        one; None if nobody did
    :param must_be_heard: whether to end when nobody reads ``out`` any more
    """

    def __init__(self, size: int, lock_fd: int | None = None, out: int | None = None,
                 must_be_heard: bool = False) -> None:
        self._size, self._lock_fd, self._out, self._must_be_heard, self._next = size, lock_fd, out, must_be_heard, 0.0
        self._process = {'pid': os.getpid(), 'started': 0}
        with contextlib.suppress(OSError):      # without it nobody else sees the progress
            self._process['started'] = started_at(os.getpid())
        self._began = time.monotonic()

    def __call__(self, phase: str, done: int) -> None:
        """Report that so much of a phase is done.

        :raises Unheard: nobody reads it, and somebody has to
        """
        now = time.monotonic()
        if now >= self._next or done == self._size:
            self._next = now + REPORT_EVERY_S
            self.write({'phase': phase, 'done': done, 'of': self._size})
            self._tell(phase, done, now)
        if done == self._size:
            self._began = now                   # the start of the next phase

    def _tell(self, phase: str, done: int, now: float) -> None:
        if self._lock_fd is None:
            return
        rate = int(done / max(now - self._began, 0.001))
        to_do = self._size - done + (self._size if phase in (ZERO, DISCARD) else 0)
        line = json.dumps({**self._process, 'phase': phase, 'done': done, 'of': self._size, 'rate': rate,
                           'left': to_do // rate if rate else None})
        # Write a line of constant length in one call, so that a reader sees either the old line or the new one.
        with contextlib.suppress(OSError):
            os.pwrite(self._lock_fd, line.ljust(LINE).encode(), 0)

    def end(self) -> None:
        """Remove the progress from the lock file."""
        if self._lock_fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock_fd, 0)

    def write(self, line: dict[str, object]) -> None:
        """Write a line to the process that started this one."""
        if self._out is None:
            return
        try:
            os.write(self._out, (json.dumps(line) + '\n').encode())
        except OSError as error:
            if self._must_be_heard:
                raise Unheard from error
            self._out = None


def started_at(pid: int) -> int:
    """Return a process's start time in clock ticks (proc_pid_stat(5)). A later process of the same number has another.

    :raises OSError: there is no such process, or it has ended
    """
    with open(f'/proc/{pid}/stat') as file:
        fields = file.read().rpartition(')')[2].split()
    if fields[0] in ('Z', 'X'):
        raise ProcessLookupError(pid)
    return int(fields[19])


def lock_file(lock_fd: int, *device_fds: int) -> int | None:
    """Return the lock's descriptor if it is a file of its own, into which progress may be written; None if it is not.

    :raises OSError: one of them is not open
    """
    lock, devices = os.fstat(lock_fd), list(map(os.fstat, device_fds))
    return lock_fd if stat.S_ISREG(lock.st_mode) and not any(os.path.samestat(lock, one) for one in devices) else None
