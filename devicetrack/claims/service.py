"""What the claim manager asks of the compute service that it works for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class ComputeService(Protocol):
    """The service's view of its instances, handed to the manager.

    An answer of None, an exception or a word that is not listed means unknown: nothing is given back because of it.
    """

    def instances(self) -> Mapping[str, str] | None:
        """Say what became of the instances that this host may know.

        :returns: by instance UUID ``here`` (it lives on this host), ``deleted`` or ``offloaded``; an instance that
            is left out is unknown, not gone. None when the service cannot tell now.
        """
