"""Stores that earlier releases made, brought to this release's schema."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

from alembic import command
from alembic import script
import sqlalchemy as sa

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects.event import Event
from devicetrack.objects.values import Leftover
from devicetrack.store import api
from devicetrack.store import sql
from devicetrack.store.sql import models
from devicetrack.store.sql import schema
from devicetrack.testing import databases
from devicetrack.tests import base
from devicetrack.tests.functional.store import records
from devicetrack.tests.functional.store.records import context
from devicetrack.tests.functional.store.records import delete
from devicetrack.tests.functional.store.records import insert
from devicetrack.tests.functional.store.records import record
from devicetrack.tests.functional.store.records import update
from devicetrack.tests.unit.objects import samples

_ROWS = [record('ns0', numa_node=1, position=3), record('ns1', migration_uuid=records.MIGRATION_UUID, parent='p')]
_REQUEST = api.OperatorRequest('0' * 36, records.HOST_UUID, 'cordon', '{}', 1)
_WITHHELD = api.WithheldRow(records.HOST_UUID, 'vpmem', 'device', 'ns0', '{}', 1, 1)

_DECLARED = api.StoredDeclaration(records.HOST_UUID, 'mdev', 'p', 'nvidia-35', '{}')
_LEFTOVER = Leftover('1' * 36, records.MIGRATION_UUID)

# Columns that tables have got since they were made.
_LATER = frozenset(('boot_id', 'nested_version', 'nested_at', 'seen', 'epoch', 'was_realized', 'instance_name'))


class UpgradeTestCase(base.TestCase):
    """A test with an empty database, whose schema is made by really running the migrations."""

    scenarios = databases.SCENARIOS
    database: type[databases.StoreFixture]

    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.useFixture(self.database(synced=False))
        self.store = self.fixture.store

    def make(self, revision: str) -> None:
        if self.store.path is not None:
            schema.make_file(self.store)

        def upgrade(connection: sa.Connection) -> None:
            config = schema.config()
            config.attributes['connection'] = connection
            command.upgrade(config, revision)

        self.store.transact(upgrade)

    def run_statement(self, statement: str, parameters: Any = None) -> None:
        self.store.transact(lambda connection: connection.execute(sa.text(statement), parameters))

    def fill(self, table: str, rows: Sequence[Any], later: Collection[str] = _LATER) -> None:
        """Write rows as an earlier release did: the tables of this one do not fit."""
        names = [name for name in rows[0]._fields if name not in later]
        self.run_statement(f'INSERT INTO {table} ({", ".join(names)}) '
                           f'VALUES ({", ".join(":" + name for name in names)})', [row._asdict() for row in rows])


class TestFromFirst(UpgradeTestCase):
    """From revision 0001: hosts and assignments."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0001')
        self.fill('hosts', [api.Host(records.HOST_UUID, 'compute-1', 'digest')])
        self.fill('assignments', _ROWS)

    def test_it_is_refused_until_it_is_synced(self) -> None:
        error = self.assertRaises(exception.SchemaMismatch, self.store.check)
        self.assertEqual((self.store.name, '0001', models.REVISION), (error.store, error.found, error.wanted))
        self.assertIn('devicetrack-manage db sync', error.remedy)

    def test_being_refused_changes_nothing(self) -> None:
        self.assertRaises(exception.SchemaMismatch, self.store.check)
        self.assertEqual('0001', schema.revision(self.store))
        for read in (self.store.hosts, self.store.operator_requests, self.store.records):
            self.assertRaises(exception.SchemaMismatch, read)
        schema.sync(self.store)
        self.assertCountEqual(_ROWS, self.store.records())

    def test_rows_are_kept(self) -> None:
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.store.check()
        self.assertEqual([api.Host(records.HOST_UUID, 'compute-1', 'digest')], self.store.hosts())
        self.assertCountEqual(_ROWS, self.store.records())
        self.assertEqual(([], []), (self.store.contexts(records.HOST_UUID), self.store.operator_requests()))

    def test_it_is_used_like_a_new_one(self) -> None:
        schema.sync(self.store)
        self.store.set_boot_id(records.HOST_UUID, 'boot-1')
        self.assertEqual('boot-1', self.store.hosts()[0].boot_id)
        self.store.write(update(_ROWS[1])._replace(contexts=(context(_ROWS[1]),)))
        self.store.write(delete(_ROWS[0]))
        self.store.write(insert(record('ns0')))
        self.assertEqual([context(_ROWS[1])], self.store.contexts(records.HOST_UUID))
        self.store.add_operator_request(_REQUEST)
        self.assertEqual([_REQUEST], self.store.operator_requests())
        self.store.set_withheld([_WITHHELD])
        self.assertEqual([_WITHHELD], self.store.withheld(records.HOST_UUID))
        self.store.set_declarations(records.HOST_UUID, [_DECLARED])
        self.assertEqual([_DECLARED], self.store.declarations())
        self.store.add_leftover(records.HOST_UUID, _LEFTOVER)
        self.assertEqual([_LEFTOVER], self.store.leftovers(records.HOST_UUID))

    def test_a_store_that_is_open_meanwhile_goes_on(self) -> None:
        """A manager that waits for the operator need not be started again."""
        waiting = self.fixture.open()
        self.assertRaises(exception.SchemaMismatch, waiting.check)
        self.assertRaises(exception.SchemaMismatch, waiting.hosts)
        schema.sync(self.store)
        waiting.check()
        self.assertEqual(['compute-1'], [host.name for host in waiting.hosts()])

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))

    def test_two_that_sync_at_once_do_it_once(self) -> None:
        stores = [self.store, self.fixture.open()]
        answers = self.together(*[lambda store=store: schema.sync(store) for store in stores])
        self.assertEqual([models.REVISION] * 2, answers)
        self.assertCountEqual(_ROWS, self.store.records())


