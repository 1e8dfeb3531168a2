"""Reads the PCI functions of a host again and again, each in full only when it may have changed.

An audit reads them all, and a host has thousands. Every audit reads what a few listings show: which functions there
are, which driver each has, its network interfaces and its controller. It reads the rest of a function again only when
one of these changed. That is right because the rest depends on them:

- Another function at the address has another link in sysfs, and so has the same function after it left the bus.
- Vendor, product, subsystem, class, physical function and number of a virtual one never change while it is there.
- The IOMMU group is assigned when a function comes or gets a driver. A function without a group is read every time.
- The number of possible virtual functions is up to the driver. The list of all functions shows which ones exist: when
  that list changed, physical functions are read again.
- A function with an NVMe controller, or one that could not be read, is read in full every time.

An administrator can write a reset method or a NUMA node while nothing else changes. So each look reads a part of the
functions in full, and ``LOOKS`` looks read them all. Nobody hands out or takes back a function by the remembered
values: that code reads the function itself, and the host's use of functions is read every time.

The kernel counts its events (``/sys/kernel/uevent_seqnum``). This module ignores the count: a driver has a function
for a while before the kernel sends the event, and on a host with guests the count changes all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
import threading
from typing import Final

from devicetrack.virt.libvirt import pci_sysfs

LOOKS: Final = 32


class Rereading:
    """The functions of one host. Threads may share it."""

    def __init__(self, tree: pci_sysfs.Tree) -> None:
        self._tree = tree
        self._links: Mapping[str, int] = {}
        self._known: dict[str, pci_sysfs.Function] = {}
        self._turn = 0
        self._mutex = threading.Lock()

    def functions(self) -> list[pci_sysfs.Function]:
        """As :meth:`.pci_sysfs.Tree.functions`.

        :raises CommandFailed: they cannot be listed; one that cannot be read has a ``problem`` instead
        """
        with self._mutex:
            # The look comes first, so that the next look notices anything that changes after it.
            look = self._tree.look()
            addresses = sorted(look.links)
            # Read neighbours together, because a virtual function is read with its physical one.
            some = set(addresses[self._turn * len(addresses) // LOOKS:(self._turn + 1) * len(addresses) // LOOKS])
            self._turn = (self._turn + 1) % LOOKS
            others_came_or_went = look.links != self._links
            kept = {address: known for address in addresses
                    if address not in some and (known := self._as_known(address, look)) is not None
                    and not (others_came_or_went and known.total_vfs)}
            kept.update((function.address, function) for function in self._tree.read(
                [address for address in addresses if address not in kept], look))
            # One that was kept belongs to its physical function as that is now.
            for address, function in kept.items():
                if function.physfn is not None and (parent := kept.get(function.physfn)) is not function.parent:
                    kept[address] = function._replace(parent=parent)
            self._links, self._known = look.links, kept
            return [kept[address] for address in addresses if address in kept]

    def _as_known(self, address: str, look: pci_sysfs.Look) -> pci_sysfs.Function | None:
        """Return a function as it was read last, if nothing shows that it has changed."""
        known = self._known.get(address)
        if known is None or look.links[address] != self._links.get(address) or address in look.controllers:
            return None
        if known.problem is not None or known.iommu_group is None or known.serial is not None:
            return None
        there = look.drivers.get(address), look.interfaces.get(address, ())
        return known if there == (known.driver, known.net) else None
