"""``devicetrack-manage db``: the schema of the store and the version of its stored details."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from devicetrack import exception
from devicetrack.cmd import base
from devicetrack.store.sql import models
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
                    'remedy': mismatch.remedy}
        return {'store': store.name, 'schema': models.REVISION, 'needed': models.REVISION, 'usable': True,
                'remedy': None}


class OnlineDataMigrations(base.ShowOne):
    """Convert stored details of older releases to the form of this one, while managers run.

    Exit code 3 when some are left, or cannot be read by this release: run it again until it says 0.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('--max-count', type=_at_least_one, metavar='N',
                            help='Convert at most this many rows now. By default all.')

    def fields(self, parsed_args: argparse.Namespace) -> Mapping[str, Any]:
        migrated = schema.migrate_details(self.app.checked_store, max_rows=parsed_args.max_count)
        if migrated.left or migrated.unreadable:
            self.exit_code = base.ATTENTION
        return {'store': self.app.store.name, 'converted': migrated.converted, 'left': migrated.left,
                'unreadable': list(map(str, migrated.unreadable))}


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text} is less than 1')
    return number
