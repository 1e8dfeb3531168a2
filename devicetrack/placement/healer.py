"""Moves a node's allocations to the providers of their devices, by one request that moves all of them or none."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import time
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack.objects import Provider
from devicetrack.objects.values import Usage
from devicetrack.placement import errors
from devicetrack.placement import healing
from devicetrack.placement import pauses
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.placement.expected import Assigned
from devicetrack.placement.reporter import PlacementReporter

LOG = log.logger(__name__)

# The store records this version for a host whose devices are counted at the providers of their parents.
VERSION: Final = 1

# The outcomes of a heal.
HEALED: Final = 'healed'
NOTHING: Final = 'nothing to move'
LEFT: Final = 'left as it is'

# The states of a node before anybody heals it, beside HEALED.
EMPTY: Final = 'flat and empty'
GUESTS: Final = 'flat with guests'
DRIFTED: Final = 'drifted'

# Called with the number of a node's consumers that have been read, and the number of all.
Progress = Callable[[int, int], None]


class NodeToHeal(NamedTuple):
    """A hypervisor node with the facts that a heal needs; use :meth:`of_host` for a node whose host can be read.

    :param uuid: the UUID of its provider
    :param look: returns the host's assignments and the usage of guests, which it reads first. The usage is None if the
        hypervisor cannot be asked, and then the record alone counts
    :param providers: the host's providers from ``ClaimManager.providers``. A heal announces those that placement does
        not have. Without them, placement must already have all providers that consumers need
    :param complete: False if a part of the host could not be read: then nothing moves
    """

    uuid: str
    look: Callable[[], tuple[Sequence[Assigned], Usage | None]]
    providers: Sequence[Provider] = ()
    complete: bool = True

    @classmethod
    def of_host(cls, look: Callable[[], tuple[Sequence[Assigned], Usage | None]], providers: Sequence[Provider],
                complete: bool) -> NodeToHeal:
        [root] = [provider.uuid for provider in providers if provider.parent_uuid is None]
        return cls(root, look, providers, complete)


class Healing(NamedTuple):
    """The result of a heal, also of a dry one: the consumers that moved, or the obstacles."""

    outcome: str
    consumers: tuple[str, ...] = ()
    obstacles: tuple[healing.Obstacle, ...] = ()


class Healer:
    """Heals nodes one by one. After an interruption it can be run again: a node is healed as a whole or not at all.

    A node takes one request for each consumer, two for each provider that a consumer moves to, and three more; by the
    record alone, one in addition. When others write to the node at the same time, the heal reads their changes and
    tries again.

    :param attempts: how often it writes to a node at most when others change it at the same time
    :param pause: as for :class:`~devicetrack.placement.allocations.AllocationClient`
    """

    def __init__(self, client: Client, attempts: int = 20, pause: Callable[[float], object] = time.sleep) -> None:
        self._client, self._attempts, self._pause = client, attempts, pause

    def at_node(self, node: NodeToHeal) -> list[str]:
        """Return the consumers that hold devices at the node that should be counted below it.

        One request, or two unless all providers of the host are known.
        """
        records = node.look()[0]
        listed = self._client.list_consumers(node.uuid).consumers
        return healing.misplaced(node.uuid, listed, records, _classes_below(self._client, node, listed, records))

    def standing(self, node: NodeToHeal, nested: bool) -> str:
        """Return the state of a node, by its record alone. Two requests.

        :param nested: whether its host's row says that it was healed
        """
        if self.at_node(node):
            return DRIFTED if nested else GUESTS
        return HEALED if nested else EMPTY

    def heal(self, node: NodeToHeal, dry_run: bool = False, progress: Progress | None = None) -> Healing:
        """Move every consumer of a node to the providers of its devices, unless there is an obstacle.

        :raises PlacementUnavailable: no usable answer; all have moved or none has: run it again. If placement refused
            the login or the role, none has
        :raises GenerationConflict, InventoryInUse, NoCapacity: others changed the node as often as we tried; none has
            moved
        :raises PlacementRefused: placement does not accept the request; none has moved
        """
        run = _Run(self._client, node, dry_run, progress)
        lost: tuple[str, ...] = ()
        before: tuple[healing.Obstacle, ...] = ()
        announced = False
        failures = 0
        while True:
            plan = run.plan()
            if plan.obstacles:
                if not (announced or dry_run) and node.providers and any(
                        obstacle.what == healing.NO_PROVIDER for obstacle in plan.obstacles):
                    announced = True
                    PlacementReporter(self._client).sync(node.providers, tree.ANNOUNCED)
                elif set(before).isdisjoint(plan.obstacles) and failures < self._attempts:
                    before = plan.obstacles         # an obstacle counts only if a second look shows it again
                    failures += 1
                else:
                    return Healing(LEFT, obstacles=plan.obstacles)
                run.read_below()
                continue
            moved = tuple(consumer.uuid for consumer in plan.consumers)
            if not moved:
                return Healing(HEALED if lost else NOTHING, lost)
            if dry_run:
                return Healing(HEALED, moved)
            try:
                self._client.reshape(plan.inventories, plan.consumers)
            except (errors.GenerationConflict, errors.InventoryInUse, errors.NoCapacity, errors.PlacementUnavailable,
                    errors.PlacementRefused) as error:
                # PlacementRefused is caught too: placement compares generations before it opens its transaction. If
                # another write is committed in between, placement misses an inventory, and answers 400, not 409.
                failures += 1
                if failures >= self._attempts or (isinstance(error, errors.PlacementUnavailable)
                                                  and error.status in errors.FORBIDDEN):
                    raise
                LOG.info('%s; reading again', error)
                if isinstance(error, errors.PlacementUnavailable):
                    lost = moved                    # perhaps only the answer was lost
                self._pause(pauses.after(failures))
                run.read_below()
            else:
                return Healing(HEALED, moved)

    def attempt(self, read: Callable[[], NodeToHeal], dry_run: bool = False,
                progress: Progress | None = None) -> Healing:
        """Read a node and heal it, and return any error as an obstacle of this node."""
        try:
            return self.heal(read(), dry_run, progress)
        except exception.DeviceTrackError as error:
            return Healing(LEFT, obstacles=(healing.Obstacle(None, healing.FAILED, ' '.join(str(error).split())),))


class _Run:
    """Reads a node, and remembers consumers under their generations."""

    def __init__(self, client: Client, node: NodeToHeal, dry_run: bool, progress: Progress | None) -> None:
        self._client, self._node, self._dry_run, self._progress = client, node, dry_run, progress
        self._consumers: dict[str, values.Consumer] = {}
        self._below: dict[str, values.Inventories | None] = {}
        self._used: dict[str, Mapping[str, int]] = {}

    def read_below(self) -> None:
        """Read the providers below again.

        Call it before reading the node: the fewer reads there are between the node's allocations and our write, the
        fewer writes of others can come in between.
        """
        for provider in self._below:
            self._read_provider(provider)

    def plan(self) -> healing.ReshapePlan:
        node = self._node
        listed = self._client.list_consumers(node.uuid)
        # Read the rows after placement: every listed consumer has its row by now, if it ever gets one; and a later
        # allocation changes the node's generation.
        records, usage = node.look()
        classes = _classes_below(self._client, node, listed.consumers, records)
        if not healing.misplaced(node.uuid, listed.consumers, records, classes):
            return healing.ReshapePlan()
        if not node.complete:
            unread = healing.Obstacle(None, healing.UNREAD, 'a part of the host could not be read')
            return healing.ReshapePlan(obstacles=(unread,))
        uuids = sorted(uuid for uuid, holding in listed.consumers.items() if classes & holding.resources.keys())
        self._read_consumers(uuids, listed.consumers)
        beside = [self._client.get_allocations(uuid) for uuid in healing.companions(node.uuid, uuids, records)]
        for provider in sorted(healing.targets(node.uuid, uuids, records) - self._below.keys()):
            self._read_provider(provider)
        root = self._client.get_inventories(node.uuid)
        # Keep the older generation, so that a consumer that came after the listing makes our write conflict.
        inventories = {node.uuid: root._replace(generation=min(root.generation, listed.generation)),
                       **{provider: there for provider, there in self._below.items() if there is not None}}
        return healing.plan(node.uuid, inventories, self._used, [*(self._consumers[uuid] for uuid in uuids), *beside],
                            records, usage, classes)

    def _read_consumers(self, uuids: Sequence[str], listed: Mapping[str, values.Holding]) -> None:
        for number, uuid in enumerate(uuids, 1):
            if uuid not in self._consumers or self._consumers[uuid].generation != listed[uuid].generation:
                self._consumers[uuid] = self._client.get_allocations(uuid)
            if self._progress is not None:
                self._progress(number, len(uuids))

    def _read_provider(self, provider: str) -> None:
        self._below[provider], self._used[provider] = self._inventories(provider), {}
        with contextlib.suppress(errors.NoSuchProvider):
            self._used[provider] = self._client.get_usages(provider)

    def _inventories(self, provider: str) -> values.Inventories | None:
        """Return a provider's inventories, None without a provider; in a dry run, those that would be announced too."""
        found = None
        with contextlib.suppress(errors.NoSuchProvider):
            found = self._client.get_inventories(provider)
        if not self._dry_run or not self._node.providers:
            return found
        wanted = tree.desired(self._node.providers, tree.ANNOUNCED).providers.get(provider)
        if wanted is None:
            return found
        generation, there = found or (0, {})
        return values.Inventories(generation, {**wanted.inventories, **there})


def _classes_below(client: Client, node: NodeToHeal, listed: Mapping[str, values.Holding],
                   records: Sequence[Assigned]) -> frozenset[str]:
    """Return the classes that are counted below a node.

    If not all providers of the host are known, add the classes of ours that somebody holds at the node and of which
    neither the host nor a row says where they are counted: a consumer without a record may hold them.
    """
    classes = healing.classes_below(node.uuid, records, node.providers)
    if not listed or (node.providers and node.complete):
        return classes
    known = classes | tree.counted(node.providers) | {record.resource_class for record in records}
    unknown = {name for holding in listed.values() for name in holding.resources} - known
    if not unknown:
        return classes
    traits = client.get_traits(node.uuid).traits
    return classes | {name for name in unknown if tree.mark(tree.COUNTS, name) in traits}
