"""What peers and stores of other releases hand us: older, newer, unknown.

Nearly every class of ours is 1.0. So a class that only tests have stands for one that has grown twice.
"""

import json
import re

from oslo_utils import versionutils
from oslo_versionedobjects import fields as ovo_fields
from oslo_versionedobjects import fixture as ovo_fixture

from devicetrack import exception
from devicetrack import objects
from devicetrack.objects import base as our_base
from devicetrack.objects import details
from devicetrack.objects import identity
from devicetrack.tests import base
from devicetrack.tests.unit.objects import samples


class LampDetails(details.DeviceDetails):
    """1.0 had ``colour``; 1.1 added ``watts``; 1.2 added ``maker`` and gave ``watts`` a floor of 1."""

    VERSION = '1.2'
    fields = {
        'colour': ovo_fields.StringField(),
        'watts': ovo_fields.IntegerField(),
        'maker': ovo_fields.StringField(nullable=True),
    }

    def obj_make_compatible(self, primitive, target_version):
        super().obj_make_compatible(primitive, target_version)
        target = versionutils.convert_version_to_tuple(target_version)
        if target < (1, 2):
            primitive.pop('maker', None)
        if target < (1, 1):
            primitive.pop('watts', None)

    @classmethod
    def convert(cls, data, version):
        if version == '1.0':
            data['watts'] = 0
        if version in ('1.0', '1.1'):
            data['watts'] = max(1, data['watts'])
            data['maker'] = None
        return data


class WithLampsTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(ovo_fixture.VersionedObjectRegistryFixture()).register(LampDetails)

    @staticmethod
    def lamp():
        return LampDetails(colour='red', watts=40, maker='us')


class BackLevelTestCase(WithLampsTestCase):

    scenarios = base.table(
        ('1.0', '1.0', {'colour': 'red'}),
        ('1.1', '1.1', {'colour': 'red', 'watts': 40}),
        ('1.2', '1.2', {'colour': 'red', 'watts': 40, 'maker': 'us'}),
        names=('version', 'data'))

    def test_a_peer_of_this_version_gets_what_it_knows(self):
        primitive = self.lamp().obj_to_primitive(target_version=self.version)
        self.assertEqual((self.version, self.data),
                         (primitive['versioned_object.version'], primitive['versioned_object.data']))

    def test_inside_an_assignment_too(self):
        record = samples.record(details=details.to_text(self.lamp()))
        assignment = objects.DeviceAssignment.from_record(record)
        primitive = assignment.obj_to_primitive(target_version='1.0', version_manifest={
            'devicetrack.DeviceAssignment': '1.0', 'devicetrack.LampDetails': self.version})
        inside = primitive['versioned_object.data']['details']
        self.assertEqual((self.version, self.data),
                         (inside['versioned_object.version'], inside['versioned_object.data']))


class StoredByAnOlderReleaseTestCase(WithLampsTestCase):

    scenarios = base.table(
        ('1.0', '1.0', {'colour': 'red'}, ('red', 1, None)),
        ('1.1, a value that 1.2 refuses', '1.1', {'colour': 'red', 'watts': 0}, ('red', 1, None)),
        ('1.1', '1.1', {'colour': 'red', 'watts': 40}, ('red', 40, None)),
        ('1.2', '1.2', {'colour': 'red', 'watts': 40, 'maker': 'us'}, ('red', 40, 'us')),
        names=('version', 'data', 'expected'))

    def text(self):
        return json.dumps({'versioned_object.name': 'devicetrack.LampDetails',
                           'versioned_object.namespace': 'devicetrack',
                           'versioned_object.version': self.version, 'versioned_object.data': self.data})

    def test_is_converted_when_it_is_read(self):
        for _again in range(2):                 # a text that was parsed before is kept
            lamp = details.from_text(self.text())
            self.assertEqual(self.expected, (lamp.colour, lamp.watts, lamp.maker))
            self.assertEqual('1.2', lamp.VERSION)

    def test_is_written_back_in_this_version(self):
        again = details.to_text(details.from_text(self.text()))
        self.assertTrue(details.is_current(again))
        self.assertEqual(self.version == '1.2', details.is_current(self.text()))


    def test_is_read_inside_a_message(self):
        resources = samples.resources().obj_to_primitive()
        resources['versioned_object.data']['assignments'][0]['versioned_object.data']['details'] = json.loads(
            self.text())
        [lamp, *_others] = [one.details for one in objects.InstanceResources.obj_from_primitive(resources)]
        self.assertEqual('red', lamp.colour)


