"""``placement audit`` on a host in memory and a real placement server, beside the host's manager."""

from __future__ import annotations

import functools
import random
from typing import Any
from unittest import mock
import uuid

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.placement import audit
from devicetrack.placement import auditor as auditors
from devicetrack.placement import errors
from devicetrack.placement import expected
from devicetrack.placement import healer
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.allocations import AllocationClient
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.store.leftovers import HostLeftovers
from devicetrack.store.sql.store import SQLStore
from devicetrack.testing import fixtures
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU
from devicetrack.testing.http_proxy import Loss
from devicetrack.tests import base
from devicetrack.tests.functional.placement import worlds
from devicetrack.tests.unit.cmd import program as programs

CPU = {'VCPU': 2}                           # what the service allocates at the node beside devices


class AuditTestCase(base.TestCase):
    """A host with three namespaces and two cards, of which placement says what the host's service reports."""

    nested = 'at_start'
    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())
        self.direct = self.placement.direct
        self.name = f'host-{uuid.uuid4()}'
        self.host = self.useFixture(fixtures.Host(devices=3, parents={'p0': 4, 'p1': 4}, name=self.name,
                                                  policy='spread'))
        self.program = self.useFixture(programs.Program(self.host.configuration, self.host.machine))
        self.configure(self.nested)
        self.report()
        self.providers = {one.name.removeprefix(self.name): one.uuid for one in self.host.manager.providers()}
        self.node = self.providers['']
        found = self.direct.get_inventories(self.node)
        self.direct.put_inventories(self.node, found.generation,
                                    {**found.inventories, 'VCPU': values.ClassInventory(1000)})
        self.leftovers = HostLeftovers(self.host.manager.store, self.host.manager.state().host_uuid)
        self.allocations = AllocationClient(self.direct, leftovers=self.leftovers)

    def configure(self, nested: str) -> None:
        self.config_file = programs.write_configuration(
            self.temp_dir(), self.host.conf, '[placement]', 'auth_type = admin_token',
            f'endpoint = {self.placement.url}', f'token = {placements.TOKEN}', f'nested = {nested}')

    def report(self) -> None:
        """What the host's service does, as another process."""
        manager = self.host.manager
        PlacementReporter(self.direct).sync(manager.providers(), tree.LAYOUT_OF[self.nested], manager.state().classes,
                                            manager.state().complete)

    # -- what a service does ------------------------------------------------------------------------------------------

    def spawn(self, card: str = '_p0', vgpu: int = 1, pmem: int = 0) -> Instance:
        """An instance with its guest, allocated where its devices are."""
        resources: dict[str, dict[str, int]] = {self.node: dict(CPU)}
        for provider, name, amount in ((card, VGPU, vgpu), ('', PMEM, pmem)):
            if amount:
                where = self.providers.get(provider, self.node)
                resources[where] = {**resources.get(where, {}), name: amount}
        instance = Instance()
        self.allocations.spawn(instance.uuid, resources, 'project', 'user')
        return self.host.spawn(instance, {provider: {'resources': amounts} for provider, amounts in resources.items()})

    def resize(self, instance: Instance, card: str) -> fixtures.Migration:
        """Resize an instance on its host, up to where it waits for its confirmation."""
        migration = fixtures.Migration(self.name, self.name, instance.uuid)
        resources = {self.node: CPU, self.providers[card]: {VGPU: 1}}
        self.allocations.move(instance.uuid, migration.uuid, resources)
        assert isinstance(self.host.service.moves, list)
        self.host.service.moves.append(migration)
        self.host.resize(instance, migration=migration, request={
            provider: {'resources': amounts} for provider, amounts in resources.items()})
        self.host.machine.delete_guest(instance.uuid)
        migration.status = 'post-migrating'
        self.host.boot(instance)
        migration.status = 'finished'
        return migration

    def confirm(self, instance: Instance, migration: fixtures.Migration) -> None:
        """What the manager does of a confirm; placement is told elsewhere."""
        migration.status = 'confirmed'
        self.host.manager.drop_move_claim_at_source(self.host.context, instance, migration)

    # -- what others do -----------------------------------------------------------------------------------------------

    def write(self, consumer: str, resources: values.Resources, kind: str = values.INSTANCE) -> None:
        found = self.direct.get_allocations(consumer)
        self.direct.replace_allocations([
            values.Consumer(consumer, resources, found.generation, 'project', 'user', kind)])

    def held(self, consumer: Any) -> values.Resources:
        return self.direct.get_allocations(getattr(consumer, 'uuid', consumer)).resources

    # -- the command --------------------------------------------------------------------------------------------------

    def run_audit(self, *arguments: str) -> programs.Answer:
        return self.program.run('placement', 'audit', *arguments, config_file=self.config_file)

    def found(self) -> list[tuple[str | None, str, str | None]]:
        """What the audit finds: consumers, kinds and repairs."""
        answer = self.run_audit('-f', 'json')
        found = [(one['consumer'], one['finding'], one['repair']) for one in answer.data]
        self.assertEqual(3 if any(one['severity'] != 'note' for one in answer.data) else 0, answer.code, answer.err)
        return found

    def repaired(self, *done: str) -> None:
        """Repair, which does exactly this and leaves nothing."""
        answer = self.run_audit('--repair')
        said = [f'devicetrack-manage: done: {one}' for one in done] or [
            f'devicetrack-manage: host {self.name}: there is nothing to repair']
        self.assertEqual((0, said), (answer.code, answer.err.splitlines()))
        self.assertEqual([], self.found())


