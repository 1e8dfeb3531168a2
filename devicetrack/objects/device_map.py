"""Which device of the destination takes the place of which device of the source in a live migration."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from xml.sax import saxutils

from oslo_versionedobjects import fields as ovo_fields

from devicetrack import exception
from devicetrack.objects import base
from devicetrack.objects import fields
from devicetrack.objects import message

# A compute service's own messages have two maps of strings for mediated devices, and none for other kinds.
_MDEV = 'mdev'


@base.register
class DevicePair(base.DeviceTrackObject):
    """One device of the source and its partner at the destination, by their identifiers.

    ``type`` is the source's type for people: an mdev type, or the label of a namespace. ``element`` is the element for
    the guest at the destination. ``seen`` is the highest migration version that the guest may have seen, which the
    destination used to decide; None when nobody knows.

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
    kind: str
    resource_class: str
    source: str
    destination: str
    type: str
    element: str
    seen: str | None
    ADDED = {'1.1': ('seen',)}


@base.register
class DeviceMap(message.Message):
    """All pairs of one live migration, in the order of the source's positions.

    The destination makes it and the source uses it. ``metadata`` replaces the source's element in the metadata of the
    guest's definitions. ``post_copy_allowed`` is false when there is any pair: with post-copy a guest runs at the
    destination before all of its memory is there, so it cannot go back, and an assigned device cannot wait for memory.

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
    instance_uuid: str
    migration_uuid: str
    pairs: list[DevicePair]
    metadata: str
    post_copy_allowed: bool
    obj_relationships = {'pairs': [('1.0', '1.0'), ('1.1', '1.1')]}

    @classmethod
    def of(cls, instance_uuid: str, migration_uuid: str, pairs: Sequence[DevicePair], metadata: str) -> DeviceMap:
        """Make a map. Post-copy is allowed only without pairs."""
        return cls(instance_uuid=instance_uuid, migration_uuid=migration_uuid, pairs=list(pairs), metadata=metadata,
                   post_copy_allowed=not pairs)

    @classmethod
    def from_mdevs(cls, instance_uuid: str, migration_uuid: str, types: Mapping[str, str], targets: Mapping[str, str],
                   resource_class: str = 'VGPU', device_api: str = 'vfio-pci') -> DeviceMap:
        """Make a map from the message of another compute service, which tells only of mediated devices.

        It has no metadata, so the guest has no record of its devices at the destination, and no ``seen``. Elements are
        those of libvirt.

        :param types: as :meth:`mdev_types`, in the order of the guest
        :param targets: as :meth:`mdev_targets`
        :param device_api: the device API of the types
        :raises MalformedObject: an argument is malformed, or the maps are not about the same devices; names the field
        """
        message.check_uuid('instance_uuid', instance_uuid)
        message.check_uuid('migration_uuid', migration_uuid)
        message.check_map('types', types)
        message.check_map('targets', targets)
        for source in sorted(types.keys() ^ targets.keys()):
            raise exception.MalformedObject('types' if source in targets else 'targets', f'has no device {source}')
        for source, destination in targets.items():
            message.check_uuid(f'targets[{source}]', destination)
        if len(set(targets.values())) != len(targets):
            raise exception.MalformedObject('targets', 'two devices would become one')
        api = saxutils.quoteattr(device_api)
        return cls.of(instance_uuid, migration_uuid, [
            DevicePair(kind=_MDEV, resource_class=resource_class, source=source, destination=targets[source],
                       type=device_type, element=f"<hostdev mode='subsystem' type='mdev' model={api}><source>"
                                                 f"<address uuid='{targets[source]}'/></source></hostdev>")
            for source, device_type in types.items()], '')

    def mdev_types(self) -> dict[str, str]:
        """The types of the source's mediated devices, by their UUIDs."""
        return {pair.source: pair.type for pair in self.pairs if pair.kind == _MDEV}

    def mdev_targets(self) -> dict[str, str]:
        """The UUIDs of the destination's mediated devices, by the UUIDs of the source's."""
        return {pair.source: pair.destination for pair in self.pairs if pair.kind == _MDEV}
