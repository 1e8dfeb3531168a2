"""``devicetrack-manage host``: the hosts of the store, and the numbers of their devices."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Final

from devicetrack import exception
from devicetrack import vocabulary
from devicetrack.claims import host as host_identity
from devicetrack.claims import repairs
from devicetrack.claims import report
from devicetrack.claims import withheld
from devicetrack.cmd import base
from devicetrack.cmd import records
from devicetrack.cmd import watching
from devicetrack.conf import manager as manager_options
from devicetrack.engine.withholding import Marks
from devicetrack.engine.withholding import Target
from devicetrack.pictures import natural
from devicetrack.store.api import Host
from devicetrack.store.api import Store
from devicetrack.store.api import Tally

FORGOTTEN: Final = 'forgotten'
_COUNTED: Final = (report.FREE, report.HELD, report.RELEASING, report.WITHHELD, report.CREATABLE, report.MISSING,
                   report.OBSERVED)


class List(watching.Watched, base.Lister):
    """List the hosts of the store, with the numbers of their devices. Reads only the store.

    "here" marks this machine. "held" counts the devices that instances have, "releasing" those that go back, and
    "requests" the requests that wait for the host's manager. "cordoned" says why an operator keeps the devices of the
    host from new instances ("host cordon"). "withheld_entries" counts the devices and parents for
    which the store has a reason to withhold them, as of the last audit: one parent may be many devices, and a device
    with a reason may still be held.
    """

    columns = ('host', 'here', 'instances', 'held', 'releasing', 'withheld_entries', 'requests', 'nested_since',
               'epoch', 'boot_id', 'host_uuid', 'cordoned')
    in_table = ('host', 'here', 'instances', 'held', 'releasing', 'withheld_entries', 'requests', 'cordoned')
    if_filled = ('cordoned',)
    prose = ('cordoned',)
    spare = ('here', 'requests')
    below = ('cordoned',)

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return 'the store has no host: the first start of its manager makes it'

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        store = self.app.checked_store
        here = machine(self.app)
        hosts = sorted(store.hosts(), key=lambda one: natural.key(one.name))
        uuids = [host.uuid for host in hosts]
        tallies = store.tallies(uuids)
        marks = {row.host_uuid: withheld.marks_of(withheld.by_target([row]))
                 for row in store.withheld_of_hosts(uuids, [vocabulary.HOST])}
        for host in hosts:
            yield {**of_store(host, tallies[host.uuid], here),
                   'cordoned': cordoned_in(marks.get(host.uuid, {}), host.name)}


class Show(watching.Watched, base.ShowOne):
    """Show a host; for this machine also how many devices of each class are free, held or withheld.

    "withheld" counts devices that nobody has and nobody gets now; "withheld_entries" is the same as in "host list".
    "report_only" says why this machine takes no claims, when its store is older than its guests, and "cordoned" why an
    operator keeps its devices from new instances ("host cordon"). Exit code 3 if it is report-only, and when a part of
    this machine could not be read, or an option names a device that it does not have.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('host', metavar='NAME', nargs='?',
                            help="The host. By default this machine's.")

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        store = self.app.checked_store
        unknown: list[str] = []
        report_only: str | None = None
        classes: list[dict[str, Any]] | None = None
        try:
            observer = self.app.observer(parsed_args.host)
            host: Host = observer.host
        except exception.NotThisMachine as error:
            found = store.host(parsed_args.host)
            if found is None:
                raise
            host, unknown = found, [str(error)]
        else:
            records.host_of(store, host.name)
            try:
                lines = observer.inventory()
                report_only = observer.report_only()
            except exception.DriverError as error:
                unknown, self.exit_code = [str(error)], base.ATTENTION
            else:
                classes = _classes(lines)
                wrong = [line for line in lines if line.status in (report.UNKNOWN, report.MISSING)]
                unknown = [f'{line.kind}: {line.reason}' for line in wrong if line.status == report.UNKNOWN]
                if wrong or report_only is not None:
                    self.exit_code = base.ATTENTION
        return {**of_store(host, store.tallies([host.uuid])[host.uuid], machine(self.app)),
                'classes': base.Shown(classes, [_in_words(one) for one in classes or ()]), 'unknown': unknown,
                'report_only': report_only, 'cordoned': cordoned_in(withheld.load(store, host.uuid), host.name)}


