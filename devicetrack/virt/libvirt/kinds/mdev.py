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
import os
import time
from typing import Any
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
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import attributes
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import mdev_devices
from devicetrack.virt.libvirt.kinds import mdev_options
from devicetrack.virt.libvirt.kinds import mdev_parents
from devicetrack.virt.libvirt.kinds import type_options
from devicetrack.virt.libvirt.kinds.mdev_devices import Device

LOG = logging.getLogger(__name__)

# How long libvirt may take to hear of a change. It reads one event after the other, and runs mdevctl for each.
SETTLE_S = 60.0

_AGAIN = (connection.Meaning.NO_SUCH_DEVICE, connection.Meaning.BEHIND, connection.Meaning.UNTOLD)

_Answer = TypeVar('_Answer')


class Mdev(api.DeviceKind):
    """The device kind ``mdev``."""

    name = 'mdev'
    form = guest_xml.MDEV

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        super().__init__(conf, hypervisor)
        self.options = mdev_options.read(conf)
        self.release_wait_s: float = conf[options.MDEV_GROUP].release_wait_s
        self._idle: set[str] = set()            # types that were said to come from no parent
        self._in_vain: set[str] = set()         # devices that a release waited for, and is to look at once from now on
        self.devices = mdev_devices.Devices(hypervisor, mdev_sysfs.Kernel())
        self.settle_s = SETTLE_S
        self._attributes = attributes.paths(conf)

    @property
    def configured(self) -> bool:
        return bool(self.options.types)

    @property
    def resource_classes(self) -> frozenset[str]:
        return frozenset(mdev_type.resource_class for mdev_type in self.options.types.values())

    def live_migration_obstacle(self) -> str | None:
        versions = self.hypervisor.versions()
        return None if versions is None else vfio_migration.obstacle(versions)

    def migration_types(self) -> Sequence[MigrationType]:
        parents, kernel = self.devices.parents(), self.devices.kernel
        # The kernel has virtual parents that libvirt does not know, and their devices may be in stock.
        there = {*parents, *(parents.of(nodedev_xml.ROOT_DEVICE, address) for address in kernel.parents())}
        found = []
        for parent in sorted(there, key=lambda parent: parent.name):
            address = parent.address or parent.name
            for mdev_type in self.options.types_of(mdev_parents.names(parent)):
                directory = kernel.type_path(address, mdev_type.id)
                if os.path.isdir(directory) or mdev_type.id in {made.id for made in parent.types}:
                    named = MigrationType(self.name, parent.name, mdev_type.id)
                    found.append(self._attributes.read(kernel.root, named, directory, kernel.parent_path(address)))
        return found

    # -- stock -------------------------------------------------------------------------------------------------

    def stock(self) -> api.Stock:
        parents = self.devices.parents()
        devices: list[InventoryDevice] = []
        counts: dict[tuple[str, str], int] = {}
        found: dict[str, list[Device]] = {}
        for device in self.devices.all(parents):
            made = (device.parent.name, device.type)
            counts[made] = counts.get(made, 0) + 1
            found.setdefault(device.uuid, []).append(device)
        for same in found.values():
            # One UUID may be defined on several parents, and exist on one.
            device = next((device for device in same if device.active), same[0])
            if not device.active and parents.named(device.parent.name) is None:
                # The parent is away, or libvirt does not know it and cannot say whether it has room.
                continue
            for mdev_type in self.options.types_of(mdev_parents.names(device.parent)):
                if mdev_type.id == device.type:
                    devices.append(self._inventory_device(device, mdev_type, len(same) > 1))
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

    def _inventory_device(self, device: Device, mdev_type: type_options.TypeOptions, several: bool) -> InventoryDevice:
        parent = device.parent
        unhealthy = None
        if not device.active and several:
            unhealthy = 'its UUID is defined more than once, and mdevctl starts none of them'
        elif not device.active and not _available(parent, device.type):
            unhealthy = 'it is defined and not started, and its parent has no room for it'
        return InventoryDevice(
            self.name, device.uuid, parent.name, mdev_type.resource_class, parent.name, parent.numa_node,
            details.to_text(_details(device, vocabulary.ADOPTED)), unhealthy, self.options.adopt_existing)

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

    # -- usage -------------------------------------------------------------------------------------------------

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.mdev_uuids

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        # The UUID is the device, whether it exists at the moment or not.
        return {address: address for address in addresses}

    # -- realize -----------------------------------------------------------------------------------------------

    def realize(self, assignment: DeviceAssignment) -> Realized:
        try:
            device = self._make_ready(assignment)
        except (exception.RealizeFailed, connection.Refused):
            if not self._mend(assignment):
                raise
            device = self._make_ready(assignment)
        # Read anew: this call is why it changed. Other devices are read only where an option counts them.
        parents = self.devices.parents()
        device = device._replace(parent=parents.of(device.parent.name, device.parent.address))
        counts = self._counts(parents) if self._is_limited(device.parent) else {}
        return Realized(
            DeviceKey(self.name, assignment.identifier),
            details.to_text(_details(device, assignment.details.origin)),
            tuple(self._capacities(device.parent, counts)))

    def _make_ready(self, assignment: DeviceAssignment) -> Device:
        parents = self.devices.parents()
        device = self._find(assignment, parents)
        handle: connection.NodeDevice | None
        if assignment.details.origin == vocabulary.CREATED:
            handle = self._define(assignment, device, parents)
        elif device is not None:
            handle = device.handle
        else:
            raise exception.DeviceGone(self.name, assignment.identifier, 'it existed when it was chosen')
        if device is not None and device.active:
            return device
        assert handle is not None               # what is not active is defined, and that is libvirt's word
        try:
            self._start(assignment, handle)
        except exception.DriverError:
            if device is None:
                self._undo(handle)
            raise
        return self._find_again(assignment)

    def _is_limited(self, parent: nodedev_xml.Parent) -> bool:
        types = self.options.types_of(mdev_parents.names(parent))
        return any(mdev_type.max_instances is not None for mdev_type in types)

    def _counts(self, parents: mdev_parents.Parents) -> Mapping[tuple[str, str], int]:
        """How many devices each parent has of each type."""
        return collections.Counter((device.parent.name, device.type) for device in self.devices.all(parents))

    def _find(self, assignment: DeviceAssignment, parents: mdev_parents.Parents) -> Device | None:
        """The assignment's device, or None when there is none.

        :raises DeviceGone: another device has its UUID
        """
        device = self.devices.active(assignment.identifier, _address(assignment, parents), parents)
        if device is not None and _is_of(assignment, device, parents):
            return device
        found = self.devices.of(assignment.identifier, parents)
        for device in found:
            if _is_of(assignment, device, parents):
                return device
        if found:
            raise exception.DeviceGone(self.name, assignment.identifier,
                                       'a device of another type or parent has its UUID')
        return None

    def _find_again(self, assignment: DeviceAssignment) -> Device:
        """The device once it was started, which the kernel knows at once."""
        def started() -> Device | None:
            device = self._find(assignment, self.devices.parents())
            return device if device is not None and device.active else None

        found = self._wait_for(started)
        if found is None:
            raise exception.RealizeFailed(self.name, assignment.identifier, 'it was started and is not there')
        return found

    def _define(self, assignment: DeviceAssignment, device: Device | None,
                parents: mdev_parents.Parents) -> connection.NodeDevice:
        """See that a device is defined, and starts with the host.

        It may have been undefined meanwhile, or this was interrupted.
        """
        wanted = assignment.details
        if device is None:
            parent = parents.named(wanted.parent)
            if parent is None:
                raise exception.RealizeFailed(
                    self.name, assignment.identifier, f'its parent {wanted.parent} is not there')
            if not _available(parent, wanted.type):
                raise exception.ParentFull(self.name, parent.name, wanted.type, 'it says that it has no more')
        handle = None if device is None else self._definition(assignment, parents)
        if handle is not None:
            try:
                self._settled(handle.set_autostart)
            except connection.Refused:
                if mdevctl.parents_of(assignment.identifier):
                    raise
                # It was removed, and libvirt has not heard of that.
            else:
                return handle
        handle = self._define_anew(assignment, parents)
        try:
            self._settled(handle.set_autostart)
        except connection.Refused:
            if device is None:
                self._undo(handle)
            raise
        return handle

    def _define_anew(self, assignment: DeviceAssignment, parents: mdev_parents.Parents) -> connection.NodeDevice:
        wanted = assignment.details
        document = nodedev_xml.definition(assignment.identifier, wanted.type, wanted.parent)
        try:
            return self.hypervisor.define_node_device(document)
        except connection.Refused:
            # libvirt defines what it has not heard of, and mdevctl refuses to do that twice.
            if not mdevctl.parents_of(assignment.identifier) or mdevctl.lost():
                raise
            handle = self._wait_for(lambda: self._definition(assignment, parents))
            if handle is None:
                raise
            return handle

    def _definition(self, assignment: DeviceAssignment, parents: mdev_parents.Parents) -> connection.NodeDevice | None:
        """libvirt's handle of the assignment's definition; None when libvirt knows of none."""
        named = self.devices.named(assignment.identifier, _address(assignment, parents), parents)
        for device in (named,) if named is not None else self.devices.of(assignment.identifier, parents):
            if device.handle is not None and _is_of(assignment, device, parents) and device.handle.is_persistent():
                return device.handle
        return None

    def _start(self, assignment: DeviceAssignment, handle: connection.NodeDevice) -> None:
        wanted = assignment.details
        try:
            self._settled(handle.start, lambda: self.devices.kernel.has(assignment.identifier))
        except connection.Refused as error:
            if error.meaning is connection.Meaning.EXISTS:
                # Started meanwhile, as the host does when it boots; whether it is this one, the caller sees.
                return
            parent = self.devices.parents().named(wanted.parent)
            if error.meaning is connection.Meaning.FULL or (
                    parent is not None and not _available(parent, wanted.type)):
                raise exception.ParentFull(self.name, wanted.parent, wanted.type, error.reason) from error
            raise

    def _undo(self, handle: connection.NodeDevice) -> None:
        """Take a definition back; what fails is found by the next realize or unclaim of the device."""
        try:
            self._settled(handle.undefine)
        except exception.DriverError as error:
            LOG.warning('The definition of %s stays for now: %s', handle.name, error)

    def _mend(self, assignment: DeviceAssignment) -> bool:
        """Remove definitions that were lost with the power of the host: none can be used until then.

        :returns: whether there were any
        """
        lost = mdevctl.lost()
        if not lost:
            return False
        LOG.warning('Definitions of mediated devices were lost with the power of the host, and mdevctl uses none while '
                    'their files are there: %s. They are removed; what they defined is defined anew when it is made '
                    'ready.', ', '.join(lost))
        try:
            privileged.remove_lost_definitions()
        except OSError as error:
            LOG.error('They cannot be removed: %s', error)
            return False
        # libvirt reads all others now.
        self._wait_for(lambda: not mdevctl.parents_of(assignment.identifier)
                       or self._definition(assignment, self.devices.parents()))
        return True

    # -- unclaim -----------------------------------------------------------------------------------------------

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        made = assignment.details.origin == vocabulary.CREATED
        # Audits try again with every device that is held, one after the other.
        again = assignment.identifier in self._in_vain
        try:
            if made:
                self._destroy(assignment, again)
            else:
                self._see_that_nobody_has_it_open(assignment, again)
        except exception.DriverError:
            self._in_vain.add(assignment.identifier)
            raise
        self._in_vain.discard(assignment.identifier)
        if made:
            self._undefine(assignment)
            if not self._wait_for(lambda: self._is_gone(assignment)):
                raise exception.UnclaimFailed(self.name, assignment.identifier, 'it was removed and is still there')

    def _see_that_nobody_has_it_open(self, assignment: DeviceAssignment, again: bool) -> None:
        def closed() -> bool:
            try:
                return not self.devices.kernel.is_open(assignment.identifier)
            except OSError as error:
                raise exception.UnclaimFailed(self.name, assignment.identifier, 'nobody says whether a process has it '
                                              f'open: {error.strerror or error}') from error

        self._while_in_use(assignment, closed, again)

    def _own(self, assignment: DeviceAssignment) -> Device | None:
        """The assignment's device; None when nothing has its UUID.

        :raises UnclaimFailed: something else has it too. libvirt and mdevctl remove by the UUID alone, so nothing is
        """
        parents = self.devices.parents()
        own = None
        for device in self.devices.of(assignment.identifier, parents):
            if not _is_of(assignment, device, parents):
                raise exception.UnclaimFailed(
                    self.name, assignment.identifier, f'a device of type {device.type} and parent '
                    f'{device.parent.name} has its UUID{"" if device.active else " and is not started"}')
            own = device if own is None or device.handle is not None else own
        for address in mdevctl.parents_of(assignment.identifier):
            if not _is_at(assignment, parents.of(nodedev_xml.ROOT_DEVICE, address), parents):
                raise exception.UnclaimFailed(self.name, assignment.identifier,
                                              f'mdevctl has a definition with its UUID on {address}')
        return own

    def _destroy(self, assignment: DeviceAssignment, again: bool) -> None:
        settle_s = 0.0 if again else self.settle_s
        device: Device | None = None

        def heard_of() -> bool:
            nonlocal device
            device = self._own(assignment)
            return device is None or not device.active or device.handle is not None

        if not self._wait_for(heard_of, settle_s):
            raise exception.UnclaimFailed(self.name, assignment.identifier, 'libvirt does not know that it is there')
        if device is None or not device.active or device.handle is None:
            return
        destroy = device.handle.destroy

        def destroyed() -> bool:
            try:
                self._settled(destroy, lambda: not self.devices.kernel.has(assignment.identifier), settle_s)
            except connection.Refused as error:
                if not self._means_in_use(assignment, error):
                    raise
                return False
            return True

        self._while_in_use(assignment, destroyed, again)

    def _means_in_use(self, assignment: DeviceAssignment, error: connection.Refused) -> bool:
        if error.meaning is connection.Meaning.OTHER:
            # libvirt says it in the language of the host. Without an answer of the kernel its own words go on.
            with contextlib.suppress(OSError):
                return self.devices.kernel.is_open(assignment.identifier)
        return error.meaning is connection.Meaning.IN_USE

    def _while_in_use(self, assignment: DeviceAssignment, let_go: Callable[[], bool], again: bool) -> None:
        if not self._wait_for(let_go, 0.0 if again else self.release_wait_s):
            raise exception.DeviceInUse(self.name, assignment.identifier, 'a process of the host has it open'
                                        + ('' if again else f', after {self.release_wait_s} s still'))

    def _undefine(self, assignment: DeviceAssignment) -> None:
        def undefined() -> bool:
            return not mdevctl.parents_of(assignment.identifier)

        handle = self._definition(assignment, self.devices.parents())
        if handle is None and not undefined():
            handle = self._wait_for(lambda: self._definition(assignment, self.devices.parents()))
        if handle is not None:
            self._settled(handle.undefine, undefined)

    def _is_gone(self, assignment: DeviceAssignment) -> bool:
        """Whether libvirt, mdevctl and the kernel all say so."""
        return (self._own(assignment) is None and not self.devices.kernel.has(assignment.identifier)
                and not mdevctl.parents_of(assignment.identifier))

    # -- waiting -----------------------------------------------------------------------------------------------

    def _wait_for(self, found: Callable[[], _Answer], seconds: float | None = None) -> _Answer:
        """Call until the answer is true or it has taken too long, and give the last answer."""
        deadline = time.monotonic() + (self.settle_s if seconds is None else seconds)
        while True:
            answer = found()
            if answer or time.monotonic() >= deadline:
                return answer
            time.sleep(0.1)

    def _settled(self, call: Callable[[], None], done: Callable[[], bool] = lambda: False,
                 seconds: float | None = None) -> None:
        """Call, and again while libvirt is behind, or did not say what it refused; what is done by then needs no call.

        libvirt even forgets a definition that it was just given, when a list comes in that mdevctl made before.

        :raises Refused: it is refused for another reason, or libvirt stays behind
        """
        deadline = time.monotonic() + (self.settle_s if seconds is None else seconds)
        while True:
            try:
                return call()
            except connection.Refused as error:
                if done():
                    return None
                if error.meaning not in _AGAIN or time.monotonic() >= deadline:
                    raise
            time.sleep(0.1)

    # -- guest -------------------------------------------------------------------------------------------------

    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        parents = self.devices.parents()
        return [self._guest_element(assignment, parents) for assignment in assignments]

    def _guest_element(self, assignment: DeviceAssignment, parents: mdev_parents.Parents) -> str:
        device = self._find(assignment, parents)
        if device is None:
            raise exception.DeviceGone(self.name, assignment.identifier, 'no device has its UUID')
        if not device.active:
            raise exception.DeviceGone(self.name, assignment.identifier, 'it is defined and not started')
        return (f"<hostdev mode='subsystem' type='mdev' model={saxutils.quoteattr(assignment.details.device_api)}>"
                f"<source><address uuid='{assignment.identifier}'/></source></hostdev>")


