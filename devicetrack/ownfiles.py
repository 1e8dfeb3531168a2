"""Directories and files that belong only to this process: the state directory, lock files, the SQLite store.

A user who can change one of them, or put a link in its place, can choose where this process writes, or become a second
manager. So each is checked before use: it is no symbolic link, it belongs to the user of this process, and neither its
group nor others may write to it.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import os
import pathlib
import stat
import tempfile
from typing import Final

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH

_REMEDIES: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), 'make room for it'),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), 'let this process write to it'),
    **dict.fromkeys((errno.EEXIST, errno.EISDIR, errno.ENOTDIR), 'move away what is in its place'),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), 'let this process open more files'),
    errno.EIO: 'look at its disk (the log of the kernel, dmesg)',
}


class NotOurs(PermissionError):
    """Another user could change the file or directory ``filename``. ``strerror`` says what is wrong and what to do."""

    filename: str
    strerror: str


def reason(error: OSError, path: str) -> str:
    """Say which file or directory cannot be used, why, and what to do.

    :param path: the one that was used, if the error has none
    """
    why = error.strerror or str(error)
    if isinstance(error, NotOurs):
        return f'{error.filename}: {why}'
    if path in why:                             # a text of ours, which says what to do
        return why
    return ': '.join(filter(None, (error.filename or path, why, _REMEDIES.get(error.errno or 0))))


def make_directory(path: str) -> None:
    """Make a directory with mode 0700, or check the one that is there.

    The parents that it lacks get mode 0755, less what the umask takes: others use them too, as QEMU uses Nova's.

    :raises NotOurs: another user could change it
    :raises OSError: it cannot be made
    """
    # os.makedirs would let everybody write to the parents if the umask does.
    directory = pathlib.Path(path)
    for parent in reversed(directory.parents):
        parent.mkdir(mode=0o755, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    check_directory(path)


def check_directory(path: str) -> None:
    """Check a directory.

    :raises NotOurs: another user could change it
    :raises OSError: it is not there
    """
    _check(path, os.lstat(path), stat.S_IFDIR)


def check_file(path: str) -> None:
    """As :func:`check_directory`, for a regular file."""
    _check(path, os.lstat(path), stat.S_IFREG)


def make_file(path: str) -> None:
    """Make an empty file with mode 0600, or check the one that is there, without opening it.

    A process that closes any descriptor of a file loses all its POSIX locks on that file (fcntl(2)). SQLite has its
    locks there: with one lost, another process may remove the log of a store that is in use, and commits with it.

    :raises NotOurs: another user could change it
    :raises OSError: it cannot be made
    """
    try:
        check_file(path)
    except FileNotFoundError:
        check_directory(os.path.dirname(path) or '.')
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        check_file(path)


def open_file(path: str) -> int:
    """Open a file for reading and writing, and make it with mode 0600 if it is missing and its directory is ours.

    :raises NotOurs: another user could change it, or its directory; nothing was written
    :raises OSError: it cannot be opened
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            # In the directory of a service, its user could not use what a command of root makes.
            check_directory(os.path.dirname(path) or '.')
            fd = os.open(path, flags | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            check_file(path)
        raise
    return _checked(fd, path, stat.S_IFREG)


def open_directory(path: str) -> int:
    """Open a directory for its lock. The errors are those of :func:`check_directory`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            check_directory(path)
        raise
    return _checked(fd, path, stat.S_IFDIR)


def sync_directory(path: str) -> None:
    """Make durable which files a directory has. The errors are those of :func:`check_directory`, and of fsync(2)."""
    fd = open_directory(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_node(path: str) -> int:
    """Open a path that others own, only for its lock. It needs no check, since nobody reads or writes it."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def is_at(fd: int, path: str) -> bool:
    """Whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def closed_by_error(fd: int) -> Iterator[None]:
    """Close a descriptor if an exception leaves the block. A child that has it may still work, and keeps its lock."""
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        yield
        undo.pop_all()


def _checked(fd: int, path: str, wanted: int) -> int:
    with closed_by_error(fd):
        _check(path, os.fstat(fd), wanted)
    return fd


def _check(path: str, found: os.stat_result, wanted: int) -> None:
    what = 'directory' if wanted == stat.S_IFDIR else 'regular file'
    wrong = None
    if stat.S_IFMT(found.st_mode) != wanted:
        link = stat.S_ISLNK(found.st_mode)
        wrong = f'it is a symbolic link: name the {what} itself' if link else f'it is not a {what}: move it away'
    elif found.st_uid != os.geteuid():
        wrong = (f'it belongs to user {found.st_uid}, and this process runs as {os.geteuid()}: run it as the user '
                 f'of the service, or give that user the {what} (chown)')
    elif found.st_mode & _WRITABLE:
        wrong = (f'users other than its owner can write to it (mode {stat.S_IMODE(found.st_mode):04o}): '
                 f'chmod go-w {path}')
    if wrong is not None:
        raise NotOurs(errno.EPERM, wrong, path)


def replace_text(path: str, text: str, mode: int) -> None:
    """Replace a file in one step: who reads it sees the old text or the new one.

    :param mode: of the new file, whatever the umask
    :raises OSError: the old file is as it was
    """
    # node_exporter reads what ends in .prom, and so not this one.
    fd, temporary = tempfile.mkstemp('.new', f'.{os.path.basename(path)}.', os.path.dirname(path) or '.')
    with contextlib.ExitStack() as undo:
        undo.callback(_unlink, temporary)
        with open(fd, 'w', encoding='utf-8') as file:
            file.write(text)
            file.flush()
            os.fchmod(fd, mode)
        os.replace(temporary, path)
        undo.pop_all()


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
