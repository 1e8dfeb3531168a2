"""Runs an operation once for each of its points, and reports whether the operation survived."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import gc
import hashlib
import pickle
import re
import shutil
import traceback
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.testing import fixtures
from devicetrack.testing import scratch
from devicetrack.testing.crash import invariant
from devicetrack.testing.crash import moments
from devicetrack.testing.crash.machines import Machine
from devicetrack.testing.crash.moments import Course
from devicetrack.testing.crash.moments import Fault
from devicetrack.testing.crash.moments import Moment
from devicetrack.testing.crash.process import ComputeProcess
from devicetrack.testing.crash.process import LedgerView
from devicetrack.testing.crash.process import MEND
from devicetrack.testing.crash.process import Parts
from devicetrack.testing.crash.process import VIEW
from devicetrack.testing.crash.seats import Seats
from devicetrack.testing.crash.stores import rows_of
from devicetrack.testing.crash.stores import Stores
from devicetrack.testing.crash.world import Crashed
from devicetrack.testing.crash.world import Host
from devicetrack.testing.crash.world import Stuck
from devicetrack.testing.crash.world import World

_ATTEMPTS: Final = 12

# So many moments of a run are shown that has no fault, and may never have ended.
_SHOWN: Final = 400

# A run takes about a second, or a few on a machine with other work.
TIMEOUT_S: Final = 300

AGAIN: Final = 'again'
VARIANTS: Final = {
    **moments.FAULTS,
    AGAIN: 'the process is killed, and so is its restart, again and again, wherever that leaves something new behind',
}


class Operation:
    """An operation of a compute service, and how to tell whether it survived a crash.

    ``setup``, ``run`` and ``finish`` run beside the hosts' processes and give them orders, like the parts of a service
    that are not on a host: ``world['a'].boot(uuid)`` calls ``boot`` of the process of host ``a``. The faults interrupt
    ``run``. When the kit kills a process, ``run`` ends with :class:`~devicetrack.testing.crash.world.Crashed`. The kit
    then starts the process again and lets it audit. Then ``finish`` reacts as the service does: it continues or undoes
    the operation.
    """

    name = ''
    # The kit calls this in the process of a host, to make its compute service.
    process: Callable[[Parts], ComputeProcess] = ComputeProcess

    def machines(self) -> dict[str, Machine]:
        """The machines, by the names of their hosts."""
        raise NotImplementedError

    def data(self) -> Any:
        """Make the compute service's own data, empty. It outlives processes. Its attributes must be picklable."""
        raise NotImplementedError

    def setup(self, world: World) -> None:
        """Bring the world into the state in which the operation begins. The processes already run."""

    def run(self, world: World) -> None:
        """Do the operation."""
        raise NotImplementedError

    def finish(self, world: World) -> None:
        """Continue or undo the interrupted operation, until nothing is under way.

        The kit calls this after the restart, and also if nothing was interrupted. It calls this again if a connection
        turns out to be dead after an outage.
        """
        raise NotImplementedError

    def take_over(self, world: World, host: str) -> None:
        """Act as the service of another manager, which took over a host while the older manager is in ``run``.

        The newer manager has started and audited. ``world[host]`` is the newer one.
        """

    def owners(self, world: World) -> invariant.Owners:
        """How many devices of each class an instance owns by the service's data, by host and instance."""
        raise NotImplementedError

    def check(self, world: World) -> list[str]:
        """Say what else is wrong at the end, in words."""
        return []


@dataclasses.dataclass
class Result:
    """The result of one run. ``wrong`` is empty if it survived. ``courses`` has its course and those of restarts."""

    faults: tuple[Fault, ...]
    wrong: list[str]
    courses: list[Course]
    state: str = ''                             # a digest of the world right after the first fault
    log: str = ''

    @property
    def struck(self) -> str:
        """The faults, each with its point, in words."""
        return '; then '.join(f'{moments.FAULTS[course.fault.how]}: {course.struck or course.fault}'
                              for course in self.courses if course.fault is not None) or 'without any fault'

    def trace(self) -> list[str]:
        """The points that the run passed, up to each fault."""
        lines = []
        for number, course in enumerate(self.courses):
            lines.append('the operation:' if number == 0 else 'the restart:')
            for moment in course.moments[-_SHOWN:] if course.fault is None else course.moments:
                if moment.kind in (moments.STORE, moments.DRIVER, moments.MACHINE) or moment == course.struck:
                    lines.append(f'    {moment}')
                if moment == course.struck and course.fault is not None:
                    lines.append(f'    *** host {moment.host}: {moments.FAULTS[course.fault.how]}')
                    if course.fault.how in (moments.KILL, moments.ORPHAN):
                        break
        return lines


