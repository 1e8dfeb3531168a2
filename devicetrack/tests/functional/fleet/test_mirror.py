"""The schema of a mirror, on each database."""

from __future__ import annotations

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.conf import opts
from devicetrack.fleet import mirror as mirrors
from devicetrack.fleet import models
from devicetrack.store.sql import schema
from devicetrack.testing import databases
from devicetrack.tests import base


class MirrorTestCase(base.TestCase):
    """A test with an empty database, which ``options`` name as a mirror and as a store."""

    scenarios = databases.SCENARIOS
    database: type[databases.StoreFixture]

    def setUp(self) -> None:
        super().setUp()
        self.fixture = self.useFixture(self.database(synced=False))
        self.options = self.fixture.conf
        opts.register_options(self.options)
        url = self.options.devicetrack_database.connection or f'sqlite:///{getattr(self.fixture, "path", "")}'
        self.options.set_override('connection', url, 'devicetrack_fleet')
        self.mirror = self.open()

    def open(self) -> mirrors.Mirror:
        mirror = mirrors.Mirror(self.options)
        self.addCleanup(mirror.close)
        return mirror


class TestSync(MirrorTestCase):
    def test_it_makes_the_tables_once_and_says_how_long_events_stay(self) -> None:
        self.mirror.sync(days=30)
        self.mirror.sync(days=7)
        self.assertEqual(mirrors.Terms(models.FORMAT, 7), self.open().terms())
        with self.mirror.reading() as connection:
            inspector = sa.inspect(connection)
            for table in models.metadata.sorted_tables:
                self.assertEqual(set(table.columns.keys()), {one['name'] for one in inspector.get_columns(table.name)})
                self.assertEqual({index.name for index in table.indexes},
                                 {one['name'] for one in inspector.get_indexes(table.name)})

    def test_it_adds_what_a_mirror_of_an_earlier_format_lacks_and_keeps_its_rows(self) -> None:
        self.mirror.sync(days=30)
        event = dict.fromkeys(models.fleet_events.columns.keys()) | {
            'host_uuid': 'a' * 36, 'digest': 'd', 'arrived_at_ms': 6, 'number': 1, 'kind': 'vf',
            'identifier': 'i', 'event': 'claimed', 'at_ms': 5}
        with self.mirror.unhurried() as database:
            def earlier(connection: sa.Connection) -> None:
                connection.execute(sa.insert(models.fleet_events), event)
                for index in models.fleet_events.indexes:
                    if index.name in ('ix_fleet_events_serial', 'ix_fleet_events_parent'):
                        index.drop(connection)
                connection.execute(sa.text('ALTER TABLE fleet_events DROP COLUMN serial'))
                connection.execute(sa.text('DROP TABLE fleet_parts'))
                connection.execute(sa.text('UPDATE fleet_schema SET format = 0'))

            database.transact(earlier)
        error = self.assertRaises(exception.SchemaMismatch, self.mirror.terms)
        self.assertIn('fleet sync', error.remedy)
        self.mirror.sync(days=30)
        self.assertEqual([tuple(event.values())], list(map(tuple, self.open().rows(sa.select(models.fleet_events)))))
        self.test_it_makes_the_tables_once_and_says_how_long_events_stay()

    def test_a_mirror_of_a_later_format_is_read_and_not_changed(self) -> None:
        self.mirror.sync(days=30)
        later = mirrors.Terms(models.FORMAT + 1, 30)
        self.mirror.transact(lambda connection: connection.execute(
            sa.update(models.fleet_schema).values(format=later.format)))
        self.assertRaises(exception.SchemaMismatch, self.mirror.sync, days=7)
        self.assertEqual(later, self.mirror.terms())

    def test_a_database_without_a_schema_says_what_to_run(self) -> None:
        if self.mirror.path is None:            # a missing file is the same
            self.mirror.rows(sa.text('SELECT 1'))
        error = self.assertRaises(exception.SchemaMismatch, self.mirror.terms)
        self.assertIn('fleet sync', error.remedy)


class TestRefusals(MirrorTestCase):
    def test_a_store_is_no_mirror(self) -> None:
        schema.sync(self.fixture.store)
        for call in (self.mirror.terms, lambda: self.mirror.sync(30)):
            error = self.assertRaises(exception.SchemaMismatch, call)
            self.assertIn('it is a store', error.remedy)
            self.assertIn('[devicetrack_fleet] connection', error.remedy)
        schema.check(self.fixture.store)

    def test_a_mirror_is_no_store(self) -> None:
        self.mirror.sync(30)
        for call in (self.fixture.store.check, lambda: schema.sync(self.fixture.store)):
            error = self.assertRaises(exception.SchemaMismatch, call)
            self.assertIn('the mirror of a fleet', error.remedy)
        self.assertEqual(30, self.mirror.terms().days)


class TestNames(base.TestCase):
    def test_an_error_names_the_option_of_the_mirror(self) -> None:
        conf = databases.configuration()
        opts.register_options(conf)
        error = self.assertRaises(exception.InvalidConfiguration, mirrors.Mirror, conf)
        self.assertEqual('[devicetrack_fleet] connection', error.option)
        conf.set_override('connection', 'postgresql+psycopg2://nobody@127.0.0.1:1/none', 'devicetrack_fleet')
        mirror = mirrors.Mirror(conf)
        self.addCleanup(mirror.close)
        unavailable = self.assertRaises(exception.StoreUnavailable, mirror.terms)
        self.assertIn('[devicetrack_fleet] connection', str(unavailable))
