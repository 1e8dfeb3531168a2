"""Tells which driver for guests a PCI function gets: VFIO's own, or a variant that a vendor wrote; and what it can do.

VFIO's own driver, ``vfio-pci``, hands over any function and cannot copy a function's state. A variant is for certain
functions, and only a variant can migrate one (Linux: drivers/vfio/pci, VFIO_DEVICE_FEATURE_MIGRATION in
include/uapi/linux/vfio.h). A variant's module says for which functions it is::

    alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci       in /lib/modules/<release>/modules.alias

libvirt from 10.0 binds a managed function to the best of them, the one with the fewest wildcards, and else to
``vfio-pci`` (its release notes). Nobody can ask VFIO beforehand what a function can do: only the process that has the
function open may ask, and that is the guest's. While a driver of VFIO has a function, a kernel with debugfs for VFIO
tells root (Linux: Documentation/ABI/testing/debugfs-vfio).
"""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Final
from typing import NamedTuple

from devicetrack.virt.libvirt import pci_sysfs

# The driver for any function (Linux: Documentation/driver-api/vfio.rst).
PLAIN: Final = 'vfio-pci'

MODULES: Final = f'/lib/modules/{os.uname().release}/modules.alias'

# libvirt looks for a variant since its release 10.0.0.
FIRST_LIBVIRT: Final = 10_000_000

_ALIAS: Final = re.compile(r'alias (vfio_pci:v\S+) (\S+)')
_WILDCARD: Final = '*'


def is_vfio(driver: str | None) -> bool:
    """Whether a function's driver is one for guests. The names of all these drivers end alike."""
    return driver is not None and _marked(driver).endswith(PLAIN)


def is_variant(driver: str | None) -> bool:
    """Whether a function's driver is a vendor's driver for guests."""
    return driver is not None and is_vfio(driver) and _marked(driver) != PLAIN


def _marked(name: str) -> str:
    """Return a driver's or module's name with dashes: the kernel has both, as in mlx5_vfio_pci and pds-vfio-pci."""
    return name.replace('_', '-')


class _Alias(NamedTuple):
    pattern: str
    module: str


class Variants:
    """The variants for which this kernel has modules now. Without the file there are none, for libvirt either.

    :param path: the file with the aliases of the kernel's modules; by default :data:`MODULES`, for the running kernel
    """

    def __init__(self, path: str | None = None) -> None:
        try:
            with open(path or MODULES, encoding='ascii', errors='replace') as file:
                self._aliases = [_Alias(*match.groups()) for line in file if (match := _ALIAS.match(line)) is not None]
        except OSError:
            self._aliases = []

    def best(self, function: pci_sysfs.Function) -> str | None:
        """Return the module of the best variant for a function, as libvirt chooses it; None for VFIO's own driver."""
        modalias = _modalias(function)
        found = [alias for alias in self._aliases
                 if is_variant(alias.module) and fnmatch.fnmatchcase(modalias, alias.pattern)]
        return min(found, key=lambda alias: alias.pattern.count(_WILDCARD)).module if found else None


def says_no(root: str, address: str) -> bool:
    """Whether VFIO says that a function's driver cannot migrate it. False also if VFIO says nothing.

    :param root: where sysfs is
    """
    directory = os.path.join(root, 'kernel/debug/vfio', address)
    try:
        return 'migration' not in os.listdir(directory)
    except OSError:                             # only root may read debugfs, and few kernels have it for VFIO
        return False


def _modalias(function: pci_sysfs.Function) -> str:
    vendor, product = (function.subsystem or '0000:0000').upper().split(':')
    base, sub, interface = (function.class_code[place:place + 2].upper() for place in (0, 2, 4))
    return (f'vfio_pci:v0000{function.vendor_id.upper()}d0000{function.product_id.upper()}sv0000{vendor}'
            f'sd0000{product}bc{base}sc{sub}i{interface}')
