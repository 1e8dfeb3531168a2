"""Virtual functions with vGPU types, on cards without cards."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any
import uuid

import fixtures

from devicetrack import exception
from devicetrack.conf import libvirt as libvirt_options
from devicetrack.objects import details
from devicetrack.testing import vgpu
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import domain_xml
from devicetrack.virt.libvirt import guest_xml
from devicetrack.virt.libvirt import pci_privileged
from devicetrack.virt.libvirt import root
from devicetrack.virt.libvirt import vfio_migration
from devicetrack.virt.libvirt.kinds import vf

CARD, OTHER = '0000:3d:00.0', '0000:41:00.0'
TYPES = {'558': ('NVIDIA L40-1B', 2), '559': ('NVIDIA L40-2B', 1)}


class VFTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.cards = self.useFixture(vgpu.Cards())
        self.functions = self.cards.add(CARD, 4, TYPES, numa_node=1)
        self.instance = str(uuid.uuid4())
        self.kind = self.make_kind()

    def make_kind(self, types: tuple[str, ...] = ('558',), release_wait_s: int = 0, of_type: Any = None,
                  **values: Any) -> vf.VF:
        configuration = self.configuration
        configuration.set('devicetrack_vf', sysfs_root=self.cards.root, enabled_types=list(types),
                          release_wait_s=release_wait_s, **values)
        for name in types:
            libvirt_options.register_vf_type(self.conf, name)
        for name, options in (of_type or {}).items():
            configuration.set(f'vf_{name}', **options)
        self.kind = vf.VF(self.conf, connection.Connection('', None))
        return self.kind

    def devices(self) -> dict[str, Any]:
        return {device.identifier: device for device in self.kind.stock().devices}

    def assigned(self, function: str, origin: str | None = None) -> Any:
        """A device of the stock, recorded for the instance."""
        device = self.devices()[function]
        text = device.details
        if origin is not None:
            text = text.replace('"origin":"created"', f'"origin":"{origin}"')
        return contract.assignment(self.instance, 'vf', function, device.parent, text)

    def take_from_its_driver(self, function: str, vendor: str | None = '0x10de') -> None:
        """Bind a function to another driver than NVIDIA's, as libvirt does for a managed device."""
        directory = os.path.join(self.cards.root, 'bus/pci/devices', function)
        shutil.rmtree(os.path.join(directory, 'nvidia'))
        if vendor is not None:
            with open(os.path.join(directory, 'vendor'), 'w') as file:
                file.write(f'{vendor}\n')

    def types(self) -> list[str]:
        return [self.cards.type_of(function) for function in self.functions]


class SerialTestCase(VFTestCase):

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[str] = []
        read = pci_privileged.read_serial

        def reading(sysfs: str, address: str) -> str | None:
            self.asked.append(address)
            return read(sysfs, address)

        self.useFixture(fixtures.MonkeyPatch(f'{pci_privileged.__name__}.read_serial', reading))

    def give(self, serial: str) -> None:
        with open(os.path.join(self.cards.root, 'bus/pci/devices', CARD, 'vpd'), 'wb') as file:
            file.write(b'\x90' + bytes((len(serial) + 3, 0)) + b'SN' + bytes((len(serial),)) + serial.encode())

    def serials(self) -> set[str | None]:
        return {details.serial_of(device.details) for device in self.devices().values()}

    def test_a_device_has_that_of_its_card_which_is_asked_once(self) -> None:
        self.give('M75')
        for _audit in range(2):
            self.assertEqual({'M75'}, self.serials())
        self.assertEqual([CARD], self.asked)
        wanted = self.assigned(self.functions[0])
        self.assertEqual('M75', details.serial_of(self.kind.realize(wanted).details))

    def test_a_card_that_cannot_be_read_has_none_and_is_not_asked_again(self) -> None:
        for _audit in range(2):
            self.assertEqual({None}, self.serials())
        self.assertEqual([CARD], self.asked)


