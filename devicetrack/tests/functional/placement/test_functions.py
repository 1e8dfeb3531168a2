"""PCI functions in placement: where they are counted, claims by what is allocated there, and healing from the node."""

from __future__ import annotations

import uuid

from devicetrack import exception
from devicetrack.objects.values import DeviceKey
from devicetrack.placement import errors
from devicetrack.placement import healer
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.allocations import AllocationClient
from devicetrack.placement.healer import Healer
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.placement.resolver import ProvidersByName
from devicetrack.testing import fixtures
from devicetrack.testing import pci as made
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import Instance
from devicetrack.tests import base
from devicetrack.tests.functional.claims import pci_hosts
from devicetrack.virt.libvirt.driver import LibvirtDriver

PROJECT, USER = 'the-project', 'the-user'
CPU = {'VCPU': 2}
DISK, CARD, VF = 'CUSTOM_DISK', 'CUSTOM_CARD', 'CUSTOM_VF'
A_DISK, A_CARD = '0000:0a:00.0', '0000:3d:00.0'


class FunctionsTestCase(base.TestCase):
    """A host in memory with two disks and a card of three virtual functions, whose service has a provider already."""

    layout = tree.NESTED

    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(placements.Placement())
        self.direct = self.placement.direct
        self.name = f'host-{uuid.uuid4()}'
        self.host = fixtures.Host(name=self.name, policy='spread', ready=False)
        self.machine = self.host.machine
        for address in (A_DISK, '0000:0b:00.0'):
            self.machine.add_function(address, DISK)
        self.machine.add_card(A_CARD, 3, CARD, VF)
        self.useFixture(self.host)
        self.host.manager.init_host(None)
        self.node = next(one.uuid for one in self.host.manager.providers() if one.parent_uuid is None)
        created = self.direct.create_provider(self.node, self.name, None)
        self.direct.put_inventories(self.node, created.generation, {'VCPU': values.ClassInventory(1000)})
        self.report()

    def report(self) -> str:
        manager = self.host.manager
        return PlacementReporter(self.direct).sync(manager.providers(), self.layout, manager.state().classes,
                                                   manager.state().complete).layout

    def room(self) -> dict[str, dict[str, tuple[int, int]]]:
        """By provider and class, how many there are, and how many are reserved."""
        return {one.name.removeprefix(self.name): {
            name: (found.total, found.reserved)
            for name, found in self.direct.get_inventories(one.uuid).inventories.items() if name != 'VCPU'}
            for one in self.direct.get_tree(self.node)}

    def provider(self, address: str) -> str:
        """The UUID of a provider, by the name that Nova gives it."""
        found = self.direct.find_provider(f'{self.name}_{address.upper()}')
        assert found is not None
        return found.uuid

    def spawn(self, resources: values.Resources) -> Instance:
        """An instance with its guest, and with this allocated."""
        instance = Instance()
        self.direct.replace_allocations([values.Consumer(
            instance.uuid, {self.node: CPU, **resources}, None, PROJECT, USER, values.INSTANCE)])
        return self.host.spawn(instance, {uuid: {'resources': of} for uuid, of in resources.items()})

    def has(self, instance: Instance) -> list[str]:
        return [record.identifier for record in self.host.records(instance)]


class NestedTestCase(FunctionsTestCase):

    def test_a_card_is_a_provider_under_the_name_that_nova_gives_it(self) -> None:
        self.assertEqual({'': {}, '_0000:0A:00.0': {DISK: (1, 0)}, '_0000:0B:00.0': {DISK: (1, 0)},
                          '_0000:3D:00.0': {CARD: (1, 0), VF: (3, 0)}}, self.room())
        self.assertEqual({self.node}, {one.parent_uuid for one in self.direct.get_tree(self.node)
                                       if one.uuid != self.node})

    def test_a_claim_takes_a_function_of_the_provider_that_placement_chose(self) -> None:
        instance = self.spawn({self.provider('0000:0b:00.0'): {DISK: 1}, self.provider(A_CARD): {VF: 2}})
        self.assertEqual(['0000:0b:00.0', '0000:3d:00.1', '0000:3d:00.2'], sorted(self.has(instance)))
        refused = Instance()
        for resources in ({DISK: 2}, {VF: 1}):
            self.assertRaises(exception.NoFit, self.host.claim, refused, {
                self.provider(A_DISK): {'resources': resources}})

    def test_what_somebodys_function_excludes_is_reserved(self) -> None:
        instance = self.spawn({self.provider(A_CARD): {VF: 1}})
        self.report()
        self.assertEqual({CARD: (1, 1), VF: (3, 0)}, self.room()['_0000:3D:00.0'])
        self.assertRaises(errors.NoCapacity, self.spawn, {self.provider(A_CARD): {CARD: 1}})
        self.host.delete(instance)
        self.direct.delete_allocations(instance.uuid)
        self.report()
        whole = self.spawn({self.provider(A_CARD): {CARD: 1}})
        self.assertEqual([A_CARD], self.has(whole))
        self.report()
        self.assertEqual({CARD: (1, 0), VF: (3, 3)}, self.room()['_0000:3D:00.0'])

    def test_what_is_cordoned_or_gone_is_not_offered(self) -> None:
        self.host.manager.operator.cordon('pci', A_DISK)
        self.machine.remove(DeviceKey('pci', '0000:0b:00.0'))
        self.host.audit()
        self.report()
        self.assertEqual(({DISK: (1, 1)}, None), (self.room()['_0000:0A:00.0'], self.room().get('_0000:0B:00.0')))

    def test_a_move_between_cards_ends_with_what_each_holds(self) -> None:
        instance = self.spawn({self.provider(A_DISK): {DISK: 1}})
        client = AllocationClient(self.placement.client)
        migration = fixtures.Migration(self.name, self.name, instance.uuid)
        assert isinstance(self.host.service.moves, list)
        self.host.service.moves.append(migration)
        before = self.direct.get_allocations(instance.uuid)
        new = {self.provider('0000:0b:00.0'): {DISK: 1}}
        self.direct.replace_allocations([
            before._replace(uuid=migration.uuid, generation=None, type=values.MIGRATION),
            before._replace(resources={self.node: CPU, **new})])
        self.host.resize(instance, migration=migration, request={uuid: {'resources': of} for uuid, of in new.items()})
        self.assertEqual([(A_DISK, 'old'), ('0000:0b:00.0', 'incoming')], sorted(
            ((record.identifier, record.role) for record in self.host.records(instance)), key=lambda one: one[0]))
        self.host.resize_instance(instance, migration)
        self.host.finish_resize(instance, migration)
        self.host.confirm_resize(instance, migration)
        client.delete(migration.uuid)
        self.assertEqual(['0000:0b:00.0'], self.has(instance))
        self.assertEqual({self.node: CPU, **new}, self.direct.get_allocations(instance.uuid).resources)
        self.report()
        self.assertEqual({'_0000:0A:00.0': {DISK: (1, 0)}, '_0000:0B:00.0': {DISK: (1, 0)}}, {
            name: of for name, of in self.room().items() if DISK in of})


