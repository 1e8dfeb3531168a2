"""Every order of operations and crashes up to a depth, breadth first: the first trace of a fault is a shortest one."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import time
import traceback
from typing import Final
from typing import NamedTuple

from devicetrack.testing.model import canonical
from devicetrack.testing.model import finishing
from devicetrack.testing.model import operations
from devicetrack.testing.model import oracle
from devicetrack.testing.model.operations import Step
from devicetrack.testing.model.world import Shape
from devicetrack.testing.model.world import Snapshot
from devicetrack.testing.model.world import World

# Where searches begin besides the empty world, so that moves are reached in fewer steps.
BEGINNINGS: Final[tuple[tuple[Step, ...], ...]] = (
    (),
    (Step('boot', ('i1', 'a')),),
    (Step('boot', ('i1', 'a')), Step('boot', ('i2', 'b'))),
    (Step('boot', ('i1', 'a')), Step('resize', ('i1', 'b', 1)), Step('leave', ('i1',)), Step('finish', ('i1',))),
    (Step('boot', ('i1', 'a')), Step('resize', ('i1', 'a', 1)), Step('leave', ('i1',)), Step('finish', ('i1',))),
    (Step('boot', ('i1', 'a')), Step('live claim', ('i1',)), Step('live migrate', ('i1',))),
    (Step('boot', ('i1', 'a')), Step('power off', ('a',)), Step('evacuate', ('i1',))),
)


class Violation(NamedTuple):
    """What went wrong and the steps that lead there. ``at`` is the call before which it showed, '' at a step's end."""

    trace: tuple[Step, ...]
    at: str
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f'  {number}. {step}' for number, step in enumerate(self.trace, 1)]
        where = f'at {self.at} of the last step' if self.at else 'after the last step'
        return '\n'.join([*lines, f'  {where}:', *(f'    {one}' for one in self.wrong)])


@dataclasses.dataclass
class Result:
    """What a search visited and found. ``complete`` when nothing up to ``depth`` is left unvisited."""

    shape: Shape
    depth: int = 0
    states: int = 0
    transitions: int = 0
    finished: int = 0
    seconds: float = 0.0
    complete: bool = True
    violations: list[Violation] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        store = 'one store for both hosts' if self.shape.shared else 'a store for each host'
        kind = f'{self.shape.mdevs} mediated devices' if self.shape.mdevs else f'{self.shape.devices} namespaces'
        return (f'{kind} a host, {store}: depth {self.depth}{"" if self.complete else " (not all of it)"}, '
                f'{self.states} states, {self.transitions} transitions, {self.finished} ends, '
                f'{self.seconds:.0f} s, {len(self.violations)} violations')


class _Node(NamedTuple):
    snapshot: Snapshot
    trace: tuple[Step, ...]
    form: bytes


class Search:
    """One search of one shape.

    :param depth: how many steps after a beginning
    :param seconds: no step is begun after so long a time
    :param first: stop at the first violation
    """

    def __init__(self, shape: Shape, depth: int, seconds: float | None = None, first: bool = False,
                 beginnings: Sequence[tuple[Step, ...]] = BEGINNINGS, ends: bool = True) -> None:
        self._depth, self._first, self._beginnings, self._ends = depth, first, beginnings, ends
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.result = Result(shape)
        self._seen: set[bytes] = set()
        self._finished: set[bytes] = set()
        self._told: set[tuple[str, ...]] = set()

    def run(self) -> Result:
        began = time.monotonic()
        with World(self.result.shape) as world:
            self._world = world
            self._search(world)
        self.result.seconds = time.monotonic() - began
        return self.result

    def _search(self, world: World) -> None:
        empty = world.snapshot()
        level: list[_Node] = []
        for beginning in self._beginnings:
            world.restore(empty)
            for step in beginning:
                operations.perform(world, step)
            level += self._arrive(world, beginning, world.snapshot())
        for depth in range(1, self._depth + 1):
            following: list[_Node] = []
            for node in level:
                if self._is_over():
                    self.result.complete = False
                    return
                for one in self._expand(world, node):
                    following.append(one)
            self.result.depth = depth
            level = following

    def _is_over(self) -> bool:
        return (self._first and bool(self.result.violations)) or (
            self._deadline is not None and time.monotonic() > self._deadline)

    # -- one state ----------------------------------------------------------------------------------------------------

    def _expand(self, world: World, node: _Node) -> Iterator[_Node]:
        world.restore(node.snapshot)
        for step in list(operations.enabled(world)):
            world.restore(node.snapshot)
            yield from self._perform(world, node.trace, step)

    def _perform(self, world: World, trace: tuple[Step, ...], step: Step) -> Iterator[_Node]:
        cuts: list[tuple[Step, Snapshot]] = []
        calls = 0
        wrong: list[str] = []
        world.acting = ''
        world.dirty = False

        def at_point(call: str) -> None:
            nonlocal calls
            calls += 1
            if wrong:
                return
            found = oracle.broken(world)
            if found:
                wrong[:] = found
                self._tell(trace, step, f'{call} ({calls})', found)
            elif world.dirty and world.acting:
                world.dirty = False
                cuts.append((step._replace(cut=f'at {call} ({calls})'), world.snapshot(without=world.acting)))

        world.at_point = at_point
        self.result.transitions += 1
        failed = ''
        try:
            operations.perform(world, step)
        except Exception as error:
            failed = f'{type(error).__name__}: {error}'
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed += f' ({where.name})'
        finally:
            world.at_point = None
        if failed and not wrong:
            self._tell(trace, step, '', [failed])
            wrong = [failed]
        if wrong:
            return
        if world.dirty and world.acting and world.hosts[world.acting].is_alive:
            cuts.append((step._replace(cut='at its end'), world.snapshot(without=world.acting)))
        yield from self._arrive(world, (*trace, step), None)
        for cut, snapshot in cuts:
            self.result.transitions += 1
            world.restore(snapshot)
            yield from self._arrive(world, (*trace, cut), snapshot)

    def _arrive(self, world: World, trace: tuple[Step, ...], snapshot: Snapshot | None) -> Iterator[_Node]:
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
        if self._ends:
            ending = finishing.finish(world, self._finished)
            self.result.finished += 1
            if ending.wrong:
                self._tell((*trace, *ending.steps[:-1]), ending.steps[-1], '', ending.wrong)
        yield _Node(snapshot, trace, form)

    def _tell(self, trace: tuple[Step, ...], step: Step, at: str, wrong: Sequence[str]) -> None:
        """Keep the first trace of each fault."""
        moves = sorted(f'{move.kind} {move.phase}' for move in self._world.service.moves)
        kind = (step.name, *moves, *(''.join(letter for letter in one if not letter.isdigit())
                                     for one in sorted(wrong)))
        if kind not in self._told:
            self._told.add(kind)
            self.result.violations.append(Violation((*trace, step), at, tuple(wrong)))


def run(shape: Shape, depth: int, seconds: float | None = None, first: bool = False,
        around: Callable[[], object] | None = None) -> Result:
    """One search, for a process of its own."""
    return Search(shape, depth, seconds, first).run()
