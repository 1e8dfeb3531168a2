"""Small inventories and ledgers for the tests of the engine."""

import uuid

from devicetrack import vocabulary
from devicetrack.engine import demand
from devicetrack.engine import ledger as ledgers
from devicetrack.objects import values

PMEM, SMALL, VGPU, VGPU_B = 'CUSTOM_PMEM_NAMESPACE_4GB', 'CUSTOM_PMEM_NAMESPACE_SMALL', 'VGPU', 'CUSTOM_VGPU_B'


def provider(name):
    """The UUID of a provider with this stable name."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def namespace(identifier, resource_class=PMEM, parent='region0', numa_node=0, unhealthy=None, provider_name=''):
    return values.InventoryDevice('vpmem', identifier, provider_name, resource_class, parent, numa_node,
                                  f'details of {identifier}', unhealthy)


def mdev(identifier, parent, resource_class=VGPU, numa_node=0, unhealthy=None):
    return values.InventoryDevice('mdev', identifier, parent, resource_class, parent, numa_node,
                                  f'details of {identifier}', unhealthy)


def capacity(parent, available, resource_class=VGPU, numa_node=0, device_type='nvidia-35'):
    return values.Capacity('mdev', parent, device_type, parent, resource_class, numa_node, available,
                           f'template of {parent} {device_type}')


def inventory(*parts, known=('vpmem', 'mdev')):
    """Devices and capacities, in any order."""
    return values.Inventory(tuple(part for part in parts if isinstance(part, values.InventoryDevice)),
                            tuple(part for part in parts if isinstance(part, values.Capacity)), frozenset(known))


def ledger(*parts, policy=vocabulary.PACK):
    made = ledgers.Ledger(policy, provider)
    made.read_inventory(inventory(*parts))
    return made


def wants(*items, **affinity):
    """A demand from (class, amount) or (class, amount, provider UUID)."""
    return demand.Demand(tuple(demand.Item(*item) for item in items), **affinity)


def row(device, instance_uuid, state=vocabulary.CLAIMED):
    """The row of a device in the inventory."""
    return values.Record('host', device.kind, device.identifier, instance_uuid, None, vocabulary.CURRENT, state, 0,
                         'claim', 1, provider(device.provider), device.resource_class, device.parent,
                         device.numa_node, device.details, 0, None, state != vocabulary.CLAIMED)


def taken(hold):
    return [candidate.identifier for candidate in hold.candidates]


def parents(hold):
    return [candidate.parent for candidate in hold.candidates]


def held(ledger, instance_uuid):
    """The devices that an instance has, in the order of names."""
    return sorted((device for device in ledger.devices() if device.instance_uuid == instance_uuid),
                  key=lambda device: (device.kind, device.identifier or ''))


def hold_rows(ledger, *records):
    """Hold what rows of one instance say; gives the devices' keys."""
    ledger.hold(records)
    return [record.key for record in records]


def name_all(ledger, hold):
    """Name what will be made after its parent and a number."""
    return ledger.name(hold, [
        candidate if candidate.identifier else candidate._replace(
            identifier=f'{candidate.parent}/{hold.instance_uuid}/{number}')
        for number, candidate in enumerate(hold.candidates)])


def everything(ledger):
    """All that a refused take must leave as it was; also who is next in each line."""
    devices, pools = ledger.devices(), ledger.pools()
    return (
        sorted(devices, key=lambda device: (device.kind, device.identifier or '')), pools,
        [ledger.available(pool.resource_class, pool.provider_uuid, demand.NOTHING) for pool in pools],
        sorted((device.instance_uuid, from_rows(ledger, device.instance_uuid))
               for device in devices if device.instance_uuid))


def from_rows(ledger, instance_uuid):
    """Of each claim of an instance, whether rows told of it, and not a take."""
    owners = {device.owner.number: device.owner for device in ledger.now.holdings(instance_uuid)}
    return sorted(owner.from_rows for owner in owners.values())
