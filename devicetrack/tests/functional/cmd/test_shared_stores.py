"""The commands on stores that hosts share: a database of this release, and none of it that shows a password."""

from __future__ import annotations

import json
from typing import Any
import uuid

import fixtures as base_fixtures
import sqlalchemy as sa

from devicetrack.store import api
from devicetrack.store.sql import models
from devicetrack.store.sql import schema
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.unit.cmd import program


class SharedStoreTestCase(base.TestCase):

    scenarios = [
        ('postgresql', {'database': databases.PostgreSQLStore}),
        ('mariadb', {'database': databases.MariaDBStore}),
    ]

    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.useFixture(self.database(synced=False))
        self.program = self.useFixture(program.Program(self.configuration))
        url = self.fixture.conf.devicetrack_database.connection
        self.config_file = program.write_configuration(
            self.state_path, self.conf, '[devicetrack_database]', f'connection = {url}')

    def test_from_an_empty_database_to_the_assignments_of_two_hosts(self) -> None:
        self.assertEqual(3, self.program.run('db', 'check').code)
        self.program.ask('db', 'sync')
        self.assertEqual(True, self.program.ask('db', 'check')['usable'])
        store = self.fixture.open()
        for name in ('compute-7', 'compute-8'):
            host = self.useFixture(fixtures.Host(
                devices=1, name=name, store=store,
                configuration=self.useFixture(fixtures.Configuration(machine=name))))
            host.spawn(pmem=1)
        found = self.program.ask('instance', 'list')
        self.assertEqual({('compute-7', 'd0'), ('compute-8', 'd0')},
                         {(one['host'], device['identifier']) for one in found for device in one['devices']})
        found = self.program.ask('instance', 'list', '--host', 'compute-8')
        self.assertEqual(['compute-8'], [one['host'] for one in found])
        self.assertIn('say which by KIND/ and --host', self.program.run('device', 'show', 'd0').err)
        self.assertEqual('compute-7', self.program.ask('device', 'show', 'd0', '--host', 'compute-7')['host'])

    def test_a_host_moves_from_its_file_to_the_database(self) -> None:
        host = self.useFixture(fixtures.Host(devices=2, configuration=self.configuration))
        instance = host.spawn(pmem=1)
        of_file = program.write_configuration(self.temp_dir(), self.conf)
        found = self.program.run('db', 'move', '--to', self.config_file, config_file=of_file)
        self.assertIn('manager', found.err)
        host.manager.close()
        self.assertIn('db sync', self.program.run('db', 'move', '--to', self.config_file, config_file=of_file).err)
        self.program.ask('db', 'sync', config_file=self.config_file)
        found = self.program.run('db', 'move', '--to', of_file, config_file=of_file)
        self.assertEqual((2, 1), (found.code, found.err.count('the same store')), found.err)
        found = self.program.ask('db', 'move', '--to', self.config_file, config_file=of_file)
        self.assertEqual(('moved', 1), (found['outcome'], found['rows']['assignments']))
        found = self.program.run('db', 'move', '--to', self.config_file, config_file=of_file)
        self.assertIn('was moved already', found.out)
        self.assertIn(self.config_file, found.err)
        found = self.program.run('device', 'list', config_file=of_file)
        self.assertEqual((1, 1), (found.code, found.err.count('has moved to another store')), found.err)
        [found] = self.program.ask('instance', 'list', config_file=self.config_file)
        self.assertEqual(instance.uuid, found['instance_uuid'])
        host.store.store = self.fixture.open()
        host.restart()

    def test_a_server_that_does_not_answer_is_named_without_its_account(self) -> None:
        url = self.fixture.store.engine.url
        nowhere = url.set(username='somebody', password='secret', host='127.0.0.1', port=9, query={})
        path = program.write_configuration(
            self.state_path, self.conf, '[devicetrack_database]',
            f'connection = {nowhere.render_as_string(hide_password=False)}')
        answer = self.program.run('db', 'version', config_file=path)
        self.assertEqual((1, 1), (answer.code, len(answer.err.splitlines())), answer.err)
        self.assertIn('127.0.0.1:9', answer.err)
        for word in ('somebody', 'secret'):
            self.assertNotIn(word, answer.err)


