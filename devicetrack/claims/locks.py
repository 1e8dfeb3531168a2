"""The order of all locks of a host's manager, and a check that every acquisition follows it.

While a thread waits for a lock, it may hold only the locks that :data:`MAY_HOLD` lists for it::

    auditing -> reading -> ledger
    instance -> reading | marking -> ledger
    auditing -> answering -> marking -> ledger

No audit waits for an instance: it takes the lock of an idle instance, and passes over the others. Taking a lock without
waiting cannot close a circle, so it is always allowed. A thread that holds ``finding`` (to find the lock of an
instance) or ``background`` (to change the work of background threads) waits for no other lock. So a thread may wait for
these two while it holds any other lock but ``ledger``.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import itertools
import threading
from typing import Any
from typing import Final

from oslo_concurrency import lockutils

from devicetrack import exception
from devicetrack import lean_imports

AUDITING: Final = 'auditing'
INSTANCE: Final = 'instance'
READING: Final = 'reading'
ANSWERING: Final = 'answering'
MARKING: Final = 'marking'
LEDGER: Final = 'ledger'
FINDING: Final = 'finding'
BACKGROUND: Final = 'background'

MAY_HOLD: Final = {
    AUDITING: frozenset[str](),
    INSTANCE: frozenset[str](),
    READING: frozenset((AUDITING, INSTANCE)),
    ANSWERING: frozenset((AUDITING,)),
    MARKING: frozenset((AUDITING, INSTANCE, ANSWERING)),
    LEDGER: frozenset((AUDITING, INSTANCE, READING, ANSWERING, MARKING)),
    FINDING: frozenset((AUDITING, INSTANCE, READING, ANSWERING, MARKING)),
    BACKGROUND: frozenset((AUDITING, INSTANCE, READING, ANSWERING, MARKING)),
}


# The name of each lock among all locks of the process that oslo.concurrency knows begins with this.
PREFIX: Final = 'devicetrack-'
_NUMBERS: Final = itertools.count()


def _acquire(fair: Any) -> None:
    fair.acquire_write_lock()


def _release(fair: Any) -> None:
    fair.release_write_lock()


def acquire_older(fair: Any) -> None:
    """Acquire a fair lock of fasteners 0.18, which is that of Debian 13. It has the call as a generator only."""
    me = fair._current_thread()
    if fair._writer == me:
        return
    with fair._cond:
        fair._pending_writers.append(me)
        while fair._writer is not None or fair._pending_writers[0] != me:
            fair._cond.wait()
        fair._writer = fair._pending_writers.popleft()


def release_older(fair: Any) -> None:
    with fair._cond:
        fair._writer = None
        fair._cond.notify_all()


if not hasattr(lockutils.ReaderWriterLock, 'acquire_write_lock'):
    _acquire, _release = acquire_older, release_older


class WrongOrder(AssertionError):
    """A thread asked for a lock that it must not wait for while it holds another one. Nothing was acquired."""

    def __init__(self, wanted: str, held: list[str]) -> None:
        super().__init__(wanted, held)
        self.wanted, self.held = wanted, held

    def __str__(self) -> str:
        return f'the {self.wanted} lock was asked for with {", ".join(self.held)} held'


class _Own(threading.local):
    """The locks of one thread: those that it has, and maybe one that it waits for."""

    def __init__(self) -> None:
        self.locks: list[Lock] = []


_OWN: Final = _Own()


class _Trace:
    """Whether the order is checked. That is only on demand, since it costs every claim time."""

    def __init__(self) -> None:
        self.wanted = 0


TRACE: Final = _Trace()


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Check every acquisition in this process while the block runs."""
    TRACE.wanted += 1
    try:
        yield
    finally:
        TRACE.wanted -= 1


def held() -> list[str]:
    """The names of the locks that the calling thread has, and maybe waits for, in the order in which it asked."""
    return [lock.name for lock in _OWN.locks]


def ledger_is_held() -> bool:
    """Whether the calling thread holds the ledger lock of any manager."""
    return LEDGER in held()


