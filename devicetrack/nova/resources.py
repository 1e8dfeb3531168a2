"""Converts assignments to and from Nova's form, and reads the device classes that flavors ask for.

Nova's instances keep their namespaces of persistent memory as ``objects.Resource``, and keep nothing about mediated
devices. The adapter does the same, so that Nova without the adapter finds the records that it would have written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Set
from typing import Any

from nova import objects

from devicetrack.objects import extra_specs as specs
from devicetrack.objects import InstanceResources
from devicetrack.objects.details import MdevDetails
from devicetrack.objects.details import VPMEMDetails


def of(resources: InstanceResources) -> Any:
    """Make a ``ResourceList`` with the namespaces of an instance, in their order; None without any."""
    found = [objects.Resource(
        provider_uuid=one.provider_uuid, resource_class=one.resource_class, identifier=one.identifier,
        metadata=objects.LibvirtVPMEMDevice(
            label=one.details.label, name=one.identifier, devpath=one.details.devpath, size=one.details.size_bytes,
            align=one.details.align_bytes))
        for one in resources if isinstance(one.details, VPMEMDetails)]
    return objects.ResourceList(objects=found) if found else None


def namespaces(found: Iterable[Any] | None) -> list[tuple[str, str, str, VPMEMDetails]]:
    """Return the namespaces of a ``ResourceList``, as :meth:`.InstanceResources.from_tuples` takes them.

    Nova does not keep the UUIDs of namespaces, so they are unknown. A claim for a guest that moves here needs none.
    """
    return [(one.provider_uuid, one.resource_class, one.identifier, VPMEMDetails(
        namespace_uuid=UNKNOWN_UUID, label=one.metadata.label, devpath=one.metadata.devpath,
        size_bytes=one.metadata.size, align_bytes=one.metadata.align))
        for one in found or () if 'metadata' in one and isinstance(one.metadata, objects.LibvirtVPMEMDevice)]


def at_paths(found: Any, paths: Mapping[str, str]) -> Any:
    """Return a ``ResourceList`` with other paths of its namespaces; None if it has these paths.

    :param paths: by name; a namespace without one keeps the path that it has
    """
    if all(paths.get(name, has.devpath) == has.devpath for _provider, _class, name, has in namespaces(found)):
        return None
    changed = found.obj_clone()
    for one in changed:
        if 'metadata' in one and isinstance(one.metadata, objects.LibvirtVPMEMDevice):
            one.metadata.devpath = paths.get(one.identifier, one.metadata.devpath)
    return changed


def with_allocated_classes(has: InstanceResources, allocations: Mapping[str, Any] | None,
                           classes: Mapping[str, str]) -> InstanceResources:
    """Return the devices of a guest that comes here, each mediated one with a resource class that is allocated here.

    A device gets the class of its type. If no more of that is allocated, its partner has another type, and it gets a
    class that is left. Without any, its class stays: the claim refuses it, because too few devices are allocated.

    :param classes: the resource class of each type of mediated devices here
    """
    counted, left = set(classes.values()), Counter[str]()
    for at in (allocations or {}).values():
        left.update({name: amount for name, amount in at['resources'].items() if name in counted})
    mdevs = [one for one in has if isinstance(one.details, MdevDetails)]
    found: dict[str, str] = {}
    for one in mdevs:
        wanted = classes.get(one.details.type)
        if wanted is not None and left[wanted]:
            found[one.identifier] = wanted
            left[wanted] -= 1
    others = left.elements()
    for one in mdevs:
        if one.identifier not in found:
            found[one.identifier] = next(others, one.resource_class)
    return InstanceResources.from_tuples(has.instance_uuid, [
        (one.provider_uuid, found.get(one.identifier, one.resource_class), one.identifier, one.details) for one in has])


def asked(flavor: Any, counted: Set[str], aliases: Mapping[str, Any] | None = None) -> frozenset[str]:
    """Return the classes of devices that a flavor asks for.

    :param counted: the classes that count devices of the host
    :param aliases: the aliases of its PCI functions; None if Nova hands them out itself
    :raises BadRequest: an extra spec is not valid
    """
    # If the options offer no devices, the host counts no class.
    ours = specs.Counted(counted)
    return specs.read(flavor.extra_specs, aliases, ours).classes(ours)


UNKNOWN_UUID = '00000000-0000-0000-0000-000000000000'
