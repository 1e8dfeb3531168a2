"""Commands that change rows: beside a manager that works, and in place of one that does not."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import Any

import fixtures as base_fixtures

from devicetrack import exception
from devicetrack.claims import operator_requests
from devicetrack.claims.repairs import Repairs
from devicetrack.cmd import audit
from devicetrack.cmd import base as cmd_base
from devicetrack.cmd import request
from devicetrack.cmd import requesting
from devicetrack.objects.values import DeviceKey
from devicetrack.store.api import Changes
from devicetrack.store.api import Host
from devicetrack.store.api import OperatorRequest
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program

D0, D1 = (DeviceKey(fake.VPMEM, name) for name in ('d0', 'd1'))
ANOTHER = '7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001'


class RepairCommandTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2, parents={'gpu': 2}, name='compute-7'))
        self.machine = self.host.machine
        self.program = self.useFixture(program.Program(self.host.configuration, self.machine))
        # A test that waits for an answer that nobody gives fails soon.
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.cmd.requesting.TIMEOUT_S', 2.0))

    def run_to(self, code: int, *arguments: str) -> program.Answer:
        answer = self.program.run(*arguments, '-f', 'json')
        self.assertEqual(code, answer.code, answer.err)
        return answer

    def while_waiting(self, act: Any) -> None:
        """Do something each time that a command waits."""
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.cmd.requesting.time.sleep', lambda _seconds: act()))

    def waiting(self) -> list[str]:
        return [one.verb for one in self.host.store.operator_requests(waiting=True)]


class LostRowTestCase(RepairCommandTestCase):

    def test_the_running_service_writes_again_what_only_it_knows(self) -> None:
        instance, claimed = self.host.spawn(pmem=1), fixtures.Instance()
        self.host.claim(claimed, pmem=1)
        rows = self.host.records()
        for gone in (rows, self.host.records(claimed)):             # all rows, or some
            self.host.store.store.write(Changes(delete=tuple(gone)))
            self.host.audit()
            self.run_to(cmd_base.OK, 'audit', '--repair', '--accept', '--no-wait')
            self.assertEqual([], self.host.audit())
            self.assertEqual(rows, self.host.records())
        self.host.boot(claimed)
        self.host.delete(instance)


class AuditRepairTestCase(RepairCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1)
        self.machine.change(D0, devpath='/dev/dax9.0')

    def path(self) -> str:
        return fixtures.path_of(self.host.records()[0])

    def test_a_dry_run_shows_the_plan_and_does_nothing(self) -> None:
        for manager_works in (True, False):
            before = self.host.records()
            answer = self.run_to(cmd_base.ATTENTION, 'audit', '--repair', '--dry-run')
            [row] = answer.data
            self.assertEqual(list(audit.Audit.repair_columns), list(row))
            self.assertEqual(('compute-7', 'update details', 'vpmem', 'd0', self.instance.uuid), tuple(
                row[name] for name in ('host', 'verb', 'kind', 'identifier', 'instance_uuid')))
            self.assertEqual(('/dev/fakedax0', '/dev/dax9.0'),
                             tuple(row[name]['details']['devpath'] for name in ('before', 'after')))
            self.assertEqual('devpath /dev/fakedax0 -> /dev/dax9.0', row['change'])
            self.assertEqual((before, []), (self.host.records(), self.waiting()))
            if manager_works:
                self.host.manager.close()

    def test_nothing_to_repair(self) -> None:
        self.machine.change(D0, devpath='/dev/fakedax0')
        self.assertEqual([], self.run_to(cmd_base.OK, 'audit', '--repair', '--dry-run').data)

    def test_with_the_manager_down_it_is_done_at_once(self) -> None:
        self.host.manager.close()
        answer = self.run_to(cmd_base.OK, 'audit', '--repair')
        self.assertEqual(['d0'], [row['identifier'] for row in answer.data])
        self.assertIn('done: update details vpmem/d0', answer.err)
        self.assertEqual(('/dev/dax9.0', []), (self.path(), self.waiting()))
        self.assertEqual([], self.host.restart())

    def test_the_plan_is_shown_before_it_is_done(self) -> None:
        self.host.manager.close()
        shown: list[Any] = []
        repair = Repairs.repair

        def look_and_repair(*arguments: Any) -> Any:
            stdout: Any = sys.stdout
            shown.extend(json.loads(stdout.getvalue()))
            return repair(*arguments)

        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.claims.repairs.Repairs.repair', look_and_repair))
        answer = self.run_to(cmd_base.OK, 'audit', '--repair')
        self.assertEqual((answer.data, ['update details']), (shown, [row['verb'] for row in shown]))

    def test_with_the_manager_up_it_is_requested(self) -> None:
        answer = self.run_to(cmd_base.OK, 'audit', '--repair', '--no-wait')
        self.assertEqual(['d0'], [row['identifier'] for row in answer.data])
        self.assertIn('waits for its next audit', answer.err)
        self.assertEqual(('/dev/fakedax0', ['repair']), (self.path(), self.waiting()))
        self.assertEqual([], self.host.audit())
        self.assertEqual('/dev/dax9.0', self.path())
        [listed] = self.program.ask('request', 'list')
        self.assertEqual(list(request.List.columns), list(listed))
        self.assertEqual(('compute-7', 'repair', {'accept': False, 'moves': []}, 'done'), tuple(
            listed[name] for name in ('host', 'verb', 'arguments', 'outcome')))

    def test_the_answer_is_waited_for(self) -> None:
        self.while_waiting(self.host.audit)
        answer = self.run_to(cmd_base.OK, 'audit', '--repair')
        self.assertIn('done: 1 of 1 repairs done', answer.err)
        self.assertIn('done: update details vpmem/d0', answer.err)

    def away(self, times: int) -> None:
        """Let the store not answer the first looks for the answer."""
        find, left = requesting.find, list(range(times))

        def find_later(store: Any, uuid: str) -> Any:
            if left:
                left.pop()
                raise exception.StoreUnavailable('the store', 'away')
            return find(store, uuid)

        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.cmd.requesting.find', find_later))

    def test_a_store_that_is_away_for_a_moment_ends_no_wait(self) -> None:
        self.away(1)
        self.while_waiting(self.host.audit)
        self.assertIn('done: 1 of 1 repairs done', self.run_to(cmd_base.OK, 'audit', '--repair').err)

    def test_a_store_that_stays_away_leaves_the_request(self) -> None:
        self.away(2)
        answer = self.run_to(cmd_base.ERROR, 'audit', '--repair', '--timeout', '0')
        self.assertIn('stays: the manager carries it out at its next audit', answer.err)
        self.assertEqual(['repair'], self.waiting())

    def test_findings_that_no_repair_ends_need_attention(self) -> None:
        self.machine.start_guest(ANOTHER, ['<device kind="vpmem" address="/dev/fakedax1"/>'])
        for manager_works in (True, False):
            self.while_waiting(self.host.audit)
            answer = self.run_to(cmd_base.ATTENTION, 'audit', '--repair')
            self.assertIn('1 finding is left: see devicetrack-manage audit', answer.err)
            if manager_works:
                self.assertIn('done: 1 of 1 repairs done', answer.err)
                self.host.manager.close()

    def test_a_dry_run_counts_them_too(self) -> None:
        self.machine.change(D0, devpath='/dev/fakedax0')
        self.machine.start_guest(ANOTHER, ['<device kind="vpmem" address="/dev/fakedax1"/>'])
        answer = self.run_to(cmd_base.ATTENTION, 'audit', '--repair', '--dry-run')
        self.assertEqual([], answer.data)
        self.assertIn('1 finding is left: see devicetrack-manage audit', answer.err)

    def test_what_cannot_be_done_needs_attention(self) -> None:
        self.host.spawn(pmem=1)
        self.machine.change(D1, devpath='/dev/dax8.0')
        self.while_waiting(self.host.audit)
        with self.host.running.rows.working(self.instance.uuid):
            answer = self.together(
                lambda: self.run_to(cmd_base.ATTENTION, 'audit', '--repair'))[0]
        self.assertIn('partly done: 1 of 2 repairs done', answer.err)
        self.assertIn('not done: update details vpmem/d0: another operation is working on the '
                      'devices', answer.err)

    def test_options_that_go_with_it(self) -> None:
        for option in ('--dry-run', '--accept'):
            answer = self.program.run('audit', option)
            self.assertEqual((cmd_base.USAGE, ''), (answer.code, answer.out))

    def test_a_plan_for_people(self) -> None:
        answer = self.program.run('audit', '--repair', '--dry-run')
        self.assertIn('devpath /dev/fakedax0 -> /dev/dax9.0', answer.out)
        self.assertIn('nothing was done', answer.err)


class WaitingRequestTestCase(RepairCommandTestCase):
    """Requests wait while the manager is down, and somebody runs a command."""

    def assert_left_to_the_manager(self, verb: str) -> None:
        self.host.manager.close()
        before = self.host.records()
        self.run_to(cmd_base.OK, 'audit', '--repair')
        self.assertEqual(([verb], before), (self.waiting(), self.host.records()))

    def test_one_that_the_compute_service_would_have_refused(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.write(D0, b'precious')
        self.machine.delete_guest(instance.uuid)            # for a moment, as in a hard reboot
        self.host.service.known = {instance.uuid: 'here'}
        self.run_to(cmd_base.OK, 'instance', 'release', instance.uuid, '--yes', '--no-wait')
        self.assert_left_to_the_manager(operator_requests.RELEASE)
        self.host.restart()
        self.host.audit()
        [answered] = self.host.store.operator_requests()
        self.assertIn('the compute service says that it lives here', str(answered.answer))
        self.assertEqual(b'precious', self.machine.read(D0))

    def test_a_wipe_that_would_end_with_the_command(self) -> None:
        self.machine.write(D1, b'secret')
        self.machine.unproven.add(D1)
        self.host.audit()
        self.run_to(cmd_base.OK, 'device', 'admit', 'vpmem/d1', '--wipe', '--no-wait')
        self.assert_left_to_the_manager(operator_requests.ADMIT)
        self.assertEqual(b'secret', self.machine.read(D1))


class SecondCommandTestCase(RepairCommandTestCase):
    """A command works in place of the manager, and somebody runs another one."""

    def while_a_command_works(self, *arguments: str) -> program.Answer:
        self.host.manager.close()
        self.machine.write(D1, b'secret')
        self.machine.unproven.add(D1)
        answers: list[program.Answer] = []
        self.machine.before('wipe', lambda: answers.append(self.program.run(*arguments)), times=1)
        self.assertEqual('admitted', self.run_to(cmd_base.OK, 'device', 'admit', 'vpmem/d1', '--wipe').data['outcome'])
        return answers[0]

    def test_it_is_refused_at_once_and_leaves_no_request_that_nobody_answers(self) -> None:
        for arguments in (('device', 'cordon', 'vpmem/d0'), ('device', 'cordon', 'vpmem/d0', '--no-wait'),
                          ('audit', '--repair')):
            answer = self.while_a_command_works(*arguments)
            self.assertEqual((cmd_base.ERROR, []), (answer.code, self.waiting()))
            self.assertIn('a command works on host compute-7', answer.err)
            self.assertIn('again when it has ended', answer.err)

    def test_after_it_a_manager_is_a_manager_again(self) -> None:
        self.while_a_command_works('device', 'list')
        self.host.restart()
        self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d0', '--no-wait')
        self.assertEqual([operator_requests.CORDON], self.waiting())


class AcceptTestCase(RepairCommandTestCase):
    """A backup was restored that is older than a guest."""

    def setUp(self) -> None:
        super().setUp()
        self.older, self.instance = self.host.spawn(pmem=1), self.host.spawn(pmem=1, vgpu=1)
        self.rows = len(self.host.records())
        self.host.store.store.write(Changes(delete=tuple(self.host.records(self.instance))))
        self.host.restart()

    def test_without_it_nothing_is_written(self) -> None:
        for manager_works in (True, False):
            answer = self.run_to(cmd_base.ATTENTION, 'audit', '--repair', '--dry-run')
            self.assertEqual([], answer.data)
            self.assertIn('2 devices of guests have no row', answer.err)
            if manager_works:
                self.host.manager.close()
        answer = self.run_to(cmd_base.ATTENTION, 'audit', '--repair')
        self.assertIn('2 findings are left', answer.err)
        self.assertEqual(1, len(self.host.records()))

    def test_with_the_manager_down(self) -> None:
        self.host.manager.close()
        answer = self.run_to(cmd_base.OK, 'audit', '--repair', '--accept')
        self.assertEqual({('adopt', 'no row -> current, active')},
                         {(row['verb'], row['change']) for row in answer.data})
        self.assertEqual([None, None], [row['before'] for row in answer.data])
        self.assertEqual(self.rows, len(self.host.records()))
        self.assertEqual([], self.host.restart())
        self.assertIsNone(self.host.running.gate.report_only)

    def test_with_the_manager_up(self) -> None:
        self.while_waiting(self.host.audit)
        self.run_to(cmd_base.OK, 'audit', '--repair', '--accept')
        self.assertEqual((self.rows, None), (len(self.host.records()), self.host.running.gate.report_only))


class ReportOnlyTestCase(RepairCommandTestCase):
    """Whoever looks at a host whose store is older than its guests sees that it takes no claims."""

    def setUp(self) -> None:
        super().setUp()
        self.older, self.instance = self.host.spawn(pmem=1), self.host.spawn(vgpu=1)
        self.works = self.run_all()
        self.host.store.store.write(Changes(delete=tuple(self.host.records(self.instance))))
        self.host.restart()
        self.reason = str(self.host.running.gate.report_only)

    def run_all(self) -> list[int]:
        return [self.program.run(*command).code for command in (
            ('audit',), ('host', 'map'), ('host', 'show'), ('explain', '--resource', f'{fixtures.PMEM}=1'))]

    def test_every_view_of_the_host_says_so_with_the_reason_of_the_manager(self) -> None:
        self.assertEqual([0, 0, 0, 0], self.works)
        self.assertEqual([3, 3, 3, 3], self.run_all())
        self.assertIn('store is older than its guests', self.reason)
        said = f'host compute-7 is report-only: it takes no claims and gives nothing back: {self.reason}'
        self.assertIn(said, self.program.run('audit').err)
        self.assertIn('report-only: no claims', self.program.run('host', 'map').out)
        self.assertEqual(self.reason, self.run_to(cmd_base.ATTENTION, 'host', 'show').data['report_only'])

    def test_nothing_is_given_back_or_wiped_with_a_manager_or_without(self) -> None:
        self.host.service.known = {}
        self.machine.delete_guest(self.older.uuid)
        self.machine.unproven.add(D1)
        self.while_waiting(self.host.audit)
        for outcome in ('refused', ''):
            for command in (('instance', 'release', self.older.uuid, '--yes'),
                            ('device', 'admit', 'vpmem/d1', '--wipe')):
                answer = self.program.run(*command)
                self.assertEqual((cmd_base.ERROR, True), (answer.code, outcome in answer.out))
                self.assertIn(f'host compute-7 is report-only: {self.reason}', answer.err)
            self.host.manager.close()
        self.assertEqual(['active'], [record.state for record in self.host.records()])

    def test_no_request_fits(self) -> None:
        answer = self.run_to(cmd_base.ATTENTION, 'explain', '--resource', f'{fixtures.PMEM}=1')
        [part] = answer.data
        self.assertEqual((False, 1), (part['fits'], part['free']))
        for said in (part['why'], part['explanation'], answer.err):
            self.assertIn(self.reason, said)
        self.assertNotIn('each part would fit alone', answer.err)

    def test_what_one_look_alone_shows_does_not_count(self) -> None:
        looks: list[int] = []

        def and_then_it_is_over() -> None:
            looks.append(1)
            if len(looks) == 3:         # the inventory is the first
                self.machine.delete_guest(self.instance.uuid)

        self.machine.before('get_usage', and_then_it_is_over)
        answer = self.program.run('host', 'show', '-f', 'json')
        self.assertEqual((3, None), (len(looks), answer.data['report_only']))


class AcceptMoveTestCase(RepairCommandTestCase):
    """A guest's definition records a device as its own whose row is of another instance."""

    def setUp(self) -> None:
        super().setUp()
        self.owner, self.claimant = fixtures.Instance(), self.host.spawn(pmem=1)
        [row] = self.host.records()
        write = self.host.store.store.write
        write(Changes(delete=(row,)))
        write(Changes(insert=(row._replace(instance_uuid=self.owner.uuid, claim_id='an older one', generation=1),)))
        self.host.restart()

    def test_no_row_moves_before_its_device_is_named(self) -> None:
        for manager_works in (True, False):
            answer = self.run_to(cmd_base.ATTENTION, 'audit', '--repair', '--accept', '--dry-run')
            self.assertEqual([], answer.data)
            for said in (self.owner.uuid, self.claimant.uuid, '--accept-move vpmem/d0'):
                self.assertIn(said, answer.err)
            if manager_works:
                self.host.manager.close()
        self.run_to(cmd_base.ATTENTION, 'audit', '--repair', '--accept', '--accept-move', 'vpmem/d1')
        self.run_to(cmd_base.USAGE, 'audit', '--repair', '--accept', '--accept-move', 'd0')
        self.assertEqual({'d0': self.owner.uuid}, self.host.owners())

    def test_the_list_names_device_old_and_new_owner(self) -> None:
        arguments = ('audit', '--repair', '--accept', '--accept-move', 'vpmem/d0')
        [row] = self.run_to(cmd_base.ATTENTION, *arguments, '--dry-run').data
        self.assertEqual(('vpmem/d0', f'owner {self.owner.uuid} -> {self.claimant.uuid}'),
                         (row['device'], row['change']))
        self.while_waiting(self.host.audit)
        self.run_to(cmd_base.OK, *arguments)
        self.assertEqual({'d0': self.claimant.uuid}, self.host.owners())

    def test_the_finding_proposes_the_options_that_are_needed(self) -> None:
        self.assertIn('    Repair: adopt (--repair --accept --accept-move vpmem/d0)',
                      self.program.run('audit').out.splitlines())
        self.assertIn('with --accept-move for each device', str(self.host.running.gate.report_only))

    def test_goes_with_accept(self) -> None:
        answer = self.program.run('audit', '--repair', '--accept-move', 'vpmem/d0')
        self.assertEqual((cmd_base.USAGE, ''), (answer.code, answer.out))