class Forget(base.ShowOne):
    """Forget a host that holds nothing: delete it from the store, with its cordons, requests and history.

    Use it for a name that this machine had, and for a machine that is gone. The request is refused while the host has
    devices in the store, unless you say that its machine is gone, and for this machine's present host while its manager
    runs. If the manager of another machine runs, it stops its work, and its next start makes the host anew.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('host', metavar='NAME', help='The host.')
        parser.add_argument('--machine-gone', action='store_true',
                            help='That machine, which is not this one, is gone for good with all its data: end the '
                                 'assignments of all its devices, too. Needs --confirm.')
        parser.add_argument('--confirm', metavar='NAME',
                            help='The name of the host once more. Without it, --machine-gone only counts its devices.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        store = self.app.checked_store
        host = store.host(parsed_args.host)
        if host is None:
            known = exception.some_of((one.name for one in store.hosts()), parsed_args.host)
            raise exception.UnknownToStore('host', parsed_args.host, None, 'there is nothing to forget, or its name is '
                                           f'another one; hosts of the store: {known or "none"}')
        if host.machine_id == self.app.machine_id and self._may_be_present(host):
            host_identity.check_unmanaged(host.name, self.app.conf[manager_options.GROUP].state_path)
        if parsed_args.machine_gone:
            self._end_all(store, host, parsed_args.confirm)
        store.replace_host(host, None)
        return {'outcome': FORGOTTEN, 'host': host.name, 'host_uuid': host.uuid}

    def _end_all(self, store: Store, host: Host, confirm: str | None) -> None:
        records_there = store.records_of_host(host.uuid)
        if records_there and confirm != host.name:
            owners = len({record.instance_uuid for record in records_there})
            raise base.UsageError(f'host {host.name} has {base.count(len(records_there), "device")} of '
                                  f'{base.count(owners, "instance")}: to forget them all, confirm with --confirm '
                                  f'{host.name}')
        for record in records_there:
            repairs.forget_of_machine(store, host, self.app.machine_id, record.key, record.instance_uuid)

    def _may_be_present(self, host: Host) -> bool:
        """Whether a host of this machine may be the one that its service is now."""
        try:
            return bool(self.app.present_host().uuid == host.uuid)
        except (exception.AmbiguousHost, exception.UnknownHost):
            return True
        except exception.NotThisMachine:
            return False


def cordoned_in(marks: Marks, name: str) -> str | None:
    """Return why a host is cordoned; None if it is not."""
    cause = marks.get(Target.host(name), {}).get(vocabulary.CORDONED)
    return None if cause is None else cause.text or 'no reason given'


def of_store(host: Host, tally: Tally, machine_id: str | None) -> dict[str, Any]:
    """Return the store's fields of a host."""
    return {'host': host.name, 'here': None if machine_id is None else host.machine_id == machine_id,
            'instances': tally.instances, 'held': tally.held, 'releasing': tally.releasing,
            'withheld_entries': tally.withheld, 'requests': tally.requests,
            'nested_since': None if host.nested_at is None else base.Moment(host.nested_at), 'epoch': host.epoch,
            'boot_id': host.boot_id, 'host_uuid': host.uuid}


def machine(app: Any) -> str | None:
    """Return the id by which the store knows this machine; None if the machine has no readable id."""
    try:
        return str(app.machine_id)
    except exception.InvalidConfiguration:
        return None


def _classes(lines: Sequence[report.Line]) -> list[dict[str, Any]]:
    """Count the devices of each class by status."""
    counts: dict[tuple[str, str], collections.Counter[str]] = {}
    for line in lines:
        if line.status != report.UNKNOWN and line.resource_class is not None:
            of_class = counts.setdefault((line.kind, line.resource_class), collections.Counter())
            of_class[line.status] += line.amount if line.identifier is None else 1
    return [{'kind': kind, 'resource_class': resource_class, **{status: of_class[status] for status in _COUNTED}}
            for (kind, resource_class), of_class in sorted(counts.items())]


def _in_words(of_class: Mapping[str, Any]) -> str:
    counted = ', '.join(f'{of_class[status]} {status}' for status in _COUNTED if of_class[status])
    return f'{of_class["resource_class"]}: {counted or "none"}'
