"""What the service says late, not at all or once too often takes no device from a guest and gives it no wrong one."""

from typing import Any

from devicetrack import exception
from devicetrack.claims import repairs
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import FREE
from devicetrack.testing.fixtures import Instance
from devicetrack.tests.unit.claims import test_moving
from devicetrack.tests.unit.claims.test_moving import D0
from devicetrack.tests.unit.claims.test_moving import NOTHING


class LostRevertTestCase(test_moving.RegionTestCase):

    def test_a_guest_that_ran_on_its_new_devices_does_not_start_while_nobody_says_which_are_its_own(self):
        for before in (1, 0):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=before)
            devices = self.one.machine.domains[instance.uuid].live
            migration = region.resize(instance, 'one', pmem=1)
            self.one.machine.stop_guest(instance.uuid)
            migration.status = 'reverted'               # and the call that would say so here is lost
            rows = region.rows(instance)
            silences: list[Any] = [None, RuntimeError('no database'), []]
            for self.one.service.moves in silences:
                self.assertRaises(exception.MigrationUndecided, self.one.boot, instance)
            self.assertEqual(rows, region.rows(instance))
            self.one.service.moves = region.migrations
            self.one.boot(instance)
            self.assertEqual(devices, self.one.machine.domains[instance.uuid].live)
            self.assertEqual([], region.audit())

    def test_nor_while_the_service_says_something_that_nobody_knows(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'one', pmem=1)
        self.one.machine.stop_guest(instance.uuid)
        for migration.status in ('another status', None, 'reverting'):
            self.assertRaises(exception.MigrationUndecided, self.one.boot, instance)
        migration.status = 'finished'
        self.one.boot(instance)
        region.confirm(instance, migration)
        self.assertEqual([('d1', 'current', 'active')], region.rows(instance)['one'])


class BeforeMoveTestCase(test_moving.RegionTestCase):

    def test_a_guest_that_had_no_device_gets_none_of_the_new_ones(self):
        for ran in (False, True):
            region = self.region(devices=2)
            instance = region.spawn('one')
            migration = region.migration(instance, 'one')
            self.one.resize(instance, pmem=1, migration=migration)
            if ran:
                region.finish_resize(instance, migration)
                self.one.machine.stop_guest(instance.uuid)
                migration.status = 'reverting'
                self.assertRaises(exception.DeviceInUse, self.one.manager.drop_move_claim_at_dest, None, instance,
                                  migration)
            self.assertEqual([], list(self.one.manager.realize(None, instance)))
            self.assertEqual((), self.one.manager.guest_config(instance).devices)
            self.one.boot(instance)
            self.assertEqual((), self.one.machine.domains[instance.uuid].live)
            migration.status = 'reverted'
            region.audit()
            self.assertEqual(NOTHING, region.rows(instance))
            self.assertEqual([], region.audit())


