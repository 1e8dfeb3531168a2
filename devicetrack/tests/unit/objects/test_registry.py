"""One process, one registry, several projects: nobody replaces anybody, and foreign objects travel untouched."""

import json

from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields as ovo_fields
from oslo_versionedobjects import fixture as ovo_fixture

from devicetrack import exception
from devicetrack import objects
from devicetrack.objects import base as our_base
from devicetrack.tests import base
from devicetrack.tests.unit.objects import samples


def class_of_another_project(name, project='theirs', serial='their_object', version='1.3', fields=None):
    """A versioned object class as another project writes it."""
    return type(name, (ovo_base.VersionedObject, ovo_base.ComparableVersionedObject), {
        'VERSION': version, 'OBJ_PROJECT_NAMESPACE': project, 'OBJ_SERIAL_NAMESPACE': serial,
        'fields': fields or {'instance_uuid': ovo_fields.UUIDField()}})


class RegistryTestCase(base.TestCase):

    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(ovo_fixture.VersionedObjectRegistryFixture())

    def assert_both_travel(self, their_class):
        theirs, ours = their_class(instance_uuid=samples.INSTANCE), samples.migration_context()
        for each in (theirs, ours):
            wire = json.loads(json.dumps(each.obj_to_primitive()))
            read = type(each).obj_from_primitive(wire)
            self.assertIs(type(each), type(read))
            self.assertEqual(each.obj_to_primitive(), read.obj_to_primitive())
        self.assertIs(their_class, ovo_base.VersionedObject.obj_class_from_name('MigrationContext', '1.3'))
        self.assertIs(objects.MigrationContext,
                      ovo_base.VersionedObject.obj_class_from_name('devicetrack.MigrationContext', '1.0'))


class SameNameTestCase(RegistryTestCase):

    scenarios = base.table(
        ('a namespace of its own', 'theirs', 'their_object'),
        ('the default form of the wire', 'theirs', 'versioned_object'),
        names=('project', 'serial'))

    def test_registered_after_ours(self):
        theirs = class_of_another_project('MigrationContext', self.project, self.serial)
        self.registry.register(theirs)
        self.assert_both_travel(theirs)

    def test_registered_before_ours(self):
        known = ovo_base.VersionedObjectRegistry.obj_classes()
        ours = known.pop('devicetrack.MigrationContext')
        theirs = class_of_another_project('MigrationContext', self.project, self.serial)
        self.registry.register(theirs)
        our_base.register(ours[0])
        self.assert_both_travel(theirs)

    def test_of_the_same_version(self):
        theirs = class_of_another_project('InstanceResources', self.project, self.serial, version='1.0')
        self.registry.register(theirs)
        resources = samples.resources()
        self.assertEqual(resources, objects.InstanceResources.obj_from_primitive(resources.obj_to_primitive()))


class ForeignObjectTestCase(RegistryTestCase):

    def setUp(self):
        super().setUp()
        self.cls = class_of_another_project('Topology', fields={'cells': ovo_fields.ListOfIntegersField()})
        self.registry.register(self.cls)
        self.context_ = samples.migration_context()
        self.context_.old_numa_topology = self.cls(cells=[0, 1])

    def wire(self, **changes):
        wire = json.loads(json.dumps(self.context_.obj_to_primitive()))
        wire['versioned_object.data']['old_numa_topology'].update(changes)
        return wire

    def test_travels_inside_ours(self):
        read = objects.MigrationContext.obj_from_primitive(self.wire())
        self.assertIs(self.cls, type(read.old_numa_topology))
        self.assertEqual([0, 1], read.old_numa_topology.cells)
        self.assertIsNone(read.new_numa_topology)

    def test_is_read_by_the_class_of_its_project(self):
        for serial in ('their_object', 'versioned_object'):
            self.registry.register(class_of_another_project(
                'Topology', project='others', serial=serial, version='9.0',
                fields={'cells': ovo_fields.StringField()}))
        read = objects.MigrationContext.obj_from_primitive(self.wire())
        self.assertIs(self.cls, type(read.old_numa_topology))

    def test_of_an_unknown_class_is_named(self):
        error = self.assertRaises(exception.UnknownObject, objects.MigrationContext.obj_from_primitive,
                                  self.wire(**{'their_object.name': 'Skyline'}))
        self.assertEqual(('Skyline', '1.3'), (error.name, error.version))
        self.assertIn('old_numa_topology', str(error))

    def test_of_another_project_is_named(self):
        self.assertRaises(exception.UnknownObject, objects.MigrationContext.obj_from_primitive,
                          self.wire(**{'their_object.namespace': 'somebody'}))

    def test_of_a_newer_version_is_named(self):
        error = self.assertRaises(exception.UnknownObject, objects.MigrationContext.obj_from_primitive,
                                  self.wire(**{'their_object.version': '2.0'}))
        self.assertEqual(('Topology', '2.0'), (error.name, error.version))

    def test_that_is_none_is_malformed(self):
        for value in ({}, {'a.name': 'A', 'b.name': 'B'}, 'text', [1], {1: 2}):
            wire = self.wire()
            wire['versioned_object.data']['old_numa_topology'] = value
            self.assertRaises(exception.MalformedObject, objects.MigrationContext.obj_from_primitive, wire)

    def test_takes_versioned_objects_only(self):
        self.assertRaises(ValueError, setattr, self.context_, 'old_numa_topology', {'cells': []})
