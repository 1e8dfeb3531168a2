"""What the kernel says of mediated devices (Linux: Documentation/ABI/testing/sysfs-bus-vfio-mdev)."""

from __future__ import annotations

import os

from devicetrack.virt.libvirt import privileged

DEVICES = '/sys/bus/mdev/devices'


class Kernel:
    """The kernel of this host.

    :param directory: its list of mediated devices
    """

    def __init__(self, directory: str = DEVICES) -> None:
        self.directory = directory

    def has(self, uuid: str) -> bool:
        return os.path.lexists(os.path.join(self.directory, uuid))

    def type_of(self, uuid: str) -> str | None:
        """The type that a device was made as; None when there is no such device."""
        return self._link(uuid, 'mdev_type')

    def is_open(self, uuid: str) -> bool:
        """Whether anybody has a device open; False when there is no such device.

        The kernel opens a VFIO group for one at a time, and every open device of a group keeps it open
        (vfio_group_fops_open in Linux: drivers/vfio/group.c). So who can open it knows that nobody else has it, and
        that the driver was told of the last one's closing, which is when it stops the device and lets go of the
        guest's memory. The device itself is not opened, for to a driver that is the start of a guest: i915 and
        NVIDIA's refuse who is none.

        :raises OSError: the kernel cannot be asked
        """
        group = self._link(uuid, 'iommu_group')
        if group is None:
            return False
        try:
            return privileged.is_vfio_group_open(int(group))
        except FileNotFoundError:
            # The group goes with its device.
            if not self.has(uuid):
                return False
            raise

    def _link(self, uuid: str, name: str) -> str | None:
        try:
            return os.path.basename(os.readlink(os.path.join(self.directory, uuid, name)))
        except OSError:
            return None
