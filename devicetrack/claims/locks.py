"""The order of all locks of a host's manager, and an assertion that every acquisition follows it.

A thread may wait for a lock while it holds those that :data:`MAY_HOLD` lists for it, and no others::

    auditing -> reading -> ledger
    instance -> reading | marking -> ledger
    auditing -> marking -> ledger

No audit waits for an instance: it takes the lock of one that is idle and passes over the others. A lock that nobody
waits for cannot close a circle, so that is allowed in every place. Whoever finds the lock of an instance, or changes
what threads in the background have to do, waits for nothing else meanwhile, so ``finding`` and ``background`` may be
asked for in every place too.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import contextlib
import queue
import threading
from typing import Final
import weakref

AUDITING: Final = 'auditing'
INSTANCE: Final = 'instance'
READING: Final = 'reading'
MARKING: Final = 'marking'
LEDGER: Final = 'ledger'
FINDING: Final = 'finding'
BACKGROUND: Final = 'background'

MAY_HOLD: Final = {
    AUDITING: frozenset[str](),
    INSTANCE: frozenset[str](),
    READING: frozenset((AUDITING, INSTANCE)),
    MARKING: frozenset((AUDITING, INSTANCE)),
    LEDGER: frozenset((AUDITING, INSTANCE, READING, MARKING)),
    FINDING: frozenset((AUDITING, INSTANCE, READING, MARKING)),
    BACKGROUND: frozenset((AUDITING, INSTANCE, READING, MARKING)),
}


class WrongOrder(AssertionError):
    """A thread asked for a lock that it must not wait for while it holds another one. Nothing was acquired."""

    def __init__(self, wanted: str, held: list[str]) -> None:
        super().__init__(wanted, held)
        self.wanted, self.held = wanted, held

    def __str__(self) -> str:
        return f'the {self.wanted} lock was asked for with {", ".join(self.held)} held'


class _Trace:
    """What each thread holds. It is kept only while somebody wants it, for a claim would pay for it."""

    def __init__(self) -> None:
        self.wanted = 0
        self._thread = threading.local()

    @property
    def held(self) -> list[str]:
        """What the calling thread holds, in the order of acquisition."""
        held: list[str] | None = getattr(self._thread, 'held', None)
        if held is None:
            held = self._thread.held = []
        return held

    def asks(self, name: str, waits: bool = True) -> None:
        """:raises WrongOrder: the calling thread must not wait for this lock now"""
        if waits and not MAY_HOLD[name].issuperset(self.held):
            raise WrongOrder(name, list(self.held))

    def gives_back(self, name: str) -> None:
        # The trace may have begun while the lock was held.
        if name in self.held:
            self.held.remove(name)


TRACE: Final = _Trace()


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Trace and check every acquisition in this process while the block runs."""
    TRACE.wanted += 1
    try:
        yield
    finally:
        TRACE.wanted -= 1


def ledger_is_held() -> bool:
    """Whether the calling thread holds the ledger lock of any manager; known only while locks are traced."""
    return LEDGER in TRACE.held


class FairLock:
    """A lock between threads that has its place in the order; whoever has waited for longest is next.

    Whoever stands first in the line has the lock, so that one indivisible step both joins the line and takes a lock
    that is free. An exception may reach a thread between any two steps (a signal, no memory left). However a ``with``
    block is left, the line loses its turn: it keeps turns by weak references, and a turn that nobody refers to any more
    is over. So is one whose thread asks for the same lock again. Fair locks of
    oslo.concurrency keep a waiter that was interrupted for ever.
    """

    __slots__ = ('name', '_line', '__weakref__')

    def __init__(self, name: str) -> None:
        self.name = name
        self._line: collections.deque[_Place] = collections.deque()

    def turn(self, wait: bool = True) -> Turn:
        """One thread's turn, for one ``with`` block, after which it is ended once more: see :meth:`held`.

        :param wait: without it the block may be entered without the lock; ``as`` says whether it has it
        """
        return Turn(self, wait)

    @contextlib.contextmanager
    def held(self, wait: bool = True) -> Iterator[bool]:
        """Hold the lock during a block; the same as :meth:`turn` for whom a microsecond does not count."""
        turn = self.turn(wait)
        try:
            with turn as has_it:
                yield has_it
        finally:
            turn.end()                          # for an exception that came while it ended

    def leave(self, place: _Place) -> None:
        """End a turn, or end waiting for it. Idempotent: an exception may make somebody ask again."""
        if place.is_traced:
            TRACE.gives_back(self.name)
        line = self._line
        try:
            line.remove(place)
        except ValueError:
            pass
        # Also when it had left already: perhaps nobody was woken then. Who is woken looks whether it is first.
        if line:
            with contextlib.suppress(IndexError):
                line[0].wake.put(None)


class _Place(weakref.ref['Turn']):
    """Where a turn stands in the line of its lock."""

    __slots__ = ('lock', 'thread', 'wake', 'is_traced')

    lock: FairLock
    thread: int
    wake: queue.SimpleQueue[None]
    is_traced: bool


class Turn:
    """Waits for a lock when its block is entered, and gives it back when the block is left."""

    __slots__ = ('_lock', '_wait', '_place', '__weakref__')

    def __init__(self, lock: FairLock, wait: bool) -> None:
        self._lock, self._wait = lock, wait
        self._place: _Place | None = None

    def __enter__(self) -> bool:
        """Say whether the block has the lock.

        :raises WrongOrder: the calling thread must not wait for it now
        """
        lock = self._lock
        if TRACE.wanted:
            TRACE.asks(lock.name, self._wait)
        place = _Place(self, _left_behind)
        place.lock, place.wake, place.is_traced = lock, queue.SimpleQueue(), False
        place.thread = threading.get_ident()
        self._place = place
        line = lock._line
        try:
            line.append(place)
            if not self._wait and line[0] is not place:
                self.end()
                return False
            while (first := line[0]) is not place:
                if first.thread == place.thread:    # nothing here asks twice, so an exception kept it from ending
                    lock.leave(first)
                else:
                    place.wake.get()
            if TRACE.wanted:
                place.is_traced = True
                TRACE.held.append(lock.name)
            return True
        except BaseException:
            self.end()
            raise

    def end(self, *_error: object) -> None:
        """Leave the line, once more after an exception that came while this was leaving it. Idempotent."""
        place = self._place
        if place is not None:
            place.lock.leave(place)
            self._place = None

    __exit__ = end


def _left_behind(place: _Place) -> None:
    """The block of a turn was left by an exception before it could give the lock back."""
    place.lock.leave(place)
