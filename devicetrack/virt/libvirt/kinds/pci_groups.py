"""IOMMU groups of PCI functions, and what else cannot be handed out while somebody has a function.

A group goes whole: what shares one is offered together or not at all, bridges aside.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from devicetrack import vocabulary
from devicetrack.virt.libvirt import pci_sysfs

Groups = Mapping[int, Sequence[pci_sysfs.Function]]


def of(functions: Iterable[pci_sysfs.Function]) -> Groups:
    """The functions of each IOMMU group, without bridges, which stay with the host."""
    groups: dict[int, list[pci_sysfs.Function]] = {}
    for function in functions:
        if function.iommu_group is not None and not function.is_bridge:
            groups.setdefault(function.iommu_group, []).append(function)
    return groups


def problem(function: pci_sysfs.Function, groups: Groups, problems: Mapping[str, str | None]) -> str | None:
    """Why no guest can have a function because of its IOMMU group; None if that keeps nobody away.

    :param problems: by address, for each function that is offered, why no guest can have it by itself
    """
    group = function.iommu_group
    if group is None:
        return None
    for other in groups.get(group, ()):
        if other.address == function.address:
            continue
        where = f'its IOMMU group {group} also has {other.address}'
        if other.address == function.physfn:
            return f'{where}, its physical function, which stays with the host: the platform does not separate them'
        if other.address not in problems:
            return f'{where}, which is not offered: a group goes whole'
        if problems[other.address] is not None:
            return f'{where}, and {problems[other.address]}'
    return None


def exclusions(function: pci_sysfs.Function, groups: Groups) -> tuple[tuple[str, str], ...]:
    """What else cannot be handed out while somebody has a function, in the form of the stock."""
    found = []
    if function.physfn is not None:
        found.append((f'sriov:{function.physfn}', vocabulary.PART))
    elif function.total_vfs:
        found.append((f'sriov:{function.address}', vocabulary.WHOLE))
    if function.iommu_group is not None and len(groups.get(function.iommu_group, ())) > 1:
        found.append((f'iommu:{function.iommu_group}', vocabulary.TOGETHER))
    return tuple(found)
