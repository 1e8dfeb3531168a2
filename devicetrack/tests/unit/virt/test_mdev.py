"""Mediated devices: what there is, and making one ready."""

from __future__ import annotations

import logging
from typing import Any

import fixtures

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import details
from devicetrack.objects.values import DeviceKey
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt.mdev_node import MdevTestCase
from devicetrack.tests.unit.virt.mdev_node import Node
from devicetrack.tests.unit.virt.mdev_node import NodeDevice
from devicetrack.tests.unit.virt.mdev_node import PARENT
from devicetrack.tests.unit.virt.mdev_node import ParentDevice
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import mdev_parents


class StockTestCase(MdevTestCase):

    def test_a_virtual_parent(self) -> None:
        self.node.add('mtty-2')
        stock = self.kind.stock()
        capacity, = stock.capacities
        self.assertEqual((PARENT, 'mtty-2', PARENT, 'VGPU', None, 11), capacity[1:-1])
        device, = stock.devices
        self.assertEqual((PARENT, 'VGPU', PARENT, None, None), (*device[2:6], device.unhealthy))
        found = details.from_text(device.details)
        self.assertEqual(('mtty-2', PARENT, None, 'vfio-pci', 7, vocabulary.ADOPTED),
                         tuple(getattr(found, name) for name in found.fields))

    def test_other_types_are_not_ours_and_take_capacity(self) -> None:
        self.node.add('mtty-1')
        stock = self.kind.stock()
        self.assertEqual(((), 11), (stock.devices, stock.capacities[0].available))

    def test_no_more_than_the_operator_wants(self) -> None:
        kind = self.make_kind()
        self.configuration.set('mdev_mtty-2', max_instances=2)
        kind = self.make_kind()
        for wanted in (2, 1, 0, 0):
            self.assertEqual(wanted, kind.stock().capacities[0].available)
            self.node.add('mtty-2')

    def test_a_type_that_no_parent_makes_is_said_once(self) -> None:
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        kind = self.make_kind(types=['nvidia-35'])
        for _ in range(2):
            self.assertEqual(api.Stock(), kind.stock())
        self.assertEqual('[devices] enabled_mdev_types = nvidia-35: no parent of this host makes it; those of this '
                         'host make mtty-1, mtty-2\n', log.output)

    def test_a_type_whose_own_parents_do_not_make_it_is_said(self) -> None:
        self.make_kind()
        self.configuration.set('mdev_mtty-2', device_addresses=['0000:84:00.0'])
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        self.make_kind().stock()
        self.assertIn('no parent that [mdev_mtty-2] device_addresses names makes it', log.output)

    def test_a_type_that_is_used_up_is_no_mistake(self) -> None:
        log = self.useFixture(fixtures.FakeLogger('devicetrack', level=logging.WARNING))
        self.node.units = 0
        self.kind.stock()
        self.assertEqual('', log.output)

    def test_an_inactive_one_may_be_adopted_while_there_is_room(self) -> None:
        device = self.node.add('mtty-2', active=False, persistent=True)
        found, = self.kind.stock().devices
        self.assertIsNone(found.unhealthy)
        self.assertIsNone(details.from_text(found.details).iommu_group)
        self.node.units = 0
        found, = self.kind.stock().devices
        self.assertEqual(device.identifier, found.identifier)
        self.assertIn('no room', str(found.unhealthy))

    def test_what_exists_is_not_offered_without_adoption(self) -> None:
        self.node.add('mtty-2')
        found, = self.make_kind(adopt_existing_mdevs=False).stock().devices
        self.assertEqual((None, False), (found.unhealthy, found.adoptable))

    def test_a_parent_that_libvirt_does_not_know_is_told_by_its_address(self) -> None:
        self.node.add('mtty-2', parent='computer', parent_address='mdpy')
        found, = self.kind.stock().devices
        self.assertEqual(('mdpy', 'mdpy'), (found.provider, found.parent))
        self.node.existing.clear()
        self.node.add('mtty-2', parent='computer', parent_address='mtty')
        found, = self.kind.stock().devices
        self.assertEqual((PARENT, PARENT), (found.provider, found.parent))

    def test_a_definition_whose_parent_libvirt_does_not_know_is_nothing_to_hand_out(self) -> None:
        for parent in ('computer', 'mtty_other'):
            self.node.existing.clear()
            self.node.add('mtty-2', parent=parent, parent_address='other', active=False, persistent=True)
            self.assertEqual((), self.kind.stock().devices)

    def test_the_kernel_knows_the_type_of_what_exists(self) -> None:
        device = self.node.add('mtty-2', persistent=True)
        self.in_kernel(device.identifier, 'mtty-1')
        self.assertEqual((), self.kind.stock().devices)
        device.active = False
        self.assertEqual(1, len(self.kind.stock().devices))

    def test_of_one_uuid_that_is_defined_twice_there_is_one_device(self) -> None:
        one = self.node.add('mtty-2', active=False, persistent=True)
        two = self.node.add('mtty-2', identifier=one.identifier, active=False, persistent=True, parent='computer',
                            parent_address='mdpy', name=f'{one.name}_mdpy')
        found, = self.kind.stock().devices
        self.assertIn('defined more than once', str(found.unhealthy))
        two.active = True
        found, = self.kind.stock().devices
        self.assertEqual(('mdpy', None), (found.parent, found.unhealthy))

    def test_a_device_that_goes_away_while_it_is_read_is_gone(self) -> None:
        device = self.node.add('mtty-2')

        def gone() -> str:
            raise connection.Refused('virNodeDeviceGetXMLDesc', '', connection.Meaning.NO_SUCH_DEVICE)

        device.xml = gone
        self.assertEqual((), self.kind.stock().devices)

    def test_one_document_that_cannot_be_read_makes_all_unknown(self) -> None:
        self.node.add('mtty-2').xml = lambda: '<device/>'
        self.assertRaises(exception.InvalidDocument, self.kind.stock)


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

    def test_other_devices_count_where_an_option_limits_them(self) -> None:
        self.make_kind()
        self.configuration.set('mdev_mtty-2', max_instances=3)
        self.kind = self.make_kind()
        wanted = self.to_create()
        self.node.add('mtty-2')
        self.assertEqual([1], [capacity.available for capacity in self.kind.realize(wanted).capacities])

    def test_a_crash_between_any_two_steps_is_finished(self) -> None:
        for active, persistent in ((False, True), (True, True), (True, False)):
            self.node.existing.clear()
            wanted = self.to_create()
            self.node.add('mtty-2', identifier=wanted.identifier, active=active, persistent=persistent)
            self.kind.realize(wanted)
            device, = self.node.existing.values()
            self.assertEqual((True, True, True), (device.active, device.persistent, device.autostart))

    def test_one_that_the_host_starts_at_the_same_time_is_there(self) -> None:
        wanted = self.to_create()
        device = self.node.add('mtty-2', identifier=wanted.identifier, active=False, persistent=True)

        def started_by_the_host() -> None:
            device.active = True
            raise connection.Refused('virNodeDeviceCreate', 'Device already exists', connection.Meaning.EXISTS)

        device.start = started_by_the_host
        self.kind.realize(wanted)
        self.assertEqual({device.name: device}, self.node.existing)

    def test_a_uuid_that_exists_elsewhere_is_not_taken_for_it(self) -> None:
        wanted = self.to_create()
        self.node.fail = {'start': connection.Refused('virNodeDeviceCreate', 'Device already exists',
                                                      connection.Meaning.EXISTS)}
        self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)

    def test_a_definition_that_cannot_be_kept_is_no_ready_device(self) -> None:
        wanted = self.to_create()
        self.node.add('mtty-2', identifier=wanted.identifier, persistent=True)
        self.node.fail = {'autostart': connection.Refused('virNodeDeviceSetAutostart', 'no')}
        self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)

    def test_a_parent_that_went_away_and_came_back(self) -> None:
        wanted = self.to_create()
        self.kind.realize(wanted)
        device, = self.node.existing.values()
        device.active = False
        for device.parent in ('computer', PARENT):
            self.patch(Node, 'mdev_parents', lambda _node: [])
            self.assertEqual((), self.kind.stock().devices)
            self.node.fail = {'start': connection.Refused('virNodeDeviceCreate', "Unable to find parent device 'mtty'")}
            failed = self.assertRaises(exception.RealizeFailed, self.kind.realize, wanted)
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
        for call in ('define', 'autostart', 'start'):
            self.node.fail = {call: connection.Refused(call, 'no')}
            self.assertRaises(exception.RealizeFailed, self.kind.realize, self.to_create())
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

    def test_an_adopted_one_is_started(self) -> None:
        device = self.node.add('mtty-2', active=False, persistent=True)
        wanted = self.adopted(device)
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])
        self.kind.realize(wanted)
        self.assertTrue(device.active)
        element, = self.kind.guest_elements([wanted])
        self.assertIn(f"<address uuid='{device.identifier}'/>", element)
        self.assertNotIn('define', [call for call, _identifier in self.node.done])


