"""Our versioned objects in one process with Nova's, installed from its package.

Both projects have a ``MigrationContext``, and the registry of oslo.versionedobjects is one for the process.
"""

import json
import subprocess
import sys
import textwrap

from nova import objects as nova_objects
from nova.objects import base as nova_base
from nova.objects import instance_numa
from oslo_versionedobjects import base as ovo_base

from devicetrack import exception
from devicetrack import objects
from devicetrack.objects.migration_context import Carried
from devicetrack.tests import base
from devicetrack.tests.unit.objects import samples


def ordered(primitive):
    """A primitive whose names of changed fields have an order: Nova's objects list a set, ours list none."""
    if isinstance(primitive, dict):
        return {key: sorted(value) if key.endswith('.changes') else ordered(value) for key, value in primitive.items()}
    if isinstance(primitive, (list, tuple)):
        return [ordered(each) for each in primitive]
    return primitive


class WithNovaTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        nova_objects.register_all()

    @staticmethod
    def topology():
        return instance_numa.InstanceNUMATopology(cells=[
            instance_numa.InstanceNUMACell(id=0, cpuset={0, 1}, pcpuset=set(), memory=1024)])

    def theirs(self):
        return nova_objects.MigrationContext(
            instance_uuid=samples.INSTANCE, migration_id=7, new_numa_topology=self.topology(),
            old_numa_topology=None, new_pci_devices=None, old_pci_devices=None, new_pci_requests=None,
            old_pci_requests=None, new_resources=None, old_resources=None)

    @staticmethod
    def through_json(read, entity):
        return read.obj_from_primitive(json.loads(json.dumps(entity.obj_to_primitive())))

    def test_each_name_stands_for_its_own_class(self):
        self.assertIsNot(nova_objects.MigrationContext, objects.MigrationContext)
        self.assertIs(nova_objects.MigrationContext,
                      ovo_base.VersionedObjectRegistry.obj_classes()['MigrationContext'][0])
        self.assertIs(objects.MigrationContext,
                      ovo_base.VersionedObjectRegistry.obj_classes()['devicetrack.MigrationContext'][0])

    def test_theirs_travels(self):
        read = self.through_json(nova_base.NovaObject, self.theirs())
        self.assertIs(nova_objects.MigrationContext, type(read))
        self.assertEqual({0, 1}, read.new_numa_topology.cells[0].cpuset)

    def test_ours_travels_with_theirs_inside(self):
        ours = samples.migration_context()
        ours.old_numa_topology = self.topology()
        read = self.through_json(objects.MigrationContext, ours)
        self.assertEqual(ordered(ours.obj_to_primitive()), ordered(read.obj_to_primitive()))
        self.assertIs(instance_numa.InstanceNUMATopology, type(read.old_numa_topology))
        self.assertEqual({0, 1}, read.old_numa_topology.cells[0].cpuset)

    def test_ours_carries_what_they_track_of_pci_functions(self):
        devices = nova_objects.PciDeviceList(objects=[nova_objects.PciDevice(
            id=1, uuid=samples.PROVIDER, compute_node_id=1, address='0000:81:00.0', vendor_id='144d',
            product_id='a80a', dev_type='type-PCI', status='claimed', dev_id='pci_0000_81_00_0',
            label='label_144d_a80a', instance_uuid=samples.INSTANCE, request_id=samples.MDEV, numa_node=None,
            parent_addr=None, extra_info={'managed': 'yes'})])
        requests = nova_objects.InstancePCIRequests(instance_uuid=samples.INSTANCE, requests=[
            nova_objects.InstancePCIRequest(
                count=1, spec=[{'vendor_id': '144d', 'product_id': 'a80a'}], alias_name='disk', is_new=False,
                request_id=samples.MDEV, requester_id=None, numa_policy='preferred')])
        ours = objects.MigrationContext.of_move(samples.INSTANCE, samples.MIGRATION, None, Carried(None, devices), None,
                                                Carried(None, devices, requests))
        read = self.through_json(objects.MigrationContext, ours)
        self.assertEqual(ordered(ours.obj_to_primitive()), ordered(read.obj_to_primitive()))
        self.assertIs(nova_objects.PciDeviceList, type(read.old_pci_devices))
        self.assertEqual('0000:81:00.0', read.new_pci_devices[0].address)
        self.assertEqual((None, 'disk'), (read.old_pci_requests, read.new_pci_requests.requests[0].alias_name))

    def test_fields_for_pci_functions_have_their_names(self):
        names = [name for name in nova_objects.MigrationContext.fields if 'pci' in name]
        self.assertEqual(4, len(names))
        self.assertLess(set(names), set(objects.MigrationContext.fields))
        for ours, theirs in ((objects.PCIDevice, nova_objects.PciDevice),
                             (objects.InstancePCIRequest, nova_objects.InstancePCIRequest),
                             (objects.InstancePCIRequests, nova_objects.InstancePCIRequests)):
            self.assertLess(set(ours.fields) - {'instance_uuid'}, set(theirs.fields))

    def test_devices_of_ours_are_read_as_theirs_are(self):
        context = nova_objects.MigrationContext(
            instance_uuid=samples.INSTANCE, migration_id=7, old_pci_devices=None, new_pci_devices=None)
        card, _first, _second = samples.pci_devices()
        there = objects.PCIDeviceList(objects=[card.obj_clone()])
        there[0].address = '0000:84:00.0'
        # Their field takes their class alone, so the lists stand in for the values of their fields.
        context._obj_old_pci_devices, context._obj_new_pci_devices = samples.pci_devices(), there
        self.assertEqual({card.address: there[0]}, context.get_pci_mapping_for_migration(False))
        self.assertEqual({'0000:84:00.0': card}, context.get_pci_mapping_for_migration(True))

    def test_theirs_of_a_newer_release_is_named(self):
        ours = samples.migration_context()
        ours.old_numa_topology = self.topology()
        wire = ours.obj_to_primitive()
        wire['versioned_object.data']['old_numa_topology']['nova_object.version'] = '99.0'
        error = self.assertRaises(exception.UnknownObject, objects.MigrationContext.obj_from_primitive, wire)
        self.assertEqual(('InstanceNUMATopology', '99.0'), (error.name, error.version))

    def test_ours_is_not_read_as_theirs(self):
        self.assertRaises(KeyError, nova_base.NovaObject.obj_from_primitive,
                          samples.migration_context().obj_to_primitive())


class OrderOfImportsTestCase(base.TestCase):

    scenarios = base.table(
        ('Nova first', 'import nova.objects; nova.objects.register_all(); import devicetrack.objects'),
        ('Nova last', 'import devicetrack.objects; import nova.objects; nova.objects.register_all()'),
        names=('imports',))

    def test_changes_nothing(self):
        program = textwrap.dedent("""
            from oslo_versionedobjects import base
            known = base.VersionedObjectRegistry.obj_classes()
            for name in ('MigrationContext', 'devicetrack.MigrationContext'):
                print(*[cls.__module__ for cls in known[name]])
        """)
        answer = subprocess.run([sys.executable, '-W', 'ignore', '-c', self.imports + '\n' + program],
                                capture_output=True, text=True, check=True)
        self.assertEqual(['nova.objects.migration_context', 'devicetrack.objects.migration_context'],
                         answer.stdout.split())
