"""The schema of a store: making it, telling its revision, and bringing stored texts up to date.

Functions that need alembic load it. alembic keeps the migration that runs in a global, so one thread at a time uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import os
import sqlite3
import threading
from typing import Any
from typing import Final
from typing import NamedTuple

from oslo_db import exception as db_exc
import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from devicetrack import exception
from devicetrack import log
from devicetrack import ownfiles
from devicetrack.objects import details
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.sql import convert
from devicetrack.store.sql import models
from devicetrack.store.sql import postgresql
from devicetrack.store.sql.database import Database
from devicetrack.store.sql.database import MAKE
from devicetrack.store.sql.database import SYNC

LOG = log.logger(__name__)

MIGRATIONS: Final = os.path.join(os.path.dirname(__file__), 'migrations')

_alembic = threading.Lock()

# The table by which anybody knows the mirror of a fleet.
MIRROR: Final = 'fleet_schema'

# alembic's table with the revision.
_VERSIONS: Final = 'alembic_version'

# The tables that a migration would take for ours: today's, and "orders", which one migration makes and another renames.
_NAMES: Final = (*models.metadata.tables, 'orders')

# The columns of the tables of the first migration, as it makes them.
_FIRST: Final = {
    'hosts': {'uuid', 'name', 'machine_id'},
    'assignments': {'host_uuid', 'kind', 'identifier', 'instance_uuid', 'migration_uuid', 'role', 'state', 'position',
                    'claim_id', 'generation', 'provider_uuid', 'resource_class', 'parent', 'numa_node', 'details',
                    'created_at'}}

# The names of the lock that keeps two processes from migrating one database at once.
_LOCK_NUMBER: Final = 0x6465_7674
_LOCK_NAME: Final = 'devicetrack_db_sync'
# Another one: PostgreSQL makes an index only after all transactions that began before, so none may wait for it.
_INDEX_LOCK: Final = _LOCK_NUMBER + 1

# Indexes that PostgreSQL began to make and never finished. It keeps them up to date and does not use them.
_UNFINISHED: Final = sa.text('SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid '
                             'WHERE NOT indisvalid AND pg_table_is_visible(pg_class.oid)')


def revision(store: Database) -> str | None:
    """The revision of the store's schema, or None if the schema is not ours."""
    with store.reading() as connection:
        if not sa.inspect(connection).has_table(_VERSIONS):
            return None
        found: str | None = connection.execute(sa.text(f'SELECT version_num FROM {_VERSIONS}')).scalar()
        return found


def check(store: Database) -> None:
    """Check that the store has the schema of this release. Reads only.

    :raises SchemaMismatch: its schema is missing, older or newer
    :raises StoreUnavailable: it cannot be reached
    """
    missing = not store.is_there()
    found = None if missing else revision(store)
    if found is None and not missing:
        check_tables(store)
    if found != models.REVISION:
        what = remedy(found)
        if missing and store.path is not None and not os.path.isdir(os.path.dirname(store.path)):
            what = f'its directory is missing: see that this path is meant; if so, {what}'
        raise exception.SchemaMismatch(store.name, found, models.REVISION, what)


def check_tables(store: Database) -> None:
    """Check that a database without a revision is no other application's: the migrations would change its tables.

    A shared database may have other tables beside ours. A file is either a store or not.

    :raises SchemaMismatch: it has tables that no migration of ours left there
    """
    with store.reading() as connection:
        inspector = sa.inspect(connection)
        if inspector.has_table(MIRROR):
            raise exception.SchemaMismatch(
                store.name, None, models.REVISION, 'it is the mirror of a fleet, and no store: give the store a '
                'database of its own in [devicetrack_database] connection; [devicetrack_fleet] connection is for the '
                'mirror')
        if store.path is not None:
            found = {*inspector.get_table_names(), *inspector.get_view_names()} - {_VERSIONS}
        else:
            found = {name for name in _NAMES if inspector.has_table(name)}
        as_made = {name for name in found & _FIRST.keys()
                   if {column['name'] for column in inspector.get_columns(name)} == _FIRST[name]}
    # Read the version last: another process may be making the schema. Either it commits all at once, or the table of
    # versions is there before any other table, and a version before the tables of the second migration.
    with store.reading() as connection:
        if connection.dialect.name == 'mysql' and sa.inspect(connection).has_table(_VERSIONS):
            found -= as_made                    # the first migration was cut short, and the next sync completes it
    if found and revision(store) is None:
        names = sorted(map(log.printable, found))
        more = ', …' if len(names) > 5 else ''
        raise exception.SchemaMismatch(
            store.name, None, models.REVISION, f'it has tables of another application ({", ".join(names[:5])}{more}): '
                                               'give the store one of its own in [devicetrack_database] connection')


