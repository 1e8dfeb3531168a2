"""Epochs: of several managers of one host only the last that started writes."""

from __future__ import annotations

import functools
import threading
from typing import Any

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.objects.event import Event
from devicetrack.objects.values import Leftover
from devicetrack.store import api
from devicetrack.store.sql import changing
from devicetrack.store.sql import models
from devicetrack.store.sql import store as sql_store
from devicetrack.testing import databases
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import context
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import moved_on
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update
from devicetrack.tests.functional.store.test_contract import StoreTestCase

HOST = api.Host(records.HOST_UUID, 'compute-1', 'digest')
ANOTHER = HOST._replace(machine_id='another')
OTHER = api.Host('0' * 36, 'compute-2', 'another digest')


class EpochTestCase(StoreTestCase):
    def setUp(self) -> None:
        super().setUp()
        for host in (HOST, OTHER):
            self.store.add_host(host)

    def started(self, store: Any = None, host: api.Host = HOST) -> Any:
        """The store as a manager of a host has it that starts now."""
        store = store or self.store
        return store.at_epoch(host._replace(epoch=store.take_epoch(host.uuid)))


class TestEpochs(EpochTestCase):
    def test_every_epoch_is_later_than_the_one_before(self) -> None:
        taken = [self.store.take_epoch(HOST.uuid) for _start in range(3)]
        self.assertEqual(sorted({*taken}), taken)
        self.assertEqual([taken[-1], 0], [host.epoch for host in self.store.hosts()])

    def test_no_epoch_comes_again_after_a_restore(self) -> None:
        self.store.take_epoch(HOST.uuid)
        [backup, _other] = self.store.hosts()
        older = self.started()
        self.put_back(backup)
        newer = self.started(self.fixture.open())
        self.assertRaises(exception.HostTakenOver, older.check_epoch)
        self.assertRaises(exception.HostTakenOver, older.write, insert(record('ns0')))
        newer.write(insert(record('ns0')))

    def test_no_epoch_comes_again_in_a_store_that_is_made_anew(self) -> None:
        older = self.started()
        self.put_back(HOST)
        newer = self.started(self.fixture.open())
        self.assertRaises(exception.HostTakenOver, older.write, insert(record('ns0')))
        newer.write(insert(record('ns0')))

    def test_no_epoch_comes_again_when_a_machine_took_the_name_after_the_backup(self) -> None:
        self.store.replace_host(HOST, ANOTHER)
        older = self.store.at_epoch(self.store.hosts()[0])
        self.put_back(HOST)
        self.store.replace_host(HOST, ANOTHER)
        self.assertRaises(exception.HostTakenOver, older.write, insert(record('ns0')))

    def test_steps_are_random_and_fit_into_the_column_for_ever(self) -> None:
        steps = []
        for host in (HOST, OTHER):
            before = 0
            for _start in range(5):
                epoch = self.store.take_epoch(host.uuid)
                steps.append(epoch - before)
                before = epoch
        self.assertEqual(10, len({*steps}))
        self.assertLessEqual(max(steps), sql_store.LONGEST_STEP)
        self.assertLess(1_000_000 * sql_store.LONGEST_STEP, 1 << 53)

    def put_back(self, host: api.Host) -> None:
        """Give the store the row that a host had before."""
        table = models.hosts
        self.store.transact(lambda connection: connection.execute(
            sa.update(table).where(table.c.name == host.name).values(host._asdict())))

    def test_two_that_start_at_once_get_two_epochs(self) -> None:
        stores = [self.store, self.fixture.open()]
        taken = self.together(*[functools.partial(store.take_epoch, HOST.uuid) for store in stores])
        self.assertEqual(2, len({*taken}))
        self.assertEqual(max(taken), self.store.hosts()[0].epoch)

    def test_only_from_an_own_one(self) -> None:
        own = set[int]()
        first = self.store.take_epoch(HOST.uuid, own)
        second = self.store.take_epoch(HOST.uuid, own)
        self.assertEqual({first, second}, own)
        third = self.store.take_epoch(HOST.uuid)
        error = self.assertRaises(exception.HostTakenOver, self.store.take_epoch, HOST.uuid, own)
        self.assertEqual((HOST.name, {first, second}), (error.host, own))
        self.assertEqual(third, self.store.hosts()[0].epoch)

    def test_an_unknown_host_has_none(self) -> None:
        error = self.assertRaises(exception.UnknownHost, self.store.take_epoch, 'f' * 36)
        self.assertEqual(('f' * 36, ('compute-1', 'compute-2')), (error.host, error.known))

    def test_a_machine_that_takes_a_name_has_an_epoch_of_its_own(self) -> None:
        older = self.started()
        self.store.replace_host(HOST, ANOTHER)
        self.assertRaises(exception.HostTakenOver, older.write, insert(record('ns0')))


