"""What a proof of a disk says, and what it does not."""

from __future__ import annotations

import os
import time
from typing import Any
from unittest import mock
import uuid

from devicetrack import exception
from devicetrack import filelock
from devicetrack import vocabulary
from devicetrack.objects import values
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.tests.unit.virt.pci_hosts import DISK
from devicetrack.tests.unit.virt.pci_hosts import NVME
from devicetrack.tests.unit.virt.pci_hosts import OLD
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import nvme_admin


class ProofTestCase(pci_hosts.DiskTestCase):

    def driver(self, policy: str, wait_s: int = 0) -> libvirt_driver.LibvirtDriver:
        node = self.useFixture(libvirt_fixtures.TestNode())
        return pci_hosts.driver_of(self, self.host, NVME, policy, node.connect, wait_s)

    def offered(self, driver: libvirt_driver.LibvirtDriver) -> Any:
        """The disk in the form for drivers, as nobody has realized it."""
        [device] = driver.get_inventory().devices
        return contract.assignment(str(uuid.uuid4()), 'pci', DISK, device.parent, device.details)

    def of_a_guest(self, driver: libvirt_driver.LibvirtDriver) -> Any:
        """The disk of a guest that is gone and left bytes on it."""
        offered = self.offered(driver)
        made = driver.realize(offered)
        self.disk.fill(OLD)
        return contract.assignment(offered.instance_uuid, 'pci', DISK, offered.parent, made.details,
                                   generation=values.OF_A_GUEST)

    def is_unproven(self, driver: libvirt_driver.LibvirtDriver) -> bool:
        return bool(driver.get_inventory().unproven)

    def proves(self, driver: libvirt_driver.LibvirtDriver, how: str) -> Any:
        [answer] = driver.prove([self.offered(driver)], how).values()
        return answer

    def test_a_detached_namespace_is_not_proven_whatever_the_policy_would_do_after_a_guest(self) -> None:
        self.controller.oacs |= 0b1000
        self.controller.sanicap = 0b111
        self.controller.add(2).attached = False
        self.controllers.show(DISK)
        for policy in ('nvme-sanitize', 'person'):
            driver = self.driver(policy)
            self.assertIn('detached namespace 2', str(self.proves(driver, vocabulary.READ)))
            self.assertTrue(self.is_unproven(driver))

    def test_of_a_person_the_service_asks_no_right_to_ask(self) -> None:
        def refuses(*_arguments: Any) -> Any:
            raise PermissionError(13, 'Permission denied')

        self.patch(nvme_admin, 'submit', refuses)
        driver = self.driver('person')
        self.assertIsNone(self.proves(driver, vocabulary.READ))

    def test_it_ends_when_another_namespace_is_attached(self) -> None:
        driver = self.driver('zero')
        self.assertIsNone(self.proves(driver, vocabulary.READ))
        self.assertFalse(self.is_unproven(driver))
        self.controller.add(2).fill(OLD)
        self.controllers.show(DISK)
        self.assertTrue(self.is_unproven(driver))
        self.assertTrue(self.is_unproven(self.driver('zero')))

    def test_it_stays_while_the_namespaces_cannot_be_seen(self) -> None:
        driver = self.driver('zero')
        self.assertEqual([None], list(driver.unclaim([self.of_a_guest(driver)]).values()))
        for given in (True, False):
            if given:
                self.give_to_guest()
                driver.get_inventory()
        self.assertTrue(self.is_unproven(driver))               # a guest that nobody saw may have it

    def test_what_keeps_nothing_by_its_policy_needs_a_proof_under_another_one(self) -> None:
        driver = self.driver('none')
        self.assertIsNone(self.proves(driver, vocabulary.BLANK))
        self.assertFalse(self.is_unproven(driver))
        self.assertEqual([None], list(driver.unclaim([self.of_a_guest(driver)]).values()))
        self.assertEqual((False, True), (self.is_unproven(driver), self.is_unproven(self.driver('zero'))))
        self.assertFalse(self.is_unproven(self.driver('none')))
        # A claim from before the change does not go back as it is.
        driver = self.driver('zero')
        offered = self.offered(driver)
        self.assertEqual([None], list(driver.unclaim([offered]).values()))
        self.assertTrue(self.is_zero())
        self.assertFalse(self.is_unproven(driver))

    def test_a_wipe_for_nobody_waits_for_who_has_the_function(self) -> None:
        driver = self.driver('zero')
        offered = self.offered(driver)
        self.disk.fill(OLD)
        path = driver._kinds['pci'].own_path(offered)
        with filelock.NodeLock(str(path)) as lock:
            self.assertIsInstance(self.proves(driver, vocabulary.WIPE), exception.DeviceBusy)
            self.assertFalse(self.is_zero())
            lock.unlock()
        self.assertIsNone(self.proves(driver, vocabulary.WIPE))

    def exchanged_in_a_wait(self, namespaces: int) -> list[Any]:
        """Give the disk back while somebody puts another one into its slot. Returns the namespaces of that."""
        driver = self.driver('zero', wait_s=base.HANGS_S)
        wanted = self.of_a_guest(driver)
        state = self.host.path(DISK, f'nvme/{self.host.controller_of(DISK)}/state')
        os.rename(state, f'{state}_')                           # it is being reset, and not ready yet
        others: list[Any] = []
        slept, monotonic = [0.0], time.monotonic

        def sleep(seconds: float) -> None:
            slept[0] += 100 * seconds
            if not others:
                self.host.remove(DISK)
                del self.controllers.controllers[DISK]
                self.host.add_nvme(DISK, 'S2')
                other = self.controllers.add(DISK)
                other.oacs |= 0b1000
                for nsid in range(2, namespaces + 1):
                    other.add(nsid)
                self.controllers.show(DISK)
                others.extend(other.namespaces.values())
                for namespace in others:
                    namespace.fill(OLD)

        with (mock.patch.object(time, 'sleep', sleep),
              mock.patch.object(time, 'monotonic', lambda: monotonic() + slept[0])):
            [answer] = driver.unclaim([wanted]).values()
        self.assertIsInstance(answer, exception.DeviceError)
        return others

    def test_a_disk_that_comes_in_its_place_during_a_wait_is_left_alone(self) -> None:
        self.assertEqual([OLD], [bytes(one.content[:16]) for one in self.exchanged_in_a_wait(1)])

    def test_so_is_one_with_more_namespaces(self) -> None:
        self.assertEqual([OLD, OLD], [bytes(one.content[:16]) for one in self.exchanged_in_a_wait(2)])
