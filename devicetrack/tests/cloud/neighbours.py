"""The image and the network service of the cloud: small HTTP servers of our own, and no more than Nova asks of them.

They are neither Glance nor Neutron. The image service begins with one image, and anybody may read, add, change and
delete images, as Nova does when it shelves a guest. The network service has no network, no port and no extension: it
answers each list with an empty one, and instances are booted with ``networks: none``. Identity is no service at all:
see :mod:`devicetrack.tests.cloud.trusting`.
"""

from __future__ import annotations

from http import server as http_server
import json
import threading
from typing import Any
from typing import Final
import uuid

import fixtures

IMAGE: Final = '1ab05eed-0000-4000-8000-000000000001'

# glanceclient makes its objects by it.
_SCHEMA: Final = {'name': 'image', 'additionalProperties': {'type': 'string'}, 'properties': {
    name: {'type': ['null', 'string', 'integer', 'boolean', 'array']}
    for name in ('id', 'name', 'status', 'visibility', 'protected', 'size', 'min_disk', 'min_ram', 'disk_format',
                 'container_format', 'checksum', 'owner', 'tags', 'file', 'created_at', 'updated_at')}}


class _Server(http_server.ThreadingHTTPServer):
    daemon_threads = True
    images: dict[str, dict[str, Any]]
    files: dict[str, bytes]


class _Handler(http_server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    server: _Server

    def _answer(self, content: bytes, kind: str = 'application/json', status: int = 200) -> None:
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _say(self, answer: Any, status: int = 200) -> None:
        self._answer(json.dumps(answer).encode(), status=status)

    def do_GET(self) -> None:
        path = self.path.partition('?')[0]
        name, is_file = self._image_of(path)
        if path == '/v2/schemas/image':
            self._say(_SCHEMA)
        elif is_file and name in self.server.files:
            self._answer(self.server.files[name], 'application/octet-stream')
        elif not is_file and name in self.server.images:
            self._say(self.server.images[name])
        elif path.startswith('/v2.0/') and path.count('/') == 2:
            # /v2.0/ports.json is the list of ports; /v2.0/security-groups that of security groups.
            self._say({path.removeprefix('/v2.0/').removesuffix('.json').replace('-', '_'): []})
        else:
            self._answer(b'{}', status=404)

    def do_POST(self) -> None:
        image = _image(str(uuid.uuid4()), **json.loads(self._body()))
        self.server.images[image['id']] = image
        self._say(image, status=201)

    def do_PUT(self) -> None:
        name, _is_file = self._image_of(self.path)
        self.server.files[name] = content = self._body()
        self.server.images[name] |= {'status': 'active', 'size': len(content)}
        self._answer(b'', 'text/plain', 204)

    def do_PATCH(self) -> None:
        """Change an image by a JSON patch, whose paths are names."""
        image = self.server.images[self._image_of(self.path)[0]]
        for change in json.loads(self._body()):
            image[change['path'].removeprefix('/')] = change.get('value')
        self._say(image)

    def do_DELETE(self) -> None:
        name, _is_file = self._image_of(self.path)
        self.server.files.pop(name, None)
        self._answer(b'', 'text/plain', 204 if self.server.images.pop(name, None) else 404)

    @staticmethod
    def _image_of(path: str) -> tuple[str, bool]:
        """The image that a path is of, and whether it is its file."""
        return path.removeprefix('/v2/images/').removesuffix('/file'), path.endswith('/file')

    def _body(self) -> bytes:
        if self.headers.get('Transfer-Encoding') != 'chunked':
            return self.rfile.read(int(self.headers.get('Content-Length', 0)))
        content = b''
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def log_message(self, format: str, *args: Any) -> None:
        """Nova's log says what it asked."""


def _image(identifier: str, **facts: Any) -> dict[str, Any]:
    when = '2025-01-01T00:00:00Z'
    return {'status': 'queued', 'visibility': 'public', 'protected': False, 'size': None, 'min_disk': 0, 'min_ram': 0,
            'checksum': None, 'owner': None, 'tags': [], 'created_at': when, 'updated_at': when, **facts,
            'id': identifier, 'file': f'/v2/images/{identifier}/file'}


class Neighbours(fixtures.Fixture):
    """Both of them, on one loopback ``port``: their paths differ."""

    def __init__(self, image: bytes) -> None:
        super().__init__()
        self._image = image

    def _setUp(self) -> None:
        server = _Server(('127.0.0.1', 0), _Handler)
        self.addCleanup(server.server_close)
        server.files = {IMAGE: self._image}
        server.images = {IMAGE: _image(IMAGE, name='counts-boots', status='active', size=len(self._image),
                                       disk_format='raw', container_format='bare')}
        self.port: int = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True, name='image and network service').start()
        self.addCleanup(server.shutdown)
