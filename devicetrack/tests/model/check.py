"""Every search, side by side: ``python -m devicetrack.tests.model [DEPTH]``."""

from __future__ import annotations

import argparse
import concurrent.futures
import logging
import multiprocessing
import os
import sys
import time
from typing import Final
import warnings

from devicetrack.tests.model import mutants
from devicetrack.tests.model import search
from devicetrack.tests.model.search import Result
from devicetrack.tests.model.world import Shape

DEPTH: Final = 3

# Whether also the states of the greatest depth are finished: once is enough, and it takes longer than all else.
SEARCHES: Final = (
    (Shape(shared=True), True),
    (Shape(shared=False, failing=True), False),
    (Shape(devices=0, mdevs=2, shared=False), False),
    (Shape(devices=3, shared=False, sizes=(1, 2), card=True), False),
    (Shape(devices=0, mdevs=2, shared=False, sizes=(1, 2), whole=True), False),
    (Shape(devices=3, shared=False, sizes=(1, 2), group=2), False),
)


def main(arguments: list[str] | None = None) -> int:
    """:returns: 0 when all is well and every planted fault was found."""
    be_quiet()
    parser = argparse.ArgumentParser(prog='model-check', description='Every order of operations and crashes.')
    parser.add_argument('depth', nargs='?', type=int, default=DEPTH,
                        help=f'steps after each beginning ({DEPTH}); each one more takes about eight times as long')
    parser.add_argument('--no-mutants', action='store_true', help='leave the planted faults out')
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    found = missed = 0
    planted = () if chosen.no_mutants else tuple(mutants.MUTANTS)
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context('spawn'),
                                                initializer=be_quiet) as pool:
        searches = [pool.submit(search.run, shape, chosen.depth, leaves) for shape, leaves in SEARCHES]
        hunts = {name: pool.submit(search.hunt, name) for name in planted}
        for running in searches:
            result = running.result()
            _say(str(result), *map(str, result.violations))
            found += len(result.violations)
        for name, hunt in hunts.items():
            result = hunt.result()
            missed += not result.violations
            _say(f'planted: {mutants.MUTANTS[name]}', _smallest(result))
    _say(f'{found} violations, {len(planted) - missed} of {len(planted)} planted faults found, '
         f'{time.monotonic() - began:.0f} s')
    return 1 if found or missed else 0


def _smallest(result: Result) -> str:
    if not result.violations:
        return f'  NOT FOUND in {result}'
    return str(result.smallest)


def be_quiet() -> None:
    """The log of the searches is of no interest; their traces are."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')


def _say(*lines: str) -> None:
    sys.stdout.write('\n'.join((*lines, '')))
    sys.stdout.flush()
