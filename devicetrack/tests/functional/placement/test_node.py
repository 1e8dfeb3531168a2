"""A service starts and reports, as ``[placement] nested`` says, on flat nodes with and without guests."""

from __future__ import annotations

from typing import Any
from unittest import mock
import uuid

from devicetrack import exception
from devicetrack.placement import errors
from devicetrack.placement import healer
from devicetrack.placement import healing
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.placement.node import NodeReporter
from devicetrack.testing import http_proxy
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base
from devicetrack.tests.functional.placement import nodes

FLAT = {'': (5, 0)}
ANNOUNCED = {'': (5, 0), 'p0': (3, 3), 'p1': (2, 2)}
NESTED = {'p0': (3, 0), 'p1': (2, 0)}


class NodeTestCase(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())
        self.world = self.useFixture(nodes.FlatHost(self.placement, {'p0': 3, 'p1': 2}))

    def service(self, nested: str) -> NodeReporter:
        """A service that starts: its manager is ready, and nothing was reported yet."""
        self.world.host.restart()
        self.world.manager = self.world.host.manager
        return NodeReporter(self.placement.client, self.world.manager, self.world.manager.store, nested)

    @property
    def is_marked(self) -> bool:
        host = self.world.host.store.host(self.world.name)
        assert host is not None
        return (host.nested_version, host.nested_at is not None) == (healer.VERSION, True)


class TestStart(NodeTestCase):
    scenarios: Any = base.table(
        ('off, with guests', 'off', True, FLAT, False),
        ('off', 'off', False, FLAT, False),
        ('manual, with guests', 'manual', True, ANNOUNCED, False),
        ('manual', 'manual', False, ANNOUNCED, False),
        ('at_start, with guests', 'at_start', True, NESTED, True),
        ('at_start', 'at_start', False, NESTED, True),
        ('refuse', 'refuse', False, NESTED, True),
        names=('nested', 'guests', 'room', 'marked'))

    def test_counts_as_the_option_says(self) -> None:
        if self.guests:
            self.world.spawn()
            self.world.resize(self.world.spawn(), vgpu=1)
        service = self.service(self.nested)
        start = service.start()
        assert start.report is not None
        self.assertEqual((self.room, self.marked), (self.world.room(), self.is_marked))
        self.assertEqual(self.world.expected(start.report.layout), self.world.held())
        self.assertEqual((), service.report().changes)


class TestRefuse(NodeTestCase):
    def test_while_guests_have_devices_of_the_node_the_start_fails_and_says_what_to_do(self) -> None:
        instance = self.world.spawn()
        error = self.assertRaises(errors.StillFlat, self.service('refuse').start)
        self.assertEqual((self.world.name, (instance.uuid,)), (error.node, error.consumers))
        self.assertIn(f'devicetrack-manage placement heal --node {self.world.name}', str(error))
        self.assertEqual(FLAT, self.world.room())

    def test_without_an_answer_nobody_knows(self) -> None:
        service = self.service('refuse')
        for _attempt in range(2):
            self.placement.proxy.at_next('GET', '/resource_providers', http_proxy.Loss.REQUEST)
        self.assertRaises(errors.PlacementUnavailable, service.start)

    def test_once_it_is_healed_it_starts(self) -> None:
        self.world.spawn()
        healer.Healer(self.placement.client).heal(self.world.heal_node())
        start = self.service('refuse').start()
        self.assertEqual((None, tree.NESTED, NESTED),
                         (start.healing, start.report and start.report.layout, self.world.room()))


class TestAtStart(NodeTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instance = self.world.spawn()

    def test_an_obstacle_leaves_the_node_flat_and_the_service_starts(self) -> None:
        stranger = values.Consumer(str(uuid.uuid4()), {self.world.node: {VGPU: 1}}, None, 'p', 'u', values.INSTANCE)
        self.placement.direct.replace_allocations([stranger])
        start = self.service('at_start').start()
        assert start.healing is not None
        self.assertEqual([(stranger.uuid, healing.NO_RECORD)],
                         [(one.consumer, one.what) for one in start.healing.obstacles])
        self.assertEqual((ANNOUNCED, False), (self.world.room(), self.is_marked))
        self.placement.direct.delete_allocations(stranger.uuid)
        self.service('at_start').start()
        self.assertEqual((NESTED, True), (self.world.room(), self.is_marked))

    def test_so_does_a_hypervisor_that_does_not_answer(self) -> None:
        service = self.service('at_start')
        self.world.host.machine.before('get_usage', exception.HypervisorUnreachable('fake', 'restarting'), times=1)
        start = service.start()
        assert start.healing is not None
        self.assertEqual([healing.FAILED], [one.what for one in start.healing.obstacles])
        self.assertEqual(ANNOUNCED, self.world.room())

    def test_so_does_a_placement_that_does_not_answer(self) -> None:
        nobody = self.placement.open('http://127.0.0.1:1')
        service = NodeReporter(nobody, self.world.manager, self.world.manager.store, 'at_start')
        start = service.start()
        assert start.healing is not None
        self.assertEqual(([healing.FAILED], None), ([one.what for one in start.healing.obstacles], start.report))
        self.assertRaises(errors.PlacementUnavailable, service.report)


class TestManual(NodeTestCase):
    def test_once_it_is_healed_it_stays_nested_without_guests_too(self) -> None:
        instance = self.world.spawn()
        service = self.service('manual')
        service.start()
        healer.Healer(self.placement.client).heal(self.world.heal_node())
        self.world.host.store.set_nested(self.world.manager.state().host_uuid, healer.VERSION, 1)
        service.report()
        self.assertEqual(NESTED, self.world.room())
        self.world.delete(instance)
        service.report()
        self.assertEqual(NESTED, self.world.room())


class TestRefusedInPart(NodeTestCase):
    def test_the_layout_is_recorded_by_the_report_that_reaches_it(self) -> None:
        service = self.service('at_start')
        with mock.patch.object(Client, 'put_inventories', autospec=True, side_effect=self.refuse_the_node):
            start = service.start()
        assert start.report is not None
        self.assertEqual(([self.world.node], ANNOUNCED, False),
                         ([*start.report.refused], self.world.room(), self.is_marked))
        service.report()
        self.assertEqual((NESTED, True), (self.world.room(), self.is_marked))

    def refuse_the_node(self, client: Client, uuid: str, *arguments: Any) -> values.Inventories:
        if uuid == self.world.node:
            raise errors.PlacementRefused(f'PUT {uuid}', 400, 'placement.undefined_code', 'no')
        return self.put_inventories(client, uuid, *arguments)

    put_inventories = staticmethod(Client.put_inventories)


class TestTakenOver(NodeTestCase):
    def test_the_layout_is_recorded_by_the_newest_manager_alone(self) -> None:
        service = self.service('at_start')
        self.world.host.store.take_epoch(self.world.manager.state().host_uuid)
        self.assertIsNone(service.start().report)
        self.assertFalse(self.is_marked)
        self.assertRaises(exception.HostTakenOver, service.report)
        self.world.host.restart()


class TestOff(NodeTestCase):
    def test_a_healed_node_is_flat_again_once_nobody_has_its_devices_and_needs_a_heal_again(self) -> None:
        instance = self.world.spawn()
        self.service('at_start').start()
        service = self.service('off')
        service.start()
        self.assertEqual((NESTED, True), (self.world.room(), self.is_marked))
        self.world.delete(instance)
        service.report()
        self.assertEqual((FLAT, False), (self.world.room(), self.is_marked))
        self.service('manual').start()
        self.assertEqual((ANNOUNCED, False), (self.world.room(), self.is_marked))
