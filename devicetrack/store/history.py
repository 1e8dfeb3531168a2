"""Derives the events of a transaction from its rows, so that nobody who writes rows can leave an event out."""

from __future__ import annotations

from collections.abc import Iterator
import time

from devicetrack import vocabulary
from devicetrack.objects import event as events
from devicetrack.objects import values
from devicetrack.objects.details import serial_of
from devicetrack.objects.event import Event
from devicetrack.objects.event import Note
from devicetrack.objects.values import Record
from devicetrack.store import api


def events_of(changes: api.Changes) -> tuple[Event, ...]:
    """The events of a transaction, in the order in which they are written. Those of given-up devices come first."""
    insert, update, delete, _contexts, note = changes
    at_ms = time.time_ns() // 1_000_000
    return (*(event for record in delete for event in _deleted(record, note, at_ms)),
            *(event for one in update for event in _updated(one, note, at_ms)),
            *(_inserted(record, note, at_ms) for record in insert))


def _event(event: str, record: Record, note: Note, at_ms: int, details: str | None = None) -> Event:
    return Event(record.host_uuid, record.kind, record.identifier, event, at_ms, record.instance_uuid,
                 record.migration_uuid, record.claim_id, note.request_id, details, record.parent,
                 serial_of(record.details))


def _inserted(record: Record, note: Note, at_ms: int) -> Event:
    if record.state == vocabulary.RELEASING:        # no guest is known to have it; it will be wiped
        return _event(events.RELEASED, record, note, at_ms)
    return _event(events.CLAIMED if _is_claim(record) else events.RECOVERED, record, note, at_ms,
                  _more(record, note))


def _is_claim(record: Record) -> bool:
    return (record.generation == values.FIRST_GENERATION and record.state == vocabulary.CLAIMED
            and not record.was_realized)


def _deleted(record: Record, note: Note, at_ms: int) -> Iterator[Event]:
    if note.forgotten:
        yield _event(events.FORGOTTEN, record, note, at_ms)
        return
    if record.state != vocabulary.RELEASING:                    # another device takes its place
        yield _event(events.RELEASED, record, note, at_ms)
    wiped = (note.wiped or {}).get(record.key)
    yield _event(events.FREED, record, note, at_ms) if wiped is None else _event(
        events.WIPED, record, note, at_ms, wiped.as_details())


def _updated(update: api.Update, note: Note, at_ms: int) -> Iterator[Event]:
    before, after = update
    other_card = before.details != after.details and _is_other_card(before, after)
    if before.instance_uuid != after.instance_uuid or other_card:
        yield _event(events.FORGOTTEN, before, note, at_ms,
                     events.text(reason='another card is in its place') if other_card else None)
        yield _event(events.RECOVERED, after, note, at_ms)
    elif before.state != after.state == vocabulary.RELEASING:
        yield _event(events.RELEASED, after, note, at_ms, _ends(note) if before.migration_uuid is not None else None)
    elif after.state == vocabulary.RELEASING and before.role != after.role:
        pass                                                    # that it was released says everything
    elif before.role != after.role or (after.role == vocabulary.OLD and before.migration_uuid != after.migration_uuid):
        what = (events.LEAVING if after.role == vocabulary.OLD else
                events.MOVED if before.role == vocabulary.INCOMING else events.STAYED)
        # A row that is at rest again names no migration any more. The event is about the migration that it named.
        yield _event(what, after._replace(migration_uuid=after.migration_uuid or before.migration_uuid), note, at_ms,
                     _ends(note))
    elif before.state != after.state:
        yield _event(events.STARTED, after, note, at_ms)
    elif before.details != after.details or (after.was_realized and not before.was_realized):
        yield _event(events.REALIZED, after, note, at_ms)


def _is_other_card(before: Record, after: Record) -> bool:
    """Whether the device of a row was made on another card than before: the history of each card says so."""
    had, has = serial_of(before.details), serial_of(after.details)
    return None not in (had, has) and had != has


def _ends(note: Note) -> str | None:
    return None if note.ends is None else events.text(**_from_to(note.ends))


def _more(record: Record, note: Note) -> str | None:
    """The facts that only the event of a new row has."""
    more = {} if record.migration_uuid is None or note.ends is None else _from_to(note.ends)
    if record.instance_name is not None:
        more['instance_name'] = record.instance_name
    return events.text(**more) if more else None


def _from_to(ends: tuple[str | None, str | None]) -> dict[str, str | None]:
    return dict(zip(('from', 'to'), ends, strict=True))
