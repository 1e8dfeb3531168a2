"""Mediated devices given back."""

from __future__ import annotations

import time
from typing import Any

from devicetrack import exception
from devicetrack.tests.unit.virt.mdev_node import MdevTestCase
from devicetrack.tests.unit.virt.mdev_node import Node
from devicetrack.tests.unit.virt.mdev_node import NodeDevice
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import privileged


class UnclaimTestCase(MdevTestCase):

    def created(self) -> Any:
        wanted = self.to_create()
        self.kind.realize(wanted)
        self.node.done.clear()
        return wanted

    def test_what_was_created_is_gone(self) -> None:
        wanted = self.created()
        self.kind.unclaim(wanted, 0)
        self.assertEqual({}, self.node.existing)
        self.assertEqual(['destroy', 'undefine'], [call for call, _identifier in self.node.done])
        self.kind.unclaim(wanted, 0)

    def test_a_half_made_one_is_gone_too(self) -> None:
        for active, persistent in ((False, True), (True, False)):
            wanted = self.to_create()
            self.node.add('mtty-2', identifier=wanted.identifier, active=active, persistent=persistent)
            self.kind.unclaim(wanted, 0)
            self.assertEqual({}, self.node.existing)

    def open_says(self, *answers: Any) -> list[int]:
        """What the kernel answers when it is asked whether a group is open; the last one again and again.

        :returns: the groups that it was asked for
        """
        asked: list[int] = []
        left = list(answers)

        def is_open(group: int) -> Any:
            asked.append(group)
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        self.patch(privileged, 'is_vfio_group_open', is_open)
        return asked

    def test_one_that_a_process_has_open_is_not_free(self) -> None:
        wanted = self.existing(self.node.add('mtty-2'))
        self.open_says(True, False, PermissionError(13, 'Permission denied'))
        self.assertRaises(exception.DeviceInUse, self.kind.check_free, wanted)
        self.kind.check_free(wanted)
        self.assertRaises(exception.UnclaimFailed, self.kind.check_free, wanted)
        self.kind.check_free(self.to_create())

    def test_what_existed_is_kept_and_free_when_the_kernel_says_that_nobody_has_it_open(self) -> None:
        wanted = self.existing(self.node.add('mtty-2'))
        asked = self.open_says(True, True, False)
        error = self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        self.assertEqual('a process of the host still has it open after 0 s', error.reason)
        self.kind = self.make_kind(release_wait_s=60)
        self.patch(time, 'sleep', lambda _seconds: None)
        self.kind.unclaim(wanted, 0)
        self.assertEqual([7, 7, 7], asked)
        self.assertEqual([], self.node.done)

    def test_who_waited_in_vain_looks_once_from_then_on(self) -> None:
        made, existing = self.created(), self.existing(self.node.add('mtty-2'))
        self.kind.removal.release_wait_s = 0.1
        self.node.in_use.add(made.identifier)
        self.open_says(True)
        for wanted in (made, existing):
            waited: list[float] = []
            self.patch(time, 'sleep', waited.append)
            error = self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
            self.assertEqual('a process of the host still has it open after 0.1 s', error.reason)
            self.assertTrue(waited)
            waited.clear()
            error = self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
            self.assertEqual(('a process of the host has it open', []), (error.reason, waited))
        self.node.in_use.clear()
        self.open_says(False)
        for wanted in (made, existing):
            self.kind.unclaim(wanted, 0)

    def test_what_existed_stays_held_when_the_kernel_cannot_be_asked(self) -> None:
        device = self.node.add('mtty-2')
        wanted = self.existing(device)
        self.open_says(PermissionError(13, 'Permission denied'))
        error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
        self.assertEqual('it is unknown whether a process has it open: Permission denied', error.reason)
        self.open_says(FileNotFoundError(2, 'No such file'))
        self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)

        def vanishes(_group: int) -> bool:
            device.change(active=False)
            raise FileNotFoundError(2, 'No such file')

        self.patch(privileged, 'is_vfio_group_open', vanishes)
        self.kind.unclaim(wanted, 0)

    def test_one_that_a_process_has_open_stays(self) -> None:
        wanted = self.created()
        self.node.in_use.add(wanted.identifier)
        self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        device, = self.node.existing.values()
        self.assertEqual((True, True), (device.active, device.persistent))

    def test_one_that_is_let_go_of_a_moment_later_goes(self) -> None:
        wanted = self.created()
        self.node.in_use.add(wanted.identifier)
        self.kind.removal.release_wait_s = 60
        self.patch(time, 'sleep', lambda _seconds: self.node.in_use.clear())
        self.kind.unclaim(wanted, 0)
        self.assertEqual({}, self.node.existing)

    def test_a_refusal_in_another_language_is_understood(self) -> None:
        wanted = self.created()
        self.node.fail = {'destroy': connection.Refused('virNodeDeviceDestroy', 'Gerät wird verwendet')}
        self.open_says(True)
        self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        for answer in (False, PermissionError(13, 'Permission denied')):
            self.open_says(answer)
            refused = self.assertRaises(connection.Refused, self.kind.unclaim, wanted, 0)
            self.assertEqual('Gerät wird verwendet', refused.reason)

    def test_the_kernel_has_the_last_word(self) -> None:
        wanted = self.created()
        self.patch(NodeDevice, 'destroy', lambda _device: None)
        self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)

    def test_a_definition_that_mdevctl_has_still_is_not_gone(self) -> None:
        wanted = self.created()
        self.patch(NodeDevice, 'undefine', lambda _device: None)
        error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
        self.assertEqual('it is still there after its removal', error.reason)

    def may_remove_nothing(self) -> None:
        """Let this process have no rights to remove anything without libvirt."""
        def refuse(*_arguments: Any) -> None:
            raise PermissionError(13, 'Permission denied')

        self.patch(privileged, 'remove_mdev', refuse)
        self.patch(privileged, 'remove_mdev_definition', refuse)

    def test_what_libvirt_has_not_heard_of_is_removed_when_it_has(self) -> None:
        self.may_remove_nothing()
        for active in (True, False):
            wanted = self.created()
            device, = self.node.existing.values()
            device.change(active=active, heard_of=False)
            self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
            self.assertEqual([], self.node.done)
            self.kind = self.make_kind()
            self.kind.patience.settle_s = 60
            self.patch(time, 'sleep', lambda _seconds, device=device: device.change(heard_of=True))
            self.kind.unclaim(wanted, 0)
            self.assertEqual({}, self.node.existing)
            self.kind.patience.settle_s = 0

    def test_what_libvirt_does_not_know_to_be_as_it_is_is_asked_for_again(self) -> None:
        self.may_remove_nothing()
        for call, text in (('destroy', 'is not active'), ('undefine', 'is not defined')):
            wanted = self.created()
            self.node.fail = {call: connection.Refused(call, text, connection.Meaning.BEHIND)}
            self.assertRaises(connection.Refused, self.kind.unclaim, wanted, 0)
            self.kind = self.make_kind()
            self.kind.patience.settle_s = 60
            self.patch(time, 'sleep', lambda _seconds: self.node.fail.clear())
            self.kind.unclaim(wanted, 0)
            self.assertEqual({}, self.node.existing)
            self.kind.patience.settle_s = 0

    def kernel_removes(self) -> list[str]:
        """Let this process have the rights to remove devices and definitions without libvirt.

        :returns: what it removes
        """
        removed: list[str] = []

        def remove(uuid: str, **facts: bool) -> None:
            device, = (one for one in self.node.existing.values() if one.identifier == uuid)
            removed.append(uuid)
            device.change(**facts)

        self.patch(privileged, 'remove_mdev', lambda uuid: remove(uuid, active=False))
        self.patch(privileged, 'remove_mdev_definition', lambda _parent, uuid: remove(uuid, persistent=False))
        return removed

    def test_a_libvirt_that_is_behind_the_kernel_keeps_nothing_held(self) -> None:
        for call, text in (('destroy', 'is not active'), ('undefine', 'is not defined')):
            wanted = self.created()
            self.open_says(False)
            removed = self.kernel_removes()
            self.node.fail = {call: connection.Refused(call, text, connection.Meaning.BEHIND)}
            self.kind.unclaim(wanted, 0)
            self.assertEqual([wanted.identifier], removed)
            self.assertEqual({}, self.node.existing)
            self.node.fail.clear()

    def test_what_libvirt_has_not_heard_of_is_removed_without_it(self) -> None:
        wanted = self.created()
        device, = self.node.existing.values()
        device.change(heard_of=False)
        self.open_says(False)
        removed = self.kernel_removes()
        self.kind.unclaim(wanted, 0)
        self.assertEqual(([], {}), (self.node.done, self.node.existing))
        self.assertEqual([wanted.identifier] * 2, removed)

    def test_one_that_is_open_is_not_removed_without_libvirt(self) -> None:
        wanted = self.created()
        device, = self.node.existing.values()
        device.change(heard_of=False)
        self.open_says(True)
        removed = self.kernel_removes()
        self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        self.assertEqual(([], True), (removed, device.active))

    def test_one_that_libvirt_believes_in_after_its_end_is_gone(self) -> None:
        wanted = self.created()
        device, = self.node.existing.values()
        device.change(active=False, persistent=False)
        device.persistent = True                # by libvirt alone
        self.node.existing[device.name] = device
        self.kind.unclaim(wanted, 0)
        self.assertEqual([], list(self.kind.stock().devices))

    def test_what_somebody_else_removed_meanwhile_is_gone(self) -> None:
        wanted = self.created()
        device, = self.node.existing.values()

        def removed() -> None:
            device.change(active=False, persistent=False)
            raise connection.Refused('virNodeDeviceDestroy', 'Unable to destroy: no such file')

        device.destroy = removed
        self.kind.unclaim(wanted, 0)
        self.assertEqual({}, self.node.existing)

    def test_nothing_is_removed_while_something_else_has_its_uuid(self) -> None:
        for active, of_ours in ((True, True), (False, True), (False, False)):
            self.node.clear()
            wanted = self.created()
            ours, = self.node.existing.values()
            other = self.node.add('mtty-2', identifier=wanted.identifier, name=f'{ours.name}_mdpy', persistent=True,
                                  parent='computer', parent_address='mdpy', active=False)
            ours.change(active=active, persistent=of_ours)
            error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
            self.assertEqual('a device of type mtty-2 and parent mdpy has its UUID and is not started', error.reason)
            other.change(heard_of=False)
            error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
            self.assertEqual('mdevctl has a definition with its UUID on mdpy', error.reason)
            self.assertEqual([], self.node.done)
            self.assertTrue(other.persistent)

    def test_a_definition_is_taken_back_while_its_parent_is_away(self) -> None:
        wanted = self.created()
        device, = self.node.existing.values()
        device.change(active=False)
        device.parent = 'computer'
        self.patch(Node, 'mdev_parents', lambda _node: [])
        self.kind.unclaim(wanted, 0)
        self.assertEqual({}, self.node.existing)

    def test_others_are_never_touched(self) -> None:
        wanted, other = self.created(), self.node.add('mtty-2', persistent=True)
        self.kind.unclaim(wanted, 0)
        self.assertEqual([other], list(self.node.existing.values()))
        self.assertEqual({wanted.identifier}, {identifier for _call, identifier in self.node.done})
