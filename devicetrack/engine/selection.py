"""The states of devices, and which NUMA nodes serve a request.

A pool holds the devices that a request cannot tell apart: same provider, resource class, parent, NUMA node and
features. Within a pool the device that has been free for the longest time comes first (at start: by identifier), so
that a device rests between two owners. The policy chooses among pools: ``pack`` takes the first parent by name that has
room; ``spread`` takes the parent with the most room, and the first by name among equals. The same history gives the
same choice.
"""

from __future__ import annotations

from typing import Any
from typing import Final
from typing import NamedTuple

from devicetrack import vocabulary
from devicetrack.objects.choice import Features
from devicetrack.objects.choice import NO_FEATURES

FREE: Final = 0
HELD: Final = 1
RELEASING: Final = 2

# Stands for a provider's UUID while there is no provider. All devices of such a pool are withheld.
NO_UUID: Final = ''

# NUMA nodes, the policy, and for the policy ``socket`` the nodes that are on a socket of one of these.
Affinity = tuple[frozenset[int | None], str, frozenset[int | None]]


class Place(NamedTuple):
    """What a request can tell apart: the name of a pool. ``provider_uuid`` is '' while there is no provider."""

    kind: str
    provider_uuid: str
    resource_class: str
    parent: str | None
    numa_node: int | None
    features: Features = NO_FEATURES

    @property
    def order(self) -> tuple[Any, ...]:
        """The place in the order of names."""
        return (self.parent or '', -1 if self.numa_node is None else self.numa_node, self.provider_uuid,
                self.resource_class, self.kind, self.features)


def allows(numa_node: int | None, numa_nodes: frozenset[int | None], numa_policy: str,
           on_socket: frozenset[int | None] = frozenset()) -> bool:
    """Whether a device on this node may serve a request with this affinity.

    :param on_socket: the nodes that are on a socket of one of ``numa_nodes``, for the policy ``socket``
    """
    if not numa_nodes or numa_policy in (vocabulary.NONE, vocabulary.PREFERRED):
        return True
    if numa_node in numa_nodes:
        return True
    return numa_node is None if numa_policy == vocabulary.LEGACY else (
        numa_policy == vocabulary.SOCKET and numa_node in on_socket)
