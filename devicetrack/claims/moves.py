"""Claims for instances that move, and the ends of moves, at both hosts.

The rows decide what moves. A call changes the rows of its own host in one transaction, and nothing here depends on the
other host. If nobody tells a host that a move has ended, its audit asks the compute service.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from typing import Any
from typing import Final

from oslo_versionedobjects import base as ovo_base

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import arguments
from devicetrack.claims.claim import Arrival
from devicetrack.claims.claim import Claim
from devicetrack.claims.claim import Claiming
from devicetrack.claims.claim import Taking
from devicetrack.claims.failed_claims import FailedClaims
from devicetrack.claims.host import ThisHost
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.life import Life
from devicetrack.claims.partner_search import PartnerSearch
from devicetrack.claims.rows import Rows
from devicetrack.claims.views import HostViews
from devicetrack.engine import migrations
from devicetrack.engine import unsettled
from devicetrack.engine.demand import Demand
from devicetrack.engine.views import named_migrations
from devicetrack.engine.views import Views
from devicetrack.objects import InstanceResources
from devicetrack.objects import MigrationContext
from devicetrack.objects.event import NO_NOTE
from devicetrack.objects.event import Note
from devicetrack.objects.migration_context import Carried
from devicetrack.objects.migration_context import NOTHING
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

LOG = log.logger(__name__)

RESIZE: Final = 'resize'
LIVE_MIGRATION: Final = 'live-migration'
EVACUATION: Final = 'evacuation'

NEW: Final = 'new_'
OLD: Final = 'old_'


class Moves:
    """Instances that move to this host, from it, or to other devices of it."""

    def __init__(self, host: ThisHost, rows: Rows, views: HostViews, life: Life, claiming: Claiming,
                 failed: FailedClaims) -> None:
        self._here, self._host_uuid, self._service = host.here, host.uuid, host.service
        self._rows, self._views, self._life, self._wipes = rows, views, life, life.wipes
        self._claiming, self._failed, self._instances = claiming, failed, failed.instances
        self._attempts: int = host.options.claim_attempts       # of a claim for a running guest to find partners

    # -- claims -------------------------------------------------------------------------------------------------------

    def claim(self, context: Any, instance: Any, migration: Any, move_type: str, demand: Demand,
              new: Carried = NOTHING, partners: PartnerSearch | None = None) -> Claim:
        """Claim devices of this host for an instance that moves to it, or to other devices of it.

        The errors are those of :meth:`.manager.ClaimManager.resize_claim`.

        :param new: the service's own objects for the instance on this host
        :param partners: for a guest that arrives running, and needs compatible devices
        """
        if migration is None:
            migration = self._service.create_migration(context, instance, self._here.node, move_type)
        arguments.migration_uuid(migration)
        with Taking(self._failed, Claim(self._failed, instance, migration, demand.skipped),
                    takes=bool(demand.items)) as claim:
            return self._take_for(claim, _with_affinity(demand, new.numa_topology), new, partners).keep()

    def _take_for(self, claim: Claim, demand: Demand, new: Carried, partners: PartnerSearch | None) -> Claim:
        instance, migration = claim.instance, claim.migration
        with self._wipes.releasing(instance.uuid, wait=False):
            self._failed.undo_earlier(instance.uuid)
            leaving = self._make_room(instance, migration)
            move = Arrival(instance.uuid, migration.uuid, tuple(leaving or ()), self._old_resources(instance, leaving),
                           _carried(*(getattr(instance, name, None) for name in Carried._fields)), _carried(*new),
                           partners.seen if partners is not None else None, ends_of(migration))
            records: list[Record] = []
            if demand.items:
                records = self._take(claim, demand, move, partners)
            else:
                if leaving or leaving is None:
                    self._life.set_aside(instance.uuid)
                self._claiming.leave(move, claim.claim_id)
        resources = self._rows.resources(instance.uuid, records)
        return claim.has_now(resources, {'migration_context': move.context(resources)},
                             over=not records and not leaving)

    def _take(self, claim: Claim, demand: Demand, move: Arrival, partners: PartnerSearch | None) -> list[Record]:
        if partners is None:
            return self._claiming.take(claim, demand, move)
        for _attempt in range(self._attempts - 1):
            with contextlib.suppress(exception.NoFit):          # another claim may take the chosen devices
                return self._claiming.take(claim, partners.choose(demand), move)
        return self._claiming.take(claim, partners.choose(demand), move)

    def claim_in_place(self, instance: Any) -> Claim:
        """Return the claim of a rebuild in place. It has the instance's devices, and an abort gives none back."""
        records = self._life.used_by_guest(self._rows.of_instance(instance.uuid))
        resources = self._rows.resources(instance.uuid, records)
        claim_id = records[0].claim_id if records else ''
        return Claim(self._failed, instance, claim_id=claim_id).has_now(resources, Fields(), over=True)

    def is_source(self, migration: Any) -> bool:
        """Whether a migration leaves from this host."""
        return self._here.is_at(migrations.Move.of(migration).source)

    def _make_room(self, instance: Any, migration: Any) -> list[Record] | None:
        """Check that no earlier move of the instance is in the way, and end it if it is over.

        :returns: the rows that the instance leaves if it moves on this host; None if it comes from another host
        """
        # The destination of a migration makes the claim. So a migration that leaves this host moves on this host.
        one_host = self.is_source(migration)
        records = self._rows.there(instance.uuid)
        # Two moves of an earlier stay may be open: the one that brought the instance, and the one that took it away.
        for replaced in (False, True, True, True, True):
            stands = [record for record in records if not one_host or record.role != vocabulary.CURRENT]
            if not stands:
                return records if one_host else None
            if replaced:
                self.settle(instance.uuid)
            else:
                self._replace_older(migration, records)
            records = self._rows.there(instance.uuid)
        raise exception.InstanceHasStaleRows(instance.uuid, [record.key for record in stands])

    def _replace_older(self, migration: Any, records: Sequence[Record]) -> None:
        """Give back devices that an older migration of the instance claimed here, since the newest migration counts.

        :raises InstanceHasClaim: this migration has a claim already
        :raises MigrationSuperseded: a newer migration has a claim
        """
        incoming = [record for record in records if record.role == vocabulary.INCOMING]
        older = named_migrations(incoming)
        if migration.uuid in older:
            raise exception.InstanceHasClaim(records[0].instance_uuid, [
                record.key for record in incoming if record.migration_uuid == migration.uuid])
        found = (self._service.migrations([*older, migration.uuid]) or {}) if older else {}
        this = migrations.Move.of(migration)
        if older and not found.keys() & set(older) and self._are_forgotten(records, migration.uuid):
            self._life.settle(migrations.undo(records, older))
        for uuid in older:
            other = found.get(uuid)
            if other is None or other.outcome != migrations.PENDING:
                continue                        # only the service knows whether it is over
            if this.is_older_than(other):
                raise exception.MigrationSuperseded(migration.uuid, uuid)
            if other.is_older_than(this) and self._has_no_guest(records, uuid):
                self._service.fail_migration(uuid)
                self._life.settle(migrations.undo(records, {uuid}))

    def _are_forgotten(self, records: Sequence[Record], newer: str) -> bool:
        """Whether the service has forgotten the moves for which the instance has claims, and two looks show no guest.

        The service must know the newer migration: otherwise it may lag behind.
        """
        return self._service.migration(newer) is not None and all(
            unsettled.forgotten(self._views.read_for(tuple(records))) == set(records) for _look in range(2))

    def _has_no_guest(self, records: Sequence[Record], migration_uuid: str) -> bool:
        """Whether certainly no domain names the devices that a migration of the instance claimed here."""
        seen = self._situation(records, self._views.read_for(tuple(records)))
        return seen.domain is not None and not any(
            record.key in seen.named for record in records if record.migration_uuid == migration_uuid)

    def _old_resources(self, instance: Any, leaving: Sequence[Record] | None) -> InstanceResources | None:
        if leaving is not None:
            return self._rows.resources(instance.uuid, leaving)
        return self._instances.read(instance).get('resources')

    def end_earlier(self, instance_uuid: str) -> bool:
        """Before a claim without a move is refused, end moves of the instance that are over, as the next audit would.

        Devices that go back then are wiped in the background. Waits for the instance.

        :returns: whether any row changed
        :raises StoreError: as :meth:`settle`
        """
        with self._wipes.releasing(instance_uuid, wait=False):
            records = self._rows.of_instance(instance_uuid)
            if not named_migrations(record for record in records if record.state != vocabulary.RELEASING):
                return False
            self._settle(records, wait=False)
            return self._rows.of_instance(instance_uuid) != records

    # -- the answers of the service and the guest ---------------------------------------------------------------------

    def settle(self, instance_uuid: str) -> None:
        """Do for one instance now what the next audit would do. The caller works on it.

        Devices that cannot go back now wait for that audit.

        :raises StoreError: nothing was changed, or that is unknown
        """
        self._settle(self._rows.of_instance(instance_uuid))

    def _settle(self, records: Sequence[Record], wait: bool = True) -> bool:
        """Do as :meth:`settle`; return whether the definition of the guest could be read, or surely is not there."""
        seen = self._situation(records, self._views.read_for(tuple(records)))
        leaving = self._advance(seen)
        try:
            self._life.release(leaving, wait)
        except exception.DeviceTrackError as error:
            LOG.warning('Work for instance %(instance)s has to wait: %(error)s',
                        {'instance': leaving[0].instance_uuid, 'error': error})
        return seen.domain is not None

    def settle_by(self, records: Sequence[Record], views: Views) -> None:
        """Update the rows of one instance by what its migrations, its guest and the service show.

        Audits call it, so it waits for no wipe.
        """
        self._life.release(self._advance(self._situation(records, views)), wait=False)

    def _advance(self, seen: migrations.Situation) -> list[Record]:
        settlement = migrations.settle(seen)
        for migration_uuid in settlement.failed:
            self._service.fail_migration(migration_uuid)
        # An event has room for the ends of one migration, and an instance rarely has two here.
        known = [move for move in map((seen.moves or {}).get, named_migrations(seen.records)) if move is not None]
        return self._life.advance(settlement, Note(ends=known[0].ends) if len(known) == 1 else NO_NOTE)

    def _situation(self, records: Sequence[Record], views: Views) -> migrations.Situation:
        usage = views.usage
        uuid = records[0].instance_uuid if records else ''
        # What only a snapshot names, the guest has left; a release still finds it in use.
        uses = [use for use in usage.uses
                if use.domain_uuid == uuid and use.identifier is not None and not use.in_snapshot_only]
        named = {DeviceKey(use.kind, str(use.identifier)) for use in uses}
        live = {DeviceKey(use.kind, str(use.identifier)) for use in uses if use.live}
        there: bool | None = uuid in usage.domains
        # What could not be read may be the devices that its definition names; without a domain, it may be the domain.
        if not all(there and unknown.is_of_another(uuid) for unknown in usage.unknown):
            there = None
        return migrations.Situation(self._here, records, views.migrations, there,
                               usage.runs_here(uuid), named, live, (views.instances or {}).get(uuid))

    def settle_ended(self, instance_uuid: str, records: Sequence[Record]) -> bool:
        """Before a guest starts, end moves that the service says are over and that nobody has ended here.

        Otherwise a guest whose move failed would start on the devices of the move. The caller works on the instance.

        :returns: whether there was such a move
        :raises MigrationUndecided: the guest's devices depend on it, and the service does not decide, or nobody can
            read which of them its definition names
        :raises StoreError: as :meth:`settle`
        """
        named = named_migrations(records)
        if not named:
            return False
        known = self._service.migrations(named) or {}
        before_move = self._life.has_not_left(map(known.get, named))
        if any(move.outcome in (migrations.DONE, migrations.UNDONE) for uuid, move in known.items() if uuid in named):
            if not self._settle(records, wait=False) and not before_move:
                self._check_settled(instance_uuid)
            return True
        undone = [] if before_move else migrations.taken_back(records)
        if undone:
            raise exception.MigrationUndecided(instance_uuid, undone[0])
        if not before_move:
            self._life.check_decided(instance_uuid, [
                uuid for uuid in named if uuid not in known or not known[uuid].goes_on])
        return False

    def _check_settled(self, instance_uuid: str) -> None:
        """:raises MigrationUndecided: rows of a move on this host are as they were in the middle of it"""
        rows = self._rows.there(instance_uuid)
        for uuid in named_migrations(rows):
            if len({record.role == vocabulary.OLD for record in rows if record.migration_uuid == uuid}) > 1:
                raise exception.MigrationUndecided(instance_uuid, uuid)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def mark_old(self, instance: Any, migration_uuid: str, ends: tuple[str | None, str | None] | None) -> None:
        """At the source of a move, make the rows old at the first call that names the migration.

        A call may be late: rows that a newer migration may have to do with stay as they are. The caller works on the
        instance.

        :param ends: the names of the two hosts, if the caller knows them
        """
        records = self._rows.there(instance.uuid)
        if any(record.migration_uuid == migration_uuid for record in records):
            return
        by_calls = self._service.ends_moves_by_calls
        # An earlier migration may be over, and what it left for good is not to come back with the end of this one.
        if not by_calls and named_migrations(records):
            self._settle(self._rows.of_instance(instance.uuid), wait=False)
            records = self._rows.there(instance.uuid)
        leaving = [record for record in records
                   if migrations.leaves_with(record, records) or (by_calls and _came(record, records))]
        if leaving and not by_calls:
            asked = {record.migration_uuid for record in leaving if record.migration_uuid is not None}
            known = self._service.migrations(sorted({migration_uuid, *asked}))
            leaving = [record for record in leaving
                       if migrations.may_leave_with(record, migration_uuid, instance.uuid, known, self._here)]
        self._life.settle(migrations.Settlement(leave=tuple((record, migration_uuid) for record in leaving)),
                          note=Note(ends=ends))

    def drop_at_source(self, instance: Any, migration: Any, wait: bool) -> Fields:
        """Confirm a move: give back the devices that the instance left, and take its others out of the move.

        :param wait: wait for wipes; False wipes devices in the background
        :raises BadRequest: the service says that the move was undone, or ended in an error; or as :meth:`_confirm`
        :raises DepartureUnknown: as :meth:`_may_have_left`
        """
        move = migrations.Move.of(migration)
        self._check_not_undone(migration.uuid, move)
        with self._wipes.releasing(instance.uuid, wait):
            if self._here.is_at(move.source) and not self._here.is_at(move.destination) \
                    and self._may_have_left(instance.uuid, migration.uuid,
                                            getattr(instance, 'host', None) == self._here.host):
                self.mark_old(instance, migration.uuid, move.ends)
            return self._confirm(instance, migration.uuid, wait, Note(ends=move.ends))

    def _check_not_undone(self, migration_uuid: str, move: migrations.Move | None = None) -> None:
        """:raises BadRequest: the service says so, or the caller's object if the service does not know the migration"""
        move = self._service.migration(migration_uuid) or move
        if move is not None and move.outcome == migrations.UNDONE:
            raise exception.BadRequest('migration', migration_uuid, f'it is {move.status}, and the instance may have '
                                       'the devices that it would leave: only a migration that was not undone can be '
                                       'confirmed')

    def check_goes_on(self, instance_uuid: str, migration_uuid: str) -> None:
        """Check that a migration may still take an instance away, by all that the service tells.

        :raises BadRequest: the service says that it is over
        :raises MigrationSuperseded: the service knows a newer one of the instance
        """
        known = self._service.migrations([migration_uuid]) or {}
        move = known.get(migration_uuid)
        if move is None:
            return
        if move.outcome in (migrations.DONE, migrations.UNDONE):
            raise exception.BadRequest('migration', migration_uuid, f'it is {move.status}: other instances may have '
                                       'the devices that were claimed for it')
        for other in known.values():
            if other.instance_uuid == instance_uuid and other.outcome != migrations.UNDONE \
                    and move.is_older_than(other):
                raise exception.MigrationSuperseded(migration_uuid, other.uuid)

    def _may_have_left(self, instance_uuid: str, migration_uuid: str, is_here: bool) -> bool:
        """Whether an instance may have left, by the service. The caller's object may be of another time.

        If the service does not answer, nobody knows, and an audit gives back what the instance left. The service leaves
        out an instance without a host, which may just come back by a boot: then it has a claim here. So may one that it
        has no record of yet.

        :param is_here: whether the caller's object has the instance on this host
        :raises DepartureUnknown: the service does not answer, and no audit can do that, since the service reports no
            migrations
        """
        if not self._service.tells_of_instances:
            return not is_here                  # calls alone end moves
        states = self._service.instances([instance_uuid])
        there = self._rows.there(instance_uuid)
        if states is None and self._service.ends_moves_by_calls and any(
                migrations.leaves_with(record, there) for record in there) and not any(
                record.migration_uuid == migration_uuid for record in there):
            raise exception.DepartureUnknown(instance_uuid, migration_uuid)
        if states is None or states.get(instance_uuid) == migrations.INSTANCE_HERE:
            return False
        return states.get(instance_uuid) not in (None, migrations.INSTANCE_FORGOTTEN) or not (
            is_here or any(record.state == vocabulary.CLAIMED for record in there))

    def _confirm(self, instance: Any, migration_uuid: str, wait: bool, note: Note = NO_NOTE) -> Fields:
        """End a move in one transaction, then give back the devices left behind. The caller works on the instance.

        :raises BadRequest: the guest was started again on the devices that it would leave
        """
        rows = self._rows.there(instance.uuid)
        if migration_uuid in migrations.taken_back(rows):
            raise exception.BadRequest('migration', migration_uuid, 'its guest was started again on the devices that '
                                       'it would leave: the migration was undone and cannot be confirmed')
        ours = [record for record in rows if record.migration_uuid == migration_uuid]
        old = tuple(record for record in ours if record.role == vocabulary.OLD)
        new = tuple(record for record in ours if record.role != vocabulary.OLD)
        left = self._life.advance(migrations.Settlement(settle=new, give=old, over=True), note)
        fields = self._without_context(instance, migration_uuid)
        self._instances.set(instance, fields)
        self._life.release(left, wait)
        return fields

    def _without_context(self, instance: Any, migration_uuid: str | None) -> Fields:
        """The fields of an instance after a migration, whose context goes. A late call leaves that of another one."""
        context = self._instances.read(instance).get('migration_context')
        return {} if context is not None and context.migration_uuid != migration_uuid else {'migration_context': None}

    def drop_at_destination(self, instance: Any, migration_uuid: str, wait: bool) -> Fields:
        """Undo a move: give back the devices claimed for it, and make those that the instance had current again.

        :param wait: as :meth:`drop_at_source`
        :raises BadRequest: the service says that the move is done
        """
        move = self._service.migration(migration_uuid)
        if move is not None and move.outcome == migrations.DONE:
            raise exception.BadRequest('migration', migration_uuid, f'it is {move.status}, and the instance has the '
                                       'devices claimed for it: only a migration that is not done can be undone')
        with self._wipes.releasing(instance.uuid, wait):
            ours = [record for record in self._rows.of_instance(instance.uuid)
                    if record.migration_uuid == migration_uuid]
            old = tuple(record for record in ours
                        if record.role == vocabulary.OLD and record.state != vocabulary.RELEASING)
            new = tuple(record for record in ours if record.role != vocabulary.OLD)
            before = self._resources_before(instance, migration_uuid, old)
            if not ours and move is not None and move.outcome == migrations.UNDONE and (
                    move.status == migrations.REVERTED or not self._has_those_of(instance, migration_uuid)):
                before = None                   # a late call: the instance may have other devices since, or none
            left = self._life.advance(migrations.Settlement(settle=old, give=new, over=True),
                                      NO_NOTE if move is None else Note(ends=move.ends))
            fields = self._without_context(instance, migration_uuid)
            if before is not None:
                fields['resources'] = before
            self._instances.set(instance, fields)
            self._life.release(left, wait)
            return fields

    def _resources_before(self, instance: Any, migration_uuid: str,
                          old: Sequence[Record]) -> InstanceResources | None:
        """The devices that the instance had before an undone move; None if that is unknown here."""
        if old:
            return self._rows.resources(instance.uuid, [
                record.changed(role=vocabulary.CURRENT, migration_uuid=None)
                for record in old])
        kept = self._instances.read(instance)
        context = kept.get('migration_context')
        if 'migration_context' not in kept:
            with contextlib.suppress(exception.UnknownObject, exception.MalformedObject):
                context = self._rows.stored_context(instance.uuid)
        if context is not None and context.migration_uuid == migration_uuid:
            resources: InstanceResources | None = context.old_resources
            return resources
        return None

    def _has_those_of(self, instance: Any, migration_uuid: str) -> bool:
        """Whether an instance still names the devices that a migration claimed for it, by its context."""
        kept = self._instances.read(instance)
        context, now = kept.get('migration_context'), kept.get('resources')
        new = None if context is None or context.migration_uuid != migration_uuid else context.new_resources
        if now is None or new is None:
            return False
        return now.host_uuid == new.host_uuid and {one.claim_id for one in now} == {one.claim_id for one in new}

    def drop(self, instance: Any, prefix: str, wait: bool) -> Fields:
        """End a move at the end that the prefix names: ``new_`` undoes it here, ``old_`` confirms it.

        :param wait: as :meth:`drop_at_source`
        :raises BadRequest: the prefix is neither; or only rows name the migration, and it is not known to end so
        """
        if prefix not in (NEW, OLD):
            raise exception.BadRequest('prefix', prefix, f'must be {NEW} or {OLD}')
        named = self._named_by(instance)
        if named is None:
            of_rows = named_migrations(self._rows.there(instance.uuid))
            if len(of_rows) != 1:
                return {}                       # no move, or several: the audit asks the service
            [named] = of_rows
            self._check_ends(named, prefix)
        if prefix == NEW:
            return self.drop_at_destination(instance, named, wait)
        self._check_not_undone(named)
        with self._wipes.releasing(instance.uuid, wait):
            return self._confirm(instance, named, wait)

    def _check_ends(self, migration_uuid: str, prefix: str) -> None:
        """Check that a late call about an earlier migration cannot end this one, which only rows name.

        A service that reports no migrations ends each by its call, before the next one begins.

        :raises BadRequest: the service does not say that the migration ends as the prefix says
        """
        if self._service.ends_moves_by_calls:
            return
        move = self._service.migration(migration_uuid)
        if prefix == OLD:
            ends = move is not None and move.outcome == migrations.DONE
        else:
            ends = move is not None and (move.outcome == migrations.UNDONE or move.status == migrations.REVERTING)
        if not ends:
            said = 'unknown' if move is None else move.status
            raise exception.BadRequest('instance.migration_context', None, f'migration {migration_uuid} is {said}, and '
                                       'the call may be about an earlier one: pass the migration')

    def finish_evacuation(self, instance: Any, migration: Any) -> Fields:
        """Make the claimed devices current, as the guest runs here. The move ends when the service says it is done."""
        with self._rows.working(instance.uuid):
            named = arguments.migration_uuid(migration) if migration is not None else self._named_by(instance)
            self._life.settle(migrations.Settlement(arrive=tuple(
                record for record in self._rows.there(instance.uuid)
                if named is not None and record.migration_uuid == named and record.role != vocabulary.OLD)))
            resources = self._rows.resources(
                instance.uuid, self._life.used_by_guest(self._rows.of_instance(instance.uuid)))
            fields = Fields(**{**self._without_context(instance, named), 'resources': resources})
            self._instances.set(instance, fields)
            return fields

    def left_for_nothing(self, old: Sequence[Record]) -> bool:
        """Whether an instance that has only these old rows left them by a move on this host to no devices.

        It has them again if the service says that the move was undone.
        """
        if not self._life.moves_to_nothing(old):
            return False
        move = (self._service.migrations(named_migrations(old)) or {}).get(old[0].migration_uuid or '')
        return move is None or move.outcome != migrations.UNDONE

    def update_usage(self, instance: Any) -> None:
        """Read a saved change of an instance. At the source of a move, it is the first to name the migration.

        The context may be of a move that is over, or that brought the instance here. Such a context changes nothing.
        """
        context = self._instances.read(instance).get('migration_context')
        if context is None:
            return
        named = _named_by(context)
        new_resources = context.new_resources
        if new_resources is not None and new_resources.host_uuid == self._host_uuid:
            return
        move = None
        if not self._service.ends_moves_by_calls:
            move = self._service.migration(named)
            if move is None or move.outcome != migrations.PENDING:
                return                          # an audit finds a move that goes on
        with self._wipes.releasing(instance.uuid, wait=False):
            self.mark_old(instance, named, None if move is None else move.ends)

    def _named_by(self, instance: Any) -> str | None:
        """The migration that an instance's context names, if the instance has a context.

        :raises BadRequest: the context names none
        """
        context = self._instances.read(instance).get('migration_context')
        return None if context is None else _named_by(context)


