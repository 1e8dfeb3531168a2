"""All that an instance has on a host is being released: its guest starts there if it is to have no devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devicetrack import exception
from devicetrack.testing import compute_service
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests.unit.claims.test_moving import NOTHING
from devicetrack.tests.unit.claims.test_moving import RegionTestCase

BAD_BLOCK = exception.UnclaimFailed('vpmem', 'd0', 'a bad block')


class ComesWithoutDevicesTestCase(RegionTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.begin()

    def begin(self) -> None:
        self.moves = self.region()
        self.instance = self.moves.spawn('one', pmem=1)
        self.one.machine.before('wipe', BAD_BLOCK)

    # How the instance leaves host one, and what that leaves there.

    def offloaded(self) -> str:
        self.one.delete_guest(self.instance.uuid)
        self.assertRaises(exception.UnclaimFailed, self.one.manager.release, None, self.instance)
        self.instance.state, self.instance.host = compute_service.OFFLOADED, None
        return 'current'

    def moved(self) -> str:
        migration = self.moves.resize(self.instance, 'two')
        self.assertRaises(exception.UnclaimFailed, self.moves.confirm, self.instance, migration)
        return 'old'

    def evacuated(self) -> str:
        self.one.manager.close()
        self.moves.evacuate(self.instance, 'two')
        self.one.restart()
        return 'current'

    def refused_as_destination(self) -> str:
        """It never was on host one in this life, and a claim for it there could not be given back."""
        self.one.machine.clear()
        self.moves.confirm(self.instance, self.moves.resize(self.instance, 'two', pmem=1))
        self.moves.audit()
        migration = self.moves.migration(self.instance, 'one')
        self.one.resize(self.instance, pmem=1, migration=migration)
        self.one.manager.realize(None, self.instance)
        self.one.machine.before('wipe', BAD_BLOCK)
        self.assertRaises(exception.UnclaimFailed, self.one.manager.drop_move_claim_at_dest, None, self.instance,
                          migration)
        migration.status = 'error'
        self.moves.confirm(self.instance, self.moves.resize(self.instance, 'two'))
        self.moves.audit()
        return 'incoming'

    def check_left(self, role: str) -> None:
        self.assertEqual([(role, 'releasing')], [row[1:] for row in self.moves.rows(self.instance)['one']])
        self.assertRaises(exception.InstanceNotClaimed, self.one.manager.realize, None, self.instance)

    def check_runs(self) -> None:
        """Its guest starts and starts again, also after a restart, and the device goes back as soon as it can."""
        self.instance.host, self.instance.state = 'one', compute_service.ACTIVE
        for again in (self.one.audit, self.one.restart, self.one.audit):
            self.one.hard_reboot(self.instance)
            self.assertEqual((), self.one.machine.domains[self.instance.uuid].live)
            self.assertEqual([('old', 'releasing')], [row[1:] for row in self.moves.rows(self.instance)['one']])
            again()
        silences: tuple[Any, ...] = (None, RuntimeError('no database'))
        for self.one.service.moves in silences:
            self.one.hard_reboot(self.instance)
        self.one.service.moves = self.moves.migrations
        self.one.machine.clear()
        self.one.restart()
        self.moves.audit()
        self.assertEqual((NOTHING, FREE), (self.moves.rows(self.instance), self.one.states()['d0']))
        self.assertEqual([], self.moves.audit())

    def test_by_a_boot(self) -> None:
        self.check_left(self.offloaded())
        self.instance.state, self.instance.host = compute_service.BUILDING, 'one'
        with self.one.claim(self.instance):
            self.one.boot(self.instance)
        self.check_runs()

    def test_by_a_cold_migration(self) -> None:
        for leaves in (self.moved, self.evacuated):
            self.check_left(leaves())
            self.moves.confirm(self.instance, self.moves.resize(self.instance, 'one'))
            self.check_runs()
            self.begin()

    def test_by_a_cold_migration_to_a_host_that_could_not_end_another_one(self) -> None:
        self.check_left(self.refused_as_destination())
        self.moves.confirm(self.instance, self.moves.resize(self.instance, 'one'))
        self.check_runs()

    def test_by_a_live_migration(self) -> None:
        self.check_left(self.moved())
        self.moves.live_migrate(self.instance, 'one')
        self.moves.audit()
        self.check_runs()

    def test_by_a_resize_on_the_host_after_it_came_back_with_others(self) -> None:
        for leaves in (self.offloaded, self.moved):
            self.check_left(leaves())
            if leaves == self.moved:
                self.moves.confirm(self.instance, self.moves.resize(self.instance, 'one', pmem=1))
            else:
                self.one.spawn(self.instance, pmem=1)
            migration = self.moves.resize(self.instance, 'one')
            self.one.wait()                     # for the tries that these starts began
            self.one.machine.clear()            # only the first device cannot be wiped
            self.moves.confirm(self.instance, migration)
            self.one.machine.before('wipe', BAD_BLOCK)
            self.check_runs()
            self.begin()

    def test_by_an_evacuation(self) -> None:
        self.check_left(self.moved())
        self.two.manager.close()
        self.moves.evacuate(self.instance, 'one')
        self.two.restart()
        self.check_runs()


class LeftTestCase(RegionTestCase):
    """All that an instance has here was left by a move from here, and is being released."""

    def left(self, to: str = 'two') -> tuple[Any, Instance, Any]:
        moves = self.region()
        instance = moves.spawn('one', pmem=1)
        migration = moves.migration(instance, to)
        moves.hosts[to].resize(instance, pmem=int(to == 'two'), migration=migration)
        moves.finish_resize(instance, migration)
        self.one.machine.before('wipe', BAD_BLOCK)
        return moves, instance, migration

    def test_no_guest_starts_without_them(self) -> None:
        moves, instance, migration = self.left()
        self.assertRaises(exception.UnclaimFailed, moves.confirm, instance, migration)
        instance.host = 'one'
        answers: tuple[Any, ...] = (moves.migrations, None, [])
        for self.one.service.moves in answers:
            self.assertRaises(exception.InstanceNotClaimed, self.one.manager.realize, None, instance)
            self.assertRaises(exception.InvalidTransition, self.one.manager.started, None, instance)
        self.assertEqual([('d0', 'old', 'releasing')], moves.rows(instance)['one'])

    def test_one_that_moved_here_to_a_flavor_without_devices_starts(self) -> None:
        moves, instance, migration = self.left('one')
        self.assertRaises(exception.UnclaimFailed, moves.confirm, instance, migration)
        self.assertEqual([('d0', 'old', 'releasing')], moves.rows(instance)['one'])
        self.one.hard_reboot(instance)
        self.one.service.moves = None
        self.assertRaises(exception.InstanceNotClaimed, self.one.manager.realize, None, instance)
        vars(self.one.running.service)['_service'] = None
        self.one.hard_reboot(instance)


class TakesNothingElseTestCase(RegionTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.region(devices=3)
        self.instance = self.moves.spawn('one', pmem=1)

    def leave_one_back(self) -> None:
        self.one.machine.before('wipe', BAD_BLOCK)
        self.one.delete_guest(self.instance.uuid)
        self.assertRaises(exception.UnclaimFailed, self.one.manager.release, None, self.instance)

    def test_while_it_has_devices_no_claim_says_that_it_has_none(self) -> None:
        """Its guest would start on them."""
        rows = self.one.records()
        error = self.assertRaises(exception.InstanceHasClaim, self.one.claim, self.instance)
        self.assertEqual(([row.key for row in rows], rows), (list(error.held), self.one.records()))

    def test_devices_that_it_claims_later_are_missed_when_they_go_back(self) -> None:
        self.leave_one_back()
        self.one.claim(self.instance)
        with self.one.claim(self.instance, pmem=1):
            self.one.boot(self.instance)
        self.one.delete_guest(self.instance.uuid)
        self.assertRaises(exception.UnclaimFailed, self.one.manager.release, None, self.instance)
        self.assertRaises(exception.InstanceNotClaimed, self.one.manager.realize, None, self.instance)

    def test_a_resize_on_one_host_says_nothing_about_devices_that_it_should_still_have(self) -> None:
        self.leave_one_back()
        self.one.resize(self.instance, migration=self.moves.migration(self.instance, 'one'))
        self.assertRaises(exception.InstanceNotClaimed, self.one.manager.realize, None, self.instance, True)

    def test_an_error_of_the_store_is_that_of_the_claim(self) -> None:
        self.leave_one_back()
        claims: tuple[Callable[[], Any], ...] = (
            lambda: self.one.claim(self.instance),
            lambda: self.one.resize(self.instance, migration=self.moves.migration(Instance(
                self.instance.uuid, host='two'), 'one')))
        for claim in claims:
            self.one.store.before('write', exception.StoreUnavailable('store', 'gone'))
            self.assertRaises(exception.StoreUnavailable, claim)
            self.assertEqual(['current'], [record.role for record in self.one.records()])

    def test_a_wipe_that_waits_or_runs_meanwhile_is_done_by_an_audit(self) -> None:
        self.one.delete_guest(self.instance.uuid)
        self.one.machine.before('wipe', lambda: self.one.claim(self.instance), times=1)
        self.one.manager.release(None, self.instance, wait=False)
        self.one.wait()
        self.one.audit()
        self.assertEqual((NOTHING, FREE), (self.moves.rows(self.instance), self.one.states()['d0']))

    def test_its_history_says_only_when_it_was_given_up_and_wiped(self) -> None:
        self.leave_one_back()
        self.one.claim(self.instance)
        self.one.machine.clear()
        self.one.restart()
        self.assertEqual(['claimed', 'realized', 'started', 'released', 'wiped'], [
            event.event for _number, event in self.one.store.events_of_instance(self.instance.uuid)
            if event.instance_uuid is not None and event.event not in ('withheld', 'admitted')])
