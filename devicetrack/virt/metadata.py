"""The record of a guest's devices: one element among the metadata of the guest's definition.

If the store is lost, the records are enough to rebuild its rows. They have the owner of each device, its claim and
migration, how placement counts it, and the details that only the claim knew (whether an mdev was created or existed,
which namespace had the name). As long as the store answers, it alone decides who owns a device: anybody who may edit a
guest's definition may edit the record.
"""

from __future__ import annotations

from collections.abc import Sequence
import re
from xml.sax import saxutils

from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment

# libvirt keeps one element for each namespace under <metadata>. Any URI may be a namespace.
NAMESPACE = 'urn:devicetrack:guest-devices:1'
ELEMENT = 'devices'
DEVICE = 'device'
# The value of the attribute "beside". Only a device without an element in the definition has that attribute.
BESIDE = 'yes'
_NOT_OF_XML = re.compile('[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]')


def element(assignments: Sequence[DeviceAssignment], flavor: str | None = None,
            beside: Sequence[DeviceAssignment] = (), boot_id: str | None = None) -> str:
    """Make the element for assignments of one instance, in their order; '' without any assignment.

    :param flavor: the name of the instance's flavor, where it is known. A character that XML cannot have becomes U+FFFD
    :param beside: assignments of the instance on this host that the guest has no element for
    :param boot_id: the boot of the host for which the definition's addresses are valid
    """
    everything = (*assignments, *beside)
    if not everything:
        return ''
    whose = ''.join((_attribute('instance', everything[0].instance_uuid), _attribute('host', everything[0].host_uuid),
                     _attribute('flavor', flavor and _NOT_OF_XML.sub('\ufffd', flavor)), _attribute('boot', boot_id)))
    lines = [f'<devicetrack:{ELEMENT} xmlns:devicetrack="{NAMESPACE}"{whose}>',
             *(_device(assignment, None) for assignment in assignments),
             *(_device(assignment, BESIDE) for assignment in beside),
             f'</devicetrack:{ELEMENT}>']
    return '\n'.join(lines)


def _device(assignment: DeviceAssignment, beside: str | None) -> str:
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
        _attribute('migration', assignment.migration_uuid),
        _attribute('beside', beside)))
    text = saxutils.escape(details.to_text(assignment.details))
    return f'  <devicetrack:{DEVICE}{attributes}>{text}</devicetrack:{DEVICE}>'


def _attribute(name: str, value: object) -> str:
    """Make an attribute, with a space before it. None makes no attribute."""
    return '' if value is None else f' {name}={saxutils.quoteattr(str(value))}'
