"""The questions of the claim manager to its compute service, and the meaning of the answers."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
import contextlib
import functools
import reprlib
import time
from typing import Any
from typing import Protocol
from typing import TypeVar

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack import watchdog
from devicetrack.claims import public_calls
from devicetrack.engine.migrations import Move
from devicetrack.objects.values import Holding

LOG = log.logger(__name__)

_Read = TypeVar('_Read')


class ComputeService(Protocol):
    """The service's view of its instances and migrations, handed to the manager.

    An answer of None, an exception or a state that is not listed means unknown, and the manager releases no device
    because of it. An answer with an entry that cannot be read (no UUID, a state that is not a text) is unknown as a
    whole, because the service does not know an instance that it leaves out. A UUID may be a string or a ``uuid.UUID``.
    Every method is optional: the answer of a missing one is unknown, and ``doc/source/user/moves.rst`` describes what
    happens without each. The manager asks during a start, an audit, ``realize``, ``started`` and the calls of a move,
    and never under its lock. A call asks about an instance or a migration once, and uses that answer to its end.
    """

    def instances(self, uuids: Set[str]) -> Mapping[str, str] | None:
        """Return the states of these instances.

        :param uuids: a frozen set of the instances with rows of this host. At a start and in an audit it also has every
            domain of the host, and some of these may not belong to the service
        :returns: by instance UUID ``here`` (it lives on this host), ``elsewhere`` (it lives on another one),
            ``deleted``, ``offloaded`` or ``forgotten`` (the service has looked everywhere, and has no record of it);
            an instance that is left out is unknown, not gone, and the manager ignores others. None if the service
            cannot tell now.
        """


class HandingService(ComputeService, Protocol):
    """A service that itself assigns some devices, which this library only observes."""

    def holdings(self) -> Collection[Holding] | None:
        """Return these devices, by the service's own record. None if the service cannot tell now.

        An audit asks after it has read the hypervisor and the host, so a device that a guest gets meanwhile is in the
        record already.
        """


class MovingService(ComputeService, Protocol):
    """A service whose instances move."""

    def migrations(self, uuids: Sequence[str]) -> Mapping[str, Any] | None:
        """Return the states of migrations.

        :param uuids: the migrations in the rows of this host
        :returns: by UUID, the migrations among these that the service knows, and every other one that moves an instance
            away from this host and is not long over: the source of a live migration may not hear of its end in any
            other way. The manager reads ``uuid``, ``id`` (greater is newer), ``status``, ``instance_uuid``,
            ``source_compute``, ``source_node``, ``dest_compute``, ``dest_node``.
            :data:`devicetrack.engine.migrations.STATUSES` lists the meaning of each status, and
            ``doc/source/user/moves.rst`` its effect on rows. A guest that moves on this host gets its new devices from
            ``post-migrating`` on. None if the service cannot tell now. Save a migration before its claim: if audits
            find neither it nor its instance, they release the claim.
        """

    def evacuated_from_here(self) -> Collection[str] | None:
        """Return the instances that were evacuated from this host and may have left a guest on it.

        The manager destroys and undefines their guests here and releases their devices, unless they may have come back
        since. Leave out an instance that came back, even if it is elsewhere again. None if the service cannot tell now.
        """

    def create_migration(self, context: Any, instance: Any, nodename: str, move_type: str) -> Any:
        """Create and save a migration to this node, for a claim without one.

        :param move_type: ``resize``, ``live-migration`` or ``evacuation``
        """

    def fail_migration(self, migration_uuid: str) -> None:
        """Set a migration to ``error``, since a newer migration of the instance replaced it."""


class ServiceView:
    """The service's answers. An unknown answer is None here, and never empty.

    During a public call of the manager, what the service has said, or has not said, is not asked a second time: a call
    that acts on two answers may do half of each. An audit looks twice, and each look asks.

    The service's code runs in the thread that asks. Nobody can stop it, and only the service can set deadlines for it.
    A late answer is logged while the thread waits.

    :param service: None if there is none; then the manager concludes nothing about instances
    :param late_s: the seconds after which an answer is late
    """

    def __init__(self, service: Any, late_s: float = 30) -> None:
        self._service, self._late_s = service, late_s

    @property
    def is_there(self) -> bool:
        """Whether there is a service, whose answer may be unknown."""
        return self._service is not None

    @property
    def ends_moves_by_calls(self) -> bool:
        """Whether the service reports no migrations at all: a move goes on until a call ends it."""
        return not hasattr(self._service, 'migrations')

    @property
    def tells_of_instances(self) -> bool:
        """Whether the service can say where instances are, though perhaps not now."""
        return hasattr(self._service, 'instances')

    @property
    def tells_of_evacuations(self) -> bool:
        return hasattr(self._service, 'evacuated_from_here')

    def instances(self, uuids: Iterable[str]) -> dict[str, str] | None:
        """The states of these instances, as far as the service knows them."""
        return self._once('instances', uuids, lambda new: self._ask('instances', _states, frozenset(new)))

    def migrations(self, uuids: Sequence[str]) -> dict[str, Move] | None:
        """The migrations with these UUIDs, and others that the service reports."""
        return self._once('migrations', uuids, lambda new: self._ask(
            'migrations', functools.partial(_moves, frozenset(new)), new))

    def migration(self, uuid: str) -> Move | None:
        """One migration; None if the service does not know it, or does not answer."""
        return (self.migrations([uuid]) or {}).get(uuid)

    def evacuated_from_here(self) -> set[str]:
        """The instances that are known to be evacuated from here."""
        return set(self._once('evacuated_from_here', (), lambda _new: self._ask(
            'evacuated_from_here', lambda answer: dict.fromkeys(_evacuated(answer)))) or ())

    def holdings(self) -> tuple[Holding, ...] | None:
        """The devices that the service hands out itself, by its own record. Each look asks anew."""
        return self._ask('holdings', _holdings)

    def create_migration(self, context: Any, instance: Any, nodename: str, move_type: str) -> Any:
        """Have the service create a migration.

        :raises BadRequest: the service cannot create one
        """
        create = getattr(self._service, 'create_migration', None)
        if create is None:
            raise exception.BadRequest('migration', None,
                                       'the compute service cannot create a migration: pass one')
        with self._waiting('create_migration'):
            return create(context, instance, nodename, move_type)

    def fail_migration(self, migration_uuid: str) -> None:
        """Tell the service that a newer migration replaced this one."""
        LOG.warning('Migration %s was replaced by a newer one of its instance', migration_uuid)
        self._ask('fail_migration', lambda _answer: None, migration_uuid)

    def _once(self, question: str, about: Iterable[str],
              ask: Callable[[list[str]], dict[str, _Read] | None]) -> dict[str, _Read] | None:
        """Ask what the present call has not asked yet, and go by its first answer about everything else."""
        answers, about = public_calls.answers(), list(about)
        if answers is None:
            return ask(about)
        asked: frozenset[str] | None
        known: dict[str, _Read] | None
        asked, known = answers.get((self, question), (None, {}))
        new = [uuid for uuid in about if asked is None or uuid not in asked]
        if asked is None or (new and known is not None):
            asked, said = asked or frozenset(), ask(new)
            # What the first answer left out, the service did not know. Without an answer to a part all is unknown.
            known = None if said is None else {uuid: one for uuid, one in said.items() if uuid not in asked} | known
            answers[self, question] = asked | frozenset(new), known
        return known

    def _ask(self, question: str, read: Callable[[Any], _Read], *arguments: Any) -> _Read | None:
        """Ask the service, and read its answer while its code may still run: the answer may be one that loads lazily.

        :returns: None if the answer is unknown
        """
        ask = getattr(self._service, question, None)
        if ask is None:
            return None
        try:
            with self._waiting(question):
                answer = ask(*arguments)
                return None if answer is None else read(answer)
        except _Unreadable as error:
            LOG.warning('The compute service gives an invalid answer to %(question)s, so all of the answer counts as '
                        'unknown: %(error)s', {'question': question, 'error': error})
        except Exception as error:
            # Any error in the service's own code means that the service cannot tell.
            LOG.warning('The compute service does not answer %(question)s: %(error)s',
                        {'question': question, 'error': type(error).__name__})
        return None

    @contextlib.contextmanager
    def _waiting(self, question: str) -> Iterator[None]:
        began = time.monotonic()

        def late() -> None:
            LOG.warning('The compute service has not answered %(question)s for %(seconds)s s, and the call '
                        'still waits: find out what delays it', {'question': question, 'seconds': self._late_s})

        with watchdog.watch(self._late_s, late):
            yield
        if time.monotonic() - began > self._late_s:
            LOG.warning('The compute service took %(seconds).0f s to answer %(question)s',
                        {'question': question, 'seconds': time.monotonic() - began})


class _Unreadable(Exception):
    """An answer has another form than the question asks for. The text says where, and why."""


def _states(answer: Any) -> dict[str, str]:
    """Read the states of instances. Without one that is no text, its instance would look like one that is left out."""
    states: dict[str, str] = {}
    for key, state in _form(answer, Mapping).items():
        uuid = _uuid(key, states)
        if not isinstance(state, str):
            raise _Unreadable(f'instance {uuid}: its state is {reprlib.repr(state)}')
        states[uuid] = state
    return states


def _moves(asked: frozenset[str], answer: Any) -> dict[str, Move]:
    """Read migrations. Without one of them, the others would look like all that there are.

    :param asked: the migrations that rows name, so that their instances are known
    """
    moves: dict[str, Move] = {}
    for key, migration in _form(answer, Mapping).items():
        uuid = _uuid(key, moves)
        try:
            move = Move.of(migration)
        except Exception as error:              # the service's own object may load a part of itself only now
            raise _Unreadable(f'migration {uuid}: {error}') from error
        if move.uuid != uuid:
            raise _Unreadable(f'migration {uuid}: its own UUID is {move.uuid}')
        if move.instance_uuid is None and uuid not in asked:
            raise _Unreadable(f'migration {uuid}: it names no instance')
        moves[uuid] = move
    return moves


def _holdings(answer: Any) -> tuple[Holding, ...]:
    found = tuple(_form(answer, Collection))
    for one in found:
        if not isinstance(one, Holding):
            raise _Unreadable(f'{reprlib.repr(one)} is no Holding')
    return found


def _evacuated(answer: Any) -> set[str]:
    uuids = {_uuid(one) for one in _form(answer, Collection)}
    if isinstance(answer, Mapping):             # its values may say of whom this is not so
        raise _Unreadable(type(answer).__name__)
    return uuids


def _form(answer: Any, form: Any) -> Any:
    """Check that an answer has the right form. A string is no collection."""
    if isinstance(answer, form) and not isinstance(answer, (str, bytes)):
        return answer
    raise _Unreadable(type(answer).__name__)


def _uuid(value: Any, others: Container[str] = ()) -> str:
    """Read a UUID that is not among the ``others`` of the answer, in whatever form."""
    uuid = vocabulary.as_uuid(value)
    if uuid is None:
        raise _Unreadable(f'{reprlib.repr(value)} is no UUID')
    if uuid in others:
        raise _Unreadable(f'{uuid} is there twice')
    return uuid
