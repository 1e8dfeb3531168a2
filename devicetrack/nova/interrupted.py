"""Ends moves that began on a host and were interrupted because its compute service ended.

When the service starts again, Nova clears the task of the instance and starts its guest where it was. Nova does not
clean up the rest. Placement still has the allocations from the middle of the move: the instance holds those for the
other host, and the migration holds those for this host. A resize stays ``migrating`` and a live migration ``queued``
forever, so the other host keeps devices for it. After a resize on one host, the same host keeps two sets of devices.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import functools
from typing import Any
from typing import Final
from typing import NamedTuple

from keystoneauth1 import exceptions as keystone
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.objects import fields
from nova.scheduler.client import report
import oslo_messaging

from devicetrack import log
from devicetrack.nova import service
from devicetrack.objects.values import Usage

LOG = log.logger(__name__)

# The statuses of a migration while its source works on it. The source has received Nova's call, so no waiting message
# can begin the move; and the other host was not told to go on.
_RESIZE: Final = ('migrating',)
_AT_THE_SOURCE: Final = {
    fields.MigrationType.RESIZE: _RESIZE, fields.MigrationType.MIGRATION: _RESIZE,
    fields.MigrationType.LIVE_MIGRATION: ('queued', 'preparing')}
_ERROR: Final = 'error'
# Nova itself sets running live migrations to error, those that it rolls back to failed or cancelled, and when its
# service stops in order, queued ones to cancelled.
_ENDED: Final = (_ERROR, 'cancelled', 'failed')
_ALL: Final = sorted({*_ENDED, *(status for some in _AT_THE_SOURCE.values() for status in some)})
# The statuses of moves that left their instance where it was.
_IN_VAIN: Final = (*_ENDED, 'reverted')
# The statuses of a live migration after which its guest may run at the destination. Before them it has not left, and
# Nova sets the others only if it stayed, or after it has given the instance its new host.
_MAY_HAVE_LEFT: Final = ('running', 'post-migrating', _ERROR)
# Errors after which the others would fail too.
_NO_ANSWER: Final = (keystone.ClientException, oslo_messaging.MessagingException,
                     nova_exception.ConsumerAllocationRetrievalFailed,
                     nova_exception.ResourceProviderAllocationRetrievalFailed)


class SourceHost(NamedTuple):
    """A host that moves may have left from.

    :param name: its name in Nova
    :param node_uuid: the UUID of its provider in placement
    :param uuids: the instances that have devices on it
    :param runs: says whether the guest of an instance runs here, and stays; None if that is unknown
    :param classes: the resource classes of its devices
    """

    name: str
    node_uuid: str
    uuids: Collection[str]
    runs: Callable[[str], bool | None]
    classes: Collection[str]


class _MayHaveLeft(Exception):
    """The guest of a live migration may run at the destination, so its allocations must stay."""


class MoveOutcome(NamedTuple):
    """What became of an interrupted move.

    :param instance_uuid: its instance; None for all moves that were not looked at
    :param text: whether it was ended, and if not, why
    """

    instance_uuid: str | None
    text: str


def runs(usage: Usage | None, instance_uuid: str) -> bool | None:
    """Whether a host runs the guest of an instance; None if that is unknown.

    :param usage: the domains of the host; None if libvirt does not answer
    """
    if usage is not None and instance_uuid in usage.domains:
        return instance_uuid in usage.running
    return None if usage is None or usage.unknown else False


def end(source: SourceHost, placement: Any, only: Collection[str] | None = None,
        in_audit: bool = False) -> list[MoveOutcome]:
    """End the moves from a host whose instances Nova has taken back, and remove what others left in placement.

    The moves of instances without devices are left to Nova.

    Call it when the service starts, after Nova has checked each instance and before it receives messages: at that time
    nobody works on a move. In an audit Nova may work on moves, so this ends only what is left of those that Nova has
    ended. A move that cannot be ended now is left to a later call; until then none of its devices is given to others.
    If Nova or placement does not answer, the rest is not tried. If a move of an instance cannot be ended, its older
    ones wait for that: the oldest has the allocations that the instance had before all of them.

    :param placement: Nova's client for placement
    :param only: the instances whose moves may be ended; by default all
    """
    context, outcomes, waiting = nova_context.get_admin_context(), [], set[str]()
    try:
        for migration, act in _left_to_do(context, source, placement, only, in_audit):
            if migration.instance_uuid in waiting:
                continue
            try:
                text = act()
            except _MayHaveLeft as left:
                waiting.add(migration.instance_uuid)
                text = f'migration {migration.uuid}: not ended: {left}'
            except nova_exception.NovaException as error:
                if isinstance(error, _NO_ANSWER):
                    raise
                waiting.add(migration.instance_uuid)
                text = _not_ended(source, f'migration {migration.uuid}', error)
            outcomes.append(MoveOutcome(migration.instance_uuid, text))
    except (nova_exception.NovaException, *_NO_ANSWER) as error:
        outcomes.append(MoveOutcome(None, _not_ended(source, 'moves that were interrupted', error)))
    return outcomes


def was_interrupted(migration: Any, instance: Any) -> bool:
    """Whether the source's service ended in the middle of a move, and Nova has taken the instance back."""
    return bool(instance.host == migration.source_compute and instance.task_state is None
                and _is_at_the_source(migration))


