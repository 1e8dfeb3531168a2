"""Counts how often claims on SQLite wait for the disk.

``python -m benchmarks.fsyncs NUMBER`` makes so many claims. This module runs that command under strace.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile

CALLS = 'fsync,fdatasync,sync_file_range,msync,syncfs,sync'


class NotCounted(Exception):
    """strace is not installed, or may not trace."""


def a_claim(claims: int) -> float:
    """How often one claim waits for the disk (fsync).

    A run with few claims has the same start and end as a run with many. The difference is that of the claims.
    """
    return (_in_run(2 * claims) - _in_run(claims)) / claims


def _in_run(claims: int) -> int:
    with tempfile.NamedTemporaryFile('r') as summary:
        command = ['strace', '-f', '-c', '-e', f'trace={CALLS}', '-o', summary.name,
                   sys.executable, '-W', 'ignore', '-m', __spec__.name, str(claims)]
        try:
            done = subprocess.run(command, cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                  check=False, capture_output=True, text=True)
        except OSError as error:
            raise NotCounted(f'strace: {error.strerror}') from error
        if done.returncode:
            raise NotCounted((done.stderr.strip().splitlines() or ['strace failed'])[-1])
        return count(summary.read())


def count(summary: str) -> int:
    """Count the calls in the output of ``strace -c``.

    The columns are: share, seconds, microseconds a call, calls, errors (or nothing) and name.
    """
    names = '|'.join(CALLS.split(','))
    return sum(int(calls) for calls in re.findall(
        rf'^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(?:{names})$', summary, re.MULTILINE))


def main(claims: int) -> None:
    # Not at the top: counting needs none of it.
    from benchmarks.host import Host
    from devicetrack.testing import databases
    with databases.SQLiteStore(durable=True) as database, Host(database.store, database.conf, claims) as host:
        for _ in range(claims):
            host.claim(host.instance())


if __name__ == '__main__':
    main(int(sys.argv[1]))
