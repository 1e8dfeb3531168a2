"""Calls with a timeout: another thread makes the call, and the caller waits for its answer only so long.

A call into a library cannot be ended from outside. So the thread of a late call goes on waiting and keeps the objects
that the call needs. The thread is used again once its answer has come. While many calls are unanswered, no further call
is made: the same daemon would not answer that either.

In a process whose threads are eventlet's, a call into a C library stops all of them until it returns, also the one that
waits for its answer only so long. There such calls are made in the native threads of eventlet's pool.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
import importlib
import os
import queue
import sys
import threading
from typing import Any
from typing import Final
from typing import TypeVar

# More calls than a host's operations wait for at a time, and few enough threads to do no harm.
MOST_UNANSWERED: Final = 16

Answer = TypeVar('Answer')


class Late(Exception):
    """No answer came in time. The call may still be carried out."""


class _Call:
    """A call on its way, and its answer: a value, or an error that was raised."""

    __slots__ = ('work', 'answer')

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()


class Calls:
    """Makes calls.

    :param timeout_s: how long each may take
    :param into_c: the calls do nothing but call a C library: they may run in a native thread beside eventlet's
    """

    def __init__(self, timeout_s: float, into_c: bool = False) -> None:
        self.timeout_s, self._into_c = timeout_s, into_c
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: collections.deque[queue.SimpleQueue[_Call]] = collections.deque()
        self._unanswered: dict[int, _Call] = {}

    def call(self, work: Callable[[], Answer]) -> Answer:
        """Return or raise what ``work`` does.

        :raises Late: no answer in time, or too many earlier calls have no answer yet
        """
        if self._pid != os.getpid():            # the threads are the parent's
            self._begin()
        if len(self._unanswered) >= MOST_UNANSWERED:
            raise Late(f'{len(self._unanswered)} earlier calls are not answered yet')
        if self._into_c and (eventlet := _green()) is not None:
            return self._call_natively(work, eventlet)
        call = _Call(work)
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(calls,), name='devicetrack-libvirt', daemon=True).start()
        self._unanswered[id(call)] = call
        calls.put(call)
        try:
            answer, error = call.answer.get(timeout=self.timeout_s)
        except queue.Empty:
            raise Late(f'no answer within {self.timeout_s} s') from None
        if error is not None:
            try:
                raise error
            finally:
                del error                       # else it would refer to this frame, which refers to it
        result: Answer = answer
        return result

    def natively(self, work: Callable[[], Answer]) -> Answer:
        """As :meth:`call` if threads are eventlet's. Otherwise ``work`` is done at once, for as long as it takes."""
        return work() if _green() is None else self.call(work)

    def _call_natively(self, work: Callable[[], Answer], eventlet: Any) -> Answer:
        call = _Call(work)
        self._unanswered[id(call)] = call

        def carried_out() -> Answer:
            try:
                return work()
            finally:
                self._unanswered.pop(id(call), None)

        with eventlet.Timeout(self.timeout_s, Late(f'no answer within {self.timeout_s} s')):
            answer: Answer = eventlet.tpool.execute(carried_out)
        return answer

    def _work(self, calls: queue.SimpleQueue[_Call]) -> None:
        idle, unanswered = self._idle, self._unanswered
        while True:
            call = calls.get()
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = call.work()
            except BaseException as raised:
                error = raised
            unanswered.pop(id(call), None)
            idle.append(calls)
            call.answer.put((answer, error))
            # The next call may be long in coming. The objects of this call must not stay in memory until then.
            del call, answer, error


def _green() -> Any:
    """Return eventlet, with its pool of native threads, if it has replaced the threads of this process; else None."""
    patcher = sys.modules.get('eventlet.patcher')
    if patcher is None or not patcher.is_monkey_patched('thread'):
        return None
    importlib.import_module('eventlet.tpool')
    return sys.modules['eventlet']
