"""The names by which options mean a function that comes back from a guest: its address, and its network interfaces.

A function has its driver before it has an interface, and udev gives the interface its name later still. A card may also
have come to another address. So the row has the names that the claim found, and a policy follows from these and from
the present ones. If the policies differ, the stricter one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from devicetrack.objects import DeviceAssignment
from devicetrack.objects import PCIDetails
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_cleaning
from devicetrack.virt.libvirt.kinds import pci_options
from devicetrack.virt.libvirt.kinds import pci_places

# The first two digits of the class code of network controllers (PCI Code and ID Assignment).
_NETWORK: Final = '02'


def interfaces(function: pci_sysfs.Function) -> tuple[str, ...] | None:
    """Return the names of the interfaces of a function, and of its physical one.

    :returns: None if it may have others with its driver of the host
    """
    if may_have_one(function) and function.driver is not None and not function.net:
        return None
    return tuple(sorted({*function.net, *(() if function.parent is None else function.parent.net)}))


def may_have_one(function: pci_sysfs.Function) -> bool:
    """Whether a function may get an interface later."""
    return function.class_code.startswith(_NETWORK)


def policies(options: pci_options.PCIOptions, tree: pci_sysfs.Tree, assignment: DeviceAssignment,
             function: pci_sysfs.Function) -> frozenset[pci_cleaning.Policy]:
    """Return the policies of a function by the names that it has now and by those that the claim found.

    If the claim did not find its interfaces, these are the policies by all names that the function may have.
    """
    recorded = assignment.details

    def of(one: pci_sysfs.Function) -> pci_cleaning.Policy:
        return options.cleaning_of(one, lambda _address: tree.is_alone(function.address))

    def claimed(names: tuple[str, ...]) -> pci_cleaning.Policy:
        # The names of the physical function's interfaces are among these.
        return of(function._replace(
            address=pci_places.claimed_at(assignment.identifier), net=names, parent=None,
            physfn=None if function.physfn is None else recorded.claimed_parent or function.physfn))

    found = {of(function)}
    if recorded.interfaces is not None:
        return frozenset(found | {claimed(tuple(recorded.interfaces))})
    beside = () if function.parent is None else function.parent.net
    found.add(claimed((*function.net, *beside)))
    if may_have_one(function) and not options.devnames.intersection(function.net):
        found |= _possible(options, tree, function, lambda name: claimed((name, *beside)))
        if len(found) > 1:
            found.add(pci_cleaning.Policy(pci_cleaning.PERSON))
    return frozenset(found)


def is_offered(options: pci_options.PCIOptions, name: str, row: PCIDetails) -> bool:
    """Whether the options offer the function of a row, by its names at the claim or by its last address."""
    if row.interfaces is None and any(match.devname for match in (
            *options.functions, *(spec.match for spec in options.specs))):
        return True                             # nobody knows whether one of them was its interface
    net = tuple(row.interfaces or ())           # those of its physical function, too
    return any(options.ours(pci_sysfs.Function(address, row.vendor_id, row.product_id, physfn=physfn or None,
                                               net=net)) is not None
               for address, physfn in ((pci_places.claimed_at(name), row.claimed_parent or row.parent_address),
                                       (row.address, row.parent_address)))


def _possible(options: pci_options.PCIOptions, tree: pci_sysfs.Tree, function: pci_sysfs.Function,
              policy_by: Callable[[str], pci_cleaning.Policy]) -> set[pci_cleaning.Policy]:
    """Return the policies by those names in the options that no other function has now."""
    return {policy_by(name) for name in options.devnames if tree.owner_of(name) in (None, function.address)}


def strictest(found: frozenset[pci_cleaning.Policy]) -> pci_cleaning.Policy:
    """Return the policy to carry out. Nobody can tell which of two ways to clean is right, so a person does."""
    cleaning = [policy for policy in found if policy.name != pci_cleaning.NONE]
    if len(cleaning) > 1:
        return pci_cleaning.Policy(pci_cleaning.PERSON)
    return cleaning[0] if cleaning else pci_cleaning.Policy(pci_cleaning.NONE)
