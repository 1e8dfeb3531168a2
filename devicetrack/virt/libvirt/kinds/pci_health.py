"""Why a PCI function cannot be handed out now: itself, its group, or the host that uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_use
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt.kinds import pci_cleaner
from devicetrack.virt.libvirt.kinds import pci_erasing
from devicetrack.virt.libvirt.kinds import pci_groups
from devicetrack.virt.libvirt.kinds import pci_nvme_vfs
from devicetrack.virt.libvirt.kinds import pci_options
from devicetrack.virt.libvirt.kinds import pci_ports


class Told(NamedTuple):
    """Answers about physical functions, kept so that each is asked once for all of its virtual functions."""

    controllers: pci_nvme_vfs.Told
    ports: dict[str, str | None]
    silences: dict[str, str | None]


class Health:
    """Looks at functions. Every ``read`` returns the function at an address, or None."""

    def __init__(self, tree: pci_sysfs.Tree, options: pci_options.PCIOptions, cleaner: pci_cleaner.Cleaner,
                 secondaries: pci_nvme_vfs.Secondaries) -> None:
        self._tree, self._options, self._cleaner, self._secondaries = tree, options, cleaner, secondaries

    def nothing_told(self) -> Told:
        return Told(pci_nvme_vfs.Told(self._tree), {}, {})

    def spec_of(self, function: pci_sysfs.Function) -> pci_options.DeviceSpec | None:
        """Return the spec of a function that may be handed out, or None."""
        physfn = None if function.physfn is None else self._tree.function(function.physfn)
        return self._options.ours(function, physfn)

    def problem(self, function: pci_sysfs.Function, used: str | None,
                read: Callable[[str], pci_sysfs.Function | None], told: Told) -> str | None:
        """Return why no guest can have a function now, regardless of its group; None if a guest can.

        :param used: why the host itself uses it, or None
        :param told: the answers that are known already for other functions
        """
        problem = self._besides_cleaning(function, used, read, told)
        if problem is not None:
            return problem
        try:
            return self._cleaner.obstacle(function, read)
        except OSError as error:
            return pci_erasing.unasked(error)

    def _besides_cleaning(self, function: pci_sysfs.Function, used: str | None,
                          read: Callable[[str], pci_sysfs.Function | None], told: Told) -> str | None:
        if function.problem is not None:
            return function.problem
        for address in (function.address, function.physfn or function.address):
            if address not in told.silences:
                told.silences[address] = self._tree.silence(address)
            if (silence := told.silences[address]) is not None:
                return silence
        if function.iommu_group is None:
            return 'it is in no IOMMU group: turn the IOMMU on (intel_iommu=on or amd_iommu=on, and in the firmware)'
        if used is not None:
            return f'the host uses it: {used}'
        problem = self._secondaries.problem(function, read, told.controllers)
        spec = self._options.ours(function, None if function.physfn is None else read(function.physfn))
        if problem is None and spec is not None and spec.physical_network:
            problem = pci_ports.problem(self._tree, function, told.ports)
        return problem

    def use_of(self, function: pci_sysfs.Function, use: pci_use.HostUse,
               read: Callable[[str], pci_sysfs.Function | None]) -> str | None:
        """Return why the host needs a function or one of its virtual functions, which vanish or go offline with it.

        The ledger knows nothing of virtual functions that are not offered. If such a function has the driver for
        guests, somebody uses it.
        """
        said = use.of(function.address)
        for address in () if said is not None else function.vfs:
            vf = read(address)
            if (of_vf := use.of(address)) is not None:
                return f'{address}, a virtual function of it: {of_vf}'
            if vf is not None and pci_variants.is_vfio(vf.driver) and self._options.ours(vf, function) is None:
                return f'{address}, a virtual function of it that is not offered, has the driver {vf.driver}'
        return said

    def problem_now(self, function: pci_sysfs.Function, use: pci_use.HostUse) -> str | None:
        """Return why no guest can have a function now, for itself or because of its group; None if a guest can.

        This leaves out what keeps functions from being cleaned after a guest.
        """
        members = [function] if function.iommu_group is None else [
            found for address in self._tree.group(function.iommu_group)
            if (found := self._tree.function(address)) is not None]
        read, told = self._tree.function, self.nothing_told()
        problems = {one.address: self._besides_cleaning(one, self.use_of(one, use, read), read, told)
                    for one in members if one.address == function.address or self.spec_of(one) is not None}
        return problems[function.address] or pci_groups.problem(function, pci_groups.of(members), problems)
