"""The end of claims that failed, and of commits in doubt: devices that a caller will never have go back."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims.given_up import GivenUp
from devicetrack.claims.given_up import GivenUpClaims
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.life import Life
from devicetrack.claims.own_process import OwnProcess
from devicetrack.claims.rows import Doubt
from devicetrack.claims.rows import Rows
from devicetrack.claims.unrecorded_starts import UnrecordedStarts
from devicetrack.engine import migrations
from devicetrack.engine.views import named_migrations
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Record
from devicetrack.virt.driver import VirtDriver

LOG = log.logger(__name__)

# What InstanceNotClaimed says that an instance does not have.
NOT_FAILED: Final = 'of a claim that did not fail'


class FailedClaims:
    """Gives back what failed claims of one host took.

    :param given_up: remembers claims that could not be given back
    :param process: the manager's, which has the claims
    :param starts: the guests that run, as the service says
    :param go_on: calls a function with those of the start that goes on with the claims of this one
    """

    def __init__(self, rows: Rows, life: Life, given_up: GivenUpClaims, driver: VirtDriver, process: OwnProcess,
                 starts: UnrecordedStarts,
                 go_on: Callable[[Callable[[FailedClaims], Fields]], Fields]) -> None:
        self._rows, self._life, self._given_up, self._driver = rows, life, given_up, driver
        self.process, self.starts, self.go_on = process, starts, go_on

    def give_up(self, instance_uuid: str, claim_id: str, migration_uuid: str | None, takes: bool = False) -> None:
        """Let the next audit give back a claim, if it was recorded: its caller will never have it.

        :param takes: as :meth:`abort`
        """
        self._given_up.remember(GivenUp(instance_uuid, claim_id, migration_uuid, takes))

    def has_given_up(self, claim_id: str) -> bool:
        """Whether a claim failed, and its devices may not be back. Quick."""
        return self._given_up.has(claim_id)

    def has_any(self, instance_uuid: str) -> bool:
        """Whether :meth:`undo_earlier` has something to do for an instance. Quick."""
        return bool(self._given_up.of_instance(instance_uuid) or self._rows.doubts_of(instance_uuid))

    def check_kept(self, instance_uuid: str, devices: Iterable[Record | DeviceAssignment]) -> None:
        """Check that no failed claim took these devices of an instance: an audit gives them back. Quick.

        :raises InstanceNotClaimed: one did
        """
        in_doubt = {record.claim_id for doubt in self._rows.doubts_of(instance_uuid) if doubt.undo
                    for record in doubt.changes.insert}
        for one in devices:
            if one.state == vocabulary.CLAIMED and (one.claim_id in in_doubt or self.has_given_up(one.claim_id)):
                raise exception.InstanceNotClaimed(instance_uuid, NOT_FAILED)

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

    def abort(self, instance_uuid: str, claim_id: str, migration_uuid: str | None, takes: bool = False, *,
              then: Callable[[], Fields]) -> Fields:
        """Give back what one claim took, and make current again what it made old. Waits for the instance.

        What the background gives back already, as another call ended the claim before, is left to it.

        If the store fails or a signal interrupts the call, an audit or a start continues: it knows from the beginning
        of the call that the claim failed. If another manager of the host has started, it has the claim, and this one
        orders nothing.

        :param takes: whether it is known that the claim is one for devices
        :param then: takes the devices off the instance, after the transaction; also if some cannot go back yet. It is
            not called if a later claim of the migration stands, whose devices and migration context stay as they are
        :returns: the answer of ``then``, or no field
        """
        claim = GivenUp(instance_uuid, claim_id, migration_uuid, takes)
        with self._given_up.unless_it_ends(claim), self._rows.working(instance_uuid):
            self.starts.forget(instance_uuid)
            try:
                records = [record for record in self._rows.of_instance(instance_uuid)
                           if not self._life.is_wiped(record)]
                taken = [record for record in records if record.claim_id == claim_id]
                moves = _named({*named_migrations(taken), migration_uuid})
                stands = self._another_stands(records, taken, moves, claim_id, takes)
                leaving = self._life.advance(_end_of(records, taken, moves, stands))
            except exception.HostTakenOver:
                if not self._rows.is_over:
                    self._given_up.forget(claim_id)             # its rows are another manager's
                raise
            self._given_up.forget(claim_id)
            try:
                return Fields() if stands else then()
            finally:
                self._life.give_back(leaving)

    def give_back_claims(self, wait: bool = False) -> bool:
        """Give back the devices of failed claims that could not be given back before. Every start and audit calls it.

        :param wait: as :meth:`_undo`
        :returns: whether there was any such claim
        """
        waiting = self._given_up.all()
        for claim in waiting:
            with self._rows.if_idle(claim.instance_uuid) as idle:
                if not idle or self._is_in_doubt(claim):
                    continue
                with contextlib.suppress(exception.StoreError, exception.DriverError):
                    self._give_back_late(claim, wait)
        return bool(waiting)

    def _is_in_doubt(self, claim: GivenUp) -> bool:
        for doubt in self._rows.doubts:
            if doubt.changes.insert:
                if claim.claim_id in {record.claim_id for record in doubt.changes.insert}:
                    return True
            elif doubt.undo and claim.migration_uuid in _moves_of(doubt):
                return True
        return False

    def _give_back_late(self, claim: GivenUp, wait: bool) -> list[Record]:
        """Give back a claim some time after it failed. The caller works on its instance.

        :param wait: as :meth:`_undo`
        :returns: as :meth:`_undo`
        :raises StoreError, DriverError: the claim stays remembered
        """
        try:
            gave = self._undo(claim.instance_uuid, claim.claim_id, _named({claim.migration_uuid}), wait, claim.takes)
        except exception.DeviceTrackError as error:
            LOG.warning('Claim %(claim)s of instance %(instance)s cannot be given back yet: %(error)s',
                        {'claim': claim.claim_id, 'instance': claim.instance_uuid, 'error': error})
            raise
        self._given_up.forget(claim.claim_id)
        return gave

    def _undo(self, instance_uuid: str, claim_id: str | None, moves: Collection[str], wait: bool,
              takes: bool) -> list[Record]:
        """Give back what a failed claim took, unless the guest was started on it since: then the service wants it.

        :param claim_id: None for a claim that took no device
        :param moves: the migration of the claim, if it had one
        :param wait: wait until devices are back that no guest could use, for a claim that may take them again
        :returns: the rows that it had of devices that are back or on their way back; none if another claim of its
            migration stands, so that the guest does not miss them
        :raises StoreError: the claim may stay as it is
        :raises DriverError: nobody knows whether the guest runs; the claim stays as it is
        """
        records = self._rows.of_instance(instance_uuid)
        taken = [record for record in records if record.claim_id == claim_id]
        moves = {*named_migrations(taken), *moves}
        if self._guest_has(taken):
            return []
        stands = self._another_stands(records, taken, moves, claim_id, takes)
        at_once = wait and not any(record.was_realized for record in taken)
        try:
            self._life.settle(_end_of(records, taken, moves, stands), at_once)
        except exception.StoreError:
            raise
        except exception.DeviceTrackError as error:
            LOG.warning('Devices of the failed claim of instance %(instance)s are on their way back: %(error)s',
                        {'instance': instance_uuid, 'error': error})
        return [] if stands else taken

    def _another_stands(self, records: Sequence[Record], taken: Sequence[Record], moves: Collection[str],
                        claim_id: str | None, takes: bool) -> bool:
        """Whether a claim for one of these migrations stands, other than this one. The context of its move stays.

        If it took no device, the rows do not say who made the others old. But the migration context of a claim has the
        devices that it took. Those that this claim took may be gone, and forgotten. Two claims that took none cannot be
        told apart.

        :param taken: the rows of this claim
        :param takes: as :meth:`abort`
        """
        if _stands(records, moves, claim_id):
            return True
        if not _only_left(records, moves, taken):
            return False
        try:
            context = self._rows.stored_context(records[0].instance_uuid)
        except (exception.UnknownObject, exception.MalformedObject):
            return False
        if context is None or context.migration_uuid not in moves:
            return False
        took = {one.claim_id for one in context.new_resources or ()}
        return claim_id not in took if took else takes

    def _guest_has(self, taken: Sequence[Record]) -> bool:
        """Whether a guest runs on devices of a claim, recorded or not.

        :raises DriverError: that is unknown
        """
        if any(record.state == vocabulary.ACTIVE for record in taken):
            return True
        claimed = [record for record in taken if record.state == vocabulary.CLAIMED]
        if not claimed:
            return False
        usage, keys, uuid = self._driver.get_usage(), {record.key for record in claimed}, claimed[0].instance_uuid
        if any(use.live and use.domain_uuid == uuid and (use.kind, use.identifier) in keys for use in usage.uses):
            return True
        for unknown in usage.unknown:
            if not unknown.is_of_another(uuid):
                raise exception.UsersUnknown(*claimed[0].key, f'{unknown.what}: {unknown.reason}')
        return False

    def settle_doubts(self) -> None:
        """Ask the store for the outcome of commits in doubt. If it does not know yet, their devices stay held."""
        for doubt in self._rows.doubts:
            with self._rows.if_idle(doubt.instance_uuid) as idle:
                if not idle:
                    continue
                with contextlib.suppress(exception.StoreError, exception.DriverError):
                    self._settle_doubt(doubt, wait=False)

    def _settle_doubt(self, doubt: Doubt, wait: bool) -> list[Record]:
        """Settle a commit in doubt, and undo it if it happened although its caller was told that it failed.

        :param wait: as :meth:`_undo`
        :returns: as :meth:`_undo`
        :raises StoreError, DriverError: no answer; it stays in doubt, or what it did stays for the audit
        """
        try:
            if not self._rows.settle(doubt) or not doubt.undo:
                return []
            claim_id = next((record.claim_id for record in doubt.changes.insert), None)
            return self._undo(doubt.instance_uuid, claim_id, _moves_of(doubt), wait, claim_id is not None)
        except exception.DeviceTrackError as error:
            LOG.warning('Instance %(instance)s stays as it is for now: %(error)s',
                        {'instance': doubt.instance_uuid, 'error': error})
            raise

    def make_way(self, instance_uuid: str) -> bool:
        """Before a claim of an instance is refused, do as :meth:`undo_earlier`. Waits for the instance.

        :returns: whether there was anything to do
        :raises StoreError, DriverError: as :meth:`undo_earlier`
        """
        if not self.has_any(instance_uuid):
            return False
        try:
            with self._rows.working(instance_uuid):
                self.undo_earlier(instance_uuid)
        finally:
            self._life.start_wipes()
        return True

    def undo_earlier(self, instance_uuid: str) -> list[Record]:
        """Settle the commits in doubt of an instance, and undo its claims that failed. The caller works on it.

        Every claim of the instance and every start of its guest comes after that. An audit would take devices of these
        claims away from the guest, and nothing in the rows tells two claims of one migration apart if they take no
        device. Without such claims it reads nothing.

        :returns: the rows that these claims had of devices that are back or on their way back
        :raises StoreError: no answer
        :raises DriverError: nobody knows whether the guest runs on the devices of such a claim
        """
        gave: list[Record] = []
        for doubt in self._rows.doubts_of(instance_uuid):
            gave += self._settle_doubt(doubt, wait=True)
        for claim in self._given_up.of_instance(instance_uuid):
            gave += self._give_back_late(claim, wait=True)
        return gave


def _named(moves: Iterable[str | None]) -> set[str]:
    return {uuid for uuid in moves if uuid is not None}


def _moves_of(doubt: Doubt) -> set[str]:
    """The migrations for which a commit in doubt makes rows old."""
    return _named(context.migration_uuid for context in doubt.changes.contexts)


def _stands(records: Sequence[Record], moves: Collection[str], claim_id: str | None) -> bool:
    """Whether an instance has devices here that another claim took for one of these migrations."""
    return any(record.migration_uuid in moves and record.role != vocabulary.OLD
               and record.state != vocabulary.RELEASING and record.claim_id != claim_id for record in records)


def _end_of(records: Sequence[Record], taken: Sequence[Record], moves: Collection[str],
            stands: bool) -> migrations.Settlement:
    """What the end of a claim changes.

    :param records: every row of the instance on this host
    :param taken: the rows of the claim
    :param stands: whether another claim of its migration stands
    """
    if stands:
        return migrations.Settlement(give=tuple(taken))
    if not taken and not _only_left(records, moves, taken):
        return migrations.Settlement()          # it took no device, or is undone already
    return migrations.undo(records, moves, taken)


def _only_left(records: Sequence[Record], moves: Collection[str], taken: Sequence[Record]) -> bool:
    """Whether an instance has left devices here for one of these migrations, and has none of the migration.

    :param taken: the rows of a claim for it, which do not count on their way back
    """
    ours = [record for record in records if record.migration_uuid in moves
            and not (record in taken and record.state == vocabulary.RELEASING)]
    return all(record.role == vocabulary.OLD for record in ours) and any(
        record.state != vocabulary.RELEASING for record in ours)
