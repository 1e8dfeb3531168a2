"""What runs where.

Tests inside run on two machines side by side, and then those that drive both. Those that drive one machine have it for
themselves all the while, for much of what they do is to wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import contextlib
import contextvars
import importlib
import os
import pathlib
import queue
import re
import tempfile
import unittest

import testtools

from devicetrack.tests.host import image as images
from devicetrack.tests.host import machine as machines
from devicetrack.tests.host import started
from devicetrack.tests.host.results import Results

INSIDE = 'devicetrack.tests.host.inside'
SCENARIOS = 'devicetrack.tests.host.scenarios'


class Hosts:
    """Two machines with a link, which serve many tests; one that no test asks for is never started."""

    def __init__(self, image: images.Image, booted: Mapping[str, pathlib.Path], directory: str) -> None:
        self.release = image.debian
        link = machines.Link()
        self._machines = {}
        for name in machines.ADDRESSES:
            own = os.path.join(directory, name)
            os.mkdir(own)
            self._machines[name] = machines.Machine(image, own, name, link, booted[name])

    def running(self, name: str) -> machines.Machine:
        """This machine, started if it does not run."""
        machine = self._machines[name]
        if not machine.runs:
            machine.start()
        return machine

    def off(self) -> None:
        """Whatever they do: nobody needs what they would write."""
        for machine in self._machines.values():
            if machine.runs:
                machine.cut()


# Those of the tests that drive machines now, in this thread.
hosts: contextvars.ContextVar[Hosts] = contextvars.ContextVar('hosts')


def find(package: str, pattern: str) -> Mapping[str, list[unittest.TestCase]]:
    """The tests of a package whose names match, by module.

    :raises ImportError: there is one that cannot be loaded
    """
    found = {}
    [directory] = importlib.import_module(package).__path__
    for path in sorted(pathlib.Path(directory).glob('test_*.py')):
        module = importlib.import_module(f'{package}.{path.stem}')
        tests = testtools.iterate_tests(unittest.defaultTestLoader.loadTestsFromModule(module))
        if chosen := [test for test in tests if re.search(pattern, test.id())]:
            found[module.__name__] = chosen
    return found


def run(image: images.Image, directory: str, pattern: str, results: Results) -> None:
    """Run the tests whose names match."""
    inside, scenarios = find(INSIDE, pattern), find(SCENARIOS, pattern)
    driving = [test for tests in scenarios.values() for test in tests]
    driving_one = [test for test in driving if getattr(test, 'ALONE', False)]
    driving_two = [test for test in driving if test not in driving_one]
    waiting: queue.SimpleQueue[tuple[str, list[str]]] = queue.SimpleQueue()
    for module, tests in inside.items():
        waiting.put((module, [test.id() for test in tests]))
    booted = started.get(image)
    with _hosts(image, booted, directory) as of, _hosts(image, booted, directory) as other, \
            futures.ThreadPoolExecutor() as pool:
        # Both start at once: a second one that is only found to be needed is waited for alone.
        work = [pool.submit(_run_inside, of, name, waiting, results)
                for name in list(machines.ADDRESSES)[:2 if driving_two else len(inside)]]
        alone = pool.submit(_run_driving, other, driving_one, results)
        for done in work:
            done.result()
        _run_driving(of, driving_two, results)
        alone.result()


@contextlib.contextmanager
def _hosts(image: images.Image, booted: Mapping[str, pathlib.Path], directory: str) -> Iterator[Hosts]:
    hosts = Hosts(image, booted, tempfile.mkdtemp(dir=directory))
    try:
        yield hosts
    finally:
        hosts.off()


def _run_inside(of: Hosts, name: str, waiting: queue.SimpleQueue[tuple[str, list[str]]], results: Results) -> None:
    """Have one machine run what is left, one module after the other."""
    machine = of.running(name)
    with contextlib.suppress(queue.Empty):
        while True:
            module, tests = waiting.get_nowait()
            stream, reason = b'', 'It ended early.'
            try:
                stream = machine.run_tests(tests, [module])
            except (machines.Failed, machines.Gone, TimeoutError) as error:
                reason = str(error)
            if not results.add(of.release, stream, tests, reason):
                results.say(machine.logs())


def _run_driving(of: Hosts, tests: Sequence[unittest.TestCase], results: Results) -> None:
    token = hosts.set(of)
    unittest.TestSuite(tests).run(results.collector(of.release))
    hosts.reset(token)
