"""The distribution's RabbitMQ as an ordinary process, in a directory and on loopback ports of its own."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from typing import Final

import fixtures

from devicetrack.testing import database_servers
from devicetrack.testing import scratch

_SERVER: Final = '/usr/lib/rabbitmq/bin/rabbitmq-server'
_USER: Final = 'nobody'

# For hanging, not for slowness.
_START_S: Final = 300
_LOOK_AGAIN_S: Final = 0.2

# No plug-in and one listener; nobody else comes by with this user and password.
_CONFIGURATION: Final = """\
listeners.tcp.1 = 127.0.0.1:{port}
default_user = {user}
default_pass = {password}
loopback_users = none
log.console = true
log.console.level = warning
log.file = false
# Machines for tests have full disks.
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.absolute = 1GB
"""


class RabbitMQ(fixtures.Fixture):
    """A message broker of one run. ``url`` is how oslo.messaging finds it; ``port`` is on loopback.

    Erlang would start a name server (epmd) for the whole machine and leave it behind, so one of its own runs beside it.
    The system kills both when the thread that started them ends.
    """

    user: Final = 'devicetrack'

    def _setUp(self) -> None:
        if not os.path.exists(_SERVER):
            raise database_servers.ServerFailed(
                'RabbitMQ is not installed: run "make cloud-test", or "apt-get install rabbitmq-server", and stop the '
                'service that it starts')
        self._account = pwd.getpwnam(_USER) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self.password = secrets.token_hex(16)
        self.directory = scratch.make('rabbitmq')
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.port, self._names_port, distribution_port = _free_ports(3)
        with open(self._path('rabbitmq.conf'), 'w') as file:
            file.write(_CONFIGURATION.format(port=self.port, user=self.user, password=self.password))
        with open(self._path('.erlang.cookie'), 'w') as file:
            file.write(secrets.token_hex(16))
        os.chmod(file.name, 0o400)
        with open(self._path('enabled_plugins'), 'w') as file:
            file.write('[].\n')
        if os.geteuid() == 0:
            for path in (self.directory, *(self._path(name) for name in os.listdir(self.directory))):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        self._environment = {
            'PATH': os.environ['PATH'], 'LANG': 'C.UTF-8',
            'HOME': self.directory,
            'ERL_EPMD_ADDRESS': '127.0.0.1', 'ERL_EPMD_PORT': str(self._names_port),
            'RABBITMQ_NODENAME': f'devicetrack{os.getpid()}@localhost',
            'RABBITMQ_DIST_PORT': str(distribution_port),
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': '-kernel inet_dist_use_interface {127,0,0,1}',
            'RABBITMQ_CONFIG_FILE': self._path('rabbitmq.conf'),
            'RABBITMQ_CONF_ENV_FILE': self._path('none'),
            'RABBITMQ_ENABLED_PLUGINS_FILE': self._path('enabled_plugins'),
            'RABBITMQ_MNESIA_BASE': self._path('data'),
            'RABBITMQ_LOG_BASE': self._path('log'),
            'RABBITMQ_PID_FILE': self._path('pid'),
        }
        self._log = open(self._path('console'), 'wb')
        self.addCleanup(self._log.close)
        self.url = f'rabbit://{self.user}:{self.password}@127.0.0.1:{self.port}/'
        self.start()

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def start(self) -> None:
        """Start it and wait until it takes connections.

        :raises ServerFailed: it does not
        """
        names = self._run(['epmd', '-port', str(self._names_port)])
        self.addCleanup(_end, names)
        self._wait_for_port(self._names_port, names)
        server = self._run([_SERVER])
        self.addCleanup(_end, server)
        self._wait_for_port(self.port, server)

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = []
        if os.geteuid() == 0:
            account = ['--reuid', str(self._account.pw_uid), '--regid', str(self._account.pw_gid), '--clear-groups']
        return subprocess.Popen(
            ['setpriv', '--pdeathsig', 'KILL', *account, '--', *command], env=self._environment, cwd=self.directory,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True)

    def _wait_for_port(self, port: int, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + _START_S
        while time.monotonic() < until and process.poll() is None:
            with socket.socket() as probe:
                if not probe.connect_ex(('127.0.0.1', port)):
                    return
            time.sleep(_LOOK_AGAIN_S)
        with open(self._path('console'), errors='replace') as file:
            raise database_servers.ServerFailed(f'RabbitMQ did not start:\n{file.read()}')


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started: they are a session of their own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_ports(number: int) -> list[int]:
    """Loopback ports that are free now."""
    probes = [socket.socket() for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(('127.0.0.1', 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
