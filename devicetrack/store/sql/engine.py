"""Makes the engine of a store from its options, on oslo.db.

Stores share nothing, and nothing is global: no enginefacade, no default transaction context. One process may have
several stores open.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
import re
import sqlite3
import threading
from typing import Any
from typing import Final
from typing import NamedTuple
import urllib.parse

from oslo_config import cfg
from oslo_db.sqlalchemy import engines
import sqlalchemy as sa
from sqlalchemy import dialects
from sqlalchemy import engine as sa_engine
from sqlalchemy import exc as sa_exc

from devicetrack import exception
from devicetrack import ownfiles
from devicetrack.conf import manager as manager_conf
from devicetrack.conf import store as store_conf
from devicetrack.store.sql import backend as backends
from devicetrack.store.sql import mariadb
from devicetrack.store.sql import sqlite

FILE_NAME: Final = 'devicetrack.sqlite'

# An execution option of connections whose transactions will write.
WRITES: Final = 'devicetrack_writes'

# The end of a password and the path of the URL, which SQLAlchemy takes for the name of a database. The name itself may
# have an @, too.
_IN_PASSWORD: Final = re.compile('@.*/')

_SEVERAL_HOSTS: Final = ('several hosts of PostgreSQL are given as '
                         '@/DATABASE?host=A:PORT&host=B:PORT&target_session_attrs=read-write')

# After this time the kernel begins to ask the host of a silent server whether it is there.
_SILENCE_S: Final = 30


class Location(NamedTuple):
    """Where a store is.

    ``name`` is for messages and holds no user name and no password; ``path`` is the file of an SQLite store. ``option``
    is the one that says where it is.
    """

    url: sa.URL
    name: str
    path: str | None
    option: str


def place(conf: cfg.ConfigOpts, state_path: str | None = None, group: str = store_conf.GROUP) -> Location:
    """Read the options.

    :param state_path: where the file is when no option names a database, by default ``[devicetrack] state_path``
    :param group: the group of options whose ``connection`` names the database
    :raises InvalidConfiguration: an option cannot be used, the URL is malformed, or names a database that this library
        does not know
    """
    manager_conf.register(conf)
    store_conf.register(conf)
    option, connection = f'[{group}] connection', conf[group].connection
    if not connection:
        return _file(os.path.join(state_path or conf[manager_conf.GROUP].state_path, FILE_NAME), conf, option)
    try:
        url = sa.make_url(connection)
    except (sa_exc.ArgumentError, ValueError):
        # The URL is neither shown nor chained: it may hold a password.
        raise exception.InvalidConfiguration(
            option, '(not shown)', f'it is no SQLAlchemy URL; {_SEVERAL_HOSTS}') from None
    if '@' in (url.host or '') or (url.get_backend_name() != 'sqlite' and _IN_PASSWORD.search(url.database or '')):
        # SQLAlchemy ends the password at the first @, and takes the rest of it for a part of the host, or with a slash
        # for one of the database.
        raise exception.InvalidConfiguration(option, '(not shown)', 'write @ in a password as %40')
    shown = url.set(username=None, password=None, query={}).render_as_string(hide_password=True)
    driver = url.drivername
    if driver in ('sqlite', 'sqlite+pysqlite'):
        if not url.database or url.database == ':memory:' or url.query:
            raise exception.InvalidConfiguration(
                option, shown, 'a store is a file: give it as sqlite:///PATH, without parameters')
        if not os.path.isabs(url.database):
            raise exception.InvalidConfiguration(option, shown, 'the path must be absolute: a service starts in any '
                                                                'directory')
        return _file(url.database, conf, option)
    several = ',' in (url.host or '') or not isinstance(url.query.get('host', ''), str)
    if driver in ('postgresql', 'postgresql+psycopg2'):
        if url.host and (several or 'host' in url.query):
            raise exception.InvalidConfiguration(option, shown, _SEVERAL_HOSTS)
        return Location(_postgresql_url(url, conf), _server_name('PostgreSQL', url), None, option)
    if driver in ('mysql+pymysql', 'mariadb+pymysql'):
        if several:
            raise exception.InvalidConfiguration(
                option, shown, 'PyMySQL connects to one host: name an address that moves with the server that takes '
                               'writes')
        return Location(_mariadb_url(url, conf), _server_name('MariaDB', url), None, option)
    raise exception.InvalidConfiguration(
        option, shown, 'it must start with sqlite://, postgresql+psycopg2:// or mysql+pymysql://')


def _file(path: str, conf: cfg.ConfigOpts, option: str) -> Location:
    # SQLite takes what follows two slashes for the name of a machine.
    path = '/' + os.path.abspath(path).lstrip('/')
    options = conf[store_conf.GROUP]
    url = sa.URL.create('sqlite', database='file:' + urllib.parse.quote(path), query={
        'uri': 'true',
        'mode': 'rw',               # a missing file is an error, not an empty store
        'timeout': str(options.busy_timeout_s),
        'plugin': KeptConnections.name,
        KeptConnections.size: str(options.max_pool_size),
        KeptConnections.timeout_s: str(options.busy_timeout_s),
    })
    return Location(url, f'SQLite file {path}', path, option)


def _postgresql_url(url: sa.URL, conf: cfg.ConfigOpts) -> sa.URL:
    # For a server that has lost its power or its network. The backend deals with one that hangs.
    defaults = {'connect_timeout': str(conf[store_conf.GROUP].connect_timeout_s), 'keepalives_idle': str(_SILENCE_S),
                'keepalives_interval': '10', 'keepalives_count': '3',
                'tcp_user_timeout': str(2 * _SILENCE_S * 1000)}
    return _of_server(url.set(drivername='postgresql+psycopg2', query={**defaults, **url.query}))


def _mariadb_url(url: sa.URL, conf: cfg.ConfigOpts) -> sa.URL:
    defaults = {'charset': 'utf8mb4', 'connect_timeout': str(conf[store_conf.GROUP].connect_timeout_s)}
    # SQLAlchemy and oslo.db ask the server whether it is MariaDB or MySQL; their dialect for both is called mysql.
    return _of_server(url.set(drivername='mysql+pymysql', query={**defaults, **url.query}))


class ServerConnections(sa_engine.CreateEnginePlugin):
    """Takes a URL's account out of the errors of its engine, and saves the pool's round trips.

    oslo.db logs errors that it does not know, with their tracebacks. SQLAlchemy calls listeners for errors in the order
    in which they were added, and those of a plugin come before those of oslo.db.
    """

    name: Final = 'devicetrack_server'

    def __init__(self, url: sa.URL, kwargs: dict[str, Any]) -> None:
        super().__init__(url, kwargs)
        self._account = backends.Account(url)
        kwargs.update(
            pool_use_lifo=True,                 # so that the server's idle timeout ends those that are not needed
            pool_reset_on_return=None)          # every use ends its transaction, or closes the connection

    def update_url(self, url: sa.URL) -> sa.URL:
        return url                              # SQLAlchemy takes out the name of the plugin

    def engine_created(self, engine: sa.Engine) -> None:
        @sa.event.listens_for(engine, 'handle_error')
        def hide(context: sa.ExceptionContext) -> None:
            self._account.hide(context.original_exception)
            self._account.hide(context.sqlalchemy_exception)


dialects.plugins.register(ServerConnections.name, __name__, ServerConnections.__name__)


def _of_server(url: sa.URL) -> sa.URL:
    return url.update_query_pairs([('plugin', ServerConnections.name)], append=True)


def _server_name(kind: str, url: sa.URL) -> str:
    where = url.host or url.query.get('host') or url.query.get('unix_socket') or 'the local socket'
    if not isinstance(where, str):
        where = ','.join(where)
    port = f':{url.port}' if url.port else ''
    return f'{kind} database {url.database or "(none)"} at {where}{port}'


def create(at: Location, conf: cfg.ConfigOpts,
           statement_s: int | None = None) -> tuple[sa.Engine, backends.Backend]:
    """Make the engine and its backend. Nothing is connected yet.

    :param statement_s: how long a server may take for a statement, beside its waits for locks; by default as an option
        says
    :raises InvalidConfiguration: the driver of the database is not installed
    """
    options = conf[store_conf.GROUP]
    try:
        made = engines.create_engine(
            at.url,
            max_pool_size=options.max_pool_size,
            max_overflow=0,
            pool_timeout=options.busy_timeout_s,
            mysql_sql_mode='TRADITIONAL',
            connection_debug=-1,                # the levels of loggers belong to the application
            max_retries=0,                      # connect when asked to, not now
            thread_checkin=False)               # it sleeps at every return to the pool, for eventlet's sake
    except ImportError as error:
        extra = at.url.get_backend_name()
        raise exception.InvalidConfiguration(
            at.option, at.name, f'its driver is not installed: pip install devicetrack[{extra}]') from error
    # Errors go to logs, which need not show values of rows.
    made.hide_parameters = True
    patience = backends.Timeouts(options.busy_timeout_s, options.busy_timeout_s + (
        options.statement_timeout_s if statement_s is None else statement_s))
    backend = _BACKENDS[made.dialect.name](made, patience)
    arguments = backend.connect_arguments()

    @sa.event.listens_for(made, 'do_connect')
    def with_arguments(_dialect: Any, _record: Any, _args: Any, named: dict[str, Any]) -> None:
        named.update({**arguments, **named})    # the URL counts more

    @sa.event.listens_for(made, 'connect')
    def prepare(connection: Any, record: Any) -> None:
        backend.prepare(connection)

    if at.path is not None:
        _watch_file(made, at.path)
    return made, backend


def _postgresql(made: sa.Engine, patience: backends.Timeouts) -> backends.Backend:
    # SQLAlchemy's dialect loads all of its drivers, which takes as long as half of this library.
    from devicetrack.store.sql import postgresql
    return postgresql.PostgreSQL(made, patience)


_BACKENDS: Final[dict[str, Callable[[sa.Engine, backends.Timeouts], backends.Backend]]] = {
    'sqlite': sqlite.SQLite, 'postgresql': _postgresql, 'mysql': mariadb.MariaDB}


# -- SQLite -----------------------------------------------------------------------------------------------------------

# The number of open connections to each file, by the process that opened them. SQLite notes in memory which locks it
# has on a file. A forked child inherits the notes but not the locks, so it must not open a file that was open at the
# fork.
_open_files: dict[str, dict[int, int]] = {}
_open_files_lock = threading.RLock()            # a signal handler may come in the middle
os.register_at_fork(before=_open_files_lock.acquire, after_in_parent=_open_files_lock.release,
                    after_in_child=_open_files_lock.release)


class OpenInParent(OSError):
    """A forked child cannot use an SQLite file that its parent had open when it forked."""


class KeptConnections(sa_engine.CreateEnginePlugin):
    """Keeps connections to an SQLite file open, as a server's pool does.

    oslo.db opens the file for each use, whatever pool it is asked for, and opening takes longer than reading. In
    SQLAlchemy a plugin that the URL names can change an engine that somebody else makes.
    """

    name: Final = 'devicetrack_kept'
    # Parameters of the URL.
    size: Final = 'kept_connections'
    timeout_s: Final = 'kept_timeout_s'

    def __init__(self, url: sa.URL, kwargs: dict[str, Any]) -> None:
        super().__init__(url, kwargs)
        kwargs.update(
            poolclass=sa.pool.QueuePool,
            pool_size=int(str(url.query[self.size])),
            max_overflow=0,
            pool_timeout=float(str(url.query[self.timeout_s])),
            pool_pre_ping=False)                # no server can be gone; for the file see _watch_file

    def update_url(self, url: sa.URL) -> sa.URL:
        return url.difference_update_query([self.size, self.timeout_s])

    def engine_created(self, engine: sa.Engine) -> None:
        # oslo.db listens too, but later. It sends a plain BEGIN as a statement of SQLAlchemy, which takes a third of
        # the time of most of our reads, and it does so only where its mark is missing.
        sa.event.listen(engine, 'begin', _begin)
        sa.event.listen(engine, 'handle_error', _stays_connected)


_BEGUN: Final = 'in_transaction'                # oslo.db's mark; it takes the mark away when the transaction ends


def _begin(connection: sa.Connection) -> None:
    """Begin a transaction. One that will write takes the lock at once: after a read it would not wait for the lock."""
    if _BEGUN not in connection.info:
        driver_connection: Any = connection.connection.dbapi_connection
        driver_connection.execute('BEGIN IMMEDIATE' if connection.get_execution_options().get(WRITES) else 'BEGIN')
        connection.info[_BEGUN] = True


def _stays_connected(context: sa.ExceptionContext) -> None:
    """Let an interrupt close its cursor. SQLAlchemy would drop the connection as a server's, its transaction open."""
    context.is_disconnect = False


