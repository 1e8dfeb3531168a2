"""Cleans PCI functions that a guest had, by the policy that the options give them (``[devicetrack_pci] cleaning``).

``none`` is for functions that keep nothing: the reset between two guests is all they need. ``zero`` writes zeroes over
every byte of every disk behind a function, and reads every byte back. ``person`` leaves it to somebody: the function
stays withheld until then.

A guest can do more to a disk than write: it can make and remove namespaces and format them with other blocks. So what
the claim found there is compared first, and what differs is for a person.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import threading
import time
from typing import Final

from devicetrack import exception
from devicetrack import filelock
from devicetrack.objects import DeviceAssignment
from devicetrack.virt.libvirt import pci_disks
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import reading
from devicetrack.virt.libvirt import wiping
from devicetrack.virt.libvirt.kinds import pci_cleaning
from devicetrack.virt.libvirt.kinds import pci_options

_POLL_S: Final = 0.2
# A wiper and a reader look at whole pages of this many bytes; it matters to nothing but memory that is a device.
_ALIGN_BYTES: Final = 4096


class Cleaner:
    """Cleans the functions of one host. They are back at the host's driver, and nobody uses them.

    :param tree: where they are
    :param options: what to do with which
    """

    def __init__(self, tree: pci_sysfs.Tree, options: pci_options.PCIOptions) -> None:
        self._tree, self._options = tree, options

    def policy(self, function: pci_sysfs.Function) -> str:
        physfn = None if function.physfn is None else self._tree.function(function.physfn)
        return self._options.cleaning_of(function, physfn)

    def keeps_nothing(self, function: pci_sysfs.Function) -> bool:
        """Whether a function keeps nothing that its next owner could read, as the operator says."""
        return self.policy(function) == pci_cleaning.NONE

    def clean(self, assignment: DeviceAssignment, function: pci_sysfs.Function, lock_fd: int) -> None:
        """Clean a function, and prove it.

        :param lock_fd: as for :meth:`.api.DeviceKind.unclaim`
        :raises DriverError: it is not clean
        """
        policy = self.policy(function)
        if policy == pci_cleaning.NONE:
            return
        if policy != pci_cleaning.ZERO:
            raise exception.UnclaimFailed(
                assignment.kind, assignment.identifier, 'a person has to clean it: then devicetrack-manage device '
                'retire ends the assignment, and device admit makes it free')
        disks = self._disks(assignment, function)
        said = pci_disks.as_text(disks)
        if said != assignment.details.disks:
            raise exception.UnclaimFailed(
                assignment.kind, assignment.identifier, 'its guest changed its namespaces (identifier:bytes:block '
                f'size): there are {said or "none"}, and the claim found {assignment.details.disks or "none"}')
        for disk in disks:
            with self._opened(assignment, function, disk) as fd:
                wiping.wipe(f'{function.address} {disk.nsid}', fd, lock_fd, disk.size_bytes, _ALIGN_BYTES, 0)

    def read_through(self, assignment: DeviceAssignment, function: pci_sysfs.Function, lock_fd: int,
                     stop: threading.Event) -> None:
        """As :meth:`.api.DeviceKind.read_through`."""
        disks = self._disks(assignment, function)
        for disk in disks:
            with self._opened(assignment, function, disk, writing=False) as fd:
                problem = reading.read_through(f'{function.address} {disk.nsid}', fd, lock_fd, disk.size_bytes,
                                               _ALIGN_BYTES, 0, stop)
            if problem is not None:
                raise exception.NotProven(assignment.kind, assignment.identifier,
                                          f'its namespace {disk.nsid}: {problem}')
        # The driver finds them one after the other.
        if self._disks(assignment, function) != disks:
            raise exception.NotProven(assignment.kind, assignment.identifier,
                                      'its namespaces changed while they were read')

    def _disks(self, assignment: DeviceAssignment, function: pci_sysfs.Function) -> list[pci_disks.Disk]:
        """Wait until the driver knows the disks of a function, of which there is one at least."""
        deadline = time.monotonic() + self._options.release_wait_s
        while True:
            try:
                found = pci_disks.disks(self._tree, function.address)
            except (OSError, ValueError):
                found = None                    # the driver is at work on them
            if found:
                return list(found)
            if time.monotonic() >= deadline:
                raise exception.UnclaimFailed(
                    assignment.kind, assignment.identifier,
                    f'the driver {function.driver or "(none)"} shows no disk of it, so nothing proves that it is clean')
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _opened(self, assignment: DeviceAssignment, function: pci_sysfs.Function, disk: pci_disks.Disk,
                writing: bool = True) -> Iterator[int]:
        """Open a disk for this process alone. The file system of nobody is on it, and no other process has it open."""
        deadline = time.monotonic() + self._options.release_wait_s
        while True:
            try:
                fd = privileged.open_disk(self._tree.root, function.address, disk.name, disk.size_bytes, writing)
                break
            except OSError as error:
                # Whoever looks at each new disk, as udev does, is done in a moment.
                if isinstance(error, BlockingIOError) and time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                    continue
                raise exception.UnclaimFailed(
                    assignment.kind, assignment.identifier,
                    f'its namespace {disk.nsid} cannot be opened: {error.strerror or error}') from error
        try:
            yield fd
        except BaseException:
            os.close(fd)                        # a wiper may live, and keeps the lock
            raise
        filelock.close(fd)
