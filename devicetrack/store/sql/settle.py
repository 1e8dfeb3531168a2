"""Finds out what became of a commit whose answer was lost.

The lost transaction may still run, or even wait in a network for its COMMIT to arrive. Every transaction that writes
rows holds the row of its host for sharing until it ends. So whoever locks that row for itself waits for the lost one,
wherever it is. A plain read would see the rows as they were before, and prove nothing. SQLite has one lock for all.
Nodes of a Galera cluster share no locks; there a change of the same rows refuses the lost transaction on any node.

When the lost transaction has ended, all of its rows agree, because one transaction wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql import convert
from devicetrack.store.sql import queries


def wait_and_compare(connection: sa.Connection, changes: api.Changes, backend: backends.Backend) -> bool:
    """Wait for the lost transaction and say whether its changes happened.

    :raises: the error of the database, if the lost transaction is still open after the timeout for locks
    """
    backend.catch_up(connection, changes.rows)
    found: dict[Any, Record] = {}
    for host_uuid in sorted({record.host_uuid for record in changes.rows}):
        connection.execute(queries.LOCK_HOST, {'uuid': host_uuid})
        found.update((record[:3], record) for record in convert.records(connection.execute(
            queries.RECORDS_OF_DEVICES, {'host_uuid': host_uuid, 'keys': changes.keys})))
    connection.rollback()
    return happened(changes, found)


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
