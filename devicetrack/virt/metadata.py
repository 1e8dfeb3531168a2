"""What a guest's own definition says about its devices: one element among the definition's metadata.

The store is the authority while it is there. When it is lost, what is written here is enough to write its rows
again: whose devices they are, for which claim and migration, how placement counts them, and the details that
only the claim knew (whether an mdev was created or adopted, which namespace had the name). Text in the element
never decides who owns a device while the store answers: whoever may edit a guest's definition may edit this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax import saxutils

from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment

# libvirt keeps one element for each namespace under <metadata> and takes any URI for one.
NAMESPACE = 'urn:devicetrack:guest-devices:1'
ELEMENT = 'devices'
DEVICE = 'device'


class RecordedDevice(NamedTuple):
    """One device as the definition of its guest records it; ``details`` is the stored text of its details."""

    kind: str
    identifier: str
    resource_class: str
    provider_uuid: str
    parent: str | None
    numa_node: int | None
    position: int
    claim_id: str
    role: str
    migration_uuid: str | None
    details: str


class GuestRecord(NamedTuple):
    """All devices of one instance as the definition of its guest records them."""

    instance_uuid: str
    host_uuid: str
    flavor: str | None
    devices: tuple[RecordedDevice, ...]


def element(assignments: Sequence[DeviceAssignment], flavor: str | None = None) -> str:
    """The element for assignments of one instance, in their order; '' for none of them, which need no record.

    :param flavor: the name of the instance's flavor, where it is known
    """
    if not assignments:
        return ''
    first = assignments[0]
    whose = ''.join((_attribute('instance', first.instance_uuid), _attribute('host', first.host_uuid),
                     _attribute('flavor', flavor)))
    lines = [f'<devicetrack:{ELEMENT} xmlns:devicetrack="{NAMESPACE}"{whose}>']
    for assignment in assignments:
        attributes = ''.join((
            _attribute('kind', assignment.kind),
            _attribute('identifier', assignment.identifier),
            _attribute('resourceClass', assignment.resource_class),
            _attribute('provider', assignment.provider_uuid),
            _attribute('parent', assignment.parent),
            _attribute('numaNode', assignment.numa_node),
            _attribute('position', assignment.position),
            _attribute('claim', assignment.claim_id),
            _attribute('role', assignment.role),
            _attribute('migration', assignment.migration_uuid)))
        text = saxutils.escape(details.to_text(assignment.details))
        lines.append(f'  <devicetrack:{DEVICE}{attributes}>{text}</devicetrack:{DEVICE}>')
    lines.append(f'</devicetrack:{ELEMENT}>')
    return '\n'.join(lines)


def _attribute(name: str, value: object) -> str:
    """An attribute with its space before it; an absent value is an absent attribute, never an empty one."""
    return '' if value is None else f' {name}={saxutils.quoteattr(str(value))}'
