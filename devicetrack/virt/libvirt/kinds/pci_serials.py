"""Identifies the card of a PCI function: by serial numbers, read once in a boot, and the physical functions."""

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
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import pci_variants
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt.kinds import pci_memory

LOG = log.logger(__name__)

# The class code of NVM Express controllers. Their driver tells a serial number (Linux: drivers/nvme/host/sysfs.c).
_NVME: Final = '0108'
# How many seconds a card may take to tell its serial number. A healthy card takes far less than one.
READ_S: Final = 10.0

# Marks the name of an NVM subsystem in the memory, behind the address of its function.
_SUBSYSTEM: Final = ' subsystem'

Serials = Mapping[str, str | None]


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


class SerialNumbers:
    """Reads the serial numbers of functions. ``subsystems`` has the names of NVM subsystems by address.

    The host's driver tells the number of a disk. For other functions the kernel reads Vital Product Data, or the
    configuration space. A card may be slow to answer, or broken. So a card is asked once in a boot, and this process
    does not ask it again if it gives no answer in time. A card is not asked while a guest has it.

    :param memory: remembers serial numbers for this boot
    :param calls: ask cards; their timeout is how long a card may take
    """

    def __init__(self, tree: pci_sysfs.Tree, memory: Callable[[], pci_memory.Memory],
                 calls: bounded.Calls) -> None:
        self._tree, self._memory, self._calls = tree, memory, calls
        self.subsystems: Mapping[str, str] = {}
        self._unread: dict[str, int] = {}       # by address: the number of the directory of a broken function

    def of(self, functions: Iterable[pci_sysfs.Function], all_of_them: bool = False) -> Serials:
        """Return the serial numbers of functions by address: '' if one has none, None if it cannot be read now.

        Virtual functions have none, and are left out.

        :param all_of_them: whether to forget the numbers of other functions
        :raises CommandFailed: the memory cannot be used
        """
        wanted = {function.address: function for function in functions if function.physfn is None}
        read: dict[str, tuple[int, str | None]] = {}
        for address, function in wanted.items():
            try:
                read[address] = os.stat(self._tree.path(address)).st_ino, function.serial
            except OSError:
                continue                        # it has just vanished
            if is_nvme(function) or not function.class_code:
                read[address + _SUBSYSTEM] = read[address][0], self._tree.nvm_subsystem(address)
        if not wanted:
            return {}
        known = self._memory().complete(read, all_of_them)
        asked: dict[str, tuple[int, str | None]] = {}
        others = {} if all_of_them else {address: name for address, name in self.subsystems.items()
                                         if address not in wanted}
        self.subsystems = {**others, **{name.removesuffix(_SUBSYSTEM): found for name, found in known.items()
                                        if name.endswith(_SUBSYSTEM)}}
        for address in wanted.keys() & read.keys():
            function, directory = wanted[address], read[address][0]
            if (address not in known and function.class_code and not is_nvme(function)
                    and not pci_variants.is_vfio(function.driver) and self._unread.get(address) != directory):
                asked[address] = directory, self._ask(address)
                if asked[address][1] is None:
                    self._unread[address] = directory
        if asked:
            known |= self._memory().complete(asked, False)
        return {address: known.get(address) for address in wanted}

    def _ask(self, address: str) -> str | None:
        try:
            return self._calls.call(lambda: privileged.read_serial(self._tree.root, address))
        except (OSError, bounded.Late) as error:
            LOG.warning('The serial number of PCI function %s cannot be read: %s', address,
                        getattr(error, 'strerror', None) or error)
            return None


def evidence(function: pci_sysfs.Function, physfn: pci_sysfs.Function | None, serials: Serials,
             recorded: Evidence | None = None, subsystems: Mapping[str, str] | None = None) -> Evidence:
    """Return the evidence of the card to which a function belongs.

    :param physfn: for a virtual function, its physical function; None if that cannot be read
    :param serials: the serial numbers of both functions, as far as they have any
    :param recorded: the evidence in a row. A serial number that cannot be read now counts as unknown if the row has
        one, and else as the row has it
    :param subsystems: the names of NVM subsystems, by the addresses of both functions. One that nothing tells counts as
        the row has it
    """
    before = recorded or Evidence('', '', '')
    subsystem = (subsystems or {}).get(function.physfn or function.address, before.nvm_subsystem)
    if function.physfn is None:
        serial, no_serial = _serial(function, serials, before.serial, before.no_serial)
        return Evidence(serial, '', '', no_serial, subsystem)
    if physfn is None or physfn.problem is not None:
        return Evidence('', None, None, nvm_subsystem=subsystem)
    serial, no_serial = _serial(physfn, serials, before.parent_serial, before.no_serial)
    return Evidence('', card_of(physfn), serial, no_serial, subsystem)


def card_of(function: pci_sysfs.Function) -> str:
    """Return which sort of card a physical function is of, and which function on it."""
    return card_text(function.vendor_id, function.product_id, function.subsystem, function.address)


def card_text(vendor_id: str, product_id: str, subsystem: str | None, address: str) -> str:
    return f'{vendor_id}:{product_id} {subsystem or "none"} {address.rpartition(".")[2]}'


def _serial(function: pci_sysfs.Function, serials: Serials, recorded: str | None,
            had_none: bool) -> tuple[str | None, bool]:
    """Return a serial number, and whether the card was asked and has none."""
    found = serials.get(function.address)
    if found is not None:
        return found, not found
    return (None, False) if recorded or is_nvme(function) else ('', had_none)


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
