"""What contains what, over the devices of all kinds, those of rows, those that parents make, and what domains use.

Pure: the driver says what a device is on the host and what contains it. A token that nothing else shares says nothing,
and is left out: a host has thousands of devices, and hardly any contains another.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence

from devicetrack import vocabulary
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.views import named_instances
from devicetrack.engine.views import Views
from devicetrack.objects.compact import Compact
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import Containment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record


def complete(views: Views, tokens_of: Callable[[Sequence[InventoryDevice]], Sequence[Exclusions]],
             before: Snapshot | None = None) -> Views:
    """Add to the devices of the host, and to everything else that may be a part of them or contain them, what excludes.

    :param tokens_of: as :meth:`devicetrack.virt.driver.VirtDriver.containment`
    :param before: the last snapshot, whose devices and parents count where their kind cannot be read now
    """
    inventory, owners = views.inventory, views.owners
    lacking = sorted(owners.keys() - views.devices.keys())
    rows = [_of_row(owners[key]) for key in lacking]
    unread, makers = ([], []) if before is None or not inventory.unknown else _unread(before, inventory.known_kinds)
    made = sorted([*{(one.kind, one.parent): _of_parent(one) for one in inventory.capacities}.values(), *makers],
                  key=lambda one: (one.kind, one.parent or ''))
    strangers = sorted(set(_strangers(views)))
    kinds = {*Compact(InventoryDevice, inventory.devices).column('kind'),
             *(one.kind for one in (*rows, *made, *unread))}
    if len(kinds) + bool(strangers) < 2:
        return views                            # one kind knows by itself what contains what
    devices = list(inventory.devices)
    found = list(tokens_of([*devices, *rows, *made, *unread, *map(_of_address, strangers)]))
    shared = _shared(found)
    if not shared:
        return views
    kept = [tuple(one for one in tokens if one[0] in shared) for tokens in found]
    of_devices, kept = kept[:len(devices)], kept[len(devices):]
    of_rows, kept = kept[:len(rows)], kept[len(rows):]
    of_made, kept = kept[:len(made)], kept[len(made):]
    of_unread, of_strangers = kept[:len(unread)], kept[len(unread):]
    if any(of_devices):
        inventory = inventory._replace(devices=Compact(InventoryDevice, [
            tuple(_with(device, tokens)) for device, tokens in zip(devices, of_devices, strict=True)]))
    return views._replace(inventory=inventory, containment=Containment(
        {DeviceKey(*row.key): tokens for row, tokens in zip(rows, of_rows, strict=True) if tokens},
        {(one.kind, one.parent or ''): tokens for one, tokens in zip(made, of_made, strict=True) if tokens},
        {address: tokens for address, tokens in zip(strangers, of_strangers, strict=True) if tokens},
        {one.key: _with(one, tokens).exclusions for one, tokens in zip(unread, of_unread, strict=True) if tokens}))


def in_strangers(views: Views) -> set[DeviceKey]:
    """The devices on which domains can write because they use what contains the devices, and is no device here."""
    wholes = {token for tokens in views.containment.strangers.values() for token, mode in tokens
              if mode == vocabulary.WHOLE}
    return {device.key for device in views.inventory.devices if any(
        token in wholes and mode != vocabulary.TOGETHER for token, mode in device.exclusions)} if wholes else set()


def _unread(before: Snapshot, known_kinds: Collection[str]) -> tuple[list[InventoryDevice], list[InventoryDevice]]:
    """The devices of a snapshot whose kind cannot be read now, and the parents that make such devices."""
    devices = [InventoryDevice(*device.key, '', device.place.resource_class, device.place.parent,
                               device.place.numa_node, device.details, exclusions=device.exclusions)
               for device in before.devices.each() if device.key.kind not in known_kinds and device.is_named]
    makers = {(place.kind, place.parent): InventoryDevice(place.kind, '', '', place.resource_class, place.parent,
                                                          place.numa_node, '')
              for place, pool in before.pools.items() if pool.is_creatable and place.kind not in known_kinds}
    return devices, list(makers.values())


def _shared(found: Sequence[Exclusions]) -> set[str]:
    """The tokens that keep a device from anybody: several devices have them, and one is the whole if any is a part."""
    modes: dict[str, list[str]] = {}
    for tokens in found:
        for token, mode in tokens:
            modes.setdefault(token, []).append(mode)
    return {token for token, of_one in modes.items() if len(of_one) > 1 and set(of_one) != {vocabulary.PART}}


def _with(device: InventoryDevice, tokens: Exclusions) -> InventoryDevice:
    known = {token for token, _mode in device.exclusions}
    more = tuple(one for one in tokens if one[0] not in known)
    return device._replace(exclusions=(*device.exclusions, *more)) if more else device


def _strangers(views: Views) -> Iterator[str]:
    """The addresses by which domains use what is no device of the host and of no row.

    Also the mediated devices that nobody here owns: they exist because somebody wants them.
    """
    made = views.inventory.mediated_devices
    yield from made.difference(name for _kind, name in views.owners) if made else ()
    strange = views.names.strange
    if not (strange or views.names.nowhere or views.usage.others):
        return                                  # nearly always, and there are thousands of uses
    owners, devices = views.owners, views.devices
    ours = named_instances(views.records)
    of_rows = {(use.domain_uuid, use.address) for use in views.usage.uses if (use.kind, use.identifier) in owners}
    for use in views.usage.uses:
        key = (use.kind, use.identifier)
        if key in devices or key in owners or (use.domain_uuid, use.address) in of_rows:
            continue
        # An address that leads nowhere may be that of a device of the domain's own, which is away.
        if key in strange if use.identifier is not None else use.domain_uuid not in ours:
            yield use.address
    yield from (address for domain_uuid, address in views.usage.others if (domain_uuid, address) not in of_rows)


def _of_row(row: Record) -> InventoryDevice:
    return InventoryDevice(row.kind, row.identifier, '', row.resource_class, row.parent, row.numa_node, row.details)


def _of_parent(capacity: Capacity) -> InventoryDevice:
    return InventoryDevice(capacity.kind, '', capacity.provider, capacity.resource_class, capacity.parent,
                           capacity.numa_node, '')


def _of_address(address: str) -> InventoryDevice:
    return InventoryDevice('', address, '', '', None, None, '')
