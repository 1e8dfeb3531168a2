"""All work of the library that needs root.

- For persistent memory it lists namespaces and opens their devices.
- For mediated devices it opens a VFIO group, removes devices that nobody has open, and removes their definitions and
  those that a power cut destroyed. It also sets the vGPU type of a virtual function.
- For PCI functions it binds and unbinds drivers, resets functions, makes virtual functions, sets their MAC addresses
  and VLANs, and reads serial numbers.
- For NVMe controllers it reads their namespaces, has them erase data, restores namespaces, and brings the controllers
  of virtual functions online.

A service that runs as root does this work itself. Any other service uses oslo.privsep, whose daemon runs these
functions and no others. The daemon opens a device and sends the descriptor through a unix socket of the caller
(SCM_RIGHTS, unix(7)). So a child of the service can wipe the device: the child can outlive the service and the daemon,
and its only right is the descriptor.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
import errno
import os
from typing import Any
from typing import NamedTuple

from devicetrack import exception
from devicetrack.virt.libvirt import descriptors
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import root
from devicetrack.virt.libvirt import vf_ports


def run_ndctl(command: str, timeout_s: int = root.NDCTL_TIMEOUT_S) -> tuple[int, str]:
    """Run ndctl to list namespaces.

    :param command: the program for a service that runs as root. The daemon reads the option in its own configuration,
        since a program that a caller names would run with the daemon's rights
    :param timeout_s: how long it may take; the daemon reads that option too
    :returns: its exit status and what it printed
    :raises OSError: it cannot be run, users other than root can change it, or there is no privileged daemon
    :raises CommandFailed: it does not end in time
    """
    status, output = root.run_ndctl(command, timeout_s) if os.geteuid() == 0 else _ask_daemon('run_ndctl')
    return status, output


def open_dax(path: str, size_bytes: int) -> int:
    """Open a device-dax character device for reading and writing. The caller closes the descriptor.

    The descriptor holds the lock on the device's node, and so does every child that inherits it.

    :raises BlockingIOError: somebody else holds that lock
    :raises OSError: it cannot be opened, is no such device or has another size, another process has it open or mapped
        (EBUSY), or there is no privileged daemon
    """
    if os.geteuid() == 0:
        return root.open_dax(path, size_bytes)
    return _received('send_dax', path, size_bytes)


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
    if os.geteuid() == 0:
        return disk_nodes.open_disk(sysfs, address, name, size_bytes, writing)
    return _received('send_disk', address, name, size_bytes, writing)


def _received(function: str, *arguments: Any) -> int:
    """Have the daemon open something, and receive the descriptor."""
    return descriptors.receive(lambda socket_path: _ask_daemon(function, *arguments, socket_path),
                               root.NDCTL_TIMEOUT_S)


def is_dax_locked(path: str) -> bool:
    """Whether a process holds the lock on the node of a device-dax character device, as one that wipes it does.

    :raises OSError: it cannot be opened, or there is no privileged daemon
    """
    return bool(_run('is_dax_locked', path))


def open_daxes(paths: Sequence[str]) -> Sequence[str]:
    """Find those of some device-dax character devices that a process has open or mapped.

    :raises OSError: one is not there or is no such device, their users are unknown, or there is no privileged daemon
    """
    return [str(path) for path in _run('open_daxes', list(paths))]


def is_vfio_group_open(number: int) -> bool:
    """Whether a process has a VFIO group open, or a device of it.

    This opens the group for a moment. Another process that tries to open it in that moment finds it busy. If there is
    no node of the group, this looks for processes that have a device of it open: the kernel may have no VFIO groups.

    :param number: of the IOMMU group
    :raises FileNotFoundError: no device of the group has a driver of VFIO's
    :raises OSError: the kernel gave another error, or there is no privileged daemon
    """
    return bool(_run('is_vfio_group_open', number))


def remove_lost_definitions() -> None:
    """Put away what :func:`devicetrack.virt.libvirt.mdevctl.lost` finds.

    :raises OSError: they cannot be removed, or there is no privileged daemon
    """
    _run('remove_lost_definitions')


def remove_mdev(uuid: str) -> None:
    """Have the kernel remove a mediated device, as mdevctl does.

    :raises OSError: a process has it open (EBUSY), it is not there, it cannot be removed, or there is no privileged
        daemon
    """
    _run('remove_mdev', uuid)


def remove_mdev_definition(parent: str, uuid: str) -> None:
    """Remove the file in which mdevctl keeps the definition of a mediated device that does not exist.

    :param parent: the parent's address
    :raises OSError: the device exists (EBUSY), there is no definition, it cannot be removed, or there is no privileged
        daemon
    """
    _run('remove_mdev_definition', parent, uuid)


def set_vgpu_type(sysfs: str, address: str, number: int) -> None:
    """Write the vGPU type of a virtual function; 0 removes it.

    :param sysfs: where sysfs is. A tree elsewhere belongs to the caller, who writes it without the daemon
    :raises OSError: it cannot be written, the vendor's driver refuses it, or there is no privileged daemon
    """
    _run_in(sysfs, 'set_vgpu_type', address, number)


# The following functions treat the parameter ``sysfs`` as set_vgpu_type does. They wait for the lock of the device
# while a driver binds to it or unbinds from it.


def set_driver_override(sysfs: str, address: str, driver: str | None) -> None:
    """Name the only driver that may take a PCI function from now on; None allows any driver that knows the function.

    The driver that the function has stays. The kernel forgets the name when the host boots.

    :raises OSError: there is no such function, it cannot be written, or there is no privileged daemon
    """
    _run_in(sysfs, 'set_driver_override', address, driver)


def check_host_use(sysfs: str, address: str) -> None:
    """Check that the host uses neither a PCI function, nor one of its virtual functions, nor one behind it.

    :raises OSError: EBUSY: it does, as :mod:`devicetrack.virt.libvirt.pci_use` finds; else, its use is unknown, there
        is no such function, or there is no privileged daemon
    """
    _run_in(sysfs, 'check_host_use', address)


def unbind(sysfs: str, address: str) -> None:
    """Unbind a PCI function from its driver, if it has one.

    This blocks until the driver has released the function. A physical function may lose its virtual functions.

    :raises OSError: EBUSY: a guest has the function or one of its IOMMU group, or the host uses the function, as
        :mod:`devicetrack.virt.libvirt.pci_use` finds, or either uses one of its virtual functions or one behind it;
        else, there is no such function, it cannot be written, or there is no privileged daemon
    """
    _run_in(sysfs, 'unbind', address)


def probe(sysfs: str, address: str) -> None:
    """Bind a PCI function without a driver: to the driver of the override, or else to any that knows the function.

    This blocks until the driver has tried. The kernel does not always report a failure, so the caller must look which
    driver the function has.

    :raises OSError: a guest has a function of the same IOMMU group and the driver would not be one of VFIO (EBUSY),
        there is no such function, the kernel refuses it, or there is no privileged daemon
    """
    _run_in(sysfs, 'probe', address)


def reset(sysfs: str, address: str, method: str | None) -> None:
    """Have the kernel reset a PCI function, by all its methods in their order or by one of them. Blocks until then.

    No reset erases the data that a device stores. Afterwards the order of the methods is the same as before.

    :param method: a name in ``reset_method``
    :raises OSError: EBUSY: somebody uses it, as :func:`unbind` says; else, it has no such method (FileNotFoundError if
        none at all), the reset failed (ENOTTY), or there is no privileged daemon
    """
    _run_in(sysfs, 'reset', address, method)


def set_vfs(sysfs: str, address: str, number: int, autoprobe: bool | None = None, timeout_s: float = 60) -> None:
    """Make virtual functions of a physical function that has none. It blocks until they are there.

    :param number: how many, at least 1
    :param autoprobe: whether a driver of the host takes them; None keeps the kernel's setting. No driver takes those
        of an NVMe controller before they are online: see :func:`bring_nvme_online` and :func:`probe`
    :param timeout_s: how long this process waits. The privileged daemon waits until the kernel answers
    :raises OSError: EBUSY: it has virtual functions already, or somebody uses it, as :func:`unbind` says; else, it
        cannot have so many (ERANGE), its driver cannot make any (ENOENT), no answer in time (ETIMEDOUT; they may still
        appear), or there is no privileged daemon
    """
    if sysfs != root.SYSFS or os.geteuid() == 0:
        root.set_vfs(sysfs, address, number, autoprobe, timeout_s)
    else:
        _ask_daemon('set_vfs', address, number, autoprobe)


def set_vf_port(sysfs: str, address: str, mac: str, vlan: int, trusted: bool) -> None:
    """Give a virtual function of a network card these settings; :data:`.vf_link.NO_MAC`, 0 and False remove them.

    This writes only the settings that differ, one after the other, and reads them back. Trust that the driver does not
    report is written each time, unless a guest has the function and all reported settings are as wanted. If the driver
    refuses to remove a MAC address, the function gets :data:`.vf_link.INSTEAD_OF_NO_MAC`.

    :raises OSError: EINVAL: it is not a virtual function, or the settings are invalid; EBUSY: somebody uses it, as
        :func:`unbind` says; ENODEV: its physical function does not have exactly one network interface here; EIO: the
        kernel reports other settings afterwards; else, the kernel refuses a setting, which the message names, or there
        is no privileged daemon. After an error the function may have some of the settings
    """
    if sysfs != root.SYSFS or os.geteuid() == 0:
        vf_ports.set_port(sysfs, address, mac, vlan, trusted)
    else:
        _ask_daemon('set_vf_port', address, mac, vlan, trusted)


def read_serial(sysfs: str, address: str) -> str | None:
    """Read the serial number of a PCI function: from Vital Product Data, else the PCI Express "Device Serial Number".

    This wakes a function that sleeps, and reading its Vital Product Data may take seconds. The kernel shows the Device
    Serial Number only to a reader with CAP_SYS_ADMIN (pci_read_config in Linux: drivers/pci/pci-sysfs.c), which the
    privileged daemon has only if ``[devicetrack_privileged] capabilities`` gives it.

    :returns: '' if it has none; None if the caller may not see whether it has one
    :raises OSError: there is no such function, it cannot be read, or there is no privileged daemon
    """
    serial = _run_in(sysfs, 'read_serial', address)
    return None if serial is None else str(serial)


# The controllers of NVMe disks. The kernel accepts nearly all commands only from a process with CAP_SYS_ADMIN. The
# privileged daemon has it if [devicetrack_privileged] capabilities names it; if not, the error is EACCES.


class KnownNamespace(NamedTuple):
    """A namespace of an NVMe subsystem, and whether it is attached to the controller that was asked."""

    attached: bool
    namespace: nvme_admin.Namespace


def read_nvme_controller(sysfs: str, address: str) -> nvme_admin.Controller:
    """Ask the controller of a PCI function what it can do.

    :raises OSError: it has no controller now, the controller or the kernel refuses the command, or there is no
        privileged daemon
    """
    return nvme_admin.Controller(*_run_nvme(sysfs, 'read_controller', address))


def read_nvme_namespaces(sysfs: str, address: str) -> Mapping[int, KnownNamespace]:
    """Ask the controller of a PCI function for its namespaces, by their identifiers.

    The answer has the namespaces that are attached to it and, if it manages namespaces, all others of its subsystem.

    :raises OSError: as :func:`read_nvme_controller`
    """
    return {nsid: KnownNamespace(attached, namespace._replace(format=nvme_admin.Format(*namespace.format)))
            for nsid, attached, fields in _run_nvme(sysfs, 'read_namespaces', address)
            for namespace in [nvme_admin.Namespace(*fields)]}


class NVMeSubsystem(NamedTuple):
    """A primary controller's answers about its NVM subsystem.

    ``secondaries`` are its secondary controllers by the numbers of their virtual functions, from 0. ``attached`` has,
    for each namespace, the numbers of the controllers that it is attached to, and ``shared`` those namespaces that may
    be attached to several.
    """

    secondaries: Mapping[int, nvme_admin.Secondary]
    attached: Mapping[int, Sequence[int]]
    shared: frozenset[int]


def read_nvme_subsystem(sysfs: str, address: str) -> NVMeSubsystem:
    """Ask the controller of a physical function for its secondary controllers, and for all namespaces.

    :raises OSError: as :func:`read_nvme_controller`
    """
    secondaries, namespaces = _run_nvme(sysfs, 'read_subsystem', address)
    return NVMeSubsystem({one.vf - 1: one for one in (nvme_admin.Secondary(*fields) for fields in secondaries)},
                         {nsid: tuple(attached) for nsid, _shared, attached in namespaces},
                         frozenset(nsid for nsid, shared, _attached in namespaces if shared))


def bring_nvme_online(sysfs: str, address: str) -> None:
    """Bring the secondary controller of a virtual function online, with queues and interrupts if it has none.

    The queues and interrupts are shared evenly among all virtual functions. A controller that is online stays as it is.

    :param address: the address of the virtual function
    :raises OSError: EBUSY: a guest has it; ENOSPC: there are not enough queues or interrupts; EIO: the controller is
        still offline afterwards; else as :func:`read_nvme_controller`
    """
    _run_nvme(sysfs, 'bring_online', address)


def attach_nvme_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int,
                          is_to_be: bool) -> None:
    """Attach a namespace to the controller of a PCI function, or detach it from that controller.

    :param disks: as for :func:`format_nvme_namespace`
    :raises OSError: EBUSY: somebody uses the function or a disk of it, or it has other disks now; else as
        :func:`read_nvme_controller`
    """
    _run_nvme(sysfs, 'attach', address, list(disks), nsid, is_to_be)


def delete_nvme_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int) -> None:
    """Delete a namespace of the controller of a PCI function, and all its data.

    :param disks: as for :func:`format_nvme_namespace`
    :raises OSError: EBUSY: somebody uses the function or a disk of it, or other controllers of its NVM subsystem may
        have made the namespace; else as :func:`read_nvme_controller`
    """
    _run_nvme(sysfs, 'delete_namespace', address, list(disks), nsid)


def create_nvme_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int, blocks: int,
                          wanted: nvme_admin.Format, shared: bool) -> None:
    """Make a namespace of the controller of a PCI function. The new namespace is attached to no controller.

    :param disks: as for :func:`format_nvme_namespace`
    :param nsid: the identifier that it must get. The controller chooses the identifier; if it chooses another one, the
        namespace is deleted again
    :param blocks: its size, in blocks of the format ``wanted``
    :param shared: whether it may be attached to several controllers
    :raises OSError: EBUSY: somebody uses the function or a disk of it; EEXIST: there is such a namespace; EIO: the
        controller refused, or chose another identifier; else as :func:`read_nvme_controller`
    """
    _run_nvme(sysfs, 'create_namespace', address, list(disks), nsid, blocks, list(wanted), shared)


def format_nvme_namespace(sysfs: str, address: str, disks: Sequence[tuple[str, int]], nsid: int,
                          wanted: nvme_admin.Format, erase: int, timeout_s: int, lock_fd: int) -> None:
    """Have the controller of a PCI function format one namespace. Blocks until it has.

    A service that runs as root has a child do it. The child inherits the lock and outlives the service. Otherwise the
    daemon waits for the controller and keeps the disks open until then, even if the service ends: other processes can
    see that the disks are open. The daemon keeps one of its threads free of formats.

    :param disks: the name and the bytes of each disk of the function; all of them
    :param erase: :data:`.nvme_admin.USER_DATA` or :data:`.nvme_admin.CRYPTOGRAPHIC`
    :raises OSError: EBUSY: somebody uses the function or a disk of it, or it has other disks now; EINVAL: the format
        would reach namespaces of others; EUSERS: the daemon has no thread for it before another format ends; else as
        :func:`read_nvme_controller`
    """
    if os.geteuid() != 0 and sysfs == root.SYSFS:
        _ask_daemon('format_nvme_namespace', address, list(disks), nsid, list(wanted), erase, timeout_s)
        return
    nvme_controllers.check_format(nsid, wanted, erase, timeout_s)
    with nvme_controllers.to_format(sysfs, address, disks) as (fd, fds):
        jobs.format_namespace(f'{address} {nsid}', fd, fds, lock_fd, nsid, wanted, erase, timeout_s,
                              sum(size for _name, size in disks))


def start_nvme_sanitize(sysfs: str, address: str, disks: Sequence[tuple[str, int]], action: int) -> None:
    """Have the controller of a PCI function begin to sanitize its NVM subsystem. The controller then goes on by itself.

    :param disks: as for :func:`format_nvme_namespace`
    :param action: :data:`.nvme_admin.BLOCK_ERASE`, :data:`.nvme_admin.OVERWRITE` or :data:`.nvme_admin.CRYPTO_ERASE`
    :raises OSError: EBUSY: somebody uses the function or a disk of it, or it has other disks now; EINVAL: the operation
        would erase data of others; else as :func:`read_nvme_controller`
    """
    _run_nvme(sysfs, 'start_sanitize', address, list(disks), action)


def nvme_sanitize_status(sysfs: str, address: str) -> nvme_admin.SanitizeStatus:
    """Ask the controller of a PCI function for the state of its last sanitize operation.

    :raises OSError: as :func:`read_nvme_controller`
    """
    return nvme_admin.SanitizeStatus(*_run_nvme(sysfs, 'sanitize_status', address))


def _run_nvme(sysfs: str, function: str, *arguments: Any) -> Any:
    if sysfs != root.SYSFS or os.geteuid() == 0:
        return getattr(nvme_controllers, function)(sysfs, *arguments)
    return _ask_daemon(f'nvme_{function}', *arguments)


def _run_in(sysfs: str, function: str, *arguments: Any) -> Any:
    """Run a function that takes sysfs as its first argument. The daemon knows only one sysfs."""
    if sysfs != root.SYSFS or os.geteuid() == 0:
        return getattr(root, function)(sysfs, *arguments)
    return _ask_daemon(function, *arguments)


def _run(function: str, *arguments: Any) -> Any:
    return getattr(root, function)(*arguments) if os.geteuid() == 0 else _ask_daemon(function, *arguments)


def _ask_daemon(function: str, *arguments: Any) -> Any:
    # Import it only here: a service that runs as root needs no daemon, and oslo.privsep is a tenth of all imports.
    from devicetrack.virt.libvirt import daemon
    try:
        return getattr(daemon, function)(*arguments)
    except (OSError, exception.CommandFailed):
        raise
    except Exception as error:
        raise OSError(errno.EINVAL, f'oslo.privsep: {type(error).__name__} in the daemon') from error
