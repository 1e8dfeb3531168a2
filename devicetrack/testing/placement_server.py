"""The placement service in a process of its own: its unmodified WSGI application on a loopback port.

:class:`devicetrack.testing.placement.PlacementServer` starts it. The arguments are the port, and how many requests may
run at once: ``one`` or ``many``. ``OS_PLACEMENT_CONFIG_DIR`` names the directory of its configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import contextlib
import functools
import gc
from http import server as http_server
import inspect
import io
import socketserver
import sys
import threading
from typing import Any
from typing import Final
from urllib import parse

from jsonschema import validators
from oslo_middleware import base as middleware
from placement import db_api
from placement import policy
from placement import wsgi
import sqlalchemy
import sqlalchemy.pool

# Headers whose names have no HTTP_ in front in the WSGI environment.
_PLAIN: Final = {'CONTENT_TYPE', 'CONTENT_LENGTH'}


class _Server(socketserver.ThreadingMixIn, http_server.HTTPServer):
    """A server with a thread for each connection. A thread holds ``turn`` while the application answers."""

    allow_reuse_port = True                 # the fixture keeps the port over a restart
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, port: int, application: Callable[..., Iterable[bytes]],
                 turn: contextlib.AbstractContextManager[object]) -> None:
        self.application, self.turn = application, turn
        super().__init__(('127.0.0.1', port), _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)        # HTTPServer's own asks the DNS for this host's name


class _Handler(http_server.BaseHTTPRequestHandler):
    """A connection. As with a real service, it stays open for many requests.

    The standard library's WSGI server would take as long for a request as placement itself: it needs a new connection
    for each request, and sends each answer in many pieces.
    """

    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True
    wbufsize = -1                           # send an answer when all of it is there
    server: _Server

    def _ask(self) -> None:
        path, _, query = self.path.partition('?')
        environment: dict[str, Any] = {
            'REQUEST_METHOD': self.command, 'SCRIPT_NAME': '', 'PATH_INFO': parse.unquote(path, 'latin-1'),
            'QUERY_STRING': query, 'SERVER_PROTOCOL': self.request_version, 'REMOTE_ADDR': self.client_address[0],
            'SERVER_NAME': 'localhost', 'SERVER_PORT': str(self.server.server_address[1]),
            'wsgi.version': (1, 0), 'wsgi.url_scheme': 'http', 'wsgi.errors': sys.stderr,
            'wsgi.input': io.BytesIO(self.rfile.read(int(self.headers.get('Content-Length', 0)))),
            'wsgi.multithread': True, 'wsgi.multiprocess': False, 'wsgi.run_once': False}
        for name, value in self.headers.items():
            variable = name.upper().replace('-', '_')
            environment[variable if variable in _PLAIN else f'HTTP_{variable}'] = value
        with self.server.turn:
            content = b''.join(self.server.application(environment, self._start))
        if not self._sized:
            self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = _ask

    def _start(self, status: str, headers: list[tuple[str, str]], _error: object = None) -> None:
        code, _, reason = status.partition(' ')
        self.send_response(int(code), reason)
        for name, value in headers:
            self.send_header(name, value)
        self._sized = code == '204' or any(name.lower() == 'content-length' for name, _value in headers)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: placement has its own log."""


def _with_roles(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Give each token the roles of a compute service's user in Keystone. noauth2 knows no role ``service``."""
    def with_roles(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ.setdefault('HTTP_X_ROLES', 'admin,service')
        return application(environ, start_response)

    return with_roles


def _begin(connection: sqlalchemy.Connection) -> None:
    """Begin a transaction on SQLite. oslo.db then does not begin one itself."""
    if connection.dialect.name == 'sqlite' and 'in_transaction' not in connection.info:
        driver_connection: Any = connection.connection.dbapi_connection
        driver_connection.execute('BEGIN')
        connection.info['in_transaction'] = True


def _spare_time() -> None:
    """Turn off work that takes more than half of a request's time and does not change its answer."""
    # For each request placement checks that its own JSON schema is valid.
    validators.validator_for({}).check_schema = lambda *_schema, **_options: None
    # oslo.db sleeps after each transaction.
    db_api.placement_context_manager.configure(thread_checkin=False)
    # Placement makes new aliases of its tables, with all columns, for each statement.
    sqlalchemy.alias = functools.cache(sqlalchemy.alias)
    # On SQLite, each transaction opens a connection.
    sqlalchemy.pool.NullPool = sqlalchemy.pool.QueuePool    # type: ignore[misc,assignment]
    # oslo.db sends BEGIN through all of SQLAlchemy.
    sqlalchemy.event.listen(sqlalchemy.Engine, 'begin', _begin)
    # Each request inspects the parameters of six functions.
    inspect.getfullargspec = functools.cache(inspect.getfullargspec)
    vars(middleware)['getfullargspec'] = inspect.getfullargspec


def main(port: str, at_once: str) -> None:
    _spare_time()
    application = _with_roles(wsgi.init_application())
    policy._ENFORCER.use_conf = False                   # else each request looks for policy files
    turn: contextlib.AbstractContextManager[object] = threading.Lock() if at_once == 'one' else contextlib.nullcontext()
    server = _Server(int(port), application, turn)
    # All loaded objects stay for good. Each request leaves hundreds of reference cycles, which are collected rarely.
    gc.freeze()
    gc.set_threshold(50_000)
    sys.stdout.write('placement is ready\n')            # the fixture waits for this line
    sys.stdout.flush()
    server.serve_forever()


if __name__ == '__main__':
    main(*sys.argv[1:])
