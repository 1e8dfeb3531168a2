"""Making the schema, and bringing stored details up to date."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import json
import threading
import time
from typing import Any

from alembic import autogenerate
from alembic import command
from alembic import script
from alembic import util
from alembic.runtime import migration
import sqlalchemy as sa

import devicetrack
from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects.values import Record
from devicetrack.store.sql import models
from devicetrack.store.sql import schema
from devicetrack.store.sql.database import Database
from devicetrack.testing import databases
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update
from devicetrack.tests.functional.store.test_contract import StoreTestCase


class TestSync(StoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.copied = self.store
        self.store = self.useFixture(self.database(synced=False)).store
        schema.sync(self.store)

    def test_other_tests_get_what_the_migrations_make(self) -> None:
        self.assertEqual(self._reflected(self.store), self._reflected(self.copied))
        self.copied.check()

    def test_the_migrations_make_what_the_models_say(self) -> None:
        with self.store.reading() as connection:
            context = migration.MigrationContext.configure(
                connection, opts={'compare_type': True, 'compare_server_default': True})
            # alembic does not know that some indexes are for some databases alone; the next test compares them.
            of_servers = [('add_index', index.name) for index in models.events.indexes
                          if connection.dialect.name not in models.SERVERS]
            self.assertCountEqual(of_servers, [(one[0], getattr(one[1], 'name', one[1:])) for one in
                                               autogenerate.compare_metadata(context, models.metadata)])

    def test_the_tables_are_what_the_models_would_make(self) -> None:
        """Also what alembic's comparison leaves out: primary keys, collations, engines."""
        migrated = self._reflected(self.store)
        self.store.transact(lambda connection: models.metadata.drop_all(connection))
        self.store.transact(lambda connection: models.metadata.create_all(connection))
        self.assertEqual(self._reflected(self.store), migrated)

    def _reflected(self, store: Database) -> Any:
        with store.reading() as connection:
            inspector = sa.inspect(connection)
            return {table: ([(column['name'], repr(column['type']), column['nullable'])
                             for column in inspector.get_columns(table)],
                            inspector.get_pk_constraint(table)['constrained_columns'],
                            sorted((index['name'], index['column_names'], bool(index['unique']))
                                   for index in inspector.get_indexes(table)),
                            sorted((unique['name'], unique['column_names'])
                                   for unique in inspector.get_unique_constraints(table)),
                            inspector.get_table_options(table))
                    for table in models.metadata.tables}

    def test_this_release_names_its_newest_migration(self) -> None:
        self.assertEqual([models.REVISION], script.ScriptDirectory(schema.MIGRATIONS).get_heads())

    def test_every_step_leads_on_from_the_one_before(self) -> None:
        steps = list(script.ScriptDirectory(schema.MIGRATIONS).walk_revisions())
        self.assertEqual([*[step.revision for step in steps[1:]], None], [step.down_revision for step in steps])

    def test_syncing_again_changes_nothing(self) -> None:
        row = record('ns0')
        self.store.write(insert(row))
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.assertEqual([row], self.store.records())
        self.assertEqual(models.REVISION, schema.revision(self.store))

    def test_two_that_sync_at_once_do_it_once(self) -> None:
        fixture = self.useFixture(self.database(synced=False))
        stores = [fixture.store, fixture.open()]
        answers = self.together(*[lambda store=store: schema.sync(store) for store in stores])
        self.assertEqual([models.REVISION] * 2, answers)
        for store in stores:
            store.check()


class TestSyncInOneTransaction(StoreTestCase):
    """Where DDL may be part of a transaction."""

    scenarios = [one for one in databases.SCENARIOS if one[1]['database'] is not databases.MariaDBStore]

    def test_no_other_process_sees_some_of_the_revisions(self) -> None:
        fixture = self.useFixture(self.database(synced=False))
        other, seen = fixture.open(), []

        @sa.event.listens_for(sa.Engine, 'before_cursor_execute')
        def look(connection: Any, cursor: Any, statement: str, *_args: Any) -> None:
            if statement.lstrip().startswith('UPDATE alembic_version'):
                seen.append(schema.revision(other))

        self.addCleanup(sa.event.remove, sa.Engine, 'before_cursor_execute', look)
        schema.sync(fixture.store)
        self.assertEqual([None] * (len(list(script.ScriptDirectory(schema.MIGRATIONS).walk_revisions())) - 1), seen)
        self.assertEqual(models.REVISION, schema.revision(other))


