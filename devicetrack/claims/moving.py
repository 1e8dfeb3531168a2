"""Claims for instances that move, and what ends them, at either end.

What moves is decided by rows. A call changes the rows of its own end in one transaction; what the other end does, or
fails to do, changes nothing here. Whoever never hears of a move's end is told by the audit (:mod:`.interrupted`), which
asks the compute service.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TYPE_CHECKING

from oslo_log import log as logging
from oslo_versionedobjects import base as ovo_base

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import interrupted
from devicetrack.claims import looking
from devicetrack.claims.claim import Claim
from devicetrack.claims.steps import Moving
from devicetrack.engine import demand as demands
from devicetrack.engine import moves
from devicetrack.objects import InstanceResources
from devicetrack.objects import MigrationContext
from devicetrack.objects.values import Record
from devicetrack.store.api import ContextChange
from devicetrack.store.api import Update

if TYPE_CHECKING:
    from devicetrack.claims.manager import ClaimManager

LOG = logging.getLogger(__name__)

RESIZE: Final = 'resize'
LIVE_MIGRATION: Final = 'live-migration'
EVACUATION: Final = 'evacuation'

NEW: Final = 'new_'
OLD: Final = 'old_'


class Partners(NamedTuple):
    """How the devices of a guest that runs elsewhere find their partners.

    ``choose`` makes of a demand one for partners alone, in the order of the guest; ``seen`` is what the guest has seen
    of each device.
    """

    choose: Callable[[demands.Demand], demands.Demand]
    seen: tuple[str | None, ...]


# -- claims -----------------------------------------------------------------------------------------------------------


def claim(manager: ClaimManager, context: Any, instance: Any, migration: Any, move_type: str,
          demand: demands.Demand, numa_topology: Any = None, partners: Partners | None = None) -> Claim:
    """Claim devices of this host for an instance that moves to it, or to other devices of it.

    The errors are those of :meth:`ClaimManager.resize_claim`.

    :param partners: of a guest that comes while it runs, for which not any device of a class will do
    """
    if migration is None:
        migration = _create_migration(manager, context, instance, move_type)
    demand = _with_affinity(demand, numa_topology)
    uuid, claim_id = instance.uuid, manager.new_claim_id()
    with manager.working(uuid):
        one_host = is_source(manager, migration)
        leaving = _make_room(manager, instance, migration, one_host)
        old = _old_resources(manager, instance, leaving, one_host)
        made: Any = MigrationContext(instance_uuid=uuid, migration_uuid=migration.uuid, old_resources=old,
                                     old_numa_topology=_topology(getattr(instance, 'numa_topology', None)),
                                     new_numa_topology=_topology(numa_topology))

        def arrange(records: Sequence[Record]) -> list[Record]:
            if partners is None:
                return list(records)
            return [record._replace(seen=seen) for record, seen in zip(records, partners.seen, strict=True)]

        def contexts(records: Sequence[Record]) -> tuple[ContextChange, ...]:
            made.new_resources = InstanceResources.from_records(uuid, manager.host_uuid, records)
            text = json.dumps(made.obj_to_primitive(), separators=(',', ':'), sort_keys=True)
            return (ContextChange(manager.host_uuid, uuid, migration.uuid, text),)

        updates = tuple(Update(record, record._replace(role=vocabulary.OLD, migration_uuid=migration.uuid,
                                                       generation=record.generation + 1)) for record in leaving)
        moving = Moving(migration.uuid, updates, arrange, contexts)
        records: list[Record] = []
        if demand.items:
            records = _take(manager, uuid, claim_id, demand, moving, partners)
        else:
            contexts(())
            manager.leave(moving)
    instance.migration_context = made
    return Claim(manager, context, instance, claim_id, made.new_resources, migration,
                 over=not records and not leaving)


def _take(manager: ClaimManager, uuid: str, claim_id: str, demand: demands.Demand, moving: Moving,
          partners: Partners | None) -> list[Record]:
    if partners is None:
        return manager.take(uuid, claim_id, demand, moving)
    for _attempt in range(manager.claim_attempts - 1):
        # What was chosen may be taken meanwhile.
        with contextlib.suppress(exception.NoFit):
            return manager.take(uuid, claim_id, partners.choose(demand), moving)
    return manager.take(uuid, claim_id, partners.choose(demand), moving)


def claim_in_place(manager: ClaimManager, context: Any, instance: Any) -> Claim:
    """The claim of a rebuild that moves nothing: the devices that the instance has, of which an abort takes none."""
    records = manager.used_by_guest(manager.records_of(instance.uuid))
    resources = InstanceResources.from_records(instance.uuid, manager.host_uuid, records)
    return Claim(manager, context, instance, '', resources, over=True)


def is_source(manager: ClaimManager, migration: Any) -> bool:
    """Whether a migration leaves from this host. A claim is made at its destination, so then it moves nothing away."""
    return manager.node.is_at(moves.Move.of(migration).source)


def _create_migration(manager: ClaimManager, context: Any, instance: Any, move_type: str) -> Any:
    create = getattr(manager.service, 'create_migration', None)
    if create is None:
        raise exception.BadRequest('migration', None, 'the compute service that was handed in creates none: name one')
    return create(context, instance, manager.nodename, move_type)


def _make_room(manager: ClaimManager, instance: Any, migration: Any, one_host: bool) -> list[Record]:
    """See that no earlier move of the instance stands in the way.

    :returns: the rows that the instance leaves, when it moves on this host
    """
    # An earlier stay may be two moves behind: the one that brought the instance, and the one that took it away again.
    for mend in (_replace, _settle, _settle, _settle, None):
        records = _there(manager, instance)
        stands = [record for record in records if not one_host or record.role != vocabulary.CURRENT]
        if not stands:
            return records
        if mend is not None:
            mend(manager, migration, records)
    raise exception.InstanceHasStaleRows(instance.uuid, [record.key for record in stands])


def _settle(manager: ClaimManager, migration: Any, records: Sequence[Record]) -> None:
    """End here what the service says is over."""
    interrupted.settle_moves(manager, records[0].instance_uuid)


def _replace(manager: ClaimManager, migration: Any, records: Sequence[Record]) -> None:
    """Give back what an older migration of the instance claimed here and never used: the newest migration counts.

    :raises InstanceHasClaim: it is this migration, which has its claim
    :raises MigrationSuperseded: it is newer than this one
    """
    incoming = [record for record in records if record.role == vocabulary.INCOMING]
    older = sorted({str(record.migration_uuid) for record in incoming})
    if migration.uuid in older:
        raise exception.InstanceHasClaim(records[0].instance_uuid, [
            record.key for record in incoming if record.migration_uuid == migration.uuid])
    found = (looking.migrations(manager, older) or {}) if older else {}
    this = moves.Move.of(migration)
    for uuid in older:
        other = found.get(uuid)
        if other is None or other.verdict != moves.PENDING:
            continue                            # whether it is over is for the service to say
        if this.is_older_than(other):
            raise exception.MigrationSuperseded(migration.uuid, uuid)
        if other.is_older_than(this):
            looking.fail_migration(manager, uuid)
            manager.undo(records, migrations={uuid})


def _old_resources(manager: ClaimManager, instance: Any, leaving: Sequence[Record],
                   one_host: bool) -> InstanceResources | None:
    if one_host:
        return InstanceResources.from_records(instance.uuid, manager.host_uuid, leaving)
    resources = getattr(instance, 'resources', None)
    return resources if isinstance(resources, InstanceResources) else None


def _with_affinity(demand: demands.Demand, topology: Any) -> demands.Demand:
    """The demand on the NUMA nodes that the service pinned the guest's processors to."""
    cells = getattr(topology, 'cells', None) or ()
    nodes = frozenset(cell.id for cell in cells if isinstance(getattr(cell, 'id', None), int))
    if not nodes or demand.numa_nodes:
        return demand
    policy = demand.numa_policy if demand.numa_policy != vocabulary.NONE else vocabulary.LEGACY
    return demand._replace(numa_nodes=nodes, numa_policy=policy)


