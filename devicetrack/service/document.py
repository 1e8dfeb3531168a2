"""The document of an instance: what every host finds again after a crash.

A document says what is decided, so whoever reads it knows who acts next (:attr:`Document.turns`). Each operation saves
its decision, and then each host saves the result of each of its steps. These are all saves there are, and after a crash
before one of them the step is taken again:

* boot: ``building``; then ``active`` when the guest runs.
* delete: ``deleting``; then, for each host, that it has nothing of the instance any more. The last one is ``deleted``.
* resize: ``accepted``; ``pre-migrating`` when the destination has claimed; ``post-migrating``, with the destination as
  host, when the guest is off at the source; ``finished`` when it runs at the destination. Then ``confirmed``; or
  ``reverting``, and ``reverted`` when the destination has given back. Before ``post-migrating`` a failure ends the move
  with ``error``, and after it with ``reverting``.
* live migration: ``queued``, ``accepted`` and ``preparing`` until each end has checked the other one's devices and the
  destination has claimed; ``pre-migrating``; ``running`` before the copy; where the source has the guest after it;
  ``completed`` or ``failed``. An interruption before ``running`` ends the move with ``error``: nothing was copied.
* evacuation: ``accepted``; ``done``, with the destination as host, when the guest runs there; or ``error``.
* after each move: for each host, that it has settled its half. The manager asks for the move's status until then.

Where they differ, the hypervisor is right about where a guest runs, the rows about who has a device, and the document
about what is to become of both.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.objects import InstanceResources

VERSION: Final = 1

# States of an instance.
BUILDING: Final = 'building'
STARTING: Final = 'starting'                    # it is at its host, and its guest is to run
ACTIVE: Final = 'active'
OFF: Final = 'off'
DELETING: Final = 'deleting'
DELETED: Final = 'deleted'

# Kinds of moves.
RESIZE: Final = 'resize'
LIVE_MIGRATION: Final = 'live-migration'
EVACUATION: Final = 'evacuation'

# Statuses of moves. The manager asks for them.
QUEUED: Final = 'queued'
ACCEPTED: Final = 'accepted'
PREPARING: Final = 'preparing'
PRE_MIGRATING: Final = 'pre-migrating'
RUNNING: Final = 'running'
POST_MIGRATING: Final = 'post-migrating'
FINISHED: Final = 'finished'
REVERTING: Final = 'reverting'
CONFIRMED: Final = 'confirmed'
COMPLETED: Final = 'completed'
DONE: Final = 'done'
REVERTED: Final = 'reverted'
FAILED: Final = 'failed'
ERROR: Final = 'error'

# How a move ends when the instance stays at its destination.
ARRIVED: Final = (CONFIRMED, COMPLETED, DONE)
# The guest has not left its source: the move can still be given up.
EARLY: Final = (QUEUED, ACCEPTED, PREPARING, PRE_MIGRATING)

_SOURCES_TURN: Final = ((RESIZE, PRE_MIGRATING), (LIVE_MIGRATION, ACCEPTED), (LIVE_MIGRATION, PRE_MIGRATING))


@dataclasses.dataclass(frozen=True)
class Move:
    """A move of an instance, with the names by which the manager reads it. A host has one node, so it names none.

    ``kind`` is ``resize``, ``live-migration`` or ``evacuation``. :doc:`wiring` has the values of ``status``.
    ``new_allocations`` are those at its destination, as ``Document.allocations``. ``unsettled`` are the hosts that
    have not settled their half since it ended. ``left`` is where the source has the guest after the copy of a live
    migration.
    """

    uuid: str
    id: int
    kind: str
    instance_uuid: str
    source_compute: str
    dest_compute: str
    status: str
    old_flavor: Mapping[str, Any] | None = None
    new_flavor: Mapping[str, Any] | None = None
    old_allocations: Any = None
    new_allocations: Any = None
    check: str | None = None
    device_map: str | None = None
    left: str | None = None
    unsettled: tuple[str, ...] = ()

    @property
    def on_one_host(self) -> bool:
        return self.source_compute == self.dest_compute

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(sorted({self.source_compute, self.dest_compute}))

    @property
    def text(self) -> str:
        """What the instance does meanwhile, for an error."""
        return f'moving to {self.dest_compute} ({self.kind}, {self.status})'

    @property
    def turn(self) -> str | None:
        """The host that takes the next step. None if the move waits for its user."""
        if self.status == FINISHED:
            return None
        at_source = (self.kind, self.status) in _SOURCES_TURN or (self.status == RUNNING and self.left is None)
        return self.source_compute if at_source else self.dest_compute


@dataclasses.dataclass(frozen=True)
class Document:
    """What is decided for an instance, and how far its hosts are.

    ``host`` is the host that has the instance. ``state`` is ``building``, ``starting``, ``active``, ``off``,
    ``deleting`` or ``deleted``, and ``move`` is the move under way, or None. ``allocations`` are those of its claim
    there, as JSON; None means that its flavor alone says which devices. ``resources`` are those that it had when its
    guest started last. ``leaving`` are the hosts that may still have something of a deleted instance. ``reason`` says
    why the last operation failed, and ``for_tenant`` what its owner may read of that.
    """

    uuid: str
    host: str
    flavor: Mapping[str, Any]
    allocations: Any = None
    state: str = BUILDING
    resources: Any = None
    move: Move | None = None
    ended: tuple[Move, ...] = ()
    leaving: tuple[str, ...] = ()
    moves: int = 0
    reason: str = ''
    for_tenant: str = ''
    saved: str | None = dataclasses.field(default=None, compare=False)      # as the service has it

    @classmethod
    def read(cls, text: str) -> Document:
        """Read a document as the service stores it.

        :raises UnknownObject: a newer release wrote it
        """
        facts = json.loads(text)
        if (version := facts.pop('version', None)) != VERSION:
            raise exception.UnknownObject('the document of an instance', str(version), str(facts.get('uuid')))
        move = facts.pop('move')
        return cls(**facts | {
            'move': None if move is None else _read_move(move), 'leaving': tuple(facts['leaving']),
            'ended': tuple(map(_read_move, facts['ended'])), 'saved': text})

    @property
    def text(self) -> str:
        facts = dataclasses.asdict(self)
        del facts['saved']
        return json.dumps({'version': VERSION} | facts, sort_keys=True)

    def but(self, **changes: Any) -> Document:
        return dataclasses.replace(self, **changes)

    @property
    def instance_resources(self) -> InstanceResources | None:
        if self.resources is None:
            return None
        read: InstanceResources = InstanceResources.obj_from_primitive(self.resources)
        return read

    @property
    def progress(self) -> str:
        """How far it is, for an error."""
        return self.move.text if self.move is not None else f'{self.state} on host {self.host}'

    @property
    def is_over(self) -> bool:
        """Whether the instance is deleted, or will be."""
        return self.state in (DELETING, DELETED)

    @property
    def turn(self) -> str | None:
        """The host that takes the next step of the present operation. None if no operation is under way."""
        if self.state in (BUILDING, STARTING):
            return self.host
        return None if self.move is None else self.move.turn

    @property
    def turns(self) -> tuple[str, ...]:
        """The hosts that have a step to take, that of the present operation first."""
        found = [*self.leaving, *(host for move in self.ended for host in move.unsettled)]
        return tuple(dict.fromkeys([*([] if self.turn is None else [self.turn]), *found]))

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts that have work with this instance."""
        ends = () if self.move is None else self.move.ends
        return frozenset([*self.turns, *ends, *([] if self.state == DELETED else [self.host])])

    # -- changes ------------------------------------------------------------------------------------------------------

    def moving(self, **changes: Any) -> Document:
        """A document whose move has changed."""
        assert self.move is not None
        return self.but(move=dataclasses.replace(self.move, **changes))

    def after(self, status: str, **changes: Any) -> Document:
        """A document whose move has ended; its hosts have to settle."""
        assert self.move is not None
        over = dataclasses.replace(self.move, status=status, unsettled=self.move.ends, check=None, device_map=None)
        return self.but(move=None, ended=(*self.ended, over), **changes)

    def given_up(self, reason: str) -> Document:
        """A document whose move has ended before the guest left its source. Its guest may be off there by now."""
        assert self.move is not None
        off = self.state == ACTIVE and (self.move.kind == EVACUATION or (self.move.kind, self.move.status) == (
            RESIZE, PRE_MIGRATING))
        return self.after(ERROR, reason=reason, **({'state': STARTING} if off else {}))

    def settled(self, move: Move, host: str) -> Document:
        """A document that says that a host has settled its half of a move."""
        left = tuple(one for one in move.unsettled if one != host)
        return self.but(ended=tuple(
            dataclasses.replace(one, unsettled=left) if one.uuid == move.uuid else one
            for one in self.ended if one.uuid != move.uuid or left))

    def deleting(self, reason: str = '') -> Document:
        """A document of an instance that goes, at every host that may have something of it. It moves no more."""
        return self.but(state=DELETING, leaving=tuple(sorted({self.host, *self.hosts})), move=None, ended=(),
                        reason=reason)

    def left(self, host: str) -> Document:
        """A document that says that a host has nothing of a deleted instance any more."""
        leaving = tuple(one for one in self.leaving if one != host)
        return self.but(leaving=leaving, state=DELETING if leaving else DELETED)


def _read_move(facts: Mapping[str, Any]) -> Move:
    return Move(**{**facts, 'unsettled': tuple(facts['unsettled'])})