class TestSyncThatFails(StoreTestCase):
    def test_an_error_of_alembic_is_one_of_the_store(self) -> None:
        fixture = self.useFixture(self.database(synced=False))
        self.patch(command, 'upgrade', lambda *_args: (_ for _ in ()).throw(util.CommandError('Overlapping')))
        error = self.assertRaises(exception.StoreUnavailable, schema.sync, fixture.store)
        self.assertIn('db sync', error.reason)

    def test_the_lock_of_a_lost_connection_does_not_hide_what_failed(self) -> None:
        fixture = self.useFixture(self.database(synced=False))

        def lose(config: Any, _revision: str) -> None:
            connection = config.attributes['connection']
            if connection.dialect.name == 'mysql':
                connection.connection.dbapi_connection._force_close()
            raise ArithmeticError('first')

        self.patch(command, 'upgrade', lose)
        self.assertRaises(ArithmeticError, schema.sync, fixture.store)

    def test_a_lock_that_cannot_be_given_back_spoils_no_sync(self) -> None:
        fixture = self.useFixture(self.database(synced=False))

        @sa.event.listens_for(sa.Engine, 'before_cursor_execute')
        def lose(connection: Any, cursor: Any, statement: str, *_args: Any) -> None:
            if 'release_lock' in statement:
                connection.connection.dbapi_connection._force_close()

        self.addCleanup(sa.event.remove, sa.Engine, 'before_cursor_execute', lose)
        self.assertEqual(models.REVISION, schema.sync(fixture.store))
        fixture.open().check()


class TestSyncOfAnotherApplication(StoreTestCase):
    """A database that is not a store: an application has tables there with the names of ours."""

    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.useFixture(self.database(synced=False))
        self.store = self.fixture.store
        if self.store.path is not None:
            schema.make_file(self.store)

    def make(self, *statements: str) -> None:
        for statement in statements:
            self.store.transact(lambda connection, statement=statement: connection.execute(sa.text(statement)))

    def check_refused(self, *tables: str) -> None:
        before = self.everything()
        for refuses in (self.store.check, lambda: schema.sync(self.store),
                        lambda: devicetrack.sync_store(self.fixture.conf)):
            error = self.assertRaises(exception.SchemaMismatch, refuses)
            self.assertEqual((None, models.REVISION), (error.found, error.wanted))
            self.assertIn(f'tables of another application ({", ".join(tables)})', str(error))
            self.assertNotIn('db sync', str(error))
        self.assertEqual(before, self.everything())

    def everything(self) -> Any:
        with self.store.reading() as connection:
            inspector = sa.inspect(connection)
            tables = {name: [column['name'] for column in inspector.get_columns(name)]
                      for name in inspector.get_table_names()}
        if self.store.path is None:
            return tables
        with open(self.store.path, 'rb') as file:           # the mode of the journal too
            return tables, file.read()

    def test_a_table_with_the_name_of_ours(self) -> None:
        self.make('CREATE TABLE hosts (id INTEGER)', 'INSERT INTO hosts VALUES (1)')
        self.check_refused('hosts')

    def test_a_table_with_the_name_of_one_that_a_later_migration_makes_or_once_made(self) -> None:
        self.make('CREATE TABLE orders (id INTEGER)', 'CREATE TABLE events (id INTEGER)')
        self.check_refused('events', 'orders')

    def test_a_view(self) -> None:
        self.make('CREATE TABLE machines (id INTEGER)', 'CREATE VIEW hosts AS SELECT id FROM machines')
        self.check_refused(*['hosts', 'machines'] if self.store.path is not None else ['hosts'])

    def test_a_table_like_ours_that_no_migration_made(self) -> None:
        """The first migration begins with the table of versions, also where each statement stays."""
        self.make('CREATE TABLE hosts (uuid VARCHAR(36), name VARCHAR(255), machine_id VARCHAR(128))')
        self.check_refused('hosts')

    def test_an_application_whose_versions_are_kept_in_the_same_way(self) -> None:
        self.make('CREATE TABLE alembic_version (version_num VARCHAR(32))', 'CREATE TABLE hosts (id INTEGER)')
        self.check_refused('hosts')

    def test_an_application_at_a_version_of_its_own(self) -> None:
        self.make('CREATE TABLE alembic_version (version_num VARCHAR(32))',
                  "INSERT INTO alembic_version VALUES ('f00')", 'CREATE TABLE hosts (id INTEGER)')
        before = self.everything()
        error = self.assertRaises(exception.SchemaMismatch, schema.sync, self.store)
        self.assertEqual(('f00', before), (error.found, self.everything()))

    def test_a_shared_database_may_have_tables_of_other_names(self) -> None:
        self.make('CREATE TABLE machines (id INTEGER)')
        if self.store.path is not None:                     # a file is either a store or not
            self.check_refused('machines')
            return
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.store.check()


