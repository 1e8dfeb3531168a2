"""Nova's resource tracker with claims of devices, and the ends of claims.

Nova's methods take the tracker's lock, ``compute_resources``, inside. The overrides claim devices before the lock is
taken and give them back after it is released, and never call the manager while it is held.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any

from nova import exception as nova_exception
from nova import utils
from nova.compute import claims
from nova.compute import resource_tracker
from nova.objects import fields

from devicetrack import exception
from devicetrack import log
from devicetrack.claims.claim import Claim
from devicetrack.nova import binding
from devicetrack.nova import errors
from devicetrack.nova import interrupted
from devicetrack.nova import overrides
from devicetrack.nova import resources
from devicetrack.nova import wire
from devicetrack.nova.subject import Subject

LOG = log.logger(__name__)


class Allocations(dict[str, Any]):
    """The allocations of an instance, which Nova passes unchanged to its locked part, and what it does not pass there.

    :ivar claim: the claim that was made before the lock
    :ivar source: the message of a live migration's source about the guest's devices
    """

    def __init__(self, allocations: Any, claim: Claim | None = None, source: wire.SourceAnswer | None = None) -> None:
        super().__init__(allocations or {})
        self.claim, self.source = claim, source


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
        if host.manager.assignments(instance.uuid):
            host.manager.drop_move_claim_at_dest(context, Subject(instance), migration, wait)


@overrides.of_nova
class MoveClaim(claims.MoveClaim):
    """Nova's claim of a move, whose end gives the devices back."""

    def abort(self) -> None:
        """End the claim of a failed move, at its destination.

        Nova leaves the guest of an evacuation, which may run by then, and its disks, which the source may have too.
        A resize fails with a claim only if its message to the source had an error, and the message may have arrived
        all the same. Then the guest comes here. So its devices stay held, and the audit finds out.
        """
        host = self.tracker.driver.devicetrack
        is_evacuation = self.migration.migration_type == fields.MigrationType.EVACUATION
        if is_evacuation:
            host.remove_guest(self.context, self.instance, destroy_disks=False)
        super().abort()
        if is_evacuation:
            undo_move(host, self.context, self.instance, self.migration, 'The end of the move')


