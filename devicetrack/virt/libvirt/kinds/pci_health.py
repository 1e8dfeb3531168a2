"""Why a PCI function cannot be handed out now, by itself, its group or the host that uses it; and what goes with it.

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
import functools
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.objects import things
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_use
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import pci_cleaner
from devicetrack.virt.libvirt.kinds import pci_erasing
from devicetrack.virt.libvirt.kinds import pci_options
from devicetrack.virt.libvirt.kinds import pci_ports
from devicetrack.virt.libvirt.kinds import pci_vfs

# By the address of a function that shares its NVM subsystem with others: a token for all of them.
Subsystems = Mapping[str, str]
Groups = Mapping[int, Sequence[pci_sysfs.Function]]


def groups_of(functions: Iterable[pci_sysfs.Function]) -> Groups:
    """Return the functions of each IOMMU group, without bridges, which stay with the host."""
    groups: dict[int, list[pci_sysfs.Function]] = {}
    for function in functions:
        if function.iommu_group is not None and not function.is_bridge:
            groups.setdefault(function.iommu_group, []).append(function)
    return groups


def problem_of_group(function: pci_sysfs.Function, groups: Groups, problems: Mapping[str, str | None]) -> str | None:
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


def subsystems(functions: Iterable[pci_sysfs.Function], cards: pci_cards.Cards,
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
        if serial and function.physfn is None and (pci_cards.is_nvme(function) or not function.class_code):
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


def torn(function: pci_sysfs.Function, groups: Groups) -> str | None:
    """Return why a guest cannot start with a function: the host keeps a part of its group. None if it keeps none.

    VFIO takes a group only when each of its functions, bridges aside, has a driver for guests or none. libvirt takes
    from the host only those functions that the guest gets.
    """
    for other in groups.get(-1 if function.iommu_group is None else function.iommu_group, ()):
        if other.address != function.address and other.driver is not None and not pci_variants.is_vfio(other.driver):
            return (f'its IOMMU group {function.iommu_group} also has {other.address}, which has the driver '
                    f'{other.driver} of the host: only a guest that gets both can start')
    return None


class Asking(NamedTuple):
    """Functions that ask about physical functions, each once for all of its virtual ones."""

    controller: pci_vfs.Ask
    port: Callable[[str], str | None]
    silence: Callable[[str], str | None]


class Health:
    """Looks at functions."""

    def __init__(self, tree: pci_sysfs.Tree, options: pci_options.PCIOptions, cleaner: pci_cleaner.Cleaner,
                 secondaries: pci_vfs.Secondaries) -> None:
        self._tree, self._options, self._cleaner, self._secondaries = tree, options, cleaner, secondaries

    def asking(self) -> Asking:
        return Asking(self._secondaries.asking(), functools.cache(functools.partial(pci_ports.problem, self._tree)),
                      functools.cache(self._tree.silence))

    def problem(self, function: pci_sysfs.Function, used: str | None, ask: Asking) -> str | None:
        """Return why no guest can have a function now, regardless of its group; None if a guest can.

        :param used: why the host itself uses it, or None
        """
        problem = self._besides_cleaning(function, used, ask)
        if problem is not None:
            return problem
        try:
            return self._cleaner.obstacle(function)
        except OSError as error:
            return pci_erasing.unasked(error)

    @staticmethod
    def problem_of_any(function: pci_sysfs.Function, used: str | None, ask: Asking) -> str | None:
        """Return why no guest can have a function now, whoever hands it out, as far as the function itself shows."""
        if function.problem is not None:
            return function.problem
        for address in (function.address, function.physfn or function.address):
            if (silence := ask.silence(address)) is not None:
                return silence
        if function.iommu_group is None:
            return 'it is in no IOMMU group: turn the IOMMU on (intel_iommu=on or amd_iommu=on, and in the firmware)'
        return None if used is None else f'the host uses it: {used}'

    def _besides_cleaning(self, function: pci_sysfs.Function, used: str | None, ask: Asking) -> str | None:
        problem = self.problem_of_any(function, used, ask)
        if problem is not None:
            return problem
        problem = self._secondaries.problem(function, ask.controller)
        spec = self._options.ours(function)
        if problem is None and spec is not None and spec.physical_network and function.physfn is not None:
            problem = ask.port(function.physfn)
        return problem

    def use_of(self, function: pci_sysfs.Function, use: pci_use.HostUse,
               read: Callable[[str], pci_sysfs.Function | None] | None = None) -> str | None:
        """Return why the host needs a function or one of its virtual functions, which vanish or go offline with it.

        The ledger knows nothing of virtual functions that are not offered. If such a function has the driver for
        guests, somebody uses it.

        :param read: returns a virtual function by its address, by default from sysfs
        """
        said = use.of(function.address)
        for address in () if said is not None else function.vfs:
            vf = (read or self._tree.function)(address)
            if (of_vf := use.of(address)) is not None:
                return f'{address}, a virtual function of it: {of_vf}'
            if vf is not None and pci_variants.is_vfio(vf.driver) and self._options.ours(vf) is None:
                return f'{address}, a virtual function of it that is not offered, has the driver {vf.driver}'
        return said

    def problem_now(self, function: pci_sysfs.Function, use: pci_use.HostUse) -> str | None:
        """Return why no guest can have a function now, for itself or because of its group; None if a guest can.

        This leaves out what keeps functions from being cleaned after a guest.
        """
        members = [function] if function.iommu_group is None else [
            found for address in self._tree.group(function.iommu_group)
            if (found := self._tree.function(address)) is not None]
        ask = self.asking()
        problems = {one.address: self._besides_cleaning(one, self.use_of(one, use), ask)
                    for one in members if one.address == function.address or self._options.ours(one) is not None}
        return problems[function.address] or problem_of_group(function, groups_of(members), problems)