def _topology(topology: Any) -> Any:
    return topology if isinstance(topology, ovo_base.VersionedObject) else None


# -- what is kept of a move -------------------------------------------------------------------------------------------


def stored_context(manager: ClaimManager, instance_uuid: str) -> MigrationContext | None:
    """The migration context that the store keeps for an instance on this host.

    :raises UnknownObject, MalformedObject: this release cannot read it
    """
    found = manager.store.contexts(manager.host_uuid, instance_uuid)
    if not found:
        return None
    try:
        primitive = json.loads(found[0].context)
    except ValueError as error:
        raise exception.MalformedObject('MigrationContext', f'stored for {instance_uuid}: {error}') from error
    context: MigrationContext = MigrationContext.obj_from_primitive(primitive)
    return context


# -- ends -------------------------------------------------------------------------------------------------------------


def mark_old(manager: ClaimManager, instance: Any, migration_uuid: str) -> None:
    """At the source of a move: its rows are old from the first call on that names the migration.

    Called with the instance's ``working`` lock.
    """
    records = _there(manager, instance)
    if any(record.migration_uuid == migration_uuid for record in records):
        return
    by_calls = not hasattr(manager.service, 'migrations')
    if not by_calls and any(_came(record, records) for record in records):
        interrupted.settle_moves(manager, instance.uuid)
        records = _there(manager, instance)
    manager.carry_out(moves.Settlement(leave=tuple(
        (record, migration_uuid) for record in records
        if moves.leaves_with(record, records) or (by_calls and _came(record, records)))))


def _came(record: Record, rows: Sequence[Record]) -> bool:
    """Whether an instance came to a device by a migration from elsewhere, which nobody said is over.

    It is, when the next one takes the instance away: an instance moves once at a time.
    """
    return record.role == vocabulary.CURRENT and record.migration_uuid is not None and not any(
        other.migration_uuid == record.migration_uuid and other.role == vocabulary.OLD for other in rows)


def settle_ended(manager: ClaimManager, instance_uuid: str, records: Sequence[Record], before_move: bool) -> bool:
    """Before a guest starts: end moves that the service says are over, of which nobody has told this host yet.

    Else a guest whose move failed would start on what was claimed for it. For who holds the ``working`` lock.

    :returns: whether there was any
    :raises MigrationUndecided: the guest's devices depend on it, and neither the service nor ``before_move`` says it
    :raises StoreError: as :func:`.interrupted.settle_moves`
    """
    named = looking.named_migrations(records)
    if not named:
        return False
    known = looking.migrations(manager, named)
    if known is None:
        # A service that tells of no migrations at all ends its moves by calls: what it did not end goes on.
        if hasattr(manager.service, 'migrations') and not before_move:
            _check_decided(manager, instance_uuid, records)
        return False
    over = any(known[uuid].verdict in (moves.DONE, moves.UNDONE) for uuid in named if uuid in known)
    if over:
        interrupted.settle_moves(manager, instance_uuid)
    return over


def _check_decided(manager: ClaimManager, instance_uuid: str, records: Sequence[Record]) -> None:
    """See that the guest is to have the same devices whether its move is over or not.

    So it is at either end of a move between two hosts, each of which has one set of devices, and on one host once the
    guest has run on the new ones.
    """
    stored = stored_context(manager, instance_uuid)
    if stored is None or stored.old_resources is None or stored.old_resources.host_uuid != manager.host_uuid:
        return
    if not any(record.role == vocabulary.CURRENT and record.migration_uuid == stored.migration_uuid
               for record in records):
        raise exception.MigrationUndecided(instance_uuid, stored.migration_uuid)


def drop_at_source(manager: ClaimManager, instance: Any, migration: Any) -> None:
    """A move is confirmed: what the instance left goes back, what it has is at rest."""
    with manager.working(instance.uuid):
        move = moves.Move.of(migration)
        if manager.node.is_at(move.source) and not manager.node.is_at(move.destination) \
                and getattr(instance, 'host', None) != manager.host:
            mark_old(manager, instance, migration.uuid)
        _confirm(manager, instance, migration.uuid)


