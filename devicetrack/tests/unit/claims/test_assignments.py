"""The devices of instances, from the manager's memory: for a service that asks often, or under a lock of its own."""

from __future__ import annotations

from typing import Any
from unittest import mock

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.testing import fixtures
from devicetrack.testing.staged_store import StagedStore
from devicetrack.tests import base


class AssignmentsTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=4, parents={'p0': 2}))
        self.manager = self.host.manager

    def names(self, *arguments: Any) -> list[tuple[str, str]]:
        return sorted((one.identifier, one.instance_uuid) for one in self.manager.assignments(*arguments))

    def test_of_an_instance_and_of_all(self) -> None:
        one, other = self.host.spawn(pmem=2), self.host.spawn(pmem=1)
        self.assertEqual([('d0', one.uuid), ('d1', one.uuid)], self.names(one.uuid))
        self.assertEqual([('d0', one.uuid), ('d1', one.uuid), ('d2', other.uuid)], self.names())
        self.assertEqual([], list(self.manager.assignments(fixtures.Instance().uuid)))

    def test_those_of_an_instance_are_its_resources(self) -> None:
        instance = self.host.spawn(vgpu=1, pmem=2)
        self.assertEqual(instance.resources, self.manager.assignments(instance.uuid))
        self.assertEqual([row.key for row in self.host.records(instance)],
                         [one.key for one in self.manager.assignments(instance.uuid)])

    def test_nothing_is_asked_of_anybody(self) -> None:
        instance = self.host.spawn(pmem=1)
        calls = dict(self.host.machine.calls)
        with mock.patch.object(StagedStore, '_call', autospec=True, side_effect=AssertionError('the store was asked')):
            self.assertEqual(1, len(self.manager.assignments(instance.uuid)))
            self.assertEqual(1, len(self.manager.assignments()))
        self.assertEqual(calls, dict(self.host.machine.calls))

    def test_an_answer_is_a_value_that_does_not_change(self) -> None:
        instance = self.host.spawn(pmem=1)
        before = self.manager.assignments()
        self.host.delete(instance)
        self.assertEqual((['d0'], ()), ([one.identifier for one in before], self.manager.assignments()))

    def test_what_is_on_its_way_back_says_so(self) -> None:
        instance = self.host.spawn(pmem=1)
        self.host.machine.before('unclaim', exception.DeviceBusy('vpmem', 'd0', 'busy'), times=1)
        self.host.machine.delete_guest(instance.uuid)
        self.assertRaises(exception.DriverError, self.manager.release, None, instance)
        self.assertEqual([vocabulary.RELEASING], [one.state for one in self.manager.assignments(instance.uuid)])

    def test_a_commit_without_an_answer_counts_until_the_store_has_given_it(self) -> None:
        sure, instance = self.host.spawn(pmem=1), fixtures.Instance()
        self.host.store.lose_answer()
        self.assertRaises(exception.OutcomeUnknown, self.host.claim, instance, pmem=1)
        self.assertEqual([('d1', instance.uuid)], self.names(instance.uuid))
        self.assertEqual([('d0', sure.uuid), ('d1', instance.uuid)], self.names())
        self.host.audit()
        self.assertEqual([('d0', sure.uuid)], self.names())

    def test_old_and_new_of_a_move_are_both_said(self) -> None:
        instance = self.host.spawn(pmem=1)
        migration = self.host.resize(instance, pmem=1)
        self.assertEqual(['d0', 'd1'], [name for name, _uuid in self.names(instance.uuid)])
        self.manager.drop_move_claim_at_dest(None, instance, migration)
        self.assertEqual(['d0'], [name for name, _uuid in self.names(instance.uuid)])

    def test_after_a_restart_it_is_what_the_rows_say(self) -> None:
        instance = self.host.spawn(pmem=1, vgpu=1)
        before = self.manager.assignments(instance.uuid)
        self.host.restart()
        self.assertEqual(before, self.host.manager.assignments(instance.uuid))

    def test_before_the_start_and_with_a_name_that_is_none_it_is_refused(self) -> None:
        self.assertRaises(exception.BadRequest, self.manager.assignments, 'i')
        self.manager.close()
        self.assertRaises(exception.NotReady, self.manager.assignments)