class TestQuiet(AuditTestCase):
    scenarios = [(nested, {'nested': nested}) for nested in tree.LAYOUT_OF]

    def test_nothing_differs_in_the_course_of_things(self) -> None:
        if tree.LAYOUT_OF[self.nested] != tree.NESTED:
            self.providers = {'': self.node, '_p0': self.node, '_p1': self.node}
        self.spawn('_p1', vgpu=2, pmem=1)
        moving = self.spawn('_p0')
        self.resize(moving, '_p1')
        self.host.manager.operator.cordon('vpmem', 'd2')
        self.report()
        answer = self.run_audit()
        self.assertEqual((0, '', f'devicetrack-manage: host {self.name}: no differences\n'), tuple(answer))
        self.repaired()


class TestFindings(AuditTestCase):
    def test_have_the_form_of_every_finding(self) -> None:
        instance = self.spawn('_p0')
        self.write(instance.uuid, {self.node: CPU, self.providers['_p1']: {VGPU: 1}})
        answer = self.run_audit('-f', 'json')
        self.assertEqual(3, answer.code)
        [found] = answer.data
        self.assertEqual(
            ['host', 'severity', 'finding', 'recorded_owner', 'users', 'generation', 'detail', 'held', 'proposal',
             'service', 'since', 'repair', 'consumer', 'provider', 'resource_class'], list(found))
        self.assertEqual(
            {'host': self.name, 'severity': 'warning', 'finding': audit.WRONG_PROVIDER, 'recorded_owner': instance.uuid,
             'users': [instance.uuid], 'generation': 2, 'consumer': instance.uuid, 'resource_class': VGPU,
             'detail': f'1 VGPU at {self.name}_p1 allocated, but the record has 1 VGPU at {self.name}_p0'},
            {name: found[name] for name in ('host', 'severity', 'finding', 'recorded_owner', 'users', 'generation',
                                            'consumer', 'resource_class', 'detail')})
        self.assertIn(audit.WRONG_PROVIDER, self.run_audit().out)
        for formatter in ('table', 'value', 'json'):
            answer = self.run_audit('-c', 'kind', '-c', 'resource_class', '-f', formatter)
            self.assertEqual((2, ''), (answer.code, answer.out))
            self.assertIn('there is no column kind; there are host, severity, finding, ', answer.err)

    def test_what_only_passes_by_is_none(self) -> None:
        """An instance is spawned between the two looks, and one is deleted."""
        leaving = self.spawn('_p0')
        path = f'/resource_providers/{self.node}/allocations'

        def go_on() -> None:
            self.host.delete(leaving)
            self.allocations.delete(leaving.uuid)
            self.spawn('_p1')

        self.placement.proxy.before_next('GET', path, go_on)
        self.assertEqual([], self.found())

    def test_are_none_of_a_provider_that_is_deleted_during_a_look(self) -> None:
        def delete_at(path: str) -> None:
            self.placement.proxy.before_next('GET', f'/resource_providers/{gone}/{path}',
                                             functools.partial(self.direct.delete_provider, gone))

        gone = self.placement.provider(self.node, f'{self.name}_gone')
        self.placement.proxy.before_next('GET', f'/resource_providers/{gone}/traits', lambda: delete_at('traits'))
        self.assertEqual([], self.found())
        gone = self.placement.provider(self.node, f'{self.name}_gone')
        self.direct.put_traits(gone, self.direct.get_traits(gone).generation, {tree.mark(tree.COUNTS, VGPU)})
        delete_at('allocations')
        self.assertEqual([], self.found())
        self.assertIsNone(self.direct.find_provider(f'{self.name}_gone'))

    def test_without_an_answer_is_one_sentence(self) -> None:
        self.spawn('_p0')
        for _attempt in range(8):
            self.placement.proxy.at_next('GET', f'/resource_providers/{self.node}/allocations', Loss.REQUEST)
        answer = self.run_audit()
        self.assertEqual((1, ''), (answer.code, answer.out))
        self.assertIn('placement gave no usable answer to GET /resource_providers/', answer.err)

    def test_dry_run_is_of_a_repair(self) -> None:
        self.assertEqual(2, self.run_audit('--dry-run').code)


