"""Who gets what: the ledger and its selection, case by case."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import selection
from devicetrack.engine import stock
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
            self.ledger.withhold(key, vocabulary.DRAINED)
            self.ledger.admit(key, vocabulary.DRAINED)
        self.assertEqual({'a', 'b', 'c'}, set(hosts.taken(self.take('1', 3))))
        self.assertRaises(exception.NoFit, self.take, '2')

    def test_what_is_freed_twice_is_there_once(self):
        keys = self.take('1').keys
        self.ledger.free(keys)
        self.ledger.free(keys)
        self.assertEqual(3, self.ledger.pools()[0].room)


class HoldingTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.device = namespace('a')
        self.ledger = hosts.ledger(self.device, namespace('b'))

    def test_a_second_take_says_what_the_first_has(self):
        self.ledger.take('i', wants((PMEM, 1)))
        error = self.assertRaises(exception.InstanceHasClaim, self.ledger.take, 'i', wants((PMEM, 1)))
        self.assertEqual((('vpmem', 'a'),), error.held)

    def test_ends_with_its_last_device(self):
        first, second = self.ledger.take('i', wants((PMEM, 2))).keys
        self.ledger.free([first])
        error = self.assertRaises(exception.InstanceHasClaim, self.ledger.take, 'i', wants((PMEM, 1)))
        self.assertEqual((second,), error.held)
        self.assertTrue(self.ledger.has_claim_of_this_process('i'))
        self.ledger.free([second])
        self.assertFalse(self.ledger.has_claim_of_this_process('i'))
        self.ledger.take('i', wants((PMEM, 2)))

    def test_a_device_without_a_name_is_drained_with_its_parent(self):
        ledger = hosts.ledger(hosts.capacity('p0', 1))
        hold = ledger.take('i', wants((VGPU, 1)))
        ledger.drain('mdev', 'p0')
        [key] = hosts.name_all(ledger, hold).keys
        ledger.realized(key, 'made')
        ledger.free([key])
        self.assertEqual((0, {key: frozenset(('drained',))}), (sum(pool.room for pool in ledger.pools()),
                                                               ledger.reasons()))

    def test_a_put_back_restores_the_line_whatever_item_chose_first(self):
        ledger = hosts.ledger(hosts.namespace('a'), hosts.namespace('b'))
        demand = wants((PMEM, 1), (PMEM, 1, hosts.provider('')))
        before = hosts.everything(ledger)
        hold = ledger.take('i', demand)
        ledger.put_back(hold)
        self.assertEqual((['b', 'a'], before), (hosts.taken(hold), hosts.everything(ledger)))

    def test_a_put_back_frees_nothing_that_a_row_gave_to_another(self):
        in_flight = self.ledger.take('i', wants((PMEM, 2)))
        self.ledger.hold([hosts.row(self.device, 'other')])
        self.ledger.put_back(in_flight)
        self.assertEqual([], self.ledger.not_held([hosts.row(self.device, 'other')]))
        self.assertEqual(['b'], hosts.taken(self.ledger.take('i', wants((PMEM, 1)))))
        self.assertRaises(exception.NoFit, self.ledger.take, 'k', wants((PMEM, 1)))

    def test_of_rows_that_changed_their_owner_leaves_none_behind(self):
        self.ledger.hold([hosts.row(self.device, 'one')])
        self.ledger.hold([hosts.row(self.device, 'two')])
        self.assertEqual([], hosts.held(self.ledger, 'one'))
        self.assertFalse(self.ledger.has_claim_of_rows('one'))
        self.assertEqual([], self.ledger.not_held([hosts.row(self.device, 'two')]))

    def test_of_a_row_whose_device_is_missing(self):
        gone = namespace('gone')
        keys = hosts.hold_rows(self.ledger, hosts.row(gone, 'i'))
        [device] = hosts.held(self.ledger, 'i')
        self.assertEqual(({stock.GONE}, selection.HELD), (device.withheld, device.state))
        self.ledger.free(keys)
        self.assertIsNone(self.ledger.device(gone.key))

    def test_of_a_row_whose_device_comes_back(self):
        gone = namespace('gone')
        keys = hosts.hold_rows(self.ledger, hosts.row(gone, 'i'))
        self.ledger.read_inventory(inventory(self.device, namespace('b'), gone))
        self.assertFalse(self.ledger.device(gone.key).withheld)
        self.ledger.free(keys)
        self.assertEqual(3, self.ledger.pools()[0].room)


class NamingTestCase(base.TestCase):
    """Devices that will be made have names of the ledger's own until the driver names them."""

    def setUp(self):
        super().setUp()
        self.ledger = hosts.ledger(capacity('p0', 2), mdev('a', 'p0'))
        self.hold = self.ledger.take('i', wants((VGPU, 3)))

    def name(self, *identifiers):
        return self.ledger.name(self.hold, [candidate._replace(identifier=identifier) for candidate, identifier
                                            in zip(self.hold.candidates, identifiers, strict=True)])

    def room(self):
        return sum(pool.room for pool in self.ledger.pools())

    def test_a_hold_names_what_exists_and_nothing_else(self):
        self.assertEqual((['a', None, None], False), (hosts.taken(self.hold), self.hold.is_named))
        self.assertEqual(3, len(set(self.hold.keys)))
        self.assertEqual(['a', None, None], [self.ledger.device(key).identifier for key in self.hold.keys])
        self.assertEqual([False, True, True], [self.ledger.device(key).unborn for key in self.hold.keys])
        self.assertEqual([('a', 'i'), (None, 'i'), (None, 'i')],
                         [(device.identifier, device.instance_uuid) for device in self.ledger.devices()])

    def test_a_hold_of_what_exists_is_named(self):
        self.ledger.put_back(self.hold)
        hold = self.ledger.take('i', wants((VGPU, 1)))
        self.assertEqual((True, (mdev('a', 'p0').key,)), (hold.is_named, hold.keys))

    def test_no_provisional_name_is_given_twice(self):
        self.ledger.put_back(self.hold)
        again = self.ledger.take('i', wants((VGPU, 3)))
        self.assertEqual({mdev('a', 'p0').key}, {*self.hold.keys} & {*again.keys})

    def test_the_new_names_are_known_and_the_provisional_ones_are_not_any_more(self):
        named = self.name('a', 'b', 'c')
        self.assertEqual((['a', 'b', 'c'], True), ([key.identifier for key in named.keys], named.is_named))
        self.assertEqual(['a', 'b', 'c'], [device.identifier for device in hosts.held(self.ledger, 'i')])
        self.assertEqual([None, None], [self.ledger.device(key) for key in self.hold.keys[1:]])

    def test_a_device_takes_over_the_details_of_its_new_name(self):
        candidates = [candidate._replace(identifier=name, details=f'driver says {name}')
                      for candidate, name in zip(self.hold.candidates, 'abc', strict=True)]
        named = self.ledger.name(self.hold, candidates)
        self.assertEqual(['details of a', 'driver says b', 'driver says c'],
                         [self.ledger.device(key).details for key in named.keys])

    def test_what_is_not_named_yet_keeps_its_provisional_name(self):
        named = self.name('a', 'b', None)
        self.assertEqual((*named.keys[:2], self.hold.keys[2]), named.keys)
        self.assertEqual((False, None), (named.is_named, self.ledger.device(named.keys[2]).identifier))

    def test_names_that_are_too_few_or_too_many_name_nothing(self):
        before = hosts.everything(self.ledger)
        for candidates in (self.hold.candidates[:2], (*self.hold.candidates, self.hold.candidates[0])):
            self.assertRaises(ValueError, self.ledger.name, self.hold, [
                candidate._replace(identifier=f'm{number}') for number, candidate in enumerate(candidates)])
            self.assertEqual(before, hosts.everything(self.ledger))

    def test_a_put_back_forgets_what_was_not_made_named_or_not(self):
        for name in (lambda: self.hold, lambda: self.name('a', 'b', 'c'), lambda: self.name('a', 'b', None)):
            hold = name()
            self.ledger.put_back(hold)
            self.assertEqual((3, [mdev('a', 'p0').key]), (self.room(), [one.key for one in self.ledger.devices()]))
            self.assertFalse(self.ledger.has_claim_of_this_process('i'))
            self.hold = self.ledger.take('i', wants((VGPU, 3)))

    def test_a_put_back_leaves_a_named_device_to_the_owner_in_its_row(self):
        named = self.name('a', 'b', 'c')
        theirs = hosts.row(mdev('b', 'p0'), 'other')
        self.ledger.hold([theirs])
        self.ledger.put_back(named)
        self.assertEqual(([], 2), (self.ledger.not_held([theirs]), self.room()))
        self.assertEqual([theirs.key], [device.key for device in hosts.held(self.ledger, 'other')])
        self.assertEqual([], hosts.held(self.ledger, 'i'))

    def test_a_put_back_of_what_an_instance_takes_beside_leaves_the_rest(self):
        ledger = hosts.ledger(*[namespace(name) for name in 'abc'])
        first = ledger.take('i', wants((PMEM, 1)))
        beside = ledger.take('i', wants((PMEM, 2)), beside=True)
        ledger.put_back(beside)
        self.assertEqual([first.keys[0]], [device.key for device in hosts.held(ledger, 'i')])
        ledger.put_back(first)
        self.assertEqual(['a', 'b', 'c'], hosts.taken(ledger.take('i', wants((PMEM, 3)))))


