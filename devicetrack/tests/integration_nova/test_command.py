"""``devicetrack-nova-compute`` with the Nova that is installed, up to where Nova makes its service.

That needs a conductor, so something else stands in place of ``Service.create`` here and says what it finds.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import textwrap

from nova import version

import devicetrack
from devicetrack.nova import seam_table
from devicetrack.tests import base

UNKNOWN = f'devicetrack does not support this Nova ({version.version_string()}). It differs in 1 place(s): '
LOGGER = 'devicetrack.nova.startup'
ROOT = pathlib.Path(devicetrack.__file__).parent

PROGRAM = textwrap.dedent("""
    import sys
    from devicetrack.nova import command

    def create(*args, **named):
        import nova.conf
        from nova.compute import manager
        print(named['binary'])
        print('manager', named['manager'])
        print('interval', manager.ComputeManager._sync_power_states._periodic_spacing)
        print('eventlet', 'eventlet' in sys.modules)
        print('files', *nova.conf.CONF.config_file)
        print('types', nova.conf.CONF['mdev_nvidia-35'].max_instances, nova.conf.CONF.devicetrack.state_path)
        raise SystemExit(0)

    def prepare():
        # After Nova chose its threads, which importing its service before would do too early.
        from nova import service
        service.Service.create = create
        CHANGE

    class Prepares:
        def find_spec(self, name, path, target=None):
            if name == 'devicetrack.nova.startup':
                sys.meta_path.remove(self)
                prepare()
    sys.meta_path.insert(0, Prepares())
    command.main()
