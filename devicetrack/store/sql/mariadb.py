"""MariaDB, by PyMySQL."""

from __future__ import annotations

from typing import Any
from typing import Final

from devicetrack.store.sql import backend
from devicetrack.store.sql.backend import Cause

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


class MariaDB(backend.Backend):

    def prepare(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            # READ COMMITTED locks the rows that are written, and no gaps between them. A wait for a lock that ends with
            # an error leaves half of a transaction behind, which we always undo.
            # Without autocommit, whatever the URL says: else every statement would be a transaction of its own.
            cursor.execute('SET SESSION autocommit = 0, innodb_lock_wait_timeout = %s, lock_wait_timeout = %s,'
                           ' max_statement_time = %s',
                           (self.patience.busy_s, self.patience.busy_s, self.patience.statement_s))
            cursor.execute('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED')

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
