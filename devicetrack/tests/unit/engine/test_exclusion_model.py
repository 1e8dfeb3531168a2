"""Random histories of devices that exclude one another, against a model that compares every pair of them."""

import itertools

from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import allocator
from devicetrack.engine import selection
from devicetrack.engine.snapshot import Claimed
from devicetrack.objects import values
from devicetrack.testing import exclusions
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import SMALL

# Two cards with three functions each, and a device that excludes nothing. A card counts as a class of its own.
CARDS = ('c0', 'c1')
PARTS = tuple(f'{card}.{number}' for card in CARDS for number in range(3))
NAMES = (*CARDS, *PARTS, 'd')
CLASS_OF = {name: PMEM if name in CARDS else SMALL for name in NAMES}
NODE_OF = {name: int('1' in name[:2]) for name in NAMES}

IN_STRANGE_HANDS = {vocabulary.FOREIGN, vocabulary.IN_DOUBT}
WORLDS = st.fixed_dictionaries(
    {name: st.tuples(st.sampled_from([True, True, True, False]),            # whether the host has it
                     st.sampled_from([True, True, True, False]),            # whether it belongs to its card
                     st.sampled_from([None, None, None, 'g0', 'g1']))       # its IOMMU group, if others are in it
     for name in NAMES})
ITEMS = st.lists(st.tuples(st.sampled_from([PMEM, SMALL]), st.integers(1, 3), st.just(None)),
                 min_size=1, max_size=2, unique_by=lambda item: item[0])
AFFINITIES = st.sampled_from([
    {}, {}, {}, {'numa_nodes': frozenset((0,)), 'numa_policy': 'required'},
    {'numa_nodes': frozenset((1,)), 'numa_policy': 'preferred'}])


def key(name):
    return values.DeviceKey('vpmem', name)


def of_card(name, belongs):
    """What the host says of a device and its card."""
    if not belongs or name == 'd':
        return ()
    return ((f'card {name[:2]}', vocabulary.WHOLE if name in CARDS else vocabulary.PART),)


