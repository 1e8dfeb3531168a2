"""The end of claims that failed, and of commits in doubt: devices that a caller will never have go back.

The callers know that these claims failed, so nobody else gives the devices back. A file for each claim names the
instance. It lasts until the devices of the claim are being released.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import json
import operator
import os
import re
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import log
from devicetrack import ownfiles
from devicetrack import vocabulary
from devicetrack.claims.host import OwnProcess
from devicetrack.claims.host import ThisHost
from devicetrack.claims.instance_fields import Fields
from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.claims.life import Life
from devicetrack.claims.rows import Rows
from devicetrack.claims.unfinished import Doubt
from devicetrack.claims.unfinished import FailedClaim
from devicetrack.claims.unfinished import ToldStart
from devicetrack.claims.unfinished import Unfinished
from devicetrack.engine import migrations
from devicetrack.engine.views import named_migrations
from devicetrack.objects import DeviceAssignment
from devicetrack.objects.values import Record

LOG = log.logger(__name__)

_CLAIM_ID: Final = re.compile(r'[0-9a-f]+-[0-9a-f]+')
_UNFINISHED: Final = '.new'

# What InstanceNotClaimed says that an instance does not have.
NOT_FAILED: Final = 'of a claim that did not fail'


class RememberedClaims:
    """The failed claims of one host, over restarts: those of this process, and those whose files it found.

    Files that appear later are not read. They come from a manager that was closed, whose claims belong to this one: it
    may have started a guest on their devices since.

    :param state_path: the host's state directory. The caller has taken the host
    :param process: the manager's
    :param unfinished: gets the claims
    """

    def __init__(self, state_path: str, process: OwnProcess, unfinished: Unfinished) -> None:
        self._directory, self.process, self._unfinished = os.path.join(state_path, 'given-up'), process, unfinished
        for claim in self._read():
            unfinished.note(claim)

    def remember(self, claim: FailedClaim) -> None:
        """Remember a claim durably, unless this is a forked child: its parent has the claim, and goes on with it."""
        if _CLAIM_ID.fullmatch(claim.claim_id) is None:
            self._unfinished.end(FailedClaim, claim.claim_id)   # no manager made it, so nothing has it
        elif self.process.is_this:
            self._unfinished.note(claim)
            self._write(claim)

    def forget(self, claim_id: str) -> None:
        """Forget a claim whose devices went back. An error is only logged: the next start checks the claim again."""
        self._unfinished.end(FailedClaim, claim_id)
        if _CLAIM_ID.fullmatch(claim_id) is None:
            return                              # no file has such a name, and callers may pass any
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory, claim_id))
        except OSError as error:
            LOG.warning('The record of the failed claim %(claim)s cannot be removed: %(error)s',
                        {'claim': claim_id, 'error': error})

    @contextlib.contextmanager
    def unless_it_ends(self, claim: FailedClaim) -> Iterator[None]:
        """Remember a claim, durably after the block, unless the block ends it: then it calls :meth:`forget`."""
        self._unfinished.note(claim)
        try:
            yield
        finally:
            if self.has(claim.claim_id):
                self.remember(claim)

    def has(self, claim_id: str) -> bool:
        """Whether a claim failed, and its devices may not be back. Quick."""
        return self._unfinished.get(FailedClaim, claim_id) is not None

    def all(self, instance_uuid: str | None = None) -> list[FailedClaim]:
        """The claims of one instance, or of all. Quick."""
        return sorted((claim for claim in self._unfinished.all(FailedClaim)
                       if instance_uuid in (None, claim.instance_uuid)), key=operator.attrgetter('claim_id'))

    def _write(self, claim: FailedClaim) -> None:
        """Write the file of a claim. An error of the file system is only logged, since the caller raises another."""
        path = os.path.join(self._directory, claim.claim_id)
        try:
            ownfiles.make_directory(self._directory)
            descriptor = os.open(path + _UNFINISHED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, 'w', encoding='ascii') as file:
                json.dump(claim._asdict(), file)
                file.flush()
                os.fsync(descriptor)
            os.replace(path + _UNFINISHED, path)
            ownfiles.sync_directory(self._directory)
        except OSError as error:
            LOG.error('Claim %(claim)s of instance %(instance)s failed, and after a restart nobody would know it: '
                      '%(error)s; release the instance on this host, unless an audit gives its devices back before',
                      {'claim': claim.claim_id, 'instance': claim.instance_uuid, 'error': error})

    def _read(self) -> list[FailedClaim]:
        """Read the files. One that cannot be read is logged and left out."""
        found = []
        names: list[str] = []
        try:
            ownfiles.check_directory(self._directory)       # else other users could name claims to give back
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            pass
        except OSError as error:
            LOG.error('%(path)s cannot be read: %(error)s', {'path': self._directory, 'error': error})
        for name in names:
            if name.endswith(_UNFINISHED):
                continue
            try:
                with open(os.path.join(self._directory, name), encoding='ascii') as file:
                    said = json.load(file)
                claim = FailedClaim(said['instance_uuid'], said['claim_id'], said['migration_uuid'],
                                said.get('takes') is True)
                if claim.claim_id != name or not isinstance(claim.instance_uuid, str):
                    raise ValueError('it names another claim')
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                LOG.warning('%(path)s cannot be read: %(error)s',
                            {'path': os.path.join(self._directory, name), 'error': error})
            else:
                found.append(claim)
        return found


class FailedClaims:
    """Gives back what failed claims of one host took.

    :param remembered: the claims that could not be undone
    :param instances: reads and sets the fields of the service's instances
    :param go_on: calls a function with those of the start that goes on with the claims of this one
    """

    def __init__(self, host: ThisHost, rows: Rows, life: Life, remembered: RememberedClaims, instances: InstanceFields,
                 go_on: Callable[[Callable[[FailedClaims], Fields]], Fields]) -> None:
        self._driver, self._rows, self._life, self._remembered = host.driver, rows, life, remembered
        self.unfinished, self.process, self.instances, self.go_on = (
            rows.unfinished, remembered.process, instances, go_on)
        self.remember, self.has_failed = remembered.remember, remembered.has

    def has_any(self, instance_uuid: str) -> bool:
        """Whether :meth:`undo_earlier` has something to do for an instance. Quick."""
        return bool(self._remembered.all(instance_uuid) or self._rows.doubts_of(instance_uuid))

    def check_kept(self, instance_uuid: str, devices: Iterable[Record | DeviceAssignment]) -> None:
        """Check that no failed claim took these devices of an instance: an audit gives them back. Quick.

        :raises InstanceNotClaimed: one did
        """
        in_doubt = {record.claim_id for doubt in self._rows.doubts_of(instance_uuid) if doubt.undo
                    for record in doubt.changes.insert}
        for one in devices:
            if one.state == vocabulary.CLAIMED and (one.claim_id in in_doubt or self.has_failed(one.claim_id)):
                raise exception.InstanceNotClaimed(instance_uuid, NOT_FAILED)

    def guest_may_run_unrecorded(self, instance_uuid: str, since: int) -> bool:
        """Whether the service said that a guest runs, ``started`` failed, and nothing shows that the guest is gone.

        :param since: the moment at which its claim was made
        """
        told = self.unfinished.get(ToldStart, instance_uuid)
        if told is None or told.moment <= since:
            return False
        try:
            usage = self._driver.get_usage()
        except exception.DriverError:
            return True
        return bool(usage.unknown) or instance_uuid in usage.domains

    def take_off(self, instance: Any, claimed: Fields, claim_id: str, migration_uuid: str | None) -> Fields:
        """Remove from the instance the devices that a claim took and gave back.

        :param claimed: the fields that the claim set, as far as they are known
        :returns: the fields that it set on the instance
        """
        after, now = Fields(), Fields(**{**claimed, **self.instances.read(instance)})
        resources, context = now.get('resources'), now.get('migration_context')
        # The instance may have the context of another migration: of an earlier one that nobody cleared, or of a later
        # one.
        ours = [one for one in (context, claimed.get('migration_context'))
                if one is not None and one.migration_uuid == migration_uuid]
        before = ours[0].old_resources if ours else None
        if resources is not None:
            names_it = any(one.claim_id == claim_id for one in resources)
        else:
            names_it = 'resources' not in now and (migration_uuid is None or before is not None)
        if names_it:
            after['resources'] = before
        if migration_uuid is not None and (context is None or context in ours):
            after['migration_context'] = None
        self.instances.set(instance, after)
        return after

    def abort(self, claim: FailedClaim, then: Callable[[], Fields]) -> Fields:
        """Give back what one claim took, and make current again what it made old. Waits for the instance.

        What the background gives back already, as another call ended the claim before, is left to it.

        If the store fails or a signal interrupts the call, an audit or a start continues: it knows from the beginning
        of the call that the claim failed. If another manager of the host has started, it has the claim, and this one
        orders nothing.

        :param then: takes the devices off the instance, after the transaction; also if some cannot go back yet. It is
            not called if a later claim of the migration stands, whose devices and migration context stay as they are
        :returns: the answer of ``then``, or no field
        """
        instance_uuid, claim_id, migration_uuid, takes = claim
        with self._remembered.unless_it_ends(claim), self._rows.working(instance_uuid):
            self.unfinished.end(ToldStart, instance_uuid)
            try:
                records = [record for record in self._rows.of_instance(instance_uuid)
                           if not self._life.is_wiped(record)]
                taken = [record for record in records if record.claim_id == claim_id]
                moves = _named({*named_migrations(taken), migration_uuid})
                stands = self._another_stands(records, taken, moves, claim_id, takes)
                leaving = self._life.advance(_end_of(records, taken, moves, stands))
            except exception.HostTakenOver:
                if not self._rows.is_over:
                    self._remembered.forget(claim_id)             # its rows are another manager's
                raise
            self._remembered.forget(claim_id)
            try:
                return Fields() if stands else then()
            finally:
                self._life.release(leaving)

    def undo_failed(self, wait: bool = False) -> bool:
        """Give back the devices of failed claims that could not be given back before. Every start and audit calls it.

        :param wait: as :meth:`_undo`
        :returns: whether there was any such claim
        """
        waiting = self._remembered.all()
        for claim in waiting:
            with self._rows.if_idle(claim.instance_uuid) as idle:
                if not idle or self._is_in_doubt(claim):
                    continue
                with contextlib.suppress(exception.StoreError, exception.DriverError):
                    self._undo_late(claim, wait)
        return bool(waiting)

    def _is_in_doubt(self, claim: FailedClaim) -> bool:
        for doubt in self._rows.doubts:
            if doubt.changes.insert:
                if claim.claim_id in {record.claim_id for record in doubt.changes.insert}:
                    return True
            elif doubt.undo and claim.migration_uuid in _moves_of(doubt):
                return True
        return False

    def _undo_late(self, claim: FailedClaim, wait: bool) -> list[Record]:
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
        self._remembered.forget(claim.claim_id)
        return gave

    def _undo(self, instance_uuid: str, claim_id: str | None, moves: Collection[str], wait: bool,
              takes: bool) -> list[Record]:
        """Give back what a failed claim took, unless the guest was started on it since: then the service wants it.

        :param claim_id: None for a claim that took no device
        :param moves: the migration of the claim, if it had one
        :param wait: wait until devices are back that no guest could use, for a claim that may take them again
        :returns: the rows that it had of devices that are back or being released; none if another claim of its
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
            LOG.warning('Devices of the failed claim of instance %(instance)s are being released: %(error)s',
                        {'instance': instance_uuid, 'error': error})
        return [] if stands else taken

    def _another_stands(self, records: Sequence[Record], taken: Sequence[Record], moves: Collection[str],
                        claim_id: str | None, takes: bool) -> bool:
        """Whether a claim for one of these migrations stands, other than this one. The context of its move stays.

        If it took no device, the rows do not say who made the others old. But the migration context of a claim has the
        devices that it took. Those that this claim took may be gone, and forgotten. Two claims that took none cannot be
        told apart.

        :param taken: the rows of this claim
        :param takes: as :class:`.FailedClaim` says
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
            self._life.wipes.go_on()
        return True

    def undo_earlier(self, instance_uuid: str) -> list[Record]:
        """Settle the commits in doubt of an instance, and undo its claims that failed. The caller works on it.

        Every claim of the instance and every start of its guest comes after that. An audit would take devices of these
        claims away from the guest, and nothing in the rows tells two claims of one migration apart if they take no
        device. Without such claims it reads nothing.

        :returns: the rows that these claims had of devices that are back or being released
        :raises StoreError: no answer
        :raises DriverError: nobody knows whether the guest runs on the devices of such a claim
        """
        gave: list[Record] = []
        for doubt in self._rows.doubts_of(instance_uuid):
            gave += self._settle_doubt(doubt, wait=True)
        for claim in self._remembered.all(instance_uuid):
            gave += self._undo_late(claim, wait=True)
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

    :param taken: the rows of a claim for it, which do not count while they are released
    """
    ours = [record for record in records if record.migration_uuid in moves
            and not (record in taken and record.state == vocabulary.RELEASING)]
    return all(record.role == vocabulary.OLD for record in ours) and any(
        record.state != vocabulary.RELEASING for record in ours)
