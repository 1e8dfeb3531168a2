"""The PCI functions in a migration context: ours, made of assignments, and those of a service that tracks them."""

import json

from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields as ovo_fields
from oslo_versionedobjects import fixture as ovo_fixture

from devicetrack import exception
from devicetrack import objects
from devicetrack.objects.migration_context import Carried
from devicetrack.objects.migration_context import NOTHING
from devicetrack.tests import base
from devicetrack.tests.unit.objects import samples
from devicetrack.tests.unit.objects import test_registry

PCI_FIELDS = ('old_pci_devices', 'new_pci_devices', 'old_pci_requests', 'new_pci_requests')


def pci_of(context):
    return [getattr(context, name) for name in PCI_FIELDS]


class OfResourcesTestCase(base.TestCase):

    def test_devices_have_the_facts_that_services_keep(self):
        card, first, second = samples.pci_devices()
        self.assertEqual(('0000:81:00.0', '1b36', '0010', 'type-PCI', None, 1, samples.INSTANCE), (
            card.address, card.vendor_id, card.product_id, card.dev_type, card.parent_addr, card.numa_node,
            card.instance_uuid))
        self.assertEqual([('0000:82:00.1', 'type-VF', '0000:82:00.0', None), (
            '0000:82:00.2', 'type-VF', '0000:82:00.0', None)], [
                (one.address, one.dev_type, one.parent_addr, one.numa_node) for one in (first, second)])

    def test_a_request_counts_the_functions_of_a_class(self):
        requests = samples.pci_requests()
        self.assertEqual(samples.INSTANCE, requests.instance_uuid)
        self.assertEqual(
            [(1, [{'resource_class': 'CUSTOM_PCI_1B36_0010', 'vendor_id': '1b36', 'product_id': '0010',
                   'dev_type': 'type-PCI'}]),
             (2, [{'resource_class': 'CUSTOM_VF', 'vendor_id': '1b36', 'product_id': '0010', 'dev_type': 'type-VF'}])],
            [(request.count, request.spec) for request in requests.requests])

    def test_a_device_names_its_request_and_the_one_of_the_other_end(self):
        there = objects.InstanceResources.from_records(samples.INSTANCE, samples.HOST, [
            samples.vf_record('0000:83:00.3'), samples.pci_record(identifier='0000:84:00.0')])
        left, arrived = samples.pci_devices(), objects.PCIDeviceList.of(there)
        assert arrived is not None
        for devices, requests in ((left, samples.pci_requests()), (arrived, objects.InstancePCIRequests.of(there))):
            assert requests is not None
            self.assertEqual({device.request_id for device in devices},
                             {request.request_id for request in requests.requests})
        self.assertEqual([left[1].request_id, left[0].request_id], [device.request_id for device in arrived])
        self.assertNotEqual(left[0].request_id, left[1].request_id)

    def test_without_functions_there_is_nothing(self):
        for resources in (None, samples.resources(),
                          objects.InstanceResources.from_records(samples.INSTANCE, samples.HOST, [])):
            self.assertIsNone(objects.PCIDeviceList.of(resources))
            self.assertIsNone(objects.InstancePCIRequests.of(resources))


class OfMoveTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        registry = self.useFixture(ovo_fixture.VersionedObjectRegistryFixture())
        self.cls = test_registry.class_of_another_project('PciDeviceList', fields={
            'objects': ovo_fields.ListOfStringsField()})
        registry.register(self.cls)
        self.theirs = self.cls(objects=['0000:01:00.0'])

    def moving(self, old=NOTHING, new=NOTHING):
        return objects.MigrationContext.of_move(samples.INSTANCE, samples.MIGRATION, samples.pci_resources(), old,
                                                samples.resources(), new)

    def test_each_end_has_its_own(self):
        old_devices, new_devices, old_requests, new_requests = pci_of(self.moving())
        self.assertEqual(samples.pci_devices(), old_devices)
        self.assertEqual(samples.pci_requests(), old_requests)
        self.assertEqual((None, None), (new_devices, new_requests))

    def test_what_the_service_tracks_is_carried_in_the_place_of_ours(self):
        for given in (Carried(pci_devices=self.theirs), Carried(pci_devices=self.theirs, pci_requests=self.theirs)):
            context = self.moving(given, given)
            self.assertEqual([self.theirs, self.theirs, given.pci_requests, given.pci_requests], pci_of(context))
            read = objects.MigrationContext.obj_from_primitive(json.loads(json.dumps(context.obj_to_primitive())))
            self.assertIs(self.cls, type(read.new_pci_devices))
            self.assertEqual(['0000:01:00.0'], read.old_pci_devices.objects)

    def test_one_of_a_class_that_nobody_knows_here_is_named(self):
        wire = self.moving(Carried(pci_devices=self.theirs)).obj_to_primitive()
        wire['versioned_object.data']['old_pci_devices']['their_object.version'] = '9.0'
        error = self.assertRaises(exception.UnknownObject, objects.MigrationContext.obj_from_primitive, wire)
        self.assertEqual(('PciDeviceList', '9.0'), (error.name, error.version))
        self.assertIn('old_pci_devices', str(error))

    def test_other_new_resources_bring_their_own_functions(self):
        for old in (NOTHING, Carried(pci_devices=self.theirs)):
            before = self.moving(old)
            after = before.instead(samples.pci_resources())
            self.assertEqual((samples.pci_devices(), samples.pci_requests()),
                             (after.new_pci_devices, after.new_pci_requests))
            self.assertEqual(pci_of(before)[::2], pci_of(after)[::2])
            self.assertEqual(before.obj_to_primitive(), after.instead(samples.resources()).obj_to_primitive())

    def test_and_keep_what_the_service_tracks(self):
        after = self.moving(new=Carried(pci_devices=self.theirs)).instead(samples.pci_resources())
        self.assertEqual((self.theirs, None), (after.new_pci_devices, after.new_pci_requests))


class VersionsTestCase(base.TestCase):
    """1.2 added them."""

    scenarios = base.table(('1.0', '1.0'), ('1.1', '1.1'), names=('version',))

    def test_an_older_peer_gets_what_it_knows(self):
        primitive = samples.migration_context().obj_to_primitive(target_version=self.version)
        self.assertEqual(self.version, primitive['versioned_object.version'])
        self.assertEqual({'instance_uuid', 'migration_uuid', 'old_resources', 'new_resources', 'old_numa_topology',
                          'new_numa_topology'}, set(primitive['versioned_object.data']))
        inside = primitive['versioned_object.data']['old_resources']
        self.assertEqual(self.version, inside['versioned_object.version'])

    def test_what_an_older_release_stored_is_read(self):
        text = json.dumps(samples.migration_context().obj_to_primitive(target_version=self.version))
        context = objects.MigrationContext.obj_from_primitive(json.loads(text))
        self.assertEqual([None] * 4, pci_of(context))
        self.assertEqual(2, len(context.old_resources))
        self.assertEqual(context.old_resources, context.instead(samples.pci_resources()).old_resources)

    def test_the_newest_peer_gets_everything(self):
        primitive = samples.migration_context().obj_to_primitive(target_version='1.3')
        self.assertEqual(samples.migration_context().obj_to_primitive(), primitive)
        self.assertLess(set(PCI_FIELDS), set(primitive['versioned_object.data']))


class ListTestCase(base.TestCase):

    def test_is_a_sequence(self):
        devices = samples.pci_devices()
        self.assertEqual((3, '0000:82:00.2', ['0000:82:00.1', '0000:82:00.2']), (
            len(devices), devices[-1].address, [one.address for one in devices[1:]]))
        self.assertIsInstance(devices, ovo_base.ObjectListBase)
