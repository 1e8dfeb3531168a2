"""The one reference to the present snapshot of a host, and everything that replaces it.

The ledger decides and remembers. It does no I/O and has no lock of its own: its owner calls it under a lock, and each
call takes microseconds. It knows identities and owners, not the rows: only the store is durable. Calls take and return
keys and frozen values.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import allocator
from devicetrack.engine import intake
from devicetrack.engine.allocator import Accepts
from devicetrack.engine.allocator import Chosen
from devicetrack.engine.demand import Demand
from devicetrack.engine.exclusion import BEING_WIPED
from devicetrack.engine.exclusion import EXCLUDED
from devicetrack.engine.explanation import Shortage
from devicetrack.engine.intake import UNPROVEN
from devicetrack.engine.selection import FREE
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import RELEASING
from devicetrack.engine.snapshot import Claimed
from devicetrack.engine.snapshot import Device
from devicetrack.engine.snapshot import GONE
from devicetrack.engine.snapshot import Place
from devicetrack.engine.snapshot import Pool
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.states import Available
from devicetrack.engine.states import DeviceState
from devicetrack.engine.states import HeldDevice
from devicetrack.engine.states import Hold
from devicetrack.engine.states import PoolState
from devicetrack.engine.withholding import NO_REASON
from devicetrack.engine.withholding import Standing
from devicetrack.engine.withholding import Target
from devicetrack.objects import details as stored_details
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import Containment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record

_NO_NODES: Final[frozenset[int | None]] = frozenset()


class Ledger:
    """The free and held devices of one host: ``now`` is the present snapshot, and each change assigns the next one.

    A call that makes several changes assigns several snapshots. Whoever wants all or nothing lets a second ledger of
    the same snapshot make them, and takes over what that one has in the end.

    :param policy: ``pack`` or ``spread``
    :param provider_uuid_of: the UUID of the provider with this stable name ('' is the node)
    :param now: the snapshot to begin with, an empty one by default
    """

    __slots__ = ('now', '_provider_uuid_of')

    def __init__(self, policy: str, provider_uuid_of: Callable[[str], str], now: Snapshot | None = None) -> None:
        self.now = Snapshot(policy, 1) if now is None else now
        self._provider_uuid_of = provider_uuid_of

    # -- taking -------------------------------------------------------------------------------------------------------

    def take(self, instance_uuid: str, demand: Demand, beside: bool = False) -> Hold:
        """Hold devices for the whole demand, or nothing.

        :param beside: besides what the instance holds already, for an instance that moves
        :raises InstanceHasClaim: the instance holds devices already, and not all of them are on their way back
        :raises NoFit: with what is short
        """
        there = self.now.holdings(instance_uuid)
        if not beside and any(device.state != RELEASING for device in there):
            raise exception.InstanceHasClaim(instance_uuid, [
                device.key for device in there if device.owner is not None and there[0].owner is not None
                and device.owner.number == there[0].owner.number])
        chosen = allocator.choose(self.now, instance_uuid, demand)
        if isinstance(chosen, list):
            raise exception.NoFit(chosen)
        return self._hold_of(instance_uuid, chosen)

    def _hold_of(self, instance_uuid: str, chosen: Chosen) -> Hold:
        self.now = chosen.after
        return _hold(instance_uuid, chosen.devices)

    def exchange(self, key: DeviceKey, accepts: Accepts | None = None, numa_nodes: frozenset[int | None] = _NO_NODES,
                 numa_policy: str = vocabulary.REQUIRED, parent_gone: bool = False) -> Hold | None:
        """Hold another device to replace one that could not be made ready: as :func:`.allocator.exchange`."""
        return self._exchanged(key, allocator.exchange(self.now, key, accepts, numa_nodes, numa_policy, parent_gone))

    def exchange_elsewhere(self, key: DeviceKey, accepts: Accepts | None = None,
                           parent_gone: bool = False) -> Hold | None:
        """As :meth:`exchange`, and by another parent if possible."""
        return self._exchanged(key, allocator.exchange_elsewhere(self.now, key, accepts, parent_gone))

    def _exchanged(self, key: DeviceKey, chosen: Chosen | None) -> Hold | None:
        return None if chosen is None else self._hold_of(str(self.now.devices[key].instance_uuid), chosen)

    def narrow(self, accepts: Mapping[DeviceKey, Accepts | None], numa_nodes: frozenset[int | None],
               numa_policy: str | None) -> list[tuple[DeviceKey, Hold]]:
        """Hold devices near NUMA nodes, to replace the devices of a claim that are far: as :func:`.allocator.narrow`.

        :returns: the exchanged devices, each with the hold of its replacement
        :raises NoFit: a device that the policy does not allow has no near one; nothing was exchanged
        """
        self.now, exchanged = allocator.narrow(self.now, accepts, numa_nodes, numa_policy)
        return [(key, _hold(str(device.instance_uuid), (device,))) for key, device in exchanged]

    def name(self, hold: Hold, candidates: Sequence[Candidate]) -> Hold:
        """Give the devices of a hold that will be made their identifiers, which the driver chose.

        :param candidates: those of ``hold``, each with its identifier
        :returns: the same hold with the new names
        """
        named = list(zip(hold.keys, candidates, strict=True))
        keys = {}
        changes: dict[DeviceKey, Device | None] = {}
        for key, candidate in named:
            device = self.now.devices.get(key)
            if device is not None and not device.is_named and candidate.identifier is not None:
                keys[key] = new = DeviceKey(candidate.kind, candidate.identifier)
                changes[key] = None
                changes[new] = device._replace(key=new, details=candidate.details, is_named=True)
        if keys:
            ours = [keys.get(key, key) for key in self.now.instances.get(hold.instance_uuid, ())]
            self.now = self.now.with_devices(changes).of_instances({hold.instance_uuid: ours})
        return Hold(hold.instance_uuid, tuple(DeviceKey(one.kind, one.identifier or key.identifier)
                                              for key, one in named), tuple(candidates))

    def put_back(self, hold: Hold) -> None:
        """Undo a take whose devices were certainly not recorded: they are free again, first in their lines."""
        keys = self._held_of(hold.instance_uuid, hold.keys)
        number, changes = self.now.number, dict[DeviceKey, Device | None]()
        for one in reversed([key for key in self.now.instances.get(hold.instance_uuid, ()) if key in keys]):
            device = self.now.devices[one]
            changes[one] = None if device.is_unborn else device._replace(
                owner=None, is_releasing=False, since=-number)
            number += 1
        self._freed(changes, number)

    def available(self, resource_class: str, provider_uuid: str | None, demand: Demand) -> list[Available]:
        """The devices that an item of a demand could get."""
        return allocator.available(self.now, resource_class, provider_uuid, demand)

    def shortages(self, demand: Demand, everything: bool = False) -> list[Shortage]:
        """The parts of a demand that do not fit, or with ``everything`` all parts."""
        return allocator.shortages(self.now, demand, everything)

    def shows_room(self, key: DeviceKey) -> bool:
        """Whether by the last report a held device is there, or its parent can make it."""
        device = self.now.devices.get(key)
        if device is None:
            return False
        if not device.is_unborn:
            return GONE not in device.reasons
        return self.now.pools[device.place].available >= self.now.pending.get((key.kind, device.place.parent), 0)

    # -- giving -------------------------------------------------------------------------------------------------------

    def releasing(self, keys: Iterable[DeviceKey]) -> None:
        """Note that held devices are on their way back: they are being wiped or removed."""
        self.now = self.now.with_devices({device.key: device._replace(is_releasing=True)
                                          for device in self._known(keys) if device.state == HELD})

    def releasing_of(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> None:
        """As :meth:`releasing`, for those of the devices that are still held for this instance."""
        self.releasing(self._held_of(instance_uuid, keys))

    def free(self, keys: Iterable[DeviceKey], removed: Collection[DeviceKey] = ()) -> None:
        """Free held devices. They have no row and no user any more, and the driver proved that they are clean or gone.

        :param removed: those that were removed from the host
        """
        self._free([device._replace(is_unproven=False) for device in self._known(keys)], removed)

    def free_of(self, instance_uuid: str, keys: Iterable[DeviceKey], removed: Collection[DeviceKey] = ()) -> None:
        """Free those of the devices that are still held for this instance.

        Between the end of the last row and this call, a look at the rows may have freed one, and a claim may have taken
        it.
        """
        self.free(self._held_of(instance_uuid, keys), removed)

    def let_go_of(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> None:
        """Note that devices held for this instance have no row any more, though nobody took them back from a guest."""
        self._free(self._known(self._held_of(instance_uuid, keys)))

    def _free(self, devices: Iterable[Device], removed: Collection[DeviceKey] = ()) -> None:
        number, changes = self.now.number, dict[DeviceKey, Device | None]()
        left: dict[DeviceKey, tuple[int, Place] | None] = {}
        pools: dict[Place, Pool] = {}
        for device in devices:
            key, place = device.key, device.place
            if device.owner is None:
                changes[key] = device
            elif device.is_unborn or key in removed or GONE in device.reasons:
                if not device.is_unborn and GONE not in device.reasons:
                    pool = pools.get(place, self.now.pools[place])
                    pools[place] = pool._replace(available=pool.available + 1)      # until the parent is read again
                changes[key], left[key] = None, (number, place)
            else:
                changes[key] = device._replace(
                    owner=None, is_releasing=False, since=number, changed=number,
                    reasons=device.reasons | UNPROVEN if device.is_unproven else device.reasons)
            number += 1
        if pools or left:
            self.now = self.now._replace(pools={**self.now.pools, **pools}, left=self.now.left.changed(left))
        self._freed(changes, number)

    def _freed(self, changes: Mapping[DeviceKey, Device | None], number: int) -> None:
        """Take over devices that instances have no longer."""
        rest = dict[str, list[DeviceKey]]()
        for key in changes:
            uuid = self.now.devices[key].instance_uuid
            if uuid is not None:
                rest.setdefault(uuid, list(self.now.instances[uuid])).remove(key)
        self.now = self.now.with_devices(changes, number).of_instances(rest)

    def _known(self, keys: Iterable[DeviceKey]) -> list[Device]:
        return [device for key in keys if (device := self.now.devices.get(key)) is not None]

    def _held_of(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> list[DeviceKey]:
        ours = self.now.instances.get(instance_uuid, ())
        return [key for key in keys if key in ours]

    # -- what rows say ------------------------------------------------------------------------------------------------

    def hold(self, records: Sequence[Record]) -> None:
        """Hold the devices of one instance's rows, also those that the host does not have."""
        self.hold_all((records,))

    def hold_all(self, instances: Iterable[Sequence[Record]]) -> None:
        """As :meth:`hold`, for many instances."""
        now, changes = self.now, dict[DeviceKey, Device | None]()
        owned: dict[str, dict[DeviceKey, None]] = {}
        number = now.number
        for records in instances:
            uuid = records[0].instance_uuid
            ours = owned.setdefault(uuid, dict.fromkeys(now.instances.get(uuid, ())))
            owner: Claimed | None = None
            for key in (*list(ours)[:1], *(record.key for record in records)):
                device = changes.get(key) or now.devices.get(key)
                if device is not None and device.instance_uuid == uuid and device.owner is not None:
                    owner = device.owner._replace(choices=(), numa_policy=None)
                    break
            for record in records:
                key = record.key
                device = changes.get(key) or now.devices.get(key)
                if device is None:
                    now, device = self._of_row(now, record)
                before = device.instance_uuid
                ours[key] = None
                if before != uuid:
                    if before is not None:      # the claim that took it just now learns of the owner from the store
                        del owned.setdefault(before, dict.fromkeys(now.instances.get(before, ())))[key]
                    owner = owner or Claimed(uuid, number, True)
                    # It may be the earlier owner that gives it back.
                    changes[key] = device = device._replace(owner=owner, is_releasing=False)
                if device.reasons:
                    # The release of the device proves it clean. Until then its owner may write to it.
                    over = {vocabulary.UNPROVEN}
                    if vocabulary.NOT_ADOPTED in device.reasons and stored_details.is_made(record.details):
                        over.add(vocabulary.NOT_ADOPTED)
                    changes[key] = device._replace(reasons=(device.reasons - over) or NO_REASON)
            number += 1
        now = now.with_devices(changes, number)
        self.now = now.of_instances(owned)

    @staticmethod
    def _of_row(now: Snapshot, record: Record) -> tuple[Snapshot, Device]:
        """A device that the host does not have: it will be made (again), or it is gone."""
        place = Place(record.kind, record.provider_uuid, record.resource_class, record.parent, record.numa_node)
        now = now.with_pools((place,))
        reasons = set(now.standing.of(record.key, record.parent))
        if not record.provider_uuid:
            reasons.add(vocabulary.NO_PROVIDER)
        unborn = now.pools[place].is_creatable
        if not unborn:
            reasons.add(GONE)
        return now, Device(record.key, place, record.details, reasons=frozenset(reasons) or NO_REASON,
                           exclusions=now.absent(record.key, record.parent), is_unborn=unborn)

    def not_held(self, records: Sequence[Record]) -> list[Record]:
        """The rows whose devices are not held for the rows' instances."""
        devices = self.now.devices
        of_devices = Compact(Record, records).columns('kind', 'identifier', 'instance_uuid')
        return [records[number] for number, (kind, identifier, instance_uuid) in enumerate(of_devices)
                if (device := devices.get((kind, identifier))) is None          # type: ignore[call-overload]
                or device.owner is None or device.owner.instance_uuid != instance_uuid]

    def without_row(self, records: Collection[Record], all_held: bool) -> list[str]:
        """The instances for which the ledger holds a device because of a row that no longer exists.

        :param records: every row of the host
        :param all_held: whether the device of each row is held
        """
        if all_held and sum(map(len, self.now.instances.values())) == len(records):
            return []                           # one device is held for each row, and nothing else
        recorded = {(record.instance_uuid, record.key) for record in records}
        return sorted({device.owner.instance_uuid for device in self.now.devices.each()
                       if device.owner is not None and device.owner.from_rows
                       and (device.owner.instance_uuid, device.key) not in recorded})

    def free_without_row(self, instance_uuid: str, keep: Collection[DeviceKey]) -> None:
        """Free the devices held for an instance because of rows that are gone, but not those that its claim just took.

        :param keep: the devices of its rows, and those in doubt
        """
        self._free([device for device in self.now.holdings(instance_uuid)
                    if device.owner is not None and device.owner.from_rows and device.key not in keep])

    def trust_rows(self, keys: Iterable[DeviceKey]) -> None:
        """Let only rows decide from now on whether these devices stay held: the claim that took them is over."""
        owners = {device.owner for device in self._known(keys) if device.owner is not None}
        self.now = self.now.with_devices({
            device.key: device._replace(owner=device.owner._replace(from_rows=True))
            for owner in owners for device in self.now.of_claim(owner) if device.owner is not None})

    def counted_now(self, records: Iterable[Record]) -> list[Record]:
        """Return rows with the provider and class that count their devices now. A row names those of its claim."""
        return [record if (device := self.now.devices.get(record.key)) is None else record._replace(
            provider_uuid=device.place.provider_uuid or record.provider_uuid,
            resource_class=device.place.resource_class) for record in records]

    # -- what the host says -------------------------------------------------------------------------------------------

    def realized(self, key: DeviceKey, details: str, capacities: Sequence[Capacity] = (),
                 before: Snapshot | None = None) -> None:
        """Note that a device exists now, with these details. Until its parent is read again, it counts for every type.

        ``capacities`` are those that the parent reported when the device was made, since ``before`` was the snapshot.
        They count only if nothing else was made or removed there meanwhile. Otherwise nobody knows which changes they
        include.
        """
        self.now = intake.realized(self.now, key, details)
        if before is not None and capacities and intake.is_alone(self.now, key, before):
            self.read_capacities(capacities)

    def used(self, keys: Iterable[DeviceKey]) -> None:
        """Note that guests may write to these devices, though nobody made them real here."""
        number = self.now.number
        self.now = self.now._replace(number=number + 1).with_devices({
            device.key: device._replace(changed=number, is_unproven=device.key.kind in self.now.keeping)
            for device in self._known(keys)})

    def read_capacities(self, capacities: Iterable[Capacity]) -> None:
        """As :func:`.intake.read_capacities`."""
        self.now = intake.read_capacities(self.now, capacities, self._provider_uuid_of)

    def read_parents(self, inventory: Inventory, before: Snapshot) -> None:
        """As :func:`.intake.read_parents`."""
        self.now = intake.read_parents(self.now, inventory, before, self._provider_uuid_of)

    def read_inventory(self, inventory: Inventory, before: Snapshot | None = None,
                       recorded: Mapping[Any, Claimed] | None = None) -> None:
        """As :func:`.intake.read_inventory`."""
        self.now = intake.read_inventory(self.now, inventory, self._provider_uuid_of, before, recorded or {})

    def read_containment(self, found: Containment) -> None:
        """As :func:`.intake.read_containment`."""
        self.now = intake.read_containment(self.now, found)

    # -- withheld devices ---------------------------------------------------------------------------------------------

    def _withhold(self, devices: Iterable[Device], more: Collection[str] = (), over: Collection[str] = ()) -> None:
        """Set reasons of devices and end others. That a device is excluded follows from what others have."""
        more, over = NO_REASON.union(more) - EXCLUDED, NO_REASON.union(over)
        changes: dict[DeviceKey, Device | None] = {}
        for device in devices:
            reasons = device.reasons - over | more
            if reasons != device.reasons:
                changes[device.key] = device._replace(reasons=reasons or NO_REASON)
        if changes:
            self.now = self.now.with_devices(changes)

    def withhold(self, key: DeviceKey, reason: str) -> None:
        """Withhold a device for this reason too. Its owner keeps it."""
        self._withhold(self._known((key,)), (reason,))

    def withhold_free(self, keys: Iterable[DeviceKey], reason: str) -> None:
        """Withhold those devices that nobody holds."""
        self._withhold([device for device in self._known(keys) if device.owner is None], (reason,))

    def doubt_all_free(self) -> None:
        """Withhold every device that nobody holds, since nobody knows who uses it."""
        self._withhold([device for device in self.now.devices.each() if device.owner is None], (vocabulary.IN_DOUBT,))

    def admit(self, key: DeviceKey, reason: str) -> None:
        """End what :meth:`withhold` began for this reason. A standing reason stays, and so do other reasons."""
        self._withhold([device for device in self._known((key,)) if not self.now.stands(device, reason)],
                       over=(reason,))

    def unproven(self) -> list[DeviceState]:
        """The free devices that are withheld because nothing proves them clean, and for no other reason."""
        return [self.now.state_of(device) for device in self.now.withheld_devices()
                if self.now.withheld(device) - {BEING_WIPED} == UNPROVEN]

    def begin_wipe(self, key: DeviceKey) -> str | None:
        """Keep others from the devices that may not be held beside a free one, until :meth:`end_wipe`.

        :returns: why it may not be wiped; None if it may
        """
        device = self.now.devices.get(key)
        if device is None:
            return 'the host does not have it'
        if device.owner is not None:
            return f'instance {device.instance_uuid} has it'
        if self.now.is_excluded(device):
            return f'{self.now.why_excluded(device.exclusions, key)}, and work on this device may affect that one'
        self.withhold(key, BEING_WIPED)
        return None

    def end_wipe(self, key: DeviceKey) -> None:
        """End what :meth:`begin_wipe` began."""
        self._withhold(self._known((key,)), over=(BEING_WIPED,))

    def proven(self, keys: Iterable[DeviceKey]) -> None:
        """Note that devices that nobody holds were proven clean. Other reasons stay."""
        number = self.now.number
        self.now = self.now._replace(number=number + 1).with_devices({
            device.key: device._replace(changed=number, is_unproven=False,
                                        reasons=(device.reasons - UNPROVEN) or NO_REASON)
            for device in self._known(keys) if device.owner is None})

    def withheld(self, reason: str) -> list[DeviceKey]:
        """The devices that are withheld for a reason, without those for which the reason stands."""
        return [device.key for device in self.now.withheld_devices()
                if reason in self.now.withheld(device) and not self.now.stands(device, reason)]

    def reasons(self) -> dict[DeviceKey, frozenset[str]]:
        """The reasons of every device that has any."""
        return {device.key: self.now.withheld(device) for device in self.now.withheld_devices()}

    def stand(self, key: DeviceKey, reason: str, why: str = '') -> None:
        """Withhold a device until :meth:`stand_down`, also while it is not there.

        :param why: why it could not be made ready, for people, if that is the reason
        """
        self.now = self.now._replace(standing=self.now.standing.with_reason(Target.of(key), reason, why))
        self.withhold(key, reason)

    def stand_down(self, key: DeviceKey, reason: str) -> None:
        """End what :meth:`stand` began. A device of a cordoned parent stays withheld."""
        self.now = self.now._replace(standing=self.now.standing.without(Target.of(key), reason))
        self.admit(key, reason)

    def close_parent(self, kind: str, parent: str, reason: str, why: str = '') -> None:
        """Let a parent make no more devices until :meth:`reopen_parent`, even if it is away.

        Only a cordon withholds those that it has, too.

        :param why: as for :meth:`stand`
        """
        self._of_parent(kind, parent, self.now.standing.with_reason(
            Target.named(kind, parent, parent=True), reason, why))

    def reopen_parent(self, kind: str, parent: str, reason: str) -> None:
        """End what :meth:`close_parent` began. Devices that are withheld themselves stay so."""
        self._of_parent(kind, parent, self.now.standing.without(Target.named(kind, parent, parent=True), reason))

    def _of_parent(self, kind: str, parent: str, standing: Standing) -> None:
        after = self.now._replace(standing=standing)
        self.now = after.with_devices({device.key: device._replace(
            reasons=(device.reasons - {vocabulary.CORDONED} | standing.of(device.key, parent)) or NO_REASON)
            for device in after.devices.each() if (device.key.kind, device.place.parent) == (kind, parent)})

    # -- questions ----------------------------------------------------------------------------------------------------

    def held(self, instance_uuid: str | None = None) -> list[HeldDevice]:
        """The devices that an instance holds in any role; without an instance, those of all instances."""
        return self.now.held(instance_uuid)

    def device(self, key: DeviceKey) -> DeviceState | None:
        """One device, None when it is not known here."""
        device = self.now.devices.get(key)
        return None if device is None else self.now.state_of(device)

    def devices(self) -> list[DeviceState]:
        """Every device in the order of names, and then those that are claimed and not named yet."""
        return [self.now.state_of(device) for device in sorted(
            self.now.devices.each(), key=lambda device: (not device.is_named, device.key))]

    def counted_classes(self) -> frozenset[tuple[str, str]]:
        """Resource classes, each with the UUID of a provider that counts it."""
        return frozenset((place.resource_class, place.provider_uuid) for place in self.now.pools)

    def parents(self) -> list[tuple[str, str]]:
        """Kind and name of every parent since the start."""
        return sorted({(place.kind, place.parent) for place in self.now.pools if place.parent is not None})

    def pools(self) -> list[PoolState]:
        """Every pool, in the order of names."""
        return self.now.pool_states()

    def owners_of_parts(self, key: DeviceKey) -> str | None:
        """Name the owners of parts of a device, or of it by another name; None if there are none.

        Work on a device reaches its parts. Parts on their way back do not count, or two would wait for one another.
        """
        device = self.now.devices.get(key)
        return None if device is None else self.now.why_excluded(
            device.exclusions, key, (HELD,), (vocabulary.WHOLE,)) or None

    def is_work_around(self, key: DeviceKey) -> bool:
        """Whether somebody has a part of a device, or what contains it, gives that back or wipes it."""
        device = self.now.devices.get(key)
        return device is not None and any(
            other is not None
            and (BEING_WIPED in other.reasons or (mode != vocabulary.TOGETHER and other.state != FREE))
            for _name, mode, _key, other in self.now.excluding(device.exclusions, key))

    def excluded(self) -> dict[DeviceKey, str]:
        """For each excluded device, the owners and devices that exclude it, for people."""
        return {device.key: self.now.why_excluded(device.exclusions, device.key)
                for device in self.now.withheld_devices() if self.now.is_excluded(device)}

    def why_excluded(self, key: DeviceKey) -> str | None:
        """As :meth:`excluded`, for one device; None if it is not excluded."""
        device = self.now.devices.get(key)
        return self.now.why_excluded(device.exclusions, key) \
            if device is not None and self.now.is_excluded(device) else None


def _hold(instance_uuid: str, devices: Sequence[Device]) -> Hold:
    return Hold(instance_uuid, tuple([device.key for device in devices]),
                tuple([device.candidate for device in devices]))
