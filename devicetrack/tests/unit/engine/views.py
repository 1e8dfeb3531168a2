"""The views of a small host: what it has, what domains name, what rows say, and what definitions record."""

from devicetrack.engine import migrations
from devicetrack.engine.views import Views
from devicetrack.objects import details
from devicetrack.objects import MdevDetails
from devicetrack.objects import values
from devicetrack.objects import VPMEMDetails
from devicetrack.tests.unit.engine import hosts
from devicetrack.tests.unit.engine.hosts import inventory
from devicetrack.tests.unit.engine.hosts import namespace

DEVICE = namespace('a')
UNHEALTHY = namespace('a', unhealthy='hot')
NAMESPACE_UUID = '8a5a2d6c-6c9d-4e8e-9d52-0e6a8c6b7f11'
ANOTHER_UUID = '31c3b3a5-8a6e-4b60-b1a2-6a8f5d8e0c55'


def use(domain, running=True, live=True, defined=True, identifier='a'):
    return values.Use('vpmem', identifier, '/dev/dax0.0', domain, running, live, defined)


def usage(*uses, unknown=(), domains=None):
    names = frozenset(one.domain_uuid for one in uses) if domains is None else frozenset(domains)
    return values.Usage(tuple(uses), names, frozenset(one.domain_uuid for one in uses if one.running),
                        tuple(values.Unknown('domain', reason) for reason in unknown))


def row(owner='i', state='active'):
    return hosts.row(DEVICE, owner, state)


def views(usage=usage(), there=(DEVICE,), rows=(), instances=None, known=('vpmem', 'mdev'), unknown=(),  # noqa: B008
          migrations=None, boot_changed=False, guests=()):
    return Views(usage, inventory(*there, known=known)._replace(unknown=tuple(unknown)), tuple(rows),
                           instances, migrations, 'compute-7', 'host', boot_changed, tuple(guests))


def pmem(identifier='a', **changed):
    """A namespace with details that can be read."""
    made = VPMEMDetails(**{'namespace_uuid': NAMESPACE_UUID, 'label': '4GB', 'devpath': '/dev/dax0.0',
                           'size_bytes': 4 << 30, 'align_bytes': 2 << 20, **changed})
    return namespace(identifier)._replace(details=details.to_text(made))


def mdev(identifier='m', assignable=True, **changed):
    """A mediated device as the host shows it: nobody can see there who made it."""
    made = MdevDetails(**{'type': 'nvidia-35', 'parent': 'gpu', 'parent_address': None, 'device_api': 'vfio-pci',
                          'iommu_group': 7, 'origin': 'adopted', **changed})
    return hosts.mdev(identifier, 'gpu')._replace(details=details.to_text(made), assignable=assignable)


def made(identifier='m', state='active', owner='i', **changed):
    """The row of a mediated device that we made, or will make."""
    return hosts.row(mdev(identifier, **{'origin': 'created', **changed}), owner, state)


def moving(device, role='old', state='active', migration='M', owner='i'):
    return hosts.row(device, owner, state)._replace(role=role, migration_uuid=migration)


def move(status, source='compute-7', destination='compute-8', uuid='M', number=1):
    return {uuid: migrations.Move(uuid, number, status, 'i', (source, source), (destination, destination))}


def recorded(device, position=0, beside=False, role='current', migration=None, **changed):
    """A device as its guest's definition records it."""
    return values.RecordedDevice(device.kind, device.identifier, device.resource_class, 'provider', device.parent,
                                 device.numa_node, position, 'claim', role, migration, device.details,
                                 beside)._replace(**changed)


def guest(*devices, instance='i', host='host'):
    return values.GuestRecord(instance, host, None, devices)
