"""Wrappers for Nova's resource tracker: claims, and the ends of claims.

Nova's methods take the tracker's lock, ``compute_resources``, inside. The wrappers claim devices before the lock is
taken and give them back after it is released, and never call the manager while it is held.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import contextvars
import functools
from typing import Any
from typing import Final

from nova import exception as nova_exception
from nova import utils
from nova.compute import resource_tracker

from devicetrack import exception
from devicetrack import log
from devicetrack.claims.claim import Claim
from devicetrack.nova import binding
from devicetrack.nova import errors
from devicetrack.nova import interrupted
from devicetrack.nova import resources
from devicetrack.nova import wire
from devicetrack.nova.subject import Subject
from devicetrack.nova.wrapping import wraps

LOG = log.logger(__name__)

_TRACKER: Final = 'nova.compute.resource_tracker:ResourceTracker.'

# The claim to which Nova's locked part belongs: Nova passes neither the instance nor the migration to that part.
_CLAIM: contextvars.ContextVar[Claim | None] = contextvars.ContextVar('devicetrack_claim', default=None)
# The migration of Nova's claim that is being aborted.
_ABORTED: contextvars.ContextVar[Any] = contextvars.ContextVar('devicetrack_aborted', default=None)
# The message of a live migration's source about the guest's devices, for the claim at the destination.
SOURCE: contextvars.ContextVar[wire.SourceAnswer | None] = contextvars.ContextVar('devicetrack_source', default=None)


@contextlib.contextmanager
def _claiming(claim: Claim) -> Iterator[None]:
    token = _CLAIM.set(claim)
    try:
        yield
    finally:
        _CLAIM.reset(token)


# -- claims -----------------------------------------------------------------------------------------------------------


@wraps(f'{_TRACKER}instance_claim')
def instance_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any, nodename: str,
                   allocations: Any, limits: Any = None) -> Any:
    """Claim devices for a boot or an unshelve."""
    host = binding.if_devices(tracker.driver)
    if host is None:
        return original(tracker, context, instance, nodename, allocations, limits)
    with errors.as_unavailable(instance):
        claim = host.manager.instance_claim(context, Subject(instance), nodename, allocations)
    with claim, _claiming(claim):
        made = original(tracker, context, instance, nodename, allocations, limits)
        with _undone_by_error(made):
            if host.narrow(context, claim, instance, made.claimed_numa_topology):
                instance.resources = resources.of(claim.resources)
    return made


@contextlib.contextmanager
def _undone_by_error(made: Any) -> Iterator[None]:
    """End Nova's own claim too after an error: the caller never got that claim, so nobody else would end it."""
    with contextlib.ExitStack() as undo:
        undo.callback(made.abort)
        yield
        undo.pop_all()


@wraps(f'{_TRACKER}resize_claim')
def resize_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any, flavor: Any, nodename: str,
                 migration: Any, allocations: Any, image_meta: Any = None, limits: Any = None) -> Any:
    """Claim devices for a resize or a cold migration, within a cell or across cells."""
    host = binding.if_devices(tracker.driver)
    nova = (tracker, context, instance, flavor, nodename, migration, allocations, image_meta, limits)
    if host is None:
        return original(*nova)
    _check_named(migration)
    with errors.as_unavailable(instance):
        claim = host.manager.resize_claim(context, Subject(instance), nodename, allocations, migration, flavor)
    return _move(host, context, instance, claim, lambda: original(*nova))


@wraps(f'{_TRACKER}rebuild_claim')
def rebuild_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any, nodename: str,
                  allocations: Any, limits: Any = None, image_meta: Any = None, migration: Any = None) -> Any:
    """Claim devices for an evacuation, at its destination. Nova makes no claim for a rebuild in place."""
    host = binding.if_devices(tracker.driver)
    nova = (tracker, context, instance, nodename, allocations, limits, image_meta, migration)
    if host is None:
        return original(*nova)
    _check_named(migration)
    with errors.as_unavailable(instance):
        claim = host.manager.rebuild_claim(context, Subject(instance), nodename, allocations, migration)
    return _move(host, context, instance, claim, lambda: original(*nova))


