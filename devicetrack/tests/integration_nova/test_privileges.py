"""What root does for Nova's user: our privileged daemon, started as Nova starts its own.

The files that ship are used as they are. sudo, nova-rootwrap and the daemon are the real ones, in a mount namespace
whose /etc has a user ``nova``.
"""

from __future__ import annotations

import grp
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import tempfile
import textwrap

from oslo_privsep import priv_context
from oslo_rootwrap import wrapper

import devicetrack
from devicetrack.tests import base
from devicetrack.virt.libvirt import daemon

ROOT = pathlib.Path(devicetrack.__file__).parent.parent
BIN = pathlib.Path(sys.executable).parent
# Nova's own, as its package installs them.
NOVA = pathlib.Path(sys.prefix, 'etc/nova')
_TAKEN = {user.pw_uid for user in pwd.getpwall()} | {group.gr_gid for group in grp.getgrall()}
# Nobody's on this machine, for sudo takes a user for the first one of its number.
UID = next(number for number in range(20_000, 60_000) if number not in _TAKEN)

SERVICE = textwrap.dedent("""
    import json, os, pwd, shlex, sys
    sys.argv = ['/usr/bin/nova-compute']
    import nova.cmd.compute
    from nova import config, utils
    import nova.conf
    from oslo_privsep import priv_context
    import devicetrack
    from devicetrack.virt.libvirt import daemon, privileged

    # As its main does.
    config.parse_args(sys.argv, configure_db=False, init_rpc=False)
    priv_context.init(root_helper=shlex.split(utils.get_root_helper()))
    devicetrack.register_options(nova.conf.CONF)
    user = pwd.getpwnam('nova')
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    try:
        said = privileged.run_ndctl('/bin/false')
    except OSError as error:
        said = f'{error}'
    print(json.dumps([os.getuid(), nova.conf.CONF.config_file, nova.conf.CONF.config_dir, said]))
""")

GOOD = ('--config-file', '/etc/nova/nova.conf')
SOCKET = '/tmp/tmpab_1x2y3/privsep.sock'
CONTEXT = 'devicetrack.virt.libvirt.daemon.context'


def command(*files: str, context: str = CONTEXT, socket: str = SOCKET) -> list[str]:
    return ['privsep-helper', *files, '--privsep_context', context, '--privsep_sock_path', socket]


class FiltersTestCase(base.TestCase):

    scenarios = base.table(
        ('one file', command(*GOOD), True),
        ('two files', command(*GOOD, '--config-file', '/etc/nova/nova-compute.conf'), True),
        ("a distribution's", command('--config-file', '/usr/share/nova/nova-dist.conf', *GOOD), True),
        ('directories', command(*GOOD, *GOOD, '--config-dir', '/etc/nova/nova.conf.d/', '--config-dir',
                                '/etc/nova/nova-compute.conf.d'), True),
        ('no file', command(), False),
        ("somebody's file", command('--config-file', '/tmp/nova.conf'), False),
        ('a file behind /etc/nova', command('--config-file', '/etc/nova/../../tmp/nova.conf'), False),
        ('a hidden file', command('--config-file', '/etc/nova/..'), False),
        ('a second file of somebody', command(*GOOD, '--config-file', '/tmp/nova.conf'), False),
        ('another option', command(*GOOD, '--log-file', '/etc/nova/nova.conf'), False),
        ('one more option', [*command(*GOOD), '--debug'], False),
        ('another context', command(*GOOD, context='os.path'), False),
        ('a context that looks alike', command(*GOOD, context=CONTEXT.replace('.', '_')), False),
        ('another socket', command(*GOOD, socket='/run/libvirt/libvirt-sock'), False),
        ('a socket behind /tmp', command(*GOOD, socket='/tmp/../run/privsep.sock'), False),
        ('another program', ['sh', *command(*GOOD)[1:]], False),
        names=('command', 'allowed'))

    def test_rootwrap(self) -> None:
        # oslo.rootwrap adds a filter of its own, which lets every command line of privsep-helper pass.
        filters = [one for one in wrapper.load_filters([str(ROOT / 'etc/nova/rootwrap.d')])
                   if one.name.startswith('privsep-rootwrap-')]
        try:
            found = wrapper.match_filter(filters, self.command, [str(BIN)])
        except wrapper.NoFilterMatched:
            self.assertFalse(self.allowed)
        else:
            self.assertTrue(self.allowed)
            self.assertEqual('root', found.run_as)


