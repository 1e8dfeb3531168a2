"""Mediated devices."""

from __future__ import annotations

import threading
from typing import Any

import fixtures
from nova import conf as nova_conf
from nova.compute import rpcapi
from nova.conf import devices as devices_conf
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base as nova_base
from oslo_messaging import exceptions as messaging_exceptions

from devicetrack.tests.nova.stock_failures import base


def _refuse(_guest: Any) -> None:
    raise fakelibvirt.make_libvirtError(fakelibvirt.libvirtError, 'no room for the memory',
                                        error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR)


class OneHostTestCase(base.MdevGuests):

    def setUp(self) -> None:
        super().setUp()
        self.start_compute_with_vgpu('host1')

    def leave_one(self) -> None:
        """Have the host keep a mediated device that nobody has."""
        self._current_host = 'host1'
        self._create_mdev(fakelibvirt.MDEVCAP_DEV1_PCI_ADDR, fakelibvirt.NVIDIA_11_VGPU_TYPE)

    def test_two_boots_at_once_share_one_device(self) -> None:
        flavor = self._create_flavor(extra_spec={'resources:VGPU': '1'})
        self.leave_one()
        both = threading.Barrier(2)
        from nova.virt.libvirt import driver
        original = driver.LibvirtDriver._get_guest_xml

        def wait_for_the_other(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            # Each has its devices, and no guest is defined yet.
            both.wait(60)
            return made

        self.useFixture(fixtures.MonkeyPatch('nova.virt.libvirt.driver.LibvirtDriver._get_guest_xml',
                                             wait_for_the_other))
        bodies = [self._build_server(image_uuid=base.IMAGE, flavor_id=flavor, networks='none', host='host1')
                  for _ in range(2)]
        made: list[Any] = []
        self.together(*(lambda body=body: made.append(self.api.post_server({'server': body})) for body in bodies))
        for server in made:
            self._wait_for_state_change(server, 'ACTIVE')
        one, other = (self.mdevs('host1', server) for server in made)
        self.assertEqual((1, 1), (len(one), len(other)))
        self.must(not one & other, f'both guests have {one & other}')

    def test_another_guest_takes_a_device_during_a_hard_reboot(self) -> None:
        server = self.boot('host1', self.flavor)
        others: list[Any] = []
        # The guest was destroyed, and its definition is gone.
        self.before('_get_guest_xml', lambda _args: others.append(self.boot('host1', self.flavor)))
        self._reboot_server(server, hard=True)
        other, = others
        shared = self.mdevs('host1', server) & self.mdevs('host1', other)
        self.must(not shared, f'both guests have {shared}')

    def test_nobody_removes_a_device_that_was_made_for_a_guest(self) -> None:
        server = self.boot('host1', self.flavor)
        self.assertEqual(1, len(self.existing('host1')))
        self._delete_server(server)
        self.must(self.wait_for(lambda: not self.existing('host1')), f'{self.existing("host1")} are there still')

    def test_a_cold_snapshot_takes_the_device_from_the_guest(self) -> None:
        self.flags(disable_libvirt_livesnapshot=True, group='workarounds')
        server = self.boot('host1', self.flavor)
        had = self.mdevs('host1', server)
        self._snapshot_server(server, 'snapshot')
        self._wait_for_server_parameter(server, {'OS-EXT-STS:task_state': None})
        self.must(self.mdevs('host1', server) == had, f'the guest had {had}, and has {self.mdevs("host1", server)}')

    def test_a_guest_that_cannot_be_suspended_loses_the_device(self) -> None:
        server = self.boot('host1', self.flavor)
        had = self.mdevs('host1', server)
        with fixtures.MonkeyPatch('nova.virt.libvirt.guest.Guest.save_memory_state', _refuse):
            self.api.post_server_action(server['id'], {'suspend': {}}, check_response_status=[202, 500])
            self._wait_for_server_parameter(server, {'OS-EXT-STS:task_state': None})
        self.must(self.mdevs('host1', server) == had, f'the guest had {had}, and has {self.mdevs("host1", server)}')

    def test_a_reverted_resize_on_the_same_host_loses_the_device(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        server = self.boot('host1', self.flavor)
        had = self.mdevs('host1', server)
        self._resize_server(server, self._create_flavor(memory_mb=4096, extra_spec={'resources:VGPU': '1'}))
        self.assertFalse(had & self.mdevs('host1', server))
        self._revert_resize(server)
        has = self.mdevs('host1', server)
        self.assertIn(has, (had, set()))
        self.must(has == had, f'the guest had {had}, and has none')


class EvacuationTestCase(base.MdevGuests):

    def test_a_guest_cannot_be_evacuated(self) -> None:
        self.start_compute_with_vgpu('host1')
        server = self.boot('host1', self.flavor)
        self.start_compute_with_vgpu('host2')
        self.take_down('host1')
        # Nova's tests make calls of casts: the destination's error may come back at once.
        self.api.api_post(f'/servers/{server["id"]}/action', {'evacuate': {}}, check_response_status=[200, 202, 500])
        self._wait_for_migration_status(server, ['done', 'completed', 'failed', 'error'])
        now = self.api.get_server(server['id'])
        well = (now['status'], now['OS-EXT-SRV-ATTR:host']) in (('ACTIVE', 'host2'), ('SHUTOFF', 'host2'))
        if not well:
            # The allocations name providers of both hosts. Nova looks all of them up here; Nova 31 names none.
            ours = self._get_all_rp_uuids_in_a_tree(self.compute_rp_uuids['host1'])
            said = ['mdev-capable resource is not available']
            said += [f'Resource Provider {uuid} is missing' for uuid in ours]
            log = self.stdlog.logger.output
            self.assertTrue(any(text in log for text in said), 'it failed for another reason')
        self.must(well, f'it is {now["status"]} on {now["OS-EXT-SRV-ATTR:host"]}, for a provider of host1')
        self.assertEqual(1, len(self.mdevs('host2', server)))


class LiveMigrationTestCase(nova_base.LibvirtMigrationMixin, base.MdevGuests):

    def setUp(self) -> None:
        # Those that can do it.
        self.FAKE_LIBVIRT_VERSION, self.FAKE_QEMU_VERSION = 8_006_000, 8_001_000
        super().setUp()
        # With two parents placement chooses the one that another guest gets.
        devices_conf.register_dynamic_opts(nova_conf.CONF)
        parent = fakelibvirt.MDEVCAP_DEV1_PCI_ADDR.removeprefix('pci_').replace('_', ':', 2).replace('_', '.')
        self.flags(device_addresses=[parent],
                   group=f'mdev_{fakelibvirt.NVIDIA_11_VGPU_TYPE}')
        self.src = self.start_compute_with_vgpu('src')
        self.dest = self.start_compute_with_vgpu('dest')
        self.server = self.boot('src', self.flavor)
        self.taken: list[set[str]] = []

    def _migrate_stub(self, domain: Any, destination: Any, params: Any, flags: Any) -> None:
        """The destination's service restarts while the guest moves, and another guest boots there."""
        coming = fakelibvirt.Domain(self.fake('dest'), params['destination_xml'])
        wanted = {hostdev['address_uuid'] for hostdev in coming._def['devices']['hostdevs']}
        self.dest = self.restart_compute_service('dest')
        other = self.boot('dest', self.flavor)
        self.taken.append(wanted & self.mdevs('dest', other))
        self.fake('src').lookupByUUIDString(self.server['id']).fail_job()

    def test_a_restart_loses_the_claim_of_a_guest_that_comes(self) -> None:
        self._live_migrate(self.server, 'failed')
        taken, = self.taken
        self.must(not taken, f'another guest has {taken}, for which the migrating one comes')

    def test_a_check_whose_answer_is_lost_keeps_its_claim(self) -> None:
        original = rpcapi.ComputeAPI.check_can_live_migrate_destination

        def lost(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            raise messaging_exceptions.MessagingTimeout()

        self.useFixture(fixtures.MonkeyPatch('nova.compute.rpcapi.ComputeAPI.check_can_live_migrate_destination', lost))
        self.api.api_post(f'/servers/{self.server["id"]}/action',
                          {'os-migrateLive': {'host': None, 'block_migration': 'auto'}},
                          check_response_status=[200, 202, 400, 500])
        self._wait_for_migration_status(self.server, ['error'])
        assigned = self.dest.driver._get_all_assigned_mediated_devices
        self.must(self.wait_for(lambda: not assigned()), f'{assigned()} wait for a guest that never comes')
