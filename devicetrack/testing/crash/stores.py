"""The stores of a run. The kit empties them before the run, reads them from outside, and cuts processes off from them.

A separate process, the attendant, does all of this, because a process that forks users of a store must not have the
store open.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Iterable
import contextlib
import multiprocessing
import os
import signal
import sqlite3
import types
from typing import Any
from typing import Final
from typing import NamedTuple

import sqlalchemy as sa

from devicetrack.store.api import Host
from devicetrack.store.sql import models
from devicetrack.store.sql import open_store
from devicetrack.testing import databases
from devicetrack.testing import proxy as proxies

# The rows of every store, by the store's name ('' for one that all hosts share) and then by table.
Contents = dict[str, dict[str, list[tuple[Any, ...]]]]


class Server(NamedTuple):
    """A database on a server, and the ways to reach it."""

    kind: str                               # as a :class:`~devicetrack.testing.database_servers.Server` calls itself
    socket: str
    url: str
    proxied: str                            # the URL, with HOST for the host and 1 for the port


class Stores(abc.ABC):
    """The stores of one run after another."""

    kind: str
    cuts_for_real = False                   # it cuts connections; else the process refuses its own calls

    @abc.abstractmethod
    def reset(self, state_paths: dict[str, str]) -> None:
        """Empty every store.

        :param state_paths: the state directories by host
        """

    @abc.abstractmethod
    def url(self) -> str | None:
        """The ``[devicetrack_database] connection`` of a process that starts now, or None for the default."""

    @abc.abstractmethod
    def read(self) -> Contents:
        """Read all rows of every store."""

    def lose_answer(self) -> None:
        """Cut the connection of the next COMMIT after the server has carried it out."""

    def cut(self) -> None:
        """Cut every open connection, and refuse new ones."""

    def mend(self) -> None:
        """Accept connections again."""

    def route(self, through_proxy: bool) -> None:
        """Say whether processes that start from now on can be cut off."""

    def close(self) -> None:
        """End the attendant."""


class SQLiteStores(Stores):
    """A file for each host."""

    kind = 'SQLite'

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}
        self._attendant = _Attendant(_read_files)

    def reset(self, state_paths: dict[str, str]) -> None:
        self._paths = {host: os.path.join(path, 'devicetrack.sqlite') for host, path in state_paths.items()}
        for path in self._paths.values():
            for ending in ('-wal', '-shm'):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path + ending)
            databases.write_empty_sqlite(path)

    def url(self) -> None:
        return None

    def read(self) -> Contents:
        contents: Contents = self._attendant.ask(self._paths)
        return contents

    def close(self) -> None:
        self._attendant.end()


class ServerStores(Stores):
    """One database on a server. All hosts share it."""

    cuts_for_real = True

    def __init__(self, server: Server) -> None:
        self.kind = server.kind
        self._server = server
        self._attendant = _Attendant(_ServerSide(server))
        host, port = self._attendant.ask('address')
        self._proxied = server.proxied.replace('HOST:1/', f'{host}:{port}/')
        self._through_proxy = False
        # This does not connect. Forked processes inherit the modules that a connection needs.
        open_store(databases.configuration(connection=server.url)).close()

    def reset(self, state_paths: dict[str, str]) -> None:
        self._attendant.ask('reset')

    def url(self) -> str:
        return self._proxied if self._through_proxy else self._server.url

    def read(self) -> Contents:
        contents: Contents = self._attendant.ask('read')
        return contents

    def lose_answer(self) -> None:
        self._attendant.ask('lose_answer')

    def cut(self) -> None:
        self._attendant.ask('cut')

    def mend(self) -> None:
        self._attendant.ask('mend')

    def route(self, through_proxy: bool) -> None:
        self._through_proxy = through_proxy

    def close(self) -> None:
        self._attendant.end()


# -- the attendant ----------------------------------------------------------------------------------------------------


class _Attendant:
    """A process that answers questions until its line is closed."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._line, theirs = multiprocessing.Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            _attend(theirs, answer)
        theirs.close()

    def ask(self, question: Any) -> Any:
        self._line.send(question)
        fine, answer = self._line.recv()
        if not fine:
            raise RuntimeError(f'the attendant of the stores: {answer}')
        return answer

    def end(self) -> None:
        self._line.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _attend(line: Any, answer: Callable[[Any], Any]) -> None:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            question = line.recv()
            try:
                line.send((True, answer(question)))
            except Exception as error:
                line.send((False, f'{type(error).__name__}: {error}'))
    except EOFError:
        pass
    finally:
        os._exit(0)


_SELECTS: Final = {table.name: str(sa.select(table).order_by(*table.primary_key))
                   for table in models.metadata.sorted_tables}


def _tables(execute: Callable[[str], Iterable[Any]]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: [tuple(row) for row in execute(select)] for name, select in _SELECTS.items()}


def _read_files(paths: dict[str, str]) -> Contents:
    contents = {}
    for host, path in paths.items():
        with contextlib.closing(sqlite3.connect(path)) as connection:
            contents[host] = _tables(connection.execute)
    return contents


_NOWHERE: Final = '/nowhere'


class _ServerSide:
    """The attendant of a server's database. It has a connection, and a proxy for the connections that it will cut."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._engine: sa.Engine | None = None

    def __call__(self, question: str) -> Any:
        if self._engine is None:            # here, in the attendant
            self._engine = sa.create_engine(self._server.url, isolation_level='AUTOCOMMIT', pool_pre_ping=True)
            self._target: Any = types.SimpleNamespace(kind=self._server.kind, socket=self._server.socket)
            target: Any = self._target
            self._proxy = proxies.CommitProxy(target)
            self._proxy.setUp()
        return getattr(self, f'_{question}')()

    def _address(self) -> tuple[str, int]:
        return self._proxy.address

    def _read(self) -> Contents:
        assert self._engine is not None
        with self._engine.connect() as connection:
            return {'': _tables(connection.exec_driver_sql)}

    def _reset(self) -> None:
        assert self._engine is not None
        self._mend()
        with self._engine.connect() as connection:
            for table in reversed(models.metadata.sorted_tables):
                connection.execute(sa.delete(table))

    def _lose_answer(self) -> None:
        self._proxy.at_next_commit(proxies.Action.LOSE_ANSWER)

    def _cut(self) -> None:
        self._target.socket = _NOWHERE      # new connections are refused from now on
        self._proxy.cut_idle()

    def _mend(self) -> None:
        self._target.socket = self._server.socket


def server_of(database: Any) -> Server:
    """The facts about a :class:`~devicetrack.testing.databases.ServerStore` that a process needs. pickle takes them."""
    server, name = database.server, database.database
    return Server(server.kind, server.socket, server.text_url(name), server.text_url(name, 'HOST', 1))


def rows_of(contents: Contents) -> Iterable[tuple[str, str, tuple[Any, ...]]]:
    """Every row that may influence a start, with the names of its store and its table.

    The rows of hosts come without the epoch: every start raises it, and it matters only while an older manager lives.
    Events are left out: they contain times, which differ from run to run.
    """
    epoch = Host._fields.index('epoch')
    for store, tables in contents.items():
        for table, rows in tables.items():
            for row in rows if table != 'events' else ():
                yield store, table, row if table != 'hosts' else (*row[:epoch], *row[epoch + 1:])
