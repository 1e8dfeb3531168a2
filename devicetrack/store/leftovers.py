"""What one host has yet to remove from placement after it confirmed moves, kept in its store."""

from __future__ import annotations

from devicetrack.objects.values import Leftover
from devicetrack.store.api import Store


class HostLeftovers:
    """The leftovers of a host, for the ``AllocationClient`` that confirms its moves. Every method may block.

    :param store: of a service, ``ClaimManager.store``
    :param host_uuid: the host whose service confirms moves, as ``ClaimManager.host_uuid`` says

    A method raises StoreUnavailable when nothing was written, and OutcomeUnknown when nobody knows. It may be repeated.
    Once another manager of the host has started, :meth:`record` and :meth:`remove` raise HostTakenOver.
    """

    def __init__(self, store: Store, host_uuid: str) -> None:
        self._store, self._host_uuid = store, host_uuid

    def record(self, leftover: Leftover) -> None:
        """Keep it. May be repeated."""
        self._store.add_leftover(self._host_uuid, leftover)

    def remove(self, leftover: Leftover) -> None:
        """Forget it, if it is there."""
        self._store.remove_leftover(self._host_uuid, leftover)

    def kept(self) -> list[Leftover]:
        """Everything that was recorded and has not been removed."""
        return self._store.leftovers(self._host_uuid)
