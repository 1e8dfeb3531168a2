"""MariaDB, by PyMySQL."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
import functools
from typing import Any
from typing import Final
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from devicetrack.objects.event import Event
from devicetrack.store import api
from devicetrack.store.sql import backend
from devicetrack.store.sql.backend import Cause

# COM_QUERY, and COM_SET_OPTION with MYSQL_OPTION_MULTI_STATEMENTS_ON, from the server's mysql_com.h. PyMySQL has no
# call for the latter.
_QUERY: Final = 0x03
_SET_OPTION: Final = 0x1b
_MULTI_STATEMENTS_ON: Final = bytes(2)

# SERVER_STATUS_NO_BACKSLASH_ESCAPES from the same file: a setting of the server that forbids them.
_NO_BACKSLASH_ESCAPES: Final = 0x200

# Most strings of a claim are those of the one before.
_QUOTED_KEPT: Final = 1000

# By the server's error number, and the client's (2xxx).
_CAUSES: Final = {
    1062: Cause.DUPLICATE,
    1020: Cause.CONFLICT,       # the row changed since this transaction's snapshot
    1213: Cause.CONFLICT,
    1205: Cause.LOCKED,
    1142: Cause.READ_ONLY,
    1143: Cause.READ_ONLY,
    1290: Cause.READ_ONLY,
    1792: Cause.READ_ONLY,
    1836: Cause.READ_ONLY,
    1021: Cause.FULL,
    1114: Cause.FULL,
    1264: Cause.UNFIT,          # out of range
    1366: Cause.UNFIT,          # a character that the column cannot hold
    1406: Cause.UNFIT,          # too long
    1054: Cause.NO_SCHEMA,
    1146: Cause.NO_SCHEMA,
    1044: Cause.GONE,
    1045: Cause.GONE,
    1049: Cause.GONE,
    1040: Cause.GONE,
    1047: Cause.GONE,
    1053: Cause.GONE,
    1203: Cause.GONE,
    1317: Cause.GONE,
    1927: Cause.GONE,
    1969: Cause.TOO_SLOW,
}

# With these a server refuses a COMMIT and undoes the transaction. After any other error of COMMIT we do not know.
_UNDONE_IN_COMMIT: Final = (Cause.CONFLICT, Cause.LOCKED, Cause.READ_ONLY, Cause.DUPLICATE)


class _First(NamedTuple):
    """The beginning of a transaction. It goes in the round trip of the first statement."""

    fences: Sequence[api.Fence]
    events: Sequence[Event]


_NOTHING: Final = _First((), ())


class MariaDB(backend.Backend):
    """Autocommit is off, so a transaction begins with its first statement: one round trip less than with BEGIN."""

    paramstyle = 'format'

    def __init__(self, engine: sa.Engine, patience: backend.Patience) -> None:
        super().__init__(engine, patience)
        self._insert_events, self._event_row = self.add_event.split(' VALUES ')
        prefix, self._insert_row = self.insert_one.split(' VALUES ')
        self._insert_rows = prefix + ' VALUES '
        # Nearly every transaction of a claim is these two, which take longer to parse than to run.
        claim = (('claim', self.insert_one_at_epoch), ('event', self.add_event))
        self._prepare = [f"PREPARE {name} FROM '{statement.replace('%s', '?')}'" for name, statement in claim]
        self._claim = ';'.join(f'EXECUTE {name} USING {", ".join(["%s"] * statement.count("%s"))}'
                               for name, statement in claim)
        escape: Callable[[str], str] = engine.dialect.loaded_dbapi.converters.escape_string
        self._quoted = functools.lru_cache(_QUOTED_KEPT)(lambda text: f"'{escape(text)}'")

    @staticmethod
    def _insert_or_replace(table: sa.Table, key: Sequence[str], others: Sequence[str]) -> sa.Insert:
        insert = mysql.insert(table)
        return insert.on_duplicate_key_update({name: insert.inserted[name] for name in others})

    def prepare(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            # READ COMMITTED locks the rows that are written, and no gaps between them. A wait for a lock that ends with
            # an error leaves half of a transaction behind, which we always undo.
            # Without autocommit, whatever the URL says: else every statement would be a transaction of its own.
            cursor.execute(f'SET SESSION autocommit = 0, innodb_lock_wait_timeout = {self.patience.busy_s},'
                           f' lock_wait_timeout = {self.patience.busy_s},'
                           f' max_statement_time = {self.patience.statement_s}')
            cursor.execute('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED')

    def prepare_to_write(self, connection: Any) -> None:
        # The committer runs many statements in one round trip. The driver escapes values, and the statements are our
        # own. No other connection takes several statements, so that an unescaped value could not add another one.
        connection._execute_command(_SET_OPTION, _MULTI_STATEMENTS_ON)
        connection._read_packet()
        with connection.cursor() as cursor:
            for statement in self._prepare:
                cursor.execute(statement)

    def ping(self, connection: Any) -> None:
        connection.ping(reconnect=False)

    def carry_out(self, connection: Any, merged: backend.Merged, fences: Sequence[api.Fence] = ()) -> None:
        insert, update, delete, contexts, events = merged
        if self.is_one_insert(merged, fences):
            if self._run_claim(connection, insert[0] + fences[0] + events[0]) != 1:
                raise backend.OldEpoch
            return
        with connection.cursor() as cursor:
            first = _First(fences, events)
            for deleted in backend.chunks(delete):
                self._run_each(cursor, first, self.delete_one, list(map(self.of_delete, deleted)))
                first = _NOTHING
            for updated in backend.chunks(update):
                self._run_each(cursor, first, self.update_one, list(map(self.of_update, updated)))
                first = _NOTHING
            for inserted in backend.chunks(insert):
                if len(inserted) == 1:
                    self._run(cursor, first, self.insert_one, inserted[0])
                else:
                    self._run(cursor, first, self._insert_rows + ', '.join([self._insert_row] * len(inserted)),
                              backend.flat(inserted))
                first = _NOTHING
            if contexts:
                statements, parameters = zip(*self.of_contexts(contexts), strict=True)
                cursor.execute(';'.join(statements), backend.flat(parameters))
                while cursor.nextset():
                    pass

    def _run_claim(self, connection: Any, parameters: tuple[Any, ...]) -> int:
        """Insert one row and its event, by parts of the driver: its cursor would take as long as the server does.

        :returns: how many rows the first statement inserted
        """
        connection._execute_command(_QUERY, self._claim % self._literals(connection, parameters))
        of_row, _of_event = connection._read_packet(), connection._read_packet()
        of_row.advance(1)                       # the mark of an OK; anything else was raised as an error
        met: int = of_row.read_length_encoded_integer()
        return met

    def _run(self, cursor: Any, first: _First, statements: str, parameters: tuple[Any, ...]) -> None:
        """Run fences, events and statements in one round trip. Then the cursor is at the answer to the first statement.

        The server runs the statements in any case. If a fence finds no row, the caller undoes what they did.
        """
        if first is _NOTHING:
            cursor.execute(statements % self._literals(cursor.connection, parameters))
            return
        events = [f'{self._insert_events} VALUES {", ".join([self._event_row] * len(some))};'
                  for some in backend.chunks(first.events)]
        cursor.execute((f'{self.check_epoch};' * len(first.fences) + ''.join(events) + statements) % self._literals(
            cursor.connection, backend.flat(first.fences) + backend.flat(first.events) + parameters))
        for _fence in first.fences:
            if cursor.rowcount != 1:
                # The answers to the statements may be errors. They must not come in the place of this one.
                with contextlib.suppress(self.Error):
                    while cursor.nextset():
                        pass
                raise backend.OldEpoch
            cursor.nextset()
        for _some in events:
            cursor.nextset()

    def _run_each(self, cursor: Any, first: _First, statement: str,
                  rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement for each row, in one round trip for all. Each must match its row.

        For one statement with many keys the optimizer might walk the whole table, and wait for the locks of other
        hosts.
        """
        self._run(cursor, first, ';'.join([statement] * len(rows)), backend.flat(rows))
        met = cursor.rowcount
        while cursor.nextset():
            met += cursor.rowcount
        if met != len(rows):
            raise backend.StaleRows

    def _literals(self, connection: Any, parameters: Iterable[Any]) -> tuple[str, ...]:
        """Parameters as the driver writes them, by its own escaping, in a third of the time that the driver takes."""
        quote = connection.escape if connection.server_status & _NO_BACKSLASH_ESCAPES else self._quoted
        return tuple(['NULL' if value is None else str(value) if type(value) is int else quote(value)
                      for value in parameters])

    def commit(self, connection: Any) -> None:
        connection.commit()

    def rollback(self, connection: Any) -> None:
        connection.rollback()

    def cause_of(self, error: BaseException) -> Cause:
        number = _number(error)
        if number is None:
            # An error of PyMySQL's own: a closed connection (number 0), or answers out of step.
            return Cause.GONE
        return _CAUSES.get(number, Cause.GONE if 2000 <= number < 3000 else Cause.OTHER)

    def code_of(self, error: BaseException) -> str:
        return str(_number(error) or '')

    def undone_in_commit(self, error: BaseException) -> bool:
        return _number(error) is not None and self.cause_of(error) in _UNDONE_IN_COMMIT


def _number(error: BaseException) -> int | None:
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) and number > 0 else None
