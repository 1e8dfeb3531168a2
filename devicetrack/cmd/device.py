"""``devicetrack-manage device`` and ``instance``: operators cordon, forget, admit and release."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import host as host_identity
from devicetrack.claims import orders
from devicetrack.claims import repairs
from devicetrack.claims import withheld
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import order as order_commands
from devicetrack.conf import manager as manager_options
from devicetrack.engine.withholding import Target
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Host

FORGOTTEN = 'forgotten'
RELEASED = 'released'
CORDONED = 'cordoned'
UNCORDONED = 'uncordoned'
RETIRED = 'retired'
NOT_CORDONED = 'was not cordoned'
RETIRED_ALREADY = 'was retired already'
ADMITTED = 'admitted'
WIPING = 'wiping'
ORDERED = 'ordered'

# The outcome when there was nothing to do.
_UNCHANGED = {UNCORDONED: NOT_CORDONED, RETIRED: RETIRED_ALREADY}


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('device', metavar='KIND/IDENTIFIER', type=options.device_name,
                        help='The device, with its kind: vpmem/ns0.')


class Outcome(NamedTuple):
    """The outcome of a request to a host's manager. ``order`` is None when the command did it itself."""

    outcome: str
    text: str | None
    order: str | None


class _Requesting(base.ShowOne):
    """Base of commands that ask the manager of a host for something. If no manager runs, they do it themselves."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_host(parser)
        order_commands.add_wait(parser)

    def ask(self, host: Host, verb: str, done: str, wait_s: float, **arguments: Any) -> Outcome:
        """Do it here, or leave an order for the manager that works.

        :param done: the name of the outcome when it is done
        """
        try:
            running = self.app.start_host(host.name)
        except exception.HostInUse:
            order = order_commands.leave(self, self.app.checked_store, orders.make(host.uuid, verb, **arguments),
                                         wait_s)
            answer = orders.answer_of(order)
            if answer is None:
                return Outcome(ORDERED, None, order.uuid)
            return Outcome(_outcome(answer, done), answer.text, order.uuid)
        answer = running.orders.do_now(verb, arguments)
        if done == WIPING and answer.outcome == orders.DONE:
            running.unproven.wait()             # the wipe would end with this process
            left = running.unproven.state_of(DeviceKey(arguments['kind'], arguments['identifier']))
            if vocabulary.UNPROVEN in left.causes:
                raise exception.NotAdmitted(str(left.target), left.causes[vocabulary.UNPROVEN].detail)
            return Outcome(ADMITTED, str(left), None)
        return Outcome(_outcome(answer, done), answer.text, None)

    @staticmethod
    def key(name: options.DeviceName) -> DeviceKey:
        if name.kind is None:
            raise base.UsageError(f'{name} has no kind: say KIND/{name}')
        return DeviceKey(name.kind, name.identifier)


def _outcome(answer: orders.Answer, done: str) -> str:
    if answer.outcome != orders.DONE:
        return answer.outcome
    return done if answer.changed else _UNCHANGED.get(done, done)


class _Cordoning(_Requesting):
    """Base of the commands that cordon a device or a parent, or end that."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument('device', metavar='KIND/NAME', type=options.device_name,
                            help='The device, with its kind: vpmem/ns0. With --parent the parent, with the kind of its '
                                 'devices: mdev/pci_0000_84_00_0.')
        parser.add_argument('--parent', action='store_true',
                            help='Everything that the parent of this name has and could make.')

    def cordon(self, parsed_args: argparse.Namespace, verb: str, done: str, **more: str) -> Mapping[str, Any]:
        kind, name = self.key(parsed_args.device)
        scope = vocabulary.PARENT if parsed_args.parent else vocabulary.DEVICE
        host = self.app.observer(parsed_args.host).host
        outcome = self.ask(host, verb, done, parsed_args.wait, kind=kind, scope=scope, name=name, **more)
        return {'outcome': outcome.outcome, 'host': host.name, 'kind': kind, 'scope': scope, 'name': name,
                'text': outcome.text, 'order': outcome.order}


