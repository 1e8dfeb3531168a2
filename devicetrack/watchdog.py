"""Notices work that takes too long, in one thread of this process that starts when it is first needed.

This module uses no lock: each step on shared data is indivisible. So an exception from outside (a signal) leaves
nothing that another thread waits for.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import math
import os
import queue
import time
from typing import Final

from devicetrack import log
from devicetrack import threads

LOG = log.logger(__name__)


class Watch:
    """A block that should end within some seconds. It is no generator, since each database statement may have one.

    ``told`` gets an item after ``late`` was called. The watchdog creates it before it takes the watch. So a block that
    finds its watch gone knows whether an item will come.
    """

    __slots__ = ('deadline', 'late', 'told', '_watchdog', '_seconds')

    def __init__(self, watchdog: Watchdog, seconds: float, late: Callable[[], None]) -> None:
        self._watchdog, self._seconds, self.late = watchdog, seconds, late
        self.told: queue.SimpleQueue[None] | None = None

    def __enter__(self) -> None:
        self.deadline = time.monotonic() + self._seconds
        with contextlib.ExitStack() as undo:
            undo.push(self.__exit__)
            self._watchdog.begin(self)
            undo.pop_all()

    def __exit__(self, *_error: object) -> None:
        # An interrupt may have come before the watch was added.
        if not self._watchdog.take(self) and self.told is not None:
            self.told.get()


class Watchdog:
    """Calls a function when a block misses its deadline."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._watches: dict[Watch, bool] = {}
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sleeps_until = math.inf
        self._thread: threads.Thread | None = None
        self._pid = os.getpid()

    def watch(self, seconds: float, late: Callable[[], None]) -> Watch:
        """Call ``late`` in another thread if the block takes longer. The block ends only after ``late`` has ended.

        Errors of ``late`` are logged.
        """
        return Watch(self, seconds, late)

    def begin(self, watch: Watch) -> None:
        """Begin a watch."""
        if self._pid != os.getpid():            # the thread is the parent's
            self._begin()
        self._watches[watch] = True
        if self._thread is None:
            self._start()
        if watch.deadline < self._sleeps_until:
            self._wake.put(None)

    def take(self, watch: Watch) -> bool:
        """Take a watch out, and say whether it was there. If several threads try, only one succeeds."""
        return self._watches.pop(watch, False)

    def _start(self) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(setattr, self, '_thread', None)
            self._thread = threads.Thread('devicetrack-watchdog', self._run)
            self._thread.start()
            undo.pop_all()

    def _run(self) -> None:
        try:
            self._wait()
        finally:
            self._thread = None                 # no memory left: the next watch starts another thread

    def _wait(self) -> None:
        while True:
            # A watch that begins from here on wakes this thread; earlier ones are seen now.
            self._sleeps_until = math.inf
            watches = list(self._watches)
            now = time.monotonic()
            for watch in watches:
                if watch.deadline > now:
                    continue
                told = watch.told = queue.SimpleQueue()
                if self.take(watch):
                    try:
                        watch.late()
                    except Exception:
                        LOG.exception('Work is late, and its handler failed')
                    finally:
                        told.put(None)          # whatever happens to this thread, the block waits for it
            until = min((watch.deadline for watch in watches if watch.deadline > now), default=math.inf)
            self._sleeps_until = until
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=None if until == math.inf else max(0.0, until - time.monotonic()))


_watchdog: Final = Watchdog()
watch: Final = _watchdog.watch
