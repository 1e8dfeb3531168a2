"""Objects as texts and as plain maps, for the messages of other services."""

from collections.abc import Iterator
import json
import sys
from typing import Any
import uuid

from devicetrack import exception
from devicetrack import objects
from devicetrack.tests import base
from devicetrack.tests.unit.objects import samples

MESSAGES = {'DeviceMap': samples.device_map, 'LiveMigrationCheck': samples.live_migration_check,
            'InstanceResources': samples.resources}
INSTANCE, MIGRATION, PROVIDER, ONE, TWO, THREE, FOUR = (str(uuid.UUID(int=number)) for number in range(1, 8))


def changed(text: str, path: list[Any], value: Any = None, remove: bool = False) -> str:
    """A text with one value changed, by the fields' names and positions."""
    primitive = one = json.loads(text)
    for step in path[:-1]:
        one = one['versioned_object.data'][step] if isinstance(step, str) else one[step]
    one = one['versioned_object.data'] if isinstance(path[-1], str) else one
    if remove:
        del one[path[-1]]
    else:
        one[path[-1]] = value
    return json.dumps(primitive)


class TextTestCase(base.TestCase):

    def test_every_message_comes_back_from_its_text(self) -> None:
        for name, make in MESSAGES.items():
            text = make().to_text()
            self.assertNotIn('\n', text)
            read = getattr(objects, name).from_text(text)
            self.assertEqual(make().obj_to_primitive(), read.obj_to_primitive())
            self.assertEqual(text, read.to_text())

    def test_of_the_last_release_is_read(self) -> None:
        text = samples.device_map().to_text(target_version='1.0')
        self.assertNotIn('"seen"', text)
        self.assertIsNone(objects.DeviceMap.from_text(text).pairs[0].seen)

    def test_a_check_that_is_not_filled_in(self) -> None:
        check = objects.LiveMigrationCheck(instance_uuid=INSTANCE, devices=None)
        self.assertIsNone(objects.LiveMigrationCheck.from_text(check.to_text()).devices)

    def test_what_is_no_text_of_one_is_refused(self) -> None:
        for text in (None, 1, '', '{', '[]', 'null', '"text"', '{}', '[' * 100000, samples.device_map().to_text()[:-1],
                     samples.device_map().to_text()):
            error = self.assertRaises(exception.MalformedObject, objects.LiveMigrationCheck.from_text, text)
            self.assertEqual('devicetrack.LiveMigrationCheck', error.where)

    def test_of_a_newer_release_is_refused(self) -> None:
        text = samples.device_map().to_text().replace('"versioned_object.version":"1.1"',
                                                      '"versioned_object.version":"1.99"')
        self.assertRaises(exception.UnknownObject, objects.DeviceMap.from_text, text)

    def test_a_field_of_another_type_is_named(self) -> None:
        for name, path, where, value in (
                ('DeviceMap', ['metadata'], 'metadata', 7), ('DeviceMap', ['instance_uuid'], 'instance_uuid', 'one'),
                ('DeviceMap', ['pairs'], 'pairs', {}), ('DeviceMap', ['pairs', 0], 'pairs[0]', 'x'),
                ('DeviceMap', ['pairs', 0, 'source'], 'pairs[0].source', ['x']),
                ('DeviceMap', ['pairs', 0, 'source'], 'pairs[0].source', None),
                ('DeviceMap', ['post_copy_allowed'], 'post_copy_allowed', 'no'),
                ('LiveMigrationCheck', ['devices', 0, 'type'], 'devices[0].type', '\ud800'),
                ('LiveMigrationCheck', ['devices', 0, 'offered'], 'devices[0].offered', ['\ud800']),
                ('LiveMigrationCheck', ['devices', 0, 'aggregation'], 'devices[0].aggregation', '1'),
                ('LiveMigrationCheck', ['devices', 0, 'required'], 'devices[0].required', [1]),
                ('InstanceResources', ['assignments', 0, 'position'], 'assignments[0].position', '0'),
                ('InstanceResources', ['assignments', 0, 'details'], 'assignments[0].details', {}),
                ('InstanceResources', ['assignments', 0, 'role'], 'assignments[0].role', 7)):
            text = changed(MESSAGES[name]().to_text(), path, value)
            for error in self.errors(getattr(objects, name), text):
                self.assertEqual(f'devicetrack.{name}.{where}', error.where)

    def test_a_field_that_is_missing_is_named(self) -> None:
        for name, path, where in (('DeviceMap', ['pairs', 0, 'element'], 'pairs[0].element'),
                                  ('LiveMigrationCheck', ['devices'], 'devices'),
                                  ('InstanceResources', ['assignments', 0, 'details', 'label'],
                                   'assignments[0].details.label')):
            text = changed(MESSAGES[name]().to_text(), path, remove=True)
            for error in self.errors(getattr(objects, name), text):
                self.assertEqual((f'devicetrack.{name}.{where}', 'is missing'), (error.where, error.reason))

    def errors(self, cls: Any, text: str) -> Iterator[exception.MalformedObject]:
        """The errors of each way in which a service may read a message: as text, as data, and by its serializer."""
        yield self.assertRaises(exception.MalformedObject, cls.from_text, text)
        yield self.assertRaises(exception.MalformedObject, cls.obj_from_primitive, json.loads(text))
        yield self.assertRaises(exception.MalformedObject, samples.Serializer().deserialize_entity, None,
                                json.loads(text))

    def test_an_object_of_another_class_is_refused(self) -> None:
        for other in (samples.live_migration_check(), samples.device_map().pairs[0]):
            error = self.assertRaises(exception.MalformedObject, objects.DeviceMap.obj_from_primitive,
                                      other.obj_to_primitive())
            self.assertEqual('devicetrack.DeviceMap', error.where)

    def test_data_whose_parts_a_serializer_has_read(self) -> None:
        primitive = samples.device_map().obj_to_primitive()
        primitive['versioned_object.data']['pairs'] = list(samples.device_map().pairs)
        self.assertEqual(samples.device_map().to_text(), objects.DeviceMap.obj_from_primitive(primitive).to_text())
        primitive['versioned_object.data']['pairs'] = [objects.DevicePair(kind='mdev')]
        error = self.assertRaises(exception.MalformedObject, objects.DeviceMap.obj_from_primitive, primitive)
        self.assertEqual('devicetrack.DeviceMap.pairs[0].resource_class', error.where)

    def test_data_of_the_last_release_are_read(self) -> None:
        for make in MESSAGES.values():
            if make().VERSION != '1.0':
                data = make().obj_to_primitive(target_version='1.0')
                self.assertEqual([], type(make()).obj_from_primitive(data).unset_fields())

    def test_nesting_deeper_than_the_stack(self) -> None:
        deep: list[Any] = []
        for _ in range(2 * sys.getrecursionlimit()):
            deep = [deep]
        self.assertRaises(exception.MalformedObject, objects.DeviceMap.obj_from_primitive, deep)
        # The parser of Python 3.12 reads it.
        self.patch(json, 'loads', lambda _text: deep)
        self.assertRaises(exception.MalformedObject, objects.DeviceMap.from_text, '[]')