def left_for(host: str, instance_uuid: str, placement: Any) -> str | None:
    """Return the host on which a guest may run since a live migration away from here was interrupted; None for none.

    Call it if the guest does not run here. In this case :func:`end` leaves the migration its allocations; all other
    live migrations lose theirs when they end, unless placement did not answer then.

    :raises NovaException, ClientException, MessagingException: no answer
    """
    context = nova_context.get_admin_context()
    moves = service.moves(context, instance_uuid)
    # After a later move that brought the guest to its destination, it is known where the guest is. A later one that
    # left from here and was refused or failed says nothing.
    known = max((one.id for one in moves if one.status in service.OVER or _is_from_elsewhere(host, one)), default=0)
    for one in moves:
        if one.id > known and _may_have_left(context, host, one, placement):
            return str(one.dest_compute)
    return None


def _not_ended(source: SourceHost, what: str, error: Exception) -> str:
    text = f'{what}: not ended: {error}'
    LOG.warning('Moves from host %(host)s: %(what)s; a later audit, or the next start of the service, tries '
                'again', {'host': source.name, 'what': text})
    return text


def _left_to_do(context: Any, source: SourceHost, placement: Any, only: Collection[str] | None,
                in_audit: bool) -> Iterator[tuple[Any, Callable[[], str]]]:
    """Yield the moves that have to be ended, each with the call that does it."""
    begun = [one for one in _begun(context, source, list(_ENDED) if in_audit else _ALL)
             if only is None or one.instance_uuid in only]
    if not begun:
        return                              # the first start of a host comes before its provider
    consumers = placement.get_allocations_for_resource_provider(context, source.node_uuid).allocations
    open_ = [one for one in begun if one.uuid in consumers or _is_at_the_source(one)]
    for migration, instance in _taken_back(context, source, open_, placement):
        yield migration, functools.partial(_end, context, source, migration, instance, placement)
    for migration in _left_behind(context, source, [one for one in open_ if one.uuid in consumers]):
        # The instance may have no devices here any more, so only the allocations say what it had.
        allocated = placement.get_allocs_for_consumer(context, migration.uuid)['allocations'].values()
        if any(name in source.classes for at in allocated for name in at['resources']):
            yield migration, functools.partial(_remove, context, source, migration, placement)


