"""Makes the first snapshot of a host from its views and from operators' reasons, and adjusts it to what audits see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from devicetrack import vocabulary
from devicetrack.engine import intake
from devicetrack.engine import ledger
from devicetrack.engine import withholding
from devicetrack.engine.snapshot import Claimed
from devicetrack.engine.snapshot import Snapshot
from devicetrack.engine.views import by_instance
from devicetrack.engine.views import foreign
from devicetrack.engine.views import kinds_with_unread_names
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.objects.compact import Compact
from devicetrack.objects.compact import Key
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record

_OF_THE_INVENTORY: Final = (vocabulary.UNHEALTHY, vocabulary.UNPROVEN)


def first_snapshot(policy: str, resolve: intake.Resolve, views: Views, marks: Marks) -> Snapshot:
    """Make the snapshot of a host from one look at it.

    :param policy: ``pack`` or ``spread``
    :param marks: the reasons for withholding, from the store
    """
    now, inventory = Snapshot(policy, 1), views.inventory
    for target, causes in marks.items():
        for reason, cause in causes.items():
            if cause.stands or reason in withholding.KEPT:
                now = ledger.stand(now, target, reason, cause.detail)
    owners: dict[Key, Claimed] = {}
    for rows in by_instance(views.records):
        owner = Claimed(rows[0].instance_uuid, now.number + len(owners), True)
        owners.update(dict.fromkeys(((row.kind, row.identifier) for row in rows), owner))
    now = now._replace(number=now.number + len(owners))
    now = intake.read_inventory(now, inventory, resolve, recorded=owners)
    now = intake.read_containment(now, views.containment)
    gone = views.owners.keys() - views.devices.keys()
    counted = _provider_uuids_of_parents(inventory, resolve) if gone else {}
    # A row names the provider that its claim knew. A device counts where its parent counts now.
    now = ledger.hold_all(now, (rows if not gone else [
        row._replace(provider_uuid=counted.get((row.kind, row.parent), row.provider_uuid))
        if (row.kind, row.identifier) in gone else row for row in rows] for rows in by_instance(views.records)))
    recorded = Compact(Record, views.records)
    if vocabulary.RELEASING in recorded.column('state'):
        now = ledger.releasing(now, (DeviceKey(kind, identifier) for kind, identifier, state in recorded.columns(
            'kind', 'identifier', 'state') if state == vocabulary.RELEASING))
    return withhold_by_sight(_resume(now, views, marks), (views,))


def _provider_uuids_of_parents(inventory: Inventory,
                               resolve: intake.Resolve) -> dict[tuple[str, str | None], str]:
    parents = set(Compact(InventoryDevice, inventory.devices).columns('kind', 'parent', 'provider'))
    return {**{(kind, parent): resolve(provider) for kind, parent, provider in parents},
            **{(capacity.kind, capacity.parent): resolve(capacity.provider)
               for capacity in inventory.capacities}}


def _resume(now: Snapshot, views: Views, marks: Marks) -> Snapshot:
    """Withhold what the last audits withheld, until a look shows otherwise.

    Where the inventory could be read, it reports the unhealthy and the unproven devices itself.
    """
    for target, causes in marks.items():
        key = DeviceKey(target.kind, target.name)
        for reason, cause in causes.items():
            if (cause.stands or target.scope != vocabulary.DEVICE or reason in withholding.KEPT
                    or reason == vocabulary.NOT_GIVEN_BACK):
                continue
            if reason not in _OF_THE_INVENTORY:
                now = ledger.withhold_free(now, (key,), reason)
            elif key.kind not in views.inventory.known_kinds:
                now = ledger.withhold(now, key, reason)
    return now


def withhold_by_sight(now: Snapshot, looks: Sequence[Views]) -> Snapshot:
    """Withhold free devices that a domain names without a row, or whose users are unknown; admit the others.

    Do this in the same step as reading an inventory with new devices. A device is withheld when every look with a
    known usage shows it in use. It is admitted when every look has a known usage and none shows it. While a row's
    identifier is no text, no free device of its kind is admitted: the row may be of this one.
    """
    unread = kinds_with_unread_names(looks[-1].records)
    seen = [(foreign(look), bool(look.usage.unknown)) for look in looks]
    suspected = {key for named, _ in seen for key in named}
    confirmed = {key for key in suspected if all(key in named or unknown for named, unknown in seen)}
    if not any(unknown for _, unknown in seen):
        now = ledger.admit(now, [key for key in now.withheld_for(vocabulary.FOREIGN) if key not in suspected],
                           vocabulary.FOREIGN)
        doubtful = now.withheld_for(vocabulary.IN_DOUBT)
        # The owner of a device is certain once the ledger holds the device for the owner in its row.
        taken = {record.key for record in now.not_held(looks[-1].records)} if doubtful else set()
        now = ledger.admit(now, [key for key in doubtful if key not in taken and key.kind not in unread
                                 and (key not in suspected or key in confirmed)], vocabulary.IN_DOUBT)
    for key in confirmed:
        now = ledger.withhold(now, key, vocabulary.FOREIGN)
    if all(unknown for _, unknown in seen):
        return ledger.doubt_all_free(now)
    if unread:
        return ledger.withhold_free(now, [key for key in now.devices if key.kind in unread], vocabulary.IN_DOUBT)
    return now
