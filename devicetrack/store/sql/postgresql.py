"""PostgreSQL, by psycopg2."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from devicetrack.objects.event import Event
from devicetrack.store import api
from devicetrack.store.sql import backend
from devicetrack.store.sql import convert
from devicetrack.store.sql import models
from devicetrack.store.sql.backend import Cause

# By SQLSTATE, or else by its class.
_CAUSES: Final = {
    '23505': Cause.DUPLICATE,
    '22012': Cause.TAKEN_OVER,      # division by zero: only the statement of a fence can have it
    '40001': Cause.CONFLICT,
    '40P01': Cause.CONFLICT,
    '55P03': Cause.LOCKED,
    '25006': Cause.READ_ONLY,
    '42501': Cause.READ_ONLY,
    '42P01': Cause.NO_SCHEMA,
    '42703': Cause.NO_SCHEMA,
    '3F000': Cause.NO_SCHEMA,
    '3D000': Cause.GONE,
    '53100': Cause.FULL,
    '40003': Cause.IN_DOUBT,
    '57014': Cause.TOO_SLOW,
}
_CAUSES_OF_CLASSES: Final = {
    '22': Cause.UNFIT,
    '08': Cause.GONE,
    '28': Cause.GONE,
    '53': Cause.GONE,       # too many connections, out of memory
    '57': Cause.GONE,       # shutting down, crashed, cannot connect now
    '58': Cause.GONE,
}


# Most texts of a claim are those of the one before.
_QUOTED_KEPT: Final = 1000

# Columns of an event: those that its row has too, and the others, for which _of_event() makes the values.
_OF_ROW: Final = ('host_uuid', 'kind', 'identifier', 'instance_uuid', 'migration_uuid', 'claim_id', 'parent')
_OF_EVENT: Final = ('event', 'at_ms', 'request_id', 'details')


class PostgreSQL(backend.Backend):
    """One round trip for BEGIN and the statement together, one for COMMIT.

    psycopg2 would send BEGIN by itself and wait for its answer first. So the writing connection is in the driver's
    autocommit mode, in which it adds nothing. Every transaction is explicit all the same: in the server's autocommit a
    broken connection would leave the outcome of every statement unknown, and not only that of COMMIT.
    """

    paramstyle = 'format'

    def __init__(self, engine: sa.Engine, patience: backend.Patience) -> None:
        super().__init__(engine, patience)
        # The server runs the next statements of the round trip only if this one raises no error, and it reports only on
        # the last statement. So a fence that finds no row raises an error.
        self._check_fence = f'SELECT 1 / (SELECT count(*) FROM ({self.check_epoch}) AS fence);'
        self._insert_events, self._event_row = self.add_event.split(' VALUES ')
        prefix, self._insert_row = self.insert_one.split(' VALUES ')
        self._insert_rows = prefix + ' VALUES '
        self._update_rows, self._updated_row = _update_rows()
        self._delete_rows, self._deleted_row = _delete_rows()
        parameters = [column.type for column in models.assignments.c] + [
            models.hosts.c.uuid.type, models.hosts.c.epoch.type] + [
            models.events.c[name].type for name in _OF_EVENT]
        # The event of a claim takes the common fields from the row.
        numbered = (f'WITH taken AS ({self.insert_one_at_epoch} RETURNING {", ".join(_OF_ROW)}) INSERT INTO events '
                    f'({", ".join(_OF_EVENT + _OF_ROW)}) SELECT {", ".join(["%s"] * len(_OF_EVENT))}, '
                    f'{", ".join(_OF_ROW)} FROM taken')
        for number in range(1, len(parameters) + 1):
            numbered = numbered.replace('%s', f'${number}', 1)
        types = ', '.join('BIGINT' if isinstance(found, sa.Integer) else 'TEXT' for found in parameters)
        self._prepare_claim = f'PREPARE claim ({types}) AS {numbered}'
        self._claim = f'BEGIN;EXECUTE claim {_row(len(parameters))}'
        self._values_of_update = convert.parameters_of_update(
            [*map(convert.old, models.READ_AT), *map(convert.new, convert.CHANGEABLE)])
        self._values_of_delete = convert.parameters_of_delete([convert.old(name) for name in models.READ_AT])

    @staticmethod
    def _insert_or_replace(table: sa.Table, key: Sequence[str], others: Sequence[str]) -> sa.Insert:
        insert = postgresql.insert(table)
        return insert.on_conflict_do_update(index_elements=key, set_={name: insert.excluded[name] for name in others})

    def connect_arguments(self) -> Mapping[str, Any]:
        # Not at the top: without the driver the other stores work all the same.
        from devicetrack.store.sql import psycopg2_connection
        return {'connection_factory': functools.partial(psycopg2_connection.connect, self.patience.silence_s)}

    def prepare(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{self.patience.busy_s}s'")
            cursor.execute(f"SET statement_timeout = '{self.patience.statement_s}s'")
            # Set it whatever the default of the database is: a stricter level refuses more, and gains nothing here.
            cursor.execute('SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED')
        connection.commit()

    def prepare_to_write(self, connection: Any) -> None:
        connection.autocommit = True
        connection.writing = connection.cursor()
        # Nearly every transaction of a claim is this statement, which takes longer to parse and plan than to run.
        connection.writing.execute(self._prepare_claim)

    def ping(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute('SELECT 1')

    def carry_out(self, connection: Any, merged: backend.Merged, fences: Sequence[api.Fence] = ()) -> None:
        insert, update, delete, contexts, events = merged
        cursor = connection.writing
        if self.is_one_insert(merged, fences):
            self._run_claim(cursor, insert[0] + fences[0] + _of_event(events[0]))
            if cursor.rowcount != 1:
                raise backend.OldEpoch
            return
        # The server reports only on the last statement, so the events go before the one whose rows are counted.
        begin = 'BEGIN;' + self._check_fence * len(fences) + ''.join(
            f'{self._insert_events} VALUES {_rows(self._event_row, some)};' for some in backend.chunks(events))
        first = backend.flat(fences) + backend.flat(events)
        for deleted in backend.chunks(delete):
            if len(deleted) == 1:
                cursor.execute(begin + self.delete_one, first + self.of_delete(deleted[0]))
            else:
                cursor.execute(begin + self._delete_rows % _rows(self._deleted_row, deleted),
                               first + backend.flat(map(self._values_of_delete, deleted)))
            if cursor.rowcount != len(deleted):
                raise backend.StaleRows
            begin, first = '', ()
        for updated in backend.chunks(update):
            if len(updated) == 1:
                cursor.execute(begin + self.update_one, first + self.of_update(updated[0]))
            else:
                cursor.execute(begin + self._update_rows % _rows(self._updated_row, updated),
                               first + backend.flat(map(self._values_of_update, updated)))
            if cursor.rowcount != len(updated):
                raise backend.StaleRows
            begin, first = '', ()
        for inserted in backend.chunks(insert):
            if len(inserted) == 1:
                cursor.execute(begin + self.insert_one, first + inserted[0])
            else:
                cursor.execute(begin + self._insert_rows + _rows(self._insert_row, inserted),
                               first + backend.flat(inserted))
            begin, first = '', ()
        if contexts:
            statements, parameters = zip(*self.of_contexts(contexts), strict=True)
            cursor.execute(begin + ';'.join(statements), backend.flat(parameters))

    def _run_claim(self, cursor: Any, parameters: tuple[Any, ...]) -> None:
        """Insert one row and its event. The driver takes several times as long to write the parameters."""
        literals = ['NULL' if value is None else str(value) if type(value) is int else _quoted(value)
                    for value in parameters]
        if None in literals:
            cursor.execute(self._claim, parameters)
        else:
            cursor.execute(self._claim % tuple(literals))

    def commit(self, connection: Any) -> None:
        connection.writing.execute('COMMIT')

    def rollback(self, connection: Any) -> None:
        connection.writing.execute('ROLLBACK')

    def cause_of(self, error: BaseException) -> Cause:
        code = getattr(error, 'pgcode', None)
        if code is None:
            # The client library's own errors have no code. They are mistakes of ours, or a lost connection.
            mistakes = ('ProgrammingError', 'NotSupportedError', 'DataError')
            return Cause.OTHER if type(error).__name__ in mistakes else Cause.GONE
        return _CAUSES.get(code) or _CAUSES_OF_CLASSES.get(code[:2], Cause.OTHER)

    def code_of(self, error: BaseException) -> str:
        return getattr(error, 'pgcode', None) or ''

    def undone_in_commit(self, error: BaseException) -> bool:
        # A server that answers with an error, and goes on, has undone the transaction.
        return getattr(error, 'pgcode', None) is not None and self.cause_of(error) not in (
            Cause.GONE, Cause.IN_DOUBT, Cause.TOO_SLOW)


@functools.lru_cache(_QUOTED_KEPT)
def _quoted(text: str) -> str | None:
    """A text as a literal; None if the literal depends on the server's settings, and the driver must write it."""
    return None if '\\' in text or '\0' in text else "'" + text.replace("'", "''") + "'"


