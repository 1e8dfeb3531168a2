"""Nova's API, scheduler and conductor, placement, MariaDB and RabbitMQ: real processes, reached from here alone."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Final

import fixtures
import requests

from devicetrack.testing import database_servers
from devicetrack.testing import placement as placements
from devicetrack.testing import scratch
from devicetrack.tests.cloud import neighbours
from devicetrack.tests.cloud import rabbitmq
from devicetrack.tests.cloud import settings

# For hanging, not for slowness.
_START_S: Final = 600
_LOOK_AGAIN_S: Final = 0.5

# The services by the ports that compute hosts know: those that a Nova in production has.
MESSAGES: Final = 5672
PLACEMENT: Final = 8778
NEIGHBOURS: Final = 9292
PORTS: Final = (MESSAGES, PLACEMENT, NEIGHBOURS)

LONGEST_LOG: Final = 20_000


class Failed(Exception):
    """A service could not be started."""


class Services(fixtures.Fixture):
    """What compute hosts of a cloud need, and what an administrator speaks to.

    ``url`` is nova-api's, ``placement`` and ``database`` are the servers, ``ports`` says for each port that compute
    hosts know where it leads, and ``own`` has the addresses of this machine. ``directory`` has configuration and logs.

    :param image: the bytes of the only image
    :param threads: whether Nova's services run native threads, which releases before 34 do not all
    :param options: what Nova's API, scheduler and conductor are told besides
    """

    def __init__(self, image: bytes, threads: bool = True, options: settings.Sections | None = None) -> None:
        super().__init__()
        self._image, self._threads, self._options = image, threads, options or {}

    def _setUp(self) -> None:
        self.directory = pathlib.Path(scratch.make('nova'))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.database = self.useFixture(database_servers.MariaDBServer())
        self.placement = self.useFixture(placements.PlacementServer(
            # More writers at once than the counts of placement stand: doc/source/user/placement.rst.
            self.database, allocation_conflict_retry_count=1))
        self.messages = self.useFixture(rabbitmq.RabbitMQ())
        self.neighbours = self.useFixture(neighbours.Neighbours(self._image))
        self.ports = {MESSAGES: self.messages.port, PLACEMENT: self.placement.address[1],
                      NEIGHBOURS: self.neighbours.port}
        self.message_user = f'{self.messages.user}:{self.messages.password}'
        self._port = _free_port()
        self.url = f'http://127.0.0.1:{self._port}/v2.1'
        self._configure()
        self._make_databases()
        self._start()

    def inside(self, address: str) -> settings.Addresses:
        """Where the services are for who reaches them at this address by the ports of production."""
        return settings.Addresses(f'{address}:{MESSAGES}', f'{address}:{PLACEMENT}', f'{address}:{NEIGHBOURS}',
                                  self.message_user)

    def _configure(self) -> None:
        messages, placement, others = (f'127.0.0.1:{self.ports[port]}' for port in PORTS)
        self.own = own = settings.Addresses(messages, placement, others, self.message_user)
        self.cell_url, api_url, self._none_url = (
            self.database.text_url(self.database.create_database()) for _ in range(3))
        text = settings.text(settings.merged(
            settings.controller(own, str(self.directory), self.cell_url, api_url), self._options))
        (self.directory / 'nova.conf').write_text(text)
        # A distribution's Nova has it below /etc.
        paths = (pathlib.Path(prefix, 'etc', 'nova', 'api-paste.ini') for prefix in (sys.prefix, '/'))
        original = next(path for path in paths if path.exists()).read_text()
        (self.directory / 'api-paste.ini').write_text(settings.pipeline(original))

    def _make_databases(self) -> None:
        for command in (['api_db', 'sync'], ['cell_v2', 'map_cell0', '--database_connection', self._none_url],
                        ['db', 'sync'], ['cell_v2', 'create_cell', '--name', 'one']):
            done = subprocess.run(
                [_program('nova-manage'), '--config-file', self.directory / 'nova.conf', *command], text=True,
                env=self._environment(self._threads), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT)
            if done.returncode:
                raise Failed(f'nova-manage {" ".join(command[:2])} failed:\n{done.stdout[-LONGEST_LOG:]}')

    def _environment(self, threads: bool) -> dict[str, str]:
        return os.environ | {'OS_NOVA_CONFIG_DIR': str(self.directory), 'PYTHONWARNINGS': 'ignore'} | (
            {'OS_NOVA_DISABLE_EVENTLET_PATCHING': 'true'} if threads else {})

    def _start(self) -> None:
        configuration = ['--config-file', str(self.directory / 'nova.conf')]
        api = [sys.executable, '-m', 'devicetrack.tests.cloud.compute_api', str(self._port)]
        self._run('nova-conductor', [_program('nova-conductor'), *configuration])
        self._run('nova-scheduler', [_program('nova-scheduler'), *configuration])
        # The server of nova-api is our own, which has threads.
        process = self._run('nova-api', api, threads=True)
        until = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < until:
            try:
                if requests.get(self.url, timeout=_START_S).ok:
                    return
            except requests.ConnectionError:
                time.sleep(_LOOK_AGAIN_S)
        raise Failed(f'nova-api did not start:\n{self.logs()}')

    def _run(self, name: str, command: list[str], threads: bool | None = None) -> subprocess.Popen[bytes]:
        threads = self._threads if threads is None else threads
        with (self.directory / f'{name}.out').open('wb') as out:
            process = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'TERM', '--', *command], env=self._environment(threads), cwd=self.directory,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self.addCleanup(_end, process)
        return process

    def logs(self) -> str:
        """The ends of the logs of Nova's services."""
        return '\n'.join(f'--- {path.name}\n{path.read_text(errors="replace")[-LONGEST_LOG:]}'
                         for path in sorted(self.directory.iterdir()) if path.suffix in ('.log', '.out'))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a service and its workers, which are a session of their own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _program(name: str) -> str:
    """One of Nova's programs, which are where this interpreter is."""
    return os.path.join(os.path.dirname(sys.executable), name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port: int = probe.getsockname()[1]
        return port
