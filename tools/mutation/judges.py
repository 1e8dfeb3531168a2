"""Tests judge mutants: which tests reach a line, and whether one of them fails."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import importlib
import importlib.machinery
import itertools
import json
import os
import pathlib
import resource
import sys
from typing import Any
from typing import NamedTuple
import unittest

import children
import coverage
import hypothesis
import mutants
import testscenarios
import testtools

# Keeps which lines tests reach, until the tests or the code change.
KEPT = mutants.ROOT / '.mutation'

CPU_LIMIT_S = 20                            # for one test, on top of ten times its usual time


class Test(NamedTuple):
    """A test, and the CPU time that it takes on the real code."""

    module: str
    name: str
    usual_s: float

    @property
    def of(self) -> str:
        """The name of the test's class."""
        return self.name.partition('(')[0].rpartition('.')[0]


@functools.cache
def tests_in(module: str) -> dict[str, Any]:
    """The tests of a module by name. Each scenario is a test."""
    hypothesis.settings.register_profile('mutation', derandomize=True, database=None, deadline=None,
                                         phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
                                         suppress_health_check=list(hypothesis.HealthCheck))
    importlib.import_module('devicetrack.tests')
    hypothesis.settings.load_profile('mutation')
    suite = unittest.TestLoader().loadTestsFromModule(importlib.import_module(module))
    return {test.id(): test for test in testscenarios.generate_scenarios(suite)}


def fails(test: Any) -> bool:
    result = testtools.TestResult()
    test.run(result)
    return not result.wasSuccessful()


def state_of_code(tests: pathlib.Path, *others: str) -> str:
    """A digest of the package with only some of its tests, and of other texts.

    :param tests: a file or a folder of tests
    """
    code = [path for path in mutants.TESTS.parent.rglob('*.py')
            if mutants.TESTS not in path.parents or tests in (path, *path.parents)]
    texts = [*(path.read_bytes() for path in sorted(code)), *map(str.encode, others)]
    return hashlib.sha256(b''.join(texts)).hexdigest()[:32]


def look_at(module: str, judged: tuple[str, ...]) -> dict[str, Any]:
    """Return the result of :func:`reached_by` for a module. It runs once for each state of the module and the code."""
    digest = state_of_code(mutants.path_of(module), repr(judged))
    kept = KEPT / f'{module}-{digest}.json'
    if not kept.exists():
        seen = reached_by(module, judged)
        if seen['failed']:
            return seen
        half = kept.with_suffix(f'.{os.getpid()}')
        half.write_text(json.dumps(seen))
        half.rename(kept)
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def reached_by(module: str, judged: tuple[str, ...]) -> dict[str, Any]:
    """Run a module's tests on the real code.

    :returns: the CPU time of each test that needs no server, and the lines that it reaches; the names of the tests that
        failed; and the imported modules of other packages
    """
    paths = {str(mutants.path_of(name)): name for name in judged}
    measured = coverage.Coverage(data_file=None, config_file=False, include=list(paths))
    measured.start()
    with_server: list[bool] = []

    def refuse(*_args: Any, **_options: Any) -> None:
        with_server.append(True)
        raise OSError('no servers here')

    importlib.import_module('devicetrack.testing.database_servers').Server.__init__ = refuse
    times, failed = dict[str, float](), list[str]()
    for name, test in tests_in(module).items():
        measured.switch_context(name)
        with_server.clear()
        begun = children.cpu_s()
        if fails(test):
            failed += [name] if not with_server else []
        elif not with_server:
            times[name] = children.cpu_s() - begun
    measured.stop()
    data = measured.get_data()
    reached = {path: data.contexts_by_lineno(absolute) for absolute, path in paths.items()}
    number = {name: index for index, name in enumerate(times)}
    return {'tests': list(times.items()), 'failed': failed,
            'lines': {path: {line: [number[name] for name in names if name in number] for line, names in lines.items()}
                      for path, lines in reached.items()},
            'others': [name for name in sys.modules if not name.startswith(('devicetrack', '__main__'))]}


def judge(mutant: mutants.Mutant, tests: list[Test], patience_s: float) -> str | None:
    """Run tests on a mutant until one fails, or until they have used so much CPU time.

    :returns: the name of the test that failed, or ''. None if the mutant equals the real code or cannot be imported
    """
    source = mutant.source
    if source is None:
        return None
    code = compile(source, mutants.path_of(mutant.module), 'exec')
    ours = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        return code if fullname == mutant.module else ours(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code        # type: ignore[method-assign]
    try:
        importlib.import_module(mutant.module)
    except Exception:
        return None
    end_s = children.cpu_s() + patience_s
    for test in itertools.takewhile(lambda test: children.cpu_s() + test.usual_s < end_s, tests):
        limit_s = children.cpu_s() + CPU_LIMIT_S + 10 * test.usual_s
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), resource.RLIM_INFINITY))
        try:
            if fails(tests_in(test.module)[test.name]):
                return test.name
        except Exception:
            return test.module                    # the test's module cannot be imported
    return ''


class Tests:
    """Knows which tests reach a mutant.

    :param judged: the modules with mutants
    :param packages: the packages of the tests
    """

    def __init__(self, judged: tuple[str, ...], packages: tuple[str, ...], jobs: int) -> None:
        self._reaching: dict[str, dict[int, set[Test]]] = {name: collections.defaultdict(set) for name in judged}
        self._killers: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.count, failed, others = 0, list[str](), set[str]()
        modules = [f'devicetrack.tests.{package}.{path.stem}' for package in packages for path in sorted(
            mutants.path_of(f'devicetrack.tests.{package}').with_suffix('').glob('test_*.py'))]
        works = ((module, functools.partial(look_at, module, judged)) for module in modules)
        for module, seen in children.work(works, jobs):
            if not isinstance(seen, dict):
                sys.exit(f'{module}: {seen}')
            failed += seen['failed']
            others |= set(seen['others'])
            tests = [Test(module, *one) for one in seen['tests']]
            self.count += len(tests)
            for reached, lines in seen['lines'].items():
                for line, numbers in lines.items():
                    self._reaching[reached][int(line)].update(tests[number] for number in numbers)
        if failed:
            sys.exit('These fail on the code as it is:\n' + '\n'.join(failed))
        for other in sorted(others):            # so every fork has them already
            with contextlib.suppress(Exception):
                importlib.import_module(other)

    def of(self, mutant: mutants.Mutant) -> list[Test]:
        """The tests that reach a mutant, the likely killers first.

        First come tests that killed another mutant in the same function, then those in the module's own file of tests.
        Tests of one class are much alike, so the quickest test of each other class follows, then the second quickest,
        and so on.
        """
        reaching = self._reaching[mutant.module]
        # A line that no test reaches may run at the import of the module, as the body of a decorator does.
        lines = [] if mutant.at_import else [line for line in mutant.lines if reaching.get(line)]
        tests: set[Test] = set().union(*(reaching[line] for line in lines or reaching))
        turns: collections.Counter[str] = collections.Counter()
        order = []
        for test in sorted(tests, key=lambda test: (test.usual_s, test.name)):
            turns[test.of] += 1
            killed = self._killers[mutant.module, mutant.function, test.name]
            apart = not test.module.endswith(f'.test_{mutant.module.rpartition(".")[2]}')
            order.append((-killed, apart, turns[test.of] if apart else 0, test.usual_s, test))
        return [test for *_order, test in sorted(order)]

    def learn(self, mutant: mutants.Mutant, killer: str) -> None:
        """Remember which test found a mutant."""
        self._killers[mutant.module, mutant.function, killer] += 1
