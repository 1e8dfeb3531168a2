"""``devicetrack-manage fleet device list`` and the histories: a fleet's devices and owners, from its mirror."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from importlib import metadata
import json
from typing import Any

from devicetrack import exception
from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import device
from devicetrack.cmd import history
from devicetrack.cmd import mirrored
from devicetrack.cmd import options
from devicetrack.fleet import reading
from devicetrack.fleet.reading import Mirrored
from devicetrack.fleet.reading import Reader
from devicetrack.objects.values import WipeProgress
from devicetrack.pictures import moments
from devicetrack.store.api import StoredEvent


class List(mirrored.OfMirror, base.Stream):
    """List the devices of the fleet: on which host they are, who has them, and why some are withheld.

    The columns are those of "device list". Each line is as old as "age_s" says. While a host is silent for three of its
    intervals, the status of its devices is "unknown", and "unknown_since" says since when; the other columns are what
    the host said last. Exit code 3 when a host is unknown. Reads only the mirror.
    """

    columns = (*device.List.columns, *mirrored.AGE)
    in_table = device.IN_TABLE_OF_HOSTS
    in_long = ('host', *device.List.in_long, 'age_s', 'unknown_since')
    if_filled = (*device.List.if_filled, 'unknown_since')
    prose = device.List.prose
    spare = device.List.spare
    below = device.BELOW_OF_HOSTS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        mirrored.add_hosts(parser)
        parser.add_argument('--serial', metavar='SERIAL',
                            help='Only devices with this serial number, or on a card with it.')
        parser.add_argument('--instance', metavar='UUID', type=options.canonical_uuid,
                            help='Only the devices of this instance.')
        parser.add_argument('--class', dest='resource_class', metavar='CLASS',
                            help='Only devices that count as this resource class.')
        parser.add_argument('--parent', metavar='[KIND/]NAME', type=options.device_name,
                            help='Only devices that a parent of this name has or can make.')
        parser.add_argument('--status', choices=report.STATUSES, action='append', default=[], metavar='STATUS',
                            help=f'Only lines of this status: {", ".join(report.STATUSES)}. May be repeated.')

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return 'no host has a device like that'

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        found = self.read(parsed_args.host)
        kind, parent = parsed_args.parent or (None, None)
        wanted = reading.Wanted(parsed_args.serial, parsed_args.instance, parsed_args.resource_class, kind, parent,
                                parsed_args.status)
        devices = found.devices(self._pictures, wanted)
        if parsed_args.formatter == 'json' and not parsed_args.columns and not parsed_args.sort_columns:
            return _lines(devices)
        return (_fields(one, parsed_args.formatter) for one in devices)


def _lines(devices: Iterator[Mirrored]) -> Iterator[Mapping[str, Any]]:
    """Return the rows for JSON. A line that a host of this release has written is not read and written again."""
    ours, ages = metadata.version('devicetrack'), dict[str, str]()
    for one in devices:
        picture = one.picture
        if picture.is_silent or picture.release != ours:
            yield _fields(one, 'json')
            continue
        if picture.uuid not in ages:
            ages[picture.uuid] = json.dumps(mirrored.age_fields(picture))[1:]
        yield {base.LINE: f'{one.text[:-1]}, {ages[picture.uuid]}'}


def _fields(one: Mirrored, formatter: str) -> dict[str, Any]:
    """Return the values of a line's columns."""
    line, picture = one.line, one.picture
    # Older hosts do not write a name.
    fields = {'instance_name': None, **line, **mirrored.age_fields(picture), 'host': picture.name, 'status': one.status}
    if formatter in base.STRUCTURED:
        return fields
    known = device.line_fields(_line(line), picture.name)
    why = known['reasons'].text
    if picture.is_silent:
        why = f'{line["status"]} when it was last read, {moments.local(picture.read_at)}' + (f': {why}' if why else '')
    return {**fields, **{name: known[name] for name in ('device', 'since', 'wipe', 'instance_name')}, 'reasons': why}


def _line(line: Mapping[str, Any]) -> report.Line:
    """Return a line from what "device list -f json" prints of it, without the details and the times of its reasons."""
    wipe = line['wipe']
    return report.Line(
        line['kind'], line['identifier'], line['status'], line['amount'], line['resource_class'], line['provider'],
        line['provider_uuid'], line['parent'], line['numa_node'], line['instance_uuid'],
        reasons(line), '', None if wipe is None else _wipe(wipe), line.get('instance_name'))


