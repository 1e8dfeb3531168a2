"""What a compute host has: libvirt's definitions, mediated devices, and the bytes of namespaces.

``look.py`` prints it as JSON; ``look.py NAME BYTE`` first fills all of a namespace but its first 2 MiB with a byte.
``look.py --briefly`` does not read namespaces to their ends, which takes seconds where a processor is emulated. It asks
libvirt and the kernel alone, so it is the same for a host with the library and one without.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from typing import Any
import xml.etree.ElementTree as ElementTree

import libvirt

COUNTER_SIZE = 8
_MDEVS = '/sys/bus/mdev/devices'
_CHUNK = 1 << 20


def namespaces() -> dict[str, str]:
    """The path of each namespace that is there, by name."""
    listed = subprocess.run(['ndctl', 'list', '--namespaces', '--device-dax'], stdout=subprocess.PIPE, check=True)
    found = json.loads(listed.stdout or b'[]')
    return {one['name']: f'/dev/{one["daxregion"]["devices"][0]["chardev"]}'
            for one in (found if isinstance(found, list) else [found])}


def _mapped(path: str) -> mmap.mmap:
    number = os.stat(path).st_rdev
    with open(f'/sys/dev/char/{os.major(number)}:{os.minor(number)}/size') as file:
        size = int(file.read())
    with open(path, 'r+b') as file:
        return mmap.mmap(file.fileno(), size)


def contents(path: str, briefly: bool) -> dict[str, Any]:
    """The counter of boots, the last byte, and whether all are zero: None when that was not read."""
    zeros = bytes(_CHUNK)
    with _mapped(path) as mapped:
        count = int.from_bytes(mapped[:COUNTER_SIZE], 'little')
        # Compared, not counted: that takes seconds where a processor is emulated.
        is_zero = None if briefly else all(mapped[begin:begin + _CHUNK] == zeros[:len(mapped) - begin]
                                           for begin in range(0, len(mapped), _CHUNK))
        return {'boots': count, 'size': len(mapped), 'is_zero': is_zero, 'last': mapped[-1]}


def fill(path: str, byte: int) -> None:
    with _mapped(path) as mapped:
        chunk = bytes([byte]) * _CHUNK
        for begin in range(0, len(mapped), _CHUNK):
            # The guest keeps its counter, and its own half of the first pages.
            if begin >= 2 * _CHUNK:
                mapped[begin:begin + _CHUNK] = chunk[:len(mapped) - begin]


def devices(text: str, names: dict[str, str]) -> list[str]:
    """The devices that a definition names, each with its kind."""
    tree = ElementTree.fromstring(text)
    paths = [path.text or '' for path in tree.findall("devices/memory[@model='nvdimm']/source/path")]
    mdevs = [address.get('uuid', '') for address in tree.findall("devices/hostdev[@type='mdev']/source/address")]
    return sorted([f'vpmem/{names.get(path, path)}' for path in paths] + [f'mdev/{uuid}' for uuid in mdevs])


def domains(connection: Any, names: dict[str, str]) -> dict[str, Any]:
    found = {}
    for domain in connection.listAllDomains():
        runs = bool(domain.isActive())
        inactive = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        found[domain.UUIDString()] = {
            'runs': runs, 'defined': devices(inactive, names) if domain.isPersistent() else None,
            'live': devices(domain.XMLDesc(), names) if runs else None}
    return found


def main(arguments: list[str]) -> None:
    paths = namespaces()
    briefly = arguments == ['--briefly']
    if arguments and not briefly:
        name, byte = arguments
        fill(paths[name], int(byte))
    connection = libvirt.openReadOnly('qemu:///system')
    sys.stdout.write(json.dumps({
        'domains': domains(connection, {path: name for name, path in paths.items()}),
        'mdevs': sorted(os.listdir(_MDEVS)) if os.path.isdir(_MDEVS) else [],
        'namespaces': {name: contents(path, briefly) for name, path in sorted(paths.items())}}))


if __name__ == '__main__':
    main(sys.argv[1:])
