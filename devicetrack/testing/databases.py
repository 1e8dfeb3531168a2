"""Stores on real databases, for tests of this project and of others.

Each fixture gives a test a store of its own, empty and with the current schema::

    class TestClaims(base.BaseTestCase):
        scenarios = databases.SCENARIOS             # sqlite, postgresql, mariadb

        def test_...(self):
            store = self.useFixture(self.database()).store

The servers are the distribution's. One of a kind is started for a test process when it is first needed, in a temporary
directory, on a unix socket, with full durability, and stopped when the process ends. A test that stops or kills a
server starts one for itself: ``self.useFixture(databases.PostgreSQLServer())``.

A server that is not installed makes the test fail and say what to install; it never skips.
"""

from __future__ import annotations

import abc
import atexit
import collections
import glob
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from typing import Any
from typing import ClassVar
from typing import Final
import uuid

import fixtures
from oslo_config import cfg
import sqlalchemy as sa

from devicetrack.conf import opts
from devicetrack.store import sql
from devicetrack.store.sql import schema
from devicetrack.store.sql.store import SQLStore

_START_TIMEOUT_S: Final = 120
_STOP_TIMEOUT_S: Final = 30

# Not the test's temporary directory, which other users may not enter; and not /tmp, which may be in memory, where
# durability would cost nothing and measure nothing.
_DIRECTORY: Final = '/var/tmp'


class ServerFailed(Exception):
    """A database server is not installed or did not start; the text says what to do."""


# -- servers ----------------------------------------------------------------------------------------------------------


# Who runs the servers when the tests run as root, which they refuse. The servers' own accounts are made by packages
# that tests do not need, and this one is on every Debian.
_UNPRIVILEGED: Final = 'nobody'


