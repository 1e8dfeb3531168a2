"""Finds out which processes use a device or a file. The users of a device are root's to see."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from devicetrack import filelock

PROCESSES = '/proc'

# How long a child that is about to run its program may keep its parent's descriptors open. On a busy machine it has to
# wait for a processor first.
FORK_S = 1.0
_POLL_S = 0.01
_ENDED = 0


def check_alone(fd: int) -> None:
    """Take the lock on an open device or file, and check that no other process has it open or mapped.

    A child of this process that has not run its program yet does not count as a user. The lock lasts until every
    process that got this descriptor has closed it.

    :raises BlockingIOError: somebody else has the lock
    :raises OSError: EBUSY: another process has it open or mapped; else, its users are unknown
    """
    if not filelock.flock(fd):
        raise BlockingIOError(errno.EAGAIN, 'somebody else holds its lock')
    name = os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))
    deadline, seen = time.monotonic() + FORK_S, set[int]()
    while users := _users_of(os.fstat(fd), name):
        # A process that forks to run a program has in the child, for a moment, every descriptor that was open in any of
        # its threads. Such a child of this process has our descriptors, and writes nothing. A child of another process
        # may have descriptors that its parent has closed since.
        parents = {pid: _forked_from(pid) for pid in users}
        if all(parent == os.getpid() for parent in parents.values()):
            break
        of_their_own = {pid for pid, parent in parents.items() if parent is None}
        # A process that began to run its program between the two looks has closed the inherited descriptors.
        if time.monotonic() >= deadline or seen & of_their_own:
            raise OSError(errno.EBUSY, f'open in process {", ".join(map(str, users))}')
        seen = of_their_own
        time.sleep(_POLL_S)


def _users_of(wanted: os.stat_result, name: str) -> list[int]:
    """Find the other processes that have a device or a file open or mapped.

    A device is recognized by its number, whatever node it was opened by; QEMU has nodes of its own. A mapping shows no
    number, so there a device is recognized by its name. A process of root that cannot be looked at is not counted: the
    kernel may protect the first process of a host. A file stands for a device when somebody tries the library without
    root; for a file, no process that cannot be looked at is counted.

    :raises OSError: a process of another user cannot be looked at, so the users of the device are unknown
    """
    found = []
    for pid in filter(str.isdecimal, os.listdir(PROCESSES)):
        process = os.path.join(PROCESSES, pid)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):        # it has ended
            try:
                if int(pid) != os.getpid() and (any(
                        _is_same(entry.path, wanted) for entry in os.scandir(os.path.join(process, 'fd')))
                        or _maps(process, wanted, name)):
                    found.append(int(pid))
            except PermissionError:
                if not stat.S_ISREG(wanted.st_mode) and os.stat(process).st_uid != 0:
                    raise
    return sorted(found)


def _forked_from(pid: int) -> int | None:
    """Return the parent of a process that still runs its parent's program; :data:`_ENDED` if it ended, else None."""
    try:
        with open(os.path.join(PROCESSES, str(pid), 'stat'), encoding='ascii', errors='replace') as file:
            # proc(5): the name, in parentheses, may hold anything. The state and the parent follow.
            parent = int(file.read().rpartition(')')[2].split()[1])
        runs = []
        for one in (pid, parent):
            with open(os.path.join(PROCESSES, str(one), 'cmdline'), 'rb') as file:
                runs.append(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return _ENDED
    except OSError:
        return None
    return parent if runs[0] == runs[1] else None


def _is_same(descriptor: str, wanted: os.stat_result) -> bool:
    try:
        status = os.stat(descriptor)
    except FileNotFoundError:
        return False                    # it was closed
    except PermissionError:
        os.readlink(descriptor)         # the kernel refuses this too if the process may not be looked at
        return False                    # a user's file system (FUSE) refuses root, and has no device nodes
    if stat.S_ISCHR(wanted.st_mode) or stat.S_ISBLK(wanted.st_mode):
        return stat.S_IFMT(status.st_mode) == stat.S_IFMT(wanted.st_mode) and status.st_rdev == wanted.st_rdev
    return os.path.samestat(status, wanted)


def _maps(process: str, wanted: os.stat_result, name: str) -> bool:
    """Whether a process maps the device or file (proc(5), ``/proc/pid/maps``): a mapping outlives the descriptor."""
    is_device = stat.S_ISCHR(wanted.st_mode) or stat.S_ISBLK(wanted.st_mode)
    number = b'%02x:%02x' % (os.major(wanted.st_dev), os.minor(wanted.st_dev))
    sought = name.encode() if is_device else b' %s %d ' % (number, wanted.st_ino)
    with open(os.path.join(process, 'maps'), 'rb') as file:
        maps = file.read()
    if sought not in maps:                  # as in nearly all processes, of which a host has hundreds
        return False
    for line in filter(None, maps.split(b'\n')):
        _addresses, _rights, _offset, where, inode, *path = line.split(None, 5)
        if is_device:
            if path and os.path.basename(path[0].removesuffix(b' (deleted)')) == sought:
                return True
        elif (where, inode) == (number, b'%d' % wanted.st_ino):
            return True
    return False