class CommandLineTestCase(base.TestCase):

    def test_the_context_is_the_one_that_oslo_privsep_is_told(self) -> None:
        self.assertEqual(CONTEXT, daemon.context.pypath)
        self.assertIsInstance(daemon.context, priv_context.PrivContext)


class UserTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        # Where every user can enter, and no other than root can change what the daemon runs.
        self.directory = tempfile.mkdtemp(dir='/tmp')
        self.addCleanup(shutil.rmtree, self.directory)
        os.chmod(self.directory, 0o755)
        self.etc = pathlib.Path(self.directory, 'etc')
        subprocess.run(['cp', '-a', '/etc', self.etc], check=True)
        self.home = f'{self.directory}/home'
        for name, line in (('passwd', f'nova:x:{UID}:{UID}::{self.home}:/bin/false'), ('group', f'nova:x:{UID}:'),
                           ('shadow', 'nova:*:19000:0:99999:7:::')):
            with open(self.etc / name, 'a') as file:
                file.write(f'{line}\n')
        self.helper = self.write('bin/privsep-helper', f'#!/bin/sh\nPYTHONPATH={ROOT} exec {BIN}/privsep-helper "$@"\n',
                                 0o755)
        ndctl = self.write('bin/ndctl', '#!/bin/sh\nid -u\n', 0o755)
        self.nova_conf = f'[devicetrack_vpmem]\nndctl_command = {ndctl}\n'
        self.write('etc/nova/nova.conf', self.nova_conf, 0o640)
        self.write('etc/nova/nova-compute.conf', '', 0o640)
        os.mkdir(self.etc / 'nova/nova.conf.d')

    def write(self, name: str, text: str, mode: int = 0o644) -> str:
        path = pathlib.Path(self.directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def sudoers(self, name: str, text: str) -> None:
        self.write(f'etc/sudoers.d/{name}', text, 0o440)
        subprocess.run(['visudo', '--quiet', '--check', '--file', self.etc / 'sudoers.d' / name], check=True)

    def rootwrap(self) -> None:
        """Install Nova's own configuration of nova-rootwrap, as distributions do."""
        configuration = (NOVA / 'rootwrap.conf').read_text()
        self.assertIn('\nexec_dirs=', configuration)
        self.write('etc/nova/rootwrap.conf',
                   configuration.replace('\nexec_dirs=', f'\nexec_dirs={self.directory}/bin\n# '))
        self.write('etc/nova/rootwrap.d/compute.filters', (NOVA / 'rootwrap.d/compute.filters').read_text())
        self.sudoers('nova', f'Defaults:nova secure_path="{BIN}:/usr/bin:/bin"\n'
                             f'nova ALL=(root) NOPASSWD: {BIN}/nova-rootwrap /etc/nova/rootwrap.conf *\n')

    def run_service(self) -> object:
        done = subprocess.run(
            ['unshare', '--mount', '--propagation', 'private', 'sh', '-c', 'mount --bind "$0" /etc && exec "$@"',
             self.etc, sys.executable, '-W', 'ignore', '-c', SERVICE], capture_output=True, text=True, check=False,
            timeout=base.HANGS_S, stdin=subprocess.DEVNULL,
            env={'PATH': os.environ['PATH'], 'PYTHONPATH': str(ROOT), 'HOME': self.home, 'TMPDIR': '/tmp'})
        self.assertEqual(0, done.returncode, done.stderr)
        uid, files, directories, said = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual((UID, ['/etc/nova/nova.conf', '/etc/nova/nova-compute.conf'], ['/etc/nova/nova.conf.d']),
                         (uid, files, directories))
        return said

    def test_nova_starts_the_daemon_by_rootwrap(self) -> None:
        self.rootwrap()
        shutil.copy(ROOT / 'etc/nova/rootwrap.d/devicetrack.filters', self.etc / 'nova/rootwrap.d')
        self.assertEqual([0, '0\n'], self.run_service())

    def test_rootwrap_starts_the_daemon_without_our_filter_too(self) -> None:
        """What oslo.rootwrap does, not what we want: the documentation says so as long as this test passes."""
        self.rootwrap()
        self.assertEqual([0, '0\n'], self.run_service())

    def test_sudo_without_our_line_refuses(self) -> None:
        self.write('etc/nova/nova.conf', f'{self.nova_conf}[workarounds]\ndisable_rootwrap = True\n', 0o640)
        said = str(self.run_service())
        self.assertIn('the privileged daemon cannot be started: sudo -n privsep-helper --config-file ', said)
        self.assertIn('a password is required', said)

    def test_nova_starts_the_daemon_by_sudo(self) -> None:
        self.write('etc/nova/nova.conf', f'{self.nova_conf}[workarounds]\ndisable_rootwrap = True\n', 0o640)
        ours = (ROOT / 'etc/sudoers.d/devicetrack').read_text()
        self.assertIn(' /usr/bin/privsep-helper ', ours)
        self.sudoers('devicetrack', f'Defaults:nova secure_path="{self.directory}/bin:/usr/bin:/bin"\n'
                     + ours.replace('/usr/bin/privsep-helper', self.helper))
        self.assertEqual([0, '0\n'], self.run_service())

    def run_command(self) -> str:
        """List the devices of the host by ``devicetrack-manage`` as user ``nova``; return all that it printed."""
        state = f'{self.directory}/state'
        os.mkdir(state, 0o700)
        os.chown(state, UID, UID)
        self.write('etc/nova/nova.conf', (self.etc / 'nova/nova.conf').read_text() + textwrap.dedent(f"""
            [devicetrack]
            state_path = {state}
            [libvirt]
            connection_uri = test:///default
            pmem_namespaces = 4GB:ns0
            """))
        self.write('bin/ndctl', '#!/bin/sh\necho "[]"\n', 0o755)
        manage = f'{sys.executable} -W ignore -m devicetrack.cmd.manage --config-file /etc/nova/nova.conf'
        # The checkout and its environment may be in a directory that only their owner can read.
        user = (f'setpriv --reuid {UID} --regid {UID} --clear-groups --inh-caps +dac_read_search '
                '--ambient-caps +dac_read_search')
        done = subprocess.run(
            ['unshare', '--mount', '--propagation', 'private', 'sh', '-c',
             f'mount --bind {self.etc} /etc && cd / && exec {user} sh -c "{manage} db sync && {manage} device list"'],
            capture_output=True, text=True, check=False, timeout=base.HANGS_S, stdin=subprocess.DEVNULL,
            env={'PATH': f'{BIN}:{os.environ["PATH"]}', 'PYTHONPATH': str(ROOT), 'HOME': self.home, 'TMPDIR': '/tmp'})
        return done.stdout + done.stderr

    def test_the_commands_start_the_daemon_as_nova_does(self) -> None:
        self.rootwrap()
        said = self.run_command()
        self.assertIn('| missing |', said)
        self.assertNotIn('privsep', said)

    def test_the_commands_start_the_daemon_by_sudo_where_nova_does(self) -> None:
        self.write('etc/nova/nova.conf', f'{self.nova_conf}[workarounds]\ndisable_rootwrap = True\n', 0o640)
        self.sudoers('devicetrack', f'Defaults:nova secure_path="{self.directory}/bin:/usr/bin:/bin"\n'
                     + (ROOT / 'etc/sudoers.d/devicetrack').read_text().replace('/usr/bin/privsep-helper', self.helper))
        said = self.run_command()
        self.assertIn('| missing |', said)
        self.assertNotIn('privsep', said)

    def test_sudo_refuses_whatever_else_is_asked(self) -> None:
        ours = (ROOT / 'etc/sudoers.d/devicetrack').read_text()
        self.sudoers('devicetrack', ours.replace('/usr/bin/privsep-helper', self.helper))
        program = ''.join(f'sudo -n -l -U nova {self.helper} {" ".join(asked[1:])} >/dev/null 2>&1; echo $?\n'
                          for _name, asked, _allowed in self.asked())
        done = subprocess.run(['unshare', '--mount', '--propagation', 'private', 'sh', '-c',
                               f'mount --bind {self.etc} /etc\n{program}'], capture_output=True, text=True, check=True)
        self.assertEqual({name: allowed for name, _asked, allowed in self.asked()},
                         {name: status == '0' for (name, _asked, _allowed), status
                          in zip(self.asked(), done.stdout.split(), strict=True)})

    @staticmethod
    def asked() -> list[tuple[str, list[str], bool]]:
        return [(name, facts['command'], facts['allowed']) for name, facts in FiltersTestCase.scenarios
                if facts['command'][0] == 'privsep-helper']
