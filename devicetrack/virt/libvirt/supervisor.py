"""Runs an operator's program on a device with a limit of time, and leaves no process of it.

It runs the program without a shell, in a session of its own. At the limit, and also after the program has ended, it
kills all processes that descend from the program, and waits for their end. The kernel gives it those whose parents have
ended (``PR_SET_CHILD_SUBREAPER``, prctl(2)), so a process in a session of its own cannot leave.

So this is for a process that has no other children: the program that does jobs (:mod:`.worker`) imports this module and
has the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import time

from devicetrack.virt.libvirt import progress

KEPT = 4096                     # bytes of the program's output
_PERCENT = re.compile(rb'progress ([0-9]{1,3})')
_ENDS_IN_S = 10.0               # how long a killed process may take to end
_LOOK_EVERY_S = 1.0
_KILL_EVERY_S = 0.02
_PR_SET_CHILD_SUBREAPER = 36    # linux/prctl.h


class Output:
    """The end of a program's output."""

    def __init__(self) -> None:
        self._kept = b''

    def add(self, data: bytes) -> None:
        self._kept = (self._kept + data)[-KEPT:]

    @property
    def lines(self) -> list[bytes]:
        return self._kept.rstrip(b'\n').split(b'\n')

    @property
    def percent(self) -> int | None:
        """Return the last progress among whole lines; None if there is none."""
        found = [number for line in self._kept.split(b'\n')[:-1] if (number := _PERCENT.fullmatch(line.strip()))]
        return min(int(found[-1][1]), 100) if found else None

    @property
    def text(self) -> str:
        return self._kept.decode(errors='replace')


def run(command: list[str], lock_fd: int, limit_s: float, reporter: progress.Reporter) -> tuple[int, Output, Output]:
    """Run a program to its end, and then end all processes that descend from it.

    :returns: its status, its standard output, and its standard output and error together
    :raises Failed: it did not end in time, and was killed; or it, or a process that descends from it, was killed and
        has not ended
    :raises OSError: it cannot be run
    """
    _adopt_descendants()
    out_reader, out_writer = os.pipe()
    error_reader, error_writer = os.pipe()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out_writer, stderr=error_writer,
                                 pass_fds=(lock_fd,), start_new_session=True, cwd='/', umask=0o077)
    finally:
        os.close(out_writer)
        os.close(error_writer)
    out, everything = Output(), Output()
    poll = select.poll()
    for fd in (out_reader, error_reader):
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + limit_s
    try:
        while _reap(child) and child.returncode is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise progress.Failed(f'it did not end in {limit_s:g} s, and was killed')
            for fd, _events in poll.poll(min(left, _LOOK_EVERY_S) * 1000):
                with contextlib.suppress(BlockingIOError):
                    if not _read(fd, everything, out if fd == out_reader else None):
                        poll.unregister(fd)
            # Never report 100: only the proof may say that the program is done.
            reporter('program', min(out.percent or 0, 99))
        # The program's last output is in the pipes. A child that it left behind may hold them open, so do not wait for
        # their end.
        for fd in (out_reader, error_reader):
            with contextlib.suppress(BlockingIOError):
                while _read(fd, everything, out if fd == out_reader else None):
                    pass
        return child.returncode, out, everything
    finally:
        os.close(out_reader)
        os.close(error_reader)
        _end_all(child)


def _adopt_descendants() -> None:
    """Become the parent of every descendant whose parent ends.

    :raises OSError: the kernel refuses it
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_CHILD_SUBREAPER, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _reap(child: subprocess.Popen[bytes]) -> bool:
    """Take the status of every child that has ended, adopted ones too; False if no child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)


def _end_all(child: subprocess.Popen[bytes]) -> None:
    """Kill all children, then those that become children by that, until none is left.

    A child's number cannot be another process's before :func:`_reap`, so nobody else is killed.

    :raises Failed: the kernel keeps one while it waits for a device, one runs as another user, or the program left one
        and /proc is not there to tell its number
    """
    deadline = time.monotonic() + _ENDS_IN_S
    while _reap(child):
        children = {*_children(), *(() if child.returncode is not None else (child.pid,))}
        if time.monotonic() >= deadline:
            if not children:
                raise progress.Failed('it left a process that has not ended, and /proc does not show which one')
            raise progress.Failed(f'its process {", ".join(map(str, sorted(children)))} was killed and has not ended')
        for pid in children:
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_EVERY_S)


def _children() -> list[int]:
    """Return the numbers of this process's children, adopted ones too, as far as it may see them."""
    found = []
    try:
        # In the /proc of another PID namespace the same numbers are other processes (pid_namespaces(7)).
        names = os.listdir('/proc') if os.readlink('/proc/self') == str(os.getpid()) else []
    except OSError:
        names = []                              # it is not mounted, or does not know this process
    for pid in filter(str.isdecimal, names):
        with contextlib.suppress(OSError), open(f'/proc/{pid}/stat', 'rb') as file:
            if int(file.read().rpartition(b')')[2].split()[1]) == os.getpid():
                found.append(int(pid))
    return found


def _read(fd: int, everything: Output, out: Output | None) -> bool:
    """Read the available output; False at its end.

    :raises BlockingIOError: there is no output now
    """
    data = os.read(fd, 65536)
    everything.add(data)
    if out is not None:
        out.add(data)
    return bool(data)