class Machine(stateful.RuleBasedStateMachine):

    @stateful.initialize(policy=st.sampled_from(vocabulary.SELECTION_POLICIES), world=WORLDS)
    def start(self, policy, world):
        self.policy, self.world, self.numbers = policy, world, itertools.count()
        self.owners, self.from_rows = {}, set()     # by device, its instance; devices that a row gave to it
        self.strange = {}                           # by device, why somebody may have it
        self.cordoned = set()
        self.known = {}                             # by device, its exclusions as they were last told
        self.ledger = hosts.Ledger(policy, provider)
        self.read()

    # -- the host -----------------------------------------------------------------------------------------------------

    def device(self, name):
        _there, belongs, group = self.world[name]
        found = of_card(name, belongs) + (((group, vocabulary.TOGETHER),) if group else ())
        return hosts.namespace(name, CLASS_OF[name], None if name in CARDS else name[:2], NODE_OF[name])._replace(
            exclusions=found)

    def there(self):
        return [name for name, (there, _belongs, _group) in self.world.items() if there]

    def tell(self, name):
        """The exclusions that a reading tells: a whole is also against the rows of parts that are away."""
        found = self.device(name).exclusions
        whole = any(mode == vocabulary.WHOLE for _token, mode in found)
        return found + (((f'away from {name}', vocabulary.WHOLE),) if whole else ())

    @stateful.rule()
    def read(self):
        self.ledger.read_inventory(hosts.inventory(*map(self.device, self.there())))
        self.was_read()

    def was_read(self):
        self.known = {name: self.tell(name) if self.world[name][0] else self.known[name]
                      for name in NAMES if self.world[name][0] or name in self.owners}
        self.strange = {name: why for name, why in self.strange.items() if name in self.known}

    @stateful.rule(world=WORLDS)
    def the_host_changes(self, world):
        self.world = world
        self.read()

    @stateful.rule(world=WORLDS)
    def the_host_changes_while_devices_are_given_back(self, world):
        before = self.ledger.now
        given = sorted(self.owners)[:2]
        self.world = world
        self.give(given)
        self.ledger.read_inventory(hosts.inventory(*map(self.device, self.there())), before)
        # A device that was given back meanwhile is there, for all that the ledger knows; the next reading tells.
        self.known.update((name, self.tell(name)) for name in self.there() if name in self.known or name not in given)
        self.known = {name: found for name, found in self.known.items()
                      if self.world[name][0] or name in self.owners or name in given}
        self.strange = {name: why for name, why in self.strange.items() if name in self.known}
        self.all_is_as_the_model_says()
        self.read()

    @stateful.rule()
    def parents_are_read(self):
        before = self.ledger.now
        self.ledger.read_parents(hosts.inventory(*map(self.device, self.there())), before)

    @stateful.rule()
    def restart(self):
        self.ledger = hosts.Ledger(self.policy, provider)
        for name in self.cordoned:
            self.ledger.stand(key(name), vocabulary.CORDONED)
        self.ledger.read_inventory(hosts.inventory(*map(self.device, self.there())),
                                   recorded={key(name): Claimed(owner, int(owner[1:]), True)
                                             for name, owner in self.owners.items()})
        self.strange = {}
        self.known = {name: self.tell(name) for name in self.there()}
        for name in self.owners:
            if name not in self.known:
                self.known[name] = () if name in CARDS else ((f'away from {self.device(name).parent}', 'part'),)
        for instance in sorted(set(self.owners.values())):
            self.ledger.hold([hosts.row(self.device(name), instance) for name, owner in sorted(self.owners.items())
                              if owner == instance])
        self.from_rows = set(self.owners)

    # -- claims -------------------------------------------------------------------------------------------------------

    def instance(self, data):
        instances = sorted(set(self.owners.values()))
        return data.draw(st.sampled_from(instances)) if instances else None

    def may_take(self, items, instance, affinity):
        """Whether any choice of devices serves a demand, with all that the instance has beside it."""
        choices = []
        for name_of_class, amount, _provider in items:
            fitting = [name for name in self.known if CLASS_OF[name] == name_of_class and name not in self.owners
                       and name not in self.strange and name not in self.cordoned
                       and (not affinity or selection.allows(NODE_OF[name], affinity['numa_nodes'],
                                                             affinity['numa_policy']))]
            choices.append(list(itertools.combinations(fitting, amount)))
        return any(self.goes(tuple(itertools.chain(*names)), instance) for names in itertools.product(*choices))

    def goes(self, names, instance):
        """Whether an instance may have devices besides what is taken."""
        after = {one.key.identifier: one for one in self.pairs({**self.owners, **dict.fromkeys(names, instance)})}
        return not any(exclusions.may_not_go_beside(after[name], other) for name in names if name in after
                       for other in after.values() if other.is_taken and other.key.identifier != name)

    def pairs(self, owners):
        return [exclusions.ExclusiveDevice(key(name), found, owners.get(name), name not in owners and
                                           name in self.strange, self.is_excluded(name))
                for name, found in self.known.items()]

    def is_excluded(self, name):
        device = self.ledger.device(key(name))
        assert device is not None, name
        return vocabulary.EXCLUDED in device.withheld

    @stateful.rule(data=st.data(), items=ITEMS, affinity=AFFINITIES, beside=st.booleans(),
                   keep=st.sampled_from([True, True, False]))
    def take(self, data, items, affinity, beside, keep):
        instance = (self.instance(data) if beside else None) or f'i{next(self.numbers)}'
        before, counts = self.state(), self.counts()
        fits = self.may_take(items, instance, affinity)
        try:
            hold = self.ledger.take(instance, hosts.wants(*items, **affinity), beside=True)
        except exception.NoFit as error:
            # Of several classes not every mix is found: a greedy choice may have excluded what another needs.
            assert not fits or len(items) > 1
            assert error.shortages
            assert (before, counts) == (self.state(), self.counts())
            return
        names = [name.identifier for name in hold.keys]
        assert fits and self.goes(tuple(names), instance), names
        if keep:
            self.owners.update(dict.fromkeys(names, instance))
        else:
            self.ledger.put_back(hold)
            assert (before, counts) == (self.state(), self.counts())

    def state(self):
        return sorted((device.identifier, device.state, device.instance_uuid, sorted(device.withheld))
                      for device in self.ledger.devices())

    def counts(self):
        return self.ledger.pools()

    @stateful.rule(data=st.data(), put_back=st.booleans())
    def exchange(self, data, put_back):
        if not self.owners:
            return
        name = data.draw(st.sampled_from(sorted(self.owners)))
        instance, before = self.owners[name], self.state()
        try:
            other = self.ledger.exchange(key(name))
        except exception.NoFit:
            assert before == self.state()
            return
        assert other is not None
        taken, = (one.identifier for one in other.keys)
        assert self.goes((taken,), instance)
        if put_back:
            self.ledger.put_back(other)
            assert before == self.state()
        else:
            self.ledger.free_of(instance, (key(name),))
            del self.owners[name]
            self.owners[taken] = instance
            self.forget_what_is_gone([name])

    @stateful.rule(data=st.data(), node=st.sampled_from([0, 1]), policy=st.sampled_from(['required', 'preferred']))
    def narrow(self, data, node, policy):
        instance = self.instance(data)
        ours = [name for name, owner in sorted(self.owners.items()) if owner == instance]
        before = self.state()
        try:
            exchanged = self.ledger.narrow({key(name): None for name in ours}, frozenset((node,)), policy)
        except exception.NoFit:
            assert before == self.state()
            return
        for _given, hold in exchanged:
            taken, = (one.identifier for one in hold.keys)
            assert self.goes((taken,), instance)
            self.owners[taken] = instance
        self.give([given.identifier for given, _hold in exchanged])

    def give(self, names):
        """Devices come back; those that are gone from the host are forgotten by it."""
        self.ledger.free([key(name) for name in names])
        for name in names:
            del self.owners[name]
        self.forget_what_is_gone(names)

    def forget_what_is_gone(self, names):
        for name in names:
            if self.ledger.device(key(name)) is None:
                self.known.pop(name, None)

    @stateful.rule(data=st.data(), how=st.sampled_from(['free', 'let_go_of', 'releasing', 'trust']))
    def release(self, data, how):
        instance = self.instance(data)
        names = [name for name, owner in sorted(self.owners.items()) if owner == instance]
        keys = [key(name) for name in names]
        self.ledger.releasing(keys[:1])
        if how == 'let_go_of':
            self.ledger.let_go_of(str(instance), keys)
            for name in names:
                del self.owners[name]
            self.forget_what_is_gone(names)
        elif how == 'trust':
            self.ledger.trust_rows(keys)
            self.ledger.free_without_row(str(instance), keys[1:])
            for name in names[:1]:
                del self.owners[name]
            self.forget_what_is_gone(names[:1])
        elif how == 'free':
            self.give(names)

    # -- what others say ----------------------------------------------------------------------------------------------

    @stateful.rule(data=st.data(), name=st.sampled_from(NAMES), own=st.booleans())
    def somebody_writes_a_row(self, data, name, own):
        """Against every exclusion, perhaps, and for a device that the host may not have."""
        instance = (self.instance(data) if own else None) or f'i{next(self.numbers)}'
        if name in self.owners:
            return
        if name not in self.known:
            self.known[name] = () if name in CARDS or self.device(name).parent is None else (
                (f'away from {self.device(name).parent}', 'part'),)
        self.ledger.hold([hosts.row(self.device(name), instance)])
        self.owners[name] = instance

    @stateful.rule(name=st.sampled_from(NAMES), why=st.sampled_from(sorted(IN_STRANGE_HANDS)),
                   how=st.sampled_from(['withhold_free', 'admit']))
    def somebody_may_have_a_device(self, name, why, how):
        if name not in self.known:
            return
        if how == 'admit':
            self.ledger.admit(key(name), why)
            self.strange.get(name, set()).discard(why)
        elif name not in self.owners:
            self.ledger.withhold_free([key(name)], why)
            self.strange.setdefault(name, set()).add(why)
        self.strange = {name: reasons for name, reasons in self.strange.items() if reasons}

    @stateful.rule(name=st.sampled_from(NAMES))
    def an_operator_cordons_a_device_or_not_any_more(self, name):
        (self.ledger.stand_down if name in self.cordoned else self.ledger.stand)(key(name), vocabulary.CORDONED)
        self.cordoned ^= {name}

    @stateful.rule(name=st.sampled_from(NAMES))
    def nobody_can_admit_what_is_excluded(self, name):
        self.ledger.admit(key(name), vocabulary.EXCLUDED)

    # -- what always holds --------------------------------------------------------------------------------------------

    @stateful.invariant()
    def all_is_as_the_model_says(self):
        devices = {str(device.identifier): device for device in self.ledger.devices()}
        assert devices.keys() == self.known.keys(), (sorted(devices), sorted(self.known))
        for name, device in devices.items():
            assert device.instance_uuid == self.owners.get(name)
            if name not in self.owners:
                assert device.withheld & IN_STRANGE_HANDS == self.strange.get(name, set())
        assert not list(exclusions.disagreements(self.pairs(self.owners)))
        assert not list(exclusions.disagreements(exclusions.of_snapshot(self.ledger.now)))
        for name in devices:
            why = self.ledger.why_excluded(key(name))
            assert (why is not None) == self.is_excluded(name)
            assert why is None or 'vpmem/' in why
        assert self.ledger.excluded().keys() == {key(name) for name in devices if self.is_excluded(name)}

    @stateful.invariant()
    def every_count_is_a_recount(self):
        devices = self.ledger.devices()
        for pool in self.ledger.pools():
            ours = [device for device in devices if (device.resource_class, device.parent, device.numa_node)
                    == (pool.resource_class, pool.parent, pool.numa_node)]
            free = [device.identifier for device in ours if device.state == selection.FREE and not device.withheld]
            assert (pool.total, pool.free, pool.room) == (len(ours), len(free), len(free))
            assert pool.held == sum(device.state == selection.HELD for device in ours)
            assert pool.releasing == sum(device.state == selection.RELEASING for device in ours)
        line = [one.key.identifier for name in (PMEM, SMALL)
                for one, _amount in self.ledger.available(name, None, hosts.wants())]
        assert sorted(line) == sorted(str(device.identifier) for device in devices
                                      if device.state == selection.FREE and not device.withheld)

    @stateful.invariant()
    def every_class_that_has_room_can_be_taken_from(self):
        for name in (PMEM, SMALL):
            now = self.ledger.now
            room = sum(pool.room for pool in self.ledger.pools() if pool.resource_class == name)
            best = allocator.best(now, now.scope(name, None), (frozenset(), vocabulary.NONE, frozenset()))
            assert (best is not None) == (room > 0)


class ExclusionModelTestCase(base.TestCase):

    def test_no_history_gives_devices_away_beside_one_another(self):
        stateful.run_state_machine_as_test(Machine, settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, database=None))
