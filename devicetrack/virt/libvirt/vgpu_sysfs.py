"""The vGPU types of virtual functions, in sysfs as NVIDIA's driver has them for its own VFIO interface.

A card of which the driver has mediated devices no more has virtual functions that stay with the driver, each with files
of its own. NVIDIA's Virtual GPU Software User Guide describes them ("Creating an NVIDIA vGPU on a Linux with KVM
Hypervisor that Uses a Vendor-Specific VFIO Framework"), and so does "NVIDIA vGPU VFIO Driver", the documentation of the
driver that was posted for Linux; what is not said there is in the sources of the two::

    bus/pci/devices/<function>/physfn                         links to the physical function
    bus/pci/devices/<function>/numa_node                      -1 where nobody knows
    bus/pci/devices/<function>/iommu_group                    links to a directory that is called by its number
    bus/pci/devices/<function>/nvidia/current_vgpu_type       the number of the type that is set, 0 for none
    bus/pci/devices/<function>/nvidia/creatable_vgpu_types    what can be set now: a heading, then NUMBER : NAME lines

- Types take room from one another. When one is set, the lists of all functions of the card get shorter; on a card that
  is full they have the heading alone, and the list of a function with a type may be empty.
- A type is written only where none is, and taken away by 0 where one is: otherwise the driver says EPERM. While a
  process has the function open it says EBUSY, and when the card is full ENOSPC or EINVAL.
- Whatever makes the functions anew, as a boot or a reload of the driver does, leaves them without types.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import contextlib
import errno
import os
import re
from typing import NamedTuple

from devicetrack import exception
from devicetrack.virt.libvirt import privileged

NO_TYPE = '0'

_CURRENT, _CREATABLE = 'nvidia/current_vgpu_type', 'nvidia/creatable_vgpu_types'
_NUMBER = re.compile(r'0|[1-9][0-9]{0,9}')
_LINE = re.compile(r'\s*([1-9][0-9]{0,9})\s*:\s*(\S.*?)\s*')
_HEADING = re.compile(r'\s*ID\s*:.*')


class Function(NamedTuple):
    """A virtual function. ``current`` is the number of its type, :data:`NO_TYPE` for none.

    ``creatable`` are the names of the types that it can be given now, by number. ``problem`` is None, or why the two
    cannot be read.
    """

    address: str
    parent: str
    numa_node: int | None
    current: str
    creatable: Mapping[str, str]
    problem: str | None = None


class Tree:
    """The virtual functions of this host.

    :param root: where sysfs is
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._devices = os.path.join(root, 'bus/pci/devices')

    def functions(self) -> list[Function]:
        """Every virtual function that has these files, in the order of their addresses.

        :raises DriverError: they cannot be read
        """
        found = (self._function(name) for name in self._names() if self._has(name))
        return [function for function in found if function is not None]

    def function(self, address: str) -> Function | None:
        """One of them; None when there is none of this address.

        :raises DriverError: nobody can say
        """
        return self._function(address) if self.known((address,)) else None

    def parents(self) -> set[str]:
        """The physical functions of virtual ones that have these files, whether or not their types can be read.

        :raises DriverError: they cannot be read
        """
        found = set()
        for name in self._names():
            # What is not a virtual function, or went away just now, has no such link.
            with contextlib.suppress(OSError):
                parent = os.path.basename(os.readlink(self._path(name, 'physfn')))
                if os.path.lexists(self._path(name, _CURRENT)):
                    found.add(parent)
        return found

    def parent_path(self, address: str) -> str:
        """The directory of a physical function."""
        return os.path.join(self._devices, address)

    def known(self, addresses: Iterable[str]) -> set[str]:
        """Those of the addresses that a virtual function with these files has.

        :raises DriverError: nobody can say
        """
        if not os.path.isdir(self._devices):
            raise exception.CommandFailed(f'listing {self._devices}', 'there is no such directory')
        return {address for address in addresses if self._has(address)}

    def others(self, addresses: Iterable[str]) -> set[str]:
        """Those of the addresses that something else has: another PCI device, or a function without these files."""
        return {address for address in addresses if os.path.lexists(os.path.join(self._devices, address))}

    def why_no_parent(self, address: str) -> str:
        """Why no virtual function with these files has this parent."""
        if not os.path.lexists(os.path.join(self._devices, address)):
            return 'this host has no such device'
        with contextlib.suppress(OSError):
            parent = os.path.basename(os.readlink(self._path(address, 'physfn')))
            return f'it is a virtual function of {parent}, which is to be named'
        return 'it has no virtual functions that take vGPU types: enable them'

    def set_type(self, address: str, number: str) -> None:
        """Give a virtual function a type, or take it away by :data:`NO_TYPE`.

        :raises OSError: as the driver says it
        """
        privileged.set_vgpu_type(self.root, address, int(number))

    def is_open(self, address: str) -> bool:
        """Whether anybody has the function open, or another one of its IOMMU group.

        :raises OSError: nobody can say
        """
        return privileged.is_vfio_group_open(int(os.path.basename(os.readlink(self._path(address, 'iommu_group')))))

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._devices))
        except OSError as error:
            raise exception.CommandFailed(f'listing {self._devices}', str(error.strerror)) from error

    def _has(self, address: str) -> bool:
        try:
            os.stat(self._path(address, _CURRENT))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise exception.CommandFailed('stat', f'{_CURRENT} of {address}: {error.strerror}') from error
            return False
        return True

    def _function(self, address: str) -> Function | None:
        current, creatable, problem = NO_TYPE, '', None
        try:
            parent = os.path.basename(os.readlink(self._path(address, 'physfn')))
            current = self._read(address, _CURRENT).strip()
            creatable = self._read(address, _CREATABLE)
        except FileNotFoundError:
            return None                         # it went away just now
        except OSError as error:
            problem = f'its vGPU types cannot be read: {error.strerror}'
        if not _NUMBER.fullmatch(current):
            raise exception.InvalidDocument(f'{_CURRENT} of {address}', 'line 1', 'not a number')
        return Function(address, parent, self._numa_node(address), current, _types(creatable, address), problem)

    def _numa_node(self, address: str) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            node = int(self._read(address, 'numa_node'))
            return node if node >= 0 else None
        return None

    def _read(self, address: str, name: str) -> str:
        with open(self._path(address, name), encoding='utf-8', errors='replace') as file:
            return file.read()

    def _path(self, address: str, name: str) -> str:
        return os.path.join(self._devices, address, name)


def _types(text: str, address: str) -> dict[str, str]:
    types = {}
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is not None:
            types[found[1]] = found[2]
        elif line.strip() and not (number == 1 and _HEADING.fullmatch(line)):
            raise exception.InvalidDocument(f'{_CREATABLE} of {address}', f'line {number}',
                                            'not the number and the name of a type')
    return types
