"""Disks that the service hands out itself, and that are cleaned between two guests: on the kernel's own bus."""

from __future__ import annotations

import subprocess
import tempfile
from typing import Any
import uuid

from devicetrack.engine import findings
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fixtures
from devicetrack.tests.host import machine
from devicetrack.tests.host.functions import hosts
from devicetrack.tests.host.functions.hosts import address_of
from devicetrack.tests.host.functions.hosts import driver_of
from devicetrack.tests.host.functions.test_faults import make_file_system
from devicetrack.tests.host.functions.test_faults import mounted
from devicetrack.tests.service_devices import ServiceDevices
from devicetrack.virt.libvirt import guest_xml


class Host(hosts.Host):
    """A compute host whose service hands out the functions itself."""

    def configure(self, configuration: fixtures.Configuration) -> None:
        super().configure(configuration)
        configuration.set('devicetrack_pci', functions=[])


class ServiceDevicesTestCase(hosts.FunctionsTestCase):

    def start(self, cleaning: str = 'zero') -> None:
        self.addresses = [address_of(serial) for serial in machine.DISKS]
        for address in self.addresses:
            self.addCleanup(self.clear, self.block_device(address))
        self.service = ServiceDevices(*self.addresses)
        self.compute: Any = self.useFixture(Host(cleaning=cleaning))
        self.service.note_given = self.compute.manager.note_given

    def look(self) -> dict[DeviceKey, str]:
        """One audit of the service, and all that it begins. Returns what the next audit says of these devices."""
        self.compute.manager.look_after(self.service)
        self.compute.running.service_cleaning.wait()
        return {one.device: one.detail for one in self.compute.audit() if one.kind == findings.NOT_CLEANED}

    def boot(self, address: str) -> str:
        guest = self.service.claim(address)
        self.addCleanup(self.compute.machine.delete_guest, guest)
        self.compute.machine.start_guest(guest, (guest_xml.pci_hostdev(address, 'yes'),))
        self.assertEqual('vfio-pci', driver_of(address))
        return guest

    def delete(self, guest: str, address: str) -> None:
        self.compute.machine.delete_guest(guest)
        self.fill(address)                      # the guest might have
        self.service.free(address)

    def use(self, address: str) -> None:
        self.delete(self.boot(address), address)

    def assert_stays(self, address: str, why: str) -> None:
        """A disk stays reserved and full, and a finding says why."""
        said = self.look()
        self.assertEqual([DeviceKey('pci', address)], list(said))
        self.assertIn(why, said[DeviceKey('pci', address)])
        self.assertEqual(([], {address}), (self.service.handed_out, self.service.reserved))
        self.assertFalse(self.is_zero(address))

    def test_the_next_guest_finds_zeros(self) -> None:
        self.start()
        self.assertEqual({}, self.look())
        for times in (1, 2):
            for address in self.addresses:
                self.use(address)
            self.assertEqual({}, self.look())
            self.assertEqual(sorted(self.addresses * times), sorted(self.service.handed_out))
            self.assertEqual([True, True], list(map(self.is_zero, self.addresses)))

    def test_a_guest_that_the_service_has_forgotten_keeps_its_disk(self) -> None:
        self.start()
        self.look()
        address = self.addresses[0]
        guest = self.boot(address)
        self.service.free(address)
        self.assertIn('names it', self.look()[DeviceKey('pci', address)])
        self.assertEqual(([], 'vfio-pci'), (self.service.handed_out, driver_of(address)))
        self.assertTrue(self.compute.machine.domain(guest).isActive())
        self.compute.machine.delete_guest(guest)
        self.fill(address)
        self.assertEqual({}, self.look())
        self.assertEqual((True, [address]), (self.is_zero(address), self.service.handed_out))

    def test_a_disk_that_the_host_uses_is_refused(self) -> None:
        self.start()
        self.look()
        address = self.addresses[0]
        self.use(address)
        path = self.block_device(address)
        with open(path, 'rb') as disk, subprocess.Popen(['sleep', 'infinity'], stdin=disk) as reader:
            try:
                self.assert_stays(address, f'open in process {reader.pid}')
            finally:
                reader.kill()
        self.clear(path)
        make_file_system(path)
        with tempfile.TemporaryDirectory() as directory, mounted(path, directory):
            self.assert_stays(address, f'{directory} is mounted from')
        self.assertEqual({}, self.look())
        self.assertEqual((True, [address]), (self.is_zero(address), self.service.handed_out))

    def test_a_disk_that_cannot_sanitize_is_refused(self) -> None:
        self.start('nvme-sanitize')
        self.assertIn('SANICAP', str(self.look()))          # before a guest has it
        address = self.addresses[0]
        self.use(address)
        # At first, udev may still look at the disk that has just come back.
        self.assertTrue(any('SANICAP' in self.look()[DeviceKey('pci', address)] for _ in range(hosts.TRIES)))
        self.assertEqual(([], {address}, False),
                         (self.service.handed_out, self.service.reserved, self.is_zero(address)))

    def test_a_disk_without_a_note_of_its_guest_is_refused(self) -> None:
        self.start()
        address = self.addresses[0]
        self.use(address)
        self.assert_stays(address, 'which device its guest had was not noted')
        self.compute.manager.operator.admit('pci', address, wipe=True)
        self.assertEqual({}, self.look())
        self.assertEqual((True, [address]), (self.is_zero(address), self.service.handed_out))

    def test_a_guest_of_somebody_else_that_starts_while_a_disk_waits(self) -> None:
        self.start()
        self.look()
        address = self.addresses[0]
        self.use(address)
        stranger = str(uuid.uuid4())
        self.addCleanup(self.compute.machine.delete_guest, stranger)
        self.compute.machine.start_guest(stranger, (guest_xml.pci_hostdev(address, 'yes'),))
        self.assertIn('names it', self.look()[DeviceKey('pci', address)])
        self.assertEqual(([], {address}), (self.service.handed_out, self.service.reserved))
        self.compute.machine.delete_guest(stranger)
        self.assertEqual({}, self.look())
        self.assertEqual((True, [address]), (self.is_zero(address), self.service.handed_out))
