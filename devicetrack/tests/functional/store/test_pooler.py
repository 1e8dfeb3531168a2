"""Stores behind a real pgbouncer, which gives a session or each transaction one of its connections to the server."""

from __future__ import annotations

import contextlib
import functools
from typing import Final

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.store.sql import models
from devicetrack.store.sql import schema
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import database_servers
from devicetrack.testing import databases
from devicetrack.tests import base
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update

_SETTINGS: Final = ("SELECT pg_backend_pid(), current_setting('lock_timeout'), current_setting('statement_timeout'),"
                    " current_setting('transaction_isolation')")


class TestPooler(base.TestCase):
    scenarios = base.table(('session', 8), ('transaction', 2), names=('size',))
    size: int

    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.useFixture(databases.PostgreSQLStore())
        mode = 'session' if self.size > 2 else 'transaction'
        self.pooler = self.useFixture(database_servers.PgBouncer(self.fixture.server, mode, self.size))

    def host(self, database: str | None = None, busy_timeout_s: int = 600) -> SQLStore:
        store = databases.open_store(databases.configuration(
            connection=self.pooler.text_url(database or self.fixture.database), busy_timeout_s=busy_timeout_s))
        self.addCleanup(store.close)
        return store

    def test_claims_of_more_hosts_than_the_pooler_has_connections_in_transaction_mode(self) -> None:
        stores = [self.host() for _host in range(4)]
        rows = [record(f'ns{number}') for number in range(40)]
        for answer in self.together(*[functools.partial(stores[number % 4].write, insert(row))
                                      for number, row in enumerate(rows)]):
            self.assertNotIsInstance(answer, Exception)
        self.assertCountEqual(rows, self.fixture.store.records())

    def test_each_transaction_has_the_limits_of_its_own_store_wherever_it_runs(self) -> None:
        self.fixture.server.administer(
            f"ALTER DATABASE {self.fixture.database} SET default_transaction_isolation = 'serializable'")
        first, *others = [self.host(busy_timeout_s=busy_s) for busy_s in (7, 8, 9)]
        for store in (first, *others):
            store.records()
        for store, busy_s in zip(others, (8, 9), strict=True):
            with first.reading() as one, store.reading() as other:
                [mine], [theirs] = [connection.exec_driver_sql(_SETTINGS).all() for connection in (one, other)]
            self.assertNotEqual(mine[0], theirs[0])
            self.assertEqual(('7s', '37s', 'read committed'), tuple(mine[1:]))
            self.assertEqual((f'{busy_s}s', f'{busy_s + 30}s', 'read committed'), tuple(theirs[1:]))

    def test_a_lock_is_waited_for_no_longer_than_an_option_says(self) -> None:
        row = record('ns0')
        self.fixture.store.write(insert(row))
        store = self.host(busy_timeout_s=1)
        with self.fixture.store.engine.connect() as other:
            other.execute(sa.update(models.assignments).values(parent='held'))
            for _time in range(2):
                error = self.assertRaises(exception.StoreUnavailable, store.write, update(row))
                self.assertIn('busy_timeout_s', error.reason)

    def test_a_schema_is_made_and_no_lock_stays(self) -> None:
        server = self.fixture.server
        database = server.create_database()
        self.addCleanup(server.drop_database, database)
        with contextlib.ExitStack() as open_stores:
            stores = [open_stores.enter_context(contextlib.closing(self.host(database))) for _process in range(2)]
            for store in stores:
                schema.sync(store)
            stores[0].transact(lambda connection: connection.exec_driver_sql('DROP INDEX ix_events_parent'))
            schema.sync(stores[1])
            with stores[1].reading() as connection:
                self.assertEqual([], connection.exec_driver_sql(
                    "SELECT * FROM pg_locks WHERE locktype = 'advisory'").all())
                found = {index['name'] for index in sa.inspect(connection).get_indexes('events')}
            self.assertEqual({index.name for index in models.events.indexes}, found)


class TestClients(base.TestCase):
    def test_a_pooler_without_room_for_another_host_is_told_from_one_that_is_down(self) -> None:
        fixture = self.useFixture(databases.PostgreSQLStore())
        pooler = self.useFixture(database_servers.PgBouncer(fixture.server, 'transaction', clients=1))
        stores = [databases.open_store(databases.configuration(connection=pooler.text_url(fixture.database)))
                  for _host in range(2)]
        for store in stores:
            self.addCleanup(store.close)
        stores[0].records()
        error = self.assertRaises(exception.StoreUnavailable, stores[1].records)
        self.assertIn('the server takes no more connections', error.reason)
        pooler.stop()
        error = self.assertRaises(exception.StoreUnavailable, stores[1].records)
        self.assertIn('no connection to the database', error.reason)
