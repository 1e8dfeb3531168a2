"""``devicetrack-nova-adopt`` as a process, with Nova's configuration and without a Nova that answers.

:mod:`devicetrack.tests.nova.adopting` has it beside one that does.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import fixtures
from nova import version
from testtools import matchers

import devicetrack
from devicetrack.cmd import base as cmd_base
from devicetrack.tests import base

ROOT = pathlib.Path(devicetrack.__file__).parent
PROGRAM = 'import sys; from devicetrack.cmd import nova; sys.exit(nova.adopt())'


class ProcessTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.directory = self.useFixture(fixtures.TempDir()).path
        self.state = os.path.join(self.directory, 'state')
        machine_id = pathlib.Path(self.directory, 'machine-id')
        machine_id.write_text('0123456789abcdef' * 2)
        self.config_file = pathlib.Path(self.directory, 'nova.conf')
        self.config_file.write_text('\n'.join([
            '[DEFAULT]', 'host = compute-7', 'compute_driver = libvirt.LibvirtDriver', 'transport_url = fake:/',
            'rpc_response_timeout = 1',
            f'state_path = {self.directory}', '[devices]', 'enabled_mdev_types = nvidia-35', '[mdev_nvidia-35]',
            'device_addresses = 0000:84:00.0', '[libvirt]', 'pmem_namespaces = SMALL:ns0',
            'connection_uri = test:///default', '[devicetrack]', f'state_path = {self.state}',
            f'machine_id_path = {machine_id}', '']))

    def run_to(self, code: int, *arguments: str) -> tuple[str, str]:
        answer = subprocess.run([sys.executable, '-W', 'ignore', '-c', PROGRAM, *arguments], capture_output=True,
                                text=True, check=False, env=os.environ | {'PYTHONPATH': str(ROOT.parent)})
        self.assertEqual(code, answer.returncode, answer.stderr)
        return answer.stdout, answer.stderr

    def test_a_nova_that_does_not_answer_is_one_sentence(self) -> None:
        for action in ([], ['--apply']):
            out, err = self.run_to(cmd_base.ERROR, '--config-file', str(self.config_file), *action)
            self.assertEqual('', out)
            self.assertIn('devicetrack-nova-adopt: the conductor does not answer: MessagingTimeout', err)
            self.assertFalse(os.path.exists(self.state))

    def test_checks_go_as_far_as_they_can(self) -> None:
        def results() -> list[tuple[str, str]]:
            return [(check, result) for check, result, _details in self.lines('--config-file', str(self.config_file))]

        # The host has no namespace ns0, so the service does not start. It would start without the card and its type.
        self.assertEqual([('state directory', 'ok'), ('Nova', 'ok'), ('command line', 'ok'), ('options', 'failure'),
                          ('options', 'warning'), ('options', 'warning'), ('privileges', 'ok'), ('record', 'failure')],
                         results())
        os.mkdir(self.state)
        os.chmod(self.state, 0o777)
        self.assertEqual([('state directory', 'failure'), ('Nova', 'ok'), ('command line', 'ok'), ('host', 'failure')],
                         results())

    def lines(self, *arguments: str) -> list[tuple[str, str, str]]:
        out, _err = self.run_to(cmd_base.ATTENTION, '--check', '-f', 'json', *arguments)
        return [(one['check'], one['result'], one['details']) for one in json.loads(out)]

    def check(self, *arguments: str) -> dict[str, tuple[str, str]]:
        """The first result of each check."""
        return {check: (result, details) for check, result, details in reversed(self.lines(*arguments))}

    def test_what_the_options_name_and_the_host_lacks_is_told(self) -> None:
        self.config_file.write_text(self.config_file.read_text().replace('pmem_namespaces = SMALL:ns0\n', ''))
        found = [(result, details) for check, result, details in self.lines('--config-file', str(self.config_file))
                 if check == 'options']
        self.assertEqual(['warning', 'warning'], [result for result, _details in found])
        details = [said for _result, said in found]
        self.assertThat(details, matchers.AnyMatch(matchers.StartsWith(
            '[mdev_nvidia-35] device_addresses = 0000:84:00.0: this host has no such parent')))
        self.assertThat(details, matchers.AnyMatch(matchers.StartsWith(
            '[devices] enabled_mdev_types = nvidia-35: no parent that')))

    def test_an_option_that_cannot_be_used_is_a_failure_of_the_options(self) -> None:
        written = self.config_file.read_text()
        for right, wrong, said in (
                ('pmem_namespaces = SMALL:ns0', 'pmem_namespaces = ns0', '[libvirt] pmem_namespaces = ns0: '),
                # devicetrack does not read this one; Nova does, before it connects to libvirt.
                ('[libvirt]', '[libvirt]\nvirt_type = xen', "but found 'xen'")):
            self.assertIn(right, written)
            self.config_file.write_text(written.replace(right, wrong))
            found = self.lines('--config-file', str(self.config_file))
            self.assertEqual(['state directory', 'Nova', 'command line', 'options'], [one[0] for one in found])
            _check, result, details = found[-1]
            self.assertEqual('failure', result)
            self.assertIn(said, details)
            self.assertIn('; so the rest of the host was not checked', details)

    def systemctl(self, command: str, user: str = '') -> None:
        """Have systemd tell of a unit of Nova's compute service. The rest of this machine's systemd is not asked."""
        path = pathlib.Path(self.directory, 'bin')
        path.mkdir(exist_ok=True)
        path.joinpath('systemctl').write_text(
            '#!/bin/sh\necho LoadState=loaded\n'
            f"echo 'ExecStart={{ path=/none ; argv[]={command} ; ignore_errors=no ; pid=0 }}'\n"
            f"echo 'User={user}'\n")
        path.joinpath('systemctl').chmod(0o755)
        for name in ('nova-compute', 'devicetrack-nova-compute'):
            path.joinpath(name).write_text('#!/bin/sh\n')
            path.joinpath(name).chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable('PATH', f'{path}:{os.environ["PATH"]}'))

    def test_the_files_are_those_of_the_unit(self) -> None:
        second = pathlib.Path(self.directory, 'nova-compute.conf')
        second.write_text('[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n')
        self.config_file.write_text(self.config_file.read_text().replace('compute_driver', '#'))
        program = f'{self.directory}/bin/nova-compute'
        self.systemctl(f'{program} --config-file={self.config_file} --config-file {second} '
                       f'--log-file={self.directory}/nova.log')
        self.assertEqual(('ok', ''), self.check()['command line'])
        self.assertFalse(os.path.exists(f'{self.directory}/nova.log'))
        # With the first file alone no service starts; the unit does not start it so either.
        result, details = self.check('--config-file', str(self.config_file))['command line']
        self.assertEqual('failure', result)
        self.assertIn(f'starts the service with other files: {self.config_file} {second}', details)
        self.systemctl(f'{program} --config-file={self.config_file}')
        result, details = self.check()['command line']
        self.assertEqual('failure', result)
        self.assertIn('[DEFAULT] compute_driver = None: it must be libvirt.LibvirtDriver', details)

    def test_a_command_line_with_which_no_service_starts(self) -> None:
        program = f'{self.directory}/bin/devicetrack-nova-compute'
        for words, reason in ((f'{program}-gone/nova-compute', 'this user cannot run the program'),
                              (f'{program} --log-file={self.directory}/none/nova.log', 'this user cannot write it')):
            self.systemctl(f'{words} --config-file={self.config_file}')
            result, details = self.check()['command line']
            self.assertEqual('failure', result)
            self.assertIn(reason, details)
        self.systemctl(f'{program} --config-file={self.config_file} --no-such-option')
        self.assertIn('the service does not accept ', self.run_to(cmd_base.USAGE, '--check')[1])
        self.systemctl(f'{program} --config-file={self.config_file}', user='nova')
        self.assertIn('User=nova: run this as that user', self.check()['command line'][1])
        self.systemctl(f'{program} $OPTIONS')
        self.assertIn('the arguments with which the unit', self.run_to(cmd_base.USAGE, '--check')[1])
        self.assertEqual('ok', self.check('--config-file', str(self.config_file))['command line'][0])

    def test_without_a_message_broker_it_says_what_it_can_and_ends(self) -> None:
        text = self.config_file.read_text()
        # Nobody listens there, and Nova's messages would be tried for ever.
        self.config_file.write_text(text.replace('transport_url = fake:/', 'transport_url = rabbit://127.0.0.1:1/'))
        found = self.check('--config-file', str(self.config_file))
        self.assertEqual({'state directory', 'Nova', 'command line', 'options', 'privileges', 'record'}, found.keys())
        self.assertIn('ns0', found['options'][1])
        self.assertIn('the conductor does not answer', found['record'][1])
        self.assertIn('moves, guests and nova-compute were not checked', found['record'][1])
        _out, err = self.run_to(cmd_base.ERROR, '--config-file', str(self.config_file))
        self.assertIn('whether the message broker runs', err)

    def test_it_says_its_version_and_that_of_nova(self) -> None:
        name, _ours, nova_name, theirs = self.run_to(cmd_base.OK, '--version')[0].split()
        self.assertEqual(('devicetrack-nova-adopt', 'Nova', version.version_string()), (name, nova_name, theirs))

    def test_options_that_cannot_be_used(self) -> None:
        missing = os.path.join(self.directory, 'none.conf')
        self.assertIn('none.conf', self.run_to(cmd_base.ERROR, '--config-file', missing)[1])
        with open(self.config_file, 'a', encoding='utf-8') as file:
            file.write('unproven_devices = perhaps\n')
        self.assertIn('perhaps', self.run_to(cmd_base.ERROR, '--config-file', str(self.config_file))[1])

    def test_help_and_a_command_line_that_means_nothing(self) -> None:
        self.assertIn('--apply', self.run_to(cmd_base.OK, '--help')[0])
        self.run_to(cmd_base.USAGE, '--apply', '--check')