class TestSyncByConfiguration(StoreTestCase):
    """The public call for services that make their store themselves."""

    def setUp(self) -> None:
        super().setUp()
        self.unsynced = self.useFixture(self.database(synced=False))

    def sync(self) -> str:
        return devicetrack.sync_store(self.unsynced.conf)

    def test_a_store_that_has_no_schema_can_be_used_after_it(self) -> None:
        self.assertRaises(exception.SchemaMismatch, self.unsynced.store.check)
        self.assertEqual(models.REVISION, self.sync())
        self.unsynced.store.check()

    def test_again_it_changes_nothing(self) -> None:
        self.sync()
        row = record('ns0')
        self.unsynced.store.write(insert(row))
        self.assertEqual(models.REVISION, self.sync())
        self.assertEqual([row], self.unsynced.store.records())

    def test_two_at_once_do_it_once(self) -> None:
        self.assertEqual([models.REVISION] * 2, self.together(self.sync, self.sync))
        self.unsynced.store.check()

    def test_a_store_of_a_newer_release_is_left_as_it_is(self) -> None:
        self.sync()
        self.unsynced.store.transact(lambda connection: connection.execute(
            sa.text("UPDATE alembic_version SET version_num = '9999'")))
        error = self.assertRaises(exception.SchemaMismatch, self.sync)
        self.assertEqual(('9999', '9999'), (error.found, schema.revision(self.unsynced.store)))


class TestSyncBesideAnOpenStore(base.TestCase):
    """A process that closes any descriptor of a file loses its locks on it, and SQLite has locks on its file."""

    def test_another_process_takes_no_commit_of_the_open_store_away(self) -> None:
        fixture = self.useFixture(databases.SQLiteStore())
        fixture.store.write(insert(record('ns0')))
        devicetrack.sync_store(fixture.conf)
        self._read(fixture.path)
        fixture.store.write(insert(record('ns1')))
        self.assertEqual(['ns0', 'ns1'], self._read(fixture.path))

    def test_a_store_whose_log_went_takes_no_commit(self) -> None:
        fixture = self.useFixture(databases.SQLiteStore())
        fixture.store.write(insert(record('ns0')))
        with open(fixture.path, 'rb'):                      # as a backup within this process
            pass
        self._read(fixture.path)
        error = self.assertRaises(exception.StoreUnavailable, fixture.store.write, insert(record('ns1')))
        self.assertIn('see to the file and its directory', str(error))
        fixture.store.write(insert(record('ns2')))
        self.assertEqual(['ns0', 'ns2'], self._read(fixture.path))

    def _read(self, path: str) -> list[str]:
        """Read as a command does: SQLite removes the log when the last process that has the file open closes it."""
        script = ('import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]);'
                  'print(*[row[0] for row in connection.execute("SELECT identifier FROM assignments ORDER BY 1")]);'
                  'connection.close()')
        done = processes.run('-c', script, path)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout.split()


class TestMigrateDetails(StoreTestCase):
    """Details of an older version: the primitive's version is lowered, which the base class converts as it is."""

    def _older(self, identifier: str, version: str = '1.0', **facts: Any) -> Record:
        primitive = json.loads(records.DETAILS)
        primitive['versioned_object.version'] = version
        return record(identifier, details=json.dumps(primitive), **facts)

    def setUp(self) -> None:
        super().setUp()
        self.patch(details.VPMEMDetails, 'VERSION', '1.1')

    def versions(self) -> list[str]:
        rows = sorted(self.store.records(), key=lambda row: row.identifier)
        return [json.loads(row.details)['versioned_object.version'] for row in rows]

    def test_all_in_batches(self) -> None:
        self.store.write(insert(*[self._older(f'ns{number}') for number in range(7)]))
        self.store.write(insert(self._older('ns0', host_uuid='0' * 36)))
        self.assertEqual(schema.Migrated(8, 0, ()), schema.migrate_details(self.store, rows_a_batch=3))
        self.assertEqual(['1.1'] * 8, self.versions())
        self.assertEqual(schema.Migrated(0, 0, ()), schema.migrate_details(self.store))

    def test_not_more_than_asked_for(self) -> None:
        self.store.write(insert(*[self._older(f'ns{number}') for number in range(7)]))
        self.assertEqual(schema.Migrated(4, 3, ()), schema.migrate_details(self.store, max_rows=4, rows_a_batch=3))
        self.assertEqual(schema.Migrated(3, 0, ()), schema.migrate_details(self.store, max_rows=4, rows_a_batch=3))

    def test_what_a_newer_release_wrote_stays(self) -> None:
        newer = self._older('ns0', version='1.9')
        self.store.write(insert(newer, self._older('ns1')))
        self.assertEqual(schema.Migrated(1, 0, (newer.key,)), schema.migrate_details(self.store))
        self.assertEqual(['1.9', '1.1'], self.versions())

    def test_a_row_that_changed_meanwhile_is_left_for_the_next_run(self) -> None:
        row = self._older('ns0')
        self.store.write(insert(row))
        plain = self.store.pages

        def pages(*args: Any) -> Any:
            for page in plain(*args):
                self.store.write(update(row))
                yield page

        self.patch(self.store, 'pages', pages)
        self.assertEqual(schema.Migrated(0, 1, ()), schema.migrate_details(self.store))
        self.patch(self.store, 'pages', plain)
        self.assertEqual(['1.0'], self.versions())
        self.assertEqual(schema.Migrated(1, 0, ()), schema.migrate_details(self.store))


