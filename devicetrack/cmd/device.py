"""``devicetrack-manage device``: devices that are gone for good."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from devicetrack import exception
from devicetrack.claims import host as host_identity
from devicetrack.claims import orders
from devicetrack.claims import repairs
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import order as order_commands
from devicetrack.conf import manager as manager_options
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Host

FORGOTTEN = 'forgotten'
ORDERED = 'ordered'


class Forget(base.ShowOne):
    """End the assignment of a device that the host does not have any more. Nothing is wiped.

    Refused while the host has the device, an option names it, a domain may name it, or a view cannot be read. Beside a
    manager that works it leaves an order. Exit code 3 while that has no answer.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('device', metavar='KIND/IDENTIFIER', type=options.device_name,
                            help='The device, with its kind: vpmem/ns0.')
        parser.add_argument('--confirm', metavar='INSTANCE',
                            help='The UUID of the instance that owns the device, to confirm that this one is meant. '
                                 'Without it the assignment is shown and nothing is done.')
        options.add_host(parser)
        parser.add_argument('--machine-gone', action='store_true',
                            help='The machine of --host, which is not this one, is gone for good with everything on '
                                 'it: ask no one there.')
        order_commands.add_wait(parser)
        return parser

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        name: options.DeviceName = parsed_args.device
        if name.kind is None:
            raise base.UsageError(f'{name} has no kind: say KIND/{name}')
        key = DeviceKey(name.kind, name.identifier)
        store = self.app.checked_store
        host = self._host_that_is_gone(parsed_args) if parsed_args.machine_gone \
            else self.app.observer(parsed_args.host).host
        found = store.records(host.uuid, keys=[key])
        if not found:
            raise exception.NotAssigned(str(name), host.name)
        record: Record = found[0]
        if parsed_args.confirm is None:
            raise base.UsageError(f'{name} is {record.role} and {record.state} for instance {record.instance_uuid}: '
                                  f'to forget it, confirm that with --confirm {record.instance_uuid}')
        outcome, order_uuid = FORGOTTEN, None
        if parsed_args.machine_gone:
            repairs.forget_of_machine(store, host, self._machine_id(), key, parsed_args.confirm)
        else:
            try:
                manager = self.app.claim_manager(host.name)
            except exception.HostInUse:
                order = order_commands.leave(self, store, orders.make(
                    host.uuid, orders.FORGET, kind=key.kind, identifier=key.identifier,
                    instance_uuid=parsed_args.confirm), parsed_args.wait)
                answer, order_uuid = orders.answer_of(order), order.uuid
                outcome = ORDERED if answer is None else FORGOTTEN if answer.outcome == orders.DONE else answer.outcome
            else:
                repairs.forget(manager, key, parsed_args.confirm)
        return {'outcome': outcome, 'host': host.name, 'kind': record.kind, 'identifier': record.identifier,
                'instance_uuid': record.instance_uuid, 'role': record.role, 'state': record.state,
                'resource_class': record.resource_class, 'provider_uuid': record.provider_uuid,
                'generation': record.generation, 'order': order_uuid}

    def _host_that_is_gone(self, parsed_args: argparse.Namespace) -> Host:
        if parsed_args.host is None:
            raise base.UsageError('--machine-gone is about another machine: say which by --host')
        store = self.app.checked_store
        host: Host | None = store.host(parsed_args.host)
        if host is None:
            raise exception.UnknownHost(parsed_args.host, [one.name for one in store.hosts()])
        return host

    def _machine_id(self) -> str:
        return host_identity.machine_digest(self.app.conf[manager_options.GROUP].machine_id_path)
