"""Finds devices of several kinds that are one thing on the host.

Each kind may be right: a function is there, and so is the disk behind it. But the owner of one of them has the other
one too, and without this check both would be handed out. Devices are compared as the kernel knows them, since a device
node may have any name, and a file may have several.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import os
import re
import stat
from typing import Final

from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Overlap

PCI_ADDRESS: Final = re.compile(r'[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7]')
SYSFS: Final = '/sys'


def find(offered: Mapping[DeviceKey, str], sysfs: str = SYSFS) -> Sequence[Overlap]:
    """Find the pairs among these devices that are one thing, or where one lies behind the other.

    :param offered: what each device is: a PCI address, or the path of a device node or of a file
    :param sysfs: where the kernel says on which PCI functions a device node depends
    """
    if len({key.kind for key in offered}) < 2:
        return ()
    found: list[Overlap] = []
    first: dict[tuple[object, ...], DeviceKey] = {}
    behind: list[tuple[DeviceKey, str, tuple[object, ...]]] = []
    for key, node in sorted(offered.items()):
        thing, functions = _thing(node, sysfs)
        if thing in first:
            found.append(Overlap((first[thing], key), node))
        else:
            first[thing] = key
        behind += [(key, node, ('pci', address)) for address in functions]
    found += [Overlap((first[function], key), f'{function[1]}, on which {node} depends')
              for key, node, function in behind if function in first]
    return found


def unhealthy(devices: Iterable[InventoryDevice], found: Iterable[Overlap]) -> list[InventoryDevice]:
    """Return the devices, with those that overlap marked as unhealthy."""
    others: dict[DeviceKey, str] = {}
    for overlap in found:
        for one, other in (overlap.devices, overlap.devices[::-1]):
            others.setdefault(one, f'{other} is the same on the host: {overlap.what}')
    return [device._replace(unhealthy=device.unhealthy or others[device.key]) if device.key in others else device
            for device in devices]


def _thing(node: str, sysfs: str) -> tuple[tuple[object, ...], Sequence[str]]:
    """Return a key that is unique to this thing, and the PCI functions that it depends on."""
    if PCI_ADDRESS.fullmatch(node):
        return ('pci', _canonical(node)), ()
    try:
        status = os.stat(node)
    except (OSError, ValueError):
        return ('path', os.path.normpath(node)), ()             # nobody can use it now; its kind says why
    if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
        return ('file', status.st_dev, status.st_ino), ()
    sort = 'char' if stat.S_ISCHR(status.st_mode) else 'block'
    number = f'{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}'
    path = os.path.realpath(os.path.join(sysfs, 'dev', sort, number))
    return (sort, status.st_rdev), [_canonical(part) for part in path.split('/') if PCI_ADDRESS.fullmatch(part)]


def _canonical(address: str) -> str:
    """A PCI address as the kernel writes it: small letters, and a domain of four digits unless it needs more."""
    domain, rest = address.lower().split(':', 1)
    return f'{int(domain, 16):04x}:{rest}'
