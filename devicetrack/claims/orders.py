"""Orders: what a command asks of the manager of a host, which carries it out at its next audit and answers.

A host's rows are written by its manager alone. So a command that is run beside one leaves an order in the store; with
the manager down it takes the host's lock and does the same work by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import json
import time
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import TYPE_CHECKING
import uuid

from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import repairs
from devicetrack.claims import withheld
from devicetrack.engine.withholding import Place
from devicetrack.objects.values import DeviceKey
from devicetrack.store.api import Order

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)

REPAIR: Final = 'repair'
FORGET: Final = 'forget'
DRAIN: Final = 'drain'
UNDRAIN: Final = 'undrain'
ADMIT: Final = 'admit'

# What an answer says became of an order.
DONE: Final = 'done'
PARTLY: Final = 'partly done'
REFUSED: Final = 'refused'
FAILED: Final = 'failed'


class Answer(NamedTuple):
    """``outcome`` is one of the words above; ``repairs`` has a text for each row that changed, or why it did not.

    ``changed`` is False of what was done already.
    """

    outcome: str
    text: str
    repairs: tuple[Mapping[str, Any], ...] = ()
    changed: bool = True


def make(host_uuid: str, verb: str, **arguments: Any) -> Order:
    """A new order."""
    return Order(str(uuid.uuid4()), host_uuid, verb, json.dumps(arguments, sort_keys=True), int(time.time()))


def answer_of(order: Order) -> Answer | None:
    """The answer of an order, None while there is none."""
    if order.answer is None:
        return None
    try:
        data = json.loads(order.answer)
        return Answer(str(data['outcome']), str(data['text']), tuple(data.get('repairs', ())),
                      data.get('changed', True) is True)
    except (ValueError, KeyError, TypeError):
        return Answer(FAILED, f'the answer cannot be read: {order.answer}')


def carry_out(manager: Steps) -> bool:
    """Carry out and answer the orders that wait for a host's manager. For the end of an audit.

    Whatever is wrong with an order is its answer, and no error of the audit.

    :returns: whether there was any
    """
    try:
        waiting = manager.store.orders(manager.host_uuid, waiting=True)
    except exception.StoreError as error:
        LOG.warning('Orders for host %(host)s cannot be read: %(error)s', {'host': manager.host, 'error': error})
        return False
    for order in waiting:
        LOG.info('Host %(host)s: order %(uuid)s: %(verb)s %(arguments)s', {
            'host': manager.host, 'uuid': order.uuid, 'verb': order.verb, 'arguments': order.arguments})
        answer = _carry_out(manager, order)
        LOG.info('Host %(host)s: order %(uuid)s %(outcome)s: %(text)s', {
            'host': manager.host, 'uuid': order.uuid, 'outcome': answer.outcome, 'text': answer.text})
        try:
            manager.store.answer_order(order.uuid, int(time.time()), json.dumps(answer._asdict(), sort_keys=True))
        except exception.StoreError as error:
            # It is carried out once more at the next audit, which finds it done.
            LOG.warning('Order %(uuid)s cannot be answered: %(error)s', {'uuid': order.uuid, 'error': error})
    return bool(waiting)


def _carry_out(manager: Steps, order: Order) -> Answer:
    if order.verb not in _WORK:
        return Answer(REFUSED, f'this release knows no order {order.verb}: it knows {", ".join(sorted(_WORK))}')
    try:
        return do(manager, order.verb, _arguments(order))
    except (exception.BadRequest, exception.NotForgotten, exception.NotAssigned, exception.NotAdmitted) as error:
        return Answer(REFUSED, str(error))
    except exception.DeviceTrackError as error:
        return Answer(FAILED, str(error))
    except Exception as error:
        LOG.exception('Order %s failed', order.uuid)
        return Answer(FAILED, f'unexpected {type(error).__name__}: the log of the service has more')


def do(manager: Steps, verb: str, arguments: Mapping[str, Any]) -> Answer:
    """Do what an order with this verb would have done.

    :raises DeviceTrackError: it was not done
    """
    return _WORK[verb](manager, arguments)


def _arguments(order: Order) -> Mapping[str, Any]:
    try:
        arguments = json.loads(order.arguments)
    except ValueError as error:
        raise exception.BadRequest('arguments', order.arguments, str(error)) from error
    if not isinstance(arguments, dict):
        raise exception.BadRequest('arguments', order.arguments, 'must be an object')
    return arguments


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise exception.BadRequest(name, value, 'must be a text')
    return value


def _repair(manager: Steps, arguments: Mapping[str, Any]) -> Answer:
    return answer_to_repair(repairs.repair_host(manager, accept=arguments.get('accept') is True))


def answer_to_repair(outcomes: Sequence[repairs.Outcome]) -> Answer:
    """What to say of repairs that were tried."""
    done = sum(outcome.error is None for outcome in outcomes)
    word = DONE if done == len(outcomes) else PARTLY if done else FAILED
    return Answer(word, f'{done} of {len(outcomes)} repairs done' if outcomes else 'there was nothing to repair', tuple(
        {'verb': outcome.repair.verb, 'device_kind': outcome.repair.device.kind,
         'device': outcome.repair.device.identifier, 'instance_uuid': outcome.repair.instance_uuid,
         'done': outcome.error is None, 'text': outcome.error or str(outcome.repair)} for outcome in outcomes))


def _forget(manager: Steps, arguments: Mapping[str, Any]) -> Answer:
    key = DeviceKey(_text(arguments, 'kind'), _text(arguments, 'identifier'))
    record = repairs.forget(manager, key, _text(arguments, 'instance_uuid'))
    return Answer(DONE, f'{key.kind}/{key.identifier} of instance {record.instance_uuid} is forgotten')


def _drain(manager: Steps, arguments: Mapping[str, Any]) -> Answer:
    return Answer(DONE, str(withheld.drain(manager, _place(arguments), _text(arguments, 'reason'))))


def _undrain(manager: Steps, arguments: Mapping[str, Any]) -> Answer:
    undrained = withheld.undrain(manager, _place(arguments))
    return Answer(DONE, str(undrained), changed=undrained.changed)


def _admit(manager: Steps, arguments: Mapping[str, Any]) -> Answer:
    return Answer(DONE, str(withheld.admit(manager, DeviceKey(_text(arguments, 'kind'), _text(arguments, 'name')))))


def _place(arguments: Mapping[str, Any]) -> Place:
    scope = _text(arguments, 'scope')
    if scope not in vocabulary.SCOPES:
        raise exception.BadRequest('scope', scope, f'must be one of {", ".join(vocabulary.SCOPES)}')
    return Place(_text(arguments, 'kind'), scope, _text(arguments, 'name'))


_WORK: Final[Mapping[str, Callable[[Steps, Mapping[str, Any]], Answer]]] = {
    REPAIR: _repair, FORGET: _forget, DRAIN: _drain, UNDRAIN: _undrain, ADMIT: _admit}
