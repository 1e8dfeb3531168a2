"""Whether guests could go to other hosts: what the commands say by what hosts declared, and with which exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
from typing import Any
import uuid

import yaml

from devicetrack.cmd import base as cmd_base
from devicetrack.cmd import migration
from devicetrack.compatibility import host_facts
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program
from devicetrack.virt import loader

# The program of these tests has another in its place.
LOAD_DRIVER = loader.load_driver
MINOR = 'the guest may have seen version 2.1.0, the destination has the older 2.0.0'
NOTE = 'versions cannot be compared: 2.1.0 at the source, unknown (no source knows it) at the destination'


class MigrationCommandTestCase(base.TestCase):
    """compute-7 and compute-8 share a store. Both have a card; the version of its type is 2.1.0 on the first."""

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1, parents={'gpu': 4}, name='compute-7'))
        self.store = self.host.store.store
        self.there = self.another('compute-8', devices=1, parents={'gpu': 4})
        self.program = self.useFixture(program.Program(self.host.configuration))
        self.declare(self.host, '2.1.0')

    def another(self, name: str, **arguments: Any) -> fixtures.Host:
        configuration = self.useFixture(fixtures.Configuration(machine=name))
        return self.useFixture(fixtures.Host(name=name, configuration=configuration, store=self.store, **arguments))

    def declare(self, host: fixtures.Host, version: str) -> None:
        host.machine.declare(MigrationType(fake.MDEV, 'gpu', 'nvidia-35', Attribute(version)))
        host.audit()

    def damage(self, host: fixtures.Host, kind: str) -> None:
        """Let a newer release have written what a host declares of a kind."""
        rows = self.store.declarations_of_host(host.manager.state().host_uuid)
        self.store.set_declarations(host.manager.state().host_uuid, [
            row._replace(document='{"version_form": "dated"}') if row.kind == kind else row for row in rows])

    def file(self, content: Any, name: str = 'facts.json') -> str:
        path = os.path.join(self.state_path, name)
        with open(path, 'w', encoding='utf-8') as file:
            json.dump(content, file)
        return path

    def configure(self, *lines: str) -> str:
        return program.write_configuration(self.state_path, self.host.conf, '[devicetrack_compatibility]', *lines)

    def elsewhere(self, *hosts: str) -> str:
        """A file of what is in this store, as if it were another one: its hosts get these names."""
        rows = self.program.ask('migration', 'facts')
        return self.file([{**row, 'host': hosts[row['host'] == 'compute-8']} for row in rows])


class EndlessFactsTestCase(MigrationCommandTestCase):

    def test_a_file_without_end_and_one_that_is_nested_too_deep_are_refused(self) -> None:
        deep = os.path.join(self.state_path, 'deep.json')
        with open(deep, 'w', encoding='ascii') as file:
            file.write('[' * 1_000_000)
        for path in ('/dev/zero', deep):
            answer = self.program.run('migration', 'matrix', '--facts', path)
            self.assertEqual((cmd_base.USAGE, 1), (answer.code, answer.err.count('\n')), answer.err)
            self.assertIn(path, answer.err)
            self.assertLess(len(answer.err), 1000)


class FactsTestCase(MigrationCommandTestCase):

    def test_what_each_host_declares(self) -> None:
        rows = self.program.ask('migration', 'facts')
        self.assertEqual([('compute-7', 'mdev', 'gpu', 'nvidia-35', 'numbered', '2.1.0', {'version': 'sysfs'}),
                          ('compute-8', 'mdev', 'gpu', 'nvidia-35', 'unknown', 'no source knows it', {})],
                         [tuple(row[name] for name in ('host', 'kind', 'parent', 'type', 'version_form', 'version',
                                                       'sources')) for row in rows if row['kind'] == 'mdev'])
        self.assertEqual({('compute-7', 'none needed'), ('compute-8', 'none needed')},
                         {(row['host'], row['version_form']) for row in rows if row['kind'] == 'vpmem'})
        self.assertEqual({host_facts.COLUMNS}, {tuple(row) for row in rows})

    def test_of_some_hosts(self) -> None:
        rows = self.program.ask('migration', 'facts', '--host', 'compute-8')
        self.assertEqual({'compute-8'}, {row['host'] for row in rows})
        answer = self.program.run('migration', 'facts', '--host', 'compute-9')
        self.assertEqual((cmd_base.ERROR, 'devicetrack-manage: the store has no host compute-9; its hosts: compute-7, '
                                          'compute-8\n'), (answer.code, answer.err))

    def test_a_table_has_versions_in_words(self) -> None:
        answer = self.program.run('migration', 'facts', '--max-width', '80')
        self.assertEqual((cmd_base.OK, 'devicetrack-manage: no room for the column sources: --long shows more, -c NAME '
                          'chooses columns\n'), (answer.code, answer.err))
        for text in ('2.1.0 ', 'unknown (no source knows it)', 'none needed'):
            self.assertIn(text, answer.column('version'))
        self.assertIn('version=sysfs', self.program.run('migration', 'facts', '--long').column('sources'))

    def test_a_table_has_columns_that_something_is_in(self) -> None:
        self.assertEqual(['host', 'kind', 'parent', 'type', 'version', 'sources'], self.header())
        self.host.machine.declare(MigrationType(fake.MDEV, 'gpu', 'nvidia-35', Attribute('2.1.0'), Attribute('4'),
                                                '550.54.10'))
        self.host.audit()
        self.assertLess({'aggregation', 'sources', 'driver'}, set(self.header('--long')))
        narrow = self.program.run('migration', 'facts', '--max-width', '80').out
        self.assertLessEqual(max(map(len, narrow.splitlines())), 80)
        self.assertEqual(['550.54.10'], [row['driver'] for row in self.program.ask('migration', 'facts')
                                         if row['driver']])

    def header(self, *arguments: str) -> list[str]:
        return self.program.run('migration', 'facts', *arguments).out.splitlines()[1].replace('|', ' ').split()

    def test_every_other_format_has_everything(self) -> None:
        as_json = self.program.ask('migration', 'facts')
        self.assertEqual(as_json, yaml.safe_load(self.program.run('migration', 'facts', '-f', 'yaml').out))
        rows = list(csv.DictReader(io.StringIO(self.program.run('migration', 'facts', '-f', 'csv').out)))
        self.assertEqual(list(as_json[0]), list(rows[0]))
        self.assertEqual(('numbered', '2.1.0'), (rows[0]['version_form'], rows[0]['version']))
        answer = self.program.run('migration', 'facts', '-f', 'value', '-c', 'host', '-c', 'version')
        self.assertIn('compute-7 2.1.0\n', answer.out)

    def test_what_cannot_be_read_has_a_row_and_needs_attention(self) -> None:
        self.damage(self.there, 'mdev')
        answer = self.program.run('migration', 'facts', '-f', 'json')
        [row] = [row for row in answer.data if row['problem']]
        self.assertEqual((cmd_base.ATTENTION, 'compute-8', 'mdev', 'gpu', 'nvidia-35'),
                         (answer.code, *(row[name] for name in ('host', 'kind', 'parent', 'type'))))
        self.assertIn('cannot be read: declaration of mdev nvidia-35', row['problem'])
        self.assertEqual(4, len(answer.data))

    def test_a_host_that_declares_nothing_has_a_row_that_says_so(self) -> None:
        self.another('compute-9')
        row = self.program.ask('migration', 'facts')[-1]
        self.assertEqual({'host': 'compute-9', 'problem': 'the host declares nothing'},
                         {name: value for name, value in row.items() if value is not None})
        self.assertEqual(cmd_base.OK, self.program.run('migration', 'facts').code)


class CheckTestCase(MigrationCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.host.spawn(pmem=1, vgpu=1)

    def check(self, code: int, *arguments: str, host: str = 'compute-8', config_file: str | None = None) -> Any:
        """What is said of the vGPU, and stderr."""
        answer = self.program.run('migration', 'check', '--instance', self.instance.uuid, '--host', host,
                                  '-f', 'json', *arguments, config_file=config_file)
        self.assertEqual(code, answer.code, answer.err)
        rows = answer.data if answer.out else []
        return next((row for row in rows if row['kind'] == 'mdev'), None), answer.err

    def test_a_guest_that_could_go(self) -> None:
        self.declare(self.there, '2.1.4')
        row, err = self.check(cmd_base.OK)
        self.assertEqual('devicetrack-manage: the guest could go to host compute-8, if that has room\n', err)
        [vgpu] = [record for record in self.host.records(self.instance) if record.kind == fake.MDEV]
        choice = {'kind': 'mdev', 'type': 'nvidia-35', 'version_form': 'numbered', 'version': '2.1.4',
                  'accepted': True, 'reasons': [], 'notes': [], 'parents': ['gpu']}
        self.assertEqual({
            'instance_uuid': self.instance.uuid, 'source': 'compute-7', 'destination': 'compute-8', 'kind': 'mdev',
            'device': f'mdev/{vgpu.identifier}',
            'identifier': vgpu.identifier, 'type': 'nvidia-35', 'version_form': 'numbered', 'version': '2.1.0',
            'seen': '2.1.0', 'verdict': 'yes', 'partner_kind': 'mdev', 'partner_type': 'nvidia-35',
            'partner_parents': ['gpu'], 'reasons': '', 'notes': '', 'choices': [choice], 'unknown': []}, row)

    def test_one_that_an_option_lets_pass(self) -> None:
        row, _err = self.check(cmd_base.OK)
        self.assertEqual(('yes*', '', NOTE), (row['verdict'], row['reasons'], row['notes']))
        row, _err = self.check(cmd_base.ATTENTION, config_file=self.configure('require_version = true'))
        self.assertEqual(('no', NOTE), (row['verdict'], row['reasons']))

    def test_strictly_what_is_let_pass_needs_attention(self) -> None:
        row, err = self.check(cmd_base.ATTENTION, '--strict')
        self.assertEqual(('yes*', NOTE), (row['verdict'], row['notes']))
        self.assertIn('the guest could go to host compute-8 only because an option or the table allows it: see the '
                      'notes\n', err)
        self.declare(self.there, '2.1.4')
        self.check(cmd_base.OK, '--strict')
        self.damage(self.there, 'vpmem')
        self.check(cmd_base.ERROR, '--strict')

    def crossing(self) -> tuple[str, str]:
        """Facts of compute-9, which has virtual functions, and a table by which a vGPU may become one."""
        path = os.path.join(self.state_path, 'table.yaml')
        with open(path, 'w', encoding='utf-8') as file:
            file.write('cross_kind:\n  - {from: {kind: mdev, type: nvidia-35}, to: {kind: vf, type: "558"}}\n')
        rows = self.program.ask('migration', 'facts', '--host', 'compute-7')
        facts = self.file([{**row, 'host': 'compute-9',
                            **({'kind': 'vf', 'type': '558'} if row['kind'] == 'mdev' else {})} for row in rows])
        return facts, path

    def test_one_that_the_table_lets_pass(self) -> None:
        facts, path = self.crossing()
        self.patch(fake.FakeDriver, 'can_become', lambda _driver, _source, _destination: True)
        row, _err = self.check(cmd_base.OK, '--facts', facts, host='compute-9',
                               config_file=self.configure(f'table = {path}'))
        self.assertEqual(('yes*', 'vf', '558'), (row['verdict'], row['partner_kind'], row['partner_type']))
        self.check(cmd_base.ATTENTION, '--facts', facts, host='compute-9')

    def test_one_that_the_table_lets_pass_and_libvirt_does_not(self) -> None:
        facts, path = self.crossing()
        self.patch(loader, 'load_driver', LOAD_DRIVER)
        config_file = self.configure(f'table = {path}', '[devicetrack]', 'virt_driver = libvirt', '[libvirt]',
                                     'connection_uri = nowhere:///')
        row, _err = self.check(cmd_base.ATTENTION, '--facts', facts, host='compute-9', config_file=config_file)
        self.assertEqual('no', row['verdict'])
        answer = self.program.run('migration', 'matrix', '--facts', facts, '-f', 'json', config_file=config_file)
        self.assertEqual({'no'}, {one['verdict'] for one in answer.data if one['type'] == 'nvidia-35'
                                  and 'compute-7' in one['sources'] and 'compute-9' in one['destinations']})

    def test_one_that_could_not_go(self) -> None:
        self.declare(self.there, '2.0.0')
        row, err = self.check(cmd_base.ATTENTION)
        self.assertEqual('devicetrack-manage: the guest cannot go to host compute-8\n', err)
        self.assertEqual(('no', None, MINOR),
                         (row['verdict'], row['partner_type'], row['reasons']))
        self.assertEqual([{'about': 'minor version', 'source': '2.1.0', 'destination': '2.0.0'}],
                         row['choices'][0]['reasons'])

    def test_what_the_guest_has_seen_and_not_what_its_device_has_now(self) -> None:
        self.declare(self.host, '2.2.0')
        self.declare(self.there, '2.1.0')
        row, _err = self.check(cmd_base.OK)
        self.assertEqual(('2.2.0', '2.1.0'), (row['version'], row['seen']))

    def test_an_obstacle(self) -> None:
        self.there.machine.live_migration_obstacles[fake.MDEV] = 'QEMU is too old'
        self.there.audit()
        row, _err = self.check(cmd_base.ATTENTION)
        self.assertIn('at the destination, QEMU is too old', row['reasons'])

    def test_a_table_says_why_and_every_format_has_the_words(self) -> None:
        self.declare(self.there, '2.0.0')
        arguments = ('migration', 'check', '--instance', self.instance.uuid, '--host', 'compute-8')
        for more in ((), ('-f', 'csv'), ('-f', 'value'), ('-f', 'yaml')):
            answer = self.program.run(*arguments, *more)
            self.assertEqual(cmd_base.ATTENTION, answer.code)
            self.assertIn(MINOR, ' '.join(answer.out.split()) if more else answer.column('reasons'))
        self.assertNotIn('choices', self.program.run(*arguments).out)

    def test_a_host_of_another_store(self) -> None:
        facts = self.elsewhere('compute-9', 'compute-10')
        row, _err = self.check(cmd_base.OK, '--facts', facts, host='compute-9')
        self.assertEqual(('yes', 'compute-9'), (row['verdict'], row['destination']))

    def test_of_a_host_in_the_store_the_file_does_not_count(self) -> None:
        facts = self.elsewhere('compute-8', 'compute-9')
        row, _err = self.check(cmd_base.OK, '--facts', facts)
        self.assertEqual('yes*', row['verdict'])

    def test_an_instance_in_capitals(self) -> None:
        answer = self.program.run('migration', 'check', '--instance', self.instance.uuid.upper(), '--host', 'compute-8')
        self.assertEqual(cmd_base.OK, answer.code, answer.err)

    def test_what_cannot_be_told_is_an_error(self) -> None:
        self.another('compute-9')
        for arguments, says in (
                (('--instance', str(uuid.uuid4()), '--host', 'compute-8'), 'the store has no device that it has now'),
                (('--instance', self.instance.uuid, '--host', 'compute-10'), 'no host compute-10 is known, in the '
                 'store or in a file of --facts; there are compute-7, compute-8, compute-9'),
                (('--instance', self.instance.uuid, '--host', 'compute-9'), 'host compute-9 declares nothing')):
            answer = self.program.run('migration', 'check', *arguments)
            self.assertEqual((cmd_base.ERROR, '', True), (answer.code, answer.out, says in answer.err), answer.err)

    def test_what_cannot_be_read_of_the_destination_may_be_a_partner(self) -> None:
        self.damage(self.there, 'mdev')
        row, err = self.check(cmd_base.ERROR)
        self.assertEqual('unknown', row['verdict'])
        self.assertIn('cannot be read', row['reasons'])
        self.assertIn('host compute-8: mdev nvidia-35 at gpu: cannot be read', err)
        self.assertIn('it is unknown whether the guest could go to host compute-8\n', err)

    def test_what_cannot_be_read_and_is_not_needed_is_reported_and_changes_nothing(self) -> None:
        self.instance = self.host.spawn(vgpu=1)
        self.damage(self.there, 'vpmem')
        _row, err = self.check(cmd_base.OK)
        self.assertIn('host compute-8: vpmem', err)

    def test_what_cannot_be_read_of_the_source(self) -> None:
        self.damage(self.host, 'mdev')
        row, _err = self.check(cmd_base.ERROR)
        self.assertEqual(('unknown', None), (row['verdict'], row['version']))
        self.assertIn('at the source, cannot be read', row['reasons'])

    def test_a_refusal_is_one_whatever_else_cannot_be_told(self) -> None:
        self.damage(self.there, 'vpmem')
        self.declare_in_store_only('2.0.0')
        self.check(cmd_base.ATTENTION)

    def declare_in_store_only(self, version: str) -> None:
        rows = self.store.declarations_of_host(self.there.manager.state().host_uuid)
        self.store.set_declarations(self.there.manager.state().host_uuid, [
            row._replace(document=json.dumps({**json.loads(row.document), 'version_form': 'numbered',
                                              'version': version})) if row.kind == 'mdev' else row for row in rows])

    def test_the_host_where_it_is(self) -> None:
        _row, err = self.check(cmd_base.USAGE, host='compute-7')
        self.assertIn('is on host compute-7 already', err)

    def test_a_file_that_is_broken(self) -> None:
        rows = self.program.ask('migration', 'facts')
        path = self.file([*rows, {**rows[0], 'host': 'compute-9', 'version': 'new'}])
        for command in (('check', '--instance', self.instance.uuid, '--host', 'compute-9'), ('matrix',)):
            answer = self.program.run('migration', *command, '--facts', path)
            self.assertEqual((cmd_base.USAGE, ''), (answer.code, answer.out))
            self.assertEqual(f"devicetrack-manage: {path}, row 5.version: 'new': must be major.minor.patch, three "
                             'numbers\n', answer.err)

    def test_rules_that_cannot_be_read(self) -> None:
        for command in (('check', '--instance', self.instance.uuid, '--host', 'compute-8'), ('matrix',)):
            answer = self.program.run('migration', *command, config_file=self.configure('table = /nowhere.yaml'))
            self.assertEqual((cmd_base.ERROR, True), (answer.code, '/nowhere.yaml' in answer.err))

    def test_help_says_what_is_not_judged(self) -> None:
        self.assertIn('NOT about room', ' '.join(self.program.run('migration', 'check', '--help').out.split()))

    def test_neither_host_nor_hypervisor_is_asked(self) -> None:
        for host in (self.host, self.there):
            host.machine.calls.clear()
        self.check(cmd_base.OK)
        self.assertEqual([{}, {}], [host.machine.calls for host in (self.host, self.there)])


class TableTestCase(MigrationCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host.machine.declare(MigrationType(fake.MDEV, 'gpu', 'nvidia-35', Attribute('2.1.0'), driver='550.54.10'))
        self.host.audit()

    def entries(self, text: str, *arguments: str, code: int = cmd_base.OK) -> dict[tuple[str, str], Any]:
        """Rows by type and where."""
        path = os.path.join(self.state_path, 'table.yaml')
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        answer = self.program.run('migration', 'table', '-f', 'json', *arguments,
                                  config_file=self.configure(f'table = {path}'))
        self.assertEqual(code, answer.code, answer.err)
        return {(row['type'], row['where']): row for row in answer.data}

    def test_entries_and_who_declares_what_they_are_about(self) -> None:
        rows = self.entries("""\
types:
  mdev:
    nvidia-35:
      version: 2.0.0
      offers: [B, A]
      aggregation_may_grow: true
      drivers: {550.54.10: {version: 2.1.0, requires: []}}
      hosts: {compute-8: {offers: []}}
""")
        nothing = dict.fromkeys(migration.Table.columns)
        named = {**nothing, 'kind': 'mdev', 'type': 'nvidia-35'}
        self.assertEqual([
            {**named, 'where': 'everywhere', 'version': '2.0.0', 'offers': ['A', 'B'], 'aggregation_may_grow': True,
             'matches': ['compute-7', 'compute-8']},
            {**named, 'where': 'driver 550.54.10', 'version': '2.1.0', 'requires': [], 'matches': ['compute-7']},
            {**named, 'where': 'host compute-8', 'offers': [], 'matches': ['compute-8']},
        ], list(rows.values()))

    def test_entries_that_match_nothing(self) -> None:
        rows = self.entries("""\
types:
  mdev:
    nvidia-35:
      drivers: {550.54.1: {}}
      hosts: {compute-9: {}}
  mdevs:
    nvidia-35: {}
cross_kind:
  - {from: {kind: mdev, type: nvidia-35}, to: {kind: vf, type: 558}}
  - {from: {kind: mdev, type: nvidia-36}, to: {kind: vf, type: 558}}
