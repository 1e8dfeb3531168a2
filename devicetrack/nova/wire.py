"""The messages between the two ends of a live migration, inside the data that Nova already sends.

Nova's ``LibvirtLiveMigrateData`` has a map of strings, ``target_mdevs``, which names the destination's device for each
mediated device of the source. Nova only looks up UUIDs in it. So every release carries one more key, and a host without
this adapter ignores that key. Its value is JSON: the messages of this library, by name.

If the data of a guest has that map at all, Nova takes the guest for one with devices: it cleans up at the source after
the move, and at the destination after a failure. So the data of a guest that has no devices of ours gets no map.
"""

from __future__ import annotations

import json
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.nova import resources
from devicetrack.objects import DeviceMap
from devicetrack.objects import InstanceResources
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects.details import MdevDetails

KEY: Final = 'devicetrack'
_CHECK, _RESOURCES, _MAP = 'check', 'resources', 'map'


class SourceAnswer(NamedTuple):
    """The destination's knowledge of a running guest's devices. ``check`` is None if the source lacks this adapter."""

    resources: InstanceResources
    check: LiveMigrationCheck | None


def put_question(data: Any, check: LiveMigrationCheck) -> None:
    """At the destination: ask the source for its devices."""
    _put(data, {_CHECK: check.to_text()})


def question(data: Any) -> LiveMigrationCheck | None:
    """At the source: read the destination's question; None from a destination without this adapter.

    :raises MalformedObject, UnknownObject: the question cannot be read
    """
    text = _read(data).get(_CHECK)
    return None if text is None else LiveMigrationCheck.from_text(text)


def put_answer(data: Any, check: LiveMigrationCheck, has: InstanceResources) -> None:
    """At the source: tell the guest's devices.

    :param has: those of ``check``, perhaps beside earlier devices of the guest that are being released
    """
    of_guest = {(one.kind, one.identifier) for one in check.devices or ()}
    has = InstanceResources(instance_uuid=has.instance_uuid, host_uuid=has.host_uuid, assignments=[
        one for one in has if (one.kind, one.identifier) in of_guest])
    _put(data, {_CHECK: check.to_text(), _RESOURCES: has.to_text()})


def source(data: Any, instance: Any) -> SourceAnswer:
    """At the destination: read which devices the guest has.

    :raises MalformedObject, UnknownObject: the answer cannot be read
    """
    said = _read(data)
    if _RESOURCES in said:
        return SourceAnswer(InstanceResources.from_text(said[_RESOURCES]),
                            LiveMigrationCheck.from_text(said.get(_CHECK, '')))
    # The source does not have this adapter. Nova's own message has the types of mediated devices, and the instance has
    # its namespaces. The class of a mediated device is unknown here: see tracker.claim_for_live_migration().
    types = data.source_mdev_types if 'source_mdev_types' in data else {}
    mdevs = [(resources.UNKNOWN_UUID, 'VGPU', uuid, MdevDetails(
        type=device_type, parent='', parent_address=None, device_api='vfio-pci', iommu_group=None,
        origin=vocabulary.EXISTING))
        for uuid, device_type in sorted(types.items())]
    has = InstanceResources.from_tuples(instance.uuid, [*resources.namespaces(instance.resources), *mdevs])
    return SourceAnswer(has, None)


def put_map(data: Any, device_map: DeviceMap) -> None:
    """At the destination: tell which of its devices replaces each of the guest's devices."""
    data.target_mdevs = {**device_map.mdev_targets(), KEY: json.dumps({_MAP: device_map.to_text()})}


def device_map(data: Any) -> DeviceMap | None:
    """At the source: read the map of devices; None from a destination without this adapter.

    :raises MalformedObject, UnknownObject: the map cannot be read
    """
    text = _read(data).get(_MAP)
    return None if text is None else DeviceMap.from_text(text)


def take_away(data: Any) -> None:
    """Take our messages out of the data of a guest that has no devices of ours, so that it is as Nova made it."""
    if 'target_mdevs' in data and KEY in data.target_mdevs:
        others = {name: value for name, value in data.target_mdevs.items() if name != KEY}
        if others:
            data.target_mdevs = others
        else:
            delattr(data, 'target_mdevs')


def without_devices(data: Any) -> Any:
    """Return a copy with which Nova changes no device in the guest's definition."""
    copied = data.obj_clone()
    if 'target_mdevs' in copied:
        delattr(copied, 'target_mdevs')
    return copied


def _put(data: Any, said: dict[str, str]) -> None:
    others = data.target_mdevs if 'target_mdevs' in data else {}
    data.target_mdevs = {**others, KEY: json.dumps(said)}


def _read(data: Any) -> dict[str, str]:
    text = data.target_mdevs.get(KEY) if 'target_mdevs' in data else None
    if text is None:
        return {}
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise exception.MalformedObject(f'target_mdevs[{KEY}]', str(error)) from error
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        raise exception.MalformedObject(f'target_mdevs[{KEY}]', 'must be an object of texts')
    return said
