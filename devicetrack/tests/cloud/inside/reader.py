"""Reads a compute host again and again: what look.py prints, and what ``devicetrack-manage`` answers.

Where a processor is emulated, the imports of a command take longer than the command. So this process runs until its
standard input ends, and each command in a fork of it. A line of its input is a list of commands, as JSON:
``[["look"], ["manage", "audit", …]]``. A line of its output has their ends, each ``[status, output, errors]``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import tempfile
import traceback

# What each command runs: imported when it is first wanted.
MODULES = {'look': 'devicetrack.tests.cloud.inside.look', 'manage': 'devicetrack.cmd.manage'}


def run(command: list[str]) -> tuple[int, str, str]:
    """Run a command in a fork to its end, and import what it imported, for the forks that come.

    :returns: its status, its output and its errors
    """
    name, *arguments = command
    module = importlib.import_module(MODULES[name])
    with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as err, \
            tempfile.TemporaryFile('w+') as imported:
        # A collection would write to memory that forks share.
        gc.freeze()
        if not (pid := os.fork()):
            status, sys.argv = 1, command
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                try:
                    status = module.main(arguments) or 0
                except SystemExit as end:
                    status = end.code if isinstance(end.code, int) else int(end.code is not None)
                # Each module is the last one when its own imports are done.
                imported.write('\n'.join(reversed(sys.modules)))
            except BaseException:
                traceback.print_exc()
            finally:
                for file in (sys.stdout, sys.stderr, imported):
                    file.flush()
                os._exit(status)
        _, ended = os.waitpid(pid, 0)
        for file in (out, err, imported):
            file.seek(0)
        for other in imported.read().splitlines():
            if other not in sys.modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(other)
        return os.waitstatus_to_exitcode(ended), out.read(), err.read()


def main() -> None:
    for line in sys.stdin:
        ends = [run(command) for command in json.loads(line)]
        sys.stdout.write(f'{json.dumps(ends)}\n')
        sys.stdout.flush()


if __name__ == '__main__':
    main()
