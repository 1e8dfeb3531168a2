"""A compute host for measurements: a machine in memory, its manager, and the instances that want its devices."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
import os
import tempfile
from typing import Any
import uuid

import fixtures

from devicetrack.claims.claim import Claim
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects.values import Record
from devicetrack.store import api as store_api
from devicetrack.testing import fake
from devicetrack.virt.driver import VirtDriver

NAME = 'host'
LABEL = '4GB'


class Context:
    """The service's request context. Its id goes into the event of a claim."""

    request_id = f'req-{uuid.uuid4()}'


CONTEXT = Context()


class Flavor:
    """A flavor, as far as a claim reads it."""

    def __init__(self, extra_specs: Mapping[str, str]) -> None:
        self.extra_specs = {'hw:cpu_policy': 'dedicated', 'hw:mem_page_size': 'large', **extra_specs}


class Instance:
    """An instance, as far as a claim reads and sets it."""

    def __init__(self, flavor: Flavor) -> None:
        self.uuid = str(uuid.uuid4())
        self.flavor = flavor
        self.resources: Any = None


class Host(fixtures.Fixture):
    """A host with namespaces of persistent memory and a manager that is ready.

    :param store: a store with its schema
    :param conf: the configuration that names the store. This sets its state directory to a temporary one
    """

    resource_class = f'CUSTOM_PMEM_NAMESPACE_{LABEL}'
    flavor = Flavor({'hw:pmem': LABEL})

    def __init__(self, store: store_api.Store, conf: Any, devices: int) -> None:
        self.store, self.conf, self.devices = store, conf, devices

    def _setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        # The store is open, so nobody reads the place of its file from the configuration any more.
        self.conf.set_override('state_path', directory.name, 'devicetrack')
        machine_id = os.path.join(directory.name, 'machine-id')
        with open(machine_id, 'w', encoding='ascii') as file:
            file.write(uuid.uuid4().hex)
        self.conf.set_override('machine_id_path', machine_id, 'devicetrack')
        driver = self.driver(directory.name)
        self.addCleanup(driver.close)
        self.manager = ClaimManager(NAME, driver, self.store, self.conf)
        self.addCleanup(self.manager.close)
        self.manager.init_host(None)
        [provider] = [provider.uuid for provider in self.manager.providers()
                      if self.resource_class in provider.totals]
        self.allocations = {provider: {'resources': {
            'VCPU': 4, 'MEMORY_MB': 8192, 'DISK_GB': 40, self.resource_class: 1}}}

    def driver(self, state_path: str) -> VirtDriver:
        """Make the machine and the driver for it."""
        self.machine = fake.FakeHost()
        for number in range(self.devices):
            self.machine.add_namespace(f'ns{number}', LABEL)
        return fake.FakeDriver(NAME, self.conf, state_path, self.machine)

    def instance(self) -> Instance:
        """Make an instance that wants one device."""
        return Instance(self.flavor)

    def claim(self, instance: Instance) -> Claim:
        return self.manager.instance_claim(CONTEXT, instance, NAME, self.allocations)

    def records_of(self, instances: Iterable[Instance]) -> list[Record]:
        """The rows of instances with a claim whose devices are not realized yet."""
        return [assignment._record for instance in instances for assignment in instance.resources]

    def take_back(self, instances: Iterable[Instance]) -> None:
        """Undo any number of claims in one transaction."""
        records = self.records_of(instances)
        self.store.write(store_api.Changes(delete=tuple(records)))
        for record in records:
            self.manager._started().ledger.free_of(record.instance_uuid, (record.key,))
