"""The order of pools by themselves: what a scope keeps of them, and what it forgets."""

from devicetrack import exception
from devicetrack.engine.pools import Pools
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import wants


class ScopeTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.pools = Pools('spread')
        self.first, self.second = (self.pools.get('mdev', 'provider', 'VGPU', parent, 0)[0] for parent in ('p0', 'p1'))
        for pool in (self.first, self.second):
            pool.creatable = True
        self.pools.index()
        self.scope = self.pools.scopes['VGPU', None]

    def best(self):
        return self.scope.best(frozenset(), 'none')

    def can_make(self, pool, available):
        pool.available = available
        pool.grew()

    def test_a_new_pool_makes_none(self):
        self.assertEqual((0, 0, None), (self.first.makes(), self.first.room(), self.best()))

    def test_a_pool_that_comes_up_early_enough_is_not_queued_again(self):
        for available in (3, 3, 2, 1, 3, 0):
            self.can_make(self.first, available)
        self.assertEqual([-3, 0], sorted(key for key, _index, pool in self.scope._heaps[0] if pool is self.first))
        self.can_make(self.second, 1)
        self.assertIs(self.second, self.best())

    def test_a_pool_that_grew_comes_up_earlier(self):
        self.can_make(self.first, 1)
        self.can_make(self.second, 2)
        self.assertIs(self.second, self.best())
        self.can_make(self.first, 3)
        self.assertIs(self.first, self.best())


class ReplacedEntryTestCase(base.TestCase):

    def test_a_pool_that_was_queued_twice_runs_out_once(self):
        ledger = hosts.ledger(namespace('a'), namespace('b'), policy='spread')
        both = ledger.take('i', wants((PMEM, 2)))
        ledger.free(both.keys)                                   # with two its entry is replaced by a better one
        ledger.take('i', wants((PMEM, 2)))
        for _ in range(2):
            self.assertRaises(exception.NoFit, ledger.take, 'k', wants((PMEM, 1)))
