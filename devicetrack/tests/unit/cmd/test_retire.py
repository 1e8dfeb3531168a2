"""What operators see of a device that is wiped, and of one that cannot be; and how they give it up."""

from __future__ import annotations

import threading

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import operator_requests
from devicetrack.objects.values import WipeProgress
from devicetrack.testing.fixtures import FREE
from devicetrack.tests.unit.cmd.test_repair import ANOTHER
from devicetrack.tests.unit.cmd.test_repair import D0
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase


class LeavingTestCase(RepairCommandTestCase):
    """An instance is gone, and its device could not be wiped, once."""

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(self.instance.uuid)
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, self.instance)


class WipingTestCase(LeavingTestCase):

    def test_the_inventory_says_how_far_a_wipe_is_whoever_does_it(self) -> None:
        self.machine.wiping[D0] = WipeProgress('verify', 1 << 30, 4 << 30, 512 << 20, 6)
        [line] = [one for one in self.run_to(0, 'device', 'list').data if one['identifier'] == 'd0']
        self.assertEqual(('releasing', {'phase': 'verify', 'done_bytes': 1 << 30, 'size_bytes': 4 << 30,
                                        'bytes_per_s': 512 << 20, 'percent': 25, 'left_s': 6}),
                         (line['status'], line['wipe']))
        # The lines of a table are broken between words.
        told = self.program.run('device', 'list').out.replace('|', ' ')
        self.assertIn('being wiped: 1,024 of 4,096 MiB read back, 512 MiB/s, about 6 s left', ' '.join(
            word for line in told.splitlines() for word in line.split()
            if word not in ('vpmem/d0', 'releasing', self.instance.uuid)))

    def test_a_slow_wipe_has_a_rate(self) -> None:
        self.assertEqual('17 of 32 MiB written, 1,023 KiB/s, about 46 s left',
                         str(WipeProgress('zero', 17 << 20, 32 << 20, (1 << 20) - 1, 46)))

    def test_a_small_device_has_amounts_that_are_not_all_zero(self) -> None:
        self.assertEqual('4 of 64 KiB written, 4 KiB/s, about 15 s left',
                         str(WipeProgress('zero', 4 << 10, 64 << 10, 4 << 10, 15)))
        self.assertEqual('16 of 512 bytes read back, 16 bytes/s', str(WipeProgress('verify', 16, 512, 16, None)))
        self.assertEqual('0 of 1 MiB written, 0 bytes/s', str(WipeProgress('zero', 0, 1 << 20, 0, None)))

    def test_what_could_not_be_given_back_is_listed_with_the_reason(self) -> None:
        self.host.audit()
        self.host.audit()
        [line] = self.run_to(0, 'device', 'list', '--withheld').data
        [reason] = line['reasons']
        self.assertEqual(('vpmem/d0', vocabulary.NOT_GIVEN_BACK, 'host', 'a bad block; tried 2 times'),
                         (line['device'], reason['reason'], reason['by'], reason['detail']))
        self.assertEqual((self.instance.uuid, 'releasing'), (line['instance_uuid'], line['status']))
        self.machine.wiping[D0] = WipeProgress('zero', 0, 4 << 30, 0, None)
        [line] = self.run_to(0, 'device', 'list', '--withheld').data
        self.assertEqual(('zero', 0, None), (line['wipe']['phase'], line['wipe']['percent'], line['wipe']['left_s']))

    def test_an_audit_by_the_command_says_why_too(self) -> None:
        self.host.audit()
        self.host.audit()
        [finding] = self.run_to(3, 'audit').data
        self.assertEqual('warning', finding['severity'])
        self.assertIn('a bad block', finding['detail'])

    def test_a_command_in_the_place_of_the_manager_leaves_interrupted_wipes_to_it(self) -> None:
        self.machine.clear()
        self.host.manager.close()
        self.run_to(0, 'device', 'cordon', 'vpmem/d1')
        self.assertEqual(1, self.machine.calls['wipe'])
        self.assertEqual('releasing', self.host.records()[0].state)

    def test_the_manager_that_is_to_give_it_back_says_that_the_wipe_began(self) -> None:
        go_on = threading.Event()
        self.addCleanup(go_on.set)
        self.machine.before('wipe', lambda: go_on.wait(60))
        self.while_waiting(lambda: self.host.audit(wait=False))
        answer = self.run_to(0, 'audit', '--repair')
        self.assertIn('done: 0 of 1 repairs done, 1 begun: ', answer.err)
        self.assertIn('devicetrack-manage: begun: retry release vpmem/d0', answer.err)

    def test_one_that_is_to_give_it_back_waits_for_the_wipe(self) -> None:
        self.machine.clear()
        self.host.manager.close()
        self.run_to(0, 'audit', '--repair')
        self.assertEqual((2, []), (self.machine.calls['wipe'], self.host.records()))


