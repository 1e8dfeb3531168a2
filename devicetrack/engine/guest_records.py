"""The records of devices in the definitions of guests, and whether a row can be written from such a record."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine.views import Views
from devicetrack.objects import details
from devicetrack.objects.compact import Key
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import RecordedDevice

ByGuests = Mapping[Key, Sequence[tuple[GuestRecord, RecordedDevice]]]


def by_guests(views: Views) -> ByGuests:
    """The records of all guests of this host, by device."""
    found: dict[Key, list[tuple[GuestRecord, RecordedDevice]]] = {}
    for guest in views.guests:
        if guest.host_uuid == views.host_uuid:
            for device in guest.devices:
                found.setdefault((device.kind, device.identifier), []).append((guest, device))
    return found


def own_record(recorded: ByGuests, key: Key, domain_uuid: str) -> RecordedDevice | None:
    """The record of a device by the guest that names it, unless the device is recorded beside the guest's own."""
    return next((device for guest, device in recorded.get(key, ())
                 if guest.instance_uuid == domain_uuid and not device.beside), None)


# The longest texts that fit a row, in characters. Details have 64 KiB, and a character may take four bytes.
LONGEST: Final = {'kind': 64, 'identifier': 255, 'resource_class': 255, 'parent': 255, 'claim_id': 64,
                  'details': 16_383}


def is_whole(device: RecordedDevice) -> bool:
    """Whether a row can be written from what a guest records of a device."""
    if device.role not in vocabulary.ROLES or (device.role != vocabulary.CURRENT and device.migration_uuid is None):
        return False
    if any(len(getattr(device, name) or '') > most for name, most in LONGEST.items()):
        return False
    if not 0 <= device.position < vocabulary.MAX_AMOUNT or not -1 <= (device.numa_node or 0) < vocabulary.MAX_AMOUNT:
        return False
    try:
        details.from_text(device.details)
    except (exception.MalformedObject, exception.UnknownObject):
        return False
    return True
