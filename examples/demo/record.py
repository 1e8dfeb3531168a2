"""The library's record, read by plain SQL, without the library and whether or not the service runs."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
from typing import NamedTuple


class Row(NamedTuple):
    """One device and its owner, an instance."""

    owner: str
    kind: str
    identifier: str
    resource_class: str
    parent: str | None
    state: str

    def __str__(self) -> str:
        if self.kind == 'vpmem':
            return f'{self.identifier} ({self.resource_class.rpartition("_")[2]})'
        bus = (self.parent or '').split('_')[2]
        return f'{self.identifier[:8]} (card {bus})'


def read(directory: pathlib.Path) -> list[Row]:
    """Every row, by instance and in the order of the guest."""
    with contextlib.closing(sqlite3.connect(directory / 'state' / 'devicetrack.sqlite')) as connection:
        return [Row(*row) for row in connection.execute(
            'SELECT instance_uuid, kind, identifier, resource_class, parent, state'
            ' FROM assignments ORDER BY instance_uuid, position')]