class StoredByANewerReleaseTestCase(WithLampsTestCase):

    scenarios = base.table(
        ('a newer minor version', 'devicetrack.LampDetails', '1.3'),
        ('a newer major version', 'devicetrack.LampDetails', '2.0'),
        ('an unknown class', 'devicetrack.TorchDetails', '1.0'),
        ('a class that is no details', 'devicetrack.Provider', '1.0'),
        ('a class of another project', 'LampDetails', '1.0'),
        names=('name', 'version'))

    def text(self):
        return json.dumps({'versioned_object.name': self.name, 'versioned_object.namespace': 'devicetrack',
                           'versioned_object.version': self.version, 'versioned_object.data': {}})

    def test_is_named(self):
        error = self.assertRaises(exception.UnknownObject, details.from_text, self.text())
        self.assertEqual((self.name, self.version), (error.name, error.version))
        self.assertIn(self.name, str(error))

    def test_is_not_current(self):
        self.assertFalse(details.is_current(self.text()) and self.name.endswith('LampDetails'))

    def test_its_assignment_can_still_be_told_who_owns_what(self):
        assignment = objects.DeviceAssignment.from_record(samples.record(details=self.text()))
        self.assertEqual(samples.INSTANCE, assignment.instance_uuid)
        self.assertRaises(exception.UnknownObject, lambda: assignment.details)


class FromANewerPeerTestCase(WithLampsTestCase):

    scenarios = base.table(
        ('class', 'versioned_object.name', 'devicetrack.TorchDetails', 'devicetrack.TorchDetails', '1.2'),
        ('version', 'versioned_object.version', '1.7', 'devicetrack.LampDetails', '1.7'),
        names=('key', 'value', 'name', 'version'))

    def test_in_the_middle_of_a_list_is_named_with_its_place(self):
        records = [samples.record(identifier=str(number), position=number, details=details.to_text(self.lamp()))
                   for number in range(3)]
        context = samples.migration_context()
        context.new_resources = objects.InstanceResources.from_records(samples.INSTANCE, samples.HOST, records)
        wire = json.loads(json.dumps(context.obj_to_primitive()))
        second = wire['versioned_object.data']['new_resources']['versioned_object.data']['assignments'][1]
        second['versioned_object.data']['details'][self.key] = self.value
        error = self.assertRaises(exception.UnknownObject, objects.MigrationContext.obj_from_primitive, wire)
        self.assertEqual((self.name, self.version), (error.name, error.version))
        self.assertIn('new_resources.assignments[1].details', str(error))

    def test_through_the_serializer_of_a_peer(self):
        primitive = {**self.lamp().obj_to_primitive(), self.key: self.value}
        self.assertRaises(exception.UnknownObject, samples.Serializer().deserialize_entity, None, primitive)


class AnOlderPeerTestCase(WithLampsTestCase):

    def test_an_object_of_its_version_is_read(self):
        lamp = LampDetails.obj_from_primitive(self.lamp().obj_to_primitive(target_version='1.1'))
        self.assertEqual(('red', 40), (lamp.colour, lamp.watts))

    def test_our_names_are_ours(self):
        self.assertEqual('devicetrack.LampDetails', our_base.name_of('LampDetails'))
        self.assertEqual('devicetrack.LampDetails', LampDetails.obj_name())


