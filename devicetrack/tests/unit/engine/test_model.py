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
from devicetrack.engine import allocator
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
AFFINITIES_TO_CHECK: tuple[dict[str, Any], ...] = (
    {}, {'numa_nodes': frozenset((0,)), 'numa_policy': 'legacy'},
    {'numa_nodes': frozenset((1,)), 'numa_policy': 'preferred'})
ITEMS = st.lists(st.tuples(
    st.sampled_from([PMEM, SMALL, VGPU, VGPU_B]), st.integers(1, 3),
    st.sampled_from([None, None, provider(''), provider('p0'), provider('p1')])), min_size=1, max_size=3)


def pool_of(device):
    """What names the pool of a device, or a pool."""
    return device and (device.kind, device.provider_uuid, device.resource_class, device.parent, device.numa_node)


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
        self.ledger = hosts.Ledger(policy, provider)
        self.ledger.read_inventory(self.world.inventory())
        self.recorded = {}                      # by instance, the keys of devices that would have rows
        self.anywhere = set()                   # the instances whose requests named no provider
        self.stands = {}                        # by device, what an operator says of it
        self.cordoned = set()                    # and parents that are cordoned

    # -- claims -------------------------------------------------------------------------------------------------------

    @stateful.rule(items=ITEMS, affinity=AFFINITIES, keep=st.sampled_from([True, True, False]),
                   named=st.booleans())
    def take(self, items, affinity, keep, named):
        instance, demand = f'i{next(self.numbers)}', hosts.wants(*items, **affinity)
        before, choice = hosts.everything(self.ledger), self.right_choice(items[0], affinity)
        fits = self.fits(items, affinity)
        try:
            hold = self.ledger.take(instance, demand)
        except exception.NoFit as error:
            assert before == hosts.everything(self.ledger)
            assert fits is not True
            assert error.shortages
            return
        assert fits is not False
        assert sorted(device.resource_class for device in hold.candidates) == sorted(
            name for name, amount, _ in items for _ in range(amount))
        if len(items) == 1:
            assert pool_of(hold.candidates[0]) == choice
        for (name, _, wanted), key, candidate in zip([item for item in items for _ in range(item[1])], hold.keys,
                                                     hold.candidates, strict=True):
            device = self.ledger.device(key)
            assert device is not None
            assert tuple(candidate) == device[:len(candidate)]
            assert device.resource_class == name and wanted in (None, device.provider_uuid)
            assert not device.withheld and device.state == selection.HELD and device.instance_uuid == instance
            assert device.unborn or device.identifier is not None
            if affinity:
                assert selection.allows(device.numa_node, affinity['numa_nodes'], affinity['numa_policy'])
        if named or keep:
            hold = hosts.name_all(self.ledger, hold)
        if keep:
            self.recorded[instance] = hold.keys
            if all(wanted is None for _, _, wanted in items):
                self.anywhere.add(instance)
        else:
            self.ledger.put_back(hold)
            assert before == hosts.everything(self.ledger)

    def instance(self, data):
        return data.draw(st.sampled_from(sorted(self.recorded))) if self.recorded else None

    def devices_of(self, instance):
        """What an instance has, in the order of its claim."""
        return [self.ledger.device(key) for key in self.recorded.get(instance, ())]

    @stateful.rule(data=st.data())
    def take_again(self, data):
        instance = self.instance(data)
        if instance is not None:
            try:
                self.ledger.take(instance, hosts.wants((PMEM, 1)))
            except exception.InstanceHasClaim as error:
                assert sorted(error.held) == sorted(self.recorded[instance])
                return
            raise AssertionError('an instance has two claims')

    @stateful.rule(data=st.data(), told=st.booleans())
    def realize(self, data, told):
        """Make the devices, while the parents have room; ``told`` when their capacities are read right after it."""
        for device in self.devices_of(self.instance(data)):
            if device.unborn and device.identifier not in self.world.mdevs:
                parent, name = device.parent, device.resource_class
                if not self.world.available(parent, name):
                    self.ledger.read_capacities(self.world.capacities(parent))
                    continue
                self.world.mdevs[device.identifier] = (parent, name)
                self.ledger.realized(values.DeviceKey(*device.key), 'realized')
                if told:
                    self.ledger.read_capacities(self.world.capacities(parent))

    @stateful.rule(data=st.data())
    def exchange(self, data):
        instance = self.instance(data)
        unborn = [device for device in self.devices_of(instance) if device.unborn]
        if unborn:
            first = unborn[0]
            given = values.DeviceKey(*first.key)
            try:
                others = self.ledger.exchange(given)
            except exception.NoFit:
                return
            assert others is not None
            candidates = [one if one.identifier else one._replace(identifier=f'other{next(self.numbers)}')
                          for one in others.candidates]
            [key], [other] = self.ledger.name(others, candidates)[1:]
            assert other.resource_class == first.resource_class
            assert instance in self.anywhere or other.provider_uuid == first.provider_uuid
            self.ledger.free([given])
            self.recorded[instance] = tuple(key if one == given else one for one in self.recorded[instance])

    @stateful.rule(data=st.data(), some=st.booleans())
    def release(self, data, some):
        instance = self.instance(data)
        if instance is None:
            return
        keys = self.recorded[instance]
        gives, keeps = (keys[:1], keys[1:]) if some else (keys, ())
        self.ledger.releasing(gives)
        self.ledger.free(gives, [key for key in gives if key.kind == 'mdev'
                                 and self.world.mdevs.pop(key.identifier, None) is not None])
        self.recorded[instance] = keeps
        if not keeps:
            assert not hosts.held(self.ledger, instance)
            assert not hosts.from_rows(self.ledger, instance)
            del self.recorded[instance]
            self.anywhere.discard(instance)

    # -- the host -----------------------------------------------------------------------------------------------------

    @stateful.rule()
    def read(self):
        owners = self.owners()
        self.ledger.read_inventory(self.world.inventory())
        assert owners == self.owners()

    def owners(self):
        return {device.key: device.instance_uuid for device in self.ledger.devices() if device.instance_uuid}

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
        keys = sorted(device.key for device in self.ledger.devices())
        if keys:
            key = values.DeviceKey(*data.draw(st.sampled_from(keys)))
            getattr(self.ledger, how)([key] if how == 'withhold_free' else key, reason)

    @stateful.rule(data=st.data(), reason=st.sampled_from([vocabulary.CORDONED, vocabulary.IN_DOUBT]))
    def an_operator_says_something_of_a_device(self, data, reason):
        key = values.DeviceKey(*data.draw(st.sampled_from(sorted(
            {device.key for device in self.ledger.devices()} | self.stands.keys()) or [('vpmem', 'n0')])))
        if reason in self.stands.get(key, set()):
            self.stands[key].remove(reason)
            self.ledger.stand_down(key, reason)
        else:
            self.stands.setdefault(key, set()).add(reason)
            self.ledger.stand(key, reason)

    @stateful.rule(parent=st.sampled_from([('mdev', 'p0'), ('mdev', 'p2'), ('vpmem', 'r0')]))
    def an_operator_cordons_a_parent_or_not_any_more(self, parent):
        (self.ledger.reopen_parent if parent in self.cordoned else self.ledger.close_parent)(
            parent[0], parent[1], vocabulary.CORDONED)
        self.cordoned ^= {parent}

    # -- the record ---------------------------------------------------------------------------------------------------

    @stateful.rule(data=st.data())
    def somebody_writes_a_row(self, data):
        """Behind our back, for a device that no row of ours names."""
        free = [device for device in self.ledger.devices() if device.state == selection.FREE]
        if free:
            device = data.draw(st.sampled_from(sorted(free, key=lambda device: device.key)))
            instance = f'i{next(self.numbers)}'
            self.recorded[instance] = tuple(hosts.hold_rows(self.ledger, self.row(device, instance)))

    @staticmethod
    def row(device, instance):
        return hosts.row(hosts.namespace('x'), instance)._replace(
            kind=device.kind, identifier=device.identifier, provider_uuid=device.provider_uuid,
            resource_class=device.resource_class, parent=device.parent, numa_node=device.numa_node)

    @stateful.rule()
    def restart(self):
        rows = [[self.row(device, instance) for device in self.devices_of(instance)] for instance in self.recorded]
        self.ledger = hosts.Ledger(self.policy, provider)
        for key, reasons in self.stands.items():
            for reason in reasons:
                self.ledger.stand(key, reason)
        for parent in self.cordoned:
            self.ledger.close_parent(parent[0], parent[1], vocabulary.CORDONED)
        self.ledger.read_inventory(self.world.inventory())
        self.anywhere.clear()
        for records in rows:
            self.ledger.hold(records)
            assert not self.ledger.not_held(records)

    # -- what always holds --------------------------------------------------------------------------------------------

    @stateful.invariant()
    def counts_are_what_a_recount_gives(self):
        devices = self.ledger.devices()
        assert len(devices) == len({device.key for device in devices})
        for pool in self.ledger.pools():
            ours = [device for device in devices if pool_of(device) == pool_of(pool)]
            free = [device.identifier for device in ours if device.state == selection.FREE and not device.withheld]
            assert pool.total == len(ours)
            assert pool.free == len(free)
            assert pool.held == sum(device.state == selection.HELD for device in ours)
            assert pool.releasing == sum(device.state == selection.RELEASING for device in ours)
            assert pool.room >= pool.free
            assert self.ledger.now.pending.get((pool.kind, pool.parent), 0) == sum(
                device.unborn for device in devices if (device.kind, device.parent) == (pool.kind, pool.parent))

    @stateful.invariant()
    def whoever_is_free_stands_in_its_line_once(self):
        devices = self.ledger.devices()
        for resource_class in (PMEM, SMALL, VGPU, VGPU_B):
            line = [one.key for one, _amount in self.ledger.available(
                resource_class, None, hosts.wants((resource_class, 1))) if one.is_named]
            assert sorted(line) == sorted(
                device.key for device in devices if device.resource_class == resource_class
                and device.state == selection.FREE and not device.withheld)

    @stateful.invariant()
    def what_an_operator_says_stands(self):
        for device in self.ledger.devices():
            cordoned = (device.kind, device.parent) in self.cordoned
            said = self.stands.get(values.DeviceKey(device.kind, device.identifier or ''), set())
            assert said <= device.withheld
            assert (vocabulary.CORDONED in device.withheld) == (cordoned or vocabulary.CORDONED in said)
        for pool in self.ledger.pools():
            if (pool.kind, pool.parent) in self.cordoned:
                assert pool.room == 0

    @stateful.invariant()
    def every_device_has_one_owner_or_none(self):
        assert self.owners() == {key: instance for instance, keys in self.recorded.items() for key in keys}
        for device in self.ledger.devices():
            assert (device.state == selection.FREE) == (device.instance_uuid is None)
        # And every holding has what its devices say.
        assert {device.key: device.instance_uuid for instance in self.ledger.now.instances
                for device in self.ledger.now.holdings(instance)} == self.owners()

    @stateful.invariant()
    def the_choice_is_right(self):
        for resource_class in (PMEM, SMALL, VGPU, VGPU_B):
            for wanted in (None, provider('p0'), provider('')):
                for affinity in AFFINITIES_TO_CHECK:
                    now = self.ledger.now
                    best = allocator.best(now, now.scope(resource_class, wanted), (
                        affinity.get('numa_nodes', frozenset()), affinity.get('numa_policy', 'none'), frozenset()))
                    assert (best and best.place[:5]) == self.right_choice((resource_class, 1, wanted), affinity)

    @stateful.invariant()
    def explanations_add_up(self):
        for resource_class in (PMEM, SMALL, VGPU, VGPU_B):
            for shortage in self.ledger.shortages(hosts.wants((resource_class, 1)), everything=True):
                assert shortage.exist == (shortage.free + shortage.held + shortage.releasing
                                          + sum(count for _, count in shortage.withheld))

    # -- the slow answers ---------------------------------------------------------------------------------------------

    def pools(self, resource_class, wanted):
        return [pool for pool in self.ledger.pools() if pool.resource_class == resource_class
                and wanted in (None, pool.provider_uuid) and pool.room > 0]

    def right_choice(self, item, affinity):
        """The pool that the policy names, by looking at each."""
        nodes, policy = affinity.get('numa_nodes', frozenset()), affinity.get('numa_policy', 'none')
        pools = self.pools(item[0], item[2])
        allowed = [pool for pool in pools if selection.allows(pool.numa_node, nodes, policy)]
        near = [pool for pool in allowed if pool.numa_node in nodes] if nodes and policy != 'none' else []
        # One whose node is unknown may be near.
        unknown = [pool for pool in allowed if pool.numa_node is None] if nodes and policy == 'preferred' else []
        order = {'pack': lambda pool: 0, 'spread': lambda pool: -pool.room}[self.policy]
        return pool_of(min(near or unknown or allowed, key=order, default=None))      # of equals the first by name

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
                room = sum(pool.room for pool in self.pools(name, wanted)
                           if selection.allows(pool.numa_node, nodes, policy))
                if amount > room:
                    return False
        return True


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, database=None)


class LedgerModelTestCase(base.TestCase):

    def test_random_histories_keep_every_count(self):
        stateful.run_state_machine_as_test(LedgerMachine, settings=LedgerMachine.TestCase.settings)
