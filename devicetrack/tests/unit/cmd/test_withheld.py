"""Commands that cordon, uncordon and admit, and the one that lists what is withheld."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
from typing import Any
import uuid

import fixtures as base_fixtures

from devicetrack import exception
from devicetrack.cmd import base as cmd_base
from devicetrack.engine.withholding import UNREAD
from devicetrack.fleet import inventory
from devicetrack.objects.values import DeviceKey
from devicetrack.pictures import natural
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase

D0, D1 = (DeviceKey(fake.VPMEM, name) for name in ('d0', 'd1'))
CORDONED = 'withheld: cordoned'


class FreshStoreTestCase(RepairCommandTestCase):
    """No command but ``recover`` makes a host."""

    def test_a_host_that_the_store_does_not_know_is_not_made(self) -> None:
        self.host.manager.close()
        with contextlib.suppress(FileNotFoundError):
            for path in glob.glob(os.path.join(self.host.configuration.state_path, 'devicetrack.sqlite*')):
                os.remove(path)
        self.program.run('db', 'sync')
        for arguments in (('device', 'cordon', 'vpmem/d0'), ('device', 'uncordon', 'vpmem/d0'),
                          ('device', 'admit', 'vpmem/d0'), ('audit', '--repair')):
            answer = self.run_to(cmd_base.ERROR, *arguments, '--host', 'compute-77')
            self.assertIn('the store has no host compute-77', answer.err)
            self.assertEqual(1, answer.err.count('\n'))
        self.assertEqual([], self.program.run('instance', 'list', '-f', 'json').data)
        self.assertIn('no host', self.run_to(cmd_base.ERROR, 'request', 'list', '--host', 'compute-77').err)


class BadOptionTestCase(RepairCommandTestCase):

    scenarios = base.table(
        *((f'timeout {value}', ('device', 'cordon', 'vpmem/d0', '--timeout', value), 'seconds')
          for value in ('nan', 'inf', '-1', '1e300', 'soon')),
        ('lines in a reason', ('device', 'cordon', 'vpmem/d0', '--reason', 'a\nb'), 'printable'),
        ('an escape in a reason', ('device', 'cordon', 'vpmem/d0', '--reason', '\x1b[2J'), 'printable'),
        ('a reason without end', ('device', 'cordon', 'vpmem/d0', '--reason', 'x' * 800_000), '255'),
        names=('arguments', 'said'))

    def test_it_is_refused_before_anything_is_done(self) -> None:
        answer = self.program.run(*self.arguments)
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn(self.said, answer.err)
        self.assertLess(len(answer.err), 5000)
        self.assertEqual([], self.host.store.operator_requests())


class HostCordonTestCase(RepairCommandTestCase):

    def test_no_claim_gets_a_device_and_instances_keep_theirs(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=1)
        answer = self.run_to(cmd_base.OK, 'host', 'cordon', '--reason', 'new board', '--no-wait')
        self.assertEqual('requested', answer.data['outcome'])
        for wanted in ({'pmem': 1}, {'vgpu': 1}):
            error = self.assertRaises(exception.NoFit, self.host.claim, Instance(), **wanted)
            self.assertIn('withheld (cordoned)', str(error))
        self.assertEqual({'active'}, {row.state for row in self.host.records(instance)})
        shown = self.program.ask('request', 'show', answer.data['request_uuid'])
        self.assertEqual('host compute-7 is withheld: cordoned (new board); instances keep 2 of its devices',
                         shown['text'])
        self.assertIn('cordon host compute-7', self.program.run('request', 'list').out)
        self.assertEqual('new board', self.program.ask('host', 'show')['cordoned'])
        self.host.audit()
        self.assertEqual({fixtures.PMEM: (2, 1), 'VGPU': (2, 1)}, {
            name: (total, provider.reserved[name]) for provider in self.host.manager.providers()
            for name, total in provider.totals.items()})

    def test_it_lasts_over_a_restart_and_holds_for_new_devices_until_it_ends(self) -> None:
        self.host.manager.close()
        self.assertEqual('cordoned', self.run_to(cmd_base.OK, 'host', 'cordon').data['outcome'])
        self.host.restart()
        self.host.machine.add_namespace('d7')
        self.host.audit()
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=1)
        listed = self.program.ask('device', 'list')
        self.assertEqual({('withheld', 'cordoned', 'with its host')}, {
            (line['status'], line['reasons'][0]['reason'], line['reasons'][0]['detail']) for line in listed})
        self.program.run('explain', '--resource', 'VGPU=1')
        answer = self.run_to(cmd_base.OK, 'device', 'uncordon', 'vpmem/d0', '--no-wait')
        self.host.audit()
        self.assertIn('the host is cordoned', self.program.ask('request', 'show', answer.data['request_uuid'])['text'])
        self.run_to(cmd_base.OK, 'host', 'uncordon', '--no-wait')
        self.host.claim(Instance(), pmem=3)
        self.assertIsNone(self.program.ask('host', 'show')['cordoned'])
        [cordoned, admitted] = self.program.ask('device', 'history', 'compute-7')
        self.assertEqual(('withheld', 'admitted', 'host', 'host compute-7'), (
            cordoned['event'], admitted['event'], cordoned['scope'], cordoned['device']))

    def test_a_device_that_is_cordoned_by_itself_stays_so(self) -> None:
        self.host.manager.operator.cordon('vpmem', 'd0')
        self.host.manager.operator.cordon('mdev', 'gpu', parent=True)
        for verb in ('cordon', 'uncordon'):
            self.run_to(cmd_base.OK, 'host', verb, '--no-wait')
            self.host.audit()
        self.assertEqual(({'d0': CORDONED, 'd1': FREE}, 1), (self.host.states(), self.host.free()))

    def test_a_machine_that_is_gone_is_forgotten_with_its_devices_when_its_name_confirms_it(self) -> None:
        gone = self.useFixture(fixtures.Host(
            devices=2, name='compute-8', store=self.host.store.store,
            configuration=self.useFixture(fixtures.Configuration(machine='b'))))
        gone.spawn(pmem=2)
        gone.manager.close()
        self.assertEqual(cmd_base.ERROR, self.program.run('host', 'forget', 'compute-8').code)
        answer = self.program.run('host', 'forget', 'compute-8', '--machine-gone')
        self.assertEqual((cmd_base.USAGE, True), (answer.code, '2 devices of 1 instance: to forget them all, confirm '
                                                  'with --confirm compute-8' in answer.err))
        self.run_to(cmd_base.OK, 'host', 'forget', 'compute-8', '--machine-gone', '--confirm', 'compute-8')
        self.assertEqual(['compute-7'], [host.name for host in self.host.store.hosts()])
        self.host.spawn(pmem=1)
        answer = self.program.run('host', 'forget', 'compute-7', '--machine-gone', '--confirm', 'compute-7')
        self.assertEqual((cmd_base.ERROR, 1), (answer.code, len(self.host.store.records())))

    def test_the_mirror_of_a_fleet_knows_it(self) -> None:
        self.run_to(cmd_base.OK, 'host', 'cordon', '--no-wait')
        self.host.audit()
        running = self.host.manager._running
        assert running is not None
        now = inventory.from_text(inventory.to_text(running.ledger.now))
        self.assertEqual([0, 0], [pool.room for pool in now.pool_states()])


class CordonTestCase(RepairCommandTestCase):

    def test_with_the_manager_down_it_is_done_at_once(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.manager.close()
        answer = self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d0', '--reason', 'firmware')
        self.assertEqual({
            'outcome': 'cordoned', 'host': 'compute-7', 'device': 'vpmem/d0', 'kind': 'vpmem', 'identifier': 'd0',
            'parent': None, 'request_uuid': None,
            'text': f'vpmem/d0 is withheld: cordoned (firmware); instance {instance.uuid} has d0, active'}, answer.data)
        self.run_to(cmd_base.OK, 'device', 'cordon', 'mdev/gpu', '--parent')
        self.host.restart()
        self.host.delete(instance)
        self.assertEqual(({'d0': CORDONED, 'd1': FREE}, 1), (self.host.states(), self.host.free()))
        self.host.manager.close()
        for arguments in (('vpmem/d0',), ('mdev/gpu', '--parent')):
            self.assertEqual('uncordoned', self.run_to(cmd_base.OK, 'device', 'uncordon', *arguments).data['outcome'])
        self.assertEqual('was not cordoned',
                         self.run_to(cmd_base.OK, 'device', 'uncordon', 'vpmem/d0').data['outcome'])
        self.host.restart()
        self.assertEqual(({'d0': FREE, 'd1': FREE}, 4), (self.host.states(), self.host.free()))

    def test_with_the_manager_up_it_is_requested(self) -> None:
        answer = self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d0', '--no-wait')
        self.assertEqual(('requested', None), (answer.data['outcome'], answer.data['text']))
        self.assertIn('is carried out before the next claim, and by the next audit; devicetrack-manage request show '
                      f'{answer.data["request_uuid"]} has', answer.err)
        self.assertEqual({'d0': FREE, 'd1': FREE}, self.host.states())
        waiting = self.program.run('request', 'list', '--waiting').out
        self.assertIn('cordon vpmem/d0', waiting)
        self.assertRegex(waiting, r'\n    asked 20\d\d-\d\d-\d\dT\S+\n')
        self.host.audit()
        self.assertRegex(self.program.run('request', 'list').out, r'\n    asked 20\S+; answered 20\S+\n')
        self.assertEqual({'d0': CORDONED, 'd1': FREE}, self.host.states())
        shown = self.program.ask('request', 'show', answer.data['request_uuid'])
        self.assertEqual(('cordon', 'done', 'vpmem/d0 is withheld: cordoned'),
                         tuple(shown[name] for name in ('verb', 'outcome', 'text')))

    def test_no_claim_after_the_command_takes_the_device(self) -> None:
        self.host.delete(self.host.spawn(pmem=1))
        answer = self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d0', '--no-wait')
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=2)
        self.assertEqual({'d0': CORDONED, 'd1': FREE}, self.host.states())
        shown = self.program.ask('request', 'show', answer.data['request_uuid'])
        self.assertEqual(('done', 'vpmem/d0 is withheld: cordoned'), (shown['outcome'], shown['text']))
        self.run_to(cmd_base.OK, 'device', 'uncordon', 'vpmem/d0', '--no-wait')
        self.host.claim(Instance(), pmem=2)

    def test_neither_does_a_claim_that_takes_another_device_while_it_makes_its_own_ready(self) -> None:
        instance = Instance()
        self.host.claim(instance, pmem=1)
        self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d1', '--no-wait')
        self.machine.before('realize', exception.RealizeFailed('vpmem', 'd0', 'a bad block'), times=1)
        self.assertRaises(exception.NoFit, self.host.manager.realize, None, instance)

    def test_a_claim_waits_for_a_store_that_does_not_say_what_is_cordoned(self) -> None:
        self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d0', '--no-wait')
        for name in ('operator_requests_of_host', 'answer_operator_request'):
            for error in (exception.StoreUnavailable('store', 'locked'), exception.OutcomeUnknown('store')):
                self.host.store.before(name, error, times=1)
                self.assertRaises(exception.StoreUnavailable, self.host.claim, Instance(), pmem=2)
        self.assertRaises(exception.NoFit, self.host.claim, Instance(), pmem=2)

    def test_claims_ask_for_requests_only_when_there_is_news(self) -> None:
        self.host.claim(Instance(), pmem=1)
        self.host.store.before('operator_requests_of_host', exception.StoreUnavailable('store', 'locked'), times=1)
        self.host.claim(Instance(), vgpu=1)
        self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d0', '--no-wait')
        self.assertRaises(exception.StoreUnavailable, self.host.claim, Instance(), pmem=1)

    def test_a_manager_of_an_earlier_release_does_not_hear_of_it(self) -> None:
        os.truncate(os.path.join(self.host.configuration.state_path, 'manager.lock'), 0)
        answer = self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d0', '--no-wait')
        self.assertIn('waits for its next audit; devicetrack-manage request', answer.err)

    def test_the_answer_is_waited_for(self) -> None:
        self.while_waiting(self.host.audit)
        for arguments, outcome, state in ((('cordon', 'vpmem/d0'), 'cordoned', CORDONED),
                                          (('uncordon', 'vpmem/d0'), 'uncordoned', FREE)):
            answer = self.run_to(cmd_base.OK, 'device', *arguments)
            self.assertEqual((outcome, state), (answer.data['outcome'], self.host.states()['d0']))
            self.assertIn('by the next audit (with --no-wait this command ends at once)\n', answer.err)
        answer = self.run_to(cmd_base.OK, 'device', 'uncordon', 'vpmem/d0')
        self.assertEqual('was not cordoned', answer.data['outcome'])

    def test_a_manager_that_does_not_answer_is_no_finding(self) -> None:
        answer = self.run_to(cmd_base.ERROR, 'device', 'cordon', 'vpmem/d0', '--timeout', '0')
        self.assertEqual('waiting', answer.data['outcome'])
        self.assertIn(f'request show --wait {answer.data["request_uuid"]}', answer.err)
        shown = ('request', 'show', answer.data['request_uuid'])
        self.run_to(cmd_base.OK, *shown)
        self.run_to(cmd_base.ERROR, *shown, '--wait', '--timeout', '0')
        self.while_waiting(self.host.audit)
        self.assertEqual('done', self.run_to(cmd_base.OK, *shown, '--wait').data['outcome'])

    def test_what_this_host_does_not_have(self) -> None:
        answer = self.program.run('device', 'cordon', 'mdev/card', '--parent')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn("parent: 'mdev/card': this host has no such parent; it has these parents of this kind: gpu",
                      answer.err)
        self.host.manager.close()
        for command in ('cordon', 'uncordon'):
            done = self.program.run('device', command, 'vpmem/d9')
            self.assertEqual((cmd_base.ERROR, True), (done.code, 'these devices of this kind: d0, d1' in done.err))

    def test_a_mistake_has_one_exit_code_with_a_manager_and_without(self) -> None:
        mistakes = (('cordon', 'vpmem/d9'), ('uncordon', 'mdev/card', '--parent'), ('cordon', 'mdev/gpu'),
                    ('admit', 'vpmem/d9'), ('admit', 'vpmem/d0'), ('admit', 'vpmem/d0', '--wipe'))
        self.while_waiting(self.host.audit)
        with_manager = [self.program.run('device', *mistake).code for mistake in mistakes]
        self.host.manager.close()
        without = [self.program.run('device', *mistake).code for mistake in mistakes]
        self.assertEqual(([cmd_base.ERROR] * 6,) * 2, (with_manager, without))

    def test_without_waiting_a_wrong_name_leaves_no_request(self) -> None:
        for arguments, said in ((('cordon', 'vpmem/d9'), 'd0, d1'), (('uncordon', 'vpmem/d9'), 'd0, d1'),
                                (('admit', 'vpmem/d9'), 'd0, d1'), (('cordon', 'mdev/card', '--parent'), 'gpu'),
                                (('cordon', 'mdev/gpu'), 'add --parent')):
            answer = self.program.run('device', *arguments, '--no-wait')
            self.assertEqual((cmd_base.ERROR, '', True), (answer.code, answer.out, said in answer.err), answer.err)
        self.assertEqual([], self.waiting())

    def test_a_name_that_cannot_be_checked_is_the_manager_s_to_judge(self) -> None:
        self.machine.before('get_inventory', exception.HypervisorUnreachable('fake', 'restarting'))
        answer = self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d9', '--no-wait')
        self.assertEqual(('requested', ['cordon']), (answer.data['outcome'], self.waiting()))
        self.assertIn('the manager will see whether this host has it', answer.err)

    def test_what_is_withheld_already_is_known_though_it_is_away(self) -> None:
        self.host.manager.operator.cordon('vpmem', 'd0')
        self.machine.remove(D0)
        self.run_to(cmd_base.OK, 'device', 'uncordon', 'vpmem/d0', '--no-wait')
        self.assertEqual(['uncordon'], self.waiting())

    def test_the_kind_has_to_be_said(self) -> None:
        for command in ('cordon', 'uncordon', 'admit'):
            self.assertEqual(cmd_base.USAGE, self.program.run('device', command, 'd0').code)
        self.assertEqual([], self.waiting())


class AdmitTestCase(RepairCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.machine.remove(D0)
        self.while_waiting(self.host.audit)
        self.run_to(cmd_base.OK, 'device', 'forget', 'vpmem/d0', '--confirm', instance.uuid)
        self.machine.add_namespace('d0')
        self.host.audit()

    def admit(self, code: int, *arguments: str) -> program.Answer:
        return self.run_to(code, 'device', 'admit', 'vpmem/d0', *arguments)

    def test_by_the_manager_and_without(self) -> None:
        self.assertEqual('withheld: in doubt, unproven', self.host.states()['d0'])
        self.assertEqual('requested', self.admit(cmd_base.OK, '--no-wait').data['outcome'])
        [request] = self.program.ask('request', 'list', '--waiting')
        self.assertEqual({'kind': 'vpmem', 'identifier': 'd0', 'details': self.machine.devices[D0].details},
                         request['arguments'])
        self.assertEqual('admit vpmem/d0', request['request'])
        self.host.audit()
        self.assertEqual((FREE, []), (self.host.states()['d0'], self.program.ask('device', 'list', '--withheld')))
        self.assertEqual('refused', self.admit(cmd_base.ERROR).data['outcome'])

    def test_with_the_manager_down(self) -> None:
        self.host.manager.close()
        self.assertEqual({'outcome': 'admitted', 'host': 'compute-7', 'device': 'vpmem/d0', 'kind': 'vpmem',
                          'identifier': 'd0', 'text': 'vpmem/d0 is not withheld', 'request_uuid': None},
                         self.admit(cmd_base.OK).data)
        self.host.restart()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_a_wipe_that_the_manager_does(self) -> None:
        self.machine.write(D0, b'secret')
        self.while_waiting(self.host.audit)
        answer = self.admit(cmd_base.OK, '--wipe')
        self.assertEqual('wiping', answer.data['outcome'])
        self.assertIn('it is being wiped', answer.data['text'])
        self.host.running.unproven.wait()
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))
        self.while_waiting(self.host.audit)
        self.assertIn('it is free: the next claim may take it', self.admit(cmd_base.ERROR, '--wipe').err)

    def test_one_that_was_replaced_after_the_command_is_left_alone(self) -> None:
        for how in (('--wipe',), ('--clean-by-my-word', 'erased')):
            self.admit(cmd_base.OK, '--no-wait', *how)
            self.machine.change(D0, namespace_uuid=str(uuid.uuid4()))
            self.machine.write(D0, b'precious')
            self.host.audit()
            self.host.running.unproven.wait()
            self.assertEqual((b'precious', 'withheld: in doubt, unproven'),
                             (self.machine.read(D0), self.host.states()['d0']))

    def test_a_wipe_with_the_manager_down_is_waited_for(self) -> None:
        self.machine.write(D0, b'secret')
        self.host.manager.close()
        answer = self.admit(cmd_base.OK, '--wipe').data
        self.assertEqual(('admitted', 'vpmem/d0 is not withheld'), (answer['outcome'], answer['text']))
        self.host.restart()
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))

    def test_a_wipe_that_fails_says_why(self) -> None:
        self.machine.write(D0, b'secret')
        self.host.manager.close()
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'it is read-only'))
        answer = self.program.run('device', 'admit', 'vpmem/d0', '--wipe')
        self.assertEqual((cmd_base.ERROR, True), (answer.code, 'it is read-only' in answer.out + answer.err))

    def test_a_wipe_that_fails_admits_nothing_that_is_only_in_doubt(self) -> None:
        self.machine.unproven.discard(D0)       # its proof is older than the doubt
        self.host.manager.close()
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'bad blocks'))
        for policy in ('verify', 'trust'):
            config_file = program.write_configuration(self.temp_dir(), self.host.conf, f'unproven_devices = {policy}')
            answer = self.program.run('device', 'admit', 'vpmem/d0', '--wipe', config_file=config_file)
            self.assertEqual((cmd_base.ERROR, ''), (answer.code, answer.out))
            self.assertIn('device vpmem/d0 stays withheld: wiping it failed: bad blocks', answer.err)
        self.host.restart()
        self.assertEqual('withheld: in doubt', self.host.states()['d0'])

    def test_a_wipe_that_the_store_does_not_note_admits_nothing_yet(self) -> None:
        self.host.manager.close()

        def refuse(*_arguments: Any) -> None:
            raise exception.StoreUnavailable('the store', 'full')

        with base_fixtures.MonkeyPatch('devicetrack.store.sql.store.SQLStore.set_withheld', refuse):
            answer = self.program.run('device', 'admit', 'vpmem/d0', '--wipe')
        self.assertEqual((cmd_base.ERROR, True), (answer.code, 'vpmem/d0 stays withheld: it was wiped' in answer.err))
        self.assertEqual('admitted', self.admit(cmd_base.OK).data['outcome'])
        self.host.restart()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_a_refusal_says_why(self) -> None:
        self.machine.unknown_domains['x'] = 'torn'
        self.assertIn('domain x cannot be read (torn)', self.admit(cmd_base.ERROR).err)
        self.host.manager.close()
        answer = self.program.run('device', 'admit', 'vpmem/d0')
        self.assertEqual((cmd_base.ERROR, True), (answer.code, 'domain x cannot be read (torn)' in answer.err))


class ListTestCase(RepairCommandTestCase):

    def withheld(self, *fields: str) -> list[tuple[object, ...]]:
        """A tuple for each reason of each line."""
        return [(line['device'], *(reason[field] for field in ('reason', *fields)))
                for line in self.program.ask('device', 'list', '--withheld') for reason in line['reasons']]

    def test_each_device_with_every_reason_and_who_is_left(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=2)
        self.host.manager.operator.cordon('vpmem', 'd0', reason='firmware')
        self.host.manager.operator.cordon('mdev', 'gpu', parent=True)
        self.machine.change(D0, unhealthy='read-only')
        self.machine.change(D1, assignable=False)
        self.host.audit()
        lines = self.program.ask('device', 'list', '--withheld')
        left = {line['device']: (line['status'], line['instance_uuid']) for line in lines}
        mdevs = [f'mdev/{uuid}' for uuid in sorted(self.host.mdevs(), key=natural.key)]
        self.assertEqual({**dict.fromkeys((*mdevs, 'vpmem/d0'), ('held', instance.uuid)), None: ('withheld', None),
                          'vpmem/d1': ('withheld', None)}, left)
        self.assertEqual([
            *((name, 'cordoned', None, 'operator', 'gpu') for name in mdevs),
            (None, 'cordoned', None, 'operator', None),
            ('vpmem/d0', 'cordoned', 'firmware', 'operator', None),
            ('vpmem/d0', 'unhealthy', 'read-only', 'host', None),
            ('vpmem/d1', 'made by others', None, 'host', None)], self.withheld('detail', 'by', 'parent'))
        self.assertEqual([True, True, True, True, False], [line['since'] is not None for line in lines])

    def test_what_no_audit_has_noted_yet_says_why(self) -> None:
        self.machine.change(D0, unhealthy='read-only')
        self.machine.unknown_domains['x'] = 'torn'
        answer = self.run_to(cmd_base.ATTENTION, 'device', 'list', '--withheld')
        self.assertEqual([('vpmem/d0', 'unhealthy', 'read-only', None), ('vpmem/d0', 'in doubt', UNREAD, None),
                          ('vpmem/d1', 'in doubt', UNREAD, None)],
                         [(line['device'], reason['reason'], reason['detail'], reason['since'])
                          for line in answer.data for reason in line['reasons']])

    def test_it_may_be_one_audit_behind_as_its_help_says(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)
        self.assertEqual([], self.withheld())
        self.host.audit()
        self.assertEqual([('vpmem/d0', 'not given back')], self.withheld())
        self.assertIn('one audit behind', ' '.join(self.program.run('help', 'device', 'list').out.split()))

    def test_a_free_device_has_no_reason_that_ended(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)
        self.host.audit()
        self.machine.clear()
        self.host.manager.release(None, instance)
        line = self.device('d0')
        self.assertEqual(('free', [], None), (line['status'], line['reasons'], line['since']))

    def test_since_of_a_releasing_device_is_that_of_its_release(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.change(D0, unhealthy='read-only')
        self.host.audit()
        self.assertIsNotNone(self.device('d0')['since'])
        self.machine.delete_guest(instance.uuid)
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)
        self.assertIsNone(self.device('d0')['since'])
        self.host.audit()
        line = self.device('d0')
        [reason] = [one for one in line['reasons'] if one['reason'] == 'not given back']
        self.assertEqual(('releasing', reason['since']), (line['status'], line['since']))

    def device(self, identifier: str) -> Any:
        [line] = [one for one in json.loads(self.program.run('device', 'list', '-f', 'json').out)
                  if one['identifier'] == identifier]
        return line

    def test_people_get_times_of_their_zone_and_programs_in_utc(self) -> None:
        self.useFixture(base_fixtures.EnvironmentVariable('TZ', 'Asia/Kolkata'))
        time.tzset()
        self.addCleanup(time.tzset)
        self.host.manager.operator.cordon('vpmem', 'd0')
        answer = self.program.run('device', 'list', '--withheld')
        self.assertEqual(cmd_base.OK, answer.code)
        self.assertRegex(answer.out, r'20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+05:30')
        [line] = self.program.ask('device', 'list', '--withheld')
        self.assertRegex(line['since'], r'^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$')

    def test_devices_and_explain_say_all_reasons(self) -> None:
        self.host.manager.operator.cordon('vpmem', 'd0')
        self.machine.change(D0, unhealthy='read-only')
        self.assertEqual([('vpmem/d0', 'cordoned', None), ('vpmem/d0', 'unhealthy', 'read-only')],
                         self.withheld('detail'))
        answer = self.run_to(cmd_base.ATTENTION, 'explain', '--resource', 'CUSTOM_PMEM_NAMESPACE_4GB=2')
        self.assertEqual([{'reasons': 'cordoned, unhealthy', 'amount': 1}], answer.data[0]['withheld'])
        self.assertIn('1 withheld (cordoned, unhealthy)', answer.data[0]['explanation'])
        self.assertIn('vpmem/d0 is withheld: cordoned; unhealthy: read-only', answer.err)
