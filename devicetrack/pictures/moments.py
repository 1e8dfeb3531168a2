"""Times in the form of ISO 8601."""

from __future__ import annotations

import datetime
import time
from typing import Final

_UNITS: Final = (('d', 86400), ('h', 3600), ('min', 60))


def local(seconds: float) -> str:
    """Return a time in seconds since 1970 for people: in the zone of this process, with the zone's offset."""
    return _at(seconds, None)


def age(seconds: float) -> str:
    """Return a length of time for people, in one unit."""
    return next((f'{seconds // size:.0f} {unit}' for unit, size in _UNITS if seconds >= 2 * size), f'{seconds:.0f} s')


def ago(seconds: float) -> str:
    """Return how long ago a time in seconds since 1970 was; the time itself if it is still to come."""
    passed = time.time() - seconds
    return f'{age(passed)} ago' if passed >= 0 else local(seconds)


def utc(seconds: float) -> str:
    """Return a time in seconds since 1970 for programs: in UTC."""
    return _at(seconds, datetime.UTC).replace('+00:00', 'Z')


def seconds(text: str | None) -> int | None:
    """Read what :func:`utc` wrote; None for nothing, and for what is no time."""
    try:
        return None if text is None else int(datetime.datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return None


def _at(seconds: float, zone: datetime.tzinfo | None) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone(zone).isoformat(timespec='seconds')
    except (ValueError, OverflowError, OSError):
        return str(seconds)             # no clock has such a time, but a damaged row may
