"""PCI functions of the kernel's own bus behind an IOMMU, with guests under the QEMU of the host's libvirt."""

from __future__ import annotations

from concurrent import futures
import os
import pathlib
import subprocess
import time
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures
from devicetrack.tests.host import machine
from devicetrack.tests.host.functions import hosts
from devicetrack.tests.host.functions.hosts import address_of
from devicetrack.tests.host.functions.hosts import controller
from devicetrack.tests.host.functions.hosts import DISK
from devicetrack.tests.host.functions.hosts import driver_of
from devicetrack.tests.host.functions.hosts import put
from devicetrack.tests.host.functions.hosts import SYSFS
from devicetrack.tests.host.functions.hosts import virtual
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_erasing

NVME_IOCTL_RESCAN = 0x4E46              # _IO('N', 0x46) (Linux: include/uapi/linux/nvme_ioctl.h)
# The members of the group, in the order of their slots: an e1000, an edu and a pci-testdev.
E1000, EDU, TESTDEV = {'vendor_id': '8086', 'product_id': '100e'}, {'vendor_id': '1234', 'product_id': '11e8'}, {
    'vendor_id': '1b36', 'product_id': '0005'}


class PCITestCase(hosts.FunctionsTestCase):

    # -- one guest ----------------------------------------------------------------------------------------------------

    def test_a_disk_goes_to_a_guest_and_comes_back_clean(self) -> None:
        host = self.host(*self.disks())
        instance = host.spawn(request=DeviceRequest.of((DISK, 1)))
        address = self.held_by(host, instance)
        self.assertEqual('vfio-pci', driver_of(address))
        self.assertEqual([DeviceKey('pci', address)],
                         [DeviceKey(use.kind, use.identifier) for use in self.machine.usage().uses])
        self.assertEqual([], list(host.manager.update_available_resource(None, host.name)))

        self.machine.delete_guest(instance.uuid)
        self.assertEqual('nvme', driver_of(address))
        self.fill(address)                      # the guest might have
        host.manager.release(None, instance)
        self.assertTrue(self.is_zero(address))
        self.assertEqual([], list(host.records()))
        self.assertEqual([], list(host.manager.update_available_resource(None, host.name)))

    def test_disks_that_a_program_wrote_to_between_release_and_claim_go_to_no_guest(self) -> None:
        host = self.host(*self.disks())
        addresses = [address_of(serial) for serial in machine.DISKS]
        for address in addresses:
            self.addCleanup(self.clear, self.block_device(address))
            self.fill(address)                  # and ends before anybody looks
        instance = fixtures.Instance()
        host.claim(instance, DeviceRequest.of((DISK, 1)))
        self.assertRaises(exception.DeviceTrackError, host.manager.realize, host.context, instance)
        self.assertEqual([], list(self.machine.usage().uses))
        host.manager.update_available_resource(host.context, host.name)
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), DeviceRequest.of((DISK, 1)))
        self.assertEqual([False, False], list(map(self.is_zero, addresses)))

    def test_each_disk_has_one_owner(self) -> None:
        host = self.host(*self.disks())

        def claim(_number: int) -> fixtures.Instance | None:
            instance = fixtures.Instance()
            try:
                host.manager.instance_claim(None, instance, host.name, DeviceRequest.of((DISK, 1)))
            except exception.NoFit:
                return None
            return instance

        with futures.ThreadPoolExecutor(6) as pool:
            owners = [instance for instance in pool.map(claim, range(6)) if instance is not None]
        self.assertEqual(2, len(owners))
        self.assertEqual({address_of(serial) for serial in machine.DISKS},
                         {self.held_by(host, instance) for instance in owners})
        for instance in owners:
            host.manager.release(None, instance)

    def test_a_service_that_starts_again_knows_a_disk_that_it_cannot_read(self) -> None:
        host = self.host(*self.disks())
        instance = host.spawn(request=DeviceRequest.of((DISK, 1)))
        self.assertEqual([], list(host.restart()))
        self.machine.delete_guest(instance.uuid)
        host.manager.release(None, instance)
        self.assertEqual([], list(host.records()))

    def test_a_disk_that_was_left_with_the_driver_for_guests_comes_back(self) -> None:
        host = self.host(*self.disks())
        instance = host.spawn(request=DeviceRequest.of((DISK, 1)))
        address = self.held_by(host, instance)
        self.machine.delete_guest(instance.uuid)
        self.fill(address)
        # As when libvirtd is killed between binding the function and starting the guest.
        put(address, 'driver_override', 'vfio-pci')
        put(address, 'driver/unbind', address)
        pathlib.Path('/sys/bus/pci/drivers_probe').write_text(address)
        self.assertEqual('vfio-pci', driver_of(address))
        host.manager.release(None, instance)
        self.assertEqual('nvme', driver_of(address))
        self.assertTrue(self.is_zero(address))

    # -- cleaned by the kernel and the controller ---------------------------------------------------------------------

    def given_back(self, host: Any) -> tuple[fixtures.Instance, str]:
        """A disk whose guest is gone and left bytes all over it."""
        instance = host.spawn(request=DeviceRequest.of((DISK, 1)))
        address = self.held_by(host, instance)
        self.machine.delete_guest(instance.uuid)
        self.fill(address)
        # Whatever becomes of this test: the next one needs a disk.
        self.addCleanup(self.reformat, address, 0)
        return instance, address

    def namespaces(self, address: str) -> str:
        return str(pci_erasing.asked(pci_sysfs.Tree(), pci_sysfs.Function(address)))

    def reformat(self, address: str, lbaf: int) -> None:
        with controller(address) as fd:
            nvme_admin.format_namespace(fd, 1, nvme_admin.Format(lbaf), 0, 60)
        while not os.path.exists(self.block_device(address)):
            time.sleep(0.1)

    def test_a_disk_is_discarded_and_read_back(self) -> None:
        host = self.host(*self.disks(), cleaning='blkdiscard')
        instance, address = self.given_back(host)
        host.manager.release(None, instance)
        self.assertTrue(self.is_zero(address))
        self.assertEqual([], list(host.records()))

    def test_a_disk_is_formatted_as_the_claim_found_it(self) -> None:
        host = self.host(*self.disks(), cleaning='nvme-format')
        instance, address = self.given_back(host)
        before = self.namespaces(address)
        self.reformat(address, hosts.BLOCKS_OF_4096)
        self.assertNotEqual(before, self.namespaces(address))
        self.fill(address)
        host.manager.release(None, instance)
        self.assertEqual(before, self.namespaces(address))
        self.assertTrue(self.is_zero(address))
        self.assertEqual([], list(host.records()))
        self.assertEqual([], list(host.manager.update_available_resource(None, host.name)))

    def test_a_disk_with_other_blocks_gets_its_own_again_and_is_discarded(self) -> None:
        host = self.host(*self.disks(), cleaning='blkdiscard')
        instance, address = self.given_back(host)
        before = self.namespaces(address)
        self.reformat(address, hosts.BLOCKS_OF_4096)
        self.fill(address)
        host.manager.release(None, instance)
        self.assertEqual(before, self.namespaces(address))
        self.assertTrue(self.is_zero(address))
        self.assertEqual([], list(host.records()))

    def test_what_a_controller_cannot_do_is_refused_at_the_start(self) -> None:
        host = self.host(*self.disks())
        for policy, field in (('nvme-sanitize', 'SANICAP'),
                              ({'policy': 'nvme-format', 'erase': 'cryptographic'}, 'FNA')):
            host.clean_by(policy)
            error = self.assertRaises(exception.InvalidConfiguration, host.restart)
            self.assertIn(field, str(error))
        host.clean_by('zero')
        self.assertEqual([], list(host.restart()))

    # -- the host's own use -------------------------------------------------------------------------------------------

    def test_a_disk_that_the_host_swaps_to_is_not_handed_out(self) -> None:
        host = self.host(*self.disks())
        path = self.block_device(address_of(machine.DISKS[0]))
        subprocess.run(['mkswap', '--quiet', path], check=True)
        self.addCleanup(self.clear, path)
        subprocess.run(['swapon', path], check=True)
        self.addCleanup(subprocess.run, ['swapoff', path], check=False)
        [finding] = host.manager.update_available_resource(None, host.name)
        self.assertEqual(findings.UNHEALTHY, finding.kind)
        self.assertIn('the host uses it', finding.detail)
        self.assertIn('swap', finding.detail)
        first, second = fixtures.Instance(), fixtures.Instance()
        host.manager.instance_claim(None, first, host.name, DeviceRequest.of((DISK, 1)))
        self.assertEqual(address_of(machine.DISKS[1]), self.held_by(host, first))
        self.assertRaises(exception.NoFit, host.manager.instance_claim, None, second, host.name,
                          DeviceRequest.of((DISK, 1)))
        # What the host wrote is nobody's business: the disk has to be clean again.
        subprocess.run(['swapoff', path], check=True)
        host.manager.update_available_resource(None, host.name)
        self.assertIn(vocabulary.UNPROVEN, host.states()[address_of(machine.DISKS[0])])
        self.assertRaises(exception.NoFit, host.manager.instance_claim, None, second, host.name,
                          DeviceRequest.of((DISK, 1)))
        host.manager.release(None, first)

    # -- what goes together -------------------------------------------------------------------------------------------

    def test_of_a_group_all_or_nothing_is_offered(self) -> None:
        host = self.host_with_findings(E1000, cleaning='none')
        [(_key, unhealthy)] = [(device.key, device.unhealthy) for device in self.machine.driver.get_inventory().devices]
        self.assertIn('only a whole group can be handed out', str(unhealthy))
        self.assertRaises(exception.NoFit, host.manager.instance_claim, None, fixtures.Instance(), host.name,
                          DeviceRequest.of(('CUSTOM_PCI_8086_100E', 1)))

    def test_one_instance_has_a_group(self) -> None:
        host = self.host(E1000, EDU, TESTDEV, cleaning='none')
        first, second = fixtures.Instance(), fixtures.Instance()
        host.manager.instance_claim(None, first, host.name, DeviceRequest.of(
            ('CUSTOM_PCI_8086_100E', 1), ('CUSTOM_PCI_1234_11E8', 1)))
        self.assertRaises(exception.NoFit, host.manager.instance_claim, None, second, host.name,
                          DeviceRequest.of(('CUSTOM_PCI_1B36_0005', 1)))
        host.manager.release(None, first)
        host.manager.instance_claim(None, second, host.name, DeviceRequest.of(('CUSTOM_PCI_1B36_0005', 1)))
        host.manager.release(None, second)

    def test_a_physical_function_and_its_virtual_ones(self) -> None:
        physical = address_of(machine.SPLIT)
        put(physical, 'sriov_drivers_autoprobe', '0')
        put(physical, 'sriov_numvfs', '2')
        self.addCleanup(put, physical, 'sriov_numvfs', '0')
        parts = virtual(physical)
        host = self.host(*({'address': address, 'resource_class': 'PART'} for address in parts),
                         {'address': physical, 'resource_class': 'WHOLE'}, cleaning='none',
                         vfs=({'address': physical, 'private_namespaces': True},))
        first, second = fixtures.Instance(), fixtures.Instance()
        host.manager.instance_claim(None, first, host.name, DeviceRequest.of(('CUSTOM_PART', 2)))
        self.assertEqual(parts, sorted(one.identifier for one in host.manager.assignments(first.uuid)))
        self.assertRaises(exception.NoFit, host.manager.instance_claim, None, second, host.name,
                          DeviceRequest.of(('CUSTOM_WHOLE', 1)))
        host.manager.release(None, first)
        host.manager.instance_claim(None, second, host.name, DeviceRequest.of(('CUSTOM_WHOLE', 1)))
        self.assertRaises(exception.NoFit, host.manager.instance_claim, None, first, host.name,
                          DeviceRequest.of(('CUSTOM_PART', 1)))
        host.manager.release(None, second)

    def test_virtual_functions_that_a_host_lost_by_its_boot_are_made_again(self) -> None:
        physical = address_of(machine.SPLIT)
        self.assertEqual([], virtual(physical))
        domain, bus, rest = physical.split(':')
        parts = {'domain': domain, 'bus': bus, 'slot': rest.partition('.')[0], 'function': '[1-7]'}
        host = self.host({'address': parts, 'resource_class': 'PART'}, cleaning='none',
                         vfs=({'address': physical, 'number': 2, 'autoprobe': False, 'private_namespaces': True},))
        self.addCleanup(put, physical, 'sriov_numvfs', '0')
        made = virtual(physical)
        self.assertEqual((2, [None] * 2), (len(made), list(map(driver_of, made))))
        instance = host.spawn(request=DeviceRequest.of(('CUSTOM_PART', 1)))
        held = self.held_by(host, instance)
        self.assertEqual('vfio-pci', driver_of(held))
        self.machine.stop_guest(instance.uuid)
        # As a boot does.
        put(physical, 'sriov_numvfs', '0')
        self.assertEqual([], list(host.restart()))
        self.assertEqual((made, held), (virtual(physical), self.held_by(host, instance)))
        self.machine.delete_guest(instance.uuid)
        host.manager.release(None, instance)
        self.assertEqual([], list(host.records()))

    def test_virtual_functions_that_the_card_takes_away_under_a_guest(self) -> None:
        """As unbinding the card's driver does: the kernel waits for the guest, and has removed the links before."""
        physical = address_of(machine.SPLIT)
        domain, bus, rest = physical.split(':')
        parts = {'domain': domain, 'bus': bus, 'slot': rest.partition('.')[0], 'function': '[1-7]'}
        host = self.host({'address': parts, 'resource_class': 'PART'}, cleaning='none',
                         vfs=({'address': physical, 'number': 2, 'autoprobe': False, 'private_namespaces': True},))
        self.addCleanup(put, physical, 'sriov_numvfs', '0')
        made = virtual(physical)
        instance = host.spawn(request=DeviceRequest.of(('CUSTOM_PART', 1)))
        held = self.held_by(host, instance)
        # A process of its own: no signal ends the write while it waits.
        taking = subprocess.Popen(['sh', '-c', 'echo 0 >"$0"', SYSFS / physical / 'sriov_numvfs'])
        self.addCleanup(taking.wait)
        self.addCleanup(self.machine.delete_guest, instance.uuid)
        while (SYSFS / held / 'physfn').exists():
            self.assertIsNone(taking.poll())
            time.sleep(0.1)

        for look in (host.audit, host.restart):
            look()
            self.assertEqual({held: instance.uuid}, host.owners())
            self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), DeviceRequest.of(('CUSTOM_PART', 2)))
            self.assertRaises(exception.DeviceInUse, host.manager.release, None, instance)
            self.assertIsNone(taking.poll())
        self.assertTrue(self.machine.domain(instance.uuid).isActive())

        self.machine.delete_guest(instance.uuid)
        self.assertEqual(0, taking.wait())
        self.assertEqual([], virtual(physical))
        self.assertRaises(exception.DeviceGone, host.manager.release, None, instance)
        self.assertEqual({held: instance.uuid}, host.owners())
        # An audit makes them again, and the release can end.
        host.audit()
        self.assertEqual(made, virtual(physical))
        host.manager.release(None, instance)
        host.claim(instance, DeviceRequest.of(('CUSTOM_PART', 2))).abort()
        self.assertEqual([], list(host.audit()))
        self.assertEqual([], list(host.records()))
