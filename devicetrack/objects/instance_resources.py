"""All assignments of one instance on one host."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from oslo_versionedobjects import fields as ovo_fields

from devicetrack.objects import assignment
from devicetrack.objects import base
from devicetrack.objects import values


@base.register
class InstanceResources(base.DeviceTrackObject, Sequence[assignment.DeviceAssignment]):
    """The assignments of one instance on one host, a sequence in the order of the request; empty when it has none.

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

    def __iter__(self) -> Iterator[assignment.DeviceAssignment]:
        return iter(self.assignments)

    def __contains__(self, item: Any) -> bool:
        # To a versioned object the name of a field is an item that it contains once it is set.
        return item in self.assignments if isinstance(item, assignment.DeviceAssignment) else super().__contains__(item)

    def __getitem__(self, index: Any) -> Any:
        """One assignment, or a list of them for a slice."""
        return self.assignments[index]
