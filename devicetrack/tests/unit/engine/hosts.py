"""Small inventories and ledgers for the tests of the engine."""

import inspect
import uuid

from devicetrack import vocabulary
from devicetrack.engine import allocator
from devicetrack.engine import demand
from devicetrack.engine import intake
from devicetrack.engine import ledger as ledgers
from devicetrack.engine import opening
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.withholding import Target
from devicetrack.objects import values

PMEM, SMALL, VGPU, VGPU_B = 'CUSTOM_PMEM_NAMESPACE_4GB', 'CUSTOM_PMEM_NAMESPACE_SMALL', 'VGPU', 'CUSTOM_VGPU_B'


class Ledger:
    """A snapshot that a test changes step by step: the functions of the engine as methods, and its questions."""

    _QUESTIONS = {'devices': 'states', 'pools': 'pool_states', 'withheld': 'withheld_for'}

    def __init__(self, policy, resolve, now=None):
        self.now = Snapshot(policy, 1) if now is None else now
        self._resolve = resolve

    def __getattr__(self, name):
        for module in (ledgers, allocator):
            function = vars(module).get(name)
            if inspect.isfunction(function):
                return lambda *args, **named: self._answer(function(self.now, *args, **named))
        return getattr(self.now, self._QUESTIONS.get(name, name))

    def _answer(self, found):
        """Take over the snapshot of an answer; give the rest of it."""
        if isinstance(found, Snapshot):
            self.now, found = found, None
        elif isinstance(found, allocator.Chosen):
            self.now, found = found.after, ledgers.hold_of(str(found.devices[0].instance_uuid), found.devices)
        elif isinstance(found, tuple) and found and isinstance(found[0], Snapshot):
            self.now, found = found
        return found

    def realized(self, key, details, capacities=(), before=None):
        self.now = ledgers.realized(self.now, self._resolve, key, details, capacities, before)

    def read_capacities(self, capacities):
        self.now = intake.read_capacities(self.now, capacities, self._resolve)

    def read_parents(self, found, before):
        self.now = intake.read_parents(self.now, found, before, self._resolve)

    def read_inventory(self, found, before=None, recorded=None):
        self.now = intake.read_inventory(self.now, found, self._resolve, before, recorded or {})

    def read_containment(self, found):
        self.now = intake.read_containment(self.now, found)

    def withhold_by_sight(self, looks):
        self.now = opening.withhold_by_sight(self.now, looks)

    def admit(self, key, reason):
        self.now = ledgers.admit(self.now, (key,), reason)

    def stand(self, key, reason, why=''):
        self.now = ledgers.stand(self.now, Target.of(key), reason, why)

    def stand_down(self, key, reason):
        self.now = ledgers.stand_down(self.now, Target.of(key), reason)

    def close_parent(self, kind, parent, reason, why=''):
        self.now = ledgers.stand(self.now, Target.named(kind, parent, parent=True), reason, why)

    def reopen_parent(self, kind, parent, reason):
        self.now = ledgers.stand_down(self.now, Target.named(kind, parent, parent=True), reason)


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
    made = Ledger(policy, provider)
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
        [[(device.candidate, amount) for device, amount in ledger.available(
            pool.resource_class, pool.provider_uuid, demand.NOTHING)] for pool in pools],
        sorted((device.instance_uuid, from_rows(ledger, device.instance_uuid))
               for device in devices if device.instance_uuid))


def from_rows(ledger, instance_uuid):
    """Of each claim of an instance, whether rows told of it, and not a take."""
    owners = {device.owner.number: device.owner for device in ledger.now.holdings(instance_uuid)}
    return sorted(owner.from_rows for owner in owners.values())
