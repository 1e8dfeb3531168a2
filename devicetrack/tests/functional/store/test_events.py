"""Events: written with the rows that they tell of, asked for by device and instance, and trimmed, on each database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects.event import Event
from devicetrack.objects.event import Note
from devicetrack.objects.event import Wiped
from devicetrack.objects.values import Record
from devicetrack.store import api
from devicetrack.testing import databases
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import moved_on
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update
from devicetrack.tests.functional.store.test_contract import StoreTestCase
from devicetrack.tests.unit.objects import samples

REQUEST = 'req-6e0b8a9e-5f3f-4c0e-8f8e-0a3c6f1d2b4a'


# Whoever quotes it wrongly ends the string, or the statement.
_STRANGE = """a'; DROP TABLE hosts; -- \\' %s %% ? :name \\"""


class EventsTestCase(StoreTestCase):

    def at_an_epoch(self) -> api.Store:
        """The store as the manager of a host has it: with a fence."""
        host = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        self.store.add_host(host)
        return self.store.at_epoch(host._replace(epoch=self.store.take_epoch(host.uuid)))

    def names(self, identifier: str = 'ns0') -> list[str]:
        return [one.event.event for one in self.store.events_of_device(identifier)]

    def releasing(self, row: Record, store: api.Store | None = None) -> Record:
        """The row being released, and in the store."""
        after = moved_on(row, state=vocabulary.RELEASING)
        (store or self.store).write(api.Changes(update=(api.Update(row, after),)))
        return after


class TestServerMode(base.TestCase):

    def test_a_server_may_forbid_backslashes_as_escapes(self) -> None:
        store = self.useFixture(databases.MariaDBStore()).store
        host = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        store.add_host(host)
        writing = store.at_epoch(host._replace(epoch=store.take_epoch(host.uuid)))
        writing.write(insert(record('ns0')))
        with writing.reading() as connection:                   # the one that is kept
            connection.execute(sa.text("SET SESSION sql_mode = CONCAT(@@sql_mode, ',NO_BACKSLASH_ESCAPES')"))
        writing.write(insert(record(_STRANGE)))
        writing.write(insert(record(_STRANGE + '1'), record(_STRANGE + '2')))
        self.assertEqual(sorted(['ns0', _STRANGE, _STRANGE + '1', _STRANGE + '2']),
                         sorted(row.identifier for row in store.records()))
        self.assertEqual(1, len(store.events_of_device(_STRANGE)))


class TestWriting(EventsTestCase):

    def test_a_claim_of_a_manager_is_an_event(self) -> None:
        row = record('ns0')
        self.at_an_epoch().write(insert(row)._replace(note=Note(REQUEST)))
        [found] = self.store.events_of_device('ns0')
        self.assertEqual(Event(row.host_uuid, 'vpmem', 'ns0', 'claimed', found.event.at_ms, row.instance_uuid, None,
                               row.claim_id, REQUEST, serial=details.serial_of(row.details)), found.event)
        self.assertLess(1_700_000_000_000, found.event.at_ms)

    def test_each_names_the_card_of_its_row(self) -> None:
        card, other = samples.mdev_details(), samples.mdev_details()
        card.parent_serial, other.parent_serial = 'S1', 'S2'
        made = record('d0', kind='mdev', details=details.to_text(card))
        store = self.at_an_epoch()
        store.write(insert(made))
        store.write(insert(*[record(f'd{number}', kind='mdev', details=details.to_text(other)) for number in (1, 2)]))
        store.write(insert(record('ns0')))
        store.write(delete(made))
        self.assertEqual(['claimed', 'released', 'freed'], [
            one.event.event for one in self.store.events_of_serial('S1')])
        self.assertEqual(['d1', 'd2'], [one.event.identifier for one in self.store.events_of_serial('S2')])
        self.assertEqual([], self.store.events_of_serial('S1', host_uuid='f' * 36))
        self.assertEqual([], self.store.events_of_serial('S1', since_ms=1 << 62))

    def test_a_card_in_the_place_of_another_ends_the_history_of_that_one(self) -> None:
        card, other = samples.mdev_details(), samples.mdev_details()
        card.parent_serial, other.parent_serial = 'S1', 'S2'
        made = record('d0', kind='mdev', state=vocabulary.ACTIVE, details=details.to_text(card))
        self.store.write(insert(made))
        self.store.write(update(made, details=details.to_text(other)))
        self.assertEqual([['recovered', 'forgotten'], ['recovered']], [
            [one.event.event for one in self.store.events_of_serial(serial)] for serial in ('S1', 'S2')])

    def test_the_latest_of_a_host_are_the_newest_first(self) -> None:
        for number in range(3):
            self.store.write(insert(record(f'ns{number}')))
        self.store.write(insert(record('ns3', host_uuid='f' * 36)))
        self.assertEqual(['ns2', 'ns1'], [
            one.event.identifier for one in self.store.latest_events(records.HOST_UUID, 2)])
        self.assertEqual(3, len(self.store.latest_events(records.HOST_UUID, 10)))
        self.assertEqual([], self.store.latest_events('e' * 36, 10))

    def test_every_row_of_several_has_its_event(self) -> None:
        rows = [record(f'ns{number}', instance_uuid='a' * 36) for number in range(3)]
        self.at_an_epoch().write(insert(*rows))
        self.assertEqual(['ns0', 'ns1', 'ns2'],
                         [one.event.identifier for one in self.store.events_of_instance('a' * 36)])

    def test_more_rows_than_a_statement_takes(self) -> None:
        rows = [record(f'ns{number}', instance_uuid='a' * 36) for number in range(1201)]
        store = self.at_an_epoch()
        store.write(insert(*rows))
        store.write(delete(*rows))
        self.assertEqual(['claimed'] * 1201 + ['released', 'freed'] * 1201,
                         [one.event.event for one in self.store.events_of_instance('a' * 36)])

    def test_names_of_others_stay_what_they_are(self) -> None:
        store = self.at_an_epoch()
        for names in ((_STRANGE,), (_STRANGE + '1', _STRANGE + '2')):
            store.write(insert(*[record(name, parent=name) for name in names])._replace(note=Note(_STRANGE)))
            for name in names:
                [found] = self.store.events_of_device(name)
                self.assertEqual((name, _STRANGE), (found.event.identifier, found.event.request_id))
        self.assertEqual([_STRANGE, _STRANGE + '1', _STRANGE + '2'],
                         sorted(row.parent or '' for row in self.store.records()))

    def test_a_parent_has_the_events_of_its_devices(self) -> None:
        store = self.at_an_epoch()
        rows = [record(f'unit{number}', parent=parent) for number, parent in enumerate(('card0', 'card1', 'card0'))]
        store.write(insert(rows[0]))
        store.write(insert(*rows[1:]))
        store.write(delete(rows[0]))
        found = [(one.event.identifier, one.event.event) for one in store.events_of_device('card0')]
        self.assertEqual([('unit0', 'claimed'), ('unit2', 'claimed'), ('unit0', 'released'), ('unit0', 'freed')], found)
        self.assertEqual(found, [(one.event.identifier, one.event.event) for one in store.events_of_device(
            'card0', host_uuid=records.HOST_UUID)])
        self.assertEqual({'card0'}, {one.event.parent for one in store.events_of_device('unit0')})
        self.assertEqual([], store.events_of_device('card0', host_uuid='f' * 36))

    def test_the_whole_life_of_a_row(self) -> None:
        store, row = self.at_an_epoch(), record('ns0')
        store.write(insert(row))
        ready = moved_on(row, state=vocabulary.CLAIMED, was_realized=True)
        store.write(api.Changes(update=(api.Update(row, ready),)))
        runs = moved_on(ready)
        store.write(api.Changes(update=(api.Update(ready, runs),)))
        left = self.releasing(runs, store)
        store.write(delete(left)._replace(note=Note(wiped={left.key: Wiped(4 << 30, 1.5, vocabulary.WIPED)})))
        self.assertEqual(['claimed', 'realized', 'started', 'released', 'wiped'], self.names())
        self.assertEqual({'bytes': 4 << 30, 'seconds': 1.5, 'proof': 'wiped'},
                         self.store.events_of_device('ns0')[-1].event.more)
        self.assertEqual([], self.store.records())

    def test_what_is_refused_leaves_no_event(self) -> None:
        store, row = self.at_an_epoch(), record('ns0')
        store.write(insert(row))
        for changes, refusal in ((insert(record('ns0')), exception.DeviceTaken),
                                 (insert(record('ns0'), record('ns1')), exception.DeviceTaken),
                                 (delete(moved_on(row)), exception.StaleAssignment),
                                 (update(moved_on(row)), exception.StaleAssignment)):
            self.assertRaises(refusal, store.write, changes)
        self.assertEqual((['claimed'], []), (self.names(), self.names('ns1')))

    def test_a_manager_that_was_taken_over_leaves_no_event(self) -> None:
        store, row = self.at_an_epoch(), record('ns0')
        store.write(insert(row))
        self.store.take_epoch(records.HOST_UUID)
        for changes in (insert(record('ns1')), insert(record('ns1'), record('ns2')), delete(row), update(row)):
            self.assertRaises(exception.HostTakenOver, store.write, changes)
        self.assertEqual((['claimed'], [], []), (self.names(), self.names('ns1'), self.names('ns2')))

    def test_callers_that_commit_together_have_their_own(self) -> None:
        rows = [record(f'ns{number}') for number in range(8)]
        self.together(*[lambda row=row: self.store.write(insert(row)) for row in rows])
        for row in rows:
            [found] = self.store.events_of_instance(row.instance_uuid)
            self.assertEqual((row.identifier, row.claim_id), (found.event.identifier, found.event.claim_id))

    def test_words_of_others_are_kept_as_they_are(self) -> None:
        self.store.set_withheld([], events=[Event(
            records.HOST_UUID, 'vpmem', "ns';--%s", 'withheld', 1, request_id='%(x)s', details='{"why": "ä\'\\""}')])
        [found] = self.store.events_of_device("ns';--%s")
        self.assertEqual(('%(x)s', {'why': 'ä\'"'}), (found.event.request_id, found.event.more))

    def test_those_of_what_is_withheld_come_with_it(self) -> None:
        row = api.WithheldRow(records.HOST_UUID, 'vpmem', 'device', 'ns0', '{}', 1, 1)
        event = Event(records.HOST_UUID, 'vpmem', 'ns0', 'withheld', 1)
        self.store.set_withheld([row], events=[event])
        self.assertEqual(([row], [event]), (self.store.withheld(records.HOST_UUID), [
            one.event for one in self.store.events_of_device('ns0')]))
        nothing: Any = None
        refused = row._replace(name='ns1', reasons=nothing)
        self.assertRaises(exception.StoreUnavailable, self.store.set_withheld, [refused], [],
                          [event._replace(identifier='ns1')])
        self.assertEqual([], self.names('ns1'))

    def test_a_host_that_is_replaced_leaves_its_history_to_the_new_one(self) -> None:
        before = api.Host(records.HOST_UUID, 'compute-1', 'digest')
        after = api.Host('0' * 36, 'compute-1', 'another digest')
        self.store.add_host(before)
        self.store.set_withheld([], events=[Event(before.uuid, 'vpmem', 'ns0', 'withheld', 1)])
        self.store.replace_host(before, after)
        self.assertEqual([after.uuid], [one.event.host_uuid for one in self.store.events_of_device('ns0')])


class TestAsking(EventsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.add(*range(10))

    def add(self, *times: int, host_uuid: str = records.HOST_UUID) -> None:
        self.store.set_withheld([], events=[Event(host_uuid, 'vpmem', 'ns0', 'withheld', at_ms) for at_ms in times])

    def times(self, since_ms: int | None = None, until_ms: int | None = None,
              host_uuid: str | None = None) -> list[int]:
        return [one.event.at_ms for one in self.store.events_of_device('ns0', since_ms, until_ms, host_uuid)]

    def trim(self, before_ms: int = 0, surplus: int = 0, limit: int = 100) -> int:
        return self.store.trim_events(records.HOST_UUID, before_ms, surplus, limit)

    def test_between_times(self) -> None:
        self.assertEqual(list(range(10)), self.times())
        self.assertEqual([7, 8, 9], self.times(7))
        self.assertEqual([0, 1], self.times(None, 2))
        self.assertEqual([3, 4], self.times(3, 5))

    def test_on_one_host(self) -> None:
        self.add(99, host_uuid='0' * 36)
        self.assertEqual([99], self.times(host_uuid='0' * 36))
        self.assertEqual([9, 99], self.times(9))

    def test_they_come_as_they_were_written_whatever_the_clock_said(self) -> None:
        self.add(-5)
        self.assertEqual([*range(10), -5], self.times())

    def test_counting_goes_on_where_it_ended(self) -> None:
        self.add(99, host_uuid='0' * 36)
        count, last = self.store.count_events(records.HOST_UUID, 0, 7)
        self.assertEqual(7, count)
        rest, end = self.store.count_events(records.HOST_UUID, last, 7)
        self.assertEqual((3, (0, end)), (rest, self.store.count_events(records.HOST_UUID, end, 7)))

    def test_a_file_with_one_host_knows_how_many(self) -> None:
        self.store.add_host(api.Host(records.HOST_UUID, 'compute-1', 'digest'))
        at_once = self.store.backend.__class__.__name__ == 'SQLite'
        count, last = self.store.count_events(records.HOST_UUID, 0, 7)
        self.assertEqual(10 if at_once else 7, count)
        self.trim(surplus=3)
        self.assertEqual(7 if at_once else 5, self.store.count_events(records.HOST_UUID, 0, 5)[0])
        rest, end = self.store.count_events(records.HOST_UUID, last - 1, 7)
        self.assertEqual((1 if at_once else 4, (0, end)), (rest, self.store.count_events(records.HOST_UUID, end, 7)))
        self.store.add_host(api.Host('0' * 36, 'compute-2', 'another digest'))
        self.assertEqual(5, self.store.count_events(records.HOST_UUID, 0, 5)[0])

    def test_what_is_too_old_goes(self) -> None:
        self.assertEqual((4, list(range(4, 10)), 0), (self.trim(before_ms=4), self.times(), self.trim(before_ms=4)))

    def test_what_is_too_much_goes(self) -> None:
        self.assertEqual((3, list(range(3, 10))), (self.trim(surplus=3), self.times()))

    def test_never_more_than_a_step_at_once(self) -> None:
        self.assertEqual((2, list(range(2, 10))), (self.trim(before_ms=100, limit=2), self.times()))

    def test_other_hosts_keep_theirs(self) -> None:
        self.add(0, host_uuid='0' * 36)
        self.assertEqual((10, [0]), (self.trim(before_ms=100), self.times()))

    def test_a_manager_that_was_taken_over_trims_nothing(self) -> None:
        store = self.at_an_epoch()
        self.store.take_epoch(records.HOST_UUID)
        self.assertRaises(exception.HostTakenOver, store.trim_events, records.HOST_UUID, 100, 0, 100)
        self.assertEqual(10, len(self.times()))


class TestLostAnswers(EventsTestCase):
    """The connection breaks in COMMIT: the rows and their events are there, or neither is."""

    def test_the_commit_happened(self) -> None:
        self._lose(reaches_the_database=True)

    def test_the_commit_did_not_happen(self) -> None:
        self._lose(reaches_the_database=False)

    def _lose(self, reaches_the_database: bool) -> None:
        row = record('ns0')
        self.assertRaises(exception.OutcomeUnknown, self._write_and_lose, insert(row), reaches_the_database)
        self.assertEqual(reaches_the_database, self.store.settle(insert(row)))
        self.assertEqual(([row], ['claimed']) if reaches_the_database else ([], []),
                         (self.store.records(), self.names()))

    def _write_and_lose(self, changes: api.Changes, reaches: bool) -> None:
        def commit(connection: sa.Connection) -> None:
            driver_connection: Any = connection.connection.dbapi_connection
            if reaches:
                driver_connection.commit()
            driver_connection.close()
            raise OSError('the connection is lost')

        sa.event.listen(self.store.engine, 'commit', commit)
        try:
            self.store.write(changes)
        finally:
            sa.event.remove(self.store.engine, 'commit', commit)

