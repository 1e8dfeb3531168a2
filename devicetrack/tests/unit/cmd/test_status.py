"""devicetrack-status upgrade check."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import subprocess
import sys
from typing import Any

import fixtures as base_fixtures
from oslo_config import cfg

from devicetrack import exception
from devicetrack.cmd import manage
from devicetrack.cmd import status
from devicetrack.store import sql
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.unit.cmd import program

SUCCESS, WARNING, FAILURE = 0, 1, 2


class UpgradeCheckTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=1, configuration=self.configuration))
        self.lines: tuple[str, ...] = ()
        self.more: list[str] = []

    def check(self) -> tuple[int, dict[str, int], str]:
        """The exit code, each check's result, and all the details."""
        path = program.write_configuration(self.state_path, self.conf, *self.lines)
        out = self.useFixture(base_fixtures.StringStream('stdout')).stream
        self.useFixture(base_fixtures.MonkeyPatch('sys.stdout', out))
        code = status.run(['--config-file', path, *self.more, 'upgrade', 'check', '--json'])
        out.seek(0)
        checks: list[dict[str, Any]] = json.loads(out.read())['checks']
        return (code, {check['check']: check['result'] for check in checks},
                '; '.join(check['details'] for check in checks if check['details']))

    def test_all_is_well(self) -> None:
        self.host.spawn(pmem=1)
        self.assertEqual((SUCCESS, {'Configuration': SUCCESS, 'Files': SUCCESS, 'Store schema': SUCCESS,
                                    'Stored details': SUCCESS}),
                         self.check()[:2])

    def test_a_configuration_that_nobody_can_read(self) -> None:
        path = os.path.join(self.state_path, 'latin.conf')
        with open(path, 'wb') as file:
            file.write('[devicetrack]\n# Prüfstand\n'.encode('latin-1'))
        for wrong in (path, self.state_path):
            err = self.useFixture(base_fixtures.StringStream('stderr')).stream
            with base_fixtures.MonkeyPatch('sys.stderr', err):
                self.assertEqual(status.COULD_NOT_CHECK, status.main(['--config-file', wrong, 'upgrade', 'check']))
            err.seek(0)
            said = err.read()
            self.assertIn(wrong, said)
            self.assertNotIn('check', said)

    def test_an_answer_that_nobody_gets(self) -> None:
        path = program.write_configuration(self.state_path, self.conf)
        self.have_full_device()
        with open('/dev/full', 'w') as full:
            done = subprocess.run(
                [sys.executable, '-W', 'ignore', '-m', 'devicetrack.cmd.status', '--config-file', path, 'upgrade',
                 'check'], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(status.COULD_NOT_CHECK, done.returncode, done.stderr)

    def test_one_bad_value_is_said_once(self) -> None:
        self.lines = ('history_days = -3',)
        code, results, details = self.check()
        self.assertEqual((FAILURE, [FAILURE, WARNING, WARNING, WARNING]), (code, list(results.values())))
        self.assertEqual((1, 3), (details.count('history_days = -3'), details.count('the error above comes first')))

    def test_a_driver_that_nobody_has(self) -> None:
        self.lines = ('[devicetrack]', 'virt_driver = xyz')
        code, results, details = self.check()
        self.assertEqual((FAILURE, FAILURE), (code, results['Configuration']))
        self.assertIn('virt_driver = xyz', details)

    def test_an_option_that_cannot_be_meant(self) -> None:
        self.lines = ('[devicetrack]', 'claim_attempts = many')
        code, results, details = self.check()
        self.assertEqual((FAILURE, FAILURE), (code, results['Configuration']))
        self.assertIn('[devicetrack] claim_attempts = many: must be a whole number', details)

    def test_options_of_a_device_kind_that_cannot_be_meant(self) -> None:
        self.lines = ('[devicetrack]', 'virt_driver = libvirt', '[libvirt]', 'pmem_namespaces = 4GB')
        code, results, details = self.check()
        self.assertEqual((FAILURE, FAILURE), (code, results['Configuration']))
        self.assertIn('[libvirt] pmem_namespaces = 4GB', details)

    def test_entries_that_the_installed_nova_ignores(self) -> None:
        self.lines = ('[pci]', 'device_spec = {"vendor_id": "144d", "one_time_use": "true"}')
        self.assertEqual(SUCCESS, self.check()[0])
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.nova.process.has_nova', lambda: True))
        for installed, expected in (('33.0.0', SUCCESS), ('31.2.0', WARNING)):
            with base_fixtures.MonkeyPatch('devicetrack.nova.seams.installed', lambda installed=installed: installed):
                code, results, details = self.check()
            self.assertEqual((expected, expected), (code, results['Configuration']))
        self.assertIn('[pci] device_spec: entry 1: Nova 31.2.0 ignores one_time_use', details)

    def test_keys_that_nothing_reads(self) -> None:
        nova = ('[DEFAULT]', 'log_dir = /var/log/nova', '[libvirt]', 'virt_type = kvm')
        for lines, expected in (
                (('[libvirt]', 'pmem_namespace = 4GB:ns0'),
                 '[libvirt] pmem_namespace: there is no such option; perhaps pmem_namespaces is meant'),
                (('[libvirt]', 'virt_type = kvm'), '[libvirt] virt_type: there is no such option'),
                (nova, ''),
                ((*nova, 'pmem_namespace = 4GB:ns0'),
                 '[libvirt] pmem_namespace: there is no such option; perhaps pmem_namespaces is meant'),
                (('[devices]', 'enabled_vgpu_types = nvidia-35', '[workarounds]', 'disable_rootwrap = True'), ''),
                (('[devicetrack]', 'claim_attempt = 3', 'colour = red'),
                 '[devicetrack] claim_attempt: there is no such option; perhaps claim_attempts is meant; '
                 '[devicetrack] colour: there is no such option'),
                (('[devicetrack_vpmen]', 'wipe_wait_s = 3'),
                 '[devicetrack_vpmen]: there is no such group; perhaps devicetrack_vpmem is meant'),
                (('[vf_559]', 'max_instances = 3'),
                 '[vf_559]: nothing reads it, because no enabled type has this name'),
                (('[mdev_nvidia35]', 'max_instances = 3'),
                 '[mdev_nvidia35]: nothing reads it, because no enabled type has this name'),
                (('[devicetrack_privileged]', 'helper_command = sudo privsep-helper'), ''),
                (('[placement]', 'auth-url = http://localhost', 'username = nova'), ''),
                (('[pci]', 'passthrough_whitelist = {"vendor_id": "8086"}', 'report_in_placement = True',
                  '[DEFAULT]', 'debug = True'), '')):
            self.lines = lines
            code, results, details = self.check()
            self.assertEqual((expected, WARNING if expected else SUCCESS, WARNING if expected else SUCCESS),
                             (details, code, results['Configuration']))

    def test_keys_that_nothing_reads_in_a_directory_of_files(self) -> None:
        directory = self.temp_dir()
        with open(os.path.join(directory, 'b.conf'), 'w', encoding='utf-8') as file:
            file.write('[devicetrack]\nvirt_drivr = fake\n')
        self.more = ['--config-dir', directory]
        self.assertIn('[devicetrack] virt_drivr: there is no such option; perhaps virt_driver is meant',
                      self.check()[2])

    def test_a_table_that_cannot_be_used(self) -> None:
        path = os.path.join(self.state_path, 'table.yaml')
        self.lines = ('[devicetrack_compatibility]', f'table = {path}')
        for content, says in ((None, f'[devicetrack_compatibility] table = {path}: cannot be read'),
                              ('tipes: {}', f'{path}, line 1, the table = tipes: '), ('types: {}', None)):
            if content is not None:
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(content)
            code, results, details = self.check()
            expected = SUCCESS if says is None else FAILURE
            self.assertEqual((expected, expected), (code, results['Configuration']))
            self.assertIn(says or '', details)

    def test_a_path_of_a_table(self) -> None:
        for path, expected in (('table.yaml', FAILURE), ('', SUCCESS)):
            self.lines = ('[devicetrack_compatibility]', f'table = {path}')
            code, _results, details = self.check()
            self.assertEqual((expected, expected == FAILURE), (
                code, '[devicetrack_compatibility] table = table.yaml: must be absolute' in details))

    def test_a_source_that_is_not_installed(self) -> None:
        self.lines = ('[devicetrack_compatibility]', 'sources = sysfs,vendor')
        code, results, details = self.check()
        self.assertEqual((FAILURE, FAILURE), (code, results['Configuration']))
        self.assertIn('[devicetrack_compatibility] sources = vendor: there is no entry point', details)

    def test_files_that_others_can_change(self) -> None:
        locks = os.path.join(self.state_path, 'locks')
        os.mkdir(locks)
        lock, store = os.path.join(locks, 'vpmem-ns0.lock'), os.path.join(self.state_path, 'devicetrack.sqlite')
        os.symlink('/etc/passwd', lock)
        os.chmod(store, 0o666)
        code, results, details = self.check()
        self.assertEqual((FAILURE, FAILURE), (code, results['Files']))
        self.assertIn(f'{lock}: it is a symbolic link: name the regular file itself; '
                      f'{store}: users other than its owner can write to it (mode 0666): chmod go-w {store}', details)

    def test_state_of_devices_that_others_can_change(self) -> None:
        paths = [os.path.join(self.state_path, name) for name in ('pci.json', 'proofs')]
        for path in paths:
            with open(path, 'ab'):
                os.chmod(path, 0o666)
        code, results, details = self.check()
        self.assertEqual((FAILURE, FAILURE), (code, results['Files']))
        self.assertIn('; '.join(f'{path}: users other than its owner can write to it (mode 0666): chmod go-w {path}'
                                for path in paths), details)

    def test_a_state_directory_that_others_can_change_is_told_in_the_words_of_a_start(self) -> None:
        self.host.manager.close()
        os.chmod(self.state_path, 0o777)
        said = str(self.assertRaises(exception.UnsafePath, self.host.manager.init_host, None))
        self.assertEqual(f'{self.state_path}: users other than its owner can write to it (mode 0777): '
                         f'chmod go-w {self.state_path}', said)
        path = program.write_configuration(self.temp_dir(), self.conf)
        out = self.useFixture(base_fixtures.StringStream('stdout')).stream
        with base_fixtures.MonkeyPatch('sys.stdout', out):
            self.assertEqual(FAILURE, status.run(['--config-file', path, 'upgrade', 'check', '--json']))
        out.seek(0)
        details = {check['check']: check['details'] for check in json.loads(out.read())['checks']}
        self.assertEqual((said, said), (details['Configuration'], details['Files']))
        self.assertIn(said, details['Store schema'])
        err = io.StringIO()
        self.assertEqual(1, manage.Manage(cfg.ConfigOpts(), err, err).run(
            ['--config-file', path, 'instance', 'list']))
        self.assertIn(said, err.getvalue())

    def test_no_store(self) -> None:
        self.host.manager.close()
        os.remove(os.path.join(self.state_path, 'devicetrack.sqlite'))
        code, results, details = self.check()
        self.assertEqual((FAILURE, FAILURE, WARNING), (code, results['Store schema'], results['Stored details']))
        self.assertIn('devicetrack-manage db sync', details)

    def have_nova(self) -> None:
        """Put Nova into the environment of this program, where it is only looked for."""
        path = self.useFixture(base_fixtures.TempDir()).path
        os.mkdir(os.path.join(path, 'nova'))
        self.useFixture(base_fixtures.MonkeyPatch('sys.path', [*sys.path, path]))

    def test_beside_nova_the_service_makes_the_store_and_nothing_is_said_of_placement(self) -> None:
        self.have_nova()
        self.lines = ('[placement]', 'auth_type = none', 'endpoint_override = http://127.0.0.1:1')
        self.host.manager.close()
        path = os.path.join(self.state_path, 'devicetrack.sqlite')
        old = {'Configuration': SUCCESS, 'Files': SUCCESS, 'Store schema': SUCCESS, 'Stored details': SUCCESS}
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = '0012'")
        code, results, details = self.check()
        self.assertEqual((SUCCESS, old), (code, results))
        self.assertIn('schema 0012: the service makes it ', details)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
        self.assertEqual(FAILURE, self.check()[0])
        os.remove(path)
        code, results, details = self.check()
        self.assertEqual((SUCCESS, old), (code, results))
        self.assertIn('schema none: the service makes it ', details)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute('CREATE TABLE hosts (another TEXT)')
        os.chmod(path, 0o600)
        self.assertEqual(FAILURE, self.check()[0])

    def test_a_store_that_this_user_cannot_look_for(self) -> None:
        self.host.manager.close()
        path = os.path.join(self.state_path, 'devicetrack.sqlite')
        os.remove(path)
        os.symlink(path, path)
        code, results, details = self.check()
        self.assertEqual((FAILURE, FAILURE), (code, results['Store schema']))
        self.assertIn('run this as the user of the service', details)
        self.assertNotIn('recover', details)

    def test_a_directory_that_may_be_mistyped(self) -> None:
        self.conf.set_override('state_path', os.path.join(self.state_path, 'nowhere'), group='devicetrack')
        with contextlib.closing(sql.open_store(self.conf)) as store:
            error = self.assertRaises(exception.SchemaMismatch, store.check)
        self.assertIn('its directory is missing: see that this path is meant', str(error))

    def test_what_should_be_a_directory(self) -> None:
        locks = os.path.join(self.state_path, 'locks')
        with open(locks, 'wb'):
            pass
        code, results, details = self.check()
        self.assertEqual((FAILURE, FAILURE), (code, results['Files']))
        self.assertIn(locks, details)

    def test_details_of_an_older_version(self) -> None:
        self.host.spawn(pmem=1)
        self.useFixture(base_fixtures.MonkeyPatch('devicetrack.objects.details.VPMEMDetails.VERSION', '1.1'))
        code, results, details = self.check()
        self.assertEqual((WARNING, WARNING), (code, results['Stored details']))
        self.assertIn('online-data-migrations', details)

    def test_a_configuration_file_that_is_not_there(self) -> None:
        err = self.useFixture(base_fixtures.StringStream('stderr')).stream
        self.useFixture(base_fixtures.MonkeyPatch('sys.stderr', err))
        self.assertEqual(status.COULD_NOT_CHECK, status.run(['--config-file', '/nowhere/a.conf', 'upgrade', 'check']))
        err.seek(0)
        self.assertIn('/nowhere/a.conf', err.read())
