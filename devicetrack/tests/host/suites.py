"""What runs where: tests inside on both machines side by side, then those that drive machines."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from concurrent import futures
import contextlib
import importlib
import os
import pathlib
import queue
import re
import unittest

import testtools

from devicetrack.tests.host import image as images
from devicetrack.tests.host import machine as machines
from devicetrack.tests.host.results import Results

INSIDE = 'devicetrack.tests.host.inside'
SCENARIOS = 'devicetrack.tests.host.scenarios'


class Hosts:
    """Two machines with a link, which serve all tests of a run."""

    def __init__(self, image: images.Image, directory: str) -> None:
        self.release = image.debian
        link = machines.Link()
        self._machines = {}
        for name in machines.ADDRESSES:
            own = os.path.join(directory, name)
            os.mkdir(own)
            self._machines[name] = machines.Machine(image, own, name, link)

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


# Those of the run that goes on, for tests that drive machines.
hosts: Hosts | None = None


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


def run(of: Hosts, pattern: str, results: Results) -> None:
    """Run the tests whose names match."""
    inside, scenarios = find(INSIDE, pattern), find(SCENARIOS, pattern)
    waiting: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for tests in inside.values():
        waiting.put([test.id() for test in tests])
    # Both start at once: a second one that is only found to be needed is waited for alone.
    names = list(machines.ADDRESSES)[:2 if scenarios else len(inside)]
    with futures.ThreadPoolExecutor() as pool:
        for work in [pool.submit(_run_inside, of, name, waiting, results) for name in names]:
            work.result()
    with _as_the_hosts(of):
        for tests in scenarios.values():
            unittest.TestSuite(tests).run(results.collector(of.release))


def _run_inside(of: Hosts, name: str, waiting: queue.SimpleQueue[list[str]], results: Results) -> None:
    """Have one machine run what is left, one module after the other."""
    machine = of.running(name)
    with contextlib.suppress(queue.Empty):
        while True:
            tests = waiting.get_nowait()
            stream, reason = b'', 'It ended early.'
            try:
                stream = machine.run_tests(tests)
            except (machines.Failed, machines.Gone, TimeoutError) as error:
                reason = str(error)
            if not results.add(of.release, stream, tests, reason):
                results.say(machine.logs())


@contextlib.contextmanager
def _as_the_hosts(of: Hosts) -> Iterator[None]:
    global hosts
    hosts = of
    try:
        yield
    finally:
        hosts = None
