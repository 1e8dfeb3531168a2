"""The placement service in a process of its own: its unmodified WSGI application on a loopback port.

Started by :class:`devicetrack.testing.placement.PlacementServer` with the port and how many requests may run at once,
``one`` or ``many``; ``OS_PLACEMENT_CONFIG_DIR`` names the directory of its configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import functools
import socketserver
import sys
from typing import Any
from wsgiref import simple_server

from jsonschema import validators
from placement import db_api
from placement import wsgi
import sqlalchemy
import sqlalchemy.pool


class _OneByOne(simple_server.WSGIServer):
    allow_reuse_port = True                 # the fixture keeps the port over a restart
    request_queue_size = 128

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)        # HTTPServer's own asks the DNS for this host's name
        self.server_name, self.server_port = 'localhost', self.server_address[1]
        self.setup_environ()


class _ManyAtOnce(socketserver.ThreadingMixIn, _OneByOne):
    daemon_threads = True


class _Handler(simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Placement has a log of its own."""


def _with_roles(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Give a token the roles of a compute service's user in Keystone; noauth2 knows no role ``service``."""
    def with_roles(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ.setdefault('HTTP_X_ROLES', 'admin,service')
        return application(environ, start_response)

    return with_roles


def _spare_time() -> None:
    """Leave out what takes nearly half of a request's time and has no part in its answer."""
    # Each request would have the schema of its body checked, which is one of placement's own;
    validators.validator_for({}).check_schema = lambda *_schema, **_options: None
    # sleep after each of its transactions;
    db_api.placement_context_manager.configure(thread_checkin=False)
    # make the aliases of its tables, with all columns, for each of its statements;
    sqlalchemy.alias = functools.cache(sqlalchemy.alias)
    # and, with SQLite, connect for each of them.
    sqlalchemy.pool.NullPool = sqlalchemy.pool.QueuePool    # type: ignore[misc,assignment]


def main(port: str, at_once: str) -> None:
    _spare_time()
    application = _with_roles(wsgi.init_application())
    server = {'one': _OneByOne, 'many': _ManyAtOnce}[at_once](('127.0.0.1', int(port)), _Handler)
    server.set_app(application)
    sys.stdout.write('placement is ready\n')            # what the fixture waits for
    sys.stdout.flush()
    server.serve_forever()


if __name__ == '__main__':
    main(*sys.argv[1:])
