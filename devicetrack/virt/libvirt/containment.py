"""Finds what contains what on a host: a function its virtual functions, a card its mediated devices, a disk its parts.

Whoever has a thing has everything in it, whichever device kinds offer the two. Devices are compared as the kernel knows
them, since a device node may have any name, and a file may have several.

::

    bus/pci/devices/<function>                          links to a directory below those of the bridges above it
    bus/pci/devices/<function>/physfn                   links a virtual function to its physical one
    bus/pci/devices/<function>/sriov_offset, _stride    where its virtual functions are, whether they exist or not
    bus/mdev/devices/<UUID>                             links to a directory below that of its parent
    dev/block/<number>/partition, slaves                a partition, and the devices on which another one is built
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import functools
import os
import re
import stat
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import things
from devicetrack.objects.things import Exclusions
from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import pci_use

SYSFS: Final = '/sys'
_VIRTFN: Final = re.compile(r'virtfn[0-9]+')
_NO_THING: Final[tuple[None, tuple[str, ...]]] = (None, ())

# The token of a thing, None if it needs none, and the tokens of all that contains it, the nearest first.
Thing = tuple[str | None, tuple[str, ...]]


class Look:
    """One look at a host. It remembers what it saw.

    A thing is named by a PCI address, the UUID of a mediated device, or the path of a device node or of a file.

    :param sysfs: where sysfs is
    """

    def __init__(self, sysfs: str = SYSFS) -> None:
        self._sysfs = sysfs
        self._functions, self._mediated = (os.path.join(sysfs, one) for one in ('bus/pci/devices', 'bus/mdev/devices'))
        self._seen: dict[str, Thing] = {}
        self._known_above: dict[str, tuple[str, ...]] = {}
        self._known_below: dict[str, tuple[str, ...]] = {}
        self.unread: exception.DriverError | None = None        # why things that contain others may be missing here

    @functools.cached_property
    def _disks(self) -> pci_use.Disks:
        return pci_use.Disks(self._sysfs)

    def exclusions(self, node: str | None, container: str | None) -> Exclusions:
        """What may not be held beside a device.

        :param node: the thing that it is; None if no other device can be that
        :param container: the thing that it is a part of, as its kind says; None if only the host shows that
        """
        own, within = _NO_THING if node is None else self.thing(node)
        if container is not None:
            whole, beyond = self.thing(container)
            within = (*within, *(() if whole is None else (whole,)), *beyond)
        found = things.exclusions(own, within)
        group = None if node is None else self._group(node)
        return found if group is None else (*found, (things.of_group(group), vocabulary.TOGETHER))

    def thing(self, node: str) -> Thing:
        """Find a thing, and what contains it."""
        known = self._seen.get(node)
        if known is None:
            address = things.address_in(node)
            if address is not None:
                known = things.of_function(address), tuple(map(things.of_function, self._above(address)))
            elif vocabulary.is_uuid(node):
                known = None, tuple(map(things.of_function, self._with_above(reversed(
                    kernel_files.target(self._mediated, node).split('/')))))
            else:
                known = self._of_path(node)
            self._seen[node] = known
        return known

    def relatives(self, node: str | None, container: str | None) -> Collection[str]:
        """Name the functions and mediated devices that contain a thing, and those that are in it now."""
        tokens = (token for token, mode in self.exclusions(node, container) if mode == vocabulary.PART)
        found = {token.removeprefix(_FUNCTION) for token in tokens if token.startswith(_FUNCTION)}
        address = things.address_in(node)
        for one in () if address is None else (address, *self._vfs(address)):
            found |= {one, *filter(vocabulary.is_uuid, kernel_files.names_in_reach(self._functions, one))}
        return found - {address}

    def mediated_devices(self) -> list[str]:
        """The UUIDs of the mediated devices that exist, whoever made them."""
        return [*filter(vocabulary.is_uuid, kernel_files.names_in_reach(self._mediated))]

    def _above(self, address: str) -> tuple[str, ...]:
        """The functions that contain a function: its physical one, and those in front of it."""
        if (known := self._known_above.get(address)) is not None:
            return known
        directory = os.path.join(self._functions, address)
        target = kernel_files.target(directory)
        physfn = os.path.basename(kernel_files.target(directory, 'physfn')) if target else self._physfn_of_absent(
            address)
        found = self._known_above[address] = tuple(dict.fromkeys((
            *self._with_above([physfn] if physfn else []),
            *filter(vocabulary.PCI_ADDRESS.fullmatch, reversed(target.split('/')[:-1])))))
        return found

    def _with_above(self, names: Iterable[str]) -> Iterator[str]:
        for address in filter(vocabulary.PCI_ADDRESS.fullmatch, names):
            yield address
            yield from self._above(address)

    def _physfn_of_absent(self, address: str) -> str:
        """The physical function that would have a virtual function at an address where none is now; '' if none would.

        After a boot the rows of virtual functions come before the functions.
        """
        domain, routing = _routing(address)
        for card, (first, stride, total) in self._cards.items():
            card_domain, card_routing = _routing(card)
            number, rest = divmod(routing - card_routing - first, stride or 1)
            if domain == card_domain and not rest and 0 <= number < total:
                return card
        return ''

    @functools.cached_property
    def _cards(self) -> dict[str, tuple[int, int, int]]:
        """By physical function: the distance to its first virtual function, that between two, and their number."""
        found = {}
        for name in filter(vocabulary.PCI_ADDRESS.fullmatch, kernel_files.names_in_reach(self._functions)):
            with contextlib.suppress(OSError, ValueError):
                first, stride, total = (int(kernel_files.text(self._functions, name, one)) for one in (
                    'sriov_offset', 'sriov_stride', 'sriov_totalvfs'))
                found[name] = first, stride, total
        return found

    def _vfs(self, address: str) -> Iterator[str]:
        directory = os.path.join(self._functions, address)
        for name in filter(_VIRTFN.fullmatch, kernel_files.names_in_reach(directory)):
            yield os.path.basename(kernel_files.target(directory, name))

    def _group(self, node: str) -> str | None:
        address = things.address_in(node)
        link = '' if address is None else kernel_files.target(self._functions, address, 'iommu_group')
        return os.path.basename(link) or None

    def _of_path(self, path: str) -> Thing:
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return f'path:{os.path.normpath(path)}', ()         # nobody can use it now; its kind says why
        number = f'{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}'
        if stat.S_ISBLK(status.st_mode):
            return f'block:{number}', self._below_block(number, status.st_rdev)
        if stat.S_ISCHR(status.st_mode):
            return f'char:{number}', self._of_node(stat.S_IFCHR, status.st_rdev)
        # A file is a part of the disk under its file system.
        disk = f'{os.major(status.st_dev)}:{os.minor(status.st_dev)}'
        return f'file:{status.st_dev}:{status.st_ino}', (f'block:{disk}', *self._below_block(disk, status.st_dev))

    def _below_block(self, number: str, device: int) -> tuple[str, ...]:
        """The tokens of the block devices and functions on which a block device depends. Many files are on one."""
        if (known := self._known_below.get(number)) is None:
            known = self._known_below[number] = tuple(dict.fromkeys(self._find_below(number, device)))
        return known

    def _find_below(self, number: str, device: int) -> Iterator[str]:
        directory = os.path.realpath(os.path.join(self._sysfs, 'dev/block', number))
        slaves = os.path.join(directory, 'slaves')
        below = [os.path.join(slaves, name) for name in sorted(kernel_files.names_in_reach(slaves))]
        if os.path.exists(os.path.join(directory, 'partition')):
            below.append(os.path.dirname(directory))
        for one in below:
            with contextlib.suppress(OSError, ValueError):
                major, minor = map(int, kernel_files.text(one, 'dev').split(':'))
                yield f'block:{major}:{minor}'
                yield from self._below_block(f'{major}:{minor}', os.makedev(major, minor))
        yield from self._of_node(stat.S_IFBLK, device)

    def _of_node(self, sort: int, number: int) -> tuple[str, ...]:
        try:
            functions = self._disks.of_node(sort, number)
        except exception.DriverError as error:
            self.unread, functions = error, ()
        return tuple(map(things.of_function, dict.fromkeys(self._with_above(functions))))


_FUNCTION: Final = things.of_function('')


def _routing(address: str) -> tuple[str, int]:
    """The domain of a function, and the number by which its bus knows it."""
    domain, bus, rest = address.split(':')
    slot, function = rest.split('.')
    return domain, int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
