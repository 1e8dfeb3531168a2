"""The servers that the fixtures start."""

from __future__ import annotations

import os
import select
import signal
import subprocess

import fixtures

from devicetrack.testing import database_servers
from devicetrack.tests import base
from devicetrack.tests import processes

_START_AND_BE_KILLED = """
import os, signal, sys
from devicetrack.testing import database_servers
server = getattr(database_servers, sys.argv[1])()
server.setUp()
print(server._process.pid, server.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class TestServers(base.TestCase):
    scenarios = base.table(
        ('postgresql', database_servers.PostgreSQLServer, 'apt-get install postgresql'),
        ('mariadb', database_servers.MariaDBServer, 'apt-get install mariadb-server'),
        names=('server', 'remedy'))
    server: type[database_servers.Server]
    remedy: str

    def test_a_missing_server_fails_and_says_what_to_install(self) -> None:
        self.patch(database_servers.Server, '_program',
                   lambda server, name, *places: (_ for _ in ()).throw(
                       database_servers.ServerFailed(server._advice(f'there is no program {name}'))))
        error = self.assertRaises(fixtures.MultipleExceptions, self.server().setUp)
        failed = error.args[0][1]
        self.assertIsInstance(failed, database_servers.ServerFailed)
        self.assertIn(self.remedy, str(failed))

    def test_the_server_does_not_outlive_a_killed_test_process(self) -> None:
        done = processes.run('-c', _START_AND_BE_KILLED, self.server.__name__)
        self.assertEqual(-signal.SIGKILL, done.returncode)
        pid, directory = done.stdout.split()
        self.addCleanup(subprocess.run, ['rm', '-rf', directory], check=True)
        try:
            end = os.pidfd_open(int(pid))
        except ProcessLookupError:
            return
        with os.fdopen(end) as server_process:
            self.assertTrue(select.select([server_process], [], [], 30)[0], 'the server still runs')
