"""The order of pools: what is had again and again."""

from devicetrack import exception
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import namespace
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import wants


class SpreadTestCase(base.TestCase):

    def test_a_pool_that_was_full_twice_runs_out_once(self):
        ledger = hosts.ledger(namespace('a'), namespace('b'), policy='spread')
        both = ledger.take('i', wants((PMEM, 2)))
        ledger.free(both.keys)
        ledger.take('i', wants((PMEM, 2)))
        for _ in range(2):
            self.assertRaises(exception.NoFit, ledger.take, 'k', wants((PMEM, 1)))
