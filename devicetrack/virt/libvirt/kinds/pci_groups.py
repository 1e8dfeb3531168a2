"""IOMMU groups of PCI functions, and the other functions that cannot be handed out while somebody has one.

The functions of a group, except bridges, are offered together or not at all.

Several functions may be controllers of one NVM subsystem: a disk with two ports, for example. The guest that has one of
them can often take or delete the namespaces of the others, so one instance gets all of them that are handed out. Such
functions have one serial number, which is that of the subsystem (NVM Express Base Specification, "Serial Number"). The
number is known even while a guest has the function. But some vendors give all their disks one number. So functions of
one number are only one disk as long as nothing tells them apart: the name of the subsystem, or the word of a controller
that its subsystem has no other one.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from devicetrack import vocabulary
from devicetrack.objects import things
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt.kinds import pci_serials

# By the address of a function that shares its NVM subsystem with others: a token for all of them.
Subsystems = Mapping[str, str]
Groups = Mapping[int, Sequence[pci_sysfs.Function]]


def of(functions: Iterable[pci_sysfs.Function]) -> Groups:
    """Return the functions of each IOMMU group, without bridges, which stay with the host."""
    groups: dict[int, list[pci_sysfs.Function]] = {}
    for function in functions:
        if function.iommu_group is not None and not function.is_bridge:
            groups.setdefault(function.iommu_group, []).append(function)
    return groups


def problem(function: pci_sysfs.Function, groups: Groups, problems: Mapping[str, str | None]) -> str | None:
    """Return why no guest can have a function because of its IOMMU group; None if the group allows it.

    :param problems: by address, for each function that is offered, why no guest can have it regardless of its group
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
            return f'{where}, which is not offered: only a whole group can be handed out'
        if problems[other.address] is not None:
            return f'{where}, and {problems[other.address]}'
    return None


def subsystems(functions: Iterable[pci_sysfs.Function], cards: pci_serials.Cards,
               is_alone: Callable[[pci_sysfs.Function], bool]) -> tuple[Subsystems, frozenset[str]]:
    """Return a token for each NVM subsystem that has several of these functions, by the addresses of the functions.

    Virtual functions have none: the rules for their physical function hold for them.

    :param is_alone: whether a controller says that its subsystem has no other one
    :returns: the tokens, and the addresses of functions that have the serial number of others and share nothing
    """
    by_token: dict[str, list[pci_sysfs.Function]] = {}
    for function in functions:
        serial = cards.serials.get(function.address)
        # A function whose class cannot be read may be a disk.
        if serial and function.physfn is None and (pci_serials.is_nvme(function) or not function.class_code):
            by_token.setdefault(f'nvm:{function.vendor_id}:{serial}', []).append(function)

    def may_share(one: pci_sysfs.Function, other: pci_sysfs.Function) -> bool:
        if one.address.rpartition('.')[0] == other.address.rpartition('.')[0]:
            return True                         # they are on one card
        named = {cards.subsystems.get(one.address), cards.subsystems.get(other.address)}
        if len(named) > 1 and None not in named:
            return False
        # Of two that guests have, nobody can ask either, and neither is free for anybody.
        return not (pci_variants.is_vfio(one.driver) and pci_variants.is_vfio(other.driver)
                    or is_alone(one) or is_alone(other))

    found: dict[str, str] = {}
    apart = set[str]()
    for token, members in by_token.items():
        for one in members if len(members) > 1 else ():
            if any(may_share(one, other) for other in members if other is not one):
                found[one.address] = token
            else:
                apart.add(one.address)
    return found, frozenset(apart)


def exclusions(function: pci_sysfs.Function, groups: Groups, subsystems_of: Subsystems) -> tuple[tuple[str, str], ...]:
    """Return what else cannot be handed out while somebody has a function, in the form of the stock."""
    found = [*things.of_card(function.address, function.physfn, bool(function.total_vfs))]
    if function.iommu_group is not None and len(groups.get(function.iommu_group, ())) > 1:
        found.append((things.of_group(function.iommu_group), vocabulary.TOGETHER))
    if (subsystem := subsystems_of.get(function.address)) is not None:
        found.append((subsystem, vocabulary.TOGETHER))
    return tuple(found)
