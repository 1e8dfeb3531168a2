"""Carries out the plans of :mod:`devicetrack.engine.repair_plan`, and forgets dead devices.

A repair changes a row only if the row is still as in the plan. The manager of the host makes the repairs, or a command
that holds the host's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import itertools
import time
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import arguments
from devicetrack.claims import withheld
from devicetrack.claims.gate import Gate
from devicetrack.claims.host import ThisHost
from devicetrack.claims.life import Life
from devicetrack.claims.rows import Rows
from devicetrack.claims.views import HostViews
from devicetrack.claims.withheld import Withheld
from devicetrack.claims.withheld import WithheldDevices
from devicetrack.engine import adoption
from devicetrack.engine import exclusion
from devicetrack.engine import findings
from devicetrack.engine import migrations
from devicetrack.engine import reconcile
from devicetrack.engine import repair_plan
from devicetrack.engine.findings import Finding
from devicetrack.engine.repair_plan import Repair
from devicetrack.engine.views import lost_rows
from devicetrack.engine.views import named_migrations
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects import details
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.event import Note
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.store.api import Changes
from devicetrack.store.api import Host
from devicetrack.store.api import Store
from devicetrack.store.api import StoredContext
from devicetrack.store.api import Update
from devicetrack.virt.driver import obstacle
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)


def adoptions(views: Views, driver: VirtDriver, instance_uuid: str, keys: Iterable[DeviceKey],
              provider_uuid_of: Callable[[str], str | None]) -> list[Repair]:
    """Plan the rows for devices that an instance has, as its service says and one look shows.

    :raises NotAdopted: as :func:`.adoption.adoptions`, or one of the devices, or what may not be held beside it, is
        being wiped
    """
    wanted = adoption.adoptions(views, instance_uuid, keys, provider_uuid_of)
    reached = {one.device for one in wanted}
    for ours in filter(None, map(views.exclusions_of, [*reached])):
        reached.update(one.key for one in views.devices.values() if exclusion.shared(ours, one.exclusions, False))
    for key, progress in driver.wiping(reached).items() if wanted else ():
        if progress.is_wipe:
            raise exception.NotAdopted(instance_uuid, str(key), f'it is being wiped: {progress}')
    return wanted


def check_idle(driver: VirtDriver, repairs: Iterable[Repair]) -> None:
    """Check that no process of the host wipes devices that get an owner. Nobody but the caller holds them now.

    A manager asks the store whether it was taken over after it has a device's lock, and before the wipe. So if the lock
    is free now, no older manager begins a wipe later. Whoever reads a device may go on.

    :raises DeviceBusy: somebody wipes one, or may
    :raises DriverError: nobody can tell
    """
    assignments = [DeviceAssignment.from_record(one.after) for one in repairs if one.after is not None]
    busy = driver.being_worked_on(assignments)
    progress = driver.wiping(busy) if busy else {}
    for key in sorted(busy):
        if key not in progress or progress[key].is_wipe:
            raise exception.DeviceBusy(*key, 'another process or thread works on it')


class Adopting:
    """One look at a host. It changes nothing, and reads nothing again.

    Made by :meth:`devicetrack.claims.report.Observer.adopting`.

    :param provider_uuid_of: returns the UUID of the provider with a stable name, or None while it has none
    """

    def __init__(self, views: Views, marks: Marks, driver: VirtDriver,
                 provider_uuid_of: Callable[[str], str | None]) -> None:
        self._views, self._marks, self._driver, self._provider_uuid_of = views, marks, driver, provider_uuid_of

    @property
    def usage(self) -> Usage:
        """What the guests use."""
        return self._views.usage

    @property
    def inventory(self) -> Inventory:
        """The devices of the host."""
        return self._views.inventory

    @property
    def records(self) -> list[Record]:
        """The rows of the host."""
        return list(self._views.records)

    def check(self, instance_uuid: str, keys: Iterable[DeviceKey]) -> None:
        """Check that :meth:`.ClaimManager.adopt` would record these devices now. It makes the same checks.

        :raises NotAdopted: it would refuse; ``reason`` says why
        """
        adoptions(self._views, self._driver, instance_uuid, keys, self._provider_uuid_of)

    def obstacles(self) -> Iterator[str]:
        """Describe the mistakes in the options that keep every manager of this host from starting."""
        try:
            self._driver.check_host()
        except exception.InvalidConfiguration as error:
            yield str(error)
        for missing in withheld.mistakes(self._views, self._marks):
            yield f'{missing.option} names {missing.key.identifier}: {missing.reason}: {withheld.FIX_MISSING}'
        for overlap in self._views.inventory.overlaps:
            one, other = overlap.devices
            yield f'{one} and {other} are both {overlap.what}: let only one option name it'


class OwnerChange(NamedTuple):
    """A row that goes from its owner to the instance whose guest records the device as its own."""

    device: DeviceKey
    owner: str
    new_owner: str

    @classmethod
    def of(cls, repair: Repair) -> OwnerChange | None:
        """The move that a repair makes, or None if every row keeps its owner."""
        before, after = repair.before, repair.after
        if before is None or after is None or before.instance_uuid == after.instance_uuid \
                or repair.verb == findings.WRITE_AGAIN:         # the manager knows whose it is
            return None
        return cls(repair.device, before.instance_uuid, after.instance_uuid)

    def __str__(self) -> str:
        return (f'the row of {self.device} belongs to instance {self.owner}, but the guest of {self.new_owner} '
                'records the device as its own')


class Accepted(NamedTuple):
    """The changes that an operator accepts in a store that is older than its guests.

    ``rows`` allows new rows for guests that have none. Whoever can change a guest's definition can claim any device
    with it, so a row moves to another instance only if ``may_move`` allows that move.
    """

    rows: bool = False
    may_move: Callable[[OwnerChange], bool] = lambda _move: False

    def allows(self, repair: Repair) -> bool:
        move = OwnerChange.of(repair)
        return self.rows and (move is None or self.may_move(move))


NOTHING: Final = Accepted()


# The repairs that an operator accepts.
_ACCEPTED: Final = (findings.WRITE_AGAIN, findings.ADOPT)


class Plan(NamedTuple):
    """The repairs to make now, and those that wait until an operator accepts the store or the rows are complete."""

    repairs: tuple[Repair, ...]
    waiting: tuple[Repair, ...]
    is_lost: bool = False       # the store has no row at all, so it cannot be accepted

    @property
    def to_accept(self) -> int:
        """The number of rows that are written only if an operator accepts the store."""
        return sum(one.verb in _ACCEPTED for one in self.waiting) - len(self.moves)

    @property
    def moves(self) -> list[OwnerChange]:
        """The rows that move to another instance only if an operator accepts each move."""
        return [move for one in self.waiting if (move := OwnerChange.of(one)) is not None]


class RepairOutcome(NamedTuple):
    """The outcome of a repair; ``error`` says why it was not done.

    A repair that has ``begun`` is not done yet: a wipe runs in the background, and :meth:`.Wipes.of` has its progress.
    """

    repair: Repair
    error: str | None
    begun: bool = False


def plan(read: Callable[[], Views], accepted: Accepted = NOTHING) -> tuple[list[Finding], Plan]:
    """Look twice, and plan repairs for the findings that both looks show.

    :param read: reads the views of the host
    :param accepted: the changes that are allowed for guests that are newer than their store
    :raises StoreLost: the store has no row at all, so accepting it would hand out devices that nobody can vouch for
    """
    first = read()
    views = read()
    found = findings.confirmed(reconcile.compare(first), reconcile.compare(views))
    lost = lost_rows(views)
    # What the manager knows is all that there was, so it may write it into an empty store.
    is_lost = bool(lost) and not views.records and not views.lost
    if accepted.rows and is_lost:
        raise exception.StoreLost(views.host)
    chosen = choose(repair_plan.plan(found, views), bool(lost or views.lost), accepted)
    return found, chosen._replace(is_lost=is_lost)


def proposed(found: Iterable[Finding], views: Views) -> list[Finding]:
    """Correct the proposals for a lost store: :func:`plan` refuses it, so they propose a recovery."""
    if views.records:
        return list(found)
    return [finding if finding.repair != findings.ADOPT else finding._replace(
        repair=None, proposal='the store has no row at all, so it was lost: leave the domain as it is, stop the '
        f'service and run devicetrack-manage recover --from-hypervisor --host {views.host}, or with the name that the '
        'service gives this host, if that is another') for finding in found]


def choose(repairs: Iterable[Repair], behind: bool, accepted: Accepted) -> Plan:
    """Choose the repairs of a plan that may be made now.

    :param behind: the store is older than its guests. Until its rows are complete, nothing is given back
    """
    now: list[Repair] = []
    waiting: list[Repair] = []
    for one in repairs:
        if one.verb in _ACCEPTED:
            may = accepted.allows(one)
        else:
            may = not behind or one.verb == findings.UPDATE_DETAILS
        (now if may else waiting).append(one)
    return Plan(tuple(now), tuple(waiting))


# The error of each repair of one instance, or None if it was done.
_Errors = dict[Repair, str | None]
_CHANGED = 'its row has changed since'
_BUSY = 'another operation is working on the devices of its instance'
_NEWER = 'its instance got it by a newer claim: look again'


class Repairs:
    """Repairs the rows of a started host."""

    def __init__(self, host: ThisHost, rows: Rows, views: HostViews, gate: Gate, withheld_devices: WithheldDevices,
                 life: Life) -> None:
        self._host, self._driver, self._service = host.name, host.driver, host.service
        self._ledger, self._rows, self._views, self._gate = rows.ledger, rows, views, gate
        self._withheld, self._life, self._wipes = withheld_devices, life, life.wipes
        self._do = {findings.WRITE_AGAIN: self._adopt, findings.ADOPT: self._adopt,
                    findings.UPDATE_DETAILS: self._update, findings.RETRY_RELEASE: self._release_some,
                    findings.GIVE_BACK: self._release_some}

    def plan(self, accepted: Accepted = NOTHING) -> Plan:
        """Look twice and plan: see :func:`plan`."""
        return plan(self._views.read, accepted)[1]

    def repair(self, repairs: Sequence[Repair], wait: bool = True) -> list[RepairOutcome]:
        """Make the repairs of a plan, instance by instance, and log each row before and after.

        :param wait: wait for wipes; False wipes devices in the background
        :returns: the outcome of each repair, in the order of the plan
        """
        errors: _Errors = {}
        for (verb, instance_uuid), some in itertools.groupby(
                sorted(repairs, key=lambda one: (repair_plan.VERBS.index(one.verb), one.instance_uuid)),
                key=lambda one: (one.verb, one.instance_uuid)):
            of_instance = list(some)
            with self._rows.if_idle(instance_uuid) as idle:
                try:
                    may = idle and not self._wipes.works_on([one.device for one in of_instance])
                    errors.update(self._do[verb](of_instance, wait) if may else dict.fromkeys(of_instance, _BUSY))
                except exception.DeviceTrackError as error:
                    errors.update(dict.fromkeys(of_instance, str(error)))
        outcomes = [RepairOutcome(one, errors[one], errors[one] is None and not wait and self._is_wiped(one))
                    for one in repairs]
        for outcome in outcomes:
            if outcome.error is None:
                LOG.warning('Host %(host)s %(done)s: %(repair)s', {
                    'host': self._host, 'done': 'began to repair' if outcome.begun else 'repaired',
                    'repair': outcome.repair})
            else:
                # Nothing was written, so nobody needs the rows to undo it.
                LOG.warning('Host %(host)s not repaired: %(verb)s %(device)s of instance %(instance)s: %(error)s', {
                    'host': self._host, 'verb': outcome.repair.verb, 'device': str(outcome.repair.device),
                    'instance': outcome.repair.instance_uuid, 'error': outcome.error})
        return outcomes

    def _is_wiped(self, repair: Repair) -> bool:
        """Whether a repair gives back a device that needs a wipe first."""
        return (self._do[repair.verb] == self._release_some and repair.before is not None
                and self._wipes.takes([repair.before]))

    # Each of these changes rows of one instance, while nothing else works on it, and returns the errors.

    def _adopt(self, repairs: Sequence[Repair], _wait: bool) -> _Errors:
        """Hold the devices, then record all rows of the instance in one transaction, also those of other owners."""
        others = {one.before.instance_uuid for one in repairs if one.before is not None} - {repairs[0].instance_uuid}
        with self._rows.all_if_idle(others) as idle:
            return self._adopt_from(repairs) if idle else dict.fromkeys(repairs, _BUSY)

    def _adopt_from(self, repairs: Sequence[Repair], before_write: Callable[[], None] = lambda: None) -> _Errors:
        """As :meth:`_adopt`.

        :param before_write: called while the devices are held; if it fails, nothing is recorded. Idempotent
        """
        now = int(time.time())
        rows = {one: one.after._replace(created_at=one.after.created_at or now)
                for one in repairs if one.after is not None}
        known = self._rows.of_devices([one.device for one in rows])
        for one in rows:
            if known.get(one.device) != one.before:
                return dict.fromkeys(repairs, f'{one.device} has another row by now')
        again, uuid = repairs[0].verb == findings.WRITE_AGAIN, repairs[0].instance_uuid
        taken = self._ledger.hold_unless_taken(list(rows.values()), {
            one.device: one.before.instance_uuid if one.before is not None else uuid if again else None
            for one in rows})
        if taken is not None:
            return dict.fromkeys(repairs, f'{taken} is being taken, given back or wiped right now, or somebody has a '
                                          'part of it, or what contains it')
        try:
            before_write()
            self._rows.write(Changes(insert=tuple(row for one, row in rows.items() if one.before is None),
                                     update=tuple(Update(one.before, row) for one, row in rows.items()
                                                  if one.before is not None),
                                     contexts=(self._rows.known.context(uuid) or self._rows.end_of_move(uuid),)
                                     if again else ()))
        except (exception.DriverError, exception.NothingWritten):
            for one in rows:
                if one.before is not None:
                    self._ledger.hold([one.before])
            if not again:                       # else they stay held, as they were
                self._ledger.not_adopted(uuid, [one.device for one in rows if one.before is None])
            raise
        return dict.fromkeys(repairs)

    def _update(self, repairs: Sequence[Repair], _wait: bool) -> _Errors:
        errors = self._unchanged(repairs)
        changes = tuple(Update(one.before, one.after) for one in repairs
                        if errors[one] is None and one.before is not None and one.after is not None)
        if changes:
            self._rows.write(Changes(update=changes))
        return errors

    def _release_some(self, repairs: Sequence[Repair], wait: bool) -> _Errors:
        errors = self._unchanged(repairs)
        rows = [one.before for one in repairs if errors[one] is None and one.before is not None]
        everything = len(rows) == len(self._rows.of_instance(repairs[0].instance_uuid))
        try:
            if rows:
                self._wipes.try_now([row.key for row in rows])
                (self._life.release_all if everything else self._life.release_some)(rows, wait)
        except exception.DriverError as error:
            left = {record.key for record in self._rows.of_instance(repairs[0].instance_uuid)}
            errors.update({one: str(error) for one in repairs if errors[one] is None and one.device in left
                           and (wait or not self._is_wiped(one))})
        return errors

    def _unchanged(self, repairs: Sequence[Repair]) -> _Errors:
        rows = {record.key: record for record in self._rows.of_instance(repairs[0].instance_uuid)}
        return {one: None if rows.get(one.device) == one.before else _CHANGED for one in repairs}

    def adopt(self, instance_uuid: str, keys: Collection[DeviceKey]) -> None:
        """Record devices that a guest has already, as its service says. The caller works on the instance.

        :raises NotAdopted: as :func:`adoptions`, or a device is being taken, given back or wiped
        :raises DriverError: a proof could not be removed; nothing was recorded
        :raises HypervisorUnreachable, StoreError: no answer
        """
        wanted: list[Repair] = []
        for _look in range(2):
            wanted = adoptions(self._views.read(), self._driver, instance_uuid, keys,
                                        self._views.providers.present.get)
        if not wanted:
            return

        def before_write() -> None:
            # The guest's data is on the device when its row goes, in whatever way. The device is held before it loses
            # its proof, so that no claim takes it meanwhile.
            check_idle(self._driver, wanted)
            self._driver.disprove([one.device for one in wanted])

        try:
            errors = self._adopt_from(wanted, before_write)
        except exception.DeviceBusy as busy:
            raise exception.NotAdopted(instance_uuid, f'{busy.kind}/{busy.identifier}', busy.reason) from busy
        for one, error in errors.items():
            if error is not None:
                raise exception.NotAdopted(instance_uuid, str(one.device), error)
            LOG.warning('Host %(host)s: %(repair)s', {'host': self._host, 'repair': one})

    def release(self, instance_uuid: str, wait: bool = True, claims: frozenset[str] | None = None) -> list[Record]:
        """Give back the devices of an instance that is over on this host, as an operator confirms.

        :param wait: wait for wipes; False wipes devices in the background
        :param claims: the ids of the claims whose devices the operator saw; None for those of any claim
        :returns: the rows as they were
        :raises RowStays: it has no devices here, or some of a claim that the operator did not see, another operation
            works on it, it has a domain here, a domain names one of its devices, it is moving, the service says that it
            is here, or one of these is unknown. A service that answers and leaves it out does not know it. Also while
            the host is report-only
        :raises DriverError: a device could not be taken back; its row stays, being released, and an audit tries again
        :raises HypervisorUnreachable, StoreError: no answer
        """
        # An audit may call this, and waits for no instance.
        with self._rows.if_idle(instance_uuid) as idle:
            if not idle:
                raise exception.RowStays(f'instance {instance_uuid}', 'released', _BUSY)
            records = self._rows.of_instance(instance_uuid)
            if not records:
                raise exception.RowStays(f'instance {instance_uuid}', 'released',
                                         f'it has no devices on host {self._host}')
            if any(_is_newer(record, claims) for record in records):
                raise exception.RowStays(f'instance {instance_uuid}', 'released',
                                         'it has devices of a newer claim: look again')
            if (closed := self._gate.why_not_end) is not None:
                raise exception.RowStays(f'instance {instance_uuid}', 'released', closed)
            if wait and self._wipes.is_wiping(instance_uuid):
                raise exception.RowStays(f'instance {instance_uuid}', 'released', _BUSY)
            for _look in range(2):
                _refuse_release(instance_uuid, records, self._views.read(), self._service.is_there)
            LOG.warning('Host %(host)s: releasing instance %(instance)s, as an operator confirmed', {
                'host': self._host, 'instance': instance_uuid})
            self._wipes.try_now([record.key for record in records])
            self._life.release_all(records, wait)
        return records

    def forget(self, key: DeviceKey, instance_uuid: str, claims: frozenset[str] | None = None) -> Record:
        """End the row of a device that the host no longer has. There is nothing to wipe.

        If the device comes back, it is in doubt until an operator says that it is clean. The doubt is noted first, so
        after an error it may be noted for a device that keeps its row.

        :param instance_uuid: its owner, as an operator confirmed
        :param claims: the id of the claim by which it had the device when the operator looked; None for that of any
        :returns: the row as it was
        :raises NotAssigned: no instance holds the device
        :raises RowStays: another operation works on its instance, it has another owner, the host may still have it
            or get it back as it is, a guest may use it, or one of these is unknown. Also while the host is report-only:
            the row of a store that is older than its guests may not be the last one of the device
        :raises HypervisorUnreachable, StoreError: no answer
        """
        # An audit may call this, and waits for no instance.
        with self._rows.if_idle(instance_uuid) as idle:
            if not idle:
                raise exception.RowStays(f'device {key}', 'forgotten', _BUSY)
            record = _owned(self._rows.of_devices([key]).get(key), self._host, key, instance_uuid)
            if _is_newer(record, claims):
                raise exception.RowStays(f'device {key}', 'forgotten', _NEWER)
            if self._wipes.works_on([key]):
                raise exception.RowStays(f'device {key}', 'forgotten', _BUSY)
            if (closed := self._gate.why_not_end) is not None:
                raise exception.RowStays(f'device {key}', 'forgotten', closed)
            for _look in range(2):
                _refuse(self._views.read(), self._driver.guest_records(), record)
            _refuse_present(self._driver, record)
            if not _leaves_nothing(record):
                self._withheld.forget(key, instance_uuid)
            self._rows.write(_end(record, self._rows.of_instance(instance_uuid)))
            self._ledger.forget(key)
        _log_forgotten(self._host, record)
        return record

    def retire(self, key: DeviceKey, instance_uuid: str, reason: str = '',
               claims: frozenset[str] | None = None) -> Withheld:
        """End the row of a device that is being released and cannot be taken back, and never hand it out again.

        It is withheld first, so after an error it may be withheld as retired and still have its row. Nothing is wiped.
        A device that is retired already, and that no instance holds, stays retired.

        :param instance_uuid: its owner, as an operator confirmed
        :param claims: as for :meth:`forget`
        :raises NotAssigned: no instance holds the device, and it is not retired
        :raises RowStays: another operation works on it or its instance, it has another owner, it is not on its way
            back, a domain names it, or that is unknown. Also while the host is report-only, as for :meth:`forget`
        :raises BadRequest: the reason is not one short, printable line
        :raises HypervisorUnreachable, StoreError: no answer
        """
        arguments.check_reason(reason)

        def refuse(why: str) -> None:
            raise exception.RowStays(f'device {key}', 'retired', why)

        # An audit may call this, and waits for no instance.
        with self._rows.if_idle(instance_uuid) as idle:
            if not idle or self._wipes.works_on([key]):
                refuse(_BUSY)
            record = self._rows.of_devices([key]).get(key)
            if record is None:
                state = self._withheld.state_of(Target.of(key))
                if vocabulary.RETIRED in state.causes:
                    return state._replace(changed=False)
                raise exception.NotAssigned(str(key), self._host)
            if record.instance_uuid != instance_uuid:
                refuse(f'it belongs to instance {record.instance_uuid}, but {instance_uuid} was confirmed')
            if _is_newer(record, claims):
                refuse(_NEWER)
            if (closed := self._gate.why_not_end) is not None:
                refuse(closed)
            if record.state != vocabulary.RELEASING:
                refuse(f'it is {record.state}: {_to_release(record)}')
            if (progress := self._driver.wiping([key]).get(key)) is not None:
                refuse(f'it is being wiped: {progress}')
            for _look in range(2):
                if (used := obstacle(key, self._driver.get_usage(), instance_uuid,
                                     'remove it from the domain', 'fix that first')) is not None:
                    refuse(used.reason)
            self._withheld.retire(key, instance_uuid, reason)
            self._rows.write(_end(record, self._rows.of_instance(instance_uuid)))
            # If a command runs this instead of the manager, no audit may follow.
            self._withheld.went_back([key], at_once=True)
            self._ledger.retire(instance_uuid, key, key.kind in self._driver.wiped_kinds())
        LOG.warning('Host %(host)s: %(repair)s', {'host': self._host, 'repair': Repair(
            'retire', key, instance_uuid, record, None, reason or 'an operator confirmed it')})
        return self._withheld.state_of(Target.of(key))


def forget_of_machine(store: Store, host: Host, machine_id: str, key: DeviceKey, instance_uuid: str) -> Record:
    """End the row of a device of a machine that is gone for good, as an operator confirms.

    :param machine_id: the digest of this machine's id
    :raises RowStays: the host is this machine, or the device has another owner
    :raises NotAssigned, StoreError: as :meth:`Repairs.forget`
    """
    if host.machine_id == machine_id:
        raise exception.RowStays(f'device {key}', 'forgotten', f'host {host.name} is this machine')
    record = _owned(next(iter(store.records_of_devices(host.uuid, [key])), None), host.name, key, instance_uuid)
    if not _leaves_nothing(record):
        withheld.forget(store, host.uuid, key, instance_uuid)
    store.write(_end(record, store.records_of_instance(host.uuid, instance_uuid)))
    _log_forgotten(host.name, record)
    return record


def _end(record: Record, records: Iterable[Record]) -> Changes:
    """The changes that end a row. The last row of a move takes the migration context with it.

    :param records: all rows of the instance on the host
    """
    last = record.migration_uuid is not None and not any(
        other.migration_uuid == record.migration_uuid and other.key != record.key for other in records)
    return Changes(delete=(record,), note=Note(forgotten=True), contexts=(
        StoredContext(record.host_uuid, record.instance_uuid, None, None),) if last else ())


def _is_newer(record: Record, claims: frozenset[str] | None) -> bool:
    """Whether a device belongs to another claim than those that an operator saw; with None every claim was seen."""
    return claims is not None and record.claim_id not in claims


def _to_release(record: Record) -> str:
    """Say how an assignment ends that is neither forgotten nor retired now."""
    if record.state == vocabulary.RELEASING:
        return ('the manager wipes it and gives it back; if it cannot, run devicetrack-manage device retire '
                f'{record.key} --confirm {record.instance_uuid}')
    return ('delete its instance in the compute service, which wipes it; if the service does not know it, run '
            f'devicetrack-manage instance release {record.instance_uuid}')


def _to_retire(record: Record) -> str:
    """Say how to keep another device that has the name of a recorded one."""
    first = '' if record.state == vocabulary.RELEASING else (
        'delete the instance in the compute service (if the service does not know it, run devicetrack-manage instance '
        f'release {record.instance_uuid}), which fails to give this device back. Then ')
    return (f'{first}run devicetrack-manage device retire {record.key} --confirm {record.instance_uuid}, and '
            f'devicetrack-manage device wipe {record.key}')


def _leaves_nothing(record: Record) -> bool:
    """Whether a device of this name that comes back is certainly another one."""
    try:
        return details.from_text(record.details).goes_with_its_assignment
    except (exception.UnknownObject, exception.MalformedObject):
        return False


def _log_forgotten(host: str, record: Record) -> None:
    LOG.warning('Host %(host)s: %(repair)s', {'host': host, 'repair': Repair(
        'forget', record.key, record.instance_uuid, record, None, 'an operator confirmed it')})


def _owned(record: Record | None, host: str, key: DeviceKey, instance_uuid: str) -> Record:
    if record is None:
        raise exception.NotAssigned(str(key), host)
    if record.instance_uuid != instance_uuid:
        raise exception.RowStays(f'device {key}', 'forgotten', f'it belongs to instance {record.instance_uuid}, but '
                                     f'{instance_uuid} was confirmed')
    return record


def _refuse_release(instance_uuid: str, records: Sequence[Record], views: Views, asks_service: bool) -> None:
    """Check that the views allow the release of an instance.

    :param asks_service: whether there is a compute service, so that its answer is unknown if there is none
    :raises RowStays: they do not; says why
    """
    def refuse(reason: str) -> None:
        raise exception.RowStays(f'instance {instance_uuid}', 'released', reason)

    for unknown in views.usage.unknown:
        refuse(f'{unknown.what} cannot be read ({unknown.reason}): fix that first')
    if instance_uuid in views.usage.domains:
        refuse('it has a domain here: undefine that first')
    keys = {record.key for record in records}
    for use in views.usage.uses:
        if use.identifier is not None and DeviceKey(use.kind, use.identifier) in keys:
            refuse(f'domain {use.domain_uuid} names {use.kind}/{use.identifier}: remove it from the domain')
    if views.instances is None and asks_service:
        refuse('the compute service does not say where it lives: see the log of the service, and try again')
    if (views.instances or {}).get(instance_uuid) == migrations.INSTANCE_HERE:
        refuse('the compute service says that it lives here: delete it in the service')
    forgotten = views.instances is not None and instance_uuid not in views.instances
    for uuid in named_migrations(records):
        move = (views.migrations or {}).get(uuid)
        if move is None and forgotten and views.migrations is not None:
            continue                        # the service has lost the instance with its migrations, so none goes on
        if move is None or move.outcome in (migrations.PENDING, migrations.UNKNOWN):
            refuse(f'it is moving: migration {uuid} is {"unknown" if move is None else move.status}: end that first')


def _refuse(views: Views, guests: Iterable[GuestRecord], record: Record) -> None:
    """Check that the views allow a device to be forgotten.

    :raises RowStays: they do not; says why
    """
    key, usage, inventory = record.key, views.usage, views.inventory

    def refuse(reason: str) -> None:
        raise exception.RowStays(f'device {key}', 'forgotten', reason)

    for unknown in (*usage.unknown, *inventory.unknown):
        refuse(f'{unknown.what} cannot be read ({unknown.reason}): fix that first')
    if key.kind not in inventory.known_kinds:
        refuse(f'this host does not read devices of kind {key.kind}: see its options')
    if (another := reconcile.replaced(views).get(key)) is not None:
        refuse(f'{another}. Take the other device out and repeat this, or keep it: {_to_retire(record)}')
    if any(device.key == key for device in inventory.devices):
        refuse(f'the host has it: {_to_release(record)}')
    if views.is_to_be_made(record) and (record.kind, record.parent) in views.parents:
        refuse(f'it is yet to be made for its instance, and its parent {record.parent} is there: {_to_release(record)}')
    recording = {guest.instance_uuid for guest in guests
                 if any((device.kind, device.identifier) == key and not device.beside for device in guest.devices)}
    for use in usage.uses:
        # The address of a missing device leads to nothing, but it may be the address of this device.
        maybe = use.may_mean(key, record.instance_uuid) or (use.identifier is None and use.domain_uuid in recording)
        if use.kind == key.kind and (use.identifier == key.identifier or maybe):
            refuse(f'domain {use.domain_uuid} names {"a device that is not there" if maybe else "it"}: '
                   'remove it from the domain')


def _refuse_present(driver: VirtDriver, record: Record) -> None:
    """Check with the driver, which also finds a namespace that no option names and the inventory lacks."""
    try:
        driver.guest_config([DeviceAssignment.from_record(record)])
    except exception.DeviceGone:
        return
    raise exception.RowStays(f'device {record.key}', 'forgotten', 'the host has it, though no option names it: name it '
                             f'in the option again. After that, {_to_release(record)}')
