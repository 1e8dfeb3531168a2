"""Our libvirt driver and claim manager on a host of Nova's functional tests, without Nova's services."""

from __future__ import annotations

import os
from typing import Any
import uuid

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from devicetrack.claims import manager as claims
from devicetrack.objects import details
from devicetrack.objects import DeviceRequest
from devicetrack.testing import fixtures as our_fixtures
from devicetrack.tests import base
from devicetrack.tests.nova import hypervisor
from devicetrack.tests.nova import pmem
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt.kinds import mdev
from devicetrack.virt.libvirt.kinds import vpmem

PARENT = fakelibvirt.MDEVCAP_DEV1_PCI_ADDR
TYPE = fakelibvirt.NVIDIA_11_VGPU_TYPE


class HypervisorTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        hypervisor.keep_metadata(lambda owner, name, value: self.useFixture(
            fixtures.MonkeyPatch(f'{owner.__module__}.{owner.__qualname__}.{name}', value)))
        self.fake = fakelibvirt.Connection('qemu:///system', hostname='host', pci_info=fakelibvirt.HostPCIDevicesInfo(
            num_pci=0, num_pfs=0, num_vfs=0, num_mdevcap=1))
        self.fake.devicetrack_ndctl = [
            {'dev': 'namespace0.0', 'mode': 'devdax', 'size': pmem.SIZE, 'align': 2 << 20, 'name': 'ns_0',
             'uuid': str(uuid.uuid4()), 'chardev': 'dax0.0'}]
        self.files = self.temp_dir()
        self.configuration.set('libvirt', pmem_namespaces=['SMALL:ns_0'])
        self.configuration.set('devices', enabled_mdev_types=[TYPE])
        self.configuration.set('devicetrack_mdev', release_wait_s=0)
        self.driver = libvirt_driver.LibvirtDriver('host', self.conf, self.state_path, [mdev.Mdev, vpmem.VPMEM],
                                                   lambda: hypervisor.Connection(lambda: self.fake))
        kinds: Any = self.driver._kinds
        kinds['mdev'].devices.kernel = mdev_sysfs.Kernel(self.temp_dir())
        kinds['vpmem']._source = pmem.Source(self.driver.hypervisor, lambda host: self.files)
        store = self.useFixture(our_fixtures.SQLiteStore(self.conf)).store
        self.manager = claims.ClaimManager('host', self.driver, store, self.conf)
        self.addCleanup(self.manager.close)
        self.assertEqual([], self.manager.init_host(self.context))

    def room(self) -> dict[str, int]:
        return {capacity.device_type: capacity.available for capacity in self.driver.get_inventory().capacities}

    def boot(self, config: Any, instance: Any) -> Any:
        domain = self.fake.defineXML(f"""
            <domain type='kvm'><name>guest</name><uuid>{instance.uuid}</uuid><metadata>{config.metadata}</metadata>
            <memory>65536</memory><vcpu>1</vcpu><os><type arch='x86_64'>hvm</type></os>
            <devices>{''.join(config.devices)}</devices></domain>""")
        domain.create()
        return domain

    def test_inventory(self) -> None:
        inventory = self.driver.get_inventory()
        self.assertEqual(['ns_0'], [device.identifier for device in inventory.devices])
        self.assertEqual([(PARENT, TYPE, 16)],
                         [(found.parent, found.device_type, found.available) for found in inventory.capacities])
        self.assertEqual((), inventory.unknown)

    def test_a_guest_gets_both_kinds_and_gives_them_back(self) -> None:
        instance = our_fixtures.Instance()
        request = DeviceRequest.of(('CUSTOM_PMEM_NAMESPACE_SMALL', 1), ('VGPU', 1))
        with self.manager.instance_claim(self.context, instance, 'host', request):
            self.manager.realize(self.context, instance)
            domain = self.boot(self.manager.guest_config(instance), instance)
            self.manager.started(self.context, instance)
        self.assertEqual({TYPE: 15}, self.room())
        made, = (one for one in instance.resources if isinstance(one.details, details.MdevDetails))
        self.assertEqual([f'mdev_{made.identifier.replace("-", "_")}'], list(self.fake.mdev_info.devices))
        used = {(use.kind, use.identifier, use.running) for use in self.driver.get_usage().uses}
        self.assertLessEqual({('mdev', made.identifier, True), ('vpmem', 'ns_0', True)}, used)
        self.assertEqual([], self.manager.update_available_resource(self.context, 'host'))
        path = os.path.join(self.files, 'ns_0')
        with open(path, 'r+b') as file:
            file.write(b'of the guest')
        domain.destroy()
        domain.undefine()
        self.manager.release(self.context, instance)
        with open(path, 'rb') as file:
            self.assertEqual(bytes(pmem.SIZE), file.read())
        self.assertEqual(({}, {}, {TYPE: 16}),
                         (self.fake.mdev_info.devices, hypervisor.definitions(self.fake), self.room()))
