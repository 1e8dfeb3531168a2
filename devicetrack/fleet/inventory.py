"""The snapshot of a host as a document, and back: so a question to the mirror is one to the allocator of that host."""

from __future__ import annotations

import json
from typing import Any

from devicetrack.compatibility.facts import look_at
from devicetrack.engine.selection import Place
from devicetrack.engine.snapshot import Claimed
from devicetrack.engine.snapshot import Device
from devicetrack.engine.snapshot import Pool
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.withholding import NO_REASON
from devicetrack.engine.withholding import Standing
from devicetrack.objects.values import DeviceKey


def to_text(now: Snapshot) -> str:
    """The document of a snapshot, the same for equal snapshots. It leaves out what only a running manager needs.

    The rows say who has which device. So instances have numbers here, and a device that an instance has is only
    counted, unless it excludes others or is not made yet. Devices stand together if they differ only in their names: a
    fleet has hundreds of thousands.
    """
    places = {place: number for number, place in enumerate(now.pools)}
    owners = {uuid: number for number, uuid in enumerate(sorted({
        device.owner.instance_uuid for device in now.devices.each() if device.owner is not None}))}
    held: dict[Place, list[int]] = {place: [] for place in now.pools}
    releasing = dict.fromkeys(now.pools, 0)
    alike: dict[str, tuple[list[Any], list[tuple[str, int]]]] = {}
    for key, device in sorted((one.key, one) for one in now.devices.each()):
        owner = None if device.owner is None else owners[device.owner.instance_uuid]
        if owner is not None and not device.exclusions and not device.is_unborn:
            if device.is_releasing:
                releasing[device.place] += 1
            else:
                held[device.place].append(owner)
            continue
        # A running guest needs a device of its type, and those of a pool may have several.
        details = device.details if look_at(device.details) != look_at(now.pools[device.place].details) else None
        common = [places[device.place], details, owner, sorted(device.reasons), device.exclusions,
                  device.is_releasing, device.is_unborn, device.is_unproven, device.is_named]
        alike.setdefault(json.dumps(common), (common, []))[1].append((key.identifier, device.since))
    return json.dumps({
        'policy': now.policy,
        'number': now.number,
        'sockets': sorted(now.sockets.items()),
        'keeping': sorted(now.keeping),
        'pools': [[*place, held[place], releasing[place], pool.details, pool.is_creatable, pool.available,
                   pool.taken_by] for place, pool in now.pools.items()],
        'devices': [[*common, *zip(*its, strict=True)] for common, its in alike.values()],
        'closed': [[*parent, sorted(reasons)] for parent in sorted(
            {*now.standing.parents, *((place.kind, place.parent) for place in now.pools)},
            key=lambda one: (one[0], one[1] or '')) if (reasons := now.closed(*parent))],
        'made': sorted([*parent, exclusions] for parent, exclusions in now.made.items()),
        'strangers': sorted(now.strangers.items()),
    }, separators=(',', ':'))


def from_text(text: str) -> Snapshot:
    """The snapshot of a document. Its devices have the details of their pools, if they are of the same type."""
    data = json.loads(text)
    pools = [Pool(Place(kind, provider, resource_class, parent, numa_node, tuple(features)), details, is_creatable,
                  available, taken_by, total=len(held) + releasing, held=len(held), releasing=releasing,
                  counted=frozenset(map(str, held)))
             for kind, provider, resource_class, parent, numa_node, features, held, releasing, details, is_creatable,
             available, taken_by in data['pools']]
    devices: dict[DeviceKey, Device | None] = {}
    for number, of_type, owner, reasons, excluding, *states, identifiers, since in data['devices']:
        pool = pools[number]
        fields = (None if owner is None else Claimed(str(owner), owner), frozenset(reasons) or NO_REASON,
                  _exclusions(excluding), *states)
        for identifier, when in zip(identifiers, since, strict=True):
            key = DeviceKey(pool.place.kind, identifier)
            devices[key] = Device(key, pool.place, pool.details if of_type is None else of_type, when, 0, *fields)
    now = Snapshot(data['policy'], data['number'], sockets=dict(data['sockets']), keeping=frozenset(data['keeping']),
                   standing=Standing(parents={(kind, parent): frozenset(reasons)
                                              for kind, parent, reasons in data['closed']}),
                   made={(kind, parent): _exclusions(found) for kind, parent, found in data['made']})
    return now.with_pools(pools).with_devices(devices).with_strangers(
        {address: _exclusions(found) for address, found in data['strangers']})


def _exclusions(found: Any) -> tuple[tuple[str, str], ...]:
    return tuple((token, mode) for token, mode in found)
