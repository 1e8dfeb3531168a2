"""Opens the block devices of disks, which needs root."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Final

from devicetrack import exception
from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import pci_use
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root

_DISK: Final = re.compile(r'nvme([0-9]+)n([0-9]+)')
_CONTROLLER: Final = re.compile(r'nvme[0-9]+')
_SUBSYSTEM: Final = re.compile(r'nvme-subsys[0-9]+')


@privileged.entry(of_sysfs=True, opens=True)
def open_disk(sysfs: str, address: str, name: str, size_bytes: int, writing: bool = True) -> int:
    """Open a disk of a PCI function for reading, and for writing if wanted. The caller closes the descriptor.

    The descriptor holds the lock on the disk's node, and so does every child that inherits it.

    :param sysfs: where sysfs is; the daemon uses its own
    :param name: the name of the disk's block device
    :raises BlockingIOError: somebody else holds that lock
    :raises OSError: it cannot be opened, is no disk of the function or has another size, the host uses the function, as
        ``pci_use`` finds, or somebody else holds the disk exclusively or has it open (EBUSY), the host's use is
        unknown, or there is no privileged daemon
    """
    return open_here(sysfs, address, name, size_bytes, writing)


def open_here(sysfs: str, address: str, name: str, size_bytes: int, writing: bool) -> int:
    """As :func:`open_disk`, for a process that has the rights."""
    if not vocabulary.PCI_ADDRESS.fullmatch(address) or not _DISK.fullmatch(name):
        raise OSError(errno.EINVAL, 'not a PCI address, or not the name of an NVMe namespace')
    # O_EXCL: the kernel refuses a block device that it uses itself, for a file system or below another one (open(2)).
    fd = os.open(os.path.join(root.DEVICES, name), (os.O_RDWR if writing else os.O_RDONLY) | os.O_EXCL | os.O_NOFOLLOW
                 | os.O_CLOEXEC | os.O_NONBLOCK)
    with ownfiles.closed_by_error(fd):
        status = os.fstat(fd)
        if not stat.S_ISBLK(status.st_mode):
            raise OSError(errno.EINVAL, 'not a block device')
        device = os.path.realpath(os.path.join(
            sysfs, f'dev/block/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}'))
        if os.path.basename(device) != name:
            raise OSError(errno.EINVAL, f'not the disk {name}')
        check_owner(sysfs, device, address)
        if os.lseek(fd, 0, os.SEEK_END) != size_bytes:
            raise OSError(errno.EINVAL, f'it does not have {size_bytes} bytes')
        device_users.check_alone(fd)
        # That sees the users of the disk itself. A process may have a partition of it or its character device.
        pci_privileged.check_own_use(sysfs, address)
        # That sees nodes in /dev, and those of their kernel's names. A container may have others.
        _check_ways_around(sysfs, address, name)
    return fd


def _check_ways_around(sysfs: str, address: str, name: str) -> None:
    try:
        devices = pci_use.Disks(sysfs).ways_around(name, address)
    except exception.DriverError as error:
        raise OSError(errno.EIO, f'the partitions of {name} are unknown: {error}') from error
    device_users.check_not_open(devices)


def check_owner(sysfs: str, device: str, address: str) -> None:
    """Check that a disk belongs to a PCI function, and to no other function.

    Where an NVM subsystem may have several controllers, the kernel shows a namespace below the subsystem, and hidden
    devices of the same numbers for the paths below its controllers (nvme_mpath_set_disk_name in Linux:
    drivers/nvme/host/multipath.c).

    :param device: the directory of the disk, without links
    :raises OSError: EINVAL: it does not belong to the function; EBUSY: other functions have it, too
    """
    own = os.path.join(os.path.realpath(os.path.join(sysfs, 'bus/pci/devices', address)), '')
    if device.startswith(own):
        return
    subsystem, name = os.path.split(device)
    owners = []
    if _SUBSYSTEM.fullmatch(os.path.basename(subsystem)) and (number := _DISK.fullmatch(name)) is not None:
        path = re.compile(f'nvme{number[1]}c[0-9]+n{number[2]}')
        for one in filter(_CONTROLLER.fullmatch, os.listdir(subsystem)):
            directory = os.path.realpath(os.path.join(subsystem, one))
            if any(map(path.fullmatch, os.listdir(directory))):
                owners.append(directory)
    if not any(one.startswith(own) for one in owners):
        raise OSError(errno.EINVAL, f'not a disk of {address}')
    if not all(one.startswith(own) for one in owners):
        raise OSError(errno.EBUSY, f'several controllers have it: {", ".join(sorted(map(os.path.basename, owners)))}')
