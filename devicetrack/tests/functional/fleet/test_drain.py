"""Where the guests of hosts could go, by the mirror; the manager of the destination knows whether that is true."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import sqlalchemy as sa

from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.cmd import base as cmd_base
from devicetrack.fleet import models
from devicetrack.objects import DeviceRequest
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import MigrationType
from devicetrack.store import api
from devicetrack.testing import compute_service
from devicetrack.testing import databases
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing import region as regions
from devicetrack.tests import base
from devicetrack.tests.functional.fleet import test_questions
from devicetrack.tests.unit.cmd import program
from devicetrack.tests.unit.fleet import fleets

TYPE = 'nvidia-35'
PMEM, VGPU = 'CUSTOM_PMEM_NAMESPACE_4GB', 'VGPU'


def by_instance(answer: program.Answer) -> dict[str, dict[str, Any]]:
    return {one['instance_uuid']: one for one in answer.data}


class Draining(test_questions.QuestionsTestCase):
    """A host with two guests; one that can take both, and one that has no room left."""

    def setUp(self) -> None:
        super().setUp()
        self.old = self.host('old', devices=2, parents={'gpu': 4})
        self.free = self.host('free', devices=2, parents={'gpu': 4})
        self.full = self.host('full', devices=1, parents={'gpu': 1})
        for host in self.hosts():
            host.machine.declare(MigrationType(fake.MDEV, 'gpu', TYPE, Attribute('2.1.0')))
            host.audit()
        self.full.spawn(pmem=1, vgpu=1)
        self.pmem, self.vgpu = self.old.spawn(pmem=2), self.old.spawn(vgpu=1)
        self.push(*self.hosts())

    def hosts(self) -> list[fixtures.Host]:
        return [self.old, self.free, self.full]

    def push(self, *hosts: fixtures.Host) -> None:
        for host in hosts:
            self.fleet.push(host)

    def drain(self, *arguments: str) -> program.Answer:
        answer = self.fleet.run('fleet', 'drain', *(arguments or ('old',)), '-f', 'json')
        self.assertNotIn(answer.code, (cmd_base.ERROR, cmd_base.USAGE), answer.err)
        return answer

    def counts(self, *arguments: str) -> list[tuple[Any, Any]]:
        found = by_instance(self.drain(*arguments))
        return [(found[one.uuid]['live'], found[one.uuid]['cold']) for one in (self.pmem, self.vgpu)]


class OnEachDatabaseTestCase(Draining):

    def test_hosts_cost_statements_in_pieces_and_guests_none(self) -> None:
        few = self.statements()
        for _ in range(2):
            self.old.spawn(vgpu=1)
        self.push(self.old)
        self.assertEqual(few, self.statements())
        self.push(*(self.host(f'more-{number}') for number in range(12)))
        self.assertEqual(few, self.statements())

    def statements(self) -> int:
        with test_questions.counted() as seen:
            self.drain()
        return len(seen)


class DrainTestCase(Draining):

    scenarios = databases.SCENARIOS[:1]

    def test_each_guest_has_the_number_of_hosts_that_can_take_it(self) -> None:
        answer = self.drain()
        self.assertEqual(cmd_base.OK, answer.code, answer.err)
        self.assertEqual([(1, 1), (1, 1)], self.counts())
        row = by_instance(answer)[self.pmem.uuid]
        self.assertEqual(({PMEM: 2}, None, None, None), (row['devices'], row['reason'], row['nearest'],
                                                         row['unknown_since']))
        self.assertIn('as 3 hosts looked', answer.err)

    def test_two_guests_may_count_the_same_room(self) -> None:
        other = self.old.spawn(vgpu=3)
        self.free.spawn(vgpu=1)
        self.push(self.old, self.free)
        found = by_instance(self.drain())
        self.assertEqual([1, 1], [found[one.uuid]['cold'] for one in (self.vgpu, other)])

    def test_a_guest_that_none_can_take_has_the_reason_of_the_nearest_host(self) -> None:
        taker = self.free.spawn(pmem=1)
        self.push(self.free)
        answer = self.drain()
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        row = by_instance(answer)[self.pmem.uuid]
        self.assertEqual((0, 0, 'free'), (row['live'], row['cold'], row['nearest']))
        refused = self.assertRaises(exception.NoFit, self.free.claim, fixtures.Instance(), None, 2)
        self.assertEqual(f'on host free: {refused}', row['reason'])
        self.free.delete(taker)

    def test_a_silent_host_and_a_closed_one_take_nobody(self) -> None:
        self.fleet.grow_old(self.free, 3600)
        answer = self.drain()
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertEqual([(0, 0), (0, 0)], self.counts())
        self.assertIn('silent: free since', answer.err)
        self.push(self.free)
        self.assertEqual([(1, 1), (1, 1)], self.counts())
        self.fleet.close(self.free)
        answer = self.drain()
        self.assertEqual([(0, 0), (0, 0)], self.counts())
        self.assertIn('report-only: free', answer.err)

    def test_a_host_that_is_drained_too_takes_nobody(self) -> None:
        self.assertEqual([(0, 0), (0, 0)], self.counts('old', 'f*'))
        row = by_instance(self.drain('*'))[self.pmem.uuid]
        self.assertEqual('no other host takes claims now', row['reason'])

    def test_a_cordoned_parent_is_no_room(self) -> None:
        self.free.manager.operator.cordon('mdev', 'gpu', parent=True, reason='firmware')
        self.push(self.free)
        self.assertEqual([(1, 1), (0, 0)], self.counts())
        self.assertIn('withheld (cordoned)', by_instance(self.drain())[self.vgpu.uuid]['reason'])

    def test_a_cordoned_host_takes_nobody(self) -> None:
        self.free.machine.add_namespace('d2', parent=None)
        self.free.audit()
        ours = self.useFixture(program.Program(self.free.configuration, self.free.machine))
        ours.ask('host', 'cordon', 'free', '--no-wait')
        self.free.audit()
        self.push(self.free)
        self.assertEqual([(0, 0), (0, 0)], self.counts())
        self.assertIn('withheld (cordoned)', by_instance(self.drain())[self.pmem.uuid]['reason'])

    def test_a_host_with_another_version_takes_a_guest_that_is_off(self) -> None:
        self.free.machine.declare(MigrationType(fake.MDEV, 'gpu', TYPE, Attribute('2.0.0')))
        self.free.audit()
        self.push(self.free)
        self.assertEqual([(1, 1), (0, 1)], self.counts())
        row = by_instance(self.drain())[self.vgpu.uuid]
        self.assertTrue(row['not_live'].startswith('on host free: mdev nvidia-35 to be made on gpu: no: '), row)
        self.assertIn('the destination has the older 2.0.0', row['not_live'])
        self.assertIsNone(row['reason'])

    def test_declarations_of_a_newer_release_are_no_proof_that_nothing_is_free(self) -> None:
        uuid = self.free.manager.state().host_uuid
        newer = api.StoredDeclaration(uuid, 'mdev', 'gpu', TYPE, '{"form": "of a newer release"}')
        self.say(self.free, json.dumps([newer._asdict()]))
        row = by_instance(self.drain())[self.vgpu.uuid]
        self.assertEqual((0, 1), (row['live'], row['cold']))
        self.assertIn('mdev nvidia-35: cannot be read', row['not_live'])

    def test_a_guest_whose_host_declares_nothing_may_perhaps_move_while_it_runs(self) -> None:
        self.say(self.old, '[]')
        answer = self.drain()
        row = by_instance(answer)[self.vgpu.uuid]
        self.assertEqual((None, 1), (row['live'], row['cold']))
        self.assertIn('declares nothing of it', row['not_live'])

    def say(self, host: fixtures.Host, declarations: str) -> None:
        """Let a host have declared this."""
        parts = models.fleet_parts
        self.fleet.mirror.transact(lambda connection: connection.execute(sa.update(parts).where(
            parts.c.host_uuid == host.manager.state().host_uuid, parts.c.part == models.DECLARATIONS).values(
            document=declarations)))

    def test_guests_with_devices_of_the_service_are_named(self) -> None:
        devices = models.fleet_devices

        def observe(connection: sa.Connection) -> None:
            row = dict(connection.execute(sa.select(devices).where(
                devices.c.host_uuid == self.old.manager.state().host_uuid, devices.c.position == 0)).mappings().one())
            seen = {'identifier': 'x', 'status': 'observed', 'instance_uuid': 'of Nova'}
            connection.execute(sa.insert(devices), [
                {**row, **seen, 'position': 99, 'line': json.dumps({**json.loads(row['line']), **seen})}])

        self.fleet.mirror.transact(observe)
        for _age in range(2):
            self.assertIn('not listed: 1 guest with devices that the compute service hands out itself: of Nova',
                          self.drain().err)
            self.fleet.grow_old(self.old, 3600)

    def test_a_guest_with_rows_on_two_hosts_is_unknown_at_both(self) -> None:
        self.free.spawn(fixtures.Instance(uuid=self.vgpu.uuid), vgpu=1)
        self.push(self.free)
        for host, other in (('old', 'free'), ('free', 'old')):
            row = by_instance(self.drain(host))[self.vgpu.uuid]
            self.assertEqual((None, None, None), (row['live'], row['cold'], row['nearest']))
            self.assertIn(f'host {other} has devices for it too; it is moving, or the rows', row['reason'])

    def test_namespaces_of_another_size_are_no_partners(self) -> None:
        for key in (DeviceKey('vpmem', name) for name in ('d0', 'd1')):
            self.free.machine.remove(key)
        for name, size in (('d0', 4 << 30), ('d1', 8 << 30)):
            self.free.machine.add_namespace(name, size_bytes=size)
        self.free.audit()
        self.push(self.free)
        self.assertEqual((0, 1), self.counts()[0])

    def test_numa_nodes_of_a_guest_are_asked_for(self) -> None:
        self.free.machine.remove(DeviceKey('vpmem', 'd1'))
        self.free.machine.add_namespace('d1', numa_node=1)
        self.free.audit()
        self.push(self.free)
        self.assertEqual((1, 1), self.counts()[0])
        self.assertEqual((0, 0), self.counts('old', '--numa-nodes', '1')[0])
        row = by_instance(self.drain('old', '--numa-nodes', '1'))[self.pmem.uuid]
        self.assertIn('on another NUMA node', row['reason'])
        self.assertEqual((1, 1), self.counts('old', '--numa-nodes', '2')[0])
        self.assertEqual((1, 1), self.counts('old', '--numa-nodes', '1', '--numa-policy', 'preferred')[0])
        row = by_instance(self.drain('old', '--numa-nodes', '3'))[self.pmem.uuid]
        self.assertIn('fewer than 3 NUMA nodes', row['reason'])
        self.assertEqual(cmd_base.USAGE, self.fleet.run('fleet', 'drain', 'old', '--numa-policy', 'required').code)

    def test_the_guests_of_a_silent_host_are_those_of_its_last_picture(self) -> None:
        self.fleet.grow_old(self.old, 3600)
        answer = self.drain()
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertEqual([(None, 1), (None, 1)], self.counts())
        row = by_instance(answer)[self.pmem.uuid]
        self.assertIsNotNone(row['unknown_since'])
        self.assertGreaterEqual(row['age_s'], 3600)
        self.assertIn('nobody knows whether it runs', row['not_live'])

    def test_a_report_only_host_may_have_more_guests(self) -> None:
        self.fleet.close(self.old)
        answer = self.drain()
        self.assertEqual(cmd_base.ATTENTION, answer.code)
        self.assertIn('host old is report-only, so guests may be missing', answer.err)

    def test_devices_that_are_given_back_are_no_guest(self) -> None:
        self.old.machine.before('wipe', exception.UnclaimFailed('vpmem', 'd0', 'a bad block'))
        self.assertRaises(exception.UnclaimFailed, self.old.delete, self.pmem)
        self.assertIn('releasing', self.old.states().values())
        self.push(self.old)
        answer = self.drain()
        self.assertEqual([self.vgpu.uuid], [one['instance_uuid'] for one in answer.data])
        self.assertIn('host old is still giving', answer.err)

    def test_a_table_fits_80_columns(self) -> None:
        for host in self.hosts()[1:]:
            self.fleet.grow_old(host, 3600)
        for arguments in (['old'], ['old', 'free'], ['*']):
            answer = self.fleet.run('fleet', 'drain', *arguments, '--max-width', '80')
            self.assertLessEqual(max(map(len, answer.out.splitlines())), 80)
            self.assertIn(self.pmem.uuid, answer.out)
            self.assertNotIn('no room', answer.err)

    def test_an_unknown_host_is_an_error(self) -> None:
        self.assertEqual(cmd_base.USAGE, self.fleet.run('fleet', 'drain', 'old', 'nobody').code)


class MovingTestCase(base.TestCase):
    """Two hosts between which guests move, and the mirror with what each of them said last."""

    def setUp(self) -> None:
        super().setUp()
        self.region = self.useFixture(regions.Region(devices=2, parents={'a': 2, 'b': 2}))
        self.one, self.two = self.region.one, self.region.two
        self.fleet = self.useFixture(fleets.Fleet(f'sqlite:///{self.state_path}/mirror/mirror.sqlite'))

    def push(self, *hosts: fixtures.Host) -> None:
        for host in hosts or (self.one, self.two):
            self.fleet.push(host)

    def row(self, instance: Any, host: str = 'one') -> dict[str, Any]:
        return by_instance(self.fleet.run('fleet', 'drain', host, '-f', 'json'))[instance.uuid]

    def test_a_guest_that_moves_is_unknown_at_both_ends(self) -> None:
        instance = self.region.spawn('one', vgpu=1)
        self.push()
        self.assertEqual((1, 1), (self.row(instance)['live'], self.row(instance)['cold']))
        migration = self.region.live_migration(instance, 'two', vgpu=1)
        self.push(self.two)                     # the source has not told of it
        row = self.row(instance)
        self.assertEqual((None, None), (row['live'], row['cold']))
        self.assertIn('host two has devices for it too', row['reason'])
        self.push(self.one)
        for host in ('one', 'two'):
            row = self.row(instance, host)
            self.assertEqual((None, None), (row['live'], row['cold']))
            self.assertIn(f'by migration {migration.uuid}', row['reason'])
        self.assertEqual(cmd_base.ATTENTION, self.fleet.run('fleet', 'drain', 'one').code)
        self.region.arrive(instance, migration)
        self.region.audit()
        self.push()
        self.assertEqual(1, self.row(instance, 'two')['cold'])
        self.assertNotIn(instance.uuid, by_instance(self.fleet.run('fleet', 'drain', 'one', '-f', 'json')))

    def test_a_resize_that_waits_for_its_confirmation_is_a_move(self) -> None:
        instance = self.region.spawn('one', pmem=1)
        self.region.resize(instance, 'one', pmem=1)
        self.push()
        self.assertIn('it moves', self.row(instance)['reason'])

    def test_rows_of_a_silent_host_are_mentioned_and_prove_nothing(self) -> None:
        instance = self.region.spawn('one', pmem=1)
        self.push()
        self.region.evacuate(instance, 'two', pmem=1)
        self.push(self.two)
        self.fleet.grow_old(self.one, 3600)
        row = self.row(instance, 'two')
        self.assertIn('host one has devices for it too, as it looked', row['reason'])


class OracleTestCase(base.TestCase):
    """Random hosts: the command says what the manager of the destination answers to a claim."""

    scenarios = [(f'seed {seed}', {'seed': seed}) for seed in range(4)]
    seed: int

    def setUp(self) -> None:
        super().setUp()
        self.random = random.Random(self.seed)
        self.region = self.useFixture(regions.Region(devices=0, parents={'a': 3, 'b': 3}))
        self.fleet = self.useFixture(fleets.Fleet(f'sqlite:///{self.state_path}/mirror/mirror.sqlite'))

    def test_it_is_what_the_manager_says(self) -> None:
        one, two = self.region.one, self.region.two
        for host in (one, two):
            self.furnish(host)
        guests = [self.region.spawn('one', request=request) for request in self.requests() if self.fits(one, request)]
        for request in self.requests()[:4]:
            if self.fits(two, request):
                self.region.spawn('two', request=request)
        for key in self.random.sample([one.key for one in two.machine.inventory().devices], 2):
            two.manager.operator.cordon(key.kind, key.identifier, reason='chosen')
        if self.random.random() < 0.3:
            two.manager.operator.cordon('mdev', 'a', parent=True, reason='chosen')
        self.region.audit()
        self.fleet.push(one)
        self.fleet.push(two)
        found = by_instance(self.fleet.run('fleet', 'drain', 'one', '-f', 'json'))
        self.assertEqual({one.uuid for one in guests}, set(found))
        for guest in guests:
            said = found[guest.uuid]
            request = DeviceRequest.of(*said['devices'].items())
            live, cold = self.asked(guest, request, live=True), self.asked(guest, request, live=False)
            self.assertEqual((live is None, cold is None), (said['live'] == 1, said['cold'] == 1), str((said, live)))
            if cold is not None and live is not None:
                self.assertIn(said['reason'].removeprefix('on host two: '), cold)

    def test_as_many_fit_as_the_manager_lets_in(self) -> None:
        host = self.region.one
        self.furnish(host)
        for request in self.requests()[:3]:
            if self.fits(host, request):
                self.region.spawn('one', request=request)
        host.audit()
        self.fleet.push(host)
        asked = [(nodes, request) for nodes in (0, 1) for request in self.requests()[:4]]
        said = [self.fleet.run('fleet', 'capacity', '-f', 'json', '--numa-nodes', str(nodes), '--request', ','.join(
            f'{one.resource_class}={one.amount}' for one in request.wanted)).data[0]['fits']
            for nodes, request in asked]
        self.assertEqual([self.let_in(host, request, nodes) for nodes, request in asked], said)

    def let_in(self, host: fixtures.Host, request: DeviceRequest, nodes: int) -> int:
        """How many instances a manager lets in, one after the other, and then all of them out again."""
        claims: list[Claim] = []
        for near in [{0}, {1}] if nodes else [set[int]()]:
            asked = DeviceRequest(wanted=request.wanted, numa_nodes=sorted(near),
                                  numa_affinity_policy='required' if near else 'none')
            with contextlib.suppress(exception.NoFit):
                while True:
                    claims.append(host.claim(fixtures.Instance(), asked))
        for claim in claims:
            claim.abort()
        host.wait()
        return len(claims)

    def furnish(self, host: fixtures.Host) -> None:
        machine, choose = host.machine, self.random.choice
        for number in range(5):
            machine.add_namespace(f'd{number}', size_bytes=choose([4 << 30, 4 << 30, 8 << 30]),
                                  numa_node=choose([0, 1]))
        for card in range(2):
            machine.add_card(f'0000:0{card + 1}:00.0', 2, traits=choose([(), ('HW_PCI_LIVE_MIGRATABLE',)]))
        for parent in 'ab':
            machine.declare(MigrationType('mdev', parent, TYPE, Attribute(choose(['2.0.0', '2.1.0']))))
        host.audit()

    def requests(self) -> list[DeviceRequest]:
        amounts = {PMEM: 2, VGPU: 2, 'CUSTOM_VF': 2, 'CUSTOM_PF': 1}
        return [DeviceRequest.of(*[(name, self.random.randint(1, most)) for name, most in self.random.sample(
            sorted(amounts.items()), self.random.choice([1, 1, 2]))]) for _ in range(7)]

    def fits(self, host: fixtures.Host, request: DeviceRequest) -> bool:
        try:
            host.claim(fixtures.Instance(), request).abort()
        except exception.NoFit:
            return False
        return True

    def asked(self, guest: fixtures.Instance, request: DeviceRequest, live: bool) -> str | None:
        """Claim for a guest on the other host, and give that back. Return why the claim was refused."""
        two = self.region.two
        migration = self.region.migration(
            guest, 'two', compute_service.LIVE_MIGRATION if live else compute_service.RESIZE)
        try:
            if live:
                claim: Claim = two.manager.live_migration_claim(
                    None, guest, 'two', request, migration, check=self.region.check(guest, 'two'))
            else:
                claim = two.manager.resize_claim(None, guest, 'two', request, migration)
        except (exception.NoFit, exception.LiveMigrationRefused) as refused:
            return str(refused)
        else:
            claim.abort()
            two.wait()
            return None
        finally:
            migration.status = 'failed'
