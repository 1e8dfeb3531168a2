"""Refused claims: the history keeps them as events, so an operator can see later why an instance was not placed here.

A refusal changes nothing, so no transaction has its event, and no claim waits for one. It is noted in memory, and the
next audit writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
import functools
import threading
import time
from typing import Any
from typing import Final
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

from devicetrack import exception
from devicetrack import log
from devicetrack import vocabulary
from devicetrack.claims import public_calls
from devicetrack.objects import event as events
from devicetrack.objects import extra_specs
from devicetrack.objects.event import Event
from devicetrack.store.api import Store

LOG = log.logger(__name__)

# After these a claim was not refused: nobody knows whether it happened, or there is no manager that could refuse it.
_NO_REFUSAL: Final = (exception.OutcomeUnknown, exception.NotReady, exception.ForkedManager, exception.HostTakenOver,
                      exception.StartIsOver)

# So many different refusals are told apart between two audits. The others are one event without an instance.
MOST: Final = 1000
_OTHERS: Final = (None, '', 'further refusals')

# A refusal that goes on is written again after 1, 2, 4, … audits, at the latest after so many.
_RAREST: Final = 64

_LONGEST: Final = 2000

_Call = TypeVar('_Call', bound=Callable[..., Any])
_Key = tuple[str | None, str, str]      # the instance, what it wanted, and the class of the error


class _Refusal(NamedTuple):
    """The last of equal refusals. ``facts`` are further fields of its event, ``more`` is for its details."""

    at_ms: int
    facts: Mapping[str, Any]
    more: Mapping[str, Any]


class _Equal:
    """Equal refusals: how many are not written yet, and the first of these."""

    __slots__ = ('count', 'first_ms', 'last', 'audits', 'due')

    def __init__(self, last: _Refusal) -> None:
        self.count, self.first_ms, self.last = 0, last.at_ms, last
        self.audits, self.due = 0, 1


class Refusals:
    """The refused claims of one manager, over all its starts.

    Equal ones are counted: of the same instance, for the same request, by the same class of error. An event says how
    often that was since the last event about it. If a scheduler tries again all day, the events become rare.
    """

    def __init__(self) -> None:
        # A lock of a start of the host would be useless after an interrupt. A signal handler may claim in the middle
        # of a call of the same thread: then neither waits.
        self._lock = threading.RLock()
        self._equal: dict[_Key, _Equal] = {}
        self._unwritten: list[Event] = []       # events that the store may have all the same

    def note(self, call: str, context: Any, instance: Any, allocations: Any, migration: Any,
             error: exception.DeviceTrackError) -> None:
        """Note a refusal. No I/O. Whatever the service's objects answer, the caller gets its own error."""
        uuid = getattr(instance, 'uuid', None)
        if isinstance(error, _NO_REFUSAL) or not vocabulary.is_uuid(uuid):
            return
        wanted, migration_uuid = _wanted(allocations), getattr(migration, 'uuid', None)
        refusal = _Refusal(time.time_ns() // 1_000_000, {
            'instance_uuid': uuid, 'migration_uuid': migration_uuid if vocabulary.is_uuid(migration_uuid) else None,
            'request_id': public_calls.present()}, {
            'reason': type(error).__name__, 'why': exception.shown(str(error), _LONGEST), 'wanted': wanted,
            'call': call, **_by(context)})
        key: _Key = (uuid, wanted, type(error).__name__)
        with self._lock:
            if key not in self._equal and len(self._equal) >= MOST:
                self._equal = {known: equal for known, equal in self._equal.items() if equal.count}
            if key not in self._equal and len(self._equal) >= MOST:
                key, refusal = _OTHERS, _Refusal(refusal.at_ms, {}, {
                    'reason': _OTHERS[2], 'why': 'too many to tell them apart', 'wanted': ''})
            equal = self._equal.setdefault(key, _Equal(refusal))
            if not equal.count:
                equal.first_ms = refusal.at_ms
            equal.count += 1
            equal.last = refusal

    def write(self, store: Store, host: str, host_uuid: str, at_once: bool = False) -> None:
        """Write the refusals of which the history does not know, in one transaction. Ends an audit.

        If the store refuses, the next call tries again.

        :param at_once: also those that would be written later, since no audit follows
        """
        with self._lock:
            earlier = self._unwritten
            new = [event for key, equal in list(self._equal.items())
                   if (event := self._due(key, equal, host_uuid, at_once)) is not None]
            self._unwritten = [*earlier, *new][-2 * MOST:]
        if not self._unwritten:
            return
        try:
            if earlier:
                there = {one.event for one in store.latest_events(host_uuid, 4 * MOST)}
                self._unwritten = [event for event in self._unwritten if event not in there]
            store.set_withheld((), events=self._unwritten)
            self._unwritten = []
        except exception.StoreError as error:
            LOG.warning('The refused claims of host %(host)s are not in the history yet: %(error)s',
                        {'host': host, 'error': error})

    def _due(self, key: _Key, equal: _Equal, host_uuid: str, at_once: bool) -> Event | None:
        """Return the event about equal refusals if it is due. Forget them when none came for as long."""
        equal.audits += 1
        if equal.audits < equal.due and not at_once:
            return None
        if not equal.count:
            del self._equal[key]
            return None
        event = Event(host_uuid, '', '', events.REFUSED, equal.last.at_ms, **equal.last.facts, details=events.text(
            **equal.last.more, count=equal.count, first_ms=equal.first_ms))
        equal.count, equal.audits, equal.due = 0, 0, min(2 * equal.due, _RAREST)
        return event


class _Refusing(Protocol):
    @property
    def refusals(self) -> Refusals:
        ...


def refusable(call: _Call) -> _Call:
    """Decorate a claim of a manager, to note its refusals."""
    @functools.wraps(call)
    def noted(self: _Refusing, context: Any, instance: Any, nodename: str, allocations: Any, *args: Any,
              **kwargs: Any) -> Any:
        try:
            return call(self, context, instance, nodename, allocations, *args, **kwargs)
        except exception.DeviceTrackError as error:
            try:
                migration = kwargs.get('migration', args[0] if args else None)
                self.refusals.note(call.__name__, context, instance, allocations, migration, error)
            except Exception:
                LOG.exception('A refused claim is not noted')
            raise

    return noted    # type: ignore[return-value]


def _wanted(allocations: Any) -> str:
    """Return a request in words, '' for one that cannot be read. Other software has processors, memory and disks."""
    amounts: dict[str, int] = {}
    try:
        for name, amount in [item for allocation in allocations.values() for item in allocation['resources'].items()
                             ] if isinstance(allocations, Mapping) else [
                                 (one.resource_class, one.amount) for one in getattr(allocations, 'wanted', ())]:
            amounts[name] = amounts.get(name, 0) + amount
    except (AttributeError, KeyError, NotImplementedError, TypeError):     # the third for a field that is not set
        return ''
    return exception.shown(', '.join(f'{name}={amount}' for name, amount in sorted(amounts.items())
                                     if name not in extra_specs.OF_THE_SERVICE), _LONGEST)


def _by(context: Any) -> dict[str, str]:
    """Return who asked, as far as the service's context says."""
    told = [f'{word} {value}' for word, name in (('user', 'user_id'), ('project', 'project_id'))
            if isinstance(value := getattr(context, name, None), str) and value]
    return {'by': exception.shown(' of '.join(told))} if told else {}
