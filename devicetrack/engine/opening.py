"""Opens a host's ledger from its views and from operators' reasons, and adjusts it to what audits see."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Final

from devicetrack import vocabulary
from devicetrack.engine import withholding
from devicetrack.engine.ledger import Ledger
from devicetrack.engine.snapshot import Claimed
from devicetrack.engine.views import by_instance
from devicetrack.engine.views import foreign
from devicetrack.engine.views import kinds_with_unread_names
from devicetrack.engine.views import Views
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.objects.compact import Compact
from devicetrack.objects.compact import Key
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record

_OF_THE_INVENTORY: Final = (vocabulary.UNHEALTHY, vocabulary.UNPROVEN)


def open_ledger(policy: str, provider_uuid_of: Callable[[str], str], views: Views, marks: Marks) -> Ledger:
    """Make the ledger of a host from one look at it.

    :param policy: ``pack`` or ``spread``
    :param provider_uuid_of: as :class:`~devicetrack.engine.ledger.Ledger` takes it, for every provider of the inventory
    :param marks: the reasons for withholding, from the store
    """
    ledger, inventory = Ledger(policy, provider_uuid_of), views.inventory
    for target, causes in marks.items():
        for reason, cause in causes.items():
            if cause.stands or reason in withholding.KEPT:
                stand(ledger, target, reason, cause.detail)
    owners: dict[Key, Claimed] = {}
    for rows in by_instance(views.records):
        owner = Claimed(rows[0].instance_uuid, ledger.now.number + len(owners), True)
        owners.update(dict.fromkeys(((row.kind, row.identifier) for row in rows), owner))
    ledger.now = ledger.now._replace(number=ledger.now.number + len(owners))
    ledger.read_inventory(inventory, recorded=owners)
    ledger.read_containment(views.containment)
    gone = views.owners.keys() - views.devices.keys()
    counted = _provider_uuids_of_parents(inventory, provider_uuid_of) if gone else {}
    # A row names the provider that its claim knew. A device counts where its parent counts now.
    ledger.hold_all(rows if not gone else [
        row._replace(provider_uuid=counted.get((row.kind, row.parent), row.provider_uuid))
        if (row.kind, row.identifier) in gone else row for row in rows] for rows in by_instance(views.records))
    recorded = Compact(Record, views.records)
    if vocabulary.RELEASING in recorded.column('state'):
        ledger.releasing(DeviceKey(kind, identifier) for kind, identifier, state in recorded.columns(
            'kind', 'identifier', 'state') if state == vocabulary.RELEASING)
    _resume(ledger, views, marks)
    withhold_by_sight(ledger, (views,))
    return ledger


def _provider_uuids_of_parents(inventory: Inventory,
                               provider_uuid_of: Callable[[str], str]) -> dict[tuple[str, str | None], str]:
    parents = set(Compact(InventoryDevice, inventory.devices).columns('kind', 'parent', 'provider'))
    return {**{(kind, parent): provider_uuid_of(provider) for kind, parent, provider in parents},
            **{(capacity.kind, capacity.parent): provider_uuid_of(capacity.provider)
               for capacity in inventory.capacities}}


def _resume(ledger: Ledger, views: Views, marks: Marks) -> None:
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
                ledger.withhold_free((key,), reason)
            elif key.kind not in views.inventory.known_kinds:
                ledger.withhold(key, reason)


def withhold_by_sight(ledger: Ledger, looks: Sequence[Views]) -> None:
    """Withhold free devices that a domain names without a row, or whose users are unknown; admit the others.

    Do this under the same lock as reading an inventory with new devices. A device is withheld when every look with a
    known usage shows it in use. It is admitted when every look has a known usage and none shows it. While a row's
    identifier is no text, no free device of its kind is admitted: the row may be of this one.
    """
    unread = kinds_with_unread_names(looks[-1].records)
    seen = [(foreign(look), bool(look.usage.unknown)) for look in looks]
    suspected = {key for named, _ in seen for key in named}
    confirmed = {key for key in suspected if all(key in named or unknown for named, unknown in seen)}
    if not any(unknown for _, unknown in seen):
        for key in ledger.withheld(vocabulary.FOREIGN):
            if key not in suspected:
                ledger.admit(key, vocabulary.FOREIGN)
        doubtful = ledger.withheld(vocabulary.IN_DOUBT)
        # The owner of a device is certain once the ledger holds the device for the owner in its row.
        taken = {record.key for record in ledger.not_held(looks[-1].records)} if doubtful else set()
        for key in doubtful:
            if key not in taken and key.kind not in unread and (key not in suspected or key in confirmed):
                ledger.admit(key, vocabulary.IN_DOUBT)
    for key in confirmed:
        ledger.withhold(key, vocabulary.FOREIGN)
    if all(unknown for _, unknown in seen):
        ledger.doubt_all_free()
    elif unread:
        ledger.withhold_free([DeviceKey(device.kind, device.identifier) for device in ledger.devices()
                              if device.kind in unread and device.identifier is not None], vocabulary.IN_DOUBT)


def stand(ledger: Ledger, target: Target, reason: str, why: str = '') -> None:
    """Withhold a device or a parent until :func:`stand_down`, whether it is there or not."""
    if target.scope == vocabulary.PARENT:
        ledger.close_parent(target.kind, target.name, reason, why)
    else:
        ledger.stand(DeviceKey(target.kind, target.name), reason, why)


def stand_down(ledger: Ledger, target: Target, reason: str) -> None:
    """End what :func:`stand` began."""
    if target.scope == vocabulary.PARENT:
        ledger.reopen_parent(target.kind, target.name, reason)
    else:
        ledger.stand_down(DeviceKey(target.kind, target.name), reason)
