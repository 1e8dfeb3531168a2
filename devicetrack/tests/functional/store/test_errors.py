"""A store that cannot be used: each way with its error, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import logging
import os
import resource
import shutil
import sqlite3
import time
import traceback
from typing import Any

import fixtures
from oslo_db import exception as db_exc
import sqlalchemy as sa

from devicetrack import exception
from devicetrack.objects.values import DeviceKey
from devicetrack.store import api
from devicetrack.store import sql
from devicetrack.store.sql import models
from devicetrack.store.sql import schema
from devicetrack.testing import database_servers
from devicetrack.testing import databases
from devicetrack.testing import proxy as proxies
from devicetrack.tests import base
from devicetrack.tests.functional.store import processes
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update
from devicetrack.tests.functional.store.test_contract import StoreTestCase

_NOBODY = 65534
_NULL: dict[str, Any] = {'resource_class': None}


class TestSchema(StoreTestCase):
    def test_a_store_of_this_release_passes(self) -> None:
        self.store.check()

    def test_a_store_without_schema(self) -> None:
        store = self.useFixture(self.database(synced=False)).store
        error = self.assertRaises(exception.SchemaMismatch, store.check)
        self.assertEqual((store.name, None, models.REVISION), (error.store, error.found, error.wanted))
        self.assertIn('devicetrack-manage db sync', error.remedy)
        self.assertIn('if the store was lost, run devicetrack-manage recover --from-hypervisor', error.remedy)

    def test_a_newer_store(self) -> None:
        self.store.transact(lambda connection: connection.execute(
            sa.text("UPDATE alembic_version SET version_num = 'f00d'")))
        for call in (self.store.check, lambda: schema.sync(self.store)):
            error = self.assertRaises(exception.SchemaMismatch, call)
            self.assertEqual('f00d', error.found)
            self.assertIn('newer', error.remedy)

    def test_tables_that_vanish_while_the_store_is_used(self) -> None:
        self.store.write(insert(record('ns0')))
        self.store.transact(lambda connection: models.assignments.drop(connection))
        self.assertRaises(exception.SchemaMismatch, self.store.write, insert(record('ns1')))
        self.assertRaises(exception.SchemaMismatch, self.store.records)
        self.assertRaises(exception.SchemaMismatch, self.store.settle, insert(record('ns1')))

    def test_a_column_that_is_missing(self) -> None:
        self.store.transact(lambda connection: connection.execute(
            sa.text('ALTER TABLE assignments RENAME COLUMN numa_node TO place')))
        self.assertRaises(exception.SchemaMismatch, self.store.write, insert(record('ns1')))
        self.assertRaises(exception.SchemaMismatch, self.store.records)

    def test_a_statement_that_is_refused_for_another_reason_is_no_missing_table(self) -> None:
        error = self.assertRaises(exception.StoreUnavailable, self.store.transact, lambda connection: (
            connection.execute(sa.text('UPDATE hosts SET'))))
        self.assertIn('refused the statement', error.reason)


class TestLocked(StoreTestCase):
    def test_a_lock_that_another_keeps_is_waited_for_and_then_named(self) -> None:
        store = self.useFixture(self.database(busy_timeout_s=1)).store
        row = record('ns0')
        store.write(insert(row))
        with store.engine.connect().execution_options(devicetrack_writes=True) as other:
            other.execute(sa.update(models.assignments).values(parent='held'))
            error = self.assertRaises(exception.StoreUnavailable, store.write, update(row))
        self.assertIn('lock', error.reason)
        self.assertIn('busy_timeout_s', error.reason)
        self.assertEqual([row], store.records())
        store.write(update(row))


class TestPool(base.TestCase):
    scenarios = databases.SCENARIOS
    database: type[databases.StoreFixture]

    def test_who_finds_no_connection_free_is_told_so_and_nobody_waits_for_the_others(self) -> None:
        store = self.useFixture(self.database(busy_timeout_s=1, max_pool_size=2)).store
        calls = [functools.partial(store.write, insert(record(f'ns{number}'))) for number in range(8)]
        with store.reading(), store.reading():
            began = time.monotonic()
            answers = self.together(store.records, *calls)
            took = time.monotonic() - began
        for answer in answers:
            self.assertIsInstance(answer, exception.StoreUnavailable)
            self.assertIn('no connection of the pool was free in time', answer.reason)
            self.assertIn('max_pool_size', answer.reason)
        self.assertLess(took, 6)                # two batches at most, and not one timeout for each
        self.assertEqual([], store.records())
        store.write(insert(record('ns0')))


class TestValues(StoreTestCase):
    def test_what_an_error_says_holds_no_value_of_a_row(self) -> None:
        secret = record('ns0', details='"secret"', resource_class='C' * 300)
        if isinstance(self.fixture, databases.SQLiteStore):
            secret = secret._replace(**_NULL)          # SQLite takes any length
        try:
            self.store.write(insert(secret))
        except exception.NothingWritten as error:
            self.assertNotIn('secret', str(error))
        else:
            self.fail('it was written')
        self.assertEqual([], self.store.records())

    def test_a_value_that_does_not_fit_is_not_called_a_fault_of_the_store(self) -> None:
        unfit = [record('ns0', position=1 << 70), record('\ud800')]
        if self.database is not databases.SQLiteStore:
            unfit += [record('x' * 256), record('ns0', position=1 << 31)]
        if self.database is databases.PostgreSQLStore:
            unfit += [record('ns\0')]
        for row in unfit:
            error = self.assertRaises(exception.StoreUnavailable, self.store.write, insert(row))
            self.assertIn('a value is too long, out of range', error.reason)
            self.assertIn('the database is well', error.reason)
        self.store.write(insert(record('ns0')))

    def test_a_name_that_is_no_text_is_one_of_them_wherever_it_is_given(self) -> None:
        """Python reads an argument that is not UTF-8 as such a name."""
        name = '\udcff'
        for call in (lambda: self.store.host(name), lambda: self.store.records_of_devices(
                         records.HOST_UUID, [DeviceKey('mdev', name)]),
                     lambda: self.store.add_host(api.Host(records.HOST_UUID, name, 'digest')),
                     lambda: self.store.settle(insert(record(name)))):
            error = self.assertRaises(exception.StoreUnavailable, call)
            self.assertIn('has a character that the database cannot hold', error.reason)


class TestFile(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.useFixture(databases.SQLiteStore(synced=False, busy_timeout_s=1))
        self.store = self.fixture.store

    def test_a_missing_file_is_not_made_by_looking(self) -> None:
        self.assertRaises(exception.SchemaMismatch, self.store.check)
        self.assertRaises(exception.StoreUnavailable, self.store.records)
        self.assertRaises(exception.StoreUnavailable, self.store.write, insert(record('ns0')))
        self.assertFalse(os.path.exists(self.fixture.path))

    def test_files_are_for_their_owner_alone(self) -> None:
        umask = os.umask(0)
        self.addCleanup(os.umask, umask)
        schema.sync(self.store)
        self.store.write(insert(record('ns0')))
        directory = os.path.dirname(self.fixture.path)
        self.assertEqual(0o700, os.stat(directory).st_mode & 0o777)
        names = ('devicetrack.sqlite', 'devicetrack.sqlite-wal', 'devicetrack.sqlite-shm')
        self.assertEqual(dict.fromkeys(names, 384),
                         {name: os.stat(os.path.join(directory, name)).st_mode & 0o777 for name in names})

    def test_nobody_else_can_write_to_the_parents_that_the_directory_lacks_but_all_can_pass(self) -> None:
        umask = os.umask(0)
        self.addCleanup(os.umask, umask)
        path = os.path.join(self.fixture.directory, 'a', 'b', 'c')
        self.fixture.conf.set_override('state_path', path, 'devicetrack')
        schema.sync(self.fixture.open())
        made = [os.path.join(self.fixture.directory, name) for name in ('a', 'a/b', 'a/b/c')]
        self.assertEqual([0o755, 0o755, 0o700], [os.stat(one).st_mode & 0o777 for one in made])

    def test_the_file_is_as_durable_as_promised(self) -> None:
        schema.sync(self.store)
        self.store.write(insert(record('ns0')))
        with self.store.reading() as connection:
            self.assertEqual(('wal',), connection.exec_driver_sql('PRAGMA journal_mode').one())
            self.assertEqual((2,), connection.exec_driver_sql('PRAGMA synchronous').one())

    def test_an_odd_path_is_a_path(self) -> None:
        odd = [os.path.join(self.fixture.directory, 'a b%20c?d#e'), f'/{self.fixture.directory}/slashes']
        for path in odd:
            self.fixture.conf.set_override('state_path', path, 'devicetrack')
            store = self.fixture.open()
            schema.sync(store)
            store.write(insert(record('ns0')))
            self.assertTrue(os.path.exists(os.path.join(path, 'devicetrack.sqlite')))

    def _put(self, content: bytes) -> None:
        os.makedirs(os.path.dirname(self.fixture.path))
        with open(self.fixture.path, 'wb') as written:
            written.write(content)

    def test_a_file_that_is_no_database(self) -> None:
        self._put(b'no database, but long enough to be taken for one' * 100)
        for call in (self.store.check, self.store.records, lambda: schema.sync(self.store),
                     lambda: self.store.write(insert(record('ns0')))):
            error = self.assertRaises(exception.SchemaMismatch, call)
            self.assertIn(self.fixture.path, str(error))
            self.assertIn('no database', error.remedy)

    def test_a_database_of_somebody_else(self) -> None:
        self._put(b'')
        with sqlite3.connect(self.fixture.path) as connection:
            connection.execute('CREATE TABLE theirs (id INTEGER)')
        connection.close()
        self.assertRaises(exception.SchemaMismatch, self.store.check)

    def test_a_file_that_is_removed_while_it_is_used(self) -> None:
        schema.sync(self.store)
        self.store.write(insert(record('ns0')))
        os.rename(self.fixture.path, self.fixture.path + '.away')
        error = self.assertRaises(exception.StoreUnavailable, self.store.write, insert(record('ns1')))
        self.assertIn('missing', error.reason)
        os.rename(self.fixture.path + '.away', self.fixture.path)
        self.store.write(insert(record('ns1')))

    def test_a_file_or_log_or_directory_that_is_removed_while_it_is_used(self) -> None:
        schema.sync(self.store)
        row = record('ns0')
        for path in (self.fixture.path, f'{self.fixture.path}-wal', os.path.dirname(self.fixture.path)):
            self.store.write(insert(row))
            self.store.write(delete(row))
            os.rename(path, f'{path}.away')
            error = self.assertRaises(exception.StoreUnavailable, self.store.write, insert(record('ns1')))
            self.assertIn(f'{path}: ' if path.endswith('-wal') else 'the file is missing', error.reason)
            os.rename(f'{path}.away', path)
            self.assertEqual([], self.store.records())

    def test_nothing_is_written_to_a_file_that_was_replaced(self) -> None:
        """As programs do that bring back a backup."""
        schema.sync(self.store)
        self.store.write(insert(record('ns0')))
        shutil.copy2(self.fixture.path, f'{self.fixture.path}.copy')
        os.rename(f'{self.fixture.path}.copy', self.fixture.path)
        self.store.write(insert(record('ns1')))
        with contextlib.closing(sqlite3.connect(self.fixture.path)) as other:
            self.assertIn(('ns1',), other.execute('SELECT identifier FROM assignments').fetchall())

    def test_another_file_in_the_directory_stops_nothing(self) -> None:
        schema.sync(self.store)
        row = record('ns1')
        with open(f'{self.fixture.path}.other', 'w', encoding='ascii'):
            self.store.write(insert(row))
        self.assertEqual([row], self.store.records())

    def _as_somebody_else(self, call: Callable[[], Any]) -> Any:
        """Root may write everywhere, so the call runs as nobody; the store must not be open."""
        def as_nobody() -> Any:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
            return call()

        return processes.in_fork(as_nobody)

    def _give_to_somebody_else(self, directory: str) -> None:
        if os.geteuid() == 0:
            for path in (directory, *(os.path.join(directory, name) for name in os.listdir(directory))):
                os.chown(path, _NOBODY, _NOBODY)

    def test_a_store_that_somebody_else_can_change_is_not_opened(self) -> None:
        schema.sync(self.store)
        self.store.close()
        directory = os.path.dirname(self.fixture.path)
        for path, says in ((directory, 'chmod go-w'), (self.fixture.path, 'chmod go-w')):
            mode = os.stat(path).st_mode
            os.chmod(path, mode | 0o020)
            for call in (self.store.check, self.store.records, lambda: schema.sync(self.store),
                         lambda: self.store.write(insert(record('ns0')))):
                error = self.assertRaises(exception.StoreUnavailable, call)
                self.assertIn(f'{path}: users other than its owner can write to it', error.reason)
                self.assertIn(says, error.reason)
            os.chmod(path, mode)
        self.assertEqual([], self.store.records())

    def test_a_store_behind_a_link_is_not_opened(self) -> None:
        schema.sync(self.store)
        self.store.close()
        os.rename(self.fixture.path, f'{self.fixture.path}.real')
        os.symlink(f'{self.fixture.path}.real', self.fixture.path)
        for call in (self.store.records, lambda: schema.sync(self.store)):
            self.assertIn('it is a symbolic link', self.assertRaises(exception.StoreUnavailable, call).reason)

    def test_a_read_only_file(self) -> None:
        schema.sync(self.store)
        self.store.close()
        directory = os.path.dirname(self.fixture.path)
        os.chmod(self.fixture.directory, 0o755)
        os.chmod(self.fixture.path, 0o444)
        self._give_to_somebody_else(directory)
        for call in (self.store.check, lambda: self.store.write(insert(record('ns0')))):
            error = self._as_somebody_else(call)
            self.assertIsInstance(error, exception.StoreUnavailable)
            self.assertIn('read-only', error.reason)

    def test_a_read_only_directory(self) -> None:
        schema.sync(self.store)
        self.store.close()
        os.chmod(self.fixture.directory, 0o755)
        os.chmod(os.path.dirname(self.fixture.path), 0o555)
        self.addCleanup(os.chmod, os.path.dirname(self.fixture.path), 0o700)
        os.chmod(self.fixture.path, 0o444)
        for call in (self.store.check, lambda: self.store.write(insert(record('ns0')))):
            self.assertIsInstance(self._as_somebody_else(call), exception.StoreUnavailable)

    def test_a_directory_that_this_user_cannot_look_into(self) -> None:
        schema.sync(self.store)
        self.store.close()
        directory = os.path.dirname(self.fixture.path)
        os.chmod(directory, 0)
        self.addCleanup(os.chmod, directory, 0o700)
        for call in (self.store.check, self.store.records, lambda: self.store.write(insert(record('ns0')))):
            error = self._as_somebody_else(call)
            self.assertIsInstance(error, exception.StoreUnavailable)
            self.assertIn('run this as the user of the service', error.reason)

    def test_a_directory_that_cannot_be_made(self) -> None:
        os.chmod(self.fixture.directory, 0o555)
        self.addCleanup(os.chmod, self.fixture.directory, 0o700)
        error = self._as_somebody_else(lambda: schema.sync(self.store))
        self.assertIsInstance(error, exception.StoreUnavailable)
        self.assertIn('let this process write to it', error.reason)

    def test_a_full_file(self) -> None:
        schema.sync(self.store)
        self.store.write(insert(record('ns0')))
        pages = 0

        @sa.event.listens_for(self.store.engine, 'begin')
        def limit(connection: sa.Connection) -> None:
            connection.exec_driver_sql(f'PRAGMA max_page_count = {pages or 1_000_000}')

        with self.store.reading() as connection:
            pages = connection.exec_driver_sql('PRAGMA page_count').scalar_one()
        error = self.assertRaises(exception.StoreUnavailable, self.store.write,
                                  insert(record('ns1', details='x' * 100_000)))
        self.assertIn('full', error.reason)
        self.assertEqual(1, len(self.store.records()))
        pages = 0
        self.store.write(insert(record('ns1', details='x' * 100_000)))

    def test_a_device_without_room_for_what_reading_needs(self) -> None:
        """SQLite makes its index for the first process that opens the file. A limit on the size of files fails that."""
        schema.sync(self.store)
        self.store.close()

        def read() -> Any:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            return self.store.records()

        error = processes.in_fork(read)
        self.assertIsInstance(error, exception.StoreUnavailable)
        self.assertIn('it is full', error.reason)
        self.assertIn('make room for it', error.reason)

    def test_a_full_device_keeps_nobody_from_reading(self) -> None:
        """SQLite would remove its index with the last connection, if the failed one were that, and need a new one."""
        schema.sync(self.store)
        self.store.close()

        def fail_and_read() -> tuple[str, int]:
            self.store.write(insert(record('ns0')))
            sa.event.listen(self.store.engine, 'begin', lambda connection: connection.exec_driver_sql(
                'PRAGMA max_page_count = 1'))           # SQLite takes the present number
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            error = self.assertRaises(exception.StoreUnavailable, self.store.write,
                                      insert(record('ns1', details='x' * 100_000)))
            return error.reason, len(self.store.records())

        reason, count = processes.in_fork(fail_and_read)
        self.assertIn('it is full', reason)
        self.assertEqual(1, count)

    def test_a_full_file_system(self) -> None:
        """A limit on the size of files stands for the device that has no room: writing to them fails."""
        schema.sync(self.store)
        self.store.close()

        def fill() -> tuple[list[str], str]:
            limit = os.path.getsize(self.fixture.path) + 200_000
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            written: list[str] = []
            while True:
                row = record(f'ns{len(written)}')
                try:
                    self.store.write(insert(row))
                except exception.NothingWritten as error:
                    return written, type(error).__name__
                written.append(row.identifier)

        written, error = processes.in_fork(fill)
        self.assertEqual('StoreUnavailable', error)
        self.assertTrue(written)
        self.assertCountEqual(written, [row.identifier for row in self.store.records()])
        self.store.write(insert(record('another')))


class TestDisk(base.TestCase):
    """What SQLite makes of errors of the disk and of the file system's locks."""

    scenarios = base.table(
        ('a read', sqlite3.SQLITE_IOERR_READ),
        ('a read of a broken sector', sqlite3.SQLITE_IOERR_CORRUPTFS),
        ('a write', sqlite3.SQLITE_IOERR_WRITE),
        ('a sync', sqlite3.SQLITE_IOERR_FSYNC),
        ('a lock', sqlite3.SQLITE_IOERR_LOCK),
        ('a lock for reading', sqlite3.SQLITE_IOERR_RDLOCK),
        ('a lock of the index', sqlite3.SQLITE_IOERR_SHMLOCK),
        ('the file is damaged, or a page cannot be read', sqlite3.SQLITE_CORRUPT),
        names=('code',))
    code: int

    def test_the_disk_comes_first_and_the_store_comes_back(self) -> None:
        store = self.useFixture(databases.SQLiteStore()).store
        store.write(insert(record('ns0')))
        error = sqlite3.OperationalError('disk I/O error')
        error.sqlite_errorcode, error.sqlite_errorname = self.code, 'SQLITE_X'
        closed: list[object] = []

        def fail(*_arguments: object) -> None:
            raise error

        sa.event.listen(store.engine, 'close', lambda *_arguments: closed.append(None))
        sa.event.listen(store.engine, 'before_cursor_execute', fail)
        raised = self.assertRaises(exception.StoreError, store.records)
        self.assertIn('the disk first', str(raised))
        sa.event.remove(store.engine, 'before_cursor_execute', fail)
        self.assertEqual(([None], 1), (closed, len(store.records())))


