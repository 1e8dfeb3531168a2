"""Versions of what a device's driver writes when its guest moves, and what a guest has seen of them."""

from __future__ import annotations

import dataclasses
import re
from typing import Final
from typing import NamedTuple

# A part has nine digits at most, so that no document costs time; a zero in front would give one version two spellings.
_PART: Final = '(0|[1-9][0-9]{0,8})'
_VERSION: Final = re.compile(rf'{_PART}\.{_PART}\.{_PART}')
_SHOWN: Final = 40


class Version(NamedTuple):
    """The version of what a device's driver writes when its guest moves."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f'{self.major}.{self.minor}.{self.patch}'


@dataclasses.dataclass(frozen=True)
class Opaque:
    """A vendor's own version string. It equals another or does not; nothing else is known of it."""

    text: str

    def __str__(self) -> str:
        return repr(self.text)


@dataclasses.dataclass(frozen=True)
class Unknown:
    """No version is known, for this reason."""

    reason: str

    def __str__(self) -> str:
        return f'unknown ({self.reason})'


@dataclasses.dataclass(frozen=True)
class Stateless:
    """What stands for the version of a device without state of its own: QEMU copies a namespace as it copies memory."""

    def __str__(self) -> str:
        return 'none needed'


STATELESS: Final = Stateless()
MigrationVersion = Version | Opaque | Unknown | Stateless


def parse_version(text: str) -> Version | Unknown:
    """Read ``major.minor.patch``; what is anything else is unknown, and why."""
    found = _VERSION.fullmatch(text)
    if found is None:
        shown = ascii(text[:_SHOWN]) + ('…' if len(text) > _SHOWN else '')
        return Unknown(f'{shown} is not major.minor.patch, three numbers')
    return Version(*map(int, found.groups()))


def seen_since_boot(seen: Version | None, here: MigrationVersion) -> Version | None:
    """The highest version that a guest may have seen, after it started or may have rebooted on a device.

    A move alone changes nothing: the guest goes on as it was.

    :param seen: before that; None for a guest that starts, or when nobody knows
    :returns: None when nobody knows: on a device of unknown version it may have seen more than ever before
    """
    if not isinstance(here, Version):
        return None
    return here if seen is None else max(seen, here)


def newest_seen(source: Version, seen: Version | None) -> Version:
    """The version that a destination must not be older than.

    Whatever was seen of another major version says nothing about this one.
    """
    return seen if seen is not None and seen.major == source.major else source


def version_seen(text: str | None) -> Version | None:
    """The version in a row; None when nobody knows, or when a newer release has another way of writing it."""
    version = parse_version(text) if text is not None else None
    return version if isinstance(version, Version) else None