def _is_of(assignment: DeviceAssignment, device: Device, parents: mdev_parents.Parents) -> bool:
    """Whether a device is the assignment's."""
    return ((device.uuid, device.type) == (assignment.identifier, assignment.details.type)
            and _is_at(assignment, device.parent, parents))


def _is_at(assignment: DeviceAssignment, parent: nodedev_xml.Parent, parents: mdev_parents.Parents) -> bool:
    """Whether a parent is that of the assignment's device."""
    wanted: str = assignment.details.parent
    # While a parent is away its devices have but its address.
    return parent.name == wanted or (
        parents.named(parent.name) is None and nodedev_xml.is_name_of(wanted, parent.address))


def _address(assignment: DeviceAssignment, parents: mdev_parents.Parents) -> str | None:
    """The address of the parent of an assignment's device; one that libvirt does not know is called by its address."""
    parent = parents.named(assignment.details.parent)
    address: str | None = assignment.details.parent if parent is None else parent.address
    return address


def _pci_address(parent: nodedev_xml.Parent) -> str | None:
    return parent.address if parent.pci else None


def _available(parent: nodedev_xml.Parent, device_type: str) -> int:
    return next((made.available for made in parent.types if made.id == device_type), 0)


def _details(device: Device, origin: str) -> MdevDetails:
    parent = device.parent
    device_api = next((made.device_api for made in parent.types if made.id == device.type), 'vfio-pci')
    return MdevDetails(
        type=device.type, parent=parent.name, parent_address=_pci_address(parent), device_api=device_api,
        iommu_group=device.iommu_group, origin=origin)
