"""A store that shows less than it had confirmed: the manager knows better, frees nothing, and can write it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import repairs
from devicetrack.engine import findings
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import HELD
from devicetrack.testing.fixtures import Host
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.model.world import Database
from devicetrack.tests.unit.claims.test_moving import RegionTestCase


def past(test: Any, host: Host) -> Callable[[], None]:
    """Return a function that takes a host's store back to the present moment."""
    store: Any = host.store.store
    database = Database(str(store.path))
    test.addCleanup(database.close)
    rows = database.rows()
    return lambda: database.restore(rows)


def lost(found: list[Any]) -> list[tuple[str, str, str | None]]:
    return [(one.device.identifier, one.severity, one.repair) for one in found if one.kind == findings.ROW_LOST]


def write_again(host: Host) -> None:
    """What ``audit --repair --accept`` has the manager do."""
    plan = host.running.repairs.plan(repairs.Accepted(rows=True))
    errors = [outcome.error for outcome in host.running.repairs.repair(plan.repairs) if outcome.error is not None]
    assert not errors, errors


class LostRowTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host, self.instance = self.useFixture(fixtures.Host(devices=3)), Instance()

    def assert_missing(self, *calls: Callable[..., Any], instance: Instance | None = None) -> None:
        manager = self.host.manager
        for call in calls or (manager.realize, manager.started, manager.release, manager.rebooted):
            self.assertRaises(exception.RowsMissing, call, None, instance or self.instance)
        self.assertRaises(exception.RowsMissing, manager.guest_config, instance or self.instance)
        self.assertTrue(manager.assignments((instance or self.instance).uuid))       # memory still has them

    def test_a_claim_that_the_store_forgot_is_refused_reported_and_held(self) -> None:
        go_back = past(self, self.host)
        self.host.claim(self.instance, pmem=1)
        go_back()
        self.assert_missing()
        for _ in range(3):
            self.assertEqual([('d0', vocabulary.CRITICAL, findings.WRITE_AGAIN)], lost(self.host.audit()))
            self.assertEqual({'d0': HELD, 'd1': FREE, 'd2': FREE}, self.host.states())
        self.assert_missing()
        self.assertRaises(exception.NodeUnavailable, self.host.claim, Instance(), pmem=1)

    def test_it_is_all_right_when_the_store_shows_it_again(self) -> None:
        go_back = past(self, self.host)
        self.host.claim(self.instance, pmem=1)
        forward = past(self, self.host)
        go_back()
        self.host.audit()
        forward()
        self.assertEqual([], self.host.audit())
        self.host.boot(self.instance)
        self.host.delete(self.instance)
        self.assertEqual(3, self.host.free())

    def test_a_read_that_lags_behind_once_is_refused_and_changes_nothing(self) -> None:
        self.host.claim(self.instance, pmem=1)
        store = self.host.running.store.store      # type: ignore[attr-defined]
        read = store.records_of_instance
        answers: list[list[Any]] = [[]]
        self.patch(store, 'records_of_instance', lambda *about: answers.pop() if answers else read(*about))
        self.assertRaises(exception.RowsMissing, self.host.manager.realize, None, self.instance)
        self.host.boot(self.instance)
        self.assertEqual([], self.host.audit())

    def test_an_older_row_counts_as_lost(self) -> None:
        self.host.claim(self.instance, pmem=1)
        go_back = past(self, self.host)
        self.host.boot(self.instance)
        go_back()
        self.assert_missing()
        self.assertEqual(['d0'], [one[0] for one in lost(self.host.audit())])
        write_again(self.host)
        self.assertEqual([], self.host.audit())
        self.assertEqual({'d0': 'active', 'd1': FREE, 'd2': FREE}, self.host.states())

    def test_the_rows_are_written_again_with_the_operators_word_alone(self) -> None:
        go_back = past(self, self.host)
        self.host.spawn(self.instance, pmem=2)
        before = self.host.records()
        go_back()
        self.host.audit()
        self.assertEqual((), self.host.running.repairs.plan().repairs)
        write_again(self.host)                  # though the store has no row at all
        self.assertEqual(before, self.host.records())
        self.assertEqual([], self.host.audit())
        self.host.delete(self.instance)
        self.assertEqual(3, self.host.free())

    def test_a_store_that_refuses_leaves_them_held(self) -> None:
        go_back = past(self, self.host)
        self.host.claim(self.instance, pmem=1)
        go_back()
        self.host.audit()
        plan = self.host.running.repairs.plan(repairs.Accepted(rows=True))
        self.host.store.before('write', exception.StoreUnavailable('store', 'full'))
        [outcome] = self.host.running.repairs.repair(plan.repairs)
        self.assertIsNotNone(outcome.error)
        self.assertEqual((HELD, 2), (self.host.states()['d0'], self.host.free()))
        write_again(self.host)
        self.assertEqual([], self.host.audit())
        self.host.boot(self.instance)

    def test_a_device_that_changed_hands_stays_with_its_last_owner(self) -> None:
        before = self.host.spawn(pmem=1)
        go_back = past(self, self.host)
        self.host.delete(before)
        for one in (self.instance, Instance(), Instance()):     # some time each gets the device
            self.host.claim(one, pmem=1)
        self.instance = Instance(self.host.owners()['d0'])
        self.host.service.known = {before.uuid: 'deleted'}
        go_back()
        self.assert_missing()
        for _ in range(2):
            self.host.audit()
            self.assertEqual({'d0': before.uuid}, self.host.owners())
        self.assertRaises(exception.DeviceTrackError, self.host.manager.release, None, before)
        self.assertEqual({'d0': before.uuid}, self.host.owners())
        write_again(self.host)
        self.host.audit()
        self.assertEqual((self.instance.uuid, 3), (self.host.owners()['d0'], len(self.host.owners())))

    def test_a_row_that_was_ended_goes_back_again(self) -> None:
        migration = None
        self.host.spawn(self.instance, pmem=1)
        go_back = past(self, self.host)
        migration = self.host.resize(self.instance, pmem=1)
        migration.instance_uuid = self.instance.uuid
        self.host.machine.stop_guest(self.instance.uuid)
        migration.status = 'post-migrating'
        self.host.boot(self.instance)
        self.host.manager.drop_move_claim_at_source(None, self.instance, migration)
        migration.status = 'confirmed'
        [row] = self.host.records()
        go_back()
        self.assertEqual([row.identifier], [one[0] for one in lost(self.host.audit())])
        write_again(self.host)
        self.assertEqual({'d0': 'releasing', 'd1': 'active', 'd2': FREE}, self.host.states())
        self.host.audit()
        self.assertEqual([], self.host.audit())
        self.assertEqual({'d0': FREE, 'd1': 'active', 'd2': FREE}, self.host.states())

    def test_a_ledger_that_is_made_anew_still_holds_them(self) -> None:
        go_back = past(self, self.host)
        self.host.claim(self.instance, pmem=1)
        go_back()
        vars(self.host.running)['ledger'].discard()
        self.assertEqual({'d0': self.instance.uuid}, self.host.held())
        self.assert_missing()

    def test_a_claim_that_fails_meanwhile_goes_back_when_its_row_is_there_again(self) -> None:
        go_back = past(self, self.host)
        claim = self.host.claim(self.instance, pmem=1)
        forward = past(self, self.host)
        go_back()
        self.assertRaises(exception.RowsMissing, claim.abort)
        for _ in range(2):
            self.host.audit()
        self.assertEqual(2, self.host.free())
        forward()
        self.host.audit()
        self.host.audit()
        self.assertEqual(3, self.host.free())

    def test_what_was_given_back_is_not_missed(self) -> None:
        for lose in (self.host.store.lose_answer, self.host.store.lose_commit):
            instance = self.host.spawn(pmem=1)
            self.host.machine.delete_guest(instance.uuid)
            lose(skip=1)                        # the commit that ends the row
            self.assertRaises(exception.OutcomeUnknown, self.host.manager.release, None, instance)
            self.host.audit()
            self.host.manager.release(None, instance)
            self.assertEqual(([], 3), (self.host.audit(), self.host.free()))


