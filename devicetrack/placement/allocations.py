"""Changes the allocations of consumers, under their generations.

An operation's policy says what it does when somebody else changed the same consumer::

    allocations = AllocationClient(client, Policies(delete=Policy.RETRY), leftovers)
    try:
        allocations.move(instance.uuid, migration.uuid, new)
    except errors.NoCapacity:
        ...                                 # another host
    except errors.ConsumerConflict as conflict:
        ...                                 # conflict.result has the outcome

Every operation may be called again: it recognizes what it did already, and succeeds. All of them block; never call one
under the ledger's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
import enum
import reprlib
import time
from typing import Final
from typing import NamedTuple
from typing import Protocol

from oslo_config import cfg

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.conf import placement as options
from devicetrack.objects.values import Leftover
from devicetrack.placement import errors
from devicetrack.placement import notes
from devicetrack.placement import operations
from devicetrack.placement import pauses
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.placement.values import Consumer
from devicetrack.placement.values import Resources

LOG = log.logger(__name__)

# The generation of a consumer that a server was just making when it was killed. Placement refuses to make that consumer
# again, and does not show it.
_HALF_MADE: Final = 0


class Policy(enum.Enum):
    """How an operation goes on when a consumer holds something other than expected."""

    FAIL = 'fail'               # the caller decides
    RETRY = 'retry'             # read again, and repeat if the part that it changes is as expected
    MERGE = 'merge'             # read again, and repeat, keeping the allocations that others added


class Policies(NamedTuple):
    """A policy for each operation. A spawn never merges; a delete or confirm that merges removes what it finds."""

    spawn: Policy = Policy.FAIL
    move: Policy = Policy.FAIL
    confirm: Policy = Policy.FAIL
    revert: Policy = Policy.FAIL
    delete: Policy = Policy.FAIL
    evacuate: Policy = Policy.FAIL
    change: Policy = Policy.FAIL

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> Policies:
        """Read the policies from ``[placement] on_conflict_…``."""
        options.register(conf)
        group = conf[options.GROUP]
        return cls(*(Policy(group[options.ON_CONFLICT + name]) for name in cls._fields))


class Leftovers(Protocol):
    """Keeps a note of each migration whose end has yet to reach placement. It must outlive the process."""

    def record(self, leftover: Leftover) -> None:
        """Keep a note. It replaces an earlier one of the same migration."""

    def remove(self, leftover: Leftover) -> None:
        """Remove a note, if it is there."""

    def kept(self) -> Collection[Leftover]:
        """Return every note that was recorded and not removed."""


class AllocationClient:
    """Changes allocations in placement for the operations of a compute service.

    :param policies: for each operation, its policy about conflicts
    :param leftovers: keeps a note of each confirm and revert until it is done; None keeps no notes
    :param attempts: how often an operation writes at most, for conflicts and lost answers together
    :param pause: called with the seconds before each attempt after the first; at random, and longer each time

    Errors of every operation, in addition to those that its docstring names:

    - ConsumerConflict: somebody else changed a consumer, and by its policy the operation stops
    - ProviderConflict: somebody else changed a provider, and by its policy the operation stops
    - NoSuchProvider: placement has no such provider
    - PlacementUnavailable, PlacementTooOld, PlacementRefused

    Unless the error's ``result`` says otherwise, nothing was changed.
    """

    def __init__(self, client: Client, policies: Policies | None = None, leftovers: Leftovers | None = None,
                 attempts: int = 4, pause: Callable[[float], object] = time.sleep) -> None:
        self._client, self._leftovers, self._attempts, self._pause = client, leftovers, attempts, pause
        self._policies = policies or Policies()
        if self._policies.spawn is Policy.MERGE:
            raise ValueError('a spawn is never merged into what is there')

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts, leftovers: Leftovers | None = None) -> AllocationClient:
        """Make the client that ``[placement]`` describes.

        :raises InvalidConfiguration: the options cannot be used
        """
        policies = Policies.from_conf(conf)
        return cls(Client.from_conf(conf), policies, leftovers, conf[options.GROUP].allocation_attempts)

    # -- operations ---------------------------------------------------------------------------------------------------

    def get(self, consumer_uuid: str) -> Consumer:
        """Read the allocations that a consumer has now."""
        return self._client.get_allocations(consumer_uuid)

    def spawn(self, instance_uuid: str, resources: Resources, project_id: str, user_id: str) -> values.Result:
        """Allocate the resources of a new instance.

        :raises ConsumerExists: the consumer exists, and this operation did not make it
        :raises NoCapacity: choose another host
        """
        return self._apply(operations.Spawn(instance_uuid, resources, project_id, user_id))

    def move(self, instance_uuid: str, migration_uuid: str, new: Resources,
             own: Resources | None = None) -> values.Result:
        """Give the instance's allocations to the migration, and allocate the destination's resources to the instance.

        For resizes, cold migrations and live migrations, even on one host.

        :param own: the allocations that the instance is expected to have; None means those that are found first
        :raises ConsumerExists: the migration's consumer exists, but not with the allocations that this would give it
        :raises UnknownConsumer: the instance holds nothing
        :raises NoCapacity: choose another host
        """
        return self._apply(operations.StartMove(instance_uuid, migration_uuid, new, own))

    def confirm(self, instance_uuid: str, migration_uuid: str) -> values.Result:
        """Remove the migration's allocations. This also ends a live migration.

        A confirm that fails stays pending, and its note is kept; ``result.revert_possible`` of the error says whether
        the move can be reverted instead. :meth:`finish_moves` completes it once the service reports that the move is
        over.

        :raises StoreError: the note cannot be kept; nothing was sent
        """
        leftover = Leftover(instance_uuid, migration_uuid, vocabulary.CONFIRM)
        self._record(leftover)                  # first, in case the process is killed below
        try:
            result = self._apply(operations.Confirm(migration_uuid))
        except errors.PlacementError as error:
            error.result = error.result._replace(revert_possible=self._is_revert_possible(leftover))
            raise
        self._forget(leftover)
        return result

    def revert(self, instance_uuid: str, migration_uuid: str, old: Resources | None = None,
               own: Resources | None = None) -> values.Result:
        """Give the migration's allocations back to the instance. This also rolls a live migration back.

        A revert that fails stays pending, and its note is kept. :meth:`finish_moves` completes it, and so does a second
        call. Both leave the instance what others allocated to it since the first call, if the note says what the move
        gave.

        :param old: the least that the instance holds after the revert, as far as known; without ``own``, everything
            that it holds then. Where this cannot tell a revert that happened from a confirm, or it is None, a second
            call raises UnknownConsumer
        :param own: the allocations that the move gave to the instance. None means those that the note of an earlier
            call says; without such a note, everything that the instance holds when it is read first
        :raises UnknownConsumer: the migration holds nothing, or the instance holds nothing
        :raises NoCapacity: the source's provider has shrunk
        :raises StoreError: the note cannot be kept; nothing was sent
        """
        noted = self._noted(migration_uuid) if own is None else None
        operation = operations.Revert(instance_uuid, migration_uuid, own, old, noted=noted)
        leftover = Leftover(instance_uuid, migration_uuid, vocabulary.REVERT, notes.to_text(operation.own))
        self._record(leftover)
        try:
            result = self._apply(operation)
        except errors.PlacementError:
            if leftover.own is None and operation.own:
                self._amend(leftover._replace(own=notes.to_text(operation.own)))
            raise
        self._forget(leftover)
        return result

    # -- pending confirms and reverts ----------------------------------------------------------------------------------

    def finish_confirm(self, leftover: Leftover) -> values.Result:
        """Complete a pending confirm, whatever the migration holds by now.

        Only for a move that the service reports as completed: it can no longer be reverted.
        """
        result = self._apply(operations.Confirm(leftover.migration_uuid), Policy.MERGE)
        self._forget(leftover)
        return result

    def finish_revert(self, leftover: Leftover, is_deleted: bool | None = None) -> values.Result:
        """Complete a pending revert, with whatever the migration holds by now.

        Only for a move that the service reports as reverted or cancelled: the instance is where it was before. What
        others allocated to the instance stays, if the note says what the move gave; otherwise all goes that it holds.

        :param is_deleted: for an instance that holds nothing: True removes the migration's allocations, and False gives
            them to the instance all the same. None means that the service cannot tell
        :raises UnknownConsumer: the instance holds nothing, and nobody knows whether it was deleted
        :raises NoCapacity: the source's provider has shrunk
        :raises MalformedObject: the note is damaged, and so nobody knows what others allocated; nothing was changed
        """
        instance_uuid, migration_uuid = leftover.instance_uuid, leftover.migration_uuid
        if is_deleted and not self._client.get_allocations(instance_uuid).exists:
            result = self._apply(operations.Confirm(migration_uuid), Policy.MERGE)
        else:
            own = notes.given(leftover)
            result = self._apply(
                operations.Revert(instance_uuid, migration_uuid, own, None, create=is_deleted is False),
                Policy.RETRY if own is None else Policy.MERGE)
        self._forget(leftover)
        return result

    def finish_moves(self, is_completed: Callable[[str], bool | None],
                     is_deleted: Callable[[str], bool | None] | None = None
                     ) -> dict[Leftover, exception.DeviceTrackError]:
        """Try to complete every pending confirm and revert.

        Call it at each start and in a periodic task of the service. A migration whose end is unknown keeps its
        allocations. Once it has none, its note is removed.

        :param is_completed: returns whether the service reports the migration with this UUID as completed (True) or
            undone (False); None while it is neither, or the service cannot tell: see
            :func:`devicetrack.engine.migrations.is_completed`
        :param is_deleted: returns whether the service reports the instance with this UUID as deleted (True) or as one
            that stays (False); None while it is neither, or the service cannot tell. Without it, a note stays whose
            move was undone and whose instance holds nothing. An error of either callable counts as None
        :returns: the leftovers that could not be finished, each with a PlacementError, or a MalformedObject if it is
            the note of a revert and damaged; the next call tries again
        :raises StoreError: the leftovers cannot be read
        """
        failed: dict[Leftover, exception.DeviceTrackError] = {}
        for leftover in self._leftovers.kept() if self._leftovers is not None else ():
            try:
                completed = _ask(is_completed, leftover.migration_uuid)
                if completed:
                    self.finish_confirm(leftover)
                elif not self._client.get_allocations(leftover.migration_uuid).exists:
                    self._forget(leftover)
                elif completed is False:
                    self.finish_revert(leftover, is_deleted and _ask(is_deleted, leftover.instance_uuid))
            except (errors.PlacementError, exception.MalformedObject) as error:
                LOG.warning('The allocations of migration %(migration)s could not be settled: %(error)s',
                            {'migration': leftover.migration_uuid, 'error': error})
                failed[leftover] = error
        return failed

    def delete(self, consumer_uuid: str, force: bool = False) -> values.Result:
        """Remove all allocations of a consumer.

        An instance that moves has two consumers: its own and the migration's.

        :param force: do so without checking whether somebody changed them. Allocations that somebody writes at that
            very moment may stay, because placement deletes those that it has read in an earlier transaction
        """
        operation = operations.Delete(consumer_uuid)
        if not force:
            return self._apply(operation)
        try:
            had = self._client.delete_allocations(consumer_uuid)
        except errors.PlacementError as error:
            error.result = values.Result(operation.name, values.Outcome.UNKNOWN)
            raise
        return values.Result(operation.name, values.Outcome.DONE if had else values.Outcome.REPEATED)

    def evacuate(self, instance_uuid: str, new: Resources) -> values.Result:
        """Add the destination's allocations to the instance. If both ends share a provider, the larger amount suffices.

        :raises UnknownConsumer: the instance holds nothing
        :raises NoCapacity: choose another host
        """
        return self._apply(operations.Evacuate(instance_uuid, new))

    def finish_evacuation(self, instance_uuid: str, providers: Collection[str]) -> values.Result:
        """Remove the instance's allocations at the source, when the evacuation is over.

        :param providers: the providers of the source's tree
        """
        return self._apply(operations.FinishEvacuation(instance_uuid, providers))

    def change(self, consumer_uuid: str, generation: int, own: Resources, wanted: Resources,
               kind: str = values.INSTANCE) -> values.Result:
        """Change our part of a consumer's allocations, because its need changed. The parts of others stay.

        :param generation: the consumer's generation from :meth:`get`, when our part was ``own``
        :param own: our part as it is known; never the parts of others
        :param wanted: our part as it should become
        :param kind: ``values.MIGRATION`` for a migration's consumer: a write must give the type that its writer may not
            have given
        :raises UnknownConsumer: the consumer holds nothing
        :raises NoCapacity: there is no room for it
        """
        return self._apply(operations.ChangeOwn(consumer_uuid, generation, own, wanted, kind))

    # -- applying an operation ----------------------------------------------------------------------------------------

    def _apply(self, operation: operations.Operation, policy: Policy | None = None) -> values.Result:
        """Read and write; after a conflict or a lost answer, read again and decide."""
        run = _Run(self._client, operation, policy or getattr(self._policies, operation.name), self._attempts,
                   self._pause)
        try:
            return values.Result(operation.name, run())
        except errors.PlacementError as error:
            outcome = values.Outcome.UNKNOWN if run.unsure else values.Outcome.UNCHANGED
            error.result = values.Result(operation.name, values.Outcome.PENDING if operation.ends_move else outcome)
            raise

    def _record(self, leftover: Leftover) -> None:
        if self._leftovers is not None:
            self._leftovers.record(leftover)

    def _noted(self, migration_uuid: str) -> Resources | None:
        """Return what the move gave to the instance by the note of an earlier call; None if no note says it."""
        kept = self._leftovers.kept() if self._leftovers is not None else ()
        return next((notes.given(leftover) for leftover in kept
                     if leftover.migration_uuid == migration_uuid and notes.is_readable(leftover)), None)

    def _amend(self, leftover: Leftover) -> None:
        """Note what the move gave to the instance, if that was only read after the note was recorded."""
        try:
            self._record(leftover)
        except exception.StoreError as error:
            LOG.warning('The note of migration %(migration)s lacks what the move gave to its instance: %(error)s',
                        {'migration': leftover.migration_uuid, 'error': error})

    def _forget(self, leftover: Leftover) -> None:
        if self._leftovers is not None:
            forget(self._leftovers, leftover)

    def _is_revert_possible(self, leftover: Leftover) -> bool | None:
        try:
            return all(self._client.get_allocations(uuid).exists
                       for uuid in (leftover.instance_uuid, leftover.migration_uuid))
        except errors.PlacementError:
            return None


def forget(leftovers: Leftovers, leftover: Leftover) -> None:
    """Remove the note of a move that is over. If the store fails, the note stays for now."""
    try:
        leftovers.remove(leftover)
    except exception.StoreError as error:
        # The move is over all the same; finish_moves will find that the migration holds nothing.
        LOG.warning('The note of migration %(migration)s stays for now: %(error)s',
                    {'migration': leftover.migration_uuid, 'error': error})


def _ask(question: Callable[[str], bool | None], uuid: str) -> bool | None:
    """Return the service's answer about one move. An error is no answer, and the other moves go on.

    Neither is anything but True, False and None: a word such as ``reverted`` would count as True, and end the move in
    the wrong way.
    """
    try:
        answer: object = question(uuid)
    except Exception:
        LOG.exception('The service failed to tell what became of %s', uuid)
        return None
    if answer is None or isinstance(answer, bool):
        return answer
    LOG.warning('The service says neither True nor False nor None of %(uuid)s, so its answer counts as unknown: '
                '%(answer)s', {'uuid': uuid, 'answer': reprlib.repr(answer)})
    return None


class _Run:
    """Applies one operation. It is ``unsure`` while a write had no answer and nothing proves whether it happened."""

    def __init__(self, client: Client, operation: operations.Operation, policy: Policy, attempts: int,
                 pause: Callable[[float], object]) -> None:
        self._client, self._operation, self._policy, self._attempts = client, operation, policy, attempts
        self._pause = pause
        self.unsure = False

    def __call__(self) -> values.Outcome:
        operation = self._operation
        types = dict(zip(operation.consumers, operation.types, strict=True))
        views = {uuid: Consumer(uuid, {}, None) for uuid in operation.consumers} | self._read(operation.read_first)
        operation.begin(views)
        if not operation.is_as_believed(views):         # perhaps because of an earlier call: the others tell
            views |= self._read(uuid for uuid in operation.consumers if uuid not in operation.read_first)
        failure: errors.PlacementError | None = None
        written, is_question = 0, False
        while not operation.is_done(views):
            writes = [consumer.typed(types[consumer.uuid]) for consumer in operation.plan(views)]
            self._check_policy(failure, views, written)
            if written:
                self._pause(pauses.after(written))
            failure = self._write(writes)
            written += not is_question
            if failure is None:
                return values.Outcome.DONE
            self.unsure = self.unsure or isinstance(failure, errors.PlacementUnavailable)
            before, views = views, self._read(operation.consumers)
            if any(operations.is_own_write(consumer, views[consumer.uuid]) for consumer in writes):
                break                           # placement writes all consumers or none, so one is proof enough
            failure = self._named(failure, writes, before, views)
            half_made = [consumer.uuid for consumer in writes if consumer.generation is None]
            is_question = bool(half_made) and isinstance(failure, errors.ProviderConflict)
            if is_question:                     # one more write will show whether it happened; it is no attempt
                views |= {uuid: Consumer(uuid, {}, _HALF_MADE) for uuid in half_made}
                failure = None
        return values.Outcome.DONE if self.unsure else values.Outcome.REPEATED

    def _check_policy(self, failure: errors.PlacementError | None, views: operations.Views, written: int) -> None:
        """Raise unless the policy lets the operation write now."""
        if failure is not None:
            if written >= self._attempts or (
                    self._policy is Policy.FAIL and isinstance(failure, errors.GenerationConflict)):
                raise failure
            LOG.info('%s; trying again', failure)
        if self._policy is not Policy.MERGE and not self._operation.is_as_believed(views):
            raise failure or errors.ConsumerConflict(self._operation.name, self._operation.read_first)

    def _write(self, writes: Sequence[Consumer]) -> errors.PlacementError | None:
        """Write; returns the error after which another attempt may succeed."""
        try:
            self._client.replace_allocations(writes)
        except errors.GenerationConflict as error:
            return error
        except errors.PlacementUnavailable as error:
            if error.status in errors.FORBIDDEN:
                raise
            return error
        except errors.PlacementRefused as error:
            if error.status == 400:             # perhaps for an unknown provider; no code says so, or which provider
                for provider in {provider for consumer in writes for provider in consumer.resources}:
                    self._client.get_provider(provider)
            raise
        return None

    def _read(self, consumers: Iterable[str]) -> dict[str, Consumer]:
        return {uuid: self._client.get_allocations(uuid) for uuid in consumers}

    def _named(self, failure: errors.PlacementError, writes: Sequence[Consumer], before: operations.Views,
               after: operations.Views) -> errors.PlacementError:
        """Name the consumers that changed, or else the providers, now that all were read again."""
        moved = [uuid for uuid, view in after.items() if view.generation != (
            before[uuid].generation if before[uuid].exists else None)]          # half made counts as not there
        if moved:
            return errors.ConsumerConflict(self._operation.name, moved)
        if isinstance(failure, errors.GenerationConflict):
            return errors.ProviderConflict(self._operation.name, sorted(
                {provider for consumer in (*writes, *after.values()) for provider in consumer.resources}))
        return failure
