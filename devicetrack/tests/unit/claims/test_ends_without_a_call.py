"""Moves whose end no call told this host: the next call does for the instance what the next audit would."""

from __future__ import annotations

from typing import Any

from devicetrack import exception
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.claims.test_moving import RegionTestCase


class LeftForGoodTestCase(RegionTestCase):
    """An instance was resized on its host to no devices; that was confirmed, and the call was lost."""

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.region(devices=2)
        self.instance = self.moves.spawn('one', pmem=1)
        self.first = self.moves.resize(self.instance, 'one')
        self.first.status, self.instance.migration_context = 'confirmed', None

    def test_a_device_is_not_its_own_again_after_a_later_move_that_was_reverted(self) -> None:
        for names in (self.one.manager.update_usage, None):
            move = self.moves.migration(self.instance, 'two')
            self.two.resize(self.instance, migration=move)
            if names is not None:
                names(None, self.instance, 'one')
            self.moves.finish_resize(self.instance, move)
            self.moves.revert(self.instance, move)
            self.assertEqual((), self.one.machine.domains[self.instance.uuid].live)
            self.moves.audit()
            self.assertEqual(([], FREE), (self.moves.rows(self.instance)['one'], self.one.states()['d0']))
            self.assertEqual([], self.moves.audit())

    def test_nor_if_what_the_guest_has_cannot_be_read_when_it_leaves(self) -> None:
        move = self.moves.migration(self.instance, 'two')
        self.two.resize(self.instance, migration=move)
        self.one.machine.unknown_domains[self.instance.uuid] = 'no answer'
        self.one.manager.update_usage(None, self.instance, 'one')
        self.assertEqual([(self.first.uuid, 'old')], [(row.migration_uuid, row.role) for row in self.one.records()])
        self.one.machine.unknown_domains.clear()
        move.status = 'error'
        self.moves.audit()
        self.assertEqual([], self.moves.rows(self.instance)['one'])

    def test_the_source_of_a_live_migration_declares_no_device(self) -> None:
        self.assertEqual([], self.one.check_source(self.instance, None).devices)
        move = self.moves.live_migrate(self.instance, 'two')
        self.assertEqual('completed', move.status)
        self.moves.audit()
        self.assertEqual([], self.moves.rows(self.instance)['one'])

    def test_but_the_one_that_it_has_again_after_a_revert(self) -> None:
        self.first.status = 'reverted'
        self.assertEqual(['d0'], [one.identifier for one in self.one.check_source(self.instance, None).devices or ()])


class BeforeMoveTestCase(RegionTestCase):

    def test_a_resize_to_no_devices_that_is_booted_back_leaves_no_context(self) -> None:
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'one')
        self.one.resize(instance, migration=migration)
        self.one.machine.stop_guest(instance.uuid)
        self.one.boot(instance)
        self.assertEqual([], self.one.store.contexts(self.one.manager.state().host_uuid))
        migration.status = 'error'
        self.assertEqual([], region.audit())
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])


class LateConfirmTestCase(RegionTestCase):

    def test_the_service_says_where_the_instance_is_and_not_the_callers_object(self) -> None:
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'two', pmem=1)
        self.one.delete_guest(instance.uuid)
        migration.status = 'confirmed'
        of_that_time = Instance(instance.uuid, host='one')
        silences: tuple[Any, ...] = (RuntimeError('no database'), {}, {instance.uuid: 'here'})
        for self.one.service.known in silences:
            self.one.manager.drop_move_claim_at_source(None, of_that_time, migration)
            self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])
        self.one.service.known = None
        self.one.manager.drop_move_claim_at_source(None, of_that_time, migration)
        self.assertEqual([], region.rows(instance)['one'])


