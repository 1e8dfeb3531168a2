"""Finds the rows that no audit settles by itself, of instances that move or live elsewhere.

Pure: views go in, findings come out. :mod:`devicetrack.engine.migrations` decides what an audit settles.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Set
import functools

from devicetrack import vocabulary
from devicetrack.engine import findings
from devicetrack.engine import migrations
from devicetrack.engine.findings import Finding
from devicetrack.engine.views import by_instance
from devicetrack.engine.views import named_instances
from devicetrack.engine.views import used
from devicetrack.engine.views import Views
from devicetrack.objects.compact import Compact
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record
from devicetrack.objects.values import Use


def left_without_migration(views: Views) -> frozenset[str]:
    """The instances with rows here that live elsewhere, though no migration took them there or may bring them back.

    They were shelved, or deleted and made anew, and nobody told this host. Nothing of them is left here but the rows:
    they have no domain, and no domain names a device of theirs.
    """
    if views.migrations is None or views.usage.unknown:
        return frozenset()
    elsewhere = {uuid for uuid, state in (views.instances or {}).items()
                 if state == migrations.INSTANCE_ELSEWHERE} - views.usage.domains
    rows = [record for record in views.records if record.instance_uuid in elsewhere]
    if not rows:
        return frozenset()
    moving = {move.instance_uuid for move in views.migrations.values() if move.may_have_taken_away_from(views.here)}
    named = used(views.usage)
    moving |= {record.instance_uuid for record in rows
               if record.key in named or not _waits_for_no_move(record, views.migrations)}
    return frozenset({record.instance_uuid for record in rows} - moving)


def _waits_for_no_move(record: Record, known: Mapping[str, migrations.Move]) -> bool:
    """Whether a row names no migration, or is the claim for one that is done without the guest having come."""
    move = known.get(record.migration_uuid or '')
    return record.migration_uuid is None or (
        record.role == vocabulary.INCOMING and move is not None and move.outcome == migrations.DONE)


def left_defined(views: Views) -> frozenset[str]:
    """The instances that left this host for good, and whose guests are off and still defined here.

    A migration away from here is done and nothing may bring the instance back, by all that the service says; what the
    instance has here it left for that migration. The service ended, or lost a call, before it removed the guest.
    """
    known, usage, here = views.migrations, views.usage, views.here
    if known is None or usage.unknown:
        return frozenset()
    defined = {uuid for uuid, state in (views.instances or {}).items() if state == migrations.INSTANCE_ELSEWHERE
               and uuid in usage.domains and uuid not in usage.arriving and not usage.runs_here(uuid)}
    found = set()
    for rows in by_instance(record for record in views.records if record.instance_uuid in defined):
        left = {record.migration_uuid for record in rows if record.state != vocabulary.RELEASING}
        if (left and all(record.role == vocabulary.OLD or record.state == vocabulary.RELEASING for record in rows)
                and all((move := known.get(uuid or '')) is not None and move.outcome == migrations.DONE
                        and here.is_at(move.source) and not here.is_at(move.destination) for uuid in left)
                and not migrations.may_come_back(rows[0].instance_uuid, left, known, here)):
            found.add(rows[0].instance_uuid)
    return frozenset(found)


def forgotten(views: Views) -> frozenset[Record]:
    """The rows of instances of which the service has forgotten everything: it knows neither instance nor migration.

    It says of an instance that it has no record of it, or it leaves out one that has only claims for moves here: it
    takes a failed move out of a database that had nothing of the instance before. Nobody will say how these end. Only
    instances count of which nothing else is here: no domain, no domain that names their devices. A service that knows
    nobody else of this host either may have answered from another database.
    """
    states, known = views.instances, views.migrations
    if states is None or views.usage.unknown:
        return frozenset()
    gone = {uuid for uuid, state in states.items() if state == migrations.INSTANCE_FORGOTTEN}
    left_out = set[str]()
    if known is not None and vocabulary.INCOMING in Compact(Record, views.records).column('role'):
        left_out = {record.instance_uuid for record in views.records if record.role == vocabulary.INCOMING
                    and record.migration_uuid not in known} - states.keys()
    unknown = (gone | left_out) - views.usage.domains
    if not unknown:
        return frozenset()
    rows, named = [record for record in views.records if record.instance_uuid in unknown], used(views.usage)
    unknown -= {record.instance_uuid for record in rows
                if (record.instance_uuid in left_out
                    and (record.role, record.state) != (vocabulary.INCOMING, vocabulary.CLAIMED))
                or (record.migration_uuid is not None and (known is None or record.migration_uuid in known))
                or record.key in named}
    others = named_instances(views.records) - unknown
    if others and others.isdisjoint(states.keys() - gone):
        return frozenset()
    return frozenset(record for record in rows if record.instance_uuid in unknown)


class Unsettled:
    """Finds the unsettled rows of one host in one pass. ``left`` are the instances that no migration took away."""

    def __init__(self, views: Views) -> None:
        self._views, self._states = views, views.instances or {}

    @functools.cached_property
    def left(self) -> frozenset[str]:
        return left_without_migration(self._views)

    @functools.cached_property
    def forgotten(self) -> frozenset[Record]:
        return forgotten(self._views)

    def findings_of(self, suspects: Set[str]) -> Iterable[Finding]:
        """Find the rows of these instances that no audit settles by itself."""
        views, usage, known = self._views, self._views.usage, self._views.migrations
        if not suspects or known is None or usage.unknown:
            return
        rows: dict[str, list[Record]] = {}
        for record in views.records:
            if record.instance_uuid in suspects:
                rows.setdefault(record.instance_uuid, []).append(record)
        uses: dict[str, list[Use]] = {}
        for use in usage.uses:
            if use.domain_uuid in suspects and use.identifier is not None and not use.in_snapshot_only:
                uses.setdefault(use.domain_uuid, []).append(use)
        for uuid, records in rows.items():
            if self._states.get(uuid) not in migrations.INSTANCE_OVER_OR_FORGOTTEN:
                yield from self._not_settled(uuid, records, uses.get(uuid, ()), known)

    def _not_settled(self, uuid: str, records: list[Record], uses: Iterable[Use],
                     known: Mapping[str, migrations.Move]) -> Iterable[Finding]:
        views, usage, state = self._views, self._views.usage, self._states.get(uuid)
        settlement = migrations.settle(migrations.Situation(
            views.here, records, known, uuid in usage.domains,
            usage.runs_here(uuid),
            {DeviceKey(use.kind, use.identifier or '') for use in uses},
            {DeviceKey(use.kind, use.identifier or '') for use in uses if use.live}, state))
        settled = {record.key for record in (*settlement.settle, *settlement.give,
                                             *(record for record, _migration in settlement.leave))}
        for record in records:
            key = (record.kind, record.identifier)
            if record.state == vocabulary.RELEASING or record.key in settled:
                continue
            if record.migration_uuid is None:
                if (state == migrations.INSTANCE_ELSEWHERE and record.state == vocabulary.ACTIVE
                        and uuid not in usage.domains and key not in views.names.named and uuid not in self.left):
                    yield findings.about(
                        views, findings.RECORDED_UNUSED, vocabulary.WARNING, key,
                        f'the compute service says that {uuid} lives elsewhere, and no domain names it',
                        'see whether a migration that failed may bring it back; if none may, run devicetrack-manage '
                        f'instance release {uuid}')
                continue
            move = known.get(record.migration_uuid)
            if move is None:
                lost = (views.instances is not None and state is None and record.state == vocabulary.ACTIVE
                        and uuid not in usage.domains)
                stale, status = lost or state == migrations.INSTANCE_ELSEWHERE, 'does not know'
            else:
                stale = move.outcome in (migrations.DONE, migrations.UNDONE)
                status = f'calls {move.status}'
            if stale:
                detail = (f'{record.role} for migration {record.migration_uuid} of {uuid}, which the compute service '
                          f'{status}; where the instance runs decides, and that is not known')
                proposal = 'see where the instance runs, and set it and its migration right in the compute service'
                if move is None and state is None:
                    detail += ', and neither does it know the instance'
                    proposal = ('see that the compute service has deleted the instance, or has it elsewhere; then '
                                f'run devicetrack-manage instance release {uuid}')
                if uuid in usage.domains:
                    detail += ', and the hypervisor has a domain of the instance here'
                    if record.role == vocabulary.OLD and state == migrations.INSTANCE_ELSEWHERE:
                        proposal += '; if it runs at the other host, undefine the domain here'
                yield findings.about(views, findings.STALE_MIGRATION, vocabulary.WARNING, key, detail, proposal)
