"""Whether a running guest may go to another host with its devices: what both ends declare, and what the claim makes of
it."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import fixtures as test_fixtures

from devicetrack import exception
from devicetrack.claims import live
from devicetrack.claims import partner_search
from devicetrack.objects import DeclaredDevice
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationType
from devicetrack.testing import fixtures
from devicetrack.testing import region as regions
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base

TYPE = 'nvidia-35'
GROUP = 'devicetrack_compatibility'


class LiveTestCase(base.TestCase):
    """Hosts ``one`` and ``two``, each with the parents ``a`` and ``b`` that make two devices."""

    def setUp(self) -> None:
        super().setUp()
        self.region = self.useFixture(regions.Region(devices=2, parents={'a': 2, 'b': 2}))
        self.one, self.two = self.region.one, self.region.two

    def declare(self, host: Any, version: str | None, parents: str = 'ab', **others: Any) -> None:
        for parent in parents:
            host.machine.declare(MigrationType('mdev', parent, TYPE, Attribute(version), **others))
        host.audit()

    def seen(self, host: Any, instance: Instance) -> list[str | None]:
        return [record.seen for record in host.records(instance)]

    def assert_refused(self, text: str, instance: Instance, to: str, vgpu: int = 1) -> exception.NoDevicePair:
        before = instance.migration_context
        refused = self.assertRaises(exception.NoDevicePair, self.region.live_migration, instance, to, vgpu=vgpu)
        self.assertIn(text, str(refused))
        self.assertEqual([], self.region.rows(instance)[to])
        self.assertIs(before, instance.migration_context)
        return refused


class UnheardTestCase(LiveTestCase):

    def test_a_guest_whose_arrival_nobody_heard_declares_its_devices(self) -> None:
        instance = self.region.spawn('one', vgpu=1)
        self.region.live_migration(instance, 'two', vgpu=1)
        self.assertEqual(['incoming'], [record.role for record in self.two.records(instance)])
        check = self.two.manager.check_can_live_migrate_source(instance)
        self.assertEqual([record.identifier for record in self.two.records(instance)],
                         [device.identifier for device in check.devices or ()])


class VersionsTestCase(LiveTestCase):

    def test_there_and_back_while_the_guest_has_not_booted_there(self) -> None:
        self.declare(self.one, '2.0.1')
        self.declare(self.two, '2.1.1')
        instance = self.region.spawn('one', vgpu=1)
        self.assertEqual(['2.0.1'], self.seen(self.one, instance))
        self.region.live_migrate(instance, 'two', vgpu=1)
        self.region.audit()
        self.assertEqual(['2.0.1'], self.seen(self.two, instance))
        self.region.live_migrate(instance, 'one', vgpu=1)
        self.region.audit()
        self.assertEqual(['2.0.1'], self.seen(self.one, instance))

    def test_not_back_after_a_boot_there(self) -> None:
        self.declare(self.one, '2.0.1')
        self.declare(self.two, '2.1.1')
        for boots in (lambda instance: self.two.manager.rebooted(None, instance), self.two.boot):
            instance = self.region.spawn('one', vgpu=1)
            self.region.live_migrate(instance, 'two', vgpu=1)
            boots(instance)
            self.assertEqual(['2.1.1'], self.seen(self.two, instance))
            self.two.restart()
            self.assert_refused('the guest may have seen version 2.1.1, the destination has the older 2.0.1',
                                instance, 'one')

    def test_not_back_after_a_reboot_before_a_move_on_one_host_that_failed(self) -> None:
        self.declare(self.one, '2.0.1')
        self.declare(self.two, '2.1.1')
        instance = self.region.spawn('one', vgpu=1)
        self.region.live_migrate(instance, 'two', vgpu=1)
        self.region.audit()
        migration = self.region.migration(instance, 'two')
        self.two.resize(instance, vgpu=1, migration=migration)
        self.two.manager.rebooted(None, instance)
        migration.status = 'error'
        self.region.audit()
        self.assertEqual(['2.1.1'], self.seen(self.two, instance))

    def test_a_guest_that_boots_on_the_older_one_has_seen_no_newer_one(self) -> None:
        self.declare(self.one, '2.0.1')
        self.declare(self.two, '2.1.1')
        instance = self.region.spawn('two', vgpu=1)
        self.assertEqual(['2.1.1'], self.seen(self.two, instance))
        self.region.confirm(instance, self.region.resize(instance, 'one', vgpu=1))
        self.assertEqual(['2.0.1'], self.seen(self.one, instance))

    def test_a_reboot_never_takes_back_what_was_seen(self) -> None:
        self.declare(self.one, '2.1.1')
        self.declare(self.two, '2.1.0')
        instance = self.region.spawn('one', vgpu=1)
        self.region.live_migrate(instance, 'two', vgpu=1)
        self.two.manager.rebooted(None, instance)
        self.assertEqual(['2.1.1'], self.seen(self.two, instance))

    def test_the_parent_that_will_do_is_chosen(self) -> None:
        self.declare(self.one, '2.1.0')
        self.declare(self.two, '2.0.0', 'a')
        self.declare(self.two, '2.3.0', 'b')
        instance = self.region.spawn('one', vgpu=2)
        self.region.live_migrate(instance, 'two', vgpu=2)
        self.assertEqual(['b', 'b'], [record.parent for record in self.two.records(instance)])
        self.assert_refused('on host two, mdev nvidia-35 to be made on a: no: the guest may have seen version '
                            '2.1.0, the destination has the older 2.0.0', self.region.spawn('one', vgpu=1), 'two')

    def test_the_refusal_names_every_device_that_has_no_partner(self) -> None:
        self.declare(self.one, '2.1.0')
        self.declare(self.two, '2.0.0', 'a')
        self.declare(self.two, '2.3.0', 'b')
        self.region.spawn('two', vgpu=1)
        self.two.machine.parents['b'].used = 1
        self.two.audit()
        instance = self.region.spawn('one', vgpu=3)
        refused = self.assert_refused('mdev nvidia-35 to be made on b: partners of other devices', instance, 'two',
                                      vgpu=3)
        last = max(record.identifier for record in self.one.records(instance))
        self.assertIn(f'; also without a partner: mdev/{last}', str(refused))
        found: Any = refused.found
        self.assertEqual((1, 2), (len(found['pairs']), len(found['alone'])))
        self.assertEqual(['0 nvidia-35 to be made on b'],
                         [pair['destination']['identifier'] for pair in found['pairs']])

    def test_as_many_as_can_find_a_partner(self) -> None:
        self.declare(self.one, '2.0.0', 'a')
        self.declare(self.one, '2.3.0', 'b')
        self.declare(self.two, '2.1.0', 'a')
        self.declare(self.two, '2.4.0', 'b')
        instance = self.region.spawn('one', vgpu=4)
        self.region.live_migrate(instance, 'two', vgpu=4)
        ends = zip(('a', 'a', 'b', 'b'), (record.parent for record in self.two.records(instance)), strict=True)
        self.assertEqual([('a', 'a'), ('a', 'a'), ('b', 'b'), ('b', 'b')], list(ends))

    def test_none_is_known(self) -> None:
        for required in (False, True):
            self.one.configuration.set(GROUP, require_version=required)
            self.two.configuration.set(GROUP, require_version=required)
            self.one.restart()
            self.two.restart()
            instance = self.region.spawn('one', vgpu=1)
            if required:
                self.assert_refused('versions cannot be compared: unknown (no source knows it) at the source',
                                    instance, 'two')
            else:
                self.region.live_migrate(instance, 'two', vgpu=1)
                self.assertEqual([None], self.seen(self.two, instance))

    def test_one_end_is_malformed(self) -> None:
        self.one.configuration.set(GROUP, require_version=True)
        self.one.restart()
        self.declare(self.one, '2.1')
        self.declare(self.two, '2.1.0')
        instance = self.region.spawn('two', vgpu=1)
        self.assert_refused("unknown (sysfs: '2.1' is not major.minor.patch, three numbers) at the destination",
                            instance, 'one')

    def test_a_vendors_own_text(self) -> None:
        for host, text in ((self.one, 'GRID-A'), (self.two, 'GRID-B')):
            host.configuration.set(GROUP, opaque_versions=True)
            host.restart()
            self.declare(host, text)
        instance = self.region.spawn('one', vgpu=1)
        self.assert_refused("version string is 'GRID-A' at the source, 'GRID-B' at the destination", instance, 'two')
        self.declare(self.two, 'GRID-A')
        self.region.live_migrate(instance, 'two', vgpu=1)

    def test_units(self) -> None:
        self.declare(self.one, '1.0.0', aggregation=Attribute('2'))
        self.declare(self.two, '1.0.0', aggregation=Attribute('4'))
        instance = self.region.spawn('one', vgpu=1)
        self.assert_refused('aggregation is 2 at the source, 4 at the destination', instance, 'two')
        self.declare(self.two, '1.0.0', aggregation=Attribute('many'))
        self.assert_refused("how many units mdev nvidia-35 has is not known: 'many' is no number of units",
                            instance, 'two')

    def test_a_namespace_of_another_alignment(self) -> None:
        self.region.spawn('two', pmem=2)
        self.two.machine.add_namespace('odd', align_bytes=1 << 30)
        self.two.audit()
        instance = self.region.spawn('one', pmem=1)
        refused = self.assertRaises(exception.NoDevicePair, self.region.live_migration, instance, 'two', pmem=1)
        self.assertIn('type is 4GB 4294967296 2097152 at the source', str(refused))


class PostCopyTestCase(LiveTestCase):

    def test_is_refused_with_devices_and_changes_nothing(self) -> None:
        instance = self.region.spawn('one', pmem=1, vgpu=1)
        source = self.one.manager
        refused = self.assertRaises(exception.PostCopyRefused, source.check_can_live_migrate_source, instance,
                                    post_copy=True)
        self.assertEqual(f'instance {instance.uuid} has a device of kind mdev, which cannot wait for memory: '
                         'migrate it without post-copy', str(refused))
        check, migration = self.region.check(instance, 'two'), self.region.migration(instance, 'two')
        self.two.manager.live_migration_claim(None, instance, 'two', fixtures.a_request(pmem=1, vgpu=1), migration,
                                              check=check)
        self.two.manager.realize(None, instance)
        device_map = self.two.manager.device_map(instance, migration)
        self.assertRaises(exception.PostCopyRefused, source.migration_definitions, None, instance, migration,
                          device_map, post_copy=True)
        self.assertEqual({'current'}, {role for _, role, _ in self.region.rows(instance)['one']})
        self.assertEqual(2, len(device_map.pairs))
        self.two.manager.drop_move_claim_at_dest(None, instance, migration)

    def test_may_be_without_devices(self) -> None:
        check = self.one.manager.check_can_live_migrate_source(Instance(), post_copy=True)
        self.assertEqual([], check.devices)


class TableTestCase(LiveTestCase):

    @property
    def known(self) -> Any:
        """What the first host declares."""
        return self.one.running.declarations.known

    def table(self, host: Any, text: str) -> pathlib.Path:
        path = pathlib.Path(host.configuration.state_path, 'table.yaml')
        path.write_text(text)
        host.configuration.set(GROUP, table=str(path))
        return path

    def test_counts_where_the_driver_says_nothing(self) -> None:
        for host in (self.one, self.two):
            self.table(host, 'types: {mdev: {nvidia-35: {version: 2.0.0, drivers: {535.10: {version: 2.4.0}}, '
                             'hosts: {two: {requires: [CUSTOM_X]}}}}}')
            host.restart()
        self.declare(self.one, '2.3.0', 'a')
        self.declare(self.one, None, 'b', driver='535.10')
        declared = {place[1]: one for place, one in self.known.items() if place[0] == 'mdev'}
        self.assertEqual([('2.3.0', 'sysfs'), ('2.4.0', 'table')],
                         [(str(declared[parent].facts.version), dict(declared[parent].sources)['version'])
                          for parent in 'ab'])
        self.assert_refused('the guest requires CUSTOM_X, the destination offers none',
                            self.region.spawn('two', vgpu=1), 'one')

    def test_that_means_nothing_keeps_a_service_from_starting_and_changes_nothing_later(self) -> None:
        path = self.table(self.one, 'types: {mdev: {nvidia-35: {version: 2.0.0}}}')
        self.one.restart()
        path.write_text('types: [')
        self.assertEqual([], self.one.audit())
        self.assertEqual({'2.0.0'}, {str(one.facts.version) for place, one in self.known.items()
                                     if place[0] == 'mdev'})
        self.assertRaises(exception.InvalidConfiguration, self.one.restart)
        path.write_text('types: {mdev: {nvidia-35: {version: 2.1.0}}}')
        self.one.restart()
        path.write_text('types: {mdev: {nvidia-35: {version: 2.2.0}}}')
        self.one.audit()
        self.assertEqual({'2.2.0'}, {str(one.facts.version) for place, one in self.known.items()
                                     if place[0] == 'mdev'})

    def test_a_kind_that_is_not_installed_is_logged_once_while_it_is_there(self) -> None:
        log = self.useFixture(test_fixtures.FakeLogger())
        path = self.table(self.one, 'types: {mdevs: {nvidia-35: {}}, mdev: {nvidia-0: {hosts: {nine: {}}}}}')
        self.one.machine.unknown_kinds['mdev'] = 'no answer'
        self.one.restart()
        warning = f'Table {path}: no device kind %s is installed here; there are mdev, vpmem\n'
        self.one.audit()
        path.write_text('types: {mdevs: {nvidia-35: {}}}\n'
                        'cross_kind: [{from: {kind: mdev, type: a}, to: {kind: vfs, type: b}}]')
        for text in (path.read_text(), 'types: {}', 'types: {mdevs: {nvidia-35: {}}}'):
            path.write_text(text)
            self.one.audit()
        self.assertEqual([warning % 'mdevs', warning % 'vfs', warning % 'mdevs'],
                         [line for line in log.output.splitlines(keepends=True) if line.startswith('Table')])


class PeersTestCase(LiveTestCase):

    def claim(self, instance: Instance, check: Any) -> Any:
        migration = self.region.migration(instance, 'two')
        return self.two.manager.live_migration_claim(None, instance, 'two',
                                                     fixtures.a_request(pmem=1, vgpu=1), migration, check=check)

    def test_a_source_of_an_older_release(self) -> None:
        self.declare(self.one, '9.0.0')
        self.declare(self.two, '2.0.0')
        instance = self.region.spawn('one', pmem=1, vgpu=1)
        self.claim(instance, None).abort()
        with self.claim(instance, None):
            self.assertEqual([None, None], self.seen(self.two, instance))
        self.two.configuration.set(GROUP, require_version=True)
        self.two.restart()
        refused = self.assertRaises(exception.NoDevicePair, self.claim, self.region.spawn('one', pmem=1, vgpu=1), None)
        self.assertIn('unknown (its host declares nothing) at the source', str(refused))

    def test_a_destination_of_an_older_release_gives_no_check(self) -> None:
        instance = self.region.spawn('one', vgpu=1)
        check = self.one.manager.check_can_live_migrate_source(instance)
        self.assertEqual([('mdev', TYPE, 'unknown')],
                         [(one.kind, one.type, one.version_form) for one in check.devices or ()])

    def test_a_check_of_another_instance(self) -> None:
        instance, other = self.region.spawn('one', pmem=1, vgpu=1), self.region.spawn('one', pmem=1, vgpu=1)
        check = self.region.check(other, 'two')
        for refuse in (lambda: self.claim(instance, check),
                       lambda: self.one.manager.check_can_live_migrate_source(instance, check)):
            self.assertIn('check.instance_uuid', str(self.assertRaises(exception.BadRequest, refuse)))
        self.assertEqual([], self.region.rows(instance)['two'])

    def test_a_check_of_other_devices(self) -> None:
        instance = self.region.spawn('one', pmem=1, vgpu=1)
        check = self.region.check(instance, 'two')
        check = LiveMigrationCheck(instance_uuid=instance.uuid, devices=[*reversed(check.devices or [])])
        refused = self.assertRaises(exception.BadRequest, self.claim, instance, check)
        self.assertIn('read the instance again', str(refused))

    def test_a_check_that_the_source_has_not_seen(self) -> None:
        instance = self.region.spawn('one', pmem=1, vgpu=1)
        asked = self.two.manager.check_can_live_migrate_destination(instance)
        self.assertIn('the source has not filled them in',
                      str(self.assertRaises(exception.BadRequest, self.claim, instance, asked)))
        other: Any = 'well'
        for refuse in (lambda: self.claim(instance, other),
                       lambda: self.one.manager.check_can_live_migrate_source(instance, other)):
            self.assertIn('must be a LiveMigrationCheck', str(self.assertRaises(exception.BadRequest, refuse)))

    def test_a_check_that_means_nothing(self) -> None:
        instance = self.region.spawn('one', pmem=1, vgpu=1)
        check = self.region.check(instance, 'two')
        [_first, second] = check.devices or []
        second.version_form = 'perhaps'
        refused = self.assertRaises(exception.BadRequest, self.claim, instance, check)
        self.assertIn("check.devices[1].version_form: 'perhaps'", str(refused))
        self.assertEqual([], self.region.rows(instance)['two'])

    def test_a_driver_in_another_process_is_told_what_was_asked(self) -> None:
        driver, told = self.two.driver, []
        name = driver.claim_for_instance

        def note(instance_uuid: str, request: Any, candidates: Any) -> Any:
            told.append(pickle.loads(pickle.dumps(request)))
            return name(instance_uuid, request, candidates)

        self.patch(driver, 'claim_for_instance', note)
        instance = self.region.spawn('one', pmem=1, vgpu=1)
        self.claim(instance, self.region.check(instance, 'two'))
        self.assertEqual([('CUSTOM_PMEM_NAMESPACE_4GB', 1), ('VGPU', 1)], [item[:2] for item in told[0].items])

    def test_what_was_chosen_is_taken_meanwhile(self) -> None:
        instance = self.region.spawn('one', pmem=1, vgpu=1)
        check = self.region.check(instance, 'two')
        choose, rivals = partner_search.PartnerSearch.choose, list[Instance]()

        def be_late(*args: Any) -> Any:
            chosen = choose(*args)
            if not rivals:
                # All that the first parent can make.
                rivals.extend(self.together(lambda: self.region.spawn('two', vgpu=2)))
            return chosen

        self.patch(partner_search.PartnerSearch, 'choose', be_late)
        self.claim(instance, check)
        self.assertEqual(['b'], [record.parent for record in self.two.records(instance) if record.kind == 'mdev'])


class SeenTestCase(LiveTestCase):
    """What a guest has seen, when nobody is told of what it did."""

    def setUp(self) -> None:
        super().setUp()
        self.declare(self.one, '2.0.1')
        self.declare(self.two, '2.1.1')
        self.instance = self.region.spawn('one', vgpu=1)

    def test_a_start_that_nobody_told_of(self) -> None:
        self.region.live_migrate(self.instance, 'two', vgpu=1)
        self.two.machine.stop_guest(self.instance.uuid)
        self.two.manager.realize(None, self.instance)
        self.assertEqual(['2.1.1'], self.seen(self.two, self.instance))

    def test_what_is_made_ready_for_a_guest_that_comes_running_is_nothing_that_it_has_seen(self) -> None:
        migration = self.region.live_migration(self.instance, 'two', vgpu=1)
        self.two.manager.realize(None, self.instance)
        self.assertEqual(['2.0.1'], self.seen(self.two, self.instance))
        self.region.arrive(self.instance, migration)

    def test_a_guest_that_came_running_has_seen_nothing_more_when_it_is_reported_again(self) -> None:
        def report_twice() -> None:
            self.two.manager.started(None, self.instance)

        for version in ('2.1.1', None):
            for before, after in ((self.two.audit, lambda: None), (lambda: None, report_twice)):
                self.declare(self.two, version)
                self.instance = self.region.spawn('one', vgpu=1)
                migration = self.region.live_migration(self.instance, 'two', vgpu=1)
                self.one.machine.delete_guest(self.instance.uuid)
                self.two.machine.arrived(self.instance.uuid)
                before()
                self.two.arrived(self.instance)
                after()
                migration.status = 'completed'
                self.assertEqual(['2.0.1'], self.seen(self.two, self.instance))
                self.region.live_migrate(self.instance, 'one', vgpu=1)
                self.region.audit()
                self.one.machine.delete_guest(self.instance.uuid)
                self.one.manager.release(None, self.instance)

    def test_a_resized_guest_sees_what_is_there_when_it_starts(self) -> None:
        migration = self.region.migration(self.instance, 'two')
        self.two.resize(self.instance, vgpu=1, migration=migration)
        self.one.resize_instance(self.instance, migration)
        self.two.manager.realize(None, self.instance)
        self.declare(self.two, '2.2.0')                 # before a start that failed is repeated
        self.two.finish_resize(self.instance, migration)
        self.assertEqual(['2.2.0'], self.seen(self.two, self.instance))

    def test_a_stop_and_a_start_see_the_newer_one(self) -> None:
        self.region.live_migrate(self.instance, 'two', vgpu=1)
        self.two.machine.delete_guest(self.instance.uuid)
        self.two.boot(self.instance)
        self.assertEqual(['2.1.1'], self.seen(self.two, self.instance))

    def test_a_reboot_after_the_check(self) -> None:
        self.region.live_migrate(self.instance, 'two', vgpu=1)
        self.region.audit()
        check, migration = self.region.check(self.instance, 'one'), self.region.migration(self.instance, 'one')
        with self.one.manager.live_migration_claim(None, self.instance, 'one',
                                                   fixtures.a_request(vgpu=1), migration, check=check):
            self.one.manager.realize(None, self.instance)
            device_map = self.one.manager.device_map(self.instance, migration)
        self.two.manager.rebooted(None, self.instance)
        refused = self.assertRaises(exception.NoDevicePair, self.two.manager.migration_definitions, None, self.instance,
                                    migration, device_map)
        self.assertIn('it may have seen version 2.1.1, and the check used 2.0.1', str(refused))
        self.assertEqual({'current'}, {role for _, role, _ in self.region.rows(self.instance)['two']})
        self.one.manager.drop_move_claim_at_dest(None, self.instance, migration)


class FullParentTestCase(LiveTestCase):
    """A parent turns out to be full when the partners are made."""

    def claim(self) -> Instance:
        self.declare(self.one, '2.0.0')
        instance = self.region.spawn('one', vgpu=1)
        check, migration = self.region.check(instance, 'two'), self.region.migration(instance, 'two')
        self.two.manager.live_migration_claim(None, instance, 'two', fixtures.a_request(vgpu=1), migration,
                                              check=check)
        self.assertEqual(['a'], [record.parent for record in self.two.records(instance)])
        self.two.machine.parents['a'].used = 2
        return instance

    def test_the_next_that_declares_the_same_is_taken(self) -> None:
        self.declare(self.two, '2.1.0')
        instance = self.claim()
        self.two.manager.realize(None, instance)
        self.assertEqual([('b', '2.0.0')], [(record.parent, record.seen) for record in self.two.records(instance)])

    def test_none_that_would_not_do_is_taken(self) -> None:
        self.declare(self.two, '2.1.0', 'a')
        self.declare(self.two, '1.0.0', 'b')
        self.assertRaises(exception.NoFit, self.two.manager.realize, None, self.claim())
        self.assertEqual([], [record for record in self.two.records() if record.parent != 'a'])


class StoredTestCase(LiveTestCase):

    def test_what_a_host_declares_is_in_the_store_and_written_when_it_changes(self) -> None:
        store = self.one.store
        self.declare(self.one, '2.0.0')
        at_start = store.calls['set_declarations']
        self.one.audit()
        self.assertEqual(at_start, store.calls['set_declarations'])
        self.declare(self.one, '2.1.0', 'a')
        rows = store.declarations_of_host(self.one.manager.state().host_uuid)
        self.assertEqual(['a', 'b', 'region0'], [row.parent for row in rows])
        self.assertEqual(at_start + 1, store.calls['set_declarations'])
        self.one.restart()
        self.assertEqual(at_start + 1, store.calls['set_declarations'])

    def test_a_kind_that_cannot_be_read_is_declared_as_before(self) -> None:
        self.declare(self.one, '2.0.0')
        self.one.machine.unknown_kinds['mdev'] = 'no answer'
        before = dict(self.one.running.declarations.known)
        self.one.audit()
        self.assertEqual(before, self.one.running.declarations.known)


class TenantTestCase(base.TestCase):

    def test_no_refusal_tells_of_hosts_or_devices(self) -> None:
        told = ('host-7', 'mdev', 'nvidia-35', '2.1.0', 'QEMU 7.2.0')
        refusals = [exception.NoDevicePair('mdev', 'nvidia-35', 'host-7 has 2.1.0'),
                    exception.LiveMigrationUnsupported('host-7', 'mdev', 'QEMU 7.2.0 is too old'),
                    exception.NoDestination('mdev', 'nvidia-35', '2.1.0 is nowhere'),
                    exception.PostCopyRefused('host-7', 'mdev')]
        self.assertEqual({type(one) for one in refusals}, set(exception.LiveMigrationRefused.__subclasses__()))
        for refusal in refusals:
            for word in told:
                self.assertNotIn(word, refusal.for_tenant)

    def test_what_is_declared_survives_the_wire(self) -> None:
        device = DeclaredDevice(
            kind='mdev', identifier='m', resource_class='VGPU', type=TYPE, api='vfio-pci', version_form='numbered',
            version='2.1.0', required=['A'], offered=['A', 'B'], aggregation=2, obstacle=None, seen='2.0.0')
        [wanted] = live.from_declared([DeclaredDevice.obj_from_primitive(device.obj_to_primitive())])
        self.assertEqual(('VGPU', 'm', '2.0.0', '2.1.0', 2),
                         (wanted.resource_class, wanted.held.identifier, wanted.seen, str(wanted.held.facts.version),
                          wanted.held.facts.aggregation))

    def test_what_is_not_declared_is_refused(self) -> None:
        error = self.assertRaises(exception.BadRequest, live.from_declared, [
            DeclaredDevice(kind='mdev', identifier='m', resource_class='VGPU', type=TYPE, api='vfio-pci',
                           version_form='numbered', version='2.1.0', offered=[], aggregation=None, obstacle=None,
                           seen=None)])
        self.assertEqual('check.devices[0].required', error.where)


class MapTestCase(LiveTestCase):

    def test_of_the_claim_of_a_cold_migration_is_refused_when_the_devices_make_no_pairs(self) -> None:
        for before, after, kind, text in ((1, 2, exception.BadRequest, 'its claim has 2 devices, and the guest 1'),
                                          (0, 1, exception.BadRequest, 'its claim has 1 devices, and the guest 0'),
                                          (2, 1, exception.NoDevicePair, 'the claim has fewer devices')):
            instance = self.region.spawn('one', pmem=before)
            migration = self.region.migration(instance, 'two')
            self.two.resize(instance, pmem=after, migration=migration)
            refused = self.assertRaises(kind, self.two.manager.device_map, instance, migration)
            self.assertIn(text, str(refused))
            self.two.manager.drop_move_claim_at_dest(None, instance, migration)
            self.region.delete(instance)