def reasons(line: Mapping[str, Any]) -> tuple[report.Reason, ...]:
    """Return the reasons of a line from what "device list -f json" prints of it."""
    return tuple(report.Reason(one['reason'], one['detail'] or '', moments.seconds(one['since']), one['by'],
                               one['parent']) for one in line['reasons'])


def _wipe(wipe: Mapping[str, Any]) -> WipeProgress:
    if wipe['size_bytes'] is None:              # an operator's program tells it in percent
        return WipeProgress(wipe['phase'], wipe['percent'] or 0, 100, wipe['bytes_per_s'], wipe['left_s'])
    return WipeProgress(wipe['phase'], wipe['done_bytes'], wipe['size_bytes'], wipe['bytes_per_s'], wipe['left_s'])


class _OfFleet(mirrored.OfMirror, history.History):
    """The part of both histories that reads the mirror. The columns say how old the picture of an event's host is."""

    columns = (*history.History.columns, *mirrored.AGE)
    in_block = (*history.History.in_block, *mirrored.AGE)

    def source(self) -> Reader:
        return Reader(self.app.mirror)

    def names(self, store: Any, shown: Sequence[StoredEvent]) -> dict[str, str]:
        # Without an event, every host is one that has none.
        self._hosts = {one.uuid: one for one in store.hosts(uuids={one.event.host_uuid for one in shown})}
        self._pictures = [one for one in self._hosts.values() if not one.is_forgotten]
        return {uuid: one.name for uuid, one in self._hosts.items()}

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        for row in super().rows(parsed_args):
            yield {**row, **mirrored.age_fields(self._hosts[row['host_uuid']])}


class DeviceHistory(_OfFleet, history.DeviceHistory):
    """Show who had a device of the fleet, and when, the oldest event first: also after it has left its host.

    Name the device by its serial number or that of its card: the history then goes on in another slot and on another
    host. A name is that of a device or a parent, on any host or on one. Each host tells the time by its own clock. The
    history goes back as far as the mirror's "days" say. Reads only the mirror.
    """

    def find(self, store: Any, parsed_args: argparse.Namespace, since_ms: int | None,
             until_ms: int | None) -> list[StoredEvent]:
        kind, name = parsed_args.device or (None, None)
        self._identifier = name or ''
        return store.events(since_ms, until_ms, name=name, kind=kind, serial=parsed_args.serial,
                            host_uuids=self._uuids(store, parsed_args))

    def check_known(self, store: Any, parsed_args: argparse.Namespace) -> None:
        kind, name = parsed_args.device or (None, None)
        if not store.is_known(self._uuids(store, parsed_args), name=name, kind=kind, serial=parsed_args.serial):
            raise _unknown(self.what(parsed_args))

    def _uuids(self, store: Any, parsed_args: argparse.Namespace) -> list[str]:
        """Return the UUIDs that a host of this name has and had; none if no host is asked for."""
        if parsed_args.host is None:
            return []
        found = [one.uuid for one in store.hosts(names=[parsed_args.host])]
        if not found:
            raise reading.unknown_host(parsed_args.host, (one.name for one in store.hosts()))
        return found

    def what(self, parsed_args: argparse.Namespace) -> str:
        if parsed_args.serial is None:
            return super().what(parsed_args)
        return f'serial number {parsed_args.serial}' + (f' on host {parsed_args.host}' if parsed_args.host else '')


class InstanceHistory(_OfFleet, history.InstanceHistory):
    """Show which devices an instance had, and when, on all hosts of the fleet, the oldest event first.

    With --refused it lists the refused claims of all instances. The history outlives the assignments, the instance and
    the hosts. Each host tells the time by its own clock. The history goes back as far as the mirror's "days" say. Reads
    only the mirror.
    """

    def find(self, store: Any, parsed_args: argparse.Namespace, since_ms: int | None,
             until_ms: int | None) -> list[StoredEvent]:
        self._refused = parsed_args.refused
        return store.events(since_ms, until_ms, name='' if self._refused else None,
                            instance_uuid=parsed_args.instance)

    def check_known(self, store: Any, parsed_args: argparse.Namespace) -> None:
        if not parsed_args.refused and not store.is_known(instance_uuid=parsed_args.instance):
            raise _unknown(self.what(parsed_args))


def _unknown(what: str) -> exception.BadRequest:
    return exception.BadRequest('history', what, 'no device in the mirror is like that, and no event names it')
