"""Writes into the mirror what one host says of itself: its picture all at once, and its events by a cursor.

The events of the host's store are the outbox. The mirror says how far it has them, so nothing has to be remembered on
the host, and a mirror that was away or lost gets everything that the host still has.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import hashlib
import json
import time
from typing import Any
from typing import Final
from typing import NamedTuple

from oslo_db import exception as db_exc
import sqlalchemy as sa

from devicetrack import exception
from devicetrack.fleet import models
from devicetrack.fleet import reading
from devicetrack.fleet.mirror import Mirror
from devicetrack.fleet.mirror import Terms
from devicetrack.store import api
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql.backend import FaultCause
from devicetrack.store.sql.backend import TransactionFailed

# One transaction has at most so many events.
BATCH: Final = 1000
# The cursor covers the last events, and not only the last one. On a shared database, a transaction that takes long may
# commit an event after others with greater numbers. Then all events are pushed anew, and the mirror ignores those that
# it has.
WINDOW: Final = 100

_MS: Final = 1000
_MS_A_DAY: Final = 86_400_000

_HOSTS: Final = models.fleet_hosts
_EVENTS: Final = models.fleet_events

# Later releases may know more of an event. These make it the same one for all of them.
_IDENTITY: Final = ('host_uuid', 'kind', 'identifier', 'event', 'at_ms', 'instance_uuid', 'migration_uuid', 'claim_id',
                    'request_id', 'details', 'parent')

# One row whatever the mirror knows of the host: the first columns are those of the schema.
_KNOWN: Final = sa.select(
    models.fleet_schema, models.now_ms(), _HOSTS.c.name, _HOSTS.c.picture, _HOSTS.c.cursor_since,
    _HOSTS.c.cursor_number, _HOSTS.c.cursor_digest, _HOSTS.c.trimmed_at_ms, _HOSTS.c.forgotten_at_ms).select_from(
    models.fleet_schema.outerjoin(_HOSTS, _HOSTS.c.host_uuid == sa.bindparam('host_uuid')))
_TERMS: Final = len(Terms._fields)


class Said(NamedTuple):
    """What a host says of itself: columns of ``fleet_hosts``, rows of ``fleet_devices`` in their order, and parts."""

    host_uuid: str
    columns: Mapping[str, Any]
    devices: Sequence[Mapping[str, Any]]
    parts: Mapping[str, str]

    @property
    def picture(self) -> str:
        """A digest of all of it."""
        return digest([self.columns, self.devices, self.parts])


class Cursor(NamedTuple):
    """How far the mirror has the events of a host: up to ``number``. ``digest`` is of those after ``since``."""

    since: int
    number: int
    digest: str


class Batch(NamedTuple):
    """Events that the mirror may lack, the cursor after them, and whether there are more."""

    events: Sequence[api.StoredEvent]
    cursor: Cursor
    more: bool


class Pushed(NamedTuple):
    """What a push wrote: whether the picture was another one, and how many events it brought."""

    changed: bool
    events: int


class _Known(NamedTuple):
    """What the mirror knows of a host, and for how many days it keeps events. An unknown host has no ``name``."""

    days: int
    now_ms: int
    name: str | None
    picture: str | None
    cursor: Cursor
    trimmed_at_ms: int
    is_forgotten: bool


class _Overtaken(Exception):
    """Another push of the host was written since the mirror was read. Nothing was written."""


def digest(value: Any) -> str:
    """A digest of plain data. Equal data have equal digests, in every release."""
    text = json.dumps(value, sort_keys=True, separators=(',', ':'))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def digest_of(one: api.StoredEvent) -> str:
    """What tells an event from others. Its number does not: an event gets another one when its host changes stores."""
    return digest([getattr(one.event, name) for name in _IDENTITY])


def _digest_of_all(events: Iterable[api.StoredEvent]) -> str:
    return digest([digest_of(one) for one in events])


START: Final = Cursor(0, 0, _digest_of_all(()))


def next_batch(store: api.Store, host_uuid: str, cursor: Cursor) -> Batch:
    """The events of a host after a cursor. If the store does not have those before it as the mirror has: all events.

    That is so after the store was restored, lost or recovered.
    """
    found = store.events_after(host_uuid, cursor.since, WINDOW + BATCH)
    known = [one for one in found if one.number <= cursor.number]
    if _digest_of_all(known) != cursor.digest:
        return next_batch(store, host_uuid, START)
    window = found[-WINDOW:]
    after = START if not window else Cursor(window[0].number - 1, window[-1].number, _digest_of_all(window))
    return Batch(found[len(known):], after, len(found) == WINDOW + BATCH)


def push(mirror: Mirror, store: api.Store, said: Said, began: float) -> Pushed:
    """Bring the mirror to what the host says, and to the events of its store.

    The picture is written in one transaction, with the first events; further events follow in transactions of their
    own. If the call fails, what it has committed is right, and the next push goes on from there. One process at a time
    may push a host.

    :param began: when the host was read, by ``time.monotonic``
    :raises SchemaMismatch: the database is no mirror, or the host is newer than the mirror; nothing was written
    :raises MirrorHasHost: another machine of this name pushes; nothing was written
    :raises StoreError: the mirror or the store does not answer; the transaction may have been written
    """
    picture = said.picture
    for _attempt in range(backends.ATTEMPTS):
        known = _read(mirror, said.host_uuid)
        is_new = known.is_forgotten or known.picture != picture
        batch = next_batch(store, said.host_uuid, known.cursor)
        try:
            mirror.transact(functools.partial(_write, known, batch, said, picture if is_new else None, began))
        except (_Overtaken, db_exc.DBDuplicateEntry):
            continue
        break
    else:
        raise mirror.unavailable(TransactionFailed.by(FaultCause.CONFLICT).fault)
    events = len(batch.events)
    while batch.more:
        cursor = batch.cursor
        batch = next_batch(store, said.host_uuid, cursor)
        try:
            mirror.transact(functools.partial(_go_on, said.host_uuid, cursor, batch, known.now_ms))
        except _Overtaken:
            break                               # the other push goes on
        events += len(batch.events)
    if known.days and known.now_ms - known.trimmed_at_ms >= _MS_A_DAY:
        trim(mirror, [said.host_uuid], known.days, known.now_ms)
    return Pushed(is_new, events)


def _read(mirror: Mirror, host_uuid: str) -> _Known:
    rows = mirror.rows(_KNOWN, {'host_uuid': host_uuid})
    days = mirror.check([Terms(*row[:_TERMS]) for row in rows]).days
    now_ms, name, picture, since, number, of_cursor, trimmed_at_ms, forgotten_at_ms = rows[0][_TERMS:]
    if name is None:
        return _Known(days, now_ms, None, None, START, now_ms, False)
    return _Known(days, now_ms, name, picture, Cursor(since, number, of_cursor), trimmed_at_ms,
                  forgotten_at_ms is not None)


def _write(known: _Known, batch: Batch, said: Said, picture: str | None, began: float,
           connection: sa.Connection) -> None:
    """The first transaction of a push.

    :param picture: the digest of what the host says; None if the mirror has the same
    :raises _Overtaken: another push came between
    :raises DBDuplicateEntry: the same, for a new host
    """
    elapsed_ms = int((time.monotonic() - began) * _MS)
    values: dict[str, Any] = {'read_at_ms': models.now_ms() - elapsed_ms,
                              'host_read_at_ms': time.time_ns() // 1_000_000 - elapsed_ms}
    if picture is not None:
        values |= {**said.columns, 'picture': picture, 'forgotten_at_ms': None}
    if picture is not None or batch.events or batch.cursor != known.cursor:
        values |= _columns_of(batch.cursor)
    if known.name != said.columns['name'] or known.is_forgotten:
        _take_name(connection, said)
    if known.name is None:
        connection.execute(sa.insert(_HOSTS).values(
            host_uuid=said.host_uuid, trimmed_at_ms=known.trimmed_at_ms, **values))
    else:
        _update(connection, said.host_uuid, known.cursor, values, _HOSTS.c.picture == known.picture)
    if picture is not None:
        _bring(connection, models.fleet_devices, said.host_uuid, [
            {'position': position, **device} for position, device in enumerate(said.devices)])
        _bring(connection, models.fleet_parts, said.host_uuid, [
            {'part': part, 'document': document} for part, document in said.parts.items()])
    _add(connection, said.host_uuid, batch.events, known.now_ms)


def _go_on(host_uuid: str, cursor: Cursor, batch: Batch, now_ms: int, connection: sa.Connection) -> None:
    """A further transaction of a push: more events.

    :raises _Overtaken: another push came between
    """
    _update(connection, host_uuid, cursor, _columns_of(batch.cursor))
    _add(connection, host_uuid, batch.events, now_ms)


def _columns_of(cursor: Cursor) -> dict[str, Any]:
    return {f'cursor_{name}': value for name, value in cursor._asdict().items()}


def _update(connection: sa.Connection, host_uuid: str, cursor: Cursor, values: Mapping[str, Any],
            *conditions: sa.ColumnElement[bool]) -> None:
    """Change the row of a host, if the mirror still has this cursor. It is the first lock of every push."""
    statement = sa.update(_HOSTS).where(_HOSTS.c.host_uuid == host_uuid, *conditions, *(
        _HOSTS.c[name] == value for name, value in _columns_of(cursor).items()))
    if not connection.execute(statement.values(values)).rowcount:
        raise _Overtaken


def _take_name(connection: sa.Connection, said: Said) -> None:
    """End the host that has had the name of this one: a machine has another UUID after its store was lost.

    :raises MirrorHasHost: another machine has the name, and is not silent
    """
    # One at a time: two machines of one name may be new here.
    connection.execute(sa.select(models.fleet_schema.c.format).with_for_update())
    name = said.columns['name']
    others = connection.execute(sa.select(
        _HOSTS.c.host_uuid, _HOSTS.c.machine_id, models.is_silent().label('silent')).where(
        _HOSTS.c.name == name, _HOSTS.c.host_uuid != said.host_uuid, _HOSTS.c.forgotten_at_ms.is_(None))).all()
    for other in others:
        if other.machine_id != said.columns['machine_id'] and not other.silent:
            raise exception.MirrorHasHost(name)
        _end(connection, other.host_uuid)


def _end(connection: sa.Connection, host_uuid: str) -> None:
    """Forget a host, except its events."""
    for table in (models.fleet_devices, models.fleet_parts):
        connection.execute(sa.delete(table).where(table.c.host_uuid == host_uuid))
    connection.execute(sa.update(_HOSTS).where(_HOSTS.c.host_uuid == host_uuid).values(
        forgotten_at_ms=models.now_ms(), picture='', findings='[]', critical=0, report_only=None))


def _bring(connection: sa.Connection, table: sa.Table, host_uuid: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Make these the rows of a host, each with a digest. The last column of the primary key tells them apart.

    Rows that stay are not written: most pushes change few of them.
    """
    key = table.primary_key.columns.values()[-1]
    there = dict(map(tuple, connection.execute(
        sa.select(key, table.c.digest).where(table.c.host_uuid == host_uuid))))
    wanted = {row[key.name]: {'host_uuid': host_uuid, 'digest': digest(row), **row} for row in rows}
    for some in backends.chunks([found for found, of_row in there.items()
                                 if found not in wanted or wanted[found]['digest'] != of_row]):
        connection.execute(sa.delete(table).where(table.c.host_uuid == host_uuid, key.in_(some)))
    for new in backends.chunks([row for found, row in wanted.items() if there.get(found) != row['digest']]):
        connection.execute(sa.insert(table), new)


