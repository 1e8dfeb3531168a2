"""Mediated devices: what there is, and making one ready."""

from __future__ import annotations

import logging
import os
import time
from typing import Any
import uuid

import fixtures

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects import identity
from devicetrack.objects.values import DeviceKey
from devicetrack.tests import processes
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt.mdev_node import Function
from devicetrack.tests.unit.virt.mdev_node import MdevTestCase
from devicetrack.tests.unit.virt.mdev_node import Node
from devicetrack.tests.unit.virt.mdev_node import NodeDevice
from devicetrack.tests.unit.virt.mdev_node import PARENT
from devicetrack.tests.unit.virt.mdev_node import ParentDevice
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import device_users
from devicetrack.virt.libvirt import mdev_sysfs
from devicetrack.virt.libvirt import mdevctl
from devicetrack.virt.libvirt import privileged
from devicetrack.virt.libvirt.kinds import api

# Has a definition open, as mdevctl has while it writes it.
WRITER = """
import sys
with open(sys.argv[1], 'a'):
    print('open', flush=True)
    sys.stdin.read()
"""


class StockTestCase(MdevTestCase):

    def test_a_virtual_parent(self) -> None:
        self.node.add('mtty-2')
        stock = self.kind.stock()
        capacity, = stock.capacities
        self.assertEqual((PARENT, 'mtty-2', PARENT, 'VGPU', None, 11), capacity[1:7])
        device, = stock.devices
        self.assertEqual((PARENT, 'VGPU', PARENT, None, None), (*device[2:6], device.unhealthy))
        found = details.from_text(device.details)
        self.assertEqual(('mtty-2', PARENT, None, 'vfio-pci', 7, vocabulary.EXISTING, ''),
                         tuple(getattr(found, name) for name in found.fields))

    def test_other_types_are_not_ours_and_take_capacity(self) -> None:
        self.node.add('mtty-1')
        stock = self.kind.stock()
        self.assertEqual(((), 11), (stock.devices, stock.capacities[0].available))

    def test_a_parent_of_no_enabled_type_is_there_all_the_same(self) -> None:
        kind = self.make_kind(types=[])
        self.assertEqual([], list(kind.possible_parents()))
        kind.devices.kernel = mdev_sysfs.Kernel(self.temp_dir())
        os.makedirs(kind.devices.kernel.parent_path('0000:84:00.0'))
        self.assertEqual((False, ['pci_0000_84_00_0']), (kind.configured, list(kind.possible_parents())))

    def test_what_a_card_makes_has_its_serial_number(self) -> None:
        self.node.functions = ['pci_0000_84_00_0']
        original, first = Function.xml, "<capability type='mdev_types'>"
        self.patch(Function, 'xml', lambda function: original(function).replace(
            first, "<capability type='pci'><domain>0</domain><bus>132</bus><slot>0</slot><function>0</function>"
                   f'</capability>{first}', 1))
        kind = self.make_kind()
        card = os.path.join(kind.devices.kernel.root, 'bus/pci/devices/0000:84:00.0')
        os.makedirs(card)
        with open(os.path.join(card, 'vpd'), 'wb') as file:
            file.write(b'\x90\x06\x00SN\x03M75')
        self.assertEqual({'pci_0000_84_00_0': 'M75', PARENT: None}, {
            one.parent: details.serial_of(one.details) for one in kind.stock().capacities})

    def test_no_more_than_the_operator_wants(self) -> None:
        kind = self.make_kind()
        self.configuration.set('mdev_mtty-2', max_instances=12)
        kind = self.make_kind()
        for wanted in (12, 11, 10):
            self.assertEqual(wanted, kind.stock().capacities[0].available)
            self.node.add('mtty-2')

    def test_a_parent_that_could_make_more_than_the_operator_wants_makes_none_and_says_why(self) -> None:
        """As Nova counts, which has the option of this name."""
        self.configuration.set('mdev_mtty-2', max_instances=2)
        stock = self.make_kind().stock()
        why = ('[mdev_mtty-2] max_instances leaves 2 of the 12 that it could make, and a parent makes all or none')
        self.assertEqual([(0, why)], [(one.available, one.taken_by) for one in stock.capacities])
        self.assertEqual([(PARENT, why)], [(one.key.identifier, one.reason) for one in stock.faults])

    def test_two_types_of_one_parent_are_counted_apart(self) -> None:
        for name in ('mtty-1', 'mtty-2'):
            self.make_kind(types=[name])
        self.configuration.set('mdev_mtty-1', device_addresses=[PARENT])
        self.configuration.set('mdev_mtty-2', device_addresses=[PARENT], mdev_class='CUSTOM_DOUBLE')
        self.kind = self.make_kind(types=['mtty-1', 'mtty-2'])
        self.assertEqual([('VGPU', 24), ('CUSTOM_DOUBLE', 12)], [
            (one.resource_class, one.available) for one in self.kind.stock().capacities])
        capacity = self.kind.stock().capacities[1]
        wanted = contract.assignment(self.instance, 'mdev', str(uuid.uuid4()), PARENT, capacity.details)
        self.assertEqual([22, 11], [one.available for one in self.kind.realize(wanted).capacities])
        [device] = self.kind.stock().devices
        self.assertEqual('CUSTOM_DOUBLE', device.resource_class)

    def test_the_parents_share_what_the_operator_wants(self) -> None:
        """Functions of a card are parents that make one device each, and the card holds fewer than it has functions."""
        self.node.functions = [f'pci_0000_84_00_{number}' for number in range(4)]
        self.node.units = 0
        self.configuration.set('mdev_mtty-2', max_instances=2)
        kind = self.make_kind()

        def room() -> list[int]:
            by_name = {capacity.parent: capacity.available for capacity in kind.stock().capacities}
            return [by_name[parent] for parent in self.node.functions]

        self.assertEqual([1, 1, 0, 0], room())
        self.node.add('mtty-2', parent=self.node.functions[1])
        self.assertEqual([1, 0, 0, 0], room())
        self.node.add('mtty-2', parent=self.node.functions[3])
        self.assertEqual([0, 0, 0, 0], room())

    def test_a_parent_that_failed_comes_last_when_they_share(self) -> None:
        self.node.functions = [f'pci_0000_84_00_{number}' for number in range(3)]
        self.configuration.set('mdev_mtty-2', max_instances=2)
        kind = self.make_kind()
        kind._failing.add('mtty_mtty')
        self.assertEqual({'mtty_mtty': 0, 'pci_0000_84_00_0': 1, 'pci_0000_84_00_1': 1, 'pci_0000_84_00_2': 0}, {
            capacity.parent: capacity.available for capacity in kind.stock().capacities})

    def test_a_type_that_no_parent_makes_is_said_once(self) -> None:
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        kind = self.make_kind(types=['nvidia-35'])
        for _ in range(2):
            self.assertEqual(api.Stock(), kind.stock())
        self.assertEqual('[devices] enabled_mdev_types = nvidia-35: no parent of this host makes it; those of this '
                         'host make mtty-1, mtty-2\n', log.output)

    def test_an_address_that_is_of_no_parent_is_a_warning_once(self) -> None:
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        self.configuration.set('mdev_mtty-2', device_addresses=[PARENT, '0000:85:00.0'])
        self.node.add('mtty-2')
        kind = self.make_kind()
        for _ in range(2):
            kind.stock()
        self.assertEqual('[mdev_mtty-2] device_addresses = 0000:85:00.0: this host has no such parent of mediated '
                         'devices; it has mtty_mtty\n', log.output)

    def test_a_device_of_a_type_that_no_option_enables_is_not_named(self) -> None:
        device = self.node.add('mtty-2')
        [found] = self.kind.stock().devices
        self.assertEqual([True, False], [kind.is_named(device.identifier, found.details) for kind in (
            self.kind, self.make_kind(types=['mtty-1']))])

    def test_a_device_of_a_parent_that_no_option_names_is_not_named(self) -> None:
        device = self.node.add('mtty-2')
        [found] = self.kind.stock().devices
        for addresses, expected in ((['0000:84:00.0'], False), ([found.parent], True)):
            self.configuration.set('mdev_mtty-2', device_addresses=addresses)
            self.assertEqual(expected, self.make_kind().is_named(device.identifier, found.details), str(addresses))

    def test_an_idle_device_of_another_type_that_takes_the_room_is_named(self) -> None:
        self.node.units = 2
        kind = self.make_kind(types=['mtty-1'])
        device = self.node.add('mtty-2')
        stock = kind.stock()
        [capacity], [fault] = stock.capacities, stock.faults
        self.assertEqual((0, f'mdev/{device.identifier} of a type that is not enabled there takes it'),
                         (capacity.available, capacity.taken_by))
        self.assertEqual(device.identifier, fault.key.identifier)
        self.assertIn('its type mtty-2 is not enabled there', fault.reason)
        # With room left it is nobody's business, and neither is one that somebody uses.
        self.node.units = 24
        self.assertEqual(((), ''), (kind.stock().faults, kind.stock().capacities[0].taken_by))
        self.node.units = 2
        self.patch(mdev_sysfs.Kernel, 'is_open', lambda _kernel, _uuid: True)
        self.assertEqual((), kind.stock().faults)

    def test_a_type_whose_own_parents_do_not_make_it_is_said(self) -> None:
        self.make_kind()
        self.configuration.set('mdev_mtty-2', device_addresses=['0000:84:00.0'])
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        self.make_kind().stock()
        self.assertIn('no parent that [mdev_mtty-2] device_addresses names makes it', log.output)

    def test_a_matrix_of_adapters_is_handed_out_and_never_made_without_them(self) -> None:
        original = ParentDevice.xml
        self.patch(ParentDevice, 'xml', lambda parent: original(parent).replace('vfio-pci', 'vfio-ap'))
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        for _ in range(2):
            self.assertEqual(api.Stock(), self.kind.stock())
        self.assertEqual(1, log.output.count('without adapters and domains'))
        device = self.node.add('mtty-2')
        [found] = self.kind.stock().devices
        self.assertEqual((device.identifier, None, True), (found.identifier, found.unhealthy, found.assignable))
        self.assertEqual('vfio-ap', details.from_text(found.details).device_api)

    def test_a_subchannel_may_be_another_disk_after_a_boot_and_goes_to_nobody(self) -> None:
        original = ParentDevice.xml
        self.patch(ParentDevice, 'xml', lambda parent: original(parent).replace('vfio-pci', 'vfio-ccw'))
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        for _ in range(2):
            self.assertEqual(api.Stock(), self.kind.stock())
        self.assertEqual(1, log.output.count('so none is handed out'))
        device = self.node.add('mtty-2')
        [found] = self.kind.stock().devices
        self.assertFalse(found.assignable)
        row = contract.assignment(self.instance, 'mdev', device.identifier, found.parent, found.details)
        self.assertRaises(exception.RealizeFailed, self.kind.realize, row)

    def test_a_type_that_is_used_up_is_no_mistake(self) -> None:
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        self.node.units = 0
        self.kind.stock()
        self.assertEqual('', log.output)

    def test_an_inactive_one_may_be_assigned_while_there_is_room(self) -> None:
        device = self.node.add('mtty-2', active=False, persistent=True)
        found, = self.kind.stock().devices
        self.assertIsNone(found.unhealthy)
        self.assertIsNone(details.from_text(found.details).iommu_group)
        self.node.units = 0
        found, = self.kind.stock().devices
        self.assertEqual(device.identifier, found.identifier)
        self.assertIn('no room', str(found.unhealthy))

    def test_inactive_ones_share_the_room_of_their_parent(self) -> None:
        def offered() -> tuple[list[str], int]:
            stock = self.kind.stock()
            return ([device.identifier for device in stock.devices if device.unhealthy is None],
                    sum(capacity.available for capacity in stock.capacities))

        names = sorted(self.node.add('mtty-2', active=False, persistent=True).identifier for _number in range(3))
        for units, expected in ((10, (names, 2)), (6, (names, 0)), (4, (names[:2], 0)), (0, ([], 0))):
            self.node.units = units
            self.assertEqual(expected, offered())

    def test_what_exists_is_not_offered_without_the_option(self) -> None:
        self.node.add('mtty-2')
        found, = self.make_kind(use_existing_mdevs=False).stock().devices
        self.assertEqual((None, False), (found.unhealthy, found.assignable))

    def test_a_parent_that_libvirt_does_not_know_is_told_by_its_address(self) -> None:
        self.node.add('mtty-2', parent='computer', parent_address='mdpy')
        found, = self.kind.stock().devices
        self.assertEqual(('mdpy', 'mdpy', 'libvirt does not know its parent mdpy yet'),
                         (found.provider, found.parent, found.unhealthy))
        self.node.clear()
        self.node.add('mtty-2', parent='computer', parent_address='mtty')
        found, = self.kind.stock().devices
        self.assertEqual((PARENT, PARENT), (found.provider, found.parent))

    def test_a_parent_that_libvirt_does_not_know_yet_has_the_name_that_it_will_have(self) -> None:
        kernel = self.kind.devices.kernel
        for address, subsystem, name in (('0000:3d:00.4', 'pci', 'pci_0000_3d_00_4'), ('mdpy', 'mdpy', 'mdpy_mdpy'),
                                         ('0.0.0026', 'css', 'css_0_0_0026'), ('matrix', 'matrix', 'ap_matrix')):
            self.node.clear()
            self.node.add('mtty-2', parent='computer', parent_address=address)
            made = kernel.type_path(address, 'mtty-2')
            os.makedirs(made)
            os.symlink(f'../../bus/{subsystem}', os.path.join(kernel.parent_path(address), 'subsystem'))
            for directory, file_name, text in ((made, 'device_api', 'vfio-ccw'),
                                               (kernel.parent_path(address), 'numa_node', '1')):
                with open(os.path.join(directory, file_name), 'w') as file:
                    file.write(f'{text}\n')
            found, = self.kind.stock().devices
            self.assertEqual((name, name, 1, None), (found.provider, found.parent, found.numa_node, found.unhealthy))
            read = details.from_text(found.details)
            self.assertEqual((name, address if 'pci' in name else None, 'vfio-ccw'),
                             (read.parent, read.parent_address, read.device_api))

    def test_a_definition_whose_parent_libvirt_does_not_know_is_nothing_to_hand_out(self) -> None:
        for parent in ('computer', 'mtty_other'):
            self.node.clear()
            self.node.add('mtty-2', parent=parent, parent_address='other', active=False, persistent=True)
            self.assertEqual((), self.kind.stock().devices)

    def test_the_kernel_knows_the_type_of_what_exists(self) -> None:
        device = self.node.add('mtty-1', persistent=True, shown_type="<type id='mtty-2'/>")
        self.assertEqual((), self.kind.stock().devices)
        device.change(active=False)
        self.assertEqual(1, len(self.kind.stock().devices))

    def test_what_libvirt_has_not_heard_of_is_there(self) -> None:
        device = self.node.add('mtty-2', heard_of=False)
        self.assertEqual([device.identifier], [found.identifier for found in self.kind.stock().devices])
        wanted = self.existing(device)
        self.kind.realize(wanted)
        self.assertEqual(1, len(self.kind.guest_elements([wanted])))

    def test_what_libvirt_still_lists_is_not_there(self) -> None:
        for shown_type in ("<type id='mtty-2'/>", ''):
            device = self.node.add('mtty-2', shown_type=shown_type)
            device.change(active=False)
            self.node.existing[device.name] = device
        self.assertEqual((), self.kind.stock().devices)

    def test_what_is_defined_has_a_type(self) -> None:
        device = self.node.add('mtty-2', active=False, persistent=True, shown_type='')
        stock = self.kind.stock()
        self.assertEqual(((), [device.name]), (stock.devices, [fault.key.identifier for fault in stock.faults]))

    def test_of_one_uuid_that_is_defined_twice_there_is_one_device(self) -> None:
        one = self.node.add('mtty-2', active=False, persistent=True)
        two = self.node.add('mtty-2', identifier=one.identifier, active=False, persistent=True, parent='computer',
                            parent_address='mdpy', name=f'{one.name}_mdpy')
        found, = self.kind.stock().devices
        self.assertIn('defined more than once', str(found.unhealthy))
        two.change(active=True)
        found, = self.kind.stock().devices
        self.assertEqual(('mdpy', 'libvirt does not know its parent mdpy yet'), (found.parent, found.unhealthy))

    def test_a_device_that_goes_away_while_it_is_read_is_gone(self) -> None:
        device = self.node.add('mtty-2')

        def gone() -> str:
            device.change(active=False)
            raise connection.Refused('virNodeDeviceGetXMLDesc', '', connection.Meaning.NO_SUCH_DEVICE)

        device.xml = gone
        self.assertEqual((), self.kind.stock().devices)

    def test_one_document_that_cannot_be_read_costs_itself_alone_and_is_named(self) -> None:
        bad, good = self.node.add('mtty-2'), self.node.add('mtty-2')
        for document in ('<device/>', good.xml().replace('<uuid>', '<id>').replace('</uuid>', '</id>'), 'torn <'):
            bad.xml = lambda document=document: document
            stock = self.kind.stock()
            # The kernel says what it is.
            self.assertEqual({bad.identifier: None, good.identifier: None},
                             {device.identifier: device.unhealthy for device in stock.devices})
            [fault] = stock.faults
            self.assertEqual((('mdev', bad.name), '[devices] enabled_mdev_types'), (fault.key, fault.option))
            self.assertIn(f'node device {bad.name}', fault.reason)

    def test_nor_is_it_taken_for_gone_where_nobody_else_tells_of_it(self) -> None:
        self.node.add('mtty-2').xml = lambda: '<device/>'
        self.patch(self.kind.devices, 'kernel', mdev_sysfs.Kernel('/nosuch'))
        self.assertRaises(exception.InvalidDocument, self.kind.stock)

    def test_a_release_stops_at_its_own_document_that_cannot_be_read(self) -> None:
        wanted = self.to_create()
        self.kind.realize(wanted)
        device, = self.node.existing.values()
        device.xml = lambda: '<device/>'
        self.assertRaises(exception.InvalidDocument, self.kind.unclaim, wanted, -1)
        self.assertTrue(device.active)

    def test_a_parent_that_cannot_be_read_costs_itself_alone_and_is_named(self) -> None:
        self.node.functions = ['pci_0000_84_00_0', 'pci_0000_84_00_1']
        original = Function.xml
        for broken in (lambda text: text.replace('<deviceAPI>vfio-pci</deviceAPI>', ''), lambda text: text[:-9],
                       lambda text: text.replace('>1<', '>many<')):
            self.patch(Function, 'xml', lambda parent, broken=broken: (
                broken if parent.name == self.node.functions[0] else str)(original(parent)))
            stock = self.kind.stock()
            self.assertEqual([PARENT, self.node.functions[1]], sorted(one.parent for one in stock.capacities))
            self.assertEqual([self.node.functions[0]], [fault.key.identifier for fault in stock.faults])

    def test_a_type_that_cannot_be_read_costs_itself_alone(self) -> None:
        original = ParentDevice.xml
        self.patch(ParentDevice, 'xml', lambda parent: original(parent).replace(
            "<type id='mtty-1'>", "<type id='mtty-1'><availableInstances>many</availableInstances>"))
        stock = self.kind.stock()
        self.assertEqual(['mtty-2'], [one.device_type for one in stock.capacities])
        self.assertIn('type mtty-1: ', stock.faults[0].reason)


