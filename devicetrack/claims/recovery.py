"""What a start and every audit do: read the views, go on with what was interrupted, say what differs."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import time
from typing import TYPE_CHECKING

from oslo_log import log as logging

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import declaring
from devicetrack.claims import doubt
from devicetrack.claims import interrupted
from devicetrack.claims import looking
from devicetrack.claims import withheld
from devicetrack.engine import reconcile
from devicetrack.engine.reconcile import Finding
from devicetrack.engine.reconcile import Views
from devicetrack.engine.withholding import Marks

if TYPE_CHECKING:
    from devicetrack.claims.steps import Steps

LOG = logging.getLogger(__name__)


def start(manager: Steps) -> list[Finding]:
    """Build the ledger of a manager that starts, and go on with what the last one left."""
    with looking.uncollected():
        views = looking.read(manager)
        manager.withheld = withheld.load(manager.store, manager.host_uuid)
        marks = manager.withheld.marks
        _refuse_mistakes(views, marks)
        with manager.lock:
            withheld.enforce(manager.ledger, marks)
            manager.ledger.read_inventory(views.inventory)
            for records in looking.by_instance(views.records):
                manager.ledger.hold(records)
            withheld.resume(manager.ledger, marks, views)
            doubt.withhold(manager.ledger, (views,))
        manager.refresh()
        declaring.refresh(manager, views.inventory, at_start=True)
        withheld.note(manager, views)
        _judge(manager, views)
        if not interrupted.waits(manager, views):
            return _remember(manager, reconcile.compare(views))
    if interrupted.go_on(manager, views):
        views = looking.read(manager)
    return _remember(manager, reconcile.compare(views))


def _refuse_mistakes(views: Views, marks: Marks) -> None:
    """:raises InvalidConfiguration: names the first device that an option names in vain."""
    for missing in withheld.mistakes(views, marks):
        raise exception.InvalidConfiguration(missing.option, missing.key.identifier,
                                             f'{missing.reason}: {withheld.MEND_MISSING}')


def audit(manager: Steps) -> list[Finding]:
    """Look, and where anything differs look again; act and report only on what both looks show."""
    doubt.settle(manager)
    with looking.uncollected(), manager.reading() as watch:
        looks = [looking.read(manager)]
        found = reconcile.compare(looks[0])
        with manager.lock:
            doubted = manager.ledger.withheld(vocabulary.FOREIGN) or manager.ledger.withheld(vocabulary.IN_DOUBT)
        if found or doubted:
            found = _of_idle(manager, found)
            looks.append(looking.read(manager))
            found = reconcile.confirmed(found, reconcile.compare(looks[1]))
        views = looks[-1]
        with manager.lock:
            manager.ledger.read_inventory(views.inventory, watch)
            doubt.withhold(manager.ledger, looks)
    manager.refresh()
    declaring.refresh(manager, views.inventory)
    doubt.follow_rows(manager, views.records)
    withheld.note(manager, views)
    _judge(manager, views)
    if interrupted.go_on(manager, views):
        found = _left(manager, found)
    return _remember(manager, found + [doubt.finding(one) for one in manager.doubts])


# What an audit goes on with itself: of a row that has gone or moved on since it was found there is nothing to tell.
_GOES_ON = (reconcile.RELEASE_PENDING, reconcile.ABANDONED, reconcile.STALE_MIGRATION)


def _left(manager: Steps, findings: Sequence[Finding]) -> list[Finding]:
    now = {record.key: record.generation for record in manager.store.records(manager.host_uuid)}
    return [finding for finding in findings
            if finding.kind not in _GOES_ON or now.get(finding.device) == finding.generation]


def _of_idle(manager: Steps, findings: Sequence[Finding]) -> list[Finding]:
    """Findings without those on devices that an operation of this process works on.

    Asked between the looks: an operation that both of them fall into is under way then.
    """
    busy = set()
    for owner in {finding.recorded_owner for finding in findings if finding.recorded_owner is not None}:
        with doubt.if_idle(manager, owner) as idle:
            if not idle:
                busy.add(owner)
    return [finding for finding in findings if finding.recorded_owner not in busy]


def _remember(manager: Steps, findings: Iterable[Finding]) -> list[Finding]:
    """Say of each finding since when this process has seen it without a break."""
    now = int(time.time())
    dated = [finding._replace(since=manager.first_seen.get((finding.kind, finding.device), now))
             for finding in findings]
    manager.first_seen = {(finding.kind, finding.device): finding.since or now for finding in dated}
    return dated


def _judge(manager: Steps, views: Views) -> None:
    """See whether the store is older than the guests; then nothing is claimed and nothing given back."""
    lost = looking.lost_rows(views)
    manager.lacking = frozenset(record.instance_uuid for record in lost.values())
    manager.report_only = None
    if not lost:
        return
    guests = sorted(manager.lacking)
    what = (f'its store is older than its guests: devices without the row of their guest: {len(lost)}, of guest '
            f'{", ".join(guests[:3])}{", …" if guests[3:] else ""}')
    if not views.records or any(record.host_uuid != manager.host_uuid for record in lost.values()):
        what += ('; it has no rows at all, or was made for another host: it was lost; stop this service and run '
                 'devicetrack-manage recover --from-hypervisor')
    else:
        what += '; run devicetrack-manage audit to see them, and audit --repair --accept to record them'
    manager.report_only = what


def report(host: str, findings: Iterable[Finding]) -> None:
    """Write findings to the log."""
    for finding in findings:
        log = LOG.info if finding.severity == reconcile.NOTE else LOG.warning
        log('Host %(host)s: %(severity)s: %(finding)s; held: %(held)s; proposed: %(proposal)s', {
            'host': host, 'severity': finding.severity, 'finding': finding, 'held': finding.held,
            'proposal': finding.proposal})
