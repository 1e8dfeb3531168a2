"""The work of a start and of every audit: read the views, continue interrupted work, report the differences."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import itertools
import time
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import gate as gates
from devicetrack.claims import locks
from devicetrack.claims import public_calls
from devicetrack.claims import repairs
from devicetrack.claims import withheld
from devicetrack.claims.claim import Claiming
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.definitions import Definitions
from devicetrack.claims.gate import Gate
from devicetrack.claims.holdings import Holdings
from devicetrack.claims.host import ThisHost
from devicetrack.claims.life import Life
from devicetrack.claims.metering import Audited
from devicetrack.claims.metering import HostState
from devicetrack.claims.metering import Meter
from devicetrack.claims.moves import Moves
from devicetrack.claims.providers import counts
from devicetrack.claims.providers import for_scheduler
from devicetrack.claims.rows import Rows
from devicetrack.claims.unfinished import Doubt
from devicetrack.claims.unproven import Unproven
from devicetrack.claims.views import HostViews
from devicetrack.engine import containment
from devicetrack.engine import findings
from devicetrack.engine import migrations
from devicetrack.engine import reconcile
from devicetrack.engine import unsettled
from devicetrack.engine import withholding
from devicetrack.engine.findings import Finding
from devicetrack.engine.views import by_instance
from devicetrack.engine.views import Views
from devicetrack.objects import identity
from devicetrack.objects import Provider
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.store.api import Changes
from devicetrack.store.api import Update

LOG = log.logger(__name__)


class Resume:
    """Finishes or undoes work that a crash, a lost call or another host left behind.

    Each step is the same as in a call, except that nothing here waits for a wipe. Work that cannot be done now is
    logged and waits for the next audit.
    """

    def __init__(self, host: ThisHost, rows: Rows, gate: Gate, life: Life, claiming: Claiming,
                 definitions: Definitions, moving: Moves) -> None:
        self._here, self._driver, self._service = host.here, host.driver, host.service
        self._rows, self.gate, self._life = rows, gate, life
        self._definitions, self._moves = definitions, moving
        self.wipes, self.is_own, self.failed = life.wipes, claiming.is_own, claiming.failed

    def waits(self, views: Views) -> bool:
        """Whether :meth:`go_on` may have work to do."""
        return (not self._definitions.boot.is_recorded or self._service.tells_of_evacuations
                or any(_work_waits(rows, views) for rows in _odd(views)))

    def go_on(self, views: Views, left: Collection[str] = (), forgotten: Collection[Record] = (),
              defined: Collection[str] = ()) -> bool:
        """Finish interrupted work, settle started guests and moves, give back the devices of instances that are over.

        :param left: instances that live elsewhere without a migration, as two looks show: they are over here
        :param forgotten: rows of which the service has forgotten everything, as two audits show
        :param defined: instances that left for good, and whose guests are off and still defined, as two looks show
        :returns: whether it tried anything
        """
        tried = self._definitions.bring_all(views)
        if tried:
            # The details may be new now, and that must not look as if others had changed a row.
            views = views._replace(records=tuple(self._rows.all()))
        if self.gate.report_only is not None:
            return tried
        tried |= self._fill(views)
        removed = self._remove_guests(self.evacuated(views), views, stop=True)
        removed |= self._remove_guests({rows[0].instance_uuid: rows for rows in by_instance(
            record for record in views.records if record.instance_uuid in defined)}, views, stop=False)
        for rows in _odd(views):
            instance_uuid = rows[0].instance_uuid
            if instance_uuid in removed or not _work_waits(rows, views):
                continue
            with self._rows.if_idle(instance_uuid) as idle, _unless_lost(instance_uuid):
                if idle and self._life.are_wiped(rows):
                    # This changes nothing in the views, so nobody needs to read them again.
                    self._release(instance_uuid, rows, self._rows.of_instance(instance_uuid))
                elif idle:
                    tried = True
                    self._go_on_with(instance_uuid, rows, views, instance_uuid in left, forgotten)
        return tried or bool(removed)

    def _fill(self, views: Views) -> bool:
        """Fill the rows of earlier releases with what these did not record. Returns whether there were any."""
        there, wanted = views.devices.column('details'), dict[str, list[Update]]()
        for key, text in views.owners.column('details').items():
            found = there.get(key)
            if found in (None, text) or (after := identity.filled(text, found or '')) == text:
                continue
            record = views.owners[key]
            if record.state == vocabulary.ACTIVE and record.migration_uuid is None:
                wanted.setdefault(record.instance_uuid, []).append(Update(record, record.changed(details=after)))
        for instance_uuid, updates in wanted.items():
            with self._rows.if_idle(instance_uuid) as idle, _unless_lost(instance_uuid):
                now = self._rows.of_instance(instance_uuid) if idle else ()
                if present := tuple(one for one in updates if one.before in now):
                    _try(instance_uuid, self._rows.write, Changes(update=present))
        return bool(wanted)

    def _go_on_with(self, instance_uuid: str, rows: Sequence[Record], views: Views, left: bool,
                    forgotten: Collection[Record]) -> None:
        """Continue the work for one instance. The caller works on it."""
        now = self._rows.of_instance(instance_uuid)
        if now and forgotten and set(now) <= set(forgotten) and not any(map(self.may_boot, now)):
            _try(instance_uuid, self._life.release_all, now, False)
            return
        unchanged = [record for record in now if record in rows]
        if left or is_over(instance_uuid, views):
            over = self._left_behind(instance_uuid, unchanged, views)
            _try(instance_uuid, self._life.release_all, over, False)
            # These may be a claim by which the instance comes back, unless its migration failed.
            others = [record for record in unchanged if record not in over]
            if others and unchanged == now:
                _try(instance_uuid, self._moves.settle_by, others, views)
            return
        self._release(instance_uuid, rows, now)
        if unchanged == now:
            _try(instance_uuid, self._moves.settle_by, unchanged, views)
            _try(instance_uuid, self._settle_running, instance_uuid, views.usage)
        # Ask again: whoever reverts a move says so before the guest's devices are made ready for it.
        self._life.vacate(instance_uuid, lambda uuids: [
            uuid for uuid, move in (self._service.migrations(uuids) or {}).items() if move.has_left])

    def _release(self, instance_uuid: str, rows: Sequence[Record], now: Sequence[Record]) -> None:
        """Continue a release. The caller works on the instance."""
        _try(instance_uuid, self._life.release_some, [record for record in now if record in rows
                                              and record.state == vocabulary.RELEASING], False)

    def _settle_running(self, instance_uuid: str, usage: Usage) -> None:
        """Record that a guest runs, although its service did not say so."""
        self._life.settle(migrations.Settlement(arrive=tuple(
            record for record in self._rows.of_instance(instance_uuid)
            if record.role != vocabulary.OLD and _runs(record, usage))))

    def may_boot(self, record: Record) -> bool:
        """Whether an operation of this process is about to boot an instance that its service has not saved yet."""
        return (record.state == vocabulary.CLAIMED and record.role != vocabulary.INCOMING and self.is_own(record))

    def _left_behind(self, instance_uuid: str, rows: Sequence[Record], views: Views) -> list[Record]:
        """The rows of an instance that is over, without those that an operation of this process is about to use.

        An offloaded instance comes back by a new claim, and the service's answer may be older than that claim.
        """
        deleted = (views.instances or {}).get(instance_uuid) == migrations.INSTANCE_DELETED
        return [record for record in rows
                if deleted or record.state != vocabulary.CLAIMED or not self.is_own(record)]

    # -- guests that left ---------------------------------------------------------------------------------------------

    def _remove_guests(self, rows_of: Mapping[str, Sequence[Record]], views: Views, stop: bool) -> set[str]:
        """Remove guests whose instances live elsewhere, and give back their devices.

        :param stop: also if they run: the service evacuated them while this host was down
        :returns: the instances for which it tried that
        """
        tried: set[str] = set()
        for uuid, rows in sorted(rows_of.items()):
            with self._rows.if_idle(uuid) as idle, _unless_lost(uuid):
                if idle and sorted(self._rows.of_instance(uuid)) == sorted(rows):
                    tried.add(uuid)
                    _try(uuid, self._remove, uuid, rows, views, stop)
        return tried

    def evacuated(self, views: Views) -> dict[str, list[Record]]:
        """The rows of each instance that was evacuated from here and left rows or a guest, and did not come back.

        A guest may be here without rows: the host lost its power before the removal of its definition was on the disk.
        """
        evacuated = self._service.evacuated_from_here()
        rows_of = {rows[0].instance_uuid: rows for rows in by_instance(
            record for record in views.records if record.instance_uuid in evacuated)} if evacuated else {}
        return {uuid: rows for uuid in evacuated
                if ((rows := rows_of.get(uuid, [])) or uuid in views.usage.domains)
                and self._may_remove(uuid, rows, views)}

    def _may_remove(self, instance_uuid: str, rows: Sequence[Record], views: Views) -> bool:
        """Whether nothing shows that the instance came back here after its evacuation."""
        arriving = any(record.role == vocabulary.INCOMING or self._comes_here(record, views) for record in rows)
        back = (views.instances or {}).get(instance_uuid) == migrations.INSTANCE_HERE
        if (arriving or back or any(map(self.is_own, rows))
                or self._may_move_back(instance_uuid, rows, views)):
            LOG.warning('The compute service says that instance %s was evacuated from here, but it has come back '
                        'since, or may have; its guest and devices stay as they are', instance_uuid)
            return False
        return True

    def _may_move_back(self, instance_uuid: str, rows: Sequence[Record], views: Views) -> bool:
        """Whether the end of a move away from here may bring the instance back.

        The service may go on naming an evacuation after the instance came back, and even when it leaves again. What it
        left for that move is here, and is all that a revert has.
        """
        left_for = {record.migration_uuid for record in rows if record.role == vocabulary.OLD}
        if views.migrations is None:
            return bool(left_for) or not self._service.ends_moves_by_calls
        return migrations.may_come_back(instance_uuid, left_for, views.migrations, self._here)

    def _comes_here(self, record: Record, views: Views) -> bool:
        move = (views.migrations or {}).get(record.migration_uuid or '')
        return move is not None and record.role == vocabulary.CURRENT and self._here.is_at(move.destination)

    def _remove(self, instance_uuid: str, rows: Sequence[Record], views: Views, stop: bool) -> None:
        if instance_uuid in views.usage.domains or views.usage.unknown:
            LOG.info('Removing the guest of instance %(instance)s, which %(why)s', {
                'instance': instance_uuid,
                'why': 'was evacuated from here' if stop else 'is off and left by a migration that is done'})
            self._driver.destroy_guest(instance_uuid, stop)
        self._life.release_all(rows, wait=False)


def is_over(instance_uuid: str, views: Views) -> bool:
    """Whether the service says that an instance is over and the hypervisor certainly has no domain of it."""
    return ((views.instances or {}).get(instance_uuid) in migrations.INSTANCE_OVER
            and not views.usage.unknown and instance_uuid not in views.usage.domains)


@contextlib.contextmanager
def _unless_lost(instance_uuid: str) -> Iterator[None]:
    """Leave an instance whose rows the store does not show since the looks. The next audit reports it."""
    try:
        yield
    except exception.RowsMissing as error:
        LOG.warning('Work for instance %(instance)s has to wait: %(error)s',
                    {'instance': instance_uuid, 'error': error})


def _try(instance_uuid: str, work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except exception.DeviceTrackError as error:
        LOG.warning('Work for instance %(instance)s has to wait: %(error)s',
                    {'instance': instance_uuid, 'error': error})


def _odd(views: Views) -> Iterator[list[Record]]:
    """The rows of the few instances that are not here and at rest. Nearly all of thousands are."""
    states, rows = views.instances or {}, Compact(Record, views.records)
    at_rest = {None, migrations.INSTANCE_HERE}
    odd = {uuid for uuid in set(rows.column('instance_uuid')) if states.get(uuid) not in at_rest}
    if set(rows.column('state')) != {vocabulary.ACTIVE} or any(rows.column('migration_uuid')):
        odd |= {uuid for uuid, state, migration in rows.columns('instance_uuid', 'state', 'migration_uuid')
                if state != vocabulary.ACTIVE or migration is not None}
    return by_instance(record for record in views.records if record.instance_uuid in odd) if odd else iter(())


def _work_waits(rows: Sequence[Record], views: Views) -> bool:
    uuid = rows[0].instance_uuid
    return (is_over(uuid, views)
            or (views.instances or {}).get(uuid) in (migrations.INSTANCE_ELSEWHERE, migrations.INSTANCE_FORGOTTEN)
            or any(record.state == vocabulary.RELEASING or record.migration_uuid is not None
                   or _runs(record, views.usage) for record in rows))


def _runs(record: Record, usage: Usage) -> bool:
    uuid = record.instance_uuid
    return record.state == vocabulary.CLAIMED and usage.runs_here(uuid) and any(
        use.identifier == record.identifier and use.kind == record.kind and use.live
        and use.domain_uuid == record.instance_uuid for use in usage.uses)


# An audit deletes at most this many events: milliseconds of work, and more than a host makes between two audits.
STEP: Final = 1000
# An audit counts at most this many. In a database that hosts share, counting a million takes some hours of audits.
COUNTED: Final = 2500

# The newest events of a host. They stay whatever their age, and the oldest of them says at least how late it is.
NEWEST: Final = 100

_MS_A_DAY: Final = 24 * 60 * 60 * 1000


class History:
    """Counts and deletes the events of a started host.

    Every audit counts some events, the oldest first, because counting a million at once would delay an audit. A SQLite
    file with only this host knows the number at once. Until the count exceeds ``history_events``, only the age of an
    event decides whether it is deleted.

    No clock alone decides it. A clock that is ahead for some audits would erase the history, so the age is also that
    before the :data:`NEWEST` events, in the order of their numbers. Whatever wrong times some of them have, the
    earliest time of all of them counts.
    """

    def __init__(self, host: ThisHost) -> None:
        self._host, self._host_uuid, self._store = host.name, host.uuid, host.store
        self._days, self._kept = host.options.history_days, host.options.history_events
        self._counted, self._last = 0, 0        # the number of events up to the one with this number

    def trim(self) -> int:
        """Count more events, and delete those that are too old or too many, at most :data:`STEP`. Ends an audit.

        If the store refuses, the next audit tries again.

        :returns: how many events were deleted
        """
        try:
            newest = self._store.latest_events(self._host_uuid, NEWEST)
            now_ms = min((time.time_ns() // 1_000_000, *(one.event.at_ms for one in newest)))
            before_ms = now_ms - self._days * _MS_A_DAY if len(newest) == NEWEST else 0
            count, self._last = self._store.count_events(self._host_uuid, self._last, COUNTED)
            self._counted += count
            deleted = self._store.trim_events(self._host_uuid, before_ms, max(self._counted - self._kept, 0), STEP)
        except exception.StoreError as error:
            LOG.warning('The history of host %(host)s is not trimmed yet: %(error)s',
                        {'host': self._host, 'error': error})
            self._counted, self._last = 0, 0    # it is unknown how many are left
            return 0
        self._counted = max(self._counted - deleted, 0)
        if not self._counted:
            self._last = 0              # SQLite starts its numbers again when there are none
        return deleted


# A finding that stays is in the log again after so many audits: an hour, if a service audits once a minute.
AUDITS_PER_REMINDER: Final = 60

# The audit itself continues these. If the row is gone or has changed since, there is nothing to report.
_GOES_ON = (findings.RELEASE_PENDING, findings.ABANDONED, findings.STALE_MIGRATION, findings.UNKNOWN_OWNER)
_OF_NOBODY = (findings.UNKNOWN_OWNER, findings.ABANDONED)
_USED_BY_ANOTHER = (findings.WRONG_OWNER, findings.SHARED)
# The rows of these belong to instances without an allocation.
_OVER = (findings.ABANDONED, findings.STALE_MIGRATION)


class Audit:
    """Looks, and looks again if anything differs. It acts and reports only on differences that both looks show.

    :param beside: returns findings that other rooms know
    """

    def __init__(self, host: ThisHost, rows: Rows, views: HostViews, declarations: Declarations, unproven: Unproven,
                 resume: Resume, beside: Callable[[], list[Finding]]) -> None:
        self._host, self._ledger, self._rows, self._views = host, rows.ledger, rows, views
        self._declarations, self._unproven, self._withheld = declarations, unproven, unproven.withheld
        self._failed, self._resume, self._gate, self._wipes = resume.failed, resume, resume.gate, resume.wipes
        self._auditing = locks.Lock(locks.AUDITING, host.name)
        self._audited: Audited | None = None    # assigned as one value
        self._log, self._history, self._beside = FindingsLog(host.name), History(host), beside
        self._holdings = Holdings(host)
        self._since: dict[tuple[str, DeviceKey], int] = {}      # when this process first saw each finding
        # The rows that the service had forgotten by the last audit. In the first audit that sees one, the call that
        # made it may not be over.
        self._forgotten: frozenset[Record] = frozenset()

    # -- a start and an audit -----------------------------------------------------------------------------------------

    def start(self, anew: bool = False) -> list[Finding]:
        """Open the ledger of a host that starts, and continue the work that the last manager left.

        :param anew: an interrupt ended the last start in this process. What has come to differ from the options since
            is withheld, as by an audit
        :raises InvalidConfiguration: an option does not fit what the host has
        :raises HypervisorUnreachable, StoreError: no answer
        """
        return self._told(lambda: self._open(anew))

    def run(self, write_refusals: Callable[[], None], answer_waiting: Callable[[], bool]) -> list[Finding]:
        """Audit the host, and carry out the requests of commands.

        :param write_refusals: writes refused claims into the history
        :param answer_waiting: carries out the requests; returns whether there were any
        :raises HostTakenOver: another manager of this host has started; nothing was read
        :raises HypervisorUnreachable, StoreError: no answer; nothing was changed
        """
        def run() -> list[Finding]:
            self._host.store.check_epoch()
            with self._auditing.held():
                write_refusals()                # first: a hypervisor that is away may be the cause of some
                found = self._look()
                # The next audit sees their changes.
                if answer_waiting() and not self._ledger.is_discarded:
                    found = self._look()
                self._history.trim()
            return found

        found = self._told(run)
        if not self._ledger.is_discarded:
            self._unproven.go_on()
            self._wipes.go_on()
        return found

    def _told(self, audit: Callable[[], list[Finding]]) -> list[Finding]:
        """Run an audit, and tell the meter and the log of it."""
        began, metering, reasons = time.perf_counter(), self._host.metering, None
        try:
            found = audit()
        except exception.DeviceTrackError:
            metering.tell(Meter.audited, time.perf_counter() - began, None)
            raise
        took = time.perf_counter() - began
        if metering.meter is not None:          # else nobody needs it, and it reads every device
            with contextlib.suppress(exception.StartIsOver):
                reasons = self._ledger.now.reasons().values()
        self._audited = Audited.of(time.time(), found, reasons)
        if metering.meter is not None:
            metering.tell(Meter.audited, took, self.state())
        self._log.tell(found)
        return found

    def _open(self, anew: bool) -> list[Finding]:
        damaged = self._damaged()               # before any of them is written anew
        self._views.prepare()
        self._views.check_host()
        views = self._views.read()
        if not anew:
            self._check_options(views)
        if views.boot_changed:
            self._withheld.booted()
        self._rows.begin(views.records)
        self._views.open(views, self._withheld.marks)
        self._declarations.refresh(views.inventory, at_start=True)
        with public_calls.keeping_answers():
            self._judge(views)
            self._note(views)
            if self._gate.report_only is None and self._failed.undo_failed(wait=anew):
                views = self._views.read()
            went_on = self._resume.waits(views) and self._resume.go_on(views)
        if went_on:
            views = self._views.read()
        return self._dated(self._not_under_way(self._compare(views)) + damaged + self._without_provider())

    def _check_options(self, views: Views) -> None:
        for missing in withheld.mistakes(views, self._withheld.marks):
            raise exception.InvalidConfiguration(missing.option, missing.key.identifier,
                                                 f'{missing.reason}: {withheld.FIX_MISSING}')
        for overlap in views.inventory.overlaps:
            one, other = overlap.devices
            raise exception.InvalidConfiguration('device kinds', f'{one}, {other}', f'both are {overlap.what}, so one '
                                                 'device would have two owners: let only one option name it')

    def _look(self) -> list[Finding]:
        """Look, look again if anything differs, and do the work that both looks call for."""
        self._wipes.next_audit()
        self._ledger.end_earlier_wipes()
        damaged = self._damaged()
        self._failed.settle_doubts()
        if self._gate.report_only is None:
            self._failed.undo_failed()
        self._views.prepare()
        with self._views.reading() as before_look:
            looks = [self._views.read()]
            found, left = self._compare(looks[0]), unsettled.left_without_migration(looks[0])
            forgotten, defined = unsettled.forgotten(looks[0]), unsettled.left_defined(looks[0])
            if (found or left or forgotten or defined or self._ledger.now.withheld_for(vocabulary.FOREIGN)
                    or self._ledger.now.withheld_for(vocabulary.IN_DOUBT)):
                found = self._of_idle(found)
                looks.append(self._views.read())
                found = findings.confirmed(found, self._compare(looks[1]))
                left &= unsettled.left_without_migration(looks[1])
                forgotten &= unsettled.forgotten(looks[1])
                defined &= unsettled.left_defined(looks[1])
            views = looks[-1]
            self._views.take_over(looks, before_look)
        self._declarations.refresh(views.inventory)
        self._rows.follow(views.records)
        self._holdings.follow(views)
        before, self._forgotten = self._forgotten, forgotten
        with public_calls.keeping_answers():
            self._judge(views)
            self._withheld.try_again(views)
            self._note(views)
            went_on = self._resume.go_on(views, left, forgotten & before, defined)
        if went_on:
            found = self._still_there(found)
        found = self._not_over(found)
        return self._dated(self._not_under_way(found) + [_in_doubt(doubt) for doubt in self._rows.doubts]
                           + damaged + self._without_provider() + self._beside())

    def _compare(self, views: Views) -> list[Finding]:
        found = repairs.proposed(
            reconcile.compare(views, self._withheld.failures, withholding.retired(self._withheld.marks),
                              self._withheld.not_realized), views)
        # One look is enough: a missing proof costs only a wipe, or a person's look. Without this, an owner that never
        # used its device would give it back as clean, although another guest has written to it.
        used = {finding.device for finding in found if finding.kind in _USED_BY_ANOTHER}
        if used:
            self._unproven.disprove(used)
        # The service may not have saved the instance yet since its claim in this process.
        return [finding for finding in found if not (
            finding.kind in _OF_NOBODY and finding.service in (None, migrations.INSTANCE_FORGOTTEN)
            and (row := views.owners.get(finding.device)) is not None and row.state == vocabulary.CLAIMED
            and self._resume.is_own(row))]

    def _not_under_way(self, found: Sequence[Finding]) -> list[Finding]:
        """Leave out devices whose wipe here goes well, and add the news about the others."""
        told = []
        for finding in found:
            if finding.kind == findings.RELEASE_PENDING:
                if finding.severity == vocabulary.NOTE and self._wipes.is_well_under_way(finding.device):
                    continue
                news = self._wipes.news_of(finding.device)
                finding = finding._replace(detail=f'{finding.detail}; {news}') if news else finding
            told.append(finding)
        return told

    def _without_provider(self) -> list[Finding]:
        return [Finding(findings.NO_PROVIDER, vocabulary.WARNING, findings.NO_DEVICE, None, (), 0,
                        f'{name or "the node"}: the compute service has not created the provider that counts its '
                        'devices', 'every free device of this provider',
                        'none: the next audit asks the compute service again')
                for name in sorted(self._views.providers.missing)]

    def _damaged(self) -> list[Finding]:
        return [Finding(findings.ROW_DAMAGED, vocabulary.WARNING, findings.NO_DEVICE, None, (), 0,
                        f'{row.table}: the row {row.key} has a value of a wrong type in {row.columns}', 'nothing',
                        'look at the disk. Repair the row by hand or restore the store, with the service stopped, '
                        'unless the service has written it anew by the next audit') for row in self._rows.damaged()]

    def _note(self, views: Views) -> None:
        """Prove the withheld devices that can be proven at once, and record the rest in the store."""
        used = {*self._ledger.now.withheld_for(vocabulary.FOREIGN), *containment.in_strangers(views)}
        if used:
            self._unproven.disprove(used)
        self._unproven.look()
        self._withheld.note(views, self._unproven.details())

    def _of_idle(self, found: Sequence[Finding]) -> list[Finding]:
        """Leave out findings about devices that an operation of this process works on.

        Call it between the looks: an operation that spans both looks is under way then.
        """
        busy = set()
        for owner in {finding.recorded_owner for finding in found if finding.recorded_owner is not None}:
            with self._rows.if_idle(owner) as idle:
                if not idle:
                    busy.add(owner)
        return [finding for finding in found if finding.recorded_owner not in busy]

    def _still_there(self, found: Sequence[Finding]) -> list[Finding]:
        now = {record.key: record.generation for record in self._rows.all()}
        return [finding for finding in found
                if finding.kind not in _GOES_ON or now.get(finding.device) == finding.generation]

    def _not_over(self, found: Sequence[Finding]) -> list[Finding]:
        """Leave out what claims may try again since this audit."""
        held_back = {(target.kind, target.name) for target in self._withheld.not_realized}
        return [finding for finding in found if finding.kind != findings.NOT_REALIZED or finding.device in held_back]

    def _judge(self, views: Views) -> None:
        """Check whether the store is older than the guests. If so, the host claims nothing and gives nothing back."""
        found = gates.behind(views)
        # Nobody asks the service as long as each guest has its rows.
        self._gate.judge(found if found is None else gates.behind(views, self._resume.evacuated(views)))

    def _dated(self, found: Iterable[Finding]) -> list[Finding]:
        """Add to each finding the time since which this process has seen it in every audit."""
        now = int(time.time())
        dated = [finding if finding.since is not None else finding._replace(
            since=self._since.get((finding.kind, finding.device), now)) for finding in found]
        self._since = {(finding.kind, finding.device): finding.since or now for finding in dated}
        return dated

    # -- questions ----------------------------------------------------------------------------------------------------

    def state(self) -> HostState:
        """The host in numbers, only from memory. Quick."""
        try:
            pools = self._ledger.now.pool_states()
        except exception.StartIsOver:
            pools = None
        seen = self._views.providers
        return HostState(self._host.name, pools, self._audited, self._gate.is_open, len(self._rows.doubts),
                         self._wipes.counted(), self._host.uuid, self._host.state_path, seen.complete, seen.classes,
                         seen.aliases, self._declarations.deployment_rules)

    def providers(self) -> list[Provider]:
        """The resource providers of the host."""
        # The scheduler counts no device for a claim whose caller was told that it failed, nor for an instance that no
        # longer has an allocation, by the last audit.
        undone = {record.key for doubt in self._rows.doubts if doubt.undo for record in doubt.changes.insert}
        over, now = undone | {device for kind, device in self._since if kind in _OVER}, self._ledger.now
        unclaimed = [device for key in over if (device := now.device(key)) is not None]
        return for_scheduler(self._views.providers.present, self._host.here.node,
                             counts(now.pool_states(), unclaimed, self._gate.report_only is not None),
                             list(self._declarations.known.values()))


def _in_doubt(doubt: Doubt) -> Finding:
    keys = doubt.changes.keys
    names = ', '.join(f'{key}' for key in keys)
    return Finding(findings.IN_DOUBT, vocabulary.WARNING, keys[0] if keys else findings.NO_DEVICE,
                   doubt.instance_uuid, (), 0, f'nobody knows yet whether the commit for {names} happened',
                   'the devices of the commit', 'none: the next audit asks the store again')


class FindingsLog:
    """Writes a finding to the log when it appears, changes or ends, and now and then while it stays."""

    def __init__(self, host: str) -> None:
        self._host = host
        # How many audits had the finding, by its kind, its device and its words.
        self._audits: dict[tuple[Any, ...], int] = {}

    def tell(self, found: Iterable[Finding]) -> None:
        """Write the findings of an audit."""
        now = [(finding.kind, finding.device, finding.severity, str(finding), str(finding.held), str(finding.proposal))
               for finding in found]
        before, self._audits = self._audits, {}
        over: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}         # by the kind and the device
        for one in (one for one in before if one not in now):
            over.setdefault(one[:2], []).append(one)
        for one in dict.fromkeys(now):
            audits = self._audits[one] = before.get(one, 0) + 1
            if audits % AUDITS_PER_REMINDER != 1:
                continue
            # It says both, so it is true as well if one finding is over and another one has come.
            was = over[one[:2]].pop() if audits == 1 and over.get(one[:2]) else None
            severity, words, held, proposal = one[2:]
            log = LOG.info if severity == vocabulary.NOTE else LOG.warning
            log('Host %(host)s: %(severity)s: %(finding)s; held: %(held)s; proposed: %(proposal)s%(was)s', {
                'host': self._host, 'severity': severity, 'finding': words, 'held': held, 'proposal': proposal,
                'was': '' if was is None else f'; changed, it was {was[2]}: {was[3]}'})
        for gone in itertools.chain.from_iterable(over.values()):
            LOG.info('Host %(host)s: over: %(severity)s: %(finding)s', {
                'host': self._host, 'severity': gone[2], 'finding': gone[3]})
