"""What changes the snapshot of a host: pure functions, each of which returns the successor, or that and an answer.

:mod:`.allocator` chooses devices, and :mod:`.intake` takes over what the host says. The functions know identities and
owners, not the rows: only the store is durable. :mod:`devicetrack.claims.locked_ledger` has the reference to the
present snapshot.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import allocator
from devicetrack.engine import intake
from devicetrack.engine.allocator import Accepts
from devicetrack.engine.demand import Demand
from devicetrack.engine.exclusion import BEING_WIPED
from devicetrack.engine.exclusion import EXCLUDED
from devicetrack.engine.selection import HELD
from devicetrack.engine.selection import Place
from devicetrack.engine.selection import RELEASING
from devicetrack.engine.snapshot import Claimed
from devicetrack.engine.snapshot import Device
from devicetrack.engine.snapshot import GONE
from devicetrack.engine.snapshot import Pool
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.snapshot import UNPROVEN
from devicetrack.engine.states import Hold
from devicetrack.engine.withholding import NO_REASON
from devicetrack.engine.withholding import Standing
from devicetrack.engine.withholding import Target
from devicetrack.objects import details as stored_details
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

# -- taking -----------------------------------------------------------------------------------------------------------


def take(now: Snapshot, instance_uuid: str, demand: Demand, beside: bool = False) -> tuple[Snapshot, Hold]:
    """Hold devices for the whole demand, or nothing.

    :param beside: besides what the instance holds already, for an instance that moves
    :raises InstanceHasClaim: the instance holds devices already, and not all of them are being released
    :raises NoFit: with what is short
    """
    there = now.holdings(instance_uuid)
    if not beside and any(device.state != RELEASING for device in there):
        raise exception.InstanceHasClaim(instance_uuid, [
            device.key for device in there if device.owner is not None and there[0].owner is not None
            and device.owner.number == there[0].owner.number])
    chosen = allocator.choose(now, instance_uuid, demand)
    if isinstance(chosen, list):
        raise exception.NoFit(chosen)
    return chosen.after, hold_of(instance_uuid, chosen.devices)


def exchange_elsewhere(now: Snapshot, key: DeviceKey, accepts: Accepts | None = None,
                       parent_gone: bool = False) -> tuple[Snapshot, Hold | None]:
    """Hold another device to replace one that could not be made ready: as :func:`.allocator.exchange_elsewhere`."""
    chosen = allocator.exchange_elsewhere(now, key, accepts, parent_gone)
    return (now, None) if chosen is None else (
        chosen.after, hold_of(str(now.devices[key].instance_uuid), chosen.devices))


def narrow(now: Snapshot, accepts: Mapping[DeviceKey, Accepts | None], numa_nodes: frozenset[int | None],
           numa_policy: str | None) -> tuple[Snapshot, list[tuple[DeviceKey, Hold]]]:
    """Hold devices near NUMA nodes, to replace the devices of a claim that are far: as :func:`.allocator.narrow`.

    :returns: also the exchanged devices, each with the hold of its replacement
    :raises NoFit: a device that the policy does not allow has no near one; nothing was exchanged
    """
    after, exchanged = allocator.narrow(now, accepts, numa_nodes, numa_policy)
    return after, [(key, hold_of(str(device.instance_uuid), (device,))) for key, device in exchanged]


def hold_of(instance_uuid: str, devices: Sequence[Device]) -> Hold:
    return Hold(instance_uuid, tuple([device.key for device in devices]),
                tuple([device.candidate for device in devices]))


def name(now: Snapshot, hold: Hold, candidates: Sequence[Candidate]) -> tuple[Snapshot, Hold]:
    """Give the devices of a hold that will be made their identifiers, which the driver chose.

    :param candidates: those of ``hold``, each with its identifier
    :returns: also the same hold with the new names
    """
    named = list(zip(hold.keys, candidates, strict=True))
    keys = {}
    changes: dict[DeviceKey, Device | None] = {}
    for key, candidate in named:
        device = now.devices.get(key)
        if device is not None and not device.is_named and candidate.identifier is not None:
            keys[key] = new = DeviceKey(candidate.kind, candidate.identifier)
            changes[key] = None
            changes[new] = device._replace(key=new, details=candidate.details, is_named=True)
    if keys:
        ours = [keys.get(key, key) for key in now.instances.get(hold.instance_uuid, ())]
        now = now.with_devices(changes).of_instances({hold.instance_uuid: ours})
    return now, Hold(hold.instance_uuid, tuple(DeviceKey(one.kind, one.identifier or key.identifier)
                                               for key, one in named), tuple(candidates))


def put_back(now: Snapshot, hold: Hold) -> Snapshot:
    """Undo a take whose devices were certainly not recorded: they are free again, first in their lines."""
    keys = _held_of(now, hold.instance_uuid, hold.keys)
    number, changes = now.number, dict[DeviceKey, Device | None]()
    for one in reversed([key for key in now.instances.get(hold.instance_uuid, ()) if key in keys]):
        device = now.devices[one]
        changes[one] = None if device.is_unborn else device._replace(
            owner=None, is_releasing=False, since=-number)
        number += 1
    return _freed(now, changes, number)


# -- giving -----------------------------------------------------------------------------------------------------------


def releasing(now: Snapshot, keys: Iterable[DeviceKey]) -> Snapshot:
    """Note that held devices are being released: they are being wiped or removed."""
    return now.with_devices({device.key: device._replace(is_releasing=True)
                             for device in _known(now, keys) if device.state == HELD})


def releasing_of(now: Snapshot, instance_uuid: str, keys: Iterable[DeviceKey]) -> Snapshot:
    """As :func:`releasing`, for those of the devices that are still held for this instance."""
    return releasing(now, _held_of(now, instance_uuid, keys))


def free(now: Snapshot, keys: Iterable[DeviceKey], removed: Collection[DeviceKey] = ()) -> Snapshot:
    """Free held devices. They have no row and no user any more, and the driver proved that they are clean or gone.

    :param removed: those that were removed from the host
    """
    return _free(now, [device._replace(is_unproven=False) for device in _known(now, keys)], removed)


def free_of(now: Snapshot, instance_uuid: str, keys: Iterable[DeviceKey],
            removed: Collection[DeviceKey] = ()) -> Snapshot:
    """Free those of the devices that are still held for this instance.

    Between the end of the last row and this call, a look at the rows may have freed one, and a claim may have taken it.
    """
    return free(now, _held_of(now, instance_uuid, keys), removed)


def let_go_of(now: Snapshot, instance_uuid: str, keys: Iterable[DeviceKey]) -> Snapshot:
    """Note that devices held for this instance have no row any more, though nobody took them back from a guest."""
    return _free(now, _known(now, _held_of(now, instance_uuid, keys)))


def forget(now: Snapshot, key: DeviceKey) -> Snapshot:
    """Free a device that the host no longer has."""
    return free(withhold(now, key, GONE), (key,))


def retire(now: Snapshot, instance_uuid: str, key: DeviceKey, keeps_bytes: bool) -> Snapshot:
    """Take from its owner a device that the driver could not take back. An audit may have seen it clean before."""
    after = let_go_of(now, instance_uuid, (key,))
    return withhold(after, key, vocabulary.UNPROVEN) if keeps_bytes else after


def free_without_row(now: Snapshot, instance_uuid: str, keep: Collection[DeviceKey]) -> Snapshot:
    """Free the devices held for an instance because of rows that are gone, but not those that its claim just took.

    :param keep: the devices of its rows, and those in doubt
    """
    return _free(now, [device for device in now.holdings(instance_uuid)
                       if device.owner is not None and device.owner.from_rows and device.key not in keep])


def _free(now: Snapshot, devices: Iterable[Device], removed: Collection[DeviceKey] = ()) -> Snapshot:
    number, changes = now.number, dict[DeviceKey, Device | None]()
    left: dict[DeviceKey, tuple[int, Place] | None] = {}
    pools: dict[Place, Pool] = {}
    for device in devices:
        key, place = device.key, device.place
        if device.owner is None:
            changes[key] = device
        elif device.is_unborn or key in removed or GONE in device.reasons:
            if not device.is_unborn and GONE not in device.reasons:
                pool = pools.get(place, now.pools[place])
                pools[place] = pool._replace(available=pool.available + 1)      # until the parent is read again
            changes[key], left[key] = None, (number, place)
        else:
            changes[key] = device._replace(
                owner=None, is_releasing=False, since=number, changed=number,
                reasons=device.reasons | UNPROVEN if device.is_unproven else device.reasons)
        number += 1
    if pools or left:
        now = now._replace(pools={**now.pools, **pools}, left=now.left.changed(left))
    return _freed(now, changes, number)


def _freed(now: Snapshot, changes: Mapping[DeviceKey, Device | None], number: int) -> Snapshot:
    """Take over devices that instances have no longer."""
    rest = dict[str, list[DeviceKey]]()
    for key in changes:
        uuid = now.devices[key].instance_uuid
        if uuid is not None:
            rest.setdefault(uuid, list(now.instances[uuid])).remove(key)
    return now.with_devices(changes, number).of_instances(rest)


def _known(now: Snapshot, keys: Iterable[DeviceKey]) -> list[Device]:
    return [device for key in keys if (device := now.devices.get(key)) is not None]


def _held_of(now: Snapshot, instance_uuid: str, keys: Iterable[DeviceKey]) -> list[DeviceKey]:
    ours = now.instances.get(instance_uuid, ())
    return [key for key in keys if key in ours]


# -- what rows say ----------------------------------------------------------------------------------------------------


def hold(now: Snapshot, records: Sequence[Record]) -> Snapshot:
    """Hold the devices of one instance's rows, also those that the host does not have."""
    return hold_all(now, (records,))


