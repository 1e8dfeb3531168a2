"""Mediated devices in sysfs (Linux: Documentation/ABI/testing/sysfs-bus-vfio-mdev)."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root


class Made(NamedTuple):
    """A mediated device that exists. ``parent_address`` is the last part of its parent's path in sysfs."""

    type: str
    parent_address: str
    iommu_group: int | None


class Kernel:
    """The kernel of this host. ``directory`` is its list of mediated devices.

    :param root: where sysfs is
    """

    def __init__(self, root: str = root.SYSFS) -> None:
        self.root = root
        self.directory = os.path.join(root, 'bus/mdev/devices')

    @property
    def answers(self) -> bool:
        """Whether the kernel knows mediated devices. If not, this host has none, or the hypervisor runs elsewhere."""
        return os.path.isdir(self.directory)

    def uuids(self) -> list[str]:
        return kernel_files.names(self.directory)

    def parents(self) -> list[str]:
        """List the addresses of the parents, as in :class:`Made`."""
        return kernel_files.names(self.parent_path(''))

    def parent_path(self, address: str) -> str:
        """Return the directory of a parent: the kernel links PCI devices and virtual ones there."""
        return os.path.join(self.root, 'class/mdev_bus', address)

    def type_path(self, address: str, name: str) -> str:
        """Return the directory of a type that a parent makes."""
        return os.path.join(self.parent_path(address), 'mdev_supported_types', name)

    def subsystem(self, address: str) -> str | None:
        """Return the subsystem of a parent; None if it cannot be read."""
        return kernel_files.link(self.parent_path(address), 'subsystem')

    def numa_node(self, address: str) -> int | None:
        """Return the NUMA node of a parent; None if it has none or it is unknown."""
        return kernel_files.number(self.parent_path(address), 'numa_node')

    def device_api(self, address: str, name: str) -> str | None:
        """Return the interface that the devices of a type have; None if it is unknown."""
        try:
            return kernel_files.text(self.type_path(address, name), 'device_api') or None
        except OSError:
            return None

    def has(self, uuid: str) -> bool:
        return os.path.lexists(self._path(uuid))

    def read(self, uuid: str) -> Made | None:
        """Read a device; None if there is none, or the kernel is just making or removing it."""
        device_type = self._link(uuid, 'mdev_type')
        if device_type is None:
            return None
        group = self._link(uuid, 'iommu_group')
        parent = os.path.basename(os.path.dirname(os.path.realpath(self._path(uuid))))
        return Made(device_type, parent, None if group is None else int(group))

    def is_open(self, uuid: str) -> bool:
        """Whether a process has a device open; False if there is no such device.

        The kernel opens a VFIO group for one process at a time, and every open device of a group keeps the group open
        (vfio_group_fops_open in Linux: drivers/vfio/group.c). If this process can open the group, no other process has
        it open, and the driver has stopped the device and released the guest's memory. This method does not open the
        device itself, because a driver would take that for the start of a guest: i915's and NVIDIA's drivers then
        refuse any other process.

        :raises OSError: the kernel cannot be asked
        """
        group = self._link(uuid, 'iommu_group')
        if group is None:
            if not self.has(uuid):
                return False
            # A kernel without VFIO groups gives mediated devices no IOMMU group.
            raise OSError(errno.EIO, 'it has no IOMMU group')
        try:
            return privileged.is_vfio_group_open(int(group))
        except FileNotFoundError:
            # The group vanishes with its device.
            if not self.has(uuid):
                return False
            raise

    def _path(self, *parts: str) -> str:
        return os.path.join(self.directory, *parts)

    def _link(self, uuid: str, name: str) -> str | None:
        return kernel_files.link(self._path(uuid), name)
