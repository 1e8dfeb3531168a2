"""The driver hears of each row that has ended, in whatever way, and of none that the store only does not show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from devicetrack import exception
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.unit.claims import test_lost_rows

D0 = DeviceKey('vpmem', 'd0')


class RowsEndedTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.ended: list[str] = []
        self.prepared: list[list[str]] = []

        def rows_ended(_driver: Any, keys: Iterable[DeviceKey]) -> None:
            self.ended += [key.identifier for key in keys]

        self.patch(fake.FakeDriver, 'rows_ended', rows_ended)
        self.patch(fake.FakeDriver, 'prepared_kinds', lambda _driver: frozenset({'vpmem'}))
        self.patch(fake.FakeDriver, 'prepare', lambda _driver, records: self.prepared.append(
            sorted(record.identifier for record in records)))
        self.host, self.instance = self.useFixture(fixtures.Host(devices=2)), Instance()

    def check_ended(self, *names: str) -> None:
        self.assertEqual((list(names), []), (self.ended, self.host.records()))

    def test_by_an_abort(self) -> None:
        self.host.claim(self.instance, pmem=1).abort()
        self.check_ended('d0')

    def test_by_a_release(self) -> None:
        self.host.spawn(self.instance, pmem=2)
        self.assertEqual([], self.ended)
        self.host.delete(self.instance)
        self.check_ended('d0', 'd1')

    def test_by_a_release_whose_answer_is_lost(self) -> None:
        self.host.spawn(self.instance, pmem=1)
        self.host.machine.delete_guest(self.instance.uuid)
        self.host.store.lose_answer(skip=1)
        self.assertRaises(exception.OutcomeUnknown, self.host.manager.release, self.host.context, self.instance)
        self.assertEqual([], self.ended)
        self.host.audit()
        self.check_ended('d0')

    def test_by_no_release_that_the_store_refuses(self) -> None:
        self.host.spawn(self.instance, pmem=1)
        self.host.machine.delete_guest(self.instance.uuid)
        self.host.store.before('write', exception.StoreUnavailable('store', 'gone'), skip=1)
        self.assertRaises(exception.StoreUnavailable, self.host.manager.release, self.host.context, self.instance)
        self.assertEqual([], self.ended)

    def test_with_a_device_that_is_forgotten(self) -> None:
        self.host.claim(self.instance, pmem=1)
        self.host.machine.remove(D0)
        self.host.running.repairs.forget(D0, self.instance.uuid)
        self.check_ended('d0')

    def test_with_a_device_that_is_retired(self) -> None:
        self.host.spawn(self.instance, pmem=1)
        self.host.machine.delete_guest(self.instance.uuid)
        self.host.machine.before('wipe', exception.UnclaimFailed(*D0, 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.host.manager.release, self.host.context, self.instance)
        self.host.manager.operator.retire(*D0, self.instance.uuid)
        self.check_ended('d0')

    def test_because_others_used_its_device_before_its_guest(self) -> None:
        self.host.claim(self.instance, pmem=1)
        self.host.machine.written.add(D0)
        self.host.manager.realize(self.host.context, self.instance)
        self.assertEqual((['d0'], ['d1']), (self.ended, [record.identifier for record in self.host.records()]))

    def test_by_no_store_that_does_not_show_it(self) -> None:
        go_back = test_lost_rows.past(self, self.host)
        self.host.spawn(self.instance, pmem=1)
        go_back()
        self.host.audit()
        self.check_ended()
        self.assertEqual([[], ['d0']], self.prepared)
