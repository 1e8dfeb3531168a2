"""Runs tests of Nova in this process, and tells each one's outcome, a line of JSON on a descriptor of its own.

It is started by :mod:`devicetrack.tests.nova.runs`, after Nova has chosen its threads.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
import faulthandler
import json
import os
import sys
import time
from typing import Any
import unittest

import testtools

from devicetrack.tests import base

# When a test has taken so long this process prints where it hangs, and ends. Nova's own limit (runs.py) is shorter, and
# needs a process that still takes signals.
_HANGS_S = base.HANGS_S + 120

# A test that fails after a long wait logs for all that time, and what it has to say may stand at the beginning.
_LONGEST_DETAILS = 16_000_000


class Told(testtools.TestResult):
    """Tells each test's start and outcome to whoever started this process."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self._out, self._began = out, 0.0

    def tell(self, **said: Any) -> None:
        os.write(self._out, (json.dumps(said) + '\n').encode())

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._began = time.monotonic()
        faulthandler.dump_traceback_later(_HANGS_S, exit=True)
        self.tell(begun=test.id())

    def _ended(self, test: Any, outcome: str, text: str = '') -> None:
        self.tell(test=test.id(), outcome=outcome, seconds=round(time.monotonic() - self._began, 2),
                  details=text[-_LONGEST_DETAILS:])

    def addSuccess(self, test: Any, details: Any = None) -> None:
        self._ended(test, 'passed')

    def addError(self, test: Any, err: Any = None, details: Any = None) -> None:
        self._ended(test, 'failed', self._err_details_to_string(test, err, details))

    def addFailure(self, test: Any, err: Any = None, details: Any = None) -> None:
        self._ended(test, 'failed', self._err_details_to_string(test, err, details))

    def addSkip(self, test: Any, reason: Any = None, details: Any = None) -> None:
        self._ended(test, 'skipped', str(reason or ''))

    def addExpectedFailure(self, test: Any, err: Any = None, details: Any = None) -> None:
        self._ended(test, 'passed')

    def addUnexpectedSuccess(self, test: Any, details: Any = None) -> None:
        self._ended(test, 'failed', 'it was expected to fail')


def flat(suite: Any) -> Iterator[Any]:
    if isinstance(suite, Iterable):
        for test in suite:
            yield from flat(test)
    else:
        yield suite


def chosen(names: Iterable[str], shard: int, shards: int) -> list[Any]:
    """Load tests by name, and take one part of them. Those of a class, which take alike, are in all parts."""
    loader = unittest.TestLoader()
    tests = {test.id(): test for name in names for test in flat(loader.loadTestsFromName(name))}
    return [tests[identifier] for identifier in sorted(tests)[shard::shards]]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--out', type=int, required=True)
    parser.add_argument('--shard', type=int, default=0)
    parser.add_argument('--shards', type=int, default=1)
    parser.add_argument('--adapter', action='store_true')
    parser.add_argument('--pci', default='')
    parser.add_argument('--not-again', default='', help='a file with the names of tests that have run already')
    parser.add_argument('names', nargs='+')
    options = parser.parse_args(arguments)
    tests = chosen(options.names, options.shard, options.shards)
    told = Told(options.out)
    told.tell(listed=[test.id() for test in tests])
    done: set[str] = set()
    if options.not_again:
        with open(options.not_again) as file:
            done.update(file.read().split())
    from devicetrack.tests.nova import adapted
    adapted.begin(options.adapter, options.pci)
    for test in tests:
        if test.id() not in done:
            test.run(told)
    told.tell(ended=True)
    sys.stdout.flush()
    # Threads that a test left behind must not keep what has ended.
    os._exit(0)


if __name__ == '__main__':
    main(sys.argv[1:])