class ProviderTestCase(base.TestCase):
    """1.1 added ``reserved`` and ``traits``."""

    def test_a_peer_of_1_0_gets_what_it_knows(self):
        primitive = samples.provider().obj_to_primitive(target_version='1.0')
        self.assertEqual('1.0', primitive['versioned_object.version'])
        self.assertEqual({'uuid', 'name', 'parent_uuid', 'totals'}, set(primitive['versioned_object.data']))

    def test_of_a_peer_of_1_0_reserves_nothing_and_has_no_traits(self):
        provider = objects.Provider.obj_from_primitive(samples.provider().obj_to_primitive(target_version='1.0'))
        self.assertEqual(({'VGPU': 16}, {}, []), (provider.totals, provider.reserved, provider.traits))

    def test_two_that_were_made_share_nothing(self):
        first, second = (objects.Provider(uuid=samples.PROVIDER, name='host', parent_uuid=None, totals={})
                         for _ in range(2))
        first.reserved['VGPU'] = 1
        first.traits.append('HW_NUMA_ROOT')
        self.assertEqual(({}, []), (second.reserved, second.traits))


class AssignmentTestCase(base.TestCase):
    """1.1 added ``seen``, 1.2 ``was_realized``."""

    def test_a_peer_of_1_0_gets_what_it_knows(self):
        newest = samples.assignment().obj_to_primitive()['versioned_object.data']
        primitive = samples.assignment().obj_to_primitive(target_version='1.0')
        self.assertEqual('1.0', primitive['versioned_object.version'])
        self.assertEqual(('1.2.3', False), (newest.pop('seen'), newest.pop('was_realized')))
        self.assertEqual(newest, primitive['versioned_object.data'])

    def test_a_peer_of_1_1_does_not_say_whether_the_device_was_realized_so_it_may_have_been(self):
        primitive = samples.assignment().obj_to_primitive(target_version='1.1')
        self.assertEqual('1.2.3', primitive['versioned_object.data']['seen'])
        self.assertNotIn('was_realized', primitive['versioned_object.data'])
        self.assertIs(True, objects.DeviceAssignment.obj_from_primitive(primitive).was_realized)

    def test_of_a_peer_of_1_0_nobody_knows_what_its_guest_has_seen(self):
        primitive = samples.assignment().obj_to_primitive(target_version='1.0')
        assignment = objects.DeviceAssignment.obj_from_primitive(primitive)
        self.assertIsNone(assignment.seen)
        self.assertEqual(samples.vpmem_details(), assignment.details)

    def test_inside_a_migration_context_too(self):
        manifest = {f'devicetrack.{name}': '1.0' for name in (
            'MigrationContext', 'InstanceResources', 'DeviceAssignment', 'VPMEMDetails', 'MdevDetails')}
        primitive = samples.migration_context().obj_to_primitive(target_version='1.0', version_manifest=manifest)
        context = objects.MigrationContext.obj_from_primitive(primitive)
        self.assertEqual([('1.0', None)] * 2, [(held.VERSION, held.seen) for held in context.old_resources.assignments])


class FirstReleaseTestCase(base.TestCase):
    """What holds an object that has grown, as a peer of the first release sends and gets it."""

    scenarios = [(name, {'made': made}) for name, made in (
        ('DeviceMap', samples.device_map), ('InstanceResources', samples.resources),
        ('MigrationContext', samples.migration_context))]

    def test_holds_nothing_newer(self):
        primitive = self.made().obj_to_primitive(target_version='1.0')
        self.assertNotIn('seen', json.dumps(primitive))
        versions = re.findall(r'"versioned_object.version": "([^"]+)"', json.dumps(primitive))
        self.assertEqual({'1.0'}, set(versions))

    def test_is_read_with_nothing_known_of_what_was_added(self):
        read = type(self.made()).obj_from_primitive(self.made().obj_to_primitive(target_version='1.0'))
        inside = getattr(read, 'pairs', None) or getattr(read, 'assignments', None) or read.old_resources.assignments
        self.assertEqual({None}, {one.seen for one in inside})


