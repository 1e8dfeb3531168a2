"""``placement sync`` on a host in memory and a real placement server, beside the host's manager."""

from __future__ import annotations

import json
import textwrap
from typing import Any
from unittest import mock
import uuid

from oslo_config import cfg

from devicetrack.claims.manager import ClaimManager
from devicetrack.cmd import progress
from devicetrack.compatibility import traits
from devicetrack.conf import opts
from devicetrack.placement import errors
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.placement.resolver import ProvidersByName
from devicetrack.testing import fake
from devicetrack.testing import fixtures
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.tests import base
from devicetrack.tests.functional.docs.test_documented_code import code_blocks
from devicetrack.tests.functional.docs.test_documented_code import DOCS
from devicetrack.tests.functional.placement import nodes
from devicetrack.tests.unit.cmd import program as programs


def ours(total: int, reserved: int = 0) -> values.ClassInventory:
    return values.ClassInventory(total, reserved, max_unit=total)


class SyncTestCase(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())
        self.direct = self.placement.direct
        self.name = f'host-{uuid.uuid4()}'
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'p0': 2, 'p1': 1}, name=self.name))
        self.program = self.useFixture(programs.Program(self.host.configuration, self.host.machine))
        self.layout('at_start')

    def layout(self, nested: str) -> None:
        self.nested = nested
        self.config_file = programs.write_configuration(
            self.temp_dir(), self.host.conf, '[placement]', 'auth_type = admin_token',
            f'endpoint = {self.placement.url}', f'token = {placements.TOKEN}', f'nested = {nested}')

    def run_sync(self, *arguments: str) -> programs.Answer:
        return self.program.run('placement', 'sync', *arguments, config_file=self.config_file)

    def report(self) -> Any:
        """What the host's service reports, as another process."""
        manager = self.host.manager
        return PlacementReporter(self.direct).sync(manager.providers(), tree.LAYOUT_OF[self.nested],
                                                   manager.state().classes, manager.state().complete)

    def said(self) -> dict[str, dict[str, values.ClassInventory]]:
        root = self.direct.find_provider(self.name)
        assert root is not None
        return {one.name.removeprefix(self.name): dict(self.direct.get_inventories(one.uuid).inventories)
                for one in self.direct.get_tree(root.uuid)}

    def allocate(self, name: str, **resources: int) -> values.Consumer:
        provider = self.direct.find_provider(self.name + name)
        assert provider is not None
        instance = values.Consumer(str(uuid.uuid4()), {provider.uuid: resources}, None, str(uuid.uuid4()),
                                   str(uuid.uuid4()), values.INSTANCE)
        self.direct.replace_allocations([instance])
        return instance


