"""Brings a PCI function back from the driver for guests to the host's own.

libvirt does this for guests that it manages. When it was killed at the wrong moment, nothing remembers the function,
and it stays with the driver for guests. The kernel has no step that does all at once (Linux:
Documentation/ABI/testing/sysfs-bus-pci): the override is taken away, the function unbound and reset, and the kernel
looks for its driver again. Each step may be the last one before a crash, and repeating all of them is right.
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

    :param driver: the name of the host's driver, '' for none. With one of VFIO's it stays there, if no process has it
        open
    :raises Open: a process has its VFIO group open
    :raises OSError: the function is gone, has another driver than these, or does not come to its own
    """
    function = _there(tree, address)
    stays = pci_variants.is_vfio(driver)
    if (function.driver or '') == driver and not stays:
        return
    is_vfio = pci_variants.is_vfio(function.driver)
    if function.driver is not None and not is_vfio:
        raise OSError(errno.EBUSY, f'it has the driver {function.driver}')
    if is_vfio:
        # In the middle of its group a function cannot leave: the kernel refuses the host's driver and leaves it none.
        if function.iommu_group is not None and privileged.is_vfio_group_open(function.iommu_group):
            raise Open(f'a process has the VFIO group {function.iommu_group} open')
        if stays:
            return
    elif pci_variants.is_vfio(tree.driver_override(address)):
        privileged.set_driver_override(tree.root, address, None)
    # VFIO resets a function when a guest's process closes it. Who was killed between two steps may have left it to us.
    # Before it is unbound: one whose own driver is none would look as if it were back, with no reset.
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

    :raises OSError: nobody knows
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
