"""Moments of a run, the points among them, and the faults at such a moment.

There is a moment before and after each call of a process to its store, driver, ledger, hypervisor, service's data or
another host.
The machine may report moments inside a call, too. Moments are numbered in the order in which they come. A recording run
finds out which calls change something. The moments of those calls, and of every call of the driver or of another host,
are points.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Final
from typing import NamedTuple

BEFORE: Final = 'before'
AFTER: Final = 'after'
INSIDE: Final = 'inside'

STORE: Final = 'store'
DRIVER: Final = 'driver'
LEDGER: Final = 'ledger'
MACHINE: Final = 'machine'
HYPERVISOR: Final = 'hypervisor'
DATA: Final = 'data'
HOST: Final = 'host'

# Inside a driver's call: a child process is about to change a device, and has its lock.
CHILD_WORKS: Final = 'wipe'
# Inside a driver's call: the hypervisor is about to change a device.
HYPERVISOR_WORKS: Final = ('create', 'destroy')
# The driver's call that gives devices back, and the steps inside this call before and after it changes a device.
GIVES_BACK: Final = 'unclaim'
# The driver's calls that ask for a confirmation before they change a device, or record that it is clean.
CONFIRMED: Final = (GIVES_BACK, 'prove', 'realize')
CHANGES: Final = (CHILD_WORKS, 'destroy')
CHANGED: Final = ('wiped', 'destroyed')

# The store's call with which a manager takes over its host.
TAKES_EPOCH: Final = 'take_epoch'

# The faults of a run.
KILL: Final = 'kill'
ORPHAN: Final = 'orphan'
LOST: Final = 'lost'
CUT: Final = 'cut'
OUTAGE: Final = 'outage'
HANG: Final = 'hang'
HUNG: Final = 'hung'
TAKEOVER: Final = 'takeover'
GUEST: Final = 'guest'
FAULTS: Final = {
    KILL: 'the process is killed',
    ORPHAN: 'the process is killed, and a child that it started for a device works on until after the restart',
    LOST: 'a commit happens, but the process is told that the outcome is unknown, and goes on',
    CUT: 'the database is gone from here to the restart; at a commit, the answer is lost too',
    OUTAGE: 'the same, but the process goes on, and the database comes back to it',
    HANG: 'the hypervisor hangs from this call on, or the database from this commit, and calls get no answer; it does '
          'what it was asked when it comes back',
    HUNG: 'the same, and the process is killed and started again while it hangs; in the end the database does what the '
          'dead process asked',
    TAKEOVER: 'another manager of the host, with a state directory of its own, starts and works; then the older one '
              'goes on',
    GUEST: 'somebody else starts a guest on the devices that are being given back, and ends it after an audit',
}
# The faults that cut all connections to a database, and those that lose an answer.
CUTS: Final = (CUT, OUTAGE)
LOSSES: Final = (LOST, *CUTS)
HANGS: Final = (HANG, HUNG)


class Moment(NamedTuple):
    """A moment. ``number`` counts from 0 in its phase."""

    number: int
    host: str
    kind: str
    call: str
    when: str

    def __str__(self) -> str:
        return f'host {self.host}: {self.kind}.{self.call}, {self.when}'


class Fault(NamedTuple):
    """A fault at a moment of a phase. ``how`` is a key of ``FAULTS``."""

    number: int
    how: str


class Attention(NamedTuple):
    """Says which moments a process must report at once. ``number`` is the number of the next moment.

    Reporting every moment at once would take most of a run. If its moments do not count, a process does not note them.
    A process that waits for a fault reports at once the moment of the fault and the one before it, each together with
    all earlier ones.
    """

    counts: bool = False
    recording: bool = False
    number: int = 0
    fault: int | None = None

    def wants(self, passed: int) -> bool:
        """Whether to report the next moment at once. ``passed`` moments have come since the last report."""
        return self.recording or (self.fault is not None and self.number + passed in (self.fault - 1, self.fault))


class WentAnotherWay(Exception):
    """A run did not pass the recorded moments, so it says nothing about any of them."""


@dataclasses.dataclass
class Course:
    """The moments of one phase of a run, in order.

    With ``recording`` it finds out which calls change something, and which state a kill would leave behind at each
    moment (a digest in ``states``). ``recorded`` has the moments of an earlier run. This run must pass the same ones up
    to its fault.
    """

    fault: Fault | None = None
    recording: bool = False
    recorded: Sequence[Moment] = ()
    moments: list[Moment] = dataclasses.field(default_factory=list)
    changing: set[int] = dataclasses.field(default_factory=set)
    struck: Moment | None = None
    states: dict[int, str] = dataclasses.field(default_factory=dict)
    _open: dict[str, list[tuple[Moment, object]]] = dataclasses.field(default_factory=dict)

    def attention(self) -> Attention:
        """Say which moments a process must report at once from now on."""
        return Attention(self.recording or self.fault is not None, self.recording, len(self.moments),
                         self.fault.number if self.fault is not None else None)

    def reach(self, host: str, kind: str, call: str, when: str, state: object = None) -> str | None:
        """Pass a moment.

        :param state: everything that the call may change
        :returns: the fault to act out there, or None
        """
        moment = Moment(len(self.moments), host, kind, call, when)
        self.moments.append(moment)
        if self.recording:
            self._record(moment, state)
        if self.struck is None and moment.number < len(self.recorded) and self.recorded[moment.number] != moment:
            raise WentAnotherWay(f'{moment} came where {self.recorded[moment.number]} was recorded')
        if self.fault is None or self.fault.number != moment.number:
            return None
        self.struck = moment
        return self.fault.how

    def _record(self, moment: Moment, state: object) -> None:
        calls = self._open.setdefault(moment.host, [])
        if moment.when == INSIDE:
            self.changing.add(moment.number)
        elif moment.when == BEFORE:
            calls.append((moment, state))
        else:
            before, was = calls.pop()
            if moment.kind in (DRIVER, HOST) or was != state:
                self.changing.update((before.number, moment.number))

    def points(self) -> list[Moment]:
        """The moments at which the kit kills the process."""
        return [moment for moment in self.moments if moment.number in self.changing]

    def faults(self, how: str) -> list[Fault]:
        """Every fault of this kind that can happen in a run of this course, each once."""
        if how == KILL:
            chosen = self.points()
        elif how == ORPHAN:
            chosen = [moment for moment in self.moments if (moment.kind, moment.call) == (MACHINE, CHILD_WORKS)]
        elif how == GUEST:
            chosen = [moment for moment in self.moments
                      if (moment.kind, moment.call, moment.when) == (DRIVER, GIVES_BACK, BEFORE)
                      or (moment.kind == MACHINE and moment.call in (*CHANGES, *CHANGED))]
        elif how in HANGS:
            chosen = [moment for moment in self.points() if
                      (moment.kind in (STORE, DRIVER) and moment.when == BEFORE)
                      or (moment.kind == MACHINE and moment.call in HYPERVISOR_WORKS)]
        elif how == TAKEOVER:
            # Between two of these moments the older manager does nothing that anybody else can see. Before it has its
            # epoch, it would itself take the host over from the newer one.
            starts = {moment.host: moment.number for moment in self.moments if moment.call == TAKES_EPOCH}
            chosen = [moment for moment in self.moments if moment.number > starts.get(moment.host, -1)
                      and ((moment.kind in (STORE, DRIVER) and moment.when == BEFORE) or moment.kind == MACHINE)]
        else:
            store = [moment for moment in self.moments if moment.kind == STORE]
            # The moments before each call of the store, and those after each commit, when the answer is lost.
            chosen = [moment for moment in store
                      if (moment.number in self.changing if moment.when == AFTER else how != LOST)]
        return [Fault(moment.number, how) for moment in chosen]
