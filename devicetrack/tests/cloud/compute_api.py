"""nova-api in a process of its own: Nova's WSGI application on a loopback port.

Started by :class:`devicetrack.tests.cloud.services.Services` with the port; ``OS_NOVA_CONFIG_DIR`` names the directory
of its configuration.
"""

from __future__ import annotations

import socketserver
import sys
from typing import Any
from wsgiref import simple_server


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64


class _Handler(simple_server.WSGIRequestHandler):

    def address_string(self) -> str:
        return self.client_address[0]

    def log_message(self, format: str, *args: Any) -> None:
        """Nova has a log of its own."""


def main(port: str) -> None:
    # Nova reads the command line of the server that it runs in.
    sys.argv[1:] = []
    from nova.wsgi import osapi_compute
    with simple_server.make_server('127.0.0.1', int(port), osapi_compute.application, _Server, _Handler) as server:
        server.serve_forever()


if __name__ == '__main__':
    main(*sys.argv[1:])
