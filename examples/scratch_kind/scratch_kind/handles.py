"""The handle of a file tells it from every other file of its file system, also from deleted ones.

A file system may give the inode number of a deleted file to the next new file. The handle has the inode number and a
generation, which differs for each file that gets this number. It stays the same over renames, restarts and boots.
"""

from __future__ import annotations

import ctypes
import errno
import os

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_MOST_BYTES = 128                       # MAX_HANDLE_SZ of Linux

_libc = ctypes.CDLL(None, use_errno=True)


class _Handle(ctypes.Structure):
    _fields_ = [('length', ctypes.c_uint), ('type', ctypes.c_int), ('data', ctypes.c_ubyte * _MOST_BYTES)]


def of(path: str) -> str | None:
    """Return the handle of the file at a path, or None if its file system gives none. It follows no link.

    The caller needs no rights to the file itself (name_to_handle_at(2)).

    :raises OSError: there is no file at the path, or the path cannot be followed
    """
    return _ask(_AT_FDCWD, path, 0)


def of_open(fd: int) -> str | None:
    """Return the handle of an open file, as :func:`of` does."""
    return _ask(fd, '', _AT_EMPTY_PATH)


def _ask(directory_fd: int, path: str, flags: int) -> str | None:
    handle, mount_id = _Handle(length=_MOST_BYTES), ctypes.c_int()
    if _libc.name_to_handle_at(directory_fd, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), flags):
        error = ctypes.get_errno()
        if error in (errno.EOPNOTSUPP, errno.ENOSYS):
            return None
        raise OSError(error, os.strerror(error), path)
    return f'{handle.type}:{bytes(handle.data[:handle.length]).hex()}'
