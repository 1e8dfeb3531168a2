"""What tests of PCI functions share: a compute host on the kernel's own bus and the libvirt of the machine.

The machine has two disks in slots of their own, one that can have virtual functions, with two namespaces for them, and
three functions in one IOMMU group (:mod:`devicetrack.tests.host.machine`).
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import glob
import json
import mmap
import os
import pathlib
import re
import time
from typing import Any
from typing import ClassVar

from devicetrack import vocabulary
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.host import machine
from devicetrack.tests.host.inside import hosts as kernel_hosts
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import pci

SYSFS = pathlib.Path('/sys/bus/pci/devices')
NVME = {'vendor_id': '1b36', 'product_id': '0010'}
DISK = 'CUSTOM_PCI_1B36_0010'
# The LBA format of QEMU's disks with blocks of 4096 bytes and no metadata (nvme_ns_init in QEMU: hw/nvme/ns.c).
BLOCKS_OF_4096 = 4
TRIES = 5
WAIT_S = 60.0
PATTERN = b'of the first owner '


def address_of(serial: str) -> str:
    """Where the disk with a serial number is."""
    for path in glob.glob('/sys/bus/pci/devices/*/nvme/nvme*/serial'):
        if pathlib.Path(path).read_text().strip() == serial:
            return pathlib.Path(path).parents[2].name
    raise AssertionError(f'no disk has the serial number {serial}')


def driver_of(address: str) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return os.path.basename(os.readlink(SYSFS / address / 'driver'))
    return None


def virtual(physical: str) -> list[str]:
    """The virtual functions of a card, in the order of their numbers."""
    return [os.path.basename(os.readlink(path)) for path in sorted(glob.glob(f'{SYSFS}/{physical}/virtfn*'))]


@contextlib.contextmanager
def controller(address: str) -> Iterator[int]:
    """The controller of a disk, to tell it anything, as a guest can that has the whole function."""
    fd = nvme_controllers.open_controller('/sys', address)
    try:
        yield fd
    finally:
        os.close(fd)


def put(address: str, attribute: str, text: str) -> None:
    (SYSFS / address / attribute).write_text(text)


class Host(kernel_hosts.KernelHost):
    """The compute host, with some of its functions.

    :param specs: the objects of ``[pci] device_spec``
    :param cleaning: those of ``[devicetrack_pci] cleaning``
    :param vfs: those of ``[devicetrack_pci] vfs``
    """

    kinds: ClassVar[tuple[type[api.DeviceKind], ...]] = (pci.PCI,)

    def __init__(self, *specs: dict[str, Any], cleaning: str | dict[str, Any] = 'zero',
                 unproven: str = vocabulary.VERIFY, vfs: tuple[dict[str, Any], ...] = ()) -> None:
        super().__init__()
        self._specs, self._cleaning, self._unproven, self._vfs = specs, cleaning, unproven, vfs

    def configure(self, configuration: fixtures.Configuration) -> None:
        configuration.set('pci', device_spec=list(map(json.dumps, self._specs)))
        configuration.set('devicetrack_pci', functions=['all'], vfs=list(map(json.dumps, self._vfs)))
        self.clean_by(self._cleaning)
        configuration.set('devicetrack', unproven_devices=self._unproven)

    def clean_by(self, policy: str | dict[str, Any]) -> None:
        """Clean every function by a policy, from the next start on."""
        assert self._configuration is not None
        self._configuration.set('devicetrack_pci', cleaning=[json.dumps(
            {'policy': policy} if isinstance(policy, str) else policy)])

    def wait_at_release(self, seconds: int) -> None:
        """Let each release wait so long for what passes: drivers and udev of a busy machine are slow."""
        assert self._configuration is not None
        self._configuration.set('devicetrack_pci', release_wait_s=seconds)


class FunctionsTestCase(base.TestCase):

    own_processes = False

    def host(self, *specs: dict[str, Any], **options: Any) -> Any:
        host = self.host_with_findings(*specs, **options)
        self.wait_until_proven(host)
        self.assertEqual([], list(host.manager.update_available_resource(None, host.name)))
        return host

    def host_with_findings(self, *specs: dict[str, Any], **options: Any) -> Any:
        host = self.useFixture(Host(*specs, **options))
        self.machine = host.machine
        return host

    def wait_until_proven(self, host: Any) -> None:
        """Wait until every disk has been read through. As in a service, an audit has what failed tried again."""
        for _ in range(TRIES):
            host.running.unproven.wait()
            unproven = {withheld.target: withheld.causes[vocabulary.UNPROVEN].text
                        for withheld in host.manager.operator.withheld() if vocabulary.UNPROVEN in withheld.causes}
            if not unproven:
                return
            host.manager.update_available_resource(None, host.name)
        self.fail(f'nothing proves that these are clean: {unproven}')

    def block_device(self, address: str) -> str:
        """Its only disk. The driver may make it some time after it took the function."""
        deadline = time.monotonic() + WAIT_S
        while not (found := glob.glob(f'/sys/bus/pci/devices/{address}/nvme/nvme*/nvme*n[0-9]*')):
            self.assertLess(time.monotonic(), deadline, f'{address} shows no disk')
            time.sleep(0.1)
        [path] = found
        # The device of a path is hidden.
        return '/dev/' + re.sub('c[0-9]+(?=n)', '', os.path.basename(path))

    def fill(self, address: str) -> None:
        """Leave bytes all over a disk, as its guest may."""
        size = machine.DISK_MIB << 20
        with self.direct(address, os.O_WRONLY) as disk, mmap.mmap(-1, size) as content:
            content[:] = (PATTERN * (size // len(PATTERN) + 1))[:size]
            self.assertEqual(size, os.pwrite(disk, content, 0))

    @contextlib.contextmanager
    def direct(self, address: str, flags: int) -> Iterator[int]:
        """A disk as a guest has it: past the host's page cache, which tells nobody of a write that failed later."""
        disk = os.open(self.block_device(address), flags | os.O_DIRECT)
        try:
            yield disk
        finally:
            os.close(disk)

    def clear(self, path: str) -> None:
        with open(path, 'wb') as disk:
            disk.write(bytes(machine.DISK_MIB << 20))

    def is_zero(self, address: str) -> bool:
        size = machine.DISK_MIB << 20
        with self.direct(address, os.O_RDONLY) as disk, mmap.mmap(-1, size) as content:
            content[:] = b'x' * size
            self.assertEqual(size, os.preadv(disk, [content], 0))
            return content[:] == bytes(size)

    def disks(self) -> tuple[dict[str, Any], ...]:
        return tuple({**NVME, 'address': address_of(serial)} for serial in machine.DISKS)

    def held_by(self, host: Any, instance: fixtures.Instance) -> str:
        [assignment] = host.manager.assignments(instance.uuid)
        return str(assignment.identifier)
