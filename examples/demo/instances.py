"""The demo service's own database of instances and migrations.

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

# The statuses of migrations that the library knows.
MIGRATING = 'migrating'
POST_MIGRATING = 'post-migrating'     # the guest starts on the new devices
FINISHED = 'finished'       # the user must still confirm or revert it
REVERTING = 'reverting'
REVERTED = 'reverted'
CONFIRMED = 'confirmed'


@dataclasses.dataclass
class Flavor:
    name: str

    @property
    def extra_specs(self) -> dict[str, str]:
        return (machine.FLAVORS | machine.FUNCTION_FLAVORS)[self.name]


@dataclasses.dataclass
class Instance:
    """An instance. The library reads ``uuid`` and ``flavor``, and sets ``resources``."""

    name: str
    flavor: Flavor
    state: str
    resources: Any = None

    @property
    def uuid(self) -> str:
        return _uuid_of(self.name)


@dataclasses.dataclass
class Migration:
    """A resize of an instance on this host, with the attributes that the library reads."""

    id: int
    name: str
    old_flavor: str
    new_flavor: str
    status: str

    source_compute = source_node = dest_compute = dest_node = machine.NAME

    @property
    def uuid(self) -> str:
        return _uuid_of(f'migration {self.id}')

    @property
    def instance_uuid(self) -> str:
        return _uuid_of(self.name)


def _uuid_of(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


class Instances:
    """The database, in one file. Each call opens it, so any thread and any process may call."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._path = directory / 'instances.sqlite'
        self._execute('CREATE TABLE IF NOT EXISTS instances'
                      ' (name TEXT PRIMARY KEY, flavor TEXT, state TEXT)')
        self._execute('CREATE TABLE IF NOT EXISTS migrations'
                      ' (id INTEGER PRIMARY KEY, name TEXT, old_flavor TEXT, new_flavor TEXT, status TEXT)')

    def add(self, names_and_flavors: dict[str, str]) -> None:
        for name, flavor in names_and_flavors.items():
            self._execute('INSERT INTO instances VALUES (?, ?, ?)', name, flavor, BUILDING)

    def set_state(self, name: str, state: str) -> None:
        self._execute('UPDATE instances SET state = ? WHERE name = ?', state, name)

    def set_flavor(self, name: str, flavor: str) -> None:
        self._execute('UPDATE instances SET flavor = ? WHERE name = ?', flavor, name)

    def all(self) -> list[Instance]:
        return [Instance(name, Flavor(flavor), state) for name, flavor, state in
                self._execute('SELECT name, flavor, state FROM instances ORDER BY name')]

    def get(self, name: str) -> Instance:
        return next(instance for instance in self.all() if instance.name == name)

    def migrate(self, name: str, flavor: str) -> Migration:
        """Begin to resize an instance."""
        self._execute('INSERT INTO migrations (name, old_flavor, new_flavor, status) VALUES (?, ?, ?, ?)',
                      name, self.get(name).flavor.name, flavor, MIGRATING)
        return self.migration_of(name)

    def set_status(self, migration: Migration, status: str) -> None:
        self._execute('UPDATE migrations SET status = ? WHERE id = ?', status, migration.id)

    def migrations(self) -> list[Migration]:
        return [Migration(*row) for row in self._execute(
            'SELECT id, name, old_flavor, new_flavor, status FROM migrations ORDER BY id')]

    def migration_of(self, name: str) -> Migration:
        """The newest migration of an instance."""
        return [migration for migration in self.migrations() if migration.name == name][-1]

    def _execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            return connection.execute(statement, values).fetchall()
