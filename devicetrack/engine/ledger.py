"""The in-memory index of free and held devices of one host.

The ledger decides and remembers. It does no I/O and has no lock of its own: its owner calls it under one, and every
call takes microseconds. It knows identities and owners, not the rows: whatever lasts is in the store. Keys and frozen
values go in and out; no caller ever holds an object that the ledger still changes.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine.demand import arrange
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.engine.demand import NOTHING
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.explanation import shortage
from devicetrack.engine.pools import Pools
from devicetrack.engine.selection import allows
from devicetrack.engine.selection import FREE
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import Holding
from devicetrack.engine.selection import Pool
from devicetrack.engine.selection import RELEASING
from devicetrack.engine.selection import Unit
from devicetrack.engine.withholding import NO_REASON
from devicetrack.engine.withholding import Standing
from devicetrack.objects import details
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record

# A reason of a device that is held: one that is free and not there is not known here.
GONE: Final = 'gone from the host'
_GONE: Final = frozenset((GONE,))
_NOT_ADOPTED: Final = frozenset((vocabulary.NOT_ADOPTED,))
_UNPROVEN: Final = frozenset((vocabulary.UNPROVEN,))

# What is said of a device anew whenever the host says that it has it, and by which parent.
_OF_THE_HOST: Final = frozenset((vocabulary.UNHEALTHY, vocabulary.NOT_ADOPTED, vocabulary.UNPROVEN, vocabulary.DRAINED,
                                 GONE))


class Inconsistent(Exception):
    """The ledger contradicts itself: what did this is a mistake, or an exception in the middle of a change."""


class Hold(NamedTuple):
    """What one take holds for an instance, in the order of the guest.

    A device that is to be made has no identifier in ``candidates`` and a name of the ledger's own in ``keys``, until
    :meth:`Ledger.name` gives it the driver's.
    """

    instance_uuid: str
    keys: tuple[DeviceKey, ...]
    candidates: tuple[Candidate, ...]

    @property
    def is_named(self) -> bool:
        return all(candidate.identifier is not None for candidate in self.candidates)


class DeviceState(NamedTuple):
    """One device as the ledger has it. ``identifier`` is None while it is claimed and not named yet."""

    kind: str
    identifier: str | None
    provider_uuid: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    details: str
    state: int
    instance_uuid: str | None
    withheld: frozenset[str]
    unborn: bool

    @property
    def key(self) -> tuple[str, str | None]:
        return self.kind, self.identifier


class PoolState(NamedTuple):
    """The devices of one pool, counted.

    ``total`` counts those that are there or claimed, and ``makes`` what the parent could make beside them. ``room`` is
    what can be had now, of existing devices (``free``) and new ones. ``details`` are those of one of its devices.
    """

    kind: str
    provider_uuid: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    details: str
    total: int
    makes: int
    room: int
    free: int
    held: int
    releasing: int


class Available(NamedTuple):
    """A free device, or with ``identifier`` None as many as a parent can make."""

    kind: str
    parent: str | None
    identifier: str | None
    details: str
    amount: int


class Ledger:
    """Free and held devices of one host.

    :param policy: ``pack`` or ``spread``
    :param provider_uuid_of: the UUID of the provider with this stable name ('' is the node)
    :param numbers: for its own names of devices and watches; ledgers that follow one another share them
    """

    def __init__(self, policy: str, provider_uuid_of: Callable[[str], str],
                 numbers: Iterator[int] | None = None) -> None:
        self._provider_uuid_of = provider_uuid_of
        self._pools = Pools(policy)
        self._units: dict[str, dict[str, Unit]] = {}
        self._holdings: dict[str, Holding] = {}
        # What an instance holds besides the above: it moves, or an earlier claim of it is still on its way back.
        self._beside: dict[str, tuple[Holding, ...]] = {}
        # Devices that are claimed and not named yet, by the ledger's own names for them.
        self._unnamed: dict[str, Unit] = {}
        self._numbers = itertools.count() if numbers is None else numbers
        # What was made or given back while somebody reads the host: by watch and device, the pool that it counted in.
        self._watches: dict[int, dict[DeviceKey, Pool]] = {}
        self._standing = Standing()
        self._keeping: frozenset[str] = frozenset()     # the kinds whose devices keep what a guest wrote

    # -- taking -------------------------------------------------------------------------------------------------------

    def take(self, instance_uuid: str, demand: Demand, beside: bool = False) -> Hold:
        """Hold devices for the whole demand, or nothing.

        :param beside: besides what the instance holds already, for an instance that moves
        :raises InstanceHasClaim: the instance holds devices already, and not all of them are on their way back
        :raises NoFit: with what is short
        """
        first = self._holdings.get(instance_uuid)
        if first is not None and not beside and any(
                unit.state != RELEASING for holding in self._holdings_of(instance_uuid) for unit in holding.units):
            raise exception.InstanceHasClaim(instance_uuid, [unit.key for unit in first.units])
        items = demand.items
        if len(items) == 1:
            some = self._take_item(items[0], demand)
            if some is None:
                raise exception.NoFit(self.shortages(demand))
            units = in_order = some
        else:
            # Items that name a provider choose first: what is left serves those that take from anywhere. Of one class,
            # the sets of pools that items allow contain one another or are apart, so whatever fits is found this way.
            # Classes that share parents are another matter: there, the class with the fewest parents chooses first.
            taken: dict[int, list[Unit]] = {}
            for index in sorted(range(len(items)), key=lambda index: self._choices(items[index])):
                some = self._take_item(items[index], demand)
                if some is None:
                    for earlier in reversed(taken.values()):
                        self._put_back(earlier)
                    raise exception.NoFit(self.shortages(demand))
                taken[index] = some
            units = [unit for index in range(len(items)) for unit in taken[index]]
            in_order = [unit for some in taken.values() for unit in some]
        holding = Holding(instance_uuid, tuple(in_order))
        holding.anywhere = all(item.provider_uuid is None for item in items)
        if demand.numa_policy != vocabulary.NONE and demand.numa_nodes:
            holding.affinity = demand.numa_nodes, demand.numa_policy
        for unit in units:
            unit.holding = holding
        if first is None:
            self._holdings[instance_uuid] = holding
        else:
            self._beside[instance_uuid] = (*self._beside.get(instance_uuid, ()), holding)
        if demand.order:
            units = arrange(units, [unit.pool.resource_class for unit in units], demand.order)
        return self._hold_of(instance_uuid, units)

    def _hold_of(self, instance_uuid: str, units: Sequence[Unit]) -> Hold:
        unnamed = self._unnamed
        return Hold(instance_uuid, tuple([unit.key for unit in units]),
                    tuple([unit.candidate(None if unnamed and unit.identifier in unnamed else unit.identifier)
                           for unit in units]))

    def _choices(self, item: Item) -> tuple[bool, int]:
        scope = self._pools.scopes.get((item.resource_class, item.provider_uuid))
        return item.provider_uuid is None, len(scope.pools) if scope is not None else 0

    def exchange(self, key: DeviceKey, accepts: Callable[[str | None, str], bool] | None = None) -> Hold | None:
        """Hold another device in the place of one that could not be made after all; the first stays held.

        It comes from the same provider, unless the request left that to this host, and has the affinity that was asked
        for. A holding that was made of rows does not know that: the other device is of the same NUMA node then.

        :param accepts: as that of an :class:`~devicetrack.engine.demand.Item`
        :returns: the other device alone; None when nobody holds the first one
        :raises NoFit: there is no other; what the holding itself has is left out of what there is
        """
        unit = self._find(key)
        if unit is None or unit.holding is None:
            return None
        holding, pool = unit.holding, unit.pool
        scope = self._pools.scopes[pool.resource_class, None if holding.anywhere else pool.provider_uuid]
        numa_nodes, numa_policy = holding.affinity or (frozenset(), vocabulary.NONE)
        if holding.from_rows:
            numa_nodes, numa_policy = frozenset((pool.numa_node,)), vocabulary.REQUIRED
        provider_uuid = None if holding.anywhere else pool.provider_uuid
        taken = None
        if accepts is not None:
            near = NOTHING._replace(numa_nodes=numa_nodes, numa_policy=numa_policy)
            taken = self._take_accepted(pool.resource_class, provider_uuid, near, accepts)
        elif (other := scope.best(numa_nodes, numa_policy)) is not None:
            taken = self._take_from(other)
        if taken is None:
            short = self._shortage(pool.resource_class, provider_uuid, 1, NOTHING, holding)
            own = sum(one.state == HELD and one.pool.resource_class == pool.resource_class
                      and provider_uuid in (None, one.pool.provider_uuid) for one in holding.units)
            raise exception.NoFit([short._replace(exist=short.exist - own, held=short.held - own)])
        taken.holding = holding
        holding.units = tuple(taken if one is unit else one for one in holding.units) + (unit,)
        return self._hold_of(holding.instance_uuid, (taken,))

    def available(self, resource_class: str, provider_uuid: str | None, demand: Demand) -> list[Available]:
        """What an item of a demand could be served with."""
        return [Available(pool.kind, pool.parent_name, identifier, text, amount)
                for pool, identifier, text, amount in self._available(resource_class, provider_uuid, demand)]

    def _available(self, resource_class: str, provider_uuid: str | None,
                   demand: Demand) -> list[tuple[Pool, str | None, str, int]]:
        scope = self._pools.scopes.get((resource_class, provider_uuid))
        found: list[tuple[Pool, str | None, str, int]] = []
        for pool in scope.pools if scope is not None else ():
            if allows(pool.numa_node, demand.numa_nodes, demand.numa_policy):
                found += [(pool, unit.identifier, unit.details, 1) for unit in pool.free
                          if unit.state == FREE and not unit.withheld]
                if pool.room() > pool.free_count:
                    found.append((pool, None, pool.details, pool.room() - pool.free_count))
        return found

    def _take_item(self, item: Item, demand: Demand) -> list[Unit] | None:
        resource_class, amount, provider_uuid, accepts = item
        scope = self._pools.scopes.get((resource_class, provider_uuid))
        if scope is None:
            return None
        units: list[Unit] = []
        while len(units) < amount:
            unit = None
            if accepts is not None:
                unit = self._take_accepted(resource_class, provider_uuid, demand, accepts)
            elif (pool := scope.best(demand.numa_nodes, demand.numa_policy)) is not None:
                unit = self._take_from(pool)
            if unit is None:
                self._put_back(units)
                return None
            units.append(unit)
        return units

    def _take_accepted(self, resource_class: str, provider_uuid: str | None, demand: Demand,
                       accepts: Callable[[str | None, str], bool]) -> Unit | None:
        """Take a device that is accepted. It is looked for: only a guest that comes from another host is so choosy."""
        found = [(pool.numa_node not in demand.numa_nodes, identifier is None, pool, identifier)
                 for pool, identifier, details, _amount in self._available(resource_class, provider_uuid, demand)
                 if accepts(pool.parent_name, details)]
        if not found:
            return None
        _far, _made, pool, identifier = min(found, key=lambda one: one[:2])
        if identifier is None:
            return self._make(pool)
        unit = self._units[pool.kind][identifier]
        # It stays in its queue, where it is passed over.
        pool.free_count -= 1
        unit.state = HELD
        pool.held_count += 1
        return unit

    def _take_from(self, pool: Pool) -> Unit:
        """Take the device that has been free for the longest time, or one that will be made. The pool has room."""
        while (unit := pool.free.take_first()) is not None:
            unit.queued = False
            if unit.state == FREE and not unit.withheld:        # else it was withheld or removed while it stood here
                pool.free_count -= 1
                break
        else:
            return self._make(pool)
        unit.state = HELD
        pool.held_count += 1
        return unit

    def _make(self, pool: Pool) -> Unit:
        """Take one that will be made.

        :raises Inconsistent: this pool makes none, or no more
        """
        if not pool.makes() or pool.parent.drained:
            raise Inconsistent(pool.kind, pool.parent_name, pool.free_count)
        # No device of any kind has such a name.
        unit = Unit(pool, f'(unnamed {next(self._numbers)})', pool.details)
        self._unnamed[unit.identifier] = unit
        unit.unborn = True
        pool.parent.pending += 1
        pool.total += 1
        unit.state = HELD
        pool.held_count += 1
        return unit

    def watch(self) -> int:
        """Note from now on which devices are made or given back, until :meth:`unwatch`.

        The host takes time to read. What it says of a device that was made or given back meanwhile may be of before or
        after that, so for such a device the ledger knows better.

        :returns: the watch's number
        """
        number = next(self._numbers)
        self._watches[number] = {}
        return number

    def unwatch(self, watch: int) -> None:
        """End what :meth:`watch` began, if it began here and goes on."""
        self._watches.pop(watch, None)

    def _touch(self, unit: Unit) -> None:
        for watch in self._watches.values():
            watch[unit.key] = unit.pool

    def name(self, hold: Hold, candidates: Sequence[Candidate]) -> Hold:
        """Give devices that will be made their identifiers, as the driver chose them.

        :param candidates: those of ``hold``, each with its identifier
        :returns: the same hold by its new names
        """
        named = list(zip(hold.keys, candidates, strict=True))
        for key, candidate in named:
            unit = self._unnamed.get(key.identifier)
            if unit is not None and candidate.identifier is not None:
                del self._unnamed[key.identifier]
                unit.identifier, unit.details = candidate.identifier, candidate.details
                self._units.setdefault(candidate.kind, {})[candidate.identifier] = unit
        return Hold(hold.instance_uuid, tuple(DeviceKey(one.kind, one.identifier or key.identifier)
                                              for key, one in named), tuple(candidates))

    def put_back(self, hold: Hold) -> None:
        """Undo a take whose devices were certainly not recorded: they are free again, first in their lines."""
        units = [unit for key in hold.keys if (unit := self._find(key)) is not None and unit.holding is not None
                 and unit.holding.instance_uuid == hold.instance_uuid]
        if len(units) > 1:
            taken = {unit: number for number, unit in enumerate(units[0].holding.units if units[0].holding else ())}
            units.sort(key=lambda unit: taken.get(unit, 0))
        for unit in units:
            self._leave(unit)
        self._put_back(units)

    def _forget(self, holding: Holding) -> None:
        """Take a holding out of the ledger; one that stands beside it takes its place."""
        uuid = holding.instance_uuid
        rest = [other for other in self._holdings_of(uuid) if other is not holding]
        self._beside.pop(uuid, None)
        if rest:
            self._holdings[uuid] = rest[0]
        else:
            self._holdings.pop(uuid, None)
            if not self._holdings:
                self._holdings = {}             # a dictionary that was large stays so, and lookups miss the caches
        if rest[1:]:
            self._beside[uuid] = tuple(rest[1:])

    def _put_back(self, units: Sequence[Unit]) -> None:
        for unit in reversed(units):
            if unit.unborn:
                self._unmake(unit)
            else:
                self._set_free(unit, first=True)

    # -- giving -------------------------------------------------------------------------------------------------------

    def releasing(self, keys: Iterable[DeviceKey]) -> None:
        """Devices that are held are on their way back: wiped or removed now."""
        for key in keys:
            unit = self._find(key)
            if unit is not None and unit.state == HELD:
                unit.state = RELEASING
                unit.pool.held_count -= 1
                unit.pool.releasing_count += 1

    def free(self, keys: Iterable[DeviceKey], removed: Collection[DeviceKey] = ()) -> None:
        """Devices that are held have no row and no user any more, and the driver proved that they are clean or gone.

        :param removed: those of them that were removed from the host
        """
        for key in keys:
            unit = self._find(key)
            if unit is not None:
                unit.unproven = False
                self._free(unit, key in removed)

    def free_of(self, instance_uuid: str, keys: Iterable[DeviceKey], removed: Collection[DeviceKey] = ()) -> None:
        """The same for those of the devices that are still held for this instance.

        Between its last row's end and this call the ledger may have been built anew and have given a device away.
        """
        self.free(self._held_of(instance_uuid, keys), removed)

    def let_go_of(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> None:
        """Devices that are held for this instance have no row any more, and nobody took them back from a guest."""
        for key in self._held_of(instance_uuid, keys):
            unit = self._find(key)
            if unit is not None:
                self._free(unit)

    def _held_of(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> list[DeviceKey]:
        ours = {unit.key for holding in self._holdings_of(instance_uuid) for unit in holding.units}
        return [key for key in keys if key in ours]

    def _free(self, unit: Unit, removed: bool = False) -> None:
        if unit.state == FREE:
            return
        self._touch(unit)
        self._leave(unit)
        if unit.unborn or removed or GONE in unit.withheld:
            if removed and not unit.unborn and GONE not in unit.withheld:
                unit.pool.available += 1                        # until the parent is read again
            self._unmake(unit)
            unit.pool.grew()
        else:
            if unit.unproven:
                unit.withheld |= _UNPROVEN
            self._set_free(unit)

    def _leave(self, unit: Unit) -> None:
        """Take a unit out of its holding, and a holding that is empty then out of the ledger."""
        holding, unit.holding = unit.holding, None
        if holding is not None:
            holding.units = tuple(other for other in holding.units if other is not unit)
            if not holding.units:
                self._forget(holding)

    def _set_free(self, unit: Unit, first: bool = False) -> None:
        pool = unit.pool
        if unit.state == HELD:
            pool.held_count -= 1
        elif unit.state == RELEASING:
            pool.releasing_count -= 1
        unit.state, unit.holding = FREE, None
        if unit.queued:                         # from before it was held for a row: its time in the line begins anew
            pool.free.remove(unit)
            unit.queued = False
        self._enqueue(unit, first)

    @staticmethod
    def _enqueue(unit: Unit, first: bool = False) -> None:
        """Let a free unit be chosen, unless it is withheld."""
        if unit.withheld:
            return
        pool = unit.pool
        pool.free_count += 1
        if not unit.queued:
            unit.queued = True
            if first:
                pool.free.put_first(unit)
            else:
                pool.free.append(unit)
        pool.grew()

    def _unmake(self, unit: Unit) -> None:
        """Forget a unit that is held or free and does not exist on the host (any more, or yet)."""
        pool = unit.pool
        if unit.unborn:
            pool.parent.pending -= 1
            unit.unborn = False
        if unit.state == HELD:
            pool.held_count -= 1
        elif unit.state == RELEASING:
            pool.releasing_count -= 1
        elif not unit.withheld:
            pool.free_count -= 1
        pool.total -= 1
        unit.state, unit.holding, unit.withheld = FREE, None, _GONE
        if self._units.get(pool.kind, {}).get(unit.identifier) is unit:
            del self._units[pool.kind][unit.identifier]
        self._unnamed.pop(unit.identifier, None)
        self._pools.siblings_grew(pool)

    # -- what the host says -------------------------------------------------------------------------------------------

    def realized(self, key: DeviceKey, details: str, capacities: Sequence[Capacity] = (),
                 watch: int | None = None) -> None:
        """A device exists now, with these details. Until its parent is read again it counts as one of every type.

        ``capacities`` are what the parent said when the device was made, during ``watch``. They are taken over only
        when nothing else was made or removed there: else nobody knows which of it they include.
        """
        unit = self._find(key)
        if unit is not None:
            self._realized(unit, details, capacities, watch)

    def _realized(self, unit: Unit, details: str, capacities: Sequence[Capacity] = (),
                  watch: int | None = None) -> None:
        self._touch(unit)
        unit.details = details
        unit.unproven = unit.pool.kind in self._keeping
        parent = unit.pool.parent
        if unit.unborn:
            unit.unborn = False
            parent.pending -= 1
            self._pools.use_up(parent)
        if watch in self._watches and parent.pending == 0 and not any(
                pool.releasing_count for pool in self._pools.of_parent(parent)) and not any(
                pool.parent is parent for key, pool in self._watches[watch].items() if key != unit.key):
            self.read_capacities(capacities)

    def read_capacities(self, capacities: Iterable[Capacity]) -> None:
        """Take over what parents said that they can still make."""
        added = False
        for capacity in capacities:
            pool, new = self._pool(capacity.kind, self._provider_uuid_of(capacity.provider), capacity.resource_class,
                                   capacity.parent, capacity.numa_node)
            added = added or new
            pool.available, pool.details, pool.creatable = capacity.available, capacity.details, True
            if not new:
                pool.grew()
        if added:
            self._pools.index()

    def read_parents(self, inventory: Inventory, watch: int) -> None:
        """Take over what parents can still make, and which of the devices that are known here exist.

        No device becomes free by it: who may have it is for :meth:`read_inventory` and what follows it to say.
        """
        changed = self._watches[watch]
        for device in inventory.devices:
            unit = self._find(device.key)
            if unit is None or unit.key in changed:
                continue
            if unit.unborn:
                self._realized(unit, device.details)
            elif unit.state == FREE:
                self._withhold(unit, unit.withheld | self._reasons(device, unit))
            elif GONE in unit.withheld:
                self._withhold(unit, unit.withheld - _GONE)
        self._miss(inventory, changed)
        self._read_parents(inventory, changed)

    def _miss(self, inventory: Inventory, changed: Collection[DeviceKey]) -> None:
        """Forget devices that are free and not there; those that are held stay so, as gone."""
        # Plain tuples, which hash as keys do: there are thousands, and nearly all of them are seen.
        seen = {(device.kind, device.identifier) for device in inventory.devices}
        for kind in inventory.known_kinds:
            for identifier, unit in list(self._units.get(kind, {}).items()):
                if (kind, identifier) not in seen and unit.key not in changed and not unit.unborn:
                    if unit.state == FREE:
                        self._unmake(unit)
                    else:
                        unit.withheld |= _GONE

    def _read_parents(self, inventory: Inventory, changed: Mapping[DeviceKey, Pool]) -> None:
        """A parent counts what it had when it was read, ``changed`` what was made or removed since then."""
        for pool in self._pools:
            if pool.kind in inventory.known_kinds:
                pool.available = 0
        self.read_capacities(inventory.capacities)
        if not changed:
            return
        seen = {(device.kind, device.identifier) for device in inventory.devices}
        read = {(capacity.kind, capacity.parent) for capacity in inventory.capacities}
        for (kind, identifier), pool in changed.items():
            if (kind, pool.parent_name) in read:
                unit = self._units.get(kind, {}).get(identifier)
                there = unit is not None and not unit.unborn and GONE not in unit.withheld
                if there and (kind, identifier) not in seen:
                    self._pools.use_up(pool.parent)
                elif not there and (kind, identifier) in seen:
                    pool.available += 1
                    pool.grew()

    def read_inventory(self, inventory: Inventory, watch: int | None = None) -> None:
        """Take over what the host has now.

        New devices are free. Devices of a kind that was read in full and that are missing are forgotten when they
        are free and withheld as gone when they are held. Nothing here changes an owner. What changed during ``watch``
        stays as it is.
        """
        changed = self._watches[watch] if watch is not None else {}
        new: list[InventoryDevice] = []
        self._keeping, unproven = inventory.keeping, inventory.unproven
        for device in inventory.devices:
            unit = self._units.get(device.kind, {}).get(device.identifier)
            if unit is None:
                new.append(device)
            elif not self._is_as_it_was(device, unit, unproven) and (not changed or device.key not in changed):
                self._read_device(device, unit, unproven)
        # What a pool is said to be is what the first device of it is: not one that somebody made otherwise.
        for device in sorted(new, key=lambda device: (not device.adoptable, device.identifier)):
            if not changed or device.key not in changed:
                pool = self._pool_of(device)
                unit = Unit(pool, device.identifier, device.details)
                pool.total += 1
                self._units.setdefault(device.kind, {})[device.identifier] = unit
                unit.unproven = (device.kind, device.identifier) in unproven
                unit.withheld = self._reasons(device, unit)
                self._enqueue(unit)
        there = collections.Counter(device.kind for device in inventory.devices)
        # Each device that is there is known now. Where there are as many, none is missing.
        if changed or any(len(self._units.get(kind, ())) != there[kind] for kind in inventory.known_kinds):
            self._miss(inventory, changed)
        self._read_parents(inventory, changed)
        self._pools.index()

    def _is_as_it_was(self, device: InventoryDevice, unit: Unit, unproven: Collection[tuple[str, str]]) -> bool:
        """Whether the host says of a device what it said before, and that it is well: so it is with nearly all."""
        pool = unit.pool
        return (device.details == unit.details and device.unhealthy is None and device.adoptable and not unit.withheld
                and not unit.unborn and not self._standing
                and unit.unproven == (bool(unproven) and (device.kind, device.identifier) in unproven)
                and pool.resource_class == device.resource_class
                and pool.parent.name == device.parent and pool.numa_node == device.numa_node
                and pool.provider_uuid == self._provider_uuid_of(device.provider))

    def _pool_of(self, device: InventoryDevice) -> Pool:
        pool, _new = self._pool(device.kind, self._provider_uuid_of(device.provider), device.resource_class,
                                device.parent, device.numa_node)
        pool.details = pool.details or device.details
        return pool

    def _read_device(self, device: InventoryDevice, unit: Unit, unproven: Collection[tuple[str, str]]) -> None:
        """Take over what the host says of a device that is known here."""
        if unit.unborn:
            self._realized(unit, device.details)                # whoever made it did not say so yet
        unit.details = device.details
        unit.unproven = (device.kind, device.identifier) in unproven
        self._move(unit, self._pool_of(device))
        reasons = self._reasons(device, unit)
        if reasons != unit.withheld:
            self._withhold(unit, reasons)

    def _reasons(self, device: InventoryDevice, unit: Unit) -> frozenset[str]:
        """Why a device must not be handed out, once the host has said what it says now; whoever holds it keeps it."""
        free_unproven = unit.unproven and unit.state == FREE
        if device.unhealthy is None and device.adoptable and not unit.withheld and not self._standing:
            return _UNPROVEN if free_unproven else NO_REASON    # nearly all of them
        reasons = {*unit.withheld - _OF_THE_HOST, *self._standing.of(unit.key, unit.pool.parent_name)}
        if device.unhealthy is not None:
            reasons.add(vocabulary.UNHEALTHY)
        # Somebody else made it, or its owner did: of a device that is held, its row knows.
        if not device.adoptable and (unit.state == FREE or vocabulary.NOT_ADOPTED in unit.withheld):
            reasons.add(vocabulary.NOT_ADOPTED)
        if free_unproven:
            reasons.add(vocabulary.UNPROVEN)
        return frozenset(reasons)

    def hold(self, records: Sequence[Record]) -> None:
        """Hold what rows of one instance say, also devices that the host does not have."""
        units = []
        for record in records:
            unit = self._units.get(record.kind, {}).get(record.identifier) or self._unit_of_row(record)
            if unit.state == FREE:
                if not unit.withheld and not unit.unborn:
                    unit.pool.free_count -= 1
                unit.pool.held_count += 1
                unit.state = HELD
            if unit.unproven:
                # Whoever gives it back proves it. By then its owner may have written to it.
                self._withhold(unit, unit.withheld - _UNPROVEN)
            if vocabulary.NOT_ADOPTED in unit.withheld and details.is_made(record.details):
                self._withhold(unit, unit.withheld - _NOT_ADOPTED)
            units.append(unit)
        holding = self._holdings.get(records[0].instance_uuid)
        if holding is None:
            holding = self._holdings[records[0].instance_uuid] = Holding(records[0].instance_uuid, ())
            holding.from_rows = True
        ours = [unit for unit in units
                if unit.holding is None or unit.holding.instance_uuid != holding.instance_uuid]
        for unit in ours:
            self._leave(unit)                   # whoever takes it just now, the store will tell that it has an owner
            unit.holding = holding
        holding.units += tuple(ours)

    def _unit_of_row(self, record: Record) -> Unit:
        """A unit for a device that the host does not have: one that is to be made (again), or one that is gone."""
        pool, new = self._pool(record.kind, record.provider_uuid, record.resource_class, record.parent,
                               record.numa_node)
        unit = self._units.setdefault(record.kind, {})[record.identifier] = Unit(pool, record.identifier,
                                                                                 record.details)
        pool.total += 1
        unit.withheld = self._standing.of(unit.key, pool.parent_name)
        if pool.creatable:
            unit.unborn = True
            pool.parent.pending += 1
        else:
            unit.withheld |= _GONE
        if new:
            self._pools.index()
        return unit

    def not_held(self, records: Iterable[Record]) -> list[Record]:
        """The rows whose devices are not held for the rows' instances."""
        return [record for record in records
                if (unit := self._units.get(record.kind, {}).get(record.identifier)) is None
                or unit.holding is None or unit.holding.instance_uuid != record.instance_uuid]

    def without_row(self, records: Collection[Record], all_held: bool) -> list[str]:
        """The instances for which something is held that rows told of, and of which there is no row any more.

        :param records: every row of the host
        :param all_held: whether the device of each is held
        """
        if all_held and sum(len(holding.units) for holding in self._all_holdings()) == len(records):
            return []                           # one device is held for each row, and nothing else
        recorded = {(record.instance_uuid, record.key) for record in records}
        return [holding.instance_uuid for holding in self._all_holdings() if holding.from_rows
                and any((holding.instance_uuid, unit.key) not in recorded for unit in holding.units)]

    def free_without_row(self, instance_uuid: str, keep: Collection[DeviceKey]) -> None:
        """Free what is held for an instance because of rows that are gone; never what a claim of it just took.

        :param keep: the devices of its rows, and what is in doubt
        """
        for holding in self._holdings_of(instance_uuid):
            if holding.from_rows:
                for unit in holding.units:
                    if unit.key not in keep:
                        self._free(unit)

    def trust_rows(self, keys: Iterable[DeviceKey]) -> None:
        """From now on rows alone say whether these devices stay held: the claim that took them is over."""
        for key in keys:
            unit = self._find(key)
            if unit is not None and unit.holding is not None:
                unit.holding.from_rows = True

    def has_claim_of_rows(self, instance_uuid: str) -> bool:
        """Whether the instance holds anything that rows told of, and no take of this process."""
        return any(holding.from_rows for holding in self._holdings_of(instance_uuid))

    def has_claim_of_this_process(self, instance_uuid: str) -> bool:
        """Whether the instance holds anything that it claimed since this ledger was built."""
        return any(not holding.from_rows for holding in self._holdings_of(instance_uuid))

    def _pool(self, kind: str, provider_uuid: str, resource_class: str, parent: str | None,
              numa_node: int | None) -> tuple[Pool, bool]:
        pool, new = self._pools.get(kind, provider_uuid, resource_class, parent, numa_node)
        if new:
            pool.parent.drained = (kind, parent) in self._standing.parents
        return pool, new

    def _move(self, unit: Unit, pool: Pool) -> None:
        """Count a unit in another pool: its provider, class, parent or node changed. Its owner does not."""
        before = unit.pool
        if before is pool:
            return
        before.total -= 1
        pool.total += 1
        unit.pool = pool
        if unit.queued:
            before.free.remove(unit)
            unit.queued = False
        if unit.state == HELD:
            before.held_count -= 1
            pool.held_count += 1
        elif unit.state == RELEASING:
            before.releasing_count -= 1
            pool.releasing_count += 1
        elif not unit.withheld:
            before.free_count -= 1
            self._enqueue(unit)

    # -- withheld devices ---------------------------------------------------------------------------------------------

    def withhold(self, key: DeviceKey, reason: str) -> None:
        """Let nobody have a device from now on, for this reason too; whoever holds it keeps it."""
        unit = self._find(key)
        if unit is not None:
            self._withhold(unit, unit.withheld | {reason})

    def withhold_free(self, keys: Iterable[DeviceKey], reason: str) -> None:
        """Withhold those devices that nobody holds."""
        for key in keys:
            unit = self._find(key)
            if unit is not None and unit.state == FREE and reason not in unit.withheld:
                self._withhold(unit, unit.withheld | {reason})

    def withhold_all_free(self, reason: str) -> None:
        """Withhold every device that nobody holds."""
        self.withhold_free([unit.key for unit in self._all_units()], reason)

    def admit(self, key: DeviceKey, reason: str) -> None:
        """End what :meth:`withhold` began for this reason. What stands goes on, and so do other reasons."""
        unit = self._find(key)
        if unit is not None and not self._stands(unit, reason):
            self._withhold(unit, unit.withheld - {reason})

    def unproven(self) -> list[DeviceState]:
        """The free devices that are withheld because nothing proves them clean, and for no other reason."""
        return [self._state_of(unit) for unit in self._all_units() if unit.withheld == _UNPROVEN and unit.state == FREE]

    def proven(self, keys: Iterable[DeviceKey]) -> None:
        """Devices that nobody holds were proven clean. Other reasons stay."""
        for key in keys:
            unit = self._find(key)
            if unit is not None and unit.state == FREE:
                self._touch(unit)
                unit.unproven = False
                self._withhold(unit, unit.withheld - _UNPROVEN)

    def withheld(self, reason: str) -> list[DeviceKey]:
        """The devices that are withheld for a reason, without those for which it stands."""
        return [unit.key for unit in self._all_units()
                if reason in unit.withheld and not self._stands(unit, reason)]

    def reasons(self) -> dict[DeviceKey, frozenset[str]]:
        """The reasons of every device that has any."""
        return {unit.key: unit.withheld for unit in self._all_units() if unit.withheld}

    def stand(self, key: DeviceKey, reason: str) -> None:
        """Withhold a device until :meth:`stand_down`, also while it is not there."""
        self._standing.add(key, reason)
        self.withhold(key, reason)

    def stand_down(self, key: DeviceKey, reason: str) -> None:
        """End what :meth:`stand` began. Of a parent that is drained the device stays withheld."""
        self._standing.discard(key, reason)
        self.admit(key, reason)

    def drain(self, kind: str, parent: str) -> None:
        """Let nobody have a device of a parent, which makes no more, until :meth:`undrain`; also if it is not there."""
        self._standing.parents[kind, parent] = None
        self._of_parent(kind, parent, True)

    def undrain(self, kind: str, parent: str) -> None:
        """End what :meth:`drain` began. Devices that are withheld themselves stay so."""
        self._standing.parents.pop((kind, parent), None)
        self._of_parent(kind, parent, False)

    def _of_parent(self, kind: str, name: str, drained: bool) -> None:
        parent = self._pools.parent(kind, name)
        if parent is None:
            return
        parent.drained = drained
        for unit in (*self._units.get(kind, {}).values(), *self._unnamed.values()):
            if unit.pool.parent is parent:
                self._withhold(unit, unit.withheld - {vocabulary.DRAINED} | self._standing.of(unit.key, name))
        for pool in self._pools.of_parent(parent):
            pool.grew()

    def _stands(self, unit: Unit, reason: str) -> bool:
        return bool(self._standing) and reason in self._standing.of(unit.key, unit.pool.parent_name)

    def _withhold(self, unit: Unit, reasons: frozenset[str]) -> None:
        """Let a unit have these reasons and no others."""
        before, unit.withheld = unit.withheld, reasons or NO_REASON
        if unit.state == FREE:
            if reasons and not before:
                unit.pool.free_count -= 1
            elif before and not reasons:
                self._enqueue(unit)

    # -- questions ----------------------------------------------------------------------------------------------------

    def _find(self, key: DeviceKey) -> Unit | None:
        return self._units.get(key.kind, {}).get(key.identifier) or self._unnamed.get(key.identifier)

    def _all_units(self) -> Iterator[Unit]:
        """The devices that have names."""
        return (unit for units in self._units.values() for unit in units.values())

    def _holdings_of(self, instance_uuid: str) -> tuple[Holding, ...]:
        """What an instance holds: one holding for each claim of it, or none."""
        holding = self._holdings.get(instance_uuid)
        return () if holding is None else (holding, *self._beside.get(instance_uuid, ()))

    def _all_holdings(self) -> Iterator[Holding]:
        yield from self._holdings.values()
        for beside in self._beside.values():
            yield from beside

    def device(self, key: DeviceKey) -> DeviceState | None:
        """One device, None when it is not known here."""
        unit = self._find(key)
        return None if unit is None else self._state_of(unit)

    def devices(self) -> list[DeviceState]:
        """Every device, also those that are claimed and not named yet."""
        return [self._state_of(unit) for unit in (*self._all_units(), *self._unnamed.values())]

    def _state_of(self, unit: Unit) -> DeviceState:
        identifier = None if unit.identifier in self._unnamed else unit.identifier
        return DeviceState(*unit.candidate(identifier), unit.state,
                           unit.holding.instance_uuid if unit.holding is not None else None, unit.withheld,
                           unit.unborn)

    def counted_classes(self) -> frozenset[tuple[str, str]]:
        """Resource classes, each with the UUID of a provider that counts it."""
        return frozenset((pool.resource_class, pool.provider_uuid) for pool in self._pools)

    def counted_now(self, records: Iterable[Record]) -> list[Record]:
        """Rows with the provider and class that their devices are counted at now; a row names what its claim knew."""
        return [record if (unit := self._find(record.key)) is None else record._replace(
            provider_uuid=unit.pool.provider_uuid, resource_class=unit.pool.resource_class) for record in records]

    def parents(self) -> list[tuple[str, str]]:
        """Kind and name of every parent that there ever was."""
        return self._pools.parents()

    def pools(self) -> list[PoolState]:
        """Every pool, in the order of names."""
        return [PoolState(pool.kind, pool.provider_uuid, pool.resource_class, pool.parent_name, pool.numa_node,
                          pool.details, pool.total, pool.makes(), pool.room(), pool.free_count, pool.held_count,
                          pool.releasing_count) for pool in sorted(self._pools, key=lambda pool: pool.index)]

    def _owners(self, resource_class: str, provider_uuid: str | None, but: Holding | None) -> int:
        """How many instances hold devices of a class, a holding left out."""
        return len({holding.instance_uuid for holding in self._all_holdings() if holding is not but and any(
            unit.state == HELD and unit.pool.resource_class == resource_class
            and provider_uuid in (None, unit.pool.provider_uuid) for unit in holding.units)})

    def shortages(self, demand: Demand, everything: bool = False) -> list[Shortage]:
        """What of a demand cannot be had, or with ``everything`` each part of it."""
        wanted: dict[tuple[str, str | None], int] = {}
        for item in demand.items:
            key = item.resource_class, item.provider_uuid
            wanted[key] = wanted.get(key, 0) + item.amount
        all_of = [self._shortage(resource_class, provider_uuid, amount, demand)
                  for (resource_class, provider_uuid), amount in wanted.items()]
        if everything:
            return all_of
        # Items that each fit alone may be too much together; then all of them are short.
        return [shortage for shortage in all_of if not shortage.fits] or all_of

    def _shortage(self, resource_class: str, provider_uuid: str | None, wanted: int, demand: Demand,
                  but: Holding | None = None) -> Shortage:
        return shortage(resource_class, provider_uuid, wanted, demand, self._pools, self._units,
                        self._owners(resource_class, provider_uuid, but))
