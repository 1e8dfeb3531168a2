"""Calls and answers about a migration that is long over, while the instance makes another move."""

from __future__ import annotations

import types
from typing import Any

from devicetrack import exception
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use
from devicetrack.testing import compute_service
from devicetrack.testing.fixtures import a_request
from devicetrack.testing.fixtures import Instance
from devicetrack.tests.unit.claims.test_moving import RegionTestCase


class LateCallTestCase(RegionTestCase):
    """A call at the source for a migration that is long over: it is repeated, or comes late."""

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.region()
        self.instance = self.moves.spawn('one', pmem=1)
        self.first = self.moves.resize(self.instance, 'two', pmem=1)
        self.then = Instance(self.instance.uuid, host='two')
        self.moves.confirm(self.instance, self.first)
        self.moves.audit()
        self.moves.confirm(self.instance, self.moves.resize(self.instance, 'one', pmem=1))
        self.moves.audit()
        [self.device] = self.one.records(self.instance)
        self.one.machine.write(self.device.key, b'precious')

    def check_nothing_changes(self, instance: Instance, role: str) -> None:
        for _ in range(2):
            self.one.manager.drop_move_claim_at_source(None, instance, self.first)
            self.assertEqual([(self.device.identifier, role, 'active')], self.moves.rows(self.instance)['one'])
        self.moves.audit()
        self.assertEqual(b'precious', self.one.machine.read(self.device.key))

    def tell_only_what_is_asked(self) -> None:
        """The source tells of no other migration but those away from here, so not of the one back."""
        service = self.one.service
        self.patch(service, 'migrations', lambda uuids: compute_service.View.migrations(service, uuids))

    def test_with_the_object_of_that_time_it_takes_nothing_from_an_instance_that_is_back(self) -> None:
        self.check_nothing_changes(self.then, 'current')

    def test_nor_while_the_service_does_not_say_where_the_instance_is(self) -> None:
        self.tell_only_what_is_asked()
        silences: tuple[Any, ...] = (RuntimeError('no database'), [])
        for self.one.service.known in silences:
            self.check_nothing_changes(self.then, 'current')
        self.one.machine.stop_guest(self.instance.uuid)
        self.one.boot(self.instance)
        self.assertEqual(b'precious', self.one.machine.read(self.device.key))

    def test_nor_from_a_new_claim_of_an_instance_that_has_no_host_yet(self) -> None:
        self.moves.delete(self.instance)
        self.moves.audit()
        self.instance.state, self.instance.host = 'building', None
        claim = self.one.claim(self.instance, pmem=1)
        self.tell_only_what_is_asked()
        self.one.manager.realize(None, self.instance)
        self.one.manager.drop_move_claim_at_source(None, self.then, self.first)
        self.assertEqual([('current', 'claimed')], [row[1:] for row in self.moves.rows(self.instance)['one']])
        claim.abort()

    def test_what_a_newer_migration_leaves_stays_for_its_revert(self) -> None:
        third = self.moves.resize(self.instance, 'two', pmem=1)
        self.one.audit()
        self.check_nothing_changes(self.instance, 'old')
        self.moves.revert(self.instance, third)
        self.assertEqual([(self.device.identifier, 'current', 'active')], self.moves.rows(self.instance)['one'])

    def test_also_while_the_rows_do_not_know_the_newer_migration(self) -> None:
        third = self.moves.migration(self.instance, 'two')
        self.instance.host, third.status = 'two', 'post-migrating'
        self.one.machine.stop_guest(self.instance.uuid)
        self.one.manager.drop_move_claim_at_source(None, self.instance, self.first)
        self.assertEqual([(self.device.identifier, 'current', 'active')], self.moves.rows(self.instance)['one'])

    def test_also_while_the_service_cannot_tell(self) -> None:
        self.moves.resize(self.instance, 'two', pmem=1)
        self.one.audit()
        self.one.service.moves = RuntimeError('no database')
        self.check_nothing_changes(self.instance, 'old')


