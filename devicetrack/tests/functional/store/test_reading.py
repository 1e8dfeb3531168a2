"""Reading through connections that are kept open."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import os
import shutil
import sqlite3
import types
from typing import Any
from typing import Final

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.objects.values import DeviceKey
from devicetrack.store import api
from devicetrack.testing import databases
from devicetrack.tests import base
from devicetrack.tests import interrupts
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


# Each read of a store.
_READS: Final[dict[str, Callable[[api.Store], object]]] = {
    'host': lambda store: store.host('compute-1'),
    'hosts': lambda store: store.hosts(),
    'records': lambda store: store.records(),
    'records of a host': lambda store: store.records_of_host(records.HOST_UUID),
    'records of hosts': lambda store: store.records_of_hosts([f'{number:036}' for number in range(3)]),
    'records of an instance': lambda store: store.records_of_instance(records.HOST_UUID, 'a' * 36),
    'records everywhere': lambda store: store.records_everywhere('a' * 36),
    'records of devices': lambda store: store.records_of_devices(records.HOST_UUID, [DeviceKey('vpmem', 'ns0')]),
    'records of a name': lambda store: store.records_named('ns0'),
    'tallies': lambda store: store.tallies([f'{number:036}' for number in range(3)]),
    'a name': lambda store: store.is_named('ns0', 'vpmem', records.HOST_UUID),
    'operator request': lambda store: store.operator_request('0' * 36),
    'contexts': lambda store: store.contexts(records.HOST_UUID),
    'epoch': lambda store: store.check_epoch(),
    'operator requests': lambda store: store.operator_requests(),
    'withheld': lambda store: store.withheld(records.HOST_UUID),
    'withheld on hosts': lambda store: store.withheld_of_hosts([records.HOST_UUID], ['device']),
    'declarations': lambda store: store.declarations(),
    'leftovers': lambda store: store.leftovers(records.HOST_UUID),
    'events': lambda store: store.events_of_device('ns0'),
    'events after': lambda store: store.events_after(records.HOST_UUID, 0, 10),
    'latest events': lambda store: store.latest_events(records.HOST_UUID, 10),
    'count of events': lambda store: store.count_events(records.HOST_UUID, 0, 10),
    'trimming': lambda store: store.trim_events(records.HOST_UUID, 1, 0, 10),
    'check': lambda store: store.check(),
}


class _Lines(interrupts.Lines):
    """All lines but those that open a connection: a trace function would leave the plain lock there taken."""

    def _is_it(self, frame: types.FrameType) -> bool:
        return super()._is_it(frame) and os.path.basename(frame.f_code.co_filename) != 'engine.py'


class TestKeptErrors(base.TestCase):
    """Somebody keeps an exception that interrupted a read: a Future, a log queue. Its traceback keeps the cursor."""

    def test_no_later_read_sees_the_store_as_it_was_then(self) -> None:
        fixture = self.useFixture(databases.SQLiteStore(max_pool_size=100))
        store, other = fixture.store, fixture.open()
        for number in range(3):                 # one row would end its cursor
            store.add_host(api.Host(f'{number:036}', f'compute-{number}', 'digest'))
            store.write(insert(record(f'ns{number}', host_uuid=f'{number:036}')))
            store.write(insert(record(f'ns{number}', instance_uuid='a' * 36)))
            store.add_operator_request(api.OperatorRequest(f'{number:036}', records.HOST_UUID, 'verb', '{}', 1))
            store.set_withheld([api.WithheldRow(records.HOST_UUID, 'vpmem', 'device', f'ns{number}', '{}', 1, 1)])
        fenced = store.at_epoch(store.hosts()[1])
        self.assertNotEqual([], store.records())
        kept: list[BaseException] = []

        def read(name: str) -> None:
            try:
                _READS[name](fenced)
            except BaseException as error:
                kept.append(error)
                raise

        pool: Any = store.engine.pool
        for number, name in enumerate(_READS):
            for error in (interrupts.Interrupt, MemoryError):
                lines = interrupts.Lines()
                lines.run(functools.partial(read, name))
                for at in range(lines.count):
                    _Lines(at, error).run(functools.partial(read, name))
            self.assertNotEqual([], kept)
            made = record(f'new{number}')
            other.write(insert(made))
            for _ in range(pool.checkedin() + 1):       # the pool hands out each of its connections in turn
                self.assertEqual([made], store.records_of_instance(made.host_uuid, made.instance_uuid), name)
            kept.clear()


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
