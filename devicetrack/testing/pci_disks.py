"""NVMe disks with bytes, on a host of :mod:`devicetrack.testing.pci`.

::

    host = self.useFixture(pci_disks.DiskHost())
    host.add_disk('0000:01:00.0', 'S1', 16 << 20)       # nvme0, with the namespace nvme0n1
    with open(host.content_of('0000:01:00.0'), 'r+b') as file:
        file.write(b'what a guest leaves')

The bytes of a disk are in a file, whichever driver has the disk.
:func:`devicetrack.virt.libvirt.disk_nodes.open_disk` opens that file. The disk's controller answers one question only:
which namespace it has.
"""

from __future__ import annotations

from collections.abc import Mapping
import errno
import os
from typing import Any
from typing import Final

import fixtures

from devicetrack.testing import pci
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import pci_privileged

_BLOCK_BYTES: Final = 512


class DiskHost(pci.PCIHost):
    """A host whose disks are NVMe controllers with one namespace each: number 1, with blocks of 512 bytes."""

    def _setUp(self) -> None:
        self._contents: dict[str, str] = {}
        super()._setUp()
        self._disks: str = self.useFixture(fixtures.TempDir()).path
        self._open_disk: Any = disk_nodes.open_disk
        self._ask: tuple[Any, Any] = nvme_controllers.read_controller, nvme_controllers.read_namespaces
        for module, name, made in ((disk_nodes, 'open_disk', self._opened),
                                   (nvme_controllers, 'read_controller', self._controller),
                                   (nvme_controllers, 'read_namespaces', self._namespaces)):
            self.useFixture(fixtures.MonkeyPatch(f'{module.__name__}.{name}', made))

    def add_disk(self, address: str, serial: str, size_bytes: int, group: int | None = None) -> str:
        """Add a disk of zeroes.

        :returns: its address
        """
        self._contents[address] = os.path.join(self._disks, address)
        with open(self._contents[address], 'xb') as file:
            file.truncate(size_bytes)
        return self.add_nvme(address, serial, group)

    def content_of(self, address: str) -> str:
        """The path of the file with the bytes of a disk."""
        return self._contents[address]

    def _add_controller(self, address: str, serial: str) -> None:
        super()._add_controller(address, serial)
        if address not in self._contents:
            return
        controller = self.path(address, f'nvme/{self.controller_of(address)}')
        namespace = os.path.join(controller, f'{self.controller_of(address)}n1')
        os.mkdir(os.path.join(namespace, 'queue'))
        blocks = os.path.getsize(self._contents[address]) // _BLOCK_BYTES
        for path, text in (('state', 'live'), (f'{namespace}/nsid', '1'), (f'{namespace}/size', f'{blocks}'),
                           (f'{namespace}/queue/logical_block_size', f'{_BLOCK_BYTES}')):
            with open(os.path.join(controller, path), 'w', encoding='ascii') as file:
                file.write(f'{text}\n')

    def _controller(self, sysfs: str, address: str) -> nvme_admin.Controller:
        if sysfs != self.root or address not in self._contents:
            asked: nvme_admin.Controller = self._ask[0](sysfs, address)
            return asked
        return nvme_admin.Controller(False, False, 0, 0, 0, 0)

    def _namespaces(self, sysfs: str, address: str) -> Mapping[int, nvme_admin.NVMeNamespace]:
        if sysfs != self.root or address not in self._contents:
            asked: Mapping[int, nvme_admin.NVMeNamespace] = self._ask[1](sysfs, address)
            return asked
        blocks = os.path.getsize(self._contents[address]) // _BLOCK_BYTES
        return {1: nvme_admin.NVMeNamespace(blocks, _BLOCK_BYTES, nvme_admin.Format(0), False, True, None)}

    def _opened(self, sysfs: str, address: str, name: str, size_bytes: int, writing: bool = True) -> int:
        if sysfs != self.root or address not in self._contents:
            opened: int = self._open_disk(sysfs, address, name, size_bytes, writing)
            return opened
        if self.driver_of(address) != 'nvme' or name != f'{self.controller_of(address)}n1' \
                or size_bytes != os.path.getsize(self._contents[address]):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        pci_privileged.check_own_use(sysfs, address)
        return os.open(self._contents[address], (os.O_RDWR if writing else os.O_RDONLY) | os.O_CLOEXEC)
