"""What hosts declare of their devices, on each database."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.store import api
from devicetrack.testing import databases
from devicetrack.testing import proxy as proxies
from devicetrack.testing.proxy import Action
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.test_contract import StoreTestCase

_OTHER = '0' * 36


def declared(type_: str, **facts: Any) -> api.StoredDeclaration:
    return api.StoredDeclaration(records.HOST_UUID, 'mdev', 'pci_0000_84_00_0', type_, '{}')._replace(**facts)


class TestDeclarations(StoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.set = functools.partial(self.store.set_declarations, records.HOST_UUID)

    def found(self) -> list[api.StoredDeclaration]:
        return self.fixture.open().declarations_of_host(records.HOST_UUID)

    def test_another_process_finds_what_was_written(self) -> None:
        made = declared('nvidia-35', document='{"reason": "ns\u00f6 %s ?"}')
        self.set([made])
        self.assertEqual([made], self.found())

    def test_what_has_no_parent_is_found(self) -> None:
        made = declared('4GB', kind='vpmem', parent='')
        self.set([made])
        self.assertEqual([made], self.found())

    def test_they_come_by_host_kind_parent_and_type(self) -> None:
        first = declared('nvidia-9', host_uuid=_OTHER, kind='vf')
        made = [declared('nvidia-35', parent='a'), declared('nvidia-36', parent='a'), declared('nvidia-35', parent='b'),
                declared('558', kind='vf', parent=''), declared('558', kind='vf', parent='a')]
        self.set(made[::-1])
        self.store.set_declarations(_OTHER, [first])
        self.assertEqual(made, self.found())
        self.assertEqual([first, *made], self.store.declarations())

    def test_names_are_compared_byte_by_byte(self) -> None:
        made = [declared('nvidia-35'), declared('NVIDIA-35')]
        self.set(made)
        self.assertCountEqual(made, self.found())

    def test_they_take_the_place_of_all_that_the_host_declared(self) -> None:
        theirs = declared('nvidia-35', host_uuid=_OTHER)
        self.store.set_declarations(_OTHER, [theirs])
        self.set([declared('nvidia-35'), declared('nvidia-36')])
        after = [declared('nvidia-36', document='{"version": 2}'), declared('nvidia-37')]
        for _ in range(2):
            self.set(after)
            self.assertEqual(after, self.found())
        self.set([])
        self.assertEqual(([], [theirs]), (self.found(), self.store.declarations()))

    def test_what_cannot_be_written_deletes_nothing(self) -> None:
        self.set([declared('nvidia-35')])
        wrong: Any = declared('nvidia-37', document=None)
        self.assertRaises(exception.StoreUnavailable, self.set, [declared('nvidia-36'), wrong])
        self.assertEqual([declared('nvidia-35')], self.store.declarations())

    def test_thousands_at_once(self) -> None:
        made = [declared(f'nvidia-{number:04}', parent='p' * 255) for number in range(3000)]
        for _ in range(2):
            self.set(made)
        self.assertEqual(made, self.found())

    def test_a_document_may_be_long(self) -> None:
        made = declared('nvidia-35', document='x' * 1_000_000)
        self.set([made])
        self.assertEqual([made], self.found())

    def test_of_many_who_write_for_one_host_one_is_the_last(self) -> None:
        """Also when they have no row in common, and the host declared nothing before."""
        self.store.add_host(api.Host(records.HOST_UUID, 'compute-1', 'digest'))
        each = [[declared(f'nvidia-{number}{one}') for one in 'ab'] for number in range(8)]
        answers = self.together(*[functools.partial(store.set_declarations, records.HOST_UUID, made)
                                  for made, store in zip(each, [self.store, self.fixture.open()] * 4, strict=True)])
        self.assertEqual([None] * 8, answers)
        self.assertIn(self.found(), each)

    def test_they_go_with_the_machine(self) -> None:
        before, other = (api.Host(uuid, name, 'digest') for uuid, name in ((records.HOST_UUID, 'a'), (_OTHER, 'b')))
        for host in (before, other):
            self.store.add_host(host)
            self.store.set_declarations(host.uuid, [declared('nvidia-35', host_uuid=host.uuid)])
        self.store.replace_host(before, before._replace(uuid='1' * 36))
        self.assertEqual([declared('nvidia-35', host_uuid=_OTHER)], self.store.declarations())


class TestTwoAtOnce(base.TestCase):
    scenarios = databases.SERVER_SCENARIOS
    database: type[databases.ServerStore]

    def test_neither_waits_for_a_lock_while_the_other_waits_for_its_own(self) -> None:
        store = self.useFixture(self.database()).store
        host = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        store.add_host(host)
        store = store.at_epoch(host._replace(epoch=store.take_epoch(host.uuid)))
        both, errors = threading.Barrier(2), list[BaseException]()

        def meet(*_: object) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(1)                    # in vain, if the first has a lock for which the second waits

        sa.event.listen(store.engine, 'after_cursor_execute', meet)
        sa.event.listen(store.engine, 'handle_error', lambda context: errors.append(context.original_exception))
        each = [[declared(f'nvidia-{number}')] for number in range(2)]
        answers = self.together(*[functools.partial(store.set_declarations, host.uuid, made) for made in each])
        self.assertEqual(([None] * 2, []), (answers, errors))
        self.assertIn(store.declarations_of_host(host.uuid), each)


class TestUnknownCommit(base.TestCase):
    """A commit whose answer is lost: to write it again is right, whatever became of the first."""

    scenarios = databases.SERVER_SCENARIOS
    database: type[databases.ServerStore]

    def setUp(self) -> None:
        super().setUp()
        fixture = self.useFixture(self.database(busy_timeout_s=1))
        self.direct = fixture.store
        self.direct.add_host(api.Host(records.HOST_UUID, 'compute-1', 'digest'))
        self.proxy = self.useFixture(proxies.CommitProxy(fixture.server))
        self.store = fixture.open_through(*self.proxy.address)
        self.store.records()
        self.after = [declared('nvidia-35'), declared('nvidia-36')]

    def lose(self, action: Action) -> None:
        self.proxy.at_next_commit(action)
        self.assertRaises(exception.OutcomeUnknown, self.store.set_declarations, records.HOST_UUID, self.after)

    def test_it_happened(self) -> None:
        self.lose(Action.LOSE_ANSWER)
        self.assertEqual(self.after, self.direct.declarations())
        self.store.set_declarations(records.HOST_UUID, self.after)
        self.assertEqual(self.after, self.direct.declarations())

    def test_it_did_not_happen(self) -> None:
        self.lose(Action.DROP)
        self.assertEqual([], self.direct.declarations())
        self.store.set_declarations(records.HOST_UUID, self.after)
        self.assertEqual(self.after, self.direct.declarations())

    def test_while_it_is_open_nothing_else_is_written(self) -> None:
        """What it inserted would stay beside what took its place: they have no row in common."""
        self.lose(Action.HOLD)
        last = [declared('nvidia-37')]
        self.assertRaises(exception.StoreUnavailable, self.store.set_declarations, records.HOST_UUID, last)
        self.proxy.deliver()
        self.store.set_declarations(records.HOST_UUID, last)
        self.assertEqual(last, self.direct.declarations())
