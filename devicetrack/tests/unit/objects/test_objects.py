"""Every versioned object: its form on the wire, and what it may be asked."""

from collections.abc import Sequence
import copy
import json
from typing import Any

from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fixture as ovo_fixture

from devicetrack import exception
from devicetrack import objects
from devicetrack.objects import details
from devicetrack.objects import traits
from devicetrack.tests import base
from devicetrack.tests.unit.objects import samples

# A hash that changed means that peers and stores of the last release would read these objects wrongly. A new field
# needs a new minor version, an ``obj_make_compatible`` that takes it away again, and, in details, a ``convert`` that
# fills it in. Only then change the hash.
HASHES = {
    'devicetrack.DeclaredDevice': '1.0-0ca358a7fe6eaf0acb43c11660a501ea',
    'devicetrack.DeviceAssignment': '1.2-976fb4baf50bd11ff0f70774178fafd9',
    'devicetrack.DeviceMap': '1.1-e67f88aedb4eec58e7e305e0d9073148',
    'devicetrack.DevicePair': '1.1-d42bf183626e2b42637198d6125925fc',
    'devicetrack.DeviceChoice': '1.0-1a69dbdf92c05d2839cece5e924cb215',
    'devicetrack.DeviceRequest': '1.2-d95fc6baa1602a4e24c95a9523a07231',
    'devicetrack.InstancePCIRequest': '1.0-7ca743f6dfa19f15672d775f17207706',
    'devicetrack.InstancePCIRequests': '1.0-3928680ff73c1b9e8a1d15042f6c8287',
    'devicetrack.InstanceResources': '1.2-c5c5ff390888a26069d419003cd27064',
    'devicetrack.LiveMigrationCheck': '1.0-c7a680398d6e3413c1aec3867e383b20',
    'devicetrack.MdevDetails': '1.1-763d971eaa312bc84322d3747f78af13',
    'devicetrack.MigrationContext': '1.3-ad1655974dbd533161fadebcd47dc206',
    'devicetrack.NetworkPort': '1.0-7d350c97a7a5dff719703f16d3ca8411',
    'devicetrack.Provider': '1.1-4318bb38623dc6e8839a8d49364da346',
    'devicetrack.RequestedDevices': '1.2-c8e0848e59d01800ed708c409fd2d2be',
    'devicetrack.PCIDevice': '1.0-66a5736c874193b69593e5a1fe2ec8ea',
    'devicetrack.PCIDeviceList': '1.0-15ecf022a68ddbb8c2a6739cfc9f8f5e',
    'devicetrack.PCIDetails': '1.4-8f82f9e45d94b39ad1ef75dc3d617fdf',
    'devicetrack.VFDetails': '1.1-03a3c4bf3e0d1f8e62ab9aa8dbf27209',
    'devicetrack.VPMEMDetails': '1.0-808c311127a19643fafa92de6aeb67a4',
}


def our_classes():
    return {name: classes for name, classes in ovo_base.VersionedObjectRegistry.obj_classes().items()
            if name.startswith('devicetrack.') and classes[0].__module__.startswith('devicetrack.objects.')}


class PinnedTestCase(base.TestCase):

    def test_no_class_changed_its_fields_without_a_new_version(self):
        expected, actual = ovo_fixture.ObjectVersionChecker(our_classes()).test_hashes(HASHES)
        self.assertEqual(expected, actual)

    def test_every_class_has_a_sample(self):
        self.assertEqual({name.removeprefix('devicetrack.') for name in our_classes()}, set(samples.ONE_OF_EACH))

    def test_every_class_is_registered_under_our_name(self):
        theirs = [name for name, classes in ovo_base.VersionedObjectRegistry.obj_classes().items()
                  if classes[0].__module__.startswith('devicetrack.objects') and not name.startswith('devicetrack.')]
        self.assertEqual([], theirs)


