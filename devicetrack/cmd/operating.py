"""``devicetrack-manage device``: operators cordon, uncordon, admit, retire and forget devices."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Mapping
import os
import pwd
from typing import Any
from typing import NoReturn

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import arguments
from devicetrack.claims import operator_requests
from devicetrack.claims import repairs
from devicetrack.claims import withheld
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import records
from devicetrack.cmd import requesting
from devicetrack.engine.withholding import Target
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.store.api import Host

FORGOTTEN = 'forgotten'
CORDONED = 'cordoned'


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('device', metavar='KIND/IDENTIFIER', type=options.device_key,
                        help='The device, with its kind: vpmem/ns0.')


def _answer(outcome: requesting.RequestOutcome, host: Host, kind: str, identifier: str | None,
            **more: str | None) -> Mapping[str, Any]:
    return {'outcome': outcome.outcome, 'host': host.name, **records.of_device(kind, identifier), **more,
            'text': outcome.text, 'request_uuid': outcome.request}


class _Cordoning(requesting.Requesting):
    """Base of the commands that cordon something or, with another verb, end a cordon."""

    verb, done = operator_requests.CORDON, CORDONED

    def add_reason(self, parser: argparse.ArgumentParser) -> None:
        if self.verb == operator_requests.CORDON:
            options.add_reason(parser)

    def cordon(self, host: Host, target: Target, parsed_args: argparse.Namespace,
               check: Callable[[], None] | None = None) -> requesting.RequestOutcome:
        reason = {'reason': parsed_args.reason} if self.verb == operator_requests.CORDON else {}
        return self.ask(host, self.verb, self.done, parsed_args, check=check, **target._asdict(), **reason)


class Cordon(_Cordoning):
    """Keep a device, or with --parent all devices of a parent, from new instances. An instance that has one keeps it.

    The cordon lasts until "device uncordon", even across restarts and while the device is gone. "device list
    --withheld" shows the instances that still have such devices.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument('device', metavar='KIND/NAME', type=options.device_key,
                            help='The device, with its kind: vpmem/ns0. With --parent the parent, with the kind of its '
                                 'devices: mdev/pci_0000_84_00_0.')
        parser.add_argument('--parent', action='store_true',
                            help='All devices that the parent of this name has or can make.')
        self.add_reason(parser)

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        kind, name = parsed_args.device
        target, observer = Target.named(kind, name, parsed_args.parent), self.app.observer(parsed_args.host)
        outcome = self.cordon(observer.host, target, parsed_args, lambda: observer.check_known(target))
        device, parent = (None, name) if parsed_args.parent else (name, None)
        return _answer(outcome, observer.host, kind, device, parent=parent)


class Uncordon(Cordon):
    """End the cordon of a device, or with --parent of a parent.

    Devices that are withheld for other reasons stay withheld.
    """

    verb, done = operator_requests.UNCORDON, requesting.UNCORDONED