def _of_event(event: Event) -> tuple[Any, ...]:
    return event.event, event.at_ms, event.request_id, event.details


def _rows(row: str, rows: Sequence[Any]) -> str:
    return ', '.join([row] * len(rows))


def _update_rows() -> tuple[str, str]:
    """An UPDATE of many rows: its text with a place for them, and the text of one.

    Columns without a value need the casts: PostgreSQL takes a NULL parameter for text.
    """
    columns = [*models.READ_AT, *(convert.new(name) for name in convert.CHANGEABLE)]
    integers = {column.name for column in models.assignments.c if isinstance(column.type, sa.Integer)}
    changes = ', '.join(
        f'{name} = CAST(wanted.{convert.new(name)} AS BIGINT)' if name in integers
        else f'{name} = wanted.{convert.new(name)}' for name in convert.CHANGEABLE)
    return (f'UPDATE assignments SET {changes} FROM (VALUES %s) AS wanted ({", ".join(columns)}) WHERE {_met()}',
            _row(len(columns)))


def _delete_rows() -> tuple[str, str]:
    """The same for a DELETE."""
    return (f'DELETE FROM assignments USING (VALUES %s) AS wanted ({", ".join(models.READ_AT)}) WHERE {_met()}',
            _row(len(models.READ_AT)))


def _met() -> str:
    return ' AND '.join(f'assignments.{name} = wanted.{name}' for name in models.READ_AT)


def _row(width: int) -> str:
    return '(' + ', '.join(['%s'] * width) + ')'
