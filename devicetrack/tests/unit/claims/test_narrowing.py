"""Claims that are narrowed to NUMA nodes after they were made."""

import json
import threading

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures
from devicetrack.testing.compute_service import Migration
from devicetrack.testing.fixtures import a_request
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base

ALL_FREE = dict.fromkeys(('far0', 'far1', 'near0', 'near1', 'unknown0', 'unknown1'), FREE)


class NarrowingTestCase(base.TestCase):
    """A claim on node 0 that is to be on node 1; the devices of node 0 are chosen first."""

    def setUp(self):
        super().setUp()
        self.host = self.useFixture(fixtures.Host(ready=False))
        for name, node in (('far', 0), ('near', 1), ('unknown', None)):
            for number in range(2):
                self.host.machine.add_namespace(f'{name}{number}', numa_node=node,
                                                parent='b' if node else 'a' if node == 0 else 'c')
        self.host.machine.add_parent('0000:41:00.0', numa_node=0, units=2)
        self.host.machine.add_parent('0000:84:00.0', numa_node=1, units=1)
        self.host.manager.init_host(self.host.context)
        self.instance = Instance()

    def narrow(self, claim, *nodes, policy=vocabulary.REQUIRED, wait=True):
        return self.host.manager.narrow_claim(self.host.context, claim, nodes, policy, wait)

    def names(self, resources):
        return [one.identifier for one in resources]

    def check_has(self, claim, *names):
        self.assertEqual(list(names), self.names(claim.resources))
        self.assertEqual([(name, vocabulary.CLAIMED, claim.claim_id) for name in names], [
            (record.identifier, record.state, record.claim_id) for record in self.host.records()])
        self.assertEqual(dict.fromkeys(names, self.instance.uuid), self.host.held())
        self.assertEqual([], self.host.audit())


