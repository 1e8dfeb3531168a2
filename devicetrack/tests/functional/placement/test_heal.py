"""Nodes are healed on a real server: beside others who write there, through lost answers, and after being killed."""

from __future__ import annotations

from concurrent import futures
import os
import signal
import time
import traceback
from typing import Any
from unittest import mock
import uuid

import fixtures
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import session as ks_session
from keystoneauth1 import token_endpoint
import sqlalchemy as sa

from devicetrack.placement import errors
from devicetrack.placement import healer
from devicetrack.placement import healing
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.allocations import AllocationClient
from devicetrack.placement.client import Client
from devicetrack.placement.healer import Healer
from devicetrack.placement.healer import Healing
from devicetrack.testing import database_servers
from devicetrack.testing import fixtures as host_fixtures
from devicetrack.testing import http_proxy
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base
from devicetrack.tests.functional.placement import nodes

RESHAPE = ('POST', '/reshaper')


class HealTestCase(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())
        self.direct = self.placement.direct
        self.proxy = self.placement.proxy
        self.world = self.useFixture(nodes.FlatHost(self.placement, {'p0': 4, 'p1': 3}, devices=1))
        self.pauses: list[float] = []
        self.healer = Healer(self.placement.client, attempts=5, pause=self.pauses.append)

    def heal(self, hypervisor: bool = True, dry_run: bool = False) -> Healing:
        """Heal; the requests of that are in ``asked`` then."""
        self.placement.requests.clear()
        try:
            return self.healer.heal(self.world.heal_node(hypervisor), dry_run)
        finally:
            self.asked = list(self.placement.requests)

    def assert_healed(self) -> None:
        self.assertEqual(self.world.expected(tree.NESTED), self.world.held())

    def assert_as_it_was(self) -> None:
        self.assertEqual([], [request for request in self.asked if request[0] != 'GET'])
        self.assertEqual(self.world.expected(tree.FLAT), {
            uuid: resources for uuid, resources in self.world.held().items()
            if uuid in self.world.expected(tree.FLAT)})