class RealizeTestCase(MdevTestCase):

    def test_what_is_created_is_there_after_the_next_boot(self) -> None:
        wanted = self.to_create()
        realized = self.kind.realize(wanted)
        device, = self.node.existing.values()
        self.assertEqual((wanted.identifier, True, True, True),
                         (device.identifier, device.active, device.persistent, device.autostart))
        self.assertEqual(DeviceKey('mdev', wanted.identifier), realized.key)
        self.assertEqual((7, vocabulary.CREATED), (details.from_text(realized.details).iommu_group,
                                                   details.from_text(realized.details).origin))
        self.assertEqual([11], [capacity.available for capacity in realized.capacities])

    def test_no_other_device_is_read(self) -> None:
        wanted = self.to_create()
        for _other in range(2):
            self.node.add('mtty-2').xml = lambda: self.fail('the device of another guest was read')
        self.assertEqual([9], [capacity.available for capacity in self.kind.realize(wanted).capacities])

    def test_inactive_devices_keep_their_room(self) -> None:
        self.node.units = 8
        wanted = self.to_create()
        device = self.node.add('mtty-2', active=False, persistent=True)
        self.kind.stock()
        self.assertEqual([2], [capacity.available for capacity in self.kind.realize(wanted).capacities])
        self.assertEqual([2], [capacity.available for capacity in self.kind.realize(self.existing(device)).capacities])

    def test_other_devices_count_where_an_option_limits_them(self) -> None:
        self.make_kind()
        self.configuration.set('mdev_mtty-2', max_instances=12)
        self.kind = self.make_kind()
        wanted = self.to_create()
        self.node.add('mtty-2')
        self.assertEqual([10], [capacity.available for capacity in self.kind.realize(wanted).capacities])

    def test_a_crash_between_any_two_steps_is_finished(self) -> None:
        for active, persistent in ((False, True), (True, True), (True, False)):
            self.node.clear()
            wanted = self.to_create()
            self.node.add('mtty-2', identifier=wanted.identifier, active=active, persistent=persistent)
            self.kind.realize(wanted)
            device, = self.node.existing.values()
            self.assertEqual((True, True, True), (device.active, device.persistent, device.autostart))

    def test_one_that_the_host_starts_at_the_same_time_is_there(self) -> None:
        wanted = self.to_create()
        device = self.node.add('mtty-2', identifier=wanted.identifier, active=False, persistent=True)

        def started_by_the_host() -> None:
            device.change(active=True)
            raise connection.Refused('virNodeDeviceCreate', 'Device already exists', connection.Meaning.EXISTS)

        device.start = started_by_the_host
        self.kind.realize(wanted)
        self.assertEqual({device.name: device}, self.node.existing)

    def test_a_uuid_that_exists_elsewhere_is_not_taken_for_it(self) -> None:
        wanted = self.to_create()
        self.node.fail = {'start': connection.Refused('virNodeDeviceCreate', 'Device already exists',
                                                      connection.Meaning.EXISTS)}
        self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)

    def test_a_device_that_will_not_start_with_the_host_is_ready_all_the_same(self) -> None:
        self.node.fail = {'autostart': connection.Refused('virNodeDeviceSetAutostart', 'no')}
        for defined in (True, False):
            wanted = self.to_create()
            if defined:
                self.node.add('mtty-2', identifier=wanted.identifier, persistent=True)
            self.kind.realize(wanted)
            device, = (device for device in self.node.existing.values() if device.identifier == wanted.identifier)
            self.assertEqual((True, True, False), (device.active, device.persistent, device.autostart))

    def test_a_definition_that_only_mdevctl_sees_serves_although_it_will_not_start_with_the_host(self) -> None:
        """This process sees no definition of mdevctl's, or an empty directory in place of the host's."""
        self.node.fail = {'autostart': connection.Refused('virNodeDeviceSetAutostart', 'no'),
                          'define': connection.Refused('virNodeDeviceDefineXML', 'Cowardly refusing to overwrite')}
        for directory, active in ((os.path.join(self.temp_dir(), 'none'), False), (self.temp_dir(), True)):
            wanted = self.to_create()
            self.node.add('mtty-2', identifier=wanted.identifier, active=active, persistent=True)
            self.patch(mdevctl, 'DIRECTORY', directory)
            self.kind.realize(wanted)
            device, = (device for device in self.node.existing.values() if device.identifier == wanted.identifier)
            self.assertEqual((True, False), (device.active, device.autostart))

    def test_what_libvirt_forgets_for_a_moment_is_asked_for_again(self) -> None:
        self.kind.patience.settle_s = 60
        for call in ('autostart', 'start'):
            for text, meaning in (('no node device with matching name', connection.Meaning.NO_SUCH_DEVICE),
                                  ('cannot set autostart for transient device', connection.Meaning.BEHIND),
                                  ('the hypervisor did not say why', connection.Meaning.UNTOLD)):
                self.node.fail = {call: connection.Refused(call, text, meaning)}
                self.patch(time, 'sleep', lambda _seconds: self.node.fail.clear())
                wanted = self.to_create()
                self.kind.realize(wanted)
                device, = (device for device in self.node.existing.values() if device.identifier == wanted.identifier)
                self.assertEqual((True, True, True), (device.active, device.persistent, device.autostart))

    def test_a_definition_that_libvirt_has_not_heard_of(self) -> None:
        self.kind.patience.settle_s = 60
        for active in (True, False):
            self.node.clear()
            wanted = self.to_create()
            device = self.node.add('mtty-2', identifier=wanted.identifier, active=active, persistent=True,
                                   heard_of=False)
            self.node.fail = {'define': connection.Refused('define', 'Cowardly refusing to overwrite')}
            self.patch(time, 'sleep', lambda _seconds, device=device: device.change(heard_of=True))
            self.kind.realize(wanted)
            self.assertEqual((True, True), (device.active, device.autostart))
        device.change(heard_of=False)
        self.kind.patience.settle_s = 0
        self.assertRaises(connection.Refused, self.kind.realize, wanted)

    def test_a_definition_that_somebody_removed_and_libvirt_has_not_heard_of_that(self) -> None:
        wanted = self.to_create()
        device = self.node.add('mtty-2', identifier=wanted.identifier, persistent=True)
        definition = os.path.join(self.node.definitions, device.parent_address, wanted.identifier)

        def set_autostart() -> None:
            if not os.path.exists(definition):
                raise connection.Refused('virNodeDeviceSetAutostart', f'Mediated device {wanted.identifier} is not '
                                                                      'defined')
            device.autostart = True

        os.unlink(definition)
        device.set_autostart = set_autostart
        self.kind.realize(wanted)
        self.assertTrue(os.path.exists(definition))
        self.assertTrue(device.autostart)

    def test_definitions_that_were_lost_with_the_power_are_removed_and_made_anew(self) -> None:
        wanted = self.to_create()
        other = os.path.join(self.node.definitions, 'mtty', str(uuid.uuid4()))
        os.mkdir(os.path.dirname(other))
        lost = os.path.join(os.path.dirname(other), wanted.identifier)
        for path, when in ((other, 0), (lost, 0)):
            with open(path, 'w'):
                os.utime(path, (when, when))

        def define(_node: Node, document: str) -> Any:
            if os.path.exists(other) or os.path.exists(lost):
                raise connection.Refused('virNodeDeviceDefineXML', 'EOF while parsing a value at line 1 column 0')
            return original(_node, document)

        original = Node.define_node_device
        self.patch(Node, 'define_node_device', define)
        self.patch(os, 'geteuid', lambda: 0)
        self.patch(device_users, 'sees_host', lambda: True)     # the tests may run in a container
        self.kind.patience.settle_s = 60
        self.patch(time, 'sleep', lambda _seconds: self.fail('libvirt cannot hear of any definition until then'))
        self.kind.realize(wanted)
        device, = self.node.existing.values()
        self.assertEqual((True, True), (device.active, device.persistent))
        self.assertFalse(os.path.exists(other))

    def fails_while_broken(self) -> None:
        """Let libvirt define nothing while mdevctl cannot read a definition."""
        def define(node: Node, document: str) -> Any:
            if mdevctl.broken():
                raise connection.Refused('virNodeDeviceDefineXML', 'EOF while parsing a value at line 1 column 0')
            return original(node, document)

        original = Node.define_node_device
        self.patch(Node, 'define_node_device', define)
        self.patch(os, 'geteuid', lambda: 0)
        self.patch(device_users, 'sees_host', lambda: True)     # the tests may run in a container

    def write(self, identifier: str, text: str) -> str:
        path = os.path.join(self.node.definitions, 'mtty', identifier)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as file:
            file.write(text)
        return path

    def test_a_definition_of_this_boot_that_is_empty_or_torn_is_put_away_and_named(self) -> None:
        self.fails_while_broken()
        for text in ('', '{"mdev_type": "mtty-2", "st', '7', '\0\0'):
            path = self.write(str(uuid.uuid4()), text)
            [fault] = self.kind.stock().faults
            self.assertEqual((os.path.basename(path), True), (fault.key.identifier, path in fault.reason))
            log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
            self.kind.realize(self.to_create())
            self.assertIn(path, log.output)
            self.assertEqual((False, bool(text)), (os.path.exists(path), os.path.exists(f'{path}.damaged')))
            self.assertEqual((), self.kind.stock().faults)

    def test_that_of_the_device_itself_is_put_away_at_once(self) -> None:
        self.fails_while_broken()
        for text in ('', '{"mdev_type":'):
            wanted = self.to_create()
            self.write(wanted.identifier, text)
            self.kind.realize(wanted)
            self.assertEqual({}, mdevctl.broken())

    def test_an_empty_or_torn_definition_that_is_being_written_is_left_alone_and_named(self) -> None:
        self.fails_while_broken()
        for text in ('', '{"mdev_type":'):
            path = self.write(str(uuid.uuid4()), text)
            writer = processes.Process('-c', WRITER, path)
            self.addCleanup(writer.communicate)
            assert writer.stdout is not None
            writer.stdout.readline()
            log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
            self.assertRaises(connection.Refused, self.kind.realize, self.to_create())
            self.assertTrue(os.path.exists(path))
            self.assertIn(path, log.output)

    def test_lost_definitions_that_cannot_be_removed_are_told(self) -> None:
        wanted = self.to_create()
        path = os.path.join(self.node.definitions, 'mtty', wanted.identifier)
        os.mkdir(os.path.dirname(path))
        with open(path, 'w'):
            os.utime(path, (0, 0))
        self.node.fail = {'define': connection.Refused('virNodeDeviceDefineXML', 'EOF while parsing')}

        def cannot() -> None:
            raise PermissionError(13, 'Permission denied')

        self.patch(privileged, 'remove_lost_definitions', cannot)
        self.patch(device_users, 'sees_host', lambda: True)     # the tests may run in a container
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        self.assertRaises(connection.Refused, self.kind.realize, wanted)
        self.assertIn(path, log.output)
        self.assertIn('Permission denied', log.output)

    def test_a_parent_that_libvirt_does_not_know_for_a_while_stays_in_the_row(self) -> None:
        """After a boot, libvirt may learn of the parent only some seconds later."""
        for parent, address in ((PARENT, 'mtty'), ('pci_0000_3d_00_4', '0000:3d:00.4')):
            self.node.clear()
            self.node.functions = [parent] if parent != PARENT else []
            device = self.node.add('mtty-2', parent=parent, parent_address=address)
            wanted = self.existing(device)
            with fixtures.MonkeyPatch(f'{Node.__module__}.Node.mdev_parents', lambda _node: []):
                device.parent = 'computer'
                self.assertEqual(wanted.details, details.from_text(self.kind.realize(wanted).details))
                self.assertEqual(1, len(self.kind.guest_elements([wanted])))
                found, = self.kind.stock().devices
                self.assertIn('libvirt does not know its parent', str(found.unhealthy))
                self.assertTrue(identity.same_device(details.to_text(wanted.details), found.details))
            device.parent = parent
            self.assertEqual(wanted.details, details.from_text(self.kind.realize(wanted).details))

    def test_a_row_that_has_the_address_of_its_parent_gets_its_name_back(self) -> None:
        """An earlier release wrote it there while libvirt did not know the parent."""
        device = self.node.add('mtty-2', persistent=True)
        wanted = self.existing(device)
        wanted.details.parent, wanted.details.origin = 'mtty', vocabulary.CREATED
        self.assertEqual(1, len(self.kind.guest_elements([wanted])))
        self.assertEqual(PARENT, details.from_text(self.kind.realize(wanted).details).parent)
        device.change(active=False, persistent=False)
        self.assertEqual(PARENT, details.from_text(self.kind.realize(wanted).details).parent)
        self.kind.unclaim(wanted, -1)
        self.assertEqual({}, self.node.existing)

    def test_a_card_that_came_to_another_address_is_gone_and_leaves_no_definition(self) -> None:
        address, other = '0000:3d:00.4', '0000:3e:00.4'
        at = [os.path.join(self.node.sysfs, 'bus/pci/devices', one) for one in (address, other)]
        os.makedirs(at[0])
        self.node.functions = ['pci_0000_3d_00_4']
        original = Function.xml
        self.patch(Function, 'xml', lambda parent: original(parent).replace(
            '<path>/sys/devices/virtual/mtty/mtty</path>', '').replace('</device>', (
                "<capability type='pci'><domain>0</domain><bus>61</bus><slot>0</slot><function>4</function>"
                '</capability></device>')))
        capacity = next(one for one in self.kind.stock().capacities if one.parent == self.node.functions[0])
        wanted = contract.assignment(self.instance, 'mdev', str(uuid.uuid4()), capacity.parent, capacity.details)
        self.assertEqual(address, wanted.details.parent_address)
        device = self.node.add('mtty-2', identifier=wanted.identifier, parent=self.node.functions[0],
                               parent_address=address, active=False, persistent=True)
        self.node.functions = []
        self.node.fail = {'start': connection.Refused('virNodeDeviceCreate', 'Unable to find parent device')}
        self.assertRaises(connection.Refused, self.kind.realize, wanted)        # its driver may just be late
        os.rename(at[0], at[1])
        self.assertEqual(capacity.parent, self.assertRaises(exception.ParentGone, self.kind.realize, wanted).parent)
        self.assertNotIn(device.name, self.node.existing)

    def test_a_parent_that_went_away_and_came_back(self) -> None:
        wanted = self.to_create()
        self.kind.realize(wanted)
        device, = self.node.existing.values()
        device.change(active=False)
        for device.parent in ('computer', PARENT):
            self.patch(Node, 'mdev_parents', lambda _node: [])
            self.assertEqual((), self.kind.stock().devices)
            self.node.fail = {'start': connection.Refused('virNodeDeviceCreate', "Unable to find parent device 'mtty'")}
            failed = self.assertRaises(connection.Refused, self.kind.realize, wanted)
            self.assertIn('Unable to find parent', failed.reason)
        self.patch(Node, 'mdev_parents', lambda node: [ParentDevice(node)])
        self.node.fail = {}
        self.kind.realize(wanted)
        self.assertEqual([device], list(self.node.existing.values()))
        self.assertTrue(device.active)

    def test_a_full_parent_is_told_by_its_count(self) -> None:
        wanted = self.to_create()
        self.node.units = 1
        self.assertRaises(exception.ParentFull, self.kind.realize, wanted)
        self.assertEqual([], self.node.done)

    def test_a_parent_that_fills_up_meanwhile_is_told_by_the_error(self) -> None:
        for meaning in (connection.Meaning.FULL, connection.Meaning.OTHER):
            wanted = self.to_create()

            def fills_up(meaning: connection.Meaning = meaning) -> Any:
                self.node.units = 0
                raise connection.Refused('virNodeDeviceCreate', 'no more', meaning)

            self.patch(NodeDevice, 'start', lambda _device: fills_up())
            self.assertRaises(exception.ParentFull, self.kind.realize, wanted)
            self.assertEqual({}, self.node.existing)
            self.node.units = 24

    def test_a_failed_start_leaves_nothing_behind(self) -> None:
        for call in ('define', 'start'):
            self.node.fail = {call: connection.Refused(call, 'no')}
            self.assertRaises(connection.Refused, self.kind.realize, self.to_create())
            self.assertEqual({}, self.node.existing)

    def test_no_answer_in_the_middle_is_finished_by_the_next_call(self) -> None:
        wanted = self.to_create()
        lost = exception.HypervisorUnreachable('x', 'y')
        self.node.fail = {'start': lost, 'undefine': lost}
        self.assertRaises(exception.HypervisorUnreachable, self.kind.realize, wanted)
        self.node.fail = {}
        self.kind.realize(wanted)
        self.assertEqual([True], [device.active for device in self.node.existing.values()])

    def test_a_parent_that_is_not_there(self) -> None:
        wanted = self.to_create()
        wanted.details.parent = 'nosuch'
        self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)

    def test_somebody_else_with_the_uuid_is_not_our_device(self) -> None:
        wanted = self.to_create()
        self.node.add('mtty-1', identifier=wanted.identifier)
        self.assertRaises(exception.DeviceGone, self.kind.realize, wanted)
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])
        self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)
        self.assertEqual([], self.node.done)

    def test_an_existing_one_is_started(self) -> None:
        device = self.node.add('mtty-2', active=False, persistent=True)
        wanted = self.existing(device)
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])
        self.kind.realize(wanted)
        self.assertTrue(device.active)
        element, = self.kind.guest_elements([wanted])
        self.assertIn(f"<address uuid='{device.identifier}'/>", element)
        self.assertNotIn('define', [call for call, _identifier in self.node.done])


