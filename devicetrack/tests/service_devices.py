"""A compute service that hands out devices itself and reserves them, as Nova does with ``one_time_use``."""

from __future__ import annotations

from collections.abc import Callable
import uuid

from devicetrack import exception
from devicetrack.objects import cleanable
from devicetrack.objects.cleanable import Cleanable
from devicetrack.objects.values import DeviceKey


class ServiceDevices:
    """The devices of the service, as :class:`devicetrack.claims.service_cleaning.DeviceService`.

    It reserves a device when a guest gets it, and never ends that by itself. ``before`` has, by the name of a call,
    what happens once before its next answer. ``note_given`` is told when a guest gets a device, as the manager is.
    """

    def __init__(self, *addresses: str) -> None:
        self.reserved: set[str] = set()
        self.users: dict[str, str] = {}
        self.times = dict.fromkeys(addresses, 0)
        self.handed_out: list[str] = []
        self.before: dict[str, Callable[[], object]] = {}
        self.note_given: Callable[[set[DeviceKey]], object] = lambda _keys: None

    def claim(self, address: str) -> str:
        """Give a device to a guest, and reserve the device."""
        self.users[address] = str(uuid.uuid4())
        self.reserved.add(address)
        self.times[address] += 1
        self.note_given({DeviceKey('pci', address)})
        return self.users[address]

    def free(self, address: str) -> None:
        del self.users[address]
        self.times[address] += 1

    def devices(self) -> dict[DeviceKey, Cleanable]:
        self.before.pop('devices', lambda: None)()
        return {DeviceKey('pci', address): Cleanable(
            cleanable.USED if address in self.users else
            cleanable.WAITING if address in self.reserved else cleanable.FREE, str(times))
            for address, times in self.times.items()}

    def check_waits(self, key: DeviceKey, told: str) -> None:
        self.before.pop('check_waits', lambda: None)()
        if key.identifier in self.users or key.identifier not in self.reserved or (
                str(self.times[key.identifier]) != told):
            raise exception.DeviceInUse(*key, 'the service gave it to an instance')

    def hand_out(self, key: DeviceKey, told: str) -> None:
        self.before.pop('hand_out', lambda: None)()
        self.check_waits(key, told)
        self.reserved.discard(key.identifier)
        self.handed_out.append(key.identifier)
