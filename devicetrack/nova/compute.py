"""Wrappers for Nova's compute manager: the moments when an instance has given up its devices for good.

Nova's ``destroy`` of a guest is no such moment: a hard reboot, a rebuild and a revert call it and start a guest again.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from typing import Any
from typing import Final

from nova.compute import manager as nova_manager
from nova.virt.libvirt import driver as nova_driver

from devicetrack.nova import binding
from devicetrack.nova import errors
from devicetrack.nova import tracker
from devicetrack.nova import wire
from devicetrack.nova.subject import Subject
from devicetrack.nova.wrapping import wraps

_COMPUTE: Final = 'nova.compute.manager:ComputeManager.'


# -- start and stop ---------------------------------------------------------------------------------------------------


CHECK_FOR_RENAME: Final = f'{_COMPUTE}_check_for_host_rename'


def starts(settings: binding.HostSettings) -> Callable[..., None]:
    """Make the wrapper of Nova's check of the host's name: the manager starts after it, before Nova looks at guests.

    It is Nova's last check of whether this is the host that its database knows. A start that Nova refuses must not take
    the host, because the store would then have this machine as two hosts.
    """
    def check_for_host_rename(original: Callable[..., Any], compute: Any, nodes_by_uuid: Any) -> None:
        original(compute, nodes_by_uuid)
        if isinstance(compute.driver, nova_driver.LibvirtDriver):
            binding.start(compute.driver, compute.host, settings)
    return check_for_host_rename


@wraps(f'{_COMPUTE}cleanup_host')
def cleanup_host(original: Callable[..., Any], compute: Any) -> None:
    """Close the binding when the service stops.

    Nova 34 first waits for all threads of its pools, also for those that pass libvirt's events on and never end.
    """
    if hasattr(nova_manager, 'thread_pool_factory') and isinstance(compute.driver, nova_driver.LibvirtDriver):
        host = compute.driver._host
        host._conn_event_handler_queue.put(_EndOfThread())
        if hasattr(host._event_handler, '_dispatch_thread'):            # with eventlet
            host._event_handler._queue_event(_EndOfThread())
    original(compute)
    binding.stop(compute.driver)


class _EndOfThread(BaseException):
    """Ends a thread that takes it for a function to call, or for an event to look into, and catches every Exception."""

    def __call__(self) -> None:
        raise self

    def __contains__(self, _key: object) -> bool:
        raise self


@wraps(f'{_COMPUTE}_shutdown_instance')
def leave(original: Callable[..., Any], compute: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
    """Give devices back after a delete or a failed boot, and for a guest whose instance was deleted."""
    host = binding.if_devices(compute.driver)
    original(compute, context, instance, *args, **kwargs)
    if host is not None:
        host.release(context, instance)


@wraps(f'{_COMPUTE}_shelve_offload_instance')
def offload(original: Callable[..., Any], compute: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
    """Give devices back after a shelve, and report them at once.

    Nova has deleted the allocation by then, and after a delete it reports the host by itself.
    """
    leave(original, compute, context, instance, *args, **kwargs)
    host = binding.if_devices(compute.driver)
    if host is not None:
        host.report_changes()


@wraps(f'{_COMPUTE}_rebuild_default_impl')
def rebuild(original: Callable[..., Any], compute: Any, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the devices ready before a rebuild in place, which destroys the guest first, as a hard reboot does."""
    host = binding.if_devices(compute.driver)
    if host is not None:
        host.make_ready(instance, new_definition=True)
    return original(compute, context, instance, *args, **kwargs)


# -- live migration ---------------------------------------------------------------------------------------------------


@wraps(f'{_COMPUTE}check_can_live_migrate_destination')
def check_at_destination(original: Callable[..., Any], compute: Any, ctxt: Any, instance: Any, block_migration: Any,
                         disk_over_commit: Any, migration: Any, limits: Any) -> Any:
    """End the claim if a later check refuses: then Nova tries another host, and tells this one nothing."""
    host = binding.if_devices(compute.driver)
    with contextlib.ExitStack() as undo:
        if host is not None:
            undo.callback(tracker.undo_move, host, ctxt, instance, migration, 'The end of the refused live migration')
        answer = original(compute, ctxt, instance, block_migration, disk_over_commit, migration, limits)
        undo.pop_all()
    return answer


@wraps(f'{_COMPUTE}_live_migration_claim')
def live_migration_claim(original: Callable[..., Any], compute: Any, ctxt: Any, instance: Any, migrate_data: Any,
                         *args: Any, **kwargs: Any) -> Any:
    """Pass the source's message to the tracker, which Nova does not give it to."""
    if binding.if_devices(compute.driver) is None:
        return original(compute, ctxt, instance, migrate_data, *args, **kwargs)
    with errors.as_failed_check(instance):
        source = wire.source(migrate_data, instance)
    token = tracker.SOURCE.set(source)
    try:
        return original(compute, ctxt, instance, migrate_data, *args, **kwargs)
    finally:
        tracker.SOURCE.reset(token)


@wraps(f'{_COMPUTE}_post_live_migration')
def post_live_migration(original: Callable[..., Any], compute: Any, ctxt: Any, instance: Any, dest: str,
                        block_migration: bool = False, migrate_data: Any = None, *args: Any, **kwargs: Any) -> None:
    """Give the devices back at the source, after the guest has left."""
    host = binding.if_devices(compute.driver)
    original(compute, ctxt, instance, dest, block_migration, migrate_data, *args, **kwargs)
    migration = _migration_of(migrate_data)
    if host is not None and migration is not None:
        with errors.left_to_the_audit(instance, 'The live migration'):
            host.manager.drop_move_claim_at_source(ctxt, Subject(instance), migration, wait=False)


@wraps(f'{_COMPUTE}post_live_migration_at_destination')
def post_live_migration_at_destination(original: Callable[..., Any], compute: Any, context: Any, instance: Any,
                                       *args: Any, **kwargs: Any) -> None:
    """Record the end of the move at the destination, where the guest runs now."""
    host = binding.if_devices(compute.driver)
    original(compute, context, instance, *args, **kwargs)
    if host is not None:
        host.started(context, instance)


@wraps(f'{_COMPUTE}rollback_live_migration_at_destination')
def rollback_live_migration_at_destination(original: Callable[..., Any], compute: Any, context: Any, instance: Any,
                                           destroy_disks: bool, migrate_data: Any) -> None:
    """Give the partners back. The source does not wait for this, and the instance may have its next move here by now.

    Nova calls this for every guest with devices, because the message between the hosts has ``target_mdevs``.
    """
    host = binding.if_devices(compute.driver)
    try:
        original(compute, context, instance, destroy_disks, migrate_data)
    finally:                                        # Nova ends early if the network does not answer
        if host is not None:
            tracker.undo_move(host, context, instance, _migration_of(migrate_data),
                              'The rollback of the live migration')


def _migration_of(migrate_data: Any) -> Any:
    """Return the migration in the message of a live migration; None if Nova has not set it."""
    return migrate_data.migration if migrate_data is not None and 'migration' in migrate_data else None
