"""The compute service of ``examples/two_hosts`` finishes after a start what was interrupted."""

from __future__ import annotations

from typing import Any
from unittest import mock
import uuid

import devicetrack
from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.testing import fake
from devicetrack.tests.functional.examples import two_hosts


class TestMoveThatWasInterrupted(two_hosts.InterruptedTestCase):
    """A resize to another host."""

    def test_before_the_guest_starts_at_the_destination(self) -> None:
        self.hand_over()
        self.kill_before(self.two.machine, 'start_guest', self.two.finish_resize, self.migration)
        self.restart('two')
        self.check('finished', 'two', {'one': ['old'], 'two': ['current'] * 2})

    def test_before_it_is_recorded_that_the_guest_runs_at_the_destination(self) -> None:
        self.hand_over()
        self.kill_before(self.two.manager, 'started', self.two.finish_resize, self.migration)
        self.restart('two')
        self.check('finished', 'two', {'one': ['old'], 'two': ['current'] * 2})

    def test_before_the_result_of_the_resize_is_saved(self) -> None:
        self.hand_over()
        self.kill_before(self.database, 'save', self.two.finish_resize, self.migration)
        self.restart('two')
        self.check('finished', 'two', {'one': ['old'], 'two': ['current'] * 2})

    def test_a_revert_at_either_end(self) -> None:
        for name in self.hosts:
            self.hand_over()
            self.finish()
            self.kill_before(self.two.manager, 'drop_move_claim_at_dest', self.two.revert_resize, self.migration)
            self.restart(name)
            self.check('reverted', 'one', {'one': ['current'], 'two': []})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two')

    def test_a_revert_whose_guest_runs_at_the_source(self) -> None:
        self.hand_over()
        self.finish()
        self.two.revert_resize(self.instance.uuid, self.migration)
        self.kill_before(self.database, 'save', self.one.finish_revert_resize, self.migration)
        self.restart('one')
        self.check('reverted', 'one', {'one': ['current'], 'two': []})

    def test_a_claim_at_the_destination(self) -> None:
        self.database.save(self.migration)
        request = devicetrack.DeviceRequest.from_extra_specs(self.large.extra_specs)
        self.two.manager.resize_claim(None, self.database.instance(self.instance.uuid), 'two', request, self.migration,
                                      self.large)
        self.restart('one')
        self.assertEqual({'one': ['current'], 'two': ['incoming'] * 2}, self.roles())
        self.restart('two')
        self.check('error', 'one', {'one': ['current'], 'two': []})

    def test_before_the_instance_is_handed_over(self) -> None:
        for calls in (1, 2):
            self.two.prep_resize(self.instance.uuid, self.migration, self.large)
            self.kill_before(self.database, 'save', self.one.resize_instance, self.migration, calls=calls)
            self.restart('two')
            self.assertEqual({'one': ['old'], 'two': ['incoming'] * 2}, self.roles())
            self.restart('one')
            self.check('error', 'one', {'one': ['current'], 'two': []})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two')


class TestClaimOnOneHostThatWasNotSaved(two_hosts.InterruptedTestCase):
    """The guest runs on. It has not left its old device."""

    def test_the_new_device_goes_back(self) -> None:
        migration = self.names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'one')
        other = self.names['Flavor']('other', {'hw:pmem': '4GB'})
        self.kill_before(self.database, 'save', self.one.prep_resize, migration, other, calls=2)
        self.assertEqual({'one': ['old', 'incoming'], 'two': []}, self.roles())
        self.restart('one')
        self.check('error', 'one', {'one': ['current'], 'two': []})
        saved = self.database.instance(self.instance.uuid)
        for resources in (saved.resources, self.one.manager.resources_of(self.instance.uuid)):
            self.assertEqual(['d0'], [row.identifier for row in resources])


