"""Does a small compute service survive a crash at every step of a boot, and of a resize that is reverted?"""

import contextlib
import sys
import uuid

from devicetrack import exception
from devicetrack.claims.manager import ClaimManager
from devicetrack.objects import DeviceRequest
from devicetrack.testing import crash
from devicetrack.testing import fixtures
from devicetrack.testing.crash import program

CLASS = 'CUSTOM_PMEM_NAMESPACE_4GB'


class Database:
    """The service's own data. It outlives the service's processes."""

    def __init__(self):
        self.hosts = {}                         # of instances that are being booted or run, by UUID
        self.deleted = []
        self.migrations = {}

    def place(self, instance_uuid, host):
        self.hosts[instance_uuid] = host

    def delete(self, instance_uuid):
        del self.hosts[instance_uuid]
        self.deleted.append(instance_uuid)

    def known(self, host):
        return {**{name: 'here' for name, there in self.hosts.items() if there == host},
                **dict.fromkeys(self.deleted, 'deleted')}

    def save(self, migration):
        self.migrations[migration.uuid] = migration

    def moving(self):
        return dict(self.migrations)


class View:
    """What the claim manager asks the service."""

    def __init__(self, place):
        self.place = place

    def instances(self):
        return self.place.data.known(self.place.host)

    def migrations(self, uuids):
        return self.place.data.moving()


class Service(crash.ComputeProcess):
    """The service's process on a host."""

    def __init__(self, place):
        super().__init__(place)
        self.manager = ClaimManager(place.host, place.driver, place.store, place.conf, View(place))

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
        for migration in self.data.moving().values():
            if migration.status != 'reverted':
                self.revert(migration)

    def boot(self, instance_uuid):
        instance = fixtures.Instance(instance_uuid)
        self.data.place(instance_uuid, self.host)
        with self.manager.instance_claim(None, instance, self.host, DeviceRequest.of((CLASS, 1))):
            self._start_guest(instance)

    def _start_guest(self, instance):
        self.manager.realize(None, instance)
        self.hypervisor.start_guest(instance.uuid, self.manager.guest_config(instance))
        try:
            self.manager.started(None, instance)
        except exception.OutcomeUnknown:
            pass                                # the guest runs: the audit records it

    def resize(self, migration):
        """To other devices of this host."""
        instance = fixtures.Instance(migration.instance_uuid, host=self.host)
        self.data.save(migration)
        with self.manager.resize_claim(None, instance, None, self.host, migration, DeviceRequest.of((CLASS, 1))):
            self.hypervisor.stop_guest(instance.uuid)
            self._start_guest(instance)
        migration.status = 'finished'
        self.data.save(migration)

    def revert(self, migration):
        instance = fixtures.Instance(migration.instance_uuid, host=self.host)
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

    def resume(self, instance_uuid):
        if not self.hypervisor.guests().get(instance_uuid):
            self.manager.release(None, fixtures.Instance(instance_uuid))
            self.data.delete(instance_uuid)


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
        for instance_uuid, host in list(world.data.hosts.items()):
            world[host].resume(instance_uuid)

    def owners(self, world):
        owners = {}
        for instance_uuid, host in world.data.hosts.items():
            owners.setdefault(host, {})[instance_uuid] = {CLASS: 1}
        return owners


class Revert(Boot):
    name = 'revert'

    def setup(self, world):
        super().setup(world)
        self.migration = fixtures.Migration('a', 'a', self.instance, id=1,
                                            uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, 'migration')))
        world['a'].boot(self.instance)

    def run(self, world):
        world['a'].resize(self.migration)
        world['a'].revert(self.migration)


if __name__ == '__main__':
    sys.exit(program.main([Boot, Revert]))
