"""Moves to another host that ended with the source's compute service: nothing of them may stay."""

from __future__ import annotations

from typing import Any
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from nova.objects import fields
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
import oslo_messaging

from devicetrack import exception
from devicetrack.claims import manager
from devicetrack.nova import binding
from devicetrack.nova import interrupted
from devicetrack.tests.nova.stock_failures import base


class InterruptedMoveTestCase(base.PmemGuests):

    def setUp(self) -> None:
        super().setUp()
        for host in ('host1', 'host2'):
            self.start(host, 'ns_1', 'ns_2', 'ns_3')
        self.server = self.boot('host1', self.flavor_of(1))
        self.write('host1', self.server)
        self.had = self.allocations(self.server['id'])
        # The message that the source's service died of.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.rpcapi.ComputeAPI.resize_instance', lambda *_args, **_kwargs: None))
        self.api.post_server_action(self.server['id'], {'resize': {'flavorRef': self.flavor_of(2)}})
        self._wait_for_migration_status(self.server, ['pre-migrating'])
        self.number = self.instance(self.server).migration_context.migration_id

    @property
    def migration(self) -> Any:
        return objects.Migration.get_by_id(nova_context.get_admin_context(), self.number)

    def allocations(self, consumer: str) -> dict[str, Any]:
        return {provider: found['resources']
                for provider, found in self._get_allocations_by_server_uuid(consumer).items()}

    def die(self, status: str, task: str, kind: str = fields.MigrationType.RESIZE) -> None:
        """The source's service dies when it has come so far, and starts again."""
        instance = self.instance(self.server)
        instance.task_state = task
        instance.save()
        migration = self.migration
        migration.status, migration.migration_type = status, kind
        migration.save()
        self.restart('host1')

    def held(self, host: str) -> list[Any]:
        return list(self.computes[host].driver.devicetrack.manager.assignments(self.server['id']))

    def assert_taken_back(self, status: str = 'error') -> None:
        self.assertEqual(status, self.migration.status)
        self.assertEqual(self.had, self.allocations(self.server['id']))
        self.assertEqual({}, self.allocations(self.migration.uuid))
        self.assertIsNone(self.instance(self.server).migration_context)
        self.assertTrue(self.wait_for(lambda: not self.held('host2')), self.held('host2'))
        [kept] = self.held('host1')
        self.assertEqual({kept.identifier}, self.namespaces('host1', self.server))
        self.assertTrue(self.has_its_bytes('host1', self.server))

    def test_a_resize_that_the_source_worked_on(self) -> None:
        self.die('migrating', task_states.RESIZE_MIGRATING)
        self.assert_taken_back()

    def test_what_a_resize_from_another_cell_claimed_goes_back_when_nova_forgets_it(self) -> None:
        """Nova has a hidden copy of the instance in the destination's cell, and removes it there after a failure."""
        instance = self.instance(self.server)
        instance.hidden = True
        instance.save()
        self.audit()
        self.audit()
        self.assertEqual(2, len(self.held('host2')))
        migration = self.migration.uuid
        instance.destroy(hard_delete=True)
        self.assertRaises(nova_exception.MigrationNotFound, objects.Migration.get_by_uuid,
                          nova_context.get_admin_context(), migration)
        self.assertTrue(self.wait_for(lambda: not self.held('host2')), self.held('host2'))

    def test_a_live_migration_that_was_prepared(self) -> None:
        self.die('preparing', task_states.MIGRATING, fields.MigrationType.LIVE_MIGRATION)
        self.assert_taken_back()

    def test_a_live_migration_that_waited_for_others(self) -> None:
        self.die('queued', task_states.MIGRATING, fields.MigrationType.LIVE_MIGRATION)
        self.assert_taken_back()

    def test_a_live_migration_that_nova_cancelled_when_its_service_stopped(self) -> None:
        self.die('cancelled', task_states.MIGRATING, fields.MigrationType.LIVE_MIGRATION)
        self.assert_taken_back('cancelled')

    def test_a_live_migration_whose_guest_may_have_left_keeps_its_allocations(self) -> None:
        domain = self.fake('host1').lookupByUUIDString(self.server['id'])
        domain.destroy()
        domain.undefine()
        consumers = self.server['id'], self.migration.uuid
        before = [self.allocations(consumer) for consumer in consumers]
        starts: list[Any] = []
        self.after('_create_guest', starts.append)
        self.flags(resume_guests_state_on_host_boot=True)
        self.die('running', task_states.MIGRATING, fields.MigrationType.LIVE_MIGRATION)
        self.assertEqual(before, [self.allocations(consumer) for consumer in consumers])
        self.assertEqual([], starts)
        [said] = {line for line in self.stdlog.logger.output.splitlines() if 'must not start' in line}
        self.assertIn('host host2', said)

    def test_a_live_migration_is_left_alone_while_libvirt_says_nothing(self) -> None:
        with mock.patch.object(manager.ClaimManager, 'usage', autospec=True,
                               side_effect=exception.HypervisorUnreachable('qemu:///system', 'gone')):
            self.die('queued', task_states.MIGRATING, fields.MigrationType.LIVE_MIGRATION)
        self.assertEqual('queued', self.migration.status)
        self.restart('host1')
        self.assert_taken_back()

    def test_a_live_migration_that_nova_set_to_error(self) -> None:
        self.die('running', task_states.MIGRATING, fields.MigrationType.LIVE_MIGRATION)
        self.assert_taken_back()

    def test_a_resize_whose_message_may_still_come_goes_on(self) -> None:
        self.die('pre-migrating', task_states.RESIZE_PREP)
        self.assertEqual('pre-migrating', self.migration.status)
        self.assertNotEqual({}, self.allocations(self.migration.uuid))

    def test_a_placement_that_does_not_answer_is_asked_again_at_the_next_start(self) -> None:
        client = report.SchedulerReportClient
        unread = nova_exception.ConsumerAllocationRetrievalFailed(consumer_uuid='a', error='503')
        for fault in (mock.patch.object(client, 'get_allocs_for_consumer', autospec=True, side_effect=unread),
                      mock.patch.object(client, 'post', autospec=True, side_effect=keystone.ConnectFailure('gone'))):
            with fault as asked:
                self.die('migrating', task_states.RESIZE_MIGRATING)
            asked.assert_called()
            self.assertEqual('migrating', self.migration.status)
            self.assertIsNotNone(self.instance(self.server).migration_context)
        self.restart('host1')
        self.assert_taken_back()

    def test_what_cannot_be_ended_waits_for_the_next_start(self) -> None:
        with mock.patch.object(interrupted, '_end', autospec=True, side_effect=nova_exception.AllocationMoveFailed(
                source_consumer='a', target_consumer='b', error='no')):
            self.die('migrating', task_states.RESIZE_MIGRATING)
        self.assertEqual('migrating', self.migration.status)
        self.restart('host1')
        self.assert_taken_back()

    # -- later moves --------------------------------------------------------------------------------------------------

    def leave_open(self) -> None:
        """The source's service dies in the resize, and placement does not answer when it starts again."""
        with mock.patch.object(report.SchedulerReportClient, 'post', autospec=True,
                               side_effect=keystone.ConnectFailure('gone')):
            self.die('migrating', task_states.RESIZE_MIGRATING)
        self.assertEqual('migrating', self.migration.status)

    def move_later(self, status: str, **fields_of: Any) -> Any:
        """Another move of the instance, which has come so far."""
        later = objects.Migration(
            nova_context.get_admin_context(), **{
                'instance_uuid': self.server['id'], 'source_compute': 'host1', 'source_node': 'host1',
                'dest_compute': 'host2', 'dest_node': 'host2', 'dest_compute_id': self.migration.dest_compute_id,
                'migration_type': fields.MigrationType.LIVE_MIGRATION, 'status': status, **fields_of})
        later.create()
        return later

    def test_a_later_move_that_was_refused_does_not_keep_a_resize_open(self) -> None:
        self.leave_open()
        self.api.post_server_action(self.server['id'], {'os-migrateLive': {'host': 'host2', 'block_migration': 'auto'}},
                                    check_response_status=[202, 400, 409, 500])
        self._wait_for_server_parameter(self.server, {'OS-EXT-STS:task_state': None})
        self._wait_for_migration_status(self.server, ['error'])
        self.restart('host1')
        self.assert_taken_back()

    def test_a_later_move_that_was_interrupted_too_ends_first(self) -> None:
        self.leave_open()
        later = self.move_later('queued')
        client = report.report_client_singleton()
        self.assertTrue(client.move_allocations(nova_context.get_admin_context(), self.server['id'], later.uuid))
        self.restart('host1')
        self.assertEqual('error', objects.Migration.get_by_id(nova_context.get_admin_context(), later.id).status)
        self.assertEqual({}, self.allocations(later.uuid))
        self.assert_taken_back()

    def test_an_older_move_waits_until_the_later_one_has_ended(self) -> None:
        self.leave_open()
        self.undefine()
        later = self.move_later('error')
        client = report.report_client_singleton()
        self.assertTrue(client.move_allocations(nova_context.get_admin_context(), self.server['id'], later.uuid))
        [outcome] = interrupted.end(self.computes['host1'].driver.devicetrack.source(), client)
        self.assertIn(f'migration {later.uuid}: not ended: ', outcome.text)
        self.assertEqual('migrating', self.migration.status)
        self.assertEqual(self.had, self.allocations(self.migration.uuid))

    def test_a_later_move_that_goes_on_or_is_over_leaves_nothing_to_end(self) -> None:
        self.leave_open()
        later = self.move_later('running')
        for status in ('running', 'finished', 'confirmed', 'completed'):
            later.status = status
            later.save()
            self.assertEqual([], interrupted.end(
                self.computes['host1'].driver.devicetrack.source(), report.report_client_singleton()))
        later.status = 'reverted'
        later.save()
        self.restart('host1')
        self.assert_taken_back()

    # -- live migrations that Nova has ended --------------------------------------------------------------------------

    def end_live_migration(self, status: str) -> None:
        """Nova ends a live migration while placement does not answer, and its service runs on."""
        instance, migration = self.instance(self.server), self.migration
        instance.task_state = None
        instance.save()
        migration.status, migration.migration_type = status, fields.MigrationType.LIVE_MIGRATION
        migration.save()

    def undefine(self) -> None:
        domain = self.fake('host1').lookupByUUIDString(self.server['id'])
        domain.destroy()
        domain.undefine()

    def reboot(self) -> None:
        self.api.post_server_action(self.server['id'], {'reboot': {'type': 'HARD'}}, check_response_status=[202, 500])
        self._wait_for_server_parameter(self.server, {'OS-EXT-STS:task_state': None})

    def fail_to_reboot(self) -> None:
        """A hard reboot fails after Nova has undefined the guest."""
        with mock.patch('nova.virt.libvirt.driver.LibvirtDriver._create_guest_with_network', autospec=True,
                        side_effect=nova_exception.InternalError('no')):
            self.reboot()
        self.assertEqual({}, self.fake('host1')._vms)

    def assert_runs(self) -> None:
        self.assertEqual(1, self.fake('host1').lookupByUUIDString(self.server['id']).isActive())
        self.assertTrue(self.has_its_bytes('host1', self.server))

    def test_a_live_migration_that_nova_rolled_back_while_placement_was_away(self) -> None:
        self.end_live_migration('failed')
        self.restart('host1')
        self.assert_taken_back('failed')

    def test_an_audit_ends_what_is_left_of_a_live_migration(self) -> None:
        for status in ('failed', 'cancelled', 'error'):
            self.end_live_migration(status)
            self._run_periodics()
            self.assertEqual({}, self.allocations(self.migration.uuid))
            self.assertEqual(self.had, self.allocations(self.server['id']))
            client = report.report_client_singleton()
            self.assertTrue(client.move_allocations(nova_context.get_admin_context(), self.server['id'],
                                                    self.migration.uuid))
        self._run_periodics()
        self.assert_taken_back()

    def test_an_audit_leaves_a_live_migration_alone_that_goes_on_or_may_go_on(self) -> None:
        before = self.allocations(self.migration.uuid)
        for status in ('queued', 'preparing', 'running'):
            self.end_live_migration(status)
            self._run_periodics()
        self.end_live_migration('error')
        with mock.patch.object(fakelibvirt.Domain, 'jobInfo', autospec=True,
                               return_value=[fakelibvirt.VIR_DOMAIN_JOB_UNBOUNDED] + [0] * 11):
            self._run_periodics()
        instance = self.instance(self.server)
        instance.task_state = task_states.MIGRATING
        instance.save()
        self._run_periodics()
        self.assertEqual(before, self.allocations(self.migration.uuid))

    def test_an_audit_takes_nothing_from_an_operation_that_begins_meanwhile(self) -> None:
        self.end_live_migration('failed')
        before, get = self.allocations(self.migration.uuid), report.SchedulerReportClient.get_allocs_for_consumer

        def begin(client: Any, context: Any, consumer: str) -> Any:
            found = get(client, context, consumer)
            if consumer == self.server['id']:
                instance = self.instance(self.server)
                instance.task_state = task_states.MIGRATING
                instance.save()
            return found

        with mock.patch.object(report.SchedulerReportClient, 'get_allocs_for_consumer', begin):
            self._run_periodics()
        self.assertEqual(before, self.allocations(self.migration.uuid))

    def test_placement_refuses_it_what_another_program_has_changed(self) -> None:
        self.end_live_migration('failed')
        client, get = report.report_client_singleton(), objects.Instance.get_by_uuid
        before = self.allocations(self.migration.uuid)

        def change(context: Any, uuid: str, **kwargs: Any) -> Any:
            if kwargs == {'expected_attrs': []}:
                client.delete_allocation_for_instance(context, uuid, force=True)
            return get(context, uuid, **kwargs)

        with mock.patch.object(objects.Instance, 'get_by_uuid', change):
            [outcome] = interrupted.end(self.computes['host1'].driver.devicetrack.source(), client, in_audit=True)
        self.assertIn('not ended: ', outcome.text)
        self.assertEqual(before, self.allocations(self.migration.uuid))

    def test_a_guest_that_was_rolled_back_is_taken_back_without_a_domain(self) -> None:
        self.end_live_migration('failed')
        self.fail_to_reboot()
        self.restart('host1')
        self.assertEqual(self.had, self.allocations(self.server['id']))
        self.reboot()
        self.assert_runs()

    def test_a_guest_that_cannot_have_left_is_rebooted_without_a_domain(self) -> None:
        self.undefine()
        for status in ('queued', 'preparing', 'cancelled', 'failed'):
            self.end_live_migration(status)
            self.computes['host1'].driver.devicetrack.make_ready(self.instance(self.server))
        for status in ('running', 'post-migrating', 'error'):
            self.end_live_migration(status)
            self.assertRaises(nova_exception.InternalError, self.computes['host1'].driver.devicetrack.make_ready,
                              self.instance(self.server))

    def test_a_later_move_from_here_says_where_a_guest_is_only_if_it_is_over(self) -> None:
        self.end_live_migration('error')
        self.undefine()
        host, instance = self.computes['host1'].driver.devicetrack, self.instance(self.server)
        later = self.move_later('queued')
        for status in ('queued', 'failed', 'cancelled', 'error', 'reverted'):
            later.status = status
            later.save()
            self.assertRaises(nova_exception.InternalError, host.make_ready, instance)
        later.status = 'completed'
        later.save()
        host.make_ready(instance)

    def come_back(self, status: str) -> Any:
        """Another move, from the destination to here."""
        return self.move_later(status, source_compute='host2', source_node='host2', dest_compute='host1',
                               dest_node='host1')

    def test_one_from_another_host_says_that_the_guest_had_left_whatever_became_of_it(self) -> None:
        self.end_live_migration('error')
        self.undefine()
        host, instance = self.computes['host1'].driver.devicetrack, self.instance(self.server)
        self.assertRaises(nova_exception.InternalError, host.make_ready, instance)
        later = self.come_back('accepted')
        for status in ('accepted', 'finished', 'error', 'failed'):
            later.status = status
            later.save()
            host.make_ready(instance)

    def test_a_guest_that_came_back_keeps_the_allocations_that_it_came_with(self) -> None:
        self.end_live_migration('error')
        self.come_back('error')
        came_with = self.allocations(self.server['id'])
        self.assertNotEqual(came_with, self.allocations(self.migration.uuid))
        self.assertEqual(
            [(self.server['id'], f'migration {self.migration.uuid}: its allocations here are removed')],
            interrupted.end(self.computes['host1'].driver.devicetrack.source(), report.report_client_singleton()))
        self.assertEqual([came_with, {}], [self.allocations(one) for one in (self.server['id'], self.migration.uuid)])

    def test_a_guest_that_is_off_may_have_left_unless_its_state_is_saved_here(self) -> None:
        self.end_live_migration('error')
        host, instance = self.computes['host1'].driver.devicetrack, self.instance(self.server)
        domain = self.fake('host1').lookupByUUIDString(self.server['id'])
        domain.destroy()
        self.assertRaises(nova_exception.InternalError, host.make_ready, instance)
        [outcome] = interrupted.end(host.source(), report.report_client_singleton())
        self.assertIn('not ended: the guest is not known to run here', outcome.text)
        domain.managedSave(0)
        host.make_ready(instance)

    def test_a_guest_that_was_here_after_its_live_migration_is_rebooted_again(self) -> None:
        self.end_live_migration('error')
        self.fail_to_reboot()
        self.reboot()
        self.assert_runs()

    def test_a_guest_that_was_here_before_its_live_migration_is_not(self) -> None:
        host, instance = self.computes['host1'].driver.devicetrack, self.instance(self.server)
        host.make_ready(instance)
        host.may_leave(instance)
        self.end_live_migration('error')
        self.undefine()
        self.assertRaises(nova_exception.InternalError, host.make_ready, instance)

    def test_a_guest_does_not_start_while_nobody_says_whether_it_has_left(self) -> None:
        self.end_live_migration('error')
        self.undefine()
        for error in (keystone.ConnectFailure('gone'), oslo_messaging.MessagingTimeout('gone'),
                      nova_exception.ConsumerAllocationRetrievalFailed(consumer_uuid='a', error='gone')):
            with mock.patch.object(interrupted, 'left_for', autospec=True, side_effect=error):
                refused = self.assertRaises(
                    nova_exception.InternalError, self.computes['host1'].driver.devicetrack.make_ready,
                    self.instance(self.server))
            self.assertIn('is unknown', str(refused))
            self.assertIs(error, refused.__cause__)

    # -- what a start asks and survives -------------------------------------------------------------------------------

    def test_an_instance_that_is_being_deleted_has_no_move(self) -> None:
        self.end_live_migration('error')
        driver = self.computes['host1'].driver
        with base.migrations_deleted():
            self.assertEqual([], interrupted.end(driver.devicetrack.source(), report.report_client_singleton()))
            instance = self.instance(self.server)
            instance.host = 'host2'
            instance.save()
            self.undefine()
            self.assertEqual([], interrupted.end(driver.devicetrack.source(), report.report_client_singleton()))
        self.assertNotEqual({}, self.allocations(self.migration.uuid))

    def test_whatever_it_raises_both_audits_run(self) -> None:
        with mock.patch.object(interrupted, 'end', autospec=True, side_effect=ValueError('no')), mock.patch.object(
                binding.Binding, 'audit', autospec=True, side_effect=binding.Binding.audit) as audit:
            self.restart('host1')
        audit.assert_called()
        self.assertIn('host1', self.computes['host1'].manager.rt.compute_nodes)

    def test_live_migrations_that_ended_in_order_cost_nothing(self) -> None:
        self.end_live_migration('cancelled')
        self.restart('host1')
        self.assert_taken_back('cancelled')
        with mock.patch.object(report.SchedulerReportClient, 'get_allocs_for_consumer', autospec=True) as asked:
            self.assertEqual([], interrupted.end(
                self.computes['host1'].driver.devicetrack.source(), report.report_client_singleton()))
        asked.assert_not_called()

    def test_no_answer_ends_the_questions(self) -> None:
        self.end_live_migration('failed')
        source = self.computes['host1'].driver.devicetrack.source()
        with mock.patch.object(report.SchedulerReportClient, 'get_allocations_for_resource_provider', autospec=True,
                               side_effect=keystone.ConnectFailure('gone')) as asked, mock.patch.object(
                report.SchedulerReportClient, 'get_allocs_for_consumer', autospec=True) as more:
            [outcome] = interrupted.end(source, report.report_client_singleton())
        asked.assert_called_once()
        more.assert_not_called()
        self.assertIsNone(outcome.instance_uuid)
        self.assertIn('not ended: gone', outcome.text)

    def test_what_cannot_be_removed_is_not_called_removed(self) -> None:
        self.end_live_migration('error')
        self.undefine()
        instance = self.instance(self.server)
        instance.host = 'host2'
        instance.save()
        source, client = self.computes['host1'].driver.devicetrack.source(), report.report_client_singleton()
        with mock.patch.object(report.SchedulerReportClient, 'delete_allocation_for_instance', autospec=True,
                               return_value=None):
            [outcome] = interrupted.end(source, client)
        self.assertIn('not ended: ', outcome.text)
        self.assertEqual([(self.server['id'], f'migration {self.migration.uuid}: its allocations here are removed')],
                         interrupted.end(source, client))
        self.assertEqual({}, self.allocations(self.migration.uuid))

    def test_a_node_that_nova_has_removed_is_not_reported(self) -> None:
        self.computes['host1'].manager.rt.report(nova_context.get_admin_context(), 'gone')
