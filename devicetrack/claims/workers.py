"""A bounded number of threads that take pieces of work until none is left."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time
from typing import Generic
from typing import TypeVar

from devicetrack import exception
from devicetrack import log
from devicetrack import threads
from devicetrack.claims import locks
from devicetrack.claims import public_calls

LOG = log.logger(__name__)

Piece = TypeVar('Piece')


class Workers(Generic[Piece]):
    """Threads that end when there is no work, so that an idle host has none.

    They are daemons: the end of the process does not wait for them.

    :param name: the name of the threads
    :param at_once: the largest number of threads
    :param take: returns the next piece of work, or None if none is left now. Threads call it at the same time
    :param work: does a piece. Its error is logged, and the thread continues with the next piece
    :param interrupted: called with an exception from outside that reaches a thread, and ends it
    :param then: called after each piece of work
    """

    def __init__(self, name: str, at_once: int, take: Callable[[], Piece | None], work: Callable[[Piece], None],
                 interrupted: Callable[[BaseException], None] = lambda _error: None,
                 then: Callable[[], object] = lambda: None) -> None:
        self._name, self._at_once, self._take, self._work, self._then = name, at_once, take, work, then
        self._call_failed = interrupted
        self._lock = locks.Lock(locks.BACKGROUND)           # for the fields below
        self._threads: list[threading.Thread] = []
        self._active: set[threading.Thread] = set()             # the threads that will take more work
        self._calls = 0                         # of start()

    def start(self, pieces: int = 1) -> None:
        """Say that there may be work. Starts a thread for each piece, unless there are enough. Quick.

        If the host is short of memory and a thread does not start, the log says so, and the next call tries again.
        """
        with self._lock.held():
            self._calls += 1                    # a thread that is about to end looks once more
            missing = min(pieces, self._at_once - len(self._active))
        for _ in range(missing):
            thread = threads.Thread(self._name, self.run)
            try:
                thread.start()
            except threads.NotStarted as error:
                LOG.warning('The work of %s waits for the next audit: %s', self._name, error.strerror)
                return
            with self._lock.held():
                self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    @public_calls.ending_start
    def run(self) -> None:
        """Work until nothing is left. Each thread runs this. One that finds enough others ends at once."""
        try:
            with self._lock.held():
                more = len(self._active) < self._at_once
                if more:
                    self._active.add(threading.current_thread())
            while more:
                calls = self._calls
                while (piece := self._take()) is not None:
                    self._do(piece)
                with self._lock.held():
                    more = calls != self._calls
                    if not more:
                        self._active.discard(threading.current_thread())
        except exception.StartIsOver:
            pass                                # the next start has threads of its own
        finally:
            with self._lock.held():
                self._active.discard(threading.current_thread())

    def _do(self, piece: Piece) -> None:
        try:
            self._work(piece)
            self._then()
        except MemoryError:
            raise                               # as any interrupt
        except Exception:                       # the thread also does other pieces
            LOG.exception('A piece of work of %s failed', self._name)
            locks.let_go(0)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no thread works any more.

        :returns: False if one still works after this time
        :raises ReentrantCall: the calling thread is one of them
        """
        if threading.current_thread() in self._active:
            raise exception.ReentrantCall(locks.BACKGROUND)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock.held():
                thread = next((one for one in (*self._active, *self._threads) if one.is_alive()), None)
            if thread is None:
                return True
            if deadline is None:
                thread.join()
            elif time.monotonic() < deadline:
                thread.join(deadline - time.monotonic())
            else:
                return False
