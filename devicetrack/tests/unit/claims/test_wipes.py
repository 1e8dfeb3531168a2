"""Wipes do not stand in the way: no start and no audit waits for one, and none is lost, whatever ends it."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any
from unittest import mock

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.claims import operator_requests
from devicetrack.claims import releasing
from devicetrack.claims import workers
from devicetrack.engine import findings
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import WipeProgress
from devicetrack.store.api import Changes
from devicetrack.store.api import Update
from devicetrack.testing import compute_service
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests import interrupts

D0, D1 = DeviceKey('vpmem', 'd0'), DeviceKey('vpmem', 'd1')
RELEASING = vocabulary.RELEASING
FOREVER_S = 60.0
UNREACHABLE = exception.HypervisorUnreachable('fake', 'gone')
FULL = exception.UnclaimFailed('vpmem', 'd0', 'a bad block')


class WipesTestCase(base.TestCase):

    devices = 2
    at_once = 2

    def setUp(self) -> None:
        super().setUp()
        configuration = self.useFixture(fixtures.Configuration())
        configuration.set('devicetrack', wipes_at_once=self.at_once)
        self.host = self.useFixture(fixtures.Host(devices=self.devices, configuration=configuration))
        self.machine = self.host.machine
        self.go_on = threading.Event()          # wipes go on from then
        self.wiping = threading.Semaphore(0)    # released once by each wipe that has begun
        self.addCleanup(self.go_on.set)

    def let_wipes_last(self) -> None:
        def wipe() -> None:
            self.wiping.release()
            self.go_on.wait(FOREVER_S)
        self.machine.before('wipe', wipe)

    def gone(self, pmem: int = 1, vgpu: int = 0) -> Instance:
        """An instance whose guest is gone, with its devices not given back yet."""
        instance = self.host.spawn(pmem=pmem, vgpu=vgpu)
        for record in self.host.records(instance):
            if record.kind == 'vpmem':
                self.machine.write(record.key, b'secret')
        self.machine.delete_guest(instance.uuid)
        return instance

    def interrupted(self, pmem: int = 1) -> Instance:
        """An instance whose release came to an end before anything was wiped."""
        instance = self.gone(pmem)
        self.machine.before('unclaim', UNREACHABLE, times=1)
        self.assertRaises(exception.HypervisorUnreachable, self.host.manager.release, None, instance)
        self.assertEqual({RELEASING}, {record.state for record in self.host.records(instance)})
        return instance


class StartTestCase(WipesTestCase):

    def test_a_start_waits_for_no_wipe_and_takes_claims(self) -> None:
        self.interrupted()
        self.let_wipes_last()
        self.assertEqual([], self.host.restart(wait=False))
        self.wiping.acquire(timeout=FOREVER_S)
        self.assertEqual({'d0': RELEASING, 'd1': FREE}, self.host.states())
        self.host.claim(Instance(), pmem=1)
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=1)
        self.go_on.set()
        self.host.wait()
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))

    def test_an_audit_waits_for_no_wipe(self) -> None:
        self.interrupted()
        self.let_wipes_last()
        for _audit in range(3):
            self.assertEqual([], self.host.audit(wait=False))
        self.assertTrue(self.wiping.acquire(timeout=FOREVER_S))
        self.assertEqual((RELEASING, 1), (self.host.states()['d0'], self.machine.calls['wipe']))
        self.go_on.set()
        self.host.wait()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_a_request_waits_for_no_wipe(self) -> None:
        instance = self.gone()
        self.host.service.known = {}
        self.let_wipes_last()
        store, host_uuid = self.host.store.store, self.host.manager.state().host_uuid
        request = operator_requests.make(host_uuid, operator_requests.RELEASE, instance_uuid=instance.uuid)
        store.add_operator_request(request)
        self.host.audit(wait=False)
        [answer] = [one.answer for one in store.operator_requests_of_host(host_uuid)]
        self.assertEqual(RELEASING, self.host.states()['d0'], str(answer))
        self.go_on.set()
        self.host.wait()
        self.assertEqual(FREE, self.host.states()['d0'])

    def repair_by_request(self) -> operator_requests.Answer:
        request = operator_requests.make(self.host.manager.state().host_uuid, operator_requests.REPAIR, accept=False)
        self.host.store.store.add_operator_request(request)
        self.host.audit(wait=False)
        [answered] = [one for one in self.host.store.store.operator_requests() if one.uuid == request.uuid]
        answer = operator_requests.answer_of(answered)
        assert answer is not None
        return answer

    def test_a_repair_that_began_is_no_failure_where_another_device_of_the_instance_fails(self) -> None:
        self.machine.add_parent('card', units=1)
        self.host.audit()
        instance = self.gone(pmem=1, vgpu=1)
        [mdev] = self.host.mdevs()
        self.machine.before('unclaim', UNREACHABLE, times=1)
        self.assertRaises(exception.HypervisorUnreachable, self.host.manager.release, None, instance)
        self.let_wipes_last()
        with self.machine.working_on('mdev', mdev):
            answer = self.repair_by_request()
        self.assertEqual([('mdev', False, False), ('vpmem', False, True)], sorted(
            (one['kind'], one['done'], one['begun']) for one in answer.repairs))
        self.assertEqual((operator_requests.PARTLY, True),
                         (answer.outcome, '0 of 2 repairs done, 1 begun: ' in answer.text))
        self.go_on.set()
        self.host.wait()

    def test_a_repair_that_has_to_wipe_is_said_to_have_begun(self) -> None:
        instance = self.gone()
        self.machine.before('wipe', FULL, times=1)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)
        self.let_wipes_last()
        answer = self.repair_by_request()
        self.assertEqual((operator_requests.DONE, '0 of 1 repairs done, 1 begun: devices are wiped in the background, '
                          'and "devicetrack-manage device list" shows the progress'), (answer.outcome, answer.text))
        self.assertEqual([(False, True)], [(one['done'], one['begun']) for one in answer.repairs])
        self.assertEqual(RELEASING, self.host.states()['d0'])
        self.go_on.set()
        self.host.wait()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_what_is_not_wiped_goes_back_at_once(self) -> None:
        self.machine.add_parent('card', units=1)
        self.host.audit()
        instance = self.gone(pmem=1, vgpu=1)
        self.machine.before('unclaim', KeyboardInterrupt(), times=1)
        self.assertRaises(KeyboardInterrupt, self.host.manager.release, None, instance)
        self.let_wipes_last()
        self.host.audit(wait=False)
        self.assertEqual([D0], [record.key for record in self.host.records()])
        self.go_on.set()


class BoundTestCase(WipesTestCase):

    devices = 5

    def test_so_many_go_on_side_by_side_and_no_more(self) -> None:
        instances = [self.gone() for _ in range(5)]
        self.let_wipes_last()
        for instance in instances:
            self.host.manager.release(None, instance, wait=False)
        for _ in range(self.at_once):
            self.assertTrue(self.wiping.acquire(timeout=FOREVER_S))
        self.assertEqual(self.at_once, self.machine.calls['wipe'])
        self.assertEqual({RELEASING}, set(self.host.states().values()))
        self.go_on.set()
        self.host.wait()
        self.assertEqual(({FREE}, 5), (set(self.host.states().values()), self.machine.calls['wipe']))


class EndOfMoveTestCase(WipesTestCase):
    """An instance moved on this host, and its guest is gone."""

    scenarios = [(f'{call}, {left.identifier}', {'call': call, 'left': left}) for call, left in (
        ('drop_move_claim_at_source', D0), ('drop_move_claim_at_dest', D1), ('drop_move_claim', D0),
        ('drop_move_claim', D1))]
    call: str
    left: DeviceKey

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1)
        self.migration = self.host.resize(self.instance, pmem=1)
        self.migration.status = 'post-migrating'
        self.host.manager.realize(None, self.instance)
        self.machine.delete_guest(self.instance.uuid)
        for key in (D0, D1):
            self.machine.write(key, b'secret')
        self.let_wipes_last()

    def end(self, wait: bool = True) -> None:
        manager = self.host.manager
        if self.call == 'drop_move_claim':
            prefix = 'old_' if self.left == D0 else 'new_'
            manager.drop_move_claim(None, self.instance, 'host', prefix=prefix, wait=wait)
        else:
            getattr(manager, self.call)(None, self.instance, self.migration, wait=wait)

    def test_a_service_need_not_wait(self) -> None:
        self.end(wait=False)
        self.assertTrue(self.wiping.acquire(timeout=FOREVER_S))
        self.assertEqual([(self.left.identifier, RELEASING)], [
            (record.identifier, record.state) for record in self.host.records(self.instance)
            if record.state == RELEASING])
        self.go_on.set()
        self.host.wait()
        self.assertEqual((FREE, b''), (self.host.states()[self.left.identifier], self.machine.read(self.left)))

    def test_a_start_that_ends_the_move_waits_for_no_wipe(self) -> None:
        self.migration.status = 'confirmed' if self.left == D0 else 'reverted'
        self.host.manager.realize(None, self.instance)
        self.assertTrue(self.wiping.acquire(timeout=FOREVER_S))
        self.assertEqual(RELEASING, self.host.states()[self.left.identifier])

    def test_one_that_waits_waits_for_what_is_under_way(self) -> None:
        context = self.instance.migration_context
        self.end(wait=False)
        self.assertTrue(self.wiping.acquire(timeout=FOREVER_S))
        threading.Timer(0.1, self.go_on.set).start()
        self.instance.migration_context = context
        self.end()
        self.assertEqual((FREE, b''), (self.host.states()[self.left.identifier], self.machine.read(self.left)))


class EndedClaimTestCase(WipesTestCase):
    """A call ended a claim without waiting for wipes, and then an exception leaves the block of the claim."""

    devices = 4
    at_once = 1

    def setUp(self) -> None:
        super().setUp()
        self.instance = Instance()
        self.other = Instance()

    def keep_threads_busy(self) -> None:
        busy = self.gone()
        self.let_wipes_last()
        self.host.manager.release(None, busy, wait=False)
        self.assertTrue(self.wiping.acquire(timeout=FOREVER_S))

    def check_another_instance_keeps_its_devices(self) -> None:
        self.host.claim(self.other, pmem=list(self.host.states().values()).count(FREE))
        before = self.host.manager.assignments(self.other.uuid)
        self.go_on.set()
        self.host.wait()
        self.assertEqual(({vocabulary.CLAIMED}, before), (
            {one.state for one in before}, self.host.manager.assignments(self.other.uuid)))
        self.assertNotIn(RELEASING, self.host.states().values())

    def test_of_a_boot(self) -> None:
        self.keep_threads_busy()
        with contextlib.suppress(ZeroDivisionError), self.host.claim(self.instance, pmem=1):
            self.host.manager.release(None, self.instance, wait=False)
            raise ZeroDivisionError
        self.check_another_instance_keeps_its_devices()

    def test_of_a_move(self) -> None:
        self.host.spawn(self.instance, pmem=1)
        self.keep_threads_busy()
        migration = self.host.service.create_migration(None, self.instance, 'host', compute_service.RESIZE)
        with contextlib.suppress(ZeroDivisionError), self.host.manager.resize_claim(
                None, self.instance, 'host', fixtures.a_request(pmem=1), migration):
            self.host.manager.drop_move_claim_at_dest(None, self.instance, migration, wait=False)
            raise ZeroDivisionError
        self.check_another_instance_keeps_its_devices()

    def test_a_device_that_is_being_wiped_is_no_error(self) -> None:
        claim = self.host.claim(self.instance, pmem=1)
        self.host.manager.realize(None, self.instance)
        self.let_wipes_last()
        self.host.manager.release(None, self.instance, wait=False)
        self.assertTrue(self.wiping.acquire(timeout=FOREVER_S))
        claim.abort()
        self.assertEqual(RELEASING, self.host.states()['d0'])
        self.go_on.set()
        self.host.wait()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_a_thread_that_just_begins_takes_nothing_from_another_instance(self) -> None:
        began, take_back = threading.Event(), releasing.Releasing.leave_host

        def late(*arguments: Any) -> Any:
            began.set()
            self.go_on.wait(FOREVER_S)
            return take_back(*arguments)

        claim = self.host.claim(self.instance, pmem=1)
        [record] = self.host.records(self.instance)
        with mock.patch.object(releasing.Releasing, 'leave_host', late):
            self.host.manager.release(None, self.instance, wait=False)
            self.assertTrue(began.wait(FOREVER_S))
            claim.abort()
            # Another manager of the host gave the device back meanwhile.
            self.host.store.store.write(Changes(delete=tuple(self.host.records(self.instance))))
            self.host.running.ledger.free_of(self.instance.uuid, [record.key])
            self.check_another_instance_keeps_its_devices()


class ReleaseTestCase(WipesTestCase):

    def test_a_service_that_does_not_wait(self) -> None:
        instance = self.gone()
        self.let_wipes_last()
        self.host.manager.release(None, instance, wait=False)
        self.assertEqual((RELEASING, None), (self.host.states()['d0'], instance.resources))
        self.go_on.set()
        self.host.wait()
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))

    def test_one_that_waits_waits_for_what_is_under_way(self) -> None:
        instance = self.gone(pmem=2)
        self.let_wipes_last()
        self.host.manager.release(None, instance, wait=False)
        self.wiping.acquire(timeout=FOREVER_S)
        threading.Timer(0.1, self.go_on.set).start()
        self.host.manager.release(None, instance)
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.host.states())

    def test_the_instance_takes_other_devices_meanwhile(self) -> None:
        instance = self.gone()
        self.let_wipes_last()
        self.host.manager.release(None, instance, wait=False)
        self.wiping.acquire(timeout=FOREVER_S)
        self.host.spawn(instance, pmem=1)
        self.go_on.set()
        self.host.wait()
        self.assertEqual({'d0': FREE, 'd1': 'active'}, self.host.states())

    def test_a_guest_that_starts_meanwhile_keeps_the_device(self) -> None:
        instance = self.gone()
        element = fake_guests.element('vpmem', fixtures.path_of(self.machine.devices[D0]))
        self.machine.before('wiped', lambda: self.machine.start_guest(instance.uuid, [element]), times=1)
        self.host.manager.release(None, instance, wait=False)
        self.host.wait()
        self.assertEqual(RELEASING, self.host.states()['d0'])
        [finding] = [one for one in self.host.audit() if one.kind == findings.RELEASE_PENDING]
        self.assertIn('names it', finding.detail)
        self.machine.delete_guest(instance.uuid)
        self.host.audit()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_a_device_is_tried_again_at_the_start_of_a_guest_without_it(self) -> None:
        """Also if a try that began before is not over then."""
        leave_host = releasing.Releasing.leave_host
        for late in (False, True):
            instance = self.host.spawn(pmem=1)
            migration = self.host.resize(instance, pmem=1)
            [new] = [row.identifier for row in self.host.records(instance) if row.role == vocabulary.INCOMING]
            migration.status = 'post-migrating'
            self.machine.delete_guest(instance.uuid)
            self.host.boot(instance)
            migration.status = 'reverted'
            self.go_on.clear()
            began = threading.Event()

            def try_long(*arguments: Any, began: threading.Event = began) -> Any:
                with contextlib.ExitStack() as end:
                    end.callback(self.go_on.wait, FOREVER_S)
                    end.callback(began.set)
                    return leave_host(*arguments)

            with mock.patch.object(releasing.Releasing, 'leave_host', try_long):
                self.host.manager.drop_move_claim_at_dest(None, instance, migration, wait=False)
                self.assertTrue(began.wait(FOREVER_S))
            if not late:
                self.go_on.set()
                self.host.wait()
            self.assertEqual(RELEASING, self.host.states()[new])
            self.machine.delete_guest(instance.uuid)
            self.host.boot(instance)
            self.go_on.set()
            self.host.wait()
            self.assertEqual((FREE, {FREE, 'active'}), (self.host.states()[new], set(self.host.states().values())))
            self.host.delete(instance)

    def test_a_row_that_changed_meanwhile_stays_held(self) -> None:
        instance = self.gone()

        def change() -> None:
            [record] = self.host.records(instance)
            self.host.store.store.write(Changes(update=(Update(record, record._replace(
                generation=record.generation + 1)),)))

        self.machine.before('wipe', change, times=1)
        self.host.manager.release(None, instance, wait=False)
        self.host.wait()
        self.assertEqual(RELEASING, self.host.states()['d0'])
        self.host.audit()
        self.assertEqual(FREE, self.host.states()['d0'])


class EndTestCase(WipesTestCase):

    def test_close_waits_for_no_wipe_and_the_row_stays(self) -> None:
        instance = self.gone()
        self.let_wipes_last()
        self.host.manager.release(None, instance, wait=False)
        self.wiping.acquire(timeout=FOREVER_S)
        running = self.host.running
        self.host.manager.close()
        self.assertEqual([RELEASING], [record.state for record in self.host.records(instance)])
        self.go_on.set()
        running.wipes.wait()
        self.assertEqual([RELEASING], [record.state for record in self.host.records(instance)])
        self.host.restart()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_what_is_done_to_a_device_is_named(self) -> None:
        for phase, said in (('discard', '1 of 4 MiB discarded, 2 MiB/s'), ('format', '1 of 4 MiB erased, 2 MiB/s'),
                            ('sanitize', '1 of 4 MiB erased, 2 MiB/s'), ('read', '1 of 4 MiB read, 2 MiB/s'),
                            ('verify', '1 of 4 MiB read back, 2 MiB/s')):
            self.assertEqual(said, str(WipeProgress(phase, 1 << 20, 4 << 20, 2 << 20, None)))
        self.assertEqual('40 of 100 % by its program', str(WipeProgress('program', 40, 100, 3, None)))

    def test_a_later_manager_finds_the_device_busy_reports_and_frees_nothing(self) -> None:
        self.interrupted()
        self.machine.wiping[D0] = WipeProgress('zero', 1 << 30, 4 << 30, 512 << 20, 14)
        with self.machine.working_on(*D0):
            self.host.restart()
            [finding] = self.host.audit()
            self.assertEqual((findings.RELEASE_PENDING, D0), (finding.kind, finding.device))
            self.assertIn('it is being wiped: 1,024 of 4,096 MiB written, 512 MiB/s, about 14 s left', finding.detail)
            self.assertEqual((RELEASING, 0), (self.host.states()['d0'], self.machine.calls['wipe']))
        self.machine.wiping.clear()
        self.host.audit()
        self.assertEqual(([], FREE), (self.host.audit(), self.host.states()['d0']))

    def test_an_unexpected_error_in_the_thread_loses_no_device(self) -> None:
        instance = self.gone()
        self.machine.before('wipe', ZeroDivisionError(), times=1)
        self.host.manager.release(None, instance, wait=False)
        self.host.wait()
        self.assertEqual(RELEASING, self.host.states()['d0'])
        self.host.audit()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_an_unexpected_error_is_a_failure_that_is_found(self) -> None:
        instance = self.gone()
        self.machine.before('wipe', ZeroDivisionError())
        self.host.manager.release(None, instance, wait=False)
        self.host.wait()
        [wipe] = self.host.manager.wipes()
        self.assertEqual((1, 'an unexpected ZeroDivisionError: the log has more'), (wipe.failed, wipe.reason))
        [finding] = self.host.audit()
        self.assertEqual((vocabulary.WARNING, D0), (finding.severity, finding.device))
        self.assertIn('an unexpected ZeroDivisionError', finding.detail)

    def test_one_that_a_domain_names_still_is_said_to_be(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.manager.release(None, instance, wait=False)
        self.host.wait()
        [wipe] = self.host.manager.wipes()
        self.assertEqual(0, wipe.failed)
        self.assertIn(instance.uuid, wipe.reason)

    def test_a_store_that_fails_at_the_end_loses_no_device(self) -> None:
        instance = self.gone()
        self.machine.before('wiped', lambda: self.host.store.before(
            'write', exception.StoreUnavailable('store', 'gone'), times=1), times=1)
        self.host.manager.release(None, instance, wait=False)
        self.host.wait()
        self.assertEqual(RELEASING, self.host.states()['d0'])
        self.host.audit()
        self.assertEqual(FREE, self.host.states()['d0'])


class ProgressTestCase(WipesTestCase):

    def test_what_is_wiped_and_how_far_that_is(self) -> None:
        instance = self.gone()
        self.let_wipes_last()
        self.host.manager.release(None, instance, wait=False)
        progress = self.machine.wiping[D0] = WipeProgress('verify', 3 << 30, 4 << 30, 1 << 30, 1)
        [wipe] = self.host.manager.wipes()
        self.assertEqual((D0, instance.uuid, progress, 0), wipe[:4])
        self.go_on.set()
        self.host.wait()
        self.assertEqual([], self.host.manager.wipes())


class AfterTestCase(WipesTestCase):
    """A service that reports its host to a scheduler needs no audit to learn that a device is clean."""

    def setUp(self) -> None:
        super().setUp()
        self.reserved: list[int] = []
        self.host.after_wipe = self.report

    def report(self) -> None:
        self.reserved.append(sum(sum(one.reserved.values()) for one in self.host.manager.providers()))

    def test_it_is_called_when_a_device_is_free(self) -> None:
        self.let_wipes_last()
        self.host.manager.release(None, self.gone(pmem=2), wait=False)
        self.report()
        self.go_on.set()
        self.host.wait()
        self.assertEqual((2, 0), (self.reserved[0], self.reserved[-1]))

    def test_it_may_call_the_manager_and_its_error_does_no_harm(self) -> None:
        def claim() -> None:
            self.host.claim(Instance(), pmem=1)
            raise KeyError

        self.host.after_wipe = claim
        self.host.claim(Instance(), pmem=1)
        self.host.manager.release(None, self.gone(), wait=False)
        self.host.wait()
        self.assertEqual({'d0': 'claimed', 'd1': 'claimed'}, self.host.states())


class FailureTestCase(WipesTestCase):

    def finding(self) -> findings.Finding:
        [finding] = [one for one in self.host.audit() if one.kind == findings.RELEASE_PENDING]
        return finding

    def test_the_finding_says_why_since_when_and_how_often(self) -> None:
        instance = self.interrupted()
        self.machine.before('wipe', FULL)
        self.host.audit()
        finding = self.finding()
        self.assertEqual((vocabulary.WARNING, D0, instance.uuid), finding[1:4])
        self.assertRegex(finding.detail, r'that failed at 20\S+\+00:00, because a bad block')
        self.assertEqual(self.host.running.withheld.failures[D0].since, finding.since)

    def test_it_grows_and_tries_grow_apart(self) -> None:
        self.interrupted()
        self.machine.before('wipe', FULL)
        tries, severities = [], []
        for audit in range(1, 40):
            before = self.machine.calls['wipe']
            found = self.host.audit()
            if self.machine.calls['wipe'] > before:
                tries.append(audit)
                severities.append([one.severity for one in found])
        self.assertEqual([1, 2, 4, 8, 16, 32], tries)
        self.assertEqual([[], *[[vocabulary.WARNING]] * 4, [vocabulary.CRITICAL]], severities)
        self.assertEqual((RELEASING, b'secret'), (self.host.states()['d0'], self.machine.read(D0)))

    def test_it_lasts_over_a_restart_which_tries_at_once(self) -> None:
        self.interrupted()
        self.machine.before('wipe', FULL)
        for _audit in range(5):
            self.host.audit()
        [before] = self.host.manager.operator.withheld()
        cause = before.causes[vocabulary.NOT_GIVEN_BACK]
        self.assertEqual(('a bad block', 3), (cause.detail, cause.tries))
        tried = self.machine.calls['wipe']
        self.host.restart()
        self.assertEqual(tried + 1, self.machine.calls['wipe'])
        self.assertEqual(cause._replace(tries=4), self.host.running.withheld.failures[D0])

    def test_it_is_over_when_the_device_goes_back(self) -> None:
        self.interrupted()
        self.machine.before('wipe', FULL, times=1)
        self.host.audit()
        self.host.audit()
        self.assertEqual((FREE, []), (self.host.states()['d0'], self.host.manager.operator.withheld()))
        self.host.audit()
        self.assertEqual([], self.host.store.store.withheld(self.host.manager.state().host_uuid))

    def test_the_pauses_of_one_owner_are_not_those_of_the_next(self) -> None:
        instance = self.interrupted()
        self.machine.before('wipe', FULL, times=5)
        for _audit in range(20):
            self.host.audit()
        self.assertEqual(5, self.host.running.withheld.failures[D0].tries)
        self.host.manager.release(None, instance)               # somebody mended it, and does not wait for the audit
        self.assertEqual(FREE, self.host.states()['d0'])
        self.interrupted()
        self.assertEqual([], self.host.audit())
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_a_mark_that_a_crash_left_withholds_nothing(self) -> None:
        self.interrupted()
        self.machine.before('wipe', FULL, times=2)
        for _audit in range(3):
            self.host.audit()
        self.assertEqual(1, len(self.host.store.store.withheld(self.host.manager.state().host_uuid)))
        self.host.audit()                       # wiped; the process ends before the store knows that
        self.host.restart()
        self.assertEqual(({'d0': FREE, 'd1': FREE}, []), (self.host.states(), self.host.manager.operator.withheld()))
        self.assertEqual([], self.host.store.store.withheld(self.host.manager.state().host_uuid))

    def test_unknown_users_are_no_failed_try(self) -> None:
        self.interrupted()
        self.machine.unknown_domains['11111111-2222-3333-4444-555555555555'] = 'not read'
        self.machine.start_guest('11111111-2222-3333-4444-555555555555', [])
        self.host.audit()
        self.assertEqual({}, dict(self.host.running.withheld.failures))
        self.machine.clear()
        self.machine.delete_guest('11111111-2222-3333-4444-555555555555')
        self.host.audit()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_a_release_that_waits_counts_too(self) -> None:
        instance = self.gone()
        self.machine.before('wipe', FULL, times=1)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)
        self.assertEqual(1, self.host.running.withheld.failures[D0].tries)


class RetirementTestCase(WipesTestCase):

    RETIRED = f'withheld: {vocabulary.RETIRED}'

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.interrupted()
        self.machine.before('wipe', FULL)
        self.host.audit()

    def retire(self, **arguments: Any) -> Any:
        return self.host.manager.operator.retire('vpmem', 'd0', self.instance.uuid, **arguments)

    def refused(self) -> str:
        before = self.host.records()
        error = self.assertRaises(exception.RowStays, self.retire)
        self.assertEqual((before, RELEASING), (self.host.records(), self.host.states()['d0']))
        return error.reason

    def test_the_row_goes_and_nobody_gets_the_device_for_good(self) -> None:
        retired = self.retire(reason='DIMM 4')
        self.assertEqual(f'instance {self.instance.uuid} had it last: DIMM 4',
                         retired.causes[vocabulary.RETIRED].detail)
        self.assertEqual([], self.host.records())
        self.machine.clear()
        for _ in range(2):
            self.host.audit()
            self.assertIn(vocabulary.RETIRED, self.host.states()['d0'])
            self.host.restart()
        self.assertEqual(b'secret', self.machine.read(D0))
        self.host.claim(Instance(), pmem=1)
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=1)

    def test_the_reason_is_by_default_why_it_was_not_given_back(self) -> None:
        self.assertIn('a bad block', self.retire().causes[vocabulary.RETIRED].detail)

    def test_a_wipe_of_it_that_fails_says_why(self) -> None:
        self.retire()
        self.host.manager.operator.admit('vpmem', 'd0', wipe=True)
        self.host.running.unproven.wait()
        self.host.audit()
        [withheld] = self.host.manager.operator.withheld()
        self.assertIn('a bad block', withheld.causes[vocabulary.UNPROVEN].detail)

    def test_admitted_again_it_is_read_before_anybody_gets_it(self) -> None:
        self.retire()
        self.host.manager.operator.admit('vpmem', 'd0')
        self.host.running.unproven.wait()
        self.assertEqual('withheld: unproven', self.host.states()['d0'])
        self.machine.clear()
        self.host.manager.operator.admit('vpmem', 'd0', wipe=True)
        self.host.running.unproven.wait()
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))

    def test_wiped_by_an_operator_it_is_retired_no_more(self) -> None:
        self.retire()
        self.machine.clear()
        self.host.manager.operator.admit('vpmem', 'd0', wipe=True)
        self.host.running.unproven.wait()
        self.assertEqual((FREE, []), (self.host.states()['d0'], self.host.manager.operator.withheld()))

    def test_only_a_device_on_its_way_back_is_retired(self) -> None:
        other = self.host.spawn(pmem=1)
        error = self.assertRaises(exception.RowStays, self.host.manager.operator.retire, 'vpmem', 'd1', other.uuid)
        self.assertIn('it is active: delete its instance in the compute service', error.reason)
        self.assertEqual('active', self.host.states()['d1'])

    def test_another_owner_than_the_confirmed_one(self) -> None:
        self.instance = Instance()
        self.assertIn('was confirmed', self.refused())

    def test_a_second_time_it_is_retired_already(self) -> None:
        first = self.retire()
        second = self.host.manager.operator.retire('vpmem', 'd0', self.instance.uuid)
        self.assertEqual((True, False), (first.changed, second.changed))
        self.assertEqual(first.causes[vocabulary.RETIRED], second.causes[vocabulary.RETIRED])

    def test_a_request_whose_answer_was_lost_is_done_again(self) -> None:
        self.retire()
        request = operator_requests.make(self.host.manager.state().host_uuid, operator_requests.RETIRE, kind='vpmem',
                                         identifier='d0', instance_uuid=self.instance.uuid, reason='')
        self.host.store.store.add_operator_request(request)
        self.host.audit()
        [answered] = self.host.store.store.operator_requests()
        answer = operator_requests.answer_of(answered)
        self.assertEqual((operator_requests.DONE, False), (answer.outcome, answer.changed) if answer else None)

    def test_nobody_has_it(self) -> None:
        self.assertRaises(exception.NotAssigned, self.host.manager.operator.retire, 'vpmem', 'd1', self.instance.uuid)

    def test_a_domain_names_it(self) -> None:
        element = fake_guests.element('vpmem', fixtures.path_of(self.machine.devices[D0]))
        self.machine.start_guest(self.instance.uuid, [element])
        self.assertIn('names it', self.refused())
        self.machine.delete_guest(self.instance.uuid)

    def test_the_hypervisor_cannot_say(self) -> None:
        self.machine.start_guest('11111111-2222-3333-4444-555555555555', [])
        self.machine.unknown_domains['11111111-2222-3333-4444-555555555555'] = 'not read'
        self.assertIn('cannot be read', self.refused())

    def test_it_is_being_wiped(self) -> None:
        self.machine.clear()
        self.let_wipes_last()
        self.host.audit(wait=False)
        self.wiping.acquire(timeout=FOREVER_S)
        self.assertIn('is working on', self.refused())
        self.go_on.set()
        self.host.wait()

    def test_another_process_wipes_it(self) -> None:
        self.machine.wiping[D0] = WipeProgress('zero', 0, 4 << 30, 0, None)
        self.assertIn('it is being wiped', self.refused())

    def test_a_request(self) -> None:
        store = self.host.store.store
        request = operator_requests.make(self.host.manager.state().host_uuid, operator_requests.RETIRE, kind='vpmem',
                                         identifier='d0', instance_uuid=self.instance.uuid, reason='')
        store.add_operator_request(request)
        self.host.audit()
        self.assertEqual([], self.host.records())
        self.assertIn(vocabulary.RETIRED, self.host.states()['d0'])


class WorkersTestCase(base.TestCase):

    def test_work_that_comes_while_a_thread_ends_is_done(self) -> None:
        pieces: list[int] = []
        done: list[int] = []
        crew = workers.Workers('test', 2, lambda: pieces.pop() if pieces else None, done.append)
        for number in range(500):
            pieces.append(number)
            crew.start()
        crew.wait()
        self.assertEqual(list(range(500)), sorted(done))

    def test_an_error_ends_no_thread(self) -> None:
        pieces = [0, 1]
        done: list[int] = []

        def work(piece: int) -> None:
            done.append(piece)
            raise ZeroDivisionError

        crew = workers.Workers('test', 1, lambda: pieces.pop() if pieces else None, work)
        crew.start()
        crew.wait()
        self.assertEqual([1, 0], done)

    def test_an_interrupt_at_any_line_of_a_start_keeps_nobody_waiting(self) -> None:
        def start(crew: workers.Workers[int], number: int | None = None) -> interrupts.Lines:
            lines = interrupts.Lines(number)
            lines.run(crew.start)
            locks.let_go(0)                     # as every public call does
            return lines

        def crew_for(pieces: list[int], done: list[int]) -> workers.Workers[int]:
            return workers.Workers('test', 1, lambda: pieces.pop() if pieces else None, done.append)

        # What is interrupted in a destructor is printed, and goes no further.
        self.patch(sys, 'unraisablehook', lambda _unraisable: None)
        counted = start(crew_for([], []))
        self.assertLess(10, counted.count)
        for number in range(counted.count):
            done: list[int] = []
            crew = crew_for([1], done)
            interrupted = start(crew, number)
            another = threading.Thread(target=crew.start, daemon=True)
            another.start()
            another.join(base.HANGS_S)
            self.assertFalse(another.is_alive(), interrupted.where)
            self.assertTrue(crew.wait(base.HANGS_S), interrupted.where)
            self.assertEqual([1], done, interrupted.where)
            self.assertEqual((None, None, None), sys.exc_info())        # nothing is left for the next test
