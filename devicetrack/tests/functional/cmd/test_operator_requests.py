"""Operator requests, and what else changes rows of one host, on stores that hosts share."""

from __future__ import annotations

from typing import Any

from devicetrack.cmd import base as cmd_base
from devicetrack.store.api import Changes
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program


class SharedStoreTestCase(base.TestCase):
    """Two hosts; every command is run on the first."""

    scenarios = [
        ('postgresql', {'database': databases.PostgreSQLStore}),
        ('mariadb', {'database': databases.MariaDBStore}),
    ]

    def setUp(self) -> None:
        super().setUp()
        database = self.useFixture(self.database())
        self.hosts = [self.useFixture(fixtures.Host(
            devices=2, name=name, store=database.open(), configuration=configuration))
            for name, configuration in (
                ('compute-7', self.configuration),
                ('compute-8', self.useFixture(fixtures.Configuration(machine='compute-8'))))]
        self.program = self.useFixture(program.Program(self.configuration, self.hosts[0].machine))
        url = database.conf.devicetrack_database.connection
        self.config_file = program.write_configuration(
            self.state_path, self.conf, '[devicetrack_database]', f'connection = {url}')

    def run_to(self, code: int, *arguments: str) -> Any:
        answer = self.program.run(*arguments, '-f', 'json')
        self.assertEqual(code, answer.code, answer.err)
        return answer.data

    def test_a_request_is_for_its_host_alone(self) -> None:
        here, there = self.hosts
        _older, instances = ([host.spawn(pmem=1) for host in self.hosts] for _ in range(2))
        for host, instance in zip(self.hosts, instances, strict=True):
            host.store.store.write(Changes(delete=tuple(host.records(instance))))
            host.restart()
        self.run_to(cmd_base.OK, 'audit', '--repair', '--accept', '--no-wait')
        there.audit()
        self.assertEqual((1, 1), (len(here.records()), len(there.records())))
        self.assertEqual([], here.audit())
        self.assertEqual((2, 1), (len(here.records()), len(there.records())))
        [request] = self.run_to(cmd_base.OK, 'request', 'list')
        self.assertEqual(('compute-7', 'done'), (request['host'], request['outcome']))

    def test_what_is_cordoned_is_so_on_its_host_alone_and_over_a_restart(self) -> None:
        here, there = self.hosts
        self.run_to(cmd_base.OK, 'device', 'cordon', 'vpmem/d0', '--reason', 'firmware', '--no-wait')
        there.audit()
        here.audit()
        for again in (here.restart, there.restart, here.audit):
            again()
            self.assertEqual(('withheld: cordoned', FREE), (here.states()['d0'], there.states()['d0']))
        [line] = self.run_to(cmd_base.OK, 'device', 'list', '--withheld')
        self.assertEqual(('vpmem/d0', [('cordoned', 'firmware', 'operator')]), (line['device'], [
            (reason['reason'], reason['detail'], reason['by']) for reason in line['reasons']]))
        here.manager.close()
        self.run_to(cmd_base.OK, 'device', 'uncordon', 'vpmem/d0')
        here.restart()
        self.assertEqual(FREE, here.states()['d0'])

    def test_rows_that_were_lost_come_back_and_no_others_change(self) -> None:
        here, there = self.hosts
        instances = [here.spawn(pmem=1), there.spawn(pmem=1)]
        here.store.store.write(Changes(delete=tuple(here.records())))
        here.manager.close()
        before = there.records()
        found = self.run_to(cmd_base.OK, 'recover', '--from-hypervisor', '--wipe-unrecorded')
        self.assertEqual({('compute-7', 'write', instances[0].uuid), ('compute-7', 'wipe', None)},
                         {(row['host'], row['outcome'], row['instance_uuid']) for row in found})
        self.assertEqual([], here.restart())
        self.assertEqual({'d0': 'active', 'd1': FREE}, here.states())
        self.assertEqual(before, there.records())

    def test_what_a_machine_that_is_gone_had_is_forgotten(self) -> None:
        instance = self.hosts[1].spawn(pmem=1)
        self.hosts[1].manager.close()
        shown = self.run_to(cmd_base.OK, 'device', 'forget', 'vpmem/d0', '--host', 'compute-8', '--machine-gone',
                            '--confirm', instance.uuid)
        self.assertEqual(('forgotten', 'compute-8'), (shown['outcome'], shown['host']))
        self.assertEqual([], self.hosts[1].records())
