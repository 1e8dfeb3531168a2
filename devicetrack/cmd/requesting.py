"""Commands that ask a host's manager for something. If no manager runs, they do the work themselves."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Collection
import time
from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import exception
from devicetrack.claims import host as host_identity
from devicetrack.claims import operator_requests
from devicetrack.claims.running import Running
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import progress
from devicetrack.objects.values import DeviceKey
from devicetrack.store.api import Host
from devicetrack.store.api import OperatorRequest
from devicetrack.store.api import Store
from devicetrack.virt.driver import VirtDriver

# The outcomes in addition to those of answers: the command did not wait, no answer came in time, or it was done here.
REQUESTED: Final = 'requested'
WAITING: Final = 'waiting'
WIPING: Final = 'wiping'
ADMITTED: Final = 'admitted'
UNCORDONED: Final = 'uncordoned'
NOT_CORDONED: Final = 'was not cordoned'
RETIRED: Final = 'retired'
RETIRED_ALREADY: Final = 'was retired already'

# The outcomes when there was nothing to do.
_UNCHANGED: Final = {UNCORDONED: NOT_CORDONED, RETIRED: RETIRED_ALREADY}

# Managers audit about once a minute. One that has not answered after ten minutes is stuck, or busy with a long audit.
TIMEOUT_S: Final = 600.0

# Seconds between two looks for the answer in the store.
_PAUSE_S: Final = 0.5

_STAYS: Final = 'request {} stays: the manager carries it out at its next audit'
_CODES: Final = {operator_requests.DONE: base.OK, operator_requests.PARTLY: base.ATTENTION}


class RequestOutcome(NamedTuple):
    """The outcome of a request to a host's manager. ``request`` is None when the command did it itself."""

    outcome: str
    text: str | None
    request: str | None


class Requesting(base.ShowOne):
    """Base of commands that ask the manager of a host for something. If no manager runs, the command does it itself."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_host(parser)
        add_waiting(parser)

    def ask(self, host: Host, verb: str, done: str, parsed_args: argparse.Namespace,
            devices: Collection[DeviceKey] = (), check: Callable[[], None] | None = None,
            **arguments: Any) -> RequestOutcome:
        """Carry a request out here, or leave it for the running manager.

        :param done: the name of the outcome when it is done
        :param devices: the devices that may be wiped for it
        :param check: raises BadRequest for a device that the host does not have. A wrong name leaves no request, so
            nobody waits for an audit to learn of it
        :raises Refused: the request cannot be carried out, and no manager was asked
        :raises HostInUse: another command works on the host; nothing was done, and no request was left
        """
        running = start_unless_managed(self.app, host.name)
        if running is None:
            if check is not None:
                self.check(check)
            made = operator_requests.make(host.uuid, verb, **arguments)
            request = leave(self, self.app.checked_store, made, parsed_args, self.app.parts(host.name).state_path)
            answer = operator_requests.answer_of(request)
            if answer is None:
                return RequestOutcome(REQUESTED if parsed_args.no_wait else WAITING, None, request.uuid)
            if answer.outcome != operator_requests.DONE:
                self.say(f'{answer.outcome}: {answer.text}')
            return RequestOutcome(_outcome(answer, done), answer.text, request.uuid)
        with progress.watching(self, lambda: wipes_in_words(self.app.driver(host.name), devices)):
            outcome = self._do(running, verb, done, arguments)
        if outcome.outcome == operator_requests.FAILED:
            self.say(f'{outcome.outcome}: {outcome.text}')
            self.exit_code = base.ERROR
        return outcome

    def check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except exception.BadRequest as error:
            raise base.RequestRefused(str(error)) from error
        except (exception.DriverError, exception.InvalidConfiguration) as error:
            self.say(f'the manager will see whether this host has it, because the command cannot: {error}')

    @staticmethod
    def _do(running: Running, verb: str, done: str, arguments: Any) -> RequestOutcome:
        try:
            answer = running.operator_requests.do_now(verb, arguments)
        except exception.BadRequest as error:
            raise base.RequestRefused(str(error)) from error
        if done == WIPING and answer.outcome == operator_requests.DONE:
            running.unproven.wait()             # otherwise the wipe would end with this process
            left = running.unproven.wiped(DeviceKey(arguments['kind'], arguments['identifier']))
            return RequestOutcome(ADMITTED, str(left), None)
        return RequestOutcome(_outcome(answer, done), answer.text, None)


def start_unless_managed(app: Any, host: str) -> Running | None:
    """Start a host in place of its manager; None if that runs, and so answers requests.

    :raises HostInUse: another command works on the host, which answers none
    """
    try:
        started: Running = app.start_host(host)
    except exception.HostInUse as error:
        if error.by_command:
            raise
        return None
    return started


def _outcome(answer: operator_requests.Answer, done: str) -> str:
    if answer.outcome != operator_requests.DONE:
        return answer.outcome
    return done if answer.changed else _UNCHANGED.get(done, done)


def wipes_in_words(driver: VirtDriver, devices: Collection[DeviceKey]) -> str | None:
    """Return the progress of the wipes of these devices; None if none is being wiped or read."""
    wiping = driver.wiping(devices) if devices else {}
    if not wiping:
        return None
    key, wipe = next(iter(wiping.items()))
    more = f'; {len(wiping) - 1} more' if len(wiping) > 1 else ''
    return f'{key}: {wipe}{more}'


# -- requests to a running manager ------------------------------------------------------------------------------------


def add_waiting(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that may leave a request."""
    waits = parser.add_mutually_exclusive_group()
    waits.add_argument('--no-wait', action='store_true',
                       help="If the host's manager runs: leave the request and end at once, with exit code 0. By "
                            'default the command waits for the answer, which comes with the next audit of the '
                            'manager. A cordon takes effect at once all the same.')
    add_timeout(waits)


