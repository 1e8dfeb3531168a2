"""Database servers for tests: the distribution's PostgreSQL and MariaDB.

A test process starts a server of each kind when a test first needs it, in a temporary directory and on a unix socket,
and stops it at the end of the process. If a test stops or kills a server, it must start its own:
``self.useFixture(database_servers.PostgreSQLServer())``. :mod:`devicetrack.testing.databases` has stores on these
servers.

A commit survives the end of the server and of the test process, but not a power failure. The servers write every commit
and do not wait for the disk, and their data is in memory if there is room. With ``durable=True`` the data is on the
disk, and commits wait for the disk as in production.

If a server is not installed, the test fails and says what to install. It does not skip.
"""

from __future__ import annotations

import abc
import atexit
import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import glob
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import threading
from typing import Any
from typing import ClassVar
from typing import Final
import uuid

import fixtures
import sqlalchemy as sa

from devicetrack.testing import scratch
from devicetrack.testing import stopping

# A limit for calls that hang. Calls that are only slow never take so long.
_START_TIMEOUT_S: Final = 900
_STOP_TIMEOUT_S: Final = 900

# The servers refuse to run as root, so they run as this user when the tests run as root. Every Debian has this user.
# The servers' own accounts come with packages that the tests do not need.
_UNPRIVILEGED: Final = 'nobody'


class ServerFailed(Exception):
    """A database server is not installed or did not start. The text says what to do."""


class Server(fixtures.Fixture, abc.ABC):
    """A database server of one test. :meth:`shared` returns the one that all tests of this process share.

    ``socket`` is the path of its unix socket, and ``password`` is the password of its only user, ``devicetrack``.
    :meth:`kill` ends the server as a crash would, and :meth:`stop` shuts it down. :meth:`start` starts it again on its
    data.

    The server gets a signal when the thread that started it ends, so a killed test process leaves no server behind.
    Start servers from the main thread.

    :param durable: a commit waits for the disk, and survives a power failure
    """

    user: Final = 'devicetrack'
    kind: ClassVar[str]
    package: ClassVar[str]                  # the distribution's package with the programs
    ready: ClassVar[str]                    # part of a line that the server logs when it answers
    stop_signal: ClassVar[signal.Signals]
    orphan_signal: ClassVar[str]            # as setpriv takes it

    _shared: ClassVar[dict[type[Server], Server]] = {}

    def __init__(self, durable: bool = False) -> None:
        super().__init__()
        self.durable = durable

    @classmethod
    def shared(cls) -> Server:
        """Return the server of this kind that the tests of this process share. The first call starts it."""
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
        self._templates: dict[Callable[[str], object], str] = {}
        self._account = pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self.directory = scratch.make(self.kind, self.durable)
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.data = os.path.join(self.directory, 'data')
        if os.geteuid() == 0:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        self._initialize()
        self._administrator = self._administrator_engine()
        self.addCleanup(self.kill)              # no test needs an orderly shutdown
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
        """The command that runs the server in the foreground and writes the log to stderr."""

    @abc.abstractmethod
    def url(self, database: str, host: str | None = None, port: int | None = None) -> sa.URL:
        """The URL of a database: through the unix socket, or through ``host`` and ``port``."""

    @property
    @abc.abstractmethod
    def _administration(self) -> str:
        """The database that an administrator connects to."""

    def _administrator_engine(self) -> sa.Engine:
        # One connection stays open: for a new one the servers take longer than for most statements.
        return sa.create_engine(self.url(self._administration), isolation_level='AUTOCOMMIT', pool_pre_ping=True)

    def administer(self, *statements: str) -> list[Any]:
        """Run statements as the server's administrator, each in a transaction of its own.

        :returns: the rows of the last statement
        """
        with self._administrator.connect() as connection:
            for statement in statements:
                result = connection.exec_driver_sql(statement)
            return list(result) if result.returns_rows else []

    def create_database(self) -> str:
        """Make an empty database.

        :returns: its name
        """
        name = f'test_{uuid.uuid4().hex}'
        self.administer(f'CREATE DATABASE {name}')
        return name

    def create_copy(self, fill: Callable[[str], object]) -> str:
        """Make a database with the tables and rows that ``fill`` makes in an empty one.

        :param fill: called with the URL of an empty database, once for each server. Later calls copy its result
        :returns: the name of the new database
        """
        if fill not in self._templates:
            template = self.create_database()
            fill(self.text_url(template))
            self._templates[fill] = template
        name = f'test_{uuid.uuid4().hex}'
        self._copy(self._templates[fill], name)
        return name

    @abc.abstractmethod
    def _copy(self, template: str, name: str) -> None:
        """Make a database with the tables and rows of another one."""

    def drop_database(self, name: str) -> None:
        self.administer(f'DROP DATABASE {name}')

    def text_url(self, database: str, host: str | None = None, port: int | None = None) -> str:
        """The URL with the password, as ``[devicetrack_database] connection`` takes it."""
        return self.url(database, host, port).render_as_string(hide_password=False)

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
        """Shut the server down. It tells its clients."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Kill the server and all its processes, as a crash does. None of them answers again. It may have ended."""
        if self._process is None:
            return
        children = below(self._process.pid)
        self._process.send_signal(signal.SIGSTOP)               # so it starts no more processes
        _signal(children, signal.SIGKILL)
        self._end(signal.SIGKILL)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop all processes of the server during the block. Connections stay open, but get no answer."""
        assert self._process is not None
        stopped = [self._process.pid, *below(self._process.pid)]
        try:
            for pid in stopped:
                stopping.stop(pid)
            yield
        finally:
            _signal(stopped, signal.SIGCONT)

    def processor_s(self) -> float:
        """The processor time of the server and of all processes that it has had, in seconds."""
        assert self._process is not None
        found = 0
        for pid in (self._process.pid, *below(self._process.pid)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):        # it has ended
                with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as file:
                    found += sum(map(int, file.read().rpartition(')')[2].split()[11:15]))
        return found / os.sysconf('SC_CLK_TCK')

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
        """The command under the server's account: the servers refuse to run as root."""
        if os.geteuid() == 0:
            options += ('--reuid', str(self._account.pw_uid), '--regid', str(self._account.pw_gid), '--clear-groups')
        return ['setpriv', *options, '--', *command] if options else command

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(self._as_account(command), cwd=self.directory, text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise ServerFailed(f'{command[0]} failed:\n{done.stdout}')

    def _program(self, name: str, *places: str) -> str:
        """The path of a program of the server, in its newest version."""
        found = [path for place in places for path in glob.glob(os.path.join(place, name))]
        if found:
            return max(found, key=lambda path: [int(part) for part in path.split('/') if part.isdigit()])
        on_path = shutil.which(name, path=os.environ.get('PATH', '') + ':/usr/sbin:/sbin')
        if on_path is None:
            raise ServerFailed(self._advice(f'there is no program {name}'))
        return on_path

    def _advice(self, what: str) -> str:
        return f'{self.kind} is not installed ({what}): run "make setup", or "apt-get install {self.package}"'


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):           # it has ended
            os.kill(pid, number)


