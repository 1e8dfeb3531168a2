"""``devicetrack-manage device history`` and ``instance history``: who had which device, and when, from the store."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import records
from devicetrack.objects import event as events
from devicetrack.pictures import timeline
from devicetrack.store.api import Store
from devicetrack.store.api import StoredEvent

_EVENT_WIDTH: Final = max(map(len, events.EVENTS))
_MS: Final = 1000

# Columns for the facts that only some events have, each with the name of the fact in the event.
_MORE: Final = {'from_host': 'from', 'to_host': 'to', **{name: name for name in (
    'bytes', 'seconds', 'proof', 'reason', 'why', 'by', 'wanted', 'count')}}

# The events of moves. A reader of such an event wants to know the source and the destination.
_OF_MOVES: Final = (events.MOVED, events.LEAVING, events.STAYED)


class History(base.Blocks):
    """Base of the commands."""

    columns: tuple[str, ...] = (
        'at', 'event', 'device', 'kind', 'identifier', 'scope', 'parent', 'host', 'instance_uuid', 'migration_uuid',
        'from_host', 'to_host', 'claim_id', 'request_id', 'bytes', 'seconds', 'proof', 'reason', 'why', 'by', 'at_ms',
        'number', 'host_uuid', 'before_since', 'serial', 'wanted', 'count', 'first_at', 'instance_name')
    in_table = ('at', 'event', 'device', 'instance_uuid')
    in_block: tuple[str, ...] = tuple(name for name in columns
                                      if name not in ('claim_id', 'number', 'host_uuid', 'serial'))
    prose = ('why',)
    exact = ('at', 'first_at')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        options.add_period(parser, 'events', ' If an instance has a device at this time, its last event before it '
                                             'comes first, and is marked.')

    def source(self) -> Any:
        """Return what has the events: a store, or the mirror of a fleet."""
        return self.app.checked_store

    def names(self, store: Any, shown: Sequence[StoredEvent]) -> dict[str, str]:
        """Return the names of the hosts of events by their UUIDs."""
        return {host.uuid: host.name for host in store.hosts()}

    def find(self, store: Any, parsed_args: argparse.Namespace, since_ms: int | None,
             until_ms: int | None) -> list[StoredEvent]:
        """Return the events between two times.

        :param store: from :meth:`source`
        """
        raise NotImplementedError

    def check_known(self, store: Any, parsed_args: argparse.Namespace) -> None:
        """Check a name without events.

        :raises UnknownToStore: the store does not know the name at all
        """
        raise NotImplementedError

    def what(self, parsed_args: argparse.Namespace) -> str:
        """Return the subject of the history, for people."""
        raise NotImplementedError

    def other(self, row: Mapping[str, Any]) -> str:
        """Return the text after an event's name in its first line: the instance for a device, else the device."""
        raise NotImplementedError

    def device(self, row: Mapping[str, Any]) -> str:
        """Return what the text below an event's name says of its device, or ''."""
        return f'parent {row["parent"]}' if row['parent'] != '' else ''

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return f'there is no event of {self.what(parsed_args)}{options.within(parsed_args)}'

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        since_ms, until_ms = parsed_args.since, parsed_args.until
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            raise base.UsageError('--since is not before --until: nothing can have happened between them')
        store = self.source()
        found = self.find(store, parsed_args, since_ms, until_ms)
        standing = [] if since_ms is None else _standing(self.find(store, parsed_args, None, since_ms))
        shown = [*standing, *found]
        is_all = since_ms is None and until_ms is None
        ends = _ends(shown)
        if not is_all and (not shown or any(_is_incomplete(one, ends) for one in shown)):
            everything = self.find(store, parsed_args, None, None)
            ends = _ends(everything)
        else:
            everything = shown
        if not everything:
            self.check_known(store, parsed_args)
        names = self.names(store, shown)
        for number, one in enumerate(shown):
            yield {**_fields(one, names, ends), 'before_since': number < len(standing)}

    def head(self, row: Mapping[str, Any]) -> tuple[str, str]:
        return row['at'], f'{row["event"]:{_EVENT_WIDTH}} {self.other(row)}'

    def body(self, row: Mapping[str, Any]) -> Iterator[str]:
        yield '; '.join(_said(row, self.device(row)))


