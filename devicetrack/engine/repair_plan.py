"""Plans the repairs that lose no data and take no device from a guest.

Pure: the caller shows the plan and carries it out. All other findings wait for a person.

``write again`` writes a row that the manager knows and the store does not show any more, over an older row of the
    device, whoever has that. In the same transaction the older rows of its instance that the manager had ended begin
    to go back, and the migration context becomes the known one.
``adopt`` writes the row of a device that a guest of ours uses, from the record in the guest's definition. The device
    has no row, or an older one for an owner whose domain does not name it. If the guest left other devices, and its
    definition records them beside its own, their rows are written too.
``update details`` writes the details that the host shows into the row of a device. The owner stays.
``retry release`` goes on with the release of a device that no domain names.
``give back`` begins a release, for an instance without a domain that the compute service reports as deleted or
    offloaded, or as living elsewhere though no migration took it there, or of which it has no record.

Whoever gives a device back asks the hypervisor once more, under the device's lock, and wipes nothing that a domain
names: a plan is as old as its views.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.engine import guest_records
from devicetrack.engine import lifecycle
from devicetrack.engine import reconcile
from devicetrack.engine.findings import Finding
from devicetrack.engine.views import used
from devicetrack.engine.views import Views
from devicetrack.objects import details
from devicetrack.objects import identity
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import RecordedDevice

# In the order of a plan: the repairs that protect devices come before those that free any.
VERBS: Final = (findings.WRITE_AGAIN, findings.ADOPT, findings.UPDATE_DETAILS, findings.RETRY_RELEASE,
                findings.GIVE_BACK)


class Repair(NamedTuple):
    """One row to write, to change or to end. ``before`` is None for a new row, ``after`` for a row that ends.

    An adopted row has 0 for ``created_at``: the writer knows the time.
    """

    verb: str
    device: DeviceKey
    instance_uuid: str
    before: Record | None
    after: Record | None
    reason: str

    def __str__(self) -> str:
        return (f'{self.verb} {_quoted(self.device.kind)}/{_quoted(self.device.identifier)} of instance '
                f'{_quoted(self.instance_uuid)}: {_change(self.before, self.after)} ({self.reason})')


def plan(reported: Collection[Finding], views: Views) -> list[Repair]:
    """Plan the repairs of findings, by the current views.

    :param views: as fresh as possible; a finding that they do not show with the same row is left out
    :returns: each device once, always in the same order
    """
    todo = [finding for finding in findings.confirmed(reported, reconcile.compare(views))
            if finding.repair is not None]
    if not todo:
        return []
    makers = {findings.WRITE_AGAIN: _lost, findings.ADOPT: _adoptions, findings.UPDATE_DETAILS: _updates,
              findings.RETRY_RELEASE: _releases, findings.GIVE_BACK: _releases}
    found: list[Repair] = []
    for verb in VERBS:
        wanted = [finding for finding in todo if finding.repair == verb]
        if wanted:
            found += makers[verb](wanted, views)
    return sorted(found, key=lambda repair: (VERBS.index(repair.verb), repair.device))


# -- rows that the manager knows --------------------------------------------------------------------------------------


def _lost(found: Iterable[Finding], views: Views) -> Iterable[Repair]:
    # A finding that only one look shows must not change the other rows of its instance.
    devices = {finding.device for finding in found}
    instances = {one.instance_uuid for one in views.lost if one.row.key in devices}
    for one in views.lost:
        before, row = one.shown, one.row
        if row.instance_uuid not in instances or (one.known is not None and row.key not in devices):
            continue
        if one.known is None:
            reason = 'the manager had ended this row, and the store shows it again'
            row = row._replace(state=lifecycle.next_state(row.state, lifecycle.RELEASE))
        else:
            reason = 'the store had confirmed this row, and does not show it any more'
        if before is not None:
            row = row._replace(generation=max(row.generation, before.generation + 1),
                               was_realized=row.was_realized or before.was_realized)
        yield Repair(findings.WRITE_AGAIN, row.key, row.instance_uuid, before, row, reason)


# -- adopting ---------------------------------------------------------------------------------------------------------


def _adoptions(found: Iterable[Finding], views: Views) -> Iterable[Repair]:
    recorded = guest_records.by_guests(views)
    guests = []
    for finding in found:
        uuid = finding.users[0]
        device = guest_records.own_record(recorded, finding.device, uuid)
        if device is not None:
            guests.append(uuid)
            before = views.owners.get(finding.device)
            after = _row(device, uuid, views)
            if before is not None:
                after = after._replace(generation=before.generation + 1)
            yield Repair(findings.ADOPT, finding.device, uuid, before, after,
                         'its guest names it, records it as its own, and '
                         + ('no row does' if before is None else 'its row is of a time before that'))
    if guests:
        yield from _left_behind(set(guests), recorded, views)


def _left_behind(guests: Collection[str], recorded: guest_records.ByGuests, views: Views) -> Iterable[Repair]:
    """Adopt devices that these guests left for others. They wait for the end of a migration; their rows were lost."""
    # The definition does not name these devices, so its record may be old. Anything that contradicts it counts more.
    taken = views.owners.keys() | used(views.usage) | {one.row.key for one in views.lost}
    for key, claims in recorded.items():
        guest, device = claims[0]
        there = views.devices.get(device.key)
        if (len(claims) == 1 and device.beside and device.role == vocabulary.OLD and guest.instance_uuid in guests
                and key not in taken and there is not None and guest_records.is_whole(device)
                and device.kind in views.inventory.known_kinds
                and identity.same_device(device.details, there.details)):
            yield Repair(findings.ADOPT, there.key, guest.instance_uuid, None, _row(device, guest.instance_uuid, views),
                         'a guest without its rows records that it left it and may come back to it')


def _row(device: RecordedDevice, instance_uuid: str, views: Views) -> Record:
    # The audit finds out whether an arriving guest has arrived. Then its row becomes active.
    state = vocabulary.CLAIMED if device.role == vocabulary.INCOMING else vocabulary.ACTIVE
    return device.row(views.host_uuid, instance_uuid, device.role, state)


# -- existing rows ----------------------------------------------------------------------------------------------------


def _updates(found: Iterable[Finding], views: Views) -> Iterable[Repair]:
    for finding in found:
        before = views.owners[finding.device]
        after = before.changed(details=_merged(before.details, views.devices[finding.device].details))
        yield Repair(findings.UPDATE_DETAILS, finding.device, before.instance_uuid, before, after, finding.detail)


def _merged(recorded: str, found: str) -> str:
    """The host's details, with the fields that only the row knows, and those that the host does not tell now."""
    ours, merged = details.from_text(recorded), details.from_text(found)
    compared = identity.compare(recorded, found)
    for name in (*merged.OF_THE_ROW, *(() if compared is None else (*compared.untold, *compared.blank))):
        setattr(merged, name, getattr(ours, name))
    return details.to_text(merged)


