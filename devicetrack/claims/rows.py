"""Reads and writes the rows of a started host, and keeps the commits whose outcome is not known yet.

The rows are the authority, and memory is a copy. But a store may show less than it once confirmed: somebody restored it
to an earlier time, a standby took over without the last transactions, a server of a cluster lags behind. Nobody else
writes the rows of a host, so a row that is known here and that the store does not show, or shows as it was before, is
lost: the device stays held, and a guest does not start without it.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import operator
import time
from typing import Any
import weakref

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.claims import public_calls
from devicetrack.claims.host import ThisHost
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.metering import Meter
from devicetrack.claims.unfinished import Doubt
from devicetrack.claims.unfinished import Insertion
from devicetrack.claims.unfinished import Unfinished
from devicetrack.engine.views import LostRow
from devicetrack.objects import InstanceResources
from devicetrack.objects import MigrationContext
from devicetrack.objects.compact import Compact
from devicetrack.objects.event import NO_NOTE
from devicetrack.objects.event import Note
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.store.api import DamagedRow
from devicetrack.store.api import StoredContext

LOG = log.logger(__name__)


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
        self._contexts: dict[str, StoredContext] = {}           # by instance

    def copy(self) -> KnownRows:
        """The same knowledge for the next start of the host. What the threads of this one still note is not in it.

        Call it when the store takes no commit of this start any more: what a commit ends is forgotten before.
        """
        copied = KnownRows()
        copied._rows, copied._keys, copied._contexts = self._rows.copy(), self._keys.copy(), self._contexts.copy()
        return copied

    # -- what the store confirmed -------------------------------------------------------------------------------------

    def note(self, records: Iterable[Record], contexts: Iterable[StoredContext] = ()) -> None:
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

    def end_contexts(self, but: Collection[str]) -> None:
        """Forget the migration contexts, except those of these instances, whose rows the store does not show."""
        with self._lock.held():
            self._contexts = {uuid: context for uuid, context in self._contexts.items() if uuid in but}

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

    def context(self, instance_uuid: str) -> StoredContext | None:
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


class Rows:
    """The rows of one host. Only its manager writes them, and only one operation works on an instance at a time.

    :param ledger: holds the devices of the rows, and those of commits in doubt
    :param known: the rows that the store has confirmed to this process
    :param unfinished: has the commits without an answer
    """

    def __init__(self, host: ThisHost, ledger: LockedLedger, known: KnownRows, unfinished: Unfinished) -> None:
        self._store, self._host_uuid, self._metering = host.store, host.uuid, host.metering
        self._ended = host.driver.rows_ended
        self.ledger, self.known, self.unfinished = ledger, known, unfinished
        # A lock for each instance. It goes away when nobody holds it or waits for it.
        self._working: weakref.WeakValueDictionary[str, locks.Lock] = weakref.WeakValueDictionary()
        self._finding = locks.Lock(locks.FINDING)

    # -- reading ------------------------------------------------------------------------------------------------------

    def all(self) -> Sequence[Record]:
        """Every row of the host, those of one instance together."""
        return self._store.records_of_host(self._host_uuid)

    def all_not_ended(self) -> Sequence[Record]:
        """As :meth:`all`, with the rows that the store had confirmed and does not show now."""
        known, records = self.known.all(), self.all()
        return [*records, *(one.known for one in self.known.lost(known, records)
                            if one.known is not None and one.shown is None)]

    def damaged(self) -> list[DamagedRow]:
        """The rows of the host in other tables than that of its devices in which a value has a wrong type."""
        return self._store.damaged(self._host_uuid)

    def of_instance(self, instance_uuid: str) -> list[Record]:
        """The rows of one instance, in the order of the request.

        :raises RowsMissing: the store does not show a row that it had confirmed, or shows an older one
        """
        known = self.known.of(instance_uuid)
        records = self._shown(instance_uuid)
        _check_shown(self.known.lost(known, records) if known else ())
        return records

    def _shown(self, instance_uuid: str) -> list[Record]:
        """The rows of one instance, whatever is known."""
        return self._store.records_of_instance(self._host_uuid, instance_uuid)

    def there(self, instance_uuid: str) -> list[Record]:
        """The rows of one instance that are not being released."""
        return [record for record in self.of_instance(instance_uuid) if record.state != vocabulary.RELEASING]

    def of_devices(self, keys: Iterable[DeviceKey]) -> dict[DeviceKey, Record]:
        """The rows of some devices."""
        return {record.key: record for record in self._store.records_of_devices(self._host_uuid, keys)}

    def check(self, record: Record) -> None:
        """Check that a row is still as it was read, and that this process is still its writer.

        :raises HostTakenOver: another manager of the host has started
        :raises StaleAssignment: the row has changed or is gone
        :raises StoreError: no answer
        """
        self._store.check_epoch()
        known = self.known.get(record.key)
        now = self.of_devices((record.key,)).get(record.key)
        if (now is None or (now.generation, now.claim_id) != (record.generation, record.claim_id)
                or (known is not None and known.claim_id != record.claim_id)):
            raise exception.StaleAssignment(*record.key, record.generation)

    def check_unowned(self, keys: Collection[DeviceKey]) -> None:
        """Check that devices have no rows, and that this process is still the writer of the rows.

        :raises HostTakenOver: another manager of the host has started
        :raises DeviceInUse: an instance has one, by its row or by what is known
        :raises StoreError: no answer
        """
        self._store.check_epoch()
        known = {key: record for key in keys if (record := self.known.get(key)) is not None}
        for key, record in (known | self.of_devices(keys)).items():
            raise exception.DeviceInUse(*key, f'instance {record.instance_uuid} has it')

    def context(self, instance_uuid: str) -> StoredContext | None:
        """The stored migration context of an instance."""
        return self._store.context(self._host_uuid, instance_uuid)

    def stored_context(self, instance_uuid: str) -> MigrationContext | None:
        """The migration context that :meth:`context` finds, as an object.

        :raises UnknownObject, MalformedObject: this release cannot read it
        """
        found = self.context(instance_uuid)
        if found is None:
            return None
        try:
            primitive = json.loads(found.context or '')
        except (ValueError, RecursionError) as error:
            raise exception.MalformedObject('MigrationContext', f'stored for {instance_uuid}: {error}') from error
        context: MigrationContext = MigrationContext.obj_from_primitive(primitive)
        return context

    def resources(self, instance_uuid: str, records: Sequence[Record]) -> InstanceResources:
        """Return rows of one instance in the form for its service."""
        return InstanceResources.from_records(instance_uuid, self._host_uuid, records)

    @property
    def is_over(self) -> bool:
        """Whether an interrupt has ended this start of the host. Then the next one takes a later epoch."""
        return self.ledger.is_discarded

    # -- writing ------------------------------------------------------------------------------------------------------

    def insert(self, changes: Changes) -> None:
        """Record the devices that a claim holds.

        :raises NothingWritten: the caller puts the hold back
        :raises OutcomeUnknown: the devices stay held until the store answers; if the commit happened, they go back
        """
        insertion = Insertion(self.unfinished.number(), changes.insert[0].instance_uuid, changes)
        self.unfinished.note(insertion)
        try:
            self.write(changes, undo=True)
        finally:
            self.unfinished.end(Insertion, insertion.key)

    def write(self, changes: Changes, undo: bool = False) -> None:
        """Write rows of one instance whose devices are held. In doubt they stay held until the store answers.

        :param undo: the changes are a claim's, whose caller is told that it failed: see :class:`Doubt`
        :raises NothingWritten: the caller puts back what it held for new rows
        """
        changes = _of_request(changes)
        try:
            self._commit(changes)
        except exception.NothingWritten:
            raise
        except exception.StoreError:
            records = _touched(changes)
            if records:
                self.unfinished.note(Doubt(self.unfinished.number(), records[0].instance_uuid, changes, undo))
            raise

    def _commit(self, changes: Changes) -> None:
        left = self.known.leave(changes)
        try:
            self._send(changes)
        except exception.NothingWritten:
            self.known.note(left)
            raise
        self.known.note(_written(changes), changes.contexts)
        self._tell_ended(changes, {record.key for record in changes.insert})

    def _tell_ended(self, changes: Changes, there: Container[DeviceKey]) -> None:
        if changes.delete:
            self._ended([record.key for record in changes.delete if record.key not in there])

    def _send(self, changes: Changes) -> None:
        if self._metering.meter is None:
            self._store.write(changes)
            return
        began = time.perf_counter()
        try:
            self._store.write(changes)
        except exception.StoreError as error:
            self._metering.tell(Meter.committed, time.perf_counter() - began, error)
            raise
        self._metering.tell(Meter.committed, time.perf_counter() - began, None)

    def begin(self, records: Sequence[Record]) -> None:
        """Note the rows and the migration contexts that a start finds. Nobody has changed one since."""
        lost = {one.instance_uuid for one in self.known.lost(self.known.all(), records)}
        self.known.end_contexts(but=lost)       # also those that a commit of an earlier start has ended
        self.known.note(records, self._store.contexts(self._host_uuid))

    def of_move(self, context: MigrationContext) -> StoredContext:
        """The change that records a migration context."""
        text = json.dumps(context.obj_to_primitive(), separators=(',', ':'), sort_keys=True)
        return StoredContext(self._host_uuid, context.instance_uuid, context.migration_uuid, text)

    def end_of_move(self, instance_uuid: str) -> StoredContext:
        """The change that removes the migration context of an instance."""
        return StoredContext(self._host_uuid, instance_uuid, None, None)

    # -- commits in doubt ---------------------------------------------------------------------------------------------

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """The commits whose outcome is not known yet, oldest first."""
        return tuple(self.unfinished.all(Doubt))

    def in_doubt(self) -> list[Record]:
        """The rows that commits without an answer may have written, those of one instance together."""
        changes = [*(one.changes for one in self.unfinished.all(Insertion)), *(one.changes for one in self.doubts)]
        rows = {record.key: record for one in changes for record in _touched(one)}
        return sorted(rows.values(), key=operator.attrgetter('instance_uuid'))

    def doubts_of(self, instance_uuid: str) -> list[Doubt]:
        return [doubt for doubt in self.doubts if doubt.instance_uuid == instance_uuid]

    def remembered(self, instance_uuid: str | None = None) -> list[Record]:
        """The rows of one instance, or of all, without asking the store, in its order.

        These are the known ones, and those that commits without an answer may have written or ended.
        """
        # The doubts first: what becomes known meanwhile is in the second.
        rows = {record.key: tuple(record) for record in self.in_doubt()
                if instance_uuid in (None, record.instance_uuid)}
        rows |= self.known.all() if instance_uuid is None else self.known.of(instance_uuid)
        return sorted(map(Record._make, rows.values()),
                      key=operator.attrgetter('instance_uuid', 'position', 'identifier'))

    def settle(self, doubt: Doubt) -> bool:
        """Ask the store for the outcome of a commit. The caller works on the instance.

        :returns: True if it happened; False if it did not, or if another thread has settled it
        :raises StoreError: no answer yet; it stays in doubt
        """
        if self.unfinished.get(Doubt, doubt.key) is None:
            return False
        happened = self._store.settle(doubt.changes)
        if happened:
            # Another operation may have ended some of its rows since.
            shown = self.of_devices(doubt.changes.keys)
            self.known.note([record for record in _written(doubt.changes) if (
                now := shown.get(record.key)) is not None and now.claim_id == record.claim_id], doubt.changes.contexts)
            self._tell_ended(doubt.changes, shown)
        self.unfinished.end(Doubt, doubt.key)
        self.ledger.trust_rows(doubt.changes.keys)
        self._metering.tell(Meter.settled, happened)
        LOG.info('The commit in doubt for instance %(instance)s %(outcome)s', {
            'instance': doubt.instance_uuid, 'outcome': 'happened' if happened else 'did not happen'})
        return happened

    def follow(self, records: Sequence[Record]) -> None:
        """Hold devices whose rows are new to this process, and free devices that were held for commits in doubt.

        Only the manager of a host writes its rows. So a new row comes from a commit that became visible late, from a
        store that went back in time, or from somebody who should not have written it. The device has an owner in each
        case. A row that is known and not shown is lost, and its device stays held.

        :param records: every row of the host
        """
        strange = sorted({record.instance_uuid for record in self.ledger.now.not_held(records)})
        for instance_uuid in strange:
            with self.if_idle(instance_uuid) as idle:
                if idle:
                    self.ledger.hold_missing(self._shown(instance_uuid))
        for instance_uuid in self.ledger.now.without_row(records, not strange):
            self.let_go(instance_uuid)

    def let_go(self, instance_uuid: str) -> None:
        """Free the devices held for an instance because of rows that are gone, but none that a claim is taking.

        A row that is known is not gone, whatever the store shows.
        """
        with self.if_idle(instance_uuid) as idle:
            if idle:
                keep = {record.key for record in self.in_doubt() if record.instance_uuid == instance_uuid}
                keep.update(self.known.of(instance_uuid))
                keep.update(record.key for record in self._shown(instance_uuid))
                self.ledger.free_without_row(instance_uuid, keep)

    # -- one operation at a time --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def working(self, instance_uuid: str) -> Iterator[None]:
        """Wait for other operations on an instance's devices, and keep them out during the block."""
        with self._lock_of(instance_uuid).held():
            yield

    @contextlib.contextmanager
    def if_idle(self, instance_uuid: str) -> Iterator[bool]:
        """Say whether no operation works on an instance's devices. If so, keep others out during the block."""
        with self._lock_of(instance_uuid).held(wait=False) as idle:
            yield idle

    @contextlib.contextmanager
    def all_if_idle(self, instance_uuids: Collection[str]) -> Iterator[bool]:
        """As :meth:`if_idle`, for several instances at once."""
        with contextlib.ExitStack() as stack:
            yield all(stack.enter_context(self.if_idle(uuid)) for uuid in sorted(instance_uuids))

    def check_not_inside(self, instance_uuid: str | None = None) -> None:
        """Check that the calling thread may wait for others who work on an instance, or on any one.

        :raises ReentrantCall: it works on it further up its stack, so they would wait for this thread
        """
        # Other threads change the dictionary meanwhile. Both of these are one look at it, and items() would be many.
        found = [self._working.get(instance_uuid)] if instance_uuid is not None else \
            [lock() for lock in self._working.valuerefs()]
        if any(lock is not None and lock.is_in_use_here for lock in found):
            raise exception.ReentrantCall(locks.INSTANCE)

    def _lock_of(self, instance_uuid: str) -> locks.Lock:
        with self._finding.held():
            lock = self._working.get(instance_uuid)
            if lock is None:
                lock = self._working[instance_uuid] = locks.Lock(locks.INSTANCE, f'{self._host_uuid}-{instance_uuid}')
            return lock


def _of_request(changes: Changes) -> Changes:
    """Add the id of the present request to changes, for their events."""
    request_id = public_calls.present()
    if request_id is None:
        return changes
    insert, update, delete, contexts, note = changes
    # Every claim runs this, and only moves have a note already: _replace() would take four times as long.
    return Changes(insert, update, delete, contexts,
                   Note(request_id) if note is NO_NOTE else note._replace(request_id=request_id))


def _check_shown(lost: Sequence[LostRow]) -> None:
    """:raises RowsMissing: there is a lost row"""
    if lost:
        keys = ', '.join(sorted({str(one.row.key) for one in lost if one.known is not None}))
        raise exception.RowsMissing(lost[0].instance_uuid, 'the store had confirmed rows that it does not show now, '
                                    f'or shows as they were before: {keys}; it was restored, or one of its servers '
                                    'lags behind')


def _written(changes: Changes) -> list[Record]:
    return [*changes.insert, *(update.after for update in changes.update)]


def _touched(changes: Changes) -> list[Record]:
    return [*_written(changes), *changes.delete]
