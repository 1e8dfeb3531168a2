"""The constant part of a PCI function's configuration space, for a comparison before and after a guest. No I/O.

The header of a function (PCI Local Bus Specification 3.0, section 6.1; PCI Express Base Specification, "PCI-Compatible
Configuration Registers") has the values that its maker set: identifiers, revision, class, and the layout. If a guest's
driver, or firmware that a guest wrote, turned the function into another device, these values differ. Everything else in
the header belongs to the host's kernel and driver, and changes by itself: command and status, cache line size, latency,
interrupt line, and the addresses in the base address registers. The sizes of these registers do not change: the kernel
determined them when it found the function, and ``resource`` in sysfs has them.
"""

from __future__ import annotations

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
