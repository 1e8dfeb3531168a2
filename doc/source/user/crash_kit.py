"""Does a small compute service survive a crash at every step of a boot, and of a resize that is reverted?"""

import contextlib
import sys
import uuid

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects import DeviceRequest
from devicetrack.testing import compute_service
from devicetrack.testing import crash
from devicetrack.testing.compute_service import Instance
from devicetrack.testing.compute_service import Migration
from devicetrack.testing.crash import program

CLASS = 'CUSTOM_PMEM_NAMESPACE_4GB'


class Service(crash.ComputeProcess):
    """The service's process on a host. Its database, ``data``, outlives it."""

    def __init__(self, parts):
        super().__init__(parts)
        self.manager = ClaimManager(parts.host, parts.driver, parts.store, parts.conf,
                                    compute_service.View(parts.data, parts.host))

    def start(self):
        super().start()
        self.go_on()

    def audit(self):
        """Two rounds of the periodic task: the first after an outage finds connections dead, and writes nothing."""
        for _ in range(2):
            with contextlib.suppress(exception.StoreUnavailable):
                self.go_on()
            found = super().audit()
        return found

    def go_on(self):
        for migration in self.data.migrations_of(self.host, ()).values():
            if migration.status != 'reverted':
                self.revert(migration)

    def boot(self, instance_uuid):
        instance = Instance(instance_uuid, host=self.host)
        self.data.save(instance)
        with self.manager.instance_claim(None, instance, self.host, DeviceRequest.of((CLASS, 1))):
            self._start_guest(instance)

    def _start_guest(self, instance):
        self.manager.realize(None, instance)
        config = self.manager.guest_config(instance)    # last: a newer process may just have undone all this
        self.hypervisor.start_guest(instance.uuid, config)
        try:
            self.manager.started(None, instance)
        except exception.OutcomeUnknown:
            pass                                # the guest runs: the audit records it

    def resize(self, migration):
        """To other devices of this host."""
        instance = self.data.get_instance(migration.instance_uuid)
        self.data.save(migration)
        with self.manager.resize_claim(None, instance, self.host, DeviceRequest.of((CLASS, 1)), migration):
            self.hypervisor.stop_guest(instance.uuid)
            self._start_guest(instance)
        migration.status = 'finished'
        self.data.save(migration)

    def revert(self, migration):
        instance = self.data.get_instance(migration.instance_uuid)
        migration.status = 'reverting'
        self.data.save(migration)
        self.hypervisor.stop_guest(instance.uuid)
        try:
            self.manager.drop_move_claim_at_dest(None, instance, migration)
        except exception.DeviceInUse:
            pass                                # its definition names the new devices until it is written below
        self._start_guest(instance)
        migration.status = 'reverted'
        self.data.save(migration)

    def resume(self, instance):
        if not self.hypervisor.guests().get(instance.uuid):
            self.manager.release(None, instance)
            instance.state = compute_service.DELETED
            self.data.save(instance)


class Boot(crash.Operation):
    name = 'boot'
    process = Service

    def machines(self):
        machine = crash.Machine()
        machine.add_namespace('ns0')
        machine.add_namespace('ns1')
        return {'a': machine}

    def data(self):
        return compute_service.ServiceData()

    def setup(self, world):
        self.instance = str(uuid.uuid5(uuid.NAMESPACE_DNS, 'instance'))

    def run(self, world):
        world['a'].boot(self.instance)

    def finish(self, world):
        for instance in self.living(world):
            world[instance.host].resume(instance)

    def owners(self, world):
        return {'a': {instance.uuid: {CLASS: 1} for instance in self.living(world)}}

    def living(self, world):
        return [instance for instance in world.data.instances if instance.state != compute_service.DELETED]


class Revert(Boot):
    name = 'revert'

    def setup(self, world):
        super().setup(world)
        self.migration = Migration('a', 'a', self.instance, id=1,
                                            uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, 'migration')))
        world['a'].boot(self.instance)

    def run(self, world):
        world['a'].resize(self.migration)
        world['a'].revert(self.migration)


if __name__ == '__main__':
    sys.exit(program.main([Boot, Revert]))
