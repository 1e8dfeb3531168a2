"""A server that hangs: it keeps its connections and answers nothing, for as long as the test likes."""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Any

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.store.sql import backend as backends
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import record

# Many times what the options below allow, for a busy machine; without deadlines nothing ever ends.
ENDS_S = 60


class HangingServerTestCase(base.TestCase):

    scenarios = databases.SERVER_SCENARIOS

    def setUp(self) -> None:
        super().setUp()
        self.patch(backends, '_GRACE_S', 1)
        self.fixture = self.useFixture(self.database(busy_timeout_s=1, statement_timeout_s=1, connect_timeout_s=2))
        self.server, self.store = self.fixture.server, self.fixture.store

    def ends(self, call: Callable[..., Any], *arguments: Any) -> BaseException:
        """The error of a call while the server hangs."""
        began = time.monotonic()
        with self.server.hanging():
            error = self.assertRaises(exception.StoreError, call, *arguments)
            self.assertLess(time.monotonic() - began, ENDS_S)
        return error

    def test_a_write_ends_and_is_settled_when_the_server_goes_on(self) -> None:
        self.store.write(insert(record('ns0')))
        changes = insert(record('ns1'))
        self.ends(self.store.write, changes)
        self.store.settle(changes)
        self.store.write(insert(record('ns2')))
        self.assertLessEqual({'ns0', 'ns2'}, {row.identifier for row in self.store.records()})

    def test_a_commit_ends_and_nobody_knows_its_outcome(self) -> None:
        hanging = self.server.hanging()

        @sa.event.listens_for(self.store.engine, 'commit', once=True)
        def hang(_connection: sa.Connection) -> None:
            hanging.__enter__()

        changes = insert(record('ns0'))
        try:
            self.assertRaises(exception.OutcomeUnknown, self.store.write, changes)
        finally:
            hanging.__exit__(None, None, None)
        happened = self.store.settle(changes)
        self.assertEqual(['ns0'] if happened else [], [row.identifier for row in self.store.records()])

    def test_reading_ends(self) -> None:
        self.store.records()
        self.ends(self.store.records)
        self.assertEqual([], self.store.records())

    def test_connecting_ends(self) -> None:
        store = self.fixture.open()
        self.ends(store.records)
        self.assertEqual([], store.records())

    def test_a_statement_that_takes_too_long_is_ended_by_the_server(self) -> None:
        with self.store.reading() as connection:
            sleep = {'postgresql': 'SELECT pg_sleep(30)', 'mysql': 'SELECT SLEEP(30)'}[connection.dialect.name]
            pid = connection.exec_driver_sql(
                'SELECT pg_backend_pid()' if 'pg_' in sleep else 'SELECT CONNECTION_ID()').scalar()

        def read() -> None:
            with self.store.reading() as connection:
                connection.exec_driver_sql(sleep)

        error = self.assertRaises(exception.StoreUnavailable, read)
        self.assertIn('took longer than it may', str(error))
        self.assertIsNotNone(pid)

    def test_a_claim_and_a_release_end_and_claims_work_afterwards(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2, store=self.store))
        first, second = Instance(), Instance()
        host.claim(first, pmem=1)
        self.ends(host.manager.release, host.context, first)
        self.ends(lambda: host.claim(second, pmem=1))
        self.ends(host.audit)
        host.audit()
        host.manager.release(host.context, first)
        self.assertEqual([], host.audit())
        self.assertEqual({'d0': FREE, 'd1': FREE}, host.states())
        host.claim(second, pmem=2)
