"""A live migration between two hosts in memory, at both ends: the calls in their order, and what goes over the wire."""

import json

import libvirt

from devicetrack import DeviceRequest
from devicetrack import exception
from devicetrack.objects import DeviceMap
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects.values import Attribute
from devicetrack.objects.values import MigrationDefinitions
from devicetrack.objects.values import MigrationType
from devicetrack.testing import region as regions

context = None                                  # the service's request context, handed through
request = DeviceRequest.of(('VGPU', 1))         # or the allocations that placement has for the destination


def encode(sent):
    return json.dumps(sent.obj_to_primitive())


def decode(cls, text):
    return cls.obj_from_primitive(json.loads(text))


class Compute:
    """The compute service of one host. Texts that its methods take and return go over the wire."""

    def __init__(self, host):
        self.manager, self.machine = host.manager, host.machine

    # At the destination, before anything is claimed.
    def check_can_migrate_destination(self, instance):
        return encode(self.manager.check_can_live_migrate_destination(instance))

    # At the source. The destination reads ``instance.resources`` as the service saved it here.
    def check_can_migrate_source(self, instance, asked):
        check = self.manager.check_can_live_migrate_source(instance, decode(LiveMigrationCheck, asked))
        return encode(check)

    # At the destination. The block ends before the copy; an error in it gives everything back.
    def prepare(self, instance, migration, answered):
        check = decode(LiveMigrationCheck, answered)
        with self.manager.live_migration_claim(context, instance, self.manager.nodename, request, migration,
                                               check=check):
            self.manager.realize(context, instance)
            return encode(self.manager.device_map(instance, migration))

    # At the source.
    def copy(self, instance, migration, prepared, domain):
        device_map = decode(DeviceMap, prepared)
        definitions = self.manager.migration_definitions(context, instance, migration, device_map)
        parameters = {libvirt.VIR_MIGRATE_PARAM_DEST_XML: definitions.live}
        flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
        if definitions.persistent is not None:
            parameters[libvirt.VIR_MIGRATE_PARAM_PERSIST_XML] = definitions.persistent
            flags |= libvirt.VIR_MIGRATE_PERSIST_DEST
        if device_map.post_copy_allowed:        # a guest without devices
            flags |= libvirt.VIR_MIGRATE_POSTCOPY
        domain.migrateToURI3('qemu+tls://two/system', parameters, flags)

    # At the destination, when the guest runs there. Sets ``instance.resources``: the service saves the instance.
    def arrived(self, instance):
        try:
            self.manager.started(context, instance)
        except exception.HostTakenOver:
            raise                               # a newer process of this host goes on
        except exception.StoreError:
            pass                                # the guest runs all the same, and the audit records it

    # At the source, when the guest runs at the destination.
    def left(self, instance, migration):
        self.manager.drop_move_claim_at_source(context, instance, migration)

    # At the destination, when the guest does not run there: first the guest that waits, then what it would have had.
    def roll_back(self, instance, migration):
        self.machine.delete_guest(instance.uuid)
        self.manager.drop_move_claim_at_dest(context, instance, migration)


def live_migrate(region, instance, name, domain_class):
    """What conducts it. The region knows where instances are and how migrations stand: it is the service's database."""
    source, destination = Compute(region.hosts[instance.host]), Compute(region.hosts[name])
    asked = destination.check_can_migrate_destination(instance)
    answered = source.check_can_migrate_source(instance, asked)
    migration = region.migration(instance, name)
    try:
        prepared = destination.prepare(instance, migration, answered)
    except Exception:
        migration.status = 'error'              # the block has given back; if its answer was lost, an audit does
        raise
    migration.status = 'running'
    try:
        source.copy(instance, migration, prepared, domain_class(instance, source.machine, destination.machine))
    except Exception:
        migration.status = 'failed'             # the source hears of it from here, at its next audit
        destination.roll_back(instance, migration)
        raise
    instance.host = instance.node = name
    migration.status = 'completed'
    destination.arrived(instance)
    source.left(instance, migration)


class Domain:
    """What libvirt's domain is on real hosts."""

    def __init__(self, instance, here, there):
        self.uuid, self.here, self.there = instance.uuid, here, there

    def migrateToURI3(self, uri, parameters, flags):
        self.there.receive_guest(self.uuid, MigrationDefinitions(
            parameters[libvirt.VIR_MIGRATE_PARAM_DEST_XML], parameters.get(libvirt.VIR_MIGRATE_PARAM_PERSIST_XML)))
        self.copy_memory()
        self.there.arrived(self.uuid)
        self.here.delete_guest(self.uuid)

    def copy_memory(self):
        pass


class LostDomain(Domain):
    def copy_memory(self):
        raise libvirt.libvirtError('the connection broke')


def show(region, text):
    rows = (f'{name} has {record.kind} {record.role}' for name, host in region.hosts.items()
            for record in host.records())
    print(f'{text}:', *rows)


with regions.Region(devices=0, parents={'p0': 1}) as region:
    for host, version in ((region.one, '2.1.0'), (region.two, '2.0.3')):
        host.machine.declare(MigrationType('mdev', 'p0', 'nvidia-35', Attribute(version)))
        host.audit()
    instance = region.spawn('one', request=request)
    show(region, 'at rest')

    try:
        live_migrate(region, instance, 'two', Domain)
    except exception.LiveMigrationRefused as error:
        print('for operators:', error.reason, 'for the owner:', error.for_tenant, sep='\n')
    show(region, 'refused')

    region.two.machine.declare(MigrationType('mdev', 'p0', 'nvidia-35', Attribute('2.2.0')))
    region.two.audit()
    try:
        live_migrate(region, instance, 'two', LostDomain)
    except libvirt.libvirtError as error:
        print('the copy failed:', error)
    show(region, 'rolled back')
    region.one.audit()
    show(region, 'after the audit of one')

    live_migrate(region, instance, 'two', Domain)
    show(region, 'moved')
    region.two.audit()
    print('the guest has seen', region.two.records()[0].seen)