class RowsTestCase(base.TestCase):
    """What rows hold, and what a claim of this process holds beside it."""

    def setUp(self):
        super().setUp()
        self.a, self.b, self.c = (namespace(name) for name in 'abc')
        self.ledger = hosts.ledger(self.a, self.b, self.c)
        self.rows = [hosts.row(self.a, 'i'), hosts.row(self.b, 'i')]
        self.ledger.hold(self.rows)

    def held(self, instance='i'):
        return [device.identifier for device in hosts.held(self.ledger, instance)]

    def test_it_is_known_who_told_of_a_holding(self):
        self.ledger.take('k', wants((PMEM, 1)))
        self.assertEqual([(True, False), (False, True), (False, False)], [
            (self.ledger.has_claim_of_rows(uuid), self.ledger.has_claim_of_this_process(uuid)) for uuid in 'ikl'])

    def test_rows_whose_devices_others_have_or_nobody_are_not_held(self):
        self.ledger.take('k', wants((PMEM, 1)))
        missing = [hosts.row(self.a, 'k'), hosts.row(self.c, 'i'), hosts.row(namespace('d'), 'i')]
        self.assertEqual(missing, self.ledger.not_held([*self.rows, *missing]))

    def test_rows_of_a_kind_that_the_host_has_none_of_and_of_free_devices_are_not_held(self):
        missing = [hosts.row(mdev('m', 'p0'), 'i'), hosts.row(self.c, 'k')]
        self.assertEqual(missing, self.ledger.not_held([*self.rows, *missing]))

    def test_what_is_held_beside_has_a_row_of_its_own(self):
        beside = self.ledger.take('i', wants((PMEM, 1)), beside=True)
        rows = [*self.rows, hosts.row(self.c, 'i')]
        self.assertEqual([[], []], [self.ledger.without_row(rows, all_held) for all_held in (True, False)])
        self.assertEqual([], self.ledger.without_row(self.rows, True))
        self.ledger.trust_rows(beside.keys)
        self.assertEqual([[], ['i']], [self.ledger.without_row(those, True) for those in (rows, self.rows)])

    def test_every_row_is_there(self):
        self.assertEqual([], self.ledger.without_row(self.rows, True))
        self.assertEqual([], self.ledger.without_row(self.rows, False))

    def test_a_row_is_gone(self):
        self.assertEqual(['i'], self.ledger.without_row(self.rows[:1], True))
        self.assertEqual(['i'], self.ledger.without_row([hosts.row(self.b, 'k'), self.rows[0]], False))

    def test_a_claim_whose_row_was_not_read_yet_has_lost_none(self):
        self.ledger.take('k', wants((PMEM, 1)))
        self.assertEqual([], self.ledger.without_row(self.rows, True))

    def test_a_claim_that_is_over_has_lost_its_row(self):
        self.ledger.trust_rows(self.ledger.take('k', wants((PMEM, 1))).keys)
        self.assertEqual(['k'], self.ledger.without_row(self.rows, True))
        self.assertEqual((True, False), (self.ledger.has_claim_of_rows('k'),
                                         self.ledger.has_claim_of_this_process('k')))

    def test_what_has_no_row_any_more_is_free_and_what_is_kept_is_not(self):
        self.ledger.free_without_row('i', [self.a.key])
        self.assertEqual(['a'], self.held())
        self.assertEqual(['c', 'b'], hosts.taken(self.ledger.take('k', wants((PMEM, 2)))))

    def test_what_a_claim_just_took_is_never_free_without_a_row(self):
        self.ledger.take('i', wants((PMEM, 1)), beside=True)
        self.ledger.free_without_row('i', [])
        self.assertEqual(['c'], self.held())
        self.ledger.trust_rows([self.c.key])
        self.ledger.free_without_row('i', [])
        self.assertEqual([], self.held())

    def test_nothing_of_an_unknown_instance_is_free(self):
        self.ledger.free_without_row('nobody', [])
        self.assertEqual(['a', 'b'], self.held())

    def test_rows_count_where_their_devices_count_now(self):
        self.ledger.read_inventory(inventory(namespace('a', SMALL, provider_name='region0'), self.b, self.c))
        unknown = hosts.row(namespace('d'), 'i')
        self.assertEqual([(SMALL, provider('region0')), (PMEM, provider('')), (PMEM, provider(''))],
                         [(row.resource_class, row.provider_uuid)
                          for row in self.ledger.counted_now([*self.rows, unknown])])


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

    def test_a_device_that_had_no_name_when_its_parent_was_drained_is_withheld_once_it_is_seen(self):
        hold = self.ledger.take('i', wants((VGPU, 1)))
        self.ledger.drain('mdev', 'p0')
        [key] = hosts.name_all(self.ledger, hold).keys
        self.ledger.realized(key, 'details')
        self.ledger.read_inventory(inventory(capacity('p0', 1), mdev(key.identifier, 'p0')._replace(details='details')))
        self.assertEqual({'drained'}, self.ledger.device(key).withheld)

    def test_a_parent_that_is_not_there_any_more_makes_nothing(self):
        self.ledger.read_inventory(inventory())
        self.assertRaises(exception.NoFit, self.take)

    def test_a_pool_is_not_said_to_be_what_somebody_made_otherwise(self):
        ledger = hosts.ledger(mdev('a', 'p5')._replace(adoptable=False, details='other'), mdev('b', 'p5'))
        [pool] = ledger.pools()
        self.assertEqual(mdev('b', 'p5').details, pool.details)

    def test_a_parent_that_could_not_be_read_stays_as_it_was(self):
        self.ledger.read_inventory(inventory(known=('vpmem',)))
        self.assertEqual(2, self.room())


