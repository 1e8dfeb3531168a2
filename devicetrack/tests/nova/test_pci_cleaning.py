"""PCI functions with one_time_use, which Nova never gives back: cleaned by the adapter, with a real placement."""

from __future__ import annotations

from collections.abc import Callable
import functools
import inspect
import json
from typing import Any
from typing import Final
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
import nova.conf
from nova.pci import devspec
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import test_pci_in_placement
import oslo_messaging
from oslo_utils import uuidutils

import devicetrack
from devicetrack import exception
from devicetrack.conf import nova as nova_options
from devicetrack.engine import findings
from devicetrack.nova import pci_cleaning
from devicetrack.objects.values import DeviceKey
from devicetrack.testing import nvme
from devicetrack.testing import pci as made
from devicetrack.testing import pci_guests
from devicetrack.tests.nova import adapted
from devicetrack.virt.libvirt import root
from devicetrack.virt.libvirt.kinds import pci_of_service

adapted.as_on_a_host()

HOST: Final = 'compute1'
DISK: Final = '0000:81:00.0'
KEY: Final = DeviceKey('pci', DISK)
CLASS: Final = f'CUSTOM_PCI_{fakelibvirt.PCI_VEND_ID}_{fakelibvirt.PCI_PROD_ID}'
OLD: Final = b'of its 1st owner'
SPEC: Final = {'vendor_id': fakelibvirt.PCI_VEND_ID, 'product_id': fakelibvirt.PCI_PROD_ID, 'one_time_use': 'true'}


