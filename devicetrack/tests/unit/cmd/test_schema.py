"""What the commands print with ``-f json``, against the schema that the documentation has."""

from __future__ import annotations

import functools
from importlib import metadata
import pathlib
from typing import Any

import jsonschema
import yaml

from devicetrack import exception
from devicetrack.cmd import manage
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import WipeProgress
from devicetrack.testing import fake
from devicetrack.tests.unit.cmd.test_repair import RepairCommandTestCase
from devicetrack.tests.unit.fleet import fleets

D0, D1 = (DeviceKey(fake.VPMEM, name) for name in ('d0', 'd1'))
SCHEMA = pathlib.Path(__file__).parents[4] / 'doc' / 'source' / 'cli' / 'schema.yaml'

# Theirs are seen where a placement service runs: devicetrack/tests/functional/placement.
ELSEWHERE = {'placement audit', 'placement audit --repair', 'placement heal', 'placement sync'}

# Pictures are for people, and Prometheus has a format of its own.
NO_JSON = {'fleet map', 'host map', 'metrics'}


@functools.cache
def read() -> dict[str, Any]:
    whole: dict[str, Any] = yaml.safe_load(SCHEMA.read_text(encoding='utf-8'))
    return whole


def schema_of(command: str) -> dict[str, Any]:
    whole = read()
    return {'$schema': whole['$schema'], '$defs': whole['$defs'], **whole['commands'][command]}


