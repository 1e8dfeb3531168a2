"""What is held by the manager's memory: for a service that asks often, or under a lock of its own."""

from __future__ import annotations

from typing import Any
from unittest import mock

from devicetrack import exception
from devicetrack.engine.states import HeldDevice
from devicetrack.testing import fixtures
from devicetrack.testing.staged_store import StagedStore
from devicetrack.tests import base


class HeldTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=4, parents={'p0': 2}))
        self.manager = self.host.manager

    def names(self, *arguments: Any) -> list[tuple[str | None, str]]:
        return sorted((one.identifier, one.instance_uuid) for one in self.manager.held(*arguments))

    def test_of_an_instance_and_of_all(self) -> None:
        one, other = self.host.spawn(pmem=2), self.host.spawn(pmem=1)
        self.assertEqual([('d0', one.uuid), ('d1', one.uuid)], self.names(one.uuid))
        self.assertEqual([('d0', one.uuid), ('d1', one.uuid), ('d2', other.uuid)], self.names())
        self.assertEqual((), self.manager.held(fixtures.Instance().uuid))

    def test_each_is_said_as_its_row_says_it(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=1)
        rows = [HeldDevice(row.kind, row.identifier, row.instance_uuid, row.provider_uuid, row.resource_class,
                           row.parent, False, False) for row in self.host.records()]
        self.assertCountEqual(rows, self.manager.held(instance.uuid))

    def test_nothing_is_asked_of_anybody(self) -> None:
        instance = self.host.spawn(pmem=1)
        calls = dict(self.host.machine.calls)
        with mock.patch.object(StagedStore, '_call', autospec=True, side_effect=AssertionError('the store was asked')):
            self.assertEqual(1, len(self.manager.held(instance.uuid)))
            self.assertEqual(1, len(self.manager.held()))
        self.assertEqual(calls, dict(self.host.machine.calls))

    def test_an_answer_is_a_value_that_does_not_change(self) -> None:
        instance = self.host.spawn(pmem=1)
        before = self.manager.held()
        self.host.delete(instance)
        self.assertEqual((['d0'], ()), ([one.identifier for one in before], self.manager.held()))
        self.assertRaises(AttributeError, setattr, before[0], 'identifier', 'd1')

    def test_what_is_on_its_way_back_says_so(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.machine.before('unclaim', exception.DeviceBusy('vpmem', 'd0', 'busy'), times=1)
        self.host.machine.delete_guest(instance.uuid)
        self.assertRaises(exception.DriverError, self.manager.release, None, instance)
        [held] = self.manager.held(instance.uuid)
        self.assertTrue(held.releasing)

    def test_a_commit_in_doubt_is_said(self) -> None:
        sure = self.host.spawn(pmem=1)
        instance = fixtures.Instance()
        self.host.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, instance, pmem=1)
        self.assertEqual([(True, instance.uuid)], [(one.in_doubt, one.instance_uuid)
                                                   for one in self.manager.held(instance.uuid)])
        self.assertEqual({sure.uuid: False, instance.uuid: True},
                         {one.instance_uuid: one.in_doubt for one in self.manager.held()})
        self.host.audit()
        self.assertEqual([(False, sure.uuid)], [(one.in_doubt, one.instance_uuid) for one in self.manager.held()])

    def test_old_and_new_of_a_move_are_both_said(self) -> None:
        instance = self.host.spawn(pmem=1)
        migration = self.host.resize(instance, pmem=1)
        self.assertEqual(['d0', 'd1'], [name for name, _uuid in self.names(instance.uuid)])
        self.manager.drop_move_claim_at_dest(None, instance, migration)
        self.assertEqual(['d0'], [name for name, _uuid in self.names(instance.uuid)])

    def test_after_a_restart_it_is_what_the_rows_say(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=1)
        before = self.manager.held()
        self.host.restart()
        self.assertCountEqual(before, self.host.manager.held(instance.uuid))

    def test_before_the_start_and_with_a_name_that_is_none_it_is_refused(self) -> None:
        self.assertRaises(exception.BadRequest, self.manager.held, 'i')
        self.manager.close()
        self.assertRaises(exception.NotReady, self.manager.held)
