"""Updates a snapshot from the host's reports about its devices and their parents. Nothing here changes an owner."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import operator
from types import MappingProxyType
from typing import Any
from typing import Final

from devicetrack import vocabulary
from devicetrack.engine import exclusion
from devicetrack.engine.frozen import FrozenMap
from devicetrack.engine.selection import Place
from devicetrack.engine.snapshot import Claimed
from devicetrack.engine.snapshot import Device
from devicetrack.engine.snapshot import GONE
from devicetrack.engine.snapshot import Pool
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.snapshot import UNPROVEN
from devicetrack.engine.withholding import NO_REASON
from devicetrack.objects.choice import Features
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import Containment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice

# Each report of the host about a device and its parent sets these reasons anew.
_OF_THE_HOST: Final = frozenset((vocabulary.UNHEALTHY, vocabulary.MADE_BY_OTHERS, vocabulary.UNPROVEN,
                                 vocabulary.CORDONED, vocabulary.NO_PROVIDER, GONE))

_IDENTIFIER: Final = operator.itemgetter(InventoryDevice._fields.index('identifier'))
_ASSIGNABLE: Final = operator.itemgetter(InventoryDevice._fields.index('assignable'))

# Returns the UUID of the provider with a stable name ('' is the node), '' if there is none.
Resolve = Callable[[str], str]


# -- one device -------------------------------------------------------------------------------------------------------


def realized(now: Snapshot, key: DeviceKey, details: str) -> Snapshot:
    """Note that a device exists now, with these details. Until its parent is read again, it counts for every type."""
    device = now.devices.get(key)
    if device is None:
        return now
    after = now._replace(number=now.number + 1).with_devices({key: device._replace(
        details=details, is_unborn=False, changed=now.number, is_unproven=key.kind in now.keeping)})
    return _use_up(after, device.place) if device.is_unborn else after


def is_alone(now: Snapshot, key: DeviceKey, before: Snapshot) -> bool:
    """Whether nothing else was made or removed at the parent of a device since an earlier snapshot."""
    device = now.devices.get(key)
    if device is None or before.number < now.left_since:
        return False
    parent = device.place.kind, device.place.parent
    return not now.pending.get(parent) and not any(
        pool.releasing for place, pool in now.pools.items() if (place.kind, place.parent) == parent) and not any(
        (place.kind, place.parent) == parent for other, place in now.changed_since(before).items() if other != key)


def _use_up(now: Snapshot, place: Place) -> Snapshot:
    """Note that a parent made one more device. Until the parent is read again, it counts for every type."""
    return now._replace(pools={one: pool._replace(available=pool.available - 1)
                               if (one.kind, one.parent) == (place.kind, place.parent) else pool
                               for one, pool in now.pools.items()})


# -- parents ----------------------------------------------------------------------------------------------------------


def read_capacities(now: Snapshot, capacities: Iterable[Capacity], resolve: Resolve) -> Snapshot:
    """Note how many devices parents can still make, by their own report."""
    found = {Place(one.kind, resolve(one.provider), one.resource_class, one.parent, one.numa_node): one
             for one in capacities}
    after = now.with_pools(map(Pool, found))
    return after._replace(pools={place: pool if (one := found.get(place)) is None else pool._replace(
        available=one.available, details=one.details, is_creatable=True, taken_by=one.taken_by)
        for place, pool in after.pools.items()}) if found else after


def read_parents(now: Snapshot, inventory: Inventory, before: Snapshot, resolve: Resolve) -> Snapshot:
    """Note how many devices parents can still make, and which of the known devices exist.

    No device becomes free here: :func:`read_inventory`, and the calls after it, decide who may have it.

    :param before: the snapshot from before somebody read the host
    """
    known = now.changed_since(before)
    changes: dict[DeviceKey, Device | None] = {}
    for report in inventory.devices:
        device = now.devices.get(report.key)
        if device is None or device.key in known:
            continue
        if device.is_unborn:
            now = realized(now, device.key, report.details)
        elif device.owner is None:
            changes[device.key] = device._replace(reasons=device.reasons | _reasons(
                now, device, report.unhealthy, report.assignable))
        elif GONE in device.reasons:
            changes[device.key] = device._replace(reasons=device.reasons - {GONE})
    now = now.with_devices(changes)
    now = now.with_devices(dict(_missing(now, inventory, known)))
    return _read_parents(now, inventory, known, resolve)


def _missing(now: Snapshot, inventory: Inventory,
             known: Collection[DeviceKey]) -> Iterator[tuple[DeviceKey, Device | None]]:
    """Forget free devices that the host does not have. Held ones stay held, and are withheld as gone."""
    # Plain tuples, which hash as keys do: there are thousands, and nearly all of them are seen.
    seen = {(device.kind, device.identifier) for device in inventory.devices}
    for device in now.devices.each():
        if (device.key not in seen and device.key.kind in inventory.known_kinds and device.key not in known
                and not device.is_unborn):
            yield device.key, None if device.owner is None else device._replace(reasons=device.reasons | {GONE})


def _read_parents(now: Snapshot, inventory: Inventory, known: Mapping[DeviceKey, Place], resolve: Resolve) -> Snapshot:
    """Set how many devices parents can make, and correct it by ``known``: devices made or removed since."""
    now = now._replace(pools={place: pool._replace(available=0) if place.kind in inventory.known_kinds else pool
                              for place, pool in now.pools.items()})
    now = read_capacities(now, inventory.capacities, resolve)
    if not known:
        return now
    seen = {(device.kind, device.identifier) for device in inventory.devices}
    read = {(capacity.kind, capacity.parent) for capacity in inventory.capacities}
    for key, place in known.items():
        if (key.kind, place.parent) in read:
            device = now.devices.get(key)
            there = device is not None and not device.is_unborn and GONE not in device.reasons
            if there and key not in seen:
                now = _use_up(now, place)
            elif not there and key in seen:
                pool = now.pools[place]
                now = now.with_pool(pool._replace(available=pool.available + 1))
    return now


# -- everything -------------------------------------------------------------------------------------------------------


def read_inventory(now: Snapshot, inventory: Inventory, resolve: Resolve, before: Snapshot | None = None,
                   recorded: Mapping[Any, Claimed] = MappingProxyType({})) -> Snapshot:
    """Update all devices from a reading of the host.

    New devices are free. A device that is missing, of a kind that was read in full, is forgotten if it is free, and
    withheld as gone if it is held. Nothing here changes an owner.

    :param before: the snapshot from before somebody read the host. A device that changed since stays as it is
    :param recorded: the owners of new devices, by rows. Call :func:`.ledger.hold` next
    """
    known = now.changed_since(before) if before is not None else {}
    now = now._replace(keeping=inventory.keeping, sockets=dict(inventory.sockets))
    if before is not None:                      # whoever began to read later saw none of those that left before
        now = now._replace(left=FrozenMap({key: one for key, one in now.left.items() if one[0] >= before.number}),
                           left_since=max(now.left_since, before.number))
    devices = now.devices.plain()
    changes: dict[DeviceKey, Device | None] = {}
    new: list[tuple[Any, ...]] = []
    places: dict[tuple[Any, ...], Place] = {}
    details: dict[Place, str] = {}
    def place_of(kind: str, provider: str, resource_class: str, parent: str | None, numa_node: int | None,
                 features: Features, text: str) -> Place:
        where = (kind, provider, resource_class, parent, numa_node, features)
        place = places.get(where)
        if place is None:                       # thousands of devices have a few places
            place = places[where] = Place(kind, resolve(provider), resource_class, parent, numa_node, features)
            details[place] = text
        return place

    for fields, device in _news(inventory, devices, now, resolve):
        if device is None:
            if fields[:2] not in known:
                new.append(fields)
            continue
        report = InventoryDevice._make(fields)
        exclusions = exclusion.of_device(report.kind, report.identifier, report.exclusions)
        if device.key in known:                 # only the host knows which devices exclude one another
            if device.exclusions != exclusions:
                changes[device.key] = device._replace(exclusions=exclusions)
            continue
        if device.is_unborn:                    # its maker has not reported it yet
            now = realized(now, device.key, report.details)
            device = now.devices[device.key]
        place = place_of(report.kind, report.provider, report.resource_class, report.parent, report.numa_node,
                         report.features, report.details)
        device = device._replace(place=place, details=report.details, exclusions=exclusions,
                                 is_unproven=device.key in inventory.unproven)
        changes[device.key] = device._replace(reasons=_reasons(now, device, report.unhealthy, report.assignable))
    # The first device describes its pool, so devices that somebody else made come last.
    new.sort(key=_IDENTIFIER)
    new.sort(key=_ASSIGNABLE, reverse=True)
    for number, fields in enumerate(new, now.number):
        (kind, identifier, provider, resource_class, parent, numa_node, text, unhealthy, assignable, _type, exclusions,
         features) = fields
        key = DeviceKey(kind, identifier)
        device = Device(key, place_of(kind, provider, resource_class, parent, numa_node, features, text), text, number,
                        0, recorded.get(key), NO_REASON,
                        exclusion.of_device(kind, identifier, exclusions) if exclusions else (),
                        is_unproven=key in inventory.unproven)
        reasons = _reasons(now, device, unhealthy, assignable)
        if not assignable:                       # until hold has seen in its row who made it
            reasons |= {vocabulary.MADE_BY_OTHERS}
        changes[key] = device._replace(reasons=reasons) if reasons else device
    now = now._replace(number=now.number + len(new)).with_pools(map(Pool, details))
    undescribed = [place for place in details if not now.pools[place].details]
    if undescribed:
        now = now._replace(pools={**now.pools, **{place: now.pools[place]._replace(details=details[place])
                                                  for place in undescribed}})
    owned: dict[str, list[DeviceKey]] = {}
    for key, owner in recorded.items():         # in the order of the rows
        device = changes.get(key)
        if device is not None and device.owner is owner:
            owned.setdefault(owner.instance_uuid, []).append(device.key)
    now = now.with_devices(changes).of_instances(owned)
    # Every device that is there is known now. If the numbers are equal, no known device is missing.
    there = collections.Counter(Compact(InventoryDevice, inventory.devices).column('kind'))
    ours = collections.Counter[str]()
    for place, pool in now.pools.items():
        ours[place.kind] += pool.total
    if known or any(ours[kind] != there[kind] for kind in inventory.known_kinds):
        now = now.with_devices(dict(_missing(now, inventory, known)))
    return _read_parents(now, inventory, known, resolve)


def _news(inventory: Inventory, devices: Mapping[DeviceKey, Device], now: Snapshot,
          resolve: Resolve) -> Iterator[tuple[tuple[Any, ...], Device | None]]:
    """The devices that are unhealthy, or that the host reports differently than before: their fields and devices.

    A host has thousands, and nearly all are healthy and unchanged. So this is one loop over plain tuples.
    """
    reports = Compact(InventoryDevice, inventory.devices).plain()
    if not devices:                             # at a start
        yield from ((fields, None) for fields in reports)
        return
    by_key: Mapping[Any, Device] = devices
    unproven, standing = inventory.unproven, bool(now.standing)
    # The place of the devices for which the host reports the same place and features.
    places: dict[tuple[Any, ...], Place] = {}
    for fields in reports:
        (kind, identifier, provider, resource_class, parent, numa_node, details, unhealthy, assignable, _type,
         exclusions, features) = fields
        device = by_key.get((kind, identifier))
        if (device is not None and details == device.details and unhealthy is None and assignable and not standing
                and not device.reasons and not device.is_unborn
                and device.is_unproven == ((kind, identifier) in unproven)
                and (not (exclusions or device.exclusions)
                     or device.exclusions == exclusion.of_device(kind, identifier, exclusions))):
            where = (kind, provider, resource_class, parent, numa_node, features)
            place = places.get(where)
            if place is None:
                place = places[where] = Place(kind, resolve(provider), resource_class, parent, numa_node, features)
            if device.place == place:
                continue
        yield fields, device


def _reasons(now: Snapshot, device: Device, unhealthy: str | None, assignable: bool) -> frozenset[str]:
    """Why a device must not be handed out, by the host's present report. Its owner keeps it."""
    free_unproven = device.is_unproven and device.owner is None
    if unhealthy is None and assignable and not device.reasons and not now.standing and device.place.provider_uuid:
        return UNPROVEN if free_unproven else NO_REASON         # nearly all of them
    reasons = {*device.reasons - _OF_THE_HOST, *now.standing.of(device.key, device.place.parent)}
    if unhealthy is not None:
        reasons.add(vocabulary.UNHEALTHY)
    # Somebody else made the device, or its owner did. If it is held, its row says who.
    if not assignable and (device.owner is None or vocabulary.MADE_BY_OTHERS in device.reasons):
        reasons.add(vocabulary.MADE_BY_OTHERS)
    if free_unproven:
        reasons.add(vocabulary.UNPROVEN)
    if not device.place.provider_uuid:
        reasons.add(vocabulary.NO_PROVIDER)
    return frozenset(reasons) or NO_REASON


def read_containment(now: Snapshot, found: Containment) -> Snapshot:
    """Note what contains what, of everything that the last inventory did not show as a device."""
    now = now._replace(recorded=found.recorded, made=found.made)
    changed = {key: device._replace(exclusions=exclusions) for key, exclusions in found.unread.items()
               if (device := now.devices.get(key)) is not None and not device.is_unborn}
    changed |= {key: device._replace(exclusions=now.absent(key, device.place.parent)) for key in found.recorded
                if (device := now.devices.get(key)) is not None and (device.is_unborn or GONE in device.reasons)}
    return now.with_devices(changed).with_strangers(found.strangers)
