"""``devicetrack-manage placement audit``: compares placement with the record, and makes certain repairs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any

from devicetrack.cmd import audit as audit_commands
from devicetrack.cmd import base
from devicetrack.cmd import placement
from devicetrack.conf import placement as placement_options
from devicetrack.engine import findings
from devicetrack.engine.findings import Finding
from devicetrack.placement import node
from devicetrack.placement import tree
from devicetrack.placement.audit import Mismatch
from devicetrack.placement.audit import PlacementRepair
from devicetrack.placement.auditor import Auditor
from devicetrack.placement.auditor import HostView
from devicetrack.store.leftovers import HostLeftovers


class Audit(audit_commands.Repairing):
    """Compare placement with this host's record of its devices, and list the differences.

    Reads everything twice and lists the differences that both readings show, so it may run while the host's manager
    works. Without --repair it changes nothing. With --repair it lists the repairs that are certain, and then makes
    them. Exit code 3 when something needs attention.
    """

    # No finding is about one device: placement counts devices, and does not name them.
    of_finding = tuple(name for name in audit_commands.Findings.of_finding
                       if name not in audit_commands.Findings.of_device)
    columns = (*of_finding, 'consumer', 'provider', 'resource_class')
    repair_columns = ('host', 'verb', 'consumer', 'instance_uuid', 'before', 'after', 'reason', 'provider')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        placement.add_options(parser)
        parser.add_argument('--repair', action='store_true', help='List the repairs that are certain, and then make '
                                                                  'them.')
        parser.add_argument('--dry-run', action='store_true', help='With --repair: only list the repairs.')

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        if parsed_args.dry_run and not parsed_args.repair:
            raise base.UsageError('--dry-run goes with --repair')
        return super().take_action(parsed_args)

    def rows(self, parsed_args: argparse.Namespace) -> Iterable[Mapping[str, Any]]:
        host, auditor = self._auditor(parsed_args)
        self._host = host
        if parsed_args.repair:
            return self._planned(host, auditor, parsed_args.dry_run)
        found = auditor.audit()
        return (one._asdict() | row for row, one in zip(
            self.rows_of(host, [_finding(one) for one in found]), found, strict=True))

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return f'host {self._host}: ' + ('there is nothing to repair' if parsed_args.repair else 'no differences')

    def head(self, row: Mapping[str, Any]) -> tuple[str, str]:
        word, rest = super().head(row)
        return (word, rest) if 'severity' not in row or not row['consumer'] else (word, f'{rest}: {row["consumer"]}')

    def subject(self, row: Mapping[str, Any]) -> str:
        return f'consumer {row["consumer"]}' if row['consumer'] else f'provider {row["provider"]}'

    def body(self, row: Mapping[str, Any]) -> Iterator[str]:
        return super().body(row if 'severity' in row else {**row, 'change': _change(row)})

    def _auditor(self, parsed_args: argparse.Namespace) -> tuple[str, Auditor]:
        """Return the host's name and its auditor."""
        client = placement.open_client(self.app.conf)
        observer = placement.observe(self.app, client, parsed_args)
        leftovers = HostLeftovers(self.app.checked_store, observer.host.uuid)
        layout = tree.wanted_layout(self.app.conf[placement_options.GROUP].nested,
                                    observer.host.nested_version is not None)

        return observer.host.name, Auditor(
            client, lambda: HostView(*observer.providers(parsed_args.node), *observer.placed()), layout,
            observer.resource_classes, leftovers,
            functools.partial(node.record_layout, self.app.store, observer.host, layout))

    # -- repairing ----------------------------------------------------------------------------------------------------

    def _planned(self, host: str, auditor: Auditor, dry_run: bool) -> Iterator[Mapping[str, Any]]:
        plan, left = auditor.plan()
        if not dry_run:
            self._then = functools.partial(self._repair, auditor, plan)
        else:
            if left:
                self.say(f'{base.count(len(left), "finding")} cannot be repaired for certain: see devicetrack-manage '
                         'placement audit')
            self.say('nothing was done')
            if plan or left:
                self.exit_code = base.ATTENTION
        for one in plan:
            yield from _rows(host, one)

    def _repair(self, auditor: Auditor, plan: Sequence[PlacementRepair]) -> None:
        for repair, error in auditor.repair(plan):
            self.say_done(str(repair), error)
        self.say_left(sum(mismatch.needs_attention for mismatch in auditor.audit()), 'placement audit')


def _rows(host: str, repair: PlacementRepair) -> Iterator[Mapping[str, Any]]:
    """Yield a row for each consumer that a repair changes or, for one of the tree, for each provider that differs."""
    of_repair = {**dict.fromkeys(Audit.repair_columns), 'host': host, 'verb': repair.verb}
    if repair.consumer is None:
        for mismatch in repair.why:
            yield {**of_repair, 'reason': mismatch.detail, 'provider': mismatch.provider}
        return
    why = '; '.join(mismatch.detail for mismatch in repair.why)
    for before, after in repair.changes:
        yield {**of_repair, 'consumer': before.uuid, 'instance_uuid': repair.instance_uuid, 'before': before.resources,
               'after': after.resources, 'reason': why}


def _change(row: Mapping[str, Any]) -> str:
    """Return allocations before and after a repair, from the cells of a table; '' for a repair of the tree."""
    if not row['consumer']:
        return ''
    return ' -> '.join(', '.join(row[name].split('\n')) or 'nothing' for name in ('before', 'after'))


def _finding(mismatch: Mismatch) -> Finding:
    return Finding(mismatch.kind, mismatch.severity, findings.NO_DEVICE, mismatch.instance_uuid,
                   (mismatch.consumer,) if mismatch.has_guest and mismatch.consumer is not None else (),
                   mismatch.generation, mismatch.detail, mismatch.held, mismatch.proposal, repair=mismatch.repair)