class FindTestCase(MdevTestCase):
    """Which device an assignment means where no kernel says so."""

    def setUp(self) -> None:
        super().setUp()
        self.kind.devices.kernel = mdev_sysfs.Kernel(os.path.join(self.node.directory, 'none'))

    def named(self, device: Any, name: str) -> Any:
        del self.node.existing[device.name]
        device.name = name
        self.node.existing[name] = device
        return device

    def test_a_name_may_end_in_anything(self) -> None:
        device = self.node.add('mtty-2')
        wanted = self.existing(self.named(device, device.name + '_1'))
        self.kind.realize(wanted)
        element, = self.kind.guest_elements([wanted])
        self.assertIn(f"<address uuid='{device.identifier}'/>", element)

    def test_one_that_is_not_there_is_gone(self) -> None:
        wanted = self.existing(self.node.add('mtty-2'))
        self.node.existing.clear()
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])

    def test_of_several_with_one_uuid_the_parent_tells(self) -> None:
        ours = self.node.add('mtty-2')
        self.named(ours, ours.name + '_1')
        self.node.add('mtty-2', identifier=ours.identifier, parent='computer', parent_address='mdpy', active=False,
                      persistent=True)
        wanted = contract.assignment(self.instance, 'mdev', ours.identifier, PARENT,
                                     self.kind.stock().capacities[0].details)
        found = self.kind._find(wanted, self.kind.devices.parents())
        assert found is not None
        self.assertEqual(ours, found.handle)
        del self.node.existing[ours.name]
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])

    def test_one_that_goes_away_between_list_and_document_is_gone(self) -> None:
        device = self.node.add('mtty-2')
        wanted = self.existing(device)

        def gone() -> str:
            self.node.existing.clear()
            raise connection.Refused('virNodeDeviceGetXMLDesc', '', connection.Meaning.NO_SUCH_DEVICE)

        device.xml = gone
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])