def remedy(found: str | None) -> str:
    """The remedy for a store whose schema is not of this release."""
    if found is None:
        return MAKE
    if is_known(found):
        return SYNC
    return 'the store is of a newer release: upgrade this one'


def is_known(found: str) -> bool:
    """Whether this release has the migration that made a revision, and so can migrate from it."""
    with _alembic:
        from alembic import script
        known = {step.revision for step in script.ScriptDirectory(MIGRATIONS).walk_revisions()}
    return found in known


def config() -> Any:
    """alembic's configuration, without a file and without a connection."""
    from alembic import config as alembic_config
    made = alembic_config.Config()
    made.set_main_option('script_location', MIGRATIONS.replace('%', '%%'))
    return made


def sync(store: Database) -> str:
    """Do as :func:`devicetrack.store.sql.sync_store`, with a store that is open."""
    if store.path is not None:
        make_file(store)
    found = revision(store)
    if found is None:
        check_tables(store)
    elif not is_known(found):
        raise exception.SchemaMismatch(store.name, found, models.REVISION, remedy(found))
    with store.unhurried() as database:
        if found != models.REVISION:
            database.transact(functools.partial(_upgrade, database))
            LOG.info('%s: schema brought from %s to %s', store.name, found or 'none', models.REVISION)
        if store.path is None:
            make_indexes(database, models.metadata)
    return models.REVISION


def make_file(store: Database) -> None:
    """Make the file of an SQLite store that has none, and its directory, both for this user alone.

    :raises StoreUnavailable: it cannot be made, or belongs to others
    """
    path = store.path or ''
    try:
        ownfiles.make_directory(os.path.dirname(path))
        ownfiles.make_file(path)
    except OSError as error:
        raise exception.StoreUnavailable(store.name, ownfiles.reason(error, path)) from error


def copy_file(store: Database, to: Database) -> None:
    """Copy an SQLite store to one that has no file yet.

    :raises StoreUnavailable: the store cannot be read, or there is no room for the copy
    """
    make_file(to)
    try:
        with contextlib.closing(sqlite3.connect(store.path or '')) as read, (
                contextlib.closing(sqlite3.connect(to.path or ''))) as written:
            read.backup(written)
    except sqlite3.Error as error:
        raise exception.StoreUnavailable(store.name, f'it cannot be copied to {to.path}: {error}') from error


def _upgrade(store: Database, connection: sa.Connection) -> None:
    from alembic import command
    from alembic import util
    try:
        with only_one(store, connection), _alembic:
            alembic_config = config()
            alembic_config.attributes['connection'] = connection
            command.upgrade(alembic_config, 'head')
    except util.CommandError as error:
        raise exception.StoreUnavailable(
            store.name, f'its schema cannot be brought up to date ({error}): see that nothing else changes the schema, '
                        f'and {SYNC}') from error


@contextlib.contextmanager
def only_one(store: Database, connection: sa.Connection) -> Iterator[None]:
    """Keep other processes from changing the schema of this database meanwhile."""
    if connection.dialect.name == 'postgresql':
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_NUMBER)))
    elif connection.dialect.name == 'mysql':
        # The session holds the lock, because DDL ends transactions here. The lock is one of the whole server, so its
        # name contains that of the database.
        lock = f'{_LOCK_NAME} {connection.engine.url.database}'[:64]
        if not connection.execute(sa.select(sa.func.get_lock(lock, store.backend.patience.busy_s))).scalar():
            raise exception.StoreUnavailable(store.name, 'another process brings its schema up to date: wait for it')
    else:
        # One transaction for all revisions, which takes SQLite's lock now. alembic would begin one for each revision,
        # and another process could come in between.
        connection.begin()
    try:
        yield
        if connection.dialect.name == 'mysql':
            # Before the lock goes: the next process must see the version, or it makes the tables again.
            connection.commit()
    finally:
        if connection.dialect.name == 'mysql':
            try:
                connection.execute(sa.select(sa.func.release_lock(lock)))
            except (sa_exc.SQLAlchemyError, db_exc.DBError):
                # The lock ends with its session. An earlier error is the one to report, and if there is none, all was
                # committed before; the transaction of this statement must not be committed with a lost connection.
                connection.invalidate()
                connection.rollback()


