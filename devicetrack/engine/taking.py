"""Takes devices for claims, and says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import itertools
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine.demand import arrange
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.engine.demand import NOTHING
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.explanation import shortage
from devicetrack.engine.intake import Intake
from devicetrack.engine.selection import Affinity
from devicetrack.engine.selection import allows
from devicetrack.engine.selection import FREE
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import Holding
from devicetrack.engine.selection import Pool
from devicetrack.engine.selection import RELEASING
from devicetrack.engine.selection import Scope
from devicetrack.engine.selection import Unit
from devicetrack.engine.states import Available
from devicetrack.engine.states import Hold
from devicetrack.engine.stock import GONE
from devicetrack.objects.choice import Choice
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey

_NO_NODES: Final[frozenset[int | None]] = frozenset()
# At most this many orders of a demand's items are tried, if the sets of devices that they allow may overlap.
_ORDERS: Final = 24


class Taking(Intake):
    """The stock of a host from which claims take devices, and into which they put them back."""

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
        if len(items) == 1 and not demand.alternatives:
            some = self._take_item(items[0], demand, self._exclusive_of(instance_uuid) if first is not None else [])
            if some is None:
                raise exception.NoFit(self.shortages(demand))
            units = in_order = some
            anywhere = items[0].provider_uuid is None
        else:
            items, taken = self._take_all(instance_uuid, demand)
            units = [unit for index in range(len(items)) for unit in taken[index]]
            in_order = [unit for some in taken.values() for unit in some]
            anywhere = all(item.provider_uuid is None for item in items)
        holding = Holding(instance_uuid, tuple(in_order))
        holding.anywhere = anywhere
        if demand.numa_nodes and (demand.numa_policy != vocabulary.NONE or any(item.numa_policy for item in items)):
            holding.affinity = demand.numa_nodes, demand.numa_policy
        for unit in units:
            unit.holding = holding
        if items[0].choices or items[0].numa_policy or (len(items) > 1 and any(
                item.choices or item.numa_policy for item in items)):
            per_unit = (item for item in items for _ in range(item.amount))
            holding.asked = {unit: (item.choices, item.numa_policy)
                             for unit, item in zip(units, per_unit, strict=True)}
        if first is None:
            self._holdings[instance_uuid] = holding
        else:
            self._beside[instance_uuid] = (*self._beside.get(instance_uuid, ()), holding)
        if demand.order:
            units = arrange(units, [unit.pool.resource_class for unit in units], demand.order)
        return self._hold_of(instance_uuid, units)

    def _take_all(self, instance_uuid: str, demand: Demand) -> tuple[tuple[Item, ...], dict[int, list[Unit]]]:
        """Take devices for a demand of several items.

        Items that name a provider choose first, and the others choose from what is left. For two items of one class,
        one set of allowed pools contains the other, or the two have nothing in common. So if the demand fits, this
        order finds a way. If classes share parents, the class with the fewest parents chooses first.

        :returns: the items that fit (the demand's or an alternative), and by the index of each its devices
        :raises NoFit: with what is short
        """
        for items in (demand.items, *demand.alternatives):
            order = sorted(range(len(items)), key=lambda index: self._choices(items[index]))
            # What was chosen first may have excluded what the next item needs, or the parent has fewer devices of its
            # class left than it really has. The opposite order finds what fits then, but not every mix.
            orders: Iterable[Sequence[int]] = (order, order[::-1])
            if any(item.choices for item in items):
                # The sets of two items may overlap, and the first item may have taken the only device for the second.
                orders = orders if demand.alternatives else itertools.chain(
                    orders, itertools.islice(itertools.permutations(order), 1, _ORDERS))
            for one in orders:
                taken = self._take_items(instance_uuid, demand, items, one)
                if taken is not None:
                    return items, taken
        raise exception.NoFit(self.shortages(demand))

    def _take_items(self, instance_uuid: str, demand: Demand, items: Sequence[Item],
                    order: Sequence[int]) -> dict[int, list[Unit]] | None:
        """Take devices for each item, in this order, or nothing."""
        own = self._exclusive_of(instance_uuid)
        taken: dict[int, list[Unit]] = {}
        for index in order:
            some = self._take_item(items[index], demand, own)
            if some is None:
                for earlier in reversed(taken.values()):
                    self._put_back(earlier)
                return None
            taken[index] = some
        return taken

    def _exclusive_of(self, instance_uuid: str) -> list[Unit]:
        """The instance's devices that exclude others. It may get those others that must go together with its own."""
        return [unit for holding in self._holdings_of(instance_uuid) for unit in holding.units if unit.exclusions]

    def _hold_of(self, instance_uuid: str, units: Sequence[Unit]) -> Hold:
        unnamed = self._unnamed
        return Hold(instance_uuid, tuple([unit.key for unit in units]),
                    tuple([unit.candidate(None if unnamed and unit.identifier in unnamed else unit.identifier)
                           for unit in units]))

    def _choices(self, item: Item) -> tuple[bool, int]:
        scope = self._pools.scope(item.resource_class, item.provider_uuid, item.choices)
        return item.provider_uuid is None, len(scope.pools) if scope is not None else 0

    def _affinity(self, demand: Demand, item_policy: str | None) -> Affinity:
        """The nodes and the policy for an item and, for the policy ``socket``, all nodes on their sockets."""
        nodes, policy = demand.numa_nodes, item_policy or demand.numa_policy
        return nodes, policy, self._on_socket(nodes) if policy == vocabulary.SOCKET else _NO_NODES

    def _on_socket(self, nodes: frozenset[int | None]) -> frozenset[int | None]:
        near = {socket for node, socket in self._sockets.items() if node in nodes}
        return frozenset(node for node, socket in self._sockets.items() if socket in near)

    def shows_room(self, key: DeviceKey) -> bool:
        """Whether by the last report a held device is there, or its parent can make it."""
        unit = self._find(key)
        return unit is not None and (unit.pool.available >= unit.pool.parent.pending if unit.unborn
                                     else GONE not in unit.withheld)

    def exchange_elsewhere(self, key: DeviceKey, accepts: Callable[[str | None, str], bool] | None = None,
                           parent_gone: bool = False) -> Hold | None:
        """As :meth:`exchange`, and by another parent if possible: what fails at one device may fail at its siblings."""
        unit = self._find(key)
        failing = None if unit is None else unit.pool.parent_name
        if failing is not None:
            with contextlib.suppress(exception.NoFit):
                return self.exchange(key, lambda parent, details: parent != failing and (
                    accepts is None or accepts(parent, details)), parent_gone=parent_gone)
        return self.exchange(key, accepts, parent_gone=parent_gone)

    def exchange(self, key: DeviceKey, accepts: Callable[[str | None, str], bool] | None = None,
                 numa_nodes: frozenset[int | None] = _NO_NODES,
                 numa_policy: str = vocabulary.REQUIRED, parent_gone: bool = False) -> Hold | None:
        """Hold another device to replace one that could not be made ready. The first one stays held.

        The other device comes from the same provider, unless the request left the provider to this host. It has the
        features and the affinity of the request. A holding that was made from rows does not know these; then the other
        device has the same features and the same NUMA node as the first.

        :param accepts: as for an :class:`~devicetrack.engine.demand.Item`
        :param numa_nodes: the other device must be near these nodes instead, by ``numa_policy``
        :param parent_gone: nobody can have a device of the same parent any more, so the other one may be of any
            provider, and of any NUMA node if the request is not known
        :returns: a hold of the other device alone; None if nobody holds the first one
        :raises NoFit: there is no other device; the error does not count the holding's own devices
        """
        unit = self._find(key)
        if unit is None or unit.holding is None:
            return None
        holding, pool = unit.holding, unit.pool
        choices, own_policy = (holding.asked or {}).get(unit, ((), None))
        if holding.from_rows and pool.words:
            # Nobody knows which of its features the request asked for, so the other device must have all of them.
            choices = (Choice(pool.resource_class, frozenset(pool.words)),)
        provider_uuid = None if holding.anywhere or parent_gone else pool.provider_uuid
        wanted = NOTHING
        if numa_nodes:
            wanted = affinity = NOTHING._replace(numa_nodes=numa_nodes, numa_policy=numa_policy)
        elif holding.from_rows:
            affinity = NOTHING._replace(numa_nodes=frozenset((pool.numa_node,)),
                                        numa_policy=vocabulary.PREFERRED if parent_gone else vocabulary.REQUIRED)
        else:
            nodes, policy = holding.affinity or (frozenset(), vocabulary.NONE)
            affinity = NOTHING._replace(numa_nodes=nodes, numa_policy=own_policy or policy)
        item = Item(pool.resource_class, 1, provider_uuid, accepts, choices)
        scope = self._pools.scope(pool.resource_class, provider_uuid, choices)
        taken = None if scope is None else self._take_one(
            scope, item, affinity, self._exclusive_of(holding.instance_uuid))
        if taken is None:
            short = self._shortage(item, wanted, holding)
            own = sum(one.state == HELD and one.pool.resource_class == pool.resource_class
                      and provider_uuid in (None, one.pool.provider_uuid) for one in holding.units)
            if numa_nodes:                      # its own exist too, on the wrong node
                short = short._replace(exist=short.exist + own, wrong_numa_node=short.wrong_numa_node + own)
            raise exception.NoFit([short._replace(exist=short.exist - own, held=short.held - own)])
        taken.holding = holding
        if choices or own_policy:
            holding.asked = {**(holding.asked or {}), taken: (choices, own_policy)}
        if taken.exclusions:
            self._exclude(taken)
        holding.units = tuple(taken if one is unit else one for one in holding.units) + (unit,)
        return self._hold_of(holding.instance_uuid, (taken,))

    def narrow(self, accepts: Mapping[DeviceKey, Callable[[str | None, str], bool] | None],
               numa_nodes: frozenset[int | None], numa_policy: str | None) -> list[tuple[DeviceKey, Hold]]:
        """Hold devices near NUMA nodes, to replace the devices of a claim that are far. The far ones stay held.

        A far device that the policy allows is exchanged only if a near device is free.

        :param accepts: by device of the claim, as for :meth:`exchange`
        :param numa_policy: None for each device's own policy: ``preferred`` if the request named none, and ``required``
            if nobody knows it any more
        :returns: the exchanged devices, each with the hold of its replacement
        :raises NoFit: a device that the policy does not allow has no near one; nothing was exchanged
        """
        exchanged: list[tuple[DeviceKey, Hold]] = []
        holdings = set()
        on_socket = self._on_socket(numa_nodes)
        for key, accepts_one in accepts.items():
            unit = self._find(key)
            if unit is None or unit.holding is None:
                continue                        # the ledger does not know it; its row decides
            holdings.add(unit.holding)
            node = unit.pool.numa_node
            if node in numa_nodes:
                continue
            policy = numa_policy or self._asked_policy(unit.holding, unit)
            try:
                other = self._exchange_for_nearer(key, accepts_one, numa_nodes, policy,
                                                  allows(node, numa_nodes, policy, on_socket))
            except exception.NoFit:
                for _key, hold in reversed(exchanged):
                    self.put_back(hold)
                raise
            if other is not None:
                exchanged.append((key, other))
        for holding in holdings:
            if numa_policy is not None and holding.asked is not None:
                holding.asked = {unit: (choices, None) for unit, (choices, _policy) in holding.asked.items()}
            holding.affinity = numa_nodes, numa_policy or vocabulary.PREFERRED
        return exchanged

    def _exchange_for_nearer(self, key: DeviceKey, accepts: Callable[[str | None, str], bool] | None,
                             numa_nodes: frozenset[int | None], policy: str, allowed: bool) -> Hold | None:
        """Exchange a device for one on the nodes. If it is not ``allowed``, one that the policy allows is enough.

        :returns: None if the device stays
        :raises NoFit: the device may not stay, and there is no other
        """
        try:
            return self.exchange(key, accepts, numa_nodes)
        except exception.NoFit:
            if allowed:
                return None
        return self.exchange(key, accepts, numa_nodes, policy)

    @staticmethod
    def _asked_policy(holding: Holding, unit: Unit) -> str:
        """The NUMA policy with which a device was requested."""
        if holding.from_rows:
            return vocabulary.REQUIRED
        _choices, own = (holding.asked or {}).get(unit, ((), None))
        return own or vocabulary.PREFERRED

    def available(self, resource_class: str, provider_uuid: str | None, demand: Demand) -> list[Available]:
        """The devices that an item of a demand could get."""
        return [Available(pool.kind, pool.parent_name, identifier, text, amount)
                for pool, identifier, text, amount in self._available(
                    self._pools.scope(resource_class, provider_uuid), self._affinity(demand, None))]

    @staticmethod
    def _available(scope: Scope | None, affinity: Affinity) -> list[tuple[Pool, str | None, str, int]]:
        found: list[tuple[Pool, str | None, str, int]] = []
        for pool in scope.pools if scope is not None else ():
            if allows(pool.numa_node, *affinity):
                found += [(pool, unit.identifier, unit.details, 1) for unit in pool.free
                          if unit.state == FREE and not unit.withheld]
                if pool.room() > pool.free_count:
                    found.append((pool, None, pool.details, pool.room() - pool.free_count))
        return found

    def _take_item(self, item: Item, demand: Demand, own: list[Unit]) -> list[Unit] | None:
        """Take devices for one item of a demand, or nothing.

        :param own: the instance's devices that exclude others; this call adds those that it takes
        """
        resource_class, amount, provider_uuid, accepts, choices, item_policy = item
        scope = self._pools.scopes.get((resource_class, provider_uuid)) if not choices \
            else self._pools.scope(resource_class, provider_uuid, choices)
        if scope is None:
            return None
        affinity = self._affinity(demand, item_policy)
        units: list[Unit] = []
        while len(units) < amount:
            unit = None
            if own:
                unit = self._take_one(scope, item, demand, own, amount - len(units))
            elif accepts is not None:
                unit = self._take_accepted(scope, affinity, accepts)
            else:
                unit = self._take_best(scope, item, affinity, amount - len(units))
            if unit is None:
                self._put_back(units)
                return None
            units.append(unit)
            if unit.exclusions:
                self._exclude(unit)
                own.append(unit)
        return units

    def _take_best(self, scope: Scope, item: Item, affinity: Affinity, wanted: int) -> Unit | None:
        """Take the device that the policy chooses or, if some go together, one that leaves no part of a group behind.

        For several devices this is one of the smallest group that has them all, and for one device a lone one: nobody
        else can have what is left of a group.

        :param wanted: how many devices the item still needs, this one included
        """
        groups = list(self._exclusion.groups()) if self._exclusion else []
        if groups and wanted > 1:
            near = ([unit for unit in group if self._is_near(item, unit, affinity)] for group in groups)
            fits = [(len(meant), meant[0].pool.index, meant[0]) for meant in near if len(meant) >= wanted]
            if fits:
                return self._take_in_line(min(fits, key=lambda one: one[:2])[2])
        if (pool := scope.best(*affinity)) is None:
            return None
        unit = self._take_from(pool)
        if groups and wanted == 1 and any(unit in group for group in groups):
            together = set().union(*groups)
            alone = next((other for pool in scope.pools for other in pool.free
                          if other not in together and other.state == FREE and not other.withheld
                          and self._is_near(item, other, affinity)), None)
            if alone is not None:
                self._put_back([unit])
                return self._take_in_line(alone)
        return unit

    @staticmethod
    def _is_near(item: Item, unit: Unit, affinity: Affinity) -> bool:
        """Whether an item may take a device, and no nearer one comes before it."""
        nodes, policy, _on_socket = affinity
        return (_is_meant(item, unit.pool) and item.provider_uuid in (None, unit.pool.provider_uuid)
                and (policy == vocabulary.NONE or not nodes or unit.pool.numa_node in nodes))

    def _take_one(self, scope: Scope, item: Item, demand: Demand, own: Sequence[Unit],
                  wanted: int = 1) -> Unit | None:
        """Take a device for an instance that has devices which exclude others.

        Devices that only its own exclude come first, because nobody else can have them; but a near device comes before
        a far one.
        """
        affinity = self._affinity(demand, item.numa_policy)
        unit = self._take_beside(item, affinity, own, near=True) if own else None
        if unit is None and item.accepts is not None:
            unit = self._take_accepted(scope, affinity, item.accepts)
        elif unit is None:
            unit = self._take_best(scope, item, affinity, wanted)
        return self._take_beside(item, affinity, own, near=False) if unit is None and own else unit

    def _take_beside(self, item: Item, affinity: Affinity, own: Sequence[Unit], near: bool) -> Unit | None:
        """Take a device that only devices of the same instance exclude."""
        nodes, policy, _on_socket = affinity
        for unit in self._exclusion.beside(own):
            pool = unit.pool
            if (_is_meant(item, pool) and item.provider_uuid in (None, pool.provider_uuid)
                    and allows(pool.numa_node, *affinity)
                    and (not near or not nodes or policy == vocabulary.NONE or pool.numa_node in nodes)
                    and (item.accepts is None or item.accepts(pool.parent_name, unit.details))):
                unit.state = HELD               # withheld, so it was not counted as free; it may stay in its line
                pool.held_count += 1
                return unit
        return None

    def _take_accepted(self, scope: Scope, affinity: Affinity,
                       accepts: Callable[[str | None, str], bool]) -> Unit | None:
        """Search for an accepted device and take it. Only a guest that comes from another host needs this search."""
        found = [(pool.numa_node not in affinity[0], identifier is None, pool, identifier)
                 for pool, identifier, details, _amount in self._available(scope, affinity)
                 if accepts(pool.parent_name, details)]
        if not found:
            return None
        _far, _made, pool, identifier = min(found, key=lambda one: one[:2])
        if identifier is None:
            return self._make(pool)
        return self._take_in_line(self._units[pool.kind][identifier])

    @staticmethod
    def _take_in_line(unit: Unit) -> Unit:
        """Take a free device from anywhere in its line. It stays there, and claims pass over it."""
        unit.pool.free_count -= 1
        unit.state = HELD
        unit.pool.held_count += 1
        return unit

    def name(self, hold: Hold, candidates: Sequence[Candidate]) -> Hold:
        """Give the devices of a hold that will be made their identifiers, which the driver chose.

        :param candidates: those of ``hold``, each with its identifier
        :returns: the same hold with the new names
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

    # -- why a demand does not fit ------------------------------------------------------------------------------------

    def shortages(self, demand: Demand, everything: bool = False) -> list[Shortage]:
        """The parts of a demand that do not fit, or with ``everything`` all parts."""
        wanted: dict[Item, int] = {}
        for item in demand.items:
            alike = item._replace(amount=0, accepts=None)
            wanted[alike] = wanted.get(alike, 0) + item.amount
        all_of = [self._shortage(item._replace(amount=amount), demand) for item, amount in wanted.items()]
        if everything:
            return all_of
        # Each item may fit alone, and all of them together may not. Then all of them are short.
        return [shortage for shortage in all_of if not shortage.fits] or all_of

    def _shortage(self, item: Item, demand: Demand, but: Holding | None = None) -> Shortage:
        return shortage(item, self._affinity(demand, item.numa_policy), self._pools, self._units,
                        self._owners(item, but), self._standing.why)

    def _owners(self, item: Item, but: Holding | None) -> int:
        """How many instances hold devices that an item means. ``but`` is not counted."""
        return len({holding.instance_uuid for holding in self._all_holdings() if holding is not but and any(
            unit.state == HELD and _is_meant(item, unit.pool)
            and item.provider_uuid in (None, unit.pool.provider_uuid) for unit in holding.units)})


def _is_meant(item: Item, pool: Pool) -> bool:
    """Whether an item may take devices of a pool, at whichever provider the pool is."""
    if not item.choices:
        return pool.resource_class == item.resource_class
    return any(choice.resource_class == pool.resource_class and choice.accepts(pool.words)
               for choice in item.choices)
