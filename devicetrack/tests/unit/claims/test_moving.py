"""Instances that move: what each end holds at each step, and what every failure gives back."""

import json
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import DeviceRequest
from devicetrack.objects import MigrationContext
from devicetrack.objects.pci_alias import PCIAlias
from devicetrack.objects.pci_alias import PCIChoice
from devicetrack.objects.values import DeviceKey
from devicetrack.store.api import Changes
from devicetrack.testing import fixtures
from devicetrack.testing import region as regions
from devicetrack.testing.compute_service import Flavor
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration
from devicetrack.tests import base

D0 = DeviceKey('vpmem', 'd0')
D1 = DeviceKey('vpmem', 'd1')
NOTHING: dict[str, list[object]] = {'one': [], 'two': []}


class RegionTestCase(base.TestCase):
    """Every test with one store for both hosts, and with a store for each."""

    scenarios = [('shared store', {'shared': True}), ('a store for each', {'shared': False})]

    def region(self, **kwargs):
        region = self.useFixture(regions.Region(shared_store=self.shared, **kwargs))
        self.one, self.two = region.one, region.two
        return region


class ResizeTestCase(RegionTestCase):

    def test_there_and_confirmed(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        self.one.machine.write(D0, b'secret')
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=2, migration=migration)
        self.assertEqual({'one': [('d0', 'current', 'active')],
                          'two': [('d0', 'incoming', 'claimed'), ('d1', 'incoming', 'claimed')]}, region.rows(instance))
        region.finish_resize(instance, migration)
        self.assertEqual({'one': [('d0', 'current', 'active')],
                          'two': [('d0', 'current', 'active'), ('d1', 'current', 'active')]}, region.rows(instance))
        region.confirm(instance, migration)
        self.assertEqual([], region.rows(instance)['one'])
        self.assertEqual((b'', FREE), (self.one.machine.read(D0), self.one.states()['d0']))
        self.assertEqual([], region.audit())
        self.assertEqual([('d0', 'current', 'active'), ('d1', 'current', 'active')], region.rows(instance)['two'])
        self.assertEqual([], self.two.store.contexts(self.two.manager.state().host_uuid))
        self.assertEqual({None}, {record.migration_uuid for record in self.two.records(instance)})

    def test_there_and_back(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        self.one.machine.write(D0, b'secret')
        migration = region.resize(instance, 'two', pmem=2)
        self.two.machine.write(D0, b'new')
        region.revert(instance, migration)
        self.assertEqual({'one': [('d0', 'current', 'active')], 'two': []}, region.rows(instance))
        self.assertEqual((b'secret', b''), (self.one.machine.read(D0), self.two.machine.read(D0)))
        self.assertIsNone(instance.migration_context)
        self.assertEqual([], region.audit())

    def test_the_source_marks_its_rows_at_the_first_call_that_names_the_migration(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=migration)
        self.one.manager.update_usage(None, instance, 'one')
        self.assertEqual([('d0', 'old', 'active')], region.rows(instance)['one'])
        self.assertEqual([migration.uuid], [record.migration_uuid for record in self.one.records(instance)])
        self.two.manager.update_usage(None, instance, 'two')
        self.assertEqual([('d0', 'incoming', 'claimed')], region.rows(instance)['two'])

    def test_so_it_does_when_nobody_knows_what_the_instance_gets_there(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two')
        instance.migration_context = MigrationContext(instance_uuid=instance.uuid, migration_uuid=migration.uuid,
                                                      old_resources=None, new_resources=None)
        self.one.manager.update_usage(None, instance, 'one')
        self.assertEqual([('d0', 'old', 'active')], region.rows(instance)['one'])

    def test_a_claim_that_is_refused_changes_nothing(self):
        region = self.region()
        instance, other = region.spawn('one', pmem=1), region.spawn('two', pmem=2)
        before = region.rows(instance)
        migration = region.migration(instance, 'two')
        self.assertRaises(exception.NoFit, self.two.resize, instance, 1, 0, migration)
        self.assertEqual((before, None), (region.rows(instance), instance.migration_context))
        self.assertEqual([], self.two.store.contexts(self.two.manager.state().host_uuid))
        self.assertEqual(['d0', 'd1'], sorted(record.identifier for record in self.two.records(other)))

    def test_a_block_that_fails_gives_back_what_the_claim_took(self):
        region = self.region()
        for name in ('one', 'two'):
            instance = region.spawn('one', pmem=1)
            before = region.rows(instance)
            host = region.hosts[name]
            claim = host.manager.resize_claim(None, instance, name,
                                              fixtures.a_request(pmem=1), region.migration(instance, name))
            self.assertRaises(RuntimeError, self.fail_in, claim, host, instance)
            rows = region.rows(instance)
            self.assertEqual(before, rows)
            self.assertIsNone(instance.migration_context)
            self.assertEqual([], host.store.contexts(host.manager.state().host_uuid))
            region.delete(instance)

    @staticmethod
    def fail_in(claim, host, instance):
        with claim:
            host.manager.realize(None, instance)
            raise RuntimeError('no disk')

    def test_a_second_destination_after_the_first_refused(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        first = region.migration(instance, 'two')
        with self.two.manager.resize_claim(None, instance, 'two', fixtures.a_request(pmem=1), first) as claim:
            claim.abort()
        first.status = 'error'
        second = region.resize(instance, 'one', pmem=1)
        self.assertEqual({'one': [('d0', 'old', 'active'), ('d1', 'current', 'active')], 'two': []},
                         region.rows(instance))
        region.confirm(instance, second)
        self.assertEqual({'one': [('d1', 'current', 'active')], 'two': []}, region.rows(instance))
        self.assertEqual([], region.audit())

    def test_a_claim_whose_caller_never_heard_of_it_is_reaped_when_its_migration_is_over(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=migration)
        instance.migration_context = None
        self.two.restart()
        region.audit()
        self.assertEqual([('d0', 'incoming', 'claimed')], region.rows(instance)['two'])
        for status in ('something else', None):
            migration.status = status
            region.audit()
            self.assertEqual([('d0', 'incoming', 'claimed')], region.rows(instance)['two'])
        migration.status = 'error'
        region.audit()
        self.assertEqual([], region.rows(instance)['two'])
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])
        self.assertEqual([], region.audit())

    def test_a_service_that_does_not_answer_ends_nothing(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'two', pmem=1)
        migration.status = 'reverted'
        answers: list[Any] = [None, RuntimeError('no database'), []]
        for answer in answers:
            self.two.service.moves = answer
            region.audit()
            self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['two'])

    def test_delete_while_a_resize_waits(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        region.resize(instance, 'two', pmem=1)
        region.delete(instance)
        self.assertEqual([], region.rows(instance)['two'])
        self.one.machine.delete_guest(instance.uuid)
        region.audit()
        self.assertEqual(NOTHING, region.rows(instance))
        self.assertEqual([], region.audit())

    def test_the_source_is_down_when_the_move_is_confirmed(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'two', pmem=1)
        self.one.manager.close()
        migration.status = 'confirmed'
        self.one.restart()
        self.assertEqual([('d0', 'old', 'active')], region.rows(instance)['one'])      # its guest is still defined
        self.one.machine.delete_guest(instance.uuid)
        region.audit()
        self.assertEqual([], region.rows(instance)['one'])
        self.assertEqual([], region.audit())

    def test_the_newest_migration_counts(self):
        region = self.region(devices=1)
        instance = region.spawn('one', pmem=1)
        older = region.migration(instance, 'two')
        newer = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=older)
        self.two.resize(instance, pmem=1, migration=newer)
        self.assertEqual('error', older.status)
        self.assertEqual([newer.uuid], [record.migration_uuid for record in self.two.records(instance)])
        older.status = 'pre-migrating'
        self.assertRaises(exception.MigrationSuperseded, self.two.resize, instance, 1, 0, older)
        self.assertRaises(exception.InstanceHasClaim, self.two.resize, instance, 1, 0, newer)
        self.assertEqual([newer.uuid], [record.migration_uuid for record in self.two.records(instance)])

    def test_what_an_older_migration_was_to_leave_goes_with_the_newer_one(self):
        for confirmed_by_a_call in (True, False):
            region = self.region(devices=1)
            instance = region.spawn('one', pmem=1)
            older = region.migration(instance, 'two')
            self.two.resize(instance, pmem=1, migration=older)
            self.one.manager.update_usage(None, instance, 'one')
            newer = region.migration(instance, 'two')
            self.two.resize(instance, pmem=1, migration=newer)
            self.assertEqual(['error', older.uuid], [older.status, self.one.records(instance)[0].migration_uuid])
            region.finish_resize(instance, newer)
            if confirmed_by_a_call:
                region.confirm(instance, newer)
            else:
                self.one.machine.delete_guest(instance.uuid)
                newer.status = 'confirmed'
            region.audit()
            self.assertEqual([], region.rows(instance)['one'])
            self.assertEqual([], region.audit())
            self.assertEqual(FREE, self.one.states()['d0'])

    def test_what_an_earlier_stay_left_refuses_the_claim_until_it_is_over(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'two', pmem=1)
        back = region.migration(instance, 'one')
        error = self.assertRaises(exception.InstanceHasStaleRows, self.one.resize, instance, 1, 0, back)
        self.assertEqual(((D0,), True), (error.held, 'd0' in str(error)))
        migration.status = 'confirmed'
        self.one.machine.delete_guest(instance.uuid)
        self.one.resize(instance, pmem=1, migration=back)
        # The device that was left has just been wiped; whichever is claimed, there is one owner.
        self.assertEqual([('incoming', 'claimed')], [row[1:] for row in region.rows(instance)['one']])

    def test_without_a_migration_the_service_creates_one(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        claim = self.two.manager.resize_claim(None, instance, 'two', fixtures.a_request(pmem=1), None)
        self.assertEqual(('one', 'two'), (claim.migration.source_compute, claim.migration.dest_compute))
        self.assertEqual([claim.migration.uuid], [record.migration_uuid for record in self.two.records(instance)])


class SameHostTestCase(RegionTestCase):

    def test_a_revert_gives_the_very_devices_back(self):
        for restarts in (False, True):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=1)
            self.one.machine.write(D0, b'secret')
            migration = region.resize(instance, 'one', pmem=1)
            self.one.machine.write(D1, b'new')
            if restarts:
                self.one.restart()
                region.audit()
            self.assertEqual([('d0', 'old', 'active'), ('d1', 'current', 'active')], region.rows(instance)['one'])
            # The one definition shows the new device until the guest is defined again: it is held as long.
            migration.status = 'reverting'
            self.assertRaises(exception.DeviceInUse, self.one.manager.drop_move_claim_at_dest, None, instance,
                              migration)
            self.assertEqual([('d0', 'current', 'active'), ('d1', 'current', 'releasing')],
                             region.rows(instance)['one'])
            self.one.boot(instance)
            migration.status = 'reverted'
            region.audit()
            self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])
            self.assertEqual((b'secret', b''), (self.one.machine.read(D0), self.one.machine.read(D1)))
            self.assertEqual(['d0'], [assignment.identifier for assignment in instance.resources])
            self.assertEqual([], region.audit())

    def test_confirmed(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        self.one.machine.write(D0, b'secret')
        migration = region.resize(instance, 'one', pmem=1)
        region.confirm(instance, migration)
        self.assertEqual([('d1', 'current', 'active')], region.rows(instance)['one'])
        self.assertEqual((b'', FREE), (self.one.machine.read(D0), self.one.states()['d0']))
        self.assertEqual([], self.one.store.contexts(self.one.manager.state().host_uuid))
        region.confirm(instance, migration)
        self.assertEqual([('d1', 'current', 'active')], region.rows(instance)['one'])
        self.assertEqual([], region.audit())

    def test_to_a_flavor_without_devices_and_back(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'one')
        self.assertEqual([('d0', 'old', 'active')], region.rows(instance)['one'])
        self.assertEqual((), self.one.machine.domains[instance.uuid].live)
        self.one.restart()
        self.assertEqual([], region.audit())
        region.revert(instance, migration)
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])
        self.assertEqual(1, len(self.one.machine.domains[instance.uuid].live or ()))
        self.assertEqual([], region.audit())

    def test_from_a_flavor_without_devices_and_back(self):
        region = self.region(devices=2)
        instance = region.spawn('one')
        migration = region.resize(instance, 'one', pmem=2)
        self.assertEqual(2, len(region.rows(instance)['one']))
        self.one.restart()
        region.revert(instance, migration)
        self.assertEqual(NOTHING, region.rows(instance))
        self.assertEqual([], region.audit())

    def test_while_it_waits_the_guest_stops_starts_and_is_rebuilt_on_its_new_devices(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        region.resize(instance, 'one', pmem=1)
        address = self.one.machine.domains[instance.uuid].live
        self.one.machine.stop_guest(instance.uuid)
        self.assertEqual([], region.audit())
        self.one.boot(instance)
        self.assertEqual(address, self.one.machine.domains[instance.uuid].live)
        claim = self.one.manager.rebuild_claim(None, instance, 'one', fixtures.a_request(pmem=1))
        self.assertEqual(['d1'], [assignment.identifier for assignment in claim.resources])
        claim.abort()
        self.assertEqual([('d0', 'old', 'active'), ('d1', 'current', 'active')], region.rows(instance)['one'])

    def test_before_the_new_guest_starts_the_old_one_can_be_started_again(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        before = self.one.machine.domains[instance.uuid].live
        migration = region.migration(instance, 'one')
        self.one.resize(instance, pmem=1, migration=migration)
        self.one.machine.stop_guest(instance.uuid)
        self.one.boot(instance)
        self.assertEqual(before, self.one.machine.domains[instance.uuid].live)
        self.assertEqual([('d0', 'current', 'active'), ('d1', 'incoming', 'claimed')], region.rows(instance)['one'])
        migration.status = 'error'
        region.audit()
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])
        self.assertEqual([], region.audit())

    def test_a_guest_does_not_start_on_what_a_failed_move_claimed(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        before = self.one.machine.domains[instance.uuid].live
        migration = region.migration(instance, 'one')
        self.one.resize(instance, pmem=1, migration=migration)
        migration.status = 'error'                      # and the call that would say so here is lost
        self.one.machine.stop_guest(instance.uuid)
        self.one.boot(instance)
        self.assertEqual(before, self.one.machine.domains[instance.uuid].live)
        self.one.wait()
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])
        self.assertEqual([], region.audit())

    def test_a_lost_answer_to_the_claim_is_undone_when_it_happened(self):
        for staged in ('lose_answer', 'lose_commit'):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=1)
            getattr(self.one.store, staged)()
            self.assertRaises(exception.OutcomeUnknown, region.resize, instance, 'one', 1)
            region.audit()
            self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])
            self.assertEqual([], self.one.store.contexts(self.one.manager.state().host_uuid))
            self.assertEqual([], region.audit())
            region.confirm(instance, region.resize(instance, 'one', pmem=1))


