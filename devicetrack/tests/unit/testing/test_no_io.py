"""That I/O under the lock is seen, whatever form it takes."""

import http.client
import logging
import os
import socket
import sqlite3
import subprocess
import threading
import time

import sqlalchemy as sa

from devicetrack.claims import locked_ledger
from devicetrack.exception import StoreError
from devicetrack.store import api
from devicetrack.testing import fixtures
from devicetrack.testing import no_io
from devicetrack.tests import base


def _libvirt():
    import libvirt
    libvirt.open('test:///default')


def _logging():
    logging.getLogger('devicetrack.test').error('a record')


class IOUnderTheLockTestCase(base.TestCase):

    scenarios = base.table(
        ('open', lambda: open('/dev/null')),
        ('os.open', lambda: os.open('/dev/null', os.O_RDONLY)),
        ('listdir', lambda: os.listdir('/')),
        ('stat', lambda: os.path.exists('/')),
        ('write', lambda: os.write(2, b'')),
        ('fsync', lambda: os.fsync(2)),
        ('mkdir', lambda: os.mkdir('/nonexistent/directory')),
        ('remove', lambda: os.remove('/nonexistent')),
        ('socket', lambda: socket.socket()),
        ('name service', lambda: socket.getaddrinfo('localhost', 80)),
        ('subprocess', lambda: subprocess.run(['true'])),
        ('sqlite3', lambda: sqlite3.connect(':memory:')),
        ('SQLAlchemy', lambda: sa.create_engine('sqlite://').connect()),
        ('HTTP', lambda: http.client.HTTPConnection('localhost').putrequest('GET', '/')),
        ('libvirt', _libvirt),
        ('waiting', lambda: time.sleep(0)),
        ('logging', _logging),
        names=('io',))

    def test_fails_where_it_happens(self):
        def under_the_lock():
            with locked_ledger.LedgerLock().held():
                self.io()
        self.assertRaises(no_io.IOUnderTheLock, under_the_lock)
        self.assertNotEqual([], self.no_io.expect())


class StoreUnderTheLockTestCase(base.TestCase):

    scenarios = base.table(
        ('write', lambda store: store.write(api.Changes())),
        ('records', lambda store: store.records()),
        ('hosts', lambda store: store.hosts()),
        ('settle', lambda store: store.settle(api.Changes())),
        names=('io',))

    def test_a_store_with_open_connections_is_seen(self):
        store = self.useFixture(fixtures.SQLiteStore(self.conf)).store
        self.io(store)

        def under_the_lock():
            with locked_ledger.LedgerLock().held():
                self.io(store)
        self.assertRaises((no_io.IOUnderTheLock, StoreError), under_the_lock)
        self.assertNotEqual([], self.no_io.expect())


class NoIOUnderTheLockTestCase(base.TestCase):

    def test_a_swallowed_failure_fails_the_fixture(self):
        fixture = no_io.NoIOUnderTheLock()
        fixture.setUp()
        with locked_ledger.LedgerLock().held():
            try:
                open('/dev/null')
            except AssertionError:
                pass
        self.assertRaises(no_io.IOUnderTheLock, fixture.cleanUp)
        self.assertEqual([], self.no_io.seen)

    def test_another_thread_may_do_io_meanwhile(self):
        with locked_ledger.LedgerLock().held():
            thread = threading.Thread(target=lambda: open('/dev/null').close())
            thread.start()
            thread.join()
        self.assertEqual([], self.no_io.seen)

    def test_io_after_the_lock_is_nobodys_business(self):
        with locked_ledger.LedgerLock().held():
            pass
        open('/dev/null').close()
        self.assertEqual([], self.no_io.seen)

    def test_the_failure_says_where(self):
        with locked_ledger.LedgerLock().held():
            error = self.assertRaises(no_io.IOUnderTheLock, open, '/dev/null')
        self.assertIn('test_no_io.py', str(error))
        self.assertIn('/dev/null', str(error))
        self.no_io.expect()