class ConfirmedInSilenceTestCase(RegionTestCase):
    """The first call that names a migration at its source is the one that confirms it."""

    def confirmed(self, silence: Any) -> tuple[Any, Instance]:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        migration = moves.resize(instance, 'two', pmem=1)
        self.one.service.known = silence
        moves.confirm(instance, migration)
        return moves, instance

    def test_an_audit_gives_the_devices_back_when_the_service_answers_again(self) -> None:
        silences: tuple[Any, ...] = (RuntimeError('no database'), [])
        for silence in silences:
            moves, instance = self.confirmed(silence)
            self.assertEqual([('d0', 'current', 'active')], moves.rows(instance)['one'])
            self.one.service.known = None
            moves.audit()
            self.assertEqual([], moves.rows(instance)['one'])

    def test_the_devices_go_back_if_the_service_does_not_know_the_instance(self) -> None:
        moves, instance = self.confirmed({})
        self.assertEqual([], moves.rows(instance)['one'])

    def test_without_migrations_no_audit_could_so_the_call_is_refused_until_the_service_answers(self) -> None:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        migration = moves.resize(instance, 'two', pmem=1)
        states: dict[str, str] = {}
        vars(self.one.running.service)['_service'] = types.SimpleNamespace(instances=lambda uuids: states or None)
        self.assertRaises(exception.DepartureUnknown, moves.confirm, instance, migration)
        self.assertEqual([('d0', 'current', 'active')], moves.rows(instance)['one'])
        states[instance.uuid] = 'elsewhere'
        moves.confirm(instance, migration)
        self.assertEqual([], moves.rows(instance)['one'])
        self.one.manager.drop_move_claim_at_source(None, instance, migration)

    def test_a_source_that_knows_of_the_migration_needs_no_answer_for_that(self) -> None:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        migration = moves.resize(instance, 'two', pmem=1)
        self.one.manager.update_usage(None, instance, 'one')
        vars(self.one.running.service)['_service'] = types.SimpleNamespace(instances=lambda uuids: None)
        moves.confirm(instance, migration)
        self.assertEqual([], moves.rows(instance)['one'])

    def test_or_tells_of_no_instances_at_all(self) -> None:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        migration = moves.resize(instance, 'two', pmem=1)
        told = self.one.service
        vars(self.one.running.service)['_service'] = types.SimpleNamespace(migrations=told.migrations)
        moves.confirm(instance, migration)
        self.assertEqual([], moves.rows(instance)['one'])


class LateDropTestCase(RegionTestCase):
    """A late call ends a migration without naming it, and the rows are those of the instance's next migration."""

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.region()
        self.instance = self.moves.spawn('one', pmem=1)
        first = self.moves.migration(self.instance, 'two', compute_service.LIVE_MIGRATION)
        self.two.resize(self.instance, pmem=1, migration=first)
        first.status = 'failed'
        self.second = self.moves.migration(self.instance, 'two', compute_service.LIVE_MIGRATION)
        self.two.resize(self.instance, pmem=1, migration=self.second)
        self.instance.migration_context = None
        [self.device] = self.two.records(self.instance)

    def check_refused(self, status: str, *prefixes: str) -> None:
        for prefix in prefixes or ('new_', 'old_'):
            error = self.assertRaises(exception.BadRequest, self.two.manager.drop_move_claim, None, self.instance,
                                      'two', prefix=prefix)
            self.assertIn(f'{self.second.uuid} is {status}', str(error))
            self.assertEqual([self.device], self.two.records(self.instance))

    def test_it_does_not_end_one_that_goes_on(self) -> None:
        for status in ('running', 'finished', 'confirming'):
            self.second.status = status
            self.check_refused(status)

    def test_nor_one_of_which_the_service_tells_nothing(self) -> None:
        self.second.status = 'of another release'
        self.check_refused('of another release')
        self.two.service.moves = RuntimeError('no database')
        self.check_refused('unknown')

    def test_nor_one_that_ends_in_the_other_way(self) -> None:
        for status, prefix in (('reverting', 'old_'), ('failed', 'old_'), ('confirmed', 'new_')):
            self.second.status = status
            self.check_refused(status, prefix)

    def test_one_that_is_undone_or_reverts_is_ended(self) -> None:
        for status in ('failed', 'reverting'):
            moves = self.region()
            instance = moves.spawn('one', pmem=1)
            moves.resize(instance, 'two', pmem=1).status = status
            self.two.machine.delete_guest(instance.uuid)
            instance.migration_context = None
            self.two.manager.drop_move_claim(None, instance, 'two')
            self.assertEqual([], moves.rows(instance)['two'], status)

    def test_the_source_of_one_that_reverts_keeps_its_devices(self) -> None:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        [device] = self.one.records(instance)
        self.one.machine.write(device.key, b'the only copy')
        migration = moves.resize(instance, 'two', pmem=1)
        self.one.audit()
        self.one.machine.delete_guest(instance.uuid)
        migration.status, instance.migration_context = 'reverting', None
        self.assertRaises(exception.BadRequest, self.one.manager.drop_move_claim, None, instance, 'one', prefix='old_')
        self.assertEqual(([('d0', 'old', 'active')], b'the only copy'), (
            moves.rows(instance)['one'], self.one.machine.read(device.key)))


