"""The work of a start and of every audit: read the views, continue interrupted work, report the differences."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
import itertools
import time
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import gate as gates
from devicetrack.claims import repairs
from devicetrack.claims import requests
from devicetrack.claims import withheld
from devicetrack.claims.claiming import Claiming
from devicetrack.claims.declarations import Declarations
from devicetrack.claims.failed_claims import FailedClaims
from devicetrack.claims.gate import Gate
from devicetrack.claims.locked_ledger import LockedLedger
from devicetrack.claims.resume import Resume
from devicetrack.claims.rows import Doubt
from devicetrack.claims.rows import Rows
from devicetrack.claims.unproven import Unproven
from devicetrack.claims.views import HostViews
from devicetrack.claims.wipes import Wipes
from devicetrack.claims.withheld_devices import WithheldDevices
from devicetrack.engine import findings
from devicetrack.engine import reconcile
from devicetrack.engine import unsettled
from devicetrack.engine import withholding
from devicetrack.engine.findings import Finding
from devicetrack.engine.views import Views
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Record

LOG = log.logger(__name__)

# A finding that stays is in the log again after so many audits: an hour, if a service audits once a minute.
AUDITS_PER_REMINDER: Final = 60

# The audit itself continues these. If the row is gone or has changed since, there is nothing to report.
_GOES_ON = (findings.RELEASE_PENDING, findings.ABANDONED, findings.STALE_MIGRATION, findings.UNKNOWN_OWNER)
_USED_BY_ANOTHER = (findings.WRONG_OWNER, findings.SHARED)
# The rows of these belong to instances without an allocation.
_OVER = (findings.ABANDONED, findings.STALE_MIGRATION)


class Audit:
    """Looks, and looks again if anything differs. It acts and reports only on differences that both looks show."""

    def __init__(self, ledger: LockedLedger, rows: Rows, views: HostViews, gate: Gate,
                 withheld_devices: WithheldDevices, unproven: Unproven, declarations: Declarations,
                 claiming: Claiming, failed: FailedClaims, wipes: Wipes, resume: Resume) -> None:
        self._ledger, self._rows, self._views, self._gate = ledger, rows, views, gate
        self._withheld, self._unproven = withheld_devices, unproven
        self._declarations, self._claiming, self._failed = declarations, claiming, failed
        self._wipes, self._resume = wipes, resume
        self._since: dict[tuple[str, DeviceKey], int] = {}      # when this process first saw each finding
        # The claims that the service had forgotten by the last audit. In the first audit that sees one, the call that
        # made it may not be over.
        self._forgotten: frozenset[Record] = frozenset()

    def start(self, anew: bool = False) -> list[Finding]:
        """Open the ledger of a host that starts, and continue the work that the last manager left.

        :param anew: an interrupt ended the last start in this process. What has come to differ from the options since
            is withheld, as by an audit
        :raises InvalidConfiguration: an option does not fit what the host has
        :raises HypervisorUnreachable, StoreError: no answer
        """
        damaged = self._damaged()               # before any of them is written anew
        self._views.prepare(self._rows.all_not_ended)
        self._views.check_host()
        views = self._views.read()
        if not anew:
            self._check_options(views)
        if views.boot_changed:
            self._withheld.booted()
        self._rows.begin(views.records)
        self._views.open(views, self._withheld.marks)
        self._declarations.refresh(views.inventory, at_start=True)
        with requests.keeping_answers():
            self._judge(views)
            self._note(views)
            if self._gate.report_only is None and self._failed.give_back_claims(wait=anew):
                views = self._views.read()
            went_on = self._resume.waits(views) and self._resume.go_on(views)
        if went_on:
            views = self._views.read()
        return self._dated(self._not_under_way(self._compare(views)) + damaged + self._without_provider())

    def _check_options(self, views: Views) -> None:
        for missing in withheld.mistakes(views, self._withheld.marks):
            raise exception.InvalidConfiguration(missing.option, missing.key.identifier,
                                                 f'{missing.reason}: {withheld.FIX_MISSING}')
        for overlap in views.inventory.overlaps:
            one, other = overlap.devices
            raise exception.InvalidConfiguration('device kinds', f'{one}, {other}', f'both are {overlap.what}, so one '
                                                 'device would have two owners: let only one option name it')

    def run(self) -> list[Finding]:
        """Audit a started host.

        :raises HypervisorUnreachable, StoreError: no answer; nothing was changed
        """
        self._wipes.next_audit()
        self._ledger.end_earlier_wipes()
        damaged = self._damaged()
        self._failed.settle_doubts()
        if self._gate.report_only is None:
            self._failed.give_back_claims()
        self._views.prepare(self._rows.all_not_ended)
        with self._views.reading() as before_look:
            looks = [self._views.read()]
            found, left = self._compare(looks[0]), unsettled.left_without_migration(looks[0])
            forgotten, defined = unsettled.forgotten(looks[0]), unsettled.left_defined(looks[0])
            if (found or left or forgotten or defined or self._ledger.now.withheld_for(vocabulary.FOREIGN)
                    or self._ledger.now.withheld_for(vocabulary.IN_DOUBT)):
                found = self._of_idle(found)
                looks.append(self._views.read())
                found = findings.confirmed(found, self._compare(looks[1]))
                left &= unsettled.left_without_migration(looks[1])
                forgotten &= unsettled.forgotten(looks[1])
                defined &= unsettled.left_defined(looks[1])
            views = looks[-1]
            self._views.take_over(looks, before_look)
        self._declarations.refresh(views.inventory)
        self._rows.follow(views.records)
        before, self._forgotten = self._forgotten, forgotten
        with requests.keeping_answers():
            self._judge(views)
            self._withheld.try_again(views)
            self._note(views)
            went_on = self._resume.go_on(views, left, forgotten & before, defined)
        if went_on:
            found = self._still_there(found)
        found = self._not_over(found)
        return self._dated(self._not_under_way(found) + [_in_doubt(doubt) for doubt in self._rows.doubts]
                           + damaged + self._without_provider())

    def _compare(self, views: Views) -> list[Finding]:
        found = repairs.proposed(
            reconcile.compare(views, self._withheld.failures, withholding.retired(self._withheld.marks),
                              self._withheld.not_realized), views)
        # One look is enough: a missing proof costs only a wipe, or a person's look. Without this, an owner that never
        # used its device would give it back as clean, although another guest has written to it.
        used = {finding.device for finding in found if finding.kind in _USED_BY_ANOTHER}
        if used:
            self._unproven.disprove(used)
        # The service may not have saved the instance yet since its claim in this process.
        return [finding for finding in found if finding.kind != findings.UNKNOWN_OWNER
                or not ((row := views.owners.get(finding.device)) and self._claiming.is_own(row))]

    def _not_under_way(self, found: Sequence[Finding]) -> list[Finding]:
        """Leave out devices whose wipe here goes well, and add the news about the others."""
        told = []
        for finding in found:
            if finding.kind == findings.RELEASE_PENDING:
                if finding.severity == vocabulary.NOTE and self._wipes.is_well_under_way(finding.device):
                    continue
                news = self._wipes.news_of(finding.device)
                finding = finding._replace(detail=f'{finding.detail}; {news}') if news else finding
            told.append(finding)
        return told

    def _without_provider(self) -> list[Finding]:
        return [Finding(findings.NO_PROVIDER, vocabulary.WARNING, findings.NO_DEVICE, None, (), 0,
                        f'{name or "the node"}: the compute service has not created the provider that counts its '
                        'devices', 'every free device of this provider',
                        'none: the next audit asks the compute service again')
                for name in sorted(self._views.providers.missing)]

    def _damaged(self) -> list[Finding]:
        return [Finding(findings.ROW_DAMAGED, vocabulary.WARNING, findings.NO_DEVICE, None, (), 0,
                        f'{row.table}: the row {row.key} has a value of a wrong type in {row.columns}', 'nothing',
                        'look at the disk. Repair the row by hand or restore the store, with the service stopped, '
                        'unless the service has written it anew by the next audit') for row in self._rows.damaged()]

    def _note(self, views: Views) -> None:
        """Prove the withheld devices that can be proven at once, and record the rest in the store."""
        foreign = self._ledger.now.withheld_for(vocabulary.FOREIGN)
        if foreign:
            self._unproven.disprove(foreign)
        self._unproven.look()
        self._withheld.note(views, self._unproven.details())

    def _of_idle(self, found: Sequence[Finding]) -> list[Finding]:
        """Leave out findings about devices that an operation of this process works on.

        Call it between the looks: an operation that spans both looks is under way then.
        """
        busy = set()
        for owner in {finding.recorded_owner for finding in found if finding.recorded_owner is not None}:
            with self._rows.if_idle(owner) as idle:
                if not idle:
                    busy.add(owner)
        return [finding for finding in found if finding.recorded_owner not in busy]

    def _still_there(self, found: Sequence[Finding]) -> list[Finding]:
        now = {record.key: record.generation for record in self._rows.all()}
        return [finding for finding in found
                if finding.kind not in _GOES_ON or now.get(finding.device) == finding.generation]

    def _not_over(self, found: Sequence[Finding]) -> list[Finding]:
        """Leave out what claims may try again since this audit."""
        held_back = {(target.kind, target.name) for target in self._withheld.not_realized}
        return [finding for finding in found if finding.kind != findings.NOT_REALIZED or finding.device in held_back]

    def _judge(self, views: Views) -> None:
        """Check whether the store is older than the guests. If so, the host claims nothing and gives nothing back."""
        found = gates.behind(views)
        # Nobody asks the service as long as each guest has its rows.
        self._gate.judge(found if found is None else gates.behind(views, self._resume.evacuated(views)))

    def _dated(self, found: Iterable[Finding]) -> list[Finding]:
        """Add to each finding the time since which this process has seen it in every audit."""
        now = int(time.time())
        dated = [finding if finding.since is not None else finding._replace(
            since=self._since.get((finding.kind, finding.device), now)) for finding in found]
        self._since = {(finding.kind, finding.device): finding.since or now for finding in dated}
        return dated

    def devices_of_instances_that_are_over(self) -> set[DeviceKey]:
        """The devices held for instances that no longer have an allocation, by the last audit."""
        return {device for kind, device in self._since if kind in _OVER}


def _in_doubt(doubt: Doubt) -> Finding:
    keys = doubt.changes.keys
    names = ', '.join(f'{key.kind} {key.identifier}' for key in keys)
    return Finding(findings.IN_DOUBT, vocabulary.WARNING, keys[0] if keys else findings.NO_DEVICE,
                   doubt.instance_uuid, (), 0, f'nobody knows yet whether the commit for {names} happened',
                   'the devices of the commit', 'none: the next audit asks the store again')


class FindingsLog:
    """Writes a finding to the log when it appears, changes or ends, and now and then while it stays."""

    def __init__(self, host: str) -> None:
        self._host = host
        # How many audits had the finding, by its kind, its device and its words.
        self._audits: dict[tuple[Any, ...], int] = {}

    def tell(self, found: Iterable[Finding]) -> None:
        """Write the findings of an audit."""
        now = [(finding.kind, finding.device, finding.severity, str(finding), str(finding.held), str(finding.proposal))
               for finding in found]
        before, self._audits = self._audits, {}
        over: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}         # by the kind and the device
        for one in (one for one in before if one not in now):
            over.setdefault(one[:2], []).append(one)
        for one in dict.fromkeys(now):
            audits = self._audits[one] = before.get(one, 0) + 1
            if audits % AUDITS_PER_REMINDER != 1:
                continue
            # It says both, so it is true as well if one finding is over and another one has come.
            was = over[one[:2]].pop() if audits == 1 and over.get(one[:2]) else None
            severity, words, held, proposal = one[2:]
            log = LOG.info if severity == vocabulary.NOTE else LOG.warning
            log('Host %(host)s: %(severity)s: %(finding)s; held: %(held)s; proposed: %(proposal)s%(was)s', {
                'host': self._host, 'severity': severity, 'finding': words, 'held': held, 'proposal': proposal,
                'was': '' if was is None else f'; changed, it was {was[2]}: {was[3]}'})
        for gone in itertools.chain.from_iterable(over.values()):
            LOG.info('Host %(host)s: over: %(severity)s: %(finding)s', {
                'host': self._host, 'severity': gone[2], 'finding': gone[3]})
