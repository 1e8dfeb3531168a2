"""The demo service's own database: which instances there are and what became of them.

Every compute service has one. It is not the library's record, which says who has which device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sqlite3
from typing import Any
import uuid

import machine

BUILDING = 'building'
RUNNING = 'running'
REFUSED = 'refused'
DELETING = 'deleting'
DELETED = 'deleted'


@dataclasses.dataclass
class Flavor:
    name: str

    @property
    def extra_specs(self) -> dict[str, str]:
        return machine.FLAVORS[self.name]


@dataclasses.dataclass
class Instance:
    """As the library wants to see one: it reads ``uuid`` and ``flavor``, and sets ``resources``."""

    name: str
    flavor: Flavor
    state: str
    resources: Any = None

    @property
    def uuid(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, self.name))


class Instances:
    """The database, one file; each call opens it, so that any thread and any process may call."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._path = directory / 'instances.sqlite'
        self._execute('CREATE TABLE IF NOT EXISTS instances'
                      ' (name TEXT PRIMARY KEY, flavor TEXT, state TEXT)')

    def add(self, names_and_flavors: dict[str, str]) -> None:
        for name, flavor in names_and_flavors.items():
            self._execute('INSERT INTO instances VALUES (?, ?, ?)', name, flavor, BUILDING)

    def set_state(self, name: str, state: str) -> None:
        self._execute('UPDATE instances SET state = ? WHERE name = ?', state, name)

    def all(self) -> list[Instance]:
        return [Instance(name, Flavor(flavor), state) for name, flavor, state in
                self._execute('SELECT name, flavor, state FROM instances ORDER BY name')]

    def get(self, name: str) -> Instance:
        return next(instance for instance in self.all() if instance.name == name)

    def _execute(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()
