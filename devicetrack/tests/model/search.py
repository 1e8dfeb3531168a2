"""Every order of operations and crashes up to a depth, breadth first: the first trace of a fault is a shortest one."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import re
import time
import traceback
from typing import Final
from typing import NamedTuple

from devicetrack.tests.model import canonical
from devicetrack.tests.model import finishing
from devicetrack.tests.model import mutants
from devicetrack.tests.model import operations
from devicetrack.tests.model import oracle
from devicetrack.tests.model.operations import Step
from devicetrack.tests.model.world import Shape
from devicetrack.tests.model.world import Snapshot
from devicetrack.tests.model.world import World

# Where searches begin besides the empty world, so that moves are reached in fewer steps.
BEGINNINGS: Final[tuple[tuple[Step, ...], ...]] = (
    (),
    (Step('boot', ('i1', 'a')),),
    (Step('boot', ('i1', 'a')), Step('boot', ('i2', 'b'))),
    (Step('boot', ('i1', 'a')), Step('resize', ('i1', 'a', 1)), Step('leave', ('i1',)), Step('finish', ('i1',)),
     Step('confirm', ('i1',)), Step('kill', ('a',))),
    (Step('boot', ('i1', 'a')), Step('resize', ('i1', 'b', 1)), Step('leave', ('i1',)), Step('finish', ('i1',))),
    (Step('boot', ('i1', 'a')), Step('resize', ('i1', 'a', 1)), Step('leave', ('i1',)), Step('finish', ('i1',))),
    (Step('boot', ('i1', 'a')), Step('live claim', ('i1',)), Step('live migrate', ('i1',))),
    (Step('boot', ('i1', 'a')), Step('power off', ('a',)), Step('evacuate', ('i1',))),
)

_UUID: Final = re.compile(r'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}')


class Violation(NamedTuple):
    """A violation and the steps that lead to it. ``at`` is the call before which it showed, '' at a step's end."""

    trace: tuple[Step, ...]
    at: str
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f'  {number}. {step}' for number, step in enumerate(self.trace, 1)]
        where = f'at {self.at} of the last step' if self.at else 'after the last step'
        return '\n'.join([*lines, f'  {where}:', *(f'    {one}' for one in self.wrong)])


@dataclasses.dataclass
class Result:
    """The counts of a search, and its violations. ``complete`` when nothing up to ``depth`` is left unvisited."""

    shape: Shape
    depth: int = 0
    states: int = 0
    transitions: int = 0
    finished: int = 0
    seconds: float = 0.0
    complete: bool = True
    violations: list[Violation] = dataclasses.field(default_factory=list)

    @property
    def smallest(self) -> Violation:
        """The violation of the fewest steps; there is one."""
        return min(self.violations, key=lambda violation: len(violation.trace))

    def __str__(self) -> str:
        store = 'one store for both hosts' if self.shape.shared else 'a store for each host'
        kind = f'{self.shape.mdevs} mediated devices' if self.shape.mdevs else f'{self.shape.devices} namespaces'
        if self.shape.card or self.shape.group:
            kind += ' that exclude one another'
        if self.shape.whole:
            kind += ', or the whole card that makes them,'
        kind += ' that may fail' if self.shape.failing else ''
        return (f'{kind} a host, {store}: depth {self.depth}{"" if self.complete else " (not all of it)"}, '
                f'{self.states} states, {self.transitions} transitions, {self.finished} ends, '
                f'{self.seconds:.0f} s, {len(self.violations)} violations')


class _Reached(NamedTuple):
    snapshot: Snapshot
    trace: tuple[Step, ...]
    form: bytes


