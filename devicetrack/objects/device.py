"""A device of a host."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import base
from devicetrack.objects import details
from devicetrack.objects import values


@base.register
class Device(base.DeviceTrackObject):
    """One assignable unit of a host.

    Its identity is (host, ``kind``, ``identifier``). Everything else may change while it has an owner. ``provider`` is
    the stable name of the parent that placement counts it at, '' for the node. ``unhealthy`` is the reason why it must
    not be handed out, or None.
    """

    VERSION = '1.0'
    fields = {
        'kind': ovo_fields.StringField(),
        'identifier': ovo_fields.StringField(),
        'provider': ovo_fields.StringField(),
        'resource_class': ovo_fields.StringField(),
        'parent': ovo_fields.StringField(nullable=True),
        'numa_node': ovo_fields.IntegerField(nullable=True),
        'details': ovo_fields.ObjectField(base.name_of('DeviceDetails'), subclasses=True),
        'unhealthy': ovo_fields.StringField(nullable=True),
    }

    @classmethod
    def from_values(cls, device: values.InventoryDevice) -> Device:
        return cls(**{**device._asdict(), 'details': details.from_text(device.details)})