class FindTestCase(MdevTestCase):
    """Which device an assignment means: asked by name where that is enough, else seen in the list."""

    def elements(self, device: Any) -> int:
        """Have the device given to its guest; how many lists that took."""
        wanted = self.adopted(device)
        self.node.lists = 0
        self.kind.realize(wanted)
        element, = self.kind.guest_elements([wanted])
        self.assertIn(f"<address uuid='{device.identifier}'/>", element)
        return self.node.lists

    def named(self, device: Any, name: str) -> Any:
        del self.node.existing[device.name]
        device.name = name
        self.node.existing[name] = device
        return device

    def test_one_of_a_usual_name_is_asked_for_alone(self) -> None:
        device = self.node.add('mtty-2')
        self.assertEqual(0, self.elements(device))
        self.assertEqual(0, self.elements(self.named(device, device.name.removesuffix('_mtty'))))

    def test_so_is_one_of_a_parent_that_libvirt_does_not_know(self) -> None:
        device = self.node.add('mtty-2', parent='computer', parent_address='mdpy')
        wanted = self.adopted(self.named(device, device.name.replace('_mtty', '_mdpy')))
        wanted.details.parent = 'mdpy'
        self.node.lists = 0
        self.kind.guest_elements([wanted])
        self.assertEqual(0, self.node.lists)

    def test_a_name_may_end_in_anything(self) -> None:
        device = self.node.add('mtty-2')
        self.assertEqual(2, self.elements(self.named(device, device.name + '_1')))

    def test_one_that_is_not_there_is_seen_in_the_list(self) -> None:
        wanted = self.adopted(self.node.add('mtty-2'))
        self.node.existing.clear()
        self.node.lists = 0
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])
        self.assertEqual(1, self.node.lists)

    def test_of_several_with_one_uuid_the_parent_tells(self) -> None:
        ours = self.node.add('mtty-2')
        self.named(ours, ours.name + '_1')
        self.node.add('mtty-2', identifier=ours.identifier, parent='computer', parent_address='mdpy')
        wanted = contract.assignment(self.instance, 'mdev', ours.identifier, PARENT,
                                     self.kind.stock().capacities[0].details)
        found = self.kind._find(wanted, mdev_parents.Parents(self.kind._parents()))
        assert found is not None
        self.assertEqual(ours, found.handle)
        del self.node.existing[ours.name]
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])

    def test_a_name_proves_nothing(self) -> None:
        ours, other = self.node.add('mtty-2'), self.node.add('mtty-2')
        name = ours.name
        self.named(ours, name + '_1')
        del self.node.existing[other.name]
        self.node.existing[name] = other
        self.assertEqual(2, self.elements(ours))

    def test_one_that_goes_away_between_name_and_document_is_gone(self) -> None:
        device = self.node.add('mtty-2')
        wanted = self.adopted(device)

        def gone() -> str:
            self.node.existing.clear()
            raise connection.Refused('virNodeDeviceGetXMLDesc', '', connection.Meaning.NO_SUCH_DEVICE)

        device.xml = gone
        self.assertRaises(exception.DeviceGone, self.kind.guest_elements, [wanted])
