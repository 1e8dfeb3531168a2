"""What every command has in common: options, errors, exit codes, output."""

from __future__ import annotations

import csv
from importlib import metadata
import io
import logging
import os

import fixtures as base_fixtures
from oslo_config import cfg
import yaml

from devicetrack import exception
from devicetrack.cmd import base as cmd_base
from devicetrack.cmd import manage
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program


class ManageTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=2))
        self.program = self.useFixture(program.Program(self.host.configuration, self.host.machine))
        self.file = os.path.join(self.host.configuration.state_path, 'devicetrack.sqlite')


class CommandLineTestCase(ManageTestCase):

    scenarios = base.table(
        ('no command', (), 'no command given'),
        ('an unknown command', ('adit',), 'there is no command adit; close to it: audit'),
        ('help of an unknown command', ('adit', '--help'), 'there is no command adit; close to it: audit'),
        ('an unknown option', ('audit', '--colour'), 'unrecognized arguments: --colour'),
        ('an unknown format', ('audit', '-f', 'xml'), "invalid choice: 'xml'"),
        ('an unknown column', ('audit', '-c', 'severity', '-c', 'colour'), 'there is no column colour'),
        ('an unknown column to sort by', ('audit', '--sort-column', 'colour'), 'there is no column colour'),
        ('an unknown field', ('db', 'version', '-c', 'colour'), 'there is no column colour'),
        ('no device', ('device', 'show'), 'required: [KIND/]IDENTIFIER'),
        ('half a device', ('device', 'show', 'vpmem/'), 'is not [KIND/]IDENTIFIER'),
        ('no request', ('explain',), 'one of the arguments --resource --extra-spec --extra-specs --instance is '
         'required'),
        ('two requests', ('explain', '--resource', 'VGPU=1', '--extra-spec', 'resources:VGPU=1'), 'not allowed with'),
        ('half a resource', ('explain', '--resource', 'VGPU'), 'is not CLASS=AMOUNT'),
        ('none of a resource', ('explain', '--resource', 'VGPU=0'), 'must be a whole number from 1'),
        ('half an extra spec', ('explain', '--extra-spec', 'hw:pmem'), 'is not KEY=VALUE'),
        ('an extra spec that means nothing', ('explain', '--extra-spec', 'resources:VGPU=one'), 'resources:VGPU'),
        ('no rows to migrate', ('db', 'online-data-migrations', '--max-count', '0'), 'less than 1'),
        names=('arguments', 'says'))

    def test_what_means_nothing_is_said_on_stderr_with_code_2(self) -> None:
        answer = self.program.run(*self.arguments)
        self.assertIn(self.says, answer.err)
        self.assertNotIn('Traceback', answer.err)
        self.assertEqual((cmd_base.USAGE, ''), (answer.code, answer.out))


class UnloadableCommandTestCase(ManageTestCase):

    def test_a_command_whose_module_lacks_another_says_which_and_the_others_work(self) -> None:
        broken = metadata.EntryPoint('host_map', 'devicetrack.cmd.nowhere:Map', manage.NAMESPACE)
        known = [one for one in metadata.entry_points(group=manage.NAMESPACE) if one.name != broken.name]
        manage._commands.cache_clear()
        self.addCleanup(manage._commands.cache_clear)
        self.useFixture(base_fixtures.MonkeyPatch('importlib.metadata.entry_points', lambda group: [*known, broken]))
        for arguments in (('host', 'map'), ('help', 'host', 'map'), ('host', 'map', '--help')):
            answer = self.program.run(*arguments)
            self.assertEqual((cmd_base.ERROR, ''), (answer.code, answer.out))
            self.assertIn("the command cannot be loaded: No module named 'devicetrack.cmd.nowhere'", answer.err)
        self.assertIn('cannot be loaded', ' '.join(self.program.run('help').out.split()))
        self.program.ask('host', 'list')


class HelpTestCase(ManageTestCase):

    scenarios = base.table(
        ('of a command', ('device', 'list', '--help'), 'usage: devicetrack-manage device list'),
        ('of a command, short', ('audit', '-h'), 'usage: devicetrack-manage audit'),
        ('of a command by the help command', ('help', 'device', 'list'), 'usage: devicetrack-manage device list'),
        ('of a command before its name', ('--help', 'db', 'sync'), 'usage: devicetrack-manage db sync'),
        ('of one with options', ('explain', '--resource', 'VGPU=1', '--help'), 'usage: devicetrack-manage explain'),
        ('of a group of commands', ('db', '--help'), 'Command "db" matches:'),
        ('of everything', ('--help',), 'usage: devicetrack-manage [--version]'),
        ('of everything by the help command', ('help',), 'usage: devicetrack-manage [--version]'),
        names=('arguments', 'begins'))

    def test_help(self) -> None:
        answer = self.program.run(*self.arguments)
        self.assertEqual((cmd_base.OK, '', self.begins), (answer.code, answer.err, answer.out[:len(self.begins)]))


