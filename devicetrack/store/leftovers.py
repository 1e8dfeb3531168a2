"""The leftovers of a host, kept in its store: confirms and reverts that have yet to reach placement."""

from __future__ import annotations

from devicetrack.objects.values import Leftover
from devicetrack.store.api import Store


class HostLeftovers:
    """The leftovers of a host, for the ``AllocationClient`` that ends its moves. Every method may block.

    :param store: in a service, ``ClaimManager.store``
    :param host_uuid: the host whose service ends moves: ``ClaimManager.host_uuid``

    A method raises errors as those of a store. It may be repeated. Once another manager of the host has started,
    :meth:`record` and :meth:`remove` raise HostTakenOver.
    """

    def __init__(self, store: Store, host_uuid: str) -> None:
        self._store, self._host_uuid = store, host_uuid

    def record(self, leftover: Leftover) -> None:
        """Keep a leftover. It replaces an earlier one of the same migration."""
        self._store.add_leftover(self._host_uuid, leftover)

    def remove(self, leftover: Leftover) -> None:
        """Remove a leftover, if it is there."""
        self._store.remove_leftover(self._host_uuid, leftover)

    def kept(self) -> list[Leftover]:
        """Every leftover that was recorded and not removed."""
        return self._store.leftovers(self._host_uuid)
