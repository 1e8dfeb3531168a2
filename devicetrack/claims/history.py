"""Keeps the history of a host within its options: audits delete the oldest events, a bounded number each."""

from __future__ import annotations

import time
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack.store.api import Store

LOG = log.logger(__name__)

# An audit deletes so many events at most: milliseconds of work, and more than a host makes between two.
STEP: Final = 1000
# It counts so many until all are counted. A database that hosts share counts a million in some hours of audits.
COUNTED: Final = 2500

_MS_A_DAY: Final = 24 * 60 * 60 * 1000


class History:
    """The events of a started host, and how many of them there are.

    It counts some at every audit, the oldest first, because counting a million at once would hold an audit up; a file
    of SQLite with this host alone knows the number at once. Until it has counted more than are to be kept it deletes by
    age alone.

    :param conf: the options ``history_days`` and ``history_events``
    """

    def __init__(self, host: str, host_uuid: str, store: Store, conf: Any) -> None:
        self._host, self._host_uuid, self._store = host, host_uuid, store
        self._days, self._kept = conf.history_days, conf.history_events
        self._counted, self._last = 0, 0        # so many events up to the one with this number

    def trim(self) -> int:
        """Count some more, and delete what is too old or too much, :data:`STEP` at most. For the end of an audit.

        A store that refuses is asked again by the next audit.

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
            self._counted, self._last = 0, 0    # nobody knows how many are left
            return 0
        self._counted = max(self._counted - deleted, 0)
        if not self._counted:
            self._last = 0              # SQLite numbers anew when there are none
        return deleted
