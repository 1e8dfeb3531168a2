"""Devices in the definitions that Nova makes for guests."""

from __future__ import annotations

from typing import Any

from lxml import etree
from nova.virt.libvirt import config

from devicetrack.objects.values import GuestConfig


class _Element(config.LibvirtConfigGuestDevice):
    """A finished element as an object of Nova's configuration classes."""

    def __init__(self, text: str) -> None:
        self._element = etree.fromstring(text, etree.XMLParser(resolve_entities=False, no_network=True))
        super().__init__(root_name=self._element.tag)

    def format_dom(self) -> Any:
        return self._element

    @property
    def kibibytes(self) -> int | None:
        """The size of a memory device; None for any other device."""
        size = self._element.find('target/size') if self._element.tag == 'memory' else None
        return None if size is None else int(size.text or 0)

    @property
    def mdev(self) -> str | None:
        """The UUID of a mediated device; None for any other device."""
        is_mdev = self._element.tag == 'hostdev' and self._element.get('type') == 'mdev'
        address = self._element.find('source/address') if is_mdev else None
        return None if address is None else str(address.get('uuid'))


def mediated(wanted: GuestConfig) -> list[Any]:
    """Return the mediated devices of an instance, each as an object that Nova attaches, with its UUID in ``mdev``."""
    return [device for device in map(_Element, wanted.devices) if device.mdev is not None]


def equip(guest: Any, wanted: GuestConfig) -> None:
    """Add an instance's devices, and our record of them, to Nova's definition of its guest."""
    for device in map(_Element, wanted.devices):
        guest.add_device(device)
        if device.kibibytes is not None:
            # libvirt needs a slot for each memory device, and room in addition to the guest's own memory.
            guest.max_memory_size = (guest.max_memory_size or guest.memory) + device.kibibytes
            guest.max_memory_slots += 1
    if wanted.metadata:
        guest.metadata.append(_Element(wanted.metadata))
