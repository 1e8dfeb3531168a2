"""Finds the functions of rows again when they have moved to another address: a row follows its card.

A function's name is the address that it had when an instance got it, as long as a row has that name. At a boot of the
host, cards may get other addresses, because somebody moved or added a card. Then the serial number of the card, and for
a virtual function its number on the card, identify the recorded function. Its name stays the same, and its address
changes. While the host runs, a function keeps the address that it was last given to a guest at, because definitions
name that address.

A function that may be the one of a row, and is not certainly another one, is withheld. So are the disks that nothing
but their addresses tells apart, if a row has one of them and the addresses are not those of an earlier boot.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import types
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack.objects import details
from devicetrack.objects import PCIDetails
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_cards
from devicetrack.virt.libvirt.kinds import pci_memory

LOG = log.logger(__name__)

# The prefix of the name of a function whose address is already the name of another function.
_AT: Final = 'at-'

Key = tuple[object, ...]
# Evidence as if a function had serial numbers before, so that one that cannot be read now counts as unknown.
_ALL: Final = pci_cards.Evidence('?', '?', '?')


class Places:
    """The addresses of functions in this boot.

    :param moved: by name, the addresses of functions that are not at the address in their names
    :param doubted: by the names of rows that may have the disks of others, where the disks like theirs were
    """

    def __init__(self, moved: Mapping[str, str], doubted: Mapping[str, str] = types.MappingProxyType({})) -> None:
        self.moved, self.doubted = moved, doubted
        self._names = {address: name for name, address in moved.items()}

    def address(self, name: str) -> str:
        return self.moved.get(name) or claimed_at(name)

    def came_to(self, address: str) -> str | None:
        """Return the name of the function that came to an address; None if none did."""
        return self._names.get(address)

    def name(self, address: str) -> str:
        name = self.came_to(address)
        if name is not None:
            return name
        return f'{_AT}{address}' if address in self.moved else address

    def problem(self, address: str) -> str | None:
        """Return why nobody gets the function at an address that is another one's name; None if it is its own name."""
        if not self.name(address).startswith(_AT):
            return None
        return (f'{address} is the name of a card that an instance has, and that is at {self.moved[address]} now: this '
                'one is offered after a boot of the host at which no instance has that card any more')


    def doubt(self, name: str) -> str | None:
        """Return why a row may have the disk of another one; None if it certainly has its own."""
        if name not in self.doubted:
            return None
        return (f'nobody knows whether disks like {name} have changed places since an earlier boot of the host (then: '
                f'{self.doubted[name]}): put them back and boot the host, or, if {name} is where it was, say so with '
                f'devicetrack-manage device admit pci/{name}')


class Followed:
    """The result of a comparison of rows and functions.

    ``moved`` has, by name, the new addresses of rows that follow their cards. ``withheld`` says, by address, why a
    function is not handed out. ``lost`` are the sorts (vendor and product) of functions that rows miss. ``compared``
    are the addresses of functions that could be compared with the missing ones.
    """

    def __init__(self) -> None:
        self.moved: dict[str, str] = {}
        self.withheld: dict[str, str] = {}
        self.lost: set[tuple[str, str]] = set()
        self.compared: set[str] = set()

    def problem(self, function: pci_sysfs.Function) -> str | None:
        """Return why nobody gets a function now; None if it is certainly not one that a row misses."""
        # A card and its virtual functions are withheld together.
        for address in (function.address, function.physfn or '', *function.vfs):
            if address in self.withheld:
                return self.withheld[address]
        if _sort(function) in self.lost and function.address not in self.compared:
            return 'an instance misses a function like it, which may be this one: the next audit compares them'
        return None