class DevicesTestCase(NarrowingTestCase):

    def test_far_ones_are_exchanged_and_near_ones_stay(self):
        request = DeviceRequest.of((fixtures.PMEM, 3))
        claim = self.host.claim(self.instance, request)
        self.assertEqual(['far0', 'far1', 'near0'], self.names(claim.resources))
        short = self.assertRaises(exception.NoFit, self.narrow, claim, 1)
        self.assertEqual((1, 0, 1), (short.shortages[0].wanted, short.shortages[0].free, len(short.shortages)))
        self.check_has(claim, 'far0', 'far1', 'near0')

    def test_has_the_order_of_the_request(self):
        claim = self.host.claim(self.instance, pmem=2)
        fields = self.narrow(claim, 1)
        self.assertEqual((['near0', 'near1'], fields), (self.names(fields['resources']), claim.fields))
        self.assertIs(claim.resources, self.instance.resources)
        self.assertEqual([0, 1], [record.position for record in self.host.records()])
        self.check_has(claim, 'near0', 'near1')
        # No guest had the others.
        self.assertEqual(0, self.host.machine.calls['wipe'])
        for name, events in (('far0', ['claimed', 'released', 'freed']), ('near0', ['claimed'])):
            self.assertEqual(events, [one.event.event for one in self.host.store.store.events_of_device(name)])

    def test_goes_back_whole(self):
        claim = self.host.claim(self.instance, pmem=2)
        self.narrow(claim, 1)
        self.assertEqual({'resources': None}, claim.abort())
        self.assertEqual((ALL_FREE, []), (self.host.states(), self.host.records()))

    def test_preferred_takes_what_there_is(self):
        self.host.claim(Instance(), DeviceRequest.of((fixtures.PMEM, 1), numa_nodes=[1],
                                                     numa_affinity_policy='required'))
        claim = self.host.claim(self.instance, pmem=2)
        self.narrow(claim, 1, policy=vocabulary.PREFERRED)
        self.assertEqual(['near1', 'far1'], self.names(claim.resources))
        self.assertEqual({}, self.narrow(claim, 1, policy=vocabulary.PREFERRED))

    def test_legacy_keeps_what_knows_no_node_when_there_is_none_near(self):
        claim = self.host.claim(self.instance, DeviceRequest.of((fixtures.PMEM, 2), numa_nodes=[7],
                                                                numa_affinity_policy='legacy'))
        self.assertEqual(['unknown0', 'unknown1'], self.names(claim.resources))
        self.assertEqual({}, self.narrow(claim, 5, policy=vocabulary.LEGACY))
        self.narrow(claim, 1, policy=vocabulary.LEGACY)
        self.check_has(claim, 'near0', 'near1')

    def test_no_wish_exchanges_nothing(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.assertEqual([{}, {}, {}], [self.narrow(claim), self.narrow(claim, 0),
                                        self.narrow(claim, 1, policy=vocabulary.NONE)])
        self.assertEqual({}, self.narrow(self.host.claim(Instance(), {}), 1))
        self.check_has(claim, 'far0')

    def test_ones_that_are_made(self):
        claim = self.host.claim(self.instance, vgpu=1)
        [before] = self.names(claim.resources)
        self.narrow(claim, 1)
        [after] = self.names(claim.resources)
        self.assertNotEqual(before, after)
        self.check_has(claim, after)
        self.host.manager.realize(self.host.context, self.instance)
        self.assertEqual(['0000:84:00.0'], [record.parent for record in self.host.records()])
        other = self.host.claim(Instance(), vgpu=1)
        self.assertRaises(exception.NoFit, self.narrow, other, 1)

    def test_of_the_provider_that_placement_chose(self):
        [parent] = [one.uuid for one in self.host.manager.providers() if '41_00_0' in one.name or '41:00' in one.name]
        claim = self.host.claim(self.instance, {parent: {'resources': {VGPU: 1}}})
        self.assertRaises(exception.NoFit, self.narrow, claim, 1)
        self.check_has(claim, *self.names(claim.resources))

    def test_that_another_is_exchanged_for_later_are_near_too(self):
        self.host.machine.add_parent('0000:85:00.0', numa_node=1, units=1)
        self.host.restart()
        claim = self.host.claim(self.instance, vgpu=1)
        self.narrow(claim, 1)
        full = self.host.records()[0].parent
        self.host.machine.parents[full].units = 0
        self.host.manager.realize(self.host.context, self.instance)
        self.assertEqual({'0000:84:00.0', '0000:85:00.0'} - {full}, {record.parent for record in self.host.records()})


class ArgumentsTestCase(NarrowingTestCase):

    def test_are_checked(self):
        claim = self.host.claim(self.instance, pmem=1)
        for nodes, policy, field in (([-1], 'required', 'numa_nodes'), ('1', 'required', 'numa_nodes'),
                                     (None, 'required', 'numa_nodes'), ([True], 'required', 'numa_nodes'),
                                     ([1], 'some', 'numa_affinity_policy')):
            error = self.assertRaises(exception.BadRequest, self.host.manager.narrow_claim, None, claim, nodes, policy)
            self.assertEqual(field, error.where)
        self.assertRaises(exception.BadRequest, self.host.manager.narrow_claim, None, 'claim', [1])

    def test_a_claim_that_was_given_back_is_refused(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.manager.release(self.host.context, self.instance)
        self.assertRaises(exception.InstanceNotClaimed, self.narrow, claim, 1)

    def test_a_guest_that_has_started_keeps_its_devices(self):
        claim = self.host.claim(self.instance, pmem=1)
        self.host.manager.realize(self.host.context, self.instance)
        self.host.start_guest(self.instance.uuid, self.host.manager.guest_config(self.instance))
        self.host.manager.started(self.host.context, self.instance)
        self.assertRaises(exception.InvalidTransition, self.narrow, claim, 1)


class MoveTestCase(NarrowingTestCase):

    def test_has_the_new_devices_in_its_context(self):
        migration = Migration('another', 'host', self.instance.uuid)
        self.host.service.moves = [migration]
        claim = self.host.manager.resize_claim(self.host.context, self.instance, 'host', a_request(pmem=1), migration)
        fields = self.narrow(claim, 1)
        self.assertEqual({'migration_context'}, set(fields))
        self.assertEqual(['near0'], self.names(self.instance.migration_context.new_resources))
        stored = self.host.store.store.context(self.host.manager.state().host_uuid, self.instance.uuid)
        assert stored is not None
        self.assertEqual(self.instance.migration_context.obj_to_primitive(), json.loads(stored.context or ''))
        self.assertEqual([('near0', vocabulary.INCOMING, migration.uuid)], [
            (record.identifier, record.role, record.migration_uuid) for record in self.host.records()])
        claim.abort()
        self.assertEqual(ALL_FREE, self.host.states())


class FailureTestCase(NarrowingTestCase):

    def setUp(self):
        super().setUp()
        self.claim = self.host.claim(self.instance, pmem=2)

    def test_nothing_changes_when_the_store_refuses(self):
        self.host.store.before('write', exception.StoreUnavailable('store', 'gone'), times=1)
        self.assertRaises(exception.StoreUnavailable, self.narrow, self.claim, 1)
        self.check_has(self.claim, 'far0', 'far1')
        self.assertEqual(['near0', 'near1'], self.names(self.near_ones()))

    def near_ones(self):
        return self.host.claim(Instance(), DeviceRequest.of(
            (fixtures.PMEM, 2), numa_nodes=[1], numa_affinity_policy='required')).resources

    def test_all_is_held_until_the_store_has_said(self):
        for staged, names in ((self.host.store.lose_commit, ['far0', 'far1']),
                              (self.host.store.lose_answer, ['near0', 'near1'])):
            staged()
            self.assertRaises(exception.OutcomeUnknown, self.narrow, self.claim, 1)
            self.assertEqual({'far0', 'far1', 'near0', 'near1'}, set(self.host.held()))
            for _audit in range(2):
                self.host.audit()
            self.assertEqual(names, [record.identifier for record in self.host.records()])
            self.assertEqual(set(names), set(self.host.held()))
        self.claim.abort()
        self.assertEqual(ALL_FREE, self.host.states())

    def test_a_crash_after_the_commit_gives_the_old_ones_back(self):
        self.host.machine.before('unclaim', exception.HypervisorUnreachable('fake', 'gone'))
        self.narrow(self.claim, 1)
        self.assertEqual({'far0', 'far1', 'near0', 'near1'}, set(self.host.held()))
        self.host.machine.clear()
        self.host.restart()
        self.assertEqual({**ALL_FREE, 'near0': 'claimed', 'near1': 'claimed'}, self.host.states())

    def test_an_interrupt_leaves_the_one_or_the_other(self):
        def interrupted():
            raise KeyboardInterrupt
        self.host.store.before('write', interrupted, times=1)
        self.assertRaises(KeyboardInterrupt, self.narrow, self.claim, 1)
        for _audit in range(2):
            self.host.audit()
        self.check_has(self.claim, 'far0', 'far1')

    def test_at_no_time_nothing_is_held(self):
        seen = []

        def look():
            thread = threading.Thread(target=lambda: seen.append((set(self.host.held()), {
                record.identifier for record in self.host.records()})))
            thread.start()
            thread.join()

        self.host.store.before('write', look, times=1)
        self.host.machine.before('unclaim', look, times=1)
        self.narrow(self.claim, 1)
        both = {'far0', 'far1', 'near0', 'near1'}
        self.assertEqual([(both, {'far0', 'far1'}), (both, both)], seen)
        self.check_has(self.claim, 'near0', 'near1')

    def test_in_the_background_what_has_to_be_wiped_is_held_until_then(self):
        self.host.manager.realize(self.host.context, self.instance)
        self.host.machine.before('wipe', exception.UnclaimFailed('vpmem', 'far', 'a bad block'), times=1)
        self.narrow(self.claim, 1, wait=False)
        self.host.wait()
        [wipe] = self.host.manager.wipes()              # whichever thread was the first
        self.assertIn(wipe.device, (DeviceKey('vpmem', 'far0'), DeviceKey('vpmem', 'far1')))
        self.host.audit()
        self.check_has(self.claim, 'near0', 'near1')
