"""A compute host on the kernel's own devices and the libvirt of the machine."""

from __future__ import annotations

from typing import Any
from typing import ClassVar

import libvirt

from devicetrack.claims.manager import ClaimManager
from devicetrack.testing import fixtures
from devicetrack.tests.functional.claims import libvirt_hosts
from devicetrack.tests.host.inside import firmware
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import api

URI = 'qemu:///system'


class KernelHost(fixtures.Host):
    """Subclasses say which device kinds it has, and how they are configured."""

    machine: Any
    kinds: ClassVar[tuple[type[api.DeviceKind], ...]]

    def __init__(self) -> None:
        super().__init__()
        self.machine = libvirt_hosts.Machine(lambda: libvirt.open(URI), libvirt_hosts.QEMU, '/dev', firmware.path())

    def _setUp(self) -> None:
        self._configuration = self.useFixture(fixtures.Configuration())
        self._configuration.set('libvirt', connection_uri=URI)
        self.configure(self._configuration)
        self.service.known = {}
        super()._setUp()

    def configure(self, configuration: fixtures.Configuration) -> None:
        """Set the options that say which devices the host has."""
        raise NotImplementedError

    def another_manager(self) -> ClaimManager:
        driver = libvirt_driver.LibvirtDriver(self.name, self.conf, self.configuration.state_path, self.kinds)
        self.addCleanup(driver.close)
        self.machine.driver = driver
        manager = ClaimManager(self.name, driver, self.store, self.conf, self.service)
        self._managers.append(manager)
        return manager

    def spawn(self, *args: Any, **what: Any) -> fixtures.Instance:
        instance = super().spawn(*args, **what)
        self.addCleanup(self.machine.delete_guest, instance.uuid)
        return instance
