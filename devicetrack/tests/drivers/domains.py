"""The definitions of guests: their elements, their records, and what another boot changes."""

from __future__ import annotations

import uuid

import fixtures
from lxml import etree

from devicetrack import exception
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestConfig
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import RecordedDevice
from devicetrack.objects.values import Unknown
from devicetrack.tests.drivers import case
from devicetrack.tests.drivers import worlds
from devicetrack.virt import metadata


class DomainContract(case.DriverTestCase):

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
        self.assertEqual({'instance': self.instance, 'host': case.HOST, 'flavor': 'g1.small',
                          'boot': self.driver.boot_id()}, dict(element.attrib))
        self.assertEqual([('vpmem', 'ns1'), ('mdev', self.world.mdev)],
                         [(device.get('kind'), device.get('identifier')) for device in element])
        self.assertEqual([worlds.text_of(one) for one in ordered], [device.text for device in element])

    def test_the_name_of_a_flavor_may_have_any_character(self) -> None:
        for flavor, recorded in (('m1\x01\ud800\ufffe', 'm1' + '\ufffd' * 3), ('\t"\'<&\u2028\U0001f600', None)):
            element = etree.fromstring(self.driver.guest_config([self.assigned('vpmem', 'ns1')], flavor).metadata)
            self.assertEqual(recorded or flavor, element.get('flavor'))

    def test_no_device_is_no_element(self) -> None:
        self.assertEqual(GuestConfig((), ''), self.driver.guest_config([]))

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
        expected = GuestRecord(self.instance, case.HOST, 'g1', tuple(RecordedDevice(
            one.kind, one.identifier, 'CLASS', case.PROVIDER, one.parent, None, position, 'claim', 'current', None,
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
        self.assertEqual({self.instance}, self.driver.get_usage().without_record)
        self.world.stop_guest(self.instance)
        self.assertEqual({self.instance}, self.driver.get_usage().without_record)
        self.world.delete_guest(self.instance)
        self.world.start_guest(self.instance, config)
        self.assertEqual(frozenset(), self.driver.get_usage().without_record)

    def test_a_guest_without_our_devices_needs_no_record(self) -> None:
        self.world.start_guest(self.instance, GuestConfig())
        self.assertEqual(frozenset(), self.driver.get_usage().without_record)

    def test_a_record_that_is_damaged_or_of_another_is_left_out(self) -> None:
        config = self.driver.guest_config([self.assigned('vpmem', 'ns1')])
        for text in (config.metadata.replace(self.instance, str(uuid.uuid4())),
                     config.metadata.replace('claim=', 'secret=')):
            self.world.start_guest(self.instance, config._replace(metadata=text), define=False)
            log = self.useFixture(fixtures.FakeLogger())
            unread: list[Unknown] = []
            self.assertEqual([], list(self.driver.guest_records(unread=unread.append)))
            self.assertEqual([True], [self.instance in unknown.what for unknown in unread])
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

    def test_a_mediated_device_that_nobody_tracks_stays_as_it_is(self) -> None:
        wanted = [self.assigned('vpmem', 'ns1', 0), self.assigned('mdev', self.world.mdev, 1)]
        config, others = self.driver.guest_config(wanted), str(uuid.uuid4())
        theirs = config.devices[1].replace(self.world.mdev, others)
        self.world.start_guest(self.instance, config._replace(devices=(theirs, *config.devices)))
        self.world.reboot()
        kept = self.world.definition(self.instance)
        asked: list[DeviceKey] = []

        def is_untracked(key: DeviceKey) -> bool:
            asked.append(key)
            return key.identifier == others

        for known in ((wanted,), (wanted[:1], (), is_untracked)):
            self.assertRaises(exception.InvalidDocument, self.driver.rewrite_guest, *known)
            self.assertRaises(exception.InvalidDocument, self.driver.rewrite_definition, kept, *known)
        self.assertEqual(kept, self.world.definition(self.instance))
        asked.clear()
        again = self.driver.rewrite_definition(kept, wanted, (), is_untracked)
        self.assertTrue(self.driver.rewrite_guest(wanted, (), is_untracked))
        self.assertEqual({DeviceKey('mdev', others)}, set(asked))
        after = self.world.named_in(self.world.definition(self.instance))
        self.assertEqual(after, self.world.named_in(again))
        expected = self.world.named_in(self.world.as_defined(self.instance, self.driver.guest_config(wanted)))
        self.assertEqual(sorted([*expected, others]), sorted(after))
        record, = self.driver.guest_records()
        self.assertEqual({self.world.mdev, 'ns1'}, {device.identifier for device in record.devices})

    def test_a_path_that_nobody_tracks_is_refused(self) -> None:
        wanted = [self.assigned('vpmem', 'ns1', 0), self.assigned('vpmem', 'ns0', 1)]
        self.world.start_guest(self.instance, self.driver.guest_config(wanted))
        self.world.reboot()
        self.assertRaises(exception.InvalidDocument, self.driver.rewrite_guest, wanted[:1], (), lambda _key: True)

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
