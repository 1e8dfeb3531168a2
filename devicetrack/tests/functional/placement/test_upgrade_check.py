"""``devicetrack-status upgrade check`` of hosts in memory and a real placement server."""

from __future__ import annotations

import json
from typing import Any
import uuid

import fixtures as base_fixtures

from devicetrack.cmd import status
from devicetrack.placement import healer
from devicetrack.placement import values
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base
from devicetrack.tests.functional.placement import nodes
from devicetrack.tests.unit.cmd import program as programs

SUCCESS, WARNING, FAILURE = 0, 1, 2


class CheckTestCase(base.TestCase):
    world: Any

    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())
        self.url = self.placement.url

    def check(self, nested: str = 'off') -> tuple[int, str]:
        """The result of this check and what it says, without the host's name."""
        path = programs.write_configuration(
            self.temp_dir(), self.world.host.conf, '[placement]', 'auth_type = admin_token', f'endpoint = {self.url}',
            f'token = {placements.TOKEN}', f'nested = {nested}', 'connect_retries = 0')
        out = self.useFixture(base_fixtures.StringStream('stdout')).stream
        self.useFixture(base_fixtures.MonkeyPatch('sys.stdout', out))
        status.run(['--config-file', path, 'upgrade', 'check', '--json'])
        out.seek(0)
        checks: list[dict[str, Any]] = json.loads(out.read())['checks']
        [found] = [check for check in checks if check['check'] == 'Placement']
        return found['result'], found['details'].removesuffix(f': {self.world.name}')

    def mark(self) -> None:
        self.world.host.store.set_nested(self.world.host.manager.state().host_uuid, healer.VERSION, 1)


class TestPlacement(CheckTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(nodes.FlatHost(self.placement, {'p0': 3}))

    def test_a_node_without_guests_can_start_nested(self) -> None:
        self.assertEqual((SUCCESS, 'flat and empty (can start nested)'), self.check())

    def test_one_with_guests_needs_a_heal(self) -> None:
        self.world.spawn()
        result, details = self.check()
        self.assertEqual((WARNING, True), (result, details.startswith('flat with guests (heal with ')))

    def test_with_refuse_that_is_a_failure(self) -> None:
        self.world.spawn()
        self.assertEqual(FAILURE, self.check('refuse')[0])

    def test_so_does_one_with_a_consumer_that_has_no_record(self) -> None:
        self.placement.direct.replace_allocations([values.Consumer(
            str(uuid.uuid4()), {self.world.node: {VGPU: 1}}, None, 'p', 'u', values.INSTANCE)])
        self.assertEqual(WARNING, self.check()[0])

    def test_a_healed_one_is_well(self) -> None:
        self.world.spawn()
        healer.Healer(self.placement.direct).heal(self.world.heal_node())
        self.mark()
        self.assertEqual((SUCCESS, 'healed'), self.check())

    def test_one_to_which_devices_came_again_has_drifted(self) -> None:
        self.mark()
        self.world.spawn()
        result, details = self.check()
        self.assertEqual((WARNING, True), (result, details.startswith('drifted')))

    def test_one_that_placement_does_not_know_can_start_nested(self) -> None:
        self.placement.direct.delete_provider(self.world.node)
        self.assertEqual((SUCCESS, 'flat and empty (can start nested)'), self.check())

    def test_without_an_answer_it_fails(self) -> None:
        self.url = 'http://127.0.0.1:1'
        result, details = self.check()
        self.assertEqual((FAILURE, True), (result, 'placement gave no usable answer' in details))


class TestRowsOlderThanTheResolver(CheckTestCase):
    """A namespace that is counted and allocated at the node, and whose row has another UUID for that."""

    def setUp(self) -> None:
        super().setUp()
        self.world = self.useFixture(nodes.EarlierHost(self.placement))

    def test_need_a_heal_for_what_is_counted_below(self) -> None:
        result, details = self.check()
        self.assertEqual((WARNING, True), (result, details.startswith('flat with guests')))

    def test_are_well_once_that_is_healed(self) -> None:
        healer.Healer(self.placement.direct).heal(self.world.heal_node())
        self.assertEqual({'': {**nodes.CPU, PMEM: 1}, '_p0': {VGPU: 1}}, self.world.held())
        self.mark()
        self.assertEqual((SUCCESS, 'healed'), self.check('refuse'))
