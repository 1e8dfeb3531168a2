"""A stand-in for Nova's instance, for the claim manager, and what the manager reads of its name.

Nova's objects cannot hold devicetrack's objects. So each call of the manager reads and sets a stand-in of its own, and
the values that it sets stay there. The rows are the authority, and Nova keeps a record in its own form
(:mod:`.resources`).
"""

from __future__ import annotations

from typing import Any

from devicetrack.claims.instance_fields import InstanceFields
from devicetrack.objects import InstanceResources
from devicetrack.objects import MigrationContext


class Subject:
    """One instance, for one call of the manager.

    :param host: where it is, if Nova's own record does not say that
    """

    __slots__ = ('uuid', '_instance', '_host', 'resources', 'migration_context')

    def __init__(self, instance: Any, resources: InstanceResources | None = None, host: str | None = None) -> None:
        self.uuid: str = instance.uuid
        self._instance, self._host = instance, host
        self.resources = resources
        self.migration_context: MigrationContext | None = None

    # Nova may fetch these from its database, so they are read only where they are needed.

    @property
    def host(self) -> Any:
        return self._host or self._instance.host

    @property
    def node(self) -> Any:
        return self._instance.node

    @property
    def display_name(self) -> Any:
        return self._instance.display_name

    @property
    def image_meta(self) -> Any:
        return self._instance.image_meta

    @property
    def flavor(self) -> Any:
        return self._instance.flavor


class NamedSubjects(InstanceFields):
    """Lets claims record the names of instances, if ``[devicetrack] instance_names`` says so."""

    def display_name(self, instance: Subject) -> str | None:
        name: str | None = instance.display_name
        return name