class ErrorsTestCase(ManageTestCase):

    def error(self, *arguments: str, config_file: str | None = None) -> str:
        """The one line that an error is."""
        answer = self.program.run(*arguments, config_file=config_file)
        self.assertEqual((cmd_base.ERROR, ''), (answer.code, answer.out))
        lines = answer.err.splitlines()
        self.assertEqual(1, len(lines), answer.err)
        self.assertTrue(lines[0].startswith('devicetrack-manage: '), lines[0])
        return lines[0]

    def test_a_word_that_is_not_utf_8(self) -> None:
        for command in (('device', 'history', 'mdev/\udcff'), ('host', 'show', '\udcff')):
            self.assertIn('a character that the database cannot hold', self.error(*command))

    def test_no_store(self) -> None:
        self.host.manager.close()
        os.remove(self.file)
        for command in (('audit',), ('device', 'list'), ('instance', 'list'), ('device', 'show', 'd0'),
                        ('explain', '--resource', 'VGPU=1'), ('db', 'online-data-migrations')):
            error = self.error(*command)
            self.assertIn('run devicetrack-manage db sync', error)
            self.assertIn('devicetrack-manage recover --from-hypervisor', error)

    def test_no_store_beside_nova_whose_service_makes_it(self) -> None:
        self.host.manager.close()
        os.remove(self.file)
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.nova.process.has_nova', lambda: True))
        error = self.error('device', 'list')
        self.assertIn('start the service, which makes it; before the first start, devicetrack-nova-adopt', error)
        self.assertNotIn('db sync', error)

    def test_a_store_that_is_none(self) -> None:
        self.host.manager.close()
        self.host.store.store.close()
        with open(self.file, 'wb') as file:
            file.write(b'this is a letter to a friend' * 400)
        self.assertIn(self.file, self.error('audit'))

    def test_no_configuration_file(self) -> None:
        self.assertIn('/nowhere/a.conf', self.error('audit', config_file='/nowhere/a.conf'))

    def test_a_command_without_any_configuration_file_says_so_if_there_is_no_store(self) -> None:
        for name in ('find_config_files', 'find_config_dirs'):
            self.useFixture(base_fixtures.MonkeyPatch(f'oslo_config.cfg.{name}', lambda *_arguments, **_more: []))
        mismatch = exception.SchemaMismatch('SQLite file d', None, '0001', 'run db sync')

        def check(_store: object) -> None:
            raise mismatch

        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.store.sql.schema.check', check))
        err = io.StringIO()
        with base_fixtures.MonkeyPatch('sys.stderr', err):
            code = manage.Manage(cfg.ConfigOpts(), io.StringIO(), err).run(['instance', 'list'])
        self.assertEqual(cmd_base.ERROR, code)
        self.assertIn('no configuration file was read', err.getvalue())
        self.assertNotIn('no configuration file was read', self.error('instance', 'list'))

    def test_a_configuration_file_that_is_none(self) -> None:
        path = os.path.join(self.state_path, 'bad.conf')
        with open(path, 'w', encoding='utf-8') as file:
            file.write('[devicetrack]\nstate_path\n')
        self.assertIn(path, self.error('audit', config_file=path))

    def test_a_directory_with_a_file_of_another_encoding_is_named(self) -> None:
        directory = os.path.join(self.state_path, 'conf.d')
        os.mkdir(directory)
        with open(os.path.join(directory, 'latin.conf'), 'wb') as file:
            file.write('[devicetrack]\n# Prüfstand\n'.encode('latin-1'))
        answer = self.program.run('--config-dir', directory, 'audit')
        self.assertEqual((cmd_base.USAGE, 1), (answer.code, answer.err.count('\n')), answer.err)
        self.assertIn(directory, answer.err)

    def test_a_directory_and_a_file_of_another_encoding_are_no_configuration(self) -> None:
        path = os.path.join(self.state_path, 'latin.conf')
        with open(path, 'wb') as file:
            file.write('[devicetrack]\n# Prüfstand\n'.encode('latin-1'))
        for wrong, said in ((self.state_path, 'directory'), (path, 'UTF-8')):
            answer = self.program.run('audit', config_file=wrong)
            self.assertEqual((cmd_base.USAGE, 1), (answer.code, answer.err.count('\n')), answer.err)
            self.assertIn(wrong, answer.err)
            self.assertIn(said, answer.err)
            self.assertNotIn('unexpected', answer.err)

    def test_a_value_that_is_too_long_is_cut(self) -> None:
        for lines in (('state_path = /' + 'x' * 800_000,), ('selection_policy = ' + 'x' * 800_000,),
                      ('claim_attempts = ' + '7' * 800_000,),
                      ('[devicetrack_vpmem]', 'wipe_wait_s = ' + 'x' * 800_000)):
            path = program.write_configuration(self.state_path, self.host.conf, *lines)
            error = self.error('audit', config_file=path)
            self.assertIn(lines[-1].partition(' ')[0], error)
            self.assertLess(len(error), 4100)

    def test_an_option_that_cannot_be_meant(self) -> None:
        path = program.write_configuration(self.state_path, self.host.conf, 'selection_policy = tidy')
        self.assertIn('selection_policy', self.error('audit', config_file=path))

    def test_a_store_that_is_no_url_is_not_shown(self) -> None:
        path = program.write_configuration(self.state_path, self.host.conf, '[devicetrack_database]',
                                           'connection = postgres//secret@there')
        self.assertNotIn('secret', self.error('db', 'version', config_file=path))

    def test_a_host_that_nobody_knows(self) -> None:
        self.assertIn('its hosts: host', self.error('audit', '--host', 'elsewhere'))
        self.assertIn('its hosts: host', self.error('instance', 'list', '--host', 'elsewhere'))

    def test_what_nobody_expected_is_a_sentence_and_with_debug_a_traceback(self) -> None:
        self.host.machine.before('get_usage', ZeroDivisionError('for a test'))
        self.assertIn('unexpected ZeroDivisionError: for a test', self.error('audit'))
        answer = self.program.run('--debug', 'audit')
        self.assertEqual(cmd_base.ERROR, answer.code)
        self.assertIn('Traceback (most recent call last)', answer.err)

    def test_nobody_reads_any_more(self) -> None:
        self.host.machine.before('get_usage', BrokenPipeError())
        self.assertEqual(cmd_base.BROKEN_PIPE, self.program.run('audit').code)


