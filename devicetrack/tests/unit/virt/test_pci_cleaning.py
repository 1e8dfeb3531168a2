"""What is done to PCI functions that come back, on a host that is made of files and of controllers that answer."""

from __future__ import annotations

from collections.abc import Callable
import errno
import json
import os
import threading
import time
from typing import Any
from unittest import mock

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.testing import nvme
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import pci_hosts
from devicetrack.tests.unit.virt.pci_hosts import CARD
from devicetrack.tests.unit.virt.pci_hosts import DISK
from devicetrack.tests.unit.virt.pci_hosts import DiskTestCase
from devicetrack.tests.unit.virt.pci_hosts import NVME
from devicetrack.tests.unit.virt.pci_hosts import OLD
from devicetrack.virt.libvirt import disk_nodes
from devicetrack.virt.libvirt import nvme_admin
from devicetrack.virt.libvirt import nvme_controllers
from devicetrack.virt.libvirt import pci_use
from devicetrack.virt.libvirt import progress
from devicetrack.virt.libvirt.kinds import pci_erasing

FORMAT, SANITIZE, DELETE, DETACH = 0x80, 0x84, 0x0D, 0x15


class RecordTestCase(DiskTestCase):

    def test_what_a_guest_can_change_is_recorded_before_it_can(self) -> None:
        self.controller.oacs |= 0b1000
        self.controller.unallocated = 5
        kind = self.kind(NVME, cleaning='blkdiscard')
        claimed, realized = details.from_text(self.devices(kind)[DISK].details), self.realized(kind).details
        self.assertEqual(('1:1048576:512', ''), (claimed.disks, claimed.config))
        self.assertEqual(('1:1048576:512:0 capacity:8388608:5', '1b36:0010:02:010802:00:1af4:1100 0m16384'),
                         (realized.disks, realized.config))

    def test_a_controller_that_cannot_be_asked_gets_no_guest(self) -> None:
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.assigned(kind)

        def refuses(*_arguments: Any) -> Any:
            raise PermissionError(13, 'Permission denied')

        self.patch(nvme_admin, 'submit', refuses)
        self.assertIsNone(self.kind(NVME).stock().devices[0].unhealthy)
        kind = self.kind(NVME, cleaning='zero')
        self.assertIn('needs CAP_SYS_ADMIN', self.unhealthy(kind))
        error = self.assertRaises(exception.RealizeFailed, kind.realize, assignment)
        self.assertIn('needs CAP_SYS_ADMIN', str(error))

    def test_a_controller_is_asked_once_while_the_driver_has_it(self) -> None:
        asked = []
        read = nvme_controllers.read_controller

        def noted(*one: str) -> nvme_admin.Controller:
            asked.append(one)
            return read(*one)

        self.patch(nvme_controllers, 'read_controller', noted)
        kind = self.kind(NVME, cleaning='zero')
        for _audit in range(3):
            kind.stock()
        self.assertEqual(1, len(asked))
        self.give_to_guest()
        kind.stock()
        self.assertEqual(1, len(asked))


