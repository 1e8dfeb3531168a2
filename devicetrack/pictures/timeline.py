"""The state and the words by which a timeline shows an event."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import Final

from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.objects import event as events
from devicetrack.objects.event import Event
from devicetrack.pictures import instance_names
from devicetrack.pictures import moments

# The state of a device after each event. It decides how the event is drawn.
_STATES: Final = {
    **dict.fromkeys((events.CLAIMED, events.RECOVERED, events.REALIZED, events.STARTED, events.LEAVING, events.STAYED,
                     events.MOVED), report.HELD),
    events.RELEASED: report.RELEASING,
    **dict.fromkeys((events.WIPED, events.FREED, events.FORGOTTEN, events.ADMITTED), report.FREE),
    **dict.fromkeys((events.WITHHELD, events.RETIRED), report.WITHHELD)}


def state(event: Event) -> str:
    """Return the state in whose colour an event is drawn; an event that is unknown here is drawn as withheld."""
    return _STATES.get(event.event, report.WITHHELD)


def subject(event: Event) -> str:
    """Return what an event is about: its device, or for a refused claim what that wanted."""
    if event.kind:
        return f'{event.kind}/{event.identifier}'
    return str(event.more['wanted']) if 'wanted' in event.more else f'host {event.identifier}'


def words(event: Event) -> str:
    """Return an event's facts other than its device and its instance, in words; '' for most events."""
    return ', '.join(facts({**event.more, 'event': event.event}))


def facts(more: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words what an event has beside its device and its instance: see :attr:`.Event.more`. '' is nothing.

    ``more`` also has the ``event``.
    """
    if more.get('scope') in (vocabulary.PARENT, vocabulary.HOST):
        yield f'the whole {more["scope"]}'
    if isinstance(more.get('instance_name'), str) and more['instance_name']:
        yield f'named "{instance_names.shown(more["instance_name"])}"'
    if more.get('reason'):
        ended = more['event'] == events.ADMITTED
        if ended and more.get('proof'):
            yield f'proven clean: {more["proof"]}'
        # The reason of this event holds no longer.
        yield ('ended: ' if ended else '') + (
            f'{more["reason"]}: {more["why"]}' if more.get('why') else str(more['reason']))
    if isinstance(more.get('count'), int) and more['count'] > 1:
        first = more.get('first_at') or moments.local(more.get('first_ms', 0) / 1000)
        yield f'{more["count"]:,} times since {first}'
    if more.get('by'):
        yield f'by {more["by"]}'
    if more.get('from') or more.get('to'):
        yield f'from {more.get("from") or "an unknown host"} to {more.get("to") or "an unknown host"}'
    if isinstance(more.get('bytes'), int):
        yield f'{more["bytes"]:,} bytes'
    if isinstance(more.get('seconds'), (int, float)):
        yield f'in {more["seconds"]:,.1f} s'
