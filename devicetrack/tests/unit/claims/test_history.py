"""The history of devices and instances: every change of ownership and condition is an event."""

from __future__ import annotations

import time
import types
from typing import Any
from unittest import mock

from devicetrack import exception
from devicetrack.claims import audit
from devicetrack.claims import operator_requests
from devicetrack.claims.host import ThisHost
from devicetrack.claims.metering import Metering
from devicetrack.claims.service import ServiceView
from devicetrack.engine.migrations import Endpoint
from devicetrack.objects.details import serial_of
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.store.api import StoredEvent
from devicetrack.store.api import Update
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

D0 = DeviceKey(fake.VPMEM, 'd0')
REQUEST = 'req-7b0c5a3e-91d1-4a0e-9c55-2f1f4f6c7d80'
DAY_MS = 24 * 60 * 60 * 1000


class Context:
    def __init__(self, request_id: Any) -> None:
        self.request_id = request_id


def names(found: list[StoredEvent]) -> list[str]:
    return [one.event.event for one in found]


class HistoryTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, parents={'p0': 2}))
        self.store = self.host.store.store
        self.host.context = Context(REQUEST)

    def of_device(self, identifier: str = 'd0') -> list[StoredEvent]:
        return self.store.events_of_device(identifier)

    def of_instance(self, instance: Instance) -> list[StoredEvent]:
        return self.store.events_of_instance(instance.uuid)


class CardTestCase(HistoryTestCase):
    """Rows of releases that did not record the serial number of the card."""

    def setUp(self) -> None:
        super().setUp()
        self.host.machine.add_parent('p1', serial='S1')
        self.host.audit()
        self.host.machine.parents.pop('p0')
        self.host.audit()
        self.instance = self.host.spawn(vgpu=1)
        [row] = self.rows()
        self.older = row.details.replace(',"parent_serial":"S1"', '').replace('"1.1"', '"1.0"')
        self.assertNotEqual(row.details, self.older)
        self.store.write(Changes(update=(Update(row, row.changed(details=self.older)),)))
        self.before = len(self.of_instance(self.instance))
        self.host.restart()

    def rows(self) -> list[Record]:
        return self.store.records_everywhere(self.instance.uuid)

    def test_are_filled_by_an_audit_without_a_finding(self) -> None:
        self.assertEqual([], self.host.audit())
        self.assertEqual(['S1'], [serial_of(row.details) for row in self.rows()])
        [filled] = self.of_instance(self.instance)[self.before:]
        self.assertEqual(('realized', 'S1'), (filled.event.event, filled.event.serial))
        self.host.audit()
        self.assertEqual(self.before + 1, len(self.of_instance(self.instance)))

    def test_are_filled_when_their_device_is_made_ready_again(self) -> None:
        self.host.manager.realize(self.host.context, self.instance)
        self.assertEqual(['S1'], [serial_of(row.details) for row in self.rows()])

    def test_keep_what_the_host_cannot_read_any_more(self) -> None:
        self.host.audit()
        [key] = [key for key in self.host.machine.devices if key.kind == fake.MDEV]
        self.host.machine.change(key, parent_serial='')
        self.assertEqual([], self.host.audit())
        self.assertEqual(['S1'], [serial_of(row.details) for row in self.rows()])


class LifeTestCase(HistoryTestCase):

    def test_from_the_claim_to_the_wipe(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.delete(instance)
        found = self.of_instance(instance)
        self.assertEqual(['claimed', 'realized', 'started', 'released', 'wiped'], names(found))
        self.assertEqual(found, self.of_device())
        self.assertEqual({(instance.uuid, REQUEST)},
                         {(one.event.instance_uuid, one.event.request_id) for one in found})
        self.assertEqual(1, len({one.event.claim_id for one in found}))
        self.assertEqual(['bytes', 'proof', 'seconds'], sorted(found[-1].event.more))
        self.assertEqual(('wiped', 4 << 30), (found[-1].event.more['proof'], found[-1].event.more['bytes']))

    def test_a_device_that_keeps_no_bytes_is_freed(self) -> None:
        instance = self.host.spawn(vgpu=1)
        self.host.delete(instance)
        self.assertEqual(['claimed', 'realized', 'started', 'released', 'freed'], names(self.of_instance(instance)))

    def test_a_claim_that_is_given_back_was_not_wiped(self) -> None:
        instance = Instance()
        claim = self.host.claim(instance, pmem=1)
        self.host.context = Context('another')
        claim.abort()
        found = self.of_instance(instance)
        self.assertEqual(['claimed', 'released', 'freed'], names(found))
        self.assertEqual({REQUEST}, {one.event.request_id for one in found})

    def test_an_earlier_wipe_is_not_told_again(self) -> None:
        self.host.delete(self.host.spawn(pmem=1))
        instance = Instance()
        self.host.claim(instance, pmem=1).abort()
        self.assertEqual(['claimed', 'released', 'freed'], names(self.of_instance(instance)))

    def test_a_refused_claim_is_no_event_of_a_device(self) -> None:
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=3)
        self.host.audit()
        self.assertEqual([], self.of_device())

    def test_a_second_start_is_no_event(self) -> None:
        instance = self.host.spawn(pmem=1)
        before = self.of_instance(instance)
        self.host.manager.realize(self.host.context, instance)
        self.host.manager.started(self.host.context, instance)
        self.assertEqual(before, self.of_instance(instance))

    def test_what_the_manager_does_by_itself_is_of_no_request(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.delete_guest(instance.uuid)
        self.host.manager.release(self.host.context, instance, wait=False)
        self.host.wait()
        released, wiped = self.of_instance(instance)[-2:]
        self.assertEqual((('released', REQUEST), ('wiped', None)), (
            (released.event.event, released.event.request_id), (wiped.event.event, wiped.event.request_id)))

    def test_requests_that_are_no_text_are_left_out_and_long_ones_cut(self) -> None:
        for request_id, kept in ((None, None), (b'bytes', None), ('x' * 100, 'x' * 64)):
            self.host.context = Context(request_id)
            instance = Instance()
            self.host.claim(instance, pmem=1).abort()
            self.assertEqual({kept}, {one.event.request_id for one in self.of_instance(instance)})

    def test_a_commit_whose_answer_is_lost_has_its_event(self) -> None:
        self.host.store.lose_answer()
        instance = Instance()
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, instance, pmem=1)
        self.assertEqual(['claimed'], names(self.of_instance(instance)))
        self.host.audit()
        self.assertEqual(['claimed', 'released', 'freed'], names(self.of_instance(instance)))

    def test_a_commit_that_did_not_happen_has_none(self) -> None:
        self.host.store.lose_commit()
        instance = Instance()
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, instance, pmem=1)
        self.host.audit()
        self.assertEqual([], self.of_instance(instance))


