"""Servers that accept no connection: each cause with an error of its own, which says what to do."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import os
import shutil
import socket
import subprocess
from typing import Any
from typing import ClassVar

import fixtures
import sqlalchemy as sa

from devicetrack import exception
from devicetrack.testing import database_servers
from devicetrack.testing import databases
from devicetrack.tests import base

_CONNECTIONS = 12                               # the fewest that MariaDB can be told


class _Certificates(fixtures.Fixture):
    """Two authorities, ``ours`` and ``other``, and a certificate of ours for ``localhost``, each with its key."""

    def _setUp(self) -> None:
        self.directory = self.useFixture(fixtures.TempDir()).path
        self._make('ours', '/CN=ours')
        self._make('other', '/CN=other')
        self._make('server', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost',
                   '-CA', self.path('ours.pem'), '-CAkey', self.path('ours.key'))

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _make(self, name: str, subject: str, *further: str) -> None:
        subprocess.run(['openssl', 'req', '-x509', '-nodes', '-newkey', 'ec', '-pkeyopt',
                        'ec_paramgen_curve:prime256v1', '-keyout', self.path(f'{name}.key'),
                        '-out', self.path(f'{name}.pem'), '-days', '2', '-subj', subject, *further],
                       check=True, capture_output=True)


class _Listening(database_servers.Server):
    """Listens on a loopback port too, with TLS if there are certificates, and takes few connections."""

    certificates: _Certificates | None = None
    port: int

    def _initialize(self) -> None:
        with socket.create_server(('127.0.0.1', 0)) as free:
            self.port = free.getsockname()[1]
        super()._initialize()                   # type: ignore[safe-super]      # the other base class's

    def files(self) -> list[str]:
        """Copies of the certificate and its key that the server's account alone can read."""
        if self.certificates is None:
            return []
        copies = []
        for name in ('server.pem', 'server.key'):
            copies.append(shutil.copy(self.certificates.path(name), self.directory))
            os.chmod(copies[-1], 0o600)
            os.chown(copies[-1], self._account.pw_uid, self._account.pw_gid)
        return copies

    def parameters(self, authority: str) -> dict[str, str]:
        """Those of a URL whose client checks the server against an authority."""
        raise NotImplementedError


class _PostgreSQL(_Listening, database_servers.PostgreSQLServer):
    def _command(self) -> list[str]:
        settings = ['listen_addresses=127.0.0.1', f'port={self.port}', f'max_connections={_CONNECTIONS}',
                    'superuser_reserved_connections=0', 'max_wal_senders=0']
        for name, path in zip(('ssl_cert_file', 'ssl_key_file'), self.files(), strict=False):
            settings += ['ssl=on', f'{name}={path}']
        return super()._command() + [part for setting in settings for part in ('-c', setting)]

    def url(self, database: str, host: str | None = None, port: int | None = None) -> Any:
        return super().url(database, host, port).set(port=self.port)

    def parameters(self, authority: str) -> dict[str, str]:
        return {'sslmode': 'verify-full', 'sslrootcert': authority}


class _MariaDB(_Listening, database_servers.MariaDBServer):
    def _command(self) -> list[str]:
        files = self.files()
        left_out = ('--skip-networking', *(['--skip-ssl'] if files else []))
        options = [f'--{name}={path}' for name, path in zip(('ssl-cert', 'ssl-key'), files, strict=False)]
        return [*[part for part in super()._command() if part not in left_out], '--bind-address=127.0.0.1',
                f'--port={self.port}', f'--max-connections={_CONNECTIONS}', *options]

    def parameters(self, authority: str) -> dict[str, str]:
        return {'ssl_ca': authority}


class TestConnecting(base.TestCase):
    scenarios = base.table(('postgresql', _PostgreSQL), ('mariadb', _MariaDB), names=('of',))
    of: ClassVar[type[_Listening]]

    def setUp(self) -> None:
        super().setUp()
        self.certificates = self.useFixture(_Certificates())
        self.server = self.of()
        self.server.certificates = self.certificates
        self.useFixture(self.server)

    def assert_told(self, texts: Sequence[str], host: str = 'localhost', authority: str = 'ours.pem',
                    **account: Any) -> None:
        parameters = self.server.parameters(self.certificates.path(authority))
        url = self.server.url(self.server._administration, host, self.server.port)
        store = databases.open_store(databases.configuration(
            connection=url.set(query=parameters, **account).render_as_string(hide_password=False)))
        self.addCleanup(store.close)
        error = self.assertRaises(exception.StoreUnavailable, store.records)
        for text in texts:
            self.assertIn(text, error.reason)
        self.assertNotIn(self.server.password, str(error))

    def test_each_cause_says_what_to_do(self) -> None:
        self.assert_told(["the server's certificate cannot be verified", 'sslrootcert'], authority='other.pem')
        self.assert_told(["the server's certificate cannot be verified", 'which this user can read'],
                         authority='missing.pem')
        self.assert_told(["the server's certificate is for another name", "name the server's host"], host='127.0.0.1')
        self.assert_told(['the server refuses this account or database', 'the password'], password='wrong')
        self.assert_told(['the server refuses this account or database', 'the database'], database='missing')
        engine = sa.create_engine(self.server.url(self.server._administration), poolclass=sa.NullPool)
        with contextlib.ExitStack() as connections:
            with self.assertRaises(sa.exc.OperationalError):
                for _connection in range(_CONNECTIONS + 2):         # MariaDB keeps one for its administrator
                    connections.enter_context(engine.connect())
            self.assert_told(['the server takes no more connections', 'max_pool_size'])
        self.server.stop()
        self.assert_told(['no connection to the database', 'see that the server runs'])
        self.server.certificates = None
        self.server.start()
        self.assert_told(['the server offers no TLS'])
