"""The definitions that mdevctl(8) keeps: one file for each mediated device, in a directory for each parent.

libvirt runs mdevctl to make, list and remove them. Only libvirt's list is complete, because this process may not see
the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
import stat
from typing import Final

from devicetrack import vocabulary
from devicetrack.virt.libvirt import device_users

DIRECTORY = '/etc/mdevctl.d'
_MOST_BYTES: Final = 1 << 20
_DAMAGED: Final = '.damaged'


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


def broken() -> dict[str, os.stat_result]:
    """Find definitions that mdevctl cannot read.

    mdevctl writes a file in several steps, without waiting for the disk. A power cut, a full disk or the end of mdevctl
    leaves the file empty or torn. While there is such a file, mdevctl lists no definition of the host and starts no
    device with its parent, and libvirt knows no definition and defines none. A file that cannot be read here is not
    found.
    """
    found = {}
    for path in _files():
        # Distributions, packages and administrators have other files there too, for example in scripts.d.
        if not vocabulary.is_uuid(os.path.basename(path)):
            continue
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), 'rb') as file:
                status, text = os.fstat(file.fileno()), file.read(_MOST_BYTES)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and not _is_definition(text):
            found[path] = status
    return found


def _is_definition(text: bytes) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def lost() -> list[str]:
    """Find broken definitions that nobody writes now: no process has them open. mdevctl has one open while it writes.

    A process without root's rights does not see what mdevctl has open, and may find one that mdevctl writes. One that
    does not see the host's processes finds none: a person has to look.
    """
    found = broken()
    if not found or not device_users.sees_host():
        return []
    being_written = device_users.opened(found)
    # A definition that was completed between the first look at it and the one at its users is another one now.
    still = broken()
    return [path for path, before in found.items() if path not in being_written and path in still
            and _version(before) == _version(still[path])]


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def put_away(path: str) -> None:
    """Let mdevctl no longer see a broken definition. One with any content stays beside its place, for a person.

    :raises OSError: it cannot be changed
    """
    if os.lstat(path).st_size:
        os.rename(path, f'{path}{_DAMAGED}')    # mdevctl skips a name that is no UUID
    else:
        os.unlink(path)


def _files() -> Iterator[str]:
    for directory in _entries(DIRECTORY):
        yield from _entries(directory)


def _entries(directory: str) -> list[str]:
    try:
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
    except OSError:
        return []