class HostCordon(_Cordoning):
    """Keep all devices of this host from new instances, also those that come later. Instances keep what they have.

    The scheduler sees no free device here any more. The cordon lasts until "host uncordon", even across restarts. Run
    it on the host itself.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('host', metavar='NAME', nargs='?',
                            help='The host, when this machine is more than one in the store. By default the host that '
                                 'this machine is.')
        requesting.add_waiting(parser)
        self.add_reason(parser)

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        host = self.app.observer(parsed_args.host).host
        outcome = self.cordon(host, Target.host(host.name), parsed_args)
        return {'outcome': outcome.outcome, 'host': host.name, 'text': outcome.text, 'request_uuid': outcome.request}


class HostUncordon(HostCordon):
    """End the cordon of this host. Devices and parents that are cordoned by themselves stay cordoned."""

    verb, done = operator_requests.UNCORDON, requesting.UNCORDONED


class Admit(requesting.Requesting):
    """Make a forgotten or retired device available again. Wipes nothing: without --wipe use it only for a clean device.

    The manager then reads a namespace, which becomes available if all of it is zero. With --wipe the manager wipes a
    forgotten, retired or unproven device in the background, whatever is on it. The device becomes available when the
    wipe is proven. A disk of an instance that may have changed places with others is where it was if you admit it: its
    instance gets it again. With --clean-by-my-word your word is the proof that such a device is clean, until somebody
    uses it. The request is refused while the host does not have the device, an instance has it, a domain names it, or
    one of these is unknown. --wipe and --clean-by-my-word are also refused while the host is report-only.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        _add_device(parser)
        proofs = parser.add_mutually_exclusive_group()
        proofs.add_argument('--wipe', action='store_true',
                            help='Overwrite the whole device with zeros, or clean it as its options say. Its contents '
                                 'are lost.')
        proofs.add_argument('--clean-by-my-word', type=options.reason, metavar='REASON',
                            help='Nothing is read or wiped: you say that the device keeps nothing of its last owner, '
                                 'and why you know that, in one line of at most 255 characters. The proof and the '
                                 'history have the reason, your user name and the time.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        key = parsed_args.device
        observer = self.app.observer(parsed_args.host)
        host = observer.host
        more: dict[str, Any] = ({'wipe': True} if parsed_args.wipe else {} if parsed_args.clean_by_my_word is None else
                {'word': parsed_args.clean_by_my_word, 'who': _user()})
        done = requesting.WIPING if parsed_args.wipe else requesting.ADMITTED
        # The manager may carry it out later, and may have another device of this name then.
        if (seen := observer.details_of(key)) is not None:
            more['details'] = seen
        outcome = self.ask(host, operator_requests.ADMIT, done, parsed_args, [key],
                           check=lambda: observer.check_known(Target.of(key)), **key._asdict(), **more)
        return _answer(outcome, host, *key)


def _user() -> str:
    """The name of the person who runs the command, also with sudo, as far as the machine knows it."""
    uid = os.getuid()
    if uid == 0 and (by := os.environ.get('SUDO_USER', '')).isprintable() and by:
        return by[:arguments.REASON_LENGTH]
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f'user {uid}'


class _Ending(requesting.Requesting):
    """Base of the commands that end the assignment of a device, if its instance is named as a confirmation."""

    verb: str
    whose = 'the instance that owns the device'

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        _add_device(parser)
        parser.add_argument('--confirm', metavar='INSTANCE', type=options.canonical_uuid,
                            help=f'The UUID of {self.whose}, as a confirmation of the device. Without it the command '
                                 'only shows the assignment.')

    def refuse(self, host: Host, key: DeviceKey, machine_gone: bool = False) -> NoReturn:
        """:raises NotAssigned, RequestRefused: nobody has the device, or this host does not have it"""
        if not machine_gone:
            self.check(lambda: self.app.observer(host.name).check_known(Target.of(key)))
        raise exception.NotAssigned(str(key), host.name)

    def record_of(self, host: Host, parsed_args: argparse.Namespace) -> Record | None:
        """Return the row of the device, which the command line confirms; None if it has none."""
        found: list[Record] = self.app.checked_store.records_of_devices(host.uuid, [parsed_args.device])
        for one in found:
            if parsed_args.confirm is None:
                raise base.UsageError(f'{parsed_args.device} is {one.role} and {one.state} for instance '
                                      f'{one.instance_uuid}: to {self.verb} it, confirm with --confirm '
                                      f'{one.instance_uuid}')
        return found[0] if found else None


class Wipe(Admit):
    """Wipe a forgotten, retired or unproven device, whatever is on it, and make it available again. Its data are lost.

    The same as "device admit --wipe". The manager wipes the device in the background. The device becomes available when
    the wipe is proven. The request is refused while the host does not have the device, an instance has it, a domain
    names it, or one of these is unknown, and while the host is report-only.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super(Admit, self).add_arguments(parser)
        _add_device(parser)
        parser.set_defaults(wipe=True, clean_by_my_word=None)


class Retire(_Ending):
    """End the assignment of a device that is releasing and cannot be wiped, and withhold the device.

    Nothing is wiped: the bytes of its last guest stay on the device. It is withheld as retired until "device admit",
    even across restarts. A second run of the command changes nothing. The request is refused if the device is not
    releasing, while it is being wiped, while a domain names it, while one of these is unknown, or while the host is
    report-only.
    """

    verb = operator_requests.RETIRE
    whose = 'the last instance of the device'

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        options.add_reason(parser, ' By default the reason why it could not be given back.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        key = parsed_args.device
        host = self.app.observer(parsed_args.host).host
        record = self.record_of(host, parsed_args)
        if record is None:
            return _answer(self._retired_already(host, key), host, *key, instance_uuid=None)
        outcome = self.ask(host, self.verb, requesting.RETIRED, parsed_args, **key._asdict(),
                           instance_uuid=parsed_args.confirm, reason=parsed_args.reason)
        return _answer(outcome, host, *key, instance_uuid=record.instance_uuid)

    def _retired_already(self, host: Host, key: DeviceKey) -> requesting.RequestOutcome:
        """:raises NotAssigned: it is not"""
        target = Target.of(key)
        causes = withheld.load(self.app.checked_store, host.uuid).get(target, {})
        if vocabulary.RETIRED not in causes:
            self.refuse(host, key)
        return requesting.RequestOutcome(requesting.RETIRED_ALREADY, str(withheld.Withheld(target, causes, ())), None)


class Forget(_Ending):
    """End the assignment of a device that the host does not have any more. Nothing is wiped.

    The request is refused while the host has the device, a domain may name it, the host or the hypervisor cannot be
    read, or the host is report-only. If the device comes back, it is withheld until "device admit".
    """

    verb = operator_requests.FORGET

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument('--machine-gone', action='store_true',
                            help='Do not ask the manager of --host: that machine, which is not this one, is gone for '
                                 'good with all its data.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        key = parsed_args.device
        store = self.app.checked_store
        if parsed_args.machine_gone and parsed_args.host is None:
            raise base.UsageError('--machine-gone is about another machine: name it with --host')
        host = records.host_of(store, parsed_args.host) if parsed_args.machine_gone \
            else self.app.observer(parsed_args.host).host
        record = self.record_of(host, parsed_args)
        if record is None:
            self.refuse(host, key, parsed_args.machine_gone)
        outcome = requesting.RequestOutcome(FORGOTTEN, None, None)
        if parsed_args.machine_gone:
            repairs.forget_of_machine(store, host, self.app.machine_id, key, parsed_args.confirm)
        else:
            outcome = self.ask(host, self.verb, FORGOTTEN, parsed_args, **key._asdict(),
                               instance_uuid=parsed_args.confirm)
        return _answer(outcome, host, *key, instance_uuid=record.instance_uuid)
