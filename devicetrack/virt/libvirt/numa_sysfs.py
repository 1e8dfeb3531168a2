"""Which processor socket each NUMA node of the host is on, as sysfs shows it.

A node lists its processors that are online (Linux: Documentation/ABI/stable/sysfs-devices-node), and a processor names
its package, which is the socket (Documentation/ABI/stable/sysfs-devices-system-cpu).
"""

from __future__ import annotations

import os
import re
from typing import Final

from devicetrack import log
from devicetrack.virt.libvirt import kernel_files

LOG = log.logger(__name__)

_NODE: Final = re.compile('node([0-9]+)')
_RANGE: Final = re.compile('([0-9]+)(?:-([0-9]+))?')

Sockets = tuple[tuple[int, int], ...]


class Topology:
    """The NUMA nodes of one host.

    :param root: where sysfs is mounted
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen: dict[int, int] = {}
        self._told: str | None = None

    def sockets(self) -> Sockets:
        """Return pairs of a node and its socket; no pairs when the socket of any node is unknown.

        A node without processors has no socket, and is left out. So is one whose processors are all offline, for
        example to save power, unless one of them was online before. If a node spans several sockets, all are unknown,
        because then a device's node does not tell its socket.
        """
        try:
            self._seen |= self._read()
            return tuple(sorted(self._seen.items()))
        except (OSError, ValueError) as error:
            if str(error) != self._told:        # warn once, and not in each audit
                self._told = str(error)
                LOG.warning('The processor sockets of this host are unknown, so no request with the NUMA policy '
                            '"socket" gets a device of another node: %s', error)
            return ()

    def _read(self) -> dict[int, int]:
        """:raises OSError, ValueError: the socket of a node cannot be read, or there are several"""
        directory = os.path.join(self._root, 'devices/system/node')
        found = {}
        for name in os.listdir(directory):
            match = _NODE.fullmatch(name)
            if match is None:
                continue
            sockets = set(map(self._socket_of, _numbers(kernel_files.text(directory, name, 'cpulist'))))
            if len(sockets) > 1:
                raise ValueError(f'NUMA node {match[1]} is on the sockets {", ".join(map(str, sorted(sockets)))}')
            if sockets:
                found[int(match[1])] = sockets.pop()
        return found

    def _socket_of(self, processor: int) -> int:
        number = int(kernel_files.text(self._root, f'devices/system/cpu/cpu{processor}/topology/physical_package_id'))
        if number < 0:
            raise ValueError(f'processor {processor} names no socket')
        return number


def _numbers(text: str) -> list[int]:
    """The numbers of a list such as ``0-3,8``."""
    numbers: list[int] = []
    for part in text.split(',') if text else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f'{text!r} is not a list of processors')
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers
