"""What the service in ``service.py`` does after each start of a host, right after ``init_host``.

It finishes what the last process left half done, and then starts the guests that are off. Every step may be repeated.
One that fails waits for the next start, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
import logging
import types
from typing import TypeVar

from database import Instance
from database import Migration
from database import OVER
from devicetrack import exception
from service import Compute

LOG = logging.getLogger(__name__)
CONTEXT = None
Call = Callable[[str], Compute]               # reaches the service of a host, by name
Thing = TypeVar('Thing', Instance, Migration, types.SimpleNamespace)


def go_on(host: Compute, call: Call) -> None:
    """Deletes first: what is being deleted neither moves nor starts. Guests last: a move decides where they start."""
    finish_deletes(host)
    release_unknown(host)
    finish_moves(host, call)
    start_guests(host)


def finish_deletes(host: Compute) -> None:
    each((one for one in host.database.instances() if one.host == host.name and one.deleting and not one.deleted),
         lambda instance: host.delete(instance.uuid))

    def leave(instance: Instance) -> None:
        host.machine.delete_guest(instance.uuid)
        host.manager.release(CONTEXT, instance)

    # The source of a resize that was confirmed, and then not finished here, before the instance was deleted.
    each((one for one in host.database.instances()
          if one.deleting and one.host != host.name and host.manager.resources_of(one.uuid)), leave)


def release_unknown(host: Compute) -> None:
    """Release what was claimed for a boot that was never saved; ``start_guests`` goes on with the boots that were."""
    known = {one.uuid for one in host.database.instances()}
    records, _usage = host.manager.placed()
    claimed = {row.instance_uuid for row in records if (row.role, row.state) == ('current', 'claimed')}

    def release(unknown: types.SimpleNamespace) -> None:
        host.machine.delete_guest(unknown.uuid)
        host.manager.release(CONTEXT, unknown)

    each((types.SimpleNamespace(uuid=uuid) for uuid in sorted(claimed - known)), release)


def finish_moves(host: Compute, call: Call) -> None:
    """Finish or give up the moves of this host. If the other one does not answer, a move stays pending."""
    def finish(migration: Migration) -> None:
        instance = host.database.instance(migration.instance_uuid)
        if not instance.deleting:
            KINDS[migration.migration_type](host, instance, migration, call)

    each(host.database.migrations(), finish)


def start_guests(host: Compute) -> None:
    """Start the guests of this host that are off, but none that is being deleted or may run at another host."""
    moving = {one.instance_uuid for one in host.database.migrations() if one.status not in OVER | {'finished'}}

    def start(instance: Instance) -> None:
        host.start_unless_it_runs(instance)
        host.database.save(instance)

    each((one for one in host.database.instances()
          if one.host == host.name and not one.deleting and one.uuid not in moving), start)


def each(things: Iterable[Thing], step: Callable[[Thing], None]) -> None:
    """Take a step for each thing. One that fails is left for the next start."""
    for thing in things:
        try:
            step(thing)
        except exception.HostTakenOver:
            raise                               # a newer process of this host decides
        except Exception:
            LOG.exception('%s waits for the next start', thing.uuid)


# -- by the kind of a migration ---------------------------------------------------------------------------------------

def finish_resize(host: Compute, instance: Instance, migration: Migration, call: Call) -> None:
    at_source, at_destination = migration.source_compute == host.name, migration.dest_compute == host.name
    if (migration.status == 'accepted' and at_destination) or (
            migration.status in ('pre-migrating', 'migrating') and at_source):
        give_up(host, migration)
        if migration.on_one_host:               # else the guest would start on the new devices, or count as one on them
            host.manager.drop_move_claim_at_dest(CONTEXT, instance, migration)
        if at_source:
            host.start_unless_it_runs(instance)     # it may have been stopped
            host.database.save(instance)
    elif migration.status == 'post-migrating' and at_destination:
        host.finish_resize(instance.uuid, migration)
    elif migration.status == 'reverting' and (at_source or at_destination):
        call(migration.dest_compute).revert_resize(instance.uuid, migration)
        call(migration.source_compute).finish_revert_resize(instance.uuid, migration)
    elif migration.status == 'confirmed' and at_source and has_old_devices(host, migration):
        host.confirm_resize(instance.uuid, migration)       # perhaps the guest is still defined here


def finish_live_migration(host: Compute, _instance: Instance, migration: Migration, call: Call) -> None:
    at_source, at_destination = migration.source_compute == host.name, migration.dest_compute == host.name
    if migration.status == 'running' and (at_source or at_destination):
        host.finish_live_migration(migration, call)
    elif (migration.status == 'accepted' and at_destination) or (migration.status == 'pre-migrating' and at_source):
        give_up(host, migration)                # before the copy: the guest runs at the source


def finish_evacuation(host: Compute, instance: Instance, migration: Migration, _call: Call) -> None:
    if migration.dest_compute != host.name:
        return                                  # the source does nothing, and starts no guest
    if migration.status == 'accepted':
        give_up(host, migration)
    elif migration.status == 'pre-migrating':
        claimed, held = instance.migration_context.new_resources or (), host.manager.resources_of(instance.uuid)
        if len(held) == len(claimed) or host.guest_state(instance.uuid) == 'runs':
            host.start_unless_it_runs(instance)
            host.finish_evacuation(instance, migration)
        else:                                   # the block gave back, and the process ended before save 15
            give_up(host, migration)


KINDS = {'resize': finish_resize, 'live-migration': finish_live_migration, 'evacuation': finish_evacuation}


def give_up(host: Compute, migration: Migration) -> None:
    """After ``error`` the audit of the destination gives its devices back."""
    migration.status = 'error'
    host.database.save(migration)


def has_old_devices(host: Compute, migration: Migration) -> bool:
    """Whether this host still has devices that the instance left by this migration."""
    return any((row.role, row.migration_uuid) == ('old', migration.uuid)
               for row in host.manager.resources_of(migration.instance_uuid))
