"""``devicetrack-manage db``: the schema of the store and the version of its stored details."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
import contextlib
from typing import Any

from devicetrack import exception
from devicetrack.claims import host as host_identity
from devicetrack.cmd import base
from devicetrack.cmd import options
from devicetrack.cmd import progress
from devicetrack.cmd import remedies
from devicetrack.conf import manager as manager_options
from devicetrack.store import sql
from devicetrack.store.sql import models
from devicetrack.store.sql import moving_host
from devicetrack.store.sql import schema


class Sync(base.ShowOne):
    """Bring the schema of the store to this release, and make an SQLite store that is missing.

    Run it as the user of the service: an SQLite store is made for that user alone.
    """

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        store = self.app.store
        return {'store': store.name, 'schema': schema.sync(store)}


class Version(base.ShowOne):
    """Show which schema the store has and which one this release needs."""

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        store = self.app.store
        return {'store': store.name, 'schema': schema.revision(store) if store.is_there() else None,
                'needed': models.REVISION}


class Check(base.ShowOne):
    """Check that this release can use the store: its schema, and that it can be written. Changes nothing.

    Exit code 3 when the schema is missing or belongs to another release.
    """

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        store = self.app.store
        try:
            store.check()
        except exception.SchemaMismatch as mismatch:
            self.exit_code = base.ATTENTION
            return {'store': mismatch.store, 'schema': mismatch.found, 'needed': mismatch.wanted, 'usable': False,
                    'remedy': remedies.of(mismatch)}
        return {'store': store.name, 'schema': models.REVISION, 'needed': models.REVISION, 'usable': True,
                'remedy': None}


class OnlineDataMigrations(base.ShowOne):
    """Convert stored details of older releases to the form of this one, while managers run.

    Exit code 3 when some are left, or cannot be read by this release: run it again until it says 0.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--max-count', type=options.at_least_one, metavar='N',
                            help='Convert at most this many rows now. By default all.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        migrated = schema.migrate_details(self.app.checked_store, max_rows=parsed_args.max_count)
        if migrated.left or migrated.unreadable:
            self.exit_code = base.ATTENTION
        return {'store': self.app.store.name, 'converted': migrated.converted, 'left': migrated.left,
                'unreadable': list(map(str, migrated.unreadable))}


class Move(base.ShowOne):
    """Move this host to another store: its rows, with what is withheld, its requests and its history.

    Stop the service of the host first. The host's rows stay in the old store, which refuses its services and commands
    from then on. All rows get there, or none. If the command is cut short, run it again.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--to', metavar='FILE', required=True,
                            help='A configuration file that names the new store in [devicetrack_database] connection. '
                                 'It is read after the other configuration files. "db sync" with it makes the tables.')
        options.add_host(parser)

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        app, source = self.app, self.app.store
        conf = app.conf_with(parsed_args.to)
        with contextlib.closing(sql.open_store(conf)) as target:
            if target.name == source.name:
                raise base.UsageError(f'{parsed_args.to} names the same store, {source.name}: set '
                                      '[devicetrack_database] connection there to the new one')
            source.check()
            host = moving_host.host_of(source, target, parsed_args.host or app.conf.host, app.machine_id)
            with host_identity.HostLock(host.name, app.conf[manager_options.GROUP].state_path, by_command=True), (
                    progress.Progress(self)) as shown:
                moved = moving_host.move(source, target, host, lambda rows: shown.show(f'{base.count(rows, "row")} '
                                                                                      'written'))
        self.say(f'before you start the service, name {target.name} in its configuration, as {parsed_args.to} does')
        return {'outcome': 'moved' if moved.rows is not None else 'was moved already', 'host': moved.host.name,
                'host_uuid': moved.host.uuid, 'from': source.name, 'to': target.name, 'rows': moved.rows}
