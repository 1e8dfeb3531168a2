"""Times for people: local, in the form of ISO 8601."""

from __future__ import annotations

import datetime


def iso(seconds: float) -> str:
    """Return a time in seconds since the epoch as text, in the zone of this process."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec='seconds')
