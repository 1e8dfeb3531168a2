"""The constant part of a PCI function's configuration space, for a comparison before and after a guest; serial numbers.

The header of a function (PCI Local Bus Specification 3.0, section 6.1; PCI Express Base Specification, "PCI-Compatible
Configuration Registers") has the values that its maker set: identifiers, revision, class, and the layout. If a guest's
driver, or firmware that a guest wrote, turned the function into another device, these values differ. Everything else in
the header belongs to the host's kernel and driver, and changes by itself: command and status, cache line size, latency,
interrupt line, and the addresses in the base address registers. The sizes of these registers do not change: the kernel
determined them when it found the function, and ``resource`` in sysfs has them.

Vital Product Data (PCI Local Bus Specification 3.0, appendix I) is a list of resources: an identifier string, fields
that can be read, fields that can be written, an end. The field ``SN`` among the second is the serial number. A PCI
Express device may have another one: the capability "Device Serial Number" in its extended configuration space, which
begins at 256 (PCI Express Base Specification, "Device Serial Number Extended Capability"). In either place all
functions of a card have the same number.

Nothing here does any I/O.
"""

from __future__ import annotations

from collections.abc import Callable
import struct
from typing import Final

HEADER_BYTES: Final = 64
# The lines of ``resource`` for base address registers and for the expansion ROM (Linux: include/linux/pci.h).
_REGISTERS: Final = 6
_ROM: Final = 6
# Bits of IORESOURCE_* (Linux: include/linux/ioport.h): input and output, memory, and prefetchable memory.
_KIND: Final = 0x0300
_PREFETCH: Final = 0x2000
_LAYOUT: Final = 0x7F               # bit 7 of the header type: there are other functions in the slot

# Tags of resources: a large one has its length in the next two bytes.
_LARGE: Final = 0x80
_READ_ONLY: Final = 0x90
_SERIAL: Final = b'SN'
_MOST_VPD: Final = 2**15                # bytes that the 15 bits of a VPD address tell apart
_MOST_FIELDS: Final = 1024              # bytes of the fields that are looked at: some dozen of some dozen bytes

_CONVENTIONAL: Final = 256              # all of the configuration space without the extended one
_NO_CAPABILITY: Final = (0, 0xFFFFFFFF)
_SERIAL_CAPABILITY: Final = 0x0003
_MOST_CAPABILITIES: Final = 480         # of at least 8 bytes each in what is left of 4096


def stable(header: bytes, resource: str) -> str:
    """Return the constant part as text: ``vendor:device:revision:class:layout:subsystem`` and the register sizes.

    A virtual function has ``ffff`` as its vendor and device (PCI Express, "VF Vendor ID").

    :param header: at least the first 64 bytes of the configuration space
    :param resource: the text of the attribute in sysfs
    :raises ValueError: the function does not answer, or what was read is no header
    """
    if len(header) < HEADER_BYTES:
        raise ValueError(f'its configuration space has {len(header)} bytes, not {HEADER_BYTES}')
    header = header[:HEADER_BYTES]
    if header == b'\xff' * HEADER_BYTES:        # no device answers on the bus
        raise ValueError('it does not answer on its bus')
    vendor, device = struct.unpack_from('<HH', header)
    of_vendor, subsystem = struct.unpack_from('<HH', header, 0x2C)
    class_code = header[0x0B:0x08:-1].hex()
    sizes = ','.join(_sizes(resource))
    return (f'{vendor:04x}:{device:04x}:{header[0x08]:02x}:{class_code}:{header[0x0E] & _LAYOUT:02x}:'
            f'{of_vendor:04x}:{subsystem:04x} {sizes}')


def _sizes(resource: str) -> list[str]:
    """The size of each register that the function has: ``0m16384`` is 16 KiB of memory at register 0."""
    found = []
    for number, line in enumerate(resource.splitlines()[:_REGISTERS + 1]):
        start, end, flags = (int(word, 16) for word in line.split())
        if flags & _KIND:
            kind = 'rom' if number == _ROM else f'{number}{"p" if flags & _PREFETCH else "m" if flags & 0x200 else "i"}'
            found.append(f'{kind}{end - start + 1}')
    return found


def serial_of_vpd(read: Callable[[int, int], bytes]) -> str:
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


def serial_of_config(data: bytes) -> str | None:
    """Find the serial number in a configuration space; '' if there is none.

    :param data: as the kernel shows it
    :returns: None if the kernel did not show enough of it to tell
    """
    if len(data) <= HEADER_BYTES:            # what the kernel shows to a reader without CAP_SYS_ADMIN
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