""")


class CommandTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.directory = self.temp_dir()
        self.log = os.path.join(self.directory, 'nova.log')
        self.file = self.write('nova.conf', f"""
            [DEFAULT]
            transport_url = fake:/
            sync_power_state_interval = 77
            log_file = {self.log}
            state_path = {self.directory}
            [devices]
            enabled_mdev_types = nvidia-35
            [mdev_nvidia-35]
            max_instances = 3
            [devicetrack]
            state_path = {self.directory}/devicetrack
        """)

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.directory, name)
        with open(path, 'w') as file:
            file.write(textwrap.dedent(text))
        return path

    def run_command(self, *arguments: str, change: str = 'pass',
                    environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name != 'OS_NOVA_DISABLE_EVENTLET_PATCHING'}
        change = textwrap.indent(textwrap.dedent(change), ' ' * 4)
        program = self.write('devicetrack-nova-compute', PROGRAM.replace('    CHANGE', change))
        return subprocess.run(
            [sys.executable, '-W', 'ignore', program, *arguments], capture_output=True, text=True, check=False,
            env=kept | {'PYTHONPATH': str(ROOT.parent), 'HOME': self.directory} | (environment or {}))

    def found(self, **environment: str) -> dict[str, str]:
        done = self.run_command('--config-file', self.file, environment=environment)
        self.assertEqual(0, done.returncode, done.stderr)
        return {word: rest for word, _space, rest in (line.partition(' ') for line in done.stdout.splitlines())}

    def refused(self, text: str, *arguments: str, change: str = 'pass') -> None:
        done = self.run_command('--config-file', self.file, *arguments, change=change)
        self.assertEqual(1, done.returncode, done.stdout)
        [line] = done.stderr.splitlines()
        self.assertIn(f'devicetrack-nova-compute does not start: {text}', line)
        with open(self.log) as file:
            [logged] = [line for line in file if ' CRITICAL ' in line]
        self.assertIn(line.strip(), logged)

    def test_the_service_is_made_with_the_adapters_manager_when_nova_has_read_its_options(self) -> None:
        found = self.found()
        self.assertIn('nova-compute', found)
        self.assertEqual('devicetrack.nova.compute.make_manager', found['manager'])
        self.assertEqual('77', found['interval'])
        self.assertEqual(f'3 {self.directory}/devicetrack', found['types'])

    def test_in_either_way_of_threading(self) -> None:
        native = self.found(OS_NOVA_DISABLE_EVENTLET_PATCHING='true')
        if seam_table.in_order(['33', version.version_string()])[0] == '33':
            self.assertEqual('False', native['eventlet'])       # before, Nova loads it in any case
        self.assertEqual('True', self.found(OS_NOVA_DISABLE_EVENTLET_PATCHING='false')['eventlet'])

    def test_without_arguments_it_reads_the_files_that_nova_compute_reads(self) -> None:
        os.mkdir(os.path.join(self.directory, '.nova'))
        files = [os.path.join(self.directory, '.nova', name) for name in ('nova.conf', 'nova-compute.conf')]
        os.rename(self.file, files[0])
        self.write(files[1], '[DEFAULT]\nsync_power_state_interval = 78\n')
        done = self.run_command()
        self.assertEqual((0, ''), (done.returncode, done.stderr))
        self.assertIn(f'files {" ".join(files)}\n', done.stdout)
        self.assertIn('interval 78\n', done.stdout)

    def test_a_nova_that_is_not_known_is_refused(self) -> None:
        method = 'nova.compute.resource_tracker:ResourceTracker.resize_claim'
        self.refused(f'{UNKNOWN}{method}: changed in this process by ', change="""
        from nova import config
        parse_args = config.parse_args
        def parse_and_change(*args, **named):
            parse_args(*args, **named)
            from nova.compute import resource_tracker
            resource_tracker.ResourceTracker.resize_claim = lambda self: None
        config.parse_args = parse_and_change
        """)

    def test_a_main_that_is_not_known_is_refused_before_it_runs(self) -> None:
        self.refused(f'{UNKNOWN}nova.cmd.compute:main: changed in this process by ', change="""
        from nova.cmd import compute
        compute.main = lambda: print('ran')
        """)

    def test_a_bad_option_is_refused(self) -> None:
        with open(self.file, 'a') as file:
            file.write('[devicetrack_vpmem]\nndctl_timeout_s = soon\n')
        self.refused('[devicetrack_vpmem] ndctl_timeout_s = soon: ')

    def test_what_goes_wrong_otherwise_is_refused_too(self) -> None:
        self.refused('RuntimeError: no tables', change="""
        from devicetrack.nova import seams
        check = seams.check
        def fail(targets):
            if len(targets) > 1:
                raise RuntimeError('no tables')
            check(targets)
        seams.check = fail
        """)

    def start_fails(self, error: str, *arguments: str, **environment: str) -> tuple[str, list[str]]:
        """Have Nova's service fail as it starts; returns what it wrote to standard error, and the lines of the log."""
        done = self.run_command('--config-file', self.file, *arguments, environment=environment, change=f"""
        from oslo_config import cfg
        from oslo_service import service as oslo_service
        from devicetrack import exception
        class Service(oslo_service.Service):
            def start(self):
                raise {error}
        service.Service.create = lambda *args, **named: Service()
        """)
        self.assertEqual(1, done.returncode, done.stderr)
        with open(self.log) as file:
            return done.stderr, [line for line in file if ' WARNING ' not in line and ' INFO ' not in line]

    def test_a_manager_that_does_not_start_is_one_line(self) -> None:
        for native in ('true', 'false'):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.log)
            err, log = self.start_fails("exception.UnsafePath('/var/lib/devicetrack', 'belongs to another user')",
                                        OS_NOVA_DISABLE_EVENTLET_PATCHING=native)
            # Nova says there what it thinks of its threads.
            [line] = [line for line in err.splitlines() if line.startswith('devicetrack')]
            self.assertNotIn('Traceback', err)
            self.assertIn('devicetrack-nova-compute does not start: /var/lib/devicetrack', line)
            [logged] = log
            self.assertIn(f' CRITICAL {LOGGER} [-] {line}', logged)

    def test_an_option_that_oslo_config_refuses_is_one_line(self) -> None:
        err, log = self.start_fails("cfg.NoSuchOptError('none')")
        [_logged] = log
        self.assertIn('devicetrack-nova-compute does not start: no such option none', err)

    def test_its_traceback_is_logged_at_debug_level(self) -> None:
        _err, log = self.start_fails("exception.UnsafePath('/var/lib/devicetrack', 'no')", '--debug')
        self.assertEqual(1, sum('Traceback' in line for line in log))
        after = [line.split()[3] for line in log if f' {LOGGER} ' in line]
        self.assertEqual(['CRITICAL', 'DEBUG', 'ERROR'], list(dict.fromkeys(after)))    # the last is the traceback

    def test_what_else_keeps_nova_from_starting_is_told_as_nova_does(self) -> None:
        for native in ('true', 'false'):
            err, log = self.start_fails("RuntimeError('no conductor')", OS_NOVA_DISABLE_EVENTLET_PATCHING=native)
            self.assertIn('Unhandled error: RuntimeError: no conductor', ''.join(log))
            self.assertNotIn('devicetrack-nova-compute does not start', err + ''.join(log))
            os.unlink(self.log)

    def test_a_configuration_file_that_is_not_there_is_one_line(self) -> None:
        done = self.run_command('--config-file', os.path.join(self.directory, 'none.conf'))
        self.assertEqual((1, ''), (done.returncode, done.stdout))
        [line] = done.stderr.splitlines()
        self.assertIn('devicetrack-nova-compute does not start: Failed to find some config files', line)

    def test_a_command_line_that_means_nothing(self) -> None:
        done = self.run_command('--nothing', environment={'OS_NOVA_DISABLE_EVENTLET_PATCHING': 'true'})
        self.assertEqual((2, ''), (done.returncode, done.stdout))
        self.assertIn('devicetrack-nova-compute: error: unrecognized arguments: --nothing', done.stderr)

    def test_it_says_its_version_and_that_of_nova(self) -> None:
        done = self.run_command('--version')
        self.assertEqual(0, done.returncode, done.stderr)
        name, _ours, nova_name, theirs = done.stdout.split()
        self.assertEqual(('devicetrack-nova-compute', 'Nova', version.version_string()), (name, nova_name, theirs))

    def test_its_help_has_the_options_of_nova(self) -> None:
        done = self.run_command('--help')
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn('--config-file', done.stdout)
        self.assertTrue(done.stdout.startswith('usage: devicetrack-nova-compute ['), done.stdout)
