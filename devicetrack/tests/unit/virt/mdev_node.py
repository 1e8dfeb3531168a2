"""Mediated devices on a node-device driver in memory that answers in libvirt's words."""

from __future__ import annotations

import os
from typing import Any
import uuid

from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import data
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt.kinds import mdev

PARENT = 'mtty_mtty'
COSTS = {'mtty-1': 1, 'mtty-2': 2}


class Node:
    """The node devices of a host with the kernel's sample driver mtty: 24 units, one or two for a device.

    Texts are those of libvirt 9.0 and 11.3. ``in_use`` are UUIDs that a process has open; ``fail`` has an error for
    each call that shall not succeed.
    """

    def __init__(self) -> None:
        self.existing: dict[str, Any] = {}
        self.in_use: set[str] = set()
        self.fail: dict[str, Exception] = {}
        self.units = 24
        self.lists = 0
        self.done: list[tuple[str, str]] = []

    def free(self) -> int:
        return self.units - sum(COSTS[device.type] for device in self.existing.values() if device.active)

    def called(self, call: str, identifier: str) -> None:
        self.done.append((call, identifier))
        if call in self.fail:
            raise self.fail[call]

    def add(self, device_type: str = 'mtty-1', **facts: Any) -> Any:
        device = NodeDevice(self, facts.pop('identifier', None) or str(uuid.uuid4()), device_type)
        for name, value in facts.items():
            assert hasattr(device, name), name
            setattr(device, name, value)
        self.existing[device.name] = device
        return device

    # What the kind calls.

    def mdev_parents(self) -> list[Any]:
        return [ParentDevice(self)]

    def mdevs(self) -> list[Any]:
        self.lists += 1
        return list(self.existing.values())

    def node_device(self, name: str) -> Any:
        return self.existing.get(name)

    def define_node_device(self, document: str) -> Any:
        found = nodedev_xml.parse_mdev(document.replace('<device>', '<device><name>new</name>'))
        self.called('define', found.uuid)
        if found.parent != PARENT:
            raise connection.Refused('virNodeDeviceDefineXML', f"invalid parent device '{found.parent}'")
        for device in self.existing.values():
            if device.identifier == found.uuid:
                device.persistent = True
                return device
        return self.add(found.type, identifier=found.uuid, active=False, persistent=True)


class ParentDevice:
    name = PARENT

    def __init__(self, node: Node) -> None:
        self.node = node

    def xml(self) -> str:
        return data.read('libvirt-9.0.0-nodedev-parent-virtual.xml').replace(
            '>24<', f'>{self.node.free()}<').replace('>12<', f'>{self.node.free() // 2}<')


class NodeDevice:
    def __init__(self, node: Node, identifier: str, device_type: str) -> None:
        self.node, self.identifier, self.type = node, identifier, device_type
        self.name = f'mdev_{identifier.replace("-", "_")}_mtty'
        self.parent, self.parent_address = PARENT, 'mtty'
        self.active, self.persistent, self.autostart = True, False, False

    def xml(self) -> str:
        return (f"<device><name>{self.name}</name><parent>{self.parent}</parent><capability type='mdev'>"
                f"<type id='{self.type}'/><uuid>{self.identifier}</uuid>"
                f'<parent_addr>{self.parent_address}</parent_addr>'
                f"<iommuGroup number='{7 if self.active else 0}'/></capability></device>")

    def is_active(self) -> bool:
        return self.active

    def is_persistent(self) -> bool:
        return self.persistent

    def start(self) -> None:
        self.node.called('start', self.identifier)
        if self.node.free() < COSTS[self.type]:
            raise connection.Refused(
                'virNodeDeviceCreate', 'internal error: Unable to start mediated device: Error: No available instances '
                f'of {self.type} on mtty', connection.Meaning.FULL)
        self.active = True

    def destroy(self) -> None:
        self.node.called('destroy', self.identifier)
        if self.identifier in self.node.in_use:
            raise connection.Refused('virNodeDeviceDestroy', f"Unable to destroy '{self.name}': device in use",
                                     connection.Meaning.IN_USE)
        self.active = False
        if not self.persistent:
            del self.node.existing[self.name]

    def undefine(self) -> None:
        self.node.called('undefine', self.identifier)
        self.persistent = False
        if not self.active:
            del self.node.existing[self.name]

    def set_autostart(self) -> None:
        self.node.called('autostart', self.identifier)
        self.autostart = True


class MdevTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.node = Node()
        self.instance = str(uuid.uuid4())
        self.kind = self.make_kind()

    def make_kind(self, **options: Any) -> mdev.Mdev:
        self.configuration.set('devicetrack_mdev', release_wait_s=options.pop('release_wait_s', 0))
        self.configuration.set('devices', enabled_mdev_types=options.pop('types', ['mtty-2']), **options)
        hypervisor: Any = self.node
        kind = mdev.Mdev(self.conf, hypervisor)
        kind.kernel, kind.settle_s = mdev_sysfs.Kernel(self.temp_dir()), 0.0
        return kind

    def in_kernel(self, identifier: str, device_type: str = 'mtty-2', group: int = 7) -> str:
        """Let the kernel have a device, as its sysfs has it."""
        path = os.path.join(self.kind.kernel.directory, identifier)
        os.mkdir(path)
        os.symlink(f'../mdev_supported_types/{device_type}', os.path.join(path, 'mdev_type'))
        os.symlink(f'../../../../../kernel/iommu_groups/{group}', os.path.join(path, 'iommu_group'))
        return path

    def to_create(self, identifier: str | None = None) -> Any:
        capacity, = self.kind.stock().capacities
        return contract.assignment(self.instance, 'mdev', identifier or str(uuid.uuid4()), PARENT, capacity.details)

    def adopted(self, device: Any) -> Any:
        found, = (found for found in self.kind.stock().devices if found.identifier == device.identifier)
        return contract.assignment(self.instance, 'mdev', found.identifier, PARENT, found.details)
