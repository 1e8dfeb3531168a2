"""The order of all locks of a host's manager, and a check that every acquisition follows it.

While a thread waits for a lock, it may hold only the locks that :data:`MAY_HOLD` lists for it::

    auditing -> reading -> ledger
    instance -> reading | marking -> ledger
    auditing -> answering -> marking -> ledger
    starting -> all others

No audit waits for an instance: it takes the lock of an idle instance, and passes over the others. Taking a lock without
waiting cannot close a circle, so it is always allowed. A thread that holds ``finding`` (to find the lock of an
instance) or ``background`` (to change the work of background threads) waits for no other lock. So a thread may wait for
these two while it holds any other lock but ``ledger``.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
import contextlib
import queue
import threading
from typing import Final
import weakref

from devicetrack import exception

STARTING: Final = 'starting'
AUDITING: Final = 'auditing'
INSTANCE: Final = 'instance'
READING: Final = 'reading'
ANSWERING: Final = 'answering'
MARKING: Final = 'marking'
LEDGER: Final = 'ledger'
FINDING: Final = 'finding'
BACKGROUND: Final = 'background'

MAY_HOLD: Final = {
    STARTING: frozenset((STARTING,)),           # another manager's, from ``prepare``
    AUDITING: frozenset((STARTING,)),
    INSTANCE: frozenset((STARTING,)),
    READING: frozenset((STARTING, AUDITING, INSTANCE)),
    ANSWERING: frozenset((STARTING, AUDITING)),
    MARKING: frozenset((STARTING, AUDITING, INSTANCE, ANSWERING)),
    LEDGER: frozenset((STARTING, AUDITING, INSTANCE, READING, ANSWERING, MARKING)),
    FINDING: frozenset((STARTING, AUDITING, INSTANCE, READING, ANSWERING, MARKING)),
    BACKGROUND: frozenset((STARTING, AUDITING, INSTANCE, READING, ANSWERING, MARKING)),
}


class WrongOrder(AssertionError):
    """A thread asked for a lock that it must not wait for while it holds another one. Nothing was acquired."""

    def __init__(self, wanted: str, held: list[str]) -> None:
        super().__init__(wanted, held)
        self.wanted, self.held = wanted, held

    def __str__(self) -> str:
        return f'the {self.wanted} lock was asked for with {", ".join(self.held)} held'


class _Trace:
    """The locks that each thread holds. It is kept only on demand, since it costs every claim time."""

    def __init__(self) -> None:
        self.wanted = 0
        self._thread = threading.local()

    @property
    def held(self) -> list[str]:
        """The locks that the calling thread holds, in the order of acquisition."""
        held: list[str] | None = getattr(self._thread, 'held', None)
        if held is None:
            held = self._thread.held = []
        return held

    def asks(self, name: str, waits: bool) -> None:
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
    """A lock between threads with a place in the order. The thread that has waited longest gets it next.

    The first turn in the line has the lock, so one indivisible step both joins the line and takes a free lock. An
    exception (a signal, no memory left) may reach a thread between any two steps. However a thread leaves the ``with``
    block, its turn leaves the line: the line keeps weak references, and a turn ends when nobody refers to it. A turn
    whose end was interrupted also ends if its thread asks for the same lock again. Fair locks of oslo.concurrency keep
    an interrupted waiter for ever.

    It is not reentrant. A thread that holds it asks again only if a signal handler, or a function that the service
    handed in, calls the manager in the middle of a call of the same thread.
    """

    __slots__ = ('name', '_line', '__weakref__')

    def __init__(self, name: str) -> None:
        self.name = name
        self._line: collections.deque[_Place] = collections.deque()

    def turn(self, wait: bool = True) -> Turn:
        """Return one thread's turn, for one ``with`` block. Call its :meth:`Turn.end` afterwards, as :meth:`held` does.

        :param wait: False does not wait, and ``as`` says whether the block has the lock
        """
        return Turn(self, wait)

    @contextlib.contextmanager
    def held(self, wait: bool = True) -> Iterator[bool]:
        """Hold the lock during a block. Like :meth:`turn`, but a microsecond slower."""
        turn = self.turn(wait)
        try:
            with turn as has_it:
                yield has_it
        finally:
            turn.end()                          # an exception may have come while the turn ended

    @property
    def is_in_use_here(self) -> bool:
        """Whether the calling thread has it, or waits for it further up its stack."""
        thread = threading.get_ident()
        # A list copies the line in one step. A tuple may collect garbage first, and meanwhile the line moves.
        return any(place.thread == thread and not place.is_over for place in list(self._line))

    def leave(self, place: _Place) -> None:
        """End a turn, or the wait for it. Idempotent, since a caller may repeat it after an exception."""
        place.is_over = True                    # first: an exception may come after each step
        if place.is_traced:
            TRACE.gives_back(self.name)
        line = self._line
        try:
            line.remove(place)
        except ValueError:
            pass
        # Also if the turn had left already: perhaps nobody was woken then. A woken thread checks whether it is first.
        if line:
            with contextlib.suppress(IndexError):
                line[0].wake.put(None)


class _Place(weakref.ref['Turn']):
    """The place of a turn in the line of its lock."""

    __slots__ = ('lock', 'thread', 'wake', 'is_traced', 'is_over')

    lock: FairLock
    thread: int
    wake: queue.SimpleQueue[None]
    is_traced: bool
    is_over: bool


class Turn:
    """Waits for a lock at the start of its block, and releases it at the end."""

    __slots__ = ('_lock', '_wait', '_place', '__weakref__')

    def __init__(self, lock: FairLock, wait: bool) -> None:
        self._lock, self._wait = lock, wait
        self._place: _Place | None = None

    def __enter__(self) -> bool:
        """Return whether the block has the lock.

        :raises WrongOrder: the calling thread must not wait for it now
        :raises ReentrantCall: the calling thread has it, or waits for it further up its stack
        """
        lock = self._lock
        if TRACE.wanted:
            TRACE.asks(lock.name, self._wait)
        place = _Place(self, _left_behind)
        place.lock, place.wake, place.is_traced = lock, queue.SimpleQueue(), False
        place.is_over = False
        place.thread = threading.get_ident()
        self._place = place
        line = lock._line
        try:
            line.append(place)
            if not self._wait and line[0] is not place:
                self.end()
                return False
            while (first := line[0]) is not place:
                if first.is_over:               # an exception kept the turn from leaving the line
                    lock.leave(first)
                elif first.thread == place.thread:
                    raise exception.ReentrantCall(lock.name)
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
        """Leave the line. Idempotent: it is called again after an exception that came in this method."""
        place = self._place
        if place is not None:
            place.lock.leave(place)
            self._place = None

    __exit__ = end


def _left_behind(place: _Place) -> None:
    """Release the lock of a turn whose block an exception left before it could release it."""
    place.lock.leave(place)
