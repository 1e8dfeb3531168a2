"""Asks the kernel again while the answer passes by itself, until a deadline."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
import errno
import time
from typing import Final
from typing import TypeVar

# Somebody looks at the device or has it open for a moment, or its driver is in the middle of a reset.
BUSY: Final = frozenset((errno.EAGAIN, errno.EBUSY))

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
