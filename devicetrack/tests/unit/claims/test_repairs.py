"""What is repaired when that is asked for, by a command or by the manager, and what never is."""

from __future__ import annotations

import json
from typing import Any

import fixtures as patches

from devicetrack import exception
from devicetrack.claims import locks
from devicetrack.claims import operator_requests
from devicetrack.claims import repairs
from devicetrack.engine import findings
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import WipeProgress
from devicetrack.store.api import Changes
from devicetrack.store.api import Host
from devicetrack.store.api import OperatorRequest
from devicetrack.store.api import WithheldRow
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.tests import base

D0, D1, D2 = (DeviceKey(fake.VPMEM, name) for name in ('d0', 'd1', 'd2'))
ANOTHER = '7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001'


class RepairTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'gpu': 2}))
        self.machine = self.host.machine

    allowed: frozenset[repairs.OwnerChange] = frozenset()

    def plan(self, accept: bool = False) -> repairs.Plan:
        return self.host.running.repairs.plan(repairs.Accepted(accept, self.allowed.__contains__))

    def repair(self, accept: bool = False) -> list[tuple[str, str, bool]]:
        return [(one.repair.verb, one.repair.device.identifier, one.error is None)
                for one in self.host.running.repairs.repair(self.plan(accept).repairs)]

    def restore_backup(self, *lost: fixtures.Instance) -> None:
        """The store is as it was before these instances came."""
        for instance in lost:
            self.host.store.store.write(Changes(delete=tuple(self.host.records(instance))))
        self.host.restart()


class MoveTestCase(RepairTestCase):
    """A guest's definition records a device as its own whose row is of another instance, which has no guest."""

    def setUp(self) -> None:
        super().setUp()
        self.owner, self.claimant = fixtures.Instance(), self.host.spawn(pmem=1)
        [row] = self.host.records()
        self.host.store.store.write(Changes(delete=(row,)))
        self.host.store.store.write(Changes(insert=(
            row._replace(instance_uuid=self.owner.uuid, claim_id='an older one', generation=1),)))
        self.host.restart()
        self.move = repairs.OwnerChange(D0, self.owner.uuid, self.claimant.uuid)

    def test_nothing_moves_because_a_definition_says_so(self) -> None:
        plan = self.plan(accept=True)
        self.assertEqual(((), [self.move], 0), (plan.repairs, plan.moves, plan.to_accept))
        self.assertEqual([], self.repair(accept=True))
        self.assertEqual({'d0': self.owner.uuid}, self.host.owners())
        for said in ('vpmem/d0', self.owner.uuid, self.claimant.uuid):
            self.assertIn(said, str(self.move))

    def test_a_named_row_moves(self) -> None:
        self.allowed = frozenset((self.move,))
        self.assertEqual([(findings.ADOPT, 'd0', True)], self.repair(accept=True))
        self.assertEqual({'d0': self.claimant.uuid}, self.host.owners())
        self.assertEqual([('forgotten', self.owner.uuid), ('recovered', self.claimant.uuid)], [
            (one.event.event, one.event.instance_uuid) for one in self.host.store.store.events_of_device('d0')][-2:])

    def test_a_request_moves_what_its_author_was_shown(self) -> None:
        another = self.move._replace(new_owner=ANOTHER)
        for moves, owner in (([], self.owner), ([another], self.owner), ([self.move], self.claimant)):
            self.host.store.add_operator_request(operator_requests.make(
                self.host.manager.state().host_uuid, operator_requests.REPAIR, accept=True, moves=moves))
            self.host.audit()
            self.assertEqual({'d0': owner.uuid}, self.host.owners())

    def test_a_request_that_cannot_be_read_moves_nothing(self) -> None:
        for moves in (1, [1], [['d0', 'x']]):
            self.host.store.add_operator_request(operator_requests.make(
                self.host.manager.state().host_uuid, operator_requests.REPAIR, accept=True, moves=moves))
            self.host.audit()
        self.assertEqual({'d0': self.owner.uuid}, self.host.owners())
        answers = [operator_requests.answer_of(one) for one in self.host.store.operator_requests()]
        self.assertEqual({operator_requests.REFUSED}, {answer and answer.outcome for answer in answers})


