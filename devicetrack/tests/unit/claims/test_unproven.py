"""A device with a former guest's bytes is handed out to nobody, however its row came to be missing."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import gate
from devicetrack.claims import locks
from devicetrack.claims import operator_requests
from devicetrack.claims import unproven
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import WipeProgress
from devicetrack.store.api import Changes
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests import interrupts

D0, D1 = DeviceKey('vpmem', 'd0'), DeviceKey('vpmem', 'd1')
UNPROVEN = 'withheld: unproven'


class UnprovenTestCase(base.TestCase):

    policy = vocabulary.VERIFY

    def setUp(self) -> None:
        super().setUp()
        configuration = self.useFixture(fixtures.Configuration())
        configuration.set('devicetrack', unproven_devices=self.policy)
        self.host = self.useFixture(fixtures.Host(devices=1, configuration=configuration))
        self.machine = self.host.machine

    @property
    def manager(self) -> ClaimManager:
        return self.host.manager

    def a_tenant_leaves(self, data: bytes = b'secret') -> None:
        """A guest wrote to d0 and is gone; so is its row, of which the service does not know, and nobody wiped it."""
        instance = self.host.spawn(pmem=1)
        self.machine.write(D0, data)
        self.machine.delete_guest(instance.uuid)
        self.host.restart()
        gone = Changes(delete=tuple(self.host.records()))
        self.host.running.rows.known.leave(gone)
        self.host.store.store.write(gone)

    def elements(self) -> list[str]:
        """What a domain names d0 with."""
        return [fake_guests.element('vpmem', fixtures.path_of(self.machine.devices[D0]))]

    def settle(self) -> None:
        """Wait until nothing more is read in the background."""
        self.host.running.unproven.wait()

    def why(self) -> str:
        [withheld] = self.host.manager.operator.withheld()
        return withheld.causes[vocabulary.UNPROVEN].detail


class LostRowTestCase(UnprovenTestCase):

    def test_a_row_that_was_removed_by_hand(self) -> None:
        self.a_tenant_leaves()
        self.host.audit()
        self.settle()
        self.assertEqual((UNPROVEN, b'secret'), (self.host.states()['d0'], self.machine.read(D0)))
        self.assertIn('1 withheld (unproven)',
                      str(self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=1)))

    def test_a_row_that_is_missing_from_the_start(self) -> None:
        self.a_tenant_leaves()
        for _again in range(2):
            self.host.restart()
            self.settle()
            self.assertEqual((UNPROVEN, b'secret'), (self.host.states()['d0'], self.machine.read(D0)))

    def test_a_store_that_was_lost(self) -> None:
        self.a_tenant_leaves()
        other = self.host.useFixture(fixtures.SQLiteStore(self.host.useFixture(fixtures.Configuration()).conf)).store
        self.manager.close()
        self.host.store.store = other
        self.host.restart()
        self.settle()
        self.assertEqual(UNPROVEN, self.host.states()['d0'])
        self.manager.close()                    # before its second store is gone

    def test_a_device_that_the_host_has_for_the_first_time(self) -> None:
        self.machine.contents[D1] = b'of an earlier life'
        self.machine.add_namespace('d1')
        self.host.audit()
        self.settle()
        self.assertEqual({'d0': FREE, 'd1': UNPROVEN}, self.host.states())
        self.host.audit()
        self.assertEqual('not every byte is zero', self.why())

    def test_a_foreign_guest_leaves_its_bytes_and_no_proof(self) -> None:
        self.machine.start_guest('x', self.elements())
        self.host.audit()
        self.machine.write(D0, b'secret')
        self.machine.delete_guest('x')
        self.host.audit()
        self.settle()
        self.assertEqual(UNPROVEN, self.host.states()['d0'])


class ReadTestCase(UnprovenTestCase):

    def test_zeros_are_read_in_the_background_and_admitted(self) -> None:
        self.a_tenant_leaves(b'\0\0')
        reading, go_on = threading.Event(), threading.Event()
        self.machine.before('read', reading.set)
        self.machine.before('read', lambda: go_on.wait(60))
        self.host.restart()                             # does not wait for it
        self.assertTrue(reading.wait(60))
        self.assertEqual(UNPROVEN, self.host.states()['d0'])
        self.assertEqual([], self.host.audit())         # nor does an audit
        self.assertEqual(unproven.TO_BE_READ, self.why())
        self.machine.wiping[D0] = WipeProgress('read', 1 << 30, 4 << 30, 1 << 30, 3)
        self.assertEqual(f'{unproven.TO_BE_READ}; now 1,024 of 4,096 MiB read, 1,024 MiB/s, about 3 s left', self.why())
        self.machine.wiping.clear()
        go_on.set()
        self.settle()
        self.assertEqual((FREE, []), (self.host.states()['d0'], self.host.manager.operator.withheld()))
        self.host.restart()
        self.assertEqual((FREE, 1), (self.host.states()['d0'], self.machine.calls['read']))

    def test_what_is_not_zero_is_read_once_by_each_manager(self) -> None:
        self.a_tenant_leaves()
        for _again in range(3):
            self.host.audit()
            self.settle()
        self.assertEqual((1, 'not every byte is zero'), (self.machine.calls['read'], self.why()))

    def test_commands_hear_of_it_before_the_next_audit(self) -> None:
        self.a_tenant_leaves()
        self.host.audit()
        self.settle()
        [row] = self.host.store.store.withheld(self.manager.state().host_uuid)
        self.assertIn(self.why(), row.reasons)
        self.assertNotIn('it has not been read through yet', row.reasons)

    def test_what_could_not_be_read_is_tried_again_by_the_next_audit(self) -> None:
        self.a_tenant_leaves(b'\0')
        self.machine.before('prove', exception.HypervisorUnreachable('fake', 'busy'), times=2)
        self.host.audit()
        self.settle()
        self.assertEqual(UNPROVEN, self.host.states()['d0'])
        self.host.audit()
        self.settle()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_an_empty_one_is_admitted_at_once(self) -> None:
        self.machine.add_namespace('d1', proven=False)
        self.host.restart()
        self.assertEqual((FREE, 0), (self.host.states()['d1'], self.machine.calls['read']))

    def test_a_cordoned_one_is_left_alone(self) -> None:
        self.a_tenant_leaves(b'\0')
        self.manager.operator.cordon('vpmem', 'd0')
        self.host.audit()
        self.settle()
        self.assertEqual(('withheld: cordoned, unproven', 0), (self.host.states()['d0'], self.machine.calls['read']))

    def test_no_thread_outlives_the_manager(self) -> None:
        self.a_tenant_leaves(b'\0')
        reading, go_on = threading.Event(), threading.Event()
        self.machine.before('read', reading.set)
        self.machine.before('read', lambda: go_on.wait(60))
        self.patch(self.host.driver, 'stop_proving', go_on.set)
        self.host.audit()
        self.assertTrue(reading.wait(60))
        self.manager.close()
        self.assertEqual([], [one.name for one in threading.enumerate() if one.name == 'devicetrack-unproven'])

    def test_nothing_is_read_before_init_host(self) -> None:
        self.a_tenant_leaves(b'\0')
        self.manager.close()
        self.host.another_manager()
        self.assertEqual(0, self.machine.calls['read'])


class ProofTestCase(UnprovenTestCase):

    def test_it_is_gone_before_a_guest_can_write(self) -> None:
        instance = Instance()
        with self.host.claim(instance, pmem=1):
            self.assertEqual(set(), self.machine.unproven)
            self.manager.realize(None, instance)
            self.assertEqual({D0}, self.machine.unproven)
            self.host.start_guest(instance.uuid, self.manager.guest_config(instance))
        self.assertEqual('claimed', self.host.states()['d0'])
        self.host.delete(instance)
        self.assertEqual((set(), FREE), (self.machine.unproven, self.host.states()['d0']))

    def test_a_crash_at_any_step_of_a_release_leaves_it_unproven_or_clean(self) -> None:
        for call in ('wipe', 'wiped'):
            instance = self.host.spawn(pmem=1)
            self.machine.write(D0, b'secret')
            self.machine.delete_guest(instance.uuid)
            self.machine.before(call, KeyboardInterrupt(), times=1)
            self.assertRaises(KeyboardInterrupt, self.manager.release, None, instance)
            self.host.store.store.write(Changes(delete=tuple(self.host.records())))
            self.host.restart()
            self.settle()
            self.assertEqual(FREE if call == 'wiped' else UNPROVEN, self.host.states()['d0'])
            if call == 'wipe':
                self.manager.operator.admit('vpmem', 'd0', wipe=True)
                self.settle()

    def test_another_namespace_of_the_name_is_another_device(self) -> None:
        self.machine.write(D0, b'secret')
        self.machine.change(D0, namespace_uuid='31c3b3a5-8a6e-4b60-b1a2-6a8f5d8e0c55')
        self.host.audit()
        self.settle()
        self.assertEqual(UNPROVEN, self.host.states()['d0'])


class ComesBackTestCase(UnprovenTestCase):

    def comes_back(self) -> None:
        self.machine.add_namespace('d0')
        self.machine.contents[D0] = b'secret'

    def wiped(self) -> None:
        self.host.audit()
        self.settle()
        self.manager.operator.admit('vpmem', 'd0', wipe=True)
        self.settle()
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))

    def test_one_that_no_audit_has_seen_again_waits_for_that(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.machine.remove(D0)
        self.host.running.repairs.forget(D0, instance.uuid)
        self.host.audit()
        self.comes_back()
        refused = self.assertRaises(exception.NotAdmitted, self.manager.operator.admit, 'vpmem', 'd0', wipe=True)
        self.assertIn('try again after the next audit', str(refused))
        self.wiped()

    def test_one_that_goes_away_before_its_turn_can_be_asked_for_again(self) -> None:
        self.a_tenant_leaves()
        self.machine.contents[self.machine.add_namespace('d1', proven=False)] = b'secret'
        self.host.audit()
        self.settle()
        wiping, go_on = threading.Event(), threading.Event()
        self.addCleanup(go_on.set)
        self.machine.before('wipe', wiping.set, times=1)
        self.machine.before('wipe', lambda: go_on.wait(base.HANGS_S), times=1)
        self.manager.operator.admit('vpmem', 'd1', wipe=True)
        wiping.wait(base.HANGS_S)
        self.manager.operator.admit('vpmem', 'd0', wipe=True)
        self.machine.remove(D0)
        self.host.audit()
        go_on.set()
        self.settle()
        error = self.assertRaises(exception.NotAdmitted, self.host.running.unproven.wiped, D0)
        self.assertIn('the host does not have it any more', str(error))
        self.comes_back()
        self.wiped()


class WipeTestCase(UnprovenTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.a_tenant_leaves()
        self.host.audit()
        self.settle()

    def test_an_operator_has_it_wiped(self) -> None:
        seen: list[str] = []
        self.host.after_wipe = lambda: seen.append(self.host.states()['d0'])
        self.assertIn('it is being wiped', str(self.manager.operator.admit('vpmem', 'd0', wipe=True)))
        self.settle()
        self.assertEqual([FREE], seen)
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))
        self.host.restart()
        self.assertEqual((FREE, []), (self.host.states()['d0'], self.host.manager.operator.withheld()))
        self.assert_told()

    def assert_told(self) -> None:
        """The history has the wipe once, and who had the device admitted."""
        wiped, admitted = [one.event for one in self.host.store.store.events_of_device('d0')][-2:]
        self.assertEqual(('wiped', 4 << 30, 'wiped', None), (
            wiped.event, wiped.more['bytes'], wiped.more['proof'], wiped.instance_uuid))
        self.assertEqual(('admitted', 'unproven', 'operator', 'wiped'), (
            admitted.event, *(admitted.more[name] for name in ('reason', 'by', 'proof'))))

    def test_one_that_is_being_read_keeps_the_request_of_its_wipe(self) -> None:
        reading, go_on = threading.Event(), threading.Event()
        self.addCleanup(go_on.set)
        self.machine.before('read', reading.set, times=1)
        self.machine.before('read', lambda: go_on.wait(base.HANGS_S), times=1)
        self.host.restart()
        reading.wait(base.HANGS_S)
        request = operator_requests.make(self.host.running.host_uuid, operator_requests.ADMIT, kind='vpmem',
                                         identifier='d0', wipe=True)
        self.host.store.add_operator_request(request)
        self.host.audit()
        go_on.set()
        self.settle()
        self.assert_told()
        told = {one.event.event: one.event.request_id for one in self.host.store.store.events_of_device('d0')}
        self.assertEqual((request.uuid, request.uuid), (told['wiped'], told['admitted']))

    def test_a_store_that_does_not_take_it_is_told_by_the_next_audit(self) -> None:
        self.host.audit()
        for staged, error in ((self.host.store.before, exception.StoreUnavailable('store', 'full')),
                              (self.host.store.before, exception.OutcomeUnknown('store')),
                              (self.host.store.after, exception.OutcomeUnknown('store'))):
            before = len(self.host.store.store.events_of_device('d0'))
            staged('set_withheld', error)
            self.manager.operator.admit('vpmem', 'd0', wipe=True)
            self.settle()
            self.host.audit()
            self.host.audit()
            told = [one.event.event for one in self.host.store.store.events_of_device('d0')][before:]
            self.assertEqual(['wiped', 'admitted'], told)
            self.host.restart()
            self.a_tenant_leaves()
            self.host.audit()
            self.settle()
            self.host.audit()

    def test_nobodys_word_makes_it_clean(self) -> None:
        self.assertIn('use --wipe', str(self.assertRaises(exception.BadRequest, self.manager.operator.admit, 'vpmem',
                                                          'd0')))
        self.assertEqual((UNPROVEN, b'secret'), (self.host.states()['d0'], self.machine.read(D0)))

    def test_what_is_free_and_proven_is_not_wiped(self) -> None:
        self.machine.add_namespace('d1')
        self.host.audit()
        self.assertRaises(exception.BadRequest, self.manager.operator.admit, 'vpmem', 'd1', wipe=True)

    def test_nor_is_what_somebody_has_or_uses(self) -> None:
        self.machine.start_guest('x', self.elements())
        self.assertRaises(exception.NotAdmitted, self.manager.operator.admit, 'vpmem', 'd0', wipe=True)
        self.machine.delete_guest('x')
        # Between the question and the wipe.
        self.machine.before('prove', lambda: self.machine.start_guest('x', self.elements()), times=1)
        self.manager.operator.admit('vpmem', 'd0', wipe=True)
        self.settle()
        self.assertEqual(b'secret', self.machine.read(D0))

    def test_a_wipe_that_fails_says_why(self) -> None:
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'it is read-only'), times=1)
        self.manager.operator.admit('vpmem', 'd0', wipe=True)
        self.settle()
        for _ in range(3):                      # reading it later does not hide why
            self.host.audit()
            self.settle()
            [withheld] = self.manager.operator.withheld()
            self.assertEqual('wiping it failed: it is read-only', withheld.causes[vocabulary.UNPROVEN].detail)
        self.assertEqual((UNPROVEN, b'secret'), (self.host.states()['d0'], self.machine.read(D0)))
        self.manager.operator.admit('vpmem', 'd0', wipe=True)
        self.settle()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_what_this_host_does_not_have_is_refused_with_what_it_has(self) -> None:
        error = self.assertRaises(exception.BadRequest, self.manager.operator.admit, 'vpmem', 'dO', wipe=True)
        self.assertIn('this host has no such device', str(error))
        self.assertIn('the unproven ones of this host: vpmem/d0', str(error))

    def test_a_request_does_not_keep_the_audit_waiting(self) -> None:
        go_on = threading.Event()
        self.machine.before('wipe', lambda: go_on.wait(60))
        request = operator_requests.make(self.host.running.host_uuid, operator_requests.ADMIT, kind='vpmem',
                                         identifier='d0', wipe=True)
        self.host.store.add_operator_request(request)
        self.host.audit()
        [answered] = self.host.store.operator_requests_of_host(self.host.running.host_uuid)
        self.assertEqual(operator_requests.DONE, json.loads(answered.answer or '')['outcome'])
        self.assertIn(UNPROVEN, self.host.states()['d0'])          # the wipe may have begun
        go_on.set()
        self.settle()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_its_audit_does_not_look_at_what_is_to_be_wiped(self) -> None:
        driver, looked, go_on = self.host.driver, list[str](), threading.Event()
        self.machine.before('wipe', lambda: go_on.wait(60))
        prove = driver.prove

        def noted(assignments: Any, how: str, *rest: Any) -> Any:
            looked.append(how)
            return prove(assignments, how, *rest)

        self.patch(driver, 'prove', noted)
        self.host.store.add_operator_request(operator_requests.make(
            self.host.running.host_uuid, operator_requests.ADMIT, kind='vpmem', identifier='d0', wipe=True))
        self.host.audit()
        go_on.set()
        self.settle()
        self.assertEqual([vocabulary.WIPE], looked)

    def test_it_waits_for_the_look_of_an_audit_that_began_before(self) -> None:
        looking, asked, check = threading.Event(), threading.Event(), self.machine.check_clean

        def slow(assignment: Any, how: str) -> None:
            if how == vocabulary.BLANK:
                looking.set()
                self.assertTrue(asked.wait(60))
            check(assignment, how)

        self.patch(self.machine, 'check_clean', slow)
        self.machine.add_namespace('d1', proven=False)
        self.machine.write(D1, b'secret')
        audit = threading.Thread(target=self.host.audit)
        audit.start()
        self.assertTrue(looking.wait(60))
        going = self.manager.operator.admit('vpmem', 'd1', wipe=True)
        self.assertEqual(unproven.WIPED_NOW, going.causes[vocabulary.UNPROVEN].detail)
        self.host.running.unproven._workers.wait(0.5)          # if it does not wait, it has failed by then
        asked.set()
        audit.join()
        self.settle()
        self.assertEqual(FREE, self.host.states()['d1'])


class WipePolicyTestCase(UnprovenTestCase):

    policy = vocabulary.WIPE

    def test_what_is_unproven_is_wiped_in_the_background(self) -> None:
        self.a_tenant_leaves()
        self.host.audit()
        self.settle()
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))


class TrustPolicyTestCase(UnprovenTestCase):

    policy = vocabulary.TRUST

    def test_it_is_handed_out_as_it_is(self) -> None:
        self.a_tenant_leaves()
        self.host.audit()
        self.host.audit()
        self.assertEqual((FREE, b'secret'), (self.host.states()['d0'], self.machine.read(D0)))


class ReportOnlyTestCase(UnprovenTestCase):

    def test_a_host_whose_store_is_behind_proves_nothing(self) -> None:
        self.machine.add_namespace('d1')
        self.a_tenant_leaves(b'\0')
        self.host.running.gate.judge(None)
        self.patch(type(self.host.running.gate), 'report_only', 'behind')
        self.host.running.unproven.look()
        self.host.running.unproven.go_on()
        self.settle()
        self.assertEqual(0, self.machine.calls['prove'])

    def test_nor_does_it_wipe_what_an_operator_names(self) -> None:
        self.a_tenant_leaves()
        self.host.audit()
        self.settle()
        self.host.running.gate.judge(gate.StoreBehind('behind', frozenset()))
        error = self.assertRaises(exception.NotAdmitted, self.manager.operator.admit, 'vpmem', 'd0', wipe=True)
        self.assertIn('is report-only: behind', str(error))
        self.host.audit()                       # the host works again, and nobody remembers the request
        self.settle()
        self.assertEqual((UNPROVEN, b'secret'), (self.host.states()['d0'], self.machine.read(D0)))


class InterruptTestCase(UnprovenTestCase):

    def test_an_interrupt_at_any_line_of_a_look_keeps_nobody_waiting(self) -> None:
        self.a_tenant_leaves()
        self.host.audit()
        self.settle()

        def look() -> None:
            proving = self.host.running.unproven
            proving.look()
            proving.details()
            proving.go_on()

        def look_again() -> None:
            with contextlib.suppress(exception.StartIsOver):
                look()

        counted = interrupts.Lines()
        counted.run(look)
        self.settle()
        self.assertLess(20, counted.count)
        for number in range(counted.count):
            lines = interrupts.Lines(number)
            lines.run(look)
            locks.let_go(0)                     # as every public call does
            another = threading.Thread(target=look_again, daemon=True)
            another.start()
            another.join(base.HANGS_S)
            self.assertFalse(another.is_alive(), lines.where)
            self.settle()