class OutputTestCase(ManageTestCase):

    def test_a_table_shows_the_columns_that_a_person_needs(self) -> None:
        head = self.program.run('device', 'list').out.splitlines()[1]
        self.assertIn('status', head)
        self.assertNotIn('provider_uuid', head)
        head = self.program.run('device', 'list', '-c', 'provider_uuid').out.splitlines()[1]
        self.assertEqual('| provider_uuid                        |', head)

    def test_json_and_yaml_have_every_column_and_structure(self) -> None:
        as_json = self.program.ask('device', 'list')
        as_yaml = yaml.safe_load(self.program.run('device', 'list', '-f', 'yaml').out)
        self.assertEqual(as_json, as_yaml)
        self.assertEqual('VPMEMDetails', as_json[0]['details']['class'])
        self.assertEqual(([], None), (as_json[0]['reasons'], as_json[0]['wipe']))

    def test_csv_has_every_column_and_text(self) -> None:
        rows = list(csv.DictReader(io.StringIO(self.program.run('device', 'list', '-f', 'csv').out)))
        self.assertEqual(set(self.program.ask('device', 'list')[0]), set(rows[0]))
        self.assertIn('label=4GB', rows[0]['details'])
        self.assertEqual('', rows[0]['reasons'])

    def test_csv_of_one_thing_is_that_of_a_list_of_one(self) -> None:
        [row] = csv.DictReader(io.StringIO(self.program.run('db', 'check', '-f', 'csv').out))
        self.assertEqual(('yes', ''), (row['usable'], row['remedy']))

    def test_an_empty_list_is_an_empty_list(self) -> None:
        self.assertEqual([], self.program.ask('instance', 'list'))

    def test_details_that_cannot_be_read_do_not_hide_the_rest(self) -> None:
        self.assertEqual(['unreadable'], list(cmd_base.details_fields('{') or ()))
        self.assertIsNone(cmd_base.details_fields(''))


class LoggingTestCase(ManageTestCase):

    def test_handlers_of_a_run_end_with_it(self) -> None:
        before = list(logging.getLogger().handlers)
        self.program.run('-v', 'db', 'version')
        self.assertEqual(before, logging.getLogger().handlers)

    def test_what_the_library_does_is_told_when_asked_for(self) -> None:
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.store.sql.schema.revision', _logs))
        self.assertIn('looked', self.program.run('-v', 'db', 'version').err)
        self.assertEqual('', self.program.run('db', 'version').err)


def _logs(store: object) -> str:
    logging.getLogger('devicetrack').info('looked')
    return '0001'
