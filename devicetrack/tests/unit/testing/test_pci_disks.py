"""Made disks with bytes: they stay with their function whoever has it, and the kind cleans them."""

from __future__ import annotations

import json
import os
from typing import Any
import uuid

from devicetrack.testing import pci_disks
from devicetrack.testing import pci_guests
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import pci_namespaces as disks
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci

DISK, OTHER = '0000:01:00.0', '0000:02:00.0'
SIZE = 1 << 20


class DiskHostTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(pci_disks.DiskHost())
        self.host.add_disk(DISK, 'S1', SIZE)

    def namespaces(self) -> Any:
        return disks.shown(pci_sysfs.Tree(self.host.root), DISK)

    def test_its_driver_shows_it_by_another_name_each_time(self) -> None:
        self.assertEqual([disks.Disk('nvme0n1', 1, SIZE, 512)], self.namespaces())
        self.host.unbind(DISK)
        self.assertIsNone(self.namespaces())
        self.host.bind(DISK, 'nvme')
        self.assertEqual([disks.Disk('nvme1n1', 1, SIZE, 512)], self.namespaces())

    def test_whoever_opens_it_opens_its_bytes_while_the_host_has_it(self) -> None:
        with os.fdopen(disk_nodes.open_disk(self.host.root, DISK, 'nvme0n1', SIZE), 'r+b') as file:
            file.write(b'some')
        with open(self.host.content_of(DISK), 'rb') as content:
            self.assertEqual(b'some', content.read(4))
        self.host.unbind(DISK)
        self.assertRaises(OSError, disk_nodes.open_disk, self.host.root, DISK, 'nvme0n1', SIZE)

    def test_nobody_opens_it_while_a_process_has_a_partition_of_it_open(self) -> None:
        self.host.add_partition('nvme0n1', 'nvme0n1p1')
        self.host.add_process(812, 'qemu')
        self.host.open_device(812, 'nvme0n1p1')
        error = self.assertRaises(OSError, disk_nodes.open_disk, self.host.root, DISK, 'nvme0n1', SIZE)
        self.assertIn('process 812 (qemu) has nvme0n1p1 open', str(error))

    def test_a_disk_without_bytes_is_as_on_other_hosts(self) -> None:
        self.host.add_nvme(OTHER, 'S2')
        self.assertEqual([OTHER], [address for address in self.host.addresses if address != DISK])
        self.assertRaises(OSError, disk_nodes.open_disk, self.host.root, OTHER, 'nvme1n1', SIZE)

    def test_a_guest_finds_nothing_of_the_guest_before_it(self) -> None:
        self.configuration.set('pci', device_spec=[json.dumps({'vendor_id': '1b36'})])
        self.configuration.set('devicetrack_pci', sysfs_root=self.host.root, release_wait_s=0, functions=['all'],
                               cleaning=[json.dumps({'policy': 'zero'})])
        kind = pci.PCI(self.conf, connection.Connection('', None))
        kind.state_path, kind.boot_id, kind.host_use = self.state_path, lambda: 'this boot', self.host.use
        [device] = kind.stock().devices
        assigned = contract.assignment(str(uuid.uuid4()), 'pci', DISK, device.parent, device.details)
        functions = pci_guests.GuestFunctions(self.host)
        functions.start('guest', [DISK])
        with open(self.host.content_of(DISK), 'r+b') as file:
            file.write(b'secret' * 1000)
        functions.end('guest')
        with open(os.path.join(self.state_path, 'lock'), 'w') as lock:
            kind.unclaim(assigned, lock.fileno())
        with open(self.host.content_of(DISK), 'rb') as file:
            self.assertEqual(bytes(SIZE), file.read())