def ends_of(migration: Any) -> tuple[str | None, str | None]:
    """The names of the hosts of a migration: from, and to."""
    return migrations.Move.of(migration).ends


def _named_by(context: MigrationContext) -> str:
    return arguments.check_uuid('instance.migration_context.migration_uuid', context.migration_uuid)


def _came(record: Record, rows: Sequence[Record]) -> bool:
    """Whether an instance came to a device by a migration from another host that nobody has ended.

    The next migration of the instance ends it: an instance makes one move at a time.
    """
    return record.role == vocabulary.CURRENT and record.migration_uuid is not None and not any(
        other.migration_uuid == record.migration_uuid and other.role == vocabulary.OLD for other in rows)


def _with_affinity(demand: Demand, topology: Any) -> Demand:
    """Add to a demand the NUMA nodes that the service pinned the guest's processors to."""
    cells = getattr(topology, 'cells', None) or ()
    nodes = frozenset(cell.id for cell in cells if isinstance(getattr(cell, 'id', None), int))
    if not nodes or demand.numa_nodes:
        return demand
    policy = demand.numa_policy if demand.numa_policy != vocabulary.NONE else vocabulary.LEGACY
    return demand._replace(numa_nodes=nodes, numa_policy=policy)


def _carried(*theirs: Any) -> Carried:
    """Keep only the objects that a migration context can carry."""
    return Carried(*(one if isinstance(one, ovo_base.VersionedObject) else None for one in theirs))