class ExchangeTestCase(base.TestCase):

    def exchange(self, parts, demand):
        ledger = hosts.ledger(*parts)
        hold = hosts.name_all(ledger, ledger.take('i', demand))
        first = hold.candidates[0]
        ledger.read_capacities([capacity(first.parent, 0, numa_node=first.numa_node)])
        others = ledger.exchange(hold.keys[0])
        self.assertEqual([(key, 'i') for key in (*hold.keys, *others.keys)],
                         [(key, ledger.device(key).instance_uuid) for key in (*hold.keys, *others.keys)])
        self.assertEqual(len(hold.keys) + 1, len(hosts.held(ledger, 'i')))
        [other] = others.candidates
        return other

    def test_takes_from_another_parent(self):
        self.assertEqual('p1', self.exchange([capacity('p0', 1), capacity('p1', 1)],
                                             wants((VGPU, 1))).parent)

    def test_stays_with_the_provider_that_was_asked_for(self):
        self.assertRaises(exception.NoFit, self.exchange, [capacity('p0', 1), capacity('p1', 1)],
                          wants((VGPU, 1, provider('p0'))))

    def test_stays_with_a_provider_beside_an_item_without(self):
        self.assertRaises(exception.NoFit, self.exchange,
                          [capacity('p0', 1), capacity('p1', 1), namespace('a')],
                          wants((VGPU, 1, provider('p0')), (PMEM, 1)))

    def test_has_the_affinity_that_was_asked_for(self):
        nodes = frozenset((0, 1))
        parts = [capacity('p0', 1, numa_node=0), capacity('p1', 1, numa_node=2), capacity('p2', 1, numa_node=1)]
        other = self.exchange(parts, wants((VGPU, 1), numa_nodes=nodes, numa_policy='required'))
        self.assertEqual('p2', other.parent)
        self.assertRaises(exception.NoFit, self.exchange, parts[:2],
                          wants((VGPU, 1), numa_nodes=nodes, numa_policy='required'))

    def test_says_what_others_have_when_there_is_none(self):
        ledger = hosts.ledger(mdev('a', 'p0'), mdev('b', 'p0'), mdev('c', 'p1'), mdev('d', 'p1'), namespace('n'))
        hold = ledger.take('i', wants((VGPU, 3), (PMEM, 1)))
        ledger.take('k', wants((VGPU, 1)))
        ledger.releasing([mdev('b', 'p0').key])
        [short] = self.assertRaises(exception.NoFit, ledger.exchange, hold.keys[0]).shortages
        # The instance's own a and c do not count; b, which is on its way back, and the other instance's d do.
        self.assertEqual((VGPU, 1, 2, 0, 1, 1, 1), (short.resource_class, short.wanted, short.exist, short.free,
                                                    short.held, short.releasing, short.instances))

    def test_says_what_others_have_of_the_provider_that_was_asked_for(self):
        ledger = hosts.ledger(mdev('a', 'p0'), mdev('b', 'p0'), mdev('c', 'p1'), mdev('d', 'p1'))
        hold = ledger.take('i', wants((VGPU, 1, provider('p0')), (VGPU, 2, provider('p1'))))
        ledger.take('k', wants((VGPU, 1)))
        [short] = self.assertRaises(exception.NoFit, ledger.exchange, hold.keys[0]).shortages
        self.assertEqual((provider('p0'), 1, 1, 1), (short.provider_uuid, short.exist, short.held, short.instances))

    def test_takes_none_that_is_not_to_be_handed_out_since_its_parent_was_read(self):
        devices = [mdev(name, 'p0') for name in ('a', 'b', 'c', 'd')]
        ledger = hosts.ledger(*devices)
        [key] = ledger.take('i', wants((VGPU, 1))).keys
        devices[1] = devices[1]._replace(adoptable=False)
        devices[2] = devices[2]._replace(unhealthy='hot')
        ledger.read_parents(inventory(*devices), ledger.watch())
        self.assertEqual(['d'], hosts.taken(ledger.exchange(key)))

    def test_and_nothing_is_free_by_what_is_read_then(self):
        ledger = hosts.ledger(mdev('a', 'p0', unhealthy='hot'))
        ledger.read_parents(inventory(mdev('a', 'p0')), ledger.watch())
        self.assertRaises(exception.NoFit, ledger.take, 'i', wants((VGPU, 1)))