class HealedTestCase(FunctionsTestCase):
    """Devices were counted at the node, and are counted at their own providers from now on."""

    layout = tree.ANNOUNCED

    def test_allocations_move_to_the_cards_of_the_functions(self) -> None:
        one = self.spawn({self.node: {**CPU, VF: 1, DISK: 1}})
        other = self.spawn({self.node: {**CPU, DISK: 1}})
        manager = self.host.manager
        done = Healer(self.placement.client, attempts=5).heal(healer.NodeToHeal.of_host(
            lambda: (manager.assignments(), manager.usage()), manager.providers(), manager.state().complete))
        self.assertEqual(healer.Healing(healer.HEALED, tuple(sorted((one.uuid, other.uuid)))), done)
        for instance in (one, other):
            expected: dict[str, dict[str, int]] = {self.node: CPU}
            for record in self.host.records(instance):
                expected[self.provider(str(record.parent))] = {record.resource_class: 1}
            self.assertEqual(expected, self.direct.get_allocations(instance.uuid).resources)
        self.assertEqual(tree.NESTED, self.report())
        self.assertEqual({'': {}, '_0000:0A:00.0': {DISK: (1, 0)}, '_0000:0B:00.0': {DISK: (1, 0)},
                          '_0000:3D:00.0': {CARD: (1, 1), VF: (3, 0)}}, self.room())


class OfTheKindTestCase(base.TestCase):
    """What the kind itself reports of a host, beside a service that has made some of the providers."""

    def setUp(self) -> None:
        super().setUp()
        self.direct = self.useFixture(placements.Placement()).direct
        self.patch(LibvirtDriver, 'boot_id', lambda _driver: 'a boot')
        self.node, self.card = str(uuid.uuid4()), str(uuid.uuid4())
        self.name = f'node-{self.node}'
        self.host = pci_hosts.PCIHost(self, name=self.name, configuration=self.configuration)
        self.direct.create_provider(self.node, self.name, None)
        self.direct.create_provider(self.card, f'{self.name}_{self.host.card.upper()}', self.node)
        self.host.providers = ProvidersByName(self.direct, self.name)
        self.useFixture(self.host)

    def test_every_card_has_its_classes_and_traits_at_the_provider_that_is_there(self) -> None:
        manager = self.host.manager
        PlacementReporter(self.direct).sync(manager.providers(), tree.NESTED, manager.state().classes,
                                            manager.state().complete)
        there = {one.name.removeprefix(f'{self.name}_'): one.uuid for one in self.direct.get_tree(self.node)}
        self.assertEqual({self.name, *(address.upper() for address in (
            *self.host.disks, self.host.card, self.host.network_card, *self.host.pair))}, set(there))
        self.assertEqual(self.card, there[self.host.card.upper()])
        self.assertEqual({pci_hosts.CARD: 1, pci_hosts.VF: 3}, {
            name: one.total for name, one in self.direct.get_inventories(self.card).inventories.items()})
        self.assertLessEqual({'COMPUTE_MANAGED_PCI_DEVICE', 'CUSTOM_FAST'},
                             set(self.direct.get_traits(self.card).traits))

    def test_what_is_allocated_there_is_what_a_guest_gets(self) -> None:
        instance = self.host.spawn(request={self.card: {'resources': {pci_hosts.VF: 1}}})
        [record] = self.host.records(instance)
        self.assertEqual((self.host.vfs[0], self.card, made.VFIO_PCI), (
            record.identifier, record.provider_uuid, self.host.hardware.driver_of(self.host.vfs[0])))
