"""Why a request does not fit: the sentence, and numbers that add up."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import capacity
from devicetrack.tests.unit.engine.hosts import mdev
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import SMALL
from devicetrack.tests.unit.engine.hosts import VGPU
from devicetrack.tests.unit.engine.hosts import wants

P0, P1 = provider('p0'), provider('p1')


def cordon(ledger):
    ledger.withhold(values.DeviceKey('vpmem', 'd'), vocabulary.CORDONED)


def release(ledger):
    ledger.releasing(ledger.take('r', wants((PMEM, 1))).keys)


def take(amount, resource_class=PMEM):
    return lambda ledger: ledger.take(f'holder of {amount}', wants((resource_class, amount)))


FOUR = [namespace(name) for name in 'abcd']

REFUSALS = base.table(
    ('no such class', FOUR, [], wants((VGPU, 1)), ['1 VGPU wanted, this host has none']),
    ('a mistyped class', [mdev('a', 'p0')], [], wants(('VGPUS', 1)),
     ['1 VGPUS wanted, this host has none, close to it: VGPU']),
    ('no such class at this provider', [mdev('a', 'p0')], [], wants((SMALL, 1, P0)),
     [f'1 {SMALL} wanted from provider {P0}, this host has none (1 device of another type there)']),
    ('too many', FOUR, [], wants((PMEM, 5)), [f'5 {PMEM} wanted, 4 of 4 free']),
    ('held', FOUR, [take(2), take(1)], wants((PMEM, 2)),
     [f'2 {PMEM} wanted, 1 of 4 free: 3 held by 2 instances']),
    ('held, and other devices by others', [*FOUR, namespace('s', SMALL)], [take(2), take(1, SMALL)], wants((PMEM, 3)),
     [f'3 {PMEM} wanted, 2 of 4 free: 2 held by 1 instance']),
    ('held by one', FOUR, [take(4)], wants((PMEM, 1)), [f'1 {PMEM} wanted, 0 of 4 free: 4 held by 1 instance']),
    ('everything at once', FOUR, [cordon, release, take(1)], wants((PMEM, 2)),
     [f'2 {PMEM} wanted, 1 of 4 free: 1 held by 1 instance, 1 still to be wiped or removed, 1 withheld (cordoned)']),
    ('unhealthy', [namespace('a', unhealthy='hot')], [], wants((PMEM, 1)),
     [f'1 {PMEM} wanted, 0 of 1 free: 1 withheld (unhealthy)']),
    ('wrong node', [namespace('a', numa_node=1)], [],
     wants((PMEM, 1), numa_nodes=frozenset((0,)), numa_policy='required'),
     [f'1 {PMEM} wanted, 0 of 1 free: 1 on another NUMA node']),
    ('free elsewhere', [mdev('a', 'p0'), capacity('p1', 3)], [], wants((VGPU, 2, P0)),
     [f'2 VGPU wanted from provider {P0}, 1 of 1 free: 3 free at other providers']),
    ('full parents', [capacity('p0', 0), capacity('p1', 1)], [take(1, VGPU)], wants((VGPU, 1)),
     ['1 VGPU wanted, 0 of 1 free: 1 held by 1 instance, no room left on p0, p1']),
    ('full of what others made', [capacity('p0', 0)], [], wants((VGPU, 1)),
     ['1 VGPU wanted, 0 of 0 free: no room left on p0']),
    ('full of what no option enables', [capacity('p0', 0)._replace(taken_by='mdev/a takes it')], [], wants((VGPU, 1)),
     ['1 VGPU wanted, 0 of 0 free: no room left on p0 (mdev/a takes it)']),
    ('two classes', FOUR, [take(4)], wants((PMEM, 1), (VGPU, 1)),
     [f'1 {PMEM} wanted, 0 of 4 free: 4 held by 1 instance', '1 VGPU wanted, this host has none']),
    ('two items of a class', FOUR, [], wants((PMEM, 3), (PMEM, 3)), [f'6 {PMEM} wanted, 4 of 4 free']),
    ('each fits alone', [mdev('a', 'p0'), mdev('b', 'p1')], [], wants((VGPU, 1, P0), (VGPU, 2)),
     [f'1 VGPU wanted from provider {P0}, 1 of 1 free: 1 free at other providers', '2 VGPU wanted, 2 of 2 free']),
    names=('parts', 'before', 'demand', 'sentences'))


class RefusalTestCase(base.TestCase):

    scenarios = REFUSALS

    def setUp(self):
        super().setUp()
        self.ledger = hosts.ledger(*self.parts)
        for step in self.before:
            step(self.ledger)
        error = self.assertRaises(exception.NoFit, self.ledger.take, 'i', self.demand)
        self.shortages = error.shortages

    def test_says_in_one_sentence(self):
        self.assertEqual('; '.join(self.sentences), str(exception.NoFit(self.shortages)))

    def test_its_numbers_add_up(self):
        for shortage in self.shortages:
            self.assertEqual(shortage.exist, shortage.free + shortage.held + shortage.releasing
                             + sum(count for _, count in shortage.withheld) + shortage.wrong_numa_node)

    def test_explaining_and_refusing_say_the_same(self):
        explained = self.ledger.shortages(self.demand, everything=True)
        for shortage in self.ledger.shortages(self.demand):
            self.assertIn(shortage, explained)


class ExplainTestCase(base.TestCase):

    def test_says_of_every_part_whether_it_fits(self):
        ledger = hosts.ledger(*FOUR)
        explained = ledger.shortages(wants((PMEM, 2), (VGPU, 1)), everything=True)
        self.assertEqual([(PMEM, True), (VGPU, False)],
                         [(shortage.resource_class, shortage.fits) for shortage in explained])