class AcceptTestCase(RepairTestCase):
    """A store that is older than its guests."""

    def setUp(self) -> None:
        super().setUp()
        self.older, self.newer = self.host.spawn(pmem=1), self.host.spawn(pmem=1, vgpu=1)
        self.rows = self.host.records()
        self.machine.write(D1, b'data')
        self.restore_backup(self.newer)

    def test_nothing_is_claimed_or_given_back_before_somebody_accepts(self) -> None:
        self.host.service.known = {self.older.uuid: 'deleted'}
        self.machine.delete_guest(self.older.uuid)
        self.assertRaises(exception.NodeUnavailable, self.host.claim, fixtures.Instance(), None, 1)
        plan = self.plan()
        self.assertEqual(((), 2, {findings.ADOPT, findings.GIVE_BACK}),
                         (plan.repairs, plan.to_accept, {one.verb for one in plan.waiting}))
        self.assertEqual([], self.repair())
        self.assertEqual(['d0'], [record.identifier for record in self.host.records()])

    def test_no_operator_ends_a_row_or_has_a_device_wiped_before_somebody_accepts(self) -> None:
        self.host.service.known = {}
        self.machine.delete_guest(self.older.uuid)
        self.machine.write(D0, b'precious')
        self.machine.unproven.add(D2)
        self.machine.write(D2, b'secret')
        self.host.audit()
        running, rows = self.host.running, self.host.records()
        for refused, call, arguments in (
                (exception.RowStays, running.repairs.release, (self.older.uuid,)),
                (exception.RowStays, running.repairs.retire, (D0, self.older.uuid)),
                (exception.RowStays, running.repairs.forget, (D0, self.older.uuid)),
                (exception.NotAdmitted, running.unproven.admit, (D2, True))):
            error = self.assertRaises(refused, call, *arguments)
            self.assertIn('is report-only: its store is older than its guests', str(error))
            self.assertIn('audit --repair --accept', str(error))
        self.assertEqual((rows, b'precious'), (self.host.records(), self.machine.read(D0)))
        self.repair(accept=True)
        self.host.audit()
        running.repairs.release(self.older.uuid)
        running.unproven.wait()
        running.unproven.admit(D2, wipe=True)
        running.unproven.wait()
        self.assertEqual((FREE, FREE), (self.host.states()['d0'], self.host.states()['d2']))

    def test_accepted_the_rows_are_written(self) -> None:
        done = self.repair(accept=True)
        self.assertEqual({(findings.ADOPT, True)}, {(verb, ok) for verb, _device, ok in done})
        like = [record._replace(generation=0, created_at=0) for record in self.rows]
        self.assertEqual(like, [record._replace(generation=0, created_at=0) for record in self.host.records()])
        self.assertEqual([], self.host.audit())
        self.assertIsNone(self.host.running.gate.report_only)
        self.host.delete(self.newer)
        self.assertEqual((b'', FREE), (self.machine.read(D1), self.host.states()['d1']))

    def test_accepted_twice(self) -> None:
        self.repair(accept=True)
        self.assertEqual([], self.repair(accept=True))

    def test_a_row_that_came_meanwhile_stays(self) -> None:
        plan = self.plan(accept=True)
        self.repair(accept=True)
        before = self.host.records()
        outcomes = self.host.running.repairs.repair(plan.repairs)
        self.assertEqual([True], [('has another row by now' in str(one.error)) for one in outcomes[:1]])
        self.assertEqual(before, self.host.records())

    def test_a_store_that_refuses_leaves_the_devices_withheld(self) -> None:
        self.host.store.before('write', exception.StoreUnavailable('it', 'full'))
        outcomes = self.host.running.repairs.repair(self.host.running.repairs.plan(repairs.Accepted(True)).repairs)
        self.assertEqual({'it: full'}, {one.error for one in outcomes})
        self.assertEqual('withheld: foreign, unproven', self.host.states()['d1'])
        self.repair(accept=True)
        self.assertEqual([], self.host.audit())

    def test_an_answer_that_is_lost_keeps_the_devices(self) -> None:
        self.host.store.lose_answer()
        outcomes = self.host.running.repairs.repair(self.host.running.repairs.plan(repairs.Accepted(True)).repairs)
        self.assertEqual(2, len([one for one in outcomes if one.error is not None]))
        self.assertEqual(self.newer.uuid, self.host.held()['d1'])
        self.host.audit()
        self.assertEqual([], self.host.audit())

    def test_an_instance_that_something_works_on_waits(self) -> None:
        plan = self.plan(accept=True)
        with self.host.running.rows.working(self.newer.uuid):
            outcomes = self.together(lambda: self.host.running.repairs.repair(plan.repairs))[0]
        self.assertEqual({'another operation is working on the devices of its instance'},
                         {one.error for one in outcomes})

    def test_what_the_guest_left_comes_back_with_it(self) -> None:
        self.repair(accept=True)
        self.host.audit()
        migration = fixtures.Migration('host', 'host', self.older.uuid, 'finished')
        self.host.service.moves = [migration]
        self.host.resize(self.older, pmem=1, migration=migration)
        self.machine.stop_guest(self.older.uuid)
        self.host.boot(self.older)
        self.restore_backup(self.older)
        self.repair(accept=True)
        self.host.audit()
        self.assertEqual([('d0', 'old', 'active'), ('d2', 'current', 'active')], sorted(
            (record.identifier, record.role, record.state) for record in self.host.records(self.older)))
        self.assertEqual([], self.host.audit())


