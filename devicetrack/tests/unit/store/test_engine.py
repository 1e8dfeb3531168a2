"""From options to a place."""

from __future__ import annotations

import pathlib
import re

import devicetrack
from devicetrack import exception
from devicetrack.store import sql
from devicetrack.store.sql import engine
from devicetrack.testing import databases
from devicetrack.tests import base


class TestPlace(base.TestCase):
    scenarios = base.table(
        ('file', 'sqlite:////srv/x/store.db', 'SQLite file /srv/x/store.db', 'sqlite'),
        ('file with @', 'sqlite:////srv/x@y/store.db', 'SQLite file /srv/x@y/store.db', 'sqlite'),
        ('@ in a password', 'postgresql://me:s%40cret@db/devices', 'PostgreSQL database devices at db',
         'postgresql+psycopg2'),
        ('postgresql', 'postgresql://me:secret@db:5433/devices', 'PostgreSQL database devices at db:5433',
         'postgresql+psycopg2'),
        ('@ in a database', 'postgresql://me:secret@db/dev@vices', 'PostgreSQL database dev@vices at db',
         'postgresql+psycopg2'),
        ('%40 in a database', 'mysql+pymysql://me:s%40cret@db/dev%40vices', 'MariaDB database dev@vices at db',
         'mysql+pymysql'),
        ('postgresql socket', 'postgresql+psycopg2://me:secret@/devices?host=/run/pg',
         'PostgreSQL database devices at /run/pg', 'postgresql+psycopg2'),
        ('postgresql hosts', 'postgresql://me:secret@/devices?host=a:1&host=b:2',
         'PostgreSQL database devices at a:1,b:2', 'postgresql+psycopg2'),
        ('mariadb', 'mysql+pymysql://me:secret@db/devices', 'MariaDB database devices at db', 'mysql+pymysql'),
        ('mariadb by its name', 'mariadb+pymysql://me:secret@/devices?unix_socket=/run/m',
         'MariaDB database devices at /run/m', 'mysql+pymysql'),
        names=('connection', 'shown', 'driver'))
    connection: str
    shown: str
    driver: str

    def test_the_name_tells_the_place_and_no_secret(self) -> None:
        at = engine.place(databases.configuration(connection=self.connection))
        self.assertEqual((self.shown, self.driver), (at.name, at.url.drivername))


class TestDefaultPlace(base.TestCase):
    def test_unset_means_a_file_in_the_state_directory(self) -> None:
        self.assertEqual(f'{self.state_path}/devicetrack.sqlite', engine.place(self.conf).path)

    def test_two_slashes_are_one(self) -> None:
        at = engine.place(self.conf, f'/{self.state_path}')
        self.assertEqual((f'{self.state_path}/devicetrack.sqlite', f'file:{self.state_path}/devicetrack.sqlite'),
                         (at.path, at.url.database))


class TestTLS(base.TestCase):
    def test_the_documented_parameters_of_tls_reach_the_driver(self) -> None:
        page = (pathlib.Path(devicetrack.__file__).parents[1] / 'doc/source/admin/store.rst').read_text('utf-8')
        told = []
        for connection in re.findall(r'connection = (\S+\?ssl\S+)', page):
            url = engine.place(databases.configuration(connection=connection)).url
            told.append(url.get_dialect()().create_connect_args(url)[1])
        postgresql, mariadb = told
        self.assertEqual(('verify-full', '/etc/ssl/certs/db-ca.pem'),
                         (postgresql['sslmode'], postgresql['sslrootcert']))
        self.assertEqual({'ca': '/etc/ssl/certs/db-ca.pem'}, mariadb['ssl'])


class TestRefused(base.TestCase):
    scenarios = base.table(
        ('memory', 'sqlite://', 'a store is a file'),
        ('memory by its name', 'sqlite:///:memory:', 'a store is a file'),
        ('parameters of a file', 'sqlite:////srv/store.db?mode=memory', 'a store is a file'),
        ('another database', 'oracle://me:secret@db/devices', 'it must start with'),
        ('another driver', 'mysql+mysqldb://me:secret@db/devices', 'it must start with'),
        ('no URL', 'me:secret@db', 'it is no SQLAlchemy URL'),
        ('@ in a password', 'postgresql://me:se@secret@db/devices', 'write @ in a password as %40'),
        ('@ and / in a password', 'mysql+pymysql://me:se@x/secret@db/devices', 'write @ in a password as %40'),
        ('@ in a password of another database', 'oracle://me:se@secret@db/devices', 'write @ in a password as %40'),
        ('hosts with ports', 'postgresql://me:secret@a:1,b:2/devices', 'several hosts of PostgreSQL are given as @/'),
        ('hosts without ports', 'postgresql://me:secret@a,b/devices', 'several hosts of PostgreSQL are given as @/'),
        ('hosts in two places', 'postgresql://me:secret@a/devices?host=b:2', 'several hosts of PostgreSQL are given'),
        ('hosts of MariaDB', 'mysql+pymysql://me:secret@a,b/devices', 'PyMySQL connects to one host'),
        ('hosts of MariaDB as parameters', 'mysql+pymysql://me:secret@/devices?host=a&host=b',
         'PyMySQL connects to one host'),
        ('a port that is none', 'postgresql://me:secret@db:port/devices', 'it is no SQLAlchemy URL'),
        names=('connection', 'reason'))
    connection: str
    reason: str

    def test_with_option_and_reason_and_without_the_password(self) -> None:
        conf = databases.configuration(connection=self.connection)
        error = self.assertRaises(exception.InvalidConfiguration, sql.open_store, conf)
        self.assertEqual('[devicetrack_database] connection', error.option)
        self.assertIn(self.reason, str(error))
        self.assertNotIn('secret', str(error))
