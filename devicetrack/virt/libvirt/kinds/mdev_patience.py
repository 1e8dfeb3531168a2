"""Waits for libvirt, which notices a change of mediated devices some time after the kernel and mdevctl made it."""

from __future__ import annotations

from collections.abc import Callable
import time
from typing import Final
from typing import TypeVar

from devicetrack.virt.libvirt import connection
from devicetrack.virt.libvirt.kinds import busy

# How long libvirt may take to notice a change. It reads events one by one, and runs mdevctl for each.
SETTLE_S: Final = 60.0
# After this time, ask the kernel itself, where this process may.
BEHIND_S: Final = 5.0

# libvirt's answers while it does not know of a change yet.
AGAIN: Final = (connection.Meaning.NO_SUCH_DEVICE, connection.Meaning.BEHIND, connection.Meaning.UNTOLD)

_Answer = TypeVar('_Answer')


class Patience:
    """How long one host waits, in seconds."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self.settle_s = settle_s

    @property
    def behind_s(self) -> float:
        """How long to wait before the kernel is asked itself."""
        return min(self.settle_s, BEHIND_S)

    def wait_for(self, found: Callable[[], _Answer], seconds: float | None = None) -> _Answer:
        """Call until the answer is true or the time is over, and return the last answer."""
        return busy.until(found, self.settle_s if seconds is None else seconds)

    def settled(self, call: Callable[[], None], done: Callable[[], bool] = lambda: False,
                 seconds: float | None = None) -> None:
        """Call, and repeat until it is ``done``, as long as libvirt does not know of a change or gives no reason.

        libvirt even forgets a definition that it has just made when it reads a list that mdevctl had made before.

        :raises Refused: libvirt gives another reason, or the time is over
        """
        deadline = time.monotonic() + (self.settle_s if seconds is None else seconds)
        while True:
            try:
                return call()
            except connection.Refused as error:
                if done():
                    return None
                if error.meaning not in AGAIN or time.monotonic() >= deadline:
                    raise
            time.sleep(0.1)