class SettlingTestCase(DiskTestCase):
    """A disk that has just come to the host's driver."""

    def setUp(self) -> None:
        super().setUp()
        self.cleaned = self.kind(NVME, cleaning='zero')
        self.assignment = self.assigned(self.cleaned)
        self.size = os.path.join(self.host.path(DISK, 'nvme'), *[self.host.controller_of(DISK)] * 2) + 'n1/size'

    def show(self, blocks: int) -> None:
        with open(self.size, 'w') as file:
            file.write(f'{blocks}\n')

    def wait(self, seconds: int, after: Callable[[], object]) -> None:
        """Let a wait take no time, and something happen in it."""
        self.cleaned.options = self.cleaned.options._replace(release_wait_s=seconds)
        self.patch(time, 'sleep', lambda _seconds: after())

    def test_a_new_owner_waits_for_its_namespaces(self) -> None:
        with open(self.size) as file:
            shown = int(file.read())
        self.show(0)
        self.wait(600, lambda: self.show(shown))
        self.cleaned.realize(self.assignment)
        self.show(0)
        self.wait(0, lambda: None)
        error = self.assertRaises(exception.RealizeFailed, self.cleaned.realize, self.assignment)
        self.assertIn('the kernel shows its namespace 1 with 0 bytes', str(error))

    def test_nobody_is_told_to_change_at_once_what_may_be_about_to_show(self) -> None:
        self.show(0)
        self.assertIn('if that stays so, give it an LBA format', self.unhealthy(self.kind(NVME, cleaning='zero')))

    def test_a_guest_goes_on_with_what_it_made_of_its_disk(self) -> None:
        self.realized(self.cleaned)
        for was_realized in (False, True):
            assignment = contract.assignment(self.instance, 'pci', DISK, self.assignment.parent, details.to_text(
                self.assignment.details), was_realized=was_realized)
            for state in ('formatted', 'shared', 'detached'):
                self.controller.oacs |= 0b1000
                self.controller.others = {1} if state == 'shared' else set()
                self.disk.shared = state == 'shared'
                self.controller.namespaces.pop(2, None)
                if state == 'detached':
                    self.controller.add(2).attached = False
                self.disk.lbaf = int(state == 'formatted')
                self.cleaned = self.kind(NVME, cleaning='zero')
                if not was_realized:
                    self.assertRaises(exception.RealizeFailed, self.cleaned.realize, assignment)
                else:
                    self.assertEqual(assignment.details.disks,
                                     details.from_text(self.cleaned.realize(assignment).details).disks)

    def test_a_new_owner_waits_for_who_looks_at_it(self) -> None:
        held = ['nvme0n1', None]
        self.patch(pci_use.HostUse, 'held', lambda *_arguments: held.pop(0))
        self.wait(600, lambda: None)
        self.cleaned.realize(self.assignment)
        self.assertEqual([], held)
        held += ['nvme0n1']
        self.wait(0, lambda: None)
        error = self.assertRaises(exception.RealizeFailed, self.cleaned.realize, self.assignment)
        self.assertIn('is held exclusively by somebody, for example by ZFS or DRBD', str(error))
        self.host.add_process(70, 'udev-worker')
        self.host.open_device(70, 'nvme0n1')
        descriptor = os.path.join(self.host.proc, '70/fd/3')
        held += [None]
        self.wait(600, lambda: os.unlink(descriptor))
        self.cleaned.realize(self.assignment)
        self.assertFalse(os.path.lexists(descriptor))


