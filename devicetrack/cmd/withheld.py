"""``devicetrack-manage withheld``: what nobody gets at the moment, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
import time
from typing import Any

from devicetrack.claims import withheld
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.engine import withholding


class List(base.Lister):
    """List the devices and parents of this host that are withheld: a line for each reason, and who has them still.

    Reads the host, the hypervisor and the store, and changes nothing. What began since the last audit of the manager
    has no "since", and neither has what an option says. The
    list may be one audit behind: what ended since then is in it still, and a wipe that failed since then is not yet.
    """

    columns = ('kind', 'scope', 'name', 'reason', 'since', 'by', 'detail', 'instances', 'left')
    in_table = ('kind', 'scope', 'name', 'reason', 'since', 'detail', 'instances')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_host(parser)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Sequence[Any]]:
        for one in self.app.observer(parsed_args.host).withheld():
            for reason in withholding.in_order(one.causes):
                cause = one.causes[reason]
                since: Any = cause.since or None
                if since is not None and parsed_args.formatter == 'table':
                    since = time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime(since))
                yield [*one.target, reason, since, cause.by, cause.text, *_left(one)]


def _left(one: withheld.Withheld) -> tuple[list[str], list[dict[str, str]]]:
    """For people: each instance with the states of what it has. For programs: each device."""
    states: dict[str, list[str]] = {}
    for record in one.left:
        states.setdefault(record.instance_uuid, []).append(record.state)
    return ([f'{instance} ({", ".join(of_instance)})' for instance, of_instance in states.items()],
            [{'instance_uuid': record.instance_uuid, 'identifier': record.identifier, 'role': record.role,
              'state': record.state} for record in one.left])
