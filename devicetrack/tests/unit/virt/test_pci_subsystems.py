"""Disks with the data of others: virtual functions, and controllers of one NVM subsystem."""

from __future__ import annotations

import errno
import json
import os
import threading
from typing import Any

from devicetrack import exception
from devicetrack.tests.unit.virt.pci_hosts import DISK
from devicetrack.tests.unit.virt.pci_hosts import DiskTestCase
from devicetrack.tests.unit.virt.pci_hosts import NVME
from devicetrack.tests.unit.virt.pci_hosts import OLD
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import nvme_controllers

FORMAT, SANITIZE = 0x80, 0x84


class SharedDiskTestCase(DiskTestCase):

    def formats_unless_it_reaches_others(self, address: str) -> None:
        """Format as an attacker with the service's rights can: past the checks of the service's own process."""
        disks = [(f'{self.host.controller_of(address)}n1', self.disk.size)]
        form = nvme_admin.Format(0)
        for function, lock in ((nvme_controllers.format_here, ()), (nvme_controllers.format_namespace, (1,))):
            for fna in (0b001, 0b010):
                self.controller.fna = fna
                error = self.assertRaises(OSError, function, self.host.root, address, disks, 1, form,
                                          nvme_admin.USER_DATA, 60, *lock)
                self.assertEqual(errno.EINVAL, error.errno)
                self.assertIn('a format of one namespace reaches all', str(error))
                self.assertEqual([], self.controller.commands)
            self.controller.fna = 0b100
            function(self.host.root, address, disks, 1, form, nvme_admin.USER_DATA, 60, *lock)
            self.assertEqual([FORMAT], self.controller.commands)
            self.controller.commands.clear()


class VirtualTestCase(SharedDiskTestCase):
    """A virtual function with private namespaces, beside others with theirs."""

    def setUp(self) -> None:
        super().setUp()
        physical = self.host.add_nvme_with_vfs('0000:02:00.0', 'S2')
        self.vf, = self.host.make_vfs(physical, 1)
        self.host.bind(self.vf, 'nvme')
        self.controller = self.controllers.add(self.vf)
        self.disk = self.controller.namespaces[1]
        self.configuration.set('devicetrack_pci', vfs=[json.dumps({'address': physical, 'private_namespaces': True})])

    def test_a_policy_that_reaches_others_is_refused_after_its_guest_too(self) -> None:
        self.controller.sanicap = 0b010
        for policy, fna, shared, reason in (
                ('nvme-sanitize', 0, False, 'nvme-sanitize of its controller would erase the data of others'),
                ('nvme-format', 0b001, False, 'nvme-format of its controller would erase the data of others'),
                ('zero', 0, True, 'its namespace 1 is shared with other controllers'),
                ('program', 0, True, 'its namespace 1 is shared with other controllers')):
            cleaning = {'policy': policy, **({'program': '/bin/true'} if policy == 'program' else {})}
            assignment = self.realized(self.kind({'address': self.vf}, cleaning='none' if shared else 'zero'), self.vf)
            self.disk.fill(OLD)
            self.controller.fna, self.disk.shared = fna, shared
            # A service starts with another policy while the guest has the function.
            self.give_to_guest(self.vf)
            kind = self.kind({'address': self.vf}, cleaning=cleaning)
            kind.check_host()
            self.host.unbind(self.vf)
            self.host.bind(self.vf, 'nvme')
            self.controllers.show(self.vf)
            self.controller.commands.clear()
            self.withheld(kind, assignment, reason)
            self.assertEqual(([], OLD), (self.controller.commands, self.disk.content[:16]))
            self.controller.fna, self.disk.shared = 0, False
            self.unclaim(self.kind({'address': self.vf}, cleaning='zero'), assignment)

    def test_a_controller_that_cannot_be_asked_any_more(self) -> None:
        kind = self.kind({'address': self.vf}, cleaning='zero')
        assignment = self.realized(kind, self.vf)

        def refuses(*_arguments: Any) -> Any:
            raise PermissionError(13, 'Permission denied')

        self.patch(nvme_admin, 'submit', refuses)
        self.withheld(kind, assignment, 'needs CAP_SYS_ADMIN')

    def test_other_blocks_are_restored_only_if_a_format_reaches_no_others(self) -> None:
        kind = self.kind({'address': self.vf}, cleaning='zero')
        for fna in (0b001, 0b010, 0):
            self.controller.fna = fna
            assignment = self.realized(kind, self.vf)
            self.disk.lbaf = 1
            self.controllers.show(self.vf)
            self.controller.commands.clear()
            if fna:
                self.withheld(kind, assignment, 'its guest changed its namespaces: namespace 1 has 1048576 bytes in '
                                                'blocks of 4096')
                self.assertEqual([], self.controller.commands)
                self.disk.lbaf = 0
                self.controllers.show(self.vf)
            self.unclaim(kind, assignment)
            self.assertEqual((0, True), (self.disk.lbaf, self.is_zero()))

    def test_a_sanitize_command_is_not_sent_to_it(self) -> None:
        error = self.assertRaises(OSError, nvme_controllers.start_sanitize, self.host.root, self.vf, [],
                                  nvme_admin.BLOCK_ERASE)
        self.assertIn('is a virtual function', str(error))
        self.assertEqual([], self.controller.commands)

    def test_a_format_that_reaches_others_is_not_sent_to_it(self) -> None:
        self.formats_unless_it_reaches_others(self.vf)


