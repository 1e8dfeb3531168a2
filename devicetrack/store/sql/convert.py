"""Makes tuples from rows, and parameters from tuples: both have the same fields in the same order.

SQLite keeps a value of any type in any column, so a row that a broken program or disk changed may have a BLOB or a text
in place of a number. Such a row costs itself alone: see :func:`sound`.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import Final

import sqlalchemy as sa

from devicetrack import log
from devicetrack.objects.compact import Compact
from devicetrack.objects.compact import Named
from devicetrack.objects.event import Event
from devicetrack.objects.values import Record
from devicetrack.objects.values import UNKNOWN_GENERATION
from devicetrack.store import api
from devicetrack.store.sql import models

LOG = log.logger(__name__)

# The types of the values in each column of each table.
_TYPES: Final = {table: [frozenset((*((int,) if isinstance(column.type, sa.Integer) else
                                      (int, bool) if isinstance(column.type, sa.Boolean) else (str,)),
                                    *[type(None)] * bool(column.nullable))) for column in table.columns]
                 for table in models.metadata.tables.values()}
_WAS_REALIZED: Final = Record._fields.index('was_realized')
# Damaged events that the log has named. Every audit names the damaged rows of the other tables.
_told: set[str] = set()


def sound(table: sa.Table, rows: list[Any]) -> list[Any]:
    """Return rows, all columns in their order, whose values have the types of the columns.

    In a row with a wrong value, a text has the place of bytes, and 0 or None that of a number. A row of a device stays
    owned: nobody can read its details or write it, and audits name it.
    """
    wanted = _TYPES[table]
    columns = zip(*rows, strict=True)
    if not rows or all(types.issuperset(map(type, column)) for types, column in zip(wanted, columns, strict=True)):
        return rows
    return [row if all(type(value) in types for types, value in zip(wanted, row, strict=True)) else _mended(table, row)
            for row in rows]


def wrong_columns(table: sa.Table, row: Sequence[Any]) -> list[str]:
    """The columns of a row, all in their order, with values of other types."""
    return [name for name, types, value in zip(table.columns.keys(), _TYPES[table], row, strict=True)
            if type(value) not in types]


def of_unknown_hosts(rows: Iterable[Record], host_uuid: str) -> list[Record]:
    """Rows whose host is damaged, as a host has them: each may be of any host, so its device is nobody else's here."""
    return [row._replace(host_uuid=host_uuid, details='a host_uuid that is none', generation=UNKNOWN_GENERATION,
                         was_realized=True) for row in rows]


def key_of(table: sa.Table, row: Sequence[Any]) -> str:
    """The primary key of a row, all columns in their order, for people."""
    mended = map(_stand_in, _TYPES[table], row)
    return ' '.join(str(value) for column, value in zip(table.columns, mended, strict=True) if column.primary_key)


def _mended(table: sa.Table, row: Sequence[Any]) -> tuple[Any, ...]:
    wrong, mended = ', '.join(wrong_columns(table, row)), tuple(map(_stand_in, _TYPES[table], row))
    if table is models.assignments:
        return Record._make(mended)._replace(
            details=f'a value of a wrong type in {wrong}', generation=UNKNOWN_GENERATION, was_realized=True)
    if table is models.events and (key := key_of(table, row)) not in _told:
        _told.add(key)
        LOG.error('The row %(key)s of events has a value of another type in %(columns)s', {
            'key': key, 'columns': wrong})
    return mended


def _stand_in(types: frozenset[type], value: Any) -> Any:
    if type(value) in types:
        return value
    if str in types:
        return value.decode('utf-8', 'backslashreplace') if isinstance(value, bytes) else str(value)
    return None if type(None) in types else 0


def records(rows: Iterable[tuple[Any, ...]]) -> Compact[Record]:
    """Rows of ``assignments``, all columns in their order, as records. A host has thousands."""
    # SQLite and MariaDB have numbers for truth values.
    at = _WAS_REALIZED
    return Compact(Record, [(*row[:at], bool(row[at]), *row[at + 1:]) for row in sound(models.assignments, list(rows))])


def tuples(of: type[Named], rows: Iterable[Sequence[Any]]) -> list[Named]:
    """Rows of the table of a class, all columns in their order, without a first one that the class does not have."""
    table = models.TABLES[of]
    first = len(table.columns) - len(of._fields)
    return [of._make(row[first:]) for row in sound(table, list(rows))]


def events(rows: Iterable[Sequence[Any]]) -> list[api.StoredEvent]:
    """Rows of ``events``, all columns in their order."""
    return [api.StoredEvent(row[0], Event._make(row[1:])) for row in sound(models.events, list(rows))]