class NoDevicesTestCase(test_moving.RegionTestCase):
    """A guest that is to have no devices starts, whatever becomes of those that it had."""

    def test_after_a_revert_to_none(self):
        region = self.region(devices=2)
        instance = region.spawn('one')
        migration = region.resize(instance, 'one', pmem=1)
        self.one.machine.stop_guest(instance.uuid)
        self.assertRaises(exception.DeviceInUse, self.one.manager.drop_move_claim_at_dest, None, instance, migration)
        migration.status = 'reverted'
        self.assertEqual([('d0', 'current', 'releasing')], region.rows(instance)['one'])
        self.assertEqual([], list(self.one.manager.realize(None, instance)))
        self.one.boot(instance)
        self.assertEqual((), self.one.machine.domains[instance.uuid].live)
        region.audit()
        self.assertEqual((NOTHING, FREE), (region.rows(instance), self.one.states()['d0']))

    def test_after_a_resize_to_none(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'one')
        self.one.resize(instance, migration=migration)
        self.assertRaises(exception.DeviceInUse, self.one.manager.drop_move_claim_at_source, None, instance, migration)
        migration.status = 'confirmed'
        self.assertEqual([('d0', 'old', 'releasing')], region.rows(instance)['one'])
        self.one.machine.stop_guest(instance.uuid)
        self.one.boot(instance)
        self.assertEqual((), self.one.machine.domains[instance.uuid].live)
        self.assertEqual([], region.audit())

    def test_a_guest_whose_devices_were_all_given_back_is_refused(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        self.assertRaises(exception.DeviceInUse, self.one.manager.release, None, instance)
        self.assertRaises(exception.InstanceNotClaimed, self.one.manager.realize, None, instance)


class GivenBackTestCase(test_moving.RegionTestCase):
    """A guest whose devices of a move were all given back runs on none of them."""

    def assert_refused(self, host: Any, instance: Any) -> None:
        resources, rows = instance.resources, host.records()
        self.assertRaises(exception.InstanceNotClaimed, host.manager.realize, None, instance)
        self.assertRaises(exception.InvalidTransition, host.manager.started, None, instance)
        self.assertEqual((resources, rows), (instance.resources, host.records()))

    def test_at_the_destination_of_a_live_migration(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.live_migration(instance, 'two', pmem=1)
        self.assertRaises(exception.DeviceInUse, self.two.manager.drop_move_claim_at_dest, None, instance, migration)
        self.assertEqual([('d0', 'incoming', 'releasing')], region.rows(instance)['two'])
        silences: list[Any] = [region.migrations, None, RuntimeError('no database'), []]
        for self.two.service.moves in silences:
            self.assert_refused(self.two, instance)

    def test_at_the_destination_of_a_resize_where_it_ran(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'two', pmem=1)
        self.assertRaises(exception.DeviceInUse, self.two.manager.drop_move_claim_at_dest, None, instance, migration)
        self.assertEqual([('d0', 'current', 'releasing')], region.rows(instance)['two'])
        self.assert_refused(self.two, instance)

    def test_by_a_release_during_a_move(self):
        for name in ('one', 'two'):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=1)
            region.resize(instance, name, pmem=1)
            host = region.hosts[name]
            self.assertRaises(exception.DeviceInUse, host.manager.release, None, instance)
            self.assertEqual({'releasing'}, {state for _, _, state in region.rows(instance)[name]})
            self.assert_refused(host, instance)

    def test_not_by_a_move_on_this_host_when_the_service_says_that_it_is_undone(self):
        region = self.region(devices=2)
        instance = region.spawn('one')
        migration = region.resize(instance, 'one', pmem=1)
        self.one.machine.stop_guest(instance.uuid)
        self.assertRaises(exception.DeviceInUse, self.one.manager.drop_move_claim_at_dest, None, instance, migration)
        self.one.service.moves = None
        self.assertRaises(exception.InstanceNotClaimed, self.one.manager.realize, None, instance)
        self.one.service.moves, migration.status = region.migrations, 'reverting'
        self.one.boot(instance)
        self.assertEqual((), self.one.machine.domains[instance.uuid].live)


class StaleContextTestCase(test_moving.RegionTestCase):
    """An instance object that still carries the context of a move marks nothing once the move is over."""

    def moved_live(self, region):
        instance = region.spawn('one', pmem=1)
        self.one.machine.write(D0, b'secret')
        migration = region.live_migration(instance, 'two', pmem=1)
        context = instance.migration_context
        region.arrive(instance, migration)
        return instance, migration, context

    def check_guest_keeps_its_devices(self, region, instance, host):
        rows = region.rows(instance)
        for _again in range(2):
            self.assertEqual([('d0', 'current', 'active')], rows[host.name])
            host.machine.delete_guest(instance.uuid)            # what a hard reboot does first
            region.audit()
            rows = region.rows(instance)
        host.boot(instance)
        self.assertEqual([], region.audit())

    def test_at_the_destination(self):
        region = self.region(devices=2)
        instance, _migration, instance.migration_context = self.moved_live(region)
        for _again in range(2):
            self.two.manager.update_usage(None, instance, 'two')
            region.audit()
        self.check_guest_keeps_its_devices(region, instance, self.two)

    def test_at_the_destination_for_a_service_that_tells_of_no_migrations(self):
        region = self.region(devices=2)
        instance, _migration, context = self.moved_live(region)
        region.audit()
        vars(self.two.running.service)['_service'] = None
        instance.migration_context = context
        self.two.manager.update_usage(None, instance, 'two')
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['two'])

    def test_at_the_destination_of_a_resize(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.migration(instance, 'two')
        self.two.resize(instance, pmem=1, migration=migration)
        context = instance.migration_context
        region.finish_resize(instance, migration)
        region.confirm(instance, migration)
        region.audit()
        instance.migration_context = context
        self.two.manager.update_usage(None, instance, 'two')
        self.check_guest_keeps_its_devices(region, instance, self.two)

    def test_at_the_source_when_it_has_come_back(self):
        region = self.region(devices=1)
        instance, migration, context = self.moved_live(region)
        region.audit()
        back = region.live_migrate(instance, 'one', pmem=1)
        region.audit()
        instance.migration_context = context
        silences: list[Any] = [region.migrations, None, []]
        for self.one.service.moves in silences:
            self.one.manager.update_usage(None, instance, 'one')
        self.one.service.moves = region.migrations
        self.assertEqual(('completed', 'completed'), (migration.status, back.status))
        self.check_guest_keeps_its_devices(region, instance, self.one)

    def test_a_live_migration_that_is_completed_is_not_rolled_back(self):
        region = self.region(devices=2)
        instance, migration, _context = self.moved_live(region)
        rows = region.rows(instance)
        for stale in ('running', 'completed'):              # the caller's object may be of before
            late = type(migration)(**vars(migration))
            late.status = stale
            error = self.assertRaises(exception.BadRequest, self.two.manager.drop_move_claim_at_dest, None, instance,
                                      late)
            self.assertIn(migration.uuid, str(error))
        self.assertEqual(rows, region.rows(instance))
        self.assertEqual('host two', f'host {instance.host}')
        region.audit()
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['two'])


    def test_a_revert_needs_no_answer_of_the_service(self):
        silences: list[Any] = [None, RuntimeError('no database'), []]
        for said in silences:
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=1)
            migration = region.resize(instance, 'two', pmem=1)
            self.two.machine.delete_guest(instance.uuid)
            self.two.service.moves = said
            self.two.manager.drop_move_claim_at_dest(None, instance, migration)
            self.assertEqual([], region.rows(instance)['two'])