def hold_all(now: Snapshot, instances: Iterable[Sequence[Record]]) -> Snapshot:
    """As :func:`hold`, for many instances."""
    changes = dict[DeviceKey, Device | None]()
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
                now, device = _of_row(now, record)
            before = device.instance_uuid
            ours[key] = None
            if before != uuid:
                if before is not None:          # the claim that took it just now learns of the owner from the store
                    del owned.setdefault(before, dict.fromkeys(now.instances.get(before, ())))[key]
                owner = owner or Claimed(uuid, number, True)
                # It may be the earlier owner that gives it back.
                changes[key] = device = device._replace(owner=owner, is_releasing=False)
            if device.reasons:
                # The release of the device proves it clean. Until then its owner may write to it.
                over = {vocabulary.UNPROVEN}
                if vocabulary.MADE_BY_OTHERS in device.reasons and stored_details.is_made(record.details):
                    over.add(vocabulary.MADE_BY_OTHERS)
                changes[key] = device._replace(reasons=(device.reasons - over) or NO_REASON)
        number += 1
    return now.with_devices(changes, number).of_instances(owned)


def _of_row(now: Snapshot, record: Record) -> tuple[Snapshot, Device]:
    """A device that the host does not have: it will be made (again), or it is gone."""
    place = Place(record.kind, record.provider_uuid, record.resource_class, record.parent, record.numa_node)
    now = now.with_pools((Pool(place),))
    reasons = set(now.standing.of(record.key, record.parent))
    if not record.provider_uuid:
        reasons.add(vocabulary.NO_PROVIDER)
    unborn = now.pools[place].is_creatable
    if not unborn:
        reasons.add(GONE)
    return now, Device(record.key, place, record.details, reasons=frozenset(reasons) or NO_REASON,
                       exclusions=now.absent(record.key, record.parent), is_unborn=unborn)


