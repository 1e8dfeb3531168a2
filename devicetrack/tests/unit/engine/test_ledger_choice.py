"""Which devices the ledger takes, and why none fits."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import selection
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import capacity
from devicetrack.tests.unit.engine.hosts import inventory
from devicetrack.tests.unit.engine.hosts import mdev
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import SMALL
from devicetrack.tests.unit.engine.hosts import VGPU
from devicetrack.tests.unit.engine.hosts import VGPU_B
from devicetrack.tests.unit.engine.hosts import wants

NEAR, FAR = namespace('near', numa_node=0), namespace('far', numa_node=1)
NOWHERE = namespace('nowhere', numa_node=None)


class ChoiceTestCase(base.TestCase):
    """Which devices a demand gets on a host at rest."""

    scenarios = base.table(
        ('one', [namespace('b'), namespace('a')], wants((PMEM, 1)), ['a']),
        ('several', [namespace('b'), namespace('a'), namespace('c')], wants((PMEM, 2)), ['a', 'b']),
        ('in the order of the items', [namespace('a'), namespace('b', SMALL)], wants((SMALL, 1), (PMEM, 1)),
         ['b', 'a']),
        ('first parent by name', [namespace('a', parent='r1'), namespace('b', parent='r0')], wants((PMEM, 1)), ['b']),
        ('without a parent first', [namespace('a', parent='r0'), namespace('b', parent=None)], wants((PMEM, 1)), ['b']),
        ('at a provider', [mdev('a', 'p0'), mdev('b', 'p1')], wants((VGPU, 1, provider('p1'))), ['b']),
        ('items with a provider choose first', [mdev('a', 'p0'), mdev('b', 'p1')],
         wants((VGPU, 1), (VGPU, 1, provider('p0'))), ['b', 'a']),
        ('classes that share parents', [capacity('p0', 1), capacity('p0', 1, VGPU_B, device_type='b'),
                                        capacity('p1', 1, VGPU_B, device_type='b')],
         wants((VGPU_B, 1), (VGPU, 1)), [None, None]),
        ('what exists before what could be made', [capacity('p0', 5), mdev('a', 'p0')], wants((VGPU, 2)), ['a', None]),
        ('pinned guest, no policy', [FAR, NEAR], wants((PMEM, 1), numa_nodes=frozenset((1,))), ['near']),
        ('policy, guest is not pinned', [FAR, NEAR], wants((PMEM, 1), numa_policy='required'), ['near']),
        ('required', [FAR, NEAR], wants((PMEM, 1), numa_nodes=frozenset((1,)), numa_policy='required'), ['far']),
        ('required, either node', [FAR, NEAR, NOWHERE],
         wants((PMEM, 2), numa_nodes=frozenset((0, 1)), numa_policy='required'), ['near', 'far']),
        ('preferred and there', [FAR, NEAR], wants((PMEM, 1), numa_nodes=frozenset((1,)), numa_policy='preferred'),
         ['far']),
        ('preferred and not there', [NEAR], wants((PMEM, 1), numa_nodes=frozenset((1,)), numa_policy='preferred'),
         ['near']),
        ('preferred and some there', [FAR, NEAR], wants((PMEM, 2), numa_nodes=frozenset((1,)),
                                                        numa_policy='preferred'), ['far', 'near']),
        ('legacy, the node', [NOWHERE, FAR], wants((PMEM, 1), numa_nodes=frozenset((1,)), numa_policy='legacy'),
         ['far']),
        ('legacy, a device of no node', [NOWHERE, NEAR], wants((PMEM, 1), numa_nodes=frozenset((1,)),
                                                               numa_policy='legacy'), ['nowhere']),
        names=('parts', 'demand', 'expected'))

    def test_gets(self):
        for parts in (self.parts, list(reversed(self.parts))):
            self.assertEqual(self.expected, hosts.taken(hosts.ledger(*parts).take('i', self.demand)))


class NoFitTestCase(base.TestCase):

    scenarios = base.table(
        ('no such class', [namespace('a')], wants((VGPU, 1))),
        ('too many', [namespace('a')], wants((PMEM, 2))),
        ('the second item', [namespace('a'), namespace('b')], wants((PMEM, 2), (SMALL, 1))),
        ('together too many', [namespace('a')], wants((PMEM, 1), (PMEM, 1))),
        ('not at this provider', [mdev('a', 'p0')], wants((VGPU, 1, provider('p1')))),
        ('one too many at this provider', [mdev('a', 'p0'), mdev('b', 'p1')],
         wants((VGPU, 1), (VGPU, 2, provider('p0')))),
        ('nothing to be made', [capacity('p0', 0)], wants((VGPU, 1))),
        ('more than can be made', [capacity('p0', 2), mdev('a', 'p0')], wants((VGPU, 4))),
        ('types share the parent', [capacity('p0', 1), capacity('p0', 1, VGPU_B, device_type='b')],
         wants((VGPU, 1), (VGPU_B, 1))),
        ('required on another node', [NEAR, NOWHERE],
         wants((PMEM, 1), numa_nodes=frozenset((1,)), numa_policy='required')),
        ('legacy on another node', [NEAR], wants((PMEM, 1), numa_nodes=frozenset((1,)), numa_policy='legacy')),
        ('unhealthy', [namespace('a', unhealthy='broken')], wants((PMEM, 1))),
        names=('parts', 'demand'))

    def test_leaves_everything_as_it_was(self):
        for policy in vocabulary.SELECTION_POLICIES:
            ledger = hosts.ledger(*self.parts, policy=policy)
            before = hosts.everything(ledger)
            self.assertRaises(exception.NoFit, ledger.take, 'i', self.demand)
            self.assertEqual(before, hosts.everything(ledger))


class ShortagesTestCase(base.TestCase):

    def short(self, *parts):
        error = self.assertRaises(exception.NoFit, hosts.ledger(*parts).take, 'i',
                                  wants((PMEM, 2), (SMALL, 1), (PMEM, 1)))
        return [(one.resource_class, one.wanted, one.free) for one in error.shortages]

    def test_name_only_what_does_not_fit(self):
        self.assertEqual([(SMALL, 1, 0)], self.short(*[namespace(name) for name in 'abc']))
        self.assertEqual([(PMEM, 3, 2)], self.short(namespace('a'), namespace('b'), namespace('s', SMALL)))

    def test_name_everything_that_fits_alone_and_not_together(self):
        ledger = hosts.ledger(capacity('p0', 1), capacity('p0', 1, VGPU_B, device_type='b'))
        error = self.assertRaises(exception.NoFit, ledger.take, 'i', wants((VGPU, 1), (VGPU_B, 1)))
        self.assertEqual([VGPU, VGPU_B], [one.resource_class for one in error.shortages])

    def test_name_everything_that_is_asked_for_when_all_is_wanted(self):
        ledger = hosts.ledger(namespace('a'))
        self.assertEqual([(PMEM, True), (SMALL, False)], [(one.resource_class, one.fits) for one in ledger.shortages(
            wants((PMEM, 1), (SMALL, 1)), everything=True)])


class PolicyTestCase(base.TestCase):

    scenarios = base.table(
        ('pack fills one parent before the next', 'pack', ['p0', 'p0', 'p0', 'p1', 'p1', 'p2']),
        ('spread takes from the one with the most room', 'spread', ['p0', 'p0', 'p1', 'p0', 'p1', 'p2']),
        names=('policy', 'expected'))

    def test_over_parents_that_make_devices(self):
        ledger = hosts.ledger(capacity('p2', 1), capacity('p1', 2), capacity('p0', 3), policy=self.policy)
        self.assertEqual(self.expected, [hosts.parents(ledger.take(str(number), wants((VGPU, 1))))[0]
                                         for number in range(6)])

    def test_over_parents_with_devices(self):
        devices = [namespace(f'{parent}.{number}', parent=parent)
                   for parent, count in (('p0', 3), ('p1', 2), ('p2', 1)) for number in range(count)]
        ledger = hosts.ledger(*devices, policy=self.policy)
        self.assertEqual(self.expected, hosts.parents(ledger.take('i', wants((PMEM, 6)))))

    def test_the_same_history_gives_the_same_choice(self):
        def history():
            ledger = hosts.ledger(*[namespace(str(number), parent=f'r{number % 3}') for number in range(9)],
                                  policy=self.policy)
            first = ledger.take('a', wants((PMEM, 3)))
            ledger.take('b', wants((PMEM, 2)))
            ledger.free(first.keys)
            return hosts.taken(ledger.take('c', wants((PMEM, 5))))
        self.assertEqual(history(), history())

    def test_a_parent_that_has_the_most_room_again_is_found(self):
        devices = [namespace(f'{parent}.{number}', parent=parent) for parent in ('r0', 'r1') for number in range(3)]
        ledger = hosts.ledger(*devices, policy='spread')
        first = ledger.take('a', wants((PMEM, 3)))               # r0, r1, r0
        ledger.take('b', wants((PMEM, 1)))                       # r1
        ledger.free(first.keys)                                  # r0 has three again, r1 two
        self.assertEqual(['r0'], hosts.parents(ledger.take('c', wants((PMEM, 1)))))
        self.assertEqual(['r0'], hosts.parents(ledger.take('d', wants((PMEM, 1)))))

    def test_a_parent_that_got_room_again_is_found(self):
        ledger = hosts.ledger(*[namespace(str(number), parent=f'r{number}') for number in range(4)],
                              policy=self.policy)
        all_of_it = ledger.take('a', wants((PMEM, 4)))
        for key in all_of_it.keys:
            ledger.free([key])
            self.assertEqual((key,), ledger.take(f'b{key.identifier}', wants((PMEM, 1))).keys)


class LineTestCase(base.TestCase):
    """Within a pool, who has been free for the longest time comes first."""

    def setUp(self):
        super().setUp()
        self.devices = [namespace(name) for name in 'abc']
        self.ledger = hosts.ledger(*self.devices)

    def take(self, instance, amount=1):
        return self.ledger.take(instance, wants((PMEM, amount)))

    def test_a_device_rests_between_two_owners(self):
        self.ledger.free(self.take('1').keys)
        self.assertEqual(['b', 'c', 'a'], hosts.taken(self.take('2', 3)))

    def test_what_was_never_recorded_does_not_lose_its_place(self):
        self.ledger.put_back(self.take('1', 2))
        self.assertEqual(['a', 'b', 'c'], hosts.taken(self.take('2', 3)))

    def test_what_rows_held_at_the_start_rests_too(self):
        self.ledger.free(hosts.hold_rows(self.ledger, hosts.row(self.devices[0], '1')))
        self.assertEqual(['b', 'c', 'a'], hosts.taken(self.take('2', 3)))

    def test_what_was_withheld_for_a_while_is_there_once(self):
        key = values.DeviceKey('vpmem', 'a')
        for _ in range(3):
            self.ledger.withhold(key, vocabulary.CORDONED)
            self.ledger.admit(key, vocabulary.CORDONED)
        self.assertEqual({'a', 'b', 'c'}, set(hosts.taken(self.take('1', 3))))
        self.assertRaises(exception.NoFit, self.take, '2')

    def test_what_is_freed_twice_is_there_once(self):
        keys = self.take('1').keys
        self.ledger.free(keys)
        self.ledger.free(keys)
        self.assertEqual(3, self.ledger.pools()[0].room)


class CreatableTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.ledger = hosts.ledger(capacity('p0', 2), capacity('p0', 2, VGPU_B, device_type='b'))

    def room(self, resource_class=VGPU):
        return sum(pool.room for pool in self.ledger.pools() if pool.resource_class == resource_class)

    def take(self, instance='i', amount=1, resource_class=VGPU):
        return hosts.name_all(self.ledger, self.ledger.take(instance, wants((resource_class, amount))))

    def test_a_claim_counts_as_one_of_every_type(self):
        self.take()
        self.assertEqual((1, 1), (self.room(VGPU), self.room(VGPU_B)))

    def test_a_realized_device_counts_as_one_of_every_type_until_its_parent_is_read(self):
        self.ledger.realized(self.take().keys[0], 'details')
        self.assertEqual((1, 1), (self.room(VGPU), self.room(VGPU_B)))
        self.ledger.read_capacities([capacity('p0', 1), capacity('p0', 0, VGPU_B, device_type='b')])
        self.assertEqual((1, 0), (self.room(VGPU), self.room(VGPU_B)))

    def test_devices_that_only_rows_name_are_still_to_be_made(self):
        ledger = hosts.ledger(capacity('p0', 4))
        keys = hosts.hold_rows(ledger, *[hosts.row(mdev(name, 'p0'), 'i') for name in 'ab'])
        self.assertEqual((2, 2, 0), tuple(getattr(ledger.pools()[0], name) for name in ('room', 'held', 'free')))
        ledger.free(keys[:1])
        self.assertEqual(3, ledger.pools()[0].room)
        ledger.free(keys[1:])
        self.assertEqual(4, ledger.pools()[0].room)

    def test_a_name_is_given_once(self):
        hold = self.take()
        self.ledger.name(hold, [hold.candidates[0]._replace(identifier='another')])
        self.assertEqual(hold.keys, tuple(device.key for device in hosts.held(self.ledger, 'i')))

    def test_a_put_back_gives_the_room_back(self):
        self.ledger.put_back(self.take(amount=2))
        self.assertEqual((2, 2), (self.room(VGPU), self.room(VGPU_B)))
        self.take(resource_class=VGPU_B, amount=2)

    def test_a_device_that_was_removed_can_be_made_again(self):
        [key] = self.take().keys
        self.ledger.realized(key, 'details')
        self.ledger.releasing([key])
        self.ledger.free([key], removed=[key])
        self.assertEqual(2, self.room())
        self.assertIsNone(self.ledger.device(values.DeviceKey('mdev', 'p0/i/0')))

    def test_a_removal_that_an_inventory_showed_first_is_not_counted_twice(self):
        [key] = self.take().keys
        self.ledger.realized(key, 'details')
        self.ledger.releasing([key])
        self.ledger.read_inventory(inventory(capacity('p0', 2)))
        self.ledger.free([key], removed=[key])
        self.assertEqual(2, self.room())

    def test_a_full_parent_lowers_room_to_none_and_not_below(self):
        self.take(amount=2)
        self.ledger.read_capacities([capacity('p0', 0)])
        self.assertEqual(0, self.room())
        self.assertRaises(exception.NoFit, self.take, 'k')

    def test_a_device_seen_before_it_was_said_to_be_realized(self):
        [key] = self.take().keys
        self.assertTrue(self.ledger.device(key).unborn)
        self.ledger.read_inventory(inventory(capacity('p0', 1), mdev(key.identifier, 'p0')))
        self.ledger.realized(key, 'details')
        self.assertEqual((1, False), (self.room(), self.ledger.device(key).unborn))

    def test_and_seen_with_the_very_details_that_it_was_to_have(self):
        [key] = self.take().keys
        seen = mdev(key.identifier, 'p0')._replace(details=self.ledger.device(key).details)
        self.ledger.read_inventory(inventory(capacity('p0', 1), seen))
        self.assertEqual((1, False), (self.room(), self.ledger.device(key).unborn))

    def test_a_device_that_had_no_name_when_its_parent_was_cordoned_is_withheld_once_it_is_seen(self):
        hold = self.ledger.take('i', wants((VGPU, 1)))
        self.ledger.close_parent('mdev', 'p0', vocabulary.CORDONED)
        [key] = hosts.name_all(self.ledger, hold).keys
        self.ledger.realized(key, 'details')
        self.ledger.read_inventory(inventory(capacity('p0', 1), mdev(key.identifier, 'p0')._replace(details='details')))
        self.assertEqual({'cordoned'}, self.ledger.device(key).withheld)

    def test_a_parent_that_is_not_there_any_more_makes_nothing(self):
        self.ledger.read_inventory(inventory())
        self.assertRaises(exception.NoFit, self.take)

    def test_a_pool_is_not_said_to_be_what_somebody_made_otherwise(self):
        ledger = hosts.ledger(mdev('a', 'p5')._replace(assignable=False, details='other'), mdev('b', 'p5'))
        [pool] = ledger.pools()
        self.assertEqual(mdev('b', 'p5').details, pool.details)

    def test_a_parent_that_could_not_be_read_stays_as_it_was(self):
        self.ledger.read_inventory(inventory(known=('vpmem',)))
        self.assertEqual(2, self.room())


class NarrowTestCase(base.TestCase):

    def test_a_device_that_nobody_holds_any_more_keeps_no_other_from_being_exchanged(self):
        ledger = hosts.ledger(FAR, namespace('free', numa_node=1))
        [far] = ledger.take('i', wants((PMEM, 1))).keys
        ledger.read_inventory(inventory(FAR, NEAR, namespace('free', numa_node=1)))
        nobody = values.DeviceKey('vpmem', 'nobody')
        free = values.DeviceKey('vpmem', 'free')
        [(key, other)] = ledger.narrow({nobody: None, free: None, far: None}, frozenset((0,)), 'required')
        self.assertEqual((far, ['near']), (key, hosts.taken(other)))


class AllowsTestCase(base.TestCase):

    scenarios = [(f'{policy}, {node}', {'policy': policy, 'node': node, 'expected': expected})
                 for policy, answers in {'required': (True, False, False), 'preferred': (True, True, True),
                                         'legacy': (True, False, True), 'none': (True, True, True)}.items()
                 for node, expected in zip((0, 1, None), answers, strict=True)]

    def test_a_device_on_the_node(self):
        self.assertEqual(self.expected, selection.allows(self.node, frozenset((0,)), self.policy))

    def test_a_guest_that_is_not_pinned(self):
        self.assertTrue(selection.allows(self.node, frozenset(), self.policy))