class TestFence(EpochTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.older = self.started()
        self.mine = [record(f'ns{number}') for number in range(3)]
        self.older.write(insert(*self.mine))
        self.newer = self.started(self.fixture.open())
        self.newest = self.store.host(HOST.name)

    def assert_refused(self, store: api.Store, changes: api.Changes) -> None:
        before = self.store.records()
        error = self.assertRaises(exception.HostTakenOver, store.write, changes)
        self.assertEqual('compute-1', error.host)
        self.assertIsInstance(error, exception.NothingWritten)
        self.assertEqual(before, self.store.records())

    def test_an_older_manager_inserts_nothing(self) -> None:
        self.assert_refused(self.older, insert(record('ns3')))
        self.assert_refused(self.older, insert(record('ns3'), record('ns4')))

    def test_an_older_manager_changes_nothing(self) -> None:
        self.assert_refused(self.older, update(self.mine[0]))
        changes = [update(row).update[0] for row in self.mine]
        self.assert_refused(self.older, api.Changes(update=tuple(changes)))

    def test_an_older_manager_deletes_nothing(self) -> None:
        self.assert_refused(self.older, delete(self.mine[0]))
        self.assert_refused(self.older, delete(*self.mine))

    def test_an_older_manager_does_none_of_all_at_once(self) -> None:
        self.assert_refused(self.older, api.Changes(
            insert=(record('ns3'),), update=update(self.mine[0]).update, delete=(self.mine[1],),
            contexts=(context(self.mine[0]),)))
        self.assertEqual([], self.store.contexts(HOST.uuid))

    def test_a_row_that_exists_is_no_reason_to_look_further(self) -> None:
        """The older manager is told that it works no more, not that a device has an owner."""
        self.assert_refused(self.older, insert(record('ns0')))

    def test_the_newest_manager_writes_everything(self) -> None:
        first, second, third = self.mine
        self.newer.write(api.Changes(insert=(record('ns3'),), update=update(first).update, delete=(second,),
                                     contexts=(context(first),)))
        self.newer.write(delete(moved_on(first), third))
        self.newer.write(insert(*[record(f'ns{number}') for number in range(10, 20)]))
        self.assertEqual(11, len(self.store.records()))
        self.assertFalse(self.newer.is_taken_over)

    def test_all_else_that_an_older_manager_writes_for_its_host_is_refused(self) -> None:
        request = api.OperatorRequest('1' * 36, HOST.uuid, 'cordon', '{}', 1)
        leftover = Leftover('1' * 36, records.MIGRATION_UUID)
        self.store.add_operator_request(request)
        calls = [functools.partial(self.older.set_boot_id, HOST.uuid, 'boot-1'),
                 functools.partial(self.older.set_nested, HOST.uuid, 1, 1),
                 functools.partial(self.older.set_withheld, [
                     api.WithheldRow(HOST.uuid, 'vpmem', 'device', 'ns0', '{}', 1, 1)], [],
                     [Event(HOST.uuid, 'vpmem', 'ns0', 'withheld', 1)]),
                 functools.partial(self.older.trim_events, HOST.uuid, 1 << 60, 0, 100),
                 functools.partial(self.older.set_declarations, HOST.uuid, [
                     api.StoredDeclaration(HOST.uuid, 'mdev', 'p', 'nvidia-35', '{}')]),
                 functools.partial(self.older.answer_operator_request, request.uuid, 1, '{}'),
                 functools.partial(self.older.add_leftover, HOST.uuid, leftover),
                 functools.partial(self.older.remove_leftover, HOST.uuid, leftover)]
        told = self.store.events_of_device('ns0')
        for call in calls:
            self.assertRaises(exception.HostTakenOver, call)
        self.assertEqual(told, self.store.events_of_device('ns0'))
        self.assertEqual((self.newest, [request], [], [], []), (
            self.store.host(HOST.name), self.store.operator_requests(), self.store.withheld(HOST.uuid),
            self.store.declarations(), self.store.leftovers(HOST.uuid)))

    def test_an_older_manager_is_told_when_it_asks_and_remembers(self) -> None:
        self.newer.check_epoch()
        self.assertFalse(self.older.is_taken_over)
        self.assertRaises(exception.HostTakenOver, self.older.check_epoch)
        self.assertTrue(self.older.is_taken_over)
        self.assertFalse(self.newer.is_taken_over)
        self.assertFalse(self.store.is_taken_over)

    def test_who_takes_no_epoch_is_not_asked_for_one(self) -> None:
        """Commands that work on rows of a machine that is gone."""
        self.store.check_epoch()
        self.store.write(delete(self.mine[0]))

    def test_hosts_do_not_fence_one_another(self) -> None:
        beside = self.started(self.fixture.open(), OTHER)
        self.newer.write(insert(record('ns3')))
        beside.write(insert(record('ns3', host_uuid=OTHER.uuid)))

    def test_one_that_is_refused_harms_no_other_of_its_transaction(self) -> None:
        beside = self.started(host=OTHER)
        newest = self.started()
        calls = [functools.partial(store.write, insert(record(f'{name}{number}', host_uuid=host.uuid)))
                 for number in range(16)
                 for name, store, host in (('old', self.older, HOST), ('new', newest, HOST), ('b', beside, OTHER))]
        answers = self.together(*calls)
        self.assertEqual([True, False, False] * 16,
                         [isinstance(answer, exception.HostTakenOver) for answer in answers])
        self.assertEqual([None] * 32, [answer for index, answer in enumerate(answers) if index % 3])
        self.assertEqual([], [row for row in self.store.records() if row.identifier.startswith('old')])


class TestTakingOver(EpochTestCase):
    """On the servers, where two transactions may be open at once."""

    scenarios = [one for one in databases.SCENARIOS if one[1]['database'] is not databases.SQLiteStore]

    def test_who_takes_over_waits_for_what_the_older_one_is_just_writing(self) -> None:
        row, found = record('ns0'), []
        epoch = self.store.take_epoch(HOST.uuid)
        second = self.fixture.open()

        def take_over() -> None:
            second.take_epoch(HOST.uuid)
            found.extend(second.records())

        def write(connection: sa.Connection) -> None:
            changing.carry_out(connection, [(insert(row), HOST._replace(epoch=epoch))])
            taking.start()
            taking.join(0.5)
            self.assertEqual((True, []), (taking.is_alive(), found))

        taking = threading.Thread(target=take_over)
        self.store.transact(write)
        taking.join(base.HANGS_S)
        self.assertEqual([row], found)