class DeviceHistory(History):
    """Show which instances had a device, and when: every change of its owner or its condition, the oldest first.

    For a parent, such as the PCI device of mediated devices, it shows this for all devices that the parent had. With
    --serial it shows this for all devices of a card, wherever the card was.

    The history outlives the assignment, the instance and the device. It goes back as far as "[devicetrack]
    history_days" and "history_events" say. Reads the store alone.
    """

    spare = ('device',)
    _identifier = ''

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument('device', metavar='[KIND/]IDENTIFIER', type=options.device_name, nargs='?',
                           help='The device or parent: the name of a namespace, the UUID of a mediated device, a PCI '
                                'address.')
        which.add_argument('--serial', metavar='SERIAL',
                           help='The devices of the card with this serial number, or the namespace with this UUID. '
                                '"device list" shows both. Older releases wrote none into the history.')
        parser.add_argument('--host', metavar='NAME', help='Only on this host, when several have a device of this '
                                                           'name.')
        super().add_arguments(parser)

    def find(self, store: Store, parsed_args: argparse.Namespace, since_ms: int | None,
             until_ms: int | None) -> list[StoredEvent]:
        host_uuid = _host_uuid(store, parsed_args)
        if parsed_args.serial is not None:
            return store.events_of_serial(parsed_args.serial, since_ms, until_ms, host_uuid)
        kind, self._identifier = parsed_args.device
        return [one for one in store.events_of_device(self._identifier, since_ms, until_ms, host_uuid)
                if kind in (None, one.event.kind)]

    def check_known(self, store: Store, parsed_args: argparse.Namespace) -> None:
        if parsed_args.serial is not None:
            raise exception.UnknownToStore('card', parsed_args.serial, parsed_args.host, (
                'no event names its serial number: no instance ever had a device of it, or that was longer ago than '
                'the history goes back, or before the releases that write serial numbers; "device list" has those of '
                'this host'))
        kind, identifier = parsed_args.device
        wanted = _host_uuid(store, parsed_args)
        if not store.is_named(identifier, kind, wanted):
            raise exception.UnknownToStore('device', str(parsed_args.device), parsed_args.host, (
                'no instance ever had it and it was never withheld by itself, or that was longer ago than the history '
                'goes back; only the host knows which parent it has, and if it is withheld with its parent, the '
                'history of the parent says so; "device list" has the names of the devices of this host'))

    def what(self, parsed_args: argparse.Namespace) -> str:
        what = f'device {parsed_args.device}' if parsed_args.serial is None else f'the card {parsed_args.serial}'
        return what + (f' on host {parsed_args.host}' if parsed_args.host else '')

    def other(self, row: Mapping[str, Any]) -> str:
        return str(row['instance_uuid'] or row['device'])

    def device(self, row: Mapping[str, Any]) -> str:
        return super().device(row) if row['identifier'] == self._identifier else f'device {row["device"]}'