def hold_missing(now: Snapshot, records: Sequence[Record]) -> Snapshot:
    """Hold the devices of an instance's rows that are not held for it."""
    missing = now.not_held(records)
    return hold(now, missing) if missing else now


def trust_rows(now: Snapshot, keys: Iterable[DeviceKey]) -> Snapshot:
    """Let only rows decide from now on whether these devices stay held: the claim that took them is over."""
    owners = {device.owner for device in _known(now, keys) if device.owner is not None}
    return now.with_devices({
        device.key: device._replace(owner=device.owner._replace(from_rows=True))
        for owner in owners for device in now.of_claim(owner) if device.owner is not None})


# -- adopting ---------------------------------------------------------------------------------------------------------


def hold_unless_taken(now: Snapshot, records: Sequence[Record],
                      owners: Mapping[DeviceKey, str | None]) -> tuple[Snapshot, DeviceKey | None]:
    """Hold devices that a guest has for new rows of its instance, or none if one is held for another instance.

    :param owners: by device, its present owner in the rows
    :returns: also the device that another operation is taking, giving back or wiping, or of which somebody has a part,
        or what contains it; None if all are held
    """
    for record in records:
        device = now.device(record.key)
        if device is not None and (device.instance_uuid not in (None, owners[record.key])
                                   or BEING_WIPED in device.withheld):
            return now, record.key
    unowned = [record.key for record in records if owners[record.key] is None]
    after = hold(now, records)
    for key in unowned:
        if after.is_work_around(key):
            return not_adopted(after, records[0].instance_uuid, unowned), key
    return used(after, [record.key for record in records]), None


def not_adopted(now: Snapshot, instance_uuid: str, keys: Collection[DeviceKey]) -> Snapshot:
    """Let go of devices that a guest has, and whose rows were not written. Until an audit, they count as in use."""
    return withhold_free(let_go_of(now, instance_uuid, keys), keys, vocabulary.FOREIGN)


# -- what the host says -----------------------------------------------------------------------------------------------


def realized(now: Snapshot, resolve: intake.Resolve, key: DeviceKey, details: str,
             capacities: Sequence[Capacity] = (), before: Snapshot | None = None) -> Snapshot:
    """Note that a device exists now, with these details. Until its parent is read again, it counts for every type.

    ``capacities`` are those that the parent reported when the device was made, since ``before`` was the snapshot. They
    count only if nothing else was made or removed there meanwhile. Otherwise nobody knows which changes they include.
    """
    after = intake.realized(now, key, details)
    if before is not None and capacities and intake.is_alone(after, key, before):
        return intake.read_capacities(after, capacities, resolve)
    return after