def _add(connection: sa.Connection, host_uuid: str, events: Sequence[api.StoredEvent], now_ms: int) -> None:
    """Add events of a host, without those that are there already."""
    rows = {digest_of(one): one for one in events}
    for some in backends.chunks(list(rows)):
        there = set(connection.execute(sa.select(_EVENTS.c.digest).where(
            _EVENTS.c.host_uuid == host_uuid, _EVENTS.c.digest.in_(some))).scalars())
        if new := [found for found in some if found not in there]:
            connection.execute(sa.insert(_EVENTS), [
                {'digest': found, 'arrived_at_ms': now_ms, 'number': rows[found].number, **rows[found].event._asdict()}
                for found in new])


# -- what ends ---------------------------------------------------------------------------------------------------------


def trim(mirror: Mirror, host_uuids: Iterable[str], days: int, now_ms: int) -> None:
    """Delete the events of hosts that arrived so many days ago, in a transaction for each host.

    :raises StoreUnavailable, OutcomeUnknown: the mirror does not answer; a later call goes on
    """
    def of_host(host_uuid: str, connection: sa.Connection) -> None:
        connection.execute(sa.delete(_EVENTS).where(_EVENTS.c.host_uuid == host_uuid,
                                                    _EVENTS.c.arrived_at_ms < now_ms - days * _MS_A_DAY))
        connection.execute(sa.update(_HOSTS).where(_HOSTS.c.host_uuid == host_uuid).values(trimmed_at_ms=now_ms))

    for host_uuid in host_uuids:
        mirror.transact(functools.partial(of_host, host_uuid))


