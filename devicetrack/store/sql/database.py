"""The database of a store: its connections, its transactions and its errors."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import os
import threading
from typing import Any
from typing import Final
from typing import TypeVar

from oslo_config import cfg
from oslo_db import exception as db_exc
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from devicetrack import exception
from devicetrack import ownfiles
from devicetrack.conf import store as store_conf
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql import committer
from devicetrack.store.sql import engine as engines
from devicetrack.store.sql import models
from devicetrack.store.sql.backend import FaultCause
from devicetrack.store.sql.backend import StoreFault
from devicetrack.store.sql.backend import TransactionFailed

SYNC: Final = "run devicetrack-manage db sync as the service's user and with its --config-file"
# A store that has disappeared must not begin anew, empty: its guests have devices.
MAKE: Final = f'{SYNC}; if the store was lost, run devicetrack-manage recover --from-hypervisor --host NAME instead'

_REMEDIES: Final = {
    FaultCause.GONE: 'see that the server runs and can be reached, and that {option} names its host and port',
    FaultCause.TOO_MANY: ('let the server, or its pooler, take max_pool_size connections of each host, or end others: '
                          'the store comes back by itself'),
    FaultCause.NO_ACCESS: ('see that the user, the password and the database of {option} are right, and that the '
                           'server lets them in from this host; its log says more'),
    FaultCause.NO_TLS: 'let the server offer TLS, which the parameters of {option} ask for',
    FaultCause.UNTRUSTED: ('let sslrootcert (PostgreSQL) or ssl_ca (MariaDB) in {option} name a file with the '
                           "authority of the server's certificate, which this user can read, and see that the "
                           'certificate has not expired; a server that is not yours looks like this, too'),
    FaultCause.OTHER_NAME: ("let {option} name the server's host as its certificate does, or give the server a "
                            'certificate for that name; a server that is not yours looks like this, too'),
    FaultCause.DISK: ('look at the disk first (the log of the kernel, dmesg); the store comes back by itself when it '
                      'is well'),
    FaultCause.READ_ONLY: 'let this process write to it',
    FaultCause.NO_RIGHT: 'grant the account of {option} what this needs, or run it with an account that has the right',
    FaultCause.FULL: 'make room for it',
    FaultCause.LOCKED: 'look for the transaction that stays open, or raise [devicetrack_database] busy_timeout_s',
    FaultCause.NONE_FREE: 'raise [devicetrack_database] max_pool_size, or see what its connections wait for',
    FaultCause.CONFLICT: 'try again',
    FaultCause.UNFIT: 'the database is well; look at the names and numbers that the call was given',
    FaultCause.TOO_SLOW: 'see what keeps the database busy, or raise [devicetrack_database] statement_timeout_s',
}

# A forked child must not even close its parent's connections: that ends the parent's sessions. It keeps them here.
_of_parents: list[Any] = []
_leaving = threading.Lock()

Result = TypeVar('Result')

# PostgreSQL takes no limit of a month, and PyMySQL none of two years.
_LONGEST_STATEMENT_S: Final = 14 * 24 * 3600

_NO_OPTIONS: Final[Mapping[str, Any]] = {}


class _Owner:
    """The process whose connections a database has open: one object for all stores on them."""

    def __init__(self) -> None:
        self.pid = os.getpid()


class Database:
    """SQLite, PostgreSQL or MariaDB, as the options name it. It connects when it is first asked something.

    In a forked child it opens connections of its own; an SQLite file that was open when the process forked cannot be
    used there.
    """

    def __init__(self, conf: cfg.ConfigOpts, state_path: str | None = None, statement_s: int | None = None,
                 group: str = store_conf.GROUP) -> None:
        self._conf, self._group, self._place = conf, group, engines.place(conf, state_path, group)
        self.engine, self.backend = engines.create(self._place, conf, statement_s)
        self._owner = _Owner()
        self._committer = committer.Committer(self.attempt, self.backend.fault)
        # The third is oslo.db's, too, but no DBError.
        self._foreign = (sa_exc.SQLAlchemyError, db_exc.DBError, db_exc.DBInvalidUnicodeParameter, self.backend.Error,
                         OSError)

    @property
    def name(self) -> str:
        """The database for messages: its kind and place, never a user name or a password."""
        return self._place.name

    @property
    def path(self) -> str | None:
        """The file of an SQLite store."""
        return self._place.path

    def is_there(self) -> bool:
        """Whether the file of an SQLite store is there, even one that nobody can read. Of a server's database: True.

        :raises StoreUnavailable: this user cannot find out
        """
        if self.path is None:
            return True
        try:
            os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise exception.StoreUnavailable(
                self.name, f'{error.strerror}: run this as the user of the service; see to '
                           f'{os.path.dirname(self.path)}') from error
        return True

    @contextlib.contextmanager
    def unhurried(self) -> Iterator[Database]:
        """The same database, for changes of its schema: a server may take as long for a statement as it needs."""
        if self.path is not None:
            yield self
            return
        made = Database(self._conf, statement_s=_LONGEST_STATEMENT_S, group=self._group)
        try:
            yield made
        finally:
            made.engine.dispose()

    # -- transactions --------------------------------------------------------------------------------------------------

    def rows(self, statement: sa.Executable, given: Mapping[str, Any] | None = None,
             fetch: Callable[[sa.CursorResult[Any]], Sequence[Any]] = sa.CursorResult.all) -> Sequence[Any]:
        """Read all rows that a statement finds. A text that is no UTF-8 comes as bytes.

        :param fetch: takes them from the result
        :raises StoreUnavailable, SchemaMismatch: the database cannot be read
        """
        # The cursor is closed however the block ends: while an exception's traceback keeps it, SQLite keeps what it
        # reads from.
        with self.reading() as connection:
            try:
                with connection.execute(statement, given) as result:
                    return fetch(result)
            except self._foreign as error:
                again = self.backend.with_bytes(connection, backends.origin_of(error))
                if again is None:
                    raise
            with again, connection.execute(statement, given) as result:
                return fetch(result)

    def pages(self, statement: sa.Select[Any], key: Sequence[sa.Column[Any]], size: int) -> Iterator[Sequence[Any]]:
        """Read the rows that a statement finds in the order of a key, so many at a time, each time in a transaction.

        :raises StoreUnavailable, SchemaMismatch: the database cannot be read
        """
        first = statement.order_by(*key).limit(size)
        page = self.rows(first)
        while page:
            yield page
            after = [page[-1]._mapping[column] for column in key]
            # Written out: MariaDB would read the table from its beginning for each comparison of two tuples.
            page = self.rows(first.where(sa.or_(*[
                sa.and_(*[column == value for column, value in zip(key[:place], after, strict=False)],
                        key[place] > after[place]) for place in range(len(key))])))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection to read from; errors are translated.

        :raises StoreUnavailable, SchemaMismatch: the database cannot be read
        """
        try:
            with self._connected() as connection:
                yield connection
        except self._foreign as error:
            raise self.unavailable(self.backend.fault(error)) from error

    def transact(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run ``work`` on a connection and commit. Run it again if it had to give way to another transaction.

        :raises DBDuplicateEntry: oslo.db's; nothing was written
        :raises StoreUnavailable, SchemaMismatch: nothing was written
        :raises OutcomeUnknown: COMMIT was not answered
        """
        try:
            return self.attempt(work)
        except TransactionFailed as failed:
            raise self.error(failed.fault) from failed.fault.error

    def attempt(self, work: Callable[[sa.Connection], Result]) -> Result:
        """As :meth:`transact`.

        :raises TransactionFailed: with its cause
        """
        for left in reversed(range(backends.ATTEMPTS)):
            committing = False
            try:
                with self._connected({engines.WRITES: True}) as connection:
                    self.backend.prepare_to_write(connection)
                    result = work(connection)
                    committing = True
                    connection.commit()
                    return result
            except self._foreign as error:
                fault = self.backend.fault(error)
                if committing and not self.backend.undone_in_commit(backends.origin_of(error)):
                    raise TransactionFailed(fault._replace(cause=FaultCause.IN_DOUBT)) from error
                if fault.cause is (FaultCause.READ_ONLY if self.path is None else FaultCause.GONE):
                    # Others may have a file open that is not at its path any more, or a session at a server that has
                    # become a standby.
                    self.engine.dispose()
                if fault.cause is not FaultCause.CONFLICT or not left:
                    raise TransactionFailed(fault) from error
        raise AssertionError('the last attempt returns or raises')

    # -- connections ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _connected(self, execution_options: Mapping[str, Any] = _NO_OPTIONS) -> Iterator[sa.Connection]:
        """A connection from the pool. If any exception leaves the block, it is closed and does not go back there.

        Nobody knows what such a connection is in the middle of. On SQLite, a cursor that a kept traceback refers to
        would hold it in its transaction: whoever used it next would read the store as it was then.
        """
        self.notice_fork()
        with self.engine.connect() as connection:
            try:
                yield connection.execution_options(**execution_options) if execution_options else connection
            except BaseException as error:
                if self.path is not None:       # a server undoes it at the end of the session, and may not answer now
                    with contextlib.suppress(*self._foreign):
                        connection.rollback()
                    if isinstance(error, self._foreign) and self.backend.fault(error).cause is FaultCause.FULL:
                        self._leave_another(connection)
                        raise
                connection.invalidate(error)
                raise

    def _leave_another(self, connection: sa.Connection) -> None:
        """Put another connection into the pool, and have this one of SQLite closed at the end of its block.

        With the last connection SQLite removes the log and its index. A full disk has no room for new ones, so nobody
        could read.
        """
        connection.detach()
        with contextlib.suppress(*self._foreign), self.engine.connect() as other:
            other.exec_driver_sql('SELECT count(*) FROM sqlite_master')

    def notice_fork(self) -> None:
        """In a forked child, begin anew without touching any connection of the parent."""
        if os.getpid() == self._owner.pid:
            return
        with _leaving:
            if self._owner.pid == os.getpid():
                return
            _of_parents.append(self.engine.pool)
            self.engine.dispose(close=False)
            self._committer.empty()
            self._owner.pid = os.getpid()

    # -- errors --------------------------------------------------------------------------------------------------------

    def error(self, fault: StoreFault) -> Exception:
        """The error for a fault of a transaction."""
        if fault.cause is FaultCause.IN_DOUBT:
            return exception.OutcomeUnknown(self.name)
        if fault.cause is FaultCause.DUPLICATE and isinstance(fault.error, Exception):
            return fault.error
        return self.unavailable(fault)

    def unavailable(self, fault: StoreFault) -> exception.NothingWritten:
        """The error for a fault of the database after which nothing was written."""
        if fault.cause is FaultCause.NO_SCHEMA:
            return exception.SchemaMismatch(self.name, None, models.REVISION, MAKE)
        if fault.cause is FaultCause.NOT_A_STORE:
            return exception.SchemaMismatch(
                self.name, 'unreadable', models.REVISION,
                'it is damaged or no database at all. SQLite also says so of a disk that it cannot read, so look at '
                'the disk first (the log of the kernel, dmesg), and try again when it is well. Only if the file is '
                'damaged, move it away and restore it, or rebuild it from the guests')
        reason, origin = fault.reason, backends.origin_of(fault.error or Exception())
        if isinstance(origin, ownfiles.NotOurs):
            reason, remedy = str(origin.filename), origin.strerror
        elif isinstance(origin, engines.OpenInParent):
            reason, remedy = 'its file was open when this process was forked', 'use it in a process of its own'
        elif self.path is not None and fault.cause is FaultCause.GONE:
            try:
                missing = not self.is_there()
            except exception.StoreUnavailable as hidden:
                return hidden
            remedy = 'the file is missing: restore it' if missing else 'see to the file and its directory'
            if isinstance(origin, OSError) and not missing:
                remedy = f'{ownfiles.reason(origin, self.path)}: {remedy}'
        elif self.path is None and fault.cause is FaultCause.READ_ONLY:
            remedy = ('if this server is a standby, let {option} name the primary, for PostgreSQL with '
                      'target_session_attrs=read-write; else let the server write')
        else:
            remedy = _REMEDIES.get(fault.cause, '')
        return exception.StoreUnavailable(self.name, f'{reason}: {remedy}'.replace(
            '{option}', self._place.option) if remedy else reason)
