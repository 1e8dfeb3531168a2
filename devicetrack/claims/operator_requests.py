"""Operator requests: commands ask the manager of a host, which does the work at its next audit and answers.

Operators see them with ``devicetrack-manage request``. An instance's request for devices is something else:
:mod:`devicetrack.objects.request`.

Only the manager of a host writes its rows. So a command that runs beside a manager leaves an operator request in the
store. If no manager runs, the command takes the host's lock and does the same work with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import json
import time
from typing import Any
from typing import Final
from typing import NamedTuple
import uuid

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import locks
from devicetrack.claims import public_calls
from devicetrack.claims.arguments import check_name
from devicetrack.claims.arguments import check_uuid
from devicetrack.claims.host import ThisHost
from devicetrack.claims.repairs import Accepted
from devicetrack.claims.repairs import OwnerChange
from devicetrack.claims.repairs import RepairOutcome
from devicetrack.claims.repairs import Repairs
from devicetrack.claims.service_cleaning import ServiceCleaning
from devicetrack.claims.unproven import Unproven
from devicetrack.claims.withheld import Withheld
from devicetrack.claims.withheld import WithheldDevices
from devicetrack.engine.withholding import Target
from devicetrack.objects import event as events
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import Word
from devicetrack.store.api import OperatorRequest

LOG = log.logger(__name__)

REPAIR: Final = 'repair'
FORGET: Final = 'forget'
RELEASE: Final = 'release'
CORDON: Final = 'cordon'
UNCORDON: Final = 'uncordon'
ADMIT: Final = 'admit'
RETIRE: Final = 'retire'
# The manager carries these out before its next claim. If two of them have one target, the newer one counts.
BEFORE_CLAIMS: Final = frozenset((CORDON, UNCORDON))

# The events that each verb ends with. Those before them may be of a part of its work: a device is withheld as retired
# before its row ends. A repair is never refused after a part of its work.
_LAST_EVENTS: Final[Mapping[str, Collection[str]]] = {
    FORGET: (events.FORGOTTEN,), RETIRE: (events.FORGOTTEN,), RELEASE: (events.RELEASED, *events.ENDS_OWNING),
    CORDON: (events.WITHHELD,), UNCORDON: (events.ADMITTED,), ADMIT: (events.ADMITTED, events.WIPED)}

# The names in earlier releases of requests that may still wait in a store.
_EARLIER: Final = {'drain': CORDON, 'undrain': UNCORDON}

# The text about repairs that are not done yet.
GOES_ON: Final = 'devices are wiped in the background, and "devicetrack-manage device list" shows the progress'

# The outcomes of operator requests.
DONE: Final = 'done'
PARTLY: Final = 'partly done'
REFUSED: Final = 'refused'
FAILED: Final = 'failed'


class Answer(NamedTuple):
    """The answer to an operator request.

    ``outcome`` is one of the words above. ``repairs`` has a text for each row that changed, or the reason why it did
    not. ``changed`` is False if the work was done already.
    """

    outcome: str
    text: str
    repairs: tuple[Mapping[str, Any], ...] = ()
    changed: bool = True


_DONE_BEFORE: Final = Answer(DONE, 'it was done before, and its answer was lost: the history has more')


def _refused(why: str, begun: bool) -> Answer:
    """The answer to a request that is refused now, and that an earlier manager may have begun."""
    return Answer(REFUSED, f'{why}; a part of it was done before: the history has more' if begun else why)


def make(host_uuid: str, verb: str, **arguments: Any) -> OperatorRequest:
    """A new operator request."""
    return OperatorRequest(str(uuid.uuid4()), host_uuid, verb, json.dumps(arguments, sort_keys=True), int(time.time()))


def answer_of(request: OperatorRequest) -> Answer | None:
    """The answer to an operator request, or None while there is none."""
    if request.answer is None:
        return None
    try:
        data = json.loads(request.answer)
        repairs = tuple(data.get('repairs', ()))
        if not all(isinstance(one, dict) for one in repairs):
            raise ValueError('a repair is an object')
        return Answer(str(data['outcome']), str(data['text']), repairs, data.get('changed', True) is True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Answer(FAILED, f'the answer cannot be read: {request.answer}')


class OperatorRequests:
    """Carries out the requests of commands on a started host.

    :param end: ends this start of the host, since a mistake or an interrupt may have left it in any state
    """

    def __init__(self, host: ThisHost, repairs: Repairs, withheld: WithheldDevices, unproven: Unproven,
                 service_cleaning: ServiceCleaning, end: Callable[[], None]) -> None:
        self._host, self._host_uuid, self._store, self._end = host.name, host.uuid, host.store, end
        self._repairs, self._withheld, self._unproven = repairs, withheld, unproven
        self._service_cleaning = service_cleaning
        self._unstored: dict[str, Answer] = {}          # by request, while the store does not have it
        self._is_mistaken = False
        # Held while something is cordoned or uncordoned and the requests about it are answered: of two contraries, the
        # one that begins later counts, and no answer denies what was done.
        self._answering = locks.Lock(locks.ANSWERING)
        self._verbs = {REPAIR: self._repair, FORGET: self._forget, RELEASE: self._release, CORDON: self._cordon,
                       UNCORDON: self._uncordon, ADMIT: self._admit, RETIRE: self._retire}

    def answer_waiting(self) -> bool:
        """Do and answer the operator requests that wait for the host's manager. For the end of an audit.

        A mistake in a request goes into its answer and is no error of the audit. If the store refuses an answer, the
        next audit stores it. A manager that starts later does the request again, unless the history tells that it was
        done, or a newer request asks for the opposite.

        :returns: whether a request waited
        """
        try:
            if not self._store.operator_requests_of_host(self._host_uuid, waiting=True):
                self._unstored.clear()
                return False
            known = self._operator_requests()
        except exception.StoreError as error:
            LOG.warning('The requests to host %(host)s cannot be read: %(error)s', {'host': self._host, 'error': error})
            return False
        for request in known:
            if request.answer is not None:
                continue
            try:
                if request.verb in BEFORE_CLAIMS:
                    self._answer_contrary(request)
                else:
                    self._carry_out_and_answer(request, ())
            except exception.StoreError as error:
                LOG.warning('Request %(uuid)s cannot be answered: %(error)s', {'uuid': request.uuid, 'error': error})
        if self._is_mistaken:
            self._end()
        return True

    def cordon_waiting(self) -> None:
        """Do and answer the waiting requests to cordon or uncordon, for a claim that is about to choose devices.

        :raises StoreUnavailable: one of them may still wait
        """
        try:
            with self._answering.held():
                known = self._operator_requests()
                for number, request in enumerate(known):
                    if request.verb in BEFORE_CLAIMS and request.answer is None:
                        self._carry_out_and_answer(request, known[number + 1:])
        except exception.OutcomeUnknown as error:
            # Only the answer is in doubt. For the claim this is no unknown outcome: it has not begun.
            raise exception.StoreUnavailable(error.store, 'the answer to a request may not be stored') from error
        if self._is_mistaken:
            self._end()

    def _answer_contrary(self, request: OperatorRequest) -> None:
        """Carry out and answer a request to cordon or uncordon, unless a newer call has answered it meanwhile.

        :raises StoreError: it is not answered
        """
        with self._answering.held():
            known = self._operator_requests()
            for number, now in enumerate(known):
                if now.uuid == request.uuid and now.answer is None:
                    self._carry_out_and_answer(now, known[number + 1:])

    def _carry_out_and_answer(self, request: OperatorRequest, later: Sequence[OperatorRequest]) -> None:
        """Do an operator request, unless only its answer is missing, and answer it.

        :raises StoreError: it is not answered
        """
        answer = self._unstored.get(request.uuid) or self._carry_out(request, later)
        self._unstored[request.uuid] = answer
        self._store_answer(request, answer)

    def _carry_out(self, request: OperatorRequest, later: Sequence[OperatorRequest]) -> Answer:
        """Do an operator request, unless the history says that an earlier manager has done it.

        :returns: the answer. A mistake of the work itself is one too, so the requests behind this one go on
        :raises StoreError: the history cannot be read
        """
        LOG.info('Host %(host)s: request %(uuid)s: %(verb)s %(arguments)s', {
            'host': self._host, 'uuid': request.uuid, 'verb': request.verb, 'arguments': request.arguments})
        try:
            newer = _contrary(request.verb, _target_of(request), later)
            begun, ended = self._history_of(request)
            if ended:                           # what it is about may have another use since
                answer = _DONE_BEFORE
            elif newer is not None:
                answer = _refused(f'request {newer.uuid} to {newer.verb} it is newer', begun)
            else:
                with public_calls.during(request.uuid):       # so the history names the request
                    answer = self._answer(request, begun)
        except exception.StoreError:
            raise
        except Exception as error:
            LOG.exception('Request %s failed', request.uuid)
            self._is_mistaken = True
            answer = Answer(FAILED, f'unexpected {type(error).__name__}: the log of the service has more')
        LOG.info('Host %(host)s: request %(uuid)s %(outcome)s: %(text)s', {
            'host': self._host, 'uuid': request.uuid, 'outcome': answer.outcome, 'text': answer.text})
        return answer

    def _history_of(self, request: OperatorRequest) -> tuple[bool, bool]:
        """Whether an earlier manager, which lost the answer, has begun an operator request, and has also ended it.

        A release is ended when none of the rows is left that it is about.

        :raises StoreError: no answer
        """
        rows: Collection[Record] = ()
        try:
            arguments = _arguments(request)
            if request.verb == RELEASE:
                instance_uuid = check_uuid('instance_uuid', arguments.get('instance_uuid'))
                claims = _claims(arguments.get('claims'))
                found = self._store.events_of_instance(instance_uuid)
                rows = [record for record in self._store.records_of_instance(self._host_uuid, instance_uuid)
                        if claims is None or record.claim_id in claims]
            else:
                name = check_name('identifier', arguments.get('identifier', arguments.get('name')))
                found = self._store.events_of_device(name, host_uuid=self._host_uuid)
        except exception.BadRequest:            # it names nothing that a history can be about
            return False, False
        told = {one.event.event for one in found if one.event.request_id == request.uuid}
        return bool(told), not rows and not told.isdisjoint(_LAST_EVENTS.get(request.verb, ()))

    def _operator_requests(self, waiting: bool = False) -> list[OperatorRequest]:
        return [request._replace(verb=_EARLIER.get(request.verb, request.verb))
                for request in self._store.operator_requests_of_host(self._host_uuid, waiting=waiting)]

    def _store_answer(self, request: OperatorRequest, answer: Answer) -> None:
        text = json.dumps(answer._asdict(), sort_keys=True)
        self._store.answer_operator_request(request.uuid, int(time.time()), text)
        self._unstored.pop(request.uuid, None)

    def _answer(self, request: OperatorRequest, begun: bool) -> Answer:
        if request.verb not in self._verbs:
            return Answer(REFUSED,
                          f'this release knows no request {request.verb}: it knows {", ".join(sorted(self._verbs))}')
        try:
            return self.do(request.verb, _arguments(request))
        except (exception.BadRequest, exception.NotAdmitted, exception.NotAssigned, exception.RowStays) as error:
            return _refused(str(error), begun)
        except exception.DeviceTrackError as error:
            return Answer(FAILED, str(error))

    def do(self, verb: str, arguments: Mapping[str, Any], wait: bool = False) -> Answer:
        """Carry out an operator request with this verb.

        :param wait: wait for wipes; an audit waits for none
        :raises DeviceTrackError: it was not done
        """
        return self._verbs[verb](arguments, wait)

    def do_now(self, verb: str, arguments: Mapping[str, Any]) -> Answer:
        """As :meth:`do`, for a command, which waits for the end. Answers waiting requests for the opposite as older.

        :raises DeviceTrackError: it was not done
        """
        if verb not in BEFORE_CLAIMS:
            return self.do(verb, arguments, wait=True)
        with self._answering.held():
            self._refuse_older(verb, _target(arguments), arguments.get('reason', ''), 'command')
            return self.do(verb, arguments)

    def cordon_now(self, target: Target, reason: str) -> Withheld:
        """Cordon a target for the service. Answers waiting requests for the opposite as older.

        The errors are those of :meth:`.operators.Operator.cordon`.
        """
        with self._answering.held():
            self._refuse_older(CORDON, target, reason, 'call of the service')
            return self._withheld.cordon(target, reason)

    def uncordon_now(self, target: Target) -> Withheld:
        """End a cordon, as :meth:`cordon_now`."""
        with self._answering.held():
            self._refuse_older(UNCORDON, target, '', 'call of the service')
            return self._withheld.uncordon(target)

    def _refuse_older(self, verb: str, target: Target, reason: str, newer: str) -> None:
        """Refuse the waiting requests for the opposite of what is about to be done, unless they were done already.

        The caller holds the lock ``answering``.

        :param newer: what asks for it now
        :raises BadRequest: it cannot be done; no request was refused
        :raises StoreUnavailable: an older request may still wait, and would undo it
        """
        self._withheld.check(target, reason)
        waiting = self._operator_requests(waiting=True)
        while (older := _contrary(verb, target, waiting)) is not None:
            try:
                begun, ended = self._history_of(older)
                self._store_answer(older, self._unstored.get(older.uuid) or (
                    _DONE_BEFORE if ended else _refused(f'a newer {newer} asked to {verb} it', begun)))
            except exception.OutcomeUnknown as error:
                # Only the answer is in doubt: nothing was cordoned or uncordoned, and the caller tries again.
                raise exception.StoreUnavailable(error.store, f'request {older.uuid} may still wait') from error
            waiting.remove(older)

    def _repair(self, arguments: Mapping[str, Any], wait: bool) -> Answer:
        # Move only the rows that the author saw: another guest may name the device by now.
        moves = _moves(arguments.get('moves', []))
        accepted = Accepted(arguments.get('accept') is True, moves.__contains__)
        return answer_to_repair(self._repairs.repair(self._repairs.plan(accepted).repairs, wait))

    def _forget(self, arguments: Mapping[str, Any], _wait: bool) -> Answer:
        key = _device(arguments)
        record = self._repairs.forget(key, check_uuid('instance_uuid', arguments.get('instance_uuid')),
                                      _claims(arguments.get('claims')))
        return Answer(DONE, f'{key} of instance {record.instance_uuid} was forgotten')

    def _release(self, arguments: Mapping[str, Any], wait: bool) -> Answer:
        instance_uuid = check_uuid('instance_uuid', arguments.get('instance_uuid'))
        before = self._keys_of(instance_uuid)
        try:
            records = self._repairs.release(instance_uuid, wait, _claims(arguments.get('claims')))
        except exception.DriverError as error:
            gone = sorted(before - self._keys_of(instance_uuid))
            if not gone:
                raise
            # The error is about one device: the operator also has to know of the others.
            return Answer(FAILED, f'{error}; given back: {", ".join(map(str, gone))}')
        return Answer(DONE, f'{", ".join(str(one.key) for one in records)} of instance '
                            f'{records[0].instance_uuid} {"was given back" if wait else "is being given back"}')

    def _keys_of(self, instance_uuid: str) -> set[DeviceKey]:
        return {record.key for record in self._store.records_of_instance(self._host_uuid, instance_uuid)}

    def _retire(self, arguments: Mapping[str, Any], _wait: bool) -> Answer:
        retired = self._repairs.retire(
            _device(arguments), check_uuid('instance_uuid', arguments.get('instance_uuid')), _text(arguments, 'reason'),
            _claims(arguments.get('claims')))
        return Answer(DONE, str(retired), changed=retired.changed)

    def _cordon(self, arguments: Mapping[str, Any], _wait: bool) -> Answer:
        return Answer(DONE, str(self._withheld.cordon(_target(arguments), _text(arguments, 'reason'))))

    def _uncordon(self, arguments: Mapping[str, Any], _wait: bool) -> Answer:
        uncordoned = self._withheld.uncordon(_target(arguments))
        return Answer(DONE, str(uncordoned), changed=uncordoned.changed)

    def _admit(self, arguments: Mapping[str, Any], _wait: bool) -> Answer:
        # A request from an earlier release has the identifier as ``name``.
        key = _device({'identifier': arguments.get('name'), **arguments})
        word = None if 'word' not in arguments else Word(_text(arguments, 'who'), _text(arguments, 'word'))
        seen = _text(arguments, 'details') if 'details' in arguments else None
        if self._service_cleaning.has(key):
            return Answer(DONE, str(self._service_cleaning.admit(
                key, arguments.get('wipe') is True, word, seen)))
        return Answer(DONE, str(self._unproven.admit(key, arguments.get('wipe') is True, word, seen)))


def answer_to_repair(outcomes: Sequence[RepairOutcome]) -> Answer:
    """The answer for repairs that were tried."""
    well, begun = sum(outcome.error is None for outcome in outcomes), sum(outcome.begun for outcome in outcomes)
    word = DONE if well == len(outcomes) else PARTLY if well else FAILED
    text = (f'{well - begun} of {len(outcomes)} repairs done' + (f', {begun} begun: {GOES_ON}' if begun else '')
            if outcomes else 'there was nothing to repair')
    return Answer(word, text, tuple(
        {'verb': outcome.repair.verb, 'device': str(outcome.repair.device),
         'kind': outcome.repair.device.kind, 'identifier': outcome.repair.device.identifier,
         'instance_uuid': outcome.repair.instance_uuid,
         'done': outcome.error is None and not outcome.begun, 'begun': outcome.begun,
         'text': outcome.error or str(outcome.repair)} for outcome in outcomes))


def _arguments(request: OperatorRequest) -> Mapping[str, Any]:
    try:
        arguments = json.loads(request.arguments)
    except (ValueError, RecursionError) as error:
        raise exception.BadRequest('arguments', request.arguments, str(error)) from error
    if not isinstance(arguments, dict):
        raise exception.BadRequest('arguments', request.arguments, 'must be an object')
    return arguments


def _moves(given: Any) -> Collection[OwnerChange]:
    try:
        return {OwnerChange(DeviceKey(*device), owner, new_owner) for device, owner, new_owner in given}
    except (TypeError, ValueError) as error:
        raise exception.BadRequest('moves', given, 'must be a list of devices with their owners') from error


def _text(arguments: Mapping[str, Any], name: str) -> str:
    return check_name(name, arguments.get(name))


def _claims(given: Any) -> frozenset[str] | None:
    """The claims that a request names; None for one from before they were named."""
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise exception.BadRequest('claims', given, 'must be a list of texts')
    return frozenset(given)


def _device(arguments: Mapping[str, Any]) -> DeviceKey:
    """The device of an operator request. A request that may mean a parent has a target instead: a scope and a name."""
    return DeviceKey(_text(arguments, 'kind'), _text(arguments, 'identifier'))


def _target_of(request: OperatorRequest) -> Target | None:
    """The target of an operator request, or None if it has none."""
    try:
        return _target(_arguments(request))
    except exception.BadRequest:
        return None


def _contrary(verb: str, target: Target | None, among: Sequence[OperatorRequest]) -> OperatorRequest | None:
    """The first request that asks for the opposite of ``verb`` with the same target."""
    if verb not in BEFORE_CLAIMS or target is None:
        return None
    return next((request for request in among if request.verb in BEFORE_CLAIMS and request.verb != verb
                 and _target_of(request) == target), None)


def _target(arguments: Mapping[str, Any]) -> Target:
    scope = _text(arguments, 'scope')
    if scope not in vocabulary.SCOPES:
        raise exception.BadRequest('scope', scope, f'must be one of {", ".join(vocabulary.SCOPES)}')
    return Target(_text(arguments, 'kind'), scope, _text(arguments, 'name'))
