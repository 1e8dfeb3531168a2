"""Random histories of two hosts with both kinds of devices: operations, kills, and calls that fail.

``HYPOTHESIS_EXAMPLES`` in the environment asks for more histories than the few that fit into every run. Those are not
made smaller when they fail, which takes minutes: ``make model-check`` finds smallest traces.
"""

import os

from hypothesis import Phase
from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.tests import base
from devicetrack.tests.model import finishing
from devicetrack.tests.model import memory
from devicetrack.tests.model import operations
from devicetrack.tests.model import oracle
from devicetrack.tests.model import quiet
from devicetrack.tests.model.operations import Step
from devicetrack.tests.model.world import Shape
from devicetrack.tests.model.world import Snapshot
from devicetrack.tests.model.world import World

EXAMPLES = int(os.environ.get('HYPOTHESIS_EXAMPLES', '0'))
PHASES = [phase for phase in Phase if EXAMPLES or phase not in (Phase.shrink, Phase.explain)]

GONE = exception.StoreUnavailable('store', 'gone')
UNKNOWN = exception.OutcomeUnknown('store')
UNREACHABLE = exception.HypervisorUnreachable('fake', 'restarting')
NOT_MADE = exception.RealizeFailed         # of the device that is being made ready
NOT_WIPED = exception.UnclaimFailed('vpmem', 'd', 'the medium fails')

# The error that is raised before each call of a driver, or the class of an error about a device.
OF_DRIVER: dict[str, exception.DriverError | type[exception.DeviceError]] = {
    'get_usage': UNREACHABLE, 'get_inventory': UNREACHABLE, 'guest_records': UNREACHABLE, 'rewrite_guest': UNREACHABLE,
    'live_migration_obstacles': UNREACHABLE, 'migration_types': UNREACHABLE,
    'destroy_guest': UNREACHABLE, 'migration_definitions': UNREACHABLE, 'guest_config': UNREACHABLE,
    'realize': NOT_MADE, 'create': NOT_MADE, 'created': NOT_MADE,
    'unclaim': UNREACHABLE, 'wipe': NOT_WIPED, 'wiped': NOT_WIPED, 'destroy': NOT_WIPED, 'destroyed': NOT_WIPED,
}


# What an operator may cordon: kind, name, and whether it is a parent.
PLACES = (('vpmem', 'd0', False), ('vpmem', 'd1', False), ('vpmem', 'region0', True), ('mdev', 'p0', True))


