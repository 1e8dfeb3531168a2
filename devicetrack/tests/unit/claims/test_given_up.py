"""Claims that were given up while the store failed: what they took goes back, over restarts too."""

import os

import fixtures as fixtures_of_tests

from devicetrack import exception
from devicetrack.claims.failed_claims import RememberedClaims
from devicetrack.claims.host import OwnProcess
from devicetrack.claims.unfinished import FailedClaim
from devicetrack.claims.unfinished import Unfinished
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests import interrupts
from devicetrack.tests.functional.store import processes
from devicetrack.tests.unit.claims import test_moving

GONE = exception.StoreUnavailable('store', 'gone')


class AbortTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2))
        self.instance = Instance()

    def remembered(self):
        directory = os.path.join(self.host.conf.devicetrack.state_path, 'given-up')
        return sorted(os.listdir(directory)) if os.path.isdir(directory) else []

    def check_all_is_free(self):
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.host.states())
        self.assertEqual(([], []), (self.host.records(), self.remembered()))
        self.assertEqual([], self.host.audit())

    def test_an_audit_goes_on_with_it(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.store.before('write', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, claim.abort)
        self.assertEqual([claim.claim_id], self.remembered())
        self.host.audit()
        self.check_all_is_free()

    def test_a_restart_goes_on_with_it(self):
        for staged in (lambda store: store.before('write', GONE, times=1), lambda store: store.lose_commit(),
                       lambda store: store.lose_answer()):
            claim = self.host.claim(self.instance, pmem=1)
            staged(self.host.store)
            self.assertRaises(exception.StoreError, claim.abort)
            self.host.restart()
            self.host.audit()
            self.check_all_is_free()

    def test_and_does_not_while_the_store_fails(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.store.before('write', GONE, times=99)
        self.assertRaises(exception.StoreUnavailable, claim.abort)
        for _audit in range(2):
            self.host.audit()
            self.assertEqual([claim.claim_id], self.remembered())
        self.host.store.clear()
        self.host.audit()
        self.check_all_is_free()

    def test_a_claim_in_doubt_whose_manager_ended_before_the_store_said(self):
        for staged in ('lose_commit', 'lose_answer'):
            getattr(self.host.store, staged)()
            self.assertRaises(exception.OutcomeUnknown, self.host.claim, self.instance, pmem=1)
            self.assertEqual(1, len(self.remembered()))
            self.host.restart()
            self.host.audit()
            self.check_all_is_free()

    def test_a_claim_that_the_store_refused_is_over_at_once(self):
        self.host.store.before('write', exception.StoreUnavailable('store', 'full'), times=1)
        self.assertRaises(exception.StoreUnavailable, self.host.claim, self.instance, pmem=1)
        self.check_all_is_free()

    def test_what_its_service_started_all_the_same_stays(self):
        for says_so in (True, False):
            for restarts in (False, True):
                instance = Instance()
                claim = self.host.claim(instance, pmem=1)
                self.host.run_guest(instance)
                self.host.store.before('write', GONE, times=1)
                self.assertRaises(exception.StoreUnavailable, claim.abort)
                if says_so:
                    self.host.manager.started(self.context, instance)
                if restarts:
                    self.host.restart()
                self.assertEqual([], self.host.audit())
                self.assertEqual(([], ['active']), (self.remembered(), [row.state for row in self.host.records()]))
                self.host.delete(instance)

    def test_while_nobody_knows_whether_its_guest_was_started_it_stays_remembered(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.manager.realize(self.context, self.instance)
        self.host.store.before('write', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, claim.abort)
        self.host.machine.unknown_domains[self.instance.uuid] = 'no XML'
        self.host.audit()
        self.assertRaises(exception.UsersUnknown, self.host.claim, self.instance, pmem=1)
        self.assertRaises(exception.UsersUnknown, self.host.manager.realize, self.context, self.instance)
        self.assertEqual(([claim.claim_id], ['claimed']), (self.remembered(), [
            row.state for row in self.host.records()]))
        self.host.machine.unknown_domains.clear()
        self.host.audit()
        self.check_all_is_free()

    def test_a_later_claim_of_the_instance_is_another_one(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.store.before('write', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, claim.abort)
        self.host.manager.release(None, self.instance)
        self.host.claim(self.instance, pmem=1)
        self.assertEqual([], self.host.audit())
        self.assertEqual(['claimed'], [record.state for record in self.host.records()])
        self.assertEqual([], self.remembered())

    def test_a_device_that_cannot_be_cleaned_is_the_matter_of_the_audit(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.manager.realize(self.host.context, self.instance)
        self.host.store.before('write', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, claim.abort)
        self.host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.host.audit()
        self.assertEqual((['releasing'], []), ([record.state for record in self.host.records()], self.remembered()))
        self.host.machine.clear()
        self.host.audit()
        self.check_all_is_free()

    def test_a_device_that_the_driver_does_not_take_back_now_is_on_its_way_back_and_nothing_is_remembered(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.manager.realize(self.host.context, self.instance)
        self.host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, claim.abort)
        self.assertEqual(([], ['releasing']), (self.remembered(), [record.state for record in self.host.records()]))

    def test_an_abort_that_an_exception_ends_while_it_waits_for_its_instance(self):
        claim = self.host.claim(self.instance, pmem=1)

        def interrupted(_rows, _instance_uuid):
            raise interrupts.Interrupt

        with fixtures_of_tests.MonkeyPatch('devicetrack.claims.rows.Rows.working', interrupted):
            self.assertRaises(interrupts.Interrupt, claim.abort)
        self.assertEqual([claim.claim_id], self.remembered())
        self.host.audit()
        self.check_all_is_free()

    def give_up(self, instance):
        """A claim that cannot be given back, since the store fails."""
        claim = self.host.claim(instance, pmem=1)
        self.host.store.before('write', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, claim.abort)
        return claim.claim_id

    def test_one_that_has_to_wait_keeps_no_other_from_going_back(self):
        first, _second = self.give_up(self.instance), self.give_up(Instance())
        self.host.store.before('write', GONE, times=1)
        self.assertTrue(self.host.running.failed_claims.undo_failed())
        self.assertEqual(([first], {'d0': 'claimed', 'd1': 'releasing'}), (self.remembered(), self.host.states()))

    def test_it_waits_while_somebody_works_on_its_instance(self):
        claim = self.give_up(self.instance)
        with self.host.running.rows.working(self.instance.uuid):
            self.assertEqual([True], self.together(self.host.running.failed_claims.undo_failed))
        self.assertEqual(([claim], {'d0': 'claimed', 'd1': FREE}), (self.remembered(), self.host.states()))


class MoveTestCase(test_moving.RegionTestCase):

    def test_what_the_claim_made_old_is_current_again(self):
        for restarts in (False, True):
            region = self.region()
            instance = region.spawn('one', pmem=1)
            before = region.rows(instance)
            claim = self.one.manager.resize_claim(None, instance, 'one', fixtures.a_request(pmem=1),
                                                  region.migration(instance, 'one'))
            self.one.store.before('write', GONE, times=1)
            self.assertRaises(exception.StoreUnavailable, claim.abort)
            if restarts:
                self.one.restart()
            region.audit()
            self.assertEqual(before, region.rows(instance))
            self.assertEqual([], self.one.store.contexts(self.one.manager.state().host_uuid))

    def test_a_second_claim_of_the_migration_stays(self):
        region = self.region(devices=3)
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'one')
        self.one.store.lose_commit()
        self.assertRaises(exception.OutcomeUnknown, self.one.resize, instance, 1, 0, migration)
        self.one.running.failed_claims.remember(FailedClaim(instance.uuid, 'ab-1', migration.uuid))
        self.one.audit()
        self.one.resize(instance, pmem=1, migration=migration)
        rows = region.rows(instance)
        self.one.restart()
        self.one.audit()
        self.assertEqual(rows, region.rows(instance))


class FilesTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.path = self.temp_dir()
        self.claims = RememberedClaims(self.path, OwnProcess('host'), Unfinished())

    def found(self):
        """What the next process finds."""
        return RememberedClaims(self.path, OwnProcess('host'), Unfinished()).all()

    def test_what_is_remembered_is_found_by_another_process_until_it_is_forgotten(self):
        one, two = FailedClaim('i', 'ab-1', None), FailedClaim('j', 'ab-2', 'm')
        for claim in (two, one, one):
            self.claims.remember(claim)
        self.assertEqual([one, two], self.found())
        for _again in range(2):
            self.claims.forget('ab-1')
        self.assertEqual([two], self.found())
        self.assertEqual({0o600}, {os.stat(os.path.join(self.path, 'given-up', 'ab-2')).st_mode & 0o777})

    def test_a_forked_child_remembers_nothing(self):
        self.assertIsNone(processes.in_fork(lambda: self.claims.remember(FailedClaim('i', 'ab-1', None))))
        self.assertEqual([], self.claims.all())

    def test_what_cannot_be_read_is_left_out_and_left_there(self):
        self.claims.remember(FailedClaim('i', 'ab-1', None))
        directory = os.path.join(self.path, 'given-up')
        for name, text in (('ab-2', 'no JSON'), ('ab-3', '{}'), ('ab-4', '[]'), ('ab-5.new', ''),
                           ('ab-6', '{"instance_uuid": "i", "claim_id": "ab-1", "migration_uuid": null}'),
                           ('ab-7', '{"instance_uuid": null, "claim_id": "ab-7", "migration_uuid": null}')):
            with open(os.path.join(directory, name), 'w') as file:
                file.write(text)
        self.assertEqual([FailedClaim('i', 'ab-1', None)], self.found())
        self.assertEqual(7, len(os.listdir(directory)))

    def test_a_directory_that_cannot_be_written_changes_no_error(self):
        with open(os.path.join(self.path, 'given-up'), 'w'):
            pass
        self.claims.remember(FailedClaim('i', 'ab-1', None))
        self.assertEqual(([FailedClaim('i', 'ab-1', None)], []), (self.claims.all(), self.found()))
        self.claims.forget('ab-1')
        self.assertEqual([], self.claims.all())

    def test_a_claim_of_no_manager_removes_no_file(self):
        self.claims.remember(FailedClaim('i', 'ab-1', None))
        with open(os.path.join(self.path, 'manager.lock'), 'w'):
            pass
        for claim_id in ('../manager.lock', os.path.join(self.path, 'manager.lock'), '', '.', 'ab-1\n'):
            self.claims.forget(claim_id)
        self.assertEqual(['given-up', 'manager.lock'], sorted(os.listdir(self.path)))
        self.assertEqual([FailedClaim('i', 'ab-1', None)], self.claims.all())

    def test_a_claim_of_no_manager_is_not_remembered(self):
        for claim_id in ('', '../../etc', 'ab'):
            self.claims.remember(FailedClaim('i', claim_id, None))
        self.assertEqual([], self.claims.all())

    def test_nobody_else_can_name_a_claim_to_give_back(self):
        self.claims.remember(FailedClaim('i', 'ab-1', None))
        directory = os.path.join(self.path, 'given-up')
        os.chmod(directory, 0o777)
        self.assertEqual([], self.found())
        os.chmod(directory, 0o700)
        self.assertEqual([FailedClaim('i', 'ab-1', None)], self.found())
