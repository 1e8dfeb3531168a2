"""The device kind ``scratch``: files of one directory, given to guests as memory that lasts (virtio-pmem)."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import errno
import glob
import os
import stat
import threading
from typing import Any
from xml.sax import saxutils

from oslo_config import cfg
from oslo_versionedobjects import fields

from devicetrack import conf as registry
from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import base
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt.kinds import api
from scratch_kind import handles
from scratch_kind import options
from scratch_kind import privileged

# File systems keep the bytes of no larger file in its inode.
_IN_THE_INODE = 64 << 10

RESOURCE_CLASS = 'CUSTOM_SCRATCH'
NO_HANDLE = 'its file system gives no handle, so nobody can tell it from another file of its name'


def file_of(status: os.stat_result) -> tuple[int, int]:
    """The device and inode number, which tell a file from every other file of the host. It may have several paths."""
    return status.st_dev, status.st_ino


# begin: details
@base.register
class ScratchDetails(details.DeviceDetails):
    """The facts that only this kind knows. They are stored with the assignment, and versioned like every object.

    ``handle`` is None if the file system gives none. Then nobody can tell this file from a later one.
    """

    VERSION = '1.0'
    IDENTITY = ('handle', 'size_bytes')
    fields = {'handle': fields.StringField(nullable=True), 'size_bytes': fields.NonNegativeIntegerField()}

    @property
    def migration_type(self) -> str:
        return str(self.size_bytes)

    @property
    def is_stateless(self) -> bool:
        return True                     # the hypervisor copies it, as it copies memory
# end: details


# begin: class
class Scratch(api.DeviceKind):
    """Each file is one device. Its name is the identifier; its handle and size tell it from another file."""

    name = 'scratch'
    keeps_bytes = True
    form = guest_xml.MEMORY

    def __init__(self, conf: cfg.ConfigOpts, hypervisor: connection.Connection) -> None:
        super().__init__(conf, hypervisor)
        registry.register(conf, options.GROUP, options.OPTIONS)
        self._options: Any = conf.scratch
        directory = self._options.directory
        if directory and not os.path.isabs(directory):
            raise exception.InvalidConfiguration('[scratch] directory', directory, 'must be an absolute path')
        self._directory = os.path.normpath(directory) if directory else ''

    @property
    def configured(self) -> bool:
        return bool(self._directory)

    @property
    def resource_classes(self) -> frozenset[str]:
        return frozenset([RESOURCE_CLASS] if self.configured else ())
    # end: class

    # begin: stock
    def stock(self) -> api.Stock:
        try:
            found = sorted((entry.name, entry.stat(), handles.of(entry.path)) for entry in os.scandir(self._directory)
                           if entry.is_file(follow_symlinks=False))
        except OSError as error:
            # Never return an empty stock: it would say that all devices are gone.
            raise exception.CommandFailed('scandir', f'{self._directory}: {error.strerror}') from error
        used = self._used_by_host()
        return api.Stock(tuple(self._device(name, status, handle, used) for name, status, handle in found),
                         written=[name for name, status, _handle in found if file_of(status) in used])

    def _device(self, name: str, status: os.stat_result, handle: str | None,
                used: Mapping[tuple[int, int], str]) -> InventoryDevice:
        known = ScratchDetails(handle=handle, size_bytes=status.st_size)
        unhealthy = used.get(file_of(status)) or (NO_HANDLE if handle is None else None)
        return InventoryDevice(
            kind=self.name, identifier=name, provider='', resource_class=RESOURCE_CLASS, parent=None,
            numa_node=self._options.numa_node, details=details.to_text(known), unhealthy=unhealthy,
            exclusions=self._exclusions(status))

    def node(self, device: InventoryDevice) -> str | None:
        return self._path(device.identifier)
    # end: stock

    # begin: exclusions
    @staticmethod
    def _exclusions(status: os.stat_result) -> tuple[tuple[str, str], ...]:
        """Hard links are names of one file: whoever has one of them has all of its bytes."""
        if status.st_nlink <= 1:
            return ()
        return ((f'scratch-inode:{status.st_dev}:{status.st_ino}', vocabulary.WHOLE),)
    # end: exclusions

    # begin: host
    def _used_by_host(self) -> Mapping[tuple[int, int], str]:
        """The files under loop devices of the host, each with the reason.

        sysfs has the path without symbolic links, and a file may have several paths. So this compares files, not paths.
        """
        found = {}
        for attribute in glob.glob(os.path.join(self._options.sysfs_root, 'block/loop*/loop/backing_file')):
            try:
                with open(attribute, encoding='utf-8') as file:
                    lies_on = os.stat(file.read().removesuffix('\n'))
            except FileNotFoundError:
                continue                # the loop device was just taken down, or its file was deleted
            except OSError as error:
                raise exception.CommandFailed('read', f'{attribute}: {error.strerror}') from error
            found[file_of(lies_on)] = f'{attribute.split("/")[-3]} of the host lies on it'
        return found
    # end: host

    # begin: usage
    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.memory_paths

    def other_addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.other_paths

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        if not self.configured:
            return dict.fromkeys(addresses)             # a guest may have a file of an earlier directory
        means: dict[str, str | None] = {}
        for address in addresses:
            path = os.path.realpath(address)
            directory, name = os.path.split(path)
            if name and directory == os.path.realpath(self._directory):
                means[address] = name                   # also if no file has this name now
                continue
            try:
                status = os.stat(path)
            except OSError:
                means[address] = None                   # perhaps there was a link to one of our files
                continue
            # A file that exists and is not one of ours by another name is certainly another sort of device.
            means.update((address, name) for name in self._names_of(status))
        return means

    def _names_of(self, status: os.stat_result) -> Sequence[str]:
        """The names in the directory that are hard links to a file elsewhere."""
        if status.st_nlink <= 1 or not stat.S_ISREG(status.st_mode):
            return ()
        try:
            return [entry.name for entry in os.scandir(self._directory)
                    if file_of(entry.stat(follow_symlinks=False)) == file_of(status)]
        except OSError as error:
            raise exception.CommandFailed('scandir', f'{self._directory}: {error.strerror}') from error
    # end: usage

    # begin: giving
    def realize(self, assignment: DeviceAssignment) -> Realized:
        self._check_is_free(assignment)
        return Realized(DeviceKey(self.name, assignment.identifier), details.to_text(assignment.details))

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        self._check_is_free(assignment)
        try:
            blocks = privileged.clear(self._directory, assignment.identifier, assignment.details.handle,
                                      assignment.details.size_bytes)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno == errno.EBUSY:
                raise exception.DeviceInUse(self.name, assignment.identifier, str(error.strerror)) from error
            raise exception.UnclaimFailed(
                self.name, assignment.identifier, f'it cannot be cleared: {error}') from error
        # This is the proof. The absence of an error is none.
        if blocks:
            raise exception.UnclaimFailed(
                self.name, assignment.identifier, 'blocks of its last owner are left')
    # end: giving

    # begin: reach
    def check_unused(self, assignment: DeviceAssignment) -> None:
        self._check_is_free(assignment)
        self.check_free(assignment)

    def within_reach(self, owned: Collection[str], proven: Mapping[str, str]) -> Collection[str]:
        """The other names of the same files: who has one of them writes to all."""
        files = {details.from_text(text).handle for text in owned}
        return [name for name, text in proven.items() if details.from_text(text).handle in files]
    # end: reach

    # begin: proof
    def is_blank(self, assignments: Sequence[DeviceAssignment]) -> Collection[str]:
        """The files without stored blocks that no process has open: nobody ever wrote to them, or they were cleared."""
        used = self.opened([one.identifier for one in assignments])
        return [one.identifier for one in assignments if one.identifier not in used and self._has_no_blocks(one)]

    def opened(self, identifiers: Collection[str]) -> Collection[str]:
        there = {}
        for path in map(self._path, identifiers):
            with contextlib.suppress(OSError):  # the stock says what is gone
                there[path] = os.lstat(path)
        return [os.path.basename(path) for path in device_users.opened(there)]

    def _has_no_blocks(self, assignment: DeviceAssignment) -> bool:
        try:
            self._check_is_the_device(assignment)
            status = self._status(assignment)
            # A file system may keep the bytes of a small file in its inode, without a block.
            return status.st_blocks == 0 and status.st_size > _IN_THE_INODE
        except exception.DriverError:
            return False                # an error would leave all other files unproven, too

    def read_through(self, assignment: DeviceAssignment, lock_fd: int, stop: threading.Event) -> None:
        path = self._check_is_the_device(assignment)
        self.check_free(assignment)             # a process could write behind the reader
        try:
            with open(path, 'rb') as file:
                while part := file.read(1 << 20):
                    if stop.is_set() or any(part):
                        raise exception.NotProven(self.name, assignment.identifier, 'reading was stopped'
                                                  if stop.is_set() else 'a byte is not zero')
        except OSError as error:
            raise exception.CommandFailed('read', f'{path}: {error.strerror}') from error
    # end: proof

    # begin: elements
    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        return [self._element(self._check_is_the_device(assignment), assignment.details.size_bytes)
                for assignment in assignments]

    @staticmethod
    def _element(path: str, size_bytes: int) -> str:
        return (f"<memory model='virtio-pmem' access='shared'>"
                f'<source><path>{saxutils.escape(path)}</path></source>'
                f"<target><size unit='KiB'>{size_bytes >> 10}</size></target></memory>")
    # end: elements

    # begin: identity
    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _check_is_the_device(self, assignment: DeviceAssignment) -> str:
        """Return the path of the device. Another file of the same name is another device: do not touch it.

        :raises DeviceGone: the file is certainly gone, or another file has its name
        :raises CommandFailed: nobody can tell now
        """
        path, wanted = self._path(assignment.identifier), assignment.details
        size_bytes = self._status(assignment).st_size
        try:
            handle = handles.of(path)
        except OSError as error:
            raise self._unknown(assignment, str(error.strerror)) from error
        if handle is None or wanted.handle is None:
            raise self._unknown(assignment, NO_HANDLE)
        if (handle, size_bytes) != (wanted.handle, wanted.size_bytes):
            raise exception.DeviceGone(self.name, assignment.identifier, (
                f'file {handle} of {size_bytes} bytes has its name; '
                f'recorded are file {wanted.handle} and {wanted.size_bytes} bytes'))
        return path

    def _status(self, assignment: DeviceAssignment) -> os.stat_result:
        try:
            return os.lstat(self._path(assignment.identifier))
        except OSError as error:
            # If the directory is missing, nobody knows: its file system may not be mounted.
            if isinstance(error, FileNotFoundError) and os.path.isdir(self._directory):
                raise exception.DeviceGone(self.name, assignment.identifier, str(error.strerror)) from error
            raise self._unknown(assignment, str(error.strerror)) from error

    def _unknown(self, assignment: DeviceAssignment, reason: str) -> exception.CommandFailed:
        """Make the error for a file that nobody can tell. The driver turns it into RealizeFailed or UnclaimFailed."""
        return exception.CommandFailed('name_to_handle_at', f'{self._path(assignment.identifier)}: {reason}')
    # end: identity

    def _check_is_free(self, assignment: DeviceAssignment) -> None:
        self._check_is_the_device(assignment)
        reason = self._used_by_host().get(file_of(self._status(assignment)))
        if reason is not None:
            raise exception.DeviceInUse(self.name, assignment.identifier, reason)
