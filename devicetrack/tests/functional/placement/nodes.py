"""Hosts whose devices are counted and allocated at the node, as before their own providers were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
import uuid

import fixtures

from devicetrack.claims.report import Observer
from devicetrack.placement import expected
from devicetrack.placement import healer
from devicetrack.placement import merging
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.placement.resolver import ProvidersByName
from devicetrack.store import api as store_api
from devicetrack.testing import fixtures as host_fixtures
from devicetrack.testing import placement as placements
from devicetrack.testing.fixtures import Instance
from devicetrack.testing.fixtures import PMEM
from devicetrack.testing.fixtures import VGPU

PROJECT: Final = 'the-project'
USER: Final = 'the-user'
CPU: Final = {'VCPU': 2}                    # what the service allocates at the node beside devices


def rename(direct: Client, node: str) -> str:
    """Give a node, and the providers below it, names that are not the host's; gives the node's."""
    name = f'node-{uuid.uuid4()}'
    found = direct.get_tree(node)
    [before] = [one.name for one in found if one.uuid == node]
    for one in found:
        direct._send('PUT', f'/resource_providers/{one.uuid}', {'name': name + one.name.removeprefix(before)})
    return name


class FlatHost(fixtures.Fixture):
    """A host with parents of mediated devices and a manager, reported flat to a placement server.

    ``node`` is its provider's UUID, ``host`` the :class:`~devicetrack.testing.fixtures.Host`.
    """

    def __init__(self, placement: placements.Placement, parents: Mapping[str, int], devices: int = 0,
                 store: store_api.Store | None = None,
                 configuration: host_fixtures.Configuration | None = None) -> None:
        super().__init__()
        self.placement, self.direct = placement, placement.direct
        self.name = f'host-{uuid.uuid4()}'
        self._host = host_fixtures.Host(devices=devices, parents=parents, name=self.name, store=store, policy='spread',
                                        configuration=configuration)

    def _setUp(self) -> None:
        self.host = self.useFixture(self._host)
        self.manager = self.host.manager
        self.node = next(one.uuid for one in self.manager.providers() if one.parent_uuid is None)
        created = self.direct.create_provider(self.node, self.name, None)
        self.direct.put_inventories(self.node, created.generation, {'VCPU': values.ClassInventory(1000)})
        self.report(tree.FLAT)

    def report(self, layout: str) -> str:
        """As the service does, in another process; gives the layout that came of it."""
        return PlacementReporter(self.direct).sync(self.manager.providers(), layout, self.manager.state().classes,
                                                   self.manager.state().complete).layout

    def spawn(self, vgpu: int = 1, instance: Instance | None = None) -> Instance:
        """An instance with its guest, allocated at the node."""
        instance = instance or Instance()
        resources = {self.node: {**CPU, VGPU: vgpu}}
        self.direct.replace_allocations([
            values.Consumer(instance.uuid, resources, None, PROJECT, USER, values.INSTANCE)])
        return self.host.spawn(instance, {self.node: {'resources': {VGPU: vgpu}}})

    def delete(self, instance: Instance) -> None:
        self.host.delete(instance)
        self.direct.delete_allocations(instance.uuid)

    def resize(self, instance: Instance, vgpu: int) -> str:
        """Resize an instance on its host, up to where it waits for its confirmation; gives the migration's UUID."""
        migration = host_fixtures.Migration(self.name, self.name, instance.uuid)
        before = self.direct.get_allocations(instance.uuid)
        self.direct.replace_allocations([
            before._replace(uuid=migration.uuid, generation=None, type=values.MIGRATION),
            before._replace(resources={self.node: {**CPU, VGPU: vgpu}})])
        assert isinstance(self.host.service.moves, list)
        self.host.service.moves.append(migration)
        self.host.resize(instance, migration=migration, request={self.node: {'resources': {VGPU: vgpu}}})
        return migration.uuid

    def heal_node(self, hypervisor: bool = True) -> healer.NodeToHeal:
        """What a heal has to know, where the hypervisor can be asked or where nothing but the record is there."""
        if hypervisor:
            return healer.NodeToHeal.of_host(lambda: (self.manager.assignments(), self.manager.usage()),
                                             self.manager.providers(), self.manager.state().complete)
        return healer.NodeToHeal(self.node, lambda: (self.manager.assignments(), None))

    def held(self) -> dict[str, values.Resources]:
        """What the consumers of the whole tree hold."""
        consumers = {uuid for provider in self.direct.get_tree(self.node)
                     for uuid in self.direct.list_consumers(provider.uuid).consumers}
        return {uuid: self.direct.get_allocations(uuid).resources for uuid in consumers}

    def expected(self, layout: str) -> dict[str, values.Resources]:
        """What they should hold, with what the service allocates beside it; for hosts with nothing being released."""
        return {uuid: merging.merge({}, {self.node: CPU}, share.held) for uuid, share in expected.shares(
            self.manager.assignments(), self.node, layout).items()}

    def room(self) -> dict[str, tuple[int, int]]:
        """By provider's name without the node's, how many devices there are and how many are reserved."""
        return {one.name.removeprefix(self.name).lstrip('_'): (found.total, found.reserved)
                for one in self.direct.get_tree(self.node)
                for name, found in self.direct.get_inventories(one.uuid).inventories.items() if name == VGPU}


class EarlierHost(fixtures.Fixture):
    """A host whose rows were written before providers were looked up, on a node that the service made.

    ``instance`` has a namespace and a mediated device, allocated at the node, whose UUID is not the host's. The
    devices' own provider is announced.
    """

    def __init__(self, placement: placements.Placement, store: store_api.Store | None = None,
                 configuration: host_fixtures.Configuration | None = None) -> None:
        super().__init__()
        self.direct = placement.direct
        self.name = f'host-{uuid.uuid4()}'
        self._host = host_fixtures.Host(devices=1, parents={'p0': 1}, name=self.name, store=store,
                                        configuration=configuration)

    def _setUp(self) -> None:
        self.host = self.useFixture(self._host)
        self.instance = self.host.spawn(pmem=1, vgpu=1)
        self.node = str(uuid.uuid4())
        created = self.direct.create_provider(self.node, self.name, None)
        self.direct.put_inventories(self.node, created.generation, {'VCPU': values.ClassInventory(1000)})
        host = self.host.store.host(self.name)
        assert host is not None
        self.observer = Observer(host, self.host.driver, self.host.store, self.host.conf,
                                 ProvidersByName(self.direct, self.name))
        PlacementReporter(self.direct).sync(self.observer.providers()[0], tree.ANNOUNCED)
        self.direct.replace_allocations([values.Consumer(
            self.instance.uuid, {self.node: {**CPU, PMEM: 1, VGPU: 1}}, None, PROJECT, USER, values.INSTANCE)])

    def heal_node(self) -> healer.NodeToHeal:
        return healer.NodeToHeal.of_host(self.observer.placed, *self.observer.providers())

    def held(self) -> dict[str, Mapping[str, int]]:
        """What the instance holds, by the provider's name without the node's."""
        resources = self.direct.get_allocations(self.instance.uuid).resources
        return {one.name.removeprefix(self.name): resources[one.uuid] for one in self.direct.get_tree(self.node)
                if one.uuid in resources}