class Follower:
    """Compares the rows of one host with its functions. ``followed`` is the last result.

    ``alike`` has the text of :class:`.pci_cards.Alike` by the names of rows in doubt.

    :param memory: remembers addresses for this boot
    """

    def __init__(self, serials: pci_cards.SerialNumbers, memory: Callable[[], pci_memory.Memory]) -> None:
        self._serials, self._memory = serials, memory
        self.followed = Followed()
        self.alike: Mapping[str, str] = {}

    def follow(self, recorded: Mapping[str, str], places: Places, functions: Mapping[str, pci_sysfs.Function]) -> None:
        """Find rows whose functions have moved to other addresses.

        :param recorded: the details of rows by name
        :param functions: all functions of the host, by address
        :raises CommandFailed: the memory cannot be used
        """
        recorded_now = rows(recorded)
        sorts = {(row.vendor_id, row.product_id) for row in recorded_now.values()}
        of_rows = set(map(pci_cards.card_of_row, recorded_now.values()))
        cards = self._serials.of(function for function in functions.values()
                                 if _sort(function) in sorts or pci_cards.card_of(function) in of_rows)
        memory = self._memory()
        disks = pci_cards.Alike(functions.values(), cards)
        # A row that cannot be read stays in doubt.
        alike = {**dict.fromkeys(recorded, ''), **{name: disks.of_row(row) for name, row in recorded_now.items()}}
        doubted = memory.compare(alike, recorded)
        self.alike = {name: text for name, text in alike.items() if name in doubted and text}
        self.followed = follow(recorded_now, Places(places.moved, doubted), functions, cards,
                               memory.known.given_in_this_boot,
                               {name: disks.like(recorded_now[name]) for name in self.alike})
        if self.followed.moved:
            memory.move(self.followed.moved)


def follow(recorded: Mapping[str, PCIDetails], places: Places, functions: Mapping[str, pci_sysfs.Function],
           cards: pci_cards.Cards, stays: Collection[str],
           alike: Mapping[str, Sequence[str]] = types.MappingProxyType({})) -> Followed:
    """Compare rows with the functions of the host.

    :param recorded: the details of rows by name
    :param places: the places that were known before
    :param functions: all functions of the host, by address
    :param cards: what tells them apart
    :param stays: the names of functions that were given to guests in this boot: their rows follow no card
    :param alike: by the names of rows in doubt, where the disks are that may be theirs
    """
    found = Followed()
    # A card without a serial number cannot be found again.
    missed = {name: row for name, row in recorded.items() if name in places.doubted or (
        _key_of(row) is not None and not _is_there(row, functions.get(places.address(name)), cards))}
    found.lost = {(row.vendor_id, row.product_id) for row in missed.values() if _key_of(row) is not None}
    _withhold_for_unread(recorded, places, functions, found)
    if not missed:
        return found
    by_key: dict[Key, list[tuple[str, str]]] = {}      # addresses, each with the name of the NVM subsystem
    for address, function in functions.items():
        if _sort(function) in found.lost:
            evidence = cards.evidence(function, _ALL)
            if None in evidence:
                continue
            found.compared.add(address)
            key = _key(function.vendor_id, function.product_id, function.subsystem or '', evidence,
                       function.vf_number, address)
            if key is not None:
                by_key.setdefault(key, []).append((address, evidence.nvm_subsystem))
    rows: dict[Key, list[tuple[str, str]]] = {}
    for name, row in recorded.items():
        if (of_row := _key_of(row)) is not None:
            rows.setdefault(of_row, []).append((name, row.nvm_subsystem))
    served = {places.address(name) for name in recorded.keys() - missed.keys()}
    for name, row in sorted(missed.items()):
        if (doubt := places.doubt(name)) is not None:
            _withhold(name, row, alike.get(name, ()), (), served, found, f'; {doubt}')
            continue
        of_row = _key_of(row)
        if of_row is None:
            continue
        where, alike_rows = (_may_be(row.nvm_subsystem, named.get(of_row, ())) for named in (by_key, rows))
        if not where or where == [places.address(name)]:
            continue
        # A guest may have it, at the address of the row. Then nobody can read its number.
        here = functions.get(places.address(name))
        is_unread = here is not None and (not here.product_id or (
            _is_like(row, here) and None in cards.evidence(here, pci_cards.of_row(row))))
        if is_unread and len(where) > 1:
            continue                            # a number that several others have identifies none of them
        if is_unread or len(where) > 1 or len(alike_rows) > 1:
            _withhold(name, row, where, alike_rows, served, found)
        else:
            _follow_one(name, row, where[0], name in stays, found)
    return found


