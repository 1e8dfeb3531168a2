"""Namespaces of persistent memory."""

from __future__ import annotations

from typing import Any

import fixtures
from nova import context as nova_context
from nova import exception as nova_exception
from nova.virt.libvirt import driver

from devicetrack.tests.nova import adapted
from devicetrack.tests.nova.stock_failures import base


class BytesTestCase(base.PmemGuests):
    """A guest's bytes are there as long as the instance has the namespace."""

    def setUp(self) -> None:
        super().setUp()
        self.start('host1', 'ns_1', 'ns_2')
        self.server = self.boot('host1', self.flavor_of(1))
        self.write('host1', self.server)

    def test_a_hard_reboot_zeroes_them(self) -> None:
        self._reboot_server(self.server, hard=True)
        self.must(self.has_its_bytes('host1', self.server), 'they are gone after a hard reboot')

    def test_a_stop_and_start_zeroes_them(self) -> None:
        self._stop_server(self.server)
        self._start_server(self.server)
        self.must(self.has_its_bytes('host1', self.server), 'they are gone after a stop and a start')

    def test_a_restore_of_a_deleted_instance_zeroes_them(self) -> None:
        self.flags(reclaim_instance_interval=30000)
        self.api.delete_server(self.server['id'])
        self._wait_for_server_parameter(self.server, {'status': 'SOFT_DELETED'})
        self.api.post_server_action(self.server['id'], {'restore': {}})
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.must(self.has_its_bytes('host1', self.server), 'they are gone after a restore')


class UnshelveTestCase(base.PmemGuests):

    def setUp(self) -> None:
        super().setUp()
        self.flags(shelved_offload_time=0)
        self.start('host1', 'ns_1')

    def fail_late(self, server: Any) -> None:
        """Unshelve an instance whose start fails when its guest already runs."""
        self._shelve_server(server, expected_state='SHELVED_OFFLOADED')
        self.audit()

        self.act_and_fail_late(server, {'unshelve': None}, 'compute_unshelve_instance')
        self.audit()

    def test_a_guest_whose_start_failed_late_shares_its_namespace_with_the_next(self) -> None:
        self.fail_late(self.boot('host1', self.flavor_of(1)))
        other = self.boot('host1', self.flavor_of(1))
        self.assertEqual({'ns_1'}, self.namespaces('host1', other))
        self.must(self.guests('host1') == {other['id']}, 'both run on it')

    def test_a_volume_of_a_guest_whose_start_failed_late_stays_connected(self) -> None:
        server = self.boot('host1', self.flavor_of(1))
        self.api.post_server_volume(server['id'], {'volumeAttachment': {'volumeId': self.cinder.IMAGE_BACKED_VOL}})
        self._wait_for_volume_attach(server['id'], self.cinder.IMAGE_BACKED_VOL)
        connect, disconnect = (self.useFixture(fixtures.MockPatchObject(
            adapted.running(driver.LibvirtDriver), f'_{name}_volume')).mock for name in ('connect', 'disconnect'))
        self.fail_late(server)
        self.assertEqual(1, connect.call_count)
        self.must(disconnect.call_count == 2, 'the volume is connected to no guest')      # the first by the shelving


class EvacuationTestCase(base.PmemGuests):

    def test_a_guest_whose_start_failed_late_shares_its_namespace_with_the_next(self) -> None:
        self.start('host1', 'ns_1')
        self.start('host2', 'ns_2')
        server = self.boot('host1', self.flavor_of(1))
        # The source may have the same ones.
        delete_disks = self.useFixture(fixtures.MockPatchObject(driver.LibvirtDriver, 'delete_instance_files')).mock
        self.take_down('host1')
        self.act_and_fail_late(server, {'evacuate': {'host': 'host2'}}, 'compute_rebuild_instance')
        delete_disks.assert_not_called()
        self.audit()
        other = self.boot('host2', self.flavor_of(1))
        self.assertEqual({'ns_2'}, self.namespaces('host2', other))
        self.must(self.guests('host2') == {other['id']}, 'both run on it')

    def test_the_host_that_comes_back_zeroes_a_namespace_of_another_guest(self) -> None:
        self.start('host1', 'ns_1', 'ns_2')
        goes, stays = (self.boot('host1', self.flavor_of(1)) for _ in range(2))
        self.write('host1', stays)
        name, = self.namespaces('host1', stays)
        # What the evacuated one gets elsewhere has the name of what the other one has here.
        self.start('host2', name)
        self.take_down('host1')
        self.api.post_server_action(goes['id'], {'evacuate': {'host': 'host2'}})
        self._wait_for_migration_status(goes, ['done'])
        self.assertEqual({name}, self.namespaces('host2', goes))
        self.restart('host1')
        self.audit()
        self.must(self.has_its_bytes('host1', stays, {name}), f'{name} was zeroed, which a guest there has')


class RecordTestCase(base.PmemGuests):

    def setUp(self) -> None:
        super().setUp()
        self.start('host1', 'ns_1', 'ns_2')

    def claim(self, amount: int) -> Any:
        """Claim for an instance that has nothing, past the scheduler.

        :returns: the instance after it, with its error or None
        """
        instance = self.instance(self.boot('host1', self._create_flavor()))
        instance.host = instance.node = instance.launched_on = instance.compute_id = None
        instance.save()
        allocations = {self.compute_rp_uuids['host1']: {'resources': {'CUSTOM_PMEM_NAMESPACE_SMALL': amount}}}
        try:
            self.computes['host1'].manager.rt.instance_claim(
                nova_context.get_admin_context(), instance, 'host1', allocations, {})
        except nova_exception.ComputeResourcesUnavailable as error:
            return instance, error
        return instance, None

    def test_other_numbers_after_a_boot_make_an_owned_namespace_free(self) -> None:
        owner = self.boot('host1', self.flavor_of(1))
        self.renumber('host1', by=5)
        self.restart('host1')
        # Both are on this host, and one has an owner.
        other, error = self.claim(2)
        shared = {one.identifier for one in other.resources or ()} & self.recorded(owner)
        self.must(error is not None and not shared, f'two instances have {shared}')

    def test_a_claim_that_fails_late_leaves_the_host_of_the_instance_set(self) -> None:
        instance, error = self.claim(3)
        self.assertIsNotNone(error)
        self.must(instance.host is None, f'it is {instance.host}')
