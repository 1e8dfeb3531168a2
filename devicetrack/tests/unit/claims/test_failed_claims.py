"""After a claim failed and could not be undone: the next claim, the start of the guest, and another manager."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import os
from typing import Any

import testscenarios

from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.claims.gate import StoreBehind
from devicetrack.claims.rows import Rows
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.claims import test_moving

GONE = exception.StoreUnavailable('store', 'gone')


class BootFails(Exception):
    """Stands for whatever a compute service raises."""


def block_fails(store: Any, claim: Callable[[], Claim]) -> None:
    try:
        with claim():
            store.before('write', GONE, times=1)
            raise BootFails
    except BootFails:
        pass


def is_aborted(store: Any, claim: Callable[[], Claim]) -> None:
    failed = claim()
    store.before('write', GONE, times=1)
    try:
        failed.abort()
    except exception.StoreUnavailable:
        pass


def answer_is_lost(store: Any, claim: Callable[[], Claim]) -> None:
    store.lose_answer()
    try:
        claim()
    except exception.OutcomeUnknown:
        pass


FAILS = base.table(('its block fails while the store is gone', block_fails),
                   ('it is aborted while the store is gone', is_aborted),
                   ('its answer is lost', answer_is_lost), names=('fails',))


class HostTestCase(base.TestCase):
    scenarios = FAILS

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1))
        self.manager, self.instance = self.host.manager, Instance()
        self.fails(self.host.store, self.claim)

    def claim(self) -> Claim:
        return self.host.claim(self.instance, pmem=1)

    def remembered(self) -> list[str]:
        return os.listdir(os.path.join(self.host.conf.devicetrack.state_path, 'given-up'))

    def check_it_stays(self, claim: Claim) -> None:
        self.host.manager.realize(self.context, self.instance)
        config = self.host.manager.guest_config(self.instance)
        self.host.audit()
        self.host.start_guest(self.instance.uuid, config)
        self.assertEqual(['d0'], [one.identifier for one in self.host.manager.started(self.context, self.instance)])
        self.host.audit()
        self.assertEqual([('active', claim.claim_id)], [(row.state, row.claim_id) for row in self.host.records()])

    def test_the_next_claim_of_the_instance_takes_anew(self) -> None:
        claim = self.claim()
        self.assertEqual(['d0'], [one.identifier for one in claim.resources])
        self.assertEqual([], self.remembered())
        self.check_it_stays(claim)

    def test_the_guest_of_a_claim_for_nothing_starts_without_devices(self) -> None:
        self.host.claim(self.instance)
        self.assertEqual(0, len(self.manager.realize(self.context, self.instance)))
        self.assertEqual({'d0': FREE}, self.host.states())

    def test_while_the_store_cannot_undo_it_the_next_claim_says_so_and_no_guest_starts(self) -> None:
        step = 'settle' if self.host.running.rows.doubts else 'write'
        for call in (self.claim, lambda: self.manager.realize(self.context, self.instance)):
            self.host.store.before(step, GONE, times=1)
            self.assertRaises(exception.StoreUnavailable, call)
            self.assertRaises(exception.InstanceNotClaimed, self.manager.guest_config, self.instance)
            self.assertEqual({'d0': 'claimed'}, self.host.states())
        self.check_it_stays(self.claim())

    def test_no_guest_starts_on_its_devices(self) -> None:
        self.assertRaises(exception.InstanceNotClaimed, self.manager.guest_config, self.instance)
        self.assertRaises(exception.InstanceNotClaimed, self.manager.kept_definition, self.instance, '<domain/>')
        self.assertRaises(exception.InstanceNotClaimed, self.manager.realize, self.context, self.instance)
        self.assertEqual({'d0': FREE}, self.host.states())
        self.check_it_stays(self.claim())

    def test_not_even_after_a_restart_at_which_the_store_failed(self) -> None:
        self.host.store.before('write', GONE, times=1)
        self.host.restart()
        self.assertRaises(exception.InstanceNotClaimed, self.host.manager.guest_config, self.instance)
        self.assertRaises(exception.InstanceNotClaimed, self.host.manager.realize, self.context, self.instance)
        self.assertEqual({'d0': FREE}, self.host.states())

    def test_no_guest_starts_on_them_while_the_host_gives_nothing_back(self) -> None:
        self.host.running.gate.judge(StoreBehind('a guest has devices without rows', frozenset()))
        self.assertRaises(exception.InstanceNotClaimed, self.manager.realize, self.context, self.instance)
        self.assertEqual({'d0': 'claimed'}, self.host.states())

    def test_another_instance_has_nothing_to_do_with_it(self) -> None:
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=1)
        self.assertEqual(0, len(self.manager.realize(self.context, Instance())))
        self.assertEqual({'d0': 'claimed'}, self.host.states())


class RealizedTestCase(base.TestCase):

    def test_a_device_that_was_made_ready_is_wiped_in_the_background_and_the_claim_takes_another(self) -> None:
        host, instance = self.useFixture(fixtures.Host(devices=2)), Instance()
        claim = host.claim(instance, pmem=1)
        host.manager.realize(self.context, instance)
        host.store.before('write', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, claim.abort)
        self.assertEqual(['d1'], [one.identifier for one in host.claim(instance, pmem=1).resources])
        host.wait()
        self.assertEqual({'d0': FREE, 'd1': 'claimed'}, host.states())

    def test_whoever_works_on_the_instance_next_knows_that_it_failed(self) -> None:
        host, instance = self.useFixture(fixtures.Host(devices=1)), Instance()
        claim, known = host.claim(instance, pmem=1), list[bool]()
        working = Rows.working

        @contextlib.contextmanager
        def watched(rows: Rows, instance_uuid: str) -> Iterator[None]:
            with working(rows, instance_uuid):
                known.append(host.running.failed_claims.has_failed(claim.claim_id))
                yield

        self.patch(Rows, 'working', watched)
        host.store.before('write', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, claim.abort)
        self.assertEqual([True], known)


class MoveTestCase(test_moving.RegionTestCase):
    scenarios = testscenarios.multiply_scenarios(test_moving.RegionTestCase.scenarios, FAILS)

    def claim_that_fails(self, name: str) -> tuple[Any, Instance, Callable[[], Claim]]:
        region = self.region(devices=3)
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, name)

        def claim() -> Claim:
            return region.hosts[name].manager.resize_claim(self.context, instance, name, fixtures.a_request(pmem=1),
                                                           migration)

        self.fails(region.hosts[name].store, claim)
        return region, instance, claim

    def test_the_next_claim_of_the_migration_takes_anew(self) -> None:
        for name in ('one', 'two'):
            region, instance, claim = self.claim_that_fails(name)
            [device] = claim().resources
            region.migrations[-1].status = 'post-migrating'
            host = region.hosts[name]
            self.assertEqual([device.identifier], [
                one.identifier for one in host.manager.realize(self.context, instance)])
            rows = region.rows(instance)
            self.assertEqual(1, sum(row[1] == 'incoming' for row in rows[name]))
            region.audit()
            self.assertEqual(rows, region.rows(instance))

    def test_no_guest_starts_on_its_devices_and_none_arrives(self) -> None:
        region, instance, _claim = self.claim_that_fails('two')
        migration = region.migrations[-1]
        self.assertRaises(exception.InstanceNotClaimed, self.two.manager.device_map, instance, migration)
        self.assertRaises(exception.InstanceNotClaimed, self.two.manager.guest_config, instance)
        self.assertRaises(exception.InstanceNotClaimed, self.two.manager.realize, self.context, instance)
        self.assertEqual({FREE}, set(self.two.states().values()))

    def test_on_one_host_the_guest_starts_on_the_devices_that_it_had(self) -> None:
        for status in ('pre-migrating', 'post-migrating'):
            region, instance, _claim = self.claim_that_fails('one')
            region.migrations[-1].status = status
            self.one.delete_guest(instance.uuid)
            realized = self.one.manager.realize(self.context, instance)
            self.assertEqual(['d0'], [one.identifier for one in realized])
            self.one.wait()
            self.assertEqual([('d0', 'current', 'active')], [(row.identifier, row.role, row.state)
                                                             for row in self.one.records()])

    def test_on_one_host_no_guest_starts_without_the_devices_that_are_released_since(self) -> None:
        region, instance, _claim = self.claim_that_fails('one')
        [migration] = region.migrations
        migration.status = 'failed'
        self.one.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=None)
        self.one.delete_guest(instance.uuid)
        self.assertRaises(exception.UnclaimFailed, self.one.manager.release, self.context, instance)
        for _ in range(2):
            self.assertRaises(exception.InstanceNotClaimed, self.one.manager.realize, self.context, instance)

    def test_on_one_host_a_guest_that_had_none_starts_without_any(self) -> None:
        region = self.region()
        instance = Instance(host='one')
        migration = region.migration(instance, 'one')
        for migration.status in ('pre-migrating', 'post-migrating'):
            self.fails(self.one.store, lambda: self.one.manager.resize_claim(
                self.context, instance, 'one', fixtures.a_request(pmem=1), migration))
            self.assertEqual(0, len(self.one.manager.realize(self.context, instance)))
            self.one.wait()
            self.assertEqual({FREE}, set(self.one.states().values()))


class ClosedManagerTestCase(base.TestCase):
    """The block of a claim ends only after the manager was closed and another one has started."""

    def setUp(self) -> None:
        super().setUp()
        self.host, self.instance = self.useFixture(fixtures.Host(devices=1)), Instance()
        self.claim = self.host.claim(self.instance, pmem=1)
        self.host.restart()

    def check_the_guest_keeps_it(self) -> None:
        self.host.manager.realize(self.context, self.instance)
        config = self.host.manager.guest_config(self.instance)
        self.host.audit()
        self.host.start_guest(self.instance.uuid, config)
        self.host.manager.started(self.context, self.instance)
        self.host.audit()
        self.host.restart()
        self.assertEqual(['active'], [row.state for row in self.host.records()])

    def test_the_older_one_orders_nothing(self) -> None:
        self.assertRaises(exception.HostTakenOver, self.claim.abort)
        self.assertFalse(os.path.exists(os.path.join(self.host.conf.devicetrack.state_path, 'given-up')))
        self.check_the_guest_keeps_it()

    def test_what_the_older_one_remembers_because_it_does_not_know_that_changes_nothing(self) -> None:
        self.host.store.before('write', GONE, times=1)
        self.assertRaises(exception.StoreUnavailable, self.claim.abort)
        self.check_the_guest_keeps_it()
