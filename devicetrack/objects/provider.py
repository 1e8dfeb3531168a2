"""Where placement counts devices."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import base


@base.register
class Provider(base.DeviceTrackObject):
    """A resource provider of this host: the node, or a parent device under it.

    ``parent_uuid`` is None for the node. ``totals`` is by resource class and counts what exists and what can still
    be made.
    """

    VERSION = '1.0'
    fields = {
        'uuid': ovo_fields.UUIDField(),
        'name': ovo_fields.StringField(),
        'parent_uuid': ovo_fields.UUIDField(nullable=True),
        'totals': ovo_fields.DictOfIntegersField(),
    }
