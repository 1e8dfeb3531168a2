"""``devicetrack-manage order``: what commands asked of managers that work, and what these answered."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import json
import time
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.claims import orders
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.store.api import Order
from devicetrack.store.api import Store

COLUMNS: Final = ('uuid', 'host', 'verb', 'arguments', 'created_at', 'answered_at', 'outcome', 'text')
WAITING: Final = 'waiting'

# How often an order that somebody waits for is asked about.
_PAUSE_S: Final = 0.5

_CODES: Final = {orders.DONE: base.OK, orders.PARTLY: base.ATTENTION, WAITING: base.ATTENTION}


class List(base.Lister):
    """List orders, oldest first: those that wait for a manager's next audit, and the newest that have answers."""

    columns = COLUMNS
    in_table = ('uuid', 'host', 'verb', 'arguments', 'outcome', 'text')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--host', metavar='NAME', help='Only those for this host.')
        parser.add_argument('--waiting', action='store_true', help='Only those that have no answer yet.')

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Sequence[Any]]:
        store = self.app.checked_store
        names = {host.uuid: host.name for host in store.hosts()}
        uuids = {name: uuid for uuid, name in names.items()}
        if parsed_args.host is None:
            orders = store.orders(parsed_args.waiting)
        elif parsed_args.host in uuids:
            orders = store.orders_of_host(uuids[parsed_args.host], parsed_args.waiting)
        else:
            raise exception.UnknownHost(parsed_args.host, uuids)
        for order in orders:
            values = fields(order, names)
            yield [values[column] for column in COLUMNS]


class Show(base.ShowOne):
    """Show an order and its answer.

    Exit code 1 when it was refused or failed, 3 when it has no answer yet or was done in part.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('order', metavar='UUID', type=options.canonical_uuid, help='The order.')
        add_wait(parser)

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        store = self.app.checked_store
        order = wait_for(store, parsed_args.order, parsed_args.wait)
        shown = fields(order, {host.uuid: host.name for host in store.hosts()})
        answer = orders.answer_of(order)
        shown['repairs'] = answer.repairs if answer is not None else ()
        self.exit_code = code_of(order)
        return shown


def add_wait(parser: argparse.ArgumentParser) -> None:
    """``--wait``, for commands that may leave an order."""
    parser.add_argument('--wait', type=options.seconds, default=0, metavar='SECONDS',
                        help='Wait so long for the answer, which comes with the next audit of the manager. By default '
                             'not at all.')


def leave(command: base.Command, store: Store, order: Order, wait_s: float) -> Order:
    """Leave an order for a manager that works, wait for its answer and say what came of it.

    :returns: the order as it is then; the command's exit code follows from it
    """
    store.add_order(order)
    command.say(f'the manager of the host works: order {order.uuid} waits for its next audit')
    order = wait_for(store, order.uuid, wait_s)
    answer = orders.answer_of(order)
    if answer is not None:
        command.say(f'{answer.outcome}: {answer.text}')
        for one in answer.repairs:
            became = 'done' if one.get('done') else 'begun' if one.get('begun') else 'not done'
            command.say(f'{became}: {one.get("text")}')
    command.exit_code = code_of(order)
    return order


def wait_for(store: Store, uuid: str, seconds: float) -> Order:
    """The order, as soon as it has an answer or the time is up.

    :raises UnknownOrder: the store does not have it
    """
    until = time.monotonic() + seconds
    while True:
        order = next((one for one in store.orders() if one.uuid == uuid), None)
        if order is None:
            raise exception.UnknownOrder(uuid)
        left = until - time.monotonic()
        if order.answer is not None or left <= 0:
            return order
        time.sleep(min(_PAUSE_S, left))


def code_of(order: Order) -> int:
    """The exit code that an order's answer stands for."""
    answer = orders.answer_of(order)
    return _CODES.get(answer.outcome if answer is not None else WAITING, base.ERROR)


def fields(order: Order, names: Mapping[str, str]) -> dict[str, Any]:
    answer = orders.answer_of(order)
    try:
        arguments = json.loads(order.arguments)
    except (ValueError, RecursionError):
        arguments = order.arguments
    return {'uuid': order.uuid, 'host': names.get(order.host_uuid), 'verb': order.verb, 'arguments': arguments,
            'created_at': order.created_at, 'answered_at': order.answered_at,
            'outcome': answer.outcome if answer is not None else WAITING,
            'text': answer.text if answer is not None else None}
