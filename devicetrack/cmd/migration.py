"""``devicetrack-manage migration``: shows whether running guests could move to other hosts with their devices."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import socket
from typing import Any

from devicetrack import exception
from devicetrack.claims import report
from devicetrack.cmd import base
from devicetrack.cmd import mirrored
from devicetrack.cmd import options
from devicetrack.cmd import page_file
from devicetrack.cmd import records
from devicetrack.compatibility import host_facts
from devicetrack.compatibility import matrix
from devicetrack.compatibility import sources
from devicetrack.compatibility import table as tables
from devicetrack.compatibility.facts import Facts as DeviceFacts
from devicetrack.compatibility.facts import version_as_data
from devicetrack.compatibility.facts import version_from_data
from devicetrack.compatibility.facts import version_seen
from devicetrack.compatibility.host_facts import HostFacts
from devicetrack.compatibility.matrix import Outlook
from devicetrack.compatibility.rules import Rules
from devicetrack.fleet import models
from devicetrack.pictures import heat_map
from devicetrack.pictures import pages


def _nothing(app: Any) -> str:
    """Why no host declares anything."""
    if not app.checked_store.hosts():
        return 'the store has no host: the first start of its manager makes it, and then declares its devices'
    return 'no host declares a device that guests could move with'


class Facts(base.Lister):
    """List what hosts declare about their devices for live migrations.

    Reads only the store, where each host's manager writes its declarations at every audit. With -f json it prints the
    file that --facts of the other commands reads on a machine with another store. A host that declares nothing, or a
    declaration that cannot be read, has a row with a "problem". Exit code 3 when a declaration cannot be read.
    """

    columns = host_facts.COLUMNS
    in_table = tuple(name for name in host_facts.COLUMNS if name not in ('api', 'version_form'))
    if_filled = ('driver', 'required', 'offered', 'aggregation', 'obstacle', 'sources', 'problem')
    prose = ('version', 'obstacle', 'problem')
    spare = ('driver', 'aggregation', 'offered', 'required', 'sources', 'parent', 'kind')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--host', metavar='NAME', action='append', default=[],
                            help='Only the declarations of this host. May be repeated.')

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return _nothing(self.app)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        for host in report.declared(self.app.checked_store, parsed_args.host):
            if host.unread:
                self.exit_code = base.ATTENTION
            for row in host_facts.rows(host):
                if parsed_args.formatter == 'table':
                    row['version'] = _version_as_text(row['version_form'], row['version'])
                yield row


class Check(base.Lister):
    """Show whether the running guest of an instance could move to a host with its devices.

    Compares the declarations of both hosts. This is about compatibility and NOT about room: the command assumes that
    the host has enough free devices of each type that it declares, and does not ask placement. The rules are those of
    this configuration ([devicetrack_compatibility] require_version and table), as far as its hypervisor supports them.
    Reads only the store. Exit code 0 when the guest could move, 3 when it could not, and 1 when that is unknown; with
    --strict also 3 when it could move only because an option or the table allows it (yes*).
    """

    columns = ('instance_uuid', 'source', 'destination', 'device', 'kind', 'identifier', 'type', 'version_form',
               'version', 'seen', 'verdict', 'partner_kind', 'partner_type', 'partner_parents', 'reasons', 'notes',
               'choices', 'unknown')
    in_table = ('device', 'type', 'version', 'seen', 'verdict', 'partner_type', 'reasons', 'notes')
    if_filled = ('seen', 'partner_type', 'reasons', 'notes')
    prose = ('version', 'reasons', 'notes')
    spare = ('seen', 'partner_type', 'version', 'type')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--instance', metavar='UUID', type=options.canonical_uuid, required=True,
                            help='The instance.')
        parser.add_argument('--host', metavar='NAME', required=True, help='The destination.')
        parser.add_argument('--strict', action='store_true',
                            help='End with exit code 3 also if only an option or the table allows the guest to move.')
        _add_facts(parser)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        store, name = self.app.checked_store, parsed_args.host
        names = records.names_of_hosts(store)
        ends = {name, *(names.get(record.host_uuid) for record in store.records_everywhere(parsed_args.instance))}
        hosts = _hosts(self.app, parsed_args.facts, ends.intersection(names.values()))
        guest = report.guest(store, hosts, parsed_args.instance)
        if name == guest.source.host:
            raise base.UsageError(f'instance {parsed_args.instance} is on host {name} already')
        there = hosts.get(name)
        if there is None:
            raise exception.CompatibilityUnknown(
                parsed_args.instance,
                f'no host {name} is known, in the store or in a file of --facts; there are '
                f'{exception.some_of(sorted({*names.values(), *hosts}), name)}')
        if there.is_silent:
            raise exception.CompatibilityUnknown(parsed_args.instance, f'host {name} declares nothing')
        _say_missing(self, [guest.source, there])
        destination = matrix.Destination(there, rules(self.app))
        found = [(device, destination.outlook(device.facts, version_seen(device.record.seen)) if device.facts
                  else Outlook(device.sort, unknown=(device.unknown,))) for device in guest.devices]
        self._conclude({one.answer for _device, one in found}, name, parsed_args.strict)
        for device, one in found:
            partner = one.best.facts if one.best is not None else None
            yield {'instance_uuid': parsed_args.instance, 'source': guest.source.host, 'destination': name,
                   **records.of_device(*device.record.key), 'type': device.sort.type,
                   **_version_of(device.facts, parsed_args.formatter), 'seen': device.record.seen,
                   'verdict': one.answer, 'partner_kind': partner and partner.sort.kind,
                   'partner_type': partner and partner.sort.type,
                   'partner_parents': there.parents_of(partner) if partner else [], 'reasons': one.reasons,
                   'notes': one.notes, 'unknown': list(one.unknown), 'choices': [
                       {**choice.as_data(), 'parents': there.parents_of(choice.facts)} for choice in one.choices]}

    def _conclude(self, answers: set[str], name: str, strict: bool) -> None:
        self.exit_code = base.OK
        if matrix.NO in answers:
            self.exit_code = base.ATTENTION
            self.say(f'the guest cannot go to host {name}')
        elif matrix.UNKNOWN in answers:
            self.exit_code = base.ERROR
            self.say(f'it is unknown whether the guest could go to host {name}')
        elif strict and matrix.NOTED in answers:
            self.exit_code = base.ATTENTION
            self.say(f'the guest could go to host {name} only because an option or the table allows it: see the notes')
        else:
            self.say(f'the guest could go to host {name}, if that has room')


class _OfAlike(base.Lister):
    """Base of the matrices: hosts that declare alike are one."""

    _are_none = True

    columns: tuple[str, ...] = ('sources', 'kind', 'type', 'version_form', 'version', 'destinations', 'verdict',
                                'reasons', 'notes', 'unknown')
    in_table = ('sources', 'type', 'version', 'destinations', 'verdict', 'reasons')
    if_filled = ('reasons', 'notes', 'unknown')
    prose = ('sources', 'type', 'version', 'destinations', 'reasons')
    below = ('type', 'version')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--type', metavar='TYPE', action='append', default=[],
                            help='Only rows of this type, as "migration facts" has it. May be repeated.')

    def outlooks(self, hosts: Sequence[HostFacts], types: Sequence[str]) -> Iterator[matrix.MatrixRow]:
        """Return the rows about some hosts, and say what is missing.

        :raises UsageError: no host declares a type
        """
        _say_missing(self, hosts)
        self._are_none = all(host.is_silent for host in hosts)
        declared = {one.facts.sort.type for host in hosts for one in host.declarations}
        for wanted in types:
            if wanted not in declared:
                raise base.UsageError(f'no host declares a type {wanted}; there are {", ".join(sorted(declared))}')
        return matrix.rows(hosts, rules(self.app), types)

    def fields(self, hosts: Sequence[HostFacts], parsed_args: argparse.Namespace) -> Iterator[dict[str, Any]]:
        for row in self.outlooks(hosts, parsed_args.type):
            for names, outlook in row.outlooks:
                data = outlook.as_data()
                yield {'sources': _several(row.hosts, parsed_args.formatter), **row.facts.sort._asdict(),
                       **_version_of(row.facts, parsed_args.formatter),
                       'destinations': _several(names, parsed_args.formatter), **data,
                       'reasons': base.Shown(data['reasons'], outlook.reasons or outlook.notes)}


class Matrix(_OfAlike):
    """Show to which hosts running guests could move with each type of each host: yes, yes*, no or unknown.

    yes* means that an option or the table allows it. This is about compatibility and NOT about room. The command
    assumes that a guest has seen no other version than that of its device. The rules are those of this configuration
    ([devicetrack_compatibility] require_version and table), as far as its hypervisor supports them. Hosts that declare
    alike are one: each row is about all of these ("sources"), and all that declare the same as one another
    ("destinations"). Reads only the store. --output draws a page of HTML instead, with a column for each host. Exit
    code 3 when a declaration cannot be read.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        _add_facts(parser)
        super().add_arguments(parser)
        page_file.add_output(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        self._output = parsed_args.output
        if self._output is None:
            return super().take_action(parsed_args)
        hosts = _hosts(self.app, parsed_args.facts)
        found = heat_map.of(self.outlooks(list(hosts.values()), parsed_args.type), list(hosts),
                            [host.host for host in hosts.values() if host.is_silent])
        page_file.write(self._output, lambda: pages.heat_map(found))
        return (), ()

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return _nothing(self.app) if self._are_none else (
            'there is only one host, so there is none to which its guests could move; see --facts')

    def produce_output(self, *args: Any) -> int:
        return 0 if self._output is not None else super().produce_output(*args)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        return self.fields(list(_hosts(self.app, parsed_args.facts).values()), parsed_args)


class OfFleet(mirrored.OfMirror, _OfAlike):
    """Show between which hosts of the fleet running guests could move with each type; hosts that declare alike are one.

    It says yes, yes*, no or unknown as "migration matrix" does, by the rules of this configuration, and is NOT about
    room. Each row is about all hosts that declare the same ("sources"), and all that declare the same as one another
    ("destinations"). Silent hosts are left out. Reads only the mirror. Exit code 3 when a host is silent, or a
    declaration cannot be read.
    """

    columns = (*_OfAlike.columns, 'age_s')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        mirrored.add_hosts(parser)
        super().add_arguments(parser)

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return 'no host declares a device like that'

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        reader = self.read(parsed_args.host)
        ages: dict[str, int] = {}
        found: list[HostFacts] = []
        for picture, parts in reader.parts([one for one in self._pictures if not one.is_silent],
                                           (models.DECLARATIONS,)):
            ages[picture.name] = picture.age_s
            found.append(reader.declared(picture, parts))
        for row in self.fields(found, parsed_args):
            yield {**row, 'age_s': max(ages[name] for name in (*row['sources'].data, *row['destinations'].data))}


def _several(names: Sequence[str], formatter: str) -> base.Shown:
    """Return the names of hosts. A table says how many there are, if they are more than two."""
    shown = list(names) if formatter != 'table' or len(names) <= 2 else f'{names[0]} and {len(names) - 1} more'
    return base.Shown(list(names), shown)


class Table(base.Lister):
    """List the entries of the deployment's table, each with the hosts that it concerns.

    An entry that concerns no host has a "problem", and the exit code is 3: the devices may come later, or the name is
    not spelled as in "migration facts". The exit code is 1 when a service would not start with the table. Reads only
    the store and files.
    """

    columns = ('kind', 'type', 'where', 'version', 'requires', 'offers', 'aggregation_may_grow', 'matches', 'problem')
    in_table = columns
    if_filled = ('requires', 'offers', 'aggregation_may_grow', 'problem')
    prose = ('problem',)
    spare = ('aggregation_may_grow', 'offers', 'requires', 'kind')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--table', metavar='FILE',
                            help=f'The table; by default the one of {sources.TABLE}.')
        _add_facts(parser)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        if parsed_args.table is not None:
            stated = tables.read(parsed_args.table, '--table')
        else:
            path = sources.table_path(self.app.conf)
            if path is None:
                raise base.UsageError(f'{sources.TABLE} is unset: name a table with --table FILE')
            stated = tables.read(path, sources.TABLE)
        hosts = list(_hosts(self.app, parsed_args.facts).values())
        _say_missing(self, hosts)
        for entry in stated.entries():
            matches, problem = host_facts.declarers(hosts, entry.sort, entry.driver, entry.host)
            if problem is not None:
                self.exit_code = base.ATTENTION
            version, required, offered = entry.stated
            yield {**entry.sort._asdict(), 'where': entry.where, 'version': None if version is None else str(version),
                   'requires': None if required is None else sorted(required),
                   'offers': None if offered is None else sorted(offered),
                   'aggregation_may_grow': entry.may_grow or None, 'matches': matches, 'problem': problem}


