"""The accounts of a mirror may do what the documentation grants them, and no more."""

from __future__ import annotations

import pathlib
import re
from typing import Any
import uuid

import fixtures as base_fixtures
import sqlalchemy as sa

import devicetrack
from devicetrack import exception
from devicetrack.cmd import base as cmd_base
from devicetrack.fleet import models
from devicetrack.fleet import push
from devicetrack.fleet.mirror import Mirror
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.functional.fleet import hosts
from devicetrack.tests.unit.cmd import program

_PAGE = pathlib.Path(devicetrack.__file__).parent.parent / 'doc' / 'source' / 'admin' / 'fleet.rst'
# psql's, which has no semicolon.
_CONNECT = r'\connect mirror'
# A statement that waits for a lock of this test must fail, and not hang.
_LOCK_S = 20


def _documented(kind: str) -> list[str]:
    """The statements that make the accounts, as the page has them for a server."""
    text = _PAGE.read_text(encoding='utf-8').partition(f'On {kind}::\n')[2]
    block = re.match(r'\n(?: {7,}\S.*\n|\n)+', text)
    assert block is not None
    return [' '.join(one.split()) for one in re.split(rf';|(?<={re.escape(_CONNECT)})\n', block[0]) if one.strip()]


class AccountsTestCase(base.TestCase):
    scenarios = databases.SERVER_SCENARIOS
    database: type[databases.ServerStore]

    def setUp(self) -> None:
        super().setUp()
        server = self.useFixture(self.database(synced=False)).server
        mark = uuid.uuid4().hex[:8]
        self.names = {name: f'{name}_{mark}' for name in ('mirror', 'mirror_owner', 'mirror_push', 'mirror_read')}
        drop = 'DROP ROLE' if server.kind == 'PostgreSQL' else 'DROP USER'
        place = server
        self.urls: dict[str, str] = {}
        for statement in _documented(server.kind):
            account = re.search(r"(mirror_\w+) (?:LOGIN PASSWORD|IDENTIFIED BY) '(\w+)'", statement)
            if account is not None:
                self.urls[account[1]] = server.url(self.names['mirror']).set(
                    username=self.names[account[1]], password=account[2]).render_as_string(hide_password=False)
                self.addCleanup(server.administer, f'{drop} {self.names[account[1]]}')
            if statement == _CONNECT:
                place = self._at(server)
                continue
            place.administer(re.sub(r'\bmirror(_\w+)?', lambda found: self.names[found[0]], statement))
            if statement.startswith('CREATE DATABASE'):
                self.addCleanup(server.drop_database, self.names['mirror'])
        self.mirrors = {name: self._mirror(url) for name, url in self.urls.items()}
        self.mirrors['mirror_owner'].sync(days=30)
        self.pushing = self.useFixture(hosts.PushingHost('compute-1', parents={'gpu': 2}))

    def _at(self, server: Any) -> Any:
        """The administrator in the database of the mirror."""
        engine = sa.create_engine(server.url(self.names['mirror']), isolation_level='AUTOCOMMIT',
                                  poolclass=sa.pool.NullPool)

        class Place:
            def administer(self, statement: str) -> None:
                with engine.connect() as connection:
                    connection.exec_driver_sql(statement)

        return Place()

    def _mirror(self, url: str) -> Mirror:
        conf = self.useFixture(fixtures.Configuration()).conf
        conf.set_override('connection', url, 'devicetrack_fleet')
        conf.set_override('busy_timeout_s', _LOCK_S, 'devicetrack_database')
        mirror = Mirror(conf)
        self.addCleanup(mirror.close)
        return mirror

    def run_as(self, account: str, *arguments: str) -> program.Answer:
        directory = self.useFixture(base_fixtures.TempDir()).path
        with open(f'{directory}/mirror.conf', 'w', encoding='utf-8') as file:
            file.write(f'[devicetrack_fleet]\nconnection = {self.urls[account]}\n')
        ours = self.useFixture(program.Program(self.pushing.host.configuration))
        return ours.run(*arguments, '-f', 'json', config_file=f'{directory}/mirror.conf')

    def test_hosts_push_and_operators_read(self) -> None:
        instance = self.pushing.host.spawn(pmem=1)
        for _time in range(2):
            self.pushing.push(self.mirrors['mirror_push'])
            self.pushing.host.delete(self.pushing.host.spawn(pmem=1))
        for question in (['host', 'list'], ['device', 'list'], ['capacity'], ['migration', 'matrix'],
                         ['instance', 'history', instance.uuid]):
            answer = self.run_as('mirror_read', 'fleet', *question)
            self.assertEqual(cmd_base.OK, answer.code, answer.err)
        push.trim(self.mirrors['mirror_push'], [self.pushing.uuid], 30, 0)
        self.mirrors['mirror_push'].transact(lambda connection: connection.execute(
            sa.update(models.fleet_hosts).values(read_at_ms=0)))
        self.assertEqual(self.pushing.uuid, push.forget(self.mirrors['mirror_push'], 'compute-1'))

    def test_the_owner_brings_the_schema_to_a_later_release_while_a_host_has_just_pushed(self) -> None:
        self.pushing.push(self.mirrors['mirror_push'])
        owner = self.mirrors['mirror_owner']
        with owner.unhurried() as database:
            database.transact(lambda connection: connection.execute(sa.text('DROP TABLE fleet_parts')))
        owner.sync(days=30)
        self.pushing.host.spawn(pmem=1)
        # The accounts may use the table that the later release adds.
        self.pushing.push(self.mirrors['mirror_push'])
        self.assertEqual(cmd_base.OK, self.run_as('mirror_read', 'fleet', 'capacity', '--request', 'VGPU=1').code)

    def test_more_is_refused_and_the_error_says_what_to_do(self) -> None:
        for account, work in (
                ('mirror_push', sa.text('CREATE TABLE more (number INTEGER)')),
                ('mirror_push', sa.text('DROP TABLE fleet_events')),
                ('mirror_push', sa.text('ALTER TABLE fleet_events ADD COLUMN more INTEGER')),
                ('mirror_read', sa.update(models.fleet_hosts).values(name='x')),
                ('mirror_read', sa.delete(models.fleet_events))):
            mirror = self.mirrors[account]
            error = self.assertRaises(exception.StoreUnavailable, mirror.transact,
                                      lambda connection, work=work: connection.execute(work))
            self.assertRegex(str(error), r'permission denied \(.+\): grant the account of \[devicetrack_fleet\] conn')
            self.assertNotIn('read-only', str(error))
        self.assertRaises(exception.StoreUnavailable, self.mirrors['mirror_read'].sync, days=1)
        self.assertEqual(30, self.mirrors['mirror_read'].terms().days)
        self.assertRaises(exception.StoreUnavailable, self.pushing.push, self.mirrors['mirror_read'])
