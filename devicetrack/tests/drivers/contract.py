"""What every virt driver does: the interface's promises, as tests.

A driver's module subclasses ``Contract`` and says on which world it runs.
"""

from __future__ import annotations

import uuid

import fixtures
from lxml import etree

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects import DevicePair
from devicetrack.objects import values
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import Capacity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import MigrationType
from devicetrack.objects.values import RecordedDevice
from devicetrack.objects.values import Use
from devicetrack.testing.kinds import base as kinds
from devicetrack.tests import base
from devicetrack.tests.drivers import worlds
from devicetrack.virt import metadata

HOST, PROVIDER, assignment = kinds.HOST, kinds.PROVIDER, kinds.assignment


class Contract(base.TestCase):
    """Every promise of :class:`devicetrack.virt.driver.VirtDriver`. ``world_class`` says on which host.

    The runner takes tests from modules called ``test_…``, so nothing runs here but in the subclasses.
    """

    world_class: type[worlds.World]

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(self.world_class())
        self.driver = self.world.driver()
        self.addCleanup(self.driver.close)
        self.instance = str(uuid.uuid4())

    # -- what the tests are made of -----------------------------------------------------------------------------------

    def devices(self) -> dict[DeviceKey, InventoryDevice]:
        return {device.key: device for device in self.driver.get_inventory().devices}

    def capacity(self) -> Capacity:
        capacity, = self.driver.get_inventory().capacities
        return capacity

    def assigned(self, kind: str, identifier: str, position: int = 0) -> DeviceAssignment:
        """An existing device, recorded for the instance."""
        device = self.devices()[DeviceKey(kind, identifier)]
        return self.recorded(kind, identifier, device.parent, device.details, position)

    def to_create(self) -> DeviceAssignment:
        """A mediated device that the instance shall get and that does not exist."""
        capacity = self.capacity()
        return self.recorded('mdev', str(uuid.uuid4()), capacity.parent, capacity.details)

    def recorded(self, kind: str, identifier: str, parent: str | None, text: str,
                 position: int = 0) -> DeviceAssignment:
        return assignment(self.instance, kind, identifier, parent, text, position)

    def start(self, *assignments: DeviceAssignment, define: bool = True) -> None:
        self.world.start_guest(self.instance, self.driver.guest_config(assignments), define)

    def uses(self) -> dict[DeviceKey, Use]:
        usage = self.driver.get_usage()
        self.assertEqual((), usage.unknown)
        return {DeviceKey(use.kind, str(use.identifier)): use for use in usage.uses}

    # -- views --------------------------------------------------------------------------------------------------------

    def test_a_boot_has_one_name(self) -> None:
        self.assertEqual(self.driver.boot_id(), self.world.driver().boot_id())

    def test_the_inventory_has_what_exists_and_what_can_be_made(self) -> None:
        inventory = self.driver.get_inventory()
        self.assertEqual({'vpmem', 'mdev', *('vf' for _function in self.world.functions[:1])}, inventory.known_kinds)
        self.assertEqual((), inventory.unknown)
        self.assertEqual({DeviceKey('vpmem', 'ns0'), DeviceKey('vpmem', 'ns1'), DeviceKey('mdev', self.world.mdev),
                          *(DeviceKey('vf', function) for function in self.world.functions)}, set(self.devices()))
        self.assertEqual((worlds.TYPE, 2, 1), (self.capacity().device_type, self.capacity().available,
                                               self.capacity().numa_node))

    def test_devices_say_how_they_are_counted_and_what_they_are(self) -> None:
        namespace = self.devices()[DeviceKey('vpmem', 'ns0')]
        found = details.from_text(namespace.details)
        self.assertEqual(('', 'CUSTOM_PMEM_NAMESPACE_4GB', None),
                         (namespace.provider, namespace.resource_class, namespace.unhealthy))
        self.assertEqual(('4GB', worlds.SIZE, 2 << 20), (found.label, found.size_bytes, found.align_bytes))
        mdev = self.devices()[DeviceKey('mdev', self.world.mdev)]
        found = details.from_text(mdev.details)
        self.assertEqual(('pci_0000_84_00_0', 'pci_0000_84_00_0', 'VGPU', 1),
                         (mdev.provider, mdev.parent, mdev.resource_class, mdev.numa_node))
        self.assertEqual((worlds.TYPE, 'pci_0000_84_00_0', '0000:84:00.0', 'vfio-pci', vocabulary.ADOPTED),
                         (found.type, found.parent, found.parent_address, found.device_api, found.origin))
        made = details.from_text(self.capacity().details)
        self.assertEqual((worlds.TYPE, None, vocabulary.CREATED), (made.type, made.iommu_group, made.origin))

    def test_names_of_devices_in_flavors_are_aliases_by_their_name_or_there_are_none(self) -> None:
        found = self.driver.aliases()
        self.assertEqual(found, self.driver.aliases())
        for name, alias in (found or {}).items():
            self.assertEqual(name, alias.name)
            self.assertTrue(alias.resource_classes)
            self.assertIn(alias.numa_policy, vocabulary.NUMA_AFFINITY_POLICIES)

    def test_reading_changes_nothing(self) -> None:
        self.assertEqual(self.driver.get_inventory(), self.driver.get_inventory())
        self.assertEqual(self.driver.get_usage(), self.driver.get_usage())

    def test_no_guest_uses_nothing(self) -> None:
        usage = self.driver.get_usage()
        self.assertEqual(((), frozenset(), frozenset(), (), frozenset()), tuple(usage))

    def test_a_guest_uses_what_its_elements_name(self) -> None:
        self.start(self.assigned('vpmem', 'ns1'), self.assigned('mdev', self.world.mdev))
        uses = self.uses()
        self.assertEqual({DeviceKey('vpmem', 'ns1'), DeviceKey('mdev', self.world.mdev)}, set(uses))
        self.assertEqual({(self.instance, True, True, True)},
                         {(use.domain_uuid, use.running, use.live, use.defined) for use in uses.values()})
        self.assertEqual({self.instance}, self.driver.get_usage().running)

    def test_a_guest_that_is_off_still_names_its_devices(self) -> None:
        self.start(self.assigned('vpmem', 'ns1'))
        self.world.stop_guest(self.instance)
        use, = self.uses().values()
        self.assertEqual((False, False, True), (use.running, use.live, use.defined))
        self.assertEqual((frozenset((self.instance,)), frozenset()), self.driver.get_usage()[1:3])

    def test_a_transient_guest_is_live_and_not_defined(self) -> None:
        self.start(self.assigned('vpmem', 'ns1'), define=False)
        use, = self.uses().values()
        self.assertEqual((True, True, False), (use.running, use.live, use.defined))
        self.world.stop_guest(self.instance)
        self.assertEqual({}, self.uses())

    def test_a_guest_that_is_gone_uses_nothing(self) -> None:
        self.start(self.assigned('vpmem', 'ns1'))
        self.world.stop_guest(self.instance)
        self.world.delete_guest(self.instance)
        self.assertEqual({}, self.uses())

    def test_no_answer_is_no_usage(self) -> None:
        self.world.unreachable()
        self.assertRaises(exception.HypervisorUnreachable, self.world.driver().get_usage)

    # -- claims -------------------------------------------------------------------------------------------------------

    def test_what_will_be_created_is_named_and_the_rest_stays(self) -> None:
        capacity = self.capacity()
        new = Candidate('mdev', None, PROVIDER, 'VGPU', capacity.parent, 1, capacity.details)
        old = new._replace(identifier=self.world.mdev)
        named = self.driver.claim_for_instance(self.instance, None, [new, old, new])
        self.assertEqual(old, named[1])
        self.assertEqual(3, len({candidate.identifier for candidate in named}))
        self.assertEqual([new, new], [named[0]._replace(identifier=None), named[2]._replace(identifier=None)])

    # -- realize ------------------------------------------------------------------------------------------------------

    def test_realizing_what_exists_finds_it_every_time(self) -> None:
        for kind, identifier in (('vpmem', 'ns0'), ('mdev', self.world.mdev),
                                 *(('vf', function) for function in self.world.functions)):
            wanted = self.assigned(kind, identifier)
            for _again in range(2):
                realized = self.driver.realize(wanted)
                self.assertEqual(DeviceKey(kind, identifier), realized.key)
                self.assertEqual(worlds.text_of(wanted), realized.details)

    def test_a_device_that_went_away_is_gone(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.remove('ns0')
        self.assertRaises(exception.DeviceGone, self.driver.realize, wanted)
        self.assertRaises(exception.DeviceGone, self.driver.guest_config, [wanted])
        self.assertIsInstance(self.driver.unclaim([wanted])[DeviceKey('vpmem', 'ns0')], exception.DeviceGone)

    def test_another_device_of_the_name_is_not_the_device(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.replace('ns0')
        self.assertRaises(exception.DeviceGone, self.driver.realize, wanted)
        self.assertRaises(exception.DeviceGone, self.driver.guest_config, [wanted])
        self.assertIsInstance(self.driver.unclaim([wanted])[DeviceKey('vpmem', 'ns0')], exception.DeviceGone)
        self.assertFalse(self.world.is_clean('ns0'))

    def test_an_adopted_device_that_went_away_is_gone(self) -> None:
        there = self.assigned('mdev', self.world.mdev)
        wanted = self.recorded('mdev', str(uuid.uuid4()), there.parent, worlds.text_of(there))
        self.assertRaises(exception.DeviceGone, self.driver.realize, wanted)
        self.assertRaises(exception.DeviceGone, self.driver.guest_config, [wanted])

    def test_realizing_waits_for_nobody(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        with self.world.hold(DeviceKey('vpmem', 'ns0')):
            self.assertRaises(exception.DeviceBusy, self.driver.realize, wanted)
        self.driver.realize(wanted)

    def test_creating_takes_capacity_and_unclaiming_gives_it_back(self) -> None:
        wanted = self.to_create()
        key = DeviceKey('mdev', wanted.identifier)
        if not self.world.creates:
            self.assertRaises(exception.RealizeFailed, self.driver.realize, wanted)
            self.assertNotIn(key, self.devices())
            self.assertEqual({key: None}, self.driver.unclaim([wanted]))
            return
        realized = self.driver.realize(wanted)
        self.assertEqual(realized, self.driver.realize(wanted))
        self.assertEqual(vocabulary.CREATED, details.from_text(realized.details).origin)
        self.assertEqual([1], [capacity.available for capacity in realized.capacities])
        self.assertEqual(1, self.capacity().available)
        self.assertIn(key, self.devices())
        for _again in range(2):
            self.assertEqual({key: None}, self.driver.unclaim([wanted]))
        self.assertNotIn(key, self.devices())
        self.assertEqual(2, self.capacity().available)

    def test_a_full_parent_makes_no_more(self) -> None:
        if not self.world.creates:
            return
        wanted = [self.to_create() for _number in range(3)]
        for one in wanted[:2]:
            self.driver.realize(one)
        error = self.assertRaises(exception.ParentFull, self.driver.realize, wanted[2])
        self.assertEqual(('mdev', 'pci_0000_84_00_0', worlds.TYPE), (error.kind, error.parent, error.device_type))
        self.assertNotIn(DeviceKey('mdev', wanted[2].identifier), self.devices())

    # -- guests -------------------------------------------------------------------------------------------------------

    def test_elements_stand_in_the_order_of_the_assignments(self) -> None:
        ordered = [self.assigned('vpmem', 'ns1', 0), self.assigned('mdev', self.world.mdev, 1),
                   self.assigned('vpmem', 'ns0', 2)]
        devices = self.driver.guest_config(ordered).devices
        self.assertEqual([self.driver.guest_config([one]).devices[0] for one in ordered], list(devices))

    def test_the_metadata_records_everything(self) -> None:
        ordered = [self.assigned('vpmem', 'ns1', 0), self.assigned('mdev', self.world.mdev, 1)]
        element = etree.fromstring(self.driver.guest_config(ordered, 'g1.small').metadata)
        self.assertEqual(f'{{{metadata.NAMESPACE}}}{metadata.ELEMENT}', element.tag)
        self.assertEqual({'instance': self.instance, 'host': HOST, 'flavor': 'g1.small',
                          'boot': self.driver.boot_id()}, dict(element.attrib))
        self.assertEqual([('vpmem', 'ns1'), ('mdev', self.world.mdev)],
                         [(device.get('kind'), device.get('identifier')) for device in element])
        self.assertEqual([worlds.text_of(one) for one in ordered], [device.text for device in element])

    def test_no_device_is_no_element(self) -> None:
        self.assertEqual(GuestConfig((), ''), self.driver.guest_config([]))

    # -- unclaim ------------------------------------------------------------------------------------------------------

    def test_unclaiming_leaves_no_byte(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.write('ns0', b'secret')
        for _again in range(2):
            self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([wanted]))
            self.assertTrue(self.world.is_clean('ns0'))

    def test_what_a_guest_names_is_not_touched(self) -> None:
        used, free = self.assigned('vpmem', 'ns0'), self.assigned('vpmem', 'ns1')
        for name in worlds.NAMESPACES:
            self.world.write(name, b'secret')
        self.start(used)
        results = self.driver.unclaim([used, free])
        self.assertIsInstance(results[DeviceKey('vpmem', 'ns0')], exception.DeviceInUse)
        self.assertIsNone(results[DeviceKey('vpmem', 'ns1')])
        self.world.stop_guest(self.instance)
        self.assertIsInstance(self.driver.unclaim([used])[DeviceKey('vpmem', 'ns0')], exception.DeviceInUse)
        self.assertEqual([False, True], [self.world.is_clean(name) for name in worlds.NAMESPACES])
        self.world.delete_guest(self.instance)
        self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([used]))
        self.assertTrue(self.world.is_clean('ns0'))

    # -- proofs -------------------------------------------------------------------------------------------------------

    def unproven(self) -> set[str]:
        """What is unproven to another driver, which knows what is on the host alone."""
        inventory = self.world.driver().get_inventory()
        self.assertEqual({'vpmem'}, inventory.keeping)
        return {identifier for kind, identifier in inventory.unproven if kind == 'vpmem'}

    def prove(self, name: str, how: str) -> exception.DriverError | None:
        return self.driver.prove([self.assigned('vpmem', name)], how)[DeviceKey('vpmem', name)]

    def test_what_was_wiped_is_proven_until_it_is_realized(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        for _again in range(2):
            self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([wanted]))
            self.assertNotIn('ns0', self.unproven())
            self.driver.realize(wanted)
            self.assertIn('ns0', self.unproven())

    def released(self, name: str, generation: int = values.ONLY_CLAIMED,
                 state: str = vocabulary.RELEASING) -> DeviceAssignment:
        """The assignment of a namespace that is on its way back."""
        device = self.devices()[DeviceKey('vpmem', name)]
        return assignment(self.instance, 'vpmem', name, device.parent, device.details, 0, state, generation)

    def test_what_was_only_claimed_goes_back_as_it_is(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        # No guest wrote this. It shows whether anything was written.
        self.world.write('ns0', b'a mark')
        self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([self.released('ns0')]))
        self.assertFalse(self.world.is_clean('ns0'))
        self.assertNotIn('ns0', self.unproven())
        self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.world.driver().unclaim([self.released('ns0')]))
        self.assertFalse(self.world.is_clean('ns0'))

    def check_is_wiped(self, assignment: DeviceAssignment) -> None:
        self.world.write('ns0', b'secret')
        self.assertEqual({DeviceKey('vpmem', 'ns0'): None}, self.driver.unclaim([assignment]))
        self.assertTrue(self.world.is_clean('ns0'))
        self.assertNotIn('ns0', self.unproven())

    def test_what_was_only_claimed_is_wiped_without_a_proof(self) -> None:
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.check_is_wiped(self.released('ns0'))

    def test_what_was_realized_is_wiped_whatever_its_row_says(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.driver.realize(self.assigned('vpmem', 'ns0'))
        self.check_is_wiped(self.released('ns0'))
        self.driver.guest_config([self.assigned('vpmem', 'ns0')])
        self.check_is_wiped(self.released('ns0'))

    def test_what_its_row_says_was_more_than_claimed_is_wiped_whatever_is_proven(self) -> None:
        for generation in (values.CLAIMED, values.OF_A_GUEST):
            self.driver.unclaim([self.assigned('vpmem', 'ns0')])
            self.check_is_wiped(self.released('ns0', generation))
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.check_is_wiped(self.released('ns0', state=vocabulary.ACTIVE))

    def test_what_was_only_claimed_and_a_guest_names_is_wiped_when_that_is_gone(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        config = self.driver.guest_config([self.assigned('vpmem', 'ns0')])
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.world.start_guest(self.instance, config)
        self.assertIsInstance(self.driver.unclaim([self.released('ns0')])[DeviceKey('vpmem', 'ns0')],
                              exception.DeviceInUse)
        self.world.stop_guest(self.instance)
        self.world.delete_guest(self.instance)
        self.check_is_wiped(self.released('ns0'))

    def test_another_device_of_the_name_of_what_was_only_claimed_does_not_go_back(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        released = self.released('ns0')
        self.world.replace('ns0')
        self.assertIsInstance(self.driver.unclaim([released])[DeviceKey('vpmem', 'ns0')], exception.DeviceGone)
        self.assertFalse(self.world.is_clean('ns0'))
        self.check_is_wiped(self.released('ns0'))

    def test_what_another_uses_is_proven_no_more(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.driver.disprove([DeviceKey('vpmem', 'ns0'), DeviceKey('vpmem', 'ns9')])
        self.assertIn('ns0', self.unproven())

    def test_another_device_of_the_name_is_not_proven(self) -> None:
        self.driver.unclaim([self.assigned('vpmem', 'ns0')])
        self.world.replace('ns0')
        self.assertIn('ns0', self.unproven())

    def test_zeros_are_proven_by_reading(self) -> None:
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.write('ns0', bytes(99))
        self.assertIsInstance(self.prove('ns0', vocabulary.BLANK), exception.NotProven)
        self.assertIn('ns0', self.unproven())
        self.assertIsNone(self.prove('ns0', vocabulary.READ))
        self.assertNotIn('ns0', self.unproven())

    def test_what_nobody_wrote_to_is_proven_without_reading(self) -> None:
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.assertIsNone(self.prove('ns0', vocabulary.BLANK))
        self.assertNotIn('ns0', self.unproven())

    def test_reading_writes_nothing(self) -> None:
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.write('ns0', b'secret')
        for how in (vocabulary.BLANK, vocabulary.READ):
            self.assertIsInstance(self.prove('ns0', how), exception.NotProven)
        self.assertIn('ns0', self.unproven())
        self.assertFalse(self.world.is_clean('ns0'))

    def test_what_an_operator_gives_up_is_wiped(self) -> None:
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.write('ns0', b'secret')
        self.assertIsNone(self.prove('ns0', vocabulary.WIPE))
        self.assertTrue(self.world.is_clean('ns0'))
        self.assertNotIn('ns0', self.unproven())

    def test_what_a_guest_names_is_neither_proven_nor_wiped(self) -> None:
        used = self.assigned('vpmem', 'ns0')
        self.driver.realize(used)
        self.start(used)
        for how in (vocabulary.BLANK, vocabulary.READ, vocabulary.WIPE):
            if how == vocabulary.WIPE:
                self.world.write('ns0', b'secret')
            self.assertIsInstance(self.driver.prove([used], how)[DeviceKey('vpmem', 'ns0')], exception.DeviceError)
        self.assertIn('ns0', self.unproven())
        self.assertFalse(self.world.is_clean('ns0'))

    def test_what_another_process_works_on_is_neither_proven_nor_wiped(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.write('ns0', b'secret')
        with self.world.hold(DeviceKey('vpmem', 'ns0')):
            for how in (vocabulary.BLANK, vocabulary.READ, vocabulary.WIPE):
                self.assertIsInstance(self.driver.prove([wanted], how)[DeviceKey('vpmem', 'ns0')],
                                      exception.DeviceBusy)
        self.assertFalse(self.world.is_clean('ns0'))

    def test_no_answer_proves_nothing(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.driver.disprove([DeviceKey('vpmem', 'ns0')])
        self.world.unreachable()
        try:
            answer = self.world.driver().prove([wanted], vocabulary.READ)[DeviceKey('vpmem', 'ns0')]
        except exception.HypervisorUnreachable as error:
            answer = error
        self.assertIsNotNone(answer)

    # -- what is kept -------------------------------------------------------------------------------------------------

    def test_what_was_adopted_is_kept(self) -> None:
        wanted = self.assigned('mdev', self.world.mdev)
        self.driver.realize(wanted)
        self.assertEqual({DeviceKey('mdev', self.world.mdev): None}, self.driver.unclaim([wanted]))
        self.assertIn(DeviceKey('mdev', self.world.mdev), self.devices())

    def test_what_another_process_works_on_is_not_touched(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.write('ns0', b'secret')
        with self.world.hold(DeviceKey('vpmem', 'ns0')):
            self.assertIsInstance(self.driver.unclaim([wanted])[DeviceKey('vpmem', 'ns0')], exception.DeviceBusy)
        self.assertFalse(self.world.is_clean('ns0'))

    def test_no_answer_frees_nothing(self) -> None:
        wanted = self.assigned('vpmem', 'ns0')
        self.world.write('ns0', b'secret')
        self.world.unreachable()
        self.assertRaises(exception.HypervisorUnreachable, self.world.driver().unclaim, [wanted])
        self.assertFalse(self.world.is_clean('ns0'))

    def test_unclaiming_nothing_is_nothing(self) -> None:
        self.assertEqual({}, self.driver.unclaim([]))

    def test_a_virtual_function_has_its_type_until_it_is_given_back(self) -> None:
        for function in self.world.functions[:1]:
            key, wanted = DeviceKey('vf', function), self.assigned('vf', function)
            self.assertRaises(exception.DeviceGone, self.driver.guest_config, [wanted])
            with self.world.hold(key):
                self.assertRaises(exception.DeviceBusy, self.driver.realize, wanted)
            self.driver.realize(wanted)
            self.start(wanted)
            self.assertEqual({key}, set(self.uses()))
            self.assertIsInstance(self.driver.unclaim([wanted])[key], exception.DeviceInUse)
            self.world.stop_guest(self.instance)
            self.assertIsInstance(self.driver.unclaim([wanted])[key], exception.DeviceInUse)
            self.assertEqual(worlds.FUNCTION_TYPE, self.world.type_of(function))
            self.world.delete_guest(self.instance)
            for _again in range(2):
                self.assertEqual({key: None}, self.driver.unclaim([wanted]))
                self.assertEqual('0', self.world.type_of(function))

    # -- guests that are there ----------------------------------------------------------------------------------------

    def test_what_is_beside_is_recorded_and_has_no_element(self) -> None:
        used, beside = self.assigned('vpmem', 'ns1'), self.assigned('vpmem', 'ns0')
        config = self.driver.guest_config([used], 'g1', [beside])
        self.assertEqual(self.driver.guest_config([used]).devices, config.devices)
        self.world.start_guest(self.instance, config)
        record, = self.driver.guest_records()
        self.assertEqual([('ns1', False), ('ns0', True)],
                         [(device.identifier, device.beside) for device in record.devices])
        self.assertEqual({DeviceKey('vpmem', 'ns1')}, set(self.uses()))

    def test_a_guest_with_nothing_but_what_is_beside_is_recorded(self) -> None:
        config = self.driver.guest_config([], beside=[self.assigned('vpmem', 'ns0')])
        self.assertEqual(((), True), (config.devices, 'ns0' in config.metadata))

    def test_records_say_what_a_row_says(self) -> None:
        wanted = [self.assigned('vpmem', 'ns1', 0), self.assigned('mdev', self.world.mdev, 1)]
        self.world.start_guest(self.instance, self.driver.guest_config(wanted, 'g1'))
        expected = GuestRecord(self.instance, HOST, 'g1', tuple(RecordedDevice(
            one.kind, one.identifier, 'CLASS', PROVIDER, one.parent, None, position, 'claim', 'current', None,
            worlds.text_of(one)) for position, one in enumerate(wanted)), self.driver.boot_id())
        self.assertEqual([expected], list(self.driver.guest_records()))
        self.world.stop_guest(self.instance)
        self.assertEqual([expected], list(self.driver.guest_records()))
        self.world.delete_guest(self.instance)
        self.assertEqual([], list(self.driver.guest_records()))

    def test_a_guest_without_a_record_has_none(self) -> None:
        config = self.driver.guest_config([self.assigned('vpmem', 'ns1')])
        self.world.start_guest(self.instance, config._replace(metadata=''))
        self.assertEqual([], list(self.driver.guest_records()))

    def test_a_record_that_is_damaged_or_of_another_is_left_out(self) -> None:
        config = self.driver.guest_config([self.assigned('vpmem', 'ns1')])
        for text in (config.metadata.replace(self.instance, str(uuid.uuid4())),
                     config.metadata.replace('claim=', 'secret=')):
            self.world.start_guest(self.instance, config._replace(metadata=text), define=False)
            log = self.useFixture(fixtures.FakeLogger())
            self.assertEqual([], list(self.driver.guest_records()))
            self.assertIn(self.instance, log.output)
            self.assertNotIn('secret', log.output)
            self.world.stop_guest(self.instance)

    def test_a_guest_is_destroyed_running_or_not_or_not_there(self) -> None:
        for define, stop in ((True, False), (True, True), (False, False)):
            self.start(self.assigned('vpmem', 'ns1'), define=define)
            if stop:
                self.world.stop_guest(self.instance)
            for _again in range(2):
                self.driver.destroy_guest(self.instance)
                self.assertEqual(frozenset(), self.driver.get_usage().domains)

    def test_only_the_guest_that_is_named_is_destroyed(self) -> None:
        self.start(self.assigned('vpmem', 'ns1'))
        self.driver.destroy_guest(str(uuid.uuid4()))
        self.assertEqual({self.instance}, self.driver.get_usage().running)

    def test_without_an_answer_nobody_is_destroyed_recorded_or_rewritten(self) -> None:
        wanted = self.assigned('vpmem', 'ns1')
        self.world.unreachable()
        driver = self.world.driver()
        device_map = DeviceMap.of(self.instance, str(uuid.uuid4()), (), '')
        for call in (lambda: driver.destroy_guest(self.instance), driver.guest_records,
                     lambda: driver.rewrite_guest([wanted]), lambda: driver.migration_definitions(device_map)):
            self.assertRaises(exception.HypervisorUnreachable, call)

    # -- another boot -------------------------------------------------------------------------------------------------

    def defined(self) -> list[DeviceAssignment]:
        """Devices of a guest that is off since the host booted again, in an order that is not that of their names."""
        wanted = [self.assigned('vpmem', 'ns1', 0), self.assigned('mdev', self.world.mdev, 1),
                  self.assigned('vpmem', 'ns0', 2)]
        self.world.start_guest(self.instance, self.driver.guest_config(wanted, 'g1'))
        self.world.reboot()
        return wanted

    def test_a_definition_of_another_boot_names_what_it_recorded(self) -> None:
        wanted = self.assigned('vpmem', 'ns1')
        self.start(wanted)
        before = self.driver.boot_id()
        self.world.reboot()
        self.assertNotEqual(before, self.driver.boot_id())
        use, = self.uses().values()
        self.assertEqual(('ns1', False, True), (use.identifier, use.live, use.defined))
        self.assertIsInstance(self.driver.unclaim([wanted])[DeviceKey('vpmem', 'ns1')], exception.DeviceInUse)
        # The path means another device in this boot. What the record says of the boot may be forged, so that device is
        # not wiped either before the definition is brought to this boot.
        other = self.assigned('vpmem', 'ns0')
        self.assertIsInstance(self.driver.unclaim([other])[DeviceKey('vpmem', 'ns0')], exception.DeviceInUse)
        self.assertTrue(self.driver.rewrite_guest([wanted]))
        self.assertIsNone(self.driver.unclaim([other])[DeviceKey('vpmem', 'ns0')])

    def test_a_definition_of_another_boot_whose_record_does_not_fit_is_unknown(self) -> None:
        config = self.driver.guest_config([self.assigned('vpmem', 'ns1')])
        other = self.driver.guest_config([self.assigned('mdev', self.world.mdev)])
        self.world.start_guest(self.instance, config._replace(metadata=other.metadata))
        self.assertEqual((), self.driver.get_usage().unknown)
        self.world.reboot()
        unknown, = self.driver.get_usage().unknown
        self.assertIn(self.instance, unknown.what)
        wanted = self.assigned('vpmem', 'ns0')
        self.assertIsInstance(self.driver.unclaim([wanted])[DeviceKey('vpmem', 'ns0')], exception.UnclaimFailed)

    def test_a_rewritten_definition_has_the_paths_of_this_boot_in_its_own_order(self) -> None:
        wanted = self.defined()
        beside = wanted.pop(1)
        error = self.assertRaises(exception.InvalidDocument, self.driver.rewrite_guest, wanted, [beside])
        self.assertIn(self.instance, error.document)
        wanted.insert(1, beside)
        before = self.world.definition(self.instance)
        self.assertTrue(self.driver.rewrite_guest(wanted[::-1]))
        after = self.world.definition(self.instance)
        named, expected = self.world.named_in(after), self.world.named_in(self.world.as_defined(
            self.instance, self.driver.guest_config(wanted)))
        self.assertEqual(expected, named)
        self.assertNotEqual(self.world.named_in(before), named)
        self.assertEqual({DeviceKey('vpmem', 'ns1'), DeviceKey('mdev', self.world.mdev), DeviceKey('vpmem', 'ns0')},
                         set(self.uses()))
        record, = self.driver.guest_records()
        self.assertEqual((self.driver.boot_id(), 'g1'), (record.boot_id, record.flavor))
        self.assertFalse(self.driver.rewrite_guest(wanted))
        self.assertEqual(after, self.world.definition(self.instance))

    def test_a_definition_that_somebody_kept_gets_the_addresses_of_this_boot_too(self) -> None:
        wanted = self.defined()
        kept = self.world.definition(self.instance)
        self.world.delete_guest(self.instance)
        again = self.driver.rewrite_definition(kept, wanted[::-1])
        self.assertEqual(self.world.named_in(self.world.as_defined(self.instance, self.driver.guest_config(wanted))),
                         self.world.named_in(again))
        self.assertIn(f'boot="{self.driver.boot_id()}"', again)
        self.assertIn('flavor="g1"', again)
        self.assertEqual(again, self.driver.rewrite_definition(again, wanted))
        self.assertEqual(frozenset(), self.driver.get_usage().domains)

    def test_a_kept_definition_that_does_not_say_of_which_boot_it_is_stays_as_it_is(self) -> None:
        wanted = self.assigned('vpmem', 'ns1')
        self.world.start_guest(self.instance, self.driver.guest_config([wanted])._replace(metadata=''))
        kept = self.world.definition(self.instance)
        self.assertEqual(kept, self.driver.rewrite_definition(kept, [wanted]))

    def test_a_kept_definition_of_other_devices_is_refused(self) -> None:
        wanted = self.defined()
        kept = self.world.definition(self.instance)
        for others in (wanted[:2], wanted[:1]):
            error = self.assertRaises(exception.InvalidDocument, self.driver.rewrite_definition, kept, others)
            self.assertIn(self.instance, error.document)
        self.world.replace('ns0')
        self.assertRaises(exception.DeviceGone, self.driver.rewrite_definition, kept, wanted)

    def test_a_definition_of_this_boot_and_none_at_all_are_not_rewritten(self) -> None:
        wanted = self.assigned('vpmem', 'ns1')
        self.assertFalse(self.driver.rewrite_guest([wanted]))
        self.start(wanted)
        self.assertFalse(self.driver.rewrite_guest([wanted]))
        self.world.stop_guest(self.instance)
        self.assertFalse(self.driver.rewrite_guest([wanted]))

    def test_what_nobody_can_tell_apart_is_not_rewritten(self) -> None:
        ours, others = self.assigned('vpmem', 'ns1'), self.assigned('vpmem', 'ns0')
        config = self.driver.guest_config([ours])
        for text, wanted in (('', [ours]), (config.metadata, [others]), (config.metadata, [ours, others]),
                             (config.metadata.replace('claim=', 'x='), [ours]),
                             (config.metadata.replace(self.instance, str(uuid.uuid4())), [ours])):
            self.world.start_guest(self.instance, config._replace(metadata=text))
            self.world.reboot()
            before = self.world.definition(self.instance)
            self.assertRaises(exception.InvalidDocument, self.driver.rewrite_guest, wanted)
            self.assertEqual(before, self.world.definition(self.instance))
            self.world.delete_guest(self.instance)
            config = self.driver.guest_config([ours])

    def test_a_device_that_is_gone_is_written_into_no_definition(self) -> None:
        wanted = self.defined()
        before = self.world.definition(self.instance)
        self.world.replace('ns0')
        self.assertRaises(exception.DeviceGone, self.driver.rewrite_guest, wanted)
        self.assertEqual(before, self.world.definition(self.instance))

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