def _releases(found: Iterable[Finding], views: Views) -> Iterable[Repair]:
    for finding in found:
        before = views.owners[finding.device]
        yield Repair(str(finding.repair), finding.device, before.instance_uuid, before, None,
                     f'{finding.detail}, and no domain names it')


# -- for people -------------------------------------------------------------------------------------------------------

_SHOWN: Final = ('instance_uuid', 'state', 'role', 'migration_uuid', 'position', 'claim_id', 'generation',
                 'provider_uuid', 'resource_class', 'parent', 'numa_node', 'details', 'was_realized')


def _change(before: Record | None, after: Record | None) -> str:
    """Two rows on one line. If both exist, only their differences."""
    names = _SHOWN if before is None or after is None else [
        name for name in _SHOWN if getattr(before, name) != getattr(after, name)]
    return f'before: {_facts(before, names)}; after: {_facts(after, names)}'


def _facts(record: Record | None, names: Iterable[str]) -> str:
    if record is None:
        return 'no row'
    return ' '.join(f'{name}={_quoted(getattr(record, name))}' for name in names)


def _quoted(value: object) -> str:
    """A value as text, quoted if it could be read as several values or lines."""
    text = '-' if value is None else str(value)
    return text if text.isprintable() and ' ' not in text and text else repr(text)
