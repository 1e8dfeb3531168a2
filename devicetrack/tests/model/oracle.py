"""What must hold at every point of a world, and when everything is finished.

It reads machines, rows and ledgers past the library and compares them with what the model's service knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from devicetrack import vocabulary
from devicetrack.engine import selection
from devicetrack.engine import withholding
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import InventoryDevice
from devicetrack.testing import exclusions
from devicetrack.tests.model import memory
from devicetrack.tests.model.world import ModelHost
from devicetrack.tests.model.world import Row
from devicetrack.tests.model.world import World

# Calls of a driver that change what is on a device that is given back.
_UNREALIZES: Final = ('wipe', 'destroy')


def broken(world: World, call: str = '') -> list[str]:
    """The parts of the invariant that do not hold now.

    In use by a guest, then realized on the host, then a row, then held in the ledger of a manager that lives; what a
    guest wrote is there while it owns the device, and only then.

    :param call: the call of a store or driver that is about to be made, or was made
    """
    found: list[str] = []
    for name, host in world.hosts.items():
        rows = {row.key: row for row in world.rows_of(name)}
        found += _of_guests(world, host, rows)
        found += _of_devices(world, host, rows)
        found += _of_moves(world, host, rows)
        found += _of_exclusions(host, rows)
        if call in _UNREALIZES:
            found += [f'{key.identifier} of host {name} is wiped or removed, and its row does not say so'
                      for key in host.machine.busy if key in rows and rows[key].state != vocabulary.RELEASING]
        if host.is_alive and not (world.starting and world.acting == name):
            found += _of_ledger(host, rows)
            found += exclusions.disagreements(exclusions.of_snapshot(memory.running(host.manager).ledger.now))
            if not world.failures:
                found += _of_boot(world, host, rows)
    for guest in world.service.guests.values():
        for where, key in sorted(guest.written):
            if world.hosts[where].machine.read(key) != guest.token:
                found.append(f'what {guest.name} wrote on {key.identifier} of host {where}, which it has, is gone')
    return found


def _of_guests(world: World, host: ModelHost, rows: dict[DeviceKey, Row]) -> Iterator[str]:
    users: dict[DeviceKey, set[str]] = {}
    for use in host.machine.usage().uses:
        guest = world.service.of(use.domain_uuid)
        who = guest.name if guest is not None else use.domain_uuid
        key = DeviceKey(use.kind, str(use.identifier))
        if key not in host.machine.devices:
            if use.running:
                yield f'{who} runs on {use.address} of host {host.name}, which is not there'
            continue
        users.setdefault(key, set()).add(who)
        row = rows.get(key)
        if row is None or row.instance_uuid != use.domain_uuid:
            yield f'{who} has {key.identifier} of host {host.name} without a row of its own'
        elif row.state == vocabulary.RELEASING and use.running and use.live:
            yield f'{who} runs on {key.identifier} of host {host.name}, which is being released'
    for key, of_key in users.items():
        if len(of_key) > 1:
            yield f'{key.identifier} of host {host.name} is used by {" and ".join(sorted(of_key))}'


def _of_devices(world: World, host: ModelHost, rows: dict[DeviceKey, Row]) -> Iterator[str]:
    for key, data in host.machine.contents.items():
        if key.kind == 'vpmem' and key not in host.machine.unproven:
            yield f'{key.identifier} of host {host.name} is proven clean and has what {data.decode()} wrote'
        row = rows.get(key)
        owner = world.service.of(row.instance_uuid) if row is not None else None
        if owner is None or owner.token != data:
            yield f'{key.identifier} of host {host.name} has what {data.decode()} wrote and no row of its'
    if world.shape.mdevs:
        for key in host.machine.devices:
            if key.kind == 'mdev' and key not in rows:
                yield f'{key.identifier} exists on host {host.name} and has no row'


def _of_moves(world: World, host: ModelHost, rows: dict[DeviceKey, Row]) -> Iterator[str]:
    """A move on one host begins and ends in one transaction: a row at rest has no moving row beside it."""
    one_host = {move.uuid for move in world.service.migrations if move.one_host}
    there = [row for row in rows.values() if row.state != vocabulary.RELEASING]
    at_rest = {row.instance_uuid: row for row in there if row.migration_uuid is None}
    for row in there:
        if row.migration_uuid in one_host and row.instance_uuid in at_rest:
            yield (f'{row.identifier} of host {host.name} is {row.role} of a migration on this host, beside '
                   f'{at_rest[row.instance_uuid].identifier}, which is at rest')


def _of_exclusions(host: ModelHost, rows: dict[DeviceKey, Row]) -> Iterator[str]:
    """No rows have devices that may not be held beside one another. Nobody but managers writes any."""
    devices = dict(host.machine.devices)
    for row in rows.values():               # a row may name a device that is to be made
        devices.setdefault(row.key, InventoryDevice(*row.key, '', '', min(host.machine.parents, default=None),
                                                         None, ''))
    found = host.machine.containment(list(devices.values()))
    return exclusions.broken(exclusions.ExclusiveDevice(
        key, (*device.exclusions, *tokens), rows[key].instance_uuid if key in rows else None, False, False)
        for (key, device), tokens in zip(devices.items(), found, strict=True) if device.exclusions or tokens)


def _of_ledger(host: ModelHost, rows: dict[DeviceKey, Row]) -> Iterator[str]:
    for row in rows.values():
        device = memory.running(host.manager).ledger.now.device(row.key)
        if device is None or device.state == selection.FREE or device.instance_uuid != row.instance_uuid:
            yield f'{row.identifier} of host {host.name} has a row and is not held for its instance'


def _of_boot(world: World, host: ModelHost, rows: dict[DeviceKey, Row]) -> Iterator[str]:
    """Once a manager has seen to a boot, definitions of guests that own devices are of that boot."""
    if not memory.running(host.manager).boot.is_recorded:
        return
    owners = {row.instance_uuid for row in rows.values() if row.state != vocabulary.RELEASING}
    for domain in host.machine.domains.values():
        guest = world.service.of(domain.uuid)
        if guest is not None and guest.uuid in owners and domain.defined \
                and not domain.is_of_boot(host.machine.boot):
            yield f'{guest.name} is defined on host {host.name} with the addresses of another boot'


def unfinished(world: World) -> list[str]:
    """Differences from the service's data, in a world in which nothing is under way."""
    found = []
    for name, host in world.hosts.items():
        rows = world.rows_of(name)
        for guest in world.service.guests.values():
            ours = {(name, row.key) for row in rows if row.instance_uuid == guest.uuid}
            expected = {place for place in guest.current if place[0] == name}
            if ours != expected:
                found.append(f'{guest.name} is to have {_names(expected)} on host {name}, and rows of '
                             f'{_names(ours)}')
            found += [f'{row.identifier} of host {name} is {row.role} of a migration still' for row in rows
                      if row.instance_uuid == guest.uuid
                      and (row.role != vocabulary.CURRENT or row.migration_uuid is not None)]
        found += [f'{row.identifier} of host {name} is being released still' for row in rows
                  if row.state == vocabulary.RELEASING]
        if world.database_of(name).contexts(host.uuid):
            found.append(f'host {name} keeps the context of a migration')
        found += _idle_ledger(host, {row.key for row in rows})
    return found


