"""What a guest's own definition says about its devices: one element among the definition's metadata.

The store is the authority while it is there. When it is lost, what is written here is enough to write its rows
again: whose devices they are, for which claim and migration, how placement counts them, and the details that
only the claim knew (whether an mdev was created or adopted, which namespace had the name). Text in the element
never decides who owns a device while the store answers: whoever may edit a guest's definition may edit this.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax import saxutils

from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment

# libvirt keeps one element for each namespace under <metadata> and takes any URI for one.
NAMESPACE = 'urn:devicetrack:guest-devices:1'
ELEMENT = 'devices'
DEVICE = 'device'
# What the attribute of that name says of a device without an element in the definition; the others have none.
BESIDE = 'yes'


def element(assignments: Sequence[DeviceAssignment], flavor: str | None = None,
            beside: Sequence[DeviceAssignment] = (), boot_id: str | None = None) -> str:
    """The element for assignments of one instance, in their order; '' for none of them, which need no record.

    :param flavor: the name of the instance's flavor, where it is known
    :param beside: assignments of the instance on this host that the guest has no element for
    :param boot_id: the boot of the host for which the definition's addresses are valid
    """
    everything = (*assignments, *beside)
    if not everything:
        return ''
    whose = ''.join((_attribute('instance', everything[0].instance_uuid), _attribute('host', everything[0].host_uuid),
                     _attribute('flavor', flavor), _attribute('boot', boot_id)))
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
    """An attribute with its space before it; an absent value is an absent attribute, never an empty one."""
    return '' if value is None else f' {name}={saxutils.quoteattr(str(value))}'
