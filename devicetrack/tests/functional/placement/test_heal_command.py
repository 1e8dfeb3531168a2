"""``placement heal`` on hosts in memory and a real placement server."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock
import uuid

from devicetrack import exception
from devicetrack.cmd import placement_heal
from devicetrack.cmd import progress
from devicetrack.placement import healer
from devicetrack.placement import healing
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import fixtures
from devicetrack.testing import http_proxy
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base
from devicetrack.tests.functional.placement import nodes
from devicetrack.tests.unit.cmd import program as programs

PARENTS = {'p0': 4, 'p1': 3}


class HealTestCase(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())
        self.direct = self.placement.direct
        self.here = self.useFixture(nodes.FlatHost(self.placement, PARENTS))
        self.program = self.useFixture(programs.Program(self.here.host.configuration, self.here.host.machine))
        self.config_file = programs.write_configuration(
            self.temp_dir(), self.here.host.conf, '[placement]', 'auth_type = admin_token',
            f'endpoint = {self.placement.url}', f'token = {placements.TOKEN}', 'nested = manual')

    def elsewhere(self) -> nodes.FlatHost:
        """A host of another machine, in the same store, that announces its providers."""
        configuration = self.useFixture(fixtures.Configuration(machine=str(uuid.uuid4())))
        made = self.useFixture(nodes.FlatHost(self.placement, PARENTS, store=self.here.host.store.store,
                                              configuration=configuration))
        made.report(tree.ANNOUNCED)
        return made

    def heal(self, *arguments: str) -> programs.Answer:
        self.placement.requests.clear()
        return self.program.run('placement', 'heal', *arguments, config_file=self.config_file)

    def disturb(self, world: nodes.FlatHost) -> str:
        """A consumer that no record has; gives its UUID."""
        stranger = values.Consumer(str(uuid.uuid4()), {world.node: {VGPU: 1}}, None, 'p', 'u', values.INSTANCE)
        self.direct.replace_allocations([stranger])
        return stranger.uuid

    def marks(self) -> dict[str, int | None]:
        return {host.name: host.nested_version for host in self.here.host.store.hosts()}


class TestThisNode(HealTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instances = [self.here.spawn() for _ in range(3)]

    def test_is_healed_and_marked_with_few_requests_and_no_guest_moves(self) -> None:
        self.here.report(tree.ANNOUNCED)
        moving = self.here.resize(self.instances[0], vgpu=1)
        guests = dict(self.here.host.machine.domains)
        answer = self.heal('--node', self.here.name, '-f', 'json')
        consumers = sorted([moving, *(instance.uuid for instance in self.instances)])
        self.assertEqual((0, [{
            'node': self.here.name, 'host': self.here.name, 'outcome': healer.HEALED, 'moved': 4,
            'checked': placement_heal.HYPERVISOR, 'consumers': consumers, 'obstacles': []}]),
            (answer.code, answer.data))
        self.assertLessEqual(len(self.placement.requests), len(consumers) + 12)
        self.assertEqual(self.here.expected(tree.NESTED), self.here.held())
        self.assertEqual({self.here.name: healer.VERSION}, self.marks())
        self.assertEqual(guests, self.here.host.machine.domains)

    def test_again_says_so_and_writes_nothing(self) -> None:
        self.heal('--node', self.here.name)
        marked = self.here.host.store.hosts()
        [row] = self.heal('--node', self.here.name, '-f', 'json').data
        self.assertEqual((placement_heal.ALREADY, 0), (row['outcome'], row['moved']))
        self.assertEqual([], [request for request in self.placement.requests if request[0] != 'GET'])
        self.assertEqual(marked, self.here.host.store.hosts())

    def test_is_audited_without_a_warning_before_the_service_reports(self) -> None:
        self.heal('--node', self.here.name)
        answer = self.program.run('placement', 'audit', '-f', 'json', config_file=self.config_file)
        self.assertEqual((0, {'note'}), (answer.code, {one['severity'] for one in answer.data}))

    def test_dry_it_only_says_what_it_would_do(self) -> None:
        answer = self.heal('--node', self.here.name, '--dry-run')
        self.assertEqual(3, answer.code)
        self.assertIn('would be healed |     3 | hypervisor', answer.out)
        self.assertIn('nothing was done', answer.err)
        self.assertEqual([], [request for request in self.placement.requests if request[0] != 'GET'])
        self.assertEqual({self.here.name: None}, self.marks())

    def test_with_an_obstacle_is_left_and_the_obstacle_named(self) -> None:
        stranger = self.disturb(self.here)
        self.here.report(tree.ANNOUNCED)
        answer = self.heal('--node', self.here.name, '-f', 'json')
        [row] = answer.data
        self.assertEqual((11, healer.LEFT), (answer.code, row['outcome']))
        self.assertEqual([(stranger, healing.NO_RECORD)],
                         [(one['consumer'], one['what']) for one in row['obstacles']])
        self.assertIn(f'node {self.here.name} is not changed: no record: consumer {stranger}: ', answer.err)
        self.assertEqual([], [request for request in self.placement.requests if request[0] != 'GET'])
        self.assertEqual({self.here.name: None}, self.marks())

    def test_is_marked_by_the_next_run_where_one_ended_before_that(self) -> None:
        healer.Healer(self.direct).heal(self.here.heal_node())
        [row] = self.heal('--node', self.here.name, '-f', 'json').data
        self.assertEqual((healer.NOTHING, {self.here.name: healer.VERSION}), (row['outcome'], self.marks()))

    def test_of_another_name_than_its_host_is_found_by_its_own(self) -> None:
        name = nodes.rename(self.direct, self.here.node)
        answer = self.heal('--node', name, '--host', self.here.name, '-f', 'json')
        [row] = answer.data
        self.assertEqual((0, name, self.here.name, healer.HEALED),
                         (answer.code, row['node'], row['host'], row['outcome']))

    def test_of_a_wrong_name_is_refused_with_the_right_one(self) -> None:
        answer = self.heal('--node', 'a-mistake', '--host', self.here.name)
        self.assertEqual(2, answer.code)
        self.assertIn(f'the node of host {self.here.name} is {self.here.name} there: name that', answer.err)
        self.assertEqual({self.here.name: None}, self.marks())

    def test_that_placement_does_not_have_is_an_obstacle_and_not_marked(self) -> None:
        nodes.rename(self.direct, self.here.node)
        answer = self.heal('--all', '-f', 'json')
        [row] = answer.data
        self.assertEqual((11, healer.LEFT, placement_heal.HYPERVISOR), (answer.code, row['outcome'], row['checked']))
        self.assertIn(f'node {self.here.name} is not changed: failed: placement has no provider {self.here.name}',
                      answer.err)
        self.assertEqual([], [request for request in self.placement.requests if request[0] != 'GET'])
        self.assertEqual({self.here.name: None}, self.marks())

    def test_of_another_host_is_refused(self) -> None:
        other = self.elsewhere()
        self.here.spawn()
        answer = self.heal('--node', other.name, '--host', self.here.name)
        self.assertEqual((2, True), (answer.code, 'is the node of another host in the store' in answer.err))
        self.assertEqual({None}, set(self.marks().values()))

    def test_is_healed_although_the_store_cannot_record_it_and_the_next_run_does(self) -> None:
        self.here.report(tree.ANNOUNCED)
        with mock.patch.object(SQLStore, 'set_nested', autospec=True,
                               side_effect=exception.StoreUnavailable('the store', 'locked')):
            answer = self.heal('--node', self.here.name, '-f', 'json')
        [row] = answer.data
        self.assertEqual((3, healer.HEALED, 3), (answer.code, row['outcome'], row['moved']))
        self.assertIn(f'node {self.here.name} is healed, but the store could not record it: ', answer.err)
        self.assertEqual((0, {self.here.name: healer.VERSION}),
                         (self.heal('--node', self.here.name).code, self.marks()))

    def test_that_is_to_stay_flat_is_refused_and_may_be_looked_at(self) -> None:
        with open(self.config_file, encoding='utf-8') as file:
            manual = file.read()
        with open(self.config_file, 'w', encoding='utf-8') as file:
            file.write(manual.replace('nested = manual', 'nested = off'))
        answer = self.heal('--node', self.here.name)
        self.assertEqual((1, []), (answer.code, self.placement.requests))
        self.assertIn('[placement] nested = off', answer.err)
        self.assertIn('set manual', answer.err)
        self.assertEqual(3, self.heal('--node', self.here.name, '--dry-run').code)

    def test_of_an_unknown_host_is_refused(self) -> None:
        answer = self.heal('--node', 'nobody')
        self.assertEqual((1, True), (answer.code, 'the store has no host nobody' in answer.err))


class TestAllNodes(HealTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.others = [self.elsewhere() for _ in range(2)]
        for world in (self.here, *self.others):
            world.spawn()
            world.resize(world.spawn(), vgpu=2)

    def outcomes(self, answer: programs.Answer) -> dict[str, tuple[Any, ...]]:
        return {row['node']: (row['outcome'], row['moved'], row['checked']) for row in answer.data}

    def test_the_progress_is_told(self) -> None:
        with mock.patch.object(progress, 'LINE_EVERY_S', 0.0):
            told = [line.removeprefix('devicetrack-manage: ') for line in self.heal('--all').err.splitlines()]
        self.assertRegex(told[0], '^0 of 3 nodes: node ')
        for line in ('1 of 3 nodes: node ', r': \d of \d consumers read$', '2 of 3 nodes: '):
            self.assertTrue([one for one in told if re.search(line, one)], line)

    def test_are_healed_those_of_other_machines_by_the_record(self) -> None:
        answer = self.heal('--all', '-f', 'json')
        self.assertEqual((0, {
            self.here.name: (healer.HEALED, 3, placement_heal.HYPERVISOR),
            **{world.name: (healer.HEALED, 3, placement_heal.RECORD) for world in self.others}}),
            (answer.code, self.outcomes(answer)))
        for world in (self.here, *self.others):
            self.assertEqual(world.expected(tree.NESTED), world.held())
        self.assertEqual({healer.VERSION}, set(self.marks().values()))

    def test_but_for_those_with_obstacles_and_the_exit_code_says_how_many(self) -> None:
        stranger = self.disturb(self.others[0])
        self.placement.proxy.at_next('GET', f'/resource_providers/{self.others[1].node}/allocations',
                                     http_proxy.Loss.REQUEST)
        self.placement.proxy.at_next('GET', f'/resource_providers/{self.others[1].node}/allocations',
                                     http_proxy.Loss.REQUEST)
        config = programs.write_configuration(
            self.temp_dir(), self.here.host.conf, '[placement]', 'auth_type = admin_token', 'connect_retries = 0',
            f'endpoint = {self.placement.url}', f'token = {placements.TOKEN}', 'nested = manual')
        answer = self.program.run('placement', 'heal', '--all', '-f', 'json', config_file=config)
        self.assertEqual((12, {self.here.name: healer.HEALED, self.others[0].name: healer.LEFT,
                               self.others[1].name: healer.LEFT}),
                         (answer.code, {row['node']: row['outcome'] for row in answer.data}))
        self.assertIn(f'consumer {stranger}', answer.err)
        self.assertIn('placement gave no usable answer', answer.err)

    def test_not_one_whose_record_is_empty_while_somebody_holds_its_devices(self) -> None:
        empty = self.elsewhere()
        stranger = self.disturb(empty)
        for _run in range(2):
            answer = self.heal('--all', '-f', 'json')
            self.assertEqual((11, (healer.LEFT, 0, placement_heal.RECORD)),
                             (answer.code, self.outcomes(answer)[empty.name]))
            self.assertIn(f'no record: consumer {stranger}', answer.err)
            self.assertIsNone(self.marks()[empty.name])

    def test_also_by_rows_that_were_written_before_providers_were_looked_up(self) -> None:
        earlier = self.useFixture(nodes.EarlierHost(
            self.placement, self.here.host.store.store,
            self.useFixture(fixtures.Configuration(machine=str(uuid.uuid4())))))
        answer = self.heal('--all', '-f', 'json')
        self.assertEqual((healer.HEALED, 1, placement_heal.RECORD), self.outcomes(answer)[earlier.name], answer.err)
        self.assertEqual({'': {**nodes.CPU, PMEM: 1}, '_p0': {VGPU: 1}}, earlier.held())

    def test_some_at_a_time_until_none_is_left(self) -> None:
        codes: list[int] = []
        while not codes or codes[-1] == 3:
            codes.append(self.heal('--all', '--max-count', '1').code)
        self.assertEqual([3, 3, 0], codes)
        self.assertEqual({healer.VERSION}, set(self.marks().values()))
        self.assertEqual({placement_heal.ALREADY}, {row['outcome'] for row in self.heal('--all', '-f', 'json').data})


class TestUsage(HealTestCase):
    scenarios = base.table(
        ('no node', ()),
        ('one and all', ('--node', 'a', '--all')),
        ('a host for all', ('--all', '--host', 'a')),
        ('none at most', ('--all', '--max-count', '0')),
        names=('arguments',))

    def test_means_nothing(self) -> None:
        self.assertEqual(2, self.heal(*self.arguments).code)
        self.assertEqual([], self.placement.requests)