def below(pid: int) -> list[int]:
    """The children of a process, and their children."""
    found = []
    for path in glob.iglob(f'/proc/{pid}/task/*/children'):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):    # the process or this thread has ended
            with open(path, encoding='ascii') as file:
                for child in map(int, file.read().split()):
                    found += [child, *below(child)]
    return found


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
                   # scram-sha-256 hashes each password 4,096 times at either end: half the cost of a connection.
                   '--auth', 'md5', '--encoding', 'UTF8', '--locale', 'C', '--no-sync'])

    def _command(self) -> list[str]:
        settings = {'listen_addresses': '', 'unix_socket_directories': self.directory,
                    'fsync': 'on' if self.durable else 'off', 'synchronous_commit': 'on', 'full_page_writes': 'on',
                    'max_connections': '200', 'shared_buffers': '32MB', 'lc_messages': 'C',
                    # In files of the data directory, so a killed server leaves nothing else behind.
                    'dynamic_shared_memory_type': 'mmap'}
        return [self._program('postgres', *self._PLACES), '-D', self.data,
                *(part for name, value in settings.items() for part in ('-c', f'{name}={value}'))]

    def url(self, database: str, host: str | None = None, port: int | None = None) -> sa.URL:
        return sa.URL.create('postgresql+psycopg2', self.user, self.password, host, port, database,
                             {} if host else {'host': self.directory})

    _administration = 'postgres'

    def _copy(self, template: str, name: str) -> None:
        self.administer(f'CREATE DATABASE {name} TEMPLATE {template}')

    def drop_database(self, name: str) -> None:
        self.administer(f'DROP DATABASE {name} WITH (FORCE)')


