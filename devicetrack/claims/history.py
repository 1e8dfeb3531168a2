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

_MS_A_DAY: Final = 24 * 60 * 60 * 1000


class History:
    """Counts and deletes the events of a started host.

    Every audit counts some events, the oldest first, because counting a million at once would delay an audit. A SQLite
    file with only this host knows the number at once. Until the count exceeds ``history_events``, only the age of an
    event decides whether it is deleted.

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
        before_ms = time.time_ns() // 1_000_000 - self._days * _MS_A_DAY
        try:
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
