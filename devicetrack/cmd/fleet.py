"""``devicetrack-manage fleet``: the mirror of a fleet, its schema, and what hosts push to it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from importlib import metadata
import json
import os
import time
from typing import Any
from typing import NamedTuple

from devicetrack import filelock
from devicetrack import vocabulary
from devicetrack.claims import report
from devicetrack.cmd import audit
from devicetrack.cmd import base
from devicetrack.cmd import device
from devicetrack.cmd import host as host_commands
from devicetrack.cmd import mirrored
from devicetrack.cmd import records
from devicetrack.cmd import watching
from devicetrack.conf import fleet as options
from devicetrack.conf import manager as manager_options
from devicetrack.fleet import inventory
from devicetrack.fleet import models
from devicetrack.fleet import push
from devicetrack.pictures import moments
from devicetrack.store.api import Host
from devicetrack.store.api import Store

_LOCK = 'fleet'                                 # a file in the state directory, with ".lock" after it


class Sync(base.ShowOne):
    """Make the mirror that "[devicetrack_fleet] connection" names, or bring it to this release.

    Hosts of an older release go on with their pushes, and so do those of this release when it is done. It only adds
    tables, columns and indexes. "days" is how long the mirror keeps events from now on; those that are older are
    deleted, also of hosts that push no more.
    """

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        mirror = self.app.mirror
        terms = mirror.sync(self.app.conf[options.GROUP].days)
        push.trim_all(mirror)
        return {'mirror': mirror.name, **terms._asdict()}


class Push(base.ShowOne):
    """Write into the mirror what this host says of itself: its devices, rows, findings and new events.

    A timer runs it. It reads the host, the hypervisor and the store, as "device list" and "audit" do, and changes
    nothing there. If the mirror is away, the next push brings everything, also after days. "changed" says whether the
    mirror had another picture of the host, and "events" how many events were new to its cursor.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--host', metavar='NAME', help="The host. By default this machine's.")

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        app, mirror = self.app, self.app.mirror
        try:
            # One at a time: a picture must not take the place of a later one.
            with filelock.writing(os.path.join(app.conf[manager_options.GROUP].state_path, _LOCK)):
                began = time.monotonic()
                observer = app.observer(parsed_args.host)
                host = records.host_of(app.checked_store, observer.host.name)
                pushed = push.push(mirror, app.checked_store, said(
                    host, observer.picture(), app.checked_store, app.conf[options.GROUP]), began)
        except OSError as error:
            raise base.RequestRefused(f'no push of this host can begin: {error.filename}: {error.strerror}') from error
        return {'host': host.name, 'mirror': mirror.name, **pushed._asdict()}


def said(host: Host, picture: report.Picture, store: Store, options_of_fleet: Any) -> push.Said:
    """Everything that a host says of itself."""
    lines = device.in_order(picture.lines)
    findings = _printed(audit.Audit.columns, (audit.finding_fields(host.name, one) for one in picture.findings))
    columns = {'name': host.name, 'machine_id': host.machine_id, 'release': metadata.version('devicetrack'),
               'epoch': host.epoch, 'report_only': picture.report_only, 'group_name': options_of_fleet.group,
               'interval_s': options_of_fleet.interval_s, 'findings': json.dumps(findings),
               'critical': sum(one.severity == vocabulary.CRITICAL for one in picture.findings)}
    printed = _printed(device.List.columns, (device.line_fields(line, host.name) for line in lines))
    return push.Said(host.uuid, columns, [
        {'kind': line.kind, 'identifier': line.identifier, 'status': line.status, 'amount': line.amount,
         'resource_class': line.resource_class, 'parent': line.parent, 'numa_node': line.numa_node,
         'instance_uuid': line.instance_uuid, 'serial': shown['serial'], 'line': json.dumps(shown)}
        for line, shown in zip(lines, printed, strict=True)], {
            models.ROWS: _text(picture.records), models.WITHHELD: _text(store.withheld(host.uuid)),
            models.DECLARATIONS: _text(store.declarations_of_host(host.uuid)),
            models.CONTEXTS: _text(store.contexts(host.uuid)), models.INVENTORY: inventory.to_text(picture.snapshot)})


def _printed(columns: Sequence[str], rows: Iterator[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows as a list prints them in JSON."""
    return [dict(zip(columns, base.cells([row[name] for name in columns], 'json'), strict=True)) for row in rows]


def _text(rows: Sequence[NamedTuple]) -> str:
    """The text of rows of a host. Hosts that say the same have the same text."""
    return json.dumps([{name: value for name, value in row._asdict().items() if name != 'host_uuid'} for row in rows])


class HostList(watching.Watched, mirrored.OfMirror):
    """List the hosts of the fleet: how many devices they have, what is wrong there, and how old their pictures are.

    "creatable" counts what parents can still make. While a host is silent for three of its intervals, nobody knows what
    is free there. Exit code 3 when a host is unknown or report-only, or has a critical finding. Reads only the mirror.
    """

    columns = ('host', 'group', 'devices', 'free', 'creatable', 'held', 'withheld', 'critical', 'report_only',
               'release', *mirrored.AGE, 'host_uuid')
    in_table = ('host', 'devices', 'free', 'creatable', 'held', 'withheld', 'critical', 'release', 'age_s',
                'unknown_since', 'report_only')
    if_filled = ('unknown_since', 'report_only')
    prose = ('report_only',)
    spare = ('release', 'creatable', 'held', 'devices')
    below = ('unknown_since', 'report_only')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        mirrored.add_hosts(parser)

    def nothing(self, parsed_args: argparse.Namespace) -> str:
        return 'no host has pushed'

    def rows(self, parsed_args: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
        reader = self.read(parsed_args.host)
        tallies = reader.tallies()
        for one in self._pictures:
            counted = tallies.get(one.uuid, {})
            if one.is_silent or one.report_only is not None or one.critical:
                self.exit_code = base.ATTENTION
            fields = mirrored.age_fields(one)
            yield {'host': one.name, 'group': one.group,
                   'devices': sum(count for status, count in counted.items() if status != report.CREATABLE),
                   **{status: None if one.is_silent and status in (report.FREE, report.CREATABLE)
                      else counted.get(status, 0) for status in (
                          report.FREE, report.CREATABLE, report.HELD, report.WITHHELD)},
                   'critical': one.critical, 'report_only': one.report_only, 'release': one.release,
                   'host_uuid': one.uuid, **fields, 'age_s': base.Shown(one.age_s, moments.age(one.age_s))}


class Forget(base.ShowOne):
    """Forget a host that pushes no more: the mirror has no devices of it any more, and keeps its history.

    The request is refused until the host has been silent for three of its intervals. If it pushes again, it is back.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('host', metavar='NAME', help='The host.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        return {'outcome': host_commands.FORGOTTEN, 'host': parsed_args.host,
                'host_uuid': push.forget(self.app.mirror, parsed_args.host)}