class NetworkDetailsTestCase(base.TestCase):
    """``PCIDetails`` 1.1, which added the port of a network."""

    @staticmethod
    def function(**more):
        function = samples.pci_details()
        function.physical_network = 'physnet1'
        for name, value in more.items():
            setattr(function, name, value)
        return function

    def test_a_peer_of_1_0_gets_what_it_knows(self):
        known = self.function(mac='52:54:00:aa:bb:01', vlan=41, trusted=True).obj_to_primitive(target_version='1.0')
        self.assertEqual('1.0', known['versioned_object.version'])
        self.assertEqual(set(objects.PCIDetails.fields) - {'physical_network', 'mac', 'vlan', 'trusted', 'interfaces',
                                                           'claimed_parent', 'no_serial', 'nvm_subsystem'},
                         set(known['versioned_object.data']))

    def test_what_1_0_stored_is_no_port(self):
        text = json.dumps(samples.pci_details().obj_to_primitive(target_version='1.0'))
        self.assertFalse(details.is_current(text))
        for read in (details.from_text, details.peek):
            self.assertEqual((None, False), (read(text).port, read(text).needs_port))
        self.assertEqual(details.to_text(samples.pci_details()), details.to_text(details.from_text(text)))

    def test_a_port_is_written_and_read(self):
        port, text = samples.network_port().as_port(), details.to_text(self.function())
        self.assertIsNone(details.port_of(text))
        with_port = details.as_port(text, port)
        self.assertEqual(port, details.port_of(with_port))
        self.assertIs(True, identity.same_device(text, with_port))
        self.assertIn('physical network physnet1', str(details.peek(text).migration_obstacle))
        self.assertTrue(details.peek(text).migration_type.endswith(' that stays'))

    def test_a_function_of_a_network_is_nothing_else(self):
        text, plain = details.to_text(self.function()), details.to_text(samples.pci_details())
        self.assertIn('DeviceRequest', str(self.assertRaises(ValueError, details.as_port, text, None)))
        self.assertIs(plain, details.as_port(plain, None))
        port = samples.network_port().as_port()
        for wrong in (plain, details.to_text(self.function(physical_network='other')),
                      details.to_text(samples.mdev_details())):
            self.assertRaises(ValueError, details.as_port, wrong, port)


class NamedDetailsTestCase(base.TestCase):
    """``PCIDetails`` 1.2, which added the names that the claim found."""

    def test_a_peer_of_1_1_gets_what_it_knows(self):
        function = samples.pci_details()
        function.interfaces, function.claimed_parent = ['enp3s0'], '0000:03:00.0'
        known = function.obj_to_primitive(target_version='1.1')
        self.assertEqual('1.1', known['versioned_object.version'])
        self.assertEqual(set(objects.PCIDetails.fields) - {'interfaces', 'claimed_parent', 'no_serial',
                                                           'nvm_subsystem'},
                         set(known['versioned_object.data']))
        self.assertEqual(function.obj_to_primitive(), objects.PCIDetails.obj_from_primitive(
            function.obj_to_primitive()).obj_to_primitive())

    def test_of_what_1_1_stored_the_names_are_unknown(self):
        function = samples.pci_details()
        function.parent_address = '0000:03:00.0'
        for version in ('1.0', '1.1'):
            read = details.from_text(json.dumps(function.obj_to_primitive(target_version=version)))
            self.assertEqual((None, '0000:03:00.0'), (read.interfaces, read.claimed_parent))

    def test_other_names_are_no_other_device(self):
        function, text = samples.pci_details(), details.to_text(samples.pci_details())
        function.interfaces, function.claimed_parent = ['enp3s0'], '0000:03:00.0'
        self.assertIs(True, identity.same_device(text, details.to_text(function)))


