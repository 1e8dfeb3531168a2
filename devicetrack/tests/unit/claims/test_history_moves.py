"""The history of instances that move: both ends of it, whatever becomes of the move."""

from __future__ import annotations

from typing import Any

from devicetrack.engine import migrations
from devicetrack.store.api import StoredEvent
from devicetrack.testing import region as regions
from devicetrack.tests import base


def names(found: list[StoredEvent]) -> list[str]:
    return [one.event.event for one in found]


class MovesTestCase(base.TestCase):
    """Every test with one store for both hosts, and with a store for each."""

    scenarios = [('shared store', {'shared': True}), ('a store for each', {'shared': False})]
    shared: bool

    def setUp(self) -> None:
        super().setUp()
        self.region = self.useFixture(regions.Region(shared_store=self.shared))
        self.instance = self.region.spawn('one', pmem=1)

    def of(self, host: Any) -> list[StoredEvent]:
        return [one for one in host.store.store.events_of_instance(self.instance.uuid)
                if one.event.host_uuid == host.manager.state().host_uuid]

    def check(self, migration: Any, left: list[str], there: list[str]) -> None:
        """Compare what happened at the source since the guest started there, and at the destination."""
        at_source, at_destination = self.of(self.region.one)[3:], self.of(self.region.two)
        self.assertEqual((left, there), (names(at_source), names(at_destination)))
        self.assertEqual({migration.uuid}, {one.event.migration_uuid for one in at_source + at_destination})
        for one in at_source + at_destination:
            if one.event.more.keys() & {'from', 'to'}:
                self.assertEqual({'from': 'one', 'to': 'two'}, one.event.more)
        self.assertEqual({'from': 'one', 'to': 'two'}, at_destination[0].event.more)

class ResizeTestCase(MovesTestCase):

    def test_confirmed(self) -> None:
        migration = self.region.resize(self.instance, 'two', pmem=1)
        self.region.confirm(self.instance, migration)
        self.check(migration, ['leaving', 'released', 'wiped'], ['claimed', 'realized', 'moved'])
        self.assertEqual({'from': 'one', 'to': 'two'}, self.of(self.region.one)[4].event.more)

    def test_reverted(self) -> None:
        migration = self.region.resize(self.instance, 'two', pmem=1)
        self.region.one.manager.update_usage(None, self.instance, 'one')
        self.region.revert(self.instance, migration)
        self.check(migration, ['leaving', 'stayed'], ['claimed', 'realized', 'moved', 'released', 'wiped'])
        # The source's own store says where the instance went, and so it does of every event of the same migration.
        self.assertEqual({'from': 'one', 'to': 'two'}, self.of(self.region.one)[3].event.more)

    def test_on_one_host(self) -> None:
        for end, ends in ((self.region.confirm, ['moved', 'released', 'wiped']),
                          (self.region.revert, ['moved', 'stayed', 'released', 'wiped'])):
            before = len(self.of(self.region.one))
            migration = self.region.resize(self.instance, 'one', pmem=1)
            end(self.instance, migration)
            found = self.of(self.region.one)[before:]
            self.assertEqual(['leaving', 'claimed', 'realized', *ends], names(found))
            self.assertEqual([{'from': 'one', 'to': 'one'}] * 2, [one.event.more for one in found[:2]])
            self.assertEqual({migration.uuid}, {one.event.migration_uuid for one in found})

    def test_deleted_while_it_moves(self) -> None:
        migration = self.region.resize(self.instance, 'two', pmem=1)
        self.region.two.delete(self.instance)
        self.assertEqual(['claimed', 'realized', 'moved', 'released', 'wiped'], names(self.of(self.region.two)))
        self.assertEqual({migration.uuid}, {one.event.migration_uuid for one in self.of(self.region.two)})

    def test_a_newer_migration_of_what_an_older_one_left(self) -> None:
        """Nobody ended the first one."""
        first = self.region.migration(self.instance, 'two')
        second = self.region.migration(self.instance, 'two')
        for migration in (first, second):
            [row] = self.region.one.records()
            self.region.one.running.life.settle(migrations.Settlement(leave=((row, migration.uuid),)))
        self.assertEqual([('leaving', first.uuid), ('leaving', second.uuid)], [
            (one.event.event, one.event.migration_uuid) for one in self.of(self.region.one)[3:]])


class LiveMigrationTestCase(MovesTestCase):

    def test_done(self) -> None:
        migration = self.region.live_migrate(self.instance, 'two', pmem=1)
        self.region.audit()
        self.check(migration, ['leaving', 'released', 'wiped'], ['claimed', 'realized', 'moved'])
        self.assertEqual({'from': 'one', 'to': 'two'}, self.of(self.region.one)[3].event.more)

    def test_rolled_back(self) -> None:
        migration = self.region.live_migration(self.instance, 'two', pmem=1)
        migration.status = 'error'
        self.region.two.machine.delete_guest(self.instance.uuid)
        self.region.roll_back(self.instance, migration)
        self.region.audit()
        self.check(migration, ['leaving', 'stayed'], ['claimed', 'realized', 'released', 'wiped'])
        self.assertEqual({'from': 'one', 'to': 'two'}, self.of(self.region.one)[4].event.more)


class EvacuationTestCase(MovesTestCase):

    def test_done(self) -> None:
        migration = self.region.evacuate(self.instance, 'two', pmem=1)
        there = self.of(self.region.two)
        self.assertEqual(['claimed', 'realized', 'moved'], names(there))
        self.assertEqual({'from': 'one', 'to': 'two'}, there[0].event.more)
        self.assertEqual({migration.uuid}, {one.event.migration_uuid for one in there})