class LostStoreTestCase(RepairCommandTestCase):
    """A store without any row beside guests with devices."""

    def setUp(self) -> None:
        super().setUp()
        self.host.spawn(pmem=1)
        self.host.store.store.write(Changes(delete=tuple(self.host.records())))
        self.host.restart()

    def test_the_audit_proposes_what_works(self) -> None:
        [finding] = self.run_to(cmd_base.ATTENTION, 'audit').data
        self.assertEqual(('used but unrecorded', None), (finding['finding'], finding['repair']))
        self.assertIn('recover --from-hypervisor', finding['proposal'])
        self.assertEqual([finding['proposal']], [one.proposal for one in self.host.audit()])

    def test_a_plan_does_not_propose_to_accept_it(self) -> None:
        answer = self.run_to(cmd_base.ATTENTION, 'audit', '--repair', '--dry-run')
        self.assertNotIn('--accept', answer.err)
        self.assertIn('recover --from-hypervisor --host compute-7', answer.err)
        self.run_to(cmd_base.ERROR, 'audit', '--repair', '--accept', '--dry-run')


class DeviceForgetTestCase(RepairCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(self.instance.uuid)
        self.machine.remove(D0)

    def forget(self, code: int, *arguments: str) -> program.Answer:
        return self.run_to(code, 'device', 'forget', 'vpmem/d0', *arguments)

    def test_it_has_to_be_confirmed(self) -> None:
        answer = self.program.run('device', 'forget', 'vpmem/d0')
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn(f'--confirm {self.instance.uuid}', answer.err)
        self.assertEqual(1, len(self.host.records()))

    def test_its_kind_has_to_be_said(self) -> None:
        self.assertEqual(cmd_base.USAGE, self.program.run('device', 'forget', 'd0').code)

    def test_one_that_nobody_holds(self) -> None:
        answer = self.program.run('device', 'forget', 'vpmem/d1', '--confirm', self.instance.uuid)
        self.assertEqual((cmd_base.ERROR, True), (answer.code, 'not assigned' in answer.err))

    def test_the_log_has_the_row(self) -> None:
        self.host.manager.close()
        path = os.path.join(self.state_path, 'log')
        answer = self.program.run('-v', '--log-file', path, 'device', 'forget', 'vpmem/d0', '--confirm',
                                  self.instance.uuid)
        for text in (answer.err, pathlib.Path(path).read_text('utf-8')):
            self.assertIn('before: ', text)
            self.assertIn('after: no row', text)

    def test_with_the_manager_down_it_is_done_at_once(self) -> None:
        self.host.manager.close()
        answer = self.forget(cmd_base.OK, '--confirm', self.instance.uuid)
        self.assertEqual(('forgotten', 'd0', self.instance.uuid, None),
                         tuple(answer.data[name] for name in ('outcome', 'identifier', 'instance_uuid',
                                                              'request_uuid')))
        self.assertNotIn('before: ', answer.err)
        self.assertEqual([], self.host.records())
        self.assertEqual([], self.host.restart())
        self.assertEqual({'d1': FREE}, self.host.states())

    def test_with_the_manager_up_it_is_requested(self) -> None:
        answer = self.forget(cmd_base.OK, '--confirm', self.instance.uuid, '--no-wait')
        self.assertEqual('requested', answer.data['outcome'])
        self.assertEqual([], self.host.audit())
        self.assertEqual(({'d1': FREE}, []), (self.host.states(), self.host.records()))
        shown = self.program.ask('request', 'show', answer.data['request_uuid'])
        self.assertEqual(('forget', 'done', []), tuple(shown[name] for name in ('verb', 'outcome', 'repairs')))

    def test_a_refusal_is_the_answer(self) -> None:
        self.machine.add_namespace('d0')
        self.while_waiting(self.host.audit)
        answer = self.forget(cmd_base.ERROR, '--confirm', self.instance.uuid)
        self.assertEqual('refused', answer.data['outcome'])
        self.assertIn('another device has its name', answer.err)
        self.assertEqual(cmd_base.ERROR, self.program.run('request', 'show', answer.data['request_uuid']).code)
        self.host.manager.close()
        answer = self.program.run('device', 'forget', 'vpmem/d0', '--confirm', self.instance.uuid)
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('another device has its name', answer.err)
        self.assertEqual(1, len(self.host.records()))

    def test_of_a_machine_that_is_gone(self) -> None:
        store = self.host.store.store
        self.assertEqual(cmd_base.USAGE, self.program.run(
            'device', 'forget', 'vpmem/d0', '--confirm', self.instance.uuid, '--machine-gone').code)
        answer = self.program.run('device', 'forget', 'vpmem/d0', '--confirm', self.instance.uuid, '--machine-gone',
                                  '--host', 'compute-7')
        self.assertIn('host compute-7 is this machine', answer.err)
        store.add_host(Host(ANOTHER, 'compute-9', 'another machine'))
        store.write(Changes(insert=(self.host.records()[0]._replace(host_uuid=ANOTHER),)))
        self.forget(cmd_base.OK, '--confirm', self.instance.uuid, '--machine-gone', '--host', 'compute-9')
        self.assertEqual(([], 1), (store.records_of_host(ANOTHER), len(self.host.records())))


class ReleaseTestCase(RepairCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(self.instance.uuid)
        self.host.service.known = {}            # the service answers, and does not know it

    def release(self, code: int, *arguments: str) -> program.Answer:
        return self.run_to(code, 'instance', 'release', self.instance.uuid, *arguments)

    def test_without_yes_it_shows_what_would_go(self) -> None:
        answer = self.program.run('instance', 'release', self.instance.uuid)
        self.assertEqual(cmd_base.USAGE, answer.code)
        self.assertIn('holds vpmem/d0 on host compute-7', answer.err)
        self.assertEqual(1, len(self.host.records()))

    def test_with_the_manager_down_it_is_done_at_once(self) -> None:
        self.host.manager.close()
        answer = self.release(cmd_base.OK, '--yes')
        self.assertEqual(('released', ['vpmem/d0'], None),
                         tuple(answer.data[name] for name in ('outcome', 'devices', 'request_uuid')))
        self.assertEqual([], self.host.records())

    def test_with_the_manager_up_it_is_requested(self) -> None:
        self.assertEqual('requested', self.release(cmd_base.OK, '--yes', '--no-wait').data['outcome'])
        self.host.audit()
        self.assertEqual([], self.host.records())

    def test_a_refusal_is_the_answer(self) -> None:
        self.machine.start_guest(self.instance.uuid, [])
        self.while_waiting(self.host.audit)
        answer = self.release(cmd_base.ERROR, '--yes')
        self.assertEqual(('refused', True), (answer.data['outcome'], 'it has a domain here' in answer.err))
        self.host.manager.close()
        answer = self.program.run('instance', 'release', self.instance.uuid, '--yes')
        self.assertEqual((cmd_base.ERROR, True), (answer.code, 'it has a domain here' in answer.err))
        answer = self.program.run('instance', 'release', ANOTHER, '--yes')
        self.assertEqual((cmd_base.ERROR, True), (answer.code, 'it has no devices' in answer.err))
        self.assertEqual(1, len(self.host.records()))

    def test_a_service_that_does_not_answer_releases_nothing(self) -> None:
        """Its guest may be undefined for a moment, as in a hard reboot."""
        def fail(_uuids: Any) -> Any:
            raise RuntimeError('no connection')

        self.while_waiting(self.host.audit)
        for answer in (fail, lambda _uuids: None, lambda _uuids: {'guest-7': 'deleted'}):
            vars(self.host.service)['instances'] = answer
            answered = self.release(cmd_base.ERROR, '--yes')
            self.assertEqual('refused', answered.data['outcome'])
            self.assertIn('the compute service does not say where it lives', answered.err)
        self.assertEqual(1, len(self.host.records()))

    def test_a_request_whose_answer_was_lost_takes_nothing_from_a_newer_claim(self) -> None:
        self.assertEqual('requested', self.release(cmd_base.OK, '--yes', '--no-wait').data['outcome'])
        self.host.store.before('answer_operator_request', exception.StoreUnavailable('store', 'full'), times=1)
        self.host.audit()
        self.assertEqual([], self.host.records())
        self.host.claim(self.instance, pmem=1)
        self.host.audit()
        self.assertEqual(['claimed'], [record.state for record in self.host.records()])
        [answered] = self.host.store.operator_requests()
        self.assertIn('is being given back', str(answered.answer))

    def test_a_claim_that_is_newer_than_the_request_keeps_its_devices(self) -> None:
        self.release(cmd_base.OK, '--yes', '--no-wait')
        self.host.manager.release(None, self.instance)
        self.host.claim(self.instance, pmem=1)
        self.host.audit()
        self.assertEqual(['claimed'], [record.state for record in self.host.records()])
        [answered] = self.host.store.operator_requests()
        self.assertIn('a newer claim', str(answered.answer))

    def test_one_that_fails_says_what_went_back_all_the_same(self) -> None:
        self.host.manager.release(None, self.instance)
        self.instance = self.host.spawn(pmem=2)
        self.machine.delete_guest(self.instance.uuid)
        self.host.manager.close()
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd1', 'a bad block'), times=1)
        answer = self.release(cmd_base.ERROR, '--yes')
        text = 'vpmem/d1 could not be given back: a bad block; given back: vpmem/d0'
        self.assertEqual(('failed', text), (answer.data['outcome'], answer.data['text']))
        self.assertIn(f'failed: {text}', answer.err)
        self.assertEqual([D1], [record.key for record in self.host.records()])
        self.release(cmd_base.OK, '--yes')
        self.assertEqual([], self.host.records())


class DoubtfulRequestTestCase(RepairCommandTestCase):
    """The store does not say whether it has a request."""

    def lose(self, times: int) -> None:
        """Lose the first answers of the store, not the requests."""
        add, left = SQLStore.add_operator_request, iter(range(times))

        def add_and_lose(store: SQLStore, request: OperatorRequest) -> None:
            add(store, request)
            if next(left, None) is not None:
                raise exception.OutcomeUnknown('the store')

        self.useFixture(base_fixtures.MonkeyPatch(
            'devicetrack.store.sql.store.SQLStore.add_operator_request', add_and_lose))

    def test_it_is_left_again_once_and_waited_for(self) -> None:
        self.lose(1)
        self.while_waiting(self.host.audit)
        self.assertEqual('cordoned', self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d0').data['outcome'])
        self.assertEqual(1, len(self.host.store.operator_requests()))

    def test_if_that_fails_too_the_error_says_how_to_see_it(self) -> None:
        self.lose(2)
        answer = self.program.run('device', 'cordon', 'vpmem/d0')
        self.assertEqual((cmd_base.ERROR, ''), (answer.code, answer.out))
        [left] = self.host.store.operator_requests(waiting=True)
        self.assertIn(f'request {left.uuid} may wait for the manager: see devicetrack-manage request show {left.uuid}',
                      answer.err)
        self.assertIn('the outcome is not known', answer.err)


class RequestTestCase(RepairCommandTestCase):

    def test_lists_those_that_match(self) -> None:
        store = self.host.store.store
        store.add_host(Host(ANOTHER, 'compute-9', 'another machine'))
        for uuid in (ANOTHER, self.host.manager.state().host_uuid):
            store.add_operator_request(operator_requests.make(uuid, operator_requests.REPAIR, accept=True))
        self.host.audit()
        for arguments, hosts in (((), ['compute-9', 'compute-7']), (('--waiting',), ['compute-9']),
                                 (('--host', 'compute-7'), ['compute-7']),
                                 (('--host', 'compute-7', '--waiting'), [])):
            self.assertEqual(hosts, [one['host'] for one in self.program.ask('request', 'list', *arguments)])
        self.assertEqual(cmd_base.ERROR, self.program.run('request', 'list', '--host', 'compute-8').code)

    def test_one_that_waits_and_one_that_nobody_left(self) -> None:
        left = operator_requests.make(self.host.manager.state().host_uuid, operator_requests.REPAIR, accept=True)
        self.host.store.add_operator_request(left._replace(arguments='{'))
        shown = self.run_to(cmd_base.OK, 'request', 'show', left.uuid).data
        self.assertEqual(('waiting', '{', None), tuple(shown[name] for name in ('outcome', 'arguments', 'text')))
        answer = self.program.run('request', 'show', ANOTHER)
        self.assertEqual((cmd_base.ERROR, True), (answer.code, 'the store has no request' in answer.err))

    def test_one_whose_answer_cannot_be_read(self) -> None:
        request = operator_requests.make(self.host.manager.state().host_uuid, operator_requests.REPAIR)
        self.host.store.add_operator_request(request)
        self.host.store.answer_operator_request(request.uuid, 1, '{"outcome": "done", "text": "x", "repairs": [1]}')
        shown = self.run_to(cmd_base.ERROR, 'request', 'show', request.uuid).data
        self.assertEqual(('failed', True), (shown['outcome'], 'cannot be read' in shown['text']))