class RetireTestCase(LeavingTestCase):

    def test_it_has_to_be_confirmed(self) -> None:
        answer = self.run_to(2, 'device', 'retire', 'vpmem/d0')
        self.assertIn(f'--confirm {self.instance.uuid}', answer.err)

    def test_its_kind_has_to_be_said(self) -> None:
        self.run_to(2, 'device', 'retire', 'd0', '--confirm', self.instance.uuid)

    def test_one_that_nobody_holds(self) -> None:
        self.run_to(1, 'device', 'retire', 'vpmem/d1', '--confirm', self.instance.uuid)

    def test_with_the_manager_down_it_is_done_at_once(self) -> None:
        self.host.manager.close()
        answer = self.run_to(0, 'device', 'retire', 'vpmem/d0', '--confirm', self.instance.uuid, '--reason', 'DIMM 4')
        self.assertEqual('retired', answer.data['outcome'])
        self.assertEqual([], self.host.records())
        [line] = self.run_to(0, 'device', 'list', '--withheld').data
        self.assertNotIn(vocabulary.NOT_GIVEN_BACK, [reason['reason'] for reason in line['reasons']])
        self.host.restart()
        self.assertIn(vocabulary.RETIRED, self.host.states()['d0'])
        [line] = self.run_to(0, 'device', 'list', '--withheld').data
        details = {reason['reason']: reason['detail'] for reason in line['reasons']}
        self.assertIn('DIMM 4', details[vocabulary.RETIRED])

    def test_it_alarms_nobody_any_more(self) -> None:
        self.machine.change(D0, unhealthy='read-only')
        self.while_waiting(self.host.audit)
        self.run_to(0, 'device', 'retire', 'vpmem/d0', '--confirm', self.instance.uuid)
        self.assertEqual([], self.run_to(0, 'audit').data)
        self.assertEqual([], self.host.audit())
        self.machine.remove(D0)
        self.assertEqual([], self.run_to(0, 'audit').data)
        self.assertEqual([], self.host.audit())

    def test_with_the_manager_up_it_is_requested(self) -> None:
        self.run_to(0, 'device', 'retire', 'vpmem/d0', '--confirm', self.instance.uuid, '--no-wait')
        self.assertEqual([operator_requests.RETIRE], self.waiting())
        self.host.audit()
        self.assertEqual([], self.host.records())

    def test_a_second_time_it_is_retired_already(self) -> None:
        self.while_waiting(self.host.audit)
        for expected, stop in (('retired', lambda: None), ('was retired already', lambda: None),
                               ('was retired already', self.host.manager.close)):
            stop()
            answer = self.run_to(0, 'device', 'retire', 'vpmem/d0', '--confirm', self.instance.uuid)
            self.assertEqual(expected, answer.data['outcome'])
            self.assertIn('vpmem/d0 is withheld: retired', answer.data['text'])

    def test_a_refusal_is_the_answer(self) -> None:
        self.while_waiting(self.host.audit)
        answer = self.run_to(1, 'device', 'retire', 'vpmem/d0', '--confirm', ANOTHER)
        self.assertIn('was confirmed', answer.out + answer.err)
        self.assertEqual(1, len(self.host.records()))

    def test_admitted_with_a_wipe_it_is_free(self) -> None:
        self.host.manager.close()
        self.run_to(0, 'device', 'retire', 'vpmem/d0', '--confirm', self.instance.uuid)
        self.machine.clear()
        self.run_to(0, 'device', 'admit', 'vpmem/d0', '--wipe')
        self.host.restart()
        self.assertEqual(FREE, self.host.states()['d0'])