class _Run:
    """One run of an operation, with faults in it."""

    def __init__(self, operation: Operation, stores: Stores, seats: Seats, faults: Sequence[Fault],
                 recorded: Sequence[Sequence[Moment]], record: bool, timeout_s: float) -> None:
        self.operation, self.stores, self.faults = operation, stores, tuple(faults)
        self._recorded, self._record = recorded, record
        self.astray = False
        self._courses: list[Course] = []
        self._room: dict[str, dict[str, int]] = {}
        self._state = ''
        # The last states that were checked: of the things that outlive a process, and of the process.
        self._seen = b''
        self._view: tuple[str, LedgerView | None] | None = None
        self.world = World(operation.machines(), operation.data(), stores, seats, operation.process, timeout_s,
                           operation.take_over)

    def go(self) -> Result:
        wrong: list[str]
        with self.world:
            try:
                wrong = self._go()
            except Stuck as stuck:
                wrong = [str(stuck)]
            except Exception as error:
                wrong = [traceback.format_exc()]
                self.astray = isinstance(error, moments.WentAnotherWay)
            trouble = self.world.trouble
            wrong = [f'{what}; at the moments [{"], [".join(at)}]' for what, at in trouble.items()] + [
                what for what in dict.fromkeys(wrong) if what not in trouble]
            log = self._log() if wrong else ''
        return Result(self.faults, wrong, self._courses, self._state, log)

    def _log(self) -> str:
        with open(self.world.log, errors='replace') as file:
            return file.read()[-8000:]

    def _go(self) -> list[str]:
        world, operation = self.world, self.operation
        how = self.faults[0].how if self.faults else None
        self.stores.route(how in moments.LOSSES)
        world.restart()
        self._room = {host.name: host.tell(VIEW).room for host in world}
        operation.setup(world)
        self._operate()
        world.course, world.contents = Course(), None
        wrong = invariant.at_a_moment(world, self._views())
        self._state = self._canonical()
        if how is not None:
            wrong += self._after(how)
        self.stores.route(False)
        self._restart(how)
        world.course, world.contents = Course(), None
        if how == moments.HUNG:
            world.do_late()
            wrong += invariant.at_a_moment(world, self._views())
            world.audit()
        if world.orphans:
            wrong += invariant.at_a_moment(world, self._views())
            for orphan in world.orphans:
                orphan()
            world.audit()
        wrong += invariant.at_rest(world, self._views())
        self._with_the_store(how, lambda: operation.finish(world))
        world.audit()
        world.audit()                           # a host notices another one's changes only at its next audit
        findings = world.audit()                # an audit reports what it has repaired, so look at the next one
        wrong += invariant.at_the_end(world, self._views(), findings, self._room, operation.owners(world))
        return wrong + operation.check(world)

    def _after(self, how: str) -> list[str]:
        """Act out the time between the fault and the restart. Returns what is wrong then."""
        world, wrong = self.world, []
        if how in moments.CUTS:
            self.stores.mend()
            for host in world:
                if how == moments.CUT:
                    host.kill()
                elif host.alive:
                    host.tell(MEND)
        elif how in moments.HANGS:
            if how == moments.HUNG and self._courses[0].struck is not None:
                struck = self._courses[0].struck
                world[struck.host].kill()
                wrong += world.start_while_it_hangs(world[struck.host], struck.kind == moments.STORE)
            world.come_back()
            wrong += invariant.at_a_moment(world, self._views())
        elif how == moments.TAKEOVER:
            for older in world.older:
                older.kill()
        elif how == moments.GUEST:
            world.audit()
            wrong += invariant.at_a_moment(world, self._views())
            world.end_stranger()
        return wrong

    def _operate(self) -> None:
        """Run the operation with the first fault."""
        course = self._begin(0)
        try:
            self.operation.run(self.world)
        except (Crashed, exception.DeviceTrackError):
            if course.struck is None:
                raise
        if course.fault is not None and course.struck is None:
            raise moments.WentAnotherWay('the operation ended before the fault')

    def _restart(self, how: str | None) -> None:
        """Start killed processes, kill them again where a fault says so, and audit."""
        for number in range(1, len(self.faults) + 1):
            course = self._begin(number)
            try:
                self.world.restart()
                self._with_the_store(how, self.world.audit)
            except Crashed:
                if course.struck is None:
                    raise
                continue
            if course.fault is not None and course.struck is None:
                raise moments.WentAnotherWay('the restart ended before the fault')
        if not self.faults:
            self.world.audit()

    def _with_the_store(self, how: str | None, call: Callable[[], object]) -> None:
        """Do what the store may refuse after an outage, until it does not."""
        # A process notices its dead connections when it next uses one, unless they were idle for some seconds. That
        # call is lost, and a service tries again.
        for left in reversed(range(1 + len(list(self.world)) if how == moments.OUTAGE else 1)):
            try:
                call()
                return
            except exception.StoreUnavailable:
                if not left:
                    raise

    def _begin(self, number: int) -> Course:
        fault = self.faults[number] if number < len(self.faults) else None
        recorded = self._recorded[number] if number < len(self._recorded) else ()
        recording = self._record and number == len(self.faults)
        course = self.world.course = Course(fault, recording, recorded)
        self.world.look = self._look if recording else None
        self._courses.append(course)
        self.world.contents = self._view = None
        self._seen = b''
        return course

    def _look(self, host: Host, kind: str, when: str, view: LedgerView | None) -> list[str]:
        """Check a moment of a recorded phase. If nothing changed since the last moment, its check still counts."""
        world, course = self.world, self.world.course
        begins = world.contents is None or self._view is None or self._view[0] != host.name
        if world.contents is None:
            world.contents = self.stores.read()
        if begins or (kind != moments.LEDGER and when != moments.BEFORE):
            seen = pickle.dumps((host.name, world.contents, vars(world.data), self._machines()))
            if seen != self._seen:
                self._seen, self._state, self._view = seen, self._canonical(host), None
        course.states[len(course.moments)] = self._state
        if self._view == (host.name, view):
            return []
        self._view = host.name, view
        return invariant.at_a_moment(world, {host.name: view} if view is not None else {})

    def _views(self) -> dict[str, Any]:
        views = {host.name: host.tell(VIEW) for host in self.world if host.alive}
        return {name: view for name, view in views.items() if view is not None}

    def _machines(self) -> dict[str, Any]:
        return {host.name: (host.machine.boot, host.machine.devices, host.machine.domains, host.machine.contents,
                            sorted(host.machine.lent)) for host in self.world}

    def _canonical(self, dying: Host | None = None) -> str:
        """A digest of everything that a restart can see. Numbers replace random names in it.

        :param dying: the host whose process is in the middle of a call. It counts as dead
        """
        alive = [host for host in self.world if host.alive and host is not dying]
        numbers: dict[str, str] = {}

        def text(thing: Any) -> str:
            return _DRAWN.sub(lambda match: numbers.setdefault(match[0], f'#{len(numbers)}'), repr(thing))

        # Rows come first: they have an order even without their random names, and give these names their numbers.
        rows = sorted(rows_of(self.world.contents or self.stores.read()), key=lambda row: _DRAWN.sub('', repr(row)))
        texts = [text(rows), text(vars(self.world.data)), text(self._machines())]
        for host in alive:
            view = host.tell(VIEW)
            texts += [host.name, str(host.waits_for), *sorted(map(text, view.devices if view is not None else ()))]
        return hashlib.sha256('\n'.join(texts).encode()).hexdigest()