class RoundTripTestCase(base.TestCase):

    scenarios = [(name, {'sample': sample}) for name, sample in samples.ONE_OF_EACH.items()]

    def test_through_json(self):
        before = self.sample()
        wire = json.loads(json.dumps(before.obj_to_primitive()))
        after = type(before).obj_from_primitive(wire)
        self.assertEqual(before, after)
        self.assertEqual(before.obj_to_primitive(), after.obj_to_primitive())

    def test_through_the_serializer_of_a_peer(self):
        before = self.sample()
        serializer = samples.Serializer()
        after = serializer.deserialize_entity(None, serializer.serialize_entity(None, before))
        self.assertIsInstance(after, type(before))
        self.assertEqual(before, after)

    def test_every_field_is_set(self):
        sample = self.sample()
        self.assertEqual([], [name for name in sample.fields if not sample.obj_attr_is_set(name)])

    def test_a_copy_has_everything(self):
        before = self.sample()
        expected = self.sample().obj_to_primitive()
        self.assertEqual(expected, copy.deepcopy(before).obj_to_primitive())
        self.assertEqual(expected, self.sample().obj_clone().obj_to_primitive())

    def test_facts_and_not_history_make_the_primitive(self):
        sample = self.sample()
        sample.obj_reset_changes()
        self.assertEqual(self.sample().obj_to_primitive(), sample.obj_to_primitive())

    def test_what_is_no_object_is_refused_by_name(self):
        cls = type(self.sample())
        good = self.sample().obj_to_primitive()
        bad: Any
        for bad in (None, [], 'text', {}, {'versioned_object.name': good['versioned_object.name']},
                    {**good, 'versioned_object.data': None}, {**good, 'versioned_object.name': {}},
                    {**good, 'versioned_object.namespace': 'nova'}):
            error = self.assertRaises((exception.MalformedObject, exception.UnknownObject),
                                      cls.obj_from_primitive, bad)
            self.assertIn('devicetrack.', str(error) + repr(error.args) + cls.obj_name())

    def test_a_newer_version_is_named(self):
        for version in ('1.99', '2.0', '0.9', 'x', None):
            newer = {**self.sample().obj_to_primitive(), 'versioned_object.version': version}
            error = self.assertRaises(exception.UnknownObject, type(self.sample()).obj_from_primitive, newer)
            self.assertEqual((self.sample().obj_name(), str(version)), (error.name, error.version))


class AssignmentTestCase(base.TestCase):

    def test_carries_what_its_row_says(self):
        record = samples.record()
        assignment = objects.DeviceAssignment.from_record(record)
        for name in record._fields:
            if name not in ('details', 'instance_name'):
                self.assertEqual(getattr(record, name), getattr(assignment, name))
        self.assertEqual(samples.vpmem_details(), assignment.details)

    def test_its_details_are_read_when_they_are_asked_for(self):
        assignment = objects.DeviceAssignment.from_record(samples.record(details='damaged'))
        self.assertEqual('ns0', assignment.identifier)
        self.assertRaises(exception.MalformedObject, lambda: assignment.details)

    def test_a_field_that_was_never_set_is_no_secret(self):
        self.assertRaises(NotImplementedError, lambda: objects.DeviceAssignment().identifier)

    def test_a_word_that_is_no_role_is_refused(self):
        self.assertRaises(ValueError, setattr, samples.assignment(), 'role', 'new')
        self.assertRaises(ValueError, setattr, samples.assignment(), 'state', 'gone')

    def test_details_must_be_details(self):
        self.assertRaises(ValueError, setattr, samples.assignment(), 'details', samples.provider())


class DeviceMapTestCase(base.TestCase):

    def test_a_message_of_the_service_carries_the_mediated_devices_alone(self):
        other = samples.device_pair(source='b', destination='y', type='nvidia-36')
        found = samples.device_map(samples.device_pair(), samples.device_pair('vpmem', 'ns0', 'ns7', '4GB'), other)
        self.assertEqual({samples.MDEV: 'nvidia-35', 'b': 'nvidia-36'}, found.mdev_types())
        self.assertEqual({samples.MDEV: samples.device_pair().destination, 'b': 'y'}, found.mdev_targets())
        self.assertEqual(list(found.mdev_types()), list(found.mdev_targets()))

    def test_pairs_keep_their_order_on_the_wire(self):
        pairs = [samples.device_pair(source=str(number)) for number in (2, 0, 1)]
        wire = json.loads(json.dumps(samples.device_map(*pairs).obj_to_primitive()))
        read = objects.DeviceMap.obj_from_primitive(wire)
        self.assertEqual(['2', '0', '1'], [pair.source for pair in read.pairs])

    def test_a_guest_with_devices_never_runs_in_two_places(self):
        self.assertFalse(samples.device_map().post_copy_allowed)
        without = objects.DeviceMap.of(samples.INSTANCE, samples.MIGRATION, (), '')
        self.assertTrue(without.post_copy_allowed)
        self.assertEqual(({}, {}), (without.mdev_types(), without.mdev_targets()))


class InstanceResourcesTestCase(base.TestCase):

    def test_keep_the_order_of_the_request(self):
        self.assertEqual(['ns0', samples.MDEV], [one.identifier for one in samples.resources()])
        self.assertEqual(2, len(samples.resources()))

    def test_are_a_sequence_of_assignments(self):
        resources = samples.resources()
        first, last = resources
        self.assertIsInstance(resources, Sequence)
        self.assertEqual((first, last), (resources[0], resources[-1]))
        self.assertEqual([last], resources[1:])
        self.assertEqual([last, first], list(reversed(resources)))
        self.assertEqual((True, 1), (first in resources, resources.index(last)))
        self.assertRaises(IndexError, resources.__getitem__, 2)
        self.assertRaises(TypeError, resources.__getitem__, 'ns0')

    def test_of_nothing_are_empty(self):
        empty = objects.InstanceResources.from_records(samples.INSTANCE, samples.HOST, ())
        self.assertEqual(f'InstanceResources(instance_uuid={samples.INSTANCE}, host_uuid={samples.HOST}, [])',
                         repr(empty))
        self.assertEqual([], list(empty))
        self.assertEqual(empty, objects.InstanceResources.obj_from_primitive(empty.obj_to_primitive()))


    def test_its_text_says_which_devices_it_has_and_how(self):
        resources = samples.resources()
        devices = ', '.join(f'{one.kind}/{one.identifier} {one.state} {one.role}' for one in resources)
        self.assertIn(f', [{devices}])', repr(resources))
        self.assertEqual(devices, ', '.join(map(str, resources)))

    def test_one_that_is_not_whole_has_a_text_too(self):
        self.assertIn('InstanceResources(', repr(objects.InstanceResources()))
        self.assertIn('DeviceAssignment(', str(objects.DeviceAssignment(kind='vpmem')))


