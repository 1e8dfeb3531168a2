"""A store on two nodes of a Galera cluster."""

from __future__ import annotations

import os
import shutil
import socket
import time
from typing import Any

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import database_servers
from devicetrack.testing import databases
from devicetrack.testing import proxy as proxies
from devicetrack.testing.proxy import Action
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update

_PROVIDER = '/usr/lib/galera/libgalera_smm.so'

# Says that the node has the other one's data already, as a copy. The rest comes to it as transactions.
_TRANSFER = r"""#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --role) role=$2;; --datadir) data=$2;; --gtid) gtid=$2;; esac
    shift
done
case $role in
joiner) echo ready 127.0.0.1/copy; sed -n 's/^uuid: *//p; s/^seqno: *//p' "$data/grastate.dat" | paste -sd:;;
donor) echo "done $gtid";;
esac
"""


def _ports() -> list[int]:
    free = [socket.create_server(('127.0.0.1', 0)) for _port in range(2)]
    ports: list[int] = [one.getsockname()[1] for one in free]
    for one in free:
        one.close()
    return ports


class _Node(database_servers.MariaDBServer):
    """The first node of a cluster, or one that joins it."""

    package = 'galera-4'
    ready = 'Synchronized with group'

    def __init__(self, first: _Node | None = None) -> None:
        super().__init__()
        self._first, self.ports = first, _ports()

    def _initialize(self) -> None:
        if not os.path.exists(_PROVIDER):
            raise database_servers.ServerFailed(self._advice(f'there is no file {_PROVIDER}'))
        script = os.path.join(self.directory, 'wsrep_sst_copy')
        with open(script, 'w') as written:
            written.write(_TRANSFER)
        os.chmod(script, 0o755)
        super()._initialize()
        if self._first is not None:
            self._copy_of(self._first)

    def _copy_of(self, first: _Node) -> None:
        first._administrator.dispose()
        first.stop()
        self.password = first.password
        shutil.rmtree(self.data)
        shutil.copytree(first.data, self.data, ignore=shutil.ignore_patterns('galera.cache', 'gvwstate.dat'))
        for parent, directories, files in os.walk(self.data):
            for name in ('', *directories, *files):
                os.chown(os.path.join(parent, name), self._account.pw_uid, self._account.pw_gid)
        first.start()

    def _command(self) -> list[str]:
        peer = '' if self._first is None else f'127.0.0.1:{self._first.ports[0]}'
        listen, receive = self.ports
        command = super()._command()
        return ['env', f'PATH={self.directory}:{os.environ.get("PATH", "")}', *command, '--wsrep-on=ON',
                f'--wsrep-provider={_PROVIDER}', f'--wsrep-cluster-address=gcomm://{peer}',
                '--wsrep-node-address=127.0.0.1', '--binlog-format=ROW', '--innodb-autoinc-lock-mode=2',
                '--wsrep-sst-method=copy',
                f'--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{listen};'
                f'ist.recv_addr=127.0.0.1:{receive};gcache.size=16M;evs.suspect_timeout=PT60S;'
                'evs.inactive_timeout=PT120S;evs.install_timeout=PT120S']


class TestGalera(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.first = self.useFixture(_Node())
        self.second = self.useFixture(_Node(self.first))
        self.fixture = self.useFixture(databases.MariaDBStore(server=self.first, busy_timeout_s=30))
        self.fixture.store.add_host(api.Host(records.HOST_UUID, 'compute-1', 'digest'))
        self.proxy = self.useFixture(proxies.CommitProxy(self.first))
        self.store = self.fixture.open_through(*self.proxy.address)
        with self.second._administrator.connect() as connection:        # until it has the database, too
            connection.exec_driver_sql('SET SESSION wsrep_sync_wait = 15')
            connection.exec_driver_sql(f'SHOW TABLES IN {self.fixture.database}')
        self.elsewhere = self.open(self.second)

    def open(self, node: _Node) -> SQLStore:
        store = databases.open_store(databases.configuration(
            connection=node.text_url(self.fixture.database), busy_timeout_s=30))
        self.addCleanup(store.close)
        return store

    def test_a_commit_in_doubt_is_settled_by_a_node_that_has_seen_everything(self) -> None:
        for number in range(10):
            happened = number % 2 == 0
            changes = insert(record(f'ns{number}'))
            self.proxy.at_next_commit(Action.LOSE_ANSWER if happened else Action.DROP)
            self.assertRaises(exception.OutcomeUnknown, self.store.write, changes)
            self.assertEqual(happened, self.elsewhere.settle(changes))
        self.assertEqual(5, len(self.elsewhere.records()))

    def test_a_commit_that_arrives_after_another_node_has_settled_it_does_not_happen(self) -> None:
        """It arrives at once, perhaps before its own node has heard of the settling."""
        row = record('ns0')
        for _ in range(5):
            self.check_arrives_late(insert(row), [])
        self.store.write(insert(row))           # its own node has it at once
        for changes in (update(row), delete(row)):
            self.check_arrives_late(changes, [row])

    def test_a_row_that_arrives_between_two_statements_of_the_settling_is_found(self) -> None:
        other, statements = self.open(self.second), list[str]()
        changes = insert(record('ns0'))
        self.proxy.at_next_commit(Action.HOLD)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, changes)

        @sa.event.listens_for(self.elsewhere.engine, 'after_cursor_execute')
        def deliver(*arguments: Any) -> None:
            if not statements and 'assignments' in arguments[2]:
                statements.append(arguments[2])
                self.proxy.deliver()
                while not other.records():
                    time.sleep(0.01)

        self.assertTrue(self.elsewhere.settle(changes))
        self.assertEqual(changes.insert, tuple(self.elsewhere.records()))

    def check_arrives_late(self, changes: api.Changes, rows: list[Record]) -> None:
        self.proxy.at_next_commit(Action.HOLD)
        self.assertRaises(exception.OutcomeUnknown, self.store.write, changes)
        self.assertFalse(self.elsewhere.settle(changes))
        self.proxy.deliver()
        for store in (self.store, self.elsewhere):
            self.assertEqual(rows, store.records())
