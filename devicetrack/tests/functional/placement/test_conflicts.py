"""Every operation on allocations, and what can come between: what its caller gets, and what placement holds then."""

from __future__ import annotations

import sqlite3

import fixtures

from devicetrack import vocabulary
from devicetrack.objects.values import Leftover
from devicetrack.placement import errors
from devicetrack.placement import values
from devicetrack.placement.allocations import Policy
from devicetrack.placement.client import Client
from devicetrack.placement.values import Outcome
from devicetrack.testing import placement as placements
from devicetrack.testing.http_proxy import Loss
from devicetrack.tests import base
from devicetrack.tests.functional.placement import worlds

# What each does about a change of the consumer by somebody else, by its policy: what it raises, or that it goes on.
_GOES_ON = None
_CONFLICTS = {
    'spawn': (errors.ConsumerExists, errors.ConsumerExists, errors.ConsumerExists),
    'move': (errors.ConsumerConflict, errors.ConsumerConflict, _GOES_ON),
    'confirm': (errors.ConsumerConflict, errors.ConsumerConflict, _GOES_ON),
    'revert': (errors.ConsumerConflict, errors.ConsumerConflict, _GOES_ON),
    'delete': (errors.ConsumerConflict, errors.ConsumerConflict, _GOES_ON),
    'evacuate': (errors.ConsumerConflict, _GOES_ON, _GOES_ON),
    'finish evacuation': (errors.ConsumerConflict, _GOES_ON, _GOES_ON),
    'change': (errors.ConsumerConflict, _GOES_ON, _GOES_ON),
}
_TAKES_ALL = ('confirm', 'delete')              # merged, they take what others put there too


class Operations(base.TestCase):
    """Sets up one operation, with what is there before it."""

    scenarios = [(name, {'name': name, 'case': case}) for name, case in worlds.CASES.items()]
    case: worlds.Case

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(worlds.World())
        self.case.prepare(self.world)

    def call(self, policy: Policy = Policy.FAIL, **kwargs):
        return self.case.call(self.world, self.world.client(policy, **kwargs))

    def fails(self, error_type, policy: Policy = Policy.FAIL, **kwargs):
        """:returns: the error that the operation raises"""
        return self.assertRaises(error_type, self.call, policy, **kwargs)

    def before_it_writes(self, call) -> None:
        self.world.proxy.before_next(*self.case.writes, call)

    def assert_done(self, result) -> None:
        self.assertEqual((Outcome.DONE, self.case.after(self.world)), (result.outcome, self.world.held()))

    def assert_unchanged(self, error) -> None:
        expected = Outcome.PENDING if self.case.ends_move else Outcome.UNCHANGED
        self.assertEqual((expected, self.case.before(self.world)), (error.result.outcome, self.world.held()))

    def written(self) -> int:
        return [method for method, _path in self.world.placement.requests].count(self.case.writes[0])


class TestOperations(Operations):

    def test_it_reads_and_writes_once(self):
        self.assert_done(self.call())
        self.assertEqual(self.case.reads + 1, len(self.world.placement.requests))

    def test_repeated_it_is_recognized(self):
        self.call()
        self.assertEqual((Outcome.REPEATED, self.case.after(self.world)),
                         (self.call().outcome, self.world.held()))

    def test_somebody_else_changes_a_provider(self):
        self.before_it_writes(self.world.touch_providers)
        self.assert_done(self.call())

    def test_no_capacity(self):
        self.world.fill()
        if self.case.grows:
            self.assert_unchanged(self.fails(errors.NoCapacity))
        else:
            self.assert_done(self.call())

    def test_the_write_is_lost_on_its_way(self):
        self.world.proxy.at_next(*self.case.writes, Loss.REQUEST)
        self.assert_done(self.call())
        self.assertEqual(2, self.written())

    def test_the_answer_is_lost(self):
        self.world.proxy.at_next(*self.case.writes, Loss.ANSWER)
        self.assert_done(self.call())
        self.assertEqual(1, self.written())

    def test_the_answer_is_lost_and_nobody_can_be_asked(self):
        self.world.proxy.before_next(*self.case.writes, self.world.lose_reads, Loss.ANSWER)
        error = self.fails(errors.PlacementUnavailable)
        self.assertEqual(Outcome.PENDING if self.case.ends_move else Outcome.UNKNOWN, error.result.outcome)
        self.assertEqual(Outcome.REPEATED, self.call().outcome)
        self.assertEqual(self.case.after(self.world), self.world.held())


