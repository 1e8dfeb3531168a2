"""Who gets what: the ledger and its selection, case by case."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import selection
from devicetrack.engine import snapshot
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
from devicetrack.tests.unit.engine.hosts import wants


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
        self.assertEqual([False], hosts.from_rows(self.ledger, 'i'))
        self.ledger.free([second])
        self.assertEqual([], hosts.from_rows(self.ledger, 'i'))
        self.ledger.take('i', wants((PMEM, 2)))

    def test_a_device_without_a_name_is_cordoned_with_its_parent(self):
        ledger = hosts.ledger(hosts.capacity('p0', 1))
        hold = ledger.take('i', wants((VGPU, 1)))
        ledger.close_parent('mdev', 'p0', vocabulary.CORDONED)
        [key] = hosts.name_all(ledger, hold).keys
        ledger.realized(key, 'made')
        ledger.free([key])
        self.assertEqual((0, {key: frozenset(('cordoned',))}), (sum(pool.room for pool in ledger.pools()),
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
        self.assertEqual([], hosts.from_rows(self.ledger, 'one'))
        self.assertEqual([], self.ledger.not_held([hosts.row(self.device, 'two')]))

    def test_of_a_row_of_another_while_the_owner_gives_the_device_back(self):
        keys = hosts.hold_rows(self.ledger, hosts.row(self.device, 'one'))
        self.ledger.releasing_of('one', keys)
        self.assertEqual(selection.RELEASING, self.ledger.device(self.device.key).state)
        self.ledger.hold([hosts.row(self.device, 'one')])
        self.assertEqual(selection.RELEASING, self.ledger.device(self.device.key).state)
        self.ledger.hold([hosts.row(self.device, 'two')])
        self.assertEqual(selection.HELD, self.ledger.device(self.device.key).state)

    def test_of_a_row_whose_device_is_missing(self):
        gone = namespace('gone')
        keys = hosts.hold_rows(self.ledger, hosts.row(gone, 'i'))
        [device] = hosts.held(self.ledger, 'i')
        self.assertEqual(({snapshot.GONE}, selection.HELD), (device.withheld, device.state))
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
            self.assertEqual([], hosts.from_rows(self.ledger, 'i'))
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
        self.assertEqual([[True], [False], []], [hosts.from_rows(self.ledger, uuid) for uuid in 'ikl'])

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
        self.assertEqual([True], hosts.from_rows(self.ledger, 'k'))

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
        # The instance's own a and c do not count; b, which is being released, and the other instance's d do.
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
        devices[1] = devices[1]._replace(assignable=False)
        devices[2] = devices[2]._replace(unhealthy='hot')
        ledger.read_parents(inventory(*devices), ledger.now)
        self.assertEqual(['d'], hosts.taken(ledger.exchange(key)))

    def test_and_nothing_is_free_by_what_is_read_then(self):
        ledger = hosts.ledger(mdev('a', 'p0', unhealthy='hot'))
        ledger.read_parents(inventory(mdev('a', 'p0')), ledger.now)
        self.assertRaises(exception.NoFit, ledger.take, 'i', wants((VGPU, 1)))


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

    def test_only_what_is_held_for_the_instance_is_on_its_way_back(self):
        ledger = hosts.ledger(*map(namespace, 'ab'))
        [first], [other] = ledger.take('i', wants((PMEM, 1))).keys, ledger.take('k', wants((PMEM, 1))).keys
        ledger.releasing_of('i', [first, other])
        self.assertEqual([True, False], [device.state == selection.RELEASING for instance in 'ik'
                                         for device in hosts.held(ledger, instance)])

    def test_of_three_holdings_two_stay_when_the_first_ends(self):
        ledger = hosts.ledger(*map(namespace, 'abc'))
        holds = [ledger.take('i', wants((PMEM, 1)), beside=beside) for beside in (False, True, True)]
        for hold in holds:
            error = self.assertRaises(exception.InstanceHasClaim, ledger.take, 'i', wants((PMEM, 1)))
            self.assertEqual(hold.keys, tuple(error.held))
            ledger.free(hold.keys)
        self.assertEqual(['a'], hosts.taken(ledger.take('i', wants((PMEM, 1)))))
