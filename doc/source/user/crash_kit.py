"""Does a small compute service survive a crash at every step of a boot?"""

import sys
import uuid

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

    def place(self, instance_uuid, host):
        self.hosts[instance_uuid] = host

    def delete(self, instance_uuid):
        del self.hosts[instance_uuid]
        self.deleted.append(instance_uuid)

    def known(self, host):
        return {**{name: 'here' for name, there in self.hosts.items() if there == host},
                **dict.fromkeys(self.deleted, 'deleted')}


class View:
    """What the claim manager asks the service."""

    def __init__(self, place):
        self.place = place

    def instances(self):
        return self.place.data.known(self.place.host)


class Service(crash.ComputeProcess):
    """The service's process on a host."""

    def __init__(self, place):
        super().__init__(place)
        self.manager = ClaimManager(place.host, place.driver, place.store, place.conf, View(place))

    def boot(self, instance_uuid):
        instance = fixtures.Instance(instance_uuid)
        self.data.place(instance_uuid, self.host)
        with self.manager.instance_claim(None, instance, self.host, DeviceRequest.of((CLASS, 1))):
            self.manager.realize(None, instance)
            self.hypervisor.start_guest(instance_uuid, self.manager.guest_config(instance))
        self.manager.started(None, instance)

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


if __name__ == '__main__':
    sys.exit(program.main([Boot]))
