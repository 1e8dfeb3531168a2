"""A proxy in front of an HTTP server. It counts requests, and loses or delays those that a test names.

::

    proxy = self.useFixture(http_proxy.HTTPProxy(server.address))
    proxy.at_next('PUT', '/allocations/', http_proxy.Loss.ANSWER)       # the server does it; the client is cut off
    proxy.before_next('POST', '/allocations', somebody_else_writes)     # a race, staged
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import enum
import errno
from http import server as http_server
import http.client
import select
import socket
import socketserver
import threading
from typing import Any
from typing import Final
from typing import NamedTuple
from urllib import parse

import fixtures

# A limit for calls that hang. Calls that are only slow never take so long.
_TIMEOUT_S: Final = 900
_OF_ONE_HOP: Final = {'connection', 'keep-alive', 'transfer-encoding', 'content-length', 'host', 'date', 'server'}


class Loss(enum.Enum):
    """What the proxy does to one request."""

    REQUEST = 'the request never reaches the server, and the client is cut off'
    ANSWER = 'the server answers the request, and the client is cut off before it gets the answer'


class _Staged(NamedTuple):
    method: str
    path: str
    call: Callable[[], Any] | None
    loss: Loss | None


_PASSES: Final = _Staged('', '', None, None)


class Answer(NamedTuple):
    status: int
    reason: str
    headers: list[tuple[str, str]]
    content: bytes


class HTTPProxy(fixtures.Fixture):
    """Listens on a loopback port (``url``) and passes requests on to ``address``.

    ``requests`` has all requests in order, as pairs of the method and the path without its query. The proxy calls
    ``heard`` after it has added a request. As with a real service, a connection stays open for many requests. The proxy
    has one connection to ``address`` for each.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__()
        self._address = address

    def _setUp(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.heard: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        self._staged: list[_Staged] = []
        self._connections: set[socket.socket] = set()
        self._server = _Server(self)
        self.url = f'http://127.0.0.1:{self._server.server_address[1]}'
        acceptor = threading.Thread(target=self._server.accept, daemon=True, name='HTTP proxy')
        acceptor.start()
        self.addCleanup(self.cut_idle)
        self.addCleanup(self._server.server_close)
        self.addCleanup(acceptor.join, _TIMEOUT_S)
        self.addCleanup(self._server.socket.shutdown, socket.SHUT_RDWR)

    def at_next(self, method: str, path: str, loss: Loss) -> None:
        """Lose the next request with this method whose path begins with ``path``."""
        self._stage(_Staged(method, path, None, loss))

    def before_next(self, method: str, path: str, call: Callable[[], Any], loss: Loss | None = None) -> None:
        """Call a function before the proxy passes on the next request with this method and beginning of the path.

        :param loss: lose that request too
        """
        self._stage(_Staged(method, path, call, loss))

    def _stage(self, staged: _Staged) -> None:
        """Stage a loss or a call for one request. The next request that fits uses up the oldest one that is staged."""
        with self._lock:
            self._staged.append(staged)

    @property
    def staged(self) -> int:
        """How many staged losses and calls have not happened yet."""
        return len(self._staged)

    def cut_idle(self) -> None:
        """Cut every open connection, as a restart of the server would."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def connected(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)

    def disconnected(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def connect(self) -> http.client.HTTPConnection:
        """A connection to the server. The first request opens it."""
        return http.client.HTTPConnection(*self._address, timeout=_TIMEOUT_S)

    def pass_on(self, connection: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str],
                body: bytes) -> Answer | None:
        """Ask the server and return its answer, or None if the client must get no answer."""
        plain = parse.urlsplit(path).path
        with self._lock:
            self.requests.append((method, plain))
            fate = next((staged for staged in self._staged
                         if staged.method == method and plain.startswith(staged.path)), _PASSES)
            if fate is not _PASSES:
                self._staged.remove(fate)
        self.heard()
        if fate.call is not None:
            fate.call()
        if fate.loss is Loss.REQUEST:
            return None
        if connection.sock is not None and select.select([connection.sock], [], [], 0)[0]:
            connection.close()                  # the server has ended since, and may run again
        try:
            connection.request(method, path, body or None, headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.reason, response.getheaders(), response.read())
        except (OSError, http.client.HTTPException):
            connection.close()
            return None                         # the server is gone: as if the request or the answer was lost
        return None if fate.loss is Loss.ANSWER else answer


class _Server(socketserver.ThreadingMixIn, http_server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: HTTPProxy) -> None:
        self.proxy = proxy
        super().__init__(('127.0.0.1', 0), _Handler)

    def accept(self) -> None:
        """Accept connections until the socket is shut down. ``serve_forever`` would notice the shutdown later."""
        while True:
            try:
                self.process_request(*self.get_request())
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)        # HTTPServer's own method asks the DNS for this host's name
        self.server_name, self.server_port = 'localhost', self.server_address[1]


class _Handler(http_server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True
    wbufsize = -1                               # send an answer when all of it is there
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.proxy.connected(self.connection)
        self.onward = self.server.proxy.connect()

    def finish(self) -> None:
        self.onward.close()
        self.server.proxy.disconnected(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:                         # the client went away, or was cut off
            self.close_connection = True

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_HOP}
        answer = self.server.proxy.pass_on(self.onward, self.command, self.path, headers, body)
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status, answer.reason)
        for name, value in answer.headers:
            if name.lower() not in _OF_ONE_HOP:
                self.send_header(name, value)
        self.send_header('Content-Length', str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_PUT = do_POST = do_DELETE = _pass_on

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: ``requests`` has all requests."""
