"""Does a small compute service survive a crash at every step of a boot, and of a resize that is reverted?"""

import sys
import uuid

import devicetrack
from devicetrack.service.document import Document
from devicetrack.testing import crash
from devicetrack.testing.crash import program

CLASS = 'CUSTOM_PMEM_NAMESPACE_4GB'
FLAVOR = {'extra_specs': {'hw:pmem': '4GB'}}


class Database:
    """The service's database: it outlives processes. The operations have one host, so nobody asks another one."""

    def __init__(self):
        self.saved = {}

    def document(self, instance_uuid):
        return self.saved.get(instance_uuid)

    def documents(self, host):
        return dict(self.saved)

    def save(self, instance_uuid, document, replaces, hosts):
        if self.saved.get(instance_uuid) != replaces:
            return False
        self.saved[instance_uuid] = document
        return True


class Guests:
    """The guests of a host, by the kit's hypervisor."""

    def __init__(self, hypervisor):
        self._hypervisor = hypervisor
        self.stop, self.delete = hypervisor.stop_guest, hypervisor.delete_guest

    def start(self, instance_uuid, flavor, config):
        self._hypervisor.start_guest(instance_uuid, config)

    def is_migrating(self, instance_uuid):
        return False


class Service(crash.ComputeProcess):
    """The service's process on a host."""

    def __init__(self, parts):
        super().__init__(parts)
        self.lifecycle = devicetrack.Lifecycle(parts.host, parts.driver, parts.store, parts.conf, parts.data,
                                               Guests(parts.hypervisor))
        self.manager = self.lifecycle.manager

    def start(self):
        self.lifecycle.open()

    def audit(self):
        """Two rounds of the periodic task: the first after an outage finds connections dead, and writes nothing."""
        for _ in range(2):
            found = self.lifecycle.audit()
        return found

    def boot(self, instance_uuid):
        self.lifecycle.claim(instance_uuid, FLAVOR)

    def resize(self, instance_uuid):
        """To other devices of this host."""
        self.lifecycle.resize(instance_uuid, FLAVOR)

    def revert(self, instance_uuid):
        self.lifecycle.revert(instance_uuid)


class Boot(crash.Operation):
    name = 'boot'
    process = Service

    def machines(self):
        machine = crash.Machine()
        machine.add_namespace('ns0')
        machine.add_namespace('ns1')
        return {'a': machine}

    def data(self):
        return Database()

    def setup(self, world):
        self.instance = str(uuid.uuid5(uuid.NAMESPACE_DNS, 'instance'))

    def run(self, world):
        world['a'].boot(self.instance)

    def finish(self, world):
        """The user reverts a resize that waits."""
        for document in self.documents(world):
            if document.move is not None:
                world['a'].revert(document.uuid)

    def owners(self, world):
        return {'a': {document.uuid: {CLASS: 1} for document in self.documents(world) if not document.is_over}}

    def documents(self, world):
        return map(Document.read, world.data.saved.values())


class Revert(Boot):
    name = 'revert'

    def setup(self, world):
        super().setup(world)
        world['a'].boot(self.instance)

    def run(self, world):
        world['a'].resize(self.instance)
        world['a'].revert(self.instance)


if __name__ == '__main__':
    sys.exit(program.main([Boot, Revert]))
