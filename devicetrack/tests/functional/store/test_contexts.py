"""Migration contexts, on each database: written with rows, or not at all."""

from __future__ import annotations

import functools
import json

import sqlalchemy as sa

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql import models
from devicetrack.testing import databases
from devicetrack.testing import proxy as proxies
from devicetrack.testing.proxy import Action
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import context
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import drop
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import moved_on
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update
from devicetrack.tests.functional.store.test_contract import StoreTestCase


def incoming(identifier: str) -> Record:
    return record(identifier, role=vocabulary.INCOMING, migration_uuid=records.MIGRATION_UUID)


class TestContexts(StoreTestCase):
    def stored(self) -> list[api.StoredContext]:
        return self.store.contexts(records.HOST_UUID)

    def test_a_context_is_written_with_the_rows(self) -> None:
        row = incoming('ns0')
        self.store.write(insert(row)._replace(contexts=(context(row),)))
        self.assertEqual(([row], [context(row)]), (self.store.records(), self.stored()))
        self.assertEqual([context(row)], self.fixture.open().contexts(records.HOST_UUID))

    def test_an_instance_that_does_not_move_has_none(self) -> None:
        self.store.write(insert(record('ns0')))
        self.assertEqual([], self.stored())

    def test_contexts_are_of_a_host_and_come_by_instance(self) -> None:
        rows = [incoming(f'ns{number}')._replace(instance_uuid=f'{number:036}') for number in (2, 0, 1)]
        self.store.write(insert(*rows)._replace(contexts=tuple(context(row) for row in rows)))
        elsewhere = incoming('ns2')._replace(instance_uuid=rows[0].instance_uuid, host_uuid='0' * 36)
        self.store.write(insert(elsewhere)._replace(contexts=(context(elsewhere),)))
        self.assertEqual(sorted(context(row) for row in rows), self.stored())
        self.assertEqual(context(rows[0]), self.store.context(records.HOST_UUID, rows[0].instance_uuid))
        self.assertEqual([context(elsewhere)], self.store.contexts('0' * 36))
        self.assertIsNone(self.store.context(records.HOST_UUID, 'f' * 36))

    def test_a_context_takes_the_place_of_the_one_before(self) -> None:
        row = incoming('ns0')
        self.store.write(insert(row)._replace(contexts=(context(row),)))
        another = context(row, '{"of": "another move"}', 'c' * 36)
        self.store.write(update(row)._replace(contexts=(another,)))
        self.assertEqual([another], self.stored())

    def test_a_move_that_is_over_leaves_none(self) -> None:
        row, other = incoming('ns0'), incoming('ns1')
        self.store.write(insert(row, other)._replace(contexts=(context(row), context(other))))
        self.store.write(delete(row)._replace(contexts=(drop(row),)))
        self.assertEqual(([other], [context(other)]), (self.store.records(), self.stored()))

    def test_to_drop_what_is_not_there_is_harmless(self) -> None:
        row = record('ns0')
        self.store.write(insert(row)._replace(contexts=(drop(row),)))
        self.assertEqual(([row], []), (self.store.records(), self.stored()))

    def test_rows_without_a_context_leave_the_one_that_there_is(self) -> None:
        row = incoming('ns0')
        self.store.write(insert(row)._replace(contexts=(context(row),)))
        self.store.write(update(row))
        self.store.write(delete(moved_on(row)))
        self.assertEqual([context(row)], self.stored())

    def test_several_in_one_transaction_the_last_of_an_instance_counts(self) -> None:
        kept, gone, twice = incoming('ns0'), incoming('ns1'), incoming('ns2')
        self.store.write(insert(kept, gone, twice)._replace(contexts=(context(gone),)))
        last = context(twice, '"last"')
        self.store.write(update(kept)._replace(
            contexts=(context(kept), context(twice), drop(gone), drop(twice), last)))
        self.assertCountEqual([context(kept), last], self.stored())

    def test_a_context_may_be_long(self) -> None:
        row = incoming('ns0')
        stored = context(row, json.dumps({'devices': ['x' * 1000] * 1000, 'odd': 'ns\u00f6 \U0001f5a5 %s ? :a \\'},
                                         ensure_ascii=False))
        self.store.write(insert(row)._replace(contexts=(stored,)))
        self.assertEqual([stored], self.stored())

    def test_nothing_of_it_is_written_for_a_taken_device(self) -> None:
        owned, row = record('ns0'), incoming('ns0')
        self.store.write(insert(owned))
        error = self.assertRaises(exception.DeviceTaken, self.store.write,
                                  insert(row)._replace(contexts=(context(row),)))
        self.assertEqual((('vpmem', 'ns0'),), error.devices)
        self.assertEqual([], self.stored())

    def test_nothing_of_it_is_written_for_a_row_that_moved_on(self) -> None:
        row = incoming('ns0')
        self.store.write(insert(row)._replace(contexts=(context(row),)))
        self.store.write(update(row))
        for changes in (update(row), delete(row)):
            self.assertRaises(exception.StaleAssignment, self.store.write, changes._replace(contexts=(drop(row),)))
        self.assertEqual([context(row)], self.stored())

    def test_nothing_of_the_rows_is_written_without_it(self) -> None:
        row = incoming('ns0')
        self.store.transact(lambda connection: models.migration_contexts.drop(connection))
        self.assertRaises(exception.SchemaMismatch, self.store.write,
                          insert(row)._replace(contexts=(context(row),)))
        self.assertEqual([], self.store.records())
        self.store.write(insert(row))


