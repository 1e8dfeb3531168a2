"""Rewrites a lost store from the records in the guests' definitions.

This happens only while no manager of the host runs: the caller holds the host's lock. The recovery realizes, wipes and
takes back nothing. The next manager finds the rows as after a crash, and continues.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
import time
from typing import Any
from typing import NamedTuple
import uuid

from devicetrack import exception
from devicetrack import log
from devicetrack.claims import host as host_identity
from devicetrack.claims import providers
from devicetrack.conf import manager as options
from devicetrack.engine import findings
from devicetrack.engine import rebuild
from devicetrack.engine.rebuild import Rebuilt
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import GuestRecord
from devicetrack.objects.values import Inventory
from devicetrack.objects.values import Unknown
from devicetrack.objects.values import Usage
from devicetrack.store import api as store_api
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)


class Recovery(NamedTuple):
    """A plan of the rows to write.

    ``before`` is the host in the store, or None. ``boot_id`` is the earlier boot whose addresses some definition still
    has, or None. The rows to write name ``migrations``, and only the compute service knows their status. ``unknown``
    lists the parts that could not be read, with the reasons. ``unnamed`` are devices that guests record and no option
    names: the configuration may not be the service's.
    """

    before: store_api.Host | None
    host: store_api.Host
    boot_id: str | None
    devices: tuple[Rebuilt, ...]
    migrations: tuple[str, ...]
    unknown: tuple[str, ...]
    unnamed: tuple[DeviceKey, ...] = ()


def name_of(store: store_api.Store | None, machine_id_path: str) -> str | None:
    """The name by which the store knows this machine, or None.

    No other source has this name. Guests record only their host's UUID, and the service may use another name than the
    machine's own. No manager would ever use rows under a wrong name.

    :raises AmbiguousHost: the store knows the machine by several names
    """
    digest = host_identity.machine_digest(machine_id_path)
    names = [host.name for host in store.hosts() if host.machine_id == digest] if store is not None else []
    if len(names) > 1:
        raise exception.AmbiguousHost(names)
    return names[0] if names else None


def plan(name: str, driver: VirtDriver, store: store_api.Store | None, conf: Any,
         wipe_unrecorded: bool = False, told: Callable[[int, int], None] | None = None) -> Recovery:
    """Read the guests and plan the rows that their store had. Changes nothing.

    :param store: None if there is none yet
    :param wipe_unrecorded: wipe every device that no guest records before anybody gets it; none while a definition or
        a record cannot be read
    :param told: called while guests are read, as :meth:`devicetrack.virt.driver.VirtDriver.guest_records` says
    :raises GuestsOfSeveralHosts: the guests do not agree on which host this is
    :raises HostIdentityChanged, MachineHasHost, UnknownHost: store and guests disagree about the host
    :raises HostMoved: the store is not the host's any more
    :raises HypervisorUnreachable, StoreError: no answer
    """
    options.register(conf)
    unread: list[Unknown] = []
    guests = driver.guest_records(told, unread.append)
    usage, inventory = driver.get_usage(), driver.get_inventory()
    digest = host_identity.machine_digest(conf[options.GROUP].machine_id_path)
    before, host = _identify(name, digest, guests, store)
    rows = [] if store is None else store.records_of_host(host.uuid)
    byteless = {device.kind for device in inventory.devices} - driver.wiped_kinds()
    found = rebuild.rebuild(host.uuid, guests, usage, inventory, rows, byteless)
    # A record that cannot be read may have any device, also one that no definition names.
    if wipe_unrecorded and not usage.unknown and not unread:
        found = _wipe(found, inventory, host.uuid)
    unnamed = driver.unnamed([(device.key, device.details) for guest in guests for device in guest.devices])
    found = [one._replace(reason=f'{one.reason}; {findings.NO_OPTION}') if one.device in unnamed else one
             for one in found]
    migrations = {one.row.migration_uuid for one in found if one.outcome == rebuild.WRITE and one.row is not None}
    return Recovery(before, host, _earlier_boot(guests, usage, driver.boot_id()), tuple(found),
                    tuple(sorted(uuid for uuid in migrations if uuid is not None)),
                    tuple(f'{unknown.what}: {unknown.reason}'
                          for unknown in (*usage.unknown, *unread, *inventory.unknown)),
                    tuple(sorted(unnamed)))


def write(recovery: Recovery, store: store_api.Store) -> None:
    """Write a plan: the host, and all rows in one transaction. The caller holds the host's lock.

    The caller may repeat it with a new plan.

    :raises HostHoldsDevices: the store has rows of the host under another UUID or machine id; nothing was written
    :raises StoreError: no row was written; after ``OutcomeUnknown``, either none or all
    """
    before, host = recovery.before, recovery.host
    if before is None:
        store.add_host(host)
    elif before.identity != host.identity:
        LOG.warning('The UUID of host %(name)s changes from %(before)s to the one that its guests record: %(after)s',
                    {'name': host.name, 'before': before.uuid, 'after': host.uuid})
        store.replace_host(before, host)
    # A manager that runs with another state directory, in spite of the lock, can write no more.
    store = store.at_epoch(host._replace(epoch=store.take_epoch(host.uuid)))
    now = int(time.time())
    rows = tuple(one.row._replace(created_at=now) for one in recovery.devices
                 if one.outcome in (rebuild.WRITE, rebuild.WIPE) and one.row is not None)
    if rows:
        store.write(store_api.Changes(insert=rows))
        for row in rows:
            LOG.info('Host %(host)s: %(kind)s/%(identifier)s has a row again: instance %(instance)s, %(role)s, '
                     '%(state)s', {'host': host.name, 'kind': row.kind, 'identifier': row.identifier,
                                   'instance': row.instance_uuid, 'role': row.role, 'state': row.state})
    if recovery.boot_id is not None:
        # Then the manager's start updates the definitions for this boot, as after any boot.
        store.set_boot_id(host.uuid, recovery.boot_id)


def _identify(name: str, digest: str, guests: Sequence[GuestRecord],
              store: store_api.Store | None) -> tuple[store_api.Host | None, store_api.Host]:
    """Return the host in the store, and the host to write, with the UUID that the guests record."""
    recorded = rebuild.hosts_of(guests)
    if len(recorded) > 1:
        raise exception.GuestsOfSeveralHosts(name, recorded)
    known = {host.name: host for host in store.hosts()} if store is not None else {}
    host_identity.check_not_moved(known.values(), digest)
    before = known.get(name)
    if recorded:
        [host_uuid] = recorded
    else:
        host_uuid = before.uuid if before is not None else host_identity.new_host(name, digest).uuid
    host = (before or store_api.Host(host_uuid, name, digest))._replace(uuid=host_uuid, machine_id=digest)
    for other in known.values():
        if store is not None and other.name != name and other.machine_id == digest:
            rows = len(store.records_of_host(other.uuid))
            if rows:
                raise exception.MachineHasHost(name, other.name, rows)
        if other.name != name and other.uuid == host_uuid:
            raise exception.UnknownHost(name, [other.name])
    if before is not None and store is not None and before.machine_id != digest and (
            before.uuid != host_uuid or store.records_of_host(before.uuid)):
        raise exception.HostIdentityChanged(name)       # the rows are right, so the old machine id must come back
    return before, host


def _earlier_boot(guests: Sequence[GuestRecord], usage: Usage, now: str) -> str | None:
    earlier = sorted({guest.boot_id for guest in guests
                      if guest.boot_id not in (None, now) and guest.instance_uuid not in usage.running})
    return earlier[0] if earlier else None


def _wipe(found: list[Rebuilt], inventory: Inventory, host_uuid: str) -> list[Rebuilt]:
    resolver, owner = providers.DerivedProviders(host_uuid), str(uuid.uuid4())
    devices = {device.key: device for device in inventory.devices}
    return [rebuild.wiped(devices[one.device], host_uuid, owner, resolver.uuid_of(devices[one.device].provider))
            if one.outcome == rebuild.UNRECORDED else one for one in found]