class StockTestCase(VFTestCase):

    def test_a_card_of_no_enabled_type_is_there_all_the_same(self) -> None:
        kind = self.make_kind(types=())
        self.assertEqual((False, ['pci_' + CARD.replace(':', '_').replace('.', '_')]),
                         (kind.configured, list(kind.possible_parents())))

    def test_every_function_that_can_be_given_the_type(self) -> None:
        found = self.devices()
        self.assertEqual(self.functions, list(found))
        self.assertEqual({('vf', 'pci_0000_3d_00_0', 'VGPU', 'pci_0000_3d_00_0', 1, None, True)}, {
            (device.kind, device.provider, device.resource_class, device.parent, device.numa_node, device.unhealthy,
             device.assignable) for device in found.values()})
        known = details.from_text(found[self.functions[0]].details)
        self.assertEqual(('558', 'pci_0000_3d_00_0', CARD, 'vfio-pci', 'created'),
                         (known.type, known.parent, known.parent_address, known.device_api, known.origin))
        self.assertEqual('558', known.migration_type)

    def test_a_full_card_has_those_with_the_type_alone(self) -> None:
        for function in self.functions[1:3]:
            self.cards.set_type(function, '558')
        self.assertEqual(self.functions[1:3], list(self.devices()))

    def test_a_function_of_a_type_that_no_option_enables_is_not_named(self) -> None:
        text = self.devices()[self.functions[0]].details
        for types, expected in ((('558',), True), (('559',), False), ((), False)):
            self.assertEqual(expected, self.make_kind(types).is_named(self.functions[0], text))
        self.assertTrue(self.make_kind(('559',)).is_named(self.functions[0], 'damaged'))

    def test_a_function_of_a_card_that_no_option_names_is_not_named(self) -> None:
        text = self.devices()[self.functions[0]].details
        for address, expected in ((CARD, True), (CARD[:-1] + '5', False)):
            kind = self.make_kind(of_type={'558': {'device_addresses': [address]}})
            self.assertEqual(expected, kind.is_named(self.functions[0], text))

    def test_two_types_of_a_card_share_its_functions(self) -> None:
        self.make_kind(('558', '559'), of_type={
            '558': {'device_addresses': [CARD], 'max_instances': 1},
            '559': {'device_addresses': [CARD], 'resource_class': 'CUSTOM_BIG'}})

        def types() -> list[tuple[str, str]]:
            return [(device.resource_class, details.from_text(device.details).type)
                    for _address, device in sorted(self.devices().items())]

        small, big = ('VGPU', '558'), ('CUSTOM_BIG', '559')
        self.assertEqual([small, big, big, big], types())
        self.assertEqual({'VGPU', 'CUSTOM_BIG'}, self.kind.resource_classes)
        wanted = self.assigned(self.functions[1])
        self.assertTrue(self.kind.is_named(wanted.identifier, details.to_text(wanted.details)))
        self.kind.realize(wanted)
        self.assertEqual('559', self.cards.type_of(self.functions[1]))
        self.assertEqual(big, types()[-1])

    def test_another_type_takes_the_card(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        for use_existing in (False, True):
            self.make_kind(use_existing=use_existing)
            if not use_existing:
                self.cards.set_type(self.functions[0], '559')
            [device] = self.kind.stock().devices
            self.assertEqual((self.functions[0], 'pci_0000_3d_00_0', False, '559'),
                             (device.identifier, device.parent, device.assignable,
                              details.from_text(device.details).type))
        self.assertIn('enabled_types = 558: no virtual function', log.output)

    def test_at_most_so_many_of_a_card(self) -> None:
        self.make_kind(of_type={'558': {'max_instances': 2}})
        self.assertEqual(self.functions[:2], list(self.devices()))
        self.cards.set_type(self.functions[3], '558')
        self.assertEqual({self.functions[0], self.functions[3]}, set(self.devices()))
        self.cards.set_type(self.functions[2], '558')
        self.assertEqual(set(self.functions[2:]), set(self.devices()))
        self.make_kind(of_type={'558': {'max_instances': 0}})
        self.assertEqual(set(self.functions[2:]), set(self.devices()))

    def test_a_card_makes_the_type_that_names_it(self) -> None:
        others = self.cards.add(OTHER, 1, TYPES)
        self.make_kind(('558', '559'), of_type={
            '559': {'device_addresses': ['pci_0000_41_00_0'], 'resource_class': 'CUSTOM_BIG'}})
        found = self.devices()
        self.assertEqual([*self.functions, *others], list(found))
        self.assertEqual((None, 'CUSTOM_BIG', '559'), (
            found[others[0]].numa_node, found[others[0]].resource_class,
            details.from_text(found[others[0]].details).type))
        self.assertEqual({'VGPU', 'CUSTOM_BIG'}, self.kind.resource_classes)

    def test_a_card_that_no_type_names_makes_none(self) -> None:
        self.make_kind(of_type={'558': {'device_addresses': [OTHER]}})
        self.assertEqual({}, self.devices())

    def test_without_types_nothing_is_configured(self) -> None:
        self.assertTrue(self.kind.configured)
        self.assertFalse(self.make_kind(()).configured)

    def test_a_type_that_somebody_set_is_left_to_him(self) -> None:
        self.cards.set_type(self.functions[0], '558')
        device = self.devices()[self.functions[0]]
        self.assertEqual((False, 'created'), (device.assignable, details.from_text(device.details).origin))

    def test_or_handed_out_where_that_is_wanted(self) -> None:
        self.make_kind(use_existing=True)
        self.cards.set_type(self.functions[0], '558')
        found = self.devices()
        self.assertEqual([(True, 'adopted'), (True, 'created')], [
            (found[name].assignable, details.from_text(found[name].details).origin) for name in self.functions[:2]])

    def test_one_that_cannot_be_read_is_not_well(self) -> None:
        self.cards.fail(self.functions[0])
        found = self.devices()
        self.assertIn('cannot be read', found[self.functions[0]].unhealthy)
        self.assertIsNone(found[self.functions[1]].unhealthy)

    def test_what_cannot_be_listed_is_unknown(self) -> None:
        self.configuration.set('devicetrack_vf', sysfs_root=os.path.join(self.cards.root, 'nosuch'))
        kind = vf.VF(self.conf, connection.Connection('', None))
        self.assertRaises(exception.CommandFailed, kind.stock)

    def test_a_type_of_no_function_is_a_warning_once(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        self.make_kind(('7', '558'), of_type={'7': {'device_addresses': [OTHER]}})
        for _again in range(2):
            self.kind.stock()
        self.assertEqual(1, log.output.count('enabled_types = 7'))
        self.assertIn('[vf_7] device_addresses', log.output)
        self.assertIn('558 (NVIDIA L40-1B), 559 (NVIDIA L40-2B)', log.output)
        self.assertNotIn('enabled_types = 558', log.output)


    def test_an_address_that_is_of_no_card_is_a_warning_once(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        self.cards.add('0000:5e:00.0', 0, {})
        self.make_kind(of_type={'558': {'device_addresses': [CARD, OTHER, '0000:5e:00.0', self.functions[0]]}})
        for _again in range(2):
            self.assertEqual(self.functions, list(self.devices()))
        for address, why in ((OTHER, 'this host has no such device'), ('0000:5e:00.0', 'it has no virtual functions'),
                             (self.functions[0], f'it is a virtual function: name its parent {CARD}')):
            self.assertEqual(1, log.output.count(f'[vf_558] device_addresses = {address}: {why}'), log.output)
        self.assertNotIn(f'device_addresses = {CARD}:', log.output)


class UsageTestCase(VFTestCase):

    def test_an_address_means_its_function_and_other_pci_devices_are_none_of_ours(self) -> None:
        self.cards.add('0000:5e:00.0', 0, {})
        devices = ''.join(
            f"<hostdev type='pci'><source><address bus='0x{bus}' function='0x{function}'/></source></hostdev>"
            for bus, function in (('3d', 4), ('5e', 0), ('5e', 2)))
        domain = domain_xml.parse(f'<domain><uuid>{self.instance}</uuid><devices>{devices}</devices></domain>')
        addresses = self.kind.addresses(domain)
        self.assertEqual(3, len(addresses))
        self.assertEqual({'0000:3d:00.4': '0000:3d:00.4', '0000:5e:00.2': None}, self.kind.identify(addresses))

    def test_one_that_no_option_names_is_known_too(self) -> None:
        self.make_kind(())
        self.assertEqual({self.functions[0]: self.functions[0]}, self.kind.identify(self.functions[:1]))

    def test_one_that_another_driver_has_may_be_ours_and_other_vendors_functions_are_not(self) -> None:
        for function, vendor in zip(self.functions, ('0x10de', '0x15b3', None), strict=False):
            self.take_from_its_driver(function, vendor)
        # Without a vendor nobody can tell.
        self.assertEqual({self.functions[0]: None, self.functions[2]: None, self.functions[3]: self.functions[3]},
                         self.kind.identify([*self.functions, CARD]))

    def test_of_no_address_nobody_is_asked(self) -> None:
        self.configuration.set('devicetrack_vf', sysfs_root=os.path.join(self.cards.root, 'nosuch'))
        kind = vf.VF(self.conf, connection.Connection('', None))
        self.assertEqual({}, kind.identify(()))
        self.assertRaises(exception.CommandFailed, kind.identify, self.functions)


class SilentTestCase(VFTestCase):

    def fall_silent(self, address: str) -> None:
        with open(os.path.join(self.cards.root, 'bus/pci/devices', address, 'config'), 'wb') as file:
            file.write(b'\xff' * 64)

    def test_the_functions_of_a_card_that_does_not_answer_are_unhealthy(self) -> None:
        wanted = self.assigned(self.functions[0])
        self.fall_silent(CARD)
        self.assertEqual({f'{CARD} does not answer on its bus: its registers read as ff'},
                         {device.unhealthy for device in self.devices().values()})
        error = self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)
        self.assertIn('does not answer', str(error))
        self.assertEqual([], self.cards.written)
        self.kind.unclaim(wanted, -1)

    def test_one_function_costs_itself(self) -> None:
        self.fall_silent(self.functions[1])
        self.assertEqual([self.functions[1]], [name for name, device in self.devices().items() if device.unhealthy])


class RealizeTestCase(VFTestCase):

    def test_the_type_is_set_once(self) -> None:
        wanted = self.assigned(self.functions[1])
        text = details.to_text(wanted.details)
        for _again in range(2):
            self.assertEqual((('vf', self.functions[1]), text, ()), tuple(self.kind.realize(wanted)))
        self.assertEqual(['0', '558', '0', '0'], self.types())
        self.assertEqual([(self.functions[1], '558')], self.cards.written)

    def test_on_a_full_card_it_is_said(self) -> None:
        wanted = [self.assigned(function) for function in self.functions[:3]]
        for one in wanted[:2]:
            self.kind.realize(one)
        error = self.assertRaises(exception.ParentFull, self.kind.realize, wanted[2])
        self.assertEqual(('vf', 'pci_0000_3d_00_0', '558'), (error.kind, error.parent, error.device_type))
        self.assertEqual(2, len(self.cards.written))

    def test_on_a_card_with_another_type_too(self) -> None:
        wanted = self.assigned(self.functions[0])
        self.cards.set_type(self.functions[1], '559')
        self.assertRaises(exception.ParentFull, self.kind.realize, wanted)

    def test_a_card_that_gets_full_in_that_moment_is_full(self) -> None:
        wanted = self.assigned(self.functions[0])
        for number, others in (('558', 2), ('559', 1)):             # ENOSPC, EINVAL
            self.cards.boot()
            self._before_the_next_write(*((function, number) for function in self.functions[1:others + 1]))
            self.assertRaises(exception.ParentFull, self.kind.realize, wanted)
            self.assertEqual('0', self.cards.type_of(self.functions[0]))

    def test_a_type_that_somebody_sets_in_that_moment_counts(self) -> None:
        wanted = self.assigned(self.functions[0])
        self._before_the_next_write((self.functions[0], '558'))
        self.kind.realize(wanted)
        self.assertEqual('558', self.cards.type_of(self.functions[0]))

    def test_another_type_is_another_device(self) -> None:
        wanted = self.assigned(self.functions[0])
        self.cards.set_type(self.functions[0], '559')
        self.assertRaises(exception.DeviceGone, self.kind.realize, wanted)
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])
        self.assertEqual('559', self.cards.type_of(self.functions[0]))

    def test_and_one_set_in_that_moment(self) -> None:
        wanted = self.assigned(self.functions[0])
        self._before_the_next_write((self.functions[0], '559'))
        self.assertRaises(exception.DeviceGone, self.kind.realize, wanted)

    def test_what_the_driver_refuses_for_another_reason_fails(self) -> None:
        wanted = self.assigned(self.functions[0])
        with self.cards.opened(self.functions[0]):
            error = self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)
        self.assertIn('Device or resource busy', str(error))

    def test_one_with_a_type_that_a_process_has_open_is_not_free(self) -> None:
        self.cards.set_type(self.functions[0], '558')
        wanted = self.assigned(self.functions[0])
        with self.cards.opened(self.functions[0]):
            self.assertRaises(exception.DeviceInUse, self.kind.check_free, wanted)
        self.kind.check_free(wanted)
        self.kind.check_free(self.assigned(self.functions[1]))

    def test_a_type_that_does_not_stay_fails(self) -> None:
        wanted = self.assigned(self.functions[0])
        self.patch(pci_privileged, 'set_vgpu_type', lambda *_arguments: None)
        error = self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)
        self.assertIn('it has no vGPU type after one was set', str(error))

    def test_one_that_went_away_is_gone(self) -> None:
        wanted = self.assigned(self.functions[0])
        self.cards.remove(self.functions[0])
        self.assertRaises(exception.DeviceGone, self.kind.realize, wanted)

    def test_one_whose_card_came_to_another_address_is_gone_and_so_is_its_card(self) -> None:
        wanted = self.assigned(self.functions[0])
        devices = os.path.join(self.cards.root, 'bus/pci/devices')
        self.cards.add(OTHER, 4, TYPES)
        for name in self.functions:
            os.unlink(os.path.join(devices, name))
        # Its virtual functions may just be late.
        self.assertRaises(exception.DeviceGone, self.kind.realize, wanted)
        for name in os.listdir(devices):
            if name.startswith('0000:3d:'):
                os.unlink(os.path.join(devices, name))
        self.assertEqual('pci_0000_3d_00_0', self.assertRaises(
            exception.ParentGone, self.kind.realize, wanted).parent)

    def test_one_that_its_driver_does_not_have_yet_is_there(self) -> None:
        wanted = self.assigned(self.functions[0])
        self.take_from_its_driver(self.functions[0])
        for call in (lambda: self.kind.realize(wanted), lambda: self.kind.guest_elements([wanted])):
            error = self.assertRaises(exception.DeviceError, call)
            self.assertEqual((False, "NVIDIA's driver does not have it"),
                             (isinstance(error, exception.DeviceGone), error.reason))

    def test_one_of_another_card_is_another_device(self) -> None:
        wanted = self.assigned(self.functions[0])
        wanted.details.parent_address = OTHER
        for call in (self.kind.realize, lambda one: self.kind.unclaim(one, 0)):
            error = self.assertRaises(exception.DeviceGone, call, wanted)
            self.assertIn(f'it belongs to {CARD}, not to the recorded {OTHER}', str(error))

    def test_one_that_cannot_be_read_is_not_realized(self) -> None:
        wanted = self.assigned(self.functions[0])
        self.cards.fail(self.functions[0])
        self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)

    def test_a_boot_takes_the_type_and_realizing_brings_it_back(self) -> None:
        wanted = self.assigned(self.functions[0])
        self.kind.realize(wanted)
        self.cards.boot()
        error = self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])
        self.assertIn('it has no vGPU type', str(error))
        self.kind.realize(wanted)
        self.assertEqual('558', self.cards.type_of(self.functions[0]))

    def test_an_existing_type_that_a_boot_took_is_ours_from_then_on(self) -> None:
        self.make_kind(use_existing=True)
        self.cards.set_type(self.functions[0], '558')
        wanted = self.assigned(self.functions[0])
        self.assertEqual('adopted', details.from_text(self.kind.realize(wanted).details).origin)
        self.cards.boot()
        self.assertEqual('created', details.from_text(self.kind.realize(wanted).details).origin)

    def _before_the_next_write(self, *others: tuple[str, str]) -> None:
        """Let somebody else set types of functions first."""
        store, waiting = pci_privileged.set_vgpu_type, list(others)

        def write(root: str, address: str, number: int) -> None:
            while waiting:
                function, other = waiting.pop()
                store(root, function, int(other))
            store(root, address, number)

        self.patch(pci_privileged, 'set_vgpu_type', write)