class GoneTestCase(test_moving.RegionTestCase):
    """The instance object names no device that it has no more."""

    def test_after_an_abort(self):
        region = self.region(devices=2)
        instance = Instance()
        claim = self.one.manager.instance_claim(None, instance, 'one', fixtures.a_request(pmem=1))
        self.assertEqual(1, len(instance.resources))
        claim.abort()
        self.assertIsNone(instance.resources)
        self.assertEqual([], self.one.records(instance))
        self.assertEqual([], region.audit())

    def test_after_a_release(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        self.one.machine.delete_guest(instance.uuid)
        self.one.manager.release(None, instance)
        self.assertIsNone(instance.resources)
        self.one.manager.abort_instance_claim(None, instance)
        self.assertIsNone(instance.resources)

    def test_an_abort_of_a_move_leaves_what_the_instance_had(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        before = instance.resources
        claim = self.two.manager.resize_claim(None, instance, 'two', fixtures.a_request(pmem=1),
                                              region.migration(instance, 'two'))
        claim.abort()
        self.assertIs(before, instance.resources)
        self.assertIsNone(instance.migration_context)


class ElsewhereTestCase(test_moving.RegionTestCase):
    """An instance that lives elsewhere, though no migration took it there, leaves nothing here."""

    def gone_without_a_word(self, region: Any) -> Any:
        """An instance of the first host that was shelved while its manager was away, and then started on the other."""
        instance = region.spawn('one', pmem=1)
        self.one.machine.write(D0, b'secret')
        self.one.machine.delete_guest(instance.uuid)
        self.two.spawn(instance, pmem=1)
        instance.host = 'two'
        return instance

    def test_its_devices_go_back(self):
        for restarted in (False, True):
            region = self.region(devices=2)
            instance = self.gone_without_a_word(region)
            if restarted:
                self.one.restart()
            self.one.audit()
            self.assertEqual(({'one': [], 'two': [('d0', 'current', 'active')]}, FREE, b''),
                             (region.rows(instance), self.one.states()['d0'], self.one.machine.read(D0)))
            self.assertEqual([], region.audit())
            self.one.spawn(Instance(), pmem=2)

    def test_so_do_those_of_one_that_moved_before_and_came_back_or_never_left(self):
        def one_host(region: Any, instance: Any) -> None:
            region.confirm(instance, region.resize(instance, 'one', pmem=1))

        def reverted(region: Any, instance: Any) -> None:
            region.revert(instance, region.resize(instance, 'two', pmem=1))

        def rolled_back(region: Any, instance: Any) -> None:
            migration = region.live_migration(instance, 'two', pmem=1)
            self.two.machine.delete_guest(instance.uuid)
            self.two.manager.drop_move_claim_at_dest(None, instance, migration)
            migration.status = 'failed'

        for moves in (one_host, reverted, rolled_back):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=1)
            moves(region, instance)
            region.audit()
            self.assertEqual('one', instance.host)
            self.one.machine.delete_guest(instance.uuid)
            instance.resources = None
            self.two.spawn(instance, pmem=1)
            instance.host = 'two'
            self.one.audit()
            self.assertEqual([], region.rows(instance)['one'], str(moves))
            self.assertEqual([], region.audit())

    def test_what_a_crash_left_claimed_goes_back_too(self):
        region = self.region(devices=2)
        instance = Instance()
        region.instances.append(instance)
        self.one.claim(instance, pmem=1)
        instance.host = 'two'
        self.one.audit()
        self.assertEqual(1, len(region.rows(instance)['one']))          # its claim may just be under way
        self.one.restart()
        self.one.audit()
        self.assertEqual(0, len(region.rows(instance)['one']))

    def test_both_looks_have_to_show_it(self):
        region = self.region(devices=2)
        instance = self.gone_without_a_word(region)
        here = {instance.uuid: 'here'}
        asked = iter((here, None))
        self.patch(self.one.service, 'instances', lambda _uuids: next(asked))
        self.one.audit()
        self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'])

    def test_not_while_anything_says_otherwise(self):
        def unknown_domain(region: Any, _instance: Any) -> None:
            self.one.machine.unknown_domains['x'] = 'torn'

        def domain(region: Any, instance: Any) -> None:
            self.one.machine.start_guest(instance.uuid, [])

        def another_names_it(region: Any, _instance: Any) -> None:
            self.one.machine.start_guest(Instance().uuid, ['<device kind="vpmem" address="/dev/fakedax0"/>'])

        def migrates_back(region: Any, instance: Any) -> None:
            region.migration(instance, 'one')

        def unknown_migrations(region: Any, _instance: Any) -> None:
            self.one.service.moves = None

        for happens in (unknown_domain, domain, another_names_it, migrates_back, unknown_migrations):
            region = self.region(devices=2)
            instance = self.gone_without_a_word(region)
            happens(region, instance)
            for _ in range(2):
                self.one.audit()
            self.assertEqual([('d0', 'current', 'active')], region.rows(instance)['one'], str(happens))


class LostRollbackTestCase(test_moving.RegionTestCase):

    def test_an_instance_that_was_offloaded_before_the_audit_leaves_nothing_where_it_was_to_go(self):
        for status in ('failed', 'cancelled', 'error'):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=1)
            migration = region.live_migration(instance, 'two', pmem=1)
            self.two.machine.delete_guest(instance.uuid)
            migration.status = status                   # and the call that would roll back is lost
            region.delete(instance)
            instance.state = 'offloaded'
            self.two.audit()
            self.assertEqual((NOTHING, {'d0': FREE, 'd1': FREE}), (region.rows(instance), self.two.states()))
            self.assertEqual([], region.audit())

    def test_a_claim_by_which_it_may_come_back_stays(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        region.delete(instance)
        instance.state = 'offloaded'
        claim = self.two.claim(instance, pmem=1)
        self.two.audit()
        self.assertEqual([('d0', 'current', 'claimed')], region.rows(instance)['two'])
        claim.abort()


class ForgottenContextTestCase(test_moving.RegionTestCase):

    def test_the_last_device_of_a_move_that_is_forgotten_takes_its_context_with_it(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'one', pmem=1)
        domain = self.one.machine.domains[instance.uuid]
        on_new, domain.live = domain.live, ('/dev/fakedax0',)       # its guest has not left the old device yet
        migration.status = 'confirmed'
        self.one.audit()
        self.assertEqual([('d0', 'old', 'active'), ('d1', 'current', 'active')], region.rows(instance)['one'])
        domain.live = on_new
        self.one.machine.remove(D0)
        self.one.running.repairs.forget(D0, instance.uuid)
        self.assertEqual([], self.one.store.contexts(self.one.manager.state().host_uuid))

    def test_so_does_that_of_a_machine_that_is_gone(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        region.resize(instance, 'two', pmem=2)
        store = self.two.store.store
        [host] = [one._replace(machine_id='of another machine') for one in store.hosts() if one.name == 'two']
        for name in ('d0', 'd1'):
            self.assertEqual(1, len(store.contexts(host.uuid)))
            repairs.forget_of_machine(store, host, 'of this one', DeviceKey(fake.VPMEM, name), instance.uuid)
        self.assertEqual([], store.contexts(host.uuid))


class ReleaseByAnOperatorTestCase(test_moving.RegionTestCase):

    def release(self, instance: Any) -> Any:
        return self.one.running.repairs.release(instance.uuid)

    def test_gives_back_what_the_service_forgot(self):
        region = self.region(devices=2)
        instance = region.spawn('one', pmem=1)
        self.one.machine.write(D0, b'secret')
        self.one.machine.delete_guest(instance.uuid)
        region.instances.remove(instance)
        self.one.audit()
        self.assertEqual(1, len(region.rows(instance)['one']))
        self.assertEqual([D0], [record.key for record in self.release(instance)])
        self.assertEqual((NOTHING, FREE, b''),
                         (region.rows(instance), self.one.states()['d0'], self.one.machine.read(D0)))

    def test_of_an_instance_that_the_service_lost_with_its_migration(self):
        """It moved to another database of the service, and the confirmation could not be recorded here."""
        region = self.region(devices=1)
        instance = region.spawn('one', pmem=1)
        migration = region.resize(instance, 'two', pmem=1)
        region.audit()
        self.assertEqual([('d0', 'old', 'active')], region.rows(instance)['one'])
        self.one.machine.delete_guest(instance.uuid)
        region.instances.remove(instance)
        region.migrations.remove(migration)
        for self.one.service.moves in (None, region.migrations):
            lost = [finding for finding in self.one.audit() if finding.kind == 'stale migration']
            self.assertEqual(self.one.service.moves is not None, bool(lost))
            if not lost:
                self.assertRaises(exception.RowStays, self.release, instance)
        self.assertIn('instance release', lost[0].proposal)
        self.release(instance)
        self.assertEqual([], region.rows(instance)['one'])

    def test_is_refused_with_the_reason(self):
        def nothing(region: Any, instance: Any) -> None:
            self.one.machine.delete_guest(instance.uuid)

        def another_names_it(region: Any, instance: Any) -> None:
            self.one.machine.delete_guest(instance.uuid)
            self.one.machine.start_guest(Instance().uuid, ['<device kind="vpmem" address="/dev/fakedax0"/>'])

        def unknown(region: Any, instance: Any) -> None:
            self.one.machine.unknown_domains['x'] = 'torn'

        def moves(region: Any, instance: Any) -> None:
            region.instances.remove(instance)
            self.one.manager.resize_claim(None, instance, 'one', fixtures.a_request(pmem=1),
                                          migration=region.migration(instance, 'one'))
            self.one.machine.delete_guest(instance.uuid)

        for happens, reason in ((lambda *_: None, 'it has a domain here'), (nothing, 'says that it lives here'),
                                (another_names_it, 'names vpmem/d0'), (unknown, 'x cannot be read'),
                                (moves, 'it is moving')):
            region = self.region(devices=2)
            instance = region.spawn('one', pmem=1)
            happens(region, instance)
            rows = region.rows(instance)
            error = self.assertRaises(exception.RowStays, self.release, instance)
            self.assertIn(reason, str(error))
            self.assertEqual(rows, region.rows(instance))

    def test_of_an_instance_that_holds_nothing(self):
        self.region(devices=1)
        error = self.assertRaises(exception.RowStays, self.release, Instance())
        self.assertIn('it has no devices on host one', str(error))
