"""Commits whose answer is lost, through a proxy that breaks connections exactly there."""

from __future__ import annotations

import testscenarios

from devicetrack import exception
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.testing import databases
from devicetrack.testing import proxy as proxies
from devicetrack.testing.proxy import Action
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import moved_on
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update

_BEFORE = record('ns0')
_SORTS = [
    ('insert', {'before': (), 'changes': insert(_BEFORE), 'after': (_BEFORE,)}),
    ('update', {'before': (_BEFORE,), 'changes': update(_BEFORE), 'after': (moved_on(_BEFORE),)}),
    ('delete', {'before': (_BEFORE,), 'changes': delete(_BEFORE), 'after': ()}),
]


class TestUnknownCommit(base.TestCase):
    scenarios = testscenarios.multiply_scenarios(databases.SERVER_SCENARIOS, _SORTS)
    database: type[databases.ServerStore]
    before: tuple[Record, ...]
    after: tuple[Record, ...]
    changes: api.Changes

    def setUp(self) -> None:
        super().setUp()
        fixture = self.useFixture(self.database(busy_timeout_s=1))
        self.direct = fixture.store
        self.direct.add_host(api.Host(records.HOST_UUID, 'compute-1', 'digest'))
        if self.before:
            self.direct.write(insert(*self.before))
        self.proxy = self.useFixture(proxies.CommitProxy(fixture.server))
        self.store = fixture.open_through(*self.proxy.address)
        self.store.records()

    def rows(self) -> tuple[Record, ...]:
        return tuple(self.direct.records())

    def test_the_answer_is_lost(self) -> None:
        self.proxy.at_next_commit(Action.LOSE_ANSWER)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, self.changes)
        self.assertTrue(self.store.settle(self.changes))
        self.assertEqual(self.after, self.rows())

    def test_the_commit_is_lost(self) -> None:
        self.proxy.at_next_commit(Action.DROP)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, self.changes)
        self.assertFalse(self.store.settle(self.changes))
        self.assertEqual(self.before, self.rows())

    def test_the_commit_arrives_later(self) -> None:
        self.proxy.at_next_commit(Action.HOLD)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, self.changes)
        # A read proves nothing: it sees the time before.
        self.assertEqual(self.before, self.rows())
        self.assertRaises(exception.StoreUnavailable, self.store.settle, self.changes)
        self.proxy.deliver()
        self.assertTrue(self.store.settle(self.changes))
        self.assertEqual(self.after, self.rows())

    def test_the_connection_breaks_before_the_commit(self) -> None:
        self.proxy.cut_at_next('assignments')
        self.assertRaises(exception.StoreUnavailable, self.store.write, self.changes)
        self.assertEqual(self.before, self.rows())
        self.store.write(self.changes)
        self.assertEqual(self.after, self.rows())

    def test_the_next_write_succeeds_after_an_unknown_one(self) -> None:
        self.proxy.at_next_commit(Action.LOSE_ANSWER)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, self.changes)
        self.store.write(insert(record('another')))
        self.assertEqual(len(self.after) + 1, len(self.rows()))

    def test_settling_leaves_no_trace(self) -> None:
        self.proxy.at_next_commit(Action.DROP)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, self.changes)
        for _time in range(3):
            self.assertFalse(self.store.settle(self.changes))
        self.store.write(self.changes)
        self.assertEqual(self.after, self.rows())
