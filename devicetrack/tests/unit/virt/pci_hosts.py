"""Hosts with PCI functions that are made of files, for tests of the kind."""

from __future__ import annotations

from collections.abc import Callable
import json
import os
from typing import Any
from typing import Final
import uuid

from devicetrack import exception
from devicetrack.testing import nvme
from devicetrack.testing import pci as made
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import pci

DISK, CARD, BRIDGE = '0000:01:00.0', '0000:03:00.0', '0000:06:00.0'
NVME = {'vendor_id': '1b36', 'product_id': '0010'}
# What a guest leaves on a disk.
OLD: Final = b'of the first owner..'[:16]


class PCIHostTestCase(base.TestCase):
    """A host without functions, and the kind that reads it."""

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(made.PCIHost())
        self.instance = str(uuid.uuid4())
        self.boot = 'this boot'

    def kind(self, *specs: dict[str, Any], functions: str = 'all',
             cleaning: str | dict[str, Any] | None = None) -> pci.PCI:
        """The kind as a service makes it that starts now."""
        self.configuration.set('pci', device_spec=list(map(json.dumps, specs)))
        self.configuration.set('devicetrack_pci', sysfs_root=self.host.root, release_wait_s=0, functions=[functions],
                               cleaning=[] if cleaning is None else [json.dumps(
                                   {'policy': cleaning} if isinstance(cleaning, str) else cleaning)])
        kind = pci.PCI(self.conf, connection.Connection('', None))
        kind.state_path, kind.boot_id, kind.host_use = self.state_path, lambda: self.boot, self.host.use
        return kind

    def devices(self, kind: pci.PCI) -> dict[str, Any]:
        return {device.identifier: device for device in kind.stock().devices}

    def assigned(self, kind: pci.PCI, address: str = DISK) -> Any:
        """A device of the stock, recorded for the instance."""
        device = self.devices(kind)[address]
        return contract.assignment(self.instance, 'pci', address, device.parent, device.details)

    def give_to_guest(self, address: str = DISK) -> None:
        """Do what libvirt does when a guest starts."""
        self.host.unbind(address)
        self.host.bind(address, made.VFIO_PCI)

    def unclaim(self, kind: pci.PCI, assignment: Any) -> None:
        with open(os.path.join(self.state_path, 'lock'), 'w') as lock:
            kind.unclaim(assignment, lock.fileno())

    def realized(self, kind: pci.PCI, address: str = DISK) -> Any:
        """A device that the instance has, as its row says after the first time."""
        assignment = self.assigned(kind, address)
        made = kind.realize(assignment)
        return contract.assignment(self.instance, 'pci', address, assignment.parent, made.details,
                                   was_realized=True)


class DiskTestCase(PCIHostTestCase):
    """A host with a disk, whose controller answers."""

    def setUp(self) -> None:
        super().setUp()
        self.controllers = self.useFixture(nvme.Controllers(self.host))
        self.host.add_nvme(DISK, 'S1')
        self.controller = self.controllers.add(DISK)
        self.disk = self.controller.namespaces[1]

    def used(self, kind: pci.PCI) -> Any:
        """The disk, whose guest is gone and left bytes on it."""
        assignment = self.realized(kind)
        self.disk.fill(OLD)
        return assignment

    def unhealthy(self, kind: pci.PCI) -> str:
        return str(self.devices(kind)[DISK].unhealthy)

    def is_zero(self) -> bool:
        return not any(self.disk.content)

    def withheld(self, kind: pci.PCI, assignment: Any, reason: str) -> None:
        error = self.assertRaises(exception.UnclaimFailed, self.unclaim, kind, assignment)
        self.assertIn(reason, str(error))


def driver_of(case: base.TestCase, host: made.PCIHost, spec: dict[str, Any], policy: str,
              connect: Callable[[], Any], wait_s: int = 0, functions: str = 'all') -> libvirt_driver.LibvirtDriver:
    """The driver of a host whose functions are cleaned by a policy, until the end of the test."""
    class PCI(pci.PCI):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.host_use = host.use

    case.configuration.set('pci', device_spec=[json.dumps(spec)])
    case.configuration.set('devicetrack_pci', sysfs_root=host.root, release_wait_s=wait_s,
                           functions=[functions] if functions else [], cleaning=[json.dumps({'policy': policy})])
    driver = libvirt_driver.LibvirtDriver('host', case.conf, case.state_path, [PCI], connect=connect)
    case.addCleanup(driver.close)
    return driver
