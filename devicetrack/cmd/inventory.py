"""``devicetrack-manage inventory``: what a host has, and what of it is free."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import options


class List(base.Lister):
    """List the devices of this host: which are free, held, on their way back or withheld, and what can still be made.

    Reads the host, the hypervisor and the store, and changes nothing. Exit code 3 when a part could not be read, or
    an option names a device that this host does not have; they have lines with the status "unknown" and "missing".
    """

    columns = ('kind', 'identifier', 'status', 'amount', 'resource_class', 'provider', 'provider_uuid', 'parent',
               'numa_node', 'instance_uuid', 'reason', 'details')
    in_table = ('kind', 'identifier', 'status', 'amount', 'resource_class', 'parent', 'numa_node', 'instance_uuid',
                'reason')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_host(parser)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Sequence[Any]]:
        for line in self.app.observer(parsed_args.host).inventory():
            if line.status in (report.UNKNOWN, report.MISSING):
                self.exit_code = base.ATTENTION
            values = {**line._asdict(), 'details': base.details_fields(line.details)}
            yield [values[column] for column in self.columns]