class SubsystemTestCase(SharedDiskTestCase):
    """An NVM subsystem with another controller, which another function or another host may have."""

    def setUp(self) -> None:
        super().setUp()
        self.controller.others = {1}
        self.controller.sanicap = 0b010

    def test_a_shared_namespace_is_not_handed_out(self) -> None:
        self.disk.shared = True
        for policy in ('zero', 'blkdiscard', 'nvme-format'):
            kind = self.kind(NVME, cleaning=policy)
            self.assertIn('its NVM subsystem also has the controller 1, and its namespace 1 is shared',
                          self.unhealthy(kind))
            self.assertRaises(exception.RealizeFailed, kind.realize, self.assigned(kind))

    def test_only_erasures_of_single_namespaces_are_possible(self) -> None:
        for policy, fna, erases_others in (('zero', 0b001, False), ('nvme-format', 0, False),
                                           ('nvme-format', 0b010, True), ('nvme-sanitize', 0, True)):
            self.controller.fna = fna
            kind = self.kind(NVME, cleaning=policy)
            if erases_others:
                self.assertIn(f'{policy} of its controller would erase the data of others', self.unhealthy(kind))
            else:
                self.unclaim(kind, self.used(kind))
                self.assertTrue(self.is_zero())

    def test_a_format_that_reaches_others_is_not_sent_to_it(self) -> None:
        for others in ({1}, None):
            self.controller.others = others
            self.formats_unless_it_reaches_others(DISK)
        self.controller.others = set()
        self.controller.fna = 0b011
        disks = [(f'{self.host.controller_of(DISK)}n1', self.disk.size)]
        nvme_controllers.format_namespace(self.host.root, DISK, disks, 1, nvme_admin.Format(0), nvme_admin.USER_DATA,
                                          60, -1)
        self.assertEqual([FORMAT], self.controller.commands)

    def test_one_whose_controllers_are_not_named_may_have_others(self) -> None:
        self.controller.others = None
        kind = self.kind(NVME, cleaning='nvme-sanitize')
        self.assertIn('its NVM subsystem may have other controllers (CMIC)', self.unhealthy(kind))
        self.controller.others = set()
        self.assertEqual('None', self.unhealthy(kind))

    def test_its_secondary_controllers_are_no_others_and_asked_for_only_where_there_may_be_some(self) -> None:
        asked: list[int] = []
        answer = self.controller.answer

        def noted(command: nvme_admin.Command, *more: Any) -> bytes:
            asked.append(command.cdw10 & 0xFF)
            return answer(command, *more)

        self.patch(self.controller, 'answer', noted)
        self.controller.oacs |= 0b1000
        for others, own, manages, found, is_asked in (
                (set(), 0, False, (), False), ({1}, 0, False, (1,), False), (set(), 0, True, (), False),
                ({1}, 0, True, (1,), True), ({3}, 2, True, (3,), True), (set(), 1, True, (), True)):
            self.controller.others = others
            self.controller.secondaries = {number: [0, 0, 0] for number in range(1, own + 1)}
            self.controller.oacs = self.controller.oacs & ~(1 << 7) | manages << 7
            asked.clear()
            self.assertEqual(found, nvme_controllers.read_controller(self.host.root, DISK).others)
            self.assertEqual(is_asked, nvme_admin.SECONDARIES in asked)

    def test_another_controller_that_came_while_a_guest_had_the_disk(self) -> None:
        self.controller.others = set()
        kind = self.kind(NVME, cleaning='nvme-sanitize')
        assignment = self.used(kind)
        self.controller.others = {1}
        self.withheld(kind, assignment, 'would erase the data of others')
        self.assertFalse(self.is_zero())
        disks = [(f'{self.host.controller_of(DISK)}n1', self.disk.size)]
        error = self.assertRaises(OSError, nvme_controllers.start_sanitize, self.host.root, DISK, disks,
                                  nvme_admin.BLOCK_ERASE)
        self.assertIn('other controllers', str(error))
        self.assertNotIn(SANITIZE, self.controller.commands)

    def test_other_blocks_are_not_restored_by_a_format_of_all(self) -> None:
        self.controller.fna = 0b001
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.used(kind)
        self.disk.lbaf = 1
        self.controllers.show(DISK)
        self.withheld(kind, assignment, 'in blocks of 4096')
        self.assertNotIn(FORMAT, self.controller.commands)

    def test_nobody_is_told_to_delete_a_namespace_of_another_controller(self) -> None:
        self.controller.oacs |= 0b1000
        self.controller.add(2).attached_to = {1}
        kind = self.kind(NVME, cleaning='zero')
        reason = self.unhealthy(kind)
        self.assertIn('the namespace 2 belongs to the controller 1 of its NVM subsystem', reason)
        self.assertNotIn('delete', reason)
        with open(os.path.join(self.state_path, 'lock'), 'w') as lock:
            for policy in ('zero', 'person'):
                kind = self.kind(NVME, cleaning=policy)
                error = self.assertRaises(exception.NotProven, kind.read_through, self.assigned(kind), lock.fileno(),
                                          threading.Event())
                self.assertIn('the namespace 2 belongs to the controller 1', str(error))
