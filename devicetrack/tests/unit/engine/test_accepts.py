"""Devices for an item that is choosy: what is offered to it, and which of those that it accepts it gets."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import demand
from devicetrack.engine import selection
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import capacity
from devicetrack.tests.unit.engine.hosts import mdev
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import VGPU
from devicetrack.tests.unit.engine.hosts import wants


def anything(_parent, _details):
    return True


def choosy(amount=1, accepts=anything, provider_uuid=None, **affinity):
    """A demand for vGPUs that are accepted."""
    return demand.Demand((demand.Item(VGPU, amount, provider_uuid, accepts),), **affinity)


class AvailableTestCase(base.TestCase):

    def available(self, ledger, provider_uuid=None, wanted=demand.NOTHING):
        return [(device.place.parent, device.candidate.identifier, device.details, amount)
                for device, amount in ledger.available(VGPU, provider_uuid, wanted)]

    def names(self, *demanded, **wanted):
        return [name for _parent, name, _details, _amount in self.available(*demanded, **wanted)]

    def test_each_free_device_is_offered_by_itself_and_what_can_be_made_together(self):
        ledger = hosts.ledger(mdev('a', 'p0'), mdev('b', 'p0'), capacity('p0', 3), capacity('p1', 0))
        self.assertEqual([('p0', 'a', 'details of a', 1), ('p0', 'b', 'details of b', 1),
                          ('p0', None, 'template of p0 nvidia-35', 3)], self.available(ledger))

    def test_what_is_withheld_or_held_is_not_offered(self):
        devices = [mdev(name, 'p0') for name in 'abcd']
        ledger = hosts.ledger(*devices)
        ledger.withhold(devices[0].key, vocabulary.FOREIGN)
        ledger.hold([hosts.row(devices[1], 'k')])
        ledger.take('i', choosy())
        self.assertEqual(['d'], self.names(ledger))

    def test_only_what_the_affinity_and_the_provider_allow_is_offered(self):
        ledger = hosts.ledger(mdev('a', 'p0', numa_node=0), mdev('b', 'p1', numa_node=1), mdev('c', 'p2', numa_node=1))
        near = wants((VGPU, 1), numa_nodes=frozenset((1,)), numa_policy='required')
        self.assertEqual(['b', 'c'], self.names(ledger, wanted=near))
        self.assertEqual(['b'], self.names(ledger, provider('p1'), near))
        self.assertEqual([], self.available(ledger, provider('nobody')))


class ChoiceTestCase(base.TestCase):

    near = {'numa_nodes': frozenset((1,)), 'numa_policy': 'preferred'}

    def took(self, parts, wanted):
        [candidate] = hosts.ledger(*parts).take('i', wanted).candidates
        return candidate.identifier, candidate.parent

    def test_a_device_that_exists_comes_before_one_that_is_made(self):
        self.assertEqual(('a', 'p1'), self.took([capacity('p0', 2), mdev('a', 'p1')], choosy()))

    def test_a_near_one_that_is_made_comes_before_a_far_one_that_exists(self):
        parts = [mdev('a', 'p0'), capacity('p1', 1, numa_node=1)]
        self.assertEqual((None, 'p1'), self.took(parts, choosy(**self.near)))

    def test_a_far_one_serves_when_no_near_one_is_accepted(self):
        parts = [mdev('a', 'p0'), mdev('b', 'p1', numa_node=1)]
        self.assertEqual(('a', 'p0'), self.took(parts, choosy(accepts=lambda parent, _: parent == 'p0', **self.near)))

    def test_it_is_accepted_by_its_own_details(self):
        self.assertEqual(('b', 'p0'), self.took([mdev('a', 'p0'), mdev('b', 'p0')],
                                                choosy(accepts=lambda _, text: text == 'details of b')))

    def test_the_first_parent_by_name_comes_first_and_not_the_first_device(self):
        self.assertEqual(('b', 'p0'), self.took([mdev('a', 'p1'), mdev('b', 'p0')], choosy()))

    def test_the_device_that_has_been_free_for_the_longest_time_comes_first(self):
        ledger = hosts.ledger(mdev('a', 'p0'), mdev('b', 'p0'))
        ledger.free(ledger.take('k', wants((VGPU, 1))).keys)
        self.assertEqual(['b'], hosts.taken(ledger.take('i', choosy())))

    def test_what_it_gets_is_held_and_nobody_elses(self):
        ledger = hosts.ledger(mdev('a', 'p0'), mdev('b', 'p0'))
        before = hosts.everything(ledger)
        hold = ledger.take('i', choosy())
        [pool] = ledger.pools()
        device = ledger.device(hold.keys[0])
        self.assertEqual((1, 1, 1, 2), (pool.free, pool.room, pool.held, pool.total))
        self.assertEqual((selection.HELD, 'i'), (device.state, device.instance_uuid))
        self.assertEqual(['b'], hosts.taken(ledger.take('k', wants((VGPU, 1)))))
        self.assertRaises(exception.NoFit, ledger.take, 'l', choosy())
        for key in ('b', 'a'):
            ledger.put_back(hold._replace(instance_uuid='k' if key == 'b' else 'i', keys=(mdev(key, 'p0').key,)))
        self.assertEqual(before, hosts.everything(ledger))

    def test_too_few_that_are_accepted_leave_everything_as_it_was(self):
        ledger = hosts.ledger(mdev('a', 'p0'), capacity('p0', 1))
        before = hosts.everything(ledger)
        self.assertRaises(exception.NoFit, ledger.take, 'i', choosy(3))
        self.assertEqual(before, hosts.everything(ledger))


class ExchangeTestCase(base.TestCase):
    """Another device in place of one that was accepted."""

    def exchange(self, parts, wanted, accepts=anything):
        ledger = hosts.ledger(*parts)
        hold = hosts.name_all(ledger, ledger.take('i', wanted))
        first = hold.candidates[0]
        ledger.read_capacities([capacity(first.parent, 0, numa_node=first.numa_node)])
        return hosts.parents(ledger.exchange(hold.keys[0], accepts))

    parts = (capacity('p0', 1), capacity('p1', 1, numa_node=1), capacity('p2', 1))

    def test_has_the_affinity_that_was_asked_for(self):
        near = {'numa_nodes': frozenset((0,)), 'numa_policy': 'required'}
        self.assertEqual(['p2'], self.exchange(self.parts, choosy(**near)))
        self.assertRaises(exception.NoFit, self.exchange, self.parts[:2], choosy(**near))

    def test_prefers_the_nodes_that_were_asked_for_and_is_content_with_others(self):
        near = {'numa_nodes': frozenset((0,)), 'numa_policy': 'preferred'}
        self.assertEqual(['p2'], self.exchange(self.parts, choosy(**near)))
        self.assertEqual(['p1'], self.exchange(self.parts[:2], choosy(**near)))

    def test_is_of_any_node_when_none_was_asked_for(self):
        self.assertEqual(['p1'], self.exchange(self.parts, choosy()))

    def test_is_accepted_too(self):
        self.assertEqual(['p2'], self.exchange(self.parts, choosy(), lambda parent, _: parent == 'p2'))

    def test_of_what_rows_told_of_is_of_the_same_node(self):
        first, near, far = namespace('a', numa_node=1), namespace('c', numa_node=1), namespace('b', numa_node=0)
        for others in ([far, near], [far]):
            ledger = hosts.ledger(first, *others)
            [key] = hosts.hold_rows(ledger, hosts.row(first, 'i'))
            if near in others:
                self.assertEqual(['c'], hosts.taken(ledger.exchange(key, anything)))
            else:
                self.assertRaises(exception.NoFit, ledger.exchange, key, anything)
