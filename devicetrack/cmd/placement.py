"""``devicetrack-manage placement``: reports a host to the scheduler's placement service."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from devicetrack import exception
from devicetrack.claims.providers import DerivedProviders
from devicetrack.claims.report import Observer
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import progress
from devicetrack.cmd import records as stored_rows
from devicetrack.conf import placement as placement_options
from devicetrack.objects.values import Record
from devicetrack.placement import expected
from devicetrack.placement import healer
from devicetrack.placement import node as nodes
from devicetrack.placement import tree
from devicetrack.placement import values
from devicetrack.placement.client import Client
from devicetrack.placement.reporter import PlacementReporter
from devicetrack.placement.reporter import Report
from devicetrack.placement.resolver import ProvidersByName
from devicetrack.store.api import Host
from devicetrack.store.api import Store


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command about one host's tree."""
    options.add_host(parser)
    parser.add_argument('--node', metavar='NAME',
                        help="The hypervisor node of the host, if its name differs from the host's.")


def open_client(conf: cfg.ConfigOpts) -> Client:
    """Make the client that ``[placement]`` describes.

    :raises InvalidConfiguration: the options cannot be used, or the library that reads them is not installed
    """
    try:
        return Client.from_conf(conf)
    except ModuleNotFoundError as missing:
        raise exception.InvalidConfiguration(
            f'[{placement_options.GROUP}]', 'auth_type, …',
            f'{missing.name}, which reads them, is not installed: install devicetrack[placement]') from missing


def observe(app: Any, client: Client, parsed_args: argparse.Namespace) -> Observer:
    """Return the observer of the host that the options name. It looks up providers in placement by their names."""
    def resolver(host: Host) -> ProvidersByName:
        stored_rows.host_of(app.checked_store, host.name)
        node = parsed_args.node or host.name
        check_node(client, app.checked_store, host, node, parsed_args.host is not None)
        return ProvidersByName(client, node, host.uuid)

    observer: Observer = app.observer(parsed_args.host, resolver)
    return observer


def check_node(client: Client, store: Store, host: Host, node: str, is_named: bool) -> None:
    """Check that no other host has this node: a command would write this host's devices into its tree.

    A tree with marks of a host is of this one if its node has the host's UUID, or if it counts a device of the record.
    If only an owner of such a device has allocations at the node, somebody must have named both: after an evacuation
    they are at the node of another host. Without any record, too. If placement does not have the node, a command would
    make a second tree beside that of the host.

    :param is_named: whether the options name the host, too
    :raises UsageError: the node is of another host, or the host has another node. Nothing was written
    """
    if node != host.name and store.host(node) is not None:
        raise base.UsageError(f'--node {node} is the node of another host in the store: name the node of host '
                              f'{host.name}, or run the command for host {node}')
    root = client.find_provider(node)
    if root is not None and (node == host.name or root.uuid == host.uuid):
        return
    records = store.records_of_host(host.uuid)
    if root is None:
        other = _node_of(client, host, records)
        if other is not None and (records or not is_named):
            raise base.UsageError(f'placement has no node {node}, and the node of host {host.name} is {other} there: '
                                  'name that node' + ('' if records else f', or give --host {host.name}, too'))
        return
    uuids = [one.uuid for one in client.get_tree(root.uuid)]
    if not _is_marked(client, uuids):
        return
    if not records and not is_named:
        raise base.UsageError(f'--node {node} has devices of a host in placement, and host {host.name} has no record '
                              f'that they are its own: if it is the node of this host, give --host {host.name}, too')
    if records and {record.provider_uuid for record in records}.isdisjoint(uuids):
        theirs = f'--node {node} has devices of a host in placement, and none that host {host.name} has recorded'
        if {expected.consumer_of(record) for record in records}.isdisjoint(
                client.list_consumers(root.uuid).consumers):
            raise base.UsageError(f'{theirs}: name the node of host {host.name}')
        if not is_named:
            raise base.UsageError(f'{theirs}, but allocations of its instances, which may have left it: if it is the '
                                  f'node of this host, give --host {host.name}, too')


