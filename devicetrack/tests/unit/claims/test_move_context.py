"""What a service that tracks PCI functions itself has in the context of a move."""

import json

from oslo_versionedobjects import fields as ovo_fields
from oslo_versionedobjects import fixture as ovo_fixture

from devicetrack.objects import MigrationContext
from devicetrack.testing import fixtures
from devicetrack.tests.unit.claims import test_moving
from devicetrack.tests.unit.objects import test_registry

PCI_FIELDS = ('old_pci_devices', 'new_pci_devices', 'old_pci_requests', 'new_pci_requests')


class ServiceTracksTestCase(test_moving.RegionTestCase):

    def setUp(self):
        super().setUp()
        registry = self.useFixture(ovo_fixture.VersionedObjectRegistryFixture())
        self.devices, self.requests = (test_registry.class_of_another_project(name, fields={
            'names': ovo_fields.ListOfStringsField()}) for name in ('PciDeviceList', 'InstancePCIRequests'))
        for cls in (self.devices, self.requests):
            registry.register(cls)

    def claimed(self, kind, **theirs):
        """The contexts that the instance and the store have after a claim for a move."""
        region = self.region()
        instance = region.spawn('one', pmem=1)
        instance.pci_devices, instance.pci_requests = self.devices(names=['old']), self.requests(names=['wanted'])
        claim = getattr(self.two.manager, kind)
        claim(None, instance, 'two', fixtures.a_request(pmem=1), region.migration(instance, 'two'), **theirs)
        self.two.restart()
        stored = self.two.store.store.context(self.two.manager.state().host_uuid, instance.uuid)
        assert stored is not None
        return instance.migration_context, MigrationContext.obj_from_primitive(json.loads(stored.context or ''))

    def test_it_is_carried_through_a_claim_and_a_restart(self):
        for kind in ('resize_claim', 'rebuild_claim'):
            for context in self.claimed(kind, pci_devices=self.devices(names=['new']),
                                        pci_requests=self.requests(names=['more'])):
                self.assertEqual([['old'], ['new'], ['wanted'], ['more']],
                                 [getattr(context, name).names for name in PCI_FIELDS])

    def test_what_is_no_versioned_object_is_not(self):
        for context in self.claimed('resize_claim', pci_devices=['new'], pci_requests=None):
            self.assertEqual([['old'], None, ['wanted'], None], [
                getattr(getattr(context, name), 'names', None) for name in PCI_FIELDS])
