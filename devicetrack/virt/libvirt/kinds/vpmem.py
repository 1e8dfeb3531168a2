"""Persistent-memory namespaces in devdax mode, given to guests as NVDIMMs.

Linux describes them in Documentation/driver-api/nvdimm/.

A name, a UUID and a size together identify a namespace. If only the name is the recorded one, it is another device,
which may hold somebody else's bytes. It is neither handed out nor wiped.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import errno
import functools
import os
import re
import threading
from typing import Any
from xml.sax import saxutils

from devicetrack import exception
from devicetrack import filelock
from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.conf import libvirt as options
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import VPMEMDetails
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_paths
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import jobs
from devicetrack.virt.libvirt import namespaces
from devicetrack.virt.libvirt import ndctl
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import vpmem_options

# libvirt rounds the size of an NVDIMM up to 2 MiB (qemuDomainGetMemorySizeAlignment in its QEMU driver), and QEMU
# refuses to start when the device is smaller than the rounded size. So this module rounds the size down.
_UNIT_BYTES = 2 << 20
# The guest keeps its own namespace labels here, at the end of its device.
_LABEL_BYTES = 2 << 20

# Paths in the text of an argument.
_PATHS = re.compile(r'/[^\s,=:"\']*')


class VPMEM(api.DeviceKind):
    """The device kind ``vpmem``."""

    name = 'vpmem'
    keeps_bytes = True
    form = guest_xml.MEMORY

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        super().__init__(conf, hypervisor)
        self.options = vpmem_options.read(conf)
        self._source: namespaces.NamespaceSource = (
            namespaces.DirectorySource(self.options.directory) if self.options.directory
            else namespaces.NdctlSource(self.options.ndctl_command, conf[options.VPMEM_GROUP].ndctl_timeout_s))
        self._paths = guest_paths.GuestPaths(conf[options.DEADLINES_GROUP].call_timeout_s)

    @property
    def configured(self) -> bool:
        return bool(self.options.labels)

    def is_named(self, identifier: str, stored: str) -> bool:
        return identifier in self.options.labels

    @property
    def resource_classes(self) -> frozenset[str]:
        return frozenset(map(vpmem_options.resource_class, set(self.options.labels.values())))

    @property
    def wait_s(self) -> float:
        return self.options.wipe_wait_s

    # -- stock ----------------------------------------------------------------------------------------------------

    def stock(self) -> api.Stock:
        labels, found, devices = self.options.labels, set[str](), list[InventoryDevice]()
        for namespace in self._source.each():
            found.add(namespace.name)
            label, numa_node = labels.get(namespace.name), namespace.numa_node
            if label is not None:
                text, migration_type = _described(namespace, label)
                devices.append(InventoryDevice(
                    self.name, namespace.name,
                    vocabulary.numa_provider(numa_node) if self.options.per_numa_node and numa_node is not None else '',
                    vpmem_options.resource_class(label), namespace.region, numa_node, text, _problem(namespace),
                    migration_type=migration_type))
        missing = sorted(labels.keys() - found)
        reason = f'this host has no such namespace; it has {", ".join(sorted(found)) or "none"}' if missing else ''
        return api.Stock(sorted(devices), missing=tuple(
            Missing(DeviceKey(self.name, name), vpmem_options.OPTION, reason) for name in missing))

    def node(self, device: InventoryDevice) -> str | None:
        return details.peek(device.details).devpath or None

    # -- usage ----------------------------------------------------------------------------------------------------

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.memory_paths

    def other_addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        # A file of any name may be a link to a namespace. No socket is one, and others than its owner may often not
        # enter its directory.
        return tuple(dict.fromkeys((
            *(path for path in domain.other_paths if self._source.beginning in path or domain_xml.is_libvirts(path)),
            *domain.files, *(path for text in domain.arguments for path in _PATHS.findall(text)))))

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        wanted = list(addresses)
        if not wanted:
            return {}
        # Look among all namespaces, not only the configured ones: one that no option names may still have an owner.
        found = self._source.paths()
        means: dict[str, str | None] = {address: found.get(address) for address in wanted}
        # A definition that this library wrote has the exact path. Other software may write it in another way.
        if None not in means.values():
            return means
        by_path = {os.path.normpath(path): name for path, name in found.items()}
        means = {address: name or by_path.get(os.path.normpath(address)) for address, name in means.items()}
        unnamed = [address for address, name in means.items() if name is None]
        others = dict(self._paths.files(address for address in unnamed if not domain_xml.is_libvirts(address)))
        # The service may often not enter the directories in which libvirt makes files for guests.
        if of_libvirt := list(filter(domain_xml.is_libvirts, unnamed)):
            others.update(self._paths.files(of_libvirt, must=False))
        if others:
            by_device = {device: found[path] for path, device in self._paths.files(found).items()}
            sorts = {sort for sort, *_device in by_device}
            for address, device in others.items():
                if device in by_device:
                    means[address] = by_device[device]
                elif sorts and device[0] not in sorts:
                    del means[address]          # an ordinary file, for example, is certainly no character device
        return means

    # -- realize, unclaim -----------------------------------------------------------------------------------------

    def check_free(self, assignment: DeviceAssignment) -> None:
        namespace = self._namespace(assignment, self._source.read())
        if os.path.lexists(namespace.path):     # without a node nobody can have it open
            filelock.close(self._open(assignment, namespace, writing=False))

    def evidence(self, identifiers: Collection[str]) -> Mapping[str, str]:
        return self._source.evidence(identifiers, self.boot_id)

    def opened(self, identifiers: Collection[str]) -> Collection[str]:
        return self._source.opened(identifiers)

    def is_written(self, before: str, now: str) -> bool:
        return self._source.is_written(before, now)

    def realize(self, assignment: DeviceAssignment) -> Realized:
        namespace = self._namespace(assignment, self._source.read())
        try:
            if self._source.is_locked(namespace):
                raise self._busy(assignment)
        except FileNotFoundError:
            pass                        # without a node nobody can be wiping it
        except OSError as error:
            raise exception.RealizeFailed(*assignment.key,
                                          f'it is unknown whether it is being wiped: {error.strerror}') from error
        return Realized(assignment.key, _described(namespace, assignment.details.label)[0])

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        namespace = self._wipeable(assignment)
        fd = self._open(assignment, namespace)
        with ownfiles.closed_by_error(fd):
            # The path may have led to another namespace when it was opened. So wipe the open device only if the path
            # still belongs to the recorded namespace.
            if self._wipeable(assignment).path != namespace.path:
                raise exception.UnclaimFailed(*assignment.key, 'its path changed just now')
            jobs.wipe(assignment.identifier, fd, lock_fd, namespace.size_bytes, namespace.align_bytes,
                      self.options.wipe_rate_mib_s)
            # A namespace that became read-only meanwhile may have its old bytes back after a power cut.
            self._wipeable(assignment)
        filelock.close(fd)
        filelock.close(self._open(assignment, namespace))       # check that nobody has opened it meanwhile

    def check_unused(self, assignment: DeviceAssignment) -> None:
        self.is_untouched(assignment)

    def is_untouched(self, assignment: DeviceAssignment) -> bool:
        filelock.close(self._open(assignment, self._wipeable(assignment)))      # check that it is not open or mapped
        self._wipeable(assignment)
        return True

    def _open(self, assignment: DeviceAssignment, namespace: ndctl.Namespace, writing: bool = True) -> int:
        """Open a namespace that nobody else has open, and take its lock.

        :raises DeviceBusy: somebody else wipes it, perhaps a manager with another state directory
        :raises DeviceInUse: a process has it open or mapped, perhaps a guest that the hypervisor does not know
        :raises UnclaimFailed: it cannot be opened, or its users are unknown
        """
        try:
            return self._source.open(namespace, writing)
        except BlockingIOError:
            raise self._busy(assignment) from None
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise exception.DeviceInUse(*assignment.key, str(error.strerror)) from error
            raise exception.UnclaimFailed(*assignment.key, f'it cannot be opened: {error.strerror}') from error

    def _busy(self, assignment: DeviceAssignment) -> exception.DeviceBusy:
        return exception.DeviceBusy(*assignment.key, 'somebody holds the lock on its node or file')

    def is_blank(self, assignments: Sequence[DeviceAssignment]) -> Collection[str]:
        if not self._source.has_holes:
            return ()
        found = self._source.read()
        recorded = []
        for assignment in assignments:
            with contextlib.suppress(exception.DeviceGone):
                namespace = self._recorded(assignment, found)
                if namespace.problem is None:
                    recorded.append(namespace)
        return [namespace.name for namespace in self._source.blank(recorded)]

    def read_through(self, assignment: DeviceAssignment, lock_fd: int, stop: threading.Event) -> None:
        namespace = self._wipeable(assignment)
        try:
            fd = self._source.open(namespace, writing=False)
        except OSError as error:
            raise exception.CommandFailed('open the namespace', str(error.strerror)) from error
        with ownfiles.closed_by_error(fd):
            # As in unclaim, the path may have led to another namespace.
            if self._wipeable(assignment).path != namespace.path:
                raise exception.NotProven(*assignment.key, 'its path changed just now')
            problem = jobs.read_through(assignment.identifier, fd, lock_fd, namespace.size_bytes,
                                        namespace.align_bytes, self.options.wipe_rate_mib_s, stop)
            if problem is not None:
                raise exception.NotProven(*assignment.key, problem)
            self._wipeable(assignment)
        filelock.close(fd)

    def _wipeable(self, assignment: DeviceAssignment) -> ndctl.Namespace:
        """Read the recorded namespace.

        :raises DeviceGone: it is not there, or another one has its name
        :raises UnclaimFailed: a write to it now would prove nothing
        """
        namespace = self._recorded(assignment, self._source.read())
        if namespace.problem is not None:
            raise exception.UnclaimFailed(*assignment.key, namespace.problem)
        return namespace

    def _recorded(self, assignment: DeviceAssignment,
                  found: Mapping[str, ndctl.Namespace]) -> ndctl.Namespace:
        """Find the namespace that the assignment recorded. If nobody can tell now whether it is, it has a ``problem``.

        :raises DeviceGone: it is not there, or another one has its name
        """
        namespace = found.get(assignment.identifier)
        if namespace is None:
            raise exception.DeviceGone(*assignment.key, 'no namespace has this name')
        recorded = assignment.details
        if namespace.uuid is None:
            return namespace
        if namespace.uuid != recorded.namespace_uuid:
            raise exception.DeviceGone(*assignment.key, 'a namespace with another UUID has its name')
        if namespace.size_bytes != recorded.size_bytes:
            raise exception.DeviceGone(
                *assignment.key, f'it has {namespace.size_bytes} bytes where {recorded.size_bytes} were recorded')
        return namespace

    def _namespace(self, assignment: DeviceAssignment,
                   found: Mapping[str, ndctl.Namespace]) -> ndctl.Namespace:
        """Find the recorded namespace, if a guest can have it."""
        namespace = self._recorded(assignment, found)
        if namespace.uuid is None:
            raise exception.RealizeFailed(*assignment.key, str(namespace.problem))
        problem = _problem(namespace)
        if problem is not None:
            raise exception.DeviceGone(*assignment.key, problem)
        return namespace

    # -- guest ----------------------------------------------------------------------------------------------------

    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        found = self._source.read()
        return [guest_element(self._namespace(assignment, found)) for assignment in assignments]


def guest_element(namespace: ndctl.Namespace) -> str:
    """Make the guest's NVDIMM. With its label area, it is as large as fits into the namespace.

    The guest needs ``<maxMemory>`` with a free slot, and its ``<memory>`` is the sum of its RAM and its NVDIMMs.
    """
    # The element tells QEMU to flush the memory as persistent memory, which a file is not.
    pmem = '<pmem/>' if namespace.dax else ''
    size_kib = _guest_bytes(namespace.size_bytes, namespace.align_bytes) >> 10
    return (f"<memory model='nvdimm' access='shared'>"
            f"<source><path>{saxutils.escape(namespace.path)}</path>"
            f"<alignsize unit='KiB'>{namespace.align_bytes >> 10}</alignsize>{pmem}</source>"
            f"<target><size unit='KiB'>{size_kib}</size><node>0</node>"
            f"<label><size unit='KiB'>{_LABEL_BYTES >> 10}</size></label></target></memory>")


def _problem(namespace: ndctl.Namespace) -> str | None:
    """Return why no guest can have a namespace, or None."""
    # QEMU rounds the size without the labels down to the alignment. It refuses to start if nothing is left.
    size_bytes, align_bytes = namespace.size_bytes, namespace.align_bytes
    least = max(align_bytes, _UNIT_BYTES) + max(align_bytes, _LABEL_BYTES)
    if namespace.problem is None and _guest_bytes(size_bytes, align_bytes) < least:
        return f'it has {size_bytes} bytes, and a guest needs at least {least}'
    return namespace.problem


def _guest_bytes(size_bytes: int, align_bytes: int) -> int:
    """Return how many bytes of a namespace a guest can have, including the label area."""
    unit = max(align_bytes, _UNIT_BYTES)
    return size_bytes // unit * unit


# Every audit needs the text for every namespace, and the text stays the same. A cache that is smaller than the number
# of namespaces would keep nothing: they come in the same order each time.
@functools.lru_cache(maxsize=1 << 16)
def _described(namespace: ndctl.Namespace, label: str) -> tuple[str, str]:
    """Return the details of a namespace as text, and its migration type."""
    found = VPMEMDetails(namespace_uuid=namespace.uuid or VPMEMDetails.UNREAD_UUID, label=label, devpath=namespace.path,
                         size_bytes=namespace.size_bytes, align_bytes=namespace.align_bytes)
    return details.to_text(found), found.migration_type