def let_go(kept: int) -> None:
    """Leave the locks that an interrupt kept the calling thread from leaving, since others may wait for them.

    :param kept: the first so many stay, as those of a call around the interrupted one
    """
    for lock in reversed(_OWN.locks[kept:]):
        lock.tear()


class Lock:
    """A lock between threads with a place in the order: a fair lock of oslo.concurrency.

    The thread that has waited longest gets it next. Each object is another lock, so those of one start of a host are
    not those of the next. An interrupt may keep a thread from leaving it: then :func:`let_go` does.

    It is not reentrant. A thread that holds it asks again only if a signal handler, or a function that the service
    handed in, calls the manager in the middle of a call of the same thread.

    :param of: what it belongs to, for its name among the locks of the process
    """

    __slots__ = ('name', '_fair', '_entering', '_users', '_turn', '__weakref__')

    def __init__(self, name: str, of: str = '') -> None:
        self.name = name
        # Not by lockutils.lock(): if an interrupt comes before the block of its generator begins, the generator stays
        # suspended. When it is collected, it releases the lock, whoever has it then.
        with lean_imports.without_eventlet():
            self._fair = lockutils.internal_fair_lock(f'{PREFIX}{of}-{name}-{next(_NUMBERS)}')
        self._entering = threading.Lock()
        self._users: list[int] = []             # the threads that have it or wait for it
        self._turn: _Turn | None = None         # the block that has it

    def held(self, wait: bool = True) -> _Turn:
        """Hold the lock during a block.

        :param wait: False does not wait, and ``as`` says whether the block has the lock
        :raises WrongOrder: the calling thread must not wait for it now
        :raises ReentrantCall: the calling thread has it, or waits for it further up its stack
        """
        return _Turn(self, wait)

    @property
    def is_in_use_here(self) -> bool:
        """Whether the calling thread has it, or waits for it further up its stack."""
        return self in _OWN.locks

    def leave(self) -> None:
        """Leave it at the end of its block."""
        self._turn = None
        _release(self._fair)
        self._forget()

    def _forget(self) -> None:
        if (thread := threading.get_ident()) in self._users:
            self._users.remove(thread)
        if self in _OWN.locks:
            _OWN.locks.remove(self)

    def tear(self) -> None:
        """Leave it, or its line, as the calling thread, wherever an interrupt came. Idempotent.

        The interrupt may have come in the middle of a step of oslo.concurrency's lock. A waiter that it tore out would
        keep its place in the line there, and nobody behind it would ever have a turn. This waits for nobody: others may
        be torn out at the same time.
        """
        fair = self._fair
        me, within = fair._current_thread(), fair._cond
        while within._is_owned():
            within.release()
        with within:
            while me in fair._pending_writers:
                fair._pending_writers.remove(me)
            if fair._writer == me:
                self._turn = None
                fair._writer = None
            within.notify_all()                 # also if it left the lock or the line before, and did not say so
        self._forget()


class _Turn:
    """The time that a block has a lock.

    An interrupt may leave the block of a generator suspended: it ends when somebody collects the generator, in any
    thread. By then the lock was let go of, and another block may have it, which keeps it.
    """

    __slots__ = ('_lock', '_wait', '_has_it')

    def __init__(self, lock: Lock, wait: bool) -> None:
        self._lock, self._wait, self._has_it = lock, wait, False

    def __enter__(self) -> bool:
        lock, wait, own = self._lock, self._wait, _OWN.locks
        if wait and lock in own:
            raise exception.ReentrantCall(lock.name)
        if wait and TRACE.wanted and not MAY_HOLD[lock.name].issuperset(held()):
            raise WrongOrder(lock.name, held())
        try:
            with lock._entering:
                self._has_it = wait or not lock._users
                if self._has_it:
                    own.append(lock)
                    lock._users.append(threading.get_ident())
                if self._has_it and not wait:
                    _acquire(lock._fair)                # at once: nobody else has it or is about to wait
            if wait:
                _acquire(lock._fair)
            if self._has_it:
                lock._turn = self
            return self._has_it
        except BaseException:
            if self._has_it:
                lock.tear()
            raise

    def __exit__(self, *_error: object) -> None:
        if self._lock._turn is self:
            self._lock.leave()
