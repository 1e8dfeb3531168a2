"""Which resource provider counts the devices of which parent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
import uuid

from devicetrack.engine.selection import NO_UUID


class ProviderResolver(Protocol):
    """Says the UUID of a provider. Beside a service that makes the providers itself, look them up by name."""

    def uuid_of(self, name: str) -> str | None:
        """The UUID of the provider for the parent device with this stable name; '' is the node.

        Must give the same answer after a restart and in another process. May block; never called under the lock.

        :returns: None when the provider was not created yet. Then no claim gets its devices, and each audit asks again;
            an instance that has such a device keeps it. An answer is kept, and this name is not asked for again.
        """


class DerivedProviders:
    """Provider UUIDs derived from the node's UUID and the parent's stable name (version 5, RFC 9562)."""

    def __init__(self, node_uuid: str) -> None:
        self._node = uuid.UUID(node_uuid)

    def uuid_of(self, name: str) -> str:
        return str(uuid.uuid5(self._node, name)) if name else str(self._node)


class KnownProviders:
    """Provider UUIDs that were resolved once, so that they are known without I/O from then on.

    :param resolver: asked once for each name
    """

    def __init__(self, resolver: ProviderResolver) -> None:
        self._resolver = resolver
        self._uuids: dict[str, str] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._uuids

    def resolve(self, names: Iterable[str]) -> None:
        """Ask for those that are not known yet. May block."""
        for name in names:
            if name not in self._uuids:
                found = self._resolver.uuid_of(name)
                if found:
                    self._uuids[name] = found

    def uuid_of(self, name: str) -> str:
        """The UUID of a provider that was resolved, :data:`~devicetrack.engine.selection.NO_UUID` of another one."""
        return self._uuids.get(name, NO_UUID)

    def missing(self, names: Iterable[str]) -> set[str]:
        """Those of these names that were not resolved yet."""
        return {name for name in names if name not in self._uuids}

    def all(self) -> frozenset[str]:
        """Every UUID that is known."""
        return frozenset(self._uuids.values())