class TestFromSecond(UpgradeTestCase):
    """From revision 0002: besides these, migration contexts and operator requests."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0002')
        self.host = api.Host(records.HOST_UUID, 'compute-1', 'digest', 'boot-1')
        self.context = context(_ROWS[1])
        for table, rows in (('hosts', [self.host]), ('assignments', _ROWS), ('migration_contexts', [self.context]),
                            ('orders', [_REQUEST])):
            self.fill(table, rows, _LATER - {'boot_id'})

    def test_it_is_refused_until_it_is_synced(self) -> None:
        error = self.assertRaises(exception.SchemaMismatch, self.store.check)
        self.assertEqual(('0002', models.REVISION), (error.found, error.wanted))
        self.assertRaises(exception.SchemaMismatch, self.store.withheld, records.HOST_UUID)

    def test_rows_are_kept_and_nothing_is_withheld(self) -> None:
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.store.check()
        self.assertEqual([self.host], self.store.hosts())
        self.assertCountEqual(_ROWS, self.store.records())
        self.assertEqual(([self.context], [_REQUEST], []), (
            self.store.contexts(records.HOST_UUID), self.store.operator_requests(),
            self.store.withheld(records.HOST_UUID)))
        self.store.set_withheld([_WITHHELD])
        self.assertEqual([_WITHHELD], self.store.withheld(records.HOST_UUID))

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))


class TestFromFifth(UpgradeTestCase):
    """From revision 0005: everything but what hosts declare, and what guests may have seen."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0005')
        self.host = api.Host(records.HOST_UUID, 'compute-1', 'digest', 'boot-1', 1, 5)
        for table, rows in (('hosts', [self.host]), ('assignments', _ROWS), ('withheld', [_WITHHELD])):
            self.fill(table, rows, {'seen', 'epoch', 'was_realized', 'instance_name'})

    def test_it_is_refused_until_it_is_synced(self) -> None:
        error = self.assertRaises(exception.SchemaMismatch, self.store.check)
        self.assertEqual(('0005', models.REVISION), (error.found, error.wanted))
        self.assertRaises(exception.SchemaMismatch, self.store.records)
        self.assertRaises(exception.SchemaMismatch, self.store.write, insert(record('ns9')))
        self.assertRaises(exception.SchemaMismatch, self.store.declarations)
        self.assertRaises(exception.SchemaMismatch, self.store.set_declarations, records.HOST_UUID, [_DECLARED])

    def test_rows_are_kept_and_nobody_knows_what_guests_have_seen(self) -> None:
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.store.check()
        self.assertEqual([self.host], self.store.hosts())
        self.assertCountEqual(_ROWS, self.store.records())
        self.assertEqual({None}, {row.seen for row in self.store.records()})
        self.assertEqual(([_WITHHELD], []), (self.store.withheld(records.HOST_UUID), self.store.declarations()))

    def test_it_is_used_like_a_new_one(self) -> None:
        schema.sync(self.store)
        change = update(_ROWS[0], seen='1.2.3')
        self.store.write(change)
        self.assertCountEqual([change.update[0].after, _ROWS[1]], self.store.records())
        self.store.set_declarations(records.HOST_UUID, [_DECLARED])
        self.assertEqual([_DECLARED], self.store.declarations())

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))


