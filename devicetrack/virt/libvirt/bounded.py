"""Calls with a timeout: another thread makes the call, and the caller waits for its answer only so long.

A call into a library cannot be ended from outside. So the thread of a late call goes on waiting and keeps the objects
that the call needs. The thread is used again once its answer has come. While many calls are late, no further call is
made: the same daemon would not answer that either. A call waits for a place while too many others are on their way.

In a process whose threads are eventlet's, a call into a C library stops all of them until it returns, also the one that
waits for its answer only so long. There such calls are made in the native threads of eventlet's pool.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
import contextlib
import importlib
import os
import queue
import sys
import threading
import time
from typing import Any
from typing import Final
from typing import TypeVar
import weakref

from devicetrack import threads

# More calls than a host's operations usually wait for at a time, and few enough threads to do no harm.
MOST_UNANSWERED: Final = 16
# A thread of eventlet's pool cannot wake one of eventlet's own, so whoever waits for a place looks so often.
_POLL_S: Final = 0.02

Answer = TypeVar('Answer')


class Late(Exception):
    """No answer came in time. The call may still be carried out."""


class NotMade(Late):
    """The call was not made: too many earlier ones have no answer yet, or no thread could be started."""


class _Call:
    """A call on its way, and its answer: a value, or an error that was raised."""

    __slots__ = ('work', 'about', 'deadline', 'answer')

    def __init__(self, work: Callable[[], Any], about: str | None, timeout_s: float) -> None:
        self.work, self.about = work, about
        self.deadline = time.monotonic() + timeout_s
        self.answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


class _Idle(collections.deque[queue.SimpleQueue[_Call | None]]):
    """The threads that wait for a call, by the queues in which they wait."""

    is_over = False

    def end(self) -> None:
        """End these threads now, and those that work as soon as they have answered."""
        self.is_over = True
        while self:
            with contextlib.suppress(IndexError):       # a caller was faster
                self.pop().put(None)


class Calls:
    """Makes calls. Its threads end with it, or by :meth:`close`.

    :param timeout_s: how long each may take
    :param into_c: the calls do nothing but call a C library: they may run in a native thread beside eventlet's
    """

    def __init__(self, timeout_s: float, into_c: bool = False) -> None:
        self.timeout_s, self._into_c = timeout_s, into_c
        self._begin()

    def close(self) -> None:
        """End the threads; that of a late call ends when its answer has come. The next call starts others."""
        over = self._idle
        self._start_anew()
        over.end()

    def _start_anew(self) -> None:
        self._idle = _Idle()
        weakref.finalize(self, self._idle.end).atexit = False

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._start_anew()
        self._unanswered: dict[int, _Call] = {}
        self._placing = threading.RLock()      # a signal handler may come in the middle

    def call(self, work: Callable[[], Answer], about: str | None = None) -> Answer:
        """Return or raise what ``work`` does.

        :param about: what the call asks about, for :meth:`is_late`
        :raises NotMade: too many earlier calls have no answer yet; ``work`` is never done
        :raises Late: no answer in time
        """
        call = self._placed(work, about)
        if self._into_c and (eventlet := _green()) is not None:
            result: Answer = self._call_natively(call, eventlet)
            return result
        try:
            try:
                calls = self._idle.pop()
            except IndexError:
                calls = queue.SimpleQueue()
                threads.Thread('devicetrack-libvirt', _work, (calls, self._idle, self._unanswered)).start()
            calls.put(call)
        except threads.NotStarted as unstarted:
            self._unanswered.pop(id(call), None)
            raise NotMade(unstarted.strerror) from unstarted
        except BaseException:
            self._unanswered.pop(id(call), None)
            raise
        try:
            answer, error = call.answer.get(timeout=call.left_s)
        except queue.Empty:
            raise Late(f'no answer within {self.timeout_s} s') from None
        if error is not None:
            try:
                raise error
            finally:
                del error                       # else it would refer to this frame, which refers to it
        result = answer
        return result

    def is_late(self, about: str) -> bool:
        """Whether an earlier call about the same has no answer yet, although its time is over."""
        return any(call.about == about and not call.left_s for call in self._now())

    def _now(self) -> list[_Call]:
        return list(self._unanswered.values())  # one step, which tuple() is not: it may collect garbage in between

    def _placed(self, work: Callable[[], Any], about: str | None) -> _Call:
        """Wait for a place among the unanswered calls, and make the call one of them."""
        if self._pid != os.getpid():            # the threads are the parent's
            self._begin()
        call = _Call(work, about, self.timeout_s)
        while True:
            with self._placing:
                if len(self._unanswered) < MOST_UNANSWERED:
                    call.deadline = time.monotonic() + self.timeout_s       # libvirt is asked only now
                    self._unanswered[id(call)] = call
                    return call
            late = sum(not earlier.left_s for earlier in self._now())
            if late >= MOST_UNANSWERED:
                raise NotMade(f'{late} earlier calls are not answered yet')
            if not call.left_s:
                raise NotMade(f'{MOST_UNANSWERED} other calls were on their way for {self.timeout_s} s')
            time.sleep(_POLL_S)

    def _call_natively(self, call: _Call, eventlet: Any) -> Any:
        def carried_out() -> Any:
            try:
                return call.work()
            finally:
                self._unanswered.pop(id(call), None)

        with eventlet.Timeout(call.left_s, Late(f'no answer within {self.timeout_s} s')):
            return eventlet.tpool.execute(carried_out)


def _work(calls: queue.SimpleQueue[_Call | None], idle: _Idle, unanswered: dict[int, _Call]) -> None:
    """Carry out calls. This has no reference to their :class:`Calls`, which ends with its last user."""
    try:
        while (call := calls.get()) is not None:
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = call.work()
            except BaseException as raised:
                error = raised
            finally:
                unanswered.pop(id(call), None)
            idle.append(calls)
            call.answer.put((answer, error))
            # The next call may be long in coming. The objects of this call must not stay in memory until then.
            del call, answer, error
            if idle.is_over:
                with contextlib.suppress(ValueError):       # a caller was faster, and this thread has another call
                    idle.remove(calls)
                    return
    finally:                                # no memory left: nobody may give this thread another call
        with contextlib.suppress(ValueError):
            idle.remove(calls)


def _green() -> Any:
    """Return eventlet, with its pool of native threads, if it has replaced the threads of this process; else None."""
    patcher = sys.modules.get('eventlet.patcher')
    if patcher is None or not patcher.is_monkey_patched('thread'):
        return None
    importlib.import_module('eventlet.tpool')
    return sys.modules['eventlet']