def add_timeout(parser: Any) -> None:
    parser.add_argument('--timeout', type=options.seconds, default=TIMEOUT_S, metavar='SECONDS',
                        help=f'Wait at most this long for the answer. By default {TIMEOUT_S:.0f}. The request stays.')


def leave(command: base.Command, store: Store, request: OperatorRequest, parsed_args: argparse.Namespace,
          state_path: str) -> OperatorRequest:
    """Leave a request for a running manager, and wait for the answer unless the command's options say otherwise.

    :param state_path: the state directory of the manager
    :returns: the request in its state after that; the command's exit code follows from it
    :raises StoreError: it was not left. If that is in doubt, the command has said where to see it
    """
    try:
        store.add_operator_request(request)
    except exception.OutcomeUnknown:
        _leave_again(command, store, request)
    hears = host_identity.tell_manager(state_path) and request.verb in operator_requests.BEFORE_CLAIMS
    when = 'is carried out before the next claim, and by the next audit' if hears else 'waits for its next audit'
    # A manager in the process that runs this command makes no audit while that process waits for the command.
    then = (f'; devicetrack-manage request show {request.uuid} has the answer then' if parsed_args.no_wait
            else ' (with --no-wait this command ends at once)')
    command.say(f"the host's manager runs: request {request.uuid} {when}{then}")
    if not parsed_args.no_wait:
        request = wait_for(command, store, request.uuid, parsed_args.timeout)
        command.exit_code = code_of(request)
    return request


def _leave_again(command: base.Command, store: Store, request: OperatorRequest) -> None:
    """Settle whether the store has a request. It stores a request once, however often it is asked."""
    try:
        store.add_operator_request(request)
    except exception.StoreError:
        command.say(f'request {request.uuid} may wait for the manager: see devicetrack-manage request show '
                    f'{request.uuid}')
        raise


def wait_for(command: base.Command, store: Store, uuid: str, seconds: float) -> OperatorRequest:
    """Return the request as soon as it has an answer, or when the time is up, which the command then says.

    :raises UnknownToStore: the store does not have it
    :raises StoreUnavailable: the store does not answer when the time is up; the request stays
    """
    began = time.monotonic()
    try:
        with progress.Progress(command) as shown:
            while True:
                took = time.monotonic() - began
                try:
                    request = find(store, uuid)
                except exception.StoreUnavailable:
                    if took >= seconds:
                        raise
                else:
                    if request.answer is not None or took >= seconds:
                        break
                shown.show(f'request {uuid} waits for an audit of the manager, {progress.duration(took)} so far')
                time.sleep(max(0.0, min(_PAUSE_S, seconds - took)))
    except (exception.StoreUnavailable, KeyboardInterrupt):
        command.say(_STAYS.format(uuid))
        raise
    if request.answer is None:
        command.say(f'no answer after {progress.duration(seconds)}; the request stays: check that the service of the '
                    f'host makes audits, and wait with devicetrack-manage request show --wait {uuid}')
    return request


def find(store: Store, uuid: str) -> OperatorRequest:
    """:raises UnknownToStore: the store does not have it"""
    request = store.operator_request(uuid)
    if request is None:
        raise exception.UnknownToStore('request', uuid, None, 'see devicetrack-manage request list')
    return request


def code_of(request: OperatorRequest) -> int:
    """Return the exit code for a request: that of its answer, or ERROR if the command waited in vain."""
    answer = operator_requests.answer_of(request)
    return base.ERROR if answer is None else _CODES.get(answer.outcome, base.ERROR)
