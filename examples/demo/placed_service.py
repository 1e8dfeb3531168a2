"""The demo's compute service beside a placement service: a scheduler chooses providers for each instance."""

from __future__ import annotations

import sys
from typing import Any

from devicetrack.engine import migrations
from devicetrack.placement import allocations
from devicetrack.placement import errors
from devicetrack.placement import expected
from devicetrack.placement import tree
from devicetrack.placement.node import NodeReporter
from devicetrack.store.leftovers import HostLeftovers
from instances import Instance
from machine import Machine
import service

PROJECT = USER = 'demo'


class PlacedService(service.Service):
    """Keeps allocations in placement equal to the record, and reports the host's devices."""

    def _began(self) -> None:
        self._node = NodeReporter.from_conf(self._conf, self._manager, self._manager.store)
        self._leftovers = HostLeftovers(self._manager.store, self._manager.state().host_uuid)
        self._allocations = allocations.AllocationClient.from_conf(self._conf, self._leftovers)
        self._node.start()
        # Instances from before the placement service.
        [root] = [provider.uuid for provider in self._manager.providers() if provider.parent_uuid is None]
        records = self._store.records_of_host(self._manager.state().host_uuid)
        for consumer, share in expected.shares(records, root, tree.NESTED).items():
            if not self._allocations.get(consumer).exists:
                self._allocations.spawn(consumer, share.held, PROJECT, USER)

    def place(self, name: str, chosen: service.Chosen) -> dict[str, Any]:
        """Build an instance with devices of the providers that the scheduler chose."""
        self._allocations.spawn(self._instances.get(name).uuid, chosen, PROJECT, USER)
        return self._reported(self.build(name, chosen))

    def move(self, name: str, flavor: str, chosen: service.Chosen) -> dict[str, Any]:
        """Resize an instance to devices of the providers that the scheduler chose. The user confirms it later."""
        migration = self._instances.migrate(name, flavor)
        self._allocations.move(migration.instance_uuid, migration.uuid, chosen)
        self._resize(migration, chosen=chosen)
        return self._reported({})

    def confirm(self, name: str) -> dict[str, Any]:
        """Confirm a resize: the instance keeps the new devices, if placement frees the old ones."""
        migration = self._instances.migration_of(name)
        try:
            self._allocations.confirm(migration.instance_uuid, migration.uuid)
        except errors.ConsumerConflict as conflict:
            return {'refusal': str(conflict), 'outcome': conflict.result.outcome.value,
                    'revert_possible': conflict.result.revert_possible}
        return self._reported(super().confirm(name))

    def cordon(self, name: str) -> dict[str, Any]:
        """Cordon a namespace: nobody gets it until it is admitted again."""
        self._manager.operator.cordon('vpmem', name)
        return self._reported({})

    def uncordon(self, name: str) -> dict[str, Any]:
        self._manager.operator.uncordon('vpmem', name)
        return self._reported({})

    def audit(self) -> dict[str, Any]:
        answer = super().audit()
        statuses = {migration.uuid: migration.status for migration in self._instances.migrations()}
        self._allocations.finish_moves(lambda uuid: migrations.is_completed(statuses.get(uuid)))
        return self._reported(answer)

    def _delete(self, instance: Instance) -> None:
        super()._delete(instance)
        self._allocations.delete(instance.uuid)

    def _reported(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._node.report()
        return answer


if __name__ == '__main__':
    service.serve(PlacedService(Machine(sys.argv[1])))
