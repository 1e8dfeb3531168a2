"""Selects the device for a claim: pools of equal devices, and their order.

A pool holds the devices that a request cannot tell apart: same provider, resource class, parent, NUMA node and
features. Within a pool the device that has been free for the longest time comes first (at start: by identifier), so
that a device rests between two owners. The policy chooses among pools: ``pack`` takes the first parent by name that has
room; ``spread`` takes the parent with the most room, and the first by name among equals. The same history gives the
same choice.

A scope is the set of pools from which an item of a request may take devices. It keeps the pools in a heap. The entry of
a pool has the pool's room at the time of the entry, and may be outdated. If the room shrank since, the entry comes to
the top too early, and is corrected there. If the room grew, the scope pushes a new entry, and drops the old one when
it comes to the top. So a choice costs the same for any number of devices.
"""

from __future__ import annotations

from collections.abc import Iterator
import heapq
from typing import Final

from devicetrack import vocabulary
from devicetrack.engine.line import Line
from devicetrack.engine.withholding import NO_REASON
from devicetrack.objects.choice import Choice
from devicetrack.objects.choice import Features
from devicetrack.objects.choice import NO_FEATURES
from devicetrack.objects.details import traits_of
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey

FREE: Final = 0
HELD: Final = 1
RELEASING: Final = 2

# NUMA nodes, the policy, and for the policy ``socket`` the nodes that are on a socket of one of these.
Affinity = tuple[frozenset[int | None], str, frozenset[int | None]]


class Parent:
    """A parent device. ``pending`` counts the devices that were claimed on it and do not exist yet.

    Devices without a parent have a ``Parent`` without a name, which makes no devices. While ``closed`` has reasons, a
    parent makes no more devices. ``maker`` stands for the devices that it could make, if something may contain them:
    while it is excluded, the parent makes none.

    All types of a parent share its room. Until the parent is read again, nobody knows how much room a device takes from
    other types, so it counts as one device of every type.
    """

    __slots__ = ('name', 'pending', 'closed', 'maker')

    def __init__(self, name: str | None) -> None:
        self.name, self.pending, self.closed = name, 0, NO_REASON
        self.maker: Unit | None = None

    @property
    def is_excluded(self) -> bool:
        """Whether somebody has what contains the devices that it could make."""
        return self.maker is not None and bool(self.maker.withheld)


# Stands for a provider's UUID while there is no provider. All devices of such a pool are withheld.
NO_UUID: Final = ''


class Pool:
    """Devices that a request cannot tell apart, and how many more of them can be made (``available``)."""

    __slots__ = ('kind', 'provider_uuid', 'resource_class', 'parent', 'numa_node', 'features', 'details', 'creatable',
                 'taken_by', 'available', 'free', 'free_count', 'held_count', 'releasing_count', 'total', 'index',
                 'scopes')

    def __init__(self, kind: str, provider_uuid: str, resource_class: str, parent: Parent, numa_node: int | None,
                 features: Features = NO_FEATURES) -> None:
        self.kind, self.provider_uuid, self.resource_class = kind, provider_uuid, resource_class
        self.parent, self.numa_node, self.features = parent, numa_node, features
        self.details = ''                       # of a device made here, or else of one in the pool
        self.taken_by = ''                      # what takes the room of a parent that has none left
        self.creatable = False                  # whether the parent makes devices of this pool at all
        self.available = 0                      # how many more it could make when it was last read
        self.free: Line[Unit] = Line()
        self.free_count = self.held_count = self.releasing_count = self.total = 0
        self.index: int                         # place in the order of names; Pools.index sets it
        self.scopes: tuple[Scope, ...] = ()

    @property
    def parent_name(self) -> str | None:
        return self.parent.name

    @property
    def words(self) -> Features:
        """What a request may ask of its devices: their features, and the traits that the scheduler knows."""
        return (*self.features, *traits_of(self.details))

    def room(self) -> int:
        """How many devices can be taken from here now."""
        if not self.creatable or self.parent.closed or not self.provider_uuid or self.parent.is_excluded:
            return self.free_count
        creatable = self.available - self.parent.pending
        return self.free_count + creatable if creatable > 0 else self.free_count

    def makes(self) -> int:
        """How many more devices the parent could make, closed or excluded or not."""
        return max(0, self.available - self.parent.pending) if self.creatable else 0

    def grew(self) -> None:
        """Tell every scope that there may be more room than before."""
        for scope in self.scopes:
            scope.push(self)


class Unit:
    """One device. ``unborn`` is true while it is claimed and does not exist on the host yet.

    ``unproven`` says that a guest may have left bytes on it, and nobody has removed them. ``exclusions`` say which
    devices may not be held beside it (:mod:`devicetrack.engine.exclusion`); nearly always there are none.
    """

    __slots__ = ('pool', 'identifier', 'details', 'state', 'unborn', 'unproven', 'queued', 'exclusions', 'withheld',
                 'holding')

    def __init__(self, pool: Pool, identifier: str, details: str) -> None:
        self.pool, self.identifier, self.details = pool, identifier, details
        self.state = FREE
        self.unborn = self.unproven = False
        self.queued = False                     # stands in its pool's line of free devices
        self.exclusions: tuple[tuple[str, str], ...] = ()
        self.withheld = NO_REASON               # the reasons why it may not be handed out
        self.holding: Holding | None = None

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.pool.kind, self.identifier)

    def candidate(self, identifier: str | None) -> Candidate:
        pool = self.pool
        return Candidate(pool.kind, identifier, pool.provider_uuid, pool.resource_class, pool.parent.name,
                         pool.numa_node, self.details)


