"""What the two ends of a live migration exchange before the claim."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import base


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


@base.register
class LiveMigrationCheck(base.DeviceTrackObject):
    """The message that the destination of a live migration sends to the source and gets back.

    ``devices`` are those of the running guest, in its order, or None until the source has filled them in. The message
    describes a host, so show nothing of it to the owner of the guest.
    """

    VERSION = '1.0'
    fields = {
        'instance_uuid': ovo_fields.UUIDField(),
        'devices': ovo_fields.ListOfObjectsField(base.name_of('DeclaredDevice'), nullable=True),
    }
