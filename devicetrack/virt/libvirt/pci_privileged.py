"""The work on PCI functions that needs root: drivers, resets, virtual functions, serial numbers, and who uses them.

Anybody with the service's rights may call what the daemon runs, with any arguments: see :mod:`.privileged`. Each of
these functions raises OSError if there is no such PCI function, if the kernel refuses, or if there is no privileged
daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import errno
import os
import re
import threading
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import kernel_files
from devicetrack.virt.libvirt import pci_config
from devicetrack.virt.libvirt import pci_use
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root

_PCI_DOMAIN = re.compile(r'pci[0-9a-f]{4,8}:[0-9a-f]{2}')
_DRIVER = re.compile(r'[0-9a-zA-Z][0-9a-zA-Z_-]{0,63}')
_RESET_METHOD = re.compile(r'[a-z][a-z_]{0,31}')
_VIRTFN = re.compile(r'virtfn([0-9]+)')
_MAX_VFS = 2**16 - 1                # 16 bits (PCI Express: NumVFs of the SR-IOV capability)
_NVME = b'0x0108'                   # the class (PCI Code and ID Assignment: mass storage, non-volatile memory)

_OVERRIDES: Final[dict[str, threading.Lock]] = {}


@privileged.in_sysfs
def set_vgpu_type(sysfs: str, address: str, number: int) -> None:
    """Write the vGPU type of a virtual function; 0 removes it.

    :param sysfs: where sysfs is. A tree elsewhere belongs to the caller, who writes it without the daemon
    """
    privileged.check_number(number)
    privileged.write_attribute(path_of(sysfs, address, 'nvidia/current_vgpu_type'), b'%d\n' % number)


@privileged.in_sysfs
def set_driver_override(sysfs: str, address: str, driver: str | None) -> None:
    """Name the only driver that may take a PCI function from now on; None allows any driver that knows the function.

    The driver that the function has stays. The kernel forgets the name when the host boots.
    """
    if driver is not None and not _DRIVER.fullmatch(driver):
        raise OSError(errno.EINVAL, 'not the name of a driver')
    path = path_of(sysfs, address, 'driver_override')
    with _override_of(path):
        # An empty line removes the name.
        privileged.write_attribute(path, f'{driver or ""}\n'.encode())


def _override_of(path: str) -> threading.Lock:
    """Return the lock on the override of one function, by the path of the attribute.

    Each function has a lock of its own: the kernel may never end a probe, and must not keep the others.
    """
    return _OVERRIDES.setdefault(path, threading.Lock())


@privileged.in_sysfs
def unbind(sysfs: str, address: str) -> None:
    """Unbind a PCI function from its driver, if it has one.

    This blocks until the driver has released the function. A physical function may lose its virtual functions.

    :raises OSError: EBUSY: a guest has the function or one of its IOMMU group, or the host uses the function, as
        :mod:`devicetrack.virt.libvirt.pci_use` finds, or either uses one of its virtual functions or one behind it
    """
    directory = path_of(sysfs, address)
    if not os.path.lexists(os.path.join(directory, 'driver')):
        return
    # The kernel would hold the device's lock and wait for a guest, and nothing could end that wait.
    check_unused(sysfs, address)
    privileged.write_attribute(privileged.below(sysfs, os.path.join(directory, 'driver/unbind')), address.encode())


@privileged.in_sysfs
def probe(sysfs: str, address: str) -> None:
    """Bind a PCI function without a driver: to the driver of the override, or else to any that knows the function.

    This blocks until the driver has tried. The kernel does not always report a failure, so the caller must look which
    driver the function has.

    :raises OSError: EBUSY: a guest has a function of the same IOMMU group and the driver would not be one of VFIO
    """
    override = path_of(sysfs, address, 'driver_override')
    # The daemon has several threads. None may change the override between the look at it and the kernel's.
    with _override_of(override):
        # If an IOMMU group has a guest, binding a host driver in it crashes old kernels (BUG_ON in vfio_group_notifier,
        # before Linux 5.19). Newer kernels leave the function without any driver.
        if 'vfio' not in kernel_files.text(override):
            check_no_guest(sysfs, address)
        probes = privileged.below(sysfs, os.path.join(sysfs, 'bus/pci/drivers_probe'))
        privileged.write_attribute(probes, address.encode())


@privileged.in_sysfs
def reset(sysfs: str, address: str, method: str | None) -> None:
    """Have the kernel reset a PCI function, by all its methods in their order or by one of them. Blocks until then.

    No reset erases the data that a device stores. Afterwards the order of the methods is the same as before.

    :param method: a name in ``reset_method``
    :raises OSError: EBUSY: somebody uses it, as :func:`unbind` says; FileNotFoundError: it has no method at all;
        ENOTTY: the reset failed
    """
    path = path_of(sysfs, address, 'reset')
    if method is not None and not _RESET_METHOD.fullmatch(method):
        raise OSError(errno.EINVAL, 'not the name of a reset method')
    check_unused(sysfs, address)
    if method is None:
        privileged.write_attribute(path, b'1\n')
        return
    methods = path_of(sysfs, address, 'reset_method')
    before = kernel_files.data(methods)
    privileged.write_attribute(methods, f'{method}\n'.encode())
    try:
        privileged.write_attribute(path, b'1\n')
    finally:
        # VFIO resets by the same list when a guest's QEMU closes the function.
        privileged.write_attribute(methods, before)


@privileged.in_sysfs
def set_vfs(sysfs: str, address: str, number: int, autoprobe: bool | None = None, timeout_s: float = 60) -> None:
    """Make virtual functions of a physical function that has none. It blocks until they are there.

    :param number: how many, at least 1
    :param autoprobe: whether a driver of the host takes them; None keeps the kernel's setting. No driver takes those
        of an NVMe controller before they are online: see :func:`.nvme_controllers.bring_online` and :func:`probe`
    :param timeout_s: how long this process waits for another one that writes. The privileged daemon writes itself, and
        waits until the kernel answers
    :raises OSError: EBUSY: it has virtual functions already, or somebody uses it, as :func:`unbind` says; ERANGE: it
        cannot have so many; ENOENT: its driver cannot make any; ETIMEDOUT: no answer in time, and they may still appear
    """
    if type(number) is not int or not 1 <= number <= _MAX_VFS:
        raise OSError(errno.EINVAL, 'not a number of virtual functions')
    if autoprobe is not None and type(autoprobe) is not bool:
        raise OSError(errno.EINVAL, 'neither yes nor no')
    directory = path_of(sysfs, address)
    # Only go from none to some. To remove any, the kernel removes all, and waits for the guests that have one.
    if numbered_vfs(directory):
        raise OSError(errno.EBUSY, 'it has virtual functions')
    # Many drivers reset their card for this.
    check_unused(sysfs, address)
    path, data = path_of(sysfs, address, 'sriov_numvfs'), b'%d\n' % number
    after = None if autoprobe is None else b'%d\n' % autoprobe
    probes = path_of(sysfs, address, 'sriov_drivers_autoprobe')
    # New virtual functions of an NVMe controller are offline. A driver would wait for each in vain, and so would this.
    if autoprobe is not False and kernel_files.data(path_of(sysfs, address, 'class')).startswith(_NVME):
        after = after or kernel_files.data(probes)
        privileged.write_attribute(probes, b'0\n')
    elif after is not None:
        privileged.write_attribute(probes, after)
        after = None
    try:
        if root.is_daemon:
            privileged.write_attribute(path, data)
        else:
            privileged.write_apart(path, data, timeout_s)
    finally:
        if after is not None:
            privileged.write_attribute(probes, after)


@privileged.in_sysfs
def read_serial(sysfs: str, address: str) -> str | None:
    """Read the serial number of a PCI function: from Vital Product Data, else the PCI Express "Device Serial Number".

    This wakes a function that sleeps, and reading its Vital Product Data may take seconds. The kernel shows the Device
    Serial Number only to a reader with CAP_SYS_ADMIN (pci_read_config in Linux: drivers/pci/pci-sysfs.c), which the
    privileged daemon has only if ``[devicetrack_privileged] capabilities`` gives it.

    :returns: '' if it has none; None if the caller may not see whether it has one
    """
    directory = path_of(sysfs, address)
    if os.path.lexists(os.path.join(directory, 'vpd')):
        fd = os.open(path_of(sysfs, address, 'vpd'), kernel_files.READ)
        try:
            found = pci_config.serial_of_vpd(lambda length, place: os.pread(fd, length, place))
        finally:
            os.close(fd)
        if found:
            return found
    return pci_config.serial_of_config(kernel_files.data(path_of(sysfs, address, 'config')))


def path_of(sysfs: str, address: str, name: str = '') -> str:
    """Return the path of a PCI function, or of one of its attributes, with all links resolved.

    :raises OSError: it is not an address, no function of this host has it, or the path leads out of sysfs
    """
    if not vocabulary.PCI_ADDRESS.fullmatch(address):
        raise OSError(errno.EINVAL, 'not a PCI address')
    directory = privileged.below(sysfs, os.path.join(sysfs, 'bus/pci/devices', address))
    return os.path.join(directory, name) if name else directory


def numbered_vfs(directory: str) -> dict[int, str]:
    """Return the addresses of a function's virtual functions by their numbers, from 0."""
    return {int(found[1]): os.path.basename(os.readlink(entry.path)) for entry in os.scandir(directory)
            if (found := _VIRTFN.fullmatch(entry.name)) is not None}


