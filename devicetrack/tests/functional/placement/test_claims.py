"""Placement lets too many through, and the claim still gives each device one owner."""

from __future__ import annotations

import threading
import uuid

from devicetrack import exception
from devicetrack.placement import errors
from devicetrack.placement import values
from devicetrack.placement.allocations import AllocationClient
from devicetrack.placement.allocations import Policies
from devicetrack.placement.allocations import Policy
from devicetrack.testing import database_servers
from devicetrack.testing import databases
from devicetrack.testing import fixtures
from devicetrack.testing import placement as placements
from devicetrack.tests import base

_WRITERS, _DEVICES = 16, 4


class TestClaims(base.TestCase):

    # With as many writers at once placement itself counts wrongly at times; told of too many it does so every time.
    scenarios = [('told the truth', {'told': _DEVICES}), ('told of more than there is', {'told': _WRITERS})]

    def setUp(self) -> None:
        super().setUp()
        database = database_servers.PostgreSQLServer.shared()
        server = placements.PlacementServer.shared(database)
        self.placement = self.useFixture(placements.Placement(server))
        self.host = self.useFixture(fixtures.Host(
            devices=_DEVICES, name=f'host-{uuid.uuid4()}', store=self.useFixture(databases.PostgreSQLStore()).store))
        [node] = self.host.manager.providers()
        self.placement.direct.ensure_class(fixtures.PMEM)
        created = self.placement.direct.create_provider(node.uuid, node.name, None)
        self.placement.direct.put_inventories(node.uuid, created.generation,
                                              {fixtures.PMEM: values.ClassInventory(self.told)})
        self.needs: values.Resources = {node.uuid: {fixtures.PMEM: 1}}
        self.node_uuid = node.uuid
        self.clients = [AllocationClient(self.placement.open(server.url), Policies(*[Policy.RETRY] * 7), attempts=20)
                        for _writer in range(_WRITERS)]
        self.at_once = threading.Barrier(_WRITERS)

    def spawn(self, client: AllocationClient) -> str | None:
        """What a compute service does; it gives the UUID of the instance, or None when there was no room."""
        instance = fixtures.Instance()
        try:
            client.spawn(instance.uuid, self.needs, 'project', 'user')
        except errors.NoCapacity:
            self.at_once.wait()
            return None
        self.at_once.wait()                     # all that placement lets through claim at once
        try:
            self.host.claim(instance, {provider: {'resources': amounts} for provider, amounts in self.needs.items()})
        except exception.NoFit:
            client.delete(instance.uuid)
            return None
        return instance.uuid

    def test_each_device_has_one_owner_and_the_allocations_of_the_others_are_gone(self):
        spawned = self.together(*(lambda client=client: self.spawn(client) for client in self.clients))
        winners = [instance for instance in spawned if instance is not None]
        self.assertEqual(sorted(winners), sorted(self.host.owners().values()))
        self.assertEqual((_DEVICES, _DEVICES), (len(winners), len(self.host.owners())))
        self.assertEqual(self.host.owners(), self.host.held())
        allocated = self.placement.direct.list_consumers(self.node_uuid).consumers
        self.assertEqual({instance: {fixtures.PMEM: 1} for instance in winners},
                         {consumer: holding.resources for consumer, holding in allocated.items()})
        self.assertEqual({fixtures.PMEM: _DEVICES}, self.placement.direct.get_usages(self.node_uuid))
