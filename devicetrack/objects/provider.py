"""The resource providers at which placement counts devices."""

from __future__ import annotations

from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import base


@base.register
class Provider(base.DeviceTrackObject):
    """A resource provider of this host: the node, or a parent device under it.

    ``parent_uuid`` is None for the node. ``totals`` counts by resource class the devices that exist and those that can
    still be made. ``reserved`` counts those of them that no instance holds and none may get. ``traits`` are the sorted
    names of the traits of the devices.

    1.1 added ``reserved`` and ``traits``.
    """

    VERSION = '1.1'
    fields = {
        'uuid': ovo_fields.UUIDField(),
        'name': ovo_fields.StringField(),
        'parent_uuid': ovo_fields.UUIDField(nullable=True),
        'totals': ovo_fields.DictOfIntegersField(),
        'reserved': ovo_fields.DictOfIntegersField(default={}),
        'traits': ovo_fields.ListOfStringsField(default=[]),
    }
    uuid: str
    name: str
    parent_uuid: str | None
    totals: dict[str, int]
    reserved: dict[str, int]
    traits: list[str]
    ADDED = {'1.1': ('reserved', 'traits')}
