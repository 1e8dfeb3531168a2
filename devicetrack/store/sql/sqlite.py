"""SQLite: one file, in WAL mode and with full durability: one fsync a commit."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import os
import re
import sqlite3
import time
from typing import Any
from typing import Final
import urllib.parse

import sqlalchemy as sa

from devicetrack.store.sql import backend
from devicetrack.store.sql.backend import FaultCause

# By the extended result code, or else by the primary one, its low byte.
_CAUSES: Final = {
    sqlite3.SQLITE_BUSY: FaultCause.LOCKED,
    sqlite3.SQLITE_LOCKED: FaultCause.LOCKED,
    sqlite3.SQLITE_READONLY: FaultCause.READ_ONLY,
    sqlite3.SQLITE_PERM: FaultCause.READ_ONLY,
    sqlite3.SQLITE_FULL: FaultCause.FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: FaultCause.FULL,  # no room for the index that the first reader makes beside the file
    sqlite3.SQLITE_CANTOPEN: FaultCause.GONE,
    sqlite3.SQLITE_IOERR: FaultCause.DISK,
    sqlite3.SQLITE_TOOBIG: FaultCause.UNFIT,
    sqlite3.SQLITE_NOTADB: FaultCause.NOT_A_STORE,
    sqlite3.SQLITE_CORRUPT: FaultCause.NOT_A_STORE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: FaultCause.DUPLICATE,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: FaultCause.DUPLICATE,
    sqlite3.SQLITE_SCHEMA: FaultCause.NO_SCHEMA,
}

# An error of one of these in COMMIT leaves the transaction open or undoes it: no commit record is in the log, because
# it would have been the last write. The same holds for a failed write (a file that may not grow). After a failed fsync
# the record may be there, and a crash could bring it back.
_UNDONE_IN_COMMIT: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY,
                            sqlite3.SQLITE_CONSTRAINT)

# SQLITE_ERROR has no extended codes for these, but one for all statements that SQLite cannot compile.
_NO_SCHEMA: Final = re.compile('no such (table|column)|has no column named')

_TRIES_EVERY_S: Final = 0.01

# The log that a connection which has written has open.
_LOG: Final = 'devicetrack_log'


@contextlib.contextmanager
def _with_bytes(connection: Any) -> Iterator[None]:
    # Not always: a call for each text would double the time of a read.
    connection.text_factory = _text
    try:
        yield
    finally:
        connection.text_factory = str


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


class SQLite(backend.Backend):
    """The standard library's sqlite3. oslo.db leaves BEGIN and COMMIT to us: its isolation level is None."""

    def __init__(self, engine: sa.Engine, patience: backend.Timeouts) -> None:
        super().__init__(engine, patience)
        self._log = urllib.parse.unquote((engine.url.database or '').removeprefix('file:')) + '-wal'

    def prepare(self, connection: Any) -> None:
        connection.execute('PRAGMA synchronous = FULL')

    def prepare_to_write(self, connection: sa.Connection) -> None:
        """Write through a log, and check that the one that SQLite has open is still at its path.

        Otherwise SQLite would go on writing to a file that nobody will ever open again. Another process removes the log
        if it believes that it alone has the store open, because something in this process opened and closed the file.

        :raises FileNotFoundError: it was removed or replaced
        """
        if _LOG not in connection.info:
            self.begin_log(connection.connection.dbapi_connection)
            connection.info[_LOG] = os.stat(self._log).st_ino
        elif connection.info[_LOG] != os.stat(self._log).st_ino:
            raise FileNotFoundError(errno.ENOENT, 'the log was removed or replaced', self._log)

    def begin_log(self, connection: Any) -> None:
        """Make SQLite write through a log. The file keeps this setting, unless somebody turns it back."""
        deadline = time.monotonic() + self.patience.busy_s
        while True:
            try:
                connection.execute('PRAGMA journal_mode = WAL').fetchall()
                connection.execute('SELECT count(*) FROM sqlite_master').fetchall()     # makes the log
                return
            except sqlite3.OperationalError as error:
                # If two connections turn a file to WAL at once, SQLite refuses one of them without waiting, since
                # each would wait for the other's shared lock.
                if self.cause_of(error) is not FaultCause.LOCKED or time.monotonic() >= deadline:
                    raise
            time.sleep(_TRIES_EVERY_S)

    def with_bytes(self, connection: sa.Connection,
                   error: BaseException) -> contextlib.AbstractContextManager[None] | None:
        # It comes from Python's own module and has no code of SQLite.
        is_no_text = str(error).startswith('Could not decode to UTF-8')
        return _with_bytes(connection.connection.dbapi_connection) if is_no_text else None

    def cause_of(self, error: BaseException) -> FaultCause:
        code = getattr(error, 'sqlite_errorcode', None)
        if code == sqlite3.SQLITE_ERROR and _NO_SCHEMA.search(str(error)):
            return FaultCause.NO_SCHEMA
        return FaultCause.OTHER if code is None else _CAUSES.get(code) or _CAUSES.get(code & 0xff, FaultCause.OTHER)

    def code_of(self, error: BaseException) -> str:
        return getattr(error, 'sqlite_errorname', '')

    def undone_in_commit(self, error: BaseException) -> bool:
        code = getattr(error, 'sqlite_errorcode', None)
        return code is not None and (code & 0xff in _UNDONE_IN_COMMIT or code == sqlite3.SQLITE_IOERR_WRITE)