class UndoneTestCase(RegionTestCase):
    """A call that confirms a move, of which the service says that it was undone."""

    def test_the_source_keeps_its_devices(self) -> None:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        self.one.machine.write(self.one.records(instance)[0].key, b'the only copy')
        migration = moves.resize(instance, 'two', pmem=1)
        self.one.audit()
        self.one.machine.delete_guest(instance.uuid)
        for status in ('reverted', 'cancelled', 'failed', 'error'):
            migration.status = status
            error = self.assertRaises(exception.BadRequest, self.one.manager.drop_move_claim_at_source, None, instance,
                                      migration)
            self.assertIn(f'it is {status}', str(error))
            self.assertRaises(exception.BadRequest, self.one.manager.drop_move_claim, None, instance, 'one',
                              prefix='old_')
        self.assertEqual(([('d0', 'old', 'active')], b'the only copy'), (
            moves.rows(instance)['one'], self.one.machine.read(self.one.records(instance)[0].key)))


class LateDefinitionsTestCase(RegionTestCase):
    """The source asks for the definitions of a migration whose devices another instance may have by now."""

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.region()
        self.instance = self.moves.spawn('one', pmem=1)
        check = self.moves.check(self.instance, 'two')
        self.migration = self.moves.migration(self.instance, 'two', compute_service.LIVE_MIGRATION)
        self.map = self.two.prepare_live_migration(self.instance, self.migration, a_request(pmem=1), check)

    def refused(self, kind: type[exception.DeviceTrackError]) -> exception.DeviceTrackError:
        error: exception.DeviceTrackError = self.assertRaises(
            kind, self.one.manager.migration_definitions, None, self.instance, self.migration, self.map)
        self.assertEqual([('d0', 'current', 'active')], self.moves.rows(self.instance)['one'])
        return error

    def test_it_was_rolled_back(self) -> None:
        self.migration.status = 'failed'
        self.two.manager.drop_move_claim_at_dest(None, self.instance, self.migration)
        self.assertIn('it is failed', str(self.refused(exception.BadRequest)))

    def test_a_newer_one_takes_the_instance_away(self) -> None:
        newer = self.moves.migration(self.instance, 'two', compute_service.LIVE_MIGRATION)
        error = self.refused(exception.MigrationSuperseded)
        self.assertEqual(newer.uuid, vars(error)['newer_uuid'])
        newer.status = 'failed'
        self.one.manager.migration_definitions(None, self.instance, self.migration, self.map)


