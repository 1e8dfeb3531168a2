"""MariaDB, by PyMySQL."""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import Any
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from devicetrack.store.sql import backend
from devicetrack.store.sql.backend import Cause

# COM_SET_OPTION with MYSQL_OPTION_MULTI_STATEMENTS_ON, from the server's mysql_com.h. PyMySQL has no call for it.
_SET_OPTION: Final = 0x1b
_MULTI_STATEMENTS_ON: Final = bytes(2)

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


class MariaDB(backend.Backend):
    """Autocommit is off, so a transaction begins with its first statement: one round trip less than with BEGIN."""

    kind = 'MariaDB'
    paramstyle = 'format'

    def __init__(self, engine: sa.Engine, patience: backend.Patience) -> None:
        super().__init__(engine, patience)
        prefix, self._insert_row = self.insert_one.split(' VALUES ')
        self._insert_rows = prefix + ' VALUES '

    @staticmethod
    def _insert_or_replace(table: sa.Table, key: Sequence[str], others: Sequence[str]) -> sa.Insert:
        insert = mysql.insert(table)
        return insert.on_duplicate_key_update({name: insert.inserted[name] for name in others})

    def prepare(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            # READ COMMITTED locks the rows that are written, and no gaps between them. A wait for a lock that ends with
            # an error leaves half of a transaction behind, which we always undo.
            cursor.execute(f'SET SESSION innodb_lock_wait_timeout = {self.patience.busy_s},'
                           f' lock_wait_timeout = {self.patience.busy_s},'
                           f' max_statement_time = {self.patience.statement_s}')
            cursor.execute('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED')

    def prepare_to_write(self, connection: Any) -> None:
        # The committer runs many statements in one round trip. Values are escaped by the driver, statements are our
        # own. No other connection takes several, so that a statement with an unescaped value could not end in another.
        connection._execute_command(_SET_OPTION, _MULTI_STATEMENTS_ON)
        connection._read_packet()

    def ping(self, connection: Any) -> None:
        connection.ping(reconnect=False)

    def carry_out(self, connection: Any, merged: backend.Merged) -> None:
        insert, update, delete, contexts = merged
        with connection.cursor() as cursor:
            for deleted in backend.chunks(delete):
                _run_each(cursor, self.delete_one, list(map(self.of_delete, deleted)))
            for updated in backend.chunks(update):
                _run_each(cursor, self.update_one, list(map(self.of_update, updated)))
            for inserted in backend.chunks(insert):
                if len(inserted) == 1:
                    cursor.execute(self.insert_one, inserted[0])
                else:
                    cursor.execute(self._insert_rows + ', '.join([self._insert_row] * len(inserted)),
                                   tuple(itertools.chain.from_iterable(inserted)))
            if contexts:
                statements, parameters = zip(*self.of_contexts(contexts), strict=True)
                cursor.execute(';'.join(statements), tuple(itertools.chain.from_iterable(parameters)))
                while cursor.nextset():
                    pass

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


def _run_each(cursor: Any, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Run a statement for each row, in one round trip for all; each must meet its row.

    For one statement with many keys the optimizer might walk the whole table, and wait for the locks of other hosts.
    """
    cursor.execute(';'.join([statement] * len(rows)), tuple(itertools.chain.from_iterable(rows)))
    met = cursor.rowcount
    while cursor.nextset():
        met += cursor.rowcount
    if met != len(rows):
        raise backend.StaleRows


def _number(error: BaseException) -> int | None:
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) and number > 0 else None
