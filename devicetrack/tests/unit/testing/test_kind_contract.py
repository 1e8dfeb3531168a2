"""Our own device kinds keep the contract of device kinds."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import fixtures

from devicetrack.testing import nvme
from devicetrack.testing import pci as pci_hosts
from devicetrack.testing import vgpu
from devicetrack.testing.kinds import contract
from devicetrack.testing.kinds import world
from devicetrack.tests import base
from devicetrack.tests.unit.virt import mdev_node
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt import root
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import pci
from devicetrack.virt.libvirt.kinds import vf
from devicetrack.virt.libvirt.kinds import vpmem

SIZE = 8 << 20


def refuse(*_arguments: Any, **_options: Any) -> Any:
    raise PermissionError(1, 'Operation not permitted')


class VPMEMWorld(world.KindWorld):
    """Files that stand for namespaces."""

    kind_class = vpmem.VPMEM
    devices = ('ns0', 'ns1')
    numa = {'ns0': None}

    def make_host(self) -> None:
        self.directory = self.useFixture(fixtures.TempDir()).path
        for name in self.devices:
            self._file(name)
        self.configuration.set('libvirt', pmem_namespaces=[f'4GB:{"|".join(self.devices)}'])
        self.configuration.set('devicetrack_vpmem', directory=self.directory, wipe_wait_s=0)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _file(self, name: str) -> None:
        with open(self._path(name), 'wb') as file:
            file.truncate(SIZE)

    def remove(self, identifier: str) -> None:
        os.unlink(self._path(identifier))

    def replace(self, identifier: str) -> None:
        self._file('new')
        os.rename(self._path('new'), self._path(identifier))
        self.write(identifier)

    def write(self, identifier: str) -> None:
        with open(self._path(identifier), 'r+b') as file:
            file.write(b'a secret')

    def is_clean(self, identifier: str) -> bool:
        with open(self._path(identifier), 'rb') as file:
            return not any(file.read())

    def other_addresses(self, identifier: str) -> list[str]:
        return [f'{self.directory}//./{identifier}']

    def unreadable(self) -> None:
        os.rename(self.directory, f'{self.directory}.away')

    def without_privileges(self) -> None:
        self.useFixture(fixtures.MonkeyPatch('devicetrack.virt.libvirt.namespaces.DirectorySource.open', refuse))


class MdevWorld(world.KindWorld):
    """Mediated devices of a parent that makes more of them."""

    kind_class = mdev.Mdev

    def make_host(self) -> None:
        self.node = mdev_node.Node(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch(f'{mdevctl.__name__}.DIRECTORY', self.node.definitions))
        hypervisor: Any = self.node
        self.hypervisor = hypervisor
        self.configuration.set('devicetrack_mdev', release_wait_s=0)
        self.configuration.set('devices', enabled_mdev_types=['mtty-2'])
        vfio = self.useFixture(fixtures.TempDir()).path
        pathlib.Path(vfio, '7').touch()
        self.useFixture(fixtures.MonkeyPatch(f'{root.__name__}.VFIO', vfio))
        self.refused = (lambda: privileged.remove_mdev('../x'), lambda: privileged.remove_mdev_definition('..', '../x'))
        self.devices = [self.node.add('mtty-2').identifier for _number in range(2)]
        self.numa = dict.fromkeys(self.devices)

    def adjust(self, kind: api.DeviceKind) -> None:
        assert isinstance(kind, mdev.Mdev)
        kind.devices.kernel, kind.patience.settle_s = mdev_sysfs.Kernel(self.node.sysfs), 0.0

    def remove(self, identifier: str) -> None:
        device, = (one for one in self.node.existing.values() if one.identifier == identifier)
        device.change(active=False, persistent=False)

    def replace(self, identifier: str) -> None:
        self.remove(identifier)
        self.node.add('mtty-1', identifier=identifier)

    def unreadable(self) -> None:
        def fail() -> Any:
            raise connection.Refused('virConnectListAllNodeDevices', 'no answer')

        self.node.mdev_parents = self.node.mdevs = fail         # type: ignore[method-assign]


class VFWorld(world.KindWorld):
    """Virtual functions of two cards that take vGPU types."""

    kind_class = vf.VF

    def make_host(self) -> None:
        self.cards = self.useFixture(vgpu.Cards())
        types = {'558': ('NVIDIA L40-1B', 2)}
        near, far = (self.cards.add(card, 1, types, numa_node=number)
                     for number, card in enumerate(('0000:3d:00.0', '0000:41:00.0')))
        self.devices = [*near, *far]
        self.numa = dict(zip(self.devices, (0, 1), strict=True))
        self.configuration.set('devicetrack_vf', sysfs_root=self.cards.root, enabled_types=['558'], release_wait_s=0)

    def reboot(self) -> None:
        super().reboot()
        self.cards.boot()

    def remove(self, identifier: str) -> None:
        self.cards.remove(identifier)

    def without_privileges(self) -> None:
        self.useFixture(fixtures.MonkeyPatch(f'{pci_privileged.__name__}.set_vgpu_type', refuse))


class PCIWorld(world.KindWorld):
    """Two disks, a card with its virtual functions, and functions of one IOMMU group."""

    kind_class = pci.PCI
    devices = ('0000:01:00.0', '0000:02:00.0')

    def make_host(self) -> None:
        self.host = self.useFixture(pci_hosts.PCIHost())
        self.controllers = self.useFixture(nvme.Controllers(self.host))
        self.disks = {}
        for number, address in enumerate(self.devices):
            self.host.add_nvme(address, f'S{number}', numa_node=number)
            self.disks[address] = self.controllers.add(address).namespaces[1]
        self.numa = {address: number for number, address in enumerate(self.devices)}
        card = self.host.add_igb('0000:03:00.0')
        self.parts = {card: self.host.make_vfs(card, 2)}
        shared = self.host.add_shared_group('0000:06:00.0', '0000:07')
        self.groups = {**dict.fromkeys(shared, 100), self.devices[0]: 1, self.devices[1]: 2}
        self.refused = (lambda: pci_privileged.unbind(self.host.root, '../x'),
                        lambda: pci_privileged.set_driver_override(self.host.root, self.devices[0], 'x\ny'),
                        lambda: disk_nodes.open_disk(self.host.root, self.devices[0], '../sda', 4096, True))
        self.configuration.set('pci', device_spec=list(map(json.dumps, (
            {'vendor_id': '1b36', 'product_id': '0010'}, {'vendor_id': '8086'}, {'address': '*:07:*.*'}))))
        self.configuration.set('devicetrack_pci', sysfs_root=self.host.root, release_wait_s=0, functions=['all'],
                               cleaning=[json.dumps({'policy': 'zero', 'vendor_id': '1b36', 'product_id': '0010'})])

    def adjust(self, kind: api.DeviceKind) -> None:
        assert isinstance(kind, pci.PCI)
        kind.host_use = self.host.use

    def remove(self, identifier: str) -> None:
        self.host.remove(identifier)

    def replace(self, identifier: str) -> None:
        self.host.remove(identifier)
        self.host.add_nvme(identifier, 'of somebody else')
        self.disks[identifier] = self.controllers.add(identifier).namespaces[1]
        self.write(identifier)

    def hide_identity(self, identifier: str) -> None:
        # In this boot it is known from before.
        self.reboot()
        number = self.devices.index(identifier)
        pathlib.Path(self.host.root, f'class/nvme/nvme{number}/serial').unlink()

    def use(self, identifier: str) -> None:
        self.mounts = pathlib.Path(self.host.proc, '1', 'mountinfo')
        self.before = self.mounts.read_text()
        self.host.mount('nvme0n1', '/srv')

    def let_go(self, identifier: str) -> None:
        self.mounts.write_text(self.before)

    def write(self, identifier: str) -> None:
        if identifier not in self.disks:
            raise world.NotOnThisHost('bytes on functions that are no disks')
        self.disks[identifier].fill(b'a secret'.ljust(16))

    def is_clean(self, identifier: str) -> bool:
        return not any(self.disks[identifier].content)

    def without_privileges(self) -> None:
        self.useFixture(fixtures.MonkeyPatch(f'{disk_nodes.__name__}.open_disk', refuse))
        for name in ('unbind', 'probe', 'reset', 'set_driver_override'):
            self.useFixture(fixtures.MonkeyPatch(f'{pci_privileged.__name__}.{name}', refuse))


class VPMEMTestCase(contract.KindContract, base.TestCase):
    world_class = VPMEMWorld


class MdevTestCase(contract.KindContract, base.TestCase):
    world_class = MdevWorld


class VFTestCase(contract.KindContract, base.TestCase):
    world_class = VFWorld


class PCITestCase(contract.KindContract, base.TestCase):
    world_class = PCIWorld
