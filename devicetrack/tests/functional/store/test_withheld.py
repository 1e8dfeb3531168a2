"""What is withheld, on each database."""

from __future__ import annotations

import functools
from typing import Any

from devicetrack import exception
from devicetrack.store import api
from devicetrack.testing import databases
from devicetrack.testing import proxy as proxies
from devicetrack.testing.proxy import Action
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.test_contract import StoreTestCase


def withheld(name: str, **facts: Any) -> api.WithheldRow:
    return api.WithheldRow(records.HOST_UUID, 'vpmem', 'device', name, '{"cordoned": {}}', 1,
                           1_700_000_000)._replace(**facts)


class TestWithheld(StoreTestCase):
    def found(self) -> list[api.WithheldRow]:
        return self.fixture.open().withheld(records.HOST_UUID)

    def test_another_process_finds_what_was_written(self) -> None:
        made = withheld('ns0', reasons='{"name": "ns\u00f6 %s ?"}', updated_at=1 << 40)
        self.store.set_withheld([made])
        self.assertEqual([made], self.found())

    def test_rows_come_by_kind_scope_and_name(self) -> None:
        made = [withheld('p', kind='mdev', scope='parent'), withheld('NS0'), withheld('ns0'), withheld('ns1'),
                withheld('ns0', scope='parent')]
        self.store.set_withheld(made[::-1])
        self.assertCountEqual(made, self.found())
        self.assertEqual([(row.kind, row.scope) for row in made], [(row.kind, row.scope) for row in self.found()])

    def test_only_those_of_the_host(self) -> None:
        mine, theirs = withheld('ns0'), withheld('ns0', host_uuid='0' * 36)
        self.store.set_withheld([mine, theirs])
        self.assertEqual([mine], self.found())
        self.store.set_withheld([], [mine])
        self.assertEqual([theirs], self.store.withheld('0' * 36))

    def test_a_row_takes_the_place_of_the_one_before(self) -> None:
        self.store.set_withheld([withheld('ns0'), withheld('ns1')])
        after = withheld('ns0', reasons='{}', generation=2, updated_at=5)
        self.store.set_withheld([after])
        self.assertEqual([after, withheld('ns1')], self.found())

    def test_both_are_one_transaction_and_may_be_repeated(self) -> None:
        self.store.set_withheld([withheld('ns0'), withheld('ns1')])
        for _ in range(2):
            self.store.set_withheld([withheld('ns2')], [withheld('ns0'), withheld('nobody')])
            self.assertEqual([withheld('ns1'), withheld('ns2')], self.found())

    def test_what_cannot_be_written_deletes_nothing(self) -> None:
        self.store.set_withheld([withheld('ns0')])
        wrong: Any = withheld('ns1', reasons=None)
        self.assertRaises(exception.StoreUnavailable, self.store.set_withheld, [wrong], [withheld('ns0')])
        self.assertEqual([withheld('ns0')], self.found())

    def test_nothing_to_do_is_nothing(self) -> None:
        self.store.set_withheld([], [])
        self.assertEqual([], self.found())

    def test_thousands_at_once(self) -> None:
        made = [withheld(f'ns{number:04}') for number in range(3000)]
        self.store.set_withheld(made)
        self.store.set_withheld(made)
        self.assertEqual(made, self.found())
        self.store.set_withheld([], made)
        self.assertEqual([], self.found())

    def test_reasons_may_be_long(self) -> None:
        made = withheld('ns0', reasons='x' * 1_000_000)
        self.store.set_withheld([made])
        self.assertEqual([made], self.found())

    def test_of_many_who_write_one_row_one_is_the_last(self) -> None:
        rows = [withheld('ns0', generation=number) for number in range(8)]
        answers = self.together(*[functools.partial(store.set_withheld, [row]) for row, store in zip(
            rows, [self.store, self.fixture.open()] * 4, strict=True)])
        self.assertEqual([None] * 8, answers)
        self.assertIn(self.found(), [[row] for row in rows])

    def test_it_stays_withheld_when_the_machine_gets_another_identity(self) -> None:
        before, other = (api.Host(uuid, name, 'digest') for uuid, name in ((records.HOST_UUID, 'a'), ('0' * 36, 'b')))
        for host in (before, other):
            self.store.add_host(host)
        self.store.set_withheld([withheld('ns0'), withheld('ns0', host_uuid=other.uuid)])
        after = before._replace(uuid='1' * 36)
        for _ in range(2):
            self.store.replace_host(before, after)
            self.assertEqual([[], [withheld('ns0', host_uuid=after.uuid)], [withheld('ns0', host_uuid=other.uuid)]],
                             [self.store.withheld(host.uuid) for host in (before, after, other)])


class TestUnknownCommit(base.TestCase):
    """A commit whose answer is lost: to write it again is right, whatever became of the first."""

    scenarios = databases.SERVER_SCENARIOS
    database: type[databases.ServerStore]

    def setUp(self) -> None:
        super().setUp()
        fixture = self.useFixture(self.database(busy_timeout_s=1))
        self.direct = fixture.store
        self.direct.set_withheld([withheld('ns0')])
        self.proxy = self.useFixture(proxies.CommitProxy(fixture.server))
        self.store = fixture.open_through(*self.proxy.address)
        self.store.records()
        self.after = [withheld('ns0', generation=2), withheld('ns1')]

    def found(self) -> list[api.WithheldRow]:
        return self.direct.withheld(records.HOST_UUID)

    def test_it_happened(self) -> None:
        self.proxy.at_next_commit(Action.LOSE_ANSWER)
        self.assertRaises(exception.OutcomeUnknown, self.store.set_withheld, self.after)
        self.assertEqual(self.after, self.found())
        self.store.set_withheld(self.after)
        self.assertEqual(self.after, self.found())

    def test_it_did_not_happen(self) -> None:
        self.proxy.at_next_commit(Action.DROP)
        self.assertRaises(exception.OutcomeUnknown, self.store.set_withheld, self.after)
        self.assertEqual([withheld('ns0')], self.found())
        self.store.set_withheld(self.after)
        self.assertEqual(self.after, self.found())

    def test_it_is_still_open(self) -> None:
        self.proxy.at_next_commit(Action.HOLD)
        self.assertRaises(exception.OutcomeUnknown, self.store.set_withheld, self.after)
        self.assertRaises(exception.StoreUnavailable, self.store.set_withheld, self.after)
        self.proxy.deliver()
        self.store.set_withheld(self.after)
        self.assertEqual(self.after, self.found())
