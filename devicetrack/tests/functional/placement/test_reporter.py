"""Reports to a real placement server, beside others who write to the same providers."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
import uuid

from devicetrack.objects import Provider
from devicetrack.objects import traits as names
from devicetrack.placement import errors
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.placement.values import ClassInventory
from devicetrack.testing import database_servers
from devicetrack.testing import http_proxy
from devicetrack.testing import placement as placements
from devicetrack.tests import base

VGPU = 'VGPU'
PMEM = 'CUSTOM_PMEM_NAMESPACE_4GB'
NVIDIA = names.ours('vendor', 'NVIDIA')
GOLD = 'CUSTOM_GOLD'
# With SQLite the server does one thing at a time. With PostgreSQL requests meet.
DATABASES: Any = base.table(
    ('SQLite', None),
    ('PostgreSQL', database_servers.PostgreSQLServer),
    names=('database',))
ONE_LOOK = [('GET', '/resource_providers')]
PROJECT, USER = str(uuid.uuid4()), str(uuid.uuid4())


def ours(total: int, reserved: int = 0) -> ClassInventory:
    return ClassInventory(total, reserved, 1, total, 1, 1.0)


class Node:
    """A node as its manager lists it; names are unique in placement, so it has one of its own."""

    def __init__(self) -> None:
        self.uuid = str(uuid.uuid4())
        self.name = f'node-{self.uuid}'

    def uuid_of(self, name: str) -> str:
        return str(uuid.uuid5(uuid.UUID(self.uuid), name)) if name else self.uuid

    def provider(self, name: str = '', counts: Mapping[str, int] = MappingProxyType({}), reserved: int = 0,
                 traits: Iterable[str] = (), **more: int) -> Provider:
        totals = {**counts, **more}
        return Provider(uuid=self.uuid_of(name), name=f'{self.name}_{name}' if name else self.name,
                        parent_uuid=self.uuid if name else None, totals=totals,
                        reserved={one: reserved for one in totals if reserved}, traits=sorted(traits))

    def cards(self, count: int, **totals: int) -> list[Provider]:
        return [self.provider(), *(self.provider(f'card{number:03}', totals or {VGPU: 4})
                                   for number in range(count))]


class ReporterTestCase(base.TestCase):
    database: type[database_servers.Server] | None = None

    def setUp(self) -> None:
        super().setUp()
        database = self.database.shared() if self.database is not None else None
        self.server = placements.PlacementServer.shared(database)
        self.placement = self.useFixture(placements.Placement(self.server))
        self.direct = self.placement.direct
        self.node = Node()
        self.pauses: list[float] = []
        self.reporter = PlacementReporter(self.placement.client, pause=self.pauses.append)

    def sync(self, *providers: Provider, **options: Any) -> Any:
        """Report; the requests of that are in ``asked`` then."""
        self.placement.requests.clear()
        try:
            return self.reporter.sync(providers, **options)
        finally:
            self.asked = list(self.placement.requests)

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.asked if request[0] != 'GET']

    def path(self, name: str, what: str = '') -> str:
        return f'/resource_providers/{self.node.uuid_of(name)}{what}'

    def said(self, name: str = '') -> tuple[dict[str, ClassInventory], set[str]]:
        """What placement says of a provider."""
        provider = self.node.uuid_of(name)
        return (dict(self.direct.get_inventories(provider).inventories), set(self.direct.get_traits(provider).traits))

    def there(self) -> set[str]:
        return {one.name.removeprefix(f'{self.node.name}_') for one in self.direct.get_tree(self.node.uuid)}

    def somebody_counts(self, name: str, **inventories: ClassInventory) -> None:
        provider = self.node.uuid_of(name)
        now = self.direct.get_inventories(provider)
        self.direct.put_inventories(provider, now.generation, {**now.inventories, **inventories})

    def somebody_sets(self, name: str, trait: str) -> None:
        self.direct.ensure_trait(trait)
        now = self.direct.get_traits(self.node.uuid_of(name))
        self.direct.put_traits(self.node.uuid_of(name), now.generation, now.traits | {trait})

    def somebody_aggregates(self, name: str) -> None:
        self.direct._send('PUT', self.path(name, '/aggregates'), {
            'resource_provider_generation': self.direct.get_provider(self.node.uuid_of(name)).generation,
            'aggregates': [str(uuid.uuid4())]})

    def allocate(self, name: str, **resources: int) -> values.Consumer:
        """An instance with devices of a provider, as placement has it afterwards."""
        instance = str(uuid.uuid4())
        self.direct.replace_allocations([values.Consumer(
            instance, {self.node.uuid_of(name): resources}, None, PROJECT, USER, values.INSTANCE)])
        return self.direct.get_allocations(instance)

    def deallocate(self, instance: values.Consumer) -> None:
        self.direct.delete_allocations(instance.uuid)


class TestReport(ReporterTestCase):
    def test_makes_the_tree_with_classes_and_traits_that_are_missing(self) -> None:
        flavor_of_memory = f'CUSTOM_PMEM_NAMESPACE_{uuid.uuid4().hex.upper()}'
        report = self.sync(self.node.provider('', {flavor_of_memory: 3}, reserved=1),
                           self.node.provider('card', VGPU=4, traits=[NVIDIA]),
                           self.node.provider('numa0', traits=[names.NUMA_ROOT]))
        self.assertEqual(({flavor_of_memory: ours(3, 1)}, {tree.mark(tree.COUNTS, flavor_of_memory)}), self.said())
        self.assertEqual(({VGPU: ours(4)}, {NVIDIA, tree.MADE, tree.mark(tree.COUNTS, VGPU)}), self.said('card'))
        self.assertEqual(({}, {names.NUMA_ROOT, tree.MADE, tree.mark(tree.SETS, names.NUMA_ROOT)}),
                         self.said('numa0'))
        below = {one.name: one.parent_uuid for one in self.direct.get_tree(self.node.uuid)}
        self.assertEqual({self.node.name: None, f'{self.node.name}_card': self.node.uuid,
                          f'{self.node.name}_numa0': self.node.uuid}, below)
        self.assertEqual((3, (), {}), (len(report.changes), report.left, report.refused))

    def test_makes_a_class_whose_name_is_a_trait_already(self) -> None:
        name = f'CUSTOM_{uuid.uuid4().hex.upper()}'
        self.direct.ensure_trait(name)
        report = self.sync(self.node.provider('', {name: 2}))
        self.assertEqual(({}, {name: ours(2)}), (report.refused, self.said()[0]))

    def test_makes_a_trait_whose_name_is_a_class_already(self) -> None:
        name = f'CUSTOM_{uuid.uuid4().hex.upper()}'
        report = self.sync(self.node.provider('', {name: 2}, traits=[name]))
        inventories, traits = self.said()
        self.assertEqual(({}, {name: ours(2)}, True), (report.refused, inventories, name in traits))

    def test_makes_a_class_of_many_providers_once(self) -> None:
        name = f'CUSTOM_{uuid.uuid4().hex.upper()}'
        self.sync(*self.node.cards(3, **{name: 1}))
        self.assertEqual(1, self.asked.count(('PUT', f'/resource_classes/{name}')))

    def test_in_a_steady_state_reads_once_and_writes_nothing(self) -> None:
        providers = self.node.cards(3)
        self.sync(*providers)
        for _report in range(3):
            self.assertEqual((), self.sync(*providers).changes)
            self.assertEqual(ONE_LOOK, self.asked)

    def test_of_a_new_process_reads_each_provider_and_writes_nothing(self) -> None:
        providers = self.node.cards(3)
        self.sync(*providers)
        self.reporter = PlacementReporter(self.placement.client)
        self.sync(*providers)
        self.assertEqual((9, []), (len(self.asked), self.writes))

    def test_writes_only_what_changed(self) -> None:
        providers = self.node.cards(3)
        self.sync(*providers)
        self.sync(*providers[:-1], self.node.provider('card002', VGPU=4, reserved=1))
        self.assertEqual([('PUT', self.path('card002', '/inventories'))], self.writes)
        self.assertEqual({*ONE_LOOK, *(('GET', self.path(name, '/usages')) for name in ('', 'card002'))},
                         set(self.asked) - set(self.writes))
        self.assertEqual({VGPU: ours(4, 1)}, self.said('card002')[0])

    def test_reads_again_what_others_changed(self) -> None:
        providers = self.node.cards(3)
        self.sync(*providers)
        self.allocate('card001', VGPU=1)
        self.somebody_counts('card002', VGPU=ClassInventory(100))
        self.sync(*providers)
        self.assertEqual([('PUT', self.path('card002', '/inventories'))], self.writes)
        self.assertEqual({self.path(name, what) for name in ('card001', 'card002')
                          for what in ('/traits', '/inventories')},
                         {path for method, path in self.asked[1:] if method == 'GET'})

    def test_leaves_alone_what_others_wrote(self) -> None:
        self.direct.ensure_class('CUSTOM_THEIRS')
        self.sync(*self.node.cards(2))
        processors = ClassInventory(8, 2, 1, 8, 1, 4.0)
        self.somebody_counts('', VCPU=processors)
        self.somebody_counts('card000', CUSTOM_THEIRS=ClassInventory(5))
        for name in ('', 'card000', 'card001'):
            self.somebody_sets(name, GOLD)
            self.somebody_aggregates(name)
        aggregates = [self.direct.get_aggregates(self.node.uuid_of(name)) for name in ('', 'card000')]
        report = self.sync(self.node.provider('', {PMEM: 2}), self.node.provider('card000', VGPU=2))
        self.assertEqual({'VCPU': processors, PMEM: ours(2)}, self.said()[0])
        self.assertEqual({'CUSTOM_THEIRS': ClassInventory(5), VGPU: ours(2)}, self.said('card000')[0])
        self.assertEqual(({}, {GOLD, tree.MADE}), self.said('card001'))     # gone, and not theirs alone to take away
        self.assertTrue(all(GOLD in self.said(name)[1] for name in ('', 'card000')))
        self.assertEqual(aggregates, [self.direct.get_aggregates(self.node.uuid_of(name))
                                      for name in ('', 'card000')])
        self.assertEqual(((), {}), (report.left, report.refused))

    def test_has_nothing_to_do_with_providers_of_others(self) -> None:
        bridge = self.placement.provider(None, f'bridge-{self.node.name}', NET_BW_EGR_KILOBIT_PER_SEC=1000)
        self.sync(*self.node.cards(1))
        self.direct._send('PUT', f'/resource_providers/{bridge}', {
            'name': f'bridge-{self.node.name}', 'parent_provider_uuid': self.node.uuid})
        before = self.direct.get_provider(bridge)
        self.sync(*self.node.cards(1))
        self.assertEqual([*ONE_LOOK, ('GET', f'/resource_providers/{bridge}/traits')], self.asked)
        self.sync(*self.node.cards(1))
        self.assertEqual(ONE_LOOK, self.asked)
        self.assertEqual(before, self.direct.get_provider(bridge))

    def test_tells_of_its_progress(self) -> None:
        heard: list[tuple[str, int, int]] = []
        self.sync(*self.node.cards(5), progress=lambda *what: heard.append(what))
        self.assertEqual([('written', done, 6) for done in range(2, 7)], heard[1:])
        self.reporter = PlacementReporter(self.placement.client)
        heard.clear()
        self.sync(*self.node.cards(5), progress=lambda *what: heard.append(what))
        self.assertEqual([('read', done, 6) for done in range(1, 7)], heard)

    def test_of_what_was_tried_only_writes_nothing_and_says_what_would_be_done(self) -> None:
        self.sync(*self.node.cards(2))
        self.allocate('card001', VGPU=1)
        wanted = [self.node.provider('', {PMEM: 2}), self.node.provider('card000', VGPU=2),
                  self.node.provider('card002')]
        tried = self.sync(*wanted, dry_run=True)
        self.assertEqual([], self.writes)
        self.assertEqual({VGPU: ours(4)}, self.said('card000')[0])
        done = self.sync(*wanted)
        self.assertEqual(tree.facts(tried.difference), tree.facts(done.difference))
        self.assertEqual((), self.sync(*wanted, dry_run=True).changes)


class TestVanished(ReporterTestCase):
    def test_provider_goes(self) -> None:
        self.sync(*self.node.cards(2))
        self.sync(*self.node.cards(1))
        self.assertEqual([('DELETE', self.path('card001'))], self.writes)
        self.assertEqual({self.node.name, 'card000'}, self.there())

    def test_provider_with_allocations_has_no_room_and_is_reported_until_they_are_gone(self) -> None:
        self.sync(*self.node.cards(2))
        instance = self.allocate('card001', VGPU=3)
        report = self.sync(*self.node.cards(1))
        self.assertEqual([tree.Left(self.node.uuid_of('card001'), f'{self.node.name}_card001', VGPU, 3)],
                         list(report.left))
        self.assertEqual({VGPU: ours(4, 1)}, self.said('card001')[0])
        self.assertEqual(instance, self.direct.get_allocations(instance.uuid))
        again = self.sync(*self.node.cards(1))
        self.assertEqual((report.left, {*ONE_LOOK, *(('GET', self.path(name, '/usages')) for name in ('', 'card001'))}),
                         (again.left, set(self.asked)))
        self.deallocate(instance)
        self.assertEqual((), self.sync(*self.node.cards(1)).left)
        self.assertNotIn('card001', self.there())

    def test_owners_of_what_is_gone_or_withheld_may_change_their_allocations_at_an_older_server(self) -> None:
        """Placement before 14.0 refuses an allocation beyond the capacity, also if it was there before."""
        self.sync(*self.node.cards(3))
        for wanted in ([self.node.provider('', {PMEM: 2}), self.node.provider('card000', VGPU=4, reserved=4)],
                       [self.node.provider('', {PMEM: 2})], self.node.cards(1)):
            owners = [self.allocate(name, VGPU=amount) for name, amount in (('card000', 4), ('card001', 3))]
            self.sync(*wanted)
            for name, used in (('card000', 4), ('card001', 3)):
                [inventory] = self.said(name)[0].values()
                self.assertLessEqual(used, inventory.total - inventory.reserved)
            for owner in owners:                # every change of an allocation writes all of it
                self.direct.replace_allocations([owner])
                self.deallocate(owner)
            self.sync(*self.node.cards(3))

    def test_provider_that_comes_back_has_room_again(self) -> None:
        self.sync(*self.node.cards(2))
        instance = self.allocate('card001', VGPU=3)
        self.sync(*self.node.cards(1))
        self.assertEqual((), self.sync(*self.node.cards(2)).left)
        self.assertEqual({VGPU: ours(4)}, self.said('card001')[0])
        self.assertEqual(instance, self.direct.get_allocations(instance.uuid))

    def test_provider_that_gets_an_allocation_at_this_moment_is_not_taken_away(self) -> None:
        self.sync(*self.node.cards(2))
        self.placement.proxy.before_next('DELETE', self.path('card001'), lambda: self.allocate('card001', VGPU=1))
        report = self.sync(*self.node.cards(1))
        self.assertEqual([1], [left.used for left in report.left])
        self.assertEqual({VGPU: ours(4, 3)}, self.said('card001')[0])

    def test_class_that_gets_an_allocation_at_this_moment_stays(self) -> None:
        self.sync(self.node.provider('', {PMEM: 2, VGPU: 2}))
        self.placement.proxy.before_next('PUT', self.path('', '/inventories'), lambda: self.allocate('', VGPU=1))
        report = self.sync(self.node.provider('', {PMEM: 2}))
        self.assertEqual([(VGPU, 1)], [(left.resource_class, left.used) for left in report.left])
        self.assertEqual({PMEM: ours(2), VGPU: ours(2, 1)}, self.said()[0])

    def test_nothing_goes_when_a_part_of_the_host_is_unknown(self) -> None:
        self.sync(*self.node.cards(2))
        report = self.sync(*self.node.cards(1), complete=False)
        self.assertEqual([None], [left.used for left in report.left])
        self.assertEqual({VGPU: ours(4, 4)}, self.said('card001')[0])
        self.sync(*self.node.cards(2))
        self.assertEqual({VGPU: ours(4)}, self.said('card001')[0])


class TestConflict(ReporterTestCase):
    scenarios = DATABASES

    def between(self, times: int = 1) -> None:
        """Somebody else sets a trait just before we write, so often."""
        for number in range(times):
            self.placement.proxy.before_next('PUT', self.path('card000', '/inventories'),
                                             lambda trait=f'{GOLD}_{number}': self.somebody_sets('card000', trait))

    def test_is_read_again_and_what_the_other_wrote_stays(self) -> None:
        self.sync(*self.node.cards(2))
        self.between()
        report = self.sync(*self.node.cards(2, VGPU=3))
        self.assertEqual({}, report.refused)
        self.assertEqual({VGPU: ours(3)}, self.said('card000')[0])
        self.assertIn(f'{GOLD}_0', self.said('card000')[1])
        self.assertEqual([*ONE_LOOK, ('PUT', self.path('card000', '/inventories')),
                          *ONE_LOOK, ('GET', self.path('card000', '/traits')),
                          ('GET', self.path('card000', '/inventories')),
                          ('PUT', self.path('card000', '/inventories')),
                          ('PUT', self.path('card001', '/inventories'))], self.asked)

    def test_that_never_ends_is_given_up_and_others_are_reported(self) -> None:
        self.sync(*self.node.cards(2))
        self.between(times=5)
        report = self.sync(*self.node.cards(2, VGPU=3))
        self.assertEqual({self.node.uuid_of('card000'): errors.ProviderConflict},
                         {one: type(error) for one, error in report.refused.items()})
        self.assertEqual({VGPU: ours(4)}, self.said('card000')[0])
        self.assertEqual({VGPU: ours(3)}, self.said('card001')[0])
        for pause, most in zip(self.pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
            self.assertTrue(most / 2 <= pause <= most, self.pauses)
        self.assertEqual(({}, 0), (self.sync(*self.node.cards(2, VGPU=3)).refused, self.placement.proxy.staged))
        self.assertEqual({VGPU: ours(3)}, self.said('card000')[0])

    def test_that_keeps_room_at_one_provider_gives_none_to_others(self) -> None:
        self.sync(*self.node.cards(2), layout=tree.FLAT)
        for number in range(5):
            self.placement.proxy.before_next('PUT', self.path('', '/inventories'),
                                             lambda trait=f'{GOLD}_{number}': self.somebody_sets('', trait))
        report = self.sync(*self.node.cards(2))
        self.assertEqual([self.node.uuid], [*report.refused])
        self.assertEqual(({VGPU: ours(8)}, {VGPU: ours(4, 4)}, {VGPU: ours(4, 4)}),
                         tuple(self.said(name)[0] for name in ('', 'card000', 'card001')))
        self.assertEqual(({}, 0), (self.sync(*self.node.cards(2)).refused, self.placement.proxy.staged))
        self.assertEqual(({}, {VGPU: ours(4)}, {VGPU: ours(4)}),
                         tuple(self.said(name)[0] for name in ('', 'card000', 'card001')))

    def test_with_a_provider_that_is_taken_away_at_this_moment(self) -> None:
        self.sync(*self.node.cards(2))
        self.placement.proxy.before_next('PUT', self.path('card000', '/inventories'),
                                         lambda: self.direct.delete_provider(self.node.uuid_of('card000')))
        self.assertEqual({}, self.sync(*self.node.cards(2, VGPU=3)).refused)
        self.assertEqual({VGPU: ours(3)}, self.said('card000')[0])

    def test_with_the_name_of_a_child_keeps_no_other_from_being_reported(self) -> None:
        self.placement.provider(None, f'{self.node.name}_card000')
        report = self.sync(*self.node.cards(2))
        self.assertEqual({self.node.uuid_of('card000'): errors.ProviderExists},
                         {one: type(error) for one, error in report.refused.items()})
        self.assertEqual({VGPU: ours(4)}, self.said('card001')[0])

    def test_with_the_name_of_the_node_is_an_error(self) -> None:
        self.placement.provider(None, self.node.name)
        self.assertRaises(errors.ProviderExists, self.sync, *self.node.cards(1))

    def test_of_two_processes_that_report_the_same(self) -> None:
        self.sync(*self.node.cards(4))
        reporters = [PlacementReporter(self.placement.open(self.placement.url)) for _process in range(2)]
        reports = self.together(*[lambda reporter=reporter: reporter.sync(self.node.cards(4, VGPU=3))
                                  for reporter in reporters])
        self.assertEqual([{}, {}], [report.refused for report in reports])
        self.assertEqual([{VGPU: ours(3)}] * 4, [self.said(f'card{number:03}')[0] for number in range(4)])

    def test_while_others_allocate_loses_nothing(self) -> None:
        self.sync(*self.node.cards(2, VGPU=40))
        instances: list[values.Consumer] = []

        def spawn() -> None:
            client = self.placement.open(self.placement.url)
            for number in range(10):
                consumer = values.Consumer(str(uuid.uuid4()), {self.node.uuid_of(f'card{number % 2:03}'): {VGPU: 1}},
                                           None, PROJECT, USER, values.INSTANCE)
                for _attempt in range(100):
                    try:
                        client.replace_allocations([consumer])
                    except errors.GenerationConflict:
                        continue
                    instances.append(consumer)
                    break

        # Others allocate all the time, so each report may lose more often than reports do.
        reporter = PlacementReporter(self.placement.open(self.placement.url), attempts=100)

        def report() -> list[Any]:
            return [reporter.sync(self.node.cards(2, VGPU=40 + number)) for number in range(10)]

        answers = self.together(spawn, report)
        self.assertEqual([{}] * 10, [one.refused for one in answers[1]])
        self.assertEqual((None, 10), (answers[0], len(instances)))
        self.assertEqual([{VGPU: ours(49)}] * 2, [self.said(f'card{number:03}')[0] for number in range(2)])
        for consumer in instances:
            self.assertEqual(consumer.resources, self.direct.get_allocations(consumer.uuid).resources)


class TestLost(ReporterTestCase):
    """A request or its answer is lost on the way, and sent again by the adapter."""

    database = None
    scenarios = [(f'{loss.name.lower()} of {method} {what or "provider"}',
                  {'loss': loss, 'method': method, 'what': what})
                 for loss in http_proxy.Loss
                 for method, what in (('POST', ''), ('PUT', '/traits'), ('PUT', '/inventories'), ('DELETE', ''))]

    def test_changes_nothing_about_the_outcome(self) -> None:
        self.sync(*self.node.cards(1), self.node.provider('gone', VGPU=1))
        where = {'POST': '/resource_providers', 'DELETE': self.path('gone')}.get(
            self.method, self.path('card000', self.what))
        self.placement.proxy.at_next(self.method, where, self.loss)
        changed = self.node.provider('card000', VGPU=3, traits=[NVIDIA])
        report = self.sync(self.node.provider(), changed, self.node.provider('new', VGPU=2))
        self.assertEqual(({}, 0), (report.refused, self.placement.proxy.staged))
        self.assertEqual({self.node.name, 'card000', 'new'}, self.there())
        self.assertEqual(({VGPU: ours(3)}, {NVIDIA, tree.MADE, tree.mark(tree.COUNTS, VGPU)}), self.said('card000'))
        self.assertEqual(({VGPU: ours(2)}, {tree.MADE, tree.mark(tree.COUNTS, VGPU)}), self.said('new'))


class Dying(Client):
    """The client of a process that ends at its second write to a provider."""

    def __init__(self, client: Client) -> None:
        super().__init__(client._adapter)
        self.alive = True

    def _send(self, method: str, path: str, *args: Any, **options: Any) -> Any:
        if method != 'GET' and path.startswith('/resource_providers'):
            if not self.alive:
                raise KeyboardInterrupt()
            self.alive = False
        return super()._send(method, path, *args, **options)


class TestInterrupted(ReporterTestCase):
    scenarios = DATABASES

    OLD_CLASS = 'CUSTOM_OLD'

    def room(self) -> collections.Counter[str]:
        """What the scheduler may hand out, by class."""
        found: collections.Counter[str] = collections.Counter()
        for one in self.direct.get_tree(self.node.uuid):
            for name, inventory in self.direct.get_inventories(one.uuid).inventories.items():
                found[name] += inventory.total - inventory.reserved
        return found

    def test_after_any_write_a_later_process_goes_on(self) -> None:
        """And at no moment is more free than there was before or will be afterwards."""
        old = [self.node.provider('', {PMEM: 3}), self.node.provider('card', VGPU=4, traits=[NVIDIA]),
               self.node.provider('gone', VGPU=1), self.node.provider('held', {VGPU: 2, self.OLD_CLASS: 2})]
        new = [self.node.provider('', {PMEM: 1}), self.node.provider('card', VGPU=2, reserved=1),
               self.node.provider('numa0', {PMEM: 2}, traits=[names.NUMA_ROOT])]
        PlacementReporter(self.direct).sync(old)
        self.allocate('held', VGPU=1)
        for providers, below in ((new, {'card', 'held', 'numa0'}), (old, {'card', 'held', 'gone'})):
            before, moments = self.room(), []
            while True:
                try:
                    PlacementReporter(Dying(self.direct)).sync(providers)
                    break
                except KeyboardInterrupt:
                    moments.append(self.room())
            self.assertLess(5, len(moments))
            self.assertEqual([], [moment for moment in moments if not moment <= before | self.room()])
            self.assertEqual((), PlacementReporter(self.direct).sync(providers).changes)
            self.assertEqual({self.node.name, *below}, self.there())
            held = {VGPU: ours(2, 1)} if providers is new else {VGPU: ours(2), self.OLD_CLASS: ours(2)}
            self.assertEqual(held, self.said('held')[0])


class TestServerDown(base.TestCase):
    def test_a_later_report_goes_on(self) -> None:
        server = placements.PlacementServer.shared()
        placement = self.useFixture(placements.Placement(server))
        node, reporter = Node(), PlacementReporter(placement.client)
        placement.proxy.before_next('PUT', f'/resource_providers/{node.uuid_of("card001")}', server.stop)
        self.assertRaises(errors.PlacementUnavailable, reporter.sync, node.cards(3))
        self.assertRaises(errors.PlacementUnavailable, reporter.sync, node.cards(3))
        server.start()
        self.assertEqual({}, reporter.sync(node.cards(3)).refused)
        self.assertEqual({node.uuid: {}, **{node.uuid_of(f'card{number:03}'): {VGPU: ours(4)} for number in range(3)}},
                         {one.uuid: placement.direct.get_inventories(one.uuid).inventories
                          for one in placement.direct.get_tree(node.uuid)})
        placement.requests.clear()
        self.assertEqual((), reporter.sync(node.cards(3)).changes)
        self.assertEqual(ONE_LOOK, placement.requests)


class TestLayout(ReporterTestCase):
    def test_flat_counts_everything_at_the_node(self) -> None:
        report = self.sync(self.node.provider('', {PMEM: 1}), *self.node.cards(2)[1:], layout=tree.FLAT)
        self.assertEqual((tree.FLAT, {PMEM: ours(1), VGPU: ours(8)}), (report.layout, self.said()[0]))
        self.assertEqual({self.node.name}, self.there())

    def test_announced_lets_nothing_be_scheduled_to_children(self) -> None:
        self.sync(*self.node.cards(2), layout=tree.ANNOUNCED)
        self.assertEqual({VGPU: ours(8)}, self.said()[0])
        self.assertEqual({VGPU: ours(4, 4)}, self.said('card001')[0])
        self.assertRaises(errors.NoCapacity, self.allocate, 'card001', VGPU=1)

    def test_announced_is_over_when_somebody_has_moved_the_devices(self) -> None:
        self.sync(*self.node.cards(2), layout=tree.ANNOUNCED)
        self.sync(*self.node.cards(2), layout=tree.ANNOUNCED)
        self.assertEqual(ONE_LOOK, self.asked)
        instance = self.allocate('', VGPU=2)
        generations = {one.uuid: one.generation for one in self.direct.get_tree(self.node.uuid)}
        card = self.node.uuid_of('card001')
        self.direct.reshape({
            self.node.uuid: values.Inventories(generations[self.node.uuid], {}),
            card: values.Inventories(generations[card], {VGPU: ours(4)}),
        }, [instance._replace(resources={card: {VGPU: 2}})])
        self.assertEqual(tree.NESTED, self.sync(*self.node.cards(2), layout=tree.ANNOUNCED).layout)
        self.assertEqual(({}, {VGPU: ours(4)}, {VGPU: ours(4)}),
                         (self.said()[0], self.said('card000')[0], self.said('card001')[0]))

    def test_flat_without_guests_becomes_nested(self) -> None:
        self.sync(*self.node.cards(2), layout=tree.FLAT)
        self.sync(*self.node.cards(2))
        self.assertEqual(({}, set()), self.said())
        self.assertEqual({VGPU: ours(4)}, self.said('card001')[0])

    def test_nested_is_only_announced_while_devices_are_allocated_at_the_node(self) -> None:
        self.sync(*self.node.cards(2), layout=tree.FLAT)
        instance = self.allocate('', VGPU=1)
        report = self.sync(*self.node.cards(2))
        self.assertEqual((tree.ANNOUNCED, {VGPU: ours(8)}, {VGPU: ours(4, 4)}),
                         (report.layout, self.said()[0], self.said('card001')[0]))
        self.sync(*self.node.cards(2))
        self.assertEqual({*ONE_LOOK, *(('GET', self.path(name, '/usages')) for name in ('', 'card000', 'card001'))},
                         set(self.asked))
        self.deallocate(instance)
        self.assertEqual(tree.NESTED, self.sync(*self.node.cards(2)).layout)
        self.assertEqual(({}, {VGPU: ours(4)}), (self.said()[0], self.said('card001')[0]))

    def test_nested_stays_while_devices_are_allocated_at_their_providers(self) -> None:
        self.sync(*self.node.cards(2))
        instance = self.allocate('card001', VGPU=1)
        self.assertEqual(tree.NESTED, self.sync(*self.node.cards(2), layout=tree.FLAT).layout)
        self.assertEqual([], self.writes)
        self.deallocate(instance)
        self.assertEqual(tree.FLAT, self.sync(*self.node.cards(2), layout=tree.FLAT).layout)
        self.assertEqual(({VGPU: ours(8)}, {self.node.name}), (self.said()[0], self.there()))

    def test_of_a_node_that_somebody_else_nested_is_taken_over(self) -> None:
        self.direct.create_provider(self.node.uuid, self.node.name, None)
        self.direct.create_provider(self.node.uuid_of('card000'), f'{self.node.name}_card000', self.node.uuid)
        self.somebody_counts('card000', VGPU=ClassInventory(16))
        self.allocate('card000', VGPU=2)
        self.assertEqual(tree.NESTED, self.sync(*self.node.cards(1), layout=tree.FLAT).layout)
        self.assertEqual(({VGPU: ours(4)}, {tree.mark(tree.COUNTS, VGPU)}), self.said('card000'))


class TestOffered(ReporterTestCase):
    """What guests have is offered to nobody, wherever it is allocated and whatever the layout is to be."""

    def offered(self, resource_class: str = VGPU) -> int:
        return sum(max(0, inventory.total - inventory.reserved - self.direct.get_usages(one.uuid).get(name, 0))
                   for one in self.direct.get_tree(self.node.uuid)
                   for name, inventory in self.direct.get_inventories(one.uuid).inventories.items()
                   if name == resource_class)

    def test_when_the_node_counts_devices_of_a_class_itself(self) -> None:
        providers = [self.node.provider('', {PMEM: 1}), self.node.provider('numa0', {PMEM: 2}),
                     self.node.provider('numa1', {PMEM: 2})]
        self.sync(*providers, layout=tree.FLAT)
        held = [self.allocate('', **{PMEM: 1}) for _guest in range(4)]
        self.assertEqual((tree.ANNOUNCED, 1), (self.sync(*providers).layout, self.offered(PMEM)))
        self.assertEqual((tree.ANNOUNCED, 1), (self.sync(*providers, layout=tree.ANNOUNCED).layout,
                                               self.offered(PMEM)))
        for instance in held[1:]:
            self.deallocate(instance)
        self.assertEqual((tree.NESTED, 4), (self.sync(*providers).layout, self.offered(PMEM)))

    def test_when_a_parent_with_guests_is_gone_or_not_read(self) -> None:
        self.sync(*self.node.cards(2))
        self.allocate('card001', VGPU=3)
        for layout in (tree.FLAT, tree.ANNOUNCED):
            for complete in (True, False):
                report = self.sync(*self.node.cards(1), layout=layout, complete=complete)
                self.assertEqual((tree.NESTED, 4), (report.layout, self.offered()))
        self.assertEqual((tree.NESTED, 5), (self.sync(*self.node.cards(2), layout=tree.FLAT).layout, self.offered()))

    def test_when_a_parent_with_guests_is_reserved_in_full(self) -> None:
        wiping = [*self.node.cards(1), self.node.provider('card001', VGPU=4, reserved=4)]
        self.sync(*wiping)
        self.sync(*self.node.cards(2))
        self.allocate('card001', VGPU=3)
        self.sync(*wiping)
        for providers, free in ((wiping, 4), (self.node.cards(2), 5)):
            self.reporter = PlacementReporter(self.placement.client)
            self.assertEqual((tree.NESTED, free), (self.sync(*providers, layout=tree.ANNOUNCED).layout,
                                                   self.offered()))

    def test_when_devices_are_allocated_at_both_levels(self) -> None:
        self.sync(*self.node.cards(2))
        below = self.allocate('card000', VGPU=3)
        self.somebody_counts('', VGPU=ours(1))
        self.allocate('', VGPU=1)
        for layout in (tree.NESTED, tree.ANNOUNCED, tree.FLAT):
            for reporter in (self.reporter, PlacementReporter(self.placement.client)):
                self.reporter = reporter
                report = self.sync(*self.node.cards(2), layout=layout)
                self.assertEqual((tree.FLAT if layout == tree.FLAT else tree.ANNOUNCED, ours(8, 3), 4),
                                 (report.layout, self.said()[0][VGPU], self.offered()))
            self.assertEqual((), self.sync(*self.node.cards(2), layout=layout).changes)
        self.deallocate(below)
        self.sync(*self.node.cards(2))
        self.assertEqual((ours(8), 7), (self.said()[0][VGPU], self.offered()))
