"""The vGPU types of virtual functions, in the files of NVIDIA's own VFIO interface in sysfs.

For newer cards NVIDIA's driver makes no mediated devices. It stays bound to the virtual functions, and each function
has files of its own. NVIDIA's Virtual GPU Software User Guide describes these files ("Creating an NVIDIA vGPU on a
Linux with KVM Hypervisor that Uses a Vendor-Specific VFIO Framework"), and so does "NVIDIA vGPU VFIO Driver", the
documentation of the driver that was posted for Linux. Other facts come from the sources of the two drivers::

    bus/pci/devices/<function>/physfn                         links to the physical function
    bus/pci/devices/<function>/vendor                         0x10de
    bus/pci/devices/<function>/numa_node                      -1 if it is unknown
    bus/pci/devices/<function>/iommu_group                    links to a directory that is called by its number
    bus/pci/devices/<function>/nvidia/current_vgpu_type       the number of the type that is set, 0 for none
    bus/pci/devices/<function>/nvidia/creatable_vgpu_types    what can be set now: a heading, then NUMBER : NAME lines

- All types of a card share its room. When a type is set, the lists of all functions of the card get shorter. On a full
  card they have only the heading, and the list of a function with a type may be empty.
- A function without a type accepts a type, and a function with a type accepts 0. Anything else fails with EPERM. The
  driver answers EBUSY while a process has the function open, and ENOSPC or EINVAL if the card is full.
- New functions, for example after a boot or a reload of the driver, have no types.
- A function has the directory ``nvidia`` only while NVIDIA's driver has it. For a managed device, libvirt binds the
  function to ``vfio-pci`` while the guest runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import errno
import os
import re
from typing import NamedTuple

from devicetrack import exception
from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import privileged

NO_TYPE = '0'

_CURRENT, _CREATABLE = 'nvidia/current_vgpu_type', 'nvidia/creatable_vgpu_types'
_NVIDIA = '0x10de'
_NUMBER = re.compile(r'0|[1-9][0-9]{0,9}')
_LINE = re.compile(r'\s*([1-9][0-9]{0,9})\s*:\s*(\S.*?)\s*')
_HEADING = re.compile(r'\s*ID\s*:.*')


class VGPUFunction(NamedTuple):
    """A virtual function. ``current`` is the number of its type, ``NO_TYPE`` for none.

    ``creatable`` are the names of the types that it can get now, by number. ``problem`` is None, or the reason why the
    two cannot be read.
    """

    address: str
    parent: str
    numa_node: int | None
    current: str
    creatable: Mapping[str, str]
    problem: str | None = None


class VGPUs(pci_sysfs.Tree):
    """The PCI functions of this host, with the vGPU types of virtual ones."""

    def vgpus(self) -> list[VGPUFunction]:
        """Read every virtual function that has these files, in the order of their addresses.

        :raises DriverError: they cannot be listed, or it cannot be read to which card one belongs
        """
        found = map(self._vgpu, self.addresses())
        return [function for function in found if function is not None]

    def vgpu(self, address: str) -> VGPUFunction | None:
        """Read one of them; None if there is none of this address.

        :raises DriverError: it cannot be read
        """
        return self._vgpu(address) if self.known((address,)) else None

    def parents(self) -> set[str]:
        """Find the physical functions of virtual ones that have these files, even if their types cannot be read.

        :raises DriverError: they cannot be read
        """
        # Other devices have no such link, nor has a function that went away just now.
        return {parent for name in self.addresses() if os.path.lexists(self._path(name, _CURRENT))
                and (parent := kernel_files.link(self._path(name, 'physfn'))) is not None}

    def known(self, addresses: Iterable[str]) -> set[str]:
        """Return those of the addresses at which there is a virtual function with these files.

        :raises DriverError: they cannot be read
        """
        if not os.path.isdir(self._devices):
            raise exception.CommandFailed(f'listing {self._devices}', 'there is no such directory')
        return {address for address in addresses if self._has(address)}

    def others(self, addresses: Iterable[str]) -> set[str]:
        """Return those of the addresses at which there is a PCI device that never has these files.

        A virtual function of NVIDIA's may get them again, so it is left out. So is one whose vendor cannot be read.
        """
        return {address for address in addresses if os.path.lexists(os.path.join(self._devices, address))
                and not (os.path.lexists(self._path(address, 'physfn')) and self._may_be_nvidias(address))}

    def card(self, address: str) -> str | None:
        """Return the physical function of the virtual function at an address, with or without these files.

        :returns: None if there is no virtual function at the address
        :raises CommandFailed: it cannot be read
        """
        try:
            return os.path.basename(os.readlink(self._path(address, 'physfn')))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise exception.CommandFailed('readlink', f'physfn of {address}: {error.strerror}') from error

    def why_no_parent(self, address: str) -> str:
        """Say why no virtual function with these files has this parent."""
        if not os.path.lexists(os.path.join(self._devices, address)):
            return 'this host has no such device'
        if (parent := kernel_files.link(self._path(address, 'physfn'))) is not None:
            return f'it is a virtual function: name its parent {parent}'
        return 'it has no virtual functions that take vGPU types: enable them'

    def set_type(self, address: str, number: str) -> None:
        """Give a virtual function a type; ``NO_TYPE`` removes its type.

        :raises OSError: the driver refused it
        """
        pci_privileged.set_vgpu_type(self.root, address, int(number))

    def is_open(self, address: str) -> bool:
        """Whether a process has the function, or another function of its IOMMU group, open.

        :raises OSError: the kernel cannot be asked
        """
        return privileged.is_vfio_group_open(int(os.path.basename(os.readlink(self._path(address, 'iommu_group')))))

    def _has(self, address: str) -> bool:
        try:
            os.stat(self._path(address, _CURRENT))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise exception.CommandFailed('stat', f'{_CURRENT} of {address}: {error.strerror}') from error
            return False
        return True

    def _may_be_nvidias(self, address: str) -> bool:
        try:
            return kernel_files.text(self._devices, address, 'vendor') == _NVIDIA
        except OSError:
            return True

    def _vgpu(self, address: str) -> VGPUFunction | None:
        current, types, problem = NO_TYPE, dict[str, str](), None
        try:
            current = _type(kernel_files.text(self._devices, address, _CURRENT), address)
            types = _types(kernel_files.text(self._devices, address, _CREATABLE), address)
        except (FileNotFoundError, NotADirectoryError):
            return None                         # it has no such files, or went away just now
        except OSError as error:
            problem = f'its vGPU types cannot be read: {error.strerror}'
        except exception.InvalidDocument as error:
            problem = str(error)
        parent = self.card(address)
        numa_node = kernel_files.number(self._devices, address, 'numa_node')
        return None if parent is None else VGPUFunction(address, parent, numa_node, current, types, problem)

    def _path(self, address: str, name: str) -> str:
        return os.path.join(self._devices, address, name)


def _type(text: str, address: str) -> str:
    if not _NUMBER.fullmatch(text.strip()):
        raise exception.InvalidDocument(f'{_CURRENT} of {address}', 'line 1', 'not a number')
    return text.strip()


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