class LostMoveTestCase(RegionTestCase):
    """Marks of moves and their contexts are lost and come back with the rows."""

    def test_the_mark_at_the_source(self) -> None:
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=migration)
        go_back = past(self, self.one)
        self.one.manager.update_usage(None, instance, 'one')
        rows = region.rows(instance)
        go_back()
        self.assertRaises(exception.RowsMissing, self.one.manager.realize, None, instance)
        self.assertEqual(['d0'], [one[0] for one in lost(self.one.audit())])
        write_again(self.one)
        self.assertEqual(rows, region.rows(instance))
        region.finish_resize(instance, migration)
        region.confirm(instance, migration)
        self.assertEqual([], region.audit())

    def test_a_move_on_one_host_with_its_context(self) -> None:
        for ends in ('confirm', 'revert'):
            region = self.region()
            instance = region.spawn('one', pmem=1)
            go_back = past(self, self.one)
            migration = region.resize(instance, 'one', pmem=1)
            rows, contexts = region.rows(instance), self.one.store.contexts(self.one.manager.state().host_uuid)
            go_back()
            self.assertRaises(exception.RowsMissing, self.one.manager.realize, None, instance)
            self.assertEqual(['d0', 'd1'], [one[0] for one in lost(self.one.audit())])
            write_again(self.one)
            self.assertEqual((rows, contexts),
                             (region.rows(instance), self.one.store.contexts(self.one.manager.state().host_uuid)))
            region.audit()
            getattr(region, ends)(instance, migration)
            self.assertEqual([], region.audit())

    def test_the_end_of_a_move(self) -> None:
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'two', pmem=1)
        go_back = past(self, self.two)
        region.confirm(instance, migration)
        region.audit()
        rows = region.rows(instance)['two']
        go_back()
        self.assertRaises(exception.RowsMissing, self.two.manager.realize, None, instance)
        self.two.audit()
        write_again(self.two)
        self.assertEqual(rows, region.rows(instance)['two'])
        self.assertEqual([], self.two.store.contexts(self.two.manager.state().host_uuid))
        if self.shared:
            write_again(self.one)
        self.assertEqual([], region.audit())