# UUIDs, claim ids, times and addresses of objects.
_DRAWN: Final = re.compile(r'[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{16}-[0-9a-f]+'
                           r'|\b1[0-9]{9}\b| at 0x[0-9a-f]+')


@dataclasses.dataclass
class Report:
    """The runs of an operation on one kind of store.

    ``points`` is the number of points of the operation, and ``restarts`` that of all its restarts together. ``states``
    is the number of different states that a kill at these points leaves behind. ``runs`` and ``failures`` count by
    variant. ``first`` is the smallest failure, and ``others`` says what was wrong in the others, with their faults.
    ``hosts`` is the number of points on each host.
    """

    operation: str
    store: str
    points: int = 0
    hosts: dict[str, int] = dataclasses.field(default_factory=dict)
    states: int = 0
    restarts: int = 0
    runs: dict[str, int] = dataclasses.field(default_factory=dict)
    failures: dict[str, int] = dataclasses.field(default_factory=dict)
    first: Result | None = None
    others: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    @property
    def survived(self) -> bool:
        return self.first is None

    def add(self, variant: str, result: Result) -> None:
        self.runs[variant] = self.runs.get(variant, 0) + 1
        if result.wrong:
            self.failures[variant] = self.failures.get(variant, 0) + 1
            if self.first is None:
                self.first = result
            else:
                for wrong in result.wrong:
                    self.others.setdefault(wrong, []).append(result.struck)

    def describe(self) -> str:
        """Describe the smallest failure: the faults, the moments before them, and what is wrong. List the others."""
        assert self.first is not None
        return '\n'.join([
            f'{self.operation} on {self.store}: {self.first.struck}',
            *self.first.trace(), 'what is wrong:', *_indented(self.first.wrong),
            *(['what the processes said:', *_indented(self.first.log.splitlines()[-40:])] if self.first.log else []),
            *(['what is wrong in the other failures, and their points:', *_indented(
                '\n'.join([wrong, *_indented(faults)]) for wrong, faults in self.others.items())]
              if self.others else [])])


