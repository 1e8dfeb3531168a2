"""Stores on real databases, for tests of this project and of others.

Each fixture gives a test a store of its own, empty and with the current schema::

    class TestClaims(base.BaseTestCase):
        scenarios = databases.SCENARIOS             # sqlite, postgresql, mariadb

        def test_...(self):
            store = self.useFixture(self.database()).store

The schema migrations run once for each server of a test process. Every test gets a copy of the result.

The servers are those of :mod:`devicetrack.testing.database_servers`. A commit survives the end of the server and of the
test process, but not a power failure, unless the store is ``durable``.
"""

from __future__ import annotations

import abc
import functools
import os
import shutil
from typing import Any
from typing import ClassVar
from typing import Final

import fixtures
from oslo_config import cfg
import sqlalchemy as sa

from devicetrack.conf import opts
from devicetrack.store import sql
from devicetrack.store.sql import schema
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import database_servers
from devicetrack.testing import scratch

# A limit for calls that hang. Calls that are only slow never take so long.
_BUSY_TIMEOUT_S: Final = 600


def configuration(**options: Any) -> cfg.ConfigOpts:
    """Return this library's options with their defaults; ``options`` override those of ``[devicetrack_database]``."""
    conf = cfg.ConfigOpts()
    opts.register_options(conf)
    conf([], default_config_files=[], default_config_dirs=[], use_env=False)
    for name, value in options.items():
        conf.set_override(name, value, 'devicetrack_database')
    return conf


def open_store(conf: cfg.ConfigOpts) -> SQLStore:
    """Open a store as :func:`devicetrack.store.sql.open_store` does. It shares its compiled statements with others."""
    store = sql.open_store(conf)
    store.engine.update_execution_options(compiled_cache=_compiled)
    return store


class _Compiled(sa.util.LRUCache[Any, Any]):
    """SQLAlchemy's cache of compiled statements, for the stores of all tests.

    SQLAlchemy keeps a cache for each engine, and its keys contain the dialect object. Tests make thousands of engines,
    and all dialects of one class are alike.
    """

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((type(key[0]), *key[1:]), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__((type(key[0]), *key[1:]), value)


_compiled: Final = _Compiled(500)


class StoreFixture(fixtures.Fixture, abc.ABC):
    """An empty store of one test, with the current schema. ``conf`` names the store, and ``store`` is open.

    :param synced: False leaves the database without a schema (and an SQLite store without its file)
    :param durable: a commit waits for the disk, and survives a power failure
    :param options: options of ``[devicetrack_database]``. By default a transaction waits ten minutes for a lock
    """

    def __init__(self, synced: bool = True, durable: bool = False, **options: Any) -> None:
        super().__init__()
        self._synced = synced
        self._durable = durable
        self._options = {'busy_timeout_s': _BUSY_TIMEOUT_S, **options}

    def _setUp(self) -> None:
        self.conf = self._make(self._options)
        self.store = self.open()

    @abc.abstractmethod
    def _make(self, options: dict[str, Any]) -> cfg.ConfigOpts:
        """Make the database, and return a configuration that names it."""

    def open(self) -> SQLStore:
        """Open the store once more, as another process would. The fixture closes it at its end."""
        store = open_store(self.conf)
        self.addCleanup(store.close)
        return store


class SQLiteStore(StoreFixture):
    """A store in an SQLite file of its own."""

    def _make(self, options: dict[str, Any]) -> cfg.ConfigOpts:
        self.directory = scratch.make('SQLite', self._durable)
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.path = os.path.join(self.directory, 'state', 'devicetrack.sqlite')
        conf = configuration(**options)
        conf.set_override('state_path', os.path.dirname(self.path), 'devicetrack')
        if self._synced:
            os.mkdir(os.path.dirname(self.path), 0o700)
            write_empty_sqlite(self.path)
        return conf


def write_empty_sqlite(path: str) -> None:
    """Write the file of an empty SQLite store. The schema migrations run once in a process."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), 'wb') as file:
        file.write(_empty_sqlite())


@functools.cache
def _empty_sqlite() -> bytes:
    with SQLiteStore(synced=False) as made:
        schema.sync(made.store)
        made.store.close()
        with open(made.path, 'rb') as file:
            return file.read()


def _sync(url: str) -> None:
    store = sql.open_store(configuration(connection=url))
    schema.sync(store)
    store.close()


class ServerStore(StoreFixture):
    """A store in a database of its own on a server.

    :param server: the server; None means the one that the tests of this process share, or a new one if ``durable``
    """

    of: ClassVar[type[database_servers.Server]]

    def __init__(self, synced: bool = True, durable: bool = False, server: database_servers.Server | None = None,
                 **options: Any) -> None:
        super().__init__(synced, durable, **options)
        self._server = server

    def _make(self, options: dict[str, Any]) -> cfg.ConfigOpts:
        if self._durable and self._server is None:
            self._server = self.useFixture(self.of(durable=True))
        server = self.server = self._server or self.of.shared()
        self.database = server.create_copy(_sync) if self._synced else server.create_database()
        if self._server is None:                # a test's own server may be gone by then
            self.addCleanup(server.drop_database, self.database)
        return configuration(**{'connection': server.text_url(self.database), **options})

    def url(self, host: str | None = None, port: int | None = None) -> sa.URL:
        """The database's URL: through the unix socket, or through a proxy at ``host`` and ``port``."""
        return self.server.url(self.database, host, port)

    def open_through(self, host: str, port: int, **options: Any) -> SQLStore:
        """Open the store through a proxy (:mod:`devicetrack.testing.proxy`). The fixture closes it at its end."""
        store = open_store(configuration(**{
            **self._options, 'connection': self.server.text_url(self.database, host, port), **options}))
        self.addCleanup(store.close)
        return store


class PostgreSQLStore(ServerStore):
    """A store on PostgreSQL."""

    of = database_servers.PostgreSQLServer


class MariaDBStore(ServerStore):
    """A store on MariaDB."""

    of = database_servers.MariaDBServer


# For testscenarios: ``database`` is the fixture's class.
SCENARIOS: Final[list[tuple[str, dict[str, Any]]]] = [
    ('sqlite', {'database': SQLiteStore}),
    ('postgresql', {'database': PostgreSQLStore}),
    ('mariadb', {'database': MariaDBStore}),
]
SERVER_SCENARIOS: Final = SCENARIOS[1:]