class TestServer(base.TestCase):
    scenarios = databases.SERVER_SCENARIOS
    database: type[databases.ServerStore]

    def all_calls(self, store: api.Store) -> list[Callable[[], Any]]:
        return [store.check, store.hosts, store.records, lambda: store.write(insert(record('ns9'))),
                lambda: store.add_host(api.Host(records.HOST_UUID, 'compute-1', 'digest')),
                lambda: store.settle(insert(record('ns9'))),
                lambda: store.set_boot_id(records.HOST_UUID, 'boot'),
                lambda: store.set_nested(records.HOST_UUID, 1, 5),
                lambda: store.replace_host(*[api.Host(uuid, 'compute-1', uuid) for uuid in 'ab']),
                lambda: store.contexts(records.HOST_UUID), store.operator_requests,
                lambda: store.add_operator_request(api.OperatorRequest('a', records.HOST_UUID, 'cordon', '{}', 1)),
                lambda: store.answer_operator_request('a', 1, '{}'), lambda: store.withheld(records.HOST_UUID),
                lambda: store.set_withheld([api.WithheldRow(records.HOST_UUID, 'vpmem', 'device', 'a', '{}', 1, 1)]),
                store.declarations, lambda: store.set_declarations(records.HOST_UUID, [])]

    def assert_unavailable(self, store: api.Store, call: Callable[[], Any], password: str) -> None:
        error = self.assertRaises(exception.StoreUnavailable, call)
        self.assertEqual(store.name, error.store)
        for text in (str(error), repr(error)):
            self.assertNotIn(password, text)
            self.assertNotIn(database_servers.Server.user + ':', text)
        self.assertNotIn(password, ''.join(traceback.format_exception(error)))

    def test_a_server_that_is_killed_and_comes_back(self) -> None:
        server = self.useFixture(self.database.of(durable=True))
        store = self.useFixture(self.database(server=server)).store
        kept = record('ns0')
        store.write(insert(kept))
        server.kill()
        for call in self.all_calls(store):
            self.assert_unavailable(store, call, server.password)
        server.start()
        self.assertEqual([kept], store.records())
        store.write(insert(record('ns1')))

    def test_a_restart_between_two_claims_is_not_noticed(self) -> None:
        fixture = self.useFixture(self.database())
        proxy = self.useFixture(proxies.CommitProxy(fixture.server))
        store = fixture.open_through(*proxy.address)
        store.write(insert(record('ns0')))
        proxy.cut_idle()
        store.write(insert(record('ns1')))
        self.assertEqual(2, len(store.records()))

    def test_a_connection_that_breaks_while_reading(self) -> None:
        fixture = self.useFixture(self.database())
        proxy = self.useFixture(proxies.CommitProxy(fixture.server))
        store = fixture.open_through(*proxy.address)
        proxy.cut_at_next('assignments')
        self.assertRaises(exception.StoreUnavailable, store.records)
        self.assertEqual([], store.records())

    def test_a_wrong_password(self) -> None:
        fixture = self.useFixture(self.database())
        url = fixture.url().set(password='wrong-password')
        store = sql.open_store(databases.configuration(connection=url.render_as_string(hide_password=False)))
        for call in self.all_calls(store):
            self.assert_unavailable(store, call, 'wrong-password')

    def test_the_account_is_in_no_traceback_and_no_log(self) -> None:
        logged = self.useFixture(fixtures.FakeLogger(level=logging.DEBUG))
        fixture = self.useFixture(self.database())
        url = fixture.url().set(username='account-7', password='wrong-password')
        store = sql.open_store(databases.configuration(connection=url.render_as_string(hide_password=False)))
        shown = ''
        for call in self.all_calls(store):
            shown += ''.join(traceback.format_exception(self.assertRaises(exception.StoreUnavailable, call)))
        for text in (shown, logged.output):
            self.assertNotIn('account-7', text)
            self.assertNotIn('wrong-password', text)
        self.assertIn('(not shown)', shown)

    def test_a_database_that_does_not_exist(self) -> None:
        fixture = self.useFixture(self.database())
        url = fixture.url().set(database='missing')
        store = sql.open_store(databases.configuration(connection=url.render_as_string(hide_password=False)))
        self.assert_unavailable(store, store.check, fixture.server.password)

    def test_a_user_who_may_only_read(self) -> None:
        fixture = self.useFixture(self.database())
        user = fixture.database[:20]
        if self.database is databases.PostgreSQLStore:
            fixture.server.administer(f"CREATE ROLE {user} LOGIN PASSWORD 'pw'")
            fixture.server.administer(f'GRANT pg_read_all_data TO {user}')
            self.addCleanup(fixture.server.administer, f'DROP ROLE {user}')
        else:
            fixture.server.administer(f"CREATE USER {user}@'%%' IDENTIFIED BY 'pw'")
            fixture.server.administer(f"GRANT SELECT ON {fixture.database}.* TO {user}@'%%'")
            self.addCleanup(fixture.server.administer, f"DROP USER {user}@'%%'")
        url = fixture.url().set(username=user, password='pw')
        store = sql.open_store(databases.configuration(connection=url.render_as_string(hide_password=False)))
        self.addCleanup(store.close)
        self.assertEqual([], store.records())
        for call in (store.check, lambda: store.write(insert(record('ns0')))):
            error = self.assertRaises(exception.StoreUnavailable, call)
            self.assertIn('permission denied', error.reason)
            self.assertNotIn(f"'{user}'", ''.join(traceback.format_exception(error)))


