"""Leftovers of confirms, on each database."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from oslo_db import exception as db_exc
import sqlalchemy as sa

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects.values import Leftover
from devicetrack.store import api
from devicetrack.store.leftovers import HostLeftovers
from devicetrack.testing import databases
from devicetrack.testing import proxy as proxies
from devicetrack.testing.proxy import Action
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.test_contract import StoreTestCase

ONE, OTHER = (Leftover(number * 36, other * 36) for number, other in ('1a', '2b'))


class TestLeftovers(StoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.leftovers = HostLeftovers(self.store, records.HOST_UUID)

    def kept(self) -> list[Leftover]:
        """As another process reads them."""
        return HostLeftovers(self.fixture.open(), records.HOST_UUID).kept()

    def test_are_kept_until_they_are_removed(self) -> None:
        for leftover in (OTHER, ONE):
            self.leftovers.record(leftover)
        self.assertEqual([ONE, OTHER], self.kept())
        self.leftovers.remove(ONE)
        self.assertEqual([OTHER], self.kept())

    def test_to_do_either_twice_is_to_do_it_once(self) -> None:
        for _ in range(2):
            self.leftovers.record(ONE)
        self.assertEqual([ONE], self.kept())
        for _ in range(2):
            self.leftovers.remove(ONE)
        self.assertEqual([], self.kept())

    def test_a_later_one_of_a_migration_takes_the_place_of_the_first(self) -> None:
        self.leftovers.record(OTHER)
        for changed in ({'verb': vocabulary.CONFIRM}, {'verb': vocabulary.REVERT, 'own': '{"p": {"VGPU": 1}}'}, {}):
            self.leftovers.record(ONE._replace(**changed))
            self.assertEqual([ONE._replace(**changed), OTHER], self.kept())

    def test_one_that_somebody_removes_meanwhile_is_kept(self) -> None:
        self.leftovers.record(ONE)
        transact = self.store.transact

        def remove_what_is_in_the_way(work: Callable[[sa.Connection], Any]) -> Any:
            try:
                return transact(work)
            except db_exc.DBDuplicateEntry:
                self.fixture.open().remove_leftover(records.HOST_UUID, ONE)
                raise

        self.patch(self.store, 'transact', remove_what_is_in_the_way)
        self.leftovers.record(ONE._replace(verb=vocabulary.REVERT))
        self.assertEqual([ONE._replace(verb=vocabulary.REVERT)], self.kept())

    def test_of_many_who_record_one_none_fails(self) -> None:
        answers = self.together(*[functools.partial(store.add_leftover, records.HOST_UUID, ONE)
                                  for store in [self.store, self.fixture.open()] * 4])
        self.assertEqual(([None] * 8, [ONE]), (answers, self.kept()))

    def test_only_those_of_the_host(self) -> None:
        self.leftovers.record(ONE)
        elsewhere = HostLeftovers(self.store, '0' * 36)
        elsewhere.record(ONE)
        elsewhere.remove(ONE)
        self.assertEqual(([ONE], []), (self.kept(), elsewhere.kept()))

    def test_are_those_of_the_machine_that_takes_the_place_of_the_host(self) -> None:
        before = api.Host(records.HOST_UUID, 'a', 'digest')
        self.store.add_host(before)
        self.leftovers.record(ONE)
        after = before._replace(uuid='1' * 36)
        for _ in range(2):
            self.store.replace_host(before, after)
            self.assertEqual(([], [ONE]), (self.kept(), self.store.leftovers(after.uuid)))


class TestUnknownCommit(base.TestCase):
    """A commit whose answer is lost: to write it again is right, whatever became of the first."""

    scenarios = [(f'{name}, {action.name}', {**facts, 'action': action}) for name, facts in databases.SERVER_SCENARIOS
                 for action in (Action.LOSE_ANSWER, Action.DROP)]
    database: type[databases.ServerStore]
    action: Action

    def test_of_a_leftover(self) -> None:
        fixture = self.useFixture(self.database(busy_timeout_s=1))
        proxy = self.useFixture(proxies.CommitProxy(fixture.server))
        leftovers = HostLeftovers(fixture.open_through(*proxy.address), records.HOST_UUID)
        for write, kept in ((leftovers.record, [ONE]), (leftovers.remove, [])):
            leftovers.kept()
            proxy.at_next_commit(self.action)
            self.assertRaises(exception.OutcomeUnknown, write, ONE)
            write(ONE)
            self.assertEqual(kept, fixture.store.leftovers(records.HOST_UUID))
