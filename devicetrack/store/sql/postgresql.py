"""PostgreSQL, by psycopg2."""

from __future__ import annotations

from collections.abc import Mapping
import functools
from typing import Any
from typing import Final

from devicetrack.store.sql import backend
from devicetrack.store.sql.backend import Cause

# By SQLSTATE, or else by its class.
_CAUSES: Final = {
    '23505': Cause.DUPLICATE,
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


class PostgreSQL(backend.Backend):

    def connect_arguments(self) -> Mapping[str, Any]:
        # Not at the top: without the driver the other stores work all the same.
        from devicetrack.store.sql import psycopg2_connection
        return {'connection_factory': functools.partial(psycopg2_connection.connect, self.patience.silence_s)}

    def prepare(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute('SET lock_timeout = %s', (f'{self.patience.busy_s}s',))
            cursor.execute('SET statement_timeout = %s', (f'{self.patience.statement_s}s',))
            # Set it whatever the default of the database is: a stricter level refuses more, and gains nothing here.
            cursor.execute('SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED')
        connection.commit()

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
