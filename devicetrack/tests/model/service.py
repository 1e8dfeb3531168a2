"""The compute service of the model: its instances and migrations, what it tells a host, and who owns what by its word.

Nothing here asks the library: this is what the library is held against.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import Final
import uuid

from devicetrack.engine import moves as meanings
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures

# What a guest is to its service.
ABSENT: Final = 'absent'
BUILDING: Final = 'building'
ACTIVE: Final = 'active'
DELETING: Final = 'deleting'
DELETED: Final = 'deleted'

RESIZE: Final = 'resize'
LIVE: Final = 'live'
EVACUATION: Final = 'evacuation'

# How far a move came, by the service's knowledge. Its status is what the service says of it.
CLAIMING: Final = 'claiming'                # the claim was asked for and not answered
CLAIMED: Final = 'claimed'
LEFT: Final = 'left'                        # of a resize: the guest is off at its source
ARRIVING: Final = 'arriving'                # of a live migration: the guest waits at the destination
ARRIVED: Final = 'arrived'
FINISHED: Final = 'finished'                # of a resize: it waits for its confirmation
UNDOING: Final = 'undoing'                  # it is given up before the guest moved
DROPPED: Final = 'dropped'                  # of a resize: undone at the destination
OVER: Final = 'over'

# Where a device is: the name of its host, and its key there.
Place = tuple[str, DeviceKey]


@dataclasses.dataclass(eq=False)
class Guest:
    """An instance by its service's word.

    ``current``, ``old`` and ``new`` are the devices that it was told of: what it runs on, what a resize left, what was
    claimed for a move that its guest has not made. ``written`` are those that hold bytes of its guest which it has not
    given up.
    """

    name: str
    uuid: str
    size: int = 1
    status: str = ABSENT
    host: str | None = None
    resources: Any = None
    context: Any = None
    current: frozenset[Place] = frozenset()
    old: frozenset[Place] = frozenset()
    new: frozenset[Place] = frozenset()
    written: frozenset[Place] = frozenset()

    @property
    def token(self) -> bytes:
        """What its guest writes."""
        return self.name.encode()

    @property
    def owned(self) -> frozenset[Place]:
        return self.current | self.old | self.new

    def instance(self) -> fixtures.Instance:
        """The object that the service hands to a manager; what the manager set is kept by :meth:`save`."""
        return fixtures.Instance(uuid=self.uuid, host=self.host, node=self.host, resources=self.resources,
                                 migration_context=self.context)

    def save(self, instance: fixtures.Instance) -> None:
        self.resources, self.context = instance.resources, instance.migration_context

    def forget(self, places: Collection[Place]) -> None:
        """The service gives these devices up: nothing is promised of their contents any more."""
        gone = frozenset(places)
        self.current -= gone
        self.old -= gone
        self.new -= gone
        self.written -= gone


@dataclasses.dataclass
class Move(fixtures.Migration):
    """A migration by its service's word. ``size`` is how many devices the guest gets by it."""

    kind: str = RESIZE
    phase: str = CLAIMING
    size: int = 1
    device_map: Any = None
    boot: str = ''                          # the destination's boot that the map is for
    source_told: bool = False

    @property
    def source(self) -> str:
        return str(self.source_compute)

    @property
    def dest(self) -> str:
        return str(self.dest_compute)

    @property
    def one_host(self) -> bool:
        return self.source_compute == self.dest_compute


class ModelService:
    """All instances and migrations."""

    def __init__(self, guests: int = 2) -> None:
        self.guests = {name: Guest(name, str(uuid.uuid5(uuid.NAMESPACE_DNS, name)))
                       for name in (f'i{number}' for number in range(1, guests + 1))}
        self.moves: list[Move] = []
        self.mute = False                   # whether it answers no question at the moment
        self._numbers = 0

    def of(self, instance_uuid: str) -> Guest | None:
        for guest in self.guests.values():
            if guest.uuid == instance_uuid:
                return guest
        return None

    def move_of(self, guest: Guest) -> Move | None:
        """The move of a guest that is not over."""
        for move in reversed(self.moves):
            if move.instance_uuid == guest.uuid and move.phase != OVER:
                return move
        return None

    def begin(self, guest: Guest, dest: str, kind: str, status: str, size: int | None = None) -> Move:
        """Make a migration of a guest."""
        self._numbers += 1
        move = Move(source_compute=guest.host, dest_compute=dest, instance_uuid=guest.uuid, status=status,
                    uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, f'migration-{self._numbers}')), id=self._numbers,
                    kind=kind, size=guest.size if size is None else size)
        self.moves.append(move)
        return move

    def tidy(self, named: Collection[str], rows: Collection[tuple[str, str]]) -> None:
        """Forget moves that are long over.

        Those are the ones that nothing names, that are not their instance's newest, and whose source has heard of it.

        :param named: the migrations that rows of any host, or contexts, still name
        :param rows: host and instance of every row
        """
        newest = {move.instance_uuid: move for move in self.moves}
        self.moves = [move for move in self.moves
                      if move.phase != OVER or move.uuid in named
                      or (move.source, move.instance_uuid) in rows and self._lives_elsewhere(move)
                      or (newest[move.instance_uuid] is move and self._lives(move.instance_uuid))]

    def _lives_elsewhere(self, move: Move) -> bool:
        guest = self.of(move.instance_uuid or '')
        return guest is not None and guest.host != move.source

    def _lives(self, instance_uuid: str | None) -> bool:
        guest = self.of(instance_uuid or '')
        return guest is not None and guest.status != DELETED

    # -- a copy that can be taken up again ----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        return (tuple(dataclasses.replace(guest) for guest in self.guests.values()),
                tuple(dataclasses.replace(move) for move in self.moves), self.mute, self._numbers)

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        guests, moves, self.mute, self._numbers = snapshot
        self.guests = {guest.name: dataclasses.replace(guest) for guest in guests}
        self.moves = [dataclasses.replace(move) for move in moves]


class ServiceView:
    """What the service answers to the manager of one host: the truth, or nothing."""

    def __init__(self, service: ModelService, host: str) -> None:
        self._service, self._host = service, host

    def instances(self) -> Mapping[str, str] | None:
        if self._service.mute:
            return None
        return dict(self._words())

    def _words(self) -> Iterator[tuple[str, str]]:
        for guest in self._service.guests.values():
            if guest.status == DELETED:
                yield guest.uuid, 'deleted'
            elif guest.host is not None:
                yield guest.uuid, meanings.HERE if guest.host == self._host else meanings.ELSEWHERE

    def migrations(self, uuids: Sequence[str]) -> Mapping[str, Move] | None:
        if self._service.mute:
            return None
        return {move.uuid: move for move in self._service.moves
                if move.uuid in uuids or move.source_compute == self._host}

    def evacuated_from_here(self) -> Collection[str] | None:
        if self._service.mute:
            return None
        found = {}
        for move in self._service.moves:
            if move.kind == EVACUATION and move.source == self._host and move.status == 'done':
                guest = self._service.of(move.instance_uuid or '')
                if guest is not None and guest.status != DELETED and guest.host != self._host:
                    found[guest.uuid] = move
        return list(found)

    def fail_migration(self, migration_uuid: str) -> None:
        for move in self._service.moves:
            if move.uuid == migration_uuid:
                move.status, move.phase = 'error', OVER
