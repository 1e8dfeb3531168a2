"""Plans the rows of devices that a guest already has, as its compute service reports.

Pure: the caller writes the rows. Guests have such devices if their host ran them before it used this library. Only the
service knows the owners; the hypervisor and the store must not contradict the service.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.engine import exclusion
from devicetrack.engine import findings
from devicetrack.engine import migrations
from devicetrack.engine.repair_plan import Repair
from devicetrack.engine.views import Views
from devicetrack.objects.things import Exclusions
from devicetrack.objects.values import DeviceKey

# The claim id of such a row. No claim of a manager has this id.
CLAIM_ID: Final = 'adopted'
_REASON: Final = 'the compute service says that the guest has it'


def adoptions(views: Views, instance_uuid: str, keys: Iterable[DeviceKey],
              provider_uuid_of: Callable[[str], str | None]) -> list[Repair]:
    """Return the rows to write for the devices that have none. A device that the instance has already stays as it is.

    :param keys: the devices, in the order of the guest's request; a device that is named twice counts once
    :param provider_uuid_of: the UUID of the provider with this stable name, None while it has none
    :raises NotAdopted: a device cannot be recorded for this instance; the error says why, and nothing is planned
    """
    own = [record for record in views.records if record.instance_uuid == instance_uuid]
    found: list[Repair] = []
    for key in dict.fromkeys(keys):
        def refuse(reason: str, key: DeviceKey = key) -> exception.NotAdopted:
            return exception.NotAdopted(instance_uuid, str(key), reason)

        problem, device = _problem(views, instance_uuid, key), views.devices.get(key)
        if problem is not None:
            raise refuse(problem)
        if key in views.owners or device is None:       # the instance has it; else a problem was raised
            continue
        provider = provider_uuid_of(device.provider)
        if provider is None:
            raise refuse('the resource provider that counts it is not known yet; the next audit may find it')
        for other in found:
            if (token := exclusion.shared(device.exclusions, views.exclusions_of(other.device), True)) is not None:
                raise refuse(f'it and {other.device} are a part of {token} and all of it, or twice all of it')
        found.append(Repair(findings.ADOPT, key, instance_uuid, None, device.row(
            views.host_uuid, instance_uuid, vocabulary.ACTIVE, len(own) + len(found), CLAIM_ID, provider), _REASON))
    return found


def _used(views: Views) -> Iterator[tuple[str, str, Exclusions]]:
    """What domains name: the domain, the address, and what may not be held beside it."""
    for use in views.usage.uses:
        if use.identifier is not None:
            yield use.domain_uuid, use.address, views.exclusions_of(DeviceKey(use.kind, use.identifier))
    for domain, address in views.usage.others:
        yield domain, address, views.containment.strangers.get(address, ())


def _problem(views: Views, instance_uuid: str, key: DeviceKey) -> str | None:
    """Why a device cannot be recorded for an instance. None if it can be, or if the instance has it already."""
    usage, inventory = views.usage, views.inventory
    state = (views.instances or {}).get(instance_uuid)
    if state is not None and state != migrations.INSTANCE_HERE:
        return f'the compute service says that the instance is {state}'
    row, device = views.owners.get(key), views.devices.get(key)
    if row is not None and row.state == vocabulary.RELEASING:
        return f'instance {row.instance_uuid} has it, and it is being released'
    if row is not None:
        return None if row.instance_uuid == instance_uuid else f'instance {row.instance_uuid} has it'
    for unknown in usage.unknown:
        return f'{unknown.what} cannot be read ({unknown.reason}), and may name it: fix that first'
    if key.kind not in inventory.known_kinds:
        return next((f'{unknown.what} cannot be read: {unknown.reason}' for unknown in inventory.unknown
                     if unknown.what == key.kind), f'no option of this host has devices of kind {key.kind}')
    if device is None:
        return 'the host does not have it, or no option names it'
    if device.unhealthy is not None:
        return f'it is unhealthy: {device.unhealthy}'
    others = sorted({use.domain_uuid for use in usage.uses if (use.kind, use.identifier) == key} - {instance_uuid})
    if others:
        return f'domain {", ".join(others)} names it'
    ours = device.exclusions
    for domain, address, theirs in _used(views) if ours else ():
        if domain != instance_uuid and (token := exclusion.shared(ours, theirs, False)) is not None:
            return f'domain {domain} names {address} of {token}'
    for row in views.records if ours else ():
        token = exclusion.shared(ours, views.exclusions_of(row.key), row.instance_uuid == instance_uuid)
        if token is not None:
            return f'instance {row.instance_uuid} has {row.key} of {token}'
    return None