@overrides.of_nova
class ResourceTracker(resource_tracker.ResourceTracker):
    """Nova's resource tracker, whose claims have devices."""

    # -- claims -------------------------------------------------------------------------------------------------------

    def instance_claim(self, context: Any, instance: Any, nodename: str, allocations: Any, limits: Any = None) -> Any:
        """Claim devices for a boot or an unshelve."""
        host = self.driver.devicetrack
        with errors.as_unavailable(instance):
            claim = host.manager.instance_claim(context, Subject(instance), nodename, allocations)
        with claim:
            with host.noting_functions(instance):
                made = super().instance_claim(context, instance, nodename, Allocations(allocations, claim), limits)
            with _undone_by_error(made):
                if host.narrow(context, claim, instance, made.claimed_numa_topology):
                    instance.resources = resources.of(claim.resources)
        return made

    def resize_claim(self, context: Any, instance: Any, flavor: Any, nodename: str, migration: Any, allocations: Any,
                     image_meta: Any = None, limits: Any = None) -> Any:
        """Claim devices for a resize or a cold migration, within a cell or across cells."""
        host = self.driver.devicetrack
        _check_named(migration)
        with errors.as_unavailable(instance):
            claim = host.manager.resize_claim(context, Subject(instance), nodename, allocations, migration, flavor)
        with claim:
            with host.noting_functions(instance):
                made = super().resize_claim(context, instance, flavor, nodename, migration,
                                            Allocations(allocations, claim), image_meta, limits)
            _complete_move(host, context, instance, claim, made)
        return made

    def rebuild_claim(self, context: Any, instance: Any, nodename: str, allocations: Any, limits: Any = None,
                      image_meta: Any = None, migration: Any = None) -> Any:
        """Claim devices for an evacuation, at its destination. Nova makes no claim for a rebuild in place."""
        host = self.driver.devicetrack
        _check_named(migration)
        with errors.as_unavailable(instance):
            claim = host.manager.rebuild_claim(context, Subject(instance), nodename, allocations, migration)
        with claim:
            with host.noting_functions(instance):
                made = super().rebuild_claim(context, instance, nodename, Allocations(allocations, claim), limits,
                                             image_meta, migration)
            _complete_move(host, context, instance, claim, made)
        return made

    def live_migration_claim(self, context: Any, instance: Any, nodename: str, migration: Any, limits: Any,
                             allocs: Any) -> Any:
        """Claim devices for the live migration of a guest with a NUMA topology.

        For other guests, :mod:`.driver` claims.

        :param allocs: with the source's message
        """
        host = self.driver.devicetrack
        with errors.as_unavailable(instance):
            claim = claim_for_live_migration(host, context, instance, nodename, migration, allocs,
                                             getattr(allocs, 'source', None))
        with claim:
            with host.noting_functions(instance):
                made = super().live_migration_claim(context, instance, nodename, migration, limits,
                                                    Allocations(allocs, claim))
            _complete_move(host, context, instance, claim, made)
        return made

    def _claim_resources(self, allocations: Any) -> Any:
        """Return the devices of the claim that was made before the lock, instead of a choice by Nova."""
        claim = getattr(allocations, 'claim', None)
        if claim is None:
            raise exception.NotReady(f'{self.host}: Nova claims devices outside of a known claim, so its host')
        return resources.of(claim.resources)

    def _populate_assigned_resources(self, context: Any, instance_by_uuid: Any) -> None:
        """Count nothing, since Nova chooses nothing. Nova would compare paths, which change at a boot."""
        self.assigned_resources.clear()

    def _release_assigned_resources(self, released: Any) -> None:
        """Count nothing, as :meth:`_populate_assigned_resources`."""

    # -- ends ---------------------------------------------------------------------------------------------------------

    def abort_instance_claim(self, context: Any, instance: Any, nodename: str) -> None:
        """Give devices back after a failed boot or unshelve.

        Nova has removed the guest of the boot, and leaves that of the unshelve, which may run by then.
        """
        host = self.driver.devicetrack
        host.remove_guest(context, instance)
        super().abort_instance_claim(context, instance, nodename)
        host.release(context, instance)

    def drop_move_claim_at_source(self, context: Any, instance: Any, migration: Any) -> None:
        """Give the old devices back when a move is confirmed."""
        host = self.driver.devicetrack
        super().drop_move_claim_at_source(context, instance, migration)
        host.may_leave(instance)
        with errors.left_to_the_audit(instance, 'The confirmed move'):
            # In the source's cell an instance that went to another cell keeps its host, and Nova calls this once.
            left = migration.dest_compute if migration.cross_cell_move else None
            host.manager.drop_move_claim_at_source(context, Subject(instance, host=left), migration)

    def drop_move_claim_at_dest(self, context: Any, instance: Any, migration: Any) -> None:
        """Give the new devices back when a move is reverted and its guest is gone."""
        host = self.driver.devicetrack
        super().drop_move_claim_at_dest(context, instance, migration)
        undo_move(host, context, instance, migration, 'The reverted move', wait=True)

    def finish_evacuation(self, instance: Any, node: str, migration: Any) -> None:
        """Record the end of an evacuation, at its destination. Nova calls this for a rebuild in place too."""
        host = self.driver.devicetrack
        super().finish_evacuation(instance, node, migration)
        if migration is not None:
            with errors.left_to_the_audit(instance, 'The end of the evacuation'):
                host.manager.finish_evacuation(None, Subject(instance), host.nodename, migration)

    def report(self, context: Any, nodename: str) -> None:
        """Report the host to placement now, as Nova does after each of its claims. A node that Nova removed is skipped.

        :raises NovaException, ClientException, MessagingException: Nova's own; the next audit reports it
        """
        node = self.compute_nodes.get(nodename)
        if node is not None:
            locked = utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
            locked(self._update)(context.elevated(), node)

    def update_available_resource(self, context: Any, nodename: str, startup: bool = False) -> None:
        """Run Nova's audit first: it makes the providers that our audit looks up."""
        host = self.driver.devicetrack
        try:
            interrupted.end(host.source(), self.reportclient, in_audit=not startup)
        except Exception:                           # it only tidies up, and both audits are more important
            LOG.exception('The moves from host %s that were interrupted were not ended', host.host)
        if startup:
            host.record_paths()
        try:
            super().update_available_resource(context, nodename, startup=startup)
        finally:
            # Nova's audit fails while placement is away. Devices that were given up here are still given back.
            host.audit(nodename)
            host.report_changes()


def _complete_move(host: binding.Binding, context: Any, instance: Any, claim: Claim, made: Any) -> None:
    """Complete Nova's claim of a move: its end is that of the devices' too, and they are near the NUMA nodes."""
    with _undone_by_error(made):
        overrides.become(made, MoveClaim)
        if host.narrow(context, claim, instance, made.claimed_numa_topology):
            moving = instance.migration_context
            moving.new_resources = resources.of(claim.resources)
            instance.migration_context = moving
            instance.save()


@contextlib.contextmanager
def _undone_by_error(made: Any) -> Iterator[None]:
    """End Nova's own claim too after an error: the caller never got that claim, so nobody else would end it."""
    with contextlib.ExitStack() as undo:
        undo.callback(made.abort)
        yield
        undo.pop_all()


def _check_named(migration: Any) -> None:
    """Check that Nova passes the migration: rows name it, so Nova must not make it only in its locked part.

    :raises ComputeResourcesUnavailable: Nova does not, as with conductors before Ussuri
    """
    if migration is None:
        raise nova_exception.ComputeResourcesUnavailable(reason='The move has no migration record')
