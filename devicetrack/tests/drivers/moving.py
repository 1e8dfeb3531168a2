"""Live migration: definitions for the destination, and what drivers declare."""

from __future__ import annotations

import uuid

from devicetrack import exception
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects import DevicePair
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import MigrationType
from devicetrack.tests.drivers import case


class MovingContract(case.DriverTestCase):

    # -- live migration -----------------------------------------------------------------------------------------------

    def mapped(self, *pairs: tuple[str, str, DeviceAssignment]) -> DeviceMap:
        """A map from source devices, by kind and identifier, to devices that stand for those of a destination."""
        config = self.driver.guest_config([partner for _kind, _source, partner in pairs])
        return DeviceMap.of(self.instance, str(uuid.uuid4()), [
            DevicePair(kind=kind, resource_class='CLASS', source=source, destination=partner.identifier, type='t',
                       element=element)
            for (kind, source, partner), element in zip(pairs, config.devices, strict=True)], config.metadata)

    def test_a_guest_takes_along_the_destinations_devices(self) -> None:
        self.start(self.assigned('vpmem', 'ns1'), self.assigned('mdev', self.world.mdev))
        partner = self.assigned('vpmem', 'ns0')
        device_map = self.mapped(('vpmem', 'ns1', partner), ('mdev', self.world.mdev,
                                                             self.assigned('mdev', self.world.mdev)))
        before = self.world.definition(self.instance)
        definitions = self.driver.migration_definitions(device_map)
        wanted = self.world.named_in(self.world.as_defined(self.instance, self.driver.guest_config(
            [partner, self.assigned('mdev', self.world.mdev)])))
        assert definitions.persistent is not None
        for text in definitions:
            self.assertEqual(wanted, self.world.named_in(str(text)))
            self.assertIn('identifier="ns0"', str(text))
            self.assertNotIn('identifier="ns1"', str(text))
            self.assertNotIn(str(text), repr(definitions))
        self.assertEqual(before, self.world.definition(self.instance))

    def test_a_definition_of_the_services_own_gets_the_devices_too(self) -> None:
        self.start(self.assigned('vpmem', 'ns1'), self.assigned('mdev', self.world.mdev))
        device_map = self.mapped(('vpmem', 'ns1', self.assigned('vpmem', 'ns0')),
                                 ('mdev', self.world.mdev, self.assigned('mdev', self.world.mdev)))
        own = self.world.definition(self.instance)
        moved = self.driver.migration_definitions(device_map, own)
        self.assertEqual(self.world.named_in(self.driver.migration_definitions(device_map).live),
                         self.world.named_in(moved.live))
        self.assertIsNone(moved.persistent)
        self.assertRaises(exception.InvalidDocument, self.driver.migration_definitions, device_map, moved.live)

    def test_what_a_definition_names(self) -> None:
        self.assertEqual(frozenset(), self.driver.devices_in(f'<domain><uuid>{self.instance}</uuid></domain>'))
        ours = [self.assigned('vpmem', 'ns1'), self.assigned('mdev', self.world.mdev),
                *(self.assigned('vf', function) for function in self.world.functions[:1])]
        for one in ours:
            self.driver.realize(one)
        self.start(*ours)
        self.assertEqual({DeviceKey(one.kind, one.identifier) for one in ours},
                         self.driver.devices_in(self.world.definition(self.instance)))

    def test_a_guest_takes_along_another_virtual_function(self) -> None:
        for one, other in zip(self.world.functions[:1], self.world.functions[1:], strict=False):
            ours, partner = self.assigned('vf', one), self.assigned('vf', other)
            for wanted in (ours, partner):
                self.driver.realize(wanted)
            self.start(self.assigned('vpmem', 'ns1'), ours)
            definitions = self.driver.migration_definitions(self.mapped(
                ('vf', one, partner), ('vpmem', 'ns1', self.assigned('vpmem', 'ns0'))))
            for text in definitions:
                self.assertEqual([other], [name for name in self.world.named_in(str(text)) if ':' in name])

    def test_a_transient_guest_has_no_persistent_definition(self) -> None:
        self.start(self.assigned('vpmem', 'ns1'), define=False)
        device_map = self.mapped(('vpmem', 'ns1', self.assigned('vpmem', 'ns0')))
        self.assertIsNone(self.driver.migration_definitions(device_map).persistent)

    def test_a_guest_that_does_not_run_here_takes_nothing_along(self) -> None:
        device_map = self.mapped(('vpmem', 'ns1', self.assigned('vpmem', 'ns0')))
        self.assertRaises(exception.DomainGone, self.driver.migration_definitions, device_map)
        self.start(self.assigned('vpmem', 'ns1'))
        self.world.stop_guest(self.instance)
        self.assertRaises(exception.DomainGone, self.driver.migration_definitions, device_map)

    def test_a_map_of_other_devices_is_refused(self) -> None:
        ours, others = self.assigned('vpmem', 'ns1'), self.assigned('vpmem', 'ns0')
        self.start(ours, self.assigned('mdev', self.world.mdev))
        mdev = ('mdev', self.world.mdev, self.assigned('mdev', self.world.mdev))
        for pairs in ((), (mdev,), (('vpmem', 'ns0', ours), mdev),
                      (('vpmem', 'ns1', others), ('vpmem', 'ns0', ours), mdev)):
            error = self.assertRaises(exception.InvalidDocument, self.driver.migration_definitions,
                                      self.mapped(*pairs))
            self.assertIn(self.instance, error.document)

    def test_a_guest_that_arrives_uses_its_devices_and_does_not_run(self) -> None:
        if not self.world.arrives:
            return
        self.start(self.assigned('vpmem', 'ns1'))
        definitions = self.driver.migration_definitions(self.mapped(('vpmem', 'ns1', self.assigned('vpmem', 'ns0'))))
        self.driver.destroy_guest(self.instance)
        self.world.arrive(self.instance, definitions)
        usage = self.driver.get_usage()
        use, = usage.uses
        self.assertEqual(('ns0', True, True, False), (use.identifier, use.running, use.live, use.defined))
        self.assertEqual(({self.instance}, {self.instance}), (usage.running, usage.arriving))
        self.world.arrived(self.instance)
        usage = self.driver.get_usage()
        self.assertEqual((frozenset(), [True]), (usage.arriving, [use.defined for use in usage.uses]))
        record, = self.driver.guest_records()
        self.assertEqual(['ns0'], [device.identifier for device in record.devices])

    def test_a_guest_that_was_started_here_does_not_arrive(self) -> None:
        self.start(self.assigned('vpmem', 'ns1'))
        self.assertEqual(frozenset(), self.driver.get_usage().arriving)

    def test_a_running_guest_is_shown_no_other_sort_of_device(self) -> None:
        self.assertEqual({(source, kind): source == kind for source in ('vpmem', 'mdev') for kind in ('vpmem', 'mdev')},
                         {(source, kind): self.driver.can_become(source, kind) for source in ('vpmem', 'mdev')
                          for kind in ('vpmem', 'mdev')})

    def test_every_type_that_a_parent_makes_is_there_of_which_nothing_is_said(self) -> None:
        there = {said[:3]: said for said in self.driver.migration_types()}
        capacity = self.capacity()
        named = ('mdev', capacity.parent, details.from_text(capacity.details).migration_type)
        self.assertEqual(MigrationType(*named), there[named])
        for function in self.world.functions:
            device = self.devices()[DeviceKey('vf', function)]
            self.assertIn(('vf', device.parent, details.from_text(device.details).migration_type), there)

    def test_what_a_parent_says_of_a_type_is_told_as_it_is(self) -> None:
        capacity = self.capacity()
        said = MigrationType('mdev', capacity.parent, capacity.device_type, Attribute('2.1.0'),
                             Attribute(problem='?'), '550.54')
        self.world.declare(said)
        found, = (found for found in self.driver.migration_types() if found[:3] == said[:3])
        self.assertEqual((said.version, said.driver), (found.version, found.driver))
        self.assertIsNone(found.aggregation.text)
        self.assertIsNotNone(found.aggregation.problem)

    def test_without_an_answer_nothing_is_said_of_types(self) -> None:
        self.world.unreachable()
        self.assertRaises(exception.HypervisorUnreachable, self.world.driver().migration_types)

    def test_a_driver_that_was_closed_may_be_used_again(self) -> None:
        before = self.driver.get_inventory()
        self.driver.close()
        self.assertEqual(before, self.driver.get_inventory())