class MapsTestCase(base.TestCase):

    TYPES = {TWO: 'nvidia-35', ONE: 'nvidia-36'}
    TARGETS = {ONE: THREE, TWO: FOUR}

    def test_a_map_comes_back_from_plain_maps(self) -> None:
        made = objects.DeviceMap.from_mdevs(INSTANCE, MIGRATION, self.TYPES, self.TARGETS)
        self.assertEqual((self.TYPES, self.TARGETS), (made.mdev_types(), made.mdev_targets()))
        self.assertEqual([TWO, ONE], [pair.source for pair in made.pairs])
        self.assertEqual(('', False), (made.metadata, made.post_copy_allowed))
        self.assertIn(f"uuid='{FOUR}'", made.pairs[0].element)
        self.assertEqual(made.obj_to_primitive(), objects.DeviceMap.from_text(made.to_text()).obj_to_primitive())
        self.assertTrue(objects.DeviceMap.from_mdevs(INSTANCE, MIGRATION, {}, {}).post_copy_allowed)

    def test_a_check_comes_back_from_a_plain_map(self) -> None:
        made = objects.LiveMigrationCheck.from_mdevs(INSTANCE, self.TYPES, 'CUSTOM_GPU')
        self.assertEqual((self.TYPES, {'CUSTOM_GPU'}),
                         (made.mdev_types(), {one.resource_class for one in made.devices or ()}))
        self.assertEqual(made.to_text(), objects.LiveMigrationCheck.from_text(made.to_text()).to_text())
        self.assertEqual({}, objects.LiveMigrationCheck(instance_uuid=INSTANCE, devices=None).mdev_types())

    def test_maps_of_other_things_are_refused(self) -> None:
        for types, targets, where in (
                (None, {}, 'types'), ({}, [], 'targets'), ({'x': 'y'}, {}, 'types, a key'),
                ({ONE: 7}, {}, f'types[{ONE}]'), ({ONE: ''}, {}, f'types[{ONE}]'),
                ({ONE: '\ud800'}, {}, f'types[{ONE}]'), ({ONE: 'a'}, {}, 'targets'),
                ({}, {ONE: THREE}, 'types'), ({ONE: 'a'}, {ONE: "'/>"}, f'targets[{ONE}]'),
                (self.TYPES, {ONE: THREE, TWO: THREE}, 'targets')):
            error = self.assertRaises(exception.MalformedObject, objects.DeviceMap.from_mdevs, INSTANCE, MIGRATION,
                                      types, targets)
            self.assertEqual(where, error.where)
        for arguments, where in ((('x', {}), 'instance_uuid'), ((INSTANCE, {ONE: None}), f'types[{ONE}]')):
            error = self.assertRaises(exception.MalformedObject, objects.LiveMigrationCheck.from_mdevs, *arguments)
            self.assertEqual(where, error.where)