def vf_of(sysfs: str, address: str) -> tuple[str, int]:
    """Return the directory of a virtual function's physical one, and the virtual function's number there, from 0.

    :raises OSError: it is not a virtual function, or the physical one does not have it
    """
    directory = path_of(sysfs, address)
    if not os.path.lexists(os.path.join(directory, 'physfn')):
        raise OSError(errno.EINVAL, f'{address} is not a virtual function')
    physfn = privileged.below(sysfs, os.path.join(directory, 'physfn'))
    for number, one in numbered_vfs(physfn).items():
        if one == address:
            return physfn, number
    raise OSError(errno.ENODEV, f'{os.path.basename(physfn)} does not have {address} as a virtual function')


def host_use(sysfs: str) -> pci_use.HostUse:
    return pci_use.HostUse(sysfs, device_users.PROCESSES, root.DEVICES)


def check_unused(sysfs: str, address: str) -> None:
    """Check that neither a guest nor the host uses a function or one that depends on it.

    Its virtual functions depend on it, and those behind it, if it is a bridge or the controller in front of a disk.

    :raises OSError: EBUSY: one does; else, it is unknown
    """
    for one in _with_dependents(sysfs, address):
        check_no_guest(sysfs, one)
    check_host_unused(sysfs, address)


def _with_dependents(sysfs: str, address: str) -> tuple[str, ...]:
    directory = path_of(sysfs, address)
    return (address, *numbered_vfs(directory).values(), *_behind(directory))


