"""Virtual functions of an NVMe controller: online before anybody gets them, and each with namespaces of its own."""

from __future__ import annotations

import glob
import pathlib
import time
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import DeviceRequest
from devicetrack.testing import fixtures
from devicetrack.tests.host import machine
from devicetrack.tests.host.functions import hosts
from devicetrack.tests.host.functions.hosts import address_of
from devicetrack.tests.host.functions.hosts import controller
from devicetrack.tests.host.functions.hosts import driver_of
from devicetrack.tests.host.functions.hosts import put
from devicetrack.tests.host.functions.hosts import virtual
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import pci_namespaces
from devicetrack.virt.libvirt import pci_sysfs
from devicetrack.virt.libvirt.kinds import pci_erasing

PART = 'CUSTOM_PART'


class PartsTestCase(hosts.FunctionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.physical = address_of(machine.SPLIT)
        domain, bus, rest = self.physical.split(':')
        self.spec = {'address': {'domain': domain, 'bus': bus, 'slot': rest.partition('.')[0], 'function': '[1-7]'},
                     'resource_class': 'PART'}
        self.addCleanup(put, self.physical, 'sriov_numvfs', '0')

    def service(self, autoprobe: bool, cleaning: str) -> Any:
        """A service that makes two virtual functions when it starts."""
        return self.host_with_findings(
            self.spec, cleaning=cleaning, vfs=({'address': self.physical, 'number': 2, 'autoprobe': autoprobe},))

    def secondaries(self) -> list[nvme_admin.Secondary]:
        found = nvme_controllers.read_subsystem('/sys', self.physical).secondaries
        return [found[number] for number in range(2)]

    def attach(self) -> None:
        """Give each virtual function a namespace, as an operator does once; this controller forgets it with them."""
        for nsid, one in zip(machine.PARTS, self.secondaries(), strict=True):
            with controller(self.physical) as fd:
                nvme_admin.attach(fd, nsid, [one.cntlid], True)
            self.addCleanup(self.detach, nsid, one.cntlid)
        for address in virtual(self.physical):
            for path in glob.glob(f'/sys/bus/pci/devices/{address}/nvme/nvme*/rescan_controller'):
                pathlib.Path(path).write_text('1')

    def detach(self, nsid: int, cntlid: int) -> None:
        with controller(self.physical) as fd:
            nvme_admin.attach(fd, nsid, [cntlid], False)

    def turn_off(self, address: str) -> None:
        """As a reset of the card does."""
        one = self.secondaries()[virtual(self.physical).index(address)]
        with controller(self.physical) as fd:
            nvme_admin.virtualize(fd, one.cntlid, nvme_admin.OFFLINE)

    def assert_online(self) -> None:
        for one in self.secondaries():
            self.assertEqual((True, True, True), (one.is_online, one.queues >= 2, one.interrupts >= 1), str(one))

    def test_are_online_when_they_are_made_and_handed_out_with_namespaces_of_their_own(self) -> None:
        host = self.service(True, 'zero')
        self.assert_online()
        parts = virtual(self.physical)
        self.assertEqual({'nvme'}, set(map(driver_of, parts)))
        for device in self.machine.driver.get_inventory().devices:
            self.assertIn('no namespace is attached to its secondary controller', str(device.unhealthy))
        self.assertRaises(exception.NoFit, host.claim, fixtures.Instance(), DeviceRequest.of((PART, 1)))

        self.attach()
        host.audit()
        self.wait_until_proven(host)
        self.assertEqual([], list(host.audit()))
        instance = host.spawn(request=DeviceRequest.of((PART, 1)))
        address = self.held_by(host, instance)
        self.assertEqual('vfio-pci', driver_of(address))
        self.assertEqual([], list(host.audit()))
        self.machine.delete_guest(instance.uuid)
        self.assert_online()
        self.fill(address)
        host.manager.release(None, instance)
        self.assertTrue(self.is_zero(address))
        self.assertEqual(([], []), (list(host.records()), list(host.audit())))

    def test_one_that_went_offline_is_online_before_its_guest_starts(self) -> None:
        host = self.service(False, 'none')
        self.assert_online()
        self.assertEqual({None}, set(map(driver_of, virtual(self.physical))))
        self.attach()
        self.assertEqual([], list(host.audit()))
        for address in virtual(self.physical):
            self.turn_off(address)
        self.assertEqual([False, False], [one.is_online for one in self.secondaries()])
        self.assertEqual([], list(host.audit()))
        self.assert_online()

        instance = fixtures.Instance()
        self.addCleanup(self.machine.delete_guest, instance.uuid)
        with host.claim(instance, DeviceRequest.of((PART, 1))):
            address = self.held_by(host, instance)
            self.turn_off(address)
            host.boot_or_clean_up(instance)
        self.assert_online()
        self.assertEqual('vfio-pci', driver_of(address))
        self.machine.delete_guest(instance.uuid)
        host.manager.release(None, instance)
        self.assertEqual(([], []), (list(host.records()), list(host.audit())))

    def test_a_namespace_that_no_controller_has_keeps_all_of_them_back(self) -> None:
        host = self.service(False, 'none')
        self.attach()
        self.assertEqual([], list(host.audit()))
        second = self.secondaries()[1].cntlid
        self.detach(3, second)
        self.addCleanup(self.attach_again, 3, second)
        self.assertIn('a guest could attach the namespace 3', str(host.audit()))
        withheld = host.manager.operator.withheld()
        self.assertEqual(set(virtual(self.physical)),
                         {one.target.name for one in withheld if vocabulary.UNHEALTHY in one.causes})

    def attach_again(self, nsid: int, cntlid: int) -> None:
        with controller(self.physical) as fd:
            nvme_admin.attach(fd, nsid, [cntlid], True)


class WholeTestCase(hosts.FunctionsTestCase):
    """The physical function with all namespaces, which QEMU attaches, detaches and formats; it deletes none."""

    def attach(self, nsid: int, is_to_be: bool) -> None:
        with controller(self.physical) as fd:
            nvme_admin.attach(fd, nsid, [nvme_admin.identify_controller(fd).cntlid], is_to_be)

    def namespaces(self) -> str:
        return str(pci_erasing.asked(pci_sysfs.Tree(), pci_sysfs.Function(self.physical)))

    def paths(self) -> list[str]:
        return [f'/dev/{disk.name}' for disk in pci_namespaces.shown(pci_sysfs.Tree(), self.physical) or ()]

    def wait_for_paths(self, number: int) -> None:
        deadline = time.monotonic() + hosts.WAIT_S
        while len(self.paths()) != number:
            self.assertLess(time.monotonic(), deadline, str(self.paths()))
            time.sleep(0.1)

    def test_what_a_guest_did_to_namespaces_is_undone(self) -> None:
        self.physical = address_of(machine.SPLIT)
        for nsid in machine.PARTS:
            self.attach(nsid, True)
            self.addCleanup(self.attach, nsid, False)
        self.wait_for_paths(3)
        host = self.host({'address': self.physical}, cleaning='zero')
        instance = host.spawn(request=DeviceRequest.of((hosts.DISK, 1)))
        [assignment] = host.manager.assignments(instance.uuid)
        before = assignment.details.disks
        self.machine.delete_guest(instance.uuid)
        self.wait_for_paths(3)
        self.assertEqual(before, self.namespaces())
        self.attach(2, False)
        with controller(self.physical) as fd:
            nvme_admin.format_namespace(fd, 3, nvme_admin.Format(hosts.BLOCKS_OF_4096), 0, 60)
        self.wait_for_paths(2)
        self.assertNotEqual(before, self.namespaces())
        for path in self.paths():
            with open(path, 'r+b') as disk:
                disk.write(hosts.PATTERN)

        host.manager.release(None, instance)
        self.assertEqual(before, self.namespaces())
        for path in self.paths():
            with open(path, 'rb') as disk:
                self.assertFalse(any(disk.read()), path)
        self.assertEqual(([], [], 3), (list(host.records()), list(host.audit()), len(self.paths())))
