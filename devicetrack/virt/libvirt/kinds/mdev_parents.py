"""The parents of mediated devices that libvirt knows, and who is whose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt.kinds import mdev_options


class Parents:
    """The parents that libvirt knows, found by what a device or an assignment says of its own."""

    def __init__(self, parents: Iterable[nodedev_xml.Parent]) -> None:
        self._parents = {parent.name: parent for parent in sorted(parents)}
        self._by_address = {parent.address: parent for parent in self._parents.values() if parent.address}

    def __iter__(self) -> Any:
        return iter(self._parents.values())

    def named(self, name: str) -> nodedev_xml.Parent | None:
        return self._parents.get(name)

    def of(self, name: str, address: str | None) -> nodedev_xml.Parent:
        """A parent by what its device says of it.

        One that libvirt does not know, or that is away, is named by its address, and makes nothing.
        """
        if name in self._parents:
            return self._parents[name]
        if address in self._by_address:
            return self._by_address[address]
        if name == nodedev_xml.ROOT_DEVICE and address:
            name = address
        return nodedev_xml.Parent(name, address, False, None, ())


def names(parent: nodedev_xml.Parent) -> frozenset[str]:
    """What an option may call a parent."""
    return frozenset(mdev_options.normal_address(name) for name in (parent.name, parent.address) if name)
