"""The commands on stores that hosts share: a database of this release, and none of it that shows a password."""

from __future__ import annotations

from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.tests import base
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
