"""Nova's resource tracker: claims, and what ends them.

The tracker's own lock, ``compute_resources``, is taken inside the wrapped methods. Devices are claimed before it and
given back after it, and no call of the manager is made while it is held.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import contextvars
from typing import Any
from typing import Final

from nova import exception as nova_exception

from devicetrack import exception
from devicetrack.claims.claim import Claim
from devicetrack.nova import binding
from devicetrack.nova import errors
from devicetrack.nova import interrupted
from devicetrack.nova import resources
from devicetrack.nova import wire
from devicetrack.nova.subject import Subject
from devicetrack.nova.wrapping import wraps

_TRACKER: Final = 'nova.compute.resource_tracker:ResourceTracker.'

# The claim that Nova's locked part belongs to: it is told neither the instance nor the migration.
_CLAIM: contextvars.ContextVar[Claim | None] = contextvars.ContextVar('devicetrack_claim', default=None)
# What the source of a live migration said of the guest's devices, for the claim at the destination.
SOURCE: contextvars.ContextVar[wire.Source | None] = contextvars.ContextVar('devicetrack_source', default=None)


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
    """For a boot and an unshelve."""
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
    """An error after Nova's own claim ends that one too: nobody got it, so nobody else would."""
    try:
        yield
    except BaseException:
        made.abort()
        raise


@wraps(f'{_TRACKER}resize_claim')
def resize_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any, flavor: Any, nodename: str,
                 migration: Any, allocations: Any, image_meta: Any = None, limits: Any = None) -> Any:
    """For a resize and a cold migration, within a cell or across cells."""
    host = binding.if_devices(tracker.driver)
    nova = (tracker, context, instance, flavor, nodename, migration, allocations, image_meta, limits)
    if host is None:
        return original(*nova)
    _check_named(instance, migration)
    with errors.as_unavailable(instance):
        claim = host.manager.resize_claim(context, Subject(instance), nodename, allocations, migration, flavor)
    return _move(host, context, instance, claim, lambda: original(*nova))


@wraps(f'{_TRACKER}rebuild_claim')
def rebuild_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any, nodename: str,
                  allocations: Any, limits: Any = None, image_meta: Any = None, migration: Any = None) -> Any:
    """For an evacuation, at its destination. Nova makes no claim for a rebuild in place."""
    host = binding.if_devices(tracker.driver)
    nova = (tracker, context, instance, nodename, allocations, limits, image_meta, migration)
    if host is None:
        return original(*nova)
    _check_named(instance, migration)
    with errors.as_unavailable(instance):
        claim = host.manager.rebuild_claim(context, Subject(instance), nodename, allocations, migration)
    return _move(host, context, instance, claim, lambda: original(*nova))


@wraps(f'{_TRACKER}live_migration_claim')
def live_migration_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any, nodename: str,
                         migration: Any, limits: Any, allocs: Any) -> Any:
    """For the live migration of a guest with a NUMA topology; :mod:`.driver` has the claim of the others."""
    host = binding.if_devices(tracker.driver)
    nova = (tracker, context, instance, nodename, migration, limits, allocs)
    if host is None:
        return original(*nova)
    with errors.as_unavailable(instance):
        claim = claim_for_live_migration(host, context, instance, nodename, migration, allocs, SOURCE.get())
    return _move(host, context, instance, claim, lambda: original(*nova))


def claim_for_live_migration(host: binding.Binding, context: Any, instance: Any, nodename: str, migration: Any,
                             allocations: Any, source: wire.Source | None) -> Claim:
    """A partner for each device that the source said the guest has.

    :raises DeviceTrackError: one has none, or the source said nothing that can be read; nothing is held
    """
    if source is None:
        raise exception.BadRequest('migrate_data', None, 'nobody said which devices the guest has')
    return host.manager.live_migration_claim(context, Subject(instance, source.resources), nodename, allocations,
                                             migration, check=source.check)


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


def _check_named(instance: Any, migration: Any) -> None:
    """See that Nova names the migration: rows keep it, so it cannot be made in Nova's locked part.

    :raises ComputeResourcesUnavailable: it does not, as conductors before Ussuri
    """
    if migration is None:
        raise nova_exception.ComputeResourcesUnavailable(reason='The move has no migration record')