class TestFromSixth(UpgradeTestCase):
    """From revision 0006: everything but the epochs of hosts."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0006')
        self.host = api.Host(records.HOST_UUID, 'compute-1', 'digest', 'boot-1', 1, 5)
        self.fill('hosts', [self.host], {'epoch'})

    def test_no_manager_has_taken_an_epoch_yet(self) -> None:
        self.assertRaises(exception.SchemaMismatch, self.store.take_epoch, self.host.uuid)
        schema.sync(self.store)
        self.assertEqual([self.host], self.store.hosts())
        self.assertGreater(self.store.take_epoch(self.host.uuid), 0)

    def test_a_run_that_ended_before_it_wrote_the_version_is_done_again(self) -> None:
        self.run_statement('ALTER TABLE hosts ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0')
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.assertEqual([self.host], self.store.hosts())


class TestFromSeventh(UpgradeTestCase):
    """From revision 0007: everything but events."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0007')
        self.host = api.Host(records.HOST_UUID, 'compute-1', 'digest', 'boot-1', 1, 5)
        self.fill('hosts', [self.host], ())
        self.fill('assignments', _ROWS, ('was_realized', 'instance_name'))

    def test_the_history_begins_with_the_upgrade(self) -> None:
        self.assertRaises(exception.SchemaMismatch, self.store.check)
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.assertCountEqual(_ROWS, self.store.records())
        self.assertEqual([], self.store.events_of_device('ns0'))
        self.store.write(delete(_ROWS[0]))
        self.assertEqual(['released', 'freed'], [one.event.event for one in self.store.events_of_device('ns0')])

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))


