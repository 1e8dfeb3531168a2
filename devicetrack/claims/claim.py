"""Claims: devices are taken from the ledger inwards (hold, record, make real), and the caller has a claim for them.

These steps keep the invariant, with those of :mod:`.life` in the other direction: in use by a guest ⊆ realized on the
host ⊆ rows in the store ⊆ held in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import operator
import time
from types import TracebackType
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import Self

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import public_calls
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.failed_claims import FailedClaims
from devicetrack.claims.host import ThisHost
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.instance_fields import name_to_record
from devicetrack.claims.life import leaving
from devicetrack.claims.life import Life
from devicetrack.claims.rows import Rows
from devicetrack.claims.unfinished import FailedClaim
from devicetrack.claims.views import HostViews
from devicetrack.claims.withheld import WithheldDevices
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

LOG = log.logger(__name__)


class Claim:
    """Devices that are held and recorded for an instance.

    A claim holds its devices from the call on, so it needs no ``with``. If an exception leaves a ``with`` block, the
    claim releases the devices that it took, and the exception passes through. But if ``started`` failed in the block
    while the guest runs, the guest keeps its devices, and the audit records that it runs. ``migration`` is the
    migration of a claim for a move, else None. ``skipped`` lists the UUIDs of other hosts' providers in the
    allocations, with resource classes of this library. ``instance`` is the caller's object. ``fields`` has the values
    that the claim set on the instance, or would have set: see :class:`.InstanceFields`. ``claim_id`` is in the rows of
    the devices. In a forked child of the manager's process, a ``with`` block releases nothing: the claim belongs to the
    parent.
    """

    __slots__ = ('resources', 'fields', 'claim_id', 'migration', 'skipped', 'instance', '_failed', '_over', '_request',
                 '_since')

    def __init__(self, failed: FailedClaims, instance: Any, migration: Any = None, skipped: tuple[str, ...] = (),
                 claim_id: str | None = None) -> None:
        self._failed, self.instance, self.migration, self.skipped = failed, instance, migration, skipped
        self.claim_id = failed.unfinished.new_claim_id() if claim_id is None else claim_id
        self._over, self._request = False, public_calls.present()

    def has_now(self, resources: InstanceResources, fields: Fields, over: bool = False) -> Self:
        """Note the devices that were recorded for the claim, and the fields of its instance.

        :param over: whether there is nothing to give back
        """
        self.resources, self.fields, self._over = resources, fields, over
        self._since = self._failed.unfinished.number()
        return self

    def keep(self) -> Self:
        """Set the claim's fields on the instance. If the instance refuses them, give the claim back."""
        with self:
            self._failed.instances.set(self.instance, self.fields)
        return self

    @property
    def is_over(self) -> bool:
        """Whether the claim has nothing to give back."""
        return self._over

    def abort(self) -> Fields:
        """Give back the devices of this claim, and none of a later claim. A second call does nothing.

        A later claim of the same migration stays as it is, with the migration context and the devices that it left.

        Devices that are being wiped in the background already, because another call ended the claim, stay held for
        that time, and the call does not wait for them.

        :returns: the fields that it set on the instance, with the values from before the claim
        :raises ForkedManager: this process is a child of the manager's, and the claim belongs to its parent
        :raises DeviceInUse: the guest is still there; its devices stay recorded and held
        :raises DriverError, StoreError: not all devices could be given back; the audit continues
        """
        self._failed.process.check()
        if self._over:
            return {}

        def then() -> Fields:
            self._over = True                   # also if the instance refuses the fields
            fields = self._failed.take_off(self.instance, self.fields, self.claim_id, self._migration_uuid)
            self._over = False                  # the caller may repeat the call until the devices are back
            return fields

        claim = self._as_failed(bool(self.resources.assignments))
        with public_calls.during(self._request):
            fields = self._failed.go_on(lambda failed: failed.abort(claim, then))
        self._over = True
        return fields

    @property
    def _migration_uuid(self) -> str | None:
        return None if self.migration is None else self.migration.uuid

    def _as_failed(self, takes: bool) -> FailedClaim:
        return FailedClaim(self.instance.uuid, self.claim_id, self._migration_uuid, takes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is None or self.is_over or not self._failed.process.is_this:
            return
        if self._failed.guest_may_run_unrecorded(self.instance.uuid, self._since):
            LOG.warning('The guest of instance %(instance)s runs, but that could not be recorded: claim %(claim)s '
                        'keeps its devices, and the audit records that the guest runs',
                        {'instance': self.instance.uuid, 'claim': self.claim_id})
            return
        try:
            self.abort()
        except exception.HostTakenOver as taken_over:
            LOG.warning('Claim %(claim)s keeps its devices until the service boots or releases instance %(instance)s: '
                        '%(error)s', {'claim': self.claim_id, 'instance': self.instance.uuid, 'error': taken_over})
        except Exception as not_given:
            if self._over:                      # only setting the fields failed, as it may have in the block
                return
            # The caller gets the error of the block; the audit handles this one.
            LOG.warning('Claim %(claim)s could not be given back, so the audit will try again: %(error)s',
                        {'claim': self.claim_id, 'error': not_given})


class Taking:
    """A claim call, from its first device to the claim that it returns.

    An exception from outside may come after the devices were recorded and before the caller has the claim. Then the
    next audit gives them back.

    :param takes: whether the claim is for devices
    """

    __slots__ = ('_failed', '_claim', '_takes')

    def __init__(self, failed: FailedClaims, claim: Claim, takes: bool = True) -> None:
        self._failed, self._claim, self._takes = failed, claim, takes

    def __enter__(self) -> Claim:
        return self._claim

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is not None and not issubclass(kind, exception.DeviceTrackError) and not self._claim.is_over:
            self._failed.remember(self._claim._as_failed(self._takes))


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
    """

    def __init__(self, host: ThisHost, rows: Rows, views: HostViews, declarations: Declarations,
                 withheld: WithheldDevices, life: Life, failed: FailedClaims) -> None:
        self._host_uuid, self._store, self._driver = host.uuid, host.store, host.driver
        self._ledger, self._rows = rows.ledger, rows
        self._views, self._declarations, self._withheld = views, declarations, withheld
        self._life, self.failed = life, failed
        # How often a claim chooses devices if the store says that they have owners, and how often it chooses another
        # device for one that cannot be made ready.
        self._attempts: int = host.options.claim_attempts
        self._wiped = host.driver.wiped_kinds()

    # -- taking -------------------------------------------------------------------------------------------------------

    def is_own(self, record: Record) -> bool:
        """Whether a claim of this process took the device of a row, and did not fail, as far as is known here. Quick.

        The row itself says so: the ledger does not know who took a device before an interrupt.
        """
        return self._rows.unfinished.made(record.claim_id) and not self.failed.has_failed(record.claim_id)

    def claim(self, instance: Any, demand: Demand, end_earlier: Callable[[str], bool]) -> Claim:
        """Claim devices for an instance that boots here. The errors are those of :meth:`.ClaimManager.instance_claim`.

        :param end_earlier: ends moves of an instance that are over; returns whether there were any
        """
        with Taking(self.failed, Claim(self.failed, instance, None, demand.skipped)) as claim:
            try:
                records = self._take_or_nothing(claim, demand)
            except exception.InstanceHasClaim:
                if not end_earlier(instance.uuid):
                    raise
                records = self._take_or_nothing(claim, demand)
            resources = self._rows.resources(instance.uuid, records)
            return claim.has_now(resources, {'resources': resources}, over=not records).keep()

    def _take_or_nothing(self, claim: Claim, demand: Demand) -> list[Record]:
        """As :meth:`take`. Without a demand, check that the instance has no devices here that its guest starts on."""
        if demand.items:
            return self.take(claim, demand)
        instance_uuid = claim.instance.uuid
        self.failed.make_way(instance_uuid)
        if self._rows.ledger.now.holdings(instance_uuid):
            with self._rows.working(instance_uuid):
                there = self._rows.there(instance_uuid)
                if there:
                    raise exception.InstanceHasClaim(instance_uuid, [record.key for record in there])
                self._life.set_aside(instance_uuid)
        return []

    def take(self, claim: Claim, demand: Demand, move: Arrival | None = None) -> list[Record]:
        """Hold and record devices. If the store says that some have owners unknown here, choose again.

        An exception from outside may also come after the devices were recorded and before the caller has them. The
        caller then calls :meth:`.FailedClaims.remember`.

        :param claim: it has nothing yet
        :param move: for an instance that moves here, which may also hold other devices
        :raises NoFit, InstanceHasClaim, NothingWritten, DriverError: nothing is held
        :raises OutcomeUnknown: the devices stay held until the store answers
        """
        instance_uuid, name = claim.instance.uuid, name_to_record(self.failed.instances, claim.instance)
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
                changes = self._changes_for(hold, claim.claim_id, name, move)
                self._rows.insert(changes)
                return list(changes.insert)
            except exception.OutcomeUnknown:
                self.failed.remember(claim._as_failed(takes=True))
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
            if not self.failed.make_way(instance_uuid):
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

    def _changes_for(self, hold: Hold, claim_id: str, name: str | None, move: Arrival | None) -> Changes:
        now, role = int(time.time()), vocabulary.CURRENT if move is None else vocabulary.INCOMING
        migration_uuid = None if move is None else move.migration_uuid
        records = [self._record_of(candidate, hold.instance_uuid, migration_uuid, role, position, claim_id, now, name)
                   for position, candidate in enumerate(hold.candidates)]
        return Changes(insert=tuple(records)) if move is None else move.changes(self._rows, records)

    def _record_of(self, candidate: Candidate, instance_uuid: str, migration_uuid: str | None, role: str,
                   position: int, claim_id: str, now: int, name: str | None) -> Record:
        # Each device has its name by now, which the type cannot say. A check would cost every claim time.
        return Record(self._host_uuid, candidate.kind, candidate.identifier, instance_uuid,  # type: ignore[arg-type]
                      migration_uuid, role, vocabulary.CLAIMED, position, claim_id, values.FIRST_GENERATION,
                      candidate.provider_uuid, candidate.resource_class, candidate.parent, candidate.numa_node,
                      candidate.details, now, None, False, name)

    def leave(self, move: Arrival, claim_id: str) -> None:
        """Make rows old for a move that takes no device of this host. Without such rows, write nothing.

        The errors are those of :meth:`take`.
        """
        if not move.leaving:
            return
        try:
            self._rows.write(move.changes(self._rows, ()), undo=True)
        except exception.OutcomeUnknown:
            self.failed.remember(FailedClaim(move.instance_uuid, claim_id, move.migration_uuid))
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
        # A manager of this host that started meanwhile may have given the device back. The next one that does waits.
        made = self._driver.realize(DeviceAssignment.from_record(record),
                                    confirm=lambda _device: self._store.check_epoch())
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

        If others use a device that stores data, or wrote to it, its row ends at once, also if there is no other device:
        what is on it is theirs, and no wipe for the instance may touch it. It stays withheld until something proves
        that it is clean. A full parent left nothing that has to go back.

        :param may_choose: whether the claim may choose another one
        :raises NoFit: there is no other device
        """
        theirs = record.kind in self._wiped and isinstance(error, _USED)
        left = None if theirs or isinstance(error, exception.ParentFull) else leaving(record)
        # The guest may arrive running: then the other device must be an equally good partner.
        accepts = self._declarations.like(record) if record.role == vocabulary.INCOMING else None
        reason: exception.DeviceTrackError = error
        if may_choose:
            LOG.warning('%(error)s; choosing another device for instance %(instance)s',
                        {'error': error, 'instance': record.instance_uuid})
            try:
                chosen = self._take_instead(record, left, accepts, isinstance(error, exception.ParentGone), theirs)
                if chosen is not None:
                    return chosen
            except exception.NoFit as none:
                none.__cause__, reason = error, none
        if theirs:
            self._life.releasing.end_as_it_is([record], self._last(record), theirs)
        raise reason

    def _last(self, record: Record) -> Changes:
        """The changes that end a row without another device. The last row of a move takes its context with it."""
        stays = record.migration_uuid is None or any(
            other.migration_uuid == record.migration_uuid and other.state != vocabulary.RELEASING
            and other.key != record.key for other in self._rows.of_instance(record.instance_uuid))
        return Changes(delete=(record,), contexts=() if stays else (self._rows.end_of_move(record.instance_uuid),))

    def _take_instead(self, record: Record, left: Update | None, accepts: Callable[[str | None, str], bool] | None,
                      parent_gone: bool, theirs: bool) -> Record | None:
        """Take another device in place of one, and release that one.

        :param left: the change of the row of the first device; None ends it
        :param theirs: what is on the first one is of others
        :returns: None if nothing but this device can be chosen
        :raises NoFit: no other device is free
        """
        other = self._ledger.exchange_elsewhere(record.key, accepts, parent_gone)
        if other is None:
            return None
        try:
            other = self.named(other, demands.of_row(record.details))
            [candidate] = other.candidates
            chosen = in_place_of(record, candidate)._replace(state=vocabulary.CLAIMED)
            if left is None:
                self._life.releasing.end_as_it_is([record], Changes(insert=(chosen,), delete=(record,)), theirs)
            else:
                self._rows.write(Changes(insert=(chosen,), update=(left,)))
        except exception.OutcomeUnknown:
            raise                               # it stays held until the store answers
        except exception.DeviceTrackError:
            self._ledger.put_back(other)
            raise
        if left is not None:
            self._life.release_replaced([left.after])
        return chosen

    # -- narrowing ----------------------------------------------------------------------------------------------------

    def narrow(self, claim: Claim, numa_nodes: Collection[int], numa_policy: str | None, wait: bool) -> Fields:
        """As :meth:`.manager.ClaimManager.narrow_claim`."""
        uuid = claim.instance.uuid
        with self._rows.working(uuid):
            records = [record for record in self._rows.there(uuid) if record.claim_id == claim.claim_id]
            if not records:
                raise exception.InstanceNotClaimed(uuid, f'of claim {claim.claim_id}')
            for record in records:
                if record.state != vocabulary.CLAIMED:
                    raise exception.InvalidTransition(record.state, 'narrow')
            return self._narrow(claim, records, frozenset(numa_nodes), numa_policy, wait)

    def _narrow(self, claim: Claim, records: Sequence[Record], numa_nodes: frozenset[int | None],
                numa_policy: str | None, wait: bool) -> Fields:
        exchanged = self._ledger.narrow(
            {record.key: self._declarations.like(record) if record.role == vocabulary.INCOMING else None
             for record in records}, numa_nodes, numa_policy)
        if not exchanged:
            return {}
        now, left = self._exchange_far(claim, records, exchanged)
        fields = _fields_of(claim, now)
        self.failed.instances.set(claim.has_now(now, fields).instance, fields)
        self._life.release_replaced(left, wait)
        return fields

    def _exchange_far(self, claim: Claim, records: Sequence[Record],
                      exchanged: Sequence[tuple[DeviceKey, Hold]]) -> tuple[InstanceResources, list[Record]]:
        """Record the exchange, in one transaction.

        :returns: the new devices of the claim, and the rows of its old ones, which are being released
        """
        holds = [hold for _key, hold in exchanged]
        try:
            details = {record.key: record.details for record in records}
            for index, (key, hold) in enumerate(exchanged):
                holds[index] = self.named(hold, demands.of_row(details[key]))
            others = {key: _instead(records, key, hold)
                      for (key, _), hold in zip(exchanged, holds, strict=True)}
            new = [others.get(record.key, record) for record in records]
            now = self._rows.resources(claim.instance.uuid, sorted(new, key=operator.attrgetter('position')))
            left = tuple(leaving(record) for record in records if record.key in others)
            context = _fields_of(claim, now).get('migration_context')
            self._rows.write(Changes(insert=tuple(others.values()), update=left,
                                     contexts=() if context is None else (self._rows.of_move(context),)))
        except exception.OutcomeUnknown:
            raise                               # both stay held until the store answers
        except exception.DeviceTrackError:
            for hold in reversed(holds):
                self._ledger.put_back(hold)
            raise
        return now, [update.after for update in left]


def in_place_of(record: Record, candidate: Candidate) -> Record:
    """The row of a device that replaces the one of another row, in the same role and state."""
    return record._replace(
        kind=candidate.kind, identifier=candidate.identifier or '', provider_uuid=candidate.provider_uuid,
        parent=candidate.parent, numa_node=candidate.numa_node, details=candidate.details,
        generation=values.FIRST_GENERATION, was_realized=False)


def _instead(records: Sequence[Record], key: DeviceKey, hold: Hold) -> Record:
    """The row of a device that replaces another device of its claim."""
    [record] = [record for record in records if record.key == key]
    [candidate] = hold.candidates
    return in_place_of(record, candidate)


def _fields_of(claim: Claim, now: InstanceResources) -> Fields:
    """The fields that a claim sets on its instance if it has these devices."""
    before = claim.fields.get('migration_context')
    return {'resources': now} if before is None else {'migration_context': before.instead(now)}