class NarrowTestCase(base.TestCase):

    def test_a_device_that_nobody_holds_any_more_keeps_no_other_from_being_exchanged(self):
        ledger = hosts.ledger(FAR, namespace('free', numa_node=1))
        [far] = ledger.take('i', wants((PMEM, 1))).keys
        ledger.read_inventory(inventory(FAR, NEAR, namespace('free', numa_node=1)))
        nobody = values.DeviceKey('vpmem', 'nobody')
        free = values.DeviceKey('vpmem', 'free')
        [(key, other)] = ledger.narrow({nobody: None, free: None, far: None}, frozenset((0,)), 'required')
        self.assertEqual((far, ['near']), (key, hosts.taken(other)))


class InventoryTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.a, self.b = namespace('a'), namespace('b')
        self.ledger = hosts.ledger(self.a, self.b)

    def free(self):
        return {pool.resource_class: pool.room for pool in self.ledger.pools() if pool.room}

    def test_a_new_device_is_free(self):
        self.ledger.read_inventory(inventory(self.a, self.b, namespace('c')))
        self.assertEqual({PMEM: 3}, self.free())

    def test_a_free_device_that_vanishes_is_forgotten(self):
        self.ledger.read_inventory(inventory(self.b))
        self.assertEqual(['b'], hosts.taken(self.ledger.take('i', wants((PMEM, 1)))))
        self.assertIsNone(self.ledger.device(self.a.key))

    def test_a_free_device_that_another_replaces_is_forgotten(self):
        self.ledger.read_inventory(inventory(self.b, namespace('c')))
        self.assertEqual(['b', 'c'], hosts.taken(self.ledger.take('i', wants((PMEM, 2)))))
        self.assertIsNone(self.ledger.device(self.a.key))

    def test_a_free_device_that_vanishes_is_forgotten_though_one_that_was_given_back_was_still_seen(self):
        keys = self.ledger.take('i', wants((PMEM, 1))).keys
        watch = self.ledger.watch()
        self.ledger.free(keys, removed=keys)
        self.ledger.read_inventory(inventory(self.a), watch)
        self.assertEqual([], self.ledger.devices())

    def test_a_held_device_that_vanishes_stays_held(self):
        self.ledger.take('i', wants((PMEM, 1)))
        self.ledger.read_inventory(inventory(self.b))
        [device] = hosts.held(self.ledger, 'i')
        self.assertEqual((self.a.key, selection.HELD, {stock.GONE}), (device.key, device.state, device.withheld))

    def test_nothing_vanishes_from_a_kind_that_could_not_be_read(self):
        self.ledger.read_inventory(inventory(known=('mdev',)))
        self.assertEqual({PMEM: 2}, self.free())

    def test_a_device_counts_elsewhere_and_keeps_its_owner(self):
        [key] = self.ledger.take('i', wants((PMEM, 1))).keys
        moved = namespace('a', SMALL, parent='region1', numa_node=1, provider_name='region1')
        self.ledger.read_inventory(inventory(moved, self.b))
        device = self.ledger.device(key)
        self.assertEqual((SMALL, provider('region1'), 'i'),
                         (device.resource_class, device.provider_uuid, device.instance_uuid))
        self.ledger.free([key])
        self.assertEqual({PMEM: 1, SMALL: 1}, self.free())

    def test_it_is_held_there_and_nowhere_else(self):
        self.ledger.take('i', wants((PMEM, 1)))
        self.ledger.read_inventory(inventory(namespace('a', SMALL), self.b))
        self.assertEqual({PMEM: 0, SMALL: 1}, {pool.resource_class: pool.held for pool in self.ledger.pools()})

    def test_a_free_device_counts_elsewhere(self):
        self.ledger.read_inventory(inventory(namespace('a', SMALL), self.b))
        self.assertEqual({PMEM: 1, SMALL: 1}, self.free())
        self.assertEqual(['a'], hosts.taken(self.ledger.take('i', wants((SMALL, 1)))))

    def test_a_device_that_a_row_held_counts_elsewhere_and_is_free_there(self):
        keys = hosts.hold_rows(self.ledger, hosts.row(self.a, 'i'))
        self.ledger.read_inventory(inventory(namespace('a', SMALL), self.b))
        self.ledger.free(keys)
        self.assertEqual(['a'], hosts.taken(self.ledger.take('k', wants((SMALL, 1)))))

    def test_an_unhealthy_device_comes_back_by_itself(self):
        self.ledger.read_inventory(inventory(namespace('a', unhealthy='hot'), self.b))
        self.assertEqual({PMEM: 1}, self.free())
        self.ledger.read_inventory(inventory(self.a, self.b))
        self.assertEqual({PMEM: 2}, self.free())

    def test_what_was_given_back_meanwhile_is_known_better(self):
        ledger = hosts.ledger(capacity('p0', 2))
        [key] = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 1)))).keys
        ledger.realized(key, 'details')
        watch = ledger.watch()
        old = inventory(capacity('p0', 1), mdev(key.identifier, 'p0'))
        ledger.free([key], removed=[key])
        ledger.read_inventory(old, watch)
        self.assertIsNone(ledger.device(key))
        self.assertEqual(2, ledger.pools()[0].room)

    def test_and_what_did_not_change_meanwhile_is_read(self):
        keys = self.ledger.take('i', wants((PMEM, 1))).keys
        watch = self.ledger.watch()
        self.ledger.free(keys)
        self.ledger.read_inventory(inventory(namespace('a', unhealthy='hot'), namespace('b', unhealthy='hot'),
                                             namespace('c')), watch)
        self.assertEqual([set(), {'unhealthy'}, set()], [
            self.ledger.device(namespace(name).key).withheld for name in 'abc'])

    def test_a_parent_that_has_more_room_than_was_read_is_chosen_by_it(self):
        ledger = hosts.ledger(capacity('p0', 2), capacity('p1', 0), mdev('a', 'p1'), policy='spread')
        keys = ledger.take('i', wants((VGPU, 1, provider('p1')))).keys
        watch = ledger.watch()
        ledger.free(keys, removed=keys)
        # It can make two beside the device, which was there when it was read and is gone now.
        ledger.read_parents(inventory(capacity('p0', 2), capacity('p1', 2), mdev('a', 'p1')), watch)
        self.assertEqual(['p1'], hosts.parents(ledger.take('k', wants((VGPU, 1)))))

    def test_what_was_made_meanwhile_is_known_better(self):
        ledger = hosts.ledger(capacity('p0', 2))
        [key] = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 1)))).keys
        watch = ledger.watch()
        old = inventory(capacity('p0', 2))
        ledger.realized(key, 'details')
        ledger.read_inventory(old, watch)
        self.assertFalse(ledger.device(key).withheld)
        self.assertEqual(1, ledger.pools()[0].room)


