"""What calls of a move do in the cases that a plain move does not reach."""

from types import SimpleNamespace
import uuid

from devicetrack import exception
from devicetrack.objects import DeviceRequest
from devicetrack.objects import MigrationContext
from devicetrack.store.api import Changes
from devicetrack.store.api import StoredContext
from devicetrack.store.api import Update
from devicetrack.testing import fixtures
from devicetrack.tests.unit.claims import test_moving
from devicetrack.tests.unit.claims.test_moving import D0


class AffinityTestCase(test_moving.RegionTestCase):

    def claimed(self, topology, request=None):
        region = self.region(devices=0)
        instance = region.spawn('one')
        for name, numa_node in (('a', 0), ('b', 1), ('c', None), ('d', 2)):
            self.two.machine.add_namespace(name, numa_node=numa_node)
        self.two.audit()
        claim = self.two.manager.resize_claim(
            None, instance, 'two', request or fixtures.a_request(pmem=1), region.migration(instance, 'two'),
            numa_topology=topology)
        return [assignment.identifier for assignment in claim.resources]

    def test_devices_follow_the_nodes_that_the_guest_was_pinned_to(self):
        for node, expected in ((0, 'a'), (1, 'b'), (2, 'd'), (7, 'c')):
            self.assertEqual([expected], self.claimed(SimpleNamespace(cells=[SimpleNamespace(id=node)])))

    def test_with_no_other_policy_a_device_of_another_node_is_none(self):
        region = self.region(devices=0)
        instance = region.spawn('one')
        self.two.machine.add_namespace('a', numa_node=0)
        self.two.audit()
        topology = SimpleNamespace(cells=[SimpleNamespace(id=1)])
        self.assertRaises(exception.NoFit, self.two.manager.resize_claim, None, instance, 'two',
                          fixtures.a_request(pmem=1), region.migration(instance, 'two'), numa_topology=topology)

    def test_the_policy_of_the_request_stays(self):
        region = self.region(devices=0)
        instance = region.spawn('one')
        self.two.machine.add_namespace('a', numa_node=0)
        self.two.audit()
        request = DeviceRequest.of((fixtures.PMEM, 1), numa_affinity_policy='preferred')
        claim = self.two.manager.resize_claim(None, instance, 'two', request, region.migration(instance, 'two'),
                                              numa_topology=SimpleNamespace(cells=[SimpleNamespace(id=1)]))
        self.assertEqual(['a'], [assignment.identifier for assignment in claim.resources])

    def test_a_topology_that_names_no_node_changes_nothing(self):
        for cells in (None, [], [SimpleNamespace(id=None)], [SimpleNamespace()], [SimpleNamespace(id='1')]):
            self.assertEqual(['c'], self.claimed(SimpleNamespace(cells=cells)))        # the first by name of the node

    def test_a_request_that_names_nodes_itself_decides(self):
        request = DeviceRequest.of((fixtures.PMEM, 1), numa_nodes=[2], numa_affinity_policy='required')
        self.assertEqual(['d'], self.claimed(SimpleNamespace(cells=[SimpleNamespace(id=1)]), request))


class RefusedTestCase(test_moving.RegionTestCase):

    def test_a_second_claim_of_a_migration_names_what_the_first_one_has(self):
        region = self.region(devices=3)
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=migration)
        error = self.assertRaises(exception.InstanceHasClaim, self.two.resize, instance, 1, 0, migration)
        self.assertEqual((exception.InstanceHasClaim, [D0]), (type(error), list(error.held)))

    def test_the_newer_migration_counts_also_when_the_service_tells_of_the_older_one_alone(self):
        for ends_it in (True, False):
            region = self.region(devices=1)
            instance = region.spawn('one', pmem=1)
            older, newer = region.migration(instance, 'two'), region.migration(instance, 'two')
            self.two.resize(instance, pmem=1, migration=older)
            self.two.service.moves = [older]
            if not ends_it:
                self.patch(self.two.service, 'fail_migration', lambda _uuid: None)
            self.two.resize(instance, pmem=1, migration=newer)
            self.assertEqual((ends_it, [newer.uuid]), (
                older.status == 'error', [record.migration_uuid for record in self.two.records(instance)]))

    def test_a_context_that_cannot_be_read_is_said_and_changes_nothing(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'one')
        self.one.resize(instance, pmem=1, migration=migration)
        rows = self.one.records(instance)
        self.one.store.write(Changes(update=tuple(
            Update(row, row._replace(generation=row.generation + 1)) for row in rows[:1]), contexts=(
                StoredContext(self.one.manager.state().host_uuid, instance.uuid, migration.uuid, 'no JSON'),)))
        migration.status = 'another'
        error = self.assertRaises(exception.MalformedObject, self.one.boot, instance)
        self.assertIn(instance.uuid, str(error))