class Server(fixtures.Fixture, abc.ABC):
    """A database server of this test, or with :meth:`shared` the one of this process.

    ``socket`` is the path of its unix socket and ``password`` that of its only user, ``devicetrack``. :meth:`kill`
    ends it as a crash would, :meth:`stop` in order; :meth:`start` starts it again on the same data.

    The server gets a signal when the thread that started it ends, so a killed test process leaves none behind; start
    servers from the main thread.
    """

    user: Final = 'devicetrack'
    kind: ClassVar[str]
    package: ClassVar[str]                  # what has the programs
    ready: ClassVar[str]                    # what the server writes when it answers
    stop_signal: ClassVar[signal.Signals]
    orphan_signal: ClassVar[str]            # as setpriv takes it

    _shared: ClassVar[dict[type[Server], Server]] = {}

    @classmethod
    def shared(cls) -> Server:
        """The server of this kind that the tests of this process share; started at the first call."""
        server = Server._shared.get(cls)
        if server is None or server.process_id != os.getpid():
            server = Server._shared[cls] = cls()
            server.setUp()
            atexit.register(server._stop_at_exit)
        return server

    def _stop_at_exit(self) -> None:
        if self.process_id == os.getpid():      # and not in a forked child
            self.cleanUp()

    def _setUp(self) -> None:
        self.process_id = os.getpid()
        self.password = secrets.token_hex(8)
        self.log: collections.deque[str] = collections.deque(maxlen=200)
        self._process: subprocess.Popen[str] | None = None
        self._account = pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self.directory = tempfile.mkdtemp(prefix=f'devicetrack-{self.kind}-', dir=_DIRECTORY)
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.data = os.path.join(self.directory, 'data')
        if os.geteuid() == 0:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        self._initialize()
        self.addCleanup(self.kill)              # a test has no use for an orderly end
        self.start()

    @property
    @abc.abstractmethod
    def socket(self) -> str:
        """The path of the unix socket."""

    @abc.abstractmethod
    def _initialize(self) -> None:
        """Make the data directory."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """The server in the foreground, writing its log to stderr."""

    @abc.abstractmethod
    def url(self, database: str, host: str | None = None, port: int | None = None) -> sa.URL:
        """The URL of a database: through the unix socket, or through ``host`` and ``port``."""

    @abc.abstractmethod
    def administer(self, statement: str) -> list[Any]:
        """Run one statement as the server's administrator, outside of a transaction; gives its rows."""

    def create_database(self) -> str:
        """Make an empty database and give its name."""
        name = f'test_{uuid.uuid4().hex}'
        self.administer(f'CREATE DATABASE {name}')
        return name

    def drop_database(self, name: str) -> None:
        self.administer(f'DROP DATABASE {name}')

    def start(self) -> None:
        """Start the server and wait until it answers."""
        process = self._process = subprocess.Popen(
            self._as_account(self._command(), '--pdeathsig', self.orphan_signal), cwd=self.directory, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, errors='replace')
        answers = threading.Event()
        threading.Thread(target=self._read_log, args=(process, answers), daemon=True,
                         name=f'log of {self.kind}').start()
        if not answers.wait(_START_TIMEOUT_S) or process.poll() is not None:
            self.kill()
            raise ServerFailed(f'{self.kind} did not start:\n' + '\n'.join(self.log))

    def _read_log(self, process: subprocess.Popen[str], answers: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line.rstrip())
            if self.ready in line:
                answers.set()
        process.wait()
        answers.set()

    def stop(self) -> None:
        """Stop the server in order: it says goodbye to its clients."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Stop the server like a crash."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _as_account(self, command: list[str], *options: str) -> list[str]:
        """A command that runs as the server's account: the servers refuse root."""
        if os.geteuid() == 0:
            options += ('--reuid', str(self._account.pw_uid), '--regid', str(self._account.pw_gid), '--clear-groups')
        return ['setpriv', *options, '--', *command] if options else command

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(self._as_account(command), cwd=self.directory, text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise ServerFailed(f'{command[0]} failed:\n{done.stdout}')

    def _program(self, name: str, *places: str) -> str:
        """The path of one of the server's programs, of its newest version."""
        found = [path for place in places for path in glob.glob(os.path.join(place, name))]
        if found:
            return max(found, key=lambda path: [int(part) for part in path.split('/') if part.isdigit()])
        on_path = shutil.which(name, path=os.environ.get('PATH', '') + ':/usr/sbin:/sbin')
        if on_path is None:
            raise ServerFailed(self._advice(f'there is no program {name}'))
        return on_path

    def _advice(self, what: str) -> str:
        return f'{self.kind} is not installed ({what}): run "make setup", or "apt-get install {self.package}"'


class PostgreSQLServer(Server):
    """The distribution's PostgreSQL."""

    kind = 'PostgreSQL'
    package = 'postgresql'
    ready = 'database system is ready to accept connections'
    stop_signal = signal.SIGINT             # its fast shutdown
    orphan_signal = 'QUIT'                  # its immediate one; it ends its children too
    _PLACES: Final = ('/usr/lib/postgresql/*/bin',)

    @property
    def socket(self) -> str:
        return os.path.join(self.directory, '.s.PGSQL.5432')

    def _initialize(self) -> None:
        password_file = os.path.join(self.directory, 'password')
        with open(password_file, 'w') as written:
            written.write(self.password)
        os.chmod(password_file, 0o644)          # the directory is closed
        self._run([self._program('initdb', *self._PLACES), '-D', self.data, '-U', self.user, '--pwfile', password_file,
                   '--auth', 'scram-sha-256', '--encoding', 'UTF8', '--locale', 'C', '--no-sync'])

    def _command(self) -> list[str]:
        settings = {'listen_addresses': '', 'unix_socket_directories': self.directory, 'fsync': 'on',
                    'synchronous_commit': 'on', 'full_page_writes': 'on', 'max_connections': '200',
                    'shared_buffers': '32MB', 'lc_messages': 'C'}
        return [self._program('postgres', *self._PLACES), '-D', self.data,
                *(part for name, value in settings.items() for part in ('-c', f'{name}={value}'))]

    def url(self, database: str, host: str | None = None, port: int | None = None) -> sa.URL:
        return sa.URL.create('postgresql+psycopg2', self.user, self.password, host, port, database,
                             {} if host else {'host': self.directory})

    def administer(self, statement: str) -> list[Any]:
        return _administer(self.url('postgres'), statement)

    def drop_database(self, name: str) -> None:
        self.administer(f'DROP DATABASE {name} WITH (FORCE)')


class MariaDBServer(Server):
    """The distribution's MariaDB."""

    kind = 'MariaDB'
    package = 'mariadb-server'
    ready = 'ready for connections'
    stop_signal = signal.SIGTERM
    orphan_signal = 'KILL'

    @property
    def socket(self) -> str:
        return os.path.join(self.directory, 'socket')

    def _initialize(self) -> None:
        self._run([self._program('mariadb-install-db'), '--no-defaults', f'--datadir={self.data}', '--skip-test-db',
                   '--auth-root-authentication-method=normal', '--skip-name-resolve'])
        self._first_statements = os.path.join(self.directory, 'first.sql')
        with open(self._first_statements, 'w') as written:
            written.write(f"CREATE USER IF NOT EXISTS {self.user}@'%' IDENTIFIED BY '{self.password}';\n"
                          f"GRANT ALL ON *.* TO {self.user}@'%' WITH GRANT OPTION;\n")
        os.chmod(self._first_statements, 0o644)

    def _command(self) -> list[str]:
        return [self._program('mariadbd'), '--no-defaults', f'--datadir={self.data}', f'--socket={self.socket}',
                f'--pid-file={self.directory}/pid', f'--init-file={self._first_statements}', '--skip-networking',
                '--innodb-flush-log-at-trx-commit=1', '--innodb-doublewrite=1', '--innodb-buffer-pool-size=32M',
                '--max-connections=200', '--skip-name-resolve',
                '--skip-ssl']               # which 11.8 makes up certificates for; a proxy must see what passes

    def url(self, database: str, host: str | None = None, port: int | None = None) -> sa.URL:
        return sa.URL.create('mysql+pymysql', self.user, self.password, host, port, database,
                             {} if host else {'unix_socket': self.socket})

    def administer(self, statement: str) -> list[Any]:
        return _administer(self.url('mysql'), statement)


def _administer(url: sa.URL, statement: str) -> list[Any]:
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool, isolation_level='AUTOCOMMIT')
    with engine.connect() as connection:
        result = connection.exec_driver_sql(statement)
        return list(result) if result.returns_rows else []


