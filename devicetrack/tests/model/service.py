"""The compute service of the model: its instances and migrations, what it tells a host, and who owns what.

Nothing here asks the library: this is what the library is held against.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import dataclasses
from typing import Any
from typing import Final
import uuid

from devicetrack.objects.values import DeviceKey
from devicetrack.testing import compute_service

# Besides the states of every service: it was never booted.
ABSENT: Final = 'absent'

# How far a move came, as the service knows. Its ``status`` is what the service tells managers.
CLAIMING: Final = 'claiming'                # the claim was asked for and not answered
CLAIMED: Final = 'claimed'
LEFT: Final = 'left'                        # of a resize: the guest is off at its source
ARRIVING: Final = 'arriving'                # of a live migration: the guest waits at the destination
ARRIVED: Final = 'arrived'
FINISHED: Final = 'finished'                # of a resize: it waits for its confirmation
UNDOING: Final = 'undoing'                  # it is given up before the guest moved
DROPPED: Final = 'dropped'                  # of a resize: undone at the destination
OVER: Final = 'over'

# A device of any host: the name of its host, and its key there.
HostDevice = tuple[str, DeviceKey]


@dataclasses.dataclass(eq=False)
class Guest:
    """An instance as its service knows it.

    ``current``, ``old`` and ``new`` are the devices that it was told of: what it runs on, what a resize left, what was
    claimed for a move that its guest has not made. ``written`` are those that hold bytes of its guest which it has not
    given up.
    """

    name: str
    uuid: str
    size: int = 1
    state: str = ABSENT
    host: str | None = None
    resources: Any = None
    context: Any = None
    current: frozenset[HostDevice] = frozenset()
    old: frozenset[HostDevice] = frozenset()
    new: frozenset[HostDevice] = frozenset()
    written: frozenset[HostDevice] = frozenset()

    @property
    def token(self) -> bytes:
        """What its guest writes."""
        return self.name.encode()

    @property
    def owned(self) -> frozenset[HostDevice]:
        return self.current | self.old | self.new

    def instance(self) -> compute_service.Instance:
        """The object that the service hands to a manager; what the manager set is kept by :meth:`save`."""
        return compute_service.Instance(uuid=self.uuid, host=self.host, node=self.host, resources=self.resources,
                                 migration_context=self.context)

    def save(self, instance: compute_service.Instance) -> None:
        self.resources, self.context = instance.resources, instance.migration_context

    def forget(self, devices: Collection[HostDevice]) -> None:
        """The service gives these devices up: nothing is promised of their contents any more."""
        gone = frozenset(devices)
        self.current -= gone
        self.old -= gone
        self.new -= gone
        self.written -= gone


@dataclasses.dataclass
class Move(compute_service.Migration):
    """A migration as its service knows it. ``size`` is how many devices the guest gets by it."""

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


class ModelService(compute_service.ServiceData):
    """Guests and their moves. While it is mute it answers no question.

    ``patience`` is how many questions about migrations it answers before it answers no more; None is all of them.
    """

    def __init__(self, guests: int = 2) -> None:
        super().__init__()
        self.instances = [Guest(name, str(uuid.uuid5(uuid.NAMESPACE_DNS, name)))
                          for name in (f'i{number}' for number in range(1, guests + 1))]
        self.mute = False
        self.patience: int | None = None    # within one step, and so in no snapshot
        self._numbers = 0

    @property
    def guests(self) -> dict[str, Guest]:
        """By their names."""
        return {guest.name: guest for guest in self.instances}

    def instances_of(self, host: str, uuids: Set[str]) -> Mapping[str, str] | None:
        return None if self.mute else super().instances_of(host, uuids)

    def migrations_of(self, host: str, uuids: Sequence[str]) -> Mapping[str, Move] | None:
        if self.patience is not None:
            self.patience -= 1
        silent = self.mute or (self.patience is not None and self.patience < 0)
        return None if silent else super().migrations_of(host, uuids)

    def evacuated_from(self, host: str) -> Collection[str] | None:
        return None if self.mute else super().evacuated_from(host)

    def fail_migration(self, migration_uuid: str) -> None:
        super().fail_migration(migration_uuid)
        self.get_migration(migration_uuid).phase = OVER

    def of(self, instance_uuid: str) -> Guest | None:
        return next((guest for guest in self.instances if guest.uuid == instance_uuid), None)

    def move_of(self, guest: Guest) -> Move | None:
        """The move of a guest that is not over."""
        for move in reversed(self.migrations):
            if move.instance_uuid == guest.uuid and move.phase != OVER:
                return move
        return None

    def begin(self, guest: Guest, dest: str, kind: str, status: str, size: int | None = None) -> Move:
        """Make a migration of a guest."""
        self._numbers += 1
        move = Move(source_compute=guest.host, dest_compute=dest, instance_uuid=guest.uuid, status=status,
                    uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, f'migration-{self._numbers}')), id=self._numbers,
                    kind=kind, size=guest.size if size is None else size)
        self.migrations.append(move)
        return move

    def tidy(self, named: Collection[str], rows: Collection[tuple[str, str]]) -> None:
        """Forget moves that are long over.

        Those are the ones that nothing names, that are not their instance's newest, and whose source has heard of it.

        :param named: the migrations that rows of any host, or contexts, still name
        :param rows: host and instance of every row
        """
        newest = {move.instance_uuid: move for move in self.migrations}
        self.migrations = [move for move in self.migrations
                      if move.phase != OVER or move.uuid in named
                      or (move.source, move.instance_uuid) in rows and self._lives_elsewhere(move)
                      or (newest[move.instance_uuid] is move and self._lives(move.instance_uuid))]

    def _lives_elsewhere(self, move: Move) -> bool:
        guest = self.of(move.instance_uuid or '')
        return guest is not None and guest.host != move.source

    def _lives(self, instance_uuid: str | None) -> bool:
        guest = self.of(instance_uuid or '')
        return guest is not None and guest.state != compute_service.DELETED

    # -- a copy that can be taken up again ----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        return (tuple(dataclasses.replace(guest) for guest in self.instances),
                tuple(dataclasses.replace(move) for move in self.migrations), self.mute, self._numbers)

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        guests, moves, self.mute, self._numbers = snapshot
        self.patience = None
        self.instances = [dataclasses.replace(guest) for guest in guests]
        self.migrations = [dataclasses.replace(move) for move in moves]
