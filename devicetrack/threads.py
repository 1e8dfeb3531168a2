"""Threads whose start ends in any case."""

from __future__ import annotations

from collections.abc import Callable
import errno
import threading
from typing import Any
from typing import Final

# A thread needs milliseconds, and on a host that swaps seconds.
_START_S: Final = 5.0


class NotStarted(OSError):
    """The system gave no thread, or the new thread found no memory and ended before it began its work."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EAGAIN, f'no thread could be started: {why}')


class Thread(threading.Thread):
    """A daemon thread. Start it under no lock.

    If a new thread finds no memory in its first lines, it ends without a word. CPython's own ``start`` would then wait
    for it for ever (https://github.com/python/cpython/issues/140746).
    """

    def __init__(self, name: str, target: Callable[..., object], args: tuple[Any, ...] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)
        self._started = _Started()              # the event of CPython's class
        self._is_given_up = False

    def start(self) -> None:
        """Start the thread, and wait until it runs.

        :raises NotStarted: it will not do its work
        """
        try:
            super().start()
        except NotStarted:
            self._is_given_up = True            # if it was only slow
            with threading._active_limbo_lock:  # type: ignore[attr-defined]
                threading._limbo.pop(self, None)        # type: ignore[attr-defined]    # else it is listed for ever
            raise
        except RuntimeError as error:
            raise NotStarted(str(error)) from error

    def run(self) -> None:
        if not self._is_given_up:
            super().run()


class _Started(threading.Event):
    """The event that CPython's ``start`` waits for without a timeout."""

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(_START_S if timeout is None else timeout) and timeout is None:
            raise NotStarted(f'it did not run within {_START_S:.0f} s, see whether the host has memory left')
        return True
