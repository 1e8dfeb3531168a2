"""PCI functions for tests of what options say about them."""

from __future__ import annotations

from typing import NamedTuple


class Function(NamedTuple):
    """What options ask of a function. By default an NVMe controller."""

    address: str = '0000:81:00.0'
    vendor_id: str = '144d'
    product_id: str = 'a808'
    class_code: str = '010802'
    physfn: str | None = None
    net: tuple[str, ...] = ()
    reset_methods: tuple[str, ...] = ('flr',)


NVME = Function()
GPU = Function('0000:0a:00.0', '10de', '25b6', '030200')
PF = Function('0000:03:00.0', '8086', '10c9', '020000', net=('enp3s0',))
VF = Function('0000:03:10.0', '8086', '10ca', '020000', PF.address, ('enp3s0v0',))
OTHER_VF = Function('0000:03:10.2', '8086', '10ca', '020000', PF.address)
EVERY = (NVME, GPU, PF, VF, OTHER_VF)
PHYSFN = {VF: PF, OTHER_VF: PF}