def _behind(directory: str) -> Iterator[str]:
    """Yield the addresses of the functions behind one."""
    for entry in os.scandir(directory):
        is_function = vocabulary.PCI_ADDRESS.fullmatch(entry.name) is not None
        if (is_function or _PCI_DOMAIN.fullmatch(entry.name)) and entry.is_dir(follow_symlinks=False):
            if is_function:
                yield entry.name
            yield from _behind(entry.path)


@privileged.in_sysfs
def check_host_use(sysfs: str, address: str) -> None:
    """Check that the host uses neither a PCI function, nor one of its virtual functions, nor one behind it.

    :raises OSError: EBUSY: it does, as :mod:`devicetrack.virt.libvirt.pci_use` finds; else, its use is unknown
    """
    check_host_unused(sysfs, address)


def check_host_unused(sysfs: str, address: str) -> None:
    functions = _with_dependents(sysfs, address)
    uses = _known_use(sysfs)
    for one in functions:
        _check_use(uses, one)
        try:
            held = uses.held(one)
        except OSError as error:
            raise OSError(errno.EIO, f'it is unknown whether the host uses {one}: a disk of it cannot be opened: '
                                     f'{error.strerror}') from error
        if held is not None:
            raise OSError(errno.EBUSY, f'the host uses {one}: {held} is held exclusively by somebody, for example by '
                                       'ZFS or DRBD')


def check_own_use(sysfs: str, address: str) -> None:
    """Check that the host does not use a function itself, whatever it does with those that depend on it.

    This opens no disk, so the caller may have one open exclusively.

    :raises OSError: EBUSY: it does; else, its use is unknown
    """
    _check_use(_known_use(sysfs), address)


def _known_use(sysfs: str) -> pci_use.HostUse:
    try:
        return host_use(sysfs)
    except exception.DriverError as error:
        raise OSError(errno.EIO, f'the functions that the host uses are unknown: {error}') from error


def _check_use(uses: pci_use.HostUse, address: str) -> None:
    use = uses.of(address)
    if use is not None:
        raise OSError(errno.EBUSY, f'the host uses {address}: {use}')


def check_no_guest(sysfs: str, address: str) -> None:
    """Check that no process has a function, or another function of its IOMMU group, open by VFIO.

    :raises OSError: EBUSY: one has; else, it is unknown
    """
    with contextlib.suppress(FileNotFoundError):        # no group, no VFIO driver in it, or the function went away
        group = os.readlink(os.path.join(sysfs, 'bus/pci/devices', address, 'iommu_group'))
        if privileged.is_group_open(int(os.path.basename(group)), sysfs):
            raise OSError(errno.EBUSY, f'a guest has {address}, or another function of its IOMMU group')