class TestIndexes(StoreTestCase):
    """On servers, whose tables many hosts fill."""

    scenarios = [one for one in databases.SCENARIOS if one[1]['database'] is not databases.SQLiteStore]

    def setUp(self) -> None:
        super().setUp()
        self.made = self.names()

    def names(self) -> set[str | None]:
        with self.store.reading() as connection:
            return {index['name'] for table in models.metadata.tables
                    for index in sa.inspect(connection).get_indexes(table)}

    def drop(self, name: str, table: str) -> None:
        index = sa.Index(name, sa.column('x'), _table=sa.Table(table, sa.MetaData()))
        self.store.transact(lambda connection: connection.execute(sa.schema.DropIndex(index)))

    def test_a_device_a_parent_and_a_card_have_one(self) -> None:
        self.assertLessEqual({'ix_events_identifier', 'ix_events_parent', 'ix_events_serial'}, self.made)

    def test_a_missing_one_is_made(self) -> None:
        self.drop('ix_events_parent', 'events')
        self.assertEqual(self.made - {'ix_events_parent'}, self.names())
        for _ in range(2):
            schema.sync(self.store)
            self.assertEqual(self.made, self.names())


class TestIndexesOfPostgreSQL(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.useFixture(databases.PostgreSQLStore())
        self.store = self.fixture.store
        self.write('DROP INDEX ix_events_parent')

    def write(self, statement: str) -> None:
        self.store.transact(lambda connection: connection.execute(sa.text(statement)))

    def valid(self) -> bool | None:
        """Whether PostgreSQL uses the index; None if there is none."""
        with self.store.reading() as connection:
            found: bool | None = connection.execute(sa.text(
                "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('ix_events_parent')")).scalar()
            return found

    @contextlib.contextmanager
    def writer(self) -> Iterator[None]:
        """A transaction that has written an event and stays open: an index is not ready before it ends."""
        with self.fixture.open().engine.connect() as connection:
            connection.execute(sa.insert(models.events), {
                'host_uuid': records.HOST_UUID, 'kind': 'vpmem', 'identifier': 'ns1', 'event': 'claimed', 'at_ms': 1})
            yield
            connection.commit()

    def test_nobody_who_writes_waits_for_one_that_is_made(self) -> None:
        with self.writer():
            thread = threading.Thread(target=schema.sync, args=[self.fixture.open()])
            thread.start()
            waits = sa.text("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%' AND wait_event_type = "
                            "'Lock' AND datname = current_database()")
            end = time.monotonic() + base.HANGS_S
            while not self.store.rows(waits):
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            self.store.write(insert(record('ns0')))
            self.assertIsNot(True, self.valid())
        thread.join()
        self.assertIs(True, self.valid())

    def test_one_that_was_never_finished_is_made_anew(self) -> None:
        with self.writer(), self.fixture.open().engine.connect() as connection:
            connection = connection.execution_options(isolation_level='AUTOCOMMIT')
            connection.execute(sa.text("SET statement_timeout = '100ms'"))
            self.assertRaises(sa.exc.OperationalError, connection.execute,
                              sa.text('CREATE INDEX CONCURRENTLY ix_events_parent ON events (parent)'))
        self.assertIs(False, self.valid())
        schema.sync(self.store)
        self.assertIs(True, self.valid())