class RowsTestCase(RepairTestCase):

    def test_details_are_taken_over(self) -> None:
        self.host.spawn(pmem=1)
        self.machine.change(D0, devpath='/dev/dax9.0')
        self.assertEqual([(findings.UPDATE_DETAILS, 'd0', True)], self.repair())
        self.assertIn('/dev/dax9.0', self.host.records()[0].details)
        self.assertEqual(([], []), (self.repair(), self.host.audit()))

    def test_a_row_that_changed_since_the_plan_is_left_alone(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.change(D0, devpath='/dev/dax9.0')
        plan = self.plan()
        self.host.boot(instance)
        before = self.host.records()
        self.assertEqual(['its row has changed since'],
                         [one.error for one in self.host.running.repairs.repair(plan.repairs)])
        self.assertEqual(before, self.host.records())

    def test_what_belongs_to_a_deleted_instance_is_given_back(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=1)
        self.machine.write(D0, b'data')
        self.machine.delete_guest(instance.uuid)
        self.assertEqual([], self.repair())
        self.host.service.known = {instance.uuid: 'deleted'}
        self.assertEqual({(findings.GIVE_BACK, True)}, {(verb, ok) for verb, _device, ok in self.repair()})
        self.assertEqual((b'', []), (self.machine.read(D0), self.host.records()))

    def test_what_a_guest_names_by_then_is_not_given_back(self) -> None:
        instance = self.host.spawn(pmem=2)
        domain = self.machine.domains[instance.uuid]
        self.machine.delete_guest(instance.uuid)
        self.host.service.known = {instance.uuid: 'deleted'}
        plan = self.plan()
        self.machine.write(D0, b'data')
        domain.live = domain.defined = (domain.live or ())[:1]
        self.machine.domains[instance.uuid] = domain
        outcomes = self.host.running.repairs.repair(plan.repairs)
        self.assertEqual({('d0', False), ('d1', True)},
                         {(one.repair.device.identifier, one.error is None) for one in outcomes})
        self.assertEqual((b'data', ['d0']), (self.machine.read(D0), [one.identifier for one in self.host.records()]))
        self.machine.delete_guest(instance.uuid)


class ForgetTestCase(RepairTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(self.instance.uuid)
        self.machine.remove(D0)

    def refused(self, because: str, uuid: str | None = None) -> None:
        before = self.host.records()
        error = self.assertRaises(exception.RowStays, self.host.running.repairs.forget, D0,
                                  uuid or self.instance.uuid)
        self.assertIn(because, str(error))
        self.assertEqual(before, self.host.records())

    def test_a_dead_device_goes(self) -> None:
        self.assertEqual('d0', self.host.running.repairs.forget(D0, self.instance.uuid).identifier)
        self.assertEqual(([], {'d1': FREE, 'd2': FREE}), (self.host.records(), self.host.states()))
        self.assertEqual([], self.host.audit())
        self.host.claim(self.instance, pmem=2)

    def test_also_one_that_could_not_be_given_back(self) -> None:
        self.assertRaises(exception.DeviceGone, self.host.manager.release, None, self.instance)
        self.assertEqual('releasing', self.host.states()['d0'])
        self.host.running.repairs.forget(D0, self.instance.uuid)
        self.assertEqual([], self.host.audit())

    def test_what_else_the_instance_has_stays(self) -> None:
        other = self.host.spawn(pmem=2)
        self.machine.delete_guest(other.uuid)
        self.machine.remove(D1)
        self.host.running.repairs.forget(D1, other.uuid)
        self.assertEqual(['d2'], [record.identifier for record in self.host.records(other)])
        self.assertEqual({'d0': self.instance.uuid, 'd2': other.uuid}, self.host.held())

    def test_nobody_holds_it(self) -> None:
        self.assertRaises(exception.NotAssigned, self.host.running.repairs.forget, D1, self.instance.uuid)

    def test_a_device_that_is_yet_to_be_made_stays_with_its_instance(self) -> None:
        instance = fixtures.Instance()
        [device] = self.host.claim(instance, vgpu=1).resources
        key = DeviceKey(device.kind, device.identifier)
        error = self.assertRaises(exception.RowStays, self.host.running.repairs.forget, key, instance.uuid)
        self.assertIn(f'its parent {device.parent} is there', str(error))
        self.host.boot(instance)
        self.machine.stop_guest(instance.uuid)
        self.machine.redefine_guest(instance.uuid)
        self.machine.remove(key)
        self.machine.reboot()
        self.machine.before('realize', exception.HypervisorUnreachable('fake', 'busy'))
        self.host.restart()
        self.assertRaises(exception.RowStays, self.host.running.repairs.forget, key, instance.uuid)
        self.machine.parents.clear()
        self.host.running.repairs.forget(key, instance.uuid)
        self.assertEqual([], self.host.records(instance))

    def test_another_owner_was_confirmed(self) -> None:
        self.refused(f'it belongs to instance {self.instance.uuid}', ANOTHER)

    def test_the_host_has_it(self) -> None:
        self.machine.add_namespace('d0')
        of_record = json.loads(self.host.records()[0].details)['versioned_object.data']
        self.machine.change(D0, namespace_uuid=of_record['namespace_uuid'])
        self.refused('the host has it: delete its instance')

    def test_another_device_in_its_place_is_retired_and_wiped(self) -> None:
        self.machine.add_namespace('d0')
        self.refused('another device has its name')
        self.refused(f'device retire vpmem/d0 --confirm {self.instance.uuid}, and devicetrack-manage device wipe')
        self.assertRaises(exception.DeviceGone, self.host.manager.release, None, self.instance)
        self.refused('or keep it: run devicetrack-manage device retire vpmem/d0')
        self.host.running.repairs.retire(D0, self.instance.uuid)
        self.host.audit()
        self.host.manager.operator.admit('vpmem', 'd0', wipe=True)
        self.host.running.unproven.wait()
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_the_host_has_it_in_no_inventory(self) -> None:
        self.machine.add_namespace('d0')
        of_record = json.loads(self.host.records()[0].details)['versioned_object.data']
        self.machine.change(D0, namespace_uuid=of_record['namespace_uuid'])
        real = self.machine.inventory()
        without = real._replace(devices=tuple(device for device in real.devices if device.key != D0))
        self.useFixture(patches.MockPatchObject(self.machine, 'inventory', lambda: without))
        self.refused('though no option names it')

    def test_its_guest_is_still_defined(self) -> None:
        self.machine.start_guest(self.instance.uuid, ['<device kind="vpmem" address="/dev/fakedax0"/>'])
        self.refused('a device that is not there')

    def test_another_guest_records_it(self) -> None:
        other = self.host.spawn(pmem=1)
        domain = self.machine.domains[other.uuid]
        domain.metadata = domain.metadata.replace('"d1"', '"d0"')
        domain.live = domain.defined = ('/dev/fakedax0',)
        self.refused('a device that is not there')

    def test_a_view_that_is_unknown(self) -> None:
        self.machine.unknown_domains['x'] = 'torn'
        self.refused('domain x cannot be read (torn)')
        self.machine.clear()
        self.machine.unknown_kinds[fake.VPMEM] = 'ndctl failed'
        self.refused('vpmem cannot be read (ndctl failed)')

    def test_a_hypervisor_that_does_not_answer(self) -> None:
        self.machine.disconnected = 'restarting'
        self.assertRaises(exception.HypervisorUnreachable, self.host.running.repairs.forget, D0, self.instance.uuid)
        self.assertEqual(1, len(self.host.records()))

    def test_of_a_machine_that_is_gone(self) -> None:
        store = self.host.store.store
        there = store.hosts()[0]
        self.assertRaises(exception.RowStays, repairs.forget_of_machine, store, there, there.machine_id, D0,
                          self.instance.uuid)
        gone = Host(ANOTHER, 'compute-9', 'another machine')
        store.add_host(gone)
        store.write(Changes(insert=(self.host.records()[0]._replace(host_uuid=ANOTHER),)))
        cordoned = WithheldRow(ANOTHER, fake.VPMEM, 'device', 'd0', '{"cordoned": {"since": 1, "detail": "", "by": '
                              '"operator"}}', 3, 1)
        store.set_withheld([cordoned])
        repairs.forget_of_machine(store, gone, there.machine_id, D0, self.instance.uuid)
        self.assertEqual(([], 1), (store.records_of_host(ANOTHER), len(self.host.records())))
        [row] = store.withheld(ANOTHER)
        self.assertEqual(({'cordoned', 'in doubt'}, 4), (set(json.loads(row.reasons)), row.generation))


D0_AS_TARGET = {'kind': fake.VPMEM, 'scope': 'device', 'name': 'd0'}


class OperatorRequestTestCase(RepairTestCase):

    def request(self, verb: str, arguments: Any = None, text: str | None = None) -> operator_requests.Answer:
        request = operator_requests.make(self.host.manager.state().host_uuid, verb, **(arguments or {}))
        if text is not None:
            request = request._replace(arguments=text)
        self.host.store.add_operator_request(request)
        self.findings = self.host.audit()
        return self.answer(request)

    def answer(self, request: OperatorRequest) -> operator_requests.Answer:
        [answered] = [one for one in self.host.store.operator_requests() if one.uuid == request.uuid]
        answer = operator_requests.answer_of(answered)
        assert answer is not None
        return answer

    def test_a_repair_is_done_by_the_next_audit_which_finds_it_done(self) -> None:
        self.host.spawn(pmem=1)
        self.machine.change(D0, devpath='/dev/dax9.0')
        answer = self.request(operator_requests.REPAIR, {'accept': False})
        self.assertEqual((operator_requests.DONE, '1 of 1 repairs done', []),
                         (answer.outcome, answer.text, self.findings))
        self.assertEqual([('update details', 'vpmem/d0', True)],
                         [(one['verb'], one['device'], one['done']) for one in answer.repairs])
        self.assertIn('/dev/dax9.0', answer.repairs[0]['text'])
        self.assertEqual([], self.host.store.operator_requests(waiting=True))

    def test_a_store_is_accepted(self) -> None:
        self.host.spawn(pmem=1)
        self.restore_backup(self.host.spawn(pmem=1))
        self.assertEqual('there was nothing to repair', self.request(operator_requests.REPAIR, {'accept': False}).text)
        self.assertEqual(operator_requests.DONE, self.request(operator_requests.REPAIR, {'accept': True}).outcome)
        self.assertEqual(([], None), (self.findings, self.host.running.gate.report_only))

    def test_a_device_is_forgotten(self) -> None:
        instance = self.host.spawn(pmem=1)
        arguments = {'kind': 'vpmem', 'identifier': 'd0', 'instance_uuid': instance.uuid}
        answer = self.request(operator_requests.FORGET, arguments)
        self.assertEqual(operator_requests.REFUSED, answer.outcome)
        self.assertIn('the host has it', answer.text)
        self.machine.delete_guest(instance.uuid)
        self.machine.remove(D0)
        self.assertEqual(operator_requests.DONE, self.request(operator_requests.FORGET, arguments).outcome)
        self.assertEqual([], self.findings)
        self.assertIn('not assigned', self.request(operator_requests.FORGET, arguments).text)

    def test_a_device_and_a_parent_are_cordoned_and_not_any_more(self) -> None:
        instance = self.host.spawn(pmem=1)
        of_device = {'kind': 'vpmem', 'scope': 'device', 'name': 'd0'}
        of_parent = {'kind': 'mdev', 'scope': 'parent', 'name': 'gpu'}
        answer = self.request(operator_requests.CORDON, {**of_device, 'reason': 'firmware'})
        self.assertEqual((operator_requests.DONE, 'vpmem/d0 is withheld: cordoned (firmware); '
                          f'instance {instance.uuid} has d0, active'), (answer.outcome, answer.text))
        self.assertEqual('parent mdev/gpu is withheld: cordoned',
                         self.request(operator_requests.CORDON, {**of_parent, 'reason': ''}).text)
        self.assertRaises(exception.NoFit, self.host.claim, fixtures.Instance(), None, 0, 1)
        for arguments in (of_device, of_parent):
            self.assertEqual(operator_requests.DONE, self.request(operator_requests.UNCORDON, arguments).outcome)
        self.host.claim(fixtures.Instance(), vgpu=1)

    def test_a_forgotten_device_is_admitted(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.machine.remove(D0)
        self.host.running.repairs.forget(D0, instance.uuid)
        self.machine.unknown_domains['x'] = 'torn'
        arguments = {'kind': 'vpmem', 'identifier': 'd0'}
        answer = self.request(operator_requests.ADMIT, arguments)
        self.assertEqual((operator_requests.REFUSED, True), (answer.outcome, 'cannot be read' in answer.text))
        self.machine.clear()
        answer = self.request(operator_requests.ADMIT, arguments)
        self.assertEqual((operator_requests.REFUSED, True), (answer.outcome, 'does not have it' in answer.text))
        self.machine.add_namespace('d0')
        self.assertEqual('vpmem/d0 is not withheld', self.request(operator_requests.ADMIT, arguments).text)

    def test_one_that_was_forgotten_and_retired_is_admitted_in_one_step(self) -> None:
        withheld = self.host.running.withheld
        withheld.forget(D0, ANOTHER)
        withheld.retire(D0, ANOTHER, '')
        self.host.store.before('set_withheld', exception.StoreUnavailable('it', 'full'), skip=1)
        self.assertEqual('vpmem/d0 is not withheld',
                         self.request(operator_requests.ADMIT, {'kind': 'vpmem', 'identifier': 'd0'}).text)

    def test_a_request_to_admit_that_was_left_before_devices_had_identifiers_in_it(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.machine.remove(D0)
        self.host.running.repairs.forget(D0, instance.uuid)
        self.machine.add_namespace('d0')
        answer = self.request(operator_requests.ADMIT, text='{"kind": "vpmem", "name": "d0"}')
        self.assertEqual((operator_requests.DONE, 'vpmem/d0 is not withheld'), (answer.outcome, answer.text))

    def test_requests_that_waited_since_cordon_had_another_name(self) -> None:
        drained = self.request('drain', {**D0_AS_TARGET, 'reason': 'hot'})
        self.assertEqual((operator_requests.DONE, 'withheld: cordoned'), (drained.outcome, self.host.states()['d0']))
        older = operator_requests.make(self.host.manager.state().host_uuid, 'drain', **D0_AS_TARGET, reason='')
        self.host.store.add_operator_request(older)
        self.assertEqual(operator_requests.DONE, self.request('undrain', D0_AS_TARGET).outcome)
        self.assertEqual((operator_requests.REFUSED, FREE), (self.answer(older).outcome, self.host.states()['d0']))

    def test_a_cordon_that_the_store_refuses_failed(self) -> None:
        self.host.store.before('set_withheld', exception.StoreUnavailable('it', 'full'))
        answer = self.request(operator_requests.CORDON, {**D0_AS_TARGET, 'reason': ''})
        self.assertEqual((operator_requests.FAILED, 'it: full'), (answer.outcome, answer.text))
        self.assertEqual(FREE, self.host.states()['d0'])

    def test_requests_that_mean_nothing_are_refused(self) -> None:
        for verb, text in (('abolish', '{}'), (operator_requests.FORGET, '{}'), (operator_requests.FORGET, '{'),
                           (operator_requests.REPAIR, '[]'), (operator_requests.FORGET, '{"kind": 1}'),
                           (operator_requests.CORDON, '{}'), (operator_requests.ADMIT, '{"kind": "vpmem"}'),
                           (operator_requests.CORDON, '{"kind": "vpmem", "scope": "rack", "name": "d0", "reason": ""}'),
                           (operator_requests.UNCORDON, '{"kind": "vpmem", "scope": "device", "name": "d9"}')):
            self.assertEqual(operator_requests.REFUSED, self.request(verb, text=text).outcome)

    def test_names_that_no_store_can_have_are_refused(self) -> None:
        half = 'd\udcff'                        # a shell makes it of a byte that is not UTF-8
        as_device = {'kind': 'vpmem', 'identifier': half, 'instance_uuid': ANOTHER}
        for verb, arguments in (
                (operator_requests.RELEASE, {'instance_uuid': half}), (operator_requests.FORGET, as_device),
                (operator_requests.RETIRE, {**as_device, 'reason': ''}), (operator_requests.ADMIT, as_device),
                (operator_requests.ADMIT, {**as_device, 'wipe': True}),
                (operator_requests.CORDON, {**D0_AS_TARGET, 'name': half, 'reason': ''}),
                (operator_requests.UNCORDON, {**D0_AS_TARGET, 'name': half})):
            self.assertEqual(operator_requests.REFUSED, self.request(verb, arguments).outcome)

    def test_a_bad_request_stops_neither_the_audit_nor_the_next_request(self) -> None:
        self.host.spawn(pmem=1)
        self.machine.change(D0, devpath='/dev/dax9.0')
        uuid = self.host.manager.state().host_uuid
        first, second = (operator_requests.make(uuid, operator_requests.REPAIR, accept=False) for _ in range(2))
        for request in (first, second):
            self.host.store.add_operator_request(request)
        wrong = ZeroDivisionError('a secret')
        self.host.store.after('operator_requests_of_host', lambda: self.machine.before('get_usage', wrong, times=1))
        self.host.audit()
        self.assertEqual((operator_requests.FAILED, operator_requests.DONE),
                         (self.answer(first).outcome, self.answer(second).outcome))
        self.assertNotIn('a secret', self.answer(first).text)

    def test_a_mistake_beside_the_work_stops_them_no_more(self) -> None:
        uuid = self.host.manager.state().host_uuid
        first, second = (operator_requests.make(uuid, operator_requests.CORDON, kind='vpmem', scope='device', name=name,
                                                reason='') for name in ('d9', 'd0'))
        for request in (first, second):
            self.host.store.add_operator_request(request)
        self.host.store.before('events_of_device', ZeroDivisionError('a secret'), times=1)
        self.host.audit()
        self.assertEqual((operator_requests.FAILED, operator_requests.DONE),
                         (self.answer(first).outcome, self.answer(second).outcome))
        self.assertNotIn('a secret', self.answer(first).text)

    def test_a_hypervisor_that_goes_away_is_an_answer(self) -> None:
        gone = exception.HypervisorUnreachable('fake', 'restarting')
        self.host.store.after('operator_requests_of_host', lambda: self.machine.before('get_usage', gone, times=1))
        answer = self.request(operator_requests.REPAIR)
        self.assertEqual((operator_requests.FAILED, str(gone)), (answer.outcome, answer.text))

    def lose_the_answer(self, verb: str, **arguments: Any) -> OperatorRequest:
        """Have the next audit carry out a request; the request still waits."""
        request = operator_requests.make(self.host.manager.state().host_uuid, verb, **arguments)
        self.host.store.add_operator_request(request)
        self.host.store.before('answer_operator_request', exception.StoreUnavailable('it', 'full'))
        self.host.audit()
        self.host.running.unproven.wait()
        self.host.running.wipes.wait()
        self.assertEqual([request], self.host.store.operator_requests(waiting=True))
        return request

    def test_a_request_whose_answer_was_lost_is_answered_again_and_not_carried_out(self) -> None:
        self.host.spawn(pmem=1)
        self.machine.change(D0, devpath='/dev/dax9.0')
        request = self.lose_the_answer(operator_requests.REPAIR, accept=False)
        self.machine.change(D0, devpath='/dev/dax8.0')
        self.host.audit()
        self.assertEqual((operator_requests.DONE, '1 of 1 repairs done'), self.answer(request)[:2])
        self.assertEqual('/dev/dax9.0', fixtures.path_of(self.host.records()[0]))

    def assert_known_after_a_restart(self, request: OperatorRequest) -> None:
        self.host.restart()
        self.host.audit()
        answer = self.answer(request)
        self.assertEqual((operator_requests.DONE, True), (answer.outcome, 'it was done before' in answer.text))

    def test_after_a_restart_the_history_knows_what_was_done(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.host.service.known = {}
        self.assert_known_after_a_restart(self.lose_the_answer(operator_requests.RELEASE, instance_uuid=instance.uuid))
        self.assertEqual([], self.host.records())
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.machine.remove(D0)
        as_device = {'kind': 'vpmem', 'identifier': 'd0'}
        self.assert_known_after_a_restart(self.lose_the_answer(
            operator_requests.FORGET, **as_device, instance_uuid=instance.uuid))
        self.machine.add_namespace('d0')
        self.machine.write(D0, b'secret')
        self.host.restart()
        self.assert_known_after_a_restart(self.lose_the_answer(operator_requests.ADMIT, **as_device, wipe=True))
        self.assertEqual((FREE, b''), (self.host.states()['d0'], self.machine.read(D0)))

    def assert_begun_and_refused(self, request: OperatorRequest, why: str) -> None:
        """The next manager does not say that it was done."""
        self.host.restart()
        self.host.audit()
        answer = self.answer(request)
        self.assertEqual((operator_requests.REFUSED, 1), (answer.outcome, len(self.host.records())))
        self.assertIn(why, answer.text)
        self.assertIn('a part of it was done before', answer.text)

    def test_a_retire_that_did_not_end_the_row_is_not_done(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, instance)
        self.host.store.before('write', exception.StoreUnavailable('it', 'full'))     # the end of the row
        request = self.lose_the_answer(operator_requests.RETIRE, kind='vpmem', identifier='d0',
                                       instance_uuid=instance.uuid, reason='')
        self.machine.wiping[D0] = WipeProgress('zero', 0, 4, 1, 4)
        self.assert_begun_and_refused(request, 'it is being wiped')

    def test_a_release_that_left_a_row_is_not_done(self) -> None:
        instance = self.host.spawn(vgpu=1)
        self.machine.delete_guest(instance.uuid)
        self.host.service.known = {}
        [row] = self.host.records()
        self.machine.before('unclaim', exception.UnclaimFailed(row.kind, row.identifier, 'it hangs'))
        request = self.lose_the_answer(operator_requests.RELEASE, instance_uuid=instance.uuid, claims=[row.claim_id])
        self.host.service.known = {instance.uuid: 'here'}           # it was only rebooted
        self.assert_begun_and_refused(request, 'it lives here')

    def test_what_another_request_did_counts_for_no_other(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        self.host.service.known = {}
        for outcome in (operator_requests.DONE, operator_requests.REFUSED):
            answer = self.request(operator_requests.RELEASE, {'instance_uuid': instance.uuid})
            self.assertEqual(outcome, answer.outcome)

    def test_a_history_that_cannot_be_read_leaves_the_request_waiting(self) -> None:
        self.host.service.known = {}
        instance = self.host.spawn(pmem=1)
        self.machine.delete_guest(instance.uuid)
        request = self.lose_the_answer(operator_requests.RELEASE, instance_uuid=instance.uuid)
        self.host.restart()
        self.host.store.before('events_of_instance', exception.StoreUnavailable('it', 'locked'), times=1)
        self.host.audit()
        self.assertEqual([request], self.host.store.operator_requests(waiting=True))
        self.host.audit()
        self.assertEqual(operator_requests.DONE, self.answer(request).outcome)

    def lose_the_answer_of_a_cordon(self) -> OperatorRequest:
        """Cordon a device; its request still waits."""
        cordon = self.lose_the_answer(operator_requests.CORDON, **D0_AS_TARGET, reason='')
        self.assertEqual('withheld: cordoned', self.host.states()['d0'])
        return cordon

    def test_after_a_newer_contrary_one_a_request_whose_answer_was_lost_is_not_done_again(self) -> None:
        for restarted in (False, True):
            cordon = self.lose_the_answer_of_a_cordon()
            if restarted:
                self.host.restart()
            self.assertEqual(operator_requests.DONE, self.request(operator_requests.UNCORDON, D0_AS_TARGET).outcome)
            self.assertEqual(FREE, self.host.states()['d0'])
            self.assertEqual(operator_requests.DONE, self.answer(cordon).outcome)

    def test_the_answer_in_hand_is_that_of_one_that_a_call_overtakes(self) -> None:
        self.host.manager.operator.cordon('vpmem', 'd0')    # so the request changes nothing, and no event names it
        cordon = self.lose_the_answer_of_a_cordon()
        self.host.manager.operator.uncordon('vpmem', 'd0')
        self.assertEqual((operator_requests.DONE, FREE), (self.answer(cordon).outcome, self.host.states()['d0']))

    def test_one_that_a_newer_contrary_one_overtook_is_refused(self) -> None:
        cordon = self.waiting(operator_requests.CORDON)
        self.request(operator_requests.UNCORDON, D0_AS_TARGET)
        self.assertEqual((FREE, operator_requests.REFUSED), (self.host.states()['d0'], self.answer(cordon).outcome))
        self.assertIn('is newer', self.answer(cordon).text)

    def test_a_call_of_the_service_is_newer_than_what_waits(self) -> None:
        manager = self.host.manager
        for verb, call, state in ((operator_requests.UNCORDON, manager.operator.cordon, 'withheld: cordoned'),
                                  (operator_requests.CORDON, manager.operator.uncordon, FREE)):
            older = self.waiting(verb)
            call('vpmem', 'd0')
            self.host.audit()
            self.assertEqual((operator_requests.REFUSED, state), (self.answer(older).outcome, self.host.states()['d0']))
            self.assertIn('a newer call of the service', self.answer(older).text)

    def test_a_call_during_the_audit_is_newer_than_what_the_audit_has_read(self) -> None:
        calls = self.host.manager.operator.cordon, self.host.manager.operator.uncordon
        for verb, call, state in ((operator_requests.UNCORDON, calls[0], 'withheld: cordoned'),
                                  (operator_requests.CORDON, calls[1], FREE)):
            earlier = operator_requests.make(self.host.manager.state().host_uuid, operator_requests.REPAIR,
                                             accept=False)
            self.host.store.add_operator_request(earlier)
            older = self.waiting(verb)
            # While the audit answers the earlier request, the service calls in another thread.
            self.host.store.before('answer_operator_request', lambda call=call: self.together(
                lambda: call('vpmem', 'd0')))
            self.host.audit()
            self.assertEqual((operator_requests.DONE, operator_requests.REFUSED, state), (
                self.answer(earlier).outcome, self.answer(older).outcome, self.host.states()['d0']))

    def test_nothing_comes_between_the_answer_of_a_request_and_what_it_asks_for(self) -> None:
        held = []
        for name in ('set_withheld', 'answer_operator_request'):
            self.host.store.before(name, lambda name=name: held.append(
                (name, locks.ANSWERING in locks.held())), times=None)
        older = self.waiting(operator_requests.UNCORDON)
        self.host.manager.operator.cordon('vpmem', 'd0')
        self.waiting(operator_requests.CORDON)
        self.host.manager.operator.uncordon('vpmem', 'd0')
        self.waiting(operator_requests.UNCORDON)
        self.host.running.operator_requests.do_now(operator_requests.CORDON, {**D0_AS_TARGET, 'reason': ''})
        self.request(operator_requests.UNCORDON, D0_AS_TARGET)
        self.assertEqual([(name, True) for name in (
            'answer_operator_request', 'set_withheld') * 3 + ('set_withheld', 'answer_operator_request')], held)
        self.assertEqual(operator_requests.REFUSED, self.answer(older).outcome)

    def test_a_call_that_cannot_be_done_refuses_no_request(self) -> None:
        older = self.waiting(operator_requests.UNCORDON)
        self.assertRaises(exception.BadRequest, self.host.manager.operator.cordon, 'vpmem', 'd0', reason='two\nlines')
        self.host.audit()
        self.assertEqual(operator_requests.DONE, self.answer(older).outcome)

    def test_a_call_does_nothing_while_an_older_request_may_still_wait(self) -> None:
        self.waiting(operator_requests.UNCORDON)
        for error in (exception.StoreUnavailable('store', 'full'), exception.OutcomeUnknown('store')):
            self.host.store.before('answer_operator_request', error, times=1)
            self.assertRaises(exception.StoreUnavailable, self.host.manager.operator.cordon, 'vpmem', 'd0')
            self.assertEqual(FREE, self.host.states()['d0'])
        self.host.manager.operator.cordon('vpmem', 'd0')
        self.assertEqual('withheld: cordoned', self.host.states()['d0'])

    def waiting(self, verb: str) -> OperatorRequest:
        """Let a request wait for the next audit."""
        older = operator_requests.make(self.host.manager.state().host_uuid, verb, **D0_AS_TARGET,
                                       **({'reason': ''} if verb == operator_requests.CORDON else {}))
        self.host.store.add_operator_request(older)
        return older

    def test_a_command_without_a_manager_is_newer_than_what_waits(self) -> None:
        for older, outcome in ((self.lose_the_answer_of_a_cordon, operator_requests.DONE),
                               (lambda: self.waiting(operator_requests.CORDON), operator_requests.REFUSED)):
            for restarted in (False, True):
                cordon = older()
                if restarted:
                    self.host.restart()
                self.host.running.operator_requests.do_now(operator_requests.UNCORDON, D0_AS_TARGET)
                self.host.audit()
                self.assertEqual((FREE, outcome), (self.host.states()['d0'], self.answer(cordon).outcome))

    def test_a_command_that_cannot_refuse_what_waits_does_nothing(self) -> None:
        self.lose_the_answer_of_a_cordon()
        self.host.store.before('answer_operator_request', exception.StoreUnavailable('it', 'full'))
        self.assertRaises(exception.StoreUnavailable, self.host.running.operator_requests.do_now,
                          operator_requests.UNCORDON, D0_AS_TARGET)
        self.assertEqual('withheld: cordoned', self.host.states()['d0'])

    def test_requests_that_cannot_be_read_stop_no_audit(self) -> None:
        self.host.store.before('operator_requests_of_host', exception.StoreUnavailable('it', 'locked'))
        self.assertEqual([], self.host.audit())

    def test_requests_for_another_host_are_left_to_its_manager(self) -> None:
        self.host.store.store.add_host(Host(ANOTHER, 'compute-9', 'another machine'))
        self.host.store.add_operator_request(operator_requests.make(ANOTHER, operator_requests.REPAIR, accept=True))
        self.host.audit()
        self.assertEqual(1, len(self.host.store.operator_requests(waiting=True)))

    def test_an_answer_that_cannot_be_read(self) -> None:
        request = operator_requests.make(ANOTHER, operator_requests.REPAIR)
        self.assertIsNone(operator_requests.answer_of(request))
        for text in ('{', '[]', '{"outcome": "done"}', '{"outcome": "done", "text": "x", "repairs": [1]}',
                     '{"outcome": "done", "text": "x", "repairs": 1}'):
            answer = operator_requests.answer_of(request._replace(answer=text))
            self.assertEqual(operator_requests.FAILED, answer.outcome if answer else None)
