"""Which device of a destination stands for which device of the source, while a guest moves live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oslo_utils import versionutils
from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import base
from devicetrack.objects import fields

# The kind whose devices a compute service's own messages know by name: they carry two maps of strings.
_MDEV = 'mdev'


@base.register
class DevicePair(base.DeviceTrackObject):
    """One device of the source and its partner at the destination; both are named by their identifiers.

    ``type`` is the source's as people know it: an mdev type, or the label of a namespace. ``element`` is the element of
    the destination's guest. ``seen`` is the highest migration version that the guest may have seen, by which the
    destination decided; None when nobody knows.

    1.1 added ``seen``.
    """

    VERSION = '1.1'
    fields = {
        'kind': ovo_fields.StringField(),
        'resource_class': ovo_fields.StringField(),
        'source': ovo_fields.StringField(),
        'destination': ovo_fields.StringField(),
        'type': ovo_fields.StringField(),
        'element': ovo_fields.StringField(),
        'seen': fields.or_none(ovo_fields.StringField),
    }

    def obj_make_compatible(self, primitive: dict[str, Any], target_version: str) -> None:
        super().obj_make_compatible(primitive, target_version)
        if versionutils.convert_version_to_tuple(target_version) < (1, 1):
            primitive.pop('seen', None)


@base.register
class DeviceMap(base.DeviceTrackObject):
    """All pairs of one live migration, in the order of the source's positions.

    The destination makes it and the source uses it. ``metadata`` is the element that the destination's definitions have
    in the place of the source's. ``post_copy_allowed`` is false when there is any pair: a guest that runs at the
    destination before all of its memory is there cannot come back, and an assigned device cannot wait for memory.

    1.1 has pairs of 1.1.
    """

    VERSION = '1.1'
    fields = {
        'instance_uuid': ovo_fields.UUIDField(),
        'migration_uuid': ovo_fields.UUIDField(),
        'pairs': ovo_fields.ListOfObjectsField(base.name_of('DevicePair')),
        'metadata': ovo_fields.StringField(),
        'post_copy_allowed': ovo_fields.BooleanField(),
    }
    obj_relationships = {'pairs': [('1.0', '1.0'), ('1.1', '1.1')]}

    @classmethod
    def of(cls, instance_uuid: str, migration_uuid: str, pairs: Sequence[DevicePair], metadata: str) -> DeviceMap:
        """Make one; whether post-copy is allowed follows from the pairs."""
        return cls(instance_uuid=instance_uuid, migration_uuid=migration_uuid, pairs=list(pairs), metadata=metadata,
                   post_copy_allowed=not pairs)

    def mdev_types(self) -> dict[str, str]:
        """The type of every mediated device of the source, by its UUID."""
        return {pair.source: pair.type for pair in self.pairs if pair.kind == _MDEV}

    def mdev_targets(self) -> dict[str, str]:
        """The UUID of the destination's mediated device, by the UUID of the source's."""
        return {pair.source: pair.destination for pair in self.pairs if pair.kind == _MDEV}