class TestRepair(AuditTestCase):
    def test_an_instance_whose_card_came_to_another_address(self) -> None:
        instance = self.spawn('_p0')
        old = self.placement.provider(self.node, f'{self.name}_old')
        self.direct.put_inventories(old, self.direct.get_inventories(old).generation, {VGPU: values.ClassInventory(4)})
        self.direct.put_traits(old, self.direct.get_traits(old).generation, {tree.mark(tree.COUNTS, VGPU), tree.MADE})
        self.write(instance.uuid, {self.node: CPU, old: {VGPU: 1}})
        self.report()
        self.assertIn((instance.uuid, audit.WRONG_PROVIDER, audit.ALLOCATE), self.found())
        self.run_audit('--repair')
        self.assertEqual({self.node: CPU, self.providers['_p0']: {VGPU: 1}}, self.held(instance))
        self.report()
        self.assertIsNone(self.direct.find_provider(f'{self.name}_old'))
        self.assertEqual([], self.found())

    def test_wrong_provider_and_amount_of_an_instance_at_rest(self) -> None:
        elsewhere, more, less = self.spawn('_p0'), self.spawn('_p1', pmem=1), self.spawn('_p1', vgpu=2)
        self.write(elsewhere.uuid, {self.node: CPU, self.providers['_p1']: {VGPU: 1}})
        self.write(more.uuid, {self.node: {**CPU, PMEM: 2}, self.providers['_p1']: {VGPU: 1}})
        self.write(less.uuid, {self.node: CPU})
        self.assertCountEqual([
            (elsewhere.uuid, audit.WRONG_PROVIDER, audit.ALLOCATE), (more.uuid, audit.WRONG_AMOUNT, audit.ALLOCATE),
            (less.uuid, audit.UNALLOCATED, audit.ALLOCATE)], self.found())
        tried = self.run_audit('--repair', '--dry-run')
        self.assertEqual((3, 'devicetrack-manage: nothing was done\n'), (tried.code, tried.err))
        self.assertEqual({self.node: CPU}, self.held(less))
        self.repaired(f'allocate {more.uuid}', f'allocate {elsewhere.uuid}', f'allocate {less.uuid}')
        self.assertEqual([
            {self.node: CPU, self.providers['_p0']: {VGPU: 1}},
            {self.node: {**CPU, PMEM: 1}, self.providers['_p1']: {VGPU: 1}},
            {self.node: CPU, self.providers['_p1']: {VGPU: 2}}], [self.held(one) for one in (elsewhere, more, less)])

    def test_of_what_is_not_certain_is_none_and_a_dry_run_says_so(self) -> None:
        instance, wrong = self.spawn('_p0'), self.spawn('_p1')
        self.direct.delete_allocations(instance.uuid)           # of which nobody knows the project any more
        tried = self.run_audit('--repair', '--dry-run', '-f', 'json')
        self.assertEqual((3, []), (tried.code, tried.data))
        self.assertIn('1 finding cannot be repaired for certain', tried.err)
        self.write(wrong.uuid, {self.node: CPU})
        tried = self.run_audit('--repair', '--dry-run', '-f', 'json')
        self.assertEqual((3, [wrong.uuid]), (tried.code, [one['consumer'] for one in tried.data]))
        self.assertIn('1 finding cannot be repaired for certain', tried.err)

    def test_of_a_consumer_that_moves_on_is_left_for_the_next_run(self) -> None:
        instance = self.spawn('_p0')
        wrong = {self.node: CPU, self.providers['_p1']: {VGPU: 1}}
        self.write(instance.uuid, wrong)
        self.placement.proxy.before_next('PUT', '/allocations/', lambda: self.write(instance.uuid, wrong))
        answer = self.run_audit('--repair')
        self.assertEqual((3, wrong), (answer.code, self.held(instance)))
        self.assertIn(f'not done: allocate {instance.uuid}: ', answer.err)
        self.assertIn('1 finding is left', answer.err)
        self.repaired(f'allocate {instance.uuid}')

    def test_where_there_is_no_room_does_the_others(self) -> None:
        first, second = self.spawn('_p0'), self.spawn('_p1')
        for instance in (first, second):
            self.write(instance.uuid, {self.node: CPU})
        other = str(uuid.uuid4())
        self.write(other, {self.providers['_p0']: {VGPU: 4}})
        answer = self.run_audit('--repair')
        self.assertEqual(3, answer.code)
        self.assertIn(f'not done: allocate {first.uuid}: PUT /allocations/{first.uuid}: no capacity', answer.err)
        self.assertEqual([{self.node: CPU}, {self.node: CPU, self.providers['_p1']: {VGPU: 1}}],
                         [self.held(one) for one in (first, second)])

    def test_of_inventories_is_a_report(self) -> None:
        self.spawn('_p0')
        found = self.direct.get_inventories(self.providers['_p1'])
        self.direct.put_inventories(self.providers['_p1'], found.generation, {VGPU: values.ClassInventory(9)})
        self.assertEqual([(None, audit.INVENTORY_DIFFERS, audit.SYNC)], self.found())
        self.repaired('sync')
        self.assertEqual(found.inventories, self.direct.get_inventories(self.providers['_p1']).inventories)

    def test_of_inventories_names_the_providers_and_records_that_the_tree_is_nested(self) -> None:
        names = [f'{self.name}{card}' for card in ('_p0', '_p1')]
        for name in names:
            provider = self.providers[name.removeprefix(self.name)]
            found = self.direct.get_inventories(provider)
            self.direct.put_inventories(provider, found.generation, {VGPU: values.ClassInventory(9, max_unit=9)})
        plan = self.run_audit('--repair', '--dry-run', '-f', 'json').data
        change = '~ VGPU: 9, 0 reserved -> 4, 0 reserved'
        self.assertEqual([('sync', None, None, None, name, change) for name in names], [
            tuple(one[name] for name in ('verb', 'consumer', 'before', 'after', 'provider', 'reason')) for one in plan])
        answer = self.run_audit('--repair')
        self.assertEqual((0, 'devicetrack-manage: done: sync\n'), (answer.code, answer.err))
        self.assertEqual(''.join(f'sync provider {name}\n    Why: {change}\n' for name in names), answer.out)
        [host] = self.host.store.hosts()
        self.assertEqual(healer.VERSION, host.nested_version)

    def test_of_inventories_that_the_store_cannot_record_keeps_none_of_the_others(self) -> None:
        instance = self.spawn('_p0')
        self.write(instance.uuid, {self.node: CPU})
        found = self.direct.get_inventories(self.providers['_p1'])
        self.direct.put_inventories(self.providers['_p1'], found.generation,
                                    {VGPU: values.ClassInventory(9, max_unit=9)})
        with mock.patch.object(SQLStore, 'set_nested', autospec=True,
                               side_effect=exception.StoreUnavailable('the store', 'locked')):
            answer = self.run_audit('--repair')
        self.assertEqual((3, ['devicetrack-manage: not done: sync: the store: locked',
                              f'devicetrack-manage: done: allocate {instance.uuid}']),
                         (answer.code, answer.err.splitlines()))

    def test_not_of_what_only_the_service_knows_to_reserve(self) -> None:
        found = self.direct.get_inventories(self.node)
        self.direct.put_inventories(self.node, found.generation, {
            **found.inventories, PMEM: found.inventories[PMEM]._replace(reserved=1)})
        self.assertEqual([(None, audit.INVENTORY_DIFFERS, None)], self.found())
        self.assertIn('there is nothing to repair', self.run_audit('--repair').err)

    def test_of_a_consumer_whose_writer_did_not_say_what_it_is(self) -> None:
        instance = self.spawn('_p0')
        self.direct.delete_allocations(instance.uuid)
        body = {'allocations': {self.node: {'resources': CPU}}, 'consumer_generation': None, 'project_id': 'project',
                'user_id': 'user'}
        self.direct._adapter.put(f'/allocations/{instance.uuid}', json=body, microversion='1.30')
        self.assertEqual(values.UNTYPED, self.direct.get_allocations(instance.uuid).type)
        self.repaired(f'allocate {instance.uuid}')
        self.assertEqual(values.INSTANCE, self.direct.get_allocations(instance.uuid).type)

    def test_a_lost_answer_is_found_out_by_the_next_run(self) -> None:
        instance = self.spawn('_p0')
        self.write(instance.uuid, {self.node: CPU})
        self.placement.proxy.at_next('PUT', '/allocations/', Loss.ANSWER)
        answer = self.run_audit('--repair')
        self.assertEqual(3, answer.code)
        self.assertIn(f'not done: allocate {instance.uuid}: placement gave no usable answer', answer.err)
        self.repaired()


