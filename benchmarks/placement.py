"""The cost of a report to placement: its requests, counted on their way to a real server, and its time.

The providers of the host, except the node, are parents of mediated devices. All of them have instances. Each instance
has a device by a claim, and an allocation in placement. The server is placement's own WSGI application on SQLite, which
takes one request at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid

from benchmarks.measure import Effort
from benchmarks.report import Row
from benchmarks.report import Table
from devicetrack.placement import values
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.testing import fixtures
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import VGPU

MILLISECONDS = 1e3
_TOGETHER = 100                             # instances whose allocations one request writes


class World:
    """A host, a placement server, and the reporter that reports the host to the server."""

    def __init__(self, host: fixtures.Host, placement: placements.Placement) -> None:
        self.host, self.placement = host, placement
        self.reporter = self.another_process()
        self._providers = itertools.cycle(one for one in host.manager.providers() if one.parent_uuid is not None)
        self._project, self._user = str(uuid.uuid4()), str(uuid.uuid4())

    def another_process(self) -> PlacementReporter:
        return PlacementReporter(self.placement.client)

    def report(self) -> tuple[int, int, float]:
        """Report once. Returns the number of requests, the number of those that write, and the seconds."""
        self.placement.requests.clear()
        began = time.perf_counter()
        manager = self.host.manager
        state = manager.state()
        report = self.reporter.sync(manager.providers(), classes=state.classes, complete=state.complete)
        took = time.perf_counter() - began
        if report.refused or report.left:
            raise AssertionError(f'{report.refused} {report.left}')
        requests = self.placement.requests
        return len(requests), sum(method != 'GET' for method, _path in requests), took

    def spawn(self, count: int) -> None:
        """Build so many more instances, on one provider after another."""
        consumers = []
        for _ in range(count):
            provider = next(self._providers)
            instance = fixtures.Instance()
            self.host.claim(instance, {provider.uuid: {'resources': {VGPU: 1}}})
            consumers.append(values.Consumer(instance.uuid, {provider.uuid: {VGPU: 1}}, None, self._project,
                                             self._user, values.INSTANCE))
        for start in range(0, count, _TOGETHER):
            self.placement.direct.replace_allocations(consumers[start:start + _TOGETHER])

    def cordon(self) -> None:
        """Cordon the devices of one provider, which reserves them in placement."""
        kind, parent = self.host.manager._started().ledger.now.parents()[0]
        self.host.manager.operator.cordon(kind, parent, parent=True)


def run(effort: Effort) -> Table:
    below = effort.providers - 1
    room = 2 * effort.placed_instances // below + 2
    with contextlib.ExitStack() as stack:
        host = stack.enter_context(fixtures.Host(parents={f'card{number:03}': room for number in range(below)}))
        # A server of its own, so that no other instances count in these figures.
        server = stack.enter_context(placements.PlacementServer())
        world = World(host, stack.enter_context(placements.Placement(server)))
        rows = [_row('the first', world.report())]
        world.spawn(effort.placed_instances)
        rows.append(_row(f'{effort.placed_instances:,} instances came to all of them', world.report(),
                         of_those_that_changed=below))
        rows.append(_row('steady state', world.report(), at_most=1))
        world.reporter = world.another_process()
        rows.append(_row('steady state, of a process that started', world.report(),
                         of_those_that_changed=below + 1))
        world.spawn(1)
        rows.append(_row('one instance came', world.report(), of_those_that_changed=1))
        world.cordon()
        rows.append(_row('one parent is cordoned', world.report(), at_most=2))
    return Table(f'Reports to placement: {effort.providers} providers, {effort.placed_instances:,} instances', rows)


def _row(what: str, measured: tuple[int, int, float], at_most: float | None = None,
         of_those_that_changed: int | None = None) -> Row:
    """:param of_those_that_changed: the number of changed providers, each of which takes two more requests to read"""
    requests, writes, seconds = measured
    if of_those_that_changed is not None:
        at_most = 1 + 2 * of_those_that_changed
    return Row(what, requests, 'calls', at_most=at_most, note=f'{writes} write, {seconds * MILLISECONDS:,.0f} ms')
