"""Reads the PCI functions of a host again and again, each in full only when it may have changed.

An audit reads them all, and a host has thousands. What a few listings show is read every time: which functions there
are, which driver each has, its network interfaces and its controller. The rest of a function is read again when one of
these changed. That is right because the rest hangs on them:

- Another function at the address, or the same one after it left the bus, has another link in sysfs.
- Vendor, product, subsystem, class, physical function and number of a virtual one never change while it is there.
- The IOMMU group is assigned when a function comes or gets a driver. A function without a group is read every time.
- The number of virtual functions that are possible is up to the driver. Which ones there are, the list of all functions
  shows: when that changed, physical functions are read again.
- What has an NVMe controller, and what could not be read, is read every time.

A reset method and a NUMA node can be written by an administrator while nothing else changes. So at each look a part of
the functions is read in full, and after ``LOOKS`` of them all were. Nobody hands out or takes back a function by
what is remembered here: who does reads that function itself, and what the host uses is read every time.

The kernel counts its events (``/sys/kernel/uevent_seqnum``). The count decides nothing here: a driver has a function
for a while before its event is sent, and on a host with guests the count never rests.
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
            # The look comes first: what changes after it differs from the next look.
            look = self._tree.look()
            addresses = sorted(look.links)
            # Neighbours, because a virtual function is read with its physical one.
            some = set(addresses[self._turn * len(addresses) // LOOKS:(self._turn + 1) * len(addresses) // LOOKS])
            self._turn = (self._turn + 1) % LOOKS
            others_came_or_went = look.links != self._links
            kept = {address: known for address in addresses
                    if address not in some and (known := self._as_known(address, look)) is not None
                    and not (others_came_or_went and known.total_vfs)}
            kept.update((function.address, function) for function in self._tree.read(
                [address for address in addresses if address not in kept], look))
            self._links, self._known = look.links, kept
            return [kept[address] for address in addresses if address in kept]

    def _as_known(self, address: str, look: pci_sysfs.Look) -> pci_sysfs.Function | None:
        """A function as it was read, if nothing says that it has changed."""
        known = self._known.get(address)
        if known is None or look.links[address] != self._links.get(address) or address in look.controllers:
            return None
        if known.problem is not None or known.iommu_group is None or known.serial is not None:
            return None
        there = look.drivers.get(address), look.interfaces.get(address, ())
        return known if there == (known.driver, known.net) else None
