"""Does a small compute service of two hosts survive a crash at every step, on each of them?"""

import sys
import uuid

import devicetrack
from devicetrack.service.document import Document
from devicetrack.testing import crash
from devicetrack.testing.crash import program

FLAVOR = {'extra_specs': {'hw:pmem': '4GB', 'resources:VGPU': '1'}}
DEVICES = {'CUSTOM_PMEM_NAMESPACE_4GB': 1, 'VGPU': 1}       # what an instance of the flavor owns
INSTANCE = str(uuid.uuid5(uuid.NAMESPACE_DNS, 'instance'))


class Database:
    """The service's database: it outlives processes."""

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


class Instances:
    """The documents in the database, and the way to the service of another host."""

    def __init__(self, parts):
        self.document, self.documents, self.save = parts.data.document, parts.data.documents, parts.data.save
        self._tell = parts.tell

    def ask(self, host, instance_uuid):
        self._tell(host, 'go_on', instance_uuid)


class Guests:
    """The guests of a host, by the kit's hypervisor."""

    def __init__(self, hypervisor):
        self._hypervisor = hypervisor
        self.stop, self.delete = hypervisor.stop_guest, hypervisor.delete_guest

    def start(self, instance_uuid, flavor, config):
        self._hypervisor.start_guest(instance_uuid, config)

    def migrate(self, instance_uuid, host, definitions):
        self._hypervisor.send_guest(instance_uuid, host, definitions)
        self._hypervisor.hand_over(instance_uuid, host)

    def is_migrating(self, instance_uuid):
        return False                            # the copy ends with the process that waits for it


class Service(crash.ComputeProcess):
    """The service's process on a host."""

    def __init__(self, parts):
        super().__init__(parts)
        self.lifecycle = devicetrack.Lifecycle(parts.host, parts.driver, parts.store, parts.conf, Instances(parts),
                                               Guests(parts.hypervisor))
        self.manager = self.lifecycle.manager

    def __getattr__(self, name):
        """What operations and the other host call: ``claim``, ``go_on`` and the like."""
        return getattr(self.lifecycle, name)

    def start(self):
        """The start of the process."""
        self.lifecycle.open()

    def power_on(self, instance_uuid):
        self.lifecycle.start(instance_uuid)

    def audit(self):
        """Two rounds of the periodic task: the first after an outage finds connections dead, and writes nothing."""
        for _ in range(2):
            found = self.lifecycle.audit()
        return found


class Boot(crash.Operation):
    name = 'boot'
    process = Service

    def machines(self):
        machines = {'a': crash.Machine(), 'b': crash.Machine()}
        for machine in machines.values():
            machine.add_namespace('ns0')
            machine.add_namespace('ns1')
            machine.add_parent('card', units=2)
        return machines

    def data(self):
        return Database()

    def run(self, world):
        world['a'].claim(INSTANCE, FLAVOR)

    def finish(self, world):
        """A host that is down comes back, and the user reverts a resize that waits."""
        for host in world:
            if host.down:
                world.switch_on(host.name)
        for document in self.documents(world):
            if document.move is not None:
                world['a'].revert(document.uuid)

    def owners(self, world):
        return {document.host: {document.uuid: DEVICES} for document in self.documents(world)
                if not document.is_over}

    def documents(self, world):
        return map(Document.read, world.data.saved.values())


class Booted(Boot):
    """An operation with an instance that runs on host a."""

    def setup(self, world):
        super().run(world)


class Delete(Booted):
    name = 'delete'

    def run(self, world):
        world['a'].release(INSTANCE)


class Revert(Booted):
    """Of a resize to other devices of the host."""

    name = 'revert'

    def run(self, world):
        world['a'].resize(INSTANCE, FLAVOR)
        world['a'].revert(INSTANCE)


class ColdMigration(Booted):
    name = 'cold migration'

    def run(self, world):
        world['a'].resize(INSTANCE, FLAVOR, 'b')
        world['b'].confirm(INSTANCE)


class ColdRevert(Booted):
    name = 'cold migration, reverted'

    def run(self, world):
        world['a'].resize(INSTANCE, FLAVOR, 'b')
        world['b'].revert(INSTANCE)


class LiveMigration(Booted):
    name = 'live migration'

    def run(self, world):
        world['a'].live_migrate(INSTANCE, 'b')


class Evacuation(Booted):
    name = 'evacuation'

    def setup(self, world):
        super().setup(world)
        world.switch_off('a')

    def run(self, world):
        world['b'].evacuate(INSTANCE)


if __name__ == '__main__':
    sys.exit(program.main([Boot, Delete, Revert, ColdMigration, ColdRevert, LiveMigration, Evacuation]))