def _node_of(client: Client, host: Host, records: Sequence[Record]) -> str | None:
    """Return the name of a host's node in placement; None if placement has none that is certainly the host's.

    The tree of that node has a provider of the record, or the node has the host's name and the tree our marks. The
    allocations of owners say nothing: an instance that was evacuated has them at another host.
    """
    for uuid in dict.fromkeys(record.provider_uuid for record in records if record.provider_uuid):
        for one in client.get_tree(uuid):
            if one.parent_uuid is None:
                return one.name
    named = client.find_provider(host.name)
    if named is None or not _is_marked(client, [one.uuid for one in client.get_tree(named.uuid)]):
        return None
    return named.name


def _is_marked(client: Client, uuids: Iterable[str]) -> bool:
    """Whether any of these providers has devices of a host, or was made for some."""
    return any(tree.is_marked(client.get_traits(uuid).traits) for uuid in uuids)


def recorded_node(client: Client, store: Store, host: Host, root: values.ListedProvider) -> healer.NodeToHeal:
    """Make a host's node from its record alone, without reading which providers count the devices now.

    If a manager did not look up its providers, its rows have UUIDs derived from the host's UUID. These stand for the
    providers of the same names in placement.
    """
    derived = DerivedProviders(host.uuid)
    uuids: dict[str, str] = {}
    if root.uuid != host.uuid:                  # if they are equal, the derived UUIDs are those in placement
        uuids = {derived.uuid_of(one.name.removeprefix(root.name).removeprefix('_')): one.uuid
                 for one in client.get_tree(root.uuid)}

    def look() -> tuple[list[Record], None]:
        return [record._replace(provider_uuid=uuids.get(record.provider_uuid, record.provider_uuid))
                for record in store.records_of_host(host.uuid)], None

    return healer.NodeToHeal(root.uuid, look)


class Sync(base.Lister):
    """Report this host's providers, inventories and traits to placement. Lists the differences as a tree.

    Reads the host and the hypervisor, and may run while the host's manager works. It keeps the inventories and traits
    that others reported at the same providers. Exit code 3 when a difference remains: an inventory to be removed is in
    use, a provider was refused, or a part of the host could not be read; with --dry-run also when anything differs.
    """

    columns = ('provider', 'provider_uuid', 'what', 'name', 'before', 'after', 'node')
    in_table = columns[:-1]
    prose = ('before', 'after')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_options(parser)
        parser.add_argument('--dry-run', action='store_true', help='Only list the differences.')

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        # A tree shows more than a table, unless somebody asks for columns.
        self._draws = parsed_args.formatter == 'table' and not (
            parsed_args.columns or parsed_args.sort_columns or parsed_args.long)
        return super().take_action(parsed_args)

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        report = self._report(parsed_args)
        self._tell(report, parsed_args)
        self._tree = tree.render(report.root, report.difference)
        for fact in tree.facts(report.difference):
            yield {**fact._asdict(), 'node': report.root.name}

    def produce_output(self, parsed_args: argparse.Namespace, columns: Sequence[str],
                       data: Iterable[Sequence[Any]]) -> int:
        if not self._draws:
            return super().produce_output(parsed_args, columns, data)
        if self._tree:
            self.app.stdout.write(f'{self._tree}\n')
        return 0

    def _report(self, parsed_args: argparse.Namespace) -> Report:
        client = open_client(self.app.conf)
        observer = observe(self.app, client, parsed_args)
        providers, complete = observer.providers(parsed_args.node)
        if not complete:
            self.exit_code = base.ATTENTION
            self.say('a part of the host could not be read: what is missing there stays, without room for more')
        layout = tree.wanted_layout(self.app.conf[placement_options.GROUP].nested,
                                    observer.host.nested_version is not None)
        with progress.Progress(self) as shown:
            report = PlacementReporter(client).sync(
                providers, layout, observer.resource_classes, complete, parsed_args.dry_run,
                lambda what, done, of: shown.show(f'{done} of {of} providers {what}'))
        if not parsed_args.dry_run:
            nodes.record_layout(self.app.store, observer.host, layout, report)
        if report.layout != layout:
            self.exit_code = base.ATTENTION
            self.say(f'the tree is {report.layout} and not {layout}: devices are allocated that would have to move')
        return report

    def _tell(self, report: Report, parsed_args: argparse.Namespace) -> None:
        for error in report.refused.values():
            self.say(base.sentence(error))
        if report.left or report.refused or (report.changes and parsed_args.dry_run):
            self.exit_code = base.ATTENTION
        if not report.changes and not report.left and not report.refused:
            self.say(f'{report.root.name}: no differences')
        elif parsed_args.dry_run:
            self.say('nothing was done')
