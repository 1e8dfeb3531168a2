"""A compute host to measure on: a machine in memory, its manager, and the instances that want its devices."""

from __future__ import annotations

from collections.abc import Iterable
import tempfile
from typing import Any
import uuid

import fixtures

from devicetrack.claims.claim import Claim
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects.values import Record
from devicetrack.store import api as store_api
from devicetrack.virt import fake

NAME = 'host'
LABEL = '4GB'
RESOURCE_CLASS = f'CUSTOM_PMEM_NAMESPACE_{LABEL}'


class Flavor:
    """What a claim reads of a flavor."""

    extra_specs = {'hw:pmem': LABEL, 'hw:cpu_policy': 'dedicated', 'hw:mem_page_size': 'large'}


class Instance:
    """What a claim reads of an instance and writes to it."""

    flavor = Flavor()

    def __init__(self) -> None:
        self.uuid = str(uuid.uuid4())
        self.resources: Any = None


class Host(fixtures.Fixture):
    """A host with namespaces of persistent memory, whose manager is ready.

    :param store: with its schema
    :param conf: the configuration that names the store; its state directory is set to a temporary one
    """

    def __init__(self, store: store_api.Store, conf: Any, devices: int) -> None:
        self.store, self.conf, self._devices = store, conf, devices

    def _setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        # The store is open: where its file is, was read already.
        self.conf.set_override('state_path', directory.name, 'devicetrack')
        self.machine = fake.FakeHost()
        for number in range(self._devices):
            self.machine.add_namespace(f'ns{number}', LABEL)
        driver = fake.FakeDriver(NAME, self.conf, directory.name, self.machine)
        self.manager = ClaimManager(NAME, driver, self.store, self.conf)
        self.addCleanup(self.manager.close)
        self.manager.init_host(None)
        [root] = [provider.uuid for provider in self.manager.providers() if provider.parent_uuid is None]
        self.allocations = {root: {'resources': {
            'VCPU': 4, 'MEMORY_MB': 8192, 'DISK_GB': 40, RESOURCE_CLASS: 1}}}

    def claim(self, instance: Instance) -> Claim:
        return self.manager.instance_claim(None, instance, NAME, self.allocations)

    def boot(self, instance: Instance) -> None:
        """All that a compute service calls until a guest runs."""
        self.claim(instance)
        self.manager.realize(None, instance)
        self.machine.start_guest(instance.uuid, self.manager.guest_config(instance))
        self.manager.started(None, instance)

    def records_of(self, instances: Iterable[Instance]) -> list[Record]:
        """The rows of instances that were claimed for and not yet realized."""
        return [assignment._record for instance in instances for assignment in instance.resources]

    def take_back(self, instances: Iterable[Instance]) -> None:
        """Undo claims in one transaction, however many they are."""
        records = self.records_of(instances)
        self.store.write(store_api.Changes(delete=tuple(records)))
        with self.manager.lock:
            for record in records:
                unit = self.manager.ledger.find(record.key)
                assert unit is not None
                self.manager.ledger.free(unit)
