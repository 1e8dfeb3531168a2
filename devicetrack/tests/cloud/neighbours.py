"""The image and the network service of the cloud: small HTTP servers of our own, and no more than Nova asks of them.

They are neither Glance nor Neutron. The image service has one image, which anybody may read. The network service has no
network, no port and no extension: it answers each list with an empty one, and instances are booted with
``networks: none``. Identity is no service at all: see :mod:`devicetrack.tests.cloud.trusting`.
"""

from __future__ import annotations

from http import server as http_server
import json
import threading
from typing import Any
from typing import Final

import fixtures

IMAGE: Final = '1ab05eed-0000-4000-8000-000000000001'

# glanceclient makes its objects by it.
_SCHEMA: Final = {'name': 'image', 'additionalProperties': {'type': 'string'}, 'properties': {
    name: {'type': ['null', 'string', 'integer', 'boolean', 'array']}
    for name in ('id', 'name', 'status', 'visibility', 'protected', 'size', 'min_disk', 'min_ram', 'disk_format',
                 'container_format', 'checksum', 'owner', 'tags', 'file', 'created_at', 'updated_at')}}


class _Server(http_server.ThreadingHTTPServer):
    daemon_threads = True
    image: bytes


class _Handler(http_server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    server: _Server

    def _answer(self, content: bytes, kind: str = 'application/json', status: int = 200) -> None:
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _say(self, answer: Any) -> None:
        self._answer(json.dumps(answer).encode())

    def do_GET(self) -> None:
        path = self.path.partition('?')[0]
        if path == '/v2/schemas/image':
            self._say(_SCHEMA)
        elif path == f'/v2/images/{IMAGE}/file':
            self._answer(self.server.image, 'application/octet-stream')
        elif path == f'/v2/images/{IMAGE}':
            self._say(self._image())
        elif path.startswith('/v2.0/') and path.count('/') == 2:
            # /v2.0/ports.json is the list of ports; /v2.0/security-groups that of security groups.
            self._say({path.removeprefix('/v2.0/').removesuffix('.json').replace('-', '_'): []})
        else:
            self._answer(b'{}', status=404)

    def _image(self) -> dict[str, Any]:
        when = '2025-01-01T00:00:00Z'
        return {'id': IMAGE, 'name': 'counts-boots', 'status': 'active', 'visibility': 'public', 'protected': False,
                'size': len(self.server.image), 'min_disk': 0, 'min_ram': 0, 'disk_format': 'raw',
                'container_format': 'bare', 'checksum': None, 'owner': None, 'tags': [],
                'file': f'/v2/images/{IMAGE}/file', 'created_at': when, 'updated_at': when}

    def log_message(self, format: str, *args: Any) -> None:
        """Nova's log says what it asked."""


class Neighbours(fixtures.Fixture):
    """Both of them, on one loopback ``port``: their paths differ."""

    def __init__(self, image: bytes) -> None:
        super().__init__()
        self._image = image

    def _setUp(self) -> None:
        server = _Server(('127.0.0.1', 0), _Handler)
        self.addCleanup(server.server_close)
        server.image = self._image
        self.port: int = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True, name='image and network service').start()
        self.addCleanup(server.shutdown)