class DefinedAtTheSourceTestCase(RegionTestCase):
    """A resize to another host was confirmed, and the service ended before it removed the guest at the source."""

    def setUp(self) -> None:
        super().setUp()
        self.moves = self.region(devices=2)
        self.instance = self.moves.spawn('one', pmem=1)
        self.move = self.moves.resize(self.instance, 'two', pmem=1)
        self.one.manager.update_usage(None, self.instance, 'one')
        self.move.status = 'confirmed'

    def runs(self) -> None:
        domain = self.one.machine.domains[self.instance.uuid]
        domain.live = domain.defined

    def is_left_alone(self) -> None:
        rows = self.moves.rows(self.instance)
        for _ in range(2):
            self.one.audit()
        self.assertEqual(rows['one'], self.moves.rows(self.instance)['one'])
        self.assertIn(self.instance.uuid, self.one.machine.domains)

    def test_an_audit_removes_the_guest_and_gives_the_devices_back(self) -> None:
        self.one.audit()
        self.assertNotIn(self.instance.uuid, self.one.machine.domains)
        self.assertEqual(([], []), (self.moves.audit(), self.moves.rows(self.instance)['one']))
        self.assertEqual(2, self.one.free())

    def test_not_one_that_runs(self) -> None:
        self.runs()
        self.is_left_alone()

    def test_nor_one_that_was_started_after_the_looks(self) -> None:
        self.one.machine.before('destroy_guest', self.runs)
        self.is_left_alone()

    def test_nor_while_the_service_does_not_say_that_the_instance_left_for_good(self) -> None:
        for self.move.status in ('finished', 'confirming', 'error', 'reverted', 'another'):
            self.is_left_alone()
        self.move.status = 'confirmed'
        for known in ({self.instance.uuid: 'here'}, {}, RuntimeError('no database')):
            self.one.service.known = known
            self.is_left_alone()
        self.one.service.known = None
        another = self.moves.migration(self.instance, 'two')
        another.source_compute = 'one'
        self.is_left_alone()


class ComesBackTestCase(RegionTestCase):
    """An instance is unshelved on a host that has not heard of the end of its move away from there."""

    def test_a_claim_without_a_move_ends_it(self) -> None:
        for pmem in (1, 0):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=1)
            migration = region.migration(instance, 'two')
            self.two.resize(instance, pmem=1, migration=migration)
            self.one.manager.update_usage(None, instance, 'one')
            region.finish_resize(instance, migration)
            self.one.delete_guest(instance.uuid)
            migration.status = 'confirmed'
            region.delete(instance)
            instance.state, instance.host, instance.migration_context = 'building', None, None
            self.one.spawn(instance, pmem=pmem)
            self.one.wait()
            region.audit()
            self.assertEqual(pmem, len(region.rows(instance)['one']))
            self.assertEqual(2 - pmem, self.one.free())

    def test_one_that_is_not_over_still_refuses_it(self) -> None:
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        region.resize(instance, 'two', pmem=1)
        rows = region.rows(instance)
        for pmem in (1, 0):
            self.assertRaises(exception.InstanceHasClaim, self.one.claim, instance, pmem=pmem)
        self.assertEqual(rows, region.rows(instance))


class TakenOffTestCase(base.TestCase):
    """Devices that are being released are not the instance's any more."""

    def test_after_a_release_that_waits_for_the_guest(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        instance = host.spawn(pmem=1)
        self.assertRaises(exception.DeviceInUse, host.manager.release, None, instance)
        self.assertIsNone(instance.resources)

    def test_after_an_abort_that_waits_for_the_guest(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2))
        for by_id in (True, False):
            instance = Instance()
            claim = host.claim(instance, pmem=1)
            host.boot(instance)
            if by_id:
                self.assertRaises(exception.DeviceInUse, host.manager.abort_instance_claim, None, instance,
                                  claim.claim_id)
            else:
                self.assertRaises(exception.DeviceInUse, claim.abort)
            self.assertIsNone(instance.resources)
            host.machine.delete_guest(instance.uuid)
            host.audit()
            self.assertEqual(2, host.free())

    def test_a_release_that_the_store_refuses_changes_nothing(self) -> None:
        host = self.useFixture(fixtures.Host(devices=1))
        instance = host.spawn(pmem=1)
        host.machine.delete_guest(instance.uuid)
        before = instance.resources
        host.store.before('write', exception.StoreUnavailable('store', 'full'))
        self.assertRaises(exception.StoreUnavailable, host.manager.release, None, instance)
        self.assertEqual(before, instance.resources)