@wraps(f'{_TRACKER}live_migration_claim')
def live_migration_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any, nodename: str,
                         migration: Any, limits: Any, allocs: Any) -> Any:
    """Claim devices for the live migration of a guest with a NUMA topology; :mod:`.driver` claims for other guests."""
    host = binding.if_devices(tracker.driver)
    nova = (tracker, context, instance, nodename, migration, limits, allocs)
    if host is None:
        return original(*nova)
    with errors.as_unavailable(instance):
        claim = claim_for_live_migration(host, context, instance, nodename, migration, allocs, SOURCE.get())
    return _move(host, context, instance, claim, lambda: original(*nova))


def claim_for_live_migration(host: binding.Binding, context: Any, instance: Any, nodename: str, migration: Any,
                             allocations: Any, source: wire.SourceAnswer | None) -> Claim:
    """Claim a partner for each device that the guest has according to the source.

    :raises DeviceTrackError: a device has no partner, or the source's message cannot be read; nothing is held
    """
    if source is None:
        raise exception.BadRequest('migrate_data', None, 'the source did not say which devices the guest has')
    has = source.resources
    if source.check is None:
        has = resources.with_allocated_classes(has, allocations, host.mdev_classes())
    return host.manager.live_migration_claim(context, Subject(instance, has), nodename, allocations, migration,
                                             check=source.check)


def _move(host: binding.Binding, context: Any, instance: Any, claim: Claim, original: Callable[[], Any]) -> Any:
    with claim, _claiming(claim):
        made = original()
        with _undone_by_error(made):
            if host.narrow(context, claim, instance, made.claimed_numa_topology):
                moving = instance.migration_context
                moving.new_resources = resources.of(claim.resources)
                instance.migration_context = moving
                instance.save()
    return made


def _check_named(migration: Any) -> None:
    """Check that Nova passes the migration: rows name it, so Nova must not make it only in its locked part.

    :raises ComputeResourcesUnavailable: Nova does not, as with conductors before Ussuri
    """
    if migration is None:
        raise nova_exception.ComputeResourcesUnavailable(reason='The move has no migration record')


@wraps(f'{_TRACKER}_claim_resources')
def claim_resources(original: Callable[..., Any], tracker: Any, allocations: Any) -> Any:
    """Return the devices of the claim that was made before the lock, instead of a choice by Nova."""
    if binding.if_devices(tracker.driver) is None:
        return original(tracker, allocations)
    claim = _CLAIM.get()
    if claim is None:
        raise exception.NotReady(f'{tracker.host}: Nova claims devices outside of a known claim, so its host')
    return resources.of(claim.resources)


@wraps(f'{_TRACKER}_populate_assigned_resources')
def populate_assigned_resources(original: Callable[..., Any], tracker: Any, context: Any,
                                instance_by_uuid: Any) -> None:
    """Count nothing, since Nova chooses nothing. Nova would compare paths, which change at a boot."""
    if binding.if_devices(tracker.driver) is None:
        original(tracker, context, instance_by_uuid)
    else:
        tracker.assigned_resources.clear()


@wraps(f'{_TRACKER}_release_assigned_resources')
def release_assigned_resources(original: Callable[..., Any], tracker: Any, released: Any) -> None:
    """Count nothing, as :func:`populate_assigned_resources`."""
    if binding.if_devices(tracker.driver) is None:
        original(tracker, released)


# -- ends -------------------------------------------------------------------------------------------------------------


@wraps(f'{_TRACKER}abort_instance_claim')
def abort_instance_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any,
                         nodename: str) -> None:
    """Give devices back after a failed boot or unshelve, whose guest is gone."""
    host = binding.if_devices(tracker.driver)
    original(tracker, context, instance, nodename)
    if host is not None:
        host.release(context, instance)


@wraps('nova.compute.claims:MoveClaim.abort')
def abort_move_claim(original: Callable[..., Any], made: Any) -> None:
    """Pass the claim's migration to :func:`drop_move_claim`, which Nova does not give it to."""
    token = _ABORTED.set(made.migration)
    try:
        original(made)
    finally:
        _ABORTED.reset(token)


