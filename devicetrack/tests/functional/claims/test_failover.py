"""A PostgreSQL primary that fails in the middle of claims, with a synchronous standby that takes over."""

from __future__ import annotations

import os
import threading
from typing import Any

from devicetrack import exception
from devicetrack.store import api
from devicetrack.testing import database_servers
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

_THREADS, _CLAIMS, _BEFORE = 8, 240, 20


class _Standby(database_servers.PostgreSQLServer):
    """A standby of a server, which has confirmed every commit of it from then on."""

    ready = 'database system is ready to accept'        # read-only connections

    def __init__(self, primary: database_servers.PostgreSQLServer) -> None:
        super().__init__()
        self._primary = primary

    def _initialize(self) -> None:
        self.password = self._primary.password
        self._run(['env', f'PGPASSWORD={self.password}', self._program('pg_basebackup', *self._PLACES), '-D', self.data,
                   '-R', '-X', 'stream', '-c', 'fast', '--no-sync', '-h', self._primary.directory, '-U', self.user])


class FailoverTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.primary = self.useFixture(database_servers.PostgreSQLServer())
        database = self.useFixture(databases.PostgreSQLStore(server=self.primary)).database
        self.standby = self.useFixture(_Standby(self.primary))
        self.primary.administer("ALTER SYSTEM SET synchronous_standby_names = '*'", 'SELECT pg_reload_conf()')
        while not self.primary.administer("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
            pass                                # the primary reads its configuration a moment later
        hosts = '&'.join(f'host={os.path.dirname(server.socket)}:5432' for server in (self.primary, self.standby))
        url = (f'postgresql+psycopg2://{self.primary.user}:{self.primary.password}@/{database}?{hosts}'
               '&target_session_attrs=read-write')
        self.only_the_standby = self.standby.text_url(database)
        self.configuration.set('devicetrack_database', connection=url)
        self.host = self.useFixture(fixtures.Host(
            devices=_CLAIMS + 1, configuration=self.configuration,
            store=databases.open_store(databases.configuration(connection=url))))

    def test_no_claim_is_lost_and_none_is_held_for_nobody(self) -> None:
        claimed: list[str] = []
        failed: list[Exception] = []
        instances = [Instance() for _claim in range(_CLAIMS)]
        enough = threading.Event()

        def claim_some(own: list[Instance]) -> None:
            for instance in own:
                try:
                    self.host.claim(instance, pmem=1)
                except (exception.OutcomeUnknown, exception.StoreUnavailable) as error:
                    failed.append(error)
                else:
                    claimed.append(instance.uuid)
                if len(claimed) >= _BEFORE:
                    enough.set()

        def fail_over() -> Any:
            enough.wait()
            self.primary.kill()
            return self.standby.administer('SELECT pg_promote()')

        calls: list[Any] = [lambda own=instances[thread::_THREADS]: claim_some(own) for thread in range(_THREADS)]
        self.assertEqual([*[None] * _THREADS, [(True,)]], self.together(*calls, fail_over))
        self.assertTrue(failed)                 # the server failed in the middle
        self.host.audit()
        self.host.audit()
        self.assertLessEqual(set(claimed), set(self.host.owners().values()))
        self.assertEqual(self.host.owners(), self.host.held())
        self.host.claim(Instance(), pmem=1)

    def test_a_standby_that_is_reached_by_mistake_says_that_it_is_one(self) -> None:
        for parameter in ('', '&target_session_attrs=read-write'):
            store = databases.open_store(databases.configuration(connection=f'{self.only_the_standby}{parameter}'))
            self.addCleanup(store.close)
            error = self.assertRaises(
                exception.StoreUnavailable, store.add_host, api.Host('another', 'compute-2', 'digest'))
            self.assertIn('if this server is a standby', error.reason)