def _withhold_for_unread(recorded: Mapping[str, PCIDetails], places: Places,
                         functions: Mapping[str, pci_sysfs.Function], found: Followed) -> None:
    """Withhold functions that may belong to a row whose function is away and whose serial number was never read."""
    for name, row in sorted(recorded.items()):
        if None in (row.serial, row.parent_serial) and not _is_like(row, functions.get(places.address(name))):
            found.lost.add((row.vendor_id, row.product_id))
            for address, function in functions.items():
                if _is_like(row, function):
                    found.withheld.setdefault(address, f'it may be {name}, which an instance has, and whose serial '
                                                       'number was never read')


def _withhold(name: str, row: PCIDetails, where: Sequence[str], names: Sequence[str], served: Collection[str],
              found: Followed, doubt: str = '') -> None:
    serial = row.parent_serial or row.serial
    for address in where:
        if address not in served:               # another row has it there
            found.withheld[address] = (
                f'it may be {name}, which an instance has: {", ".join(where)} have '
                + (f'the serial number {serial}' if serial else 'nothing but their addresses that tells them apart')
                + (f', and so do the rows of {", ".join(names)}' if len(names) > 1 else '') + doubt)


def _follow_one(name: str, row: PCIDetails, where: str, stays: bool, found: Followed) -> None:
    if stays:
        found.withheld[where] = (f'it is {name}, which an instance has, and came to {where} while the host ran: '
                                 f'put it back to {row.address}, or boot the host, and the instance has it again')
    else:
        LOG.warning('PCI function %s, which an instance has, is at %s now: its serial number is %s', name, where,
                    row.parent_serial or row.serial)
        found.moved[name] = where


def _is_there(row: PCIDetails, function: pci_sysfs.Function | None, cards: pci_cards.Cards) -> bool:
    """Whether a function is certainly the one that a row recorded."""
    if function is None or not _is_like(row, function):
        return False
    before = pci_cards.of_row(row)
    if None in before:
        return False
    now = cards.evidence(function, before)
    return now == before or now._replace(nvm_subsystem='') == before


def _may_be(subsystem: str, named: Iterable[tuple[str, str]]) -> list[str]:
    """Return what may be in an NVM subsystem: what is in it by name, and what has no name."""
    return [one for one, its in named if PCIDetails.means_same('nvm_subsystem', its, subsystem) or its == subsystem]


def _is_like(row: PCIDetails, function: pci_sysfs.Function | None) -> bool:
    """Whether a function is of the same sort as the one that a row recorded."""
    return function is not None and _sort(function) == (row.vendor_id, row.product_id) and (
        function.subsystem or '', -1 if function.vf_number is None else function.vf_number) == (
            row.subsystem, row.vf_number)


def _sort(function: pci_sysfs.Function) -> tuple[str, str]:
    return function.vendor_id, function.product_id


def _key_of(row: PCIDetails) -> Key | None:
    return _key(row.vendor_id, row.product_id, row.subsystem,
                pci_cards.of_row(row), row.vf_number, row.address)


def _key(vendor_id: str, product_id: str, subsystem: str, evidence: pci_cards.Evidence, vf_number: int | None,
         address: str) -> Key | None:
    """Return a key that tells a function from all others in the world; None if it has no serial number."""
    if evidence.parent_card:
        return (vendor_id, product_id, subsystem, evidence.parent_card, evidence.parent_serial, vf_number) \
            if evidence.parent_serial else None
    # All functions of a card have its serial number.
    return (vendor_id, product_id, subsystem, evidence.serial, address.rpartition('.')[2]) if evidence.serial else None


def claimed_at(name: str) -> str:
    """Return the address at which an instance got a function."""
    return name.removeprefix(_AT)


def rows(texts: Mapping[str, str]) -> dict[str, PCIDetails]:
    """Read the details of rows. Details that this release cannot read are left out."""
    found = {}
    for name, text in texts.items():
        try:
            read = details.peek(text)
        except (exception.MalformedObject, exception.UnknownObject):
            continue
        if isinstance(read, PCIDetails):
            found[name] = read
    return found