def make_indexes(database: Database, metadata: sa.MetaData) -> None:
    """Make the indexes of some tables that a server's database lacks, also after a run that was cut short.

    They belong to no migration. They change no answer, and PostgreSQL makes an index without keeping writers out only
    outside a transaction.
    """
    with database.unhurried() as other, other.reading() as lock, database.reading() as found:
        connection = found.execution_options(isolation_level='AUTOCOMMIT')
        is_postgresql = isinstance(database.backend, postgresql.PostgreSQL)
        if isinstance(database.backend, postgresql.PostgreSQL):
            # A transaction has the lock: behind a pooler the next one is in another session. It waits for nothing, so
            # it has no snapshot, whose end the making of an index would wait for.
            lock.exec_driver_sql('SET LOCAL idle_in_transaction_session_timeout = 0')
            if not lock.execute(sa.select(sa.func.pg_try_advisory_xact_lock(_INDEX_LOCK))).scalar():
                return                          # another process makes them
            connection.exec_driver_sql(database.backend.limits('SET'))
        unfinished = connection.execute(_UNFINISHED).scalars().all() if is_postgresql else []
        inspector = sa.inspect(connection)
        for table in metadata.sorted_tables:
            there = {one['name'] for one in inspector.get_indexes(table.name)}
            # A copy of the table: an index that is made concurrently is not for transactions.
            for index in table.to_metadata(sa.MetaData()).indexes:
                index.dialect_options['postgresql']['concurrently'] = True
                if index.name in unfinished:
                    connection.execute(sa.schema.DropIndex(index))
                elif index.name in there:
                    continue
                connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))
                LOG.info('%s: index %s made', database.name, index.name)


class Migrated(NamedTuple):
    """How many rows were converted to this release's version of their details, and how many are left.

    ``unreadable`` rows come from a newer release or are damaged; they stay as they are.
    """

    converted: int
    left: int
    unreadable: tuple[DeviceKey, ...]


def migrate_details(store: Database, max_rows: int | None = None, rows_a_batch: int = 100) -> Migrated:
    """Convert stored details of older versions to this release's, in transactions of ``rows_a_batch`` rows.

    A row is written only while it has the generation at which it was read. Its generation stays the same, so a manager
    may run meanwhile; if it writes the older text back, the next run converts that.

    :param max_rows: convert at most this many; None means all
    :raises StoreUnavailable: the present batch was not written, the earlier ones were
    """
    converted = left = 0
    unreadable: list[DeviceKey] = []
    key = [models.assignments.c[name] for name in models.KEY]
    for rows in store.pages(sa.select(models.assignments), key, rows_a_batch):
        changed: list[tuple[Record, str]] = []
        for record in convert.records(map(tuple, rows)):
            try:
                if details.is_current(record.details):
                    continue
                text = details.to_text(details.from_text(record.details))
            except (exception.UnknownObject, exception.MalformedObject) as error:
                LOG.warning('%s/%s on host %s keeps its details: %s',
                            record.kind, record.identifier, record.host_uuid, error)
                unreadable.append(record.key)
                continue
            if max_rows is not None and converted + len(changed) >= max_rows:
                left += 1
            else:
                changed.append((record, text))
        if changed:
            written = store.transact(functools.partial(_write, changed=changed))
            converted += written
            left += len(changed) - written
    return Migrated(converted, left, tuple(unreadable))


def _write(connection: sa.Connection, changed: list[tuple[Record, str]]) -> int:
    table = models.assignments
    written = 0
    for record, text in changed:
        version = [table.c[name] == getattr(record, name) for name in (*models.READ_AT, 'details')]
        written += connection.execute(sa.update(table).where(*version).values(details=text)).rowcount
    return written
