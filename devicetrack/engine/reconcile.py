"""Views in, findings out: what the record, the hypervisor, the host and the service say differently.

A pure function. It decides nothing about repairs: each finding says what is held because of it and what could be done.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Record
from devicetrack.objects.values import Usage
from devicetrack.objects.values import Use

CRITICAL: Final = 'critical'
WARNING: Final = 'warning'
NOTE: Final = 'note'
SEVERITIES: Final = (CRITICAL, WARNING, NOTE)

USED_UNRECORDED: Final = 'used but unrecorded'
RECORDED_UNUSED: Final = 'recorded but unused'
WRONG_OWNER: Final = 'used by another than its owner'
SHARED: Final = 'used by several'
GONE: Final = 'gone from the host'
UNHEALTHY: Final = 'unhealthy'
RELEASE_PENDING: Final = 'release pending'
ABANDONED: Final = 'owned by an instance that is over'
IN_DOUBT: Final = 'commit in doubt'
VIEW_UNKNOWN: Final = 'view unknown'
LEFT_OVER: Final = 'left over'
FINDINGS: Final = (USED_UNRECORDED, RECORDED_UNUSED, WRONG_OWNER, SHARED, GONE, UNHEALTHY, RELEASE_PENDING, ABANDONED,
                   IN_DOUBT, VIEW_UNKNOWN, LEFT_OVER)

# What the compute service may say of an instance; anything else is unknown, and nothing is concluded from it.
INSTANCE_HERE: Final = 'here'
INSTANCE_DELETED: Final = 'deleted'
INSTANCE_OFFLOADED: Final = 'offloaded'
INSTANCE_OVER: Final = (INSTANCE_DELETED, INSTANCE_OFFLOADED)


class Finding(NamedTuple):
    """One difference between views.

    ``device`` is '' in both parts when the finding is about a whole view. ``recorded_owner`` and ``users`` are the
    owners by the record and by the hypervisor. ``generation`` is that of the row, 0 without one: a finding that a
    second look shows with the same generation is no passing state.
    """

    kind: str
    severity: str
    device: DeviceKey
    recorded_owner: str | None
    users: tuple[str, ...]
    generation: int
    detail: str
    held: str
    proposal: str

    def __str__(self) -> str:
        device = f'{self.device.kind} {self.device.identifier}: ' if self.device.kind else ''
        return f'{device}{self.kind}: {self.detail}'


class Views(NamedTuple):
    """What was read, innermost first. ``instances`` is the service's word by UUID, or None for unknown."""

    usage: Usage
    inventory: Inventory
    records: tuple[Record, ...]
    instances: Mapping[str, str] | None
    migrations: Mapping[str, Any] | None = None
    host: str = ''
    host_uuid: str = ''


NO_DEVICE = DeviceKey('', '')


def compare(views: Views) -> list[Finding]:
    """Compare the views of one host.

    :returns: findings, worst first; each difference once
    """
    found: list[Finding] = []
    usage, inventory = views.usage, views.inventory
    for unknown in (*usage.unknown, *inventory.unknown):
        found.append(Finding(VIEW_UNKNOWN, WARNING, NO_DEVICE, None, (), 0, f'{unknown.what}: {unknown.reason}',
                             'every free device that it may be about', 'mend what keeps it from being read'))
    users: dict[DeviceKey, list[Use]] = {}
    for use in usage.uses:
        if use.identifier is not None:
            users.setdefault(DeviceKey(use.kind, use.identifier), []).append(use)
    owners = {record.key: record for record in views.records}
    found += _used(users, owners, inventory)
    devices = {device.key: device for device in inventory.devices}
    for key, record in owners.items():
        found += _recorded(record, key in users, key in devices, views)
    for key, device in devices.items():
        if device.unhealthy:
            owner = owners.get(key)
            found.append(Finding(UNHEALTHY, WARNING, key, owner.instance_uuid if owner else None, (),
                                 owner.generation if owner else 0, device.unhealthy, 'the device',
                                 'mend the device; it comes back by itself'))
    return sorted(found, key=lambda finding: (SEVERITIES.index(finding.severity), finding.kind, finding.device))


def _used(users: Mapping[DeviceKey, Collection[Use]], owners: Mapping[DeviceKey, Record],
          inventory: Inventory) -> list[Finding]:
    found = []
    for key, uses in users.items():
        domains = tuple(sorted({use.domain_uuid for use in uses}))
        owner = owners.get(key)
        generation = owner.generation if owner else 0
        recorded = owner.instance_uuid if owner else None
        running = any(use.running for use in uses)
        names = ', '.join(domains)
        if len(domains) > 1:
            found.append(Finding(SHARED, CRITICAL, key, recorded, domains, generation,
                                 f'domains {names} name it', 'the device', 'stop all but its owner'))
        if owner is None:
            if len(domains) == 1:
                found.append(Finding(USED_UNRECORDED, CRITICAL if running else WARNING, key, None, domains, 0,
                                     f'domain {names} names it and no row does', 'the device',
                                     'record its owner, or remove it from the domain'))
        elif recorded not in domains:
            found.append(Finding(WRONG_OWNER, CRITICAL if running else WARNING, key, recorded, domains, generation,
                                 f'recorded for {recorded}, named by {names}', 'the device',
                                 'stop the domain that does not own it'))
    return found


def _recorded(record: Record, used: bool, there: bool, views: Views) -> list[Finding]:
    found = []
    key = record.key

    def finding(kind: str, severity: str, detail: str, proposal: str) -> Finding:
        return Finding(kind, severity, key, record.instance_uuid, (), record.generation, detail, 'the device', proposal)

    state = (views.instances or {}).get(record.instance_uuid)
    if record.state == vocabulary.RELEASING:
        found.append(finding(RELEASE_PENDING, NOTE, f'on its way back from {record.instance_uuid}',
                             'none: the next audit goes on with it'))
        return found
    if state in INSTANCE_OVER:
        found.append(finding(ABANDONED, WARNING, f'instance {record.instance_uuid} is {state}', 'give it back'))
    elif (record.state == vocabulary.ACTIVE and not used and not views.usage.unknown
            and record.instance_uuid in views.usage.domains):
        found.append(finding(RECORDED_UNUSED, WARNING, f'the domain of {record.instance_uuid} does not name it',
                             'see whether the instance still needs it'))
    if not there and record.kind in views.inventory.known_kinds and record.state == vocabulary.ACTIVE:
        found.append(finding(GONE, CRITICAL if used else WARNING, f'the host does not have it; owner '
                             f'{record.instance_uuid}', 'bring the device back'))
    return found


def confirmed(first: Collection[Finding], second: Collection[Finding]) -> list[Finding]:
    """The findings of the second look that the first one showed too, with the row unchanged."""
    seen = {(finding.kind, finding.device, finding.generation, finding.users) for finding in first}
    return [finding for finding in second
            if (finding.kind, finding.device, finding.generation, finding.users) in seen]