def _idle_ledger(host: ModelHost, owned: set[DeviceKey]) -> Iterator[str]:
    running = memory.running(host.manager)
    now = running.ledger.now
    if running.rows.doubts:
        yield f'host {host.name} has commits in doubt'
    for device in now.states():
        if device.instance_uuid is not None and device.key not in owned:
            yield f'{device.identifier} of host {host.name} is held and has no row'
        if device.withheld - {vocabulary.EXCLUDED} and device.key not in owned:
            yield f'{device.identifier} of host {host.name} is withheld: {withholding.text(device.withheld)}'
    room = sum(pool.room for pool in now.pool_states())
    machine = host.machine
    there = sum(1 for device in machine.devices.values() if device.kind != 'mdev') \
        + sum(parent.units for parent in machine.parents.values())
    excluded = sum(vocabulary.EXCLUDED in device.withheld for device in now.states()) \
        + sum(pool.makes for pool in now.pool_states() if pool.excluded is not None)
    if room != there - len(owned) - excluded:
        yield (f'host {host.name} has {there} devices, {len(owned)} of them owned and {excluded} excluded, and says '
               f'that {room} can be had')
    if running.gate.report_only is not None:
        yield f'host {host.name} only reports: {running.gate.report_only}'


def _names(host_devices: set[tuple[str, DeviceKey]]) -> str:
    return ', '.join(sorted(key.identifier for _, key in host_devices)) or 'nothing'