class CleaningTestCase(test_pci_in_placement.PlacementPCIReportingTests):
    """A host with one disk for one-time use."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(group='filter_scheduler', pci_in_placement=True)
        self.flags(group='pci', device_spec=[json.dumps(SPEC)], alias=[json.dumps({
            'vendor_id': SPEC['vendor_id'], 'product_id': SPEC['product_id'], 'name': 'disk'})])
        self.hardware = self.useFixture(made.PCIHost())
        self.controllers = self.useFixture(nvme.Controllers(self.hardware))
        self.functions = pci_guests.GuestFunctions(self.hardware)
        self.hardware.add_nvme(DISK, 'S1')
        self.disk = self.controllers.add(DISK).namespaces[1]
        made_for = pci_of_service.OfService.made_for

        def made_here(*arguments: Any) -> Any:
            kind = made_for(*arguments)
            kind.host_use = self.hardware.use
            return kind

        self.useFixture(fixtures.MonkeyPatch(f'{pci_of_service.__name__}.OfService.made_for', staticmethod(made_here)))
        # Nova's tests fail if anything looks into the machine's own.
        self.useFixture(fixtures.MonkeyPatch(f'{root.__name__}.SYSFS', self.hardware.root))
        devicetrack.register_options(nova.conf.CONF)
        self.flags(group='devicetrack_pci', sysfs_root=self.hardware.root, release_wait_s=0,
                   cleaning=[json.dumps({'policy': 'zero'})])
        self.flags(group='devicetrack_nova', pci=nova_options.CLEAN)
        self.start_compute(hostname=HOST, pci_info=fakelibvirt.HostPCIDevicesInfo(num_pci=1, num_pfs=0, num_vfs=0))
        self.disk_flavor = self._create_flavor(extra_spec={'pci_passthrough:alias': 'disk:1'})
        self.audit()

    @property
    def tracker(self) -> Any:
        return self.computes[HOST].manager.rt

    @property
    def manager(self) -> Any:
        return self.computes[HOST].driver.devicetrack.manager

    def audit(self) -> list[str]:
        """Nova's periodic task, and all that it begins. Returns what the next audit says of the disk."""
        compute = self.computes[HOST].manager
        compute.update_available_resource(nova_context.get_admin_context())
        self.manager._started().service_cleaning.wait()
        return [one.detail for one in self.manager.update_available_resource(None, HOST)
                if one.kind == findings.NOT_CLEANED]

    def boot(self, state: str = 'ACTIVE') -> str:
        server: str = self._create_server(flavor_id=self.disk_flavor, networks=[], expected_state=state)['id']
        if state == 'ACTIVE':
            self.functions.start(server, [DISK])
            self.disk.fill(OLD)
        return server

    def delete(self, server: str) -> None:
        self._delete_server({'id': server})
        self.functions.end(server)
        self.controllers.show(DISK)

    def reserve(self, number: int) -> None:
        self._reserve_placement_resource(f'{HOST}_{DISK}', CLASS, number)

    def reserved(self) -> int:
        uuid = self._get_provider_uuid_by_name(f'{HOST}_{DISK}')
        found: int = self._get_provider_inventory(uuid)[CLASS]['reserved']
        return found

    def is_zero(self) -> bool:
        return not any(self.disk.content)

    def check_stays(self, why: str) -> None:
        [said] = self.audit()
        self.assertIn(why, said)
        self.assertEqual((1, OLD), (self.reserved(), self.disk.content[:len(OLD)]))

    def test_each_guest_gets_a_clean_disk_and_nobody_has_to_lift_a_reservation(self) -> None:
        for _times in range(2):
            server = self.boot()
            self.assertEqual(([], 1), (self.audit(), self.reserved()))
            self.delete(server)
            self.assertEqual(1, self.reserved())
            self.assertEqual(([], 0, True), (self.audit(), self.reserved(), self.is_zero()))
        self.assertEqual(2, len([one for one in self.manager.store.events_of_device(DISK)
                                 if one.event.event == 'wiped' and 'wiped (' in one.event.more['proof']]))

    def test_nova_sees_the_next_guest_at_once(self) -> None:
        # Nova compares its next inventory with the one that it remembers.
        self.delete(self.boot())
        self.audit()
        server = self.boot()
        self.assertEqual(1, self.reserved())
        self.delete(server)
        self.boot('ERROR')

    def test_a_guest_that_lives_between_two_audits_counts(self) -> None:
        self.delete(self.boot())
        self.assertEqual(([], 0, True), (self.audit(), self.reserved(), self.is_zero()))

    def test_a_reservation_by_hand_stays(self) -> None:
        self.audit()
        self.reserve(1)
        for _times in range(2):
            [said] = self.audit()
            self.assertIn('another program reserved it', said)
        self.assertEqual(1, self.reserved())

    def test_a_reservation_by_hand_stays_when_the_service_starts_again(self) -> None:
        # Nova saves each row when it starts, and this time the host says something new.
        self.reserve(1)
        for restart in range(3):
            self.restart_compute_service(HOST, pci_info=fakelibvirt.HostPCIDevicesInfo(
                num_pci=1, num_pfs=0, num_vfs=0, numa_node=restart % 2), keep_hypervisor_state=False)
            [said] = self.audit()
            self.assertIn('another program reserved it', said)
            self.assertEqual(1, self.reserved())
        self.reserve(0)
        self.delete(self.boot())
        self.assertEqual(([], 0, True), (self.audit(), self.reserved(), self.is_zero()))

    def test_a_guest_counts_that_nothing_could_note_before_its_start(self) -> None:
        away = exception.CommandFailed('use pci.json', 'no space left on device')
        with mock.patch.object(self.manager, 'note_given', autospec=True, side_effect=away):
            server = self.boot()
        self.audit()
        self.delete(server)
        self.assertEqual(([], 0, True), (self.audit(), self.reserved(), self.is_zero()))

    def test_a_claim_that_fails_after_its_reservation_counts(self) -> None:
        tracker = self.tracker.pci_tracker
        save, times = tracker.save, list[int]()

        def save_later(context: Any) -> None:
            if not times:
                times.append(self.reserved())
                raise oslo_messaging.MessagingTimeout()
            save(context)

        with mock.patch.object(tracker, 'save', save_later):
            server = self.boot('ERROR')
        self.assertEqual([1], times)
        self._delete_server({'id': server})
        self.audit()                            # Nova frees it
        self.assertEqual(([], 0, True), (self.audit(), self.reserved(), self.is_zero()))

    def test_a_reservation_that_is_lifted_by_hand_is_not_lifted_again(self) -> None:
        self.delete(self.boot())
        with self.asked(2, lambda: self.reserve(0)):
            self.assertIn('another program lifted its reservation', ' '.join(self.audit()))
        self.assertEqual(OLD, self.disk.content[:len(OLD)])

    def test_a_function_that_is_no_longer_for_one_time_use_stays_as_it_is(self) -> None:
        self.delete(self.boot())
        [spec] = self.tracker.pci_tracker.dev_filter.specs
        for times in (1, 2):
            spec.tags['one_time_use'] = 'true'
            with self.asked(times, lambda: spec.tags.update(one_time_use='false')):
                self.audit()
            self.assertEqual((times, 1, OLD), (times, self.reserved(), self.disk.content[:len(OLD)]))
        spec.tags['one_time_use'] = 'true'
        self.assertEqual(([], 0, True), (self.audit(), self.reserved(), self.is_zero()))

    def asked(self, times: int, then: Callable[[], object]) -> Any:
        """Let something happen before placement is asked for the so manieth time about a disk that waits."""
        ask, left = pci_cleaning.NovaDevices._waiting, [times]

        def asked(devices: Any, *arguments: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                then()
            return ask(devices, *arguments)

        return mock.patch.object(pci_cleaning.NovaDevices, '_waiting', asked)

    def allocate(self, consumers: list[str]) -> None:
        """Allocate the disk by force: placement counts the reservation, so lift and restore it."""
        consumer = uuidutils.generate_uuid()
        self.reserve(0)
        self.placement.put(f'/allocations/{consumer}', {
            'allocations': {self._get_provider_uuid_by_name(f'{HOST}_{DISK}'): {'resources': {CLASS: 1}}},
            'project_id': consumer, 'user_id': consumer, 'consumer_generation': None, 'consumer_type': 'MIGRATION'},
            version='1.38')
        self.reserve(1)
        consumers.append(consumer)

    def test_a_function_with_a_physical_network_is_never_reserved(self) -> None:
        [spec] = self.tracker.pci_tracker.dev_filter.specs
        spec.tags['physical_network'] = 'net'
        [said] = self.audit()
        self.assertIn('so nothing reserves it after its guest', said)

    def test_an_allocation_by_force_ends_the_cleaning(self) -> None:
        for times in (1, 2, 3, 4):
            self.delete(self.boot())
            consumers: list[str] = []
            with self.asked(times, functools.partial(self.allocate, consumers)):
                self.audit()
            self.assertEqual((times, 1), (times, self.reserved()))
            self.placement.delete(f'/allocations/{consumers[0]}')
            self.assertEqual(([], 0, True), (self.audit(), self.reserved(), self.is_zero()))

    def test_an_allocation_right_before_the_write_makes_placement_refuse(self) -> None:
        self.delete(self.boot())
        client, consumers = self.tracker.reportclient, list[str]()
        put = client.put

        def allocated_first(url: str, *arguments: Any, **more: Any) -> Any:
            if '/inventories/' in url and not consumers:
                self.allocate(consumers)
            return put(url, *arguments, **more)

        with mock.patch.object(client, 'put', allocated_first):
            self.assertIn('placement has allocations of it', ' '.join(self.audit()))
        self.assertEqual(1, self.reserved())

    def test_another_writer_of_the_inventory_is_no_problem(self) -> None:
        self.delete(self.boot())
        client, written = self.tracker.reportclient, list[int]()
        put = client.put

        def written_first(url: str, *arguments: Any, **more: Any) -> Any:
            if '/inventories/' in url and not written:
                written.append(1)
                self.reserve(0)
                self.reserve(1)
            return put(url, *arguments, **more)

        with mock.patch.object(client, 'put', written_first):
            self.assertEqual([], self.audit())
        self.assertEqual(0, self.reserved())

    def test_placement_that_is_away_leaves_it_reserved(self) -> None:
        self.delete(self.boot())
        away, functions = keystone.ConnectFailure('away'), self.computes[HOST].driver.devicetrack.pci
        assert functions is not None
        devices = pci_cleaning.NovaDevices(self.tracker, functions)
        told = devices.devices()[KEY].told
        with mock.patch.object(self.tracker.reportclient, 'get_allocations_for_resource_provider',
                               autospec=True, side_effect=away):
            self.assertEqual('unknown', devices.devices()[KEY].state)
            self.assertRaises(exception.NovaUnavailable, devices.hand_out, KEY, told)
        with mock.patch.object(self.tracker.reportclient, 'put', autospec=True, side_effect=away):
            self.assertIn('placement does not answer', ' '.join(self.audit()))
        self.assertEqual(1, self.reserved())
        self.assertEqual(([], 0), (self.audit(), self.reserved()))

    def test_a_guest_that_nova_has_forgotten_keeps_its_disk(self) -> None:
        server = self.boot()
        self._delete_server({'id': server})
        self.check_stays('open')                # its process is still there
        self.functions.end(server)
        self.controllers.show(DISK)
        self.assertEqual(([], 0, True), (self.audit(), self.reserved(), self.is_zero()))

    def test_another_disk_in_the_slot(self) -> None:
        self.delete(self.boot())
        self.hardware.remove(DISK)
        self.hardware.add_nvme(DISK, 'S2')
        self.controllers.show(DISK)
        self.check_stays('its serial is S2, recorded was S1')

    def test_a_service_that_starts_again_goes_on(self) -> None:
        server = self.boot()
        self.audit()
        self.delete(server)
        self.restart_compute_service(HOST)
        self.assertEqual(([], 0, True), (self.audit(), self.reserved(), self.is_zero()))


if 'one_time_use' not in inspect.getsource(devspec):        # Nova 31 has no such functions
    del CleaningTestCase