class UnclaimTestCase(VFTestCase):

    def realized(self, function: str = '') -> Any:
        wanted = self.assigned(function or self.functions[0])
        self.kind.realize(wanted)
        self.cards.written.clear()
        return wanted

    def test_the_type_is_taken_away_and_the_card_has_its_room(self) -> None:
        wanted = self.realized()
        self.realized(self.functions[1])
        for _again in range(2):
            self.kind.unclaim(wanted, 0)
        self.assertEqual([(self.functions[0], '0')], self.cards.written)
        self.assertEqual(self.functions, sorted(self.devices()))

    def test_without_a_type_nothing_is_written(self) -> None:
        wanted = self.realized()
        self.cards.boot()
        self.kind.unclaim(wanted, 0)
        self.assertEqual([], self.cards.written)

    def test_nor_over_another_type(self) -> None:
        wanted = self.realized()
        self.cards.boot()
        self.cards.set_type(self.functions[0], '559')
        self.cards.written.clear()
        error = self.assertRaises(exception.DeviceGone, self.kind.unclaim, wanted, 0)
        self.assertIn('it has the vGPU type 559, not the recorded 558', str(error))
        self.assertEqual([], self.cards.written)

    def test_an_existing_one_keeps_its_type(self) -> None:
        self.make_kind(use_existing=True)
        self.cards.set_type(self.functions[0], '558')
        wanted = self.realized()
        self.kind.unclaim(wanted, 0)
        self.assertEqual([], self.cards.written)

    def test_but_not_while_it_is_open(self) -> None:
        self.make_kind(use_existing=True)
        self.cards.set_type(self.functions[0], '558')
        wanted = self.realized()
        with self.cards.opened(self.functions[0]):
            error = self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        self.assertIn('a process of the host still has it open', str(error))

    def test_and_nobody_knows_is_no_answer(self) -> None:
        self.make_kind(use_existing=True)
        self.cards.set_type(self.functions[0], '558')
        wanted = self.realized()
        self.patch(root, 'VFIO', self.temp_dir())
        error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
        self.assertIn('it is unknown whether a process has it open', str(error))

    def test_one_that_went_away_took_its_type_along(self) -> None:
        wanted, existing = self.realized(), self.realized(self.functions[1])
        existing.details.origin = 'adopted'
        for one in (wanted, existing):
            self.cards.remove(one.identifier)
            self.kind.unclaim(one, 0)
        self.assertEqual([], self.cards.written)

    def test_one_that_another_driver_has_is_still_there(self) -> None:
        wanted = self.realized()
        self.take_from_its_driver(self.functions[0])
        with self.cards.opened(self.functions[0]):
            error = self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        self.assertIn('still has it open after 0 s', str(error))
        # Nobody can tell whether it has a type.
        failed = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
        self.assertIn("NVIDIA's driver does not have it", str(failed))
        self.assertEqual([], self.cards.written)

    def test_a_function_that_is_busy_is_waited_for_before_it_gets_its_type(self) -> None:
        self.make_kind(release_wait_s=60)
        opened = self.cards.opened(self.functions[0])
        opened.__enter__()
        self.patch(time, 'sleep', lambda _seconds: opened.__exit__(None, None, None))
        self.realized()
        self.assertNotEqual('0', self.cards.type_of(self.functions[0]))

    def test_and_is_waited_for_while_it_is_open(self) -> None:
        self.make_kind(release_wait_s=60)
        wanted, opened = self.realized(), self.cards.opened(self.functions[0])
        directory = os.path.join(self.cards.root, 'bus/pci/devices', self.functions[0])
        os.rename(os.path.join(directory, 'nvidia'), os.path.join(directory, 'away'))
        opened.__enter__()

        def the_guest_ends(_seconds: float) -> None:
            opened.__exit__(None, None, None)
            os.rename(os.path.join(directory, 'away'), os.path.join(directory, 'nvidia'))

        self.patch(time, 'sleep', the_guest_ends)
        self.kind.unclaim(wanted, 0)
        self.assertEqual('0', self.cards.type_of(self.functions[0]))

    def test_an_existing_one_that_another_driver_has_is_free_once_it_is_closed(self) -> None:
        wanted = self.realized()
        wanted.details.origin = 'adopted'
        self.take_from_its_driver(self.functions[0])
        with self.cards.opened(self.functions[0]):
            self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        self.kind.unclaim(wanted, 0)

    def without_a_driver(self, function: str) -> None:
        """Take a function from NVIDIA's driver and give it to none. Then there is no VFIO group of it."""
        self.take_from_its_driver(function)
        group = os.readlink(os.path.join(self.cards.root, 'bus/pci/devices', function, 'iommu_group'))
        os.unlink(os.path.join(root.VFIO, os.path.basename(group)))
        self.patch(root, 'SYSFS', self.cards.root)

    def test_an_existing_one_without_any_driver_is_free(self) -> None:
        wanted = self.realized()
        wanted.details.origin = 'adopted'
        self.without_a_driver(self.functions[0])
        self.kind.unclaim(wanted, 0)
        self.assertEqual([], self.cards.written)

    def test_one_that_got_its_type_here_has_to_come_back_to_its_driver_first(self) -> None:
        wanted = self.realized()
        self.without_a_driver(self.functions[0])
        error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
        self.assertIn("NVIDIA's driver does not have it: bind it to that driver", str(error))
        self.assertEqual([], self.cards.written)

    def test_another_device_at_its_address_is_not_it(self) -> None:
        wanted = self.realized()
        self.take_from_its_driver(self.functions[0])
        wanted.details.parent_address = OTHER
        with self.cards.opened(self.functions[0]):
            self.kind.unclaim(wanted, 0)

    def test_one_whose_card_is_unknown_stays_held(self) -> None:
        wanted = self.realized()
        self.take_from_its_driver(self.functions[0])
        link = os.path.join(self.cards.root, 'bus/pci/devices', self.functions[0], 'physfn')
        os.unlink(link)
        with open(link, 'w'):                           # nothing but a link says it
            error = self.assertRaises(exception.CommandFailed, self.kind.unclaim, wanted, 0)
        self.assertIn('physfn', str(error))

    def test_what_is_open_is_waited_for(self) -> None:
        self.make_kind(release_wait_s=60)
        wanted, opened = self.realized(), self.cards.opened(self.functions[0])
        opened.__enter__()
        self.patch(time, 'sleep', lambda _seconds: opened.__exit__(None, None, None))
        self.kind.unclaim(wanted, 0)
        self.assertEqual([(self.functions[0], '0')] * 2, self.cards.written)
        self.assertEqual('0', self.cards.type_of(self.functions[0]))

    def test_but_not_for_ever(self) -> None:
        wanted = self.realized()
        with self.cards.opened(self.functions[0]):
            error = self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        self.assertIn('still has it open after 0 s', str(error))
        self.assertEqual('558', self.cards.type_of(self.functions[0]))

    def test_what_the_driver_refuses_stays_held(self) -> None:
        wanted = self.realized()

        def refuse(_root: str, _address: str, _number: int) -> None:
            raise OSError(5, 'Input/output error')

        self.patch(pci_privileged, 'set_vgpu_type', refuse)
        error = self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
        self.assertIn('Input/output error', str(error))


class LiveMigrationTestCase(VFTestCase):

    def test_needs_what_every_vfio_device_needs(self) -> None:
        said: list[vfio_migration.Versions | None] = [None, vfio_migration.Versions(9_000_000, 7_002_000, '6.8.0')]
        self.patch(self.kind.hypervisor, 'versions', lambda: said.pop(0))
        self.assertIsNone(self.kind.live_migration_obstacle())
        self.assertIn('QEMU 7.2.0', self.kind.live_migration_obstacle() or '')


class GuestElementTestCase(VFTestCase):

    def test_names_the_function_and_leaves_its_driver_alone(self) -> None:
        wanted = [self.assigned(function) for function in self.functions[1::-1]]
        for one in wanted:
            self.kind.realize(one)
        elements = self.kind.guest_elements(wanted)
        self.assertEqual("<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x0000' "
                         "bus='0x3d' slot='0x00' function='0x5'/></source></hostdev>", elements[0])
        devices = ''.join(elements)
        domain = domain_xml.parse(f'<domain><uuid>{self.instance}</uuid><devices>{devices}</devices></domain>')
        self.assertEqual(tuple(self.functions[1::-1]), domain.pci_addresses)
        self.assertIs(guest_xml.PCI, self.kind.form)
