"""The snapshot of a host as a document, and back: so a question to the mirror is one to the allocator of that host."""

from __future__ import annotations

import json
from typing import Any

from devicetrack.compatibility.facts import look_at
from devicetrack.engine.selection import Place
from devicetrack.engine.snapshot import Claimed
from devicetrack.engine.snapshot import Device
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.withholding import NO_REASON
from devicetrack.engine.withholding import Standing
from devicetrack.objects.values import DeviceKey


def to_text(now: Snapshot) -> str:
    """The document of a snapshot, the same for equal snapshots. It leaves out what only a running manager needs."""
    places = {place: number for number, place in enumerate(now.pools)}
    devices = [device for _key, device in sorted((one.key, one) for one in now.devices.each())]
    return json.dumps({
        'policy': now.policy,
        'sockets': sorted(now.sockets.items()),
        'keeping': sorted(now.keeping),
        'pools': [[*place, pool.details, pool.is_creatable, pool.available, pool.taken_by]
                  for place, pool in now.pools.items()],
        'devices': [[*device.key, places[device.place], device.since, device.owner and [*device.owner[:3]],
                     sorted(device.reasons), device.exclusions, device.is_releasing, device.is_unborn,
                     device.is_unproven, device.is_named]
                    for device in devices],
        # A running guest needs a device of its type, and those of a pool may have several.
        'details': [[number, device.details] for number, device in enumerate(devices)
                    if look_at(device.details) != look_at(now.pools[device.place].details)],
        'closed': [[*parent, sorted(reasons)] for parent in sorted(
            {*now.standing.parents, *((place.kind, place.parent) for place in now.pools)},
            key=lambda one: (one[0], one[1] or '')) if (reasons := now.closed(*parent))],
        'made': sorted([*parent, exclusions] for parent, exclusions in now.made.items()),
        'strangers': sorted(now.strangers.items()),
    }, separators=(',', ':'))


def from_text(text: str) -> Snapshot:
    """The snapshot of a document. Its devices have the details of their pools, if they are of the same type."""
    data = json.loads(text)
    others = dict(data.get('details', ()))      # an earlier release wrote none
    pools = [(Place(kind, provider, resource_class, parent, numa_node, tuple(features)), *pool)
             for kind, provider, resource_class, parent, numa_node, features, *pool in data['pools']]
    now = Snapshot(data['policy'], sockets=dict(data['sockets']), keeping=frozenset(data['keeping']),
                   standing=Standing(parents={(kind, parent): frozenset(reasons)
                                              for kind, parent, reasons in data['closed']}),
                   made={(kind, parent): _exclusions(found) for kind, parent, found in data['made']})
    now = now.with_pools(place for place, *_rest in pools)
    for place, details, is_creatable, available, taken_by in pools:
        now = now.with_pool(now.pools[place]._replace(details=details, is_creatable=is_creatable, available=available,
                                                      taken_by=taken_by))
    devices: dict[DeviceKey, Device | None] = {}
    owned: dict[str, list[DeviceKey]] = {}
    last = 0
    # Most devices have no reasons and exclusions, and a fleet has hundreds of thousands of devices.
    of_pools = [(place, details) for place, details, *_rest in pools]
    for index, (kind, identifier, number, since, owner, reasons, exclusions, is_releasing, is_unborn, is_unproven,
                is_named) in enumerate(data['devices']):
        key, (place, details) = DeviceKey(kind, identifier), of_pools[number]
        if owner:
            owned.setdefault(owner[0], []).append(key)
            owner = Claimed(*owner)
            last = max(last, owner.number)
        devices[key] = Device(key, place, others.get(index, details) if others else details, since, 0, owner,
                              frozenset(reasons) if reasons else NO_REASON,
                              _exclusions(exclusions) if exclusions else (), is_releasing, is_unborn, is_unproven,
                              is_named)
    return now.with_devices(devices, last + 1).of_instances(owned).with_strangers(
        {address: _exclusions(found) for address, found in data['strangers']})


def _exclusions(found: Any) -> tuple[tuple[str, str], ...]:
    return tuple((token, mode) for token, mode in found)
