"""The disks behind a PCI function: the namespaces of an NVMe controller, while the host's driver has it.

The names of the disks change whenever a controller comes back to the host. Three things stay the same: the identifier
of a namespace in its controller (NVM Express Base Specification, "Namespace Identifier"), its size and its block size.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
import re
from typing import NamedTuple

from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import pci_sysfs

# With multipath in the kernel, nvme0c1n1 is the path of one controller to nvme0n1, and is no block device to open.
_NAMESPACE = re.compile(r'nvme[0-9]+(?:c[0-9]+)?n[0-9]+')
# The unit of a block device's size in sysfs, whatever its blocks (Linux: Documentation/ABI/stable/sysfs-block).
_SECTOR = 512


class Disk(NamedTuple):
    """One namespace. ``name`` is that of its block device now."""

    name: str
    nsid: int
    size_bytes: int
    block_bytes: int


def disks(tree: pci_sysfs.Tree, address: str) -> Sequence[Disk] | None:
    """Read the disks of a function, by their identifiers; None while its driver is not ready to tell.

    :raises OSError: they cannot be read
    """
    directory = os.path.join(tree.path(address), 'nvme')
    try:
        controllers = [name for name in os.listdir(directory) if pci_sysfs.NVME_NAME.fullmatch(name)]
    except FileNotFoundError:
        return None
    found = []
    for controller in controllers:
        inside = os.path.join(directory, controller)
        if kernel_files.text(inside, 'state') != 'live':
            return None
        for name in os.listdir(inside):
            if _NAMESPACE.fullmatch(name):
                path = os.path.join(inside, name)
                found.append(Disk(re.sub('c[0-9]+(?=n)', '', name), int(kernel_files.text(path, 'nsid')),
                                  int(kernel_files.text(path, 'size')) * _SECTOR,
                                  int(kernel_files.text(path, 'queue/logical_block_size'))))
    return sorted(found, key=lambda disk: disk.nsid)


def shown(tree: pci_sysfs.Tree, address: str) -> Sequence[Disk] | None:
    """As :func:`disks`; None also while they cannot be read, because they are just appearing or vanishing."""
    try:
        return disks(tree, address)
    except (OSError, ValueError):
        return None


def as_text(found: Sequence[Disk] | None) -> str | None:
    """Return what stays the same about disks, for a record: ``1:1073741824:512 2:…``; None if it is unknown."""
    return None if found is None else ' '.join(f'{disk.nsid}:{disk.size_bytes}:{disk.block_bytes}' for disk in found)
