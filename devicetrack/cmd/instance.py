"""``devicetrack-manage instance``: lists the devices of instances from the store, and gives them back."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import itertools
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import operator_requests
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import records
from devicetrack.cmd import requesting
from devicetrack.cmd import watching
from devicetrack.objects.values import Record
from devicetrack.pictures import natural

RELEASED = 'released'


class List(watching.Watched, base.Lister):
    """List the instances that have devices: all in the store, or those that match. Reads only the store.

    An instance that moves between two hosts of the store has a line for each. --long names the devices.
    """

    columns = ('instance_uuid', 'host', 'states', 'roles', 'devices', 'migration_uuids', 'host_uuid',
               'instance_name')
    in_table = ('instance_uuid', 'instance_name', 'host', 'states', 'devices')
    in_long = ('instance_uuid', 'instance_name', 'host', 'states', 'roles', 'devices', 'migration_uuids')
    if_filled = ('instance_name', 'migration_uuids')
    prose = ('states', 'devices')
    spare = ('states', 'host')
    below = ('instance_name',)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--host', metavar='NAME', help='Only instances with devices of this host.')
        parser.add_argument('--device', metavar='[KIND/]IDENTIFIER', type=options.device_name,
                            help='Only the instance that has the device of this name, on any host.')

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        which = f' {parsed_args.device}' if parsed_args.device else ' a device'
        where = f' of host {parsed_args.host}' if parsed_args.host else ''
        return f'no instance has{which}{where}'

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        store = self.app.checked_store
        hosts = records.names_of_hosts(store)
        wanted = records.find(store, parsed_args.host, parsed_args.device)
        if parsed_args.device is not None:      # show all devices that the matching instances have on the same host
            ends = {(one.host_uuid, one.instance_uuid) for one in wanted}
            wanted = [one for end in ends for one in store.records_of_instance(*end)]
        wanted.sort(key=lambda one: (natural.key(hosts.get(one.host_uuid)), one.instance_uuid, one.position))
        for (host_uuid, uuid), group in itertools.groupby(wanted, key=lambda one: (one.host_uuid, one.instance_uuid)):
            found = list(group)
            yield {'instance_uuid': uuid, 'host': hosts.get(host_uuid), 'states': _each(one.state for one in found),
                   'roles': _each(one.role for one in found), 'migration_uuids': _moves(found), 'host_uuid': host_uuid,
                   'instance_name': base.InstanceName(records.instance_name(found)),
                   'devices': base.Shown([records.fields(one, hosts) for one in found], _in_words(found, parsed_args))}


def _each(words: Any) -> list[str]:
    return list(dict.fromkeys(words))


def _moves(found: Sequence[Record]) -> list[str]:
    return _each(one.migration_uuid for one in found if one.migration_uuid)


def _in_words(found: Sequence[Record], parsed_args: argparse.Namespace) -> Any:
    if parsed_args.formatter != 'table' or parsed_args.long:
        return [records.name(one.kind, one.identifier) for one in found]
    counted = collections.Counter(one.kind for one in found)
    return ', '.join(f'{number} {kind}' for kind, number in counted.items())


class Show(base.ShowOne):
    """Show all devices of an instance, on all hosts of the store, in the order of the guest. Reads only the store."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_instance(parser)

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        store, uuid = self.app.checked_store, parsed_args.instance
        hosts = records.names_of_hosts(store)
        found = sorted(store.records_everywhere(uuid), key=lambda one: (
            natural.key(hosts.get(one.host_uuid)), one.position))
        if not found:
            raise exception.UnknownToStore('instance', uuid, None, 'it has no device on a host of this store; check '
                                           'that this is the store of its host')
        return {'instance_uuid': uuid, 'instance_name': base.InstanceName(records.instance_name(found)),
                'hosts': _each(hosts.get(one.host_uuid) for one in found),
                'migration_uuids': _moves(found),
                'devices': base.Shown([records.fields(one, hosts) for one in found],
                                      [f'{records.name(one.kind, one.identifier)} ({_condition(one, found, hosts)})'
                                       for one in found])}


def _condition(one: Record, found: Sequence[Record], hosts: Mapping[str, str]) -> str:
    role = '' if one.role == vocabulary.CURRENT else f'{one.role}, '
    several = len({other.host_uuid for other in found}) > 1
    return role + one.state + (f' on {hosts.get(one.host_uuid)}' if several else '')


class Release(requesting.Requesting):
    """Give back the devices on this host of an instance that its compute service has forgotten.

    Devices that store data are wiped. The request is refused while the instance has a domain here or moves, a domain
    names one of its devices, the service says that the instance is here, the hypervisor does not answer, or the host is
    report-only.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        options.add_instance(parser)
        parser.add_argument('--yes', action='store_true',
                            help='Give the devices back. Without it the command only lists them.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        uuid = parsed_args.instance
        host = self.app.observer(parsed_args.host).host
        found = self.app.checked_store.records_of_instance(host.uuid, uuid)
        if not found:
            raise exception.RowStays(f'instance {uuid}', 'released', f'it has no devices on host {host.name}')
        devices = [records.name(record.kind, record.identifier) for record in found]
        if not parsed_args.yes:
            raise base.UsageError(f'instance {uuid} holds {", ".join(devices)} on host {host.name}: to give '
                                  'them back and have them wiped, add --yes')
        outcome = self.ask(host, operator_requests.RELEASE, RELEASED, parsed_args, [record.key for record in found],
                           instance_uuid=uuid, claims=sorted({record.claim_id for record in found}))
        return {'outcome': outcome.outcome, 'host': host.name, 'instance_uuid': uuid, 'devices': devices,
                'text': outcome.text, 'request_uuid': outcome.request}
