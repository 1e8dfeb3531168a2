"""A short search; ``make model-check`` makes the long ones."""

from devicetrack.tests import base
from devicetrack.tests.model import mutants
from devicetrack.tests.model import quiet
from devicetrack.tests.model import search
from devicetrack.tests.model.world import Shape


class SearchTestCase(base.TestCase):
    scenarios = base.table(
        ('namespaces, one store', Shape()),
        ('namespaces, a store each', Shape(shared=False)),
        ('mediated devices, a store each', Shape(devices=0, mdevs=2, shared=False)),
        names=('shape',))

    def test_nothing_is_wrong_after_one_step_from_any_beginning(self):
        quiet.logs(self)
        result = search.run(self.shape, depth=1)
        self.assertEqual([], [str(violation) for violation in result.violations])
        self.assertGreater(result.states, 100)


# This planted fault takes as long as all others together. ``make model-check`` finds it.
DEEP = 'starts_undecided'


class PlantedFaultTestCase(base.TestCase):
    scenarios = [(name, {'name': name}) for name in mutants.MUTANTS if name != DEEP]

    def test_the_search_finds_it(self):
        quiet.logs(self)
        result = search.hunt(self.name, depth=2)
        self.assertNotEqual([], result.violations, f'{mutants.MUTANTS[self.name]} was not found')
        self.assertLessEqual(len(result.smallest.trace), 20)