class TestStatements(base.TestCase):
    def test_a_claim_without_a_context_costs_no_statement_more(self) -> None:
        store = self.useFixture(databases.SQLiteStore()).store
        store.write(insert(record('ns0')))
        statements: list[str] = []
        sa.event.listen(store.engine, 'before_cursor_execute', lambda *args: statements.append(args[2].split()[0]))
        store.write(insert(record('ns1')))
        # The host, the row and its event.
        self.assertEqual(['SELECT', 'INSERT', 'INSERT'], statements)


class TestTogether(StoreTestCase):
    def test_many_that_are_committed_together_write_each_its_own(self) -> None:
        rows = [incoming(f'ns{number}') for number in range(32)]

        def move(row: Record) -> None:
            self.store.write(insert(row)._replace(contexts=(context(row),)))
            if row.identifier.endswith('0'):
                self.store.write(delete(row)._replace(contexts=(drop(row),)))

        self.assertEqual([None] * 32, self.together(*[functools.partial(move, row) for row in rows]))
        left = [row for row in rows if not row.identifier.endswith('0')]
        self.assertCountEqual(left, self.store.records())
        self.assertCountEqual([context(row) for row in left], self.store.contexts(records.HOST_UUID))

    def test_a_refused_one_takes_its_context_along_and_harms_no_other(self) -> None:
        rows = [incoming('taken') if number % 2 else incoming(f'ns{number}') for number in range(16)]
        self.store.write(insert(record('taken')))
        answers = self.together(*[
            functools.partial(self.store.write, insert(row)._replace(contexts=(context(row),))) for row in rows])
        self.assertEqual([bool(number % 2) for number in range(16)],
                         [isinstance(answer, exception.DeviceTaken) for answer in answers])
        self.assertEqual([None] * 8, answers[::2])
        self.assertCountEqual([context(row) for row in rows[::2]], self.store.contexts(records.HOST_UUID))


_ROW = incoming('ns0')
_AFTER = context(_ROW, '"after"', 'c' * 36)


class TestUnknownCommit(base.TestCase):
    """A commit with a context whose answer is lost: the rows say what became of both."""

    database: type[databases.ServerStore]
    before: tuple[api.StoredContext, ...]
    changes: api.Changes
    after: tuple[api.StoredContext, ...]

    scenarios = [(f'{name},{sort}', {**facts, 'before': before, 'changes': changes, 'after': after})
                 for name, facts in databases.SERVER_SCENARIOS
                 for sort, before, changes, after in (
                     ('put', (), insert(_ROW)._replace(contexts=(_AFTER,)), (_AFTER,)),
                     ('replace', (context(_ROW),), update(_ROW)._replace(contexts=(_AFTER,)), (_AFTER,)),
                     ('drop', (context(_ROW),), delete(_ROW)._replace(contexts=(drop(_ROW),)), ()))]

    def setUp(self) -> None:
        super().setUp()
        fixture = self.useFixture(self.database(busy_timeout_s=1))
        self.direct = fixture.store
        self.direct.add_host(api.Host(records.HOST_UUID, 'compute-1', 'digest'))
        if self.before:
            self.direct.write(insert(_ROW)._replace(contexts=self.before))
        self.proxy = self.useFixture(proxies.CommitProxy(fixture.server))
        self.store = fixture.open_through(*self.proxy.address)
        self.store.records()

    def stored(self) -> tuple[api.StoredContext, ...]:
        return tuple(self.direct.contexts(records.HOST_UUID))

    def test_the_answer_is_lost(self) -> None:
        self.proxy.at_next_commit(Action.LOSE_ANSWER)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, self.changes)
        self.assertTrue(self.store.settle(self.changes))
        self.assertEqual(self.after, self.stored())

    def test_the_commit_is_lost(self) -> None:
        self.proxy.at_next_commit(Action.DROP)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, self.changes)
        self.assertFalse(self.store.settle(self.changes))
        self.assertEqual(self.before, self.stored())
        self.store.write(self.changes)
        self.assertEqual(self.after, self.stored())

    def test_the_commit_arrives_later(self) -> None:
        self.proxy.at_next_commit(Action.HOLD)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, self.changes)
        self.assertRaises(exception.StoreUnavailable, self.store.settle, self.changes)
        self.proxy.deliver()
        self.assertTrue(self.store.settle(self.changes))
        self.assertEqual(self.after, self.stored())

    def test_the_connection_breaks_between_rows_and_context(self) -> None:
        rows = self.direct.records()
        self.proxy.cut_at_next('migration_contexts')
        self.assertRaises(exception.StoreUnavailable, self.store.write, self.changes)
        self.assertFalse(self.store.settle(self.changes))
        self.assertEqual((rows, self.before), (self.direct.records(), self.stored()))

    def test_a_context_waits_for_a_lost_one_and_is_no_second_owner(self) -> None:
        """What is open may be an earlier context of ours: that is a lock to wait for, and no device that is taken."""
        another = insert(record('ns1', instance_uuid=_ROW.instance_uuid))._replace(
            contexts=(context(_ROW, '"another"'),))
        with self.direct.engine.connect() as lost:
            if self.before:
                lost.execute(sa.update(models.migration_contexts).values(context='"open"'))
            else:
                lost.execute(sa.insert(models.migration_contexts).values(context(_ROW)._asdict()))
            error = self.assertRaises(exception.StoreUnavailable, self.store.write, another)
            lost.commit()
        self.assertIn('lock', error.reason)
        self.store.write(another)
        self.assertEqual((context(_ROW, '"another"'),), self.stored())
