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
from collections.abc import Mapping
from collections.abc import Sequence

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import exclusion
from devicetrack.engine.demand import arrange
from devicetrack.engine.demand import Demand
from devicetrack.engine.demand import Item
from devicetrack.engine.demand import NOTHING
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.explanation import shortage
from devicetrack.engine.intake import Intake
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
from devicetrack.objects import details
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record


class Ledger(Intake):
    """Free and held devices of one host: what claims take and give back, and what rows say is held.

    It stands on what the host says (:class:`.Intake`) and on the devices themselves (:class:`.Stock`).
    """

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
            some = self._take_item(items[0], demand, self._exclusive_of(instance_uuid) if first is not None else [])
            if some is None:
                raise exception.NoFit(self.shortages(demand))
            units = in_order = some
        else:
            # Items that name a provider choose first: what is left serves those that take from anywhere. Of one class,
            # the sets of pools that items allow contain one another or are apart, so whatever fits is found this way.
            # Classes that share parents are another matter: there, the class with the fewest parents chooses first.
            order = sorted(range(len(items)), key=lambda index: self._choices(items[index]))
            taken = self._take_items(instance_uuid, demand, order)
            if taken is None and self._exclusion:
                # A whole that was chosen first may have excluded the parts that the next item needs, or parts all
                # wholes. What fits the other way round is found so; not every mix is.
                taken = self._take_items(instance_uuid, demand, order[::-1])
            if taken is None:
                raise exception.NoFit(self.shortages(demand))
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

    def _take_items(self, instance_uuid: str, demand: Demand, order: Sequence[int]) -> dict[int, list[Unit]] | None:
        """Take devices for each item of a demand, in this order, or nothing."""
        own = self._exclusive_of(instance_uuid)
        taken: dict[int, list[Unit]] = {}
        for index in order:
            some = self._take_item(demand.items[index], demand, own)
            if some is None:
                for earlier in reversed(taken.values()):
                    self._put_back(earlier)
                return None
            taken[index] = some
        return taken

    def _exclusive_of(self, instance_uuid: str) -> list[Unit]:
        """What an instance holds that excludes other devices: of these, it may have those that go together."""
        return [unit for holding in self._holdings_of(instance_uuid) for unit in holding.units if unit.exclusions]

    def _hold_of(self, instance_uuid: str, units: Sequence[Unit]) -> Hold:
        unnamed = self._unnamed
        return Hold(instance_uuid, tuple([unit.key for unit in units]),
                    tuple([unit.candidate(None if unnamed and unit.identifier in unnamed else unit.identifier)
                           for unit in units]))

    def _choices(self, item: Item) -> tuple[bool, int]:
        scope = self._pools.scopes.get((item.resource_class, item.provider_uuid))
        return item.provider_uuid is None, len(scope.pools) if scope is not None else 0

    def exchange(self, key: DeviceKey, accepts: Callable[[str | None, str], bool] | None = None,
                 numa_nodes: frozenset[int | None] = frozenset()) -> Hold | None:
        """Hold another device in the place of one that could not be made after all; the first stays held.

        It comes from the same provider, unless the request left that to this host, and has the affinity that was asked
        for. A holding that was made of rows does not know that: the other device is of the same NUMA node then.

        :param accepts: as that of an :class:`~devicetrack.engine.demand.Item`
        :param numa_nodes: it must be on one of these instead
        :returns: the other device alone; None when nobody holds the first one
        :raises NoFit: there is no other; what the holding itself has is left out of what there is
        """
        unit = self._find(key)
        if unit is None or unit.holding is None:
            return None
        holding, pool = unit.holding, unit.pool
        scope = self._pools.scopes[pool.resource_class, None if holding.anywhere else pool.provider_uuid]
        wanted = NOTHING
        if numa_nodes:
            numa_policy = vocabulary.REQUIRED
            wanted = NOTHING._replace(numa_nodes=numa_nodes, numa_policy=numa_policy)
        elif holding.from_rows:
            numa_nodes, numa_policy = frozenset((pool.numa_node,)), vocabulary.REQUIRED
        else:
            numa_nodes, numa_policy = holding.affinity or (frozenset(), vocabulary.NONE)
        provider_uuid = None if holding.anywhere else pool.provider_uuid
        taken = self._take_one(scope, Item(pool.resource_class, 1, provider_uuid, accepts),
                               NOTHING._replace(numa_nodes=numa_nodes, numa_policy=numa_policy),
                               self._exclusive_of(holding.instance_uuid))
        if taken is None:
            short = self._shortage(pool.resource_class, provider_uuid, 1, wanted, holding)
            own = sum(one.state == HELD and one.pool.resource_class == pool.resource_class
                      and provider_uuid in (None, one.pool.provider_uuid) for one in holding.units)
            raise exception.NoFit([short._replace(exist=short.exist - own, held=short.held - own)])
        taken.holding = holding
        if taken.exclusions:
            self._exclude(taken)
        holding.units = tuple(taken if one is unit else one for one in holding.units) + (unit,)
        return self._hold_of(holding.instance_uuid, (taken,))

    def narrow(self, accepts: Mapping[DeviceKey, Callable[[str | None, str], bool] | None],
               numa_nodes: frozenset[int | None], numa_policy: str) -> list[tuple[DeviceKey, Hold]]:
        """Hold devices near NUMA nodes in the place of devices of one claim that are not; these stay held.

        A device that is far, and that the policy allows, is exchanged where a near one can be had.

        :param accepts: by device of the claim, as for :meth:`exchange`
        :returns: the devices that were exchanged, each with the other one
        :raises NoFit: a device that the policy does not allow has no near one; nothing was exchanged
        """
        exchanged: list[tuple[DeviceKey, Hold]] = []
        holdings = set()
        for key, accepts_one in accepts.items():
            unit = self._find(key)
            if unit is None or unit.holding is None:
                continue                        # nothing is known of it; its row counts
            holdings.add(unit.holding)
            node = unit.pool.numa_node
            if node in numa_nodes:
                continue
            try:
                other = self.exchange(key, accepts_one, numa_nodes)
            except exception.NoFit:
                if not allows(node, numa_nodes, numa_policy):
                    for _key, hold in reversed(exchanged):
                        self.put_back(hold)
                    raise
            else:
                if other is not None:
                    exchanged.append((key, other))
        for holding in holdings:
            holding.affinity = numa_nodes, numa_policy
        return exchanged

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

    def _take_item(self, item: Item, demand: Demand, own: list[Unit]) -> list[Unit] | None:
        """Take devices for one item of a demand, or nothing.

        :param own: what the instance has that excludes others; what is taken here is added
        """
        resource_class, amount, provider_uuid, accepts = item
        scope = self._pools.scopes.get((resource_class, provider_uuid))
        if scope is None:
            return None
        units: list[Unit] = []
        while len(units) < amount:
            unit = None
            if own:
                unit = self._take_one(scope, item, demand, own)
            elif accepts is not None:
                unit = self._take_accepted(resource_class, provider_uuid, demand, accepts)
            elif (pool := scope.best(demand.numa_nodes, demand.numa_policy)) is not None:
                unit = self._take_from(pool)
            if unit is None:
                self._put_back(units)
                return None
            units.append(unit)
            if unit.exclusions:
                self._exclude(unit)
                own.append(unit)
        return units

    def _take_one(self, scope: Scope, item: Item, demand: Demand, own: Sequence[Unit]) -> Unit | None:
        """Take a device for an instance that has some which exclude others.

        Those that only its own exclude are for nobody else, so they are looked at first; but a near one goes before.
        """
        resource_class, _amount, provider_uuid, accepts = item
        unit = self._take_beside(item, demand, own, near=True) if own else None
        if unit is None and accepts is not None:
            unit = self._take_accepted(resource_class, provider_uuid, demand, accepts)
        elif unit is None and (pool := scope.best(demand.numa_nodes, demand.numa_policy)) is not None:
            unit = self._take_from(pool)
        return self._take_beside(item, demand, own, near=False) if unit is None and own else unit

    def _take_beside(self, item: Item, demand: Demand, own: Sequence[Unit], near: bool) -> Unit | None:
        """Take a device that nothing excludes but what its instance has itself."""
        for unit in self._exclusion.beside(own):
            pool, nodes = unit.pool, demand.numa_nodes
            if (pool.resource_class == item.resource_class and item.provider_uuid in (None, pool.provider_uuid)
                    and allows(pool.numa_node, nodes, demand.numa_policy)
                    and (not near or not nodes or demand.numa_policy == vocabulary.NONE or pool.numa_node in nodes)
                    and (item.accepts is None or item.accepts(pool.parent_name, unit.details))):
                unit.state = HELD               # it was withheld, and no free one; if it stands in its queue, it stays
                pool.held_count += 1
                return unit
        return None

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

    # -- what rows say ------------------------------------------------------------------------------------------------

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
                if unit.exclusions:
                    self._exclude(unit)         # against what rows say elsewhere: it stays held, and is a finding
            if unit.withheld:
                # Whoever gives it back proves it. By then its owner may have written to it.
                over = {vocabulary.UNPROVEN}
                if vocabulary.NOT_ADOPTED in unit.withheld and details.is_made(record.details):
                    over.add(vocabulary.NOT_ADOPTED)
                if not over.isdisjoint(unit.withheld):
                    self._withhold(unit, unit.withheld - over)
            units.append(unit)
        holding = self._holdings.get(records[0].instance_uuid)
        if holding is None:
            holding = self._holdings[records[0].instance_uuid] = Holding(records[0].instance_uuid, ())
            holding.from_rows = True
        ours = [unit for unit in units
                if unit.holding is None or unit.holding.instance_uuid != holding.instance_uuid]
        for unit in ours:
            if unit.holding is not None:
                self._leave(unit)               # whoever takes it just now, the store will tell that it has an owner
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
        if not pool.provider_uuid:
            unit.withheld |= {vocabulary.NO_PROVIDER}
        if pool.creatable:
            unit.unborn = True
            pool.parent.pending += 1
        else:
            unit.withheld |= {GONE}
            self._set_exclusions(unit, exclusion.of_row(record.kind, record.parent))
        if new:
            self._pools.index()
        return unit

    def not_held(self, records: Sequence[Record]) -> list[Record]:
        """The rows whose devices are not held for the rows' instances."""
        units = collections.defaultdict(dict, self._units)
        of_devices = Compact(Record, records).columns('kind', 'identifier', 'instance_uuid')
        return [records[number] for number, (kind, identifier, instance_uuid) in enumerate(of_devices)
                if (unit := units[kind].get(identifier)) is None
                or unit.holding is None or unit.holding.instance_uuid != instance_uuid]

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

    # -- why a demand does not fit ------------------------------------------------------------------------------------

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

    def _owners(self, resource_class: str, provider_uuid: str | None, but: Holding | None) -> int:
        """How many instances hold devices of a class, a holding left out."""
        return len({holding.instance_uuid for holding in self._all_holdings() if holding is not but and any(
            unit.state == HELD and unit.pool.resource_class == resource_class
            and provider_uuid in (None, unit.pool.provider_uuid) for unit in holding.units)})
