"""A host that moves from one store to another, on each pair of databases."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
import types
from typing import Any
from unittest import mock

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.claims import host as host_identity
from devicetrack.claims import report
from devicetrack.fleet.mirror import Mirror
from devicetrack.objects.event import Event
from devicetrack.store import api
from devicetrack.store.sql import engine as engines
from devicetrack.store.sql import models
from devicetrack.store.sql import moving_host
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.tests import base
from devicetrack.tests.functional.fleet import hosts
from devicetrack.tests.functional.store import records

_SQLITE, _POSTGRESQL, _MARIADB = (facts['database'] for _name, facts in databases.SCENARIOS)


class MovingTestCase(base.TestCase):
    """A host with a guest, another instance without one, a cordon, a request, a context and events of two pages."""

    source: type[databases.StoreFixture] = _SQLITE
    target: type[databases.StoreFixture] = _SQLITE

    def setUp(self) -> None:
        super().setUp()
        self.old = self.useFixture(self.source()).open()
        self.new_fixture = self.useFixture(self.target())
        self.new = self.new_fixture.open()
        self.host = self.started('compute-7', self.old)
        self.guest = self.host.spawn(pmem=1)
        self.claimed = fixtures.Instance()
        self.host.claim(self.claimed, pmem=1)
        self.host.manager.operator.cordon('vpmem', 'd3', reason='bad')
        self.row = self.row_in(self.old)
        self.old.add_operator_request(api.OperatorRequest(
            'b0f3b1aa-3d51-4f21-8c5c-0a3d0d7b1f01', self.row.uuid, 'cordon', '{}', 1_700_000_000))
        self.old.transact(lambda connection: connection.execute(sa.insert(models.leftovers), [
            {'host_uuid': self.row.uuid, 'instance_uuid': self.guest.uuid, 'migration_uuid': records.MIGRATION_UUID,
             'verb': 'confirm', 'own': None}]))
        event = self.old.events_after(self.row.uuid, 0, 1)[0].event
        self.add_events(self.old, [event._replace(at_ms=number) for number in range(600)])
        self.host.manager.close()

    def started(self, name: str, store: SQLStore) -> fixtures.Host:
        return self.useFixture(fixtures.Host(
            devices=4, name=name, store=store,
            configuration=self.useFixture(fixtures.Configuration(machine=name))))

    def add_events(self, store: SQLStore, events: list[Event]) -> None:
        store.transact(lambda connection: connection.execute(
            sa.insert(models.events), [event._asdict() for event in events]))

    def row_in(self, store: SQLStore) -> api.Host:
        found = store.host('compute-7')
        assert found is not None
        return found

    def digest(self) -> str:
        return host_identity.machine_digest(self.host.conf.devicetrack.machine_id_path)

    def move(self, source: SQLStore, target: SQLStore,
             told: Callable[[int], None] | None = None) -> moving_host.Moved:
        host = moving_host.host_of(source, target, 'compute-7', self.digest())
        return moving_host.move(source, target, host, told)

    def rows(self, store: SQLStore) -> dict[str, list[Any]]:
        """All rows of the host but its own, without the numbers that a store gives them."""
        found = {}
        for table in models.TABLES.values():
            if table is not models.hosts:
                columns = [column for column in table.c if column.name != 'number']
                found[table.name] = sorted((tuple(row) for row in store.rows(
                    sa.select(*columns).where(table.c.host_uuid == self.row.uuid))), key=repr)
        return found

    def in_order(self, store: SQLStore) -> list[Event]:
        return [one.event for one in store.events_after(self.row.uuid, 0, 10_000)]

    def start(self, store: SQLStore) -> None:
        self.host.store.store = store
        self.host.restart()


def raising(error: BaseException) -> Callable[[int], None]:
    def told(rows: int) -> None:
        raise error

    return told


class TestMove(MovingTestCase):
    scenarios = base.table(
        ('sqlite to postgresql', _SQLITE, _POSTGRESQL),
        ('sqlite to mariadb', _SQLITE, _MARIADB),
        ('postgresql to sqlite', _POSTGRESQL, _SQLITE),
        ('mariadb to postgresql', _MARIADB, _POSTGRESQL),
        names=('source', 'target'))

    def test_every_row_arrives_and_the_manager_goes_on_there(self) -> None:
        beside = self.started('compute-8', self.new)
        beside.spawn(pmem=1)
        before, events, epoch = self.rows(self.old), self.in_order(self.old), self.row_in(self.old).epoch
        told: list[int] = []
        moved = self.move(self.old, self.new, told.append)
        self.assertEqual({name: len(rows) for name, rows in before.items()}, moved.rows)
        self.assertLessEqual({name for name, rows in before.items() if not rows}, {'migration_contexts'})
        self.assertEqual(sum(map(len, before.values())), told[-1])
        self.assertEqual((before, events), (self.rows(self.new), self.in_order(self.new)))
        now = self.row_in(self.new)
        self.assertEqual(self.row.identity, now.identity)
        self.assertGreater(now.epoch, epoch)
        self.start(self.new)
        self.assertEqual({'d0': self.guest.uuid, 'd1': self.claimed.uuid}, self.host.owners())
        self.host.spawn(pmem=1)
        self.assertRaises(exception.NoFit, self.host.spawn, pmem=1)         # the fourth is cordoned
        self.assertEqual(1, len(beside.held()))

    def test_the_old_store_refuses_the_service_and_the_commands(self) -> None:
        self.move(self.old, self.new)
        error = self.assertRaises(exception.HostMoved, self.host.another_manager().init_host, self.host.context)
        self.assertIn(self.new.name[:30], str(error))
        for name in ('compute-7', None):
            self.assertRaises(exception.HostMoved, report.locate, self.old, name,
                              self.host.conf.devicetrack.machine_id_path)
        self.assertRaises(exception.HostMoved, self.move, self.old, self.useFixture(_SQLITE()).store)
        self.start(self.new)

    def test_a_manager_with_another_state_directory_can_write_no_more(self) -> None:
        self.host.manager.init_host(self.host.context)
        self.move(self.old, self.new)
        self.assertRaises(exception.HostTakenOver, self.host.spawn, pmem=1)
        self.start(self.new)

    def test_it_moves_back_with_what_was_recorded_meanwhile(self) -> None:
        self.move(self.old, self.new)
        self.start(self.new)
        self.host.delete(self.guest)
        self.host.manager.close()
        before = self.rows(self.new)
        self.move(self.new, self.old)
        self.assertEqual(before, self.rows(self.old))
        self.start(self.old)
        self.assertEqual({'d1': self.claimed.uuid}, self.host.owners())


class TestWhatStopsIt(MovingTestCase):
    scenarios = base.table(('sqlite', _SQLITE), ('postgresql', _POSTGRESQL), ('mariadb', _MARIADB), names=('target',))

    def test_an_error_leaves_the_host_where_it_was(self) -> None:
        before = self.rows(self.old)
        self.assertRaises(exception.StoreUnavailable, self.move, self.old, self.new,
                          raising(exception.StoreUnavailable('new', 'full')))
        self.assertEqual(([], before), (self.new.hosts(), self.rows(self.old)))
        self.start(self.old)

    def test_after_an_interrupt_neither_store_starts_and_the_next_call_ends_it(self) -> None:
        before = self.rows(self.old)
        self.assertRaises(KeyboardInterrupt, self.move, self.old, self.new, raising(KeyboardInterrupt()))
        self.assertRaises(exception.HostMoved, self.host.another_manager().init_host, self.host.context)
        self.assertRaises(exception.HostMoved, self.start, self.new)    # it would begin there without rows
        self.move(self.old, self.new)
        self.assertEqual(before, self.rows(self.new))
        self.assertIsNone(self.move(self.old, self.new).rows)
        self.assertEqual(before, self.rows(self.new))
        self.start(self.new)

    def test_a_commit_that_comes_after_the_next_call_has_failed(self) -> None:
        before = self.rows(self.old)
        late = self.late_commit()
        self.assertRaises(exception.StoreUnavailable, self.move, self.old, self.brief())
        self.assertRaises(exception.HostMoved, self.host.another_manager().init_host, self.host.context)
        late()
        self.assertIsNone(self.move(self.old, self.new).rows)
        self.assertEqual(before, self.rows(self.new))
        self.assertRaises(exception.HostMoved, self.host.another_manager().init_host, self.host.context)
        self.start(self.new)

    def brief(self) -> SQLStore:
        """The new store, for a process that waits a second for a lock."""
        self.new_fixture.conf.set_override('busy_timeout_s', 1, 'devicetrack_database')
        store = databases.open_store(self.new_fixture.conf)
        self.addCleanup(store.close)
        return store

    def late_commit(self) -> Callable[[], None]:
        """Move until the last COMMIT, whose outcome the call does not know. Returns what sends the COMMIT."""
        connections = contextlib.ExitStack()

        def transact(work: Callable[[sa.Connection], Any]) -> Any:
            connection = connections.enter_context(self.new.engine.connect().execution_options(
                **{engines.WRITES: True}))
            work(connection)
            connections.callback(connection.commit)
            raise exception.OutcomeUnknown(self.new.name)

        with mock.patch.object(self.new, 'unhurried', lambda: contextlib.nullcontext(
                types.SimpleNamespace(transact=transact))):
            self.assertRaises(exception.OutcomeUnknown, self.move, self.old, self.new)
        self.addCleanup(connections.close)
        return connections.close

    def test_a_target_with_a_host_of_this_name_or_machine_is_refused(self) -> None:
        moved = f'{self.row.machine_id}{api.MOVED}elsewhere'
        for other in (self.row._replace(uuid=records.HOST_UUID, machine_id='f' * 64),
                      self.row._replace(uuid=records.HOST_UUID, name='other'),
                      self.row._replace(uuid=records.HOST_UUID, name='other', machine_id=moved), self.row):
            self.new.add_host(other)
            self.assertRaises(exception.TargetHasHost, self.move, self.old, self.new)
            self.new.replace_host(other, None)
        self.start(self.old)


class TestAgain(MovingTestCase):
    """Calls that come again after the host has gone on, in SQLite files."""

    def setUp(self) -> None:
        super().setUp()
        self.third = self.useFixture(_SQLITE()).store

    def owners(self) -> list[SQLStore]:
        """The stores with which a manager of the host starts."""
        return [store for store in (self.old, self.new, self.third)
                if (host := store.host('compute-7')) is not None and host.moved_to is None]

    def test_an_earlier_move_again_brings_no_old_rows(self) -> None:
        self.move(self.old, self.new)
        self.move(self.new, self.third)
        before = self.rows(self.third)
        self.assertRaises(exception.HostMoved, self.move, self.old, self.new)
        for table in models.TABLES.values():    # as "host forget"
            self.new.transact(lambda connection, table=table: connection.execute(sa.delete(table)))
        self.assertRaises(exception.HostMoved, self.move, self.old, self.new)
        self.assertEqual(([self.third], before), (self.owners(), self.rows(self.third)))
        self.move(self.third, self.old)
        self.assertEqual(([self.old], before), (self.owners(), self.rows(self.old)))
        self.start(self.old)

    def test_an_earlier_move_that_was_cut_short_after_its_last_row(self) -> None:
        """The old store does not say that it ended. Its next call would replace what the host has done since."""
        self.move(self.old, self.new)
        moved = self.row_in(self.old).machine_id
        self.old.transact(lambda connection: connection.execute(sa.update(models.hosts).values(
            machine_id=moved.replace(api.MOVED, api.MOVING))))
        self.move(self.new, self.third)
        self.assertRaises(exception.TargetHasHost, self.move, self.old, self.new)
        self.assertEqual([self.third], self.owners())

    def test_another_command_that_ends_the_move_meanwhile(self) -> None:
        """The two know of no common lock."""
        def meanwhile(work: Callable[[sa.Connection], Any]) -> Any:
            patched.stop()
            self.assertIsNotNone(self.move(self.old, self.new).rows)
            return self.new.transact(work)

        patched = mock.patch.object(self.new, 'unhurried', lambda: contextlib.nullcontext(
            types.SimpleNamespace(transact=meanwhile)))
        patched.start()
        self.assertRaises(exception.HostIdentityChanged, self.move, self.old, self.new)
        self.assertEqual([self.new], self.owners())
        self.start(self.new)

    def test_stores_whose_names_differ_only_at_their_end(self) -> None:
        """A row has room for a part of a name."""
        stores = []
        for number in range(2):
            directory = f'{self.state_path}/{"long" * 20}{number}'
            os.makedirs(directory, 0o700)
            databases.write_empty_sqlite(f'{directory}/devicetrack.sqlite')
            stores.append(databases.open_store(databases.configuration(
                connection=f'sqlite:///{directory}/devicetrack.sqlite')))
            self.addCleanup(stores[-1].close)
        self.assertRaises(KeyboardInterrupt, self.move, self.old, stores[0], raising(KeyboardInterrupt()))
        self.assertRaises(exception.HostMoved, self.move, self.old, stores[1])
        self.move(self.old, stores[0])


class TestMirror(MovingTestCase):

    def test_the_mirror_has_each_event_once(self) -> None:
        pushing = self.useFixture(hosts.PushingHost('compute-9'))
        pushing.host.spawn(pmem=1)
        url = f'sqlite:///{self.state_path}/mirror/mirror.sqlite'
        mirror = self.mirror(url)
        pushing.push(mirror)
        before = hosts.events_in(mirror, pushing.uuid)
        pushing.host.manager.close()
        digest = host_identity.machine_digest(pushing.host.conf.devicetrack.machine_id_path)
        moving_host.move(pushing.store, self.old, moving_host.host_of(pushing.store, self.old, None, digest))
        pushing.host.store.store = self.old
        pushing.host.restart()
        pushing.push(mirror)
        found = hosts.events_in(mirror, pushing.uuid)
        self.assertEqual((len(before), set()), (len(found), set(before) - set(found)))

    def mirror(self, url: str) -> Mirror:
        conf = databases.configuration()
        conf.set_override('connection', url, 'devicetrack_fleet')
        mirror = Mirror(conf)
        self.addCleanup(mirror.close)
        mirror.sync(days=30)
        return mirror
