"""Mediated devices (Linux: Documentation/driver-api/vfio-mediated-device.rst), by libvirt's node-device driver.

The kind offers an existing device if its type is enabled on its parent. The parent reports its capacity for more. The
kind also defines each device that it creates and lets it start with the host, so that the device is there before its
guest. It destroys only devices that an assignment records as created, and only if UUID, type and parent are those of
the assignment and nothing else has that UUID.
"""

from __future__ import annotations

import collections
from collections.abc import Collection
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import os
import re
from typing import Any
from typing import Final
from typing import TypeAlias
from xml.sax import saxutils

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.conf import libvirt as options
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import MdevDetails
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Fault
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import Realized
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import busy
from devicetrack.virt.libvirt.kinds import mdev_devices
from devicetrack.virt.libvirt.kinds import mdev_removal
from devicetrack.virt.libvirt.kinds import type_options
from devicetrack.virt.libvirt.kinds import typed_kind
from devicetrack.virt.libvirt.kinds.mdev_devices import Device

LOG = log.logger(__name__)

# Of a device of which nobody says it, so that nobody gets it.
_DEVICE_API: Final = 'vfio-pci'
# A subchannel has a disk of which a guest leaves its bytes, and may have another one after a boot (Linux:
# Documentation/arch/s390/vfio-ccw.rst). This kind knows neither.
_SUBCHANNEL: Final = 'vfio-ccw'
# Why none is made, by the interface of the devices. A matrix of cryptographic adapters has none of them unless its
# definition assigns some (Linux: Documentation/arch/s390/vfio-ap.rst), and no option says which. So an operator makes
# such devices.
_NOT_MADE: Final = {
    'vfio-ap': 'a device of this type is of no use without adapters and domains, so none is made: define such devices '
               'with mdevctl and their attributes, and they are offered',
    _SUBCHANNEL: 'a device of this type is a disk that a boot may exchange for another one, so none is handed out'}
# A host may have hundreds of parents: on some cards every virtual function is one.
_IN_A_WARNING: Final = 8

# How an argument for QEMU names a mediated device.
_UUID_IN_SYSFS = re.compile(rf'/sys/[^\s,"\']*/({vocabulary.UUID.pattern})')