class StatementsTestCase(base.TestCase):
    """A command on a store that many hosts share asks it about what it shows."""

    scenarios = SharedStoreTestCase.scenarios

    def setUp(self) -> None:
        super().setUp()
        fixture = self.useFixture(self.database())
        self.store = fixture.open()
        self.program = self.useFixture(program.Program(self.useFixture(fixtures.Configuration(machine='compute-0'))))
        self.config_file = program.write_configuration(
            self.state_path, fixture.conf, '[devicetrack_database]',
            f'connection = {fixture.conf.devicetrack_database.connection}')
        self.read: list[tuple[str, int]] = []
        sa.event.listen(sa.Engine, 'after_cursor_execute', self.note)
        self.addCleanup(sa.event.remove, sa.Engine, 'after_cursor_execute', self.note)
        self.instances = [self.add(number) for number in range(3)]

    def note(self, connection: Any, cursor: Any, statement: str, *_args: Any) -> None:
        self.read.append((statement, cursor.rowcount))

    def add(self, number: int) -> str:
        """Add a host with a row, a withheld device, a declaration, an event and an operator request."""
        host = api.Host(f'{number:036}', f'compute-{number}', f'digest {number}')
        self.store.add_host(host)
        row = records.record('d0', host_uuid=host.uuid)
        self.store.write(records.insert(row))
        self.store.set_withheld([api.WithheldRow(host.uuid, 'vpmem', 'device', 'd1', '{}', 1, 1)])
        self.store.set_declarations(host.uuid, [api.StoredDeclaration(host.uuid, 'mdev', 'gpu', 'nvidia-35', '{}')])
        self.store.add_operator_request(api.OperatorRequest(str(uuid.UUID(int=number)), host.uuid, 'verb', '{}', 1))
        return row.instance_uuid

    def cost(self, *arguments: str) -> tuple[int, int]:
        """How many statements a command takes, and how many rows they find beside those of hosts."""
        self.read.clear()
        self.program.run(*arguments, config_file=self.config_file)
        return len(self.read), sum(rows for statement, rows in self.read if 'FROM hosts' not in statement)

    def test_other_hosts_cost_no_statement_and_no_row(self) -> None:
        asked = (
            ('device', 'show', 'nobody'), ('device', 'show', 'd0', '--host', 'compute-1'),
            ('device', 'history', 'nobody'), ('device', 'history', 'd1', '--host', 'compute-1'),
            ('device', 'history', '--serial', 'nobody'), ('instance', 'history', self.instances[1]),
            ('instance', 'history', str(uuid.UUID(int=999))), ('instance', 'show', str(uuid.UUID(int=999))),
            ('request', 'show', str(uuid.UUID(int=999))), ('host', 'forget', 'compute-1'),
            ('instance', 'list', '--device', 'nobody'), ('instance', 'list', '--host', 'compute-1'),
            ('instance', 'show', self.instances[1]), ('request', 'show', str(uuid.UUID(int=1))),
            ('request', 'list', '--host', 'compute-1'), ('migration', 'facts', '--host', 'compute-1'),
            ('migration', 'check', '--instance', self.instances[1], '--host', 'compute-2'),
            ('host', 'map', 'compute-1'))
        few = [self.cost(*arguments) for arguments in asked]
        for number in range(3, 60):
            self.add(number)
        self.assertEqual(dict(zip(asked, few, strict=True)), {one: self.cost(*one) for one in asked})

    def test_a_list_of_hosts_takes_as_many_statements_for_more_of_them(self) -> None:
        few, _rows = self.cost('host', 'list')
        for number in range(3, 12):
            self.add(number)
        self.store.set_withheld([api.WithheldRow(f'{number:036}', '', 'host', f'compute-{number}', json.dumps(
            {'cordoned': {'since': 1, 'detail': 'a new board', 'by': 'operator'}}), 1, 1) for number in (4, 5)])
        self.assertEqual(few, self.cost('host', 'list')[0])
        self.assertEqual([None] * 4 + ['a new board'] * 2 + [None] * 6, [
            one['cordoned'] for one in self.program.ask('host', 'list', config_file=self.config_file)])
        self.assertEqual([(1, 1, 0, 1, 1)] * 12, [
            (one['instances'], one['held'], one['releasing'], one['withheld_entries'], one['requests'])
            for one in self.program.ask('host', 'list', config_file=self.config_file)])

    def test_the_devices_of_all_hosts_take_as_many_statements_for_more_of_them_and_no_more_memory(self) -> None:
        few, _rows = self.cost('device', 'list', '--all')
        for number in range(3, 12):
            self.add(number)
        self.assertEqual(few, self.cost('device', 'list', '--all')[0])
        listed = self.program.ask('device', 'list', '--all', config_file=self.config_file)
        self.assertEqual([(f'compute-{number}', name, status) for number in range(12) for name, status in (
            ('d0', 'held'), ('d1', 'withheld'))], [(one['host'], one['identifier'], one['status']) for one in listed])
        self.assertEqual([f'compute-{number}' for number in (1, 10, 11)], [one['host'] for one in self.program.ask(
            'device', 'list', '--host', 'compute-1*', '--status', 'held', config_file=self.config_file)])
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.claims.report._AT_ONCE', 8))
        self.read.clear()
        self.assertEqual(listed, self.program.ask('device', 'list', '--all', config_file=self.config_file))
        found = [rows for statement, rows in self.read if 'FROM assignments' in statement and 'count' not in statement]
        self.assertEqual([3] * 4, found)

    def test_a_picture_of_all_hosts_takes_three_statements_for_each_and_a_page_two(self) -> None:
        page = ('host', 'map', '--all', '--output', f'{self.state_path}/hosts.html')
        few, few_of_page = self.cost('host', 'map', '--all')[0], self.cost(*page)[0]
        self.add(3)
        self.assertEqual(few + 3, self.cost('host', 'map', '--all')[0])
        self.assertEqual(few_of_page + 2, self.cost(*page)[0])


class PagesTestCase(base.TestCase):
    """Rows are converted and checked in pages, which must not read the table from its beginning."""

    def test_a_page_in_a_large_table_reads_its_own_rows(self) -> None:
        store = self.useFixture(databases.MariaDBStore()).store
        store.transact(lambda connection: connection.execute(sa.insert(models.assignments), [
            records.record(f'd{number:05}')._asdict() for number in range(3000)]))
        seen: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_others: Any) -> None:
            seen.append((statement, parameters))

        sa.event.listen(store.engine, 'before_cursor_execute', note)
        self.assertEqual(0, schema.migrate_details(store, max_rows=0).converted)
        sa.event.remove(store.engine, 'before_cursor_execute', note)
        pages = [one for one in seen if 'LIMIT' in one[0]]
        self.assertEqual(31, len(pages))
        with store.reading() as connection:
            for statement, parameters in pages:
                [plan] = connection.exec_driver_sql(f'ANALYZE {statement}', parameters).mappings()
                self.assertLessEqual(float(plan['r_rows'] or 0), 101, str(plan))