class ReadAgainTestCase(base.TestCase):
    """Whatever the host says otherwise than before is taken over, and nothing else changes."""

    scenarios = base.table(
        ('the same', {}),
        ('its details', {'details': 'others'}),
        ('that it is broken', {'unhealthy': 'hot'}),
        ('that somebody else made it', {'adoptable': False}),
        ('its class', {'resource_class': SMALL}),
        ('its parent', {'parent': 'region1'}),
        ('its node', {'numa_node': 1}),
        ('its provider', {'provider': 'region1'}),
        names=('now',))

    def test_a_device_is_what_the_host_says_of_it_and_what_it_was_when_that_is_over(self):
        before, others = namespace('a'), (namespace('b'), mdev('m', 'p0'))
        after = before._replace(**self.now)
        ledger = hosts.ledger(before, *others)
        for device in (after, after, before):
            ledger.read_inventory(inventory(device, *others))
            read_first = hosts.ledger(device, *others)
            self.assertEqual(sorted(read_first.devices()), sorted(ledger.devices()))
            self.assertEqual([pool._replace(details='') for pool in read_first.pools()],
                             [pool._replace(details='') for pool in ledger.pools() if pool.total])


class HeldTestCase(base.TestCase):

    def test_a_device_without_a_provider_is_held_at_none(self):
        ledger = ledgers.Ledger(vocabulary.PACK, lambda _name: '')
        ledger.read_inventory(inventory(namespace('a')))
        ledger.hold([hosts.row(namespace('a'), 'i')])
        self.assertEqual([None], [device.provider_uuid for device in ledger.held()])


class WithheldTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.ledger = hosts.ledger(namespace('a'))
        self.key = values.DeviceKey('vpmem', 'a')

    def test_nobody_gets_it(self):
        self.ledger.withhold(self.key, vocabulary.FOREIGN)
        self.assertRaises(exception.NoFit, self.ledger.take, 'i', wants((PMEM, 1)))
        self.assertEqual([self.key], self.ledger.withheld(vocabulary.FOREIGN))

    def test_only_its_own_reason_admits_it(self):
        self.ledger.withhold(self.key, vocabulary.FOREIGN)
        self.ledger.admit(self.key, vocabulary.IN_DOUBT)
        self.assertRaises(exception.NoFit, self.ledger.take, 'i', wants((PMEM, 1)))
        self.ledger.admit(self.key, vocabulary.FOREIGN)
        self.ledger.take('i', wants((PMEM, 1)))

    def test_it_is_free_when_no_reason_is_left(self):
        for reason in (vocabulary.FOREIGN, vocabulary.IN_DOUBT):
            self.ledger.withhold_free([self.key], reason)
        self.ledger.admit(self.key, vocabulary.FOREIGN)
        error = self.assertRaises(exception.NoFit, self.ledger.take, 'i', wants((PMEM, 1)))
        self.assertEqual((('in doubt', 1),), error.shortages[0].withheld)
        self.ledger.admit(self.key, vocabulary.IN_DOUBT)
        self.ledger.take('i', wants((PMEM, 1)))

    def test_the_host_takes_back_only_what_it_said(self):
        self.ledger.withhold(self.key, vocabulary.IN_DOUBT)
        for device, reasons in ((namespace('a', unhealthy='hot')._replace(adoptable=False),
                                 {'in doubt', 'unhealthy', 'not to be adopted'}), (namespace('a'), {'in doubt'})):
            self.ledger.read_inventory(inventory(device))
            self.assertEqual(reasons, self.ledger.device(self.key).withheld)

    def test_what_was_made_for_its_owner_is_nobody_elses_when_it_is_given_back(self):
        theirs = namespace('a')._replace(adoptable=False, details='{"origin":"created"}')
        for known in (False, True):
            ledger = hosts.ledger(theirs if not known else namespace('a'))
            keys = hosts.hold_rows(ledger, hosts.row(theirs, 'i'))
            ledger.read_inventory(inventory(theirs))
            self.assertEqual(frozenset(), ledger.device(theirs.key).withheld)
            ledger.free(keys)
            self.assertEqual((theirs.key,), ledger.take('k', wants((PMEM, 1))).keys)

    def test_what_was_adopted_is_somebody_elses_again(self):
        theirs = namespace('a')._replace(adoptable=False, details='{"origin":"adopted"}')
        ledger = hosts.ledger(theirs)
        keys = hosts.hold_rows(ledger, hosts.row(theirs, 'i'))
        ledger.read_inventory(inventory(theirs))
        ledger.free(keys)
        self.assertEqual({'not to be adopted'}, ledger.device(theirs.key).withheld)
        self.assertRaises(exception.NoFit, ledger.take, 'k', wants((PMEM, 1)))

    def test_devices_that_are_well_share_one_empty_set(self):
        self.ledger.withhold(self.key, vocabulary.IN_DOUBT)
        self.ledger.admit(self.key, vocabulary.IN_DOUBT)
        ledger = hosts.ledger(namespace('b'))
        self.assertIs(self.ledger.device(self.key).withheld, ledger.devices()[0].withheld)

    def test_who_has_it_keeps_it(self):
        keys = self.ledger.take('i', wants((PMEM, 1))).keys
        self.ledger.withhold(self.key, vocabulary.FOREIGN)
        self.assertEqual('i', self.ledger.device(self.key).instance_uuid)
        self.ledger.free(keys)
        self.assertRaises(exception.NoFit, self.ledger.take, 'k', wants((PMEM, 1)))

    def test_a_held_one_is_not_withheld_as_free(self):
        self.ledger.take('i', wants((PMEM, 1)))
        self.ledger.withhold_free([self.key], vocabulary.IN_DOUBT)
        self.assertEqual([], self.ledger.withheld(vocabulary.IN_DOUBT))

    def test_an_unknown_one_is_no_error(self):
        nobody = values.DeviceKey('vpmem', 'nobody')
        for change in (self.ledger.withhold, self.ledger.admit, self.ledger.stand_down):
            change(nobody, vocabulary.FOREIGN)
        self.ledger.withhold_free([nobody], vocabulary.FOREIGN)
        for change in (self.ledger.releasing, self.ledger.free, self.ledger.trust_rows):
            change([nobody])
        self.ledger.realized(nobody, 'details')
        self.assertIsNone(self.ledger.exchange(nobody))
        self.assertIsNone(self.ledger.device(nobody))


