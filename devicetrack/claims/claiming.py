"""Taking devices for an instance, from the ledger inwards: hold, record, make real.

These steps keep the invariant, with those of :mod:`.life` in the other direction: in use by a guest ⊆ realized on the
host ⊆ rows in the store ⊆ held in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import time
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import life
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.failed_claims import FailedClaims
from devicetrack.claims.given_up import ClaimIds
from devicetrack.claims.life import Life
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.rows import Rows
from devicetrack.claims.views import HostViews
from devicetrack.claims.withheld_devices import WithheldDevices
from devicetrack.engine import demand as demands
from devicetrack.engine import lifecycle
from devicetrack.engine.demand import Demand
from devicetrack.engine.states import Hold
from devicetrack.engine.views import kinds_with_unread_names
from devicetrack.engine.views import used
from devicetrack.engine.withholding import Target
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects import identity
from devicetrack.objects import InstanceResources
from devicetrack.objects import MigrationContext
from devicetrack.objects import values
from devicetrack.objects.event import Note
from devicetrack.objects.migration_context import Carried
from devicetrack.objects.migration_context import NOTHING
from devicetrack.objects.values import Candidate
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Changes
from devicetrack.store.api import Update
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)

# After these nobody knows whether the device itself is the cause.
_UNKNOWN: Final = (exception.RealizeUnknown, exception.UsersUnknown)
# Somebody else uses the device, so it has not failed by itself.
_USED: Final = (exception.DeviceInUse, exception.NotProven)


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

    def changes(self, rows: Rows, records: Sequence[Record]) -> Changes:
        """Return everything that the claim writes into the rows of the host, with these new ones."""
        if self.seen is not None:
            records = [record._replace(seen=seen) for record, seen in zip(records, self.seen, strict=True)]
        left = tuple(Update(record, record.changed(
            role=lifecycle.next_role(record.role, lifecycle.LEAVES), migration_uuid=self.migration_uuid))
            for record in self.leaving)
        context = self.context(rows.resources(self.instance_uuid, records))
        return Changes(insert=tuple(records), update=left, contexts=(rows.of_move(context),),
                       note=Note(ends=self.ends))


class Claiming:
    """Takes devices of one host.

    The caller of a step that changes rows of one instance works on the instance (:meth:`.rows.Rows.working`).

    :param claim_ids: makes the ids of this process's claims
    :param attempts: how often a claim chooses devices if the store says that they have owners, and how often it chooses
        another device for one that cannot be made ready
    """

    def __init__(self, host_uuid: str, ledger: LockedLedger, rows: Rows, driver: VirtDriver, views: HostViews,
                 declarations: Declarations, failed: FailedClaims, claim_ids: ClaimIds, life: Life,
                 withheld: WithheldDevices, attempts: int) -> None:
        self._host_uuid, self._ledger, self._rows, self._driver = host_uuid, ledger, rows, driver
        self._views, self._declarations, self._failed = views, declarations, failed
        self._claim_ids, self._life, self._withheld, self._attempts = claim_ids, life, withheld, attempts
        self._wiped = driver.wiped_kinds()

    # -- taking -------------------------------------------------------------------------------------------------------

    def new_claim_id(self) -> str:
        return self._claim_ids.next()

    def is_own(self, record: Record) -> bool:
        """Whether a claim of this process took the device of a row, and did not fail, as far as is known here. Quick.

        The row itself says so: the ledger does not know who took a device before an interrupt.
        """
        return self._claim_ids.made(record.claim_id) and not self._failed.has_given_up(record.claim_id)

    def take(self, instance_uuid: str, demand: Demand, claim_id: str, move: Arrival | None = None) -> list[Record]:
        """Hold and record devices. If the store says that some have owners unknown here, choose again.

        An exception from outside may also come after the devices were recorded and before the caller has them. The
        caller then calls :meth:`.FailedClaims.give_up`.

        :param claim_id: a new one, or that of a call that held nothing
        :param move: for an instance that moves here, which may also hold other devices
        :raises NoFit, InstanceHasClaim, NothingWritten, DriverError: nothing is held
        :raises OutcomeUnknown: the devices stay held until the store answers
        """
        refused = looked_again = 0
        while True:
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
            try:
                hold = self.named(hold, demand if move is None else demand.as_asked())
                changes = self._changes_for(hold, claim_id, move)
                self._rows.insert(changes)
                return list(changes.insert)
            except exception.OutcomeUnknown:
                self._failed.give_up(instance_uuid, claim_id, move and move.migration_uuid, takes=True)
                raise
            except exception.DeviceTaken as error:
                self._ledger.put_back(hold)
                # Read all rows at once: another program that wrote one row may have written many. A claim that learned
                # of them one by one would give up before it found a free device.
                self._ledger.withhold_free({DeviceKey(*key) for key in error.devices} | {
                    record.key for record in self._rows.all()}, vocabulary.IN_DOUBT)
                refused += 1
                if refused >= self._attempts:
                    raise
            except exception.DeviceTrackError:
                self._ledger.put_back(hold)
                raise

    def _look_again(self, instance_uuid: str, error: exception.DeviceTrackError) -> bool:
        """Before a claim is refused, check whether the obstacle is gone.

        :returns: whether anything changed
        :raises StoreError, DriverError: an earlier claim of the instance failed, and cannot be undone yet
        """
        if isinstance(error, exception.InstanceHasClaim):
            if not self._failed.make_way(instance_uuid):
                return False
            self._rows.let_go(instance_uuid)
            return True
        distrusted = set(self._ledger.now.withheld_for(vocabulary.IN_DOUBT))
        if not distrusted:
            return False
        usage = self._driver.get_usage()
        records = self._rows.all()
        unread = kinds_with_unread_names(records)
        owned = {record.key for record in records} | {key for key in distrusted if key.kind in unread}
        free = distrusted - owned - used(usage) if not usage.unknown else set()
        self._ledger.admit(free, vocabulary.IN_DOUBT)
        return bool(free)

    def named(self, hold: Hold, demand: Demand | None) -> Hold:
        """Let the driver name the devices that it will make, and tell the ledger the names."""
        candidates = self._driver.claim_for_instance(hold.instance_uuid, demand, hold.candidates)
        if hold.is_named:
            return Hold(hold.instance_uuid, hold.keys, tuple(candidates))
        return self._ledger.name(hold, candidates)

    def _changes_for(self, hold: Hold, claim_id: str, move: Arrival | None) -> Changes:
        now, role = int(time.time()), vocabulary.CURRENT if move is None else vocabulary.INCOMING
        migration_uuid = None if move is None else move.migration_uuid
        records = [self._record_of(candidate, hold.instance_uuid, migration_uuid, role, position, claim_id, now)
                   for position, candidate in enumerate(hold.candidates)]
        return Changes(insert=tuple(records)) if move is None else move.changes(self._rows, records)

    def _record_of(self, candidate: Candidate, instance_uuid: str, migration_uuid: str | None, role: str,
                   position: int, claim_id: str, now: int) -> Record:
        # Each has its name by now, which the type cannot say. A check would cost every claim time.
        return Record(self._host_uuid, candidate.kind, candidate.identifier, instance_uuid,  # type: ignore[arg-type]
                      migration_uuid, role, vocabulary.CLAIMED, position, claim_id, values.FIRST_GENERATION,
                      candidate.provider_uuid, candidate.resource_class, candidate.parent, candidate.numa_node,
                      candidate.details, now, None, False)

    def leave(self, move: Arrival, claim_id: str) -> None:
        """Make rows old for a move that takes no device of this host. Without such rows, write nothing.

        The errors are those of :meth:`take`.
        """
        if not move.leaving:
            return
        try:
            self._rows.write(move.changes(self._rows, ()), undo=True)
        except exception.OutcomeUnknown:
            self._failed.give_up(move.instance_uuid, claim_id, move.migration_uuid)
            raise

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
        """Make one device ready. If it fails for a cause of its own, replace it by another device, a few times at most.

        :returns: the row as it is in the store, and as it should be. The row notes ``seen`` before the guest starts,
            since the start may never be reported
        """
        made, exchanges = None, 0
        while made is None:
            try:
                made = self._make(record)
            except (exception.DeviceError, exception.ParentFull) as error:
                if isinstance(error, _UNKNOWN):
                    raise
                self._withhold(record, error)
                # A guest may have written to a device that was made ready before. What the parent makes is always new.
                if record.was_realized and not isinstance(error, exception.ParentFull):
                    raise
                record = self._exchange(record, error, exchanges < self._attempts)
                exchanges += 1
        after = record._replace(details=made)
        after = after._replace(seen=self._declarations.seen_before_start(after))
        # A guest may write to the device from now on; without that note its release would skip the wipe. The change is
        # an event in the history.
        is_news = after != record or not record.was_realized
        return record, after.changed(was_realized=True) if is_news else record

    def _make(self, record: Record) -> str:
        """Make one device ready on the host; returns its details."""
        before = self._ledger.now
        made = self._driver.realize(DeviceAssignment.from_record(record))
        # Providers that are not resolved yet wait for the next audit.
        capacities = [one for one in made.capacities if self._views.knows(one.provider)]
        kept = identity.kept(record.details, made.details)
        self._ledger.realized(record.key, kept, capacities, before)
        # A device that was there already does not show that its parent makes more.
        is_new = not record.was_realized and details.is_made(record.details)
        self._withheld.was_realized(Target.of(record.key), *(
            [Target.named(record.kind, record.parent, parent=True)] if is_new and record.parent is not None else ()))
        return kept

    def _withhold(self, record: Record, error: exception.DeviceError | exception.ParentFull) -> None:
        """Keep further claims from a device that could not be made ready, or from the parent that could not make it.

        A device on which somebody works just now goes back when that is over, and needs nothing more. Neither does a
        parent that is full, and says so when it is read again, nor a device that a guest had before: no claim can
        choose it, and whoever starts the guest gets the error.
        """
        device = self._ledger.now.device(record.key)
        if device is None or isinstance(error, exception.DeviceBusy) or record.was_realized and not device.unborn:
            return
        is_full = isinstance(error, exception.ParentFull)
        if is_full or device.unborn:
            self._views.read_parents()          # an option may share room that a parent cannot use among the others
        if not is_full or self._ledger.now.shows_room(record.key):
            self._withheld.was_not_realized(
                Target.named(record.kind, record.parent, parent=True) if device.unborn and record.parent is not None
                else Target.of(record.key), error.reason, not isinstance(error, _USED))

    def _exchange(self, record: Record, error: exception.DeviceError | exception.ParentFull,
                  may_choose: bool) -> Record:
        """Replace a device that cannot be made ready by another one, in one transaction, and give it back.

        If others use a device that keeps bytes, or wrote to it, its row ends at once, also if there is no other device:
        what is on it is theirs, and no wipe for the instance may touch it. It stays withheld until something proves
        that it is clean. A full parent left nothing that has to go back.

        :param may_choose: whether the claim may choose another one
        :raises NoFit: there is no other device
        """
        theirs = record.kind in self._wiped and isinstance(error, _USED)
        if theirs:
            self._driver.disprove((record.key,))        # first: nobody gets it as clean
        left = None if theirs or isinstance(error, exception.ParentFull) else life.leaving(record)
        # The guest may arrive running: then the other device must be an equally good partner.
        accepts = self._declarations.like(record) if record.role == vocabulary.INCOMING else None
        chosen: Record | None = None
        reason: exception.DeviceTrackError = error
        if may_choose:
            LOG.warning('%(error)s; choosing another device for instance %(instance)s',
                        {'error': error, 'instance': record.instance_uuid})
            try:
                chosen = self._take_instead(record, left, accepts, isinstance(error, exception.ParentGone))
            except exception.NoFit as none:
                none.__cause__, reason = error, none
        if chosen is None and theirs:
            self._rows.write(self._last(record))
        if left is None and (chosen is not None or theirs):
            self._ledger.retire(record.instance_uuid, record.key, theirs)
        elif left is not None and chosen is not None:
            self._life.give_back_replaced([left.after])
        if chosen is None:
            raise reason
        return chosen

    def _last(self, record: Record) -> Changes:
        """The changes that end a row without another device. The last row of a move takes its context with it."""
        stays = record.migration_uuid is None or any(
            other.migration_uuid == record.migration_uuid and other.state != vocabulary.RELEASING
            and other.key != record.key for other in self._rows.of_instance(record.instance_uuid))
        return Changes(delete=(record,), contexts=() if stays else (self._rows.end_of_move(record.instance_uuid),))

    def _take_instead(self, record: Record, left: Update | None,
                      accepts: Callable[[str | None, str], bool] | None, parent_gone: bool) -> Record | None:
        """:param left: the change of the row of the first device; None ends it"""
        other = self._ledger.exchange_elsewhere(record.key, accepts, parent_gone)
        if other is None:
            return None
        try:
            other = self.named(other, demands.of_row(record.details))
            [candidate] = other.candidates
            chosen = in_place_of(record, candidate)._replace(state=vocabulary.CLAIMED)
            self._rows.write(Changes(insert=(chosen,), delete=(record,)) if left is None
                             else Changes(insert=(chosen,), update=(left,)))
        except exception.OutcomeUnknown:
            raise                               # it stays held until the store answers
        except exception.DeviceTrackError:
            self._ledger.put_back(other)
            raise
        return chosen


def in_place_of(record: Record, candidate: Candidate) -> Record:
    """The row of a device that replaces the one of another row, in the same role and state."""
    return record._replace(
        kind=candidate.kind, identifier=candidate.identifier or '', provider_uuid=candidate.provider_uuid,
        parent=candidate.parent, numa_node=candidate.numa_node, details=candidate.details,
        generation=values.FIRST_GENERATION, was_realized=False)
