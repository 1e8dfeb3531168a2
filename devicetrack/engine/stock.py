"""The devices of one host and their owners, in memory, and every change of one of them.

Every change here keeps the counts of the pool, the lines of free devices and the holdings in step. The modules above
decide what changes: :mod:`~devicetrack.engine.intake` by the host's report, :mod:`~devicetrack.engine.ledger` by claims
and rows. This module also has the reasons for which devices are withheld.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Final

from devicetrack import vocabulary
from devicetrack.engine.exclusion import BEING_WIPED
from devicetrack.engine.exclusion import EXCLUDED
from devicetrack.engine.exclusion import Exclusion
from devicetrack.engine.exclusion import is_taken
from devicetrack.engine.exclusion import of_row
from devicetrack.engine.pools import Pools
from devicetrack.engine.selection import FREE
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import Holding
from devicetrack.engine.selection import Parent
from devicetrack.engine.selection import Pool
from devicetrack.engine.selection import RELEASING
from devicetrack.engine.selection import Unit
from devicetrack.engine.states import DeviceState
from devicetrack.engine.states import HeldDevice
from devicetrack.engine.states import PoolState
from devicetrack.engine.withholding import NO_REASON
from devicetrack.engine.withholding import Standing
from devicetrack.engine.withholding import Target
from devicetrack.objects.choice import Features
from devicetrack.objects.choice import NO_FEATURES
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import Containment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

# The reason of a held device that the host does not have. The ledger does not know such a device if it is free.
GONE: Final = 'gone from the host'
UNPROVEN: Final = frozenset((vocabulary.UNPROVEN,))
_BEING_WIPED: Final = frozenset((vocabulary.UNPROVEN, BEING_WIPED))


# Stands for the pool of what is no device here.
_NOWHERE: Final = Pool('', '', '', Parent(None), None)
_STRANGE: Final = frozenset((vocabulary.FOREIGN,))


class _Makers(Pool):
    """The pool of the unit that stands for all devices which a parent could make."""

    __slots__ = ('_pools',)

    def __init__(self, kind: str, parent: Parent, pools: Pools) -> None:
        super().__init__(kind, '', '', parent, None)
        self._pools = pools

    def grew(self) -> None:
        for pool in self._pools.of_parent(self.parent):
            pool.grew()


class Inconsistent(Exception):
    """The ledger contradicts itself: the code has a mistake, or an exception came in the middle of a change."""


class Stock:
    """The devices of one host, and what instances hold.

    :param policy: ``pack`` or ``spread``
    :param provider_uuid_of: the UUID of the provider with this stable name ('' is the node)
    :param numbers: numbers for the names that the ledger gives to devices and watches. A new ledger of the same manager
        goes on with the same numbers
    """

    def __init__(self, policy: str, provider_uuid_of: Callable[[str], str],
                 numbers: Iterator[int] | None = None) -> None:
        self._provider_uuid_of = provider_uuid_of
        self._pools = Pools(policy)
        self._units: dict[str, dict[str, Unit]] = {}
        self._holdings: dict[str, Holding] = {}
        # Further holdings of an instance: it moves, or devices of an earlier claim are still on their way back.
        self._beside: dict[str, tuple[Holding, ...]] = {}
        # Devices that are claimed and not named yet, by the ledger's own names for them.
        self._unnamed: dict[str, Unit] = {}
        self._numbers = itertools.count() if numbers is None else numbers
        # By watch and device, the pool of each device that was made or given back while somebody reads the host.
        self._watches: dict[int, dict[DeviceKey, Pool]] = {}
        self._standing = Standing()
        self._exclusion = Exclusion()
        self._keeping: frozenset[str] = frozenset()     # the kinds whose devices keep what a guest wrote
        self._sockets: Mapping[int, int] = {}           # by NUMA node; empty while they are unknown
        # What domains use that is no device here, by address, and the exclusions of devices that only rows name.
        self._strangers: dict[str, Unit] = {}
        self._recorded: Mapping[DeviceKey, Exclusions] = {}

    # -- finding ------------------------------------------------------------------------------------------------------

    def _find(self, key: DeviceKey) -> Unit | None:
        return self._units.get(key.kind, {}).get(key.identifier) or self._unnamed.get(key.identifier)

    def _all_units(self) -> Iterator[Unit]:
        """The devices that have names."""
        return (unit for units in self._units.values() for unit in units.values())

    def _holdings_of(self, instance_uuid: str) -> tuple[Holding, ...]:
        """The holdings of an instance, one for each of its claims."""
        holding = self._holdings.get(instance_uuid)
        return () if holding is None else (holding, *self._beside.get(instance_uuid, ()))

    def _all_holdings(self) -> Iterator[Holding]:
        yield from self._holdings.values()
        for beside in self._beside.values():
            yield from beside

    def held(self, instance_uuid: str | None = None) -> list[HeldDevice]:
        """The devices that an instance holds in any role; without an instance, those of all instances."""
        holdings = self._all_holdings() if instance_uuid is None else self._holdings_of(instance_uuid)
        unnamed = self._unnamed
        return [HeldDevice((pool := unit.pool).kind, None if unit.identifier in unnamed else unit.identifier,
                           holding.instance_uuid, pool.provider_uuid or None, pool.resource_class, pool.parent_name,
                           unit.state == RELEASING)
                for holding in holdings for unit in holding.units]

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
        """Return rows with the provider and class that count their devices now. A row names those of its claim."""
        return [record if (unit := self._find(record.key)) is None else record._replace(
            provider_uuid=unit.pool.provider_uuid or record.provider_uuid, resource_class=unit.pool.resource_class)
            for record in records]

    def parents(self) -> list[tuple[str, str]]:
        """Kind and name of every parent since the start."""
        return self._pools.parents()

    def pools(self) -> list[PoolState]:
        """Every pool, in the order of names."""
        return [PoolState(pool.kind, pool.provider_uuid, pool.resource_class, pool.parent_name, pool.numa_node,
                          pool.details, pool.total, pool.makes(), pool.room(), pool.free_count, pool.held_count,
                          pool.releasing_count, self._why_none_made(pool.parent))
                for pool in sorted(self._pools, key=lambda pool: pool.index)]

    def _why_none_made(self, parent: Parent) -> str | None:
        return self._exclusion.why(parent.maker) if parent.maker is not None and parent.maker.withheld else None

    # -- from one state to another ------------------------------------------------------------------------------------

    def _take_from(self, pool: Pool) -> Unit:
        """Take the device that has been free for the longest time, or one that will be made. The pool has room."""
        while (unit := pool.free.take_first()) is not None:
            unit.queued = False
            if unit.state == FREE and not unit.withheld:        # else it was withheld or removed while in line
                pool.free_count -= 1
                break
        else:
            return self._make(pool)
        unit.state = HELD
        pool.held_count += 1
        return unit

    def _make(self, pool: Pool) -> Unit:
        """Take a device that will be made.

        :raises Inconsistent: this pool can make no device, or no more
        """
        if not pool.makes() or pool.parent.closed or pool.parent.is_excluded:
            raise Inconsistent(pool.kind, pool.parent_name, pool.free_count)
        # No device of any kind has such a name.
        unit = Unit(pool, f'(unnamed {next(self._numbers)})', pool.details)
        self._unnamed[unit.identifier] = unit
        if pool.parent.maker is not None:
            self._reconsider(self._exclusion.join(unit, pool.parent.maker.exclusions))
        unit.unborn = True
        pool.parent.pending += 1
        pool.total += 1
        unit.state = HELD
        pool.held_count += 1
        return unit

    def _put_back(self, units: Sequence[Unit]) -> None:
        for unit in reversed(units):
            if unit.unborn:
                self._unmake(unit)
            else:
                self._set_free(unit, first=True)

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
                unit.withheld |= UNPROVEN
            self._set_free(unit)

    def _leave(self, unit: Unit) -> None:
        """Remove a unit from its holding, and the holding from the ledger if it is empty then."""
        holding, unit.holding = unit.holding, None
        if holding is not None:
            holding.units = tuple(other for other in holding.units if other is not unit)
            if holding.asked is not None:
                holding.asked.pop(unit, None)
            if not holding.units:
                self._forget(holding)

    def _forget(self, holding: Holding) -> None:
        """Remove a holding from the ledger. Another holding of the instance takes its place."""
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
        self._enter(unit, first)

    def _enter(self, unit: Unit, first: bool = False) -> None:
        """Let claims take a unit that is new or has just become free, unless it is withheld."""
        if not unit.exclusions:
            self._enqueue(unit, first)
            return
        if self._exclusion.is_excluded(unit):
            unit.withheld |= EXCLUDED
        self._enqueue(unit, first)
        self._exclude(unit)

    @staticmethod
    def _enqueue(unit: Unit, first: bool = False) -> None:
        """Let claims take a free unit, unless it is withheld."""
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
        """Forget a unit, held or free, that does not exist on the host any more, or not yet."""
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
        unit.state, unit.holding, unit.withheld = FREE, None, frozenset((GONE,))
        if self._units.get(pool.kind, {}).get(unit.identifier) is unit:
            del self._units[pool.kind][unit.identifier]
        self._unnamed.pop(unit.identifier, None)
        if unit.exclusions:
            self._reconsider(self._exclusion.join(unit, ()))
        self._pools.siblings_grew(pool)

    def _pool(self, kind: str, provider_uuid: str, resource_class: str, parent: str | None,
              numa_node: int | None, features: Features = NO_FEATURES) -> tuple[Pool, bool]:
        pool, new = self._pools.get(kind, provider_uuid, resource_class, parent, numa_node, features)
        if new:
            pool.parent.closed = self._standing.parents.get((kind, parent), NO_REASON)
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

    # -- what changes while the host is read --------------------------------------------------------------------------

    def watch(self) -> int:
        """Note from now on which devices are made or given back, until :meth:`unwatch`.

        It takes time to read the host. If a device is made or given back meanwhile, the host's report may be from
        before or after that. For such a device the ledger is right.

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

    # -- withheld devices ---------------------------------------------------------------------------------------------

    def withhold(self, key: DeviceKey, reason: str) -> None:
        """Withhold a device for this reason too. Its owner keeps it."""
        unit = self._find(key)
        if unit is not None:
            self._withhold(unit, unit.withheld | {reason})

    def withhold_free(self, keys: Iterable[DeviceKey], reason: str) -> None:
        """Withhold those devices that nobody holds."""
        for key in keys:
            unit = self._find(key)
            if unit is not None and unit.state == FREE and reason not in unit.withheld:
                self._withhold(unit, unit.withheld | {reason})

    def doubt_all_free(self) -> None:
        """Withhold every device that nobody holds, since nobody knows who uses it."""
        self.withhold_free([unit.key for unit in self._all_units()], vocabulary.IN_DOUBT)

    def admit(self, key: DeviceKey, reason: str) -> None:
        """End what :meth:`withhold` began for this reason. A standing reason stays, and so do other reasons."""
        unit = self._find(key)
        if unit is not None and not self._stands(unit, reason):
            self._withhold(unit, unit.withheld - {reason})

    def unproven(self) -> list[DeviceState]:
        """The free devices that are withheld because nothing proves them clean, and for no other reason."""
        return [self._state_of(unit) for unit in self._withheld_units()
                if unit.withheld == UNPROVEN or unit.withheld == _BEING_WIPED]

    def begin_wipe(self, key: DeviceKey) -> str | None:
        """Keep others from the devices that may not be held beside a free one, until :meth:`end_wipe`.

        :returns: why it may not be wiped; None if it may
        """
        unit = self._find(key)
        if unit is None:
            return 'the host does not have it'
        if unit.state != FREE:
            return 'somebody has it' if unit.holding is None else f'instance {unit.holding.instance_uuid} has it'
        if vocabulary.EXCLUDED in unit.withheld:
            return f'{self._exclusion.why(unit)}, and work on this device may affect that one'
        self._withhold(unit, unit.withheld | {BEING_WIPED})
        return None

    def end_wipe(self, key: DeviceKey) -> None:
        """End what :meth:`begin_wipe` began."""
        unit = self._find(key)
        if unit is not None:
            self._withhold(unit, unit.withheld - {BEING_WIPED})

    def proven(self, keys: Iterable[DeviceKey]) -> None:
        """Note that devices that nobody holds were proven clean. Other reasons stay."""
        for key in keys:
            unit = self._find(key)
            if unit is not None and unit.state == FREE:
                self._touch(unit)
                unit.unproven = False
                self._withhold(unit, unit.withheld - UNPROVEN)

    def withheld(self, reason: str) -> list[DeviceKey]:
        """The devices that are withheld for a reason, without those for which the reason stands."""
        return [unit.key for unit in self._withheld_units()
                if reason in unit.withheld and not self._stands(unit, reason)]

    def _withheld_units(self) -> list[Unit]:
        return [unit for units in self._units.values() for unit in units.values() if unit.withheld]

    def reasons(self) -> dict[DeviceKey, frozenset[str]]:
        """The reasons of every device that has any."""
        return {unit.key: unit.withheld for unit in self._withheld_units()}

    def stand(self, key: DeviceKey, reason: str, why: str = '') -> None:
        """Withhold a device until :meth:`stand_down`, also while it is not there.

        :param why: why it could not be made ready, for people, if that is the reason
        """
        self._standing.add(Target.of(key), reason, why)
        self.withhold(key, reason)

    def stand_down(self, key: DeviceKey, reason: str) -> None:
        """End what :meth:`stand` began. A device of a cordoned parent stays withheld."""
        self._standing.discard(Target.of(key), reason)
        self.admit(key, reason)

    def close_parent(self, kind: str, parent: str, reason: str, why: str = '') -> None:
        """Let a parent make no more devices until :meth:`reopen_parent`, even if it is away.

        Only a cordon withholds those that it has, too.

        :param why: as for :meth:`stand`
        """
        self._standing.add(Target.named(kind, parent, parent=True), reason, why)
        self._of_parent(kind, parent)

    def reopen_parent(self, kind: str, parent: str, reason: str) -> None:
        """End what :meth:`close_parent` began. Devices that are withheld themselves stay so."""
        self._standing.discard(Target.named(kind, parent, parent=True), reason)
        self._of_parent(kind, parent)

    def _of_parent(self, kind: str, name: str) -> None:
        parent = self._pools.parent(kind, name)
        if parent is None:
            return
        parent.closed = self._standing.parents.get((kind, name), NO_REASON)
        for unit in (*self._units.get(kind, {}).values(), *self._unnamed.values()):
            if unit.pool.parent is parent:
                self._withhold(unit, unit.withheld - {vocabulary.CORDONED} | self._standing.of(unit.key, name))
        for pool in self._pools.of_parent(parent):
            pool.grew()

    def _stands(self, unit: Unit, reason: str) -> bool:
        return bool(self._standing) and reason in self._standing.of(unit.key, unit.pool.parent_name)

    def _withhold(self, unit: Unit, reasons: frozenset[str]) -> None:
        """Set the reasons of a unit. Only this class adds or removes the reason ``excluded``."""
        if not unit.exclusions:
            self._set_reasons(unit, reasons)
            return
        self._set_reasons(unit, reasons - EXCLUDED | unit.withheld & EXCLUDED)
        self._exclude(unit)

    def _set_reasons(self, unit: Unit, reasons: frozenset[str]) -> None:
        before, unit.withheld = unit.withheld, reasons or NO_REASON
        if unit.state == FREE:
            if reasons and not before:
                unit.pool.free_count -= 1
            elif before and not reasons:
                self._enqueue(unit)

    # -- devices that exclude one another -----------------------------------------------------------------------------

    def _exclude(self, unit: Unit) -> None:
        """Set or clear the reason ``excluded`` of a unit, and of the units that it excludes now or no longer excludes.

        Call it after a change of the state or the reasons of a unit with exclusions.
        """
        touched = self._exclusion.note(unit)
        if touched and is_taken(unit):
            # All of them are excluded now, so there is nothing to look up; a card has many functions.
            for other in touched:
                if other.state == FREE and other is not unit:
                    if other.withheld:
                        other.withheld |= EXCLUDED
                    else:
                        other.withheld = EXCLUDED
                        other.pool.free_count -= 1
        else:
            self._reconsider(touched)
        self._reconsider((unit,))

    def read_containment(self, found: Containment) -> None:
        """Note what contains what, of everything that the last inventory did not show as a device."""
        self._recorded = found.recorded
        for key in found.recorded:
            unit = self._find(key)
            if unit is not None and (unit.unborn or GONE in unit.withheld):
                self._set_exclusions(unit, self._of_absent(key, unit.pool.parent))
        for kind, name in self._pools.parents():
            parent, exclusions = self._pools.parent(kind, name), found.made.get((kind, name), ())
            if parent is not None and (exclusions or parent.maker is not None):
                if parent.maker is None:
                    parent.maker = Unit(_Makers(kind, parent, self._pools), '', '')
                if parent.maker.exclusions != exclusions:
                    self._set_exclusions(parent.maker, exclusions)
        for address in self._strangers.keys() - found.strangers.keys():
            self._reconsider(self._exclusion.join(self._strangers.pop(address), ()))
        for address, exclusions in found.strangers.items():
            unit = self._strangers.get(address)
            if unit is None:
                unit = self._strangers[address] = Unit(_NOWHERE, address, '')
                unit.withheld = _STRANGE
            if unit.exclusions != exclusions:
                self._set_exclusions(unit, exclusions)

    def _of_absent(self, key: DeviceKey, parent: Parent) -> Exclusions:
        """The exclusions of a device that only a row names: it is a part of its parent, if the parent is a whole."""
        made = () if parent.maker is None else parent.maker.exclusions
        return *of_row(key.kind, parent.name), *self._recorded.get(key, made)

    def owners_of_parts(self, key: DeviceKey) -> str | None:
        """Name the owners of parts of a device, or of it by another name; None if there are none.

        Work on a device reaches its parts. Parts on their way back do not count, or two would wait for one another.
        """
        unit = self._find(key)
        return None if unit is None else self._exclusion.why(unit, (HELD,), (vocabulary.WHOLE,)) or None

    def owners_around(self, key: DeviceKey) -> str | None:
        """Name whoever has a part of a device, or what contains it, or gives that back; None if nobody does."""
        unit = self._find(key)
        return None if unit is None else self._exclusion.why(
            unit, (HELD, RELEASING), (vocabulary.WHOLE, vocabulary.PART)) or None

    def _set_exclusions(self, unit: Unit, exclusions: tuple[tuple[str, str], ...]) -> None:
        """Set the exclusions of a known unit."""
        self._reconsider(self._exclusion.join(unit, exclusions))
        self._exclude(unit)

    def _reconsider(self, units: Iterable[Unit]) -> None:
        """Withhold units that are excluded now, and admit those that no longer are.

        A held unit is never withheld for this reason, whatever rows say: its owner keeps it.
        """
        for unit in units:
            excluded = unit.state == FREE and self._exclusion.is_excluded(unit)
            if excluded != (vocabulary.EXCLUDED in unit.withheld):
                self._set_reasons(unit, unit.withheld ^ EXCLUDED)

    def excluded(self) -> dict[DeviceKey, str]:
        """For each excluded device, the owners and devices that exclude it, for people."""
        return {unit.key: self._exclusion.why(unit) for unit in self._all_units()
                if vocabulary.EXCLUDED in unit.withheld}

    def why_excluded(self, key: DeviceKey) -> str | None:
        """As :meth:`excluded`, for one device; None if it is not excluded."""
        unit = self._find(key)
        return self._exclusion.why(unit) if unit is not None and vocabulary.EXCLUDED in unit.withheld else None
