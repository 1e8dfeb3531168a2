"""Finds the serial number of a PCI function in its configuration space and its Vital Product Data.

Vital Product Data (PCI Local Bus Specification 3.0, appendix I) is a list of resources: an identifier string, fields
that can be read, fields that can be written, an end. The field ``SN`` among the second is the serial number. A PCI
Express device may have another one: the capability "Device Serial Number" in its extended configuration space, which
begins at 256 (PCI Express Base Specification, "Device Serial Number Extended Capability"). In either place all
functions of a card have the same number.
"""

from __future__ import annotations

from collections.abc import Callable
import struct
from typing import Final

# Tags of resources: a large one has its length in the next two bytes.
_LARGE: Final = 0x80
_READ_ONLY: Final = 0x90
_SERIAL: Final = b'SN'
_MOST_VPD: Final = 2**15                # bytes that the 15 bits of a VPD address tell apart
_MOST_FIELDS: Final = 1024              # bytes of the fields that are looked at: some dozen of some dozen bytes

_CONVENTIONAL: Final = 256              # all of the configuration space without the extended one
_HEADER: Final = 64                     # what the kernel shows to a reader without CAP_SYS_ADMIN
_NO_CAPABILITY: Final = (0, 0xFFFFFFFF)
_SERIAL_CAPABILITY: Final = 0x0003
_MOST_CAPABILITIES: Final = 480         # of at least 8 bytes each in what is left of 4096


def of_vpd(read: Callable[[int, int], bytes]) -> str:
    """Find the serial number in Vital Product Data; '' if there is none.

    The data are read piece by piece: a card takes milliseconds for every four bytes, and there may be 32 KiB.

    :param read: returns so many bytes from a place: ``read(how_many, place)``
    :raises OSError: ``read`` raised it
    """
    place = 0
    while place < _MOST_VPD:
        tag = read(3, place)
        if len(tag) < 3 or not tag[0] & _LARGE or tag[0] == 0xFF:
            return ''                   # the end, a small resource that no card has here, or no data at all
        length = int.from_bytes(tag[1:], 'little')
        if tag[0] == _READ_ONLY:
            return _field(read(min(length, _MOST_FIELDS), place + 3), _SERIAL)
        place += 3 + length
    return ''


def _field(data: bytes, keyword: bytes) -> str:
    place = 0
    while place + 3 <= len(data):
        length = data[place + 2]
        if data[place:place + 2] == keyword:
            return _shown(data[place + 3:place + 3 + length].decode('ascii', 'replace'))
        place += 3 + length
    return ''


def of_config(data: bytes) -> str | None:
    """Find the serial number in a configuration space; '' if there is none.

    :param data: as the kernel shows it
    :returns: None if the kernel did not show enough of it to tell
    """
    if len(data) <= _HEADER:
        return None
    place = _CONVENTIONAL
    for _capability in range(_MOST_CAPABILITIES):
        if not _CONVENTIONAL <= place <= len(data) - 12:
            return ''
        header, low, high = struct.unpack_from('<III', data, place)
        if header in _NO_CAPABILITY:
            return ''
        if header & 0xFFFF == _SERIAL_CAPABILITY:
            return _shown('-'.join(f'{high << 32 | low:016x}'[at:at + 2] for at in range(0, 16, 2)))
        place = header >> 20
    return ''


def _shown(text: str) -> str:
    """Return a serial number without the blanks around it; '' if it has no information or cannot be printed."""
    found = text.strip(' \0')
    if not (found.isascii() and found.isprintable()) or len(set(found.lower()) - {'-', ' '}) < 2:
        return ''
    return found
