"""What a driver says of devices, and how it makes them ready."""

from __future__ import annotations

import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Usage
from devicetrack.tests.drivers import case
from devicetrack.tests.drivers import worlds


class HavingContract(case.DriverTestCase):

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
        self.assertEqual((worlds.TYPE, 'pci_0000_84_00_0', '0000:84:00.0', 'vfio-pci', vocabulary.EXISTING),
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
        self.assertEqual(Usage((), frozenset(), frozenset()), usage)

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
        new = Candidate('mdev', None, case.PROVIDER, 'VGPU', capacity.parent, 1, capacity.details)
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

    def test_an_existing_device_that_went_away_is_gone(self) -> None:
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