class LiveMigrationTestCase(RegionTestCase):

    def test_there(self):
        region = self.region(devices=3, parents={'card': 2})
        instance = region.spawn('one', pmem=2, vgpu=1)
        migration = region.live_migration(instance, 'two', pmem=2, vgpu=1)
        self.assertEqual({'old'}, {role for _, role, _ in region.rows(instance)['one']})
        self.assertEqual([], region.audit())
        self.two.restart()
        region.audit()
        self.assertEqual({'incoming'}, {role for _, role, _ in region.rows(instance)['two']})
        region.arrive(instance, migration)
        region.audit()
        self.assertEqual([], region.rows(instance)['one'])
        self.assertEqual({('current', 'active')}, {row[1:] for row in region.rows(instance)['two']})
        self.assertEqual([], region.audit())

    def test_the_map_keeps_the_order_of_the_guest(self):
        region = self.region(devices=0, parents={'card': 2})
        for host in (self.one, self.two):
            for name, label in (('a', 'SMALL'), ('b', '4GB'), ('c', 'SMALL')):
                host.machine.add_namespace(name, label)
            host.audit()
        wanted = DeviceRequest.of(('CUSTOM_PMEM_NAMESPACE_SMALL', 1), ('VGPU', 1),
                                           ('CUSTOM_PMEM_NAMESPACE_4GB', 1))
        instance = self.one.spawn(Instance(), wanted)
        region.instances.append(instance)
        migration = region.migration(instance, 'two')
        other = DeviceRequest.of(('CUSTOM_PMEM_NAMESPACE_4GB', 1), ('CUSTOM_PMEM_NAMESPACE_SMALL', 1),
                                          ('VGPU', 1))
        self.two.manager.live_migration_claim(None, instance, 'two', other, migration)
        self.two.manager.realize(None, instance)
        found = self.two.manager.device_map(instance, migration)
        self.assertEqual([record.identifier for record in self.one.records(instance)],
                         [pair.source for pair in found.pairs])
        self.assertEqual([record.identifier for record in self.two.records(instance)],
                         [pair.destination for pair in found.pairs])
        self.assertFalse(found.post_copy_allowed)
        mdev = self.one.records(instance)[1].identifier
        self.assertEqual({mdev: 'nvidia-35'}, found.mdev_types())
        self.assertEqual({mdev: self.two.records(instance)[1].identifier}, found.mdev_targets())
        self.two.machine.delete_guest(instance.uuid)
        region.roll_back(instance, migration)

    def test_there_and_back_and_there_without_an_audit(self):
        for service in (True, False):
            region = self.region(parents={'card': 1})
            if not service:
                for host in (self.one, self.two):
                    vars(host.running.service)['_service'] = None
            instance = region.spawn('one', pmem=1, vgpu=1)
            for there, name in ((self.one, 'two'), (self.two, 'one'), (self.one, 'two')):
                migration = region.live_migrate(instance, name, pmem=1, vgpu=1)
                there.manager.drop_move_claim_at_source(None, instance, migration)
                self.assertEqual([], there.records(instance))
            self.assertEqual({'current'}, {role for _, role, _ in region.rows(instance)['two']})

    def test_without_a_partner_there_is_no_claim(self):
        region = self.region(devices=1)
        self.two.machine.add_namespace('odd', size_bytes=8 << 30)
        self.two.audit()
        region.spawn('two', pmem=1)                     # d0, so that only the odd one is left
        instance = region.spawn('one', pmem=1)
        self.assertRaises(exception.NoDevicePair, region.live_migration, instance, 'two', 1)
        self.assertEqual([], region.rows(instance)['two'])
        self.assertEqual(FREE, self.two.states()['odd'])
        self.assertIsNone(instance.migration_context)

    def test_a_host_that_cannot_take_part_refuses_before_anything_is_held(self):
        region = self.region(parents={'card': 1})
        instance = region.spawn('one', pmem=1, vgpu=1)
        self.two.machine.live_migration_obstacles['mdev'] = 'QEMU 7.2.0 is too old'
        refused = self.assertRaises(exception.LiveMigrationUnsupported, region.live_migration, instance, 'two', 1, 1)
        self.assertEqual('host two cannot take part in the live migration of a guest with a device of kind mdev: '
                         'QEMU 7.2.0 is too old', str(refused))
        self.assertEqual([], region.rows(instance)['two'])
        without = region.spawn('one', pmem=1)
        region.arrive(without, region.live_migration(without, 'two', pmem=1))
        self.two.machine.live_migration_obstacles.clear()
        self.one.machine.live_migration_obstacles['mdev'] = 'QEMU 7.2.0 is too old'
        refused = self.assertRaises(exception.LiveMigrationUnsupported, region.live_migration, instance, 'two', 1, 1)
        self.assertEqual(('one', 'mdev'), (refused.host, refused.kind))
        self.assertEqual({'current'}, {role for _, role, _ in region.rows(instance)['one']})

    def test_a_guest_with_a_device_that_stays_is_refused_before_anything_is_held(self):
        region = self.region(parents={'card': 2})
        instance, other = region.spawn('one', vgpu=1), region.spawn('one', vgpu=1)
        [record] = self.one.records(instance)
        self.one.machine.migration_obstacles[record.key] = 'its driver copies no state'
        refused = self.assertRaises(exception.LiveMigrationUnsupported, region.live_migration, instance, 'two', vgpu=1)
        self.assertEqual('host one cannot take part in the live migration of a guest with a device of kind mdev: '
                         'its driver copies no state', str(refused))
        self.assertEqual([], region.rows(instance)['two'])
        region.live_migration(other, 'two', vgpu=1)

    def test_a_guest_whose_flavor_asked_by_an_alias_moves_if_that_says_so(self):
        region = self.region(parents={'card': 4})
        self.one.machine.aliases = {name: PCIAlias(name, tuple(choices), vocabulary.LEGACY) for name, choices in (
            ('moves', [PCIChoice(fixtures.VGPU, live_migratable=True)]),
            ('stays', [PCIChoice(fixtures.VGPU, live_migratable=False)]),
            ('silent', [PCIChoice(fixtures.VGPU)]),
            ('other', [PCIChoice('CUSTOM_OTHER')]),
            ('either', [PCIChoice(fixtures.VGPU, live_migratable=True), PCIChoice(fixtures.VGPU)]))}
        for asked, fixed in (
                ('moves:1', None), ('other:1, moves:1', None), ('stays:1', 'stays'), ('silent:1', 'silent'),
                ('moves:1,either:1', 'either'), ('unknown:1', None)):
            instance = region.spawn('one', vgpu=1)
            instance.flavor = Flavor({'pci_passthrough:alias': asked})
            if fixed is None:
                self.one.manager.check_can_live_migrate_source(instance)
            else:
                refused = self.assertRaises(exception.LiveMigrationUnsupported,
                                            self.one.manager.check_can_live_migrate_source, instance)
                self.assertEqual(f'the alias {fixed} does not say live_migratable', refused.reason)
            region.delete(instance)

    def test_rolled_back(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        self.one.machine.write(D0, b'secret')
        migration = region.live_migration(instance, 'two', pmem=1)
        region.roll_back(instance, migration)
        self.assertEqual([], region.rows(instance)['two'])
        region.audit()
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])
        self.assertEqual(b'secret', self.one.machine.read(D0))
        self.assertEqual([], region.audit())

    def test_the_source_gives_back_only_when_its_guest_is_gone_and_the_service_says_so(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.live_migration(instance, 'two', pmem=1)
        migration.status = 'completed'                  # while the guest is there
        region.audit()
        self.assertEqual([('d0', 'old', 'active')], region.rows(instance)['one'])
        migration.status = 'running'
        self.one.machine.delete_guest(instance.uuid)    # while the service does not say so
        region.audit()
        self.assertEqual([('d0', 'old', 'active')], region.rows(instance)['one'])
        region.arrive(instance, migration)
        self.one.machine.unknown_domains['other'] = 'torn'
        region.audit()
        self.assertEqual([('d0', 'old', 'active')], region.rows(instance)['one'])
        self.one.machine.clear()
        region.audit()
        self.assertEqual([], region.rows(instance)['one'])

    def test_a_source_that_was_never_told_is_told_by_the_audit(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two')
        self.two.manager.live_migration_claim(None, instance, 'two', fixtures.a_request(pmem=1), migration)
        self.two.boot(instance)
        self.one.machine.delete_guest(instance.uuid)
        instance.host, migration.status = 'two', 'completed'
        region.audit()
        self.assertEqual([], region.rows(instance)['one'])

    def test_the_same_host_is_refused(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        self.assertRaises(exception.BadRequest, self.one.manager.live_migration_claim, None, instance, 'one',
                          region.migration(instance, 'one'), None, fixtures.a_request(pmem=1))


class EvacuationTestCase(RegionTestCase):

    def test_and_the_source_comes_back(self):
        region = self.region()
        instance, other = region.spawn('one', pmem=1), region.spawn('one', pmem=1)
        self.one.machine.write(D1, b'of the other')
        self.one.manager.close()
        region.evacuate(instance, 'two', pmem=1)
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['two'])
        self.two.audit()
        self.assertEqual({None}, {record.migration_uuid for record in self.two.records(instance)})
        self.one.service.evacuated = RuntimeError('no database')
        self.one.restart()
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])
        self.one.service.evacuated = None
        self.one.restart()
        self.assertEqual([], region.rows(instance)['one'])
        self.assertEqual({other.uuid}, set(self.one.machine.domains))
        self.assertEqual(b'of the other', self.one.machine.read(D1))
        self.assertEqual([], region.audit())

    def test_a_guest_that_is_there_again_without_its_rows_is_removed_again(self):
        """As after a power cut before the removal of its definition was on the disk."""
        region = self.region()
        instance, other = region.spawn('one', pmem=1), region.spawn('one', pmem=1)
        left = self.one.machine.domains[instance.uuid]
        self.one.manager.close()
        region.evacuate(instance, 'two', pmem=1)
        self.one.restart()
        self.assertEqual({other.uuid}, set(self.one.machine.domains))
        for begin_again in (self.one.restart, self.one.audit):
            self.one.machine.domains[instance.uuid] = left
            self.one.machine.write(D0, b'secret')
            begin_again()
            self.assertEqual({other.uuid}, set(self.one.machine.domains))
            self.assertIsNone(self.one.running.gate.report_only)
            self.one.audit()
            # It may have written to its old device, which nobody gets before it is wiped.
            self.assertEqual((fixtures.WITHHELD + 'unproven', b'secret'),
                             (self.one.states()['d0'], self.one.machine.read(D0)))
            self.assertEqual([], self.one.audit())
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['two'])

    def test_it_is_left_alone_if_its_instance_is_here_or_another_guest_has_no_rows_either(self):
        region = self.region()
        instance, other = region.spawn('one', pmem=1), region.spawn('one', pmem=1)
        self.one.service.evacuated = [instance.uuid]
        self.one.manager.close()
        for lost, known in ((instance, 'here'), (other, 'elsewhere')):
            self.one.service.known = {instance.uuid: known, other.uuid: 'here'}
            self.one.store.store.write(Changes(delete=tuple(self.one.records(lost))))
            self.one.restart()
            self.assertIn(lost.uuid, self.one.running.gate.report_only or '')
            self.one.audit()
            self.assertEqual({instance.uuid, other.uuid}, set(self.one.machine.domains))

    def test_only_providers_of_this_host_are_claimed(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        allocations = {host.manager.providers()[0].uuid: {'resources': {fixtures.PMEM: 1}}
                       for host in (self.one, self.two)}
        migration = Migration('one', 'two', instance.uuid)
        self.two.manager.rebuild_claim(None, instance, 'two', allocations, migration=migration)
        self.assertEqual([('d0', 'incoming', 'claimed')], region.rows(instance)['two'])

    def test_a_guest_that_came_back_since_is_left_alone(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        self.one.manager.close()
        evacuation = region.evacuate(instance, 'two', pmem=1)
        self.one.restart()
        region.confirm(instance, region.resize(instance, 'one', pmem=1))
        self.assertEqual('done', evacuation.status)     # the service still names it
        self.one.restart()
        self.assertEqual([('current', 'active')], [row[1:] for row in region.rows(instance)['one']])
        self.assertIn(instance.uuid, self.one.machine.domains)
        self.assertEqual([], region.audit())


class ContextTestCase(RegionTestCase):

    def test_is_stored_with_the_claim_as_a_peer_reads_it(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=2, migration=migration)
        stored = self.two.store.context(self.two.manager.state().host_uuid, instance.uuid)
        assert stored is not None
        self.assertEqual(migration.uuid, stored.migration_uuid)
        read = MigrationContext.obj_from_primitive(json.loads(stored.context or ''))
        self.assertEqual((1, 2), (len(read.old_resources), len(read.new_resources)))
        self.assertEqual(self.one.manager.state().host_uuid, read.old_resources.host_uuid)
        self.assertEqual(instance.migration_context.obj_to_primitive(), read.obj_to_primitive())

    def test_what_an_instance_had_before_another_move_is_not_what_it_has_when_this_one_is_undone(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=migration)
        other = MigrationContext(instance_uuid=instance.uuid, migration_uuid=Instance().uuid,
                                 old_resources=instance.resources, new_resources=None)
        for context, fields in ((None, {'migration_context': None}), (other, {})):
            instance.migration_context = context
            self.assertEqual(fields, self.two.manager.drop_move_claim_at_dest(None, instance, migration))
            self.assertIs(context, instance.migration_context)

    def test_drop_when_nothing_moves(self):
        region = self.region()
        instance = region.spawn('one', pmem=1)
        self.assertEqual({}, self.one.manager.drop_move_claim(None, instance, 'one'))

    def test_drop_without_a_migration_at_hand(self):
        for prefix, left in (('new_', 'd0'), ('old_', 'd1')):
            region = self.region()
            instance = region.spawn('one', pmem=1)
            region.resize(instance, 'one', pmem=1)
            if prefix == 'new_':
                self.one.machine.delete_guest(instance.uuid)
            self.one.manager.drop_move_claim(None, instance, 'one', prefix=prefix)
            self.assertEqual([left], [row[0] for row in region.rows(instance)['one']])
        self.assertRaises(exception.BadRequest, self.one.manager.drop_move_claim, None, instance, 'one', None, 'x_')