class TestConflicts(Operations):
    """Somebody else writes the consumer between our read and our write."""

    def test_the_operation_fails_and_leaves_all_as_it_was(self):
        self.meets_a_change(Policy.FAIL)

    def test_it_is_repeated_when_what_it_changes_is_as_it_was_believed(self):
        self.meets_a_change(Policy.RETRY)

    def test_it_is_repeated_with_what_others_put_there(self):
        self.meets_a_change(Policy.MERGE)

    def meets_a_change(self, policy: Policy) -> None:
        self.before_it_writes(lambda: self.case.add(self.world))
        expected = _CONFLICTS[self.name][list(Policy).index(policy)]
        if expected is None:
            self.assertEqual(Outcome.DONE, self.call(policy).outcome)
            after = self.case.after(self.world)
            if self.name not in _TAKES_ALL:
                after = self.case.with_theirs(self.world, after)
            self.assertEqual(after, self.world.held())
            return
        error = self.fails(expected, policy)
        self.assertEqual(Outcome.PENDING if self.case.ends_move else Outcome.UNCHANGED, error.result.outcome)
        self.assertEqual(self.case.with_theirs(self.world, self.case.before(self.world)), self.world.held())

    def test_written_again_as_it_was_it_is_as_believed(self):
        if self.name == 'spawn':
            return                              # written by anybody, it exists
        self.before_it_writes(lambda: self.world.touch(self.case.consumer(self.world)))
        self.assert_done(self.call(Policy.RETRY))

    def test_somebody_who_writes_each_time_is_met_so_often_only(self):
        if self.name == 'spawn':
            return
        for _attempt in range(5):
            self.before_it_writes(lambda: self.world.touch(self.case.consumer(self.world)))
        self.assert_unchanged(self.fails(errors.ConsumerConflict, Policy.MERGE, attempts=3))
        self.assertEqual(3, self.written())


class TestWrittenByOthers(base.TestCase):
    """Consumers that another writer left in a form that no write of ours has."""

    scenarios = [(name, {'name': name, 'case': case}) for name, case in worlds.CASES.items() if name != 'spawn']
    case: worlds.Case

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(worlds.World())

    def assert_done(self) -> None:
        self.assertEqual((Outcome.DONE, self.case.after(self.world)),
                         (self.case.call(self.world, self.world.client()).outcome, self.world.held()))
        for consumer, kind in ((self.world.instance, values.INSTANCE), (self.world.migration, values.MIGRATION)):
            self.assertIn(self.world.direct.get_allocations(consumer).type, ('', kind))

    def test_without_a_type(self):
        for name, resources in self.case.before(self.world).items():
            self.world.write_untyped(getattr(self.world, name), resources)
        if self.name == 'confirm':              # which does not write the instance
            self.world.write(self.world.instance, self.world.new)
        self.assert_done()

    def test_at_generation_zero(self):
        self.case.prepare(self.world)
        database = sqlite3.connect(placements.PlacementServer.shared().database_url.removeprefix('sqlite:///'))
        self.addCleanup(database.close)
        with database:
            database.execute('UPDATE consumers SET generation = 0 WHERE uuid IN (?, ?)',
                             (self.world.instance, self.world.migration))
        self.assertEqual(0, self.world.direct.get_allocations(self.case.consumer(self.world)).generation)
        self.assert_done()


class TestForcedDelete(base.TestCase):
    """It asks for no generation, so nothing that others do is a conflict."""

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(worlds.World())
        worlds.FORCED.prepare(self.world)

    def delete(self):
        return worlds.FORCED.call(self.world, self.world.client())

    def test_one_request_takes_everything(self):
        self.assertEqual(Outcome.DONE, self.delete().outcome)
        self.assertEqual(({}, 1), (self.world.held(), len(self.world.placement.requests)))
        self.assertEqual(Outcome.REPEATED, self.delete().outcome)

    def test_whatever_others_did_before(self):
        for change in (lambda: worlds.FORCED.add(self.world), self.world.touch_providers, self.world.fill):
            worlds.FORCED.prepare(self.world)
            self.world.proxy.before_next(*worlds.FORCED.writes, change)
            self.assertEqual(Outcome.DONE, self.delete().outcome)
            self.assertEqual({}, self.world.held())

    def test_lost_it_is_sent_again(self):
        for loss, outcome in ((Loss.REQUEST, Outcome.DONE), (Loss.ANSWER, Outcome.REPEATED)):
            worlds.FORCED.prepare(self.world)
            self.world.proxy.at_next(*worlds.FORCED.writes, loss)
            self.assertEqual(outcome, self.delete().outcome)
            self.assertEqual({}, self.world.held())