def _add_facts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--facts', metavar='FILE', action='append', default=[],
                        help='The output of "migration facts -f json" from a machine with another store. May be '
                             'repeated. For a host in the store of this configuration the store counts.')


def _hosts(app: Any, paths: Sequence[str], names: Collection[str] | None = None) -> Mapping[str, HostFacts]:
    """Return hosts, from the store and from files, by name.

    :param names: only these of the store's; None means all
    """
    stored = report.declared(app.checked_store, names or ()) if names is None or names else []
    return host_facts.merge(stored, {path: host_facts.read(path) for path in paths})


def _say_missing(command: base.Command, hosts: Iterable[HostFacts]) -> None:
    """Say which hosts' facts are missing."""
    for host in hosts:
        if host.is_silent:
            command.say(f'host {host.host} declares nothing')
        for unread in host.unread:
            command.exit_code = base.ATTENTION
            where = f' at {unread.parent}' if unread.parent is not None else ''
            command.say(f'host {host.host}: {unread.sort}{where}: {unread.problem}')


def rules(app: Any) -> Rules:
    """Return the rules, as far as a destination with this configuration's hypervisor follows them."""
    host = socket.gethostname()
    declarer = sources.Declarer(app.conf, host)
    declarer.refresh()
    found = declarer.rules
    # Without such a rule no driver is needed, and the machine may have none: files are enough.
    return found.followed_by(app.driver(host).can_become) if found.crossings else found


def _version_of(facts: DeviceFacts | None, formatter: str) -> dict[str, str | None]:
    form, text = (None, None) if facts is None else version_as_data(facts.version)
    return {'version_form': form, 'version': _version_as_text(form, text) if formatter == 'table' else text}


def _version_as_text(form: str | None, text: str | None) -> str | None:
    return None if form is None else str(version_from_data(form, text, ''))
