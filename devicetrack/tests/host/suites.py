"""Chooses the machine for each test.

Those that drive two machines have a pair for themselves, and those that drive one have a third. Much of what they do is
to wait for each other, so they come first, and then tests inside, class by class, on whatever machine is free. Those of
PCI functions run on a fourth, meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import contextlib
import contextvars
import importlib
import inspect
import itertools
import os
import pathlib
import queue
import re
import tempfile
import time
from typing import NamedTuple
from typing import TypeAlias
import unittest

import testtools

from devicetrack.tests.host import image as images
from devicetrack.tests.host import machine as machines
from devicetrack.tests.host import started
from devicetrack.tests.host.results import Results

Waiting: TypeAlias = 'queue.SimpleQueue[Sequence[unittest.TestCase]]'

INSIDE = 'devicetrack.tests.host.inside'
SCENARIOS = 'devicetrack.tests.host.scenarios'
FUNCTIONS = 'devicetrack.tests.host.functions'


class Needs(NamedTuple):
    """What keeps a test from being part of a run, for the whole of it: a property of the machines, not of a moment.

    ``devices`` are those that QEMU has to emulate, and ``releases`` those of Debian on which hosts can do it.
    """

    devices: frozenset[str]
    releases: frozenset[int]

    @classmethod
    def of(cls, test: unittest.TestCase) -> Needs:
        """Read ``EMULATED`` of its class, and ``RELEASES`` of its method or class; without these it needs nothing."""
        method = getattr(test, getattr(test, '_testMethodName', ''), None)
        releases = getattr(method, 'RELEASES', getattr(test, 'RELEASES', images.SUITES))
        return cls(frozenset(getattr(test, 'EMULATED', ())), frozenset(releases))

    def missing(self, release: int) -> str | None:
        """What is missing for hosts of a release here; None if nothing is."""
        lacks = sorted(device for device in self.devices if not machines.emulates(device))
        if lacks:
            return f'a QEMU that emulates {", ".join(lacks)} ({machines.qemu_version()} does not)'
        if release not in self.releases:
            return f'hosts of Debian {", ".join(map(str, sorted(self.releases)))}'
        return None


class Hosts:
    """Two machines with a link, which serve many tests. A machine that no test asks for is never started.

    :param booted: what they go on from, by name; those of other names boot
    :param functions: whether they have PCI functions to give away
    """

    def __init__(self, image: images.Image, booted: Mapping[str, pathlib.Path], directory: str,
                 functions: bool = False) -> None:
        self.release = image.debian
        link = machines.Link()
        self._machines = {}
        for name in machines.ADDRESSES:
            own = os.path.join(directory, name)
            os.mkdir(own)
            self._machines[name] = machines.Machine(image, own, name, link, booted.get(name), functions=functions)

    def running(self, name: str) -> machines.Machine:
        """The machine of this name, started if it does not run."""
        machine = self._machines[name]
        if not machine.runs:
            machine.start()
        return machine

    def off(self) -> None:
        """Cut their power: nobody needs what they would write."""
        for machine in self._machines.values():
            if machine.runs:
                machine.cut()


# Those of the tests that drive machines now, in this thread.
hosts: contextvars.ContextVar[Hosts] = contextvars.ContextVar('hosts')


class Selection(NamedTuple):
    """The tests of a run by their dotted names: those in which ``pattern`` is found, and none of ``excluded`` is."""

    pattern: str = ''
    excluded: Sequence[str] = ()

    def has(self, name: str) -> bool:
        return bool(re.search(self.pattern, name)) and not any(re.search(one, name) for one in self.excluded)


def find(package: str, selection: Selection) -> list[unittest.TestCase]:
    """The tests of a package that are selected, and one that fails for each module that cannot be imported."""
    found: list[unittest.TestCase] = []
    [directory] = importlib.import_module(package).__path__
    for path in sorted(pathlib.Path(directory).glob('test_*.py')):
        tests = testtools.iterate_tests(unittest.defaultTestLoader.loadTestsFromName(f'{package}.{path.stem}'))
        found += [test for test in tests if selection.has(test.id()) or _is_broken(test)]
    return found


def _is_broken(test: unittest.TestCase) -> bool:
    return type(test).__module__ == 'unittest.loader'


def possible(tests: Sequence[unittest.TestCase], release: int,
             say: Callable[[str], None]) -> list[unittest.TestCase]:
    """Leave out the tests that machines here cannot be made for, and say which and why.

    They are no part of the run: nothing that is in the run is skipped.
    """
    judged = [(test, Needs.of(test).missing(release)) for test in tests]
    for why in sorted({why for _test, why in judged if why is not None}):
        left_out = [test.id() for test, said in judged if said == why]
        say(f'not part of this run, for it needs {why}: {len(left_out)} of the tests')
        for name in left_out:
            say(f'    {name}(debian{release})')
    return [test for test, why in judged if why is None]


def run(image: images.Image, directory: str, selection: Selection, results: Results) -> None:
    """Run the tests that are selected."""
    with futures.ThreadPoolExecutor() as pool:
        for work in [pool.submit(_run_with_functions, image, directory, find(FUNCTIONS, selection),
                                 results),
                     pool.submit(_run_others, image, directory, selection, results)]:
            work.result()


def _run_others(image: images.Image, directory: str, selection: Selection, results: Results) -> None:
    inside, scenarios = find(INSIDE, selection), find(SCENARIOS, selection)
    if not inside and not scenarios:
        return
    broken = [test for test in inside + scenarios if _is_broken(test)]
    driving_one = [test for test in scenarios if getattr(test, 'ALONE', False)]
    driving_two = [test for test in scenarios if test not in [*driving_one, *broken]]
    waiting: Waiting = queue.SimpleQueue()
    by_class = {case: list(tests) for case, tests in itertools.groupby(
        (test for test in inside if not _is_broken(test)), type)}
    # The longest first, as far as a source tells.
    for case in sorted(by_class, key=lambda case: len(inspect.getsource(case)), reverse=True):
        waiting.put(by_class[case])
    booted = started.get(image)

    def serve(hosts: Hosts, names: Sequence[str], first: Sequence[unittest.TestCase]) -> None:
        _run_driving(hosts, first, results)
        with futures.ThreadPoolExecutor() as pool:
            for work in [pool.submit(_run_inside, hosts, name, waiting, results) for name in names]:
                work.result()

    with _hosts(image, booted, directory) as two, _hosts(image, booted, directory) as one, \
            futures.ThreadPoolExecutor() as pool:
        for work in [pool.submit(serve, two, list(machines.ADDRESSES), driving_two),
                     pool.submit(serve, one, list(machines.ADDRESSES)[:1], [*broken, *driving_one])]:
            work.result()


def _run_with_functions(image: images.Image, directory: str, tests: Sequence[unittest.TestCase],
                        results: Results) -> None:
    """Run tests inside a machine with PCI functions, which boots: a disk among them keeps it from being saved.

    Then those that drive it: they boot it once more, and change what is in its slots.
    """
    tests = possible(tests, image.debian, results.say)
    if not tests:
        return
    driving = [test for test in tests if hasattr(test, 'ALONE')]
    waiting: Waiting = queue.SimpleQueue()
    for _case, of_class in itertools.groupby((test for test in tests if test not in driving), type):
        waiting.put(list(of_class))
    hosts = Hosts(image, {}, tempfile.mkdtemp(dir=directory), functions=True)
    try:
        _run_inside(hosts, next(iter(machines.ADDRESSES)), waiting, results)
        _run_driving(hosts, driving, results)
    finally:
        hosts.off()


@contextlib.contextmanager
def _hosts(image: images.Image, booted: Mapping[str, pathlib.Path], directory: str) -> Iterator[Hosts]:
    hosts = Hosts(image, booted, tempfile.mkdtemp(dir=directory))
    try:
        yield hosts
    finally:
        hosts.off()


def _run_inside(of: Hosts, name: str, waiting: Waiting, results: Results) -> None:
    """Have one machine run what is left, one class after the other."""
    with contextlib.suppress(queue.Empty):
        while True:
            tests = waiting.get_nowait()
            names = [test.id() for test in tests]
            machine, began = of.running(name), time.time()
            stream, reason, left_over = b'', '', ''
            try:
                stream, reason = machine.run_tests(names, [type(tests[0]).__module__])
                left_over = machine.left_over()
            except (machines.Failed, machines.Gone, TimeoutError) as error:
                reason = f'{error}\n{reason}'
            well = results.add(of.release, stream, names, reason)
            if left_over:
                # Left over by one of them, for which the next test would be blamed.
                well = results.add(of.release, b'', [f'{names[0].rpartition(".")[0]}.leaves_nothing'], left_over)
            if not well:
                results.say(f'--- {name} during these tests\n{machine.logs(began)}')


def _run_driving(of: Hosts, tests: Sequence[unittest.TestCase], results: Results) -> None:
    token = hosts.set(of)
    unittest.TestSuite(tests).run(results.collector(of.release))
    hosts.reset(token)
