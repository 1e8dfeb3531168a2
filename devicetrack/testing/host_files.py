"""Files of sysfs, ``/proc`` and ``/dev`` that show what a host does with its devices.

:class:`devicetrack.testing.pci.PCIHost` is such a host::

    host.add_process(4711, 'smartd')
    host.open_device(4711, 'nvme0')
    host.mount('nvme0n1', '/srv')
    host.build_interface('br0', 'enp3s0')
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
import os
from typing import Final

import fixtures

_FIRST_PROCESS: Final = 1
_FIRST_INTERFACE: Final = 100_000               # no interface of the machine that runs the test has this number
BLOCK_MAJOR: Final = 259
_STATISTICS: Final = 17                         # numbers in the statistics of a block device


class HostFiles(fixtures.Fixture):
    """Parts of sysfs, ``/proc`` and ``/dev`` in a temporary directory. The paths are ``root``, ``proc`` and ``dev``.

    Only root can make device nodes, so :meth:`open_device` needs root.
    """

    def _setUp(self) -> None:
        self._top: str = self.useFixture(fixtures.TempDir()).path
        self.root, self.proc, self.dev = (os.path.join(self._top, name) for name in ('sys', 'proc', 'dev'))
        self._directories: dict[str, str] = {}          # of PCI functions, by address
        self._numbers: dict[str, str] = {}
        self._next_number = 0
        self._interfaces: list[str] = []
        self._disks_seen = itertools.count(1)
        self._with_ipv4: set[int] = set()
        self._first_interface = _FIRST_INTERFACE
        for name in ('class/net', 'class/block', 'class/nvme', 'dev/block', 'dev/char'):
            os.makedirs(self._at(name))
        os.makedirs(self.dev)
        self.add_process(_FIRST_PROCESS, 'systemd')
        os.symlink(str(_FIRST_PROCESS), os.path.join(self.proc, 'self'))
        os.mkdir(os.path.join(self.proc, 'net'))
        self._put(self._of_proc('swaps'), 'Filename\t\tType\t\tSize\t\tUsed\t\tPriority\n')
        self._put(self._of_proc('net/route'), 'Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\t'
                                              'Window\tIRTT\n')
        for name in ('net/ipv6_route', 'net/if_inet6'):
            self._put(self._of_proc(name), '')

    def add_process(self, pid: int, program: str, namespace: int = 4026531841) -> None:
        """Let a process run.

        :param namespace: the number of its mount namespace
        """
        os.makedirs(self._of_proc(f'{pid}/ns'))
        os.mkdir(self._of_proc(f'{pid}/fd'))
        os.symlink(f'mnt:[{namespace}]', self._of_proc(f'{pid}/ns/mnt'))
        self._put(self._of_proc(f'{pid}/comm'), f'{program}\n')
        self._put(self._of_proc(f'{pid}/mountinfo'), '22 27 0:21 / /proc rw,relatime shared:5 - proc proc rw\n')

    def mount(self, name: str, where: str, pid: int = _FIRST_PROCESS) -> None:
        """Mount a block device in the mount namespace of a process.

        :param where: the mount point as the kernel writes it, with escapes
        """
        self._append(f'{pid}/mountinfo', f'40 27 {self._numbers[name].rpartition("/")[2]} / {where} rw,relatime '
                                         f'shared:1 - ext4 /dev/{name} rw\n')

    def swap(self, name: str) -> None:
        self._append('swaps', f'/dev/{name}                            partition\t1048572\t\t0\t\t-2\n')

    def open_device(self, pid: int, name: str) -> None:
        """Let a process open a device node: ``nvme0``, ``nvme0n1`` or ``ng0n1``."""
        node = os.path.join(self.dev, name)
        if not os.path.lexists(node):
            self.make_node(name)
        directory = self._of_proc(f'{pid}/fd')
        os.symlink(node, os.path.join(directory, str(3 + len(os.listdir(directory)))))

    def add_unlisted(self, name: str, number: str, registered: str) -> None:
        """Add a character device without a device in sysfs, as NVIDIA's driver does.

        :param number: its major and minor number, ``195:0``
        :param registered: the name in ``/proc/devices``
        """
        self._numbers[name] = f'char/{number}'
        self._append('devices', f'{number.partition(":")[0]} {registered}\n')

    def tell(self, path: str, text: str) -> None:
        """Let a driver write a file below ``/proc``."""
        os.makedirs(os.path.dirname(self._of_proc(path)), exist_ok=True)
        self._put(self._of_proc(path), text)

    def make_node(self, name: str) -> None:
        """Make the node of a device: ``nvme0``, ``nvme0n1`` or ``ng0n1``."""
        sort, _slash, number = self._numbers[name].partition('/')
        major, minor = map(int, number.split(':'))
        os.mknod(os.path.join(self.dev, name), 0o600 | (0o060000 if sort == 'block' else 0o020000),
                 os.makedev(major, minor))

    def add_device(self, below: str, name: str, kind: str = '', number: str = '') -> None:
        """Add a device that a driver makes: its directory, and the links from its class and its number.

        :param below: the path in ``devices``, or the address of a PCI function and the path below it
        :param kind: its class, for example ``net``; by default it has none
        :param number: the sort of its node and its major number, ``char/240`` or ``block/259``; by default it has no
            node
        """
        address, slash, rest = below.partition('/')
        above = (os.path.join(self._directories[address], rest) if slash and address in self._directories
                 else self._at('devices', below))
        directory = os.path.join(above, name)
        os.makedirs(directory)
        if kind:
            self._link(directory, self._at('class', kind), name)
        if kind == 'block':
            self._put(os.path.join(directory, 'stat'), f'{" ".join("0" * _STATISTICS)}\n')
            self._put(os.path.join(directory, 'diskseq'), f'{next(self._disks_seen)}\n')
        if kind == 'net':
            # As in the kernel, an interface that comes back has another number.
            self._interfaces.append(name)
            self._put(os.path.join(directory, 'ifindex'), f'{self._first_interface + len(self._interfaces)}\n')
            self._put(os.path.join(directory, 'flags'), '0x1003\n')
        if number:
            self._numbers[name] = f'{number}:{self._next_number}'
            self._next_number += 1
            self._put(os.path.join(directory, 'dev'), f'{os.path.basename(self._numbers[name])}\n')
            self._link(directory, self._at('dev', os.path.dirname(number)), os.path.basename(self._numbers[name]))

    def write_to(self, name: str) -> None:
        """Write to a block device that is there, as a file system does: the kernel counts it."""
        path = self._at('class/block', name, 'stat')
        with open(path, encoding='ascii') as file:
            counts = file.read().split()
        for place, more in ((4, 1), (6, 8)):
            counts[place] = str(int(counts[place]) + more)
        self._put(path, f'{" ".join(counts)}\n')

    def add_partition(self, disk: str, name: str) -> None:
        self.add_device(os.path.relpath(os.path.realpath(self._at('class/block', disk)), self._at('devices')), name,
                     'block', f'block/{BLOCK_MAJOR}')
        self._put(os.path.join(os.path.realpath(self._at('class/block', name)), 'partition'), '1\n')

    def build(self, name: str, on: Sequence[str], label: str = '') -> None:
        """Build a block device, ``dm-0`` or ``md0``, on other block devices.

        :param label: the name in ``/dev/mapper``
        """
        self.add_device('virtual/block', name, 'block', f'block/{253 if label else 9}')
        directory = os.path.realpath(self._at('class/block', name))
        os.mkdir(os.path.join(directory, 'slaves'))
        for one in on:
            self._link(os.path.realpath(self._at('class/block', one)), os.path.join(directory, 'slaves'), one)
        if label:
            os.mkdir(os.path.join(directory, 'dm'))
            self._put(os.path.join(directory, 'dm/name'), f'{label}\n')

    def route(self, interface: str, default: bool = False) -> None:
        """Let an IPv4 route go through an interface."""
        destination, mask = ('00000000', '00000000') if default else ('000200C0', '00FFFFFF')
        self._append('net/route', f'{interface}\t{destination}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n')

    def give_address(self, interface: str, link_local: bool = False) -> None:
        """Give an interface an IPv6 address and turn it up."""
        prefix, scope = ('fe80', 0x20) if link_local else ('fd00', 0)
        self._append('net/if_inet6', f'{prefix}{2:028x} 02 40 {scope:02x} 80 {interface:>8}\n')
        if link_local:
            self._append('net/ipv6_route', f'fe80{0:028x} 40 {0:032x} 00 {0:032x} 00000100 00000001 00000000 00000001 '
                                           f'{interface:>8}\n')
        self.turn_up(interface)

    def give_ipv4(self, interface: str) -> None:
        """Give an interface an IPv4 address without a route, and turn it up."""
        with open(self._at('class/net', interface, 'ifindex'), encoding='ascii') as file:
            self._with_ipv4.add(int(file.read()))
        self.turn_up(interface)

    def turn_down(self, interface: str) -> None:
        self._put(self._at('class/net', interface, 'flags'), '0x1002\n')

    def turn_up(self, interface: str) -> None:
        self._put(self._at('class/net', interface, 'flags'), '0x1003\n')

    def build_interface(self, name: str, on: str) -> None:
        """Build an interface on another one: a bridge, a bond or a VLAN."""
        self.add_device('virtual/net', name, 'net')
        self._link(os.path.realpath(self._at('class/net', on)), self._at('class/net', name), f'lower_{on}')

    # -- files --------------------------------------------------------------------------------------------------------

    def _at(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def _of_proc(self, name: str) -> str:
        return os.path.join(self.proc, name)

    def _append(self, name: str, text: str) -> None:
        with open(self._of_proc(name), 'a') as file:
            file.write(text)

    @staticmethod
    def _link(target: str, directory: str, name: str) -> None:
        relative = os.path.relpath(os.path.realpath(target), os.path.realpath(directory))
        os.symlink(relative, os.path.join(directory, name))

    @staticmethod
    def _put(path: str, text: str) -> None:
        with open(path, 'w', encoding='latin-1') as file:
            file.write(text)
