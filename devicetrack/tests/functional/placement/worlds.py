"""Two hosts in placement, an instance that can be on either, and every operation on what it holds."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any
from typing import Final
import uuid

import fixtures

from devicetrack.objects.values import Leftover
from devicetrack.placement import values
from devicetrack.placement.allocations import AllocationClient
from devicetrack.placement.allocations import Policies
from devicetrack.placement.allocations import Policy
from devicetrack.testing import http_proxy
from devicetrack.testing import placement as placements

PROJECT: Final = 'the-project'
USER: Final = 'the-user'

CPU: Final = 'VCPU'
GPU: Final = 'VGPU'
NET: Final = 'NET_BW_EGR_KILOBIT_PER_SEC'      # what somebody else puts there


class Leftovers:
    """Keeps them in a list."""

    def __init__(self) -> None:
        self.notes: list[Leftover] = []

    def record(self, leftover: Leftover) -> None:
        self.remove(leftover)
        self.notes.append(leftover)

    def remove(self, leftover: Leftover) -> None:
        self.notes = [note for note in self.notes if note.migration_uuid != leftover.migration_uuid]

    def kept(self) -> list[Leftover]:
        return list(self.notes)


class World(fixtures.Fixture):
    """Providers ``source`` and ``dest`` with room for two guests each, and the consumers of a guest that moves.

    ``old`` and ``new`` are what the guest needs on each. ``requests`` are those of the operation alone.
    """

    def __init__(self, server: placements.PlacementServer | None = None) -> None:
        super().__init__()
        self._server = server

    def _setUp(self) -> None:
        self.placement = self.useFixture(placements.Placement(self._server))
        self.proxy = self.placement.proxy
        self.direct = self.placement.direct
        self.source = self.placement.provider(VCPU=4, VGPU=2, NET_BW_EGR_KILOBIT_PER_SEC=10)
        self.dest = self.placement.provider(VCPU=4, VGPU=2, NET_BW_EGR_KILOBIT_PER_SEC=10)
        self.old: values.Resources = {self.source: {CPU: 2, GPU: 1}}
        self.new: values.Resources = {self.dest: {CPU: 2, GPU: 1}}
        self.instance, self.migration = str(uuid.uuid4()), str(uuid.uuid4())
        self.leftovers = Leftovers()

    def client(self, policy: Policy = Policy.FAIL, **kwargs: Any) -> AllocationClient:
        """A client with this policy for everything, as far as it goes."""
        policies = Policies(*[policy] * len(Policies._fields))
        if policy is Policy.MERGE:
            policies = policies._replace(spawn=Policy.RETRY)
        return AllocationClient(self.placement.client, policies, self.leftovers, **kwargs)

    def write(self, consumer: str, resources: values.Resources, kind: str = values.INSTANCE) -> None:
        """Somebody writes all of a consumer."""
        found = self.direct.get_allocations(consumer)
        self.direct.replace_allocations([values.Consumer(consumer, resources, found.generation, PROJECT, USER, kind)])

    def write_untyped(self, consumer: str, resources: values.Resources) -> None:
        """Somebody whose microversion knows no types writes a new consumer."""
        answer = self.direct._adapter.put(f'/allocations/{consumer}', microversion='1.36', json={
            'allocations': {provider: {'resources': amounts} for provider, amounts in resources.items()},
            'consumer_generation': None, 'project_id': PROJECT, 'user_id': USER})
        assert answer.status_code == 204, answer.text

    def add(self, consumer: str, provider: str) -> None:
        """Somebody else puts something of his own on a consumer."""
        found = self.direct.get_allocations(consumer)
        theirs = {**found.resources, provider: {**found.resources.get(provider, {}), NET: 1}}
        self.write(consumer, theirs, found.type or values.INSTANCE)

    def touch(self, consumer: str) -> None:
        """Somebody writes again what a consumer holds: its generation moves on, and nothing else."""
        found = self.direct.get_allocations(consumer)
        self.direct.replace_allocations([found])

    def touch_providers(self) -> None:
        """Somebody changes both providers."""
        for provider in (self.source, self.dest):
            traits = self.direct.get_traits(provider)
            self.direct.put_traits(provider, traits.generation, traits.traits | {'COMPUTE_NODE'})

    def fill(self) -> None:
        """Nothing more can be had of either provider."""
        for provider in (self.source, self.dest):
            found = self.direct.get_inventories(provider)
            self.direct.put_inventories(provider, found.generation, {
                name: inventory._replace(reserved=inventory.total) for name, inventory in found.inventories.items()})

    def lose_reads(self) -> None:
        """No read of allocations is answered for the length of one, its repetition included."""
        for _attempt in range(2):
            self.proxy.at_next('GET', '/allocations/', http_proxy.Loss.REQUEST)

    def held(self) -> dict[str, values.Resources]:
        """What the consumers hold; that providers count the same is checked."""
        held = {name: self.direct.get_allocations(consumer).resources
                for name, consumer in (('instance', self.instance), ('migration', self.migration))}
        for provider in (self.source, self.dest):
            usages = {name: amount for name, amount in self.direct.get_usages(provider).items() if amount}
            counted: dict[str, int] = {}
            for resources in held.values():
                for name, amount in resources.get(provider, {}).items():
                    counted[name] = counted.get(name, 0) + amount
            assert usages == counted, (usages, counted)
        return {name: resources for name, resources in held.items() if resources}


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation: what is there before it, what it is called with, and what is there after it."""

    before: Callable[[World], dict[str, values.Resources]]
    call: Callable[[World, AllocationClient], values.Result]
    after: Callable[[World], dict[str, values.Resources]]
    writes: tuple[str, str] = ('PUT', '/allocations/')
    reads: int = 1                              # before it writes
    concerns: str = 'instance'                  # whose allocations it is about
    elsewhere: str = 'source'                   # where somebody else puts something on that
    grows: bool = True                          # it needs room
    ends_move: bool = False

    def prepare(self, world: World) -> None:
        for name, resources in self.before(world).items():
            world.write(getattr(world, name), resources,
                        values.MIGRATION if name == 'migration' else values.INSTANCE)

    def consumer(self, world: World) -> str:
        consumer: str = getattr(world, self.concerns)
        return consumer

    def add(self, world: World) -> None:
        """Somebody else puts something on the consumer that the operation is about."""
        world.add(self.consumer(world), getattr(world, self.elsewhere))

    def with_theirs(self, world: World, held: dict[str, values.Resources]) -> dict[str, values.Resources]:
        """The same with what somebody else put there."""
        provider = getattr(world, self.elsewhere)
        resources = held.get(self.concerns, {})
        return held | {self.concerns: {**resources, provider: {**resources.get(provider, {}), NET: 1}}}


