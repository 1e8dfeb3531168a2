"""What is left of a driver that was closed."""

from __future__ import annotations

import json
import threading
from typing import Any

from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import pci
from devicetrack.virt.libvirt.kinds import vpmem

TIMES = 21


class ThreadsTestCase(pci_hosts.PCIHostTestCase):
    """Drivers that ask libvirt and cards, make virtual functions and follow the paths of guests."""

    def setUp(self) -> None:
        super().setUp()
        self.host.add_igb(pci_hosts.CARD)
        self.host.add(pci_hosts.DISK, pci_models.EDU)
        self.host.give_serial(pci_hosts.DISK, 'S1')
        spec = {'address': pci_hosts.DISK}
        self.configuration.set('libvirt', connection_uri='test:///default')
        self.configuration.set('devicetrack_vpmem', directory=self.temp_dir())
        self.configuration.set('pci', device_spec=[json.dumps(spec)])
        self.configuration.set('devicetrack_pci', sysfs_root=self.host.root, functions=['all'],
                               vfs=[json.dumps({'address': pci_hosts.CARD, 'number': 2, 'autoprobe': False})])
        self.kinds: list[api.DeviceKind] = []

    def made(self, of: type[api.DeviceKind]) -> type[api.DeviceKind]:
        """A kind of the host that is made of files, whose instances the test knows."""
        kinds, host = self.kinds, self.host

        class Known(of):        # type: ignore[valid-type]
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.host_use = host.use
                kinds.append(self)

        return Known

    def used(self) -> libvirt_driver.LibvirtDriver:
        """A driver of a host that has just booted, after it has done all that needs threads."""
        for vf in self.host.vfs_of(pci_hosts.CARD):
            self.host.remove(vf)
        driver = libvirt_driver.LibvirtDriver('host', self.conf, self.temp_dir(),
                                              [self.made(vpmem.VPMEM), self.made(pci.PCI)])
        driver.prepare([])
        self.assertEqual(2, len(self.host.vfs_of(pci_hosts.CARD)))
        self.assertIn(pci_hosts.DISK, str(driver.get_inventory().devices))
        driver.get_usage()
        for kind in self.kinds[-2:]:
            kind.identify(['/nosuch/disk'])
        return driver

    def test_no_thread_is_left(self) -> None:
        before = set(threading.enumerate())
        drivers = []                            # an object that nobody has any more ends its threads, too
        for _time in range(TIMES):
            drivers.append(self.used())
            threads = set(threading.enumerate()) - before
            self.assertLess(4, len(threads))
            drivers[-1].close()
            for thread in threads:
                thread.join(base.HANGS_S)
                self.assertFalse(thread.is_alive())
