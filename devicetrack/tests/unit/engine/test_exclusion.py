"""Devices that exclude one another in the ledger, case by case."""

from unittest import mock

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import exclusion
from devicetrack.engine.snapshot import Claimed
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import inventory
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import SMALL
from devicetrack.tests.unit.engine.hosts import taken
from devicetrack.tests.unit.engine.hosts import wants

CARD, FUNCTION = PMEM, SMALL


def card(name='pf', numa_node=0, others=()):
    return namespace(name, CARD, None, numa_node)._replace(exclusions=((name, vocabulary.WHOLE), *others))


def function(name, of='pf', numa_node=0, others=()):
    return namespace(name, FUNCTION, of, numa_node)._replace(exclusions=((of, vocabulary.PART), *others))


def member(name, group='g', resource_class=FUNCTION, numa_node=0, parent='region0'):
    return namespace(name, resource_class, parent, numa_node)._replace(
        exclusions=((group, vocabulary.TOGETHER),) if group else ())


PF, VF0, VF1 = card(), function('vf0'), function('vf1')


def key(name):
    return DeviceKey('vpmem', name)


def excluded(ledger):
    return sorted(found.identifier for found in ledger.excluded())


class ChoiceTestCase(base.TestCase):
    """Which devices a demand gets, and what is excluded then."""

    scenarios = base.table(
        ('a function', [PF, VF0, VF1], wants((FUNCTION, 1)), ['vf0'], ['pf']),
        ('every function', [PF, VF0, VF1], wants((FUNCTION, 2)), ['vf0', 'vf1'], ['pf']),
        ('a card', [PF, VF0, VF1], wants((CARD, 1)), ['pf'], ['vf0', 'vf1']),
        ('a card without functions', [PF], wants((CARD, 1)), ['pf'], []),
        ('a card and a function of another', [PF, VF0, card('pg'), function('vg', 'pg')],
         wants((CARD, 1), (FUNCTION, 1)), ['pf', 'vg'], ['pg', 'vf0']),
        # The card that comes first would take the functions along.
        ('a card and functions of the first', [PF, VF0, VF1, card('pg'), function('vg', 'pg')],
         wants((CARD, 1), (FUNCTION, 2)), ['pg', 'vf0', 'vf1'], ['pf', 'vg']),
        ('one of a group', [member('a'), member('b')], wants((FUNCTION, 1)), ['a'], ['b']),
        ('two of a group', [member('a'), member('b'), member('c')], wants((FUNCTION, 2)), ['a', 'b'], ['c']),
        ('the rest of a group first', [member('a', 'x'), member('b', None), member('c', 'x')],
         wants((FUNCTION, 2)), ['a', 'c'], []),
        ('two of one group, though a lone one comes first', [member('a', None), member('b', 'x'), member('c', 'x')],
         wants((FUNCTION, 2)), ['b', 'c'], []),
        ('two of the smallest group that has them', [*(member(name, 'x') for name in 'abc'), member('d', 'y'),
                                                     member('e', 'y')], wants((FUNCTION, 2)), ['d', 'e'], []),
        ('two and then a lone one', [member('a', None), member('b', 'x'), member('c', 'x')],
         wants((FUNCTION, 3)), ['a', 'b', 'c'], []),
        ('a lone one rather than a part of a group', [member('a', 'x'), member('b', 'x'), member('c', None)],
         wants((FUNCTION, 1)), ['c'], []),
        ('a lone one of another parent', [member('a', 'x'), member('b', 'x'), member('c', None, parent='region1')],
         wants((FUNCTION, 1)), ['c'], []),
        ('a near part of a group rather than a far lone one', [member('a', 'x'), member('b', 'x'),
                                                               member('c', None, numa_node=1)],
         wants((FUNCTION, 1), numa_nodes=frozenset((0,)), numa_policy='preferred'), ['a'], ['b']),
        ('a group over two classes', [member('a', 'x', CARD), member('b', 'y'), member('c', 'x')],
         wants((CARD, 1), (FUNCTION, 1)), ['a', 'c'], []),
        ('a group over two nodes, near first', [member('a', 'x'), member('b', 'y'), member('c', 'x', numa_node=1)],
         wants((FUNCTION, 2), numa_nodes=frozenset((0,)), numa_policy='preferred'), ['a', 'b'], ['c']),
        ('a group over two nodes, far rather than none', [member('a', 'x'), member('c', 'x', numa_node=1)],
         wants((FUNCTION, 2), numa_nodes=frozenset((0,)), numa_policy='preferred'), ['a', 'c'], []),
        ('functions in one group', [card(others=(('g', 'together'),)), function('vf0', others=(('g', 'together'),)),
                                    function('vf1', others=(('g', 'together'),))],
         wants((FUNCTION, 2)), ['vf0', 'vf1'], ['pf']),
        ('those that a guest from elsewhere accepts', [member('a'), member('b'), member('c')],
         wants((FUNCTION, 1, None, lambda parent, text: text.endswith('c')),
               (FUNCTION, 1, None, lambda parent, text: text.endswith('b'))), ['c', 'b'], ['a']),
        names=('devices', 'demand', 'expected', 'then_excluded'))

    def test_gets(self):
        ledger = hosts.ledger(*self.devices)
        hold = ledger.take('i1', self.demand)
        self.assertEqual((self.expected, self.then_excluded), (taken(hold), excluded(ledger)))
        ledger.releasing(hold.keys)
        self.assertEqual(self.then_excluded, excluded(ledger))
        ledger.free(hold.keys)
        self.assertEqual([], excluded(ledger))
        self.assertEqual(len(self.devices), sum(pool.free for pool in ledger.pools()))


