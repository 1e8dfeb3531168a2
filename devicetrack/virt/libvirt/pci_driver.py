"""Brings a PCI function back from the driver for guests to the host's own.

libvirt does this for guests that it manages. When libvirt was killed at the wrong moment, it no longer knows the
function, and the function stays bound to the driver for guests. The kernel has no single operation for all of it
(Linux: Documentation/ABI/testing/sysfs-bus-pci), so this module removes the override, unbinds and resets the function,
and has the kernel look for its driver again. Each step may be the last one before a crash, and repeating all of them is
right.
"""

from __future__ import annotations

import errno

from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt import privileged


class Open(Exception):
    """A process has the function's VFIO group open."""


def bring_back(tree: pci_sysfs.Tree, address: str, driver: str) -> None:
    """Bring a function that no guest has to its driver; nothing happens if it is there.

    :param driver: the name of the host's driver, '' for none. If that is one of VFIO's drivers, the function stays
        with it, provided that no process has the function open
    :raises Open: a process has its VFIO group open
    :raises OSError: the function is gone, has a driver that is neither its own nor for guests, or does not come back to
        its own
    """
    function = _there(tree, address)
    stays = pci_variants.is_vfio(driver)
    if (function.driver or '') == driver and not stays:
        return
    is_vfio = pci_variants.is_vfio(function.driver)
    if function.driver is not None and not is_vfio:
        raise OSError(errno.EBUSY, f'it has the driver {function.driver}')
    if is_vfio:
        # A function cannot leave while its group is open: the kernel would refuse the host's driver, and the function
        # would end up with no driver.
        if function.iommu_group is not None and privileged.is_vfio_group_open(function.iommu_group):
            raise Open(f'a process has the VFIO group {function.iommu_group} open')
        if stays:
            return
    elif pci_variants.is_vfio(tree.driver_override(address)):
        privileged.set_driver_override(tree.root, address, None)
    # VFIO resets a function when a guest's process closes it. An earlier run that was killed between two steps may have
    # left the reset to this one. Reset before unbinding: after a crash in between, a function whose own driver is none
    # would look as if it were back, but without a reset.
    if function.reset_methods:
        privileged.reset(tree.root, address, None)
    if is_vfio:
        privileged.set_driver_override(tree.root, address, None)
        privileged.unbind(tree.root, address)
    if driver:
        privileged.probe(tree.root, address)
    found = _there(tree, address).driver or ''
    if found != driver:
        raise OSError(errno.EIO, f'its driver is {found or "none"} after the kernel looked for {driver or "none"}')


def has_guest(function: pci_sysfs.Function) -> bool:
    """Whether a process has the VFIO group of a function open.

    :raises OSError: it is unknown
    """
    if function.iommu_group is None:
        return False
    try:
        return privileged.is_vfio_group_open(function.iommu_group)
    except FileNotFoundError:                   # no function of the group has the driver for guests
        return False


def _there(tree: pci_sysfs.Tree, address: str) -> pci_sysfs.Function:
    function = tree.function(address)
    if function is None:
        raise OSError(errno.ENODEV, 'it is gone')
    if function.problem is not None:
        raise OSError(errno.EIO, function.problem)
    return function
