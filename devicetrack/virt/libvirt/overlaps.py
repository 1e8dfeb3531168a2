"""Finds devices of several kinds that are one thing on the host, or the controller of a disk and the disk.

Each kind may be right: a function is there, and so is the disk behind it. But nobody means to offer one thing twice, so
the manager does not start. A card and what its functions make are no such mistake: they exclude one another
(:mod:`devicetrack.virt.libvirt.containment`).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Overlap
from devicetrack.virt.libvirt import containment


def find(offered: Mapping[DeviceKey, str], look: containment.Look) -> Sequence[Overlap]:
    """Find the pairs among these devices that are one thing, or where a node's device lies behind the other.

    :param offered: what each device is: a PCI address, or the path of a device node or of a file
    :param look: finds the PCI functions on which a device node depends
    """
    if len({key.kind for key in offered}) < 2:
        return ()
    found: list[Overlap] = []
    first: dict[str, DeviceKey] = {}
    behind: list[tuple[DeviceKey, str, str]] = []
    for key, node in sorted(offered.items()):
        thing, within = look.thing(node)
        if thing is None:
            continue
        if thing in first:
            found.append(Overlap((first[thing], key), node))
        else:
            first[thing] = key
        if thing.startswith(('block:', 'char:')):
            behind += [(key, node, token) for token in within]
    found += [Overlap((first[token], key), f'{offered[first[token]]}, on which {node} depends')
              for key, node, token in behind if token in first]
    return found


def unhealthy(devices: Iterable[InventoryDevice], found: Iterable[Overlap]) -> list[InventoryDevice]:
    """Return the devices, with those that overlap marked as unhealthy."""
    others: dict[DeviceKey, str] = {}
    for overlap in found:
        for one, other in (overlap.devices, overlap.devices[::-1]):
            others.setdefault(one, f'{other} is the same on the host ({overlap.what}): let the options of one kind '
                                   'name it')
    return [device._replace(unhealthy=device.unhealthy or others[device.key]) if device.key in others else device
            for device in devices]
