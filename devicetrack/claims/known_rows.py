"""Remembers the rows that this process has written or found at its start, as a witness against the store.

The rows are the authority, and memory is a copy. But a store may show less than it once confirmed: somebody restored it
to an earlier time, a standby took over without the last transactions, a server of a cluster lags behind. Nobody else
writes the rows of a host, so a row that is known here and that the store does not show, or shows as it was before, is
lost: the device stays held, and a guest does not start without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from devicetrack.claims import locks
from devicetrack.engine.views import LostRow
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.store.api import ContextChange

# A plain tuple, which costs the garbage collector nothing: see devicetrack.objects.compact.
_Row = tuple[Any, ...]
_OWNER, _CLAIM, _GENERATION = (Record._fields.index(field) for field in ('instance_uuid', 'claim_id', 'generation'))


class KnownRows:
    """The newest state of each row that the store has confirmed to this process.

    What a commit ends is not known from the moment it is sent until it is answered. So a reader takes :meth:`of` or
    :meth:`all` first, then reads, and then asks :meth:`lost`: what changed in between counts as shown.
    """

    def __init__(self) -> None:
        self._lock = locks.Lock(locks.FINDING)
        self._rows: dict[DeviceKey, _Row] = {}
        self._keys: dict[str, frozenset[DeviceKey]] = {}        # by instance
        self._contexts: dict[str, ContextChange] = {}           # by instance

    def copy(self) -> KnownRows:
        """The same knowledge for the next start of the host. What the threads of this one still note is not in it.

        Call it when the store takes no commit of this start any more: what a commit ends is forgotten before.
        """
        copied = KnownRows()
        copied._rows, copied._keys, copied._contexts = self._rows.copy(), self._keys.copy(), self._contexts.copy()
        return copied

    # -- what the store confirmed -------------------------------------------------------------------------------------

    def note(self, records: Iterable[Record], contexts: Iterable[ContextChange] = ()) -> None:
        """Note rows that are committed, unless a later state of one or another owner of its device is known already."""
        with self._lock.held():
            for record in records:
                before = self.get(record.key)
                if before is None or (before.claim_id == record.claim_id and before.generation <= record.generation):
                    self._rows[record.key] = tuple(record)
                    self._keys[record.instance_uuid] = self._keys.get(
                        record.instance_uuid, frozenset()) | {record.key}
            for context in contexts:
                self._contexts[context.instance_uuid] = context
                if context.context is None:
                    del self._contexts[context.instance_uuid]

    def leave(self, changes: Changes) -> list[Record]:
        """Before a commit is sent, forget the rows that it ends. :meth:`note` takes them back if it is refused.

        Another row that it updates stays known as it was: whether the commit happens or not, the store must show it. A
        repair may give a row to another claim, which ends it.

        :returns: what was known of these rows
        """
        ending = [*changes.delete, *(update.before for update in changes.update
                                     if update.after.claim_id != update.before.claim_id)]
        if not ending:
            return []
        with self._lock.held():
            left = [known for record in ending
                    if (known := self.get(record.key)) is not None and known.claim_id == record.claim_id]
            for record in left:
                self._rows.pop(record.key, None)
                rest = self._keys.get(record.instance_uuid, frozenset()) - {record.key}
                if rest:
                    self._keys[record.instance_uuid] = rest
                else:
                    self._keys.pop(record.instance_uuid, None)
        return left

    # -- questions ----------------------------------------------------------------------------------------------------

    def get(self, key: DeviceKey) -> Record | None:
        """The known row of a device."""
        row = self._rows.get(key)
        return None if row is None else Record._make(row)

    def of(self, instance_uuid: str) -> Mapping[DeviceKey, _Row]:
        """The known rows of an instance, for :meth:`lost`."""
        return {key: row for key in self._keys.get(instance_uuid, ())
                if (row := self._rows.get(key)) is not None and row[_OWNER] == instance_uuid}

    def all(self) -> Mapping[DeviceKey, _Row]:
        """The known rows, for :meth:`lost`."""
        return self._rows.copy()

    def context(self, instance_uuid: str) -> ContextChange | None:
        """The known migration context of an instance."""
        return self._contexts.get(instance_uuid)

    def lost(self, known: Mapping[DeviceKey, _Row], records: Sequence[Record]) -> tuple[LostRow, ...]:
        """Compare known rows with those that a later read shows.

        :param known: the answer of :meth:`of` or :meth:`all` before the read
        :param records: every row of the instance, or of the host
        """
        shown = Compact(Record, records).by('kind', 'identifier')
        versions = dict(shown.columns('claim_id', 'generation'))
        found = []
        for key, row in known.items():
            claim_id, generation = versions.get(key, (None, 0))
            # A row that was changed or ended since it was taken from here is another one by now, or none.
            if (claim_id != row[_CLAIM] or generation < row[_GENERATION]) and self._rows.get(key) is row:
                found.append(LostRow(Record._make(row), shown.get(key)))
        if not found:
            return ()
        instances = {lost.instance_uuid for lost in found}
        return (*found, *(LostRow(None, record) for record in records
                          if record.instance_uuid in instances and record.key not in self._rows))