@wraps(f'{_TRACKER}drop_move_claim')
def drop_move_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any, nodename: str,
                    flavor: Any = None, prefix: str = 'new_') -> None:
    """End the claim of a failed move, at its destination.

    Nova also calls this after a live migration that failed, when it has called
    :func:`.compute.rollback_live_migration_at_destination` for a guest with devices. It names no migration then.
    """
    host = binding.if_devices(tracker.driver)
    original(tracker, context, instance, nodename, flavor, prefix)
    if host is not None:
        undo_move(host, context, instance, _ABORTED.get(), 'The end of the move')


@wraps(f'{_TRACKER}drop_move_claim_at_source')
def drop_move_claim_at_source(original: Callable[..., Any], tracker: Any, context: Any, instance: Any,
                              migration: Any) -> None:
    """Give the old devices back when a move is confirmed."""
    host = binding.if_devices(tracker.driver)
    original(tracker, context, instance, migration)
    if host is not None:
        host.may_leave(instance)
        with errors.left_to_the_audit(instance, 'The confirmed move'):
            # In the source's cell an instance that went to another cell keeps its host, and Nova calls this once.
            left = migration.dest_compute if migration.cross_cell_move else None
            host.manager.drop_move_claim_at_source(context, Subject(instance, host=left), migration)


@wraps(f'{_TRACKER}drop_move_claim_at_dest')
def drop_move_claim_at_dest(original: Callable[..., Any], tracker: Any, context: Any, instance: Any,
                            migration: Any) -> None:
    """Give the new devices back when a move is reverted and its guest is gone."""
    host = binding.if_devices(tracker.driver)
    original(tracker, context, instance, migration)
    if host is not None:
        undo_move(host, context, instance, migration, 'The reverted move', wait=True)


def undo_move(host: binding.Binding, context: Any, instance: Any, migration: Any, what: str,
              wait: bool = False) -> None:
    """Give the devices of a move back that was undone. An error and a migration that is not known wait for the audit.

    :param migration: None if Nova did not pass it; the rows do not tell it, as they may be of the instance's next move
    :param wait: wait for wipes. After a failure, Nova's next step may be an answer to a host that soon gives up. After
        a confirmation or a revert, it removes the allocation, and the next claim may need these very devices
    """
    if migration is None:
        return
    with errors.left_to_the_audit(instance, what):
        if host.manager.held(instance.uuid):
            host.manager.drop_move_claim_at_dest(context, Subject(instance), migration, wait)


@wraps(f'{_TRACKER}finish_evacuation')
def finish_evacuation(original: Callable[..., Any], tracker: Any, instance: Any, node: str, migration: Any) -> None:
    """Record the end of an evacuation, at its destination. Nova calls this for a rebuild in place too."""
    host = binding.if_devices(tracker.driver)
    original(tracker, instance, node, migration)
    if host is not None and migration is not None:
        with errors.left_to_the_audit(instance, 'The end of the evacuation'):
            host.manager.finish_evacuation(None, Subject(instance), host.nodename, migration)


def report(tracker: Any, context: Any, nodename: str) -> None:
    """Report the host to placement now, as Nova does after each of its claims. A node that Nova removed is skipped.

    :raises NovaException, ClientException, MessagingException: Nova's own; the next audit reports it
    """
    node = tracker.compute_nodes.get(nodename)
    if node is not None:
        locked = utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
        locked(tracker._update)(context.elevated(), node)


@wraps(f'{_TRACKER}update_available_resource')
def update_available_resource(original: Callable[..., Any], tracker: Any, context: Any, nodename: str,
                              startup: bool = False) -> None:
    """Run Nova's audit first: it makes the providers that our audit looks up."""
    host = binding.if_devices(tracker.driver)
    if host is not None and startup:
        try:
            interrupted.end(host.source(), tracker.reportclient)
        except Exception:                           # it only tidies up, and both audits are more important
            LOG.exception('The moves from host %s that were interrupted were not ended', host.host)
        host.record_paths()
    try:
        original(tracker, context, nodename, startup=startup)
    finally:
        # Nova's audit fails while placement is away. Devices that were given up here are still given back.
        if host is not None:
            host.audit(tracker, nodename)
            host.report_by(functools.partial(report, tracker, context, nodename))
            host.report_changes()
