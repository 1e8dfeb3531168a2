"""The processes of the demo: the service, which is started, given orders and killed, and commands."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any
from typing import NamedTuple

import machine
import page

# Exit statuses of commands: nothing needs attention, or something does.
OK = 0
ATTENTION = 3


class Answer(NamedTuple):
    """The output of a command, and its exit status."""

    told: str
    status: int


def manage(host: machine.Machine, *arguments: str) -> Answer:
    """Run ``devicetrack-manage``. It opens the test driver as the service does, and finds the same guests there."""
    host.write_node()
    return command(host.configuration, host.log, *arguments)


def command(configuration: pathlib.Path, log_file: pathlib.Path, *arguments: str) -> Answer:
    """Run ``devicetrack-manage`` with a configuration file."""
    with open(log_file, 'ab') as log:
        done = subprocess.run(
            [sys.executable, '-m', 'devicetrack.cmd.manage', '--config-file', str(configuration), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | {'CLIFF_MAX_TERM_WIDTH': str(page.WIDTH - page.INDENT)})
        log.write(done.stdout.encode())
    return Answer(done.stdout, done.returncode)


class ServiceFailed(Exception):
    """The service ended by itself."""


class Process:
    """The service's process."""

    def __init__(self, host: machine.Machine, program: str = 'service.py') -> None:
        """Start the service. It begins to work with the order ``start``."""
        self._host = host
        with open(host.log, 'ab') as log:
            self._process = subprocess.Popen(
                [sys.executable, str(pathlib.Path(__file__).with_name(program)), str(host.directory)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def send(self, order: str, **arguments: Any) -> None:
        """Give an order and do not wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({'order': order, **arguments}).encode() + b'\n')
        self._process.stdin.flush()

    def call(self, order: str, **arguments: Any) -> dict[str, Any]:
        """Give an order and wait for its answer.

        :raises ServiceFailed: the service ended instead
        """
        assert self._process.stdout is not None
        self.send(order, **arguments)
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise ServiceFailed(f'the service answers the order {order} (it ended with status {status})')
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_for_wiper(self, namespace: str) -> int:
        """Wait until a process that the service started works on a namespace, and return its id."""
        while True:
            for listed in pathlib.Path(f'/proc/{self._process.pid}/task').glob('*/children'):
                children: list[str] = []
                with contextlib.suppress(OSError):          # the thread has ended
                    children = listed.read_text().split()
                for child in children:
                    with contextlib.suppress(OSError):      # it has ended
                        if namespace in (os.path.basename(os.readlink(file))
                                         for file in pathlib.Path(f'/proc/{child}/fd').iterdir()):
                            return int(child)
            time.sleep(0.01)

    def kill(self) -> int:
        """Kill the service with SIGKILL, and return its status."""
        self._process.send_signal(signal.SIGKILL)
        return self._ended()

    def end(self) -> int:
        """Let the service end by itself, and return its status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._ended()

    def _ended(self) -> int:
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        return status