class UndoneTestCase(test_moving.RegionTestCase):

    def test_a_claim_that_takes_nothing_is_undone_too(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        before = region.rows(instance)
        claim = self.one.manager.resize_claim(None, instance, 'one', None, region.migration(instance, 'one'))
        self.assertEqual([('d0', 'old', 'active')], region.rows(instance)['one'])
        claim.abort()
        self.assertEqual(before, region.rows(instance))
        self.assertEqual([], self.one.store.contexts(self.one.manager.state().host_uuid))

    def test_a_claim_that_is_named_without_its_migration_is_undone_in_full(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        before = region.rows(instance)
        claim = self.one.manager.resize_claim(None, instance, 'one', fixtures.a_request(pmem=1),
                                              region.migration(instance, 'one'))
        self.one.manager.abort_instance_claim(None, instance, claim.claim_id)
        self.assertEqual(before, region.rows(instance))
        self.assertEqual([], self.one.store.contexts(self.one.manager.state().host_uuid))

    def test_what_was_given_up_before_an_abort_stays_given_up(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'one')
        claim = self.one.manager.resize_claim(None, instance, 'one', fixtures.a_request(pmem=1), migration)
        self.assertRaises(exception.DeviceInUse, self.one.manager.drop_move_claim_at_source, None, instance, migration)
        self.assertEqual([('d0', 'old', 'releasing'), ('d1', 'current', 'claimed')], region.rows(instance)['one'])
        claim.abort()
        self.assertEqual([('d0', 'old', 'releasing')], region.rows(instance)['one'])

    def test_confirmed_twice_on_one_host_an_instance_that_is_nowhere_keeps_its_devices(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'one', pmem=1)
        region.confirm(instance, migration)
        instance.host = None
        region.confirm(instance, migration)
        self.assertEqual([('d1', 'current', 'active')], region.rows(instance)['one'])

    def test_an_instance_comes_back_while_what_it_left_cannot_be_cleaned(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'two', pmem=1)
        migration.status = 'confirmed'
        self.one.machine.delete_guest(instance.uuid)
        self.one.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.one.resize(instance, pmem=1, migration=region.migration(instance, 'one'))
        self.assertEqual([('d0', 'old', 'releasing'), ('d1', 'incoming', 'claimed')],
                         sorted(region.rows(instance)['one']))


class ComesBackTestCase(test_moving.RegionTestCase):

    def test_an_instance_that_was_away_gets_others_while_its_first_device_is_being_cleaned(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        self.one.machine.delete_guest(instance.uuid)
        # The release, and the start of the guest on its other device.
        self.one.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'), times=2)
        self.assertRaises(exception.UnclaimFailed, self.one.manager.release, None, instance)
        self.one.spawn(instance, pmem=1)
        self.one.manager.wait_for_wipes()
        self.assertEqual([('d0', 'current', 'releasing'), ('d1', 'current', 'active')],
                         sorted(region.rows(instance)['one']))
        self.assertEqual(['d1'], [one.identifier for one in instance.resources])
        self.assertRaises(exception.InstanceHasClaim, self.one.claim, instance, pmem=1)
        for _longer_after_each_failure in range(2):
            region.audit()
        self.assertEqual([('d1', 'current', 'active')], region.rows(instance)['one'])
        self.assertEqual([], region.audit())

    def test_and_none_while_anything_is_its_own(self):
        region = self.region(devices=3)
        instance = region.spawn('one', pmem=1)
        self.assertRaises(exception.InstanceHasClaim, self.one.claim, instance, pmem=1)
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])


class NamedByOthersTestCase(test_moving.RegionTestCase):

    def test_what_another_domain_names_has_been_left_all_the_same(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        elements = self.one.manager.guest_config(instance).devices
        migration = region.resize(instance, 'one', pmem=1)
        self.one.machine.start_guest(str(uuid.uuid4()), elements)
        migration.status = 'confirmed'
        self.one.audit()
        self.assertEqual([('d0', 'old', 'releasing'), ('d1', 'current', 'active')], region.rows(instance)['one'])


class NamedByItselfTestCase(test_moving.RegionTestCase):

    def test_what_the_guest_still_names_is_not_taken_from_it(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'one')
        self.one.resize(instance, pmem=1, migration=migration)
        migration.status = 'confirmed'
        self.one.audit()
        self.assertEqual(('d0', 'old', 'active'), region.rows(instance)['one'][0])

    def test_once_it_is_confirmed_the_instance_carries_no_context(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'one', pmem=1)
        instance.migration_context = context = object()
        self.one.manager.drop_move_claim_at_source(None, instance, migration)
        self.assertIsNot(context, instance.migration_context)


class DropTestCase(test_moving.RegionTestCase):

    def test_the_context_of_the_instance_names_the_migration(self):
        region = self.region(devices=3)
        instance = region.spawn('one', pmem=1)
        region.resize(instance, 'one', pmem=1).status = 'reverting'
        self.one.machine.delete_guest(instance.uuid)
        for context in (SimpleNamespace(migration_uuid='of another service'), None):
            instance.migration_context = context
            self.one.manager.drop_move_claim(None, instance, 'one')
            self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])


    def test_a_context_of_another_migration_ends_nothing(self):
        region = self.region(devices=3)
        instance = region.spawn('one', pmem=1)
        region.resize(instance, 'one', pmem=1)
        rows = region.rows(instance)
        for prefix in ('old_', 'new_'):
            instance.migration_context = MigrationContext(
                instance_uuid=instance.uuid, migration_uuid=str(uuid.uuid4()), old_resources=None, new_resources=None,
                old_numa_topology=None, new_numa_topology=None)
            self.one.manager.drop_move_claim(None, instance, 'one', prefix=prefix)
        self.assertEqual(rows, region.rows(instance))

    def test_a_release_ends_the_move_too(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        region.resize(instance, 'one', pmem=1)
        self.one.machine.delete_guest(instance.uuid)
        self.one.manager.release(None, instance)
        self.assertEqual([], self.one.store.contexts(self.one.manager.state().host_uuid))

    def test_a_move_that_goes_on_decides_whatever_becomes_of_another(self):
        region = self.region(devices=3)
        instance = region.spawn('one', pmem=1)
        region.resize(instance, 'one', pmem=1)
        [old, _new] = self.one.records(instance)
        self.one.store.write(Changes(insert=(old._replace(
            identifier='d2', migration_uuid=str(uuid.uuid4()), generation=1),)))
        self.one.audit()
        self.one.machine.stop_guest(instance.uuid)
        self.assertEqual(['d1'], [one.identifier for one in self.one.manager.realize(None, instance)])


class OneProcessTestCase(test_moving.RegionTestCase):

    def test_hosts_do_not_wait_for_one_another(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        with self.one.running.rows.working(instance.uuid), self.two.running.rows.if_idle(instance.uuid) as idle:
            self.assertTrue(idle)


class FinishEvacuationTestCase(test_moving.RegionTestCase):

    def evacuated(self, region):
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two', 'evacuation')
        self.one.manager.close()
        self.two.manager.rebuild_claim(None, instance, 'two', fixtures.a_request(pmem=1), migration)
        return instance, migration

    def test_alone_it_says_that_the_guest_runs(self):
        for named in (True, False):
            region = self.region()
            instance, migration = self.evacuated(region)
            self.two.manager.finish_evacuation(None, instance, 'two', migration if named else None)
            self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['two'])
            self.assertEqual((['d0'], self.two.manager.state().host_uuid),
                             ([one.identifier for one in instance.resources], instance.resources.host_uuid))
            self.assertIsNone(instance.migration_context)

    def test_without_any_migration_it_says_nothing(self):
        region = self.region()
        instance = fixtures.Instance()
        self.two.manager.instance_claim(None, instance, 'two', fixtures.a_request(pmem=1))
        self.two.manager.finish_evacuation(None, instance, 'two', None)
        self.assertEqual([('d0', 'current', 'claimed')], region.rows(instance)['two'])
