"""Models of PCI functions for the hosts of :mod:`devicetrack.testing.pci`.

The values are those of QEMU's emulated devices on Linux 6.12. Make another model with
``pci_models.IGB._replace(product='8086:1520')``.
"""

from __future__ import annotations

import struct
from typing import Final
from typing import NamedTuple

_BRIDGE_CLASS: Final = '060400'
_NVME_REGISTERS: Final = '010802'
_ETHERNET: Final = '020000'


class Model(NamedTuple):
    """A model of PCI function. ``driver`` takes the function unless ``driver_override`` names another driver.

    ``vf`` is the model of its virtual functions. Their addresses follow from ``vf_offset`` and ``vf_stride``, as in the
    SR-IOV capability. If ``drops_vfs`` is set, the virtual functions vanish when the driver ends. If ``makes_all_vfs``
    is set, the driver makes all that the card can have, whatever number is asked for.
    """

    product: str
    class_code: str
    driver: str | None
    reset_methods: tuple[str, ...] = ('flr', 'bus')
    total_vfs: int = 0
    vf: Model | None = None
    vf_offset: int = 0
    vf_stride: int = 1
    drops_vfs: bool = True
    makes_all_vfs: bool = False


NVME: Final = Model('1b36:0010', _NVME_REGISTERS, 'nvme')
# The virtual functions have no driver: their controllers are offline until somebody assigns resources to them.
NVME_SRIOV: Final = NVME._replace(total_vfs=4, vf=NVME._replace(driver=None, reset_methods=('flr',)), vf_offset=1,
                                  drops_vfs=False)
IGB: Final = Model('8086:10c9', _ETHERNET, 'igb', ('flr', 'pm', 'bus'), 7,
                  Model('8086:10ca', _ETHERNET, 'igbvf', ('flr',)), 128, 2)
E1000: Final = Model('8086:100e', _ETHERNET, 'e1000', ())
E1000E: Final = Model('8086:10d3', _ETHERNET, 'e1000e', ('pm', 'bus'))
# adf_sriov_configure in Linux: drivers/crypto/intel/qat/qat_common/adf_sriov.c.
QAT: Final = Model('8086:37c8', '0b4000', 'c6xx', ('flr',), 16, Model('8086:37c9', '0b4000', None, ('flr',)), 8,
                   makes_all_vfs=True)
EDU: Final = Model('1234:11e8', '00ff00', None, ('bus',))
TEST_DEVICE: Final = Model('1b36:0005', '00ff00', None, ())
BRIDGE: Final = Model('1b36:000e', _BRIDGE_CLASS, None, ())
# The controller in front of NVMe disks, which are in a PCI domain of their own.
VMD: Final = Model('8086:28c0', '010400', 'vmd', ('flr',))

NETWORK_DRIVERS: Final = frozenset(model.driver for model in (IGB, IGB.vf, E1000, E1000E) if model is not None)

# One memory BAR of 16 KiB, and no other.
RESOURCE: Final = ('0x00000000fe000000 0x00000000fe003fff 0x0000000000140204\n'
                    + '0x0000000000000000 0x0000000000000000 0x0000000000000000\n' * 12)


def config_header(model: Model) -> bytes:
    """The first 64 bytes of the configuration space."""
    numbers = [int(word, 16) for word in model.product.split(':')]
    return struct.pack('<HHHHB3sBBBB7IHHII8x', *numbers, 0x0006, 0x0010, 0x02,
                       bytes.fromhex(model.class_code)[::-1], 0x10, 0, 0, 0, 0xFE000004, *[0] * 6, 0x1AF4, 0x1100, 0,
                       0x40)


def modalias(model: Model) -> str:
    vendor, product = model.product.upper().split(':')
    base, sub, interface = (model.class_code[place:place + 2].upper() for place in (0, 2, 4))
    return f'pci:v0000{vendor}d0000{product}sv00001AF4sd00001100bc{base}sc{sub}i{interface}'
