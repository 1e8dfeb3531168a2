"""One object of every class, with every field set."""

from oslo_versionedobjects import base as ovo_base

from devicetrack import objects
from devicetrack.objects import base
from devicetrack.objects import details
from devicetrack.objects import values


class Serializer(ovo_base.VersionedObjectSerializer):
    """What a service that speaks of our objects only hands to its messaging."""

    OBJ_BASE_CLASS = base.DeviceTrackObject


HOST = '11111111-1111-4111-8111-111111111111'
INSTANCE = '22222222-2222-4222-8222-222222222222'
MIGRATION = '33333333-3333-4333-8333-333333333333'
PROVIDER = '44444444-4444-4444-8444-444444444444'
NAMESPACE = '55555555-5555-4555-8555-555555555555'
MDEV = '66666666-6666-4666-8666-666666666666'


def vpmem_details():
    return objects.VPMEMDetails(namespace_uuid=NAMESPACE, label='4GB', devpath='/dev/dax0.1',
                                size_bytes=4 << 30, align_bytes=2 << 20)


def mdev_details(origin='created'):
    return objects.MdevDetails(type='nvidia-35', parent='pci_0000_84_00_0', parent_address='0000:84:00.0',
                               device_api='vfio-pci', iommu_group=None, origin=origin)


def vf_details(origin='created'):
    return objects.VFDetails(type='558', parent='pci_0000_3d_00_0', parent_address='0000:3d:00.0',
                             device_api='vfio-pci', origin=origin)


def pci_details():
    return objects.PCIDetails(
        address='0000:01:00.0', vendor_id='1b36', product_id='0010', subsystem='1af4:1100', serial='S1',
        parent_address='', parent_card='', parent_serial='', vf_number=-1, device_type='type-PCI', driver='nvme',
        disks='1:1073741824:512', config='', traits_of_spec=['CUSTOM_FAST'])


def network_port():
    return objects.NetworkPort(physical_network='physnet1', mac='52:54:00:aa:bb:01', vlan=41, trusted=True)


def record(**changes):
    made = values.Record(HOST, 'vpmem', 'ns0', INSTANCE, MIGRATION, 'incoming', 'claimed', 0, 'claim-1', 3, PROVIDER,
                         'CUSTOM_PMEM_NAMESPACE_4GB', 'region0', None, details.to_text(vpmem_details()), 1700000000,
                         '1.2.3', False)
    return made._replace(**changes)


def pci_record(**changes):
    function = pci_details()
    function.address = changes.get('identifier', '0000:81:00.0')
    return record(**{'kind': 'pci', 'identifier': '0000:81:00.0', 'resource_class': 'CUSTOM_PCI_1B36_0010',
                     'parent': '0000:81:00.0', 'numa_node': 1, 'details': details.to_text(function), **changes})


def vf_record(address, **changes):
    """The row of a virtual function of 0000:82:00.0, which the kind ``pci`` has."""
    function = pci_details()
    function.address, function.serial = address, ''
    function.parent_card, function.parent_serial = '1b36:0010 1af4:1100 0', 'S2'
    function.parent_address, function.vf_number, function.device_type = '0000:82:00.0', int(address[-1]), 'type-VF'
    return pci_record(identifier=address, parent='0000:82:00.0', resource_class='CUSTOM_VF', numa_node=None,
                      details=details.to_text(function), **changes)


def pci_resources():
    """Resources with a namespace, a card, and two virtual functions of another one."""
    return objects.InstanceResources.from_records(INSTANCE, HOST, [
        record(), pci_record(position=1), vf_record('0000:82:00.1', position=2), vf_record('0000:82:00.2', position=3)])


def records():
    return [record(), record(kind='mdev', identifier=MDEV, position=1, resource_class='VGPU', numa_node=1,
                             parent='pci_0000_84_00_0', details=details.to_text(mdev_details()))]


def assignment():
    return objects.DeviceAssignment.from_record(record())


def resources():
    return objects.InstanceResources.from_records(INSTANCE, HOST, records())


def request():
    return objects.DeviceRequest.of(('VGPU', 1, PROVIDER), ('CUSTOM_PMEM_NAMESPACE_4GB', 2), numa_nodes=[0, 1],
                                    numa_affinity_policy='preferred')


def device_choice():
    return objects.DeviceChoice(resource_class='PGPU', needs=['CUSTOM_A', 'type-VF'], refuses=['type-PF'])


def device_pair(kind='mdev', source=MDEV, destination='77777777-7777-4777-8777-777777777777', type='nvidia-35'):
    return objects.DevicePair(kind=kind, resource_class='VGPU', source=source, destination=destination, type=type,
                              element=f"<hostdev><source><address uuid='{destination}'/></source></hostdev>")


def device_map(*pairs):
    return objects.DeviceMap.of(INSTANCE, MIGRATION, pairs or (device_pair(),), '<devices/>')


def declared_device():
    return objects.DeclaredDevice(kind='mdev', identifier=MDEV, resource_class='VGPU', type='nvidia-35', api='vfio-pci',
                                  version_form='numbered', version='2.1.0', required=['CUSTOM_A'],
                                  offered=['CUSTOM_A', 'CUSTOM_B'], aggregation=None, obstacle=None, seen='2.0.1')


def live_migration_check():
    return objects.LiveMigrationCheck(instance_uuid=INSTANCE, devices=[declared_device()])


def provider():
    return objects.Provider(uuid=PROVIDER, name='host_pci_0000_84_00_0', parent_uuid=HOST, totals={'VGPU': 16},
                            reserved={'VGPU': 2}, traits=['CUSTOM_DEVICETRACK_VENDOR_NVIDIA'])


def migration_context():
    return objects.MigrationContext(
        instance_uuid=INSTANCE, migration_uuid=MIGRATION, old_resources=resources(), new_resources=None,
        old_pci_devices=pci_devices(), new_pci_devices=None, old_pci_requests=pci_requests(), new_pci_requests=None)


def pci_devices():
    devices = objects.PCIDeviceList.of(pci_resources())
    assert devices is not None
    return devices


def pci_requests():
    requests = objects.InstancePCIRequests.of(pci_resources())
    assert requests is not None
    return requests


ONE_OF_EACH = {
    'DeviceAssignment': assignment,
    'DeviceChoice': device_choice,
    'DeclaredDevice': declared_device,
    'DeviceMap': device_map,
    'DevicePair': device_pair,
    'DeviceRequest': request,
    'InstancePCIRequest': lambda: pci_requests().requests[0],
    'InstancePCIRequests': pci_requests,
    'InstanceResources': resources,
    'LiveMigrationCheck': live_migration_check,
    'MdevDetails': mdev_details,
    'MigrationContext': migration_context,
    'NetworkPort': network_port,
    'Provider': provider,
    'RequestedDevices': lambda: request().wanted[0],
    'PCIDetails': pci_details,
    'PCIDevice': lambda: pci_devices()[0],
    'PCIDeviceList': pci_devices,
    'VFDetails': vf_details,
    'VPMEMDetails': vpmem_details,
}