class ChangedTestCase(DiskTestCase):
    """A guest that did more than write."""

    def setUp(self) -> None:
        super().setUp()
        self.controller.oacs |= 0b1000

    def test_a_namespace_that_was_made_is_deleted(self) -> None:
        self.controller.sanicap = 0b111
        for policy in ('zero', 'nvme-format', 'nvme-sanitize'):
            for attached in (True, False):
                self.controller.unallocated = nvme.MIB
                kind = self.kind(NVME, cleaning=policy)
                assignment = self.used(kind)
                self.controller.add(2).attached = attached
                self.controller.unallocated = 0
                self.controllers.show(DISK)
                self.controller.commands.clear()
                self.unclaim(kind, assignment)
                self.assertEqual(([1], True), (list(self.controller.namespaces), self.is_zero()))
                self.assertEqual([DETACH, DELETE] if attached else [DELETE],
                                 [one for one in self.controller.commands if one in (DETACH, DELETE)])

    def test_a_namespace_that_another_controller_may_have_made_is_not(self) -> None:
        self.controller.others = {7}
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.used(kind)
        made = self.controller.add(2)
        made.fill(OLD)
        made.attached = False
        error = self.assertRaises(exception.DeviceInUse, self.unclaim, kind, assignment)
        self.assertIn('its guest made namespace 2: the controllers 7 of its NVM subsystem may have made namespace 2',
                      str(error))
        self.assertTrue(any(made.content))
        self.assertFalse(self.is_zero())
        # An operator knows whose it is.
        del self.controller.namespaces[2]
        self.unclaim(kind, assignment)

    def test_a_controller_that_refuses_to_delete(self) -> None:
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.used(kind)
        self.controller.add(2).attached = False
        self.controller.refuses.add(DELETE)
        self.withheld(kind, assignment, 'its guest made namespace 2: the controller refused it')

    def test_a_namespace_that_was_detached_is_attached(self) -> None:
        for policy in ('zero', 'nvme-format'):
            kind = self.kind(NVME, cleaning=policy)
            assignment = self.used(kind)
            self.disk.attached = False
            self.controllers.show(DISK)
            self.unclaim(kind, assignment)
            self.assertEqual((True, True), (self.disk.attached, self.is_zero()))

    def test_a_namespace_that_was_attached_is_detached(self) -> None:
        hidden = self.controller.add(2)
        hidden.attached = False
        self.controller.sanicap = 0b010
        kind = self.kind(NVME, cleaning='nvme-sanitize')
        assignment = self.used(kind)
        hidden.fill(OLD)
        hidden.attached = True
        self.controllers.show(DISK)
        self.unclaim(kind, assignment)
        self.assertEqual((False, False), (hidden.attached, any(hidden.content)))

    def test_a_namespace_that_was_deleted_is_made_again(self) -> None:
        self.controller.sanicap = 0b111
        for policy in ('zero', 'nvme-format', 'nvme-sanitize'):
            self.controller.add(2).lbaf = 1
            self.controller.namespaces[2].shared = True
            self.controllers.show(DISK)
            kind = self.kind(NVME, cleaning=policy)
            before = self.controller.unallocated
            assignment = self.used(kind)
            for nsid in (1, 2):
                self.controller.unallocated += self.controller.namespaces.pop(nsid).size
            self.controllers.show(DISK)
            self.unclaim(kind, assignment)
            self.assertEqual(
                {1: (nvme.MIB, 0, False, True), 2: (nvme.MIB, 1, True, True)},
                {nsid: (one.size, one.lbaf, one.shared, one.attached)
                 for nsid, one in self.controller.namespaces.items()})
            self.assertEqual((before, False), (self.controller.unallocated, any(
                byte for one in self.controller.namespaces.values() for byte in one.content)))

    def test_one_that_was_split_is_whole_again(self) -> None:
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.used(kind)
        del self.controller.namespaces[1]
        for nsid in (1, 2):
            self.controller.add(nsid, nvme.MIB // 2).fill(OLD)
        self.controllers.show(DISK)
        # Each step may be the last one before a crash.
        for opcode in (DETACH, DELETE):
            self.controller.refuses = {opcode}
            self.withheld(kind, assignment, 'its guest made namespace 1: the controller refused it')
        self.controller.refuses.clear()
        self.unclaim(kind, assignment)
        self.assertEqual([(1, nvme.MIB)], [(nsid, one.size) for nsid, one in self.controller.namespaces.items()])
        self.assertFalse(any(self.controller.namespaces[1].content))

    def test_one_that_cannot_be_made_again_is_for_a_person(self) -> None:
        other = self.controller.add(2)
        self.controllers.show(DISK)
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.used(kind)
        del self.controller.namespaces[2]
        self.controllers.show(DISK)
        self.withheld(kind, assignment, 'its guest deleted namespace 2, of 1048576 bytes in blocks of 512 (LBA format '
                                        '0): the controller refused it')
        self.controller.unallocated, self.controller.first = nvme.MIB, 5
        self.withheld(kind, assignment, 'the controller gave the new one the identifier 5, so it was deleted again')
        self.assertEqual([1], list(self.controller.namespaces))
        self.controller.namespaces[2], self.controller.unallocated = other, 0
        self.controllers.show(DISK)
        self.unclaim(kind, assignment)

    def test_all_at_once(self) -> None:
        self.controller.unallocated = nvme.MIB
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.used(kind)
        self.disk.attached, self.disk.lbaf = False, 1
        self.controller.add(2)
        self.controller.unallocated = 0
        self.controllers.show(DISK)
        # Each step may be the last one before a crash.
        for refused in (DELETE, DETACH, FORMAT):
            self.controller.refuses = {refused}
            self.assertRaises(exception.UnclaimFailed, self.unclaim, kind, assignment)
        self.controller.refuses.clear()
        self.unclaim(kind, assignment)
        self.assertEqual(([1], 0, True), (list(self.controller.namespaces), self.disk.lbaf, self.is_zero()))

    def test_bytes_that_were_taken_from_every_namespace(self) -> None:
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.used(kind)
        self.controller.unallocated = 4096
        self.withheld(kind, assignment, '4096 of 8388608 bytes are in no namespace')

    def test_a_detached_namespace_that_was_there_before(self) -> None:
        hidden = self.controller.add(2)
        hidden.attached = False
        hidden.fill(OLD)
        self.controller.sanicap = 0b010
        for policy in ('zero', 'blkdiscard', 'nvme-format', 'program'):
            cleaning = {'policy': policy, **({'program': '/bin/true'} if policy == 'program' else {})}
            kind = self.kind(NVME, cleaning=cleaning)
            self.assertIn(f'the detached namespace 2, which its policy {policy} does not clean', self.unhealthy(kind))
            self.assertRaises(exception.RealizeFailed, kind.realize, self.assigned(kind))
            with open(os.path.join(self.state_path, 'lock'), 'w') as lock:
                self.assertRaises(exception.NotProven, kind.read_through, self.assigned(kind), lock.fileno(),
                                  threading.Event())
        kind = self.kind(NVME, cleaning='nvme-sanitize')
        self.unclaim(kind, self.used(kind))
        self.assertFalse(any(hidden.content))

    def test_a_namespace_that_somebody_detached_since_the_last_audit(self) -> None:
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.assigned(kind)
        self.controller.add(2).attached = False
        error = self.assertRaises(exception.RealizeFailed, kind.realize, assignment)
        self.assertIn('the detached namespace 2', str(error))

    def test_other_blocks_are_formatted_as_they_were(self) -> None:
        self.controller.sanicap = 0b010
        for policy in ('zero', 'nvme-sanitize'):
            kind = self.kind(NVME, cleaning=policy)
            assignment = self.used(kind)
            self.disk.lbaf = 1
            self.controllers.show(DISK)
            self.unclaim(kind, assignment)
            self.assertEqual((0, True), (self.disk.lbaf, self.is_zero()))

    def test_other_blocks_that_the_controller_cannot_format(self) -> None:
        self.controller.oacs &= ~0b0010
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.used(kind)
        self.disk.lbaf = 1
        self.controllers.show(DISK)
        self.withheld(kind, assignment, 'in blocks of 4096, and the claim found 1048576 in blocks of 512')

    def test_namespaces_of_a_controller_that_does_not_manage_them(self) -> None:
        self.controller.oacs &= ~0b1000
        kind = self.kind(NVME, cleaning='zero')
        assignment = self.used(kind)
        self.controller.add(2)
        self.controllers.show(DISK)
        self.withheld(kind, assignment, 'there are the namespaces 1, 2, and the claim found 1')


class FormatTestCase(DiskTestCase):

    def test_makes_it_as_the_claim_found_it(self) -> None:
        kind = self.kind(NVME, cleaning='nvme-format')
        assignment = self.used(kind)
        self.disk.lbaf = 1
        self.controllers.show(DISK)
        self.unclaim(kind, assignment)
        self.assertEqual((0, True, [FORMAT]), (self.disk.lbaf, self.is_zero(), self.controller.commands))

    def test_every_namespace(self) -> None:
        other = self.controller.add(3)
        self.controllers.show(DISK)
        kind = self.kind(NVME, cleaning='nvme-format')
        assignment = self.used(kind)
        other.fill(OLD)
        self.unclaim(kind, assignment)
        self.assertEqual((True, False), (self.is_zero(), any(other.content)))

    def forgetful(self) -> None:
        """Let the controller format without erasing."""
        self.disk.fill = lambda data: None              # type: ignore[method-assign]

    def test_what_reads_back_otherwise_is_withheld(self) -> None:
        kind = self.kind(NVME, cleaning='nvme-format')
        assignment = self.used(kind)
        self.forgetful()
        error = self.assertRaises(exception.DriverError, self.unclaim, kind, assignment)
        self.assertIn('not all zero', str(error))

    def test_who_promises_no_zeroes_is_believed(self) -> None:
        self.disk.zeroes = False
        kind = self.kind(NVME, cleaning='nvme-format')
        assignment = self.used(kind)
        self.forgetful()
        self.unclaim(kind, assignment)

    def test_a_new_key_is_believed(self) -> None:
        kind = self.kind(NVME, cleaning={'policy': 'nvme-format', 'erase': 'cryptographic'})
        assignment = self.used(kind)
        self.forgetful()
        self.unclaim(kind, assignment)
        self.assertEqual([FORMAT], self.controller.commands)

    def test_a_controller_that_refuses(self) -> None:
        kind = self.kind(NVME, cleaning='nvme-format')
        assignment = self.used(kind)
        self.controller.refuses.add(FORMAT)
        self.withheld(kind, assignment, 'the controller refused it')
        self.assertIn(DISK, kind.identify([DISK]))
        # Whoever starts then does all of it again.
        self.controller.refuses.clear()
        self.unclaim(self.kind(NVME, cleaning='nvme-format'), assignment)
        self.assertTrue(self.is_zero())

    def test_each_try_that_waited_for_other_formats_looks_which_card_is_there(self) -> None:
        kind = self.kind(NVME, cleaning='nvme-format')
        assignment = self.used(kind)
        serial = self.host.path(DISK, f'nvme/{self.host.controller_of(DISK)}/serial')
        real, tries = nvme_controllers.format_namespace, [0]

        def busy(*arguments: Any) -> None:
            tries[0] += 1
            if tries[0] % 3:
                raise OSError(errno.EUSERS, 'formats run already')
            real(*arguments)

        def exchange(number: str) -> None:
            with open(serial, 'w') as file:
                file.write(f'{number}\n')

        self.patch(nvme_controllers, 'format_namespace', busy)
        with mock.patch.object(time, 'sleep', lambda _seconds: exchange('S2')):
            error = self.assertRaises(exception.DriverError, self.unclaim, kind, assignment)
        self.assertEqual((1, [], True), (tries[0], self.controller.commands, 'S2' in str(error)), str(error))
        exchange('S1')
        with mock.patch.object(time, 'sleep', lambda _seconds: None):
            self.unclaim(kind, assignment)
        self.assertEqual((3, [FORMAT]), (tries[0], self.controller.commands))

    def test_a_row_of_a_claim_that_could_not_ask(self) -> None:
        kind = self.kind(NVME, cleaning='nvme-format')
        assignment = self.assigned(kind)
        self.disk.fill(OLD)
        self.unclaim(kind, assignment)
        self.assertTrue(self.is_zero())
        self.disk.lbaf = 1
        self.controllers.show(DISK)
        self.withheld(kind, assignment, 'and the claim recorded no LBA format')

    def test_a_virtual_function_does_not_format_what_others_have(self) -> None:
        physical = self.host.add_nvme_with_vfs('0000:02:00.0', 'S2')
        vf, = self.host.make_vfs(physical, 1)
        self.host.bind(vf, 'nvme')
        controller = self.controllers.add(vf)
        specs = {'address': vf}
        self.configuration.set('devicetrack_pci', vfs=[json.dumps({'address': physical, 'private_namespaces': True})])
        controller.fna = 0b001
        kind = self.kind(specs, cleaning='nvme-format')
        self.assertIn('would erase the data of others', str(self.devices(kind)[vf].unhealthy))
        controller.fna, controller.namespaces[1].shared = 0, True
        kind = self.kind(specs, cleaning='nvme-format')
        self.assertIn('its namespace 1 is shared', str(self.devices(kind)[vf].unhealthy))
        controller.namespaces[1].shared = False
        kind = self.kind(specs, cleaning='nvme-format')
        self.assertIsNone(self.devices(kind)[vf].unhealthy)


class SanitizeTestCase(DiskTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.controller.sanicap = 0b010
        self.progress: list[int] = []
        self.patch(pci_erasing, '_LOOK_EVERY_S', 0)

    def test_erases_at_the_word_of_the_controller_and_shows_how_far_it_is(self) -> None:
        kind = self.kind(NVME, cleaning='nvme-sanitize')
        assignment = self.used(kind)
        self.controller.sanitizing = [0, 0x8000]
        reports: list[tuple[str, int]] = []
        self.patch(progress.Reporter, '__call__', lambda _self, *said: reports.append(said))
        self.unclaim(kind, assignment)
        self.assertTrue(self.is_zero())
        self.assertEqual([('sanitize', 0), ('sanitize', nvme.MIB * 0x8000 // 0xFFFF)], reports[:2])
        self.assertEqual(1, self.controller.commands.count(SANITIZE))

    def test_one_that_is_under_way_ends_first_and_proves_nothing(self) -> None:
        kind = self.kind(NVME, cleaning='nvme-sanitize')
        assignment = self.used(kind)
        self.controller.status = 100, nvme_admin.IN_PROGRESS, nvme_admin.BLOCK_ERASE
        self.unclaim(kind, assignment)
        self.assertEqual(1, self.controller.commands.count(SANITIZE))

    def test_one_that_fails_frees_nothing(self) -> None:
        kind = self.kind(NVME, cleaning='nvme-sanitize')
        assignment = self.used(kind)
        self.controller.fails = True
        self.withheld(kind, assignment, 'its controller did not sanitize it: SSTAT 3')
        self.controller.fails = False
        self.unclaim(kind, assignment)
        self.assertEqual(2, self.controller.commands.count(SANITIZE))

    def test_one_that_does_not_end_is_left_to_the_next_audit(self) -> None:
        for is_of_guest in (True, False):
            kind = self.kind(NVME, cleaning={'policy': 'nvme-sanitize', 'timeout_s': 60})
            assignment = self.used(kind)
            self.controller.commands.clear()
            if is_of_guest:
                self.controller.status = 0x4000, nvme_admin.IN_PROGRESS, nvme_admin.BLOCK_ERASE
            self.controller.sanitizing = [0x4000] * 100
            passed = iter(range(10**6))
            with mock.patch.object(time, 'monotonic', lambda passed=passed: float(next(passed))):
                self.withheld(kind, assignment, 'has been sanitizing it for 60 seconds (timeout_s), and reports 25 '
                                                'percent')
            self.assertEqual((not is_of_guest, False), (SANITIZE in self.controller.commands, self.is_zero()))
            self.controller.sanitizing.clear()
            self.unclaim(kind, assignment)
            self.assertTrue(self.is_zero())

    def test_another_one_that_was_done_proves_nothing(self) -> None:
        kind = self.kind(NVME, cleaning='nvme-sanitize')
        assignment = self.used(kind)
        self.controller.status = 0xFFFF, nvme_admin.COMPLETED, nvme_admin.CRYPTO_ERASE
        answer = self.controller.answer
        self.controller.answer = lambda command, size, sent=b'': (      # type: ignore[method-assign]
            b'' if command.opcode == SANITIZE else answer(command, size, sent))
        self.withheld(kind, assignment, 'action 4')


class StartTestCase(DiskTestCase):

    def refused(self, reason: str, cleaning: dict[str, Any], *specs: dict[str, Any]) -> None:
        error = self.assertRaises(exception.InvalidConfiguration, self.kind(*specs or (NVME,), cleaning=cleaning
                                                                            ).check_host)
        self.assertIn(reason, str(error))
        self.assertEqual('[devicetrack_pci] cleaning', error.option)

    def test_the_state_of_one_disk_keeps_no_service_from_starting(self) -> None:
        self.controller.sanicap, self.controller.others = 0b010, {1}
        self.controller.oacs |= 0b1000
        for policy, shared, detached, reason in (
                ('nvme-sanitize', False, False, 'also has the controller 1'),
                ('nvme-format', True, False, 'its namespace 1 is shared'),
                ('zero', True, False, 'its namespace 1 is shared'),
                ('zero', False, True, 'has the detached namespace 2')):
            self.disk.shared = shared
            if detached:
                self.controller.add(2).attached = False
            kind = self.kind(NVME, cleaning=policy)
            kind.check_host()
            self.assertIn(reason, self.unhealthy(kind))
            kind.check_host()

    def test_what_a_controller_cannot_do_is_refused(self) -> None:
        self.controller.fna = 0
        self.refused('cannot sanitize by block erase (SANICAP 0x0)', {'policy': 'nvme-sanitize'})
        self.controller.sanicap = 0b010
        self.kind(NVME, cleaning='nvme-sanitize').check_host()
        self.refused('cannot sanitize by overwriting (SANICAP 0x2)', {'policy': 'nvme-sanitize', 'erase': 'overwrite'})
        self.refused('cannot erase cryptographically', {'policy': 'nvme-format', 'erase': 'cryptographic'})
        self.controller.oacs = 0
        self.refused('no Format NVM', {'policy': 'nvme-format'})
        self.assertIn('no Format NVM', self.unhealthy(self.kind(NVME, cleaning='nvme-format')))

    def test_what_is_no_disk_is_refused(self) -> None:
        self.host.add_igb(CARD)
        self.refused(f'for {CARD}: it is not an NVMe disk', {'policy': 'blkdiscard'}, {'vendor_id': '8086'})

    def test_who_cannot_be_asked_now_keeps_no_service_from_starting(self) -> None:
        self.give_to_guest()
        self.kind(NVME, cleaning='nvme-sanitize').check_host()


class BackTestCase(pci_hosts.PCIHostTestCase):
    """A function that is clean goes back as it was recorded."""

    def setUp(self) -> None:
        super().setUp()
        self.host.add_igb(CARD)
        self.pci = self.kind({'vendor_id': '8086'})
        self.assignment = self.realized(self.pci, CARD)

    def test_a_guest_that_made_another_device_of_it(self) -> None:
        path = self.host.path(CARD, 'config')
        with open(path, 'r+b') as file:
            file.seek(8)
            file.write(b'\x77')
        error = self.assertRaises(exception.UnclaimFailed, self.unclaim, self.pci, self.assignment)
        self.assertIn('changed its configuration space', str(error))
        self.assertIn(':77:', str(error))
        with open(path, 'wb') as file:
            file.write(b'\xff' * 64)
        error = self.assertRaises(exception.UnclaimFailed, self.unclaim, self.pci, self.assignment)
        self.assertIn('does not answer', str(error))

    def test_a_process_that_has_its_group_open(self) -> None:
        with self.host.opened(CARD):
            self.assertRaises(exception.DeviceInUse, self.unclaim, self.pci, self.assignment)
        self.unclaim(self.pci, self.assignment)
        self.assertEqual({}, self.kind({'vendor_id': '1234'}).identify([CARD]))

    def test_a_function_for_one_use_waits_for_a_person(self) -> None:
        kind = self.kind({'vendor_id': '8086', 'one_time_use': 'yes'}, cleaning='none')
        error = self.assertRaises(exception.UnclaimFailed, self.unclaim, kind, self.assignment)
        self.assertIn('a person has to clean it', str(error))
        self.assertEqual([], list(kind.is_blank([self.assignment])))


class ErasedDisksTestCase(DiskTestCase):
    """A caller of the privileged functions names the disks, and may be an attacker."""

    def test_all_are_open_while_the_controller_erases(self) -> None:
        self.controller.oacs |= 0b1000
        self.controller.sanicap = 0b010
        self.controllers.show(DISK)
        name, size = f'{self.host.controller_of(DISK)}n1', self.disk.size
        opened: list[str] = []
        real = disk_nodes.open_here

        def opens(*arguments: Any) -> int:
            opened.append(arguments[2])
            return real(*arguments)

        self.patch(disk_nodes, 'open_here', opens)
        self.disk.fill(OLD)
        for disks, error in (([], errno.EBUSY), ([(name, size // 2)], errno.EBUSY), ([(name, size)], 0),
                             ([(name, size), (f'{name}1', size)], errno.EBUSY)):
            for call in ((nvme_controllers.start_sanitize, nvme_admin.BLOCK_ERASE),
                         (nvme_controllers.delete_namespace, 2),
                         (nvme_controllers.format_namespace, 1, nvme_admin.Format(0), nvme_admin.USER_DATA, 60, 1)):
                opened.clear()
                self.controller.add(2).attached = False
                function, *arguments = call
                if error:
                    refused = self.assertRaises(OSError, function, self.host.root, DISK, disks, *arguments)
                    self.assertEqual((error, [], OLD), (refused.errno, opened, self.disk.content[:16]))
                else:
                    function(self.host.root, DISK, disks, *arguments)
                    self.assertEqual([name], opened)
            self.disk.fill(OLD)

    def test_none_while_the_driver_shows_none(self) -> None:
        self.host.unbind(DISK)
        refused = self.assertRaises(OSError, nvme_controllers.start_sanitize, self.host.root, DISK, [],
                                    nvme_admin.BLOCK_ERASE)
        self.assertEqual(errno.EBUSY, refused.errno)
