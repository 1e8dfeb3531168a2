"""The end of claims that failed, and of commits in doubt: devices that a caller will never have go back."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
import contextlib

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.given_up import GivenUp
from devicetrack.claims.given_up import GivenUpClaims
from devicetrack.claims.life import Life
from devicetrack.claims.own_process import OwnProcess
from devicetrack.claims.rows import Doubt
from devicetrack.claims.rows import Rows
from devicetrack.claims.unrecorded_starts import UnrecordedStarts
from devicetrack.engine import migrations
from devicetrack.objects.values import Record
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)


class FailedClaims:
    """Gives back what failed claims of one host took.

    :param given_up: remembers claims that could not be given back
    :param process: the manager's, which has the claims
    :param starts: the guests that run, as the service says
    """

    def __init__(self, rows: Rows, life: Life, given_up: GivenUpClaims, driver: VirtDriver, process: OwnProcess,
                 starts: UnrecordedStarts) -> None:
        self._rows, self._life, self._given_up, self._driver = rows, life, given_up, driver
        self.process, self.starts = process, starts

    def give_up(self, instance_uuid: str, claim_id: str, migration_uuid: str | None) -> None:
        """Let the next audit give back a claim, if it was recorded: its caller will never have it."""
        self._given_up.remember(GivenUp(instance_uuid, claim_id, migration_uuid))

    def has_given_up(self, claim_id: str) -> bool:
        """Whether a claim of this start failed, and its devices may not be back. Quick."""
        return self._given_up.has(claim_id)

    def guest_may_run_unrecorded(self, instance_uuid: str, since: int) -> bool:
        """Whether the service said that a guest runs, ``started`` failed, and nothing shows that the guest is gone.

        :param since: the moment at which its claim was made
        """
        if not self.starts.said_since(since, instance_uuid):
            return False
        try:
            usage = self._driver.get_usage()
        except exception.DriverError:
            return True
        return bool(usage.unknown) or instance_uuid in usage.domains

    def abort(self, instance_uuid: str, claim_id: str, migration_uuid: str | None) -> None:
        """Give back what one claim took, and make current again what it made old. Waits for the instance.

        What the background gives back already, as another call ended the claim before, is left to it.

        If the store fails or a signal interrupts the call, an audit or a start continues.
        """
        claim = GivenUp(instance_uuid, claim_id, migration_uuid)
        try:
            with self._rows.working(instance_uuid):
                self.starts.forget(instance_uuid)
                records = self._rows.of_instance(instance_uuid)
                self._give_back_claim(claim, [record for record in records if not self._life.is_wiped(record)])
                self._given_up.forget(claim_id)
        except exception.DriverError:
            raise                               # its rows are on their way back
        except BaseException:                   # also while it waits for the instance
            self._given_up.remember(claim)
            raise

    def _give_back_claim(self, claim: GivenUp, records: Sequence[Record], wait: bool = True) -> None:
        taken = [record for record in records if record.claim_id == claim.claim_id]
        named = {record.migration_uuid for record in taken} | {claim.migration_uuid}
        self._life.settle(migrations.undo(records, {uuid for uuid in named if uuid is not None}, taken), wait)

    def give_back_claims(self) -> bool:
        """Give back the devices of failed claims that could not be given back before. Every start and audit calls it.

        :returns: whether there was any such claim
        """
        waiting = self._given_up.all()
        for claim in waiting:
            with self._rows.if_idle(claim.instance_uuid) as idle:
                if not idle or self._is_in_doubt(claim):
                    continue
                with contextlib.suppress(exception.StoreError):
                    self._give_back_late(claim)
        return bool(waiting)

    def _is_in_doubt(self, claim: GivenUp) -> bool:
        for doubt in self._rows.doubts:
            if doubt.changes.insert:
                if claim.claim_id in {record.claim_id for record in doubt.changes.insert}:
                    return True
            elif doubt.undo and claim.migration_uuid in _moves_of(doubt):
                return True
        return False

    def _give_back_late(self, claim: GivenUp) -> None:
        """Give back a claim some time after it failed. The caller works on its instance.

        :raises StoreError: the claim stays remembered
        """
        try:
            records = self._rows.of_instance(claim.instance_uuid)
            states = {record.state for record in records if record.claim_id == claim.claim_id}
            # Without rows the claim took no device, or it is undone already. With its guest started since, the service
            # wanted it.
            if vocabulary.ACTIVE not in states if states else _only_left(records, {claim.migration_uuid}):
                self._give_back_claim(claim, records, wait=False)
        except exception.DeviceTrackError as error:
            LOG.warning('Claim %(claim)s of instance %(instance)s cannot be given back yet: %(error)s',
                        {'claim': claim.claim_id, 'instance': claim.instance_uuid, 'error': error})
            if isinstance(error, exception.StoreError):
                raise                           # else its rows are on their way back
        self._given_up.forget(claim.claim_id)

    def settle_doubts(self, wait: bool = True) -> None:
        """Ask the store for the outcome of commits in doubt. If it does not know yet, their devices stay held.

        :param wait: as :meth:`.Life.give_back`
        """
        for doubt in self._rows.doubts:
            with self._rows.if_idle(doubt.instance_uuid) as idle:
                if not idle:
                    continue
                with contextlib.suppress(exception.StoreError):
                    self._settle_doubt(doubt, wait)

    def _settle_doubt(self, doubt: Doubt, wait: bool) -> None:
        """Settle a commit in doubt, and undo it if it happened although its caller was told that it failed.

        :raises StoreError: no answer; it stays in doubt, or what it did stays for the audit
        """
        try:
            if not self._rows.settle(doubt) or not doubt.undo:
                return
            claims = {record.claim_id for record in doubt.changes.insert}
            records, moves = self._rows.of_instance(doubt.instance_uuid), _moves_of(doubt)
            if claims or _only_left(records, moves):
                self._life.settle(migrations.undo(
                    records, moves, [record for record in records if record.claim_id in claims]), wait)
        except exception.DeviceTrackError as error:
            LOG.warning('Instance %(instance)s stays as it is for now: %(error)s',
                        {'instance': doubt.instance_uuid, 'error': error})
            if isinstance(error, exception.StoreError):
                raise                           # else its rows are on their way back

    def undo_earlier(self, instance_uuid: str) -> None:
        """Settle the commits in doubt of an instance, and undo its claims that failed. The caller works on it.

        Nothing in the rows tells two claims of one migration apart if they take no device. So the later one waits until
        the earlier one is undone.

        :raises StoreError: no answer
        """
        for doubt in self._rows.doubts_of(instance_uuid):
            self._settle_doubt(doubt, wait=False)
        for claim in self._given_up.all():
            if claim.instance_uuid == instance_uuid:
                self._give_back_late(claim)


def _moves_of(doubt: Doubt) -> set[str]:
    """The migrations for which a commit in doubt makes rows old."""
    return {context.migration_uuid for context in doubt.changes.contexts if context.migration_uuid is not None}


def _only_left(records: Sequence[Record], moves: Collection[str | None]) -> bool:
    """Whether an instance has left devices here for one of these migrations, and has none of the migration."""
    ours = [record for record in records if record.migration_uuid is not None and record.migration_uuid in moves]
    return bool(ours) and all(record.role == vocabulary.OLD for record in ours)
