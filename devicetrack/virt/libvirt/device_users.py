"""Finds out which processes use a device or a file. The users of a device are root's to see."""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import errno
import itertools
import os
import stat
import time
from typing import Final
from typing import NamedTuple

from devicetrack import filelock

PROCESSES = '/proc'

# The number of the host's own PID namespace (Linux: PROC_PID_INIT_INO in include/linux/proc_ns.h).
_OF_HOST: Final = 0xEFFFFFFC

# How long a child that is about to run its program may keep its parent's descriptors open. On a busy machine it has to
# wait for a processor first.
FORK_S = 1.0
_POLL_S = 0.01
_ENDED = 0
# To search the mappings of a process for each of more files takes longer than to look at every mapping.
_FEW: Final = 8


def check_alone(fd: int) -> None:
    """Take the lock on an open device or file, and check that no other process has it open or mapped.

    A child of this process that has not run its program yet does not count as a user. The lock lasts until every
    process that got this descriptor has closed it.

    :raises BlockingIOError: somebody else has the lock
    :raises OSError: EBUSY: another process has it open or mapped; else, its users are unknown
    """
    error = check_each_alone((fd,))[fd]
    if error is not None:
        raise error


def check_each_alone(fds: Iterable[int]) -> Mapping[int, OSError | None]:
    """As :func:`check_alone` for several open devices and files, whose users are sought all at once.

    :returns: for each descriptor None, or the error: somebody else has the lock, or another process has it open
    :raises OSError: the users are unknown
    """
    answers: dict[int, OSError | None] = {}
    wanted: list[_Wanted] = []
    for fd in fds:
        if filelock.flock(fd):
            answers[fd] = None
            wanted.append(_wanted(fd, os.readlink(f'/proc/self/fd/{fd}'), os.fstat(fd)))
        else:
            answers[fd] = BlockingIOError(errno.EAGAIN, 'somebody else holds its lock')
    for fd, pids in _lasting_users_of(wanted).items():
        answers[fd] = OSError(errno.EBUSY, _where_open(pids))
    return answers


def check_path_not_open(path: str) -> None:
    """As :func:`check_alone` for a device or file by its path, which this does not open or lock. Follows no link.

    A directory has no users.

    :raises OSError: EBUSY: another process has it open or mapped; else, it is not there, or its users are unknown
    """
    status = os.lstat(path)
    if _is_device(status) or stat.S_ISREG(status.st_mode):
        for pids in _lasting_users_of([_wanted(0, path, status)]).values():
            raise OSError(errno.EBUSY, _where_open(pids))


def sees_host() -> bool:
    """Whether this process sees the host's processes. In a container with a PID namespace of its own it does not."""
    try:
        return os.stat(os.path.join(PROCESSES, 'self/ns/pid')).st_ino == _OF_HOST
    except OSError:
        return False


def opened(there: Mapping[str, os.stat_result]) -> Collection[str]:
    """Find those of some devices and files that another process has open or mapped. This opens and locks none.

    :param there: what they are, by their paths
    :returns: their paths
    :raises OSError: the users of a device are unknown
    """
    paths = list(there)
    return {paths[number] for number in _lasting_users_of(
        [_wanted(number, path, there[path]) for number, path in enumerate(paths)])}


def check_not_open(devices: Mapping[tuple[int, int], str]) -> None:
    """As :func:`check_alone`, for devices at whatever nodes. This takes no lock.

    :param devices: their names, by the sorts of their nodes (``stat.S_IFBLK``, ``stat.S_IFCHR``) and their numbers
        (``st_rdev``)
    :raises OSError: EBUSY: another process has one open or mapped; else, the users are unknown
    """
    names = list(devices.values())
    users = _lasting_users_of([_Wanted(number, True, node, (names[number].encode(),))
                               for number, node in enumerate(devices)])
    if users:
        first = min(users)
        raise OSError(errno.EBUSY, f'{names[first]} is {_where_open(users[first])}')


def _lasting_users_of(wanted: Collection[_Wanted]) -> Mapping[int, Sequence[int]]:
    """As :func:`_users_of`, but without children that are about to run their programs.

    This blocks for up to :data:`FORK_S` while a child of another process has a device or file.

    :raises OSError: as :func:`_users_of`
    """
    lasting: dict[int, Sequence[int]] = {}
    deadline, seen = time.monotonic() + FORK_S, set[tuple[int, int]]()
    while users := _users_of(wanted):
        # A process that forks to run a program has in the child, for a moment, every descriptor that was open in any of
        # its threads. Such a child of this process has our descriptors, and writes nothing. A child of another process
        # may have descriptors that its parent has closed since.
        parents = {pid: _forked_from(pid) for pid in set(itertools.chain(*users.values()))}
        users = {fd: pids for fd, pids in users.items() if any(parents[pid] != os.getpid() for pid in pids)}
        of_their_own = {(fd, pid) for fd, pids in users.items() for pid in pids if parents[pid] is None}
        # A process that began to run its program between the two looks has closed the inherited descriptors.
        in_use = {fd for fd, _pid in seen & of_their_own} if time.monotonic() < deadline else set(users)
        lasting.update((fd, users[fd]) for fd in in_use)
        wanted = [one for one in wanted if one.fd in users.keys() - in_use]
        if wanted:
            seen = of_their_own
            time.sleep(_POLL_S)
    return lasting


def _where_open(pids: Sequence[int]) -> str:
    return f'open in process {", ".join(map(str, pids))}'