def _taken_back(context: Any, source: SourceHost, begun: Sequence[Any], placement: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the moves of each instance that is here without a task, the newest first."""
    moving: dict[str, set[int]] = {}
    for one in begun:
        if one.instance_uuid in source.uuids and (_is_at_the_source(one) or _is_live(one)):
            moving.setdefault(one.instance_uuid, set()).add(one.id)
    for some in service.batches(sorted(moving)):
        for instance in objects.InstanceList.get_by_filters(
                context, {'uuid': some, **service.NOT_DELETED}, expected_attrs=['migration_context']):
            if instance.host == source.name and instance.task_state is None:
                for migration in _still_open(context, source, instance.uuid, moving[instance.uuid], placement):
                    yield migration, instance


def _still_open(context: Any, source: SourceHost, instance_uuid: str, ours: Collection[int],
                placement: Any) -> Iterator[Any]:
    """Yield those of an instance's moves that no later one has made obsolete, the newest first.

    A later move from here that was tried in vain took nothing away from an older one. But its guest may have left, with
    the allocations that the older move had left to the instance, and these may be at any host.
    """
    moves = service.moves(context, instance_uuid)
    since = max((one.id for one in moves if one.id not in ours
                 and (one.status not in _IN_VAIN or _is_from_elsewhere(source.name, one))), default=0)
    for one in moves:
        if one.id > since and (one.id in ours or one.id > min(ours)
                               and _may_have_left(context, source.name, one, placement)):
            yield one


def _left_behind(context: Any, source: SourceHost, begun: Sequence[Any]) -> Iterator[Any]:
    """Yield those of the moves, which all have allocations here, whose instance has left, even if it came back.

    The move itself took the instance away, if it is a live migration that failed only after the guest had left, or a
    newer one did. An instance that came back has got other allocations for that. A guest of it that is off here is one
    that the host's audit removes.
    """
    left: dict[str, list[Any]] = {}
    for one in begun:
        left.setdefault(one.instance_uuid, []).append(one)
    for some in service.batches(sorted(left)):
        for instance in objects.InstanceList.get_by_filters(
                context, {'uuid': some, **service.NOT_DELETED}, expected_attrs=[]):
            if instance.host == source.name:
                back = max((one.id for one in service.moves(context, instance.uuid)
                            if _is_from_elsewhere(source.name, one)), default=0)
                yield from (one for one in left[instance.uuid] if _is_live(one) and one.id < back)
            elif instance.host is not None and source.runs(instance.uuid) is False:
                newest = service.last_move(context, instance.uuid, source_compute=source.name)
                if newest is not None:
                    yield from (one for one in left[instance.uuid] if _is_live(one) or one.id < newest.id)


def _begun(context: Any, source: SourceHost, statuses: list[str]) -> list[Any]:
    """Return the moves of these statuses from the host, to others or on itself, that its service cannot continue.

    A move on the host itself that Nova has ended is not among them: it left no allocations at another host.
    """
    return [one for one in objects.MigrationList.get_by_filters(
        context, {'source_compute': source.name, 'status': statuses})
        if _is_at_the_source(one) or (
            one.status in _ENDED and one.dest_compute != source.name and one.migration_type in _AT_THE_SOURCE)]


def _is_at_the_source(migration: Any) -> bool:
    """Whether its source still works on a move, or ended while it did."""
    return migration.status in _AT_THE_SOURCE.get(migration.migration_type, ())


def _may_have_left(context: Any, host: str, migration: Any, placement: Any) -> bool:
    """Whether the guest of a move may run at its destination, unless it is here."""
    return bool(migration.source_compute == host and migration.dest_compute != host and _had_destination(migration)
                and migration.status in _MAY_HAVE_LEFT
                and placement.get_allocs_for_consumer(context, migration.uuid)['allocations'])


def _is_from_elsewhere(host: str, migration: Any) -> bool:
    """Whether a move left from another host, so that its guest had left this one before, whatever became of the move.

    Nova moves an instance from the host where it has it. So older moves do not say any more where the guest is. Nor can
    it still be there, if Nova has the instance here again: Nova changes the host of an instance only after the guest
    has arrived there, or was stopped at the old one, and it does so even if the old one never hears of it. Nova starts
    no guest at another host than the instance's, except for an evacuation, whose old host is down.
    """
    return migration.source_compute not in (None, host)


def _had_destination(migration: Any) -> bool:
    """Whether a move is a live migration that may have begun.

    Nova saves the destination before it sends the message by which the source begins. So a guest without one has not
    left: the scheduler found none, for example.
    """
    return _is_live(migration) and migration.dest_compute is not None


def _is_live(migration: Any) -> bool:
    return bool(migration.migration_type == fields.MigrationType.LIVE_MIGRATION)


def _end(context: Any, source: SourceHost, migration: Any, instance: Any, placement: Any) -> str:
    facts = {'instance': instance.uuid, 'migration': migration.uuid, 'destination': migration.dest_compute}
    # Nova's other call for the same takes an error of placement for no allocations.
    held = placement.get_allocs_for_consumer(context, migration.uuid)
    runs = source.runs(instance.uuid)
    if _had_destination(migration) and (runs is None or not runs and migration.status in _MAY_HAVE_LEFT):
        LOG.warning('Live migration %(migration)s of instance %(instance)s was interrupted, and its guest is not known '
                    'to run here: it may run on host %(destination)s, so its allocations stay as they are', facts)
        raise _MayHaveLeft(f'the guest is not known to run here, so it may run on {migration.dest_compute}')
    if held['allocations']:
        _give_back(context, held, migration, instance, placement)
    moving = instance.migration_context
    if moving is not None and moving.migration_id == migration.id:
        instance.drop_migration_context()
    _fail(migration)
    LOG.warning('Instance %(instance)s stays: migration %(migration)s to %(destination)s was interrupted', facts)
    return f'migration {migration.uuid}: ended'


def _give_back(context: Any, held: Any, migration: Any, instance: Any, placement: Any) -> None:
    """Give an instance the allocations of its migration, in place of those that it has.

    Nova may begin to work on the instance at any moment. It sets the task of the instance before it changes an
    allocation. So the allocations are read before the task, and placement refuses the write if they change after that.

    :param held: the answer of placement about the migration
    """
    has = placement.get_allocs_for_consumer(context, instance.uuid)
    now = objects.Instance.get_by_uuid(context, instance.uuid, expected_attrs=[])
    error = 'Nova works on the instance'
    if (now.host, now.task_state) == (instance.host, None):
        owner = {'project_id': held['project_id'], 'user_id': held['user_id']}
        answer = placement.post('/allocations', {
            migration.uuid: {'allocations': {}, 'consumer_generation': held['consumer_generation'], **owner},
            instance.uuid: {'allocations': held['allocations'], 'consumer_generation': has.get('consumer_generation'),
                            **owner}}, version=report.CONSUMER_GENERATION_VERSION, global_request_id=context.global_id)
        if answer:
            return
        error = answer.text
    raise nova_exception.AllocationMoveFailed(source_consumer=migration.uuid, target_consumer=instance.uuid,
                                              error=error)


def _remove(context: Any, source: SourceHost, migration: Any, placement: Any) -> str:
    # It returns None, and no error, if it cannot reach placement.
    if placement.delete_allocation_for_instance(context, migration.uuid, consumer_type='migration') is None:
        raise nova_exception.AllocationDeleteFailed(consumer_uuid=migration.uuid,
                                                    error='the log of the placement client says why')
    _fail(migration)
    LOG.warning('Removed the allocations that migration %(migration)s left at host %(host)s: instance %(instance)s '
                'has left since, and has others',
                {'migration': migration.uuid, 'host': source.name, 'instance': migration.instance_uuid})
    return f'migration {migration.uuid}: its allocations here are removed'


def _fail(migration: Any) -> None:
    if migration.status not in _ENDED:
        migration.status = _ERROR
        migration.save()
