"""Python processes that begin with the library loaded: forks of a process that has loaded it and done nothing else.

A fork begins in hundredths of a second; ``python -m`` takes a second, nearly all of it for imports. It is a process of
its own all the same, with files, memory, signals and an exit status of its own, and nothing of the test's::

    process = processes.Process('devicetrack.cmd.manage', 'audit', stdout=file)
    self.assertEqual(0, process.wait())

Forks are made by a server, because the test's own process has threads and open stores. A test that is about how a
program is loaded starts one by :mod:`subprocess`.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any
from typing import Final
from typing import IO
from typing import TextIO

from devicetrack import cmd
from devicetrack.testing import database_servers

_LOADED: Final = (
    'devicetrack.tests.functional.claims.programs', 'devicetrack.tests.functional.placement.ending',
    'devicetrack.tests.functional.store.processes',
    # What these load when they need it.
    'alembic.command', 'devicetrack.store.sql.postgresql', 'devicetrack.virt.libvirt.driver',
    'keystoneauth1.loading', 'keystoneauth1.session', 'psycopg2', 'pymysql', 'requests',
    *(f'devicetrack.cmd.{module.name}' for module in pkgutil.iter_modules(cmd.__path__)))


class Process:
    """A module that runs as ``python -m`` runs it, in a fork of a process that has it loaded.

    ``-c`` in place of a module's name, and a program's text after it, mean what they mean to ``python``. So does
    the path of a script, which ends with ``.py``. The parameters are those of :class:`subprocess.Popen`; without
    ``stdin`` and ``stdout`` these are pipes.
    """

    def __init__(self, module: str, *arguments: str, stdin: IO[Any] | None = None, stdout: IO[Any] | None = None,
                 stderr: IO[Any] | None = None, cwd: str | None = None, env: Mapping[str, str] | None = None) -> None:
        with contextlib.ExitStack() as theirs:
            if stdin is None:
                stdin, self.stdin = _pipe()
                theirs.enter_context(stdin)
            if stdout is None:
                self.stdout, stdout = _pipe()
                theirs.enter_context(stdout)
            self._told, report = _pipe()
            theirs.enter_context(report)
            request = json.dumps({'module': module, 'arguments': arguments, 'cwd': cwd or os.getcwd(),
                                  'env': dict(os.environ if env is None else env)}).encode()
            socket.send_fds(_server(), [len(request).to_bytes(4, 'big') + request],
                            [stdin.fileno(), stdout.fileno(), stderr.fileno() if stderr else 2, report.fileno()])
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait for its end, and give its exit status as :mod:`subprocess` does."""
        if self.returncode is None:
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def kill(self) -> None:
        """Kill it, unless somebody waited for its end already."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self) -> tuple[str, None]:
        """Close its input, wait for its end, and give what it wrote."""
        self.stdin.close()
        with self.stdout:
            written = self.stdout.read()
        self.wait()
        return written, None


def of(pid: int) -> list[int]:
    """A process and those that it has started."""
    return [pid, *database_servers.below(pid)]


def run(module: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a module to its end, with what it wrote to those of its standard files that ``options`` do not name."""
    with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as err, open(os.devnull) as nothing:
        status = Process(module, *arguments, **{'stdin': nothing, 'stdout': out, 'stderr': err, **options}).wait()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([module, *arguments], status, out.read(), err.read())


def _pipe() -> tuple[TextIO, TextIO]:
    """A pipe's end to read from, and its end to write to."""
    reading, writing = os.pipe()
    return os.fdopen(reading), os.fdopen(writing, 'w')


@functools.cache
def _server() -> socket.socket:
    """The server's socket. It ends when this process has closed the socket, or is gone."""
    ours, theirs = socket.socketpair()
    with theirs:
        server = subprocess.Popen([sys.executable, '-m', __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                                  stdin=subprocess.DEVNULL)
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


# -- in the server ----------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> None:
    """Fork for each request; returns in a fork that has run its module, and when nobody is left to ask."""
    for module in _LOADED:
        importlib.import_module(module)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)           # nobody waits for the forks that wait
    while True:
        head, files, _flags, _address = socket.recv_fds(requests, 4, 4)
        if not head:
            return
        request = b''
        size = int.from_bytes(head, 'big')
        while len(request) < size:
            request += requests.recv(size - len(request))
        if os.fork() == 0:
            requests.close()
            _run(json.loads(request), files)
            return
        for file in files:
            os.close(file)


def _run(request: Any, files: list[int]) -> None:
    """Run a module in a fork of this fork, and tell its id and its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, report = files
    pid = os.fork()
    if pid:
        for file in standard:
            os.close(file)
        os.write(report, f'{pid}\n'.encode())
        _pid, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):          # the test is gone
            os.write(report, f'{os.waitstatus_to_exitcode(status)}\n'.encode())
        os._exit(0)
    os.close(report)
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request['cwd'])
    os.environ.clear()
    os.environ.update(request['env'])
    sys.path[:0] = filter(None, request['env'].get('PYTHONPATH', '').split(os.pathsep))
    module, arguments = request['module'], request['arguments']
    if module == '-c':
        sys.argv[:] = [module, *arguments[1:]]
        exec(compile(arguments[0], '<string>', 'exec'), {'__name__': '__main__'})
    elif module.endswith('.py'):
        sys.argv[:] = [module, *arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(module)))
        runpy.run_path(module, run_name='__main__')
    else:
        sys.argv[1:] = arguments
        sys.modules.pop(module, None)
        runpy.run_module(module, run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    with socket.socket(fileno=int(sys.argv[1])) as given:
        _serve(given)
