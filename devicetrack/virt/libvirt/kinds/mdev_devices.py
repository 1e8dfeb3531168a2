"""The mediated devices of a host, by the kernel's word and libvirt's.

What exists is the kernel's word. libvirt hears of it by events, and what it lists is late under load: what it has not
heard of is missing, what went meanwhile is there, and of what came and went too fast something stays listed until the
daemon starts anew. Before 10.1 it shows the type of the definition, which somebody may have changed. What is defined
is libvirt's word, and the kernel knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from devicetrack import exception
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt.kinds.mdev_parents import Parents


class Device(NamedTuple):
    """A mediated device that exists (``active``) or is defined, or both.

    ``handle`` is libvirt's, None when libvirt has not heard of the device.
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
        found = []
        for handle in self._hypervisor.mdev_parents():
            text = _xml(handle)
            parent = None if text is None else nodedev_xml.parse_parent(text, f'node device {handle.name}')
            if parent is not None:
                found.append(parent)
        return Parents(found)

    def all(self, parents: Parents) -> list[Device]:
        """Every mediated device. There may be several of one UUID, defined on a parent each; one of them exists."""
        return self._listed(parents, '', self.kernel.uuids())

    def of(self, uuid: str, parents: Parents) -> list[Device]:
        """The devices with a UUID."""
        # The name is made of the UUID, and then it ends in anything.
        listed = self._listed(parents, f'mdev_{uuid.replace("-", "_")}', (uuid,))
        return [device for device in listed if device.uuid == uuid]

    def active(self, uuid: str, address: str | None, parents: Parents) -> Device | None:
        """The device with a UUID that exists, if that is known without a list of every device of the host.

        :param address: that of its parent
        """
        if self.kernel.answers:
            return self._in_kernel(uuid, parents)
        device = self.named(uuid, address, parents)
        return device if device is not None and device.active else None

    def named(self, uuid: str, address: str | None, parents: Parents) -> Device | None:
        """What libvirt has of a device, if it has a usual name.

        A name is but a hint: any other device, and none, are for the list to explain.
        """
        for name in nodedev_xml.mdev_names(uuid, address):
            handle = self._hypervisor.node_device(name)
            device = None if handle is None else self._read(handle, parents)
            if device is not None and device.uuid == uuid:
                return device
        return None

    def _listed(self, parents: Parents, start: str, there: Iterable[str]) -> list[Device]:
        found = [device for handle in self._hypervisor.mdevs() if handle.name.startswith(start)
                 and (device := self._read(handle, parents)) is not None]
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
        """The device of a handle, or None when it neither exists nor is defined any more."""
        document = f'node device {handle.name}'
        try:
            mdev = nodedev_xml.parse_mdev(handle.xml(), document)
            made = self.kernel.read(mdev.uuid)
            if made is not None and mdev.parent_address in (None, made.parent_address):
                return Device(mdev.uuid, made.type, parents.of(mdev.parent, made.parent_address), made.iommu_group,
                              True, handle)
            if self.kernel.answers:
                if not handle.is_persistent():
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
