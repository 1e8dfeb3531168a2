"""Looks up the UUIDs of providers that a compute service made itself."""

from __future__ import annotations

import uuid

from devicetrack.placement import errors
from devicetrack.placement.client import Client


class ProvidersByName:
    """A resolver for ``ClaimManager``: it looks up the providers' UUIDs in placement by their names.

    The node's provider has the node's name, the others ``<node>_<stable name of the parent device>``. If placement does
    not have a provider, the resolver derives a UUID from the node's, as a manager without this resolver does, and a
    report creates the provider. It keeps each answer, so a provider that the service makes anew is found by a new
    resolver, after the next start.

    :param node: the hypervisor node's name
    :param node_uuid: the UUID for the node's provider if placement has no provider of its name. Without it that is an
        error; leave it out where the service creates the node's provider
    """

    def __init__(self, client: Client, node: str, node_uuid: str | None = None) -> None:
        self._client, self._node, self._node_uuid = client, node, node_uuid
        self._found: dict[str, str] = {}        # by name; one request serves many names

    def uuid_of(self, name: str) -> str:
        """Return the UUID of the provider for the parent device with this stable name; '' is the node. Blocks.

        :raises errors.NoSuchProvider: placement does not have the node's provider, and no ``node_uuid`` was given
        :raises PlacementUnavailable: no answer
        """
        wanted = f'{self._node}_{name}' if name else self._node
        if wanted not in self._found:
            found = self._client.find_provider(wanted)
            # Another node may have the name that a provider of this one would have.
            if found is not None and (not name or found.root_uuid == self.uuid_of('')):
                self._found |= {one.name: one.uuid for one in (found, *self._client.get_tree(found.uuid))}
        if wanted not in self._found:
            if not name and self._node_uuid is None:
                raise errors.NoSuchProvider(self._node)
            self._found[wanted] = str(uuid.uuid5(uuid.UUID(self.uuid_of('')), name)) if name else str(self._node_uuid)
        return self._found[wanted]