class TestHeal(HealTestCase):
    scenarios = [('on the host', {'hypervisor': True}), ('by the record', {'hypervisor': False})]
    hypervisor: bool

    def setUp(self) -> None:
        super().setUp()
        self.world.report(tree.ANNOUNCED)
        self.instances = [self.world.spawn() for _ in range(3)]

    def test_moves_every_consumer_with_few_requests_and_says_what_moved(self) -> None:
        moving = self.world.resize(self.instances[0], vgpu=2)
        done = self.heal(self.hypervisor)
        consumers = sorted([moving, *(instance.uuid for instance in self.instances)])
        self.assertEqual(Healing(healer.HEALED, tuple(consumers)), done)
        self.assert_healed()
        self.assertEqual(len(consumers) + 2 * 2 + 3 + (not self.hypervisor), len(self.asked))
        self.assertEqual([RESHAPE], [request for request in self.asked if request[0] != 'GET'])

    def test_gives_room_only_to_what_is_held_and_the_next_report_gives_the_rest(self) -> None:
        self.heal(self.hypervisor)
        held = {name: total - reserved for name, (total, reserved) in self.world.room().items()}
        self.assertEqual((3, {'p0', 'p1'}), (sum(held.values()), held.keys()))
        self.assertEqual(tree.NESTED, self.world.report(tree.ANNOUNCED))
        self.assertEqual({'p0': (4, 0), 'p1': (3, 0)}, self.world.room())
        self.assert_healed()

    def test_gives_room_beside_those_who_are_there_already(self) -> None:
        shares = self.world.expected(tree.NESTED)
        taken = [provider for instance in self.instances for provider in shares[instance.uuid]
                 if provider != self.world.node]
        provider = max(taken, key=taken.count)                  # two of the three are there
        there, other = (instance.uuid for instance in self.instances if provider in shares[instance.uuid])
        before = self.direct.get_inventories(provider)
        self.direct.put_inventories(provider, before.generation, {VGPU: before.inventories[VGPU]._replace(reserved=0)})
        self.direct.replace_allocations([self.direct.get_allocations(there)._replace(resources=shares[there])])
        self.direct.put_inventories(provider, self.direct.get_inventories(provider).generation, before.inventories)
        done = self.heal(self.hypervisor)
        self.assertEqual((healer.HEALED, True), (done.outcome, other in done.consumers))
        self.assert_healed()
        after = self.direct.get_inventories(provider).inventories[VGPU]
        self.assertEqual(2, after.total - after.reserved)
        self.assertEqual(1, self.asked.count(RESHAPE))

    def test_again_does_nothing(self) -> None:
        self.heal(self.hypervisor)
        self.assertEqual(Healing(healer.NOTHING), self.heal(self.hypervisor))
        node = f'/resource_providers/{self.world.node}'
        self.assertEqual([('GET', f'{node}/allocations'), *([] if self.hypervisor else [('GET', f'{node}/traits')])],
                         self.asked)

    def test_dry_it_says_what_it_would_do(self) -> None:
        self.assertEqual(Healing(healer.HEALED, tuple(sorted(instance.uuid for instance in self.instances))),
                         self.heal(self.hypervisor, dry_run=True))
        self.assert_as_it_was()

    def test_beside_others_reads_again_what_they_changed(self) -> None:
        changed, gone = self.instances[:2]

        def others_write() -> None:
            found = self.direct.get_allocations(changed.uuid)
            self.direct.replace_allocations([found._replace(resources={
                self.world.node: {**found.resources[self.world.node], 'VCPU': 7}})])
            self.world.delete(gone)
            self.came = self.world.spawn()

        self.proxy.before_next(*RESHAPE, others_write)
        done = self.heal(self.hypervisor)
        self.assertEqual({changed.uuid, self.instances[2].uuid, self.came.uuid}, set(done.consumers))
        after = self.world.held()
        self.assertEqual(7, after[changed.uuid][self.world.node]['VCPU'])
        self.assertEqual({uuid: {provider: amounts for provider, amounts in of.items() if provider != self.world.node}
                          for uuid, of in self.world.expected(tree.NESTED).items()},
                         {uuid: {provider: amounts for provider, amounts in of.items() if provider != self.world.node}
                          for uuid, of in after.items()})
        # Read once more: the one that changed, and the one that came.
        self.assertEqual(3 + 2, len([path for _method, path in self.asked if path.startswith('/allocations/')]))

    def test_beside_others_without_an_end_gives_up_and_changes_nothing(self) -> None:
        def touch() -> None:
            found = self.direct.get_traits(self.world.node)
            self.direct.put_traits(self.world.node, found.generation, found.traits | {f'HW_CPU_X86_AVX{next(names)}'})

        names = iter(['', '2', '512F', '512CD', '512PF'])
        for _attempt in range(5):
            self.proxy.before_next(*RESHAPE, touch)
        self.assertRaises(errors.GenerationConflict, self.heal, self.hypervisor)
        self.assertEqual(self.world.expected(tree.FLAT), self.world.held())
        self.assertEqual(healer.HEALED, self.heal(self.hypervisor).outcome)

    def test_knows_its_own_write_whose_answer_was_lost(self) -> None:
        self.proxy.at_next(*RESHAPE, http_proxy.Loss.ANSWER)
        done = self.heal(self.hypervisor)
        self.assertEqual((healer.HEALED, 3), (done.outcome, len(done.consumers)))
        self.assertEqual(1, self.asked.count(RESHAPE))
        self.assert_healed()

    def test_repeats_a_write_that_was_lost(self) -> None:
        self.proxy.at_next(*RESHAPE, http_proxy.Loss.REQUEST)
        self.assertEqual(3, len(self.heal(self.hypervisor).consumers))
        self.assertEqual(2, self.asked.count(RESHAPE))
        self.assert_healed()

    def test_does_not_repeat_a_write_for_which_the_role_is_missing(self) -> None:
        for status in (401, 403):
            reshape = self.answering(status)
            error = self.assertRaises(errors.PlacementUnavailable, self.heal, self.hypervisor)
            self.assertEqual((status, 1, []), (error.status, reshape.call_count, self.pauses))
        self.assert_as_it_was()

    def test_pauses_before_it_repeats_a_write_that_failed(self) -> None:
        for status in (429, 503):
            self.pauses.clear()
            reshape = self.answering(status)
            error = self.assertRaises(errors.PlacementUnavailable, self.heal, self.hypervisor)
            self.assertEqual((status, 5), (error.status, reshape.call_count))
            for pause, most in zip(self.pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
                self.assertTrue(most / 2 <= pause <= most, self.pauses)
        self.assert_as_it_was()

    def test_reads_again_when_others_have_taken_the_room(self) -> None:
        reshape, refusals = Client.reshape, [errors.NoCapacity('POST /reshaper', 'no room')]

        def refused_once(client: Client, *plan: Any) -> None:
            if refusals:
                raise refusals.pop()
            reshape(client, *plan)

        self.patch(Client, 'reshape', refused_once)
        self.assertEqual(healer.HEALED, self.heal(self.hypervisor).outcome)
        self.assert_healed()

    def answering(self, status: int) -> mock.Mock:
        """A reshaper that always answers this."""
        return self.useFixture(fixtures.MockPatchObject(Client, 'reshape', side_effect=errors.PlacementUnavailable(
            'POST /reshaper', f'{status}', status))).mock

    def test_says_what_consumers_are_whose_writer_did_not(self) -> None:
        old = Instance()
        body = {'allocations': {self.world.node: {'resources': {VGPU: 1}}}, 'consumer_generation': None,
                'project_id': nodes.PROJECT, 'user_id': nodes.USER}
        answer = self.direct._adapter.put(f'/allocations/{old.uuid}', json=body, microversion='1.30')
        self.assertEqual((204, values.UNTYPED), (answer.status_code, self.direct.get_allocations(old.uuid).type))
        self.world.host.spawn(old, {self.world.node: {'resources': {VGPU: 1}}})
        self.assertEqual(4, len(self.heal(self.hypervisor).consumers))
        self.assertEqual(values.INSTANCE, self.direct.get_allocations(old.uuid).type)


class TestObstacles(HealTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instance = self.world.spawn()

    def assert_left(self, *obstacles: tuple[str | None, str]) -> None:
        done = self.heal()
        self.assertEqual((healer.LEFT, list(obstacles)),
                         (done.outcome, [(one.consumer, one.what) for one in done.obstacles]))
        self.assert_as_it_was()

    def test_a_consumer_without_a_record_is_named(self) -> None:
        stranger = values.Consumer(str(uuid.uuid4()), {self.world.node: {VGPU: 1}}, None, 'p', 'u', values.INSTANCE)
        self.world.report(tree.ANNOUNCED)
        self.direct.replace_allocations([stranger])
        self.assert_left((stranger.uuid, healing.NO_RECORD))
        self.direct.delete_allocations(stranger.uuid)
        self.assertEqual(healer.HEALED, self.heal().outcome)

    def test_a_record_without_a_guest_is_named(self) -> None:
        self.world.report(tree.ANNOUNCED)
        self.world.host.machine.delete_guest(self.instance.uuid)
        self.assert_left((self.instance.uuid, healing.NO_GUEST))

    def test_a_guest_with_other_devices_is_named(self) -> None:
        self.world.report(tree.ANNOUNCED)
        self.world.host.machine.start_guest(self.instance.uuid, [])
        self.assert_left((self.instance.uuid, healing.OTHER_GUEST))

    def test_an_amount_that_differs_is_named(self) -> None:
        self.world.report(tree.ANNOUNCED)
        found = self.direct.get_allocations(self.instance.uuid)
        self.direct.replace_allocations([found._replace(resources={self.world.node: {VGPU: 2}})])
        done = self.heal()
        self.assertEqual([(self.instance.uuid, healing.OTHER_AMOUNT)],
                         [(one.consumer, one.what) for one in done.obstacles])

    def test_what_only_passes_by_is_none(self) -> None:
        self.world.report(tree.ANNOUNCED)
        coming = Instance()
        self.direct.replace_allocations([values.Consumer(
            coming.uuid, {self.world.node: {**nodes.CPU, VGPU: 1}}, None, nodes.PROJECT, nodes.USER, values.INSTANCE)])
        listing = ('GET', f'/resource_providers/{self.world.node}/allocations')
        self.proxy.before_next(*listing, lambda: None)
        self.proxy.before_next(*listing, lambda: self.world.host.spawn(
            coming, {self.world.node: {'resources': {VGPU: 1}}}))
        self.assertEqual(2, len(self.heal().consumers))
        self.assert_healed()

    def test_what_nobody_could_read_moves_nothing(self) -> None:
        self.world.report(tree.ANNOUNCED)
        node = self.world.heal_node()._replace(complete=False)
        self.assertEqual([healing.UNREAD], [one.what for one in self.healer.heal(node).obstacles])

    def test_without_the_host_its_providers_must_be_there(self) -> None:
        done = self.heal(hypervisor=False)
        self.assertEqual([healing.NO_PROVIDER], [one.what for one in done.obstacles])
        self.assert_as_it_was()

    def test_without_the_host_a_class_of_which_nobody_has_a_row_may_be_counted_below(self) -> None:
        self.world.delete(self.instance)
        self.world.report(tree.ANNOUNCED)
        stranger = values.Consumer(str(uuid.uuid4()), {self.world.node: {VGPU: 1}}, None, 'p', 'u', values.INSTANCE)
        self.direct.replace_allocations([stranger])
        unread = self.world.heal_node()._replace(providers=self.world.manager.providers()[:1], complete=False)
        for node, obstacle in ((self.world.heal_node(hypervisor=False), healing.NO_RECORD), (unread, healing.UNREAD)):
            done = self.healer.heal(node)
            self.assertEqual((healer.LEFT, [obstacle]), (done.outcome, [one.what for one in done.obstacles]))
            self.assertEqual([stranger.uuid], self.healer.at_node(node))
            self.assertEqual(healer.GUESTS, self.healer.standing(node, nested=False))

    def test_on_the_host_they_are_made(self) -> None:
        self.assertEqual(healer.HEALED, self.heal(dry_run=True).outcome)
        self.assert_as_it_was()
        self.assertEqual(healer.HEALED, self.heal().outcome)
        self.assert_healed()

    def test_of_a_node_that_placement_does_not_have_there_is_nothing_to_do(self) -> None:
        node = self.world.heal_node()._replace(uuid=str(uuid.uuid4()))
        self.assertEqual(Healing(healer.NOTHING), self.healer.heal(node))


class TestMoveBetweenHosts(HealTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.dest = self.useFixture(nodes.FlatHost(self.placement, {'p0': 2}))
        self.instance = self.world.spawn()
        self.migration = host_fixtures.Migration(self.world.name, self.dest.name, self.instance.uuid)
        before = self.direct.get_allocations(self.instance.uuid)
        self.direct.replace_allocations([
            before._replace(uuid=self.migration.uuid, generation=None, type=values.MIGRATION),
            before._replace(resources={self.dest.node: {**nodes.CPU, VGPU: 1}})])
        for world in (self.world, self.dest):
            world.host.service.moves = [self.migration]
        self.dest.host.resize(self.instance, migration=self.migration,
                              request={self.dest.node: {'resources': {VGPU: 1}}})

    def test_each_end_is_healed_by_its_own_record(self) -> None:
        self.world.manager.update_usage(self.context, self.instance, self.world.name)
        self.assertEqual((self.migration.uuid,), self.heal().consumers)
        self.assertEqual((self.instance.uuid,), self.healer.heal(self.dest.heal_node()).consumers)
        self.assert_healed()
        self.assertEqual(self.dest.expected(tree.NESTED), self.dest.held())

    def test_a_source_that_was_not_told_is_left_until_it_is(self) -> None:
        self.assertEqual([(self.migration.uuid, healing.NO_RECORD)],
                         [(one.consumer, one.what) for one in self.heal().obstacles])
        self.world.host.service.known = {self.instance.uuid: 'elsewhere'}
        self.world.host.machine.stop_guest(self.instance.uuid)
        self.world.host.audit()
        self.assertEqual((self.migration.uuid,), self.heal().consumers)
        self.assert_healed()


class TestRevertThatTheRecordDoesNotKnow(HealTestCase):
    def test_stops_the_node(self) -> None:
        """What the instance holds again would go to the devices that it just left."""
        self.world.report(tree.ANNOUNCED)
        instance = self.world.spawn()
        migration = self.world.resize(instance, vgpu=1)
        AllocationClient(self.direct).revert(instance.uuid, migration)
        done = self.heal()
        self.assertEqual([(migration, healing.OTHER_AMOUNT)], [(one.consumer, one.what) for one in done.obstacles])
        self.assertEqual({self.world.node: {**nodes.CPU, VGPU: 1}},
                         self.direct.get_allocations(instance.uuid).resources)


class TestTwoAtOnce(base.TestCase):
    """Two heals of a node, whose writes are both in placement's transactions before either is committed."""

    def wait_until_they_wait(self, engine: sa.Engine, number: int) -> None:
        """Wait until this many sessions wait for a lock in placement's database."""
        end = time.monotonic() + base.HANGS_S
        waiting = -1
        while waiting < number:
            self.assertLess(time.monotonic(), end, f'{waiting} of {number} wait')
            time.sleep(0.01)
            with engine.connect() as connection:
                waiting = connection.execute(sa.text(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                    'AND datname = current_database()')).scalar_one()

    def test_one_moves_the_consumers_and_the_other_finds_them_moved(self) -> None:
        server = placements.PlacementServer.shared(database_servers.PostgreSQLServer.shared())
        placement = self.useFixture(placements.Placement(server))
        world = self.useFixture(nodes.FlatHost(placement, {'p0': 2, 'p1': 2}))
        world.report(tree.ANNOUNCED)
        instances = {world.spawn().uuid, world.spawn().uuid}
        engine = sa.create_engine(server.database_url, poolclass=sa.NullPool)
        heals: list[futures.Future[Healing]] = []
        with futures.ThreadPoolExecutor(2) as pool, engine.connect() as locks:
            locks.execute(sa.text('SELECT id FROM inventories FOR UPDATE'))
            for number in (1, 2):
                heals.append(pool.submit(Healer(placement.client).heal, world.heal_node()))
                self.wait_until_they_wait(engine, number)
            locks.rollback()
            done, other = (heal.result(base.HANGS_S) for heal in heals)
        self.assertEqual((healer.HEALED, instances), (done.outcome, set(done.consumers)))
        self.assertEqual(Healing(healer.NOTHING), other)
        self.assertEqual(2, placement.requests.count(RESHAPE))
        self.assertEqual(world.expected(tree.NESTED), world.held())


class TestKilled(base.TestCase):
    """A heal is killed at each of its writes, and run again: while its write goes on, where that has arrived.

    Also at every third of its reads: between two writes it leaves the same wherever it is killed.
    """

    scenarios: Any = base.table(
        ('before a GET', 'GET', http_proxy.Loss.REQUEST, 3),
        ('before a PUT', 'PUT', http_proxy.Loss.REQUEST, 1),
        ('before a POST', 'POST', http_proxy.Loss.REQUEST, 1),
        ('amid a POST', 'POST', None, 1),
        names=('method', 'loss', 'step'))

    def killed_at(self, number: int, placement: placements.Placement, node: healer.NodeToHeal) -> bool:
        """Heal in a child that is killed when its request of this number has come; whether it was."""
        records, usage = node.look()            # the store's connections are the parent's
        child = os.fork()
        if not child:
            try:
                session = ks_session.Session(token_endpoint.Token(placement.url, placements.TOKEN))
                client = Client(ks_adapter.Adapter(session, service_type='placement', connect_retries=0))
                Healer(client).heal(node._replace(look=lambda: (records, usage)))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        for _before in range(number - 1):
            placement.proxy.before_next(self.method, '/', lambda: None)
        placement.proxy.before_next(self.method, '/', lambda: os.kill(child, signal.SIGKILL), self.loss)
        _pid, status = os.waitpid(child, 0)
        self.assertIn(status, (0, signal.SIGKILL))
        return status != 0

    def test_it_is_as_it_was_and_the_next_run_goes_on(self) -> None:
        server = placements.PlacementServer.shared(database_servers.PostgreSQLServer.shared())
        was_killed = True
        number = 1 - self.step
        while was_killed:
            number += self.step
            placement = self.useFixture(placements.Placement(server))
            world = self.useFixture(nodes.FlatHost(placement, {'p0': 2, 'p1': 2}))
            world.spawn()
            world.spawn()
            was_killed = self.killed_at(number, placement, world.heal_node())
            if was_killed and self.loss is not None:
                self.assertEqual(world.expected(tree.FLAT), world.held())
            Healer(placement.direct).heal(world.heal_node())
            self.assertEqual(world.expected(tree.NESTED), world.held())
        self.assertGreater(number, 3)
