"""Stands in for :mod:`subprocess` in a program that starts others by its own interpreter.

They are forks of a process that has the library loaded (:mod:`devicetrack.tests.processes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import os
import subprocess
from subprocess import PIPE as PIPE
from subprocess import STDOUT as STDOUT
import tempfile
from typing import Any
from typing import IO

from devicetrack.tests import processes


def _arguments(command: Sequence[str]) -> Sequence[str]:
    """A module or a script, and its arguments."""
    _python, *arguments = command
    return arguments[1:] if arguments[0] == '-m' else arguments


class Popen:
    """A process with pipes to its input and from its output."""

    def __init__(self, command: Sequence[str], stdin: int, stdout: int, stderr: IO[Any]) -> None:
        assert (stdin, stdout) == (PIPE, PIPE)
        module, *arguments = _arguments(command)
        self._process = processes.Process(module, *arguments, stderr=stderr)
        self.pid = self._process.pid
        self.stdin, self.stdout = self._process.stdin.buffer, self._process.stdout.buffer

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        return self._process.wait()


def run(command: Sequence[str], stdout: int, stderr: int, text: bool,
        env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run to its end what writes everything to one file."""
    assert (stdout, stderr, text) == (PIPE, STDOUT, True)
    module, *arguments = _arguments(command)
    with tempfile.TemporaryFile('w+') as told:
        done = processes.run(module, *arguments, stdout=told, stderr=told, env=env)
        told.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, told.read())
