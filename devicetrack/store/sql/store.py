"""The store on a relational database."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
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
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Leftover
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql import committer
from devicetrack.store.sql import convert
from devicetrack.store.sql import engine as engines
from devicetrack.store.sql import models
from devicetrack.store.sql import rare
from devicetrack.store.sql import schema
from devicetrack.store.sql import settle
from devicetrack.store.sql.backend import Cause
from devicetrack.store.sql.backend import Fault

_REMEDIES: Final = {
    Cause.GONE: 'see that the database runs, and that [devicetrack_database] connection names it and a user of it',
    Cause.READ_ONLY: 'let this process write to it',
    Cause.FULL: 'make room for it',
    Cause.LOCKED: 'look for the transaction that stays open, or raise [devicetrack_database] busy_timeout_s',
    Cause.CONFLICT: 'try again',
}

# Connections that a forked child must not even close: that would end the session of its parent. They are kept here.
_of_parents: list[Any] = []
_leaving = threading.Lock()

# So many fields of an order are the question; the others are the answer.
_ASKED: Final = api.Order._fields.index('answered_at')

Result = TypeVar('Result')


class SQLStore(api.Store):
    """Rows in SQLite, PostgreSQL or MariaDB. Opened by :func:`devicetrack.store.sql.open_store`.

    Reads take a connection from the pool; writes go through the committer's own. Nothing connects before it is asked
    something. In a forked child the store opens connections of its own; an SQLite store that was in use when the
    process was forked says StoreUnavailable there.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._place = engines.place(conf)
        self.engine, self.backend = engines.create(self._place, conf)
        self._committer = committer.Committer(self.name, self.backend, self._open_writing, self._close_writing,
                                             self.unavailable)
        self._pid = os.getpid()
        self._foreign = (sa_exc.SQLAlchemyError, db_exc.DBError, self.backend.Error, OSError)
        self._selects = _selects()

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def path(self) -> str | None:
        """The file of an SQLite store."""
        return self._place.path

    # -- interface -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        schema.check(self)
        self.transact(_try_to_write)

    def host(self, name: str) -> api.Host | None:
        with self.reading() as connection:
            rows = connection.execute(sa.select(models.hosts).where(models.hosts.c.name == name)).all()
        return convert.hosts(rows)[0] if rows else None

    def hosts(self) -> list[api.Host]:
        with self.reading() as connection:
            return convert.hosts(connection.execute(sa.select(models.hosts).order_by(models.hosts.c.name)).all())

    def add_host(self, host: api.Host) -> None:
        try:
            self.transact(lambda connection: connection.execute(sa.insert(models.hosts).values(host._asdict())))
        except db_exc.DBDuplicateEntry as error:
            known = self.host(host.name)
            if known is None or known.identity != host.identity:    # else it is ours, of a lost answer
                raise exception.HostIdentityChanged(host.name) from error

    def set_boot_id(self, host_uuid: str, boot_id: str) -> None:
        self._set_of_host(host_uuid, boot_id=boot_id)

    def set_nested(self, host_uuid: str, version: int | None, at: int | None) -> None:
        self._set_of_host(host_uuid, nested_version=version, nested_at=at)

    def _set_of_host(self, host_uuid: str, **values: Any) -> None:
        if not self.transact(lambda connection: rare.set_of_host(connection, host_uuid, values)):
            raise exception.UnknownHost(host_uuid, [host.name for host in self.hosts()])

    def replace_host(self, before: api.Host, after: api.Host) -> None:
        try:
            self.transact(lambda connection: rare.replace_host(connection, before, after))
        except db_exc.DBDuplicateEntry as error:
            raise exception.HostIdentityChanged(after.name) from error

    def records(self, host_uuid: str | None = None, instance_uuid: str | None = None,
                keys: Iterable[DeviceKey] | None = None) -> list[Record]:
        given = {name: value for name, value in (('host_uuid', host_uuid), ('instance_uuid', instance_uuid))
                 if value is not None}
        statement = self._selects[tuple(given)]
        if keys is not None:
            table = models.assignments
            of_kinds: dict[str, list[str]] = {}
            for kind, identifier in keys:
                of_kinds.setdefault(kind, []).append(identifier)
            if not of_kinds:
                return []
            statement = statement.where(sa.or_(*[
                sa.and_(table.c.kind == kind, table.c.identifier.in_(identifiers))
                for kind, identifiers in of_kinds.items()]))
        with self.reading() as connection:
            # From the driver's own cursor: SQLAlchemy would make an object of each row, which takes longer than reading
            # it, and none of these columns has anything to convert.
            cursor = connection.execute(statement, given).cursor
            assert cursor is not None
            return convert.records(cursor.fetchall())

    def contexts(self, host_uuid: str, instance_uuid: str | None = None) -> list[api.StoredContext]:
        table = models.migration_contexts
        statement = sa.select(table).where(table.c.host_uuid == host_uuid).order_by(table.c.instance_uuid)
        if instance_uuid is not None:
            statement = statement.where(table.c.instance_uuid == instance_uuid)
        with self.reading() as connection:
            return convert.contexts(connection.execute(statement))

    def write(self, changes: api.Changes) -> None:
        if changes.contexts:
            changes.check_contexts()
        if os.getpid() != self._pid:
            self._leave_parent()
        try:
            self._committer.commit(changes)
        except committer.Refused as refused:
            if refused.fault.cause is Cause.STALE:
                raise self._stale(changes) from None
            raise self._taken(changes) from refused.fault.error

    def settle(self, changes: api.Changes) -> bool:
        changes.check_contexts()
        return self.transact(lambda connection: settle.wait_and_compare(connection, changes))

    def add_order(self, order: api.Order) -> None:
        try:
            self.transact(lambda connection: rare.add_order(connection, order))
        except db_exc.DBDuplicateEntry as error:
            with self.reading() as connection:
                known = rare.order(connection, order.uuid)
            if known is not None and known[:_ASKED] != order[:_ASKED]:     # else it is ours, of a lost answer
                raise ValueError(f'order {order.uuid} is there already and asks for something else') from error

    def orders(self, host_uuid: str | None = None, waiting: bool = False) -> list[api.Order]:
        with self.reading() as connection:
            return rare.orders(connection, host_uuid, waiting)

    def answer_order(self, uuid: str, answered_at: int, answer: str) -> bool:
        return self.transact(lambda connection: rare.answer_order(connection, uuid, answered_at, answer))

    def withheld(self, host_uuid: str) -> list[api.WithheldRow]:
        with self.reading() as connection:
            return rare.withheld(connection, host_uuid)

    def set_withheld(self, write: Sequence[api.WithheldRow], delete: Sequence[api.WithheldRow] = ()) -> None:
        if write or delete:
            self._replace(lambda connection: rare.set_withheld(connection, write, delete))

    def declarations(self, host_uuid: str | None = None) -> list[api.StoredDeclaration]:
        with self.reading() as connection:
            return rare.declarations(connection, host_uuid)

    def set_declarations(self, host_uuid: str, declarations: Sequence[api.StoredDeclaration]) -> None:
        for declaration in declarations:
            if declaration.host_uuid != host_uuid:
                raise ValueError(f'host {declaration.host_uuid} declares for itself, and not for {host_uuid}')
        self._replace(lambda connection: rare.set_declarations(connection, host_uuid, declarations))

    def _replace(self, work: Callable[[sa.Connection], None]) -> None:
        """Run ``work``, which deletes rows and inserts others with their keys."""
        for left in reversed(range(committer.ATTEMPTS)):
            try:
                self.transact(work)
                return
            except db_exc.DBDuplicateEntry as error:        # of a commit that was lost, and happened just now
                if not left:
                    raise self.unavailable(self.backend.fault(error)) from error

    def leftovers(self, host_uuid: str) -> list[Leftover]:
        with self.reading() as connection:
            return rare.leftovers(connection, host_uuid)

    def add_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        with contextlib.suppress(db_exc.DBDuplicateEntry):      # it is kept already
            self.transact(lambda connection: rare.add_leftover(connection, host_uuid, leftover))

    def remove_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        self.transact(lambda connection: rare.remove_leftover(connection, host_uuid, leftover))

    def close(self) -> None:
        if os.getpid() != self._pid:
            self._leave_parent()
        self._committer.close()
        self.engine.dispose()

    # -- transactions --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection to read from; errors are translated.

        :raises StoreUnavailable, SchemaMismatch: it cannot be read
        """
        try:
            with self._connect() as connection:
                yield connection
        except self._foreign as error:
            raise self.unavailable(self.backend.fault(error)) from error

    def transact(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run ``work`` on a connection and commit. It may run several times, when it has to give way to others.

        For what is rare; the rows of claims go through the committer.

        :raises DBDuplicateEntry: oslo.db's; nothing was written
        :raises StoreUnavailable, SchemaMismatch: nothing was written
        :raises OutcomeUnknown: COMMIT was not answered
        """
        for left in reversed(range(committer.ATTEMPTS)):
            committing = False
            try:
                with self._connect(execution_options={engines.WRITES: True}) as connection:
                    result = work(connection)
                    committing = True
                    connection.commit()
                    return result
            except db_exc.DBDuplicateEntry:
                raise
            except self._foreign as error:
                if committing and not self.backend.undone_in_commit(backends.origin_of(error)):
                    raise exception.OutcomeUnknown(self.name) from error
                fault = self.backend.fault(error)
                if fault.cause is not Cause.CONFLICT or not left:
                    raise self.unavailable(fault) from error
        raise AssertionError('the last attempt returns or raises')

    def _connect(self, execution_options: Mapping[str, Any] | None = None) -> sa.Connection:
        if os.getpid() != self._pid:
            self._leave_parent()
        connection = self.engine.connect()
        return connection.execution_options(**execution_options) if execution_options else connection

    def _open_writing(self) -> Any:
        """A connection of the driver for the committer, which is none of the pool's any more."""
        pooled = self.engine.raw_connection()
        connection = pooled.dbapi_connection
        pooled.detach()
        try:
            self.backend.prepare_to_write(connection)
        except BaseException:
            self._close_writing(connection)
            raise
        return connection

    def _close_writing(self, connection: Any) -> None:
        # Not by way of the pool's wrapper: that would first say ROLLBACK, to a server that may be gone.
        if self.path is not None:
            engines.file_closed(self.path)
        connection.close()

    def _leave_parent(self) -> None:
        """Start anew in a forked child, without touching anything of the parent's."""
        with _leaving:
            if self._pid == os.getpid():
                return
            _of_parents.append((self._committer.abandon(), self.engine.pool))
            self.engine.dispose(close=False)
            self._pid = os.getpid()

    # -- errors --------------------------------------------------------------------------------------------------------

    def unavailable(self, fault: Fault) -> exception.NothingWritten:
        """The error for a fault of the store after which nothing was written."""
        if fault.cause is Cause.NO_SCHEMA:
            return exception.SchemaMismatch(self.name, None, models.REVISION, schema.MAKE)
        if fault.cause is Cause.NOT_A_STORE:
            return exception.SchemaMismatch(
                self.name, 'unreadable', models.REVISION,
                'it is damaged or no database at all: move it away and restore it, or rebuild it from the guests')
        reason = fault.reason
        if isinstance(backends.origin_of(fault.error or Exception()), engines.OpenInParent):
            reason, remedy = 'its file was open when this process was forked', 'use it in a process of its own'
        elif self.path is not None and fault.cause is Cause.GONE:
            missing = not os.path.exists(self.path)
            remedy = 'the file is missing: restore it' if missing else 'see to the file and its directory'
        else:
            remedy = _REMEDIES.get(fault.cause, '')
        return exception.StoreUnavailable(self.name, f'{reason}: {remedy}' if remedy else reason)

    def _taken(self, changes: api.Changes) -> exception.NothingWritten:
        """The error for a key that exists. Who has it may have given it back meanwhile: then all are named."""
        keys = [record.key for record in changes.insert]
        found: set[DeviceKey] = set()
        for keys_of_query in backends.chunks(keys):
            found.update(record.key for record in self.records(changes.insert[0].host_uuid, keys=keys_of_query))
        return exception.DeviceTaken([key for key in keys if key in found] or keys)

    def _stale(self, changes: api.Changes) -> exception.StaleAssignment:
        """The error for a row that moved on: the first one that is not as it was read."""
        read = [*(update.before for update in changes.update), *changes.delete]
        found: dict[DeviceKey, Record] = {}
        for rows in backends.chunks(read):
            found.update((record.key, record)
                         for record in self.records(rows[0].host_uuid, keys=[row.key for row in rows]))
        for before in read:
            now = found.get(before.key)
            if now is None or (now.generation, now.claim_id) != (before.generation, before.claim_id):
                break
        else:
            before = read[0]
        return exception.StaleAssignment(before.kind, before.identifier, before.generation)


def _selects() -> Mapping[tuple[str, ...], sa.Select[Any]]:
    """A query for the rows of assignments for each choice of columns that name what is wanted, as its parameters.

    Made once: SQLAlchemy takes as long for making a query as for running it.
    """
    columns = models.assignments.c
    # Old and new devices of an instance that moves on one host have the same positions.
    everything = sa.select(models.assignments).order_by(columns.instance_uuid, columns.position, columns.identifier)
    return {given: everything.where(*[columns[name] == sa.bindparam(name) for name in given])
            for given in ((), ('host_uuid',), ('instance_uuid',), ('host_uuid', 'instance_uuid'))}


def _try_to_write(connection: sa.Connection) -> None:
    """Statements that are refused where nothing can be written, and change nothing where it can."""
    connection.execute(sa.update(models.hosts).where(sa.false()).values(name=models.hosts.c.name))
    for table in (models.assignments, models.migration_contexts, models.orders, models.withheld, models.leftovers):
        connection.execute(sa.delete(table).where(sa.false()))
