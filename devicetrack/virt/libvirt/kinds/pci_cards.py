"""Tells the cards of PCI functions apart: by serial numbers, read once in a boot, and by the physical functions.

Some vendors give all their disks one serial number, or none, and not every driver tells the name of the NVM subsystem.
A boot of the host may give such disks other addresses. Nobody can tell then which disk is which, but the addresses of
all disks that are alike show whether any of them has moved. If the addresses are the same as before, the disks are
where they were.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import os
from typing import Final
from typing import NamedTuple

from devicetrack import log
from devicetrack.objects import PCIDetails
from devicetrack.virt.libvirt import bounded
from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt.kinds import pci_cleaning
from devicetrack.virt.libvirt.kinds import pci_memory

LOG = log.logger(__name__)

# The class code of NVM Express controllers. Their driver tells a serial number (Linux: drivers/nvme/host/sysfs.c).
_NVME: Final = '0108'
# How many seconds a card may take to tell its serial number. A healthy card takes far less than one.
READ_S: Final = 10.0

# Marks the name of an NVM subsystem in the memory, behind the address of its function.
_SUBSYSTEM: Final = ' subsystem'

# Is in place of the addresses for a disk whose serial number, or whose NVM subsystem, no other disk here has.
_TOLD: Final = 'no other one was like it'


class Evidence(NamedTuple):
    """The facts that tell a function from others of its sort; None in a field that cannot be read now.

    ``serial`` is '' for a function without a serial number, and for a virtual one. For a virtual function,
    ``parent_card`` has the ids of its physical function and that one's number on the card, and ``parent_serial`` has
    the physical function's serial number; both are '' for other functions. ``no_serial`` says that the card was asked
    and has no serial number; without that, an empty one says nothing. ``nvm_subsystem`` is the name of the card's NVM
    subsystem, '' if nothing tells it.
    """

    serial: str | None
    parent_card: str | None
    parent_serial: str | None
    no_serial: bool = False
    nvm_subsystem: str = ''


class Cards(NamedTuple):
    """The serial numbers of cards and the names of their NVM subsystems, by the addresses of their physical functions.

    Serial numbers are as in :class:`Evidence`. ``subsystems`` has the known names.
    """

    serials: Mapping[str, str | None]
    subsystems: Mapping[str, str] = {}

    def evidence(self, function: pci_sysfs.Function, recorded: Evidence | None = None) -> Evidence:
        """Return the evidence of the card to which a function belongs.

        :param recorded: the evidence in a row. A serial number that cannot be read now counts as unknown if the row has
            one, and else as the row has it. A name of a subsystem that nothing tells counts as the row has it
        """
        before = recorded or Evidence('', '', '')
        subsystem = self.subsystems.get(function.physfn or function.address, before.nvm_subsystem)
        if function.physfn is None:
            serial, no_serial = self._serial(function, before.serial, before.no_serial)
            return Evidence(serial, '', '', no_serial, subsystem)
        if function.parent is None or function.parent.problem is not None:
            return Evidence('', None, None, nvm_subsystem=subsystem)
        serial, no_serial = self._serial(function.parent, before.parent_serial, before.no_serial)
        return Evidence('', card_of(function.parent), serial, no_serial, subsystem)

    def _serial(self, function: pci_sysfs.Function, recorded: str | None, had_none: bool) -> tuple[str | None, bool]:
        """Return a serial number, and whether the card was asked and has none."""
        found = self.serials.get(function.address)
        if found is not None:
            return found, not found
        return (None, False) if recorded or is_nvme(function) else ('', had_none)


class SerialNumbers:
    """Reads what tells cards apart.

    The host's driver tells the number of a disk. For other functions the kernel reads Vital Product Data, or the
    configuration space. A card may be slow to answer, or broken. So a card is asked once in a boot, and this process
    does not ask it again if it gives no answer in time. A card is not asked while a guest has it.

    :param memory: remembers serial numbers for this boot
    """

    def __init__(self, tree: pci_sysfs.Tree, memory: Callable[[], pci_memory.Memory]) -> None:
        self._tree, self._memory, self._calls = tree, memory, bounded.Calls(READ_S)
        self._unread: dict[str, int] = {}       # by address: the number of the directory of a broken function

    def of(self, functions: Iterable[pci_sysfs.Function], all_of_them: bool = False, asks: bool = True) -> Cards:
        """Read the serial numbers and the names of the cards to which functions belong.

        :param all_of_them: whether to forget the numbers of other cards
        :param asks: whether to ask cards whose driver tells no number, which needs privileges
        :raises CommandFailed: the memory cannot be used
        """
        cards = (function.parent or function for function in functions)
        wanted = {card.address: card for card in cards if card.physfn is None}
        read: dict[str, tuple[int, str | None]] = {}
        for address, card in wanted.items():
            try:
                read[address] = os.stat(self._tree.path(address)).st_ino, card.serial
            except OSError:
                continue                        # it has just vanished
            if is_nvme(card) or not card.class_code:
                read[address + _SUBSYSTEM] = read[address][0], self._tree.nvm_subsystem(address)
        if not wanted:
            return Cards({})
        known = self._memory().complete(read, all_of_them)
        asked: dict[str, tuple[int, str | None]] = {}
        for address in wanted.keys() & read.keys():
            card, directory = wanted[address], read[address][0]
            if (asks and address not in known and card.class_code and not is_nvme(card)
                    and not pci_variants.is_vfio(card.driver) and self._unread.get(address) != directory):
                asked[address] = directory, self._ask(address)
                if asked[address][1] is None:
                    self._unread[address] = directory
        if asked:
            known |= self._memory().complete(asked, False)
        return Cards({address: known.get(address) for address in wanted}, {
            address: known[name] for address in wanted if (name := address + _SUBSYSTEM) in known})

    def _ask(self, address: str) -> str | None:
        try:
            return self._calls.call(lambda: pci_privileged.read_serial(self._tree.root, address))
        except (OSError, bounded.Late) as error:
            LOG.warning('The serial number of PCI function %s cannot be read: %s', address,
                        getattr(error, 'strerror', None) or error)
            return None


class ParentSerials:
    """Reads the serial numbers of the cards that make devices of other kinds. This process asks each card once.

    Nothing but the history depends on them, so a number that cannot be read is empty.
    """

    def __init__(self) -> None:
        self._calls = bounded.Calls(READ_S)
        self._told: dict[str, tuple[int, str]] = {}     # by address: the number of the card's directory, and its serial

    def of(self, tree: pci_sysfs.Tree, address: str | None) -> str:
        """The serial number of the card of the function at an address; '' if nothing tells it."""
        if address is None:
            return ''
        address = kernel_files.link(tree.path(address), 'physfn') or address
        try:
            directory = os.stat(tree.path(address)).st_ino
        except OSError:
            return ''
        if self._told.get(address, (None,))[0] != directory:
            self._told[address] = directory, self._ask(tree, address)
        return self._told[address][1]

    def _ask(self, tree: pci_sysfs.Tree, address: str) -> str:
        try:
            return self._calls.call(lambda: pci_privileged.read_serial(tree.root, address)) or ''
        except (OSError, bounded.Late) as error:
            LOG.info('The history does not get the serial number of the card %s, which cannot be read: %s', address,
                     getattr(error, 'strerror', None) or error)
            return ''


def card_of(function: pci_sysfs.Function) -> str:
    """Return which sort of card a physical function is of, and which function on it."""
    return card_text(function.vendor_id, function.product_id, function.subsystem, function.address)


def card_text(vendor_id: str, product_id: str, subsystem: str | None, address: str) -> str:
    return f'{vendor_id}:{product_id} {subsystem or "none"} {address.rpartition(".")[2]}'


def of_row(recorded: PCIDetails) -> Evidence:
    return Evidence(recorded.serial, recorded.parent_card, recorded.parent_serial, recorded.no_serial,
                    recorded.nvm_subsystem)


def unread(recorded: PCIDetails, evidence: Evidence) -> str | None:
    """Name the evidence of a function that cannot be read now, or could not be when it was recorded; None if none."""
    for name, now in evidence._asdict().items():
        if None in (now, getattr(recorded, name)):
            return name.replace('_', ' ').replace('serial', 'serial number')
    return None


def is_known(recorded: PCIDetails) -> bool:
    """Whether all evidence could be read when a function was recorded."""
    return None not in (getattr(recorded, name) for name in PCIDetails.IDENTITY)


def is_nvme(function: pci_sysfs.Function) -> bool:
    return function.class_code.startswith(_NVME)


class _Disk(NamedTuple):
    card: str
    serial: str | None
    subsystem: str


class Alike:
    """The controllers of a host that may have disks, as they are now.

    :param functions: the functions of the host
    :param cards: what tells these controllers apart
    """

    def __init__(self, functions: Iterable[pci_sysfs.Function], cards: Cards) -> None:
        self._disks = {function.address: _Disk(card_of(function), cards.serials.get(function.address),
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
    """Return :func:`.card_of` of the card in a row; None if it could not be read."""
    if row.vf_number >= 0:
        card: str | None = row.parent_card
        return card
    return card_text(row.vendor_id, row.product_id, row.subsystem, row.address)


def may_be_disk(function: pci_sysfs.Function) -> bool:
    """Whether a function is a controller of disks, or its class cannot be read."""
    return function.physfn is None and (not function.class_code
                                        or function.class_code.startswith(pci_cleaning.MASS_STORAGE))
