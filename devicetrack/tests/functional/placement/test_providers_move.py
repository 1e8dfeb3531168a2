"""Operations on allocations when the server itself meets a change of a provider and says so.

It tries again by itself before it does, so it is told to try once, and the change is committed while it waits for it.
"""

from __future__ import annotations

import threading

import sqlalchemy as sa
from testtools import matchers

from devicetrack.placement import errors
from devicetrack.placement.allocations import Policy
from devicetrack.placement.values import Outcome
from devicetrack.testing import database_servers
from devicetrack.testing import placement as placements
from devicetrack.tests import base
from devicetrack.tests.functional.placement import worlds


class TestProviderMoves(base.TestCase):

    scenarios = [(name, {'case': case}) for name, case in worlds.CASES.items()]
    case: worlds.Case

    def setUp(self) -> None:
        super().setUp()
        server = placements.PlacementServer.shared(database_servers.PostgreSQLServer.shared(),
                                                   allocation_conflict_retry_count=1)
        self.world = self.useFixture(worlds.World(server))
        self.case.prepare(self.world)
        self.engine = sa.create_engine(server.database_url, poolclass=sa.pool.NullPool)
        self.world.proxy.before_next(*self.case.writes, self.somebody_changes_both_providers)

    def somebody_changes_both_providers(self) -> None:
        """Begin to, and commit when the server waits for it."""
        connection = self.engine.connect()
        connection.execute(sa.text('UPDATE resource_providers SET generation = generation + 1 WHERE uuid IN (:a, :b)'),
                           {'a': self.world.source, 'b': self.world.dest})
        over = threading.Event()
        waiting = threading.Thread(target=self.commit_when_awaited, args=(connection, over))
        waiting.start()
        self.addCleanup(waiting.join, base.HANGS_S)
        self.addCleanup(over.set)

    def commit_when_awaited(self, connection: sa.Connection, over: threading.Event) -> None:
        with self.engine.connect().execution_options(isolation_level='AUTOCOMMIT') as watching:
            while not watching.scalar(sa.text('SELECT count(*) FROM pg_locks WHERE NOT granted')):
                if over.is_set():
                    break
        connection.commit()
        connection.close()

    def test_the_operation_fails_and_leaves_all_as_it_was(self):
        error = self.assertRaises(errors.ProviderConflict, self.case.call, self.world, self.world.client())
        self.assertEqual(Outcome.PENDING if self.case.ends_move else Outcome.UNCHANGED, error.result.outcome)
        self.assertEqual(self.case.before(self.world), self.world.held())
        self.assertThat({self.world.source, self.world.dest}, matchers.ContainsAll(error.providers))

    def test_it_is_repeated(self):
        result = self.case.call(self.world, self.world.client(Policy.RETRY))
        self.assertEqual((Outcome.DONE, self.case.after(self.world)), (result.outcome, self.world.held()))
