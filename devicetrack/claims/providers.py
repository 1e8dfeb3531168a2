"""Finds the resource provider that counts the devices of a parent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
import uuid

from devicetrack.engine.selection import NO_UUID


class ProviderResolver(Protocol):
    """Gives the UUIDs of providers. If the service itself creates the providers, look them up by name."""

    def uuid_of(self, name: str) -> str | None:
        """The UUID of the provider for the parent device with this stable name; '' is the node.

        It must give the same answer after a restart and in another process. It may block; the lock is not held.

        :returns: None if the provider was not created yet. Then no claim gets its devices, and each audit asks again;
            an instance that has such a device keeps it. The manager keeps an answer, and does not ask for this name
            again.
        """


class DerivedProviders:
    """Provider UUIDs derived from the node's UUID and the parent's stable name (version 5, RFC 9562)."""

    def __init__(self, node_uuid: str) -> None:
        self._node = uuid.UUID(node_uuid)

    def uuid_of(self, name: str) -> str:
        return str(uuid.uuid5(self._node, name)) if name else str(self._node)


class KnownProviders:
    """Keeps resolved provider UUIDs, so that later look-ups need no I/O.

    :param resolver: asked once for each name
    """

    def __init__(self, resolver: ProviderResolver) -> None:
        self._resolver = resolver
        self._uuids: dict[str, str] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._uuids

    def resolve(self, names: Iterable[str]) -> None:
        """Resolve the names that are not known yet. May block."""
        for name in names:
            if name not in self._uuids:
                found = self._resolver.uuid_of(name)
                if found:
                    self._uuids[name] = found

    def uuid_of(self, name: str) -> str:
        """The UUID of a resolved provider; :data:`~devicetrack.engine.selection.NO_UUID` for any other."""
        return self._uuids.get(name, NO_UUID)

    def missing(self, names: Iterable[str]) -> set[str]:
        """The names among these that are not resolved yet."""
        return {name for name in names if name not in self._uuids}

    def all(self) -> frozenset[str]:
        """Every known UUID."""
        return frozenset(self._uuids.values())
