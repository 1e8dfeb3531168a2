"""Destinations that their service gives up, or forgets, after they have claimed."""

from typing import Any

from devicetrack.testing.compute_service import EVACUATION
from devicetrack.testing.fixtures import a_request
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration
from devicetrack.tests.unit.claims import test_moving
from devicetrack.tests.unit.claims.test_moving import NOTHING

CLAIMED = [('d0', 'incoming', 'claimed')]
ALL_FREE = {'d0': FREE, 'd1': FREE}


class AnotherDestinationTestCase(test_moving.RegionTestCase):
    """A live migration that goes on to another host, since the first one did not answer in time."""

    def given_up(self, region: Any) -> tuple[Instance, Migration]:
        """An instance whose migration the second host has claimed and made ready for, in vain."""
        instance = region.spawn('one', pmem=1)
        migration = region.live_migration(instance, 'two', pmem=1)
        self.two.machine.delete_guest(instance.uuid)
        migration.dest_compute, migration.status = 'three', 'running'
        return instance, migration

    def arrived_there(self, instance: Instance, migration: Migration) -> None:
        self.one.machine.delete_guest(instance.uuid)
        instance.host, migration.status = 'three', 'completed'

    def test_gives_the_devices_back_when_the_migration_is_done(self):
        for restarted in (False, True):
            region = self.region(devices=2)
            instance, migration = self.given_up(region)
            region.audit()
            self.assertEqual(CLAIMED, region.rows(instance)['two'])
            self.arrived_there(instance, migration)
            if restarted:
                self.two.restart()
            self.assertEqual([], region.audit())
            self.assertEqual((NOTHING, ALL_FREE), (region.rows(instance), self.two.states()))

    def test_takes_the_next_migration_of_the_instance(self):
        region = self.region(devices=1)
        instance, migration = self.given_up(region)
        self.arrived_there(instance, migration)
        self.two.resize(instance, pmem=1, migration=region.migration(instance, 'two'))
        self.assertEqual(CLAIMED, region.rows(instance)['two'])

    def test_keeps_them_while_a_definition_names_them(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.live_migration(instance, 'two', pmem=1)
        migration.dest_compute = 'three'
        self.arrived_there(instance, migration)
        self.assertEqual(['stale migration'], [finding.kind for finding in region.audit()])
        self.assertEqual(CLAIMED, region.rows(instance)['two'])
        self.two.machine.delete_guest(instance.uuid)
        self.assertEqual([], region.audit())
        self.assertEqual(NOTHING, region.rows(instance))


class EndedBySourceTestCase(test_moving.RegionTestCase):
    """An evacuation that its source, which is back, calls completed while the destination still builds the guest."""

    def under_way(self, region: Any) -> tuple[Instance, Migration, Any]:
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two', EVACUATION)
        claim = self.two.manager.rebuild_claim(None, instance, 'two', a_request(pmem=1), migration=migration)
        migration.status = 'completed'
        self.two.audit()
        self.assertEqual(CLAIMED, region.rows(instance)['two'])
        return instance, migration, claim

    def test_goes_on(self):
        region = self.region(devices=2)
        instance, migration, claim = self.under_way(region)
        with claim:
            self.two.boot(instance)
        instance.host, migration.status = 'two', 'done'
        self.two.manager.finish_evacuation(None, instance, 'two', migration)
        self.two.audit()
        self.assertEqual([('d0', 'current', 'active', None)],
                         [(one.identifier, one.role, one.state, one.migration_uuid) for one in self.two.records()])

    def test_fails(self):
        for call_is_lost in (False, True):
            region = self.region(devices=2)
            instance, migration, claim = self.under_way(region)
            if not call_is_lost:
                claim.abort()
            migration.status = 'failed'
            self.assertEqual([], self.two.audit())
            self.assertEqual(([], ALL_FREE), (region.rows(instance)['two'], self.two.states()))

    def test_ends_with_the_process_of_the_destination(self):
        """Then nobody sets another status. The claim of an earlier process goes back when two looks show that."""
        region = self.region(devices=2)
        instance, _migration, _claim = self.under_way(region)
        self.assertEqual(['stale migration'], [finding.kind for finding in self.two.audit()])
        self.two.restart()
        self.assertEqual([], self.two.audit())
        self.assertEqual(([], ALL_FREE), (region.rows(instance)['two'], self.two.states()))
