"""Follows the paths in guests' definitions to the files and devices that they lead to.

A definition may name a device by a link, by a node of another name, or in another spelling. The paths are those of any
guest's disks, so some may be on a file system that does not answer.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import errno
import os
import stat
from typing import Final
from typing import TypeVar

from devicetrack import exception
from devicetrack.virt.libvirt import bounded

# The sort of a file (stat.S_IFMT), and two numbers that identify the file among those of its sort: 0 and the number of
# a device, or the numbers of the file system and of the inode.
File = tuple[int, int, int]

# What the calls are about that follow the paths of guests: see Calls.is_late().
_ABOUT: Final = 'paths of guests'
_NOT_THERE: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG))

_Found = TypeVar('_Found')


class GuestPaths:
    """Follows paths.

    :param timeout_s: how long one look may take
    """

    def __init__(self, timeout_s: float) -> None:
        self._calls = bounded.Calls(timeout_s, into_c=True)

    def files(self, paths: Iterable[str], must: bool = True) -> Mapping[str, File]:
        """Identify the files at some paths, by path. A path at which there is none is left out.

        :param must: whether each path has to be followed. If not, one that cannot be followed is left out as well
        :raises CommandFailed: a path that has to be followed cannot be, or there is no answer in time
        """
        return self._each(file_at if must else _file_in_reach, paths)

    def ends(self, paths: Iterable[str]) -> Mapping[str, str]:
        """Return each path without links, by path, whether there is a file at its end or not.

        :raises CommandFailed: there is no answer in time
        """
        return self._each(_end, paths)

    def _each(self, look: Callable[[str], _Found | None], paths: Iterable[str]) -> Mapping[str, _Found]:
        try:
            if self._calls.is_late(_ABOUT):     # one thread that hangs is enough
                raise bounded.Late('an earlier look at them has no answer yet')
            return self._calls.call(lambda: {path: found for path in paths if (found := look(path)) is not None},
                                    _ABOUT)
        except bounded.Late as error:
            raise exception.CommandFailed('stat', f'the paths of memory and disks of guests: {error}; check whether a '
                                          'file system hangs') from error


def file_at(path: str) -> File | None:
    """Identify the file at a path; None if there is none.

    :raises CommandFailed: the path cannot be followed
    """
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise exception.CommandFailed('stat', f'a path of memory or of a disk of a guest: {error.strerror}') from error
    except ValueError:
        return None
    # A block device and a character device may have one number.
    sort = stat.S_IFMT(status.st_mode)
    return (sort, 0, status.st_rdev) if status.st_rdev else (sort, status.st_dev, status.st_ino)


def _file_in_reach(path: str) -> File | None:
    try:
        return file_at(path)
    except exception.CommandFailed:
        return None


def _end(path: str) -> str | None:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return None