class Search:
    """One search of one shape.

    :param depth: how many steps after a beginning
    :param seconds: no step begins after so long a time
    :param first: stop at the first violation
    :param leaves: finish what is under way also in the states of the greatest depth, not only in those before them
    """

    def __init__(self, shape: Shape, depth: int, seconds: float | None = None, first: bool = False,
                 beginnings: Sequence[tuple[Step, ...]] = BEGINNINGS, leaves: bool = True) -> None:
        self._depth, self._first, self._beginnings, self._leaves = depth, first, beginnings, leaves
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.result = Result(shape)
        self._seen: set[bytes] = set()
        self._finished: set[bytes] = set()
        self._told: set[tuple[str, ...]] = set()
        self._level = 0

    def run(self) -> Result:
        began = time.monotonic()
        with World(self.result.shape) as world:
            self._world = world
            self._search(world)
        self.result.seconds = time.monotonic() - began
        return self.result

    def _search(self, world: World) -> None:
        empty = world.snapshot()
        level: list[_Reached] = []
        for beginning in self._beginnings:
            if self._is_over():
                return
            world.restore(empty)
            if all(self._do(world, beginning[:number], step) is not None for number, step in enumerate(beginning)):
                level += self._arrive(world, beginning, world.snapshot())
        for depth in range(1, self._depth + 1):
            if self._is_over():
                break
            self._level = depth
            following: list[_Reached] = []
            for reached in level:
                if self._is_over():
                    self.result.complete = False
                    return
                for one in self._expand(world, reached):
                    following.append(one)
            self.result.depth = depth
            level = following

    def _is_over(self) -> bool:
        return (self._first and bool(self.result.violations)) or (
            self._deadline is not None and time.monotonic() > self._deadline)

    # -- one state ----------------------------------------------------------------------------------------------------

    def _expand(self, world: World, reached: _Reached) -> Iterator[_Reached]:
        world.restore(reached.snapshot)
        for step in list(operations.enabled(world)):
            world.restore(reached.snapshot)
            yield from self._perform(world, reached.trace, step)

    def _perform(self, world: World, trace: tuple[Step, ...], step: Step) -> Iterator[_Reached]:
        """Do a step, and yield the states to which it and each of its interruptions lead."""
        self.result.transitions += 1
        cuts = self._do(world, trace, step)
        if cuts is None:
            return
        yield from self._arrive(world, (*trace, step), None)
        for cut, snapshot in cuts:
            self.result.transitions += 1
            world.restore(snapshot)
            yield from self._arrive(world, (*trace, cut), snapshot)

    def _do(self, world: World, trace: tuple[Step, ...], step: Step) -> list[tuple[Step, Snapshot]] | None:
        """Do a step and look at every point of it.

        :returns: what it leaves when its process is killed at a point, for every point that leaves something else
            than the one before it; None when something went wrong
        """
        cuts: list[tuple[Step, Snapshot]] = []
        calls = 0
        wrong: list[str] = []
        world.acting, world.dirty = '', False

        def at_point(call: str) -> None:
            nonlocal calls
            calls += 1
            if wrong:
                return
            wrong[:] = oracle.broken(world, call)
            if wrong:
                self._tell(trace, step, f'{call} ({calls})', wrong)
            elif world.dirty and world.acting:
                world.dirty = False
                cuts.append((step._replace(cut=f'at {call} ({calls})'), world.snapshot(without=world.acting)))

        world.at_point = at_point
        try:
            operations.perform(world, step)
        except Exception as error:
            if not wrong:
                where = traceback.extract_tb(error.__traceback__)[-1].name
                wrong = [f'{type(error).__name__}: {error} ({where})']
                self._tell(trace, step, '', wrong)
        finally:
            world.at_point = None
        if wrong:
            return None
        if world.dirty and world.acting and world.hosts[world.acting].is_alive:
            cuts.append((step._replace(cut='at its end'), world.snapshot(without=world.acting)))
        return cuts

    def _arrive(self, world: World, trace: tuple[Step, ...], snapshot: Snapshot | None) -> Iterator[_Reached]:
        """A state was reached: see whether it is new, whether all is well, and whether all can be finished from it."""
        form = canonical.form(world)
        if form in self._seen:
            return
        self._seen.add(form)
        self.result.states += 1
        found = oracle.broken(world)
        if found:
            self._tell(trace[:-1], trace[-1], '', found)
            return
        snapshot = snapshot or world.snapshot()
        if self._leaves or self._level < self._depth:
            ending = finishing.finish(world, self._finished)
            self.result.finished += 1
            if ending.wrong:
                self._tell((*trace, *ending.steps[:-1]), ending.steps[-1], '', ending.wrong)
        yield _Reached(snapshot, trace, form)

    def _tell(self, trace: tuple[Step, ...], step: Step, at: str, wrong: Sequence[str]) -> None:
        """Keep the first trace of each fault."""
        names = {guest.uuid: guest.name for guest in self._world.service.guests.values()}
        alike = sorted(_UUID.sub(lambda found: names.get(found[0], ''), one) for one in wrong)
        wrong = tuple(_UUID.sub(lambda found: names.get(found[0], found[0][:4] + '…'), one) for one in wrong)
        moves = sorted(f'{move.kind} {move.phase}' for move in self._world.service.migrations)
        kind = (step.name, *moves, *(''.join(letter for letter in one if not letter.isdigit()) for one in alike))
        if kind not in self._told:
            self._told.add(kind)
            self.result.violations.append(Violation((*trace, step), at, wrong))


def run(shape: Shape, depth: int, leaves: bool = True) -> Result:
    """One search, for a process of its own."""
    return Search(shape, depth, leaves=leaves).run()


def hunt(name: str, depth: int = 3) -> Result:
    """A search for a planted fault, until it is found."""
    planted = mutants.MUTANTS[name]
    with planted.planted():
        return Search(planted.shape, depth, first=True).run()
