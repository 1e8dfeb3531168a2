"""Tells which PCI functions can move with a running guest: options must declare them, and a driver copy their state.

Operators declare functions with ``live_migratable`` in ``[pci] device_spec``, as for Nova. A function that is not
declared has a type of its own and an obstacle by its details (:class:`devicetrack.objects.PCIDetails`). This module is
about the declared ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Final

from devicetrack.objects import PCIDetails
from devicetrack.objects.values import MigrationType
from devicetrack.virt.libvirt import attributes
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt.kinds import pci_options

KIND: Final = 'pci'


def obstacle_of_all(options: pci_options.PCIOptions) -> str | None:
    """Return why the options let no function move at all; None if they declare one."""
    if any(spec.live_migratable and not spec.physical_network for spec in options.specs):
        return None
    return f'no {pci_options.SPECS} says live_migratable'


def types(tree: pci_sysfs.Tree, paths: attributes.Paths,
          offered: Iterable[tuple[pci_sysfs.Function, pci_options.DeviceSpec]],
          versions: vfio_migration.Versions | None) -> Sequence[MigrationType]:
    """Read what is declared about each type of function at each physical function.

    :param paths: the attributes by which drivers declare versions
    :param versions: the host's versions, since libvirt binds managed functions; None if the hypervisor is not QEMU
    """
    # A port stays at its card, as its details say.
    declared = [(function, spec) for function, spec in offered if spec.live_migratable and not spec.physical_network]
    if not declared:
        return ()
    variants, found = pci_variants.Variants(), dict[tuple[str, str], MigrationType]()
    for function, spec in declared:
        parent = function.physfn or function.address
        migration_type = PCIDetails.migration_type_of(function.device_type, function.vendor_id, function.product_id)
        known = found.get((parent, migration_type))
        if known is None:
            directory = tree.path(parent)
            named = MigrationType(KIND, parent, migration_type, obstacle=_obstacle(function, spec, versions, variants))
            found[parent, migration_type] = paths.read(tree.root, named, directory, directory)
        elif known.obstacle is not None and _obstacle(function, spec, versions, variants) is None:
            # One function that can move is enough: it may be the only one that is bound to its driver already.
            found[parent, migration_type] = known._replace(obstacle=None)
    return tuple(found.values())


def obstacle_of(sysfs: str, details: PCIDetails, function: pci_sysfs.Function) -> str | None:
    """Return why the guest that has a function cannot move with it; None if no reason is known."""
    if details.migration_obstacle is not None:
        return str(details.migration_obstacle)
    if pci_variants.is_vfio(function.driver) and not pci_variants.is_variant(function.driver):
        return f'{function.address} has the driver {function.driver}, which cannot copy its state'
    if pci_variants.says_no(sysfs, function.address):
        return f'VFIO says that its driver {function.driver} cannot migrate {function.address}'
    return None


def _obstacle(function: pci_sysfs.Function, spec: pci_options.DeviceSpec,
              versions: vfio_migration.Versions | None, variants: pci_variants.Variants) -> str | None:
    """Return why a guest that gets a function now could not move with it; None if it could."""
    if pci_variants.is_variant(function.driver):
        return None
    if not spec.managed:
        return (f'{function.address} has the driver {function.driver or "(none)"}: bind it to one that can migrate '
                'it')
    variant = variants.best(function)
    if variant is None:
        return (f'{function.address} gets the driver {pci_variants.PLAIN}: this kernel has no module that can '
                f'migrate {function.vendor_id}:{function.product_id}')
    if versions is not None and versions.libvirt < pci_variants.FIRST_LIBVIRT:
        return (f'libvirt {vfio_migration.text(versions.libvirt)} does not bind {function.address} to {variant}, '
                f'but libvirt {vfio_migration.text(pci_variants.FIRST_LIBVIRT)} does')
    return None
