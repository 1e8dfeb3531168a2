"""Finds the disks that nothing but the addresses of their controllers tells apart.

Some vendors give all their disks one serial number, or none, and not every driver tells the name of the NVM subsystem.
A boot of the host may give such disks other addresses. Nobody can tell then which disk is which, but the addresses of
all disks that are alike show whether any of them has moved. If the addresses are the same as before, the disks are
where they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from typing import NamedTuple

from devicetrack.objects import PCIDetails
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_cleaning
from devicetrack.virt.libvirt.kinds import pci_serials

# Is in place of the addresses for a disk whose serial number, or whose NVM subsystem, no other disk here has.
_TOLD: Final = 'no other one was like it'


class _Disk(NamedTuple):
    card: str
    serial: str | None
    subsystem: str


class Disks:
    """The controllers of a host that may have disks, as they are now.

    :param functions: the functions of the host
    :param cards: what tells these controllers apart
    """

    def __init__(self, functions: Iterable[pci_sysfs.Function], cards: pci_serials.Cards) -> None:
        self._disks = {function.address: _Disk(pci_serials.card_of(function), cards.serials.get(function.address),
                                               cards.subsystems.get(function.address, ''))
                       for function in functions if may_be_disk(function)}

    def of_function(self, function: pci_sysfs.Function) -> str:
        """Return the addresses of the disks that are like the disk of a function; '' if it has certainly none."""
        disk = self._disks.get(function.physfn or function.address)
        return '' if disk is None else self._text(disk)

    def of_row(self, row: PCIDetails) -> str:
        """Return the same as :meth:`of_function` for a row; '' also if the host has no such card now."""
        disk = _of(row)
        return '' if all(other.card != disk.card for other in self._disks.values()) else self._text(disk)

    def like(self, row: PCIDetails) -> list[str]:
        """Return the addresses of the disks that may be the one in a row."""
        return self._like(_of(row))

    def _text(self, disk: _Disk) -> str:
        found = self._like(disk)
        return _TOLD if disk.serial and len(found) <= 1 else ' '.join(found)

    def _like(self, one: _Disk) -> list[str]:
        return sorted(address for address, disk in self._disks.items()
                      if disk.card == one.card and (not one.serial or disk.serial == one.serial)
                      and ('' in (one.subsystem, disk.subsystem) or one.subsystem == disk.subsystem))


def _of(row: PCIDetails) -> _Disk:
    return _Disk(card_of_row(row) or '', row.serial or row.parent_serial, row.nvm_subsystem)


def card_of_row(row: PCIDetails) -> str | None:
    """Return :func:`.pci_serials.card_of` of the card in a row; None if it could not be read."""
    if row.vf_number >= 0:
        card: str | None = row.parent_card
        return card
    return pci_serials.card_text(row.vendor_id, row.product_id, row.subsystem, row.address)


def may_be_disk(function: pci_sysfs.Function) -> bool:
    """Whether a function is a controller of disks, or its class cannot be read."""
    return function.physfn is None and (not function.class_code
                                        or function.class_code.startswith(pci_cleaning.MASS_STORAGE))

