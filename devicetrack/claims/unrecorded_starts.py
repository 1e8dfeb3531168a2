"""Knows the guests that run, as the service says, although no row may record that yet."""

from __future__ import annotations

import itertools


class UnrecordedStarts:
    """The starts that the service has told one manager of, and that may not be recorded.

    It belongs to the manager and not to one start of the host: the service may call ``started`` in the block of a claim
    after another thread has closed the manager, and the guest runs all the same.

    A note is about the claims that were there when it was made. A later claim of the instance, as for a resize on one
    host, has another guest, and its failure gives its devices back. Who records the start does not matter: an audit may
    do so before the block of the claim ends, and then the claim must not give its devices back either.

    Each call is one step of a dict, so any thread may call it.
    """

    def __init__(self) -> None:
        self._moments = itertools.count()
        self._said: dict[str, int] = {}

    def now(self) -> int:
        """The present moment, before all later ones."""
        return next(self._moments)

    def say(self, instance_uuid: str) -> None:
        """Note that the service says that a guest runs. Until :meth:`forget`, errors give no device back."""
        self._said[instance_uuid] = next(self._moments)

    def forget(self, instance_uuid: str) -> None:
        """Forget it: the start is recorded and its caller knows that, or the devices go back."""
        self._said.pop(instance_uuid, None)

    def said_since(self, moment: int, instance_uuid: str) -> bool:
        """Whether the service has said after this moment that the guest runs."""
        return self._said.get(instance_uuid, moment) > moment