class StandingTestCase(base.TestCase):
    """What an operator said, of a device or of a parent."""

    def setUp(self):
        super().setUp()
        self.ledger = hosts.ledger(namespace('a'), capacity('p0', 2), hosts.mdev('m', 'p0'))
        self.key = values.DeviceKey('vpmem', 'a')

    def room(self, resource_class=PMEM):
        return sum(pool.room for pool in self.ledger.pools() if pool.resource_class == resource_class)

    def test_nothing_but_standing_down_ends_it(self):
        self.ledger.stand(self.key, vocabulary.DRAINED)
        self.ledger.admit(self.key, vocabulary.DRAINED)
        self.ledger.read_inventory(inventory(namespace('a')))
        self.assertEqual((0, []), (self.room(), self.ledger.withheld(vocabulary.DRAINED)))
        self.ledger.stand_down(self.key, vocabulary.DRAINED)
        self.assertEqual(1, self.room())

    def test_it_outlasts_the_device(self):
        self.ledger.stand(self.key, vocabulary.DRAINED)
        for devices in ((), (namespace('a', unhealthy='hot'),), (namespace('a'),)):
            self.ledger.read_inventory(inventory(*devices))
            self.assertEqual(0, self.room())

    def test_it_is_there_before_the_device(self):
        key = values.DeviceKey('vpmem', 'b')
        self.ledger.stand(key, vocabulary.DRAINED)
        self.ledger.read_inventory(inventory(namespace('a'), namespace('b')))
        self.assertEqual((1, {'drained'}), (self.room(), self.ledger.device(key).withheld))

    def test_it_is_there_for_a_device_that_only_a_row_names(self):
        key = values.DeviceKey('vpmem', 'b')
        self.ledger.stand(key, vocabulary.DRAINED)
        self.ledger.hold([hosts.row(namespace('b'), 'i')])
        self.assertEqual({'drained', stock.GONE}, self.ledger.device(key).withheld)

    def test_whatever_else_withholds_such_a_device_it_is_withheld_for_that_too(self):
        ledger = ledgers.Ledger(vocabulary.PACK, lambda _name: '')
        ledger.stand(self.key, vocabulary.DRAINED)
        ledger.hold([hosts.row(namespace('a'), 'i')._replace(provider_uuid='')])
        self.assertEqual({self.key: {'drained', 'no provider yet', stock.GONE}}, ledger.reasons())

    def test_it_is_there_for_a_device_that_gets_its_name_later(self):
        made = hosts.mdev('new', 'p0')
        self.ledger.stand(made.key, vocabulary.DRAINED)
        hold = self.ledger.take('i', wants((VGPU, 3)))
        self.ledger.name(hold, [one._replace(identifier=one.identifier or name)
                                for one, name in zip(hold.candidates, ('m', 'new', 'other'), strict=True)])
        self.ledger.realized(made.key, made.details)
        self.ledger.read_inventory(inventory(made, hosts.mdev('m', 'p0')))
        self.assertEqual({'drained'}, self.ledger.device(made.key).withheld)

    def test_a_parent_makes_no_more_and_its_devices_are_withheld(self):
        self.assertEqual(3, self.room(VGPU))
        self.ledger.drain('mdev', 'p0')
        error = self.assertRaises(exception.NoFit, self.ledger.take, 'i', wants((VGPU, 1)))
        [shortage] = error.shortages
        self.assertEqual((3, 0, (('drained', 3),), ()), (shortage.exist, shortage.free, shortage.withheld,
                                                         shortage.full_parents))
        self.assertEqual(f'1 {VGPU} wanted, 0 of 3 free: 3 withheld (drained)', str(shortage))
        self.ledger.undrain('mdev', 'p0')
        self.assertEqual(3, self.room(VGPU))
        self.ledger.take('i', wants((VGPU, 3)))

    def test_what_comes_back_to_a_drained_parent_is_withheld(self):
        hold = hosts.name_all(self.ledger, self.ledger.take('i', wants((VGPU, 2))))
        self.ledger.drain('mdev', 'p0')
        self.ledger.free(hold.keys)
        self.assertEqual(0, self.room(VGPU))

    def test_another_kind_with_a_parent_of_this_name_goes_on(self):
        self.ledger.drain('vpmem', 'p0')
        self.assertEqual(3, self.room(VGPU))

    def test_a_parent_that_comes_later_is_drained(self):
        self.ledger.drain('mdev', 'p1')
        self.ledger.read_inventory(inventory(capacity('p1', 2), hosts.mdev('n', 'p1')))
        self.assertEqual(0, self.room(VGPU))

    def test_a_device_of_its_own_stays_drained_when_its_parent_is_not(self):
        key = values.DeviceKey('mdev', 'm')
        self.ledger.drain('mdev', 'p0')
        self.ledger.stand(key, vocabulary.DRAINED)
        self.ledger.undrain('mdev', 'p0')
        self.assertEqual(2, self.room(VGPU))
        self.ledger.drain('mdev', 'p0')
        self.ledger.stand_down(key, vocabulary.DRAINED)
        self.assertEqual(0, self.room(VGPU))
        self.ledger.undrain('mdev', 'p0')
        self.assertEqual(3, self.room(VGPU))

    def test_a_device_that_moves_follows_its_parents(self):
        self.ledger.drain('vpmem', 'region0')
        self.assertEqual(0, self.room())
        self.ledger.read_inventory(inventory(namespace('a', parent='region1')))
        self.assertEqual(1, self.room())
        self.ledger.read_inventory(inventory(namespace('a')))
        self.assertEqual(0, self.room())

    def test_what_is_made_or_removed_meanwhile_makes_no_room(self):
        hold = hosts.name_all(self.ledger, self.ledger.take('i', wants((VGPU, 3))))
        for key in hold.keys:
            self.ledger.realized(key, 'details')
        self.ledger.drain('mdev', 'p0')
        self.ledger.free(hold.keys, removed=hold.keys)
        self.ledger.read_capacities([capacity('p0', 3)])
        self.assertEqual(0, self.room(VGPU))


class HoldInStepsTestCase(base.TestCase):

    def test_what_rows_told_of_one_after_the_other_is_one_holding(self):
        a, b = namespace('a'), namespace('b')
        ledger = hosts.ledger(a, b)
        for device in (a, b):
            ledger.hold([hosts.row(device, 'i')])
        error = self.assertRaises(exception.InstanceHasClaim, ledger.take, 'i', wants((PMEM, 1)))
        self.assertEqual([a.key, b.key], list(error.held))


    def test_a_device_that_only_a_row_knows_of_is_looked_for_among_the_others_of_its_class(self):
        ledger, gone = hosts.ledger(), mdev('a', 'p0')
        ledger.hold([hosts.row(gone, 'i')])
        self.assertRaises(exception.NoFit, ledger.exchange, gone.key)

    def test_beside_what_is_on_its_way_back_an_instance_has_one_claim(self):
        ledger = hosts.ledger(*map(namespace, 'abcd'))
        first = ledger.take('i', wants((PMEM, 2)))
        ledger.releasing(first.keys[:1])
        self.assertRaises(exception.InstanceHasClaim, ledger.take, 'i', wants((PMEM, 1)))
        ledger.releasing(first.keys)
        self.assertEqual(['c'], hosts.taken(ledger.take('i', wants((PMEM, 1)))))
        self.assertRaises(exception.InstanceHasClaim, ledger.take, 'i', wants((PMEM, 1)))
        ledger.free(first.keys)
        self.assertRaises(exception.InstanceHasClaim, ledger.take, 'i', wants((PMEM, 1)))

    def test_of_three_holdings_two_stay_when_the_first_ends(self):
        ledger = hosts.ledger(*map(namespace, 'abc'))
        holds = [ledger.take('i', wants((PMEM, 1)), beside=beside) for beside in (False, True, True)]
        for hold in holds:
            error = self.assertRaises(exception.InstanceHasClaim, ledger.take, 'i', wants((PMEM, 1)))
            self.assertEqual(hold.keys, tuple(error.held))
            ledger.free(hold.keys)
        self.assertEqual(['a'], hosts.taken(ledger.take('i', wants((PMEM, 1)))))


