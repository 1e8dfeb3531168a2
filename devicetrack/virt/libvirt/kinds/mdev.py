"""Mediated devices (Linux: Documentation/driver-api/vfio-mediated-device.rst), by libvirt's node-device driver.

A device that exists is adopted when its type is enabled on its parent; capacity to make more is what the parent
says it has. What is created is defined too and started with the host, so that it is there again before its
guest. Only a device that an assignment records as created is ever destroyed, and only when it has the
assignment's UUID, type and parent.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import logging
import os
import time
from typing import Any
from typing import NamedTuple
from typing import TypeVar
from xml.sax import saxutils

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.conf import libvirt as options
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import MdevDetails
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import mdev_options

LOG = logging.getLogger(__name__)

# The kernel's own list of mediated devices (Documentation/ABI/testing/sysfs-bus-vfio-mdev).
SYSFS_DEVICES = '/sys/bus/mdev/devices'

# A guest's process lets go of its device a moment after the domain is off, and node devices vanish when udev
# says so.
SETTLE_S = 10.0

_Answer = TypeVar('_Answer')


class _Existing(NamedTuple):
    """A mediated device that libvirt knows, and the handle to change it."""

    mdev: nodedev_xml.Mdev
    handle: connection.NodeDevice
    active: bool


class Mdev(api.DeviceKind):
    """The device kind ``mdev``."""

    name = 'mdev'
    form = guest_xml.MDEV

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        super().__init__(conf, hypervisor)
        self.options = mdev_options.read(conf)
        self._idle: set[str] = set()            # types that were said to come from no parent
        self.sysfs_devices = SYSFS_DEVICES
        self.settle_s = SETTLE_S

    @property
    def configured(self) -> bool:
        return bool(self.options.types)

    @property
    def resource_classes(self) -> frozenset[str]:
        return frozenset(mdev_type.resource_class for mdev_type in self.options.types.values())

    def live_migration_obstacle(self) -> str | None:
        versions = self.hypervisor.versions()
        return None if versions is None else vfio_migration.obstacle(versions)

    # -- stock -------------------------------------------------------------------------------------------------

    def stock(self) -> api.Stock:
        parents = _Parents(self._parents())
        devices: list[InventoryDevice] = []
        counts: dict[tuple[str, str], int] = {}
        for existing in self._existing():
            parent = parents.of(existing.mdev)
            made = (parent.name, existing.mdev.type)
            counts[made] = counts.get(made, 0) + 1
            for mdev_type in self.options.types_of(_names(parent)):
                if mdev_type.id == existing.mdev.type:
                    devices.append(self._device(existing, parent, mdev_type))
        capacities = [capacity for parent in parents for capacity in self._capacities(parent, counts)]
        self._warn_of_types_that_nothing_makes(parents, {capacity.device_type for capacity in capacities}
                                               | {device_type for _parent, device_type in counts})
        return api.Stock(tuple(sorted(devices)), tuple(capacities))

    def _warn_of_types_that_nothing_makes(self, parents: _Parents, there: Container[str]) -> None:
        """Once, until it changes: an audit reads the stock every minute.

        It may be a mistake in the option, or a card whose driver makes its types later.
        """
        idle = {name for name in self.options.types if name not in there}
        for name in sorted(idle - self._idle):
            named = bool(self.options.types[name].addresses)
            made = sorted({made.id for parent in parents for made in parent.types})
            LOG.warning('%s = %s: no parent %s makes it; those of this host make %s', mdev_options.ENABLED, name,
                        f'that [{options.mdev_group(name)}] device_addresses names' if named else 'of this host',
                        ', '.join(made) or 'nothing')
        self._idle = idle

    def _device(self, existing: _Existing, parent: nodedev_xml.Parent,
                mdev_type: mdev_options.TypeOptions) -> InventoryDevice:
        mdev = existing.mdev
        unhealthy = None
        if not existing.active and not _available(parent, mdev.type):
            unhealthy = 'it is defined and not started, and its parent has no room for it'
        return InventoryDevice(
            self.name, mdev.uuid, parent.name, mdev_type.resource_class, parent.name, parent.numa_node,
            details.to_text(_details(existing, parent, vocabulary.ADOPTED)), unhealthy, self.options.adopt_existing)

    def _capacities(self, parent: nodedev_xml.Parent, counts: Mapping[tuple[str, str], int]) -> list[Capacity]:
        found = []
        allowed = {mdev_type.id: mdev_type for mdev_type in self.options.types_of(_names(parent))}
        for made in parent.types:
            if made.id not in allowed:
                continue
            mdev_type, available = allowed[made.id], made.available
            if mdev_type.max_instances is not None:
                room = mdev_type.max_instances - counts.get((parent.name, made.id), 0)
                available = max(0, min(available, room))
            found.append(Capacity(
                self.name, parent.name, made.id, parent.name, mdev_type.resource_class, parent.numa_node,
                available, details.to_text(MdevDetails(
                    type=made.id, parent=parent.name, parent_address=_pci_address(parent),
                    device_api=made.device_api, iommu_group=None, origin=vocabulary.CREATED))))
        return found

    def _parents(self) -> list[nodedev_xml.Parent]:
        found = []
        for handle in self.hypervisor.mdev_parents():
            text = _xml(handle)
            parent = None if text is None else nodedev_xml.parse_parent(text, f'node device {handle.name}')
            if parent is not None:
                found.append(parent)
        return found

    def _existing(self, uuid: str | None = None) -> list[_Existing]:
        """Every mediated device, or those with a UUID: there may be one on each of several parents."""
        found = []
        # The name is made of the UUID, and then it ends in anything.
        start = '' if uuid is None else f'mdev_{uuid.replace("-", "_")}'
        for handle in self.hypervisor.mdevs():
            if not handle.name.startswith(start):
                continue
            existing = _read(handle)
            if existing is not None and (uuid is None or existing.mdev.uuid == uuid):
                found.append(existing)
        return found

    # -- usage -------------------------------------------------------------------------------------------------

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.mdev_uuids

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        # The UUID is the device, whether it exists at the moment or not.
        return {address: address for address in addresses}

    # -- realize -----------------------------------------------------------------------------------------------

    def realize(self, assignment: DeviceAssignment) -> Realized:
        wanted = assignment.details
        parents = _Parents(self._parents())
        existing = self._find(assignment, parents)
        if existing is None:
            if wanted.origin == vocabulary.ADOPTED:
                raise exception.DeviceGone(self.name, assignment.identifier, 'it existed when it was chosen')
            existing = self._create(assignment, parents)
        elif not existing.active:
            self._start(assignment, existing.handle)
            existing = self._find_again(assignment)
        elif wanted.origin == vocabulary.CREATED and not existing.handle.is_persistent():
            # Somebody undefined it meanwhile; the next boot needs the definition.
            self._define(assignment)
        # Read anew: this call is why it changed. Other devices are read only where an option counts them.
        parents = _Parents(self._parents())
        parent = parents.of(existing.mdev)
        counts = self._counts(parents) if self._is_limited(parent) else {}
        return Realized(
            DeviceKey(self.name, assignment.identifier),
            details.to_text(_details(existing, parent, wanted.origin)),
            tuple(self._capacities(parent, counts)))

    def _is_limited(self, parent: nodedev_xml.Parent) -> bool:
        return any(mdev_type.max_instances is not None for mdev_type in self.options.types_of(_names(parent)))

    def _counts(self, parents: _Parents) -> Mapping[tuple[str, str], int]:
        """How many devices each parent has of each type."""
        return collections.Counter((parents.of(existing.mdev).name, existing.mdev.type)
                                   for existing in self._existing())

    def _find(self, assignment: DeviceAssignment, parents: _Parents) -> _Existing | None:
        """The assignment's device, or None when there is none.

        :raises DeviceGone: another device has its UUID
        """
        named = self._named(assignment, parents)
        if named is not None:
            return named
        found = self._existing(assignment.identifier)
        for existing in found:
            if _is_of(assignment, existing, parents):
                return existing
        if found:
            raise exception.DeviceGone(self.name, assignment.identifier,
                                       'a device of another type or parent has its UUID')
        return None

    def _named(self, assignment: DeviceAssignment, parents: _Parents) -> _Existing | None:
        """The assignment's device, if it is active and has a usual name.

        Asks for one device where a list names every device of the host. A name is but a hint: any other device,
        and none, are for the list to explain.
        """
        parent = parents.named(assignment.details.parent)
        # A parent that libvirt does not know is called by its address.
        address = assignment.details.parent if parent is None else parent.address
        for name in nodedev_xml.mdev_names(assignment.identifier, address):
            handle = self.hypervisor.node_device(name)
            existing = None if handle is None else _read(handle)
            if existing is not None and existing.active and _is_of(assignment, existing, parents):
                return existing
        return None

    def _find_again(self, assignment: DeviceAssignment) -> _Existing:
        """The device as libvirt shows it once udev has told it of the start."""
        def started() -> _Existing | None:
            existing = self._find(assignment, _Parents(self._parents()))
            return existing if existing is not None and existing.active else None

        found = self._wait_for(started)
        if found is None:
            raise exception.RealizeFailed(self.name, assignment.identifier, 'it was started and is not there')
        return found

    def _create(self, assignment: DeviceAssignment, parents: _Parents) -> _Existing:
        wanted = assignment.details
        parent = parents.named(wanted.parent)
        if parent is None:
            raise exception.RealizeFailed(
                self.name, assignment.identifier, f'its parent {wanted.parent} is not there')
        if not _available(parent, wanted.type):
            raise exception.ParentFull(self.name, parent.name, wanted.type, 'it says that it has no more')
        handle = self._define(assignment)
        try:
            self._start(assignment, handle)
        except exception.DriverError:
            self._undo(handle)
            raise
        return self._find_again(assignment)

    def _define(self, assignment: DeviceAssignment) -> connection.NodeDevice:
        wanted = assignment.details
        document = nodedev_xml.definition(assignment.identifier, wanted.type, wanted.parent)
        try:
            handle = self.hypervisor.define_node_device(document)
        except connection.Refused as error:
            raise exception.RealizeFailed(self.name, assignment.identifier, str(error)) from error
        try:
            handle.set_autostart()
        except connection.Refused as error:
            self._undo(handle)
            raise exception.RealizeFailed(self.name, assignment.identifier, str(error)) from error
        return handle

    def _start(self, assignment: DeviceAssignment, handle: connection.NodeDevice) -> None:
        wanted = assignment.details
        try:
            handle.start()
        except connection.Refused as error:
            parent = _Parents(self._parents()).named(wanted.parent)
            if error.meaning is connection.Meaning.FULL or (
                    parent is not None and not _available(parent, wanted.type)):
                raise exception.ParentFull(self.name, wanted.parent, wanted.type, error.reason) from error
            raise exception.RealizeFailed(self.name, assignment.identifier, str(error)) from error

    def _undo(self, handle: connection.NodeDevice) -> None:
        """Take a definition back; what fails is found by the next realize or unclaim of the device."""
        try:
            handle.undefine()
        except exception.DriverError as error:
            LOG.warning('The definition of %s stays for now: %s', handle.name, error)

    # -- unclaim -----------------------------------------------------------------------------------------------

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        if assignment.details.origin != vocabulary.CREATED:
            return
        existing = self._find_own(assignment)
        if existing is not None:
            if existing.active:
                self._destroy(assignment, existing.handle)
            if existing.handle.is_persistent():
                self._undefine(existing.handle)
        if not self._wait_for(lambda: self._is_gone(assignment)):
            raise exception.UnclaimFailed(self.name, assignment.identifier, 'it was removed and is still there')

    def _find_own(self, assignment: DeviceAssignment) -> _Existing | None:
        try:
            return self._find(assignment, _Parents(self._parents()))
        except exception.DeviceGone as error:
            raise exception.UnclaimFailed(self.name, assignment.identifier, error.reason) from error

    def _destroy(self, assignment: DeviceAssignment, handle: connection.NodeDevice) -> None:
        def destroyed() -> bool:
            try:
                handle.destroy()
            except connection.Refused as error:
                if error.meaning is connection.Meaning.IN_USE:
                    return False
                if error.meaning is not connection.Meaning.NO_SUCH_DEVICE:
                    raise
            return True

        if not self._wait_for(destroyed):
            raise exception.DeviceInUse(self.name, assignment.identifier, 'a process of the host has it open')

    def _undefine(self, handle: connection.NodeDevice) -> None:
        try:
            handle.undefine()
        except connection.Refused as error:
            if error.meaning is not connection.Meaning.NO_SUCH_DEVICE:
                raise

    def _is_gone(self, assignment: DeviceAssignment) -> bool:
        """Whether libvirt and the kernel both say so."""
        return not (self._find_own(assignment) or
                    os.path.lexists(os.path.join(self.sysfs_devices, assignment.identifier)))

    def _wait_for(self, found: Callable[[], _Answer]) -> _Answer:
        """Call until the answer is true or it has taken too long, and give the last answer."""
        deadline = time.monotonic() + self.settle_s
        while True:
            answer = found()
            if answer or time.monotonic() >= deadline:
                return answer
            time.sleep(0.1)

    # -- guest -------------------------------------------------------------------------------------------------

    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        parents = _Parents(self._parents())
        return [self._guest_element(assignment, parents) for assignment in assignments]

    def _guest_element(self, assignment: DeviceAssignment, parents: _Parents) -> str:
        existing = self._find(assignment, parents)
        if existing is None:
            raise exception.DeviceGone(self.name, assignment.identifier, 'no device has its UUID')
        if not existing.active:
            raise exception.DeviceGone(self.name, assignment.identifier, 'it is defined and not started')
        return (f"<hostdev mode='subsystem' type='mdev' model={saxutils.quoteattr(assignment.details.device_api)}>"
                f"<source><address uuid='{assignment.identifier}'/></source></hostdev>")


class _Parents:
    """The parents that libvirt knows, found by what an mdev or an assignment says of its own."""

    def __init__(self, parents: Iterable[nodedev_xml.Parent]) -> None:
        self._parents = {parent.name: parent for parent in sorted(parents)}
        self._by_address = {parent.address: parent for parent in self._parents.values() if parent.address}

    def __iter__(self) -> Any:
        return iter(self._parents.values())

    def named(self, name: str) -> nodedev_xml.Parent | None:
        return self._parents.get(name)

    def of(self, mdev: nodedev_xml.Mdev) -> nodedev_xml.Parent:
        """The parent of a device; one that libvirt does not know is named by its address, and makes nothing."""
        if mdev.parent in self._parents:
            return self._parents[mdev.parent]
        if mdev.parent_address in self._by_address:
            return self._by_address[mdev.parent_address]
        name = mdev.parent
        if name == nodedev_xml.ROOT_DEVICE and mdev.parent_address:
            name = mdev.parent_address
        return nodedev_xml.Parent(name, mdev.parent_address, False, None, ())


def _is_of(assignment: DeviceAssignment, existing: _Existing, parents: _Parents) -> bool:
    """Whether a device is the assignment's, by what its document says."""
    wanted, mdev = assignment.details, existing.mdev
    return (mdev.uuid, mdev.type, parents.of(mdev).name) == (assignment.identifier, wanted.type, wanted.parent)