class TestFlat(AuditTestCase):
    """Devices that are counted at the node, also where the option wants it otherwise by now."""

    nested = 'off'
    scenarios = [(nested, {'wanted': nested}) for nested in tree.LAYOUT_OF]
    wanted: str

    def test_amounts_are_put_right_at_the_node(self) -> None:
        self.providers['_p0'] = self.node
        more, right = self.spawn('_p0'), self.spawn('_p0')
        self.write(more.uuid, {self.node: {**CPU, VGPU: 2}})
        self.configure(self.wanted)
        self.nested = self.wanted
        self.report()
        layout = [] if tree.LAYOUT_OF[self.wanted] != tree.NESTED else [(None, audit.OTHER_LAYOUT, None)]
        self.assertEqual([*layout, (more.uuid, audit.WRONG_AMOUNT, audit.ALLOCATE)], self.found())
        answer = self.run_audit('--repair')
        self.assertEqual(3 if layout else 0, answer.code)
        self.assertIn(f'done: allocate {more.uuid}\n', answer.err)
        self.assertEqual(layout, self.found())
        self.assertEqual([{self.node: {**CPU, VGPU: 1}}] * 2, [self.held(one) for one in (more, right)])


class TestMigrations(AuditTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instance = self.spawn('_p0')

    def conflict(self, migration: fixtures.Migration, how: str = vocabulary.CONFIRM) -> None:
        """A confirm or revert that placement refuses, since somebody else wrote to the migration at that moment."""
        self.placement.proxy.before_next(*worlds.CASES[how].writes, lambda: self.direct.replace_allocations(
            [self.direct.get_allocations(migration.uuid)]))
        self.assertRaises(errors.ConsumerConflict, getattr(AllocationClient(
            self.placement.client, leftovers=self.leftovers), how), self.instance.uuid, migration.uuid)

    def revert(self, migration: fixtures.Migration) -> None:
        """What the host does of a revert, which placement refuses."""
        self.conflict(migration, vocabulary.REVERT)
        self.host.machine.delete_guest(self.instance.uuid)
        self.host.manager.drop_move_claim_at_dest(self.host.context, self.instance, migration)
        self.host.boot(self.instance)
        migration.status = 'reverted'

    def test_that_was_confirmed_and_waits_for_nothing_is_removed(self) -> None:
        migration = self.resize(self.instance, '_p1')
        self.conflict(migration)
        self.assertEqual([], self.found())              # it can be reverted
        self.confirm(self.instance, migration)
        self.assertEqual([(migration.uuid, audit.LEFT_OVER_MIGRATION, audit.REMOVE)], self.found())
        self.repaired(f'remove {migration.uuid}')
        self.assertEqual(({}, []), (self.held(migration), self.leftovers.kept()))
        self.assertEqual({self.node: CPU, self.providers['_p1']: {VGPU: 1}}, self.held(self.instance))

    def test_that_was_reverted_on_the_host_alone_is_reverted_here_too(self) -> None:
        migration = self.resize(self.instance, '_p1')
        self.revert(migration)
        self.assertCountEqual([(self.instance.uuid, audit.WRONG_PROVIDER, audit.REVERT),
                               (migration.uuid, audit.LEFT_OVER_MIGRATION, audit.REVERT)], self.found())
        self.repaired(f'revert {migration.uuid}')
        self.assertEqual(({}, []), (self.held(migration), self.leftovers.kept()))
        self.assertEqual({self.node: CPU, self.providers['_p0']: {VGPU: 1}}, self.held(self.instance))

    def test_that_was_reverted_and_changes_between_the_two_looks_is_left_for_the_next_run(self) -> None:
        migration = self.resize(self.instance, '_p1')
        self.revert(migration)
        looks: list[auditors.HostView] = []

        def look() -> auditors.HostView:
            if looks:
                self.write(migration.uuid, self.held(migration), values.MIGRATION)
            looks.append(auditors.HostView(self.host.manager.providers(), self.host.manager.state().complete,
                                           self.host.manager.assignments(), self.host.manager.usage()))
            return looks[-1]

        plan, left = auditors.Auditor(self.placement.client, look, tree.NESTED, self.host.manager.state().classes,
                                      self.leftovers).plan()
        self.assertEqual((2, [], [self.instance.uuid]), (len(looks), plan, [one.consumer for one in left]))
        self.repaired(f'revert {migration.uuid}')

    def test_that_was_reverted_to_where_the_devices_count_the_same_is_reverted_here_too(self) -> None:
        before = self.held(self.instance)
        migration = self.resize(self.instance, '_p0')
        self.write(self.instance.uuid, {self.node: {'VCPU': 8}, self.providers['_p0']: {VGPU: 1}})
        self.revert(migration)
        self.assertEqual([(migration.uuid, audit.LEFT_OVER_MIGRATION, audit.REVERT)], self.found())
        plan = self.run_audit('--repair', '--dry-run', '-f', 'json').data
        self.assertEqual([
            ('revert', migration.uuid, self.instance.uuid, before, {}),
            ('revert', self.instance.uuid, self.instance.uuid, {**before, self.node: {'VCPU': 8}}, before),
        ], [tuple(one[name] for name in ('verb', 'consumer', 'instance_uuid', 'before', 'after')) for one in plan])
        self.repaired(f'revert {migration.uuid}')
        self.assertEqual((before, {}, []), (self.held(self.instance), self.held(migration), self.leftovers.kept()))

    def test_what_changed_after_the_plan_is_left_for_the_next_run(self) -> None:
        for verb, changed in ((audit.REMOVE, 'migration'), (audit.REVERT, 'migration'), (audit.REVERT, 'instance')):
            self.instance = self.spawn('_p0')
            migration = self.resize(self.instance, '_p1')
            if verb == audit.REMOVE:
                self.conflict(migration)
                self.confirm(self.instance, migration)
            else:
                self.revert(migration)
            consumer = {'migration': migration.uuid, 'instance': self.instance.uuid}[changed]
            more = {**self.held(consumer), self.node: {'VCPU': 16}}
            self.placement.proxy.before_next(*worlds.CASES['move' if verb == audit.REVERT else 'confirm'].writes,
                                             functools.partial(self.write, consumer, more, self.direct.get_allocations(
                                                 consumer).type))
            answer = self.run_audit('--repair')
            self.assertEqual((3, more), (answer.code, self.held(consumer)))
            self.assertIn(f'not done: {verb} {migration.uuid}: ', answer.err)
            self.assertEqual([migration.uuid], [note.migration_uuid for note in self.leftovers.kept()])
            self.repaired(f'{verb} {migration.uuid}')
            self.assertEqual(({}, []), (self.held(migration), self.leftovers.kept()))

    def test_that_was_reverted_by_a_damaged_note_is_left_and_the_others_are_repaired(self) -> None:
        migration = self.resize(self.instance, '_p1')
        self.revert(migration)
        [note] = self.leftovers.kept()
        self.leftovers.record(note._replace(own='{"x": {"VC'))
        held = self.held(migration)
        self.instance = self.spawn('_p0')
        confirmed = self.resize(self.instance, '_p1')
        self.conflict(confirmed)
        self.confirm(self.instance, confirmed)
        answer = self.run_audit('--repair')
        self.assertEqual((3, f'devicetrack-manage: done: remove {confirmed.uuid}'),
                         (answer.code, answer.err.splitlines()[0]))
        self.assertEqual([{}, held], [self.held(one) for one in (confirmed, migration)])

    def test_that_was_reverted_without_a_note_is_left_to_the_service(self) -> None:
        migration = self.resize(self.instance, '_p1')
        self.host.machine.delete_guest(self.instance.uuid)
        self.host.manager.drop_move_claim_at_dest(self.host.context, self.instance, migration)
        self.host.boot(self.instance)
        migration.status = 'reverted'
        self.assertCountEqual([(self.instance.uuid, audit.WRONG_PROVIDER, None),
                               (migration.uuid, audit.LEFT_OVER_MIGRATION, None)], self.found())
        answer = self.run_audit('--repair')
        self.assertEqual((3, 'devicetrack-manage: 2 findings are left: see devicetrack-manage placement audit'),
                         (answer.code, answer.err.splitlines()[-1]))
        self.allocations.revert(self.instance.uuid, migration.uuid)
        self.assertEqual([], self.found())

    def test_that_has_just_begun_keeps_everything_as_it_is(self) -> None:
        """Between placement's part of a move and the manager's, to another host and on this one."""
        other = self.spawn('_p0')
        self.write(other.uuid, {self.node: CPU, self.providers['_p1']: {VGPU: 1}})
        self.assertEqual([(other.uuid, audit.WRONG_PROVIDER, audit.ALLOCATE)], self.found())
        elsewhere = self.placement.provider(VCPU=8, VGPU=8)
        for new in ({elsewhere: {**CPU, VGPU: 1}}, {self.node: CPU, self.providers['_p1']: {VGPU: 1}},
                    {self.node: CPU, self.providers['_p0']: {VGPU: 1}}):
            migration = str(uuid.uuid4())
            self.allocations.move(self.instance.uuid, migration, new)
            self.assertEqual({None}, {repair for _consumer, _kind, repair in self.found()})
            before = [self.held(one) for one in (self.instance, migration, other)]
            self.run_audit('--repair')
            self.assertEqual(before, [self.held(one) for one in (self.instance, migration, other)])
            self.allocations.revert(self.instance.uuid, migration)


class TestRequests(AuditTestCase):
    def test_are_as_many_as_providers_and_differing_consumers(self) -> None:
        guests = [self.spawn(card) for card in ('_p0', '_p1') for _guest in range(3)]
        manager = self.host.manager
        auditor = auditors.Auditor(
            self.placement.client,
            lambda: auditors.HostView(manager.providers(), manager.state().complete, manager.assignments(),
                                      manager.usage()),
            tree.NESTED, manager.state().classes, self.leftovers)
        self.assertEqual([], auditor.audit())
        for differing in (0, 1, 2):
            before = len(self.placement.requests)
            self.assertEqual(differing, len(auditor.audit()))
            self.assertEqual(2 * (2 + 3 + differing), len(self.placement.requests) - before)
            self.direct.delete_allocations(guests[differing].uuid)


class TestRandom(AuditTestCase):
    """Whatever others do to allocations, what is certain is put right, and all else stays as it is."""

    scenarios = [(f'seed {seed}', {'seed': seed}) for seed in range(4)]
    seed: int

    def test_everything_certain_is_put_right(self) -> None:
        lots = random.Random(self.seed)
        cards = ['_p0', '_p1']
        guests = [self.spawn(lots.choice(cards)) for _guest in range(5)]
        unknown = str(uuid.uuid4())
        disturbed: set[str] = set()
        for _disturbance in range(6):
            consumer = lots.choice([*guests, None])
            uuid_of = unknown if consumer is None else consumer.uuid
            resources = {self.node: CPU, self.providers[lots.choice(cards)]: {VGPU: lots.choice((1, 2))}}
            try:
                self.write(uuid_of, resources)
            except errors.NoCapacity:
                continue
            disturbed.add(uuid_of)
        theirs = self.held(unknown)
        for _run in range(2 * len(guests)):
            if not any(repair for _consumer, _kind, repair in self.found()):
                break
            self.run_audit('--repair')
        shares = expected.shares(self.host.records(), self.node, tree.NESTED)
        self.assertEqual({guest.uuid: {self.node: CPU, **shares[guest.uuid].held} for guest in guests},
                         {guest.uuid: self.held(guest) for guest in guests})
        self.assertEqual(theirs, self.held(unknown))
        self.assertEqual([(unknown, audit.UNRECORDED, None)] if theirs else [], self.found())