class InstanceHistory(History):
    """Show which devices an instance had and when, and why its claims were refused, the oldest event first.

    With --refused it lists the refused claims of all instances. It shows this for all hosts of the store. The history
    outlives the assignments and the instance. It goes back as far as "[devicetrack] history_days" and "history_events"
    say. Reads the store alone.
    """

    spare = ('instance_uuid',)
    _refused = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument('instance', metavar='INSTANCE', type=options.canonical_uuid, nargs='?',
                           help='The UUID of the instance.')
        which.add_argument('--refused', action='store_true', help='The refused claims of all instances, and nothing '
                                                                  'else.')
        super().add_arguments(parser)

    def find(self, store: Store, parsed_args: argparse.Namespace, since_ms: int | None,
             until_ms: int | None) -> list[StoredEvent]:
        self._refused = parsed_args.refused
        if self._refused:
            return store.events_of_device('', since_ms, until_ms)       # only refusals are about no device
        return store.events_of_instance(parsed_args.instance, since_ms, until_ms)

    def check_known(self, store: Store, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.refused and not store.records_everywhere(parsed_args.instance):
            raise exception.UnknownToStore('instance', parsed_args.instance, None, (
                'it never had a device on a host of this store, or that was longer ago than the history goes back; '
                'check that this is the store of its host'))

    def what(self, parsed_args: argparse.Namespace) -> str:
        return 'a refused claim' if parsed_args.refused else f'instance {parsed_args.instance}'

    def other(self, row: Mapping[str, Any]) -> str:
        return str(row['instance_uuid'] if self._refused else row['device'] or row['wanted'])

    def device(self, row: Mapping[str, Any]) -> str:
        return str(row['wanted']) if self._refused else super().device(row)


def _host_uuid(store: Store, parsed_args: argparse.Namespace) -> str | None:
    """:raises UnknownHost: the store has no host of this name"""
    return None if parsed_args.host is None else records.host_of(store, parsed_args.host).uuid


def _standing(before: Iterable[StoredEvent]) -> list[StoredEvent]:
    """Return the last event of each device that has an owner after these events; the oldest event first."""
    last: dict[tuple[str, str, str], StoredEvent] = {}
    for one in before:
        key = one.event.host_uuid, one.event.kind, one.event.identifier
        if one.event.event in (*events.OWNING, *events.ENDS_OWNING):
            last.pop(key, None)                 # in the order of the last events
            if one.event.event in events.OWNING:
                last[key] = one
    return list(last.values())


def _ends(found: Iterable[StoredEvent]) -> dict[str, dict[str, str]]:
    """Return each migration's source and destination, collected from all its events: not every event has both."""
    ends: dict[str, dict[str, str]] = {}
    for one in found:
        if one.event.migration_uuid is not None:
            ends.setdefault(one.event.migration_uuid, {}).update(
                {end: one.event.more[end] for end in ('from', 'to') if one.event.more.get(end)})
    return ends


def _is_incomplete(one: StoredEvent, ends: Mapping[str, Mapping[str, str]]) -> bool:
    return one.event.event in _OF_MOVES and len(ends.get(one.event.migration_uuid or '', ())) < 2


def _fields(one: StoredEvent, names: Mapping[str, str], ends: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    event, more = one.event, one.event.more
    if event.event in _OF_MOVES:
        more = {**more, **ends.get(event.migration_uuid or '', {})}
    first_ms = more.get('first_ms')
    device = {'device': records.name(event.kind, event.identifier)} if event.kind else {
        'device': f'host {event.identifier}' if event.identifier else None, 'kind': None,
        'identifier': event.identifier or None}
    return {**event._asdict(), 'number': one.number, **device,
            'scope': more.get('scope', 'device' if event.identifier else None),
            'first_at': base.Moment(first_ms / _MS) if isinstance(first_ms, int) else None,
            'host': names.get(event.host_uuid), 'at': base.Moment(event.at_ms / _MS),
            'instance_name': base.InstanceName(more.get('instance_name')),
            **{column: more.get(name) for column, name in _MORE.items()}}


def _said(row: Mapping[str, Any], device: str) -> Iterator[str]:
    """Yield what people are told about an event after its first line. Columns without a value are ''."""
    if row['before_since'] == 'yes':
        yield 'before that time, and still so then'
    yield f'on {row["host"] or "host " + row["host_uuid"]}'
    if device:
        yield device
    yield from timeline.facts({**row, 'from': row['from_host'], 'to': row['to_host']})
    if row['migration_uuid'] != '':
        yield f'migration {row["migration_uuid"]}'
    if row['request_id'] != '':
        yield f'request {row["request_id"]}'