class RefusalTestCase(base.TestCase):
    scenarios = base.table(
        ('the card of a function', [PF, VF0], ['vf0'], wants((CARD, 1))),
        ('a function of a card', [PF, VF0, VF1], ['pf'], wants((FUNCTION, 1))),
        ('a card with its own function', [PF, VF0], [], wants((CARD, 1), (FUNCTION, 1))),
        ('one that goes with another', [member('a'), member('b')], ['a'], wants((FUNCTION, 1))),
        ('a group that somebody has a part of', [member('a'), member('b'), member('c', 'x')], ['a'],
         wants((FUNCTION, 2))),
        ('too many of a group', [member('a'), member('b')], [], wants((FUNCTION, 3))),
        ('two cards of one token', [PF, namespace('pg', CARD)._replace(exclusions=(('pf', 'whole'),))], ['pf'],
         wants((CARD, 1))),
        names=('devices', 'held', 'demand'))

    def test_is_refused_and_leaves_no_trace(self):
        ledger = hosts.ledger(*self.devices)
        for device in self.devices:
            if device.identifier in self.held:
                ledger.hold([hosts.row(device, f'owner of {device.identifier}')])
        before = [sorted(ledger.devices(), key=lambda device: device.identifier), ledger.pools(), excluded(ledger)]
        error = self.assertRaises(exception.NoFit, ledger.take, 'i1', self.demand)
        self.assertEqual(before, [sorted(ledger.devices(), key=lambda device: device.identifier), ledger.pools(),
                                  excluded(ledger)])
        if self.held:
            self.assertIn('withheld (excluded)', str(error))


