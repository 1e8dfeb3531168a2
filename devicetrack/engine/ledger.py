"""The in-memory index of free and held devices of one host.

The ledger decides and remembers. It does no I/O and has no lock of its own: its owner calls it under a lock, and each
call takes microseconds. It knows identities and owners, not the rows: only the store is durable. Calls take and return
keys and frozen values; no caller ever holds an object that the ledger still changes.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence

from devicetrack import vocabulary
from devicetrack.engine.selection import FREE
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import Holding
from devicetrack.engine.selection import RELEASING
from devicetrack.engine.selection import Unit
from devicetrack.engine.stock import GONE
from devicetrack.engine.taking import Taking
from devicetrack.objects import details
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record


class Ledger(Taking):
    """The free and held devices of one host.

    This class gives devices back, and holds them for rows. :class:`.Taking` takes devices for claims, :class:`.Intake`
    reads the host's reports, and :class:`.Stock` has the devices themselves.
    """

    # -- giving -------------------------------------------------------------------------------------------------------

    def releasing(self, keys: Iterable[DeviceKey]) -> None:
        """Note that held devices are on their way back: they are being wiped or removed."""
        for key in keys:
            unit = self._find(key)
            if unit is not None and unit.state == HELD:
                unit.state = RELEASING
                unit.pool.held_count -= 1
                unit.pool.releasing_count += 1

    def releasing_of(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> None:
        """As :meth:`releasing`, for those of the devices that are still held for this instance."""
        self.releasing(self._held_of(instance_uuid, keys))

    def free(self, keys: Iterable[DeviceKey], removed: Collection[DeviceKey] = ()) -> None:
        """Free held devices. They have no row and no user any more, and the driver proved that they are clean or gone.

        :param removed: those that were removed from the host
        """
        for key in keys:
            unit = self._find(key)
            if unit is not None:
                unit.unproven = False
                self._free(unit, key in removed)

    def free_of(self, instance_uuid: str, keys: Iterable[DeviceKey], removed: Collection[DeviceKey] = ()) -> None:
        """Free those of the devices that are still held for this instance.

        Between the end of the last row and this call, the ledger may have been built again, and a claim may have taken
        a device.
        """
        self.free(self._held_of(instance_uuid, keys), removed)

    def let_go_of(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> None:
        """Note that devices held for this instance have no row any more, though nobody took them back from a guest."""
        for key in self._held_of(instance_uuid, keys):
            unit = self._find(key)
            if unit is not None:
                self._free(unit)

    def _held_of(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> list[DeviceKey]:
        ours = {unit.key for holding in self._holdings_of(instance_uuid) for unit in holding.units}
        return [key for key in keys if key in ours]

    # -- what rows say ------------------------------------------------------------------------------------------------

    def hold(self, records: Sequence[Record]) -> None:
        """Hold the devices of one instance's rows, also those that the host does not have."""
        units = []
        for record in records:
            unit = self._units.get(record.kind, {}).get(record.identifier) or self._unit_of_row(record)
            if unit.state == FREE:
                if not unit.withheld and not unit.unborn:
                    unit.pool.free_count -= 1
                unit.pool.held_count += 1
                unit.state = HELD
                if unit.exclusions:
                    self._exclude(unit)         # another row may exclude it: it stays held, and audits find it
            if unit.withheld:
                # The release of the device proves it clean. Until then its owner may write to it.
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
                self._leave(unit)               # the claim that took it just now learns of the owner from the store
            unit.holding = holding
        holding.units += tuple(ours)

    def _unit_of_row(self, record: Record) -> Unit:
        """Make a unit for a device that the host does not have: it will be made (again), or it is gone."""
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
        self._reconsider(self._exclusion.join(unit, self._of_absent(unit.key, pool.parent)))
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
        """The instances for which the ledger holds a device because of a row that no longer exists.

        :param records: every row of the host
        :param all_held: whether the device of each row is held
        """
        if all_held and sum(len(holding.units) for holding in self._all_holdings()) == len(records):
            return []                           # one device is held for each row, and nothing else
        recorded = {(record.instance_uuid, record.key) for record in records}
        return [holding.instance_uuid for holding in self._all_holdings() if holding.from_rows
                and any((holding.instance_uuid, unit.key) not in recorded for unit in holding.units)]

    def free_without_row(self, instance_uuid: str, keep: Collection[DeviceKey]) -> None:
        """Free the devices held for an instance because of rows that are gone, but not those that its claim just took.

        :param keep: the devices of its rows, and those in doubt
        """
        for holding in self._holdings_of(instance_uuid):
            if holding.from_rows:
                for unit in holding.units:
                    if unit.key not in keep:
                        self._free(unit)

    def trust_rows(self, keys: Iterable[DeviceKey]) -> None:
        """Let only rows decide from now on whether these devices stay held: the claim that took them is over."""
        for key in keys:
            unit = self._find(key)
            if unit is not None and unit.holding is not None:
                unit.holding.from_rows = True
