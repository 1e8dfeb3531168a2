"""What it takes to heal many nodes: requests of each, counted on the way to a real server, and the time of all.

Hosts whose devices are counted and allocated at their nodes, some of whose instances wait for the confirmation of a
resize. Others change what instances hold while node after node is healed; in the end every consumer is compared with
the record. The server is placement's own WSGI application on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import random
import sys
import threading
import time

from benchmarks.measure import Effort
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.placement import errors
from devicetrack.placement import expected
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.placement.healer import HEALED
from devicetrack.placement.healer import Healer
from devicetrack.placement.healer import Node
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import VGPU

_PARENTS = 4                                # of each node
_MOVING = 10                                # of so many instances one waits for a confirmation
_CPU = {'VCPU': 2}


class World:
    """One host with its instances, and its node in placement, flat."""

    def __init__(self, number: int, instances: int, client: Client, stack: contextlib.ExitStack) -> None:
        self._client = client
        room = 2 * instances // _PARENTS + 1
        self.host = stack.enter_context(fixtures.Host(
            parents={f'card{card}': room for card in range(_PARENTS)}, name=f'heal-{number:03}', policy='spread'))
        self.providers = self.host.manager.providers()
        [self.uuid] = [one.uuid for one in self.providers if one.parent_uuid is None]
        created = client.create_provider(self.uuid, self.host.name, None)
        client.put_inventories(self.uuid, created.generation, {'VCPU': values.Inventory(100_000)})
        PlacementReporter(client).sync(self.providers, tree.ANNOUNCED)
        holds = {self.uuid: {**_CPU, VGPU: 1}}
        consumers = []
        for position in range(instances):
            instance = self.host.spawn(request={self.uuid: {'resources': {VGPU: 1}}})
            consumers.append(values.Consumer(instance.uuid, holds, None, 'project', 'user', values.INSTANCE))
            if position % _MOVING == 0:
                move = self.host.resize(instance, request={self.uuid: {'resources': {VGPU: 1}}})
                consumers.append(values.Consumer(move.uuid, holds, None, 'project', 'user', values.MIGRATION))
        client.post_allocations(consumers)
        self.consumers = [consumer.uuid for consumer in consumers]

    def look(self) -> tuple[list[Record], Usage]:
        return self.host.manager.placed()

    def heal(self, healer: Healer) -> int:
        """How many consumers moved."""
        healing = healer.heal(Node.of_host(self.look, self.providers, True))
        if healing.outcome != HEALED:
            raise AssertionError(f'{self.host.name}: {healing}')
        return len(healing.consumers)

    def wrong(self) -> Iterator[str]:
        """Consumers that do not hold of devices what the record says, where it says."""
        for uuid, share in expected.shares(self.look()[0], self.uuid, tree.NESTED).items():
            found = self._client.get_allocations(uuid)
            devices = {provider: {VGPU: amounts[VGPU]} for provider, amounts in found.resources.items()
                       if VGPU in amounts}
            if devices != share.held or 'VCPU' not in found.resources.get(self.uuid, {}):
                yield uuid


class Others(threading.Thread):
    """Changes what is not ours of one consumer after the other, as a service does that resizes guests."""

    def __init__(self, worlds: list[World], client: Client) -> None:
        super().__init__(daemon=True)
        self._worlds, self._client, self._random = worlds, client, random.Random(1)
        self.over = threading.Event()
        self.changes = 0

    def run(self) -> None:
        while not self.over.is_set():
            world = self._random.choice(self._worlds)
            found = self._client.get_allocations(self._random.choice(world.consumers))
            here = {**found.resources[world.uuid], 'VCPU': self._random.randint(1, 9)}
            with contextlib.suppress(errors.GenerationConflict, errors.PlacementUnavailable):
                self._client.put_allocations(found._replace(resources={**found.resources, world.uuid: here}))
                self.changes += 1


def run(effort: Effort) -> Table:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(placements.PlacementServer(stack.enter_context(databases.PostgreSQLServer())))
        placement = stack.enter_context(placements.Placement(server))
        worlds = [World(number, effort.instances_a_node, placement.direct, stack) for number in range(effort.nodes)]
        consumers = len(worlds[0].consumers)
        quiet, *busy = worlds
        requests, _seconds = _healed(quiet, placement)
        rows = [Row('a node that nobody else writes to', requests, 'calls', at_most=consumers + 10,
                    note=f'{consumers} consumers, {_PARENTS} parents')]
        others = Others(worlds, placement.open(server.url))
        others.start()
        most, began = 0, time.perf_counter()
        for number, world in enumerate(busy, 2):
            requests, _seconds = _healed(world, placement)
            most = max(most, requests)
            if number % 25 == 0:
                print(f'{number} of {len(worlds)} nodes in {time.perf_counter() - began:.0f} s', file=sys.stderr)
        took = time.perf_counter() - began
        others.over.set()
        others.join()
        rows += [Row('the most that one took beside others', most, 'calls', note=f'{others.changes} changes of others'),
                 Row('all of them', took, 's', note=f'{took / len(busy) * 1e3:,.0f} ms a node'),
                 Row('consumers that hold anything else than the record says',
                     sum(1 for world in worlds for _uuid in world.wrong()), at_most=0),
                 Row('a node that is healed already', _again(quiet, placement), 'calls', at_most=1)]
    total = effort.nodes * effort.instances_a_node
    return Table(f'Healing {effort.nodes} nodes with {total:,} instances, every {_MOVING}th of which moves', rows)


def _healed(world: World, placement: placements.Placement) -> tuple[int, float]:
    """Heal a node; gives the requests and the seconds of that."""
    placement.requests.clear()
    began = time.perf_counter()
    moved = world.heal(Healer(placement.client))
    if moved != len(world.consumers):
        raise AssertionError(f'{moved} of {len(world.consumers)} consumers moved')
    return len(placement.requests), time.perf_counter() - began


def _again(world: World, placement: placements.Placement) -> int:
    placement.requests.clear()
    healing = Healer(placement.client).heal(Node.of_host(world.look, world.providers, True))
    if healing.consumers:
        raise AssertionError(str(healing))
    return len(placement.requests)