class RowTestCase(base.TestCase):

    def test_rows_against_every_exclusion_are_held(self):
        ledger = hosts.ledger(PF, VF0, VF1)
        for device in (VF0, PF):
            ledger.hold([hosts.row(device, f'owner of {device.identifier}')])
        self.assertEqual(['vf1'], excluded(ledger))
        self.assertEqual('owner of pf', ledger.device(key('pf')).instance_uuid)
        self.assertEqual(frozenset(), ledger.device(key('vf0')).withheld)
        ledger.free([key('pf')])
        self.assertEqual(['pf'], excluded(ledger))

    def test_rows_count_before_they_are_held(self):
        """From the reading of the host on, which comes before the rows are gone through."""
        ledger = hosts.Ledger('pack', provider)
        ledger.read_inventory(inventory(PF, VF0, VF1), recorded={key('vf1'): Claimed('i1', 1)})
        self.assertEqual(['pf'], excluded(ledger))

    def test_the_row_of_a_function_that_is_away_excludes_its_card(self):
        """Whether the card is known before the row or comes later."""
        for early in (True, False):
            ledger = hosts.ledger(*[PF] * early)
            ledger.hold([hosts.row(VF0, 'i1')])
            ledger.read_inventory(inventory(PF))
            self.assertEqual({key('pf'): 'instance i1 has vpmem/vf0 of vpmem/pf'}, ledger.excluded())
            ledger.free([key('vf0')])
            self.assertEqual([], excluded(ledger))

    def test_a_device_that_is_gone_excludes_while_somebody_has_it(self):
        ledger = hosts.ledger(PF, VF0)
        ledger.hold([hosts.row(VF0, 'i1')])
        ledger.read_inventory(inventory(PF))
        self.assertEqual(['pf'], excluded(ledger))
        ledger.free([key('vf0')])
        self.assertEqual([], excluded(ledger))


class StrangeHandsTestCase(base.TestCase):
    """Somebody may have a device whom the ledger does not know."""

    scenarios = [(reason, {'reason': reason}) for reason in (
        vocabulary.FOREIGN, vocabulary.IN_DOUBT, vocabulary.MADE_BY_OTHERS)]

    def test_it_excludes_as_if_it_were_held(self):
        ledger = hosts.ledger(PF, VF0, VF1)
        ledger.withhold_free([key('vf0')], self.reason)
        self.assertEqual(['pf'], excluded(ledger))
        self.assertIn(f'somebody may have ({self.reason}) vpmem/vf0', ledger.why_excluded(key('pf')))
        ledger.admit(key('vf0'), self.reason)
        self.assertEqual([], excluded(ledger))

    def test_it_excludes_as_soon_as_it_is_there(self):
        ledger = hosts.Ledger('pack', provider)
        ledger.stand(key('pf'), self.reason)
        ledger.read_inventory(inventory(VF0, PF))
        self.assertEqual(['vf0'], excluded(ledger))
        ledger.stand_down(key('pf'), self.reason)
        self.assertEqual([], excluded(ledger))

    def test_a_group_goes_to_nobody_beside_it(self):
        ledger = hosts.ledger(member('a'), member('b'), member('c'))
        ledger.take('i1', wants((FUNCTION, 1)))
        ledger.admit(key('b'), vocabulary.EXCLUDED)         # is not for anybody to end
        ledger.withhold(key('b'), self.reason)
        self.assertRaises(exception.NoFit, ledger.take, 'i1', wants((FUNCTION, 1)), beside=True)


class OtherReasonsTestCase(base.TestCase):
    scenarios = [(reason, {'reason': reason}) for reason in vocabulary.WITHHELD_REASONS if reason not in (
        vocabulary.EXCLUDED, vocabulary.FOREIGN, vocabulary.IN_DOUBT, vocabulary.MADE_BY_OTHERS)]

    def test_they_exclude_nothing_and_go_with_it(self):
        ledger = hosts.ledger(PF, VF0, VF1)
        ledger.withhold(key('vf0'), self.reason)
        self.assertEqual([], excluded(ledger))
        hold = ledger.take('i1', wants((CARD, 1)))
        self.assertEqual({self.reason, vocabulary.EXCLUDED}, ledger.device(key('vf0')).withheld)
        ledger.free(hold.keys)
        self.assertEqual({self.reason}, ledger.device(key('vf0')).withheld)