@wraps(f'{_TRACKER}_claim_resources')
def claim_resources(original: Callable[..., Any], tracker: Any, allocations: Any) -> Any:
    """What the claim before the lock has, instead of a choice of Nova's."""
    if binding.if_devices(tracker.driver) is None:
        return original(tracker, allocations)
    claim = _CLAIM.get()
    if claim is None:
        raise exception.NotReady(f'{tracker.host}: Nova claims devices outside of a claim that is known, so its host')
    return resources.of(claim.resources)


@wraps(f'{_TRACKER}_populate_assigned_resources')
def populate_assigned_resources(original: Callable[..., Any], tracker: Any, context: Any,
                                instance_by_uuid: Any) -> None:
    """Nova chooses nothing, so it counts nothing. It would compare paths, which change with a boot."""
    if binding.if_devices(tracker.driver) is None:
        original(tracker, context, instance_by_uuid)
    else:
        tracker.assigned_resources.clear()


@wraps(f'{_TRACKER}_release_assigned_resources')
def release_assigned_resources(original: Callable[..., Any], tracker: Any, released: Any) -> None:
    """As above."""
    if binding.if_devices(tracker.driver) is None:
        original(tracker, released)


# -- ends -------------------------------------------------------------------------------------------------------------


@wraps(f'{_TRACKER}abort_instance_claim')
def abort_instance_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any,
                         nodename: str) -> None:
    """A boot or an unshelve failed, and its guest is gone."""
    host = binding.if_devices(tracker.driver)
    original(tracker, context, instance, nodename)
    if host is not None:
        host.release(context, instance)


@wraps(f'{_TRACKER}drop_move_claim')
def drop_move_claim(original: Callable[..., Any], tracker: Any, context: Any, instance: Any, nodename: str,
                    flavor: Any = None, prefix: str = 'new_') -> None:
    """A move failed; at its destination."""
    host = binding.if_devices(tracker.driver)
    original(tracker, context, instance, nodename, flavor, prefix)
    if host is not None:
        with errors.left_to_the_audit(instance, 'The end of the move'):
            host.manager.drop_move_claim(context, Subject(instance), nodename)


@wraps(f'{_TRACKER}drop_move_claim_at_source')
def drop_move_claim_at_source(original: Callable[..., Any], tracker: Any, context: Any, instance: Any,
                              migration: Any) -> None:
    """A move is confirmed."""
    host = binding.if_devices(tracker.driver)
    original(tracker, context, instance, migration)
    if host is not None:
        with errors.left_to_the_audit(instance, 'The confirmed move'):
            host.manager.drop_move_claim_at_source(context, Subject(instance), migration)


@wraps(f'{_TRACKER}drop_move_claim_at_dest')
def drop_move_claim_at_dest(original: Callable[..., Any], tracker: Any, context: Any, instance: Any,
                            migration: Any) -> None:
    """A move is reverted, and its guest is gone."""
    host = binding.if_devices(tracker.driver)
    original(tracker, context, instance, migration)
    if host is not None:
        with errors.left_to_the_audit(instance, 'The reverted move'):
            host.manager.drop_move_claim_at_dest(context, Subject(instance), migration)


@wraps(f'{_TRACKER}finish_evacuation')
def finish_evacuation(original: Callable[..., Any], tracker: Any, instance: Any, node: str, migration: Any) -> None:
    """An evacuation is over, at its destination. Nova calls it for a rebuild in place too."""
    host = binding.if_devices(tracker.driver)
    original(tracker, instance, node, migration)
    if host is not None and migration is not None:
        with errors.left_to_the_audit(instance, 'The end of the evacuation'):
            host.manager.finish_evacuation(None, Subject(instance), host.nodename, migration)


@wraps(f'{_TRACKER}update_available_resource')
def update_available_resource(original: Callable[..., Any], tracker: Any, context: Any, nodename: str,
                              startup: bool = False) -> None:
    """Nova's audit first: it makes the providers that ours looks up."""
    host = binding.if_devices(tracker.driver)
    if host is not None and startup:
        interrupted.end(tracker.host, {held.instance_uuid for held in host.manager.held()}, tracker.reportclient)
    try:
        original(tracker, context, nodename, startup=startup)
    finally:
        # Nova's fails as long as placement is away. What was given up here goes back all the same.
        if host is not None:
            host.audit(nodename)
