"""The messages that the two ends of a live migration exchange before the claim."""

from __future__ import annotations

from collections.abc import Mapping

from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import base
from devicetrack.objects import message

_MDEV = 'mdev'


@base.register
class DeclaredDevice(base.DeviceTrackObject):
    """One device that a guest runs on, and what its host declares about it.

    The fields from ``type`` on are those of :class:`devicetrack.compatibility.facts.Facts`; ``version`` is a text of
    the form ``version_form`` (:mod:`devicetrack.compatibility.facts`). ``seen`` is the highest migration version
    that the guest may have seen of the device since its boot, None when nobody knows.
    """

    VERSION = '1.0'
    fields = {
        'kind': ovo_fields.StringField(),
        'identifier': ovo_fields.StringField(),
        'resource_class': ovo_fields.StringField(),
        'type': ovo_fields.StringField(),
        'api': ovo_fields.StringField(),
        'version_form': ovo_fields.StringField(),
        'version': ovo_fields.StringField(),
        'required': ovo_fields.ListOfStringsField(),
        'offered': ovo_fields.ListOfStringsField(),
        'aggregation': ovo_fields.IntegerField(nullable=True),
        'obstacle': ovo_fields.StringField(nullable=True),
        'seen': ovo_fields.StringField(nullable=True),
    }
    kind: str
    identifier: str
    resource_class: str
    type: str
    api: str
    version_form: str
    version: str
    required: list[str]
    offered: list[str]
    aggregation: int | None
    obstacle: str | None
    seen: str | None


@base.register
class LiveMigrationCheck(message.Message):
    """The message that the destination of a live migration sends to the source and gets back.

    ``devices`` are those of the running guest, in its order, or None until the source has filled them in. The message
    describes a host, so show nothing of it to the owner of the guest.
    """

    VERSION = '1.0'
    fields = {
        'instance_uuid': ovo_fields.UUIDField(),
        'devices': ovo_fields.ListOfObjectsField(base.name_of('DeclaredDevice'), nullable=True),
    }
    instance_uuid: str
    devices: list[DeclaredDevice] | None

    @classmethod
    def from_mdevs(cls, instance_uuid: str, types: Mapping[str, str], resource_class: str = 'VGPU',
                   device_api: str = 'vfio-pci') -> LiveMigrationCheck:
        """Make a check from the message of another compute service about a guest's mediated devices.

        The message declares only their types, so their migration versions are unknown.

        :param types: type by UUID, in the order of the guest
        :param device_api: the device API of the types
        :raises MalformedObject: an argument is malformed; names the field
        """
        message.check_uuid('instance_uuid', instance_uuid)
        message.check_map('types', types)
        return cls(instance_uuid=instance_uuid, devices=[
            DeclaredDevice(kind=_MDEV, identifier=identifier, resource_class=resource_class, type=device_type,
                           api=device_api, version_form='unknown', version='its host declares nothing', required=[],
                           offered=[], aggregation=None, obstacle=None, seen=None)
            for identifier, device_type in types.items()])

    def mdev_types(self) -> dict[str, str]:
        """The types of the source's mediated devices, by their UUIDs; empty until the source has filled them in."""
        return {device.identifier: device.type for device in self.devices or () if device.kind == _MDEV}