class Machine(stateful.RuleBasedStateMachine):
    """Set by the test: ``world``, and ``empty``, how it was when it was made."""

    world: World
    empty: Snapshot

    def __init__(self):
        super().__init__()
        self.world.restore(self.empty)
        self.world.failures = True
        self.clear()

    def clear(self):
        self.world.service.mute = False
        for host in self.world.hosts.values():
            host.store.clear()
            host.machine.clear()

    def look(self, call=''):
        wrong = oracle.broken(self.world, call)
        assert not wrong, wrong

    def perform(self, step, at_point=None, may_fail=False):
        self.world.acting = ''
        self.world.at_point = at_point or self.look
        try:
            operations.perform(self.world, step)
        except exception.DeviceTrackError:
            if not may_fail:
                raise
        finally:
            self.world.at_point = None
        self.look()

    def choose(self, data):
        """Choose a step. Steps of hosts are always possible, so steps of guests are preferred."""
        steps = list(operations.enabled(self.world))
        of_guests = [step for step in steps if step.arguments[0] in self.world.service.guests]
        if of_guests and data.draw(st.integers(0, 2), label='of a host too') < 2:
            steps = of_guests
        return data.draw(st.sampled_from(steps), label='step')

    @stateful.rule(data=st.data())
    def something_happens(self, data):
        self.perform(self.choose(data), may_fail=self.world.service.mute or self.in_doubt())

    def in_doubt(self):
        """Whether a manager waits for its store's word: then it may refuse an instance for now."""
        return any(memory.running(host.manager).rows.doubts for host in self.world.hosts.values()
                   if memory.is_ready(host.manager))

    @stateful.rule(data=st.data(), point=st.integers(1, 30))
    def it_is_killed_in_the_middle(self, data, point):
        left = []

        def at_point(call):
            self.look(call)
            points.append(call)
            if len(points) == point and self.world.acting:
                left.append(self.world.snapshot(without=self.world.acting))

        points: list[str] = []
        self.perform(self.choose(data), at_point, may_fail=self.world.service.mute or self.in_doubt())
        if left:
            self.world.restore(left[0])

    @stateful.rule(data=st.data(), call=st.sampled_from(sorted(OF_DRIVER)), times=st.sampled_from([1, None]))
    def a_driver_fails(self, data, call, times):
        for host in self.world.hosts.values():
            error = OF_DRIVER[call]
            host.machine.before(call, self.world.failure(host.name, error) if isinstance(error, type) else error, times)
        self.perform(self.choose(data), may_fail=True)
        for host in self.world.hosts.values():
            host.machine.clear()
        self.world.follow_exchanges()

    @stateful.rule(data=st.data(), how=st.sampled_from(['before', 'lose_answer', 'lose_commit']),
                   skip=st.integers(0, 2))
    def a_store_fails(self, data, how, skip):
        for host in self.world.hosts.values():
            if how == 'before':
                host.store.before('write', GONE, skip=skip)
            else:
                getattr(host.store, how)(skip)
        self.perform(self.choose(data), may_fail=True)
        for host in self.world.hosts.values():
            host.store.clear()

    @stateful.rule(place=st.sampled_from(PLACES), host=st.sampled_from(['a', 'b']),
                   fails=st.sampled_from([None, None, 'before', 'after']), killed=st.booleans())
    def an_operator_cordons_or_says_that_it_is_over(self, place, host, fails, killed):
        """By what the manager knows, or knew when it was killed. It may be killed before the next audit."""
        host = self.world.hosts[host]
        if not host.is_alive:
            return
        cordoned = self.cordoned(host)
        if fails is not None:
            getattr(host.store, fails)('set_withheld', UNKNOWN)
        try:
            (host.manager.operator.uncordon if place in cordoned else host.manager.operator.cordon)(*place)
        except exception.OutcomeUnknown:
            assert place in self.cordoned(host)
        else:
            assert self.cordoned(host) == cordoned ^ {place}
            host.store.clear()
            if killed:
                self.world.kill(host.name)
                self.perform(Step('start', (host.name,)), may_fail=self.world.service.mute)
                assert self.cordoned(host) == cordoned ^ {place}
        host.store.clear()

    @staticmethod
    def cordoned(host):
        found = {(one.target.kind, one.target.name, one.target.scope == vocabulary.PARENT)
                 for one in host.manager.operator.withheld() if vocabulary.CORDONED in one.causes}
        for pool in memory.running(host.manager).ledger.now.pool_states():
            assert (pool.kind, pool.parent, True) not in found or pool.room == 0
        return found

    @stateful.rule()
    def the_service_falls_silent_or_speaks_again(self):
        self.world.service.mute = not self.world.service.mute

    def teardown(self):
        self.clear()
        for host in self.world.hosts.values():
            if not host.powered:
                self.perform(Step('power on', (host.name,)))
            if not host.is_alive:
                self.perform(Step('start', (host.name,)))
            for place in self.cordoned(host):
                host.manager.operator.uncordon(*place)
        ending = finishing.finish(self.world)
        assert not ending.wrong, (ending.wrong, [str(step) for step in ending.steps])


class RandomHistoriesTestCase(base.TestCase):
    scenarios = base.table(
        ('one store', Shape(devices=3, mdevs=3, guests=3, sizes=(1, 2, 0))),
        ('a store each', Shape(devices=3, mdevs=3, guests=3, sizes=(1, 2, 0), shared=False)),
        names=('shape',))

    def test_whatever_happens_can_be_finished(self):
        quiet.logs(self)
        made = self.useFixture(World(self.shape))

        class OfThisWorld(Machine):
            world, empty = made, made.snapshot()

        stateful.run_state_machine_as_test(OfThisWorld, settings=settings(
            max_examples=EXAMPLES or 60, phases=PHASES, stateful_step_count=25, deadline=None, database=None))
