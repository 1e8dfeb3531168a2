"""Times for people: local, in the form of ISO 8601."""

from __future__ import annotations

import datetime


def iso(seconds: float) -> str:
    """A time in seconds since the epoch, with the zone of this process."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec='seconds')
