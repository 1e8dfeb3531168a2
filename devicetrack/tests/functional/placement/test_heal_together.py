"""Several nodes are healed by a command that is killed again and again, while others write to the same nodes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
from typing import Any
import uuid

from devicetrack.placement import errors
from devicetrack.placement import healer
from devicetrack.placement import tree
from devicetrack.testing import database_servers
from devicetrack.testing import fixtures
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base
from devicetrack.tests import processes
from devicetrack.tests.functional.placement import nodes
from devicetrack.tests.unit.cmd import program as programs

_NODES, _INSTANCES, _KILLS = 6, 4, 4
_CHANGES = 2                                # of others, for each request of the command


class Writer(threading.Thread):
    """Somebody who changes what instances of some nodes hold, one after the other, until ``over`` is set.

    Each change takes one of ``turns``: nobody has any use for changes while the command starts.
    """

    def __init__(self, worlds: list[nodes.FlatHost], instances: dict[str, list[Instance]], seed: int,
                 over: threading.Event, turns: threading.Semaphore) -> None:
        super().__init__(daemon=True)
        self._worlds, self._instances, self._random = worlds, instances, random.Random(seed)
        self._over, self._turns = over, turns
        self.changes = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._turns.acquire() and not self._over.is_set():
                self.changes += 1
                world = self._random.choice(self._worlds)
                self._random.choice([self.touch, self.touch, self.spawn, self.delete])(world)
        except BaseException as error:
            self.error = error

    def touch(self, world: nodes.FlatHost) -> None:
        """Another amount of what is not ours, as for a resize of a guest's processors."""
        found = world.direct.get_allocations(self._random.choice(self._instances[world.name]).uuid)
        here = {**found.resources[world.node], 'VCPU': self._random.randint(1, 9)}
        with contextlib.suppress(errors.PlacementError):        # it was healed just now; or the server gave up
            world.direct.replace_allocations([found._replace(resources={**found.resources, world.node: here})])

    def spawn(self, world: nodes.FlatHost) -> None:
        if len(self._instances[world.name]) > 2 * _INSTANCES:
            return
        try:
            self._instances[world.name].append(world.spawn())
        except errors.PlacementError:
            pass                                # the node counts none any more: the scheduler would not choose it

    def delete(self, world: nodes.FlatHost) -> None:
        if len(self._instances[world.name]) > 1:
            instance = self._instances[world.name].pop()
            world.host.delete(instance)
            while world.direct.get_allocations(instance.uuid).exists:
                with contextlib.suppress(errors.PlacementUnavailable):
                    world.direct.delete_allocations(instance.uuid)


class TestTogether(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        server = placements.PlacementServer.shared(database_servers.PostgreSQLServer.shared())
        self.placement = self.useFixture(placements.Placement(server))
        self.worlds: list[nodes.FlatHost] = []
        self.instances: dict[str, list[Instance]] = {}
        store = self.useFixture(fixtures.SQLiteStore(self.conf)).store
        for _number in range(_NODES):
            configuration = self.useFixture(fixtures.Configuration(machine=str(uuid.uuid4())))
            world = self.useFixture(nodes.FlatHost(self.placement, {'p0': 9, 'p1': 9, 'p2': 9}, store=store,
                                                   configuration=configuration))
            world.report(tree.ANNOUNCED)
            self.instances[world.name] = [world.spawn() for _ in range(_INSTANCES)]
            world.resize(world.spawn(), vgpu=2)
            self.worlds.append(world)
        self.config_file = programs.write_configuration(
            self.temp_dir(), self.conf, '[placement]', 'auth_type = admin_token', f'endpoint = {self.placement.url}',
            f'token = {placements.TOKEN}', 'nested = manual')

    def heal(self, killed_at: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run the command, and kill it when its read of this number has come, if it reads as much."""
        self.placement.requests.clear()
        with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as err, open(os.devnull) as nothing:
            process = processes.Process('devicetrack.cmd.manage', '--config-file', self.config_file,
                                        'placement', 'heal', '--all', '-f', 'json',
                                        stdin=nothing, stdout=out, stderr=err)
            if killed_at is not None:
                for _before in range(killed_at - 1):
                    self.placement.proxy.before_next('GET', '/', lambda: None)
                self.placement.proxy.before_next('GET', '/', process.kill)
            status = process.wait()
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess((), status, out.read(), err.read())

    def test_every_consumer_ends_at_its_devices_and_no_amount_is_lost(self) -> None:
        over, turns = threading.Event(), threading.Semaphore(_CHANGES)

        def end() -> None:
            over.set()
            turns.release(len(writers))

        writers = [Writer(self.worlds[number::2], self.instances, number, over, turns) for number in range(2)]
        self.addCleanup(end)
        for writer in writers:
            writer.start()
        self.placement.proxy.heard = lambda: turns.release(_CHANGES)
        chance = random.Random(1)
        self.killed: list[bool] = []
        for _kill in range(_KILLS):
            self.killed.append(self.heal(chance.randint(5, 40)).returncode == -signal.SIGKILL)
        self.assertTrue(self.killed[0])
        end()
        for writer in writers:
            writer.join(base.HANGS_S)
            self.assertEqual((False, None), (writer.is_alive(), writer.error))
        last = self.heal()
        self.assertEqual(0, last.returncode, last.stderr)
        rows: list[dict[str, Any]] = json.loads(last.stdout)
        self.assertEqual({world.name for world in self.worlds}, {row['node'] for row in rows})
        for world in self.worlds:
            self.assertEqual(ours(world.expected(tree.NESTED)), ours(world.held()))
            host = world.host.store.host(world.name)
            self.assertEqual(healer.VERSION, host and host.nested_version)
        again = self.heal()
        self.assertEqual({'already healed'}, {row['outcome'] for row in json.loads(again.stdout)})
        self.assertEqual([], [request for request in self.placement.requests if request[0] != 'GET'])


def ours(held: Any) -> dict[str, dict[str, int]]:
    """By consumer and provider, the devices; what the node has of anything else is others' to change."""
    return {consumer: {provider: amounts[VGPU] for provider, amounts in resources.items() if VGPU in amounts}
            for consumer, resources in held.items()}
