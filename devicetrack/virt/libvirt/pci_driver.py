"""Brings a PCI function back from the driver for guests to the host's own.

libvirt does this for guests that it manages. When libvirt was killed at the wrong moment, it no longer knows the
function, and the function stays bound to the driver for guests. The kernel has no single operation for all of it
(Linux: Documentation/ABI/testing/sysfs-bus-pci), so this module removes the override, unbinds and resets the function,
and has the kernel look for its driver again. Each step may be the last one before a crash, and repeating all of them is
right.
"""

from __future__ import annotations

import errno

from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt import privileged


class Open(Exception):
    """A process has the function's VFIO group open."""


def bring_back(tree: pci_sysfs.Tree, address: str, driver: str) -> None:
    """Bring a function that no guest has to its driver; nothing happens if it is there.

    :param driver: the name of the driver that the claim found, '' for none. If that is one of VFIO's, the host's is
        unknown, for example because the function was adopted from a guest. Then it stays with any, provided that no
        process has it open by VFIO
    :raises Open: a process has its VFIO group open
    :raises OSError: the function is gone, somebody gave it another driver that is not for guests, or it does not come
        back to its own
    """
    function = _there(tree, address)
    is_vfio, stays = (pci_variants.is_vfio(name) for name in (function.driver, driver))
    if not is_vfio and (stays or (function.driver or '') == driver):
        return
    if function.driver is not None and not is_vfio:
        raise OSError(errno.EBUSY, f'its driver is {function.driver}, but the claim found {driver or "none"}: somebody '
                                   'changed it')
    if is_vfio:
        # A function cannot leave while its group is open: the kernel would refuse the host's driver, and the function
        # would end up with no driver.
        if function.iommu_group is not None and privileged.is_vfio_group_open(function.iommu_group):
            raise Open(f'a process has the VFIO group {function.iommu_group} open')
        if stays:
            return
    elif pci_variants.is_vfio(tree.driver_override(address)):
        pci_privileged.set_driver_override(tree.root, address, None)
    # VFIO resets a function when a guest's process closes it. An earlier run that was killed between two steps may have
    # left the reset to this one. Reset before unbinding: after a crash in between, a function whose own driver is none
    # would look as if it were back, but without a reset.
    if function.reset_methods:
        pci_privileged.reset(tree.root, address, None)
    if is_vfio:
        pci_privileged.set_driver_override(tree.root, address, None)
        pci_privileged.unbind(tree.root, address)
    if driver:
        pci_privileged.probe(tree.root, address)
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


def may_come_back(function: pci_sysfs.Function, driver: str) -> bool:
    """Whether a function may be on its way to its driver, since libvirt takes a moment for that after a guest."""
    return not pci_variants.is_vfio(driver) and (function.driver or '') != driver and (
        function.driver is None or pci_variants.is_vfio(function.driver))
