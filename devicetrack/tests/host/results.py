"""Results of the tests of a run: kept for stestr and tools/test-summary, and printed as they come."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import contextlib
import io
import pathlib
import threading
from typing import Any

from stestr.repository import file as repositories
import subunit
import testtools

# Statuses as stestr calls them. A test that never ended has failed, and so has one that passed and should not.
GOOD = {'success', 'xfail', 'skip'}
# The detail of a test that is a row of a table for people. It is printed, and kept whatever the test is.
TABLE = 'row of a table'


class Results:
    """Takes tests from several machines at once, and tells those of one release from those of another."""

    def __init__(self, directory: pathlib.Path, say: Callable[[str], None]) -> None:
        """Begin a run in the repository of ``directory``, which is made if there is none."""
        factory = repositories.RepositoryFactory()
        directory.mkdir(exist_ok=True)
        is_new = not (directory / '.stestr').exists()
        repository = factory.initialise(str(directory)) if is_new else factory.open(str(directory))
        self.say = say
        self._tables = directory / 'tables.rst'
        self._tables.unlink(missing_ok=True)
        self._lock = threading.RLock()
        self._target = testtools.CopyStreamResult([repository.get_inserter(), testtools.StreamToDict(self._ended)])
        self.passed = self.failed = 0
        # Details of the tests that failed.
        self.names: list[str] = []

    def __enter__(self) -> Results:
        self._target.startTestRun()
        return self

    def __exit__(self, *_: object) -> None:
        self._target.stopTestRun()

    def add(self, release: int, stream: bytes, expected: Iterable[str], otherwise: str) -> bool:
        """Take the results of tests inside.

        :param stream: subunit
        :param expected: the tests that were asked for; those that did not end have failed
        :param otherwise: why
        :returns: whether all is well
        """
        before = self.failed
        with self._lock:
            target = _Named(self._target, release, self._lock)
            subunit.ByteStreamToStreamResult(io.BytesIO(stream), 'stdout').run(target)
            for test in sorted(target.begun):
                target.fail(test, otherwise)
            for test in expected:
                if test not in target.ended:
                    target.fail(test, otherwise)
        return self.failed == before

    def collector(self, release: int) -> Any:
        """A result for a test outside to report to, as unittest does."""
        return testtools.ExtendedToStreamDecorator(_Named(self._target, release, self._lock))

    def _ended(self, test: Mapping[str, Any]) -> None:
        # Programs that are no tests leave what they print.
        if test['status'] in ('exists', 'unknown'):
            return
        began, ended = test['timestamps']
        took = f'{(ended - began).total_seconds():6.1f} s' if began and ended else ''
        self.say(f'{test["status"]:8} {took} {test["id"]}')
        if TABLE in test['details']:
            row = test['details'][TABLE].as_text()
            self.say(row.rstrip('\n'))
            with self._tables.open('a') as tables:
                tables.write(f'.. {test["id"]}\n\n{row}\n')
        if test['status'] in GOOD:
            self.passed += 1
        else:
            self.failed += 1
            self.names.append(test['id'])
            # The failure first, then the logs of machines.
            for name, detail in sorted(test['details'].items(), key=lambda named: (named[0] != 'traceback', named[0])):
                self.say(f'--- {name}\n{detail.as_text()}')


class _Named(testtools.StreamResult):
    """Adds the release to each test's name, and keeps the names of tests that have ended."""

    def __init__(self, target: testtools.StreamResult, release: int,
                 lock: contextlib.AbstractContextManager[object]) -> None:
        super().__init__()
        self._target, self._release, self._lock = target, release, lock
        self.begun: set[str] = set()
        # Without the scenarios, which follow in parentheses.
        self.ended: set[str] = set()

    def status(self, test_id: str | None = None, test_status: str | None = None, *args: Any, **others: Any) -> None:
        if test_id is not None:
            if test_status == 'inprogress':
                self.begun.add(test_id)
            elif test_status is not None:
                self.begun.discard(test_id)
                self.ended.add(test_id.partition('(')[0])
            test_id = f'{test_id}(debian{self._release})'
        with self._lock:
            self._target.status(test_id, test_status, *args, **others)

    def fail(self, test: str, reason: str) -> None:
        self.status(test, 'inprogress')
        self.status(test, file_name='reason', file_bytes=reason.encode(), mime_type='text/plain')
        self.status(test, 'fail')
