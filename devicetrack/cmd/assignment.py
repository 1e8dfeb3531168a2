"""``devicetrack-manage assignment``: who holds what, as the store has it. Nothing but the store is asked."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from devicetrack import exception
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.objects.values import Record

COLUMNS = ('host', 'kind', 'identifier', 'instance_uuid', 'role', 'state', 'position', 'resource_class',
           'provider_uuid', 'parent', 'numa_node', 'migration_uuid', 'claim_id', 'generation', 'created_at',
           'host_uuid', 'details', 'seen')


class List(base.Lister):
    """List assignments, by instance and then in the order of the guest: all in the store, or those that match."""

    columns = COLUMNS
    in_table = ('host', 'kind', 'identifier', 'instance_uuid', 'role', 'state', 'resource_class')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--instance', metavar='UUID', type=options.canonical_uuid,
                            help='Only those of this instance.')
        parser.add_argument('--host', metavar='NAME', help='Only those on this host.')
        parser.add_argument('--device', metavar='[KIND/]IDENTIFIER', type=options.device_name,
                            help='Only those of devices with this identifier.')

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Sequence[Any]]:
        found, names = _find(self.app.checked_store, parsed_args.host, parsed_args.instance, parsed_args.device)
        for record in found:
            values = _fields(record, names)
            yield [values[column] for column in COLUMNS]


class Show(base.ShowOne):
    """Show the assignment of one device."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('device', metavar='[KIND/]IDENTIFIER', type=options.device_name,
                            help='The device: the name of a namespace, the UUID of a mediated device.')
        parser.add_argument('--host', metavar='NAME', help='The host, when several have a device of this name.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        found, names = _find(self.app.checked_store, parsed_args.host, None, parsed_args.device)
        if not found:
            raise exception.NotAssigned(str(parsed_args.device), parsed_args.host)
        if len(found) > 1:
            where = ', '.join(f'{record.kind}/{record.identifier} on {names[record.host_uuid]}' for record in found)
            raise base.UsageError(f'{parsed_args.device} may be {where}: say which by KIND/ and --host')
        return _fields(found[0], names)


def _find(store: Any, host: str | None, instance_uuid: str | None,
          device: options.DeviceName | None) -> tuple[list[Record], dict[str, str]]:
    """The records that match, and the names of hosts by UUID.

    :raises UnknownHost: the store has no host of this name
    """
    names = {known.uuid: known.name for known in store.hosts()}
    uuids = {name: uuid for uuid, name in names.items()}
    if host is not None and host not in uuids:
        raise exception.UnknownHost(host, uuids)
    if host is not None:
        records = store.records_of_host(uuids[host])
    else:
        records = store.records() if instance_uuid is None else store.records_everywhere(instance_uuid)
    found = [record for record in records if instance_uuid in (None, record.instance_uuid) and (
        device is None or (record.identifier == device.identifier and device.kind in (None, record.kind)))]
    return found, names


def _fields(record: Record, names: Mapping[str, str]) -> dict[str, Any]:
    values = {**record._asdict(), 'host': names.get(record.host_uuid), 'details': base.details_fields(record.details)}
    return {column: values[column] for column in COLUMNS}
