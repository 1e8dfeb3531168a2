"""The PCI functions that Nova hands out itself: what the adapter reads of them, and what it says about them."""

from __future__ import annotations

from importlib import metadata
import json
from typing import Any
from typing import Final
from unittest import mock

from keystoneauth1 import exceptions as keystone
from nova import exception as nova_exception
import nova.conf
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import test_pci_in_placement
import requests

from devicetrack import exception
from devicetrack.conf import nova as nova_options
from devicetrack.engine import findings
from devicetrack.nova import pci_functions
from devicetrack.tests.nova import adapted

adapted.as_on_a_host()

HOST = 'compute1'
CARD = '0000:81:00.0'
CLASS = f'CUSTOM_PCI_{fakelibvirt.PCI_VEND_ID}_{fakelibvirt.PCI_PROD_ID}'


# What a request to placement returns, which is false in conditions.
FAILED: Final = requests.Response()
FAILED.status_code, FAILED._content = 503, b'away'


class FunctionsTestCase(test_pci_in_placement.PlacementPCIReportingTests):
    """A host with one card, which is for one-time use where this Nova knows that."""

    def setUp(self) -> None:
        super().setUp()
        nova_options.register(nova.conf.CONF)
        self.flags(group=nova_options.GROUP, pci=nova_options.OBSERVE)
        self.flags(group='filter_scheduler', pci_in_placement=True)
        spec = {'vendor_id': fakelibvirt.PCI_VEND_ID, 'product_id': fakelibvirt.PCI_PROD_ID, 'one_time_use': 'true'}
        alias = {'vendor_id': spec['vendor_id'], 'product_id': spec['product_id'], 'name': 'card'}
        self.flags(group='pci', device_spec=[json.dumps(spec)], alias=[json.dumps(alias)])
        self.start_compute(hostname=HOST, pci_info=fakelibvirt.HostPCIDevicesInfo(num_pci=1, num_pfs=0, num_vfs=0))
        self.card_flavor = self._create_flavor(extra_spec={'pci_passthrough:alias': 'card:1'})

    def boot(self) -> str:
        uuid: str = self._create_server(flavor_id=self.card_flavor, networks=[])['id']
        return uuid

    @property
    def tracker(self) -> Any:
        return self.computes[HOST].manager.rt

    @property
    def functions(self) -> pci_functions.PCIFunctions:
        return pci_functions.PCIFunctions(self.tracker, HOST)

    def card(self) -> pci_functions.PCIFunction:
        card = self.functions.function(CARD)
        assert card is not None
        return card

    def provider(self) -> pci_functions.PCIProvider:
        found = self.functions.provider(self.card())
        assert found is not None
        return found


class ReadTestCase(FunctionsTestCase):

    def test_a_function_and_its_provider_through_a_boot_and_a_deletion(self) -> None:
        card, before = self.card(), self.provider()
        self.assertEqual([card], self.functions.all())
        self.assertIsNone(self.functions.function('0000:99:00.0'))
        self.assertEqual(('type-PCI', None, True), (card.dev_type, card.parent_address, card.is_available))
        self.assertEqual((CLASS, 1, 0, {}), (before.resource_class, before.inventory['total'], before.reserved,
                                             before.allocations))
        server = self.boot()
        card, during = self.card(), self.provider()
        self.assertEqual(('allocated', server, False), (card.status, card.instance_uuid, card.is_available))
        self.assertEqual((before.uuid, {server: 1}), (during.uuid, during.allocations))
        self.assertGreater(during.generation, before.generation)
        self.assertEqual((True, int(metadata.version('nova').partition('.')[0]) >= 33), (
            card.is_one_time_use, during.reserved == 1))
        self._delete_server({'id': server})
        card, after = self.card(), self.provider()
        self.assertEqual((True, {}, during.reserved), (card.is_available, after.allocations, after.reserved))

    def test_placement_does_not_answer(self) -> None:
        card, client = self.card(), self.tracker.reportclient
        for said in (keystone.ConnectFailure('away'),
                     nova_exception.ResourceProviderAllocationRetrievalFailed(rp_uuid=card.address, error='away')):
            with mock.patch.object(client, 'get_allocations_for_resource_provider', autospec=True,
                                   side_effect=said):
                self.assertRaises(exception.NovaUnavailable, self.functions.provider, card)
        with mock.patch.object(client, 'get', autospec=True, return_value=FAILED):
            self.assertIn('503: away', str(self.assertRaises(
                exception.NovaUnavailable, self.functions.provider, card)))

    def test_nova_reports_none_with_a_physical_network_or_without_the_option(self) -> None:
        card = self.card()
        self.assertIsNone(self.functions.provider(card._replace(tags={'physical_network': 'net'})))
        self.assertIsNone(self.functions.provider(card._replace(address='0000:99:00.0', extra_info={})))
        self.flags(group='pci', report_in_placement=False)
        self.assertIsNone(self.functions.provider(card))

    def test_nova_has_not_read_its_rows_yet(self) -> None:
        functions, tracker = self.functions, self.tracker
        tracker.pci_tracker = None
        self.assertRaises(exception.NotReady, functions.all)


class ObserveTestCase(FunctionsTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.manager = self.computes[HOST].driver.devicetrack.manager

    def audit(self) -> list[tuple[str, str, str]]:
        self._run_periodics()
        return [(one.kind, one.severity, one.device.identifier)
                for one in self.manager.update_available_resource(None, HOST)]

    def domain(self, server: str) -> Any:
        return self.computes[HOST].driver._host.get_connection().lookupByUUIDString(server)

    def test_nothing_is_wrong_through_the_life_of_a_server_and_its_owner_is_in_the_history(self) -> None:
        rows = len(self.manager.store.records())
        server = self.boot()
        self.assertEqual([], self.audit())
        self._stop_server({'id': server})
        self.assertEqual([], self.audit())
        self._start_server({'id': server})
        self._suspend_server({'id': server})
        self.assertEqual([], self.audit())
        self._resume_server({'id': server})
        self.assertEqual([], self.audit())
        self._delete_server({'id': server})
        self.assertEqual([], self.audit())
        self.assertEqual([('claimed', server), ('freed', server)], [
            (one.event.event, one.event.instance_uuid) for one in self.manager.store.events_of_device(CARD)])
        self.assertEqual(rows, len(self.manager.store.records()))

    def test_a_domain_and_the_row_differ(self) -> None:
        server = self.boot()
        row, = self.tracker.pci_tracker.pci_devs
        row.status, row.instance_uuid = 'available', None
        found = self.manager.update_available_resource(None, HOST)
        row.status, row.instance_uuid = 'allocated', server
        self.assertEqual([(findings.USED_UNRECORDED, (server,))], [(one.kind, one.users) for one in found])
        self.domain(server)._def['devices']['hostdevs'].clear()
        self.assertEqual([(findings.RECORDED_UNUSED, 'warning', CARD)], self.audit())
        self.assertEqual('allocated', self.card().status)