class TestFromEighth(UpgradeTestCase):
    """From revision 0008, in which operator requests are called orders."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0008')
        self.fill('hosts', [api.Host(records.HOST_UUID, 'compute-1', 'digest')], ())
        self.requests = [
            _REQUEST, _REQUEST._replace(uuid='1' * 36, verb='drain', arguments='{"name": "ns\u00f6 %s ?"}'),
            _REQUEST._replace(uuid='2' * 36, host_uuid='9' * 36, answered_at=1 << 40, answer='x' * 1_000_000)]
        # One that was deleted meanwhile, so that the numbers have a gap.
        self.fill('orders', [self.requests[0], _REQUEST._replace(uuid='8' * 36), *self.requests[1:]], ())
        self.run_statement('DELETE FROM orders WHERE uuid = :uuid', {'uuid': '8' * 36})
        self.numbers = self.numbers_in('orders')

    def numbers_in(self, table: str) -> dict[str, int]:
        with self.store.reading() as connection:
            return {row.uuid: row.number for row in connection.execute(sa.text(f'SELECT uuid, number FROM {table}'))}

    def test_it_is_refused_until_it_is_synced(self) -> None:
        error = self.assertRaises(exception.SchemaMismatch, self.store.check)
        self.assertEqual(('0008', models.REVISION), (error.found, error.wanted))
        self.assertRaises(exception.SchemaMismatch, self.store.operator_requests)
        self.assertRaises(exception.SchemaMismatch, self.store.add_operator_request, _REQUEST)
        self.assertEqual(self.numbers, self.numbers_in('orders'))

    def test_rows_are_kept_with_their_numbers(self) -> None:
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.store.check()
        self.assertEqual(self.requests, self.store.operator_requests())
        self.assertEqual(self.numbers, self.numbers_in('operator_requests'))

    def test_it_is_used_like_a_new_one(self) -> None:
        schema.sync(self.store)
        later = _REQUEST._replace(uuid='7' * 36)
        self.store.add_operator_request(later)
        self.store.add_operator_request(later)
        self.assertRaises(ValueError, self.store.add_operator_request, self.requests[1]._replace(verb='uncordon'))
        self.assertEqual([*self.requests, later], self.store.operator_requests())
        self.assertTrue(self.store.answer_operator_request(_REQUEST.uuid, 7, '{}'))
        self.assertFalse(self.store.answer_operator_request(self.requests[2].uuid, 7, '{}'))
        self.assertEqual([self.requests[1], later],
                         self.store.operator_requests_of_host(records.HOST_UUID, waiting=True))

    def test_a_run_that_ended_before_it_wrote_the_version_is_done_again(self) -> None:
        schema.sync(self.store)
        self.run_statement("UPDATE alembic_version SET version_num = '0008'")
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.assertEqual(self.requests, self.store.operator_requests())

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))

    def test_nothing_is_called_orders_any_more(self) -> None:
        schema.sync(self.store)
        with self.store.reading() as connection:
            inspector = sa.inspect(connection)
            tables = inspector.get_table_names()
            names = [*tables, *(inspector.get_sequence_names() if connection.dialect.supports_sequences else ())]
            for table in tables:
                names += [inspector.get_pk_constraint(table)['name'],
                          *[index['name'] for index in inspector.get_indexes(table)],
                          *[unique['name'] for unique in inspector.get_unique_constraints(table)]]
        self.assertIn('operator_requests', names)
        self.assertEqual([], [name for name in names if 'orders' in (name or '')])


class TestFromNinth(UpgradeTestCase):
    """From revision 0009: the events name no parent."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0009')
        self.row = record('ns1', parent='card0')
        self.fill('hosts', [api.Host(records.HOST_UUID, 'compute-1', 'digest')], ())
        self.fill('assignments', [self.row], ('was_realized', 'instance_name'))
        self.before = Event(records.HOST_UUID, 'vpmem', 'ns1', 'claimed', 7, self.row.instance_uuid, None, 'c', 'req-1',
                            '{"to": "b"}')
        self.fill('events', [self.before], {'parent', 'serial'})

    def test_events_are_kept_and_new_ones_name_the_parent(self) -> None:
        self.assertRaises(exception.SchemaMismatch, self.store.events_of_device, 'ns1')
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.store.write(delete(self.row))
        kept, *added = [one.event for one in self.store.events_of_device('ns1')]
        self.assertEqual(self.before, kept)
        self.assertEqual([('released', 'card0'), ('freed', 'card0')], [(one.event, one.parent) for one in added])
        self.assertEqual(added, [one.event for one in self.store.events_of_device('card0')])

    def test_a_run_that_ended_before_it_wrote_the_version_is_done_again(self) -> None:
        schema.sync(self.store)
        self.run_statement("UPDATE alembic_version SET version_num = '0009'")
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.assertEqual([self.before], [one.event for one in self.store.events_of_device('ns1')])

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))


