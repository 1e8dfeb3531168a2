"""Notices what takes longer than it may, in one thread of this process, which is started when it is first needed.

Nothing here is locked: each step on what threads share is indivisible. So an exception that comes from outside (a
signal) leaves nothing behind that another thread waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import itertools
import math
import os
import queue
import threading
import time
from typing import Final

from devicetrack import log

LOG = log.logger(__name__)


class _Watch:
    """Something that is to end before ``deadline``; ``told`` hears when ``late`` was called.

    ``is_late`` is set before the watchdog takes it: who finds it gone knows by this whether anybody will be told.
    """

    __slots__ = ('deadline', 'is_late', 'late', 'told')

    def __init__(self, deadline: float, late: Callable[[], None]) -> None:
        self.deadline, self.late, self.is_late = deadline, late, False
        self.told: queue.SimpleQueue[None] = queue.SimpleQueue()


class Watchdog:
    """Calls functions at deadlines that are not called off."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._watches: dict[int, _Watch] = {}
        self._numbers = itertools.count()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sleeps_until = math.inf
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @contextlib.contextmanager
    def watch(self, seconds: float, late: Callable[[], None]) -> Iterator[None]:
        """Call ``late`` in another thread if the block takes longer. When the block has ended ``late`` has too.

        Errors of ``late`` are logged.
        """
        if self._pid != os.getpid():            # the thread is the parent's
            self._begin()
        number, watch = next(self._numbers), _Watch(time.monotonic() + seconds, late)
        try:
            self._watches[number] = watch
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name='devicetrack-watchdog', daemon=True)
                self._thread.start()
            if watch.deadline < self._sleeps_until:
                self._wake.put(None)
            yield
        finally:
            # An interrupt may have come before it was among the watches.
            if self._watches.pop(number, None) is None and watch.is_late:
                watch.told.get()

    def _run(self) -> None:
        while True:
            # Whoever comes from here on wakes this thread; whoever came before is seen now.
            self._sleeps_until = math.inf
            watches = list(self._watches.items())
            now = time.monotonic()
            for number, watch in watches:
                if watch.deadline > now:
                    continue
                watch.is_late = True
                if self._watches.pop(number, None) is not None:
                    try:
                        watch.late()
                    except Exception:
                        LOG.exception('Something is late, and its end failed')
                    watch.told.put(None)
            until = min((watch.deadline for _number, watch in watches if watch.deadline > now), default=math.inf)
            self._sleeps_until = until
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=None if until == math.inf else max(0.0, until - time.monotonic()))


_watchdog: Final = Watchdog()
watch: Final = _watchdog.watch
