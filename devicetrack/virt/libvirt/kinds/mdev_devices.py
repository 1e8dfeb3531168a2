"""Reads the mediated devices of a host and their parents from the kernel and from libvirt.

The kernel knows which devices exist. libvirt learns of them by events, and its list is late under load: it lacks new
devices, has some that are gone, and keeps a device that came and went too fast until the daemon restarts. Before 10.1
libvirt shows the type of the definition, which somebody may have changed. libvirt knows which devices are defined; the
kernel does not know definitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import things
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt.kinds import type_options


class Parents:
    """The parents that libvirt knows.

    ``problems`` says, by name, which node devices cannot be read.

    :param kernel: tells of the others
    """

    def __init__(self, parents: Iterable[nodedev_xml.Parent], kernel: mdev_sysfs.Kernel) -> None:
        self._parents = {parent.name: parent for parent in sorted(parents)}
        self._by_address = {parent.address: parent for parent in self._parents.values() if parent.address}
        self._kernel = kernel
        self.problems: dict[str, str] = {}

    def __iter__(self) -> Any:
        return iter(self._parents.values())

    def named(self, name: str) -> nodedev_xml.Parent | None:
        return self._parents.get(name)

    def of(self, name: str, address: str | None) -> nodedev_xml.Parent:
        """Find the parent of a device, by the parent's name or address.

        A parent that libvirt does not know yet, or that is away, has no types. It gets the name that libvirt will give
        it, so that it keeps its name when libvirt hears of it: libvirt is late after a boot. If nobody can tell that
        name, its address is its name.
        """
        if name in self._parents:
            return self._parents[name]
        if address in self._by_address:
            return self._by_address[address]
        if name == nodedev_xml.ROOT_DEVICE and address:
            name = nodedev_xml.name_of(self._kernel.subsystem(address), address)
        is_pci = address is not None and things.address_in(address) == address
        return nodedev_xml.Parent(name, address, is_pci, self._kernel.numa_node(address) if address else None, ())

    def assigned(self, assignment: DeviceAssignment) -> nodedev_xml.Parent | None:
        """Find the parent of an assignment's device; None if libvirt does not know it."""
        return self.named(self.of(assignment.details.parent, assignment.details.parent).name)


def names(parent: nodedev_xml.Parent) -> frozenset[str]:
    """Return the names that an option may use for a parent."""
    return frozenset(type_options.normal_address(name) for name in (parent.name, parent.address) if name)


class Device(NamedTuple):
    """A mediated device that exists (``active``) or is defined, or both.

    ``handle`` is libvirt's; None if libvirt does not know the device yet.
    """

    uuid: str
    type: str
    parent: nodedev_xml.Parent
    iommu_group: int | None
    active: bool
    handle: connection.NodeDevice | None