class TestResizeOnOneHost(two_hosts.InterruptedTestCase):
    """There is one guest, whose definition names the old devices or the new one."""

    def setUp(self) -> None:
        super().setUp()
        self.migration = self.names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'one')
        self.other = self.names['Flavor']('other', {'hw:pmem': '4GB'})
        self.one.prep_resize(self.instance.uuid, self.migration, self.other)

    def hand_over(self) -> None:
        self.one.resize_instance(self.instance.uuid, self.migration)

    def finish(self) -> None:
        self.hand_over()
        self.one.finish_resize(self.instance.uuid, self.migration)

    def named(self) -> list[str]:
        """The devices that the guest runs on."""
        return [use.identifier for use in self.one.machine.usage().uses if use.live]

    def check_it_has(self, device: str, flavor: str, status: str) -> None:
        self.check(status, 'one', {'one': ['current'], 'two': []})
        saved = self.database.instance(self.instance.uuid)
        self.assertEqual(([device], flavor, None), (self.named(), saved.flavor.name, saved.migration_context))
        self.assertEqual([device], [row.identifier for row in saved.resources])

    def test_to_confirm_it_leaves_the_guest(self) -> None:
        self.finish()
        self.one.confirm_resize(self.instance.uuid, self.migration)
        self.check_it_has('d1', 'other', 'confirmed')

    def test_to_revert_it_leaves_the_new_device_to_an_audit(self) -> None:
        self.finish()
        self.one.revert_resize(self.instance.uuid, self.migration)
        self.assertEqual({'d0': 'active', 'd1': 'releasing'}, {
            row.identifier: row.state for row in self.one.manager.resources_of(self.instance.uuid)})
        self.one.finish_revert_resize(self.instance.uuid, self.migration)
        self.check_it_has('d0', 'small', 'reverted')

    def test_one_that_does_not_start_is_reverted(self) -> None:
        self.hand_over()
        self.one.machine.before('realize', ZeroDivisionError(), times=1)
        self.assertRaises(ZeroDivisionError, self.one.finish_resize, self.instance.uuid, self.migration)
        self.one.revert_resize(self.instance.uuid, self.migration)
        self.one.finish_revert_resize(self.instance.uuid, self.migration)
        self.check_it_has('d0', 'small', 'reverted')

    def test_it_is_killed_before_the_instance_is_handed_over(self) -> None:
        for calls in (1, 2):
            self.kill_before(self.database, 'save', self.one.resize_instance, self.migration, calls=calls)
            self.restart('one')
            self.check('error', 'one', {'one': ['current'], 'two': []})
            self.assertEqual(['d0'], self.named())
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'one')
            self.one.prep_resize(self.instance.uuid, self.migration, self.other)

    def test_it_is_killed_before_the_end(self) -> None:
        self.hand_over()
        for thing, name in ((self.one.machine, 'start_guest'), (None, 'started'), (self.database, 'save')):
            self.migration.status = 'post-migrating'
            self.kill_before(thing or self.one.manager, name, self.one.finish_resize, self.migration)
            self.one.manager.close()
            self.one.start()
        self.restart('one')
        saved = self.database.instance(self.instance.uuid)
        self.assertEqual(('finished', 'other', ['d1']), (
            self.database.migrations()[-1].status, saved.flavor.name, [row.identifier for row in saved.resources]))
        self.assertEqual((['d1'], {'one': ['old', 'current'], 'two': []}, []),
                         (self.named(), self.roles(), self.audit()))

    def test_it_is_killed_amid_a_confirmation(self) -> None:
        self.finish()
        self.kill_before(self.one.manager, 'drop_move_claim_at_source', self.one.confirm_resize, self.migration)
        self.restart('one')
        self.check('confirmed', 'one', {'one': ['current'], 'two': []})
        self.assertEqual(['d1'], self.named())

    def test_it_is_killed_amid_a_revert(self) -> None:
        steps = [(self.one.revert_resize, None, 'drop_move_claim_at_dest', 1),
                 (self.one.revert_resize, self.database, 'save', 2),
                 (self.one.finish_revert_resize, self.one.machine, 'start_guest', 1),
                 (self.one.finish_revert_resize, self.database, 'save', 1)]
        for number, (step, thing, name, calls) in enumerate(steps, 2):
            self.finish()
            if step == self.one.finish_revert_resize:
                self.one.revert_resize(self.instance.uuid, self.migration)
            self.kill_before(thing or self.one.manager, name, step, self.migration, calls=calls)
            self.restart('one')
            self.check_it_has('d0', 'small', 'reverted')
            self.migration = self.names['Migration'](str(uuid.uuid4()), number, self.instance.uuid, 'one', 'one')
            self.one.prep_resize(self.instance.uuid, self.migration, self.other)


