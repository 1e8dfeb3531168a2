"""A host's memory of its PCI functions: serial numbers that cannot be read now, and functions given to guests.

The host's driver tells the serial number of a disk. While a guest has the disk, it has another driver, and nothing
tells the number. The kernel gives the directory of a function in sysfs an inode number that no other directory of this
boot has. That inode number lasts until the function leaves the bus, for example when somebody exchanges the card. So a
serial number that was read earlier in this boot from the same directory belongs to the same function. After a boot no
serial number is remembered.

The file also keeps facts that no row has, or that a store does not show for a while (:class:`Known`). Which functions
guests got from devicetrack is one of them: an operator may remove an option while a guest has a function by it, and
guests may have other functions, which devicetrack ignores.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import json
import os
import threading
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TypeVar

from devicetrack import exception
from devicetrack import filelock
from devicetrack import ownfiles

_NAME: Final = 'pci.json'
# The largest size of the file, with room to spare: a host has some thousand functions.
_MOST_BYTES: Final = 4 << 20

_Value = TypeVar('_Value')


class Known(NamedTuple):
    """The content of the file, as it counts in this boot, ``boot_id``.

    ``serials`` has, by address, the number of the function's directory in sysfs and its serial number. ``moved`` has,
    by name, the addresses of functions that are not at the address in their names. Both are for this boot only.
    ``given`` has, by name, the boots in which functions were given to guests and not taken back. ``alike`` has, by the
    name of a row, the last boot in which its disk was certainly in its place, and the text of
    :class:`.pci_cards.Alike` from then. ``rows`` has the details of these rows until they have ended, also of those
    that no store shows now. ``lent`` has, by name, the details of functions that the service hands out itself
    (:mod:`.pci_of_service`), from when it got them, and whether it has given them to no guest since.
    """

    boot_id: str
    serials: Mapping[str, tuple[int, str]]
    given: Mapping[str, str]
    moved: Mapping[str, str]
    alike: Mapping[str, tuple[str, str]]
    rows: Mapping[str, str]
    lent: Mapping[str, tuple[str, bool]]

    @property
    def given_in_this_boot(self) -> frozenset[str]:
        return frozenset(name for name, boot in self.given.items() if boot == self.boot_id)

    @property
    def doubted(self) -> Mapping[str, str]:
        """Return, by the names of rows, where the disks like theirs were in an earlier boot.

        Rows that :meth:`Memory.compare` found without a difference in this boot are left out.
        """
        return {name: text for name, (boot, text) in self.alike.items() if boot != self.boot_id}


class Memory:
    """The memory of one host. Threads and processes may share it. What it remembers survives a power cut.

    Everything here raises CommandFailed if the file cannot be used.

    :param state_path: the state directory
    :param boot_id: the name of this boot
    """

    def __init__(self, state_path: str, boot_id: str) -> None:
        self._path, self._boot_id = os.path.join(state_path, _NAME), boot_id
        self._mutex = threading.Lock()

    def complete(self, read: Mapping[str, tuple[int, str | None]], all_of_them: bool) -> dict[str, str]:
        """Return the known serial numbers of these functions by address, and remember those read now.

        :param read: by address, the number of the function's directory in sysfs and its serial number, or None if the
            serial number cannot be read now
        :param all_of_them: whether to forget the numbers of other functions
        """
        serials: dict[str, tuple[int, str]] = {}

        def change(before: Known) -> Known:
            for address, (directory, serial) in read.items():
                if serial is not None:
                    serials[address] = (directory, serial)
                elif address in before.serials and before.serials[address][0] == directory:
                    serials[address] = before.serials[address]
            others = {} if all_of_them else {address: known for address, known in before.serials.items()
                                             if address not in read}
            return before._replace(serials={**others, **serials})

        self._change(change)
        return {address: serial for address, (_directory, serial) in serials.items()}

    @property
    def known(self) -> Known:
        with self._errors():
            return self._read()

    def move(self, moved: Mapping[str, str]) -> None:
        """Remember, for this boot, the addresses of more functions that have moved."""
        self._change(lambda known: known._replace(moved={**known.moved, **moved}))

    def compare(self, alike: Mapping[str, str], rows: Mapping[str, str]) -> Mapping[str, str]:
        """Compare where disks are with where they were in an earlier boot, and remember those without a difference.

        :param alike: where the disks like that of a row are, by the names of rows of disks; '' if there are none
        :param rows: the details of all rows, by name
        :returns: the same as :attr:`Known.doubted`
        """
        def change(known: Known) -> Known:
            was = known.alike
            found = {name: (self._boot_id, text) for name, text in alike.items()
                     if text and (name not in was or self._boot_id == was[name][0] or was[name][1] == text)}
            return known._replace(alike={**was, **found}, rows={**known.rows, **{
                name: text for name, text in rows.items() if name in was or name in found}})

        return self._change(change).doubted

    def believe(self, name: str, alike: str) -> None:
        """Remember that the disk of a row is in its place, as somebody says, and where those like it are."""
        self._change(lambda known: known._replace(alike={**known.alike, name: (self._boot_id, alike)}))

    def give(self, name: str, alike: str, row: str) -> None:
        """Remember that a guest gets a function.

        :param alike: where the disks like it are, '' if it is none
        :param row: its details
        """
        given = {name: self._boot_id}
        self._change(lambda known: known._replace(given={**known.given, **given}) if not alike else known._replace(
            given={**known.given, **given}, alike={**known.alike, name: (self._boot_id, alike)},
            rows={**known.rows, name: row}))

    def lend(self, name: str, row: str, is_free: Callable[[], bool]) -> None:
        """Remember which function the service hands out from now on.

        :param row: its details
        :param is_free: says whether the service may give it to its next guest. It is asked before a later
            :meth:`note_given` changes the file
        """
        self._change(lambda known: known._replace(lent={**known.lent, name: (row, is_free())}))

    def note_given(self, names: Collection[str]) -> None:
        """Remember that the service gave functions to guests. Others are left out."""
        self._change(lambda known: known._replace(lent={
            name: (row, is_free and name not in names) for name, (row, is_free) in known.lent.items()}))

    def take_back(self, name: str) -> None:
        """Remember that no guest has a function any more. Its row may still be there."""
        self._change(lambda known: known._replace(given=_without(known.given, name)))

    def end(self, name: str) -> None:
        """Forget a function whose row has ended, as :meth:`give` remembers it."""
        self._change(lambda known: known._replace(
            given=_without(known.given, name), alike=_without(known.alike, name), rows=_without(known.rows, name)))

    def _change(self, change: Callable[[Known], Known]) -> Known:
        """Change the file while nobody else changes it, and return what it has now."""
        with self._mutex, self._errors():
            if change(known := self._read()) == known:
                return known                    # nearly always: an audit reads the same values as before
            with filelock.writing(self._path):
                self._write(known := change(self._read()))
                return known

    def _read(self) -> Known:
        if not os.path.lexists(self._path):     # most hosts hand out no functions, and get no file
            return Known(self._boot_id, {}, {}, {}, {}, {}, {})
        with open(ownfiles.open_file(self._path), encoding='utf-8') as file:
            return _parse(json.loads(file.read(_MOST_BYTES)), self._boot_id)

    def _write(self, known: Known) -> None:
        """Write the file in one step."""
        new = f'{self._path}.new'
        with open(ownfiles.open_file(new), 'r+', encoding='utf-8') as file:
            file.truncate()
            json.dump(known._asdict(), file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)
        ownfiles.sync_directory(os.path.dirname(self._path))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise exception.CommandFailed(f'use {self._path}', str(error.strerror or error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # An operator who moves the file away knows which guests run. This code does not guess. Without the file the
            # disk of every row counts as the one at its address.
            raise exception.CommandFailed(
                f'use {self._path}', 'it is damaged: restore it, or move it away while no guest has a PCI function '
                'that options no longer name, and no instance has a disk that only its address tells apart from others'
            ) from error


def _parse(stored: Any, boot_id: str) -> Known:
    serials = {str(address): (int(directory), str(serial))
               for address, (directory, serial) in stored['serials'].items()}
    given, moved = ({str(name): str(said) for name, said in stored[what].items()} for what in ('given', 'moved'))
    # Earlier releases did not write these.
    alike = {str(name): (str(boot), str(text)) for name, (boot, text) in stored.get('alike', {}).items()}
    rows = {str(name): str(text) for name, text in stored.get('rows', {}).items() if name in alike}
    lent = {str(name): (str(row), bool(is_free)) for name, (row, is_free) in stored.get('lent', {}).items()}
    is_of_boot = stored['boot_id'] == boot_id
    return Known(boot_id, serials if is_of_boot else {}, given, moved if is_of_boot else {}, alike, rows, lent)


def _without(of_names: Mapping[str, _Value], name: str) -> Mapping[str, _Value]:
    return {other: value for other, value in of_names.items() if other != name}
