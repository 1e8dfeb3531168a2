"""Destinations that their service gives up, or forgets, after they have claimed."""

from typing import Any

from devicetrack import exception
from devicetrack.engine import findings
from devicetrack.testing.compute_service import EVACUATION
from devicetrack.testing.fixtures import a_request
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration
from devicetrack.tests.unit.claims import test_moving
from devicetrack.tests.unit.claims.test_moving import D0
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


class ForgottenTestCase(test_moving.RegionTestCase):
    """A failed move to a database of the service that has nothing of the instance afterwards."""

    def forgotten(self, region: Any) -> tuple[Instance, Migration]:
        """An instance that the second host has claimed for, and that is in the database of another host."""
        instance = Instance(host='one')
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=migration)
        region.audit()
        region.audit()
        self.assertEqual(CLAIMED, region.rows(instance)['two'])
        region.migrations.remove(migration)
        return instance, migration

    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.two.audit()]

    def test_the_second_audit_gives_its_devices_back(self):
        region = self.region(devices=2)
        instance, _migration = self.forgotten(region)
        self.assertEqual(([], CLAIMED), (self.kinds(), region.rows(instance)['two']))
        self.assertEqual(([], NOTHING, ALL_FREE), (self.kinds(), region.rows(instance), self.two.states()))
        self.assertEqual([], self.two.store.contexts(self.two.manager.state().host_uuid))

    def test_so_does_the_second_audit_after_a_start(self):
        region = self.region(devices=2)
        instance, _migration = self.forgotten(region)
        self.two.audit()
        self.two.restart()
        self.assertEqual(([findings.UNKNOWN_OWNER], CLAIMED), (self.kinds(), region.rows(instance)['two']))
        self.assertEqual(([], NOTHING, ALL_FREE), (self.kinds(), region.rows(instance), self.two.states()))

    def test_what_was_made_ready_is_wiped(self):
        region = self.region(devices=2)
        instance, _migration = self.forgotten(region)
        self.two.manager.realize(None, instance)
        self.two.machine.write(D0, b'secret')
        region.audit()
        self.assertEqual((NOTHING, b''), (region.rows(instance), self.two.machine.read(D0)))

    def test_the_next_migration_takes_their_place_at_once(self):
        region = self.region(devices=1)
        instance, _migration = self.forgotten(region)
        again = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=again)
        self.assertEqual([again.uuid], [record.migration_uuid for record in self.two.records(instance)])
        region.audit()
        self.assertEqual(CLAIMED, region.rows(instance)['two'])

    def test_but_not_one_that_the_service_does_not_know_either(self):
        region = self.region(devices=2)
        instance, _migration = self.forgotten(region)
        again = region.migration(instance, 'two')
        region.migrations.remove(again)
        self.assertRaises(exception.InstanceHasStaleRows, self.two.resize, instance, pmem=1, migration=again)

    def test_nothing_goes_back_while_anything_says_otherwise(self):
        def unknown_domain(_region: Any, _instance: Any, _migration: Any) -> None:
            self.two.machine.unknown_domains['x'] = 'torn'

        def domain(_region: Any, instance: Any, _migration: Any) -> None:
            self.two.machine.start_guest(instance.uuid, [])

        def another_names_it(_region: Any, _instance: Any, _migration: Any) -> None:
            self.two.machine.start_guest(Instance().uuid, ['<device kind="vpmem" address="/dev/fakedax0"/>'])

        def known_instance(region: Any, instance: Any, _migration: Any) -> None:
            region.instances.append(instance)

        def known_migration(region: Any, _instance: Any, migration: Any) -> None:
            region.migrations.append(migration)

        def unknown_instances(_region: Any, _instance: Any, _migration: Any) -> None:
            self.two.service.known = RuntimeError('no database')

        def unknown_migrations(_region: Any, _instance: Any, _migration: Any) -> None:
            self.two.service.moves = None

        def knows_nobody(region: Any, _instance: Any, _migration: Any) -> None:
            """Its answers come from another database."""
            region.spawn('two', pmem=1)
            self.two.service.known = {}

        for happens in (unknown_domain, domain, another_names_it, known_instance, known_migration, unknown_instances,
                        unknown_migrations, knows_nobody):
            region = self.region(devices=2)
            instance, migration = self.forgotten(region)
            happens(region, instance, migration)
            for _ in range(3):
                self.two.audit()
            self.assertEqual(CLAIMED, region.rows(instance)['two'], str(happens))
            if happens not in (known_migration, knows_nobody):
                again = region.migration(instance, 'two')
                self.assertRaises(exception.InstanceHasStaleRows, self.two.resize, instance, pmem=1, migration=again)

    def test_both_looks_of_two_audits_have_to_show_it(self):
        for answers in ((True, False, False, False), (False, True, False, False), (False, False, True, False),
                        (False, False, False, True)):
            region = self.region(devices=2)
            instance, migration = self.forgotten(region)
            said = iter(answers)
            self.patch(self.two.service, 'migrations',
                       lambda _uuids, said=said, one=migration: {one.uuid: one} if next(said) else {})
            # An audit looks only once if the first look shows nothing.
            for _ in range(2):
                self.two.audit()
            self.assertEqual(CLAIMED, region.rows(instance)['two'], str(answers))

    def test_a_guest_that_has_been_here_may_have_left_its_data(self):
        region = self.region(devices=2)
        instance, _migration = self.forgotten(region)
        self.two.boot(instance)
        self.two.machine.delete_guest(instance.uuid)
        for _ in range(3):
            self.assertEqual(['stale migration'], self.kinds())
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['two'])

    def test_a_claim_on_the_host_of_its_instance_stays_beside_what_the_instance_has(self):
        region = self.region(devices=2)
        instance = region.spawn('two', pmem=1)
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=migration)
        region.migrations.remove(migration)
        region.instances.remove(instance)
        self.two.machine.delete_guest(instance.uuid)
        rows = region.rows(instance)
        for _ in range(3):
            self.two.audit()
        self.assertEqual(rows, region.rows(instance))
