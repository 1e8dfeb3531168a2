"""The demo's compute service on a host with PCI functions: ``python functions_service.py DIRECTORY``.

libvirt's test driver has the functions as node devices. It starts no guest on them. So this service gives the functions
to drivers, as libvirt does on a real host.
"""

from __future__ import annotations

import io
import sys
import tempfile
from typing import Any

from oslo_config import cfg

from devicetrack.cmd import manage
from devicetrack.testing import libvirt as testing_libvirt
from devicetrack.testing import pci_disks
from devicetrack.testing import pci_guests
from devicetrack.virt import loader
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.driver import LibvirtDriver
from devicetrack.virt.libvirt.kinds import pci
from functions_host import CARD
from functions_host import DISK
from functions_host import DISK_BYTES
from functions_host import FunctionsHost
from functions_host import PORTS
from instances import Instance
import service


class FunctionsService(service.Service):
    """Builds and deletes instances with functions."""

    def __init__(self, machine: FunctionsHost, hardware: pci_disks.DiskHost, node: testing_libvirt.TestNode) -> None:
        self._hardware, self._node = hardware, node
        self._functions = pci_guests.GuestFunctions(hardware)
        super().__init__(machine)

    def _load_driver(self, conf: Any) -> LibvirtDriver:
        hardware = self._hardware

        class PCI(pci.PCI):
            """The device kind on a host where nothing is mounted except by the demo."""

            def __init__(self, conf: Any, hypervisor: Any) -> None:
                super().__init__(conf, hypervisor)
                self.host_use = hardware.use

        return LibvirtDriver(self._machine.name, conf, conf.devicetrack.state_path, [PCI], self._node.connect)

    def functions(self) -> dict[str, Any]:
        """Say where sysfs and the disk's bytes are, and how libvirt names the functions."""
        return {'sysfs': self._hardware.root, 'content': self._hardware.content_of(DISK),
                'ports': self._hardware.vfs_of(CARD), 'node_devices': sorted(self._node.connect().listDevices('pci'))}

    def push(self) -> dict[str, Any]:
        """Run ``devicetrack-manage fleet push``, in this process: no other one can see the functions."""
        told = io.StringIO()
        loader.load_driver = lambda conf, host=None: self._load_driver(conf)
        status = manage.Manage(cfg.ConfigOpts(), told, told).run(
            ['--config-file', str(self._machine.configuration), 'fleet', 'push'])
        return {'status': status, 'told': told.getvalue()}

    def _start_guest(self, instance: Instance) -> None:
        super()._start_guest(instance)
        [guest] = [guest for guest in self._machine.guests if guest.uuid == instance.uuid]
        self._functions.start(instance.uuid, guest.functions())

    def _stop_guest(self, instance: Instance) -> None:
        super()._stop_guest(instance)
        self._functions.end(instance.uuid)


def main(directory: str) -> None:
    machine = FunctionsHost(directory)
    tempfile.tempdir = directory             # the demo removes this directory, however this process ends
    with pci_disks.DiskHost() as hardware, testing_libvirt.TestNode() as node:
        hardware.add_disk(DISK, machine.serial, DISK_BYTES)
        hardware.add_igb(CARD)
        hardware.make_vfs(CARD, PORTS)
        for function in pci_sysfs.Tree(hardware.root).functions():
            node.add_function(function)
        machine.options(hardware.root)
        service.serve(FunctionsService(machine, hardware, node))


if __name__ == '__main__':
    main(sys.argv[1])