class TestSync(SyncTestCase):
    def test_says_what_differs_as_a_tree_and_then_does_it(self) -> None:
        self.host.manager.operator.cordon('vpmem', 'd1')
        tried = self.run_sync('--dry-run')
        self.assertEqual(3, tried.code)
        self.assertIn('nothing was done', tried.err)
        self.assertIsNone(self.direct.find_provider(self.name))
        card = textwrap.indent(textwrap.dedent("""\
            + {}_{}
              + VGPU: {}, 0 reserved
              + CUSTOM_DEVICETRACK_COUNTS_VGPU
              + CUSTOM_DEVICETRACK_DEVICE_API_VFIO_PCI
              + CUSTOM_DEVICETRACK_MDEV_TYPE_NVIDIA_35
              + CUSTOM_DEVICETRACK_PROVIDER
              + CUSTOM_DEVICETRACK_VENDOR_NVIDIA
              + CUSTOM_MIG_MDEV_NVIDIA_35_ANY
              + CUSTOM_MIG_MDEV_NVIDIA_35_VUNKNOWN
            """), '  ')
        [pmem] = [one.facts for one in self.host.running.declarations.known.values() if one.facts.sort.kind == 'vpmem']
        node = ''.join(f'  + {name}\n' for name in sorted(traits.offered(pmem)))
        self.assertEqual(f'+ {self.name}\n  + {PMEM}: 3, 1 reserved\n  + {tree.mark(tree.COUNTS, PMEM)}\n' + node
                         + card.format(self.name, 'p0', 2) + card.format(self.name, 'p1', 1), tried.out)
        done = self.run_sync()
        self.assertEqual((0, tried.out), (done.code, done.out))
        self.assertEqual({'': {PMEM: ours(3, 1)}, '_p0': {VGPU: ours(2)}, '_p1': {VGPU: ours(1)}}, self.said())
        again = self.run_sync()
        self.assertEqual((0, '', f'devicetrack-manage: {self.name}: no differences\n'), tuple(again))

    def test_says_the_same_as_the_service_before_and_after_a_restart(self) -> None:
        self.host.spawn(pmem=1, vgpu=2)
        self.host.manager.operator.cordon('mdev', 'p1', parent=True)
        self.report()
        self.assertEqual((0, ''), self.run_sync('--dry-run')[:2])
        self.host.restart()
        self.assertEqual((), self.report().changes)

    def test_finds_the_providers_that_a_service_made_by_their_names(self) -> None:
        root = self.placement.provider(None, self.name, VCPU=8)
        card = self.placement.provider(root, f'{self.name}_p0', VGPU=16)
        self.assertEqual(0, self.run_sync().code)
        self.assertEqual({'': {'VCPU': values.ClassInventory(8), PMEM: ours(3)}, '_p0': {VGPU: ours(2)},
                          '_p1': {VGPU: ours(1)}}, self.said())
        found = self.direct.find_provider(f'{self.name}_p0')
        self.assertEqual(card, found and found.uuid)

    def test_shows_what_cannot_go_and_asks_for_attention(self) -> None:
        self.run_sync()
        self.allocate('_p1', VGPU=1)
        del self.host.machine.parents['p1']
        answer = self.run_sync()
        self.assertEqual(3, answer.code)
        self.assertIn('! VGPU: kept without room: 1 allocated, and the host counts none here', answer.out)
        self.assertEqual({VGPU: ours(1)}, self.said()['_p1'])
        again = self.run_sync('--dry-run')
        self.assertEqual((3, True), (again.code, '! VGPU' in again.out))

    def test_shows_it_to_programs_too(self) -> None:
        self.run_sync()
        self.host.manager.operator.cordon('vpmem', 'd1')
        answer = self.run_sync('--dry-run', '-f', 'json')
        [row] = json.loads(answer.out)
        root = self.direct.find_provider(self.name)
        assert root is not None
        self.assertEqual({'node': self.name, 'provider': self.name, 'provider_uuid': root.uuid, 'what': 'inventory',
                          'name': PMEM, 'before': '3, 0 reserved', 'after': '3, 1 reserved'}, row)
        table = self.run_sync('--dry-run', '-c', 'name', '-c', 'after')
        self.assertIn(f'| {PMEM} | 3, 1 reserved |', table.out)

    def test_concludes_nothing_from_what_it_cannot_read(self) -> None:
        self.run_sync()
        self.host.machine.unknown_kinds['mdev'] = 'libvirt failed'
        answer = self.run_sync()
        self.assertEqual(3, answer.code)
        self.assertIn('a part of the host could not be read', answer.err)
        self.assertEqual({'': {PMEM: ours(3)}, '_p0': {VGPU: ours(2, 2)}, '_p1': {VGPU: ours(1, 1)}}, self.said())
        self.host.machine.clear()
        self.assertEqual(0, self.run_sync().code)
        self.assertEqual({VGPU: ours(2)}, self.said()['_p0'])

    def test_tells_of_its_progress(self) -> None:
        for number in range(23):
            self.host.machine.add_parent(f'q{number}', units=1)
        with mock.patch.object(progress, 'LINE_EVERY_S', 0.0):
            self.assertIn('25 of 26 providers written', self.run_sync().err)
            self.assertIn('25 of 26 providers read', self.run_sync().err)

    def test_of_a_host_without_a_manager_ever_is_refused(self) -> None:
        self.host.manager.close()
        self.configuration.set('devicetrack', state_path=self.state_path)
        other = programs.write_configuration(self.temp_dir(), self.conf, '[placement]', 'auth_type = admin_token',
                                             f'endpoint = {self.placement.url}', 'token = admin')
        self.useFixture(fixtures.SQLiteStore(self.conf))
        answer = self.program.run('placement', 'sync', '--host', 'nobody', config_file=other)
        self.assertEqual((1, 'devicetrack-manage: the store has no host nobody; its hosts: none. The first start '
                             'of its manager makes it\n'), (answer.code, answer.err))

    def test_without_an_answer_is_one_sentence(self) -> None:
        lost = programs.write_configuration(self.temp_dir(), self.host.conf, '[placement]', 'auth_type = admin_token',
                                            'endpoint = http://127.0.0.1:1', 'token = admin', 'connect_retries = 0')
        answer = self.program.run('placement', 'sync', config_file=lost)
        self.assertEqual((1, 1), (answer.code, answer.err.count('\n')))
        self.assertIn('placement gave no usable answer to GET /resource_providers', answer.err)


