"""What a host remembers of its PCI functions: serial numbers that cannot be read now, and what was given to guests.

The driver of the host tells the serial number of a disk. While a guest has the disk, its driver is another one, and
nothing tells it. The kernel gives the directory of a function in sysfs a number that no other directory of this boot
has: it lasts until the function leaves the bus, for example when somebody exchanges the card. So a number that was read
earlier in this boot from the same directory is that of the same function. After a boot no serial number is remembered.

Where functions are that have come to another address is remembered for a boot, too: commands look it up here.

The file also keeps, over boots, which functions devicetrack gave to guests. An operator may remove an option while a
guest has a function by it, and guests may have other functions, which devicetrack ignores. This record tells both
apart.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import json
import os
import threading
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import filelock
from devicetrack import ownfiles

_NAME: Final = 'pci.json'
# The largest that a file of ours becomes, with room: a host has some thousand functions.
_MOST_BYTES: Final = 4 << 20
# Seconds to wait for another process that writes to the file.
_WAIT_S: Final = 60.0


class _Known(NamedTuple):
    """What is in the file.

    ``serials`` has, by address, the number of the function's directory in sysfs and its serial number, and ``moved``
    the addresses of functions that are not where their names say, both in this boot. ``given`` has the boots in which
    functions were given to guests, by name.
    """

    serials: Mapping[str, tuple[int, str]]
    given: Mapping[str, str]
    moved: Mapping[str, str]


class Memory:
    """What one host remembers. Threads and processes may share it.

    :param state_path: the state directory
    :param boot_id: the name of this boot
    """

    def __init__(self, state_path: str, boot_id: str) -> None:
        self._path, self._boot_id = os.path.join(state_path, _NAME), boot_id
        self._mutex = threading.Lock()

    def complete(self, read: Mapping[str, tuple[int, str | None]], all_of_them: bool) -> dict[str, str]:
        """Return the serial numbers of these functions that are known, by address, and remember those read now.

        :param read: by address, the number of the function's directory in sysfs and its serial number, or None if it
            cannot be read now
        :param all_of_them: whether others are to be forgotten
        :raises CommandFailed: the file cannot be used
        """
        serials: dict[str, tuple[int, str]] = {}

        def change(before: _Known) -> _Known:
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
    def given(self) -> Mapping[str, str]:
        """The names of the functions that were given to guests and not taken back, each with the boot of the last time.

        :raises CommandFailed: the file cannot be used
        """
        with self._errors():
            return self._read().given

    @property
    def given_in_this_boot(self) -> frozenset[str]:
        """The names of those that were given to guests in this boot.

        :raises CommandFailed: the file cannot be used
        """
        return frozenset(name for name, boot in self.given.items() if boot == self._boot_id)

    @property
    def moved(self) -> Mapping[str, str]:
        """The addresses in this boot of the functions that are not where their names say, by name.

        :raises CommandFailed: the file cannot be used
        """
        with self._errors():
            return self._read().moved

    def move(self, moved: Mapping[str, str]) -> None:
        """Remember for this boot where more functions are.

        :raises CommandFailed: the file cannot be used
        """
        self._change(lambda known: known._replace(moved={**known.moved, **moved}))

    def give(self, name: str) -> None:
        """Remember, over a power cut too, that a guest gets a function.

        :raises CommandFailed: the file cannot be used
        """
        self._change(lambda known: known._replace(given={**known.given, name: self._boot_id}))

    def take_back(self, name: str) -> None:
        """Remember that no guest has a function any more.

        :raises CommandFailed: the file cannot be used
        """
        self._change(lambda known: known._replace(given={other: boot for other, boot in known.given.items()
                                                         if other != name}))

    def _change(self, change: Callable[[_Known], _Known]) -> None:
        """Change what is known while nobody else does."""
        with self._mutex, self._errors():
            if change(known := self._read()) == known:
                return                          # nearly always: an audit reads what was read before
            with filelock.writing(self._path, _WAIT_S):
                self._write(change(self._read()))

    def _read(self) -> _Known:
        if not os.path.lexists(self._path):     # most hosts give no function away, and get no file
            return _Known({}, {}, {})
        with open(ownfiles.open_file(self._path), encoding='utf-8') as file:
            return _parse(json.loads(file.read(_MOST_BYTES)), self._boot_id)

    def _write(self, known: _Known) -> None:
        """Write the file in one step."""
        new = f'{self._path}.new'
        with open(ownfiles.open_file(new), 'r+', encoding='utf-8') as file:
            file.truncate()
            json.dump({'boot_id': self._boot_id, **known._asdict()}, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)
        directory = ownfiles.open_directory(os.path.dirname(self._path))
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise exception.CommandFailed(f'use {self._path}', str(error.strerror or error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # Whoever moves it away knows which guests run; nothing here guesses.
            raise exception.CommandFailed(
                f'use {self._path}', 'it is damaged: restore it, or move it away while no guest has a PCI function '
                'that options no longer name') from error


def _parse(stored: Any, boot_id: str) -> _Known:
    serials = {str(address): (int(directory), str(serial))
               for address, (directory, serial) in stored['serials'].items()}
    given, moved = ({str(name): str(said) for name, said in stored[what].items()} for what in ('given', 'moved'))
    return _Known(serials, given, moved) if stored['boot_id'] == boot_id else _Known({}, given, {})
