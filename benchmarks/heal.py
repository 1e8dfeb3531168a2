"""The cost of healing many nodes: the requests for each node, counted on their way to a real server, and the time.

The hosts share one store. Their devices are counted and allocated at their nodes, and some of their instances wait for
the confirmation of a resize. The benchmark kills ``placement heal --all`` at random moments and starts it again, while
other services change what instances hold. In the end it compares every consumer with the record. The server is
placement's own WSGI application on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import random
import signal
import statistics
import subprocess
import sys
import threading
import time

from oslo_config import cfg

from benchmarks.measure import Effort
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Usage
from devicetrack.placement import errors
from devicetrack.placement import expected
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.placement.healer import Healer
from devicetrack.placement.healer import LEFT
from devicetrack.placement.healer import NodeToHeal
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.store import api
from devicetrack.testing import database_servers
from devicetrack.testing import fixtures
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import VGPU

_PARENTS = 4                                # mdev parents of each node
_MOVING = 10                                # one of so many instances waits for a confirmation
_RUNS = 10                                  # at most so many runs of the command, if others keep it from healing some
_CPU = {'VCPU': 2}


class World:
    """One host with its instances, and its flat node in placement."""

    def __init__(self, number: int, instances: int, client: Client, store: api.Store,
                 stack: contextlib.ExitStack) -> None:
        self._client = client
        room = 2 * instances // _PARENTS + 1
        name = f'heal-{number:03}'
        self.host = stack.enter_context(fixtures.Host(
            parents={f'card{card}': room for card in range(_PARENTS)}, name=name, policy='spread', store=store,
            configuration=stack.enter_context(fixtures.Configuration(machine=name))))
        self.providers = self.host.manager.providers()
        [self.uuid] = [one.uuid for one in self.providers if one.parent_uuid is None]
        created = client.create_provider(self.uuid, name, None)
        client.put_inventories(self.uuid, created.generation, {'VCPU': values.ClassInventory(100_000)})
        PlacementReporter(client).sync(self.providers, tree.ANNOUNCED)
        holds = {self.uuid: {**_CPU, VGPU: 1}}
        consumers = []
        for position in range(instances):
            instance = self.host.spawn(request={self.uuid: {'resources': {VGPU: 1}}})
            consumers.append(values.Consumer(instance.uuid, holds, None, 'project', 'user', values.INSTANCE))
            if position % _MOVING == 0:
                move = self.host.resize(instance, request={self.uuid: {'resources': {VGPU: 1}}})
                consumers.append(values.Consumer(move.uuid, holds, None, 'project', 'user', values.MIGRATION))
        client.replace_allocations(consumers)
        self.consumers = [consumer.uuid for consumer in consumers]

    def look(self) -> tuple[Sequence[DeviceAssignment], Usage]:
        return self.host.manager.assignments(), self.host.manager.usage()

    def heal(self, client: Client) -> int:
        """Heal the node as its host does. Returns how many consumers moved."""
        healing = Healer(client).heal(NodeToHeal.of_host(self.look, self.providers, True))
        if healing.outcome == LEFT:
            raise AssertionError(f'{self.host.name}: {healing}')
        return len(healing.consumers)

    def wrong(self) -> Iterator[str]:
        """The consumers whose allocations of devices differ from the record."""
        for uuid, share in expected.shares(self.look()[0], self.uuid, tree.NESTED).items():
            found = self._client.get_allocations(uuid)
            devices = {provider: {VGPU: amounts[VGPU]} for provider, amounts in found.resources.items()
                       if VGPU in amounts}
            if devices != share.held or 'VCPU' not in found.resources.get(self.uuid, {}):
                yield uuid


class Others(threading.Thread):
    """Acts as a service that resizes guests: it changes other resources of one consumer after another.

    It works while ``healing`` is set. To end it, set ``over`` and then ``healing``.
    """

    def __init__(self, worlds: list[World], client: Client) -> None:
        super().__init__(daemon=True)
        self._worlds, self._client, self._random = worlds, client, random.Random(1)
        self.healing, self.over = threading.Event(), threading.Event()
        self.changes = 0

    def run(self) -> None:
        while self.healing.wait() and not self.over.is_set():
            world = self._random.choice(self._worlds)
            found = self._client.get_allocations(self._random.choice(world.consumers))
            here = {**found.resources[world.uuid], 'VCPU': self._random.randint(1, 9)}
            with contextlib.suppress(errors.PlacementError):            # the command has just changed it too
                self._client.replace_allocations([found._replace(resources={**found.resources, world.uuid: here})])
                self.changes += 1


class Command:
    """``placement heal --all``, killed and started again. ``healing`` is set from its first request to its end."""

    def __init__(self, conf: cfg.ConfigOpts, placement: placements.Placement, healing: threading.Event) -> None:
        self._placement, self._healing = placement, healing
        self._config_file = f'{conf.devicetrack.state_path}/devicetrack.conf'
        with open(self._config_file, 'w', encoding='utf-8') as file:
            file.write(f'[devicetrack]\nstate_path = {conf.devicetrack.state_path}\n'
                       f'machine_id_path = {conf.devicetrack.machine_id_path}\n'
                       f'[placement]\nauth_type = admin_token\nendpoint = {placement.url}\n'
                       f'token = {placements.TOKEN}\nnested = manual\n')
        self.killed = self.left_some = 0

    def run(self, kills: Iterable[int]) -> None:
        """Run the command until no node is left. Before that, kill it once for each number, at so many reads."""
        for reads in kills:
            self.killed += self._run(reads) == -signal.SIGKILL
        while self._run():
            self.left_some += 1
            if self.left_some == _RUNS:
                raise AssertionError(f'after {_RUNS} runs some nodes are left')

    def _run(self, killed_at: int | None = None) -> int:
        with subprocess.Popen([sys.executable, '-m', 'devicetrack.cmd.manage', '--config-file', self._config_file,
                               'placement', 'heal', '--all', '-f', 'value'],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            # Others begin at the command's first request: they cannot disturb it while it is being loaded.
            self._placement.proxy.before_next('GET', '/', self._healing.set)
            if killed_at is not None:
                for _before in range(killed_at - 1):
                    self._placement.proxy.before_next('GET', '/', lambda: None)
                self._placement.proxy.before_next('GET', '/', process.kill)
            try:
                return process.wait()
            finally:
                self._healing.clear()


def run(effort: Effort) -> Table:
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(database_servers.PostgreSQLServer(durable=True)) if effort.durable else \
            database_servers.PostgreSQLServer.shared()
        server = stack.enter_context(placements.PlacementServer(database))
        placement = stack.enter_context(placements.Placement(server))
        conf = stack.enter_context(fixtures.Configuration()).conf
        store = stack.enter_context(fixtures.SQLiteStore(conf)).store
        worlds = [World(number, effort.instances_a_node, placement.direct, store, stack)
                  for number in range(effort.nodes)]
        consumers = len(worlds[0].consumers)
        alone, again = (_requests(placement, worlds[0], moved) for moved in (consumers, 0))
        chance = random.Random(1)
        others = Others(worlds, placement.open(server.url))
        command = Command(conf, placement, others.healing)
        others.start()
        placement.requests.clear()
        began = time.perf_counter()
        most_reads = len(worlds) * consumers // (effort.kills + 1)
        command.run(chance.randint(min(10, most_reads), most_reads) for _kill in range(effort.kills))
        took = time.perf_counter() - began
        others.over.set()
        others.healing.set()
        others.join()
        counts = _of_healed(placement.requests)
        rows = [Row('a node, on its host', alone, 'calls', at_most=consumers + 14,
                    note=f'{consumers} consumers, {_PARENTS} parents'),
                Row('again', again, 'calls', at_most=1),
                Row('a node, by the command', statistics.median(counts), 'calls', at_most=consumers + 14,
                    note=f'{max(counts)} where others wrote to it, who made {others.changes} changes'),
                Row('all, with the starts after kills', took, 's',
                    note=f'{command.killed} times killed, {command.left_some} times some were left for the next run'),
                Row('consumers that hold anything else than the record says',
                    sum(1 for world in worlds for _uuid in world.wrong()), at_most=0)]
    total = effort.nodes * effort.instances_a_node
    return Table(f'Healing {effort.nodes} nodes with {total:,} instances, every {_MOVING}th of which moves', rows)


def _requests(placement: placements.Placement, world: World, moved: int) -> int:
    """Heal a node with so many consumers to move. Returns the number of requests."""
    placement.requests.clear()
    found = world.heal(placement.client)
    if found != moved:
        raise AssertionError(f'{found} of {moved} consumers moved')
    return len(placement.requests)


def _of_healed(requests: Iterable[tuple[str, str]]) -> list[int]:
    """How many requests each healed node took. The command begins each node with a request for its provider by name."""
    counts: list[int] = []
    number, healed = 0, False
    for method, path in (*requests, ('GET', '/resource_providers')):
        if path == '/resource_providers':
            counts += [number] if healed else []
            number, healed = 0, False
        number += 1
        healed = healed or method == 'POST'
    return counts