class TuplesTestCase(base.TestCase):

    def details(self) -> objects.MdevDetails:
        return objects.MdevDetails(type='nvidia-35', parent='pci_0000_84_00_0', parent_address='0000:84:00.0',
                                   device_api='vfio-pci', iommu_group=None, origin='adopted')

    def test_resources_are_made_of_them(self) -> None:
        pmem = objects.VPMEMDetails(namespace_uuid=FOUR, label='4GB', devpath='/dev/dax0.0', size_bytes=1 << 32,
                                    align_bytes=2 << 20)
        made = objects.InstanceResources.from_tuples(INSTANCE, [
            (PROVIDER, 'VGPU', ONE, self.details()), (PROVIDER, 'CUSTOM_PMEM_NAMESPACE_4GB', 'ns0', pmem)])
        self.assertEqual([('mdev', ONE, 0, 'current', 'active', 'pci_0000_84_00_0'),
                          ('vpmem', 'ns0', 1, 'current', 'active', None)],
                         [(one.kind, one.identifier, one.position, one.role, one.state, one.parent) for one in made])
        self.assertEqual(made.to_text(), objects.InstanceResources.from_text(made.to_text()).to_text())

    def test_what_is_none_is_refused(self) -> None:
        good = (PROVIDER, 'VGPU', ONE, self.details())
        for devices, where in (
                ([good[:3]], 'devices[0]'), ([good, 'x'], 'devices[1]'), ([(*good[:3], 'x')], 'devices[0].details'),
                ([(*good[:3], objects.MdevDetails(type='x'))], 'devices[0].details.parent'),
                ([('x', *good[1:])], 'devices[0].provider_uuid'), ([(PROVIDER, None, *good[2:])],
                                                                  'devices[0].resource_class'),
                ([(PROVIDER, 'VGPU', '', good[3])], 'devices[0].identifier')):
            error = self.assertRaises(exception.MalformedObject, objects.InstanceResources.from_tuples, INSTANCE,
                                      devices)
            self.assertEqual(where, error.where)
        self.assertRaises(exception.MalformedObject, objects.InstanceResources.from_tuples, 'x', [])
