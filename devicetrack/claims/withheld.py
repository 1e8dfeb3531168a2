"""What is withheld at a host and why, from the store: this needs no manager.

A started manager has it in :mod:`.withheld_devices`.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import time
from typing import Final
from typing import NamedTuple

from devicetrack import log
from devicetrack import vocabulary
from devicetrack.engine import withholding
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Cause
from devicetrack.engine.withholding import Causes
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects.event import Event
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Missing
from devicetrack.objects.values import Record
from devicetrack.store.api import Host
from devicetrack.store.api import Store
from devicetrack.store.api import WithheldRow
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)

RETIRED_FROM: Final = 'instance {} had it last'
FORGOTTEN: Final = 'forgotten while instance {} had it: nothing proves that it is clean'

FIX_MISSING: Final = 'take it out of the option, or bring it back'

# A wipe may run on a device that is withheld for one of these.
_WIPED: Final = frozenset((vocabulary.UNPROVEN, vocabulary.RETIRED, vocabulary.NOT_GIVEN_BACK))

# An error lists at most this many devices or parents: enough to show the form of names.
_SHOWN: Final = 10


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
        carried.append(WithheldRow(host.uuid, *target, withholding.to_json({**causes, **known}), generation + 1,
                                   int(time.time())))
    store.set_withheld(carried, rows)
    LOG.warning('The machine of host %(host)s was host %(earlier)s before; what was withheld there is withheld here '
                'now: %(targets)s', {'host': host.name, 'earlier': earlier.name,
                                     'targets': ', '.join(str(Target(row.kind, row.scope, row.name)) for row in rows)})


def why_unknown(target: Target, parents: Collection[tuple[str, str]],
                devices: Collection[tuple[str, str | None]]) -> str | None:
    """Say why a host does not know a device or a parent, and which it has; None if it knows it.

    :param parents: the parents of the host, by kind and name
    :param devices: the devices of the host, by kind and identifier
    """
    known: Collection[tuple[str, str | None]] = parents if target.scope == vocabulary.PARENT else devices
    if (target.kind, target.name) in known:
        return None
    if target.scope == vocabulary.DEVICE and (target.kind, target.name) in parents:
        return 'it is a parent of devices: add --parent'
    names = sorted(str(name) for kind, name in known if kind == target.kind)
    if names:
        return f'this host has these {target.scope}s of this kind: {in_short(names)}'
    return (f'this host has no {target.scope} of this kind; it has some of kind '
            f'{in_short(sorted({kind for kind, _name in known}))}')


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
    shown = ', '.join(names[:_SHOWN]) or 'none'
    return f'{shown} and {len(names) - _SHOWN} more' if len(names) > _SHOWN else shown
