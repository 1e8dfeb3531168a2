"""Late ends of a claim or a move leave what a later claim has, and the migration context of another migration."""

from __future__ import annotations

import copy

from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration
from devicetrack.tests import base
from devicetrack.tests.unit.claims import test_moving


class LaterClaimTestCase(base.TestCase):
    """A service undoes a move on one host, claims again for the same migration, and then aborts the first claim."""

    scenarios = base.table(('by the claim', 'abort', 1), ('by its id', 'abort_instance_claim', 1),
                           ('the later one takes no device', 'abort', 0), names=('how', 'after'))

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=4))
        self.instance = self.host.spawn(pmem=1)
        self.instance.host = self.host.name
        self.migration = self.host.service.create_migration(None, self.instance, self.host.name, 'resize')
        self.migration.status = 'post-migrating'

    def claim(self, pmem: int = 1) -> Claim:
        return self.host.manager.resize_claim(self.context, self.instance, self.host.name,
                                              fixtures.a_request(pmem=pmem), self.migration)

    def test_stays_as_it_is(self) -> None:
        first = self.claim()
        self.host.manager.drop_move_claim_at_dest(self.context, self.instance, self.migration)
        self.claim(self.after)
        rows, context = self.host.records(), self.instance.migration_context
        stored = self.host.store.contexts(self.host.manager.state().host_uuid)
        if self.how == 'abort':
            fields = first.abort()
        else:
            fields = self.host.manager.abort_instance_claim(self.context, self.instance, first.claim_id,
                                                            self.migration.uuid)
        self.assertEqual(({}, rows, stored), (fields, self.host.records(),
                                              self.host.store.contexts(self.host.manager.state().host_uuid)))
        self.assertIs(context, self.instance.migration_context)
        self.host.stop_guest(self.instance.uuid)
        self.host.boot(self.instance)
        self.host.manager.drop_move_claim_at_source(self.context, self.instance, self.migration)
        self.assertEqual(self.after, len(self.host.manager.guest_config(self.instance).devices))
        self.assertEqual(self.after, len(self.host.records()))

    def test_also_if_the_store_fails_in_that_abort(self) -> None:
        for restarts in (False, True):
            first = self.claim()
            self.host.manager.drop_move_claim_at_dest(self.context, self.instance, self.migration)
            self.claim(self.after)
            rows = self.host.records()
            self.host.store.before('records_of_instance', exception.StoreUnavailable('it', 'gone'), times=1)
            self.assertRaises(exception.StoreUnavailable, first.abort)
            if restarts:
                self.host.restart()
            self.assertEqual(self.after, len(self.host.manager.realize(self.context, self.instance)))
            self.host.audit()
            self.assertEqual([row.key for row in rows], [row.key for row in self.host.records()])
            self.assertEqual({'old', 'incoming'} if self.after else {'old'}, {row.role for row in self.host.records()})
            self.host.manager.drop_move_claim_at_dest(self.context, self.instance, self.migration)

    def test_also_if_the_store_fails_while_a_device_of_the_first_one_cannot_be_wiped(self) -> None:
        first = self.claim()
        self.host.manager.realize(self.context, self.instance)
        self.host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd1', 'a bad block'), times=None)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.drop_move_claim_at_dest, self.context,
                          self.instance, self.migration)
        self.claim(self.after)
        rows = [(row.key, row.role) for row in self.host.records() if row.identifier != 'd1']
        self.host.store.before('records_of_instance', exception.StoreUnavailable('it', 'gone'), times=1)
        self.assertRaises(exception.StoreUnavailable, first.abort)
        for _ in range(2):
            self.assertEqual(self.after, len(self.host.manager.realize(self.context, self.instance)))
            self.assertEqual(rows, [(row.key, row.role) for row in self.host.records() if row.identifier != 'd1'])
            self.host.audit()

    def test_also_while_a_device_of_the_first_one_cannot_be_wiped(self) -> None:
        first = self.claim()
        self.host.manager.realize(self.context, self.instance)
        self.host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd1', 'a bad block'), times=2)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.drop_move_claim_at_dest, self.context,
                          self.instance, self.migration)
        self.claim()
        rows = [row for row in self.host.records() if row.identifier != 'd1']
        self.assertRaises(exception.UnclaimFailed, first.abort)
        self.assertEqual(rows, [row for row in self.host.records() if row.identifier != 'd1'])
        self.assertEqual({}, first.abort())
        self.assertEqual(rows, self.host.records())


class ForgottenTestCase(base.TestCase):
    """The device that a claim for a move on one host took is lost, and an operator forgets it."""

    def test_an_abort_gives_the_instance_what_it_had(self) -> None:
        for store_fails in (False, True):
            host = self.useFixture(fixtures.Host(devices=2))
            instance = host.spawn(pmem=1)
            instance.host = host.name
            before = host.records()
            claim = host.manager.resize_claim(self.context, instance, host.name, fixtures.a_request(pmem=1),
                                              host.service.create_migration(None, instance, host.name, 'resize'))
            [taken] = claim.resources
            host.machine.remove(taken.key)
            host.audit()
            host.running.repairs.forget(taken.key, instance.uuid)
            if store_fails:
                host.store.before('records_of_instance', exception.StoreUnavailable('it', 'gone'), times=1)
                self.assertRaises(exception.StoreUnavailable, claim.abort)
                host.restart()
                host.audit()
            else:
                claim.abort()
                self.assertIsNone(instance.migration_context)
            self.assertEqual([(row.key, 'current', None) for row in before],
                             [(row.key, row.role, row.migration_uuid) for row in host.records()])


