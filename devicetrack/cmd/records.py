"""Finds rows of the store for commands, and puts rows and the state of a host into words."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.objects.values import Record
from devicetrack.store.api import Host
from devicetrack.store.api import Store

FIELDS: Final = ('device', 'kind', 'identifier', 'host', 'instance_uuid', 'instance_name', 'role', 'state', 'position',
                 'resource_class', 'provider_uuid', 'parent', 'numa_node', 'migration_uuid', 'claim_id', 'generation',
                 'created_at', 'host_uuid', 'seen', 'was_realized', 'details')


def plain(record: Record) -> dict[str, Any]:
    """Return a row as plain data."""
    return {**record._asdict(), 'details': base.details_fields(record.details),
            'was_realized': bool(record.was_realized)}          # SQLite answers with a number


def fields(record: Record, hosts: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an assignment.

    :param hosts: names of hosts by their UUIDs
    """
    values = {**plain(record), **of_device(*record.key), 'host': hosts.get(record.host_uuid),
              'created_at': base.Moment(record.created_at), 'instance_name': base.InstanceName(record.instance_name)}
    return {field: values[field] for field in FIELDS}


def name(kind: str, identifier: str) -> str:
    """Return the name of a device in the form that commands take."""
    return f'{kind}/{identifier}'


def of_device(kind: str, identifier: str | None) -> dict[str, str | None]:
    """Return the fields that name a device; those of none without an identifier."""
    return {'device': None if identifier is None else name(kind, identifier), 'kind': kind, 'identifier': identifier}


def instance_name(rows: Iterable[Record]) -> str | None:
    """Return the name in the newest of an instance's rows that has one."""
    named = [one for one in rows if one.instance_name is not None]
    return max(named, key=lambda one: one.created_at).instance_name if named else None


def report_only(host: str, reason: str) -> str:
    """Return the sentence about a host that is report-only."""
    return f'host {host} is report-only: it takes no claims and gives nothing back: {reason}'


def names_of_hosts(store: Store) -> dict[str, str]:
    return {host.uuid: host.name for host in store.hosts()}


def host_of(store: Store, name: str) -> Host:
    """:raises UnknownHost: the store has no host of this name"""
    found = store.host(name)
    if found is None:
        raise exception.UnknownHost(name, [one.name for one in store.hosts()])
    return found


def find(store: Store, host: str | None, device: options.DeviceName | None) -> list[Record]:
    """Return the assignments that match, by instance and then in the order of the guest.

    :raises UnknownHost: the store has no host of this name
    """
    of_host = None if host is None else host_of(store, host).uuid
    if device is not None:
        return [record for record in store.records_named(device.identifier, of_host)
                if device.kind in (None, record.kind)]
    return list(store.records() if of_host is None else store.records_of_host(of_host))