def _names(parent: nodedev_xml.Parent) -> frozenset[str]:
    """What an option may call a parent."""
    return frozenset(mdev_options.normal_address(name) for name in (parent.name, parent.address) if name)


def _pci_address(parent: nodedev_xml.Parent) -> str | None:
    return parent.address if parent.pci else None


def _available(parent: nodedev_xml.Parent, device_type: str) -> int:
    return next((made.available for made in parent.types if made.id == device_type), 0)


def _details(existing: _Existing, parent: nodedev_xml.Parent, origin: str) -> MdevDetails:
    device_api = next((made.device_api for made in parent.types if made.id == existing.mdev.type), 'vfio-pci')
    return MdevDetails(
        type=existing.mdev.type, parent=parent.name, parent_address=_pci_address(parent), device_api=device_api,
        iommu_group=existing.mdev.iommu_group if existing.active else None, origin=origin)


def _read(handle: connection.NodeDevice) -> _Existing | None:
    """The mediated device of a handle, or None when it went away meanwhile."""
    try:
        text, active = handle.xml(), handle.is_active()
    except connection.Refused as error:
        if error.meaning is connection.Meaning.NO_SUCH_DEVICE:
            return None
        raise
    return _Existing(nodedev_xml.parse_mdev(text, f'node device {handle.name}'), handle, active)


def _xml(handle: connection.NodeDevice) -> str | None:
    try:
        return handle.xml()
    except connection.Refused as error:
        if error.meaning is connection.Meaning.NO_SUCH_DEVICE:
            return None
        raise