class ChangeTestCase(base.TestCase):
    """What excludes what changes while devices have owners."""

    scenarios = base.table(
        ('a card gets functions', [namespace('pf', CARD, None)], ['pf'], [PF, VF0, VF1], ['vf0', 'vf1']),
        ('a card gets more functions', [PF, VF0], ['vf0'], [PF, VF0, VF1], ['pf']),
        ('a card loses its functions', [PF, VF0, VF1], ['pf'], [PF], []),
        ('functions become a thing of their own', [PF, VF0], ['pf'], [PF, namespace('vf0', FUNCTION, 'pf')], []),
        ('a group gets another number', [member('a'), member('b')], ['a'], [member('a', 'h'), member('b', 'h')], ['b']),
        ('a group is divided', [member('a'), member('b')], ['a'], [member('a', 'h'), member('b')], []),
        ('groups become one', [member('a'), member('b', 'h')], ['a'], [member('a'), member('b')], ['b']),
        ('what is held changes alone', [PF, VF0], ['vf0'], [PF, function('vf0', 'pg')], []),
        names=('before', 'held', 'after', 'then_excluded'))

    def test_is_taken_over(self):
        ledger = hosts.ledger(*self.before)
        for device in self.before:
            if device.identifier in self.held:
                ledger.hold([hosts.row(device, 'i1')])
        ledger.read_inventory(inventory(*self.after))
        self.assertEqual(self.then_excluded, excluded(ledger))
        ledger.free([key(name) for name in self.held])
        self.assertEqual([], excluded(ledger))
        self.assertEqual(len(self.after), sum(pool.free for pool in ledger.pools()))

    def test_is_taken_over_of_what_was_given_back_meanwhile(self):
        ledger = hosts.ledger(*self.before)
        keys = [key(name) for name in self.held]
        for device in self.before:
            if device.identifier in self.held:
                ledger.hold([hosts.row(device, 'i1')])
        before = ledger.now
        ledger.free(keys)
        ledger.read_inventory(inventory(*self.after), before)
        for device in self.after:
            if device.identifier in self.held:
                ledger.hold([hosts.row(device, 'i2')])
        self.assertEqual(self.then_excluded, excluded(ledger))


class CostTestCase(base.TestCase):
    """A card has many functions, and a claim of one looks at the card alone."""

    def looked_at(self, demand, functions=200):
        ledger = hosts.ledger(PF, *(function(f'vf{number:03}') for number in range(functions)))
        ledger.take('i0', wants((FUNCTION, 1)))
        with mock.patch.object(exclusion, 'is_excluded', wraps=exclusion.is_excluded) as asked:
            hold = ledger.take('i1', demand)
            ledger.free(hold.keys)
        return asked.call_count

    def test_of_a_function(self):
        self.assertLess(self.looked_at(wants((FUNCTION, 1))), 10)


class WrongTestCase(base.TestCase):
    scenarios = base.table(
        ('a mode that is none', (('pf', 'half'),), 'vpmem/a: the exclusion (pf, half) must be one of part, whole'),
        ('a token twice', (('pf', 'part'), ('pf', 'whole')), 'name a token twice'),
        names=('exclusions', 'expected'))

    def test_is_refused(self):
        device = namespace('a')._replace(exclusions=self.exclusions)
        error = self.assertRaises(ValueError, hosts.ledger, device)
        self.assertIn(self.expected, str(error))


class WordsTestCase(base.TestCase):

    def test_many_owners_are_counted(self):
        ledger = hosts.ledger(PF, *(function(f'vf{number}') for number in range(5)))
        for number in range(5):
            ledger.take(f'i{number}', wants((FUNCTION, 1)))
        ledger.releasing([key('vf0')])
        self.assertEqual('instance i0 gives back vpmem/vf0 of pf, instance i1 has vpmem/vf1 of pf, instance i2 has '
                         'vpmem/vf2 of pf and 2 more', ledger.why_excluded(key('pf')))
        self.assertIsNone(ledger.why_excluded(key('vf0')))
        self.assertIsNone(ledger.why_excluded(key('nothing')))

    def test_a_device_excludes_nothing_by_default(self):
        self.assertEqual((), InventoryDevice('vpmem', 'a', '', PMEM, None, None, '{}').exclusions)
