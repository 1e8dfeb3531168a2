"""All assignments of one instance on one host."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import Final

from oslo_versionedobjects import fields as ovo_fields

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.objects import assignment
from devicetrack.objects import base
from devicetrack.objects import details
from devicetrack.objects import message
from devicetrack.objects import values

# The host UUID of devices whose host another service does not name.
UNKNOWN_HOST: Final = '00000000-0000-0000-0000-000000000000'
_KINDS: Final = {details.MdevDetails: 'mdev', details.PCIDetails: 'pci', details.VFDetails: 'vf',
                 details.VPMEMDetails: 'vpmem'}
_NAMES: Final = ', '.join(cls.__name__ for cls in _KINDS)


@base.register
class InstanceResources(message.Message, Sequence[assignment.DeviceAssignment]):
    """The assignments of one instance on one host, a sequence in the order of the request; empty when it has none.

    1.1 has assignments of 1.1, and 1.2 those of 1.2.
    """

    VERSION = '1.2'
    fields = {
        'instance_uuid': ovo_fields.UUIDField(),
        'host_uuid': ovo_fields.UUIDField(),
        'assignments': ovo_fields.ListOfObjectsField(base.name_of('DeviceAssignment')),
    }
    instance_uuid: str
    host_uuid: str
    assignments: list[assignment.DeviceAssignment]
    obj_relationships = {'assignments': [('1.0', '1.0'), ('1.1', '1.1'), ('1.2', '1.2')]}

    @classmethod
    def from_records(cls, instance_uuid: str, host_uuid: str,
                     records: Sequence[values.Record]) -> InstanceResources:
        return cls.of_known(instance_uuid=instance_uuid, host_uuid=host_uuid,
                            assignments=[assignment.DeviceAssignment.from_record(record) for record in records])

    @classmethod
    def from_tuples(cls, instance_uuid: str, devices: Iterable[tuple[str, str, str, details.DeviceDetails]],
                    host_uuid: str = UNKNOWN_HOST) -> InstanceResources:
        """Make the resources of an instance on another host, from the facts that another compute service has.

        The assignments are current and active. Hand them to the claim of a live migration as the source's resources.

        :param devices: tuples (provider UUID, resource class, identifier, details), in the order of the guest
        :param host_uuid: the source's UUID, if it is known
        :raises MalformedObject: an argument is malformed; names the field
        """
        message.check_uuid('instance_uuid', instance_uuid)
        message.check_uuid('host_uuid', host_uuid)
        made = []
        for index, one in enumerate(devices):
            where = f'devices[{index}]'
            if not isinstance(one, (tuple, list)) or len(one) != 4:
                raise exception.MalformedObject(where, 'must be (provider UUID, resource class, identifier, details)')
            provider_uuid, resource_class, identifier, known = one
            kind = _KINDS.get(type(known))
            if kind is None:
                raise exception.MalformedObject(f'{where}.details', f'must be one of {_NAMES}')
            if known.unset_fields():
                raise exception.MalformedObject(f'{where}.details.{known.unset_fields()[0]}', 'is missing')
            for name, value in (('resource_class', resource_class), ('identifier', identifier)):
                if not isinstance(value, str) or not value:
                    raise exception.MalformedObject(f'{where}.{name}', f'{value!r}: must be a text')
            made.append(assignment.DeviceAssignment(
                host_uuid=host_uuid, kind=kind, identifier=identifier, instance_uuid=instance_uuid,
                migration_uuid=None, role=vocabulary.CURRENT, state=vocabulary.ACTIVE, position=index, claim_id='',
                generation=0, provider_uuid=message.check_uuid(f'{where}.provider_uuid', provider_uuid),
                resource_class=resource_class, parent=getattr(known, 'parent', None), numa_node=None, details=known,
                created_at=0, was_realized=True))
        return cls(instance_uuid=instance_uuid, host_uuid=host_uuid, assignments=made)

    def __repr__(self) -> str:
        # The repr() of versioned objects names only the class of each item.
        if self.unset_fields():
            return super().__repr__()
        devices = ', '.join(map(str, self.assignments))
        return f'InstanceResources(instance_uuid={self.instance_uuid}, host_uuid={self.host_uuid}, [{devices}])'

    def __len__(self) -> int:
        return len(self.assignments)

    def __iter__(self) -> Iterator[assignment.DeviceAssignment]:
        return iter(self.assignments)

    def __contains__(self, item: Any) -> bool:
        # A versioned object contains the names of its fields that are set.
        return item in self.assignments if isinstance(item, assignment.DeviceAssignment) else super().__contains__(item)

    def __getitem__(self, index: Any) -> Any:
        """One assignment, or a list of them for a slice."""
        return self.assignments[index]