def users_of(devices: Mapping[int, str]) -> list[int]:
    """Find the other processes that have one of these character devices open or mapped.

    A child of this process counts too, whatever program it runs. So this is for devices that this process never opens:
    the child has opened it itself.

    :param devices: their names by their numbers, as in ``st_rdev``
    :raises OSError: a process of another user cannot be looked at, so the users are unknown
    """
    found = _users_of([_Wanted(number, True, (stat.S_IFCHR, number), (name.encode(),))
                       for number, name in devices.items()])
    return sorted(set(itertools.chain(*found.values())))


class _Wanted(NamedTuple):
    """A device or file whose users are sought, by what is seen of it in processes that have it open or map it.

    ``fd`` is a descriptor of it here, or another number that names it.
    """

    fd: int
    is_device: bool
    opened: tuple[int, ...]
    mapped: tuple[bytes, ...]


def _wanted(fd: int, path: str, status: os.stat_result) -> _Wanted:
    opened = _opened(status)
    if _is_device(status):
        # A mapping shows no number, so there a device is recognized by its name.
        return _Wanted(fd, True, opened, (os.path.basename(path).encode(),))
    number = b'%02x:%02x' % (os.major(status.st_dev), os.minor(status.st_dev))
    return _Wanted(fd, False, opened, (number, b'%d' % status.st_ino))


def _is_device(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)


def _opened(status: os.stat_result) -> tuple[int, ...]:
    """Identify an open device or file. A device has its number at every node; QEMU has nodes of its own."""
    return ((stat.S_IFMT(status.st_mode), status.st_rdev) if _is_device(status)
            else (stat.S_IFMT(status.st_mode), status.st_dev, status.st_ino))


def _users_of(wanted: Collection[_Wanted]) -> dict[int, list[int]]:
    """Find the other processes that have devices or files open or mapped; return them by the descriptors here.

    A process of root that cannot be looked at is not counted: the kernel may protect the first process of a host. A
    file stands for a device when somebody tries the library without root; for a file, no process that cannot be looked
    at is counted.

    :raises OSError: a process of another user cannot be looked at, so the users of a device are unknown
    """
    if not wanted:
        return {}
    sought = collections.defaultdict[tuple[object, ...], list[int]](list)
    for one in wanted:
        sought[one.opened].append(one.fd)
        sought[one.mapped].append(one.fd)
    found = collections.defaultdict[int, list[int]](list)
    for pid in processes():
        process = os.path.join(PROCESSES, str(pid))
        used: set[int] = set()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):        # it has ended
            try:
                if pid != os.getpid():
                    for sign in _shown_in(process, wanted):
                        used.update(sought.get(sign, ()))
            except PermissionError:
                if any(one.is_device for one in wanted) and os.stat(process).st_uid != 0:
                    raise
        for fd in used:
            found[fd].append(pid)
    return dict(found)


def processes() -> list[int]:
    """Return the numbers of the host's processes."""
    return sorted(map(int, filter(str.isdecimal, os.listdir(PROCESSES))))


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


def _shown_in(process: str, wanted: Collection[_Wanted]) -> Iterator[tuple[object, ...]]:
    """Yield what a process has open and maps, as :func:`_open_in` and :func:`_mapped_in`."""
    is_empty = True
    for sign in itertools.chain(_open_in(process), _mapped_in(process, wanted)):
        is_empty = False
        yield sign
    if is_empty:
        for thread in other_threads(process):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):    # it has ended
                yield from itertools.chain(_open_in(thread), _mapped_in(thread, wanted))


def other_threads(process: str) -> Sequence[str]:
    """Return the directories of a process's threads without the first one, for a process that shows nothing.

    The directory of a process shows what its first thread has. When that thread has ended, it has nothing, but the
    other threads run on with the files and mappings of the process.

    :param process: the directory of the process, ``/proc/pid``
    """
    directory = os.path.join(process, 'task')
    try:
        threads = os.listdir(directory)
    except (FileNotFoundError, ProcessLookupError):             # it has ended
        return ()
    return [os.path.join(directory, thread) for thread in threads if thread != os.path.basename(process)]


def _open_in(process: str) -> Iterator[tuple[int, ...]]:
    """Yield what a process or a thread has open, as :func:`_opened` identifies it."""
    with os.scandir(os.path.join(process, 'fd')) as entries:
        for entry in entries:
            try:
                yield _opened(os.stat(entry.path))
            except FileNotFoundError:
                pass                        # it was closed
            except PermissionError:
                # The kernel refuses this too if the process may not be looked at. If it does not, the file is of a
                # user's file system (FUSE), which refuses root, and has no device nodes.
                os.readlink(entry.path)


def _mapped_in(process: str, wanted: Collection[_Wanted]) -> Iterator[tuple[bytes, ...]]:
    """Yield what a process or a thread maps, as in :class:`_Wanted` (proc(5), ``/proc/pid/maps``).

    It may have closed that since. One that maps nothing of what is wanted may yield nothing.
    """
    with open(os.path.join(process, 'maps'), 'rb') as file:
        maps = file.read()
    # Nearly all processes map none of it, and a host has hundreds.
    if len(wanted) <= _FEW and not any(b' '.join(one.mapped) in maps for one in wanted):
        return
    for line in filter(None, maps.split(b'\n')):
        _addresses, _rights, _offset, number, inode, *path = line.split(None, 5)
        yield number, inode
        if path:
            yield os.path.basename(path[0].removesuffix(b' (deleted)')),
