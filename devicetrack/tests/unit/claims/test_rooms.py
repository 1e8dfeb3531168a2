"""Every state of a started host has one owner: what the rooms of claims promise one another."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

from devicetrack import exception
from devicetrack.claims import gate
from devicetrack.claims import locks
from devicetrack.claims.audit import Audit
from devicetrack.claims.locked_ledger import LedgerLock
from devicetrack.store.api import Changes
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

UNKNOWN = exception.OutcomeUnknown('store')


class RoomsTestCase(base.TestCase):

    def host(self, **facts: Any) -> fixtures.Host:
        return self.useFixture(fixtures.Host(**facts))


class DoubtTestCase(RoomsTestCase):

    def in_doubt(self, host: fixtures.Host) -> Instance:
        """An instance whose claim was recorded, and whose caller was told that nobody knows."""
        instance = Instance()
        host.store.after('write', UNKNOWN)
        self.assertRaises(exception.OutcomeUnknown, host.claim, instance, pmem=1)
        return instance

    def test_two_settlers_of_one_commit_are_one(self) -> None:
        host = self.host(devices=1)
        instance = self.in_doubt(host)
        [doubt] = host.running.rows.doubts
        settle_doubts = host.running.failed_claims.settle_doubts
        host.store.before('settle', lambda: self.assertEqual([None], self.together(settle_doubts)))
        settle_doubts()
        with host.running.rows.working(instance.uuid):
            self.assertFalse(host.running.rows.settle(doubt))
        host.running.wipes.go_on()
        host.wait()
        self.assertEqual(((), {'d0': FREE}), (host.running.rows.doubts, host.states()))

    def test_audits_and_claims_settle_side_by_side(self) -> None:
        host = self.host(devices=8)
        instances = [self.in_doubt(host) for _ in range(8)]
        answers = self.together(host.audit, *(lambda one=one: host.claim(one, pmem=1) for one in instances), host.audit)
        self.assertEqual([], [answer for answer in answers if isinstance(answer, BaseException)
                              and not isinstance(answer, (exception.InstanceHasClaim, exception.NoFit))])
        host.audit()
        self.assertEqual((), host.running.rows.doubts)
        self.assertEqual(host.owners(), host.held())


class ReportOnlyTestCase(RoomsTestCase):

    def test_no_line_of_an_audit_takes_claims_meanwhile(self) -> None:
        host = self.host(devices=2)
        host.spawn(pmem=1)
        host.store.store.write(Changes(delete=tuple(host.records())))
        host.restart()
        self.assertIsNotNone(host.running.gate.report_only)
        seen = []

        def at_every_line(frame: Any, event: str, argument: Any) -> Any:
            if frame.f_code not in (Audit._judge.__code__, gate.behind.__code__, gate.Gate.judge.__code__):
                return None
            seen.append(host.running.gate.report_only)
            return at_every_line

        before = sys.gettrace()
        sys.settrace(at_every_line)
        try:
            host.audit()
        finally:
            sys.settrace(before)
        self.assertLess(3, len(seen))
        self.assertNotIn(None, seen)
        self.assertRaises(exception.NodeUnavailable, host.claim, Instance(), pmem=1)
        for uuid in list(host.machine.domains):
            host.machine.delete_guest(uuid)


class TakenTestCase(RoomsTestCase):

    def test_a_store_that_fails_after_it_refused_a_device_keeps_nothing_held(self) -> None:
        host = self.host(devices=1)
        host.store.before('write', exception.DeviceTaken([('vpmem', 'd0')]))
        host.store.before('records_of_host', exception.StoreUnavailable('store', 'gone'))
        self.assertRaises(exception.StoreUnavailable, host.claim, Instance(), pmem=1)
        self.assertEqual({'d0': FREE}, host.states())
        host.claim(Instance(), pmem=1)


class LocksTestCase(RoomsTestCase):

    def test_no_driver_is_asked_under_the_lock_of_the_ledger(self) -> None:
        host = self.host(devices=1, parents={'card': 1})
        asked = []
        for name in ('resource_classes', 'get_inventory', 'get_usage', 'boot_id', 'live_migration_obstacles',
                     'migration_types', 'claim_for_instance'):
            plain = getattr(host.driver, name)

            def ask(*arguments: Any, name: str = name, plain: Any = plain) -> Any:
                asked.append((name, locks.ledger_is_held()))
                return plain(*arguments)

            self.patch(host.driver, name, ask)
        host.spawn(pmem=1, vgpu=1)
        host.audit()
        self.assertEqual({False}, {held for _name, held in asked})
        self.assertLessEqual({'resource_classes', 'claim_for_instance', 'get_inventory'}, {name for name, _ in asked})

    def test_a_lock_against_the_order_is_refused(self) -> None:
        host, instance = self.host(), Instance()
        auditing = locks.Lock(locks.AUDITING)

        def wait_for_an_instance_in_an_audit() -> None:
            with auditing.held(), host.running.rows.working(instance.uuid):
                pass

        def audit_within_the_ledger() -> None:
            with LedgerLock().held(), auditing.held():
                pass

        self.assertRaises(locks.WrongOrder, wait_for_an_instance_in_an_audit)
        error = self.assertRaises(locks.WrongOrder, audit_within_the_ledger)
        self.assertEqual('the auditing lock was asked for with ledger held', str(error))
        self.assertEqual([], locks.held())
        with auditing.held(), host.running.rows.if_idle(instance.uuid) as idle:
            self.assertTrue(idle)

    def test_what_one_thread_holds_is_no_business_of_another(self) -> None:
        auditing, reading = locks.Lock(locks.AUDITING), locks.Lock(locks.READING)

        def audit() -> None:
            with auditing.held():
                pass

        with reading.held():
            self.assertEqual([None], self.together(audit))

    def test_a_request_of_a_command_does_not_wait_for_its_instance(self) -> None:
        host = self.host(devices=1)
        instance = host.spawn(pmem=1)
        row = host.records()[0]
        began, go_on = threading.Event(), threading.Event()

        def work() -> None:
            with host.running.rows.working(instance.uuid):
                began.set()
                go_on.wait()

        worker = threading.Thread(target=work)
        worker.start()
        self.addCleanup(worker.join)
        self.addCleanup(go_on.set)
        began.wait()
        self.assertRaises(exception.RowStays, host.running.repairs.forget, row.key, instance.uuid)
        self.assertEqual([], host.audit())


class LifeOfAHostTestCase(RoomsTestCase):

    def test_nothing_of_a_host_outlives_its_close(self) -> None:
        host = self.host(devices=1, parents={'card': 1})
        host.manager.operator.cordon('vpmem', 'd0')
        before, uuids = host.running, {provider.uuid for provider in host.manager.providers()}
        host.manager.close()
        known: Any = host.store.store.host('host')
        host.store.store.replace_host(known, known._replace(uuid='00000000-0000-4000-8000-000000000001'))
        host.manager.init_host(None)
        after = host.running
        rooms = [name for name, room in vars(before).items() if hasattr(room, '__dict__')
                 and name not in ('_driver', 'instances')]         # a service hands these in
        self.assertLess(10, len(rooms))
        self.assertEqual([], [name for name in rooms if vars(after)[name] is vars(before)[name]])
        self.assertEqual('00000000-0000-4000-8000-000000000001', host.manager.state().host_uuid)
        self.assertEqual(set(), uuids & {provider.uuid for provider in host.manager.providers()})
        host.claim(Instance(), vgpu=1)

    def test_a_manager_that_was_closed_answers_nothing(self) -> None:
        host = self.host(devices=1)
        host.manager.close()
        self.assertRaises(exception.NotReady, host.manager.providers)
        host.manager.close()

    def test_reading_the_views_changes_nothing(self) -> None:
        host = self.host(devices=1, parents={'card': 1})
        before = host.running.views.providers, host.running.ledger.now.states()
        del host.machine.parents['card']
        host.machine.add_namespace('d1')
        views = host.running.views.read()
        self.assertEqual(['d0', 'd1'], sorted(device.identifier for device in views.inventory.devices))
        self.assertEqual(before, (host.running.views.providers, host.running.ledger.now.states()))
        host.audit()
        self.assertNotEqual(before, (host.running.views.providers, host.running.ledger.now.states()))

    def test_the_collector_of_the_process_is_left_alone(self) -> None:
        host = self.host(devices=1)
        seen = []
        for _ in range(2):
            host.machine.before('get_usage', lambda: seen.append(gc.isenabled()), times=1)
            host.audit()
        host.machine.before('get_usage', lambda: seen.append(gc.isenabled()), times=1)
        host.restart()
        self.assertEqual([True] * 3, seen)

    def test_what_leaves_the_lock_does_not_change_any_more(self) -> None:
        host = self.host(devices=1)
        host.claim(Instance(), pmem=1)
        [row] = host.records()
        [device] = host.running.ledger.now.states()
        pools = host.running.ledger.now.pool_states()
        copies = tuple(device), [tuple(pool) for pool in pools]
        host.running.ledger.releasing_of(row.instance_uuid, [row.key])
        self.assertEqual(copies, (tuple(device), [tuple(pool) for pool in pools]))
        self.assertRaises(AttributeError, setattr, device, 'state', 0)
        self.assertNotEqual(device, host.running.ledger.now.states()[0])


class StartedTestCase(RoomsTestCase):
    """A guest that runs keeps its devices, whatever became of recording that it does."""

    scenarios = base.table(
        ('was not recorded', 'before', UNKNOWN),
        ('was recorded', 'after', UNKNOWN),
        ('was refused', 'before', exception.StoreUnavailable('store', 'gone')),
        names=('stage', 'error'))

    def boot(self, host: fixtures.Host, instance: Instance) -> None:
        """Boot in the block that services are taught."""
        with host.claim(instance, pmem=1):
            self.boot_within(host, instance)

    def boot_within(self, host: fixtures.Host, instance: Instance) -> None:
        host.manager.realize(None, instance)
        config = host.manager.guest_config(instance)
        host.machine.start_guest(instance.uuid, config.devices, metadata=config.metadata)
        getattr(host.store, self.stage)('write', self.error)
        host.manager.started(None, instance)

    def test_in_the_block_of_its_claim(self) -> None:
        host, instance = self.host(devices=1), Instance()
        self.assertRaises(type(self.error), self.boot, host, instance)
        self.assertEqual([instance.uuid], [record.instance_uuid for record in host.records()])
        self.assertNotIn('releasing', host.states().values())
        host.audit()
        self.assertEqual([], host.audit())
        self.assertEqual({'d0': 'active'}, host.states())
        host.delete(instance)
        self.assertEqual({'d0': FREE}, host.states())

    def test_a_guest_that_its_service_removed_keeps_nothing(self) -> None:
        host, instance = self.host(devices=1), Instance()

        def boot() -> None:
            with host.claim(instance, pmem=1):
                try:
                    self.boot_within(host, instance)
                except exception.StoreError:
                    host.machine.delete_guest(instance.uuid)
                    raise

        self.assertRaises(type(self.error), boot)
        host.audit()
        self.assertEqual({'d0': FREE}, host.states())

    def test_an_error_after_it_was_recorded_gives_the_devices_back_as_ever(self) -> None:
        host, instance = self.host(devices=1), Instance()

        def boot() -> None:
            with host.claim(instance, pmem=1):
                host.boot(instance)
                host.machine.delete_guest(instance.uuid)
                raise ValueError

        self.assertRaises(ValueError, boot)
        self.assertEqual({'d0': FREE}, host.states())


class UnansweredStartTestCase(RoomsTestCase):
    """The store fails when ``started`` asks whether another manager has taken the host over."""

    def test_the_guest_keeps_its_devices(self) -> None:
        host, instance = self.host(devices=1), Instance()

        def boot() -> None:
            with host.claim(instance, pmem=1):
                host.manager.realize(None, instance)
                config = host.manager.guest_config(instance)
                host.machine.start_guest(instance.uuid, config.devices, metadata=config.metadata)
                host.store.before('check_epoch', exception.StoreUnavailable('store', 'gone'))
                host.manager.started(None, instance)

        self.assertRaises(exception.StoreUnavailable, boot)
        self.assertEqual({'d0': 'claimed'}, host.states())
        host.restart()
        self.assertEqual([], host.audit())
        self.assertEqual({'d0': 'active'}, host.states())