class ReadParentsTestCase(base.TestCase):

    def test_a_parent_that_was_not_there_before_makes_devices_from_now_on(self):
        ledger = hosts.ledger(capacity('p1', 1))
        ledger.read_capacities([capacity('p0', 1), capacity('p1', 1)])
        self.assertEqual(['p0'], hosts.parents(ledger.take('i', wants((VGPU, 1)))))

    def test_a_free_device_that_is_gone_is_forgotten_and_a_held_one_is_not(self):
        ledger = hosts.ledger(capacity('p0', 0), mdev('a', 'p0'), mdev('b', 'p0'))
        [held] = ledger.take('i', wants((VGPU, 1))).keys
        watch = ledger.watch()
        ledger.read_parents(inventory(capacity('p0', 2)), watch)
        self.assertEqual([held.identifier], [device.identifier for device in ledger.devices()])
        self.assertEqual(frozenset((stock.GONE,)), ledger.reasons()[held])

    def test_a_parent_that_was_full_makes_devices_again(self):
        ledger = hosts.ledger(capacity('p0', 0))
        self.assertRaises(exception.NoFit, ledger.take, 'i', wants((VGPU, 1)))
        ledger.read_parents(inventory(capacity('p0', 1)), ledger.watch())
        self.assertEqual(['p0'], hosts.parents(ledger.take('i', wants((VGPU, 1)))))

    def test_a_held_device_that_is_there_again_is_not_gone_whatever_else_is_there(self):
        ledger = hosts.ledger(mdev('a', 'p0'), mdev('b', 'p0'))
        keys = ledger.take('i', wants((VGPU, 2))).keys
        ledger.read_parents(inventory(), ledger.watch())
        ledger.withhold(keys[0], vocabulary.FOREIGN)
        ledger.read_parents(inventory(mdev('unknown', 'p0'), mdev('a', 'p0'), mdev('b', 'p0')), ledger.watch())
        self.assertEqual({keys[0]: {vocabulary.FOREIGN}}, ledger.reasons())

    def test_what_was_given_back_meanwhile_is_known_better(self):
        ledger = hosts.ledger(mdev('a', 'p0'))
        keys = ledger.take('i', wants((VGPU, 1))).keys
        watch = ledger.watch()
        ledger.free(keys)
        ledger.read_parents(inventory(mdev('a', 'p0', unhealthy='in use')), watch)
        self.assertEqual(keys, ledger.take('j', wants((VGPU, 1))).keys)

    def test_what_a_claim_does_not_take_after_all_is_room_for_other_types_of_its_parent(self):
        ledger = hosts.ledger(capacity('p0', 1), capacity('p0', 1, VGPU_B, device_type='b'))
        hold = ledger.take('i', wants((VGPU, 1)))
        self.assertRaises(exception.NoFit, ledger.take, 'j', wants((VGPU_B, 1)))
        ledger.put_back(hold)
        self.assertEqual(['p0'], hosts.parents(ledger.take('j', wants((VGPU_B, 1)))))


class ReadWhileMakingTestCase(base.TestCase):
    """What a parent says of itself when a device is made counts, unless something else happened there meanwhile."""

    def room(self, *realized):
        ledger = hosts.ledger(capacity('p0', 3))
        keys = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 2)))).keys
        watch = ledger.watch()
        for number, said in realized:
            ledger.realized(keys[number], 'details', [capacity('p0', said)], watch)
        ledger.unwatch(watch)
        [pool] = ledger.pools()
        return pool.room

    def test_it_says_what_is_left(self):
        ledger = hosts.ledger(capacity('p0', 3))
        [key] = hosts.name_all(ledger, ledger.take('i', wants((VGPU, 1)))).keys
        watch = ledger.watch()
        ledger.realized(key, 'details', [capacity('p0', 7)], watch)
        self.assertEqual([7], [pool.room for pool in ledger.pools()])

    def test_not_while_another_device_is_still_to_be_made(self):
        self.assertEqual(1, self.room((0, 7)))

    def test_not_when_another_device_was_made_meanwhile(self):
        self.assertEqual(1, self.room((0, 7), (1, 8)))


class AllowsTestCase(base.TestCase):

    scenarios = [(f'{policy}, {node}', {'policy': policy, 'node': node, 'expected': expected})
                 for policy, answers in {'required': (True, False, False), 'preferred': (True, True, True),
                                         'legacy': (True, False, True), 'none': (True, True, True)}.items()
                 for node, expected in zip((0, 1, None), answers, strict=True)]

    def test_a_device_on_the_node(self):
        self.assertEqual(self.expected, selection.allows(self.node, frozenset((0,)), self.policy))

    def test_a_guest_that_is_not_pinned(self):
        self.assertTrue(selection.allows(self.node, frozenset(), self.policy))
