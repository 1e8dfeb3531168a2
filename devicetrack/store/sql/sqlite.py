"""SQLite: one file, in WAL mode and with full durability: one fsync a commit."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
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
from sqlalchemy.dialects import sqlite

from devicetrack.store import api
from devicetrack.store.sql import backend
from devicetrack.store.sql.backend import Cause

# By the extended result code, or else by the primary one, its low byte.
_CAUSES: Final = {
    sqlite3.SQLITE_BUSY: Cause.LOCKED,
    sqlite3.SQLITE_LOCKED: Cause.LOCKED,
    sqlite3.SQLITE_READONLY: Cause.READ_ONLY,
    sqlite3.SQLITE_PERM: Cause.READ_ONLY,
    sqlite3.SQLITE_FULL: Cause.FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: Cause.FULL,   # no room for the index, which the first reader makes beside the file
    sqlite3.SQLITE_CANTOPEN: Cause.GONE,
    sqlite3.SQLITE_IOERR: Cause.DISK,
    sqlite3.SQLITE_TOOBIG: Cause.UNFIT,
    sqlite3.SQLITE_NOTADB: Cause.NOT_A_STORE,
    sqlite3.SQLITE_CORRUPT: Cause.NOT_A_STORE,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: Cause.DUPLICATE,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: Cause.DUPLICATE,
    sqlite3.SQLITE_SCHEMA: Cause.NO_SCHEMA,
}

# An error of one of these in COMMIT leaves the transaction open or undoes it: no commit record is in the log, because
# it would have been the last write. The same holds for a failed write (a file that may not grow). After a failed fsync
# the record may be there, and a crash could bring it back.
_UNDONE_IN_COMMIT: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY,
                            sqlite3.SQLITE_CONSTRAINT)

# SQLITE_ERROR has no extended codes for these, but one for all statements that SQLite cannot compile.
_NO_SCHEMA: Final = re.compile('no such (table|column)|has no column named')

_TRIES_EVERY_S: Final = 0.01

# The clock of file times goes in steps of at most ten milliseconds. Two changes within one step leave the same time.
_STEP_NS: Final = 100_000_000
_SECOND_NS: Final = 1_000_000_000


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

    paramstyle = 'qmark'
    locks_whole_store = True

    @staticmethod
    def _insert_or_replace(table: sa.Table, key: Sequence[str], others: Sequence[str]) -> sa.Insert:
        insert = sqlite.insert(table)
        return insert.on_conflict_do_update(index_elements=key, set_={name: insert.excluded[name] for name in others})

    def prepare(self, connection: Any) -> None:
        connection.execute('PRAGMA synchronous = FULL')

    def __init__(self, engine: sa.Engine, patience: backend.Patience) -> None:
        super().__init__(engine, patience)
        self._path = urllib.parse.unquote((engine.url.database or '').removeprefix('file:'))
        self._log, self._directory = f'{self._path}-wal', os.path.dirname(self._path)
        self._files: tuple[int, ...] | None = None
        self._seen: tuple[int, ...] | None = None       # the directory when the files were in it

    def prepare_to_write(self, connection: Any) -> None:
        deadline = time.monotonic() + self.patience.busy_s
        while True:
            try:
                # The file keeps this setting. It is set again in case somebody turned it back.
                connection.execute('PRAGMA journal_mode = WAL').fetchall()
                connection.execute('SELECT count(*) FROM sqlite_master').fetchall()     # makes the log
                self._files, self._seen = self._files_at_path(), None
                return
            except sqlite3.OperationalError as error:
                # If two connections turn a file to WAL at once, SQLite refuses one of them without waiting, since
                # each would wait for the other's shared lock.
                if self.cause_of(error) is not Cause.LOCKED or time.monotonic() >= deadline:
                    raise
            time.sleep(_TRIES_EVERY_S)

    def with_bytes(self, connection: sa.Connection,
                   error: BaseException) -> contextlib.AbstractContextManager[None] | None:
        # It comes from Python's own module and has no code of SQLite.
        is_no_text = str(error).startswith('Could not decode to UTF-8')
        return _with_bytes(connection.connection.dbapi_connection) if is_no_text else None

    def ping(self, connection: Any) -> None:
        """Do nothing: there is no server that could be gone."""

    def carry_out(self, connection: Any, merged: backend.Merged, fences: Sequence[api.Fence] = ()) -> None:
        self._check_files()
        # IMMEDIATE takes the write lock now, and waits for it. A transaction that reads first and writes later would be
        # refused without waiting, if another one wrote in between.
        cursor = connection.cursor()
        cursor.execute('BEGIN IMMEDIATE')
        if self.is_one_insert(merged, fences):
            if cursor.execute(self.insert_one_at_epoch, merged.insert[0] + fences[0]).rowcount != 1:
                raise backend.OldEpoch
            cursor.execute(self.add_event, merged.events[0])
            return
        for fence in fences:
            if connection.execute(self.check_epoch, fence).fetchone() is None:
                raise backend.OldEpoch
        insert, update, delete, contexts, events = merged
        if events:
            connection.executemany(self.add_event, events)
        if delete:
            cursor = connection.executemany(self.delete_one, [self.of_delete(record) for record in delete])
            if cursor.rowcount != len(delete):
                raise backend.StaleRows
        if update:
            cursor = connection.executemany(self.update_one, [self.of_update(item) for item in update])
            if cursor.rowcount != len(update):
                raise backend.StaleRows
        if insert:
            connection.executemany(self.insert_one, insert)
        if contexts:
            for statement, parameters in self.of_contexts(contexts):
                connection.execute(statement, parameters)

    def _check_files(self) -> None:
        """Check that the files that SQLite has open are still at their path.

        Otherwise SQLite would go on writing to a file that nobody will ever open again. Another process removes the log
        if it believes that it alone has the store open, because something in this process opened and closed the file.

        A file that comes, goes or is replaced changes its directory, whose time of change nobody can set. So one look
        at the directory is enough while it is unchanged, and costs half of two looks at the files.

        :raises FileNotFoundError: one of them was removed or replaced
        """
        found = os.stat(self._directory)
        changed_ns = found.st_ctime_ns
        seen = (found.st_dev, found.st_ino, changed_ns)
        if seen == self._seen:
            return
        if self._files_at_path() != self._files:
            raise FileNotFoundError(errno.ENOENT, 'the file or its log was removed or replaced', self._path)
        # Another change could still get the same time, and on a file system that counts seconds much later too.
        is_settled = time.time_ns() - changed_ns > _STEP_NS and changed_ns % _SECOND_NS
        self._seen = seen if is_settled else None

    def _files_at_path(self) -> tuple[int, ...]:
        """The files that the store and its log are now."""
        store, log = os.stat(self._path), os.stat(self._log)
        return store.st_dev, store.st_ino, log.st_ino

    def commit(self, connection: Any) -> None:
        connection.execute('COMMIT')

    def rollback(self, connection: Any) -> None:
        if connection.in_transaction:           # some errors, a full disk for one, undo it by themselves
            connection.execute('ROLLBACK')

    def cause_of(self, error: BaseException) -> Cause:
        code = getattr(error, 'sqlite_errorcode', None)
        if code == sqlite3.SQLITE_ERROR and _NO_SCHEMA.search(str(error)):
            return Cause.NO_SCHEMA
        return Cause.OTHER if code is None else _CAUSES.get(code) or _CAUSES.get(code & 0xff, Cause.OTHER)

    def code_of(self, error: BaseException) -> str:
        return getattr(error, 'sqlite_errorname', '')

    def undone_in_commit(self, error: BaseException) -> bool:
        code = getattr(error, 'sqlite_errorcode', None)
        return code is not None and (code & 0xff in _UNDONE_IN_COMMIT or code == sqlite3.SQLITE_IOERR_WRITE)
