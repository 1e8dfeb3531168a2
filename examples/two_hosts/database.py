"""The database of the service in ``service.py``, and the answers that it gives the manager of a host."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set
import dataclasses
import json
import pathlib
from typing import Any

from devicetrack import objects

OVER = {'completed', 'confirmed', 'done', 'reverted', 'cancelled', 'failed', 'error'}   # final statuses of a migration


@dataclasses.dataclass
class Flavor:
    name: str
    extra_specs: dict[str, str]


@dataclasses.dataclass
class Instance:
    """The library reads ``uuid``, ``host`` and ``flavor``. It sets the last two fields, and the service saves them."""

    uuid: str
    flavor: Flavor
    host: str | None = None
    deleting: bool = False                      # its delete has begun, and nothing takes that back
    deleted: bool = False
    resources: objects.InstanceResources | None = None
    migration_context: objects.MigrationContext | None = None


@dataclasses.dataclass
class Migration:
    uuid: str
    id: int                                     # a newer migration has a greater one
    instance_uuid: str
    source_compute: str
    dest_compute: str
    migration_type: str = 'resize'              # or 'live-migration', or 'evacuation'
    status: str = 'accepted'
    old_flavor: Flavor | None = None            # of a resize; a revert needs it
    new_flavor: Flavor | None = None

    @property
    def source_node(self) -> str:
        return self.source_compute

    @property
    def dest_node(self) -> str:
        return self.dest_compute

    @property
    def on_one_host(self) -> bool:
        return self.source_compute == self.dest_compute


class Database:
    """The service's own database: one file, which each save replaces as a whole."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def _read(self) -> dict[str, dict[str, Any]]:
        return json.loads(self._path.read_text()) if self._path.exists() else {'instances': {}, 'migrations': {}}

    def save(self, *changed: Instance | Migration) -> None:
        """Save instances and migrations in one transaction."""
        data = self._read()
        for one in changed:
            if isinstance(one, Migration):
                data['migrations'][one.uuid] = dataclasses.asdict(one)
            else:
                facts = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
                facts['flavor'] = dataclasses.asdict(one.flavor)
                for name in ('resources', 'migration_context'):
                    facts[name] = None if facts[name] is None else facts[name].obj_to_primitive()
                data['instances'][one.uuid] = facts
        new = self._path.with_suffix('.new')
        new.write_text(json.dumps(data))
        new.replace(self._path)

    def instance(self, instance_uuid: str) -> Instance:
        facts = dict(self._read()['instances'][instance_uuid])
        facts['flavor'] = Flavor(**facts['flavor'])
        for name, cls in (('resources', objects.InstanceResources), ('migration_context', objects.MigrationContext)):
            facts[name] = None if facts[name] is None else cls.obj_from_primitive(facts[name])
        return Instance(**facts)

    def instances(self) -> list[Instance]:
        return [self.instance(one) for one in self._read()['instances']]

    def migrations(self) -> list[Migration]:
        found = []
        for facts in self._read()['migrations'].values():
            flavors = {name: Flavor(**facts[name]) for name in ('old_flavor', 'new_flavor') if facts[name] is not None}
            found.append(Migration(**(facts | flavors)))
        return found


class Answers:
    """What the manager of one host asks of the service. Every answer comes from the database."""

    def __init__(self, database: Database, host: str) -> None:
        self._database, self._host = database, host

    def instances(self, uuids: Set[str]) -> dict[str, str]:
        """Leaves out an instance that has never had a host, unless it was deleted: its claim may be under way.

        An instance is deleted from the moment that its delete has begun: it never comes back. Its devices go back when
        its guest is gone.
        """
        return {one.uuid: 'deleted' if one.deleting else 'here' if one.host == self._host else 'elsewhere'
                for one in self._database.instances()
                if one.uuid in uuids and (one.deleting or one.host is not None)}

    def migrations(self, uuids: Sequence[str]) -> dict[str, Migration]:
        return {one.uuid: one for one in self._database.migrations()
                if one.uuid in uuids or one.source_compute == self._host}

    def evacuated_from_here(self) -> list[str]:
        """Evacuations that are done, until the instance comes back: its guest may have come up here again.

        When the instance has come back and leaves once more, it is not away because of the evacuation.
        """
        migrations = sorted(self._database.migrations(), key=lambda one: one.id)
        back = {one.instance_uuid: one.id for one in migrations
                if one.dest_compute == self._host and one.status not in ('error', 'failed', 'reverted')}
        return [one.instance_uuid for one in migrations
                if (one.migration_type, one.source_compute, one.status) == ('evacuation', self._host, 'done')
                and self._database.instance(one.instance_uuid).host != self._host
                and back.get(one.instance_uuid, -1) < one.id]
