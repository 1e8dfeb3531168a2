"""The store on a relational database."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import copy
import operator
import secrets
from typing import Any
from typing import Final

from oslo_config import cfg
from oslo_db import exception as db_exc
import sqlalchemy as sa

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.compact import Compact
from devicetrack.objects.event import Event
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Leftover
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import changing
from devicetrack.store.sql import convert
from devicetrack.store.sql import database
from devicetrack.store.sql import models
from devicetrack.store.sql import queries
from devicetrack.store.sql import schema
from devicetrack.store.sql import settle
from devicetrack.store.sql.backend import FaultCause
from devicetrack.store.sql.backend import TransactionFailed

# For each host. A request that waits is never dropped.
ANSWERED_OPERATOR_REQUESTS_KEPT: Final = 100

# Two random steps are the same once in four thousand million pairs. After a million starts an epoch still fits into the
# 53 bits that readers of JSON may have for a number.
LONGEST_STEP: Final = 1 << 32

# The fields of an operator request before this one are the question; the others are the answer.
_ASKED: Final = api.OperatorRequest._fields.index('answered_at')

# Also by identifier: the old and new devices of an instance that moves on one host have the same positions.
_IN_ORDER: Final = operator.itemgetter(*map(Record._fields.index, ('instance_uuid', 'position', 'identifier')))


class SQLStore(database.Database, api.Store):
    """Rows in SQLite, PostgreSQL or MariaDB. Opened by :func:`devicetrack.store.sql.open_store`.

    Reads and transactions take a connection from the pool. The rows of claims are committed together.
    """

    def __init__(self, conf: cfg.ConfigOpts, state_path: str | None = None) -> None:
        super().__init__(conf, state_path)
        # Its writes are refused when its epoch is over; with ``_own``, the last of these that the database had.
        self._host: api.Host | None = None
        self._own: set[int] | None = None
        self._is_taken_over = False

    def check(self) -> None:
        schema.check(self)
        self.transact(_try_to_write)

    def close(self) -> None:
        self.notice_fork()
        self.engine.dispose()

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def host(self, name: str) -> api.Host | None:
        rows = self.rows(queries.HOST, {'name': name})
        return convert.tuples(api.Host, rows)[0] if rows else None

    def hosts(self) -> list[api.Host]:
        return convert.tuples(api.Host, self.rows(queries.HOSTS))

    def tallies(self, host_uuids: Sequence[str]) -> dict[str, api.Tally]:
        given = {'host_uuids': list(host_uuids)}
        found = {uuid: api.Tally() for uuid in host_uuids}
        for uuid, instances, devices, releasing in self.rows(queries.TALLIES, given):
            found[uuid] = api.Tally(instances, devices - releasing, releasing)
        for uuid, count in self.rows(queries.TALLIES_WITHHELD, given):
            found[uuid] = found[uuid]._replace(withheld=count)
        for uuid, count in self.rows(queries.TALLIES_WAITING, given):
            found[uuid] = found[uuid]._replace(requests=count)
        return found

    def add_host(self, host: api.Host) -> None:
        if not host.name or (vocabulary.is_text(host.name) and not host.name.isprintable()):
            raise exception.InvalidConfiguration(
                'host', repr(host.name), 'it is empty, or has characters that no log and no terminal shows on one '
                                         'line: give the host another name')
        if host.name != host.name.strip(' '):
            raise exception.InvalidConfiguration(
                'host', f'"{host.name}"', 'it begins or ends with a blank, and MariaDB takes names for one that differ '
                                          'only in blanks at their end: give the host another name')
        try:
            self._execute(queries.ADD_HOST, host._asdict())
        except db_exc.DBDuplicateEntry as error:
            known = self.host(host.name)
            if known is None or known.identity != host.identity:    # else it is ours, and its answer was lost
                raise exception.HostIdentityChanged(host.name) from error

    def take_epoch(self, host_uuid: str, own: set[int] | None = None) -> int:
        own = set() if own is None else own
        before = frozenset(own)
        epoch = self.transact(lambda connection: _take_epoch(connection, host_uuid, before, own))
        if epoch is None:
            raise self._unknown(host_uuid)
        return epoch

    def at_epoch(self, host: api.Host, own: set[int] | None = None) -> SQLStore:
        # The copy shares everything else with this store: the engine, the committer, the process that owns them.
        store = copy.copy(self)
        store._host, store._own, store._is_taken_over = host, own, False
        return store

    def check_epoch(self) -> None:
        def check(host: api.Host | None) -> None:
            if host is not None:
                with self.reading() as connection:
                    self._pass(connection, host)

        self._fenced(check)

    @property
    def is_taken_over(self) -> bool:
        return self._is_taken_over

    def _pass(self, connection: sa.Connection, host: api.Host | None, alone: bool = False) -> None:
        """Keep others from taking a later epoch until the transaction ends.

        :param alone: keep others from writing for the host, too
        :raises HostTakenOver: somebody has taken one
        """
        if host is not None:
            try:
                changing.hold_host(connection, host.uuid, {host.epoch}, alone)
            except TransactionFailed:
                raise self._taken_over() from None

    def _taken_over(self) -> exception.HostTakenOver:
        return exception.HostTakenOver(self._host.name if self._host is not None else '')

    def _fenced(self, work: Callable[[api.Host | None], database.Result]) -> database.Result:
        """Run ``work``, which changes nothing if it raises HostTakenOver. Run it again at a later epoch of our own."""
        while True:
            try:
                return work(self._host)
            except exception.HostTakenOver:
                if not self._follow():
                    self._is_taken_over = True
                    raise

    def _follow(self) -> bool:
        """Go on with the epoch that the database has, if it is one of our own. Returns whether it is."""
        while self._host is not None and self._own is not None:
            own = frozenset(self._own)
            epochs = [epoch for epoch, in self.rows(queries.EPOCH, {'uuid': self._host.uuid}) if epoch in own]
            if epochs:
                self._host = self._host._replace(epoch=epochs[0])
                return True
            if own == self._own:                # else the epoch may have been one of them meanwhile
                break
        return False

    def _transact_at_epoch(self, work: Callable[[sa.Connection], database.Result],
                           alone: bool = False) -> database.Result:
        """As :meth:`transact`, for writes that a manager which was taken over must not make.

        :param alone: ``work`` locks the row of the host for itself. That has to be the first lock: if two had it for
            sharing, each would wait for the other.
        """
        def transact(host: api.Host | None) -> database.Result:
            def fenced(connection: sa.Connection) -> database.Result:
                self._pass(connection, host, alone)
                return work(connection)

            return self.transact(fenced)

        return self._fenced(transact)

    def _unknown(self, host_uuid: str) -> exception.UnknownHost:
        return exception.UnknownHost(host_uuid, [host.name for host in self.hosts()])

    def set_boot_id(self, host_uuid: str, boot_id: str) -> None:
        self._set_of_host(host_uuid, boot_id=boot_id)

    def set_nested(self, host_uuid: str, version: int | None, at: int | None) -> None:
        self._set_of_host(host_uuid, nested_version=version, nested_at=at)

    def _set_of_host(self, host_uuid: str, **values: Any) -> None:
        if not self._execute(queries.SET_OF_HOST, queries.of(uuid=host_uuid) | values):
            raise self._unknown(host_uuid)

    def replace_host(self, before: api.Host, after: api.Host | None) -> None:
        try:
            self.transact(lambda connection: _replace_host(connection, before, after))
        except db_exc.DBDuplicateEntry as error:
            raise exception.HostIdentityChanged(before.name if after is None else after.name) from error

    # -- assignments and the contexts of moves -------------------------------------------------------------------------

    def records(self) -> list[Record]:
        return list(self._records(queries.RECORDS, {}))

    def records_of_host(self, host_uuid: str) -> Sequence[Record]:
        found = self._records(queries.RECORDS_OF_HOST, {'host_uuid': host_uuid})
        if self.engine.dialect.name in models.SERVERS:          # nobody can damage a row there
            return found
        damaged = convert.of_unknown_hosts(self._records(queries.RECORDS_OF_NO_HOST, {}), host_uuid)
        return Compact(Record, [*found, *damaged]) if damaged else found

    def records_of_hosts(self, host_uuids: Sequence[str]) -> Sequence[Record]:
        return self._records(queries.RECORDS_OF_HOSTS, {'host_uuids': list(host_uuids)})

    def records_of_instance(self, host_uuid: str, instance_uuid: str) -> list[Record]:
        return list(self._records(queries.RECORDS_OF_INSTANCE,
                                  {'host_uuid': host_uuid, 'instance_uuid': instance_uuid}))

    def records_everywhere(self, instance_uuid: str) -> list[Record]:
        return list(self._records(queries.RECORDS_EVERYWHERE, {'instance_uuid': instance_uuid}))

    def records_of_devices(self, host_uuid: str, keys: Iterable[DeviceKey]) -> list[Record]:
        return list(self._records(queries.RECORDS_OF_DEVICES, {'host_uuid': host_uuid, 'keys': list(keys)}))

    def _records(self, statement: sa.Select[Any], given: Mapping[str, Any]) -> Sequence[Record]:
        rows = convert.records(self.rows(statement, given, _plain)).plain()
        rows.sort(key=_IN_ORDER)                # here, because each database has its own order
        return Compact(Record, rows)

    def records_named(self, identifier: str, host_uuid: str | None = None) -> list[Record]:
        return list(self._records(queries.RECORDS_NAMED.filter_by(**_given(host_uuid=host_uuid)),
                                  {'identifier': identifier}))

    def is_named(self, name: str, kind: str | None = None, host_uuid: str | None = None) -> bool:
        wanted = _given(kind=kind, host_uuid=host_uuid)
        return any(self.rows(statement.filter_by(**wanted), {'name': name})
                   for statement in (queries.NAMES_RECORD, queries.NAMES_WITHHELD))

    def contexts(self, host_uuid: str) -> list[api.StoredContext]:
        return convert.tuples(api.StoredContext, self.rows(queries.CONTEXTS, {'host_uuid': host_uuid}))

    def context(self, host_uuid: str, instance_uuid: str) -> api.StoredContext | None:
        found = convert.tuples(api.StoredContext, self.rows(
            queries.CONTEXT, {'host_uuid': host_uuid, 'instance_uuid': instance_uuid}))
        return found[0] if found else None

    def write(self, changes: api.Changes) -> None:
        self.notice_fork()
        self._fenced(lambda host: self._write(changes, host))

    def _write(self, changes: api.Changes, host: api.Host | None) -> None:
        try:
            self._committer.commit(changes, host)
        except TransactionFailed as failed:
            fault = failed.fault
            if fault.cause is FaultCause.TAKEN_OVER:
                raise self._taken_over() from None
            if fault.cause is FaultCause.STALE:
                raise self._stale(changes) from None
            raise self._taken(changes) if fault.cause is FaultCause.DUPLICATE else self.error(fault) from fault.error

    def settle(self, changes: api.Changes) -> bool:
        self.notice_fork()
        # A caller that was interrupted has left the line, while the one before it may still carry its changes.
        with contextlib.suppress(TransactionFailed):
            self._committer.commit(api.Changes())
        return self.transact(lambda connection: settle.wait_and_compare(connection, changes, self.backend))

    def _taken(self, changes: api.Changes) -> exception.NothingWritten:
        """The error for a key that exists. If its owner has given it back meanwhile, the error names all keys."""
        keys = [record.key for record in changes.insert]
        found = {record.key for record in self.records_of_devices(changes.insert[0].host_uuid, keys)}
        return exception.DeviceTaken([key for key in keys if key in found] or keys)

    def _stale(self, changes: api.Changes) -> exception.StaleAssignment:
        """The error for a row that moved on. It names the first row that is not as it was read."""
        read = changes.rows[len(changes.insert):]
        found = {record.key: record for record in self.records_of_devices(
            read[0].host_uuid, [row.key for row in read])}
        for before in read:
            now = found.get(before.key)
            if now is None or (now.generation, now.claim_id) != (before.generation, before.claim_id):
                break
        else:
            before = read[0]
        return exception.StaleAssignment(before.kind, before.identifier, before.generation)

    # -- operator requests ---------------------------------------------------------------------------------------------

    def add_operator_request(self, request: api.OperatorRequest) -> None:
        try:
            self.transact(lambda connection: _add_operator_request(connection, request))
        except db_exc.DBDuplicateEntry as error:
            known = self.operator_request(request.uuid)
            if known is not None and known[:_ASKED] != request[:_ASKED]:    # else it is ours, and its answer was lost
                raise ValueError(
                    f'operator request {request.uuid} is there already and asks for something else') from error

    def operator_request(self, uuid: str) -> api.OperatorRequest | None:
        found = convert.tuples(api.OperatorRequest, self.rows(queries.OPERATOR_REQUEST, {'uuid': uuid}))
        return found[0] if found else None

    def operator_requests(self, waiting: bool = False) -> list[api.OperatorRequest]:
        return convert.tuples(api.OperatorRequest, self.rows(
            queries.OPERATOR_REQUESTS_WAITING if waiting else queries.OPERATOR_REQUESTS))

    def operator_requests_of_host(self, host_uuid: str, waiting: bool = False) -> list[api.OperatorRequest]:
        statement = queries.OPERATOR_REQUESTS_OF_HOST_WAITING if waiting else queries.OPERATOR_REQUESTS_OF_HOST
        return convert.tuples(api.OperatorRequest, self.rows(statement, {'host_uuid': host_uuid}))

    def answer_operator_request(self, uuid: str, answered_at: int, answer: str) -> bool:
        return bool(self._execute(queries.ANSWER_OPERATOR_REQUEST,
                                  queries.of(uuid=uuid) | {'answered_at': answered_at, 'answer': answer}))

    # -- what is withheld, and what hosts declare ----------------------------------------------------------------------

    def withheld(self, host_uuid: str) -> list[api.WithheldRow]:
        return convert.tuples(api.WithheldRow, self.rows(queries.WITHHELD, {'host_uuid': host_uuid}))

    def withheld_of_hosts(self, host_uuids: Sequence[str], scopes: Sequence[str]) -> list[api.WithheldRow]:
        return convert.tuples(api.WithheldRow, self.rows(
            queries.WITHHELD_OF_HOSTS, {'host_uuids': list(host_uuids), 'scopes': list(scopes)}))

    def set_withheld(self, write: Sequence[api.WithheldRow], delete: Sequence[api.WithheldRow] = (),
                     events: Sequence[Event] = ()) -> None:
        if write or delete or events:
            self._transact_at_epoch(lambda connection: _set_withheld(connection, write, delete, events))

    def declarations(self) -> list[api.StoredDeclaration]:
        return convert.tuples(api.StoredDeclaration, self.rows(queries.DECLARATIONS))

    def declarations_of_host(self, host_uuid: str) -> list[api.StoredDeclaration]:
        return convert.tuples(api.StoredDeclaration, self.rows(
            queries.DECLARATIONS_OF_HOST, {'host_uuid': host_uuid}))

    def set_declarations(self, host_uuid: str, declarations: Sequence[api.StoredDeclaration]) -> None:
        self._transact_at_epoch(lambda connection: _set_declarations(connection, host_uuid, declarations), alone=True)

    # -- damaged rows --------------------------------------------------------------------------------------------------

    def damaged(self, host_uuid: str) -> list[api.DamagedRow]:
        if self.engine.dialect.name in models.SERVERS:          # they refuse values of other types
            return []
        found = []
        for table, statement in queries.OF_HOST.items():
            for row in self.rows(statement, {'host_uuid': host_uuid}):
                wrong = convert.wrong_columns(table, row)
                if wrong:
                    found.append(api.DamagedRow(table.name, convert.key_of(table, row), ', '.join(wrong)))
        return found

    # -- leftovers -----------------------------------------------------------------------------------------------------

    def leftovers(self, host_uuid: str) -> list[Leftover]:
        return convert.tuples(Leftover, self.rows(queries.LEFTOVERS, {'host_uuid': host_uuid}))

    def add_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        self._transact_at_epoch(lambda connection: _add_leftover(connection, host_uuid, leftover))

    def remove_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        self._execute(queries.DELETE_LEFTOVER,
                      {'host_uuid': host_uuid, 'migration_uuid': leftover.migration_uuid})

    # -- events --------------------------------------------------------------------------------------------------------

    def events_of_device(self, identifier: str, since_ms: int | None = None, until_ms: int | None = None,
                         host_uuid: str | None = None) -> list[api.StoredEvent]:
        return self._events(queries.EVENTS_OF_DEVICE.filter_by(**_given(host_uuid=host_uuid)),
                            {'identifier': identifier}, since_ms, until_ms)

    def events_of_serial(self, serial: str, since_ms: int | None = None, until_ms: int | None = None,
                         host_uuid: str | None = None) -> list[api.StoredEvent]:
        return self._events(queries.EVENTS_OF_SERIAL.filter_by(**_given(host_uuid=host_uuid)), {'serial': serial},
                            since_ms, until_ms)

    def events_of_instance(self, instance_uuid: str, since_ms: int | None = None,
                           until_ms: int | None = None) -> list[api.StoredEvent]:
        return self._events(queries.EVENTS_OF_INSTANCE, {'instance_uuid': instance_uuid}, since_ms, until_ms)

    def latest_events(self, host_uuid: str, limit: int) -> list[api.StoredEvent]:
        return convert.events(self.rows(queries.LATEST_EVENTS, {'host_uuid': host_uuid, 'at_most': limit}))

    def events_after(self, host_uuid: str, number: int, limit: int) -> list[api.StoredEvent]:
        return convert.events(self.rows(queries.EVENTS_AFTER, {'host_uuid': host_uuid, 'after': number,
                                                               'at_most': limit}))

    def _events(self, statement: sa.Select[Any], given: Mapping[str, Any], since_ms: int | None,
                until_ms: int | None) -> list[api.StoredEvent]:
        if since_ms is not None:
            statement, given = statement.where(queries.SINCE), {**given, 'since_ms': since_ms}
        if until_ms is not None:
            statement, given = statement.where(queries.UNTIL), {**given, 'until_ms': until_ms}
        return convert.events(self.rows(statement, given))

    def count_events(self, host_uuid: str, after: int, limit: int) -> tuple[int, int]:
        if self.engine.dialect.name not in models.SERVERS:
            [(first, last, hosts)] = self.rows(queries.SPAN)
            if hosts == 1:                      # numbers have no gaps, and only the oldest are deleted
                return (0, after) if last is None or last <= after else (last - max(after, first - 1), last)
        [(count, last)] = self.rows(queries.COUNT_EVENTS, {'host_uuid': host_uuid, 'after': after, 'at_most': limit})
        return count, after if last is None else last

    def trim_events(self, host_uuid: str, before_ms: int, surplus: int, limit: int) -> int:
        oldest = self.rows(queries.OLDEST_EVENTS, {'host_uuid': host_uuid, 'at_most': limit})
        # Up to the first event that stays, because a clock that was set back must not make holes.
        count = next((place for place, (_number, at_ms) in enumerate(oldest)
                      if _is_since(before_ms, at_ms) and place >= surplus), len(oldest))
        if not count:
            return 0
        return self._execute(queries.DELETE_EVENTS, {'host_uuid': host_uuid, 'last': oldest[count - 1][0]})

    def _execute(self, statement: sa.Insert | sa.Update | sa.Delete, given: Mapping[str, Any]) -> int:
        """Run one statement in a transaction of its own; returns how many rows it matched. Raises as transact does."""
        return self._transact_at_epoch(lambda connection: connection.execute(statement, given).rowcount)


def _plain(result: sa.CursorResult[Any]) -> Sequence[tuple[Any, ...]]:
    """Fetch rows from the driver's own cursor.

    SQLAlchemy would make an object of each row, which takes longer than reading it, and no column needs a conversion.
    """
    assert result.cursor is not None
    return result.cursor.fetchall()


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _is_since(before_ms: int, at_ms: Any) -> bool:
    """Whether an event stays. One whose time is damaged goes with those around it."""
    return isinstance(at_ms, int) and at_ms >= before_ms


def _try_to_write(connection: sa.Connection) -> None:
    for statement in queries.TRIES:
        connection.execute(statement)


# -- transactions of several statements -------------------------------------------------------------------------------


def next_step() -> int:
    """By how much the next epoch is later than the last one: by a random number.

    A store that is restored or made anew has an older epoch, or none. Counted by ones, the next manager would get the
    epoch of one that took its own since the backup and still runs, and both would pass the fence.
    """
    return 1 + secrets.randbelow(LONGEST_STEP)


def _take_epoch(connection: sa.Connection, host_uuid: str, before: frozenset[int], own: set[int]) -> int | None:
    """Take an epoch, and add it to ``own``. If there is any ``before``, only from one of these.

    :raises HostTakenOver: from none of them; nothing was written
    """
    step = next_step()
    # First the change, which locks the row. So what is read after it is what was changed.
    connection.execute(queries.NEXT_EPOCH, queries.of(uuid=host_uuid) | {'step': step})
    taken: int | None = connection.execute(queries.EPOCH, {'uuid': host_uuid}).scalar()
    if taken is not None:
        if before and taken - step not in before:
            hosts = convert.tuples(api.Host, connection.execute(queries.HOSTS))
            [name] = [host.name for host in hosts if host.uuid == host_uuid]
            raise exception.HostTakenOver(name)
        own.add(taken)
    return taken


def _replace_host(connection: sa.Connection, before: api.Host, after: api.Host | None) -> None:
    """Delete a host and all that is left of it, and insert another if there is one.

    :raises HostHoldsDevices, HostIdentityChanged: nothing was written
    :raises DBDuplicateEntry: a third host has the name or the UUID of the new one
    """
    table = models.hosts
    # For update: if two commands replace one machine, the second sees what the first has done.
    found = {host.identity: host for host in convert.tuples(api.Host, connection.execute(
        sa.select(table).where(table.c.uuid.in_([one.uuid for one in (before, after) if one is not None]))
        .with_for_update()))}
    if before.identity not in found:
        # An earlier call did it, and its answer was lost.
        if not found if after is None else after.identity in found:
            return
        raise exception.HostIdentityChanged(before.name)
    rows = connection.execute(sa.select(sa.func.count()).select_from(models.assignments).where(
        models.assignments.c.host_uuid == before.uuid)).scalar_one()
    if rows:
        raise exception.HostHoldsDevices(before.name, rows)
    for left in (models.migration_contexts, models.operator_requests, models.declarations):
        connection.execute(sa.delete(left).where(left.c.host_uuid == before.uuid))
    for kept in (models.withheld, models.leftovers, models.events):
        of_host = kept.c.host_uuid == before.uuid
        connection.execute(sa.delete(kept).where(of_host) if after is None else
                           sa.update(kept).where(of_host).values(host_uuid=after.uuid))
    connection.execute(sa.delete(table).where(table.c.uuid == before.uuid))
    if after is None:
        return
    epoch = max(after.epoch, found[before.identity].epoch) + next_step()    # later than any epoch of the old host
    connection.execute(sa.insert(table).values(after._replace(epoch=epoch)._asdict()))


def _add_operator_request(connection: sa.Connection, request: api.OperatorRequest) -> None:
    """Insert an operator request, and delete answered requests of its host that are more than are kept.

    :raises DBDuplicateEntry: the UUID is there already
    """
    table = models.operator_requests
    connection.execute(queries.ADD_OPERATOR_REQUEST, request._asdict())
    # Two statements: MariaDB takes no LIMIT in a subquery of IN.
    old = connection.execute(
        sa.select(table.c.number).where(table.c.host_uuid == request.host_uuid, table.c.answered_at.is_not(None))
        .order_by(table.c.number.desc()).offset(ANSWERED_OPERATOR_REQUESTS_KEPT)).scalars().all()
    if old:
        connection.execute(sa.delete(table).where(table.c.number.in_(old)))


def _set_withheld(connection: sa.Connection, write: Sequence[api.WithheldRow],
                  delete: Sequence[api.WithheldRow], events: Sequence[Event]) -> None:
    if write or delete:
        connection.execute(queries.DELETE_WITHHELD, [row._asdict() for row in (*write, *delete)])
    changing.add_again(connection, queries.ADD_WITHHELD, [row._asdict() for row in write])
    changing.add(connection, queries.ADD_EVENTS, [event._asdict() for event in events])


def _set_declarations(connection: sa.Connection, host_uuid: str,
                      declarations: Sequence[api.StoredDeclaration]) -> None:
    # One transaction at a time for each host: a lost one that is still open would add its rows to these.
    connection.execute(queries.LOCK_HOST, {'uuid': host_uuid})
    connection.execute(queries.DELETE_DECLARATIONS, {'host_uuid': host_uuid})
    changing.add_again(connection, queries.ADD_DECLARATIONS, [declaration._asdict() for declaration in declarations])


def _add_leftover(connection: sa.Connection, host_uuid: str, leftover: Leftover) -> None:
    row = {'host_uuid': host_uuid, **leftover._asdict()}
    connection.execute(queries.DELETE_LEFTOVER, row)
    changing.add_again(connection, queries.ADD_LEFTOVER, [row])