def used(now: Snapshot, keys: Iterable[DeviceKey]) -> Snapshot:
    """Note that guests may write to these devices, though nobody made them real here."""
    return now._replace(number=now.number + 1).with_devices({
        device.key: device._replace(changed=now.number, is_unproven=device.key.kind in now.keeping)
        for device in _known(now, keys)})


# -- withheld devices -------------------------------------------------------------------------------------------------


def _withhold(now: Snapshot, devices: Iterable[Device], more: Collection[str] = (),
              over: Collection[str] = ()) -> Snapshot:
    """Set reasons of devices and end others. That a device is excluded follows from what others have."""
    more, over = NO_REASON.union(more) - EXCLUDED, NO_REASON.union(over)
    changes: dict[DeviceKey, Device | None] = {}
    for device in devices:
        reasons = device.reasons - over | more
        if reasons != device.reasons:
            changes[device.key] = device._replace(reasons=reasons or NO_REASON)
    return now.with_devices(changes) if changes else now


def withhold(now: Snapshot, key: DeviceKey, reason: str) -> Snapshot:
    """Withhold a device for this reason too. Its owner keeps it."""
    return _withhold(now, _known(now, (key,)), (reason,))


def withhold_free(now: Snapshot, keys: Iterable[DeviceKey], reason: str) -> Snapshot:
    """Withhold those devices that nobody holds."""
    return _withhold(now, [device for device in _known(now, keys) if device.owner is None], (reason,))


def doubt_all_free(now: Snapshot) -> Snapshot:
    """Withhold every device that nobody holds, since nobody knows who uses it."""
    return _withhold(now, [device for device in now.devices.each() if device.owner is None], (vocabulary.IN_DOUBT,))


def admit(now: Snapshot, keys: Iterable[DeviceKey], reason: str) -> Snapshot:
    """End one reason for several devices. A standing reason stays, and so do other reasons."""
    return _withhold(now, [device for device in _known(now, keys) if not now.stands(device, reason)], over=(reason,))


def begin_wipe(now: Snapshot, key: DeviceKey) -> tuple[Snapshot, str | None]:
    """Keep others from the devices that may not be held beside a free one, until :func:`end_wipe`.

    :returns: also why it may not be wiped; None if it may
    """
    device = now.devices.get(key)
    if device is None:
        return now, 'the host does not have it'
    if device.owner is not None:
        return now, f'instance {device.instance_uuid} has it'
    excluded = now.why_excluded(key)
    if excluded is not None:
        return now, f'{excluded}, and work on this device may affect that one'
    return withhold(now, key, BEING_WIPED), None


def end_wipe(now: Snapshot, key: DeviceKey) -> Snapshot:
    """End what :func:`begin_wipe` began."""
    return _withhold(now, _known(now, (key,)), over=(BEING_WIPED,))


def proven(now: Snapshot, keys: Iterable[DeviceKey]) -> Snapshot:
    """Note that devices that nobody holds were proven clean. Other reasons stay."""
    return now._replace(number=now.number + 1).with_devices({
        device.key: device._replace(changed=now.number, is_unproven=False,
                                    reasons=(device.reasons - UNPROVEN) or NO_REASON)
        for device in _known(now, keys) if device.owner is None})


def stand(now: Snapshot, target: Target, reason: str, why: str = '') -> Snapshot:
    """Withhold a device, or let a parent make no more, until :func:`stand_down`, whether it is there or not.

    Only a cordon of a parent withholds the devices that it has, too. That of a host withholds all devices.

    :param why: why it could not be made ready, for people, if that is the reason
    """
    standing = now.standing.with_reason(target, reason, why)
    if target.scope != vocabulary.DEVICE:
        return _of_several(now, target, standing)
    return withhold(now._replace(standing=standing), DeviceKey(target.kind, target.name), reason)


def stand_down(now: Snapshot, target: Target, reason: str, stays: bool = False) -> Snapshot:
    """End what :func:`stand` began. A device of a parent or a host that is cordoned stays withheld.

    :param stays: a device remains withheld until an audit admits it
    """
    standing = now.standing.without(target, reason)
    if target.scope != vocabulary.DEVICE:
        return _of_several(now, target, standing)
    key = DeviceKey(target.kind, target.name)
    after = admit(now._replace(standing=standing), (key,), reason)
    return withhold(after, key, reason) if stays else after


def _of_several(now: Snapshot, target: Target, standing: Standing) -> Snapshot:
    after = now._replace(standing=standing)
    return after.with_devices({device.key: device._replace(
        reasons=(device.reasons - {vocabulary.CORDONED} | standing.of(device.key, device.place.parent)) or NO_REASON)
        for device in after.devices.each() if target.has(*device.key, device.place.parent)})
