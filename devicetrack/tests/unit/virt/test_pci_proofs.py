"""What a proof of a disk says, and what it does not."""

from __future__ import annotations

import errno
import os
import shutil
import time
from typing import Any
from unittest import mock
import uuid

from devicetrack import exception
from devicetrack import filelock
from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import values
from devicetrack.objects.values import Word
from devicetrack.testing import libvirt as libvirt_fixtures
from devicetrack.testing import nvme
from devicetrack.tests import base
from devicetrack.tests.drivers import case
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.tests.unit.virt.pci_hosts import CARD
from devicetrack.tests.unit.virt.pci_hosts import DISK
from devicetrack.tests.unit.virt.pci_hosts import NVME
from devicetrack.tests.unit.virt.pci_hosts import OLD
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import driver as libvirt_driver
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import pci_namespaces as libvirt_pci_disks
from devicetrack.virt.libvirt.kinds import pci_erasing


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
        case.prove_all(driver)
        made = driver.realize(offered)
        self.disk.fill(OLD)
        return contract.assignment(offered.instance_uuid, 'pci', DISK, offered.parent, made.details,
                                   was_realized=True)

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

    def proven(self, driver: libvirt_driver.LibvirtDriver) -> Any:
        self.assertIsNone(self.proves(driver, vocabulary.READ))
        self.assertFalse(self.is_unproven(driver))
        return self.offered(driver)

    def check_written(self, driver: libvirt_driver.LibvirtDriver, wanted: Any) -> None:
        error = self.assertRaises(exception.NotProven, driver.realize, wanted)
        self.assertIn('somebody wrote to it', str(error))
        self.assertTrue(self.is_unproven(driver))

    def test_a_disk_that_was_mounted_and_written_between_two_audits_goes_to_no_guest(self) -> None:
        driver = self.driver('zero')
        wanted = self.proven(driver)
        self.host.write_to('nvme0n1')
        self.check_written(driver, wanted)

    def test_a_disk_that_is_written_while_it_is_read_is_not_proven(self) -> None:
        driver = self.driver('zero')
        read = driver._kinds['pci'].read_through

        def reads(*arguments: Any) -> None:
            read(*arguments)
            self.host.write_to('nvme0n1')

        self.patch(driver._kinds['pci'], 'read_through', reads)
        self.assertIn('while it was read', str(self.proves(driver, vocabulary.READ)))
        self.assertTrue(self.is_unproven(driver))

    def test_nor_does_one_that_left_its_driver_for_a_while(self) -> None:
        driver = self.driver('zero')
        wanted = self.proven(driver)
        self.give_to_guest()                    # nobody counts what a guest writes
        self.host.unbind(DISK)
        self.host.bind(DISK, 'nvme')
        self.controllers.show(DISK)
        self.check_written(driver, wanted)

    def test_partitions_that_the_host_drops_after_a_wipe_are_no_write(self) -> None:
        name = f'{self.host.controller_of(DISK)}n1'
        self.host.add_partition(name, f'{name}p1')
        driver = self.driver('zero')
        wanted = self.of_a_guest(driver)
        self.assertEqual([None], list(driver.unclaim([wanted]).values()))
        shutil.rmtree(os.path.realpath(os.path.join(self.host.root, 'class/block', f'{name}p1')))
        self.assertFalse(self.is_unproven(driver))
        self.host.add_partition(name, f'{name}p2')
        self.host.add_partition(name, f'{name}p3')
        self.assertTrue(self.is_unproven(driver))

    def test_nor_does_one_that_has_another_partition_after_a_boot(self) -> None:
        driver = self.driver('zero')
        wanted = self.proven(driver)
        self.boots(driver)
        self.host.add_partition(f'{self.host.controller_of(DISK)}n1', f'{self.host.controller_of(DISK)}n1p1')
        self.check_written(driver, wanted)

    def boots(self, driver: libvirt_driver.LibvirtDriver) -> None:
        kind = driver._kinds['pci']
        boot = f'{kind.boot_id()} again'
        kind.boot_id = lambda: boot
        self.host.unbind(DISK)
        self.host.bind(DISK, 'nvme')
        self.controllers.show(DISK)

    def test_a_boot_writes_to_no_disk(self) -> None:
        driver = self.driver('zero')
        self.proven(driver)
        self.boots(driver)
        self.assertFalse(self.is_unproven(driver))
        self.boots(driver)
        driver.realize(self.offered(driver))

    def test_after_a_boot_what_it_counts_anew_is_compared(self) -> None:
        driver = self.driver('zero')
        self.proven(driver)
        self.boots(driver)
        self.assertFalse(self.is_unproven(driver))
        self.host.write_to(f'{self.host.controller_of(DISK)}n1')
        self.assertTrue(self.is_unproven(driver))

    def test_after_a_boot_a_disk_that_leaves_its_driver_is_seen_too(self) -> None:
        driver = self.driver('zero')
        self.proven(driver)
        self.boots(driver)
        self.assertFalse(self.is_unproven(driver))
        self.give_to_guest()
        self.host.unbind(DISK)
        self.host.bind(DISK, 'nvme')
        self.controllers.show(DISK)
        self.assertTrue(self.is_unproven(driver))

    def test_the_word_of_a_person_ends_when_somebody_writes(self) -> None:
        driver = self.driver('person')
        wanted = self.offered(driver)
        self.assertIsNone(self.proves(driver, Word('ops', 'erased').how))
        self.host.write_to('nvme0n1')
        self.check_written(driver, wanted)

    def withheld_unshown(self, reason: str) -> None:
        for policy in ('zero', 'blkdiscard', 'nvme-format', 'person'):
            driver = self.driver(policy)
            self.assertIn(reason, str(self.proves(driver, vocabulary.READ)))
            self.assertTrue(self.is_unproven(driver))
            if policy != 'person':
                self.assertIn(reason, str(self.proves(driver, vocabulary.WIPE)))
                [device] = driver.get_inventory().devices
                self.assertIn(reason, str(device.unhealthy))
                case.prove_all(driver)
                self.assertRaises(exception.RealizeFailed, driver.realize, self.offered(driver))

    def resize(self, sectors: int) -> None:
        """Let the kernel show another size of the namespace."""
        name = self.host.controller_of(DISK)
        with open(self.host.path(DISK, f'nvme/{name}/{name}n1/size'), 'w') as file:
            file.write(str(sectors))

    def test_a_namespace_without_capacity_in_the_kernel_is_not_proven(self) -> None:
        self.disk.fill(OLD)
        self.resize(0)
        self.withheld_unshown('the kernel shows its namespace 1 with 0 bytes in blocks of 512, and its controller has '
                              '1048576')

    def test_nor_is_one_that_the_kernel_does_not_show(self) -> None:
        self.controller.add(2).fill(OLD)
        self.withheld_unshown('its controller has the namespace 2, and the kernel shows no disk of it')
        # It is asked again, since only its obstacle was found.
        driver = self.driver('zero')
        driver.get_inventory()
        del self.controller.namespaces[2]
        [device] = driver.get_inventory().devices
        self.assertIsNone(device.unhealthy)

    def test_it_is_not_said_that_a_guest_did_what_the_kernel_does(self) -> None:
        driver = self.driver('zero')
        given = self.of_a_guest(driver)
        self.resize(0)
        [answer] = driver.unclaim([given]).values()
        self.assertIn('the kernel shows its namespace 1 with 0 bytes', str(answer))
        self.assertNotIn('its guest changed', str(answer))
        self.resize(nvme.MIB // 512)
        self.assertEqual([None], list(driver.unclaim([given]).values()))

    def test_only_a_wipe_of_every_recorded_namespace_counts(self) -> None:
        two = self.controller.add(2)
        self.controllers.show(DISK)
        driver = self.driver('zero')
        given = self.of_a_guest(driver)
        two.fill(OLD)
        wipe, show = pci_erasing.Erasing.wipe, libvirt_pci_disks.shown

        def one_vanishes(erasing: pci_erasing.Erasing, how: str) -> None:
            with mock.patch.object(libvirt_pci_disks, 'shown', lambda *at: (show(*at) or ())[:1]):
                wipe(erasing, how)

        with mock.patch.object(pci_erasing.Erasing, 'wipe', one_vanishes):
            [answer] = driver.unclaim([given]).values()
        self.assertIn('its driver shows other disks now: there are the namespaces 1, and the claim found 1, 2',
                      str(answer))
        self.assertFalse(self.is_zero())
        self.assertEqual([None], list(driver.unclaim([given]).values()))
        self.assertFalse(any(two.content))

    def test_a_name_that_is_another_namespaces_when_it_is_opened(self) -> None:
        driver = self.driver('zero')
        given = self.of_a_guest(driver)
        opened = disk_nodes.open_disk

        def renamed(*arguments: Any, **named: Any) -> int:
            name = self.host.controller_of(DISK)
            with open(self.host.path(DISK, f'nvme/{name}/{name}n1/nsid'), 'w') as file:
                file.write('2')
            return opened(*arguments, **named)

        with mock.patch.object(disk_nodes, 'open_disk', renamed):
            [answer] = driver.unclaim([given]).values()
        self.assertIn('its namespace 1 changed while it was opened', str(answer))
        self.assertFalse(self.is_zero())

    def test_a_service_that_sees_no_open_files_of_others_neither_wipes_nor_reads_what_one_has_open(self) -> None:
        driver = self.driver('zero')
        given, before = self.of_a_guest(driver), self.host.use()
        driver._kinds['pci'].host_use = lambda: before          # type: ignore[attr-defined]
        name = f'{self.host.controller_of(DISK)}n1'
        self.host.add_partition(name, f'{name}p1')
        self.host.add_process(812, 'qemu')
        self.host.open_device(812, f'{name}p1')
        for answer in (driver.unclaim([given])[given.key], self.proves(driver, vocabulary.WIPE),
                       self.proves(driver, vocabulary.READ)):
            self.assertIsInstance(answer, exception.DeviceInUse)
            self.assertIn(f'process 812 (qemu) has {name}p1 open', str(answer))
        self.assertEqual(OLD, self.disk.content[:16])
        os.unlink(os.path.join(self.host.proc, '812/fd/3'))
        self.assertEqual([None], list(driver.unclaim([given]).values()))
        self.assertTrue(self.is_zero())

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


class SubsystemTestCase(pci_hosts.PCIHostTestCase):
    """The proofs of other functions of a disk that a guest gets whole."""

    def driver(self, **spec: str) -> libvirt_driver.LibvirtDriver:
        node = self.useFixture(libvirt_fixtures.TestNode())
        return pci_hosts.driver_of(self, self.host, spec, 'person', node.connect)

    def offered(self, driver: libvirt_driver.LibvirtDriver) -> dict[str, Any]:
        return {one.identifier: contract.assignment(str(uuid.uuid4()), 'pci', one.identifier, one.parent, one.details)
                for one in driver.get_inventory().devices}

    def unproven(self, driver: libvirt_driver.LibvirtDriver, *beside: str) -> set[str]:
        return {identifier for _kind, identifier in driver.get_inventory().unproven} - set(beside)

    def admit(self, driver: libvirt_driver.LibvirtDriver) -> dict[str, Any]:
        """Prove all functions clean, as a wipe does."""
        offered = self.offered(driver)
        driver._proofs.record({values.DeviceKey('pci', name): details.to_text(one.details)
                               for name, one in offered.items()}, vocabulary.WIPED)
        self.assertEqual(set(), self.unproven(driver))
        return offered

    def test_those_of_its_virtual_functions_end(self) -> None:
        for address, serial in ((CARD, 'S1'), ('0000:04:00.0', 'S2')):
            self.host.add_nvme_with_vfs(address, serial)
        [vf], [other] = self.host.make_vfs(CARD, 1), self.host.make_vfs('0000:04:00.0', 1)
        for address in (vf, other):
            self.host.bind(address, 'nvme')
        driver = self.driver(vendor_id='1b36')
        self.admit(driver)
        self.host.remove(vf)                    # the whole disk is for one guest now
        driver.realize(self.offered(driver)[CARD])
        self.host.make_vfs(CARD, 1)
        self.host.bind(vf, 'nvme')
        self.assertEqual({vf}, self.unproven(driver, CARD))

    def test_those_of_its_other_controllers_end(self) -> None:
        one, two = self.host.add_card('0000:07:00', ('S1', 'S1'))
        self.host.add_nvme(DISK, 'S2')
        driver = self.driver(**NVME)
        offered = self.admit(driver)
        driver.guest_config([offered[one]])
        self.assertEqual({one, two}, self.unproven(driver))

    def test_a_file_that_is_not_trusted_meanwhile_brings_back_none(self) -> None:
        one, two = self.host.add_card('0000:07:00', ('S1', 'S1'))
        path = os.path.join(self.state_path, 'proofs')
        for call in (lambda driver, offered: self.assertRaises(exception.NotProven, driver.realize, offered),
                     lambda driver, offered: driver.guest_config([offered])):
            offered = self.admit(self.driver(**NVME))
            os.chmod(path, 0o660)
            call(self.driver(**NVME), offered[one])
            os.chmod(path, 0o600)
            self.assertEqual({one, two}, self.unproven(self.driver(**NVME)))

    def test_while_the_file_cannot_be_read_nobody_gets_a_disk(self) -> None:
        one, two = self.host.add_card('0000:07:00', ('S1', 'S1'))
        offered = self.admit(self.driver(**NVME))
        driver = self.driver(**NVME)
        with mock.patch.object(ownfiles, 'check_file', autospec=True,
                               side_effect=OSError(errno.EIO, os.strerror(errno.EIO))):
            for error in (self.assertRaises(exception.RealizeFailed, driver.realize, offered[one]),
                          self.assertRaises(exception.CommandFailed, driver.guest_config, [offered[one]]),
                          driver.unclaim([offered[one]])[offered[one].key]):
                self.assertIn('If that lasts, delete the file', str(error))
        self.assertEqual(set(), self.unproven(driver))

    def test_those_of_other_functions_of_a_card_stay(self) -> None:
        card = self.host.add_igb(CARD)
        self.host.give_serial(card, 'S1')
        [vf] = self.host.make_vfs(card, 1)
        driver = self.driver(vendor_id='8086')
        offered = self.admit(driver)
        driver.guest_config([offered[card]])
        self.assertEqual({card}, self.unproven(driver))
        self.admit(driver)
        driver.guest_config([offered[vf]])
        self.assertEqual({vf}, self.unproven(driver))
