"""What the claim manager asks of the compute service that it works for."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Protocol


class ComputeService(Protocol):
    """The service's view of its instances and migrations, handed to the manager.

    An answer of None, an exception or a word that is not listed means unknown: nothing is given back because of it.
    All but :meth:`instances` may be left out by a service that has no such thing. The manager calls from a start, from
    an audit, from a claim for a move and from ``realize``; never under its lock.
    """

    def instances(self) -> Mapping[str, str] | None:
        """Say what became of the instances that this host may know.

        :returns: by instance UUID ``here`` (it lives on this host), ``elsewhere`` (it lives on another one),
            ``deleted`` or ``offloaded``; an instance that is left out is unknown, not gone. None when the service
            cannot tell now.
        """


class MovingService(ComputeService, Protocol):
    """A service whose instances move."""

    def migrations(self, uuids: Sequence[str]) -> Mapping[str, Any] | None:
        """Say where migrations stand.

        :param uuids: those that rows of this host name
        :returns: by UUID, those of them that the service knows, and beside them every one that takes an instance away
            from this host and is not long over: of a live migration the source may hear in no other way. Read of each
            are ``uuid``, ``id`` (greater is newer), ``status``, ``instance_uuid``, ``source_compute``,
            ``source_node``, ``dest_compute``, ``dest_node``. What a status means is in
            :data:`devicetrack.engine.moves.STATUSES`, and ``doc/source/user/moves.rst`` says what each does to rows.
            None when the service cannot tell now.
        """

    def evacuated_from_here(self) -> Collection[str] | None:
        """Name the instances that were evacuated from this host and may have left a guest on it.

        Their guests here are destroyed and undefined, and what they held is given back: unless anything says that they
        came back since. None when the service cannot tell now.
        """

    def create_migration(self, context: Any, instance: Any, nodename: str, move_type: str) -> Any:
        """Create and save a migration to this node for a claim that was given none.

        :param move_type: ``resize``, ``live-migration`` or ``evacuation``
        """

    def fail_migration(self, migration_uuid: str) -> None:
        """A newer migration of the instance took the place of this one: set it to ``error``."""
