"""The line of free devices of one pool: claims take the device that has been free for the longest time.

On a host with many devices, nobody has used the next device for a long time: its unit and its identifier must come from
main memory. If a take waits for one and then for the other, it costs a fifth more with 100,000 devices than with ten.
So the line reads the next few devices together, and the processor fetches all of them at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
import itertools
from typing import Final
from typing import Generic
from typing import Protocol
from typing import TypeVar

# The processor fetches about this many at the same time. More would leave its caches before a claim takes them.
_READ_AHEAD: Final = 8


class Unit(Protocol):
    """The attributes of a device that a line reads."""

    identifier: str
    withheld: frozenset[str]


Device = TypeVar('Device', bound=Unit)


class Line(Generic[Device]):
    """Devices in the order in which claims take them. While a device is in the line, its identifier does not change."""

    __slots__ = ('_devices', '_identifiers', '_ahead')

    def __init__(self) -> None:
        self._devices: deque[Device] = deque()
        self._identifiers: deque[str] = deque()     # of the same devices, to find one without reading it
        self._ahead = 0                             # the number of first devices that were read

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices)

    def append(self, device: Device) -> None:
        self._devices.append(device)
        self._identifiers.append(device.identifier)

    def put_first(self, device: Device) -> None:
        self._devices.appendleft(device)
        self._identifiers.appendleft(device.identifier)

    def remove(self, device: Device) -> None:
        """Remove a device from anywhere in the line. The longer the line, the longer this takes."""
        place = self._devices.index(device)
        del self._devices[place], self._identifiers[place]

    def take_first(self) -> Device | None:
        """Remove and return the first device; None if the line is empty."""
        devices = self._devices
        if not devices:
            return None
        if self._ahead:
            self._ahead -= 1
        else:
            self._read_ahead()
        self._identifiers.popleft()
        return devices.popleft()

    def _read_ahead(self) -> None:
        # A new list counts a reference to each of its objects, and so reads the beginning of each.
        devices = list(itertools.islice(self._devices, _READ_AHEAD))
        list(itertools.islice(self._identifiers, _READ_AHEAD))
        # And this reads the last field of each unit, at its end.
        self._ahead = len([device.withheld for device in devices]) - 1

    def __getstate__(self) -> tuple[deque[Device], deque[str]]:
        """Leave out the number of devices read ahead, so that lines of the same order have equal pickles."""
        return self._devices, self._identifiers

    def __setstate__(self, state: tuple[deque[Device], deque[str]]) -> None:
        self._devices, self._identifiers = state
        self._ahead = 0
