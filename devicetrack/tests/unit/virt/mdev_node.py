"""Mediated devices on a node-device driver in memory that answers in libvirt's words."""

from __future__ import annotations

import os
import shutil
from typing import Any
import uuid

from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import data
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt.kinds import mdev

PARENT = 'mtty_mtty'
COSTS = {'mtty-1': 1, 'mtty-2': 2}


class Node:
    """The node devices of a host with the kernel's sample driver mtty: 24 units, one or two for a device.

    Texts are those of libvirt 9.0 and 11.3. ``in_use`` are UUIDs that a process has open; ``fail`` has an error for
    each call that shall not succeed. ``sysfs`` is where the kernel's list is, ``definitions`` that of mdevctl.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.sysfs, self.definitions = (os.path.join(directory, name) for name in ('sysfs', 'definitions'))
        self.devices = os.path.join(self.sysfs, 'bus/mdev/devices')
        os.makedirs(self.devices)
        os.mkdir(self.definitions)
        self.existing: dict[str, Any] = {}
        self.in_use: set[str] = set()
        self.fail: dict[str, Exception] = {}
        self.units = 24
        self.functions: list[str] = []          # parents beside PARENT, which make one device of mtty-2 each
        self.done: list[tuple[str, str]] = []

    def free(self) -> int:
        return self.units - sum(COSTS[device.type] for device in self.existing.values()
                                if device.active and device.parent not in self.functions)

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
        device.change()
        return device

    def clear(self) -> None:
        for device in list(self.existing.values()):
            device.change(active=False, persistent=False)
        self.existing.clear()

    # What the kind calls.

    def versions(self) -> None:
        """It is no QEMU."""

    def mdev_parents(self) -> list[Any]:
        return [ParentDevice(self), *(Function(self, name) for name in self.functions)]

    def mdevs(self) -> list[Any]:
        return [device for device in self.existing.values() if device.heard_of]

    def node_device(self, name: str) -> Any:
        device = self.existing.get(name)
        return device if device is not None and device.heard_of else None

    def define_node_device(self, document: str) -> Any:
        found = nodedev_xml.parse_mdev(document.replace('<device>', '<device><name>new</name>'))
        self.called('define', found.uuid)
        if found.parent != PARENT:
            raise connection.Refused('virNodeDeviceDefineXML', f"invalid parent device '{found.parent}'")
        for device in self.existing.values():
            if device.identifier == found.uuid:
                device.change(persistent=True)
                return device
        return self.add(str(found.type), identifier=found.uuid, active=False, persistent=True)


class ParentDevice:
    name = PARENT

    def __init__(self, node: Node) -> None:
        self.node = node

    def xml(self) -> str:
        return data.read('libvirt-9.0.0-nodedev-parent-virtual.xml').replace(
            '>24<', f'>{self.node.free()}<').replace('>12<', f'>{self.node.free() // 2}<')


class Function(ParentDevice):

    def __init__(self, node: Node, name: str) -> None:
        super().__init__(node)
        self.name = name

    def xml(self) -> str:
        used = sum(device.active and device.parent == self.name for device in self.node.existing.values())
        return data.read('libvirt-9.0.0-nodedev-parent-virtual.xml').replace(PARENT, self.name).replace(
            '>24<', '>0<').replace('>12<', f'>{1 - used}<')


class NodeDevice:
    """A mediated device as it is (``active``, ``persistent``), and as libvirt has ``heard_of`` it."""

    def __init__(self, node: Node, identifier: str, device_type: str) -> None:
        self.node, self.identifier, self.type = node, identifier, device_type
        self.name = f'mdev_{identifier.replace("-", "_")}_mtty'
        self.parent, self.parent_address = PARENT, 'mtty'
        self.shown_type = f"<type id='{device_type}'/>"
        self.active, self.persistent, self.autostart, self.heard_of = True, False, False, True

    def change(self, **facts: bool) -> None:
        """Let something be otherwise, in sysfs and with mdevctl too."""
        self.__dict__.update(facts)
        device = os.path.join(self.node.directory, self.parent_address, self.identifier)
        link = os.path.join(self.node.devices, self.identifier)
        if self.active and not os.path.exists(device):
            os.makedirs(device)
            os.symlink(f'../mdev_supported_types/{self.type}', os.path.join(device, 'mdev_type'))
            os.symlink('../../../../../kernel/iommu_groups/7', os.path.join(device, 'iommu_group'))
            os.symlink(device, link)
        elif not self.active and os.path.exists(device):
            os.unlink(link)
            shutil.rmtree(device)
        definition = os.path.join(self.node.definitions, self.parent_address, self.identifier)
        os.makedirs(os.path.dirname(definition), exist_ok=True)
        if self.persistent:
            with open(definition, 'w') as file:
                file.write('{}')
        elif os.path.exists(definition):
            os.unlink(definition)
        if not self.active and not self.persistent:
            self.node.existing.pop(self.name, None)

    def xml(self) -> str:
        return (f"<device><name>{self.name}</name><parent>{self.parent}</parent><capability type='mdev'>"
                f'{self.shown_type}<uuid>{self.identifier}</uuid>'
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
        self.change(active=True)

    def destroy(self) -> None:
        self.node.called('destroy', self.identifier)
        if self.identifier in self.node.in_use:
            raise connection.Refused('virNodeDeviceDestroy', f"Unable to destroy '{self.name}': device in use",
                                     connection.Meaning.IN_USE)
        self.change(active=False)

    def undefine(self) -> None:
        self.node.called('undefine', self.identifier)
        self.change(persistent=False)

    def set_autostart(self) -> None:
        self.node.called('autostart', self.identifier)
        self.autostart = True


class MdevTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.node = Node(self.temp_dir())
        self.patch(mdevctl, 'DIRECTORY', self.node.definitions)
        self.instance = str(uuid.uuid4())
        self.kind = self.make_kind()

    def make_kind(self, **options: Any) -> mdev.Mdev:
        self.configuration.set('devicetrack_mdev', release_wait_s=options.pop('release_wait_s', 0))
        self.configuration.set('devices', enabled_mdev_types=options.pop('types', ['mtty-2']), **options)
        hypervisor: Any = self.node
        kind = mdev.Mdev(self.conf, hypervisor)
        kind.devices.kernel, kind.patience.settle_s = mdev_sysfs.Kernel(self.node.sysfs), 0.0
        return kind

    def to_create(self, identifier: str | None = None) -> Any:
        capacity, = self.kind.stock().capacities
        return contract.assignment(self.instance, 'mdev', identifier or str(uuid.uuid4()), PARENT, capacity.details)

    def existing(self, device: Any) -> Any:
        found, = (found for found in self.kind.stock().devices if found.identifier == device.identifier)
        return contract.assignment(self.instance, 'mdev', found.identifier, PARENT, found.details)