class UnreadableGuestTestCase(RegionTestCase):
    """Nobody can read which devices a guest has, for one audit in the middle of a move."""

    def unread(self, host: Any, instance: Instance) -> None:
        host.machine.unknown_domains[instance.uuid] = 'no document'
        host.audit()
        host.machine.unknown_domains.clear()

    def test_after_a_failed_move_its_devices_stay(self) -> None:
        for status in ('failed', 'error', 'reverted', 'cancelled'):
            moves = self.region()
            instance = moves.spawn('one', pmem=1)
            migration = moves.migration(instance, 'one')
            self.one.resize(instance, pmem=1, migration=migration)
            moves.finish_resize(instance, migration)
            before = moves.rows(instance)
            migration.status = status
            self.unread(self.one, instance)
            self.assertEqual(before, moves.rows(instance), status)

    def test_a_move_on_one_host_that_was_undone_ends_while_another_guest_cannot_be_read(self) -> None:
        for status in ('reverted', 'error'):
            moves, instance, migration = self.before_the_start()
            self.one.machine.unknown_domains[moves.spawn('one').uuid] = 'no document'
            migration.status = status
            self.one.manager.realize(None, instance)
            self.assertIn(('d0', 'current', 'active'), moves.rows(instance)['one'])

    def test_a_guest_starts_on_neither_while_nobody_can_read_which_devices_it_has(self) -> None:
        moves, instance, migration = self.before_the_start()
        migration.status = 'reverted'
        self.one.machine.unknown_domains[instance.uuid] = 'no document'
        before = moves.rows(instance)
        self.assertRaises(exception.MigrationUndecided, self.one.manager.realize, None, instance)
        self.assertEqual(before, moves.rows(instance))
        self.one.machine.unknown_domains.clear()
        self.one.manager.realize(None, instance)
        self.assertIn(('d0', 'current', 'active'), moves.rows(instance)['one'])

    def before_the_start(self) -> tuple[Any, Instance, Any]:
        """A guest that was stopped for a move on its host, and has not started yet."""
        moves = self.region(devices=2)
        instance = moves.spawn('one', pmem=1)
        migration = moves.migration(instance, 'one')
        self.one.resize(instance, pmem=1, migration=migration)
        self.one.machine.stop_guest(instance.uuid)
        return moves, instance, migration

    def test_what_only_a_snapshot_names_is_left_and_stays_in_use(self) -> None:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        migration = moves.migration(instance, 'one')
        self.one.resize(instance, pmem=1, migration=migration)
        moves.finish_resize(instance, migration)
        plain = self.one.machine.usage

        def with_snapshot(*arguments: Any, **named: Any) -> Usage:
            usage: Usage = plain(*arguments, **named)
            return usage._replace(uses=[*usage.uses, Use('vpmem', 'd0', '', instance.uuid, False, False, False)])

        self.patch(self.one.machine, 'usage', with_snapshot)
        migration.status = 'confirmed'
        self.one.audit()
        self.assertIn(('d0', 'old', 'releasing'), moves.rows(instance)['one'])

    def test_after_a_move_that_a_newer_one_replaced_its_devices_stay(self) -> None:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        moves.live_migration(instance, 'two', pmem=1).status = 'running'
        moves.migration(instance, 'two', compute_service.LIVE_MIGRATION)
        before = moves.rows(instance)
        self.unread(self.two, instance)
        self.assertEqual(before, moves.rows(instance))

    def test_a_claim_for_a_newer_move_waits_until_the_guest_has_left(self) -> None:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        older = moves.live_migration(instance, 'two', pmem=1)
        older.status = 'running'
        before = moves.rows(instance)
        newer = moves.migration(instance, 'two', compute_service.LIVE_MIGRATION)
        for unknown in ({}, {instance.uuid: 'no document'}):
            self.two.machine.unknown_domains.update(unknown)
            self.assertRaises(exception.InstanceHasStaleRows, self.two.resize, instance, 1, 0, newer)
            self.assertEqual((before, 'running'), (moves.rows(instance), older.status))