class OtherContextTestCase(test_moving.RegionTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.moved = self.region(devices=3)
        self.instance = self.moved.spawn('one', pmem=1)

    def left_with_its_context(self) -> tuple[Instance, Migration]:
        """An instance that moved and was released, as an object that still has the context of the move."""
        migration = self.moved.resize(self.instance, 'two', pmem=1)
        self.moved.confirm(copy.copy(self.instance), migration)
        self.two.delete_guest(self.instance.uuid)
        self.two.manager.release(None, self.instance)
        return self.instance, migration

    def test_a_claim_that_fails_knows_nothing_of_an_earlier_move(self) -> None:
        instance, migration = self.left_with_its_context()
        for by_id in (False, True):
            claim = self.two.claim(instance, pmem=1)
            fields = self.two.manager.abort_instance_claim(None, instance, claim.claim_id) if by_id else claim.abort()
            self.assertEqual({'resources': None}, fields)
            self.assertIsNone(instance.resources)
            self.assertEqual(migration.uuid, instance.migration_context.migration_uuid)

    def test_a_claim_for_a_move_that_fails_leaves_the_context_of_another_one(self) -> None:
        claim = self.two.manager.resize_claim(None, self.instance, 'two', fixtures.a_request(pmem=1),
                                              self.moved.migration(self.instance, 'two'))
        self.two.manager.started(None, self.instance)
        ours = claim.fields['migration_context']
        assert ours is not None
        other, migration = self.moved.spawn('one', pmem=1), self.moved.migration(self.instance, 'two')
        self.instance.migration_context = copy.copy(ours)
        self.instance.migration_context.migration_uuid = migration.uuid
        self.instance.migration_context.old_resources = other.resources
        context = self.instance.migration_context
        self.assertEqual({'resources': ours.old_resources}, claim.abort())
        self.assertIs(context, self.instance.migration_context)

    def test_a_late_end_of_an_earlier_move_leaves_the_context_of_the_next_one(self) -> None:
        first = self.moved.resize(self.instance, 'two', pmem=1)
        self.moved.confirm(self.instance, first)
        self.moved.audit()
        self.one.resize(self.instance, pmem=1, migration=self.moved.migration(self.instance, 'one'))
        context = self.instance.migration_context
        self.assertEqual({}, self.one.manager.drop_move_claim_at_source(None, self.instance, first))
        self.assertIs(context, self.instance.migration_context)
        fields = self.two.manager.finish_evacuation(None, self.instance, 'two', first)
        self.assertEqual({'resources'}, set(fields))
        self.assertIs(context, self.instance.migration_context)

    def test_a_revert_that_comes_again_after_its_move_gives_the_instance_no_devices(self) -> None:
        migration = self.moved.resize(self.instance, 'two', pmem=1)
        late = copy.copy(self.instance)
        self.moved.revert(self.instance, migration)
        self.moved.delete(self.instance)
        self.assertEqual({'migration_context': None}, self.two.manager.drop_move_claim(None, late, 'two'))

    def test_one_after_an_audit_has_undone_a_move_that_failed_gives_the_devices_of_the_source(self) -> None:
        for pmem in (0, 1):
            self.instance = self.moved.spawn('one', pmem=1)
            before = [one.key for one in self.instance.resources]
            migration = self.moved.resize(self.instance, 'two', pmem=pmem)
            self.two.delete_guest(self.instance.uuid)
            migration.status, self.instance.host = 'error', 'one'
            self.moved.audit()
            self.assertEqual([], self.two.records(self.instance))
            self.two.manager.drop_move_claim_at_dest(None, self.instance, migration)
            self.assertEqual((self.one.manager.state().host_uuid, before),
                             (self.instance.resources.host_uuid, [one.key for one in self.instance.resources]))

    def test_a_late_revert_gives_an_instance_nothing_that_it_has_given_back_since(self) -> None:
        for pmem in (None, 0, 1):
            instance = self.moved.spawn('one', pmem=1)
            migration = self.moved.resize(instance, 'two', pmem=1)
            self.two.delete_guest(instance.uuid)
            migration.status, instance.host = 'failed', 'one'
            self.moved.audit()
            context = instance.migration_context
            self.one.delete_guest(instance.uuid)
            self.one.manager.release(None, instance)
            if pmem is not None:
                instance.migration_context = None
                self.two.spawn(instance, pmem=pmem)
            now, instance.migration_context = instance.resources, context
            self.assertEqual({'migration_context': None},
                             self.two.manager.drop_move_claim_at_dest(None, instance, migration))
            self.assertIs(now, instance.resources)
            self.two.delete_guest(instance.uuid)
            self.two.manager.release(None, instance)

    def test_one_that_comes_again_because_nobody_saved_its_answer_gives_the_devices_of_the_source(self) -> None:
        migration = self.moved.resize(self.instance, 'two', pmem=1)
        late = copy.copy(self.instance)
        before = self.instance.migration_context.old_resources
        self.two.revert_resize(self.instance, migration)
        self.assertEqual({'migration_context': None, 'resources': before},
                         self.two.manager.drop_move_claim(None, late, 'two'))
