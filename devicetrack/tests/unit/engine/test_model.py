"""Random histories of a ledger beside a host that changes, against a count of everything after every step.

The model counts slowly what the ledger keeps counted: pools, rooms, and by going over all pools, which one is the
right choice. What fits is decided by the sum of free devices.
"""

import itertools
from typing import Any

from hypothesis import settings
from hypothesis import stateful
from hypothesis import strategies as st

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import selection
from devicetrack.objects import values
from devicetrack.tests import base
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import PMEM
from devicetrack.tests.unit.engine.hosts import provider
from devicetrack.tests.unit.engine.hosts import SMALL
from devicetrack.tests.unit.engine.hosts import VGPU
from devicetrack.tests.unit.engine.hosts import VGPU_B

PARENTS = ('p0', 'p1', 'p2')
NODES = {'p0': 0, 'p1': 1, 'p2': None}
COSTS = {VGPU: 1, VGPU_B: 2}
UNITS = 4
NAMESPACES = ('n0', 'n1', 'n2', 'n3')

AFFINITIES = st.sampled_from([
    {}, {'numa_nodes': frozenset((0,)), 'numa_policy': 'required'},
    {'numa_nodes': frozenset((1,)), 'numa_policy': 'preferred'},
    {'numa_nodes': frozenset((0,)), 'numa_policy': 'legacy'},
    {'numa_nodes': frozenset((0, 1)), 'numa_policy': 'none'}])
AFFINITIES_TO_CHECK: tuple[dict[str, Any], ...] = ({}, {'numa_nodes': frozenset((0,)), 'numa_policy': 'legacy'})
ITEMS = st.lists(st.tuples(
    st.sampled_from([PMEM, SMALL, VGPU, VGPU_B]), st.integers(1, 3),
    st.sampled_from([None, None, provider(''), provider('p0'), provider('p1')])), min_size=1, max_size=3)


class World:
    """The host: namespaces with their class and place, parents with units that its devices use up."""

    def __init__(self):
        self.namespaces = dict.fromkeys(NAMESPACES, (PMEM, 'r0', 0))
        self.unhealthy = set()
        self.mdevs = {}                         # identifier: (parent, class)

    def available(self, parent, resource_class):
        used = sum(COSTS[made] for where, made in self.mdevs.values() if where == parent)
        return max(0, UNITS - used) // COSTS[resource_class]

    def capacities(self, parent):
        return [hosts.capacity(parent, self.available(parent, name), name, NODES[parent], name) for name in COSTS]

    def inventory(self):
        return hosts.inventory(
            *[hosts.namespace(name, resource_class, region, node, 'hot' if name in self.unhealthy else None)
              for name, (resource_class, region, node) in self.namespaces.items()],
            *[hosts.mdev(name, parent, resource_class, NODES[parent])
              for name, (parent, resource_class) in self.mdevs.items()],
            *[capacity for parent in PARENTS for capacity in self.capacities(parent)])


