"""Reads the files by which the kernel tells of its devices, most of them in sysfs: attributes, links and directories.

An attribute has at most a page. Whoever writes it may be a vendor's driver, or a user in a tree of his own.
"""

from __future__ import annotations

import os
from typing import Final

from devicetrack import exception

PAGE: Final = 4096
# If there is a FIFO in place of an attribute, O_NONBLOCK keeps the reader from waiting for a writer.
READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def data(path: str, most: int = PAGE) -> bytes:
    """Read a file up to so many bytes, in one call, as the kernel gives them. Follows no link at its end.

    :raises OSError: it cannot be read
    """
    fd = os.open(path, READ)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)


def text(*path: str) -> str:
    """Read an attribute as text, without the blanks around it.

    :raises OSError: as :func:`data`
    """
    return data(os.path.join(*path)).decode(errors='replace').strip()


def number(*path: str) -> int | None:
    """Read an attribute that is a number from 0; None if it is another one, or cannot be read."""
    try:
        found = int(text(*path))
    except (OSError, ValueError):
        return None
    return found if found >= 0 else None


def target(*path: str) -> str:
    """Return where a link leads; '' if there is none, or it cannot be read."""
    try:
        return os.readlink(os.path.join(*path))
    except OSError:
        return ''


def link(*path: str) -> str | None:
    """Return the last part of a link's target, which is the name of a thing; None as for :func:`target`."""
    return os.path.basename(target(*path)) or None


def names(*directory: str) -> list[str]:
    """Return the names in a directory; none if there is no such directory.

    :raises CommandFailed: it cannot be listed
    """
    path = os.path.join(*directory)
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        if isinstance(error, NotADirectoryError) and not os.path.lexists(path):
            return []                           # a file is in place of a directory above it
        raise exception.CommandFailed(f'listing {path}', str(error.strerror)) from error


def names_in_reach(*directory: str) -> list[str]:
    """As :func:`names`, and none if it cannot be listed."""
    try:
        return names(*directory)
    except exception.CommandFailed:
        return []
