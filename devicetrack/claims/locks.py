"""The order of all locks of a host's manager, and an assertion that every acquisition follows it.

A thread may wait for a lock while it holds those that :data:`MAY_HOLD` lists for it, and no others::

    auditing -> reading -> ledger
    instance -> reading | marking -> ledger
    auditing -> marking -> ledger

No audit waits for an instance: it takes the lock of one that is idle and passes over the others. A lock that nobody
waits for cannot close a circle, so that is allowed in every place.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import threading
from typing import Final

AUDITING: Final = 'auditing'
INSTANCE: Final = 'instance'
READING: Final = 'reading'
MARKING: Final = 'marking'
LEDGER: Final = 'ledger'

MAY_HOLD: Final = {
    AUDITING: frozenset[str](),
    INSTANCE: frozenset[str](),
    READING: frozenset((AUDITING, INSTANCE)),
    MARKING: frozenset((AUDITING, INSTANCE)),
    LEDGER: frozenset((AUDITING, INSTANCE, READING, MARKING)),
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


class OrderedLock:
    """A lock between threads that has its place in the order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if TRACE.wanted:
            TRACE.asks(self._name)
        self._lock.acquire()
        if TRACE.wanted:
            TRACE.held.append(self._name)

    def __exit__(self, *_error: object) -> None:
        self._lock.release()
        if TRACE.wanted:
            TRACE.gives_back(self._name)