class Cordon(_Cordoning):
    """Hand out a device, or with --parent anything of a parent, no more. An instance that has it keeps it.

    It lasts, over restarts too and while the device is away, until "device uncordon"; "withheld list" shows who has it
    still. Beside a manager that works it leaves an order. Exit code 3 while that has no answer.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument('--reason', type=options.reason, default='', metavar='TEXT',
                            help='Why, for whoever reads it later: one line of at most 255 characters.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        return self.cordon(parsed_args, orders.CORDON, CORDONED, reason=parsed_args.reason)


class Uncordon(_Cordoning):
    """Let a device, or with --parent all of a parent, be handed out again. What is withheld for other reasons stays so.

    Beside a manager that works it leaves an order. Exit code 3 while that has no answer.
    """

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        return self.cordon(parsed_args, orders.UNCORDON, UNCORDONED)


class Admit(_Requesting):
    """Let a device that was forgotten or retired be handed out again. Nothing is wiped: say so only if it is clean.

    A namespace is read through after that, and is handed out when all of it is zero. With --wipe a device that was
    forgotten or retired, or is unproven, is wiped in the background, whatever is on it, and handed out when that is
    proven. Refused while the host does not have it, an instance has it, a domain names it, or one of these is unknown.
    Beside a manager that works it leaves an order. Exit code 3 while that has no answer.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        _add_device(parser)
        parser.add_argument('--wipe', action='store_true',
                            help='Overwrite everything on it with zeros first. What is on it is lost.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        kind, identifier = self.key(parsed_args.device)
        host = self.app.observer(parsed_args.host).host
        more = {'wipe': True} if parsed_args.wipe else {}
        outcome = self.ask(host, orders.ADMIT, WIPING if parsed_args.wipe else ADMITTED, parsed_args.wait, kind=kind,
                           identifier=identifier, **more)
        return {'outcome': outcome.outcome, 'host': host.name, 'kind': kind, 'identifier': identifier,
                'text': outcome.text, 'order': outcome.order}


class Release(_Requesting):
    """Give back everything that an instance holds on this host, where its compute service does not do it any more.

    What keeps bytes is wiped. Refused while the instance has a domain here or moves, a domain names one of its devices,
    the service says that it lives here, or the hypervisor cannot say. Beside a manager that works it leaves an order.
    Exit code 3 while that has no answer.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument('instance', metavar='INSTANCE', type=options.canonical_uuid,
                            help='The UUID of the instance.')
        parser.add_argument('--yes', action='store_true',
                            help='Do it. Without it what the instance holds is shown and nothing is done.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        uuid = parsed_args.instance
        host = self.app.observer(parsed_args.host).host
        found = self.app.checked_store.records_of_instance(host.uuid, uuid)
        if not found:
            raise exception.NotReleased(uuid, f'it holds nothing on host {host.name}')
        devices = ', '.join(f'{record.kind}/{record.identifier}' for record in found)
        if not parsed_args.yes:
            raise base.UsageError(f'instance {uuid} holds {devices} on host {host.name}: to give that back and have it '
                                  'wiped, say --yes')
        outcome = self.ask(host, orders.RELEASE, RELEASED, parsed_args.wait, instance_uuid=uuid)
        return {'outcome': outcome.outcome, 'host': host.name, 'instance_uuid': uuid,
                'devices': [f'{record.kind}/{record.identifier}' for record in found], 'text': outcome.text,
                'order': outcome.order}


class Retire(_Requesting):
    """End the assignment of a device that is on its way back and cannot be wiped, and never hand it out again.

    Nothing is wiped: what its last guest wrote stays on it. It is withheld as retired, over restarts too, until "device
    admit"; a second time changes nothing. Refused unless it is releasing, while it is being wiped, a domain names it,
    or one of these is unknown. Beside a manager that works it leaves an order. Exit code 3 while that has no answer.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        _add_device(parser)
        parser.add_argument('--confirm', metavar='INSTANCE', type=options.canonical_uuid,
                            help='The UUID of the instance that the device is on its way back from, to confirm that '
                                 'this one is meant. Without it the assignment is shown and nothing is done.')
        parser.add_argument('--reason', type=options.reason, default='', metavar='TEXT',
                            help='Why, for whoever reads it later: one line of at most 255 characters. By default why '
                                 'it could not be given back.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        name: options.DeviceName = parsed_args.device
        key = self.key(name)
        host = self.app.observer(parsed_args.host).host
        found = self.app.checked_store.records_of_devices(host.uuid, [key])
        if not found:
            return self._retired_already(host, name, key)
        record: Record = found[0]
        if parsed_args.confirm is None:
            raise base.UsageError(f'{name} is {record.role} and {record.state} for instance {record.instance_uuid}: '
                                  f'to retire it, confirm that with --confirm {record.instance_uuid}')
        outcome = self.ask(host, orders.RETIRE, RETIRED, parsed_args.wait, kind=key.kind, identifier=key.identifier,
                           instance_uuid=parsed_args.confirm, reason=parsed_args.reason)
        return {'outcome': outcome.outcome, 'host': host.name, 'kind': record.kind, 'identifier': record.identifier,
                'instance_uuid': record.instance_uuid, 'text': outcome.text, 'order': outcome.order}

    def _retired_already(self, host: Host, name: options.DeviceName, key: DeviceKey) -> Mapping[str, Any]:
        """:raises NotAssigned: it is not"""
        target = Target.of(key)
        causes = withheld.load(self.app.checked_store, host.uuid).get(target, {})
        if vocabulary.RETIRED not in causes:
            raise exception.NotAssigned(str(name), host.name)
        return {'outcome': RETIRED_ALREADY, 'host': host.name, 'kind': key.kind, 'identifier': key.identifier,
                'instance_uuid': None, 'text': str(withheld.Withheld(target, causes, ())), 'order': None}


class Forget(_Requesting):
    """End the assignment of a device that the host does not have any more. Nothing is wiped.

    Refused while the host has the device, a domain may name it, or a view cannot be read. If it comes back it is
    withheld until "device admit". Beside a manager that works it leaves an order. Exit code 3 while that has no answer.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        _add_device(parser)
        parser.add_argument('--confirm', metavar='INSTANCE', type=options.canonical_uuid,
                            help='The UUID of the instance that owns the device, to confirm that this one is meant. '
                                 'Without it the assignment is shown and nothing is done.')
        parser.add_argument('--machine-gone', action='store_true',
                            help='The machine of --host, which is not this one, is gone for good with everything on '
                                 'it: ask no one there.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        name: options.DeviceName = parsed_args.device
        key = self.key(name)
        store = self.app.checked_store
        host = self._host_that_is_gone(parsed_args) if parsed_args.machine_gone \
            else self.app.observer(parsed_args.host).host
        found = store.records_of_devices(host.uuid, [key])
        if not found:
            raise exception.NotAssigned(str(name), host.name)
        record: Record = found[0]
        if parsed_args.confirm is None:
            raise base.UsageError(f'{name} is {record.role} and {record.state} for instance {record.instance_uuid}: '
                                  f'to forget it, confirm that with --confirm {record.instance_uuid}')
        outcome = Outcome(FORGOTTEN, None, None)
        if parsed_args.machine_gone:
            repairs.forget_of_machine(store, host, self._machine_id(), key, parsed_args.confirm)
        else:
            outcome = self.ask(host, orders.FORGET, FORGOTTEN, parsed_args.wait, kind=key.kind,
                             identifier=key.identifier, instance_uuid=parsed_args.confirm)
        return {'outcome': outcome.outcome, 'host': host.name, 'kind': record.kind, 'identifier': record.identifier,
                'instance_uuid': record.instance_uuid, 'role': record.role, 'state': record.state,
                'resource_class': record.resource_class, 'provider_uuid': record.provider_uuid,
                'generation': record.generation, 'order': outcome.order}

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