class TestPostgreSQL(base.TestCase):
    def test_a_schema_is_made_without_an_error_in_the_log(self) -> None:
        logged = self.useFixture(fixtures.FakeLogger(level=logging.WARNING))
        schema.sync(self.useFixture(databases.PostgreSQLStore(synced=False)).store)
        self.assertEqual('', logged.output)

    def test_an_error_that_oslo_db_logs_is_logged_without_the_account(self) -> None:
        store = self.useFixture(databases.PostgreSQLStore()).store
        logged = self.useFixture(fixtures.FakeLogger(level=logging.DEBUG))
        with self.assertRaises(exception.StoreUnavailable), store.reading() as connection:
            connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'no more for %%', current_user; END $$")
        self.assertIn('DBAPIError exception wrapped', logged.output)
        self.assertIn('no more for (not shown)', logged.output)


    def test_a_connection_that_is_not_needed_stays_idle_so_that_the_server_may_end_it(self) -> None:
        store = self.useFixture(databases.PostgreSQLStore()).store

        def session() -> Any:
            with store.reading() as connection:
                return connection.exec_driver_sql('SELECT pg_backend_pid()').scalar()

        with store.reading() as one, store.reading() as other:
            for connection in (one, other):
                connection.exec_driver_sql('SELECT 1')
        self.assertEqual(1, len({session() for _time in range(4)}))

    def test_a_store_leaves_a_server_that_was_a_standby(self) -> None:
        fixture = self.useFixture(databases.PostgreSQLStore())
        of_database = f'ALTER DATABASE {fixture.database}'
        fixture.server.administer(f'{of_database} SET default_transaction_read_only = on')
        store = fixture.open()
        self.assertEqual([], store.records())
        fixture.server.administer(f'{of_database} RESET default_transaction_read_only')
        row = record('ns0')
        error = self.assertRaises(exception.StoreUnavailable, store.write, insert(row))
        self.assertIn('if this server is a standby', error.reason)
        store.write(insert(row))
        self.assertEqual([row], store.records())


class TestMariaDB(base.TestCase):
    def test_a_url_with_autocommit_has_transactions_all_the_same(self) -> None:
        fixture = self.useFixture(databases.MariaDBStore())
        store = databases.open_store(databases.configuration(
            connection=f'{fixture.server.text_url(fixture.database)}&autocommit=true'))
        self.addCleanup(store.close)
        row, never = record('ns0'), record('ns1')
        store.write(insert(row))
        self.assertRaises(exception.StaleAssignment, store.write, api.Changes(
            delete=(row,), update=update(never).update))
        self.assertEqual([row], fixture.store.records())

    def test_no_connection_takes_several_statements_in_one_go(self) -> None:
        store = self.useFixture(databases.MariaDBStore()).store
        rows = tuple(record(f'ns{number}') for number in range(3))
        store.write(insert(*rows))
        store.write(api.Changes(delete=rows))
        with store.reading() as connection:
            error = self.assertRaises(db_exc.DBError, connection.exec_driver_sql, 'SELECT 1; SELECT 2')
        self.assertIn('SQL syntax', str(error))
        self.assertEqual([], store.records())
