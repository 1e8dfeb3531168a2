"""Who had which device, and when, by the events of a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from typing import NamedTuple

from devicetrack.objects import event as events
from devicetrack.store.api import Store
from devicetrack.store.api import StoredEvent

# If the history begins with one of these, the guest had no chance to use the device before.
_BEFORE_THE_GUEST: Final = (events.CLAIMED, events.REALIZED)
_GUEST_BEGINS: Final = (events.STARTED, events.MOVED, events.RECOVERED)
_GUEST_ENDS: Final = (events.RELEASED, *events.ENDS_OWNING)


class Ownership(NamedTuple):
    """One instance had one device for a time.

    The instance held the device from ``since_ms`` until ``until_ms``, which is None while it holds it. Its guest could
    use the device from ``guest_since_ms``, None if it never could, until ``guest_until_ms``, None while it can. The
    times are milliseconds since 1970 by the clock of the host. If the oldest events are deleted already, the ownership
    begins with the first event that is left. ``parent`` is None for a device without a parent.
    """

    host_uuid: str
    kind: str
    identifier: str
    parent: str | None
    instance_uuid: str
    since_ms: int
    until_ms: int | None = None
    guest_since_ms: int | None = None
    guest_until_ms: int | None = None


def of_device(store: Store, name: str, since_ms: int | None = None, until_ms: int | None = None,
              host_uuid: str | None = None) -> list[Ownership]:
    """Who had a device of this name, or a device of the parent of this name, at any moment between two times.

    :param name: the identifier without its kind; nobody had a device of an unknown name
    :param since_ms: an owner that had the device before and still then counts too; None for the whole history
    :param until_ms: the end of the time, which is not a part of it; None for now
    :param host_uuid: only on this host. Without it the store may read the events of all hosts
    :returns: the one that began first is first
    """
    return _between(store.events_of_device(name, host_uuid=host_uuid), since_ms, until_ms)


def of_instance(store: Store, instance_uuid: str, since_ms: int | None = None,
                until_ms: int | None = None) -> list[Ownership]:
    """Which devices an instance had, on every host of the store. The times are as for :func:`of_device`."""
    return _between(store.events_of_instance(instance_uuid), since_ms, until_ms)


def _between(found: Iterable[StoredEvent], since_ms: int | None, until_ms: int | None) -> list[Ownership]:
    return [one for one in of_events(found)
            if (since_ms is None or one.until_ms is None or one.until_ms > since_ms)
            and (until_ms is None or one.since_ms < until_ms)]


def of_events(found: Iterable[StoredEvent]) -> list[Ownership]:
    """The ownerships that events show.

    :param found: the oldest first, as a store returns them
    """
    owned: list[Ownership] = []
    places: dict[tuple[str, str, str], int] = {}        # of the devices that have an owner, in the list
    for _number, event in found:
        if event.instance_uuid is None or event.event not in (*events.OWNING, *events.ENDS_OWNING):
            continue
        key, at_ms = (event.host_uuid, event.kind, event.identifier), event.at_ms
        if key not in places:
            places[key] = len(owned)
            owned.append(Ownership(*key, event.parent, event.instance_uuid, at_ms, guest_since_ms=(
                None if event.event in _BEFORE_THE_GUEST else at_ms)))
        one = owned[places[key]]
        if event.event in _GUEST_BEGINS and one.guest_since_ms is None:
            one = one._replace(guest_since_ms=at_ms)
        if event.event in _GUEST_ENDS and one.guest_since_ms is not None and one.guest_until_ms is None:
            one = one._replace(guest_until_ms=at_ms)
        owned[places[key]] = one if event.event in events.OWNING else one._replace(until_ms=at_ms)
        if event.event in events.ENDS_OWNING:
            del places[key]
    return owned
