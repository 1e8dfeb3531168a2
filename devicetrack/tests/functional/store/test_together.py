"""Many writers: threads that are committed together, processes, forks, several stores."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import sqlite3
import time
from typing import Final

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import sqlite
from devicetrack.store.sql.backend import Timeouts
from devicetrack.testing import databases
from devicetrack.tests import base
from devicetrack.tests.functional.store import processes
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import moved_on
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update
from devicetrack.tests.functional.store.test_contract import StoreTestCase

ROUNDS: Final = 200


class TestThreads(StoreTestCase):
    def test_sixty_four_threads_write_each_its_own(self) -> None:
        made = [[record(f'ns{thread}-{number}') for number in range(4)] for thread in range(64)]

        def live(rows: list[Record]) -> None:
            for row in rows:
                self.store.write(insert(row))
                self.store.write(update(row))
            self.store.write(delete(moved_on(rows[0])))

        answers = self.together(*[functools.partial(live, rows) for rows in made])
        self.assertEqual([None] * 64, answers)
        self.assertCountEqual([moved_on(row) for rows in made for row in rows[1:]], self.store.records())

    def test_writers_of_whom_any_step_lets_others_go_on(self) -> None:
        def let_go(_phase: str, _info: dict[str, int]) -> None:
            time.sleep(0)

        gc.callbacks.append(let_go)
        self.addCleanup(gc.callbacks.remove, let_go)
        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(1, 1000, 1000)         # garbage is collected at nearly each allocation, as it may be at any
        made = [[record(f'ns{thread}-{number}') for number in range(8)] for thread in range(64)]

        def live(rows: list[Record]) -> None:
            for row in rows:
                self.store.write(insert(row))

        self.assertEqual([None] * 64, self.together(*[functools.partial(live, rows) for rows in made]))

    def test_a_device_that_many_want_goes_to_one_and_harms_no_other(self) -> None:
        wanted = [record('ns0') for _thread in range(16)]
        others = [record(f'other{number}') for number in range(16)]
        calls = [functools.partial(self.store.write, insert(row))
                 for row in itertools.chain.from_iterable(zip(wanted, others, strict=True))]
        answers = self.together(*calls)
        self.assertEqual([None] * 16, answers[1::2])
        self.assertEqual(1, answers[::2].count(None))
        refused = [answer for answer in answers[::2] if answer is not None]
        self.assertEqual({(('vpmem', 'ns0'),)}, {answer.devices for answer in refused})
        winner = wanted[answers[::2].index(None)]
        self.assertCountEqual([winner, *others], self.store.records())

    def test_a_stale_row_harms_no_other(self) -> None:
        rows = [record(f'ns{number}') for number in range(16)]
        self.store.write(insert(*rows))
        stale = [row._replace(claim_id='another') if index % 4 == 0 else row for index, row in enumerate(rows)]
        answers = self.together(*[functools.partial(self.store.write, update(row)) for row in stale])
        self.assertEqual([index % 4 == 0 for index in range(16)],
                         [isinstance(answer, exception.StaleAssignment) for answer in answers])
        self.assertCountEqual([row if index % 4 == 0 else moved_on(row) for index, row in enumerate(rows)],
                              self.store.records())

    def test_two_stores_that_write_the_same_keys_in_turn_deadlock_never_for_long(self) -> None:
        second = self.fixture.open()
        keys = [f'ns{number}' for number in range(8)]

        def churn(store: api.Store, order: list[str]) -> int:
            had = 0
            for _round in range(10):
                rows = tuple(record(key) for key in order)
                try:
                    store.write(insert(*rows))
                except exception.DeviceTaken:
                    continue
                store.write(delete(*rows))
                had += 1
            return had

        answers = self.together(*[functools.partial(churn, store, order) for store in (self.store, second)
                                  for order in (keys, keys[::-1])])
        self.assertEqual([], [answer for answer in answers if not isinstance(answer, int)])
        self.assertEqual([], self.store.records())


class TestProcesses(StoreTestCase):
    def test_four_processes_never_make_two_owners(self) -> None:
        identifiers = [f'ns{number}' for number in range(64)]
        taken = processes.take_all(processes.options_of(self.fixture.conf), identifiers, 4)
        owners = [owner for one in taken for owner in one]
        self.assertCountEqual(identifiers, [identifier for identifier, _claim_id in owners])
        self.assertCountEqual(owners, [(row.identifier, row.claim_id) for row in self.store.records()])

    def test_the_parent_goes_on_after_a_fork(self) -> None:
        before, after = record('before'), record('after')
        self.store.write(insert(before))
        processes.in_fork(self.store.records)
        processes.in_fork(self.store.close)
        self.store.write(insert(after))
        self.assertCountEqual([before, after], self.store.records())


class TestFork(base.TestCase):
    def test_a_child_uses_connections_of_its_own_to_a_server(self) -> None:
        for name, facts in databases.SERVER_SCENARIOS:
            with self.subTest(name):
                fixture = self.useFixture(facts['database']())
                mine, childs = record('mine'), record('childs')
                fixture.store.write(insert(mine))
                self.assertIsNone(processes.in_fork(functools.partial(fixture.store.write, insert(childs))))
                self.assertCountEqual([mine, childs], fixture.store.records())

    def test_a_child_is_refused_a_file_that_was_open(self) -> None:
        fixture = self.useFixture(databases.SQLiteStore())
        fixture.store.write(insert(record('ns0')))
        error = processes.in_fork(functools.partial(fixture.store.write, insert(record('ns1'))))
        self.assertIsInstance(error, exception.StoreUnavailable)
        self.assertIn('forked', error.reason)
        self.assertIsInstance(processes.in_fork(fixture.open().records), exception.StoreUnavailable)

    def test_a_child_may_open_a_file_that_was_closed(self) -> None:
        fixture = self.useFixture(databases.SQLiteStore())
        made = record('ns0')
        fixture.store.write(insert(made))
        fixture.store.close()
        self.assertEqual([made], processes.in_fork(fixture.store.records))


class TestSeveralStores(base.TestCase):
    def test_stores_in_one_process_know_nothing_of_each_other(self) -> None:
        stores = [self.useFixture(facts['database']()).store for _name, facts in [*databases.SCENARIOS] * 2]
        made = [record('ns0') for _store in stores]
        answers = self.together(*[functools.partial(store.write, insert(row))
                                  for store, row in zip(stores, made, strict=True)])
        self.assertEqual([None] * 6, answers)
        self.assertEqual([[row] for row in made], [store.records() for store in stores])
        stores[0].close()
        self.assertEqual([made[1]], stores[1].records())

    def test_two_that_make_one_file_a_store_at_once_do_not_refuse_each_other(self) -> None:
        """SQLite refuses one of them in every twentieth round, at once, whatever the time that it may wait."""
        answers = []
        for number in range(ROUNDS):
            path = os.path.join(self.temp_dir(), f'{number}.sqlite')
            engine = sa.create_engine(f'sqlite:///{path}')
            connections = [sqlite3.connect(path, isolation_level=None, check_same_thread=False) for _ in range(2)]
            answers += self.together(*[
                functools.partial(sqlite.SQLite(engine, Timeouts(busy_s=60, statement_s=60)).begin_log, each)
                for each in connections])
            for each in connections:
                self.assertEqual([('wal',)], each.execute('PRAGMA journal_mode').fetchall())
                each.close()
        self.assertEqual([None] * 2 * ROUNDS, answers)
