"""PostgreSQL, by psycopg2."""

from __future__ import annotations

from collections.abc import Mapping
import functools
from typing import Any
from typing import Final

from devicetrack.store.sql import backend
from devicetrack.store.sql.backend import FaultCause

# By SQLSTATE, or else by its class.
_CAUSES: Final = {
    '23505': FaultCause.DUPLICATE,
    '40001': FaultCause.CONFLICT,
    '40P01': FaultCause.CONFLICT,
    '55P03': FaultCause.LOCKED,
    '25006': FaultCause.READ_ONLY,
    '42501': FaultCause.NO_RIGHT,
    '42P01': FaultCause.NO_SCHEMA,
    '42703': FaultCause.NO_SCHEMA,
    '3F000': FaultCause.NO_SCHEMA,
    '3D000': FaultCause.NO_ACCESS,
    '53300': FaultCause.TOO_MANY,
    '53100': FaultCause.FULL,
    '40003': FaultCause.IN_DOUBT,
    '57014': FaultCause.TOO_SLOW,
}
_CAUSES_OF_CLASSES: Final = {
    '22': FaultCause.UNFIT,
    '08': FaultCause.GONE,
    '28': FaultCause.NO_ACCESS,
    '53': FaultCause.GONE,       # out of memory
    '57': FaultCause.GONE,       # shutting down, crashed, cannot connect now
    '58': FaultCause.GONE,
}

# psycopg2 tells no code of an error of connecting, so there the text must do. A server of another language is only
# known not to accept the connection. The text has an error for each host of the URL.
_CAUSES_OF_TEXTS: Final = {
    'certificate verify failed': FaultCause.UNTRUSTED,
    'root certificate file': FaultCause.UNTRUSTED,
    'does not match host name': FaultCause.OTHER_NAME,
    'server does not support SSL': FaultCause.NO_TLS,
    'too many clients': FaultCause.TOO_MANY,
    'too many connections': FaultCause.TOO_MANY,
    'remaining connection slots': FaultCause.TOO_MANY,
    'no more connections allowed': FaultCause.TOO_MANY,         # pgbouncer's
    'authentication failed': FaultCause.NO_ACCESS,
    'pg_hba.conf': FaultCause.NO_ACCESS,
    ' does not exist': FaultCause.NO_ACCESS,
    'session is read-only': FaultCause.READ_ONLY,
    'server is in hot standby mode': FaultCause.READ_ONLY,
}


class PostgreSQL(backend.Backend):

    def connect_arguments(self) -> Mapping[str, Any]:
        # Not at the top: without the driver the other stores work all the same.
        from devicetrack.store.sql import psycopg2_connection
        return {'connection_factory': functools.partial(
            psycopg2_connection.connect, self.patience.silence_s, self.limits('SET LOCAL'))}

    def limits(self, verb: str) -> str:
        return (f"{verb} lock_timeout = '{self.patience.busy_s}s'; "
                f"{verb} statement_timeout = '{self.patience.statement_s}s'; ")

    def cause_of(self, error: BaseException) -> FaultCause:
        code = getattr(error, 'pgcode', None)
        if code is None:
            # The client library's own errors have no code. They are mistakes of ours, or a lost connection.
            mistakes = ('ProgrammingError', 'NotSupportedError', 'DataError')
            if type(error).__name__ in mistakes:
                return FaultCause.OTHER
            return next((cause for text, cause in _CAUSES_OF_TEXTS.items() if text in str(error)), FaultCause.GONE)
        return _CAUSES.get(code) or _CAUSES_OF_CLASSES.get(code[:2], FaultCause.OTHER)

    def code_of(self, error: BaseException) -> str:
        return getattr(error, 'pgcode', None) or ''

    def undone_in_commit(self, error: BaseException) -> bool:
        # A server that answers with an error, and goes on, has undone the transaction.
        return getattr(error, 'pgcode', None) is not None and self.cause_of(error) not in (
            FaultCause.GONE, FaultCause.IN_DOUBT, FaultCause.TOO_SLOW)