class TestWhatWasBelieved(base.TestCase):
    """What a caller says that it knows, beside what is found."""

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(worlds.World())

    def move(self, policy: Policy = Policy.FAIL, **kwargs):
        return self.world.client(policy).move(self.world.instance, self.world.migration, self.world.new, **kwargs)

    def revert(self, policy: Policy = Policy.FAIL, **kwargs):
        return self.world.client(policy).revert(self.world.instance, self.world.migration, **kwargs)

    def change(self, policy: Policy = Policy.FAIL, generation: int = 1):
        source = self.world.source
        return self.world.client(policy).change(
            self.world.instance, generation, {source: {worlds.GPU: 1}}, {source: {worlds.GPU: 2}})

    def test_a_move_of_something_else_fails_before_it_writes(self):
        self.world.write(self.world.instance, self.world.old)
        self.world.add(self.world.instance, self.world.source)
        for policy in (Policy.FAIL, Policy.RETRY):
            error = self.assertRaises(errors.ConsumerConflict, self.move, policy, own=self.world.old)
            self.assertEqual(((self.world.instance,), Outcome.UNCHANGED), (error.consumers, error.result.outcome))
        self.assertNotIn(('POST', '/allocations'), self.world.placement.requests)

    def test_what_others_put_there_before_a_move_stays_with_the_instance(self):
        self.world.write(self.world.instance, self.world.old)
        self.world.add(self.world.instance, self.world.source)
        theirs = {self.world.source: {worlds.NET: 1}}
        self.move(Policy.MERGE, own=self.world.old)
        self.assertEqual({'instance': {**self.world.new, **theirs}, 'migration': self.world.old}, self.world.held())
        self.revert(Policy.MERGE, own=self.world.new)
        self.assertEqual({'instance': {self.world.source: {**self.world.old[self.world.source], worlds.NET: 1}}},
                         self.world.held())

    def test_a_reverted_move_is_known_from_a_confirmed_one_by_what_the_instance_holds(self):
        for resources, expected in ((self.world.old, Outcome.REPEATED), (self.world.new, None)):
            self.world.write(self.world.instance, resources)
            if expected is not None:
                self.assertEqual(expected, self.revert(old=self.world.old).outcome)
            else:
                error = self.assertRaises(errors.UnknownConsumer, self.revert, old=self.world.old)
                self.assertEqual(self.world.migration, error.consumer)
        self.assertRaises(errors.UnknownConsumer, self.revert)

    def test_a_confirmed_move_is_no_reverted_one_because_its_new_allocations_contain_the_old(self):
        source = self.world.source
        old, new = {source: {worlds.CPU: 1, worlds.GPU: 1}}, {source: {worlds.CPU: 2, worlds.GPU: 1}}
        part = {source: {worlds.GPU: 1}}
        self.world.write(self.world.instance, new)
        for said, own in ((old, new), (part, new), (old, None), ({}, old), ({}, None)):
            self.assertRaises(errors.UnknownConsumer, self.revert, old=said, own=own)
        self.world.write(self.world.instance, old)
        for said, own in ((old, new), (part, new), (old, None), (old, old)):
            self.assertEqual(Outcome.REPEATED, self.revert(old=said, own=own).outcome)

    def test_an_evacuation_ends_only_where_it_has_begun(self):
        """The instance came back, and the source's part is all that it has."""
        self.world.write(self.world.instance, self.world.old)
        for policy in Policy:
            error = self.assertRaises(errors.ConsumerConflict, self.world.client(policy).finish_evacuation,
                                      self.world.instance, [self.world.source])
            self.assertEqual(((self.world.instance,), Outcome.UNCHANGED), (error.consumers, error.result.outcome))
        self.assertEqual({'instance': self.world.old}, self.world.held())

    def test_a_change_of_a_part_that_is_another_by_now(self):
        self.world.write(self.world.instance, {self.world.source: {worlds.CPU: 2, worlds.GPU: 2}})
        for _time in range(2):                  # after one alone it would be as our own write leaves it
            self.world.touch(self.world.instance)
        for policy in (Policy.FAIL, Policy.RETRY):
            self.assertRaises(errors.ConsumerConflict, self.change, policy)

    def test_a_change_is_not_taken_for_one_of_others(self):
        self.world.write(self.world.instance, self.world.old)
        self.world.touch(self.world.instance)
        self.change(generation=2)
        self.assertEqual(Outcome.REPEATED, self.change(generation=2).outcome)
        self.world.touch(self.world.instance)
        self.assertRaises(errors.ConsumerConflict, self.change, generation=2)

    def test_a_change_of_a_migration_whose_writer_gave_no_type_leaves_it_one(self):
        self.world.write_untyped(self.world.migration, self.world.old)
        self.world.client().change(self.world.migration, 1, {self.world.source: {worlds.GPU: 1}},
                                   {self.world.source: {worlds.GPU: 2}}, values.MIGRATION)
        self.assertEqual(values.MIGRATION, self.world.direct.get_allocations(self.world.migration).type)

    def test_what_is_not_there(self):
        client = self.world.client()
        self.assertRaises(errors.UnknownConsumer, self.move)
        self.assertRaises(errors.UnknownConsumer, self.change)
        self.assertRaises(errors.UnknownConsumer, client.evacuate, self.world.instance, self.world.new)
        for result in (client.delete(self.world.instance), client.confirm(self.world.instance, self.world.migration),
                        client.finish_evacuation(self.world.instance, [self.world.source])):
            self.assertEqual(Outcome.REPEATED, result.outcome)

    def test_a_provider_that_is_not_there(self):
        nowhere = '00000000-0000-4000-8000-000000000000'
        self.world.write(self.world.instance, self.world.old)
        for call in (lambda: self.world.client().spawn(self.world.migration, {nowhere: {worlds.CPU: 1}}, 'p', 'u'),
                     lambda: self.world.client().evacuate(self.world.instance, {nowhere: {worlds.CPU: 1}})):
            error = self.assertRaises(errors.NoSuchProvider, call)
            self.assertEqual((nowhere, Outcome.UNCHANGED), (error.provider, error.result.outcome))
        self.assertEqual({'instance': self.world.old}, self.world.held())

    def test_a_write_for_which_the_login_or_the_role_is_missing_is_not_repeated(self):
        for status in (401, 403):
            write = self.useFixture(fixtures.MockPatchObject(Client, 'replace_allocations', side_effect=(
                errors.PlacementUnavailable('POST /allocations', f'{status}', status)))).mock
            error = self.assertRaises(errors.PlacementUnavailable, self.world.client(Policy.RETRY).spawn,
                                      self.world.instance, self.world.old, worlds.PROJECT, worlds.USER)
            self.assertEqual((Outcome.UNCHANGED, 1), (error.result.outcome, write.call_count))

    def test_a_spawn_of_another_project_is_another(self):
        self.world.client().spawn(self.world.instance, self.world.old, 'one', 'user')
        self.assertRaises(errors.ConsumerExists, self.world.client().spawn, self.world.instance, self.world.old,
                          'two', 'user')

    def test_the_consumer_of_another_move_is_not_taken(self):
        for name in ('instance', 'migration'):
            self.world.write(getattr(self.world, name), self.world.old)
        for policy in Policy:
            error = self.assertRaises(errors.ConsumerExists, self.move, policy)
            self.assertEqual(self.world.migration, error.consumer)

    def test_a_move_whose_answer_was_lost_and_whose_instance_was_changed_since_is_known_by_its_migration(self):
        self.world.write(self.world.instance, self.world.old)
        self.world.proxy.before_next('GET', '/allocations/', lambda: self.world.proxy.before_next(
            'GET', '/allocations/', lambda: self.world.add(self.world.instance, self.world.dest)))
        self.world.proxy.at_next('POST', '/allocations', Loss.ANSWER)
        self.assertEqual(Outcome.DONE, self.move().outcome)
        self.assertEqual(self.world.old, self.world.held()['migration'])

    def test_a_move_whose_answer_was_lost_is_recognized_by_the_next_call_that_says_what_it_moves(self):
        for policy in (Policy.FAIL, Policy.MERGE):
            self.world.direct.delete_allocations(self.world.migration)
            self.world.write(self.world.instance, self.world.old)
            if policy is Policy.MERGE:
                self.world.add(self.world.instance, self.world.source)
            self.world.proxy.before_next('POST', '/allocations', self.world.lose_reads, Loss.ANSWER)
            self.assertRaises(errors.PlacementUnavailable, self.move, policy, own=self.world.old)
            held = self.world.held()
            self.assertEqual(self.world.old, held['migration'])
            self.assertEqual((Outcome.REPEATED, held),
                             (self.move(policy, own=self.world.old).outcome, self.world.held()))

    def test_a_move_to_elsewhere_is_another_also_for_a_call_that_says_what_it_moves(self):
        self.world.write(self.world.instance, self.world.old)
        self.move(own=self.world.old)
        elsewhere = {self.world.source: {worlds.CPU: 1}}
        for policy, error in ((Policy.FAIL, errors.ConsumerExists), (Policy.MERGE, errors.ConsumerExists)):
            self.assertRaises(error, self.world.client(policy).move, self.world.instance, self.world.migration,
                              elsewhere, own=self.world.old)

    def test_a_move_to_the_same_is_a_move(self):
        self.world.write(self.world.instance, self.world.old)
        for outcome in (Outcome.DONE, Outcome.REPEATED):
            result = self.world.client().move(self.world.instance, self.world.migration, self.world.old)
            self.assertEqual(outcome, result.outcome)
            self.assertEqual({'instance': self.world.old, 'migration': self.world.old}, self.world.held())

    def test_what_goes_back_or_away_is_as_it_was_believed_or_stays(self):
        for name, consumer in (('revert', self.world.migration), ('finish evacuation', self.world.instance)):
            case = worlds.CASES[name]
            case.prepare(self.world)
            before = self.world.held()
            self.world.proxy.before_next(*case.writes, lambda consumer=consumer: self.world.add(
                consumer, self.world.source))
            self.assertRaises(errors.ConsumerConflict, case.call, self.world, self.world.client(Policy.RETRY))
            self.assertEqual(set(before), set(self.world.held()))

    def test_a_revert_whose_answer_was_lost_is_known_by_what_it_wrote(self):
        worlds.CASES['revert'].prepare(self.world)
        self.world.proxy.at_next('POST', '/allocations', Loss.ANSWER)
        self.assertEqual(Outcome.DONE, self.revert().outcome)
        self.assertEqual({'instance': self.world.old}, self.world.held())

    def test_a_lost_answer_and_a_change_by_others_leave_it_open(self):
        self.world.write(self.world.instance, self.world.old)
        self.world.proxy.before_next('GET', '/allocations/', lambda: self.world.proxy.before_next(
            'GET', '/allocations/', lambda: self.world.add(self.world.instance, self.world.dest)))
        self.world.proxy.at_next('PUT', '/allocations/', Loss.ANSWER)
        error = self.assertRaises(errors.ConsumerConflict, self.change)
        self.assertEqual(Outcome.UNKNOWN, error.result.outcome)


