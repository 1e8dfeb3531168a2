"""Claims that fail after Nova's own part of them, ends of moves, and what Nova reports after an interrupt."""

from __future__ import annotations

import copy
import threading
from typing import Any
from unittest import mock

import fixtures
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import rpcapi
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
import oslo_messaging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import manager
from devicetrack.nova import binding
from devicetrack.tests.nova.stock_failures import base
from devicetrack.virt.libvirt import driver as our_driver


class AfterNovaTestCase(base.MdevGuests):

    def setUp(self) -> None:
        super().setUp()
        self.start_compute_with_vgpu('host1')
        self.tracker = self.computes['host1'].manager.rt

    def refused(self) -> Any:
        def narrow(*_args: object) -> None:
            raise exception.StoreUnavailable('store', 'gone')
        return mock.patch.object(binding.Binding, 'narrow', narrow)

    def test_a_check_that_refuses_is_told_though_the_claim_cannot_be_ended(self) -> None:
        compute, server = self.computes['host1'].manager, self.boot('host1', self.flavor)
        with mock.patch.object(manager.ClaimManager, 'assignments', autospec=True,
                               side_effect=exception.HostTakenOver('host1')), mock.patch.object(
                compute.driver, 'check_can_live_migrate_destination', autospec=True,
                side_effect=nova_exception.MigrationPreCheckError(reason='no')):
            self.assertRaises(nova_exception.MigrationPreCheckError, compute.check_can_live_migrate_destination,
                              nova_context.get_admin_context(), self.instance(server), False, False,
                              objects.Migration(uuid=server['id']), None)

    def test_a_rollback_that_gets_no_answer_of_the_network_ends_the_claim(self) -> None:
        compute, server = self.computes['host1'].manager, self.boot('host1', self.flavor)
        migration = objects.Migration(uuid=server['id'])
        lost = nova_exception.PortNotFound(port_id='p')
        with mock.patch.object(manager.ClaimManager, 'drop_move_claim_at_dest', autospec=True) as drop, \
                mock.patch.object(compute.network_api, 'get_instance_nw_info', autospec=True, side_effect=lost):
            self.assertRaises(nova_exception.PortNotFound, compute.rollback_live_migration_at_destination,
                              nova_context.get_admin_context(), self.instance(server), True,
                              objects.LibvirtLiveMigrateData(migration=migration))
        self.assertIn(migration, drop.call_args.args)

    def test_a_boot_leaves_nothing_of_its_claim(self) -> None:
        with self.refused():
            server = self.boot('host1', self.flavor, state='ERROR')
        instance = self.instance(server)
        self.assertNotIn(instance.uuid, self.tracker.tracked_instances)
        self.assertEqual(0, self.tracker.compute_nodes['host1'].vcpus_used)
        self.assertIsNone(instance.host)
        self.assertFalse(self.computes['host1'].driver.devicetrack.manager.assignments(instance.uuid))

    def test_a_resize_leaves_nothing_of_its_claim(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        server = self.boot('host1', self.flavor)
        had = self.mdevs('host1', server)
        bigger = self._create_flavor(memory_mb=4096, extra_spec={'resources:VGPU': '1'})
        with self.refused():
            self.api.post_server_action(server['id'], {'resize': {'flavorRef': bigger}},
                                        check_response_status=[202, 500])
            self._wait_for_migration_status(server, ['error'])
        self.assertEqual({}, dict(self.tracker.tracked_migrations))
        self.assertEqual(had, {one.identifier for one in
                               self.computes['host1'].driver.devicetrack.manager.assignments(server['id'])})

    def test_a_move_whose_allocations_could_not_be_read_does_not_begin(self) -> None:
        self.start_compute_with_vgpu('host2')
        server = self.boot('host1', self.flavor)
        had = self.mdevs('host1', server)
        with mock.patch.object(report.SchedulerReportClient, 'get_allocations_for_consumer', autospec=True,
                               return_value={}):
            self.api.post_server_action(server['id'], {'migrate': None},
                                        check_response_status=[202, 409, 500])
            self._wait_for_migration_status(server, ['error'])
        self.assertEqual('host1', self.instance(server).host)
        self.assertEqual(had, {one.identifier for one in
                               self.computes['host1'].driver.devicetrack.manager.assignments(server['id'])})

    def test_devices_go_back_while_placement_is_away(self) -> None:
        with mock.patch.object(
                manager.ClaimManager, 'update_available_resource', autospec=True) as audit, mock.patch.object(
                self.tracker, '_update', autospec=True, side_effect=ValueError('placement is away')):
            self._run_periodics()
        audit.assert_called()


class EndTestCase(base.PmemGuests):

    # Casts do not wait for their work, as on real hosts.
    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.start('host1', 'ns_1')
        self.start('host2', 'ns_2', 'ns_3')
        self.server = self.boot('host1', self.flavor_of(1))

    def held(self, host: str) -> dict[str, bool]:
        """The namespaces that the instance has on a host, and whether they go back."""
        return {one.identifier: one.state == vocabulary.RELEASING
                for one in self.computes[host].driver.devicetrack.manager.assignments(self.server['id'])}

    def test_the_next_claim_may_have_what_a_revert_gave_back(self) -> None:
        with mock.patch('nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off', autospec=True,
                        return_value='{}'):
            self._migrate_server(self.server)
            self._wait_for_state_change(self.server, 'VERIFY_RESIZE')
        self.api.post_server_action(self.server['id'], {'revertResize': None})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self._wait_for_migration_status(self.server, ['reverted'])
        self.assertEqual({}, self.held('host2'))
        self.assertEqual({'ns_1': False}, self.held('host1'))

    def test_a_late_failure_takes_nothing_from_the_next_evacuation(self) -> None:
        self.take_down('host1')
        there, go_on = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
        calls: list[bool] = []

        def build(*_args: Any, **_kwargs: Any) -> None:
            calls.append(True)
            number = len(calls) - 1
            there[number].set()
            go_on[number].wait(120)
            raise ValueError('the images are away')

        self.useFixture(fixtures.MonkeyPatch('nova.virt.libvirt.driver.LibvirtDriver.spawn', build))
        ended = self.end_of('claims.MoveClaim.abort')
        for event in go_on:
            self.addCleanup(event.set)
        for event in there:
            self.api.post_server_action(self.server['id'], {'evacuate': {'host': 'host2'}})
            self.assertTrue(event.wait(60))
            had = self.held('host2')
            self.api.post_server_action(self.server['id'], {'os-resetState': {'state': 'error'}})
        go_on[0].set()
        self.assertTrue(ended.wait(60))
        self.assertEqual(had, self.held('host2'))


class FailedMoveTestCase(base.PmemGuests):
    """A guest at the destination that is not that of a failed claim, or whose claim only seems to have failed."""

    def setUp(self) -> None:
        super().setUp()
        self.start('host1', 'ns_1', 'ns_2')
        self.server = self.boot('host1', self.flavor_of(1))

    def test_a_guest_that_was_at_the_destination_of_an_evacuation_runs_on(self) -> None:
        self.start('host2', 'ns_3', 'ns_4')
        definition = self.fake('host1').lookupByUUIDString(self.server['id']).XMLDesc(0)
        self.fake('host2').createXML(definition, 0)
        self.audit()
        self.take_down('host1')
        self.api.post_server_action(self.server['id'], {'evacuate': {'host': 'host2'}},
                                    check_response_status=[200, 500])
        event = self._wait_for_action_fail_completion(self.server, 'evacuate', 'compute_rebuild_instance')
        self.assertIn('InstanceExists', event['traceback'])
        self.assertEqual({self.server['id']}, self.guests('host2'))

    def lost_answer(self, message: str) -> Any:
        """Have the sender of a message get an error although the message arrives."""
        send = getattr(rpcapi.ComputeAPI, message)

        def lose_the_answer(*args: Any, **kwargs: Any) -> None:
            send(*args, **kwargs)
            raise oslo_messaging.MessageDeliveryFailure()

        return mock.patch.object(rpcapi.ComputeAPI, message, lose_the_answer)

    def move_with_lost_answer(self, message: str, action: dict[str, Any], there: str) -> None:
        with mock.patch('nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off', autospec=True,
                        return_value='{}'), self.lost_answer(message):
            self.api.post_server_action(self.server['id'], action, check_response_status=[202, 500])
        self.assertIn(self.server['id'], self.guests(there))

    def check_keeps(self, host: str) -> None:
        """Check that the guest has its devices after each audit, and after a hard reboot."""
        devices = self.namespaces(host, self.server)
        self.assertNotEqual(set(), devices)
        self.write(host, self.server)
        for _ in range(2):
            self.audit()
            self.assertLessEqual(devices, {one.identifier for one in self.assigned(host) if one.state == 'active'})
        self.api.post_server_action(self.server['id'], {'os-resetState': {'state': 'active'}})
        self._reboot_server(self.server, hard=True)
        self.assertEqual(devices, self.namespaces(host, self.server))
        self.assertTrue(self.has_its_bytes(host, self.server))

    def assigned(self, host: str) -> list[Any]:
        found: list[Any] = self.computes[host].driver.devicetrack.manager.assignments(self.server['id'])
        return found

    def test_a_guest_whose_resize_went_on_after_an_error_of_its_message_keeps_its_devices(self) -> None:
        self.start('host2', 'ns_3')
        self.move_with_lost_answer('resize_instance', {'migrate': None}, 'host2')
        self.check_keeps('host2')

    def test_a_guest_whose_resize_on_one_host_went_on_after_an_error_of_its_message_keeps_its_devices(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.move_with_lost_answer('resize_instance', {'resize': {'flavorRef': self.flavor_of(1)}}, 'host1')
        self.check_keeps('host1')

    def test_a_guest_whose_resize_went_on_after_an_error_of_the_conductor_keeps_its_devices(self) -> None:
        self.start('host2', 'ns_3')
        self.move_with_lost_answer('prep_resize', {'migrate': None}, 'host2')
        self.check_keeps('host2')

    def test_a_guest_whose_resize_on_one_host_went_on_after_an_error_of_the_conductor_keeps_its_devices(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.move_with_lost_answer('prep_resize', {'resize': {'flavorRef': self.flavor_of(1)}}, 'host1')
        self.check_keeps('host1')

    def test_the_devices_of_a_resize_whose_message_was_lost_are_given_back(self) -> None:
        self.start('host2', 'ns_3')
        with mock.patch.object(rpcapi.ComputeAPI, 'resize_instance', autospec=True,
                               side_effect=oslo_messaging.MessageDeliveryFailure()):
            self.api.post_server_action(self.server['id'], {'migrate': None}, check_response_status=[202, 500])
        self.assertTrue(self.wait_for(lambda: not self.assigned('host2')))
        self.check_keeps('host1')


class OffloadTestCase(base.PmemGuests):

    def reserved(self) -> int:
        path = f'/resource_providers/{self.compute_rp_uuids["host1"]}/inventories'
        found: int = self.placement.get(path).body['inventories']['CUSTOM_PMEM_NAMESPACE_SMALL']['reserved']
        return found

    def test_placement_hears_at_once_what_is_being_wiped(self) -> None:
        self.start('host1', 'ns_1', 'ns_2')
        server = self.boot('host1', self.flavor_of(1))
        self.computes['host1'].driver.devicetrack.manager.wait_for_wipes()
        self.audit()
        before = self.reserved()
        with mock.patch('devicetrack.claims.releasing.Wipes.go_on', autospec=True):
            self._shelve_server(server)
            self.assertEqual(before + 1, self.reserved())


class ReportTestCase(base.MdevGuests):

    def test_after_an_interrupt_it_is_what_it_was_and_nothing_is_read_for_it(self) -> None:
        driver = self.start_compute_with_vgpu('host1').driver
        host = driver.devicetrack
        host.manager.operator.cordon('mdev', fakelibvirt.MDEVCAP_DEV1_PCI_ADDR, parent=True)
        trees = [copy.deepcopy(driver.provider_tree) for _ in range(2)]
        driver.update_provider_tree(trees[0], 'host1')
        host.manager._ready().ledger.discard()
        with mock.patch.object(our_driver.LibvirtDriver, 'get_usage', autospec=True,
                               side_effect=AssertionError('the hypervisor was asked')):
            driver.update_provider_tree(trees[1], 'host1')
        before, after = (tree.data(f'host1_{fakelibvirt.MDEVCAP_DEV1_PCI_ADDR}').inventory['VGPU'] for tree in trees)
        self.assertEqual(before['total'], before['reserved'])
        self.assertEqual(before, after)