def trim_all(mirror: Mirror) -> None:
    """As :func:`trim`, for every host that the mirror knows, also those that push no more."""
    days = mirror.terms().days
    if days:
        [(now_ms,)] = mirror.rows(sa.select(models.now_ms()))
        hosts = [uuid for uuid, in mirror.rows(sa.select(_HOSTS.c.host_uuid))]
        trim(mirror, hosts, days, now_ms)


def forget(mirror: Mirror, name: str) -> str:
    """Forget a host that is silent: it has no devices any more, and keeps its history. Returns its UUID.

    :raises BadRequest: the mirror has no host of this name, or it is not silent; nothing was written
    """
    mirror.terms()

    def work(connection: sa.Connection) -> str:
        found = connection.execute(sa.select(_HOSTS.c.host_uuid, models.is_silent().label('silent')).where(
            _HOSTS.c.name == name, _HOSTS.c.forgotten_at_ms.is_(None)).with_for_update()).all()
        if not found:
            raise reading.unknown_host(name, connection.execute(
                sa.select(_HOSTS.c.name).where(_HOSTS.c.forgotten_at_ms.is_(None))).scalars())
        if not all(one.silent for one in found):
            raise exception.BadRequest('host', name, 'it still pushes: stop its timer, and forget it when it has been '
                                                     f'silent for {models.SILENT_INTERVALS} of its intervals')
        for one in found:
            _end(connection, one.host_uuid)
        return str(found[0].host_uuid)

    return mirror.transact(work)
