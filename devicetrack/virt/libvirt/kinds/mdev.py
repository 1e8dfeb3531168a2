"""Mediated devices (Linux: Documentation/driver-api/vfio-mediated-device.rst), by libvirt's node-device driver.

A device that exists is adopted when its type is enabled on its parent; capacity to make more is what the parent
says it has. What is created is defined too and started with the host, so that it is there again before its
guest. Only a device that an assignment records as created is ever destroyed, and only when it has the
assignment's UUID, type and parent and nothing else has that UUID.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import logging
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
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import mdev_options
from devicetrack.virt.libvirt.kinds import mdev_parents
from devicetrack.virt.libvirt.kinds import type_options

LOG = logging.getLogger(__name__)

# libvirt shows what was started or removed when udev and mdevctl have told it, a moment later.
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
        self.release_wait_s: float = conf[options.MDEV_GROUP].release_wait_s
        self._idle: set[str] = set()            # types that were said to come from no parent
        self.kernel = mdev_sysfs.Kernel()
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
        parents = mdev_parents.Parents(self._parents())
        devices: list[InventoryDevice] = []
        counts: dict[tuple[str, str], int] = {}
        found: dict[str, list[_Existing]] = {}
        for existing in self._existing():
            made = (parents.of(existing.mdev).name, existing.mdev.type)
            counts[made] = counts.get(made, 0) + 1
            found.setdefault(existing.mdev.uuid, []).append(existing)
        for same in found.values():
            # One UUID may be defined on several parents, and exist on one.
            existing = next((existing for existing in same if existing.active), same[0])
            parent = parents.of(existing.mdev)
            if not existing.active and parents.named(parent.name) is None:
                # The parent is away, or libvirt does not know it and cannot say whether it has room.
                continue
            for mdev_type in self.options.types_of(mdev_parents.names(parent)):
                if mdev_type.id == existing.mdev.type:
                    devices.append(self._device(existing, parent, mdev_type, len(same) > 1))
        capacities = [capacity for parent in parents for capacity in self._capacities(parent, counts)]
        self._warn_of_types_that_nothing_makes(parents, {capacity.device_type for capacity in capacities}
                                               | {device_type for _parent, device_type in counts})
        return api.Stock(tuple(sorted(devices)), tuple(capacities))

    def _warn_of_types_that_nothing_makes(self, parents: mdev_parents.Parents, there: Container[str]) -> None:
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

    def _device(self, existing: _Existing, parent: nodedev_xml.Parent, mdev_type: type_options.TypeOptions,
                several: bool) -> InventoryDevice:
        mdev = existing.mdev
        unhealthy = None
        if not existing.active and several:
            unhealthy = 'its UUID is defined more than once, and mdevctl starts none of them'
        elif not existing.active and not _available(parent, mdev.type):
            unhealthy = 'it is defined and not started, and its parent has no room for it'
        return InventoryDevice(
            self.name, mdev.uuid, parent.name, mdev_type.resource_class, parent.name, parent.numa_node,
            details.to_text(_details(existing, parent, vocabulary.ADOPTED)), unhealthy, self.options.adopt_existing)

    def _capacities(self, parent: nodedev_xml.Parent, counts: Mapping[tuple[str, str], int]) -> list[Capacity]:
        found = []
        allowed = {mdev_type.id: mdev_type for mdev_type in self.options.types_of(mdev_parents.names(parent))}
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
            existing = self._read(handle)
            if existing is not None and (uuid is None or existing.mdev.uuid == uuid):
                found.append(existing)
        return found

    def _read(self, handle: connection.NodeDevice) -> _Existing | None:
        """The mediated device of a handle, or None when it went away meanwhile."""
        try:
            text, active = handle.xml(), handle.is_active()
        except connection.Refused as error:
            if error.meaning is connection.Meaning.NO_SUCH_DEVICE:
                return None
            raise
        mdev = nodedev_xml.parse_mdev(text, f'node device {handle.name}')
        if active:
            # libvirt before 10.1 shows the type of its definition, which somebody may have changed since.
            mdev = mdev._replace(type=self.kernel.type_of(mdev.uuid) or mdev.type)
        return _Existing(mdev, handle, active)

    # -- usage -------------------------------------------------------------------------------------------------

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.mdev_uuids

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        # The UUID is the device, whether it exists at the moment or not.
        return {address: address for address in addresses}

    # -- realize -----------------------------------------------------------------------------------------------

    def realize(self, assignment: DeviceAssignment) -> Realized:
        wanted = assignment.details
        parents = mdev_parents.Parents(self._parents())
        existing = self._find(assignment, parents)
        if existing is None:
            if wanted.origin == vocabulary.ADOPTED:
                raise exception.DeviceGone(self.name, assignment.identifier, 'it existed when it was chosen')
            existing = self._create(assignment, parents)
        else:
            if wanted.origin == vocabulary.CREATED:
                # Somebody undefined it meanwhile, or this was interrupted; the next boot needs the definition.
                self._keep(assignment, existing.handle)
            if not existing.active:
                self._start(assignment, existing.handle)
                existing = self._find_again(assignment)
        # Read anew: this call is why it changed. Other devices are read only where an option counts them.
        parents = mdev_parents.Parents(self._parents())
        parent = parents.of(existing.mdev)
        counts = self._counts(parents) if self._is_limited(parent) else {}
        return Realized(
            DeviceKey(self.name, assignment.identifier),
            details.to_text(_details(existing, parent, wanted.origin)),
            tuple(self._capacities(parent, counts)))

    def _is_limited(self, parent: nodedev_xml.Parent) -> bool:
        types = self.options.types_of(mdev_parents.names(parent))
        return any(mdev_type.max_instances is not None for mdev_type in types)

    def _counts(self, parents: mdev_parents.Parents) -> Mapping[tuple[str, str], int]:
        """How many devices each parent has of each type."""
        return collections.Counter((parents.of(existing.mdev).name, existing.mdev.type)
                                   for existing in self._existing())

    def _find(self, assignment: DeviceAssignment, parents: mdev_parents.Parents) -> _Existing | None:
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

    def _named(self, assignment: DeviceAssignment, parents: mdev_parents.Parents) -> _Existing | None:
        """The assignment's device, if it is active and has a usual name.

        Asks for one device where a list names every device of the host. A name is but a hint: any other device,
        and none, are for the list to explain.
        """
        parent = parents.named(assignment.details.parent)
        # A parent that libvirt does not know is called by its address.
        address = assignment.details.parent if parent is None else parent.address
        for name in nodedev_xml.mdev_names(assignment.identifier, address):
            handle = self.hypervisor.node_device(name)
            existing = None if handle is None else self._read(handle)
            if existing is not None and existing.active and _is_of(assignment, existing, parents):
                return existing
        return None

    def _find_again(self, assignment: DeviceAssignment) -> _Existing:
        """The device as libvirt shows it once udev has told it of the start."""
        def started() -> _Existing | None:
            existing = self._find(assignment, mdev_parents.Parents(self._parents()))
            return existing if existing is not None and existing.active else None

        found = self._wait_for(started)
        if found is None:
            raise exception.RealizeFailed(self.name, assignment.identifier, 'it was started and is not there')
        return found

    def _create(self, assignment: DeviceAssignment, parents: mdev_parents.Parents) -> _Existing:
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

    def _keep(self, assignment: DeviceAssignment, handle: connection.NodeDevice) -> None:
        """See that a device that exists is defined, and starts with the host."""
        if not handle.is_persistent():
            self._define(assignment)
            return
        try:
            handle.set_autostart()
        except connection.Refused as error:
            raise exception.RealizeFailed(self.name, assignment.identifier, str(error)) from error

    def _start(self, assignment: DeviceAssignment, handle: connection.NodeDevice) -> None:
        wanted = assignment.details
        try:
            handle.start()
        except connection.Refused as error:
            if error.meaning is connection.Meaning.EXISTS:
                # Started meanwhile, as the host does when it boots; whether it is this one, the caller sees.
                return
            parent = mdev_parents.Parents(self._parents()).named(wanted.parent)
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
            self._see_that_nobody_has_it_open(assignment)
            return
        existing = self._find_own(assignment)
        if existing is not None:
            if existing.active:
                self._destroy(assignment, existing.handle)
            if existing.handle.is_persistent():
                self._undefine(existing.handle)
        if not self._wait_for(lambda: self._is_gone(assignment)):
            raise exception.UnclaimFailed(self.name, assignment.identifier, 'it was removed and is still there')

    def _see_that_nobody_has_it_open(self, assignment: DeviceAssignment) -> None:
        def closed() -> bool:
            try:
                return not self.kernel.is_open(assignment.identifier)
            except OSError as error:
                raise exception.UnclaimFailed(self.name, assignment.identifier, 'nobody says whether a process has it '
                                              f'open: {error.strerror or error}') from error

        if not self._wait_for(closed, self.release_wait_s):
            raise self._in_use(assignment)

    def _find_own(self, assignment: DeviceAssignment) -> _Existing | None:
        """The assignment's device; None when nothing has its UUID.

        :raises UnclaimFailed: something else has it too. libvirt and mdevctl remove by the UUID alone, so nothing is
        """
        parents = mdev_parents.Parents(self._parents())
        own = None
        for existing in self._existing(assignment.identifier):
            if not _is_of(assignment, existing, parents):
                raise exception.UnclaimFailed(
                    self.name, assignment.identifier, f'a device of type {existing.mdev.type} and parent '
                    f'{parents.of(existing.mdev).name} has its UUID{"" if existing.active else " and is not started"}')
            own = existing
        return own

    def _destroy(self, assignment: DeviceAssignment, handle: connection.NodeDevice) -> None:
        def destroyed() -> bool:
            try:
                handle.destroy()
            except connection.Refused as error:
                if self._means_in_use(assignment, error):
                    return False
                if error.meaning is not connection.Meaning.NO_SUCH_DEVICE:
                    raise
            return True

        if not self._wait_for(destroyed, self.release_wait_s):
            raise self._in_use(assignment)

    def _means_in_use(self, assignment: DeviceAssignment, error: connection.Refused) -> bool:
        if error.meaning is connection.Meaning.OTHER:
            # libvirt says it in the language of the host. Without an answer of the kernel its own words go on.
            with contextlib.suppress(OSError):
                return self.kernel.is_open(assignment.identifier)
        return error.meaning is connection.Meaning.IN_USE

    def _in_use(self, assignment: DeviceAssignment) -> exception.DeviceInUse:
        return exception.DeviceInUse(
            self.name, assignment.identifier,
            f'a process of the host has it open, after {self.release_wait_s} s still')

    def _undefine(self, handle: connection.NodeDevice) -> None:
        try:
            handle.undefine()
        except connection.Refused as error:
            if error.meaning is not connection.Meaning.NO_SUCH_DEVICE:
                raise

    def _is_gone(self, assignment: DeviceAssignment) -> bool:
        """Whether libvirt and the kernel both say so."""
        return self._find_own(assignment) is None and not self.kernel.has(assignment.identifier)

    def _wait_for(self, found: Callable[[], _Answer], seconds: float | None = None) -> _Answer:
        """Call until the answer is true or it has taken too long, and give the last answer."""
        deadline = time.monotonic() + (self.settle_s if seconds is None else seconds)
        while True:
            answer = found()
            if answer or time.monotonic() >= deadline:
                return answer
            time.sleep(0.1)

    # -- guest -------------------------------------------------------------------------------------------------

    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        parents = mdev_parents.Parents(self._parents())
        return [self._guest_element(assignment, parents) for assignment in assignments]

    def _guest_element(self, assignment: DeviceAssignment, parents: mdev_parents.Parents) -> str:
        existing = self._find(assignment, parents)
        if existing is None:
            raise exception.DeviceGone(self.name, assignment.identifier, 'no device has its UUID')
        if not existing.active:
            raise exception.DeviceGone(self.name, assignment.identifier, 'it is defined and not started')
        return (f"<hostdev mode='subsystem' type='mdev' model={saxutils.quoteattr(assignment.details.device_api)}>"
                f"<source><address uuid='{assignment.identifier}'/></source></hostdev>")


def _is_of(assignment: DeviceAssignment, existing: _Existing, parents: mdev_parents.Parents) -> bool:
    """Whether a device is the assignment's, by what its document says."""
    wanted, mdev = assignment.details, existing.mdev
    if (mdev.uuid, mdev.type) != (assignment.identifier, wanted.type):
        return False
    parent = parents.of(mdev)
    # While a parent is away its devices have but its address.
    return parent.name == wanted.parent or (
        parents.named(parent.name) is None and nodedev_xml.is_name_of(wanted.parent, mdev.parent_address))


def _pci_address(parent: nodedev_xml.Parent) -> str | None:
    return parent.address if parent.pci else None


def _available(parent: nodedev_xml.Parent, device_type: str) -> int:
    return next((made.available for made in parent.types if made.id == device_type), 0)


def _details(existing: _Existing, parent: nodedev_xml.Parent, origin: str) -> MdevDetails:
    device_api = next((made.device_api for made in parent.types if made.id == existing.mdev.type), 'vfio-pci')
    return MdevDetails(
        type=existing.mdev.type, parent=parent.name, parent_address=_pci_address(parent), device_api=device_api,
        iommu_group=existing.mdev.iommu_group if existing.active else None, origin=origin)


def _xml(handle: connection.NodeDevice) -> str | None:
    try:
        return handle.xml()
    except connection.Refused as error:
        if error.meaning is connection.Meaning.NO_SUCH_DEVICE:
            return None
        raise
