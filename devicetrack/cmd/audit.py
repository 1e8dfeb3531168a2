"""``devicetrack-manage audit``: what the record, the hypervisor and the host say differently."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.engine import reconcile
from devicetrack.engine.reconcile import Finding


class Findings(base.Lister):
    """Base of every check: one list, one form and one exit code for whatever is found.

    All fields of a finding are columns. The code is 3 for a finding that is critical or a warning; notes tell of work
    that goes on by itself.
    """

    columns = ('host', 'severity', 'kind', 'device_kind', 'device',
               *[field for field in Finding._fields if field not in ('severity', 'kind', 'device')])
    in_table = ('severity', 'kind', 'device_kind', 'device', 'detail', 'proposal')

    def rows_of(self, host: str, findings: Sequence[Finding]) -> Iterator[Sequence[Any]]:
        for finding in findings:
            if finding.severity != reconcile.NOTE:
                self.exit_code = base.ATTENTION
            values = {**finding._asdict(), 'host': host, 'device_kind': finding.device.kind or None,
                      'device': finding.device.identifier or None}
            yield [values[column] for column in self.columns]


class Audit(Findings):
    """Compare what the store, the hypervisor and this host say, and list what differs. Changes nothing.

    Reads everything twice and lists what both readings show, so it may run while the host's manager works. Exit code
    3 when something needs attention.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        options.add_host(parser)
        return parser

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Sequence[Any]]:
        observer = self.app.observer(parsed_args.host)
        findings = observer.audit()
        if not findings and parsed_args.formatter == 'table':
            self.say(f'host {observer.host.name}: no differences')      # a table without lines says nothing
        return self.rows_of(observer.host.name, findings)
