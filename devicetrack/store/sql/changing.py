"""Carries out changes in a transaction."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Final

from oslo_db import exception as db_exc
import sqlalchemy as sa

from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store import history
from devicetrack.store.sql import models
from devicetrack.store.sql import queries
from devicetrack.store.sql.backend import FaultCause
from devicetrack.store.sql.backend import TransactionFailed

# Changes, and the host with the epoch of their writer if it has one.
Member = tuple[api.Changes, api.Host | None]

# An update may change every column but those that name the row.
_CHANGEABLE: Final = tuple(name for name in Record._fields if name not in models.KEY)


def carry_out(connection: sa.Connection, members: Sequence[Member]) -> None:
    """Carry out the changes of all members in the transaction of a connection.

    Deletes come first, so that a device that one member gives can be taken by another. Every transaction locks its rows
    in the order of their keys, so two transactions that meet seldom deadlock.

    :raises TransactionFailed: a host has a later epoch than a writer, or a row moved on
    :raises DBDuplicateEntry: an inserted device has a row
    """
    if len(members) == 1:
        [(changes, host)] = members
        if host is not None and len(changes.insert) == len(changes.rows) == 1 and not changes.contexts:
            _claim(connection, changes, host)
            return
    every = [changes for changes, _host in members]
    for host_uuid, epochs in sorted(_hosts(members).items()):
        hold_host(connection, host_uuid, epochs)
    for record in _in_order(record for changes in every for record in changes.delete):
        _run_for_row(connection, queries.DELETE_RECORD, record, {})
    for before, after in sorted((update for changes in every for update in changes.update),
                                key=lambda update: update.before[:3]):
        _run_for_row(connection, queries.SET_RECORD, before, {name: getattr(after, name) for name in _CHANGEABLE})
    add(connection, queries.ADD_RECORDS, [
        record._asdict() for record in _in_order(record for changes in every for record in changes.insert)])
    add(connection, queries.ADD_EVENTS, [event._asdict() for changes in every for event in history.events_of(changes)])
    # The last change to the context of an instance counts.
    for change in sorted((change for changes in every for change in changes.contexts), key=lambda change: change[:2]):
        connection.execute(queries.DELETE_CONTEXT, change._asdict())
        if change.context is not None:
            add_again(connection, queries.ADD_CONTEXT, [change._asdict()])


def _claim(connection: sa.Connection, changes: api.Changes, host: api.Host) -> None:
    """Insert one row and its event, as most transactions do: in few statements, since each is a round trip."""
    [record], [event] = changes.insert, history.events_of(changes)
    epoch = queries.of(uuid=host.uuid, epoch=host.epoch)
    row, told = {f'{queries.NEW}{name}': value for name, value in record._asdict().items()}, event._asdict()
    if connection.dialect.name == 'postgresql':
        inserted = connection.execute(queries.ADD_RECORD_AT_EPOCH_AND_EVENT, {**row, **epoch, **told}).rowcount
    else:
        inserted = connection.execute(queries.ADD_RECORD_AT_EPOCH, {**row, **epoch}).rowcount
        connection.execute(queries.ADD_EVENTS, told)
    if inserted != 1:
        raise TransactionFailed.by(FaultCause.TAKEN_OVER)


def _in_order(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record[:3])


def _run_for_row(connection: sa.Connection, statement: sa.Update | sa.Delete, read: Record,
                 values: Mapping[str, Any]) -> None:
    """Change or delete a row that is still as it was read."""
    version = {name: getattr(read, name) for name in models.READ_AT}
    if connection.execute(statement, {**queries.of(**version), **values}).rowcount != 1:
        raise TransactionFailed.by(FaultCause.STALE)


def add(connection: sa.Connection, statement: sa.Insert, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows. SQLAlchemy takes longer for a list of one than for one."""
    if rows:
        connection.execute(statement, rows if len(rows) > 1 else rows[0])


def add_again(connection: sa.Connection, statement: sa.Insert, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows whose keys this transaction has deleted: each database has its own form of "insert or update".

    :raises DBDeadlock: another transaction, or a lost one, has inserted one since, so this one is to be run again
    """
    try:
        add(connection, statement, rows)
    except db_exc.DBDuplicateEntry as error:
        raise db_exc.DBDeadlock from error


def _hosts(members: Iterable[Member]) -> dict[str, set[int]]:
    """The hosts whose rows change, with the epochs of the writers."""
    hosts: dict[str, set[int]] = {}
    for changes, host in members:
        if host is not None:
            hosts.setdefault(host.uuid, set()).add(host.epoch)
        else:
            for record in changes.rows:
                hosts.setdefault(record.host_uuid, set())
    return hosts


def hold_host(connection: sa.Connection, host_uuid: str, epochs: set[int], alone: bool = False) -> None:
    """Lock the row of a host until the transaction ends: for sharing, or for this transaction alone.

    So a manager that takes a later epoch waits for this transaction, and so does whoever settles it.

    :param epochs: those of the writers
    :raises TransactionFailed: the host has a later epoch than a writer
    """
    statement = queries.LOCK_HOST if alone else queries.HOLD_HOST
    if epochs - {connection.execute(statement, {'uuid': host_uuid}).scalar()}:
        raise TransactionFailed.by(FaultCause.TAKEN_OVER)
