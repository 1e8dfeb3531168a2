"""A store that fails where a test wants it: before the real transaction, or after it."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import copy
from typing import Any

from devicetrack import exception
from devicetrack.objects.event import Event
from devicetrack.objects.values import DeviceKey
from devicetrack.objects.values import Leftover
from devicetrack.objects.values import Record
from devicetrack.store import api

Action = BaseException | Callable[[], object]


class StagedStore(api.Store):
    """Passes every call on to a real store, and fails where a test has staged a failure.

    ``calls`` counts calls by name. ``written`` has the changes of every write that a caller asked for, in order::

        store.before('write', exception.StoreUnavailable('store', 'gone'))      # nothing is written
        store.lose_answer()                     # the next write happens, and its caller gets OutcomeUnknown
        store.lose_commit()                     # the next write does not happen, and its caller gets the same error
        store.after('write', barrier.wait)      # the next write happens, and its caller waits
    """

    def __init__(self, store: api.Store) -> None:
        self.store = store
        self.calls: collections.Counter[str] = collections.Counter()
        self.written: list[api.Changes] = []
        self._before: dict[str, list[list[Any]]] = {}
        self._after: dict[str, list[list[Any]]] = {}

    # -- staging ------------------------------------------------------------------------------------------------------

    def before(self, call: str, action: Action, times: int | None = 1, skip: int = 0) -> None:
        """Raise an error or call a function before the next ``times`` calls (None: before every call).

        :param skip: let so many calls pass first
        """
        self._before.setdefault(call, []).append([action, times, skip])

    def after(self, call: str, action: Action, times: int | None = 1, skip: int = 0) -> None:
        """Raise an error or call a function as :meth:`before` does, but after the real call."""
        self._after.setdefault(call, []).append([action, times, skip])

    def lose_answer(self, skip: int = 0) -> None:
        """Let the next write happen, but tell its caller that the outcome is unknown."""
        self.after('write', exception.OutcomeUnknown(self.name), skip=skip)

    def lose_commit(self, skip: int = 0) -> None:
        """Suppress the next write, and tell its caller that the outcome is unknown."""
        self.before('write', exception.OutcomeUnknown(self.name), skip=skip)

    def clear(self) -> None:
        """Forget everything that is staged."""
        self._before.clear()
        self._after.clear()

    def _call(self, name: str, *args: Any) -> Any:
        self.calls[name] += 1
        self._act(self._before, name)
        answer = getattr(self.store, name)(*args)
        self._act(self._after, name)
        return answer

    @staticmethod
    def _act(staged: dict[str, list[list[Any]]], name: str) -> None:
        for entry in list(staged.get(name, ())):
            action, times, skip = entry
            if skip:
                entry[2] -= 1
                continue
            if times is not None:
                entry[1] -= 1
                if entry[1] <= 0:
                    staged[name].remove(entry)
            if isinstance(action, BaseException):
                raise action
            action()

    # -- the interface ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.store.name

    def check(self) -> None:
        self._call('check')

    def host(self, name: str) -> api.Host | None:
        found: api.Host | None = self._call('host', name)
        return found

    def hosts(self) -> list[api.Host]:
        found: list[api.Host] = self._call('hosts')
        return found

    def tallies(self, host_uuids: Sequence[str]) -> dict[str, api.Tally]:
        found: dict[str, api.Tally] = self._call('tallies', host_uuids)
        return found

    def add_host(self, host: api.Host) -> None:
        self._call('add_host', host)

    def take_epoch(self, host_uuid: str, own: set[int] | None = None) -> int:
        epoch: int = self._call('take_epoch', host_uuid, own)
        return epoch

    def at_epoch(self, host: api.Host, own: set[int] | None = None) -> StagedStore:
        # Both share the staged failures and the counts.
        store = copy.copy(self)
        store.store = self.store.at_epoch(host, own)
        return store

    def check_epoch(self) -> None:
        self._call('check_epoch')

    @property
    def is_taken_over(self) -> bool:
        return self.store.is_taken_over

    def set_boot_id(self, host_uuid: str, boot_id: str) -> None:
        self._call('set_boot_id', host_uuid, boot_id)

    def set_nested(self, host_uuid: str, version: int | None, at: int | None) -> None:
        self._call('set_nested', host_uuid, version, at)

    def replace_host(self, before: api.Host, after: api.Host | None) -> None:
        self._call('replace_host', before, after)

    def records(self) -> list[Record]:
        found: list[Record] = self._call('records')
        return found

    def records_of_host(self, host_uuid: str) -> Sequence[Record]:
        found: list[Record] = self._call('records_of_host', host_uuid)
        return found

    def records_of_hosts(self, host_uuids: Sequence[str]) -> Sequence[Record]:
        found: Sequence[Record] = self._call('records_of_hosts', host_uuids)
        return found

    def records_of_instance(self, host_uuid: str, instance_uuid: str) -> list[Record]:
        found: list[Record] = self._call('records_of_instance', host_uuid, instance_uuid)
        return found

    def records_everywhere(self, instance_uuid: str) -> list[Record]:
        found: list[Record] = self._call('records_everywhere', instance_uuid)
        return found

    def records_of_devices(self, host_uuid: str, keys: Iterable[DeviceKey]) -> list[Record]:
        found: list[Record] = self._call('records_of_devices', host_uuid, keys)
        return found

    def records_named(self, identifier: str, host_uuid: str | None = None) -> list[Record]:
        found: list[Record] = self._call('records_named', identifier, host_uuid)
        return found

    def is_named(self, name: str, kind: str | None = None, host_uuid: str | None = None) -> bool:
        named: bool = self._call('is_named', name, kind, host_uuid)
        return named

    def contexts(self, host_uuid: str) -> list[api.StoredContext]:
        found: list[api.StoredContext] = self._call('contexts', host_uuid)
        return found

    def context(self, host_uuid: str, instance_uuid: str) -> api.StoredContext | None:
        found: api.StoredContext | None = self._call('context', host_uuid, instance_uuid)
        return found

    def write(self, changes: api.Changes) -> None:
        self.written.append(changes)
        self._call('write', changes)

    def settle(self, changes: api.Changes) -> bool:
        happened: bool = self._call('settle', changes)
        return happened

    def add_operator_request(self, request: api.OperatorRequest) -> None:
        self._call('add_operator_request', request)

    def operator_request(self, uuid: str) -> api.OperatorRequest | None:
        found: api.OperatorRequest | None = self._call('operator_request', uuid)
        return found

    def operator_requests(self, waiting: bool = False) -> list[api.OperatorRequest]:
        found: list[api.OperatorRequest] = self._call('operator_requests', waiting)
        return found

    def operator_requests_of_host(self, host_uuid: str, waiting: bool = False) -> list[api.OperatorRequest]:
        found: list[api.OperatorRequest] = self._call('operator_requests_of_host', host_uuid, waiting)
        return found

    def answer_operator_request(self, uuid: str, answered_at: int, answer: str) -> bool:
        answered: bool = self._call('answer_operator_request', uuid, answered_at, answer)
        return answered

    def withheld(self, host_uuid: str) -> list[api.WithheldRow]:
        found: list[api.WithheldRow] = self._call('withheld', host_uuid)
        return found

    def withheld_of_hosts(self, host_uuids: Sequence[str], scopes: Sequence[str]) -> list[api.WithheldRow]:
        found: list[api.WithheldRow] = self._call('withheld_of_hosts', host_uuids, scopes)
        return found

    def set_withheld(self, write: Sequence[api.WithheldRow], delete: Sequence[api.WithheldRow] = (),
                     events: Sequence[Event] = ()) -> None:
        self._call('set_withheld', write, delete, events)

    def declarations(self) -> list[api.StoredDeclaration]:
        found: list[api.StoredDeclaration] = self._call('declarations')
        return found

    def declarations_of_host(self, host_uuid: str) -> list[api.StoredDeclaration]:
        found: list[api.StoredDeclaration] = self._call('declarations_of_host', host_uuid)
        return found

    def set_declarations(self, host_uuid: str, declarations: Sequence[api.StoredDeclaration]) -> None:
        self._call('set_declarations', host_uuid, declarations)

    def damaged(self, host_uuid: str) -> list[api.DamagedRow]:
        found: list[api.DamagedRow] = self._call('damaged', host_uuid)
        return found

    def leftovers(self, host_uuid: str) -> list[Leftover]:
        found: list[Leftover] = self._call('leftovers', host_uuid)
        return found

    def add_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        self._call('add_leftover', host_uuid, leftover)

    def remove_leftover(self, host_uuid: str, leftover: Leftover) -> None:
        self._call('remove_leftover', host_uuid, leftover)

    def events_of_device(self, identifier: str, since_ms: int | None = None, until_ms: int | None = None,
                         host_uuid: str | None = None) -> list[api.StoredEvent]:
        found: list[api.StoredEvent] = self._call('events_of_device', identifier, since_ms, until_ms, host_uuid)
        return found

    def events_of_serial(self, serial: str, since_ms: int | None = None, until_ms: int | None = None,
                         host_uuid: str | None = None) -> list[api.StoredEvent]:
        found: list[api.StoredEvent] = self._call('events_of_serial', serial, since_ms, until_ms, host_uuid)
        return found

    def events_of_instance(self, instance_uuid: str, since_ms: int | None = None,
                           until_ms: int | None = None) -> list[api.StoredEvent]:
        found: list[api.StoredEvent] = self._call('events_of_instance', instance_uuid, since_ms, until_ms)
        return found

    def events_after(self, host_uuid: str, number: int, limit: int) -> list[api.StoredEvent]:
        found: list[api.StoredEvent] = self._call('events_after', host_uuid, number, limit)
        return found

    def latest_events(self, host_uuid: str, limit: int) -> list[api.StoredEvent]:
        found: list[api.StoredEvent] = self._call('latest_events', host_uuid, limit)
        return found

    def count_events(self, host_uuid: str, after: int, limit: int) -> tuple[int, int]:
        counted: tuple[int, int] = self._call('count_events', host_uuid, after, limit)
        return counted

    def trim_events(self, host_uuid: str, before_ms: int, surplus: int, limit: int) -> int:
        deleted: int = self._call('trim_events', host_uuid, before_ms, surplus, limit)
        return deleted

    def close(self) -> None:
        self.store.close()
