"""Keeps the history of a host within its options: each audit deletes a bounded number of the oldest events."""

from __future__ import annotations

import time
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack.store.api import Store

LOG = log.logger(__name__)

# An audit deletes at most this many events: milliseconds of work, and more than a host makes between two audits.
STEP: Final = 1000
# An audit counts at most this many. In a database that hosts share, counting a million takes some hours of audits.
COUNTED: Final = 2500

# The newest events of a host. They stay whatever their age, and the oldest of them says at least how late it is.
NEWEST: Final = 100

_MS_A_DAY: Final = 24 * 60 * 60 * 1000


class History:
    """Counts and deletes the events of a started host.

    Every audit counts some events, the oldest first, because counting a million at once would delay an audit. A SQLite
    file with only this host knows the number at once. Until the count exceeds ``history_events``, only the age of an
    event decides whether it is deleted.

    No clock alone decides it. A clock that is ahead for some audits would erase the history, so the age is also that
    before the :data:`NEWEST` events, in the order of their numbers. Whatever wrong times some of them have, the
    earliest time of all of them counts.

    :param conf: the options ``history_days`` and ``history_events``
    """

    def __init__(self, host: str, host_uuid: str, store: Store, conf: Any) -> None:
        self._host, self._host_uuid, self._store = host, host_uuid, store
        self._days, self._kept = conf.history_days, conf.history_events
        self._counted, self._last = 0, 0        # the number of events up to the one with this number

    def trim(self) -> int:
        """Count more events, and delete those that are too old or too many, at most :data:`STEP`. Ends an audit.

        If the store refuses, the next audit tries again.

        :returns: how many events were deleted
        """
        try:
            newest = self._store.latest_events(self._host_uuid, NEWEST)
            now_ms = min((time.time_ns() // 1_000_000, *(one.event.at_ms for one in newest)))
            before_ms = now_ms - self._days * _MS_A_DAY if len(newest) == NEWEST else 0
            count, self._last = self._store.count_events(self._host_uuid, self._last, COUNTED)
            self._counted += count
            deleted = self._store.trim_events(self._host_uuid, before_ms, max(self._counted - self._kept, 0), STEP)
        except exception.StoreError as error:
            LOG.warning('The history of host %(host)s is not trimmed yet: %(error)s',
                        {'host': self._host, 'error': error})
            self._counted, self._last = 0, 0    # it is unknown how many are left
            return 0
        self._counted = max(self._counted - deleted, 0)
        if not self._counted:
            self._last = 0              # SQLite starts its numbers again when there are none
        return deleted
