"""The withheld devices and parents of a host, and why. The store keeps them; they are in force before the first claim.

If an operator withholds something, the ledger withholds it before the store records it. If an operator takes that back,
the store records it before the ledger frees the device. So a crash between the two steps hands nothing out. The
manager's memory decides, and the store follows. Reports and commands read the store, and need no manager.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import time
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import arguments
from devicetrack.claims import locks
from devicetrack.claims import public_calls
from devicetrack.claims.host import ThisHost
from devicetrack.claims.rows import Rows
from devicetrack.engine import selection
from devicetrack.engine import withholding
from devicetrack.engine.exclusion import BEING_WIPED
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Cause
from devicetrack.engine.withholding import Causes
from devicetrack.engine.withholding import Ended
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects import event as events
from devicetrack.objects.details import serial_of
from devicetrack.objects.event import Event
from devicetrack.objects.event import Wiped
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Record
from devicetrack.store.api import Host
from devicetrack.store.api import Store
from devicetrack.store.api import WithheldRow
from devicetrack.virt.driver import obstacle
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)


RETIRED_FROM: Final = 'instance {} had it last'
FORGOTTEN: Final = 'forgotten while instance {} had it: nothing proves that it is clean'

FIX_MISSING: Final = 'take it out of the option, or bring it back'

# A wipe may run on a device that is withheld for one of these.
_WIPED: Final = frozenset((vocabulary.UNPROVEN, vocabulary.RETIRED, vocabulary.NOT_GIVEN_BACK))


class Withheld(NamedTuple):
    """A device or a parent, why it is withheld, and the rows of the instances that still have it or a part of it.

    ``causes`` are its own reasons. ``parent`` is the parent of the device if the parent is cordoned, else None.
    ``warning`` says what somebody must do now, '' if nothing. ``changed`` is False if the call changed nothing: the
    target to uncordon was not cordoned, or the device to retire was retired already.
    """

    target: Target
    causes: Causes
    left: tuple[Record, ...]
    parent: str | None = None
    warning: str = ''
    changed: bool = True

    def __str__(self) -> str:
        causes = [reason + (f' ({self.causes[reason].text})' if self.causes[reason].text else '')
                  for reason in withholding.in_order(self.causes)]
        if self.parent is not None:
            causes.append(f'its parent {self.parent} is cordoned')
        left = f'instances keep {len(self.left)} of its devices' if self.left else ''
        if self.target.scope != vocabulary.HOST:
            left = ', '.join(f'instance {record.instance_uuid} has {record.identifier}, {record.state}'
                             for record in self.left)
        return (f'{self.target} is {"withheld: " + ", ".join(causes) if causes else "not withheld"}'
                + (f'; {left}' if left else '') + (f'; {self.warning}' if self.warning else ''))


Stored = dict[Target, tuple[Causes, int]]


def by_target(rows: Iterable[WithheldRow]) -> Stored:
    return {Target(row.kind, row.scope, row.name): (withholding.from_json(row.reasons, row.scope), row.generation)
            for row in rows}


def marks_of(stored: Stored) -> Marks:
    return {target: causes for target, (causes, _generation) in stored.items()}


def load(store: Store, host_uuid: str) -> Marks:
    """Read the reasons to withhold devices of a host. One query."""
    return marks_of(by_target(store.withheld(host_uuid)))


def mistakes(views: Views, marks: Marks) -> list[Missing]:
    """Devices that an option names, the host lacks and nobody ever knew. No manager starts with them.

    A device with an owner went away; that is a finding, and the rest of the host works. A device that was cordoned or
    forgotten may be away for repair.
    """
    return [missing for missing in views.inventory.missing
            if missing.key not in views.owners and Target.of(missing.key) not in marks]


def forget(store: Store, host_uuid: str, key: DeviceKey, instance_uuid: str) -> None:
    """Note that a device of a host without a manager was forgotten."""
    target = Target.of(key)
    causes, generation = by_target(store.withheld(host_uuid)).get(target, ({}, 0))
    cause = Cause(int(time.time()), FORGOTTEN.format(instance_uuid), vocabulary.BY_OPERATOR)
    after = {**causes, vocabulary.IN_DOUBT: cause}
    found = withholding.events_of(host_uuid, {target: causes}, {target: after}, now_ms())
    store.set_withheld([WithheldRow(host_uuid, *target, withholding.to_json(after), generation + 1, cause.since)],
                       events=with_owners(found, {row.key: row for row in store.records_of_devices(host_uuid, [key])}))


def carry_over(store: Store, host: Host) -> None:
    """Withhold at a host what is withheld at earlier hosts of its machine: the machine has another name now.

    The earlier hosts keep none of it. They have no rows. If a manager of one of them still runs, it goes on without the
    devices until its next start. Every start calls this, since the one before may have ended here.

    :raises StoreError: of one earlier host nothing was carried over, or that is unknown
    """
    for earlier in store.hosts():
        if earlier.machine_id == host.machine_id and earlier.uuid != host.uuid:
            rows = store.withheld(earlier.uuid)
            if rows:
                _carry_over(store, earlier, host, rows)


def _carry_over(store: Store, earlier: Host, host: Host, rows: Sequence[WithheldRow]) -> None:
    there = by_target(store.withheld(host.uuid))
    carried = []
    for target, (causes, _generation) in by_target(rows).items():
        known, generation = there.get(target, ({}, 0))
        if target.scope == vocabulary.HOST:
            target = Target.host(host.name)
        carried.append(WithheldRow(host.uuid, *target, withholding.to_json({**causes, **known}), generation + 1,
                                   int(time.time())))
    store.set_withheld(carried, rows)
    LOG.warning('The machine of host %(host)s was host %(earlier)s before; what was withheld there is withheld here '
                'now: %(targets)s', {'host': host.name, 'earlier': earlier.name,
                                     'targets': ', '.join(str(Target(row.kind, row.scope, row.name)) for row in rows)})


def why_unknown(target: Target, parents: Collection[tuple[str, str]],
                devices: Collection[tuple[str, str]]) -> str | None:
    """Say why a host does not know a device or a parent, and which it has; None if it knows it.

    :param parents: the parents of the host, by kind and name
    :param devices: the devices of the host, by kind and identifier
    """
    known = parents if target.scope == vocabulary.PARENT else devices
    if (target.kind, target.name) in known:
        return None
    if target.scope == vocabulary.DEVICE and (target.kind, target.name) in parents:
        return 'it is a parent of devices: add --parent'
    names = sorted(name for kind, name in known if kind == target.kind)
    near = exception.close_to(target.name, names, f'{target.kind}/') if names else exception.close_to(
        f'{target.kind}/{target.name}', (f'{kind}/{name}' for kind, name in known))
    if near and names:
        return f'this host has no such {target.scope}; close to it: {near}'
    if names:
        return f'this host has no such {target.scope}; it has these {target.scope}s of this kind: {in_short(names)}'
    kinds = in_short(sorted({kind for kind, _name in known}))
    return (f'this host has no {target.scope} of this kind; {f"close to it: {near}; " if near else ""}it has '
            f'{target.scope}s of these kinds: {kinds}')


def left_at(target: Target, records: Iterable[Record]) -> tuple[Record, ...]:
    """The rows of the instances that have a device, or devices of a parent."""
    return tuple(record for record in records if target.has(record.kind, record.identifier, record.parent))


def listed(marks: Marks, reasons: Mapping[DeviceKey, frozenset[str]], excluded: Mapping[DeviceKey, str],
           records: Sequence[Record], views: Views | None = None) -> list[Withheld]:
    """List everything that is withheld.

    :param reasons: the reasons in a ledger: a reason that no audit has noted yet has no time, nor has one that comes
        from an option
    :param excluded: from the same ledger, by device, who has another device that excludes it
    :param views: they explain reasons that no audit has noted yet
    """
    details = {} if views is None else withholding.details_of(reasons, views)
    details.update(((key, vocabulary.EXCLUDED), why) for key, why in excluded.items())
    found: dict[Target, dict[str, Cause]] = {target: dict(causes) for target, causes in marks.items()}
    for key, of_device in reasons.items():
        # A cordoned device has a mark itself, or its parent has one.
        for reason in of_device.intersection(vocabulary.WITHHELD_REASONS) - {vocabulary.CORDONED}:
            found.setdefault(Target.of(key), {}).setdefault(reason, Cause(
                0, details.get((key, reason), ''), withholding.SEEN.get(reason, vocabulary.BY_HOST)))
    return [Withheld(target, causes, left_at(target, records)) for target, causes in sorted(found.items()) if causes]


def may_be_wiped(causes: Causes) -> bool:
    """Whether a wipe may run on a device that is withheld for these reasons."""
    return not _WIPED.isdisjoint(causes)


def with_progress(found: Sequence[Withheld], driver: VirtDriver) -> list[Withheld]:
    """Add the progress of running wipes to withheld devices."""
    keys = {one.target: DeviceKey(one.target.kind, one.target.name) for one in found
            if may_be_wiped(one.causes)}
    progress = driver.wiping(keys.values()) if keys else {}

    def told(one: Withheld) -> Withheld:
        said = progress.get(keys[one.target]) if one.target in keys else None
        return one if said is None else one._replace(causes={
            reason: cause._replace(detail=f'{cause.detail}; now {said}' if cause.detail else str(said))
            if reason in _WIPED else cause for reason, cause in one.causes.items()})

    return [told(one) for one in found]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def with_owners(found: Iterable[Event], owners: Mapping[DeviceKey, Record]) -> list[Event]:
    """Add to events the instances that have these devices, with their claims and moves."""
    return [event if (row := owners.get(DeviceKey(event.kind, event.identifier))) is None or 'scope' in event.more else
            event._replace(instance_uuid=row.instance_uuid, migration_uuid=row.migration_uuid, claim_id=row.claim_id)
            for event in found]


def in_short(names: Sequence[str]) -> str:
    return exception.in_short(names) or 'none'


# An operator who knows that a device is clean ends these.
_ADMITTED: Final = (vocabulary.IN_DOUBT, vocabulary.RETIRED)
# The largest number of audits before something that failed is tried again.
_RAREST: Final = 64


class _Failed(NamedTuple):
    """What could not be made ready ``tries`` times.

    ``due`` is the audit that lets claims try it again, and ``reported`` what the host has reported about it since.
    """

    tries: int
    due: int
    reported: object = None


class WithheldDevices:
    """The withheld devices and parents of a started host, in memory and in the store."""

    def __init__(self, host: ThisHost, rows: Rows) -> None:
        self._host, self._host_uuid, self._store, self._driver = host.name, host.uuid, host.store, host.driver
        self._ledger, self._rows = rows.ledger, rows
        self._marking = locks.Lock(locks.MARKING)        # held while the marks change
        self._stored: Stored | None = by_target(host.store.withheld(host.uuid))         # None while unknown
        self.marks: Marks = marks_of(self._stored)
        self._untold: list[Event] = []          # what the store may not have yet
        self._audits = 0
        # What failed since it was last made ready, also while claims try it again.
        self._failed = {target: _Failed(cause.tries, pause(cause.tries))
                        for target, cause in self.not_realized.items()}

    # -- after an audit -----------------------------------------------------------------------------------------------

    def note(self, views: Views, unproven: Mapping[DeviceKey, str]) -> None:
        """Update the store with the ledger's reasons after a look. If nothing differs, it writes nothing.

        If the store refuses, the next audit tries again; the devices stay withheld meanwhile.

        :param unproven: the reason why each unproven device is not proven clean
        """
        with self._marking.held():
            reasons: Mapping[DeviceKey, frozenset[str]] = self._ledger.now.reasons()
            if not reasons and not self.marks and self._stored == {} and not self._untold:
                return
            reasons = self._with_failures(reasons, views)
            keys = [DeviceKey(target.kind, target.name) for target in self.marks]
            known = {key for key in keys if key in reasons or key.kind in views.inventory.known_kinds
                     or self._ledger.now.device(key) is not None}
            self.marks = withholding.after_audit(
                self.marks, reasons, known, withholding.details_of(reasons, views, unproven), int(time.time()))
            self._write_if_possible(self.marks)

    def _with_failures(self, reasons: Mapping[DeviceKey, frozenset[str]],
                       views: Views) -> Mapping[DeviceKey, frozenset[str]]:
        """Add the devices that could not be given back, while their rows say that they are being released."""
        failing = [key for key in self.failures
                   if (row := views.owners.get(key)) is not None and row.state == vocabulary.RELEASING]
        return {**reasons, **{key: reasons.get(key, withholding.NO_REASON) | {vocabulary.NOT_GIVEN_BACK}
                              for key in failing}} if failing else reasons

    def _write(self, marks: Marks, ended: Mapping[tuple[Target, str], Ended] | None = None) -> None:
        """Store these marks, with the events of the differences. The caller holds the marking lock.

        :param ended: as :func:`.withholding.events_of`
        :raises StoreError: no answer; if the outcome is unknown, the next write first reads the store
        """
        if self._stored is None:
            stored_now = by_target(self._store.withheld(self._host_uuid))
            self._untold = [event for event in self._untold if not self._is_told(event)]
            self._stored = stored_now
        stored, now = self._stored, int(time.time())

        def row(target: Target, causes: Causes, generation: int) -> WithheldRow:
            return WithheldRow(self._host_uuid, *target, withholding.to_json(causes), generation, now)

        after = {target: stored[target] if target in stored and stored[target][0] == causes
                 else (causes, stored[target][1] + 1 if target in stored else 1) for target, causes in marks.items()}
        write = [row(target, *entry) for target, entry in after.items() if stored.get(target) != entry]
        delete = [row(target, *entry) for target, entry in stored.items() if target not in after]
        if write or delete or self._untold:
            found = withholding.events_of(self._host_uuid, marks_of(stored), marks, now_ms(),
                                          public_calls.present(), ended)
            keys = {DeviceKey(event.kind, event.identifier) for event in found}
            owners = self._rows.of_devices(keys) if keys else {}
            self._untold = self._with_serials(self._untold)
            try:
                self._store.set_withheld(write, delete, [*self._untold,
                                                         *self._with_serials(with_owners(found, owners))])
            except exception.NothingWritten:
                raise
            except exception.StoreError:
                self._stored = None
                raise
            self._stored, self._untold = after, []

    def _write_if_possible(self, marks: Marks, ended: Mapping[tuple[Target, str], Ended] | None = None) -> bool:
        """As :meth:`_write`, but only log an error of the store, and return False. The next audit tries again."""
        try:
            self._write(marks, ended)
        except exception.StoreError as error:
            LOG.warning('The withheld devices of host %(host)s are not stored yet: %(error)s',
                        {'host': self._host, 'error': error})
            return False
        return True

    def _with_serials(self, found: Iterable[Event]) -> list[Event]:
        """Add to events the serial numbers of the cards, as the ledger knows the devices."""
        try:
            now = self._ledger.now
        except exception.StartIsOver:
            return list(found)
        told = []
        for event in found:
            text, is_parent = '', 'scope' in event.more
            if is_parent:
                text = next((pool.details for pool in now.pool_states()
                             if (pool.kind, pool.parent) == (event.kind, event.identifier)), '')
            elif (device := now.device(event.device_key)) is not None:
                text = device.details
            told.append(event._replace(serial=event.serial or serial_of(text, is_parent)))
        return told

    def _is_told(self, event: Event) -> bool:
        """Whether the store has an event, after it did not answer."""
        return any(one.event == event for one in self._store.events_of_device(
            event.identifier, event.at_ms, event.at_ms + 1, self._host_uuid))

    # -- devices that could not be given back -------------------------------------------------------------------------

    @property
    def failures(self) -> Mapping[DeviceKey, Cause]:
        """The devices that could not be given back, with the first time and the last reason."""
        return withholding.failures(self.marks)

    def did_not_go_back(self, key: DeviceKey, why: str) -> None:
        """Note that a device could not be given back. The next audit stores it."""
        target = Target.of(key)
        with self._marking.held():
            causes = self.marks.get(target, {})
            before = causes.get(vocabulary.NOT_GIVEN_BACK, Cause(int(time.time()), '', vocabulary.BY_HOST))
            self.marks = {**self.marks, target: {**causes, vocabulary.NOT_GIVEN_BACK: before._replace(
                detail=why, tries=before.tries + 1)}}

    def went_back(self, keys: Iterable[DeviceKey], at_once: bool = False) -> None:
        """Forget why devices could not be given back, in the store at the next audit or ``at_once``.

        A store that refuses is asked again by the next audit.
        """
        if not self.marks:
            return                              # nearly always
        with self._marking.held():
            for target in map(Target.of, keys):
                if vocabulary.NOT_GIVEN_BACK in self.marks.get(target, {}):
                    self.marks = withholding.without(self.marks, target, vocabulary.NOT_GIVEN_BACK)
            if at_once:
                self._write_if_possible(self.marks)

    # -- devices that could not be made ready -------------------------------------------------------------------------

    @property
    def not_realized(self) -> Mapping[Target, Cause]:
        """The devices that could not be made ready for a guest, and the parents that could make none."""
        return withholding.not_realized(self.marks)

    def was_not_realized(self, target: Target, why: str, by_itself: bool = True) -> None:
        """Withhold a device that could not be made ready, or let a parent make no more, until claims may try again.

        If the store refuses, the next audit stores it.

        :param by_itself: False if somebody else uses it: then it has not failed, and claims try again after one audit
        """
        with self._marking.held():
            before = self.marks.get(target, {})
            tries = (self._failed[target].tries if target in self._failed else 0) + by_itself
            since = before[vocabulary.NOT_REALIZED].since if vocabulary.NOT_REALIZED in before else int(time.time())
            self.marks = {**self.marks, target: {**before, vocabulary.NOT_REALIZED: Cause(
                since, why, vocabulary.BY_HOST, tries)}}
            self._failed[target] = _Failed(tries, self._audits + pause(tries))
            self._ledger.stand(target, vocabulary.NOT_REALIZED, why)
            self._write_if_possible(self.marks)

    def was_realized(self, *targets: Target) -> None:
        """Forget why these could not be made ready: now they were. The next audit stores it."""
        if self._failed and not self._failed.keys().isdisjoint(targets):
            with self._marking.held():
                self._try_again(targets)
                for target in targets:
                    self._failed.pop(target, None)

    def try_again(self, views: Views) -> None:
        """Let claims try again what is due, and what the host reports in another way than before. Every audit calls it.

        Audits and not a clock decide when a try is due: more of them pass after each failure.
        """
        with self._marking.held():
            self._audits += 1
            due = []
            for target in self.not_realized:
                failed, report = self._failed.get(target, _Failed(0, 0)), withholding.report_of(target, views)
                if failed.reported is None:
                    self._failed[target] = failed = failed._replace(reported=report)
                is_news = report is not None and report != failed.reported
                if failed.due <= self._audits or is_news or report == withholding.AWAY:
                    due.append(target)
            self._try_again(due)

    def booted(self) -> None:
        """Let claims try everything again: the host has booted. The ledger is not open yet."""
        with self._marking.held():
            self._try_again(tuple(self.not_realized))

    def _try_again(self, targets: Iterable[Target]) -> None:
        for target in targets:
            if vocabulary.NOT_REALIZED in self.marks.get(target, {}):
                self.marks = withholding.without(self.marks, target, vocabulary.NOT_REALIZED)
            self._ledger.stand_down(target, vocabulary.NOT_REALIZED)

    # -- what operators ask for ---------------------------------------------------------------------------------------

    def check(self, target: Target, detail: str = '') -> None:
        """Check that :meth:`cordon` and :meth:`uncordon` can do what they are asked.

        :raises BadRequest: as these
        """
        _check_name(target)
        arguments.check_reason(detail)
        if vocabulary.CORDONED not in self.marks.get(target, {}):
            self._check_known(target)

    def cordon(self, target: Target, detail: str) -> Withheld:
        """Stop handing out a device, or all devices of a parent; their owners keep them. Idempotent.

        The answer has a warning if a wipe of a free device among them goes on.

        :param detail: the reason; '' keeps an earlier reason
        :raises BadRequest: this host has no such device or parent, or the reason is not one short, printable line
        :raises StoreError: it is not cordoned; after OutcomeUnknown it is, and the next audit stores it
        """
        with self._marking.held():
            self.check(target, detail)
            before = self.marks.get(target, {}).get(vocabulary.CORDONED)
            since, earlier = (before.since, before.detail) if before is not None else (int(time.time()), '')
            self._say(target, vocabulary.CORDONED, detail or earlier, since)
            LOG.info('Host %(host)s: %(target)s is cordoned: %(detail)s', {
                'host': self._host, 'target': target, 'detail': detail or earlier or 'no reason given'})
            wiped = [str(Target.of(device.key)) for device in self._ledger.now.states()
                     if BEING_WIPED in device.withheld and device.identifier is not None
                     and target.has(device.kind, device.identifier, device.parent)]
        # Whoever wipes a device first marks it in the ledger, and then looks for a cordon: no wipe begins unseen.
        return self.state_of(target)._replace(warning=(
            f'a wipe of {in_short(wiped)} began before, and goes on' if wiped else ''))

    def uncordon(self, target: Target) -> Withheld:
        """End a cordon. Idempotent.

        :raises BadRequest: it is not cordoned, and this host has no such device or parent
        :raises StoreError: it stays cordoned; after OutcomeUnknown too
        """
        with self._marking.held():
            self.check(target)
            cordoned = vocabulary.CORDONED in self.marks.get(target, {})
            if cordoned:
                self._end_standing(target, vocabulary.CORDONED)
                LOG.info('Host %(host)s: %(target)s is not cordoned any more',
                         {'host': self._host, 'target': target})
            else:
                self._ledger.stand_down(target, vocabulary.CORDONED)        # one that only the ledger has
            return self.state_of(target)._replace(warning=self._warning(target), changed=cordoned)

    def _warning(self, target: Target) -> str:
        """Warn if an option names a device that is away and no longer cordoned: no manager starts then."""
        if target.scope != vocabulary.HOST and vocabulary.CORDONED in self.marks.get(Target.host(self._host), {}):
            return 'the host is cordoned, so no claim gets it: host uncordon ends that'
        if target in self.marks:
            return ''
        for missing in self._missing(target):
            if not left_at(target, self._rows.all()):
                return (f'no manager starts while {missing.option} names it and this host does not have it: '
                        f'{FIX_MISSING}')
        return ''

    def _missing(self, target: Target) -> list[Missing]:
        """The options that name a missing device. For a device that is there, the hypervisor is not asked."""
        now = self._ledger.now
        if target.scope != vocabulary.DEVICE or now.device(DeviceKey(target.kind, target.name)) is not None:
            return []
        try:
            return [missing for missing in self._driver.get_inventory().missing if Target.of(missing.key) == target]
        except exception.DriverError:
            return []

    def admit(self, key: DeviceKey) -> Withheld:
        """Admit a device that was forgotten or retired: somebody knows that it is clean.

        A device of a row whose place is in doubt is where it was then: its instance has it again after the next audit.

        :raises BadRequest: nobody forgot or retired it, and its place is not in doubt
        :raises NotAdmitted: the host does not have it, somebody owns or uses it, or one of these is unknown
        :raises HypervisorUnreachable, StoreError: no answer; it stays withheld
        """
        target = Target.of(key)
        _check_name(target)
        with self._marking.held():
            standing = self._standing(target)
            if not standing and self._driver.call_in_place(key):
                self._untold.append(Event(self._host_uuid, *key, events.ADMITTED, now_ms(),
                                          request_id=public_calls.present(), details=events.text(
                                              reason=vocabulary.UNHEALTHY, why='', by=vocabulary.BY_OPERATOR)))
                LOG.info('Host %(host)s: an operator says that %(target)s is where it was', {
                    'host': self._host, 'target': target})
                return self.state_of(target)
            if not standing:
                known = self._ledger.now.device(key)
                if known is not None and vocabulary.UNPROVEN in known.withheld:
                    raise exception.BadRequest(
                        'device', str(target), 'it is unproven and was not forgotten, so it needs a proof that it is '
                        f'clean: {self._advice(key, self._driver.get_inventory())}')
                self._check_not_owned(key)
                forgotten = [str(other) for other in self.marks if self._standing(other)]
                why = 'it is cordoned: end that with device uncordon' if (
                    vocabulary.CORDONED in self.marks.get(target, {})) else 'it was neither forgotten nor retired'
                raise exception.BadRequest('device', str(target), f'{why}. Only forgotten or retired devices can be '
                                           f'admitted; those of this host: {in_short(forgotten)}')
            self._check_unused(key)
            self._end_standing(target, *standing)
            LOG.info('Host %(host)s: an operator admitted %(target)s', {'host': self._host, 'target': target})
        return self.state_of(target)

    @staticmethod
    def _advice(key: DeviceKey, inventory: Inventory) -> str:
        """Say how an operator has a device proven that stores data."""
        if key in inventory.by_person:
            return 'a person has to clean it. Then use --clean-by-my-word REASON to say so'
        return 'use --wipe to have it wiped, or --clean-by-my-word REASON if you know that it is clean'

    def check_for_proof(self, key: DeviceKey, how: str) -> None:
        """Check that a device may be wiped, or called clean, because an operator says so.

        :param how: as for :meth:`.VirtDriver.prove`
        :raises BadRequest: it was neither forgotten nor retired, and is not unproven; or it is to be wiped, and only a
            person can clean it
        :raises NotAdmitted: the host does not have it, somebody owns or uses it, or one of these is unknown
        :raises HypervisorUnreachable, StoreError: no answer
        """
        target = Target.of(key)
        _check_name(target)
        known = self._ledger.now.device(key)
        if not self._standing(target) and (known is None or vocabulary.UNPROVEN not in known.withheld):
            self._check_not_owned(key)
            if known is not None and known.state == selection.FREE and not known.withheld:
                raise exception.BadRequest('device', str(target), 'it is free: the next claim may take it')
            why = 'this host has no such device' if known is None else (
                'it was neither forgotten nor retired, and it is not unproven')
            unproven = [str(Target.of(one)) for one, reasons in self._ledger.now.reasons().items()
                        if vocabulary.UNPROVEN in reasons]
            raise exception.BadRequest(
                'device', str(target), f'{why}. Only forgotten, retired or unproven devices can be '
                f'{"wiped" if how == vocabulary.WIPE else "called clean"}; the unproven ones of this host: '
                f'{in_short(unproven)}')
        inventory = self._check_unused(key)
        if how == vocabulary.WIPE and key in inventory.by_person:
            raise exception.BadRequest('device', str(target), self._advice(key, inventory))
        if known is None:
            raise exception.NotAdmitted(str(target), 'it has just come back: try again after the next audit')

    def not_proven(self, key: DeviceKey, why: str) -> None:
        """Note why nothing proves an unproven device clean. If the store refuses, the next audit stores it."""
        with self._marking.held():
            target = Target.of(key)
            before = self.marks.get(target, {})
            cause = before.get(vocabulary.UNPROVEN) or Cause(int(time.time()), '', vocabulary.BY_HOST)
            if cause.detail != why and not cause.stands:
                self.marks = {**self.marks, target: {**before, vocabulary.UNPROVEN: cause._replace(detail=why)}}
                self._write_if_possible(self.marks)

    def proven(self, keys: Iterable[DeviceKey], proof: str, by: str = vocabulary.BY_HOST,
               wiped: Mapping[DeviceKey, Wiped] | None = None) -> None:
        """Note that devices were proven clean: they are no longer unproven, forgotten or retired.

        :param proof: how they were proven. With ``by``, who asked for the proof, and ``wiped``, it is for the history

        If the store refuses, the next audit tries again, and a forgotten device stays withheld.
        """
        with self._marking.held():
            over = {target: frozenset((vocabulary.UNPROVEN, *_ADMITTED)).intersection(self.marks[target])
                    for target in map(Target.of, keys) if target in self.marks}
            at_ms = now_ms()
            self._untold += [Event(self._host_uuid, *key, events.WIPED, at_ms, request_id=public_calls.present(),
                                   details=wipe.as_details())
                             for key, wipe in (wiped or {}).items()]
            # No audit need have noted that the device was unproven.
            self._untold += [Event(self._host_uuid, *key, events.ADMITTED, at_ms, request_id=public_calls.present(),
                                   details=events.text(reason=vocabulary.UNPROVEN, why='', by=by, proof=proof))
                             for key in keys if proof.startswith(vocabulary.WORD_OF) and not over.get(Target.of(key))]
            if not any(over.values()) and not self._untold:
                return
            after = {target: {reason: cause for reason, cause in causes.items() if reason not in over.get(target, ())}
                     for target, causes in self.marks.items()}
            after = {target: causes for target, causes in after.items() if causes}
            ended = {(target, reason): Ended(by, proof) for target, reasons in over.items() for reason in reasons}
            if not self._write_if_possible(after, ended):
                return
            self.marks = after
            for target, reasons in over.items():
                for reason in reasons.intersection(_ADMITTED):
                    self._ledger.stand_down(target, reason)

    def _standing(self, target: Target) -> list[str]:
        """The reasons of a target that :meth:`admit` ends."""
        causes = self.marks.get(target, {})
        return [reason for reason in _ADMITTED if reason in causes and causes[reason].stands]

    def _check_not_owned(self, key: DeviceKey) -> None:
        """:raises BadRequest: an instance has the device, so it is not withheld"""
        for record in self._rows.of_devices([key]).values():
            raise exception.BadRequest('device', str(Target.of(key)), (
                f'instance {record.instance_uuid} is giving it back: if that cannot be done, device retire ends it'
                if record.state == vocabulary.RELEASING else
                f'instance {record.instance_uuid} has it: it is free when the instance gives it back'))

    def _check_unused(self, key: DeviceKey) -> Inventory:
        """Check that the host has a device that an operator calls clean, and that nobody has or uses it.

        A device that comes back only later would have its old data.

        :returns: what the host has
        :raises NotAdmitted: it is not so, or that is unknown
        """
        def refuse(reason: str) -> None:
            raise exception.NotAdmitted(str(Target.of(key)), reason)

        used = obstacle(key, self._driver.get_usage(), None, 'remove it from the domain', 'fix that first')
        if used is not None:
            refuse(used.reason)
        excluded = self._ledger.now.why_excluded(key)
        if excluded is not None:
            refuse(f'{excluded}, and work on this device may affect that one')
        for record in self._rows.of_devices([key]).values():
            refuse(f'instance {record.instance_uuid} has it')
        inventory = self._driver.get_inventory()
        if all(device.key != key for device in inventory.devices):
            for unknown in inventory.unknown:
                refuse(f'{unknown.what} cannot be read ({unknown.reason}): fix that first')
            refuse('the host does not have it, or no option names it, so nobody can have cleaned it: admit it when it '
                   'is there and zeroed')
        return inventory

    def forget(self, key: DeviceKey, instance_uuid: str) -> None:
        """Withhold a device that leaves its owner without a proof that it is clean, in case it comes back.

        :raises StoreError: that is not noted
        """
        with self._marking.held():
            self._say(Target.of(key), vocabulary.IN_DOUBT, FORGOTTEN.format(instance_uuid), int(time.time()))

    def retire(self, key: DeviceKey, instance_uuid: str, reason: str) -> None:
        """Withhold a device that could not be taken back from its owner, until somebody admits it.

        :raises StoreError: that is not noted
        """
        with self._marking.held():
            failure = self.failures.get(key)
            why = reason or (failure.detail if failure is not None else '')
            self._say(Target.of(key), vocabulary.RETIRED,
                      RETIRED_FROM.format(instance_uuid) + (f': {why}' if why else ''), int(time.time()))

    def _say(self, target: Target, reason: str, detail: str, since: int) -> None:
        """Withhold a target until an operator takes that back. The caller holds the marking lock."""
        before = self.marks
        earlier = before.get(target, {}).get(reason)
        self._ledger.stand(target, reason)
        self.marks = {**before, target: {**before.get(target, {}),
                                         reason: Cause(since, detail, vocabulary.BY_OPERATOR)}}
        try:
            self._write(self.marks)
        except exception.NothingWritten:
            self.marks = before
            if earlier is None or not earlier.stands:
                self._ledger.stand_down(target, reason, stays=earlier is not None)
            raise

    def _end_standing(self, target: Target, *reasons: str) -> None:
        """End what :meth:`_say` began, all or nothing. The caller holds the marking lock."""
        after = self.marks
        for reason in reasons:
            after = withholding.without(after, target, reason)
        self._write(after, {(target, reason): Ended(vocabulary.BY_OPERATOR) for reason in reasons})
        self.marks = after
        for reason in reasons:
            self._ledger.stand_down(target, reason)

    def _check_known(self, target: Target) -> None:
        """:raises BadRequest: this host has no such device or parent, and no option names it."""
        if target == Target.host(self._host):
            return
        reason = why_unknown(target, self._ledger.now.parents(), [
            device.key for device in self._ledger.now.states() if device.identifier is not None])
        if reason is not None and not self._missing(target):
            raise exception.BadRequest(target.scope, str(target).removeprefix(f'{target.scope} '), reason)

    # -- questions ----------------------------------------------------------------------------------------------------

    def state_of(self, target: Target) -> Withheld:
        """The present state of one device or parent."""
        device = (self._ledger.now.device(DeviceKey(target.kind, target.name))
                  if target.scope == vocabulary.DEVICE else None)
        parent = device.parent if device is not None else None
        cordoned = parent is not None and vocabulary.CORDONED in self.marks.get(
            Target.named(target.kind, parent, parent=True), {})
        return Withheld(target, self.marks.get(target, {}), left_at(target, self._rows.all()),
                        parent if cordoned else None)

    def all(self) -> list[Withheld]:
        """List every withheld device and parent, the reasons, and the instances that still have such devices."""
        now = self._ledger.now
        return with_progress(listed(self.marks, now.reasons(), now.excluded(), self._rows.all()), self._driver)


def pause(tries: int) -> int:
    """The number of audits until something that failed so often is tried again."""
    return min(1 << min(tries, _RAREST), _RAREST)


def _check_name(target: Target) -> None:
    """:raises BadRequest: a part of it is not text that UTF-8 can write"""
    arguments.check_name('kind', target.kind)
    arguments.check_name('name', target.name)
