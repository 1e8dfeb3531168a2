"""The end of claims that failed, and of commits in doubt: devices that a caller will never have go back."""

from __future__ import annotations

from collections.abc import Sequence

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.given_up import GivenUp
from devicetrack.claims.given_up import GivenUpClaims
from devicetrack.claims.life import Life
from devicetrack.claims.own_process import OwnProcess
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
        doubted = {record.claim_id for doubt in self._rows.doubts for record in doubt.changes.insert}
        for claim in waiting:
            with self._rows.if_idle(claim.instance_uuid) as idle:
                if not idle or claim.claim_id in doubted:
                    continue
                try:
                    records = self._rows.of_instance(claim.instance_uuid)
                    states = {record.state for record in records if record.claim_id == claim.claim_id}
                    # Without rows the claim is undone already. If its guest has started since, the service wanted that.
                    if states and vocabulary.ACTIVE not in states:
                        self._give_back_claim(claim, records, wait=False)
                except exception.DeviceTrackError as error:
                    LOG.warning('Claim %(claim)s of instance %(instance)s cannot be given back yet: %(error)s',
                                {'claim': claim.claim_id, 'instance': claim.instance_uuid, 'error': error})
                    if isinstance(error, exception.StoreError):
                        continue                # else its rows are on their way back
                self._given_up.forget(claim.claim_id)
        return bool(waiting)

    def settle_doubts(self, wait: bool = True) -> None:
        """Ask the store for the outcome of commits in doubt. If it does not know yet, their devices stay held.

        :param wait: as :meth:`.Life.give_back`
        """
        for doubt in self._rows.doubts:
            with self._rows.if_idle(doubt.instance_uuid) as idle:
                if not idle:
                    continue
                try:
                    if self._rows.settle(doubt) and doubt.undo:
                        claims = {record.claim_id for record in doubt.changes.insert}
                        records = self._rows.of_instance(doubt.instance_uuid)
                        named = {context.migration_uuid for context in doubt.changes.contexts
                                 if context.migration_uuid is not None}
                        self._life.settle(migrations.undo(
                            records, named, [record for record in records if record.claim_id in claims]), wait)
                except exception.DeviceTrackError as error:
                    LOG.warning('Instance %(instance)s stays as it is for now: %(error)s',
                                {'instance': doubt.instance_uuid, 'error': error})
