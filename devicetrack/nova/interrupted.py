"""Ends moves away from a host that were interrupted because its compute service ended.

When the service starts again, Nova clears the task of the instance and starts its guest where it was. Nova does not
clean up the rest. Placement still has the allocations from the middle of the move: the instance holds those for the
other host, and the migration holds those for this host. A resize stays ``migrating`` forever, so the other host keeps
devices for it.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
import contextlib
from typing import Any
from typing import Final

from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.objects import fields
import oslo_messaging

from devicetrack import log
from devicetrack.nova import service

LOG = log.logger(__name__)

# The statuses of a migration while its source works on it. The source has received Nova's call, so no waiting message
# can begin the move; and the other host was not told to go on. Nova itself sets running live migrations to error.
_AT_THE_SOURCE: Final = {
    fields.MigrationType.RESIZE: ('migrating',), fields.MigrationType.MIGRATION: ('migrating',),
    fields.MigrationType.LIVE_MIGRATION: ('preparing', 'error')}
_ERROR: Final = 'error'


def end(host: str, uuids: Collection[str], placement: Any) -> None:
    """End the moves away from a host whose instances Nova has taken back.

    Call it when the service starts, after Nova has checked each instance and before it receives messages: at that time
    nobody works on a move. A move that cannot be ended now is left to the next start; until then none of its devices is
    given to others.

    :param uuids: the instances that have devices on the host
    :param placement: Nova's client for placement
    """
    context = nova_context.get_admin_context()
    with _left_to_the_next_start(host):
        for migration, instance in _taken_back(context, host, uuids):
            with _left_to_the_next_start(host):         # the others are ended all the same
                _end(context, migration, instance, placement)


@contextlib.contextmanager
def _left_to_the_next_start(host: str) -> Iterator[None]:
    try:
        yield
    except (nova_exception.NovaException, keystone.ClientException, oslo_messaging.MessagingException) as error:
        LOG.warning('A move away from host %(host)s that was interrupted has to wait for the next start: %(error)s',
                    {'host': host, 'error': error})


def _taken_back(context: Any, host: str, uuids: Collection[str]) -> Iterator[tuple[Any, Any]]:
    """Yield the last move of each instance, if the move left from here and the instance is here without a task."""
    get = objects.MigrationList.get_by_filters
    statuses = sorted({status for some in _AT_THE_SOURCE.values() for status in some})
    moving = {one.instance_uuid: one for one in sorted(
        get(context, {'source_compute': host, 'status': statuses}), key=lambda one: one.id)
        if one.instance_uuid in uuids and one.dest_compute != host
        and one.status in _AT_THE_SOURCE.get(one.migration_type, ())}
    for some in service.batches(sorted(moving)):
        for instance in objects.InstanceList.get_by_filters(
                context, {'uuid': some, 'deleted': False}, expected_attrs=['migration_context']):
            migration = moving[instance.uuid]
            if instance.host == host and instance.task_state is None and migration.id == max(
                    one.id for one in get(context, {'instance_uuid': instance.uuid})):
                yield migration, instance


def _end(context: Any, migration: Any, instance: Any, placement: Any) -> None:
    # A live migration may have failed long ago, and Nova may already have done all of this.
    # Nova's other call for the same takes an error of placement for no allocations.
    if placement.get_allocs_for_consumer(context, migration.uuid)['allocations']:
        if placement.move_allocations(context, migration.uuid, instance.uuid) is not True:
            raise nova_exception.AllocationMoveFailed(source_consumer=migration.uuid, target_consumer=instance.uuid,
                                                      error='the log of the placement client says why')
    elif migration.status == _ERROR:
        return
    moving = instance.migration_context
    if moving is not None and moving.migration_id == migration.id:
        instance.drop_migration_context()
    if migration.status != _ERROR:
        migration.status = _ERROR
        migration.save()
    LOG.warning('Instance %(instance)s stays: migration %(migration)s to %(destination)s was interrupted',
                {'instance': instance.uuid, 'migration': migration.uuid, 'destination': migration.dest_compute})