class OldEvacuationTestCase(RegionTestCase):
    """The service still names an evacuation of an instance that came back, and leaves again."""

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.region()
        self.instance = self.moves.spawn('one', pmem=1)
        self.one.manager.close()
        self.moves.evacuate(self.instance, 'two', pmem=1)
        self.one.restart()
        self.moves.confirm(self.instance, self.moves.resize(self.instance, 'one', pmem=1))
        self.moves.audit()
        # Only the process that made a claim knows that the instance is back.
        self.one.restart()
        [self.device] = self.one.records(self.instance)
        self.one.machine.write(self.device.key, b'secret')

    def check_nothing_is_lost(self, role: str) -> None:
        for begin_again in (self.one.audit, self.one.restart, self.one.audit):
            begin_again()
            self.assertEqual([(self.device.identifier, role, 'active')], self.moves.rows(self.instance)['one'])
            self.assertEqual(b'secret', self.one.machine.read(self.device.key))
            self.assertIn(self.instance.uuid, self.one.machine.domains)

    def test_a_resize_that_waits_for_its_user_can_be_reverted(self) -> None:
        migration = self.moves.resize(self.instance, 'two', pmem=1)
        self.check_nothing_is_lost('old')
        self.moves.revert(self.instance, migration)
        self.assertEqual([(self.device.identifier, 'current', 'active')], self.moves.rows(self.instance)['one'])
        self.assertEqual(b'secret', self.one.machine.read(self.device.key))
        self.assertEqual([], self.moves.audit())

    def test_a_resize_that_is_confirmed_leaves_nothing(self) -> None:
        self.moves.confirm(self.instance, self.moves.resize(self.instance, 'two', pmem=1))
        self.moves.audit()
        self.assertEqual([], self.moves.rows(self.instance)['one'])
        self.assertNotIn(self.instance.uuid, self.one.machine.domains)

    def test_the_rows_do_not_know_yet_that_it_leaves(self) -> None:
        migration = self.moves.migration(self.instance, 'two')
        self.instance.host, migration.status = 'two', 'post-migrating'
        self.one.service.known = {self.instance.uuid: 'elsewhere'}
        self.check_nothing_is_lost('current')

    def test_the_service_cannot_tell_its_migrations(self) -> None:
        migration = self.moves.resize(self.instance, 'two', pmem=1)
        self.one.audit()
        self.one.service.moves = RuntimeError('no database')
        self.check_nothing_is_lost('old')
        self.one.service.moves = []
        self.check_nothing_is_lost('old')
        self.one.service.moves = [migration]
        self.check_nothing_is_lost('old')

    def test_nobody_knows_where_an_error_left_it(self) -> None:
        migration = self.moves.resize(self.instance, 'two', pmem=1)
        for status, role in (('error', 'current'), ('finished', 'old'), ('error', 'old')):
            migration.status = status
            self.one.audit()
            self.check_nothing_is_lost(role)

    def test_an_evacuation_after_a_move_that_never_ended_counts(self) -> None:
        self.moves.resize(self.instance, 'two', pmem=1).status = 'migrating'
        self.instance.host = 'one'
        self.two.machine.delete_guest(self.instance.uuid)
        self.moves.audit()
        self.one.manager.close()
        evacuation = self.moves.migration(self.instance, 'two', 'evacuation')
        evacuation.status, self.instance.host = 'done', 'two'
        self.one.restart()
        self.one.audit()
        self.assertEqual([], self.moves.rows(self.instance)['one'])
        self.assertNotIn(self.instance.uuid, self.one.machine.domains)


class ShutOffTestCase(RegionTestCase):
    """A move failed, or so the service says, after its guest had come; then its owner shut it off."""

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.region()
        self.instance = self.moves.spawn('one', pmem=1)
        self.migration = self.moves.resize(self.instance, 'two', pmem=1)
        self.two.machine.stop_guest(self.instance.uuid)

    def test_its_devices_stay_while_nobody_says_where_the_instance_is(self) -> None:
        for status in ('error', 'failed', 'reverted'):
            self.migration.status = status
            answers: tuple[Any, ...] = (None, RuntimeError('no database'), {})
            for answer in answers:
                self.two.service.known = answer
                for begin_again in (self.two.audit, self.two.restart):
                    begin_again()
                    self.assertEqual([('current', 'active')],
                                     [row[1:] for row in self.moves.rows(self.instance)['two']], f'{status} {answer}')

    def test_after_an_error_they_stay_also_without_a_domain(self) -> None:
        self.migration.status = 'error'
        self.two.service.known = None
        self.two.machine.delete_guest(self.instance.uuid)       # as a hard reboot does, which defines it anew
        self.two.audit()
        self.assertEqual([('current', 'active')], [row[1:] for row in self.moves.rows(self.instance)['two']])
        self.two.service.known = {self.instance.uuid: 'elsewhere'}
        self.two.audit()
        self.assertEqual([], self.moves.rows(self.instance)['two'])
