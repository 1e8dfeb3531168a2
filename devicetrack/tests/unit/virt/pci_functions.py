"""PCI functions for tests of what options say about them."""

from __future__ import annotations

from typing import Any

from devicetrack.virt.libvirt import pci_sysfs


def function(address: str = '0000:81:00.0', vendor_id: str = '144d', product_id: str = 'a808',
             class_code: str = '010802', **fields: Any) -> pci_sysfs.Function:
    """A function that can be reset. By default an NVMe controller."""
    return pci_sysfs.Function(address, vendor_id, product_id, class_code=class_code, reset_methods=('flr',), **fields)


NVME = function()
GPU = function('0000:0a:00.0', '10de', '25b6', '030200')
PF = function('0000:03:00.0', '8086', '10c9', '020000', net=('enp3s0',))
VF = function('0000:03:10.0', '8086', '10ca', '020000', physfn=PF.address, net=('enp3s0v0',), parent=PF)
OTHER_VF = function('0000:03:10.2', '8086', '10ca', '020000', physfn=PF.address, parent=PF)
EVERY = (NVME, GPU, PF, VF, OTHER_VF)