class TestConfirmationThatWasInterrupted(two_hosts.InterruptedTestCase):
    """Host one is killed after it was decided that the resize to host two is over."""

    def setUp(self) -> None:
        super().setUp()
        self.hand_over()
        self.finish()

    def test_while_the_guest_is_defined_at_the_source(self) -> None:
        self.kill_before(self.one.machine, 'delete_guest', self.one.confirm_resize, self.migration)
        self.audit()
        self.assertEqual([], self.audit())
        self.assertEqual('none', self.one.guest_state(self.instance.uuid))
        self.restart('one')
        self.check('confirmed', 'two', {'one': [], 'two': ['current'] * 2})

    def test_before_the_devices_go_back(self) -> None:
        self.kill_before(self.one.manager, 'drop_move_claim_at_source', self.one.confirm_resize, self.migration)
        self.restart('one')
        self.check('confirmed', 'two', {'one': [], 'two': ['current'] * 2})

    def test_a_guest_that_came_back_is_left_alone(self) -> None:
        self.one.confirm_resize(self.instance.uuid, self.migration)
        back = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'two', 'one')
        self.one.prep_resize(self.instance.uuid, back, self.large)
        self.two.resize_instance(self.instance.uuid, back)
        self.one.finish_resize(self.instance.uuid, back)
        self.restart('one')
        self.check_guests()
        self.assertTrue(self.runs('one'))


class TestDeleteThatWasInterrupted(two_hosts.InterruptedTestCase):

    def check_deleted(self) -> None:
        saved = self.database.instance(self.instance.uuid)
        self.assertEqual((True, True), (saved.deleting, saved.deleted))
        self.assertEqual('none', self.one.guest_state(self.instance.uuid))
        self.one.manager.wait_for_wipes()
        self.assertEqual(({'one': [], 'two': []}, []), (self.roles(), self.audit()))

    def test_it_is_finished_after_a_start(self) -> None:
        for thing, name, calls in ((self.one.machine, 'delete_guest', 1), (None, 'release', 1),
                                   (self.database, 'save', 2)):
            self.kill_before(thing or self.one.manager, name, self.one.delete, calls=calls)
            self.assertFalse(self.database.instance(self.instance.uuid).deleted)
            self.restart('one')
            self.check_deleted()
            self.instance = self.names['Instance'](str(uuid.uuid4()), self.small)
            self.one.boot(self.instance)

    def test_the_next_start_does_not_alarm_anybody(self) -> None:
        self.kill_before(self.one.manager, 'release', self.one.delete)
        self.one.manager.close()
        self.assertEqual([], self.one.manager.init_host(None))
        self.one.manager.wait_for_wipes()
        self.assertEqual({'one': [], 'two': []}, self.roles())

    def test_its_guest_is_not_started_while_the_delete_fails(self) -> None:
        self.kill_before(self.one.manager, 'release', self.one.delete)
        with mock.patch.object(self.one.machine, 'delete_guest', autospec=True, side_effect=ZeroDivisionError):
            self.restart('one')
        self.assertFalse(self.runs('one'))
        self.restart('one')
        self.check_deleted()


