"""A short search; ``make model-check`` makes the long ones."""

from devicetrack.tests import base
from devicetrack.tests.model import finishing
from devicetrack.tests.model import mutants
from devicetrack.tests.model import operations
from devicetrack.tests.model import quiet
from devicetrack.tests.model import search
from devicetrack.tests.model.operations import Step
from devicetrack.tests.model.world import Shape
from devicetrack.tests.model.world import World


class SearchTestCase(base.TestCase):

    scenarios = base.table(
        ('namespaces', Shape(shared=False)),
        ('a card and its functions', Shape(devices=3, shared=False, card=True)),
        ('a card that another kind gives away whole', Shape(devices=0, mdevs=2, shared=False, whole=True)),
        ('a group', Shape(devices=3, shared=False, sizes=(2,), group=2)),
        names=('shape',))

    def test_nothing_is_wrong_after_one_step_from_any_beginning(self):
        """With a store for each host. ``make model-check`` has all shapes, and goes on to two steps."""
        quiet.logs(self)
        result = search.run(self.shape, depth=1)
        self.assertEqual([], [str(violation) for violation in result.violations])
        self.assertGreater(result.states, 100)


class StoriesTestCase(base.TestCase):
    """Histories that random ones came upon, and that are too long for a search."""

    def test_a_guest_is_elsewhere_and_a_migration_from_here_had_failed(self):
        """It may have taken the guest along, for all that this host knows: a person says that it did not."""
        quiet.logs(self)
        world = self.useFixture(World(Shape(devices=3, mdevs=3, guests=3, sizes=(1, 2, 0))))
        for step in (Step('boot', ('i2', 'b')), Step('resize', ('i2', 'b', 1)), Step('boot', ('i3', 'a'))):
            operations.perform(world, step)
        world.kill('a')
        operations.perform(world, Step('resize', ('i3', 'b', 2)))               # for which there is no room
        operations.perform(world, Step('unshelve elsewhere', ('i3',)))
        ending = finishing.finish(world)
        self.assertEqual(((), True), (ending.wrong, Step('release by hand', ('i3', 'a')) in ending.steps))

    def live(self, *names: str) -> World:
        """A guest on the first host, and steps of its live migration away from there."""
        quiet.logs(self)
        world = self.useFixture(World(Shape()))
        for step in (Step('boot', ('i1', 'a')), *(Step(name, ('i1',)) for name in names)):
            operations.perform(world, step)
        return world

    def test_a_live_migration_was_rolled_back_while_the_source_was_down_and_the_guest_left_later(self):
        """That migration took nothing along, so what the instance has here goes back."""
        world = self.live('live claim', 'live migrate')
        world.kill('a')
        for name in ('roll back', 'unshelve elsewhere'):
            operations.perform(world, Step(name, ('i1',)))
        ending = finishing.finish(world)
        self.assertEqual(((), ()), (ending.wrong, tuple(world.rows_of('a'))))

    def test_the_next_live_migration_begins_where_nobody_heard_that_the_last_one_is_over(self):
        world = self.live('live claim', 'live migrate', 'arrive', 'live over unheard', 'live claim', 'live migrate',
                          'arrive')
        self.assertEqual((), finishing.finish(world).wrong)


# Each of these planted faults takes longer than all others together. ``make model-check`` finds them.
DEEP = ('asks_twice', 'frees_what_is_lost', 'starts_undecided')


class PlantedFaultTestCase(base.TestCase):
    scenarios = [(name, {'name': name}) for name in mutants.MUTANTS if name not in DEEP]

    def test_the_search_finds_it(self):
        quiet.logs(self)
        result = search.hunt(self.name, depth=2)
        self.assertNotEqual([], result.violations, f'{mutants.MUTANTS[self.name]} was not found')
        self.assertLessEqual(len(result.smallest.trace), 20)
