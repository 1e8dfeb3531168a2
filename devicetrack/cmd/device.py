"""``devicetrack-manage device list`` and ``show``: a host's devices, their owners, and why some are withheld."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import fnmatch
import glob
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import host as host_commands
from devicetrack.cmd import options
from devicetrack.cmd import records
from devicetrack.cmd import watching
from devicetrack.objects.details import serial_of
from devicetrack.objects.values import Record
from devicetrack.objects.values import WipeProgress
from devicetrack.pictures import moments
from devicetrack.pictures import natural
from devicetrack.store.api import Host

# A row of the store has these too. For a device that the host has, the host's values count.
_OF_LINE: Final = ('resource_class', 'provider_uuid', 'parent', 'numa_node')


# The table of a list of several hosts.
IN_TABLE_OF_HOSTS: Final = ('host', 'device', 'status', 'resource_class', 'numa_node', 'parent', 'instance_uuid',
                            'instance_name', 'reasons')
BELOW_OF_HOSTS: Final = ('device', 'instance_uuid', 'instance_name', 'reasons', 'resource_class')


class List(watching.Watched, base.Stream):
    """List the devices of this host: which are free, held, being released or withheld, and what can still be made.

    Reads the host, the hypervisor and the store, and changes nothing. With --all, or a pattern of names, it lists the
    devices of several hosts, as the store alone knows them: devices that instances have, and what is withheld. Only a
    host itself knows what is free there. The reasons of withheld devices may be one audit behind: a reason that has
    ended since then may still be listed, and a wipe that has failed since then is not listed yet. Exit code 3 when a
    part could not be read (status "unknown"), an option names a device that this host does not have (status "missing"),
    or no option names a device that an instance has.
    """

    columns = ('device', 'kind', 'identifier', 'host', 'status', 'amount', 'resource_class', 'provider',
               'provider_uuid', 'parent', 'numa_node', 'instance_uuid', 'since', 'reasons', 'wipe', 'details', 'serial',
               'instance_name')
    in_table: tuple[str, ...] = ('device', 'status', 'resource_class', 'numa_node', 'parent', 'instance_uuid',
                                 'instance_name', 'reasons')
    in_long = ('device', 'status', 'resource_class', 'parent', 'numa_node', 'provider_uuid', 'instance_uuid',
               'instance_name', 'serial', 'since', 'reasons')
    if_filled = ('resource_class', 'parent', 'instance_uuid', 'instance_name', 'serial', 'numa_node', 'since',
                 'reasons')
    prose = ('reasons',)
    # The lines are sorted by parent, so the parent is the last column to leave out. The owner, the class and the NUMA
    # node are never left out.
    spare = ('since', 'parent')
    below: tuple[str, ...] = ('instance_uuid', 'instance_name', 'reasons', 'resource_class')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument('--host', metavar='NAME',
                           help='The host, when this machine is more than one in the store. By default the host that '
                                "this machine is. Or another host of the store, or a pattern of a shell such as "
                                "'rack7*': these hosts, as the store knows them.")
        which.add_argument('--all', action='store_true', help='All hosts of the store, as the store knows them.')
        parser.add_argument('--status', choices=report.STATUSES, action='append', default=[],
                            metavar='STATUS',
                            help=f'Only lines of this status: {", ".join(report.STATUSES)}. May be repeated.')
        parser.add_argument('--parent', metavar='[KIND/]NAME', type=options.device_name,
                            help='Only devices that this parent has or can make.')
        parser.add_argument('--withheld', action='store_true',
                            help='Only withheld devices: why, since when, and which instances have them.')

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        if parsed_args.withheld:
            return 'nothing is withheld'
        which = ' like that' if parsed_args.status or parsed_args.parent else ''
        return f'the store has no device{which}' if self._of_store is not None else f'this host has no device{which}'

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        self._of_store = self._stored_hosts(parsed_args)
        host = () if self._of_store is None else ('host',)
        if parsed_args.withheld:
            self.in_table = (*host, 'device', 'status', 'since', 'instance_uuid', 'instance_name', 'reasons')
        elif host:
            self.in_table = IN_TABLE_OF_HOSTS
        if self._of_store is not None:
            self.in_long, self.below = (*host, *List.in_long), BELOW_OF_HOSTS
            return self._stored(self._of_store, parsed_args)
        observer = self.app.observer(parsed_args.host)
        lines = observer.inventory()
        if any(line.status in (report.UNKNOWN, report.MISSING) or any(reason.is_no_option for reason in line.reasons)
               for line in lines):
            self.exit_code = base.ATTENTION
        _check_parent(parsed_args.parent, lines)
        return self._wanted(lines, observer.host.name, parsed_args)

    def _stored_hosts(self, parsed_args: argparse.Namespace) -> list[Host] | None:
        """The hosts that the answer is about if it comes from the store alone; None if this machine is asked.

        :raises UnknownHost: no name matches the pattern
        """
        name, here = parsed_args.host, host_commands.machine(self.app)
        if not parsed_args.all and name is None:
            return None
        hosts = sorted(self.app.checked_store.hosts(), key=lambda host: natural.key(host.name))
        if parsed_args.all:
            return hosts
        if any(host.name == name for host in hosts):
            return [host for host in hosts if host.name == name and host.machine_id != here] or None
        found = [host for host in hosts if fnmatch.fnmatchcase(host.name, name)]
        if not found and glob.has_magic(name):
            raise exception.UnknownHost(name, [host.name for host in hosts])
        return found or None

    def _stored(self, hosts: Sequence[Host], parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        for host, lines in report.stored_of(self.app.checked_store, hosts):
            yield from self._wanted(lines, host.name, parsed_args)

    @staticmethod
    def _wanted(lines: Iterable[report.Line], host: str,
                parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        return (line_fields(line, host) for line in in_order(lines) if _is_wanted(line, parsed_args))


def in_order(lines: Iterable[report.Line]) -> list[report.Line]:
    """Return lines in the order in which people read them."""
    return sorted(lines, key=lambda line: (line.status == report.UNKNOWN, line.kind, natural.key(line.parent),
                                           natural.key(line.identifier)))


def _is_of(line: report.Line, parent: options.DeviceName | None) -> bool:
    return parent is None or (parent.kind in (None, line.kind) and parent.identifier == line.parent)


def _check_parent(name: options.DeviceName | None, lines: Sequence[report.Line]) -> None:
    """:raises BadRequest: the host has no such parent, or the part of the host with it could not be read"""
    if name is None or any(line.parent and _is_of(line, name) for line in lines):
        return
    known = {records.name(line.kind, line.parent) for line in lines if line.parent}
    some = ' (a part of this host could not be read)' if any(line.status == report.UNKNOWN for line in lines) else ''
    raise exception.BadRequest('parent', str(name), 'no device of this host has this parent; the parents are '
                               f'{exception.some_of(sorted(known, key=natural.key), str(name)) or "none"}{some}')


def _is_wanted(line: report.Line, parsed_args: argparse.Namespace) -> bool:
    if parsed_args.withheld and not (line.status == report.WITHHELD or (
            line.reasons and line.status in (report.HELD, report.RELEASING))):
        return False
    return (not parsed_args.status or line.status in parsed_args.status) and _is_of(line, parsed_args.parent)


class Show(watching.Watched, base.ShowOne):
    """Show one device: its state on this host, and its assignment in the store.

    If the host does not answer, or the device is on another machine, the status is empty and "unknown" says why. The
    command shows the assignment all the same.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('device', metavar='[KIND/]IDENTIFIER', type=options.device_name,
                            help='The device: the name of a namespace, the UUID of a mediated device, the address of a '
                                 'function.')
        parser.add_argument('--host', metavar='NAME', help='The host, when several have a device of this name.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        store, name = self.app.checked_store, parsed_args.device
        hosts = records.names_of_hosts(store)
        found = records.find(store, parsed_args.host, name)
        here, lines, unknown = self._ask_host(parsed_args, name)
        candidates: dict[tuple[str | None, str, str], tuple[Record | None, report.Line | None]] = {
            (hosts.get(one.host_uuid), one.kind, one.identifier): (one, None) for one in found}
        for listed in lines:
            key = here, listed.kind, str(listed.identifier)
            candidates[key] = candidates.get(key, (None, None))[0], listed
        if not candidates:
            raise exception.UnknownToStore(
                'device', str(name), parsed_args.host,
                f'no instance has it, and this host could not be asked: {unknown}' if unknown is not None else
                'this host does not have it, and no instance has it; see devicetrack-manage device list')
        if len(candidates) > 1:
            where = ', '.join(f'{kind}/{identifier} on {host}' for host, kind, identifier in candidates)
            raise base.UsageError(f'{name} may be {where}: say which by KIND/ and --host')
        [((host, kind, identifier), (record, line))] = candidates.items()
        if line is None and unknown is None:
            unknown = (f'{host} is another machine: run the command there' if host != here
                       else 'this host does not list it')
        return _both(host, kind, identifier, record, line, hosts, unknown) | {
            'proof': None if line is None else self.app.observer(parsed_args.host).proof_of(line)}

    def _ask_host(self, parsed_args: argparse.Namespace,
                  name: options.DeviceName) -> tuple[str | None, list[report.Line], str | None]:
        """Return the name of this host, its lines for this device, and why they are unknown."""
        try:
            observer = self.app.observer(parsed_args.host)
        except (exception.UnknownHost, exception.NotThisMachine, exception.AmbiguousHost) as error:
            return None, [], str(error)
        try:
            lines = observer.inventory()
        except (exception.DriverError, exception.InvalidConfiguration) as error:
            return observer.host.name, [], str(error)
        found = [line for line in lines if line.identifier == name.identifier and name.kind in (None, line.kind)]
        unread = [f'{line.kind}: {line.reason}' for line in lines if line.status == report.UNKNOWN]
        return observer.host.name, found, '; '.join(unread) if unread and not found else None


def _both(host: str | None, kind: str, identifier: str, record: Record | None, line: report.Line | None,
          hosts: Mapping[str, str], unknown: str | None) -> dict[str, Any]:
    of_record = dict.fromkeys(records.FIELDS) if record is None else records.fields(record, hosts)
    named = {**records.of_device(kind, identifier), 'host': host}
    shown: dict[str, Any] = {**named, 'status': None, 'unknown': unknown, 'reasons': [], 'wipe': None,
                             'provider': None, **of_record, **named,
                             'serial': None if record is None else serial_of(record.details)}
    if line is not None:
        of_line = line_fields(line, host)
        shown.update({name: of_line[name] for name in ('status', 'wipe', 'provider')})
        shown['reasons'] = base.Shown(of_line['reasons'].data, [
            str(reason) + _more(reason) for reason in line.reasons])
        shown.update({name: of_line[name] for name in _OF_LINE if of_line[name] is not None})
        shown['serial'] = shown['serial'] or of_line['serial']
        if shown['details'] is None:
            shown['details'] = of_line['details']
    return shown


def line_fields(line: report.Line, host: str | None) -> dict[str, Any]:
    """Return a line of an inventory by the names of its columns."""
    # A device that is releasing may be unhealthy for longer than that.
    since = [reason.since for reason in line.reasons if reason.since is not None
             and (line.status != report.RELEASING or reason.reason == vocabulary.NOT_GIVEN_BACK)]
    return {**line._asdict(), 'device': _named(line), 'host': host,
            'serial': serial_of(line.details, line.identifier is None),
            'since': base.Moment(min(since)) if since else None,
            'reasons': base.Shown([reason_fields(reason) for reason in line.reasons], line.reason),
            'wipe': None if line.wipe is None else base.Shown(wipe_fields(line.wipe), str(line.wipe)),
            'instance_name': base.InstanceName(line.instance_name),
            'details': base.details_fields(line.details)}


def reason_fields(reason: report.Reason) -> dict[str, Any]:
    return {'reason': reason.reason, 'detail': reason.detail or None,
            'since': None if reason.since is None else base.Moment(reason.since), 'by': reason.by,
            'parent': reason.parent}


def wipe_fields(wipe: WipeProgress) -> dict[str, Any]:
    """Return the progress of a wipe: in bytes, or in percent for an operator's program."""
    by_program = wipe.phase == 'program'
    return {'phase': wipe.phase, 'done_bytes': None if by_program else wipe.done_bytes,
            'size_bytes': None if by_program else wipe.size_bytes,
            'bytes_per_s': None if by_program else wipe.bytes_per_s,
            'percent': wipe.done_bytes * 100 // wipe.size_bytes if wipe.size_bytes else None, 'left_s': wipe.left_s}


def _named(line: report.Line) -> Any:
    if line.identifier is not None:
        return records.name(line.kind, line.identifier)
    if line.status == report.UNKNOWN:
        return base.Shown(None, line.kind)
    of_parent = f' of {line.parent}' if line.parent else ''
    return base.Shown(None, f'{line.kind}: {line.amount:,} more{of_parent}' if line.amount else
                      f'{line.kind}: all{of_parent}')


def _more(reason: report.Reason) -> str:
    told = [reason.detail] if reason.parent is not None and reason.detail else []
    if reason.by:
        told.append(f'by {reason.by}')
    if reason.since is not None:
        told.append(f'since {moments.local(reason.since)}')
    return f' ({", ".join(told)})' if told else ''
