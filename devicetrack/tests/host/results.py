"""What became of the tests of a run: kept for stestr and tools/test-summary, and said as it happens."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import io
import pathlib
import threading
from typing import Any

from stestr.repository import file as repositories
import subunit
import testtools

# As stestr calls them. A test that began and never ended has failed, and so has one that was to fail and did not.
GOOD = {'success', 'xfail', 'skip'}


class Results:
    """Takes tests from several machines at once, and tells those of one release from those of another."""

    def __init__(self, directory: pathlib.Path, say: Callable[[str], None]) -> None:
        """Begin a run in the repository of ``directory``, which is made if there is none."""
        factory = repositories.RepositoryFactory()
        directory.mkdir(exist_ok=True)
        is_new = not (directory / '.stestr').exists()
        repository = factory.initialise(str(directory)) if is_new else factory.open(str(directory))
        self.say = say
        self._lock = threading.Lock()
        self._target = testtools.CopyStreamResult([repository.get_inserter(), testtools.StreamToDict(self._ended)])
        self.passed = self.failed = 0

    def __enter__(self) -> Results:
        self._target.startTestRun()
        return self

    def __exit__(self, *_: object) -> None:
        self._target.stopTestRun()

    def add(self, release: int, stream: bytes, expected: Iterable[str], otherwise: str) -> bool:
        """Take what came of tests inside.

        :param stream: subunit
        :param expected: the tests that were asked for; those that never ran have failed
        :param otherwise: why
        :returns: whether all is well
        """
        seen: set[str] = set()
        before = self.failed
        with self._lock:
            target = _Named(self._target, release, seen)
            subunit.ByteStreamToStreamResult(io.BytesIO(stream), 'stdout').run(target)
            for test in expected:
                if test not in seen:
                    target.status(test, 'inprogress')
                    target.status(test, file_name='reason', file_bytes=otherwise.encode(), mime_type='text/plain')
                    target.status(test, 'fail')
        return self.failed == before

    def collector(self, release: int) -> Any:
        """What a test outside reports to, as unittest does."""
        return testtools.ExtendedToStreamDecorator(_Named(self._target, release, set()))

    def _ended(self, test: Mapping[str, Any]) -> None:
        # Programs that are no tests leave what they print.
        if test['status'] in ('exists', 'unknown'):
            return
        began, ended = test['timestamps']
        took = f'{(ended - began).total_seconds():6.1f} s' if began and ended else ''
        self.say(f'{test["status"]:8} {took} {test["id"]}')
        if test['status'] in GOOD:
            self.passed += 1
        else:
            self.failed += 1
            for name, detail in sorted(test['details'].items()):
                self.say(f'--- {name}\n{detail.as_text()}')


class _Named(testtools.StreamResult):
    """Says in each test's name which release it ran on, and remembers the names that it had before."""

    def __init__(self, target: testtools.StreamResult, release: int, seen: set[str]) -> None:
        super().__init__()
        self._target, self._release, self._seen = target, release, seen

    def status(self, test_id: str | None = None, *arguments: Any, **others: Any) -> None:
        if test_id is not None:
            # Scenarios follow the name in parentheses.
            self._seen.add(test_id.partition('(')[0])
            test_id = f'{test_id}(debian{self._release})'
        self._target.status(test_id, *arguments, **others)