class TestConfirm(base.TestCase):
    """A confirm leaks nothing: what it must remove is written down until it is removed."""

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(worlds.World())
        self.case = worlds.CASES['confirm']
        self.case.prepare(self.world)
        self.leftover = Leftover(self.world.instance, self.world.migration, vocabulary.CONFIRM)

    def confirm(self):
        return self.case.call(self.world, self.world.client())

    def conflict(self):
        self.world.proxy.before_next(*self.case.writes, lambda: self.case.add(self.world))
        return self.assertRaises(errors.ConsumerConflict, self.confirm)

    def test_it_is_written_down_before_anything_is_sent(self):
        kept = []
        self.world.proxy.before_next('GET', '/allocations/', lambda: kept.extend(self.world.leftovers.notes))
        self.confirm()
        self.assertEqual(([self.leftover], []), (kept, self.world.leftovers.notes))

    def test_after_a_conflict_it_can_be_confirmed_again(self):
        self.conflict()
        self.assertEqual([self.leftover], self.world.leftovers.notes)
        self.assertEqual(Outcome.DONE, self.confirm().outcome)
        self.assertEqual(({'instance': self.world.new}, []), (self.world.held(), self.world.leftovers.notes))

    def test_after_a_conflict_it_can_be_reverted(self):
        error = self.conflict()
        self.assertEqual((Outcome.PENDING, True), (error.result.outcome, error.result.revert_possible))
        self.world.client().revert(self.world.instance, self.world.migration)
        self.assertEqual(({'instance'}, []), (set(self.world.held()), self.world.leftovers.notes))

    def test_of_an_instance_that_is_gone_nothing_can_be_reverted(self):
        self.world.client().delete(self.world.instance)
        error = self.conflict()
        self.assertIs(False, error.result.revert_possible)

    def test_without_an_answer_nobody_knows(self):
        self.world.lose_reads()
        self.world.proxy.before_next('GET', '/allocations/', self.world.lose_reads, Loss.REQUEST)
        error = self.assertRaises(errors.PlacementUnavailable, self.confirm)
        self.assertEqual((Outcome.PENDING, None), (error.result.outcome, error.result.revert_possible))
        self.assertEqual([self.leftover], self.world.leftovers.notes)

    def test_what_was_left_is_removed_later_whatever_it_is_by_then(self):
        self.conflict()
        self.case.add(self.world)
        self.assertEqual(Outcome.DONE, self.world.client().finish_confirm(self.leftover).outcome)
        self.assertEqual(({'instance': self.world.new}, []), (self.world.held(), self.world.leftovers.notes))
