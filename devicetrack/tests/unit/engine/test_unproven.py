"""Which devices of a ledger are unproven: free ones alone, and at every moment."""

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import inventory
from devicetrack.tests.unit.engine.hosts import mdev
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import wants

A, B = namespace('a'), namespace('b')
UNPROVEN = frozenset((vocabulary.UNPROVEN,))


def seen(*unproven, devices=(A,)):
    return inventory(*devices)._replace(keeping=frozenset(('vpmem',)),
                                        unproven=frozenset(('vpmem', name) for name in unproven))


class UnprovenTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.ledger = hosts.ledger()
        self.ledger.read_inventory(seen())

    def reasons(self):
        return self.ledger.reasons().get(A.key, frozenset())

    def room(self):
        return sum(pool.room for pool in self.ledger.pools())

    def test_a_new_one_is_withheld(self):
        self.ledger.read_inventory(seen('b', devices=(A, B)))
        self.assertEqual((['b'], 1), ([device.identifier for device in self.ledger.unproven()], self.room()))

    def test_one_that_loses_its_proof_is_withheld_and_comes_back_with_it(self):
        self.ledger.read_inventory(seen('a'))
        self.assertEqual((UNPROVEN, 0), (self.reasons(), self.room()))
        self.assertRaises(exception.NoFit, self.ledger.take, 'i', wants((PMEM, 1)))
        self.ledger.read_inventory(seen())
        self.assertEqual((frozenset(), 1), (self.reasons(), self.room()))

    def test_one_that_is_proven_meanwhile_is_free_whatever_was_read_before(self):
        self.ledger.read_inventory(seen('a'))
        before = self.ledger.now
        self.ledger.proven([A.key, DeviceKey('vpmem', 'none')])
        self.ledger.read_inventory(seen('a'), before)
        self.assertEqual((frozenset(), 1), (self.reasons(), self.room()))

    def test_one_that_was_proven_is_so_when_its_parent_is_read(self):
        self.ledger.read_inventory(seen('a'))
        self.ledger.proven([A.key])
        self.ledger.read_parents(seen('a'), self.ledger.now)
        self.assertEqual((frozenset(), 1), (self.reasons(), self.room()))

    def test_other_reasons_stay(self):
        self.ledger.read_inventory(seen('a'))
        self.ledger.withhold(A.key, vocabulary.FOREIGN)
        self.assertEqual([], self.ledger.unproven())
        self.ledger.proven([A.key])
        self.assertEqual(frozenset((vocabulary.FOREIGN,)), self.reasons())

    def test_a_held_one_is_not_and_is_free_when_its_wipe_is_proven(self):
        self.ledger.take('i', wants((PMEM, 1)))
        self.ledger.realized(A.key, A.details)
        self.ledger.read_inventory(seen('a'))
        self.assertEqual(frozenset(), self.reasons())
        self.ledger.releasing([A.key])
        self.ledger.free([A.key])
        self.assertEqual((frozenset(), 1), (self.reasons(), self.room()))

    def test_one_whose_row_is_gone_is_before_anybody_looks(self):
        self.ledger.take('i', wants((PMEM, 1)))
        self.ledger.realized(A.key, A.details)
        self.ledger.let_go_of('i', [A.key])
        self.assertEqual((UNPROVEN, 0), (self.reasons(), self.room()))

    def test_one_that_no_guest_could_have_is_free_at_once(self):
        self.ledger.take('i', wants((PMEM, 1)))
        self.ledger.let_go_of('i', [A.key])
        self.assertEqual((frozenset(), 1), (self.reasons(), self.room()))

    def test_one_that_a_guest_had_before_its_row_is_too_whatever_was_read_before(self):
        before = self.ledger.now
        self.ledger.hold([hosts.row(A, 'i')])
        self.ledger.used([A.key, DeviceKey('vpmem', 'none')])
        self.ledger.read_inventory(seen(), before)
        self.ledger.let_go_of('i', [A.key])
        self.assertEqual((UNPROVEN, 0), (self.reasons(), self.room()))

    def test_a_row_ends_it(self):
        self.ledger.read_inventory(seen('a'))
        self.ledger.hold([hosts.row(A, 'i')])
        self.assertEqual(frozenset(), self.reasons())
        self.ledger.free_without_row('i', ())
        self.assertEqual((UNPROVEN, 0), (self.reasons(), self.room()))

    def test_a_claim_that_was_put_back_changes_nothing(self):
        self.ledger.put_back(self.ledger.take('i', wants((PMEM, 1))))
        self.assertEqual((frozenset(), 1), (self.reasons(), self.room()))

    def test_a_kind_that_keeps_no_bytes_never_is(self):
        device = mdev('m', 'p0')
        self.ledger.read_inventory(seen(devices=(A, device)))
        self.ledger.hold([hosts.row(device, 'i')])
        self.ledger.realized(device.key, device.details)
        self.ledger.let_go_of('i', [device.key])
        self.assertEqual({}, self.ledger.reasons())