class PgBouncer(Server):
    """The distribution's pgbouncer in front of a PostgreSQL server, with the same account.

    :param server: the PostgreSQL server behind it
    :param mode: the option ``pool_mode``
    :param size: the connections to the server, for each database
    :param clients: as many connections it takes
    """

    kind = 'pgbouncer'
    package = 'pgbouncer'
    ready = 'process up'
    stop_signal = signal.SIGKILL            # since 1.23, SIGTERM waits until all clients have left
    orphan_signal = 'KILL'

    def __init__(self, server: Server, mode: str, size: int = 20, clients: int = 100) -> None:
        super().__init__()
        self._server, self._mode, self._size, self._clients = server, mode, size, clients

    @property
    def socket(self) -> str:
        return os.path.join(self.directory, '.s.PGSQL.6432')

    def _initialize(self) -> None:
        self.password = self._server.password
        self._options = os.path.join(self.directory, 'pgbouncer.ini')
        for path, text in (
                (f'{self._options}.users', f'"{self.user}" "{self.password}"\n'),
                (self._options, f'[databases]\n* = host={self._server.directory} port=5432\n[pgbouncer]\n'
                                f'unix_socket_dir={self.directory}\nauth_type=md5\nauth_file={self._options}.users\n'
                                f'pool_mode={self._mode}\ndefault_pool_size={self._size}\n'
                                f'max_client_conn={self._clients}\nadmin_users={self.user}\n')):
            with open(path, 'w') as written:
                written.write(text)
            os.chmod(path, 0o644)               # the directory is closed

    def _command(self) -> list[str]:
        return [self._program('pgbouncer'), self._options]

    def url(self, database: str, host: str | None = None, port: int | None = None) -> sa.URL:
        return self._server.url(database).set(port=6432, query={'host': self.directory})

    _administration = 'pgbouncer'

    def _copy(self, template: str, name: str) -> None:
        raise NotImplementedError('the server behind it makes databases')


# The server writes each commit, so the commit survives the server. Nothing waits for the disk.
_WITHOUT_THE_DISK: Final = ['--innodb-flush-log-at-trx-commit=2', '--innodb-flush-method=nosync', '--debug-no-sync',
                            '--innodb-log-file-size=16M']


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

    @property
    def _temporary(self) -> str:
        # Not /tmp: a server that starts removes all temporary tables there, also those of other servers.
        return f'--tmpdir={self.directory}'

    def _initialize(self) -> None:
        self._run([self._program('mariadb-install-db'), '--no-defaults', f'--datadir={self.data}', '--skip-test-db',
                   '--auth-root-authentication-method=normal', '--skip-name-resolve', self._temporary])
        self._first_statements = os.path.join(self.directory, 'first.sql')
        with open(self._first_statements, 'w') as written:
            written.write(f"CREATE USER IF NOT EXISTS {self.user}@'%' IDENTIFIED BY '{self.password}';\n"
                          f"GRANT ALL ON *.* TO {self.user}@'%' WITH GRANT OPTION;\n")
        os.chmod(self._first_statements, 0o644)

    def _command(self) -> list[str]:
        return [self._program('mariadbd'), '--no-defaults', f'--datadir={self.data}', f'--socket={self.socket}',
                self._temporary,
                f'--pid-file={self.directory}/pid', f'--init-file={self._first_statements}', '--skip-networking',
                *(['--innodb-flush-log-at-trx-commit=1'] if self.durable else _WITHOUT_THE_DISK),
                '--innodb-doublewrite=1', '--innodb-buffer-pool-size=32M', '--max-connections=200',
                '--skip-name-resolve',
                '--skip-ssl']               # 11.8 makes certificates, and a proxy must read the queries

    def url(self, database: str, host: str | None = None, port: int | None = None) -> sa.URL:
        # Without this, PyMySQL reads all certificates of the system for each connection: 45 ms.
        query = {'ssl_disabled': 'true'}
        return sa.URL.create('mysql+pymysql', self.user, self.password, host, port, database,
                             query if host else {**query, 'unix_socket': self.socket})

    _administration = 'mysql'

    def _copy(self, template: str, name: str) -> None:
        tables = [table for table, in self.administer(f'SHOW TABLES FROM {template}')]
        self.administer(f'CREATE DATABASE {name}',
                        *[f'CREATE TABLE {name}.{table} LIKE {template}.{table}' for table in tables],
                        *[f'INSERT INTO {name}.{table} SELECT * FROM {template}.{table}' for table in tables])
