"""Finds out what became of a commit whose answer was lost.

The lost transaction may still run, or even wait in a network for its COMMIT to arrive. It holds the locks of every
row that it wrote until it ends. So a second transaction that writes the same keys waits for it, wherever it is, and
is undone itself. A plain read would see the rows as they were before, and prove nothing.

- For a row that the lost transaction inserted, an INSERT of the same key waits. Reading it for update would not do in
  PostgreSQL, which does not see rows that are not committed.
- For a row that it changed or deleted, reading it for update waits, because that locks like a write.
- SQLite has one lock for all rows, and BEGIN IMMEDIATE takes it.

When the lost transaction has ended, all of its rows agree, because one transaction wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from oslo_db import exception as db_exc
import sqlalchemy as sa

from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql import convert
from devicetrack.store.sql import models

_Key = tuple[str, str, str]


def wait_and_compare(connection: sa.Connection, changes: api.Changes) -> bool:
    """Wait for the lost transaction and say whether its changes happened. Leaves no transaction open.

    :param connection: one whose transactions take SQLite's write lock at once, outside of a transaction
    :raises: the error of the database, if the lost transaction is still open after the timeout for locks
    """
    with connection.begin() as undone:
        _lock(connection, [update.before for update in changes.update])
        _lock(connection, changes.delete)
        if changes.insert:
            try:
                connection.execute(sa.insert(models.assignments), [record._asdict() for record in changes.insert])
            except db_exc.DBDuplicateEntry:
                pass                    # the comparison tells whose row it is
        undone.rollback()
    with connection.begin() as undone:
        # For update, because that reads the newest row in every isolation level.
        found = _lock(connection, [*changes.insert, *(update.before for update in changes.update), *changes.delete])
        undone.rollback()
    return happened(changes, found)


def _lock(connection: sa.Connection, rows: Iterable[Record]) -> dict[_Key, Record]:
    table = models.assignments
    found: dict[_Key, Record] = {}
    for keys in backends.chunks(sorted({record[:3] for record in rows})):
        statement = sa.select(table).with_for_update().where(sa.or_(*[
            sa.and_(table.c.host_uuid == host_uuid, table.c.kind == kind, table.c.identifier == identifier)
            for host_uuid, kind, identifier in keys]))
        found.update((record[:3], record) for record in convert.records(connection.execute(statement)))
    return found


def happened(changes: api.Changes, found: Mapping[Any, Record]) -> bool:
    """Compare the rows that the changes name with those that were found, by claim and generation.

    First look for rows that only the lost transaction can have written. Then look for rows that it cannot have left as
    they are. Others may have changed rows since. A later generation of the same claim was made from ours, because a row
    has one writer at a time, and each writer names the generation that it read. The details do not count: a command
    that converts them to this release's version leaves the generation as it is.
    """
    for inserted in changes.insert:
        row = found.get(inserted[:3])
        if row is not None and row.claim_id == inserted.claim_id:
            return True
    for before, after in changes.update:
        row = found.get(before[:3])
        if row is not None and row.claim_id == after.claim_id and row.generation >= after.generation:
            return row.generation > after.generation or row._replace(details=after.details) == after
    for before in (*(update.before for update in changes.update), *changes.delete):
        row = found.get(before[:3])
        if row is not None and row.claim_id == before.claim_id and row.generation == before.generation:
            return False
    # The rest are inserted rows that are missing, deleted rows that are gone, and rows that others own by now.
    return bool(changes.delete)
