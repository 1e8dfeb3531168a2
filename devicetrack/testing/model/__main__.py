"""Searches, side by side: ``python -m devicetrack.testing.model [DEPTH]``."""

from __future__ import annotations

import argparse
import concurrent.futures
import logging
import multiprocessing
import os
import sys
from typing import Final

from devicetrack.testing.model import search
from devicetrack.testing.model.world import Shape

DEPTH: Final = 3

SHAPES: Final = (Shape(shared=True), Shape(shared=False))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog='model-check', description='Every order of operations and crashes.')
    parser.add_argument('depth', nargs='?', type=int, default=DEPTH, help='steps after each beginning')
    parser.add_argument('--first', action='store_true', help='stop at the first violation')
    chosen = parser.parse_args(arguments)
    found = 0
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context('spawn'),
                                                initializer=_be_quiet) as pool:
        for running in [pool.submit(search.run, shape, chosen.depth, None, chosen.first) for shape in SHAPES]:
            result = running.result()
            sys.stdout.write('\n'.join([str(result), *map(str, result.violations), '']))
            sys.stdout.flush()
            found += len(result.violations)
    return 1 if found else 0


def _be_quiet() -> None:
    logging.disable(logging.CRITICAL)


if __name__ == '__main__':
    sys.exit(main())
