"""A definition that is about to be started: it names the devices of its instance, of this boot, and nobody else's."""

from __future__ import annotations

from typing import Any

from devicetrack import exception
from devicetrack.store.api import Changes
from devicetrack.testing import fake_guests
from devicetrack.testing import fixtures
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import Migration
from devicetrack.tests import base

FOREIGN = 'f2b4f6ce-93cd-4b5e-8d2b-3c4d5e6f7a8b'


class NamedDevicesTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'p0': 2}))
        self.one, self.other = self.host.spawn(pmem=1, vgpu=1), self.host.spawn(pmem=1)

    def elements(self, instance: Any) -> tuple[str, ...]:
        return self.host.manager.guest_config(instance).devices

    def check(self, instance: Any, *elements: str) -> None:
        self.host.manager.kept_definition(instance, fake_guests.definition(instance.uuid, elements, ''))

    def refused(self, instance: Any, *elements: str) -> str:
        return self.assertRaises(exception.DefinitionRefused, self.check, instance, *elements).reason

    def test_its_own_devices_in_any_order(self) -> None:
        self.check(self.one, *reversed(self.elements(self.one)))
        self.check(Instance())

    def test_each_of_its_own_is_named(self) -> None:
        for element in self.elements(self.one):
            self.assertEqual('the instance has it, and it is missing', self.refused(self.one, element))

    def test_no_device_of_another_instance(self) -> None:
        theirs = self.elements(self.other)
        self.assertEqual('the instance does not have it', self.refused(self.one, *self.elements(self.one), *theirs))
        self.assertEqual('the instance does not have it', self.refused(Instance(), *theirs))

    def test_no_device_that_this_host_hands_out(self) -> None:
        spare = self.host.spawn(pmem=1)
        [free] = self.elements(spare)
        self.host.delete(spare)
        self.assertEqual('the instance does not have it', self.refused(Instance(), free))

    def test_a_device_that_this_host_does_not_hand_out_is_the_services_own_business(self) -> None:
        self.check(self.one, *self.elements(self.one), fake_guests.element('mdev', FOREIGN))

    def test_none_that_is_on_its_way_back(self) -> None:
        elements = self.elements(self.other)
        self.host.machine.before('unclaim', exception.DeviceBusy('vpmem', 'd1', 'busy'), times=1)
        self.host.machine.delete_guest(self.other.uuid)
        self.assertRaises(exception.DriverError, self.host.manager.release, None, self.other)
        self.assertEqual('the instance does not have it', self.refused(self.other, *elements))

    def test_what_cannot_be_told_is_refused(self) -> None:
        self.host.machine.before('devices_in', exception.HypervisorUnreachable('fake', 'gone'))
        self.assertRaises(exception.HypervisorUnreachable, self.check, self.one, *self.elements(self.one))

    def test_while_it_moves_on_this_host_its_own_are_those_of_before_until_it_has_left_them(self) -> None:
        before = self.elements(self.one)
        migration = Migration('host', 'host', self.one.uuid, status='post-migrating')
        self.host.service.moves = [migration]
        self.host.manager.resize_claim(None, self.one, 'host', fixtures.a_request(pmem=1), migration)
        self.host.manager.realize(None, self.one)
        after = self.elements(self.one)
        definition = fake_guests.definition(self.one.uuid, before, '')
        self.assertRaises(exception.DefinitionRefused, self.host.manager.kept_definition, self.one, definition)
        self.check(self.one, *after)
        migration.status = 'migrating'
        self.host.manager.kept_definition(self.one, definition)
        self.assertRaises(exception.DefinitionRefused, self.check, self.one, *after)


class AnotherBootTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.host = self.useFixture(fixtures.Host(devices=4, parents={'p0': 2}))
        self.one, self.other = self.host.spawn(pmem=2, vgpu=1), self.host.spawn(pmem=2)

    def kept(self, instance: Any) -> str:
        """What a service that keeps definitions in files would have now."""
        config = self.host.manager.guest_config(instance)
        return fake_guests.definition(instance.uuid, config.devices, config.metadata)

    def boot(self) -> None:
        self.host.machine.reboot()
        self.host.restart()
        for instance in (self.one, self.other):
            self.host.manager.realize(None, instance)

    def test_one_that_was_kept_over_a_boot_of_the_host_names_the_same_devices_again(self) -> None:
        kept = self.kept(self.one)
        self.boot()
        self.assertNotEqual(kept, self.kept(self.one))
        self.assertEqual(self.kept(self.one), self.host.manager.kept_definition(self.one, kept))

    def test_one_of_this_boot_and_one_without_a_record_stay_as_they_are(self) -> None:
        elements = self.host.manager.guest_config(self.one).devices
        for definition in (self.kept(self.one), fake_guests.definition(self.one.uuid, elements, '')):
            self.assertEqual(definition, self.host.manager.kept_definition(self.one, definition))

    def test_an_instance_without_devices_has_nothing_to_rewrite(self) -> None:
        kept = fake_guests.definition(Instance().uuid, (), self.host.manager.guest_config(self.one).metadata)
        self.boot()
        self.assertEqual(kept, self.host.manager.kept_definition(Instance(), kept))

    def test_what_the_record_does_not_explain_is_refused(self) -> None:
        kept = self.kept(self.one)
        theirs = fake_guests.definition(self.one.uuid, self.host.manager.guest_config(self.other).devices,
                                        self.host.manager.guest_config(self.one).metadata)
        self.boot()
        for instance, definition in ((self.other, kept), (self.one, theirs)):
            self.assertRaises(exception.InvalidDocument, self.host.manager.kept_definition, instance, definition)

    def test_while_it_moves_on_this_host_it_is_that_of_before_until_it_has_left(self) -> None:
        kept = self.kept(self.other)
        migration = Migration('host', 'host', self.other.uuid, status='post-migrating')
        self.host.service.moves = [migration]
        self.host.manager.resize_claim(None, self.other, 'host', fixtures.a_request(vgpu=1), migration)
        self.boot()
        self.assertRaises(exception.InvalidDocument, self.host.manager.kept_definition, self.other, kept)
        migration.status = 'migrating'
        self.host.manager.realize(None, self.other)
        self.assertNotEqual(kept, self.host.manager.kept_definition(self.other, kept))

    def with_mdev(self, identifier: str) -> str:
        """The definition of ``self.one`` with another mediated device, before its own."""
        config = self.host.manager.guest_config(self.one)
        devices = (fake_guests.element('mdev', identifier), *config.devices)
        self.host.machine.start_guest(self.one.uuid, devices, metadata=config.metadata)
        return fake_guests.definition(self.one.uuid, devices, config.metadata)

    def test_a_mediated_device_that_this_host_does_not_track_is_the_services_own_business(self) -> None:
        kept = self.with_mdev(FOREIGN)
        self.boot()
        named = fake_guests.definition(self.one.uuid, [
            fake_guests.element('mdev', FOREIGN), *self.host.manager.guest_config(self.one).devices],
            self.host.manager.guest_config(self.one).metadata)
        self.assertEqual(named, self.host.machine.definition(self.one.uuid))
        self.host.audit()
        self.assertEqual(named, self.host.manager.kept_definition(self.one, kept))
        self.host.machine.delete_guest(self.one.uuid)

    def test_one_of_another_instance_is_not(self) -> None:
        owner = self.host.spawn(vgpu=1)
        [theirs] = [record.identifier for record in self.host.records(owner)]
        kept = self.with_mdev(theirs)
        self.host.machine.reboot()
        self.host.restart()
        before = self.host.machine.definition(self.one.uuid)
        for call in (lambda: self.host.manager.realize(None, self.one),
                     lambda: self.host.manager.kept_definition(self.one, kept)):
            self.assertRaises(exception.InvalidDocument, call)
        self.assertEqual(before, self.host.machine.definition(self.one.uuid))
        self.host.machine.delete_guest(self.one.uuid)

    def test_a_store_that_is_older_than_the_guest_says_nothing(self) -> None:
        kept = self.kept(self.one)
        self.host.store.store.write(Changes(delete=tuple(self.host.records(self.one))))
        self.host.restart()
        self.assertRaises(exception.RowsMissing, self.host.manager.kept_definition, self.one, kept)
