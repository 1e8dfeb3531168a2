"""Mediated devices, on a node-device driver in memory that answers in libvirt's words."""

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
from devicetrack.objects.values import DeviceKey
from devicetrack.tests import base
from devicetrack.tests.drivers import contract
from devicetrack.tests.unit.virt import data
from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt import nodedev_xml
from devicetrack.virt.libvirt.kinds import api
from devicetrack.virt.libvirt.kinds import mdev

PARENT = 'mtty_mtty'
COSTS = {'mtty-1': 1, 'mtty-2': 2}


class Node:
    """The node devices of a host with the kernel's sample driver mtty: 24 units, one or two for a device.

    Texts are those of libvirt 9.0 and 11.3. ``in_use`` are UUIDs that a process has open; ``fail`` has an error for
    each call that shall not succeed.
    """

    def __init__(self) -> None:
        self.existing: dict[str, Any] = {}
        self.in_use: set[str] = set()
        self.fail: dict[str, Exception] = {}
        self.units = 24
        self.lists = 0
        self.done: list[tuple[str, str]] = []

    def free(self) -> int:
        return self.units - sum(COSTS[device.type] for device in self.existing.values() if device.active)

    def called(self, call: str, identifier: str) -> None:
        self.done.append((call, identifier))
        if call in self.fail:
            raise self.fail[call]

    def add(self, device_type: str = 'mtty-1', **facts: Any) -> Any:
        device = NodeDevice(self, facts.pop('identifier', None) or str(uuid.uuid4()), device_type)
        for name, value in facts.items():
            setattr(device, name, value)
        self.existing[device.name] = device
        return device

    # What the kind calls.

    def mdev_parents(self) -> list[Any]:
        return [ParentDevice(self)]

    def mdevs(self) -> list[Any]:
        self.lists += 1
        return list(self.existing.values())

    def node_device(self, name: str) -> Any:
        return self.existing.get(name)

    def define_node_device(self, document: str) -> Any:
        found = nodedev_xml.parse_mdev(document.replace('<device>', '<device><name>new</name>'))
        self.called('define', found.uuid)
        if found.parent != PARENT:
            raise connection.Refused('virNodeDeviceDefineXML', f"invalid parent device '{found.parent}'")
        for device in self.existing.values():
            if device.identifier == found.uuid:
                device.persistent = True
                return device
        return self.add(found.type, identifier=found.uuid, active=False, persistent=True)


class ParentDevice:
    name = PARENT

    def __init__(self, node: Node) -> None:
        self.node = node

    def xml(self) -> str:
        return data.read('libvirt-9.0.0-nodedev-parent-virtual.xml').replace(
            '>24<', f'>{self.node.free()}<').replace('>12<', f'>{self.node.free() // 2}<')


class NodeDevice:
    def __init__(self, node: Node, identifier: str, device_type: str) -> None:
        self.node, self.identifier, self.type = node, identifier, device_type
        self.name = f'mdev_{identifier.replace("-", "_")}_mtty'
        self.parent, self.parent_address = PARENT, 'mtty'
        self.active, self.persistent, self.autostart = True, False, False

    def xml(self) -> str:
        return (f"<device><name>{self.name}</name><parent>{self.parent}</parent><capability type='mdev'>"
                f"<type id='{self.type}'/><uuid>{self.identifier}</uuid>"
                f'<parent_addr>{self.parent_address}</parent_addr>'
                f"<iommuGroup number='{7 if self.active else 0}'/></capability></device>")

    def is_active(self) -> bool:
        return self.active

    def is_persistent(self) -> bool:
        return self.persistent

    def start(self) -> None:
        self.node.called('start', self.identifier)
        if self.node.free() < COSTS[self.type]:
            raise connection.Refused(
                'virNodeDeviceCreate', 'internal error: Unable to start mediated device: Error: No available instances '
                f'of {self.type} on mtty', connection.Meaning.FULL)
        self.active = True

    def destroy(self) -> None:
        self.node.called('destroy', self.identifier)
        if self.identifier in self.node.in_use:
            raise connection.Refused('virNodeDeviceDestroy', f"Unable to destroy '{self.name}': device in use",
                                     connection.Meaning.IN_USE)
        self.active = False
        if not self.persistent:
            del self.node.existing[self.name]

    def undefine(self) -> None:
        self.node.called('undefine', self.identifier)
        self.persistent = False
        if not self.active:
            del self.node.existing[self.name]

    def set_autostart(self) -> None:
        self.node.called('autostart', self.identifier)
        self.autostart = True