# -- stores -----------------------------------------------------------------------------------------------------------


def configuration(**options: Any) -> cfg.ConfigOpts:
    """A configuration of this library's options with their defaults; ``options`` are of ``[devicetrack_database]``."""
    conf = cfg.ConfigOpts()
    opts.register_options(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    for name, value in options.items():
        conf.set_override(name, value, 'devicetrack_database')
    return conf


class StoreFixture(fixtures.Fixture, abc.ABC):
    """A store of one test: ``conf`` names it, ``store`` is opened on it. Empty, with the current schema.

    :param synced: False leaves the database without a schema (and an SQLite store without its file)
    :param options: further options of ``[devicetrack_database]``
    """

    def __init__(self, synced: bool = True, **options: Any) -> None:
        super().__init__()
        self._synced = synced
        self._options = options

    def _setUp(self) -> None:
        self.conf = self._make(self._options)
        self.store = self.open()
        if self._synced:
            schema.sync(self.store)

    @abc.abstractmethod
    def _make(self, options: dict[str, Any]) -> cfg.ConfigOpts:
        """Make the empty database and name it."""

    def open(self) -> SQLStore:
        """Open the store once more, as another process would; closed with the fixture."""
        store = sql.open_store(self.conf)
        self.addCleanup(store.close)
        return store


class SQLiteStore(StoreFixture):
    """A store in a file of its own."""

    def _make(self, options: dict[str, Any]) -> cfg.ConfigOpts:
        self.directory = tempfile.mkdtemp(prefix='devicetrack-sqlite-', dir=_DIRECTORY)
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.path = os.path.join(self.directory, 'state', 'devicetrack.sqlite')
        conf = configuration(**options)
        conf.set_override('state_path', os.path.dirname(self.path), 'devicetrack')
        return conf


class ServerStore(StoreFixture):
    """A store in a database of its own on a server.

    :param server: the server; None means the one that the tests of this process share
    """

    of: ClassVar[type[Server]]

    def __init__(self, synced: bool = True, server: Server | None = None, **options: Any) -> None:
        super().__init__(synced, **options)
        self._server = server

    def _make(self, options: dict[str, Any]) -> cfg.ConfigOpts:
        server = self.server = self._server or self.of.shared()
        self.database = server.create_database()
        if self._server is None:                # else the test's own server, which may be gone by then
            self.addCleanup(server.drop_database, self.database)
        return configuration(**{'connection': self.url().render_as_string(hide_password=False), **options})

    def url(self, host: str | None = None, port: int | None = None) -> sa.URL:
        """The database's URL, directly or through a proxy that listens at an address."""
        return self.server.url(self.database, host, port)

    def open_through(self, host: str, port: int, **options: Any) -> SQLStore:
        """Open the store through a proxy (:mod:`devicetrack.testing.proxy`); closed with the fixture."""
        store = sql.open_store(configuration(**{
            **self._options, 'connection': self.url(host, port).render_as_string(hide_password=False), **options}))
        self.addCleanup(store.close)
        return store


class PostgreSQLStore(ServerStore):
    """A store on PostgreSQL."""

    of = PostgreSQLServer


class MariaDBStore(ServerStore):
    """A store on MariaDB."""

    of = MariaDBServer


# For testscenarios: ``database`` is the fixture's class.
SCENARIOS: Final[list[tuple[str, dict[str, Any]]]] = [
    ('sqlite', {'database': SQLiteStore}),
    ('postgresql', {'database': PostgreSQLStore}),
    ('mariadb', {'database': MariaDBStore}),
]
SERVER_SCENARIOS: Final = SCENARIOS[1:]
