"""A guest that is off has a disk by the path of its block device: no process has that open."""

from __future__ import annotations

import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import pci_disks
from devicetrack.testing import pci_models
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import pci_hosts


class StoppedGuestTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        node, self.host = self.useFixture(libvirt_fixtures.TestNode()), self.useFixture(pci_disks.DiskHost())
        self.address = self.host.add_disk('0000:01:00.0', 'S1', 1 << 20)
        spec = {'vendor_id': '1b36', 'resource_class': 'CUSTOM_DISK'}
        self.driver = pci_hosts.driver_of(self, self.host, spec, 'zero', node.connect)
        self.connection = node.connect()

    def define(self, sort: str, source: str) -> None:
        self.connection.defineXML(
            f"<domain type='test'><name>guest</name><uuid>{uuid.uuid4()}</uuid><memory>65536</memory>"
            f"<os><type>hvm</type></os><devices><disk type='{sort}' device='disk'><source {source}/>"
            "<target dev='vda' bus='virtio'/></disk></devices></domain>")

    def uses(self) -> list[tuple[str, str | None]]:
        return [(use.kind, use.identifier) for use in self.driver.get_usage().uses]

    def test_it_is_in_use(self) -> None:
        self.assertEqual([], self.uses())
        self.define('block', "dev='/dev/nvme0n1'")
        self.assertEqual([('pci', self.address)], self.uses())
        [device] = self.driver.get_inventory().devices
        [error] = self.driver.prove([contract.assignment(
            str(uuid.uuid4()), 'pci', self.address, device.parent, device.details)], vocabulary.WIPE).values()
        self.assertIsInstance(error, exception.DeviceInUse)

    def test_so_is_one_in_a_file_of_that_path(self) -> None:
        self.define('file', "file='/dev/ng0n1'")
        self.assertEqual([('pci', self.address)], self.uses())

    def test_a_bridge_in_front_of_a_disk_of_others_is_not(self) -> None:
        bridge = self.host.add('0000:02:00.0', pci_models.BRIDGE)
        self.host.add('0000:03:00.0', pci_models.NVME._replace(product='8086:0a54'), behind=bridge)
        self.define('block', "dev='/dev/nvme1n1'")
        self.assertEqual([], self.uses())

    def test_another_path_is_none_of_them(self) -> None:
        self.define('block', "dev='/dev/sda'")
        self.assertEqual([], self.uses())
