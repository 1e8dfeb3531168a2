"""A proxy in front of a database. It breaks connections exactly at a COMMIT.

::

    database = self.useFixture(databases.PostgreSQLStore())
    proxy = self.useFixture(proxies.CommitProxy(database.server))
    store = database.open_through(*proxy.address)
    proxy.at_next_commit(proxies.Action.HOLD)
    self.assertRaises(exception.OutcomeUnknown, store.write, changes)       # cut off; the COMMIT has not arrived
    ...
    proxy.deliver()                                                         # now it arrives

The proxy understands just enough of the protocols of PostgreSQL and MariaDB to find the text of a query.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from typing import Final

import fixtures

from devicetrack.testing import database_servers

# A limit for calls that hang. Calls that are only slow never take so long.
_TIMEOUT_S: Final = 900


class Action(enum.Enum):
    """What the proxy does to the client's connection and to the COMMIT."""

    LOSE_ANSWER = 'the server commits, and the client is cut off before it gets the answer'
    HOLD = 'the proxy keeps the COMMIT and cuts the client off; deliver() sends the COMMIT later'
    DROP = 'the proxy drops the COMMIT and cuts both ends off; the server rolls back'
    CUT = 'for a statement before any COMMIT: the proxy drops it and cuts both ends off'


class CommitProxy(fixtures.Fixture):
    """Listens on a loopback port (``address``) and passes connections on to a server's unix socket.

    An action is for one COMMIT or statement, on the connection that sends it first. Everything else passes unchanged.
    The servers of :mod:`devicetrack.testing.database_servers` refuse TLS on a unix socket, so clients must not use it.
    """

    def __init__(self, server: database_servers.Server) -> None:
        super().__init__()
        self._server = server

    def _setUp(self) -> None:
        self._lock = threading.Lock()
        self._at_commit: Action | None = None
        self._at_statement: bytes | None = None
        self._sessions: list[_Session] = []
        self._held: list[_Session] = []
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.addCleanup(self._close)
        self._acceptor = threading.Thread(target=self._accept, daemon=True, name='proxy')
        self._acceptor.start()

    def at_next_commit(self, action: Action) -> None:
        """Stage an action for the next COMMIT."""
        with self._lock:
            self._at_commit = action

    def cut_at_next(self, word: str) -> None:
        """Cut both ends off when a query with this word arrives. The server does not get the query."""
        with self._lock:
            self._at_statement = word.encode()

    def deliver(self) -> None:
        """Send the COMMIT that the proxy has kept, and wait for the server's answer."""
        with self._lock:
            held, self._held = self._held, []
        for session in held:
            session.deliver()

    def cut_idle(self) -> None:
        """Cut every open connection, as a restart of the database would."""
        with self._lock:
            sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.cut()

    def action_for(self, session: _Session, query: bytes) -> Action | None:
        """Return the action for this query and forget it, or return None."""
        with self._lock:
            if self._at_statement is not None and self._at_statement in query:
                self._at_statement = None
                return Action.CUT
            if query.strip(b'; \n').upper() != b'COMMIT':
                return None
            action, self._at_commit = self._at_commit, None
            if action is Action.HOLD:
                self._held.append(session)
                self._sessions.remove(session)
            return action

    def _accept(self) -> None:
        parser = {'PostgreSQL': _PostgreSQLParser, 'MariaDB': _MariaDBParser}[self._server.kind]
        while True:
            try:
                client, _address = self._listener.accept()
            except OSError:
                return                          # closed
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._server.socket)
            except OSError:
                client.close()
                server.close()
                continue
            session = _Session(self, client, server, parser())
            with self._lock:
                self._sessions.append(session)
            session.start()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(_TIMEOUT_S)
        for session in (*self._sessions, *self._held):
            session.cut()


class _Session:
    """One connection through the proxy, with a thread for each direction."""

    def __init__(self, proxy: CommitProxy, client: socket.socket, server: socket.socket, parser: _Parser) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._parser = parser
        self._deaf = False                      # the server's answers no longer reach the client
        self._answered = threading.Event()      # the server has answered since then
        self._commit = b''

    def start(self) -> None:
        for pump in (self._upstream, self._downstream):
            threading.Thread(target=pump, daemon=True, name='proxy').start()

    def cut(self) -> None:
        _close(self._client)
        _close(self._server)

    def deliver(self) -> None:
        self._server.sendall(self._commit)
        if not self._answered.wait(_TIMEOUT_S):
            raise TimeoutError('the server did not answer the COMMIT')
        _close(self._server)

    def _upstream(self) -> None:
        while data := _receive(self._client):
            for message, query in self._parser.feed(data):
                action = None if query is None else self._proxy.action_for(self, query)
                if action is None:
                    try:
                        self._server.sendall(message)
                    except OSError:
                        _close(self._client)
                        return
                    continue
                self._deaf = True
                if action is Action.HOLD:
                    self._commit = message
                elif action is Action.LOSE_ANSWER:
                    self._server.sendall(message)
                    self._answered.wait(_TIMEOUT_S)
                    _close(self._server)
                else:
                    _close(self._server)
                _close(self._client)
                return
        if not self._deaf:
            _close(self._server)

    def _downstream(self) -> None:
        while data := _receive(self._server):
            if self._deaf:
                self._answered.set()
                continue
            try:
                self._client.sendall(data)
            except OSError:
                break
        if not self._deaf:
            _close(self._client)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b''


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)   # wakes the thread that reads from it
    connection.close()


class _Parser:
    """Cuts what a client sends into messages, and finds the text of those that are queries."""

    def __init__(self) -> None:
        self._pending = b''

    def feed(self, data: bytes) -> list[tuple[bytes, bytes | None]]:
        """The messages that are complete now, each with its query, or None if it is no query."""
        self._pending += data
        messages = []
        while size := self._size(self._pending):
            if len(self._pending) < size:
                break
            message, self._pending = self._pending[:size], self._pending[size:]
            messages.append((message, self._query(message)))
        return messages

    def _size(self, pending: bytes) -> int:
        """The size of the first message, or 0 while too little of it has arrived."""
        raise NotImplementedError

    def _query(self, message: bytes) -> bytes | None:
        raise NotImplementedError


class _PostgreSQLParser(_Parser):
    """The first messages begin with a length and a code. Later ones begin with a type and a length."""

    _BEFORE_START: Final = (80877103, 80877104)     # SSLRequest, GSSENCRequest

    def __init__(self) -> None:
        super().__init__()
        self._started = False

    def _size(self, pending: bytes) -> int:
        if self._started:
            return 1 + int(struct.unpack('!I', pending[1:5])[0]) if len(pending) >= 5 else 0
        return int(struct.unpack('!I', pending[:4])[0]) if len(pending) >= 8 else 0

    def _query(self, message: bytes) -> bytes | None:
        if not self._started:
            self._started = struct.unpack('!I', message[4:8])[0] not in self._BEFORE_START
            return None
        return message[5:-1] if message[:1] == b'Q' else None


class _MariaDBParser(_Parser):
    """Packets begin with a three-byte length and a number. A command begins with packet 0. COM_QUERY is command 3."""

    def _size(self, pending: bytes) -> int:
        return 4 + int.from_bytes(pending[:3], 'little') if len(pending) >= 4 else 0

    def _query(self, message: bytes) -> bytes | None:
        return message[5:] if message[3:5] == b'\x00\x03' else None
