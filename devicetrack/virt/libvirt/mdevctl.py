"""The definitions that mdevctl(8) keeps: one file for each mediated device, in a directory for each parent.

libvirt runs mdevctl to make, list and remove them. Only libvirt's list is complete, because this process may not see
the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
import os
import re
import stat
import time
from typing import Final

DIRECTORY = '/etc/mdevctl.d'
# Distributions, packages and administrators have other files there too, for example in scripts.d.
_DEFINITION: Final = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


def parents_of(uuid: str) -> frozenset[str]:
    """Return the addresses of the parents on which a UUID is defined, if this process can see them."""
    return frozenset(os.path.basename(os.path.dirname(path)) for path in _files() if os.path.basename(path) == uuid)


def lacks(uuid: str) -> bool:
    """Whether no parent has a definition with this UUID. False, too, if this process cannot see them all."""
    try:
        for directory in os.scandir(DIRECTORY):
            if directory.is_dir() and uuid in os.listdir(directory.path):
                return False
    except OSError:
        return False
    return True


def lost() -> list[str]:
    """Find definitions that a power cut destroyed: their files have been empty since before the host booted.

    mdevctl writes a file without waiting for the disk. While there is an empty file, mdevctl lists no definition of the
    host and starts no device with its parent, and libvirt knows no definition.
    """
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    found = []
    for path in _files():
        if _DEFINITION.fullmatch(os.path.basename(path)) is None:
            continue
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
