"""The definitions that mdevctl(8) keeps: one file for each mediated device, in a directory for each parent.

libvirt makes, lists and removes them by running mdevctl. Its list is the one that counts, for this process may not see
the directory; a file that it does see is there.
"""

from __future__ import annotations

from collections.abc import Iterator
import os
import stat
import time

DIRECTORY = '/etc/mdevctl.d'


def parents_of(uuid: str) -> frozenset[str]:
    """The addresses of the parents on which a UUID is defined, as far as can be seen."""
    return frozenset(os.path.basename(os.path.dirname(path)) for path in _files() if os.path.basename(path) == uuid)


def lost() -> list[str]:
    """Definitions that were lost with the power of the host: their files are empty since before it booted.

    mdevctl writes a file without waiting for the disk. From then on it lists no definition of the host and starts none
    with its parent, and libvirt knows none.
    """
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    found = []
    for path in _files():
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_size == 0 and status.st_mtime < booted:
            found.append(path)
    return found


def _files() -> Iterator[str]:
    for directory in _entries(DIRECTORY):
        yield from _entries(directory)


def _entries(directory: str) -> list[str]:
    try:
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
    except OSError:
        return []
