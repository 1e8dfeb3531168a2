"""Live migrations: what both ends are asked before, the claim at the destination, and what becomes of which device.

Which devices may become which is decided in the engine; :mod:`.partnering` chooses among those that are free here.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
import functools
from typing import Any
from typing import TYPE_CHECKING

from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import moving
from devicetrack.claims import partnering
from devicetrack.claims.claim import Claim
from devicetrack.claims.partnering import Wanted
from devicetrack.compatibility.versions import version_seen
from devicetrack.engine import demand as demands
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import DeviceMap
from devicetrack.objects import DevicePair
from devicetrack.objects import InstanceResources
from devicetrack.objects import LiveMigrationCheck
from devicetrack.objects.values import DeviceKey

if TYPE_CHECKING:
    from devicetrack.claims.manager import ClaimManager

LOG = logging.getLogger(__name__)


def check_kinds(manager: ClaimManager, kinds: Collection[str]) -> None:
    """See that this host can take part in the live migration of a guest with devices of these kinds.

    :raises LiveMigrationUnsupported: it cannot
    """
    if not kinds:
        return
    for kind, reason in sorted(manager.driver.live_migration_obstacles().items()):
        if kind in kinds:
            raise exception.LiveMigrationUnsupported(manager.host, kind, reason)


def check_at_destination(manager: ClaimManager, instance: Any) -> LiveMigrationCheck:
    """See :meth:`ClaimManager.check_can_live_migrate_destination`."""
    resources = getattr(instance, 'resources', None)
    if isinstance(resources, InstanceResources):
        check_kinds(manager, partnering.kinds_here(manager, partnering.from_resources(resources)))
    return LiveMigrationCheck(instance_uuid=instance.uuid, devices=None)


def check_post_copy(instance: Any, kinds: Iterable[str], post_copy: bool) -> None:
    """:raises PostCopyRefused: it is asked for, and there is a device"""
    for kind in sorted(kinds):
        if post_copy:
            raise exception.PostCopyRefused(instance.uuid, kind)


def check_at_source(manager: ClaimManager, instance: Any, check: LiveMigrationCheck | None,
                    post_copy: bool) -> LiveMigrationCheck:
    """See :meth:`ClaimManager.check_can_live_migrate_source`."""
    if check is not None:
        _check_is_of(instance, check)
    there = [record for record in manager.records_of(instance.uuid) if record.state != vocabulary.RELEASING]
    # A source that was told to leave before has called them old. After a resize here the old ones are not the guest's.
    records = [record for record in there if record.role == vocabulary.CURRENT] or [
        record for record in there if record.role == vocabulary.OLD]
    kinds = {record.kind for record in records}
    check_kinds(manager, kinds)
    check_post_copy(instance, kinds, post_copy)
    return LiveMigrationCheck(instance_uuid=instance.uuid, devices=partnering.declare(manager, records))


def _check_is_of(instance: Any, check: LiveMigrationCheck) -> None:
    if not isinstance(check, LiveMigrationCheck):
        raise exception.BadRequest('check', type(check).__name__, 'must be a LiveMigrationCheck, or None')
    if check.instance_uuid != instance.uuid:
        raise exception.BadRequest('check.instance_uuid', check.instance_uuid, f'the instance is {instance.uuid}')


def claim(manager: ClaimManager, context: Any, instance: Any, migration: Any, demand: demands.Demand,
          numa_topology: Any, check: LiveMigrationCheck | None) -> Claim:
    """See :meth:`ClaimManager.live_migration_claim`."""
    if migration is not None and moving.is_source(manager, migration):
        raise exception.BadRequest('migration.source_compute', manager.host, 'a live migration has two hosts')
    guest = _source_devices(instance, check, demand)
    check_kinds(manager, partnering.kinds_here(manager, guest))
    partners = moving.Partners(functools.partial(partnering.choose, manager, guest), tuple(one.seen for one in guest))
    return moving.claim(manager, context, instance, migration, moving.LIVE_MIGRATION, demand, numa_topology, partners)


def _source_devices(instance: Any, check: LiveMigrationCheck | None, demand: demands.Demand) -> list[Wanted]:
    """The devices that the guest runs on, each of which needs a partner here.

    :raises BadRequest: nobody said which they are, or they are not as many as were asked for
    """
    resources = getattr(instance, 'resources', None)
    has = sorted(resources if isinstance(resources, InstanceResources) else (), key=lambda one: one.position)
    wanted = sum(item.amount for item in demand.items)
    if len(has) != wanted:
        raise exception.BadRequest(
            'instance.resources', len(has),
            f'the guest must find a partner for each of its devices and nothing else: {wanted} are allocated here')
    if check is None:
        # A source of an older release: it says which devices there are, and declares nothing of them.
        if has:
            LOG.warning('Live migration of instance %s without a check of its source: nothing is known of its devices '
                        'but their types', instance.uuid)
        return partnering.from_resources(has)
    _check_is_of(instance, check)
    if check.devices is None:
        raise exception.BadRequest('check.devices', None, 'the source has not said them: hand over what its '
                                   'check_can_live_migrate_source returned')
    devices = partnering.from_declared(check.devices)
    if [device.key for device in devices] != [DeviceKey(one.kind, one.identifier) for one in has]:
        raise exception.BadRequest('check.devices', [device.key for device in devices],
                                   'the guest has others, by instance.resources: read the instance again')
    return devices


def device_map(manager: ClaimManager, instance: Any, migration: Any) -> DeviceMap:
    """Which device of this host each device of the running guest becomes: :meth:`ClaimManager.device_map`."""
    records = [record for record in manager.records_of(instance.uuid) if record.migration_uuid == migration.uuid
               and record.role != vocabulary.OLD and record.state != vocabulary.RELEASING]
    stored = moving.stored_context(manager, instance.uuid)
    if stored is None or stored.migration_uuid != migration.uuid:
        if records:
            raise exception.InstanceNotClaimed(instance.uuid, f'part of migration {migration.uuid} with its context')
        return DeviceMap.of(instance.uuid, migration.uuid, (), '')
    # The claim put partners at the places of those that they are partners of.
    source = sorted(stored.old_resources or (), key=lambda one: one.position)
    there = [DeviceAssignment.from_record(record) for record in records]
    for left in source[len(there):]:
        raise exception.NoDevicePair(left.kind, left.identifier, 'the claim there has fewer devices')
    config = manager.driver.guest_config(there, getattr(getattr(instance, 'flavor', None), 'name', None))
    pairs = [DevicePair(kind=left.kind, resource_class=one.resource_class, source=left.identifier,
                        destination=one.identifier, type=left.details.type_name, element=element, seen=one.seen)
             for left, one, element in zip(source, there, config.devices, strict=True)]
    return DeviceMap.of(instance.uuid, migration.uuid, pairs, config.metadata)


def check_seen(manager: ClaimManager, instance: Any, device_map: DeviceMap) -> None:
    """At the source, before the copy: see that the guest has not booted since the destination decided.

    :raises NoDevicePair: it may have seen a newer version since
    """
    seen = {record.key: version_seen(record.seen) for record in manager.records_of(instance.uuid)}
    for pair in device_map.pairs:
        then, now = version_seen(pair.seen), seen.get(DeviceKey(pair.kind, pair.source))
        if then is not None and now is not None and now > then:
            raise exception.NoDevicePair(
                pair.kind, pair.source, f'the guest rebooted since it was checked: it may have seen version {now}, and '
                                        f'{then} counted; check and claim again')
