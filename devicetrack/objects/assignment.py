"""One device held for one instance."""

from __future__ import annotations

from typing import Any

from oslo_versionedobjects import fields as ovo_fields

from devicetrack import vocabulary
from devicetrack.objects import base
from devicetrack.objects import details
from devicetrack.objects import fields
from devicetrack.objects import values


@base.register
class DeviceAssignment(base.DeviceTrackObject):
    """One device held for one instance, as it was recorded.

    ``kind`` and ``identifier`` name the device on its host: a namespace by its name (``vpmem``), a mediated device by
    its UUID (``mdev``). ``role`` is ``current``, or in a move ``incoming`` (claimed at the destination; the guest does
    not run on it yet) or ``old`` (the guest left it; it is kept until the move ends). ``migration_uuid`` names that
    move. ``state`` is ``claimed``, ``active`` (the guest runs on it) or ``releasing`` (being released). ``details``
    has the facts that only its kind knows, such as a label or an mdev type.

    ``position`` counts from 0 in the order of the request, which is the order of devices in the guest. ``claim_id``
    names the claim that took it. ``generation`` counts the writes of its row. ``created_at`` is in seconds since the
    epoch, and no decision uses it. ``seen`` is the highest migration version that the guest may have seen of the device
    since its boot, or None when nobody knows. ``was_realized`` says whether the device was ever realized for its guest,
    or that is unknown.

    1.1 added ``seen``. 1.2 added ``was_realized``.
    """

    VERSION = '1.2'
    fields = {
        'host_uuid': ovo_fields.UUIDField(),
        'kind': ovo_fields.StringField(),
        'identifier': ovo_fields.StringField(),
        'instance_uuid': ovo_fields.UUIDField(),
        'migration_uuid': ovo_fields.UUIDField(nullable=True),
        'role': fields.RoleField(),
        'state': fields.StateField(),
        'position': ovo_fields.NonNegativeIntegerField(),
        'claim_id': ovo_fields.StringField(),
        'generation': ovo_fields.NonNegativeIntegerField(),
        'provider_uuid': ovo_fields.UUIDField(),
        'resource_class': ovo_fields.StringField(),
        'parent': ovo_fields.StringField(nullable=True),
        'numa_node': ovo_fields.IntegerField(nullable=True),
        'details': ovo_fields.ObjectField(base.name_of('DeviceDetails'), subclasses=True),
        'created_at': ovo_fields.NonNegativeIntegerField(),
        'seen': fields.or_none(ovo_fields.StringField),
        'was_realized': ovo_fields.BooleanField(default=True),
    }
    host_uuid: str
    kind: str
    identifier: str
    instance_uuid: str
    migration_uuid: str | None
    role: str
    state: str
    position: int
    claim_id: str
    generation: int
    provider_uuid: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    details: Any                    # of the class of its kind
    created_at: int
    seen: str | None
    was_realized: bool
    ADDED = {'1.1': ('seen',), '1.2': ('was_realized',)}
    # A peer may name only the version of this class that it knows. It gets the details of that release.
    obj_relationships = {'details': [('1.0', '1.0')]}

    _record: values.Record | None = None     # what ``details`` loads from

    @classmethod
    def from_record(cls, record: values.Record) -> DeviceAssignment:
        """Make one from a row. Its details are parsed on first use, and a claim does not use them."""
        known = {**record._asdict(), 'was_realized': bool(record.was_realized)}      # SQLite answers with a number
        del known['details'], known['instance_name']             # the service knows the names of its instances
        made = cls.of_known(**known)
        made._record = record
        return made

    def __str__(self) -> str:
        if any(name not in self for name in ('kind', 'identifier', 'state', 'role')):
            return repr(self)
        return f'{self.kind}/{self.identifier} {self.state} {self.role}'

    @property
    def key(self) -> values.DeviceKey:
        return values.DeviceKey(self.kind, self.identifier)

    @property
    def was_only_claimed(self) -> bool:
        """Whether the row says that the device was claimed, never realized for a guest, and then given back.

        This says nothing about other users.
        """
        return bool(self.state == vocabulary.RELEASING and not self.was_realized)

    def obj_load_attr(self, attrname: str) -> None:
        if attrname != 'details' or self._record is None:
            super().obj_load_attr(attrname)
            return
        self.__dict__['_obj_details'] = details.from_text(self._record.details)

    def obj_attr_is_set(self, attrname: str) -> bool:
        # Serializing, comparing and copying ask this first, and need the details too.
        if attrname == 'details' and self._record is not None:
            _ = self.details
        return bool(super().obj_attr_is_set(attrname))