class Mdev(typed_kind.TypedKind):
    """The device kind ``mdev``."""

    name = 'mdev'
    form = guest_xml.MDEV

    def __init__(self, conf: Any, hypervisor: connection.Connection) -> None:
        super().__init__(conf, hypervisor, type_options.read_mdevs)
        self._waiting: _Waiting = {}            # as the last stock had them
        self._failing: set[str] = set()         # parents that could not make a device when they were last asked
        self.devices = mdev_devices.Devices(hypervisor, mdev_sysfs.Kernel())
        self.patience = busy.Patience()
        self.removal = mdev_removal.Removal(self.devices, self.patience, self.options.release_wait_s)

    def own_path(self, assignment: DeviceAssignment) -> str | None:
        return os.path.join(self.devices.kernel.directory, assignment.identifier)

    def possible_parents(self) -> Collection[str]:
        kernel = self.devices.kernel
        return [nodedev_xml.name_of(kernel.subsystem(address), address) for address in kernel.parents()]

    def migration_types(self) -> Sequence[MigrationType]:
        parents, kernel = self.devices.parents(), self.devices.kernel
        # libvirt does not know all virtual parents that the kernel has, and devices of unknown ones may be in stock.
        there = {*parents, *(parents.of(nodedev_xml.ROOT_DEVICE, address) for address in kernel.parents())}
        found = []
        for parent in sorted(there, key=lambda parent: parent.name):
            address = parent.address or parent.name
            for mdev_type in self.options.types_of(*mdev_devices.names(parent)):
                directory = kernel.type_path(address, mdev_type.id)
                if os.path.isdir(directory) or mdev_type.id in {made.id for made in parent.types}:
                    named = MigrationType(self.name, parent.name, mdev_type.id)
                    found.append(self._attributes.read(kernel.root, named, directory, kernel.parent_path(address)))
        return found

    # -- stock -------------------------------------------------------------------------------------------------

    def stock(self) -> api.Stock:
        parents = self.devices.parents()
        devices: list[InventoryDevice] = []
        found: dict[str, list[Device]] = {}
        everything = self.devices.all(parents)
        counts, waiting = _counts(everything), _waiting(everything)
        self._waiting = waiting
        silences = self._silences(parents)
        for device in everything:
            found.setdefault(device.uuid, []).append(device)
        for same in found.values():
            # One UUID may be defined on several parents, and exist on one.
            device = next((device for device in same if device.active), same[0])
            if not device.active and parents.named(device.parent.name) is None:
                # It does not exist, and nobody can say whether there is room for it.
                continue
            for mdev_type in self.options.types_of(*mdev_devices.names(device.parent)):
                if mdev_type.id == device.type:
                    devices.append(self._inventory_device(
                        device, mdev_type, parents, waiting, silences))
        strangers = self._strangers(everything)
        capacities = [capacity if capacity.available or capacity.parent not in strangers else capacity._replace(
            taken_by=f'mdev/{strangers[capacity.parent][0].uuid} of a type that is not enabled there takes it')
                      for capacity in self._capacities(parents, counts, waiting, silences)]
        taking = {device.uuid: (
            f'it takes the room of its parent {capacity.parent}, which can make no {capacity.device_type}: its type '
            f'{device.type} is not enabled there. Enable that type, or remove the device if nobody has it: mdevctl '
            f'stop --uuid {device.uuid}') for capacity in capacities if capacity.taken_by
            for device in strangers.get(capacity.parent, ())}
        taking |= {capacity.parent: capacity.taken_by for capacity in capacities
                   if capacity.taken_by and capacity.parent not in strangers}
        self.warn(self._types_that_nothing_makes(parents, {capacity.device_type for capacity in capacities}
                                                 | counts.keys()) | self._addresses_without_parents(parents))
        return api.Stock(tuple(sorted(devices)), tuple(capacities), faults=tuple(
            Fault(DeviceKey(self.name, name), type_options.MDEV_ENABLED, problem)
            for name, problem in sorted({**taking, **silences, **parents.problems, **{
                os.path.basename(path): f'mdevctl cannot read {path}, and lists no definition of this host until it is '
                'repaired or removed' for path in mdevctl.broken()}}.items())))

    def _strangers(self, everything: Iterable[Device]) -> Mapping[str, Sequence[Device]]:
        """Find the idle devices whose type the options do not enable at their parent, by the parent's name."""
        found: dict[str, list[Device]] = {}
        for device in everything:
            allowed = self.options.types_of(*mdev_devices.names(device.parent)) if device.active else ()
            if allowed and device.type not in {one.id for one in allowed} and not self._is_open(device.uuid):
                found.setdefault(device.parent.name, []).append(device)
        return found

    def _is_open(self, uuid: str) -> bool:
        try:
            return self.devices.kernel.is_open(uuid)
        except OSError:
            return False                        # for people only, who look before they remove it

    def _functions(self) -> pci_sysfs.Tree:
        return pci_sysfs.Tree(self.devices.kernel.root)

    def _serial_of(self, parent: nodedev_xml.Parent) -> str:
        return self._serials.of(self._functions(), _pci_address(parent))

    def _silences(self, parents: Iterable[nodedev_xml.Parent]) -> Mapping[str, str]:
        """Find the parents that do not answer on their bus, with what shows that."""
        functions = self._functions()
        return {parent.name: silence for parent in parents
                if parent.pci and parent.address and self.options.types_of(*mdev_devices.names(parent))
                and (silence := functions.silence(parent.address)) is not None}

    def _types_that_nothing_makes(self, parents: mdev_devices.Parents, there: Container[str]) -> dict[object, str]:
        """Return warnings. The option may be wrong, or a card's driver may make its types later."""
        types = [made for parent in parents for made in parent.types]
        makes = ', '.join(sorted({made.id for made in types})) or 'nothing'
        why_not = {made.id: _NOT_MADE[made.device_api] for made in types if made.device_api in _NOT_MADE}
        return {name: f'{type_options.MDEV_ENABLED} = {name}: ' + (
            why_not[name] if name in why_not else 'no parent '
            + (f'that [{options.mdev_group(name)}] device_addresses names' if one.addresses else 'of this host')
            + f' makes it; those of this host make {makes}')
                for name, one in self.options.types.items() if name not in there}

    def _addresses_without_parents(self, parents: mdev_devices.Parents) -> dict[object, str]:
        """Return warnings. A card may come later."""
        kernel = self.devices.kernel
        there = sorted({*parents, *(parents.of(nodedev_xml.ROOT_DEVICE, address) for address in kernel.parents())},
                       key=lambda parent: parent.name)
        known = {name for parent in there for name in mdev_devices.names(parent)}
        names = [parent.address if parent.pci and parent.address else parent.name for parent in there]
        has = ', '.join(names[:_IN_A_WARNING] + ['…'] * (len(names) > _IN_A_WARNING)) or 'none'
        return {(name, address): f'[{options.mdev_group(name)}] device_addresses = {address}: this host has no such '
                f'parent of mediated devices; it has {has}'
                for name, one in self.options.types.items() for address in one.addresses.difference(known)}

    def _inventory_device(self, device: Device, mdev_type: type_options.TypeOptions, parents: mdev_devices.Parents,
                          waiting: _Waiting, silences: Mapping[str, str]) -> InventoryDevice:
        parent = device.parent
        unhealthy, device_api = silences.get(parent.name), self._device_api(device)
        if unhealthy is None and device_api is None:
            # libvirt is late after a boot. Until it knows the parent, nobody knows all of the device.
            unhealthy = (f'libvirt does not know its parent {parent.name} yet' if parents.named(parent.name) is None
                         else f'its parent {parent.name} does not list its type {device.type}')
        elif unhealthy is None and not device.active:
            # The first ones get what room there is.
            of_parent = waiting.get((parent.name, device.type), [])
            if device.uuid not in of_parent:
                unhealthy = 'its UUID is defined more than once, and mdevctl starts none of them'
            elif device.uuid not in of_parent[:_available(parent, device.type)]:
                unhealthy = 'it is defined and not started, and its parent has no room for it'
        return InventoryDevice(
            self.name, device.uuid, parent.name, mdev_type.resource_class, parent.name, parent.numa_node,
            self._details_text(parent, device.type, device_api or _DEVICE_API, device.iommu_group, vocabulary.EXISTING),
            unhealthy, self.options.use_existing and device_api != _SUBCHANNEL)

    def _device_api(self, device: Device) -> str | None:
        """Return the interface of a device; None if neither libvirt nor the kernel says it."""
        found = next((made.device_api for made in device.parent.types if made.id == device.type), None)
        return found or self.devices.kernel.device_api(device.parent.address or device.parent.name, device.type)

    def _capacities(self, parents: mdev_devices.Parents, counts: Mapping[str, int], waiting: _Waiting,
                    silences: Mapping[str, str], of: str | None = None) -> list[Capacity]:
        """Return the capacities that the parents have left, beside those devices that are defined and not started.

        ``max_instances`` limits all parents together, as in Nova: in their order, those that failed last, each counts
        with all of its room, or with none if that is more than is left of the limit.

        :param counts: how many devices of each type the host has
        :param of: return only the capacities of the parent with this name; None for all parents
        """
        found = []
        left = {mdev_type.id: max(0, mdev_type.max_instances - counts.get(mdev_type.id, 0))
                for mdev_type in self.options.types.values() if mdev_type.max_instances is not None}
        for parent in sorted(parents, key=lambda parent: parent.name in self._failing):
            allowed = {mdev_type.id: mdev_type for mdev_type in self.options.types_of(*mdev_devices.names(parent))}
            for made in parent.types:
                if made.id not in allowed or made.device_api in _NOT_MADE:
                    continue
                available = 0 if parent.name in silences else max(
                    0, made.available - len(waiting.get((parent.name, made.id), ())))
                tight = ''
                if available > (most := left.get(made.id, available)):
                    tight = (f'[{options.mdev_group(made.id)}] max_instances leaves {most} of the {available} that it '
                             'could make, and a parent makes all or none') if most else ''
                    available = 0
                if made.id in left:
                    left[made.id] -= available
                if of in (None, parent.name):
                    found.append(Capacity(
                        self.name, parent.name, made.id, parent.name, allowed[made.id].resource_class,
                        parent.numa_node, available,
                        self._details_text(parent, made.id, made.device_api, None, vocabulary.CREATED), tight))
        return found

    # -- usage -------------------------------------------------------------------------------------------------

    def addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return domain.mdev_uuids

    def other_addresses(self, domain: domain_xml.Domain) -> Sequence[str]:
        return [found for text in domain.arguments for found in _UUID_IN_SYSFS.findall(text.lower())]

    def identify(self, addresses: Iterable[str]) -> Mapping[str, str | None]:
        # The UUID is the device, whether it exists at the moment or not.
        return {address: address for address in addresses}

    # -- realize -----------------------------------------------------------------------------------------------

    def check_free(self, assignment: DeviceAssignment) -> None:
        self.removal.check_closed(assignment)       # it may exist: somebody made it, or an earlier call

    def realize(self, assignment: DeviceAssignment) -> Realized:
        if assignment.details.device_api == _SUBCHANNEL:
            raise exception.RealizeFailed(*assignment.key, _NOT_MADE[_SUBCHANNEL])
        try:
            device = self._make_ready(assignment)
        except (exception.RealizeFailed, connection.Refused):
            if not self._remove_lost_definitions(assignment):
                raise
            device = self._make_ready(assignment)
        # This call changed the parent, so read the parent anew. Read other devices only if an option limits the number.
        limited = any(mdev_type.max_instances is not None for mdev_type in self.options.types.values())
        parents = self.devices.parents() if limited else self.devices.parent(device.parent.name)
        device = device._replace(parent=parents.of(device.parent.name, device.parent.address))
        counts = _counts(self.devices.all(parents) if limited else ())
        waiting = {(parent, device_type): [
            uuid for uuid in uuids if uuid != assignment.identifier and not self.devices.kernel.has(uuid)]
            for (parent, device_type), uuids in self._waiting.items() if limited or parent == device.parent.name}
        return Realized(
            assignment.key,
            self._realized_text(device, assignment.details),
            tuple(self._capacities(parents, counts, waiting, self._silences(parents), device.parent.name)))

    def _realized_text(self, device: Device, recorded: MdevDetails) -> str:
        """Return the details of a device that is ready. A view that does not tell its parent replaces nothing."""
        device_api = self._device_api(device)
        if device_api is None:
            return _text_of(recorded.type, recorded.parent, recorded.parent_address, recorded.device_api,
                            device.iommu_group, recorded.origin, recorded.parent_serial)
        return self._details_text(device.parent, device.type, device_api, device.iommu_group, recorded.origin)

    def _details_text(self, parent: nodedev_xml.Parent, device_type: str, device_api: str, iommu_group: int | None,
                      origin: str) -> str:
        return _text_of(device_type, parent.name, _pci_address(parent), device_api, iommu_group, origin,
                        self._serial_of(parent))

    def _make_ready(self, assignment: DeviceAssignment) -> Device:
        parents = self.devices.parent(assignment.details.parent)
        device = self._find(assignment, parents)
        self._check_parent(assignment, device, parents)
        handle: connection.NodeDevice | None
        if assignment.details.origin == vocabulary.CREATED:
            handle = self._define(assignment, device, parents)
        elif device is not None:
            handle = device.handle
        else:
            raise exception.DeviceGone(*assignment.key, 'it existed when it was chosen')
        if device is not None and device.active:
            return device
        assert handle is not None               # an inactive device is defined, so libvirt knows it
        try:
            self._start(assignment, handle)
        except exception.DriverError:
            if device is None:
                self._undo(handle)
            raise
        return self._find_again(assignment)

    def _check_parent(self, assignment: DeviceAssignment, device: Device | None, parents: mdev_devices.Parents) -> None:
        """Check that the parent of a device that has to be made has not certainly left.

        :raises ParentGone: it has, and no definition of the device is left
        """
        wanted = assignment.details
        # The name of a type begins with that of the driver that makes it.
        if (wanted.origin == vocabulary.CREATED and (device is None or not device.active) and wanted.parent_address
                and parents.assigned(assignment) is None and self._functions().has_left(
                    wanted.parent_address, wanted.type.partition('-')[0])):
            self.removal.remove(assignment)
            raise exception.ParentGone(self.name, wanted.parent, wanted.type, 'nothing of it is at its address')

    def _find(self, assignment: DeviceAssignment, parents: mdev_devices.Parents) -> Device | None:
        """Find the assignment's device; None if there is none.

        :raises DeviceGone: another device has its UUID
        """
        found = self.devices.of(assignment.identifier, parents)
        for device in sorted(found, key=lambda device: not device.active):
            if mdev_devices.is_of(assignment, device, parents):
                return device
        if found:
            raise exception.DeviceGone(*assignment.key, 'a device of another type or parent has its UUID')
        return None

    def _find_again(self, assignment: DeviceAssignment) -> Device:
        """Read a device that was started. The kernel knows it at once."""
        def started() -> Device | None:
            device = self._find(assignment, self.devices.parent(assignment.details.parent))
            return device if device is not None and device.active else None

        found = self.patience.wait_for(started)
        if found is None:
            raise exception.RealizeFailed(*assignment.key, 'it is not there after its start')
        return found

    def _define(self, assignment: DeviceAssignment, device: Device | None,
                parents: mdev_devices.Parents) -> connection.NodeDevice:
        """Define a device, if that is still to do, and let it start with the host."""
        wanted = assignment.details
        if device is None:
            parent = parents.assigned(assignment)
            if parent is None:
                raise exception.RealizeFailed(*assignment.key, f'its parent {wanted.parent} is not there')
            if not _available(parent, wanted.type):
                raise exception.ParentFull(self.name, parent.name, wanted.type, 'it has no room for more')
            for silence in self._silences((parent,)).values():
                raise exception.RealizeFailed(*assignment.key, silence)
        handle = None if device is None else self.devices.definition(assignment, parents)
        # If libvirt still has a handle for a removed definition, it has not heard of the removal yet. Where this
        # process cannot see mdevctl's definitions, a refusal says nothing about that: the guest needs the device, not
        # the start with the host.
        if handle is not None and (self._autostart(assignment, handle) or not mdevctl.lacks(assignment.identifier)):
            return handle
        try:
            made = self._define_anew(assignment, parents)
        except connection.Refused:
            if handle is None:
                raise
            return handle                       # mdevctl keeps its definitions elsewhere, and has this one
        self._autostart(assignment, made)
        return made

    def _autostart(self, assignment: DeviceAssignment, handle: connection.NodeDevice) -> bool:
        """Let a device start with the host. This is optional: the manager's start makes devices that a boot did not."""
        try:
            self.patience.settled(handle.set_autostart)
        except connection.Refused as error:
            LOG.warning('mdev %(identifier)s will not start with the host, but with its guest: %(error)s',
                        {'identifier': assignment.identifier, 'error': error})
            return False
        return True

    def _define_anew(self, assignment: DeviceAssignment, parents: mdev_devices.Parents) -> connection.NodeDevice:
        wanted = assignment.details
        parent = parents.assigned(assignment)
        document = nodedev_xml.definition(assignment.identifier, wanted.type,
                                          wanted.parent if parent is None else parent.name)
        try:
            return self.hypervisor.define_node_device(document)
        except connection.Refused:
            # libvirt did not know a definition of mdevctl yet, and mdevctl refuses to define a device twice.
            if not mdevctl.parents_of(assignment.identifier) or mdevctl.broken():
                raise
            handle = self.patience.wait_for(lambda: self.devices.definition(assignment, parents))
            if handle is None:
                raise
            return handle

    def _start(self, assignment: DeviceAssignment, handle: connection.NodeDevice) -> None:
        wanted = assignment.details
        self._failing.discard(wanted.parent)
        try:
            self.patience.settled(handle.start, lambda: self.devices.kernel.has(assignment.identifier))
        except connection.Refused as error:
            if error.meaning is connection.Meaning.EXISTS:
                # The host started a device meanwhile, as it does at boot. The caller checks that it is this device.
                return
            parent = self.devices.parent(wanted.parent).assigned(assignment)
            if error.meaning is connection.Meaning.FULL or (
                    parent is not None and not _available(parent, wanted.type)):
                raise exception.ParentFull(self.name, wanted.parent, wanted.type, error.reason) from error
            self._failing.add(wanted.parent)
            raise

    def _undo(self, handle: connection.NodeDevice) -> None:
        """Remove a definition again. If that fails, the next realize or unclaim of the device finds it."""
        try:
            self.patience.settled(handle.undefine)
        except exception.DriverError as error:
            LOG.warning('The definition of %s cannot be removed now: %s', handle.name, error)

    def _remove_lost_definitions(self, assignment: DeviceAssignment) -> bool:
        """Put away the definitions that are empty or torn: mdevctl uses no definition while such files are there.

        The device's own one goes at once, since nobody else writes it. Others may just be written.

        :returns: whether there were any
        """
        broken, lost = mdevctl.broken(), mdevctl.lost()
        own = [path for path in broken if os.path.basename(path) == assignment.identifier and path not in lost]
        if not broken:
            return False
        LOG.warning('Definitions of mediated devices are empty or torn, and mdevctl uses no definition while these '
                    'files are there: %s. Files that nobody writes now are removed, or renamed if they have any '
                    'content; each device of a row is defined again when it is realized: %s',
                    ', '.join(broken), ', '.join((*own, *lost)) or 'none')
        try:
            for path in own:
                privileged.remove_mdev_definition(os.path.basename(os.path.dirname(path)), assignment.identifier)
            if lost:
                privileged.remove_lost_definitions()
        except OSError as error:
            LOG.error('The destroyed definitions of mediated devices cannot be removed: %s', error)
            return False
        if not own and not lost:
            return False
        # libvirt can read the other definitions now.
        self.patience.wait_for(lambda: not mdevctl.parents_of(assignment.identifier)
                               or self.devices.definition(assignment, self.devices.parents()))
        return True

    def unclaim(self, assignment: DeviceAssignment, lock_fd: int) -> None:
        self.removal.remove(assignment)
        self._waiting = {key: [uuid for uuid in uuids if uuid != assignment.identifier]
                         for key, uuids in self._waiting.items()}

    # -- guest -------------------------------------------------------------------------------------------------

    def guest_elements(self, assignments: Sequence[DeviceAssignment]) -> Sequence[str]:
        parents = {name: self.devices.parent(name) for name in {one.details.parent for one in assignments}}
        return [self._guest_element(assignment, parents[assignment.details.parent]) for assignment in assignments]

    def _guest_element(self, assignment: DeviceAssignment, parents: mdev_devices.Parents) -> str:
        device = self._find(assignment, parents)
        if device is None:
            raise exception.DeviceGone(*assignment.key, 'no device has its UUID')
        if not device.active:
            raise exception.DeviceGone(*assignment.key, 'it is defined and not started')
        return (f"<hostdev mode='subsystem' type='mdev' model={saxutils.quoteattr(assignment.details.device_api)}>"
                f"<source><address uuid='{assignment.identifier}'/></source></hostdev>")


