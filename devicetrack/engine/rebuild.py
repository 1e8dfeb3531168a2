"""Finds the rows that a lost store had, from the records of devices in the guests' definitions.

Pure: it takes the guests' records, the hypervisor's usage and the existing rows, and decides for each device what
becomes of its row. An existing row always stays. If two guests claim a device and nothing decides between them, nobody
gets it.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.engine import guest_records
from devicetrack.engine.views import domains_by_device
from devicetrack.engine.views import named_for_another_kind
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import InventoryDevice
from devicetrack.objects.values import Record
from devicetrack.objects.values import RecordedDevice
from devicetrack.objects.values import Usage

WRITE: Final = 'write'
WIPE: Final = 'wipe'
PRESENT: Final = 'present'
DIFFERS: Final = 'differs'
CONTESTED: Final = 'contested'
IN_DOUBT: Final = 'in doubt'
UNREADABLE: Final = 'unreadable'
FOREIGN: Final = 'foreign'
UNRECORDED: Final = 'unrecorded'
UNUSED: Final = 'unused'
# In the order in which people see them. A person must look at the outcomes that are not in WELL.
OUTCOMES: Final = (WRITE, WIPE, PRESENT, DIFFERS, CONTESTED, IN_DOUBT, UNREADABLE, FOREIGN, UNRECORDED, UNUSED)
WELL: Final = (WRITE, WIPE, PRESENT, UNUSED)


class Rebuilt(NamedTuple):
    """A device and what becomes of its row. ``row`` is the row to write, the existing row, or None.

    Nothing is wiped unless somebody asks for it: see :func:`wiped`. A row to write has 0 for ``created_at``: the
    writer knows the time.
    """

    outcome: str
    device: DeviceKey
    instance_uuid: str | None
    row: Record | None
    reason: str


class _Recording(NamedTuple):
    """A guest records a device. ``named`` says that its definition really names it."""

    guest: GuestRecord
    device: RecordedDevice
    named: bool


def hosts_of(guests: Iterable[GuestRecord]) -> dict[str, int]:
    """The hosts that guests name as their own, by UUID, and how many name each."""
    found: dict[str, int] = {}
    for guest in guests:
        found[guest.host_uuid] = found.get(guest.host_uuid, 0) + 1
    return found


def rebuild(host_uuid: str, guests: Sequence[GuestRecord], usage: Usage, inventory: Inventory,
            rows: Collection[Record], byteless: Collection[str] = ()) -> list[Rebuilt]:
    """Decide what becomes of every device that a guest records, a domain names or the host has.

    :param guests: the records in the definitions of this host's guests
    :param rows: this host's rows in the store
    :param byteless: the kinds whose devices store no data that an instance wrote
    :returns: each device once, in the order of :data:`OUTCOMES`
    """
    users = domains_by_device(usage)
    claims: dict[DeviceKey, list[_Recording]] = {}
    for guest in guests:
        for device in guest.devices:
            named = not device.beside and guest.instance_uuid in users.get(device.key, ())
            claims.setdefault(device.key, []).append(_Recording(guest, device, named))
    there = {record.key: record for record in rows}
    known = {record.instance_uuid for record in rows}
    found = [_rebuilt(host_uuid, key, claimed, users.get(key, set()), usage, there, known)
             for key, claimed in claims.items()]
    own = {(key, claim.guest.instance_uuid) for key, claimed in claims.items() for claim in claimed if claim.named}
    others = named_for_another_kind(usage, {device.key for device in inventory.devices} | there.keys(),
                                    lambda key, domain_uuid: (key, domain_uuid) in own)
    found += [Rebuilt(FOREIGN, key, None, None,
                      f'{_names(domains)}, which has no devicetrack record of it: find its owner')
              for key, domains in users.items() if key not in claims and key not in there and key not in others]
    found += [Rebuilt(UNUSED, device.key, None, None, 'no guest records it, and it stores no data')
              if device.kind in byteless else
              Rebuilt(UNRECORDED, device.key, None, None,
                      'no guest records it: it may hold what an instance left, whose row was lost')
              for device in inventory.devices if device.assignable
              and device.key not in claims and device.key not in there and device.key not in users]
    return sorted(found, key=lambda one: (OUTCOMES.index(one.outcome), one.instance_uuid or '',
                                          one.row.position if one.row else 0, one.device))


def wiped(device: InventoryDevice, host_uuid: str, owner: str, provider_uuid: str) -> Rebuilt:
    """Have a device that no guest records wiped before anybody gets it.

    Its row is releasing from the first moment on. So the manager that starts goes on with the release, and asks the
    hypervisor once more before it wipes.

    :param owner: takes the place of an instance in the row
    """
    row = device.row(host_uuid, owner, vocabulary.RELEASING, 0, 'recover', provider_uuid)
    return Rebuilt(WIPE, device.key, None, row, 'no guest records it: it is wiped when the manager starts')


def _rebuilt(host_uuid: str, key: DeviceKey, claims: Sequence[_Recording], users: Collection[str], usage: Usage,
             there: Mapping[DeviceKey, Record], known: Collection[str]) -> Rebuilt:
    """Decide what becomes of a device that guests record."""
    named = [claim for claim in claims if claim.named]
    claim = (named or claims)[0]
    uuid = claim.guest.instance_uuid
    row = _row(host_uuid, claim, usage)
    if key in there:
        return _beside_row(key, there[key], row)
    if len(named or claims) > 1:
        owners = ', '.join(sorted({one.guest.instance_uuid for one in claims}))
        return Rebuilt(CONTESTED, key, None, None, f'instances {owners} record it: stop all but its owner, and have '
                       'the definitions of the others without it')
    if not named and users:
        return Rebuilt(CONTESTED, key, uuid, None, f'instance {uuid} records it as {claim.device.role}, and '
                       f'{_names(users)}')
    if not guest_records.is_whole(claim.device):
        return Rebuilt(UNREADABLE, key, uuid, None,
                       f'this release cannot write a row from the record of instance {uuid}')
    if claim.device.beside and uuid in known:
        return Rebuilt(IN_DOUBT, key, uuid, None, f'the store knows instance {uuid} without it: it may have been given '
                       'back since its guest was defined')
    if not named and usage.unknown:
        return Rebuilt(IN_DOUBT, key, uuid, None, f'the definition of instance {uuid} does not name it, and it is '
                       f'unknown who else does: {usage.unknown[0].what}: {usage.unknown[0].reason}')
    others = sorted(set(users) - {uuid})
    if others:
        return Rebuilt(WRITE, key, uuid, row, f'{_names(others)} too')
    return Rebuilt(WRITE, key, uuid, row, 'its guest records it' + (
        ' and names it' if named else ' beside its own devices' if claim.device.beside
        else ', though its definition does not name it any more'))


def _beside_row(key: DeviceKey, there: Record, row: Record) -> Rebuilt:
    different = [f'{name} {getattr(there, name) or "-"} (recorded by the guest: {getattr(row, name) or "-"})'
                 for name in ('instance_uuid', 'role', 'migration_uuid', 'claim_id')
                 if getattr(there, name) != getattr(row, name)]
    if different:
        return Rebuilt(DIFFERS, key, there.instance_uuid, there, f'the row stays: {", ".join(different)}')
    return Rebuilt(PRESENT, key, there.instance_uuid, there, 'it has its row')


def _row(host_uuid: str, claim: _Recording, usage: Usage) -> Record:
    device, uuid = claim.device, claim.guest.instance_uuid
    role = device.role
    runs = usage.runs_here(uuid)
    if role == vocabulary.INCOMING and claim.named and runs and any(
            use.live and use.domain_uuid == uuid and (use.kind, use.identifier) == (device.kind, device.identifier)
            for use in usage.uses):
        # The definition is older than the run of its guest, and nobody writes it again when the guest runs.
        role = vocabulary.CURRENT
    waits = role == vocabulary.INCOMING or (uuid in usage.arriving and not device.beside)
    return device.row(host_uuid, uuid, role, vocabulary.CLAIMED if waits else vocabulary.ACTIVE)


def _names(domains: Collection[str]) -> str:
    many = sorted(domains)
    return f'domain {many[0]} names it' if len(many) == 1 else f'domains {", ".join(many)} name it'
