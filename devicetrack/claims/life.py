"""The life of an assignment: take, realize, advance, give. These steps keep the invariant in both directions.

In use by a guest ⊆ realized on the host ⊆ rows in the store ⊆ held in the ledger. Steps that take devices go from the
ledger inwards. Steps that give them back go from the guest outwards. Calls, recovery and moves consist of these steps.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import itertools
import json
import secrets
import time
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.given_up import GivenUp
from devicetrack.claims.given_up import GivenUpClaims
from devicetrack.claims.giving import Giving
from devicetrack.claims.ledger_rebuild import LedgerRebuild
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.own_process import OwnProcess
from devicetrack.claims.rows import Rows
from devicetrack.claims.service import ServiceView
from devicetrack.claims.views import HostViews
from devicetrack.claims.wipes import Wipes
from devicetrack.engine import demand as demands
from devicetrack.engine import lifecycle
from devicetrack.engine import migrations
from devicetrack.engine.demand import Demand
from devicetrack.engine.migrations import Endpoint
from devicetrack.engine.migrations import Move
from devicetrack.engine.migrations import Settlement
from devicetrack.engine.states import Hold
from devicetrack.engine.views import used
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import InstanceResources
from devicetrack.objects import MigrationContext
from devicetrack.objects import values
from devicetrack.objects.event import NO_NOTE
from devicetrack.objects.event import Note
from devicetrack.objects.migration_context import Carried
from devicetrack.objects.migration_context import NOTHING
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.store.api import ContextChange
from devicetrack.store.api import Update
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)


class Arrival(NamedTuple):
    """A move to this host, as its claim records it in the transaction of the new rows.

    ``leaving`` are the rows of this host that the instance leaves. The migration context gets ``old_resources``, and
    the service's own objects for the ``old`` and the ``new`` end. ``seen`` has the version that the guest has seen of
    each device, in the order of the new rows; None for a guest that starts anew. ``ends`` are the names of the two
    hosts.
    """

    instance_uuid: str
    migration_uuid: str
    leaving: tuple[Record, ...]
    old_resources: InstanceResources | None
    old: Carried = NOTHING
    new: Carried = NOTHING
    seen: tuple[str | None, ...] | None = None
    ends: tuple[str | None, str | None] | None = None

    def context(self, new_resources: InstanceResources) -> MigrationContext:
        """Return the migration context of the move, for the service."""
        return MigrationContext.of_move(
            self.instance_uuid, self.migration_uuid, self.old_resources, self.old, new_resources, self.new)

    def changes(self, host_uuid: str, records: Sequence[Record]) -> Changes:
        """Return everything that the claim writes, with these new rows."""
        if self.seen is not None:
            records = [record._replace(seen=seen) for record, seen in zip(records, self.seen, strict=True)]
        left = tuple(Update(record, record._replace(
            role=lifecycle.next_role(record.role, lifecycle.LEAVES), migration_uuid=self.migration_uuid,
            generation=record.generation + 1)) for record in self.leaving)
        context = self.context(InstanceResources.from_records(self.instance_uuid, host_uuid, records))
        return Changes(insert=tuple(records), update=left, contexts=(stored(host_uuid, context),),
                       note=Note(ends=self.ends))


def stored(host_uuid: str, context: MigrationContext) -> ContextChange:
    """Return the change that records a migration context."""
    text = json.dumps(context.obj_to_primitive(), separators=(',', ':'), sort_keys=True)
    return ContextChange(host_uuid, context.instance_uuid, context.migration_uuid, text)


class Life:
    """The steps in the lives of the assignments of one host.

    The caller of a step that changes rows of one instance works on the instance (:meth:`.rows.Rows.working`).

    :param given_up: remembers claims that could not be given back
    :param rebuild: rebuilds the ledger after an interrupt
    :param wipes: wipes devices in the background
    :param attempts: how often a claim chooses devices if the store says that they have owners
    :param here: this host, as migrations name it
    :param process: the manager's
    """

    def __init__(self, host_uuid: str, ledger: LockedLedger, rows: Rows, driver: VirtDriver, views: HostViews,
                 declarations: Declarations, given_up: GivenUpClaims, rebuild: LedgerRebuild, giving: Giving,
                 wipes: Wipes, attempts: int, here: Endpoint, service: ServiceView, process: OwnProcess) -> None:
        self.host_uuid, self.process = host_uuid, process
        self._ledger, self._rows, self._driver = ledger, rows, driver
        self._views, self._declarations = views, declarations
        self._given_up, self._rebuild, self._attempts = given_up, rebuild, attempts
        self._giving, self._wipes, self._here, self._service = giving, wipes, here, service
        # Claim ids only have to be unique, over restarts too; a UUID for each would cost more.
        self._claim_prefix = secrets.token_hex(8)
        self._claim_numbers = itertools.count()
        # Instances whose guests run, as the service says, although that could not be recorded.
        self._unrecorded_starts: set[str] = set()

    # -- taking -------------------------------------------------------------------------------------------------------

    def new_claim_id(self) -> str:
        return f'{self._claim_prefix}-{next(self._claim_numbers):x}'

    def give_up(self, instance_uuid: str, claim_id: str, migration_uuid: str | None) -> None:
        """Let the next audit give back a claim, if it was recorded: its caller will never have it."""
        self._given_up.remember(GivenUp(instance_uuid, claim_id, migration_uuid))

    def take(self, instance_uuid: str, demand: Demand, claim_id: str, move: Arrival | None = None) -> list[Record]:
        """Hold and record devices. If the store says that some have owners unknown here, choose again.

        An exception from outside may also come after the devices were recorded and before the caller has them. The
        caller then calls :meth:`give_up`.

        :param claim_id: a new one, or that of a call that held nothing
        :param move: for an instance that moves here, which may also hold other devices
        :raises NoFit, InstanceHasClaim, NothingWritten: nothing is held
        :raises OutcomeUnknown: the devices stay held until the store answers
        """
        while True:
            try:
                return self._take(instance_uuid, demand, claim_id, move)
            except exception.LedgerDiscarded:
                self._rebuild.ensure()
            except exception.DeviceTrackError:
                raise
            except BaseException:
                # A recorded claim is remembered by now, and a new ledger frees devices that were only held.
                self._ledger.discard()
                raise

    def _take(self, instance_uuid: str, demand: Demand, claim_id: str, move: Arrival | None) -> list[Record]:
        refused = looked_again = 0
        while True:
            build = self._ledger.build
            try:
                hold = self._ledger.take(instance_uuid, demand, beside=move is not None)
            except (exception.InstanceHasClaim, exception.NoFit) as error:
                # If others write rows, another look may find other devices free. For a commit in doubt one look is
                # enough.
                looks = self._attempts if isinstance(error, exception.NoFit) else 1
                if looked_again == looks or not self._look_again(instance_uuid, error):
                    raise
                looked_again += 1
                continue
            hold = self.named(hold, demand if move is None else demand.as_asked())
            try:                                # cheaper than put_back_on_error(), and every claim runs this
                changes = self._changes_for(hold, claim_id, move)
            except BaseException:
                self._ledger.put_back(hold)
                raise
            try:
                self._rows.insert(hold, changes)
                if self._ledger.build is not build:     # it was rebuilt meanwhile, perhaps without these rows
                    self._ledger.hold_missing(changes.insert)
                return list(changes.insert)
            except exception.DeviceTaken as taken:
                # Read all rows at once: another program that wrote one row may have written many. A claim that learned
                # of them one by one would give up before it found a free device.
                with self._ledger.put_back_on_error(hold):
                    owned = {DeviceKey(*key) for key in taken.devices} | {record.key for record in self._rows.all()}
                self._ledger.distrust(hold, owned)
                refused += 1
                if refused >= self._attempts:
                    raise
            except exception.NothingWritten:
                raise
            except BaseException:
                self.give_up(instance_uuid, claim_id, move and move.migration_uuid)
                raise

    def _look_again(self, instance_uuid: str, error: exception.DeviceTrackError) -> bool:
        """Before a claim is refused, check whether the obstacle is gone.

        :returns: whether anything changed
        """
        if isinstance(error, exception.InstanceHasClaim):
            if not self._rows.doubts_of(instance_uuid):
                return False
            self.settle_doubts()
            self._rows.let_go(instance_uuid)
            return True
        distrusted = set(self._ledger.withheld(vocabulary.IN_DOUBT))
        if not distrusted:
            return False
        usage = self._driver.get_usage()
        owned = {record.key for record in self._rows.all()}
        free = distrusted - owned - used(usage) if not usage.unknown else set()
        self._ledger.admit(free, vocabulary.IN_DOUBT)
        return bool(free)

    def named(self, hold: Hold, demand: Demand | None) -> Hold:
        """Let the driver name the devices that it will make, and tell the ledger the names."""
        try:                                    # as in _take()
            candidates = self._driver.claim_for_instance(hold.instance_uuid, demand, hold.candidates)
            if hold.is_named:
                return Hold(hold.instance_uuid, hold.keys, tuple(candidates))
            return self._ledger.name(hold, candidates)
        except BaseException:
            self._ledger.put_back(hold)
            raise

    def _changes_for(self, hold: Hold, claim_id: str, move: Arrival | None) -> Changes:
        now, role = int(time.time()), vocabulary.CURRENT if move is None else vocabulary.INCOMING
        migration_uuid = None if move is None else move.migration_uuid
        records = [self._record_of(candidate, hold.instance_uuid, migration_uuid, role, position, claim_id, now)
                   for position, candidate in enumerate(hold.candidates)]
        return Changes(insert=tuple(records)) if move is None else move.changes(self.host_uuid, records)

    def _record_of(self, candidate: Candidate, instance_uuid: str, migration_uuid: str | None, role: str,
                   position: int, claim_id: str, now: int) -> Record:
        # Each has its name by now, which the type cannot say. A check would cost every claim time.
        return Record(self.host_uuid, candidate.kind, candidate.identifier, instance_uuid,  # type: ignore[arg-type]
                      migration_uuid, role, vocabulary.CLAIMED, position, claim_id, values.CLAIMED,
                      candidate.provider_uuid, candidate.resource_class, candidate.parent, candidate.numa_node,
                      candidate.details, now)

    # -- making it real -----------------------------------------------------------------------------------------------

    def realize(self, records: Sequence[Record]) -> list[Record]:
        """Make devices of one instance ready for its guest, and record their new details.

        :returns: the rows as they are after that
        """
        realized = [self._realize(record) for record in records]
        changed = tuple(Update(before, after) for before, after in realized if before != after)
        if changed:
            self._rows.write(Changes(update=changed))
        return [after for _before, after in realized]

    def _realize(self, record: Record) -> tuple[Record, Record]:
        """Make one device ready. If its parent is full, replace it by another device, once.

        :returns: the row as it is in the store, and as it should be. The row notes ``seen`` before the guest starts,
            since the start may never be reported
        """
        try:
            details = self._make(record)
        except exception.ParentFull as full:
            record = self._exchange(record, full)
            details = self._make(record)
        after = record._replace(details=details)
        after = after._replace(seen=self._declarations.seen_before_start(after))
        # The generation also notes that a guest may write to the device from now on, or its release would skip the
        # wipe. The change is an event in the history.
        is_news = after != record or record.generation == values.CLAIMED
        return record, after._replace(generation=record.generation + 1) if is_news else record

    def _make(self, record: Record) -> str:
        """Make one device ready on the host; returns its details."""
        with self._ledger.watching() as watch:
            made = self._driver.realize(DeviceAssignment.from_record(record))
            # Providers that are not resolved yet wait for the next audit.
            capacities = [one for one in made.capacities if self._views.knows(one.provider)]
            self._ledger.realized(record.key, made.details, capacities, watch)
        return made.details

    def _exchange(self, record: Record, full: exception.ParentFull) -> Record:
        """Replace a device whose parent turned out to be full by another one, in one transaction."""
        LOG.warning('%(full)s; choosing another device for instance %(instance)s',
                    {'full': full, 'instance': record.instance_uuid})
        # The guest may arrive running: then the other device must be an equally good partner.
        accepts = self._declarations.like(record) if record.role == vocabulary.INCOMING else None
        self._views.read_parents()
        try:
            return self._take_instead(record, full, accepts)
        except exception.DeviceTrackError:
            raise
        except BaseException:
            self._ledger.discard()
            raise

    def _take_instead(self, record: Record, full: exception.ParentFull,
                      accepts: Callable[[str | None, str], bool] | None) -> Record:
        other = self._ledger.exchange(record.key, accepts)
        if other is None:
            raise full
        other = self.named(other, demands.of_row(record.details))
        [candidate] = other.candidates
        with self._ledger.put_back_on_error(other):
            chosen = record._replace(
                kind=candidate.kind, identifier=candidate.identifier or '', provider_uuid=candidate.provider_uuid,
                parent=candidate.parent, numa_node=candidate.numa_node, details=candidate.details,
                generation=values.CLAIMED, state=vocabulary.CLAIMED)
        try:
            self._rows.write(Changes(insert=(chosen,), delete=(record,)))
        except exception.NothingWritten:
            self._ledger.put_back(other)
            raise
        self._ledger.free_of(record.instance_uuid, (record.key,))
        return chosen

    # -- changing rows ------------------------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, wait: bool = True, note: Note = NO_NOTE) -> None:
        """Change rows of one instance in one transaction; then give back the devices that the settlement says.

        :param wait: as :meth:`give_back`
        :param note: facts for the events that are not in the rows
        """
        self.give_back(self.advance(settlement, note), wait)

    def advance(self, settlement: Settlement, note: Note = NO_NOTE) -> list[Record]:
        """Run only the transaction of a settlement.

        :returns: the rows of ``give`` as they are after it, for :meth:`give_back`
        """
        after = [(record, record._replace(role=lifecycle.next_role(record.role, lifecycle.STAYS),
                                          state=lifecycle.next_state(record.state, lifecycle.STARTED),
                                          seen=self._declarations.seen_at_start(record)))
                 for record in settlement.arrive]
        after += [(record, record._replace(role=lifecycle.next_role(record.role, lifecycle.STAYS), migration_uuid=None))
                  for record in settlement.settle]
        after += [(record, record._replace(role=lifecycle.next_role(record.role, lifecycle.LEAVES),
                                           migration_uuid=migration_uuid))
                  for record, migration_uuid in settlement.leave]
        after += [(record, record._replace(state=lifecycle.next_state(record.state, lifecycle.RELEASE)))
                  for record in settlement.give]
        changed = [Update(before, later._replace(generation=_next_generation(before)))
                   for before, later in after if before != later]
        if changed:
            contexts = (self._rows.end_of_move(changed[0].before.instance_uuid),) if settlement.over else ()
            self._rows.write(Changes(update=tuple(changed), contexts=contexts, note=note))
        now = {update.before.key: update.after for update in changed}
        return [now.get(record.key, record) for record in settlement.give]

    def leave(self, move: Arrival) -> None:
        """Make rows old for a move that takes no device of this host. Without such rows, write nothing."""
        if move.leaving:
            self._rows.write(move.changes(self.host_uuid, ()))

    def note_start(self, instance_uuid: str) -> None:
        """Note that the service says that a guest runs. Until that is recorded, errors give no device back."""
        self._unrecorded_starts.add(instance_uuid)

    def start(self, instance_uuid: str, before_move: bool) -> list[Record]:
        """Record that a guest runs on its devices, after :meth:`note_start`.

        :returns: the rows of the devices that it uses
        :raises InvalidTransition: its devices are on their way back
        :raises StoreError: the guest runs anyway, and an audit records that
        """
        records = self._rows.of_instance(instance_uuid)
        used_now = list(records) if self.is_released(records, before_move) else self.used_by_guest(records, before_move)
        old = tuple(record for record in used_now if record.role == vocabulary.OLD)
        self.settle(Settlement(arrive=tuple(record for record in used_now if record not in old), settle=old))
        after = self.used_by_guest(self._rows.of_instance(instance_uuid), before_move)
        self._unrecorded_starts.discard(instance_uuid)
        return after

    def guest_may_run_unrecorded(self, instance_uuid: str) -> bool:
        """Whether the service said that a guest runs, no row records that, and nothing shows that it is gone."""
        if instance_uuid not in self._unrecorded_starts:
            return False
        try:
            usage = self._driver.get_usage()
        except exception.DriverError:
            return True
        return bool(usage.unknown) or instance_uuid in usage.domains

    def note_reboot(self, instance_uuid: str) -> None:
        """Record the versions that the guest may have seen of its devices since it rebooted, if they are newer."""
        seen = [(record, self._declarations.seen_at_reboot(record))
                for record in self.used_by_guest(self._rows.of_instance(instance_uuid))
                if record.state == vocabulary.ACTIVE]
        changed = tuple(Update(record, record._replace(seen=now, generation=record.generation + 1))
                        for record, now in seen if record.seen != now)
        if changed:
            self._rows.write(Changes(update=changed))

    # -- giving back --------------------------------------------------------------------------------------------------

    def give(self, records: Sequence[Record], wait: bool) -> None:
        """Run the give path for rows of one instance.

        :param wait: as :meth:`give_back`
        """
        self.settle(Settlement(give=tuple(records)), wait)

    def give_back(self, leaving: Sequence[Record], wait: bool = True) -> None:
        """Take devices that are on their way back from the host, and then their rows from the store.

        :param wait: wait for wipes; False wipes devices in the background
        """
        (self._giving if wait else self._wipes).give_back(leaving)

    def are_wiped(self, records: Sequence[Record]) -> bool:
        """Whether rows of one instance only need wipes of their devices in the background."""
        return all(record.state == vocabulary.RELEASING and record.migration_uuid is None for record in records) \
            and self._wipes.takes(records)

    def release(self, records: Sequence[Record], wait: bool) -> None:
        """Give back everything that an instance holds here, in whatever role.

        :param wait: as :meth:`give_back`
        """
        if records:
            self._unrecorded_starts.discard(records[0].instance_uuid)
        self.settle(Settlement(give=tuple(records), over=any(record.migration_uuid is not None for record in records)),
                    wait)

    def abort(self, instance_uuid: str, claim_id: str, migration_uuid: str | None) -> None:
        """Give back what one claim took, and make current again what it made old. Waits for the instance.

        If the store fails or a signal interrupts the call, an audit or a start continues.
        """
        claim = GivenUp(instance_uuid, claim_id, migration_uuid)
        try:
            with self._rows.working(instance_uuid):
                self._unrecorded_starts.discard(instance_uuid)
                self._give_back_claim(claim, self._rows.of_instance(instance_uuid))
                self._given_up.forget(claim_id)
        except exception.DriverError:
            raise                               # its rows are on their way back
        except BaseException:                   # also while it waits for the instance
            self._given_up.remember(claim)
            raise

    def _give_back_claim(self, claim: GivenUp, records: Sequence[Record], wait: bool = True) -> None:
        taken = [record for record in records if record.claim_id == claim.claim_id]
        migrations = {record.migration_uuid for record in taken} | {claim.migration_uuid}
        self.undo(records, taken, {uuid for uuid in migrations if uuid is not None}, wait)

    def give_back_claims(self) -> bool:
        """Give back the devices of failed claims that could not be given back before. Every start and audit calls it.

        :returns: whether there was any such claim
        """
        waiting = self._given_up.all()
        doubted = {record.claim_id for doubt in self._rows.doubts for record in doubt.changes.insert}
        for claim in waiting:
            with self._rows.if_idle(claim.instance_uuid) as idle:
                if not idle or claim.claim_id in doubted:
                    continue
                try:
                    records = self._rows.of_instance(claim.instance_uuid)
                    states = {record.state for record in records if record.claim_id == claim.claim_id}
                    # Without rows the claim is undone already. If its guest has started since, the service wanted that.
                    if states and vocabulary.ACTIVE not in states:
                        self._give_back_claim(claim, records, wait=False)
                except exception.DeviceTrackError as error:
                    LOG.warning('Claim %(claim)s of instance %(instance)s cannot be given back yet: %(error)s',
                                {'claim': claim.claim_id, 'instance': claim.instance_uuid, 'error': error})
                    if isinstance(error, exception.StoreError):
                        continue                # else its rows are on their way back
                self._given_up.forget(claim.claim_id)
        return bool(waiting)

    def undo(self, records: Sequence[Record], taken: Sequence[Record] | None = None,
             migrations: Collection[str] = (), wait: bool = True) -> None:
        """Give back the devices of a claim, and make the rows current again that it made old for ``migrations``.

        :param records: every row of the instance on this host
        :param taken: the rows of the claim; None means every row of the migrations that is not old
        """
        ours = [record for record in records if record.migration_uuid in migrations]
        if taken is None:
            taken = [record for record in ours if record.role != vocabulary.OLD]
        stay = [record for record in ours if record.role == vocabulary.OLD and record.state != vocabulary.RELEASING]
        self.settle(Settlement(give=tuple(taken), settle=tuple(stay), over=bool(migrations)), wait)

    # -- commits in doubt ---------------------------------------------------------------------------------------------

    def settle_doubts(self, wait: bool = True) -> None:
        """Ask the store for the outcome of commits in doubt. If it does not know yet, their devices stay held.

        :param wait: as :meth:`give_back`
        """
        for doubt in self._rows.doubts:
            with self._rows.if_idle(doubt.instance_uuid) as idle:
                if not idle:
                    continue
                try:
                    if self._rows.settle(doubt) and doubt.undo:
                        claims = {record.claim_id for record in doubt.changes.insert}
                        records = self._rows.of_instance(doubt.instance_uuid)
                        self.undo(records, [record for record in records if record.claim_id in claims],
                                  {context.migration_uuid for context in doubt.changes.contexts
                                   if context.migration_uuid is not None}, wait)
                except exception.DeviceTrackError as error:
                    LOG.warning('Instance %(instance)s stays as it is for now: %(error)s',
                                {'instance': doubt.instance_uuid, 'error': error})

    # -- questions ----------------------------------------------------------------------------------------------------

    def resources(self, instance_uuid: str, records: Sequence[Record]) -> InstanceResources:
        """Return rows of one instance in the form for its service."""
        return InstanceResources.from_records(instance_uuid, self.host_uuid, records)

    def used_by_guest(self, records: Sequence[Record], before_move: bool = False) -> list[Record]:
        """Choose the rows of one instance whose devices its guest should have now.

        While the instance moves to other devices of this host, these are the new ones.

        :param before_move: choose the old ones: the guest should be as it was before the move
        """
        there = [record for record in records if record.state != vocabulary.RELEASING]
        roles = {record.role for record in there}
        if before_move:
            if vocabulary.OLD in roles:
                return [record for record in there if record.role == vocabulary.OLD]
            # Rows of a migration are new. Before it, the instance had the rows without a migration, or none.
            return [record for record in there if record.migration_uuid is None]
        order = (vocabulary.INCOMING, vocabulary.CURRENT, vocabulary.OLD)
        role = next((role for role in order if role in roles), None)
        if role == vocabulary.OLD and self._moves_to_nothing(there):
            return []
        return [record for record in there if record.role == role]

    def devices_of_guest(self, instance_uuid: str, before_move: bool,
                         ) -> tuple[list[DeviceAssignment], list[DeviceAssignment]]:
        """The devices in the definition of an instance's guest, and others that only its metadata records.

        :param before_move: as :meth:`used_by_guest`
        """
        records = self._rows.of_instance(instance_uuid)
        used = self.used_by_guest(records, before_move)
        beside = [record for record in records if record not in used and record.state != vocabulary.RELEASING]
        return list(map(DeviceAssignment.from_record, used)), list(map(DeviceAssignment.from_record, beside))

    def is_released(self, records: Sequence[Record], before_move: bool) -> bool:
        """Whether all devices of an instance are on their way back, although its guest should have some here.

        Devices that the instance has left do not count, and neither do those of a move on this host that was undone: a
        guest that should have no other devices starts without any. If only such a move may explain the rows, this asks
        the service. While that is unknown, they count.

        :param before_move: as :meth:`used_by_guest`
        """
        if not records or any(record.state != vocabulary.RELEASING for record in records):
            return False
        if any(record.migration_uuid is None for record in records):
            return True
        named = sorted({record.migration_uuid for record in records
                        if record.migration_uuid is not None and record.role != vocabulary.OLD})
        if before_move or not named:
            return False
        known = self._service.migrations(named) or {}
        return not all(uuid in known and self._is_undone_here(known[uuid]) for uuid in named)

    def _is_undone_here(self, move: Move) -> bool:
        """Whether a migration left from this host and was undone, or is about to be."""
        return self._here.is_at(move.source) and (
            move.outcome == migrations.UNDONE or move.status == migrations.REVERTING)

    def _moves_to_nothing(self, old: Sequence[Record]) -> bool:
        """Whether an instance with only old rows moves on this host to no devices. Then its claim was here."""
        context = self._rows.context(old[0].instance_uuid)
        return context is not None and context.migration_uuid == old[0].migration_uuid


def _next_generation(before: Record) -> int:
    """The generation of a changed row. A row that a guest ran on never looks as if it was only claimed."""
    after = before.generation + 1
    return max(after, values.OF_A_GUEST) if before.state == vocabulary.ACTIVE else after
