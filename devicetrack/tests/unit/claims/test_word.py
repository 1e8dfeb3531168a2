"""What an operator says is about the device that was meant, and acts once."""

from __future__ import annotations

import threading
from typing import Any

from devicetrack import exception
from devicetrack.claims import operator_requests
from devicetrack.claims.operator_requests import Answer
from devicetrack.objects.values import DeviceKey
from devicetrack.store.api import OperatorRequest
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.tests import base

D0, D1 = DeviceKey('vpmem', 'd0'), DeviceKey('vpmem', 'd1')
UNPROVEN = 'withheld: unproven'
ANOTHER = '11111111-1111-4111-8111-111111111111'


class WordTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2))
        self.machine = self.host.machine

    def settle(self) -> None:
        self.host.audit()
        self.host.running.unproven.wait()

    def has_bytes(self, key: DeviceKey, data: bytes = b'old') -> None:
        """Somebody beside the library wrote to a free device."""
        self.machine.write_beside(key, data)
        self.settle()
        self.assertEqual(UNPROVEN, self.host.states()[key.identifier])
        self.machine.written.discard(key)

    def another_is_there(self, key: DeviceKey) -> None:
        """Another device has the name now, with bytes that nobody offered."""
        self.machine.change(key, namespace_uuid=ANOTHER)
        self.machine.write(key, b'precious')

    def leave(self, verb: str, **arguments: Any) -> OperatorRequest:
        request = operator_requests.make(self.host.manager.state().host_uuid, verb, **arguments)
        self.host.store.add_operator_request(request)
        return request

    def leave_admission(self, **how: Any) -> OperatorRequest:
        """As ``device admit vpmem/d0`` beside this manager does."""
        return self.leave(operator_requests.ADMIT, kind='vpmem', identifier='d0',
                          details=self.machine.devices[D0].details, **how)

    def answer(self, request: OperatorRequest) -> Answer:
        [answered] = [one for one in self.host.store.operator_requests() if one.uuid == request.uuid]
        answer = operator_requests.answer_of(answered)
        assert answer is not None
        return answer

    def carry_out(self, request: OperatorRequest) -> tuple[str, bytes, str]:
        self.settle()
        return self.answer(request).outcome, self.machine.read(D0), self.host.states()['d0']


WIPE: dict[str, Any] = {'wipe': True}
BY_WORD = {'word': 'erased', 'who': 'alice'}


class ReplacedTestCase(WordTestCase):

    scenarios = base.table(('wipe', WIPE), ('word', BY_WORD), names=('how',))

    def test_the_device_that_was_meant_is_admitted(self) -> None:
        self.has_bytes(D0)
        request = self.leave_admission(**self.how)
        self.machine.change(D0, devpath='/dev/dax9.0')          # details may change; it is the same device
        outcome, _data, state = self.carry_out(request)
        self.assertEqual((operator_requests.DONE, FREE), (outcome, state))

    def test_another_one_that_has_its_name_by_then_is_left_alone(self) -> None:
        self.has_bytes(D0)
        request = self.leave_admission(**self.how)
        self.another_is_there(D0)
        self.assertEqual((operator_requests.REFUSED, b'precious', UNPROVEN), self.carry_out(request))
        self.assertIn('another device of this name', self.answer(request).text)

    def test_one_whose_answer_was_lost_is_not_done_again(self) -> None:
        self.has_bytes(D0)
        request = self.leave_admission(**self.how)
        self.host.store.before('answer_operator_request', exception.StoreUnavailable('it', 'full'), times=None)
        self.settle()
        self.assertEqual(FREE, self.host.states()['d0'])
        self.has_bytes(D0, b'precious')
        self.host.store.clear()
        self.host.restart()
        self.assertEqual((operator_requests.DONE, b'precious', UNPROVEN), self.carry_out(request))


class QueueTestCase(WordTestCase):

    def test_a_device_that_was_replaced_while_its_wipe_waited_for_another_is_not_wiped(self) -> None:
        for key in (D0, D1):
            self.has_bytes(key)
        began, go_on = threading.Event(), threading.Event()
        self.addCleanup(go_on.set)

        def wipe() -> None:
            began.set()
            go_on.wait(base.HANGS_S)

        self.machine.before('wipe', wipe, times=1)
        for key in (D0, D1):
            self.host.manager.operator.admit(*key, wipe=True)
        self.assertTrue(began.wait(base.HANGS_S))
        self.another_is_there(D1)
        self.host.audit(wait=False)
        go_on.set()
        self.settle()
        self.assertEqual((b'precious', {'d0': FREE, 'd1': UNPROVEN}), (self.machine.read(D1), self.host.states()))


class ClaimTestCase(WordTestCase):
    """The instance gave the device back after the command, and got it again."""

    def setUp(self) -> None:
        super().setUp()
        self.machine.remove(D1)
        self.host.audit()
        self.instance = self.host.spawn(pmem=1)

    def leave_for_claim(self, verb: str) -> OperatorRequest:
        """As the commands do that end a row; then the instance gets the device by another claim."""
        [row] = self.host.records()
        request = self.leave(verb, kind='vpmem', identifier='d0', instance_uuid=self.instance.uuid, reason='',
                             claims=[row.claim_id])
        self.host.delete(self.instance)
        self.host.spawn(self.instance, pmem=1)
        return request

    def assert_stays(self, request: OperatorRequest) -> None:
        self.settle()
        self.assertEqual((operator_requests.REFUSED, 1), (self.answer(request).outcome, len(self.host.records())))
        self.assertIn('a newer claim', self.answer(request).text)

    def test_it_is_not_forgotten(self) -> None:
        request = self.leave_for_claim(operator_requests.FORGET)
        self.machine.delete_guest(self.instance.uuid)
        self.machine.remove(D0)
        self.assert_stays(request)
        self.machine.add_namespace('d0')

    def test_it_is_not_retired(self) -> None:
        request = self.leave_for_claim(operator_requests.RETIRE)
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'busy'))
        self.machine.delete_guest(self.instance.uuid)
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, self.instance)
        self.assert_stays(request)
