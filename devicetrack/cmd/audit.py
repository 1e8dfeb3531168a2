"""``devicetrack-manage audit``: lists and repairs differences between the record, the hypervisor and the host."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import operator_requests
from devicetrack.claims import repairs
from devicetrack.claims import report
from devicetrack.claims.running import Running
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import progress
from devicetrack.cmd import records
from devicetrack.cmd import request
from devicetrack.cmd import requesting
from devicetrack.engine import findings
from devicetrack.engine.findings import Finding
from devicetrack.store.api import Host
from devicetrack.store.api import OperatorRequest


class Findings(base.Blocks):
    """Base of every check. All checks list their findings in one form and use one exit code.

    All fields of a finding are columns. The code is 3 for a finding that is critical or a warning; notes are about work
    that goes on by itself.
    """

    of_device: tuple[str, ...] = ('device', 'kind', 'identifier')
    of_finding: tuple[str, ...] = (
        'host', 'severity', 'finding', *of_device, 'recorded_owner', 'users', 'generation', 'detail', 'held',
        'proposal', 'service', 'since', 'repair')
    columns: tuple[str, ...] = of_finding
    in_block: tuple[str, ...] = ('severity', 'finding', 'device', 'kind', 'identifier', 'detail', 'proposal', 'repair',
                                 'verb', 'change', 'reason')
    prose = ('finding', 'detail', 'held', 'proposal', 'reason', 'change')

    def rows_of(self, host: str, found: Sequence[Finding]) -> Iterator[dict[str, Any]]:
        for finding in found:
            if finding.severity != vocabulary.NOTE:
                self.exit_code = base.ATTENTION
            yield finding_fields(host, finding)

    def head(self, row: Mapping[str, Any]) -> tuple[str, str]:
        about = row.get('device') or row.get('kind')
        return row['severity'], row['finding'] + (f': {about}' if about else '')

    def body(self, row: Mapping[str, Any]) -> Iterator[str]:
        yield row['detail']
        if row['proposal'] and not row['proposal'].startswith('none'):
            yield f'To do: {row["proposal"]}'
        if row['repair']:
            accept = ''
            if row['repair'] == findings.ADOPT:
                # The row of a device that has an owner moves only if the device is named.
                accept = ' --accept' + (f' --accept-move {row["device"]}' if row['recorded_owner'] else '')
            yield f'Repair: {row["repair"]} (--repair{accept})'


def finding_fields(host: str, finding: Finding) -> dict[str, Any]:
    """Return a finding by the names of its columns."""
    kind, identifier = finding.device
    return {**finding._asdict(), 'host': host, 'finding': finding.kind, 'kind': kind or None,
            'identifier': identifier or None, 'device': records.name(*finding.device) if kind else None,
            'since': None if finding.since is None else base.Moment(finding.since)}


class Repairing(Findings):
    """Base of a check that, with ``--repair``, first lists its repairs and then makes them.

    ``rows`` leaves in ``_then`` the call that makes the repairs once their lines are shown, or None.
    """

    repair_columns: tuple[str, ...]

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        self._then: Callable[[], None] | None = None
        if parsed_args.repair:
            self.columns = self.repair_columns
        return super().take_action(parsed_args)

    def head(self, row: Mapping[str, Any]) -> tuple[str, str]:
        return super().head(row) if 'severity' in row else (row['verb'], self.subject(row))

    def body(self, row: Mapping[str, Any]) -> Iterator[str]:
        if 'severity' in row:
            yield from super().body(row)
            return
        if row['change']:
            yield row['change']
        if row['verb'] != findings.UPDATE_DETAILS:         # its change already says why
            yield f'Why: {row["reason"]}'

    def subject(self, row: Mapping[str, Any]) -> str:
        """Return what a repair is about, for people."""
        raise NotImplementedError

    def say_done(self, repair: str, error: str | None) -> None:
        self.say(f'done: {repair}' if error is None else f'not done: {repair}: {error}')
        if error is not None:
            self.exit_code = base.ATTENTION

    def say_left(self, left: int, command: str) -> None:
        """Say how many findings are left after the repairs, and which command lists them."""
        if left:
            self.say(f'{base.count(left, "finding")} {"is" if left == 1 else "are"} left: see devicetrack-manage '
                     f'{command}')
            self.exit_code = self.exit_code or base.ATTENTION

    def produce_output(self, *args: Any) -> int:
        code = super().produce_output(*args)
        if self._then is not None:
            self.app.stdout.flush()         # show the plan before carrying it out
            self._then()
        return code


class Audit(Repairing):
    """Compare the store, the hypervisor and this host, and list the differences.

    Reads everything twice and lists the differences that both readings show, so it may run while the host's manager
    works. Without --repair it changes nothing. With --repair it lists the repairs, and then has them made: by the
    manager at its next audit if it runs, else at once. Exit code 3 when something needs attention.
    """

    repair_columns = ('host', 'verb', 'device', 'kind', 'identifier', 'instance_uuid', 'change', 'before', 'after',
                      'reason')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_host(parser)
        parser.add_argument('--repair', action='store_true',
                            help='List the repairs that lose no data and take no device from a guest, and then have '
                                 'them made.')
        parser.add_argument('--dry-run', action='store_true', help='With --repair: only list the repairs.')
        parser.add_argument('--accept', action='store_true',
                            help='With --repair: accept a store that is older than its guests or than what the '
                                 "running service knows, and write the missing rows from the guests' records or from "
                                 'its memory.')
        parser.add_argument('--accept-move', metavar='KIND/IDENTIFIER', type=options.device_key, action='append',
                            default=[],
                            help='With --accept: move the row of this device from its owner to the instance whose '
                                 'guest records the device as its own. May be repeated. Without it no row moves, '
                                 'because a person who can change the definition of a guest could claim any device.')
        requesting.add_waiting(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        if not parsed_args.repair and (parsed_args.dry_run or parsed_args.accept):
            raise base.UsageError('--dry-run and --accept go with --repair')
        if parsed_args.accept_move and not parsed_args.accept:
            raise base.UsageError('--accept-move goes with --accept')
        return super().take_action(parsed_args)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        observer = self.app.observer(parsed_args.host)
        self._host = observer.host.name
        if parsed_args.repair:
            return self._planned(observer.host, self._plan(observer, parsed_args))
        found = observer.audited()
        if found.report_only is not None:
            self.exit_code = base.ATTENTION
            self.say(records.report_only(observer.host.name, found.report_only))
        return self.rows_of(observer.host.name, found.findings)

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        if not parsed_args.repair:
            return f'host {self._host}: no differences'
        return f'host {self._host}: there is nothing {"else " if self._may_accept else ""}to repair'

    def subject(self, row: Mapping[str, Any]) -> str:
        return f'{row["device"]} of instance {row["instance_uuid"]}'

    # -- repairing ----------------------------------------------------------------------------------------------------

    def _plan(self, observer: report.Observer, parsed_args: argparse.Namespace) -> repairs.Plan:
        """Return the plan of repairs, and leave the call that carries it out in ``_then``."""
        accepted = repairs.Accepted(parsed_args.accept, lambda move: move.device in parsed_args.accept_move)
        if parsed_args.dry_run:
            plan = observer.plan(accepted)
            if plan.repairs or plan.waiting:
                self.exit_code = base.ATTENTION
            else:
                self._count_left(observer.audit())
            self.say('nothing was done')
        else:
            try:
                running = requesting.start_unless_managed(self.app, observer.host.name)
            except exception.UnknownHost:
                # The store has no host because it was lost, or because the manager has never run.
                if observer.plan(accepted).is_lost:
                    raise exception.StoreLost(observer.host.name) from None
                raise
            if running is None:
                try:
                    plan = observer.plan(accepted)
                except exception.StoreLost:     # the manager may know its rows, and refuses as this does if not
                    plan = repairs.Plan((), ())
                operator_request = operator_requests.make(
                    observer.host.uuid, operator_requests.REPAIR, accept=parsed_args.accept,
                    moves=[move for one in plan.repairs if (move := repairs.OwnerChange.of(one)) is not None])
                self._then = functools.partial(self._leave, observer, operator_request, parsed_args)
            else:
                plan = running.repairs.plan(accepted)
                self._then = functools.partial(self._repair, running, plan)
        if plan.is_lost:
            self.say(str(exception.StoreLost(observer.host.name)))
        elif plan.to_accept:
            self.say(f'{base.count(plan.to_accept, "device")} of guests {"has" if plan.to_accept == 1 else "have"} no '
                     'row: the store is older than its guests; --accept writes what is missing')
        self._may_accept = bool(plan.to_accept or plan.moves)
        for move in plan.moves:
            self.say(f'{move}: --accept --accept-move {move.device} moves it')
        if not plan.to_accept and len(plan.waiting) > len(plan.moves):
            self.say('nothing is given back before the rows of guests are complete')
        return plan

    def _planned(self, host: Host, plan: repairs.Plan) -> Iterator[Mapping[str, Any]]:
        for one in plan.repairs:
            before, after = (None if row is None else records.plain(row) for row in (one.before, one.after))
            yield {'host': host.name, 'verb': one.verb, **records.of_device(*one.device),
                   'instance_uuid': one.instance_uuid, 'change': _change(before, after), 'before': before,
                   'after': after, 'reason': one.reason}

    def _leave(self, observer: report.Observer, operator_request: OperatorRequest,
               parsed_args: argparse.Namespace) -> None:
        answer = operator_requests.answer_of(requesting.leave(
            self, self.app.checked_store, operator_request, parsed_args,
            self.app.parts(observer.host.name).state_path))
        if answer is not None:
            self.say(f'{answer.outcome}: {answer.text}')
            for one in answer.repairs:
                self.say(request.became(one))
            # The manager goes on with the repairs that it has begun, whatever failed before.
            begun = {(one.get('kind'), one.get('identifier')) for one in answer.repairs if one.get('begun')}
            self._count_left(finding for finding in observer.audit() if finding.device not in begun)

    def _repair(self, running: Running, plan: repairs.Plan) -> None:
        devices = [one.device for one in plan.repairs]
        with progress.watching(self, lambda: requesting.wipes_in_words(self.app.driver(self._host), devices)):
            outcomes = running.repairs.repair(plan.repairs)
        for outcome in outcomes:
            # The log has the row before and after.
            self.say_done(f'{outcome.repair.verb} {records.name(*outcome.repair.device)}', outcome.error)
        self._count_left(running.audit())

    def _count_left(self, found: Iterable[Finding]) -> None:
        self.say_left(sum(finding.severity != vocabulary.NOTE for finding in found), 'audit')


def _change(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """Describe the change of a row in short."""
    if before is None or after is None:
        return ' -> '.join(f'{row["role"]}, {row["state"]}' if row is not None else 'no row' for row in (before, after))
    old, new = before['details'] or {}, after['details'] or {}
    if before['instance_uuid'] != after['instance_uuid']:
        return f'owner {before["instance_uuid"]} -> {after["instance_uuid"]}'
    return ', '.join(f'{name} {old.get(name)} -> {new.get(name)}' for name in {**old, **new}
                     if old.get(name) != new.get(name))
