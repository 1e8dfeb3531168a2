"""The library's own programs that run as child processes: how they are started, and what they report."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import json
import os
import subprocess
import sys
from typing import Any
from typing import Final

import devicetrack

# The directory of the project. It is last on the child's path, so that nothing beside the project hides the standard
# library.
_PROJECT: Final = os.path.dirname(os.path.dirname(os.path.abspath(devicetrack.__file__)))
_START: Final = ('import importlib, sys; sys.path.append(sys.argv.pop(1)); '
                 'sys.exit(importlib.import_module(sys.argv.pop(1)).main(sys.argv[1:]))')


_LINES_A_PHASE: Final = 20
_KILLED_S: Final = 5.0


def command(module: str) -> Sequence[str]:
    """Return the command that runs a module beside this one as a program, without this process's environment."""
    return sys.executable, '-I', '-S', '-c', _START, _PROJECT, f'{__name__.rpartition(".")[0]}.{module}'


def read(line: bytes) -> dict[str, Any]:
    """Parse a line of a child's output: a JSON object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {'phase': 'unreadable'}


def is_news(line: Mapping[str, Any], told: Mapping[str, Any], size_bytes: int) -> bool:
    """Whether to log progress at level INFO: about twenty lines a phase, however long it takes.

    :param told: the line that was logged last at this level, empty when none was
    """
    done, before = line.get('done'), told.get('done')
    if line.get('phase') != told.get('phase') or not isinstance(done, int) or not isinstance(before, int):
        return True
    return done == size_bytes or (done - before) * _LINES_A_PHASE >= size_bytes


def kill(child: subprocess.Popen[bytes]) -> bool:
    """Kill a child, if it has not ended. Returns False if it has not ended soon after that.

    The kernel may block a child in a call, and then the kill takes effect when that call returns.
    """
    child.kill()                                # no effect if it has ended
    try:
        child.wait(_KILLED_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def end(status: int) -> str:
    """Say how a child ended. A bad block of a device ends it with SIGBUS."""
    return f'was ended by signal {-status}' if status < 0 else f'ended with status {status}'
