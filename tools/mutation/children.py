"""Does work in forks of this process. The forks may hang, die or kill themselves."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import itertools
import json
import os
import pathlib
import resource
import signal
import tempfile
import time
import traceback
from typing import Any

ASLEEP_S = 30                               # a process that uses no CPU time for so long counts as hanging


def cpu_s() -> float:
    """The CPU time that this process has used."""
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def work(works: Iterator[tuple[Any, Callable[[], Any]]], jobs: int) -> Iterator[tuple[Any, Any]]:
    """Do each piece of work in a fork of this process, ``jobs`` at a time.

    :param works: pairs of a key and a function, whose answer must be fit for JSON
    :returns: pairs of the key and the answer. If there is no answer, a text says how the process ended
    """
    running: dict[int, list[Any]] = {}          # by process: the key, the answer's path, ticks used, time of that
    with tempfile.TemporaryDirectory() as answers:
        try:
            for turn in itertools.count():
                while len(running) < jobs and (new := next(works, None)) is not None:
                    pid = os.fork()
                    path = os.path.join(answers, str(pid or os.getpid()))
                    if not pid:
                        _be_child(new[1], path)
                    running[pid] = [new[0], path, 0, time.monotonic()]
                if not running:
                    return
                time.sleep(0.02)
                for pid, state in list(running.items()):
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if not ended and not turn % 50 and (ticks := _session_ticks(pid)) != state[2]:
                        state[2:] = ticks, time.monotonic()
                    asleep = not ended and time.monotonic() - state[3] > ASLEEP_S
                    if ended or asleep:
                        _end(pid, reaped=bool(ended))
                        del running[pid]
                        yield state[0], 'waits for ever' if asleep else _answer(state[1], status)
        finally:
            for pid in running:
                _end(pid, reaped=False)


def _end(pid: int, reaped: bool) -> None:
    """End a child and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not reaped:
        os.waitpid(pid, 0)


def _answer(path: str, status: int) -> Any:
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return 'takes too much CPU time' if name == 'SIGXCPU' else f'dies by {name}'
    if not os.path.exists(path):
        return 'ends the process'
    answer, error = json.loads(pathlib.Path(path).read_text())
    os.unlink(path)
    if error:
        raise RuntimeError(error)
    return answer


def _session_ticks(session: int) -> int:
    """The CPU time of the processes of a session, in ticks. A process that waits for a processor adds it later."""
    used = 0
    for entry in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            fields = pathlib.Path('/proc', entry, 'stat').read_text().rpartition(')')[2].split()
            used += sum(map(int, fields[11:13])) if int(fields[3]) == session else 0
    return used


def _be_child(do: Callable[[], Any], path: str) -> None:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        try:
            answer = [do(), None]
        except Exception:
            answer = [None, traceback.format_exc()]
        pathlib.Path(path).write_text(json.dumps(answer))
    finally:
        os._exit(0)