""", code=cmd_base.ATTENTION)
        self.assertEqual({
            ('nvidia-35', 'driver 550.54.1'): 'no host declares the type with this driver; there are 550.54.10',
            ('nvidia-35', 'host compute-9'): 'this host does not declare the type; those that do are compute-7, '
                                             'compute-8',
            ('nvidia-35', 'everywhere'): 'no host declares this type; of this kind there are none',
            ('nvidia-36', 'cross_kind to vf 558'): 'no host declares this type; of this kind there are nvidia-35',
            ('558', 'cross_kind from mdev nvidia-35'): 'no host declares this type; of this kind there are none',
            ('558', 'cross_kind from mdev nvidia-36'): 'no host declares this type; of this kind there are none',
        }, {name: row['problem'] for name, row in rows.items() if row['problem']})

    def test_hosts_of_other_stores(self) -> None:
        text = 'types: {mdev: {nvidia-35: {hosts: {compute-9: {}}}}}'
        self.entries(text, code=cmd_base.ATTENTION)
        rows = self.entries(text, '--facts', self.elsewhere('compute-9', 'compute-10'))
        self.assertEqual(['compute-9'], rows['nvidia-35', 'host compute-9']['matches'])

    def test_a_table_that_no_option_names(self) -> None:
        answer = self.program.run('migration', 'table')
        self.assertEqual((cmd_base.USAGE, True), (answer.code, 'table is unset: name a table' in answer.err))
        path = os.path.join(self.state_path, 'other.yaml')
        with open(path, 'w', encoding='utf-8') as file:
            file.write('types: {mdev: {nvidia-35: {version: 2.1}}}')
        for table, says in ((path, f'{path}, line 1, types.mdev.nvidia-35.version = 2.1: '),
                            ('/nowhere.yaml', '--table = /nowhere.yaml: cannot be read')):
            answer = self.program.run('migration', 'table', '--table', table)
            self.assertEqual((cmd_base.ERROR, '', True), (answer.code, answer.out, says in answer.err))


class HostileNamesTestCase(MigrationCommandTestCase):

    def matrix(self, name: str, *arguments: str) -> program.Answer:
        """The matrix of compute-7 and a host of this name."""
        facts = [{**row, 'host': name} for row in self.program.ask('migration', 'facts', '--host', 'compute-8')]
        return self.program.run('migration', 'matrix', '--facts', self.file(facts), '--type', 'nvidia-35', *arguments)

    def test_no_name_reaches_the_terminal_as_it_is(self) -> None:
        self.assertIn('a\\x1b[31mEVIL\\x07', self.matrix('a\x1b[31mEVIL\x07', '--max-width', '200').out)
        for form in ('table', 'csv'):
            self.assertNotIn('\x1b', self.matrix('a\x1b[31mEVIL\x07', '-f', form).out)


class MatrixTestCase(MigrationCommandTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.declare(self.there, '2.0.0')

    def matrix(self, *arguments: str) -> list[tuple[str, str, str]]:
        """The source, the destination and the verdict of each row, the names of several hosts with a blank between."""
        return [(' '.join(row['sources']), ' '.join(row['destinations']), row['verdict'])
                for row in self.program.ask('migration', 'matrix', *arguments)]

    def test_who_could_go_where(self) -> None:
        self.assertEqual([('compute-7', 'compute-8', 'no'), ('compute-8', 'compute-7', 'yes')],
                         self.matrix('--type', 'nvidia-35'))
        self.assertEqual(4, len(self.matrix()))

    def test_hosts_that_declare_alike_are_one(self) -> None:
        sevens, eights = 'compute-7 compute-9', 'compute-10 compute-8'
        self.assertEqual([(eights, eights, 'yes'), (eights, sevens, 'yes'), (sevens, eights, 'no'),
                          (sevens, sevens, 'yes')],
                         self.matrix('--type', 'nvidia-35', '--facts', self.elsewhere('compute-9', 'compute-10')))

    def test_it_does_not_grow_with_the_square_of_the_hosts(self) -> None:
        rows = self.program.ask('migration', 'facts')
        for count in (20, 200):
            answer = self.program.run('migration', 'matrix', '-f', 'json', '--facts', self.file([
                {**row, 'host': f'{row["host"]}-{number}'} for number in range(count) for row in rows]))
            self.assertEqual((8, True), (len(answer.data), len(answer.out) < 500 * count), str(len(answer.out)))

    def test_data_has_the_reasons(self) -> None:
        row = self.program.ask('migration', 'matrix', '--type', 'nvidia-35')[0]
        reason = {'kind': 'mdev', 'type': 'nvidia-35', 'about': 'minor version', 'source': '2.1.0',
                  'destination': '2.0.0'}
        self.assertEqual({
            'sources': ['compute-7'], 'kind': 'mdev', 'type': 'nvidia-35', 'version_form': 'numbered',
            'version': '2.1.0', 'destinations': ['compute-8'], 'verdict': 'no', 'reasons': [reason], 'notes': [],
            'unknown': []}, row)
        answer = self.program.run('migration', 'matrix', '--type', 'nvidia-35', '-f', 'yaml')
        self.assertEqual(row, yaml.safe_load(answer.out)[0])

    def test_a_table_says_why_not(self) -> None:
        self.declare(self.another('compute-9', parents={'gpu': 1}), '')
        answer = self.program.run('migration', 'matrix', '--type', 'nvidia-35', '--max-width', '80')
        self.assertEqual((cmd_base.OK, ''), (answer.code, answer.err))
        self.assertLessEqual(max(map(len, answer.out.splitlines())), 80)
        self.assertIn('| yes* ', answer.out)
        heading = next(line for line in answer.out.splitlines() if 'reasons' in line).split('|')[-2].strip()
        why = ' '.join(answer.column(heading).split())
        for words in (MINOR, 'versions cannot be compared'):
            self.assertIn(words, why)

    def test_other_formats_name_every_host(self) -> None:
        names = ('compute-9', 'compute-10')
        answer = self.program.run('migration', 'matrix', '--type', 'nvidia-35', '-f', 'csv', '--facts',
                                  self.elsewhere(*names))
        self.assertEqual(list(migration.Matrix.columns), list(csv.DictReader(io.StringIO(answer.out)).fieldnames or ()))
        for name in names:
            self.assertIn(name, answer.out)
        answer = self.program.run('migration', 'matrix', '--type', 'nvidia-35', '-f', 'value', '-c', 'verdict')
        self.assertEqual('no\nyes\n', answer.out)

    def test_a_host_that_declares_nothing_is_reported(self) -> None:
        self.another('compute-9')
        answer = self.program.run('migration', 'matrix', '-f', 'json')
        self.assertEqual((cmd_base.OK, 'devicetrack-manage: host compute-9 declares nothing\n'),
                         (answer.code, answer.err))
        to_it = [row for row in answer.data if row['destinations'] == ['compute-9']]
        self.assertEqual({('unknown', 'the host declares nothing')}, {
            (row['verdict'], ' '.join(row['unknown'])) for row in to_it})
        path = self.file([row for row in self.program.ask('migration', 'facts') if row['host'] == 'compute-9'])
        self.assertIn('host compute-9 declares nothing', self.program.run('migration', 'matrix', '--facts', path).err)

    def test_what_cannot_be_read_needs_attention_and_stops_nothing(self) -> None:
        self.damage(self.there, 'mdev')
        answer = self.program.run('migration', 'matrix', '-f', 'json')
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertIn('host compute-8: mdev nvidia-35 at gpu: cannot be read', answer.err)
        self.assertEqual([(['compute-7'], ['compute-8'], 'unknown')], [
            (row['sources'], row['destinations'], row['verdict']) for row in answer.data if row['kind'] == 'mdev'])

    def test_a_type_that_nobody_declares(self) -> None:
        answer = self.program.run('migration', 'matrix', '--type', 'nvidia-1')
        self.assertEqual((cmd_base.USAGE, True), (answer.code, 'no host declares a type nvidia-1; there are' in
                                                  answer.err))

    def test_a_column_that_is_not_there(self) -> None:
        answer = self.program.run('migration', 'matrix', '-c', 'compute-9')
        self.assertEqual((cmd_base.USAGE, True), (answer.code, 'there is no column compute-9' in answer.err))
