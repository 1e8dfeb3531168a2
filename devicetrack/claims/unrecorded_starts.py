"""Knows the guests that run, as the service says, although no row may record that yet."""

from __future__ import annotations


class UnrecordedStarts:
    """The starts that the service has told one manager of, and that may not be recorded.

    It belongs to the manager and not to one start of the host: the service may call ``started`` in the block of a claim
    after another thread has closed the manager, and the guest runs all the same. Each call is one step of a dict, so
    any thread may call it.
    """

    def __init__(self) -> None:
        self._said: dict[str, None] = {}

    def say(self, instance_uuid: str) -> None:
        """Note that the service says that a guest runs. Until :meth:`forget`, errors give no device back."""
        self._said[instance_uuid] = None

    def forget(self, instance_uuid: str) -> None:
        """Forget it: the start is recorded and its caller knows that, or the devices go back."""
        self._said.pop(instance_uuid, None)

    def has(self, instance_uuid: str) -> bool:
        return instance_uuid in self._said