def _indented(texts: Iterable[str]) -> Iterator[str]:
    return (f'    {line}' for text in texts for line in text.splitlines())


class Explorer:
    """Explores operations on one kind of store.

    :param timeout_s: the run fails that takes longer, and its processes are killed
    """

    def __init__(self, stores: Stores, timeout_s: float = TIMEOUT_S) -> None:
        warm_up()
        self._stores, self._timeout_s = stores, timeout_s
        self._restarts: dict[tuple[Fault, ...], Sequence[Moment]] = {}
        self._seats = Seats(scratch.make('crash'))

    def close(self) -> None:
        self._stores.close()
        self._seats.close()
        shutil.rmtree(self._seats.directory, ignore_errors=True)

    def try_out(self, operation: Operation, faults: Sequence[Fault] = (),
                recorded: Sequence[Sequence[Moment]] = (), record: bool = False) -> Result:
        """Do one run. With ``record`` it records its last phase: the operation, or the restart after all faults.

        If a run does not pass the recorded moments, the kit repeats it a few times: a database may return equally
        sorted rows in any order.
        """
        for _ in range(_ATTEMPTS):
            run = _Run(operation, self._stores, self._seats, faults, recorded, record, self._timeout_s)
            result = run.go()
            if not run.astray:
                break
        return result

    def explore(self, operation: Operation, variants: Sequence[str] = tuple(VARIANTS),
                every_point: bool = True, until_failure: bool = False) -> Report:
        """Record the operation's moments in a first run, then do every run of every variant.

        :param variants: keys of ``VARIANTS``. AGAIN needs KILL among them
        :param every_point: without it KILL skips points where a kill leaves the same state as at another point
        :param until_failure: stop at the first failure, and report the runs up to it
        """
        report = Report(operation.name, self._stores.kind)
        recording = self.try_out(operation, record=True)
        report.add('none', recording)
        if recording.wrong:
            return report
        course = recording.courses[0]
        report.points = len(course.points())
        report.hosts = dict(collections.Counter(moment.host for moment in course.points()))
        seen: dict[str, tuple[Fault, ...]] = {}
        restarts: list[Result] = []
        for variant in variants:
            if variant == AGAIN:
                continue
            for fault in course.faults(variant):
                # The recorded course says what each kill leaves behind. The first kill that leaves a state records the
                # restart from that state.
                is_new = variant == moments.KILL and course.states[fault.number] not in seen
                if variant == moments.KILL and not is_new and not every_point:
                    continue
                result = self.try_out(operation, [fault], [course.moments], record=is_new and AGAIN in variants)
                report.add(variant, result)
                if until_failure and result.wrong:
                    return report
                if is_new:
                    seen[course.states[fault.number]] = (fault,)
                    restarts.append(result)
        for result in restarts if AGAIN in variants else ():
            self._again(operation, course, seen, result, report)
        report.states = len(seen)
        return report

    def _again(self, operation: Operation, course: Course, seen: dict[str, tuple[Fault, ...]], restarted: Result,
               report: Report) -> None:
        """Kill a restart at each point where that leaves a new state. Do the same with the restart from that state.

        A restart depends on nothing but the state that it finds. So one try of each state is enough.
        """
        if restarted.wrong:
            return
        restart = restarted.courses[-1]
        self._restarts[restarted.faults] = restart.moments
        for fault in restart.faults(moments.KILL):
            report.restarts += 1
            state = restart.states[fault.number]
            if state not in seen:
                seen[state] = faults = (*restarted.faults, fault)
                result = self.try_out(operation, faults, self._recorded(course, faults), record=True)
                report.add(AGAIN, result)
                self._again(operation, course, seen, result, report)

    def _recorded(self, course: Course, faults: tuple[Fault, ...]) -> list[Sequence[Moment]]:
        return [course.moments, *(self._restarts[faults[:length]] for length in range(1, len(faults)))]


@functools.cache
def warm_up() -> None:
    """Use a host once in this process, so that its children inherit everything that the first use makes."""
    with fixtures.Host(devices=1, parents={'parent': 1}) as host:
        instance = host.spawn(pmem=1, vgpu=1)
        host.restart()
        host.audit()
        host.delete(instance)
    gc.collect()
    gc.freeze()


