"""Reads the library's record by plain SQL, without the library, and copies it as an operator would."""

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
    """Every row, sorted by instance and by the order in the guest."""
    with contextlib.closing(sqlite3.connect(directory / FILE)) as connection:
        return [Row(*row) for row in connection.execute(
            'SELECT instance_uuid, kind, identifier, resource_class, parent, state, role, migration_uuid'
            ' FROM assignments ORDER BY instance_uuid, position')]


def requests(directory: pathlib.Path) -> list[str]:
    """The UUIDs of operators' requests that wait for an answer."""
    with contextlib.closing(sqlite3.connect(directory / FILE)) as connection:
        return [uuid for uuid, in connection.execute('SELECT uuid FROM operator_requests WHERE answered_at IS NULL')]


def leftovers(directory: pathlib.Path) -> list[str]:
    """The UUIDs of migrations whose allocations in placement are still to be removed."""
    with contextlib.closing(sqlite3.connect(directory / FILE)) as connection:
        return [uuid for uuid, in connection.execute('SELECT migration_uuid FROM leftovers')]


def copy(directory: pathlib.Path) -> pathlib.Path:
    """Copy the record. The service may work meanwhile."""
    path = directory / 'copy-of-the-record.sqlite'
    _copy(directory / FILE, path)
    return path


def put_back(directory: pathlib.Path, path: pathlib.Path) -> None:
    """Replace the record by a copy."""
    _copy(path, directory / FILE)


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
        old.backup(new)