def _moved(world: World) -> dict[str, values.Resources]:
    return {'instance': world.new, 'migration': world.old}


CASES: Final[dict[str, Case]] = {
    'spawn': Case(
        before=lambda world: {},
        call=lambda world, client: client.spawn(world.instance, world.old, PROJECT, USER),
        after=lambda world: {'instance': world.old},
        reads=0),
    'move': Case(
        before=lambda world: {'instance': world.old},
        call=lambda world, client: client.move(world.instance, world.migration, world.new),
        after=_moved,
        writes=('POST', '/allocations')),
    'confirm': Case(
        before=_moved,
        call=lambda world, client: client.confirm(world.instance, world.migration),
        after=lambda world: {'instance': world.new},
        concerns='migration', grows=False, ends_move=True),
    'revert': Case(
        before=_moved,
        call=lambda world, client: client.revert(world.instance, world.migration, old=world.old),
        after=lambda world: {'instance': world.old},
        writes=('POST', '/allocations'), reads=2, grows=False, ends_move=True),
    'delete': Case(
        before=lambda world: {'instance': world.old},
        call=lambda world, client: client.delete(world.instance),
        after=lambda world: {},
        grows=False),
    'evacuate': Case(
        before=lambda world: {'instance': world.old},
        call=lambda world, client: client.evacuate(world.instance, world.new),
        after=lambda world: {'instance': {**world.old, **world.new}}),
    'finish evacuation': Case(
        before=lambda world: {'instance': {**world.old, **world.new}},
        call=lambda world, client: client.finish_evacuation(world.instance, [world.source]),
        after=lambda world: {'instance': world.new},
        elsewhere='dest', grows=False),
    'change': Case(
        before=lambda world: {'instance': world.old},
        call=lambda world, client: client.change(
            world.instance, 1, {world.source: {GPU: 1}}, {world.source: {GPU: 2}}),
        after=lambda world: {'instance': {world.source: {CPU: 2, GPU: 2}}}),
}
FORCED: Final = Case(
    before=lambda world: {'instance': world.old},
    call=lambda world, client: client.delete(world.instance, force=True),
    after=lambda world: {},
    writes=('DELETE', '/allocations/'), reads=0, grows=False)
