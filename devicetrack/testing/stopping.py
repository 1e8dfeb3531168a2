"""Suspends processes, as if their machine hung."""

from __future__ import annotations

import contextlib
import os
import signal
import time


def stop(pid: int) -> None:
    """Suspend a process, and wait until none of its threads runs: they run on for a moment after the signal."""
    with contextlib.suppress(ProcessLookupError):       # it has ended
        os.kill(pid, signal.SIGSTOP)
        while not _has_stopped(pid):
            time.sleep(0.001)


def _has_stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped or has ended (proc_pid_stat(5))."""
    try:
        for task in os.listdir(f'/proc/{pid}/task'):
            with open(f'/proc/{pid}/task/{task}/stat', encoding='ascii', errors='replace') as file:
                if file.read().rpartition(')')[2].split()[0] not in 'TtZX':
                    return False
    except (FileNotFoundError, ProcessLookupError):
        pass
    return True
