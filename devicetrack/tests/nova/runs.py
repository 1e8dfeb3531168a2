"""Runs tests of Nova in processes, stock or with our adapter, and collects what became of each test."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Sequence
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack.testing import scratch
from devicetrack.tests import base

# Limits for what hangs, each one longer than the one inside: Nova's own for a test, and that of a process which says
# nothing. Between them is that of the worker.
_TEST_TIMEOUT_S: Final = base.HANGS_S
_SILENT_S: Final = base.HANGS_S + 240
# So much of what a process has printed is kept: the stacks of all the threads of one that hangs.
_PRINTED: Final = 50_000

# Nova chooses its threads when its tests are imported, before anything else is.
_START: Final = ('import nova.tests.functional, runpy; '
                 'runpy.run_module("devicetrack.tests.nova.worker", run_name="__main__", alter_sys=True)')

EVENTLET: Final = 'eventlet'
NATIVE: Final = 'native'

PASSED, FAILED, SKIPPED, LOST = 'passed', 'failed', 'skipped', 'lost'


class Outcome(NamedTuple):
    """What became of a test. ``lost`` says that its process died or hung in it."""

    outcome: str
    seconds: float
    details: str


class Run:
    """One run of a set of tests.

    :param adapter: whether with the adapter, or stock
    :param threads: :data:`EVENTLET` or :data:`NATIVE`
    :param names: modules, classes or tests
    :param heard: is told of each test that does not pass, as soon as that is known
    :param pci: ``[devicetrack_nova] pci`` of the adapter; by default ``clean``, if the release can do that
    """

    def __init__(self, names: Sequence[str], adapter: bool, threads: str, processes: int = 2,
                 heard: Callable[[str, str], None] = lambda _name, _outcome: None, pci: str = '') -> None:
        self._names, self._adapter, self._threads, self._processes = names, adapter, threads, processes
        self._heard, self._pci = heard, pci
        self.listed: list[str] = []
        self.outcomes: dict[str, Outcome] = {}
        self.seconds = 0.0

    def run(self) -> Run:
        """Run them all. Blocks until the last process has ended."""
        began = time.monotonic()
        threads = [threading.Thread(target=self._shard, args=(shard,)) for shard in range(self._processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in self.listed:
            self.outcomes.setdefault(name, Outcome(LOST, 0.0, 'it never ran'))
        self.seconds = time.monotonic() - began
        return self

    def counts(self) -> collections.Counter[str]:
        return collections.Counter(outcome.outcome for outcome in self.outcomes.values())

    def _shard(self, shard: int) -> None:
        """Run one part of the tests. If a process dies, another one goes on after the test that it was in."""
        done: list[str] = []
        while True:
            listed, begun, ended, said = self._process(shard, done)
            if not done:
                self.listed += listed
            if ended:
                return
            if begun is None:
                # It did not get as far as a test.
                for name in listed or [f'{self._names[0]} and what follows, part {shard}']:
                    self.outcomes.setdefault(name, Outcome(LOST, 0.0, said))
                return
            self.outcomes[begun] = Outcome(LOST, 0.0, said)
            self._heard(begun, LOST)
            done = [name for name in listed if name in self.outcomes]

    def _process(self, shard: int, done: Sequence[str]) -> tuple[list[str], str | None, bool, str]:
        """Run one process.

        :returns: the tests that it listed, the one that it was in when it ended too early, whether it came to its end,
            and what it printed last
        """
        ours, theirs = os.pipe()
        with tempfile.TemporaryDirectory(dir=scratch.directory()) as directory:
            command = [sys.executable, '-W', 'ignore', '-c', _START, '--out', str(theirs),
                       '--shard', str(shard), '--shards', str(self._processes)]
            if self._adapter:
                command += ['--adapter', '--pci', self._pci]
            if done:
                again = pathlib.Path(directory, 'done')
                again.write_text('\n'.join(done))
                command += ['--not-again', str(again)]
            printed = pathlib.Path(directory, 'printed')
            with open(printed, 'wb') as output:
                child = subprocess.Popen([*command, *self._names], stdin=subprocess.DEVNULL, stdout=output,
                                         stderr=subprocess.STDOUT, pass_fds=(theirs,), env=self._environment(directory),
                                         cwd=directory)
            os.close(theirs)
            try:
                listed, begun, ended, silent = self._follow(ours)
            finally:
                os.close(ours)
                child.kill()
                child.wait()
            last = printed.read_bytes()[-_PRINTED:].decode(errors='replace')
            return listed, begun, ended, f'{"it hung" if silent else "its process died"}\n{last}'

    def _environment(self, directory: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith('OS_')}
        return kept | {
            'LANGUAGE': 'en_US', 'LC_ALL': 'C.UTF-8', 'HOME': directory, 'TMPDIR': directory,
            'OS_STDOUT_CAPTURE': '1', 'OS_STDERR_CAPTURE': '1', 'OS_TEST_TIMEOUT': str(_TEST_TIMEOUT_S),
            'OS_NOVA_DISABLE_EVENTLET_PATCHING': 'true' if self._threads == NATIVE else 'false',
            'PYTHONPATH': os.pathsep.join(filter(None, (_root(), os.environ.get('PYTHONPATH'))))}

    def _follow(self, pipe: int) -> tuple[list[str], str | None, bool, bool]:
        listed: list[str] = []
        begun: str | None = None
        rest = b''
        while True:
            if not select.select([pipe], [], [], _SILENT_S)[0]:
                return listed, begun, False, True
            got = os.read(pipe, 1 << 16)
            if not got:
                return listed, begun, False, False
            *lines, rest = (rest + got).split(b'\n')
            for said in map(json.loads, lines):
                if 'listed' in said:
                    listed = said['listed']
                elif 'begun' in said:
                    begun = said['begun']
                elif 'ended' in said:
                    return listed, None, True, False
                else:
                    begun = None
                    self._add(said)

    def _add(self, said: dict[str, Any]) -> None:
        # A test may fail in its body and again in what cleans up after it.
        before = self.outcomes.get(said['test'])
        if before is None or before.outcome != FAILED:
            self.outcomes[said['test']] = Outcome(said['outcome'], said['seconds'], said['details'])
            if said['outcome'] == FAILED:
                self._heard(said['test'], FAILED)


def _root() -> str:
    return str(pathlib.Path(__file__).parents[3])
