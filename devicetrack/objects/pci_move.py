"""The PCI functions of an instance at one end of a move, in the form in which compute services keep them.

Migration contexts of services have these two: a list of devices, and the requests that the devices were given for
(Nova: ``nova/objects/pci_device.py``, ``nova/objects/instance_pci_requests.py``). The fields here have the same
names and values, so a reader of a context need not ask who tracks the functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
import uuid

from oslo_versionedobjects import base as ovo_base
from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import base
from devicetrack.objects import fields
from devicetrack.objects.assignment import DeviceAssignment
from devicetrack.objects.instance_resources import InstanceResources

_PCI: Final = 'pci'


@base.register
class PCIDevice(base.DeviceTrackObject):
    """One PCI function that an instance has at one end of a move.

    ``dev_type`` is ``type-PCI``, ``type-PF`` or ``type-VF``. ``parent_addr`` is the address of a virtual function's
    physical one, else None. ``request_id`` names the :class:`InstancePCIRequest` for which it was given.
    """

    VERSION = '1.0'
    fields = {
        'address': ovo_fields.StringField(),
        'vendor_id': ovo_fields.StringField(),
        'product_id': ovo_fields.StringField(),
        'dev_type': ovo_fields.StringField(),
        'parent_addr': fields.or_none(ovo_fields.StringField),
        'numa_node': fields.or_none(ovo_fields.IntegerField),
        'instance_uuid': ovo_fields.UUIDField(),
        'request_id': ovo_fields.UUIDField(),
    }
    address: str
    vendor_id: str
    product_id: str
    dev_type: str
    parent_addr: str | None
    numa_node: int | None
    instance_uuid: str
    request_id: str


@base.register
class PCIDeviceList(ovo_base.ObjectListBase, base.DeviceTrackObject):
    """The PCI functions of an instance at one end of a move, in their order in the guest."""

    VERSION = '1.0'
    fields = {'objects': ovo_fields.ListOfObjectsField(base.name_of('PCIDevice'))}
    objects: list[PCIDevice]

    @classmethod
    def of(cls, resources: InstanceResources | None) -> PCIDeviceList | None:
        """The functions of the kind ``pci`` in an instance's resources; None if it has none, or they are unknown."""
        found = [PCIDevice(
            address=one.details.address, vendor_id=one.details.vendor_id, product_id=one.details.product_id,
            dev_type=one.details.device_type, parent_addr=one.details.parent_address or None, numa_node=one.numa_node,
            instance_uuid=one.instance_uuid, request_id=_request_id(one.instance_uuid, one.resource_class))
            for one in _functions(resources)]
        return cls(objects=found) if found else None


@base.register
class InstancePCIRequest(base.DeviceTrackObject):
    """The functions of one resource class that an instance was given at one end of a move.

    ``count`` is their number. ``spec`` has a dictionary for each sort of them: ``resource_class``, ``vendor_id``,
    ``product_id``, ``dev_type``. ``request_id`` is the same at both ends of every move of the instance, so a service
    can tell which functions take the place of which. The alias that asked for them is not recorded.
    """

    VERSION = '1.0'
    fields = {
        'count': fields.AmountField(),
        'spec': ovo_fields.ListOfDictOfNullableStringsField(),
        'request_id': ovo_fields.UUIDField(),
    }
    count: int
    spec: list[dict[str, str | None]]
    request_id: str


@base.register
class InstancePCIRequests(base.DeviceTrackObject):
    """The requests for which an instance got its functions at one end of a move."""

    VERSION = '1.0'
    fields = {
        'instance_uuid': ovo_fields.UUIDField(),
        'requests': ovo_fields.ListOfObjectsField(base.name_of('InstancePCIRequest')),
    }
    instance_uuid: str
    requests: list[InstancePCIRequest]

    @classmethod
    def of(cls, resources: InstanceResources | None) -> InstancePCIRequests | None:
        """The requests for the kind ``pci`` in an instance's resources; None if it has none, or they are unknown."""
        by_class: dict[str, list[DeviceAssignment]] = {}
        for one in _functions(resources):
            by_class.setdefault(one.resource_class, []).append(one)
        if resources is None or not by_class:
            return None
        return cls(instance_uuid=resources.instance_uuid, requests=[
            InstancePCIRequest(count=len(those), spec=_sorts(those),
                               request_id=_request_id(resources.instance_uuid, resource_class))
            for resource_class, those in by_class.items()])


def _functions(resources: InstanceResources | None) -> list[DeviceAssignment]:
    return [one for one in resources or () if one.kind == _PCI]


def _sorts(those: Iterable[DeviceAssignment]) -> list[dict[str, str]]:
    """Each sort of functions once, in their order."""
    found = [{'resource_class': one.resource_class, 'vendor_id': one.details.vendor_id,
              'product_id': one.details.product_id, 'dev_type': one.details.device_type} for one in those]
    return [sort for index, sort in enumerate(found) if sort not in found[:index]]


def _request_id(instance_uuid: str, resource_class: str) -> str:
    return str(uuid.uuid5(uuid.UUID(instance_uuid), resource_class))
