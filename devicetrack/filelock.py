"""Exclusive locks on files, between processes and between threads (flock(2)).

They are not those of oslo.concurrency, whose external locks are fcntl record locks. A process loses such a lock as soon
as it closes any descriptor of the file, and no child inherits it. A flock belongs to the open file: a child with the
descriptor holds the lock until the child ends, even if its parent is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import os
import time
from types import TracebackType
from typing import Self

from devicetrack import ownfiles

# proc_locks(5): "1: FLOCK  ADVISORY  WRITE 4711 fe:00:2146333 0 EOF", the numbers of the device in hexadecimal.
_LOCKS = '/proc/locks'
# How long to wait for another writer of a file.
_WRITER_S = 60.0
_POLL_S = 0.05


class FileLocked(Exception):
    """Somebody else holds the lock."""


class FileLock:
    """A lock on the file ``path``, which it creates with mode 0600 and never removes.

    Every object opens the file itself, so two objects in one process exclude each other as two processes do.
    """

    _open = staticmethod(ownfiles.open_file)
    # Here for the end of an object whose constructor failed.
    _fd: int | None = None
    _closing: Iterator[None] = iter(())

    def __init__(self, path: str) -> None:
        self.path = path
        self._pid = 0

    def acquire(self, timeout_s: float = 0.0) -> None:
        """Take the lock, waiting at most ``timeout_s`` seconds.

        :raises FileLocked: somebody else still holds it
        :raises NotOurs: users other than this process's can change the file, or it is a link; nothing was locked
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # Keep the descriptor before locking it: after an interrupt in any line, the end of this object closes it.
            self._closing = map(os.close, [fd := self._open(self.path)])
            self._fd = fd
            self._pid, ours = os.getpid(), False
            try:
                while not flock(fd):
                    if time.monotonic() >= deadline:
                        raise FileLocked(self.path)
                    time.sleep(_POLL_S)
                # Somebody may have replaced the file meanwhile. Then the next caller would lock the new file.
                ours = ownfiles.is_at(fd, self.path)
            finally:
                if not ours:
                    self.release()
            if ours:
                return

    @property
    def fd(self) -> int:
        """The descriptor that holds the lock; hand it to a child (``pass_fds``) and the child holds it too."""
        if self._fd is None:
            raise ValueError(f'{self.path} is not locked')
        return self._fd

    def unlock(self) -> None:
        """End the lock for everybody who has the descriptor, and close the descriptor.

        Call it when no child that was given the descriptor is alive. A child that another thread forks at this moment
        has the descriptor too until it runs its program, and after :meth:`release` alone it would still hold the lock.
        In a forked child this method does what :meth:`release` does, because the lock belongs to the parent.
        """
        if self._fd is not None and self._pid == os.getpid():
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.release()

    def release(self) -> None:
        """Close the descriptor. The lock ends once every child that was given the descriptor has ended too."""
        self._fd = None
        # No interrupt comes between the end of the descriptor and the memory that it ended, as both are one call of C.
        # By then a number that is closed twice is the descriptor of another file.
        next(self._closing, None)

    def __del__(self) -> None:
        self.release()

    def __enter__(self) -> Self:
        if self._fd is None:
            self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.release()


class NodeLock(FileLock):
    """A lock on the node, the file or the sysfs directory of a device. It creates nothing.

    All processes that share the device share the lock, whatever their state directories. Anybody who may read the path
    can hold it. No child gets the descriptor, so the end of a block ends the lock for everybody.

    :raises OSError: from :meth:`acquire`: the path does not exist or cannot be opened
    """

    _open = staticmethod(ownfiles.open_node)

    def __init__(self, path: str) -> None:
        super().__init__(os.path.realpath(path))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.unlock()


class DirectoryLock(FileLock):
    """A lock on an existing directory."""

    _open = staticmethod(ownfiles.open_directory)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Keep other threads and processes from writing a file, by a lock on another file beside it.

    :raises OSError: the lock cannot be had
    """
    lock = FileLock(f'{path}.lock')
    try:
        lock.acquire(_WRITER_S)
    except FileLocked as error:
        raise OSError(errno.EAGAIN, 'another process writes to it') from error
    try:
        yield
    finally:
        lock.unlock()


def flock(fd: int) -> bool:
    """Take the lock on an open file without waiting. Return False if somebody else has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def close(fd: int) -> None:
    """Close a descriptor, and end its lock for everybody who has the descriptor, as :meth:`FileLock.unlock` does."""
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def holder(path: str) -> int | None:
    """The process that took the lock on a file, as far as the kernel tells. Never raises.

    None if nobody has the lock, or if the kernel does not tell: the process is in a container that this one cannot see,
    or the filesystem has other device numbers for its files than for itself (btrfs).
    """
    try:
        file = os.stat(path)
        name = f'{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}'
        with open(_LOCKS, encoding='ascii', errors='replace') as table:
            for line in table:
                match line.split():
                    case [_number, 'FLOCK', _advisory, _access, pid, where, *_range] if where == name:
                        return int(pid) if int(pid) > 0 else None
    except (OSError, ValueError):
        pass
    return None