class AskedDetailsTestCase(base.TestCase):
    """``PCIDetails`` 1.3, which tells a card without a serial number from one whose number was not read."""

    def test_a_peer_of_1_2_gets_what_it_knows(self):
        function = samples.pci_details()
        function.serial, function.no_serial = '', True
        known = function.obj_to_primitive(target_version='1.2')
        self.assertEqual('1.2', known['versioned_object.version'])
        self.assertEqual(set(objects.PCIDetails.fields) - {'no_serial', 'nvm_subsystem'},
                         set(known['versioned_object.data']))

    def test_of_what_1_2_stored_without_a_serial_number_nobody_knows(self):
        function = samples.pci_details()
        for serial, unknown in (('S1', ()), ('', ('serial',))):
            function.serial = serial
            text = json.dumps(function.obj_to_primitive(target_version='1.2'))
            for read in (details.from_text, details.peek):
                self.assertEqual((False, unknown), (read(text).no_serial, read(text).unknown_identity))


class SubsystemDetailsTestCase(base.TestCase):
    """``PCIDetails`` 1.4, which tells disks apart that have one serial number."""

    @staticmethod
    def function(name, version=None):
        function = samples.pci_details()
        function.nvm_subsystem = name
        return json.dumps(function.obj_to_primitive(target_version=version))

    def test_what_1_3_stored_is_the_same_device_whatever_its_subsystem(self):
        older = self.function('nqn.a', '1.3')
        self.assertEqual('', details.from_text(older).nvm_subsystem)
        self.assertIs(True, identity.same_device(older, self.function('nqn.a')))

    def test_another_subsystem_is_another_device(self):
        self.assertIs(False, identity.same_device(self.function('nqn.a'), self.function('nqn.b')))


class CardDetailsTestCase(base.TestCase):
    """``MdevDetails`` 1.1 and ``VFDetails`` 1.1, which added the serial number of the card."""

    scenarios = [(made.__name__, {'made': staticmethod(made)}) for made in (samples.mdev_details, samples.vf_details)]

    def text(self, serial, version=None):
        device = self.made()
        device.parent_serial = serial
        return json.dumps(device.obj_to_primitive(target_version=version))

    def test_what_1_0_stored_is_the_same_device_on_an_unknown_card(self):
        older = self.text('S1', '1.0')
        self.assertFalse(details.is_current(older))
        self.assertEqual(('', None), (details.from_text(older).parent_serial, details.serial_of(older)))
        self.assertIs(True, identity.same_device(older, self.text('S1')))
        compared = identity.compare(older, self.text('S1'))
        assert compared is not None
        self.assertEqual(({}, ('parent_serial',)), (compared.others, compared.new))
        self.assertEqual('S1', details.serial_of(identity.filled(older, self.text('S1'))))

    def test_a_card_in_the_place_of_another_makes_no_other_device(self):
        self.assertIs(True, identity.same_device(self.text('S1'), self.text('S2')))
        self.assertEqual('S2', details.serial_of(identity.kept(self.text('S1'), self.text('S2'))))

    def test_a_card_that_cannot_be_read_now_is_no_difference(self):
        compared = identity.compare(self.text('S1'), self.text(''))
        assert compared is not None
        self.assertEqual(({}, {}, True), (compared.itself, compared.others, compared.is_certain))
        self.assertEqual('S1', details.serial_of(identity.kept(self.text('S1'), self.text(''))))


class SerialNumberTestCase(base.TestCase):

    def test_each_kind_has_one(self):
        disk, function, namespace = samples.pci_details(), samples.pci_details(), samples.vpmem_details()
        disk.serial, function.serial, function.parent_serial = 'S1', '', 'S2'
        self.assertEqual(['S1', 'S2', namespace.namespace_uuid], [
            details.serial_of(details.to_text(one)) for one in (disk, function, namespace)])

    def test_of_the_parent_is_that_of_its_card_alone(self):
        function, namespace = samples.pci_details(), samples.vpmem_details()
        function.serial, function.parent_serial = '', 'S2'
        self.assertEqual(['S2', None], [
            details.serial_of(details.to_text(one), of_parent=True) for one in (function, namespace)])

    def test_what_cannot_be_read_has_none(self):
        namespace = samples.vpmem_details()
        namespace.namespace_uuid = objects.VPMEMDetails.UNREAD_UUID
        self.assertEqual([None] * 3, [details.serial_of(text) for text in (
            '', 'damaged', details.to_text(namespace))])