class Holding:
    """The devices that one claim holds for one instance, in the order in which it took them.

    ``anywhere`` says that the request left the choice of every provider to this host. ``affinity`` has the request's
    NUMA nodes and policy, or None. ``from_rows`` says that the holding was made from rows, and not by a take of this
    process. ``asked`` has, for each device, the choices by which it was taken and its own NUMA policy; it is None if no
    device has any.
    """

    __slots__ = ('instance_uuid', 'units', 'anywhere', 'affinity', 'from_rows', 'asked')

    def __init__(self, instance_uuid: str, units: tuple[Unit, ...]) -> None:
        self.instance_uuid, self.units = instance_uuid, units
        self.anywhere = self.from_rows = False
        self.affinity: tuple[frozenset[int | None], str] | None = None
        self.asked: dict[Unit, tuple[tuple[Choice, ...], str | None]] | None = None


class Scope:
    """The pools that one item of a request may be served from."""

    __slots__ = ('pools', '_spread', '_heaps', '_entries')

    def __init__(self, policy: str) -> None:
        self.pools: list[Pool] = []
        self._spread = policy == vocabulary.SPREAD
        self._heaps: dict[int | None, list[tuple[int, int, Pool]]] = {}
        self._entries: dict[int, tuple[int, int, Pool]] = {}    # by index of the pool, the one entry that counts

    def rebuild(self) -> None:
        """Build the heaps again. Call it after pools were added or their order changed."""
        self._heaps, self._entries = {}, {}
        for pool in self.pools:
            entry = self._entries[pool.index] = (self._key(pool), pool.index, pool)
            self._heaps.setdefault(pool.numa_node, []).append(entry)
        for heap in self._heaps.values():
            heapq.heapify(heap)

    def push(self, pool: Pool) -> None:
        key, entry = self._key(pool), self._entries.get(pool.index)
        if entry is not None and entry[0] <= key:               # the pool comes up early enough as it stands
            return
        heap = self._heaps[pool.numa_node]
        if len(heap) > 2 * len(self.pools) + 8:                 # mostly entries that were replaced
            self.rebuild()
        else:
            entry = self._entries[pool.index] = (key, pool.index, pool)
            heapq.heappush(heap, entry)

    def best(self, numa_nodes: frozenset[int | None], numa_policy: str,
             on_socket: frozenset[int | None] = frozenset()) -> Pool | None:
        """The pool to take the next device from, or None when none has room.

        :param on_socket: the nodes that are on a socket of one of ``numa_nodes``, for the policy ``socket``
        """
        heaps = self._heaps
        if numa_policy == vocabulary.NONE or not numa_nodes:
            if len(heaps) == 1:
                for heap in heaps.values():
                    return self._top(heap)
            return self._best_of(iter(heaps.values()))
        near = self._best_of(heap for node, heap in heaps.items() if node in numa_nodes)
        if near is not None or numa_policy == vocabulary.REQUIRED:
            return near
        if numa_policy == vocabulary.SOCKET:
            return self._best_of(heap for node, heap in heaps.items() if node in on_socket)
        unknown = self._top(heaps[None]) if None in heaps else None     # its node may be a near one
        if unknown is not None or numa_policy == vocabulary.LEGACY:
            return unknown
        return self._best_of(iter(heaps.values()))

    def _key(self, pool: Pool) -> int:
        return -pool.room() if self._spread else 0

    def _best_of(self, heaps: Iterator[list[tuple[int, int, Pool]]]) -> Pool | None:
        best: tuple[int, int, Pool] | None = None
        for heap in heaps:
            if self._top(heap) is not None and (best is None or heap[0] < best):
                best = heap[0]
        return best[2] if best is not None else None

    def _top(self, heap: list[tuple[int, int, Pool]]) -> Pool | None:
        while heap:
            entry = heap[0]
            key, index, pool = entry
            if self._entries.get(index) is not entry:           # replaced
                heapq.heappop(heap)
                continue
            room = pool.room()
            if room <= 0:
                del self._entries[index]                        # the next pass drops the entry
            elif self._spread and key != -room:
                entry = self._entries[index] = (-room, index, pool)
                heapq.heapreplace(heap, entry)
            else:
                return pool
        return None


def allows(numa_node: int | None, numa_nodes: frozenset[int | None], numa_policy: str,
           on_socket: frozenset[int | None] = frozenset()) -> bool:
    """Whether a device on this node may serve a request with this affinity.

    :param on_socket: as in :meth:`Scope.best`
    """
    if not numa_nodes or numa_policy in (vocabulary.NONE, vocabulary.PREFERRED):
        return True
    if numa_node in numa_nodes:
        return True
    return numa_node is None if numa_policy == vocabulary.LEGACY else (
        numa_policy == vocabulary.SOCKET and numa_node in on_socket)
