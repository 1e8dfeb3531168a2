"""Operations on allocations while the placement server is down, or is started again between their requests."""

from __future__ import annotations

from concurrent import futures
import threading

import sqlalchemy as sa

from devicetrack.placement import errors
from devicetrack.placement.values import Outcome
from devicetrack.testing import database_servers
from devicetrack.testing import placement as placements
from devicetrack.tests import base
from devicetrack.tests.functional.placement import worlds


class TestServer(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.server = placements.PlacementServer.shared()
        self.cases = {**worlds.CASES, 'forced delete': worlds.FORCED}
        self.worlds = {name: self.useFixture(worlds.World(self.server)) for name in self.cases}
        for name, case in self.cases.items():
            case.prepare(self.worlds[name])

    def test_while_it_is_down_nothing_is_changed_and_afterwards_all_goes_on(self):
        outcomes = {'confirm': Outcome.PENDING, 'revert': Outcome.PENDING,
                    'spawn': Outcome.UNKNOWN, 'forced delete': Outcome.UNKNOWN}     # these write without a read
        self.server.stop()
        for name, case in self.cases.items():
            world = self.worlds[name]
            error = self.assertRaises(errors.PlacementUnavailable, case.call, world, world.client())
            self.assertEqual((name, outcomes.get(name, Outcome.UNCHANGED)), (name, error.result.outcome))
        self.server.start()
        for name, case in self.cases.items():
            world = self.worlds[name]
            self.assertEqual((name, case.before(world)), (name, world.held()))
            self.assertEqual((name, Outcome.DONE), (name, case.call(world, world.client()).outcome))
            self.assertEqual((name, case.after(world)), (name, world.held()))

    def test_started_again_before_it_writes(self):
        arrived = threading.Barrier(len(self.cases) + 1)
        started = threading.Event()

        def wait() -> None:
            arrived.wait(base.HANGS_S)
            started.wait(base.HANGS_S)

        with futures.ThreadPoolExecutor(len(self.cases)) as pool:
            running = {}
            for name, case in self.cases.items():
                world = self.worlds[name]
                world.proxy.before_next(*case.writes, wait)
                running[name] = pool.submit(case.call, world, world.client())
            arrived.wait(base.HANGS_S)                # all have read, none has written
            self.server.stop()
            self.server.start()
            started.set()
        for name, case in self.cases.items():
            self.assertEqual((name, Outcome.DONE), (name, running[name].result().outcome))
            self.assertEqual((name, case.after(self.worlds[name])), (name, self.worlds[name].held()))


class TestKilled(base.TestCase):
    """The server is killed in the middle of every write: it has made new consumers by then, and nothing of them."""

    def test_all_goes_on_when_it_is_started_again(self):
        database = database_servers.PostgreSQLServer.shared()
        server = placements.PlacementServer.shared(database)
        made = {name: self.useFixture(worlds.World(server)) for name in worlds.CASES}
        for name, case in worlds.CASES.items():
            case.prepare(made[name])
        engine = sa.create_engine(server.database_url, poolclass=sa.pool.NullPool)
        started = threading.Event()
        with futures.ThreadPoolExecutor(len(made)) as pool, engine.connect() as holding, engine.connect(
                ).execution_options(isolation_level='AUTOCOMMIT') as watching:
            self.addCleanup(started.set)
            holding.execute(sa.text('SELECT 1 FROM resource_providers FOR UPDATE'))     # each write ends with these
            running = {}
            for name, case in worlds.CASES.items():
                made[name].proxy.before_next(*case.writes, lambda world=made[name], case=case: world.proxy.before_next(
                    'GET', '/allocations/', lambda: started.wait(base.HANGS_S)))
                running[name] = pool.submit(case.call, made[name], made[name].client())
            while watching.scalar(sa.text('SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = :lock'),
                                  {'lock': 'Lock'}) < len(made):
                self.assertFalse(any(call.done() for call in running.values()))
            server.stop()
            holding.rollback()
            server.start()
            started.set()
        for name, case in worlds.CASES.items():
            self.assertEqual((name, Outcome.DONE), (name, running[name].result().outcome))
            self.assertEqual((name, case.after(made[name])), (name, made[name].held()))