class TestBootThatWasInterrupted(two_hosts.InterruptedTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.instance = self.names['Instance'](str(uuid.uuid4()), self.small)

    def boot(self, _instance_uuid: str) -> None:
        self.one.boot(self.instance)

    def test_before_it_was_saved(self) -> None:
        self.kill_before(self.database, 'save', self.boot)
        self.assertEqual({'one': ['current'], 'two': []}, self.roles())
        self.restart('one')
        self.assertEqual(({'one': [], 'two': []}, []), (self.roles(), self.audit()))

    def test_before_its_guest_starts(self) -> None:
        self.kill_before(self.one.machine, 'start_guest', self.boot)
        self.restart('one')
        self.assertEqual(({'one': ['current'], 'two': []}, []), (self.roles(), self.audit()))
        self.assertTrue(self.runs('one'))


class TestEvacuationThatWasInterrupted(two_hosts.InterruptedTestCase):
    """The source is back while the destination, which was killed, has not started again."""

    def setUp(self) -> None:
        super().setUp()
        self.migration = self.names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two', 'evacuation')
        self.one.manager.close()
        self.one.machine.reboot()

    def come_back(self) -> None:
        """Start the source, then the destination."""
        self.restart('one')
        self.check_guests()
        self.assertFalse(self.runs('one'))
        self.restart('two')

    def test_before_the_guest_starts_at_the_destination(self) -> None:
        self.kill_before(self.two.machine, 'start_guest', self.two.evacuate, self.migration)
        self.come_back()
        self.check('done', 'two', {'one': [], 'two': ['current']})

    def check_finished(self) -> None:
        self.come_back()
        self.check('done', 'two', {'one': [], 'two': ['current']})

    def test_before_it_is_recorded_that_the_guest_runs_at_the_destination(self) -> None:
        self.kill_before(self.two.manager, 'started', self.two.evacuate, self.migration)
        self.check_finished()

    def test_an_instance_without_devices(self) -> None:
        self.instance = self.names['Instance'](str(uuid.uuid4()), self.names['Flavor']('tiny', {}), 'one')
        self.database.save(self.instance)
        self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two', 'evacuation')
        self.kill_before(self.two.machine, 'start_guest', self.two.evacuate, self.migration)
        self.come_back()
        self.assertEqual(('done', True), (self.database.migrations()[-1].status, self.runs('two')))

    def test_before_the_evacuation_ends(self) -> None:
        self.kill_before(self.two.manager, 'finish_evacuation', self.two.evacuate, self.migration)
        self.check_finished()

    def test_before_the_result_of_the_evacuation_is_saved(self) -> None:
        self.kill_before(self.database, 'save', self.two.evacuate, self.migration, calls=3)
        self.check_finished()

    def test_a_claim_that_was_not_saved(self) -> None:
        self.kill_before(self.database, 'save', self.two.evacuate, self.migration, calls=2)
        self.come_back()
        self.assertEqual('error', self.database.migrations()[-1].status)
        self.restart('one')
        self.check('error', 'one', {'one': ['current'], 'two': []})

    def test_before_it_is_saved_that_the_guest_did_not_start(self) -> None:
        self.two.machine.before('realize', ZeroDivisionError(), times=1)
        with mock.patch.object(self.two, 'guest_state', autospec=True, side_effect=two_hosts.Killed()):
            self.assertRaises(two_hosts.Killed, self.two.evacuate, self.instance.uuid, self.migration)
        self.come_back()
        self.restart('one')
        self.check('error', 'one', {'one': ['current'], 'two': []})

    def test_a_guest_that_does_not_start_leaves_the_instance_to_its_host(self) -> None:
        self.two.machine.before('realize', ZeroDivisionError(), times=1)
        self.assertRaises(ZeroDivisionError, self.two.evacuate, self.instance.uuid, self.migration)
        self.restart('one')
        self.check('error', 'one', {'one': ['current'], 'two': []})

    def test_a_start_that_could_not_be_recorded_is_no_failure(self) -> None:
        real = self.two.manager.started

        def started(*arguments: Any) -> Any:
            with mock.patch.object(self.two.manager._ready().store, 'check_epoch', autospec=True,
                                   side_effect=exception.StoreUnavailable('store', 'gone')):
                return real(*arguments)

        with mock.patch.object(self.two.manager, 'started', started):
            self.assertRaises(exception.StoreUnavailable, self.two.evacuate, self.instance.uuid, self.migration)
        self.check_finished()


class TestDeletedAfterAConfirmationThatWasInterrupted(two_hosts.InterruptedTestCase):

    def test_the_source_keeps_neither_the_guest_nor_its_device(self) -> None:
        self.hand_over()
        self.finish()
        self.kill_before(self.one.machine, 'delete_guest', self.one.confirm_resize, self.migration)
        self.two.delete(self.instance.uuid)
        self.restart('one')
        self.audit()
        self.one.manager.wait_for_wipes()
        self.assertEqual(({'one': [], 'two': []}, [], 'none'),
                         (self.roles(), self.audit(), self.one.guest_state(self.instance.uuid)))


class TestComesBackAfterAnEvacuation(two_hosts.InterruptedTestCase):

    def test_a_migration_back_that_fails_leaves_the_old_guest_to_be_removed(self) -> None:
        self.one.manager.close()
        self.two.evacuate(self.instance.uuid, self.names['Migration'](
            str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two', 'evacuation'))
        self.database.save(self.names['Migration'](
            str(uuid.uuid4()), 2, self.instance.uuid, 'two', 'one', status='error'))
        # The guest ran on while nobody reached its host.
        self.one.machine.stop_guest(self.instance.uuid)
        self.restart('one')
        self.one.manager.wait_for_wipes()
        self.assertEqual({'one': [], 'two': ['current']}, self.roles())

    def test_what_it_leaves_by_a_later_resize_is_there_for_the_revert(self) -> None:
        self.one.manager.close()
        self.one.machine.reboot()
        self.two.evacuate(self.instance.uuid, self.names['Migration'](
            str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two', 'evacuation'))
        self.restart('one')
        back = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'two', 'one')
        self.one.prep_resize(self.instance.uuid, back, self.small)
        self.two.resize_instance(self.instance.uuid, back)
        self.one.finish_resize(self.instance.uuid, back)
        self.two.confirm_resize(self.instance.uuid, back)
        self.restart('one')
        self.migration = self.names['Migration'](str(uuid.uuid4()), 3, self.instance.uuid, 'one', 'two')
        self.hand_over()
        self.finish()
        for _ in range(2):
            self.audit()
            self.restart('one')
            self.assertEqual({'one': ['old'], 'two': ['current'] * 2}, self.roles())
        self.two.revert_resize(self.instance.uuid, self.migration)
        self.finish_revert()
        self.audit()
        self.check_reverted()


class TestLiveMigrationThatWasInterrupted(two_hosts.InterruptedTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.migration = self.names['Migration'](str(uuid.uuid4()), 1, self.instance.uuid, 'one', 'two',
                                                 'live-migration')

    def migrate(self, instance_uuid: str) -> None:
        self.one.live_migrate(instance_uuid, self.migration, self.hosts.__getitem__)

    def test_before_the_copy(self) -> None:
        for calls in (2, 3):                    # before it is saved that the destination is ready, that the copy begins
            self.kill_before(self.database, 'save', self.migrate, calls=calls)
            self.restart('two')
            self.restart('one')
            self.check('error', 'one', {'one': ['current'], 'two': []})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two',
                                                     'live-migration')

    def test_a_guest_that_did_not_leave(self) -> None:
        for name in self.hosts:
            self.kill_before(self.one, '_copy', self.migrate)
            self.restart(name)
            self.check('failed', 'one', {'one': ['current'], 'two': []})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'one', 'two',
                                                     'live-migration')

    def test_a_guest_that_arrived(self) -> None:
        for name, other in (('one', 'two'), ('two', 'one')):
            self.kill_before(self.one, 'finish_live_migration', self.migrate)
            self.one.machine.reboot()           # the source has no guest to start, whatever the database says
            self.assertFalse(self.runs('one'))
            self.restart(name)
            self.check('completed', 'two', {'one': [], 'two': ['current']})
            self.restart(other)
            self.check('completed', 'two', {'one': [], 'two': ['current']})
            self.migration = self.names['Migration'](str(uuid.uuid4()), 2, self.instance.uuid, 'two', 'one',
                                                     'live-migration')
            self.two.live_migrate(self.instance.uuid, self.migration, self.hosts.__getitem__)
            self.audit()
            self.migration = self.names['Migration'](str(uuid.uuid4()), 3, self.instance.uuid, 'one', 'two',
                                                     'live-migration')

    def test_the_next_start_of_a_source_that_has_no_guest_any_more_alarms_nobody(self) -> None:
        self.kill_before(self.one, 'finish_live_migration', self.migrate)
        self.one.manager.close()
        self.assertEqual([(findings.NO_GUESTS, vocabulary.NOTE)],
                         [(finding.kind, finding.severity) for finding in self.one.manager.init_host(None)])
        self.restart('one')
        self.check('completed', 'two', {'one': [], 'two': ['current']})

    def test_the_source_starts_no_guest_while_the_destination_does_not_answer(self) -> None:
        self.kill_before(self.one, 'finish_live_migration', self.migrate)
        self.two.machine.disconnected = 'gone'
        self.restart('one')
        self.two.machine.disconnected = None
        self.check_guests()
        self.assertFalse(self.runs('one'))
        self.restart('one')
        self.check('completed', 'two', {'one': [], 'two': ['current']})

    def wait_at_destination(self) -> None:
        """The guest waits at the destination, and runs at the source."""
        self.kill_before(fake.FakeHost.named('two'), 'arrived', self.migrate)
        self.assertEqual(['runs', 'waits'], [host.guest_state(self.instance.uuid) for host in self.hosts.values()])

    def test_a_guest_that_waits_is_left_alone_while_it_is_copied(self) -> None:
        self.wait_at_destination()
        with mock.patch.object(self.one, 'is_copying', autospec=True, return_value=True):
            self.restart('one')
            self.restart('two')
        self.assertEqual(['runs', 'waits'], [host.guest_state(self.instance.uuid) for host in self.hosts.values()])
        self.assertEqual('running', self.database.migrations()[-1].status)

    def test_a_guest_that_waits_for_a_copy_that_ended_is_removed(self) -> None:
        self.wait_at_destination()
        self.restart('two')
        self.check('failed', 'one', {'one': ['current'], 'two': []})

    def test_a_guest_that_waits_is_all_that_is_left_of_it(self) -> None:
        self.wait_at_destination()
        self.one.machine.delete_guest(self.instance.uuid)
        self.restart('one')
        self.assertEqual(['none', 'waits'], [host.guest_state(self.instance.uuid) for host in self.hosts.values()])