def _counts(devices: Iterable[Device]) -> collections.Counter[str]:
    """Count the devices of each type."""
    return collections.Counter(device.type for device in devices)


# The UUIDs of devices, sorted, by the names of their parents and by their types.
_Waiting: TypeAlias = Mapping[tuple[str, str], Sequence[str]]


def _waiting(devices: Iterable[Device]) -> _Waiting:
    """Find the devices that are defined and not started, and that can be started where their parent has room."""
    of_uuid: dict[str, list[Device]] = {}
    for device in devices:
        of_uuid.setdefault(device.uuid, []).append(device)
    found: dict[tuple[str, str], list[str]] = {}
    for uuid, same in sorted(of_uuid.items()):
        if len(same) == 1 and not same[0].active:
            found.setdefault((same[0].parent.name, same[0].type), []).append(uuid)
    return found


def _pci_address(parent: nodedev_xml.Parent) -> str | None:
    return parent.address if parent.pci else None


def _available(parent: nodedev_xml.Parent, device_type: str) -> int:
    return next((made.available for made in parent.types if made.id == device_type), 0)


# Every audit needs the text for every device, and the text stays the same.
@functools.lru_cache(maxsize=4096)
def _text_of(device_type: str, parent: str, parent_address: str | None, device_api: str,
             iommu_group: int | None, origin: str, parent_serial: str) -> str:
    return details.to_text(MdevDetails(
        type=device_type, parent=parent, parent_address=parent_address, device_api=device_api,
        iommu_group=iommu_group, origin=origin, parent_serial=parent_serial))
