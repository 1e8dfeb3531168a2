"""A program that explores operations on three kinds of stores, and prints which faults they survived.

::

    from devicetrack.testing.crash import program

    if __name__ == '__main__':
        sys.exit(program.main([Boot, Delete]))
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import multiprocessing
from multiprocessing import connection as lines
import os
import re
import signal
import sys
import time
import traceback
from typing import Any
from typing import Final
from typing import TextIO

from devicetrack.testing import databases
from devicetrack.testing.crash import explore
from devicetrack.testing.crash import moments
from devicetrack.testing.crash.explore import Operation
from devicetrack.testing.crash.explore import Report
from devicetrack.testing.crash.stores import Server
from devicetrack.testing.crash.stores import server_of
from devicetrack.testing.crash.stores import ServerStores
from devicetrack.testing.crash.stores import SQLiteStores

SQLITE: Final = 'sqlite'
POSTGRESQL: Final = 'postgresql'
MARIADB: Final = 'mariadb'
STORES: Final = {SQLITE: None, POSTGRESQL: databases.PostgreSQLStore, MARIADB: databases.MariaDBStore}


def main(operations: Sequence[Callable[[], Operation]], arguments: Sequence[str] | None = None) -> int:
    """Explore operations, and print a table and the smallest failure.

    :returns: the exit status: 0 if all operations survived all faults
    """
    options = _options(arguments)
    chosen = [number for number, operation in enumerate(operations)
              if any(re.search(pattern, operation().name) for pattern in options.operation or [''])]
    if not chosen:
        _say('no operation has such a name: ' + ', '.join(operation().name for operation in operations))
        return 2
    began = time.monotonic()
    reports = _explore(operations, chosen, options)
    _print_table(reports, options)
    _say(f'{sum(sum(report.runs.values()) for report in reports)} runs in {time.monotonic() - began:.0f} s')
    failed = [report for report in reports if not report.survived]
    if failed:
        smallest = min(failed, key=lambda report: (len(report.first.faults) if report.first else 0, report.points))
        _say(f'\n{len(failed)} of {len(reports)} did not survive. The smallest failure:\n\n{smallest.describe()}')
        if options.verbose:
            for report in failed:
                if report is not smallest:
                    _say(f'\n{report.describe()}')
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Kill a compute service at every step of what it does.')
    parser.add_argument('operation', nargs='*', help='regular expressions of operations; all by default')
    parser.add_argument('--store', action='append', choices=list(STORES), help='may be repeated; all by default')
    parser.add_argument('--variant', action='append', choices=list(explore.VARIANTS),
                        help='may be repeated; all by default')
    parser.add_argument('--workers', type=int, default=2, help='processes that explore side by side')
    parser.add_argument('--timeout', type=float, default=explore.TIMEOUT_S, metavar='SECONDS',
                        help='a run fails that takes longer, and its processes are killed; %(default)s by default')
    parser.add_argument('--every-point', action=argparse.BooleanOptionalAction,
                        help='kill also at points that leave the same behind as others; by default on SQLite alone')
    parser.add_argument('--verbose', action='store_true', help='describe the first failure of every operation')
    options = parser.parse_args(arguments)
    options.store = options.store or list(STORES)
    options.variant = options.variant or list(explore.VARIANTS)
    if explore.AGAIN in options.variant and moments.KILL not in options.variant:
        options.variant.append(moments.KILL)    # AGAIN starts from the states that kills leave
    return options


# -- workers ----------------------------------------------------------------------------------------------------------


def _explore(operations: Sequence[Callable[[], Operation]], chosen: Sequence[int],
             options: argparse.Namespace) -> list[Report]:
    """Explore every operation on every store. The reports come in the order of operations and stores."""
    explore.warm_up()
    signal.signal(signal.SIGTERM, _end)
    # Fork before the servers start, because servers bring threads.
    workers = [_Worker(operations, options) for _ in range(options.workers)]
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.end)
        for name in options.store:
            for worker in workers:
                fixture = STORES[name]
                worker.tell(name, None if fixture is None else server_of(stack.enter_context(fixture())))
        jobs = [(number, store) for number in chosen for store in options.store]
        waiting = list(jobs)
        answers: dict[tuple[int, str], Report] = {}
        idle = list(workers)
        busy: dict[Any, tuple[_Worker, tuple[int, str]]] = {}
        while waiting or busy:
            while waiting and idle:
                worker = idle.pop()
                job = waiting.pop(0)
                worker.tell(*job)
                busy[worker.line] = worker, job
            for line in lines.wait(list(busy)):
                worker, job = busy.pop(line)
                report = worker.answer()
                answers[job] = report
                idle.append(worker)
                _say(f'{report.operation} on {report.store}: '
                     f'{"survived" if report.survived else "DID NOT SURVIVE"}', sys.stderr)
    return [answers[job] for job in jobs]


class _Worker:
    """A process that explores. First it gets the stores, then pairs of an operation's number and a store's name."""

    def __init__(self, operations: Sequence[Callable[[], Operation]], options: argparse.Namespace) -> None:
        self.line, theirs = multiprocessing.Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self.line.close()
            _work(theirs, operations, options)
        theirs.close()

    def tell(self, *message: Any) -> None:
        self.line.send(message)

    def answer(self) -> Report:
        answer: Any = self.line.recv()
        if isinstance(answer, str):
            raise RuntimeError(f'a worker failed:\n{answer}')
        report: Report = answer
        return report

    def end(self) -> None:
        """Let the process clean up and end, whatever it is doing now."""
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)


def _end(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def _work(line: Any, operations: Sequence[Callable[[], Operation]], options: argparse.Namespace) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    explorers: dict[str, explore.Explorer] = {}
    status = 1
    try:
        while True:
            first, second = line.recv()
            if isinstance(first, str):
                explorers[first] = explore.Explorer(_stores(second), options.timeout)
            else:
                line.send(explorers[second].explore(operations[first](), options.variant,
                                                    _every_point(options, second)))
    except (EOFError, SystemExit):
        status = 0
    except BaseException:
        line.send(traceback.format_exc())
    finally:
        for explorer in explorers.values():
            explorer.close()
        os._exit(status)


def _every_point(options: argparse.Namespace, store: str) -> bool:
    return store == SQLITE if options.every_point is None else bool(options.every_point)


def _stores(server: Server | None) -> Any:
    return SQLiteStores() if server is None else ServerStores(server)


# -- the table --------------------------------------------------------------------------------------------------------


def _print_table(reports: Sequence[Report], options: argparse.Namespace) -> None:
    rows = [['operation', 'store', 'points', *options.variant, 'restarts', 'left behind', '']]
    for report in reports:
        cells = []
        for variant in options.variant:
            runs, failures = report.runs.get(variant, 0), report.failures.get(variant, 0)
            cells.append(f'{runs - failures}/{runs}' if runs else '-')
        by_host = ', '.join(f'{host} {points}' for host, points in sorted(report.hosts.items()))
        rows.append([report.operation, report.store, by_host, *cells, str(report.restarts), str(report.states),
                     'ok' if report.survived else 'FAILED'])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        _say('  '.join(cell.ljust(width) if column < 2 else cell.rjust(width)
                       for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip())
    _say('\nRuns that were survived, of all runs. points, by host: before and after every call that changes something, '
         'or\nthat is of the driver or to another host.')
    sparing = [store for store in options.store if not _every_point(options, store)]
    if sparing and moments.KILL in options.variant:
        _say(f'On {", ".join(sparing)} the process is killed at the first of the points that leave the same behind '
             '(--every-point: at all).')
    for variant in options.variant:
        _say(f'  {variant:<8} {explore.VARIANTS[variant]}')
    if explore.AGAIN in options.variant:
        _say('  restarts: points of all restarts; left behind: the different things that a kill left at any of them or '
             'at the\n            points of the operation. Each was restarted from, once: a restart sees nothing else.')


def _say(text: str, stream: TextIO | None = None) -> None:
    stream = stream or sys.stdout
    stream.write(text + '\n')
    stream.flush()