class Devices:

    def __init__(self, hypervisor: connection.Connection, kernel: mdev_sysfs.Kernel) -> None:
        self._hypervisor, self.kernel = hypervisor, kernel

    def parents(self) -> Parents:
        found, problems = [], dict[str, str]()
        for handle in self._hypervisor.mdev_parents():
            of_types: list[str] = []
            try:
                text = _xml(handle)
                parent = None if text is None else nodedev_xml.parse_parent(
                    text, f'node device {handle.name}', of_types)
            except (exception.InvalidDocument, connection.Refused) as error:
                problems[handle.name] = str(error)
                continue
            if of_types:
                problems[handle.name] = '; '.join(of_types)
            if parent is not None:
                found.append(parent)
        parents = Parents(found, self.kernel)
        parents.problems.update(problems)
        return parents

    def parent(self, name: str) -> Parents:
        """Read only the parent of this name; all parents if libvirt has none of this name.

        A host may have hundreds of parents: on some cards every virtual function is one.
        """
        handle = self._hypervisor.node_device(name)
        text = None if handle is None else _xml(handle)
        found = None if text is None else nodedev_xml.parse_parent(text, f'node device {name}', [])
        return self.parents() if found is None or found.name != name else Parents((found,), self.kernel)

    def all(self, parents: Parents) -> list[Device]:
        """List every mediated device. Several parents may define the same UUID; only one such device can exist.

        A node device that cannot be read is left out and gets a problem in ``parents``. If the kernel answers, it tells
        of the device, if the device exists.

        :raises InvalidDocument: a node device cannot be read, and nobody else tells of its device
        """
        return self._listed(parents, '', self.kernel.uuids(), parents.problems if self.kernel.answers else None)

    def of(self, uuid: str, parents: Parents) -> list[Device]:
        """List the devices with a UUID."""
        # libvirt's name begins with the UUID and may end in anything.
        listed = self._listed(parents, f'mdev_{uuid.replace("-", "_")}', (uuid,))
        return [device for device in listed if device.uuid == uuid]

    def definition(self, assignment: DeviceAssignment, parents: Parents) -> connection.NodeDevice | None:
        """Find libvirt's handle of the assignment's definition; None if libvirt knows none."""
        for device in self.of(assignment.identifier, parents):
            if device.handle is not None and is_of(assignment, device, parents) and device.handle.is_persistent():
                return device.handle
        return None

    def _listed(self, parents: Parents, start: str, there: Iterable[str],
                problems: dict[str, str] | None = None) -> list[Device]:
        found = []
        for handle in self._hypervisor.mdevs():
            if not handle.name.startswith(start):
                continue
            try:
                device = self._read(handle, parents)
            except (exception.InvalidDocument, connection.Refused) as error:
                if problems is None:
                    raise
                problems[handle.name] = str(error)
                continue
            if device is not None:
                found.append(device)
        seen = {device.uuid for device in found if device.active}
        unheard_of = (self._in_kernel(uuid, parents) for uuid in there if uuid not in seen)
        return found + [device for device in unheard_of if device is not None]

    def _in_kernel(self, uuid: str, parents: Parents) -> Device | None:
        made = self.kernel.read(uuid)
        if made is None:
            return None
        parent = parents.of(nodedev_xml.ROOT_DEVICE, made.parent_address)
        return Device(uuid, made.type, parent, made.iommu_group, True, None)

    def _read(self, handle: connection.NodeDevice, parents: Parents) -> Device | None:
        """Read the device of a handle; None if it neither exists nor is defined any more."""
        document = f'node device {handle.name}'
        try:
            mdev = nodedev_xml.parse_mdev(handle.xml(), document)
            made = self.kernel.read(mdev.uuid)
            if made is not None and mdev.parent_address in (None, made.parent_address):
                return Device(mdev.uuid, made.type, parents.of(mdev.parent, made.parent_address), made.iommu_group,
                              True, handle)
            if self.kernel.answers:
                # libvirt may list a definition for some time after it was removed.
                if not handle.is_persistent() or mdevctl.lacks(mdev.uuid):
                    return None
                active = False
            else:
                active = handle.is_active()
        except connection.Refused as error:
            if error.meaning is connection.Meaning.NO_SUCH_DEVICE:
                return None
            raise
        if mdev.type is None:
            raise exception.InvalidDocument(document, 'capability/type', 'missing')
        return Device(mdev.uuid, mdev.type, parents.of(mdev.parent, mdev.parent_address),
                      mdev.iommu_group if active else None, active, handle)


def _xml(handle: connection.NodeDevice) -> str | None:
    try:
        return handle.xml()
    except connection.Refused as error:
        if error.meaning is connection.Meaning.NO_SUCH_DEVICE:
            return None
        raise


def is_of(assignment: DeviceAssignment, device: Device, parents: Parents) -> bool:
    """Whether a device is the assignment's."""
    return ((device.uuid, device.type) == (assignment.identifier, assignment.details.type)
            and is_at(assignment, device.parent, parents))


def is_at(assignment: DeviceAssignment, parent: nodedev_xml.Parent, parents: Parents) -> bool:
    """Whether a parent is that of the assignment's device."""
    wanted: str = assignment.details.parent
    # While a parent is away, its devices have only its address.
    return parent.name == wanted or (
        parents.named(parent.name) is None and details.is_name_of(wanted, parent.address)) or (
        details.is_name_of(parent.name, wanted))