class SchemaTestCase(RepairCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.seen: set[str] = set()
        self.instance = self.host.spawn(pmem=1, vgpu=1)

    def ask(self, command: str, *arguments: str) -> Any:
        """The answer of a command, which must be as the schema says."""
        answer = self.program.run(*command.split(), *arguments, '-f', 'json')
        self.assertNotIn(answer.code, (1, 2), answer.err)
        schema = schema_of(command)
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(answer.data, schema)
        self.seen.add(command)
        return answer.data

    def test_every_command_has_a_schema_and_answers_by_it(self) -> None:
        self._reports()
        self._requests()
        self._of_migrations()
        self._of_the_fleet()
        self._in_the_place_of_the_manager()
        self._moved()
        names = {one.name.replace('_', ' ') for one in metadata.entry_points(group=manage.NAMESPACE)}
        schemas = set(read()['commands'])
        self.assertEqual(names - NO_JSON, {name.removesuffix(' --repair') for name in schemas})
        self.assertEqual(schemas - ELSEWHERE, self.seen)

    def _reports(self) -> None:
        self.machine.change(D1, unhealthy='read-only')
        self.host.manager.operator.cordon('mdev', 'gpu', parent=True, reason='firmware')
        self.machine.wiping[D1] = WipeProgress('verify', 1 << 30, 4 << 30, 512 << 20, None)
        self.host.audit()
        self.assertEqual(4, len(self.ask('device list')))
        for name in ('d0', 'd1', self.host.mdevs()[0]):
            self.ask('device show', name)
        self.machine.before('get_inventory', exception.HypervisorUnreachable('fake', 'restarting'), times=1)
        self.assertIsNone(self.ask('device show', 'd0')['status'])
        self.ask('host list')
        self.ask('host show')
        self.assertEqual(2, len(self.ask('instance list')[0]['devices']))
        self.ask('instance show', self.instance.uuid)
        self.assertEqual(6, len(self.ask('instance history', self.instance.uuid)))
        for name in ('d0', 'd1', 'gpu'):
            self.assertTrue(self.ask('device history', name))
        self.assertTrue(self.ask('explain', '--resource', 'CUSTOM_PMEM_NAMESPACE_4GB=2')[0]['withheld_devices'])
        self.assertTrue(self.ask('audit'))
        for command in ('version', 'check', 'sync', 'online-data-migrations'):
            self.ask(f'db {command}')

    def _moved(self) -> None:
        new = pathlib.Path(self.state_path, 'new.conf')
        new.write_text(f'[devicetrack_database]\nconnection = sqlite:///{self.state_path}/new/devicetrack.sqlite\n',
                       encoding='utf-8')
        self.host.manager.close()
        self.program.run('db', 'sync', config_file=str(new))
        self.ask('db move', '--to', str(new))

    def _requests(self) -> None:
        self.machine.change(D0, devpath='/dev/dax9.0')
        self.assertTrue(self.ask('audit --repair', '--no-wait'))
        self.ask('device cordon', 'vpmem/d0', '--no-wait')
        self.assertEqual(['waiting', 'waiting'], [one['outcome'] for one in self.ask('request list')])
        self.host.audit()
        shown = [self.ask('request show', one['request_uuid']) for one in self.ask('request list')]
        self.assertEqual([1, 0], [len(one['repairs']) for one in shown])

    def _of_migrations(self) -> None:
        self.assertTrue(self.ask('migration facts'))
        self.assertEqual([], self.ask('migration matrix'))
        table = pathlib.Path(self.state_path, 'table.yaml')
        table.write_text('types: {mdev: {nvidia-35: {version: 2.1.0}}}\n', encoding='utf-8')
        self.ask('migration table', '--table', str(table))
        facts = pathlib.Path(self.state_path, 'facts.json')
        facts.write_text(self.program.run('migration', 'facts', '-f', 'json').out.replace('compute-7', 'compute-8'),
                         encoding='utf-8')
        self.assertTrue(self.ask('migration matrix', '--facts', str(facts)))
        self.ask('migration check', '--instance', self.instance.uuid, '--host', 'compute-8', '--facts', str(facts))

    def _of_the_fleet(self) -> None:
        url = f'sqlite:///{self.state_path}/mirror/mirror.sqlite'
        fleet = self.useFixture(fleets.Fleet(url))
        fleet.push(self.host, {'d0': 'S-1'})
        with open(self.program.config_file, 'a', encoding='utf-8') as file:
            file.write(f'[devicetrack_fleet]\nconnection = {url}\n')
        self.ask('fleet sync')
        self.assertEqual(4, len(self.ask('fleet device list')))
        self.assertTrue(self.ask('fleet device history', '--serial', 'S-1'))
        self.assertTrue(self.ask('fleet instance history', self.instance.uuid))
        self.assertEqual([3], [one['devices'] + one['creatable'] for one in self.ask('fleet host list')])
        self.assertTrue(self.ask('fleet capacity', '--request', 'VGPU=1'))
        self.assertEqual(2, len(self.ask('fleet capacity')))
        self.ask('fleet migration matrix')
        self.assertEqual([{'CUSTOM_PMEM_NAMESPACE_4GB': 1, 'VGPU': 1}],
                         [one['devices'] for one in self.ask('fleet drain', self.host.name)])
        fleet.grow_old(self.host, 3600)
        self.assertEqual({'unknown'}, {one['status'] for one in self.ask('fleet device list')})
        self.assertFalse(self.ask('fleet push')['events'])
        fleet.grow_old(self.host, 3600)
        self.ask('fleet forget', 'compute-7')

    def _in_the_place_of_the_manager(self) -> None:
        self.host.manager.close()
        self.machine.change(D1, unhealthy=None)
        self.machine.wiping.clear()
        self.assertTrue(self.ask('recover', '--from-hypervisor', '--dry-run'))
        self.ask('device uncordon', 'mdev/gpu', '--parent')
        self.ask('host cordon', '--reason', 'firmware')
        self.ask('host uncordon')
        self.machine.delete_guest(self.instance.uuid)
        self.machine.remove(D0)
        self.ask('device forget', 'vpmem/d0', '--confirm', self.instance.uuid)
        self.machine.add_namespace('d0')
        self.ask('device admit', 'vpmem/d0')
        self.ask('instance release', self.instance.uuid, '--yes')
        self.assertEqual([], self.ask('instance list'))
        self.assertEqual({'claimed', 'realized', 'started', 'forgotten', 'released', 'freed'}, {
            one['event'] for one in self.ask('instance history', self.instance.uuid)} - {'withheld'})
        self.host.restart()
        leaving = self.host.spawn(pmem=1)
        [row] = self.host.records()
        self.machine.delete_guest(leaving.uuid)
        self.machine.before('wipe', exception.UnclaimFailed('vpmem', row.identifier, 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, None, leaving)
        self.host.manager.close()
        self.ask('device retire', f'vpmem/{row.identifier}', '--confirm', leaving.uuid)
        self.machine.clear()
        self.ask('device wipe', f'vpmem/{row.identifier}')
        self.host.store.add_host(self.host.store.hosts()[0]._replace(uuid='7c9e6f2e-3a58-4a0e-8a53-0b8a3f8f0001',
                                                                     name='of-yesterday'))
        self.ask('host forget', 'of-yesterday')
        self.assertIn('retired', {one['event'] for one in self.ask('device history', f'vpmem/{row.identifier}')})
