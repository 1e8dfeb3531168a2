"""MariaDB, by PyMySQL."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
import ssl
from typing import Any
from typing import Final

from oslo_db import exception as db_exc
import sqlalchemy as sa

from devicetrack.objects.values import Record
from devicetrack.store.sql import backend
from devicetrack.store.sql import models
from devicetrack.store.sql import queries
from devicetrack.store.sql.backend import FaultCause

# By the server's error number, and the client's (2xxx).
_CAUSES: Final = {
    1062: FaultCause.DUPLICATE,
    1020: FaultCause.CONFLICT,       # the row changed since this transaction's snapshot
    1213: FaultCause.CONFLICT,
    1205: FaultCause.LOCKED,
    1142: FaultCause.NO_RIGHT,
    1143: FaultCause.NO_RIGHT,
    1290: FaultCause.READ_ONLY,
    1792: FaultCause.READ_ONLY,
    1836: FaultCause.READ_ONLY,
    1021: FaultCause.FULL,
    1114: FaultCause.FULL,
    1264: FaultCause.UNFIT,          # out of range
    1366: FaultCause.UNFIT,          # a character that the column cannot hold
    1406: FaultCause.UNFIT,          # too long
    1054: FaultCause.NO_SCHEMA,
    1146: FaultCause.NO_SCHEMA,
    1044: FaultCause.NO_ACCESS,
    1045: FaultCause.NO_ACCESS,
    1049: FaultCause.NO_ACCESS,
    1040: FaultCause.TOO_MANY,
    1203: FaultCause.TOO_MANY,
    1226: FaultCause.TOO_MANY,
    2026: FaultCause.NO_TLS,
    1047: FaultCause.GONE,
    1053: FaultCause.GONE,
    1317: FaultCause.GONE,
    1927: FaultCause.GONE,
    1969: FaultCause.TOO_SLOW,
}

# OpenSSL's: the certificate is for other host names, or for other IP addresses.
_OTHER_NAMES: Final = (62, 64)

# With these a server refuses a COMMIT and undoes the transaction. After any other error of COMMIT we do not know.
_UNDONE_IN_COMMIT: Final = (FaultCause.CONFLICT, FaultCause.LOCKED, FaultCause.READ_ONLY, FaultCause.DUPLICATE)


class MariaDB(backend.Backend):

    def connect_arguments(self) -> Mapping[str, Any]:
        return {'read_timeout': self.patience.silence_s, 'write_timeout': self.patience.silence_s}

    def prepare(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            # READ COMMITTED locks the rows that are written, and no gaps between them. A wait for a lock that ends with
            # an error leaves half of a transaction behind, which we always undo.
            # Without autocommit, whatever the URL says: else every statement would be a transaction of its own.
            cursor.execute('SET SESSION autocommit = 0, innodb_lock_wait_timeout = %s, lock_wait_timeout = %s,'
                           ' max_statement_time = %s',
                           (self.patience.busy_s, self.patience.busy_s, self.patience.statement_s))
            cursor.execute('SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED')

    def catch_up(self, connection: sa.Connection, records: Collection[Record]) -> None:
        found = connection.exec_driver_sql("SHOW VARIABLES LIKE 'wsrep_on'").first()
        if found is not None and found[1] == 'ON':
            # Changes of these rows that change nothing. The cluster puts all transactions in one order and refuses the
            # later one of two that change a row, also one whose COMMIT arrives only then. What came before is
            # committed on this node first, perhaps between two of these statements. So each row is inserted first: a
            # row that is there is locked by that, and one that arrives after it ends this transaction.
            for record in sorted(records, key=lambda record: record[:3]):
                row = [getattr(models.assignments.c, name) == getattr(record, name) for name in models.KEY]
                generation = models.assignments.c.generation
                try:
                    connection.execute(queries.ADD_RECORDS, record._asdict())
                except db_exc.DBDuplicateEntry:
                    for values in ({'generation': generation + 1}, {'generation': generation - 1}):
                        connection.execute(sa.update(models.assignments).where(*row).values(values))
                else:
                    connection.execute(sa.delete(models.assignments).where(*row))
            connection.commit()
        connection.rollback()

    def cause_of(self, error: BaseException) -> FaultCause:
        number = _number(error)
        if number is None:
            # An error of PyMySQL's own: a closed connection (number 0), or answers out of step.
            return FaultCause.GONE
        cannot_connect = getattr(error, 'original_exception', None)
        if isinstance(cannot_connect, ssl.SSLError):
            return self.cause_of_system(cannot_connect)
        return _CAUSES.get(number, FaultCause.GONE if 2000 <= number < 3000 else FaultCause.OTHER)

    def cause_of_system(self, error: OSError) -> FaultCause:
        if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _OTHER_NAMES:
            return FaultCause.OTHER_NAME
        # PyMySQL makes its own errors of those of a socket. The rest come from the files of certificates.
        unreadable = (ssl.SSLCertVerificationError, FileNotFoundError, PermissionError)
        return FaultCause.UNTRUSTED if isinstance(error, unreadable) else FaultCause.GONE

    def code_of(self, error: BaseException) -> str:
        return str(_number(error) or '')

    def undone_in_commit(self, error: BaseException) -> bool:
        return _number(error) is not None and self.cause_of(error) in _UNDONE_IN_COMMIT


def _number(error: BaseException) -> int | None:
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) and number > 0 else None
