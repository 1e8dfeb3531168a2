"""How many devices parents can still make, while devices are made, removed and read at the same time.

The world changes first and the ledger is told later; a reading is made at one moment and taken over at another.
Whatever the order, the room that the ledger sees must be what is left when everything that exists or is promised is
counted once.
"""

from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st

from devicetrack import exception
from devicetrack.engine import selection
from devicetrack.engine import snapshot
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import capacity
from devicetrack.tests.unit.engine.hosts import mdev
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import VGPU

UNITS = 4


class CapacityMachine(stateful.RuleBasedStateMachine):

    def __init__(self):
        super().__init__()
        self.world = set()                      # devices that exist
        self.ledger = hosts.Ledger('pack', provider)
        self.ledger.read_inventory(self.look())
        self.number = 0
        self.claimed = {}                       # by name, keys of devices that are not made yet
        self.making = {}                        # made, and not told: (key, capacities, snapshot before it)
        self.used = {}
        self.removing = {}                      # being released; in the world or not
        self.readings = []                      # (snapshot before it, inventory)

    def look(self):
        return hosts.inventory(capacity('p0', UNITS - len(self.world)), *[mdev(name, 'p0') for name in self.world])

    def one_of(self, data, named):
        return data.draw(st.sampled_from(sorted(named))) if named else None

    @stateful.rule()
    def take(self):
        self.number += 1
        try:
            hold = self.ledger.take(str(self.number), hosts.wants((VGPU, 1)))
        except exception.NoFit:
            return
        [key] = hosts.name_all(self.ledger, hold).keys
        device = self.ledger.device(key)
        assert device is not None
        (self.claimed if device.unborn else self.used)[key.identifier] = key

    @stateful.rule(data=st.data())
    def make(self, data):
        name = self.one_of(data, self.claimed)
        if name is not None:
            before = self.ledger.now
            self.world.add(name)
            self.making[name] = self.claimed.pop(name), self.look().capacities, before

    @stateful.rule(data=st.data())
    def say_that_it_is_made(self, data):
        name = self.one_of(data, self.making)
        if name is not None:
            key, capacities, before = self.making.pop(name)
            self.ledger.realized(key, 'details', capacities, before)
            self.used[name] = key

    @stateful.rule(data=st.data())
    def give(self, data):
        name = self.one_of(data, {**self.used, **self.claimed})
        if name is not None:
            key = self.used.pop(name, None) or self.claimed.pop(name)
            self.ledger.releasing([key])
            self.removing[name] = key

    @stateful.rule(data=st.data())
    def remove(self, data):
        name = self.one_of(data, self.removing)
        if name is not None:
            self.world.discard(name)

    @stateful.rule(data=st.data())
    def say_that_it_is_removed(self, data):
        name = self.one_of(data, {name for name in self.removing if name not in self.world})
        if name is not None:
            key = self.removing.pop(name)
            self.ledger.free([key], removed=[key])

    @stateful.rule(data=st.data())
    def live(self, data):
        """A whole life, so that histories get somewhere."""
        self.take()
        for step in (self.make, self.say_that_it_is_made, self.give, self.remove, self.say_that_it_is_removed):
            step(data)

    @stateful.rule()
    def begin_to_read(self):
        if not self.readings:                   # one at a time, by the manager's word
            self.readings.append((self.ledger.now, self.look()))

    @stateful.rule(parents_only=st.booleans())
    def end_to_read(self, parents_only):
        if self.readings:
            before, inventory = self.readings.pop()
            (self.ledger.read_parents if parents_only else self.ledger.read_inventory)(inventory, before)

    @stateful.invariant()
    def what_exists_or_is_promised_is_counted_once(self):
        # What a reading showed to be gone takes no room, though it is held until its removal is proven.
        devices = self.ledger.devices()
        promised = {device.identifier for device in devices
                    if device.state != selection.FREE and snapshot.GONE not in device.withheld}
        free = {device.identifier for device in devices if device.state == selection.FREE}
        room = sum(pool.room for pool in self.ledger.pools())
        assert room == UNITS - len(self.world | promised) + len(free)


class CapacityTestCase(base.TestCase):

    def test_what_exists_or_is_promised_is_counted_once(self):
        stateful.run_state_machine_as_test(CapacityMachine, settings=settings(
            max_examples=200, stateful_step_count=50, deadline=None, database=None))
