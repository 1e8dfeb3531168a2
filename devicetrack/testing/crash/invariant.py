"""Checks the invariant at every moment, while nothing is under way, and after the operation.

Each function returns in words what is wrong. An empty list means that all is well.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from devicetrack import vocabulary
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.testing import exclusions
from devicetrack.testing import fake
from devicetrack.testing.crash.process import LedgerView
from devicetrack.testing.crash.world import STRANGER
from devicetrack.testing.crash.world import World

# The reasons for which a ledger may withhold a device while nothing is under way.
_AT_REST = frozenset((vocabulary.CORDONED, vocabulary.EXCLUDED, vocabulary.NOT_REALIZED))

# How many devices of each resource class an instance owns, by host and instance.
Owners = Mapping[str, Mapping[str, Mapping[str, int]]]


def at_a_moment(world: World, views: Mapping[str, LedgerView]) -> list[str]:
    """Check that in use by a guest ⊆ realized ⊆ rows ⊆ held in the ledgers of ``views``.

    Also check the bytes of guests, and that nobody owns a device beside one that excludes it.
    """
    records = world.records()
    wrong = []
    for host in world:
        rows = {record.key: record for name, record in records if name == host.name}
        wrong += [f'host {host.name}: {what}' for what in
                  (*_uses(host.machine, rows), *_contents(world, host.name, host.machine, rows),
                   *exclusions.broken(_exclusive(host.machine, rows)),
                   *(_held(rows, views[host.name]) if host.name in views else ()))]
    return wrong


def _uses(machine: Any, rows: Mapping[DeviceKey, Record]) -> list[str]:
    wrong = []
    users: dict[DeviceKey, set[str]] = {}
    for use in machine.usage().uses:
        if use.identifier is None or DeviceKey(use.kind, use.identifier) not in machine.devices:
            if use.live:
                wrong.append(f'{use.address} is in use by {use.domain_uuid} and not realized')
            continue
        key = DeviceKey(use.kind, use.identifier)
        row = rows.get(key)
        if use.domain_uuid == STRANGER and (row is not None or key in machine.unproven):
            continue                            # somebody else did that, and no row of an instance had it by then
        if row is None:
            wrong.append(f'{key.identifier} is in use by {use.domain_uuid} without a row')
        elif row.instance_uuid != use.domain_uuid:
            wrong.append(f'{key.identifier} of {row.instance_uuid} is in use by {use.domain_uuid}')
        users.setdefault(key, set()).add(use.domain_uuid)
    wrong += [f'{key.identifier} is in use by {len(names)} guests' for key, names in users.items() if len(names) > 1]
    wrong += [f'{key.identifier} is realized without a row' for key in machine.devices
              if key not in rows and key not in machine.not_ours]
    return wrong


def _contents(world: World, host: str, machine: Any, rows: Mapping[DeviceKey, Record]) -> list[str]:
    wrong = []
    for use in machine.usage().uses:
        key = DeviceKey(use.kind, use.identifier or '')
        if use.live and key.kind in fake.KEEPING and key in machine.devices and not machine.read(key):
            wrong.append(f'{key.identifier} was wiped under {use.domain_uuid}, which runs on it')
    for key in machine.devices:
        wrote = machine.read(key).decode()
        row = rows.get(key)
        if wrote == STRANGER and (key in machine.unproven if row is None else row.state == vocabulary.RELEASING
                                  or not row.was_realized):
            continue                            # no guest of ours gets it with these bytes
        if wrote and row is None:
            wrong.append(f'{key.identifier} has no owner and has what {wrote} wrote')
        elif wrote and row is not None and row.instance_uuid != wrote:
            wrong.append(f'{key.identifier} of {row.instance_uuid} has what {wrote} wrote')
        if wrote and key.kind in fake.KEEPING and key not in machine.unproven:
            wrong.append(f'{key.identifier} is proven clean and has what {wrote} wrote')
        before = world.written.get((host, key))
        if not wrote and before is not None and row is not None and row.state != vocabulary.RELEASING and \
                (row.instance_uuid, row.claim_id) == (before.instance_uuid, before.claim_id):
            wrong.append(f'{key.identifier} lost what its owner {row.instance_uuid} wrote')
    return wrong


def _exclusive(machine: Any, rows: Mapping[DeviceKey, Record],
               excluded: Iterable[DeviceKey] = ()) -> list[exclusions.ExclusiveDevice]:
    """The devices that have exclusions, with their owners by the rows.

    :param excluded: the devices that a ledger withholds as excluded
    """
    return [exclusions.ExclusiveDevice(key, device.exclusions, rows[key].instance_uuid if key in rows else None, False,
                                       key in excluded)
            for key, device in machine.devices.items() if device.exclusions]


def _held(rows: Mapping[DeviceKey, Record], view: LedgerView) -> list[str]:
    held = {(device.kind, device.identifier): device.instance_uuid for device in view.devices}
    return [f'{key.identifier} has a row for {row.instance_uuid} and is held for {held.get(key)}'
            for key, row in rows.items() if held.get(key) != row.instance_uuid]


def at_rest(world: World, views: Mapping[str, LedgerView]) -> list[str]:
    """Check the state after a start and an audit, while nothing is under way: nothing is half done or forgotten.

    A function without an owner has the host's driver. The ledger withholds as excluded exactly the devices that
    somebody's devices exclude.
    """
    wrong = at_a_moment(world, views)
    records = world.records()
    for host in world:
        rows = {record.key: record for name, record in records if name == host.name}
        if host.name in views:
            wrong += [f'host {host.name}: {what}' for what in _forgotten(rows, views[host.name])]
            wrong += [f'host {host.name}: {what}' for what in exclusions.disagreements(
                _exclusive(host.machine, rows, _excluded(views[host.name])))]
        wrong += [f'host {host.name}: {key.identifier} has no owner and has the driver for guests still'
                  for key in host.machine.lent if key not in rows]
        # A device waits as long as a domain names it, or could come back on it from a managed-save image.
        named = {(use.kind, use.identifier) for use in host.machine.usage().uses}
        wrong += [f'host {host.name}: {key.identifier} of {row.instance_uuid} is being released still'
                  for key, row in rows.items() if row.state == vocabulary.RELEASING and key not in named]
    return wrong


def _excluded(view: LedgerView) -> set[DeviceKey]:
    return {DeviceKey(device.kind, device.identifier) for device in view.devices
            if device.identifier is not None and vocabulary.EXCLUDED in device.withheld.split(', ')}


def _forgotten(rows: Mapping[DeviceKey, Record], view: LedgerView) -> list[str]:
    wrong = [f'{device.identifier} is held for {device.instance_uuid} without a row' for device in view.devices
             if device.instance_uuid is not None and (device.kind, device.identifier) not in rows]
    wrong += [f'{device.identifier} is withheld: {device.withheld}' for device in view.devices
              if not {reason for reason in device.withheld.split(', ') if reason} <= _AT_REST]
    if view.doubts:
        wrong.append(f'{view.doubts} commits are in doubt still')
    return wrong


def at_the_end(world: World, views: Mapping[str, LedgerView], findings: Mapping[str, list[Any]],
               room: Mapping[str, Mapping[str, int]], owners: Owners) -> list[str]:
    """Check the state after the operation: every device is free, cordoned or owned as the service's data says.

    :param findings: the findings of each host's last audit
    :param room: how many devices claims could take before there was any instance, by host and resource class
    :param owners: the owners by the service's data
    """
    wrong = at_rest(world, views)
    records = world.records()
    for host in world:
        expected = {instance: {name: amount for name, amount in devices.items() if amount}
                    for instance, devices in owners.get(host.name, {}).items()}
        found: dict[str, dict[str, int]] = {}
        left = dict(room.get(host.name, {}))
        for name, record in records:
            if name != host.name:
                continue
            classes = found.setdefault(record.instance_uuid, {})
            classes[record.resource_class] = classes.get(record.resource_class, 0) + 1
            left[record.resource_class] = left.get(record.resource_class, 0) - 1
            if (record.state, record.role, record.migration_uuid) != (vocabulary.ACTIVE, vocabulary.CURRENT, None):
                wrong.append(f'host {host.name}: {record.identifier} of {record.instance_uuid} is {record.state}, '
                             f'{record.role}, of migration {record.migration_uuid}')
        expected = {instance: devices for instance, devices in expected.items() if devices}
        if found != expected:
            wrong.append(f'host {host.name}: owners are {found} and should be {expected}')
        if host.name in views:
            view = views[host.name]
            for key in _excluded(view):
                left[host.machine.devices[key].resource_class] -= 1
            found_left = {name: room + view.cordoned[name] for name, room in view.room.items()}
            if found_left != left:
                wrong.append(f'host {host.name}: {found_left} can be had, or is cordoned, and should be {left}')
        wrong += [f'host {host.name}: the audit found {finding}' for finding in findings.get(host.name, ())
                  if finding.severity != vocabulary.NOTE]
    return wrong
