"""Calls and answers about a migration that is long over, while the instance makes another move."""

from __future__ import annotations

from typing import Any

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

    def test_with_the_object_of_that_time_it_takes_nothing_from_an_instance_that_is_back(self) -> None:
        self.check_nothing_changes(self.then, 'current')

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