dialects.plugins.register(KeptConnections.name, __name__, KeptConnections.__name__)

_FILE: Final = 'devicetrack_file'               # the file that a kept connection has open


def _file_at(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _watch_file(made: sa.Engine, path: str) -> None:
    @sa.event.listens_for(made, 'do_connect')
    def about_to_connect(_dialect: Any, record: Any, *_args: Any) -> None:
        with _open_files_lock:
            owners = _open_files.setdefault(path, {})
            if any(pid != os.getpid() for pid in owners):
                raise OpenInParent(f'{path} was open when this process was forked')
        # Noted before the file is opened. If another file takes its place in between, the pool connects once too often.
        record.info[_FILE] = _file_at(path)
        # SQLite opens its log and its index beside the file, so the directory counts too.
        if record.info[_FILE] is not None:
            ownfiles.check_directory(os.path.dirname(path))
            ownfiles.check_file(path)

    @sa.event.listens_for(made, 'checkout')
    def see_that_it_is_the_file(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info[_FILE] != _file_at(path):
            raise sa_exc.DisconnectionError(f'{path} was removed or replaced')      # makes the pool connect again

    @sa.event.listens_for(made, 'connect')
    def connected(*_args: Any) -> None:
        with _open_files_lock:
            owners = _open_files.setdefault(path, {})
            owners[os.getpid()] = owners.get(os.getpid(), 0) + 1

    @sa.event.listens_for(made, 'close')
    def about_to_close(connection: Any, _record: Any) -> None:
        # SQLite keeps the transaction of a closed connection while anybody has a cursor of it, as a traceback may.
        with contextlib.suppress(sqlite3.Error):
            connection.rollback()
        with _open_files_lock:
            owners = _open_files.get(path, {})
            left = owners.get(os.getpid(), 0) - 1
            if left > 0:
                owners[os.getpid()] = left
            else:
                owners.pop(os.getpid(), None)
