"""Updates the ledger from the host's reports about its devices and their parents."""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import operator
from typing import Any
from typing import Final

from devicetrack import vocabulary
from devicetrack.engine import exclusion
from devicetrack.engine.selection import FREE
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import Pool
from devicetrack.engine.selection import Unit
from devicetrack.engine.stock import GONE
from devicetrack.engine.stock import Stock
from devicetrack.engine.stock import UNPROVEN
from devicetrack.engine.withholding import NO_REASON
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice

# Each report of the host about a device and its parent sets these reasons anew.
_OF_THE_HOST: Final = frozenset((vocabulary.UNHEALTHY, vocabulary.NOT_ADOPTED, vocabulary.UNPROVEN, vocabulary.CORDONED,
                                 vocabulary.NO_PROVIDER, GONE))

_IDENTIFIER: Final = operator.itemgetter(InventoryDevice._fields.index('identifier'))
_ADOPTABLE: Final = operator.itemgetter(InventoryDevice._fields.index('adoptable'))


class Intake(Stock):
    """The stock of a host, updated whenever somebody reads the host. Nothing here changes an owner."""

    # -- one device ---------------------------------------------------------------------------------------------------

    def realized(self, key: DeviceKey, details: str, capacities: Sequence[Capacity] = (),
                 watch: int | None = None) -> None:
        """Note that a device exists now, with these details. Until its parent is read again, it counts for every type.

        ``capacities`` are those that the parent reported when the device was made, during ``watch``. They count only if
        nothing else was made or removed there meanwhile. Otherwise nobody knows which changes they include.
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

    def used(self, keys: Iterable[DeviceKey]) -> None:
        """Note that guests may write to these devices, though nobody made them real here."""
        for key in keys:
            unit = self._find(key)
            if unit is not None:
                self._touch(unit)
                unit.unproven = unit.pool.kind in self._keeping

    # -- parents ------------------------------------------------------------------------------------------------------

    def read_capacities(self, capacities: Iterable[Capacity]) -> None:
        """Note how many devices parents can still make, by their own report."""
        added = False
        for capacity in capacities:
            pool, new = self._pool(capacity.kind, self._provider_uuid_of(capacity.provider), capacity.resource_class,
                                   capacity.parent, capacity.numa_node)
            added = added or new
            pool.available, pool.details, pool.creatable = capacity.available, capacity.details, True
            pool.taken_by = capacity.taken_by
            pool.grew()
        if added:
            self._pools.index()

    def read_parents(self, inventory: Inventory, watch: int) -> None:
        """Note how many devices parents can still make, and which of the known devices exist.

        No device becomes free here: :meth:`read_inventory`, and the calls after it, decide who may have it.
        """
        changed = self._watches[watch]
        for device in inventory.devices:
            unit = self._find(device.key)
            if unit is None or unit.key in changed:
                continue
            if unit.unborn:
                self._realized(unit, device.details)
            elif unit.state == FREE:
                self._withhold(unit, unit.withheld | self._reasons(device.unhealthy, device.adoptable, unit))
            elif GONE in unit.withheld:
                self._withhold(unit, unit.withheld - {GONE})
        self._miss(inventory, changed)
        self._read_parents(inventory, changed)

    def _miss(self, inventory: Inventory, changed: Collection[DeviceKey]) -> None:
        """Forget free devices that the host does not have. Held ones stay held, and are withheld as gone."""
        # Plain tuples, which hash as keys do: there are thousands, and nearly all of them are seen.
        seen = {(device.kind, device.identifier) for device in inventory.devices}
        for kind in inventory.known_kinds:
            for identifier, unit in list(self._units.get(kind, {}).items()):
                if (kind, identifier) not in seen and unit.key not in changed and not unit.unborn:
                    if unit.state == FREE:
                        self._unmake(unit)
                    else:
                        unit.withheld |= {GONE}

    def _read_parents(self, inventory: Inventory, changed: Mapping[DeviceKey, Pool]) -> None:
        """Set how many devices parents can make, and correct it by ``changed``: devices made or removed since."""
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

    # -- everything ---------------------------------------------------------------------------------------------------

    def read_inventory(self, inventory: Inventory, watch: int | None = None,
                       recorded: Collection[tuple[str, str | None]] = ()) -> None:
        """Update all devices from a reading of the host.

        New devices are free. A device that is missing, of a kind that was read in full, is forgotten if it is free, and
        withheld as gone if it is held. Nothing here changes an owner. A device that changed during ``watch`` stays as
        it is.

        :param recorded: new devices that are not free, because rows name their owners. Call :meth:`.Ledger.hold` next
        """
        changed = self._watches[watch] if watch is not None else {}
        new: list[tuple[Any, ...]] = []         # the fields of each: the garbage collector goes through named tuples
        self._keeping, unproven = inventory.keeping, inventory.unproven
        self._sockets = dict(inventory.sockets)
        if self._units or changed:
            for fields, unit in self._news(inventory.devices, unproven):
                device = InventoryDevice._make(fields)
                is_watched = bool(changed) and device.key in changed
                if unit is None:
                    if not is_watched:
                        new.append(fields)
                elif not is_watched:
                    self._read_device(device, unit, unproven)
                else:                           # only the host knows which devices exclude one another
                    self._read_exclusions(device, unit)
        else:                                   # at a start
            new = Compact(InventoryDevice, inventory.devices).plain()
        # The first device describes its pool, so devices that somebody else made come last.
        new.sort(key=_IDENTIFIER)
        new.sort(key=_ADOPTABLE, reverse=True)
        self._add(new, unproven, recorded)
        there = collections.Counter(Compact(InventoryDevice, inventory.devices).column('kind'))
        # Every device that is there is known now. If the numbers are equal, no known device is missing.
        if changed or any(len(self._units.get(kind, ())) != there[kind] for kind in inventory.known_kinds):
            self._miss(inventory, changed)
        self._read_parents(inventory, changed)
        self._pools.index()

    def _add(self, new: Iterable[tuple[Any, ...]], unproven: Collection[tuple[str, str]],
             recorded: Collection[tuple[str, str | None]]) -> None:
        """Add devices that are not known yet, by their fields, in the order in which claims will take them."""
        pools: dict[tuple[Any, ...], tuple[Pool, dict[str, Unit], bool]] = {}
        standing = bool(self._standing)
        for fields in new:
            (kind, identifier, provider, resource_class, parent, numa_node, details, unhealthy, adoptable, _type,
             exclusions, features) = fields
            where = (kind, provider, resource_class, parent, numa_node, features)
            found = pools.get(where)
            if found is None:                   # thousands of devices have a few pools
                pool = self._pool_of(InventoryDevice(*fields))
                found = pools[where] = pool, self._units.setdefault(kind, {}), bool(not standing and pool.provider_uuid)
            pool, units, is_open = found
            unit = units[identifier] = Unit(pool, identifier, details)
            pool.total += 1
            key = (kind, identifier)
            if key in unproven:
                unit.unproven = True
            if exclusions:
                self._reconsider(self._exclusion.join(unit, exclusion.of_device(kind, identifier, exclusions)))
            is_well = is_open and unhealthy is None and adoptable
            if key in recorded:
                unit.state = HELD
                pool.held_count += 1
                if not is_well:
                    unit.withheld = self._reasons(unhealthy, adoptable, unit)
                if not adoptable:                               # until hold has seen in its row who made it
                    unit.withheld |= {vocabulary.NOT_ADOPTED}
                if exclusions:
                    self._exclude(unit)
            else:
                if unit.unproven or not is_well:
                    unit.withheld = self._reasons(unhealthy, adoptable, unit)
                self._enter(unit)

    def _news(self, devices: Iterable[InventoryDevice],
              unproven: Collection[tuple[str, str]]) -> Iterator[tuple[tuple[Any, ...], Unit | None]]:
        """The devices that are unhealthy, or that the host reports differently than before: their fields and units.

        A host has thousands, and nearly all are healthy and unchanged. So this is one loop over plain tuples.
        """
        units = collections.defaultdict(dict, self._units)
        standing = bool(self._standing)
        # The pool of the devices for which the host reports the same place and features.
        pools: dict[tuple[Any, ...], Pool] = {}
        for fields in Compact(InventoryDevice, devices).plain():
            (kind, identifier, provider, resource_class, parent, numa_node, details, unhealthy, adoptable, _type,
             exclusions, features) = fields
            unit = units[kind].get(identifier)
            if (unit is not None and details == unit.details and unhealthy is None and adoptable and not standing
                    and (not unit.withheld or unit.withheld == exclusion.EXCLUDED) and not unit.unborn
                    and unit.unproven == ((kind, identifier) in unproven)
                    and (not (exclusions or unit.exclusions)
                         or unit.exclusions == exclusion.of_device(kind, identifier, exclusions))):
                pool, where = unit.pool, (provider, resource_class, parent, numa_node, features)
                if pools.get(where) is pool:
                    continue
                if where == (provider, pool.resource_class, pool.parent.name, pool.numa_node, pool.features) and (
                        pool.provider_uuid == self._provider_uuid_of(provider)):
                    pools[where] = pool
                    continue
            yield fields, unit

    def _pool_of(self, device: InventoryDevice) -> Pool:
        pool, _new = self._pool(device.kind, self._provider_uuid_of(device.provider), device.resource_class,
                                device.parent, device.numa_node, device.features)
        pool.details = pool.details or device.details
        return pool

    def _read_device(self, device: InventoryDevice, unit: Unit, unproven: Collection[tuple[str, str]]) -> None:
        """Update a known device from the host's report."""
        if unit.unborn:
            self._realized(unit, device.details)                # its maker has not reported it yet
        unit.details = device.details
        unit.unproven = (device.kind, device.identifier) in unproven
        self._move(unit, self._pool_of(device))
        self._read_exclusions(device, unit)
        reasons = self._reasons(device.unhealthy, device.adoptable, unit)
        if reasons != unit.withheld:
            self._withhold(unit, reasons)

    def _read_exclusions(self, device: InventoryDevice, unit: Unit) -> None:
        exclusions = exclusion.of_device(device.kind, device.identifier, device.exclusions)
        if exclusions != unit.exclusions:
            self._set_exclusions(unit, exclusions)

    def _reasons(self, unhealthy: str | None, adoptable: bool, unit: Unit) -> frozenset[str]:
        """Why a device must not be handed out, by the host's present report. Its owner keeps it."""
        free_unproven = unit.unproven and unit.state == FREE
        if (unhealthy is None and adoptable and not unit.withheld and not self._standing
                and unit.pool.provider_uuid):
            return UNPROVEN if free_unproven else NO_REASON    # nearly all of them
        reasons = {*unit.withheld - _OF_THE_HOST, *self._standing.of(unit.key, unit.pool.parent_name)}
        if unhealthy is not None:
            reasons.add(vocabulary.UNHEALTHY)
        # Somebody else made the device, or its owner did. If it is held, its row says who.
        if not adoptable and (unit.state == FREE or vocabulary.NOT_ADOPTED in unit.withheld):
            reasons.add(vocabulary.NOT_ADOPTED)
        if free_unproven:
            reasons.add(vocabulary.UNPROVEN)
        if not unit.pool.provider_uuid:
            reasons.add(vocabulary.NO_PROVIDER)
        return frozenset(reasons)
