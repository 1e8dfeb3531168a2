"""Asks the kernel or libvirt again while the answer passes by itself, until a deadline."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
import errno
import time
from typing import Final
from typing import TypeVar

from devicetrack.virt.libvirt import connection

# Somebody looks at the device or has it open for a moment, or its driver is in the middle of a reset.
BUSY: Final = frozenset((errno.EAGAIN, errno.EBUSY))

# How long libvirt may take to notice a change. It reads events one by one, and runs mdevctl for each.
SETTLE_S: Final = 60.0
# After this time, ask the kernel itself, where this process may.
BEHIND_S: Final = 5.0

# libvirt's answers while it does not know of a change yet.
AGAIN: Final = (connection.Meaning.NO_SUCH_DEVICE, connection.Meaning.BEHIND, connection.Meaning.UNTOLD)

_POLL_S: Final = 0.2
_Answer = TypeVar('_Answer')


def until(look: Callable[[], _Answer], wait_s: float, done: Callable[[_Answer], object] = bool) -> _Answer:
    """Look until the answer is the wanted one, for at most ``wait_s`` seconds, and return the last answer."""
    deadline = time.monotonic() + wait_s
    while not done(answer := look()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return answer


def retried(call: Callable[[], _Answer], wait_s: float, passing: Collection[int] = BUSY) -> _Answer:
    """Call until the answer is no error that passes, for at most ``wait_s`` seconds.

    :param passing: the numbers of such errors
    :raises OSError: as the last call
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in passing or time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_S)


class Patience:
    """How long one host waits, in seconds, for libvirt, which notices a change some time after the kernel made it."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self.settle_s = settle_s

    @property
    def behind_s(self) -> float:
        """How long to wait before the kernel is asked itself."""
        return min(self.settle_s, BEHIND_S)

    def wait_for(self, found: Callable[[], _Answer], seconds: float | None = None) -> _Answer:
        """Call until the answer is true or the time is over, and return the last answer."""
        return until(found, self.settle_s if seconds is None else seconds)

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
            time.sleep(_POLL_S)
