"""Mediated devices given back."""

from __future__ import annotations

import shutil
import time
from typing import Any

from devicetrack import exception
from devicetrack.tests.unit.virt.mdev_node import MdevTestCase
from devicetrack.tests.unit.virt.mdev_node import Node
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

    def test_what_was_adopted_stays(self) -> None:
        wanted = self.adopted(self.node.add('mtty-2'))
        self.kind.unclaim(wanted, 0)
        self.assertEqual([], self.node.done)

    def test_what_was_adopted_is_free_when_the_kernel_says_that_nobody_has_it_open(self) -> None:
        wanted = self.adopted(self.node.add('mtty-2'))
        self.in_kernel(wanted.identifier, group=12)
        asked: list[int] = []
        answers = [True, True, False]

        def is_open(group: int) -> bool:
            asked.append(group)
            return answers.pop(0)

        self.patch(privileged, 'is_vfio_group_open', is_open)
        error = self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        self.assertEqual('a process of the host has it open, after 0 s still', error.reason)
        self.kind.release_wait_s = 60
        self.patch(time, 'sleep', lambda _seconds: None)
        self.kind.unclaim(wanted, 0)
        self.assertEqual([12, 12, 12], asked)
        self.assertEqual([], self.node.done)

    def test_what_was_adopted_stays_held_when_the_kernel_cannot_be_asked(self) -> None:
        wanted = self.adopted(self.node.add('mtty-2'))
        path = self.in_kernel(wanted.identifier)
        answers: list[OSError] = [PermissionError(13, 'Permission denied'), FileNotFoundError(2, 'No such file')]

        def is_open(_group: int) -> bool:
            raise answers.pop(0)

        self.patch(privileged, 'is_vfio_group_open', is_open)
        error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
        self.assertEqual('nobody says whether a process has it open: Permission denied', error.reason)
        self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)

        def vanishes(_group: int) -> bool:
            shutil.rmtree(path)
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
        self.kind.release_wait_s = 60
        self.patch(time, 'sleep', lambda _seconds: self.node.in_use.clear())
        self.kind.unclaim(wanted, 0)
        self.assertEqual({}, self.node.existing)

    def test_a_refusal_in_another_language_is_understood(self) -> None:
        wanted = self.created()
        self.in_kernel(wanted.identifier)
        self.node.fail = {'destroy': connection.Refused('virNodeDeviceDestroy', 'Gerät wird verwendet')}
        self.patch(privileged, 'is_vfio_group_open', lambda _group: True)
        self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)

        def nobody_says(_group: int) -> bool:
            raise PermissionError(13, 'Permission denied')

        for answer in (lambda _group: False, nobody_says):
            self.patch(privileged, 'is_vfio_group_open', answer)
            refused = self.assertRaises(connection.Refused, self.kind.unclaim, wanted, 0)
            self.assertEqual('Gerät wird verwendet', refused.reason)

    def test_the_kernel_has_the_last_word(self) -> None:
        wanted = self.created()
        self.in_kernel(wanted.identifier)
        self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)

    def test_nothing_is_removed_while_something_else_has_its_uuid(self) -> None:
        for active, of_ours in ((True, True), (False, True), (False, False)):
            self.node.existing.clear()
            wanted = self.created()
            ours, = self.node.existing.values()
            other = self.node.add('mtty-2', identifier=wanted.identifier, name=f'{ours.name}_mdpy', persistent=True,
                                  parent='computer', parent_address='mdpy', active=False)
            ours.active = active
            if not of_ours:
                del self.node.existing[ours.name]
            error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
            self.assertEqual('a device of type mtty-2 and parent mdpy has its UUID and is not started', error.reason)
            self.assertEqual([], self.node.done)
            self.assertTrue(other.persistent)

    def test_a_definition_is_taken_back_while_its_parent_is_away(self) -> None:
        wanted = self.created()
        device, = self.node.existing.values()
        device.active, device.parent = False, 'computer'
        self.patch(Node, 'mdev_parents', lambda _node: [])
        self.kind.unclaim(wanted, 0)
        self.assertEqual({}, self.node.existing)

    def test_others_are_never_touched(self) -> None:
        wanted, other = self.created(), self.node.add('mtty-2', persistent=True)
        self.kind.unclaim(wanted, 0)
        self.assertEqual([other], list(self.node.existing.values()))
        self.assertEqual({wanted.identifier}, {identifier for _call, identifier in self.node.done})