def _confirm(manager: ClaimManager, instance: Any, migration_uuid: str) -> None:
    """End a move in one transaction; then what was left goes back. For who holds the ``working`` lock."""
    ours = [record for record in _there(manager, instance) if record.migration_uuid == migration_uuid]
    old = tuple(record for record in ours if record.role == vocabulary.OLD)
    new = tuple(record for record in ours if record.role != vocabulary.OLD)
    left = manager.advance(moves.Settlement(settle=new, give=old, over=True))
    instance.migration_context = None
    manager.give_back(left)


def drop_at_destination(manager: ClaimManager, instance: Any, migration_uuid: str) -> None:
    """A move is undone: what was claimed for it goes back, what the instance had is current again."""
    with manager.working(instance.uuid):
        records = manager.records_of(instance.uuid)
        ours = [record for record in records if record.migration_uuid == migration_uuid]
        old = tuple(record for record in ours
                    if record.role == vocabulary.OLD and record.state != vocabulary.RELEASING)
        new = tuple(record for record in ours if record.role != vocabulary.OLD)
        before = _resources_before(manager, instance, migration_uuid, old)
        left = manager.advance(moves.Settlement(settle=old, give=new, over=True))
        if before is not None:
            instance.resources = before
        instance.migration_context = None
        manager.give_back(left)


def _resources_before(manager: ClaimManager, instance: Any, migration_uuid: str,
                      old: Sequence[Record]) -> InstanceResources | None:
    """What the instance had before a move that is undone; None when nobody here knows."""
    if old:
        at_rest = [record._replace(role=vocabulary.CURRENT, migration_uuid=None, generation=record.generation + 1)
                   for record in old]
        return InstanceResources.from_records(instance.uuid, manager.host_uuid, at_rest)
    context = getattr(instance, 'migration_context', None)
    if isinstance(context, MigrationContext) and context.migration_uuid == migration_uuid:
        resources: InstanceResources | None = context.old_resources
        return resources
    return None


def drop(manager: ClaimManager, instance: Any, prefix: str) -> None:
    """End a move at the end that the prefix says: ``new_`` undoes it here, ``old_`` confirms it."""
    if prefix not in (NEW, OLD):
        raise exception.BadRequest('prefix', prefix, f'must be {NEW} or {OLD}')
    context = getattr(instance, 'migration_context', None)
    named = context.migration_uuid if isinstance(context, MigrationContext) else None
    records = _there(manager, instance)
    if named is None:
        of_rows = {record.migration_uuid for record in records if record.migration_uuid is not None}
        if len(of_rows) != 1:
            return                              # nothing of it moves, or nobody can say what: the audit will ask
        [named] = of_rows
    if prefix == NEW:
        drop_at_destination(manager, instance, named)
        return
    with manager.working(instance.uuid):
        _confirm(manager, instance, named)


def finish_evacuation(manager: ClaimManager, instance: Any, migration: Any) -> None:
    """The guest runs here: what was claimed for it is current. At rest it is when the service says that all is done."""
    with manager.working(instance.uuid):
        context = getattr(instance, 'migration_context', None)
        named = migration.uuid if migration is not None else getattr(context, 'migration_uuid', None)
        manager.carry_out(moves.Settlement(arrive=tuple(
            record for record in _there(manager, instance)
            if named is not None and record.migration_uuid == named and record.role != vocabulary.OLD)))
        instance.resources = InstanceResources.from_records(
            instance.uuid, manager.host_uuid, manager.used_by_guest(manager.records_of(instance.uuid)))
        instance.migration_context = None


def update_usage(manager: ClaimManager, instance: Any) -> None:
    """The service saved a change of an instance: at the source of a move it is the first that names the migration."""
    context = getattr(instance, 'migration_context', None)
    if isinstance(context, MigrationContext):
        with manager.working(instance.uuid):
            mark_old(manager, instance, context.migration_uuid)


def _there(manager: ClaimManager, instance: Any) -> list[Record]:
    return [record for record in manager.records_of(instance.uuid) if record.state != vocabulary.RELEASING]


def allocations_here(allocations: Mapping[str, Any] | Any, providers: frozenset[str]) -> Any:
    """Of allocations that carry the providers of both hosts, those of this one. Other requests are left as they are."""
    if not isinstance(allocations, Mapping):
        return allocations
    return {provider: allocation for provider, allocation in allocations.items() if provider in providers}
