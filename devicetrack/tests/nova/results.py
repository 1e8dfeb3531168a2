"""Keeps what a run has shown, for stestr and tools/test-summary."""

from __future__ import annotations

from collections.abc import Mapping
import pathlib
from typing import Any

from stestr.repository import file as repositories

from devicetrack.tests.nova import runs
from devicetrack.tests.nova.runs import Outcome

# As stestr calls them.
GOOD, LISTED, SHOWS_NOTHING, BAD = 'success', 'xfail', 'skip', 'fail'


class Results:
    """A run in a repository of stestr's, which is made if there is none. Each test is a comparison of two outcomes."""

    def __init__(self, directory: pathlib.Path) -> None:
        factory = repositories.RepositoryFactory()
        directory.mkdir(exist_ok=True)
        is_new = not (directory / '.stestr').exists()
        repository = factory.initialise(str(directory)) if is_new else factory.open(str(directory))
        self._target: Any = repository.get_inserter()

    def __enter__(self) -> Results:
        self._target.startTestRun()
        return self

    def __exit__(self, *_: object) -> None:
        self._target.stopTestRun()

    def add(self, name: str, status: str, reason: str = '') -> None:
        self._target.status(name, 'inprogress')
        if reason:
            self._target.status(name, file_name='traceback', file_bytes=reason.encode(), eof=True,
                                mime_type='text/plain;charset=utf8')
        self._target.status(name, status)


def statuses(stock: Mapping[str, Outcome], adapted: Mapping[str, Outcome],
             problems: Mapping[str, str]) -> dict[str, str]:
    """What each test of Nova's has shown: nothing, if it does not pass on stock Nova either.

    Not every test that passes with the adapter ran on stock Nova.
    """
    found = {}
    for name in stock.keys() | adapted.keys() | problems.keys():
        if name in problems:
            found[name] = BAD
        elif name in stock and stock[name].outcome != runs.PASSED:
            found[name] = SHOWS_NOTHING
        else:
            found[name] = GOOD if adapted[name].outcome == runs.PASSED else LISTED
    return found
