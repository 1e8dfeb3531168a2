"""Guests that are to start while nobody says, or nobody can record, whether their move is over."""

from typing import Any

from devicetrack import exception
from devicetrack.testing import fixtures
from devicetrack.tests.unit.claims import test_moving


class UndecidedMoveTestCase(test_moving.RegionTestCase):

    def test_a_guest_does_not_start_while_the_service_does_not_say_whether_its_move_failed(self):
        for before, after in ((1, 1), (1, 0), (0, 1)):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=before)
            devices = self.one.machine.domains[instance.uuid].live
            migration = region.migration(instance, 'one')
            self.one.resize(instance, pmem=after, migration=migration)
            rows = region.rows(instance)
            migration.status = 'error'
            self.one.machine.stop_guest(instance.uuid)
            silences: list[Any] = [None, RuntimeError('no database')]
            for self.one.service.moves in silences:
                error = self.assertRaises(exception.MigrationUndecided, self.one.boot, instance)
                self.assertEqual((instance.uuid, migration.uuid), (error.instance_uuid, error.migration_uuid))
                for call in (self.one.manager.guest_config,
                             lambda instance: self.one.manager.kept_definition(instance, '<domain/>')):
                    self.assertRaises(exception.MigrationUndecided, call, instance)
            self.assertEqual(rows, region.rows(instance))
            self.one.service.moves = region.migrations
            self.one.boot(instance)
            self.assertEqual(devices, self.one.machine.domains[instance.uuid].live)
            self.assertEqual([], region.audit())

    def test_a_guest_whose_move_is_undone_after_its_devices_were_made_ready_does_not_get_the_new_ones(self):
        for before, after in ((1, 1), (1, 0), (0, 1)):
            for status in ('reverting', 'error', 'reverted', 'failed', 'unheard of'):
                region = self.region(devices=2)
                instance = region.spawn('one', pmem=before)
                devices = self.one.machine.domains[instance.uuid].live
                migration = region.migration(instance, 'one')
                self.one.resize(instance, pmem=after, migration=migration)
                self.one.machine.stop_guest(instance.uuid)
                migration.status = 'post-migrating'
                self.one.manager.realize(None, instance)
                migration.status = status
                for call in (self.one.manager.guest_config,
                             lambda instance: self.one.manager.kept_definition(instance, '<domain/>'),
                             lambda instance: self.one.manager.started(None, instance)):
                    self.assertRaises(exception.MigrationUndecided, call, instance)
                migration.status = 'error'
                self.one.boot(instance)
                self.assertEqual(devices, self.one.machine.domains[instance.uuid].live)
                self.assertEqual([], region.audit())

    def test_a_guest_that_ran_on_its_new_devices_keeps_them_over_an_error_and_a_hard_reboot(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'one')
        self.one.resize(instance, pmem=1, migration=migration)
        self.one.machine.stop_guest(instance.uuid)
        migration.status = 'post-migrating'
        self.one.boot(instance)
        migration.status = 'error'
        rows = region.rows(instance)['one']
        self.one.delete_guest(instance.uuid)
        self.one.audit()
        self.assertEqual(rows, region.rows(instance)['one'])
        self.one.boot(instance)
        self.assertEqual((['/dev/fakedax1'], rows), ([*self.one.machine.domains[instance.uuid].live],
                                                     region.rows(instance)['one']))

    def test_what_does_not_depend_on_the_move_starts_also_while_the_service_is_silent(self):
        region = self.region(devices=4)
        there, done = (region.spawn('one', pmem=1) for _ in range(2))
        region.resize(done, 'two', pmem=1)              # a guest that ran on its new devices
        to_there = region.migration(there, 'two')
        self.two.resize(there, pmem=1, migration=to_there)
        self.one.service.moves = self.two.service.moves = None
        self.two.boot(done)
        region.finish_resize(there, to_there)

    def test_a_service_that_tells_of_no_migrations_ends_moves_by_calls(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        vars(self.one.running.service)['_service'] = None
        region.resize(instance, 'one', pmem=1)
        self.assertEqual([('d0', 'old', 'active'), ('d1', 'current', 'active')], region.rows(instance)['one'])

    def test_a_guest_does_not_start_when_the_end_of_its_failed_move_cannot_be_recorded(self):
        def unavailable(host):
            host.store.before('write', exception.StoreUnavailable('store', 'gone'))

        for staged, error in ((unavailable, exception.StoreUnavailable),
                              (lambda host: host.store.lose_commit(), exception.OutcomeUnknown),
                              (lambda host: host.store.lose_answer(), exception.OutcomeUnknown)):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=1)
            before = self.one.machine.domains[instance.uuid].live
            migration = region.migration(instance, 'one')
            self.one.resize(instance, pmem=1, migration=migration)
            migration.status = 'error'
            self.one.machine.stop_guest(instance.uuid)
            staged(self.one)
            self.assertRaises(error, self.one.boot, instance)
            self.one.boot(instance)
            self.assertEqual(before, self.one.machine.domains[instance.uuid].live)
            self.assertEqual([], region.audit())