class ConditionTestCase(HistoryTestCase):

    def mores(self) -> list[tuple[str, dict[str, Any]]]:
        return [(one.event.event, one.event.more) for one in self.of_device()]

    def test_cordoned_and_uncordoned(self) -> None:
        self.host.manager.operator.cordon('vpmem', 'd0', reason='firmware')
        self.host.manager.operator.cordon('vpmem', 'd0', reason='firmware')
        self.host.manager.operator.uncordon('vpmem', 'd0')
        more = {'reason': 'cordoned', 'why': 'firmware', 'by': 'operator'}
        self.assertEqual([('withheld', more), ('admitted', more)], self.mores())

    def test_another_reason_of_the_operator_is_an_event(self) -> None:
        self.host.manager.operator.cordon('vpmem', 'd0', reason='firmware')
        self.host.manager.operator.cordon('vpmem', 'd0', reason='it is sold')
        self.assertEqual([('withheld', 'firmware'), ('withheld', 'it is sold')],
                         [(event, more['why']) for event, more in self.mores()])

    def test_who_has_it_is_said(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=1)
        self.host.manager.operator.cordon('vpmem', 'd0')
        self.host.manager.operator.cordon('mdev', 'p0', parent=True)
        [row, _mdev] = self.host.records()
        last = self.of_device()[-1].event
        self.assertEqual(('withheld', instance.uuid, row.claim_id),
                         (last.event, last.instance_uuid, last.claim_id))
        self.assertIn(last, [one.event for one in self.of_instance(instance)])
        self.assertIsNone(self.of_device('p0')[-1].event.instance_uuid)

    def test_what_was_asked_by_a_command_is_of_its_request(self) -> None:
        request = operator_requests.make(self.host.manager.state().host_uuid, operator_requests.CORDON, kind='vpmem',
                                         scope='device', name='d0', reason='firmware')
        self.host.store.add_operator_request(request)
        self.host.audit()
        [found] = self.of_device()
        self.assertEqual(('withheld', request.uuid), (found.event.event, found.event.request_id))

    def test_an_operator_ended_what_they_ended_and_nothing_else(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.delete_guest(instance.uuid)
        self.host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=1)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)
        self.host.manager.operator.cordon('vpmem', 'd0')
        self.host.manager.release(None, instance)               # the store hears of it when something is written
        self.host.manager.operator.uncordon('vpmem', 'd0')
        self.assertEqual([('not given back', 'host'), ('cordoned', 'operator')], [
            (more['reason'], more['by']) for event, more in self.mores() if event == 'admitted'][::-1])

    def test_how_a_wipe_fails_is_told_once(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.delete_guest(instance.uuid)
        for why in ('a bad block', 'another bad block'):
            self.host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', why), times=1)
            self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)
            self.host.manager.operator.cordon('vpmem', 'd1', reason=why)
        self.assertEqual(['a bad block'], [more['why'] for event, more in self.mores() if event == 'withheld'])

    def test_a_parent_says_that_it_is_one(self) -> None:
        self.host.manager.operator.cordon('mdev', 'p0', parent=True)
        [found] = self.of_device('p0')
        self.assertEqual('parent', found.event.more['scope'])

    def test_what_audits_see(self) -> None:
        self.host.machine.change(D0, unhealthy='too hot')
        self.host.audit()
        self.host.audit()
        self.host.machine.change(D0, unhealthy=None)
        self.host.audit()
        more = {'reason': 'unhealthy', 'why': 'too hot', 'by': 'host'}
        self.assertEqual([('withheld', more), ('admitted', more)], self.mores())

    def test_a_store_that_refuses_keeps_neither(self) -> None:
        self.host.store.before('set_withheld', exception.StoreUnavailable('store', 'full'))
        self.assertRaises(exception.StoreUnavailable, self.host.manager.operator.cordon, 'vpmem', 'd0')
        self.assertEqual([], self.of_device())

    def test_an_answer_that_is_lost_is_one_event(self) -> None:
        self.host.store.after('set_withheld', exception.OutcomeUnknown('store'))
        self.assertRaises(exception.OutcomeUnknown, self.host.manager.operator.cordon, 'vpmem', 'd0')
        self.host.audit()
        self.assertEqual(['withheld'], names(self.of_device()))

    def test_forgotten_and_admitted(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.machine.remove(D0)
        self.host.delete_guest(instance.uuid)
        self.host.running.repairs.forget(D0, instance.uuid)
        self.assertEqual(['claimed', 'realized', 'started', 'withheld', 'forgotten'], names(self.of_device()))
        self.assertEqual('in doubt', self.mores()[-2][1]['reason'])


class TrimTestCase(HistoryTestCase):

    def keep(self, **options: int) -> audit.History:
        conf = types.SimpleNamespace(**{'history_days': 400, 'history_events': 1000, **options})
        return audit.History(ThisHost(Endpoint('host', 'host'), self.host.manager.state().host_uuid, self.host.driver,
                                      self.host.store, ServiceView(None), conf, Metering()))

    def fill(self, count: int) -> None:
        for _ in range(count):
            self.host.manager.operator.cordon('vpmem', 'd0')
            self.host.manager.operator.uncordon('vpmem', 'd0')

    def test_the_newest_are_kept(self) -> None:
        self.fill(5)
        kept = self.of_device()[-3:]
        self.assertEqual((7, kept, 0), ((trim := self.keep(history_events=3)).trim(), self.of_device(), trim.trim()))
        self.fill(1)
        self.assertEqual((2, 3), (trim.trim(), len(self.of_device())))

    def go_on(self, days: int) -> None:
        """Let the clock be ahead from now on."""
        ahead_s = days * DAY_MS // 1000
        plain, plain_ns = time.time, time.time_ns
        self.patch(time, 'time', lambda: plain() + ahead_s)
        self.patch(time, 'time_ns', lambda: plain_ns() + ahead_s * 1_000_000_000)

    def test_what_is_too_old_goes(self) -> None:
        self.patch(audit, 'NEWEST', 2)
        self.fill(2)
        trim = self.keep(history_days=30)
        self.assertEqual(0, trim.trim())
        self.go_on(31)
        self.assertEqual(0, trim.trim())
        self.fill(1)
        self.assertEqual((4, 2), (trim.trim(), len(self.of_device())))

    def test_a_clock_that_is_ahead_erases_nothing(self) -> None:
        self.fill(60)
        trim, before = self.keep(), self.of_device()
        self.go_on(401)
        self.fill(audit.NEWEST // 2 - 1)      # the events of that time have its clock, too
        deleted = [trim.trim() for _audit in range(3)]
        self.host.audit()
        self.assertEqual(([0] * 3, before), (deleted, self.of_device()[:len(before)]))
        self.go_on(-500)                        # and one that is behind
        self.fill(1)
        self.assertEqual(0, trim.trim())

    def test_a_step_at_a_time(self) -> None:
        self.patch(audit, 'STEP', 4)
        self.patch(audit, 'COUNTED', 4)
        self.fill(5)
        trim = self.keep(history_events=3)
        deleted = []
        for _ in range(4):
            deleted.append(trim.trim())
            self.assertLessEqual(deleted[-1], 4)
        self.assertEqual((7, 3), (sum(deleted), len(self.of_device())))

    def test_numbers_that_begin_anew_are_counted_anew(self) -> None:
        self.patch(audit, 'NEWEST', 0)        # it would take weeks until none is left
        self.fill(3)
        trim = self.keep(history_days=30, history_events=3)
        later = time.time_ns() + 31 * DAY_MS * 1_000_000
        with mock.patch.object(time, 'time_ns', lambda: later):
            self.assertEqual((6, []), (trim.trim(), self.of_device()))
        self.fill(2)
        self.assertEqual((1, 3), (trim.trim(), len(self.of_device())))

    def test_a_store_that_refuses_is_asked_again(self) -> None:
        self.fill(5)
        trim = self.keep(history_events=3)
        self.host.store.before('trim_events', exception.OutcomeUnknown('store'))
        self.assertEqual((0, 7), (trim.trim(), trim.trim()))

    def test_audits_trim_and_claims_do_not(self) -> None:
        self.host.store.calls.clear()
        self.host.delete(self.host.spawn(pmem=1))
        self.assertEqual(0, self.host.store.calls['trim_events'])
        self.host.audit()
        self.assertEqual(1, self.host.store.calls['trim_events'])