class DetailsTextTestCase(base.TestCase):

    scenarios = base.table(
        ('vpmem', samples.vpmem_details),
        ('mdev', samples.mdev_details),
        ('vf', samples.vf_details),
        names=('sample',))

    def test_reads_back(self):
        self.assertEqual(self.sample(), details.from_text(details.to_text(self.sample())))

    def test_is_the_same_for_the_same_facts(self):
        sample = self.sample()
        backwards = type(sample)(**{name: getattr(sample, name) for name in reversed(list(sample.fields))})
        read = details.from_text(details.to_text(sample))
        self.assertEqual({details.to_text(sample)}, {details.to_text(backwards), details.to_text(read)})

    def test_is_current(self):
        self.assertTrue(details.is_current(details.to_text(self.sample())))


class DetailsOfADeviceTestCase(base.TestCase):

    def test_say_what_backs_memory(self):
        found = samples.vpmem_details()
        self.assertEqual('devdax', found.device_api)
        for path in ('/var/lib/pmem/ns0', '/dev/shm/ns0'):
            found.devpath = path
            self.assertEqual('file', found.device_api)

    def test_say_whether_the_device_goes_with_its_assignment(self):
        self.assertEqual((False, True, False, False), (
            samples.vpmem_details().goes_with_its_assignment,
            samples.mdev_details('created').goes_with_its_assignment,
            samples.mdev_details('adopted').goes_with_its_assignment,
            samples.vf_details('created').goes_with_its_assignment))


class TraitsTestCase(base.TestCase):

    def test_say_what_a_device_is(self):
        self.assertEqual((), samples.vpmem_details().traits)
        self.assertEqual(('CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_35', 'CUSTOM_DEVICETRACK_DEVICE_API_VFIO_PCI',
                          'CUSTOM_DEVICETRACK_VENDOR_NVIDIA'), samples.mdev_details().traits)
        self.assertEqual(('CUSTOM_DEVICETRACK_VF_TYPE_558', 'CUSTOM_DEVICETRACK_DEVICE_API_VFIO_PCI',
                          'CUSTOM_DEVICETRACK_VENDOR_NVIDIA'), samples.vf_details().traits)

    def test_a_vendor_that_is_not_known_is_not_made_up(self):
        mdev = samples.mdev_details()
        mdev.type = 'mtty-1'
        self.assertEqual(('CUSTOM_DEVICETRACK_MDEV_TYPE_MTTY_1', 'CUSTOM_DEVICETRACK_DEVICE_API_VFIO_PCI'),
                         mdev.traits)

    def test_a_name_that_would_be_too_long_is_cut(self):
        self.assertEqual(traits.LONGEST, len(traits.ours('mdev_type', 'x' * 300)))


PCI = details.to_text(samples.pci_details())


class BadDetailsTestCase(base.TestCase):

    scenarios = base.table(
        ('empty', ''),
        ('no JSON', '{'),
        ('a list', '[]'),
        ('a number', '1'),
        ('null', 'null'),
        ('no name', '{"versioned_object.version": "1.0", "versioned_object.data": {}}'),
        ('a name that is no text',
         '{"versioned_object.name": {}, "versioned_object.version": "1.0", "versioned_object.data": {}}'),
        ('a version that is none',
         '{"versioned_object.name": "devicetrack.MdevDetails", "versioned_object.version": "new", '
         '"versioned_object.data": {}}'),
        ('data that is no object',
         '{"versioned_object.name": "devicetrack.MdevDetails", "versioned_object.version": "1.0", '
         '"versioned_object.data": []}'),
        ('a value of another type',
         '{"versioned_object.name": "devicetrack.VPMEMDetails", "versioned_object.version": "1.0", '
         '"versioned_object.data": {"size_bytes": "four"}}'),
        ('a text that is to be yes or no', PCI.replace('"trusted":false', '"trusted":"x"')),
        ('a number in a list of texts', PCI.replace('["CUSTOM_FAST"]', '[1]')),
        ('a number that is to be a list', PCI.replace('["CUSTOM_FAST"]', '5')),
        ('very deep', '[' * 100_000),
        names=('text',))

    def test_are_malformed(self):
        self.assertRaises(exception.MalformedObject, details.from_text, self.text)
