"""The library's record by plain SQL, without the library: read, and copied as an operator would copy it."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from typing import NamedTuple

FILE = pathlib.Path('state', 'devicetrack.sqlite')


class Row(NamedTuple):
    """One device and its owner, an instance."""

    owner: str
    kind: str
    identifier: str
    resource_class: str
    parent: str | None
    state: str
    role: str
    migration: str | None

    def __str__(self) -> str:
        if self.kind == 'vpmem':
            return f'{self.identifier} ({self.resource_class.rpartition("_")[2]})'
        bus = (self.parent or '').split('_')[2]
        return f'{self.identifier[:8]} (card {bus})'


def read(directory: pathlib.Path) -> list[Row]:
    """Every row, by instance and in the order of the guest."""
    with contextlib.closing(sqlite3.connect(directory / FILE)) as connection:
        return [Row(*row) for row in connection.execute(
            'SELECT instance_uuid, kind, identifier, resource_class, parent, state, role, migration_uuid'
            ' FROM assignments ORDER BY instance_uuid, position')]


def requests(directory: pathlib.Path) -> list[str]:
    """The UUIDs of requests of commands that wait for an answer."""
    with contextlib.closing(sqlite3.connect(directory / FILE)) as connection:
        return [uuid for uuid, in connection.execute('SELECT uuid FROM operator_requests WHERE answered_at IS NULL')]


def leftovers(directory: pathlib.Path) -> list[str]:
    """The UUIDs of migrations that have yet to let go of what they hold in placement."""
    with contextlib.closing(sqlite3.connect(directory / FILE)) as connection:
        return [uuid for uuid, in connection.execute('SELECT migration_uuid FROM leftovers')]


def copy(directory: pathlib.Path) -> pathlib.Path:
    """Make a copy of it; the service may work meanwhile."""
    path = directory / 'copy-of-the-record.sqlite'
    _copy(directory / FILE, path)
    return path


def put_back(directory: pathlib.Path, path: pathlib.Path) -> None:
    """Put a copy in its place."""
    _copy(path, directory / FILE)


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
        old.backup(new)