class MdevTestCase(base.TestCase):

    def setUp(self) -> None:
        super().setUp()
        self.node = Node()
        self.instance = str(uuid.uuid4())
        self.kind = self.make_kind()

    def make_kind(self, **options: Any) -> mdev.Mdev:
        self.configuration.set('devices', enabled_mdev_types=options.pop('types', ['mtty-2']), **options)
        hypervisor: Any = self.node
        kind = mdev.Mdev(self.conf, hypervisor)
        kind.sysfs_devices, kind.settle_s = self.temp_dir(), 0.0
        return kind

    def to_create(self, identifier: str | None = None) -> Any:
        capacity, = self.kind.stock().capacities
        return contract.assignment(self.instance, 'mdev', identifier or str(uuid.uuid4()), PARENT, capacity.details)

    def adopted(self, device: Any) -> Any:
        found, = (found for found in self.kind.stock().devices if found.identifier == device.identifier)
        return contract.assignment(self.instance, 'mdev', found.identifier, PARENT, found.details)


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
            self.assertEqual((True, True), (device.active, device.persistent))

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
        found = self.kind._find(wanted, mdev._Parents(self.kind._parents()))
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


class UnclaimTestCase(MdevTestCase):

    def created(self) -> Any:
        wanted = self.to_create()
        self.kind.realize(wanted)
        self.node.done.clear()
        return wanted

    def test_what_was_created_is_gone(self) -> None:
        wanted = self.created()
        self.kind.unclaim(wanted, 0)
        self.assertEqual({}, self.node.existing)
        self.assertEqual(['destroy', 'undefine'], [call for call, _identifier in self.node.done])
        self.kind.unclaim(wanted, 0)

    def test_a_half_made_one_is_gone_too(self) -> None:
        for active, persistent in ((False, True), (True, False)):
            wanted = self.to_create()
            self.node.add('mtty-2', identifier=wanted.identifier, active=active, persistent=persistent)
            self.kind.unclaim(wanted, 0)
            self.assertEqual({}, self.node.existing)

    def test_what_was_adopted_stays(self) -> None:
        wanted = self.adopted(self.node.add('mtty-2'))
        self.kind.unclaim(wanted, 0)
        self.assertEqual([], self.node.done)

    def test_one_that_a_process_has_open_stays(self) -> None:
        wanted = self.created()
        self.node.in_use.add(wanted.identifier)
        self.assertRaises(exception.DeviceInUse, self.kind.unclaim, wanted, 0)
        device, = self.node.existing.values()
        self.assertEqual((True, True), (device.active, device.persistent))

    def test_one_that_is_let_go_of_a_moment_later_goes(self) -> None:
        wanted = self.created()
        self.node.in_use.add(wanted.identifier)
        self.kind.settle_s = 60
        self.patch(time, 'sleep', lambda _seconds: self.node.in_use.clear())
        self.kind.unclaim(wanted, 0)
        self.assertEqual({}, self.node.existing)

    def test_the_kernel_has_the_last_word(self) -> None:
        wanted = self.created()
        with open(os.path.join(self.kind.sysfs_devices, wanted.identifier), 'w'):
            self.assertRaises(exception.UnclaimFailed, self.kind.unclaim, wanted, 0)

    def test_others_are_never_touched(self) -> None:
        wanted, other = self.created(), self.node.add('mtty-2', persistent=True)
        self.kind.unclaim(wanted, 0)
        self.assertEqual([other], list(self.node.existing.values()))
        self.assertEqual({wanted.identifier}, {identifier for _call, identifier in self.node.done})