class TakenBackHereTestCase(test_moving.RegionTestCase):
    """The guest was started again on its old devices, and its service ended before it recorded that the move failed."""

    def setUp(self):
        super().setUp()
        self.moves = self.region(devices=3)
        self.instance = self.moves.spawn('one', pmem=1)
        self.devices = self.one.machine.domains[self.instance.uuid].live
        self.migration = self.moves.migration(self.instance, 'one')
        self.one.resize(self.instance, pmem=1, migration=self.migration)
        self.migration.status = 'migrating'
        self.one.machine.stop_guest(self.instance.uuid)
        self.one.boot(self.instance)
        self.one.restart()
        self.one.delete_guest(self.instance.uuid)

    def check_it_ends(self):
        self.assertEqual(self.devices, self.one.machine.domains[self.instance.uuid].live)
        self.migration.status = 'error'
        self.moves.audit()
        self.assertEqual([('d0', 'current', 'active')], self.moves.rows(self.instance)['one'])
        self.assertEqual([], self.moves.audit())

    def test_it_does_not_start_on_the_new_ones_while_the_move_is_not_said_to_be_over(self):
        rows = self.moves.rows(self.instance)
        answers: list[Any] = [self.moves.migrations, None, RuntimeError('no database'), []]
        for self.one.service.moves in answers:
            for self.migration.status in ('post-migrating', 'finished'):
                error = self.assertRaises(exception.MigrationUndecided, self.one.boot, self.instance)
                self.assertEqual(self.migration.uuid, error.migration_uuid)
        self.assertEqual(rows, self.moves.rows(self.instance))
        self.one.service.moves, self.migration.status = self.moves.migrations, 'error'
        self.one.boot(self.instance)
        self.check_it_ends()

    def test_nor_for_a_service_that_tells_of_no_migrations(self):
        tells = vars(self.one.running.service)
        service, tells['_service'] = tells['_service'], None
        self.assertRaises(exception.MigrationUndecided, self.one.boot, self.instance)
        self.one.manager.drop_move_claim_at_dest(None, self.instance, self.migration)
        self.one.boot(self.instance)
        tells['_service'] = service
        self.check_it_ends()

    def test_it_keeps_its_old_ones_alone_when_the_service_calls_the_move_done(self):
        self.migration.status = 'confirmed'
        self.assertRaises(exception.BadRequest, self.one.manager.drop_move_claim_at_source, None, self.instance,
                          self.migration)
        self.one.audit()
        self.assertEqual([('d0', 'current', 'active')], self.moves.rows(self.instance)['one'])
        self.assertEqual(fixtures.FREE, self.one.states()['d1'])

    def test_it_starts_on_its_old_ones_when_the_service_calls_the_move_done(self):
        self.migration.status = 'confirmed'
        self.one.boot(self.instance)
        self.check_it_ends()

    def test_it_starts_again_on_those_that_it_had_before(self):
        for _again in range(2):
            self.one.delete_guest(self.instance.uuid)
            self.one.boot(self.instance)
        self.check_it_ends()

    def test_one_that_runs_on_its_old_ones_is_recorded_on_no_others(self):
        self.one.boot(self.instance)
        self.assertEqual(['d0'], [one.identifier for one in self.one.manager.started(None, self.instance)])
        self.one.audit()
        self.assertEqual([('d0', 'current', 'active'), ('d1', 'incoming', 'claimed')],
                         self.moves.rows(self.instance)['one'])
        self.check_it_ends()

    def test_its_next_resize_takes_other_devices(self):
        self.one.boot(self.instance)
        following = self.moves.resize(self.instance, 'one', pmem=2)
        self.moves.confirm(self.instance, following)
        self.moves.audit()
        self.assertEqual((2, {('current', 'active')}, 'error'), (
            len(rows := self.moves.rows(self.instance)['one']), {row[1:] for row in rows}, self.migration.status))

    def test_devices_that_no_start_was_recorded_for_are_active_after_it(self):
        instance = fixtures.Instance(host='one')
        self.moves.instances.append(instance)
        self.one.delete_guest(self.instance.uuid)
        self.one.delete(self.instance)
        self.one.claim(instance, pmem=1)
        [before] = self.one.records(instance)
        self.one.resize(instance, pmem=1, migration=self.moves.migration(instance, 'one'))
        self.one.boot(instance)
        self.assertIn((before.identifier, 'current', 'active'), self.moves.rows(instance)['one'])
