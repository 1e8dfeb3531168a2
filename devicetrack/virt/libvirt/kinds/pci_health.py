"""Why a PCI function cannot be handed out now: itself, its group, or the host that uses it."""

from __future__ import annotations

from collections.abc import Callable
import functools
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


class Asking(NamedTuple):
    """Functions that ask about physical functions, each once for all of its virtual ones."""

    controller: pci_nvme_vfs.Ask
    port: Callable[[str], str | None]
    silence: Callable[[str], str | None]


class Health:
    """Looks at functions."""

    def __init__(self, tree: pci_sysfs.Tree, options: pci_options.PCIOptions, cleaner: pci_cleaner.Cleaner,
                 secondaries: pci_nvme_vfs.Secondaries) -> None:
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

    def _besides_cleaning(self, function: pci_sysfs.Function, used: str | None, ask: Asking) -> str | None:
        if function.problem is not None:
            return function.problem
        for address in (function.address, function.physfn or function.address):
            if (silence := ask.silence(address)) is not None:
                return silence
        if function.iommu_group is None:
            return 'it is in no IOMMU group: turn the IOMMU on (intel_iommu=on or amd_iommu=on, and in the firmware)'
        if used is not None:
            return f'the host uses it: {used}'
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
        return problems[function.address] or pci_groups.problem(function, pci_groups.of(members), problems)
