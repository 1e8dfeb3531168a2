"""What the ledger does under its lock for rows of which it may know less, or more."""

from devicetrack import exception
from devicetrack.claims import locks
from devicetrack.claims.locked_ledger import LedgerLock
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.engine.views import Views
from devicetrack.objects.values import Usage
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts

A, B = hosts.namespace('a'), hosts.namespace('b')


VIEWS = Views(Usage((), frozenset(), frozenset()), hosts.inventory(A, B, hosts.capacity('p0', 2)), (), None)


class InterruptedTestCase(base.TestCase):

    def test_whatever_interrupts_what_it_is_told_discards_it(self):
        def interrupted(_key):
            raise error
        for error in (KeyboardInterrupt(), MemoryError()):
            ledger = LockedLedger('pack', hosts.provider)
            self.assertRaises(type(error), ledger.free_of, 'i', map(interrupted, 'ab'))
            self.assertTrue(ledger.is_discarded)


class HoldUnlessTakenTestCase(base.TestCase):

    def ledger(self):
        ledger = LockedLedger('pack', hosts.provider)
        ledger.open(VIEWS, {})
        return ledger

    def owners(self, ledger):
        return {device.identifier: device.instance_uuid for device in ledger.now.states()}

    def test_what_nobody_holds_is_held_whoever_the_rows_have_it_for(self):
        for owner in (None, 'another'):
            ledger = self.ledger()
            self.assertIsNone(ledger.hold_unless_taken([hosts.row(A, 'i')], {A.key: owner}))
            self.assertEqual({'a': 'i', 'b': None}, self.owners(ledger))

    def test_what_its_owner_by_the_rows_holds_passes_to_the_new_one(self):
        ledger = self.ledger()
        ledger.hold_missing([hosts.row(A, 'another')])
        self.assertIsNone(ledger.hold_unless_taken([hosts.row(A, 'i')], {A.key: 'another'}))
        self.assertEqual({'a': 'i', 'b': None}, self.owners(ledger))

    def test_what_somebody_else_holds_keeps_everything_as_it_is(self):
        ledger = self.ledger()
        ledger.hold_missing([hosts.row(B, 'a third')])
        self.assertEqual(B.key, ledger.hold_unless_taken([hosts.row(A, 'i'), hosts.row(B, 'i')],
                                                         {A.key: None, B.key: 'another'}))
        self.assertEqual({'a': None, 'b': 'a third'}, self.owners(ledger))


class LockTestCase(base.TestCase):

    def test_has_its_place_in_the_order(self):
        with locks.traced(), locks.Lock(locks.BACKGROUND).held():
            self.assertRaises(locks.WrongOrder, LedgerLock().held().__enter__)


class SnapshotTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.ledger = LockedLedger('pack', hosts.provider)
        self.ledger.open(VIEWS, {})
        self.before = self.ledger.now

    def test_a_refused_call_leaves_the_snapshot(self):
        self.assertRaises(exception.NoFit, self.ledger.take, 'i', hosts.wants((hosts.PMEM, 3)))
        self.assertIs(self.before, self.ledger.now)

    def test_a_call_that_is_interrupted_between_two_steps_leaves_the_snapshot(self):
        def interrupted(*_device):
            raise KeyboardInterrupt
        wanted = Demand((Item(hosts.VGPU, 1), Item(hosts.PMEM, 1, accepts=interrupted)))
        self.assertRaises(KeyboardInterrupt, self.ledger.take, 'i', wanted)
        self.assertIs(self.before, vars(self.ledger)['_now'])

    def test_whoever_asks_does_not_wait_for_whoever_changes_it(self):
        with vars(self.ledger)['_lock'].held():
            self.assertEqual([], self.ledger.now.holdings('i'))

    def test_a_snapshot_stays_as_it_is(self):
        pools, devices = self.before.pool_states(), dict(self.before.devices)
        self.ledger.take('i', hosts.wants((hosts.PMEM, 2), (hosts.VGPU, 1)))
        self.assertEqual((pools, devices), (self.before.pool_states(), dict(self.before.devices)))
        self.assertEqual(3, len(self.ledger.now.holdings('i')))