class LedgerMachine(stateful.RuleBasedStateMachine):

    @stateful.initialize(policy=st.sampled_from(vocabulary.SELECTION_POLICIES))
    def start(self, policy):
        self.policy = policy
        self.world = World()
        self.numbers = itertools.count()
        self.ledger = ledgers.Ledger(policy, provider)
        self.ledger.read_inventory(self.world.inventory())
        self.recorded = {}                      # by instance, the holdings that would have rows
        self.stands = {}                        # by device, what an operator says of it
        self.drained = set()                    # and parents that are drained

    # -- claims -------------------------------------------------------------------------------------------------------

    @stateful.rule(items=ITEMS, affinity=AFFINITIES, keep=st.sampled_from([True, True, False]))
    def take(self, items, affinity, keep):
        instance, demand = f'i{next(self.numbers)}', hosts.wants(*items, **affinity)
        before, choice = hosts.everything(self.ledger), self.right_choice(items[0], affinity)
        fits = self.fits(items, affinity)
        try:
            holding = self.ledger.take(instance, demand)
        except exception.NoFit as error:
            assert before == hosts.everything(self.ledger)
            assert fits is not True
            assert error.shortages
            return
        assert fits is not False
        assert sorted(unit.pool.resource_class for unit in holding.units) == sorted(
            name for name, amount, _ in items for _ in range(amount))
        if len(items) == 1:
            assert holding.units[0].pool is choice
        for (name, _, wanted), unit in zip([item for item in items for _ in range(item[1])], holding.units,
                                           strict=True):
            assert unit.pool.resource_class == name and wanted in (None, unit.pool.provider_uuid)
            assert not unit.withheld and unit.state == ledgers.HELD
            if affinity:
                assert selection.allows(unit.pool.numa_node, affinity['numa_nodes'], affinity['numa_policy'])
        if keep:
            hosts.name_all(self.ledger, holding)
            self.recorded[instance] = holding
        else:
            self.ledger.put_back(holding)
            assert before == hosts.everything(self.ledger)

    def holding(self, data):
        return self.recorded[data.draw(st.sampled_from(sorted(self.recorded)))] if self.recorded else None

    @stateful.rule(data=st.data())
    def take_again(self, data):
        holding = self.holding(data)
        if holding is not None:
            try:
                self.ledger.take(holding.instance_uuid, hosts.wants((PMEM, 1)))
            except exception.InstanceHasClaim:
                return
            raise AssertionError('an instance has two claims')

    @stateful.rule(data=st.data(), told=st.booleans())
    def realize(self, data, told):
        """Make the devices, while the parents have room; ``told`` when their capacities are read right after it."""
        holding = self.holding(data)
        for unit in holding.units if holding is not None else ():
            if unit.unborn and unit.identifier not in self.world.mdevs:
                parent, name = unit.pool.parent_name, unit.pool.resource_class
                if not self.world.available(parent, name):
                    self.ledger.read_capacities(self.world.capacities(parent))
                    continue
                self.world.mdevs[unit.identifier] = (parent, name)
                self.ledger.realized(unit, 'realized')
                if told:
                    self.ledger.read_capacities(self.world.capacities(parent))

    @stateful.rule(data=st.data())
    def exchange(self, data):
        holding = self.holding(data)
        unborn = [unit for unit in holding.units if unit.unborn] if holding is not None else []
        if unborn:
            try:
                other = self.ledger.exchange(unborn[0])
            except exception.NoFit:
                return
            hosts.name_all(self.ledger, holding)
            assert other.pool.resource_class == unborn[0].pool.resource_class
            assert holding.anywhere or other.pool.provider_uuid == unborn[0].pool.provider_uuid
            self.ledger.free(unborn[0])

    @stateful.rule(data=st.data(), some=st.booleans())
    def release(self, data, some):
        holding = self.holding(data)
        if holding is None:
            return
        units = holding.units[:1] if some else holding.units
        self.ledger.releasing(units)
        for unit in units:
            removed = unit.pool.kind == 'mdev' and self.world.mdevs.pop(unit.identifier, None) is not None
            self.ledger.free(unit, gone=removed)
        if not holding.units:
            assert self.ledger.holding(holding.instance_uuid) is None
            del self.recorded[holding.instance_uuid]

    # -- the host -----------------------------------------------------------------------------------------------------

    @stateful.rule()
    def read(self):
        owners = {id(unit): unit.holding.instance_uuid for unit in self.ledger.units() if unit.holding}
        self.ledger.read_inventory(self.world.inventory())
        assert owners == {id(unit): unit.holding.instance_uuid for unit in self.ledger.units() if unit.holding}

    @stateful.rule(name=st.sampled_from(NAMESPACES), there=st.booleans(), small=st.booleans(),
                   region=st.sampled_from(['r0', 'r1']), node=st.sampled_from([0, 1, None]), hot=st.booleans())
    def change_a_namespace(self, name, there, small, region, node, hot):
        self.world.namespaces.pop(name, None)
        self.world.unhealthy.discard(name)
        if there:
            self.world.namespaces[name] = (SMALL if small else PMEM, region, node)
        if hot:
            self.world.unhealthy.add(name)

    @stateful.rule(parent=st.sampled_from(PARENTS), resource_class=st.sampled_from(sorted(COSTS)))
    def somebody_makes_a_device(self, parent, resource_class):
        if self.world.available(parent, resource_class):
            self.world.mdevs[f'other{next(self.numbers)}'] = (parent, resource_class)

    @stateful.rule(data=st.data())
    def somebody_removes_a_device(self, data):
        if self.world.mdevs:
            del self.world.mdevs[data.draw(st.sampled_from(sorted(self.world.mdevs)))]

    @stateful.rule(data=st.data(), reason=st.sampled_from([vocabulary.IN_DOUBT, vocabulary.FOREIGN]),
                   how=st.sampled_from(['withhold', 'withhold_free', 'admit', 'admit']))
    def withhold_or_admit(self, data, reason, how):
        keys = sorted(unit.key for unit in self.ledger.units())
        if keys:
            getattr(self.ledger, how)(values.DeviceKey(*data.draw(st.sampled_from(keys))), reason)

    @stateful.rule(data=st.data(), reason=st.sampled_from([vocabulary.DRAINED, vocabulary.IN_DOUBT]))
    def an_operator_says_something_of_a_device(self, data, reason):
        key = values.DeviceKey(*data.draw(st.sampled_from(sorted(
            {unit.key for unit in self.ledger.units()} | self.stands.keys()) or [('vpmem', 'n0')])))
        if reason in self.stands.get(key, set()):
            self.stands[key].remove(reason)
            self.ledger.stand_down(key, reason)
        else:
            self.stands.setdefault(key, set()).add(reason)
            self.ledger.stand(key, reason)

    @stateful.rule(parent=st.sampled_from([('mdev', 'p0'), ('mdev', 'p2'), ('vpmem', 'r0')]))
    def an_operator_drains_a_parent_or_not_any_more(self, parent):
        (self.ledger.undrain if parent in self.drained else self.ledger.drain)(*parent)
        self.drained ^= {parent}

    # -- the record ---------------------------------------------------------------------------------------------------

    @stateful.rule(data=st.data())
    def somebody_writes_a_row(self, data):
        """Behind our back, for a device that no row of ours names."""
        free = [unit for unit in self.ledger.units() if unit.state == ledgers.FREE]
        if free:
            unit = data.draw(st.sampled_from(sorted(free, key=lambda unit: unit.key)))
            instance = f'i{next(self.numbers)}'
            self.recorded[instance] = self.ledger.hold([self.row(unit, instance)])

    @staticmethod
    def row(unit, instance):
        pool = unit.pool
        return hosts.row(hosts.namespace('x'), instance)._replace(
            kind=pool.kind, identifier=unit.identifier, provider_uuid=pool.provider_uuid,
            resource_class=pool.resource_class, parent=pool.parent_name, numa_node=pool.numa_node)

    @stateful.rule()
    def restart(self):
        rows = {instance: [self.row(unit, instance) for unit in holding.units]
                for instance, holding in self.recorded.items()}
        self.ledger = ledgers.Ledger(self.policy, provider)
        for key, reasons in self.stands.items():
            for reason in reasons:
                self.ledger.stand(key, reason)
        for parent in self.drained:
            self.ledger.drain(*parent)
        self.ledger.read_inventory(self.world.inventory())
        self.recorded = {instance: self.ledger.hold(records) for instance, records in rows.items()}

    # -- what always holds --------------------------------------------------------------------------------------------

    def every_unit(self):
        units = {id(unit): unit for unit in self.ledger.units()}
        for holding in self.ledger.holdings():
            units.update((id(unit), unit) for unit in holding.units)
        return list(units.values())

    @stateful.invariant()
    def counts_are_what_a_recount_gives(self):
        units = self.every_unit()
        for pool in self.ledger.pools():
            ours = [unit for unit in units if unit.pool is pool]
            free = [unit for unit in ours if unit.state == ledgers.FREE and not unit.withheld]
            assert pool.total == len(ours)
            assert pool.free_count == len(free)
            assert pool.held_count == sum(unit.state == ledgers.HELD for unit in ours)
            assert pool.releasing_count == sum(unit.state == ledgers.RELEASING for unit in ours)
            assert pool.room() >= 0
            line = [unit for unit in pool.free if unit.state == ledgers.FREE and not unit.withheld]
            assert len(set(map(id, line))) == len(line) and set(map(id, line)) == set(map(id, free))
            if pool.parent is not None:
                assert pool.parent.pending == sum(
                    unit.unborn for unit in units if unit.pool.parent is pool.parent)

    @stateful.invariant()
    def what_an_operator_says_stands(self):
        for unit in self.ledger.units():
            drained = (unit.pool.kind, unit.pool.parent_name) in self.drained
            said = self.stands.get(values.DeviceKey(unit.pool.kind, unit.identifier or ''), set())
            assert said <= unit.withheld
            assert (vocabulary.DRAINED in unit.withheld) == (drained or vocabulary.DRAINED in said)
        for pool in self.ledger.pools():
            if (pool.kind, pool.parent_name) in self.drained:
                assert pool.room() == 0

    @stateful.invariant()
    def no_unit_is_held_twice(self):
        holders = {}
        for holding in self.ledger.holdings():
            assert holding.units
            for unit in holding.units:
                assert id(unit) not in holders
                holders[id(unit)] = holding
                assert unit.holding is holding and unit.state != ledgers.FREE
        for unit in self.every_unit():
            assert (unit.state == ledgers.FREE) == (id(unit) not in holders)

    @stateful.invariant()
    def the_choice_is_right(self):
        for resource_class in (PMEM, SMALL, VGPU, VGPU_B):
            for wanted in (None, provider('p0'), provider('')):
                for affinity in AFFINITIES_TO_CHECK:
                    scope = self.ledger._pools.scopes.get((resource_class, wanted))
                    best = scope.best(affinity.get('numa_nodes', frozenset()), affinity.get('numa_policy', 'none')) \
                        if scope is not None else None
                    assert best is self.right_choice((resource_class, 1, wanted), affinity)

    @stateful.invariant()
    def explanations_add_up(self):
        for resource_class in (PMEM, SMALL, VGPU, VGPU_B):
            for shortage in self.ledger.shortages(hosts.wants((resource_class, 1)), everything=True):
                assert shortage.exist == (shortage.free + shortage.held + shortage.releasing
                                          + sum(count for _, count in shortage.withheld))

    # -- the slow answers ---------------------------------------------------------------------------------------------

    def pools(self, resource_class, wanted):
        return [pool for pool in self.ledger.pools() if pool.resource_class == resource_class
                and wanted in (None, pool.provider_uuid) and pool.room() > 0]

    def right_choice(self, item, affinity):
        """The pool that the policy names, by looking at each."""
        nodes, policy = affinity.get('numa_nodes', frozenset()), affinity.get('numa_policy', 'none')
        pools = self.pools(item[0], item[2])
        allowed = [pool for pool in pools if selection.allows(pool.numa_node, nodes, policy)]
        near = [pool for pool in allowed if pool.numa_node in nodes] if nodes and policy != 'none' else []
        order = {'pack': lambda pool: pool.index, 'spread': lambda pool: (-pool.room(), pool.index)}[self.policy]
        return min(near or allowed, key=order, default=None)

    def fits(self, items, affinity):
        """Whether a demand can be had; None when it needs classes that share parents: the sum does not tell then."""
        if {VGPU, VGPU_B} <= {name for name, _, _ in items}:
            return None
        nodes, policy = affinity.get('numa_nodes', frozenset()), affinity.get('numa_policy', 'none')
        for name in {item[0] for item in items}:
            ours = [item for item in items if item[0] == name]
            bound: dict[str | None, int] = {}
            for _, amount, wanted in ours:
                bound[wanted] = bound.get(wanted, 0) + amount
            for wanted, amount in [*bound.items(), (None, sum(bound.values()))]:
                room = sum(pool.room() for pool in self.pools(name, wanted)
                           if selection.allows(pool.numa_node, nodes, policy))
                if amount > room:
                    return False
        return True


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, database=None)


class LedgerModelTestCase(base.TestCase):

    def test_random_histories_keep_every_count(self):
        stateful.run_state_machine_as_test(LedgerMachine, settings=LedgerMachine.TestCase.settings)
