"""The old and the new resources of an instance that moves."""

from __future__ import annotations

from typing import Any
from typing import Final
from typing import NamedTuple

from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import base
from devicetrack.objects import fields
from devicetrack.objects.instance_resources import InstanceResources
from devicetrack.objects.pci_move import InstancePCIRequests
from devicetrack.objects.pci_move import PCIDeviceList

_OF_PCI = ('old_pci_devices', 'new_pci_devices', 'old_pci_requests', 'new_pci_requests')


class Carried(NamedTuple):
    """The compute service's own versioned objects for an instance at one end of a move.

    A service that tracks no PCI functions there has None for both of ``pci_devices`` and ``pci_requests``.
    """

    numa_topology: Any = None
    pci_devices: Any = None
    pci_requests: Any = None

    def pci(self, resources: InstanceResources | None) -> tuple[Any, Any]:
        """Return devices and requests: the service's own if it has any, or else those of the instance's resources."""
        if self.pci_devices is None and self.pci_requests is None:
            return PCIDeviceList.of(resources), InstancePCIRequests.of(resources)
        return self.pci_devices, self.pci_requests


NOTHING: Final = Carried()


@base.register
class MigrationContext(base.DeviceTrackObject):
    """The old and the new resources of an instance that moves, for the service and the wire. The rows decide.

    The NUMA topologies are the compute service's own versioned objects, which we transport and do not interpret. So
    are the PCI devices and requests of a service that tracks PCI functions itself. Otherwise they are a
    ``PCIDeviceList`` and ``InstancePCIRequests`` of ours, made from the assignments of the kind ``pci`` at that end, or
    None if there is none.

    1.1 has resources of 1.1. 1.2 added the PCI devices and requests. 1.3 has resources of 1.2.
    """

    VERSION = '1.3'
    fields = {
        'instance_uuid': ovo_fields.UUIDField(),
        'migration_uuid': ovo_fields.UUIDField(),
        'old_resources': ovo_fields.ObjectField(base.name_of('InstanceResources'), nullable=True),
        'new_resources': ovo_fields.ObjectField(base.name_of('InstanceResources'), nullable=True),
        'old_numa_topology': fields.ForeignObjectField(nullable=True, default=None),
        'new_numa_topology': fields.ForeignObjectField(nullable=True, default=None),
        **{name: fields.ForeignObjectField(nullable=True, default=None) for name in _OF_PCI},
    }
    instance_uuid: str
    migration_uuid: str
    old_resources: InstanceResources | None
    new_resources: InstanceResources | None
    old_numa_topology: Any
    new_numa_topology: Any
    old_pci_devices: Any
    new_pci_devices: Any
    old_pci_requests: Any
    new_pci_requests: Any
    ADDED = {'1.2': _OF_PCI}
    obj_relationships = {name: [('1.0', '1.0'), ('1.1', '1.1'), ('1.2', '1.1'), ('1.3', '1.2')]
                         for name in ('old_resources', 'new_resources')}

    @classmethod
    def of_move(cls, instance_uuid: str, migration_uuid: str, old_resources: InstanceResources | None, old: Carried,
                new_resources: InstanceResources | None, new: Carried) -> MigrationContext:
        """Make a context from the resources at both ends, and from the service's own objects there."""
        (old_devices, old_requests), (new_devices, new_requests) = old.pci(old_resources), new.pci(new_resources)
        return cls(
            instance_uuid=instance_uuid, migration_uuid=migration_uuid, old_resources=old_resources,
            new_resources=new_resources, old_numa_topology=old.numa_topology, new_numa_topology=new.numa_topology,
            old_pci_devices=old_devices, new_pci_devices=new_devices, old_pci_requests=old_requests,
            new_pci_requests=new_requests)

    def instead(self, new_resources: InstanceResources) -> MigrationContext:
        """The context of the same move with other new resources."""
        ours = isinstance(self.new_pci_devices, PCIDeviceList) or isinstance(self.new_pci_requests, InstancePCIRequests)
        new = Carried(self.new_numa_topology, None if ours else self.new_pci_devices,
                      None if ours else self.new_pci_requests)
        old = Carried(self.old_numa_topology, self.old_pci_devices, self.old_pci_requests)
        return self.of_move(self.instance_uuid, self.migration_uuid, self.old_resources, old, new_resources, new)