class TestFromTenth(UpgradeTestCase):
    """From revision 0010: leftovers do not say which end of a move they are of."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0010')
        self.run_statement('INSERT INTO leftovers (host_uuid, instance_uuid, migration_uuid) VALUES (:a, :b, :c)',
                           {'a': records.HOST_UUID, 'b': _LEFTOVER.instance_uuid, 'c': _LEFTOVER.migration_uuid})

    def test_nobody_knows_the_end_of_a_leftover_that_is_there_already(self) -> None:
        self.assertRaises(exception.SchemaMismatch, self.store.leftovers, records.HOST_UUID)
        self.assertEqual(models.REVISION, schema.sync(self.store))
        [found] = self.store.leftovers(records.HOST_UUID)
        self.assertEqual((_LEFTOVER, None, None), (found, found.verb, found.own))

    def test_a_run_that_ended_before_it_wrote_the_version_is_done_again(self) -> None:
        self.run_statement('ALTER TABLE leftovers ADD COLUMN verb VARCHAR(16)')
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.assertEqual([_LEFTOVER], self.store.leftovers(records.HOST_UUID))

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))


class TestFromEleventh(UpgradeTestCase):
    """From revision 0011: the generation of a row says whether its device was realized."""

    rows = (record('ns0'), record('ns1', state=vocabulary.RELEASING, generation=2),
            record('ns2', generation=2, was_realized=True),
            record('ns3', state=vocabulary.ACTIVE, generation=3, was_realized=True),
            record('ns4', state=vocabulary.RELEASING, generation=3, was_realized=True))

    def setUp(self) -> None:
        super().setUp()
        self.make('0011')

    def test_what_was_only_claimed_and_what_was_realized_are_told_apart(self) -> None:
        self.fill('assignments', self.rows, ('was_realized', 'instance_name'))
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.assertCountEqual(self.rows, self.store.records())

    def test_and_so_are_rows_that_were_written_at_0012(self) -> None:
        self.make('0012')
        moved = record('ns6', generation=5)                     # it was never realized
        realized = record('ns7', generation=2, was_realized=True)
        self.fill('assignments', [
            *self.rows[:2], moved, realized._replace(generation=1_000_000),
            *(row._replace(generation=row.generation + 1_000_000) for row in self.rows[2:])],
            ('was_realized', 'instance_name'))
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.assertCountEqual([*self.rows, moved, realized], self.store.records())

    def test_a_row_that_does_not_begin_with_a_claim_was_realized(self) -> None:
        row = record('ns5', state=vocabulary.RELEASING)
        self.fill('assignments', [row], ('was_realized', 'instance_name'))
        self.assertEqual(models.REVISION, schema.sync(self.store))
        [found] = self.store.records()
        self.assertTrue(found.was_realized)

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))


class TestFromThirteenth(UpgradeTestCase):
    """From revision 0013: the events name no card."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0013')
        self.older = record('d0', kind='mdev', details=details.to_text(samples.mdev_details()).replace(
            ',"parent_serial":""', '').replace('"1.1"', '"1.0"'))
        self.fill('hosts', [api.Host(records.HOST_UUID, 'compute-1', 'digest')], ())
        self.fill('assignments', [self.older], ('instance_name',))
        self.before = Event(records.HOST_UUID, 'mdev', 'd0', 'claimed', 7, self.older.instance_uuid)
        # A release that did not write serial numbers put one there, for what the service hands out.
        self.of_service = Event(records.HOST_UUID, 'pci', '0000:01:00.0', 'claimed', 8, 'a' * 36, parent='S1')
        self.fill('events', [self.before, self.of_service], {'serial'})

    def test_events_are_kept_and_new_ones_name_the_card(self) -> None:
        self.assertRaises(exception.SchemaMismatch, self.store.events_of_serial, 'S1')
        self.assertEqual(models.REVISION, schema.sync(self.store))
        card = samples.mdev_details()
        card.parent_serial = 'S1'
        self.store.write(update(self.older, details=details.to_text(card)))
        kept, *added = [one.event for one in self.store.events_of_device('d0')]
        self.assertEqual(self.before, kept)
        self.assertEqual([('started', 'S1')], [(one.event, one.serial) for one in added])
        self.assertEqual([self.of_service, *added], [one.event for one in self.store.events_of_serial('S1')])

    def test_a_run_that_ended_before_it_wrote_the_version_is_done_again(self) -> None:
        schema.sync(self.store)
        self.run_statement("UPDATE alembic_version SET version_num = '0013'")
        self.assertEqual(models.REVISION, schema.sync(self.store))

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))


