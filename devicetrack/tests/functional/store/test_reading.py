"""Reading through connections that are kept open."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from typing import Any

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.testing import databases
from devicetrack.tests import base
from devicetrack.tests.functional.store import processes
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import moved_on
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update
from devicetrack.tests.functional.store.test_contract import StoreTestCase


class TestConnections(StoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.store = self.useFixture(self.database(max_pool_size=2)).store
        self.opened = 0

        @sa.event.listens_for(self.store.engine, 'connect')
        def opened(*_args: object) -> None:
            self.opened += 1

    def test_reads_one_after_another_share_one(self) -> None:
        self.store.close()
        for _ in range(5):
            self.store.records_of_host(records.HOST_UUID)
        self.assertEqual(1, self.opened)

    def test_reads_at_once_have_no_more_than_the_option_says(self) -> None:
        self.store.close()
        made = record('ns0')
        self.store.write(insert(made))
        self.opened = 0

        def read() -> None:
            for _ in range(20):
                if self.store.records_of_instance(records.HOST_UUID, made.instance_uuid) != [made]:
                    raise AssertionError('the row was not read')

        self.assertEqual([None] * 8, self.together(*[read] * 8))
        self.assertLessEqual(self.opened, 2)

    def test_a_read_sees_what_others_committed_before_it(self) -> None:
        theirs = self.useFixture(self.database())
        other = theirs.open()
        made = record('ns0')
        for changes, found in ((insert(made), [made]), (update(made), [moved_on(made)]),
                               (delete(moved_on(made)), [])):
            other.write(changes)
            for _ in range(2):
                self.assertEqual(found, theirs.store.records_of_instance(records.HOST_UUID, made.instance_uuid))
                self.assertEqual(found, theirs.store.records_of_devices(records.HOST_UUID, [made.key]))

    def test_a_closed_store_keeps_none(self) -> None:
        self.store.records()
        self.store.close()
        pool: Any = self.store.engine.pool
        self.assertEqual(0, pool.checkedin())


class TestFile(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.useFixture(databases.SQLiteStore(max_pool_size=2, busy_timeout_s=1))
        self.store = self.fixture.store

    def test_no_read_leaves_a_transaction_behind(self) -> None:
        """A log can be emptied only while nobody reads from it, not even from a snapshot that nobody needs."""
        made = record('ns0')
        self.store.write(insert(made))
        self.store.records()
        self.store.records_of_devices(records.HOST_UUID, [made.key])
        self.store.host('compute-1')
        self.store.check()
        with contextlib.suppress(ZeroDivisionError), self.store.reading() as connection:
            connection.execute(sa.text('SELECT * FROM assignments UNION ALL SELECT * FROM assignments')).fetchone()
            raise ZeroDivisionError
        other = sqlite3.connect(self.fixture.path)
        self.addCleanup(other.close)
        self.assertEqual((0, 0, 0), other.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchone())

    def test_beginning_costs_no_statement_of_sqlalchemy(self) -> None:
        """It would cost as much as a read; the store is read many times in a second."""
        sent: list[str] = []
        sa.event.listen(self.store.engine, 'before_cursor_execute', lambda *args: sent.append(args[2].split()[0]))
        begun: list[bool] = []

        def write(connection: sa.Connection) -> None:
            connection.execute(sa.text('UPDATE hosts SET epoch = epoch'))
            other = sqlite3.connect(self.fixture.path, isolation_level=None, timeout=0)
            with contextlib.closing(other), self.assertRaisesRegex(sqlite3.OperationalError, 'locked'):
                other.execute('BEGIN IMMEDIATE')
            begun.append(connection.connection.dbapi_connection.in_transaction)     # type: ignore[union-attr]

        for _ in range(2):                      # one connection after another use of it
            self.store.records()
            self.store.transact(write)
        self.assertEqual((['SELECT', 'UPDATE'] * 2, [True, True]), (sent, begun))

    def test_a_transaction_that_got_no_lock_leaves_no_mark_on_its_connection(self) -> None:
        other = sqlite3.connect(self.fixture.path, isolation_level=None)
        self.addCleanup(other.close)
        other.execute('BEGIN IMMEDIATE')
        self.assertRaises(exception.StoreUnavailable, self.store.check)
        other.execute('ROLLBACK')
        with self.store.reading() as connection:
            self.assertNotIn('in_transaction', connection.info)
            connection.execute(sa.text('SELECT 1')).all()
            driver_connection = connection.connection.dbapi_connection
            self.assertTrue(driver_connection and driver_connection.in_transaction)

    def test_a_removed_file_is_noticed_and_so_is_its_return(self) -> None:
        made = record('ns0')
        self.store.write(insert(made))
        self.assertEqual([made], self.store.records())
        os.rename(self.fixture.path, self.fixture.path + '.away')
        for _ in range(5):                      # more often than there are connections
            error = self.assertRaises(exception.StoreUnavailable, self.store.records)
            self.assertIn('missing', error.reason)
        os.rename(self.fixture.path + '.away', self.fixture.path)
        self.assertEqual([made], self.store.records())

    def test_a_replaced_file_is_the_one_that_is_read(self) -> None:
        before, after = record('ns0'), record('ns1')
        other = self.useFixture(databases.SQLiteStore())
        other.store.write(insert(after))
        other.store.close()
        self.store.write(insert(before))
        self.assertEqual([before], self.store.records())
        self.store._committer.close()           # with the reader's, the file is still open
        shutil.copy(other.path, self.fixture.path + '.new')
        os.rename(self.fixture.path + '.new', self.fixture.path)
        for name in ('-wal', '-shm'):
            os.unlink(self.fixture.path + name)
        self.assertEqual([after], self.store.records())
        self.store.write(insert(before))
        self.assertCountEqual([before, after], self.store.records())

    def test_a_child_is_refused_a_file_that_was_only_read(self) -> None:
        self.store.close()
        self.store.records()
        error = processes.in_fork(self.store.records)
        self.assertIsInstance(error, exception.StoreUnavailable)
        self.assertIn('forked', error.reason)
        self.assertEqual([], self.store.records())
        self.store.close()
        self.assertEqual([], processes.in_fork(self.store.records))
