"""All assignments of one instance on one host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import assignment
from devicetrack.objects import base
from devicetrack.objects import values


@base.register
class InstanceResources(base.DeviceTrackObject):
    """What one instance holds on one host, in the order of the request; empty when it holds nothing.

    1.1 has assignments of 1.1.
    """

    VERSION = '1.1'
    fields = {
        'instance_uuid': ovo_fields.UUIDField(),
        'host_uuid': ovo_fields.UUIDField(),
        'assignments': ovo_fields.ListOfObjectsField(base.name_of('DeviceAssignment')),
    }
    obj_relationships = {'assignments': [('1.0', '1.0'), ('1.1', '1.1')]}

    @classmethod
    def from_records(cls, instance_uuid: str, host_uuid: str,
                     records: Sequence[values.Record]) -> InstanceResources:
        return cls.of_known(instance_uuid=instance_uuid, host_uuid=host_uuid,
                            assignments=[assignment.DeviceAssignment.from_record(record) for record in records])

    def __len__(self) -> int:
        return len(self.assignments)

    def __iter__(self) -> Any:
        return iter(self.assignments)