class TestRefused(SyncTestCase):
    def test_is_a_difference(self) -> None:
        self.run_sync()
        self.host.manager.operator.cordon('vpmem', 'd1')
        with mock.patch.object(Client, 'put_inventories', autospec=True, side_effect=errors.PlacementRefused(
                'PUT …', 400, 'placement.undefined_code', 'no')):
            answer = self.run_sync()
        self.assertEqual((3, ''), (answer.code, answer.out))
        self.assertIn('placement refused PUT', answer.err)
        self.assertNotIn('no differences', answer.err)


class TestNodeOfAnotherHost(SyncTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.other = self.useFixture(nodes.FlatHost(
            self.placement, {'q0': 16}, store=self.host.store.store,
            configuration=self.useFixture(fixtures.Configuration(machine=str(uuid.uuid4())))))
        self.before = [*self.other.room().values()]

    def refused(self, *arguments: str) -> str:
        for command in ('sync', 'audit'):
            answer = self.program.run('placement', command, *arguments, config_file=self.config_file)
            self.assertEqual((2, ''), (answer.code, answer.out))
        self.assertEqual(self.before, [*self.other.room().values()])
        return answer.err

    def test_in_the_store_is_refused(self) -> None:
        for named in ((), ('--host', self.name)):
            self.assertIn(f'--node {self.other.name} is the node of another host in the store',
                          self.refused('--node', self.other.name, *named))

    def test_of_which_nothing_is_recorded_must_be_named_with_the_host(self) -> None:
        name = self.renamed()
        self.assertIn(f'give --host {self.name}, too', self.refused('--node', name))
        self.assertEqual(0, self.run_sync('--node', name, '--host', self.name).code)

    def test_of_which_nothing_recorded_is_there_is_refused(self) -> None:
        self.host.spawn(vgpu=1)
        name = self.renamed()
        for named in ((), ('--host', self.name)):
            self.assertIn(f'none that host {self.name} has recorded', self.refused('--node', name, *named))

    def test_where_a_recorded_owner_has_allocations_must_be_named_with_the_host(self) -> None:
        instance = self.host.spawn(vgpu=1)
        name = self.renamed()
        self.direct.replace_allocations([values.Consumer(
            instance.uuid, {self.other.node: nodes.CPU}, None, nodes.PROJECT, nodes.USER, values.INSTANCE)])
        self.assertIn(f'give --host {self.name}, too', self.refused('--node', name))
        self.assertEqual(0, self.run_sync('--node', name, '--host', self.name).code)

    def test_that_nobody_has_reported_yet_is_its_own(self) -> None:
        name = f'node-{uuid.uuid4()}'
        self.placement.provider(None, name)
        self.assertEqual(0, self.run_sync('--node', name).code)

    def renamed(self) -> str:
        """Give the other host's node a name that no host of the store has."""
        return nodes.rename(self.direct, self.other.node)


class TestUnknownNode(SyncTestCase):
    """A node that placement does not have, on a host whose node was made by the service."""

    def setUp(self) -> None:
        super().setUp()
        self.earlier = self.useFixture(nodes.EarlierHost(self.placement))
        self.host, self.name, self.unknown = self.earlier.host, self.earlier.name, f'node-{uuid.uuid4()}'
        self.program = self.useFixture(programs.Program(self.host.configuration, self.host.machine))
        self.layout('manual')

    def refused(self, *arguments: str, there: str) -> None:
        """Refused with the name of the node that is there."""
        for command in ('sync', 'audit'):
            answer = self.program.run('placement', command, *arguments, config_file=self.config_file)
            self.assertEqual((2, ''), (answer.code, answer.out))
            self.assertIn(f'node of host {self.name} is {there} there: name that node', answer.err)
        self.assertEqual([], [request for request in self.placement.requests if request[0] != 'GET'])

    def test_is_refused_if_there_is_one_with_the_name_of_the_host(self) -> None:
        for named in ((), ('--host', self.name)):
            self.refused('--node', self.unknown, *named, there=self.name)

    def test_is_refused_if_the_recorded_providers_are_elsewhere(self) -> None:
        host = self.host.store.host(self.name)
        assert host is not None
        nodes.rename(self.direct, self.earlier.node)
        self.direct.delete_allocations(self.earlier.instance.uuid)
        there = f'node-{uuid.uuid4()}'
        self.direct.create_provider(host.uuid, there, None)
        self.refused('--node', self.unknown, there=there)

    def test_is_its_own_if_no_device_of_the_host_is_anywhere(self) -> None:
        nodes.rename(self.direct, self.earlier.node)
        elsewhere = self.placement.provider(VCPU=8, DISK_GB=8)
        held = self.direct.get_allocations(self.earlier.instance.uuid)
        self.direct.replace_allocations([held._replace(resources={elsewhere: {'VCPU': 1, 'DISK_GB': 1}})])
        self.assertEqual(0, self.run_sync('--node', self.unknown).code)

    def test_is_its_own_if_an_owner_was_evacuated(self) -> None:
        """The owner has allocations at the node of another host, and the service's node of this one is gone."""
        there = self.useFixture(nodes.FlatHost(self.placement, {'p0': 4}))
        before = there.room()
        held = self.direct.get_allocations(self.earlier.instance.uuid)
        self.direct.replace_allocations([held._replace(resources={there.node: {**nodes.CPU, VGPU: 1}})])
        for provider in reversed(list(self.direct.get_tree(self.earlier.node))):
            self.direct.delete_provider(provider.uuid)
        self.assertEqual(2, self.run_sync('--node', there.name).code)
        for named in ((), ('--node', self.name, '--host', self.name)):
            self.assertEqual(0, self.run_sync(*named).code)
        self.assertEqual(before, there.room())

    def test_is_its_own_beside_a_provider_of_the_name_of_the_host_without_devices(self) -> None:
        nodes.rename(self.direct, self.earlier.node)
        self.placement.provider(None, self.name)
        self.assertEqual(0, self.run_sync('--node', self.unknown).code)

    def test_without_any_record_must_be_named_with_the_host_if_there_is_one_with_its_name(self) -> None:
        self.host.delete(self.earlier.instance)
        self.refused('--node', self.unknown, there=self.name)
        self.assertEqual(0, self.run_sync('--node', self.unknown, '--host', self.name).code)


class TestLayout(SyncTestCase):
    scenarios = base.table(
        ('off', 'off', {'': {PMEM: ours(3), VGPU: ours(3)}}),
        ('manual', 'manual', {'': {PMEM: ours(3), VGPU: ours(3)},
                              '_p0': {VGPU: ours(2, 2)}, '_p1': {VGPU: ours(1, 1)}}),
        ('at_start', 'at_start', {'': {PMEM: ours(3)}, '_p0': {VGPU: ours(2)}, '_p1': {VGPU: ours(1)}}),
        ('refuse', 'refuse', {'': {PMEM: ours(3)}, '_p0': {VGPU: ours(2)}, '_p1': {VGPU: ours(1)}}),
        names=('option', 'expected'))

    def test_is_what_the_option_says(self) -> None:
        self.layout(self.option)
        self.assertEqual(0, self.run_sync().code)
        self.assertEqual(self.expected, self.said())

    def test_of_a_flat_node_with_guests_takes_no_room_from_anybody(self) -> None:
        self.layout('off')
        self.run_sync()
        self.allocate('', VGPU=2)
        self.layout(self.option)
        answer = self.run_sync()
        self.assertEqual({PMEM: ours(3), VGPU: ours(3)}, self.said()[''])
        self.assertEqual({}, {name: of_child for name, of_child in self.said().items()
                              if name and any(one.reserved < one.total for one in of_child.values())})
        waits = self.option in ('at_start', 'refuse')
        self.assertEqual((3 if waits else 0, waits), (
            answer.code, 'the tree is announced and not nested' in answer.err))

    def test_a_claim_of_what_is_allocated_there_fits(self) -> None:
        """What the scheduler allocates by the tree can be claimed by it: nothing less, and nothing more."""
        self.layout(self.option)
        self.report()
        wanted = {name: {one: inventory.total - inventory.reserved for one, inventory in of_provider.items()
                         if inventory.total > inventory.reserved} for name, of_provider in self.said().items()}
        allocations = {}
        for name, resources in wanted.items():
            provider = self.direct.find_provider(self.name + name)
            assert provider is not None
            allocations[provider.uuid] = {'resources': resources}
        self.host.claim(fixtures.Instance(), allocations)
        self.assertEqual(0, self.host.free())


class TestMark(SyncTestCase):
    def is_marked(self) -> bool:
        [host] = self.host.store.hosts()
        return (host.nested_version, host.nested_at) != (None, None)

    def test_says_of_the_tree_that_there_is_whether_it_is_nested(self) -> None:
        marks = []
        for nested, arguments in (('at_start', ()), ('off', ('--dry-run',)), ('off', ())):
            self.layout(nested)
            self.run_sync(*arguments)
            marks.append(self.is_marked())
        self.assertEqual([True, True, False], marks)

    def test_stays_while_guests_keep_the_tree_nested(self) -> None:
        self.run_sync()
        self.allocate('_p0', VGPU=1)
        self.layout('off')
        self.assertEqual((3, True), (self.run_sync().code, self.is_marked()))


class TestPage(SyncTestCase):
    def test_its_code_reports(self) -> None:
        [block] = code_blocks(DOCS / 'user' / 'placement.rst')
        self.host.manager.close()
        conf = cfg.ConfigOpts()
        opts.register_options(conf)
        conf(['--config-file', self.config_file], project='devicetrack')
        driver = fake.FakeDriver(self.name, conf, self.host.configuration.state_path, self.host.machine)
        names: dict[str, Any] = {'ClaimManager': ClaimManager, 'host': self.name, 'driver': driver, 'conf': conf,
                                 'store': self.host.store, 'service': None, 'context': None}
        self.placement.provider(None, self.name)
        exec(compile(block, 'placement.rst', 'exec'), names)
        self.addCleanup(names['manager'].close)
        self.assertEqual({}, names['report']().refused)
        self.assertEqual({'': {PMEM: ours(3)}, '_p0': {VGPU: ours(2)}, '_p1': {VGPU: ours(1)}}, self.said())


class TestResolver(base.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())
        self.name = f'host-{uuid.uuid4()}'

    def test_a_node_that_nobody_made_is_an_error_unless_its_uuid_is_said(self) -> None:
        self.assertRaises(errors.NoSuchProvider, ProvidersByName(self.placement.client, self.name).uuid_of, '')
        said = str(uuid.uuid4())
        self.assertEqual(said, ProvidersByName(self.placement.client, self.name, said).uuid_of(''))

    def test_what_a_service_did_not_make_is_derived_as_a_manager_does(self) -> None:
        root = self.placement.provider(None, self.name)
        resolver = ProvidersByName(self.placement.client, self.name)
        self.assertEqual((root, str(uuid.uuid5(uuid.UUID(root), 'p0'))), (resolver.uuid_of(''), resolver.uuid_of('p0')))

    def test_a_node_of_the_name_of_a_child_is_not_the_child(self) -> None:
        root = self.placement.provider(None, self.name)
        self.placement.provider(None, f'{self.name}_p0')
        self.assertEqual(str(uuid.uuid5(uuid.UUID(root), 'p0')),
                         ProvidersByName(self.placement.client, self.name).uuid_of('p0'))

    def test_a_manager_claims_by_it(self) -> None:
        root = self.placement.provider(None, self.name)
        card = self.placement.provider(root, f'{self.name}_p0', VGPU=2)
        host = self.useFixture(fixtures.Host(parents={'p0': 2}, name=self.name, ready=False))
        host.providers = ProvidersByName(self.placement.client, self.name)
        host.manager = host.another_manager()
        host.manager.init_host(None)
        self.assertEqual([root, card], [one.uuid for one in host.manager.providers()])
        host.claim(fixtures.Instance(), {card: {'resources': {VGPU: 1}}})
        self.assertEqual([card], [record.provider_uuid for record in host.records()])