class TestFromFourteenth(UpgradeTestCase):
    """From revision 0014: rows have no name of their instance."""

    def setUp(self) -> None:
        super().setUp()
        self.make('0014')
        self.fill('hosts', [api.Host(records.HOST_UUID, 'compute-1', 'digest')], ())
        self.fill('assignments', _ROWS, ('instance_name',))

    def test_rows_are_kept_without_a_name_and_new_ones_have_one(self) -> None:
        self.assertRaises(exception.SchemaMismatch, self.store.records)
        self.assertEqual(models.REVISION, schema.sync(self.store))
        new = record('ns2', instance_name='web-1')
        self.store.write(insert(new))
        self.assertCountEqual([*_ROWS, new], self.store.records())

    def test_a_run_that_ended_before_it_wrote_the_version_is_done_again(self) -> None:
        schema.sync(self.store)
        self.run_statement("UPDATE alembic_version SET version_num = '0014'")
        self.assertEqual(models.REVISION, schema.sync(self.store))
        self.assertCountEqual(_ROWS, self.store.records())

    def test_the_tables_are_those_of_a_new_store(self) -> None:
        schema.sync(self.store)
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))


class TestCutShort(UpgradeTestCase):
    """MariaDB commits after each statement of a migration: one that is cut short leaves the first of them done."""

    scenarios = [(f'after {done} of {made}', {'database': databases.MariaDBStore, 'made': made, 'done': done})
                 for made, done in (*((made, done) for made in (None, '0001') for done in range(1, 6)), ('0004', 1),
                                    ('0005', 1), ('0007', 1), ('0007', 2), ('0010', 1), ('0012', 1), ('0012', 2),
                                    ('0012', 3))]
    made: str | None
    done: int

    def test_syncing_again_does_the_rest(self) -> None:
        if self.made is not None:
            self.make(self.made)
        fixture = self.fixture
        store = sql.open_store(fixture.conf)
        self.addCleanup(store.close)
        left = [self.done]

        # Of whatever engine: a migration has one of its own.
        @sa.event.listens_for(sa.Engine, 'before_cursor_execute')
        def cut(connection: Any, cursor: Any, statement: str, *_args: Any) -> None:
            if statement.lstrip().startswith(('CREATE', 'ALTER', 'UPDATE assignments')):
                left[0] -= 1
                if left[0] < 0:
                    raise InterruptedError('killed')

        try:
            self.assertRaises(exception.StoreUnavailable, schema.sync, store)
        finally:
            sa.event.remove(sa.Engine, 'before_cursor_execute', cut)
        self.assertEqual(-1, left[0])
        self.assertEqual(self.made, schema.revision(self.store))
        self.assertEqual(models.REVISION, schema.sync(self.store))
        new = self.useFixture(self.database()).store
        self.assertEqual(_columns(new), _columns(self.store))


class TestEveryRevision(UpgradeTestCase):
    def test_every_revision_leads_to_this_release(self) -> None:
        steps = [step.revision for step in script.ScriptDirectory(schema.MIGRATIONS).walk_revisions()]
        for revision in reversed(steps):
            self.make(revision)
            self.assertEqual(revision, schema.revision(self.store))
        self.store.check()


def _columns(store: Any) -> Any:
    with store.reading() as connection:
        inspector = sa.inspect(connection)
        return {table: ([(column['name'], repr(column['type']), column['nullable'])
                         for column in inspector.get_columns(table)],
                        sorted(index['name'] for index in inspector.get_indexes(table)),
                        sorted(unique['name'] for unique in inspector.get_unique_constraints(table)))
                for table in models.metadata.tables}
