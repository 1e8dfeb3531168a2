"""Nova's compute manager with the moments when an instance has given up its devices for good.

Nova's ``destroy`` of a guest is no such moment: a hard reboot, a rebuild and a revert call it and start a guest again.
"""

from __future__ import annotations

import contextlib
from typing import Any
from typing import Final

from nova.compute import manager
import nova.conf

from devicetrack.nova import driver
from devicetrack.nova import errors
from devicetrack.nova import overrides
from devicetrack.nova import tracker
from devicetrack.nova import wire
from devicetrack.nova.subject import Subject


@overrides.of_nova
class ComputeManager(manager.ComputeManager):
    """Nova's compute manager of a host whose devices are devicetrack's.

    Nova's messages can call every method without a leading underscore, so this class adds none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Nova makes both by the names of its own classes, and loads drivers from its own package alone.
        overrides.become(self.driver, driver.LibvirtDriver)
        overrides.become(self.rt, tracker.ResourceTracker)

    # -- start and stop -----------------------------------------------------------------------------------------------

    def _check_for_host_rename(self, nodes_by_uuid: Any) -> None:
        """Start the host's manager after Nova's check of the host's name, before Nova looks at guests.

        It is Nova's last check of whether this is the host that its database knows. A start that Nova refuses must not
        take the host, because the store would then have this machine as two hosts.

        :raises DeviceTrackError: as :meth:`.driver.LibvirtDriver.start_devicetrack`
        """
        super()._check_for_host_rename(nodes_by_uuid)
        self.driver.start_devicetrack(self.rt)

    def cleanup_host(self) -> None:
        """Close the host's manager when the service stops.

        Nova 34 first waits for all threads of its pools, also for those that pass libvirt's events on and never end.
        """
        if hasattr(manager, 'thread_pool_factory'):
            host = self.driver._host
            host._conn_event_handler_queue.put(_EndOfThread())
            if hasattr(host._event_handler, '_dispatch_thread'):        # with eventlet
                host._event_handler._queue_event(_EndOfThread())
        super().cleanup_host()
        self.driver.close_devicetrack()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _shutdown_instance(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Give devices back after a delete or a failed boot, and for a guest whose instance was deleted."""
        host = self.driver.devicetrack
        super()._shutdown_instance(context, instance, *args, **kwargs)
        host.release(context, instance)

    def _shelve_offload_instance(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Give devices back after a shelve, and report them at once.

        Nova has deleted the allocation by then, and after a delete it reports the host by itself.
        """
        host = self.driver.devicetrack
        super()._shelve_offload_instance(context, instance, *args, **kwargs)
        host.release(context, instance)
        host.report_changes()

    def _rebuild_default_impl(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Make the devices ready before a rebuild in place, which destroys the guest first, as a hard reboot does."""
        self.driver.devicetrack.make_ready(instance, new_definition=True)
        return super()._rebuild_default_impl(context, instance, *args, **kwargs)

    # -- live migration -----------------------------------------------------------------------------------------------

    def check_can_live_migrate_destination(self, ctxt: Any, instance: Any, block_migration: Any, disk_over_commit: Any,
                                           migration: Any, limits: Any) -> Any:
        """End the claim if a later check refuses: then Nova tries another host, and tells this one nothing."""
        host = self.driver.devicetrack
        with contextlib.ExitStack() as undo:
            undo.callback(tracker.undo_move, host, ctxt, instance, migration, 'The end of the refused live migration')
            answer = super().check_can_live_migrate_destination(ctxt, instance, block_migration, disk_over_commit,
                                                                migration, limits)
            undo.pop_all()
        return answer

    def _live_migration_claim(self, ctxt: Any, instance: Any, migrate_data: Any, migration: Any, limits: Any,
                              allocs: Any) -> Any:
        """Pass the source's message to the tracker, which Nova does not give it to."""
        with errors.as_failed_check(instance):
            source = wire.source(migrate_data, instance)
        return super()._live_migration_claim(ctxt, instance, migrate_data, migration, limits,
                                             tracker.Allocations(allocs, source=source))

    def _post_live_migration(self, ctxt: Any, instance: Any, dest: Any, block_migration: Any = False,
                             migrate_data: Any = None, *args: Any, **kwargs: Any) -> None:
        """Give the devices back at the source, after the guest has left."""
        host = self.driver.devicetrack
        super()._post_live_migration(ctxt, instance, dest, block_migration, migrate_data, *args, **kwargs)
        migration = _migration_of(migrate_data)
        if migration is not None:
            with errors.left_to_the_audit(instance, 'The live migration'):
                host.manager.drop_move_claim_at_source(ctxt, Subject(instance), migration, wait=False)

    def post_live_migration_at_destination(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        """Record the end of the move at the destination, where the guest runs now."""
        host = self.driver.devicetrack
        super().post_live_migration_at_destination(context, instance, *args, **kwargs)
        host.started(context, instance)

    def rollback_live_migration_at_destination(self, context: Any, instance: Any, destroy_disks: Any,
                                               migrate_data: Any) -> None:
        """Give the partners back. The source does not wait for this, and the instance may have its next move by now.

        Nova calls this for every guest with devices, because the message between the hosts has ``target_mdevs``.
        """
        host = self.driver.devicetrack
        try:
            super().rollback_live_migration_at_destination(context, instance, destroy_disks, migrate_data)
        finally:                                        # Nova ends early if the network does not answer
            tracker.undo_move(host, context, instance, _migration_of(migrate_data),
                              'The rollback of the live migration')


class _EndOfThread(BaseException):
    """Ends a thread that takes it for a function to call, or for an event to look into, and catches every Exception."""

    def __call__(self) -> None:
        raise self

    def __contains__(self, _key: object) -> bool:
        raise self


def make_manager(*args: Any, **kwargs: Any) -> Any:
    """Make the compute manager of this process, from the arguments that ``Service.create`` passes to its ``manager``.

    Only Nova's libvirt driver has such devices. With another driver the manager is Nova's own.
    """
    is_libvirt = (nova.conf.CONF.compute_driver or '').startswith('libvirt.')
    return (ComputeManager if is_libvirt else manager.ComputeManager)(*args, **kwargs)


# ``manager`` of Nova's ``Service.create``.
MANAGER: Final = f'{__name__}.{make_manager.__name__}'


def _migration_of(migrate_data: Any) -> Any:
    """Return the migration in the message of a live migration; None if Nova has not set it."""
    return migrate_data.migration if migrate_data is not None and 'migration' in migrate_data else None
