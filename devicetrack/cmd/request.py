"""``devicetrack-manage request``: the requests of commands to running managers, and the answers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
import json
from typing import Any

from devicetrack import vocabulary
from devicetrack.claims import operator_requests
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import records
from devicetrack.cmd import requesting
from devicetrack.cmd import watching
from devicetrack.store.api import OperatorRequest


class List(watching.Watched, base.Blocks):
    """List the operator requests, oldest first.

    The list has all requests that wait for the next audit of a manager, and the newest of the others.
    """

    columns = ('request_uuid', 'host', 'request', 'verb', 'arguments', 'created_at', 'answered_at', 'outcome', 'text')
    in_block = ('request_uuid', 'request', 'verb', 'arguments', 'created_at', 'answered_at', 'outcome', 'text')
    prose = ('request', 'text')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--host', metavar='NAME', help='Only requests for this host.')
        parser.add_argument('--waiting', action='store_true', help='Only requests without an answer.')
        options.add_period(parser, 'requests')

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return ('no request waits' if parsed_args.waiting else 'there is no request') + options.within(parsed_args)

    def head(self, row: Mapping[str, Any]) -> tuple[str, str]:
        return row['outcome'], f'request {row["request_uuid"]}'

    def body(self, row: Mapping[str, Any]) -> Iterator[str]:
        yield row['request']
        yield f'asked {row["created_at"]}' + (f'; answered {row["answered_at"]}' if row['answered_at'] else '')
        yield row['text']

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        store = self.app.checked_store
        hosts = records.names_of_hosts(store)
        if parsed_args.host is None:
            found = store.operator_requests(parsed_args.waiting)
        else:
            found = store.operator_requests_of_host(records.host_of(store, parsed_args.host).uuid, parsed_args.waiting)
        for request in found:
            if options.is_within(parsed_args, request.created_at):
                yield fields(request, hosts)


class Show(base.ShowOne):
    """Show a request and its answer.

    Exit code 1 when it was refused or failed, or --wait ended without an answer; 3 when repairs were done in part.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('request', metavar='UUID', type=options.canonical_uuid, help='The request.')
        parser.add_argument('--wait', action='store_true', help='Wait for the answer.')
        requesting.add_timeout(parser)

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        store = self.app.checked_store
        request = requesting.find(store, parsed_args.request)
        if parsed_args.wait and request.answer is None:
            request = requesting.wait_for(self, store, request.uuid, parsed_args.timeout)
        if parsed_args.wait or request.answer is not None:
            self.exit_code = requesting.code_of(request)
        answer = operator_requests.answer_of(request)
        repairs = answer.repairs if answer is not None else ()
        return {**fields(request, records.names_of_hosts(store)),
                'repairs': base.Shown(repairs, list(map(became, repairs)))}


def became(repair: Mapping[str, Any]) -> str:
    """Return the outcome of one repair in an answer. The log of the service has the row before and after."""
    what = f'{repair.get("verb")} {repair.get("device")}'
    if repair.get('done') or repair.get('begun'):
        return f'{"done" if repair.get("done") else "begun"}: {what}'
    return f'not done: {what}: {repair.get("text")}'


def fields(request: OperatorRequest, hosts: Mapping[str, str]) -> dict[str, Any]:
    answer = operator_requests.answer_of(request)
    try:
        arguments = json.loads(request.arguments)
    except (ValueError, RecursionError):
        arguments = request.arguments
    return {'request_uuid': request.uuid, 'host': hosts.get(request.host_uuid),
            'request': _in_words(request.verb, arguments), 'verb': request.verb, 'arguments': arguments,
            'created_at': base.Moment(request.created_at),
            'answered_at': None if request.answered_at is None else base.Moment(request.answered_at),
            'outcome': answer.outcome if answer is not None else requesting.WAITING,
            'text': answer.text if answer is not None else None}


def _in_words(verb: str, arguments: Any) -> str:
    """Return a request in words: its verb, its device, and the other short arguments unchanged."""
    if not isinstance(arguments, dict):
        return f'{verb} {arguments}'
    rest = {key: value for key, value in arguments.items() if key != 'details'}
    name = rest.pop('name', None) or rest.pop('identifier', None)
    told = []
    if name is not None:
        scope, kind = rest.pop('scope', vocabulary.DEVICE), rest.pop('kind', '')
        told = [('' if scope == vocabulary.DEVICE else f'{scope} ') + (f'{kind}/{name}' if kind else name)]
    told += [f'{key}={value}' for key, value in rest.items() if value not in ('', None, [], False)]
    return f'{verb} {", ".join(told)}'.rstrip()
