"""A real placement service, for tests of this project and of others.

::

    class TestReports(base.TestCase):
        def test_...(self):
            placement = self.useFixture(placements.Placement())         # on the server that all tests share
            root = placement.provider(VCPU=8)
            placement.client.get_inventories(root)
            self.assertEqual([('GET', f'/resource_providers/{root}/inventories')], placement.requests)

The server is placement's own WSGI application, unmodified, in its own process on a loopback port. If a package is not
installed, the test fails and says what to install. It does not skip.
"""

from __future__ import annotations

import atexit
import collections
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from typing import ClassVar
from typing import Final
import uuid

import fixtures
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import session as ks_session
from keystoneauth1 import token_endpoint
import requests

from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.testing import database_servers
from devicetrack.testing import http_proxy
from devicetrack.testing import scratch

TOKEN: Final = 'admin'                      # noauth2's name for the administrator

# A limit for calls that hang. Calls that are only slow never take so long.
_START_TIMEOUT_S: Final = 900
_REQUEST_TIMEOUT_S: Final = 900
_READY: Final = 'placement is ready'        # from placement_server


class PlacementServer(fixtures.Fixture):
    """A placement server of one test, with an empty database. :meth:`shared` returns one for all tests of this process.

    :param database: None for SQLite in memory, where requests run one at a time; or a database server, for example
        ``database_servers.PostgreSQLServer.shared()``
    :param options: options of the section ``[placement]`` of its configuration

    ``database_url`` names its database. ``address``, ``url`` and the data stay the same when the server stops and
    starts again. The system kills the server when the thread that started it ends. So start it from the main thread.
    """

    _shared: ClassVar[dict[str, PlacementServer]] = {}

    def __init__(self, database: database_servers.Server | None = None, **options: object) -> None:
        super().__init__()
        self._database, self._options = database, options

    @classmethod
    def shared(cls, database: database_servers.Server | None = None, **options: object) -> PlacementServer:
        """Return the server of this kind that the tests of this process share. Start it if it does not run.

        A test may stop it and start it again. The server also has the data of other tests.
        """
        kind = f'{database.kind if database is not None else "SQLite"} {sorted(options.items())}'
        server = cls._shared.get(kind)
        if server is None or server.process_id != os.getpid():
            server = cls._shared[kind] = cls(database, **options)
            server.setUp()
            atexit.register(server._stop_at_exit)
        elif server._process is None:
            server.start()
        return server

    def _stop_at_exit(self) -> None:
        if self.process_id == os.getpid():      # and not in a forked child
            self.cleanUp()

    def _setUp(self) -> None:
        if importlib.util.find_spec('placement') is None:
            raise database_servers.ServerFailed('openstack-placement is not installed: run "make setup", or '
                                                '"pip install openstack-placement"')
        self.process_id = os.getpid()
        self.log: collections.deque[str] = collections.deque(maxlen=200)
        self._process: subprocess.Popen[str] | None = None
        self.directory = scratch.make('placement')
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self._configure()
        # This socket is bound and does not listen: while the server is down, the port refuses connections, and no other
        # process gets it.
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(('127.0.0.1', 0))
        self.addCleanup(kept.close)
        self.address: tuple[str, int] = kept.getsockname()
        self.url = f'http://127.0.0.1:{self.address[1]}'
        self.addCleanup(self.stop)
        self.start()

    def _configure(self) -> None:
        if self._database is None:
            self.database_url = f'sqlite:///{self.directory}/placement.sqlite'
        else:
            name = self._database.create_database()
            self.addCleanup(self._database.drop_database, name)
            self.database_url = self._database.text_url(name)
        lines = ['[DEFAULT]', 'default_log_levels = placement.requestlog=WARNING',
                 '[api]', 'auth_strategy = noauth2',
                 '[placement_database]', f'connection = {self.database_url}', 'sync_on_startup = true',
                 'sqlite_synchronous = false',          # a killed process loses nothing by it
                 'max_overflow = 100',                  # a request takes two connections, and waits 30 s for the second
                 '[placement]', *(f'{name} = {value}' for name, value in self._options.items())]
        with open(os.path.join(self.directory, 'placement.conf'), 'w', encoding='utf-8') as file:
            file.write('\n'.join(lines) + '\n')

    def start(self) -> None:
        """Start the server and wait until it answers."""
        at_once = 'one' if self._database is None else 'many'
        process = self._process = subprocess.Popen(
            ['setpriv', '--pdeathsig', 'KILL', '--', sys.executable, '-m', 'devicetrack.testing.placement_server',
             str(self.address[1]), at_once],
            env={**os.environ, 'OS_PLACEMENT_CONFIG_DIR': self.directory}, text=True, errors='replace',
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        answers = threading.Event()
        threading.Thread(target=self._read_log, args=(process, answers), daemon=True, name='log of placement').start()
        if not answers.wait(_START_TIMEOUT_S) or process.poll() is not None:
            self.stop()
            raise database_servers.ServerFailed('placement did not start:\n' + '\n'.join(self.log))

    def _read_log(self, process: subprocess.Popen[str], answers: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self.log.append(line.rstrip())
                if _READY in line:
                    answers.set()
        process.wait()
        answers.set()

    def stop(self) -> None:
        """Kill the server. Committed data stays, and requests under way get no answer."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()


class Placement(fixtures.Fixture):
    """The access of one test to a placement server. It counts requests, and a test can lose or race them.

    :param server: the server; None means the one on SQLite that the tests of this process share

    ``url`` accepts the token ``TOKEN``, which has the roles ``admin`` and ``service``. ``client`` sends its requests
    through the ``proxy`` (:class:`~devicetrack.testing.http_proxy.HTTPProxy`). ``direct`` does not, and stands for all
    other clients.
    """

    def __init__(self, server: PlacementServer | None = None) -> None:
        super().__init__()
        self._given = server

    def _setUp(self) -> None:
        self.server = self._given or PlacementServer.shared()
        self.proxy = self.useFixture(http_proxy.HTTPProxy(self.server.address))
        self.url: str = self.proxy.url
        self.client = self.open(self.url)
        self.direct = self.open(self.server.url)

    @property
    def requests(self) -> list[tuple[str, str]]:
        """Method and path of every request that passed the proxy."""
        return self.proxy.requests

    def open(self, url: str) -> Client:
        """Make a client with its own session, as another process has."""
        http = requests.Session()
        http.trust_env = False              # else it looks for a proxy before every request
        self.addCleanup(http.close)
        session = ks_session.Session(token_endpoint.Token(url, TOKEN), session=http, timeout=_REQUEST_TIMEOUT_S)
        return Client(ks_adapter.Adapter(session, service_type='placement', connect_retries=1,
                                         connect_retry_delay=0.01))

    def provider(self, parent: str | None = None, name: str | None = None, **totals: int) -> str:
        """Make a provider with inventories and return its UUID."""
        made = str(uuid.uuid4())
        created = self.direct.create_provider(made, name or f'provider-{made}', parent)
        self.direct.put_inventories(made, created.generation, {
            resource_class: values.ClassInventory(total) for resource_class, total in totals.items()})
        return made
