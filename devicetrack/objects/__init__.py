"""The versioned objects: the public types, on the wire and in the store."""

from devicetrack.objects.assignment import DeviceAssignment
from devicetrack.objects.details import DeviceDetails
from devicetrack.objects.details import MdevDetails
from devicetrack.objects.details import PCIDetails
from devicetrack.objects.details import VFDetails
from devicetrack.objects.details import VPMEMDetails
from devicetrack.objects.device_map import DeviceMap
from devicetrack.objects.device_map import DevicePair
from devicetrack.objects.instance_resources import InstanceResources
from devicetrack.objects.live_migration import DeclaredDevice
from devicetrack.objects.live_migration import LiveMigrationCheck
from devicetrack.objects.migration_context import MigrationContext
from devicetrack.objects.network_port import NetworkPort
from devicetrack.objects.pci_move import InstancePCIRequest
from devicetrack.objects.pci_move import InstancePCIRequests
from devicetrack.objects.pci_move import PCIDevice
from devicetrack.objects.pci_move import PCIDeviceList
from devicetrack.objects.provider import Provider
from devicetrack.objects.request import DeviceChoice
from devicetrack.objects.request import DeviceRequest
from devicetrack.objects.request import RequestedDevices

__all__ = [
    'DeclaredDevice',
    'DeviceAssignment',
    'DeviceChoice',
    'DeviceDetails',
    'DeviceMap',
    'DevicePair',
    'DeviceRequest',
    'InstancePCIRequest',
    'InstancePCIRequests',
    'InstanceResources',
    'LiveMigrationCheck',
    'MdevDetails',
    'MigrationContext',
    'NetworkPort',
    'PCIDetails',
    'PCIDevice',
    'PCIDeviceList',
    'Provider',
    'RequestedDevices',
    'VFDetails',
    'VPMEMDetails',
]
